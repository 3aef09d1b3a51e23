"""The names that are no promise of Airflow's reference, each with what is lost without it.

A test resolves each in the installed Airflow.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Final, NamedTuple

from airflow_kinetic._compat.versions import FLOOR, LINKS_ARE_STORED, TASKS_HAVE_A_STORE, TRIGGERS_HEAR_OF_KILLS


class Internal(NamedTuple):
    """A name, and what is lost without it."""

    module: str
    names: tuple[str, ...]  # of the module; with dots, of what it holds
    lost: str
    older: str = ""  # the module of an older version
    since: tuple[int, int] = FLOOR  # which an older version cannot have


INTERNALS: Final = (
    Internal(
        "airflow.sdk.definitions.mappedoperator",
        (
            "OperatorPartial.expand", "OperatorPartial.expand_kwargs", "OperatorPartial._expand_called",
            "MappedOperator.operator_class", "MappedOperator.partial_kwargs", "MappedOperator.template_fields",
        ),
        "what is wrong with a mapped task is told when it runs, and not while its DAG is parsed",
        "airflow.models.mappedoperator",
    ),
    Internal(
        "airflow.sdk.bases.decorator",
        ("DecoratedOperator", "DecoratedOperator.kwargs_to_upstream", "Task", "task_decorator_factory"),
        "there is no @task.kinetic: write KineticTPUOperator(python_callable=…) instead",
        "airflow.decorators.base",
    ),
    Internal(
        "airflow.sdk.bases.operator",
        ("BaseOperator.render_template_fields", "BaseOperator.resume_execution", "BaseOperator.shallow_copy_attrs"),
        "fields without a value are rendered, too; a deferred task whose trigger failed leaves its job to the reaper; "
        "a copy of a task copies what its function captures",
        "airflow.models.baseoperator",
    ),
    Internal(
        "airflow.sdk.bases.operator", ("BaseOperator.get_flat_relative_ids",),
        "the last task of a run leaves a warm slice, too, which `KineticReleaseOperator` or its time ends",
        "airflow.models.baseoperator",
    ),
    Internal(
        "airflow.sdk.bases.operatorlink", ("BaseOperatorLink.xcom_key",),
        "links show where they lead only while Airflow keeps their XComs under names of its own",
        since=LINKS_ARE_STORED,
    ),
    Internal(
        "airflow.sdk.types",
        ("RuntimeTaskInstanceProtocol.max_tries", "RuntimeTaskInstanceProtocol.try_number"),
        "a clear of a task looks like a retry, and follows the job of the try before",
        since=(3, 0),
    ),
    Internal(
        "airflow.sdk.types", ("DagRunProtocol.clear_number",),  # older runs have it, and their protocol does not say so
        "a clear of a task looks like a retry, and follows the job of the try before",
        since=(3, 3),
    ),
    Internal(
        "airflow.sdk.types", ("DagRunProtocol.start_date",),
        "a DAG run that was deleted and made again under its name finds the jobs of the one before",
        since=(3, 0),
    ),
    Internal(
        "airflow.sdk.definitions.context", ("KNOWN_CONTEXT_KEYS",),
        "a function that asks for the context by name is given nothing of it",
        "airflow.utils.context",
    ),
    Internal(
        "airflow.sdk.definitions.context", ("Context.task_state_store",),
        "which job a task means is not kept",
        since=TASKS_HAVE_A_STORE,
    ),
    Internal(
        "airflow.sdk.definitions.retry_policy", ("RetryPolicy.evaluate",),
        "a task that its retry policy ends for good counts as one that is tried again",
        since=(3, 3),
    ),
    Internal(
        "airflow.sdk.definitions.asset", ("AssetRef",),
        "an outlet that is named by Asset.ref() gets an event without the job in its extra",
        since=(3, 0),
    ),
    Internal(
        "airflow.sdk.definitions.xcom_arg",
        ("XComArg.iter_references", "XComArg.iter_xcom_references", "XComArg.resolve"),
        "no task takes KineticData: give its function the address as text, and read it there",
        "airflow.models.xcom_arg",
    ),
    Internal(
        "airflow.sdk.bases.operator", ("BaseOperator.render_template",),
        "no task takes KineticData: give its function the address as text, and read it there",
        "airflow.models.baseoperator",
    ),
    Internal(
        "airflow.sdk.execution_time.context", ("NEVER_EXPIRE",),
        "which job a task means is forgotten after [state_store] retention, and a clear after that knows no job",
        since=TASKS_HAVE_A_STORE,
    ),
    Internal(
        "airflow.sdk.execution_time.context", ("OutletEventAccessor.extra",),
        "no outlet's event has its job in its extra",
        "airflow.utils.context",
    ),
    Internal(
        "airflow.sdk.execution_time.context", ("TaskStateStoreAccessor.get", "TaskStateStoreAccessor.set"),
        "which job a task means is not kept",
        since=TASKS_HAVE_A_STORE,
    ),
    Internal(
        "airflow.triggers.base", ("BaseTrigger", "BaseTrigger.task_instance", "TriggerEvent"),
        "no task is deferred: it waits for its job on its worker",
    ),
    Internal(
        "airflow.triggers.base", ("BaseTrigger.on_kill",),
        "a trigger that is cancelled asks Airflow for the state of its task, and may be told too late",
        since=TRIGGERS_HEAR_OF_KILLS,
    ),
    Internal(
        "airflow.sdk.execution_time.task_runner", ("RuntimeTaskInstance.get_task_states",),
        "a deferred task that is killed leaves its job to the next try or to the reaper",
        since=(3, 0),
    ),
    Internal(
        "airflow.sdk.execution_time.supervisor", ("ActivitySubprocess._monitor_subprocess", "MIN_HEARTBEAT_INTERVAL"),
        "a trigger may fire before Airflow has heard of the end of the leg, and Airflow may then fail the task",
        since=(3, 0),
    ),
    Internal(
        "airflow.providers.google.common.hooks.base_google",
        (
            "GoogleBaseHook", "GoogleBaseHook._get_field", "GoogleBaseHook.extras",
            "GoogleBaseHook.get_credentials_and_project_id", "GoogleBaseHook.impersonation_chain",
        ),
        "no connection to Google Cloud can be looked up: jobs run on this machine alone",
    ),
)  # fmt: skip


def message_for(module: str, error: ImportError, name: str = "") -> str:
    """Return the names that this Airflow lacks and the features lost with them. If a module is listed more than once,
    names that are imported come first.
    """
    listed = [each for each in INTERNALS if each.module == module]
    named = [each for each in listed if any(one.partition(".")[0] == name for one in each.names)]
    return f"{error}. Without it {internal.lost}" if (internal := next(iter(named + listed), None)) else str(error)


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
