"""Runs what is told on one thread of its own: nobody waits long for a collector, not even the end of the process."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from kinetic_orchestration.plan.messages import warn_once

MOST_WAITING = 1000  # things to tell: more are dropped, and that is said
LAST_SECONDS = 3.0  # that the end of a process may wait

_ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_"))
_TRUE = ("true", "1", "yes")


class Wanted(NamedTuple):
    """Who is to be told, by the variables of those tools."""

    telemetry: bool = False
    lineage: bool = False


def wanted(environ: Mapping[str, str]) -> Wanted:
    """Return who is to be told of jobs, by OpenTelemetry's and OpenLineage's own variables."""
    told = environ.get("OTEL_SDK_DISABLED", "").lower() not in _TRUE and any(environ.get(name) for name in _ENDPOINTS)
    named = any(environ.get(name) for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")) or any(
        name.startswith("OPENLINEAGE__TRANSPORT") for name in environ
    )
    return Wanted(told, named and environ.get("OPENLINEAGE_DISABLED", "").lower() not in _TRUE)


class Exporter:
    """One daemon thread with a bounded queue; it begins with the first thing to tell, also after a fork."""

    def __init__(self) -> None:
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)  # whoever held its lock is not in the child

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.Queue[Callable[[], object]] = queue.Queue(MOST_WAITING)
        self._process = 0

    def hand_over(self, work: Callable[[], object]) -> None:
        """Have `work` done soon on the exporter's thread; it is dropped where too much waits already."""
        with self._lock:
            if not self._process:
                self._process = os.getpid()
                threading.Thread(target=self._run, args=(self._queue,), name="kinetic-telemetry", daemon=True).start()
                _at_exit(self.flush)
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            warn_once(f"telemetry: {MOST_WAITING} reports wait for a collector that is slow; more are dropped")

    def flush(self, seconds: float = LAST_SECONDS) -> bool:
        """Wait until all is told, for so long at most. Returns True if it is."""
        if not self._process:
            return True
        done = threading.Event()
        try:
            self._queue.put_nowait(done.set)
        except queue.Full:
            return False
        return done.wait(seconds)

    @staticmethod
    def _run(waiting: queue.Queue[Callable[[], object]]) -> None:
        while True:
            work = waiting.get()
            try:
                work()
            except Exception as error:  # of a library, or of a store: the job is none the worse for it
                warn_once(f"telemetry: {type(error).__name__}: {error}. The job goes on; it is not told of there")


def _at_exit(work: Callable[[], object]) -> None:
    """Have `work` done when the main thread has ended, while libraries can still use executors and start threads: those
    are ended by a function of the same list, of which the newest is called first.
    """
    import concurrent.futures.thread  # noqa: F401, puts its own there

    with suppress(RuntimeError):  # that moment has passed
        getattr(threading, "_register_atexit", atexit.register)(work)


EXPORTER = Exporter()
