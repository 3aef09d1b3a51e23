"""Names of the client on a host, which has the part of this package that runs a program.

They can be imported and annotated with there, so that a module that declares jobs is imported as it stands. They work
where this Python has the whole package installed, in the same version, as on the machine that launches jobs; elsewhere
to use one raises `Unsupported`.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import Unsupported

_PACKAGE, _, _ = __name__.partition(".")
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STAND_INS = {  # the modules of `api` that the zip has others for, with their public names
    "batch": ("BatchError", "BatchHandle", "attach_batch"),
    "handle": ("JobHandle", "attach", "list_jobs"),
}


@functools.cache
def is_host() -> bool:
    """Return True if this package is the part of it that the agent's zip holds."""
    return not _has_all(_FOLDER)


def require(name: str) -> None:
    """Make sure that the whole package is there, for the use of `name`.

    Raises:
        Unsupported: It is not. Another attempt would fail in the same way, so this ends the job.
    """
    if is_host() and not _completed():
        raise Unsupported(
            f"{name} is not for use on this host: jobs are submitted and followed where they are launched from, and "
            "this host has only the part of kinetic-orchestration that runs a program. Return what the next step needs"
        )


def real(module: str, name: str) -> Any:
    """Return what a name of `api` stands for where the whole package is. Raises Unsupported."""
    require(name)
    return getattr(importlib.import_module(f"{_PACKAGE}.api.{module}"), name)


@functools.cache
def _completed() -> bool:
    """Take the other rooms from the installation of this Python, if it has one of the same version."""
    package = sys.modules[_PACKAGE]
    for folder in sys.path:
        whole = os.path.join(folder or os.getcwd(), _PACKAGE)
        if _has_all(whole) and _version(whole) == package.__version__:
            break
    else:
        return False
    package.__path__.append(whole)
    api = importlib.import_module(f"{_PACKAGE}.api")
    api.__path__.insert(0, os.path.join(whole, "api"))
    for module, names in _STAND_INS.items():
        sys.modules.pop(f"{_PACKAGE}.api.{module}", None)
        for name in names:
            package.__dict__.pop(name, None)
    return True


def _has_all(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, "jobs"))


def _version(folder: str) -> str:
    found = re.search(r'^__version__ = "(.*)"$', Path(folder, "__init__.py").read_text("utf-8"), re.MULTILINE)
    return found.group(1) if found else ""


class ClientOnly(type):
    """The metaclass of a class that stands for one of `api.<module>`: it can be named and subscripted anywhere."""

    module: str

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], *, module: str) -> ClientOnly:
        made = super().__new__(cls, name, bases, members)
        made.module = module
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], *, module: str) -> None:
        super().__init__(name, bases, members)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return real(cls.module, cls.__name__)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(real(cls.module, cls.__name__), name)

    def __getitem__(cls, argument: Any) -> Any:
        return types.GenericAlias(cls, argument)

    def __instancecheck__(cls, instance: object) -> bool:
        there = sys.modules.get(f"{_PACKAGE}.api.{cls.module}")
        found = getattr(there, cls.__name__, cls)
        return found is not cls and isinstance(instance, found)
