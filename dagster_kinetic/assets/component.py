"""`KineticJobComponent`: a training step of a YAML project. A function, a script or a command becomes assets.

Everything in the file is checked where it is loaded, with the line of the YAML in the message; nothing is contacted.
"""

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from dagster_kinetic import _compat
from dagster_kinetic.assets.decorators import host_parameter, resolved_hints
from dagster_kinetic.assets.kinds import kinds_of
from dagster_kinetic.pipes import PipesKineticClient
from dagster_kinetic.resource.config import TAG, KineticRunConfig, from_tag, refuse_unknown
from dagster_kinetic.resource.kinetic_resource import KineticResource, options_of, plain_function, resource_of
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.options import check_part
from kinetic_orchestration.plan.declare.choices import accelerators_of
from kinetic_orchestration.plan.declare.cloud import kind_with
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.values import traits_of
from kinetic_orchestration.program.context import HERE

_GROUPS: Mapping[str, type] = {"limits": Limits, "retry": Retry, "profile": Profile}


def _function(context: dg.ResolutionContext, path: str) -> Callable[..., Any]:
    """Import `package.module.name`, or `.module.name` next to the YAML file."""
    module, _, name = path.rpartition(".")
    if not module.strip(".") or not name:
        raise UsageError(f"function is {path!r}: write package.module.name, or .module.name for a file beside this one")
    if module.startswith("."):
        module = _compat.module_of_component(context) + module
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"function is {path!r}, and cannot be imported: {error}") from error
    return plain_function(found)


def _accelerator(context: dg.ResolutionContext, given: Any) -> Any:
    found = accelerators_of(context.resolve_value(given))
    check_part({"accelerator": found})  # `options` may name a cluster, whose queue decides in place of shares
    return found


