"""The protocol of a store, in which everything that is shipped lies."""

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
        """Write `name` if it is absent; its generation, or None if somebody was first."""

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; the new one, or None."""

    def put(self, name: str, data: bytes) -> int:
        """Write `name` whatever is there. For beats, of which only the newest matters."""

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
        """What `read` tells of each, asked for side by side where asking is a request."""

    def find(self, name: str) -> Entry | None:
        """What a listing would tell of one object, or None if it is not there."""

    def renew(self, name: str) -> bool:
        """Make an object as young as if it were written now, whatever its size: its bytes do not travel.

        False if it was not there. Only for what is named by its content, of which every writing is the same.
        """

    def written_at(self, generation: int) -> float:
        """When the object was written whose write has given this generation just now."""

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose name begins with `prefix`, in the order of their names."""

    def delete(self, name: str) -> bool:
        """True if this call deleted it, False if it was not there."""

    def sweep(self, older_than: float = 86400.0) -> int:
        """Delete what uploads that were killed so many seconds ago left half-done; how many objects that was."""

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; False if somebody was first.

        With `move` the file may be taken instead of copied, and is gone afterwards, whoever was first.
        """

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write the object to the file `path`, whole or not at all. Raises StoreError if it is not there, or has more
        than `most` bytes: by default, than an object of its name has (`names.file_limit_of`).
        """

    def local_path(self, name: str) -> str | None:
        """Where the object can be read as a file without a download, if it can."""

    def bell(self) -> Bell | None:
        """Return what hears every ring of this store at nearly no cost; None if changes are found by listing alone."""

    def ring(self, text: str) -> object:
        """Wake whoever follows `text`, a job or a group, if this store can: a hint, never the truth."""

    def hint(self, name: str, data: bytes) -> bool:
        """A signal in one short try, for what is said again anyway. False if it was not given: it never raises."""

    def now(self) -> float:
        """The store's own time, by which every age is judged."""


def too_large(name: str, url: str, limit: int, size: int | None = None) -> StoreError:
    """Refuse an object than which nothing of this package's making is as large."""
    return StoreError(str(TooLarge(name, url, limit, size)))
