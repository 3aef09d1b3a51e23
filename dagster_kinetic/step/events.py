"""A job's events in Dagster's terms: lines to the step's captured output and to a log of each host, changes to its
event log, metrics as observations of its assets, and after its end the metadata of its assets.

Knows nothing of how the job is launched or ended.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.step.host_logs import HostLogs
from dagster_kinetic.step.rate_limit import Paced
from dagster_kinetic.step.summary import LAST, failure_of, metadata_of, number
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import runs
from kinetic_orchestration.api.printer import Printer
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration.settings import Settings, duration
from kinetic_orchestration.plan.hardware.cost import times
from kinetic_orchestration.plan.values import Change, Devices, Event, Metrics, Outcome, Output, Progress
from kinetic_orchestration.protocol.report import job_report
from kinetic_orchestration.protocol.report.curves import Curves

PROGRESS_SECONDS = 1.0
CHANGE_SECONDS = 1.0
CHANGES_AT_ONCE = 6  # all changes of a short job; a line a second of one with many problems
OBSERVATION_SECONDS = 1.0  # between two observations: each is a row in Dagster's database,
OBSERVATION_SHARE = 1 / 50  # so a job of ten hours makes some four hundred
MOST_OBSERVED = 10  # assets of one step
FINAL = frozenset({"succeeded", "failed", "cancelled"})
WITH_HOSTS = frozenset({"provisioning", "preparing", "running"})
WITHOUT_HOSTS = frozenset({"submitted", "queued", "resuming"})


class Narrator:
    """Receives every event of one job, as the `emit` of a follower. Leaving it closes the hosts' logs."""

    def __init__(self, context: _compat.Context, handle: JobHandle[Any], call: str = "") -> None:
        self._context = context
        self._handle = handle
        self._call = call
        self._print = Printer(handle.hosts, write, job_id=handle.job_id)
        step = step_name(context, call)
        self._logs = HostLogs(context, lambda host: f"{step} [host {host}]") if handle.hosts > 1 else None
        self._changes = Paced(self._log, lambda: CHANGE_SECONDS, CHANGES_AT_ONCE)
        self._observations = Observations(context)
        self._curves = Curves()
        self._devices: dict[int, dict[str, Any]] = {}  # the newest sample of each host
        self._progress: Paced[Progress] = Paced(lambda event, _: self._print(event), lambda: PROGRESS_SECONDS)
        self._ran = False
        self._held = False  # whether the attempt has hosts

    def __enter__(self) -> Narrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # `end` has reported all of it, or another error is raised
            self._flush()
        if self._logs is not None:
            self._logs.close()

    def begin(self, settings: Settings | None) -> None:
        self._context.log.info(f"job {self._handle.job_id} runs {runs(self._handle._job, settings)}")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output):
            self._print(event)
            if self._logs is not None:
                self._logs.write(event.host, event.text if event.text.endswith(b"\n") else event.text + b"\n")
        elif isinstance(event, Change):
            self._held = event.phase in WITH_HOSTS or (self._held and event.phase not in WITHOUT_HOSTS)
            if event.phase != "submitted" or event.message:  # else `begin` has reported it
                self._changes(event)
        elif isinstance(event, Metrics):
            self._print(event)
            if event.host == 0:
                self._curves.add(event.step, event.values, event.attempt)
                self._observations(event)
        elif isinstance(event, Devices):
            self._devices[event.host] = event.values
            self._observations.devices(job_report.together(self._devices))
        elif event.host == 0:  # a loop may report each of its steps
            self._progress(event)

    def end(self) -> None:
        """The job ended well, and its hosts are gone."""
        self._flush()
        try:
            cost = self._handle.cost()
            found = metadata_of(self._handle, self._call, self._curves)
        except KineticError as error:  # no reason to keep its value back
            self._context.log.warning(f"what job {self._handle.job_id} cost is not known: {error}")
            return
        self._context.log.info(f"{cost}; {times(cost)}")
        add_metadata(self._context, found)

    def failed(self, error: Exception, outcome: Outcome | None = None) -> Exception:
        """The exception to raise for it: in a run, one that its page shows well; in a test, the exception itself."""
        if _compat.is_direct(self._context):
            return error
        outcome = outcome or self._handle.peek().outcome
        failure = failure_of(self._handle, outcome, error, self._call, self._curves)
        if isinstance(error, dg.RetryRequested):  # which Dagster takes as itself only, and shows with its cause
            failure.__cause__, error.__cause__ = error.__cause__, failure
            return error
        failure.__cause__ = error
        return failure

    def _flush(self) -> None:
        for paced in (self._progress, self._changes, self._observations):
            paced.flush()

    def _log(self, change: Change, missed: int) -> None:
        level, text = describe(change, self._ran)
        self._ran = self._ran or change.phase == "running"
        if missed:
            text += f" (after {missed} more {'change' if missed == 1 else 'changes'})"
        if change.phase in FINAL and self._held:
            text += f"; {self._becomes(change.phase)}: {self._handle.crew} of {self._handle.accelerator}"
        getattr(self._context.log, level)(text)

    def _becomes(self, phase: str) -> str:
        """Say what becomes of the hosts at a job's end; whether they are clean is known only later."""
        plan = self._handle._job.plan()
        if not plan.keep or plan.traits.share_machine or phase not in ("succeeded", "failed"):
            return "tearing down"
        warm = f"to stay warm for {duration(plan.keep)}"
        return f"cleaning, {warm}" if phase == "succeeded" else f"tearing down, unless its own code has failed, {warm}"


