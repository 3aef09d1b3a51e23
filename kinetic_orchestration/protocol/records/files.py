"""The plain record store on a file system: one folder, one file per object, safe between processes.

It owns writing to a disk: `create` links a finished file to its name, so that exactly one of many wins and no reader
sees half an object; `swap`, `put` and `delete` replace under a lock; a process that dies at any line leaves at most a
temporary file and never a lock. It does not know the meaning of records, nor other kinds of stores.

The generation of an object is its modification time in nanoseconds, set before the object becomes visible: strictly
greater than that of the object it replaces, and taken from a clock that has advanced since any object of that name was
deleted. So it never repeats for a name, and reading it costs no second file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from zlib import crc32

from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content.file_stamps import LOCAL_TICK
from kinetic_orchestration.protocol.records.base import (
    Entry,
    Record,
    RecordsError,
    Signal,
    TooLarge,
    check_name,
    reason_of,
)

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    _T = TypeVar("_T")

DURABLE_LIMIT = 16 << 20
LOCK_PATIENCE = 30.0
BELL_LIMIT = 1 << 20
RING_LIMIT = 200

_LOCKS = 64
_BUFFER = 1 << 20
_CLOCK_AGE = 60.0
# What a file's time may lag behind the clock of the same machine.
_TICK = LOCAL_TICK / 1e9

_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class FileRecords:
    """Objects under one folder, which must exist.

    What a power cut can do: bytes reach the disk before their name does, so what `create` and `swap` wrote is
    there whole or not at all. The names themselves are not waited for: those of the last seconds may be
    forgotten, the youngest first. The jobs that wrote them died with the machine and run again; a server of
    files keeps names at once. Only `put`, `append` and objects above 16 MiB can be torn: beats are written
    again, log frames delimit themselves, large objects are named by their digest.
    """

    can_append = True
    parallel = 1
    """The number of calls that are worth having under way at once; 1 if a call takes microseconds."""
    has_files = True
    """Each object is a file of this machine, which `local_path` names."""
    may_corrupt = False
    """An object may arrive damaged, as not every answer has a checksum: `read_intact` reads it again."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        # (the file system's time minus time.time(), monotonic and wall time of that measurement)
        self._clock: tuple[float, float, float] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        """Write `name` if it is absent; its generation, or None if another writer was first."""
        path = self._path(name)
        with _Verb(self, "write", name):
            if os.path.lexists(path):  # spares the loser of a race a write; the link below decides
                return None
            with _Temporary(self) as file:
                _write(file.fd, data)
                generation = _stamp(file.fd)
                _sync(file.fd)
                return generation if self._link(file.path, name, path) else None

    def swap(self, name: str, data: bytes | bytearray | memoryview, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; the new one, or None."""
        path = self._path(name)
        with _Verb(self, "write", name):
            if _generation(path) != generation:  # spares the loser a write
                return None
            with _Temporary(self) as file:
                _write(file.fd, data)
                new = _stamp(file.fd, generation)
                _sync(file.fd)
                with _Lock(self, name):
                    if _generation(path) != generation:
                        return None
                    os.rename(file.path, path)
            return new

    def put(self, name: str, data: bytes | bytearray | memoryview) -> int:
        """Write `name` regardless of its current state, without waiting for the disk: a heartbeat is stale in seconds
        anyway."""
        path = self._path(name)
        with _Verb(self, "write", name), _Temporary(self) as file:
            _write(file.fd, data)
            with _Lock(self, name):
                new = _stamp(file.fd, _generation(path) or 0)
                self._within(name, os.rename, file.path, path)
            return new

    def signal(self, name: str, data: bytes) -> int:
        """Put something small that others find by listing."""
        return self.put(name, data)

    def signals(self, prefix: str) -> Iterator[Signal]:
        """All objects below `prefix` with what is in them; nothing of one that is too large for a signal."""
        for entry in self.list(prefix):
            most = names.limit_of(entry.name)
            if (record := self.read(entry.name, 0, most + 1)) is not None:
                yield Signal(entry.name, record.data if len(record.data) <= most else b"", *record[1:])

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """The bytes from start to end (neither negative), or None if there is no such object.

        To the end of an object that has more than `limit` bytes from there (by default, than a record of its name has)
        nothing is read: TooLarge.
        """
        path = self._path(name)
        with _Verb(self, "read", name):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                # From one open file, so bytes, generation and time belong together even if the name was replaced.
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    return None
                stop = found.st_size if end is None else min(end, found.st_size)
                if end is None and stop - start > (most := names.limit_of(name) if limit is None else limit):
                    raise self.too_large(name, most)
                data = os.pread(fd, max(0, stop - start), start)
                while 0 < len(data) < stop - start:  # one call gives 2 GiB at most
                    more = os.pread(fd, stop - start - len(data), start + len(data))
                    if not more:
                        break
                    data += more
                return Record(data, found.st_mtime_ns, found.st_mtime)
            finally:
                os.close(fd)

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose name begins with `prefix`, in the order of their names."""
        folder, slash, first = prefix.rpartition("/")
        if folder:
            check_name(folder)
        with _Verb(self, "list", prefix):
            yield from self._walk(folder + slash, first)

    def delete(self, name: str) -> bool:
        """True if this call deleted it, False if it was not there. Folders that it leaves empty go too."""
        path = self._path(name)
        with _Verb(self, "delete", name):
            try:
                with _Lock(self, name):
                    os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return False
            except PermissionError:
                if os.path.isdir(path):
                    return False
                raise
            parent = os.path.dirname(path)
            while len(parent) > len(self.root):
                try:
                    os.rmdir(parent)
                except OSError:
                    break  # not empty, or another process did it; a writer creates the folder again
                parent = os.path.dirname(parent)
            return True

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; False if another writer was first.

        With `move` the file is gone afterwards in both cases; it must not be written to any longer.
        """
        target = self._path(name)
        # The caller's own file: its errors are raised unchanged.
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _Verb(self, "write", name):
                won: bool | None = None
                if os.path.lexists(target):
                    won = False
                elif move:
                    won = self._take(source, path, name, target)
                if won is None:
                    with _Temporary(self) as file:
                        size = _copy(source, file.fd)
                        _stamp(file.fd)
                        _sync(file.fd, size)
                        won = self._link(file.path, name, target)
        finally:
            os.close(source)
        if move:
            _unlink(path)
        return won

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write the object to the file `path`, whole or not at all. Raises TooLarge, before anything is written, for
        one that has more than `most` bytes: by default, than an object of its name has.
        """
        source, most = self._path(name), names.file_limit_of(name) if most is None else most
        with _Verb(self, "read", name):
            try:
                fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError) as missing:
                raise self.refusal(missing, "read", name, "there is no such object") from None
        if (size := os.fstat(fd).st_size) > most:
            os.close(fd)
            raise self.too_large(name, most, size)
        part = f"{path}.{os.urandom(4).hex()}.part"
        try:
            target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                _copy(fd, target)
            finally:
                os.close(target)
            os.rename(part, path)
        except BaseException as error:
            _unlink(part)
            if not isinstance(error, OSError):
                raise
            missing_folder = "its folder is not there" if error.errno == errno.ENOENT else ""
            raise self.refusal(error, "copy", f"{name} to {path}", missing_folder) from error
        finally:
            os.close(fd)

    def local_path(self, name: str) -> str | None:
        """The object's own file, for reading only; None if there is no such object."""
        path = self._path(name)
        return path if _generation(path) is not None else None

    def append(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Add to a growing object of which this process is the only writer. All of `data`, or nothing."""
        path = self._path(name)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with _Verb(self, "append to", name):
            fd = self._within(name, os.open, path, flags, 0o666)
            try:
                before = os.fstat(fd).st_size
                try:
                    _write(fd, data)
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            finally:
                os.close(fd)

    def now(self) -> float:
        """The file system's time, by which every age is judged: on a network it is the server's, not ours."""
        steady, wall = time.monotonic(), time.time()
        if self._clock is not None:
            offset, then, wall_then = self._clock
            # The second condition sees a clock that was set, and a machine that slept.
            if steady - then < _CLOCK_AGE and abs((wall - wall_then) - (steady - then)) < 1:
                return wall + offset
        offset = self._measure_offset()
        self._clock = offset, steady, wall
        return time.time() + offset

    def sweep(self, older_than: float = 86400.0) -> int:
        """Delete what writers that were killed left half-done; how many files that was."""
        swept = 0
        with _Verb(self, "sweep", ".tmp"):
            try:
                with os.scandir(os.path.join(self.root, ".tmp")) as entries:
                    for entry in entries:
                        try:
                            old = self.now() - entry.stat(follow_symlinks=False).st_mtime > older_than
                        except FileNotFoundError:
                            continue
                        if old:
                            _unlink(entry.path)
                            swept += 1
            except FileNotFoundError:
                pass
        return swept

    def ring(self, text: str) -> bool:
        """Notify the processes that poll a `Bell` of a change, after it was made.

        A hint without guarantee: False if it could not be sent.
        """
        line = text.encode() + b"\n"
        if len(line) > RING_LIMIT or line.count(b"\n") != 1:
            raise ValueError(f"a ring is one line of less than {RING_LIMIT} bytes, not {text!r}")
        path = self.bell_path
        try:
            for _ in range(8):
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    os.write(fd, line)
                    found = os.fstat(fd)
                    if found.st_size > BELL_LIMIT and os.stat(path).st_ino == found.st_ino:
                        with _Temporary(self) as fresh:
                            os.rename(fresh.path, path)  # listeners see another file, and list
                    # A bell without a name was retired before the line was in it: no process would read it.
                    if found.st_nlink:
                        return True
                finally:
                    os.close(fd)
        except OSError:
            pass
        return False

    @property
    def bell_path(self) -> str:
        return f"{self.root}/.bell"

    def too_large(self, name: str, limit: int, size: int | None = None) -> Exception:
        return TooLarge(name, self.root, limit, size)

    def refusal(self, error: OSError, verb: str, name: str, reason: str = "") -> Exception:
        """The exception for a failure of the file system."""
        reason = reason or reason_of(error)
        return RecordsError(error.errno, f"Cannot {verb} {name} (store {self.root}): {reason}.")

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self.root}/{name}"

    def _walk(self, folder: str, first: str) -> Iterator[Entry]:
        try:
            with os.scandir(f"{self.root}/{folder}") as scanned:
                found = [entry for entry in scanned if entry.name.startswith(first) and entry.name[0] != "."]
        except (FileNotFoundError, NotADirectoryError):
            return
        # A folder sorts as its objects do: "a-b" < "a/x", for "-" comes before "/".
        keyed = []
        for entry in found:
            is_folder = entry.is_dir(follow_symlinks=False)
            keyed.append((entry.name + "/" if is_folder else entry.name, is_folder, entry))
        keyed.sort(key=lambda item: item[0])
        for key, is_folder, entry in keyed:
            if is_folder:
                yield from self._walk(folder + key, "")
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted in between
            if stat.S_ISREG(status.st_mode):
                yield Entry(folder + key, status.st_size, status.st_mtime_ns, status.st_mtime)

    def _link(self, temporary: str, name: str, path: str) -> bool:
        """Give the finished file its name. The one step that decides who was first."""
        try:
            self._within(name, os.link, temporary, path)
        except FileExistsError:
            # A network file system may repeat a link whose answer was lost, and then finds our own.
            return os.stat(temporary).st_nlink > 1
        return True

    def _within(self, name: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Call what needs the folders of `name`; makes them, again if a delete next door removed them."""
        for _ in range(100):
            try:
                return call(*arguments)
            except FileNotFoundError:  # noqa: PERF203
                self._make_folders(name)
        return call(*arguments)

    def _make_folders(self, name: str) -> None:
        # The root itself is not made: an agent whose store was deleted must not bring it back.
        at = name.find("/")
        while at != -1:
            try:
                os.mkdir(f"{self.root}/{name[:at]}")
            except FileExistsError:
                pass
            except FileNotFoundError:
                if not os.path.isdir(self.root):
                    raise
                return  # removed under us; the caller tries again
            at = name.find("/", at + 1)

    def _take(self, source: int, path: str, name: str, target: str) -> bool | None:
        """Link the file itself to `target`; None if it has to be copied after all."""
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return None  # a symbolic link, or known by another name through which it may be written to
        try:
            _stamp(source)
            _sync(source, found.st_size)
            return self._link(path, name, target)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM):
                return None  # on another file system, or another owner's
            raise

    def _measure_offset(self) -> float:
        path = f"{self.root}/.clock"
        try:
            before = time.time()
            try:
                os.utime(path)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
                os.utime(path)
            theirs = os.stat(path).st_mtime
            after = time.time()
        except OSError:
            return 0.0  # a store that may only be read: our own clock is the best there is
        if before - _TICK <= theirs <= after + _TICK:
            return 0.0
        return theirs - (before + after) / 2


