"""Waits for a job on a triggerer: its hosts' lines go to the task's log, its end resumes the task.

Imports this package alone, never the user's code: a triggerer need not have the DAGs. Knows neither what the job
computes nor what becomes of its value.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_kinetic.task_log import TaskLog
from kinetic_orchestration import act
from kinetic_orchestration.act import Job
from kinetic_orchestration.follow import Follower, afollow
from kinetic_orchestration.job import open_place
from kinetic_orchestration.values import Cursor

# A trigger that fires in the first seconds after the deferral can meet a scheduler that has not noted it yet,
# which fails the task (apache/airflow issues 66374, 67287, 71580, 72716).
SETTLED = 10.0


class KineticJobTrigger(BaseTrigger):
    """One trigger for the whole wait. `cursor` is how far the log was written before."""

    def __init__(
        self,
        *,
        job_id: str,
        store: str,
        deployment: str,
        backend: str,
        cursor: list[Any],
        deferred: float,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.store = store
        self.deployment = deployment
        self.backend = backend
        self.cursor = cursor
        self.deferred = deferred
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("job_id", "store", "deployment", "backend", "cursor", "deferred", "cancel_on_kill")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        job = await asyncio.to_thread(self._open)
        await afollow(Follower(job, Cursor.from_json(self.cursor)), TaskLog(job.policy.hosts))
        if self.task_instance is not None:  # None: `dag.test()`, where no scheduler is
            await asyncio.sleep(self.deferred + SETTLED - time.time())
        place = {"store": self.store, "deployment": self.deployment, "backend": self.backend}
        yield TriggerEvent({"job_id": self.job_id, **place})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """The task was cleared or marked by somebody: its job ends too. Not called when a triggerer goes away."""
        if self.cancel_on_kill:
            await asyncio.to_thread(self._cancel)

    def _open(self) -> Job:
        return open_job(self.job_id, store=self.store, deployment=self.deployment, backend=self.backend)

    def _cancel(self) -> None:
        cancel(self._open(), "its Airflow task was killed while deferred")


def open_job(job_id: str, **place: str) -> Job:
    store, backend = open_place(**place)
    return act.open_job(job_id, store, backend)


def cancel(job: Job, reason: str) -> None:
    """Ask for the end, and see to it once. Does not wait: killing has little time, and the hosts see the record."""
    act.cancel(job, reason, "airflow")
    Follower(job).step()
