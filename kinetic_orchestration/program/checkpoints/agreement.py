"""Agreement of the hosts of one attempt on a decision, by small records at the location of their checkpoints.

It does not use a collective of the framework: hosts may be at different steps when the question comes up, and two hosts
that wait in different collectives wait for ever.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.program.checkpoints.store import CheckpointStore

AGREED = "agreed/"

_times: Counter[tuple[str, str, int]] = Counter()  # how often this program has begun such a training


class Alone(RuntimeError):
    """Another host did not answer in time."""


class Agreement:
    """Agreement of the `hosts` hosts of one attempt; trivial for one host."""

    def __init__(self, store: CheckpointStore, host: int, hosts: int) -> None:
        self._store = store
        _times[store.place, store.writer, host] += 1
        time = _times[store.place, store.writer, host]  # one that is tried again takes no answer of the one before
        self._prefix = f"{AGREED}{store.writer}/{time}/"
        self.host = host
        self.hosts = hosts

    def begin(self) -> None:
        """Forget what earlier attempts agreed on."""
        if self.host == 0:
            for entry in list(self._store.records.list(AGREED)):
                writer = entry.name.removeprefix(AGREED).partition("/")[0]
                if writer != self._store.writer and not commits.succeeds(writer, self._store.writer):
                    self._store.records.delete(entry.name)

    def decide(self, what: str, value: Any, patience: float) -> Any:
        """Host 0's value, on all hosts. The other hosts pass None."""
        if self.hosts == 1:
            return value
        name = f"{self._prefix}{what}"
        heard: list[Any] = []
        if self.host == 0 and self._store.records.create(name, json.dumps(value).encode()) is not None:
            return value
        # Host 0 too, if it is decided: the others may have read that already.

        def is_there() -> bool:
            record = self._store.records.read(name)
            heard[:] = [] if record is None else _read(record.data)
            return bool(heard)

        if not self._store.wait(is_there, patience):
            raise Alone(f"host 0 did not decide about {what} within {patience:.0f} s")
        return heard[0]

    def gather(self, what: str, value: Any, patience: float) -> list[Any]:
        """Every host's value, on all hosts."""
        if self.hosts == 1:
            return [value]
        prefix = f"{self._prefix}{what}/"
        heard: dict[int, Any] = {}
        self._store.records.signal(f"{prefix}{self.host}", json.dumps(value).encode())

        def all_are_there() -> bool:
            for signal in self._store.records.signals(prefix):
                host = signal.name.rpartition("/")[2]
                if host.isdecimal() and int(host) < self.hosts and (told := _read(signal.data)):
                    heard[int(host)] = told[0]
            return len(heard) == self.hosts

        if not self._store.wait(all_are_there, patience):
            silent = next(host for host in range(self.hosts) if host not in heard)
            raise Alone(f"host {silent} said nothing about {what} within {patience:.0f} s")
        return [heard[host] for host in range(self.hosts)]

    def forget(self, before: int) -> None:
        """The meetings before a step that all hosts have left behind: each has written its part there."""
        if self.hosts == 1:
            return
        prefix = f"{self._prefix}meeting-"
        for entry in list(self._store.records.list(prefix)):
            if int(entry.name.removeprefix(prefix)) < before:
                self._store.records.delete(entry.name)


def _read(data: bytes) -> list[Any]:
    """Return the record's value in a list; an empty list for a damaged record, which is read again and may then be
    whole."""
    try:
        return [json.loads(data)]
    except (ValueError, RecursionError):
        return []
