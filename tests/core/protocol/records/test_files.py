"""The agent's record store beyond the contract of every store (see tests/core/platforms)."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_orchestration.host.view.retrying_records import RetryingRecords
from kinetic_orchestration.protocol.records import files
from kinetic_orchestration.protocol.records.base import RecordsError
from kinetic_orchestration.protocol.records.files import Bell, FileRecords
from tests.support.interpreters import OLDEST, required

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> FileRecords:
    return FileRecords(str(tmp_path))


@pytest.fixture
def bell(store: FileRecords) -> Iterator[Bell]:
    bell = Bell(store)
    yield bell
    bell.close()


def test_the_records_cost_an_agent_no_slow_module_at_its_start() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kinetic_orchestration.protocol; before = set(sys.modules)\n"
        "from kinetic_orchestration.protocol.records import base, files; print(*sorted(set(sys.modules) - before))"
    )
    root = str(Path(files.__file__).parents[files.__name__.count(".")])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, root], capture_output=True, text=True, check=True, timeout=60
    )
    slow = {"typing", "dataclasses", "pathlib", "subprocess", "logging", "inspect", "fcntl", "shutil", "contextlib"}
    assert slow.isdisjoint(done.stdout.split())


def test_a_refusal_is_a_sentence_with_the_systems_reason(store: FileRecords) -> None:
    store.create("a", b"an object, not a folder")
    with pytest.raises(RecordsError, match=r"Cannot write a/b \(store .*\): a part of the name is an object") as told:
        store.create("a/b", b"x")
    assert told.value.errno == errno.ENOTDIR
    assert str(told.value).endswith(".")


def test_nothing_but_objects_and_a_bounded_number_of_locks_is_left(store: FileRecords, tmp_path: Path) -> None:
    for n in range(200):
        generation = store.create(f"jobs/{n}/in/spec.json", b"x")
        assert generation is not None
        assert store.swap(f"jobs/{n}/in/spec.json", b"y", generation)
        store.put(f"beats/{n}/1/0", b"x")
    for n in range(200):
        store.delete(f"jobs/{n}/in/spec.json")
        store.delete(f"beats/{n}/1/0")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", ".tmp"]
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert len(list((tmp_path / ".locks").iterdir())) <= 64


def test_a_folder_that_a_delete_removes_is_made_again_by_a_create(store: FileRecords) -> None:
    """Two threads: one deletes what makes its folders empty, one creates beside it."""
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            store.put("a/b/c/one", b"x")
            store.delete("a/b/c/one")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(300):
            assert store.create("a/b/c/two", b"y") is not None
            assert store.delete("a/b/c/two")
    finally:
        stop.set()
        other.join()


def test_what_a_killed_writer_left_is_swept_once_it_is_old(store: FileRecords, tmp_path: Path) -> None:
    store.create("a", b"x")
    left = tmp_path / ".tmp" / "123-left"
    left.write_bytes(b"half")
    assert store.sweep() == 0
    os.utime(left, (0, 0))
    assert store.sweep() == 1
    assert store.sweep() == 0
    assert FileRecords(str(tmp_path / "nothing")).sweep() == 0


def test_an_object_that_grows_is_read_from_where_the_reader_was(store: FileRecords) -> None:
    for n in range(10):
        store.append("log/000001", b"line %d\n" % n)
    record = store.read("log/000001", 7 * 8)
    assert record is not None
    assert record.data == b"line 8\nline 9\n"


def test_a_lock_that_a_cleaner_removed_excludes_nobody_wrongly(store: FileRecords, tmp_path: Path) -> None:
    """A cleaner empties the temporary folder that the store is in: the next writer makes the lock again."""
    store.put("a", b"x")
    for lock in (tmp_path / ".locks").iterdir():
        lock.unlink()
    store.put("a", b"y")
    (tmp_path / ".locks").rename(tmp_path / "gone")
    assert store.delete("a")


def test_a_stopped_process_that_holds_a_lock_is_told_after_a_while(
    store: FileRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"x")
    (lock,) = (tmp_path / ".locks").iterdir()
    program = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(files, "LOCK_PATIENCE", 0.05)
        with pytest.raises(RecordsError, match=r"another process has held .* \(is one stopped\?\)"):
            store.put("a", b"y")
        assert store.create("b", b"creating needs no lock") is not None
        holder.kill()
        holder.wait()
        assert store.put("a", b"y"), "a lock dies with its holder"
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("wrong", [600.0, -600.0])
def test_f27_a_local_clock_that_is_wrong_by_ten_minutes_dates_nothing(
    store: FileRecords, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Ages are judged by the file system's own time: the clock of this process is off, the kernel's is not."""
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + wrong)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + int(wrong * 1e9))
    generations = []
    for _ in range(100):
        generation = store.create("a", b"x")
        assert generation is not None
        generations += [generation, store.put("a", b"y")]
        store.delete("a")
    assert len(set(generations)) == len(generations)
    store.create("a", b"x")
    record = store.read("a")
    assert record is not None
    assert abs(record.updated - right()) < 60
    assert abs(store.now() - right()) < 60
    monkeypatch.setattr(time, "time", right)
    assert abs(store.now() - right()) < 60, "a clock that is set meanwhile is noticed at once"


