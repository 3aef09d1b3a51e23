"""COLLECT: from a job's outcome to its value, or to the exception that its own code raised."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kinetic_orchestration.errors import (
    Corrupt,
    JobCancelled,
    JobError,
    JobFailed,
    JobLost,
    JobTimedOut,
    ResultNotTrusted,
    StoreError,
    Unreachable,
)
from kinetic_orchestration.jobs.following.verdicts import doubt_of_value
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.packaging.call.pickling import load_value, revive
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import payload
from kinetic_orchestration.protocol.system import escaping


def collect(job: Job, outcome: Outcome) -> Any:
    """Return host 0's value, or raise the job's error.

    A process with a signing key takes no result of an unauthenticated job: otherwise a process that can write to the
    store could have a signed job trusted by removing its signature.
    """
    if job.doubt and job.trust.key_id:
        raise ResultNotTrusted(
            f"what job {job.job_id} came to is not believed here, where a signing_key is set: {job.doubt}",
            job_id=job.job_id,
        )
    if outcome.status is not JobStatus.SUCCEEDED:
        raise error_of(job, outcome)
    verdict = outcome.verdict
    if not verdict.digest:
        if job.trust.checks and not job.plan().argv:
            raise Corrupt(f"the verdict of job {job.job_id} names no value, and its function has one: it was changed")
        return None  # a command has no value
    if verdict.format == wire.PLAIN:
        if verdict.size > payload.LARGEST_PLAIN:
            raise Corrupt(f"the verdict of job {job.job_id} speaks of {verdict.size} bytes of JSON: it was changed")
    elif doubt := doubt_of_value(job, outcome):
        kept = f"{job.store.url}/{names.host(job.job_id, outcome.attempt, 0, 'result')}"
        raise ResultNotTrusted(
            f"job {job.job_id} ran to its end, but its value is pickled and not unpickled here, because it could run "
            f"code of whoever can write to the store: {doubt}. The value is kept in {kept}. To take it as it is, set "
            "KINETIC_TRUST_STORE=true; plain JSON (dict, list, str, int, float, bool, None) is always collected",
            job_id=job.job_id, host=0,
        )  # fmt: skip
    with _file(job, outcome.attempt, 0, "result", verdict.size) as path:
        return load_value(path, verdict.digest, verdict.format, job_id=job.job_id, home=job.trust.home)


def error_of(job: Job, outcome: Outcome) -> Exception:
    """Return the exception of an outcome: what happened, where the evidence is, what to do next."""
    verdict, cause = outcome.verdict, outcome.cause
    about: dict[str, Any] = {"job_id": job.job_id, "host": verdict.host, "cause": cause}
    reason = verdict.reason.strip()
    if outcome.status is JobStatus.CANCELLED:
        return JobCancelled(f"job {job.job_id} was cancelled: {reason or 'no reason given'}", **about)
    if cause == wire.DEADLINE:
        return JobTimedOut(f"job {job.job_id} passed a limit: {reason}{_evidence(job)}", **about)
    failure = verdict.failure
    where = f" on host {verdict.host}" if verdict.host is not None else ""
    if failure is not None and failure.type and cause in (wire.USER, wire.CONFIGURATION):
        error = _user_error(job, outcome, failure)
        with suppress(Exception):  # notes are a courtesy; some classes forbid attributes
            error.add_note(escaping.log(_evidence(job).strip()))
        return error
    if cause == wire.USER:
        return JobFailed(f"job {job.job_id} failed{where}: {reason}{_tail(failure)}{_evidence(job)}", **about)
    kind = JobError if cause == wire.CONFIGURATION else JobLost
    attempts = f" in attempt {outcome.attempts}" if outcome.attempts > 1 else ""
    ended = kind(
        f"job {job.job_id} ended{where}{attempts} ({cause}): {reason}{_tail(failure)}{_evidence(job)}", **about
    )
    if failure is not None and failure.type:
        ended.__cause__ = _user_error(job, outcome, failure)
    return ended


def _user_error(job: Job, outcome: Outcome, failure: wire.Failure) -> Exception:
    host = outcome.verdict.host or 0
    if not failure.digest:
        return revive(failure, None, job_id=job.job_id, host=host)
    if doubt := doubt_of_value(job, outcome):
        return revive(failure, None, job_id=job.job_id, host=host, doubt=f"it is not unpickled here, because {doubt}")
    try:
        with _file(job, outcome.attempt, host, "exception", failure.size) as path:
            return revive(failure, path, job_id=job.job_id, host=host)
    except Unreachable:  # asked again, it comes back as itself
        raise
    except StoreError as error:
        return revive(failure, None, job_id=job.job_id, host=host, doubt=str(error))


@contextmanager
def _file(job: Job, attempt: int, host: int, what: str, size: int) -> Iterator[str]:
    """Yield the path of a host's file: the store's own if it is on this machine, else a copy, never larger than its
    verdict states.
    """
    name = names.host(job.job_id, attempt, host, what)
    path = job.store.local_path(name)
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:
        path = os.path.join(folder, what)
        job.store.download(name, path, most=size)
        yield path


def _tail(failure: wire.Failure | None) -> str:
    if failure is None or not failure.log_tail.strip():
        return ""
    return f"\n\nIts last lines:\n{failure.log_tail.rstrip()}"


def _evidence(job: Job) -> str:
    return f"\n\nThe log: {command('logs', job.job_id)}"
