"""Objects of a bucket on S3 that any program wrote, under any names: read, and never written. It has the verbs of
`bucket_records.Bucket` that a copy of data uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.bucket_records import NoObject
from kinetic_orchestration.host.machine.s3.records import S3Records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Objects(S3Records):
    def __init__(self, url: str) -> None:
        super().__init__(url, plain=True)

    def facts(self, name: str) -> dict[str, Any] | None:
        """Return the name and the size of an object; None if there is none."""
        found = self._facts(name)
        return None if found is None else {"name": name, "size": found.size}

    def listing(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the name and the size of all objects whose names begin with `prefix`."""
        for item in self._listed(prefix, hidden=True):
            yield {"name": item.name, "size": item.size}

    def fetch(self, name: str, path: str, most: int) -> bool:
        """Write an object to a file, whole or not at all; False if there is none. Raises TooLarge."""
        try:
            self.download(name, path, most=most)
        except NoObject:
            return False
        return True

    def _key(self, name: str) -> str:
        return name
