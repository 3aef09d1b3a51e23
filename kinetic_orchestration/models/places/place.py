"""The protocol of a place that holds model directories, and the rule of its names.

Versions of a model are folders in a place; objects are created and never changed, except for aliases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.values import ModelFile

_PART_LIMIT = 255
_NAME_LIMIT = 900  # bytes: an object's whole name has at most 1,024


class Place(Protocol):
    """A folder of this machine, or a prefix of a bucket. Names are relative to it."""

    address: str
    """Address of the place, as users write it."""
    store: str
    """Text that is the same for two places only if one can copy from the other without this machine's help."""

    def list(self, folder: str) -> Sequence[ModelFile]:
        """Return all files below a folder, by their names in it, with the marks that cost no read."""

    def marked(self, folder: str, files: Sequence[ModelFile]) -> Sequence[ModelFile]:
        """Return the files with the marks that a digest covers, which may take a read of all their bytes."""

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a file, None if it does not exist. Raises StoreError if it has more bytes."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file with its content at once; False if the name is taken."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file with its content at once, over any of that name."""

    def copy(self, source: Place, file: ModelFile, name: str) -> None:
        """Copy a file of another place of the same store, without its bytes passing through this machine's memory.

        A file that has the name stays as it is. If the source is another one by now, nothing is written.
        """

    def fetch(self, name: str, path: str, size: int) -> None:
        """Write a file of `size` bytes to this machine's disk."""

    def send(self, path: str, name: str) -> None:
        """Create a file from one of this machine's disk; one that has the name stays as it is."""

    def marks_of(self, path: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        """Compute of a file of this machine those marks that a file of this place has, as far as they can be."""

    def address_of(self, name: str) -> str:
        """Return the whole address of a file or a folder."""


def check_file(name: str) -> None:
    """Raise UsageError for a name that leads out of its place, or that not every place can hold."""
    parts = name.split("/")
    bad = any(part in ("", ".", "..") or len(part.encode("utf-8", "surrogateescape")) > _PART_LIMIT for part in parts)
    try:
        too_long = len(name.encode()) > _NAME_LIMIT
    except UnicodeEncodeError:
        bad = too_long = True
    if bad or too_long or "\\" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be a file of a model: give it a name of up to {_NAME_LIMIT} bytes of printable letters, "
            "without a backslash, and with parts that are neither empty nor dots"
        )
