"""Wait for a job on a triggerer: its hosts' lines go to the task's log, its end resumes the task.

The module imports this package alone, never the user's code: a triggerer need not have the DAGs. It looks its
connection up itself. It knows neither what the job computes nor how its value is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

from airflow_kinetic._compat import BaseTrigger, TriggerEvent, conf, substitutes, versions
from airflow_kinetic.links.kinetic import KineticLogLink, urls_of
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.tries import ownership
from airflow_kinetic.shared.waiting import calls
from airflow_kinetic.shared.waiting.task_log import TaskLog, line_budget
from kinetic_orchestration.errors import Denied, JobNotFound, KineticError, UsageError
from kinetic_orchestration.jobs.following.drivers import afollow
from kinetic_orchestration.jobs.following.follower import STORE_PATIENCE, Follower
from kinetic_orchestration.jobs.following.logs import Emit
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.values import Cursor, Outcome

# The executor's report that the worker's leg is over has to come to the scheduler while the task is still deferred or
# scheduled: one that comes when its next leg is queued or runs is taken for the end of that one, and fails the task
# (`process_executor_events` in airflow/jobs/scheduler_job_runner.py; apache/airflow issues 66374, 67287, 71580, 72716).
# That it came is written down nowhere: nobody can wait for it. How long it takes: a supervisor hears of the end of its
# task at once where `worker_exit` has seen to that, else after [workers] min_heartbeat_interval; and then there is the
# end of that leg and a round of the scheduler.
ROUNDS = 5.0
LEAVING = 1.0  # from the deferral to the end of the task's process
HEARTBEAT = 5  # seconds between those of a worker, by default
STALLED = 900.0  # of a scheduler, after which it is no longer waited for
LOOK_AGAIN = 1.0  # for its heartbeat
ANSWER_SECONDS = 3.0  # of the page that shows it
# Airflow closes a task's log once one socket reports the end of its trigger; the lines of all triggers come
# by another one, of which it reads 4 KB between two rounds of questions to its database (`TriggerRunnerSupervisor` in
# airflow/jobs/triggerer_job_runner.py). Those that it reads after that are in the triggerer's own log.
LAST_WORDS = 0.5  # the time that they take; longer if any trigger has just written many:
MOST_LAST_WORDS = 8.0  # the socket holds no more than a few hundred
LEFT = 1.5  # after the deferral the worker's leg has written its last record, below which the page folds what it finds
FIRST_LOOK = 60.0  # a trigger that begins so soon after the deferral is the first one
OPEN_SECONDS = 15.0  # what one try to reach the job may take
# For its first connection that no variable holds, a triggerer builds an API server, in ten seconds of computation
# (`in_process_api_server` in airflow/jobs/triggerer_job_runner.py), in which the store has no part.
LOOK_UP_SECONDS = 120.0
FIRST_PATIENCE = 10.0  # of the first trigger, with a store that it cannot reach, and two tries at least
FIRST_AGAIN = 1.0  # between them
AGAIN = 10.0  # between two tries of a trigger that was there before
KILL_SECONDS = 25.0  # in which a cancel that failed is tried again
JITTER = 0.2  # of a wait, so that a thousand triggers that began together do not go on together

ENDED, OUT_OF_TIME, UNREACHABLE = "ended", "out of time", "unreachable"


class KineticJobTrigger(BaseTrigger):
    """One trigger for the whole wait.

    :param job_id: the job
    :param place: the fields of its `JobLocation`
    :param cursor: the position up to which its log is written
    :param deferred: the time of the deferral
    :param deadline: the time at which the task times out, if any
    :param poll_interval: the minimum seconds between two polls
    :param get_logs: whether the hosts' lines are written, or only changes of the job
    :param keeps: whether the job is the task's own, and ends when the task is killed; else it is only watched
    :param metrics: those that were logged before
    :param limit: the seconds from the task's beginning to the deadline
    :param heard: whether the worker's supervisor is notified of the end of the task's process immediately
    """

    def __init__(
        self,
        *,
        job_id: str,
        place: dict[str, Any],
        cursor: list[Any],
        deferred: float,
        deadline: float | None = None,
        poll_interval: float = 0.0,
        get_logs: bool = True,
        keeps: bool = True,
        metrics: dict[str, float | str] | None = None,
        limit: float | None = None,
        heard: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        # Most of a thousand triggers name the same place; each was read from the database with strings of its own.
        self.place = {name: sys.intern(said) if isinstance(said, str) else said for name, said in place.items()}
        self.cursor = cursor
        self.deferred = deferred
        self.deadline = deadline
        self.poll_interval = poll_interval
        self.get_logs = get_logs
        self.keeps = keeps
        self.metrics = metrics
        self.limit = limit
        self.heard = heard
        self._token = ownership.new_token()
        self._made = time.monotonic()  # by the triggerer, when it takes it
        self._job: Job | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "job_id", "place", "cursor", "deferred", "deadline", "poll_interval", "get_logs", "keeps", "metrics",
            "limit",
        )  # fmt: skip
        kept = {name: getattr(self, name) for name in names}
        if self.heard:  # else left out, for a triggerer of an older version
            kept["heard"] = True
        return f"{type(self).__module__}.{type(self).__qualname__}", kept

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._event()
        except asyncio.CancelledError:
            if not versions.triggers_hear_of_kills():
                await calls.uninterrupted(self._kill_if_killed())
            raise
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _event(self) -> dict[str, Any]:
        """Wait, and return what resumes the task."""
        how, message, follower, log = ENDED, "", None, None
        try:
            async with asyncio.timeout(self._left()) as bound:
                job = self._job = await self._opened()
                follower = _Follower(job, Cursor.from_json(self.cursor))
                log = TaskLog(
                    job.policy.most, self.job_id, budget=line_budget(), whole_log=self._whole_log(),
                    lines=self.get_logs, metrics=self.metrics, since=self.deferred + LEFT,
                )  # fmt: skip
                log.hold()
                await afollow(follower, log, pause=self.poll_interval * random.uniform(1.0, 1.0 + JITTER))
        except TimeoutError:
            if not bound.expired():
                raise
            how = OUT_OF_TIME
        except _Unreachable as error:
            how, message = UNREACHABLE, str(error)
        if log is not None:
            log.end()
        # No process reads records from now on.
        cursor = Cursor.from_json(self.cursor) if follower is None else follower.cursor
        if self.task_instance is not None:  # None: `dag.test()`, where no scheduler is
            since = min(0.0, self.deferred - time.time())  # of clocks that differ, or were set back
            settled = since + seconds_to_settle(self.heard) * random.uniform(1.0, 1.0 + JITTER)
            await asyncio.sleep(max(settled, _last_words()))
            if settled > -STALLED:
                await self._scheduler_has_gone_on(time.monotonic() + STALLED)
        return {
            "job_id": self.job_id,
            "place": self.place,
            "cursor": json.loads(json.dumps(cursor.to_json())),
            "spec_digest": cursor.spec,
            "ended": cursor.ended,
            "how": how,
            "message": message,
            "limit": self.limit,
            "metrics": log.metrics if log is not None else self.metrics or {},
        }

    async def on_kill(self) -> None:
        """Cancel the job: a user cleared or marked the task. Not called when a triggerer goes away, nor before 3.3.

        A triggerer cancels the trigger again each second until it has ended, so this is interrupted; its work is not.
        """
        await calls.uninterrupted(self._kill())

    async def _kill_if_killed(self) -> None:
        """Cancel the job if the task is not deferred any more. For an Airflow that cancels a trigger in the same way
        when a user has killed its task and when its triggerer ends; what cannot be found out is no kill.
        """
        if not self.keeps or self.task_instance is None:
            return
        try:
            killed = await substitutes.was_killed(self.task_instance)
        except Exception as error:
            self.log.info("Job %s goes on, as its task's state cannot be found out: %s", self.job_id, error)
            return
        if killed:
            await self._kill()

    async def _kill(self) -> None:
        """Ask for the end of the job, and see to its objects. Asked again for `KILL_SECONDS`."""
        give_up, pause = time.monotonic() + KILL_SECONDS, FIRST_AGAIN
        while self.keeps:
            within = min(OPEN_SECONDS, give_up - time.monotonic())
            try:
                if await calls.run(self._cancel, within=within, kind="kill"):
                    await self._release(give_up)
                return
            except JobNotFound:
                raise
            except Exception as error:
                if time.monotonic() + pause > give_up:
                    raise
                self.log.warning("Job %s could not be cancelled, and that is tried again: %s", self.job_id, error)
            await asyncio.sleep(pause)
            pause = 2 * pause

    async def _scheduler_has_gone_on(self, give_up: float) -> None:
        """Wait for one loop of the scheduler after the end of the task's previous part: a scheduler or database that
        hangs has not processed that end, no matter how long ago it was. If no heartbeat can be read, there is no wait.

        Airflow publishes a heartbeat when the next one comes (`Job.heartbeat` in airflow/jobs/job.py), so that one loop
        lies between; if clocks differ, the second new heartbeat shows as much.
        """
        ended, before, come = self.deferred + _latest_end(self.heard), None, 0
        while time.monotonic() < give_up:
            try:
                beat = await calls.run(_last_heartbeat, within=OPEN_SECONDS, kind="beat")
            except calls.TooSlow:
                return
            come += before is not None and beat != before
            if beat is None or beat >= ended or come == 2:
                return
            before = beat
            await asyncio.sleep(LOOK_AGAIN * random.uniform(1.0, 1.0 + JITTER))

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    async def _opened(self) -> Job:
        """Open the job. Raises immediately for a store without the job or without access, and after some time for one
        that does not answer, which is tried again until then.
        """
        first = abs(time.time() - self.deferred) < FIRST_LOOK
        patience, pause = (FIRST_PATIENCE, FIRST_AGAIN) if first else (STORE_PATIENCE, AGAIN)
        give_up, tries, location = time.monotonic() + patience, 0, JobLocation(**self.place)
        while True:
            tries += 1
            try:
                acting = await calls.run(location.with_credentials, within=LOOK_UP_SECONDS, kind="look up")
                return await calls.run(partial(self._open, location, acting), within=OPEN_SECONDS)
            except calls.TooSlow as error:
                reason = str(error)
            except Exception as error:  # any error between this process and the store
                reason = str(error) if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
                if isinstance(error, (JobNotFound, Denied, UsageError)):  # nor will it be otherwise in a moment
                    raise _Unreachable(self._advice(reason, first)) from None
            if time.monotonic() >= give_up and tries > 1:
                raise _Unreachable(self._advice(reason, first))
            self.log.warning("The store of job %s cannot be reached now, and is asked again: %s", self.job_id, reason)
            await asyncio.sleep(pause * random.uniform(1.0, 1.0 + JITTER))

    def _open(self, location: JobLocation, acting: AbstractContextManager[None]) -> Job:
        job = location.open(self.job_id, *Cursor.from_json(self.cursor)[-2:], acting=acting)
        if self.keeps:
            ownership.take_ownership(job.store, self.job_id, self._token)
        return job

    def _advice(self, reason: str, first: bool) -> str:
        store, here = self.place["store"], socket.gethostname()
        if not first:
            return (
                f"the triggerer on {here} cannot reach job {self.job_id} in {store} any more: {reason.rstrip('.')}. "
                "The job may go on, and a retry finds it: clear the task once that is mended"
            )
        fix = (
            "let triggerers have the connection, the network and the rights that workers have"
            if not store_address.is_folder(store)
            else "a folder works only if workers and triggerers share it; name a bucket with store= or KINETIC_STORE"
        )
        return (
            f"the triggerer on {here} cannot reach job {self.job_id}, which a worker has just put into "
            f"{store}: {reason.rstrip('.')}. What helps: {fix}. Or wait on a worker, with deferrable=False"
        )

    def _whole_log(self) -> str:
        url = urls_of(self.job_id, JobLocation(**self.place))[KineticLogLink.key]
        return f"kinetic-orchestration logs {self.job_id}, or {url}"

    async def _release(self, give_up: float) -> None:
        """Follow a cancelled job until its hosts' objects are gone, where these would stay for a while."""
        job = self._job
        if job is not None and ownership.leaves_objects(job):
            with contextlib.suppress(KineticError, TimeoutError):  # then the cluster removes them, or the reaper
                async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                    await afollow(Follower(job))

    def _cancel(self) -> bool:
        """Cancel the job, unless it has another keeper by now."""
        job, since = self._job, None
        if job is None:  # then this trigger's token is not there yet, but one from before it was made, or a successor's
            job = JobLocation(**self.place).open(self.job_id, *Cursor.from_json(self.cursor)[-2:])
            since = job.store.now() - (time.monotonic() - self._made)
        if ownership.cancel_if_owned(job, self._token, "its Airflow task was killed while deferred", since=since):
            return True
        self.log.info("Job %s is left alone: it has another keeper by now", self.job_id)
        return False


