"""The XCom value of a job's result: small plain JSON itself, anything else as the URI of its object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_kinetic.shared.outcome import failures
from kinetic_orchestration.errors import ResultNotPicklable, ResultNotTrusted
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import names

JOB_KEY = "kinetic_job_id"  # the job, as soon as there is one
WHERE_KEY = "kinetic_where"  # "Cloud TPU v5litepod-8", "emulated on this machine's CPU", …
WORTH_LOADING = 16  # a file larger than this multiple of the limit cannot hold a value below it


def value_for_xcom(job: Job, outcome: Outcome, limit: int) -> tuple[Any, bool]:
    """The value and True, or the URI of the value and False. A job that failed raises what it raised.

    `limit`: of bytes of JSON in Airflow's database.
    """
    if outcome.status is JobStatus.SUCCEEDED and outcome.verdict.size > WORTH_LOADING * limit:
        return uri_of_result(job, outcome), False
    try:
        value = collect(job, outcome)
    except (ResultNotPicklable, ResultNotTrusted):
        if outcome.status is not JobStatus.SUCCEEDED:
            raise
        return uri_of_result(job, outcome), False  # its classes exist on the hosts only, or it is not trusted here
    except Exception as error:
        failures.log_failure(error, outcome, job.job_id)
        raise
    try:
        plain = plain_json(value, limit)
    except ValueError:
        return uri_of_result(job, outcome), False
    return plain, True


def plain_json(value: Any, limit: int) -> Any:
    """The same value as JSON knows it, or ValueError if JSON would change it or it is large."""
    try:
        plain = _plain(value)
    except RecursionError:
        raise ValueError("too deep for JSON, or without an end") from None
    if len(json.dumps(plain, allow_nan=False)) > limit:
        raise ValueError("too large for XCom")
    return plain


def uri_of_result(job: Job, outcome: Outcome) -> str:
    name = names.host(job.job_id, outcome.attempt, 0, "result")
    path = job.store.local_path(name)
    return Path(path).absolute().as_uri() if path is not None else f"{job.store.url}/{name}"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    for kind in (int, float):
        if isinstance(value, kind):  # a NumPy float is one too
            return kind(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {_text(key): _plain(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} is not JSON")


def _text(value: str) -> str:
    """Return the text if a database can store it. Raises ValueError for a NUL or half a surrogate pair."""
    if "\0" in value:
        raise ValueError("a NUL is nothing for a database")
    value.encode()  # its error is a ValueError
    return str(value)
