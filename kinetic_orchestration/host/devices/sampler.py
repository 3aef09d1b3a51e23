"""Samples the CPU, memory and accelerators of a host at a slow rate while its program runs.

CPU and memory of all processes that the program has started are the kernel's own figures. Accelerators are read by a
separate process (`device_reader`) in the job's environment, which has the vendor's library; if that fails, one line in
the log says so, with no other effect. Independent of the store and the wire.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from kinetic_orchestration.host.process.pipes import program_of
from kinetic_orchestration.protocol.system import kernel

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PACE = 10.0  # seconds between two samples; fewer at first, so that a short job has a curve too
GIB = 1 << 30
MOST_DEVICES = 16
LONGEST_LINE = 64 << 10
OLD = 60.0  # seconds after which a reading of the accelerators is out of date
ACCELERATORS = ("tpu", "gpu")
LONGEST_END = 1.0  # of a reader that was killed: one that hangs in a driver does not end, and its agent has to go on


class Sampler:
    """Samples the descendants of this process, and its machine's accelerators."""

    def __init__(self, kind: str, python: str, environ: Mapping[str, str], now: float) -> None:
        """`kind` of accelerator, if it is a real one; `python` and `environ` are the program's."""
        self.note = ""  # logged once
        self._spent, self._time = -1.0, now
        self._reader, self._pipe = 0, -1
        self._rest = b""
        self._devices: dict[str, Any] = {}
        self._heard = now
        if kind in ACCELERATORS:
            self._open(kind, python, environ)

    def sample(self, now: float) -> dict[str, Any]:
        """Return a sample: current values, and the CPU use since the previous one."""
        found: dict[str, Any] = {}
        spent, held = kernel.use_of(os.getpid(), self._reader)
        if self._spent >= 0 and now > self._time:
            found["cpu"] = round(max(0.0, (spent - self._spent) / (now - self._time)), 2)
        self._spent, self._time = spent, now
        found["memory"] = round(held / GIB, 3)
        if self._pipe >= 0:
            self._take(now)
        if now - self._heard > OLD:
            self._devices = {}
        return {**found, **self._devices}

    def ended(self, pid: int) -> None:
        """Note that a child of this process has ended and was collected."""
        if pid == self._reader:
            self._reader = 0

    def close(self) -> None:
        """End the reader, so that a check for processes that the program left running does not find it."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._reader:
            reader, self._reader = self._reader, 0
            with contextlib.suppress(OSError):
                os.kill(reader, signal.SIGKILL)
                give_up = time.monotonic() + LONGEST_END
                while os.waitpid(reader, os.WNOHANG)[0] == 0 and time.monotonic() < give_up:
                    time.sleep(0.002)

    def _open(self, kind: str, python: str, environ: Mapping[str, str]) -> None:
        reader = program_of(f"{__package__}.device_reader")
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._reader = os.posix_spawn(
                python, [python, "-I", "-c", reader, kind, str(PACE)], dict(environ), setsid=True, setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGCHLD, signal.SIGINT],
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, end, 1),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                ],
            )  # fmt: skip
        except OSError as error:
            self._report_failure(f"{error.strerror}: {python}")
        finally:
            os.close(end)

    def _take(self, now: float) -> None:
        """Take the newest of the lines that the reader has written since the last call."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._pipe, LONGEST_LINE):
                data += more
        whole, _, self._rest = data.rpartition(b"\n")
        self._rest = self._rest[-LONGEST_LINE:]
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._hear(json.loads(line), now)

    def _hear(self, found: dict[str, Any], now: float) -> None:
        if "note" in found:
            self._report_failure(str(found["note"]))
        else:
            lists = {key: [float(each) for each in found[key][:MOST_DEVICES]] for key in ("busy", "used", "total")}
            self._devices, self._heard = {"kind": str(found["kind"]), **lists}, now

    def _report_failure(self, why: str) -> None:
        self.note = self.note or f"what the accelerators do is not known: {why}"[:500]
