"""The commands that prepare what hosts of other machines need: a lock made in advance, and tools in the store."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, show_json, show_table, working
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.packaging.requirements.locks import File, Hosts, Lock
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, slice_of
from kinetic_orchestration.plan.messages import size
from kinetic_orchestration.protocol.system import copies


def lock(arguments: Namespace) -> int:
    settings = load()
    with working(f"resolving {arguments.target}"):
        found, heading = _one_of(arguments.target, _locks(arguments, settings))
    text = heading + found.text
    if arguments.output:
        Path(arguments.output).write_text(text, encoding="utf-8")
    if arguments.json:
        show_json(
            {
                "packages": found.packages, "digest": found.digest, "python": found.python, "platform": found.platform,
                "source": found.source, "first_party": [entry.name for entry in found.first_party],
                "output": arguments.output, "text": None if arguments.output else text,
            }
        )  # fmt: skip
        return codes.OK
    if not arguments.output:
        print(text, end="")
        sys.stdout.flush()
    where = f" in {arguments.output}" if arguments.output else ""
    amount = "1 package" if found.packages == 1 else f"{found.packages} packages"
    note(f"{amount}{where}, for Python {found.python} ({found.source})")
    if found.first_party:
        note(f"not in it, for they travel as files: {', '.join(entry.name for entry in found.first_party)}")
    return codes.OK


def stage_tools(arguments: Namespace) -> int:
    from kinetic_orchestration.packaging.requirements import tools
    from kinetic_orchestration.platforms.registry import open_store

    settings = load(store=arguments.store, deployment=arguments.deployment)
    store = open_store(settings.store, settings.deployment)
    version = arguments.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    with working(f"staging uv and Python {version} in {store.url}"):
        staged = [tools.stage_uv(store, settings), tools.stage_python(store, settings, version, copies.environ())]
    if arguments.target:
        with working(f"staging the wheels of {arguments.target}"):
            wheels: dict[str, tools.Tool] = {}
            for found in {lock.digest: lock for lock, _ in _locks(arguments, settings)}.values():
                for wheel in tools.stage_wheels(store, found, copies.environ()):
                    wheels.setdefault(wheel.digest, wheel)  # another choice's may have it, too
            staged += sorted(wheels.values(), key=lambda wheel: wheel.name)
    if arguments.json:
        show_json({"store": store.url, "tools": [tool._asdict() for tool in staged]})
        return codes.OK
    rows = [(tool.name, tool.digest, size(tool.size), "new" if tool.new else "was there") for tool in staged]
    show_table(("tool", "sha256", "size", ""), rows, right=("size",))
    sys.stdout.flush()
    told = ",".join(f"{tool.name}={tool.digest}" for tool in staged[:2])
    note(f"to submit from another home than {settings.home}, set KINETIC_TOOLS={told}")
    return codes.OK


def _one_of(target: str, found: Sequence[tuple[Lock, str]]) -> tuple[Lock, str]:
    """The lock, with the comment above it, if all hardware has the same. Raises UsageError."""
    if len({one.digest for one, _ in found}) > 1:
        raise UsageError(
            f"the choices of {target} need locks that differ, as the builds of their hardware do: name one of them "
            "with --accelerator"
        )
    return found[0]


def _locks(arguments: Namespace, settings: Settings) -> list[tuple[Lock, str]]:
    """For each kind of hardware that is named, the lock of a file of requirements, or of what a function's code
    imports, and the comment above it."""
    from kinetic_orchestration.packaging.bundle import code_of, source_of
    from kinetic_orchestration.packaging.call.first_party import distributions_as_files
    from kinetic_orchestration.packaging.requirements import locks, remote

    cache, first_party = settings.home / "locks", distributions_as_files()
    target, spec = arguments.target, None
    if ":" in target or target.endswith(".py"):
        from kinetic_orchestration.cli.commands.planning import spec_of

        spec = spec_of(arguments)
        if spec.options.requirements is not None:
            target = spec.options.requirements
    made = []
    for hosts in _hosts(arguments.accelerator, spec, settings):
        lines: File | Sequence[str] = target
        pins: list[str] = []
        if spec is not None and hosts is not None and spec.options.requirements is None:
            lines, pins = remote.needed(code_of(spec, source_of(spec)), hosts, copies.environ(), first_party)
        found = locks.lock(
            lines,
            environ=copies.environ(),
            cache=cache,
            python=locks.interpreter_for(arguments.python, copies.environ()) if hosts is not None else arguments.python,
            platform=getattr(arguments, "platform", None),
            first_party=first_party,
            refresh=getattr(arguments, "refresh", False),
            hosts=hosts,
            pins=pins,
        )
        made.append((found, remote.heading(found, hosts) if hosts is not None else ""))
    return made


def _hosts(accelerator: str | None, spec: JobSpec | None, settings: Settings) -> list[Hosts | None]:
    """Hosts of each kind of hardware that is named. None: a lock for this machine."""
    if spec is None and accelerator is None:
        return [None]
    options = spec.options if spec is not None else Options(accelerator=accelerator or "")
    kinds: dict[tuple[str, str], Hosts | None] = {}
    for slice_ in map(slice_of, ways(options)):
        kinds.setdefault((slice_.kind, slice_.generation), Hosts(slice_, emulated=bool(settings.emulator)))
    return list(kinds.values())
