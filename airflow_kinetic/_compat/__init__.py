"""Airflow's versions, from 2.11 on: the one package that knows how they differ.

`_HOMES` says where each name of Airflow that this package uses is, in the newest version first; ``from
airflow_kinetic._compat import NAME`` resolves it when it is first asked for, so that importing the package imports no
Airflow. `INTERNALS` lists the names that are no promise of Airflow's reference, each with what is lost without it: a
test resolves each in the installed Airflow. `LACKS` is what an older version has no equal of, which is said once, in
the log of a task. What has an equal is behind the functions of `substitutes`.
"""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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

FLOOR: Final = (2, 11)
CEILING: Final = (4, 0)  # the first that is unknown
FIRST_OF_3: Final = (3, 0, 6)  # before it, a task of 3.0 does not know how often it may be tried
TRIGGERS_HEAR_OF_KILLS: Final = (3, 3)
TASKS_HAVE_A_STORE: Final = (3, 3)
LINKS_ARE_STORED: Final = (3, 0)
LOGS_ARE_RECORDS: Final = (3, 0)  # with fields and times of their own
TRIGGERS_HAVE_NO_DATABASE: Final = (3, 0)
PAGE: Final = "the section Which Airflow of kinetic-orchestration's page about Airflow"

_SDK, _EXCEPTIONS = ("airflow.sdk",), ("airflow.sdk.exceptions", "airflow.exceptions")
_DECORATOR = ("airflow.sdk.bases.decorator", "airflow.decorators.base")
_MAPPED = ("airflow.sdk.definitions.mappedoperator", "airflow.models.mappedoperator")
_SENSORS = (*_SDK, "airflow.sensors.base")
_HOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "AirflowFailException": _EXCEPTIONS,
    "AirflowNotFoundException": _EXCEPTIONS,
    "AirflowSkipException": _EXCEPTIONS,
    "AirflowTaskTimeout": _EXCEPTIONS,
    "Asset": (*_SDK, "airflow.datasets:Dataset"),
    "AssetRef": ("airflow.sdk.definitions.asset",),
    "BaseOperator": (*_SDK, "airflow.models.baseoperator"),
    "BaseOperatorLink": (*_SDK, "airflow.models.baseoperatorlink"),
    "BaseSensorOperator": _SENSORS,
    "BaseTrigger": ("airflow.triggers.base",),
    "DecoratedOperator": _DECORATOR,
    "GoogleBaseHook": ("airflow.providers.google.common.hooks.base_google",),
    "KNOWN_CONTEXT_KEYS": ("airflow.sdk.definitions.context", "airflow.utils.context"),
    "MappedOperator": _MAPPED,
    "NEVER_EXPIRE": ("airflow.sdk.execution_time.context",),
    "OperatorPartial": _MAPPED,
    "PokeReturnValue": _SENSORS,
    "RetryAction": _SDK,
    "Task": _DECORATOR,
    "TaskDeferralError": _EXCEPTIONS,
    "TaskDeferralTimeout": (*_EXCEPTIONS, f"{__name__}:_NeverRaised"),
    "TriggerEvent": ("airflow.triggers.base",),
    "XComArg": (*_SDK, "airflow.models.xcom_arg"),
    "conf": ("airflow.sdk.configuration", "airflow.configuration"),
    "task_decorator_factory": _DECORATOR,
}


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


class Lack(NamedTuple):
    """What versions before one have no equal of, and what is done there."""

    before: tuple[int, int]
    what: str
    instead: str


LACKS: Final = (
    Lack(
        TRIGGERS_HEAR_OF_KILLS,
        "a trigger that is cancelled does not learn why",
        "it asks Airflow for the task's state, and cancels the job unless the task is deferred still; without an "
        "answer, or where a cleared task is deferred anew, the job is left to the next try and to the reaper",
    ),
    Lack(
        TASKS_HAVE_A_STORE,
        "a task has no store that outlives its tries",
        "which job it means is kept in the jobs' store",
    ),
    Lack(
        LOGS_ARE_RECORDS,
        "a line of the log has no fields",
        "the host stands at the beginning of its lines, and their time is the host's",
    ),
    Lack(
        LINKS_ARE_STORED,
        "links are computed by the webserver",
        "the task leaves their addresses in XCom, and they are shown once it has a job",
    ),
)


class _NeverRaised(Exception):
    """Stands for an exception that this version of Airflow does not have."""


# ---- versions --------------------------------------------------------------------------------------------------


@functools.cache
def version() -> tuple[int, ...]:
    """Return the installed Airflow's major, minor and patch version."""
    from airflow import __version__ as found

    return tuple(int(re.match(r"\d*", part)[0] or 0) for part in found.split(".")[:3])  # type: ignore[index]


def at_least(wanted: tuple[int, ...]) -> bool:
    """Return True if the installed Airflow is that version or a newer one."""
    return version() >= wanted


def require_airflow() -> None:
    """Raise a one-sentence error if Airflow is missing, too old or too new."""
    try:
        from airflow import __version__ as found
    except ImportError:
        raise ImportError(
            "airflow_kinetic needs Airflow, and there is none here: pip install 'kinetic-orchestration[airflow]'."
        ) from None
    if not at_least(FLOOR):
        raise ImportError(f"airflow_kinetic needs Airflow 2.11 or newer, and this is Airflow {found}: upgrade it.")
    if (3, 0) <= version() < FIRST_OF_3:
        raise ImportError(
            f"airflow_kinetic needs Airflow 3.0.6 or newer of 3.0, and this is Airflow {found}, whose tasks do not "
            "know how often they may be tried: upgrade it."
        )
    if at_least(CEILING):
        raise ImportError(
            f"airflow_kinetic knows Airflow 2.11 to 3, and this is Airflow {found}: upgrade kinetic-orchestration, or "
            "install 'apache-airflow<4'."
        )


_told: list[str] = []


def tell_lacks(log: Any) -> None:
    """Say in a task's log, once in its process, what this version lacks. The page says what is done instead."""
    found = [lack.what for lack in LACKS if not at_least(lack.before)]
    if found and not _told:
        _told.extend(found)
        log.info(
            "This is Airflow %s, in which %s. What is done instead: %s", ".".join(map(str, version())),
            "; ".join(found), PAGE,
        )  # fmt: skip


# ---- names -----------------------------------------------------------------------------------------------------


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


def optional(name: str) -> Any:
    """Return what Airflow has by this name; None if this version cannot have it, or, with a warning, if it is gone."""
    module = _HOMES[name][0]
    since = max((each.since for each in INTERNALS if each.module == module and name in each.names), default=FLOOR)
    if not at_least(since):
        return None
    try:
        return _resolved(name)
    except ImportError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=3)
        return None


def _resolved(name: str) -> Any:
    failed: ImportError | None = None
    for home in _HOMES[name]:
        module, _, other = home.partition(":")
        try:
            return getattr(importlib.import_module(module), other or name)
        except (ImportError, AttributeError) as error:
            # What the newest home said: by it the name is listed.
            failed = failed or ImportError(f"cannot import name {name!r} from {module!r} ({error})")
    assert failed is not None
    raise ImportError(message_for(_HOMES[name][0], failed, name)) from failed


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = _resolved(name)
        return found
