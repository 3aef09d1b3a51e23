"""The oldest Airflow that this package works with, and every undocumented Airflow name that it uses, with the feature
that is lost without it.

The module imports nothing of Airflow itself, so that an old version is refused before any other import. A test resolves
each name in the installed Airflow, so that a release that moves one fails there first. If a task can do without the
name, it does, and one warning names the lost feature; if it cannot, the ImportError names it.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Final, NamedTuple

FLOOR: Final = (3, 3)


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
        "airflow.sdk.bases.decorator",
        ("DecoratedOperator", "DecoratedOperator.kwargs_to_upstream", "Task", "task_decorator_factory"),
        "there is no @task.kinetic: write KineticTPUOperator(python_callable=…) instead",
    ),
    Internal(
        "airflow.sdk.bases.operator",
        ("BaseOperator.render_template_fields", "BaseOperator.resume_execution", "BaseOperator.shallow_copy_attrs"),
        "fields without a value are rendered, too; a deferred task whose trigger failed leaves its job to the reaper; "
        "a copy of a task copies what its function captures",
    ),
    Internal(
        "airflow.sdk.bases.operator", ("BaseOperator.get_flat_relative_ids",),
        "the last task of a run leaves a warm slice, too, which `KineticReleaseOperator` or its time ends",
    ),
    Internal(
        "airflow.sdk.bases.operatorlink", ("BaseOperatorLink.xcom_key",),
        "links show where they lead only while Airflow keeps their XComs under names of its own",
    ),
    Internal(
        "airflow.sdk.types",
        (
            "DagRunProtocol.clear_number", "RuntimeTaskInstanceProtocol.max_tries",
            "RuntimeTaskInstanceProtocol.try_number",
        ),
        "a clear of a task looks like a retry, and follows the job of the try before",
    ),
    Internal(
        "airflow.sdk.definitions.context", ("KNOWN_CONTEXT_KEYS", "Context.task_state_store"),
        "a function that asks for the context by name is given nothing of it; which job a task means is not kept",
    ),
    Internal(
        "airflow.sdk.definitions.retry_policy", ("RetryPolicy.evaluate",),
        "a task that its retry policy ends for good counts as one that is tried again",
    ),
    Internal(
        "airflow.sdk.definitions.asset", ("AssetRef",),
        "an outlet that is named by Asset.ref() gets an event without the job in its extra",
    ),
    Internal(
        "airflow.sdk.definitions.xcom_arg",
        ("XComArg.iter_references", "XComArg.iter_xcom_references", "XComArg.resolve"),
        "no task takes KineticData: give its function the address as text, and read it there",
    ),
    Internal(
        "airflow.sdk.bases.operator", ("BaseOperator.render_template",),
        "no task takes KineticData: give its function the address as text, and read it there",
    ),
    Internal(
        "airflow.sdk.execution_time.context", ("NEVER_EXPIRE",),
        "which job a task means is forgotten after [state_store] retention, and a clear after that knows no job",
    ),
    Internal(
        "airflow.sdk.execution_time.context",
        ("OutletEventAccessor.extra", "TaskStateStoreAccessor.get", "TaskStateStoreAccessor.set"),
        "no outlet's event has its job in its extra; which job a task means is not kept",
    ),
    Internal(
        "airflow.triggers.base",
        ("BaseTrigger", "BaseTrigger.on_kill", "BaseTrigger.task_instance", "TriggerEvent"),
        "no task is deferred: it waits for its job on its worker",
    ),
    Internal(
        "airflow.sdk.execution_time.supervisor", ("ActivitySubprocess._monitor_subprocess", "MIN_HEARTBEAT_INTERVAL"),
        "a trigger may fire before Airflow has heard of the end of the leg, and Airflow may then fail the task",
    ),
    Internal(
        "airflow.providers.google.common.hooks.base_google",
        (
            "GoogleBaseHook", "GoogleBaseHook._get_field", "GoogleBaseHook.extras",
            "GoogleBaseHook.get_credentials_and_project_id", "GoogleBaseHook.impersonation_chain",
            "GoogleBaseHook.quota_project_id",
        ),
        "no connection to Google Cloud can be looked up: jobs run on this machine alone",
    ),
)  # fmt: skip


def message_for(module: str, error: ImportError) -> str:
    """Return the names that this Airflow lacks and the features lost with them. If a module is listed more than once,
    names that are imported come first.
    """
    internal = next(each for each in INTERNALS if each.module == module)
    return f"{error}. Without it {internal.lost}"


def warn_missing(module: str, error: ImportError, stacklevel: int = 3) -> None:
    """Warn of it."""
    warnings.warn(message_for(module, error), RuntimeWarning, stacklevel=stacklevel)


def is_available(module: str) -> bool:
    """Return True if all listed names of a module exist; warn otherwise."""
    wanted = {name.partition(".")[0] for each in INTERNALS if each.module == module for name in each.names}
    try:
        found = importlib.import_module(module)
        for name in sorted(wanted):
            if not hasattr(found, name):
                raise ImportError(f"cannot import name {name!r} from {module!r}")
    except ImportError as error:
        warn_missing(module, error, stacklevel=4)
        return False
    return True


def require_airflow() -> None:
    """Raise a one-sentence error if Airflow is too old: before 3.3 a trigger is not notified that its task was
    killed."""
    try:
        from airflow import __version__ as found
    except ImportError:
        raise ImportError(
            "airflow_kinetic needs Airflow, and there is none here: pip install 'kinetic-orchestration[airflow]'."
        ) from None
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < FLOOR:
        raise ImportError(f"airflow_kinetic needs Airflow 3.3 or newer, and this is Airflow {found}: upgrade it.")
