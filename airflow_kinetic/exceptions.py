"""Exceptions raised by this package's tasks, for `RetryRule(exception=…)` and for `except`."""

from __future__ import annotations

from kinetic_orchestration.errors import (
    BackendError,
    BudgetExceeded,
    CredentialsError,
    Denied,
    JobCancelled,
    JobError,
    JobFailed,
    JobLost,
    JobNotFound,
    JobTimedOut,
    KineticError,
    NoPlace,
    RequirementsError,
    ResultNotPicklable,
    ResultNotTrusted,
    StoreError,
    Unreachable,
    UsageError,
)

__all__ = [
    "BackendError", "BudgetExceeded", "CredentialsError", "Denied", "JobCancelled", "JobError", "JobFailed", "JobLost",
    "JobNotFound", "JobTimedOut", "KineticError", "NoPlace", "RequirementsError", "ResultNotPicklable",
    "ResultNotTrusted", "StoreError", "Unreachable", "UsageError",
]  # fmt: skip