class Bell:
    """Receives the rings of one store, at the cost of one stat while there are none."""

    def __init__(self, records: FileRecords) -> None:
        self._path = records.bell_path
        self._fd = -1
        self._inode = 0
        self._offset = 0
        self._began = False

    def poll(self) -> list[str] | None:
        """The rings since the last call; None if unknown, as at first or in a new file: then list."""
        try:
            found = os.stat(self._path)
        except OSError:
            never_rang = self._began and self._fd < 0
            self.close()
            self._began = True
            return [] if never_rang else None
        # The open file keeps its inode's number from being used again.
        if self._fd >= 0 and found.st_ino == self._inode:
            return self._read(found.st_size) if found.st_size != self._offset else []
        self.close()
        self._began = True
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._fd)
            # A line may be half there: the system shows a write page by page.
            start = max(0, found.st_size - RING_LIMIT)
            tail = os.pread(self._fd, found.st_size - start, start)
        except OSError:
            return None
        self._inode, self._offset = found.st_ino, start + tail.rfind(b"\n") + 1
        return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.close()

    def _read(self, size: int) -> list[str] | None:
        try:
            data = os.pread(self._fd, max(0, size - self._offset), self._offset)
        except OSError:
            data = b""
        if not data:  # it became shorter, which none of our writers does
            self.close()
            return None
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


