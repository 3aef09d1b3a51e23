"""Batch inference and evaluation as steps: real runs of Dagster on this machine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import KineticResource, evaluation_check
from kinetic_orchestration.api.steps.evaluation import Evaluation
from kinetic_orchestration.api.steps.inference import charged
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware.cost import Estimate
from kinetic_orchestration.program.inference.servers.evaluation.scores import Score, below, checked_bounds

pytestmark = pytest.mark.usefixtures("shared_home")

BATCH = {"accelerator": "cpu", "parameters": {"max_tokens": 4}}


def reversing(model: str | None) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """An engine that is a function: it answers a prompt by its letters from the last to the first."""
    del model

    def answer(rows: list[dict[str, Any]]) -> list[Any]:
        return [{"text": row["prompt"][::-1], "tokens_in": 3, "tokens_out": 2} for row in rows]

    return answer


def lines(report: dict[str, Any]) -> dict[str, str]:
    parts = sorted(Path(report["parts"]).iterdir())
    found = [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
    return {one["prompt"]: one["text"] for one in found}


def test_a_batch_is_an_asset_whose_page_shows_it_and_a_later_run_asks_nothing_again(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    output = str(tmp_path / "answers")

    @dg.asset
    def answers(context: dg.AssetExecutionContext, kinetic: KineticResource) -> dg.MaterializeResult[Any]:
        prompts = ["one", "two", "three"]
        return kinetic.serve_batch(None, prompts, engine=reversing, output=output, context=context, **BATCH)

    def run() -> tuple[dict[str, Any], dict[str, Any]]:
        result = dg.materialize([answers], instance=instance, resources={"kinetic": KineticResource()})
        [event] = result.get_asset_materialization_events()
        told = event.materialization.metadata
        return result.output_for_node("answers"), {name: entry.value for name, entry in told.items()}

    report, shown = run()
    assert lines(report) == {"one": "eno", "two": "owt", "three": "eerht"}
    assert (shown["batch/rows"], shown["batch/answered"], shown["batch/failed"], shown["batch/reused"]) == (3, 3, 0, 0)
    assert (shown["batch/tokens_in"], shown["batch/tokens_out"]) == (9, 6)
    assert shown["batch/latency_p50"] <= shown["batch/latency_p99"]
    assert shown["batch/tokens_out_per_second"] > 0 <= shown["batch/start_seconds"]
    assert shown["batch/parts"] == report["parts"] == f"{output}/parts"
    assert shown["batch/emulated"] is False, "a CPU of this machine is what was asked for"
    assert "batch/usd" not in shown, "no price is known of it"
    assert shown["kinetic/job_id"], "what each job's page shows is there, too"

    again, shown = run()
    assert (shown["batch/answered"], shown["batch/reused"], again["tokens_in"]) == (3, 3, 0)


def test_a_cost_for_tokens_is_not_told_where_earlier_attempts_have_answered_some() -> None:
    """Attempts that were preempted cost money, and their tokens are in no report."""
    report: Any = {"reused": 0, "tokens_in": 1_000_000, "tokens_out": 1_000_000, "usd": None}
    one = Estimate("v5e-1", "v5e-1", "us", 1.0, 8.0, 1.0, "", "", False, attempts=1)
    assert charged(report, one)["usd_per_million_tokens"] == 4.0
    several = replace(one, attempts=3)
    assert charged(report, several)["usd_per_million_tokens"] == 4.0, "nothing of theirs was of use"
    reused = charged({**report, "reused": 7}, several)
    assert (reused["usd"], reused["usd_per_million_tokens"]) == (8.0, None)
    assert charged({**report, "reused": 7}, one)["usd_per_million_tokens"] == 4.0, "by an earlier job"


def test_a_keyword_of_neither_the_batch_nor_its_job_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="no option 'concurency': did you mean concurrency"):
        KineticResource().serve_batch(None, ["one"], engine=reversing, concurency=3, **BATCH)


def test_answers_that_would_end_with_their_hosts_are_refused_before_anything_is_asked_for(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")  # nobody answers there
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    cloud = {"backend": "tpu-vm", "store": "gs://bucket/kinetic", "project": "project"}
    given: dict[str, Any] = {"accelerator": "v5e-1", "output": "/x/answers"}

    @dg.asset
    def answers(context: dg.AssetExecutionContext, kinetic: KineticResource) -> Any:
        return kinetic.serve_batch(None, ["one"], engine=reversing, context=context, **given)

    @dg.asset
    def scores(context: dg.AssetExecutionContext, kinetic: KineticResource) -> Any:
        return kinetic.evaluate(str(model), ["sums"], context=context, **given)

    for asset in (answers, scores):
        with pytest.raises(UsageError, match="the output /x/answers is a folder of a machine that ends with the job"):
            dg.materialize([asset], instance=instance, resources={"kinetic": KineticResource(**cloud)})


def test_an_evaluation_that_has_not_passed_blocks_what_is_downstream(instance: dg.DagsterInstance) -> None:
    """The check alone, without a server: tests/end_to_end/frameworks has one."""
    score = Score("sums", "exact_match", "none", 0.4, 0.05, 100)
    reached: list[str] = []

    def materialized(required: float) -> dg.ExecuteInProcessResult:
        reasons = below([score], checked_bounds({"sums": {"exact_match": required}}, None))
        found = Evaluation(not reasons, reasons, (score,), model="m", output="/out")

        @dg.asset
        def model() -> str:
            return "m"

        @dg.asset_check(asset=model, blocking=True)
        def good_enough() -> dg.AssetCheckResult:
            return evaluation_check(found)

        @dg.asset(deps=[model])
        def promoted() -> None:
            reached.append("promoted")

        return dg.materialize([model, good_enough, promoted], instance=instance, raise_on_error=False)

    low = materialized(0.5)
    [check] = low.get_asset_check_evaluations()
    assert not low.success and not check.passed and reached == []
    shown = {name: entry.value for name, entry in check.metadata.items()}
    assert shown["evaluation/reasons"] == "sums: exact_match is 0.4, and at least 0.5 is required"
    assert shown["evaluation/sums/exact_match"] == 0.4
    assert shown["evaluation/output"] == "/out"
    high = materialized(0.4)
    assert high.success and reached == ["promoted"]
