"""The commit of a checkpoint: the record that is created last, its names, differences of states, and pruning.

Pure. A checkpoint is a folder `step-<n>-<writer>` with a part of each host and, once all parts are there, one commit.
The writer is the job and the attempt, so that no process of an earlier attempt can write into a later one's checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinetic_orchestration.protocol import wire

FOLDERS = "step-"
COMMIT = "commit.json"
LINES = "lines/"
_FOLDER = re.compile(r"step-(\d{12})-([\w.-]+)")
CHUNKS = 1 << 20, 1 << 30  # bytes of the smallest and the largest chunk that is read for itself
_APART = re.compile(r"[a-z]+-\d{5}")
SHOWN = 6  # differences, and then how many more there are


def folder(step: int, writer: str) -> str:
    return f"{FOLDERS}{step:012d}-{writer}"


def step_of(of: str) -> int:
    """The step of a folder; -1 if it is none of a checkpoint."""
    match = _FOLDER.fullmatch(of)
    return int(match[1]) if match else -1


def part(of: str, host: int) -> str:
    """One host's arrays and values, in the format of safetensors."""
    return f"{of}/part-{host:05d}.safetensors"


def leaves_name(of: str, host: int) -> str:
    """The name of the digests of a part's chunks, one after another, which its own digest vouches for."""
    return f"{of}/part-{host:05d}.chunks"


def report_name(of: str, host: int) -> str:
    """The name of that host's report on its part, once it is written or cannot be."""
    return f"{of}/part-{host:05d}.json"


def commit(of: str) -> str:
    return f"{of}/{COMMIT}"


def line_name(number: int) -> str:
    """The name of the record by which a line of checkpoints begins."""
    return f"{LINES}{number:06d}.json"


File = tuple[int, str]
"""Size and digest of a file; "" where it has none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One host's file."""

    size: int
    digest: str  # of the digests of its chunks, if it has several
    chunk: int = 0  # bytes of a chunk, if the digests of all lie beside it; 0: it is verified as a whole
    leaves: bytes = field(default=b"", compare=False, repr=False)  # these digests, as whoever wrote it has them
    files: Mapping[str, File] = field(default_factory=dict)  # of other libraries that this host has looked through

    def told(self) -> dict[str, Any]:
        """Return it as JSON."""
        told: dict[str, Any] = {"size": self.size, "digest": self.digest}
        if self.chunk:
            told["chunk"] = self.chunk
        if self.files:
            told["files"] = {name: list(file) for name, file in self.files.items()}
        return told

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Part:
        """Return it from JSON. A part of an earlier version has no digests of chunks beside it."""
        chunk = int(told.get("chunk", 0))
        files = {name: (int(size), str(digest)) for name, (size, digest) in told.get("files", {}).items()}
        chunk = chunk if CHUNKS[0] <= chunk <= CHUNKS[1] else 0
        return cls(int(told["size"]), str(told["digest"]), chunk, files=files)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the state."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Apart:
    """A part of the state that another library has written into a folder of its own."""

    kind: str  # the library
    folder: str  # within that of the checkpoint
    leaves: Mapping[str, Leaf]

    def told(self) -> list[Any]:
        """Return it as JSON."""
        return [self.kind, self.folder, {path: [leaf.dtype, list(leaf.shape)] for path, leaf in self.leaves.items()}]

    @classmethod
    def of(cls, told: Any) -> Apart:
        kind, folder, leaves = told
        if not _APART.fullmatch(folder):
            raise ValueError(folder)
        return cls(str(kind), folder, {path: Leaf(dtype, tuple(shape)) for path, (dtype, shape) in leaves.items()})


def apart_name(kind: str, number: int) -> str:
    """The folder, within that of a checkpoint, of the n-th part of the state that another library writes."""
    return f"{kind}-{number:05d}"


