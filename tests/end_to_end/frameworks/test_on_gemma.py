"""One Gemma, fine-tuned with LoRA by KerasHub and by Flax: what each writes is read by the other one alike, and served."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import Metrics

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
EPOCHS, DIES = 2, 14

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import training_gemma

    return training_gemma


@pytest.mark.turn(4)
@pytest.mark.parametrize(("way", "engine"), [("with_keras", "vllm"), ("with_flax", "transformers")])
def test_adapters_survive_a_kill_and_both_loaders_and_a_server_read_the_result_alike(
    frameworks: Path, tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch, way: str, engine: str
) -> None:
    """Killed at step 14, it goes on at 10 and ends with the very logits of a training that nobody disturbed."""
    make, train = example.make_model.__kinetic_function__, getattr(example, way).__kinetic_function__
    read, rows_of = example.read_by_both.__kinetic_function__, example.tokens_of
    count = example.BATCH * example.EPOCH

    def cut_off() -> dict[str, Any]:
        from kinetic_orchestration.program.loop import Training

        host = kinetic.current()
        advance = Training.advance

        def dying(self: Any, done: int, *rest: Any, **more: Any) -> None:
            if done == DIES and host.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            advance(self, done, *rest, **more)

        Training.advance = dying  # type: ignore[method-assign]
        base = host.output_dir + "/model"
        if host.attempt == 1:
            make()
        killed = train(base, epochs=EPOCHS)
        os.environ["KINETIC_CHECKPOINT_DIR"] += "/undisturbed"
        return {
            "killed": killed,
            "whole": train(base, epochs=EPOCHS),
            "read": read(killed["model"]),
            "base": read(base),
            "texts": texts_of(base, rows_of(base, count)[:4].tolist()),
        }

    options = {"accelerator": "v5e-4", "requirements": example.REQUIREMENTS, "keras_backend": "jax"}
    again = {"retry": kinetic.Retry(user=1, infra=1), "limits": kinetic.Limits(run="1500s")}
    job = kinetic.run(**options, **again)(cut_off).run_async()
    found = job.result()
    killed, whole = found["killed"], found["whole"]
    assert re.search(r"restored the checkpoint of step 10\b", job.logs() or "")
    assert {"loss"} <= {name for event in job.events() if isinstance(event, Metrics) for name in event.values}
    assert np.array_equal(killed["logits"], whole["logits"])
    assert killed["losses"] == whole["losses"][-len(killed["losses"]) :]
    assert whole["losses"][-1] < 0.9 * whole["losses"][0]
    assert 0 < whole["trained"] < 0.3
    check_read(found, killed["logits"])
    check_layout(Path(killed["model"]), Path(killed["model"]).parent / "model")
    promoted = kinetic.promote(killed["model"], to=str(tmp_path / "models"))
    assert (Path(promoted.uri) / "model.safetensors").is_file()
    check_served(promoted.uri, found, engine, monkeypatch)


def texts_of(model: str, rows: list[list[int]]) -> list[list[list[str]]]:
    """Return the text of each begin of a row, and each text that is one token longer; "" where a text is other tokens."""
    import sentencepiece

    words = sentencepiece.SentencePieceProcessor(model_file=f"{model}/tokenizer.model")
    pieces = range(words.vocab_size())

    def of(begin: list[int]) -> list[str]:
        text = words.decode(begin)
        return [text if words.encode(text) == begin else "", *(words.decode([*begin, piece]) for piece in pieces)]

    return [[of(row[1 : end + 1]) for end in range(1, len(row))] for row in rows]


def check_served(model: str, found: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server answers each begin of four rows with the token that the training's own logits have in the first place."""
    import batch_inference

    for name, value in batch_inference.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    expected, of_base = {}, {}
    for row, texts in enumerate(found["texts"]):
        for at, (text, *longer) in enumerate(texts, start=1):
            trained, base = found["killed"]["logits"][row, at], found["base"]["keras"][row, at]
            second, first = np.sort(trained)[-2:]
            if text and first - second > 0.1:  # else rounding decides
                expected[text] = longer[trained.argmax()].removeprefix(text)
                of_base[text] = longer[base.argmax()].removeprefix(text)
    assert len(expected) > 10 and expected != of_base
    job = kinetic.serve_batch(
        model, [*expected], engine=engine, engine_options=batch_inference.ENGINE_OPTIONS[engine],
        parameters={"max_tokens": 1, "temperature": 0}, accelerator="cpu", requirements=batch_inference.REQUIREMENTS,
        capture_env_vars=[*batch_inference.ENVIRONMENT], limits=kinetic.Limits(run="1200s"),
    )  # fmt: skip
    answers = {answer["prompt"]: answer["text"] for answer in kinetic.read_answers(job.result()["output"])}
    assert answers == expected


def check_read(found: dict[str, Any], trained: Any) -> None:
    """Both loaders agree on the base and on the result, which is what was in memory and another one than the base."""
    for logits in found["read"].values():
        np.testing.assert_allclose(logits, trained, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["base"]["keras"], found["base"]["flax"], rtol=1e-3, atol=1e-3)
    assert abs(trained - found["base"]["keras"]).max() > 0.5


def check_layout(made: Path, base: Path) -> None:
    """The same files and tensors by the hub's names: all that is not a weight is the base's own."""

    def tensors(folder: Path) -> dict[str, Any]:
        data = (folder / "model.safetensors").read_bytes()
        told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return {name: (each["dtype"], each["shape"]) for name, each in told.items() if name != "__metadata__"}

    assert {path.name for path in made.iterdir()} == {path.name for path in base.iterdir()}
    for path in base.iterdir():
        assert path.suffix == ".safetensors" or path.read_bytes() == (made / path.name).read_bytes()
    assert tensors(made) == tensors(base)
    assert len(tensors(base)) == 2 + 6 * 13


@pytest.mark.offline
def test_the_example_fine_tunes_in_both_ways(frameworks: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "training_gemma.py")],
        cwd=tmp_path, env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(tmp_path.iterdir()), "it left something in its folder"
    rows = re.findall(
        r"^result +loss ([\d.]+) → ([\d.]+) on 4 devices, by (\w+), .* are (\S+) apart$", done.stdout, re.M
    )
    assert [name for *_, name, _ in rows] == ["keras", "flax"]
    assert all(float(after) < 0.5 * float(before) and float(apart) < 1e-3 for before, after, _, apart in rows)
