"""Reports the outcome of a task's job to Airflow: its value in XCom, its failure in the task's log, its lineage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import substitutes
from kinetic_orchestration.errors import ResultNotPicklable, ResultNotTrusted
from kinetic_orchestration.jobs.following.told import facts_of
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.telemetry import lineage

if TYPE_CHECKING:
    from kinetic_orchestration.telemetry.facts import Address

JOB_KEY = "kinetic_job_id"  # the job, as soon as there is one
OUTPUT_KEY = "kinetic_output_dir"  # the folder or the address of what the job writes, as soon as there is one
WHERE_KEY = "kinetic_where"  # "Cloud TPU v5litepod-8", "emulated on this machine's CPU", …
WORTH_LOADING = 16  # a file larger than this multiple of the limit cannot hold a value below it
_FRAME = re.compile(r'^([ |]*)File "')
_DEEPEST = 100  # causes that are followed


# ---- its value: small plain JSON itself, anything else as the URI of its object ---------------------------------


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
        log_failure(error, outcome, job.job_id)
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


# ---- its failure -----------------------------------------------------------------------------------------------


class RemoteTraceback(Exception):
    """The traceback of an exception on its host: the last cause of the same exception here."""


def log_failure(error: Exception, outcome: Outcome, job_id: str) -> None:
    """Put the traceback into the task's log, its last frame first, and below the exception that the task raises.

    Airflow's page does not show the notes of an exception, which carry the host's traceback elsewhere.
    """
    failure = outcome.verdict.failure
    if failure is None or not failure.traceback.strip():
        return
    traceback = escaping.log(failure.traceback.rstrip())
    host = outcome.verdict.host or 0
    substitutes.log_of("kinetic.job").error(
        f"{escaping.log(_said(failure))}\n{last_frame(traceback)}\nRaised on host {host} of job {job_id}. "
        f"All of it:\n{traceback}"
    )
    _put_last(error, RemoteTraceback(f"on host {host} of job {job_id}:\n{traceback}"))


def _put_last(error: BaseException, cause: Exception) -> None:
    """Below all causes that the exception has already, which are its own."""
    seen = {id(error)}
    while (deeper := error.__cause__) is not None:
        if id(deeper) in seen or len(seen) > _DEEPEST:
            return
        seen.add(id(deeper))
        error = deeper
    error.__cause__ = cause


def last_frame(traceback: str) -> str:
    """Return the lines of the frame that raised: what comes after it is the exception, and deeper its source. Of a
    group of exceptions, it is the last one's.
    """
    lines = traceback.splitlines()
    begins, margin = max(
        ((at, found[1]) for at, line in enumerate(lines) if (found := _FRAME.match(line))), default=(0, "")
    )
    if not margin:
        return ""
    ends = next((at for at in range(begins + 1, len(lines)) if not lines[at].startswith(margin + "  ")), len(lines))
    return "\n".join(f"  {line.removeprefix(margin)}" for line in lines[begins:ends])


def _said(failure: wire.Failure) -> str:
    kind = failure.type.rpartition(".")[2]
    return f"{kind}: {failure.message}" if kind else failure.message


# ---- its inputs and outputs in OpenLineage's terms --------------------------------------------------------------


def lineage_of(given: Any, job: Job | None, failure: str = "") -> Any:
    """An `OperatorLineage`: an input for all `Data` in what was given; of a job, the folder that it wrote and its run
    facets. None if Airflow has no OpenLineage.

    `failure`: why the task failed, which the provider replaces where Airflow tells it the exception.
    """
    try:
        from airflow.providers.common.compat.openlineage.facet import Dataset
        from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]
    except ImportError:
        return None
    inputs = [lineage.address_of(data.path) for data in data_in(given)]
    outputs: tuple[Address, ...] = ()
    run: dict[str, Any] = {}
    if job is not None:
        told = facts_of(job)
        outputs, run = told.outputs, lineage.facets_of(told, failure)
    return OperatorLineage(
        inputs=[Dataset(*place) for place in dict.fromkeys(inputs)], outputs=[Dataset(*place) for place in outputs],
        run_facets=run,
    )  # fmt: skip


def data_in(value: Any) -> Iterator[Data]:
    if isinstance(value, Data):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from data_in(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from data_in(entry)
