"""`KineticResource`: what all jobs of a deployment share, and the way to run one from any asset or op.

Knows how Dagster's settings become the options of a job. Without any, jobs run on this machine.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_kinetic import _compat
from kinetic_orchestration.decorator import RemoteCallable
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.spec import OPTION_NAMES, JobSpec, Options, TpuVm, check_function, check_options, name_of

if TYPE_CHECKING:
    from kinetic_orchestration.job import JobHandle

# What runs jobs is imported where one is run: code servers only read definitions, and many.


class KineticResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Runs functions on accelerators. What is set here holds for every job that does not say otherwise."""

    project: str | None = Field(None, description="The Google Cloud project. Without one, jobs run on this machine.")
    zones: list[str] = Field([], description="Where to look for capacity, the first choice first.")
    store: str | None = Field(None, description="Where what is shipped lies: a folder, or gs://bucket/prefix.")
    deployment: str | None = Field(None, description="This installation of Dagster: the prefix of all in the store.")
    backend: str | None = Field(None, description="Where jobs run; 'local' by default.")
    spot: bool = Field(False, description="Ask for spot capacity: cheaper, and it may be taken back.")

    _calls: dict[tuple[str, str, int], Iterator[int]] = PrivateAttr(default_factory=dict)

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: str | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Any,
    ) -> Any:
        """Run `function(*args, **kwargs)` as a job and return its value; its lines appear in the step's log.

        Called again in the same step after a crash, it finds its job again by the order of the calls, or by `key`
        where that order is not fixed. `options` are those of `kinetic_orchestration.run`.
        """
        from dagster_kinetic.step import run_in_step
        from kinetic_orchestration.job import run_to_end
        from kinetic_orchestration.launch import launch

        spec = self._spec(function, (args, kwargs), accelerator, context, options)
        if context is None:
            return run_to_end(launch(spec if key is None else _keyed(spec, key)))
        return run_in_step(spec, context, self._call(context, key))

    def submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: str | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Any,
    ) -> JobHandle[Any]:
        """Bring the job on its way and return its handle; the job then needs neither step nor run."""
        from dagster_kinetic.step import identity_of, place_of
        from kinetic_orchestration.job import JobHandle
        from kinetic_orchestration.launch import launch

        spec = self._spec(function, (args, kwargs), accelerator, context, options)
        if context is None or _compat.is_direct(context):
            return JobHandle(launch(spec if key is None else _keyed(spec, key)))
        return JobHandle(launch(spec, identity_of(spec, place_of(context, self._call(context, key)))))

    def attach(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that any process submitted."""
        from kinetic_orchestration.job import attach

        return attach(job_id, project=self.project, store=self.store, deployment=self.deployment)

    def _spec(
        self,
        function: Callable[..., Any],
        call: tuple[Sequence[Any], Mapping[str, Any] | None],
        accelerator: str | None,
        context: _compat.Context,
        given: Mapping[str, Any],
    ) -> JobSpec:
        if context is not None:
            given = {"partition_key": _compat.partition_of(context), **given}
        decorated = function.options if isinstance(function, RemoteCallable) else None
        options = self._options(options_of(accelerator, given, decorated))
        function = check_function(function)
        return JobSpec(name_of(function), options, function, tuple(call[0]), dict(call[1] or {}))

    def _options(self, options: Options) -> Options:
        """The resource's own settings where the job says nothing."""
        silent = Options()
        own = {name: getattr(self, name) for name in ("project", "store", "deployment", "backend", "spot")}
        options = replace(
            options,
            **{name: value for name, value in own.items() if value and getattr(options, name) == getattr(silent, name)},
        )
        cloud = options.cloud or TpuVm()
        if self.zones and not cloud.zones and not options.zone:
            options = replace(options, cloud=replace(cloud, zones=tuple(self.zones)))
        return check_options(options)

    def _call(self, context: _compat.Context, key: str | None) -> str:
        """What tells this call from the others of its step; a retry of the step counts anew."""
        if key is not None or _compat.is_direct(context):
            return key or ""
        step = (_compat.run_id(context), _compat.step_key(context), context.retry_number)
        return str(next(self._calls.setdefault(step, itertools.count())) or "")


def options_of(accelerator: str | None, given: Mapping[str, Any], decorated: Options | None = None) -> Options:
    """Options as they were written, or an error that shows the fix. Reads and contacts nothing."""
    for name in given:
        if name not in OPTION_NAMES:
            near = difflib.get_close_matches(name, OPTION_NAMES, 3)
            raise UsageError(
                f"there is no option {name!r}{': did you mean ' + ' or '.join(near) + '?' if near else ''}; "
                "the options are those of kinetic_orchestration.run"
            )
    if accelerator is not None:
        given = {**given, "accelerator": accelerator}
    elif decorated is None and not getattr(given.get("cloud"), "accelerator_type", ""):
        raise UsageError(
            "say which accelerator the function runs on, such as accelerator='v5e-8'; 'cpu' is one host without any. "
            "`kinetic-orchestration accelerators` lists them all"
        )
    return check_options(replace(decorated or Options(), **given))


def _keyed(spec: JobSpec, key: str) -> JobSpec:
    return replace(spec, options=replace(spec.options, key=key))
