"""The Airflow process that owns a job, so that a process that was replaced does not end it.

A triggerer that hung for half a minute is replaced, and is then notified that its tasks were taken from it, by the same
message as when a user killed them. A worker that lost its heartbeat ends the same way. So each process leaves a token
with the job, and only the one whose token is still there cancels it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.records import fields_of
from kinetic_orchestration.plan.values import traits_of
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire

BY = "airflow"
LAST_WORDS = 300.0  # longer than cancelled hosts have for their program, their log and their own deletion


def new_token() -> str:
    return secrets.token_hex(8)


def take_ownership(store: Store, job_id: str, token: str, *, within: float = 0.0) -> None:
    """Become the owner. `within`: hand the job over to a process that takes it within that many seconds; if none does,
    host 0 and the reaper end it.
    """
    store.put(names.keeper(job_id), wire.encode({"keeper": token, **({"within": within} if within else {})}))


def is_owned_by(job: Job, token: str, since: float | None = None) -> bool:
    """`since`: when the owner of the token began, by the store's time, if it may not have left it yet. Then the job is
    its own, too, while the token there is an older one: of the worker, or of a triggerer that is gone.
    """
    record = job.store.read(names.keeper(job.job_id))
    if record is None or (since is not None and record.updated < since):
        return True
    return fields_of(record.data, wire.KEEPER, names.keeper(job.job_id)).get("keeper") == token


def cancel(job: Job, reason: str) -> None:
    """Ask for the end, and see to it once. Does not wait: killing has little time, and the hosts see the record.

    The same task may be run again: its next try is another run of the job.
    """
    actions.cancel(job, reason, BY, anew=True)
    Follower(job).step()


def cancel_if_owned(job: Job, token: str, reason: str, *, since: float | None = None) -> bool:
    if not is_owned_by(job, token, since):
        return False
    cancel(job, reason)
    return True


def wait_for_the_end(job: Job, on_wait: Callable[[], object]) -> None:
    """Wait for a cancelled job to end: its successor would share its hardware and its checkpoints with it.

    `on_wait` is called if the wait takes any time.
    """
    if not actions.may_begin_anew(job):
        return
    follower = Follower(job)
    if follower.step() is None:
        on_wait()
        follow(follower, timeout=LAST_WORDS)


def leaves_objects(job: Job) -> bool:
    """Return True if hosts that have ended leave something that only a follower removes at once: JobSets are kept."""
    traits = traits_of(job.runs_on)
    return traits is not None and traits.keeps_ended


def cancel_if_running(job: Job, reason: str) -> bool:
    """Cancel a job without an owner. False if it had ended."""
    if Follower(job).step() is not None:
        return False
    cancel(job, reason)
    return True
