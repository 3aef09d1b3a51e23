"""Fetches content of a distant store to this host's disk: blobs by their name, and data by its address.

The reader of a blob checks its digest.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Damaged, TooLarge
from kinetic_orchestration.protocol.system.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping

SIDE_BY_SIDE = 8


class Blobs:
    """Files of blobs: the store's own where it has files, else copies in `folder`."""

    def __init__(self, records: Any, folder: str) -> None:
        self._records = records
        self._folder = folder

    def path(self, digest: str, most: int) -> str | None:
        """Return the file of a blob, or None if there is none. Raises TooLarge for one with more than `most` bytes,
        and Damaged.
        """
        if self._records.has_files:
            found: str | None = self._records.local_path(names.blob(digest))
            return found
        path = os.path.join(self._folder, digest)
        if os.path.exists(path):
            return path
        os.makedirs(self._folder, exist_ok=True)
        try:
            self._records.download(names.blob(digest), path, most=most)
        except FileNotFoundError:
            return None
        return path

    def forget(self, digest: str) -> None:
        """Delete the copy of a blob, so that it is fetched again when it is next requested."""
        if digest and not self._records.has_files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._folder, digest))

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Have them here before they are needed, several at once. What is missing, damaged or too large is found when
        it is asked for.
        """
        if self._records.has_files or len(sizes) < 2:
            return

        def bring(digest: str) -> None:
            with contextlib.suppress(Damaged, TooLarge):
                self.path(digest, sizes[digest])

        side_by_side(bring, list(sizes), SIDE_BY_SIDE, name="kinetic-blobs")


def copy_bucket(url: str, folder: str) -> str:
    """Copy the content of an address in a bucket to `folder`; return the path of the copy. Raises FileNotFoundError."""
    from kinetic_orchestration.host.machine.bucket_records import check_room

    bucket, (_, _, prefix) = buckets.open_objects(url), url.partition("://")[2].partition("/")
    exact = bucket.facts(prefix) if prefix and not prefix.endswith("/") else None
    inside = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    found = [exact] if exact else [item for item in bucket.listing(inside) if not item["name"].endswith("/")]
    if not found:
        raise FileNotFoundError(f"there is nothing at {url}")
    check_room(folder, sum(int(item["size"]) for item in found), url)
    top = os.path.join(folder, "content")

    def one(item: dict[str, Any]) -> None:
        below = os.path.basename(item["name"]) if exact else item["name"][len(inside) :]
        path = os.path.normpath(os.path.join(top, below))
        if not path.startswith(top + os.sep):
            raise FileNotFoundError(f"{item['name']!r} in {url} would lie outside of its own folder")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            there = bucket.fetch(item["name"], path, int(item["size"]))  # the size counted above
        except TooLarge:  # the owner has replaced it, and the new one is as good
            now = bucket.facts(item["name"])
            there = now is not None and bucket.fetch(item["name"], path, int(now["size"]))
        if not there:
            raise FileNotFoundError(f"{item['name']!r} in {url} was deleted meanwhile")

    side_by_side(one, found, SIDE_BY_SIDE, name="kinetic-data")
    bucket.close()
    return os.path.join(top, os.path.basename(exact["name"])) if exact else top
