"""Collects a program's reports and the device samples of all hosts: for beats, the job's picture, a profile's record.

No error here may fail a job. Most programs report nothing: the sampler and the recorder are imported for the first that
does.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.process import topology
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetic_orchestration.host.devices.recorder import Recorder
    from kinetic_orchestration.host.devices.sampler import Sampler
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # which of the machine's the program is given
FIRST = 1.0  # sample, after the program began
SWIFT_FAREWELL = 2.0  # seconds for the picture on a machine that is being taken away


class Reports:
    """Reports and samples of one host; on host 0 also the other hosts' samples, from their beats, and the picture."""

    def __init__(self, at: Assignment, view: View, note: Callable[[str], None]) -> None:
        self.newest: dict[str, Any] | None = None  # the newest device sample
        self._at = at
        self._view = view
        self._note = note
        self._title = ""
        self._program: tuple[str, str, dict[str, str]] = ("", "", {})
        self._began = 0.0
        self._due = float("inf")
        self._sampler: Sampler | None = None
        self._picture: Recorder | None = None  # host 0's

    def set_title(self, name: str) -> None:
        """Give the picture its title."""
        self._title = name

    def begin(self, task: Task, python: str, env: Mapping[str, str]) -> None:
        """Measure from now on what the devices of a program do that was just started, in that environment."""
        if not task.device_metrics:
            return
        kind = "" if task.emulated else task.accelerator.kind
        seen = {name: env[name] for name in DEVICES if name in env}
        if topology.OWN in env:  # of those that it shares with others
            own = int(env[topology.OWN])
            seen = {name: value.split(",")[own] for name, value in seen.items()}
        variable, value = self._at.marker.split("=", 1)
        self._program = kind, python, {**copies.environ(), **task.env, **seen, variable: value}
        self._began = time.monotonic()
        self._due = self._began + FIRST

    def hear(self, kind: str, payloads: list[bytes]) -> None:
        """Take in the program's reports."""
        if kind == frames.METRICS and self._at.host == 0:
            self._recorder().report(payloads, time.monotonic())
        elif kind == frames.PROFILE:
            for payload in payloads:
                self._keep_profile(payload)

    def sample(self) -> None:
        """Take a device sample for the next beat, if one is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = float("inf")
        try:
            from kinetic_orchestration.host.devices import sampler

            if self._sampler is None:
                self._sampler = sampler.Sampler(*self._program, now)
            found = self._sampler.sample(now)
            if self._sampler.note:
                self._note(self._sampler.note)
                self._sampler.note = ""
            if found:
                self.newest = {"at": round(self._view.records.now(), 3), **found}
                if self._at.host == 0:
                    self._recorder().measured(0, self.newest)
                    self._hear_others(self._recorder())
                    self._recorder().keep_if_due(now)
            self._due = now + min(sampler.PACE, now - self._began)
        except Exception as error:
            self._note(f"what the devices of this host do is not measured any more: {type(error).__name__}: {error}")

    def ended(self, process: int) -> None:
        """Note that a process which this host started has ended."""
        if self._sampler is not None:
            self._sampler.ended(process)

    def stop(self) -> None:
        """Note that the program has ended."""
        self._due = float("inf")
        if self._sampler is not None:
            self._sampler.close()

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

            at, records = self._at, self._view.records
            self._picture = Recorder(records, at.job, self._title, at.hosts, at.attempt, time.monotonic())
        return self._picture

    def _hear_others(self, recorder: Recorder) -> None:
        for host in range(1, self._at.hosts):
            if (beat := self._view.beat_of(host)[1]) is not None and beat.devices:
                recorder.measured(host, beat.devices)

    def _keep_profile(self, payload: bytes) -> None:
        """Write the record of this host's profile, for clients that display its location. The profile itself is stored
        already.
        """
        name = self._at.own("profile.json")
        try:
            self._view.records.create(name, wire.encode(json.loads(payload)))
        except (OSError, ValueError) as error:
            self._note(f"the profile of this host is captured, and will not be shown: {error}")