def _options(context: dg.ResolutionContext, given: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(context.resolve_value(given))
    if "accelerator" in options:
        raise UsageError("accelerator is no option: it stands beside `options`")
    for name, kind in {**_GROUPS, "cloud": _kind_of_cloud(options)}.items():
        if isinstance(part := options.get(name), Mapping):
            refuse_unknown(name, [entry.name for entry in fields(kind)], part)
            options[name] = kind(**part)
    if isinstance(volumes := options.get("volumes"), Mapping):
        options["volumes"] = {mount: Data(path) if isinstance(path, str) else path for mount, path in volumes.items()}
    several = getattr(options.get("cloud"), "hosts", 1) != 1  # of which only GPUs have several
    options_of("l4" if several else "cpu", options)
    return options


def _kind_of_cloud(options: Mapping[str, Any]) -> type:
    """Return the class of the options in `cloud:`, by the backend that is named beside them, else by their names."""
    traits = traits_of(options["backend"]) if options.get("backend") else None
    if traits is not None and traits.options is not None:
        return traits.options
    given = options.get("cloud")
    return kind_with(given if isinstance(given, Mapping) else ())


def _resource(context: dg.ResolutionContext, given: Mapping[str, Any]) -> KineticResource:
    return KineticResource(**context.resolve_value(given))


def _without_value(result: Any) -> Any:
    """Assets of a component are not stored by an I/O manager."""
    if isinstance(result, dg.MaterializeResult) and _compat.has_value(result):
        raise UsageError(
            "the assets of a component have no I/O manager that could store a value: write it into host.output_dir, "
            "return its address as metadata, or use @kinetic_asset"
        )
    return result


class KineticJobScaffolder(dg.Scaffolder):
    """Write a file that runs unchanged: one asset, made by a function next to it, on this machine."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        name = request.target_path.name
        (request.target_path / "train.py").write_text(
            textwrap.dedent(
                '''\
                """What runs on every host of the slice."""

                from kinetic_orchestration import HostContext


                def train(host: HostContext, epochs: int):
                    for epoch in range(epochs):
                        loss = 1 / (epoch + 1)
                        host.log_metrics(step=epoch, loss=loss)
                        host.progress(epoch + 1, epochs, unit="epochs")
                    return {"loss": loss}
                '''
            ),
            encoding="utf-8",
        )
        attributes = {
            "function": ".train.train",
            "arguments": {"epochs": 3},
            "accelerator": "cpu",
            "assets": [{"key": name, "description": "Trained on every host of a slice."}],
        }
        dg.scaffold_component(request, attributes)


@dg.scaffold_with(KineticJobScaffolder)
class KineticJobComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets that are made by one job on accelerators.

    A `function` gets `arguments` by name, and the context of its host as in `kinetic_asset`. It returns a dict, the
    metadata of its one asset, or a MaterializeResult for each asset. A `script` next to this file, or a `command`,
    reports by Dagster Pipes, and finds `arguments` in its extras.
    """

    assets: Annotated[list[dg.ResolvedAssetSpec], Field(min_length=1)]
    accelerator: Annotated[
        Any,
        dg.Resolver(
            _accelerator,
            model_field_type=str | dict[str, Any] | list[str | dict[str, Any]],
            description="Such as v5e-8; `kinor accelerators` lists them. 'cpu' is one host without any. Of a list, any "
            "will do; with ways, regions or limits of its own, one is {accelerator: v5e-8, capacity: [spot]}.",
            examples=["v5e-8", ["v6e-8", "v5e-8"]],
        ),
    ]
    function: Annotated[
        Callable[..., Any] | None,
        dg.Resolver(
            _function,
            model_field_type=str,
            description="package.module.name, or .module.name for a file beside this one.",
            examples=[".train.train"],
        ),
    ] = None
    script: Annotated[
        str | None, dg.Resolver.default(description="A Python file beside this one.", examples=["train.py"])
    ] = None
    command: Annotated[
        list[str] | None,
        dg.Resolver.default(description="A program and its arguments.", examples=[["bash", "train.sh"]]),
    ] = None
    arguments: Annotated[
        dict[str, Any], dg.Resolver.default(description="For the function by name, for a program as Pipes extras.")
    ] = Field(default_factory=dict)
    options: Annotated[
        dict[str, Any],
        dg.Resolver(
            _options,
            model_field_type=dict,
            description="All options of kinetic_orchestration.run: spot, limits, retry, cloud, requirements, …",
            examples=[{"spot": True, "limits": {"run": "2h"}}],
        ),
    ] = Field(default_factory=dict)
    kinetic: Annotated[
        KineticResource | None,
        dg.Resolver(
            _resource,
            model_field_type=dict,
            description="Settings of KineticResource for these jobs alone, such as project, zones and store.",
            examples=[
                {"project": "{{ env.GCP_PROJECT }}", "store": "gs://my-bucket/kinetic", "require_hardware": True}
            ],
        ),
    ] = None
    resource: Annotated[
        str | None, dg.Resolver.default(description="Or the key of a KineticResource of the project.")
    ] = None
    checks: list[dg.ResolvedAssetCheckSpec] = Field(default_factory=list)
    name: Annotated[
        str | None, dg.Resolver.default(description="Of the step; that of the first asset if not given.")
    ] = None
    pool: Annotated[str | None, dg.Resolver.default(description="A concurrency pool of Dagster.")] = None
    max_retries: Annotated[int, dg.Resolver.default(description="How often Dagster runs a failed step again.")] = 0
    op_tags: Annotated[dict[str, Any], dg.Resolver.default(description="Tags of the step.")] = Field(
        default_factory=dict
    )

    def model_post_init(self, context: Any, /) -> None:
        del context
        if sum(what is not None for what in (self.function, self.script, self.command)) != 1:
            raise UsageError("say what runs: one of function, script and command")
        if self.kinetic is not None and self.resource is not None:
            raise UsageError("both kinetic and resource say where jobs run: keep one")
        if TAG in self.op_tags:
            from_tag(self.op_tags[TAG], "op_tags")
        if self.function is not None:
            signature = inspect.signature(self.function)
            host = host_parameter(signature, resolved_hints(self.function))
            try:
                signature.bind(**({host: HERE} if host else {}), **self.arguments)
            except TypeError as error:
                raise UsageError(f"arguments do not fit the function: {error}") from None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        folder = Path(context.path)
        if self.script is not None and not (folder / self.script).is_file():
            raise UsageError(f"script is {self.script!r}, and there is no such file in {folder}")

        kinds = kinds_of(self.function, options_of(self.accelerator, self.options))

        @dg.multi_asset(
            name=self.name or "__".join(self.assets[0].key.path),
            specs=[spec if spec.kinds else spec.replace_attributes(kinds=kinds) for spec in self.assets],
            check_specs=self.checks or None,
            required_resource_keys={self.resource} if self.resource else None,
            retry_policy=dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None,
            pool=self.pool,
            op_tags=self.op_tags or None,
        )
        def job(context: dg.AssetExecutionContext, config: KineticRunConfig) -> Iterator[Any]:
            named = resource_of(context, {}, self.resource) if self.resource else self.kinetic
            kinetic = (named or KineticResource()).overridden_by(config).of_only_call(self.resource or "")
            if self.function is not None:
                yield from self._results_of(self.function, kinetic, context)
            else:
                yield from self._reported_by_program(kinetic, context, folder)

        return dg.Definitions(assets=[job])

    def _results_of(
        self, function: Callable[..., Any], kinetic: KineticResource, context: dg.AssetExecutionContext
    ) -> Iterator[Any]:
        host = host_parameter(inspect.signature(function), resolved_hints(function))
        arguments = {**({host: HERE} if host else {}), **self.arguments}
        value = kinetic.run(
            function, kwargs=arguments, accelerator=self.accelerator, context=context, **self.options
        )  # fmt: skip
        results = (dg.MaterializeResult, dg.AssetCheckResult)  # each is a tuple by itself
        several = value if isinstance(value, list | tuple) and not isinstance(value, results) else [value]
        if several and all(isinstance(each, results) for each in several):
            yield from map(_without_value, several)
        elif len(self.assets) == 1 and (value is None or isinstance(value, Mapping)):
            yield dg.MaterializeResult(asset_key=self.assets[0].key, metadata=value or {})
        else:
            raise UsageError(
                f"{function.__name__} returned a {type(value).__name__} for {len(self.assets)} assets of a component: "
                "return a dict, which becomes the metadata of an only asset, or a MaterializeResult with its asset_key "
                "for each of them. What it has made belongs into host.output_dir"
            )

    def _reported_by_program(
        self, kinetic: KineticResource, context: dg.AssetExecutionContext, folder: Path
    ) -> Iterator[Any]:
        command = self.command if self.command is not None else ["python", str(self.script)]
        invocation = PipesKineticClient(kinetic).run(
            context=context, command=command, cwd=folder, extras=self.arguments, accelerator=self.accelerator,
            **self.options,
        )  # fmt: skip
        yield from invocation.get_results()
