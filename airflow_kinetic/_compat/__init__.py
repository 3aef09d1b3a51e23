"""Airflow's names and versions, from 2.11 on: nothing else of this package knows how releases differ.

``from airflow_kinetic._compat import NAME`` resolves a name of Airflow when it is first asked for, so that importing
the package imports no Airflow. `versions` knows which Airflow this is; `homes` where each name is; `internals` what is
lost without one; `lacks` what an older release has no equal of; `substitutes` does what it has an equal of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import homes

if TYPE_CHECKING:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    from airflow.sdk import (
        Asset,
        BaseOperator,
        BaseOperatorLink,
        BaseSensorOperator,
        Context,
        PokeReturnValue,
        RetryAction,
        XComArg,
    )
    from airflow.sdk.bases.decorator import DecoratedOperator, Task, task_decorator_factory
    from airflow.sdk.configuration import conf
    from airflow.sdk.definitions.asset import AssetRef
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
    from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
    )
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
    from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = [  # of Airflow
    "KNOWN_CONTEXT_KEYS",
    "NEVER_EXPIRE",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "Asset",
    "AssetRef",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "Context",
    "DecoratedOperator",
    "GoogleBaseHook",
    "MappedOperator",
    "OperatorPartial",
    "PokeReturnValue",
    "RetryAction",
    "Task",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TriggerEvent",
    "XComArg",
    "conf",
    "task_decorator_factory",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in homes.HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = homes.resolved(name)
        return found
