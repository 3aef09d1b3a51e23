"""Who looks after a job, as one of its hosts sees it: its owner, with whom it ends, or the keeper who hands it over.

Needed only for jobs that have one or the other.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import names, rules, wire

if TYPE_CHECKING:
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.records.base import Record
    from kinetic_orchestration.protocol.wire.task import Task

KEEPER_LOOK = 1.0


class Owner:
    """The process whose beats keep its job alive."""

    def __init__(self) -> None:
        self.silence = 0.0  # seconds
        self._seen = (0, 0.0)  # the generation of its beat, and when it was seen to change
        self._read = 0.0

    def heard(self, beat: Record, moment: float) -> None:
        """Take in its last beat. An old one counts once it has not changed under our eyes for as long as an owner's
        silence is borne: on a machine that wakes from its sleep, the owner's is as old as all others, and it may wake
        later than we do. It counts up to the `moment` at which it was looked for.
        """
        now = time.monotonic()
        if beat.generation != self._seen[0] or now - self._read > rules.OWNER_PATIENCE / 2:
            self._seen = beat.generation, now
        self._read = now
        unchanged = now - self._seen[1] > rules.OWNER_PATIENCE
        self.silence = moment - beat.updated if unchanged else 0.0


class Keeper:
    """The process that was handed a job, and has to say so in time. Host 0 looks for it."""

    def __init__(self, at: Assignment, view: View) -> None:
        self._at = at
        self._view = view
        self._seen = (0, 0.0)  # the generation of its record, and when it was first seen
        self._looked = 0.0

    def look(self) -> str:
        """End a job that was handed over and that nobody took, and return the reason; "" if it may go on.

        Whoever asks for it again may have it anew. It is as old as it was seen to be by our own steady clock: on a
        machine that wakes from its sleep, whoever was to take it may wake later than we do.
        """
        now = time.monotonic()
        if now - self._looked < KEEPER_LOOK:
            return ""
        self._looked = now
        if (found := self._view.keeper()) is None:
            return ""
        kept, moment = found
        if kept.generation != self._seen[0]:
            self._seen = kept.generation, now
        if reason := wire.untaken(kept.data, min(moment - kept.updated, now - self._seen[1])):
            cancel = {"reason": reason, "by": "host 0", "writer": self._at.boot, "anew": True}
            with contextlib.suppress(OSError):  # said again at the next look
                self._view.records.create(names.cancel(self._at.job), wire.encode(cancel))
                self._view.records.ring(self._at.job)
                return reason
        return ""


class Owners:
    """The owner of a job and its keeper, as far as it has them."""

    def __init__(self, at: Assignment, view: View, task: Task) -> None:
        self._view = view
        self._owner = Owner() if task.owned else None
        self._keeper = Keeper(at, view) if task.kept and at.host == 0 else None

    @property
    def silence(self) -> float:
        """The owner's, in seconds."""
        return 0.0 if self._owner is None else self._owner.silence

    def look(self, *, goes_on: bool) -> str:
        """Hear the owner. Return why the job is to end, if it goes on and nobody took it; else ""."""
        if self._owner is not None and (beat := self._view.owner()) is not None:
            self._owner.heard(*beat)
        return self._keeper.look() if self._keeper is not None and goes_on else ""