class _Verb:
    """Turns what the file system raises into the records' own refusal."""

    __slots__ = ("name", "records", "verb")

    def __init__(self, records: FileRecords, verb: str, name: str) -> None:
        self.records = records
        self.verb = verb
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, (RecordsError, TooLarge)):
            raise self.records.refusal(error, self.verb, self.name) from error


class _Temporary:
    """A new file on the store's file system, without a name that counts; removed at the end if it is left."""

    __slots__ = ("fd", "path")

    def __init__(self, records: FileRecords) -> None:
        self.path = f"{records.root}/.tmp/{os.getpid()}-{os.urandom(8).hex()}"
        self.fd = _open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)

    def __enter__(self) -> _Temporary:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        _unlink(self.path)


class _Lock:
    """Excludes every other process and thread from one of 64 sets of names.

    The kernel lets go when its holder dies. The files are few and stay, so none is left behind per object.
    """

    __slots__ = ("fd", "name", "path", "records")

    def __init__(self, records: FileRecords, name: str) -> None:
        self.records = records
        self.name = name
        self.path = f"{records.root}/.locks/{crc32(name.encode()) % _LOCKS:02d}"
        self.fd = -1

    def __enter__(self) -> None:
        import fcntl  # not on Windows, where the module must still be importable

        deadline = time.monotonic() + LOCK_PATIENCE
        pause = 0.0002
        while True:
            self.fd = _open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Something that cleans temporary folders may have removed the file that we hold.
                if os.fstat(self.fd).st_nlink:
                    return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self.fd)
                    late = TimeoutError(errno.ETIMEDOUT, "locked")
                    held = f"another process has held {self.path} for {LOCK_PATIENCE:.0f} s (is one stopped?)"
                    raise self.records.refusal(late, "lock", self.name, held) from None
            except BaseException:
                os.close(self.fd)
                raise
            os.close(self.fd)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _open(path: str, flags: int) -> int:
    """Open one of the store's own files; its folder is made if it is missing."""
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        try:
            os.mkdir(os.path.dirname(path))
        except FileExistsError:
            pass
        return os.open(path, flags, 0o666)


