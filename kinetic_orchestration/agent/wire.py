"""The records that travel, and the version of their format.

A record is one JSON object with the version of the wire that wrote it. A reader takes its own version and every
older one, and says so when it meets a newer one. Records are plain values: who writes which, and what follows
from it, is decided elsewhere (`rules` here, `lifecycle` in the core).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

WIRE = 1


class Unreadable(ValueError):
    """Not a whole record: torn, or not ours."""


class Newer(ValueError):
    """Written by a newer version of this package."""


# Why an attempt ended. What follows from each is a table in the core's lifecycle.
USER = "user"
CONFIGURATION = "configuration"
INFRASTRUCTURE = "infrastructure"
PREEMPTION = "preemption"
CANCELLED = "cancelled"
DEADLINE = "deadline"
STALL = "stall"

COMMITTED = "committed"
ABORTED = "aborted"
CLOSED = "closed"

# What a host says of itself in its beats.
STARTING = "starting"
PREPARING = "preparing"
RUNNING = "running"
ENDING = "ending"
DONE = "done"


def encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"wire": WIRE, **fields}, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def decode(data: bytes, name: str = "record") -> dict[str, Any]:
    try:
        fields = json.loads(data)
        version = fields["wire"]
    except (ValueError, KeyError, TypeError):
        raise Unreadable(f"{name} is not a whole record ({len(data)} bytes)") from None
    if not isinstance(version, int) or version > WIRE:
        raise Newer(
            f"{name} was written with wire version {version}, and this is version {WIRE}: "
            "upgrade kinetic-orchestration here, or use the version that wrote it"
        )
    assert isinstance(fields, dict)
    return fields


class Failure(NamedTuple):
    """What went wrong on a host, as the people who wrote the job want to read it."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    log_tail: str = ""
    exit_code: int | None = None
    digest: str = ""  # of the pickled exception, beside the host's other records
    size: int = 0

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value not in ("", None, 0) or key == "message"}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Failure:
        return cls(**{key: fields[key] for key in cls._fields if key in fields})


class Verdict(NamedTuple):
    """The one record that ends an attempt. Whoever creates it first has decided."""

    kind: str  # committed by host 0, aborted by any host, closed by a client
    writer: str  # unique to the writer, so that a write with an unknown outcome can be told from another's
    time: float
    cause: str = ""
    host: int | None = None
    reason: str = ""
    digest: str = ""  # of host 0's value
    size: int = 0
    failure: Failure | None = None

    def encode(self) -> bytes:
        fields = {key: value for key, value in self._asdict().items() if value not in ("", None)}
        if self.failure is not None:
            fields["failure"] = self.failure.to_json()
        return encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> Verdict:
        fields = decode(data, "the verdict")
        failure = fields.get("failure")
        if failure is not None:
            fields["failure"] = Failure.from_json(failure)
        return cls(**{key: fields[key] for key in cls._fields if key in fields})


class Beat(NamedTuple):
    """A host's sign of life."""

    state: str
    boot: str = ""  # unique to one life of one agent
    segment: int = 0
    offset: int = 0
    active: float = 0.0  # when the job last showed any sign of progress, by the store's time
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    exit: int | None = None

    def encode(self) -> bytes:
        return encode(self._asdict())

    @classmethod
    def read(cls, data: bytes) -> Beat | None:
        """A beat is written without waiting for the disk: after a power cut, it may be none."""
        try:
            return cls.decode(data)
        except Unreadable:
            return None

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        fields = decode(data, "a beat")
        return cls(**{key: fields[key] for key in cls._fields if key in fields})
