"""Platforms of other packages, which announce themselves by an entry point. It knows no platform of this package.

A package announces a backend in its metadata, under the backend's name:

    [project.entry-points."kinetic_orchestration.platforms"]
    pbs = "my_package.pbs:PLATFORM"
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from kinetic_orchestration.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from importlib.metadata import EntryPoint

    from kinetic_orchestration.plan.configuration.settings import Settings
    from kinetic_orchestration.plan.values import Traits
    from kinetic_orchestration.platforms.backend import Backend

GROUP = "kinetic_orchestration.platforms"
PAGE = "docs/develop/add-a-platform.md"


class Platform(NamedTuple):
    """The object that the entry point of a backend leads to.

    Attributes:
        traits: Properties of its hosts.
        open_backend: Returns the backend for the settings in force. It is called in every process that has to do with a
            job, and sends nothing.
    """

    traits: Traits
    open_backend: Callable[[Settings], Backend]


class Announced(NamedTuple):
    """A backend as an installed package announces it.

    Attributes:
        name: Its name.
        package: The package, and what its entry point names.
        trouble: Why it cannot be used; "" if it can.
    """

    name: str
    package: str
    trouble: str


@functools.cache
def _entries() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # it reads the metadata of every installed package

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def names() -> list[str]:
    """Return the names of all backends that other packages announce, in order."""
    return sorted(_entries())


@functools.cache
def find(name: str) -> Platform | None:
    """Return the platform that announces a backend of this name; None if none does.

    Raises:
        UsageError: Its package cannot be loaded or announces something else, or several packages announce the name.
    """
    entries = _entries().get(name, ())
    if not entries:
        return None
    if len(entries) > 1:
        packages = " and ".join(sorted(map(_package, entries)))
        raise UsageError(f"the backend {name!r} is announced by {packages}: uninstall all but one of them")
    where = f"the backend {name!r} of {_package(entries[0])}"
    try:
        found = entries[0].load()
    except Exception as error:
        raise UsageError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. Update that package, or uninstall it"
        ) from error
    if not isinstance(found, Platform):
        raise UsageError(f"{where} is a {type(found).__name__} and no Platform: tell its author of {PAGE}")
    return found


def announced(own: Collection[str]) -> list[Announced]:
    """Return all backends that other packages announce, and whether each can be used.

    Args:
        own: Names of this package's own backends, which nobody else can take.
    """
    found = []
    for name in names():
        trouble = ""
        if name in own:
            trouble = f"this package's own backend {name!r} is used: its author has to choose another name"
        else:
            try:
                find(name)
            except UsageError as error:
                trouble = str(error)
        found.append(Announced(name, " and ".join(sorted(map(_package, _entries()[name]))), trouble))
    return found


def _package(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
    return f"{package} ({entry.value})"
