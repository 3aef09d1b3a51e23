"""Decides whether the slice of this host has won the race of its attempt, if there is one: else no program starts.

One attempt may ask several places for its hosts. Of all their hosts 0 the first to write one record has won, before
any of them writes anything else; the others of its slice only read it. Hosts of a slice that has not won leave no
record that another could take for the winner's, and delete their own slice. Knows nothing of programs.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment

PATIENCE = 600.0  # seconds for which the other hosts wait for their host 0, or for another place to win
LOOK = 0.25
SLOWEST_LOOK = 10.0
EACH = 4  # looks, of which one also asks whether the attempt has ended


def may_run(at: Assignment, records: Records) -> bool:
    """Return True if this host may go on: there is no race, or its place has won. The first act of a host.

    Host 0 claims the race. The others wait for it, and give up like those that have lost.
    """
    if at.rival < 0:
        return True
    name = names.won(at.job, at.attempt)
    if not at.host:
        records.create(name, wire.encode({"rival": at.rival, "writer": f"{at.boot}/{at.rival}"}))
    pause, looks, deadline = LOOK, 0, time.monotonic() + PATIENCE
    while (won := read_bounded(records, name)) is None and time.monotonic() < deadline:
        looks += 1
        if looks % EACH == 1 and read_bounded(records, names.verdict(at.job, at.attempt)) is not None:
            return False
        time.sleep(pause)
        pause = min(1.5 * pause, SLOWEST_LOOK)
    if _names(won, at):  # also after an answer that was lost: no other place writes this number
        with contextlib.suppress(OSError), open(_mark(at), "wb"):  # for what this machine says after this process
            pass
        return True
    return False


def has_won(at: Assignment, records: Records) -> bool:
    """Return True if this host speaks for its attempt: there is no race, or its place has won."""
    return at.rival < 0 or os.path.exists(_mark(at)) or _names(read_bounded(records, names.won(at.job, at.attempt)), at)


def is_out(at: Assignment) -> bool:
    """Return True if this host is known not to speak for its attempt, from a process that has opened nothing."""
    if at.rival < 0 or os.path.exists(_mark(at)):
        return False
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        return not has_won(at, records)
    return True


def tell_held(at: Assignment, up: float) -> None:
    """Tell those who ask what the job cost that this place was charged for. Nothing hangs on it. `up`: seconds since
    this machine has booted."""
    _tell(at, names.held, lambda now: {"since": max(0.0, now - up)})


def tell_gone(at: Assignment) -> None:
    """Tell them that it is charged for no longer."""
    _tell(at, names.gone, lambda now: {})


def _mark(at: Assignment) -> str:
    """The file by which the processes of a host that has won know it."""
    return os.path.join(at.run, f"won-{at.host}")


def _names(won: bytes | None, at: Assignment) -> bool:
    """Return True if the record says that this host's place has won. A damaged one has no winner."""
    try:
        return won is not None and bool(wire.fields_of(won, wire.WON)["rival"] == at.rival)
    except ValueError:
        return False


def _tell(at: Assignment, name: Callable[[str, int, int], str], said: Callable[[float], dict[str, float]]) -> None:
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        records.create(name(at.job, at.attempt, at.rival), wire.encode(said(records.now())))
