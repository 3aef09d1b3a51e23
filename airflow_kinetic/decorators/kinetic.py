"""`@task.kinetic`, and the same decorator as an importable, typed name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, Task, task_decorator_factory

from airflow_kinetic.operators.kinetic import KineticTPUOperator

P = ParamSpec("P")
R = TypeVar("R")


class KineticDecoratedOperator(DecoratedOperator, KineticTPUOperator):
    """What a call of a function decorated by `@task.kinetic` makes."""

    template_fields: Sequence[str] = KineticTPUOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = KineticTPUOperator.template_fields_renderers
    shallow_copy_attrs: Sequence[str] = KineticTPUOperator.shallow_copy_attrs
    custom_operator_name = "@task.kinetic"

    def __init__(self, *, python_callable: Callable[..., Any], op_args: Any, op_kwargs: Any, **kwargs: Any) -> None:
        call = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=call, **call, **kwargs)


@overload
def kinetic_task(python_callable: Callable[P, R]) -> Task[P, R]: ...


@overload
def kinetic_task(
    *, accelerator: str = ..., multiple_outputs: bool | None = None, **kwargs: Any
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def kinetic_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """Make a function a task that runs on an accelerator: the parameters of `KineticTPUOperator`, and any task's."""
    return task_decorator_factory(
        python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=cast("Any", KineticDecoratedOperator),
        **kwargs,
    )
