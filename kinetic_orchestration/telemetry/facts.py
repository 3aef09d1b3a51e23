"""The facts that are told of an attempt that has ended, and of a job that begins or has ended. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Results, by the names that OpenTelemetry has for those of a pipeline's run.
SUCCESS, FAILURE, ERROR, TIMEOUT, CANCELLATION = "success", "failure", "error", "timeout", "cancellation"


class Phase(NamedTuple):
    """A part of an attempt's time, in seconds since the epoch, by the store's clock."""

    name: str
    began: float
    ended: float


class Address(NamedTuple):
    """A data set as OpenLineage names it: a bucket or a file system, and a path in it."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job, as whoever reads about it from outside knows it.

    Attributes:
        job_id: Its id.
        name: The function or command.
        pipeline: What its cost is counted for: a dag, an asset, or the name.
        deployment: That of its store.
        backend: The platform.
        accelerator: The slice, as the user named it.
        origin: The orchestrator's names for what launched it.
        inputs: Data that it was given.
        outputs: Where it writes.
    """

    job_id: str
    name: str
    pipeline: str
    deployment: str
    backend: str
    accelerator: str
    origin: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Address, ...] = ()
    outputs: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended.

    Attributes:
        job: Its job.
        number: Its number in the records, from 1.
        result: One of the names above.
        cause: Of a failure, by the records' names; "" of a success.
        error: The type of the program's exception, or "".
        message: The failure's message.
        zone: Where its hosts were, or "".
        phases: What its time went to, in order; never empty.
        hardware: Seconds for which its hosts were charged for.
        usd: Its estimated cost, or None if that is not known.
        is_last: The job has ended with it.
        parent: TRACEPARENT of what submitted the job, or "".
    """

    job: JobFacts
    number: int
    result: str
    phases: tuple[Phase, ...]
    cause: str = ""
    error: str = ""
    message: str = ""
    zone: str = ""
    hardware: float = 0.0
    usd: float | None = None
    is_last: bool = True
    parent: str = ""
