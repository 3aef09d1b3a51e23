"""STAGE: what a job needs, made content-addressed in the store. A blob that is there already is not sent again."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kinetic_orchestration.packaging.bundle import Bundle, Item
from kinetic_orchestration.packaging.call.pickling import PackedCall
from kinetic_orchestration.packaging.requirements.locks import Environment
from kinetic_orchestration.packaging.reuse import keep
from kinetic_orchestration.packaging.source import tree
from kinetic_orchestration.plan.values import Staged
from kinetic_orchestration.platforms.store import Store, staging_parents
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content.verified import deliver
from kinetic_orchestration.protocol.system.parallel import at_once
from kinetic_orchestration.protocol.wire import task
from kinetic_orchestration.protocol.wire.task import DataPiece, Package, Payload


def stage(bundle: Bundle, store: Store, retention: float, home: Path) -> Staged:
    """Upload blobs first, each whole or not at all; the spec that names them is written last, by the caller that admits
    the job.

    Independent requests are made concurrently: the time depends on the number of round trips.
    """
    trees = [Item(bundle.project), *bundle.data, *bundle.packages]
    work: list[Callable[[], tuple[str, int]]] = [partial(_send, item, bundle.spool, store, retention) for item in trees]
    payload: Payload | None = None
    if bundle.call is not None:
        payload = Payload(bundle.call.digest, bundle.call.size)
        work.append(partial(_send_call, bundle.call, bundle.spool / "call", store, retention, home))
    locks = [one.lock for one in bundle.environments if one.lock is not None]
    work += [partial(_send_bytes, lock.digest, lock.text.encode, store, retention) for lock in locks]
    wheels = dict(wheel for lock in locks for wheel in lock.wheels)
    work += [partial(_send_wheel, digest, path, store, retention) for digest, path in wheels.items()]
    if bundle.agent is not None:
        work.append(partial(_send_bytes, bundle.agent.digest, bundle.agent.data, store, retention))
    tools: dict[str, str] = {}
    if bundle.tools:
        work.append(partial(_look_for_tools, bundle.tools, store, retention, tools))
    sent = at_once(work, store.parallel)
    project, *digests = (digest for digest, _ in sent[: len(trees)])
    places = iter(digests)
    return Staged(
        payload=payload,
        tree=project,
        cwd=bundle.cwd,
        path=bundle.path,
        extra_path=bundle.extra_path,
        data=tuple(DataPiece(next(places), item.file, item.here, item.url) for item in bundle.data),
        packages=tuple(Package(next(places), item.at) for item in bundle.packages),
        environment=_described(bundle.environment),
        python=bundle.environment.interpreter,
        agent=bundle.agent.digest if bundle.agent is not None else "",
        tools=tools,
        beside=dict(bundle.beside),
        size=sum(item.snapshot.size for item in (Item(bundle.project), *bundle.packages) if item.snapshot is not None),
        sent=sum(size for _, size in sent),
        others=tuple(found for one in bundle.others if (found := _described(one)) is not None),
        builds=bundle.builds,
    )


def _look_for_tools(
    wanted: Mapping[str, str], store: Store, retention: float, there: dict[str, str]
) -> tuple[str, int]:
    from kinetic_orchestration.packaging.requirements.tools import present

    there.update(present(store, wanted, retention))
    return "", 0


def _described(environment: Environment) -> task.Environment | None:
    """The description of its environment for a host."""
    lock = environment.lock
    if lock is None:
        return None
    described = task.Environment(lock.digest, lock.interpreter, lock.uv, dict(environment.settings))
    if lock.interpreter:
        return described
    return described._replace(
        python=environment.python,
        platform=lock.platform,
        packages=lock.packages,
        secrets=tuple(environment.secrets),
        uv_itself=environment.uv_itself,
        warm=tuple(re.findall(r"^(jax)==", lock.text, re.MULTILINE)),
        compiles=dict(re.findall(r"^(jaxlib|libtpu|vllm(?:-[a-z]+)?)==(\S+)", lock.text, re.MULTILINE)),
    )


def _send(item: Item, spool: Path, store: Store, retention: float) -> tuple[str, int]:
    if item.pinned is not None:
        return _send_bytes(item.pinned.digest, item.pinned.encode, store, retention)
    if item.snapshot is None:
        return "", 0
    uploaded = tree.upload(item.snapshot, store, spool=spool, retention=retention)
    return uploaded.digest, uploaded.uploaded_bytes


def _send_call(call: PackedCall, path: Path, store: Store, retention: float, home: Path) -> tuple[str, int]:
    name = names.blob(call.digest)
    if store.metered:  # most calls are new, and of others it has to be known how old they are: both at once
        looks = [lambda: store.upload(name, str(path)), lambda: keep(store, name, retention) is not None]
        new, there = at_once(looks, 2)
        new = new or (not there and store.upload(name, str(path)))
    else:
        new = not keep(store, name, retention) and deliver(store, name, str(path), call.digest, home)
    return call.digest, call.size if new else 0


def _send_bytes(digest: str, read: Callable[[], bytes], store: Store, retention: float) -> tuple[str, int]:
    if keep(store, names.blob(digest), retention) or store.create(names.blob(digest), data := read()) is None:
        return digest, 0
    return digest, len(data)


def _send_wheel(digest: str, path: str, store: Store, retention: float) -> tuple[str, int]:
    name = names.wheel(digest, os.path.basename(path))
    if keep(store, name, retention) or not store.upload(name, path):
        return digest, 0
    return digest, os.path.getsize(path)


@contextmanager
def staging_folder(store: Store, home: Path) -> Iterator[Path]:
    """A folder for what is about to be uploaded, which is removed at the end of the block."""
    parent = staging_parents(store, home)[0]
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
