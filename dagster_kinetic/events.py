"""What a job tells, in Dagster's words: lines to the step's captured output, changes to its log, metrics as
observations of its asset, and after its end the metadata of what it made.

Knows nothing of how the job is launched or ended.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import dagster as dg

from dagster_kinetic import _compat
from kinetic_orchestration.follow import Printer
from kinetic_orchestration.job import JobHandle
from kinetic_orchestration.values import Change, Event, Metrics, Plan, Progress

OBSERVATION_SECONDS = 1.0  # between two observations: each is a row in Dagster's database
PROGRESS_SECONDS = 1.0


class Narrator:
    """Receives every event of one job, as the `emit` of a follower."""

    def __init__(self, context: _compat.Context, handle: JobHandle[Any], call: str) -> None:
        self._context = context
        self._handle = handle
        self._call = call
        self._print = Printer(handle.hosts, _write)
        self._asset = _asset_of(context)
        self._metrics: Metrics | None = None
        self._observed = self._progressed = -math.inf

    def begin(self, plan: Plan) -> None:
        self._context.log.info(f"job {self._handle.job_id} runs {plan.name} on {plan.slice}")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Change):
            self._context.log.info(f"{event.phase}: {event.message}" if event.message else event.phase)
            return
        if not isinstance(event, Progress) or self._is_due(event):
            self._print(event)
        if isinstance(event, Metrics) and event.host == 0:
            self._metrics = event
            if time.monotonic() - self._observed >= OBSERVATION_SECONDS:
                self._observe()

    def end(self) -> None:
        """The job is over, well or not."""
        self._observe()
        self._context.log.info(str(self._handle.cost()))
        if not _compat.is_direct(self._context) and _has_output(self._context):
            self._context.add_output_metadata(metadata_of(self._handle, self._call), output_name=_compat.OUTPUT)

    def _is_due(self, event: Progress) -> bool:
        """A loop may report each of its steps; a log wants a line a second, and the last one."""
        if event.host or (event.done < event.total and time.monotonic() - self._progressed < PROGRESS_SECONDS):
            return False
        self._progressed = time.monotonic()
        return True

    def _observe(self) -> None:
        """The newest metrics of host 0. All of them are in the job's own records."""
        if self._metrics is None or self._asset is None:
            return
        metrics, self._metrics, self._observed = self._metrics, None, time.monotonic()
        values: dict[str, Any] = {name: _plain(value) for name, value in metrics.values.items()}
        if metrics.step is not None:
            values["step"] = metrics.step
        partition = self._context.partition_key if self._context.has_partition_key else None
        self._context.log_event(dg.AssetObservation(self._asset, metadata=values, partition=partition))


def metadata_of(handle: JobHandle[Any], call: str = "") -> dict[str, Any]:
    """What is kept beside the asset: where it ran, how long, and what that cost."""
    cost = handle.cost()
    prefix = f"kinetic/{call}/" if call else "kinetic/"
    values: dict[str, Any] = {
        "job_id": handle.job_id,
        "accelerator": handle.accelerator,
        "attempts": handle.attempts(),
        "seconds": round(handle.seconds(), 3),
        "chip_hours": cost.chip_hours,
        "cost": str(cost).removeprefix("cost: "),
        "output_dir": handle.output_dir,
    }
    if cost.emulated or cost.usd is not None:
        values["cost_usd_estimate"] = 0.0 if cost.emulated else cost.usd
    return {prefix + name: value for name, value in values.items()}


def _asset_of(context: _compat.Context) -> dg.AssetKey | None:
    """The one asset that the step makes; none in an op, a step of many assets, or a call in a test."""
    if _compat.is_direct(context) or not context.has_assets_def or len(context.assets_def.keys) != 1:
        return None
    key = context.asset_key
    assert isinstance(key, dg.AssetKey)
    return key


def _has_output(context: _compat.Context) -> bool:
    return any(output.name == _compat.OUTPUT and not output.is_dynamic for output in context.op_def.output_defs)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # a plot takes no NaN


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
