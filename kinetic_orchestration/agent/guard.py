"""The guard of one host outlives its agent: what that leaves running it ends, and for an agent that dies it speaks.

Knows nothing of programs and rules. The host's lock goes with the processes that hold it, however they end: so a
look at the lock tells whether the host lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import time

from kinetic_orchestration.agent import processes
from kinetic_orchestration.agent.start import lock_of

TYPE_CHECKING = False  # a guard starts beside its agent and the program, and should take little from them
if TYPE_CHECKING:
    from typing import NoReturn

    from kinetic_orchestration.agent.assignment import Assignment
    from kinetic_orchestration.agent.program import Program


def be_the_guard(assignment: Assignment, lock: int, agent: int) -> NoReturn:
    guard = os.getpid()
    me = processes.find(guard)
    owner = {"pid": guard, "started": me.started if me else "", "machine": processes.machine()}
    os.pwrite(lock, json.dumps(owner).encode(), 0)
    processes.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: processes.send(agent, received))
    import shutil  # noqa: F401 - for `leave`, while there is time

    _, status = os.waitpid(agent, 0)
    processes.end_descendants(guard)
    try:
        if status != 0:
            speak_for(assignment, os.waitstatus_to_exitcode(status))
    finally:
        leave(assignment)
        os._exit(0)


def be_the_agent(
    assignment: Assignment, private: dict[str, dict[str, str]], started: Program | None, guard: int
) -> NoReturn:
    code = 1
    try:
        from kinetic_orchestration.agent.host import Host

        Host(assignment, private, started).run()
        code = 0
    finally:
        if os.getppid() != guard:  # it was killed, and what it would have done is left to us
            if code:
                speak_for(assignment, code)
            leave(assignment)
        os._exit(code)


def speak_for(assignment: Assignment, code: int) -> None:
    """The agent died: say so in its place, at once, so that nobody waits for it."""
    from kinetic_orchestration.agent import wire
    from kinetic_orchestration.agent.host import Host

    host = Host(assignment, {})
    how = f"by {processes.signal_name(-code)}" if code < 0 else f"with exit code {code}"
    host._write_verdict(
        wire.Verdict(
            wire.ABORTED, assignment.boot + "/guard", time.time(),
            cause=wire.PREEMPTION if code == -signal.SIGTERM else wire.INFRASTRUCTURE, host=assignment.host,
            reason=f"the agent of host {assignment.host} was ended {how}",
        )
    )  # fmt: skip
    host._farewell(cut=True)


def leave(assignment: Assignment) -> None:
    """Nothing of this host stays on the machine."""
    remove_tree(os.path.join(assignment.run, f"host-{assignment.host}"))
    with contextlib.suppress(OSError):
        os.unlink(lock_of(assignment))
        os.rmdir(assignment.run)


def remove_tree(folder: str) -> None:
    """A folder with all that is in it, folders that may not be written included."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)
