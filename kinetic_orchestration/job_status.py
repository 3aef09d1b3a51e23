"""`JobStatus`, at the path from which programs written for Keras Kinetic import it."""

from __future__ import annotations

from kinetic_orchestration.plan.values import JobStatus

__all__ = ["JobStatus"]
