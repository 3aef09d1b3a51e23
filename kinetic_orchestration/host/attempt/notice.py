"""The notice that this host will be ended, and the other hosts' signs of life since: one of them may have caused it.

Where the platform tells who ended a host, the others only have to know that one was ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, wire

if TYPE_CHECKING:
    from kinetic_orchestration.host.machine.machine import Machine
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment


class Notice:
    """The notice of a host whose cluster ends all hosts of an attempt once one has died (`Machine.ends_together`), or
    whose cloud tells others who ended one (`Machine.is_explained`)."""

    def __init__(self, at: Assignment, view: View, machine: Machine) -> None:
        self._ends_together, self._is_explained = machine.ends_together, machine.is_explained
        self._others = [host for host in range(at.hosts) if host != at.host]
        self._view = view
        self._heard = 0.0  # when this host was first told
        self._first = 0.0  # when another was first seen to have been, where ends are explained
        self._before: dict[int, int] | None = None  # generations of the others' beats, read just after that
        self._read = -1.0  # when what follows was
        self._company = attempt_rules.Company()

    @property
    def is_heard(self) -> bool:
        """True if this host was told that it will be ended."""
        return self._heard > 0.0

    def company(self, preempted: str, ended: str) -> attempt_rules.Company:
        """Return the other hosts, as far as a notice to this one (`preempted`), or its end without one (`ended`), may
        have to do with theirs."""
        if self._ends_together:
            return self.read(preempted)
        return self.read(ended) if self._is_explained else attempt_rules.Company()

    def read(self, text: str) -> attempt_rules.Company:
        """Return what the others' beats say. `text` is what this host was told, "" for nothing."""
        now, read = time.monotonic(), self._view.beats_read_at()  # before the beats, which may change meanwhile
        news = read != self._read
        if text and not self._heard:
            self._heard, news = now, True
        if news:
            self._read, self._company = read, self._judge(read)
        if self._is_explained:
            self._first = self._first or (now if self._company.told else 0.0)
            return self._company._replace(age=now - self._first if self._first else 0.0)
        age = now - self._heard if self._heard else 0.0
        return self._company._replace(age=age, is_shown=self._view.shows_notice(), unread=now - read)

    def _judge(self, read: float) -> attempt_rules.Company:
        found = {host: self._view.beat_of(host) for host in self._others}
        beats = {host: (generation, beat) for host, (generation, beat) in found.items() if beat is not None}
        there = {host: generation for host, (generation, beat) in beats.items() if beat.state != wire.DONE}
        if self._is_explained:  # no verdict follows from such an end, also once that host is done
            told = tuple(host for host, (_, beat) in beats.items() if beat.told)
            return attempt_rules.Company(told=told, is_explained=True)
        told = tuple(host for host in there if beats[host][1].told)
        missing: tuple[int, ...] = ()
        absent: tuple[int, ...] = ()
        if self._heard and self._view.cadence() + attempt_rules.SPARE <= attempt_rules.HEARD:
            if self._before is None and read > self._heard:
                self._before = there
            silent = [host for host, generation in there.items() if (self._before or there).get(host) == generation]
            missing = tuple(host for host in silent if host not in told)
            absent = tuple(host for host in self._others if host not in beats)
        since = read - self._heard if self._heard else 0.0
        return attempt_rules.Company(len(self._others), told, missing, absent, read=since)
