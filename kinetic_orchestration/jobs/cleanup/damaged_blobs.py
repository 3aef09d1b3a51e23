"""Reads every blob of the stores and of the home, and tells which of them are not what they were, and whose they are.

A disk may give other bytes than it was given, and a large file that was hashed once is not hashed at every map. Here
everything is read that has a digest: what is named by one, values and exceptions by their verdicts, and the parts of
checkpoints by their commits; from the disk itself and not from memory, as far as the system lets go of it. Nothing is
changed. Of a blob no more is in memory than a few chunks, of a tree its list of files, of the rest its names.

Knows nothing of how it is shown, nor of what is done about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kinetic_orchestration.errors import Corrupt, KineticError, StoreError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.messages import size
from kinetic_orchestration.plan.records import spec_of, texts, verdict_of
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.protocol.content.digest import CHUNK, Hasher
from kinetic_orchestration.protocol.records.base import Entry

SHOWN = 20  # jobs of one blob that are named
PACE = 0.2  # seconds between two words about how far it is
LONG = 30.0  # and between two for who sees no live line

_BY_SHA256 = {"wheels/": "wheel", "tools/": "tool", "compiled/": "compiled program"}  # named by their bytes' sha256
_PREFIXES = ("trees/", "blobs/", *_BY_SHA256, "jobs/", "checkpoints/")

_AGAIN = "delete it; the next submit sends it again. Its jobs that have not begun will fail: submit them anew"
# Advice, by the kind of damaged object.
_FIX = {
    "blob": _AGAIN,
    "tree": _AGAIN,
    "value": "it is lost: run its job again (under another key, if it has one)",
    "exception": "it is lost, and its text is in the verdict: `kinor status` and `kinor logs` show it",
    "checkpoint": "delete its folder; the training passes it over anyway, and goes on from the one before it",
    "wheel": "delete it, and put it there again with `kinor stage-tools --offline`",
    "tool": "delete it, and put it there again with `kinor stage-tools`",
    "compiled program": "delete it; it is compiled and kept again",
    "data": "delete its folder; the next job that names it unpacks it again",
}


class Damage(NamedTuple):
    """A damaged object. `jobs` are the jobs that need it, as far as they are named, out of `many`."""

    what: str
    place: str
    why: str
    fix: str
    jobs: tuple[str, ...] = ()
    many: int = 0


class Report(NamedTuple):
    """Result of an examination. `unknown`: the number of blobs that no record names, and so were not judged."""

    objects: int
    size: int
    unknown: int
    damaged: tuple[Damage, ...]

    @property
    def summary(self) -> str:
        read = f"{self.objects:,} blob{'s' * (self.objects != 1)} with {size(self.size)} were read"
        unknown = f"; {self.unknown} that no job names could not be judged" if self.unknown else ""
        damaged = f"{len(self.damaged) or 'none'} of them differ{'s' * (len(self.damaged) < 2)} from what was written"
        return f"{read}, and {damaged}{unknown}"


class Say(Protocol):
    def __call__(self, text: str, *, detail: str = "") -> None: ...


def examine(settings: Settings, say: Say) -> Report:
    """Examine the store of the settings, those of the home's other deployments, and the home's unpacked data."""
    progress = _Progress(say)
    stores = list(_stores(settings))
    examinations = [_StoreExamination(store, progress) for store in stores]
    progress.total = sum(each.total() for each in examinations)
    for each in examinations:
        each.run()
    data = _DataExamination(settings.home, stores, progress)
    data.run()
    damaged = [damage for each in examinations for damage in each.damages()] + data.damaged
    return Report(progress.objects, progress.size, sum(each.unknown for each in examinations), tuple(damaged))


def _stores(settings: Settings) -> Iterator[Store]:
    named = open_store(settings.store, settings.deployment)
    yield named
    parent = settings.home / "store"
    for stamp in sorted(parent.glob(f"*/{names.DEPLOYMENT}")):
        if os.path.realpath(stamp.parent) != os.path.realpath(named.url):
            yield open_store(parent, stamp.parent.name)


class _Progress:
    """Counts the bytes that were read, and reports progress."""

    def __init__(self, say: Say) -> None:
        self.objects = self.size = self.total = 0
        self._say = say
        self._began = self._said = self._told = time.monotonic()
        self._text = "reading every blob"

    def read(self, count: int) -> None:
        self.size += count
        now = time.monotonic()
        if now - self._said < PACE:
            return
        self._said = now
        done = f"{size(self.size)} of {size(max(self.size, self.total))}"
        if now - self._told >= LONG:
            self._told, self._text = now, f"reading every blob: {done}"
        self._say(self._text, detail=done)


class _StoreExamination:
    """Examination of one store. Damage is recorded by object name, and reported with the jobs that need the object."""

    def __init__(self, store: Store, progress: _Progress) -> None:
        self.store = store
        self.unknown = 0
        self._progress = progress
        self._damaged: dict[str, tuple[str, str, str]] = {}  # name → kind, reason, the job if the name has it
        self._odd: dict[str, str] = {}  # blobs whose content differs from their name, which may be no digest of it
        self._packs: set[str] = set()  # by their digests: seen in a tree
        self._whole: set[str] = set()  # of these, all contents were examined
        self._seen: dict[str, set[int]] = {}  # of the others, those at these offsets

    def total(self) -> int:
        return sum(entry.size for prefix in _PREFIXES for entry in self.store.list(prefix) if _is_blob(entry.name))

    def run(self) -> None:
        for entry in self.store.list("trees/"):
            self._tree(entry)
        for entry in self.store.list("blobs/"):
            self._blob(entry)
        for prefix in _BY_SHA256:
            for entry in self.store.list(prefix):
                self._plain(prefix, entry)
        for entry in self.store.list(names.JOBS):
            self._outcome(entry)
        for entry in self.store.list("checkpoints/"):
            self._checkpoint(entry)
        self._judge()

    def damages(self) -> Iterator[Damage]:
        owners = self._owners() if self._damaged else {}
        for name, (what, why, job) in self._damaged.items():
            jobs = [job] if job else owners.get(_digest(name), [])
            place = f"{self.store.url}/{name}"
            yield Damage(what, place, why, _FIX[what], tuple(jobs[:SHOWN]), len(jobs))

    # ---- one by one ----------------------------------------------------------------------------------------------

    def _tree(self, entry: Entry) -> None:
        """Examine a tree's manifest, and all of its packs that were not examined for another tree."""
        try:
            manifest = self._manifest(entry.name)
            if manifest is None:
                return
            found = tree.digest_of(tree.entries_of(manifest))
            if found != _digest(entry.name):
                raise tree.BadTree(f"it lists a tree {found}")
            packs = tree.packs_of(manifest)
            contents: dict[int, dict[int, tuple[int, str]]] = {}
            for _, _, length, sha256, number, offset in manifest["files"]:
                if number >= 0:
                    contents.setdefault(number, {})[offset] = length, sha256
            listed = [(packs[number], dict(sorted(inside.items()))) for number, inside in contents.items()]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            self._record(entry.name, "tree", f"its list of files cannot be believed ({error})")
            return
        self._progress.objects += 1
        self._progress.read(entry.size)
        for pack, inside in listed:
            self._pack(pack, inside, entry.name)

    def _manifest(self, name: str) -> dict[str, Any] | None:
        record = self.store.read(name)
        manifest: dict[str, Any] | None = None if record is None else json.loads(record.data)
        return manifest

    def _pack(self, pack: tree.Pack, contents: dict[int, tuple[int, str]], of: str) -> None:
        name = names.blob(pack.id)
        if pack.id in self._whole or name in self._damaged:
            return
        seen = self._seen.get(pack.id, set())
        if not (fresh := {offset: inside for offset, inside in contents.items() if offset not in seen}):
            return
        with (
            self._recording_damage(name, "blob", under=of),
            self._file(name, pack.stored) as path,
            tree.opened(pack, path) as reader,
        ):
            for offset, (length, sha256) in fresh.items():
                hasher = hashlib.sha256()
                for piece in reader.pieces(offset, length):
                    hasher.update(piece)
                    self._progress.read(len(piece))
                if hasher.hexdigest() != sha256:
                    raise _Differs(f"the {size(length)} from {offset} on have another digest than {sha256}")
        self._progress.objects += pack.id not in self._packs
        self._packs.add(pack.id)
        if tree.pack_id(pack.encoding, (sha256 for _, sha256 in contents.values())) == pack.id:
            self._whole.add(pack.id)
            self._seen.pop(pack.id, None)
        else:
            self._seen[pack.id] = seen | fresh.keys()

    def _blob(self, entry: Entry) -> None:
        digest = _digest(entry.name)
        if digest in self._packs or entry.name in self._damaged:
            return
        with self._recording_damage(entry.name, "blob"), self._file(entry.name, entry.size) as path:
            found = self._hash(path)
            if found != digest and _plain(path, lambda _: None) != digest:
                self._odd[entry.name] = f"it has the digest {found}"
        self._progress.objects += 1

    def _plain(self, prefix: str, entry: Entry) -> None:
        digest = entry.name.split("/")[2] if prefix == "wheels/" else entry.name.rpartition("/")[2]
        if len(digest) != 64 or not digest.isalnum():  # the lists of compiled programs
            return
        with self._recording_damage(entry.name, _BY_SHA256[prefix]), self._file(entry.name, entry.size) as path:
            if (found := _plain(path, self._progress.read)) != digest:
                raise _Differs(f"it has the digest {found}")
        self._progress.objects += 1

    def _outcome(self, entry: Entry) -> None:
        """Examine the value or the exception of a host's function, if an attempt's verdict names it."""
        _, job, _, *rest = entry.name.split("/")
        if not _is_blob(entry.name) or len(rest) != 4:
            return
        attempt, _, host, what = rest
        record = self.store.read(names.verdict(job, int(attempt)))
        try:
            verdict = verdict_of(record.data) if record is not None else None
        except Corrupt:
            verdict = None
        if verdict is None:
            self.unknown += 1
            return
        digest = verdict.digest if what == "result" else verdict.failure.digest if verdict.failure is not None else ""
        if not digest or int(host) != (verdict.host or 0):
            self.unknown += 1
            return
        kind = "value" if what == "result" else what
        with self._recording_damage(entry.name, kind, job), self._file(entry.name, entry.size) as path:
            if (found := self._hash(path)) != digest:
                raise _Differs(f"it has the digest {found}, and its verdict names {digest}")
        self._progress.objects += 1

    def _checkpoint(self, entry: Entry) -> None:
        """Examine all parts of a checkpoint, if the object is its commit."""
        place, _, last = entry.name.rpartition("/")
        folder = place.rpartition("/")[2]
        if not folder.startswith(commits.FOLDERS) or last != commits.commit(folder).rpartition("/")[2]:
            return
        above = place.removesuffix(folder)
        job = f"job-{folder.split('-')[2]}" if folder.count("-") >= 2 else ""
        record = self.store.read(entry.name)
        if record is None:
            return
        try:
            committed = commits.Commit.decode(record.data, entry.name)
        except wire.Unreadable as error:
            self._record(entry.name, "checkpoint", str(error), job)
            return
        for host, part in enumerate(committed.parts):
            name = above + commits.part(folder, host)
            with self._recording_damage(name, "checkpoint", job, under=entry.name), self._file(name, part.size) as path:
                if (length := os.path.getsize(path)) != part.size:
                    raise _Differs(f"it has {length} bytes, and {part.size} were written")
                if (found := self._hash(path)) != part.digest:
                    raise _Differs(f"it has the digest {found}, and {part.digest} was written")
            self._progress.objects += 1

    # ---- reading -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _recording_damage(self, name: str, what: str, job: str = "", under: str = "") -> Iterator[None]:
        """Record damage to an object, unless the object, or the one that names it, was removed in the meantime."""
        try:
            yield
        except (_Differs, tree.BadTree, OSError, StoreError) as error:
            if any(entry.name == (under or name) for entry in self.store.list(under or name)):
                self._record(name, what, _why(error), job)

    def _record(self, name: str, what: str, why: str, job: str = "") -> None:
        self._damaged.setdefault(name, (what, why, job))

    @contextlib.contextmanager
    def _file(self, name: str, most: int) -> Iterator[str]:
        """Yield the path of an object: its own file, dropped from the system's page cache, or a temporary copy."""
        path = self.store.local_path(name)
        if path is not None:
            _forget(path)
            try:
                yield path
            finally:
                _forget(path)
            return
        with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:
            path = os.path.join(folder, "blob")
            try:
                self.store.download(name, path, most=most)
            except StoreError:
                if self.store.find(name) is None:
                    raise _Differs("it is not there") from None
                raise
            yield path

    def _hash(self, path: str) -> str:
        with Hasher() as hasher:
            for piece in _pieces(path, self._progress.read):
                hasher.update(piece)
            return hasher.digest()

    # ---- jobs that need an object -------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Report a blob whose content differs from its name as damaged if a job names it; the rest may be packs of
        removed trees.
        """
        named = self._jobs({_digest(name) for name in self._odd}, {}) if self._odd else {}
        for name, why in self._odd.items():
            if _digest(name) in named:
                self._record(name, "blob", why)
            else:
                self.unknown += 1

    def _owners(self) -> dict[str, list[str]]:
        """Return the jobs that need each damaged object: by its digest, or by that of a tree which has it."""
        wanted = {_digest(name) for name in self._damaged}
        trees: dict[str, set[str]] = {}  # the damaged packs of each tree
        for entry in self.store.list("trees/"):
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                if (manifest := self._manifest(entry.name)) is not None:
                    packs = {pack.id for pack in tree.packs_of(manifest)} & wanted
                    if packs:
                        trees[_digest(entry.name)] = packs
        return self._jobs(wanted, trees)

    def _jobs(self, wanted: set[str], trees: dict[str, set[str]]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.store.list(names.JOBS):
            job = entry.name.split("/")[1]
            if entry.name != names.spec(job):
                continue
            with contextlib.suppress(KineticError):
                record = self.store.read(entry.name)
                staged = set(texts(spec_of(record.data, job)["staged"])) if record is not None else set()
                needs = (staged & wanted).union(*(trees[digest] for digest in staged & trees.keys()))
                for digest in needs:
                    found.setdefault(digest, []).append(job)
        return found


class _DataExamination:
    """The data that this home has unpacked for jobs: a folder is named by the digest of its tree, if it has one."""

    def __init__(self, home: Path, stores: list[Store], progress: _Progress) -> None:
        self.damaged: list[Damage] = []
        self._folder = home / "cache" / "data"
        self._stores = stores
        self._progress = progress

    def run(self) -> None:
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            is_tree = any(store.find(names.tree(folder.name)) is not None for store in self._stores)
            if not is_tree or not (folder / "complete").exists():
                continue
            try:
                found = tree.digest_of(self._entries(folder / "content"))
                why = "" if found == folder.name else f"its files are those of a tree {found}"
            except OSError as error:
                why = _why(error)
            self._progress.objects += 1
            if why and folder.exists():
                self.damaged.append(Damage("data", str(folder), why, _FIX["data"]))

    def _entries(self, root: Path) -> Iterator[tree.Entry]:
        for above, folders, files in os.walk(root):
            for name in [*folders, *files]:
                path = os.path.join(above, name)
                below = os.path.relpath(path, root)
                found = os.lstat(path)
                if stat.S_ISLNK(found.st_mode):
                    yield tree.Entry(below, tree.LINK, target=os.readlink(path))
                elif stat.S_ISDIR(found.st_mode):
                    if not os.listdir(path):
                        yield tree.Entry(below, tree.FOLDER)
                else:
                    _forget(path)
                    digest = _plain(path, self._progress.read)
                    mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
                    yield tree.Entry(below, tree.FILE, mode, found.st_size, digest)


class _Differs(Exception):
    """The content differs from what was written; the message says how."""


def _plain(path: str, read: Callable[[int], None]) -> str:
    hasher = hashlib.sha256()
    for piece in _pieces(path, read):
        hasher.update(piece)
    return hasher.hexdigest()


def _pieces(path: str, read: Callable[[int], None]) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while piece := file.read(CHUNK):
            yield piece
            read(len(piece))


def _forget(path: str) -> None:
    """Drop a file from the page cache, unless a process has it mapped, so that the disk itself is read."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(file)  # what is not on the disk yet is not let go of
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _is_blob(name: str) -> bool:
    """Tells whether an object has a digest, by its name; of the records of jobs few have."""
    first, *_, last = name.split("/")
    if first == "jobs":
        return last in ("result", "exception") and name.split("/")[2] == "out"
    return first != "checkpoints" or last.endswith(".safetensors")


def _digest(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json")


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read: {error.strerror}"
    return str(error)
