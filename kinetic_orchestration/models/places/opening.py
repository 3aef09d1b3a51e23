"""Opens a place by its address."""

from __future__ import annotations

import os

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.places.place import Place
from kinetic_orchestration.plan.configuration import store_address


def open_place(address: str | os.PathLike[str]) -> Place:
    """Return the place at a folder, `file://…`, `gs://bucket/folder` or `s3://bucket/folder`.

    Raises:
        UsageError: No place is kept at such an address.
    """
    text = os.fspath(address)
    if not isinstance(text, str) or not text:
        raise UsageError(f"{address!r} is no address: give a folder, gs://bucket/folder or s3://bucket/folder")
    if text.startswith(("gs:/", "s3:/")) and "://" not in text:
        raise UsageError(f"{text!r} has lost a slash, as it happens in pathlib: give the address as a text")
    where = store_address.resolve(text)
    scheme, separator, _ = where.partition("://")
    if not separator:
        from kinetic_orchestration.models.places.folder import Folder

        return Folder(os.path.normpath(where))
    if scheme == "gs":
        from kinetic_orchestration.models.places.cloud_storage import open_cloud_storage

        return open_cloud_storage(where)
    if scheme == "s3":
        from kinetic_orchestration.models.places.s3 import open_s3

        return open_s3(where)
    raise UsageError(f"{text!r} holds no models: give a folder, gs://bucket/folder or s3://bucket/folder")
