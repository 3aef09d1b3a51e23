"""The environment of a job on other machines: always one that is locked for them.

`requirements=None` means "this environment" there, too: the modules that the code imports, at the versions installed
here, with all their dependencies at the versions installed here. Imports are read off the source (`imports`), from the
function's module on and through every file that is sent; modules that no source names (a name made at run time, a
plug-in) have to be listed in `requirements=`. Code that imports nothing needs nothing, not even uv.

A `kinetic.lock` in the project's folder, made by `kinetic-orchestration lock`, is used instead: then no index is
queried.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from kinetic_orchestration.errors import ConflictingSettings, RequirementsError
from kinetic_orchestration.host.prepare.missing_imports import ORCHESTRATORS
from kinetic_orchestration.packaging.call.first_party import FirstParty, name_of, normalized
from kinetic_orchestration.packaging.requirements import installed, locks
from kinetic_orchestration.packaging.requirements.resolution import here
from kinetic_orchestration.packaging.source import imports
from kinetic_orchestration.packaging.source.ignore import DEFAULT_FOLDERS
from kinetic_orchestration.plan.declare.choices import naming
from kinetic_orchestration.plan.messages import OURS, warn

MOST_FOLDERS = 20_000  # that are searched for a module
_OURS = frozenset((*OURS, "cloudpickle"))
_ORCHESTRATORS = frozenset(ORCHESTRATORS)  # with what is named after them: dagster_gcp
_BROUGHT = _OURS | {"libtpu"}  # it comes with JAX


class Code(NamedTuple):
    """The modules or files to begin with, the project's folder, and whether they run as programs."""

    starts: Sequence[str | Path]
    root: Path | None
    as_program: bool = False
    names_program: bool = False  # the first of `starts` is the file that a command runs


def environments(
    requirements: locks.File | Sequence[str] | None,
    each: Sequence[locks.Hosts],
    *,
    image: str,
    code: Code,
    environ: Mapping[str, str],
    cache: Path,
    python: str | None,
    first_party: Sequence[FirstParty],
) -> dict[locks.Hosts, locks.Environment]:
    """The environment of each kind of hosts. The code's imports are read once for all of them."""
    if requirements is None and image:
        return dict.fromkeys(each, locks.Environment("image", python or here().version, ""))
    names: dict[str, imports.Import] = {}
    committed: Path | None = None
    if requirements is None:
        names = _imported(code, first_party, environ)
        if code.root is not None and (code.root / locks.LOCK_FILE).is_file():
            committed = code.root / locks.LOCK_FILE
        else:
            _warn_of_missing(names, code)
    found = {}
    for hosts in each:
        asked, pins = requirements, list[str]()
        if asked is None:
            asked, pins = _needed(names, hosts, first_party)
            if committed is not None:
                _check_covers(committed, asked, first_party)
                asked = committed
        with naming(hosts.slice.name, each):
            found[hosts] = locks.locked_for(
                asked, hosts, environ=environ, cache=cache, python=python, first_party=first_party, pins=pins
            )
    return found


def needed(
    code: Code, hosts: locks.Hosts, environ: Mapping[str, str], first_party: Sequence[FirstParty] = ()
) -> tuple[list[str], list[str]]:
    """The requirements of what the code imports, and the versions of all that these need, as they are here."""
    return _needed(_imported(code, first_party, environ), hosts, first_party)


def _imported(code: Code, first_party: Sequence[FirstParty], environ: Mapping[str, str]) -> dict[str, imports.Import]:
    """The modules that the code imports and that are not sent with it."""
    modules = {place.removesuffix(".py"): Path(lies) for item in first_party for place, lies in item.paths}
    beside = [start.parent for start in code.starts if code.as_program and isinstance(start, Path)]
    search = [*beside, *([code.root] if code.root is not None else []), *installed.reachable(sys.path)]
    names = imports.imported_from_elsewhere(
        code.starts, search=search, modules=modules, unread=_OURS, as_program=code.as_program
    )
    if not code.as_program:
        there = {_top(start) for start in code.starts if isinstance(start, str)}
        names = {name: why for name, why in names.items() if _top(name) in there or not is_orchestrators(name)}
    if any(name.partition(".")[0] == "keras" for name in names):  # it imports its backend by a configured name
        names.setdefault(environ.get("KERAS_BACKEND") or "jax", imports.Import("keras", imports.LOADED))
    return names


def _needed(
    names: Mapping[str, imports.Import], hosts: locks.Hosts, first_party: Sequence[FirstParty]
) -> tuple[list[str], list[str]]:
    found = installed.owners(name for name in names if name.partition(".")[0] not in _OURS)
    travelling = {item.name for item in first_party}
    direct = {name: distribution for name, distribution in found.items() if name not in travelling}
    version = str if hosts.emulated else _public
    below = {name: value for name, value in installed.stands_on(direct).items() if name not in {*direct, *travelling}}
    lines = [f"{name}=={version(distribution.version)}" for name, distribution in sorted(direct.items())]
    return lines, [f"{name}=={version(value)}" for name, value in sorted(below.items())]


