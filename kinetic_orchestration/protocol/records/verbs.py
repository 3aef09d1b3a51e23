"""The verbs of a record store, for whoever is handed one, wherever it is. Only type checkers import this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kinetic_orchestration.protocol.records.base import Entry, Record, Signal


class Records(Protocol):
    """Objects by name, each with a generation. Every verb raises OSError if the store refuses."""

    parallel: int
    """The number of calls that are worth having under way at once; 1 if a call takes microseconds."""
    has_files: bool
    """Each object is a file of this machine, which `local_path` names."""
    may_corrupt: bool
    """An object may arrive damaged, as not every answer has a checksum: `read_intact` reads it again."""

    root: str

    def create(self, name: str, data: bytes) -> int | None:
        """Write an object and return its generation; None if there is one of that name."""

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        """Replace the object of that generation and return the new one; None if it has another."""

    def put(self, name: str, data: bytes) -> int: ...

    def signal(self, name: str, data: bytes) -> int:
        """Write a small object that `signals` lists with its bytes."""

    def signals(self, prefix: str) -> Iterator[Signal]: ...

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """Return the object, or a part of it. Raises TooLarge."""

    def list(self, prefix: str) -> Iterator[Entry]: ...

    def delete(self, name: str) -> bool: ...

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Make a file an object; False if there is one of that name."""

    def download(self, name: str, path: str, *, most: int | None = None) -> None: ...

    def ring(self, text: str) -> bool:
        """Wake those who wait for news of a job."""

    def now(self) -> float:
        """Return the time by the store's clock."""
