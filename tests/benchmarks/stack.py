"""Batch inference beside a bare client on a server that takes a fixed time for each answer, and after a kill; then beside
vLLM (`vllm`), and checkpoints beside Orbax (`orbax`).

The bare client asks the same server the same prompts, as many at once, and writes each answer to a file. The time of a
batch is its whole call without the start of its server, which is a line of its own.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.program.inference import step
from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure
from tests.support import openai_server
from tests.support.ports import held_port

ROWS, CONCURRENCY, DELAY, ROUNDS = 640, 32, 0.2, 3
MOST = 1.05

Row = dict[str, Any]


def figures() -> Iterator[Figure]:
    from tests.benchmarks import orbax, vllm

    yield from of_batches()
    yield from vllm.figures()
    yield from orbax.figures()


def of_batches() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kinetic-stack-") as name:
        folder = Path(name)
        prompts = [{"prompt": f"prompt {n} " + "word " * (n % 40)} for n in range(ROWS)]
        bare, ours, starts = [], [], []
        with _server(folder) as port:
            for number in range(ROUNDS + 1):
                took = measure.seconds(lambda: ask_plainly(port, prompts, folder / "bare"))
                began = time.perf_counter()
                report = _batch(folder, prompts, f"output-{number}")
                if number:  # the first round warms up
                    bare.append(took)
                    ours.append(time.perf_counter() - began - report["start_seconds"])
                    starts.append(report["start_seconds"])
        value, floor = statistics.median(ours), statistics.median(bare)
        yield measure.figure("stack.batch / a bare client", value, "s", floor, MOST, concurrency=CONCURRENCY)
        yield measure.bounded("stack.batch's start of its server", statistics.median(starts), "s", None)
        yield measure.bounded("stack.finished prompts asked again after a kill", _asked_again(folder, prompts), "", 0.0)


def _batch(folder: Path, prompts: list[Row], output: str) -> Any:
    """A batch with a server of its own, and a model that has but the names of files."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    script = ["{python}", openai_server.__file__, "--model", "{model}", "--port", "{port}"]
    engine = kinetic.Server(argv=[*script, "--state", str(folder), "--delay", str(DELAY)])
    return answer(model, prompts, folder / output, engine)


def answer(
    model: Path, prompts: list[Row], output: Path, engine: kinetic.Server, parameters: Mapping[str, Any] | None = None
) -> Any:
    """Do as a host of `serve_batch` does; returns its report."""
    settings = step.Settings(
        engine=engine, output=str(output), parameters=parameters or {}, concurrency=CONCURRENCY
    )  # fmt: skip
    report = step.answer_all(str(model), prompts, settings)
    assert report is not None
    assert report["answered"] == len(prompts)
    return report


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    with held_port() as held:
        port: int = held.getsockname()[1]
        script = [sys.executable, openai_server.__file__, "--port", str(port), "--state", str(folder)]
        process = subprocess.Popen([*script, "--delay", str(DELAY)], stdout=subprocess.DEVNULL)
        try:
            until(lambda: is_healthy(port))
            yield port
        finally:
            process.kill()
            process.wait()


def is_healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask_plainly(port: int, prompts: list[Row], path: Path, parameters: Mapping[str, Any] | None = None) -> None:
    """Ask one by one, as anybody writes it who has no batch inference."""
    left, lock = iter(prompts), threading.Lock()

    def ask(file: Any) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while True:
            with lock:
                prompt = next(left, None)
            if prompt is None:
                break
            url = "/v1/completions" if "prompt" in prompt else "/v1/chat/completions"
            body = json.dumps({"model": "m", **prompt, **(parameters or {})})
            connection.request("POST", url, body, {"Content-Type": "application/json"})
            told = json.loads(connection.getresponse().read())
            (choice,) = told["choices"]
            text = choice["text"] if "prompt" in prompt else choice["message"]["content"]
            line = json.dumps({**prompt, "text": text, "tokens_out": told["usage"]["completion_tokens"]}) + "\n"
            with lock:
                file.write(line)
        connection.close()

    with path.open("w") as file, ThreadPoolExecutor(CONCURRENCY) as threads:
        for asked in [threads.submit(ask, file) for _ in range(CONCURRENCY)]:
            asked.result()


def _asked_again(folder: Path, prompts: list[Row]) -> int:
    """Kill a batch at a third, continue it, and count the prompts whose answers were there and that were asked again."""
    state, asked = folder / "killed", folder / "killed" / "asked"
    state.mkdir()
    command = [sys.executable, "-m", "tests.benchmarks.stack", str(state), json.dumps(prompts)]
    program = subprocess.Popen(command, cwd=ROOT, env=measure.environment(PYTHONPATH=os.pathsep.join(sys.path)))
    try:
        until(lambda: len(_finished(state / "output")) > len(prompts) // 3)
    finally:
        program.kill()
        program.wait()
    finished, before = _finished(state / "output"), len(asked.read_text().splitlines())
    _batch(state, prompts, "output")
    again = [json.loads(line)["prompt"] for line in asked.read_text().splitlines()[before:]]
    assert set(again) == {row["prompt"] for row in prompts} - finished, "a prompt without an answer was not asked"
    return sum(prompt in finished for prompt in again)


def _finished(output: Path) -> set[str]:
    found: set[str] = set()
    for path in itertools.chain(output.glob("parts/*.jsonl"), output.glob("journal/*/*.jsonl")):
        try:
            found |= {json.loads(line)["prompt"] for line in path.read_text().splitlines()}
        except FileNotFoundError:  # its answers are in a part now
            continue
    return found


def until(condition: Callable[[], object], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come")
        time.sleep(0.05)


if __name__ == "__main__":
    _batch(Path(sys.argv[1]), json.loads(sys.argv[2]), "output")
