"""`serve_batch`: many prompts, answered by a model on all hosts of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.api.steps.asked import (
    Batch,
    check_job,
    divided,
    model_of,
    needs_of,
    on_disk,
    place_of,
    showing,
)
from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, options_from, slice_of
from kinetic_orchestration.program import client_only
from kinetic_orchestration.program.inference import rows
from kinetic_orchestration.program.inference.servers import engines
from kinetic_orchestration.program.inference.step import ByFunction, Settings, answer_all

if TYPE_CHECKING:
    from typing import Unpack  # which Python 3.10 on a host has not

    from kinetic_orchestration.api.handle import JobHandle
    from kinetic_orchestration.api.keywords import OfServeBatch
    from kinetic_orchestration.plan.hardware.cost import Estimate
    from kinetic_orchestration.program.inference.report import BatchReport

NAME = "serve_batch"


@showing(Batch)
def serve_batch(
    model: str | os.PathLike[str] | Data | None,
    prompts: Sequence[Any] | str | os.PathLike[str] | Data,
    **given: Unpack[OfServeBatch],
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
        **given: The keywords below, and the options of `run` except `debug` and `processes`.

    Keyword Args:
        engine: `"vllm"` (default) or `"transformers"`; a `Server` with the command of another OpenAI-compatible server;
            or a function that each host calls once with the model's path, and which returns a function that takes a
            list of rows and returns an answer for each: a text, a dict with `text`, or an exception.
        output: Folder or address of the results; by default `batch` in the job's `output_dir`.
        parameters: Of every request, such as `{"max_tokens": 64}`. A row's own override them.
        concurrency: Rows that each host asks at once; 64 by default.
        engine_options: Flags of the server, passed untouched: `{"quantization": "fp8", "enable_lora": True}`.
        patience: Seconds until the server has to be healthy; by default 45 minutes on a TPU, 20 on a GPU, 15 on a CPU.
        on_bad_row: `"keep"` (default) writes a failure for a row that cannot be asked; `"stop"` refuses the batch for
            it.
        retry_failed: Ask rows again whose answer in `output` is a failure.

    Returns:
        A handle of the job, whose value is a `BatchReport`.

    Raises:
        UsageError: The model is none, a prompt is bad and the batch stops for it, the model takes several hosts, or the
            answers would end with the hosts.
        KineticError: The job could not be submitted.
    """
    client_only.require("serve_batch")
    from kinetic_orchestration.api.handle import announced, launched
    from kinetic_orchestration.jobs.request import draft

    asked, options = divided(Batch, given)
    request = draft(batch_spec(model, prompts, asked, options_from(options))).open()
    return announced(launched(request), request.settings)


def with_cost(report: BatchReport, handle: JobHandle[BatchReport]) -> BatchReport:
    """Return a report with the cost of the whole job, its waiting hosts and failed attempts too, if it has a price."""
    report = {**report, "emulated": handle.emulated}
    try:
        cost = handle.cost()
    except KineticError:  # it is worth no step
        return report
    return charged(report, cost)


def charged(report: BatchReport, cost: Estimate) -> BatchReport:
    """Return a report with a job's cost; of emulated hardware it is what the named one would cost, as hosts have it.

    For a million tokens it is not known if earlier attempts have answered rows: the report has the tokens of the last
    attempt alone.
    """
    if cost.usd is None:
        return report
    tokens = report["tokens_in"] + report["tokens_out"]
    told = bool(tokens) and not (report["reused"] and cost.attempts > 1)
    return {**report, "usd": cost.usd, "usd_per_million_tokens": cost.usd / tokens * 1e6 if told else None}


def batch_spec(model: Any, prompts: Any, asked: Batch, options: Options | None = None) -> JobSpec:
    """Return the job of a `serve_batch` with these arguments: a function and its arguments, for every way to run one.

    Raises:
        UsageError: As `serve_batch` does, before anything runs.
    """
    checked, engine = check_job(NAME, asked, options)
    _check(asked)
    slice_ = slice_of(checked)
    settings = Settings(
        engine=engine if isinstance(engine, engines.Server) else None,
        output=place_of(asked.output),
        parameters=dict(asked.parameters or {}),
        concurrency=asked.concurrency,
        engine_options=dict(asked.engine_options or {}),
        patience=asked.patience,
        on_bad_row=asked.on_bad_row,
        retry_failed=asked.retry_failed,
        devices=slice_.devices_per_host,
        per_chip=slice_.devices_per_chip,
    )
    args = (model_of(model, engine), _prompts(prompts, asked.on_bad_row), settings)
    function: Callable[..., BatchReport | None] = (
        answer_all if isinstance(engine, engines.Server) else ByFunction(engine)
    )
    return JobSpec(NAME, checked, function, args, output=settings.output, is_priced=True, needs=needs_of(engine))


def _check(asked: Batch) -> None:
    if wrong := rows.check_parameters(asked.parameters or {}):
        raise UsageError(wrong)
    if asked.on_bad_row not in ("keep", "stop"):
        raise UsageError(f"on_bad_row is {asked.on_bad_row!r}: it is 'keep' or 'stop'")


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
    for one in listed:
        on_disk(one, "prompts")
    if any(one.is_hf for one in listed):
        raise UsageError("prompts on hf:// are a dataset: write them as JSON lines first")
    here = [one.path for one in listed if not (one.is_gcs or one.is_s3)]
    if len(here) == len(listed):
        rows.check(rows.found_in({rows.FILES: here}), on_bad_row)
    return {rows.FILES: listed}
