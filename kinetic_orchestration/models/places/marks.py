"""Digests and checksums of a file of this machine, by the names that buckets give them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

_BLOCK: Final = 1 << 20


def of_file(path: str, algorithms: Collection[str]) -> dict[str, str]:
    """Read a file once and return the marks of these algorithms, without those that cannot be computed here.

    `crc32c` and `md5` are in base64, as Cloud Storage writes them; `etag` is the MD5 in hex, which an object of S3 has
    if it was written by one request.
    """
    hashers: dict[str, Any] = {}
    if "sha256" in algorithms:
        hashers["sha256"] = hashlib.sha256()
    if "md5" in algorithms or "etag" in algorithms:
        hashers["md5"] = hashlib.md5(usedforsecurity=False)
    if "crc32c" in algorithms and (checksum := _crc32c()) is not None:
        hashers["crc32c"] = checksum
    if not hashers:
        return {}
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK):
            for hasher in hashers.values():
                hasher.update(block)
    found = {name: hasher.digest() for name, hasher in hashers.items()}
    told = {name: base64.b64encode(digest).decode() for name, digest in found.items()}
    if "sha256" in found:
        told["sha256"] = found["sha256"].hex()
    if "md5" in found:
        told["etag"] = found["md5"].hex()
    return {name: told[name] for name in algorithms if name in told}


def _crc32c() -> Any | None:
    """Return a checksum of Cloud Storage, None where only the slow implementation is, which takes minutes."""
    import google_crc32c

    checksum: Any = google_crc32c.Checksum
    return checksum() if google_crc32c.implementation == "c" else None
