"""The records that are exchanged, and the version of their format.

A record is one JSON object with the version of the wire that wrote it, and the release of this package. A reader takes
its own version of the wire and every older one, and raises for a newer one; the release only tells people who wrote it.
The fields of each kind are declared here, for the records that hosts read, and for all others in the core's `records`.
Records are plain values: other modules decide which process writes them, and their consequences (`attempt_rules` here,
`lifecycle` in the core).
"""

from __future__ import annotations

import json
from binascii import crc32
from typing import Any, NamedTuple

from kinetic_orchestration import __version__
from kinetic_orchestration.protocol import schema

WIRE = 1
RELEASE = __version__
_STAMP = {"wire": WIRE, "release": RELEASE}


class Unreadable(ValueError):
    """Not a whole record: torn, or not ours."""


class Newer(ValueError):
    """Written by a newer version of this package."""


PLAIN = "json"  # a value that is safe to read; any other is pickled, and unpickled only if it is trusted

# Why an attempt ended. What follows from each is a table in the core's lifecycle.
USER = "user"
CONFIGURATION = "configuration"
INFRASTRUCTURE = "infrastructure"
PREEMPTION = "preemption"
CANCELLED = "cancelled"
DEADLINE = "deadline"
STALL = "stall"
DAMAGED = "damaged"  # its outcome was written, and can no longer be read
# Why a slice was never had. They cost an attempt nothing: the next one asks elsewhere, or later.
STOCKOUT = "stockout"
QUOTA = "quota"
INTERNAL = "internal"  # of the cloud's own making

# With which a pod ends, so that its cluster's own tools tell what it came to.
EXIT_CODES = {
    USER: 64,
    INFRASTRUCTURE: 65,
    PREEMPTION: 66,
    CANCELLED: 67,
    DEADLINE: 68,
    CONFIGURATION: 69,
    STALL: 70,
    DAMAGED: 71,
}

COMMITTED = "committed"
ABORTED = "aborted"
CLOSED = "closed"

# The states of a host in its heartbeats.
STARTING = "starting"
PREPARING = "preparing"
RUNNING = "running"
ENDING = "ending"
DONE = "done"


