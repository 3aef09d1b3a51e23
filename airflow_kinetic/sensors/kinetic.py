"""Wait for a job that was submitted elsewhere: by another task, another DAG, or a user at a prompt.

The sensor does not own the job: the job does not end with the sensor, but a lost attempt is followed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import AirflowTaskTimeout, BaseSensorOperator, PokeReturnValue, conf, internals
from airflow_kinetic.links.kinetic import KineticConsoleLink, KineticJobLink, KineticLogLink, ShowsLinks, urls_of
from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION, xcom_limit
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.outcome import WHERE_KEY, value_for_xcom
from airflow_kinetic.shared.tries import worker_exit
from kinetic_orchestration.errors import StoreError

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.job import Job


class KineticJobSensor(ShowsLinks, BaseSensorOperator):
    """Succeed when a job has, with its value by the same rule as a task of its own; fail as it failed.

    :param job_id: the job (templated)
    :param store: its store; by default as set for Airflow (templated)
    :param deployment: the prefix in it; by default as set for Airflow (templated)
    :param backend: its backend; by default as set for Airflow
    :param gcp_conn_id: the connection to Google Cloud. A job on this machine needs none (templated)
    :param impersonation_chain: the service account to act as, or a list that ends with it (templated)
    :param project_id: by default the connection's (templated)
    :param deferrable: wait on a triggerer instead of on a worker
    :param get_logs: write the hosts' lines to the sensor's log while it is deferred
    """

    template_fields: Sequence[str] = (
        "job_id", "store", "deployment", "gcp_conn_id", "impersonation_chain", "project_id",
    )  # fmt: skip
    operator_extra_links = (KineticJobLink(), KineticLogLink(), KineticConsoleLink())
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job_id: str,
        store: str | None = None,
        deployment: str | None = None,
        backend: str | None = None,
        gcp_conn_id: str = DEFAULT_CONNECTION,
        impersonation_chain: str | Sequence[str] | None = None,
        project_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        get_logs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.store = store
        self.deployment = deployment
        self.backend = backend
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.project_id = project_id
        self.deferrable = deferrable
        self.get_logs = get_logs
        self._follower: Follower | None = None

    def execute(self, context: Context) -> Any:
        from kinetic_orchestration.api.opening import runs
        from kinetic_orchestration.jobs.following.follower import Follower

        began = time.time()
        location = JobLocation.of_task(self)
        job = self._open(location, context)
        self._follower = Follower(job)
        self.log.info("Job %s. It runs %s", job.job_id, runs(job))
        if self.do_xcom_push and (task := context.get("ti")) is not None:
            task.xcom_push(key=WHERE_KEY, value=job.plan().where)
        if not (self.deferrable and internals.is_available("airflow.triggers.base")):
            return super().execute(context)
        poked = self.poke(context)
        return poked.xcom_value if poked else self._defer(location, began)

    def poke(self, context: Context) -> PokeReturnValue:
        from kinetic_orchestration.jobs.following.follower import Follower

        if self._follower is None:
            self._follower = Follower(self._open(JobLocation.of_task(self), context))
        if self._follower.step_if_reachable() is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._value(self._follower.job))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        from airflow_kinetic.triggers.kinetic import OUT_OF_TIME, UNREACHABLE
        from kinetic_orchestration.jobs.following.follower import Follower

        if event["how"] == UNREACHABLE:
            raise StoreError(event["message"])
        job = self._open(JobLocation(**event["place"]), context, event["spec_digest"], event.get("ended", ""))
        limit = event.get("limit")
        after = "" if limit is None else f" after {timedelta(seconds=limit)}"
        if event["how"] == OUT_OF_TIME and Follower(job).step() is None:
            raise AirflowTaskTimeout(
                f"the sensor was out of time{after}, its execution_timeout. It only watches: job {job.job_id} goes on"
            )
        return self._value(job)

    def _open(self, location: JobLocation, context: Context, spec_digest: str = "", ended: str = "") -> Job:
        self.show_links(context, urls_of(self.job_id, location))
        return location.open(self.job_id, spec_digest, ended)

    def _defer(self, location: JobLocation, began: float) -> None:
        from airflow_kinetic.triggers.kinetic import KineticJobTrigger
        from kinetic_orchestration.plan.values import Cursor

        limit = None if self.execution_timeout is None else self.execution_timeout.total_seconds()
        trigger = KineticJobTrigger(
            job_id=self.job_id, place=location.to_json(), cursor=Cursor().to_json(),
            deferred=time.time(), deadline=None if limit is None else began + limit, get_logs=self.get_logs,
            keeps=False, limit=limit, heard=worker_exit.announce_exit(),
        )  # fmt: skip
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def _value(self, job: Job) -> Any:
        from kinetic_orchestration.jobs.following.drivers import follow
        from kinetic_orchestration.jobs.following.follower import Follower

        outcome = follow(Follower(job))
        assert outcome is not None
        return value_for_xcom(job, outcome, xcom_limit())[0]
