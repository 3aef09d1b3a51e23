"""Names of a package that are loaded when they are first used: importing the package then loads little.

A package states the module of each name in a table, and the names themselves below `TYPE_CHECKING`. It does not know
which packages do so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself costs more than the import of a package that uses this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def load(package: str, homes: Mapping[str, str], name: str, below: str = "") -> Any:
    """Return a name of a package, as `from package.home import name` does, and keep it in the package.

    package: the package's own name. homes: the modules below it, by the names that they define. below: the package
    of these modules, if it is another.
    Raises AttributeError.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(__import__(f"{below or package}.{homes[name]}", fromlist=[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package whose names are loaded by `load`."""
    return lambda name: load(package, homes, name), lambda: sorted({*vars(sys.modules[package]).copy(), *homes})