@dataclass(frozen=True, slots=True)
class Commit:
    """All that is known of a checkpoint without opening it."""

    step: int
    folder: str
    hosts: int
    devices: int
    parts: tuple[Part, ...]
    leaves: Mapping[str, Leaf]
    finite: bool = True  # no number that was reported up to here was NaN or infinite
    framework: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)  # of the loop's driver: epoch, batch
    samples: int = 0  # that were trained on, in their one order for all hosts; known with a batch
    batch: int = 0  # samples of one step on all hosts together; 0: unknown
    slice_hosts: int = 0  # hosts of the slice, if not all of them wrote it
    line: int = 0  # of the line that it goes on; 0: of the first, which has no record
    apart: Mapping[str, Apart] = field(default_factory=dict)  # what other libraries have written, by its path

    @property
    def is_of_part(self) -> bool:
        """True if only a part of the slice's hosts wrote it."""
        return self.slice_hosts > self.hosts

    def encode(self) -> bytes:
        leaves = {path: [leaf.dtype, list(leaf.shape)] for path, leaf in self.leaves.items()}
        parts = [one.told() for one in self.parts]
        fields = {name: getattr(self, name) for name in ("step", "folder", "hosts", "devices", "finite", "framework")}
        if self.batch:
            fields |= {"samples": self.samples, "batch": self.batch}
        if self.is_of_part:
            fields |= {"slice_hosts": self.slice_hosts}
        if self.line:
            fields |= {"line": self.line}
        if self.apart:
            fields |= {"apart": {path: one.told() for path, one in self.apart.items()}}
        return wire.encode({**fields, "parts": parts, "leaves": leaves, "more": dict(self.more)})

    @classmethod
    def decode(cls, data: bytes, name: str) -> Commit:
        """Raises `wire.Unreadable` for anything else, and `wire.Newer`."""
        found = wire.decode(data, name)
        try:
            told = cls(
                step=int(found["step"]),
                folder=str(found["folder"]),
                hosts=int(found["hosts"]),
                devices=int(found["devices"]),
                parts=tuple(Part.of(one) for one in found["parts"]),
                leaves={path: Leaf(dtype, tuple(shape)) for path, (dtype, shape) in found["leaves"].items()},
                finite=bool(found["finite"]),
                framework=str(found["framework"]),
                more=dict(found["more"]),
                samples=int(found.get("samples", 0)),
                batch=int(found.get("batch", 0)),
                slice_hosts=int(found.get("slice_hosts", 0)),
                line=int(found.get("line", 0)),
                apart={path: Apart.of(one) for path, one in found.get("apart", {}).items()},
            )
            if not 0 < len(told.parts) == told.hosts:
                raise ValueError
            return told
        except (KeyError, TypeError, ValueError, AttributeError):
            raise wire.Unreadable(f"{name} is not the record of a checkpoint") from None


@dataclass(frozen=True, slots=True)
class Line:
    """The beginning of a line of checkpoints: a training went back to an older one, or took a part of one alone.

    Each commit has the number of its line. What was committed after the checkpoint at which a later line begins, by
    whoever went on without knowing of it, is abandoned.
    """

    number: int
    step: int
    folder: str  # the checkpoint that was restored
    of: int  # and its line
    writer: str
    asked: int | None  # the step that was asked for; None: the newest
    only: tuple[str, ...] = ()

    def encode(self) -> bytes:
        names = ("step", "folder", "of", "writer", "asked")
        return wire.encode({**{name: getattr(self, name) for name in names}, "only": list(self.only)})

    @classmethod
    def decode(cls, data: bytes, number: int) -> Line:
        """Raises `wire.Unreadable` for anything else, and `wire.Newer`."""
        found = wire.decode(data, line_name(number))
        try:
            asked = found["asked"]
            told = cls(
                number, int(found["step"]), str(found["folder"]), int(found["of"]), str(found["writer"]),
                asked if asked is None else int(asked), tuple(map(str, found["only"])),
            )  # fmt: skip
            if not 0 <= told.of < number:
                raise ValueError
            return told
        except (KeyError, TypeError, ValueError):
            raise wire.Unreadable(f"{line_name(number)} is not the beginning of a line of checkpoints") from None


