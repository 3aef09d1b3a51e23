"""Large files that are known to match their digest, and those that are hashed again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kinetic_orchestration.protocol.content import digest, file_stamps, payload, verified
from kinetic_orchestration.protocol.content.verified import Verified
from kinetic_orchestration.protocol.records.files import FileRecords

pytestmark = pytest.mark.fast

OTHER = 65534
NAME = "blobs/ab/abc"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's folders")


class Sent:
    """An array that was hashed while it was written, and moved into a store of the home."""

    def __init__(self, home: Path, name: str = NAME) -> None:
        self.home = home
        self.records = FileRecords(str(home / "store"))
        self.digest, _ = payload.dump(np.ones(digest.LARGE, np.uint8), home / "spool")
        assert verified.deliver(self.records, name, str(home / "spool"), self.digest, home)
        self.path = home / "store" / name

    @property
    def is_known(self) -> bool:
        file = os.open(self.path, os.O_RDONLY)
        try:
            time.sleep(
                max(0.0, (file_stamps.settled(file_stamps.stamp_of(os.fstat(file))) - time.time_ns()) / 1e9 + 0.001)
            )
            return Verified(self.home).knows(self.path, file, self.digest)
        finally:
            os.close(file)

    def load(self) -> np.ndarray:
        found: np.ndarray = payload.load(self.path, self.digest, home=self.home)
        return found

    def remember(self) -> None:
        found = os.lstat(self.path)
        Verified(self.home).wrote(self.path, self.digest, (found.st_dev, found.st_ino, found.st_size))

    def change_a_byte(self) -> None:
        """Change a byte in the middle of the array, and keep the file's size and modification time."""
        before = self.path.stat()
        with self.path.open("r+b") as file:
            file.seek(before.st_size // 2)
            file.write(b"\0")
        os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert self.path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.fixture
def private(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "store").mkdir(mode=0o700)
    return home


def test_what_was_hashed_while_it_was_written_is_known(private: Path) -> None:
    sent = Sent(private)
    assert sent.is_known
    assert sent.load().all()
    records = list((private / verified.FOLDER).iterdir())
    assert [path.stat().st_mode & 0o777 for path in (private / verified.FOLDER, *records)] == [0o700, 0o600]
    assert not Verified(private).knows(sent.path, os.open(sent.path, os.O_RDONLY), "0" * 64)


def test_what_a_reader_hashed_is_known_from_then_on_once_it_was_left_alone(private: Path) -> None:
    sent = Sent(private)
    shutil.rmtree(private / verified.FOLDER)
    assert not sent.is_known
    sent.load()  # `is_known` has waited until its times were old enough
    assert sent.is_known


def test_a_file_whose_times_are_too_near_is_not_believed(private: Path) -> None:
    sent = Sent(private)
    soon = time.time_ns() + 3600 * 10**9
    os.utime(sent.path, ns=(soon, soon))
    sent.remember()
    file = os.open(sent.path, os.O_RDONLY)
    assert not Verified(private).knows(sent.path, file, sent.digest)
    shutil.rmtree(private / verified.FOLDER)
    sent.load()
    assert not (private / verified.FOLDER).exists()
    os.close(file)


def change(sent: Sent) -> None:
    sent.change_a_byte()


def replace(sent: Sent) -> None:
    other, before = sent.home / "other", sent.path.stat()
    shutil.copyfile(sent.path, other)
    with other.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"\0")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(sent.path)


def cut_off(sent: Sent) -> None:
    os.truncate(sent.path, sent.path.stat().st_size - 1)


@pytest.mark.parametrize("harm", [change, replace, cut_off], ids=lambda harm: harm.__name__)
def test_a_file_that_was_changed_is_found_whatever_its_times_say(private: Path, harm: Callable[[Sent], None]) -> None:
    sent = Sent(private)
    assert sent.is_known
    harm(sent)
    assert not sent.is_known
    with pytest.raises(payload.Tampered, match="has the digest"):
        sent.load()


def open_home(sent: Sent) -> None:
    sent.home.chmod(0o711)


def open_store(sent: Sent) -> None:
    (sent.home / "store").chmod(0o777)


