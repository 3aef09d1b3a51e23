"""One Airflow task, one job: launched by a worker, waited for there or on a triggerer, its value handed on.

Responsible for who the task is, for what Airflow does to it (deferring, resuming, killing) and for what goes to
XCom. Everything about the job itself is the core's.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from kinetic_orchestration.data import Data
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.identity import Identity
from kinetic_orchestration.spec import (
    DEFAULT_ACCELERATOR,
    JobSpec,
    Options,
    TpuVm,
    check_function,
    check_options,
    name_of,
)
from kinetic_orchestration.values import Limits, Outcome, Retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from kinetic_orchestration.act import Job

# What a task's context has that means the same on another machine. The rest is Airflow's own objects.
TRAVELLING = frozenset({"ds", "ds_nodash", "run_id", "task_instance_key_str", "ts", "ts_nodash", "ts_nodash_with_tz"})


class KineticTPUOperator(BaseOperator):
    """Run a function on an accelerator. Deferred, it holds no worker, and its hosts' lines are in the task's log.

    :param python_callable: the function; one decorated by `kinetic.run` is taken without its own options
    :param op_args: its positional arguments (templated)
    :param op_kwargs: its keyword arguments (templated)
    :param accelerator: such as ``v5e-8`` (templated)
    :param deferrable: wait on a triggerer instead of on a worker
    :param durable: a retry finds the job of the try before, if it lives or succeeded, instead of a second one
    :param cancel_on_kill: the job ends when the task is cleared, marked or stopped by somebody

    All other parameters are those of `kinetic_orchestration.run`. In a deferred task `execution_timeout`, which
    Airflow does not apply there, is the job's `limits.total` unless that is given.
    """

    template_fields: Sequence[str] = (
        "op_args", "op_kwargs", "accelerator", "project_id", "zones", "store", "deployment", "output_dir", "labels",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        accelerator: str = DEFAULT_ACCELERATOR,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        durable: bool = True,
        cancel_on_kill: bool = True,
        project_id: str | None = None,
        zones: Sequence[str] = (),
        spot: bool = False,
        backend: str | None = None,
        store: str | None = None,
        deployment: str | None = None,
        cloud: TpuVm | None = None,
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
        labels: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = check_function(python_callable)
        self.op_args: Collection[Any] = op_args or []
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.accelerator = accelerator
        self.deferrable = deferrable
        self.durable = durable
        self.cancel_on_kill = cancel_on_kill
        self.project_id = project_id
        self.zones = zones
        self.spot = spot
        self.backend = backend
        self.store = store
        self.deployment = deployment
        self.cloud = cloud
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
        self.labels = labels
        self._job: Job | None = None
        self._asked: tuple[JobSpec, Identity] | None = None
        options = self._options()
        check_options(
            options if is_final(accelerator) else dataclasses.replace(options, accelerator=DEFAULT_ACCELERATOR)
        )

    def execute(self, context: Context) -> Any:
        from airflow_kinetic.task_log import TaskLog
        from kinetic_orchestration.follow import Follower, follow
        from kinetic_orchestration.launch import launch

        spec = self._spec(context)
        identity = self._identity(spec, context)
        self._asked = (spec, identity) if identity is not None else None
        self._job = job = launch(spec, identity)
        self.log.info("Job %s. Its log elsewhere: kinetic-orchestration logs %s", job.job_id, job.job_id)
        follower, emit = Follower(job), TaskLog(job.policy.hosts)
        outcome = follower.step(emit)
        if outcome is None and self.deferrable:
            self._defer(job, follower.cursor.to_json())
        outcome = outcome or follow(follower, emit)
        assert outcome is not None  # no timeout and no stop were given
        return self._finish(job, outcome)

    def execute_complete(self, context: Context, event: dict[str, str]) -> Any:
        """Where a deferred task goes on: with its job ended, by whatever way."""
        from airflow_kinetic.triggers.kinetic import open_job
        from kinetic_orchestration.follow import Follower, follow

        del context
        self._job = job = open_job(**event)
        outcome = follow(Follower(job))
        assert outcome is not None
        return self._finish(job, outcome)

    def on_kill(self) -> None:
        from airflow_kinetic.triggers.kinetic import cancel
        from kinetic_orchestration.launch import find

        if not self.cancel_on_kill:
            return
        job = self._job or (find(*self._asked) if self._asked is not None else None)  # killed while it was launched
        if job is not None:
            cancel(job, "its Airflow task was killed")

    def _options(self) -> Options:
        cloud = self.cloud
        if self.zones:
            cloud = dataclasses.replace(cloud or TpuVm(), zones=self.zones)
        limits = self.limits
        if self.deferrable and self.execution_timeout is not None and limits.total is None:
            limits = dataclasses.replace(limits, total=self.execution_timeout.total_seconds())
        return Options(
            accelerator=self.accelerator, backend=self.backend, project=self.project_id, spot=self.spot, cloud=cloud,
            limits=limits, retry=self.retry, requirements=self.requirements, python=self.python,
            first_party=self.first_party, capture_env_vars=self.capture_env_vars, secrets=self.secrets,
            volumes=self.volumes, output_dir=self.output_dir, store=self.store, deployment=self.deployment,
            distributed=self.distributed, labels=self.labels or {},
        )  # fmt: skip

    def _spec(self, context: Context) -> JobSpec:
        function, args = self.python_callable, tuple(self.op_args)
        kwargs = with_context(function, args, self.op_kwargs, context)
        return JobSpec(name_of(function), self._options(), function, args, kwargs)

    def _identity(self, spec: JobSpec, context: Context) -> Identity | None:
        """The same over automatic retries, another after every clear, which raises the number of tries."""
        from kinetic_orchestration.launch import settings_for

        if not self.durable:
            return None
        task = context["ti"]
        index = "" if task.map_index is None or task.map_index < 0 else str(task.map_index)
        epoch = task.max_tries - (self.retries or 0)
        step = f"{task.dag_id}/{task.task_id}"  # both may hold dots, neither a slash
        return Identity(settings_for(spec).deployment, "airflow", task.run_id, step, index, epoch)

    def _defer(self, job: Job, cursor: list[Any]) -> None:
        from airflow_kinetic.triggers.kinetic import KineticJobTrigger

        plan = job.plan()
        trigger = KineticJobTrigger(
            job_id=job.job_id, store=plan.store, deployment=plan.deployment, backend=plan.backend,
            cursor=json.loads(json.dumps(cursor)), deferred=time.time(), cancel_on_kill=self.cancel_on_kill,
        )  # fmt: skip
        self.defer(trigger=trigger, method_name="execute_complete")

    def _finish(self, job: Job, outcome: Outcome) -> Any:
        from airflow_kinetic.xcom import value_for_xcom

        value, whole = value_for_xcom(job, outcome)
        if not whole:
            self.multiple_outputs = False  # one URI, whatever the function was annotated with
            self.log.info(
                "The value is no small JSON and stays in the store; XCom has its URI, %s. To read it: "
                "kinetic_orchestration.attach(%r).result()", value, job.job_id,
            )  # fmt: skip
        return value


def is_final(value: Any) -> bool:
    """Whether a templated field is known while the DAG is parsed."""
    return isinstance(value, str) and "{{" not in value and "{%" not in value


def with_context(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments, with what the function asks of the task's context by name, as other tasks may."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables written in C have none
        return dict(kwargs)
    given = signature.bind_partial(*args, **kwargs).arguments
    found = dict(kwargs)
    for name, parameter in signature.parameters.items():
        if name in given or name not in KNOWN_CONTEXT_KEYS:
            continue
        if name in TRAVELLING and name in context:
            found[name] = context[name]
        elif parameter.default is inspect.Parameter.empty:
            raise UsageError(
                f"{name_of(function)}() asks for {name!r} of the task's context, which cannot travel to a host. Pass "
                "what it needs of it as an argument: templates are rendered in op_args and op_kwargs."
            )
    return found
