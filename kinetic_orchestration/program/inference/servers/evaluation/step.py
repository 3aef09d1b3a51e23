"""The function that a host runs to evaluate a model: its server, the harness against it, scores, and what is kept."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.host.view.retrying_records import RetryingRecords
from kinetic_orchestration.program.context import HostContext, current
from kinetic_orchestration.program.inference import models, output
from kinetic_orchestration.program.inference.servers import engines, process
from kinetic_orchestration.program.inference.servers.evaluation import harness, scores
from kinetic_orchestration.protocol.system import copies

FOLDER = "evaluation"  # below a job's output_dir
RESULTS = "results.json"


class EvaluationReport(TypedDict):
    """The value of an evaluation: JSON."""

    passed: bool
    reasons: list[str]
    scores: list[dict[str, Any]]
    model: str
    engine: str
    start_seconds: float
    seconds: float
    harness: str
    output: str
    samples: dict[str, str]


@dataclass(frozen=True, slots=True)
class Settings:
    """Orders of a host, besides the model and the tasks."""

    engine: engines.Server
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    bounds: scores.Bounds = ()
    output: str = ""  # "": below the job's output_dir
    patience: float | None = None
    devices: int = 1  # of a host, for the model
    per_chip: int = 1  # devices of a chip


def evaluate_model(model: str, folder: str | None, asked: harness.Asked, settings: Settings) -> EvaluationReport | None:
    """Evaluate a model on host 0 of the job. Other hosts have nothing to do.

    Args:
        model: A directory of this host, or `hf://owner/name`.
        folder: Folder with tasks of one's own.
        asked: What is evaluated.
        settings: The rest.

    Raises:
        UsageError: The model is none, or the harness failed.
        EngineNotStarted: The server did not become healthy.
    """
    host = current()
    if host.host_index:
        return None
    if not model.startswith(models.HUB):
        models.check(model)
    if find_spec("lm_eval") is None:
        raise UsageError(
            f"lm_eval is not in the environment of this job: add the line {harness.REQUIREMENT} to its requirements"
        )
    asked = replace(asked, folder=os.path.abspath(folder) if folder else "")
    place = f"{(settings.output or f'{host.output_dir}/{FOLDER}').rstrip('/')}/{output.attempt_of(host)[1]}"
    output.check_reach(place, host)
    with _scratch() as scratch, _kept(place) as kept, _serving(model, settings, host, kept) as server:
        begun = time.monotonic()
        results = harness.run(
            asked, _served(server, model, settings.engine), scratch, copies.environ(), _hint(settings)
        )
        seconds, started = time.monotonic() - begun, server.started_seconds
        document = harness.results_in(results)
        kept.write(RESULTS, json.dumps(document, indent=1).encode())
        samples = {harness.task_of(path): kept.upload(path) for path in harness.samples_in(results)}
    found = scores.scores_in(document)
    values: dict[str, Any] = scores.by_name(found)
    host.log_metrics(**values)
    reasons = scores.below(found, settings.bounds)
    return {
        "passed": not reasons, "reasons": list(reasons), "scores": [asdict(one) for one in found],
        "model": models.identity(model), "engine": settings.engine.name, "start_seconds": round(started, 3),
        "seconds": round(seconds, 3), "harness": f"lm-eval {document.get('lm_eval_version', '')}".strip(),
        "output": place, "samples": samples,
    }  # fmt: skip


def _hint(settings: Settings) -> str:
    return (
        f"The engine {settings.engine.name} tells no log probabilities, by which multiple_choice and loglikelihood "
        "tasks are judged: take the engine vllm for these."
    )


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kinetic-evaluation-", ignore_cleanup_errors=True)


@contextlib.contextmanager
def _serving(model: str, settings: Settings, host: HostContext, kept: _Kept) -> Iterator[process.Running]:
    def say(text: str) -> None:
        print(f"kinetic: {text}", file=sys.stderr, flush=True)
        host.progress(0, unit="task")  # a start is no stall

    server = process.of_host(
        settings.engine, settings.engine_options, model, devices=settings.devices, per_chip=settings.per_chip,
        hosts=host.host_count, patience=settings.patience,
        keep_log=lambda path, number: kept.upload(Path(path), f"server-{number}.log"), tell=say,
    )  # fmt: skip
    try:
        server.healthy()
        yield server
    finally:
        server.stop()


def _served(server: process.Running, model: str, engine: engines.Server) -> harness.Served:
    address = f"http://{process.HOST}:{server.port}"
    tokenizer, longest = "", _longest(server.port)
    if find_spec("transformers") is not None:  # else the server counts tokens, and none is cut
        tokenizer = model if not model.startswith(models.HUB) else models.hub_name(model)[0]
    return harness.Served(address, server.served, longest, tokenizer, takes_tokens=engine.name != "transformers")


def _longest(port: int) -> int:
    """Return the tokens of a prompt and its answer, as vLLM's list of models has them; 0 if it has no number."""
    connection = http.client.HTTPConnection(process.HOST, port, timeout=30)
    try:
        connection.request("GET", "/v1/models")
        told = json.loads(connection.getresponse().read(process.ANSWER_LIMIT))
        return int(told["data"][0]["max_model_len"] or 0)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return 0
    finally:
        connection.close()


class _Kept:
    """Files of one attempt in its folder or bucket."""

    def __init__(self, place: str, records: Any) -> None:
        self._place, self._records = place, records

    def write(self, name: str, data: bytes) -> str:
        self._records.create(name, data)
        return f"{self._place}/{name}"

    def upload(self, path: Path, name: str = "") -> str:
        """Keep a file; returns its address."""
        name = name or f"samples_{re.sub(r'[^A-Za-z0-9_.-]', '_', harness.task_of(path))}.jsonl"
        self._records.upload(name, str(path))
        return f"{self._place}/{name}"


@contextlib.contextmanager
def _kept(place: str) -> Iterator[_Kept]:
    if buckets.in_bucket(place):
        records = buckets.open_place(place)
        try:
            yield _Kept(place, records)
        finally:
            records.close()
    else:
        os.makedirs(place, exist_ok=True)
        yield _Kept(place, RetryingRecords(place))
