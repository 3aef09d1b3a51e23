"""Whose store it is: the first who opens a deployment's prefix stamps it, and another's stamp is refused.

It knows what a stamp says, and not how a store keeps it.
"""

from __future__ import annotations

import os

from kinetic_orchestration.agent import names, wire
from kinetic_orchestration.agent.records import check_name
from kinetic_orchestration.errors import NewerWire, StoreError, UsageError
from kinetic_orchestration.records import STAMP


def check_deployment(deployment: str) -> None:
    """Raise UsageError unless the name can be one part of every object's name."""
    try:
        check_name(deployment)
    except ValueError:
        is_name = False
    else:
        is_name = "/" not in deployment
    if not is_name:
        raise UsageError(
            f"{deployment!r} cannot be a deployment: it names a folder of the store, so it has no slash and "
            "does not begin with a dot."
        )


def new(deployment: str, created: float, checked: str) -> bytes:
    """The bytes of a stamp. `checked` says where the store's guarantees were tried out."""
    fields = {"deployment": deployment, "created": created, "stamp": os.urandom(16).hex(), "checked": checked}
    return wire.encode(fields)


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
