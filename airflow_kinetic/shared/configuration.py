"""The package's section of Airflow's configuration, and the name of the connection that a task has by default.

The defaults of the section are described in `get_provider_info`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kinetic._compat import conf
from airflow_kinetic.get_provider_info import DEFAULTS, SECTION

if TYPE_CHECKING:
    from airflow_kinetic._compat import BaseOperator

DEFAULT_CONNECTION = "google_cloud_default"  # the one of Airflow's Google provider


def xcom_limit() -> int:
    """The most bytes of JSON that a value may have and still go to Airflow's database."""
    return int(conf.getint(SECTION, "xcom_limit", fallback=DEFAULTS["xcom_limit"]))


def named_owner(task: BaseOperator) -> str:
    """Return the owner of a task; "" if it is the one that Airflow gives to whoever names none."""
    owner = str(task.owner or "")
    return owner if owner != conf.get("operators", "default_owner", fallback="airflow") else ""


def defer_after() -> float:
    """Return the seconds for which a deferrable task waits on its worker for a job on this machine."""
    return float(conf.getfloat(SECTION, "defer_after", fallback=DEFAULTS["defer_after"]))


def log_lines_per_second() -> float:
    """Return the number of lines that one triggerer writes in a second to the logs of all its tasks together."""
    return float(conf.getfloat(SECTION, "log_lines_per_second", fallback=DEFAULTS["log_lines_per_second"]))
