"""The last thing a host does: it sees to it that its slice is deleted, or ends with its pod, in its turn.

Host 0 of a slice of VMs deletes it as soon as every host is done, so that one call is enough, of each slice. If it
cannot, the others follow one after the other, and at once if those before them never began. A VM whose group deletes
all that it has shuts down, and waits for no turn. VMs of Compute Engine that no group has made end one by one: one that
is no longer there is not waited for, neither for its last words nor for its turn.

Host 0 of several pods ends last, because a pod that fails has the cluster end the others. If it does not come to its
end, the others fail in its place: nobody else ends a pod that is stuck, or frees its node. Knows the records of the end
and nothing of programs.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.attempt import race
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.records.base import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment

LATE = 15.0  # seconds that host 0 waits for the others after the verdict's grace
FIRST_TURN = 45.0  # seconds that the others leave to host 0
TURN = 10.0
LOOK = 0.25
SLOWEST_LOOK = 2.0
LOOK_AT_VMS = 5.0  # seconds between two questions whether the hosts whose turn comes first still exist

_NO_WORD = wire.EXIT_CODES[wire.INFRASTRUCTURE]


class Turn(enum.Enum):
    """When a host deletes the slice."""

    FIRST = "no host comes before it: the last words of the others are waited for"
    OWN = "those before it had theirs"
    NONE = "what it is on is being deleted"


def delete_own_slice(at: Assignment, *, goes_down: Callable[[], bool] = lambda: False) -> None:
    """Returns when the slice is gone, which a process on it does not live to see. `goes_down`: is this machine asked
    to end? It waits for all of its processes then: those beside the first end, and leave the rest to that one.
    """
    from kinetic_orchestration.host.attempt.opening import machine_of
    from kinetic_orchestration.host.machine import bootstrap

    if not at.resource:
        return
    if at.host % at.processes:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # before it is asked, so that no signal goes unheard
        if goes_down():
            return
    if race.is_out(at):  # its slice waits for nobody's words
        with contextlib.suppress(Exception):
            race.tell_held(at, float(machine_of(at).start_facts().get("up", 0.0)))
        bootstrap.end_slice(at.resource, *at.unit(), taken=lambda: race.tell_gone(at))
        return
    turn = _wait_for_turn(at) if at.host else Turn.FIRST if at.hosts > 1 else Turn.OWN
    if turn is Turn.NONE:
        return
    if turn is Turn.FIRST:
        from kinetic_orchestration.host.view.open_records import open_records

        # The slice is deleted even if the others' state is unknown.
        with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
            _wait_for_others(at, records)
    bootstrap.end_slice(at.resource, *at.unit(), taken=lambda: _tell(at))


def exit_code(at: Assignment, *, denied: bool = False) -> int:
    """Return the code with which this pod is to end, once it may.

    Host 0 waits for the others, and ends as the attempt did. If it cannot know how that was, it leaves the reason for
    Kubernetes to show. The others leave the code to it, unless it does not come to its end: then they end so, of which
    their cluster ends the pod of host 0, too. One that the store has never let write (`denied`) is not to be tried
    again.
    """
    from kinetic_orchestration.host.view.open_records import open_records

    try:
        with contextlib.closing(open_records(at.store)) as records:
            if at.hosts > 1 and not at.host:
                _wait_for_others(at, records)
            found = read_bounded(records, names.verdict(at.job, at.attempt))
            if found is not None:
                verdict = wire.Verdict.decode(found)
                if verdict.kind == wire.COMMITTED or (at.host and _is_told_by_host_0(at, records, verdict)):
                    return 0
                return wire.EXIT_CODES.get(verdict.cause, _NO_WORD)
            if denied and read_bounded(records, at.own("started.json")) is None:
                return wire.EXIT_CODES[wire.CONFIGURATION]
    except Exception as error:
        if not at.host:
            from kinetic_orchestration.host.machine.pod import last_words

            last_words.leave(f"the attempt's end could not be read: {last_words.sentence(error)}")
    return 0 if at.host else _NO_WORD


def _tell(at: Assignment) -> None:
    """Tell those who ask what the job cost that its hosts are charged for no longer. Once, and nothing hangs on it."""
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        records.create(names.left(at.job, at.attempt), wire.encode({}))


def _wait_for_turn(at: Assignment) -> Turn:
    """Leave the deletion to the hosts before this one. Returns FIRST as soon as none of them exists any longer, or if
    none ever began, which leaves it to this one at once; OWN when its turn has come; and NONE as soon as its group is
    being deleted."""
    if _is_first_of_all(at):
        return Turn.FIRST
    turn = time.monotonic() + FIRST_TURN + TURN * (at.machine_of(at.host) + at.host % at.processes) + _saving(at)
    while (left := turn - time.monotonic()) > 0.0:
        time.sleep(min(left, LOOK_AT_VMS) if _are_apart(at) else left)
        before = range(0, at.machine_of(at.host) * at.processes, at.processes)  # a process of each machine
        if before and all(is_gone(at, host) for host in before):
            return Turn.FIRST
        if _group_leaves(at):
            return Turn.NONE
    return Turn.OWN


def _group_leaves(at: Assignment) -> bool:
    """Return True if the group that this machine is of deletes all that it has, and so this machine. One that deletes
    some of its VMs is told apart: the others may still save."""
    from kinetic_orchestration.host.machine import bootstrap

    if bootstrap.GROUPS not in at.resource:
        return False
    try:
        found = bootstrap.request("GET", bootstrap.parts(at.resource, *at.unit())[-1], patience=0.0)
        actions = found.json()["currentActions"] if found.status == 200 else {}
        return {name for name, count in actions.items() if count} == {"deleting"}
    except Exception:  # no answer, however strange, says that it does
        return False


def _is_first_of_all(at: Assignment) -> bool:
    """Return True if no host before this one has ever begun. One that still does finds the attempt's verdict, and runs
    nothing."""
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        states = _states(records, at)
        return bool(states) and min(states) == at.host and records.read(names.verdict(at.job, at.attempt)) is not None
    return False


def _saving(at: Assignment) -> float:
    """Return for how many seconds host 0's program may still save, beyond those that its turn leaves it anyway."""
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        return max(0.0, _grace(records, at) - attempt_rules.GRACE[wire.CANCELLED])
    return 0.0


