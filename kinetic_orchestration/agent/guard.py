"""The guard of one host: takes the host's lock, starts its agent and outlives it. What the agent leaves running it
ends, and for an agent that dies it speaks.

Knows nothing of programs and rules. Its lock goes with the processes that hold it, however they end: so a look at
the lock tells whether a host lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import time

from kinetic_orchestration.agent import processes, wire
from kinetic_orchestration.agent.host import Assignment, Host


def main() -> None:
    """The launcher ends once the lock is held, so its end tells the submitter that the host is there."""
    assignment = Assignment.from_json(sys.argv[1])
    private = json.loads(sys.stdin.buffer.read())  # cut short when the submitter died: then nothing starts
    lock = take(assignment)
    if lock is None or os.fork():
        os._exit(0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for end in (0, 1, 2):
        os.dup2(null, end)
    guard = os.getpid()
    me = processes.find(guard)
    owner = {"pid": guard, "started": me.started if me else "", "machine": processes.machine()}
    os.pwrite(lock, json.dumps(owner).encode(), 0)
    agent = os.fork()
    if agent == 0:
        _be_the_agent(assignment, private, guard)
    processes.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: processes.send(agent, received))
    _, status = os.waitpid(agent, 0)
    processes.end_descendants(guard)
    try:
        if status != 0:
            speak_for(assignment, os.waitstatus_to_exitcode(status))
    finally:
        leave(assignment)
        os._exit(0)


def _be_the_agent(assignment: Assignment, private: dict[str, dict[str, str]], guard: int) -> None:
    code = 1
    try:
        Host(assignment, private).run()
        code = 0
    finally:
        if os.getppid() != guard:  # it was killed, and what it would have done is left to us
            if code:
                speak_for(assignment, code)
            leave(assignment)
        os._exit(code)


def take(assignment: Assignment) -> int | None:
    """The descriptor of this host's lock; None if another life of the host has it, or its folder was released.

    The file gets its name when it is locked already, so that nobody ever sees a lock without a holder and takes
    the host for dead.
    """
    import fcntl

    name = _lock(assignment)
    fresh = f"{name}.{os.getpid()}"
    for _ in range(20):
        try:
            lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.link(fresh, name)
        except FileExistsError:
            os.close(lock)
        else:
            return lock
        finally:
            os.unlink(fresh)
        try:
            lock = os.open(name, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another life of this host, or somebody who looks whether there is one
            os.close(lock)
            time.sleep(0.005)
            continue
        if os.fstat(lock).st_nlink:  # of a life that was killed
            return lock
        os.close(lock)
    return None


def speak_for(assignment: Assignment, code: int) -> None:
    """The agent died: say so in its place, at once, so that nobody waits for it."""
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
        os.unlink(_lock(assignment))
        os.rmdir(assignment.run)


def remove_tree(folder: str) -> None:
    """A folder with all that is in it, folders that may not be written included."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)


def _lock(assignment: Assignment) -> str:
    return os.path.join(assignment.run, f"host-{assignment.host}.json")
