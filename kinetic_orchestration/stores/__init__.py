"""Where what is shipped lies: one Protocol, looked up lazily by the scheme of a store's address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kinetic_orchestration.agent.records import Entry, Record


class Store(Protocol):
    """Put-if-absent and compare-and-swap by generation, ranged reads, listing by prefix, delete.

    Names are relative to one deployment's prefix. Every verb is synchronous and bounded; a condition that does
    not hold is an answer (None, False), never an exception.
    """

    url: str

    def create(self, name: str, data: bytes) -> int | None:
        """Write `name` if it is absent; its generation, or None if somebody was first."""

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; the new one, or None."""

    def put(self, name: str, data: bytes) -> int:
        """Write `name` whatever is there. For beats, of which only the newest matters."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> Record | None:
        """The bytes from start to end (as in a slice), or None if there is no such object."""

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose name begins with `prefix`, in the order of their names."""

    def delete(self, name: str) -> bool:
        """True if this call deleted it, False if it was not there."""

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; False if somebody was first. `move` lets the file be taken instead of copied."""

    def download(self, name: str, path: str) -> None:
        """Write the object to a new file. Raises StoreError if it is not there."""

    def local_path(self, name: str) -> str | None:
        """Where the object can be read as a file without a download, if it can."""

    def now(self) -> float:
        """The store's own time, by which every age is judged."""
