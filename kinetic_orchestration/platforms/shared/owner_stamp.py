"""The owner of a store: the first process that opens a deployment's prefix stamps it, and another's stamp is refused.

It knows the contents of a stamp, and not how a store keeps it.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING

from kinetic_orchestration.errors import NewerWire, StoreError, UsageError
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.records import STAMP
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record, check_name

if TYPE_CHECKING:
    from kinetic_orchestration.platforms.store import Store

_JOB = re.compile(rf"{names.JOBS}job-[0-9a-z-]+/(in|out)/")


def check_deployment(deployment: str) -> None:
    """Raise UsageError unless the name can be one part of every object's name."""
    try:
        if "/" in deployment:
            raise ValueError
        check_name(deployment)
    except ValueError:
        raise UsageError(
            f"{deployment!r} cannot be a deployment: it names a folder of the store, so it has no slash and "
            "does not begin with a dot."
        ) from None


def new(deployment: str, created: float, checked: str) -> bytes:
    """The bytes of a stamp. `checked` names the place where the store's guarantees were tested."""
    fields = {"deployment": deployment, "created": created, "stamp": os.urandom(16).hex(), "checked": checked}
    return wire.encode(fields)


def settle(store: Store, url: str, record: Record | None, deployment: str, checked: str) -> dict[str, object]:
    """Return the fields of the stamp that was read. A damaged one is set aside, and the store is stamped again if it
    holds jobs: only this deployment's can have this prefix.
    """
    data = b"" if record is None else record.data
    try:
        wire.fields_of(data, STAMP)
    except wire.Newer:
        pass
    except wire.Unreadable as unreadable:
        if record is not None and _has_jobs(store):
            kept = f"{names.DEPLOYMENT}.damaged"
            store.create(kept, data)
            store.swap(names.DEPLOYMENT, new(deployment, store.now(), checked), record.generation)
            warn_once(
                f"{names.DEPLOYMENT} in {url} was damaged ({unreadable}): its bytes are kept in {kept}, and the store "
                f"is stamped anew as that of the deployment {deployment!r}, whose jobs it holds"
            )
            record = store.read(names.DEPLOYMENT)
            data = b"" if record is None else record.data
    return read(url, data, deployment)


def _has_jobs(store: Store) -> bool:
    return any(_JOB.match(entry.name) for entry in itertools.islice(store.list(names.JOBS), 100))


def read(url: str, data: bytes, deployment: str) -> dict[str, object]:
    """The fields of a stamp, once it is known to be this deployment's."""
    try:
        fields = wire.fields_of(data, STAMP, f"{url}/{names.DEPLOYMENT}")
    except wire.Newer as newer:
        raise NewerWire(f"{newer}.") from None
    except wire.Unreadable as unreadable:
        raise StoreError(
            f"{unreadable}, so it is not known whose store this is. Restore it, or remove it if the store is yours."
        ) from None
    if fields.get("deployment") != deployment:
        raise StoreError(
            f"{url} is the store of the deployment {fields.get('deployment')!r}, not of {deployment!r}: see "
            f"{names.DEPLOYMENT} there. Give that deployment, or another store with KINETIC_STORE."
        )
    return fields
