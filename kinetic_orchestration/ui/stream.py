"""One stream of events for a job's page: its hosts' lines, its picture and its state as they come.

A page has one stream, whatever the number of hosts: a browser has six connections to a server, and a stream keeps one.
A stream that was cut goes on behind the last event that its page has had.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.ui import portrait

LONGEST_MARK: Final = 64 << 10
PACE: Final = {False: 0.25, True: 3.0}  # seconds between two looks, by whether they are requests
STATE_EVERY: Final = {False: 2.0, True: 10.0}
DRAWN_EVERY: Final = 2.0
ALIVE_EVERY: Final = 15.0
FAILED_PACE: Final = 5.0  # while the store is away

Write = Callable[[str, str, Any], None]


def follow(handle: JobHandle[Any], mark: str, write: Write, stopping: threading.Event) -> None:
    """Write what is new of a job until it has ended and all is told, its reader leaves, or the server stops.

    Args:
        handle: The job.
        mark: That of the last event that its page has; "" at first.
        write: Writes an event: its name, its mark and its data. An OSError ends the stream.
        stopping: Set when the server stops.
    """
    metered = handle._job.store.metered
    tail: portrait.Tail | None = None
    stated = drawn = alive = -1e9
    before: dict[str, Any] = {}
    final, after, pace = False, 0, PACE[metered]
    while not stopping.is_set():
        now = time.monotonic()
        try:
            if tail is None:
                tail = portrait.Tail(handle, mark)
                write("begin", tail.mark, {"late": tail.begins_late, "attempt": tail.attempt, "resumed": bool(mark)})
            if now - stated >= STATE_EVERY[metered]:
                told, stated = portrait.of_job(handle), now
                # Both before the log is read: so the last lines of what is over are among those that are.
                final, after = bool(told["final"]), tail.next_attempt()
                if told != before:
                    before = told
                    write("state", "", told)
            for lines in tail.read(ended=final or after > 0):
                write("log", tail.mark, lines)
            if now - drawn >= DRAWN_EVERY or final:
                drawn = now
                if picture := tail.drawn():
                    write("curves", "", picture)
            if after:
                tail.go_on(after)
                after, stated = 0, -1e9
                write("attempt", tail.mark, tail.attempt)
                continue
            if final:
                write("end", tail.mark, {})
                return
            pace = PACE[metered]
        except KineticError as error:
            write("trouble", "", str(error))
            pace = FAILED_PACE
        if now - alive >= ALIVE_EVERY:
            alive = now
            write("", "", None)
        stopping.wait(pace)
