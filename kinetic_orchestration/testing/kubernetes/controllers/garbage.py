"""The collection of objects without their owner, of namespaces with all that is in them, and of old events. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    amount,
    is_deleting,
    name_of,
    quantity,
    seconds,
    uid_of,
    with_status,
    without_finalizer,
)
from kinetic_orchestration.testing.kubernetes.api.rules.admission import used_of
from kinetic_orchestration.testing.kubernetes.api.rules.deletion import FOREGROUND
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Create, Delete, LetGo, Replace, View

_TOLD = 3600.0  # seconds that an event is kept since it was last told


def step(view: View) -> Iterator[Change]:
    everything = view.store.everything()
    living = {uid_of(found): is_deleting(found) and _waits(found) for _, found in everything}
    owned: set[str] = set()
    for kind, found in everything:
        owners = found["metadata"].get("ownerReferences") or ()
        owned |= {owner["uid"] for owner in owners}
        if owners and not is_deleting(found) and all(living.get(owner["uid"], True) for owner in owners):
            foreground = any(living.get(owner["uid"]) for owner in owners)
            yield Delete(kind, found, "Foreground" if foreground else "Background")
    for kind, found in everything:
        if is_deleting(found) and _waits(found) and uid_of(found) not in owned:
            yield LetGo(kind, without_finalizer(found, FOREGROUND))
    yield from _namespaces(view)
    yield from _quotas(view)
    for event in view.all(kinds.EVENTS):
        if view.now - max(map(seconds, (event["metadata"]["creationTimestamp"], event.get("lastTimestamp")))) > _TOLD:
            yield Delete(kinds.EVENTS, event)


def _waits(found: Object) -> bool:
    return FOREGROUND in (found["metadata"].get("finalizers") or ())


def _namespaces(view: View) -> Iterator[Change]:
    for found in view.all(kinds.NAMESPACES):
        name = name_of(found)
        if not is_deleting(found):
            if view.get(kinds.ACCOUNTS, name, "default") is None:
                account = {"metadata": {"name": "default", "namespace": name}}
                yield Create(kinds.ACCOUNTS, account, found)
            continue
        left = [(kind, one) for kind in kinds.ALL if kind.namespaced for one in view.all(kind, name)]
        yield from (Delete(kind, one) for kind, one in left if not is_deleting(one))
        if not left:
            yield LetGo(kinds.NAMESPACES, found)


def _quotas(view: View) -> Iterator[Change]:
    for found in view.all(kinds.QUOTAS):
        hard = found["spec"]["hard"]
        used = {name: amount(count) for name, count in used_of(view.store, found).items()}
        told = {name: amount(quantity(value)) for name, value in hard.items()}
        yield Replace(kinds.QUOTAS, with_status(found, hard=told, used=used))