def _warn_of_missing(names: Mapping[str, imports.Import], code: Code) -> None:
    """Warn of imports that are not installed here, and so cannot be among the requirements read off this
    environment."""
    tops: dict[str, imports.Import] = {}
    for name, found in names.items():
        top = name.partition(".")[0]
        if found.need != imports.GUARDED and top not in _BROUGHT and (top not in tops or tops[top].need < found.need):
            tops[top] = found
    missing = {top: found for top, found in sorted(tops.items()) if not installed.is_here(top)}
    if not missing:
        return
    them = "it" if len(missing) == 1 else "them"
    listed = ", ".join(f"{top} ({found.location})" for top, found in missing.items())
    here = [f"{top} lies in {place}" for top in missing if (place := _place_of(code, top))]
    advice = (
        f"Install {them} here, name all requirements with requirements=, or, if the job does without, catch the "
        "ImportError there"
    )
    if here:  # so no package of that name in an index is meant
        advice = (
            f"{', '.join(here)}, from where it cannot be imported: put it beside the code that imports it, or its "
            f"folder on sys.path (PYTHONPATH). {advice if len(here) < len(missing) else ''}"
        ).rstrip()
    if any(_fails_at_once(top, found, code) for top, found in missing.items()):
        raise RequirementsError(
            f"the job's program would end at its first lines, so nothing was sent: {listed} is not installed here, and "
            f"hosts get what is. {advice}"
        )
    warn(f"hosts get what the code imports as it is installed here, and this is not: {listed}. {advice}")


def _fails_at_once(top: str, found: imports.Import, code: Code) -> bool:
    """Return True if the failure is certain: the program's own file needs the module at its load, and the project has
    none."""
    first = code.starts[0] if code.as_program and code.starts else None
    if found.need != imports.LOADED or not isinstance(first, Path) or not found.location.startswith(f"{first}, line "):
        return False
    if not code.names_program or "sys.path" in first.read_text(encoding="utf-8", errors="replace"):
        return False
    return _found_below(code.root or first.parent, top) == ""


def _place_of(code: Code, top: str) -> str:
    """Return the path of a module of that name in the project, though not on the import path."""
    found = _found_below(code.root, top) if code.root is not None else ""
    return found if os.path.exists(found) else ""


def _found_below(root: Path, top: str) -> str:
    """Return the path of the module in a folder of the project; "?" if there are too many folders to tell."""
    for number, (folder, folders, files) in enumerate(os.walk(root)):
        if number >= MOST_FOLDERS:
            return "?"
        folders[:] = [name for name in folders if name not in DEFAULT_FOLDERS]
        if f"{top}.py" in files or top in folders:
            return os.path.join(folder, f"{top}.py" if f"{top}.py" in files else top)
    return ""


def is_orchestrators(module: str) -> bool:
    """Return True for a module of the orchestrator. Each file that defines a pipeline imports it; hosts need it only if
    the call itself refers to it, as the class of a value does.
    """
    return _top(module).partition("_")[0] in _ORCHESTRATORS


def orchestrators_of(by_name: Iterable[str], given: Iterable[str]) -> list[str]:
    """The orchestrator's requirements that the listed ones lack, at the versions installed here."""
    listed = {name_of(line) for line in given}
    found = installed.owners(_top(name) for name in by_name if is_orchestrators(name) and _top(name) not in _OURS)
    return [f"{name}=={_public(found[name].version)}" for name in sorted(found) if name not in listed]


def heading(lock: locks.Lock, hosts: locks.Hosts) -> str:
    """The comment above a lock that is kept in a file, by which it is known again."""
    return f"{locks.HEADING}, {hosts.slice.name}\n# python {lock.python}\n# platform {lock.platform}\n"


def starts_of(function: Callable[..., Any] | None, file: Path | None, by_name: Iterable[str]) -> list[str | Path]:
    """The modules and files where reading begins for a function: its file, else its imports; and the modules in the
    call."""
    if file is not None:
        inside = imports.imports_in(function.__code__) if isinstance(function, FunctionType) else ()
        return [file, *by_name, *filter(is_orchestrators, inside)]
    return [*by_name, *(imports.imported_by(function) if function is not None else ())]


def starts_of_command(argv: Sequence[str], cwd: Path) -> list[str | Path]:
    """The Python files that a command names, and the module after -m; else every file of its folder."""
    found: list[str | Path] = [cwd / part for part in argv if part.endswith(".py") and (cwd / part).is_file()]
    for option, module in itertools.pairwise(argv):
        if option == "-m":
            found += [module, f"{module}.__main__"]
    return found or sorted(cwd.rglob("*.py"))


def _check_covers(lock: Path, lines: Iterable[str], first_party: Sequence[FirstParty]) -> None:
    text = lock.read_text(encoding="utf-8")
    made_for = re.search(r"^# python (\d+\.\d+)", text, re.MULTILINE)
    if made_for is not None and made_for.group(1) != here().version:
        raise ConflictingSettings(
            f"{lock} was made for Python {made_for.group(1)}, and this is Python {here().version}: make it anew with "
            f"this Python, or submit from that one"
        )
    there = locks.names_in(text) | {normalized(item.name) for item in first_party}
    if missing := [line for line in lines if name_of(line) not in there]:
        raise ConflictingSettings(
            f"{lock} has no {', '.join(name_of(line) for line in missing)}, which the code imports: make it anew "
            f"(kinetic-orchestration lock FILE -o {os.path.relpath(lock)}), or remove it"
        )


def _top(module: str) -> str:
    return module.partition(".")[0]


def _public(version: str) -> str:
    """The version without the label of a local build, which is for this machine's hardware."""
    return version.partition("+")[0]
