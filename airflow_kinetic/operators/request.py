"""The job that a task's parameters ask for, once its templates are rendered."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kinetic.shared.configuration import named_owner
from airflow_kinetic.shared.location import JobLocation, listed
from airflow_kinetic.shared.parameters.arguments import plain, untemplated, with_context
from airflow_kinetic.shared.parameters.declared import options_of
from airflow_kinetic.shared.tries.task_identity import map_index
from kinetic_orchestration.errors import DataNotFound, UsageError
from kinetic_orchestration.jobs.request import Draft, draft, settings_of
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration.settings import with_project
from kinetic_orchestration.plan.declare.backend_choice import KINETIC_BACKENDS
from kinetic_orchestration.plan.declare.checks.functions import name_of
from kinetic_orchestration.plan.declare.checks.held import FOR_THOSE_THAT_CAN, unfit_by_options, without_unfit
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, ways
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, slice_of
from kinetic_orchestration.plan.values import traits_of
from kinetic_orchestration.program.trainers.chosen import variables

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from airflow_kinetic.operators.kinetic import KineticTPUOperator


def draft_of(operator: KineticTPUOperator, context: Context) -> tuple[Draft, JobLocation]:
    """Return the job with its project, and its location. The connection is opened only for Google Cloud."""
    spec = spec_of(operator, context)
    here = settings_of(spec)
    if spec.options.backend not in KINETIC_BACKENDS:  # for which the connection may name a cluster
        emulation.check_slice(spec, here)  # before the connection is opened for nothing
    location = JobLocation.of_task(operator, here, on_cluster=isinstance(spec.options.cloud, Kubernetes))
    if location.is_google and location.project:
        spec = dataclasses.replace(spec, options=dataclasses.replace(spec.options, project=location.project))
        here = with_project(here, location.project)
    if location.is_google:
        spec = _with_extras(spec, operator, location)
    if spec.options.keep is not None and not spec.options.retry.user and _is_last(context):  # none has its slice again
        spec = dataclasses.replace(spec, options=dataclasses.replace(spec.options, keep="0s"))
    if location.cluster or location.namespace:  # the connection may have named them
        here = dataclasses.replace(here, cluster=location.cluster, namespace=location.namespace)
    drafted = draft(spec, here)  # what is refused there is refused before anything is written down
    return drafted, location.on(drafted.plan.backend, here)


def spec_of(operator: KineticTPUOperator, context: Context) -> JobSpec:
    """Return the job by the task's parameters alone. Raises UsageError for a value that no job can have."""
    args = tuple(plain(list(untemplated(operator.op_args, "op_args", "[…]")), "op_args"))
    kwargs = plain(untemplated(operator.op_kwargs, "op_kwargs", "{…}"), "op_kwargs")
    env = plain(untemplated(operator.env or {}, "env", "{…}"), "env")
    untemplated(operator.labels, "labels", "{…}")
    options = check_options(options_of(operator.given(), operator.zones))
    if owner := named_owner(operator):
        options = dataclasses.replace(options, labels={"owner": owner, **(options.labels or {})})
    for variable, value in env.items():
        if not isinstance(value, str):
            raise UsageError(f"env[{variable!r}] is {value!r}: the value of a variable is text")
    meant, origin = _meant(operator, options), _origin(context)
    if (made := operator.step(options)) is not None:
        name = _checked_name(operator.name or made.name)
        return dataclasses.replace(made, name=name, env=env, meant=meant, origin=origin)
    if operator.script is not None:
        file = Path(context["dag"].fileloc).parent / operator.script
        if not file.is_file():
            raise DataNotFound(f"the script {operator.script} is not there: looked for it as {file}")
        argv = ("python", file.name, *map(str, args))
        name = _checked_name(operator.name or file.name)
        env = {**env, **variables(operator.metrics, operator.metrics_file, str(file.parent))}
        return JobSpec(name, options, argv=argv, cwd=str(file.parent), env=env, meant=meant, origin=origin)
    function = operator.python_callable
    kwargs = with_context(function, args, kwargs, context)
    name = _checked_name(operator.name) if operator.name else name_of(function)
    return JobSpec(name, options, function, args, kwargs, env=env, meant=meant, origin=origin)


