"""`@kinetic_asset`, `@kinetic_multi_asset` and `@kinetic_op`: the decorated function's body runs on every host.

Dagster sees a function of the same name, inputs, config and result, that also takes its context and the
resource `kinetic`, and hands all it got to the user's function as one job. What cannot be is refused here, where it
is written.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar, Unpack

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.assets.kinds import kinds_of
from dagster_kinetic.assets.parameters import TRAVELS, Anew, is_resource, why_not_resource, why_not_type
from dagster_kinetic.detached import RESULTS, as_detached, refuse_store_of_its_own, two_runs
from dagster_kinetic.resource.config import TAG, KineticRunConfig, from_tag
from dagster_kinetic.resource.kinetic_resource import Accelerator, KineticResource, options_of, plain_function
from dagster_kinetic.step.ticket import ASSET_WAITS
from kinetic_orchestration.api.decorator import RemoteCallable
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.functions import name_of
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.spec import OPTION_NAMES, Options, slice_of
from kinetic_orchestration.program.context import HERE, HostContext

if TYPE_CHECKING:
    from dagster_kinetic.resource.keywords import OfAsset, OfMultiAsset, OfOp

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")

CONTEXT = "context"
RESOURCE = "kinetic"
HOST = "host"
SELECTED = "selected"  # of a multi-asset that can be made in part: the keys that are wanted now
CONFIG = "config"
KIND = "dagster/kind/"  # how the tag of a kind begins
# Of these two Dagster's meaning holds: an asset's key, and the partition that is being made.
DAGSTERS_OWN = frozenset({"key", "partition_key"})


def kinetic_asset(
    function: None = None,
    *,
    accelerator: Accelerator | None = None,
    detached: bool = False,
    **keywords: Unpack[OfAsset],
) -> Callable[[Callable[P, R]], dg.AssetsDefinition]:
    """An asset that is made on accelerators.

    Takes every keyword of `dagster.asset`, and every option of `kinetic_orchestration.run`. A parameter annotated
    `HostContext`, or a first one named `host`, receives the context of the host; inputs and Config arrive as usual,
    and so does a ConfigurableResource of settings only. A body without Config of its own is launched with
    `KineticRunConfig`: the run config may name another slice, other zones or limits.

    `detached`: the run only submits the job and ends; `build_kinetic_completion_sensor` starts the run that makes
    the asset when the job has ended, so that no worker waits.
    """
    given = two_runs(keywords) if detached else keywords
    return _asset_decorator(kinetic_asset, dg.asset, function, accelerator, given, detached)


def kinetic_multi_asset(
    function: None = None,
    *,
    accelerator: Accelerator | None = None,
    detached: bool = False,
    **keywords: Unpack[OfMultiAsset],
) -> Callable[[Callable[P, R]], dg.AssetsDefinition]:
    """Several assets that are made by one job.

    Takes every keyword of `dagster.multi_asset`; all else is as in `kinetic_asset`. The body returns a tuple: of
    values, in the order of `outs`, or of MaterializeResult. With `can_subset=True` it takes a parameter `selected`,
    the keys to make as text, and returns a MaterializeResult for each of these.
    """
    return _asset_decorator(kinetic_multi_asset, dg.multi_asset, function, accelerator, keywords, detached)


def kinetic_op(
    function: None = None, *, accelerator: Accelerator | None = None, **keywords: Unpack[OfOp]
) -> Callable[[Callable[P, R]], dg.OpDefinition]:
    """An op that runs on accelerators. Takes every keyword of `dagster.op`; all else is as in `kinetic_asset`."""
    _refuse_bare(function, kinetic_op)
    options, rest = _split(accelerator, keywords, dg.op)

    def decorate(function: Callable[P, R]) -> dg.OpDefinition:
        step = as_step(function, options, rest)
        made = dg.op(**rest)(step)
        assert isinstance(made, dg.OpDefinition)
        return made

    return decorate


def _asset_decorator(
    ours: Function,
    dagsters: Function,
    function: Function | None,
    accelerator: Accelerator | None,
    keywords: Mapping[str, Any],
    detached: bool,
) -> Callable[[Function], dg.AssetsDefinition]:
    _refuse_bare(function, ours)
    options, rest = _split(accelerator, keywords, dagsters)

    def decorate(function: Function) -> dg.AssetsDefinition:
        step = as_step(function, options, rest)
        if detached:
            refuse_store_of_its_own(_checked(options, function))
        needed: set[str] = set()  # of a detached one: known when it is made
        made = dagsters(**rest)(as_detached(step, needed) if detached else step)
        assert isinstance(made, dg.AssetsDefinition)
        if detached:
            needed |= _compat.make_optional(made)
        known = _known(step, options, function)
        kinds = set() if "compute_kind" in rest else kinds_of(plain_function(function), _checked(options, function))
        mark = {ASSET_WAITS: "true"} if detached else {}
        return made.map_asset_specs(
            lambda spec: spec.replace_attributes(
                metadata={**known, **spec.metadata}, kinds=spec.kinds or kinds, tags={**mark, **_own_tags(spec)}
            )
        )

    return decorate


def _own_tags(spec: dg.AssetSpec) -> dict[str, str]:
    """Its tags without its kinds, which are tags too."""
    return {name: value for name, value in spec.tags.items() if name not in {KIND + kind for kind in spec.kinds}}


def as_step(
    function: Function, options: Mapping[str, Any], keywords: Mapping[str, Any] | None = None
) -> types.FunctionType:
    """The function that Dagster calls in place of the user's. `keywords`: what Dagster's own decorator is given."""
    plain = plain_function(function)
    _checked(options, function)
    signature = inspect.signature(plain)
    hints = resolved_hints(plain)
    keywords = keywords or {}
    host = host_parameter(signature, hints)
    subset = bool(keywords.get("can_subset"))
    _check(plain, signature, hints, host)
    _check_types(name_of(plain), signature, hints, keywords)
    _check_subset(name_of(plain), signature, subset)
    _check_context(name_of(plain), signature, keywords)
    _check_tags(name_of(plain), keywords)
    resources = [name for name in signature.parameters if is_resource(hints.get(name))]
    by_schema = bool(keywords.get("config_schema")) and not _is_config(hints.get(CONFIG))  # both: Dagster refuses
    launched = not (CONFIG in signature.parameters or by_schema)

    def run(context: Any, kinetic: KineticResource, arguments: dict[str, Any]) -> Any:
        if launched:
            kinetic = kinetic.overridden_by(arguments.pop(CONFIG, None))
        kinetic = kinetic.of_only_call(RESOURCE)
        if host:
            arguments[host] = HERE
        if by_schema:
            arguments[CONFIG] = _compat.op_config(context)
        if subset:
            arguments[SELECTED] = tuple(sorted(key.to_user_string() for key in _compat.selected_assets(context)))
        arguments |= {name: Anew(arguments[name]) for name in resources}
        made = _as_tuple(kinetic.run(function, kwargs=arguments, context=context, **options))
        several = (made,) if isinstance(made, RESULTS) else made
        if _compat.is_direct(context) or not isinstance(several, tuple) or not (subset or _are_some(several, context)):
            return made
        return (each for each in several)  # of a part of its outputs Dagster takes each by itself only

    step = _in_place_of(plain, lambda context, *, kinetic, **arguments: run(context, kinetic, arguments))
    hidden = {host, SELECTED if subset else "", CONFIG if by_schema else ""}
    seen = {name: hint for name, hint in hints.items() if name not in hidden}
    added: dict[str, Any] = {RESOURCE: KineticResource, **({CONFIG: KineticRunConfig} if launched else {})}
    step.__signature__ = _seen_by_dagster(signature, hints, hidden, added)  # type: ignore[attr-defined]
    step.__annotations__ = {**seen, **added}
    return step


def _are_some(results: tuple[Any, ...], context: Any) -> bool:
    """Return True if they are results for some outputs of the step only, because others are optional."""
    checks = sum(len(getattr(each, "check_results", None) or ()) for each in results)
    is_part = len(results) + checks != len(_compat.op_context(context).op_def.output_defs)
    return is_part and bool(results) and all(isinstance(each, RESULTS) for each in results)


def _as_tuple(value: Any) -> Any:
    """Dagster takes several results as a tuple only, and a body may well have gathered them in a list."""
    return (
        tuple(value)
        if isinstance(value, list) and value and all(isinstance(each, RESULTS) for each in value)
        else value
    )


def resolved_hints(function: Function) -> dict[str, Any]:
    """The annotations as objects, also in a module that keeps them as text.

    One that names what only a type checker imports is left out: it means any type.
    """
    hints: dict[str, Any] = {}
    annotated = _innermost(function)
    for name, hint in getattr(annotated, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints |= typing.get_type_hints(alone, getattr(annotated, "__globals__", {}), include_extras=True)
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


def _seen_by_dagster(
    signature: inspect.Signature, hints: Mapping[str, Any], hidden: set[str], added: Mapping[str, Any]
) -> inspect.Signature:
    kept = [
        parameter.replace(annotation=hints.get(name, parameter.empty))
        for name, parameter in signature.parameters.items()
        if name not in hidden
    ]
    rest = [parameter for parameter in kept if parameter.kind is parameter.VAR_KEYWORD]
    first = inspect.Parameter(CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in added.items()]
    before = [parameter for parameter in kept if parameter not in rest]
    return inspect.Signature(
        [first, *before, *ours, *rest], return_annotation=hints.get("return", inspect.Signature.empty)
    )


# ---- what cannot be ----------------------------------------------------------------------------------------


def _check(function: Function, signature: inspect.Signature, hints: Mapping[str, Any], host: str) -> None:
    name = name_of(function)
    for parameter, spec in signature.parameters.items():
        hint = hints.get(parameter)
        if parameter.strip("_") == CONTEXT or hint in (dg.AssetExecutionContext, dg.OpExecutionContext):
            raise UsageError(
                f"{name} takes Dagster's context in {parameter!r}, which stays here while the body runs on the hosts: "
                "take a parameter host: HostContext instead, and log with print()"
            )
        if parameter == RESOURCE:
            raise UsageError(
                f"{name} has a parameter named {RESOURCE!r}, the name of the resource that runs it: choose another. To "
                "start other jobs, write a plain @dagster.asset with kinetic: KineticResource"
            )
        if parameter == HOST and parameter != host:
            raise UsageError(
                f"{name} has a parameter named {HOST!r} that is not the host's context: put it first without another "
                "annotation than HostContext, or choose another name for the input"
            )
        if _is_of_launch(hint):
            raise UsageError(
                f"{name} takes a KineticRunConfig in {parameter!r}, which says where the body runs and stays here: a "
                f"body without Config is launched with one anyway, so leave it out; beside a Config of the body's "
                f"own, launch with the run's tag {TAG}, as KineticRunConfig(...).to_tags() makes it"
            )
        if is_resource(hint) and (reason := why_not_resource(hint)):
            raise UsageError(
                f"{name} takes the resource {parameter!r}, which cannot travel to the hosts: {reason}. Use it in an "
                "asset upstream or downstream, or make its client in the body from variables that capture_env_vars or "
                f"secrets name; of a class that can be made anew from its fields all the same, say {TRAVELS}: "
                "ClassVar[bool] = True"
            )
        if spec.kind in (spec.POSITIONAL_ONLY, spec.VAR_POSITIONAL):
            raise UsageError(f"{name} has the positional parameter {parameter!r}: Dagster passes inputs by their names")


def _check_types(
    name: str, signature: inspect.Signature, hints: Mapping[str, Any], keywords: Mapping[str, Any]
) -> None:
    """Inputs are loaded here by their I/O managers and sent; values come back and are stored here by theirs."""
    for parameter, hint in _inputs(signature, hints, keywords):
        if reason := why_not_type(hint):
            raise UsageError(
                f"{name} takes {parameter!r} as {_shown(hint)}, which cannot travel to the hosts: {reason}. An I/O "
                "manager loads inputs here, and their values are sent: let it load a list, an array or a table, or "
                "pass a path that the hosts can read"
            )
    for what, hint in _results(hints, keywords):
        if reason := why_not_type(hint):
            raise UsageError(
                f"{name} returns {what}{_shown(hint)}, which cannot travel back from the hosts: {reason}. An I/O "
                "manager stores values here: return a list, an array, a table or a path"
            )


def _inputs(
    signature: inspect.Signature, hints: Mapping[str, Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    given = keywords.get("ins") or {}
    for parameter in signature.parameters:
        kind = getattr(given.get(parameter), "dagster_type", None)
        if isinstance(kind, dg.DagsterType | type):
            yield parameter, kind
        if parameter in hints and not is_resource(hints[parameter]):
            yield parameter, hints[parameter]


def _results(hints: Mapping[str, Any], keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    outs: dict[str, Any] = dict(keywords.get("outs") or {})
    if isinstance(keywords.get("out"), Mapping):
        outs |= keywords["out"]
    kinds = {f"{out!r} as ": getattr(spec, "dagster_type", None) for out, spec in outs.items()}
    kinds[""] = keywords.get("dagster_type")
    for what, kind in kinds.items():
        if isinstance(kind, dg.DagsterType | type):
            yield what, kind
    yield "", hints.get("return")


def _is_of_launch(hint: Any) -> bool:
    """Return True for a KineticRunConfig, or a Config that holds one."""
    if not _is_config(hint):
        return False
    return issubclass(hint, KineticRunConfig) or any(
        _is_of_launch(field.annotation) for field in hint.model_fields.values()
    )


def _is_config(hint: Any) -> TypeGuard[type[dg.Config]]:
    return isinstance(hint, type) and issubclass(hint, dg.Config)


def _check_tags(name: str, keywords: Mapping[str, Any]) -> None:
    for keyword in ("op_tags", "tags"):
        tags = keywords.get(keyword)
        if isinstance(tags, Mapping) and TAG in tags:
            from_tag(tags[TAG], f"{keyword} of {name}")


def _check_subset(name: str, signature: inspect.Signature, subset: bool) -> None:
    if subset and SELECTED not in signature.parameters:
        raise UsageError(
            f"{name} can be made in part (can_subset=True), and its body would not know which part: take a parameter "
            f"{SELECTED!r}, the keys to make as text, and return a MaterializeResult for each; or leave can_subset out"
        )


def _check_context(name: str, signature: inspect.Signature, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords whose effect a body would read from Dagster's own context."""
    if keywords.get("config_schema") and CONFIG not in signature.parameters:
        raise UsageError(
            f"{name} has a config_schema, and its body would not see what it allows: take a parameter {CONFIG!r}"
        )
    if keywords.get("required_resource_keys"):  # which Dagster excludes where a parameter is a resource, as ours is
        raise UsageError(
            f"{name} has required_resource_keys, which a body takes from Dagster's context, and that stays here while "
            "the body runs on the hosts: take a parameter that is annotated with the class of the resource instead. A "
            "hook or an I/O manager names what it requires by itself"
        )