class Observations:
    """The newest metrics of a job, as observations of the assets that its step makes; of an op there are none."""

    def __init__(self, context: _compat.Context) -> None:
        self._context = context
        self._assets = assets_of(context)
        self._began = time.monotonic()
        self._paced = Paced(self._observe, self._seconds)
        self._sampled: dict[str, float] = {}
        self._is_alone = True  # device samples without metrics to attach them to

    def __call__(self, event: Metrics) -> None:
        values: dict[str, Any] = {name: number(value) for name, value in event.values.items()}
        if event.step is not None:
            values["step"] = event.step
        self._is_alone = False
        self.observe(values)

    def devices(self, values: Mapping[str, float]) -> None:
        """Record the device samples, under names of their own, for the next metrics, if there are any."""
        self._sampled = {f"{LAST}device/{name}": value for name, value in values.items()}
        if self._is_alone:
            self.observe({})

    def observe(self, values: Mapping[str, Any]) -> None:
        if self._assets:
            self._paced(values)

    def flush(self) -> None:
        self._paced.flush()

    def _seconds(self) -> float:
        """The interval between observations, which grows with the run time."""
        return max(OBSERVATION_SECONDS, (time.monotonic() - self._began) * OBSERVATION_SHARE) * len(self._assets)

    def _observe(self, values: Mapping[str, Any], _: int) -> None:
        partition = self._context.partition_key if self._context.has_partition_key else None
        for key in self._assets:
            metadata = {**values, **self._sampled}
            self._context.log_event(dg.AssetObservation(key, metadata=metadata, partition=partition))


def describe(change: Change, ran: bool) -> tuple[str, str]:
    """A change as a person reads it, and how much it matters. `ran`: whether the job has been running before."""
    phase, level = change.phase, "info"
    if phase == "resuming":
        # the rules' own words: "attempt 1 ended (preemption on host 2: …); attempt 2 follows"
        phase, level = "preempted" if "(preemption" in change.message else "interrupted", "warning"
    elif phase == "running" and ran:
        phase = "resumed"
    elif phase == "unreachable":
        level = "warning"
    elif phase == "failed":
        level = "error"
    return level, f"{phase}: {change.message}" if change.message else phase


def step_name(context: _compat.Context, call: str) -> str:
    """The prefix of the names of a step's further logs, which are listed below its own in the menu."""
    step = "" if _compat.is_direct(context) else _compat.step_key(context)
    return f"{step} {call}" if call else step


def assets_of(context: _compat.Context) -> list[dg.AssetKey]:
    """The assets that the step makes; none in an op, or a call in a test."""
    if _compat.is_direct(context) or not _compat.op_context(context).has_assets_def:
        return []
    return sorted(_compat.selected_assets(context))[:MOST_OBSERVED]


def add_metadata(context: _compat.Context, values: Mapping[str, Any]) -> None:
    """Add metadata to all outputs of the step. Outputs that its code has already yielded accept none, nor do asset
    checks: then the values are logged.
    """
    if _compat.is_direct(context):
        return
    if isinstance(context, dg.AssetCheckExecutionContext) or not _added(_compat.op_context(context), values):
        context.log.info("\n".join(f"{name}: {value}" for name, value in values.items() if _is_short(value)))


def _added(step: Any, values: Mapping[str, Any]) -> bool:
    for output in step.op_def.output_defs:
        if output.is_dynamic or output.name not in step.selected_output_names:
            continue
        try:
            step.add_output_metadata(values, output_name=output.name)
        except dg.DagsterInvariantViolationError:
            return False
    return True


def _is_short(value: Any) -> bool:
    return not isinstance(value, dg.MarkdownMetadataValue)


def write(text: str) -> None:
    """Write to the step's captured output, as UTF-8 on every platform."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # a notebook
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
