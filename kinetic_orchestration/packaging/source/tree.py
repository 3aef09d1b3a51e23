"""The source tree of a job: find the project, take a snapshot of it, and bring it to a store.

    source_of → snapshot → upload

A snapshot of an unchanged project costs a walk; its upload costs one request to the store. An edited project sends one
small pack in addition to those that the store has. `kinetic_orchestration.protocol.content.tree` defines a tree and its
layout in the store; the modules next to this one read the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.packaging.reuse import keep
from kinetic_orchestration.packaging.source import ignore, packs, stat_index
from kinetic_orchestration.packaging.source.stat_index import Index
from kinetic_orchestration.packaging.source.walk import Listing, Walk, escaped, measure, shown
from kinetic_orchestration.plan.messages import note_once, warn_once
from kinetic_orchestration.plan.records import PROJECT
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content import file_stamps, tree
from kinetic_orchestration.protocol.content.tree import Entry, Pack, PackOffset
from kinetic_orchestration.protocol.system.parallel import at_once, side_by_side

if TYPE_CHECKING:
    from kinetic_orchestration.packaging.source.packs import Content, PackFile
    from kinetic_orchestration.platforms.store import Store

PROJECT_FILES = (".kineticignore", "pyproject.toml", "setup.py", "setup.cfg")
MARKERS = (*PROJECT_FILES, ".git", ".hg")
# Also found in folders within a project, so they count only if no folder above has a stronger mark.
WEAK_MARKERS = ("requirements.txt", "environment.yml", "environment.yaml", "Pipfile")

# A folder without any of these is sent whole up to this size.
MOST_FILES = 1_000
MOST_BYTES = 50 << 20
# Below a home folder, where no project begins.
COLLECTIONS = (
    "Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Videos", "Dropbox", "OneDrive", "Google Drive",
    ".cache", ".config", ".local", ".local/share", "bin", "snap",
)  # fmt: skip

# A tree is packed again when it refers to more than this many packs of less than half the usual size,
MOST_SMALL_PACKS = 32
# or when its packs hold more dead bytes than living ones.


_LARGE = 1 << 30


@dataclass(frozen=True)
class Source:
    """The files to send: the whole of `root`, or only the files and folders in `include` (relative to it)."""

    root: Path
    include: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Snapshot:
    """A project as it was at one moment."""

    root: Path
    entries: tuple[Entry, ...] = field(repr=False)
    digest: str
    size: int
    warnings: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()  # paths that look like secrets and are not sent, as `warnings` states
    spooled: tuple[PackFile, ...] = field(default=(), repr=False)
    index: Path = field(default=Path(), repr=False)

    @property
    def count(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class StagedTree:
    """A tree that is in a store, whole. `packs`: the blobs that this upload added."""

    digest: str
    uploaded_bytes: int = 0
    packs: tuple[str, ...] = ()


def find_root(start: Path, *, home: Path | None = None) -> Path | None:
    """The project that a file or folder belongs to: the nearest folder with a marker.

    Never the home folder, the temporary folder, the file system's root or anything above them, and never a
    place where packages are installed.
    """
    start = Path(os.path.realpath(start))
    folder = start if start.is_dir() else start.parent
    if not {"site-packages", "dist-packages"}.isdisjoint(folder.parts):
        return None
    limits = _too_wide(home)
    weak: Path | None = None
    for candidate in (folder, *folder.parents):
        if candidate in limits:
            break
        if any(os.path.lexists(candidate / marker) for marker in MARKERS):
            return candidate
        if weak is None and any((candidate / marker).exists() for marker in WEAK_MARKERS):
            weak = candidate
    return weak


def is_too_wide(folder: Path) -> bool:
    """Return True if a folder collects unrelated files: the home, its Downloads, the temporary one, and those above."""
    real = Path(os.path.realpath(folder))
    return real in _too_wide(None) or real in _everybodys(None)


def source_of(
    start: Path,
    modules: Iterable[str] = (),
    *,
    imports_only: bool = False,
    home: Path | None = None,
    path: Iterable[str] | None = None,
) -> Source:
    """The source to send with the code in `start`, a file or (for a notebook's cell) a folder.

    A project is sent whole, and so is a folder without one, if it is small. With `imports_only` (a DAG folder holds
    many files of other jobs), and of other folders, only the file is sent, `modules`, and the modules of that folder
    that they import.
    """
    start = Path(os.path.realpath(start))
    root = find_root(start, home=home)
    if root is not None and not imports_only:
        return Source(root)
    from kinetic_orchestration.packaging.source import imports

    folder = start if start.is_dir() else start.parent
    path = [str(folder), *(sys.path if path is None else path)]
    whole: set[str] = set()
    if root is None:
        # An orchestrator's DAG folder is on sys.path, and its files import each other from there.
        wide = _too_wide(home)
        tops = {Path(os.path.realpath(entry or ".")) for entry in path}
        root = min(
            (top for top in tops - wide if folder.is_relative_to(top)), key=lambda top: len(top.parts), default=folder
        )
        if root == root.parent:
            raise UsageError(
                f"{start} lies at the root of the file system, where nothing tells what belongs to it from all else on "
                "this machine. Put the code into a folder of its own, and start a notebook or a prompt in one"
            )
        _warn_of_marker(root, wide)
        if not imports_only and _is_small(folder, home):
            whole.add(folder.relative_to(root).as_posix())
            if folder == root:
                return Source(root)
    wanted: list[str | Path] = [*modules, *([start] if start.is_file() else [])]
    found = imports.imported_files(root, wanted, path=path)
    return Source(root, tuple(sorted(whole.union(found))) if whole else found)


def snapshot(
    root: Path,
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[Path] = (),
    index_dir: Path,
    spool: Path | None = None,
    ignored: bool = False,
    home: Path | None = None,
) -> Snapshot:
    """Take a snapshot of the project; only files that have changed since the index of the last snapshot are read.

    `spool` is a folder for packs of the files read, so that `upload` need not read them again; best on the store's file
    system, and the caller's to delete. `exclude`: files and folders that are not sent regardless of the rules.
    `ignored=True` includes files that the rules would exclude (a folder of data).
    """
    began = time.time_ns()
    root = Path(os.path.realpath(root))
    if not root.is_dir():
        raise UsageError(f"The project folder {root} is not there (or is not a folder).")
    limits = (*exclude, index_dir, *((spool,) if spool else ()))
    include = None if include is None else sorted(set(include))
    index_path = index_dir / f"{_key(root, include, ignored)}.index"
    index = stat_index.load(index_path)

    outer = tuple(() if ignored else ignore.outer_texts(root, _home(home)))
    rules = ignore.Rules(defaults=False) if ignored else ignore.outer_rules(outer)
    walk = Walk(str(root), index, rules, same=outer == index.outer, excluded=_relative(root, limits))
    listing = walk.everything() if include is None else walk.only(include)
    if _is_unchanged(listing, index):
        warnings = _warnings(root, listing, (), listing.withheld, index.allowed if ignored else ())
        if not _is_explained(listing, index, outer):
            new = _next_index(index, listing, [], outer, began)
            warnings += _save(index_path, replace(new, tree=index.tree, size=index.size))
        secrets = tuple(sorted(listing.withheld))
        return Snapshot(root, _entries(index), index.tree, index.size, warnings, secrets, (), index_path)

    contents, spooled = packs.read_all(str(root), listing.fresh, spool)
    new = _next_index(index, listing, contents, outer, began)
    entries = _entries(new)
    size = sum(entry.size for entry in entries)
    new = replace(new, tree=tree.digest_of(entries), size=size)
    warnings = _warnings(root, listing, contents, new.withheld, new.allowed if ignored else ())
    warnings += _save(index_path, new)
    if size > _LARGE:
        warnings += (_what_is_large(root, entries, size),)
    secrets = tuple(sorted(new.withheld))
    return Snapshot(root, entries, new.tree, size, warnings, secrets, tuple(spooled), index_path)


def upload(snapshot: Snapshot, store: Store, *, spool: Path, retention: float = math.inf) -> StagedTree:
    """Bring the missing parts of the tree to the store; the manifest last.

    The age of objects in the store is reset when they are old for that `retention`.
    """
    name, pointer = names.tree(snapshot.digest), names.project(snapshot.index.stem)
    is_there, newest = _find_newest(snapshot, store, name, pointer, retention)
    if is_there:
        return StagedTree(snapshot.digest)
    wanted = {entry.sha256: entry for entry in snapshot.entries if entry.size}
    all_packs, offsets = _reusable(store, newest, wanted, retention)

    uploaded, added = 0, []
    jobs = list(_jobs(snapshot, {sha256: wanted[sha256] for sha256 in wanted if sha256 not in offsets}))
    threads = min(8, max(2, store.parallel))
    for file, pack, sent in side_by_side(lambda make: _send(store, make, spool, retention), jobs, threads):
        for sha256, offset, _ in file.offsets():
            offsets[sha256] = PackOffset(len(all_packs), offset)
        all_packs.append(pack)
        if sent:
            uploaded += sent
            added.append(names.blob(pack.id))

    manifest = tree.manifest_of(snapshot.digest, snapshot.entries, all_packs, offsets)
    data = json.dumps(manifest, separators=(",", ":")).encode()
    pointed = json.dumps({"release": __version__, "tree": snapshot.digest}).encode()
    last: list[Callable[[], int | None]] = [partial(store.create, name, data), partial(store.put, pointer, pointed)]
    if at_once(last, store.parallel)[0] is not None:
        uploaded += len(data)
    _remember(snapshot.index, store.url, snapshot.digest)
    return StagedTree(snapshot.digest, uploaded, tuple(added))


def _is_unchanged(listing: Listing, index: Index) -> bool:
    return (
        bool(index.tree)
        and not listing.fresh
        and len(listing.kept) == len(index.stamps)
        and listing.links == index.links
        and listing.empty == index.empty
    )


def _is_explained(listing: Listing, index: Index, outer: tuple[tuple[str, str], ...]) -> bool:
    """Return True if the index would spare the next walk every evaluation of ignore rules."""
    return (
        listing.folders == index.folders
        and listing.ignored == index.ignored
        and listing.withheld == index.withheld
        and listing.rules == index.rules
        and outer == index.outer
    )


def _next_index(
    index: Index, listing: Listing, contents: list[Content], outer: tuple[tuple[str, str], ...], began: int
) -> Index:
    """The index after this snapshot, its tree not yet digested."""
    known = dict(zip(index.stamps, index.digest_list(), strict=True))
    rows = {path: (index.stamps[path], known[path]) for path in listing.kept}
    withheld = dict(listing.withheld)
    for content in contents:
        stamp = file_stamps.believable(content.stamp, began if content.steady else 0)
        if content.withheld:
            withheld[content.path] = stamp
        else:
            rows[content.path] = ((stamp[0], content.size, *stamp[2:]), content.sha256.hex())
    paths = sorted(rows)
    allowed = rows.keys() & index.allowed.difference(content.path for content in contents)
    allowed |= {content.path for content in contents if content.secret and not content.withheld}
    return Index(
        stamps={path: rows[path][0] for path in paths},
        digests=bytes.fromhex("".join(rows[path][1] for path in paths)),
        links=listing.links,
        empty=frozenset(listing.empty),
        folders=frozenset(listing.folders),
        ignored=frozenset(listing.ignored),
        rules=listing.rules,
        outer=outer,
        withheld=withheld,
        allowed=frozenset(allowed),
    )


def _save(path: Path, index: Index) -> tuple[str, ...]:
    try:
        stat_index.save(path, index)
    except OSError as error:
        return (f"every run reads every file again, for {path} cannot be written: {error.strerror}",)
    return ()


def _entries(index: Index) -> tuple[Entry, ...]:
    modes = [0o755 if stamp[0] & stat.S_IXUSR else 0o644 for stamp in index.stamps.values()]
    sizes = [stamp[1] for stamp in index.stamps.values()]
    fields = zip(index.stamps, repeat(tree.FILE), modes, sizes, index.digest_list(), repeat(""))
    return (
        *map(partial(tuple.__new__, Entry), fields),
        *(Entry(path, tree.LINK, target=target) for path, target in sorted(index.links.items())),
        *(Entry(path, tree.FOLDER) for path in sorted(index.empty)),
    )


def _warnings(
    root: Path, listing: Listing, contents: Iterable[Content], withheld: Collection[str], data: Collection[str]
) -> tuple[str, ...]:
    """`withheld` are files that look like keys and are not sent; `data` those that are sent with a folder of data."""
    warnings = list(listing.warnings)
    warnings += [
        f"{content.path} kept changing while it was read; it travels as it was last seen"
        for content in contents
        if not content.steady
    ]
    if withheld:
        them, line = ("this file looks", "it") if len(withheld) == 1 else ("these files look", "one of them")
        stay = "stays" if len(withheld) == 1 else "stay"
        warnings.append(
            f"{them} like a secret and {stay} here: {_some(withheld)}. Hand secrets over with `secrets=` or "
            f"`capture_env_vars=`; to send {line} all the same, add its line to {root}/{ignore.KINETIC}:  "
            f"!/{escaped(min(withheld))}"
        )
    if data:
        them, travel = ("this file", "it travels") if len(data) == 1 else ("these files", "they travel")
        warnings.append(
            f"{them} of the data in {root} looks like a secret, and {travel} with it: {_some(data)}. Whoever may read "
            "the store can read it there; move it out of the folder if it is one"
        )
    return tuple(shown(warning) for warning in warnings)


def _some(paths: Collection[str]) -> str:
    return ", ".join(sorted(paths)[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _what_is_large(root: Path, entries: Iterable[Entry], size: int) -> str:
    parts: Counter[str] = Counter()
    for entry in entries:
        parts[entry.path.partition("/")[0]] += entry.size
    named = ", ".join(f"{shown(part)} ({amount / _LARGE:.1f} GiB)" for part, amount in parts.most_common(3))
    return (
        f"the project {root} is {size / _LARGE:.1f} GiB: {named}. Wrap folders of data in Data, or name them "
        f"in {ignore.KINETIC}"
    )


def _reusable(
    store: Store, manifest: Mapping[str, Any] | None, wanted: Mapping[str, Entry], retention: float
) -> tuple[list[Pack], dict[str, PackOffset]]:
    """The packs and offsets of an older tree that the new tree can refer to; none if it is time to pack everything
    again."""
    if manifest is None:
        return [], {}
    old = tree.packs_of(manifest)
    offsets: dict[str, PackOffset] = {}
    living = [0] * len(old)
    for _, _, size, sha256, pack, offset in manifest["files"]:
        if sha256 in wanted and sha256 not in offsets and size:
            offsets[sha256] = PackOffset(pack, offset)
            living[pack] += size
    used = [number for number, amount in enumerate(living) if amount]
    small = sum(1 for number in used if old[number].size < packs.PACK_SIZE // 2)
    total = sum(old[number].size for number in used)
    if small > MOST_SMALL_PACKS or sum(living) * 2 < total:
        return [], {}
    kept = side_by_side(lambda number: keep(store, names.blob(old[number].id), retention), used, 8)
    sizes = [None if entry is None else entry.size for entry in kept]
    good = [number for number, size in zip(used, sizes, strict=True) if size == old[number].stored]
    renumbered = {number: position for position, number in enumerate(good)}
    return [old[number] for number in good], {
        sha256: PackOffset(renumbered[at.pack], at.offset) for sha256, at in offsets.items() if at.pack in renumbered
    }


def _jobs(snapshot: Snapshot, missing: Mapping[str, Entry]) -> Iterator[Callable[[Path], PackFile]]:
    """Functions that make each missing pack: as it was spooled, or from ranges and files, in order."""
    left = dict(missing)
    ranges: dict[str, tuple[Path, int]] = {}
    for pack in snapshot.spooled:
        if not pack.path.exists():
            continue  # another upload took it
        if all(sha256 in left for sha256, _ in pack.contents):
            for sha256, _ in pack.contents:
                del left[sha256]
            yield partial(_as_it_is, pack)
        else:
            ranges.update((sha256, (pack.path, offset)) for sha256, offset, _ in pack.offsets())

    for group in packs.by_size(left.values(), lambda entry: entry.size):
        sources = [(entry, *ranges.get(entry.sha256, (snapshot.root / entry.path, 0))) for entry in group]
        yield partial(packs.gather, sources)


def _as_it_is(pack: PackFile, spool: Path) -> PackFile:
    return pack


def _send(store: Store, make: Callable[[Path], PackFile], spool: Path, retention: float) -> tuple[PackFile, Pack, int]:
    """Make a pack and bring it to the store; how many bytes that took."""
    file = make(spool)
    path, encoding = file.path, tree.RAW
    if store.metered and (smaller := packs.compressed(file)) is not None:
        path.unlink()
        path, encoding = smaller, tree.ZLIB
    pack = packs.pack_of(file, path.stat().st_size, encoding)
    name = names.blob(pack.id)
    if store.metered and store.upload(name, str(path)):  # to ask first would be a round trip more
        path.unlink()
        return file, pack, pack.stored
    there = keep(store, name, retention)
    if there is not None and (there.size == pack.stored or encoding == tree.ZLIB):
        # Two builds of zlib may differ in the bytes, never in what they mean.
        path.unlink()
        return file, pack._replace(stored=there.size), 0
    if there is not None:
        store.delete(name)
    return file, pack, pack.stored if store.upload(name, str(path), move=True) else 0


def _find_newest(
    snapshot: Snapshot, store: Store, name: str, pointer: str, retention: float
) -> tuple[bool, dict[str, Any] | None]:
    """Return True if the tree is in the store; if not, also the newest tree of its project that is, if this code can
    read it.

    With a remote store both requests are made concurrently: for a project that has just been edited, both are needed.
    """
    remembered = _trees(snapshot.index).get(store.url)
    found: list[Any] = []

    def find_newest() -> None:
        found.append(_manifest(store, remembered) if remembered is not None else _pointed_to(store, pointer))

    def is_there() -> bool:
        return keep(store, name, retention) is not None

    guessing = store.metered and remembered != snapshot.digest
    if guessing:
        there = bool(at_once([is_there, find_newest], 2)[0])
    elif not (there := is_there()):
        find_newest()
    if there:
        return True, None
    if remembered is None:
        return False, _manifest(store, found[0])
    return False, found[0] or _manifest(store, _pointed_to(store, pointer))


def _manifest(store: Store, digest: str | None) -> dict[str, Any] | None:
    """The manifest of a tree in the store, if this code can read it."""
    record = store.read(names.tree(digest)) if digest is not None else None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # what others may have written
        manifest: dict[str, Any] = json.loads(record.data if record is not None else b"")
        last = len(tree.packs_of(manifest)) - 1
        if tree.entries_of(manifest) and all(-1 <= file[4] <= last for file in manifest["files"]):
            return manifest
    return None


def _pointed_to(store: Store, pointer: str) -> str | None:
    record = store.read(pointer, 0, names.limit_of(pointer))  # what is cut off is none
    with contextlib.suppress(ValueError, RecursionError):  # as for a manifest
        fields = json.loads(record.data if record is not None else b"")
        PROJECT(fields)
        return fields["tree"] or None
    return None


def _trees(index: Path) -> dict[str, str]:
    try:
        trees = json.loads(index.with_suffix(".trees").read_bytes())
        return trees if isinstance(trees, dict) else {}
    except (OSError, ValueError):
        return {}


def _remember(index: Path, url: str, digest: str) -> None:
    """Store the digest next to the index. Losing it costs a request to the store."""
    with contextlib.suppress(OSError):
        stat_index.replace_file(index.with_suffix(".trees"), json.dumps({**_trees(index), url: digest}).encode())


def _warn_of_marker(root: Path, wide: set[Path]) -> None:
    """A home folder that is kept in git is common, and no project; one with a project's file may be meant as one."""
    marks = [name for name in PROJECT_FILES if root in wide and (root / name).is_file()]
    if marks:
        warn_once(
            f"{root} has a {marks[0]} and is no project, because a home folder or one like it holds much else: only "
            "the code that the job imports travels, and no other files. Put the project into a folder of its own"
        )


def _is_small(folder: Path, home: Path | None) -> bool:
    """Decide whether a folder without a project's mark is sent whole, and log it."""
    if folder in _too_wide(home) | _everybodys(home):
        note_once(
            f"{folder} holds much that is no part of a job, so only the code that the job imports travels, and no "
            "other files. Put the job's files into a folder of their own"
        )
        return False
    found = measure(folder, _home(home), files=MOST_FILES, size=MOST_BYTES)
    if found is None:
        warn_once(
            f"{folder} has more than {MOST_FILES:,} files or {MOST_BYTES >> 20} MiB and no project's mark, so only the "
            f"code that the job imports travels, and no other files. To send the folder: touch {folder}/"
            f"{ignore.KINETIC}, and name in it what stays; for data use kinetic.Data"
        )
        return False
    note_once(
        f"the folder {folder} travels with the job: no pyproject.toml, .git or the like tells where a project "
        f"begins. A {ignore.KINETIC} there would name what stays"
    )
    return True


def _key(root: Path, include: list[str] | None, ignored: bool) -> str:
    """The key of an index, one for each way of reading a folder: two files of it that are sent separately have two."""
    settings = json.dumps([str(root), include, ignored])
    return hashlib.sha256(settings.encode()).hexdigest()[:32]


def _relative(root: Path, paths: Iterable[Path]) -> Iterator[str]:
    """The paths inside the root, relative to it. A path that is the root or above it excludes nothing."""
    for path in paths:
        relative = os.path.relpath(os.path.realpath(path), root)
        if relative not in {".", ".."} and not relative.startswith("../"):
            yield relative


def _home(home: Path | None) -> Path | None:
    try:
        return Path(os.path.realpath(home or Path.home()))
    except RuntimeError:
        return None


def _everybodys(home: Path | None) -> set[Path]:
    """Folders in which things are collected, by their names."""
    found = _home(home)
    system = {Path(name) for name in ("/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/media", "/mnt")}
    system |= {Path(name) for name in ("/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr")}
    system |= {Path(name) for name in ("/usr/bin", "/usr/lib", "/usr/local", "/var", "/var/lib", "/var/tmp")}
    return system | ({found / name for name in COLLECTIONS} if found else set())


def _too_wide(home: Path | None) -> set[Path]:
    found = _home(home)
    wide = {Path(os.path.realpath(tempfile.gettempdir()))} | ({found} if found else set())
    return wide | {parent for path in wide for parent in path.parents}