def _refuse_bare(function: Function | None, decorator: Function) -> None:
    if function is not None:
        name = decorator.__name__
        raise UsageError(f"@{name} needs to know the accelerator: write @{name}(accelerator='v5e-8')")


def _split(
    accelerator: Accelerator | None, keywords: Mapping[str, Any], dagsters: Function
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the job, and Dagster's keywords."""
    own = OPTION_NAMES - DAGSTERS_OWN
    options = {name: value for name, value in keywords.items() if name in own}
    known = inspect.signature(dagsters).parameters.keys() - {"compute_fn"}
    for name in keywords.keys() - own - known - _compat.hidden_keywords(dagsters):
        if near := difflib.get_close_matches(name, [*own, *known], 3, 0.75):
            raise UsageError(f"there is no keyword {name!r}: did you mean {' or '.join(near)}?")
    rest = {name: value for name, value in keywords.items() if name not in options}
    return {**({} if accelerator is None else {"accelerator": accelerator}), **options}, rest


# ---- where the code is -------------------------------------------------------------------------------------


def _known(step: types.FunctionType, options: Mapping[str, Any], function: Function) -> dict[str, Any]:
    """Metadata of the assets that is known before any run."""
    code = step.__code__
    place = _compat.code_references(code.co_filename, code.co_firstlineno)
    asked = _checked(options, function)
    names = dict.fromkeys(slice_of(way).name for way in ways(asked))
    return {"kinetic/accelerator": " or ".join(names), **_how(asked), **place}


def _how(options: Options) -> dict[str, str]:
    """Return how the job's hosts may be bought, if there are several ways, for the definition's metadata."""
    capacity = options.capacity or ()
    several = [capacity] if isinstance(capacity, str) else capacity
    return {"kinetic/capacity": ", ".join(several)} if several else {}


def _in_place_of(plain: Function, made: Function) -> types.FunctionType:
    """The stand-in under the function's name, file and line, which Dagster and tracebacks show. As it is written in
    one line, no other line of that file is ever shown in its place.
    """
    assert isinstance(made, types.FunctionType)
    stand_in = made
    functools.update_wrapper(stand_in, plain)
    stand_in.__name__ = name_of(plain)
    code = getattr(_innermost(plain), "__code__", None)
    if code is not None:
        stand_in.__code__ = stand_in.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name,
        )  # fmt: skip
    return stand_in


def _innermost(function: Any) -> Any:
    """The function with code and annotations inside a partial, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__code__") else vars(type(function)).get("__call__", function)


def _checked(options: Mapping[str, Any], function: Any) -> Options:
    """The options of the job, over those that the function's own decorator was given."""
    rest = {name: value for name, value in options.items() if name != "accelerator"}
    return options_of(
        options.get("accelerator"), rest, function.options if isinstance(function, RemoteCallable) else None
    )


def _shown(hint: Any) -> str:
    if isinstance(hint, dg.DagsterType):
        return str(hint.display_name)
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