def open_folder(sent: Sent) -> None:
    sent.path.parent.chmod(0o757)


def second_name(sent: Sent) -> None:
    os.link(sent.path, sent.home / "second")
    sent.remember()


def link_on_the_way(sent: Sent) -> None:
    there = sent.home.parent / "elsewhere"
    (sent.home / "store").rename(there)
    (sent.home / "store").symlink_to(there)


def another_run_of_the_kernel(sent: Sent) -> None:
    (record,) = (sent.home / verified.FOLDER).iterdir()
    boot, _, rest = record.read_bytes().partition(b" ")
    record.write_bytes(boot[::-1] + b" " + rest)


def open_record(sent: Sent) -> None:
    (sent.home / verified.FOLDER).chmod(0o777)


def another_owner(sent: Sent) -> None:
    os.chown(sent.path, OTHER, -1)
    sent.remember()


def another_owner_of_the_folder(sent: Sent) -> None:
    os.chown(sent.path.parent, OTHER, -1)


REASONS = [
    open_home, open_store, open_folder, second_name, link_on_the_way, another_run_of_the_kernel, open_record,
    pytest.param(another_owner, marks=needs_root), pytest.param(another_owner_of_the_folder, marks=needs_root),
]  # fmt: skip


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_a_file_that_may_be_somebody_elses_is_hashed(private: Path, reason: Callable[[Sent], None]) -> None:
    """Also where a record names it: the byte was changed and the record made anew, as only a decaying disk could."""
    sent = Sent(private)
    sent.change_a_byte()
    sent.remember()
    assert sent.is_known
    assert not sent.load().all()
    reason(sent)
    assert not sent.is_known
    with pytest.raises(payload.Tampered):
        sent.load()


def test_a_store_outside_of_the_home_is_always_hashed(private: Path) -> None:
    sent = Sent(private)
    other = private.parent / "other"
    other.mkdir(mode=0o700)
    (other / "store").mkdir(mode=0o700)
    shutil.copytree(private / verified.FOLDER, other / verified.FOLDER)
    file = os.open(sent.path, os.O_RDONLY)
    assert sent.is_known
    assert not Verified(other).knows(sent.path, file, sent.digest)
    os.close(file)


def test_small_files_leave_no_record_and_those_of_files_that_are_gone_are_removed(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(private)
    (private / "spool").write_bytes(bytes(1000))
    verified.deliver(sent.records, "blobs/small", str(private / "spool"), "0" * 64, private)
    assert len(list((private / verified.FOLDER).iterdir())) == 1
    sent.path.unlink()
    Verified(private).prune()
    assert not list((private / verified.FOLDER).iterdir())
    monkeypatch.setattr(verified, "MOST", 2)
    for number in range(4):
        Sent(private, f"blobs/{number}").path.unlink()
    assert len(list((private / verified.FOLDER).iterdir())) <= 3


def test_who_was_second_remembers_nothing_of_what_is_there(private: Path) -> None:
    sent = Sent(private)
    shutil.rmtree(private / verified.FOLDER)
    payload.dump(np.ones(digest.LARGE, np.uint8), private / "spool")
    assert not verified.deliver(sent.records, NAME, str(private / "spool"), sent.digest, private)
    assert not (private / verified.FOLDER).exists()


@pytest.mark.parametrize(("changed", "later"), [(1_000_000_001, 50_000_000), (1_000_000_000, 2_000_000_000)])
def test_a_file_is_believed_a_tick_after_its_last_change(changed: int, later: int) -> None:
    """A coarse tick, where the file system seems to keep whole seconds."""
    stamp = (0o100644, 7, 5, 3, changed)
    assert file_stamps.settled(stamp) == changed + later
    assert file_stamps.believable(stamp, changed + later + 1) == stamp
    assert file_stamps.believable(stamp, changed + later) != stamp
    local = min(later, 20_000_000) if changed % 10 else later
    assert file_stamps.settled(stamp, file_stamps.LOCAL_TICK) == changed + local
    late = (0o100644, 7, changed, 3, 5_000_000_001)
    assert file_stamps.settled(late) == 5_050_000_001
