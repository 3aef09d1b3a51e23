"""Mapped tasks, checked while their DAG is parsed: Airflow itself creates them only when they run.

This is the one module that knows the internals of Airflow's two kinds of partially declared tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from airflow_kinetic._compat import MappedOperator, OperatorPartial, XComArg
from airflow_kinetic.shared.parameters.declared import UNKNOWN, check, declared_with
from airflow_kinetic.shared.parameters.later_data import KineticData
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.choices import form_of

OURS = "airflow_kinetic."  # the prefix of the module names of our own operators


@attrs.define(kw_only=True, repr=False)
class CheckedPartial(OperatorPartial):
    """The result of `KineticTPUOperator.partial(…)`. `declared`: that operator's parameters, with their defaults."""

    declared: Mapping[str, Any]

    @classmethod
    def of(cls, made: OperatorPartial, declared: Mapping[str, Any]) -> CheckedPartial:
        fields = _fields(made)
        made._expand_called = True  # another one is expanded: Airflow would warn that this one never was
        return cls(**fields, declared=declared)

    def expand(self, **mapped: Any) -> MappedOperator:
        if isinstance(several := mapped.get("accelerator"), (list, tuple)):
            mapped = {**mapped, "accelerator": [form_of(one) for one in several]}  # stored with the DAG, as JSON
        operator = super().expand(**mapped)
        _check_kept(operator, mapped)
        for values in _one_by_one(mapped):
            check_mapped(operator, values, self.declared)
        return operator

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        operator = super().expand_kwargs(kwargs, strict=strict)
        _check_kept(operator, kwargs)
        anything = dict.fromkeys(self.declared, UNKNOWN)
        stands = operator.partial_kwargs if strict else {}  # nothing may take its place
        for values in [kwargs] if isinstance(kwargs, XComArg) else kwargs:
            given = {**anything, **stands} if isinstance(values, XComArg) else values
            check_mapped(operator, given, self.declared)
        return operator


def checked_task(made: Any, operator: type) -> Any:
    """Return the task that `@task.kinetic` makes of a function, whose arguments are the mapped ones.

    `operator`: the class that has the task's parameters, which the decorator's own class only passes on.
    """
    kind: Any = type(made)
    return _checked(kind, operator)(**_fields(made))


def _fields(made: Any) -> dict[str, Any]:
    """Return what an object of Airflow's was made with."""
    return {field.alias: getattr(made, field.name) for field in attrs.fields(type(made)) if field.init}


@functools.cache
def _checked(kind: Any, operator: type) -> Any:
    """Make a class of checked tasks from the given one, whose name is Airflow's own."""
    declared = declared_with(operator)

    def expand(self: Any, **mapped: Any) -> XComArg:
        return _looked_at(kind.expand(self, **mapped), declared, mapped)

    def expand_kwargs(self: Any, kwargs: Any, *, strict: bool = True) -> XComArg:
        return _looked_at(kind.expand_kwargs(self, kwargs, strict=strict), declared, kwargs)

    return type("CheckedTask", (kind,), {"expand": expand, "expand_kwargs": expand_kwargs, "__module__": __name__})


def _looked_at(made: Any, declared: Mapping[str, Any], mapped: Any) -> XComArg:
    _check_kept(made.operator, mapped)
    check_mapped(made.operator, {"python_callable": made.operator.python_callable}, declared)
    argument: XComArg = made
    return argument


def check_mapped(operator: MappedOperator, values: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Check a mapped task as if it were made with these values now, and with `declared` where nothing is given.

    A user's class with an `__init__` of its own may make anything of its parameters, so it is not checked.
    """
    if not operator.operator_class.__init__.__module__.startswith(OURS):
        return
    given = dict(declared)
    for source in (operator.dag, operator.task_group):
        given |= _ours(getattr(source, "default_args", None) or {}, given)
    given |= _ours(operator.partial_kwargs, given)
    given |= _ours(values, given)
    given["outlets"] = operator.partial_kwargs.get("outlets")
    check(given, operator.template_fields)


def _check_kept(operator: MappedOperator, mapped: Any) -> None:
    """Refuse what Airflow cannot store of a mapped task: its own error has no words."""
    for found in _later_data((operator.partial_kwargs, mapped)):
        raise UsageError(
            f"task {operator.task_id} is mapped, and Airflow cannot store {found!r} of such a task: give it the "
            "address as text, which model= and prompts= take, and which a function reads on its host"
        )


def _later_data(value: Any) -> Iterator[KineticData]:
    """Yield those that are anywhere in a value."""
    if isinstance(value, KineticData):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _later_data(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _later_data(one)


def _ours(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: UNKNOWN if isinstance(values[name], XComArg) else values[name] for name in names if name in values}


def _one_by_one(mapped: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each value that is known while the DAG is parsed, combined with values of the others."""
    unknown = dict.fromkeys(mapped, UNKNOWN)
    yield unknown
    for name, values in mapped.items():
        if isinstance(values, (list, tuple)):
            yield from ({**unknown, name: value} for value in values)
