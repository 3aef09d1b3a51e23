"""The guard of one host outlives its agent: what that leaves running it ends, and for an agent that dies it speaks.

Knows nothing of programs and rules. The host's lock goes with the processes that hold it, however they end: so a
look at the lock tells whether the host lives.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.system.folders import remove_tree
from kinetic_orchestration.protocol.system.lock import content_of, is_marked_full, mark_full, path_of

TYPE_CHECKING = False  # a guard starts together with its agent and the program, and should delay neither
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from kinetic_orchestration.host.host import Host
    from kinetic_orchestration.host.process.pipes import Program
    from kinetic_orchestration.protocol.assignment import Assignment


def be_the_guard(assignment: Assignment, lock: int, agent: int, private: dict[str, dict[str, str]]) -> NoReturn:
    guard = os.getpid()
    me = processes.find(guard)
    started = me.started if me else ""
    # Formatted manually: to import json would take longer than all the rest here.
    owner = content_of(assignment, f'"pid": {guard}, "started": "{started}", "machine": "{processes.machine()}"')
    os.pwrite(lock, owner.encode(), 0)
    processes.adopt_orphans()
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        processes.send(agent, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a pod's may have come before
    _, status = os.waitpid(agent, 0)
    processes.end_descendants(guard)
    processes.end_strays(*assignment.marks)
    denied = False
    try:
        if status != 0:
            report_for(assignment, private, os.waitstatus_to_exitcode(status))
    except OSError as error:
        denied = error.errno == errno.EACCES
        raise
    finally:
        os._exit(clean_up(assignment, denied=denied, whole=status == 0, goes_down=lambda: signal.SIGTERM in received))


def be_the_agent(
    assignment: Assignment, private: dict[str, dict[str, str]], started: Program | None, guard: int
) -> NoReturn:
    code, host = 1, None
    try:
        from kinetic_orchestration.host.host import Host

        host = Host(assignment, private, started)
        host.run()
        code = 0
    except Exception:
        import traceback

        report_for(assignment, private, code, traceback.format_exc())
    finally:
        if os.getppid() != guard:  # the guard was killed: this process does its work
            if code:
                report_for(assignment, private, code)
            clean_up(assignment, goes_down=lambda: host is not None and host.ended != "")
        os._exit(code)


def report_for(assignment: Assignment, private: dict[str, dict[str, str]], code: int, evidence: str = "") -> None:
    """Report in place of an agent that died, immediately, so that no process waits for it. Where the store cannot be
    told, Kubernetes can. Raises what keeps the store from it.
    """
    how = f"by {processes.signal_name(-code)}" if code < 0 else f"with exit code {code}"
    told = f"the agent of host {assignment.host} was ended {how}"
    try:
        _write_verdict(assignment, private, code, told, evidence)
    except Exception as error:
        if assignment.pod:
            from kinetic_orchestration.host.machine.pod import last_words

            why = "".join(f" ({line})" for line in evidence.strip().splitlines()[-1:])
            last_words.leave(f"{told}{why}, and the store could not be told: {last_words.sentence(error)}")
        raise


def _write_verdict(
    assignment: Assignment, private: dict[str, dict[str, str]], code: int, told: str, evidence: str
) -> None:
    from kinetic_orchestration.host.host import Host

    if full := is_marked_full(path_of(assignment)):
        remove_tree(os.path.join(assignment.run, f"host-{assignment.host}"))  # which may make room for these words
        evidence = f"the disk of the store stayed full ({assignment.store})\n{evidence}"
    speak(Host(assignment, private), code, f"{told}\n{evidence}".strip())
    if full:
        mark_full(path_of(assignment), False)


def speak(host: Host, code: int, reason: str) -> None:
    """End the attempt of a host whose agent died with that exit code, unless its cloud tells who ended its machine, or
    its place has not won the attempt's race."""
    from kinetic_orchestration.host.attempt import race
    from kinetic_orchestration.protocol import wire

    if not race.has_won(host.at, host.records, host.outcome.key):
        return
    if code == -signal.SIGTERM and host.machine.is_explained and not host.machine.notice():
        return
    cause = host.machine.counts_as if code == -signal.SIGTERM else wire.INFRASTRUCTURE
    writer = host.at.boot + "/guard"
    host.write_verdict(wire.Verdict(wire.ABORTED, writer, time.time(), cause=cause, host=host.at.host, reason=reason))


def clean_up(
    assignment: Assignment, *, denied: bool = False, whole: bool = False, goes_down: Callable[[], bool]
) -> int:
    """Remove everything of this host from the machine, and the machine itself if it was made for this host. The lock's
    file stays, as a mark, if a full disk prevented the last message. Returns the exit code with which a pod ends.
    `denied`: the store does not let this host write. `whole`: have its agent and its guard come to their end? Only then
    the machine may be kept for the next attempt. `goes_down`: has the machine been asked to end?
    """
    code = 0
    remove_tree(os.path.join(assignment.run, f"host-{assignment.host}"))
    if assignment.resource:
        if assignment.epoch or os.path.exists(assignment.kept):
            from kinetic_orchestration.host.attempt.idle import stay

            stay(assignment, whole=whole, goes_down=goes_down)
        from kinetic_orchestration.host.attempt.self_delete import delete_own_slice

        delete_own_slice(assignment, goes_down=goes_down)
    elif assignment.pod:
        from kinetic_orchestration.host.attempt.self_delete import exit_code

        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all is said: a pod that is deleted waits for nobody
        code = exit_code(assignment, denied=denied)
    if is_marked_full(path_of(assignment)):
        return code
    try:
        os.unlink(path_of(assignment))
        os.rmdir(assignment.run)
    except OSError:
        pass
    return code
