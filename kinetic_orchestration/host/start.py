"""Starts a host, or the several that share a machine of the cloud: each takes its lock, detaches, and becomes two
processes, the guard and the agent.

The program's own process is by far the slowest to start. So it is started here, before the imports of guard and agent,
and nothing in this module may need more than `os`.
"""

from __future__ import annotations

import os
import sys

from kinetic_orchestration.host.process import pipes
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import lock

NOTHING = b"{}"


def main() -> None:
    """Start a host. The launcher ends once the lock is held, so its end tells the submitter that the host exists."""
    assignment = Assignment.from_words(sys.argv[1:])
    private = _decoded(sys.stdin.buffer.read())  # cut short when the submitter died: then nothing starts
    for _ in range(1, assignment.processes):
        if os.fork():
            break
        assignment = assignment.next()
    held = lock.take(assignment)
    if held is None:
        os._exit(0)
    if child := os.fork():
        os._exit(_remain(child) if assignment.pod or os.getpid() == 1 else 0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for end in (0,) if assignment.pod else (0, 1, 2):  # what a pod writes is its log
        os.dup2(null, end)
    guard = os.getpid()
    agent = os.fork()
    name_process("kinetic-guard" if agent else "kinetic-agent")
    if agent == 0:
        started = None
        if assignment.python:
            try:
                started = pipes.start(assignment.python, pipes.FUNCTION, assignment.marker, private.get("env", {}))
            except OSError:  # no process could be started, which is reported when one is needed
                pass
        from kinetic_orchestration.host.guard import be_the_agent

        be_the_agent(assignment, private, started, guard)
    from kinetic_orchestration.host.guard import be_the_guard

    be_the_guard(assignment, held, agent, {"seal": private.get("seal", {})})


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show: all processes of a host share their command line."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)
    except OSError:  # a system that knows no such thing
        pass


def _remain(guard: int) -> int:
    """Stay as the first process of a container, which ends with it, until the guard ends, and pass on signals. Returns
    the guard's exit code, 128 plus the number of a signal: the container reports a guard that was killed.
    """
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(guard, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked since before there was this program
    while (ended := os.wait())[0] != guard:
        pass
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code >= 0 else 128 - code


def _decoded(private: bytes) -> dict[str, dict[str, str]]:
    if private == NOTHING:
        return {}
    import json

    fields: dict[str, dict[str, str]] = json.loads(private)
    return fields