def seconds_to_settle(heard: bool = False) -> float:
    """Return the seconds after a deferral in which the scheduler may not know of the end of the previous part."""
    return ROUNDS + _latest_end(heard)


def _latest_end(heard: bool) -> float:
    """Return the seconds within which the supervisor knows that the task's process has ended. A supervisor that uploads
    the log first may need longer, so the full heartbeat interval is assumed.
    """
    sent_away = conf.getboolean("logging", "remote_logging", fallback=False)
    return (
        LEAVING
        if heard and not sent_away
        else float(conf.getint("workers", "min_heartbeat_interval", fallback=HEARTBEAT))
    )


def _last_heartbeat() -> float | None:
    """Return the time of the newest heartbeat of any scheduler, by its own clock, from the health page of the API
    server: a triggerer has no database. None if it cannot be read.
    """
    if not versions.triggers_have_no_database():
        return substitutes.heartbeat_by_row()
    for page in _health_pages():
        try:
            with urllib.request.urlopen(page, timeout=ANSWER_SECONDS) as answer:
                beat = json.load(answer)["scheduler"]["latest_scheduler_heartbeat"]
            return datetime.fromisoformat(beat).timestamp()
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):  # another page, or none
            continue
    return None


def _health_pages() -> list[str]:
    """The health pages at the URL for users and at the URL for tasks, which are usually the same server."""
    roots = (
        conf.get("api", "base_url", fallback=""),
        conf.get("core", "execution_api_server_url", fallback="").rstrip("/").removesuffix("/execution"),
    )
    known = dict.fromkeys(root.rstrip("/") for root in roots if root.startswith(("http://", "https://")))
    return [f"{root}/api/v2/monitor/health" for root in known]


def _last_words() -> float:
    return min(MOST_LAST_WORDS, LAST_WORDS + line_budget().seconds_to_read())


class _Follower(Follower):
    """A follower whose first step reads all earlier records."""

    __slots__ = ()

    def step_if_reachable(self, emit: Emit | None = None) -> Outcome | None:
        outcome = super().step_if_reachable(emit)
        if isinstance(emit, TaskLog) and not self.unreachable:
            emit.let_go()
        return outcome


class _Unreachable(Exception):
    """The message has the fix."""
