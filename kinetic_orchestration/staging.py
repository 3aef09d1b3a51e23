"""STAGE: what a job needs, made content-addressed in the store. A blob that is there already is not sent again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetic_orchestration.agent import names
from kinetic_orchestration.packaging import tree
from kinetic_orchestration.packaging.bundle import Bundle, Item
from kinetic_orchestration.stores import Store
from kinetic_orchestration.values import Staged

STALE = 86400.0  # the reaper takes nothing that has been young within many times this


def stage(bundle: Bundle, store: Store) -> Staged:
    """Blobs first, each whole or not at all; the spec that names them is written last, by whoever admits the job."""
    sent = 0
    payload = {}
    if bundle.call is not None:
        if store.upload(names.blob(bundle.call.digest), str(bundle.spool / "call"), move=True):
            sent += bundle.call.size
        payload = {"digest": bundle.call.digest, "size": bundle.call.size}

    def send(item: Item) -> str:
        nonlocal sent
        if item.snapshot is None:
            return ""
        uploaded = tree.upload(item.snapshot, store, spool=bundle.spool)
        sent += uploaded.uploaded_bytes
        keep(store, names.tree(uploaded.digest))
        return uploaded.digest

    project = send(Item(bundle.project))
    data = tuple({"digest": send(item), "file": item.file, "here": item.here} for item in bundle.data)
    packages = tuple({"digest": send(item), "at": item.at} for item in bundle.packages)
    environment = {}
    if bundle.environment.lock is not None:
        lock = bundle.environment.lock
        if store.create(names.blob(lock.digest), lock.text.encode()) is None:
            keep(store, names.blob(lock.digest))
        settings = dict(bundle.environment.settings)
        environment = {"lock": lock.digest, "interpreter": lock.interpreter, "uv": lock.uv, "settings": settings}
    return Staged(
        payload=payload,
        tree=project,
        cwd=bundle.cwd,
        path=bundle.path,
        extra_path=bundle.extra_path,
        data=data,
        packages=packages,
        environment=environment,
        python=bundle.environment.interpreter,
        size=sum(item.snapshot.size for item in (Item(bundle.project), *bundle.packages) if item.snapshot is not None),
        sent=sent,
    )


def keep(store: Store, name: str) -> None:
    """Make an object young again before it is relied on, so that no reaper takes it from under a submission."""
    found = store.read(name, 0, 1)
    if found is not None and store.now() - found.updated > STALE and (whole := store.read(name)) is not None:
        store.put(name, whole.data)


@contextmanager
def staging_folder(store: Store, home: Path) -> Iterator[Path]:
    """A folder on the store's own file system where it has one, so that an upload is a rename."""
    parent = home / "staging"
    if "://" not in store.url:
        parent = Path(store.url) / ".staging"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
