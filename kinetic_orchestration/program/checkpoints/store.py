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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kinetic_orchestration.errors import CheckpointError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.host.prepare.tier import SCRATCH
from kinetic_orchestration.program.checkpoints import commits, parts
from kinetic_orchestration.program.checkpoints.commits import Commit, Folder, Line, Part
from kinetic_orchestration.program.checkpoints.tier import near
from kinetic_orchestration.program.checkpoints.trees import HostPart
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.records.base import RecordsError, TooLarge
from kinetic_orchestration.protocol.records.files import FileRecords

T = TypeVar("T")

SPARE = 64 << 20  # of this machine's disk, which is never filled to the brim
TEMPORARY = ".tmp"


def open_checkpoints(place: str, writer: str) -> CheckpointStore:
    """Open the checkpoints of one training: a folder, or a prefix of a bucket (`gs://…`, `s3://…`)."""
    return BucketStore(place, writer) if buckets.in_bucket(place) else FolderStore(place, writer)


class CheckpointStore(ABC):
    """The checkpoints of one training."""

    prune_frees_space: ClassVar[bool]
    """A part that found no room may be written once older checkpoints are removed."""
    _durable: ClassVar[bool]
    """A part is synced to the disk before its commit, for which older checkpoints are removed."""
    _first_pause: ClassVar[float]
    _longest_pause: ClassVar[float]

    def __init__(self, place: str, writer: str, records: Any) -> None:
        self.place = place
        self.writer = writer
        self.records = records
        self.torn: dict[str, str] = {}  # folders that were read and found torn, and why
        self.near: near.Near | None = None  # copies of parts that need not be fetched
        self.line: int | None = None  # of the checkpoints that are written; None: not yet known

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self.near is not None:
            self.near.close()

    def sweep(self) -> None:  # noqa: B027 - an upload that was cut leaves no object
        """Remove what earlier writers that were killed left half-written on a file system."""

    def wait(self, condition: Callable[[], bool], patience: float) -> bool:
        """Wait for what other hosts write, for `patience` seconds at most. Return False if it did not come."""
        deadline, pause = time.monotonic() + patience, self._first_pause
        longest = min(self._longest_pause, max(patience / 20, 0.05))  # more often if there is little time
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, longest)
        return True

    # ---- write -----------------------------------------------------------------------------------------------------

    def write(self, folder: str, host: int, state: HostPart) -> Part:
        """This host's part. It takes its name whole; its record, which others wait for, comes after it."""
        with self._scratch() as scratch:
            step = folder.split("-")[1]  # an earlier one may still be on its way
            path = os.path.join(scratch, f"part-{self.writer}-{host:05d}.{step}")
            try:
                self._check_room(path, state)
                told = parts.write(path, state, durable=self._durable)
                if not self.records.upload(commits.part(folder, host), path, move=self.near is None):
                    raise RecordsError(errno.EEXIST, f"{folder} is there already, of this attempt, and stays")
                if self.near is not None:
                    self.near.wrote(path, told)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        if told.leaves:  # not waited for on a disk: without them, or if they are torn, the whole part is verified
            self.records.put(commits.leaves_name(folder, host), told.leaves)
        return told

    def report_part(self, folder: str, host: int, told: Part | None, why: str = "") -> None:
        """Report the result of this host's part."""
        fields = {"failed": why} if told is None else told.told()
        self.records.create(commits.report_name(folder, host), wire.encode(fields))

    def part_reports(self, folder: str, hosts: int, patience: float) -> tuple[list[Part], str]:
        """The parts of all hosts, waited for; or why there is no checkpoint."""
        heard: dict[int, dict[str, Any]] = {}

        def all_said() -> bool:
            for host in range(hosts):
                if host not in heard and (record := self.records.read(commits.report_name(folder, host))) is not None:
                    heard[host] = wire.decode(record.data, commits.report_name(folder, host))
                if host not in heard:
                    return False
            return True

        if not self.wait(all_said, patience):
            silent = [host for host in range(hosts) if host not in heard]
            return [], f"host {silent[0]} did not write its part within {patience:.0f} s"
        for host, fields in sorted(heard.items()):
            if "failed" in fields:
                return [], f"host {host} could not write its part: {fields['failed']}"
        return [Part.of(heard[host]) for host in range(hosts)], ""

    def current_line(self) -> int:
        """The number of the line that this writer's checkpoints go on."""
        if self.line is None:
            self.line = max(self.lines(), default=0)
        return self.line

    def commit(self, record: Commit) -> bool:
        """Create the commit. False if another writer was first."""
        return self.records.create(commits.commit(record.folder), record.encode()) is not None

    # ---- read ------------------------------------------------------------------------------------------------------

    def folders(self) -> list[Folder]:
        return commits.folders_of((entry.name, entry.size) for entry in self.records.list(commits.FOLDERS))

    def lines(self) -> dict[int, Line]:
        """The lines of checkpoints that begin at older ones, by their numbers. Raises CheckpointError."""
        found: dict[int, Line] = {}
        for entry in self.records.list(commits.LINES):
            number = entry.name.removeprefix(commits.LINES).removesuffix(".json")
            if number.isdecimal() and (record := self.records.read(entry.name)) is not None:
                try:
                    found[int(number)] = Line.decode(record.data, int(number))
                except wire.Unreadable as error:
                    raise CheckpointError(
                        f"{error}: {self.place}/{entry.name} says which checkpoints were abandoned when the training "
                        "went back to an older one. Remove it to go on at the newest of all"
                    ) from None
        return found

    def begin_line(self, begin: Commit, asked: int | None, only: tuple[str, ...]) -> None:
        """Begin a line of checkpoints at one that was restored. Raises CheckpointError if that is gone by now."""
        lines = self.lines()
        number = max(lines, default=0)
        last = lines.get(number)
        if last is None or (last.folder, last.asked, last.only) != (begin.folder, asked, only):
            number = max([number, *(record.line for record in self._records())])  # of one without a record, too
            made = False
            while not made:
                number += 1
                line = Line(number, begin.step, begin.folder, begin.line, self.writer, asked, only)
                made = self.records.create(commits.line_name(number), line.encode()) is not None
            if self.records.read(commits.commit(begin.folder)) is None:  # by one who did not know of this line
                self.records.delete(commits.line_name(number))
                raise CheckpointError(
                    f"{self.place}/{begin.folder} was removed while it was restored, by an earlier attempt: "
                    "run the job again, or restore another step"
                )
        self.line = number
        for one in self.folders():  # else this attempt could not write these steps again
            if one.writer == self.writer and one.step > begin.step:
                self.remove(one.folder)

    def _records(self) -> Iterator[Commit]:
        for one in self.committed():
            with contextlib.suppress(parts.Torn, wire.Newer):
                yield self.read(one.folder)

    def committed(self) -> list[Folder]:
        """Committed checkpoints that are not known to be torn, newest first."""
        return [one for one in self.folders() if one.committed and one.folder not in self.torn]

    def newest(self, step: int | None = None, *, abandoned: bool = False) -> Commit | None:
        """The newest checkpoint that is not known to be torn and is whole, as far as a listing shows. The search is
        repeated until a listing has no new entries: a writer may have committed another one in between, and removed the
        earlier ones. `abandoned`: also one after which the training went back to an older one."""
        known = -1
        while known != len(self.torn):
            known, lines = len(self.torn), self.lines()
            for one in self.folders():
                if not one.committed or one.folder in self.torn or step not in (None, one.step):
                    continue
                try:
                    record = self.read(one.folder)
                    if not abandoned and not commits.is_on(lines, record):
                        continue
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
    def opened(self, record: Commit, host: int, *, kept: bool = True, whole: bool = True) -> Iterator[parts.Opened]:
        """One host's part, believed. `kept`: a copy of it may stay. Without `whole` only the chunks of it are read that
        have what is wanted, if their digests are there, which parts of an earlier version do not have."""
        with near.timed(self.near):
            part = None if self.near is None else self.near.opened(host, record.parts[host])
            if part is None and not whole:
                part = self._ranged(record, host)
            if part is None:
                part = self._opened(record, host, kept=kept)
        try:  # the copy may be deleted by now; the open file stays readable until it is closed
            yield part
        finally:
            part.close()

    def _opened(self, record: Commit, host: int, *, kept: bool) -> parts.Opened:
        name = commits.part(record.folder, host)
        with self._file(name, record.parts[host].size) as path:
            try:
                part = parts.Opened(path, record.parts[host])
            except FileNotFoundError:
                raise parts.Torn(f"{name} is missing") from None
            except parts.Torn as error:
                raise parts.Torn(f"{name} is torn: {error}") from None
            if self.near is not None:
                self.near.read[near.BUCKET] += record.parts[host].size
                if kept:
                    self.near.fetched(path, record.parts[host])
        return part

    def _ranged(self, record: Commit, host: int) -> parts.Ranged | None:
        """One host's part, of which chunks are read as they are needed; None without whole digests of them."""
        told = record.parts[host]
        if not told.chunk:
            return None
        name, most = commits.part(record.folder, host), 32 * -(-told.size // told.chunk)
        leaves = None
        with contextlib.suppress(TooLarge):
            leaves = self.records.read(commits.leaves_name(record.folder, host), limit=most)
        if leaves is None or parts.digest_of(bytes(leaves.data)) != told.digest:
            return None
        try:
            return self._read_by_chunks(name, told, bytes(leaves.data))
        except FileNotFoundError:
            raise parts.Torn(f"{name} is missing") from None
        except parts.Torn as error:
            raise parts.Torn(f"{name} is torn: {error}") from None

    def pieces(self, record: Commit, host: int) -> parts.Pieces:
        """Return what one host's part says it has, by its header alone, which is not believed yet. Raises `Torn`."""
        name, size = commits.part(record.folder, host), record.parts[host].size

        def read(start: int, end: int) -> bytes:
            found = self.records.read(name, start, min(end, size))
            return b"" if found is None else bytes(found.data)

        try:
            return parts.pieces_of(read)
        except parts.Torn as error:
            raise parts.Torn(f"{name} is torn: {error}") from None

    # ---- remove ----------------------------------------------------------------------------------------------------

    def prune(self, keep: int) -> None:
        """Remove the checkpoints that newer ones made superfluous. The commits go first, so that no torn one looks
        complete."""
        listed = self.folders()
        if any(commits.succeeds(one.writer, self.writer) for one in listed):
            return  # an incomplete one may be in progress
        lines = self.lines()
        if max(lines, default=0) > self.current_line():
            return  # who went back to an older one needs what is superfluous here
        whole = []
        for one in listed:
            if one.committed and one.folder not in self.torn:
                with contextlib.suppress(parts.Torn, wire.Newer):
                    record = self.read(one.folder)
                    if commits.is_on(lines, record) and not commits.missing(record, one):
                        whole.append(record)
        for folder in commits.superfluous(listed, whole, self.writer, keep):
            self.remove(folder)

    def remove(self, folder: str) -> None:
        self.records.delete(commits.commit(folder))
        for entry in list(self.records.list(f"{folder}/")):
            self.records.delete(entry.name)

    # ---- where a part is a file ----------------------------------------------------------------------------------

    @abstractmethod
    def _scratch(self) -> AbstractContextManager[str]:
        """A temporary folder for a part."""

    def _check_room(self, path: str, state: HostPart) -> None:  # noqa: B027 - a full file system says so itself
        """Raise RecordsError if a part that is written to a local disk first has no room there."""

    @abstractmethod
    def _read_by_chunks(self, name: str, told: Part, leaves: bytes) -> parts.Ranged:
        """A part of which chunks are read as they are needed. Raises `Torn`, and FileNotFoundError."""

    @abstractmethod
    def _file(self, name: str, size: int) -> AbstractContextManager[str]:
        """The path of a part that was written. Raises `Torn` if it is missing, or larger than its size."""


class FolderStore(CheckpointStore):
    """Checkpoints in a folder. A part is written on the file system of its destination, so that it is not copied."""

    prune_frees_space = _durable = True
    _first_pause, _longest_pause = 0.002, 0.05

    def __init__(self, place: str, writer: str) -> None:
        os.makedirs(place, exist_ok=True)
        # A single try: the training must learn of a full disk immediately, and not after a minute of retries.
        super().__init__(place, writer, FileRecords(place))

    def sweep(self) -> None:
        folder = os.path.join(self.place, TEMPORARY)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                writer = name.removeprefix("part-").rpartition("-")[0]
                if name.startswith("part-") and writer != self.writer and not commits.succeeds(writer, self.writer):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name))

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[str]:
        folder = os.path.join(self.place, TEMPORARY)
        os.makedirs(folder, exist_ok=True)
        yield folder

    def _read_by_chunks(self, name: str, told: Part, leaves: bytes) -> parts.Ranged:
        path = self.records.local_path(name)
        if path is None:
            raise FileNotFoundError(name)
        return parts.Ranged(path, told, leaves)

    @contextlib.contextmanager
    def _file(self, name: str, size: int) -> Iterator[str]:
        path = self.records.local_path(name)
        if path is None:
            raise parts.Torn(f"{name} is missing")
        yield path  # nothing is written: the folder may be one that can only be read