def _generation(path: str) -> int | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def _stamp(fd: int, previous: int = 0) -> int:
    """Set the generation of a file that is not visible yet."""
    # The file system's time counts, but it stands still for a tick. Where our clock agrees with it, ours
    # tells two moments of one tick apart; elsewhere (a server's clock) the last digits of ours do.
    theirs = os.fstat(fd).st_mtime_ns
    ours = time.time_ns()
    new = ours if 0 <= ours - theirs < _TICK * 1e9 else theirs + ours % 1000
    new = max(new, previous + 1)
    os.utime(fd, ns=(new, new))
    return new


def _write(fd: int, data: bytes | bytearray | memoryview) -> None:
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    written = os.write(fd, data)
    if written < size:  # a signal, a disk that is nearly full, or more than 2 GiB
        view = memoryview(data).cast("B")
        while written < size:
            written += os.write(fd, view[written:])


def _sync(fd: int, size: int = 0) -> None:
    # Large objects are named by their digest, so a reader finds out that a power cut tore one; to wait for
    # the disk would cost more than copying them did.
    if size <= DURABLE_LIMIT:
        os.fsync(fd)


def _copy(source: int, target: int) -> int:
    """Copy a file's bytes inside the kernel where it can; how many they were."""
    total = 0
    if hasattr(os, "copy_file_range"):
        try:
            while count := os.copy_file_range(source, target, 1 << 30):
                total += count
            if total:
                return total
        except OSError as error:
            if total or error.errno not in _CANNOT_COPY:
                raise
    while data := os.read(source, _BUFFER):
        _write(target, data)
        total += len(data)
    return total


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
