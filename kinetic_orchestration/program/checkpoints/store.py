"""The location of checkpoints: a folder or a prefix of a bucket, through the operations that both kinds of records
have.

One host's part is written to a temporary file in the same file system, or on the local disk for a bucket, and is
renamed when it is whole. Knows neither frameworks nor when anything is due.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kinetic_orchestration.program.checkpoints import commits, parts
from kinetic_orchestration.program.checkpoints.commits import Commit, Found, Part
from kinetic_orchestration.program.checkpoints.trees import Apart
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.records.base import RecordsError, TooLarge
from kinetic_orchestration.protocol.records.files import FileRecords

_T = TypeVar("_T")

SPARE = 64 << 20  # of this machine's disk, which is never filled to the brim
TEMPORARY = ".tmp"


class Shelf:
    """The checkpoints of one training."""

    def __init__(self, place: str, writer: str) -> None:
        self.place = place
        self.writer = writer
        self.remote = place.startswith("gs://")
        self.torn: dict[str, str] = {}  # folders that were read and not believed, and why
        self.records: Any
        if self.remote:
            from kinetic_orchestration.host.machine.bucket_records import CloudRecords

            self.records = CloudRecords(place)
        else:
            # A single try: the training must learn of a full disk immediately, and not after a minute of retries.
            os.makedirs(place, exist_ok=True)
            self.records = FileRecords(place)

    def close(self) -> None:
        if self.remote:
            self.records.close()

    def sweep(self) -> None:
        """Remove what earlier writers that were killed left half-written on a file system."""
        if self.remote:
            return
        folder = os.path.join(self.place, TEMPORARY)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                writer = name.removeprefix("part-").rpartition("-")[0]
                if name.startswith("part-") and writer != self.writer and not commits.succeeds(writer, self.writer):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name))

    # ---- write -----------------------------------------------------------------------------------------------------

    def write(self, folder: str, host: int, state: Apart) -> Part:
        """This host's part. It takes its name whole; its record, which others wait for, comes after it."""
        with self._scratch() as scratch:
            step = folder.split("-")[1]  # an earlier one may still be on its way
            path = os.path.join(scratch, f"part-{self.writer}-{host:05d}.{step}")
            try:
                if self.remote:
                    check_room(scratch, sum(len(piece.data) for piece in state.pieces))
                told = parts.write(path, state, durable=not self.remote)
                if not self.records.upload(commits.part(folder, host), path, move=True):
                    raise RecordsError(errno.EEXIST, f"{folder} is there already, of this attempt, and stays")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        return told

    def say(self, folder: str, host: int, told: Part | None, why: str = "") -> None:
        """Report the result of this host's part."""
        fields = {"failed": why} if told is None else {"size": told.size, "digest": told.digest}
        self.records.create(commits.word(folder, host), wire.encode(fields))

    def words(self, folder: str, hosts: int, patience: float) -> tuple[list[Part], str]:
        """The parts of all hosts, waited for; or why there is no checkpoint."""
        heard: dict[int, dict[str, Any]] = {}

        def all_said() -> bool:
            for host in range(hosts):
                if host not in heard and (record := self.records.read(commits.word(folder, host))) is not None:
                    heard[host] = wire.decode(record.data, commits.word(folder, host))
                if host not in heard:
                    return False
            return True

        if not until(all_said, patience, self.remote):
            silent = [host for host in range(hosts) if host not in heard]
            return [], f"host {silent[0]} did not write its part within {patience:.0f} s"
        for host, fields in sorted(heard.items()):
            if "failed" in fields:
                return [], f"host {host} could not write its part: {fields['failed']}"
        return [Part(int(heard[host]["size"]), str(heard[host]["digest"])) for host in range(hosts)], ""

    def commit(self, record: Commit) -> bool:
        """Create the commit. False if another writer was first."""
        return self.records.create(commits.commit(record.folder), record.encode()) is not None

    # ---- read ------------------------------------------------------------------------------------------------------

    def found(self) -> list[Found]:
        return commits.found((entry.name, entry.size) for entry in self.records.list(commits.FOLDERS))

    def committed(self) -> list[Found]:
        """Committed checkpoints that are not known to be torn, newest first."""
        return [one for one in self.found() if one.committed and one.folder not in self.torn]

    def newest(self, step: int | None = None) -> Commit | None:
        """The newest checkpoint that is not known to be torn and is whole, as far as a listing shows. The search is
        repeated until a listing has no new entries: a writer may have committed another one in between, and removed the
        earlier ones."""
        known = -1
        while known != len(self.torn):
            known = len(self.torn)
            for one in self.found():
                if not one.committed or one.folder in self.torn or step not in (None, one.step):
                    continue
                try:
                    record = self.read(one.folder)
                    why = commits.missing(record, one)
                except parts.Torn as error:
                    why = str(error)
                if not why:
                    return record
                self.torn[one.folder] = why
        return None

    def read(self, folder: str) -> Commit:
        """Raises `Torn` for a record that cannot be one."""
        record = self.records.read(commits.commit(folder))
        if record is None:
            raise parts.Torn(f"{commits.commit(folder)} is gone")
        try:
            told = Commit.decode(record.data, commits.commit(folder))
        except wire.Unreadable as error:
            raise parts.Torn(str(error)) from None
        if told.folder != folder:
            raise parts.Torn(f"{commits.commit(folder)} is that of {told.folder}")
        return told

    @contextlib.contextmanager
    def opened(self, record: Commit, host: int) -> Iterator[parts.Opened]:
        """One host's part, fetched if it is not on this file system, and believed."""
        name = commits.part(record.folder, host)
        # Where a part is a file already nothing is written: the folder may be one that can only be read.
        with self._scratch() if self.remote else contextlib.nullcontext("") as scratch:
            path = self.records.local_path(name)
            fetched = path is None and self.remote
            if fetched:
                path = os.path.join(scratch, f"part-{self.writer}-{host:05d}-{os.urandom(4).hex()}")
                try:
                    self.records.download(name, path, most=record.parts[host].size)
                except FileNotFoundError:
                    raise parts.Torn(f"{name} is missing") from None
                except TooLarge as error:
                    raise parts.Torn(str(error)) from None
            if path is None:
                raise parts.Torn(f"{name} is missing")
            try:
                part = parts.Opened(path, record.parts[host])
            except FileNotFoundError:
                raise parts.Torn(f"{name} is missing") from None
            except parts.Torn as error:
                raise parts.Torn(f"{name} is torn: {error}") from None
            finally:
                if fetched:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)  # what is mapped stays until it is let go
            try:
                yield part
            finally:
                part.close()

    # ---- remove ----------------------------------------------------------------------------------------------------

    def prune(self, keep: int) -> None:
        """Remove the checkpoints that newer ones made superfluous. The commits go first, so that no torn one looks
        complete."""
        listed = self.found()
        if any(commits.succeeds(one.writer, self.writer) for one in listed):
            return  # an incomplete one may be in progress
        whole = []
        for one in listed:
            if one.committed and one.folder not in self.torn:
                with contextlib.suppress(parts.Torn, wire.Newer):
                    record = self.read(one.folder)
                    if not commits.missing(record, one):
                        whole.append(record)
        for folder in commits.superfluous(listed, whole, self.writer, keep):
            self.remove(folder)

    def remove(self, folder: str) -> None:
        self.records.delete(commits.commit(folder))
        for entry in list(self.records.list(f"{folder}/")):
            self.records.delete(entry.name)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[str]:
        """A temporary folder for a part: on the file system of its destination, so that it need not be copied."""
        if not self.remote:
            folder = os.path.join(self.place, TEMPORARY)
            os.makedirs(folder, exist_ok=True)
            yield folder
            return
        folder = tempfile.mkdtemp(prefix="kinetic-checkpoint-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def check_room(folder: str, size: int) -> None:
    """A part goes by this machine's disk on its way to a bucket."""
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise RecordsError(
            errno.ENOSPC,
            f"this host's part has {size / 1e9:.1f} GB, and the disk of {folder}, by which it goes to the bucket, has "
            f"{free / 1e9:.1f} GB free: set TMPDIR to a folder with more room, such as one in memory (/dev/shm)",
        )


def until(condition: Callable[[], bool], patience: float, remote: bool) -> bool:
    """Wait for what others do, asking a bucket less often than a disk, and more often who has little time."""
    deadline, pause = time.monotonic() + patience, 0.1 if remote else 0.002
    longest = min(1.0, patience / 20) if remote else 0.05
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True
