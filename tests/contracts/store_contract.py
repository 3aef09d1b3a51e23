"""What every store must do, whoever keeps it. A store's own test inherits `StoreContract` and says how to open it.

Races run in processes of their own: `opener` names a function, `where` gives its JSON arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.stores import Store, open_store

WORKER = Path(__file__).with_name("store_worker.py")
MEGABYTE = 1 << 20


class Crew:
    """Processes that open the same store, start together, and are gone at the end of the block."""

    def __init__(self, opener: str, where: list[Any], size: int, action: str, *arguments: Any) -> None:
        command = [sys.executable, str(WORKER), opener, json.dumps(where), action, json.dumps(arguments)]
        self.members = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(size)
        ]

    def __enter__(self) -> Crew:
        for member in self.members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write("go\n")
            member.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
            member.wait()
            for pipe in (member.stdin, member.stdout):
                assert pipe is not None
                pipe.close()

    def running(self) -> bool:
        return any(member.poll() is None for member in self.members)

    def results(self) -> list[Any]:
        told = [member.communicate(timeout=60)[0] for member in self.members]
        assert [member.returncode for member in self.members] == [0] * len(self.members)
        return [json.loads(line) for line in told]


class StoreContract:
    opener = "kinetic_orchestration.stores:open_store"
    rounds = 200
    many = 2500

    @pytest.fixture
    def where(self, tmp_path: Path) -> list[Any]:
        """The arguments with which `opener` opens an empty store, in any process."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, where: list[Any]) -> Iterator[Store]:
        yield open_store(*where)

    def crew(self, where: list[Any], size: int, action: str, *arguments: Any) -> Crew:
        return Crew(self.opener, where, size, action, *arguments)

    def test_of_eight_processes_that_create_one_name_exactly_one_wins(self, store: Store, where: list[Any]) -> None:
        with self.crew(where, 8, "create", self.rounds) as crew:
            pids = [str(member.pid) for member in crew.members]
            won = crew.results()
        assert sorted(n for names in won for n in names) == list(range(self.rounds))
        for pid, names in zip(pids, won, strict=True):
            for n in names:
                record = store.read(f"race/{n}")
                assert record is not None
                assert record.data.decode() == pid

    def test_no_increment_of_eight_processes_is_lost(self, store: Store, where: list[Any]) -> None:
        store.create("counter", b"0")
        with self.crew(where, 8, "increment", self.rounds // 8) as crew:
            lost = sum(crew.results())
        record = store.read("counter")
        assert record is not None
        assert int(record.data) == self.rounds // 8 * 8
        assert lost > 0, "the processes never met: this was no race"

    def test_of_four_processes_that_upload_one_name_exactly_one_wins(
        self, store: Store, where: list[Any], tmp_path: Path
    ) -> None:
        files = tmp_path / "files"
        files.mkdir()
        with self.crew(where, 4, "upload", self.rounds // 4, str(files)) as crew:
            pids = [str(member.pid) for member in crew.members]
            won = crew.results()
        assert sorted(n for names in won for n in names) == list(range(self.rounds // 4))
        for pid, names in zip(pids, won, strict=True):
            for n in names:
                record = store.read(f"uploads/{n}")
                assert record is not None
                assert record.data == pid.encode() * 1000
        assert {int(file.name.partition("-")[2]) % 2 for file in files.iterdir()} == {1}, "moved files are gone"

    def test_readers_never_see_a_part_of_an_object_that_is_overwritten(self, store: Store, where: list[Any]) -> None:
        seen: dict[int, int] = {}
        store.put("whole", b"A" * MEGABYTE)
        with self.crew(where, 2, "overwrite", self.rounds // 4) as crew:
            while crew.running():
                record = store.read("whole")
                assert record is not None
                assert len(record.data) == MEGABYTE
                assert record.data == record.data[:1] * MEGABYTE
                assert seen.setdefault(record.generation, record.data[0]) == record.data[0]
            written = [tuple(pair) for result in crew.results() for pair in result]
        generations = dict(written)
        assert len(generations) == len(written), "a generation came twice"
        assert len(seen) > 1
        for generation, letter in seen.items():
            assert generations.get(generation, letter) == letter

    def test_readers_never_see_a_part_of_an_object_that_comes_and_goes(self, store: Store, where: list[Any]) -> None:
        found = 0
        with self.crew(where, 2, "recreate", self.rounds // 4) as crew:
            while crew.running():
                record = store.read("come/and/go")
                if record is not None:
                    found += 1
                    assert record.data == record.data[:1] * MEGABYTE
                for entry in store.list("come/"):
                    assert entry.size == MEGABYTE
            generations = [generation for result in crew.results() for generation in result]
        assert len(set(generations)) == len(generations), "a generation came back after a delete"
        assert found > 0
        assert list(store.list("")) == [entry for entry in store.list("") if entry.name != "come/and/go"]

    def test_a_writer_that_is_killed_at_any_moment_leaves_nothing_half_written_and_no_lock(
        self, store: Store, where: list[Any]
    ) -> None:
        for delay in (0.0, 0.003, 0.008, 0.015, 0.024, 0.035):
            with self.crew(where, 3, "flood") as crew:
                for member in crew.members:
                    time.sleep(delay)
                    member.kill()
        found = 0
        for entry in store.list(""):
            if entry.name.startswith("flood/"):
                found += 1
                record = store.read(entry.name)
                assert record is not None
                assert record.data == record.data[:1] * MEGABYTE
        assert found > 0
        began = time.monotonic()
        for name in ("flood/put", "flood/swap"):
            assert store.put(name, b"free")
        assert time.monotonic() - began < 5

    def test_what_was_created_is_read_back_and_is_not_created_again(self, store: Store) -> None:
        generation = store.create("jobs/a/in/spec.json", b"first")
        assert generation is not None
        assert store.create("jobs/a/in/spec.json", b"second") is None
        record = store.read("jobs/a/in/spec.json")
        assert record is not None
        assert (record.data, record.generation) == (b"first", generation)

    def test_a_swap_needs_the_generation_that_is_there(self, store: Store) -> None:
        first = store.create("identity", b"1")
        assert first is not None
        second = store.swap("identity", b"2", first)
        assert second is not None
        assert second > first
        assert store.swap("identity", b"3", first) is None
        third = store.put("identity", b"3")
        assert store.swap("identity", b"4", second) is None
        assert store.delete("identity")
        assert store.swap("identity", b"4", third) is None
        assert store.swap("identity", b"4", 0) is None
        assert store.read("identity") is None

    def test_generations_grow_and_never_come_back(self, store: Store) -> None:
        written = []
        for n in range(50):
            written.append(store.put("beat", b"%d" % n))
            record = store.read("beat")
            assert record is not None
            assert record.generation == written[-1]
        assert written == sorted(set(written))
        for n in range(50):
            assert store.delete("beat")
            generation = store.create("beat", b"%d" % n)
            assert generation is not None
            written.append(generation)
        assert len(set(written)) == len(written)

    def test_a_range_is_read_as_a_slice_is(self, store: Store) -> None:
        data = bytes(range(256)) * 40
        store.create("log/000001", data)
        for start, end in [(0, None), (0, 0), (0, 10), (100, 200), (10_000, None), (10_239, 10_240)]:
            record = store.read("log/000001", start, end)
            assert record is not None
            assert record.data == data[start:end]
        for start, end in [(10_240, None), (10_241, None), (10_000, 99_999), (50_000, 60_000), (20, 10)]:
            record = store.read("log/000001", start, end)
            assert record is not None
            assert record.data == data[start:end]

    def test_an_empty_object_is_an_object(self, store: Store, tmp_path: Path) -> None:
        assert store.create("empty", b"") is not None
        assert store.create("empty", b"") is None
        for start, end in [(0, None), (0, 10), (5, None)]:
            record = store.read("empty", start, end)
            assert record is not None
            assert record.data == b""
        assert [entry.size for entry in store.list("empty")] == [0]
        store.download("empty", str(tmp_path / "empty"))
        assert (tmp_path / "empty").read_bytes() == b""
        assert store.upload("empty too", str(tmp_path / "empty"))
        assert store.read("empty too") is not None

    def test_a_listing_has_every_name_with_the_prefix_in_plain_order(self, store: Store) -> None:
        names = [
            "a",
            "a-b",
            "a.b",
            "ab/x",
            "ab/y/z",
            "ab-c/x",
            "b/1",
            "b/10",
            "b/2",
            "b!",
            "b/1.x/y",
            "c/é",
            "c/z",
        ]
        generations = {name: store.create(name, name.encode()) for name in names}
        own = [entry for entry in store.list("") if entry.name in generations]
        assert [entry.name for entry in own] == sorted(names)
        for entry in own:
            assert entry.size == len(entry.name.encode())
            assert entry.generation == generations[entry.name]
        for prefix in (
            "a",
            "ab",
            "ab/",
            "ab/y",
            "b/1",
            "b/",
            "c/",
            "ab/x",
            "nothing",
            "nothing/at/all",
            "a/x",
        ):
            listed = [entry.name for entry in store.list(prefix)]
            assert listed == sorted(name for name in names if name.startswith(prefix)), prefix

    def test_a_long_listing_is_whole(self, store: Store) -> None:
        names = [f"many/{n % 7}/{n:05d}" for n in range(self.many)]
        for name in names:
            store.put(name, b"x")
        assert [entry.name for entry in store.list("many/")] == sorted(names)
        listing = store.list("many/")
        assert next(listing).name == min(names)
        for name in names:
            store.delete(name)
        assert {entry.name for entry in listing} <= set(names), "objects deleted meanwhile may be left out"
        assert list(store.list("many/")) == []

    def test_a_delete_happens_once(self, store: Store) -> None:
        store.create("jobs/a/b/c", b"x")
        assert store.delete("jobs/a/b/c") is True
        assert store.delete("jobs/a/b/c") is False
        assert list(store.list("jobs/")) == []
        assert store.create("jobs/a/b/c", b"y") is not None

    def test_what_does_not_exist_is_an_answer(self, store: Store, tmp_path: Path) -> None:
        store.create("jobs/a", b"x")
        for name in ("nothing", "jobs/b", "jobs/a/below", "jobs"):
            assert store.read(name) is None
            assert store.delete(name) is False
            assert store.swap(name, b"y", 1) is None
            assert store.local_path(name) is None
        with pytest.raises(StoreError, match="nothing"):
            store.download("nothing", str(tmp_path / "file"))
        assert list(tmp_path.glob("file*")) == []

    def test_names_in_any_language_are_kept(self, store: Store) -> None:
        names = ["данные/файл", "日本/東京 1", "a b/c+d%20é", "emoji/🚀", "q?x=1&y#z", "é" * 100]
        for name in names:
            assert store.create(name, name.encode()) is not None
        for name in names:
            record = store.read(name)
            assert record is not None
            assert record.data == name.encode()
            assert [entry.name for entry in store.list(name)] == [name]

    @pytest.mark.parametrize(
        "name",
        ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".tmp/x", "a/.hidden", "a\\b", "a\0b", "a\nb", "é" * 200, "a/" * 600 + "a"],
    )  # fmt: skip
    def test_a_name_that_some_store_could_not_keep_is_refused(self, store: Store, name: str) -> None:
        for call in (
            lambda: store.create(name, b"x"),
            lambda: store.put(name, b"x"),
            lambda: store.read(name),
        ):
            with pytest.raises(ValueError, match="cannot be an object's name"):
                call()

    def test_a_file_goes_up_and_comes_down(self, store: Store, tmp_path: Path) -> None:
        data = os.urandom(3 * MEGABYTE + 17)
        source = tmp_path / "source"
        source.write_bytes(data)
        assert store.upload("blobs/aa/aa1", str(source)) is True
        assert store.upload("blobs/aa/aa1", str(source)) is False
        assert source.read_bytes() == data
        source.write_bytes(b"changed afterwards")
        record = store.read("blobs/aa/aa1")
        assert record is not None
        assert record.data == data
        target = tmp_path / "target"
        target.write_bytes(b"older")
        store.download("blobs/aa/aa1", str(target))
        assert target.read_bytes() == data
        target.write_bytes(b"changed afterwards")
        path = store.local_path("blobs/aa/aa1")
        assert path is None or Path(path).read_bytes() == data
        with pytest.raises(FileNotFoundError):
            store.upload("blobs/aa/aa2", str(tmp_path / "missing"))

    def test_a_file_that_is_moved_is_gone_whoever_was_first(self, store: Store, tmp_path: Path) -> None:
        for text, won in ((b"first", True), (b"second", False)):
            source = tmp_path / "source"
            source.write_bytes(text)
            assert store.upload("moved", str(source), move=True) is won
            assert not source.exists()
        record = store.read("moved")
        assert record is not None
        assert record.data == b"first"

    def test_a_move_never_shares_a_file_that_is_known_by_another_name(self, store: Store, tmp_path: Path) -> None:
        original = tmp_path / "original"
        original.write_bytes(b"sent")
        (tmp_path / "hard").hardlink_to(original)
        (tmp_path / "soft").symlink_to(original)
        assert store.upload("hard", str(tmp_path / "hard"), move=True)
        assert store.upload("soft", str(tmp_path / "soft"), move=True)
        assert sorted(tmp_path.glob("[hs]o*")) == []
        original.write_bytes(b"edited")
        for name in ("hard", "soft"):
            record = store.read(name)
            assert record is not None
            assert record.data == b"sent"

    def test_the_stores_time_passes_and_dates_what_is_written(self, store: Store) -> None:
        before = store.now()
        store.put("beat", b"x")
        record = store.read("beat")
        assert record is not None
        after = store.now()
        assert before <= after
        assert before - 2 <= record.updated <= after + 2
        assert [entry.updated for entry in store.list("beat")] == [record.updated]
