"""The undocumented names of Dagster that this package uses. `PRIVATE` lists all of them with the feature that each
serves: if a version has moved one, that is logged once per process, and everything else continues to work.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.messages import warn_once

Context = Any  # AssetExecutionContext, OpExecutionContext, or what build_asset_context() makes of them

_EVENTS, _COMPUTE_LOGS = "dagster._core.events", "dagster._core.storage.compute_log_manager"
_ORIGINS, _GRAPH = "dagster._core.remote_origin", "dagster._core.definitions.assets.graph"
INTERRUPTS = "dagster._utils.interrupts:capture_interrupts"
CURRENT = "dagster._core.execution.context.compute:current_execution_context"
AS_RESOURCE = "dagster._core.definitions.resource_annotation:TreatAsResourceParam"
PIPES_ERROR = "dagster._core.errors:DagsterPipesExecutionError"
LEFT_BY = "dagster._core.execution.plan.state:KnownExecutionState.build_resume_retry_reexecution"
PLAN_OF_RUN = "dagster:DagsterInstance.get_execution_plan_snapshot"
STEP_DEPS = "dagster._core.snap.execution_plan_snapshot:ExecutionPlanSnapshot.step_deps"
STEPS_TO_RUN = "dagster._core.snap.execution_plan_snapshot:ExecutionPlanSnapshot.step_keys_to_execute"
HANDLE = "dagster._core.execution.plan.step:ExecutionStep.node_handle"
NODE = "dagster:JobDefinition.get_node"
KNOWN_STATE = "dagster._core.snap.execution_plan_snapshot:ExecutionPlanSnapshot.initial_known_state"
PARENT_STATE = "dagster._core.execution.plan.state:KnownExecutionState.parent_state"
OF_ASSETS = "dagster:AssetExecutionContext.op_execution_context"
LAUNCHER = "dagster:DagsterInstance.run_launcher"
ENGINE_EVENT = f"{_EVENTS}:EngineEventData"
ENTRIES = f"{_EVENTS}:EngineEventData.metadata"
OBSERVED = f"{_EVENTS}:AssetObservationData.asset_observation"
REPORT = "dagster:DagsterInstance.report_engine_event"
FROM_JOB = f"{_EVENTS}:DagsterEvent.from_job"
LOG_DATA = f"{_EVENTS}:ComputeLogsCaptureData"
LOG_MANAGER = "dagster:DagsterInstance.compute_log_manager"
LOG_KEY = f"{_COMPUTE_LOGS}:ComputeLogManager.build_log_key_for_run"
LOG_STREAM = f"{_COMPUTE_LOGS}:ComputeLogManager.open_log_stream"
IO_TYPE = f"{_COMPUTE_LOGS}:ComputeIOType"
UPLOADS = "dagster._core.storage.cloud_storage_compute_log_manager:CloudStorageComputeLogManager._poll_for_local_upload"
COMPLETE = "dagster._core.storage.local_compute_log_manager:LocalComputeLogManager.complete_artifact_path"
DEPRECATED = "dagster._annotations:get_deprecated_params"
HAS_DEPRECATED = "dagster._annotations:has_deprecated_params"
NO_VALUE = "dagster._core.definitions.utils:NoValueSentinel"
IS_REQUIRED = "dagster._core.definitions.output:OutputDefinition._is_required"
ORIGIN = "dagster:DagsterRun.remote_job_origin"
REPOSITORY = f"{_ORIGINS}:RemoteJobOrigin.repository_origin"
LOCATION = f"{_ORIGINS}:RemoteRepositoryOrigin.code_location_origin"
LOCATION_NAME = f"{_ORIGINS}:CodeLocationOrigin.location_name"
OF_SENSOR = "dagster:SensorEvaluationContext.code_location_origin"
INFO = "dagster:DagsterRun.dagster_execution_info"
IMPLICIT_JOB = "dagster:RepositoryDefinition.get_implicit_job_def_for_assets"
PART_OF_JOB = "dagster:JobDefinition.get_subset"
ASSET_LAYER = "dagster:JobDefinition.asset_layer"
OF_LAYER = "dagster._core.definitions.assets.job.asset_layer:AssetLayer.selected_asset_keys"
GRAPH = "dagster:RepositoryDefinition.asset_graph"
RESOLVED = "dagster:AssetSelection.resolve"
CHILDREN = f"{_GRAPH}.asset_graph:AssetNode.child_keys"
CHECKS = f"{_GRAPH}.base_asset_graph:BaseAssetGraph.get_check_keys_for_assets"
STEP_CONTEXT = "dagster:OpExecutionContext.get_step_execution_context"
STEP = "dagster._core.execution.context.system:StepExecutionContext.step"
RESOLVING = "dagster:ComponentLoadContext.from_resolution_context"
MODULE_PATH = "dagster:ComponentLoadContext.defs_module_path"
MODULE_NAME = "dagster:ComponentLoadContext.defs_module_name"
REFERENCE = "dagster:LocalFileCodeReference"

_WHOLE_NAME = "a component's function needs its whole name, without a leading dot"
_SERVES: Mapping[str, tuple[str, ...]] = {  # what is lost, without any of these names
    "a second signal may end a terminated step before it has cancelled its jobs; the reaper ends them": (INTERRUPTS,),
    "run(), submit() and map() do not find their step by themselves: give them context=context": (CURRENT,),
    "annotate the client as dagster.ResourceParam[PipesKineticClient]": (AS_RESOURCE,),
    "a Pipes program that failed raises dagster.Failure, and no DagsterPipesExecutionError": (PIPES_ERROR,),
    "a run that ReexecutionOptions.from_failure made starts new jobs; one from the page finds its own still": (
        LEFT_BY, PLAN_OF_RUN, KNOWN_STATE, PARENT_STATE,
    ),
    "assets may be warned of by what they share with ops": (OF_ASSETS,),
    "what would end with a container is refused by the executor alone, and not by the run's launcher": (LAUNCHER,),
    "the ticket of a detached asset is an observation of it, and no event of the engine": (ENGINE_EVENT, REPORT),
    "the completion sensor does not find what detached assets have submitted, and says so of each run": (
        ENTRIES, OBSERVED,
    ),
    "hosts have no logs of their own, and their lines are in the step's own output alone": (
        FROM_JOB, LOG_DATA, LOG_MANAGER, LOG_KEY, LOG_STREAM, IO_TYPE,
    ),
    "with a log manager in a cloud, the hosts' own logs are shown when they end": (UPLOADS,),
    "the page waits for more of the hosts' own logs when they have ended": (COMPLETE,),
    "a keyword that Dagster does not show any more may be taken for a misspelt one": (DEPRECATED, HAS_DEPRECATED),
    "whether a result of a component has a value is told by the name of its class": (NO_VALUE,),
    "the first run of a detached asset with checks is called failed; its sensor finishes it all the same": (
        IS_REQUIRED,
    ),
    "a completion sensor looks at the runs of all code locations": (
        ORIGIN, REPOSITORY, LOCATION, LOCATION_NAME, OF_SENSOR,
    ),
    "labels name run and job, and neither partition nor code location": (INFO,),
    "a config that a changed asset does not take any more fails a tick of the completion sensor": (
        IMPLICIT_JOB, PART_OF_JOB,
    ),
    "a completion sensor takes the jobs of all assets, whatever its target is": (GRAPH, RESOLVED),
    "what a job was to make after a detached asset is left to automation conditions": (
        ASSET_LAYER, OF_LAYER, GRAPH, CHILDREN,
    ),
    "the config of a run that finishes a detached asset lacks that of checks which are steps of their own": (CHECKS,),
    "a step goes by the name of its op, and hosts have no logs of their own": (STEP_CONTEXT,),
    "a step goes by the name of its op": (STEP,),
    _WHOLE_NAME: (RESOLVING, MODULE_PATH, MODULE_NAME),
    "pages do not lead to the code of an asset": (REFERENCE,),
    "the last step of a run leaves a warm slice, too, which the reaper sensor or its time ends": (
        PLAN_OF_RUN, STEP_DEPS, STEPS_TO_RUN, HANDLE, NODE,
    ),
}  # fmt: skip
PRIVATE: Mapping[str, str] = {
    where: "; ".join(lost for lost, wheres in _SERVES.items() if where in wheres)
    for each in _SERVES.values()
    for where in each
}


def _private(where: str) -> Any:
    """The object at this path; None, with a warning, if it has moved."""
    module, _, path = where.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return _gone(where)


def _of(owner: Any, *wheres: str) -> Any:
    """Follow the last names of `wheres` from `owner` on. Returns None at the first value that is None, or, with a
    warning, at the first name that is missing.
    """
    for where in wheres:
        if owner is None:
            return None
        try:
            owner = getattr(owner, where.rpartition(".")[2])
        except AttributeError:
            return _gone(where)
    return owner


def _gone(where: str) -> None:
    warn_once(
        f"Dagster {dg.__version__} has no {where.replace(':', '.')} any more, which this version of dagster_kinetic "
        f"uses: {PRIVATE[where]}. Everything else goes on"
    )


uninterrupted: Callable[[], contextlib.AbstractContextManager[Any]] = _private(INTERRUPTS) or contextlib.nullcontext
_current = _private(CURRENT)


def current() -> Context:
    """The context of the step whose code this thread runs; None where there is no step."""
    return None if _current is None else _current.get()


RESUME_TAGS = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")  # of a job's run, of a run of assets
OUTPUT = "result"  # the name that Dagster gives an only output


def is_resumed(run: dg.DagsterRun, instance: dg.DagsterInstance) -> bool:
    """Return True if a run continues where its parent failed: by "Re-execute from failure" in the page, or by
    `ReexecutionOptions.from_failure`, which sets no tag: its steps are those that Dagster would choose for it.
    """
    if not run.parent_run_id:
        return False
    if any(run.tags.get(tag) == "true" for tag in RESUME_TAGS):
        return True
    if not run.step_keys_to_execute or _of(run, ORIGIN) is not None:  # chosen in the page
        return False
    if _private(PLAN_OF_RUN) is None:
        return False
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id or "")
    if _of(plan, KNOWN_STATE, PARENT_STATE) is None:  # it starts from the beginning
        return False
    parent = instance.get_run_by_id(run.parent_run_id)
    return parent is not None and set(run.step_keys_to_execute) == set(_left_by(parent, instance))


def _left_by(run: dg.DagsterRun, instance: dg.DagsterInstance) -> Collection[str]:
    """The steps with which a re-execution from the failure of a run begins."""
    chosen = _private(LEFT_BY)
    if chosen is None or run.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        return ()
    steps: Collection[str] = chosen(instance, run)[0]
    return steps


def runs_at(instance: dg.DagsterInstance, step: str, root: str) -> Iterator[dg.DagsterRun]:
    """The active runs of a family at a step, of which `root` is the first, without terminated ones."""
    of_step = {
        dg.DagsterEventType.STEP_START: True,
        dg.DagsterEventType.STEP_RESTARTED: True,
        dg.DagsterEventType.STEP_UP_FOR_RETRY: True,
        dg.DagsterEventType.STEP_SUCCESS: False,
        dg.DagsterEventType.STEP_FAILURE: False,
    }
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        if root not in (run.run_id, run.root_run_id):
            continue
        entries = instance.all_logs(run.run_id, of_type=set(of_step))
        events = [event for entry in entries if (event := entry.dagster_event) is not None and event.step_key == step]
        if events and of_step[events[-1].event_type]:
            yield run


def op_context(context: Context) -> Any:
    """The op's context, which assets and ops share; an asset's own context warns about some of its attributes."""
    if not isinstance(context, dg.AssetExecutionContext | dg.AssetCheckExecutionContext):
        return context
    return _of(context, OF_ASSETS) or context


def deployment_name() -> str:
    """The name in Dagster+ of the deployment, or branch deployment, of this process."""
    return os.environ.get("DAGSTER_CLOUD_DEPLOYMENT_NAME", "")


def is_contained(context: Context) -> bool:
    """Return True if local files and processes of the run end with it: its launcher, or its executor, makes
    containers."""
    kinds = {type(_of(context.instance, LAUNCHER)).__name__, _executor_of(context)}
    return any(word in kind for kind in kinds for word in ("K8s", "k8s", "Docker", "docker", "Ecs", "ecs", "CloudUser"))


def _executor_of(context: Context) -> str:
    return "" if is_direct(context) else str(op_context(context).job_def.executor_def.name)


def _step_of(context: Context) -> Any:
    """The step's own context; None in a test that has no step."""
    found = None if is_direct(context) else _of(op_context(context), STEP_CONTEXT)
    return None if found is None else found()


