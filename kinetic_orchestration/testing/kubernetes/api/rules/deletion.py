"""The end of objects of an emulated cluster: at once, after a grace, or once those who hold them let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import is_deleting, phase_of, stamp, with_meta, with_status
from kinetic_orchestration.testing.kubernetes.api.store import Store

FOREGROUND = "foregroundDeletion"  # finalizer: what it owns goes first
_ENDED = ("Succeeded", "Failed")


def delete(store: Store, kind: Kind, found: Object, *, grace: float | None = None, propagation: str = "") -> Object:
    """Delete an object, and return it as it is then. `grace`: seconds for a pod; None for its own."""
    seconds = _grace(found, grace) if kind is kinds.PODS else 0
    if propagation == "Orphan":
        _orphan(store, found["metadata"]["uid"])
    if propagation == "Foreground" and FOREGROUND not in _held(found):
        found = with_meta(found, finalizers=[*_held(found), FOREGROUND])
    if kind is kinds.NAMESPACES:
        found = with_status(found, phase="Terminating")
    if not seconds and not _held(found) and kind is not kinds.NAMESPACES:
        store.remove(kind, found)
        return found
    return store.replace(kind, _going(found, seconds, is_pod=kind is kinds.PODS))


def let_go(store: Store, kind: Kind, found: Object) -> None:
    """Store an object that holds itself less; it goes if nothing holds it any more."""
    waits = kind is kinds.PODS and found["metadata"].get("deletionGracePeriodSeconds", 0) > 0
    if is_deleting(found) and not _held(found) and not waits:
        store.remove(kind, found)
    else:
        store.replace(kind, found)


def _orphan(store: Store, uid: str) -> None:
    """Let what an object owns stay, as nobody's."""
    for kind, one in store.dependents(uid):
        owners = [owner for owner in one["metadata"]["ownerReferences"] if owner["uid"] != uid]
        store.replace(kind, with_meta(one, ownerReferences=owners or None))


def _held(found: Mapping[str, Any]) -> list[str]:
    return list(found["metadata"].get("finalizers") or ())


def _grace(pod: Object, asked: float | None) -> int:
    """Seconds that a pod has: none without a node, or once it has ended; never more than before."""
    if not pod["spec"].get("nodeName") or phase_of(pod) in _ENDED:
        return 0
    own = pod["metadata"].get("deletionGracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", 30))
    return int(own if asked is None else min(asked, own) if is_deleting(pod) else asked)


def _going(found: Object, seconds: int, *, is_pod: bool) -> Object:
    if is_deleting(found) and found["metadata"].get("deletionGracePeriodSeconds", 0) <= seconds:
        return found
    since = found["metadata"].get("deletionTimestamp") or stamp()
    return with_meta(found, deletionTimestamp=since, deletionGracePeriodSeconds=seconds if is_pod else None)
