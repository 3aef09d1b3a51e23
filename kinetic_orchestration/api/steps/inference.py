"""`serve_batch`: many prompts, answered by a model on all hosts of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, options_from, slice_of
from kinetic_orchestration.program import client_only
from kinetic_orchestration.program.inference import models, rows
from kinetic_orchestration.program.inference.output import out_of_reach
from kinetic_orchestration.program.inference.servers import engines
from kinetic_orchestration.program.inference.step import ByFunction, Settings, answer_all

if TYPE_CHECKING:
    from typing import Unpack  # which Python 3.10 on a host has not

    from kinetic_orchestration.api.handle import JobHandle
    from kinetic_orchestration.api.keywords import OfCommand
    from kinetic_orchestration.jobs.request import Request
    from kinetic_orchestration.plan.values import Plan
    from kinetic_orchestration.program.inference.report import BatchReport

NAME = "serve_batch"
_BUCKETS = ("gs://", "s3://")


def serve_batch(
    model: str | os.PathLike[str] | Data | None,
    prompts: Sequence[Any] | str | os.PathLike[str] | Data,
    *,
    engine: Any = "vllm",
    output: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int = 64,
    engine_options: Mapping[str, Any] | None = None,
    patience: float | None = None,
    on_bad_row: str = "keep",
    retry_failed: bool = False,
    **options: Unpack[OfCommand],
) -> JobHandle[BatchReport]:
    """Answer many prompts by a model, on all hosts of a job, and keep what is answered whatever ends them.

    Each host runs a server of its own, and takes parts of the prompts as it gets free, the longest first. Answers are
    JSON lines in the parts of `output`. A later attempt, or a later call with the same `output`, asks only the rows
    that have no answer there.

    Args:
        model: Directory in the layout of Hugging Face's hub (here, `gs://`, `s3://` or a `Data`), or `hf://owner/name`.
            None for an engine that needs none.
        prompts: List of texts or of rows, or a file of JSON lines, or a list of such files' `Data`. A row has `prompt`
            or `messages`, and may have a `custom_id` and `parameters` of its own.
        engine: `"vllm"` or `"transformers"`; a `Server` with the command of another OpenAI-compatible server; or a
            function that each host calls once with the model's path, and which returns a function that takes a list of
            rows and returns an answer for each: a text, a dict with `text`, or an exception.
        output: Folder or address of the results; by default `batch` in the job's `output_dir`.
        parameters: Of every request, such as `{"max_tokens": 64}`. A row's own override them.
        concurrency: Rows that each host asks at once.
        engine_options: Flags of the server, passed untouched: `{"quantization": "fp8", "enable_lora": True}`.
        patience: Seconds until the server has to be healthy; by default 45 minutes on a TPU, 20 on a GPU, 15 on a CPU.
        on_bad_row: `"keep"` writes a failure for a row that cannot be asked; `"stop"` refuses the batch for it.
        retry_failed: Ask rows again whose answer in `output` is a failure.
        **options: Options of `run`, except `debug` and `processes`.

    Returns:
        A handle of the job, whose value is a `BatchReport`.

    Raises:
        UsageError: The model is none, a prompt is bad and the batch stops for it, or the model takes several hosts.
        KineticError: The job could not be submitted.
    """
    client_only.require("serve_batch")
    from kinetic_orchestration.api.handle import announced, launched
    from kinetic_orchestration.jobs.request import draft

    spec = batch_spec(
        model, prompts, engine=engine, output=output, parameters=parameters, concurrency=concurrency,
        engine_options=engine_options, patience=patience, on_bad_row=on_bad_row, retry_failed=retry_failed,
        options=options_from(options),
    )  # fmt: skip
    asked = draft(spec)
    check_reach(asked.plan, spec.args[-1].output)
    request = priced(asked.open())
    return announced(launched(request), request.settings)


def check_reach(plan: Plan, output: str) -> None:
    """Raise UsageError for a folder of machines that end with their job, before there are any."""
    if not output or "://" in output or all(one.traits.share_machine for one in plan.each()):
        return
    if not any(f"{output}/".startswith(f"{mount.rstrip('/')}/") for mount in plan.volumes):
        raise out_of_reach(output)


def priced(request: Request) -> Request:
    """Return the request of a batch with the price of its hosts, where that is known, for the cost per token in its
    report. Of emulated hardware it is what the named one would cost, and the report says so."""
    from kinetic_orchestration.capacity import prices
    from kinetic_orchestration.plan.hardware.prices import Price, dearest

    plan = request.plan
    *args, told = request.spec.args
    told = replace(told, emulated=plan.emulated)
    if not plan.choices and plan.purchase.slice.kind != "cpu":
        settings = prices.in_force(request.settings, request.store)
        found = dearest(plan.purchase, plan.zones, settings.prices, settings.listed)
        if isinstance(found, Price):
            told = replace(told, usd_per_hour=found.usd_per_chip_hour * plan.purchase.chips)
    return request.another_call(replace(request.spec, args=(*args, told)), request.identity)


def batch_spec(
    model: Any,
    prompts: Any,
    *,
    engine: Any = "vllm",
    output: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int = 64,
    engine_options: Mapping[str, Any] | None = None,
    patience: float | None = None,
    on_bad_row: str = "keep",
    retry_failed: bool = False,
    options: Options | None = None,
) -> JobSpec:
    """Return the job of a `serve_batch` with these arguments: a function and its arguments, for every way to run one.

    Raises:
        UsageError: As `serve_batch` does, before anything runs.
    """
    checked = check_options(options or Options())
    if checked.debug or checked.processes is not None:
        what = "debug" if checked.debug else "processes"
        raise UsageError(f"{what}= is not for serve_batch: each host runs one server with all its devices")
    chosen, flags = engines.engine_of(engine), dict(engine_options or {})
    slice_ = slice_of(checked)
    for each in map(slice_of, ways(checked)):
        engines.check(chosen, flags, 0 if each.kind == "cpu" else each.devices_per_host, each.name)
    _check(parameters, concurrency, patience, on_bad_row)
    settings = Settings(
        engine=chosen if isinstance(chosen, engines.Server) else None,
        output=place_of(output),
        parameters=dict(parameters or {}),
        concurrency=concurrency,
        engine_options=flags,
        patience=patience,
        on_bad_row=on_bad_row,
        retry_failed=retry_failed,
        devices=slice_.devices_per_host,
        per_chip=slice_.devices_per_chip,
    )
    args = (model_of(model, chosen), _prompts(prompts, on_bad_row), settings)
    function: Callable[..., BatchReport | None] = (
        answer_all if isinstance(chosen, engines.Server) else ByFunction(chosen)
    )
    return JobSpec(NAME, checked, function, args)


def _check(parameters: Any, concurrency: Any, patience: Any, on_bad_row: Any) -> None:
    if wrong := rows.check_parameters(parameters or {}):
        raise UsageError(wrong)
    check_limits(concurrency, patience)
    if on_bad_row not in ("keep", "stop"):
        raise UsageError(f"on_bad_row is {on_bad_row!r}: it is 'keep' or 'stop'")


def check_limits(concurrency: Any, patience: Any) -> None:
    """Raise UsageError unless these are a number of requests and of seconds, as every step with a server takes them."""
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
    if place.startswith(_BUCKETS):
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
        data = model
    else:
        address = os.fspath(model)
        if address.startswith(models.HUB):
            models.hub_name(address)
            return address
        bucket = address.startswith(_BUCKETS)
        if not bucket and isinstance(engine, engines.Server):
            models.check(os.path.abspath(os.path.expanduser(address)))
        data = Data(address.rstrip("/") + "/" if bucket else address)
    if data.is_hf:
        models.hub_name(data.path)
        return data.path
    if isinstance(engine, engines.Server) and not (data.is_gcs or data.is_s3):
        models.check(data.path)
    return data


def _prompts(prompts: Any, on_bad_row: str) -> Any:
    """Return the prompts as the host is given them; a list and files of this machine are checked here."""
    if isinstance(prompts, (str, os.PathLike)):
        prompts = Data(prompts)
    if isinstance(prompts, Data):
        prompts = [prompts]
    if isinstance(prompts, (bytes, Mapping)) or not hasattr(prompts, "__iter__"):
        raise UsageError(f"prompts is a {type(prompts).__name__}: it is a list of prompts, or a file of JSON lines")
    listed = list(prompts)
    if not listed or not all(isinstance(one, Data) for one in listed):
        rows.check(rows.found_in(listed), on_bad_row)
        return listed
    if any(one.is_hf for one in listed):
        raise UsageError("prompts on hf:// are a dataset: write them as JSON lines first")
    here = [one.path for one in listed if not (one.is_gcs or one.is_s3)]
    if len(here) == len(listed):
        rows.check(rows.found_in({rows.FILES: here}), on_bad_row)
    return {rows.FILES: listed}
