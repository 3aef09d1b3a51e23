"""Where each name of Airflow that this package uses is, and where older releases have it.

What a newer release still has in an older place is deprecated, and need not be what the newer place had: it is not
taken.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from airflow_kinetic._compat.internals import INTERNALS, message_for
from airflow_kinetic._compat.versions import FLOOR, at_least


class Home(NamedTuple):
    """A module that has a name; an older one, in the releases before one."""

    module: str
    before: tuple[int, ...] = ()
    name: str = ""  # there, if it is another one


class _NeverRaised(Exception):
    """Stands for an exception that this version of Airflow does not have."""


def _since_3(newest: str, older: str, name: str = "") -> tuple[Home, ...]:
    return Home(newest), Home(older, (3, 0), name)


_EXCEPTIONS = (Home("airflow.sdk.exceptions"), Home("airflow.exceptions", (3, 2)))
_DECORATOR = _since_3("airflow.sdk.bases.decorator", "airflow.decorators.base")
_MAPPED = _since_3("airflow.sdk.definitions.mappedoperator", "airflow.models.mappedoperator")
_SENSORS = _since_3("airflow.sdk", "airflow.sensors.base")
_TRIGGERS = (Home("airflow.triggers.base"),)
HOMES: Final[Mapping[str, tuple[Home, ...]]] = {  # the newest one first
    "AirflowFailException": _EXCEPTIONS,
    "AirflowNotFoundException": _EXCEPTIONS,
    "AirflowSkipException": _EXCEPTIONS,
    "AirflowTaskTimeout": _EXCEPTIONS,
    "Asset": _since_3("airflow.sdk", "airflow.datasets", "Dataset"),
    "AssetRef": (Home("airflow.sdk.definitions.asset"),),
    "BaseOperator": _since_3("airflow.sdk", "airflow.models.baseoperator"),
    "BaseOperatorLink": _since_3("airflow.sdk", "airflow.models.baseoperatorlink"),
    "BaseSensorOperator": _SENSORS,
    "BaseTrigger": _TRIGGERS,
    "DecoratedOperator": _DECORATOR,
    "GoogleBaseHook": (Home("airflow.providers.google.common.hooks.base_google"),),
    "KNOWN_CONTEXT_KEYS": (Home("airflow.sdk.definitions.context"), Home("airflow.utils.context", (3, 1))),
    "MappedOperator": _MAPPED,
    "NEVER_EXPIRE": (Home("airflow.sdk.execution_time.context"),),
    "OperatorPartial": _MAPPED,
    "PokeReturnValue": _SENSORS,
    "RetryAction": (Home("airflow.sdk"),),
    "Task": _DECORATOR,
    "TaskDeferralError": _EXCEPTIONS,
    "TaskDeferralTimeout": (*_EXCEPTIONS, Home(__name__, (3, 0), _NeverRaised.__name__)),
    "TriggerEvent": _TRIGGERS,
    "XComArg": _since_3("airflow.sdk", "airflow.models.xcom_arg"),
    "conf": (Home("airflow.sdk.configuration"), Home("airflow.configuration", (3, 2))),
    "task_decorator_factory": _DECORATOR,
}


def optional(name: str) -> Any:
    """Return what Airflow has by this name; None if this version cannot have it, or, with a warning, if it is gone."""
    module = HOMES[name][0].module
    since = max((each.since for each in INTERNALS if each.module == module and name in each.names), default=FLOOR)
    if not at_least(since):
        return None
    try:
        return resolved(name)
    except ImportError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=3)
        return None


def resolved(name: str) -> Any:
    """Return what the installed Airflow has by this name.

    Raises:
        ImportError: It has none, in any place that counts in its release; the text says what is lost.
    """
    failed: ImportError | None = None
    for home in HOMES[name]:
        if home.before and at_least(home.before):
            continue
        try:
            return getattr(importlib.import_module(home.module), home.name or name)
        except (ImportError, AttributeError) as error:
            # What the newest home said: by it the name is listed.
            failed = failed or ImportError(f"cannot import name {name!r} from {home.module!r} ({error})")
    assert failed is not None
    raise ImportError(message_for(HOMES[name][0].module, failed, name)) from failed
