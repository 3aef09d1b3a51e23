"""The contract of every store. A store's own test inherits `StoreContract` and defines how to open it.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def where(self, tmp_path: Path) -> list[Any]:
            return [f"{tmp_path}/store", "prod"]

Races run in processes of their own: `opener` names a function, `where` gives its JSON arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol.names import RECORD_LIMIT
from kinetic_orchestration.protocol.records.base import TooLarge
from kinetic_orchestration.protocol.records.files import LOCK_PATIENCE

WORKER = Path(__file__).with_name("store_worker.py")
MEGABYTE = 1 << 20
MEETINGS = 10  # so often may processes that are to meet miss each other


class Member:
    """One process of a crew."""

    def __init__(self) -> None:
        self.theirs: tuple[int, int]
        orders, ours = os.pipe()
        tells, theirs = os.pipe()
        self.theirs = orders, theirs
        self.orders, self.told = os.fdopen(ours, "w"), os.fdopen(tells)
        self.pid = 0

    def go(self) -> None:
        print("go", file=self.orders, flush=True)

    def kill(self) -> None:
        """Kill one that does not end by itself."""
        os.kill(self.pid, SIGKILL)


class Crew:
    """Processes that opened the same store, from one that has imported all that they need; gone after the block."""

    def __init__(self, modules: Sequence[str], opener: str, where: list[Any], size: int, action: str, *arguments: Any):
        self.members = [Member() for _ in range(size)]
        pipes = [member.theirs for member in self.members]
        words = [json.dumps(modules), opener, json.dumps(where), action, json.dumps(arguments), json.dumps(pipes)]
        self.captain = subprocess.Popen(
            [sys.executable, str(WORKER), *words],
            pass_fds=[end for pair in pipes for end in pair],
            start_new_session=True,
        )
        for end in itertools.chain(*pipes):
            os.close(end)

    def __enter__(self) -> Crew:
        for member in self.members:
            member.pid = int(member.told.readline())
        return self

    def __exit__(self, *_: object) -> None:
        if self.captain.poll() is None:
            os.killpg(self.captain.pid, SIGKILL)
        self.captain.wait()
        for member in self.members:
            member.told.read()  # to its end, which is that of the process
            member.told.close()
            with contextlib.suppress(BrokenPipeError):
                member.orders.close()

    def go(self) -> Crew:
        for member in self.members:
            member.go()
        return self

    def running(self) -> bool:
        return self.captain.poll() is None

    def results(self) -> list[Any]:
        assert self.captain.wait(timeout=120) == 0
        return [json.loads(member.told.readline()) for member in self.members]


class RecordsContract:
    """The contract of a store's records, for clients and for hosts, which read them by code of their own.

    Attributes:
        opener: The function that opens them, as `module:name`.
        modules: Modules that it needs and that cost time to import.
        rounds: How often processes that race do so.
        many: Objects of a listing that has to be complete.
    """

    opener = "kinetic_orchestration.platforms.registry:open_store"
    modules: Sequence[str] = ()
    rounds = 200
    many = 2500
    tick = 0.05  # seconds after which the time of an object is another one

    @pytest.fixture
    def where(self, tmp_path: Path) -> list[Any]:
        """The arguments with which `opener` opens an empty store, in any process."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, where: list[Any]) -> Iterator[Store]:
        yield open_store(*where)

    def crew(self, where: list[Any], size: int, action: str, *arguments: Any) -> Crew:
        return Crew(self.modules, self.opener, where, size, action, *arguments)

    def test_of_eight_processes_that_create_one_name_exactly_one_wins(self, store: Store, where: list[Any]) -> None:
        with self.crew(where, 8, "create", self.rounds) as crew:
            pids = [str(member.pid) for member in crew.members]
            won = crew.go().results()
        assert sorted(n for names in won for n in names) == list(range(self.rounds))
        for pid, names in zip(pids, won, strict=True):
            for n in names:
                record = store.read(f"race/{n}")
                assert record is not None
                assert record.data.decode() == pid

    def test_no_increment_of_eight_processes_is_lost(self, store: Store, where: list[Any]) -> None:
        store.create("counter", b"0")
        for times in range(1, MEETINGS + 1):
            with self.crew(where, 8, "increment", self.rounds // 8) as crew:
                lost = sum(crew.go().results())
            record = store.read("counter")
            assert record is not None
            assert int(record.data) == times * (self.rounds // 8 * 8)
            if lost:
                return
        pytest.fail("the processes never met: this was no race")

    def test_of_four_processes_that_upload_one_name_exactly_one_wins(
        self, store: Store, where: list[Any], tmp_path: Path
    ) -> None:
        files = tmp_path / "files"
        files.mkdir()
        with self.crew(where, 4, "upload", self.rounds // 4, str(files)) as crew:
            pids = [str(member.pid) for member in crew.members]
            won = crew.go().results()
        assert sorted(n for names in won for n in names) == list(range(self.rounds // 4))
        for pid, names in zip(pids, won, strict=True):
            for n in names:
                record = store.read(f"uploads/{n}")
                assert record is not None
                assert record.data == pid.encode() * 1000
        assert {int(file.name.partition("-")[2]) % 2 for file in files.iterdir()} == {1}, "moved files are gone"

    def test_a_swap_by_the_same_bytes_is_a_swap(self, store: Store) -> None:
        first = store.create("same", b"A")
        assert first is not None
        second = store.swap("same", b"A", first)
        assert second not in (None, first)
        assert store.swap("same", b"B", first) is None
        assert store.swap("same", b"A", first) is None

    def test_of_eight_processes_that_swap_by_the_same_bytes_one_wins_each_round(
        self, store: Store, where: list[Any]
    ) -> None:
        store.create("same", b"A")
        with self.crew(where, 8, "renew", self.rounds // 8) as crew:
            pairs = [pair for result in crew.go().results() for pair in result]
        swapped = [old for old, _ in pairs]
        assert len(set(swapped)) == len(swapped), "two swaps have replaced one generation"
        assert len({new for _, new in pairs}) == len(pairs)

    def test_readers_never_see_a_part_of_an_object_that_is_overwritten(self, store: Store, where: list[Any]) -> None:
        seen: dict[int, int] = {}
        written: list[tuple[int, int]] = []
        store.put("whole", b"A" * MEGABYTE)
        for _ in range(MEETINGS):
            with self.crew(where, 2, "overwrite", self.rounds // 4) as crew:
                crew.go()
                while crew.running():
                    record = store.read("whole")
                    assert record is not None
                    assert len(record.data) == MEGABYTE
                    assert record.data == record.data[:1] * MEGABYTE
                    assert seen.setdefault(record.generation, record.data[0]) == record.data[0]
                written += [tuple(pair) for result in crew.results() for pair in result]
            if len(seen) > 1:
                break
        generations = dict(written)
        assert len(generations) == len(written), "a generation came twice"
        assert len(seen) > 1
        for generation, letter in seen.items():
            assert generations.get(generation, letter) == letter

    def test_readers_never_see_a_part_of_an_object_that_comes_and_goes(self, store: Store, where: list[Any]) -> None:
        found = 0
        generations: list[int] = []
        for _ in range(MEETINGS):
            with self.crew(where, 2, "recreate", self.rounds // 4) as crew:
                crew.go()
                while crew.running():
                    record = store.read("come/and/go")
                    if record is not None:
                        found += 1
                        assert record.data == record.data[:1] * MEGABYTE
                    for entry in store.list("come/"):
                        assert entry.size == MEGABYTE
                generations += [generation for result in crew.results() for generation in result]
            if found:
                break
        assert len(set(generations)) == len(generations), "a generation came back after a delete"
        assert found > 0
        assert list(store.list("")) == [entry for entry in store.list("") if entry.name != "come/and/go"]

    def test_a_writer_that_is_killed_at_any_moment_leaves_nothing_half_written_and_no_lock(
        self, store: Store, where: list[Any]
    ) -> None:
        delays = (0.0, 0.003, 0.008, 0.015, 0.024, 0.035)
        with self.crew(where, 3 * len(delays) + 1, "flood") as crew:
            members = iter(crew.members)
            for delay in delays:
                three = list(itertools.islice(members, 3))
                for member in three:
                    member.go()
                for member in three:
                    time.sleep(delay)
                    member.kill()
            last = next(members)
            last.go()
            while len(list(store.list("flood/"))) < 3:  # on a busy machine, nobody may have come so far
                assert crew.running()
            last.kill()
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
        assert time.monotonic() - began < LOCK_PATIENCE / 2

    def test_calls_that_are_requests_are_worth_making_side_by_side_and_nothing_rings(self, store: Store) -> None:
        assert isinstance(store.metered, bool) and isinstance(store.can_append, bool)
        assert (store.parallel > 1) is store.metered
        assert (store.bell() is None) is store.metered

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
        assert second != first
        assert store.swap("identity", b"3", first) is None
        third = store.put("identity", b"3")
        assert store.swap("identity", b"4", second) is None
        assert store.delete("identity")
        assert store.swap("identity", b"4", third) is None
        assert store.swap("identity", b"4", 0) is None
        assert store.read("identity") is None

    def test_generations_never_come_back(self, store: Store) -> None:
        written = []
        for n in range(50):
            written.append(store.put("beat", b"%d" % n))
            record = store.read("beat")
            assert record is not None
            assert record.generation == written[-1]
        for _ in range(50):
            assert store.delete("beat")
            generation = store.create("beat", b"the same")
            assert generation is not None
            written += [generation, store.put("beat", b"the same")]
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
        [
            *("", "/a", "a/", "a//b", "..", "a/../b", "./a", ".tmp/x", "a/.hidden"),
            *("a\\b", "a\0b", "a\nb", "é" * 200, "a/" * 600 + "a"),
        ],
    )
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

    def test_a_file_that_is_larger_than_it_may_be_does_not_come_down(self, store: Store, tmp_path: Path) -> None:
        data = os.urandom(3 * MEGABYTE)
        store.create("blobs/aa/aa1", data)
        target, less = tmp_path / "target", tmp_path / "less"
        store.download("blobs/aa/aa1", str(target), most=len(data))
        assert target.read_bytes() == data
        with pytest.raises(
            (StoreError, TooLarge), match=r"blobs/aa/aa1 .*has 3 MB, more than 3 MB, and nothing that this package"
        ):
            store.download("blobs/aa/aa1", str(less), most=len(data) - 1)
        assert list(tmp_path.glob("less*")) == []

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

    def test_signals_come_with_their_bytes_and_the_newest_counts(self, store: Store) -> None:
        sent = {"beats/a/1/0": bytes(range(256)) * 16, "beats/a/1/1": b"", "beats/a/1/10": "é".encode()}
        for name in sent:
            store.signal(name, b"older")
        generations = {name: store.signal(name, data) for name, data in sent.items()}
        store.signal("beats/ab", b"of another")
        found = list(store.signals("beats/a/"))
        assert {signal.name: signal.data for signal in found} == sent
        assert [signal.name for signal in found] == sorted(sent)
        for signal in found:
            assert signal.generation == generations[signal.name]
            assert store.read(signal.name) == (signal.data, signal.generation, signal.updated)
        assert list(store.signals("beats/b/")) == []

    def test_what_was_put_where_signals_are_is_a_signal_too(self, store: Store) -> None:
        generation = store.put("beats/a/1/0", b"put")
        assert [(signal.data, signal.generation) for signal in store.signals("beats/")] == [(b"put", generation)]

    def test_a_ring_never_fails_and_is_no_object_of_anybodys(self, store: Store) -> None:
        store.ring("job-1")
        assert [entry.name for entry in store.list("jobs/")] == []

    def test_a_process_that_was_forked_uses_the_store_as_its_parent_does(self, store: Store, where: list[Any]) -> None:
        with self.crew(where, 1, "fork", 20) as crew:
            assert crew.go().results() == [0]
        assert {entry.name for entry in store.list("forked/")} == {
            f"forked/{who}/{n}" for who in ("parent", "child") for n in range(20)
        }

    def test_many_threads_use_one_store(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            generations = list(pool.map(lambda n: store.create(f"threads/{n % 100}", b"%d" % n), range(200)))
        assert sum(generation is not None for generation in generations) == 100
        assert len(list(store.list("threads/"))) == 100


class StoreContract(RecordsContract):
    """The contract of a store: that of its records, and of calls that only a client makes."""

    def test_several_objects_are_read_as_each_of_them(self, store: Store) -> None:
        for n in range(20):
            store.create(f"several/{n}", b"%d" % n)
        names = [f"several/{n}" for n in (7, 3, 99, 3, *range(20))]
        assert store.read_all(names) == [store.read(name) for name in names]
        assert store.read_all([]) == []

    def test_a_hint_is_a_signal(self, store: Store) -> None:
        assert store.hint("beats/a", b"hint")
        assert [signal.data for signal in store.signals("beats/")] == [b"hint"]

    def test_a_listing_by_the_last_part_of_names_has_no_others(self, store: Store) -> None:
        names = ["x", "a/x", "a/b/x", "a/c/y", "a/bx", "b/x"]
        for name in names:
            store.create(name, b"")
        assert [entry.name for entry in store.list("a/", last="x")] == ["a/b/x", "a/x"]
        assert [entry.name for entry in store.list("a/", last="z")] == []

    def test_one_object_is_found_as_a_listing_tells_of_it(self, store: Store) -> None:
        for name, data in (("a/b", b"12345"), ("a/b.more", b""), ("a/empty", b"")):
            store.create(name, data)
        for entry in store.list("a/"):
            assert store.find(entry.name) == entry
        assert store.find("a") is None
        assert store.find("a/none") is None

    def test_a_write_tells_when_it_was(self, store: Store) -> None:
        generation = store.create("told", b"x")
        assert generation is not None
        record = store.read("told")
        assert record is not None
        assert store.written_at("told", generation) == pytest.approx(record.updated, abs=0.001)

    def test_what_is_renewed_is_young_and_the_same(self, store: Store) -> None:
        for name, data in (("small", b"x"), ("large", os.urandom(9 * MEGABYTE))):
            store.create(name, data)
            before = store.find(name)
            time.sleep(self.tick)
            assert store.renew(name)
            after = store.find(name)
            assert before is not None
            assert after is not None
            assert after.updated > before.updated
            assert after.size == before.size
            record = store.read(name)
            assert record is not None
            assert record.data == data
            assert record.updated == pytest.approx(after.updated, abs=0.001)
        assert not store.renew("none")
        assert store.find("none") is None

    def test_what_is_too_large_to_be_a_record_is_not_read(self, store: Store) -> None:
        store.create("most", bytes(RECORD_LIMIT))
        store.create("more", bytes(RECORD_LIMIT + 1))
        record = store.read("most")
        assert record is not None
        assert len(record.data) == RECORD_LIMIT
        with pytest.raises(StoreError, match=r"more .*not read: it has more than 17 MB.* remove the object"):
            store.read("more")
        with pytest.raises(StoreError, match="not read"):
            store.read_all(["most", "more"])
        longer = store.read("more", limit=2 * RECORD_LIMIT)
        assert longer is not None
        assert len(longer.data) == RECORD_LIMIT + 1
        part = store.read("more", 5, 10)
        assert part is not None
        assert part.data == bytes(5)