def test_a_bell_is_silent_until_somebody_rings(store: FileRecords, bell: Bell) -> None:
    store.ring("before anybody listened")
    assert bell.poll() is None, "the first poll cannot know what it missed"
    assert bell.poll() == []
    store.ring("job 1")
    store.ring("job 2")
    assert bell.poll() == ["job 1", "job 2"]
    assert bell.poll() == []


def test_the_first_ring_ever_is_noticed(store: FileRecords, bell: Bell) -> None:
    assert bell.poll() is None
    assert bell.poll() == []
    store.ring("job 1")
    assert bell.poll() is None
    store.ring("job 2")
    assert bell.poll() == ["job 2"]


def test_a_bell_that_was_replaced_tells_its_listener_to_look_for_himself(
    store: FileRecords, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ring("x")
    bell.poll()
    monkeypatch.setattr(files, "BELL_LIMIT", 100)
    for n in range(12):
        store.ring(f"job {n:04d}")
    assert bell.poll() is None
    assert Path(store.bell_path).stat().st_size <= 200
    store.ring("after")
    assert bell.poll() == ["after"]
    Path(store.bell_path).unlink()
    assert bell.poll() is None
    assert bell.poll() == []
    store.ring("again")
    assert bell.poll() is None
    assert list(Path(store.root, ".tmp").iterdir()) == []


@pytest.mark.parametrize("limit", [files.BELL_LIMIT, 2000])
def test_every_ring_of_four_processes_is_heard_or_known_to_be_missed(
    store: FileRecords, bell: Bell, limit: int
) -> None:
    program = (
        "import sys; from kinetic_orchestration.protocol.records import files\n"
        "files.BELL_LIMIT = int(sys.argv[3])\n"
        "store = files.FileRecords(sys.argv[1])\n"
        "for n in range(500): assert store.ring(f'{sys.argv[2]} {n}')"
    )
    store.ring("begin")
    bell.poll()
    ringers = [subprocess.Popen([sys.executable, "-c", program, store.root, str(n), str(limit)]) for n in range(4)]
    heard: list[str] = []
    missed = 0
    while any(ringer.poll() is None for ringer in ringers):
        lines = bell.poll()
        heard += lines or []
        missed += lines is None
    heard += bell.poll() or []
    assert [ringer.wait() for ringer in ringers] == [0] * 4
    everything = {f"{who} {n}" for who in range(4) for n in range(500)}
    assert set(heard) <= everything, "a line that nobody rang"
    if limit == files.BELL_LIMIT:
        assert sorted(heard) == sorted(everything)
    else:  # where the bell is replaced meanwhile, a ring may be heard twice
        assert set(heard) == everything or missed


def test_a_bell_that_cannot_ring_is_no_error(tmp_path: Path) -> None:
    gone = FileRecords(str(tmp_path / "gone"))
    assert gone.ring("job 1") is False
    bell = Bell(gone)
    assert bell.poll() is None
    assert bell.poll() == []
    bell.close()


@pytest.mark.parametrize("text", ["two\nlines", "x" * 200])
def test_a_ring_is_one_short_line(store: FileRecords, text: str) -> None:
    with pytest.raises(ValueError, match="a ring is one line"):
        store.ring(text)


def test_an_older_python_on_a_host_can_use_the_records(tmp_path: Path) -> None:
    """Hosts have Python 3.10; skipped where there is none."""
    root = str(Path(files.__file__).parents[files.__name__.count(".")])
    program = (
        "import sys; assert sys.version_info[:2] == (3, 10); sys.path.insert(0, sys.argv[1])\n"
        "from kinetic_orchestration.protocol.records.files import FileRecords\n"
        "store = FileRecords(sys.argv[2]); first = store.create('a/b', b'1')\n"
        "assert store.swap('a/b', b'2', first) and store.put('a/c', b'3')\n"
        "print(*[entry.name for entry in store.list('')], store.read('a/b').data, store.delete('a/b'))"
    )
    done = subprocess.run(
        [required(OLDEST), "-W", "error", "-c", program, root, str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "a/b a/c b'2' True\n", done.stderr


def test_a_host_waits_for_room_until_none_of_its_threads_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small object finds room before a large one, and then the host must still report the disk."""
    room = 0
    put = FileRecords.put

    def put_if_there_is_room(store: FileRecords, name: str, data: bytes) -> int:
        if len(data) > room:
            raise OSError(errno.ENOSPC, "no room", name)
        return put(store, name, data)

    monkeypatch.setattr(FileRecords, "put", put_if_there_is_room)
    store, told = RetryingRecords(str(tmp_path)), queue.Queue[bool]()
    store.waits = told.put
    with ThreadPoolExecutor() as pool:
        large, small = pool.submit(store.put, "large", bytes(100)), pool.submit(store.put, "small", bytes(1))
        assert told.get(timeout=10)
        while store._waiting < 2:
            time.sleep(0.01)
        room = 10
        assert small.result(10)
        assert told.empty() and not large.done()
        room = 1000
        assert large.result(10)
        assert told.get(timeout=10) is False and told.empty()
