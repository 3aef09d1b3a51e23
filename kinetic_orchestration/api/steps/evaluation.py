"""`evaluate`: a model judged by tasks of lm-evaluation-harness, on one host of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.api.steps.asked import (
    Judging,
    check_job,
    divided,
    model_of,
    needs_of,
    on_disk,
    place_of,
    showing,
)
from kinetic_orchestration.errors import ScoresTooLow, UsageError
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Need, Options, options_from, slice_of
from kinetic_orchestration.program import client_only
from kinetic_orchestration.program.inference.servers import engines
from kinetic_orchestration.program.inference.servers.evaluation import harness, scores
from kinetic_orchestration.program.inference.servers.evaluation.scores import Score
from kinetic_orchestration.program.inference.servers.evaluation.step import EvaluationReport, Settings, evaluate_model

if TYPE_CHECKING:
    from typing import Unpack  # which Python 3.10 on a host has not

    from kinetic_orchestration.api.keywords import OfEvaluate

NAME = "evaluate"
_OURS = frozenset({"model", "model_args", "tasks", "output_path", "include_path", "log_samples", "batch_size"})


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a model by an evaluation, and whether they are good enough.

    Attributes:
        passed: No score is too low or too high.
        reasons: A sentence for each score that is.
        scores: All scores, by task and metric.
        model: Digest of all bytes of the model, or its name in the hub.
        engine: Engine by which it was served.
        start_seconds: Seconds until the server was healthy.
        seconds: Seconds of the evaluation itself.
        harness: Name and release of the harness.
        output: Folder or address with the results.
        samples: By task, the file with every prompt and answer.
    """

    passed: bool
    reasons: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    model: str = ""
    engine: str = ""
    start_seconds: float = 0.0
    seconds: float = 0.0
    harness: str = ""
    output: str = ""
    samples: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, report: EvaluationReport) -> Evaluation:
        """Return the value of an evaluation's job as an object."""
        found = tuple(Score(**one) for one in report["scores"])
        rest: dict[str, Any] = {**report, "scores": found, "reasons": tuple(report["reasons"])}
        return cls(**rest)

    def score(self, task: str, metric: str) -> float:
        """Return one score; `metric` has its filter after a comma if a task has several.

        Raises:
            KeyError: There is none, or there are several.
        """
        name, comma, filter_ = metric.partition(",")
        found = [
            one.value
            for one in self.scores
            if one.task == task and one.metric == name and (not comma or one.filter == filter_)
        ]
        if len(found) != 1:
            raise KeyError(f"{len(found)} scores are {metric} of {task}: {self.metrics()}")
        return found[0]

    def metrics(self) -> dict[str, float]:
        """Return all scores by `task/metric`, with the filter after a comma unless it is the only one."""
        return scores.by_name(self.scores)

    def require(self) -> Evaluation:
        """Return this evaluation, if it has passed.

        Raises:
            ScoresTooLow: It has not.
        """
        if not self.passed:
            raise ScoresTooLow(f"{'; '.join(self.reasons)}. The samples: {self.output}")
        return self