def code_references(file: str, line: int) -> Mapping[str, Any]:
    """The metadata by which Dagster shows where the code of an asset is; nothing where it has no such metadata."""
    if (made := _private(REFERENCE)) is None:
        return {}
    with warnings.catch_warnings(action="ignore"):  # they are "beta", like all of Dagster's code references
        reference = made(file_path=file, line_number=line)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def hidden_keywords(decorator: Callable[..., Any]) -> set[str]:
    """Deprecated keywords that a decorator of Dagster still accepts and does not show."""
    has, of = _private(HAS_DEPRECATED), _private(DEPRECATED)
    return set(of(decorator)) if has is not None and of is not None and has(decorator) else set()


def op_config(context: Context) -> Any:
    """The run's config for a config_schema; None if there is none, as in a test without a context."""
    return None if context is None else op_context(context).op_config


def run_id(context: Context) -> str:
    return str(op_context(context).run_id)


def is_direct(context: Context) -> bool:
    """Return True if the step is called as a function in a test, or there is no step: it belongs to no run."""
    return context is None or run_id(context) == "EPHEMERAL"


def step_key(context: Context) -> str:
    step = _of(_step_of(context), STEP)
    return str(op_context(context).op_handle) if step is None else str(step.key)


def is_last_with(context: Context, resource: str) -> bool:
    """Return True if each other step of the run that requires the resource comes before this one, by the plan of the
    run. A step of which there may be several, by dynamic outputs, is none of which this is known.
    """
    if is_direct(context) or not context.run.execution_plan_snapshot_id or _private(PLAN_OF_RUN) is None:
        return False
    plan = context.instance.get_execution_plan_snapshot(context.run.execution_plan_snapshot_id)
    own, needed = step_key(context), _of(plan, STEP_DEPS)
    handle, node_of = _of(_step_of(context), STEP, HANDLE), _of(op_context(context).job_def, NODE)
    if needed is None or own not in needed or handle is None or node_of is None:
        return False
    before = {own}
    found = [own]
    while found:
        found = [key for each in found for key in needed.get(each, ()) if key not in before]
        before.update(found)
    others = set(context.run.step_keys_to_execute or _of(plan, STEPS_TO_RUN) or needed) - before
    handles = (type(handle).from_string(key.partition("[")[0]) for key in others)
    return not any(resource in node_of(each).definition.required_resource_keys for each in handles)


