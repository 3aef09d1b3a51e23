"""The location of the store's bucket: requested once in a process, by one request for its metadata.

`regions` interprets it.
"""

from __future__ import annotations

import threading

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.platforms.google.rest.client import google

_known: dict[tuple[str, str], Location] = {}
_lock = threading.Lock()


def bucket_of(settings: Settings) -> str:
    return settings.store.removeprefix("gs://").partition("/")[0]


def location_of(settings: Settings) -> Location:
    """The bucket's location. Raises BackendError with the reason and the setting to use instead. A failure is not
    cached."""
    bucket = bucket_of(settings)
    key = (settings.storage_emulator, bucket)
    with _lock:
        if key in _known:
            return _known[key]
    with google(settings) as api:
        params = {"fields": "location,locationType,customPlacementConfig"}
        if settings.quota_project:
            params["userProject"] = settings.quota_project
        answer = api.call("GET", "storage", f"storage/v1/b/{bucket}", params=params)
    if not answer.ok:
        raise _unknown(bucket, f"its metadata cannot be read ({answer.status_of().message})")
    found = regions.location(bucket, answer.body)
    if found is None:
        raise _unknown(bucket, f"{answer.body.get('location')!r} is no location known here")
    with _lock:
        return _known.setdefault(key, found)


def _unknown(bucket: str, why: str) -> BackendError:
    return BackendError(
        f"where the bucket {bucket} lies is not known: {why}. Without that, no zone is chosen for you, since data that "
        "crosses regions is billed. Name the zones (KINETIC_ZONES=…, or cloud=TpuVm(zones=[…])); or let it be read: "
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=user:YOU "
        "--role=roles/storage.legacyBucketReader",
        "configuration",
    )
