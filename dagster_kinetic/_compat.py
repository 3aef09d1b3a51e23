"""What is not public in Dagster, in one place. `PRIVATE` names all of it, with what is lost where a version has moved
it: then that is said, once in a process, and everything else goes on.
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
from kinetic_orchestration.notices import warn_once

Context = Any  # AssetExecutionContext, OpExecutionContext, or what build_asset_context() makes of them

_EVENTS, _COMPUTE_LOGS = "dagster._core.events", "dagster._core.storage.compute_log_manager"
INTERRUPTS = "dagster._utils.interrupts:capture_interrupts"
CURRENT = "dagster._core.execution.context.compute:current_execution_context"
AS_RESOURCE = "dagster._core.definitions.resource_annotation:TreatAsResourceParam"
PIPES_ERROR = "dagster._core.errors:DagsterPipesExecutionError"
LEFT_BY = "dagster._core.execution.plan.state:KnownExecutionState.build_resume_retry_reexecution"
PLAN_OF_RUN = "dagster:DagsterInstance.get_execution_plan_snapshot"
ENGINE_EVENT = f"{_EVENTS}:EngineEventData"
REPORT = "dagster:DagsterInstance.report_engine_event"
FROM_JOB = f"{_EVENTS}:DagsterEvent.from_job"
LOG_DATA = f"{_EVENTS}:ComputeLogsCaptureData"
LOG_STREAM = f"{_COMPUTE_LOGS}:ComputeLogManager.open_log_stream"
IO_TYPE = f"{_COMPUTE_LOGS}:ComputeIOType"
UPLOADS = "dagster._core.storage.cloud_storage_compute_log_manager:CloudStorageComputeLogManager._poll_for_local_upload"
COMPLETE = "dagster._core.storage.local_compute_log_manager:LocalComputeLogManager.complete_artifact_path"
DEPRECATED = "dagster._annotations:get_deprecated_params"
HAS_DEPRECATED = "dagster._annotations:has_deprecated_params"
NO_VALUE = "dagster._core.definitions.utils:NoValueSentinel"
IS_REQUIRED = "dagster._core.definitions.output:OutputDefinition._is_required"
ORIGIN = "dagster:DagsterRun.remote_job_origin"
INFO = "dagster:DagsterRun.dagster_execution_info"
IMPLICIT_JOB = "dagster:RepositoryDefinition.get_implicit_job_def_for_assets"
ASSET_LAYER = "dagster:JobDefinition.asset_layer"
STEP_CONTEXT = "dagster:OpExecutionContext.get_step_execution_context"
RESOLVING = "dagster:ComponentLoadContext.from_resolution_context"
REFERENCE = "dagster:LocalFileCodeReference"

_NO_PARENT = "a run that ReexecutionOptions.from_failure made starts new jobs; one from the page finds its own still"
_NO_LOGS = "hosts have no logs of their own, and their lines are in the step's own output alone"
PRIVATE: Mapping[str, str] = {
    INTERRUPTS: "a second signal may end a terminated step before it has cancelled its jobs; the reaper ends them",
    CURRENT: "run(), submit() and map() do not find their step by themselves: give them context=context",
    AS_RESOURCE: "annotate the client as dagster.ResourceParam[PipesKineticClient]",
    PIPES_ERROR: "a Pipes program that failed raises dagster.Failure, and no DagsterPipesExecutionError",
    LEFT_BY: _NO_PARENT,
    PLAN_OF_RUN: _NO_PARENT,
    ENGINE_EVENT: "the ticket of a detached asset is an observation of it, and no event of the engine",
    REPORT: "the ticket of a detached asset is an observation of it, and no event of the engine",
    FROM_JOB: _NO_LOGS,
    LOG_DATA: _NO_LOGS,
    LOG_STREAM: _NO_LOGS,
    IO_TYPE: _NO_LOGS,
    UPLOADS: "with a log manager in a cloud, the hosts' own logs are shown when they end",
    COMPLETE: "the page waits for more of the hosts' own logs when they have ended",
    DEPRECATED: "a keyword that Dagster does not show any more may be taken for a misspelt one",
    HAS_DEPRECATED: "a keyword that Dagster does not show any more may be taken for a misspelt one",
    NO_VALUE: "whether a result of a component has a value is told by the name of its class",
    IS_REQUIRED: "the first run of a detached asset with checks is called failed; its sensor finishes it all the same",
    ORIGIN: "a completion sensor looks at the runs of all code locations",
    INFO: "labels name run and job, and neither partition nor code location",
    IMPLICIT_JOB: "a config that a changed asset does not take any more fails a tick of the completion sensor",
    ASSET_LAYER: "what a job was to make after a detached asset is left to automation conditions",
    STEP_CONTEXT: "a step goes by the name of its op, and hosts have no logs of their own",
    RESOLVING: "a component's function needs its whole name, without a leading dot",
    REFERENCE: "pages do not lead to the code of an asset",
}


def _private(where: str) -> Any:
    """What is there; None where it has moved, which is said."""
    module, _, path = where.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return _gone(where)


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
    """Whether a run goes on where its parent failed: by "Re-execute from failure" in the page, or by
    `ReexecutionOptions.from_failure`, which sets no tag: its steps are those that Dagster would choose for it.
    """
    if not run.parent_run_id:
        return False
    if any(run.tags.get(tag) == "true" for tag in RESUME_TAGS):
        return True
    if not run.step_keys_to_execute or _origin_of(run) is not None:  # chosen in the page
        return False
    if _private(PLAN_OF_RUN) is None:
        return False
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id or "")
    if plan.initial_known_state is None or plan.initial_known_state.parent_state is None:  # it begins anew
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
    """The runs of a family, of which `root` is the first, that are at work at a step and that nobody has terminated."""
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
    """What assets and ops have in common; an asset's own context warns of some of it."""
    return getattr(context, "op_execution_context", context)