@showing(Judging)
def evaluate(
    model: str | os.PathLike[str] | Data, tasks: str | Sequence[str], **given: Unpack[OfEvaluate]
) -> Evaluation:
    """Evaluate a model by tasks of lm-evaluation-harness, and wait for it.

    The host runs a server of the model, and the harness against it, both in the job's environment. Every prompt and
    answer is kept. A score that is too low is no error: see `passed`, or `require()`.

    Args:
        model: Directory in the layout of Hugging Face's hub (here, `gs://`, `s3://` or a `Data`), or `hf://owner/name`.
        tasks: Names of tasks.
        **given: The keywords below, and the options of `run` except `debug` and `processes`. `requirements` needs
            `lm-eval[api]`, the engine, and `transformers` for tasks that compare log probabilities.

    Keyword Args:
        folder: Folder with tasks of your own: YAML files and their data. Paths in these files are relative to it. With
            it no hub is asked, unless `HF_HUB_OFFLINE` or `HF_DATASETS_OFFLINE` says so.
        at_least: What has to be reached, such as `{"gsm8k": {"exact_match": 0.5}}`. Of a metric with several filters
            one is named, `"exact_match,strict-match"`.
        at_most: The same for metrics of which less is better.
        engine: `"vllm"` (default), `"transformers"`, or a `Server`.
        engine_options: Flags of the server, passed untouched.
        chat: Ask by messages, with the model's template.
        limit: Prompts of each task, or a share of them below 1.
        few_shot: Solved examples before each prompt.
        concurrency: Prompts that are asked at once; 32 by default.
        harness_options: Further options of `lm_eval run`, such as `{"gen_kwargs": "temperature=0"}`.
        output: Folder or address of the results; by default `evaluation` in the job's `output_dir`.
        patience: Seconds until the server has to be healthy; by default 45 minutes on a TPU, 20 on a GPU, 15 on a CPU.

    Returns:
        What it has found.

    Raises:
        UsageError: The model is none, an option is invalid, there is no such task, the slice has several hosts, or the
            results would end with the host.
        KineticError: The job could not be submitted, or ended without a value.
    """
    client_only.require("evaluate")
    from kinetic_orchestration.api.handle import launched, run_to_end
    from kinetic_orchestration.api.printer import say
    from kinetic_orchestration.jobs.launch import cancel_if_interrupted
    from kinetic_orchestration.jobs.request import draft

    asked, options = divided(Judging, given)
    request = draft(evaluation_spec(model, tasks, asked, options_from(options))).open()
    with cancel_if_interrupted(request, say):
        job = launched(request)
    return Evaluation.of(run_to_end(job, request.settings))


def evaluation_spec(model: Any, tasks: Any, asked: Judging, options: Options | None = None) -> JobSpec:
    """Return the job of an `evaluate` with these arguments: a function and its arguments, for every way to run one.

    Raises:
        UsageError: As `evaluate` does, before anything runs.
    """
    checked, engine = check_job(NAME, asked, options)
    if not isinstance(engine, engines.Server):
        raise UsageError(
            "lm-evaluation-harness asks a server, and this engine is a function: name an engine or a Server"
        )
    for each in map(slice_of, ways(checked)):
        if each.hosts > 1:
            raise UsageError(
                f"{each.name} has {each.hosts} hosts, and an evaluation runs on one: take a slice of one host"
            )
    _check_numbers(asked.limit, asked.few_shot)
    slice_ = slice_of(checked)
    settings = Settings(
        engine=engine, engine_options=dict(asked.engine_options or {}),
        bounds=scores.checked_bounds(asked.at_least, asked.at_most), output=place_of(asked.output),
        patience=asked.patience, devices=slice_.devices_per_host, per_chip=slice_.devices_per_chip,
    )  # fmt: skip
    of_harness = harness.Asked(
        _tasks(tasks), chat=bool(asked.chat), limit=asked.limit, few_shot=asked.few_shot, concurrency=asked.concurrency,
        options=_harness_options(asked.harness_options),
    )  # fmt: skip
    args = model_of(model, engine), _folder(asked.folder), of_harness, settings
    needs = (*needs_of(engine), Need("lm_eval", harness.REQUIREMENT))
    return JobSpec(NAME, checked, evaluate_model, args, output=settings.output, needs=needs)


def _tasks(tasks: Any) -> tuple[str, ...]:
    listed = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    if not listed or not all(isinstance(one, str) and one and "," not in one for one in listed):
        raise UsageError(f"tasks is {tasks!r:.200}: it is a list of names of tasks, such as ['gsm8k']")
    return listed


def _check_numbers(limit: Any, few_shot: Any) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0):
        raise UsageError(f"limit is {limit!r}: it is a number of prompts, or a share of them below 1")
    if few_shot is not None and (isinstance(few_shot, bool) or not isinstance(few_shot, int) or few_shot < 0):
        raise UsageError(f"few_shot is {few_shot!r}: it is a number of examples")


def _folder(folder: Any) -> Data | None:
    return folder if folder is None else on_disk(folder if isinstance(folder, Data) else Data(folder), "folder")


def _harness_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    options = {str(name).replace("-", "_").lstrip("_"): value for name, value in (given or {}).items()}
    if taken := sorted(_OURS & options.keys()):
        raise UsageError(f"harness_options has {taken[0]!r}, which evaluate sets itself")
    return options
