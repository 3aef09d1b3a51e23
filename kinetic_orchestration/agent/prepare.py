"""What a program needs before it can start, brought to this host's disk: code, data, environment.

Knows nothing of processes; it may run on a thread beside the agent's loop.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from kinetic_orchestration.agent import digest, names, wire
from kinetic_orchestration.agent.records import FileRecords

AGAIN = "submit the job again, which sends what is missing"


class NotReady(Exception):
    """The program cannot start; `cause` says whose matter that is."""

    def __init__(self, message: str, cause: str = wire.CONFIGURATION) -> None:
        super().__init__(message)
        self.cause = cause


class Missing(Exception):
    """A blob that was sent is not there."""


class Ready(NamedTuple):
    python: str
    cwd: str
    path: list[str]
    argv: list[str]
    payload: str
    data: list[str]
    volumes: list[Any]  # to be released at the end


def prepare(
    records: FileRecords,
    task: dict[str, Any],
    scratch: str,
    home: str,
    uv: dict[str, str],
    note: Callable[[str], None],
) -> Ready:
    """`uv` are the settings of the package index, which may hold passwords and are never written down."""
    root = os.path.join(scratch, "project")
    os.makedirs(root, exist_ok=True)
    if task["tree"]:
        _unpack(records, task["tree"], root)
    python = _environment(records, task, home, uv, note)
    packages = [
        _package(records, item, os.path.join(scratch, "packages", str(number)))
        for number, item in enumerate(task["packages"])
    ]
    data = [_data(records, item, home) for item in task["data"]]
    volumes = _volumes(task["volumes"], data, home)
    for folder in (task["output_dir"], task["checkpoint_dir"]):
        _make(folder)
    cwd = os.path.join(root, task["cwd"]) if task["cwd"] else root
    os.makedirs(cwd, exist_ok=True)
    path = [os.path.normpath(os.path.join(root, entry)) for entry in task["path"]] + packages + task["extra_path"]
    argv = list(task["argv"])
    if argv and argv[0] in ("python", "python3"):
        argv[0] = python
    return Ready(python, cwd, path, argv, _payload(records, task["payload"]), data, volumes)


def _payload(records: FileRecords, payload: dict[str, Any]) -> str:
    if not payload:
        return ""
    path = records.local_path(names.blob(payload["digest"]))
    if path is None:
        raise NotReady(f"{names.blob(payload['digest'])} is not in the store {records.root}: {AGAIN}")
    return path


def _pack(records: FileRecords) -> Callable[[str], str]:
    def open_pack(blob: str) -> str:
        path = records.local_path(names.blob(blob))
        if path is None:
            raise Missing(f"{names.blob(blob)} is not in the store {records.root}")
        return path

    return open_pack


def _unpack(records: FileRecords, tree_digest: str, target: str) -> None:
    from kinetic_orchestration.agent import tree

    record = records.read(names.tree(tree_digest))
    if record is None:
        raise NotReady(f"{names.tree(tree_digest)} is not in the store {records.root}: {AGAIN}")
    try:
        tree.unpack(_manifest(record.data), _pack(records), target, tree_digest)
    except (tree.Damaged, Missing) as error:
        # Else it would be found there for ever, and nothing sent in its place.
        if pack := getattr(error, "pack", ""):
            discard(records, names.blob(pack))
        discard(records, names.tree(tree_digest))
        raise NotReady(f"{error}. It was removed from the store: {AGAIN}") from None


def _manifest(data: bytes) -> dict[str, Any]:
    from kinetic_orchestration.agent import tree

    try:
        manifest: dict[str, Any] = json.loads(data)
    except ValueError:
        raise tree.Damaged("the tree's manifest is no JSON: it was changed after it was sent") from None
    return manifest


def discard(records: FileRecords, name: str) -> None:
    """An object that is not what its name says."""
    with contextlib.suppress(OSError):
        records.delete(name)


def _environment(
    records: FileRecords, task: dict[str, Any], home: str, uv: dict[str, str], note: Callable[[str], None]
) -> str:
    wanted: dict[str, Any] | None = task["environment"]
    if not wanted or "lock" not in wanted:
        return str(task["python"])
    from kinetic_orchestration.agent import environment

    record = records.read(names.blob(wanted["lock"]))
    if record is None or digest.of_bytes(record.data) != wanted["lock"]:
        discard(records, names.blob(wanted["lock"]))
        raise NotReady(f"the lock {wanted['lock']} is not in the store, or its bytes differed: {AGAIN}")
    try:
        python = environment.ensure(
            record.data.decode(), wanted["lock"], root=os.path.join(home, "environments"),
            uv=wanted["uv"], python=wanted["interpreter"], env=environment.with_own(uv, wanted["settings"]), note=note,
        )  # fmt: skip
        environment.hold(python)  # for as long as this agent lives
    except environment.BuildFailed as error:
        raise NotReady(str(error)) from None
    return python


def _package(records: FileRecords, item: dict[str, str], folder: str) -> str:
    target = os.path.join(folder, item["at"])
    os.makedirs(target)
    _unpack(records, item["digest"], target)
    return folder


def _data(records: FileRecords, item: dict[str, str], home: str) -> str:
    """A folder or file of data, unpacked once on this machine and shared by all that read it."""
    import fcntl
    import shutil

    if item["here"]:
        return item["here"]
    root = os.path.join(home, "cache", "data", item["digest"])
    os.makedirs(root, exist_ok=True)
    content = os.path.join(root, "content")
    complete = os.path.join(root, "complete")
    if not os.path.exists(complete):
        with open(os.path.join(root, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(complete):
                shutil.rmtree(content, ignore_errors=True)
                os.makedirs(content)
                _unpack(records, item["digest"], content)
                with open(complete, "w", encoding="ascii"):
                    pass
    os.utime(root)
    return os.path.join(content, item["file"]) if item["file"] else content


def _make(folder: str) -> None:
    """What a job writes to is there before it starts; an address in a cloud needs no making."""
    if "://" in folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise NotReady(f"the output folder {folder} cannot be made: {error.strerror}") from None


def _volumes(wanted: dict[str, int], data: list[str], home: str) -> list[Any]:
    if not wanted:
        return []
    from kinetic_orchestration.agent import volumes

    try:
        return [volumes.Volume(home, path, data[index]) for path, index in wanted.items()]
    except volumes.Taken as error:
        raise NotReady(str(error)) from None
