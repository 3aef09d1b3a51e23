"""The stat index: the files in the last snapshot of a project, so that an unchanged file is not read again.

Responsible for a format that loads in a few milliseconds and for replacing it in one step;
`protocol/content/file_stamps.py` holds the rule by which a file's content counts as unchanged. It is a cache: a
missing, foreign or damaged index is an empty one, and costs one pass of hashing. Knows nothing of ignore rules or
packs.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from zlib import crc32

from kinetic_orchestration import __version__
from kinetic_orchestration.protocol.content.file_stamps import Stamp

_MAGIC = b"kinetic index 1 " + __version__.encode() + b"\n"
_STAMP = struct.Struct("<IqqQq")


@dataclass(frozen=True)
class Index:
    """The last snapshot. A file's stamp and its digest have the same position."""

    tree: str = ""
    size: int = 0
    stamps: dict[str, Stamp] = field(default_factory=dict)
    digests: bytes = b""
    links: dict[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()  # a folder's path ends with a slash
    rules: dict[str, str] = field(default_factory=dict)  # the text of every ignore file
    outer: tuple[tuple[str, str], ...] = ()
    withheld: dict[str, Stamp] = field(default_factory=dict)  # files that look like keys, and are not sent
    allowed: frozenset[str] = frozenset()  # those of them that are sent, because a rule names them

    def digest_list(self) -> list[str]:
        text = self.digests.hex()
        return [text[at : at + 64] for at in range(0, len(text), 64)]


def load(path: Path) -> Index:
    try:
        data = path.read_bytes()
        return _decode(data) if data.startswith(_MAGIC) else Index()
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return Index()


def save(path: Path, index: Index) -> None:
    """Replace the index. Of two concurrent writers one wins; both were right when they read the project."""
    replace_file(path, _encode(index))


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file beside the one that it then replaces: nobody ever reads a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _encode(index: Index) -> bytes:
    sections = (
        _join(index.stamps),
        b"".join([_STAMP.pack(*stamp) for stamp in index.stamps.values()]),
        index.digests,
        _join(index.folders),
        _join(index.ignored),
    )
    header = {
        "tree": index.tree,
        "size": index.size,
        "links": index.links,
        "empty": sorted(index.empty),
        "rules": index.rules,
        "outer": index.outer,
        "withheld": index.withheld,
        "allowed": sorted(index.allowed),
        "lengths": [len(section) for section in sections],
    }
    rest = json.dumps(header).encode() + b"\n" + b"".join(sections)
    return _MAGIC + b"%08x\n" % crc32(rest) + rest


def _decode(data: bytes) -> Index:
    at = len(_MAGIC)
    body = memoryview(data)[at + 9 :]
    if crc32(body) != int(data[at : at + 8], 16):
        return Index()
    end = data.index(b"\n", at + 9)
    header = json.loads(data[at + 9 : end])
    bounds = list(accumulate(header["lengths"], initial=end + 1))
    names, stamps, digests, folders, ignored = (data[start:stop] for start, stop in pairwise(bounds))
    paths = _split(names)
    if len(paths) * 32 != len(digests) or len(paths) * _STAMP.size != len(stamps):
        return Index()
    return Index(
        tree=header["tree"],
        size=header["size"],
        stamps=dict(zip(paths, _STAMP.iter_unpack(stamps), strict=True)),
        digests=digests,
        links=header["links"],
        empty=frozenset(header["empty"]),
        folders=frozenset(_split(folders)),
        ignored=frozenset(_split(ignored)),
        rules=header["rules"],
        outer=tuple((way, text) for way, text in header["outer"]),
        withheld={path: tuple(stamp) for path, stamp in header["withheld"].items()},
        allowed=frozenset(header["allowed"]),
    )


def _join(paths: dict[str, Stamp] | frozenset[str]) -> bytes:
    return "\0".join(paths).encode("utf-8", "surrogateescape")


def _split(section: bytes) -> list[str]:
    return section.decode("utf-8", "surrogateescape").split("\0") if section else []
