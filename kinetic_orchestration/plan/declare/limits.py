"""Limits of a job and its retries. In a module of their own, so that a declaration imports little."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a job. Times are seconds, or text with a unit ("90s", "15m", "2h", "1d").

    Attributes:
        provision: Time to wait for hosts; by default 6 hours on Cloud TPU.
        run: Time of one attempt; by default a day on Cloud TPU.
        total: Time of all attempts together.
        stall: Time without a sign of progress.
        cost: Dollars for all attempts, by the price table.
    """

    provision: float | str | None = None
    run: float | str | None = None
    total: float | str | None = None
    stall: float | str | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Number of failures of each kind that a job survives.

    Attributes:
        user: Failures of the job's own code.
        preemption: Preemptions of its hosts.
        infra: Failures of its hosts, and of the environment in which it runs.
    """

    user: int = 0
    preemption: int = 100
    infra: int = 3
