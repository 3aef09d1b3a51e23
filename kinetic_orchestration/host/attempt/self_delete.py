"""The last thing a host does: it sees to it that its slice is deleted, or ends with its pod, in its turn.

Host 0 of a slice of VMs deletes it as soon as every host is done, so that one call is enough. If it cannot, the others
follow one after the other. Host 0 of several pods ends last, because a pod that fails has the cluster end the others.
Knows the records of the end and nothing of programs.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.records.base import read_bounded

if TYPE_CHECKING:
    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment

LATE = 15.0  # seconds that host 0 waits for the others after the verdict's grace
FIRST_TURN = 45.0
TURN = 10.0
LOOK = 0.25
SLOWEST_LOOK = 2.0
_NO_WORD = wire.EXIT_CODES[wire.INFRASTRUCTURE]


def delete_own_slice(at: Assignment) -> None:
    """Returns when the slice is gone, which a process on it does not live to see."""
    from kinetic_orchestration.host.machine import bootstrap

    if not at.resource:
        return
    if at.host:
        time.sleep(FIRST_TURN + TURN * at.host)
    elif at.hosts > 1:
        from kinetic_orchestration.host.view.open_records import open_records

        # The slice is deleted even if the others' state is unknown.
        with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
            _wait_for_others(at, records)
    bootstrap.end_slice(at.resource, taken=lambda: _tell(at))


def exit_code(at: Assignment) -> int:
    """Return the code with which this pod is to end: host 0 waits for the others, and ends as the attempt did. If it
    cannot know how that was, it leaves the reason for Kubernetes to show.
    """
    from kinetic_orchestration.host.view.open_records import open_records

    if at.host:
        return 0
    try:
        with contextlib.closing(open_records(at.store)) as records:
            if at.hosts > 1:
                _wait_for_others(at, records)
            found = read_bounded(records, names.verdict(at.job, at.attempt))
        if found is not None:
            verdict = wire.Verdict.decode(found)
            return 0 if verdict.kind == wire.COMMITTED else wire.EXIT_CODES.get(verdict.cause, _NO_WORD)
    except Exception as error:
        from kinetic_orchestration.host.machine.pod import last_words

        last_words.leave(f"the attempt's end could not be read: {last_words.sentence(error)}")
    return _NO_WORD


def _tell(at: Assignment) -> None:
    """Tell those who ask what the job cost that its hosts are charged for no longer. Once, and nothing hangs on it."""
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        records.create(names.left(at.job, at.attempt), wire.encode({}))


def _wait_for_others(at: Assignment, records: Records) -> None:
    pause = LOOK
    deadline = time.monotonic() + LATE + _grace(records, at)
    while time.monotonic() < deadline and not _all_done(records, at):
        time.sleep(pause)
        pause = min(1.5 * pause, SLOWEST_LOOK)


def _all_done(records: Records, at: Assignment) -> bool:
    """Return True if all hosts that ever began are done. A host whose machine never came up has no last beat."""
    try:
        signals = {signal.name: signal.data for signal in records.signals(names.beats_of(at.job))}
    except OSError:
        return False
    beats = [wire.Beat.read(signals.get(names.beat(at.job, at.attempt, host), b"")) for host in range(at.hosts)]
    return any(beats) and all(beat is None or beat.state == wire.DONE for beat in beats)


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
