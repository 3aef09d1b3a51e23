"""Holds what is at an address to the list of files that the job was submitted with."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.content import pins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    Listed = Mapping[str, tuple[int, str]]  # size and generation by name

SHOWN = 3  # names in an error
MOST = 2 * pins.MOST_FILES  # at an address, of which new ones may concern nobody


def object_of(pinned: pins.Pinned, file: pins.File) -> str:
    """Return the whole name of an object in its bucket."""
    prefix = pinned.address.partition("://")[2].partition("/")[2]
    return prefix + file.name if not prefix or prefix.endswith("/") else prefix


def place_of(pinned: pins.Pinned, file: pins.File) -> str:
    """Return the path of a file on the submitter's machine."""
    at = pinned.address
    return at if os.path.basename(at) == file.name and not os.path.isdir(at) else os.path.join(at, file.name)


def listed(pinned: pins.Pinned) -> Listed:
    """Return what is at the address now, or one more than can be compared. Raises OSError."""
    now: dict[str, tuple[int, str]] = {}
    for name, found in _objects(pinned) if pinned.address.startswith("gs://") else _files(pinned.address):
        now[name] = found
        if len(now) > MOST:
            break
    return now


def difference(pinned: pins.Pinned, *, new: bool = True, now: Listed | None = None) -> str:
    """Return a sentence about files that are missing or others, and about `new` ones; "" if there are none.

    Raises OSError. Who reads by the list does not meet what is new.
    """
    now = listed(pinned) if now is None else now
    if len(now) > MOST:
        return f"{pinned.address} has more than {MOST:,} files now, too many to be held to those of the submission"
    was = {file.name: (file.size, file.generation) for file in pinned.files}
    kinds = {
        "changed": sorted(name for name in was.keys() & now.keys() if was[name] != now[name]),
        "gone": sorted(was.keys() - now.keys()),
        "new": sorted(now.keys() - was.keys()) if new else [],
    }
    if not any(kinds.values()):
        return ""
    told = ", ".join(f"{len(names):,} {what} ({_some(names)})" for what, names in kinds.items() if names)
    return f"{pinned.address} is not what the job was submitted with: of its files, {told}"


def news(pinned: pins.Pinned, now: Listed | None = None) -> str:
    """Return a sentence for the log about what is another now, which stops nobody; "" if nothing is. Raises OSError."""
    why = difference(pinned, now=now)
    return f"{why}. The job reads what was there when it was submitted; the next one reads what is new" if why else ""


def files_of(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder of this machine, or the one at a path, by their names below it."""
    if os.path.isfile(path):
        yield os.path.basename(path), os.stat(path)
        return
    for folder, _, names in os.walk(path, followlinks=True):
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file):  # no pipes, no broken links
                yield os.path.relpath(file, path), os.stat(file)


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _objects(pinned: pins.Pinned) -> Iterator[tuple[str, tuple[int, str]]]:
    from kinetic_orchestration.host.machine import buckets

    bucket = buckets.open_objects(pinned.address)
    with contextlib.closing(bucket):
        yield from _listed_in(bucket, pinned.address.partition("://")[2].partition("/")[2])


def _listed_in(bucket: Any, prefix: str) -> Iterator[tuple[str, tuple[int, str]]]:
    if prefix and not prefix.endswith("/"):
        one = bucket.facts(prefix)
        listed = [] if one is None else [one]
        prefix = prefix[: prefix.rfind("/") + 1]
    else:
        listed = bucket.listing(prefix)
    for item in listed:
        name = str(item["name"])
        if not name.endswith("/"):
            yield name[len(prefix) :], (int(item["size"]), str(item["generation"]))


def _files(path: str) -> Iterator[tuple[str, tuple[int, str]]]:
    for name, found in files_of(path):
        yield name, (found.st_size, str(found.st_mtime_ns))
