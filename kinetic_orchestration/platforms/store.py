"""The protocol of a store, which holds everything that clients and hosts exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.protocol.records.base import Entry, Record, Signal, TooLarge
from kinetic_orchestration.protocol.records.files import Bell


class Store(Protocol):
    """Put-if-absent and compare-and-swap by generation, ranged reads, listing by prefix, delete.

    Names are relative to one deployment's prefix. Every verb is synchronous and bounded; a condition that
    does not hold is an answer (None, False), never an exception.
    """

    url: str
    """What a name of this store is relative to: the folder or prefix of one deployment."""
    address: str
    """Where it is in all the world: two stores of the same address are one."""
    caller: object
    """Who asks there: its credentials, which are the same object for the same caller; None where nobody is asked."""
    remote: bool
    """Whether others may write there, so that nothing counts without proof."""
    metered: bool
    """Each call is a request that takes milliseconds and is billed: callers ask only for what may be new."""
    parallel: int
    """How many calls may usefully be under way at once; 1 if a call takes microseconds."""
    can_append: bool
    """Objects may grow. If False, an object that was read once changes only by a new generation."""

    def create(self, name: str, data: bytes) -> int | None:
        """Write `name` if it is absent; its generation, or None if another writer was first."""

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; the new one, or None."""

    def put(self, name: str, data: bytes) -> int:
        """Write `name` regardless of its current state. For heartbeats, of which only the newest matters."""

    def signal(self, name: str, data: bytes) -> int:
        """A put of a few hundred bytes that come with a listing, at no request more."""

    def signals(self, prefix: str) -> Iterator[Signal]:
        """All signals whose name begins with `prefix`, with their bytes, in the order of their names."""

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """The bytes from start to end (as in a slice), or None if there is no such object.

        To the end of an object that has more than `limit` bytes from there (by default, than a record of its name has:
        `names.limit_of`) nothing is read: StoreError.
        """

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        """Read several objects like `read`, concurrently if a read is a request."""

    def find(self, name: str) -> Entry | None:
        """Return the listing entry of one object, or None if it does not exist."""

    def renew(self, name: str) -> bool:
        """Reset an object's age as if it were written now, regardless of its size: its bytes are not sent.

        False if it does not exist. Only for objects named by their content, for which every write is the same.
        """

    def written_at(self, generation: int) -> float:
        """Return the write time of the object whose write has just given this generation."""

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose name begins with `prefix`, in the order of their names."""

    def delete(self, name: str) -> bool:
        """True if this call deleted it, False if it was not there."""

    def sweep(self, older_than: float = 86400.0) -> int:
        """Delete the leftovers of uploads that were killed that many seconds ago; the number of objects."""

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; False if another writer was first.

        With `move` the file may be taken instead of copied, and is gone afterwards in both cases.
        """

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write the object to the file `path`, whole or not at all. Raises StoreError if it is not there, or has more
        than `most` bytes: by default, than an object of its name has (`names.file_limit_of`).
        """

    def local_path(self, name: str) -> str | None:
        """Return the path of the object's file if it can be read without a download."""

    def bell(self) -> Bell | None:
        """Return what hears every ring of this store at nearly no cost; None if changes are found by listing alone."""

    def ring(self, text: str) -> object:
        """Wake the followers of `text`, a job or a group, if this store can: a hint without guarantee."""

    def hint(self, name: str, data: bytes) -> bool:
        """Send a signal in one short try, for a message that is repeated anyway. False if it was not sent: it never
        raises."""

    def now(self) -> float:
        """The store's own time, by which every age is judged."""


def too_large(name: str, url: str, limit: int, size: int | None = None) -> StoreError:
    """Refuse an object than which nothing of this package's making is as large."""
    return StoreError(str(TooLarge(name, url, limit, size)))
