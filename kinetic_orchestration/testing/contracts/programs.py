"""Functions that the contract of backends runs as jobs. They travel from a copy in a project that has nothing else."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import kinetic_orchestration as kinetic


def tells_its_host() -> tuple[int, str]:
    """Print one line on every host; the value is host 0's."""
    here = kinetic.current()
    print(f"this is host {here.host_index} of {os.environ['KINETIC_HOST_COUNT']}", flush=True)
    return here.host_index, os.environ["KINETIC_HOST_COUNT"]


def fails(text: str) -> None:
    raise ValueError(text)


def runs_on_until_another_attempt(seconds: float = 600.0) -> int:
    """Run on in the first attempt; the value is the number of a later one."""
    if kinetic.current().attempt == 1:
        time.sleep(seconds)
    return kinetic.current().attempt


def runs_on(seconds: float = 600.0) -> None:
    """Ignore every request to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)


def digest_of(variable: str) -> str:
    """Return the digest of a variable that nobody may print."""
    return hashlib.sha256(os.environ[variable].encode()).hexdigest()
