"""Brings to this host's disk what a program needs before it can start: code, data, environment.

Independent of processes; it may run on a thread beside the agent's loop.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kinetic_orchestration.host.prepare.data.fetch import Blobs
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records.base import Damaged, TooLarge, read_bounded, read_intact
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.protocol.system.parallel import Ahead, Several
from kinetic_orchestration.protocol.wire.task import DataPiece, Payload, Task

AGAIN = "submit the job again, which sends what is missing"
AGAIN_WITH_DATA = (
    "Submit the job again to train on what is there now, or keep data that jobs read under names of their own"
)
_FOR_GOOD = (errno.EACCES, errno.ENOENT, errno.ENAMETOOLONG)
DATA_AT_ONCE = 8  # pieces of data that come side by side; each of them takes several connections of its own


class NotReady(Exception):
    """The program cannot start; `cause` classifies the failure."""

    def __init__(self, message: str, cause: str = wire.CONFIGURATION) -> None:
        super().__init__(message)
        self.cause = cause


class Missing(Exception):
    """A blob that was sent is missing."""


class _Here(NamedTuple):
    """The interpreter, folders and secrets of this host that fetching data takes."""

    records: Any
    home: str
    environ: Mapping[str, str]  # of the program, with its secrets
    python: Callable[[], str]  # waits for the environment
    note: Callable[[str], None]
    told: list[str]  # what host 0 says of data that are no longer those of the submission


class Ready(NamedTuple):
    python: str
    cwd: str
    path: list[str]
    argv: list[str]
    payload: str
    data: list[str]
    volumes: list[Any]  # to be released at the end
    spans: Mapping[str, tuple[float, float]] = MappingProxyType({})  # of each part, by the steady clock
    told: Sequence[str] = ()  # about data that are no longer those of the submission


def prepare(
    records: Any,
    task: Task,
    scratch: str,
    home: str,
    uv: dict[str, str],
    note: Callable[[str], None],
    found: Callable[[str], None] = lambda _: None,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> Ready:
    """`uv` are the settings of the package index, which may hold passwords and are never written down, and neither are
    `secrets`, which are the program's.

    On a machine of its own all parts come side by side. `found` is told the interpreter as soon as it is there.
    """
    root = os.path.join(scratch, "project")
    os.makedirs(root, exist_ok=True)
    blobs = Blobs(records, os.path.join(scratch, "blobs"))
    spans: dict[str, tuple[float, float]] = {}
    in_background = records.parallel > 1

    def begin(what: str, work: Callable[..., Any], *rest: Any) -> Ahead[Any]:
        return Ahead(_timed, spans, what, work, records, *rest, in_background=in_background)

    environment = begin("environment", _environment, task, home, uv, note)
    python_of = functools.cache(environment.result)
    at = _Here(records, home, {**copies.environ(), **task.env, **secrets}, python_of, note, [])
    payload = begin("payload", _payload, blobs, task.payload)
    brought = Several(
        lambda piece: _timed(spans, f"data {piece[0]}", _data, at, blobs, piece[1]),
        list(enumerate(task.data)), most=DATA_AT_ONCE, in_background=in_background,
    )  # fmt: skip
    code = begin("code", _code, blobs, task, root, scratch)
    warm = Ahead(_warm, python_of, found, [code, payload, brought], task, spans, note, in_background=in_background)
    packages = code.result()
    data = brought.result()
    python = warm.result()
    volumes = _volumes(task.volumes, data, home)
    for folder in (task.output_dir, task.checkpoint_dir):
        _make(folder)
    cwd = os.path.join(root, task.cwd) if task.cwd else root
    os.makedirs(cwd, exist_ok=True)
    path = [os.path.normpath(os.path.join(root, entry)) for entry in task.path] + packages + list(task.extra_path)
    argv = list(task.argv)
    if argv and argv[0] in ("python", "python3"):
        argv[0] = python
    return Ready(python, cwd, path, argv, payload.result(), data, volumes, spans, at.told)


def _timed(spans: dict[str, tuple[float, float]], what: str, work: Callable[..., Any], *rest: Any) -> Any:
    began = time.monotonic()
    try:
        return work(*rest)
    finally:
        spans[what] = began, time.monotonic()


def _warm(
    python_of: Callable[[], str],
    found: Callable[[str], None],
    others: Sequence[Ahead[Any] | Several[Any, Any]],
    task: Task,
    spans: dict[str, tuple[float, float]],
    note: Callable[[str], None],
) -> str:
    """Return the interpreter. While other content is still being fetched, JAX is imported once in the background.

    The import runs in a separate process, and leaves byte code and a warm disk: a program may set JAX's variables
    before it imports JAX itself.
    """
    python = python_of()
    found(python)
    modules = task.environment.warm if task.environment is not None else ()
    if modules and any(other.pending for other in others):
        from kinetic_orchestration.host.prepare.environment import warm_up

        Ahead(_timed, spans, "import", warm_up, python, modules, note)
    return python


def _code(records: Any, blobs: Blobs, task: Task, root: str, scratch: str) -> list[str]:
    if task.tree:
        _unpack(records, blobs, task.tree, root)
    folders = [os.path.join(scratch, "packages", str(number)) for number in range(len(task.packages))]
    for item, folder in zip(task.packages, folders, strict=True):
        os.makedirs(target := os.path.join(folder, item.at))
        _unpack(records, blobs, item.digest, target)
    return folders


def _payload(records: Any, blobs: Blobs, payload: Payload | None) -> str:
    if payload is None:
        return ""
    try:
        path = blobs.path(payload.digest, payload.size)
    except (Damaged, TooLarge) as error:
        discard(records, names.blob(payload.digest))  # else it would be found there for ever
        raise NotReady(f"{error}. It was removed: {AGAIN}") from None
    if path is None:
        raise NotReady(f"{names.blob(payload.digest)} is not in the store {records.root}: {AGAIN}")
    return path


def _unpack(records: Any, blobs: Blobs, tree_digest: str, target: str) -> None:
    from kinetic_orchestration.protocol.content import tree

    sizes: dict[str, int] = {}

    def bring(packs: Sequence[tree.Pack]) -> None:
        sizes.update((pack.id, pack.stored) for pack in packs)
        blobs.fetch(sizes)

    def open_pack(blob: str) -> str:
        try:
            path = blobs.path(blob, sizes[blob])
        except (Damaged, TooLarge) as error:
            raise tree.Damaged(str(error), blob) from None
        if path is None:
            raise Missing(f"{names.blob(blob)} is not in the store {records.root}")
        return path

    for left in (1, 0):
        listed = read_bounded(records, names.tree(tree_digest))
        if listed is None:
            raise NotReady(f"{names.tree(tree_digest)} is not in the store {records.root}: {AGAIN}")
        try:
            tree.unpack(_manifest(listed), open_pack, target, tree_digest, bring)
            return
        except (tree.Damaged, Missing, KeyError, TypeError, AttributeError, IndexError) as error:
            pack = getattr(error, "pack", "")
            if left and records.may_corrupt:
                import shutil

                blobs.forget(pack)
                shutil.rmtree(target, ignore_errors=True)
                continue
            # Else it would be found there for ever, and nothing sent in its place.
            if pack:
                discard(records, names.blob(pack))
            discard(records, names.tree(tree_digest))
            why = str(error) if isinstance(error, (tree.Damaged, Missing)) else f"{names.tree(tree_digest)} was changed"
            raise NotReady(f"{why}. It was removed from the store: {AGAIN}") from None


def _manifest(data: bytes) -> dict[str, Any]:
    from kinetic_orchestration.protocol.content import tree

    try:
        manifest: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError):
        raise tree.Damaged("the tree's manifest is no JSON: it was changed after it was sent") from None
    return manifest


def discard(records: Any, name: str) -> None:
    """Delete an object whose content differs from its name."""
    with contextlib.suppress(OSError):
        records.delete(name)


def _environment(records: Any, task: Task, home: str, uv: dict[str, str], note: Callable[[str], None]) -> str:
    wanted = task.environment
    if wanted is None:
        return task.python or sys.executable
    if wanted.is_bare and not task.tools.get("python"):
        from kinetic_orchestration.host.machine import bootstrap

        if python := bootstrap.python_of(wanted.python):
            return python
    from kinetic_orchestration.host.prepare import environment

    try:
        lock = read_intact(records, names.blob(wanted.lock), wanted.lock)
    except TooLarge:
        lock = None
    if lock is None:
        discard(records, names.blob(wanted.lock))
        raise NotReady(f"the lock {wanted.lock} is not in the store, or its bytes differed: {AGAIN}")
    try:
        if not wanted.interpreter:  # of the submitter's machine, which is another one
            from kinetic_orchestration.host.prepare import toolbox

            settings = environment.with_own(uv, wanted.settings)
            return toolbox.provide(records, wanted, task.tools, lock.decode(), home, settings, note)
        python = environment.ensure(
            lock.decode(), wanted.lock, root=os.path.join(home, "environments"),
            uv=wanted.uv, python=wanted.interpreter, env=environment.with_own(uv, wanted.settings), note=note,
        )  # fmt: skip
        environment.hold(python)  # for as long as this agent lives
    except environment.BuildFailed as error:
        raise NotReady(str(error), wire.INFRASTRUCTURE if error.passing else wire.CONFIGURATION) from None
    return python


def _data(at: _Here, blobs: Blobs, item: DataPiece) -> str:
    """Return the path of a folder or file of data, fetched once to this machine and shared by all its readers; of data
    that are read where they are, that of the list of their files.
    """
    from kinetic_orchestration.host.prepare.data.cached import cached

    if is_pinned(item):
        return _pinned(at, blobs, item)
    if item.here:
        return item.here
    if url := item.url:
        root = os.path.join(at.home, "cache", "data", digest.of_bytes(url.encode()))
        return cached(root, lambda to, _: _copied(url, to), what=url, note=at.note)

    def unpack(root: str, _: int) -> str:
        content = os.path.join(root, "content")
        os.makedirs(content)
        _unpack(at.records, blobs, item.digest, content)
        return content

    what = f"data {item.digest[:12]} of the submission"
    content = cached(os.path.join(at.home, "cache", "data", item.digest), unpack, what=what, note=at.note)
    return os.path.join(content, item.file) if item.file else content


def is_pinned(item: DataPiece) -> bool:
    """Return True if the digest is that of a list of files, and not of the content itself."""
    return bool(item.digest and (item.url or item.here))


def _pinned(at: _Here, blobs: Blobs, item: DataPiece) -> str:
    """Return the path of the files that the job was submitted with, or of their list, to which the address is held."""
    from kinetic_orchestration.host.prepare.data import held
    from kinetic_orchestration.protocol.content import pins

    listed = None
    with contextlib.suppress(Damaged, TooLarge):
        listed = blobs.path(item.digest, pins.LIMIT)
    if listed is None:
        raise NotReady(f"the list of files of {item.url or item.here} is not in the store {at.records.root}: {AGAIN}")
    try:
        with open(listed, "rb") as file:
            pinned = pins.decode(file.read(pins.LIMIT + 1), item.digest)
        if item.url.startswith("hf://"):
            return _fetched(at, pinned, item.digest)
        now = held.listed(pinned)
        if why := held.difference(pinned, new=False, now=now):
            raise NotReady(f"{why}. {AGAIN_WITH_DATA}")
        if news := held.news(pinned, now):
            at.told.append(news)
    except pins.Unpinned as error:
        discard(at.records, names.blob(item.digest))  # else it would be found there for ever
        raise NotReady(f"{error}. It was removed: {AGAIN}") from None
    except OSError as error:
        cause = wire.CONFIGURATION if error.errno in _FOR_GOOD else wire.INFRASTRUCTURE
        what = "fetched to this host" if item.url.startswith("hf://") else "listed"
        raise NotReady(f"the data at {item.url or item.here} cannot be {what}: {error}", cause) from None
    return listed


def news(task: Task, ready: Ready) -> list[str]:
    """Return what was not told at the start of data that are read where they are. Raises OSError."""
    from kinetic_orchestration.host.prepare.data import held
    from kinetic_orchestration.protocol.content import pins

    found = []
    for item, path in zip(task.data, ready.data, strict=True):
        if not is_pinned(item) or item.url.startswith("hf://"):
            continue
        with open(path, "rb") as file:
            found.append(held.news(pins.decode(file.read(pins.LIMIT + 1), item.digest)))
    return [told for told in found if told and told not in ready.told]


def _fetched(at: _Here, pinned: Any, name: str) -> str:
    from kinetic_orchestration.host.prepare.data import hub
    from kinetic_orchestration.host.prepare.data.cached import cached

    def bring(root: str, lock: int) -> str:
        return hub.fetch(pinned, root, at.python(), at.environ, at.note, (lock,))

    try:
        root = os.path.join(at.home, "cache", "data", name)
        return cached(root, bring, what=pinned.address, note=at.note, resumes=True)
    except hub.Unfetched as error:
        raise NotReady(str(error), wire.INFRASTRUCTURE if error.passing else wire.CONFIGURATION) from None


def _copied(url: str, root: str) -> str:
    from kinetic_orchestration.host.prepare.data.fetch import copy_bucket

    try:
        return copy_bucket(url, root)
    except OSError as error:
        raise NotReady(f"the data at {url} could not be brought here: {error}") from None


def _make(folder: str) -> None:
    """Create the output folder before the job starts; an address in a cloud needs none."""
    if "://" in folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise NotReady(f"the output folder {folder} cannot be made: {error.strerror}") from None


def _volumes(wanted: Mapping[str, int], data: list[str], home: str) -> list[Any]:
    if not wanted:
        return []
    from kinetic_orchestration.host.prepare.data import volumes

    try:
        return [volumes.Volume(home, path, data[index]) for path, index in wanted.items()]
    except volumes.Taken as error:
        raise NotReady(str(error)) from None
