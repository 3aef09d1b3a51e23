"""A place in a folder of this machine.

A file gets its name by a link when its content is on the disk, so it is there whole or not at all, and two writers make
one file. Copies are made by the kernel, which shares the blocks where the file system can; a hard link to the source is
never made, since a program may write into that later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from kinetic_orchestration.errors import NotAModel, StoreError
from kinetic_orchestration.models.places import marks
from kinetic_orchestration.models.places.place import Place, check_file
from kinetic_orchestration.models.values import ModelFile
from kinetic_orchestration.protocol.records.base import reason_of
from kinetic_orchestration.protocol.system.parallel import side_by_side

STORE: Final = "this machine"
_BEGUN: Final = ".begun"  # the folder of files that are being written
_OLD: Final = 86400.0  # seconds after which one that is there still was left behind
_READERS: Final = 2
_BLOCK: Final = 1 << 26
_NO_KERNEL_COPY: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


class Folder:
    """A `Place` in a folder."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.store = STORE

    def list(self, folder: str) -> Sequence[ModelFile]:
        root = self._path(folder)
        if root.is_file():
            raise NotAModel(f"{root} is a file: name the directory that it is in")
        found = []
        for at, folders, names in os.walk(root, onerror=_raise):
            for name in folders:
                if Path(at, name).is_symlink():
                    raise NotAModel(f"{Path(at, name)} is a link to a folder, which is not followed: copy it there")
            for name in names:
                path = Path(at, name)  # a link to a file counts as the file: the hub's cache is made of these
                if not path.is_file():
                    raise NotAModel(f"{path} is no file that can be copied, or a link that leads nowhere")
                about = path.stat()
                found.append(ModelFile(path.relative_to(root).as_posix(), about.st_size, {}, _stamp(about)))
        return found

    def marked(self, folder: str, files: Sequence[ModelFile]) -> Sequence[ModelFile]:
        def mark(file: ModelFile) -> ModelFile:
            path = self._path(f"{folder}/{file.name}" if folder else file.name)
            return file._replace(marks=marks.of_file(str(path), ("sha256",)))

        try:
            return side_by_side(mark, files, _READERS, name="kinetic-digests")
        except OSError as error:
            raise _refusal("read", str(error.filename), error) from error

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with self._path(name).open("rb") as file:
                data = file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _refusal("read", self.address_of(name), error) from error
        if len(data) > limit:
            raise StoreError(f"{self.address_of(name)} is not read: it has more than {limit:,} bytes")
        return data

    def create(self, name: str, data: bytes) -> bool:
        with self._begin(name) as (temporary, final):
            temporary.write_bytes(data)
            return _name(temporary, final)

    def put(self, name: str, data: bytes) -> None:
        with self._begin(name) as (temporary, final):
            temporary.write_bytes(data)
            _sync(temporary)
            temporary.replace(final)
            _sync(final.parent)

    def copy(self, source: Place, file: ModelFile, name: str) -> None:
        origin = cast("Folder", source)._path(file.name)
        with self._begin(name) as (temporary, final):
            if final.exists() or _stamp(origin.stat()) != file.generation:
                return
            _copy(origin, temporary)
            _name(temporary, final)

    def fetch(self, name: str, path: str, size: int) -> None:
        del size
        try:
            _copy(self._path(name), Path(path))
        except OSError as error:
            raise _refusal("read", self.address_of(name), error) from error

    def send(self, path: str, name: str) -> None:
        with self._begin(name) as (temporary, final):
            _copy(Path(path), temporary)
            _name(temporary, final)

    def marks_of(self, path: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        return marks.of_file(path, wanted)

    def address_of(self, name: str) -> str:
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        if name:
            check_file(name)
        return Path(self.address, *name.split("/")) if name else Path(self.address)

    @contextlib.contextmanager
    def _begin(self, name: str) -> Iterator[tuple[Path, Path]]:
        """Yield the path of a new file and the one that it is to get. The first is gone afterwards; its folder stays,
        since another process may be about to write there."""
        final, begun = self._path(name), Path(self.address, _BEGUN)
        temporary = begun / os.urandom(12).hex()
        try:
            begun.mkdir(parents=True, exist_ok=True)
            final.parent.mkdir(parents=True, exist_ok=True)
            _sweep(begun)
            try:
                yield temporary, final
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise _refusal("write", str(final), error) from error


def _name(temporary: Path, final: Path) -> bool:
    """Give a file that is complete its name; False if that is taken."""
    _sync(temporary)
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    _sync(final.parent)
    return True


def _copy(origin: Path, target: Path) -> None:
    """Copy a file by the kernel, else by reading and writing it."""
    with origin.open("rb") as source, target.open("wb") as sink:
        size = os.fstat(source.fileno()).st_size
        try:
            while os.copy_file_range(source.fileno(), sink.fileno(), _BLOCK):
                pass
        except (OSError, AttributeError) as error:  # not on this system, or not between these file systems
            if isinstance(error, OSError) and error.errno not in _NO_KERNEL_COPY:
                raise
        if sink.seek(0, os.SEEK_END) < size:
            source.seek(sink.tell())
            while block := source.read(1 << 20):
                sink.write(block)


def _sweep(begun: Path) -> None:
    """Remove what processes have left behind that were killed while they wrote."""
    for left in begun.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _OLD:
                left.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stamp(about: os.stat_result) -> str:
    return f"{about.st_dev}-{about.st_ino}-{about.st_size}-{about.st_mtime_ns}"


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise _refusal("read", str(error.filename), error) from error


def _refusal(verb: str, path: str, error: OSError) -> StoreError:
    return StoreError(f"Cannot {verb} {path}: {reason_of(error)}.")