def _are_apart(at: Assignment) -> bool:
    """Return True for machines of which one may be gone while the others are not."""
    return at.machines > 1 and ("/instances/" in at.resource or "/instanceGroupManagers/" in at.resource)


def is_gone(at: Assignment, host: int) -> bool:
    """Return True if the machine of a host is known to exist no longer, or to be dead. The one that asks is there."""
    if not _are_apart(at) or at.machine_of(host) == at.machine_of(at.host):
        return False
    from kinetic_orchestration.host.machine import bootstrap
    from kinetic_orchestration.host.machine.vm import member
    from kinetic_orchestration.host.machine.vm.vm import DEAD

    try:
        found = bootstrap.request("GET", member.url_of(at, host), patience=0.0)
        return found.status == 404 or (found.status == 200 and found.json().get("status") in DEAD)
    except Exception:  # no answer, however strange, says that it is
        return False


def _wait_for_others(at: Assignment, records: Records) -> None:
    def is_over(states: Mapping[int, str]) -> bool:
        return bool(states) and all(state == wire.DONE or is_gone(at, host) for host, state in states.items())

    _wait(at, records, LATE, is_over)


def _is_told_by_host_0(at: Assignment, records: Records, verdict: wire.Verdict) -> bool:
    """Return True as soon as host 0 is done, and False if it is not in time. One that the others have given up is not
    waited for, but they are: theirs are the last words that may still come."""
    is_given_up = verdict.host == 0 and verdict.cause == wire.INFRASTRUCTURE and not _is_by_host_0(at, verdict)

    def is_over(states: Mapping[int, str]) -> bool:
        others = [state for host, state in states.items() if host]
        return states.get(0) == wire.DONE or (is_given_up and _all_done(others))

    return _wait(at, records, FIRST_TURN, is_over).get(0) == wire.DONE


def _is_by_host_0(at: Assignment, verdict: wire.Verdict) -> bool:
    """Return True if host 0 wrote a verdict itself: its agent, or what speaks for that."""
    boot, _, _ = at.boot.rpartition("/")
    return f"{verdict.writer}/".startswith(f"{boot}/0/")


def _wait(
    at: Assignment, records: Records, patience: float, is_over: Callable[[Mapping[int, str]], bool]
) -> Mapping[int, str]:
    """Wait for an end of the hosts, for so many seconds after the verdict's grace. Return the last state of each."""
    pause, states = LOOK, _states(records, at)
    deadline = time.monotonic() + patience + _grace(records, at)
    while time.monotonic() < deadline and not is_over(states):
        time.sleep(pause)
        pause = min(1.5 * pause, SLOWEST_LOOK)
        states = _states(records, at)
    return states


def _states(records: Records, at: Assignment) -> dict[int, str]:
    """Return the state of each host in its last beat, of those that ever began; of none while the store is silent."""
    try:
        signals = {signal.name: signal.data for signal in records.signals(names.beats_of(at.job))}
    except OSError:
        return {}
    beats = {host: wire.Beat.read(signals.get(names.beat(at.job, at.attempt, host), b"")) for host in range(at.hosts)}
    return {host: beat.state for host, beat in beats.items() if beat is not None}


def _all_done(states: Collection[str]) -> bool:
    """Return True if all hosts that ever began are done. A host whose machine never came up has no last beat."""
    return bool(states) and all(state == wire.DONE for state in states)


def _grace(records: Records, at: Assignment) -> float:
    """Return the seconds left of the time that the verdict allows the other hosts' programs to end."""
    try:
        found = records.read(names.verdict(at.job, at.attempt))
        verdict = None if found is None else wire.Verdict.decode(found.data)
    except (OSError, ValueError):
        return 0.0
    if found is None or verdict is None:
        return 0.0
    allowed = max(attempt_rules.grace(verdict, host) for host in range(at.hosts))
    left: float = allowed - (records.now() - found.updated)
    return max(0.0, left)
