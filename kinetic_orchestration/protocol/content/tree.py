"""The source tree in its sent form: the contents of its digest, its manifest, and its unpacking on a host.

A tree is its entries: files, symbolic links and empty folders. Its digest covers everything that a program can see of
them (path, kind, mode, content, target), and nothing that differs between two machines with the same tree (order,
times, owners). Contents are in packs: blobs of many files' bytes one after another. The manifest has their offsets.

Knows nothing of projects, ignore rules or stores.
"""

from __future__ import annotations

import hashlib
import os
from collections import namedtuple

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

VERSION = 1

FILE = "file"
LINK = "symlink"
FOLDER = "dir"

RAW = "raw"
ZLIB = "zlib"

_PIECE = 1 << 20


class BadTree(ValueError):
    """A manifest that this code must not or cannot follow, or bytes that are not those that were sent."""


class Damaged(BadTree):
    """The bytes are not those that were sent. `pack` is the object to blame; "" is the manifest."""

    def __init__(self, message: str, pack: str = "") -> None:
        super().__init__(message)
        self.pack = pack


class Entry(namedtuple("Entry", "path kind mode size sha256 target", defaults=(0, 0, "", ""))):
    """One file, link or empty folder. `path` has slashes; bytes that are not UTF-8 are surrogate-escaped.

    `mode` is 0o755 or 0o644: whether the owner may execute it, independent of the umask.
    """

    __slots__ = ()
    path: str
    kind: str
    mode: int
    size: int
    sha256: str
    target: str


class Pack(namedtuple("Pack", "id size stored encoding")):
    """A blob of contents: `size` bytes when decoded, `stored` bytes as an object."""

    __slots__ = ()
    id: str
    size: int
    stored: int
    encoding: str


class PackOffset(namedtuple("PackOffset", "pack offset")):
    """The start of a content: the number of its pack in the manifest, and the offset in the decoded pack."""

    __slots__ = ()
    pack: int
    offset: int


def digest_of(entries: Iterable[Entry]) -> str:
    """The sha256 of the canonical listing. No field can hold a NUL, so it can have only one meaning."""
    lines = [
        f"{kind} {mode:o} {size} {sha256}\0{path}\0{target}\0"
        for path, kind, mode, size, sha256, target in sorted(entries)
    ]
    listing = f"kinetic tree {VERSION}\n" + "".join(lines)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def pack_id(encoding: str, contents: Iterable[str]) -> str:
    """A pack is named by the digests of its contents in their order, so its bytes are hashed only once."""
    listing = f"kinetic pack {VERSION} {encoding}\n" + "\n".join(contents)
    return hashlib.sha256(listing.encode("ascii")).hexdigest()


def manifest_of(
    digest: str, entries: Iterable[Entry], packs: Iterable[Pack], offsets: Mapping[str, PackOffset]
) -> dict[str, Any]:
    """The manifest as JSON. `offsets` has every content by its sha256, save the empty one."""
    files: list[list[object]] = []
    links: list[list[str]] = []
    folders: list[str] = []
    nowhere = PackOffset(-1, 0)
    for path, kind, mode, size, sha256, target in entries:
        if kind == FILE:
            pack, offset = offsets[sha256] if size else nowhere
            files.append([path, mode, size, sha256, pack, offset])
        elif kind == LINK:
            links.append([path, target])
        else:
            folders.append(path)
    return {
        "version": VERSION,
        "digest": digest,
        "packs": [list(pack) for pack in packs],
        "files": files,
        "links": links,
        "folders": folders,
    }


def entries_of(manifest: Mapping[str, Any]) -> list[Entry]:
    check_version(manifest)
    return [
        *(Entry(path, FILE, mode, size, sha256) for path, mode, size, sha256, _, _ in manifest["files"]),
        *(Entry(path, LINK, target=target) for path, target in manifest["links"]),
        *(Entry(path, FOLDER) for path in manifest["folders"]),
    ]


def packs_of(manifest: Mapping[str, Any]) -> list[Pack]:
    check_version(manifest)
    packs = [Pack(*pack) for pack in manifest["packs"]]
    for pack in packs:  # the tree's digest does not cover where its contents are
        sizes = all(type(size) is int and size >= 0 for size in (pack.size, pack.stored))
        if not (isinstance(pack.id, str) and len(pack.id) == 64 and pack.id.isalnum()) or not sizes:
            raise Damaged(f"the manifest names a pack {pack.id!r:.80}: it was changed after it was sent")
    return packs


def _check_sizes(manifest: Mapping[str, Any], packs: list[Pack]) -> None:
    """Raise Damaged if the packs have more bytes than a tree of these files needs: a sender packs a tree again rather
    than refer to packs of which it uses less than half.
    """
    own, sent = sum(file[2] for file in manifest["files"]), sum(pack.stored for pack in packs)
    if sent > 2 * own + _PIECE:
        raise Damaged(
            f"the manifest names packs of {sent:,} bytes for files of {own:,}, and nobody sends more than "
            "twice as many: it was changed after it was sent"
        )


def check_version(manifest: Mapping[str, Any]) -> None:
    if manifest["version"] != VERSION:
        raise BadTree(
            f"this tree's manifest has version {manifest['version']}, but this agent reads {VERSION}: "
            "use the same release of kinetic-orchestration here and where the tree was sent"
        )


