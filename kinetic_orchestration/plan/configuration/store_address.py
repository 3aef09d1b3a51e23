"""Addresses of stores: the kind of place that an address names. Whether a store is there, it does not know."""

from __future__ import annotations

from kinetic_orchestration.errors import UsageError


def resolve(store: str) -> str:
    """Return the address by which processes in any working directory find the store; "" for "".

    A folder becomes its whole path, also one that is given as `file:///path` or `file://localhost/path`. Any other
    address is returned unchanged.

    Raises:
        UsageError: A `file://` address names no folder of this machine.
    """
    if not store or not is_folder(store):
        return store
    from pathlib import Path  # a process that only declares jobs resolves none

    _, separator, rest = store.partition("://")
    if not separator:
        return str(Path(store).expanduser().absolute())
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise UsageError(
            f"{store!r} is not a folder of this machine: write file:///path, with three slashes, or the path alone."
        )
    from urllib.parse import unquote

    return str(Path(unquote(f"/{path}")))


def is_folder(store: str) -> bool:
    """Return True if the address is of a folder of this machine, by path or as `file://…`."""
    scheme, separator, _ = store.partition("://")
    return not separator or scheme.lower() == "file"


def bucket_path(store: str) -> str | None:
    """Return the path in Cloud Storage, which begins with the bucket's name; None if the address is of no bucket."""
    return store.removeprefix("gs://") if store.startswith("gs://") else None
