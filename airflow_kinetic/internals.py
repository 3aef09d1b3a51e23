"""Every name of Airflow that is used here and that no page of its reference promises, and what is lost without it.

A test looks each of them up in the installed Airflow, so that a release that moves one fails there first. Where a task
can do without, it does, and one warning says what is lost.
"""

from __future__ import annotations

import warnings
from typing import Final, NamedTuple


class Internal(NamedTuple):
    """A name, and what is lost without it."""

    module: str
    names: tuple[str, ...]  # of the module; with dots, of what it holds
    lost: str


INTERNALS: Final = (
    Internal(
        "airflow.sdk.definitions.mappedoperator",
        (
            "OperatorPartial.expand", "OperatorPartial.expand_kwargs", "OperatorPartial._expand_called",
            "MappedOperator.operator_class", "MappedOperator.partial_kwargs", "MappedOperator.template_fields",
        ),
        "what is wrong with a mapped task is told when it runs, and not while its DAG is parsed",
    ),
    Internal(
        "airflow.sdk.bases.decorator", ("DecoratedOperator", "Task", "task_decorator_factory"),
        "there is no @task.kinetic, and KineticTPUOperator has to be written",
    ),
    Internal(
        "airflow.sdk.definitions.context", ("KNOWN_CONTEXT_KEYS",),
        "a function that asks for its task's context by name is given nothing of it",
    ),
    Internal(
        "airflow.sdk.definitions.asset", ("AssetRef",),
        "an outlet that is named by Asset.ref() gets an event without the job in its extra",
    ),
    Internal(
        "airflow.sdk.execution_time.context", ("NEVER_EXPIRE",),
        "which job a task means is forgotten after [state_store] retention, and a clear after that knows no job",
    ),
    Internal(
        "airflow.triggers.base", ("BaseTrigger.on_kill", "BaseTrigger.task_instance", "TriggerEvent"),
        "a deferred task cannot wait for its job",
    ),
    Internal(
        "airflow.providers.google.common.hooks.base_google",
        ("GoogleBaseHook._get_field", "GoogleBaseHook.get_credentials_and_project_id"),
        "no connection to Google Cloud can be looked up",
    ),
)  # fmt: skip


def lost(module: str, error: ImportError) -> None:
    """Warn of what this Airflow does not have any more."""
    (internal,) = (each for each in INTERNALS if each.module == module)
    warnings.warn(f"{error}. Without it {internal.lost}", RuntimeWarning, stacklevel=3)
