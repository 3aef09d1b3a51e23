"""A training restores from the machine's own copy or another host's what the bucket's commit names, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.host.prepare import tier as places
from kinetic_orchestration.program.checkpoints import background, commits, parts, store, trees
from kinetic_orchestration.program.checkpoints.agreement import Agreement
from kinetic_orchestration.program.checkpoints.commits import Leaf
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.program.checkpoints.tier import buddies, folder, near
from kinetic_orchestration.protocol.content.digest import of_bytes
from tests.core.program.checkpoints.tier.conftest import Place
from tests.core.program.conftest import on_a_small_disk, train
from tests.support.waits import wait_until

Begin = Callable[[int], None]


def again(place: Place, begin: Begin, until: int, attempt: int = 2, **options: Any) -> tuple[int, list[str]]:
    """Train on in another attempt. Returns the step at which it began, and the parts that it fetched."""
    begin(attempt)
    since = len(place.storage.calls)
    return train(until, **options), place.fetched(since)


def test_the_next_program_on_the_machine_restores_without_fetching_a_part(
    place: Place, begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(23) == 0
    assert again(place, begin, 31) == (20, [])
    assert "restored the checkpoint of step 20: 0.8 MB from this machine, in " in capfd.readouterr().err
    assert again(place, begin, 32, 3) == (30, [])


def test_what_came_from_the_bucket_is_kept_for_the_next_program(
    place: Place, begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    train(23, tier=None)
    assert place.copies() == []
    begun, fetched = again(place, begin, 21)
    assert (begun, set(fetched)) == (20, {"part-00000.safetensors"})
    assert "0.8 MB from the bucket, in " in capfd.readouterr().err
    assert again(place, begin, 22, 3) == (20, [])


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_a_digest_of_the_bucket_that_is_a_path_touches_nothing(place: Place, tmp_path: Path, kind: str) -> None:
    """All paths of this test lie in its own folder, whatever the code does with them."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    found = folder.Folder(str(place.root), "t", print)
    try:
        there = str(victim) if kind == "absolute" else os.path.relpath(victim, found.folder)
        for name in (there, f"{there}/", f"{there}/file"):
            assert found.find(name, 3) is None
            with found.scratch() as path:
                Path(path).write_text("new")
                assert not found.take(path, name)
                assert not found.link(path, name)
        assert (victim / "file").read_text() == "precious"
        assert [path.name for path in victim.iterdir()] == ["file"]
    finally:
        found.close()


def test_only_the_newest_two_are_kept_and_nothing_half_written(place: Place) -> None:
    train(48)
    assert len(place.copies()) == 2
    assert {path.parent.name for path in place.copies()} == {"slot-0"}
    assert all(len(path.name) == 64 for path in place.copies())


def test_the_copy_that_was_restored_stays_until_two_newer_ones_are_there(place: Place, begin: Begin) -> None:
    """The newer one may not be committed when its program is killed."""
    train(13)
    assert again(place, begin, 16) == (10, [])
    commits_ = [commit for commit in place.commits() if commit.step in (10, 15)]
    assert {path.name for path in place.copies()} == {commit.parts[0].digest for commit in commits_}


