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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import NoReturn

NOTHING = b"{}"


def main() -> None:
    """Start a host. The launcher ends once the lock is held, so its end tells the submitter that the host exists."""
    if sys.argv[1] == "--standby":
        _stand_by(sys.argv[2:])
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
        os._exit(_remain(child) if assignment.pod or assignment.batch or os.getpid() == 1 else 0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for end in (0,) if assignment.pod else (0, 1, 2):  # what a pod writes is its log
        os.dup2(null, end)
    guard = os.getpid()
    agent = os.fork()
    name_process("kinetic-guard" if agent else "kinetic-agent")
    if agent == 0:
        started = _started(assignment.python, assignment.marks, private.get("env", {}))
        from kinetic_orchestration.host.guard import be_the_agent

        be_the_agent(assignment, private, started, guard)
    from kinetic_orchestration.host.guard import be_the_guard

    be_the_guard(assignment, held, agent, {"seal": private.get("seal", {})})


def _stand_by(words: list[str]) -> NoReturn:
    """Stand by as the next guard, with an agent and a program below."""
    import socket

    from kinetic_orchestration.host.process import standby

    channel, before = socket.socket(fileno=int(words[0])), Assignment.from_words(words[1:])
    name_process(standby.NAME)
    to_agent, of_guard = socket.socketpair()
    guard = os.getpid()
    agent = os.fork()
    if agent == 0:
        channel.close()
        to_agent.close()
        _stand_by_as_agent(of_guard, before, guard)
    of_guard.close()
    from kinetic_orchestration.host.guard import be_the_guard

    told, _ = standby.orders(channel)
    if told is None:
        os._exit(0)
    assignment, private = standby.read(told)
    held = lock.take(assignment)
    if held is None:
        os._exit(1)
    name_process("kinetic-guard")
    socket.send_fds(to_agent, [told], [held])  # which it holds too: the host lives as long as one of them
    to_agent.close()
    channel.sendall(standby.TAKEN)
    channel.close()
    be_the_guard(assignment, held, agent, {"seal": private.get("seal", {})})


def _stand_by_as_agent(channel: socket, before: Assignment, guard: int) -> NoReturn:
    from kinetic_orchestration.host.process import standby

    started = _started(before.python, (f"KINETIC_PLACEMENT={before.home}/standby",), {})
    _import_ahead(before)
    from kinetic_orchestration.host.guard import be_the_agent

    told, held = standby.orders(channel)
    if told is None or not held:
        os._exit(0)  # the program ends with this process
    name_process("kinetic-agent")
    channel.close()
    assignment, private = standby.read(told)
    if started is not None and assignment.python != before.python:
        os.kill(started.pid, 9)
        os.waitpid(started.pid, 0)
        started = None
    if started is None:
        started = _started(assignment.python, assignment.marks, private.get("env", {}))
    be_the_agent(assignment, private, started, guard)


def _started(python: str, marks: tuple[str, ...], secrets: dict[str, str]) -> pipes.Program | None:
    """Start the program's process, if its Python is known."""
    try:
        return pipes.start(python, pipes.FUNCTION, marks, secrets) if python else None
    except OSError:  # no process could be started, which is reported when one is needed
        return None


def _import_ahead(before: Assignment) -> None:
    """Import what the agent of such a machine needs on its way to the program."""
    from kinetic_orchestration.host.attempt import lease  # noqa: F401
    from kinetic_orchestration.host.attempt.opening import machine_of
    from kinetic_orchestration.host.host import Host  # noqa: F401
    from kinetic_orchestration.host.prepare import preparation  # noqa: F401
    from kinetic_orchestration.host.view.open_records import open_view

    machine_of(before)
    try:
        open_view(before, _never, _never)  # which starts nothing
    except OSError:
        pass


def _never() -> NoReturn:
    raise AssertionError("nothing is shown of an attempt that has ended")


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
