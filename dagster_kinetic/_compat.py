"""What is not public in Dagster, in one place, and what stands in for it where a version has moved it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import dagster as dg

Context = Any  # AssetExecutionContext, OpExecutionContext, or what build_asset_context() makes of them

uninterrupted: Callable[[], contextlib.AbstractContextManager[Any]]
try:
    from dagster._utils.interrupts import capture_interrupts as uninterrupted
except ImportError:
    uninterrupted = contextlib.nullcontext

current: Callable[[], Context]  # of the step whose code this thread runs; None where there is no step
try:
    from dagster._core.execution.context.compute import current_execution_context

    current = current_execution_context.get
except ImportError:

    def current() -> Context:
        return None


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
    if not run.step_keys_to_execute or getattr(run, "remote_job_origin", None) is not None:  # chosen in the page
        return False
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id or "")
    if plan.initial_known_state is None or plan.initial_known_state.parent_state is None:  # it begins anew
        return False
    parent = instance.get_run_by_id(run.parent_run_id)
    return parent is not None and set(run.step_keys_to_execute) == set(_left_by(parent, instance))


def _left_by(run: dg.DagsterRun, instance: dg.DagsterInstance) -> Collection[str]:
    """The steps with which a re-execution from the failure of a run begins."""
    from dagster._core.execution.plan.state import KnownExecutionState

    if run.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        return ()
    return KnownExecutionState.build_resume_retry_reexecution(instance, run)[0]


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
    try:
        return str(context.get_step_execution_context().job_def.executor_def.name)
    except AttributeError:
        return ""


def code_references(file: str, line: int) -> Mapping[str, Any]:
    """The metadata by which Dagster shows where the code of an asset is; nothing where it has no such metadata."""
    try:
        with warnings.catch_warnings(action="ignore"):  # they are "beta", as is said of all that is shown of code
            reference = dg.LocalFileCodeReference(file_path=file, line_number=line)
            return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}
    except AttributeError:
        return {}


def hidden_keywords(decorator: Callable[..., Any]) -> set[str]:
    """Those that a decorator of Dagster takes and does not show: the names that it had before."""
    try:
        from dagster._annotations import get_deprecated_params, has_deprecated_params

        return set(get_deprecated_params(decorator)) if has_deprecated_params(decorator) else set()
    except ImportError:
        return set()


def op_config(context: Context) -> Any:
    """What a run says for a config_schema; None where there is none, as in a test without a context."""
    return getattr(op_context(context), "op_config", None)


def run_id(context: Context) -> str:
    return str(op_context(context).run_id)


def is_direct(context: Context) -> bool:
    """Whether the step is called as a function, in a test, or there is none: it belongs to no run."""
    return context is None or run_id(context) == "EPHEMERAL"


def step_key(context: Context) -> str:
    try:
        return str(context.get_step_execution_context().step.key)
    except AttributeError:
        return str(context.op_handle)


def execution_info(context: Context) -> Mapping[str, str]:
    """What Dagster itself writes on what its runs start elsewhere, as on the pods of Kubernetes."""
    run = context.run
    found = getattr(run, "dagster_execution_info", None)
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


try:
    from dagster._core.definitions.resource_annotation import TreatAsResourceParam as TreatAsResourceParam  # noqa: PLC0414 - its users are elsewhere
except ImportError:

    class TreatAsResourceParam:  # type: ignore[no-redef]
        """Then its users annotate a parameter as `dg.ResourceParam[PipesKineticClient]`."""


try:
    from dagster._core.errors import DagsterPipesExecutionError

    PipesExecutionError: type[Exception] = DagsterPipesExecutionError
except ImportError:
    PipesExecutionError = Exception


def selected_assets(context: Context) -> Collection[dg.AssetKey]:
    """The assets that this run of the step is to make; in a test, all of them."""
    if is_direct(context):
        return set(context.assets_def.keys)
    return set(op_context(context).selected_asset_keys)


def log_event(context: Context, message: str, entries: Mapping[str, str]) -> None:
    """Write an event of this step, with entries of text, into the log of its run. Nobody can from outside the run."""
    from dagster._core.events import EngineEventData

    context.instance.report_engine_event(
        message, context.run, EngineEventData(metadata=dict(entries)), step_key=step_key(context)
    )


def logged_events(instance: dg.DagsterInstance, run: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The step, and the entries, of each event that `log_event` has written into the log of a run, the oldest first."""
    cursor: str | None = None
    while True:
        page = instance.get_records_for_run(run, cursor, of_type=dg.DagsterEventType.ENGINE_EVENT)
        for record in page.records:
            event = record.event_log_entry.dagster_event
            metadata = getattr(event.event_specific_data, "metadata", None) if event is not None else None
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
    try:
        from dagster._core.events import ComputeLogsCaptureData, DagsterEvent
        from dagster._core.storage.compute_log_manager import ComputeIOType

        step = context.get_step_execution_context()
        manager = step.instance.compute_log_manager
        log_key = manager.build_log_key_for_run(step.run_id, key)
        stream = manager.open_log_stream(log_key, ComputeIOType.STDOUT)
    except (ImportError, AttributeError):
        yield None
        return
    with contextlib.ExitStack() as stack:
        uploading = getattr(manager, "_poll_for_local_upload", None)  # those in a cloud, where they are told to
        if uploading is not None:
            stack.enter_context(uploading(log_key))
        opened = stack.enter_context(stream)
        if opened is None:  # nothing is captured in this deployment
            yield None
            return
        # The row in the list of events that the log belongs to: Dagster's own words for it name a process.
        DagsterEvent.from_job(
            dg.DagsterEventType.LOGS_CAPTURED,
            step,
            message=f"Capturing the log of {name}.",
            event_specific_data=ComputeLogsCaptureData(step_keys=[name], file_key=log_key[-1]),
        )
        raw = getattr(opened, "buffer", opened)

        def write(text: bytes) -> None:
            raw.write(text)
            raw.flush()

        yield write
    completed = getattr(manager, "complete_artifact_path", None)  # by which a local one knows that no more comes
    if completed is not None:
        with contextlib.suppress(OSError), open(completed(log_key), "ab"):  # noqa: PTH123
            pass


