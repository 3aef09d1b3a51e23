"""One Airflow task, one job: launched by a worker, waited for there or on a triggerer, its value handed on.

Responsible for what Airflow does to a task (deferring, resuming, timing out, killing, clearing) and for what it leaves
behind: XCom, asset events, links, lineage. Everything about the job itself is the core's.
"""

from __future__ import annotations

import contextvars
import dataclasses
import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout

from airflow_kinetic.links.kinetic import (
    KineticConsoleLink,
    KineticCurvesLink,
    KineticJobLink,
    KineticLogLink,
    KineticProfileLink,
    ShowsLinks,
    url_of_curves,
    url_of_profile,
    urls_of,
)
from airflow_kinetic.shared import airflow_api
from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.outcome.xcom import JOB_KEY, WHERE_KEY, uri_of_result, value_for_xcom
from airflow_kinetic.shared.parameters.arguments import plain, untemplated, with_context
from airflow_kinetic.shared.parameters.declared import check, declared_with, options_of
from airflow_kinetic.shared.tries import ownership, task_identity, worker_exit
from airflow_kinetic.shared.waiting.calls import in_background
from kinetic_orchestration.errors import JobCancelled, JobNotFound, KeyTaken, KineticError, StoreError, UsageError
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.declare.spec import (
    DEFAULT_ACCELERATOR,
    LOCAL,
    JobSpec,
    Options,
    TpuVm,
    check_function,
    check_options,
    name_of,
    refuse_gone,
)
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.identity import job_id as job_id_of
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import names

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.job import Job
    from kinetic_orchestration.jobs.request import Draft, Request
    from kinetic_orchestration.protocol.system.parallel import Ahead

BACK_STOP = 60.0  # after the deadline that a trigger keeps, Airflow's own
KILL_SECONDS = 20.0  # the longest that a task which was killed waits for its job's cancel to be written
HANDED_OVER = 600.0  # a trigger may need to take a job that was launched for it; more, if a retry may take it instead
HEARTBEAT = 300  # seconds after which Airflow misses a worker, by default
LAST_LINES = 40.0  # of a job that was cancelled, longer than its program has to end
LONG_LAUNCH = 60.0  # after which the time to take over the job is renewed
RERUN, ADOPT = "rerun", "adopt"
LOOK_AGAIN = 0.2  # for a job that is being launched while its task is killed


