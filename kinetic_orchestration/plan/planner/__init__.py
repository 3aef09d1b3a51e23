"""PLAN: everything decided before anything is sent. Pure: no file is read, nothing is contacted.

`make_plan` reads as the decisions; each kind of them has a module: `variables`, `clouds` (with what is `refusals` of a
backend), `costs`, `shares`. `near` narrows a plan, and `describing` shows it. Others take all of it from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration.resource_labels import label
from kinetic_orchestration.plan.configuration.settings import Settings, duration, seconds
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.backend_choice import GKE, KUBERNETES, asked_backend, chosen, fitting
from kinetic_orchestration.plan.declare.checks.held import (
    PODS_END,
    QUEUE_DECIDES,
    check_keep,
    unfit_by_options,
    without_unfit,
)
from kinetic_orchestration.plan.declare.choices import naming, told, ways
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, Slurm
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import LOCAL, JobSpec, Options, processes_of, slice_of, way_of
from kinetic_orchestration.plan.hardware import accelerators, machines, nodes
from kinetic_orchestration.plan.hardware.accelerators import Slice, by_process, on_hosts
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.planner.clouds import cloud_of, with_queue, zones_named
from kinetic_orchestration.plan.planner.costs import affordable_by, choice_of, priced
from kinetic_orchestration.plan.planner.describing import describe
from kinetic_orchestration.plan.planner.near import is_open, near_bucket, needs_location
from kinetic_orchestration.plan.planner.refusals import check_remote, check_shared, check_vms, ignored
from kinetic_orchestration.plan.planner.shares import places_of, racing, turn_of, within_shares
from kinetic_orchestration.plan.planner.variables import (
    capture,
    warn_of_kinetics_settings,
    warn_of_secrets,
    with_keras_backend,
)
from kinetic_orchestration.plan.values import Plan, Traits, backends, traits_of

__all__ = [
    "DEBUG_PORT", "PROVISION", "RUN", "absolute", "backend_of", "capture", "choice_of", "completed", "describe",
    "is_open", "make_plan", "near_bucket", "needs_location", "places_of", "priced", "with_queue", "within_shares",
    "zones_named",
]  # fmt: skip

PROVISION = 6 * 3600.0  # a slice that costs money has limits: without them, these
RUN = 24 * 3600.0
DEBUG_PORT = 5678  # the default port of editors for debugpy


def make_plan(
    spec: JobSpec, settings: Settings, environ: Mapping[str, str] | None = None, *, interpreter: str = ""
) -> Plan:
    """Make the plan from the request and the settings. `environ` is the source of captured variables, `interpreter` the
    file to which `python=` leads if it is a path.

    Unless zones are named, they are all that have the slice, until `near_bucket` narrows them. A job with a choice has
    a candidate for each way in which it may get its hosts.
    """
    if spec.defaults:
        spec = replace(spec, options=without_unfit(spec.options, spec.defaults, spec.name, _unfit_with(settings)))
    found = ways(spec.options)
    plans = []
    for one in found:
        with naming(told(one), found):
            own = _as_long_as_it_comes(one) if len(found) > 1 else one
            plans.append(_plan_of_one(replace(spec, options=own), settings, environ, interpreter))
    return racing(within_shares(choice_of(plans, spec.options.by, settings)))


def _unfit_with(settings: Settings) -> Callable[[Options, str], str]:
    """Return a function that tells why a job of one way cannot have an option of FOR_THOSE_THAT_CAN, by its options and
    by its backend, which these settings may choose."""

    def unfit(options: Options, option: str) -> str:
        if why := unfit_by_options(options, option):
            return why
        backend = backend_of(options, settings)
        traits = traits_of(backend) or Traits()
        if option == "race":
            can, why = traits.races, f"it is not possible on the {backend} backend: {QUEUE_DECIDES}"
        else:
            why = PODS_END if traits.keeps_ended else "its hosts cannot serve a second job"
            can, why = traits.may_be_kept, f"keep= is not possible on the {backend} backend: {why}"
        return "" if can or traits.share_machine else why

    return unfit


def _as_long_as_it_comes(options: Options) -> Options:
    """Return the options of one of several ways, with the longest run that it gives if that is shorter. A job of that
    way alone is refused instead."""
    run = seconds("limits.run", options.limits.run)
    longest = machines.FLEX_START_RUN[1] - machines.FLEX_START_SPARE
    if way_of(options) != accelerators.FLEX_START or run is None or run <= longest:
        return options
    warn_once(f"limits.run is {duration(run)}; an attempt that comes by flex-start gets {duration(longest)} at most")
    return replace(options, limits=replace(options.limits, run=longest))


def _plan_of_one(spec: JobSpec, settings: Settings, environ: Mapping[str, str] | None, interpreter: str) -> Plan:
    """Make the plan of the options of one way."""
    emulation.check(spec, settings)
    backend = backend_of(spec.options, settings)
    options, environ = fitting(spec.options, backend), environ or {}
    traits = traits_of(backend)
    assert traits is not None
    slice_ = _slice_of(options, traits)
    if unused := tuple(ignored(options, traits)):
        have, are = ("has", "is") if len(unused) == 1 else ("have", "are")
        warn_once(f"{', '.join(unused)} {have} no meaning on the {backend} backend and {are} ignored there")
    warn_of_kinetics_settings(environ, traits)
    env, secrets = capture(options.capture_env_vars or (), environ, named_only=not traits.share_machine)
    warn_of_secrets(spec)
    limits = _limits_of(options)
    if traits.share_machine:
        check_shared(options, backend)
        slices = options.cloud.num_slices if options.cloud is not None else 1
        cloud: dict[str, Any] = {"slices": slices, "secret_refs": dict(options.secrets or {})}
    else:
        check_remote(options, settings, backend, traits)
        limits = limits if traits.share_files else _bounded(limits)
        if traits.options is Compute:
            check_vms(options, settings, limits)
        cloud = cloud_of(options, settings, slice_, traits, environ, interpreter)
        if not traits.share_files:
            env.setdefault("KERAS_BACKEND", environ.get("KERAS_BACKEND") or "jax")  # for which the lock is made
    plan = Plan(
        name=spec.name,
        slice=slice_,
        backend=backend,
        limits=limits,
        env=with_keras_backend({**env, **spec.env}, options, spec.env),
        secrets=secrets,
        argv=spec.argv,
        emulation_asked=backend == LOCAL and emulation.is_asked_for(options, settings),
        race=options.race if traits.races else 1,
        race_of=spec.defaults.get("race", ""),
        **_as_said(options, settings),
        **cloud,
    )
    if plan.global_batch:
        from kinetic_orchestration.plan.hardware.global_batch import check_divides  # which few jobs have

        check_divides(plan.global_batch, [(plan.asked, plan.hosts)])
    turn = turn_of(plan, options.priority, settings, environ)
    return replace(plan, affordable=affordable_by(plan, settings), turn=turn)


def _slice_of(options: Options, traits: Traits) -> Slice:
    """Return one slice of the hardware, on the hosts or for the processes that the options ask for."""
    slice_ = slice_of(options)
    processes = processes_of(options, slice_)
    given = options.cloud if isinstance(options.cloud, traits.options or ()) else None
    if isinstance(given, Slurm) and given.hosts > 1:
        slice_ = replace(on_hosts(slice_, given.hosts), api="gke")  # each on a machine of its own, also of CPUs
    if isinstance(given, Kubernetes | Compute) and given.hosts > 1:
        slice_ = on_hosts(slice_, given.hosts)
        joins = machines.between_hosts if isinstance(given, Compute) else nodes.between_hosts
        if told := joins(slice_):
            warn_once(told)
    return by_process(slice_) if traits.share_machine and processes > 1 else slice_


def _limits_of(options: Options) -> Limits:
    own = options.limits
    names = ("provision", "run", "total", "stall")
    return Limits(**{name: seconds(f"limits.{name}", getattr(own, name)) for name in names}, cost=own.cost)


def _bounded(limits: Limits) -> Limits:
    """Return the limits of what costs money: it has some in any case. Raises UsageError for one without an end."""
    limits = replace(limits, provision=limits.provision or PROVISION, run=limits.run or RUN)
    for name, limit in (("provision", limits.provision), ("run", limits.run)):
        if limit == math.inf:
            raise UsageError(f"limits.{name} has no end, and a slice costs money until it has: say '30d', or so")
    return limits


def _as_said(options: Options, settings: Settings) -> dict[str, Any]:
    """Return the fields of a plan that are as the options or the settings say them."""
    return {
        "store": settings.store,
        "deployment": settings.deployment,
        "retry": options.retry,
        "output_dir": absolute(options.output_dir or settings.output_dir),
        "partition_key": options.partition_key or "",
        "volumes": tuple(options.volumes or ()),
        "distributed": settings.distributed if options.distributed is None else options.distributed,
        "processes": processes_of(options, slice_of(options)),
        "isolated": options.requirements is not None,
        "abort_without_owner": settings.on_owner_lost == "abort",
        "compile_cache": settings.compile_cache,
        "device_metrics": settings.device_metrics,
        "debug_port": DEBUG_PORT if options.debug else 0,
        "profile": profile.instructions(options.profile),
        "labels": {**(options.labels or {}), **(options.cloud.labels if options.cloud else {})},
        "reshard": options.reshard,
        "global_batch": options.global_batch,
        "keep": check_keep(options.keep),
    }


def completed(
    plan: Plan, identity: Identity, logins: Iterable[str], pipeline: str = "", *, alone: bool = False
) -> Plan:
    """Return the plan with what only its submission adds.

    Args:
        plan: The plan.
        identity: That of the job, which labels its resources.
        logins: Secrets by which the package index is read.
        pipeline: That of the job, which says whose its turn is.
        alone: The job is a call by itself, whose use is its user's.
    """
    secrets, each = tuple(dict.fromkeys((*plan.secrets, *logins))), plan.each()
    clouds = [one.cloud and {**one.cloud, **identity.labels()} for one in each]
    whose: dict[str, Any] = {"pipeline": label(pipeline), **({"alone": True} if alone else {})}
    turns = [one.turn and {**one.turn, **whose} for one in each]
    return plan.joined(
        [
            replace(one, cloud=cloud, turn=turn, secrets=secrets)
            for one, cloud, turn in zip(each, clouds, turns, strict=True)
        ]
    )


def backend_of(options: Options, settings: Settings) -> str:
    backend = chosen(options, settings).backend
    if options.backend and asked_backend(options, settings) is None and backend not in (GKE, KUBERNETES):
        warn_once(
            f"backend={options.backend!r}: no cluster of GKE is named, so this job runs on {backend}. "
            "GKE takes KINETIC_PROJECT, KINETIC_CLUSTER (or cluster=; Keras Kinetic's default is kinetic-cluster) and "
            "a store in a bucket"
        )
    if traits_of(backend) is not None:
        return backend
    raise UsageError(f"there is no backend {backend!r}; there is {', '.join(backends())}")


def absolute(folder: str) -> str:
    """A folder by its whole path, because a host's working directory is another; an address as it is."""
    return os.path.abspath(os.path.expanduser(folder)) if folder and "://" not in folder else folder
