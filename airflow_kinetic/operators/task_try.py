"""One try of a task, and its right to the job: launched or found again, owned, handed over, cancelled.

A retry goes on with the job of the try before; a clear means another job. Which of them a try is, `task_identity`
decides, and which process may cancel a job, `ownership`.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_kinetic import _compat
from airflow_kinetic._compat import AirflowFailException, conf
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.tries import ownership, task_identity
from airflow_kinetic.shared.waiting.calls import in_background
from kinetic_orchestration.api.opening import describe_differences
from kinetic_orchestration.errors import BudgetExceeded, JobCancelled, JobNotFound, KeyTaken
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.launch import find, launch
from kinetic_orchestration.jobs.request import Draft, Request
from kinetic_orchestration.plan.identity import job_id as job_id_of
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from airflow_kinetic.operators.kinetic import KineticTPUOperator

HANDED_OVER = 600.0  # a trigger may need to take a job that was launched for it; more, if a retry may take it instead
HEARTBEAT = 300  # seconds after which Airflow misses a worker, by default
KILL_SECONDS = 20.0  # the longest that a task which was killed waits for its job's cancel to be written
RELEASE_SECONDS = 15.0  # of these, for what the hosts of a cancelled job leave
RECHECK_SECONDS = 0.2  # for a job that is being launched while its task is killed


class TaskTry:
    """The job of a try, in the worker's process that runs it."""

    def __init__(self, operator: KineticTPUOperator) -> None:
        self.job: Job | None = None
        self.job_id = ""  # once it is claimed
        self.failure = ""  # why it failed
        self.token = ownership.new_token()
        self._operator = operator
        self._asked: tuple[Request, JobLocation] | None = None
        self._launching = self._executing = False
        self._killing: threading.Thread | None = None

    # ---- the job -----------------------------------------------------------------------------------------------

    def launch(self, asked: Draft, location: JobLocation, context: Context) -> Job:
        """Return the one job of this task and epoch: found again, or launched. Its identity is stored before that."""
        operator = self._operator
        with location.with_credentials():
            kept = pin = identity = None
            if operator.durable:
                kept, pin = task_identity.pins_of_try(context, operator.retries or 0, location)
                pin = pin._replace(place=location)
                if kept is not None and kept.epoch != pin.epoch and self._adopts(kept, location):
                    pin = pin._replace(epoch=kept.epoch, job_id=kept.job_id)
                identity = task_identity.identity_of(location.deployment, context["ti"], pin)
            request = asked.open(identity)
            storing: AbstractContextManager[Ahead[object] | None] = nullcontext()
            if pin is not None and kept is None:
                # Immediately: the next process, while this one packages, means the same job. The id of a first job is
                # known, so that it need not be stored again. Nothing is submitted before Airflow's server has it.
                pin = pin._replace(job_id=job_id_of(request.identity, 1))
                storing = in_background(task_identity.keep, context, pin)
            within = self._handed_over(context) if operator.deferrable and operator.wait else 0.0

            def claimed(job_id: str) -> None:
                self.job_id = job_id
                self.refuse_if_killed()
                if pin is not None and (kept is not None or pin.job_id != job_id):
                    if stored is not None:
                        stored.result()
                    task_identity.keep(context, pin._replace(job_id=job_id))
                # Before the upload, in which this worker may hang and be replaced: afterwards it would take the token
                # of its successor.
                ownership.take_ownership(request.store, job_id, self.token, within=within)

            self._asked, self._launching = (request, location), True
            try:
                with storing as stored:
                    if pin is not None and kept is not None:
                        if kept.epoch != pin.epoch:
                            self._cancel_cleared(kept)
                        elif (left := find(request)) is not None:
                            self._take_over(left, cleared=task_identity.was_cleared(kept, pin.clears))
                    job = launch(request, claimed=claimed, noted=None if stored is None else stored.result)
                self.job = job
            except KeyTaken as error:  # as it would be in each try
                raise AirflowFailException(f"{error}. To have what is asked for now, clear the task") from error
            except BudgetExceeded as error:  # so would it be until somebody raises it, or the month ends
                raise AirflowFailException(f"{error}. Once there is a budget again, clear the task") from error
            finally:
                self._launching = False
            self._tell_differences(request, job)
            return job

    def _tell_differences(self, request: Request, job: Job) -> None:
        """Warn of a job that was found again although something else is asked for now."""
        differs, ended = describe_differences(request, job)
        if differs:
            what = "has ended: the task has its value" if ended else "goes on as it is"
            self._operator.log.warning("Job %s was submitted before, with %s, and %s", job.job_id, differs, what)

    def own(self, job: Job) -> None:
        """Become the owner of a job that an earlier process or a trigger owned."""
        ownership.take_ownership(job.store, job.job_id, self.token)
        self.job = job

    def hand_over(self, job: Job, context: Context) -> None:
        """Give a trigger, or the next try, time to become the owner."""
        ownership.take_ownership(job.store, job.job_id, self.token, within=self._handed_over(context))

    def _handed_over(self, context: Context) -> float:
        """Return the seconds within which a trigger, or the next try, has to take over the job; afterwards it counts as
        abandoned."""
        operator = self._operator
        if not operator.cancel_on_kill:
            return 0.0
        if context["ti"].try_number > context["ti"].max_tries:
            return HANDED_OVER
        missed = conf.getint("scheduler", "task_instance_heartbeat_timeout", fallback=HEARTBEAT)
        pauses = (operator.retry_delay, operator.max_retry_delay or 0.0)
        seconds = (pause.total_seconds() if isinstance(pause, timedelta) else float(pause) for pause in pauses)
        return HANDED_OVER + float(missed) + max(seconds)

    def _take_over(self, left: Job, *, cleared: bool) -> None:
        """Take over the job of the previous try, and wait for its end if it was cancelled."""
        log = self._operator.log
        ownership.take_ownership(left.store, left.job_id, self.token)
        ownership.wait_for_the_end(
            left, lambda: log.info("Job %s was cancelled. Its hosts are waited for", left.job_id)
        )
        if cleared and Follower(left).step() is None:
            log.info(
                "This try goes on with job %s of the try before. Tasks of this DAG run were cleared meanwhile, and "
                "Airflow does not tell whether this one was, with nobody there to cancel its job. If so, clear it "
                "once more", left.job_id,
            )  # fmt: skip

    def _adopts(self, kept: task_identity.Pin, location: JobLocation) -> bool:
        """Return True if a cleared task takes the value of its previous job."""
        if (
            self._operator.on_clear != "adopt"
            or not kept.job_id
            or kept.place is None
            or kept.place[:2] != location[:2]
        ):
            return False
        try:
            outcome = Follower(kept.place.open(kept.job_id)).step()
        except JobNotFound:  # it was never made, or is past its retention
            return False
        if outcome is None or outcome.status is not JobStatus.SUCCEEDED:
            return False
        self._operator.log.info("The task was cleared, and has the value of job %s, which had succeeded", kept.job_id)
        return True

    def _cancel_cleared(self, kept: task_identity.Pin) -> None:
        """Cancel the job from before a clear: the process that should have done so may be dead, or may not have started
        to watch."""
        if not self._operator.cancel_on_kill or kept.place is None or not kept.job_id:
            return
        try:
            if ownership.cancel_if_running(kept.place.open(kept.job_id), "its Airflow task was cleared"):
                self._operator.log.info("Job %s, which the task had before it was cleared, is cancelled", kept.job_id)
        except JobNotFound:
            pass  # it was never made
        except Exception as error:  # its connection may have gone since, and the new job has to begin all the same
            self._operator.log.warning("Job %s of before the clear could not be cancelled: %s", kept.job_id, error)

    # ---- the task fails ----------------------------------------------------------------------------------------

    @contextmanager
    def given_up_on_failure(self, context: Context, location: JobLocation) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.job_id:
                at_once = self._operator.killed or not self._operator.durable
                self.give_up(context, location, self.job_id, error, at_once=at_once)
            raise

    def give_up(
        self, context: Context, location: JobLocation, job_id: str, failure: BaseException, *, at_once: bool = False
    ) -> None:
        """Leave the job to the next try, or cancel it: after the last try no process would find it.

        `at_once`: no next try continues it.
        """
        operator = self._operator
        if not operator.cancel_on_kill:
            return
        continues = not at_once and self._is_tried_again(context, failure)
        try:
            job = location.open(job_id)
            if continues:
                if operator.deferrable and ownership.is_owned_by(job, self.token):
                    self.hand_over(job, context)
            elif not operator.killed or ownership.is_owned_by(job, self.token):
                ownership.cancel_if_running(job, "its Airflow task failed while it waited")
        except JobNotFound:
            pass  # it was never made
        except Exception as error:  # the error that failed the task is the one to report
            if not continues:
                operator.log.warning("Job %s could not be cancelled, and goes on: %s", job_id, error)

    def _is_tried_again(self, context: Context, failure: BaseException) -> bool:
        """Return True if Airflow will retry the task, by the rules that Airflow applies afterwards."""
        instance, policy = context["ti"], getattr(self._operator, "retry_policy", None)
        if instance.try_number > instance.max_tries:
            return False
        if policy is None:
            return True
        try:
            decision = policy.evaluate(failure, instance.try_number, instance.max_tries, context)
        except Exception:  # then it counts as none
            return True
        return decision.action is not _compat.RetryAction.FAIL

    # ---- the task is killed ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Cancel the job in a thread. This is called in a signal handler, on top of the main thread's current work: if
        that holds a lock, is in an import or reads an answer, waiting for it here would deadlock. `executing` waits for
        the thread at its end.
        """
        if self._killing is None:
            run = contextvars.copy_context().run
            self._killing = threading.Thread(target=run, args=(self._cancel_own,), name="kinetic-kill", daemon=True)
            self._killing.start()
        if not self._executing and self._killing.is_alive():
            self._killing.join(KILL_SECONDS)

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Wait for the thread of a kill at the end of the block, as Airflow ends the process without that. The reason
        of a failure is kept for whoever asks afterwards.
        """
        self._executing = True
        try:
            yield
        except Exception as error:
            self.failure = str(error) or type(error).__name__
            raise
        finally:
            self._executing = False  # first: a kill from now on waits by itself
            if self._killing is not None:
                self._killing.join(KILL_SECONDS)

    def refuse_if_killed(self) -> None:
        if self._operator.killed and self._operator.cancel_on_kill:
            raise JobCancelled("the Airflow task was killed before its job was made", job_id=self.job_id)

    def _cancel_own(self) -> None:
        """Cancel the job, also if it is only being launched: then as soon as it is there."""
        log, job = self._operator.log, None
        try:
            while True:
                launching = self._launching  # read first: a job launched later was claimed later, too
                job = self.job or self._found()
                if job is not None and ownership.cancel_if_owned(job, self.token, "its Airflow task was killed"):
                    if ownership.leaves_objects(job):
                        follow(Follower(job), timeout=RELEASE_SECONDS)
                    return
                if not launching:
                    break
                time.sleep(RECHECK_SECONDS)
        except Exception as error:
            log.warning("The task was killed, and its job could not be cancelled: %s", error)
        else:
            if job is not None:
                log.info("Job %s is left alone: it has another keeper by now", job.job_id)

    def _found(self) -> Job | None:
        if self._asked is None:
            return None
        request, location = self._asked
        with location.with_credentials():
            return find(request)