class KineticTPUOperator(ShowsLinks, BaseOperator):
    """Run a function or a script on an accelerator. Deferred, it holds no worker, and its hosts' lines are in its log.

    :param python_callable: the function; one decorated by `kinetic.run` is taken without its own options
    :param script: instead of a function, a Python file, by its path from the DAG file's folder (templated). It runs
        with the project around it and has no value
    :param op_args: the function's positional arguments, or the script's (templated)
    :param op_kwargs: the function's keyword arguments (templated)
    :param accelerator: such as ``v5e-8`` (templated)
    :param name: the job's name; by default that of its function or script (templated)
    :param env: variables of the program, visible to all readers of the store: secrets go in `secrets` (templated)
    :param gcp_conn_id: the connection to Google Cloud, ``google_cloud_default`` if none is named. A job on this machine
        needs none, and a task that names one is not emulated because a store is missing (templated)
    :param impersonation_chain: the service account to act as, or a list that ends with it (templated)
    :param project_id: by default the connection's (templated)
    :param deferrable: wait on a triggerer instead of on a worker
    :param durable: a retry finds the job of the previous try, if it runs or succeeded, instead of a second one. Only a
        task that waits on a worker may do without
    :param cancel_on_kill: cancel the job when the task is cleared, marked or stopped by a user, or times out
    :param poll_interval: while deferred, the minimum seconds between two polls of the job; 0: at its notifications
    :param on_clear: the effect of a clear of the task if its job has succeeded, as when Airflow itself failed the task:
        ``"rerun"`` (the default) runs another job, ``"adopt"`` takes that job's value
    :param wait: False submits and succeeds immediately with the job's id; no process of Airflow's then follows the job
    :param get_logs: write the hosts' lines to the task's log, not only changes of the job

    All other parameters are those of `kinetic_orchestration.run`. The job's metrics are in the `extra` of the events of
    the task's outlets. `execution_timeout` counts while the task is deferred, too, from the beginning of each try.
    """

    template_fields: Sequence[str] = (
        "op_args", "op_kwargs", "script", "accelerator", "name", "env", "zone", "zones", "project_id", "gcp_conn_id",
        "impersonation_chain", "store", "deployment", "output_dir", "partition_key", "container_image", "labels",
        "profile",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py", "env": "json"}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    operator_extra_links = (
        KineticJobLink(), KineticLogLink(), KineticConsoleLink(), KineticCurvesLink(), KineticProfileLink(),
    )  # fmt: skip
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any] | None = None,
        script: str | None = None,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        accelerator: str = DEFAULT_ACCELERATOR,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        gcp_conn_id: str | None = None,
        impersonation_chain: str | Sequence[str] | None = None,
        project_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        durable: bool = True,
        cancel_on_kill: bool = True,
        poll_interval: float = 0.0,
        get_logs: bool = True,
        on_clear: str = RERUN,
        wait: bool = True,
        zone: str | None = None,
        zones: str | Sequence[str] = (),
        spot: bool = False,
        backend: str | None = None,
        store: str | None = None,
        deployment: str | None = None,
        cloud: TpuVm | None = None,
        container_image: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        retry: Retry = Retry(),  # noqa: B008 - frozen
        requirements: str | os.PathLike[str] | Sequence[str] | None = None,
        python: str | None = None,
        first_party: Sequence[str] = (),
        capture_env_vars: Sequence[str] | None = None,
        secrets: Mapping[str, str] | None = None,
        volumes: Mapping[str, Data] | None = None,
        output_dir: str | None = None,
        distributed: bool | None = None,
        keras_backend: str | None = None,
        processes: int | str | None = None,
        profile: Profile | int | str | None = None,
        partition_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        on_conflict: str = "return",
        **kwargs: Any,
    ) -> None:
        super().__init__(**refuse_gone(type(self).__name__, kwargs))
        self.python_callable: Any = check_function(python_callable) if python_callable is not None else None
        self.script = script
        self.op_args: Collection[Any] = op_args or []
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.accelerator = accelerator
        self.name = name
        self.env = env
        self.gcp_conn_id = gcp_conn_id or DEFAULT_CONNECTION
        self._names_connection = gcp_conn_id is not None  # then the task means Google Cloud
        self.impersonation_chain = impersonation_chain
        self.project_id = project_id
        self.deferrable = deferrable
        self.durable = durable
        self.cancel_on_kill = cancel_on_kill
        self.poll_interval = poll_interval
        self.get_logs = get_logs
        self.on_clear, self.wait = on_clear, wait
        self.zone = zone
        self.zones = zones
        self.spot = spot
        self.backend = backend
        self.store = store
        self.deployment = deployment
        self.cloud = cloud
        self.container_image = container_image
        self.limits = limits
        self.retry = retry
        self.requirements = requirements
        self.python = python
        self.first_party = first_party
        self.capture_env_vars = capture_env_vars
        self.secrets = secrets
        self.volumes = volumes
        self.output_dir = output_dir
        self.distributed = distributed
        self.keras_backend = keras_backend
        self.processes = processes
        self.profile = profile
        self.partition_key = partition_key
        self.labels = labels
        self.on_conflict = on_conflict
        self._token = ownership.new_token()
        self._job: Job | None = None
        self._job_id = ""  # once it is claimed
        self._asked: tuple[Request, JobLocation] | None = None
        self._launching = self._executing = self._killed = False
        self._killing: threading.Thread | None = None
        check(
            {name: getattr(self, name) for name in (*declared_with(KineticTPUOperator), "outlets")},
            self.template_fields,
        )

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial:
        """Like `partial` of any operator, but `expand` also reports errors in the arguments while the DAG is parsed."""
        made = super().partial(**given)
        try:
            from airflow_kinetic.shared.parameters.mapping import CheckedPartial
        except ImportError as error:
            airflow_api.warn_missing("airflow.sdk.definitions.mappedoperator", error)
            return made
        return CheckedPartial.of(made, declared_with(KineticTPUOperator))

    # ---- what Airflow calls ------------------------------------------------------------------------------------

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the template fields, without those of this operator that are empty: Airflow would take a millisecond
        for each of them, and its server would store it.
        """
        ours = KineticTPUOperator.template_fields
        self.template_fields = [name for name in self.template_fields if name not in ours or getattr(self, name)]
        super().render_template_fields(context, jinja_env)

    def execute(self, context: Context) -> Any:
        from airflow_kinetic.shared.waiting.task_log import TaskLog
        from kinetic_orchestration.jobs.following.drivers import follow
        from kinetic_orchestration.jobs.following.follower import Follower

        began = time.time()
        with self._leaving_nothing_undone():
            self._refuse_if_killed()
            asked, place = self._placed(self._spec(context))
            with self._looked_after(context, place):
                job = self._launched(asked, place, context)
                self.kinetic_urls = urls_of(job.job_id, place)
                with self._saying_where(context, job):
                    if not self.wait:
                        return job.job_id
                    # Without the log: the trigger writes all of it, and in order, also of a job that was found again.
                    defers = self.deferrable and self._outlasts(job, place) and not self._killed
                    if defers and not airflow_api.is_available("airflow.triggers.base"):
                        defers = False
                        # It was handed over to a trigger.
                        ownership.take_ownership(job.store, job.job_id, self._token)
                    if not defers:
                        log = TaskLog(job.policy.hosts, job.job_id, lines=self.get_logs, since=time.time())
                        outcome = follow(Follower(job), log)
                if defers:
                    if time.time() - began > LONG_LAUNCH:
                        ownership.take_ownership(job.store, job.job_id, self._token, within=self._handed_over(context))
                    self._defer(Follower(job), place, began)
            assert outcome is not None  # no timeout and no stop were given
            return self._finish(context, job, outcome, log.metrics)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Resume a deferred task when its job has ended or the task has timed out."""
        from airflow_kinetic.triggers.kinetic import OUT_OF_TIME, UNREACHABLE
        from kinetic_orchestration.jobs.following.drivers import follow
        from kinetic_orchestration.jobs.following.follower import Follower

        place, self._job_id = JobLocation(**event["place"]), event["job_id"]
        self.kinetic_urls = urls_of(self._job_id, place)
        with self._leaving_nothing_undone():
            with self._looked_after(context, place):
                if event["how"] == UNREACHABLE:
                    raise StoreError(event["message"])
                job = place.open(self._job_id, event["spec_digest"], event.get("ended", ""))
                ownership.take_ownership(job.store, job.job_id, self._token)
                self._job = job
                if event["how"] == OUT_OF_TIME and Follower(job).step() is None:
                    error = self._out_of_time(job, event.get("limit"))
                    self._tell_last_lines(job, event.get("cursor"))
                    raise error
                outcome = follow(Follower(job))
            assert outcome is not None  # no timeout and no stop were given
            return self._finish(context, job, outcome, event["metrics"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            kept = task_identity.kept_pin(context)
            if kept is not None and kept.place is not None:
                self.kinetic_urls = urls_of(kept.job_id, kept.place)
                at_once = isinstance(error, TaskDeferralTimeout)
                self._give_up(context, kept.place, kept.job_id, error, at_once=at_once)
            raise

    def on_kill(self) -> None:
        """Cancel the job in a thread. This is called in a signal handler, on top of the main thread's current work: if
        that holds a lock, is in an import or reads an answer, waiting for it here would deadlock. `execute` waits for
        the thread at its end.
        """
        self._killed = True
        if not self.cancel_on_kill:
            return
        if self._killing is None:
            run = contextvars.copy_context().run
            self._killing = threading.Thread(target=run, args=(self._kill,), name="kinetic-kill", daemon=True)
            self._killing.start()
        if not self._executing and self._killing.is_alive():
            self._killing.join(KILL_SECONDS)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Buckets and folders that the job read and wrote, where Airflow has OpenLineage."""
        from airflow_kinetic.shared.outcome.lineage import lineage_of

        del task_instance
        return lineage_of([self.op_args, self.op_kwargs, self.volumes or {}], self._output())

    # ---- being killed ------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        """Cancel the job, also if it is only being launched: then as soon as it is there."""
        job: Job | None = None
        try:
            while True:
                launching = self._launching  # read first: a job launched later was claimed later, too
                job = self._job or self._found()
                if job is not None and ownership.cancel_if_owned(job, self._token, "its Airflow task was killed"):
                    return
                if not launching:
                    break
                time.sleep(LOOK_AGAIN)
        except Exception as error:
            self.log.warning("The task was killed, and its job could not be cancelled: %s", error)
        else:
            if job is not None:
                self.log.info("Job %s is left alone: it has another keeper by now", job.job_id)

    def _found(self) -> Job | None:
        from kinetic_orchestration.jobs.launch import find

        if self._asked is None:
            return None
        request, place = self._asked
        with place.with_credentials():
            return find(request)

    def _refuse_if_killed(self) -> None:
        if self._killed and self.cancel_on_kill:
            raise JobCancelled("the Airflow task was killed before its job was made", job_id=self._job_id)

    @contextmanager
    def _leaving_nothing_undone(self) -> Iterator[None]:
        """Airflow ends the process without waiting for threads."""
        self._executing = True
        try:
            yield
        finally:
            self._executing = False  # first: a kill from now on waits by itself
            if self._killing is not None:
                self._killing.join(KILL_SECONDS)

    # ---- the job -----------------------------------------------------------------------------------------------

    def _spec(self, context: Context) -> JobSpec:
        args = tuple(plain(list(untemplated(self.op_args, "op_args", "[…]")), "op_args"))
        kwargs = plain(untemplated(self.op_kwargs, "op_kwargs", "{…}"), "op_kwargs")
        env = plain(untemplated(self.env or {}, "env", "{…}"), "env")
        untemplated(self.labels, "labels", "{…}")
        given = {name: getattr(self, name) for name in declared_with(KineticTPUOperator)}
        options = check_options(options_of(given, self.zones))
        for variable, value in env.items():
            if not isinstance(value, str):
                raise UsageError(f"env[{variable!r}] is {value!r}: the value of a variable is text")
        if self.script is not None:
            file = Path(context["dag"].fileloc).parent / self.script
            if not file.is_file():
                raise UsageError(f"the script {self.script} is not there: looked for it as {file}")
            argv = ("python", file.name, *map(str, args))
            name = _checked_name(self.name or file.name)
            return JobSpec(
                name, options, argv=argv, cwd=str(file.parent), env=env, meant=self._meant(options),
                origin=_origin(context),
            )  # fmt: skip
        function = self.python_callable
        kwargs = with_context(function, args, kwargs, context)
        name = _checked_name(self.name) if self.name else name_of(function)
        return JobSpec(
            name, options, function, args, kwargs, env=env, meant=self._meant(options), origin=_origin(context)
        )  # fmt: skip

    def _meant(self, options: Options) -> tuple[str, ...]:
        """Return the parameters that imply Google Cloud, by the names of the task's own parameters."""
        own = (
            ("gcp_conn_id", self.gcp_conn_id if self._names_connection else None),
            ("impersonation_chain", self.impersonation_chain),
        )
        return (
            *(f"{name}={value!r}" for name, value in own if value),
            *(text.replace("project=", "project_id=") for text in emulation.kinetics_own(options)),
        )

    def _placed(self, spec: JobSpec) -> tuple[Draft, JobLocation]:
        """Return the job with its project, and its location. The connection is opened only for Google Cloud."""
        from kinetic_orchestration.jobs.request import draft, settings_of

        emulation.check_slice(spec, settings_of(spec))  # before the connection is opened for nothing
        place = JobLocation.resolve(
            self.gcp_conn_id, self.impersonation_chain, store=self.store, deployment=self.deployment,
            backend=self.backend, project=self.project_id,
        )  # fmt: skip
        if place.is_google:
            spec = dataclasses.replace(spec, options=dataclasses.replace(spec.options, project=place.project))
        return draft(spec), place  # what is refused there is refused before anything is written down

    def _launched(self, asked: Draft, place: JobLocation, context: Context) -> Job:
        """The one job of this task and epoch: found again, or made. What it is, is written down before it is made."""
        from kinetic_orchestration.api.handle import another
        from kinetic_orchestration.jobs.launch import find, launch

        with place.with_credentials():
            kept = pinned = None
            if self.durable:
                kept = task_identity.kept_pin(context)
                pinned = self._pinned(context, kept)._replace(place=place)
                if kept is not None and kept.epoch != pinned.epoch and self._adopts(kept, place):
                    pinned = pinned._replace(epoch=kept.epoch, job_id=kept.job_id)
            pinned_identity = None if pinned is None else _identity(place.deployment, context["ti"], pinned)
            request = asked.open(pinned_identity)
            new: AbstractContextManager[Ahead[object] | None] = nullcontext()
            if pinned is not None and kept is None:
                # Immediately: the next process, while this one packages, means the same job. Of a new life it is known
                # which, so that it need not be kept again. Nothing is submitted before Airflow's server has it.
                pinned = pinned._replace(job_id=job_id_of(request.identity, 1))
                new = in_background(task_identity.keep, context, pinned)
            within = self._handed_over(context) if self.deferrable and self.wait else 0.0

            def claimed(job_id: str) -> None:
                self._job_id = job_id
                self._refuse_if_killed()
                if pinned is not None and (kept is not None or pinned.job_id != job_id):
                    if keeping is not None:
                        keeping.result()
                    task_identity.keep(context, pinned._replace(job_id=job_id))
                # Before the upload, in which this worker may hang and be replaced: afterwards it would take the token
                # of its successor.
                ownership.take_ownership(request.store, job_id, self._token, within=within)

            self._asked, self._launching = (request, place), True
            try:
                with new as keeping:
                    noted = None if keeping is None else keeping.result
                    if pinned is not None and kept is not None:
                        if kept.epoch != pinned.epoch:
                            self._call_back(kept)
                        elif (left := find(request)) is not None:
                            self._take_over(left, cleared=task_identity.was_cleared(kept, pinned.clears))
                    job = launch(request, claimed=claimed, noted=noted)
                self._job = job
            except KeyTaken as error:  # as it would be in each try
                raise AirflowFailException(f"{error}. To have what is asked for now, clear the task") from error
            finally:
                self._launching = False
            differs, ended = another(request, job)
            if differs:
                what = "has ended: the task has its value" if ended else "goes on as it is"
                self.log.warning("Job %s was submitted before, with %s, and %s", job.job_id, differs, what)
            return job

    def _handed_over(self, context: Context) -> float:
        """Return the seconds within which a trigger, or the next try, has to take over the job; afterwards it counts as
        abandoned."""
        if not self.cancel_on_kill:
            return 0.0
        if context["ti"].try_number > context["ti"].max_tries:
            return HANDED_OVER
        missed = conf.getint("scheduler", "task_instance_heartbeat_timeout", fallback=HEARTBEAT)
        pauses = (self.retry_delay, self.max_retry_delay or 0.0)
        seconds = (pause.total_seconds() if isinstance(pause, timedelta) else float(pause) for pause in pauses)
        return HANDED_OVER + float(missed) + max(seconds)

    def _pinned(self, context: Context, kept: task_identity.Pin | None) -> task_identity.Pin:
        task, run = context["ti"], context.get("dag_run")
        clears = getattr(run, "clear_number", None)
        found = task_identity.pin_now(kept, task.max_tries, self.retries or 0, task.try_number, clears)
        return (
            found._replace(life=task_identity.new_life())
            if kept is None and task_identity.has_state(context)
            else found
        )

    def _take_over(self, left: Job, *, cleared: bool) -> None:
        """Take over the job of the previous try, and wait for its end if it was cancelled."""
        from kinetic_orchestration.jobs.following.follower import Follower

        ownership.take_ownership(left.store, left.job_id, self._token)
        ownership.wait_for_the_end(
            left, lambda: self.log.info("Job %s was cancelled. Its hosts are waited for", left.job_id)
        )
        if cleared and Follower(left).step() is None:
            self.log.info(
                "This try goes on with job %s of the try before. Tasks of this DAG run were cleared meanwhile, and "
                "Airflow does not tell whether this one was, with nobody there to cancel its job. If so, clear it "
                "once more", left.job_id,
            )  # fmt: skip

    def _adopts(self, kept: task_identity.Pin, place: JobLocation) -> bool:
        """Return True if a cleared task takes the value of its previous job."""
        from kinetic_orchestration.jobs.following.follower import Follower

        if self.on_clear != ADOPT or not kept.job_id or kept.place is None or kept.place[:2] != place[:2]:
            return False
        try:
            outcome = Follower(kept.place.open(kept.job_id)).step()
        except JobNotFound:  # it was never made, or is past its retention
            return False
        if outcome is None or outcome.status is not JobStatus.SUCCEEDED:
            return False
        self.log.info("The task was cleared, and has the value of job %s, which had succeeded", kept.job_id)
        return True

    def _call_back(self, kept: task_identity.Pin) -> None:
        """Cancel the job from before a clear: the process that should have done so may be dead, or may not have started
        to watch."""
        if not self.cancel_on_kill or kept.place is None or not kept.job_id:
            return
        try:
            if ownership.cancel_if_running(kept.place.open(kept.job_id), "its Airflow task was cleared"):
                self.log.info("Job %s, which the task had before it was cleared, is cancelled", kept.job_id)
        except JobNotFound:
            pass  # it was never made
        except Exception as error:  # its connection may have gone since, and the new job has to begin all the same
            self.log.warning("Job %s of before the clear could not be cancelled: %s", kept.job_id, error)

    def _outlasts(self, job: Job, place: JobLocation) -> bool:
        """Return True if a deferral is worthwhile: on this machine a job may end sooner than the deferral would
        take."""
        from airflow_kinetic.shared.configuration import defer_after
        from kinetic_orchestration.jobs.following.drivers import follow
        from kinetic_orchestration.jobs.following.follower import Follower

        follower = Follower(job)
        return (follower.step() if place.backend != LOCAL else follow(follower, timeout=defer_after())) is None

    def _defer(self, follower: Follower, place: JobLocation, began: float) -> None:
        from airflow_kinetic.triggers.kinetic import KineticJobTrigger

        now = time.time()
        limit = None if self.execution_timeout is None else self.execution_timeout.total_seconds()
        deadline = None if limit is None else began + limit
        trigger = KineticJobTrigger(
            job_id=follower.job.job_id, place=place._asdict(),
            cursor=json.loads(json.dumps(follower.cursor.to_json())), deferred=now, deadline=deadline,
            poll_interval=float(self.poll_interval), get_logs=self.get_logs, keeps=self.cancel_on_kill,
            limit=limit, heard=worker_exit.announce_exit(),
        )  # fmt: skip
        back_stop = None if deadline is None else timedelta(seconds=deadline - now + BACK_STOP)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=back_stop)

    # ---- its end -----------------------------------------------------------------------------------------------

    def _finish(self, context: Context, job: Job, outcome: Outcome, metrics: Mapping[str, float | str]) -> Any:
        from airflow_kinetic.shared.configuration import xcom_limit
        from kinetic_orchestration.jobs.following import actions
        from kinetic_orchestration.jobs.results import error_of

        if outcome.status is JobStatus.CANCELLED and not self._killed and not actions.may_begin_anew(job):
            # By a person, who does not want to see it begin again; a retry would only find it cancelled.
            raise AirflowFailException(str(error_of(job, outcome)))
        profile, curves = self._show_profile(job), self._show_curves(job)
        value, whole = value_for_xcom(job, outcome, xcom_limit())
        if not whole:
            self.multiple_outputs = False  # one URI, regardless of the function's annotation
            self.log.info(
                "The value is no small JSON and stays in the store; XCom has its URI, %s. To read it: "
                "kinetic_orchestration.attach(%r).result()", value, job.job_id,
            )  # fmt: skip
        more = {"value": "" if value is None else uri_of_result(job, outcome), "profile": profile, "curves": curves}
        self._tell_outlets(context, job, outcome, metrics, more)
        return value

    def _saying_where(self, context: Context, job: Job) -> AbstractContextManager[Ahead[object]]:
        """Report the job immediately, so that users find it while the task waits, here or deferred. Airflow's server is
        called in the background, and the block makes no other request to it.
        """
        from kinetic_orchestration.api.handle import runs

        self.log.info(
            "Job %s. It runs %s. Its log elsewhere: kinetic-orchestration logs %s", job.job_id, runs(job), job.job_id
        )
        return in_background(self._push_where, context, job)

    def _push_where(self, context: Context, job: Job) -> None:
        if self.do_xcom_push:
            context["ti"].xcom_push(key=JOB_KEY, value=job.job_id)
            context["ti"].xcom_push(key=WHERE_KEY, value=job.plan().where)

    def _show_profile(self, job: Job) -> str:
        """Log and link the location of the profile, and return it; "" if there is none."""
        from kinetic_orchestration.api.handle import profile_of

        if place := profile_of(job):
            self.log.info("The profile of job %s: %s", job.job_id, names.xprof(place))
            self.kinetic_urls = {**self.kinetic_urls, **url_of_profile(place)}
        return place

    def _show_curves(self, job: Job) -> str:
        """Log and link the picture of the job's metrics and devices, and return its location; "" if there is none."""
        from kinetic_orchestration.api.handle import JobHandle
        from kinetic_orchestration.plan.hardware.cost import times, went_to

        handle: JobHandle[Any] = JobHandle(job)
        try:
            page, cost = handle.picture_url(), handle.cost()
        except KineticError:  # it is worth no task
            return ""
        self.log.info("%s; %s", cost, times(cost))
        if told := went_to(cost):
            self.log.info("Its time went to: %s", told)
        if page:
            self.log.info("The curves of job %s, of what it reported and of its devices: %s", job.job_id, page)
            self.kinetic_urls = {**self.kinetic_urls, **url_of_curves(page)}
        return page

    def _tell_outlets(
        self, context: Context, job: Job, outcome: Outcome, metrics: Mapping[str, float | str], more: Mapping[str, str]
    ) -> None:
        from airflow.sdk import Asset

        kinds: Any = (Asset,)
        try:
            from airflow.sdk.definitions.asset import AssetRef

            kinds = (Asset, AssetRef)
        except ImportError as error:
            airflow_api.warn_missing("airflow.sdk.definitions.asset", error)
        outlets = [outlet for outlet in self.outlets if isinstance(outlet, kinds)]
        if not outlets:
            return
        plan = job.plan()
        told: dict[str, Any] = {
            "job_id": job.job_id, "accelerator": plan.slice.name, "where": plan.where, "emulated": plan.stands_in,
            "attempts": outcome.attempts,
            "output_dir": self._output(), **{name: text for name, text in more.items() if text},
            "metrics": dict(metrics),
        }  # fmt: skip
        for outlet in outlets:
            accessor = context["outlet_events"][outlet]
            accessor.extra = {**accessor.extra, **told}

    def _output(self) -> str:
        return "" if self._job is None else self._job.task().output_dir

    def _out_of_time(self, job: Job, limit: float | None) -> AirflowTaskTimeout:
        after = "" if limit is None else f" after {timedelta(seconds=limit)}"
        what = "goes on"
        if self.cancel_on_kill:
            ownership.cancel(job, "its Airflow task was out of time")
            what = "was cancelled"
        return AirflowTaskTimeout(
            f"the task was out of time{after}, its execution_timeout; job {job.job_id} {what}. "
            f"Its log: kinetic-orchestration logs {job.job_id}"
        )

    def _tell_last_lines(self, job: Job, cursor: list[Any] | None) -> None:
        """Write the lines since the trigger last read the log, up to the program's end."""
        from airflow_kinetic.shared.waiting.task_log import TaskLog
        from kinetic_orchestration.jobs.following.drivers import follow
        from kinetic_orchestration.jobs.following.follower import Follower
        from kinetic_orchestration.plan.values import Cursor

        if cursor is None:  # of an older trigger
            return
        limit = self.execution_timeout
        patience = min(LAST_LINES, limit.total_seconds() / 2) if limit is not None else LAST_LINES
        log = TaskLog(job.policy.hosts, job.job_id, lines=self.get_logs, since=time.time())
        try:
            follow(Follower(job, Cursor.from_json(cursor)), log, timeout=patience if self.cancel_on_kill else 0.0)
        except KineticError as error:  # the task is out of time all the same
            self.log.warning("The last lines of job %s could not be read: %s", job.job_id, error)
        log.end()

    @contextmanager
    def _looked_after(self, context: Context, place: JobLocation) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._job_id:
                self._give_up(context, place, self._job_id, error, at_once=self._killed or not self.durable)
            raise

    def _give_up(
        self, context: Context, place: JobLocation, job_id: str, failure: BaseException, *, at_once: bool = False
    ) -> None:
        """Fail the task though its job has not ended. The next try finds the job; after the last try, no
        process would."""
        if not self.cancel_on_kill:
            return
        goes_on = not at_once and self._is_tried_again(context, failure)
        try:
            job = place.open(job_id)
            if goes_on:
                if self.deferrable and ownership.is_owned_by(job, self._token):
                    ownership.take_ownership(job.store, job_id, self._token, within=self._handed_over(context))
            elif not self._killed or ownership.is_owned_by(job, self._token):
                ownership.cancel_if_running(job, "its Airflow task failed while it waited")
        except JobNotFound:
            pass  # it was never made
        except Exception as error:  # the error that failed the task is the one to report
            if not goes_on:
                self.log.warning("Job %s could not be cancelled, and goes on: %s", job_id, error)

    def _is_tried_again(self, context: Context, failure: BaseException) -> bool:
        """Return True if Airflow will retry the task, by the rules that Airflow applies afterwards."""
        from airflow.sdk import RetryAction

        task = context["ti"]
        if task.try_number > task.max_tries:
            return False
        if self.retry_policy is None:
            return True
        try:
            decision = self.retry_policy.evaluate(failure, task.try_number, task.max_tries, context)
        except Exception:  # then it counts as none
            return True
        return decision.action is not RetryAction.FAIL


def _origin(context: Context) -> dict[str, str]:
    """Name the try that launches a job, for `ko jobs` and `ko status`."""
    task: Any = context.get("ti")
    if task is None:
        return {}
    index = {} if task.map_index is None or task.map_index < 0 else {"map index": str(task.map_index)}
    return {
        "orchestrator": "airflow", "dag": task.dag_id, "task": task.task_id, "run": task.run_id, **index,
        "try": str(task.try_number),
    }  # fmt: skip


def _identity(deployment: str, task: Any, pinned: task_identity.Pin) -> Identity:
    index = "" if task.map_index is None or task.map_index < 0 else str(task.map_index)
    step = f"{task.dag_id}/{task.task_id}"  # both may hold dots, neither a slash
    if pinned.life:
        index = f"{index}/{pinned.life}"
    return Identity(deployment, "airflow", task.run_id, step, index, pinned.epoch)


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UsageError(f"name is {name!r}: write it with letters, digits, '-', '_' and '.' alone")
    return name
