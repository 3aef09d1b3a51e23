"""Answers that do not end at once: the changes of objects that somebody watches, and a log that goes on.

Each is a generator of bytes, empty ones where nothing has happened for a while. It holds the store's lock only while it
looks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kinetic_orchestration.testing.kubernetes.api import answers
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import phase_of, uid_of, with_meta
from kinetic_orchestration.testing.kubernetes.api.store import Store

_LONGEST = 1800.0  # seconds of a watch for which nobody says how long
_TICK = 0.5
_ENDED = ("Succeeded", "Failed")

Select = Callable[[Sequence[Object]], Sequence[Object]]


def changes(
    store: Store,
    kind: Kind,
    namespace: str,
    select: Select,
    query: Mapping[str, str],
    shown: Callable[[Object], Object],
) -> Iterator[bytes]:
    """Return each change of the objects of a kind that `select` chooses, as a line of JSON.

    Args:
        store: The objects.
        kind: Theirs.
        namespace: Theirs; "" for all.
        select: Returns those that are watched.
        query: Of the request: since which version, for how long, and whether it begins with all that there are.
        shown: Returns an object as it is written.
    """
    until = time.monotonic() + float(query.get("timeoutSeconds") or _LONGEST)
    since = int(query.get("resourceVersion") or 0)
    begins_with_all = query.get("sendInitialEvents") == "true"
    if since and not begins_with_all and since < store.forgotten:
        told = f"too old resource version: {since} ({store.forgotten})"
        yield _line("ERROR", answers.refusal(410, "Expired", told).status)
        return
    known: dict[str, Object] = {}
    fresh = True
    while time.monotonic() < until:
        with store.changed:
            found = {uid_of(one): one for one in select(store.list(kind, namespace))}
            gone = [(uid, one) for uid, one in known.items() if uid not in found]
            version = store.version
            if fresh and since and not begins_with_all:
                known = {uid: one for uid, one in found.items() if int(one["metadata"]["resourceVersion"]) <= since}
                ended = select(store.gone(kind, namespace, since))
                gone = [(uid_of(one), one) for one in ended if uid_of(one) not in found]
            new = [one for uid, one in found.items() if known.get(uid) != one]
            if not new and not gone and not fresh:
                store.changed.wait(_TICK)
        for uid, one in gone:
            known.pop(uid, None)
            yield _line("DELETED", shown(with_meta(one, resourceVersion=str(version))))
        for one in new:
            yield _line("MODIFIED" if uid_of(one) in known else "ADDED", shown(one))
            known[uid_of(one)] = one
        if fresh and begins_with_all:
            note = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
            yield _line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": note})
        fresh = False
        if not new and not gone:
            yield b""


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def log(store: Store, find: Callable[[], Object | None], read: Callable[[], bytes], sent: int) -> Iterator[bytes]:
    """Return what a pod's container writes after its first so many bytes, until it is over.

    Args:
        store: The objects.
        find: Returns the pod, or None once it is gone.
        read: Returns the whole log.
        sent: How many bytes of it are known.
    """
    is_over = False
    while not is_over:
        with store.changed:
            pod = find()
            is_over = pod is None or phase_of(pod) in _ENDED
        data = read()
        yield data[sent:]
        sent = max(sent, len(data))
        if not is_over:
            with store.changed:
                store.changed.wait(_TICK)