def module_of_component(context: Any) -> str:
    """The module that a component's folder is, for names that begin with a dot."""
    from dagster.components.core.context import ComponentLoadContext

    loading = ComponentLoadContext.from_resolution_context(context)
    inside = loading.path.relative_to(loading.defs_module_path)
    return ".".join([str(loading.defs_module_name), *inside.parts])


def has_value(result: dg.MaterializeResult[Any]) -> bool:
    return getattr(result.value, "__name__", "") != "NoValueSentinel"


def make_optional(assets: dg.AssetsDefinition) -> set[str]:
    """A step may then end without its assets and checks, as it may without one that has output_required=False.

    Returns the outputs of assets that it could not end without before.
    """
    needed = {output.name for output in assets.op.output_defs if output.is_required}
    for output in assets.op.output_defs:
        if hasattr(output, "_is_required"):
            output._is_required = False
    return needed & set(assets.keys_by_output_name)


def location_of_run(run: dg.DagsterRun) -> str:
    """The code location that a run is of; "" where nobody has noted it, as in a test."""
    origin = getattr(run, "remote_job_origin", None) or getattr(run, "external_job_origin", None)
    repository = getattr(origin, "repository_origin", None) or getattr(origin, "external_repository_origin", None)
    return str(getattr(getattr(repository, "code_location_origin", None), "location_name", "") or "")


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
        return set(repository.get_job(run.job_name).asset_layer.selected_asset_keys)
    except (AttributeError, dg.DagsterInvariantViolationError):
        return set()


def check_config(repository: Any, selection: Collection[dg.AssetKey], config: Mapping[str, Any]) -> None:
    """What Dagster does as it creates a run of these assets: an error if they do not take the config."""
    try:
        job = repository.get_implicit_job_def_for_assets(selection).get_subset(asset_selection=set(selection))
    except AttributeError:
        return
    dg.validate_run_config(job, config)