def deployment_name() -> str:
    """What Dagster+ calls the deployment, or the branch deployment, that this process is part of."""
    return os.environ.get("DAGSTER_CLOUD_DEPLOYMENT_NAME", "")


def is_contained(context: Context) -> bool:
    """Whether what the run leaves on its machine ends with it: its launcher, or its executor, makes containers."""
    kinds = {type(getattr(context.instance, "run_launcher", None)).__name__, _executor_of(context)}
    return any(word in kind for kind in kinds for word in ("K8s", "k8s", "Docker", "docker", "Ecs", "ecs", "CloudUser"))


def _executor_of(context: Context) -> str:
    step = _step_of(context)
    return "" if step is None else str(step.job_def.executor_def.name)


def _step_of(context: Context) -> Any:
    """The step's own context; None in a test that has no step."""
    if is_direct(context):
        return None
    found = getattr(op_context(context), "get_step_execution_context", None)
    return _gone(STEP_CONTEXT) if found is None else found()


def code_references(file: str, line: int) -> Mapping[str, Any]:
    """The metadata by which Dagster shows where the code of an asset is; nothing where it has no such metadata."""
    if (made := _private(REFERENCE)) is None:
        return {}
    with warnings.catch_warnings(action="ignore"):  # they are "beta", as is said of all that is shown of code
        reference = made(file_path=file, line_number=line)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def hidden_keywords(decorator: Callable[..., Any]) -> set[str]:
    """Those that a decorator of Dagster takes and does not show: the names that it had before."""
    has, of = _private(HAS_DEPRECATED), _private(DEPRECATED)
    return set(of(decorator)) if has is not None and of is not None and has(decorator) else set()


def op_config(context: Context) -> Any:
    """What a run says for a config_schema; None where there is none, as in a test without a context."""
    return getattr(op_context(context), "op_config", None)


def run_id(context: Context) -> str:
    return str(op_context(context).run_id)


def is_direct(context: Context) -> bool:
    """Whether the step is called as a function, in a test, or there is none: it belongs to no run."""
    return context is None or run_id(context) == "EPHEMERAL"


def step_key(context: Context) -> str:
    step = _step_of(context)
    return str(op_context(context).op_handle) if step is None else str(step.step.key)


def execution_info(context: Context) -> Mapping[str, str]:
    """What Dagster itself writes on what its runs start elsewhere, as on the pods of Kubernetes."""
    run = context.run
    found = getattr(run, "dagster_execution_info", None)
    if found is None:
        _gone(INFO)
    return found if found is not None else {"dagster/run-id": run.run_id, "dagster/job": run.job_name}


def specs_of(context: Context) -> list[dg.AssetSpec]:
    """Of the assets that the step is to make; of an op there are none."""
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
        """Dagster's mark of a class whose parameters are resources."""

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
    """Write an event of this step, with entries of text, into the log of its run. Nobody can from outside the run."""
    made, report = _private(ENGINE_EVENT), getattr(context.instance, "report_engine_event", None)
    if made is not None and report is not None:
        report(message, context.run, made(metadata=dict(entries)), step_key=step_key(context))
        return
    if report is None:
        _gone(REPORT)
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
            data = event.event_specific_data if event is not None else None
            metadata = getattr(getattr(data, "asset_observation", data), "metadata", None)
            if event is not None and metadata:
                yield event.step_key or "", {name: entry.value for name, entry in metadata.items()}
        if not page.has_more:
            return
        cursor = page.cursor


