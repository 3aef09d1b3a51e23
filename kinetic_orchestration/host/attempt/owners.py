"""Owner and keeper of a job, as one of its hosts sees them. A job ends with its owner; its keeper hands it over.

Needed only for jobs that have one or the other.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, names, wire

if TYPE_CHECKING:
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.records.base import Record
    from kinetic_orchestration.protocol.wire.task import Task

KEEPER_PACE = 1.0


class Owner:
    """The process whose beats keep its job alive."""

    def __init__(self) -> None:
        self.silence = 0.0  # seconds
        self._seen = (0, 0.0)  # the generation of its beat, and when it was seen to change
        self._read = 0.0

    def heard(self, beat: Record, moment: float) -> None:
        """Take in the owner's last beat. An old beat counts once it has not changed for `OWNER_PATIENCE` while this
        host watched: on a machine that wakes from its sleep, the owner's beat is as old as all others, and the owner
        may wake later.
        """
        now = time.monotonic()
        if beat.generation != self._seen[0] or now - self._read > attempt_rules.OWNER_PATIENCE / 2:
            self._seen = beat.generation, now
        self._read = now
        unchanged = now - self._seen[1] > attempt_rules.OWNER_PATIENCE
        self.silence = moment - beat.updated if unchanged else 0.0


class Owners:
    """Owner and keeper of a job, if it has them. The keeper has to take a job that was handed over in time; host 0
    checks that.
    """

    def __init__(self, at: Assignment, view: View, task: Task) -> None:
        self._at = at
        self._view = view
        self._owner = Owner() if task.owned else None
        self._checks_keeper = task.kept and at.host == 0
        self._keeper_seen = (0, 0.0)  # the generation of its record, and when it was first seen
        self._keeper_read = 0.0

    @property
    def silence(self) -> float:
        """Seconds for which the owner has been silent."""
        return 0.0 if self._owner is None else self._owner.silence

    def check(self, *, continues: bool) -> str:
        """Read the owner's beat. If the job goes on, return why it must end because no process took it, else ""."""
        if self._owner is not None and (beat := self._view.owner()) is not None:
            self._owner.heard(*beat)
        return self._end_untaken() if self._checks_keeper and continues else ""

    def _end_untaken(self) -> str:
        """End a job that was handed over and that no process took, and return the reason; "" if it may go on.

        The same call may then start it again. The age of the record counts by this host's own monotonic clock too: on a
        machine that wakes from its sleep, the process that was to take the job may wake later.
        """
        now = time.monotonic()
        if now - self._keeper_read < KEEPER_PACE:
            return ""
        self._keeper_read = now
        if (found := self._view.keeper()) is None:
            return ""
        kept, moment = found
        if kept.generation != self._keeper_seen[0]:
            self._keeper_seen = kept.generation, now
        if reason := wire.untaken(kept.data, min(moment - kept.updated, now - self._keeper_seen[1])):
            cancel = {"reason": reason, "by": "host 0", "writer": self._at.boot, "anew": True}
            with contextlib.suppress(OSError):  # written again at the next check
                self._view.records.create(names.cancel(self._at.job), wire.encode(cancel))
                self._view.records.ring(self._at.job)
                return reason
        return ""