def execution_info(context: Context) -> Mapping[str, str]:
    """The labels that Dagster itself sets on resources of its runs, as on the pods of Kubernetes."""
    run = context.run
    found = _of(run, INFO)
    return found if found is not None else {"dagster/run-id": run.run_id, "dagster/job": run.job_name}


def specs_of(context: Context) -> list[dg.AssetSpec]:
    """Specs of the assets that the step is to make; an op has none."""
    step = op_context(context)  # that of an asset check knows of no assets by itself
    if not step.has_assets_def:
        return []
    wanted = selected_assets(context)
    return sorted((spec for spec in step.assets_def.specs if spec.key in wanted), key=lambda spec: spec.key)


def partition_of(context: Context) -> str:
    """The partition's key, or the first and the last of a range in one run; "" where there are none."""
    if context.has_partition_key:
        return str(context.partition_key)
    if context.has_partition_key_range:
        first, last = context.partition_key_range
        return str(first) if first == last else f"{first}...{last}"
    return ""


if TYPE_CHECKING:

    class TreatAsResourceParam:
        """Dagster's marker for classes whose parameters are resources."""

    class PipesExecutionError(Exception):
        """Dagster's own of a Pipes session."""
else:
    TreatAsResourceParam = _private(AS_RESOURCE) or type("TreatAsResourceParam", (), {})
    PipesExecutionError = _private(PIPES_ERROR) or Exception


