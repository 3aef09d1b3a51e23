"""Exceptions raised by this package's tasks, for `RetryRule(exception=…)` and for `except`."""

from __future__ import annotations

from kinetic_orchestration.errors import (
    BackendError,
    BudgetExceeded,
    CredentialsError,
    Denied,
    DeploymentBusy,
    DeploymentFailed,
    EngineLost,
    EngineNotStarted,
    JobCancelled,
    JobError,
    JobFailed,
    JobLost,
    JobNotFound,
    JobTimedOut,
    KineticError,
    ManifestRefused,
    NoPlace,
    NotAModel,
    PromotionRefused,
    RegistryError,
    RequirementsError,
    ResultNotPicklable,
    ResultNotTrusted,
    ScoresTooLow,
    ServingError,
    StoreError,
    Unreachable,
    UsageError,
)

__all__ = [
    "BackendError", "BudgetExceeded", "CredentialsError", "Denied", "DeploymentBusy", "DeploymentFailed", "EngineLost",
    "EngineNotStarted", "JobCancelled", "JobError", "JobFailed", "JobLost", "JobNotFound", "JobTimedOut",
    "KineticError", "ManifestRefused", "NoPlace", "NotAModel", "PromotionRefused", "RegistryError", "RequirementsError",
    "ResultNotPicklable", "ResultNotTrusted", "ScoresTooLow", "ServingError", "StoreError", "Unreachable", "UsageError",
]  # fmt: skip
