"""The names of a job's states and attempts that version 0.1 pickled."""

from __future__ import annotations

from kinetic_orchestration.plan.values import Attempt, JobStatus, Peek

__all__ = ["Attempt", "JobStatus", "Peek"]
