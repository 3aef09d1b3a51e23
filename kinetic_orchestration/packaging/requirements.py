"""What a job's environment holds: from what was asked for to a lock that every host installs alike.

Responsible for: the way from requirements to a lock, and what travels as files instead. Does not know where
the lock is kept or how a host installs it (agent/environment.py).

A lock has no address of an index in it and no password; where packages come from is each machine's own
setting (package_sources.py).
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kinetic_orchestration.agent import digest
from kinetic_orchestration.agent.environment import packages, redact
from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.packaging import package_sources
from kinetic_orchestration.packaging.first_party import ITSELF, FirstParty, from_folder
from kinetic_orchestration.packaging.requirement_files import (
    Line,
    committed,
    index_options,
    is_local,
    lines_of,
    local_folder,
    name_of,
    path_of,
    read,
)
from kinetic_orchestration.packaging.resolution import (
    Interpreter,
    Resolution,
    find_python,
    find_uv,
    here,
    recall,
    remember,
)

File = str | os.PathLike[str]


@dataclass(frozen=True)
class Lock:
    """Every package with its version and its hashes, as `uv pip sync` reads them."""

    text: str
    digest: str  # of the text
    python: str  # "3.11"
    platform: str
    interpreter: str  # the path of a Python of that version on this machine
    uv: str  # the path of uv on this machine
    source: str  # for people: where it came from
    first_party: tuple[FirstParty, ...] = ()

    @property
    def packages(self) -> int:
        return packages(self.text)


@dataclass(frozen=True)
class Environment:
    """Where a job's code runs: in this interpreter's environment, or in one built from a lock."""

    kind: Literal["current", "locked"]
    python: str  # "3.11"
    interpreter: str
    path: tuple[str, ...] = ()  # of the current environment
    lock: Lock | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of uv, as the requirements themselves ask for


def environment(
    requirements: File | Sequence[str] | None,
    *,
    environ: Mapping[str, str],
    cache: Path | None = None,
    python: str | None = None,
    platform: str | None = None,
    first_party: Sequence[FirstParty] = (),
) -> Environment:
    """The environment that was asked for; resolved, not built."""
    interpreter = find_python(python, environ)
    if requirements is not None:
        found = lock(
            requirements,
            environ=environ,
            cache=cache,
            python=interpreter,
            platform=platform,
            first_party=first_party,
        )
        settings = own_settings(requirements)
        return Environment("locked", interpreter.version, interpreter.path, lock=found, settings=settings)
    if interpreter.version != here().version:
        raise ConflictingSettings(
            f"python={python!r} needs an environment of its own, but requirements=None means this one, "
            f"which is Python {here().version}. Give requirements (a file, or a list, possibly empty), or "
            "leave out python."
        )
    return Environment("current", here().version, sys.executable, tuple(map(os.path.abspath, sys.path)))


def lock(
    requirements: File | Sequence[str],
    *,
    environ: Mapping[str, str],
    cache: Path | None = None,
    python: str | Interpreter | None = None,
    platform: str | None = None,
    first_party: Sequence[FirstParty] = (),
    refresh: bool = False,
) -> Lock:
    """Resolve a file or a list of requirements, or take a committed lock as it is.

    What was resolved before, from the same input for the same Python and from the same indexes, is found
    again in `cache` without asking an index; `refresh` asks anyway. Of `first_party`, those that were named
    and those that the requirements name bring their dependencies; they themselves are never installed.
    `platform` is uv's name of the host's platform, if it is not this machine's.
    """
    interpreter = python if isinstance(python, Interpreter) else find_python(python, environ)
    uv = find_uv(environ)
    asked = read(requirements)
    lines = list(lines_of(asked))
    if asked.kind == "pylock" or any(line.hashes for line in lines):
        entries = committed(asked, lines)
        source = f"{asked.name}, used as it is"
    else:
        resolution = Resolution(asked, lines, interpreter, platform, environ=environ, first_party=first_party)
        path = cache / f"{resolution.key()}.json" if cache is not None else None
        kept = recall(path) if path is not None and not refresh else None
        source = f"{asked.name}, resolved{'' if kept is None else ' before'}"
        entries = resolution.run() if kept is None else kept
        if kept is None and path is not None:
            remember(path, entries, asked.folder)
    text, travelling = _without_first_party(entries, asked.folder, first_party)
    _refuse_passwords(text, asked.name)
    return Lock(
        text=text,
        digest=digest.of_bytes(text.encode()),
        python=interpreter.version,
        platform=platform or sysconfig.get_platform(),
        interpreter=interpreter.path,
        uv=uv,
        source=source,
        first_party=travelling,
    )


def uv_settings(environ: Mapping[str, str], requirements: File | Sequence[str] | None = None) -> dict[str, str]:
    """What to add to the environment of a host's uv so that it finds what the lock names.

    pip's settings, and the index options of the requirements themselves. It may hold passwords: hand it to a
    process, write it nowhere.
    """
    options = index_options(read(requirements)) if requirements is not None else ()
    return _with_options(environ, package_sources.uv_settings(environ), options)


def own_settings(requirements: File | Sequence[str]) -> dict[str, str]:
    """The index options of the requirements themselves, which every host needs and which are kept with the job."""
    asked = read(requirements)
    settings = _with_options({}, {}, index_options(asked, expand=False))
    for value in settings.values():
        _refuse_passwords(value, asked.name)
    return settings


def _with_options(
    environ: Mapping[str, str], settings: dict[str, str], options: Iterable[tuple[str, str, Path]]
) -> dict[str, str]:
    for option, value, folder in options:
        if option == "--index-url":
            settings["UV_DEFAULT_INDEX"] = value
        elif option == "--no-index":
            settings["UV_NO_INDEX"] = "1"
        elif option == "--find-links":
            links = package_sources.find_links(value, folder)
            settings = package_sources.add(environ, settings, "UV_FIND_LINKS", links, ",")
        else:
            settings = package_sources.add(environ, settings, "UV_INDEX", value, " ")
    return settings


def _without_first_party(
    entries: Iterable[str], folder: Path, first_party: Sequence[FirstParty]
) -> tuple[str, tuple[FirstParty, ...]]:
    """The entries to install, and the distributions that travel as files instead."""
    travelling = {item.name: item for item in first_party}
    by_folder = {item.folder: item for item in first_party if item.folder}
    kept = []
    for entry in entries:
        requirement = entry.split(" \\\n", 1)[0]
        place = local_folder(Line(requirement, "", folder))
        if place is not None:
            found = by_folder.get(os.path.realpath(place)) or from_folder(place.resolve())
            travelling[found.name] = found
        elif is_local(requirement) and " @ " not in requirement:
            path = (folder / path_of(requirement)).absolute()
            kept.append(entry.replace(requirement, path.as_uri(), 1))
        elif name_of(requirement) not in {*travelling, ITSELF}:
            kept.append(entry)
    return "".join(f"{entry}\n" for entry in kept), tuple(travelling.values())


def _refuse_passwords(text: str, name: str) -> None:
    for match in re.finditer(r"(\w+)://([^/\s@]+)@", text):
        scheme, user = match.groups()
        if "${" not in user and not (scheme in ("ssh", "git") and ":" not in user):
            requirement = redact(text[: match.end() + 60]).splitlines()[-1]
            raise UsageError(
                f"{name}: {requirement} has a user name or a password in its address, and a lock is kept and "
                "shared. Write it as ${VARIABLE}, or give it by ~/.netrc, by a git credential helper or in "
                "the index settings."
            )
