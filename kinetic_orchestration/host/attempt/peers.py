"""State of an attempt's hosts, as one of them sees it: started, ended, silent; and the silence of all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.process import topology
from kinetic_orchestration.protocol import attempt_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment

BEATS_PACE = 5.0
REPORT_SILENCE = 600.0
REPORT_LEFT_BEHIND = 60.0  # of a program that others no longer answer, as theirs have ended


class Peers:
    """State of each host of the attempt, by its number."""

    def __init__(self, at: Assignment, view: View) -> None:
        self._at = at
        self._view = view
        self.started: dict[int, Mapping[str, object]] = {}  # the record that each wrote when it started
        self.exits: dict[int, tuple[int, float]] = {}  # the code, and when it was seen
        self.returned: dict[int, float] = {}  # hosts that returned or wait for the others, and when that was seen
        self._beats: dict[int, tuple[int, float]] = {}  # of the others: generation, and when it was seen to change
        self._read = 0.0  # when the beats were

    def read_states(self, *, running: bool) -> None:
        """Read which hosts have started and, while this host's program is running, whose programs have ended."""
        if len(self.started) < self._at.hosts:
            for host in range(self._at.hosts):
                if host not in self.started and (life := self._view.started(host)) is not None:
                    self.started[host] = life
        if self._at.hosts > 1 and running:
            for host in range(self._at.hosts):
                if host not in self.exits and (code := self._view.exit(host)) is not None:
                    self.exits[host] = (code, time.monotonic())

    def read_beats(self) -> None:
        """Measure the silence of the other hosts, if that is due. Time counts by this host's monotonic clock, and only
        while it looks: hosts that were all stopped for a while (a laptop's sleep, a paused container) would take each
        other for dead when they wake.
        """
        now = self._view.beats_read_at()
        if self._at.hosts == 1 or now - self._read <= BEATS_PACE:
            return
        stopped = now - self._read > BEATS_PACE + attempt_rules.LOST / 2
        self._read = now
        for host in range(self._at.hosts):
            generation, beat = self._view.beat_of(host)
            if beat is not None and beat.returned:
                self.returned.setdefault(host, now)
            if host != self._at.host and (stopped or self._beats.get(host, (-1, now))[0] != generation):
                self._beats[host] = generation, now

    def record_exit(self, code: int) -> None:
        """Record that this host's program has ended."""
        self.exits[self._at.host] = (code, time.monotonic())

    def record_return(self) -> None:
        """Record that this host's function has returned, or that its program waits for the others'."""
        self.returned.setdefault(self._at.host, time.monotonic())

    def ran(self, began: float) -> dict[str, float]:
        """Return when this host's program began (`began`; 0.0 if it did not) and ended, by the store's clock: the
        productive part of the attempt's time."""
        if not began:
            return {}
        offset = self._view.records.now() - time.monotonic()
        _, ended = self.exits.get(self._at.host, (0, time.monotonic()))
        return {"began": began + offset, "ended": ended + offset}

    def ports(self, shares_machine: bool) -> dict[str, int]:
        """Return host 0's choice where all hosts are on one machine, and only there: elsewhere a record has no say."""
        if not shares_machine:
            return dict(topology.PORTS)
        chosen = self.started[0].get("ports")
        return {str(use): int(port) for use, port in chosen.items()} if isinstance(chosen, dict) else {}

    def done(self) -> dict[int, float]:
        """Return the hosts whose function has returned or whose program ended well, and since when."""
        return self.returned | {host: seen for host, (code, seen) in self.exits.items() if code == 0}

    def ages_of_exits(self, now: float) -> tuple[tuple[int, int, float], ...]:
        return tuple((host, code, now - seen) for host, (code, seen) in self.exits.items())

    def ages_of_beats(self) -> tuple[tuple[int, float], ...]:
        """Return for how long each of the others has shown no new sign of life."""
        return tuple((host, self._read - seen) for host, (_, seen) in self._beats.items())


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