class BucketStore(CheckpointStore):
    """Checkpoints in a bucket. A part goes by a file of this machine's disk."""

    prune_frees_space = _durable = False
    _first_pause, _longest_pause = 0.1, 1.0

    def __init__(self, place: str, writer: str) -> None:
        super().__init__(place, writer, buckets.open_place(place))

    def close(self) -> None:
        super().close()
        self.records.close()

    def _with_room(self, act: Callable[[], T], again: Callable[[], T]) -> T:
        """Return what an act on this machine's disk returns; if that is full, the copies go, and another is tried."""
        try:
            return act()
        except OSError as error:
            if self.near is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.near.make_room()
            return again()

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[str]:
        beside = near.scratch_folder(self.near)
        folder = self._with_room(
            lambda: tempfile.mkdtemp(prefix=SCRATCH, dir=beside), lambda: tempfile.mkdtemp(prefix=SCRATCH)
        )
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _check_room(self, path: str, state: HostPart) -> None:
        folder, size = os.path.dirname(path), sum(len(piece.data) for piece in state.pieces)
        free = shutil.disk_usage(folder).free
        if size + SPARE > free and self.near is not None:
            self.near.make_room()
            free = shutil.disk_usage(folder).free
        if size + SPARE > free:
            raise RecordsError(
                errno.ENOSPC,
                f"this host's part has {size / 1e9:.1f} GB, and the disk of {folder}, by which it goes to the bucket, "
                f"has {free / 1e9:.1f} GB free: set TMPDIR to a folder with more room, such as one in memory "
                "(/dev/shm)",
            )

    def _read_by_chunks(self, name: str, told: Part, leaves: bytes) -> parts.Ranged:
        def fetch(begin: int, end: int) -> bytes:
            found = self.records.read(name, begin, end)
            if found is None:
                raise parts.Torn(f"{name} is missing")
            if self.near is not None:
                self.near.read[near.BUCKET] += len(found.data)
            return bytes(found.data)

        with self._scratch() as scratch:  # the file stays readable until it is closed
            path = os.path.join(scratch, "part")
            with Path(path).open("wb") as file:
                file.truncate(told.size)  # which takes the room of what is fetched alone
            if self.near is not None and shutil.disk_usage(scratch).free < told.size + SPARE:
                self.near.make_room()
            part = parts.Ranged(path, told, leaves, fetch)
        part.timed = partial(near.timed, self.near)
        return part

    @contextlib.contextmanager
    def _file(self, name: str, size: int) -> Iterator[str]:
        with self._scratch() as scratch:
            path = os.path.join(scratch, "part")
            try:
                fetch = partial(self.records.download, name, path, most=size)
                self._with_room(fetch, fetch)
            except FileNotFoundError:
                raise parts.Torn(f"{name} is missing") from None
            except TooLarge as error:
                raise parts.Torn(str(error)) from None
            yield path
