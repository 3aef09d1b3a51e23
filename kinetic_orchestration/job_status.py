"""`JobStatus`, where programs written for Keras Kinetic look for it."""

from __future__ import annotations

from kinetic_orchestration.plan.values import JobStatus

__all__ = ["JobStatus"]