def is_on(lines: Mapping[int, Line], record: Commit) -> bool:
    """Return True if a checkpoint is on the newest line, or on one that it goes on from, before the place where it
    does. Of a line whose record was removed nothing is abandoned."""
    number, begin = max(lines, default=0), None
    if record.line > number:
        return True
    while record.line != number:
        if number not in lines:
            if record.line > number:
                return False
            break
        begin = lines[number]
        number = begin.of
    return begin is None or record.step < begin.step or record.folder == begin.folder


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as a listing shows it."""

    folder: str
    step: int
    writer: str
    sizes: Mapping[str, int]  # by the objects' full names

    @property
    def committed(self) -> bool:
        return commit(self.folder) in self.sizes


def is_commit(name: str) -> bool:
    """Return True for the name of a commit's object, wherever the checkpoints of a training lie."""
    folder, _, last = name.rpartition("/")
    return last == COMMIT and bool(_FOLDER.fullmatch(folder.rpartition("/")[2]))


def folders_of(entries: Iterable[tuple[str, int]]) -> list[Folder]:
    """The folders of a listing of (name, size), newest first."""
    sizes: dict[str, dict[str, int]] = {}
    for name, size in entries:
        sizes.setdefault(name.partition("/")[0], {})[name] = size
    known = ((of, _FOLDER.fullmatch(of), inside) for of, inside in sizes.items())
    listed = [Folder(of, int(match[1]), match[2], inside) for of, match, inside in known if match is not None]
    return sorted(listed, key=lambda one: (one.step, one.writer), reverse=True)


def missing(record: Commit, there: Folder) -> str:
    """The reason why the contents of a folder differ from the commit, as far as a listing shows; "" if they match."""
    for host, one in enumerate(record.parts):
        name = part(there.folder, host)
        files = {name: one.size} | {f"{there.folder}/{file}": size for file, (size, _) in one.files.items()}
        for name, size in files.items():
            if name not in there.sizes:
                return f"{name} is missing"
            if there.sizes[name] != size:
                return f"{name} has {there.sizes[name]} bytes, and {size} were written"
    return ""


def succeeds(writer: str, other: str) -> bool:
    """Return True if it is a later attempt of the same job."""
    (job, _, attempt), (others_job, _, others) = writer.rpartition("-"), other.rpartition("-")
    return job == others_job and attempt.isdecimal() and others.isdecimal() and int(attempt) > int(others)


def superfluous(listed: Sequence[Folder], committed: Sequence[Commit], writer: str, keep: int) -> list[str]:
    """The folders that are no longer needed, now that `committed` (newest first) are known to be whole.

    Kept are the newest `keep`, and the newest one whose numbers were all finite. An uncommitted folder is left by a
    writer that is gone, or by a checkpoint of our own that failed before a newer one succeeded; one that is newer than
    all commits may still be in progress.
    """
    if not committed:
        return []
    kept = {one.folder for one in committed[:keep]}
    kept.update([one.folder for one in committed if one.finite][:1])
    newest = committed[0].step
    return [
        one.folder
        for one in listed
        if one.folder not in kept and (one.committed or one.writer != writer or one.step < newest)
    ]


def differences(saved: Mapping[str, Leaf], here: Mapping[str, Leaf]) -> list[str]:
    """The reasons why a checkpoint does not fit this state, one sentence each."""
    told = [
        f"{path} is {here[path]} here and {leaf} in the checkpoint"
        for path, leaf in saved.items()
        if path in here and here[path] != leaf
    ]
    told += [f"{path}, {leaf}, is only in the checkpoint" for path, leaf in saved.items() if path not in here]
    told += [f"{path}, {leaf}, is only here" for path, leaf in here.items() if path not in saved]
    return told if len(told) <= SHOWN else [*told[:SHOWN], f"and {len(told) - SHOWN} more"]


def topology(hosts: int, devices: int) -> str:
    """The number of hosts and, if a framework reported any, of devices."""
    known = f" with {devices} device{'s' * (devices != 1)}" if devices else ""
    return f"{hosts} host{'s' * (hosts != 1)}{known}"
