"""Copies of data that all threads of this process share, for iteration: another thread may import, or set a variable,
at any line.

`list(table.items())` is no such copy: it makes a tuple of each item, so that the garbage collector may run in between,
and with it finalizers, callbacks and other threads. `dict.copy` is one step of the interpreter.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def modules() -> dict[str, ModuleType]:
    """The modules that are imported now."""
    return sys.modules.copy()


def members(of: Any) -> dict[str, Any]:
    """The attributes of a module, a class or a function that are its own."""
    found: dict[str, Any] = vars(of).copy()
    return found


def environ() -> dict[str, str]:
    """A copy of the variables of this process, without those that are removed in between."""
    found = ((name, os.environ.get(name)) for name in list(os.environ))
    return {name: value for name, value in found if value is not None}
