"""Batch inference and evaluation with real engines, on CPUs, in the environment that the examples share: vLLM,
`transformers serve`, and lm-evaluation-harness.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
import kinetic_orchestration.errors as kinetic_errors
from tests.support.pages import SOURCE, page
from tests.support.waits import wait_until

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
MINE = ("batch_inference.py", "evaluate_model_dagster.py")
STARTS = 900.0  # seconds for a start of vLLM on a machine that is busy; on an idle one it takes 40

real = [pytest.mark.slow, pytest.mark.turn(4), pytest.mark.timeout(2400)]


def run(name: str, folder: Path, *words: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=folder, env={**os.environ, "PYTHONWARNINGS": "ignore", **environ}, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", MINE)
def test_an_example_says_what_it_shows_and_what_to_change_and_is_on_the_page(name: str) -> None:
    begin = (EXAMPLES / name).read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{name}" in begin
    assert re.search(r"(?i)for a real slice", begin)
    assert f"({SOURCE}/blob/main/example_pipelines/{name})" in page("docs/training/llm.md")


def server_of(job_id: str, home: Path) -> tuple[int, int] | None:
    """The process and the port of a job's server, by the variables and the words of its process."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it is gone, or another user's
            continue
        ours = {f"KINETIC_JOB_ID={job_id}".encode(), f"KINETIC_HOME={home}".encode()} <= set(environ)
        if ours and words[1:3] == [b"-m", b"vllm.entrypoints.openai.api_server"]:
            return int(folder.name), int(words[words.index(b"--port") + 1])
    return None


def asked(port: int, prompt: str, **parameters: Any) -> tuple[int, Any]:
    """Ask a server by a bare request; returns its answer."""
    base = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{base}/v1/models", timeout=60) as reply:
        name = json.load(reply)["data"][0]["id"]
    body = json.dumps({"model": name, "prompt": prompt, **parameters}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return 200, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def counted(port: int, name: str) -> float:
    """Return the value of a server's counter."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}_total{{"))


def make_adapter(folder: Path) -> None:
    """Write random adapters of `tiny_model` in PEFT's layout."""
    import numpy

    rank, shapes = 8, {"self_attn.q_proj": (64, 64), "mlp.down_proj": (128, 64)}
    generator, header, weights = numpy.random.default_rng(0), {}, b""
    for layer, (module, (inner, outer)) in itertools.product(range(2), shapes.items()):
        for kind, shape in (("lora_A", (rank, inner)), ("lora_B", (outer, rank))):
            data = generator.normal(size=shape).astype("<f4").tobytes()
            place = {"dtype": "F32", "shape": shape, "data_offsets": (len(weights), len(weights) + len(data))}
            header[f"base_model.model.model.layers.{layer}.{module}.{kind}.weight"] = place
            weights += data
    about = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(about)) + about + weights)
    options = {"r": rank, "lora_alpha": 16, "target_modules": [name.rpartition(".")[2] for name in shapes]}
    written = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", **options}
    (folder / "adapter_config.json").write_text(json.dumps(written))


def answers(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for part in sorted(folder.rglob("*.jsonl")) for line in part.read_text("utf-8").splitlines()
    ]


