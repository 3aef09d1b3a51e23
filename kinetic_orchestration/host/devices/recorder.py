"""Host 0 keeps the picture of its job: what was reported, and what the devices of all hosts did, as their beats say.

One small object below the job's output, written when the attempt ends, and now and then while it runs, since a machine
may be gone without a word. The picture itself, and what is in it, are `job_report`'s. Nothing here may fail a job, and
nothing waits for a store at a distance but the end, with a bound.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import job_report
from kinetic_orchestration.protocol.report.curves import Curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVERY = 600.0
POINTS = 256  # of one curve in memory
MOST_AT_ONCE = 20  # reports, of those that came within one look; the newest
_ODD = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError)
LEAST_SAMPLES = 3  # of which a curve can be drawn
PATIENCE = 5.0  # for the last writing, during which the machine is paid for and the result is waited for


class Recorder:
    def __init__(self, records: Any, job: str, title: str, hosts: int, attempt: int, now: float) -> None:
        self._records = records
        self._job = job
        self._title = title
        self._curves = Curves(POINTS)
        self._devices = job_report.DeviceCurves(hosts)
        self._times: dict[int, float] = {}  # of each host's newest sample
        self._samples = 0
        self._before: dict[str, Any] = {} if attempt == 1 else {"unread": True}  # the picture of earlier attempts
        self._kept = now
        self._writing: threading.Thread | None = None
        self._written = False
        self._ending = False  # the last picture is being written

    def report(self, payloads: Sequence[bytes], now: float) -> None:
        """Add metrics that the program reported with `log_metrics`. Its bytes may be malformed."""
        for payload in payloads[-MOST_AT_ONCE:]:
            with contextlib.suppress(*_ODD):
                told = json.loads(payload)
                step = told["step"]
                values = {str(name): float(value) for name, value in told["values"].items()}
                self._curves.add(None if step is None else int(step), values)
        self.keep_if_due(now)  # there is no other caller if the job's devices are not measured

    def measured(self, host: int, sample: Mapping[str, Any]) -> None:
        """Add a sample with its time, `at`. The previous one may be passed again."""
        at = sample.get("at", 0.0)
        if self._times.get(host) != at:
            self._times[host] = at
            self._samples += 1
            self._devices.add(host, at, sample)

    def keep_if_due(self, now: float) -> None:
        if now - self._kept > EVERY and self._is_worth_it() and not self._is_writing():
            self._kept = now
            with contextlib.suppress(Exception):
                self._begin()

    def end(self) -> None:
        """Begin to write the last picture, in the background; `close` waits for it. No more data may follow."""
        if self._is_worth_it() and not self._ending and not self._is_writing():
            self._ending, self._written = True, False
            self._begin()

    def close(self, patience: float | None = None) -> bool:
        """Wait until the last picture is written, begun here if `end` was not called. Returns True if it is written."""
        until = time.monotonic() + (PATIENCE if patience is None else patience)
        if not self._ending:
            self._wait(until)  # an earlier writing must not overwrite the last one
            self.end()
        self._wait(until)
        ended, self._ending = self._ending and not self._is_writing(), False
        return ended and self._written

    def _wait(self, until: float) -> None:
        if self._writing is not None:
            self._writing.join(max(0.0, until - time.monotonic()))

    def _is_worth_it(self) -> bool:
        return bool(self._curves) or self._samples >= LEAST_SAMPLES

    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _begin(self) -> None:
        state = job_report.state_of(self._job, self._curves, self._devices)  # here: it grows on this thread
        self._writing = threading.Thread(target=self._keep, args=(state,), name="kinetic-picture", daemon=True)
        self._writing.start()

    def _keep(self, state: dict[str, Any]) -> None:
        name = names.picture(self._job)
        try:
            if "unread" in self._before:
                found = self._records.read(name)
                self._before = {} if found is None else job_report.read(found.data, self._job)
            drawn = job_report.draw(job_report.joined(self._before, state), self._title)
            self._records.put(name, drawn.encode())
            self._written = True
        except Exception:  # a picture is worth no job, and no line in its log
            return
