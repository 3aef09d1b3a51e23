"""The two parts of a task's execution: until its job ends or the task is deferred, and after a deferral."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import AirflowFailException, AirflowTaskTimeout, internals, lacks, substitutes, versions
from airflow_kinetic.links.kinetic import urls_of
from airflow_kinetic.operators.report import TaskReport
from airflow_kinetic.operators.request import draft_of
from airflow_kinetic.operators.task_try import TaskTry
from airflow_kinetic.shared.configuration import defer_after
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.tries import ownership, worker_exit
from airflow_kinetic.shared.tries.task_identity import kept_pin
from airflow_kinetic.shared.waiting.task_log import TaskLog, repeat_last_lines
from kinetic_orchestration.errors import DataNotFound, KineticError, NotAModel, StoreError, TooBig, UsageError
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.declare.spec import LOCAL
from kinetic_orchestration.plan.values import Cursor

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from airflow_kinetic.operators.kinetic import KineticTPUOperator
    from kinetic_orchestration.jobs.request import Draft

BACK_STOP = 60.0  # after the deadline that a trigger keeps, Airflow's own
LAST_LINES = 40.0  # of a job that was cancelled, longer than its program has to end
LONG_LAUNCH = 60.0  # after which the time to take over the job is renewed


def execute(operator: KineticTPUOperator, task_try: TaskTry, context: Context) -> Any:
    began = time.time()
    lacks.tell_lacks(operator.log)
    with task_try.executing():
        task_try.refuse_if_killed()
        asked, location = _asked(operator, context)
        with task_try.given_up_on_failure(context, location):
            job = task_try.launch(asked, location, context)
            operator.show_links(context, urls_of(job.job_id, location))
            report = TaskReport(operator, context, job)
            with report.announced(asked.settings):
                if not operator.wait:
                    return job.job_id
                # Without the log: the trigger writes all of it, and in order, also of a job that was found again.
                defers = operator.deferrable and _outlasts(job, location) and not operator.killed
                if defers and not internals.is_available("airflow.triggers.base"):
                    defers = False
                    task_try.own(job)  # it was handed over to a trigger
                if not defers:
                    log = TaskLog(job.policy.most, job.job_id, lines=operator.get_logs, since=time.time())
                    outcome = follow(Follower(job), log)
            if defers:
                if time.time() - began > LONG_LAUNCH:
                    task_try.hand_over(job, context)
                _defer(operator, job, location, began)
        assert outcome is not None  # no timeout and no stop were given
        return report.finish(outcome, log.metrics)


def _asked(operator: KineticTPUOperator, context: Context) -> tuple[Draft, JobLocation]:
    """Return the job and its location.

    Raises:
        AirflowFailException: No other try would make it valid. Only at the first try: later ones may find the job of an
            earlier one, which still runs.
    """
    try:
        return draft_of(operator, context)
    except (DataNotFound, NotAModel, TooBig):  # another process may be about to write it, another worker be larger
        raise
    except UsageError as error:
        if context["ti"].try_number > 1:
            raise
        raise AirflowFailException(f"{error}. Once that is repaired, clear the task") from error


def complete(operator: KineticTPUOperator, task_try: TaskTry, context: Context, event: dict[str, Any]) -> Any:
    from airflow_kinetic.triggers.kinetic import OUT_OF_TIME, UNREACHABLE

    location, task_try.job_id = JobLocation(**event["place"]), event["job_id"]
    operator.show_links(context, urls_of(task_try.job_id, location))
    with task_try.executing():
        with task_try.given_up_on_failure(context, location):
            if event["how"] == UNREACHABLE:
                raise StoreError(event["message"])
            job = location.open(task_try.job_id, event["spec_digest"], event.get("ended", ""))
            task_try.own(job)
            if event["how"] == OUT_OF_TIME and Follower(job).step() is None:
                error = _out_of_time(operator, job, event.get("limit"))
                _write_last_lines(operator, job, event.get("cursor"))
                if operator.get_logs:
                    repeat_last_lines(job, None)
                raise error
            outcome = follow(Follower(job))
            assert outcome is not None  # no timeout and no stop were given
            if operator.get_logs:
                repeat_last_lines(job, outcome)
        return TaskReport(operator, context, job).finish(outcome, event["metrics"])


def fail(operator: KineticTPUOperator, task_try: TaskTry, context: Context, error: Exception) -> None:
    """Give up the job of a deferred task that Airflow itself fails with this error."""
    try:
        # An Airflow without a state of tasks: it is where the job is.
        location = None if versions.tasks_have_a_store() else JobLocation.of_task(operator)
        kept = kept_pin(context, location)
    except Exception as reason:  # the error that failed the task is the one to report
        operator.log.warning("The job of the task could not be looked up, and may go on: %s", reason)
        return
    if kept is not None and kept.place is not None and kept.job_id:
        operator.show_links(context, urls_of(kept.job_id, kept.place))
        task_try.give_up(context, kept.place, kept.job_id, error, at_once=substitutes.timed_out(error))


def _outlasts(job: Job, location: JobLocation) -> bool:
    """Return True if a deferral is worthwhile: on this machine a job may end sooner than the deferral would take."""
    follower = Follower(job)
    return (follower.step() if location.backend != LOCAL else follow(follower, timeout=defer_after())) is None


def _defer(operator: KineticTPUOperator, job: Job, location: JobLocation, began: float) -> None:
    from airflow_kinetic.triggers.kinetic import KineticJobTrigger

    now = time.time()
    limit = None if operator.execution_timeout is None else operator.execution_timeout.total_seconds()
    deadline = None if limit is None else began + limit
    trigger = KineticJobTrigger(
        job_id=job.job_id, place=location.to_json(), cursor=json.loads(json.dumps(Follower(job).cursor.to_json())),
        deferred=now, deadline=deadline, poll_interval=float(operator.poll_interval), get_logs=operator.get_logs,
        keeps=operator.cancel_on_kill, limit=limit, heard=worker_exit.announce_exit(),
    )  # fmt: skip
    back_stop = None if deadline is None else timedelta(seconds=deadline - now + BACK_STOP)
    operator.defer(trigger=trigger, method_name="execute_complete", timeout=back_stop)


def _out_of_time(operator: KineticTPUOperator, job: Job, limit: float | None) -> AirflowTaskTimeout:
    after = "" if limit is None else f" after {timedelta(seconds=limit)}"
    what = "goes on"
    if operator.cancel_on_kill:
        ownership.cancel(job, "its Airflow task was out of time")
        what = "was cancelled"
    return AirflowTaskTimeout(
        f"the task was out of time{after}, its execution_timeout; job {job.job_id} {what}. "
        f"Its log: kinetic-orchestration logs {job.job_id}"
    )


def _write_last_lines(operator: KineticTPUOperator, job: Job, cursor: list[Any] | None) -> None:
    """Write the lines since the trigger last read the log, up to the program's end."""
    if cursor is None:  # of an older trigger
        return
    limit = operator.execution_timeout
    timeout = min(LAST_LINES, limit.total_seconds() / 2) if limit is not None else LAST_LINES
    log = TaskLog(job.policy.most, job.job_id, lines=operator.get_logs, since=time.time())
    try:
        follow(Follower(job, Cursor.from_json(cursor)), log, timeout=timeout if operator.cancel_on_kill else 0.0)
    except KineticError as error:  # the task is out of time all the same
        operator.log.warning("The last lines of job %s could not be read: %s", job.job_id, error)
    log.end()
