"""The hosts of an attempt on an emulated node: they are processes of this machine, and die as a node's do."""

from __future__ import annotations

import signal
from pathlib import Path

from kinetic_orchestration.protocol.system import processes


def kill_host(run: str, host: int) -> None:
    """End all processes of a host at once, its launcher first: nothing of it says a word."""
    launchers = [process for process in processes.marked(f"KINETIC_PLACEMENT={run}") if _is_host(process.pid, host)]
    assert launchers, f"there is no host {host} of {run}"
    found = {process.pid for process in launchers}
    found |= {process.pid for process in processes.descendants(*found)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in sorted(found):
            processes.send(pid, number)


def _is_host(pid: int, host: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    numbers = [word for word in words if word.startswith(b"host=")]
    return bool(numbers) and words[0] != b"srun" and words[0] != b"sh" and numbers[-1] == b"host=%d" % host