@contextlib.contextmanager
def captured_log(context: Context, name: str, key: str) -> Iterator[Callable[[bytes], object] | None]:
    """A captured log of its own, by this name in the menu of the run's page: what writes to it, whole lines at once.

    None where there is no such thing. One stream alone: log managers in a cloud store both when either is closed.
    """
    step = _step_of(context)
    manager = None if step is None else step.instance.compute_log_manager
    row, data, kinds, opens = (_private(where) for where in (FROM_JOB, LOG_DATA, IO_TYPE, LOG_STREAM))
    if manager is None or None in (row, data, kinds, opens):
        yield None
        return
    log_key = manager.build_log_key_for_run(step.run_id, key)
    stream = manager.open_log_stream(log_key, kinds.STDOUT)
    with contextlib.ExitStack() as stack:
        uploading = getattr(manager, "_poll_for_local_upload", None)  # those in a cloud, where they are told to
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
    completed = getattr(manager, "complete_artifact_path", None)  # by which a local one knows that no more comes
    if uploading is None and completed is None:
        _gone(UPLOADS)
        _gone(COMPLETE)
    if completed is not None:
        with contextlib.suppress(OSError), open(completed(log_key), "ab"):  # noqa: PTH123
            pass


def module_of_component(context: Any) -> str:
    """The module that a component's folder is, for names that begin with a dot."""
    found = _private(RESOLVING)
    if found is None:
        raise UsageError(PRIVATE[RESOLVING])
    loading = found(context)
    inside = loading.path.relative_to(loading.defs_module_path)
    return ".".join([str(loading.defs_module_name), *inside.parts])


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
    """The code location that a run is of; "" where nobody has noted it, as in a test."""
    repository = getattr(_origin_of(run), "repository_origin", None)
    return str(getattr(getattr(repository, "code_location_origin", None), "location_name", "") or "")


def _origin_of(run: dg.DagsterRun) -> Any:
    """By what the page, a schedule or a sensor launched it; None of a run that Python code made."""
    if not hasattr(run, "remote_job_origin"):
        return _gone(ORIGIN)
    return run.remote_job_origin


def location_of_sensor(context: dg.SensorEvaluationContext) -> str:
    return str(getattr(getattr(context, "code_location_origin", None), "location_name", "") or "")


def outputs_of(context: Context) -> dict[str, dg.AssetKey]:
    """The outputs that are the assets which this run of the step is to make, in their order."""
    wanted = selected_assets(context)
    keys = context.assets_def.keys_by_output_name
    names = [output.name for output in op_context(context).op_def.output_defs]
    return {name: keys[name] for name in names if name in keys and keys[name] in wanted}


def is_nothing(context: Context, output: str) -> bool:
    """Whether an asset has no value that an I/O manager would store."""
    return bool(op_context(context).op_def.output_def_named(output).dagster_type.is_nothing)


def asset_names(context: Context) -> tuple[str, ...]:
    return tuple(sorted(key.to_user_string() for key in selected_assets(context)))


def selected_checks(context: Context) -> list[Any]:
    """The keys of the asset checks that this step is to give."""
    return list(getattr(op_context(context), "selected_asset_check_keys", ()))


def assets_of(run: dg.DagsterRun, repository: Any) -> set[dg.AssetKey]:
    """What a run was to make."""
    if run.asset_selection:
        return set(run.asset_selection)
    try:
        job = repository.get_job(run.job_name)
    except dg.DagsterInvariantViolationError:
        return set()
    layer = getattr(job, "asset_layer", None)
    if layer is None:
        _gone(ASSET_LAYER)
    return set(getattr(layer, "selected_asset_keys", ()))


def check_config(repository: Any, selection: Collection[dg.AssetKey], config: Mapping[str, Any]) -> None:
    """What Dagster does as it creates a run of these assets: an error if they do not take the config."""
    made = getattr(repository, "get_implicit_job_def_for_assets", None)
    if made is None:
        _gone(IMPLICIT_JOB)
        return
    dg.validate_run_config(made(selection).get_subset(asset_selection=set(selection)), config)
