"""Decides whether the slice of this host has won the race of its attempt, if there is one: else no program starts.

One attempt may ask several places for its hosts. Of all their hosts 0 the first to write one record has won, before
any of them writes anything else; the others of its slice only read it. Hosts of a slice that has not won leave no
record that another could take for the winner's, and delete their own slice. Knows nothing of programs.
"""

from __future__ import annotations

import contextlib
import hmac
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


def may_run(at: Assignment, records: Records, key: str = "") -> bool:
    """Return True if this host may go on: there is no race, or its place has won. The first act of a host.

    Host 0 claims the race. The others wait for it, and give up like those that have lost.

    Args:
        at: The host's assignment.
        records: The records of its job.
        key: The key of the seal that authenticates what hosts of the attempt decide; "" for none.
    """
    if at.rival < 0:
        return True
    name = names.won(at.job, at.attempt)
    if not at.host:
        records.create(name, _claim(at, key))
    pause, looks, deadline = LOOK, 0, time.monotonic() + PATIENCE
    while (won := read_bounded(records, name)) is None and time.monotonic() < deadline:
        looks += 1
        if looks % EACH == 1 and read_bounded(records, names.verdict(at.job, at.attempt)) is not None:
            return False
        time.sleep(pause)
        pause = min(1.5 * pause, SLOWEST_LOOK)
    if _names(won, at, key):  # also after an answer that was lost: no other place writes this number
        with contextlib.suppress(OSError), open(_mark(at), "wb"):  # for what this machine says after this process
            pass
        return True
    return False


def has_won(at: Assignment, records: Records, key: str = "") -> bool:
    """Return True if this host speaks for its attempt: there is no race, or its place has won."""
    if at.rival < 0 or os.path.exists(_mark(at)):
        return True
    return _names(read_bounded(records, names.won(at.job, at.attempt)), at, key)


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


def _claim(at: Assignment, key: str) -> bytes:
    """Return the record that this host's place has won, sealed if there is a key."""
    fields: dict[str, object] = {"rival": at.rival, "writer": f"{at.boot}/{at.rival}"}
    return wire.encode({**fields, "seal": _seal_of(wire.stamped(fields), key)} if key else fields)


def _seal_of(fields: dict[str, object], key: str) -> str:
    from kinetic_orchestration.host.machine import bootstrap

    return bootstrap.sealed(key, bootstrap.gist(fields))


def _names(won: bytes | None, at: Assignment, key: str) -> bool:
    """Return True if the record says that this host's place has won. A damaged one, or one that has not the seal of the
    attempt's hosts, has no winner."""
    try:
        fields = {} if won is None else wire.fields_of(won, wire.WON)
    except ValueError:
        return False
    if key and not hmac.compare_digest(str(fields.pop("seal", "")).encode(), _seal_of(fields, key).encode()):
        return False
    return fields.get("rival") == at.rival


def _tell(at: Assignment, name: Callable[[str, int, int], str], said: Callable[[float], dict[str, float]]) -> None:
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        records.create(name(at.job, at.attempt, at.rival), wire.encode(said(records.now())))
