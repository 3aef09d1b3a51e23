"""Batch inference and evaluation as tasks: `KineticServeBatchOperator` and `KineticEvaluateOperator`.

Both are `KineticTPUOperator`s whose job the core makes, so a task is deferred, killed and found again as any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from airflow_kinetic._compat import AirflowFailException, AirflowSkipException
from airflow_kinetic.operators.kinetic import KineticTPUOperator
from airflow_kinetic.shared.parameters.declared import UNKNOWN
from kinetic_orchestration.errors import UsageError

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context, XComArg
    from kinetic_orchestration import Data
    from kinetic_orchestration.api.steps.asked import Served
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.program.inference.report import BatchReport

ON_LOW = ("fail", "skip", "return")
RENAMED = {"output": "output_path"}  # `output` is what a task hands to others

S = TypeVar("S", bound="Served")


class _StepOperator(KineticTPUOperator):
    """A task whose job the core makes of its parameters, once their templates are rendered. Airflow knows parameters by
    the signature of a class, so each states those of its step; a test compares them with the core's.
    """

    def __init__(self, **kwargs: Any) -> None:
        for name in ("python_callable", "script", "op_args", "op_kwargs"):
            if kwargs.get(name) is not None:
                raise UsageError(f"{type(self).__name__} takes no {name}: the core makes its function")
        super().__init__(**{**kwargs, "python_callable": self._stands_in, "script": None})

    @staticmethod
    def _stands_in() -> None:
        """Stand in for a function where a task is checked; `step` gives the job its own."""

    @classmethod
    def declared(cls) -> Mapping[str, Any]:
        return {**super().declared(), "python_callable": UNKNOWN}

    def asked(self, kind: type[S]) -> S:
        """Return the keywords of the step, as the core has them."""
        from kinetic_orchestration.api.steps.asked import names_of

        return kind(**{name: getattr(self, RENAMED.get(name, name)) for name in names_of(kind)})


class KineticServeBatchOperator(_StepOperator):
    """Answer many prompts by a model on an accelerator. The task's value is the batch's report.

    A later task with the same `output_path` asks only the rows that have no answer there.

    :param model: directory in the layout of Hugging Face's hub (here, ``gs://`` or ``s3://``), or ``hf://owner/name``;
        also the output of a task, `Data` or `KineticData` (templated)
    :param prompts: a list of texts or rows, or a file of JSON lines (templated)
    :param engine: ``"vllm"``, ``"transformers"``, a `Server`, or a function
    :param output_path: folder or address of the answers; by default ``batch`` in the job's ``output_dir`` (templated)
    :param parameters: those of every request, such as ``{"max_tokens": 64}`` (templated)
    :param concurrency: rows that each host asks at once
    :param engine_options: flags of the server, passed untouched (templated)
    :param patience: seconds until the server has to be healthy
    :param on_bad_row: ``"keep"`` writes a failure for a row that cannot be asked; ``"stop"`` refuses the batch for it
    :param retry_failed: ask rows again whose answer is a failure

    All other parameters are those of `KineticTPUOperator`, without a function or a script.
    """

    template_fields: Sequence[str] = (
        *KineticTPUOperator.template_fields, "model", "prompts", "output_path", "parameters", "engine_options",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **KineticTPUOperator.template_fields_renderers, "prompts": "json", "parameters": "json",
    }  # fmt: skip

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] | Data | XComArg | None,
        prompts: Any,
        engine: Any = "vllm",
        output_path: str | os.PathLike[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        concurrency: int = 64,
        engine_options: Mapping[str, Any] | None = None,
        patience: float | None = None,
        on_bad_row: str = "keep",
        retry_failed: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model, self.prompts, self.engine, self.output_path = model, prompts, engine, output_path
        self.parameters, self.concurrency, self.engine_options = parameters, concurrency, engine_options
        self.patience, self.on_bad_row, self.retry_failed = patience, on_bad_row, retry_failed

    def step(self, options: Options) -> JobSpec:
        from kinetic_orchestration.api.steps.asked import Batch
        from kinetic_orchestration.api.steps.inference import batch_spec

        return batch_spec(self.model, self.prompts, self.asked(Batch), options)

    def execute(self, context: Context) -> Any:
        return self.charged(super().execute(context))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return self.charged(super().execute_complete(context, event))

    def charged(self, report: Any) -> Any:
        """Return the report with the cost of its job, which hosts do not know."""
        job = self.own_try().job
        if job is None or not isinstance(report, Mapping):  # with wait=False it is a job's id
            return report
        from kinetic_orchestration.api.handle import JobHandle
        from kinetic_orchestration.api.steps.inference import with_cost

        return with_cost(cast("BatchReport", report), JobHandle(job))


class KineticEvaluateOperator(_StepOperator):
    """Evaluate a model by tasks of lm-evaluation-harness on an accelerator. The task's value is its report.

    :param model: directory in the layout of Hugging Face's hub (here, ``gs://`` or ``s3://``), or ``hf://owner/name``;
        also the output of a task, `Data` or `KineticData` (templated)
    :param tasks: names of the harness's tasks (templated)
    :param folder: folder with tasks of your own (templated)
    :param at_least: scores that have to be reached, such as ``{"gsm8k": {"exact_match": 0.5}}``
    :param at_most: the same for metrics of which less is better
    :param on_low: what a score that is too low does: ``"fail"`` fails the task for good, ``"skip"`` skips it and
        what follows, ``"return"`` only says so in the value. With the first two, XCom has it as ``evaluation``
    :param engine: ``"vllm"``, ``"transformers"`` or a `Server`
    :param engine_options: flags of the server, passed untouched (templated)
    :param chat: ask by messages, with the model's template
    :param limit: prompts of each task, or a share of them below 1
    :param few_shot: solved examples before each prompt
    :param concurrency: prompts that are asked at once
    :param harness_options: further options of ``lm_eval run``
    :param output_path: folder or address of the results; by default ``evaluation`` in the job's ``output_dir``
        (templated)
    :param patience: seconds until the server has to be healthy

    All other parameters are those of `KineticTPUOperator`, without a function or a script.
    """

    template_fields: Sequence[str] = (
        *KineticTPUOperator.template_fields, "model", "tasks", "folder", "output_path", "engine_options",
    )  # fmt: skip

    def __init__(
        self,
        *,
        model: str | os.PathLike[str] | Data | XComArg,
        tasks: str | Sequence[str] | XComArg,
        folder: str | os.PathLike[str] | None = None,
        at_least: Mapping[str, Mapping[str, float]] | None = None,
        at_most: Mapping[str, Mapping[str, float]] | None = None,
        on_low: str = "fail",
        engine: Any = "vllm",
        engine_options: Mapping[str, Any] | None = None,
        chat: bool = False,
        limit: float | None = None,
        few_shot: int | None = None,
        concurrency: int = 32,
        harness_options: Mapping[str, Any] | None = None,
        output_path: str | os.PathLike[str] | None = None,
        patience: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        from kinetic_orchestration.program.inference.servers.evaluation.scores import checked_bounds

        if on_low not in ON_LOW:
            raise UsageError(f"on_low is {on_low!r}: it can be {', '.join(map(repr, ON_LOW))}")
        checked_bounds(at_least, at_most)
        self.model, self.tasks, self.folder, self.output_path = model, tasks, folder, output_path
        self.at_least, self.at_most, self.on_low = at_least, at_most, on_low
        self.engine, self.engine_options, self.patience = engine, engine_options, patience
        self.chat, self.limit, self.few_shot, self.concurrency = chat, limit, few_shot, concurrency
        self.harness_options = harness_options

    def step(self, options: Options) -> JobSpec:
        from kinetic_orchestration.api.steps.asked import Judging
        from kinetic_orchestration.api.steps.evaluation import evaluation_spec

        return evaluation_spec(self.model, self.tasks, self.asked(Judging), options)

    def execute(self, context: Context) -> Any:
        return self.judged(super().execute(context), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return self.judged(super().execute_complete(context, event), context)

    def judged(self, report: Any, context: Context) -> Any:
        """Return the report of a model that has passed; fail or skip the task of one that has not."""
        if not isinstance(report, Mapping) or self.on_low == "return":  # with wait=False it is a job's id
            return report
        context["ti"].xcom_push(key="evaluation", value=dict(report))
        if report["passed"]:
            return report
        told = f"{'; '.join(report['reasons'])}. The samples: {report['output']}"
        raise (AirflowFailException if self.on_low == "fail" else AirflowSkipException)(told)
