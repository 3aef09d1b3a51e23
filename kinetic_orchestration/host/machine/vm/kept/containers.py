"""The containers of a VM that may be kept, whose parent is a service and no process of the job.

What docker answers is read by its documented command line alone (https://docs.docker.com/reference/cli/docker/).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 30.0  # seconds for an answer
CONTAINERS = "container"
# What docker has, and how it lists that. Containers are removed; what of the others is new is a doubt.
LISTS = {
    CONTAINERS: ("ps", "--all", "--quiet", "--no-trunc"),
    "image": ("image", "ls", "--all", "--quiet", "--no-trunc"),
    "network": ("network", "ls", "--filter", "type=custom", "--quiet", "--no-trunc"),
    "volume": ("volume", "ls", "--quiet"),
}


def remember() -> dict[str, list[str]]:
    """Return what docker has, by its kind; nothing where there is no docker that runs. Raises Unclean."""
    return {kind: _docker(*words) for kind, words in LISTS.items()} if _runs() else {}


def remove(before: Mapping[str, list[str]]) -> None:
    """Remove the containers that were not there before. Raises Unclean for what is left, and for anything else that is
    new: a volume, a network or an image may be another's. So may all that a docker has that runs only now."""
    if not _runs():
        if before:
            raise Unclean("its docker does not run any longer")
        return
    if not before:
        raise Unclean("docker runs, which it did not before")
    if more := _new(CONTAINERS, before):
        _docker("rm", "--force", "--volumes", *more)
        if left := _new(CONTAINERS, before):
            raise Unclean(f"its containers {', '.join(left)} could not be removed")
    for kind in LISTS:
        if more := _new(kind, before):
            raise Unclean(f"docker has a new {kind}, {more[0]}")


def _new(kind: str, before: Mapping[str, list[str]]) -> list[str]:
    return sorted(set(_docker(*LISTS[kind])) - set(before[kind]))


def _runs() -> bool:
    return _program() is not None and os.path.exists(os.path.join(bootstrap.root(), "var", "run", "docker.sock"))


def _program() -> str | None:
    import shutil

    return shutil.which("docker")


def _docker(*words: str) -> list[str]:
    """Return the lines that docker answers. Raises Unclean."""
    import subprocess

    try:
        done = subprocess.run(
            [_program() or "docker", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unclean(f"its docker does not answer: {error}") from None
    if done.returncode:
        raise Unclean(f"its docker does not answer: {done.stderr.strip()[-200:]}")
    return done.stdout.split()
