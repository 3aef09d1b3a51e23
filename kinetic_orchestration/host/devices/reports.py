"""Collects reports of a program and its devices, output excepted: for beats, the job's picture and a profile's record.

Most programs report nothing: the measuring code is imported for the first that does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.process import topology
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.output import frames
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetic_orchestration.host.devices.measuring import Measuring
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # which of the machine's the program is given


class Reports:
    def __init__(self, at: Assignment, view: View, note: Callable[[str], None]) -> None:
        self.newest: dict[str, Any] | None = None  # sample of what the devices do
        self._at = at
        self._view = view
        self._note = note
        self._title = ""
        self._measuring: Measuring | None = None

    def entitle(self, name: str) -> None:
        """Give the picture its title."""
        self._title = name

    def begin(self, task: Task, python: str, env: Mapping[str, str]) -> None:
        """Measure from now on what the devices of a program do that was just told to run, in that environment."""
        if not task.device_metrics:
            return
        kind = "" if task.emulated else task.accelerator.kind
        seen = {name: env[name] for name in DEVICES if name in env}
        if topology.OWN in env:  # of those that it shares with others
            own = int(env[topology.OWN])
            seen = {name: value.split(",")[own] for name, value in seen.items()}
        variable, value = self._at.marker.split("=", 1)
        self._measured().begin(kind, python, {**copies.environ(), **task.env, **seen, variable: value})

    def hear(self, kind: str, payloads: list[bytes]) -> None:
        """Take in the program's reports."""
        if kind == frames.METRICS:
            self._measured().report(payloads)
        elif kind == frames.PROFILE:
            for payload in payloads:
                self._keep_profile(payload)

    def sample(self) -> None:
        """Measure, if it is time to."""
        if self._measuring is not None:
            self.newest = self._measuring.sample() or self.newest

    def ended(self, process: int) -> None:
        """Note that a process which this host started has ended."""
        if self._measuring is not None:
            self._measuring.ended(process)

    def stop(self) -> None:
        """Note that the program has ended."""
        if self._measuring is not None:
            self._measuring.stop()

    def end(self) -> None:
        """Say what is left to say, while the log is open."""
        if self._measuring is not None:
            self._measuring.end()

    def close(self, *, swiftly: bool) -> None:
        if self._measuring is not None:
            self._measuring.close(swiftly=swiftly)

    def _measured(self) -> Measuring:
        if self._measuring is None:
            from kinetic_orchestration.host.devices.measuring import Measuring

            self._measuring = Measuring(self._view, self._at, self._title, self._note)
        return self._measuring

    def _keep_profile(self, payload: bytes) -> None:
        """Write the record of this host's profile, for clients that display its location. The profile itself is stored
        already.
        """
        name = names.host(self._at.job, self._at.attempt, self._at.host, "profile.json")
        try:
            self._view.records.create(name, wire.encode(json.loads(payload)))
        except (OSError, ValueError) as error:
            self._note(f"the profile of this host is captured, and will not be shown: {error}")
