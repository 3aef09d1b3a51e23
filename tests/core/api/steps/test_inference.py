"""Tests what `serve_batch` refuses before anything runs, and what a server is started with."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.steps.asked import Batch, Judging, Served
from kinetic_orchestration.api.steps.evaluation import evaluation_spec
from kinetic_orchestration.api.steps.inference import batch_spec
from kinetic_orchestration.errors import DataNotFound, RequirementsError, UsageError
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.program.inference.servers import engines
from kinetic_orchestration.program.inference.servers.process import environment

pytestmark = pytest.mark.fast


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def refusal(model: Any, prompts: Any = ("a",), **more: Any) -> str:
    with pytest.raises(UsageError) as found:
        kinetic.serve_batch(model, prompts, **{"accelerator": "cpu", **more})
    return str(found.value)


def test_a_model_that_is_none_is_told_by_what_it_lacks(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "model.h5")
    told = refusal(model)
    assert (
        "is no model: it lacks weights (a file *.safetensors, *.bin, " in told and "has config.json, model.h5" in told
    )
    (model / "config.json").write_text("[")
    (model / "model.bin").touch()
    assert "its config.json cannot be read" in refusal(model)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "lacks config.json and weights" in refusal(empty) and "and has nothing" in refusal(empty)
    assert "does not exist: a model is a directory with config.json" in refusal(tmp_path / "none")
    assert "a server serves the model of a directory" in refusal(None)
    assert "write hf://owner/name" in refusal("hf://name") and "hf://owner/name" in refusal("hf://a/b?split=c")
    assert "model is Data(…, stream=True)" in refusal(kinetic.Data("gs://bucket/model/", stream=True))


def test_prompts_that_are_none_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound):
        kinetic.serve_batch(model, tmp_path / "none.jsonl", accelerator="cpu")
    assert "there are no prompts" in refusal(model, [])
    assert "prompts is a dict" in refusal(model, {"prompt": "a"})
    assert "prompts is Data(…, stream=True)" in refusal(model, kinetic.Data("gs://bucket/prompts/", stream=True))
    bad = [{"prompt": "a", "messages": []}, "", 7, {"messages": ["hi"]}, "fine", {"prompt": "a", "parameters": [1]}]
    told = refusal(model, bad, on_bad_row="stop")
    assert "5 of 6 prompts cannot be asked: prompt 1: it has both prompt and messages; prompt 2: its prompt is" in told


def test_an_environment_without_the_server_or_the_harness_is_refused_before_anything_runs(
    model: Path, home: Path
) -> None:
    with pytest.raises(
        RequirementsError, match=r"serve_batch needs vllm on .*, and this environment has none: name vl"
    ):
        kinetic.serve_batch(model, ["a"], accelerator="cpu")
    server = kinetic.Server(argv=["{port}"])
    with pytest.raises(RequirementsError, match=r"evaluate needs lm_eval on .*: name lm-eval\[api\] in requirements="):
        kinetic.evaluate(model, ["sums"], engine=server, accelerator="cpu")
    assert kinetic.list_jobs() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tensor_parallel_size": 8}, "takes 8 devices, and a host of v5e-16 has 4"),
        ({"pipeline-parallel-size": 2, "tensor-parallel-size": 4}, "takes 8 devices"),
        ({"distributed_executor_backend": "ray"}, "is spread over several hosts"),
        ({"nnodes": 2, "tensor_parallel_size": 1}, "is spread over several hosts"),
        ({"--host x": 1}, "is not the name of an option"),
    ],
)
def test_a_model_that_takes_several_hosts_is_refused(model: Path, options: Mapping[str, Any], why: str) -> None:
    assert why in refusal(model, engine_options=options, accelerator="v5e-16")


def test_each_accelerator_of_a_choice_has_to_serve_the_model(model: Path) -> None:
    options = Options(accelerator=["v6e-8", "v5e-4", "v5e-16"])
    with pytest.raises(UsageError, match="takes 8 devices, and a host of v5e-4 has 4"):
        batch_spec(model, ["a"], Batch(engine_options={"tensor_parallel_size": 8}), options)
    with pytest.raises(UsageError, match="v5e-16 has 4 hosts, and an evaluation runs on one"):
        evaluation_spec(model, ["sums"], Judging(), options)


def test_other_arguments_that_cannot_be(model: Path) -> None:
    assert "there is no engine 'vlm': it is one of" in refusal(model, engine="vlm")
    assert "this engine is a function" in refusal(None, engine=len, engine_options={"a": 1})
    assert "concurrency is 0" in refusal(model, concurrency=0) and "patience is -1" in refusal(model, patience=-1)
    assert "on_bad_row is 'drop'" in refusal(model, on_bad_row="drop")
    assert "stream is no parameter" in refusal(model, parameters={"stream": True})
    assert "processes= is not for serve_batch" in refusal(model, processes="gpu", accelerator="gpu:2")
    assert "begins with gs:// or s3://" in refusal(model, output="http://x/y")
    assert "there is no option 'acelerator': did you mean accelerator?" in refusal(model, acelerator="cpu")
    assert "there is no option 'engin': did you mean engine?" in refusal(model, engin="vllm")
    with pytest.raises(UsageError, match="where the server is told its port"):
        kinetic.Server(argv=["serve"])


@pytest.mark.parametrize(("function", "kind"), [(kinetic.serve_batch, Batch), (kinetic.evaluate, Judging)])
def test_help_shows_each_keyword_of_a_step_with_its_default_and_says_what_it_is(
    function: Any, kind: type[Served]
) -> None:
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in (one.name for one in fields(kind))} == {
        one.name: one.default for one in fields(kind)
    }
    described = re.findall(r"^    (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    assert {one.name for one in fields(kind)} <= set(described)


def test_options_of_an_engine_are_its_flags_untouched() -> None:
    options = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4}, "quantization": "fp8", "enable_lora": True,
        "enable_prefix_caching": False, "lora_modules": ["a=/a", {"name": "b", "path": "/é"}], "max_model_len": 256,
        "revision": None,
    }  # fmt: skip
    filled = {"python": "/py", "model": "/m", "host": "127.0.0.1", "port": "81", "devices": "4"}
    argv, env = engines.command(engines.VLLM, options, filled)
    assert argv[:9] == [
        "/py",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "/m",
        "--host",
        "127.0.0.1",
        "--port",
        "81",
    ]
    assert argv[9:13] == [
        "--tensor-parallel-size",
        "4",
        "--speculative-config",
        json.dumps(options["speculative_config"], separators=(",", ":")),
    ]
    assert argv[13:] == [
        "--quantization",
        "fp8",
        "--enable-lora",
        "--no-enable-prefix-caching",
        "--lora-modules",
        "a=/a",
        '{"name":"b","path":"/é"}',
        "--max-model-len",
        "256",
    ]
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    own, _ = engines.command(engines.VLLM, {"tensor-parallel-size": 2}, filled)
    assert own[9:] == ["--tensor-parallel-size", "2"]


def test_answers_depend_on_options_but_for_those_of_speed_and_memory() -> None:
    same = engines.answers_by(engines.VLLM, {"gpu-memory-utilization": 0.5, "max_num_seqs": 8})
    assert same == engines.answers_by(engines.VLLM, {}) == ""
    assert engines.answers_by(engines.VLLM, {"quantization": "fp8"}) != same


def one(model: Any, tone: str = "") -> Any:
    return model, tone


def other(model: Any) -> Any:
    return model


def test_answers_of_another_function_are_other_answers() -> None:
    kind, rude = functools.partial(one, tone="kind"), functools.partial(one, tone="rude")
    told = [engines.answers_by(each, {}) for each in (one, other, kind, rude, functools.partial(one, tone=object()))]
    assert len(set(told)) == 5 and told == [
        engines.answers_by(each, {})
        for each in (one, other, functools.partial(one, tone="kind"), rude, functools.partial(one, tone=object()))
    ]


def test_what_a_command_says_itself_is_no_option(model: Path) -> None:
    told = refusal(model, engine_options={"served-model-name": "x", "port": 9})
    assert "'port' in engine_options is what the command of vllm says itself" in told


def test_a_prompt_that_is_no_json_is_a_bad_row(model: Path) -> None:
    told = refusal(model, [{"messages": [{"role": "user", "content": b"bytes"}]}], on_bad_row="stop")
    assert "prompt 1: it cannot be written as JSON" in told


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"patience": -1}, {"limit": 0}, {"few_shot": -1}])
def test_an_evaluation_has_the_same_bounds(model: Path, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name} is "):
        evaluation_spec(model, ["sums"], Judging(**wrong))


def test_an_evaluation_spreads_a_model_over_all_devices_of_a_host(model: Path) -> None:
    """A chip of TPU7x is two devices of a framework."""
    options, flags = Options(accelerator="tpu7x-4"), {"tensor_parallel_size": 8}
    (*_, settings) = evaluation_spec(model, ["sums"], Judging(engine_options=flags), options).args
    assert settings.devices == batch_spec(model, ["a"], Batch(engine_options=flags), options).args[2].devices == 8


def test_a_server_does_not_know_of_the_other_hosts_of_its_slice() -> None:
    given = {
        "RANK": "1",
        "MASTER_ADDR": "a",
        "JAX_PROCESS_ID": "1",
        "TPU_WORKER_ID": "1",
        "HOME": "/h",
        "KINETIC_JOIN": "{}",
    }
    assert environment(given, "cpu", 4, 1) == {"HOME": "/h"}
    on_tpu = environment(given, "tpu", 4, 4)
    assert on_tpu["TPU_PROCESS_BOUNDS"] == "1,1,1" and on_tpu["TPU_VISIBLE_CHIPS"] == "0,1,2,3" and "RANK" not in on_tpu
    assert environment(given, "tpu", 4, 8, per_chip=2) == on_tpu  # of TPU7x, whose chips are two devices each