def test_a_large_checkpoint_that_is_written_beside_the_steps_is_kept(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LARGE", 1)
    train(23)
    assert again(place, begin, 24) == (20, [])


@pytest.mark.parametrize("how", ["changed", "cut"])
def test_a_copy_that_is_not_what_was_written_is_removed_and_the_bucket_has_it(
    place: Place, begin: Begin, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    train(23)
    for path in place.copies():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data if how == "changed" else data[:-1])
    begun, fetched = again(place, begin, 21)
    assert (begun, set(fetched)) == (20, {"part-00000.safetensors"})
    found = capfd.readouterr().err
    assert ("is not what was written (its digest is not that of what was written), and was removed" in found) == (
        how == "changed"
    )
    assert "is not restored" not in found, "the checkpoint itself is whole"
    (kept,) = (path for path in place.copies() if path.name == place.commits()[-1].parts[0].digest)
    assert of_bytes(kept.read_bytes()) == kept.name, "it came from the bucket"
    assert again(place, begin, 22, 3) == (20, [])


def test_copies_of_an_older_checkpoint_are_not_taken_for_the_newest(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(12)
    monkeypatch.setenv(places.DISK, str(tmp_path / "another machine" / "key"))
    assert again(place, begin, 33)[0] == 10
    monkeypatch.setenv(places.DISK, str(place.root))
    old = {path.name for path in place.copies()}
    begun, fetched = again(place, begin, 47, 3)
    assert (begun, set(fetched)) == (30, {"part-00000.safetensors"})
    assert len(place.copies()) == 2
    assert not old & {path.name for path in place.copies()}


def test_two_programs_with_checkpoints_in_two_places_have_nothing_in_common(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(12)
    other = f"{place.address}-2"
    begin(1)
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", other)
    monkeypatch.setenv(places.DISK, str(place.home / "tier" / places.key_of(other)))
    places.keep_only(str(place.home), other)
    assert train(12) == 0
    assert place.copies() == []
    assert again(place, begin, 13)[0] == 10


KILLED = """
import os, sys, numpy as np
import kinetic_orchestration as kinetic
training = kinetic.Training(every=5, name="t", keep=2)
state, begun = training.restore({"w": np.zeros(100_000), "n": 0})
for number in range(begun, int(sys.argv[1])):
    state = {"w": state["w"] + number, "n": state["n"] + 1}
    print(number, flush=True)
    training.step(number + 1, state)
os.kill(os.getpid(), 9)
"""


def test_a_program_that_is_killed_while_it_saves_leaves_the_copy_before(place: Place, begin: Begin) -> None:
    part = f"insert */step-000000000015-{'0123456789abcdef'}-1/part-00000.safetensors"
    place.storage.delay(part, 3600.0)
    with subprocess.Popen([sys.executable, "-c", KILLED, "1000"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            wait_until(lambda: program.stdout is not None and program.stdout.readline() == "14\n", within=60)
            wait_until(lambda: list(place.root.glob("t/slot-0/kinetic-*/part-*")), "that it saves", within=60)
        finally:
            program.send_signal(signal.SIGKILL)
    place.storage.heal()
    assert len(list(place.root.glob("t/slot-0/kinetic-*"))) == 1
    assert again(place, begin, 11) == (10, [])
    assert list(place.root.glob("t/slot-0/kinetic-*")) == [], "what it was writing is removed"


def test_a_program_that_is_killed_after_it_has_saved_is_followed_by_one_that_fetches_nothing(
    place: Place, begin: Begin
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, "13"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert again(place, begin, 14) == (10, [])


def test_a_full_disk_costs_the_copy_and_never_the_checkpoint(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "SPARE", 1 << 60)
    train(23)
    assert place.copies() == []
    assert capfd.readouterr().err.count("there is no room in") == 1
    begun, fetched = again(place, begin, 24)
    assert (begun, set(fetched)) == (20, {"part-00000.safetensors"})


FULL = """
import os, pathlib, sys
import kinetic_orchestration as kinetic
disk = pathlib.Path(sys.argv[1])
os.environ["KINETIC_TIER_DISK"] = f"{disk}/tier/key"

def train(attempt, until, tier="auto", filled=()):
    os.environ["KINETIC_ATTEMPT"] = str(attempt)
    if 0 in filled:
        fill()
    with kinetic.Training(every=1, name="t", keep=3, tier=tier) as training:
        state, begun = training.restore({"big": bytes(2_000_000)})
        for number in range(begun, until):
            if number in filled:
                fill()
            training.step(number + 1, {"big": bytes([number]) * 2_000_000})
        print(begun, *sorted(one.step for one in training._checkpoints.store.committed()), flush=True)

def with_files():
    for number in range(1000):
        (disk / os.urandom(8).hex()).touch()

def with_bytes():
    with (disk / "file").open("wb", buffering=0) as file:  # there is room for a folder, and for no part
        try:
            while file.write(bytes(1_000_000)):
                pass
        finally:
            file.truncate(file.tell() - 200_000)

def fill():
    try:
        HOW()
    except OSError as error:
        assert error.errno == 28, error
    else:
        raise AssertionError("the disk has room")

"""


@pytest.mark.parametrize(
    ("how", "options", "trains", "began"),
    [
        ("with_files", "size=200m,nr_inodes=60", "train(1, 3, filled=[1, 2])", "0 1 2 3"),
        ("with_bytes", "size=100m", "train(1, 3); train(2, 4, None); train(3, 4, filled=[0])", "4 2 3 4"),
    ],
    ids=["written", "fetched"],
)
def test_copies_make_room_on_a_disk_that_is_full(
    place: Place, tmp_path: Path, how: str, options: str, trains: str, began: str
) -> None:
    out, err = on_a_small_disk(FULL.replace("HOW", how) + trains, tmp_path, options)
    assert out.splitlines()[-1] == began
    assert "could not be written" not in err


def test_copies_make_room_for_a_checkpoint_that_has_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with kinetic.Training(every=5, name="t", on_full_disk="stop") as training:
        state, _ = training.restore({"w": np.zeros(100_000)})
        training.step(5, state)
        assert len(place.copies()) == 1
        monkeypatch.setattr(store, "SPARE", 1 << 60)
        with pytest.raises(CheckpointError, match="GB free"):
            training.step(10, state)
        assert place.copies() == []


def test_a_folder_of_another_user_is_not_used(
    place: Place, begin: Begin, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.root.parent.mkdir(parents=True)
    place.root.symlink_to(tmp_path / "elsewhere")
    train(12)
    assert "is not a folder of this user" in capfd.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_option_says_where_and_what_cannot_be_is_told(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="tier is 'ram'"):
        kinetic.Training(tier="ram")  # type: ignore[arg-type]
    monkeypatch.setenv(places.SHARED, "1")
    train(12)
    assert place.copies() == [], "a machine with other jobs keeps nothing that nobody asked for"
    assert again(place, begin, 22, tier="disk")[0] == 10
    assert again(place, begin, 23, 3, tier="disk") == (20, [])
    assert capfd.readouterr().err.count("keeps no copy") == 0
    again(place, begin, 24, 4, tier="memory")
    assert 'its memory is that of other jobs, too; tier="disk" keeps one' in capfd.readouterr().err
    monkeypatch.delenv(places.DISK)
    again(place, begin, 25, 5, tier="disk")
    assert "its disk goes with the job, as a pod's does" in capfd.readouterr().err
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", str(tmp_path / "a folder"))
    train(2, tier="disk")
    assert "a tier keeps no copy of what is in a folder already" in capfd.readouterr().err


def test_a_copy_in_memory_is_found_by_the_next_program(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(places.roots(str(place.home))[1], places.key_of(place.address))
    monkeypatch.setenv(places.MEMORY, str(root))
    train(23, tier="memory")
    assert place.copies() == []
    assert len(list(root.glob("t/slot-0/*"))) == 2
    assert again(place, begin, 24, tier="memory") == (20, [])


def test_a_machine_that_others_use_forgets_copies_that_nobody_has_used_for_a_week(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.SHARED, "1")
    old, new, strange = "0" * 32, "1" * 32, "of-somebody-else"
    for name, days in ((old, 8), (new, 6), (strange, 8)):
        there = place.home / "tier" / name / "t" / "slot-0"
        there.mkdir(parents=True)
        for path in (there, there.parent, there.parent.parent):
            moment = path.stat().st_mtime - 86400 * days
            os.utime(path, (moment, moment))
    train(6, tier="disk")
    assert {path.name for path in (place.home / "tier").iterdir()} == {new, strange, place.root.name}


def test_a_machine_that_stays_without_its_job_keeps_nothing_of_a_training_that_has_finished(
    place: Place, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for shared in (False, True):
        if shared:
            begin(2)
            monkeypatch.setenv(places.SHARED, "1")
        training = kinetic.Training(every=5, name="t", tier="disk")
        training.restore({"w": np.zeros(10)})
        training.step(5, {"w": np.zeros(10)})
        training.finish({"w": np.ones(10)}, 6)
        counts.append(len(place.copies()))
    assert counts == [2, 0]


# ---- several hosts -------------------------------------------------------------------------------------------------


def written_by(hosts: int, place: Place) -> commits.Commit:
    """A checkpoint whose rows are spread over hosts that share this machine, of which each keeps a copy of its own."""
    rows, leaves = 24 // hosts, {"rows": Leaf("int32", (24, 5))}
    told, opened = [], []
    for host in range(hosts):
        there = open_checkpoints(f"{place.address}/t", "0123456789abcdef-1")
        there.near = near.open_near("auto", "t", host, 1, os.environ, print)
        piece = np.arange(24 * 5, dtype=np.int32).reshape(24, 5)[host * rows : (host + 1) * rows]
        part = trees.HostPart(leaves=leaves, dtypes={"rows": "int32"})
        part.pieces.append(trees.Piece("rows", (host * rows, 0), (rows, 5), trees._bytes(piece)))
        told.append(there.write(commits.folder(7, there.writer), host, part))
        record = commits.Commit(7, commits.folder(7, there.writer), hosts, 0, tuple(told), leaves)
        opened.append(there)
    assert there.commit(record)
    for there in opened:
        there.close()
    return record


def test_copies_of_another_number_of_hosts_are_read_by_the_hosts_that_there_are(place: Place, begin: Begin) -> None:
    written_by(2, place)
    begin(2)
    since = len(place.storage.calls)
    with kinetic.Training(name="t", reshard=True) as training:
        state, done = training.restore({"rows": np.zeros((24, 5), np.int32)})
    assert done == 7
    assert (state["rows"] == np.arange(24 * 5, dtype=np.int32).reshape(24, 5)).all()
    whole = [call for call in place.storage.calls[since:] if call.verb == "get" and ".safetensors" in call.where]
    assert len(whole) <= 1, "one header at most is asked for, and no part"


HOST = textwrap.dedent(
    """
    import sys, numpy as np
    import kinetic_orchestration as kinetic

    class Own:
        each_hosts_own = True

        def __init__(self, value):
            self.value = value

        def get_state(self):
            return self.value

        def set_state(self, value):
            self.value = value

    until, host = int(sys.argv[1]), kinetic.current()
    own = Own("x" * 200_000 + str(host.host_index))
    training = kinetic.Training(every=5, name="t", keep=2)
    state, begun = training.restore({"own": own, "n": 0})
    print("begun", begun, own.value[-1], flush=True)
    for number in range(begun, until):
        state = {"own": own, "n": state["n"] + 1}
        training.step(number + 1, state)
    sys.stdin.read()  # while it is trained on, the hosts send each other what they have
    training.close()
    """
)


class Hosts:
    """The programs of an attempt, each on a machine of its own."""

    def __init__(self, place: Place, attempt: int, until: int, keys: list[str]) -> None:
        self.programs = []
        for host, key in enumerate(keys):
            told = {
                "KINETIC_ATTEMPT": str(attempt), "KINETIC_HOST_INDEX": str(host), "KINETIC_HOST_COUNT": str(len(keys)),
                places.DISK: str(self.root(place, host)), places.BUDDIES: " ".join(["127.0.0.1"] * len(keys)),
                places.KEY: key,
            }  # fmt: skip
            self.programs.append(
                subprocess.Popen(
                    [sys.executable, "-c", HOST, str(until)], text=True, env={**os.environ, **told},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip

    @staticmethod
    def root(place: Place, host: int) -> Path:
        return place.home / f"machine-{host}" / "tier" / "key"

    @classmethod
    def copies(cls, place: Place, host: int) -> list[Path]:
        return [path for path in cls.root(place, host).glob("t/slot-*/*") if len(path.name) == 64]

    @classmethod
    def has_newest_of(cls, place: Place, host: int) -> bool:
        """Return True if the next host has what this one has written last, beside its own."""
        newest = place.commits()[-1:]
        names = {path.name for path in cls.copies(place, (host + 1) % 3)}
        return [one.step for one in newest] == [10] and newest[0].parts[host].digest in names

    def begun(self) -> list[str]:
        return [program.stdout.readline().strip() for program in self.programs if program.stdout is not None]

    def end(self) -> list[str]:
        """Return what each has told its user."""
        return [program.communicate(timeout=60)[1] for program in self.programs]

    def kill(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate(timeout=60)


SECRET = "ab" * 32
HERE, KEY = "127.0.0.1", b"k" * 32


@pytest.mark.slow
@pytest.mark.parametrize("key", [SECRET, "cd" * 32])
def test_a_host_that_lost_its_disk_gets_its_part_from_the_next_one_if_both_have_the_key(
    place: Place, begin: Begin, key: str
) -> None:
    first = Hosts(place, 1, 12, [SECRET] * 3)
    try:
        assert first.begun() == [f"begun 0 {host}" for host in range(3)]
        wait_until(
            lambda: all(Hosts.has_newest_of(place, host) for host in range(3)),
            "the newest part of each host on the next one",
            within=60,
        )
    finally:
        first.kill()
    shutil.rmtree(Hosts.root(place, 1))
    since = len(place.storage.calls)
    second = Hosts(place, 2, 10, [SECRET, key, SECRET])
    try:
        assert second.begun() == [f"begun 10 {host}" for host in range(3)]
        told = second.end()
    finally:
        second.kill()
    assert "0.2 MB from this machine, in" in told[0]
    if key == SECRET:
        assert place.fetched(since) == []
        assert "0.2 MB from other hosts, in" in told[1]
    else:
        assert set(place.fetched(since)) == {"part-00001.safetensors"}
        assert "0.2 MB from the bucket, in" in told[1]
        assert "could not send its copy of a part, which comes from the bucket" in told[1]


@pytest.mark.slow
def test_a_host_whose_disk_cannot_be_used_keeps_no_other_waiting(place: Place) -> None:
    Hosts.root(place, 1).parent.mkdir(parents=True)
    Hosts.root(place, 1).write_text("no folder")
    hosts = Hosts(place, 1, 6, [SECRET] * 3)
    try:
        assert hosts.begun() == [f"begun 0 {host}" for host in range(3)]
        told = hosts.end()
    finally:
        hosts.kill()
    assert ["no copy of a checkpoint is kept on this machine" in one for one in told] == [False, True, False]
    assert [commit.step for commit in place.commits()] == [5]


@pytest.mark.parametrize(("digest", "size"), [("\u00e9" * 64, 5), ("x" * 70, 5), ("ab" * 32, -5)])
def test_a_commit_that_names_what_can_be_no_copy_asks_no_buddy(place: Place, digest: str, size: int) -> None:
    """Whoever can write to the bucket may have written it, and that another host has such a copy."""
    said = list[str]()
    there = open_checkpoints(f"{place.address}/t", "0123456789abcdef-1")
    record = commits.Commit(7, commits.folder(7, there.writer), 1, 0, (commits.Part(size, digest),), {})
    with (
        contextlib.closing(
            near.Near(folder.Folder(str(place.root), "t", print), 0, [HERE] * 2, KEY, said.append)
        ) as own,
        contextlib.closing(
            buddies.Listener(HERE, KEY, buddies.Files(lambda *_: None, contextlib.nullcontext))
        ) as other,
    ):
        agreement = Agreement(there, 0, 2)
        there.records.signal(f"{agreement._prefix}near/1", json.dumps([other.port, [0, 0]]).encode())
        own.meet(agreement, "near", record)
        assert own.opened(0, record.parts[0]) is None
    there.close()
    assert said == []


def test_a_header_is_not_believed_where_the_copy_is_damaged(place: Place) -> None:
    """Else a copy could have a whole checkpoint be passed over."""
    record = written_by(2, place)
    there = open_checkpoints(f"{place.address}/t", "reader")
    there.near = near.open_near("auto", "t", 0, 1, os.environ, print)
    for path in place.copies():
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert parts.count_in(there.pieces(record, 1), "rows", (0, 0), (24, 5)) == 60
    there.close()


def test_nothing_but_copies_goes_from_a_folder_and_nothing_from_where_a_link_leads(
    place: Place, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("notes", "ab" * 32, "new-x1"):
        (mine / name).write_text("mine")
    slots = [place.root / "t" / name for name in ("slot-0", "slot-1", "slot-2", "other")]
    for slot in slots[:2]:
        slot.mkdir(parents=True)
        for name in ("notes", "cd" * 32, "new-x1"):
            (slot / name).write_text("x")
    (slots[0] / ("ef" * 32)).symlink_to(mine / "notes")
    (slots[0] / "kinetic-checkpoint-x").symlink_to(mine)
    for slot in slots[2:]:
        slot.symlink_to(mine)
    for slot in slots:
        slot.with_name(f"{slot.name}.lock").touch()
    found = folder.Folder(str(place.root), "t", print)
    try:
        assert found.folder == str(slots[0])
        assert found.find("ab" * 32, 4) is None, "it is not in a folder of ours"
        assert found.find("ef" * 32, 4) is None, "it is a link"
        found.discard(str(mine / ("ab" * 32)), "nothing")
        found.clear()
    finally:
        found.close()
    assert sorted(path.name for path in mine.iterdir()) == sorted(("notes", "ab" * 32, "new-x1"))
    assert [path.name for path in slots[1].iterdir()] == ["notes"]
    assert (slots[0] / "notes").exists()


@pytest.mark.parametrize("name", ["..", "../t", "a/b", "", ".hidden", "@../t"])
def test_a_training_that_has_a_path_for_a_name_has_no_folder(place: Place, name: str) -> None:
    with pytest.raises(OSError, match="no name for a folder"):
        folder.Folder(str(place.root), name, print)


def test_a_folder_that_is_gone_costs_the_copy_and_never_the_checkpoint(place: Place, tmp_path: Path) -> None:
    found = folder.Folder(str(place.root), "t", print)
    try:
        (place.root / "t").rename(tmp_path / "gone")
        (tmp_path / "part").write_text("x")
        assert not found.take(str(tmp_path / "part"), "ab" * 32)
        assert (tmp_path / "part").exists()
    finally:
        found.close()
