"""The silence of an attempt: for how long no host of it has shown progress, when to say so, and when it is too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules

if TYPE_CHECKING:
    from kinetic_orchestration.host.attempt.peers import Peers
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment

REPORT_SILENCE = 600.0
REPORT_LEFT_BEHIND = 60.0  # of a program that others no longer answer, as theirs have ended


class Silence:
    """Silence of a job: the time in which no host shows progress. A single host that only listens is not stuck."""

    def __init__(self, at: Assignment, view: View, peers: Peers) -> None:
        self._at = at
        self._view = view
        self._peers = peers
        self.seconds = 0.0
        self._reported = REPORT_SILENCE  # seconds of silence until the next report
        self._left_behind_reported = False

    def limit(self, own: float) -> tuple[float, str]:
        """Return the longest silence that is borne, 0.0 for any, and where that limit comes from.

        It is the user's `own`; without one, that of hosts which wait for others that may be waiting for them. Once all
        are done, what they still do is theirs.
        """
        if own:
            return own, ""
        returned, exits = self._peers.returned.keys(), self._peers.exits.keys()
        waiting = sorted(returned - exits)
        if not waiting or len(returned | exits) == self._at.hosts:
            return 0.0, ""
        return attempt_rules.DESERTED, f", as {_programs_of(waiting)} done and waiting for the others"

    def measure(self, active: float, own: float, *, listens: bool) -> str:
        """Measure the silence. Return the message to log before stacks are shown; "" for none.

        active: when this host's program showed progress. own: the user's limit. listens: True if the program runs, and
        has not reported its end.
        """
        limit, _ = self.limit(own)
        silence = time.monotonic() - max([active, *self._peers.returned.values()])
        self.seconds = silence
        done = self._peers.done()
        behind = time.monotonic() - min(done.values(), default=float("inf"))
        report_at = min(self._reported, limit / 2) if limit else self._reported
        is_behind = self._at.host not in done and not self._left_behind_reported
        early = is_behind and min(behind, report_at) > REPORT_LEFT_BEHIND
        if early:
            report_at = REPORT_LEFT_BEHIND
        if not listens or silence < report_at:
            return ""
        for host in range(self._at.hosts):
            if host != self._at.host and (beat := self._view.beat_of(host)[1]) is not None:
                self.seconds = min(self.seconds, max(0.0, self._view.records.now() - beat.active))
        if self.seconds <= report_at or self._reported == float("inf"):
            return ""
        if early:
            self._left_behind_reported = True
        else:
            self._reported = float("inf") if limit else self._reported * 2
        without = f", and {_programs_of(sorted(done))} done" if done else ""
        return f"no host has shown progress for {self.seconds:.0f} s{without}; the stacks of this host follow"


def _programs_of(hosts: list[int]) -> str:
    if len(hosts) == 1:
        return f"the program of host {hosts[0]} is"
    return f"the programs of {len(hosts)} hosts ({', '.join(map(str, hosts[:8]))}{', …' if hosts[8:] else ''}) are"
