"""Batch inference and evaluation as steps of Dagster: the job of a call with a resource's settings, and what a page
shows of its report.

Runs nothing: what a step does with a job is the same for every function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from kinetic_orchestration.api.steps.evaluation import Evaluation
from kinetic_orchestration.plan.declare.spec import JobSpec

if TYPE_CHECKING:
    from kinetic_orchestration.program.inference.report import BatchReport

BATCH, EVALUATION = "batch", "evaluation"  # prefixes of metadata
_SHOWN = (
    "rows", "answered", "failed", "reused", "tokens_in", "tokens_out", "tokens_in_per_second", "tokens_out_per_second",
    "rows_per_second", "start_seconds", "seconds", "restarts", "hosts", "emulated", "engine", "output", "parts",
)  # fmt: skip
MOST_SCORES = 200


def job_of(step: JobSpec, base: JobSpec) -> JobSpec:
    """Return the job of a step that a resource runs: `step`, as `base` has it launched."""
    return replace(
        step, options=base.options, env=base.env, meant=base.meant, origin=base.origin,
        require_hardware=base.require_hardware, defaults=base.defaults,
    )  # fmt: skip


def batch_metadata(report: BatchReport) -> dict[str, Any]:
    """Return what a page shows of a batch: rows, tokens a second, latencies, start-up, cost, the place of its parts."""
    told: Mapping[str, Any] = report
    latencies = {f"latency_{name}": value for name, value in (told["latency"] or {}).items()}
    cost = {name: told[name] for name in ("usd", "usd_per_million_tokens") if told[name] is not None}
    shown = {**{name: told[name] for name in _SHOWN}, **latencies, **cost}
    return {f"{BATCH}/{name}": value for name, value in shown.items()}


def evaluation_metadata(evaluation: Evaluation) -> dict[str, Any]:
    """Return what a page shows of an evaluation: each score, why it has not passed, and where the samples are."""
    rows = [
        dg.TableRecord(
            {
                "task": one.task,
                "metric": one.metric,
                "filter": one.filter,
                "value": one.value,
                "error": "" if one.error is None else one.error,
                "samples": one.samples,
            }
        )
        for one in evaluation.scores[:MOST_SCORES]
    ]
    plotted = {f"{EVALUATION}/{name}": value for name, value in list(evaluation.metrics().items())[:MOST_SCORES]}
    return {
        **plotted,
        **({f"{EVALUATION}/scores": dg.MetadataValue.table(rows)} if rows else {}),
        **({f"{EVALUATION}/reasons": "; ".join(evaluation.reasons)} if evaluation.reasons else {}),
        f"{EVALUATION}/model": evaluation.model,
        f"{EVALUATION}/engine": evaluation.engine,
        f"{EVALUATION}/harness": evaluation.harness,
        f"{EVALUATION}/start_seconds": evaluation.start_seconds,
        f"{EVALUATION}/seconds": evaluation.seconds,
        f"{EVALUATION}/output": evaluation.output,
    }


def evaluation_check(evaluation: Evaluation, **keywords: Any) -> dg.AssetCheckResult:
    """Return an evaluation as the result of an asset check, with its scores as metadata.

    A check that blocks (`blocking=True`) ends a run before the assets downstream of a model whose scores are too low.

    Args:
        evaluation: What `KineticResource.evaluate` has returned.
        **keywords: Of Dagster's AssetCheckResult, such as its severity.
    """
    metadata = {**evaluation_metadata(evaluation), **keywords.pop("metadata", {})}
    described = {"description": "; ".join(evaluation.reasons)} if evaluation.reasons else {}
    return dg.AssetCheckResult(passed=evaluation.passed, metadata=metadata, **{**described, **keywords})