def selected_assets(context: Context) -> Collection[dg.AssetKey]:
    """The assets that this run of the step is to make; in a test, all of them."""
    if is_direct(context):
        return set(context.assets_def.keys)
    return set(op_context(context).selected_asset_keys)


def log_event(context: Context, message: str, entries: Mapping[str, str]) -> None:
    """Write an event of this step, with text entries, into the log of its run. This is not possible from outside the
    run."""
    made, report = _private(ENGINE_EVENT), _of(context.instance, REPORT)
    if made is not None and report is not None:
        report(message, context.run, made(metadata=dict(entries)), step_key=step_key(context))
        return
    for key in sorted(selected_assets(context))[:1]:
        context.log_event(dg.AssetObservation(key, description=message, metadata=dict(entries)))


_WITH_ENTRIES = {dg.DagsterEventType.ENGINE_EVENT, dg.DagsterEventType.ASSET_OBSERVATION}


def logged_events(instance: dg.DagsterInstance, run: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The step, and the entries, of each event that `log_event` has written into the log of a run, the oldest first."""
    cursor: str | None = None
    while True:
        page = instance.get_records_for_run(run, cursor, of_type=_WITH_ENTRIES)
        for record in page.records:
            event = record.event_log_entry.dagster_event
            if event is None or event.event_specific_data is None:
                continue
            if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
                metadata = getattr(_of(event.event_specific_data, OBSERVED), "metadata", None)
            else:
                metadata = _of(event.event_specific_data, ENTRIES)
            if metadata:
                yield event.step_key or "", {name: entry.value for name, entry in metadata.items()}
        if not page.has_more:
            return
        cursor = page.cursor


@contextlib.contextmanager
def captured_log(context: Context, name: str, key: str) -> Iterator[Callable[[bytes], object] | None]:
    """Open a separate captured log with this name in the menu of the run's page; the result writes whole lines
    immediately.

    None if Dagster lacks it. One stream only: log managers in a cloud store both when either is closed.
    """
    step = _step_of(context)
    manager = None if step is None else _of(context.instance, LOG_MANAGER)
    row, data, kinds, *ways = (_private(where) for where in (FROM_JOB, LOG_DATA, IO_TYPE, LOG_STREAM, LOG_KEY))
    if manager is None or None in (row, data, kinds, *ways):
        yield None
        return
    log_key = manager.build_log_key_for_run(run_id(context), key)
    stream = manager.open_log_stream(log_key, kinds.STDOUT)
    with contextlib.ExitStack() as stack:
        uploading = getattr(manager, "_poll_for_local_upload", None)  # log managers in a cloud, if so configured
        if uploading is not None:
            stack.enter_context(uploading(log_key))
        opened = stack.enter_context(stream)
        if opened is None:  # nothing is captured in this deployment
            yield None
            return
        # The row in the list of events that the log belongs to: Dagster's own words for it name a process.
        row(
            dg.DagsterEventType.LOGS_CAPTURED,
            step,
            message=f"Capturing the log of {name}.",
            event_specific_data=data(step_keys=[name], file_key=log_key[-1]),
        )
        raw = getattr(opened, "buffer", opened)

        def write(text: bytes) -> None:
            raw.write(text)
            raw.flush()

        yield write
    completed = getattr(manager, "complete_artifact_path", None)  # it marks a local log as complete
    if uploading is None and completed is None:
        _gone(UPLOADS)
        _gone(COMPLETE)
    if completed is not None:
        with contextlib.suppress(OSError), open(completed(log_key), "ab"):  # noqa: PTH123
            pass


def module_of_component(context: Any) -> str:
    """The module that a component's folder is, for names that begin with a dot."""
    found = _private(RESOLVING)
    loading = None if found is None else found(context)
    folder, name = _of(loading, MODULE_PATH), _of(loading, MODULE_NAME)
    if loading is None or folder is None or name is None:
        raise UsageError(_WHOLE_NAME)
    return ".".join([str(name), *loading.path.relative_to(folder).parts])


def has_value(result: dg.MaterializeResult[Any]) -> bool:
    sentinel = _private(NO_VALUE)
    return result.value is not sentinel and getattr(result.value, "__name__", "") != "NoValueSentinel"


def make_optional(assets: dg.AssetsDefinition) -> set[str]:
    """A step may then end without its assets and checks, as it may without one that has output_required=False.

    Returns the outputs of assets that it could not end without before.
    """
    needed = {output.name for output in assets.op.output_defs if output.is_required}
    for output in assets.op.output_defs:
        if hasattr(output, "_is_required"):
            output._is_required = False
        else:
            _gone(IS_REQUIRED)
    return needed & set(assets.keys_by_output_name)


def location_of_run(run: dg.DagsterRun) -> str:
    """The code location of a run; "" if it is not recorded, as in a test."""
    return str(_of(run, ORIGIN, REPOSITORY, LOCATION, LOCATION_NAME) or "")


def location_of_sensor(context: dg.SensorEvaluationContext) -> str:
    return str(_of(context, OF_SENSOR, LOCATION_NAME) or "")


def outputs_of(context: Context) -> dict[str, dg.AssetKey]:
    """The outputs that are the assets which this run of the step is to make, in their order."""
    wanted = selected_assets(context)
    keys = context.assets_def.keys_by_output_name
    names = [output.name for output in op_context(context).op_def.output_defs]
    return {name: keys[name] for name in names if name in keys and keys[name] in wanted}


def is_nothing(context: Context, output: str) -> bool:
    """Return True if an asset has no value for an I/O manager to store."""
    return bool(op_context(context).op_def.output_def_named(output).dagster_type.is_nothing)


def asset_names(context: Context) -> tuple[str, ...]:
    return tuple(sorted(key.to_user_string() for key in selected_assets(context)))


def selected_checks(context: Context) -> list[Any]:
    """The keys of the asset checks that this step is to give."""
    return list(op_context(context).selected_asset_check_keys)


def assets_of(run: dg.DagsterRun, repository: Any) -> set[dg.AssetKey]:
    """The assets that a run was to make."""
    if run.asset_selection:
        return set(run.asset_selection)
    try:
        job = repository.get_job(run.job_name)
    except dg.DagsterInvariantViolationError:
        return set()
    return set(_of(job, ASSET_LAYER, OF_LAYER) or ())


def assets_in(selection: dg.AssetSelection, repository: Any) -> Collection[dg.AssetKey] | None:
    """The assets of a selection; None if they are not known in this process."""
    resolved, graph = _of(selection, RESOLVED), _of(repository, GRAPH)
    return None if resolved is None or graph is None else set(resolved(graph))


def children_of(asset: dg.AssetKey, repository: Any) -> Collection[dg.AssetKey]:
    """The assets that are made of one."""
    graph = _of(repository, GRAPH)
    return () if graph is None else _of(graph.get(asset), CHILDREN) or ()


def steps_of(selection: Collection[dg.AssetKey], repository: Any) -> set[str]:
    """The steps that make these assets, or check them."""
    made, checked = repository.assets_defs_by_key, repository.asset_checks_defs_by_key
    about = _of(repository, GRAPH, CHECKS)
    checks = () if about is None else about(set(selection))
    definitions = [made[key] for key in selection if key in made] + [checked[key] for key in checks if key in checked]
    return {definition.node_def.name for definition in definitions}


def check_config(repository: Any, selection: Collection[dg.AssetKey], config: Mapping[str, Any]) -> None:
    """Check the config as Dagster does when it creates a run of these assets: raises if they do not accept it."""
    made = _of(repository, IMPLICIT_JOB)
    part = None if made is None else _of(made(selection), PART_OF_JOB)
    if part is not None:
        dg.validate_run_config(part(asset_selection=set(selection)), config)
