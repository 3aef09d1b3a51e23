"""A place in a bucket of S3, or of a server that speaks its API. Objects are copied by the server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.places import marks
from kinetic_orchestration.models.places.place import Place, check_file
from kinetic_orchestration.models.values import ModelFile
from kinetic_orchestration.platforms.s3.objects import S3Objects
from kinetic_orchestration.protocol.records.base import RecordsError
from kinetic_orchestration.protocol.system.parallel import side_by_side

_LOOKS: Final = 8  # at once


class S3:
    """A `Place` below a prefix of a bucket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.objects = S3Objects(address)
        self.store = f"{self.objects.requests.place.endpoint} s3://"

    def list(self, folder: str) -> Sequence[ModelFile]:
        prefix = f"{folder}/" if folder else ""
        return [
            ModelFile(item.name.removeprefix(prefix), item.size, {"etag": item.etag}, item.etag)
            for item in self.objects.items(prefix)
        ]

    def marked(self, folder: str, files: Sequence[ModelFile]) -> Sequence[ModelFile]:
        def mark(file: ModelFile) -> ModelFile:
            etag = file.marks["etag"]
            name = f"{folder}/{file.name}" if folder else file.name
            if "-" in etag or not self.objects.is_encrypted_by_key(name):
                return file
            return file._replace(marks={"etag": f"{etag}-kms"})  # as one in parts, no mark of the content

        return side_by_side(mark, files, _LOOKS, name="kinetic-etags")

    def read(self, name: str, limit: int) -> bytes | None:
        check_file(name)
        record = self.objects.read(name, limit=limit)
        return None if record is None else bytes(record.data)

    def create(self, name: str, data: bytes) -> bool:
        check_file(name)
        return self.objects.create(name, data) is not None

    def put(self, name: str, data: bytes) -> None:
        check_file(name)
        self.objects.put(name, data)

    def copy(self, source: Place, file: ModelFile, name: str) -> None:
        check_file(name)
        self.objects.copy(cast("S3", source).objects, file.name, name, file.generation, file.size)

    def fetch(self, name: str, path: str, size: int) -> None:
        check_file(name)
        self.objects.download(name, path, most=size)

    def send(self, path: str, name: str) -> None:
        check_file(name)
        self.objects.upload(name, path)

    def marks_of(self, path: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        return marks.of_file(path, wanted)

    def address_of(self, name: str) -> str:
        return f"{self.address}/{name}" if name else self.address


def open_s3(address: str) -> S3:
    """Open a place at `s3://bucket/folder`. Raises UsageError if the address has no bucket or no folder in it."""
    bucket, _, folder = address.removeprefix("s3://").rstrip("/").partition("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket) or not folder:
        raise UsageError(f"{address!r} is no folder of a bucket: write s3://bucket/folder")
    check_file(folder)
    try:
        return S3(f"s3://{bucket}/{folder}")
    except RecordsError as error:
        raise UsageError(str(error)) from None
