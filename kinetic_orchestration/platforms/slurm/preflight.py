"""Finds what a cluster of Slurm lacks for a job, before it is submitted: findings for `doctor`, else a refusal.

It asks for partitions and nodes, which cost the controller one answer each, and never for accounts: without a database
Slurm has none, and takes any name.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.platforms.slurm import commands, script
from kinetic_orchestration.protocol import wire

LASTS = 300.0  # seconds for which what has passed is not asked again
LOOK = 20.0  # seconds in which a node is to show the shared folder
_passed: dict[tuple[object, ...], float] = {}


class Partition(NamedTuple):
    """A partition as `sinfo` shows it.

    Attributes:
        name: Its name.
        up: True if jobs may start there.
        nodes: Its nodes.
        gres: The generic resources of its kinds of nodes, as Slurm writes them.
        is_default: Jobs that name none run there.
    """

    name: str
    up: bool
    nodes: int
    gres: tuple[str, ...]
    is_default: bool


def partitions() -> list[Partition]:
    """Return the partitions. Raises Silent."""
    done = commands.run(["sinfo", "--noheader", "--all", "--format=%P\x1f%a\x1f%D\x1f%G"])
    if done.code:
        raise commands.Silent(f"sinfo could not list the partitions: {commands.told(done.errors)}", wire.INTERNAL)
    found: dict[str, Partition] = {}
    for line in done.out.splitlines():
        name, up, nodes, gres = [*line.split("\x1f"), "", "", ""][:4]
        if not name:
            continue
        plain, before = name.rstrip("*"), found.get(name.rstrip("*"))
        gres = "" if gres == "(null)" else gres
        more = Partition(plain, up == "up", int(nodes) if nodes.isdecimal() else 0, (gres,), name.endswith("*"))
        found[plain] = more if before is None else before._replace(
            nodes=before.nodes + more.nodes, gres=(*before.gres, gres)
        )  # fmt: skip
    return list(found.values())


def require(plan: Plan) -> None:
    """Refuse what no partition can have. What passed is asked again a while later.

    Raises:
        BackendError: A partition or its GPUs are not there, or Slurm has no command here.
    """
    key = os.getpid(), str(plan.cloud.get("partition")), script.gres(plan), plan.hosts
    if time.monotonic() - _passed.get(key, -LASTS) < LASTS:
        return
    try:
        failed = [found for found in _of_partition(plan, partitions()) if found.state == FAILED]
    except commands.Silent as error:
        if error.cause == wire.CONFIGURATION:
            raise
        return  # a controller that is busy now may answer when the job is submitted
    if failed:
        raise BackendError("; ".join(f"{found.found}: {found.fix}" for found in failed), wire.CONFIGURATION)
    _passed[key] = time.monotonic()


def examine(plan: Plan) -> Iterator[Finding]:
    """Run all checks, the look from a node at the shared folder among them."""
    try:
        known = partitions()
    except commands.Silent as error:
        yield Finding("slurm", FAILED, str(error), _of_munge(str(error)))
        return
    yield Finding("slurm", OK, f"it has the partitions {', '.join(one.name for one in known)}")
    failed = False
    for found in _of_partition(plan, known):
        failed = failed or found.state == FAILED
        yield found
    yield _account(plan)
    if not failed:
        yield _folder(plan)


def _of_munge(told: str) -> str:
    if "munge" in told.lower() or "authentication" in told.lower():
        return "munge does not vouch for this user: `munge -n | unmunge` says why; its daemon and key are the cluster's"
    return "submit from a login node of the cluster; `scontrol ping` says whether its controller answers"


def _of_partition(plan: Plan, known: list[Partition]) -> Iterator[Finding]:
    named = [name for name in str(plan.cloud.get("partition") or "").split(",") if name]
    names = ", ".join(one.name for one in known)
    absent = [name for name in named if name not in {one.name for one in known}]
    if absent:
        fix = f"name one of {names} with cloud=Slurm(partition=…)"
        yield Finding("partition", FAILED, f"Slurm has no partition {', '.join(absent)}", fix)
        return
    asked = [one for one in known if one.name in named] or [one for one in known if one.is_default]
    if not asked:
        fix = f"name one of {names} with cloud=Slurm(partition=…)"
        yield Finding("partition", FAILED, "Slurm has no default partition", fix)
        return
    down = [one.name for one in asked if not one.up]
    told = ", ".join(one.name for one in asked)
    if down:
        yield Finding("partition", WARNING, f"{', '.join(down)} is down", "jobs wait there; name another partition")
    else:
        yield Finding("partition", OK, f"{told} is up")
    if wanted := script.gres(plan):
        yield _gres(plan, wanted, asked, told)


def _gres(plan: Plan, wanted: str, asked: list[Partition], where: str) -> Finding:
    there = sorted({_plain(one) for partition in asked for text in partition.gres for one in _several(text)})
    if all(any(_fits(one, had) for had in there) for one in _several(wanted)):
        return Finding("gres", OK, f"nodes of {where} have {wanted}")
    listed = ", ".join(there) or "none"
    fix = "name what is there with cloud=Slurm(gres='gpu:TYPE:NUMBER'), or another partition"
    if not there:
        fix = "name a partition whose nodes have GPUs, or accelerator='cpu'"
    return Finding("gres", FAILED, f"no node of {where} has {wanted} for {plan.slice.name}; they have {listed}", fix)


def _several(text: str) -> list[str]:
    return [one for one in re.split(r",(?![^(]*\))", text) if one]


def _plain(gres: str) -> str:
    """Return a generic resource without the sockets that it lies on: `gpu:a100:4(S:0-1)`."""
    return gres.partition("(")[0]


def _fits(wanted: str, there: str) -> bool:
    """Return True if a node that has these has so many of that name and type."""
    name, *rest = wanted.split(":")
    had, *others = there.split(":")
    if name != had:
        return False
    kind, count = (rest[0] if rest and not rest[0].isdecimal() else ""), (rest[-1] if rest else "1")
    of_kind, number = (others[0] if others and not others[0].isdecimal() else ""), (others[-1] if others else "1")
    enough = not (count.isdecimal() and number.isdecimal()) or int(count) <= int(number)
    return enough and kind in ("", of_kind)


def _account(plan: Plan) -> Finding:
    """Say whether Slurm looks at accounts at all."""
    account, qos = (str(plan.cloud.get(name) or "") for name in ("account", "qos"))
    try:
        done = commands.run(["scontrol", "show", "config"])
    except commands.Silent as silent:
        return Finding("account", WARNING, f"whether Slurm enforces accounts is not known: {silent}")
    found = re.search(r"AccountingStorageEnforce\s*=\s*(\S+)", done.out)
    if found is None or found[1] in ("none", "(null)"):
        told = "Slurm enforces no accounts here"
        asked = " and ".join(filter(None, (account and f"account={account!r}", qos and f"qos={qos!r}")))
        return Finding("account", OK, f"{told}: {asked} is only a label" if asked else told)
    named = f"account {account}" if account else "the default account"
    return Finding("account", OK, f"Slurm enforces {found[1]}; jobs are counted for {named}")


def _folder(plan: Plan) -> Finding:
    """Have a node look at the shared folder and at the store: only it can say."""
    folder, store = Path(str(plan.cloud["folder"])), Path(plan.store)
    probe = folder / f".kinetic-probe-{os.getpid()}"
    where = f"--partition={plan.cloud['partition']}" if plan.cloud.get("partition") else "--ntasks=1"
    named = {"folder": probe, "store": store, "python": Path(sys.executable)}
    look = "; ".join(f"test -e {shlex.quote(str(path))} && echo {what}" for what, path in named.items())
    try:
        probe.touch()
        words = ["srun", "--quiet", "--immediate=10", "--time=1", "--nodes=1", "--ntasks=1", where, "--chdir=/"]
        done = commands.run([*words, "/bin/sh", "-c", f"{look}; true"], patience=LOOK)
    except commands.Silent as error:
        return Finding("folder", WARNING, f"no node was free to look at {folder}: {error}", "ask again later")
    except OSError as error:
        told = f"{folder} cannot be written: {error.strerror}"
        return Finding("folder", FAILED, told, "name another with KINETIC_HOME")
    finally:
        probe.unlink(missing_ok=True)
    seen = done.out.split()
    if done.code and not seen:
        return Finding("folder", WARNING, f"no node was free to look: {commands.told(done.errors)}", "ask again later")
    named["folder"] = folder
    lacks = [str(path) for what, path in named.items() if what not in seen]
    if lacks:
        fix = (
            "put it on a file system that login node and nodes mount under the same path: cloud=Slurm(folder=…), "
            "KINETIC_HOME, KINETIC_STORE, and the environment of Python"
        )
        return Finding("folder", FAILED, f"a node does not see {', '.join(lacks)}", fix)
    return Finding("folder", OK, f"a node sees {folder}, the store and this Python")
