"""The process of the user's program, as the agent sees it: how it is started, and the pipes to it.

Needs nothing but `os`, so that it can be started before anything else is imported.
"""

from __future__ import annotations

import os
import sys

from kinetic_orchestration.host.process import topology
from kinetic_orchestration.protocol.system import copies

FUNCTION = "function"
COMMAND = "command"
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # variables that would lead a Python out of its environment


_SITE = os.path.abspath(os.path.join(__file__, *[os.pardir] * (__name__.count(".") + 1)))  # a folder, or one in the zip


def program_of(module: str) -> str:
    """Return a program for `python -c` that runs `main` of a module of this package, and leaves no path to it."""
    return f"import sys; sys.path.insert(0, {_SITE!r}); from {module} import main; del sys.path[0]; main()"


class Program:
    """A process that waits for its one line of JSON on `go`, and writes to `out` and `err`."""

    __slots__ = ("err", "go", "out", "pid")

    def __init__(self, pid: int, go: int, out: int, err: int) -> None:
        self.pid = pid
        self.go = go
        self.out = out
        self.err = err


def start(
    python: str, kind: str, marks: tuple[str, ...], secrets: dict[str, str], *, isolated: bool = False
) -> Program:
    """`marks`: assignments by which its processes are found. `isolated`: an environment of its own sees nothing of the
    submitter's.
    """
    control, go = os.pipe()
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    os.set_inheritable(control, True)
    environment = {name: value for name, value in copies.environ().items() if not topology.is_stale(name)}
    if isolated:
        for name in FOREIGN:
            environment.pop(name, None)
    environment.update(secrets)
    environment.update(dict(mark.split("=", 1) for mark in marks))
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("PYTHONUNBUFFERED", "1")  # or lines of a Python below would come late, or never
    agent = os.path.dirname(sys.path[0])  # a folder, or the zip itself
    child = [agent, "--child"] if os.path.isfile(agent) else [os.path.join(agent, "child.py")]
    pid = os.posix_spawn(
        python, [python, *child, str(control), kind], environment, setsid=True, setsigmask=[],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out_end, 1),
            (os.POSIX_SPAWN_DUP2, err_end, 2),
        ],
    )  # fmt: skip
    for end in (control, out_end, err_end):
        os.close(end)
    return Program(pid, go, out, err)