def _with_extras(spec: JobSpec, operator: KineticTPUOperator, location: JobLocation) -> JobSpec:
    """Return the job with what the connection's extra says of how hardware is chosen, bought and held, where the task
    does not say it itself.
    """
    from airflow_kinetic.shared.connection import Connection

    extras = Connection(location.gcp_conn_id, location.impersonation_chain).buying()
    for name in ("capacity", "regions"):
        if isinstance(extras.get(name), (str, list, tuple)):
            extras[name] = listed(extras[name])
    options, cloud = spec.options, spec.options.cloud
    if options.capacity or _names_way(options):
        extras.pop("capacity", None)
    traits = traits_of(location.backend)
    if options.zone or options.regions or getattr(cloud, "zones", ()) or traits is None or not traits.in_zones:
        extras.pop("regions", None)
    for name in set(OF_CAPACITY) - {"capacity", "regions"}:
        if getattr(operator, name) not in (None, ""):
            extras.pop(name, None)
    if not extras:
        return spec
    defaults = {name: f"the connection {location.gcp_conn_id!r}" for name in FOR_THOSE_THAT_CAN if name in extras}
    try:
        merged = without_unfit(dataclasses.replace(options, **extras), defaults, spec.name, unfit_by_options)
        return dataclasses.replace(spec, options=check_options(merged), defaults=defaults)
    except UsageError as error:
        raise UsageError(
            f"the extra of the connection {location.gcp_conn_id!r} does not fit this task: {error}"
        ) from error


def _is_last(context: Context) -> bool:
    """Return True if each other task of the DAG that runs jobs is over when this one runs. Of a task of which there are
    several, as it is mapped, this is not known.
    """
    task, dag = context.get("ti"), context.get("dag")
    if task is None or dag is None or map_index(task) or task.task_id not in dag.task_dict:
        return False
    relatives = getattr(dag.task_dict[task.task_id], "get_flat_relative_ids", None)
    if relatives is None:
        return False
    before = relatives(upstream=True) | {task.task_id}
    others = (each for name, each in dag.task_dict.items() if name not in before)
    return not any(map(runs_jobs, others)) and all(_waits_for_all(dag.task_dict[name]) for name in before)


def _waits_for_all(task: Any) -> bool:
    """Return True if a task begins only once all tasks before it are over, by its trigger rule."""
    rule = str(getattr(task.trigger_rule, "value", task.trigger_rule))
    return rule not in ("always", "one_done", "one_failed", "one_success")


def runs_jobs(task: Any) -> bool:
    """Return True for a task of a DAG that runs jobs, also if it is mapped."""
    return bool(getattr(getattr(task, "operator_class", task), "runs_jobs", False))


def _names_way(options: Options) -> bool:
    """Return True if options besides `capacity` say how hardware is bought."""
    cloud = options.cloud
    by_cloud = getattr(cloud, "flex_start", False) or getattr(cloud, "reservation", "")
    return bool(options.spot or by_cloud) or any(slice_of(one).spot for one in ways(options))


def _meant(operator: KineticTPUOperator, options: Options) -> tuple[str, ...]:
    """Return the parameters that imply Google Cloud, by the names of the task's own parameters."""
    own = (
        ("gcp_conn_id", operator.gcp_conn_id if operator.names_connection else None),
        ("impersonation_chain", operator.impersonation_chain),
    )
    return (
        *(f"{name}={value!r}" for name, value in own if value),
        *(text.replace("project=", "project_id=") for text in emulation.kinetics_own(options)),
    )


def _origin(context: Context) -> dict[str, str]:
    """Name the try that launches a job, for `kinor jobs` and `kinor status`."""
    task = context.get("ti")
    if task is None:
        return {}
    index = map_index(task)
    return {
        "orchestrator": "airflow", "dag": task.dag_id, "task": task.task_id, "run": task.run_id,
        **({"map index": index} if index else {}), "try": str(task.try_number),
    }  # fmt: skip


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UsageError(f"name is {name!r}: write it with letters, digits, '-', '_' and '.' alone")
    return name