def unpack(
    manifest: Mapping[str, Any],
    open_pack: Callable[[str], str],
    target: str,
    digest: str = "",
    bring: Callable[[list[Pack]], object] = lambda _: None,
) -> None:
    """Write the tree into the empty folder `target`, every content checked against its digest.

    `open_pack` fetches a pack by its id and returns the path of a file. `digest` is the expected digest of the tree, if
    that is known from elsewhere. `bring` is called before with the packs that will be opened. After an exception the
    folder is in no defined state.
    """
    check_version(manifest)
    found = digest_of(entries_of(manifest))
    if found != manifest["digest"] or (digest and found != digest):
        raise Damaged(
            f"the manifest lists a tree {found}, but is that of {digest or manifest['digest']}: "
            "it was changed after it was sent"
        )
    packs = packs_of(manifest)
    _check_sizes(manifest, packs)
    folders = _folders(manifest)
    os.makedirs(target, exist_ok=True)
    if os.listdir(target):
        raise BadTree(f"{target} is not empty")
    root = os.fsencode(target) + b"/"
    for folder in sorted(folders):
        os.mkdir(root + _encode(folder))

    by_place: dict[int, list[tuple[int, int, int, bytes, str]]] = {}
    for path, mode, size, sha256, pack, offset in manifest["files"]:
        if not (-1 <= pack < len(packs) and offset >= 0 and size >= 0):
            raise Damaged(f"the manifest says that {path!r:.80} lies where nothing can: it was changed")
        by_place.setdefault(pack, []).append((offset, size, mode, root + _encode(path), sha256))
    bring([packs[number] for number in by_place if number >= 0])
    for number, files in by_place.items():
        files.sort()
        if number < 0:
            for _, _, mode, path, sha256 in files:
                _write(path, mode, (), sha256)
            continue
        _unpack_one(packs[number], open_pack(packs[number].id), files)

    # Last, so that nothing is ever written through one.
    for path, text in manifest["links"]:
        os.symlink(_encode(text), root + _encode(path))


def _folders(manifest: Mapping[str, Any]) -> set[str]:
    """Every folder that is needed, after making sure that no path leads out of the tree."""
    leaves = [file[0] for file in manifest["files"]] + [link[0] for link in manifest["links"]]
    folders: set[str] = set()
    for path in (*leaves, *manifest["folders"]):
        folder, _, name = path.rpartition("/")
        if name in ("", ".", "..") or "\0" in path or (path[0] == "/"):
            raise BadTree(f"{path!r} leads out of the tree")
        while folder and folder not in folders:
            folders.add(folder)
            folder, _, name = folder.rpartition("/")
            if name in ("", ".", ".."):
                raise BadTree(f"{path!r} leads out of the tree")
    folders.update(manifest["folders"])
    distinct = set(leaves)
    if len(distinct) != len(leaves):
        raise BadTree("the manifest names a path twice")
    if through := distinct & folders:
        raise BadTree(f"{min(through)!r} is a file or a link, and cannot hold other files")
    return folders


def _unpack_one(pack: Pack, source: str, files: list[tuple[int, int, int, bytes, str]]) -> None:
    done: tuple[int, int] | None = None
    before = b""
    with opened(pack, source) as reader:
        for offset, size, mode, path, sha256 in files:
            try:
                if done == (offset, size):
                    # The same content again: a stream cannot go back to it, but its file is there.
                    with RawReader(before) as copy:
                        _write(path, mode, copy.pieces(0, size), sha256)
                else:
                    _write(path, mode, reader.pieces(offset, size), sha256)
            except BadTree as error:
                raise Damaged(f"{error} in pack {pack.id} ({source})", pack.id) from None
            done, before = (offset, size), path


def _write(path: bytes, mode: int, pieces: Iterable[bytes], sha256: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        hasher = hashlib.sha256()
        for piece in pieces:
            hasher.update(piece)
            written = os.write(descriptor, piece)
            while written < len(piece):
                written += os.write(descriptor, memoryview(piece)[written:])
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    if hasher.hexdigest() != sha256:
        raise BadTree(f"the bytes of {os.fsdecode(path)!r} are not those that were sent,")


def opened(pack: Pack, source: str) -> RawReader:
    """Return the reader of a pack's contents by their offsets, which must not go down."""
    if pack.encoding == RAW:
        return RawReader(os.fsencode(source))
    if pack.encoding == ZLIB:
        return _ZlibReader(os.fsencode(source))
    raise BadTree(f"pack {pack.id} is encoded as {pack.encoding!r}, which this agent does not know")


class RawReader:
    def __init__(self, path: bytes) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> RawReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        while size:
            piece = os.pread(self._descriptor, min(size, _PIECE), offset)
            if not piece:
                return  # cut off: the digest will not match
            yield piece
            offset += len(piece)
            size -= len(piece)


class _ZlibReader(RawReader):
    """Reads forward only: offsets must not go down."""

    def __init__(self, path: bytes) -> None:
        import zlib

        super().__init__(path)
        self._error = zlib.error
        self._decoder = zlib.decompressobj()
        self._rest = b""
        self._at = 0

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        while self._at < offset:
            if not self._take(offset - self._at):
                return
        while size:
            piece = self._take(size)
            if not piece:
                return
            yield piece
            size -= len(piece)

    def _take(self, most: int) -> bytes:
        ended = False
        while not self._rest and not ended:
            data = self._decoder.unconsumed_tail or os.read(self._descriptor, _PIECE)
            ended = not data  # and yet the decoder may hold back what did not fit before
            try:
                self._rest = self._decoder.decompress(data, 4 * _PIECE)
            except self._error as error:
                raise BadTree(f"the compressed bytes cannot be read ({error})") from None
        piece, self._rest = self._rest[:most], self._rest[most:]
        self._at += len(piece)
        return piece


def _encode(path: str) -> bytes:
    # Not os.fsencode: a host's locale must not change a name.
    return path.encode("utf-8", "surrogateescape")
