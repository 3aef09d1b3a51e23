"""Data that are pinned: the files at an address as they were when the job was submitted.

A client writes the list as a blob, whose digest the spec has; hosts hold what they find to it. It does not know how
files are fetched or read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.protocol import schema
from kinetic_orchestration.protocol.content import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_FILES = 50_000  # from as many on the hub itself lists a repository in pages
LIMIT = 64 << 20  # bytes of the list
SHA256, GIT, CRC32C = "sha256:", "git:", "crc32c:"  # the marks of a file's content: of the hub, and of Cloud Storage


class Unpinned(ValueError):
    """The list is damaged, or names a file that no folder may have."""


class File(NamedTuple):
    """A file below the address."""

    name: str
    size: int
    mark: str = ""  # a digest or checksum of its content, after its kind; "" where nothing is known
    generation: str = ""  # of an object, or the moment at which a file was changed; another one is another content


class Pinned(NamedTuple):
    """The files at an address, in the order of their names."""

    address: str
    files: tuple[File, ...]
    hub: str = ""  # the origin that was asked, of a repository

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Return the list as it is stored: the same bytes for the same files."""
        fields = {"address": self.address, "hub": self.hub, "files": [list(file) for file in self.files]}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @property
    def digest(self) -> str:
        return digest.of_bytes(self.encode())


_FILES = schema.many(schema.plain(), MOST_FILES)
_LIST = schema.Fields({"address": schema.address, "files": _FILES}, {"hub": schema.address})
_MARK = schema.line(schema.WORD)


def pinned(address: str, files: Iterable[File], hub: str = "") -> Pinned:
    """Return the list of files that somebody else has named.

    Raises:
        Unpinned: There are too many, one of them would lie outside of its folder, or two cannot be in one.
    """
    listed = tuple(sorted(files))
    if len(listed) > MOST_FILES:
        raise Unpinned(f"{address} has more than {MOST_FILES:,} files: name a folder of it, or put them into fewer")
    before = ""
    for file in listed:
        _check(file, address)
        if file.name == before:
            raise Unpinned(f"{address} lists {file.name!r} twice")
        before = file.name
    return Pinned(address, listed, hub)


def decode(data: bytes, expected: str) -> Pinned:
    """Return the list of a blob.

    Raises:
        Unpinned: It is not the one with this digest, or it is none.
    """
    if len(data) > LIMIT or digest.of_bytes(data) != expected:
        raise Unpinned("the list of the data's files is not the one that was sent")
    try:
        fields: Any = json.loads(data)
        _LIST(fields)
        files = [File(*entry) for entry in fields["files"]]
        return pinned(fields["address"], files, fields.get("hub", ""))
    except (ValueError, TypeError, RecursionError) as error:
        raise Unpinned(f"the list of the data's files cannot be read ({error})") from None


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names of files or of folders above them that differ only in case, or in how an accent is written: a
    disk that tells neither apart has one place for both. None if there are none.
    """
    import unicodedata

    spelled: dict[str, str] = {}
    for name in names:
        path = name
        while path:
            form = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
            if (other := spelled.setdefault(form, path)) != path:
                return other, path
            path = path.rpartition("/")[0]
    return None


def _check(file: File, address: str) -> None:
    try:
        schema.text()(file.name)
        schema.size(file.size)
        _MARK(file.mark)
        _MARK(file.generation)
    except schema.Wrong as wrong:
        raise Unpinned(f"{address} lists a file that cannot be: {wrong}") from None
    if not file.name.isprintable() or any(part in ("", ".", "..") for part in file.name.split("/")):
        raise Unpinned(f"{address} names the file {file.name!r}, which would not lie in its own folder")
