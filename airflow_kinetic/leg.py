"""The part of a task that a worker has done when it is deferred: when that is over, and how it is over soon.

Airflow's supervisor hears that its task's process has ended by its sockets alone. These close a moment before the
process has ended, and a supervisor that looks in between looks again after [workers] min_heartbeat_interval
(`_monitor_subprocess` in airflow/sdk/execution_time/supervisor.py). So a process of ours keeps one of them open until
the task's own has ended, and closes it then. Knows nothing of jobs. Linux only: elsewhere nothing is known or done.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

_OUTPUT = 1
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CREDENTIALS = struct.Struct("3i")
_SECONDS = 600  # the longest that Airflow may be at the end of a task
_UNTIL_IT_HAS_ENDED = f"""\
import os, select, sys
ended = select.poll()
ended.register(os.pidfd_open(int(sys.argv[1])), select.POLLIN)
ended.poll({_SECONDS * 1000})
"""

_begun: list[subprocess.Popen[bytes]] = []  # so that none of them is told to be forgotten


def ends_soon() -> dict[str, Any] | None:
    """Let the supervisor hear of the end of this process at once. Which one that is; None where nobody could tell when
    it has ended: where no supervisor is its parent, as in `dag.test()` or for a user of its own.
    """
    if not hasattr(os, "pidfd_open") or _other_end() != os.getppid() or not (here := _here()):
        return None
    command = [sys.executable, "-I", "-S", "-c", _UNTIL_IT_HAS_ENDED, str(os.getpid())]
    try:
        waits = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )  # with this one's standard output
    except OSError:  # no process more: then it is as it is without one
        return None
    _begun.append(waits)
    return {"here": here, "pid": os.getpid()}


def is_known(leg: dict[str, Any] | None) -> bool:
    """Whether it can be told here whether it is over: on the same machine, and in the same container."""
    return leg is not None and leg["here"] == _here()


def is_over(leg: dict[str, Any]) -> bool:
    """Whether its supervisor has heard of its end. Not of one whose number another process has by now."""
    try:
        os.kill(leg["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        return False
    return False


def _here() -> str:
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _other_end() -> int | None:
    """The process at the other end of the standard output, if that is a socket."""
    try:
        with socket.socket(fileno=os.dup(_OUTPUT)) as output:
            said = output.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(said)[0])
    except OSError:
        return None
