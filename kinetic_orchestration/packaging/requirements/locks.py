"""The environment of a job: from its requirements to a lock that every host installs identically.

Responsible for: the way from requirements to a lock, and the distributions that are sent as files instead. Does not
know where the lock is stored or how a host installs it (host/prepare/environment.py).

A lock holds no address of an index and no password; package indexes are each machine's own setting (indexes.py).
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.host.prepare.environment import packages, redact
from kinetic_orchestration.packaging.call.first_party import ITSELF, FirstParty, from_folder, name_of, normalized
from kinetic_orchestration.packaging.requirements import files, indexes
from kinetic_orchestration.packaging.requirements.resolution import (
    NO_BUILDS,
    Interpreter,
    Resolution,
    find_python,
    find_uv,
    here,
    recall,
    remember,
)
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.protocol.content import digest

File = str | os.PathLike[str]

LOCK_FILE = "kinetic.lock"  # of a project: used as it is
HEADING = "# a lock for kinetic-orchestration"
PLATFORM = "x86_64-manylinux_2_35"  # as uv names what a TPU VM's Ubuntu 22.04 is


@dataclass(frozen=True)
class Lock:
    """Every package with its version and its hashes, as `uv pip sync` reads them."""

    text: str
    digest: str  # of the text
    python: str  # "3.11"
    platform: str
    interpreter: str  # the path of a Python of that version on this machine
    uv: str  # the path of uv on this machine
    source: str  # for users: its origin
    first_party: tuple[FirstParty, ...] = ()
    wheels: tuple[tuple[str, str], ...] = ()  # of what only this machine has: digest and path

    @property
    def packages(self) -> int:
        return packages(self.text)


@dataclass(frozen=True)
class Environment:
    """The environment of a job's code: this interpreter's, one built from a lock, or an image's."""

    kind: Literal["current", "locked", "image"]
    python: str  # "3.11"
    interpreter: str
    lock: Lock | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of uv, as the requirements themselves ask for
    uv_itself: str = ""  # a lock of uv alone, for a machine that has none
    secrets: tuple[str, ...] = ()  # names of variables that let other machines read a private index


@dataclass(frozen=True)
class Hosts:
    """Hosts that are other machines, as far as a lock for them depends on it."""

    slice: Slice
    emulated: bool
    platform: str = PLATFORM
    driver: int = 0  # the branch of NVIDIA's driver, as far as it is known


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
    return Environment("current", here().version, sys.executable)


def lock(
    requirements: File | Sequence[str],
    *,
    environ: Mapping[str, str],
    cache: Path | None = None,
    python: str | Interpreter | None = None,
    platform: str | None = None,
    first_party: Sequence[FirstParty] = (),
    refresh: bool = False,
    hosts: Hosts | None = None,
    pins: Sequence[str] = (),
) -> Lock:
    """Resolve a file or a list of requirements, or take a committed lock as it is.

    What was resolved before, from the same input for the same Python and from the same indexes, is found
    again in `cache` without asking an index; `refresh` asks anyway. Of `first_party`, those that were named
    and those that the requirements name bring their dependencies; they themselves are never installed.
    `platform` is uv's name of the host's platform, if it is not this machine's. For `hosts` frameworks become the
    builds for their accelerator. `pins` choose versions and ask for nothing.
    """
    interpreter = python if isinstance(python, Interpreter) else find_python(python, environ)
    platform = hosts.platform if hosts is not None else platform
    asked = files.read(requirements)
    lines = list(files.lines_of(asked))
    uv = ""
    if asked.kind == "pylock" or any(line.hashes for line in lines) or asked.text.startswith(HEADING):
        entries = files.committed(asked, lines)
        source = f"{asked.name}, used as it is"
        if hosts is not None:
            from kinetic_orchestration.packaging.requirements import frameworks

            named = [name_of(entry) for entry in entries]
            frameworks.check_lock(named, hosts.slice, emulated=hosts.emulated, where=asked.name)
    elif hosts is not None and asked.kind == "list" and not lines:
        entries, source = [], "nothing to install"
    else:
        uv = find_uv(environ)
        builds = NO_BUILDS
        if hosts is not None:
            from kinetic_orchestration.packaging.requirements import frameworks

            wanted = [line.requirement for line in lines if not line.option]
            builds = frameworks.for_host(wanted, hosts.slice, emulated=hosts.emulated, driver=hosts.driver)
        resolution = Resolution(
            asked, lines, interpreter, platform, environ=environ, first_party=first_party, builds=builds, pins=pins
        )
        path = cache / f"{resolution.key()}.json" if cache is not None else None
        kept = recall(path) if path is not None and not refresh else None
        source = f"{asked.name}, resolved{'' if kept is None else ' before'}"
        entries = resolution.run() if kept is None else kept
        if kept is None and path is not None:
            remember(path, entries, asked.folder)
    if hosts is not None and hosts.slice.kind == "gpu" and not hosts.emulated:
        from kinetic_orchestration.packaging.requirements import frameworks

        frameworks.check_cuda(entries, hosts.slice, hosts.driver)
    text, travelling = _without_first_party(entries, asked.folder, first_party)
    wheels: tuple[tuple[str, str], ...] = ()
    if hosts is not None:
        text, wheels = _without_places(text, _local_links(requirements, environ))
    _refuse_passwords(text, asked.name)
    return Lock(
        text=text,
        digest=digest.of_bytes(text.encode()),
        python=interpreter.version,
        platform=platform or sysconfig.get_platform(),
        interpreter=interpreter.path,
        uv=uv or (find_uv(environ) if hosts is None else ""),
        source=source,
        first_party=travelling,
        wheels=wheels,
    )


