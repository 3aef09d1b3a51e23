"""A batch on a slice of an emulated Google Cloud: model, prompts and results in its bucket, over the wire."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import RequirementsError, UsageError
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import here, nodes
from tests.end_to_end.cloud.conftest import ZONES
from tests.support import openai_server
from tests.support.openai_server import answer_to
from tests.support.waits import wait_until


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_preempted_batch_asks_no_prompt_twice_whose_answer_is_in_the_bucket(cloud: Emulator, tmp_path: Path) -> None:
    store, _ = here()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        store.create(f"given/model/{name}", b"{}")
    asked = [f"prompt {n} of the bucket" for n in range(120)]
    store.create("given/prompts.jsonl", "\n".join(json.dumps({"prompt": one}) for one in asked).encode())
    state = tmp_path / "state"
    state.mkdir()
    script = [sys.executable, openai_server.__file__, "--model", "{model}", "--port", "{port}", "--state", str(state)]
    server = kinetic.Server(argv=[*script, "--delay", "0.4"])
    batch = kinetic.serve_batch(
        f"{store.url}/given/model", f"{store.url}/given/prompts.jsonl", engine=server, accelerator="v5e-16", concurrency=2,
        output=f"{store.url}/answers", retry=kinetic.Retry(preemption=5, infra=5), requirements=[], spot=True,
    )  # fmt: skip

    def lines(kind: str) -> list[dict[str, object]]:
        found = (store.read(entry.name) for entry in store.list(f"answers/{kind}/"))
        return [json.loads(line) for one in found if one is not None for line in one.data.splitlines()]

    wait_until(lambda: len(lines("parts")) + len(lines("journal")) > 12)
    finished = {one["prompt"] for kind in ("journal", "parts") for one in lines(kind)}
    (node,) = nodes(cloud, batch)
    cloud.preempt(node)
    report = batch.result(timeout=300)
    assert (report["rows"], report["answered"], report["failed"], report["hosts"]) == (120, 120, 0, 4)
    assert report["reused"] > 12 and report["output"] == f"{store.url}/answers"
    texts = [(one["prompt"], one["text"]) for one in lines("parts")]
    assert sorted(texts) == sorted((one, answer_to(one)) for one in asked)
    asks = (state / "asked").read_text().splitlines()
    assert len({json.loads(one)["server"] for one in asks}) == 8  # a server on each of four hosts, in two attempts
    prompts = [json.loads(one)["prompt"] for one in asks]
    assert {prompts.count(str(one)) for one in finished} == {1}  # of what was kept, nothing is asked again
    assert lines("journal") == [] and report["emulated"] and report["usd_per_million_tokens"] > 0
    cloud.wait_until_empty(60)


def reversing(model: str | None) -> Any:
    """An engine that is a function: it answers a prompt by its letters from the last to the first."""
    return lambda rows: [{"text": row["prompt"][::-1], "tokens_in": 3, "tokens_out": 2} for row in rows]


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_batch_with_a_choice_costs_what_the_hardware_costs_that_it_got(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PRICES", "v6e=7200,v5e=36,v5e:spot=18")
    monkeypatch.delenv("KINETIC_BACKEND")
    cloud.stockout(ZONES[0], "refuse")
    ways = [
        kinetic.Choice(name, capacity="spot", cloud=kinetic.TpuVm(zones=[zone]))
        for name, zone in zip(("v6e-4", "v5e-4"), ZONES, strict=False)
    ]
    report = kinetic.serve_batch(None, ["one", "two"], engine=reversing, accelerator=ways, requirements=[]).result(
        timeout=300
    )
    hours = (report["start_seconds"] + report["seconds"]) / 3600
    assert report["usd"] == pytest.approx(4 * 18 * hours, rel=0.05, abs=1e-3)
    assert report["usd_per_million_tokens"] == pytest.approx(report["usd"] / 10 * 1e6)
    cloud.wait_until_empty(60)


def test_what_no_host_can_serve_is_refused_before_anything_is_asked_of_the_cloud(cloud: Emulator) -> None:
    with pytest.raises(UsageError, match=r"takes 8 devices, and a host of v5e-16 has 4: .* no model over several"):
        kinetic.serve_batch("hf://owner/name", ["a"], engine_options={"tensor_parallel_size": 8}, accelerator="v5e-16")
    with pytest.raises(UsageError, match=r"the output /x/answers is a folder of a machine that ends with the job"):
        kinetic.serve_batch("hf://owner/name", ["a"], accelerator="v5e-16", output="/x/answers")
    for requirements in (None, ["numpy"]):
        said = r"serve_batch needs vllm on its hosts, .* has none: name vllm-tpu for a TPU, vllm for a GPU"
        with pytest.raises(RequirementsError, match=said):
            kinetic.serve_batch("hf://owner/name", ["a"], accelerator="v5e-16", requirements=requirements)
    assert cloud.nodes() == [] and kinetic.list_jobs() == []
