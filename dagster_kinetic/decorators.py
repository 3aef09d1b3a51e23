"""`@kinetic_asset` and `@kinetic_op`: the decorated function's body runs on every host of the slice.

Dagster sees a function of the same name, inputs, config and result, that also takes its context and the
resource `kinetic`, and hands all it got to the user's function as one job.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_kinetic.resource import KineticResource, options_of
from kinetic_orchestration.context import HERE, HostContext
from kinetic_orchestration.errors import NotAFunction, UsageError
from kinetic_orchestration.spec import OPTION_NAMES, check_function

Function = Callable[..., Any]

CONTEXT = "context"
RESOURCE = "kinetic"
HOST = "host"
# Of these two Dagster's meaning holds: an asset's key, and the partition that is being made.
DAGSTERS_OWN = frozenset({"key", "partition_key"})


def kinetic_asset(
    function: Function | None = None, *, accelerator: str | None = None, **keywords: Any
) -> Callable[[Function], dg.AssetsDefinition]:
    """An asset that is made on accelerators.

    Takes every keyword of `dagster.asset`, and every option of `kinetic_orchestration.run`. A parameter annotated
    `HostContext`, or a first one named `host`, receives the context of the host; inputs and Config arrive as usual.
    """
    _refuse_bare(function, "kinetic_asset")
    options, rest = _split(accelerator, keywords)

    def decorate(function: Function) -> dg.AssetsDefinition:
        made = dg.asset(**rest)(as_step(function, options))
        assert isinstance(made, dg.AssetsDefinition)
        return made

    return decorate


def kinetic_op(
    function: Function | None = None, *, accelerator: str | None = None, **keywords: Any
) -> Callable[[Function], dg.OpDefinition]:
    """An op that runs on accelerators. Takes every keyword of `dagster.op`; all else is as in `kinetic_asset`."""
    _refuse_bare(function, "kinetic_op")
    options, rest = _split(accelerator, keywords)

    def decorate(function: Function) -> dg.OpDefinition:
        made = dg.op(**rest)(as_step(function, options))
        assert isinstance(made, dg.OpDefinition)
        return made

    return decorate


def as_step(function: Function, options: Mapping[str, Any]) -> Function:
    """The function that Dagster calls in place of the user's."""
    plain = check_function(function)
    signature = inspect.signature(plain)
    hints = resolved_hints(plain)
    host = host_parameter(signature, hints)
    _check(plain, signature, hints)

    def step(context: Any, *, kinetic: KineticResource, **arguments: Any) -> Any:
        if host:
            arguments[host] = HERE
        return kinetic.run(plain, kwargs=arguments, context=context, **options)

    functools.update_wrapper(step, plain)
    step.__signature__ = _seen_by_dagster(signature, hints, host)  # type: ignore[attr-defined]
    step.__annotations__ = {**{name: hint for name, hint in hints.items() if name != host}, RESOURCE: KineticResource}
    return step


def resolved_hints(function: Function) -> dict[str, Any]:
    """The annotations as objects, also in a module that keeps them as text.

    One that names what only a type checker imports is left out: it means any type.
    """
    hints: dict[str, Any] = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints |= typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)
        except NameError:
            continue
    return hints


def host_parameter(signature: inspect.Signature, hints: Mapping[str, Any]) -> str:
    """The parameter that receives the host's context, or "" if there is none."""
    annotated = [name for name in signature.parameters if hints.get(name) is HostContext]
    if len(annotated) > 1:
        raise UsageError(f"{' and '.join(annotated)} are both a HostContext: keep one, a host has one context")
    first = next(iter(signature.parameters), "")
    return annotated[0] if annotated else first if first == HOST and first not in hints else ""


def _seen_by_dagster(signature: inspect.Signature, hints: Mapping[str, Any], host: str) -> inspect.Signature:
    kept = [
        parameter.replace(annotation=hints.get(name, parameter.empty))
        for name, parameter in signature.parameters.items()
        if name != host
    ]
    rest = [parameter for parameter in kept if parameter.kind is parameter.VAR_KEYWORD]
    first = inspect.Parameter(CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    resource = inspect.Parameter(RESOURCE, inspect.Parameter.KEYWORD_ONLY, annotation=KineticResource)
    before = [parameter for parameter in kept if parameter not in rest]
    return inspect.Signature(
        [first, *before, resource, *rest], return_annotation=hints.get("return", inspect.Signature.empty)
    )


def _check(function: Function, signature: inspect.Signature, hints: Mapping[str, Any]) -> None:
    name = getattr(function, "__name__", "the function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise NotAFunction(
            f"{name} is a generator, which cannot give its values from another machine: return one value, "
            "or one MaterializeResult with metadata and check_results"
        )
    for parameter, spec in signature.parameters.items():
        hint = hints.get(parameter)
        if parameter == CONTEXT or hint in (dg.AssetExecutionContext, dg.OpExecutionContext):
            raise UsageError(
                f"{name} takes Dagster's context in {parameter!r}, which stays here while the body runs on the hosts: "
                "take a parameter host: HostContext instead, and log with print()"
            )
        if _is_resource(hint):
            raise UsageError(
                f"{name} takes the resource {parameter!r}, which cannot travel to the hosts: use it in an asset "
                "upstream or downstream, or make its client in the body"
            )
        if parameter == RESOURCE:
            raise UsageError(f"{name} has a parameter named {RESOURCE!r}, the name of the resource: choose another")
        if spec.kind in (spec.POSITIONAL_ONLY, spec.VAR_POSITIONAL):
            raise UsageError(f"{name} has the positional parameter {parameter!r}: Dagster passes inputs by their names")


def _is_resource(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, (dg.ConfigurableResource, dg.IAttachDifferentObjectToOpContext)):
        return True
    return "resource_param" in getattr(hint, "__metadata__", ())


def _refuse_bare(function: Function | None, decorator: str) -> None:
    if function is not None:
        raise UsageError(f"@{decorator} needs to know the accelerator: write @{decorator}(accelerator='v5e-8')")


def _split(accelerator: str | None, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the job, checked already, and Dagster's keywords."""
    options = {name: value for name, value in keywords.items() if name in OPTION_NAMES - DAGSTERS_OWN}
    options_of(accelerator, options)
    rest = {name: value for name, value in keywords.items() if name not in options}
    return {"accelerator": accelerator, **options}, rest
