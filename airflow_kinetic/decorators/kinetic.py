"""`@task.kinetic`, and the same decorator as an importable, typed name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from airflow_kinetic._compat import DecoratedOperator, Task, internals, task_decorator_factory
from airflow_kinetic.decorators.keywords import KineticOptions
from airflow_kinetic.operators.kinetic import KineticTPUOperator
from airflow_kinetic.shared.parameters.arguments import is_final
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.spec import Options as JobOptions

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """Options that every Airflow task takes."""

    task_id: str
    task_display_name: str | None
    multiple_outputs: bool | None
    do_xcom_push: bool
    inlets: Any
    outlets: Any
    owner: str
    params: Any
    default_args: dict[str, Any] | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    map_index_template: str | None
    depends_on_past: bool
    wait_for_downstream: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    trigger_rule: str
    start_date: datetime | None
    end_date: datetime | None
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    execution_timeout: timedelta | None
    pool: str | None
    pool_slots: int
    queue: str
    priority_weight: int
    weight_rule: Any
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[Any, Any] | None
    resources: dict[str, Any] | None
    run_as_user: str | None
    render_template_as_native_obj: bool | None
    allow_nested_operators: bool
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Any
    post_execute: Any
    logger_name: str | None
    dag: Any
    task_group: Any


class Options(KineticOptions, TaskOptions, total=False):
    """All that `@task.kinetic(…)` takes."""


class KineticDecoratedOperator(DecoratedOperator, KineticTPUOperator):
    """The operator that a call of a function decorated by `@task.kinetic` creates."""

    template_fields: Sequence[str] = KineticTPUOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = KineticTPUOperator.template_fields_renderers
    shallow_copy_attrs: Sequence[str] = KineticTPUOperator.shallow_copy_attrs
    custom_operator_name = "@task.kinetic"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any],
        op_kwargs: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        call = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=call, **cast("dict[str, Any]", call), **kwargs)


@overload
def kinetic_task(python_callable: Callable[P, R], /) -> Task[P, R]: ...


@overload
def kinetic_task(**options: Unpack[Options]) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def kinetic_task(python_callable: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function a task that runs on an accelerator: the parameters of `KineticTPUOperator`, and any task's."""
    if "accelerator" in options and is_final(options["accelerator"]):
        check_options(JobOptions(accelerator=options["accelerator"]))  # a task that is mapped is made only when it runs
    made: Any = task_decorator_factory(
        python_callable, decorated_operator_class=cast("Any", KineticDecoratedOperator), **options
    )
    try:
        from airflow_kinetic.shared.parameters.mapping import checked_task
    except ImportError as error:
        internals.warn_missing("airflow.sdk.definitions.mappedoperator", error)
        return made
    if python_callable is not None:
        return checked_task(made, KineticTPUOperator)
    return lambda function: checked_task(made(function), KineticTPUOperator)
