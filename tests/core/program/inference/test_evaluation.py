"""Tests what an evaluation refuses before anything runs, the words of its harness, and what a server of `transformers` lacks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.steps.asked import Judging
from kinetic_orchestration.api.steps.evaluation import evaluation_spec
from kinetic_orchestration.errors import ScoresTooLow, UsageError
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.program.inference.servers.evaluation.harness import (
    Asked,
    Served,
    command,
    environment,
    task_of,
)
from kinetic_orchestration.program.inference.servers.evaluation.scores import Score
from kinetic_orchestration.program.inference.servers.transformers_serve import Pinned


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"options": Options(accelerator="v5e-16")}, "has 4 hosts, and an evaluation runs on one"),
        ({"engine": lambda model: None}, "asks a server, and this engine is a function"),
        ({"tasks": []}, "it is a list of names of tasks"),
        ({"tasks": ["a,b"]}, "it is a list of names of tasks"),
        ({"at_least": {"sums": 0.5}}, "at_least is"),
        ({"harness_options": {"model-args": "x"}}, "which evaluate sets itself"),
        ({"folder": "/there/is/none"}, "/there/is/none"),
        ({"model": "/there/is/none"}, "does not exist"),
        ({"engine": "vlm"}, "there is no engine 'vlm': it is one of transformers, vllm"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_before_anything_runs(model: Path, given: Any, reason: str) -> None:
    asked: dict[str, Any] = {"model": model, "tasks": ["sums"], "options": Options(accelerator="cpu"), **given}
    with pytest.raises(UsageError, match=reason):
        evaluation_spec(asked.pop("model"), asked.pop("tasks"), options=asked.pop("options"), asked=Judging(**asked))


def test_the_harness_asks_the_server_in_the_way_that_it_can_be_asked() -> None:
    served = Served("http://127.0.0.1:8000", "m", 256, "/m,with a comma", takes_tokens=False)
    words = command(
        Asked(["sums", "x"], "/tasks", limit=4, options={"seed": 1, "write_out": True}), served, "/out", "py"
    )
    given = json.loads(words[words.index("--model_args") + 1])
    assert given == {
        "model": "m", "base_url": "http://127.0.0.1:8000/v1/completions", "num_concurrent": 32, "max_retries": 5,
        "max_length": 256, "tokenizer": "/m,with a comma", "tokenizer_backend": "huggingface", "tokenized_requests": False,
    }  # fmt: skip
    assert words[:4] == ["py", "-m", "lm_eval", "run"] and words[words.index("--tasks") + 1] == "sums,x"
    assert words[-5:] == ["--limit", "4", "--seed", "1", "--write_out"]
    chat = command(Asked(["sums"], chat=True), served, "/out")
    assert "local-chat-completions" in chat and "--apply_chat_template" in chat
    assert json.loads(chat[chat.index("--model_args") + 1])["base_url"].endswith("/v1/chat/completions")
    assert task_of(Path("samples_my_task_2026-11-30T17-41-40.674163.jsonl")) == "my_task"


def test_the_harness_reaches_its_server_by_no_proxy() -> None:
    found = environment({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "intranet"}, Asked(["sums"]), "/scratch")
    assert found["NO_PROXY"] == found["no_proxy"] == "intranet,127.0.0.1"


def test_an_evaluation_has_its_scores_by_name_and_raises_if_it_has_to_have_passed() -> None:
    scores = (Score("t", "f1", "a", 0.1), Score("t", "f1", "b", 0.2), Score("t", "acc", "none", 0.3))
    found = kinetic.Evaluation(False, ("t: acc is 0.3, and at least 0.5 is required",), scores, output="/out")
    assert (found.score("t", "acc"), found.score("t", "f1,b")) == (0.3, 0.2)
    assert found.metrics() == {"t/f1,a": 0.1, "t/f1,b": 0.2, "t/acc": 0.3}
    for metric in ("f1", "f2"):
        with pytest.raises(KeyError, match=rf"scores are {metric} of t"):
            found.score("t", metric)
    with pytest.raises(ScoresTooLow, match=r"at least 0\.5 is required\. The samples: /out"):
        found.require()


def asked_of(path: str, body: Any, parts: int = 3) -> tuple[int, Any]:
    """Return what the wrapper of `transformers serve` answers; an application behind it says what has reached it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = max(1, -(-len(data) // parts))
    waiting = [
        {"type": "http.request", "body": data[at : at + size], "more_body": at + size < len(data)}
        for at in range(0, len(data), size)
    ] or [{"type": "http.request"}]
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"reached": message["body"].decode()}).encode()})

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app = Pinned(behind, "/m", 16, lambda asked: len(asked["prompt"].split()))
    asyncio.run(app({"type": "http", "path": path}, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_prompts_that_transformers_would_answer_with_noise_are_refused_and_all_others_reach_it() -> None:
    assert asked_of("/v1/models", b"")[1]["data"][0]["id"] == "/m"
    whole = {"prompt": "a b c d", "max_tokens": 12}
    status, told = asked_of("/v1/completions", whole)
    assert status == 299 and json.loads(told["reached"]) == whole
    status, told = asked_of("/v1/completions", {**whole, "max_tokens": 13})
    assert status == 400
    assert told["error"]["message"] == (
        "This model's maximum context length is 16 tokens, and this prompt has 4 and asks for 13 more"
    )
    assert asked_of("/v1/completions", {"prompt": ""})[1]["error"]["message"] == "the prompt is empty"
    status, told = asked_of("/v1/completions", b"{broken")
    assert (status, told["reached"]) == (299, "{broken"), "the server says it in its own words"
