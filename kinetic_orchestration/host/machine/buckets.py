"""Opens places in buckets by their addresses. Imports only the kind that is asked for."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SCHEMES = ("gs://", "s3://")
ORDERS = "KINETIC_ORDERS"  # the variable that a pod alone has


def in_bucket(place: str) -> bool:
    """Return True if an address is of a place in a bucket."""
    return place.startswith(SCHEMES)


def open_store(address: str) -> Any:
    """Return the records of a store in a bucket."""
    return _open(address, plain=False)


def open_place(address: str) -> Any:
    """Return the records of a place in a bucket whose objects other programs may read as well."""
    return _open(address, plain=True)


def open_objects(address: str) -> Any:
    """Return the objects of the bucket that an address begins with, whoever wrote them, by their whole names."""
    name = address[len("gs://") :].partition("/")[0]
    if address.startswith("s3://"):
        from kinetic_orchestration.host.machine.s3.objects import Objects

        return Objects(f"s3://{name}")
    from kinetic_orchestration.host.machine.bucket_records import Bucket

    return Bucket(name, _advice())


def _open(address: str, *, plain: bool) -> Any:
    if address.startswith("s3://"):
        from kinetic_orchestration.host.machine.s3.records import S3Records

        return S3Records(address, plain=plain)
    from kinetic_orchestration.host.machine.bucket_records import CloudRecords

    return CloudRecords(address, _advice())


def _advice() -> Callable[[str], str] | None:
    """Return what a pod says of its account, which has another name than its node's; None on another machine."""
    if ORDERS not in os.environ:
        return None
    from kinetic_orchestration.host.machine.pod.account import advise

    return advise
