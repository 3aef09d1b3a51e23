"""Where what is shipped lies: one Protocol, looked up lazily by the scheme of a store's address."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from kinetic_orchestration.agent.records import Entry, Record
from kinetic_orchestration.errors import Unsupported, UsageError


class Store(Protocol):
    """Put-if-absent and compare-and-swap by generation, ranged reads, listing by prefix, delete.

    Names are relative to one deployment's prefix. Every verb is synchronous and bounded; a condition that
    does not hold is an answer (None, False), never an exception.
    """

    url: str
    """What a name of this store is relative to: the folder or prefix of one deployment."""

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
        """Create `name` from a file; False if somebody was first.

        With `move` the file may be taken instead of copied, and is gone afterwards, whoever was first.
        """

    def download(self, name: str, path: str) -> None:
        """Write the object to the file `path`, whole or not at all. Raises StoreError if it is not there."""

    def local_path(self, name: str) -> str | None:
        """Where the object can be read as a file without a download, if it can."""

    def ring(self, text: str) -> object:
        """Wake whoever follows `text`, a job or a group, if this store can: a hint, never the truth."""

    def now(self) -> float:
        """The store's own time, by which every age is judged."""


def open_store(url: str | os.PathLike[str], deployment: str) -> Store:
    """The store of one deployment at an address: a folder, `file://…`, or later `gs://bucket/prefix`."""
    address = os.fspath(url)
    scheme, separator, _ = address.partition("://")
    opener = _OPENERS.get(scheme.lower() if separator else "")
    if opener is None:
        raise UsageError(
            f"No store can be opened at {address!r}: give a folder, a file:// address or gs://bucket/prefix "
            "with store= or KINETIC_STORE."
        )
    return opener(address, deployment)


def _open_folder(address: str, deployment: str) -> Store:
    from kinetic_orchestration.stores.local import open_local

    return open_local(address, deployment)


def _open_file(address: str, deployment: str) -> Store:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise UsageError(
            f"{address!r} is not a folder of this machine: write file:///path, with three slashes, or the path alone."
        )
    return _open_folder(unquote(parts.path), deployment)


def _open_google(address: str, deployment: str) -> Store:
    raise Unsupported(
        f"{address} is on Google Cloud Storage, and that store comes with the Cloud TPU backend, which this "
        "version does not have yet. Give a folder with store= or KINETIC_STORE."
    )


_OPENERS: dict[str, Callable[[str, str], Store]] = {"": _open_folder, "file": _open_file, "gs": _open_google}
