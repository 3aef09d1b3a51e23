"""The summary of many jobs of one step: their counts while they run, and at the end one table of them, their total
cost, and a picture with a curve for each.

Each job gets few words, since there may be hundreds. Knows nothing of how they are launched or followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.step.events import Observations, add_metadata
from dagster_kinetic.step.summary import LAST, headline, named, number
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.plan.hardware.cost import Estimate
from kinetic_orchestration.plan.values import Metrics
from kinetic_orchestration.protocol.report import curves as picture
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

MOST_ROWS = 100
MOST_CURVED = 512  # jobs whose metrics are kept
POINTS = 64  # of one curve of one job
MOST_SHOWN = 4  # metrics in a row of the table


class Counts(NamedTuple):
    jobs: int
    ended: int
    failed: int


class FleetSummary:
    """Collects the results of all jobs; `end` returns their summary."""

    def __init__(self, context: _compat.Context, name: str, call: str, size: int) -> None:
        self._context = context
        self._name = name
        self._call = call
        self._size = size
        self._observations = Observations(context)
        self._jobs: dict[int, JobHandle[Any]] = {}
        self._errors: dict[int, Exception] = {}
        self._curves: dict[int, picture.Curves] = {}
        self._ended = 0

    def launched(self, index: int, job: JobHandle[Any]) -> None:
        self._jobs[index] = job

    def reported(self, index: int, event: Metrics) -> None:
        if event.host == 0 and (index in self._curves or len(self._curves) < MOST_CURVED):
            self._curves.setdefault(index, picture.Curves(POINTS)).add(event.step, event.values, event.attempt)

    def ended(self, index: int, job: JobHandle[Any] | None, error: Exception | None) -> None:
        self._ended += 1
        if job is not None:
            self._jobs[index] = job
        if error is not None:
            self._errors[index] = error
        counts = {"jobs": self._size, "jobs ended": self._ended, "jobs failed": len(self._errors)}
        self._observations.observe({f"{LAST}{name}": count for name, count in counts.items()})

    @property
    def counts(self) -> Counts:
        return Counts(self._size, self._ended, len(self._errors))

    def flush(self) -> None:
        self._observations.flush()

    def end(self) -> None:
        self.flush()
        if not _compat.is_direct(self._context):
            add_metadata(self._context, self.metadata())

    def metadata(self) -> dict[str, Any]:
        jobs = list(self._jobs.values())
        costs = side_by_side(lambda job: job.cost(), jobs, REQUESTS)
        plans = side_by_side(lambda job: job._plan, jobs, REQUESTS)  # of their newest attempts
        values: dict[str, Any] = {
            "jobs": self._size,
            "jobs_failed": len(self._errors),
            "accelerator": ", ".join(dict.fromkeys(plan.slice.name for plan in plans)),
            "where": ", ".join(dict.fromkeys(plan.where for plan in plans)),
            "emulated": any(plan.stands_in for plan in plans),
            **_together(costs),
            "table": dg.MetadataValue.md(self._table()),
        }
        if panels := self._panels():
            drawn = picture.svg(panels, axis=self._axis(), title=f"{self._name}: {self._size} jobs", crowd="jobs")
            values["curves"] = dg.MetadataValue.md(picture.markdown(drawn))
        return named(values, self._call)

    def _panels(self) -> dict[str, dict[str, Sequence[picture.Point]]]:
        panels: dict[str, dict[str, Sequence[picture.Point]]] = {}
        for index, curves in sorted(self._curves.items()):
            for name, points in curves.points().items():
                panels.setdefault(name, {})[f"input {index}"] = points
        return panels

    def _axis(self) -> str:
        return next((curves.axis for curves in self._curves.values()), "step")

    def _table(self) -> str:
        """The table of jobs, failed ones first, because users look for them."""
        order = sorted(range(self._size), key=lambda index: (index not in self._errors, index))
        rows = ["| input | job | end | reported last |", "|---|---|---|---|"]
        for index in order[:MOST_ROWS]:
            job, error = self._jobs.get(index), self._errors.get(index)
            end = headline(error) if error is not None else "succeeded"
            last = list(self._curves[index].last.items())[:MOST_SHOWN] if index in self._curves else []
            said = ", ".join(f"{name} {_brief(value)}" for name, value in last)
            rows.append(f"| {index} | {job.job_id if job is not None else '-'} | {_cell(end)} | {_cell(said)} |")
        if len(order) > MOST_ROWS:
            rows.append(f"| … | | and {len(order) - MOST_ROWS} more that succeeded or are like these | |")
        return "\n".join(rows)


def _together(costs: Sequence[Estimate]) -> dict[str, Any]:
    priced = [0.0 if cost.uncharged else cost.usd for cost in costs]
    known = [usd for usd in priced if usd is not None]
    return {
        "queued_seconds": round(sum(cost.queued_seconds for cost in costs), 3),
        "running_seconds": round(sum(cost.program_seconds for cost in costs), 3),
        "held_seconds": round(sum(cost.ready_seconds for cost in costs), 3),
        "chip_hours": sum(cost.chip_hours for cost in costs),
        "cost_usd_estimate": sum(known) if len(known) == len(priced) else None,
        "cost_prices": "; ".join(dict.fromkeys(cost.note for cost in costs if cost.note)),
    }


def _brief(value: float) -> str:
    found = number(value)
    return found if isinstance(found, str) else picture.number(found)


def _cell(text: str) -> str:
    """The text as one line of plain text in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:200]