def locked_for(
    requirements: File | Sequence[str],
    hosts: Hosts,
    *,
    environ: Mapping[str, str],
    cache: Path | None = None,
    python: str | None = None,
    first_party: Sequence[FirstParty] = (),
    pins: Sequence[str] = (),
) -> Environment:
    """The environment of hosts that are other machines: none of this machine's paths, and no password, is in it."""
    interpreter = interpreter_for(python, environ)
    found = lock(
        requirements, environ=environ, cache=cache, python=interpreter, first_party=first_party, hosts=hosts, pins=pins
    )
    if not found.text:
        return Environment("locked", interpreter.version, "", lock=replace(found, interpreter="", uv=""))
    own = own_settings(requirements)
    settings, secret = indexes.for_hosts(environ)
    for name, value in indexes.without_places(own).items():
        separator = {"UV_FIND_LINKS": ",", "UV_INDEX": " "}.get(name)
        settings[name] = separator.join(filter(None, (settings.get(name, ""), value))) if separator else value
    named = {name for value in own.values() for name in re.findall(r"\$\{?(\w+)", value) if name in environ}
    return Environment(
        "locked", interpreter.version, "", lock=replace(found, interpreter="", uv=""), settings=settings,
        secrets=tuple(sorted({*secret, *named})),
    )  # fmt: skip


def interpreter_for(python: str | None, environ: Mapping[str, str]) -> Interpreter:
    """Find the interpreter. For a Python on another machine only the version matters, and it need not be installed
    here."""
    if python is not None and re.fullmatch(r"3(\.\d+){1,2}", python):
        return Interpreter(sys.executable, ".".join(python.split(".")[:2]))
    return find_python(python, environ)


def uv_settings(environ: Mapping[str, str], requirements: File | Sequence[str] | None = None) -> dict[str, str]:
    """The variables to add to the environment of a host's uv so that it finds the packages of the lock.

    pip's settings, and the index options of the requirements themselves. They may hold passwords: pass them to a
    process, write them nowhere.
    """
    options = files.index_options(files.read(requirements)) if requirements is not None else ()
    return _with_options(environ, indexes.uv_settings(environ), options)


def own_settings(requirements: File | Sequence[str]) -> dict[str, str]:
    """The index options of the requirements themselves, which every host needs and which are kept with the job."""
    asked = files.read(requirements)
    settings = _with_options({}, {}, files.index_options(asked, expand=False))
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
            links = indexes.find_links(value, folder)
            settings = indexes.add(environ, settings, "UV_FIND_LINKS", links, ",")
        else:
            settings = indexes.add(environ, settings, "UV_INDEX", value, " ")
    return settings


def _without_first_party(
    entries: Iterable[str], folder: Path, first_party: Sequence[FirstParty]
) -> tuple[str, tuple[FirstParty, ...]]:
    """The entries to install, and the distributions that are sent as files instead."""
    travelling = {item.name: item for item in first_party}
    by_folder = {item.folder: item for item in first_party if item.folder}
    kept = []
    for entry in entries:
        requirement = entry.split(" \\\n", 1)[0]
        place = files.local_folder(files.Line(requirement, "", folder))
        if place is not None:
            found = by_folder.get(os.path.realpath(place)) or from_folder(place.resolve())
            travelling[found.name] = found
        elif files.is_local(requirement) and " @ " not in requirement:
            path = (folder / files.path_of(requirement)).absolute()
            kept.append(entry.replace(requirement, path.as_uri(), 1))
        elif name_of(requirement) not in {*travelling, ITSELF}:
            kept.append(entry)
    return "".join(f"{entry}\n" for entry in kept), tuple(travelling.values())


def _local_links(requirements: File | Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    """The wheels in folders of this machine that packages are taken from."""
    settings = {**environ, **uv_settings(environ, requirements)}
    return [wheel for folder in indexes.local_folders(settings) for wheel in sorted(folder.glob("*.whl"))]


def names_in(text: str) -> set[str]:
    """The names of the packages in a lock."""
    return {name_of(line) for line in text.splitlines() if line[:1] not in ("", " ")}


def _without_places(text: str, here: Iterable[Path]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The lock without places on this machine, and the wheels of it that only this machine may have."""
    entries, wheels = [], {}
    names = names_in(text)
    for path in here:
        if normalized(path.name.split("-", 1)[0]) in names and (found := digest.plain_of_file(path)) in text:
            wheels[found] = str(path)
    for entry in filter(None, re.split(r"\n(?=\S)", text.strip())):
        requirement = entry.split(" \\\n", 1)[0].split(" --hash", 1)[0]
        if files.is_local(requirement):
            path = Path(files.path_of(re.sub(r"^[\w.\[\],-]+\s*@\s*", "", requirement)))
            match = re.match(r"([^-]+)-([^-]+)-.*\.whl$", path.name)
            if match is None:
                raise UsageError(
                    f"{redact(requirement)} lies on this machine and is no wheel, so no other machine can install it. "
                    "Build a wheel of it first (uv build --wheel) and name that"
                )
            found = digest.plain_of_file(path)
            wheels[found] = str(path)
            entry = f"{normalized(match.group(1))}=={match.group(2)} \\\n    --hash=sha256:{found}"  # noqa: PLW2901
        entries.append(entry)
    return "".join(f"{entry}\n" for entry in entries), tuple(sorted(wheels.items()))


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
