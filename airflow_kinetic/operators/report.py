"""The view of a task's job in Airflow: log records, links, XCom and the events of its outlets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import AirflowFailException, Asset, homes
from airflow_kinetic.links.kinetic import KineticCurvesLink, KineticProfileLink
from airflow_kinetic.shared.configuration import xcom_limit
from airflow_kinetic.shared.outcome import JOB_KEY, OUTPUT_KEY, WHERE_KEY, uri_of_result, value_for_xcom
from airflow_kinetic.shared.waiting.calls import in_background
from kinetic_orchestration.api.handle import JobHandle, profile_of
from kinetic_orchestration.api.links import browse
from kinetic_orchestration.api.opening import runs
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.results import error_of
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.cost import times, went_to
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from airflow_kinetic.operators.kinetic import KineticTPUOperator


class TaskReport:
    def __init__(self, operator: KineticTPUOperator, context: Context, job: Job) -> None:
        self._operator = operator
        self._context = context
        self._job = job
        self._log = operator.log

    def announced(self, settings: Settings) -> AbstractContextManager[Ahead[object]]:
        """Report the job immediately, so that users find it while the task waits, here or deferred. Airflow's server is
        called in the background, and the block makes no other request to it.
        """
        job_id, told = self._job.job_id, runs(self._job, settings)
        self._log.info("Job %s. It runs %s. Its log elsewhere: kinetic-orchestration logs %s", job_id, told, job_id)
        return in_background(self._push)

    def _push(self) -> None:
        if self._operator.do_xcom_push:
            self._context["ti"].xcom_push(key=JOB_KEY, value=self._job.job_id)
            self._context["ti"].xcom_push(key=WHERE_KEY, value=self._job.plan_of(1).where)
            if output := self._job.task().output_dir:
                self._context["ti"].xcom_push(key=OUTPUT_KEY, value=output)

    def finish(self, outcome: Outcome, metrics: Mapping[str, float | str]) -> Any:
        """Return the task's value, or raise what its job has raised, after all else is shown."""
        operator, job = self._operator, self._job
        if outcome.status is JobStatus.CANCELLED and not operator.killed and not actions.may_begin_anew(job):
            # By a person, who does not want to see it begin again; a retry would only find it cancelled.
            raise AirflowFailException(str(error_of(job, outcome)))
        if operator.do_xcom_push and job.plan().choices:  # the last attempt may have taken another one
            self._context["ti"].xcom_push(key=WHERE_KEY, value=job.plan_of(outcome.attempt).where)
        profile, curves = self._show_profile(), self.show_curves()
        try:
            value, whole = value_for_xcom(job, outcome, xcom_limit())
        except Exception:
            self._wait_until_offered(outcome)  # the next try may begin at once
            raise
        if not whole:
            operator.multiple_outputs = False  # one URI, regardless of the function's annotation
            self._log.info(
                "The value is no small JSON and stays in the store; XCom has its URI, %s. To read it: "
                "kinetic_orchestration.attach(%r).result()", value, job.job_id,
            )  # fmt: skip
        more = {"value": "" if value is None else uri_of_result(job, outcome), "profile": profile, "curves": curves}
        self.extend_outlet_events(outcome, metrics, more)
        self._wait_until_offered(outcome)
        return value

    def _wait_until_offered(self, outcome: Outcome) -> None:
        """Wait a moment until the hosts of a job with `keep` offer their slice, so that the next task finds it."""
        if self._job.plan().keep:
            from kinetic_orchestration.jobs.cleanup import kept_slices

            kept_slices.wait_until_offered(self._job, outcome)

    def _show_profile(self) -> str:
        """Log and link the location of the profile, and return it; "" if there is none."""
        if profile := profile_of(self._job):
            self._log.info("The profile of job %s: %s", self._job.job_id, names.xprof(profile))
            self._link(KineticProfileLink.key, browse(profile))
        return profile

    def show_curves(self) -> str:
        """Log and link the picture of the job's metrics and devices, and return its location; "" if there is none."""
        handle: JobHandle[Any] = JobHandle(self._job)
        try:
            page, cost = handle.picture_url(), handle.cost()
        except KineticError:  # it is worth no task
            return ""
        self._log.info("%s; %s", cost, times(cost))
        if parts := went_to(cost):
            self._log.info("Its time went to: %s", parts)
        if page:
            self._log.info("The curves of job %s, of what it reported and of its devices: %s", self._job.job_id, page)
            self._link(KineticCurvesLink.key, page)
        return page

    def _link(self, key: str, url: str) -> None:
        self._operator.show_links(self._context, {**self._operator.kinetic_urls, key: url})

    def extend_outlet_events(
        self, outcome: Outcome, metrics: Mapping[str, float | str], more: Mapping[str, str]
    ) -> None:
        kinds: Any = tuple(kind for kind in (Asset, homes.optional("AssetRef")) if kind is not None)
        outlets = [outlet for outlet in self._operator.outlets if isinstance(outlet, kinds)]
        if not outlets:
            return
        job, plan = self._job, self._job.plan_of(outcome.attempt)
        more = {**more, "chosen": job.taken(outcome.attempt)}
        extra: dict[str, Any] = {
            "job_id": job.job_id, "accelerator": plan.slice.name, "where": plan.where, "emulated": plan.stands_in,
            "attempts": outcome.attempts, "output_dir": job.task().output_dir,
            **{name: text for name, text in more.items() if text}, "metrics": dict(metrics),
        }  # fmt: skip
        for outlet in outlets:
            accessor = self._context["outlet_events"][outlet]
            accessor.extra = {**accessor.extra, **extra}
