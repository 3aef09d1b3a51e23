"""Collects the program's metrics and the device samples of all hosts, for beats and for the job's picture.

No error here may fail a job. Modules are imported when they are first needed: a program's start does not wait for them.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.devices.recorder import Recorder
    from kinetic_orchestration.host.devices.sampler import Gauges
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment

FIRST = 1.0  # sample, after the program began
SWIFT_FAREWELL = 2.0  # what a machine that is taken away has left for the picture of its job


class Measuring:
    """Measurements of one host; on host 0 also the other hosts' samples, from their beats, and the picture."""

    def __init__(self, view: View, at: Assignment, title: str, note: Callable[[str], None]) -> None:
        self._records = view.records
        self._view = view
        self._at = at
        self._title = title
        self._note = note
        self._began = 0.0
        self._due = float("inf")
        self._gauges: Gauges | None = None
        self._picture: Recorder | None = None  # host 0's

    def begin(self, kind: str, python: str, environ: dict[str, str]) -> None:
        """Begin to measure. `kind`: the accelerator, if it is a real one; `python` and `environ` are the program's."""
        self._program = kind, python, environ
        self._began = time.monotonic()
        self._due = self._began + FIRST

    def report(self, payloads: list[bytes]) -> None:
        """Add metrics that the program reported to the picture, if this is host 0."""
        if self._at.host == 0:
            self._recorder().report(payloads, time.monotonic())

    def sample(self) -> dict[str, Any] | None:
        """Return a device sample for the next beat, if one is due and can be taken, else None."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = float("inf")
        try:
            from kinetic_orchestration.host.devices import sampler

            if self._gauges is None:
                self._gauges = sampler.Gauges(*self._program, now)
            found = self._gauges.sample(now)
            told = {"at": round(self._records.now(), 3), **found} if found else None
            if self._gauges.note:
                self._note(self._gauges.note)
                self._gauges.note = ""
            if self._at.host == 0 and told is not None:
                self._recorder().measured(0, told)
                self._hear_others(self._recorder())
                self._recorder().keep_if_due(now)
            self._due = now + min(sampler.PACE, now - self._began)
            return told
        except Exception as error:
            self._note(f"what the devices of this host do is not measured any more: {type(error).__name__}: {error}")
            return None

    def ended(self, pid: int) -> None:
        if self._gauges is not None:
            self._gauges.ended(pid)

    def stop(self) -> None:
        self._due = float("inf")
        if self._gauges is not None:
            self._gauges.close()

    def end(self) -> None:
        """Begin the last picture, with all that was measured; `close` waits for it."""
        if self._picture is not None:
            with contextlib.suppress(Exception):
                self._hear_others(self._picture)
                self._picture.end()

    def close(self, *, swiftly: bool) -> None:
        if self._picture is not None:
            with contextlib.suppress(Exception):
                self._picture.close(SWIFT_FAREWELL if swiftly else None)

    def _recorder(self) -> Recorder:
        if self._picture is None:
            from kinetic_orchestration.host.devices.recorder import Recorder

            at = self._at
            self._picture = Recorder(self._records, at.job, self._title, at.hosts, at.attempt, time.monotonic())
        return self._picture

    def _hear_others(self, recorder: Recorder) -> None:
        for host in range(1, self._at.hosts):
            if (beat := self._view.beat_of(host)[1]) is not None and beat.devices:
                recorder.measured(host, beat.devices)
