"""Limits and retries: the user's bounds of a job. Separate from `values`, so that a declaration loads little."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Number of failures of each kind that a job survives."""

    user: int = 0
    preemption: int = 100
    infra: int = 3
