"""Opens places in buckets by their addresses. Imports only the kind that is asked for."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from typing import Any

SCHEMES = ("gs://", "s3://")


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

    return Bucket(name)


def _open(address: str, *, plain: bool) -> Any:
    if address.startswith("s3://"):
        from kinetic_orchestration.host.machine.s3.records import S3Records

        return S3Records(address, plain=plain)
    from kinetic_orchestration.host.machine.bucket_records import CloudRecords

    return CloudRecords(address)