def stamped(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record with the wire and the release of who writes it now, whoever wrote them before."""
    return {**_STAMP, **fields, **_STAMP}


def encode(fields: dict[str, Any]) -> bytes:
    return summed(
        json.dumps(stamped(fields), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    )


def summed(data: bytes) -> bytes:
    """A record with the checksum of all its other bytes as its last field: a flipped bit may leave good JSON."""
    body = data[:-1]
    return body + _SUM % crc32(body)


_SUM = b',"sum":"%08x"}'
_SUM_BYTES = len(_SUM % 0)


def decode(data: bytes, name: str = "record") -> dict[str, Any]:
    try:
        fields = json.loads(data)
        summed_up = fields.pop("sum", None)
        version = fields["wire"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unreadable(f"{name} is not a whole record ({len(data)} bytes)") from None
    if summed_up is not None and data[-_SUM_BYTES:] != _SUM % crc32(data[:-_SUM_BYTES]):
        raise Unreadable(f"{name} is damaged: its checksum is another ({len(data)} bytes)")
    if not isinstance(version, int) or version > WIRE:
        by = f" by release {schema.short(fields['release'])}" if fields.get("release") else ""
        raise Newer(
            f"{name} was written with wire version {schema.short(version)}{by}, and this is version {WIRE}, release "
            f"{RELEASE}: upgrade kinetic-orchestration here, or use the version that wrote it"
        )
    return dict(fields)


_RELEASE = schema.Fields({}, {"release": schema.line(schema.WORD)})  # none: of version 0.1
FAILURE = schema.Fields(
    {},
    {
        "type": schema.text(schema.LINE),
        "message": schema.text(schema.PAGE),
        "traceback": schema.text(schema.PAGE),
        "log_tail": schema.text(schema.PAGE),
        "exit_code": schema.maybe(schema.exit_code),
        "digest": schema.digest,
        "size": schema.size,
    },
)
VERDICT = schema.Fields(
    {"kind": schema.one_of(COMMITTED, ABORTED, CLOSED), "writer": schema.token, "time": schema.moment},
    {
        "cause": schema.line(schema.WORD),
        "host": schema.maybe(schema.host),
        "reason": schema.text(schema.PAGE),
        "digest": schema.digest,
        "size": schema.size,
        "failure": schema.maybe(FAILURE),
        "proof": schema.line(1 << 16),
        "format": schema.line(schema.WORD),
        "seal": schema.digest,
        "unplaced": schema.flag,
        "grace": schema.seconds,
        "leaves": schema.flag,
    },
)
# Of each training of a program: the steps done when it began and now; seconds of steps, first steps, restoration, and
# of waiting for checkpoints.
SPENT = schema.table(schema.text(schema.WORD), schema.many(schema.number(0, 1e12), 6), 8)
_SAMPLES = schema.many(schema.measure, 1024)
BEAT = schema.Fields(
    {"state": schema.line(schema.WORD)},
    {
        "boot": schema.token,
        "segment": schema.size,
        "offset": schema.size,
        "active": schema.moment,
        "done": schema.measure,
        "total": schema.measure,
        "unit": schema.text(schema.WORD),
        "exit": schema.maybe(schema.exit_code),
        "returned": schema.flag,
        "verdict": schema.flag,
        "told": schema.flag,
        "began": schema.moment,
        "rate": schema.measure,
        "spent": schema.maybe(SPENT),
        "full": schema.maybe(schema.line()),
        "devices": schema.maybe(
            schema.Fields(
                {},
                {
                    "at": schema.measure,
                    "cpu": schema.measure,
                    "memory": schema.measure,
                    "kind": schema.text(schema.WORD),
                    "busy": _SAMPLES,
                    "used": _SAMPLES,
                    "total": _SAMPLES,
                },
            )
        ),
    },
)
CANCEL = schema.Fields(
    {},
    {
        "reason": schema.text(schema.PAGE),
        "by": schema.text(),
        "writer": schema.token,
        "anew": schema.flag,
        "leaves": schema.flag,  # its hosts may keep their slice, if the job has `keep`: only the program is unwanted
    },
)
KEEPER = schema.Fields({}, {"keeper": schema.token, "within": schema.seconds})
BEFORE = schema.Fields(
    {"spent": schema.many(schema.count, 4), "ran": schema.many(schema.attempt, schema.MOST_ATTEMPTS)}
)
LEASED = schema.Fields({"slice": schema.resource, "epoch": schema.count}, {"lost": schema.count})
# One place, of any backend; the second half has its history, if it is not the first one.
_PLACE = schema.Fields(
    {},
    {
        "backend": schema.resource,
        "job": schema.job_id,
        "attempt": schema.attempt,
        "run": schema.path,
        "machine": schema.line(),
        "project": schema.project,
        "zone": schema.place,
        "cluster": schema.token,
        "autopilot": schema.flag,
        "queue": schema.maybe(schema.resource, ""),
        "patience": schema.seconds,
        "model": schema.token,
        "grouped": schema.flag,
        "choice": schema.count,  # the plan's candidate that it is of; none: the first
        "rival": schema.whole(0, schema.MOST_PLACES - 1),  # its number among the places of a race; none: no race
        "why": schema.line(),  # it was taken, for users
        "lease": LEASED,  # of a kept slice that the attempt claims: its name, and the epoch of the claim
        "name": schema.resource,
        "hosts": schema.whole(0, schema.MOST_HOSTS),
        "slices": schema.slices,
        "wait": schema.seconds,
        "since": schema.moment,
        "moved": schema.count,
        "tried": schema.many(schema.place, 1000),
        "dropped": schema.many(schema.place, 1000),
        "tries": schema.count,
        "rounds": schema.count,
    },
)
PLACEMENT = schema.Fields({}, {**_PLACE.checks, "rivals": schema.many(_PLACE, schema.MOST_PLACES - 1)})
WON = schema.Fields({"rival": schema.whole(0, schema.MOST_PLACES - 1)}, {"writer": schema.token, "seal": schema.digest})
INTENT = schema.Fields(
    {"attempt": schema.attempt, "boot": schema.token, "placement": PLACEMENT, "allowed": schema.seconds},
    {"affordable": schema.seconds, "before": schema.maybe(BEFORE), "writer": schema.token},
)
STARTED = schema.Fields(
    {},
    {
        "pod": schema.line(schema.WORD),
        "boot": schema.token,
        "pid": schema.size,
        "machine": schema.line(),
        "up": schema.seconds,
        "ports": schema.table(schema.token, schema.port, 16),
    },
)
EXIT = schema.Fields({"code": schema.exit_code})
DONE_RECORD = schema.Fields(
    {},
    {
        "boot": schema.token,
        "cut": schema.flag,
        "began": schema.moment,
        "ended": schema.moment,
        "prepared": schema.table(schema.line(), schema.many(schema.moment, 2)),
        "spent": SPENT,
    },
)


def fields_of(data: bytes, kind: schema.Fields, name: str = "record") -> dict[str, Any]:
    """A record's fields, after a check of all known ones: any writer of the store may have written them."""
    fields = decode(data, name)
    try:
        _RELEASE(fields)
        kind(fields)
    except schema.Wrong as wrong:
        raise Unreadable(f"{name} is not one: {wrong}") from None
    except RecursionError:
        raise Unreadable(f"{name} is not one: it is too deep") from None
    return fields


class Failure(NamedTuple):
    """An error on a host, as the authors of the job should see it."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    log_tail: str = ""
    exit_code: int | None = None
    digest: str = ""  # of the pickled exception, with the host's other records
    size: int = 0

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value not in ("", None, 0) or key == "message"}


class Verdict(NamedTuple):
    """The one record that ends an attempt. The first writer decides."""

    kind: str  # committed by host 0, aborted by any host, closed by a client
    writer: str  # unique to the writer, so that a write with an unknown outcome can be distinguished from another's
    time: float
    cause: str = ""
    host: int | None = None
    reason: str = ""
    digest: str = ""  # of host 0's value
    size: int = 0
    failure: Failure | None = None
    proof: str = ""  # the word of the host's machine for the digest (of the value, or of the failure's exception)
    format: str = ""  # of the value: PLAIN, or "" for a pickle
    seal: str = ""  # the signature of all of this by the attempt's key, if the job is signed
    unplaced: bool = False  # closed before the attempt got a place: it is not counted for users
    grace: float = 0.0  # seconds that the hosts' programs have to save, if a notice gives more than the cause does
    leaves: bool = False  # it was cancelled, and its hosts may keep their slice all the same
    raw: bytes = b""  # as it was read

    def encode(self) -> bytes:
        fields = {key: value for key, value in self._asdict().items() if value not in ("", None, b"") and key != "raw"}
        for name in ("unplaced", "grace", "leaves"):
            if not fields[name]:
                del fields[name]
        if self.failure is not None:
            fields["failure"] = self.failure.to_json()
        return encode(fields)

    @classmethod
    def decode(cls, data: bytes, name: str = "the verdict") -> Verdict:
        fields = fields_of(data, VERDICT, name)
        if (failure := fields.get("failure")) is not None:
            fields["failure"] = Failure(**FAILURE.known(failure, Failure._fields))
        return cls(**{**VERDICT.known(fields, cls._fields), "raw": data})

    def leaves_slice(self, cause: str) -> bool:
        """Return True if the attempt may leave its slice to another one: a clean machine is not likely after any other
        end than these.

        Args:
            cause: What the verdict counts as, which may be more than its own cause says.
        """
        if self.kind == COMMITTED:
            return True
        return self.kind == ABORTED and (cause == USER or (cause == CANCELLED and self.leaves))


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
    verdict: bool = False  # this host has read one: the others should check
    began: float = 0.0  # when the program did, by the store's time
    rate: float = 0.0  # of what is done, a second
    devices: dict[str, Any] | None = None  # what they do: the newest sample of `sampler`, with its time
    spent: dict[str, list[float]] | None = None  # what the time of the program's trainings went to
    told: bool = False  # this host was told that it will be ended
    full: str | None = None  # a folder on whose disk the program waits for room, to write its function's outcome

    def encode(self) -> bytes:
        return encode({key: value for key, value in self._asdict().items() if value is not None or key == "exit"})

    @classmethod
    def read(cls, data: bytes) -> Beat | None:
        """Parse a heartbeat. It is written without waiting for the disk: after a power cut, it may be invalid. One of a
        newer version counts as invalid too: a reader of all jobs continues with those that it understands.
        """
        try:
            return cls.decode(data)
        except (Unreadable, Newer):
            return None

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        return cls(**BEAT.known(fields_of(data, BEAT, "a beat"), cls._fields))


def leaves_after_cancel(data: bytes | None) -> bool:
    """Return True if a cancel lets the hosts keep their slice. One that cannot be read, or none, does not."""
    try:
        return data is not None and fields_of(data, CANCEL, "the cancel").get("leaves") is True
    except (Unreadable, Newer):
        return False


def reason_of_cancel(data: bytes) -> str:
    """The reason of a cancel. An unreadable record cancels all the same."""
    try:
        return str(fields_of(data, CANCEL, "the cancel").get("reason") or "") or "cancelled"
    except (Unreadable, Newer):
        return "cancelled, by a record that cannot be read"


def untaken(data: bytes, age: float) -> str:
    """Return the reason why a job that was handed over is abandoned, by its keeper's record of that age; "" if it is
    not."""
    try:
        within = fields_of(data, KEEPER, "the keeper").get("within", 0.0)
    except (Unreadable, Newer):
        return ""
    if not within or age <= within:
        return ""
    return f"nobody has taken it over within {within:.0f} s, as when its task is marked before its trigger begins"


def open_eye(again_in: float) -> bytes:
    """The eye of a reader that opens it again after that many seconds."""
    return b"%d" % again_in


def opened_again_in(eye: bytes) -> float:
    return float(eye) if len(eye) < 8 and eye.isdigit() else 25.0
