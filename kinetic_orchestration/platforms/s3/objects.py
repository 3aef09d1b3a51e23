"""Objects on S3 under any names, which other programs read as they are: written once, listed, and copied by the server.

Errors are those of a store. It does not know what the objects are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.host.machine.s3 import records, refusals
from kinetic_orchestration.host.machine.s3.records import MOST_PARTS, PART, PARTS, Item, S3Records, field_of
from kinetic_orchestration.host.machine.s3.requests import Body
from kinetic_orchestration.host.machine.s3.signature import encoded
from kinetic_orchestration.platforms.s3.store import S3Store
from kinetic_orchestration.protocol.system.parallel import side_by_side


class S3Objects(S3Store):
    """The objects below `s3://bucket/prefix`. Writes have no tail, and names may have any parts."""

    def __init__(self, url: str) -> None:
        S3Records.__init__(self, url, plain=True)
        self.address = f"{self.requests.place.endpoint}/{url}"

    def items(self, prefix: str) -> Iterator[Item]:
        """Yield the objects whose names begin with `prefix`, with their ETags."""
        return self._listed(prefix, hidden=True)

    def is_encrypted_by_key(self, name: str) -> bool:
        """Return True if an object is encrypted by a key of a KMS or of its user: then its ETag says nothing of its
        content, and a copy has another one."""
        reply, _ = self._ask("HEAD", self._key(name))
        told = {field.lower(): value for field, value in reply.headers.items()}
        by = told.get("x-amz-server-side-encryption", "")
        return by.startswith("aws:kms") or "x-amz-server-side-encryption-customer-algorithm" in told

    def copy(self, source: S3Objects, origin: str, name: str, etag: str, size: int) -> None:
        """Let the server copy the object `origin` of another place as `name`, if it still has that ETag."""
        kept = {
            "x-amz-copy-source": encoded(f"/{source.requests.place.bucket}/{source._prefix}{origin}", path=True),
            "x-amz-copy-source-if-match": f'"{etag}"',
        }
        if size > records.COPIED:
            self._copy_parts(name, kept, size)
            return
        reply, _ = self._ask("PUT", self._key(name), headers=kept, check=lambda told: field_of(told, "ETag"))
        if reply.status != 412 and not refusals.read(reply).absent:  # then the source is another by now
            self._check(reply, "write", name)

    def _copy_parts(self, name: str, kept: dict[str, str], size: int) -> None:
        """Copy what is larger than one request may copy. The copy has no note: nobody here has read its content."""
        step = max(records.COPIED // 5, PART, -(-size // MOST_PARTS))
        key = self._key(name)
        reply, _ = self._ask("POST", key, [("uploads", "")], check=lambda told: field_of(told, "UploadId"))
        self._check(reply, "write", name)
        upload = ("uploadId", field_of(reply, "UploadId"))

        def send(number: int) -> str:
            span = {"x-amz-copy-source-range": f"bytes={(number - 1) * step}-{min(number * step, size) - 1}"}
            where = [("partNumber", str(number)), upload]
            reply, _ = self._ask("PUT", key, where, {**kept, **span}, check=lambda told: field_of(told, "ETag"))
            if reply.status == 412:  # the source is another by now
                return ""
            self._check(reply, "write", name)
            return field_of(reply, "ETag")

        done = False
        try:
            numbers = range(1, -(-size // step) + 1)
            etags = side_by_side(send, numbers, PARTS, name="kinetic-parts")
            if not all(etags):
                return
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
                for number, etag in zip(numbers, etags, strict=True)
            )
            whole = Body(f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode())
            reply, unsure = self._ask("POST", key, [upload], body=whole, check=lambda told: field_of(told, "ETag"))
            done = reply.status == 200 or (unsure and refusals.read(reply).code == "NoSuchUpload")
            if not done:
                self._check(reply, "write", name)
        finally:
            if not done:
                with contextlib.suppress(StoreError, OSError):
                    self._ask("DELETE", key, [upload], patience=0.0)

    def _key(self, name: str) -> str:
        return self._prefix + name
