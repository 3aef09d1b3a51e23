"""The protocol of a store, which holds everything that clients and hosts exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.protocol.records.base import Entry, Record, Signal, TooLarge
from kinetic_orchestration.protocol.records.files import Bell


class Store(Protocol):
    """Objects with put-if-absent and compare-and-swap by generation, ranged reads, listing by prefix, and deletion.

    Names are relative to the prefix of one deployment. Every operation is synchronous and bounded in time. A condition
    that does not hold is a result (None, False) and never an exception; every other refusal is a StoreError, and
    Unreachable if the store did not answer.
    """

    url: str
    """Address to which names are relative: the folder or prefix of one deployment."""
    address: str
    """Address that is the same for two stores only if they are one."""
    caller: object
    """The credentials, one object for each account that sends requests; None if no request is sent."""
    trusted: bool
    """Only this user and those whom the user admits can write here, so that what is read may be run without further
    proof. A store that cannot tell says False."""
    metered: bool
    """Each call is a request that takes milliseconds and is billed: callers ask only for what may be new."""
    parallel: int
    """The number of calls that are worth having under way at once; 1 if a call takes microseconds."""
    can_append: bool
    """Objects may grow. If False, an object that was read once changes only by a new generation."""

    @property
    def folder(self) -> str | None:
        """The folder of this machine that holds the objects as files; None if there is none."""

    def create(self, name: str, data: bytes) -> int | None:
        """Write an object if its name is free.

        Args:
            name: The object's name.
            data: Its content.

        Returns:
            Its generation, or None if the name is taken.
        """

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        """Replace an object if its generation is unchanged.

        Args:
            name: The object's name.
            data: Its new content.
            generation: The generation that the caller has read.

        Returns:
            The new generation, or None if another process has replaced or deleted the object.
        """

    def put(self, name: str, data: bytes) -> int:
        """Write an object unconditionally. For beats, of which only the newest matters.

        Args:
            name: The object's name.
            data: Its content.

        Returns:
            Its generation.
        """

    def signal(self, name: str, data: bytes) -> int:
        """Write an object of a few hundred bytes whose content is returned with a listing (`signals`), without a
        request for each.

        Args:
            name: The object's name.
            data: Its content.

        Returns:
            Its generation.
        """

    def signals(self, prefix: str) -> Iterator[Signal]:
        """Return all signals whose names begin with `prefix`, with their content, ordered by name."""

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """Read an object, or a part of it.

        Args:
            name: The object's name.
            start: First byte, as in a slice.
            end: End of the range, as in a slice; None for the end of the object.
            limit: Bytes that the part from `start` to the end may have at most; by default the limit of a record of
                this name (`names.limit_of`). Without an `end`, nothing is read of an object that has more.

        Returns:
            The bytes with generation and time, or None if the object does not exist.

        Raises:
            StoreError: The object is larger than `limit`, or the store refused.
        """

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        """Read several objects, concurrently where a read is a request.

        Args:
            names: The objects' names.

        Returns:
            The result of `read` for each, in the same order.
        """

    def find(self, name: str) -> Entry | None:
        """Return the listing entry of one object, or None if it does not exist."""

    def renew(self, name: str) -> bool:
        """Reset the age of an object to zero, without transferring its content.

        Only for objects that are named by their content, which every writer writes alike.

        Args:
            name: The object's name.

        Returns:
            False if it does not exist.
        """

    def written_at(self, name: str, generation: int) -> float:
        """Return the time at which the object was written whose write has just returned this generation."""

    def list(self, prefix: str, *, last: str = "") -> Iterator[Entry]:
        """Return the entries of all objects whose names begin with `prefix`, ordered by name.

        Args:
            prefix: The beginning of their names.
            last: The last part of their names, behind a `/`; by default any. A server that can returns no others.
        """

    def delete(self, name: str) -> bool:
        """Delete an object.

        Args:
            name: The object's name.

        Returns:
            True if this call deleted it, False if it did not exist.
        """

    def sweep(self, older_than: float = 86400.0) -> int:
        """Delete the remains of uploads that were interrupted.

        Args:
            older_than: Seconds since their last write.

        Returns:
            The number of objects deleted.
        """

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create an object from a file.

        Args:
            name: The object's name.
            path: The file.
            move: The file may be moved instead of copied, and no longer exists afterwards, whatever is returned.

        Returns:
            False if the name is taken.
        """

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write an object to a file, completely or not at all.

        Args:
            name: The object's name.
            path: The file, which is replaced.
            most: Bytes that the object may have at most; by default the limit of an object of this name
                (`names.file_limit_of`).

        Raises:
            StoreError: The object does not exist, or is larger than `most`.
        """

    def local_path(self, name: str) -> str | None:
        """Return the path of the object's file if it can be read without a download, else None."""

    def bell(self) -> Bell | None:
        """Return what hears every ring of this store at nearly no cost; None if changes are found by listing alone."""

    def ring(self, text: str) -> object:
        """Notify the followers of a job or a batch, if the store can. A hint: followers also poll.

        Args:
            text: Id of the job or of the batch.
        """

    def hint(self, name: str, data: bytes) -> bool:
        """Write a signal in one short attempt, for content that is written again soon. Raises nothing.

        Args:
            name: The object's name.
            data: Its content.

        Returns:
            False if it was not written.
        """

    def now(self) -> float:
        """Return the time by the store's clock, by which all ages are measured."""


def staging_parents(store: Store, home: Path) -> list[Path]:
    """Return the folders below which uploads are prepared, the one for new uploads first: it is on the store's own file
    system if that can be, so that an upload is a rename.

    Args:
        store: The store.
        home: The folder of this user's Kinetic files.
    """
    own = [Path(store.folder) / ".staging"] if store.folder is not None else []
    return [*own, home / "staging"]


def too_large(name: str, url: str, limit: int, size: int | None = None) -> StoreError:
    """Return the error for an object that is larger than anything this package writes under its name.

    Args:
        name: The object's name.
        url: The store's address.
        limit: The limit of its name, in bytes.
        size: Its size, where it is known.
    """
    return StoreError(str(TooLarge(name, url, limit, size)))
