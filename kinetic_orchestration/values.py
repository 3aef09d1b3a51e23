"""The data that travels between the stages. Nothing but data: frozen, whole from the start, and JSON inside."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kinetic_orchestration.accelerators import Slice
from kinetic_orchestration.agent.wire import Beat, Verdict


class JobStatus(enum.Enum):
    """What people see of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NOT_FOUND = "NOT_FOUND"

    @property
    def final(self) -> bool:
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in seconds: waiting for hardware, one attempt, all attempts, without progress; and dollars.

    A string with a unit ("90s", "15m", "2h", "1d") is read as well.
    """

    provision: float | str | None = None
    run: float | str | None = None
    total: float | str | None = None
    stall: float | str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """How many failures of each kind a job survives."""

    user: int = 0
    preemption: int = 100
    infra: int = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before anything is sent; `plan` prints it, and it is the whole of a job's spec."""

    name: str
    slice: Slice
    backend: str
    store: str
    deployment: str
    limits: Limits
    retry: Retry
    output_dir: str = ""  # "": the job's own folder in the store
    partition_key: str = ""
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # names only: the values go by an inherited pipe
    volumes: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    distributed: bool = True
    emulated: bool = True
    isolated: bool = False  # in an environment of its own
    abort_without_owner: bool = False
    compile_cache: bool = True
    debug_port: int = 0
    labels: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "slice": self.slice.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Plan:
        known = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        return cls(
            **{
                **known,
                "slice": Slice.from_json(fields["slice"]),
                "limits": Limits(**fields["limits"]),
                "retry": Retry(**fields["retry"]),
                **{key: tuple(fields[key]) for key in ("secrets", "volumes", "argv")},
            }
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """What of a job lies in the store: digests, and what the hosts need to rebuild the place the code came from."""

    payload: dict[str, Any]  # digest and size; empty for a command
    tree: str
    cwd: str
    path: tuple[str, ...]
    extra_path: tuple[str, ...]
    data: tuple[dict[str, str], ...]
    packages: tuple[dict[str, str], ...]
    environment: dict[str, Any]
    python: str
    size: int = 0  # bytes of source that each host unpacks
    sent: int = 0  # bytes that were not there before

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Intent(NamedTuple):
    """The promise of an attempt, written before its create call: exactly one place per attempt."""

    attempt: int
    boot: str
    placement: dict[str, Any]
    deadline: float  # by the store's time; 0: none
    created: float


class Observation(NamedTuple):
    """What a backend says of a placement."""

    state: str
    message: str = ""


ABSENT = "absent"  # nothing there: not made yet, or gone
QUEUED = "queued"
PROVISIONING = "provisioning"
PARTIAL = "partial"  # some hosts live, some do not exist: not made yet, or ended already
PRESENT = "present"
WOUNDED = "wounded"  # hosts died that had not ended, and others live
GONE = "gone"  # hosts died that had not ended, and none lives
ELSEWHERE = "elsewhere"  # cannot be seen from here: judge by beats


class Cancel(NamedTuple):
    reason: str
    by: str
    age: float


class Glimpse(NamedTuple):
    """All that could be seen of one attempt of a job at one moment."""

    now: float
    intent: Intent | None = None
    verdict: Verdict | None = None
    verdict_age: float = 0.0
    cancel: Cancel | None = None
    observation: Observation = Observation(ABSENT)
    beats: tuple[Beat | None, ...] = ()
    beat_ages: tuple[float, ...] = ()
    done: int = 0


class Spent(NamedTuple):
    user: int = 0
    preemption: int = 0
    infra: int = 0


class Cursor(NamedTuple):
    """Where a follower is. JSON: what a trigger serialises and a sensor keeps."""

    attempt: int = 1
    phase: str = ""
    logs: tuple[tuple[int, int], ...] = ()  # per host: segment, offset
    spent: Spent = Spent()

    def to_json(self) -> list[Any]:
        return [self.attempt, self.phase, self.logs, self.spent]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Cursor:
        attempt, phase, logs, spent = fields
        return cls(attempt, phase, tuple((segment, offset) for segment, offset in logs), Spent(*spent))


class Outcome(NamedTuple):
    """How a job ended."""

    status: JobStatus
    attempt: int
    verdict: Verdict
    cause: str = ""
    attempts: int = 1


class Attempt(NamedTuple):
    """One try to run a job, as its records tell it; times by the store's clock."""

    number: int
    began: float | None
    ended: float | None
    verdict: Verdict | None


class Peek(NamedTuple):
    """What can be said of a job by looking alone."""

    status: JobStatus
    attempt: int
    phase: str
    message: str  # what will be done about it by whoever follows the job next
    done: float
    total: float
    unit: str
    outcome: Outcome | None


# ---- what a follower tells ---------------------------------------------------------------------------------


class Output(NamedTuple):
    """Whole lines that one host wrote, as bytes, with their ends."""

    host: int
    kind: str  # frames.OUT, ERR or NOTE
    time: float
    text: bytes
    attempt: int
    segment: int
    offset: int


class Metrics(NamedTuple):
    host: int
    time: float
    step: int | None
    values: dict[str, float]
    attempt: int


class Progress(NamedTuple):
    host: int
    time: float
    done: float
    total: float
    unit: str
    attempt: int


class Change(NamedTuple):
    """The job entered another phase."""

    phase: str
    message: str
    attempt: int


Event = Output | Metrics | Progress | Change
