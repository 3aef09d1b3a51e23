"""`kinetic.serve_batch` as jobs of this machine: what is asked, what is written, and what its report says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import KeyTaken
from kinetic_orchestration.plan import values
from tests.core.program.inference.conftest import Lab
from tests.support.openai_server import answer_to

pytestmark = pytest.mark.usefixtures("shared_home")

Prompts = Callable[[int], list[str]]


def backwards(model: str | None) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """An engine that is a function."""

    def answer(rows: list[dict[str, Any]]) -> list[Any]:
        if any("boom" in row["prompt"] for row in rows):
            raise RuntimeError("boom was asked")
        return [answer_to(row["prompt"]) for row in rows]

    return answer


def test_a_server_on_each_host_answers_every_row_once(lab: Lab, prompts: Prompts) -> None:
    asked, adapter = prompts(40), lab.folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter.bin").write_text("adapted")
    job = kinetic.serve_batch(
        lab.model, asked, engine=lab.server(), output=lab.output, accelerator="cpu",
        engine_options={"lora_modules": [{"name": "mine", "path": kinetic.Data(adapter)}]},
    )  # fmt: skip
    told: list[Any] = []
    job.follow(told.append)
    report = job.result()
    (*_, last) = [event.values for event in told if isinstance(event, values.Metrics)]
    assert last["answered"] == 40 and last["tokens_out_per_second"] > 0
    assert (lab.state / "adapters").read_text() == "adapted\n", "data of the engine is a path on the host"
    assert lab.texts() == {prompt: answer_to(prompt) for prompt in asked}
    assert sorted(lab.prompts_asked()) == sorted(asked)
    tokens = sum(len(prompt.split()) for prompt in asked)
    assert (report["rows"], report["answered"], report["failed"], report["reused"]) == (40, 40, 0, 0)
    assert (report["tokens_in"], report["tokens_out"], report["restarts"], report["hosts"]) == (tokens, tokens, 0, 1)
    assert report["start_seconds"] > 0 and report["latency"]["p50"] <= report["latency"]["p99"]


def test_a_function_is_an_engine(lab: Lab, prompts: Prompts) -> None:
    asked = [*prompts(10), "boom here"]
    job = kinetic.serve_batch(None, asked, engine=backwards, output=lab.output, accelerator="cpu", concurrency=4)
    report = job.result()
    assert (report["answered"], report["failed"]) == (10, 1)
    assert report["emulated"] is job.emulated is False, "a CPU of this machine is what was asked for"
    assert lab.texts() == {**{one: answer_to(one) for one in asked}, "boom here": "RuntimeError: boom was asked"}


def test_a_batch_of_one_key_is_one_job_whatever_it_costs_by_now(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices change from day to day, and are no part of a call."""
    asked: dict[str, Any] = {
        "engine": backwards, "output": lab.output, "accelerator": "v5e-1", "key": "answers", "on_conflict": "error",
    }  # fmt: skip
    monkeypatch.setenv("KINETIC_PRICES", "v5e=36")
    first = kinetic.serve_batch(None, ["one"], **asked)
    report = first.result()
    assert report["usd"] == pytest.approx(0.01 * (report["start_seconds"] + report["seconds"]), rel=0.05, abs=1e-4)
    assert report["emulated"] is True
    monkeypatch.setenv("KINETIC_PRICES", "v5e=72")
    again = kinetic.serve_batch(None, ["one"], **asked)
    assert again.job_id == first.job_id and again.result() == report
    with pytest.raises(KeyTaken, match="another value of prompts"):
        kinetic.serve_batch(None, ["two"], **asked)


@pytest.mark.slow
def test_the_next_server_finds_what_an_earlier_one_has_compiled(lab: Lab) -> None:
    for prompt in ("one", "two"):
        server = lab.server("--cache", "A_CACHE", caches={"A_CACHE": "folder"})
        kinetic.serve_batch(lab.model, [prompt], engine=server, output=lab.output, accelerator="cpu").result()
    other = {"engine_options": {"delay": 0.001}}  # another configuration may compile other programs
    kinetic.serve_batch(lab.model, ["three"], engine=server, output=lab.output, accelerator="cpu", **other).result()
    assert (lab.state / "compiled").read_text().split() == ["False", "True", "False"]
