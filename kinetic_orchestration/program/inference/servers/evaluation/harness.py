"""lm-evaluation-harness as a process on a host: asks a model's server the prompts of tasks, and leaves scores and
samples.

Its command is made by a pure function (`lm_eval`, release 0.4.13). Knows no engine: a server has an address, a name for
the model, and a number of tokens that it takes.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import escaping

REQUIREMENT = "lm-eval[api]"
LAST_LINES = 30
LONGEST_RESULTS = 64 << 20
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True, slots=True)
class Asked:
    """Tasks by which a model is evaluated, and how.

    Attributes:
        tasks: Names of tasks.
        folder: Folder with tasks of one's own, "" for none; paths in its files are relative to it.
        chat: Ask by messages, with the model's own template.
        limit: Prompts of each task; None for all.
        few_shot: Solved examples before each prompt; None for the task's own number.
        concurrency: Requests at a time.
        options: Further options of `lm_eval run`, by name.
    """

    tasks: Sequence[str]
    folder: str = ""
    chat: bool = False
    limit: int | float | None = None
    few_shot: int | None = None
    concurrency: int = 32
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """The server that is asked.

    Attributes:
        address: Such as `http://127.0.0.1:8000`.
        name: Name of the model in requests.
        longest: Tokens of a prompt and its answer together; 0 if it says no number.
        tokenizer: Folder of the tokenizer; "" if it is not known.
        takes_tokens: A prompt may be a list of tokens.
    """

    address: str
    name: str
    longest: int = 0
    tokenizer: str = ""
    takes_tokens: bool = True


def command(asked: Asked, served: Served, output: str, python: str = sys.executable) -> list[str]:
    """Return the words of the harness's command, which leaves its results below `output`."""
    path = "/v1/chat/completions" if asked.chat else "/v1/completions"
    model: dict[str, Any] = {"model": served.name, "base_url": served.address + path}
    model |= {"num_concurrent": asked.concurrency, "max_retries": 5}
    if served.longest:
        model["max_length"] = served.longest
    if served.tokenizer and not asked.chat:
        model |= {"tokenizer": served.tokenizer, "tokenizer_backend": "huggingface"}
        model["tokenized_requests"] = served.takes_tokens
    else:  # whatever counts tokens then has to come from the task itself
        model |= {"tokenizer_backend": None, "tokenized_requests": False}
    words = [python, "-m", "lm_eval", "run", "--model", f"local-{'chat-' if asked.chat else ''}completions"]
    words += ["--model_args", json.dumps(model), "--tasks", ",".join(asked.tasks), "--output_path", output]
    words += ["--log_samples", "--batch_size", "1"]  # the server makes batches of what it is asked at the same time
    if asked.folder:
        words += ["--include_path", asked.folder]
    if asked.chat:
        words.append("--apply_chat_template")
    for name, value in (("limit", asked.limit), ("num_fewshot", asked.few_shot), *(asked.options or {}).items()):
        flag = f"--{name}"
        if value is not None and value is not False:
            words += [flag] if value is True else [flag, value if isinstance(value, str) else json.dumps(value)]
    return words


def environment(environ: Mapping[str, str], asked: Asked, scratch: str) -> dict[str, str]:
    """Return the variables of the harness: with tasks of one's own it asks no hub, unless a variable says so."""
    found = {"HF_HOME": os.path.join(scratch, "hub"), "TQDM_MININTERVAL": "10", **environ}
    found |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "", "GIT_CEILING_DIRECTORIES": "/"}
    direct = environ.get("no_proxy") or environ.get("NO_PROXY")
    found["NO_PROXY"] = found["no_proxy"] = ",".join(filter(None, [direct, "127.0.0.1"]))  # where the server is
    if asked.folder:
        found |= {name: "1" for name in _OFFLINE if name not in environ}
    return found


def run(asked: Asked, served: Served, scratch: str, environ: Mapping[str, str], hint: str = "") -> Path:
    """Run the harness and return the folder with its results. Its lines are those of this process.

    Args:
        asked: What is evaluated.
        served: The server.
        scratch: Empty folder.
        environ: Variables of this host.
        hint: What else may be wrong if the server's answers lack log probabilities.

    Raises:
        UsageError: It failed; the message has its last lines.
    """
    output = os.path.join(scratch, "results")
    process = subprocess.Popen(
        command(asked, served, output), cwd=asked.folder or scratch, env=environment(environ, asked, scratch),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    by_probabilities = False
    try:
        for line in process.stdout:
            shown = escaping.log(line.decode("utf-8", "replace").rstrip())
            last.append(shown)
            by_probabilities |= "loglikelihood requests" in shown
            print(shown, flush=True)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
    if code:
        told = "\n".join(last)
        more = f"{hint} " if by_probabilities else ""
        raise UsageError(f"lm_eval ended with exit code {code}. {more}Its last lines:\n{told}")
    return Path(output)


def results_in(folder: Path) -> dict[str, Any]:
    """Return the newest file of results below a folder.

    Raises:
        UsageError: There is none.
    """
    found = sorted(folder.rglob("results_*.json"), key=lambda path: path.name)
    if not found or found[-1].stat().st_size > LONGEST_RESULTS:
        raise UsageError(f"lm_eval left no file of results that can be read: {[path.name for path in found]}")
    document = json.loads(found[-1].read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise UsageError(f"{found[-1].name} of lm_eval is no table of results")
    return document


def samples_in(folder: Path) -> list[Path]:
    """Return the files of samples, one for each task."""
    return sorted(folder.rglob("samples_*.jsonl"))


def task_of(path: Path) -> str:
    """Return the task of a file of samples, whose name ends in the time."""
    return re.sub(r"_\d{4}-\d\d-\d\dT[\d.-]+$", "", path.stem.removeprefix("samples_"))
