"""The operator of a job: its parameters, and what Airflow calls: executing, resuming, killing.

This module is imported wherever a DAG file is parsed, so the modules that run a job are imported only by its worker:
`request` turns the parameters into a job, `task_try` launches or finds it, `execution` waits for it, and `report` shows
its outcome.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kinetic._compat import BaseOperator, TaskDeferralError, TaskDeferralTimeout, conf, internals
from airflow_kinetic.links.kinetic import (
    KineticConsoleLink,
    KineticCurvesLink,
    KineticJobLink,
    KineticLogLink,
    KineticProfileLink,
    ShowsLinks,
)
from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from airflow_kinetic.shared.parameters.declared import check, declared_with
from kinetic_orchestration.plan.declare.checks.functions import check_function
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, Choice, form_of
from kinetic_orchestration.plan.declare.cloud import CloudOptions, refuse_gone
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.declare.spec import DEFAULT_ACCELERATOR

if TYPE_CHECKING:
    import jinja2

    from airflow_kinetic._compat import Context, OperatorPartial
    from airflow_kinetic.operators.task_try import TaskTry
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.program.trainers.parsers import Parser


class KineticTPUOperator(ShowsLinks, BaseOperator):
    """Run a function or a script on an accelerator. Deferred, it holds no worker, and its hosts' lines are in its log.

    :param python_callable: the function; one decorated by `kinetic.run` is taken without its own options
    :param script: instead of a function, a Python file, by its path from the DAG file's folder (templated). It runs
        with the project around it and has no value
    :param metrics: how the numbers of a script are read from its output, as in ``kinetic_orchestration.command``:
        ``"maxtext"``, ``"torchrun"``, ``"transformers"``, ``"lightning"``, ``"module:name"`` or a function
    :param metrics_file: the file from which they are read, by its path from the script's folder (templated)
    :param op_args: the function's positional arguments, or the script's (templated)
    :param op_kwargs: the function's keyword arguments (templated)
    :param accelerator: such as ``v5e-8``, or GPUs such as ``l4``; a list if any of several will do, of names, choices
        or mappings of a choice's fields. A text may be such a list, too, in JSON or with commas (templated)
    :param capacity: ways of buying, in the order in which they are tried, in place of `spot`: ``"spot"``,
        ``"on-demand"``, ``"flex-start"``, ``"reservation"``; by default the connection's (templated)
    :param regions: regions of Google Cloud, by the same rule, in place of `zones` (templated)
    :param by: what decides among several choices: ``"order"``, ``"price"`` or ``"start"``; by default the connection's,
        else the order (templated)
    :param race: how many places are asked at once, 2 or 3; by default the connection's, else one (templated)
    :param keep: how long the slice stays warm for the next task with `keep`, such as ``"10m"``; ``"0s"`` takes a warm
        slice and leaves none; by default the connection's (templated)
    :param priority: where chips are shared, jobs of a higher one have their turn first; by default the connection's,
        else as set for Airflow (templated)
    :param reshard: an attempt may go on from a checkpoint of another number of hosts or devices; by default the
        connection's (templated)
    :param global_batch: samples of one step on all hosts together; by default the connection's (templated)
    :param name: the job's name; by default that of its function or script (templated)
    :param env: variables of the program, visible to all readers of the store: secrets go in `secrets` (templated)
    :param gcp_conn_id: the connection to Google Cloud, ``google_cloud_default`` if none is named. A job on this machine
        needs none, and a task that names one is not emulated because a store is missing (templated)
    :param impersonation_chain: the service account to act as, or a list that ends with it (templated)
    :param project_id: by default the connection's (templated)
    :param cluster: the cluster of the backends `kubernetes` (a context of the kubeconfig) and `gke`; by default, with a
        store in a bucket, the connection's, else as set for Airflow (templated)
    :param namespace: the namespace in it, by the same rule (templated)
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
        "impersonation_chain", "store", "deployment", "cluster", "namespace", "output_dir", "partition_key",
        "container_image", "labels", "profile", "metrics_file", *OF_CAPACITY,
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py", "env": "json"}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    operator_extra_links = (
        KineticJobLink(), KineticLogLink(), KineticConsoleLink(), KineticCurvesLink(), KineticProfileLink(),
    )  # fmt: skip
    ui_color = "#e8f0fe"
    runs_jobs: ClassVar[bool] = True  # by which a task knows whether it is the last of its kind

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any] | None = None,
        script: str | None = None,
        metrics: str | Parser | type | None = None,
        metrics_file: str | None = None,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        accelerator: str | Choice | Sequence[str | Choice] = DEFAULT_ACCELERATOR,
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
        on_clear: str = "rerun",
        wait: bool = True,
        zone: str | None = None,
        zones: str | Sequence[str] = (),
        spot: bool = False,
        capacity: str | Sequence[str] | None = None,
        regions: str | Sequence[str] | None = None,
        by: str | None = None,
        race: int | str | None = None,
        keep: float | str | None = None,
        priority: int | str | None = None,
        reshard: bool | str | None = None,
        global_batch: int | str | None = None,
        backend: str | None = None,
        store: str | None = None,
        deployment: str | None = None,
        cluster: str | None = None,
        namespace: str | None = None,
        cloud: CloudOptions | None = None,
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
        self.script, self.metrics, self.metrics_file = script, metrics, metrics_file
        self.op_args: Collection[Any] = op_args or []
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.accelerator = form_of(accelerator)  # JSON, so that it is rendered, and stored with its DAG
        self.name, self.env, self.labels, self.partition_key = name, env, labels, partition_key
        self.gcp_conn_id = gcp_conn_id or DEFAULT_CONNECTION
        self.names_connection = gcp_conn_id is not None  # then the task means Google Cloud
        self.impersonation_chain, self.project_id = impersonation_chain, project_id
        self.deferrable, self.durable, self.wait, self.get_logs = deferrable, durable, wait, get_logs
        self.cancel_on_kill, self.poll_interval, self.on_clear = cancel_on_kill, poll_interval, on_clear
        self.zone, self.zones, self.spot, self.capacity, self.regions = zone, zones, spot, capacity, regions
        self.by, self.race, self.keep = by, race, keep
        self.priority, self.reshard, self.global_batch = priority, reshard, global_batch
        self.backend, self.store, self.deployment, self.cloud = backend, store, deployment, cloud
        self.cluster, self.namespace, self.container_image = cluster, namespace, container_image
        self.limits, self.retry, self.on_conflict = limits, retry, on_conflict
        self.requirements, self.python, self.first_party = requirements, python, first_party
        self.capture_env_vars, self.secrets, self.volumes = capture_env_vars, secrets, volumes
        self.output_dir, self.distributed, self.profile = output_dir, distributed, profile
        self.keras_backend, self.processes = keras_backend, processes
        self.killed = False
        self._try: TaskTry | None = None  # in a worker
        check({**self.given(), "outlets": self.outlets}, self.template_fields)

    def given(self) -> dict[str, Any]:
        """Return the values of the parameters that this class declares."""
        return {name: getattr(self, name) for name in self.declared()}

    def step(self, options: Options) -> JobSpec | None:
        """Return the job of a step that the core makes of this task's parameters; None for one of a function or a
        script.
        """
        del options
        return None

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial:
        """Like `partial` of any operator, but `expand` also reports errors in the arguments while the DAG is parsed."""
        made = super().partial(**given)
        try:
            from airflow_kinetic.shared.parameters.mapping import CheckedPartial
        except ImportError as error:
            internals.warn_missing("airflow.sdk.definitions.mappedoperator", error)
            return made
        return CheckedPartial.of(made, cls.declared())

    @classmethod
    def declared(cls) -> Mapping[str, Any]:
        """Return the parameters of a job that a DAG file may give, each with its default."""
        return declared_with(KineticTPUOperator)

    # ---- what Airflow calls ------------------------------------------------------------------------------------

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the template fields, without those of this operator that are empty: Airflow would take a millisecond
        for each of them, and its server would store it.
        """
        ours = KineticTPUOperator.template_fields
        self.template_fields = [name for name in self.template_fields if name not in ours or getattr(self, name)]
        super().render_template_fields(context, jinja_env)

    def execute(self, context: Context) -> Any:
        from airflow_kinetic.operators.execution import execute

        return execute(self, self.own_try(), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Resume a deferred task when its job has ended or the task has timed out."""
        from airflow_kinetic.operators.execution import complete

        return complete(self, self.own_try(), context, event)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            from airflow_kinetic.operators.execution import fail

            fail(self, self.own_try(), context, error)
            raise

    def on_kill(self) -> None:
        self.killed = True
        if self.cancel_on_kill and self._try is not None:
            self._try.kill()

    def get_openlineage_facets_on_start(self) -> Any:
        """Buckets and folders that the job will read, where Airflow has OpenLineage."""
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Buckets and folders that the job read and wrote, and its tags, where Airflow has OpenLineage."""
        del task_instance
        return self._lineage()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """The same, with the reason, where Airflow has OpenLineage."""
        del task_instance
        return self._lineage(failed=True)

    def _lineage(self, *, failed: bool = False) -> Any:
        from airflow_kinetic.shared.outcome import lineage_of

        own = self._try
        given = [self.op_args, self.op_kwargs, self.volumes or {}]
        return lineage_of(given, None if own is None else own.job, "" if own is None or not failed else own.failure)

    def own_try(self) -> TaskTry:
        """Return this process's try of the task."""
        from airflow_kinetic.operators.task_try import TaskTry

        if self._try is None:
            self._try = TaskTry(self)
        return self._try
