"""`KineticResource`: what all jobs of a deployment share, and the way to run one, or hundreds, from any asset or op.

Knows how Dagster's settings become the options of a job. Without any, jobs run on this machine.
"""

from __future__ import annotations

import copy
import difflib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import dagster as dg
from pydantic import Field, PrivateAttr, model_validator

from dagster_kinetic import _compat
from dagster_kinetic.resource.config import (
    TAG,
    ComputeConfig,
    KineticRunConfig,
    KubernetesConfig,
    LimitsConfig,
    ProfileConfig,
    RetryConfig,
    TpuVmConfig,
    from_tag,
    is_open,
    refuse_unknown,
    with_text,
)
from kinetic_orchestration.api.decorator import RemoteCallable
from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.configuration import settings, store_address
from kinetic_orchestration.plan.declare.backend_choice import asked_backend, check_backend
from kinetic_orchestration.plan.declare.checks.functions import check_function, name_of
from kinetic_orchestration.plan.declare.checks.held import FOR_THOSE_THAT_CAN, unfit_by_options, without_unfit
from kinetic_orchestration.plan.declare.checks.options import check_declared, check_options, check_part
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, Choice, non_default
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, TpuVm, as_compute
from kinetic_orchestration.plan.declare.spec import OPTION_NAMES, JobSpec, Options

if TYPE_CHECKING:
    from dagster_kinetic.fleet.jobs import MapResult
    from dagster_kinetic.resource.keywords import OfBatchCall, OfCall, OfJudgingCall
    from kinetic_orchestration.api.handle import JobHandle
    from kinetic_orchestration.api.steps.evaluation import Evaluation
    from kinetic_orchestration.program.inference.report import BatchReport

Accelerator = str | Choice | Sequence[str | Choice]

# What runs jobs is imported where one is run: code servers only read definitions, and many.

R = TypeVar("R")

DEPLOYMENT = "dagster"  # in a shared store, if neither Dagster nor the user names the installation
_GROUPS = ("limits", "retry", "cloud")
_FIELDS = {Kubernetes: "kubernetes", Compute: "compute"}  # where other classes of `cloud=` have fields of their own
_INSTEAD = (("spot", "capacity"), ("capacity", "spot"), ("zone", "regions"), ("regions", "zone"))
_PLACES = {"cluster": "clusters", "namespace": "namespaces"}  # an option, and the one of `cloud=` that names several
_OWN_NAMES = {"dagster/job": "pipeline", "dagster/run-id": "run"}  # as jobs of all orchestrators have them
_TEAM = "team:"  # leads an asset's owner that is no address
_SILENT = Options()
_CONTEXTS = (dg.AssetExecutionContext, dg.OpExecutionContext, dg.AssetCheckExecutionContext)


class KineticResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Runs functions on accelerators. Its settings apply to every job that does not override them."""

    project: str | None = Field(
        default=None, description="The Google Cloud project. Without one, jobs run on this machine."
    )
    zones: list[str] = Field(default=[], description="Where to look for capacity, the first choice first.")
    store: str | None = Field(default=None, description="Where what is shipped lies: a folder, or gs://bucket/prefix.")
    deployment: str | None = Field(
        default=None,
        description="This installation of Dagster: the prefix of all in the store. By default Dagster+'s own name of "
        f"the deployment or branch deployment; elsewhere {DEPLOYMENT!r} in a bucket.",
    )
    backend: str | None = Field(
        default=None,
        description="Where jobs run. By default, with a project and a gs:// store, what suits the accelerator: tpu-vm "
        "or compute, or gke if a cluster is named; else local.",
    )
    require_hardware: bool = Field(
        default=False, description="Refuse every job that would only be emulated: for production."
    )
    spot: bool = Field(default=False, description="Ask for spot capacity: cheaper, and it may be taken back.")
    capacity: list[str] = Field(
        default=[],
        description="Ways of buying, the first choice first, instead of spot: spot, on-demand, flex-start, ….",
    )
    regions: list[str] = Field(default=[], description="Regions to look for capacity in, instead of zones.")
    by: str = Field(default="order", description="What decides among several choices: order, price or start.")
    race: int = Field(
        default=1, description="How many places are asked at once, of which the first with hosts is kept."
    )
    keep: str | None = Field(
        default=None, description="How long a job's slice stays warm for the next one with keep, such as 10m."
    )
    priority: int | None = Field(
        default=None, description="Where chips are shared, jobs of a higher one have their turn first."
    )
    reshard: bool = Field(default=False, description="Go on from checkpoints of another number of hosts or devices.")
    global_batch: int = Field(default=0, description="Samples of one step on all hosts together, on every slice.")
    cloud: TpuVmConfig = Field(default=TpuVmConfig(), description="What only Cloud TPU understands.")
    cluster: str | None = Field(default=None, description="The cluster: a context of the kubeconfig, or one of GKE.")
    namespace: str | None = Field(default=None, description="The namespace of the cluster.")
    kubernetes: KubernetesConfig = Field(
        default=KubernetesConfig(), description="What only Kubernetes understands, in place of cloud."
    )
    compute: ComputeConfig = Field(
        default=ComputeConfig(), description="What only Compute Engine understands, in place of cloud."
    )
    limits: LimitsConfig = Field(default=LimitsConfig(), description="Bounds in time and money.")
    retry: RetryConfig = Field(default=RetryConfig(), description="How many failures of each kind a job survives.")
    requirements: list[str] | None = Field(
        default=None,
        description="What hosts install; by default what the code imports, at the versions installed here.",
    )
    container_image: str | None = Field(default=None, description="A container that holds the jobs' environment.")
    first_party: list[str] = Field(default=[], description="Packages that are not in the project and travel with it.")
    capture_env_vars: list[str] = Field(default=[], description="Variables that hosts get; a final * makes a prefix.")
    secrets: dict[str, str] = Field(default={}, description="Variable to the name of its secret in Secret Manager.")
    labels: dict[str, str] = Field(
        default={}, description="Labels of the cloud's resources, by which a bill is grouped."
    )
    output_dir: str | None = Field(default=None, description="Where jobs write their outputs.")
    profile: ProfileConfig = Field(default=ProfileConfig(), description="A trace of every job, for XProf.")
    max_concurrent: int = Field(default=64, description="How many jobs of one map() run at once.")

    _calls: dict[tuple[str, str, int], Iterator[int]] = PrivateAttr(default_factory=dict)
    _launch: KineticRunConfig | None = PrivateAttr(default=None)
    _only_call_of: str = PrivateAttr(default="")  # the key of this resource, where a step makes one call alone

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, given: Any, make: Callable[[Any], KineticResource]) -> KineticResource:
        """Check the settings that are known now; an EnvVar has its value when a run begins."""
        refuse_unknown(cls.__name__, cls.model_fields, given)
        if isinstance(given, Mapping) and (own := _FIELDS.get(type(given.get("cloud")))):
            given = {**{name: value for name, value in given.items() if name != "cloud"}, own: given["cloud"]}
        made = make(with_text(given, "keep"))
        if made.max_concurrent < 1:
            raise UsageError(f"max_concurrent is {made.max_concurrent}: at least one job must be able to run")
        if not is_open(given):
            check_part(non_default(made._own()))
        return made

    @overload
    def run(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Unpack[OfCall],
    ) -> R: ...

    @overload
    def run(
        self,
        function: Callable[..., R],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Unpack[OfCall],
    ) -> R: ...

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Any,
    ) -> Any:
        """Run `function(*args, **kwargs)` as a job and return its value; its lines appear in the step's log.

        `context`: of the asset, the op or the asset check; in the step's own thread it may be left out.
        Called again in the same step after a crash, it finds its job again by the order of the calls, or by `key`
        where that order is not fixed. `options` are those of `kinetic_orchestration.run`.
        """
        from dagster_kinetic.step.step import run_in_step
        from kinetic_orchestration.api.handle import run_to_end
        from kinetic_orchestration.jobs.launch import launch
        from kinetic_orchestration.jobs.request import draft

        context = of_step(context)
        spec = self._spec(function, (args, kwargs), accelerator, context, options)
        if context is None:
            request = draft(spec if key is None else _keyed(spec, key)).open()
            return run_to_end(launch(request), request.settings)
        return run_in_step(spec, context, self._call(context, key))

    @overload
    def submit(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Unpack[OfCall],
    ) -> JobHandle[R]: ...

    @overload
    def submit(
        self,
        function: Callable[..., R],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Unpack[OfCall],
    ) -> JobHandle[R]: ...

    def submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **options: Any,
    ) -> JobHandle[Any]:
        """Bring the job on its way and return its handle; the job then needs neither step nor run."""
        from dagster_kinetic.step.step import launch_in_step, refuse_if_it_would_end_with_its_run
        from kinetic_orchestration.api.handle import JobHandle
        from kinetic_orchestration.jobs.launch import launch
        from kinetic_orchestration.jobs.request import draft

        context = of_step(context)
        spec = self._spec(function, (args, kwargs), accelerator, context, options)
        if _compat.is_direct(context):
            return JobHandle(launch(draft(spec if key is None else _keyed(spec, key)).open()))
        asked = draft(spec)
        refuse_if_it_would_end_with_its_run(asked, context)
        return JobHandle(launch_in_step(asked, context, self._call(context, key)))

    def map(
        self,
        function: Callable[..., Any],
        inputs: Iterable[Any],
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        input_mode: str = "auto",
        max_concurrent: int | None = None,
        **options: Unpack[OfCall],
    ) -> list[MapResult]:
        """Run one job for each input, a limited number at a time, all from this step; results are in the order of the
        inputs.

        A job that fails is a result with its `error`: the others continue. An input is the arguments of its call: a
        dict by name, a list or tuple by position, anything else alone (`input_mode` overrides that). After a crash a
        retry finds the jobs again by their positions among the inputs, or by `keys` if the order is not fixed.
        """
        from dagster_kinetic.fleet.jobs import map_in_step
        from kinetic_orchestration.api.batch import arguments

        context = of_step(context)
        inputs = list(inputs)
        names = list(map(str, range(len(inputs)))) if keys is None else [str(name) for name in keys]
        if len(names) != len(inputs) or len(set(names)) != len(names):
            raise UsageError(
                f"keys names each of the {len(inputs)} inputs once, and has {len(names)} names of which "
                f"{len(set(names))} differ"
            )
        width = self.max_concurrent if max_concurrent is None else max_concurrent
        if width < 1:
            raise UsageError(f"max_concurrent is {width}: at least one job must be able to run")
        specs = [self._spec(function, arguments(item, input_mode), accelerator, context, options) for item in inputs]
        call = self._call(context, key) if context is not None else key or ""
        return map_in_step(specs, inputs, names, context, call, width)

    def serve_batch(
        self,
        model: Any,
        prompts: Any,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **given: Unpack[OfBatchCall],
    ) -> dg.MaterializeResult[BatchReport]:
        """Answer many prompts by a model on an accelerator, and return what an asset returns: the report as its value,
        and rows, tokens a second, latencies, start-up, cost and the place of the parts as its metadata.

        `given`: keywords of `kinetic_orchestration.serve_batch`, and options of its job. A retry of the step finds its
        job again, and a later run with the same `output` asks only what has no answer there.
        """
        from dagster_kinetic.resource.inference import batch_metadata
        from kinetic_orchestration.api.steps.asked import Batch, divided
        from kinetic_orchestration.api.steps.inference import batch_spec, with_cost

        handles: list[JobHandle[Any]] = []
        asked, options = divided(Batch, given)
        spec, context, call = self._step(batch_spec, (model, prompts, asked), accelerator, context, key, options)
        report = self._run_step(spec, context, call, handles.append)
        report = with_cost(report, handles[0])
        return dg.MaterializeResult(value=report, metadata=batch_metadata(report))

    def evaluate(
        self,
        model: Any,
        tasks: Any,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        key: str | None = None,
        **given: Unpack[OfJudgingCall],
    ) -> Evaluation:
        """Evaluate a model by tasks of lm-evaluation-harness on an accelerator. `evaluation_check` makes it the result
        of an asset check, which may block what is downstream.

        `given`: keywords of `kinetic_orchestration.evaluate`, and options of its job.
        """
        from kinetic_orchestration.api.steps.asked import Judging, divided
        from kinetic_orchestration.api.steps.evaluation import Evaluation, evaluation_spec

        asked, options = divided(Judging, given)
        spec, context, call = self._step(evaluation_spec, (model, tasks, asked), accelerator, context, key, options)
        return Evaluation.of(self._run_step(spec, context, call))

    def _step(
        self,
        make: Callable[..., JobSpec],
        asked: tuple[Any, ...],
        accelerator: Accelerator | None,
        context: _compat.Context,
        key: str | None,
        options: Mapping[str, Any],
    ) -> tuple[JobSpec, _compat.Context, str]:
        """Return the job that the core makes of what a step asks, the step's context, and the name of the call."""
        from dagster_kinetic.resource.inference import job_of

        context = of_step(context)
        base = self._spec(make, ((), None), accelerator, context, options)
        spec = job_of(make(*asked, base.options), base)
        return spec if context is not None or key is None else _keyed(spec, key), context, self._call(context, key)

    def _run_step(
        self,
        spec: JobSpec,
        context: _compat.Context,
        call: str,
        made: Callable[[JobHandle[Any]], object] | None = None,
    ) -> Any:
        """Run the job of `_step` to its end, in a step or outside any, and return its value."""
        from dagster_kinetic.step.step import run_in_step
        from kinetic_orchestration.api.handle import JobHandle, run_to_end
        from kinetic_orchestration.jobs.launch import launch
        from kinetic_orchestration.jobs.request import draft

        if context is not None:
            return run_in_step(spec, context, call, made=made)
        request = draft(spec).open()
        job = launch(request)
        if made is not None:
            made(JobHandle(job))
        return run_to_end(job, request.settings)

    def attach(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job that any process submitted."""
        from kinetic_orchestration.api.handle import attach

        return attach(job_id, **self.place())

    def overridden_by(self, config: KineticRunConfig | None) -> KineticResource:
        """The same resource with the overrides of a launch."""
        if config is None:
            return self
        made = copy.copy(self)
        made._launch = config
        return made

    def of_only_call(self, key: str) -> KineticResource:
        """The same resource, for the only call of a step that requires it by this key: so it is known which step of a
        run is the last one, which leaves no warm slice.
        """
        made = copy.copy(self)
        made._only_call_of = key
        return made

    def place(self) -> dict[str, str | None]:
        """Location arguments of this deployment's jobs, for `attach` and similar calls."""
        options = self._named(self._own())
        return {"project": options.project, "store": options.store, "deployment": options.deployment}

    def hardware_places(self) -> list[dict[str, str | None]]:
        """Settings of everything where this resource's jobs may have hosts, one for each namespace that it names."""
        options, place = self._named(self._own()), self.place()
        cloud = options.cloud if isinstance(options.cloud, Kubernetes) else Kubernetes()
        clusters = tuple(cloud.clusters) or (options.cluster,)
        namespaces = tuple(cloud.namespaces) or (options.namespace,)
        found = []
        for cluster, namespace in itertools.product(clusters, namespaces):
            where = {**place, "cluster": cluster, "namespace": namespace}
            found.append({**where, "backend": asked_backend(options, settings.load(None, **where))})
        return found

    def _spec(
        self,
        function: Callable[..., Any],
        call: tuple[Sequence[Any], Mapping[str, Any] | None],
        accelerator: Accelerator | None,
        context: _compat.Context,
        given: Mapping[str, Any],
    ) -> JobSpec:
        """The call as a job: given options take precedence over those of the function's decorator, and those over this
        resource."""
        decorated = function.options if isinstance(function, RemoteCallable) else None
        options_of(accelerator, given, decorated)
        if accelerator is not None:
            given = {**given, "accelerator": accelerator}
        if context is not None:
            given = {"partition_key": _compat.partition_of(context), **given}
        function = plain_function(function)
        given = {**(non_default(decorated) if decorated is not None else {}), **given}
        name = name_of(function)
        options, defaults = self._options(given, context, name), self._defaults(given, context)
        spec = JobSpec(name, options, function, tuple(call[0]), dict(call[1] or {}), defaults=defaults)
        return self._job(spec)

    def _job(self, spec: JobSpec) -> JobSpec:
        """Build the call's spec with this resource's settings for the location of jobs."""
        from kinetic_orchestration.plan.emulation import kinetics_own

        return replace(spec, meant=kinetics_own(spec.options), require_hardware=self.require_hardware)

    def _defaults(self, given: Mapping[str, Any], context: _compat.Context = None) -> dict[str, str]:
        """Return what this resource means for those of its jobs that can, and nobody has said for this one."""
        said = {*given, *(name for each in self._launches(context) for name in each.to_options())}
        return {name: "the resource" for name in FOR_THOSE_THAT_CAN if name not in said}

    def _launches(self, context: _compat.Context) -> list[KineticRunConfig]:
        return [each for each in (*_tagged(context), self._launch) if each is not None]

    def _options(self, given: Mapping[str, Any], context: _compat.Context = None, name: str = "a job") -> Options:
        """Complete options: the given ones, completed by this resource's and overridden by those of the launch."""
        options = _laid_over(self._own(), given)
        for launch in self._launches(context):
            options = _overridden(options, launch)
        options = without_unfit(options, self._defaults(given, context), name, unfit_by_options)
        if not _compat.is_direct(context):
            options = replace(options, labels={**_labels_of(context), **(options.labels or {})})
        may_be_last = self._only_call_of and not options.retry.user  # else it takes its own slice again
        if options.keep is not None and may_be_last and _compat.is_last_with(context, self._only_call_of):
            options = replace(options, keep="0s")
        return check_options(self._named(options))

    def _own(self) -> Options:
        """The options that this resource sets."""
        plain = (
            *("project", "store", "deployment", "backend", "cluster", "namespace", "spot", "requirements"),
            *("container_image", "output_dir", *OF_CAPACITY),
        )
        several = ("first_party", "capture_env_vars", "secrets", "labels")
        own = {name: value for name in (*plain, *several) if (value := getattr(self, name)) or value == 0}
        groups: dict[str, Any] = {name: getattr(self, name).to_core() for name in _GROUPS}
        if (asked := self.profile.to_core()) is not None:
            own["profile"] = asked
        if self.zones:
            groups["cloud"] = replace(groups["cloud"], zones=tuple(self.zones))
        vms, pods = self.compute.to_core(), self.kubernetes.to_core()
        if vms != Compute() and groups["cloud"] == TpuVm(zones=(zones := groups["cloud"].zones)):
            vms, groups["cloud"] = replace(vms, zones=zones), TpuVm()  # which are of any VMs
        for name, group in (("compute", vms), ("kubernetes", pods)):
            if group == type(group)():
                continue
            if groups["cloud"] != TpuVm():
                others = "zones= or cloud=, which are of Cloud TPU," if name == "kubernetes" else "cloud="
                raise ConflictingSettings(
                    f"{others} and {name}= exclude each other: leave out what the backend of these jobs does not have"
                )
            groups["cloud"] = group
        return replace(_SILENT, **own, **{name: group for name, group in groups.items() if group != type(group)()})

    def _named(self, options: Options) -> Options:
        """The options with a deployment: the options' own, that of the settings here, or Dagster's name, in
        this order."""
        if options.deployment or settings.stated("deployment"):
            return options
        shared = not store_address.is_folder(options.store or settings.stated("store"))
        name = _compat.deployment_name() or (DEPLOYMENT if shared else None)
        return replace(options, deployment=name)

    def _call(self, context: _compat.Context, key: str | None) -> str:
        """The name of this call among those of its step; a retry of the step counts again from the beginning."""
        if key is not None or _compat.is_direct(context):
            return key or ""
        step = (_compat.run_id(context), _compat.step_key(context), context.retry_number)
        return str(next(self._calls.setdefault(step, itertools.count())) or "")


def of_step(context: _compat.Context) -> _compat.Context:
    """The given context, or that of the current step: without it, no process would end the job of an
    interrupted step."""
    found = _compat.current() if context is None else context
    if found is not None and not isinstance(found, _CONTEXTS):
        raise UsageError(
            f"context is a {type(found).__name__}: give that of an asset, an op or an asset check, or none where no "
            "step runs"
        )
    return found


def plain_function(function: Any) -> Callable[..., Any]:
    """The plain function to run, or an error that shows the fix."""
    if isinstance(function, dg.AssetsDefinition | dg.OpDefinition):
        raise UsageError(
            f"{type(function).__name__} is what another decorator of Dagster has made of a function: leave that one "
            "out, and give the function itself"
        )
    return check_function(function)


def options_of(accelerator: Accelerator | None, given: Mapping[str, Any], decorated: Options | None = None) -> Options:
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
    options = check_options(replace(decorated or _SILENT, **given))
    return check_declared(check_backend(options, bought_later=True))


def _laid_over(options: Options, given: Mapping[str, Any]) -> Options:
    """Override options by the given ones; groups and labels are merged entry by entry."""
    merged: dict[str, Any] = {}
    for name, asked in given.items():
        value, below = asked, getattr(options, name)
        if name == "cloud" and Compute in (type(value), type(below)):  # what is of any VMs is of either class
            value, below = as_compute(value) or value, as_compute(below) or below
        if name in _GROUPS and value is not None and type(value) is type(below):
            merged[name] = replace(below, **non_default(value))
        elif name in ("labels", "secrets") and below and value:
            merged[name] = {**below, **value}
        else:
            merged[name] = value
    return replace(options, **_displaced(options, given, merged))


def _displaced(options: Options, given: Mapping[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """Return the merged options without those that given ones take the place of; those of the same call stay, as they
    are refused together.
    """
    if given.get("zone") or given.get("regions"):  # zones from elsewhere do not apply
        merged["cloud"] = _without_zones(merged.get("cloud") or options.cloud, given)
    for one, other in _INSTEAD:
        if given.get(one) not in (None, [], ()):
            merged.setdefault(other, getattr(_SILENT, other))
    for one, several in _PLACES.items():
        if given.get(one):  # as it names one, others do not apply
            cloud = merged.get("cloud", options.cloud)
            own: dict[str, Any] = {several: getattr(given.get("cloud"), several, ())}
            merged |= {"cloud": replace(cloud, **own)} if isinstance(cloud, Kubernetes) else {}
    cloud = given.get("cloud")
    if isinstance(cloud, TpuVm | Compute) and cloud.zones:
        merged = {"zone": None, "regions": None} | merged
    for one, several in _PLACES.items():
        if getattr(cloud, several, ()):
            merged.setdefault(one, None)
    return merged


def _without_zones(cloud: CloudOptions | None, given: Mapping[str, Any]) -> CloudOptions | None:
    """Return options of a cloud with those zones only that the same call names; it is refused if these contradict."""
    if not isinstance(cloud, TpuVm | Compute):
        return cloud if given.get("regions") else TpuVm()
    own = () if given.get("zone") else getattr(given.get("cloud"), "zones", ())
    return replace(cloud, zones=own)


def _tagged(context: _compat.Context) -> Iterator[KineticRunConfig]:
    """Overrides in the tags of a step's op, then in those of its run, which take precedence."""
    if _compat.is_direct(context):
        return
    step = _compat.op_context(context)
    for tags, whose in ((step.op.tags, f"the op {step.op.name}"), (context.run.tags, "the run")):
        if TAG in tags:
            yield from_tag(tags[TAG], whose)


def _overridden(options: Options, launch: KineticRunConfig) -> Options:
    asked = launch.to_options()
    if "accelerator" in asked and isinstance(options.cloud, TpuVm):  # which may have named it in Cloud TPU's own way
        options = replace(options, cloud=replace(options.cloud, accelerator_type=""))
    return _laid_over(options, asked)


def _labels_of(context: _compat.Context) -> dict[str, str]:
    """Labels of the cloud's resources that name the run that asked for a job, by which bills are grouped: pipeline,
    step, run, asset, owner, and what else Dagster knows of its run: partition, location, commit. The backend knows
    which characters a label may hold.
    """
    info: Mapping[str, str] = _compat.execution_info(context)
    told = {_OWN_NAMES.get(name, name.replace("/", "-")): value for name, value in info.items()}
    assets = _compat.specs_of(context)
    told["step"] = _compat.step_key(context)
    if len(assets) == 1:
        told["asset"] = assets[0].key.to_user_string()
    owners = [owner for spec in assets for owner in spec.owners]
    owner = owners[0].removeprefix(_TEAM) if owners else info.get("dagster/user", "")
    return {name: value for name, value in {**told, "owner": owner}.items() if value}


def _keyed(spec: JobSpec, key: str) -> JobSpec:
    return replace(spec, options=replace(spec.options, key=key))


def resource_of(
    context: dg.SensorEvaluationContext | dg.AssetExecutionContext, given: Mapping[str, Any], key: str
) -> KineticResource:
    """Return the resource with this key: handed in by a test's direct call of a sensor, else from the context."""
    kinetic = given.get(key) or getattr(context.resources, key)
    if not isinstance(kinetic, KineticResource):
        raise UsageError(f"the resource {key!r} is a {type(kinetic).__name__}, and no KineticResource")
    return kinetic
