"""A host's view of its attempt, which `files` and `bucket` implement; for type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.records.files import FileRecords

Records = FileRecords | CloudRecords
"""The records of a store, below a folder or in a bucket: both have the same verbs, and raise OSError for a refusal."""


class View(Protocol):
    """The records of an attempt, as one of its hosts sees them."""

    @property
    def records(self) -> Records: ...

    @property
    def log(self) -> Log: ...

    def open(self) -> None:
        """Begin to look, and to be seen."""

    def verdict(self) -> bytes | None: ...

    def cancel(self) -> bytes | None: ...

    def owner(self) -> tuple[Record, float] | None:
        """Return the owner's last beat and when it was looked for; None if that was not lately."""

    def keeper(self) -> tuple[Record, float] | None:
        """Return the keeper's record, and when it was read."""

    def started(self, host: int) -> Mapping[str, object] | None:
        """Return the record that a host wrote when it started; None if it has not."""

    def exit(self, host: int) -> int | None: ...

    def beat_of(self, host: int) -> tuple[int, wire.Beat | None]:
        """Return the generation of a host's last beat, and the beat if it can be read."""

    def beats_read_at(self) -> float:
        """Return when the others' beats were last looked at, by this machine's steady clock."""

    def shows_notice(self) -> bool:
        """Return True once others can see that this host was told that it will be ended."""

    def cadence(self) -> float:
        """Return how many seconds old a look may be."""

    def beat(self, compose: Callable[[], wire.Beat], *, changed: bool) -> None:
        """Show a sign of life; at once if it has news."""

    def denied(self) -> tuple[str, str]:
        """Return why this host cannot show that it lives, and whose matter that is; "" twice while it can."""

    def poll_soon(self) -> None:
        """Make the next look and the next beat come soon."""

    def close(self) -> None:
        """Show the last beat."""

    def write_exit(self, data: bytes) -> None:
        """Write what this host's program ended with, for hosts that do not hear it by beats."""

    def deliver(self, what: str, path: str, *, digest: str, size: int, keep: bool) -> None:
        """Send the outcome of this host's program, a file with that digest and size.

        keep: whether the file is needed again if the store refuses.
        """

    def patience_with(self, error: OSError) -> float:
        """Return for how many seconds an outcome that could not be sent is sent again."""


class Log(Protocol):
    """The log of one host."""

    segment: int
    offset: int

    @property
    def full(self) -> bool:
        """Return True if the program has to wait before it writes more."""

    def write(self, kind: str, payload: bytes) -> None: ...

    def hurry(self) -> None:
        """Write soon from now on: the machine may be gone in seconds."""

    def flush(self) -> bool:
        """Return whether all that was written is in the store."""

    def close(self) -> bool:
        """Flush; return False if lines were lost."""
