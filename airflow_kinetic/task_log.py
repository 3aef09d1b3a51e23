"""A job's events as records of the task's log, on a worker and on a triggerer alike.

Airflow sorts a task's records by time and drops a record that is equal to the one before it. So each line
carries the time of its host, made strictly later than that host's line before: order and repeated lines are
kept, and a trigger that reads again after a restart writes equal records, which are dropped.
"""

from __future__ import annotations

import contextvars
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from kinetic_orchestration.follow import Printer
from kinetic_orchestration.values import Change, Event, Output


class TaskLog:
    """An `emit` of the core. Good in any thread: a triggerer finds the task by the context of its caller."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._latest: dict[int, int] = {}
        self._context = contextvars.copy_context()
        self._log = structlog.get_logger("kinetic.host")
        self._changes = structlog.get_logger("kinetic.job")

    def __call__(self, event: Event) -> None:
        self._context.run(self._write, event)

    def _write(self, event: Event) -> None:
        if isinstance(event, Change):
            for text in _texts(event):
                self._changes.info(text)
            return
        where: dict[str, Any] = {"host": event.host} if self._hosts > 1 else {}
        if event.attempt > 1:
            where["attempt"] = event.attempt
        for text in _texts(event):
            self._log.info(text, timestamp=self._time(event.host, event.time), **where)

    def _time(self, host: int, seconds: float) -> str:
        moment = max(round(seconds * 1e6), self._latest.get(host, 0) + 1)
        self._latest[host] = moment
        return (_EPOCH + datetime.timedelta(microseconds=moment)).isoformat().replace("+00:00", "Z")


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _texts(event: Event) -> Iterator[str]:
    """What an event says, line by line; of a line that was overwritten on a terminal, what remained to be seen."""
    if isinstance(event, Output):
        text = event.text.decode("utf-8", "backslashreplace")
    else:
        written: list[str] = []
        write: Callable[[str], object] = written.append
        Printer(1, write)(event)
        text = "".join(written)
    for line in text.removesuffix("\n").split("\n") if text else ():
        yield line.rstrip("\r").rpartition("\r")[2]
