"""How a host begins: it takes its lock, detaches, and becomes two processes, the guard and the agent.

The program's own process is by far the slowest to start. So it is started here, before what guard and agent need
is imported, and nothing in this module may need more than `os`.
"""

from __future__ import annotations

import os
import sys
import time

from kinetic_orchestration.agent import program
from kinetic_orchestration.agent.assignment import Assignment

NOTHING = b"{}"


def main() -> None:
    """The launcher ends once the lock is held, so its end tells the submitter that the host is there."""
    assignment = Assignment.from_words(sys.argv[1:])
    private = _decoded(sys.stdin.buffer.read())  # cut short when the submitter died: then nothing starts
    lock = take(assignment)
    if lock is None:
        os._exit(0)
    if child := os.fork():
        os._exit(_remain(child) if os.getpid() == 1 else 0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for end in (0, 1, 2):
        os.dup2(null, end)
    guard = os.getpid()
    agent = os.fork()
    call("kinetic-guard" if agent else "kinetic-agent")
    if agent == 0:
        started = None
        if assignment.python:
            try:
                started = program.start(assignment.python, program.FUNCTION, assignment.marker, private.get("env", {}))
            except OSError:  # no process could be made; what that means is told when there must be one
                pass
        from kinetic_orchestration.agent.guard import be_the_agent

        be_the_agent(assignment, private, started, guard)
    from kinetic_orchestration.agent.guard import be_the_guard

    be_the_guard(assignment, lock, agent, {"seal": private.get("seal", {})})


def call(name: str) -> None:
    """What `ps` and `top` show of this process: all of a host share their command line."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)
    except OSError:  # a system that knows no such thing
        pass


def _remain(guard: int) -> int:
    """A container ends with its first process, so that one stays as long as the host does, and hands on its signals.
    It ends as the guard did, by a signal as a shell tells it: of a guard that was killed, its container has to speak.
    """
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(guard, received))
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


def take(assignment: Assignment) -> int | None:
    """The descriptor of this host's lock; None if another life of the host has it, or its folder was released.

    The file gets its name when it is locked already, so that nobody ever sees a lock without a holder and takes
    the host for dead.
    """
    import fcntl

    name = lock_of(assignment)
    fresh = f"{name}.{os.getpid()}"
    for _ in range(20):
        try:
            lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if assignment.devices:  # which nobody else gets as long as this lock is held
                os.write(lock, told(assignment, "").encode())
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
            if assignment.devices:
                os.ftruncate(lock, os.pwrite(lock, told(assignment, "").encode(), 0))
            return lock
        os.close(lock)
    return None


def told(assignment: Assignment, more: str) -> str:
    """Return the text of the lock's file, as JSON: first the devices, which are there before the file has its name.
    `more` is what is known later: it only adds to the text, so that who reads meanwhile finds the same devices.
    """
    parts = [part for part in (f'"devices": {assignment.devices}' if assignment.devices else "", more) if part]
    return "{" + ", ".join(parts) + "}"


def lock_of(assignment: Assignment) -> str:
    return os.path.join(assignment.run, f"host-{assignment.host}.json")


def mark_full(file: str, full: bool) -> None:
    """Say that somebody waits for room on a disk, by the mode of a file that is there: that needs no room. By its
    lock's file a host tells of the store's disk, by the file for its stacks a program tells its host of the host's own.
    """
    os.chmod(file, 0o700 if full else 0o600)


def is_marked_full(file: str) -> bool:
    """Whether whoever has that file waits for room, or did so to its end."""
    try:
        return bool(os.stat(file).st_mode & 0o100)
    except OSError:
        return False
