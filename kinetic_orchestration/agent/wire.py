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


PLAIN = "json"  # a value that anybody may read; any other is pickled, and unpickled only by who may trust it

# Why an attempt ended. What follows from each is a table in the core's lifecycle.
USER = "user"
CONFIGURATION = "configuration"
INFRASTRUCTURE = "infrastructure"
PREEMPTION = "preemption"
CANCELLED = "cancelled"
DEADLINE = "deadline"
STALL = "stall"
# Why a slice was never had. They cost an attempt nothing: the next one asks elsewhere, or later.
STOCKOUT = "stockout"
QUOTA = "quota"
INTERNAL = "internal"  # of the cloud's own making

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
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable(f"{name} is not a whole record ({len(data)} bytes)") from None
    if not isinstance(version, int) or version > WIRE:
        raise Newer(
            f"{name} was written with wire version {version}, and this is version {WIRE}: "
            "upgrade kinetic-orchestration here, or use the version that wrote it"
        )
    assert isinstance(fields, dict)
    return fields


_TEXT, _WHOLE, _NUMBER = (str,), (int,), (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("type", "message", "traceback", "log_tail", "digest", "kind", "writer", "cause", "reason"), _TEXT),
    **dict.fromkeys(("format", "proof", "state", "boot", "unit"), _TEXT),
    **dict.fromkeys(("exit_code", "host", "exit"), (int, type(None))),
    **dict.fromkeys(("size", "segment", "offset"), _WHOLE),
    **dict.fromkeys(("time", "active", "done", "total", "rate"), _NUMBER),
    **dict.fromkeys(("verdict", "returned"), (bool,)),
    "devices": (dict, type(None)),
}


def _made(of: type[Any], fields: dict[str, Any], name: str) -> Any:
    """Of the fields that this version knows, each of its kind: whoever can write to the store may have written them."""
    found = {key: fields[key] for key in of._fields if key in fields}
    for key, value in found.items():
        if (kinds := _KINDS.get(key)) and not (isinstance(value, kinds) and (kinds is not _NUMBER or _is_float(value))):
            raise Unreadable(f"{name} is not one: its {key} is {value!r:.80}")
    try:
        return of(**found)
    except TypeError:
        raise Unreadable(f"{name} is not a whole one: it has {', '.join(found) or 'nothing'}") from None


def _is_float(value: object) -> bool:
    """JSON's whole numbers may have any length."""
    return not isinstance(value, int) or abs(value) < 1 << 1000


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
        made: Failure = _made(cls, fields, "the verdict's failure")
        return made


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
    proof: str = ""  # the word of the host's machine for the digest (of the value, or of the failure's exception)
    format: str = ""  # of the value: PLAIN, or "" for a pickle

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
            if not isinstance(failure, dict):
                raise Unreadable(f"the verdict is not one: its failure is {failure!r:.80}")
            fields["failure"] = Failure.from_json(failure)
        made: Verdict = _made(cls, fields, "the verdict")
        return made


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
    returned: bool = False  # its function has, or its program waits for the others'
    verdict: bool = False  # this host has seen one: whoever has not should look
    began: float = 0.0  # when the program did, by the store's time
    rate: float = 0.0  # of what is done, a second
    devices: dict[str, Any] | None = None  # what they do: the newest sample of `gauges`, with its time

    def encode(self) -> bytes:
        return encode({key: value for key, value in self._asdict().items() if value is not None or key == "exit"})

    @classmethod
    def read(cls, data: bytes) -> Beat | None:
        """A beat is written without waiting for the disk: after a power cut, it may be none. Nor is one of a newer
        version: whoever looks at all jobs goes on with those that it understands.
        """
        try:
            return cls.decode(data)
        except (Unreadable, Newer):
            return None

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        made: Beat = _made(cls, decode(data, "a beat"), "a beat")
        return made


def open_eye(again_in: float) -> bytes:
    """Of a reader who opens it again after so many seconds."""
    return b"%d" % again_in


def opened_again_in(eye: bytes) -> float:
    return float(eye) if len(eye) < 8 and eye.isdigit() else 25.0
