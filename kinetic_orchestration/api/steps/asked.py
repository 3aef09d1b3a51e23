"""The keywords of `serve_batch` and `evaluate`, stated once for every way to call them, and what both check of them.

It knows no job: `inference` and `evaluation` make it of what was asked. Type checkers know these keywords by
`api/keywords.py`, which is written from here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import OPTION_NAMES, Need, Options, slice_of
from kinetic_orchestration.program.inference import models
from kinetic_orchestration.program.inference.servers import engines

BUCKETS = ("gs://", "s3://")


@dataclass(frozen=True, kw_only=True)
class Served:
    """The keywords of a step that asks a server on each host.

    Attributes:
        engine: Name of an engine, a `Server`, or a function.
        engine_options: Flags of the server.
        output: Folder or address of the results.
        patience: Seconds until the server has to be healthy.
    """

    engine: Any = "vllm"
    engine_options: Mapping[str, Any] | None = None
    output: str | os.PathLike[str] | None = None
    patience: float | None = None


@dataclass(frozen=True, kw_only=True)
class Batch(Served):
    """The keywords of `serve_batch`, which describes them."""

    parameters: Mapping[str, Any] | None = None
    concurrency: int = 64
    on_bad_row: str = "keep"
    retry_failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Judging(Served):
    """The keywords of `evaluate`, which describes them."""

    folder: str | os.PathLike[str] | Data | None = None
    at_least: Mapping[str, Mapping[str, float]] | None = None
    at_most: Mapping[str, Mapping[str, float]] | None = None
    chat: bool = False
    limit: float | None = None
    few_shot: int | None = None
    concurrency: int = 32
    harness_options: Mapping[str, Any] | None = None


S = TypeVar("S", bound=Served)
F = TypeVar("F", bound=Callable[..., Any])


def names_of(kind: type[Served]) -> tuple[str, ...]:
    """Return the keywords of a kind of step."""
    return tuple(entry.name for entry in fields(kind))


def divided(kind: type[S], given: Mapping[str, Any]) -> tuple[S, dict[str, Any]]:
    """Return the keywords of a step among those of a call, and the others, which are options of its job.

    Raises:
        UsageError: A name is neither, and the most similar one is a keyword of the step.
    """
    import difflib

    own = set(names_of(kind))
    for name in given.keys() - own - OPTION_NAMES:
        near = difflib.get_close_matches(name, [*names_of(kind), *OPTION_NAMES], 1)
        if near and near[0] in own:
            raise UsageError(f"there is no option {name!r}: did you mean {near[0]}?")
    mine = {name: value for name, value in given.items() if name in own}
    return kind(**mine), {name: value for name, value in given.items() if name not in own}


def showing(kind: type[Served]) -> Callable[[F], F]:
    """Have `help` and completions in notebooks show the keywords of a step, which its function takes as `**given`."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *first, rest = signature.parameters.values()
        each = [
            inspect.Parameter(
                entry.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
                annotation=entry.type,
            )
            for entry in fields(kind)
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*first, *each, rest])
        return function

    return decorate


def check_job(step: str, given: Batch | Judging, options: Options | None) -> tuple[Options, engines.Engine]:
    """Return the options of a step's job, and its engine; what all steps with a server are asked is checked.

    Args:
        step: Name of the step.
        given: Its keywords.
        options: Options of its job.

    Raises:
        UsageError: An option is invalid, or not for a step whose hosts each run one server; there is no such engine, or
            the hosts of one of the choices cannot serve its model; a number of requests or of seconds is none.
    """
    checked = check_options(options or Options())
    if checked.debug or checked.processes is not None:
        what = "debug" if checked.debug else "processes"
        raise UsageError(f"{what}= is not for {step}: each host runs one server with all its devices")
    engine = engines.engine_of(given.engine)
    for each in map(slice_of, ways(checked)):
        devices = 0 if each.kind == "cpu" else each.devices_per_host
        engines.check(engine, dict(given.engine_options or {}), devices, each.name)
    _check_limits(given.concurrency, given.patience)
    return checked, engine


def needs_of(engine: engines.Engine) -> tuple[Need, ...]:
    """Return what hosts have to have for the server of an engine; nothing if it is not Python's, or has its own, or
    nobody says which distribution has its module: then each host looks for that."""
    if not isinstance(engine, engines.Server) or not engine.module or engine.python:
        return ()
    if not engine.distributions and engine not in engines.ENGINES.values():
        return ()
    return (Need(engine.module, engines.advice(engine), tuple(engine.distributions.values())),)


def _check_limits(concurrency: Any, patience: Any) -> None:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 4096:
        raise UsageError(f"concurrency is {concurrency!r}: it is a number of requests, from 1 to 4096")
    if patience is not None and (isinstance(patience, bool) or not isinstance(patience, (int, float)) or patience <= 0):
        raise UsageError(f"patience is {patience!r}: it is a number of seconds, or None")


def place_of(output: str | os.PathLike[str] | None) -> str:
    """Return the folder or the address of a step's results as a host is given it; "" for that of the job.

    Raises:
        UsageError: It is neither.
    """
    if output is None:
        return ""
    place = os.fspath(output)
    if place.startswith(BUCKETS):
        return place.rstrip("/")
    if "://" in place or not place:
        raise UsageError(f"output is {place!r}: it is a folder, or an address that begins with gs:// or s3://")
    return os.path.abspath(os.path.expanduser(place))


def model_of(model: Any, engine: engines.Engine) -> Any:
    """Return the model as the host is given it: `Data`, which is a path there, a name of the hub, or None.

    Raises:
        UsageError: It is none.
    """
    if model is None:
        if isinstance(engine, engines.Server):
            raise UsageError("model is None: a server serves the model of a directory, or one of the hub (hf://…)")
        return None
    if isinstance(model, Data):
        data = on_disk(model, "model")
        if data.is_hf:  # a commit that hosts fetch; by its name alone, a server would take what is there then
            return data
    else:
        address = os.fspath(model)
        if address.startswith(models.HUB):
            models.hub_name(address)
            return address
        bucket = address.startswith(BUCKETS)
        if not bucket and isinstance(engine, engines.Server):
            models.check(os.path.abspath(os.path.expanduser(address)))
        data = Data(address.rstrip("/") + "/" if bucket else address)
    if isinstance(engine, engines.Server) and not (data.is_gcs or data.is_s3):
        models.check(data.path)
    return data


def on_disk(data: Data, of: str) -> Data:
    """Return data whose files a host has on its disk; UsageError if nothing of them is copied."""
    if data.stream:
        raise UsageError(f"{of} is Data(…, stream=True), of which nothing is on a host's disk: leave stream out")
    return data
