"""The package's section of Airflow's configuration. Its defaults are described in `get_provider_info`."""

from __future__ import annotations

import functools

from airflow.sdk.configuration import conf

from airflow_kinetic.get_provider_info import DEFAULTS, SECTION
from airflow_kinetic.task_log import Budget


def xcom_limit() -> int:
    """The most bytes of JSON that a value may have and still go to Airflow's database."""
    return int(conf.getint(SECTION, "xcom_limit", fallback=DEFAULTS["xcom_limit"]))


def defer_after() -> float:
    """Return the seconds for which a deferrable task waits on its worker for a job on this machine."""
    return float(conf.getfloat(SECTION, "defer_after", fallback=DEFAULTS["defer_after"]))


@functools.cache
def line_budget() -> Budget:
    """The one budget of this process."""
    return Budget(float(conf.getfloat(SECTION, "log_lines_per_second", fallback=DEFAULTS["log_lines_per_second"])))
