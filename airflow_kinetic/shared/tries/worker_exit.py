"""The end of a worker's part of a task at its deferral: its supervisor is notified immediately.

Airflow's supervisor learns by sockets alone that its task's process has ended. These close a moment before the process
has ended, and a supervisor that polls in between polls again after [workers] min_heartbeat_interval
(`_monitor_subprocess` in airflow/sdk/execution_time/supervisor.py). So a process of ours keeps one of them open until
the task's own has ended, and closes it then. Linux only: elsewhere nothing is done.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

_OUTPUT = 1
_CREDENTIALS = struct.Struct("3i")
_FIRST = Path("/proc/1/comm")
_NO_INIT = ("airflow", "celery", "gunicorn", "python")  # who waits for no child but its own
_SECONDS = 600  # the longest that Airflow may be at the end of a task
_UNTIL_IT_HAS_ENDED = f"""\
import os, select, sys
ended = select.poll()
ended.register(os.pidfd_open(int(sys.argv[1])), select.POLLIN)
ended.poll({_SECONDS * 1000})
"""

_begun: list[subprocess.Popen[bytes]] = []  # kept, so that Python does not warn of a running process


def announce_exit() -> bool:
    """Notify the supervisor of the end of this process immediately; return whether that works. It does not if the
    parent is no supervisor, as in `dag.test()` or for a task with its own user, nor if no process would reap the one
    that outlives this one, as in a container whose first process is Airflow itself.
    """
    if not hasattr(os, "pidfd_open") or _other_end() != os.getppid() or not _has_init():
        return False
    command = [sys.executable, "-I", "-S", "-c", _UNTIL_IT_HAS_ENDED, str(os.getpid())]
    try:
        waits = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )  # with this one's standard output
    except OSError:  # no process more: then it is as it is without one
        return False
    _begun.append(waits)
    return True


def _has_init() -> bool:
    try:
        return not _FIRST.read_text().startswith(_NO_INIT)
    except OSError:
        return False


def _other_end() -> int | None:
    """The process at the other end of the standard output, if that is a socket."""
    try:
        with socket.socket(fileno=os.dup(_OUTPUT)) as output:
            said = output.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(said)[0])
    except OSError:
        return None