class TestVllm:
    pytestmark = real

    def test_a_batch_survives_the_end_of_its_server_and_asks_nothing_twice(
        self, frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Answers are those of bare requests; a prompt that is too long is one bad row, in the server's words."""
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import batch_inference as example

        for name, value in example.ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        model, output = example.make_model(), tmp_path / "answers"
        short = [f"two and {number} are" for number in range(300)]
        parameters, long = {"max_tokens": 48, "temperature": 0}, "two " * 400

        def begun() -> Any:
            return kinetic.serve_batch(
                model, [*short, long], engine_options=example.ENGINE_OPTIONS["vllm"], parameters=parameters,
                concurrency=4, output=output, accelerator="cpu", requirements=example.REQUIREMENTS,
                capture_env_vars=[*example.ENVIRONMENT], limits=kinetic.Limits(run="2000s"),
            )  # fmt: skip

        job = begun()
        wait_until(
            lambda: len(answers(output)) >= 20 or job.status().final, lambda: job.tail(40), within=STARTS, pause=0.2
        )
        found = server_of(job.job_id, frameworks)
        assert found is not None, job.tail(40)
        process, port = found
        bare = {prompt: asked(port, prompt, **parameters)[1]["choices"][0]["text"] for prompt in short[:5]}
        status, refused = asked(port, long, **parameters)
        before = {answer["key"]: answer for answer in answers(output)}
        os.kill(process, signal.SIGTERM)  # as a machine that ends does: requests in flight are answered 500
        report = job.result()

        assert (report["rows"], report["answered"], report["failed"], report["restarts"]) == (301, 300, 1, 1)
        kept = answers(output / "parts")
        assert len({answer["key"] for answer in kept}) == len(kept) == 301
        by_key = {answer["key"]: answer for answer in kept}
        assert {key: by_key[key] for key in before} == before, "what had an answer was asked again"
        texts = {answer["prompt"]: answer.get("text") for answer in kept}
        assert {prompt: texts[prompt] for prompt in bare} == bare
        [bad] = [answer for answer in kept if "error" in answer]
        assert (bad["prompt"], bad["error"]["status"], status) == (long, 400, 400)
        assert refused["error"]["message"] in bad["error"]["message"]

        again = begun()
        told = again.result()
        assert (told["answered"], told["failed"], told["reused"], told["tokens_in"]) == (300, 1, 301, 0)
        assert told["start_seconds"] == 0, "no server was started for nothing"

    def test_adapters_speculation_and_the_prefix_cache_are_the_engines_own(
        self, frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row names the adapter that answers it; the server guesses ahead, and keeps what prompts begin with."""
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import batch_inference as example
        import tiny_model

        for name, value in example.ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        make_adapter(tmp_path / "adapter")
        prompts = [f"{tiny_model.TEXT}; " * 3 + f"two and {number} are" for number in range(100)]
        ngrams = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
        adapters = [{"name": "adapter", "path": kinetic.Data(tmp_path / "adapter")}]
        output, parameters = tmp_path / "answers", {"max_tokens": 48, "temperature": 0}
        named = {"parameters": {"model": "adapter"}}
        adapted = [{"prompt": one, "custom_id": f"adapted {number}", **named} for number, one in enumerate(prompts)]
        job = kinetic.serve_batch(
            example.make_model(), [*prompts, *adapted], output=output, parameters=parameters, concurrency=2,
            engine_options=example.ENGINE_OPTIONS["vllm"] | {
                "enable_prefix_caching": True, "block_size": 32, "speculative_config": ngrams, "enable_lora": True,
                "lora_modules": adapters,
            },
            accelerator="cpu", requirements=example.REQUIREMENTS, capture_env_vars=[*example.ENVIRONMENT],
            limits=kinetic.Limits(run="2000s"),
        )  # fmt: skip
        wait_until(
            lambda: len(answers(output)) >= 20 or job.status().final, lambda: job.tail(40), within=STARTS, pause=0.2
        )
        found = server_of(job.job_id, frameworks)
        assert found is not None, job.tail(40)
        counts = [counted(found[1], name) for name in ("prefix_cache_hits", "spec_decode_num_draft_tokens")]
        report = job.result()

        assert min(counts) > 0, counts
        assert (report["rows"], report["answered"]) == (200, 200)
        found_texts: dict[bool, dict[str, str]] = {False: {}, True: {}}
        for answer in kinetic.read_answers(output):
            found_texts[bool(answer["custom_id"])][answer["prompt"]] = answer["text"]
        assert all(found_texts[False][prompt] != found_texts[True][prompt] for prompt in prompts)

    def test_an_evaluation_in_dagster_blocks_what_is_downstream(self, frameworks: Path, tmp_path: Path) -> None:
        said = run("evaluate_model_dagster.py", tmp_path)
        found = re.search(
            r"^result +sums 0%, colours (\d+)%: blocked, sums: exact_match is 0, and at least 0.5 is required; made model$",
            said, re.M,
        )  # fmt: skip
        assert found is not None, said[-3000:]
        kept = re.search(r"^samples +(.*)$", said, re.M)
        assert kept is not None
        samples = {path.name for path in Path(kept[1]).iterdir()}
        assert {"results.json", "samples_colours.jsonl", "samples_sums.jsonl"} <= samples


class TestTransformers:
    pytestmark = real

    @pytest.mark.offline  # minutes, for calls that the tests beside it make as well
    def test_the_example_answers_all_prompts_and_a_second_run_asks_none_again(
        self, frameworks: Path, tmp_path: Path
    ) -> None:
        said = run("batch_inference.py", tmp_path, "transformers")
        told = r"^result +40 of 40 answered by transformers, then 40 of 40 were there already$"
        assert re.search(told, said, re.M), said[-3000:]
        assert re.search(r"^first +'two and \d+ are' → '", said, re.M)

    def test_transformers_serve_is_an_engine_that_refuses_what_it_cannot_answer(
        self, frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And evaluates a model by what it writes, while tasks that compare log probabilities name the engine to take."""
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import batch_inference as example

        model, output = example.make_model(), tmp_path / "answers"
        options: dict[str, Any] = {"accelerator": "cpu", "requirements": example.REQUIREMENTS, "engine": "transformers"}
        chat = {"messages": [{"role": "user", "content": "two and two"}]}
        rows = ["two and two are", "the sky is", "two " * 400, chat]
        report = kinetic.serve_batch(model, rows, output=output, parameters=example.PARAMETERS, **options).result()
        assert (report["answered"], report["failed"], report["engine"]) == (3, 1, "transformers")
        [bad] = [answer for answer in answers(output / "parts") if "error" in answer]
        assert "maximum context length is 256 tokens, and this prompt has 401 and asks for 8" in bad["error"]["message"]
        assert all(answer["tokens_out"] == 8 for answer in answers(output / "parts") if "error" not in answer)

        tasks = EXAMPLES / "made_tasks"
        found = kinetic.evaluate(model, ["sums"], folder=tasks, at_least={"sums": {"exact_match": 0.0}}, **options)
        assert found.passed and found.score("sums", "exact_match") == 0.0 and found.harness == "lm-eval 0.4.13"
        assert len(Path(found.samples["sums"]).read_text("utf-8").splitlines()) == len(
            json.loads((tasks / "sums.json").read_text("utf-8"))
        )
        with pytest.raises(kinetic_errors.UsageError, match=r"tells no log probabilities.*take the engine vllm"):
            kinetic.evaluate(model, ["colours"], folder=tasks, **options)
