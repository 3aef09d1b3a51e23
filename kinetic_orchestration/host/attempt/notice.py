"""The notice that this host will be ended, and the other hosts' signs of life since: one of them may have caused it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, wire

if TYPE_CHECKING:
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment


class Notice:
    """The notice of a host whose cluster ends all hosts of an attempt once one has died (`Machine.ends_together`)."""

    def __init__(self, at: Assignment, view: View) -> None:
        self._others = [host for host in range(at.hosts) if host != at.host]
        self._view = view
        self._heard = 0.0  # when this host was first told
        # Generations of the others' beats, by the time after that: at once, and when all would have been told.
        self._since: dict[float, dict[int, int]] = {0.0: {}, attempt_rules.TOLD: {}}

    @property
    def is_heard(self) -> bool:
        """True if this host was told that it will be ended."""
        return self._heard > 0.0

    def read(self, text: str) -> attempt_rules.Company:
        """Read the others' beats. `text` is what this host was told, "" for nothing."""
        found = {host: self._view.beat_of(host) for host in self._others}
        at_work = {
            host: (generation, beat.told)
            for host, (generation, beat) in found.items()
            if beat is not None and beat.state != wire.DONE and beat.exit is None
        }
        if not text:
            return attempt_rules.Company(another_told=any(told for _, told in at_work.values()))
        self._heard = self._heard or time.monotonic()
        read = self._view.beats_read_at() - self._heard
        return attempt_rules.Company(time.monotonic() - self._heard, read, self._missing(at_work, read))

    def _missing(self, at_work: dict[int, tuple[int, bool]], read: float) -> tuple[int, ...]:
        """Return the hosts at work that have shown no sign of life since the notice.

        None is missing once a host shows one that was not told and would have been: then only this host is taken.
        """
        for after, generations in self._since.items():
            if not generations and read > after:
                generations.update({host: generation for host, (generation, _) in at_work.items()})
        untold = {host: generation for host, (generation, told) in at_work.items() if not told}
        at_first, later = (
            {host for host, generation in untold.items() if since.get(host, generation) != generation}
            for since in self._since.values()
        )
        return () if later else tuple(sorted(untold.keys() - at_first))
