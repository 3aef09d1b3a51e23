"""Which Airflow this is, which ones this package goes with, and from which one on Airflow has what.

The one module that compares versions.
"""

from __future__ import annotations

import functools
import re
from typing import Final

FLOOR: Final = (2, 11)
CEILING: Final = (4, 0)  # the first that is unknown
FIRST_OF_3: Final = (3, 0, 6)  # before it, a task of 3.0 does not know how often it may be tried
TRIGGERS_HEAR_OF_KILLS: Final = (3, 3)
TASKS_HAVE_A_STORE: Final = (3, 3)
LINKS_ARE_STORED: Final = (3, 0)
LOGS_ARE_RECORDS: Final = (3, 0)  # with fields and times of their own
TRIGGERS_HAVE_NO_DATABASE: Final = (3, 0)
TIMEOUTS_HAVE_A_TYPE: Final = (3, 0)


@functools.cache
def version() -> tuple[int, ...]:
    """Return the installed Airflow's major, minor and patch version."""
    from airflow import __version__ as found

    return tuple(int(re.match(r"\d*", part)[0] or 0) for part in found.split(".")[:3])  # type: ignore[index]


def at_least(wanted: tuple[int, ...]) -> bool:
    """Return True if the installed Airflow is that version or a newer one."""
    return version() >= wanted


def triggers_hear_of_kills() -> bool:
    """Return True if a trigger that is cancelled learns why."""
    return at_least(TRIGGERS_HEAR_OF_KILLS)


def tasks_have_a_store() -> bool:
    """Return True if a task has a store that outlives its tries."""
    return at_least(TASKS_HAVE_A_STORE)


def links_are_stored() -> bool:
    """Return True if Airflow stores a task's links itself."""
    return at_least(LINKS_ARE_STORED)


def logs_are_records() -> bool:
    """Return True if a line of a task's log has fields and a time of its own."""
    return at_least(LOGS_ARE_RECORDS)


def timeouts_have_a_type() -> bool:
    """Return True if a deferral that took too long ends with an exception of its own."""
    return at_least(TIMEOUTS_HAVE_A_TYPE)


def triggers_have_no_database() -> bool:
    """Return True if a triggerer keeps Airflow's database from its triggers."""
    return at_least(TRIGGERS_HAVE_NO_DATABASE)


def require_airflow() -> None:
    """Raise a one-sentence error if Airflow is missing, too old or too new."""
    try:
        from airflow import __version__ as found
    except ImportError:
        raise ImportError(
            "airflow_kinetic needs Airflow, and there is none here: pip install 'kinetic-orchestration[airflow]'."
        ) from None
    if not at_least(FLOOR):
        raise ImportError(
            f"airflow_kinetic needs Airflow 2.11 or newer, and this is Airflow {found}: "
            "install 'apache-airflow>=2.11,<4'."
        )
    if (3, 0) <= version() < FIRST_OF_3:
        raise ImportError(
            f"airflow_kinetic needs Airflow 3.0.6 or newer of 3.0, and this is Airflow {found}, whose tasks do not "
            "know how often they may be tried: install 'apache-airflow>=3.0.6,<4'."
        )
    if at_least(CEILING):
        raise ImportError(
            f"airflow_kinetic knows Airflow 2.11 to 3, and this is Airflow {found}: upgrade kinetic-orchestration, or "
            "install 'apache-airflow<4'."
        )
