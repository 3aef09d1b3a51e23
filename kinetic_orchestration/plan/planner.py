"""PLAN: everything decided before anything is sent. Pure: no file is read, nothing is contacted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import ConflictingSettings, NoPlace, Unsupported, UsageError
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration import cluster_names, resource_labels
from kinetic_orchestration.plan.configuration.resource_labels import label
from kinetic_orchestration.plan.configuration.settings import VARIABLES, Settings, duration, seconds, set_by
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.backend_choice import GKE, KUBERNETES, asked_backend, chosen, fitting
from kinetic_orchestration.plan.declare.checks.clouds import check_account, check_resource, region_of_subnetwork
from kinetic_orchestration.plan.declare.checks.held import (
    PODS_END,
    QUEUE_DECIDES,
    check_keep,
    left_out,
    unfit_by_options,
    unkept,
    without_unfit,
)
from kinetic_orchestration.plan.declare.checks.options import check_keras_backend
from kinetic_orchestration.plan.declare.choices import ORDERS, naming, told, ways
from kinetic_orchestration.plan.declare.cloud import (
    OF_ANY_BACKEND,
    Compute,
    Kubernetes,
    TpuVm,
    fields_of,
    queues_of,
    reservation_of,
)
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import (
    COMPUTE,
    LOCAL,
    JobSpec,
    Options,
    image_of,
    processes_of,
    refuse,
    slice_of,
    way_of,
    zones_in,
)
from kinetic_orchestration.plan.hardware import accelerators, machines, nodes, regions
from kinetic_orchestration.plan.hardware.accelerators import ON_DEMAND, Slice, by_process, on_hosts
from kinetic_orchestration.plan.hardware.accelerators import zones as zones_of
from kinetic_orchestration.plan.hardware.cost import affordable, check_usd
from kinetic_orchestration.plan.hardware.prices import Price, price
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.records import reserved_zone
from kinetic_orchestration.plan.values import Candidate, Plan, Traits, backends, traits_of

DAY = 86400.0
PROVISION = 6 * 3600.0  # a slice that costs money has limits: without them, these
RUN = DAY
LONGEST_RUN = 119 * DAY  # of a VM of Compute Engine, whose own limit of 120 days counts its boot and its end, too

# A wildcard never captures what would break the job's own process.
NEVER_BY_WILDCARD = frozenset(
    (
        *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CONDA_DEFAULT_ENV", "SHELL", "TMPDIR", "TEMP", "TMP", "HOSTNAME", "USER", "LOGNAME", "SSH_AUTH_SOCK"),
        *("KUBERNETES_SERVICE_HOST", "KERAS_BACKEND", "KINETIC_SIGNING_KEY", "KINETIC_BILLING_KEY"),
    )
)

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
    found, race_of = ways(spec.options), spec.defaults.get("race", "")
    plans = []
    for one in found:
        with naming(told(one), found):
            own = _as_long_as_it_comes(one) if len(found) > 1 else one
            plans.append(_plan_of_one(replace(spec, options=own), settings, environ, interpreter))
    return racing(within_shares(choice_of(plans, spec.options.by, settings), race_of=race_of), race_of)


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


def choice_of(plans: Sequence[Plan], by: str, settings: Settings) -> Plan:
    """Return the plan of a job that has these ways, with the prices of each; one that is another's, as on this machine,
    is none."""
    found: list[Candidate] = []
    for plan in plans if len(plans) > 1 else ():
        usd, stand_ins = _usd(plan, settings)
        if (one := Candidate.of(plan, usd, stand_ins=stand_ins)) not in found:
            found.append(one)
    if len(found) > 1:
        return replace(plans[0], choices=tuple(found), by=by)
    return replace(plans[0], choices=(), by=ORDERS[0]) if plans[0].choices else plans[0]


def _usd(plan: Plan, settings: Settings) -> tuple[dict[str, float], dict[str, str]]:
    """Return the dollars for an hour of all hosts in each place that has a known price, and what they are for where
    they stand in for one that is not known."""
    of = plan.purchase
    if plan.traits.share_machine or not of.chips:
        return {}, {}
    asked = {place: price(of, place, settings.prices, settings.listed) for place in plan.zones}
    known = {place: one for place, one in asked.items() if isinstance(one, Price)}
    stand_ins = {place: one.stands_in for place, one in known.items() if one.stands_in}
    return {place: one.usd_per_chip_hour * of.chips for place, one in known.items()}, stand_ins


def _plan_of_one(spec: JobSpec, settings: Settings, environ: Mapping[str, str] | None, interpreter: str) -> Plan:
    """Make the plan of the options of one way."""
    emulation.check(spec, settings)
    backend = backend_of(spec.options, settings)
    options = fitting(spec.options, backend)
    traits = traits_of(backend)
    assert traits is not None
    slice_ = slice_of(options)
    processes = processes_of(options, slice_)
    given = options.cloud if isinstance(options.cloud, traits.options or ()) else None
    if isinstance(given, Kubernetes | Compute) and given.hosts > 1:
        slice_ = on_hosts(slice_, given.hosts)
        joins = machines.between_hosts if isinstance(given, Compute) else nodes.between_hosts
        if told := joins(slice_):
            warn_once(told)
    if traits.share_machine and processes > 1:
        slice_ = by_process(slice_)
    if unused := tuple(_ignored(options, traits)):
        have, are = ("has", "is") if len(unused) == 1 else ("have", "are")
        warn_once(f"{', '.join(unused)} {have} no meaning on the {backend} backend and {are} ignored there")
    _warn_of_kinetics_settings(environ or {}, traits)
    env, secrets = capture(options.capture_env_vars or (), environ or {}, named_only=not traits.share_machine)
    _warn_of_secrets(spec)
    limits = Limits(
        **{
            name: seconds(f"limits.{name}", getattr(options.limits, name))
            for name in ("provision", "run", "total", "stall")
        },
        cost=options.limits.cost,
    )
    if traits.share_machine:
        _check_shared(options, backend)
        cloud: dict[str, Any] = {"secret_refs": dict(options.secrets or {})}
    else:
        _check_remote(options, settings, backend, traits)
        limits = replace(limits, provision=limits.provision or PROVISION, run=limits.run or RUN)
        for name, limit in (("provision", limits.provision), ("run", limits.run)):
            if limit == math.inf:
                raise UsageError(f"limits.{name} has no end, and a slice costs money until it has: say '30d', or so")
        if traits.options is Compute:
            _check_vms(options, settings, limits)
        cloud = _cloud(options, settings, slice_, traits, environ or {}, interpreter)
        env.setdefault("KERAS_BACKEND", (environ or {}).get("KERAS_BACKEND") or "jax")  # for which the lock is made
    env = _with_keras_backend({**env, **spec.env}, options, spec.env)
    plan = Plan(
        name=spec.name,
        slice=slice_,
        backend=backend,
        store=settings.store,
        deployment=settings.deployment,
        limits=limits,
        retry=options.retry,
        output_dir=absolute(options.output_dir or settings.output_dir),
        partition_key=options.partition_key or "",
        env=env,
        secrets=secrets,
        volumes=tuple(options.volumes or ()),
        argv=spec.argv,
        distributed=settings.distributed if options.distributed is None else options.distributed,
        emulation_asked=backend == LOCAL and emulation.is_asked_for(options, settings),
        processes=processes,
        isolated=options.requirements is not None,
        abort_without_owner=settings.on_owner_lost == "abort",
        compile_cache=settings.compile_cache,
        device_metrics=settings.device_metrics,
        debug_port=DEBUG_PORT if options.debug else 0,
        profile=profile.instructions(options.profile),
        labels={**(options.labels or {}), **(options.cloud.labels if options.cloud else {})},
        reshard=options.reshard,
        global_batch=options.global_batch,
        race=options.race if traits.races else 1,
        keep=check_keep(options.keep),
        **cloud,
    )
    if plan.global_batch:
        from kinetic_orchestration.plan.hardware.global_batch import check_divides  # which few jobs have

        check_divides(plan.global_batch, [(plan.asked, plan.hosts)])
    turn = _turn(plan, options.priority, settings, environ or {})
    return replace(plan, affordable=_affordable(plan, settings), turn=turn)


def _turn(plan: Plan, own: int | None, settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the turn of a job depends on where chips are shared; nothing where they are not, or where a queue of
    the cluster decides. `own`: the priority of its options, if they say one."""
    if not settings.chips or not plan.purchase.chips or plan.cloud.get("queue"):
        return {}
    from kinetic_orchestration.plan.configuration import chip_shares  # which few deployments have

    weight = chip_shares.weight(plan.slice, settings.prices, settings.listed).counts
    user = label(plan.labels.get("owner") or _owner(environ))  # as the label of its resources says
    shares = chip_shares.text_of(settings.chips)
    priority = settings.priority if own is None else own
    return {"shares": shares, "priority": priority, "weight": weight, "user": user}


def within_shares(plan: Plan, pipeline: str = "", race_of: str = "") -> Plan:
    """Return the plan without those of its choices that a share can never hold, of which users are warned.

    Args:
        plan: The plan.
        pipeline: That of its job; "" if it is not known yet.
        race_of: Whose its race is, if only a default: then the job does without it before it is refused.

    Raises:
        UsageError: The shares can hold none of them.
    """
    if not any(one.turn for one in plan.each()):
        return plan
    never = [_never(one, label(pipeline)) for one in plan.each()]
    if not any(never):
        return plan
    if all(never):
        why = "; ".join(dict.fromkeys(never))
        if plan.race > 1 and race_of:
            return within_shares(_unraced(plan, race_of, why), pipeline)
        raise UsageError(why)
    for why in dict.fromkeys(filter(None, never)):
        warn_once(f"one choice is left out: {why}")
    left = [number for number, why in enumerate(never) if not why]
    found = replace(plan.at(left[0]), choices=tuple(plan.choices[number] for number in left))
    return found if len(left) > 1 else replace(found, choices=(), by=ORDERS[0])


def racing(plan: Plan, race_of: str = "") -> Plan:
    """Return the plan, of which a race has at least two places to ask. Raises UsageError.

    race_of: Whose the race is, if only a default: then it is left out, which is told.
    """
    places = {(number, zone) for number, one in enumerate(plan.each()) for zone in places_of(one)}
    if plan.race > 1 and len(places) < 2:
        only = f"one place to ask, {next(iter(places))[1]}" if places else "no place to ask that is known"
        if race_of:
            return _unraced(plan, race_of, f"it has {only}")
        raise UsageError(
            f"race={plan.race} asks several places at once, and this job has {only}: name more zones, or regions=, or "
            "another accelerator or way of buying; or leave race out"
        )
    return plan


def _unraced(plan: Plan, race_of: str, why: str) -> Plan:
    left_out(f"race={plan.race}", race_of, plan.name, why)
    return replace(plan, race=1)


def places_of(plan: Plan) -> Sequence[str]:
    """Return the zones in which an attempt of one way may be: that of a reservation which names it, or the plan's."""
    reserved = reserved_zone(plan)
    return (reserved,) if reserved else plan.zones


def _never(plan: Plan, pipeline: str) -> str:
    """Return why an attempt can never have its turn; "" if it can."""
    if not plan.turn:
        return ""
    from kinetic_orchestration.plan.configuration import chip_shares  # as well

    shares = chip_shares.parse("KINETIC_CHIPS", plan.turn["shares"])
    chips, weight, user = plan.purchase.chips * plan.race, plan.turn["weight"], plan.turn["user"]
    bounds = chip_shares.bounds(shares, plan.slice.generation, chips, weight, user, pipeline)
    asked = f"{plan.named} with race={plan.race}" if plan.race > 1 else plan.named
    return chip_shares.refusal("KINETIC_CHIPS", shares, asked, bounds)


def _warn_of_kinetics_settings(environ: Mapping[str, str], traits: Traits) -> None:
    if all(name in VARIABLES for name in environ if name.startswith("KINETIC_")):
        return
    from kinetic_orchestration.plan.declare.keras_kinetic import without_effect  # a table that most launches do without

    for name, why in without_effect(environ, traits.ignored):
        warn_once(f"{name} is set, and has no effect here: {why}")


def _with_keras_backend(env: dict[str, str], options: Options, given: Mapping[str, str]) -> dict[str, str]:
    """The variables with the value of `keras_backend=`; a name that Keras does not know would only be found on
    a host."""
    asked, given_value = options.keras_backend, given.get("KERAS_BACKEND")
    if asked and given_value and asked != given_value:
        raise ConflictingSettings(
            f"keras_backend={asked!r} and env={{'KERAS_BACKEND': {given_value!r}}} name two backends of Keras: keep one"
        )
    found = {**env, "KERAS_BACKEND": asked} if asked else env
    if found.get("KERAS_BACKEND", "") not in ("", "numpy", "openvino"):  # with which nothing is trained
        check_keras_backend("KERAS_BACKEND", found["KERAS_BACKEND"])
    return found


def _ignored(options: Options, traits: Traits) -> Iterator[str]:
    """Name what was asked for and means nothing on the backend."""
    for name in traits.ignored:
        if name == "spot" and options.capacity:  # which has said so
            continue
        if name == "project" and options.secrets:  # they are read there for every backend
            continue
        if image_of(options) if name == "container_image" else getattr(options, name):
            yield f"{name}="
    if traits.share_machine and options.race > 1:  # it is one place
        yield "race="
    cloud = [f"{name}=…" for name in emulation.named_cloud_options(options) if name not in OF_ANY_BACKEND]
    if cloud and not isinstance(options.cloud, traits.options or ()):
        yield f"cloud={type(options.cloud).__name__}({', '.join(cloud)})"


def _check_remote(options: Options, settings: Settings, backend: str, traits: Traits) -> None:
    scheme, separator, _ = settings.store.partition("://")
    if traits.stores and (not separator or scheme not in traits.stores):
        lies = "is none that they reach" if separator else "is a folder of this machine"
        example = "a bucket with store= or KINETIC_STORE, such as gs://my-bucket/kinetic"
        if "gs" not in traits.stores:
            example = f"one with store= or KINETIC_STORE ({', '.join(f'{name}://…' for name in traits.stores)})"
        raise UsageError(
            f"the {backend} backend needs a store that its hosts can reach, and {settings.store} {lies}: name {example}"
        )
    if traits.in_project and not settings.project:
        raise UsageError(
            f"the {backend} backend needs a Google Cloud project: name it with project= or KINETIC_PROJECT"
        )
    if processes_of(options, slice_of(options)) > 1:
        _check_processes(options, backend, traits)
    if options.race > 1 and not traits.races:
        raise refuse(f"race={options.race}", backend, QUEUE_DECIDES)
    if options.debug:
        raise refuse("debug=True", backend, "an editor cannot reach its hosts; debug on the local backend")
    if options.keep is not None:
        _check_keep(options, backend, traits)


def _check_keep(options: Options, backend: str, traits: Traits) -> None:
    """Refuse to keep slices that cannot serve another job."""
    if traits.keeps_ended:
        raise refuse("keep=", backend, PODS_END)
    if not traits.may_be_kept:
        raise refuse("keep=", backend, "its hosts cannot serve a second job; leave keep out")
    if why := unkept(options):
        raise Unsupported(why)


def _check_processes(options: Options, backend: str, traits: Traits) -> None:
    """Refuse several processes on a machine, unless it is a VM of Compute Engine that runs no container."""
    if traits.options is not Compute:
        raise refuse(
            "processes=",
            backend,
            f"a host of it is one process; it is for GPUs of this machine, and of VMs with backend='{COMPUTE}'",
        )
    if image_of(options):
        raise refuse(
            "processes= with container_image=",
            backend,
            "a container is one process that sees all GPUs of its VM. Leave container_image out, and the processes get "
            "locked packages; or leave processes out",
        )


def _check_vms(options: Options, settings: Settings, limits: Limits) -> None:
    """Refuse what no VM of Compute Engine can be; the hardware itself is checked by `emulation`."""
    cloud = options.cloud if isinstance(options.cloud, Compute) else Compute()
    check_resource("KINETIC_NETWORK", settings.network)
    check_resource("KINETIC_SUBNETWORK", settings.subnetwork)
    check_account("KINETIC_SERVICE_ACCOUNT", settings.service_account)
    run = limits.run
    assert isinstance(run, float)
    if cloud.flex_start:
        machines.check_flex_start(run, duration(run))
    if run > LONGEST_RUN:
        raise UsageError(
            f"limits.run is {duration(run)}, and Compute Engine ends a VM after 120 days at most: choose "
            f"{duration(LONGEST_RUN)} or less"
        )
    if image_of(options) and (not cloud.image or machines.has_docker(cloud.image) is False):
        raise refuse(
            "container_image=",
            COMPUTE,
            f"{cloud.image or 'its default image'} has no docker. Leave it out, and the hosts get locked packages; or "
            + _image_with_docker(options),
        )


def _image_with_docker(options: Options) -> str:
    if slice_of(options).kind == "tpu":
        return "name an image of your own with cloud=Compute(image=…): one for these TPUs, with docker added"
    return (
        "name an image that has docker and NVIDIA's container toolkit, with "
        f"cloud=Compute(image='{machines.WITH_DOCKER}') or one of your own"
    )


def _vm_zones(options: Options, settings: Settings, slice_: Slice, subnetwork: str) -> tuple[str, ...]:
    """Return the zones to try for VMs of Compute Engine.

    Raises:
        UsageError: None is named, and none is published for the hardware; or the subnetwork is in another region.
    """
    named = zones_named(options, settings)
    zones, region = named or zones_of(slice_), region_of_subnetwork(subnetwork)
    if not zones:
        machine = machines.machine_of(slice_)
        what = (
            ("accelerator-types", machine.accelerator)
            if machine.accelerator
            else ("machine-types", machine.machine_type)
        )
        raise UsageError(
            f"no zone is named, and none is known to have {slice_.name}: name some, in the order in which they are "
            "tried, with KINETIC_ZONES=us-central1-a,… or cloud=Compute(zones=[…]). "
            f"`gcloud compute {what[0]} list --filter=name={what[1]}` shows those that have it"
        )
    elsewhere = [zone for zone in zones if region and regions.region_of(zone) != region]
    if elsewhere and (named or len(elsewhere) == len(zones)):
        raise UsageError(
            f"the subnetwork {subnetwork} is of {region}, and no VM in {', '.join(elsewhere)} can use it: name zones "
            "of its region, or another subnetwork"
        )
    return tuple(zone for zone in zones if zone not in elsewhere)


def _check_zones(options: Options, settings: Settings) -> None:
    """Raise UsageError for a zone of the settings that is none, if they say where. On GKE, whose clusters may be of a
    region, they are not asked."""
    name = set_by(settings, "zones", "zone")
    for zone in settings.zones if name and zones_named(options, settings) == settings.zones else ():
        regions.check_zone(name, zone)


def zones_named(options: Options, settings: Settings) -> tuple[str, ...]:
    """The zones that the user has chosen for one way: that of a reservation which is given by its whole path, above all
    others; else those of regions, before those of settings."""
    cloud = options.cloud if isinstance(options.cloud, TpuVm | Compute) else TpuVm()
    reserved = reservation_of(cloud.reservation)
    if reserved is not None and reserved.zone:
        return (reserved.zone,)
    if options.regions:
        return zones_in(slice_of(options), options.regions)
    return tuple(cloud.zones) or ((options.zone,) if options.zone else settings.zones)


def near_bucket(plan: Plan, bucket: Location, settings: Settings, options: Options, *, race_of: str = "") -> Plan:
    """Return the plan with the zones near the store's bucket, where the options and the settings name none. Of zones
    that were named, those near it are noted, as they decide between equals. `race_of`: as of `racing`.

    Raises:
        NoPlace: No zone that may be tried is near it. Of several candidates, those without one are left out.
    """
    kept: list[Plan] = []
    none: list[NoPlace] = []
    named = _all_named(options, settings)
    for one in plan.each():
        try:
            zones = regions.near(one.zones, bucket, one.slice.name) if _is_open(one, named) else one.zones
        except NoPlace as error:
            none.append(error)
        else:
            found = replace(one, zones=zones)
            kept.append(replace(found, affordable=_affordable(found, settings)))
    if not kept:
        raise none[0]
    for refused in none:
        warn_once(f"it is left out of the choice: {refused}; or regions with regions=")
    found = choice_of(kept, plan.by, settings)
    choices = (replace(one, near=_held(one, bucket)) for one in found.choices)
    return racing(replace(found, choices=tuple(choices)) if found.by != ORDERS[0] else found, race_of)


def _held(candidate: Candidate, bucket: Location) -> tuple[str, ...]:
    """Return the zones of a candidate in which the bucket lies."""
    traits = traits_of(candidate.backend)
    return tuple(filter(bucket.holds, candidate.zones)) if traits is not None and traits.in_zones else ()


def is_open(plan: Plan, options: Options, settings: Settings) -> bool:
    """Return True if the zones of a candidate at least are all that have it, since none are named."""
    named = _all_named(options, settings)
    return any(_is_open(one, named) for one in plan.each())


def needs_location(plan: Plan, options: Options, settings: Settings) -> bool:
    """Return True if the location of the store's bucket decides which zones are tried, or which of equals is first."""
    if plan.by != ORDERS[0]:
        found = {regions.region_of(zone) for one in plan.each() if one.traits.in_zones for zone in one.zones}
        return len(found) > 1 or is_open(plan, options, settings)
    return is_open(plan, options, settings)


def _all_named(options: Options, settings: Settings) -> set[tuple[str, ...]]:
    """The zones that the user has chosen for each way."""
    return {zones_named(one, settings) for one in ways(options)}


def _is_open(plan: Plan, named: Container[tuple[str, ...]]) -> bool:
    return plan.traits.in_zones and bool(plan.zones) and plan.zones not in named


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


def _cloud(
    options: Options, settings: Settings, slice_: Slice, traits: Traits, environ: Mapping[str, str], interpreter: str
) -> dict[str, Any]:
    """The additional fields of a plan for other machines."""
    spot = options.spot or slice_.spot
    slices = getattr(options.cloud, "num_slices", 1)
    common = {"slices": slices, "spot": spot, "image": image_of(options), "secret_refs": dict(options.secrets or {})}
    if not traits.in_zones:
        given = options.cloud if isinstance(options.cloud, traits.options or ()) else None
        cloud: Any = given if given is not None or traits.options is None else traits.options()
        who: dict[str, str] = {}
        if isinstance(cloud, Kubernetes):
            cloud, who = with_queue(cloud, settings), {"owner": _owner(environ), **_python(options, interpreter)}
            if not traits.secret_service:
                _check_cluster_secrets(options.secrets or {})
        return {
            **common,
            "project": settings.project if traits.in_project else "",
            "zones": _clusters(cloud, settings) if isinstance(cloud, Kubernetes) else (),
            "cloud": {} if cloud is None else {**fields_of(cloud), **who},
            "zone_patience": settings.zone_patience if traits.options is Kubernetes else 0.0,
        }
    _check_zones(options, settings)
    of_zones = Compute if traits.options is Compute else TpuVm
    cloud = options.cloud if isinstance(options.cloud, of_zones) else of_zones()
    if of_zones is Compute:
        zones = _vm_zones(options, settings, slice_, cloud.subnetwork or settings.subnetwork)
    else:
        zones = zones_named(options, settings) or zones_of(slice_)
    own = {
        "network": cloud.network or settings.network,
        "subnetwork": cloud.subnetwork or settings.subnetwork,
        "service_account": cloud.service_account or settings.service_account,
        "quota_project": cloud.quota_project or settings.quota_project,
        "owner": _owner(environ),
    }
    return {
        **common,
        "project": settings.project,
        "zones": zones,
        "cloud": {**fields_of(cloud), **own},
        "zone_patience": settings.zone_patience,
    }


def _python(options: Options, interpreter: str) -> dict[str, str]:
    """The minor version that a job asks for, if it names one: that of the image in which a command's pods start. An
    interpreter is not asked: its file is mostly named by its version. Else it is any Python 3.
    """
    if interpreter:
        found = re.search(r"python(3\.\d+)$", interpreter)
        return {"python": found[1] if found else "3"}
    found = re.match(r"(3\.\d+)(?=\.|$)", options.python or "")
    return {"python": found[1]} if found else {}


def _check_cluster_secrets(secrets: Mapping[str, str]) -> None:
    """Raise UsageError for what can be no Secret of a namespace: `NAME`, or `NAME/KEY`."""
    for variable, reference in secrets.items():
        name, slash, key = reference.partition("/")
        cluster_names.check(f"secrets={{{variable!r}: {reference!r}}}", name, cluster_names.OBJECT)
        if slash:
            cluster_names.check(f"secrets={{{variable!r}: {reference!r}}}", key, cluster_names.KEY_OF_SECRET)


def with_queue(cloud: Kubernetes, settings: Settings) -> Kubernetes:
    """Return the options with the queue of the settings, if they name none.

    Raises:
        UsageError: A queue is needed, and neither names one.
    """
    found = cloud if queues_of(cloud.queue) else replace(cloud, queue=settings.queue)
    if found.queued_provisioning and not queues_of(found.queue):
        raise UsageError(
            "queued_provisioning=True takes a queue, whose admission check of the controller "
            "kueue.x-k8s.io/provisioning-request asks for the machines: name it with cloud=Kubernetes(queue=…) or "
            "KINETIC_QUEUE"
        )
    return found


def _owner(environ: Mapping[str, str]) -> str:
    return environ.get("USER") or environ.get("LOGNAME") or ""


def _clusters(cloud: Kubernetes, settings: Settings) -> tuple[str, ...]:
    """The namespaces to try, each of its cluster; what is not named is known to the kubeconfig."""
    namespaces = tuple(cloud.namespaces) or (settings.namespace,)
    clusters = tuple(cloud.clusters) or (settings.cluster,)
    return tuple(dict.fromkeys(f"{cluster}/{namespace}" for cluster in clusters for namespace in namespaces))


def _affordable(plan: Plan, settings: Settings) -> float:
    """Return the seconds for which a plan's limit of cost pays; 0 if it has none, or costs nothing."""
    usd = plan.limits.cost
    if usd is None or plan.traits.share_machine:
        return 0.0
    return affordable(usd, plan.purchase, plan.zones, settings.prices, settings.listed)


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


def _check_shared(options: Options, backend: str) -> None:
    if options.cloud is not None and options.cloud.num_slices != 1:
        raise refuse("cloud=TpuVm(num_slices=…)", backend, "it emulates one slice; leave num_slices out")
    if options.limits.cost is not None:
        check_usd(options.limits.cost)


def capture(
    patterns: Iterable[str], environ: Mapping[str, str], *, named_only: bool = False
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that are sent in the open, and the names of those that look like secrets, by name or by value.

    As in Keras Kinetic, a final * makes a prefix of a name, and a * elsewhere is a letter. `named_only`: send a
    credential only if it is named, as to other machines.
    """
    from kinetic_orchestration.plan.declare.checks.secret_shapes import (
        is_secret,  # its many patterns take as long as all other imports
    )

    patterns = tuple(patterns)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    names = sorted(
        name for name in environ if name in exact or (name not in NEVER_BY_WILDCARD and name.startswith(prefixes))
    )
    missing = sorted(exact - set(environ))
    if missing:
        warn_once(f"capture_env_vars names {', '.join(missing)}, not set here")
    hidden = tuple(name for name in names if is_secret(name, environ[name]))
    kept = tuple(name for name in hidden if name in exact or not named_only)
    if len(kept) < len(hidden):
        stay = ", ".join(name for name in hidden if name not in kept)
        warn_once(
            f"{stay}: looks like a credential and stays here, because a wildcard of capture_env_vars meant it. "
            "Name it exactly to send it, by Secret Manager"
        )
    return {name: environ[name] for name in names if name not in hidden}, kept


def _warn_of_secrets(spec: JobSpec) -> None:
    """Warn of values that look like secrets: the user may not want all readers of the store to see them."""
    if not spec.env and not spec.argv:
        return
    from kinetic_orchestration.plan.declare.checks.secret_shapes import is_secret, kind_of_secret

    found = [f"env={name}" for name, value in spec.env.items() if is_secret(name, value)]
    found += [f"part {at} of the command" for at, part in enumerate(spec.argv, 1) if kind_of_secret(part)]
    if found:
        warn_once(
            f"{spec.name}: {', '.join(found)} looks like a secret, and whoever may read the store can read it. Hand it "
            "over with secrets=, or set the variable here and name it in capture_env_vars"
        )


def describe(plan: Plan, reason: str = "", asked: Sequence[str] = ()) -> str:
    """The dry run, as text for users.

    reason: why the plan has its backend, if no option and no setting names one. asked: the places that its first
    attempt asks together.
    """
    why = [text for text in (_emulation(plan.hosts) if plan.stands_in else "", reason) if text]
    by = "by Secret Manager" if plan.traits.secret_service else "by pipe"
    where = [
        ("accelerator", plan.hardware),
        ("backend", f"{plan.backend} ({'; '.join(why)})" if why else plan.backend),
        ("project", plan.project),
        (_kind_of_places(plan), ", ".join(plan.zones)),
        ("capacity", _capacity(plan)),
    ]
    rows = [
        ("job", " ".join(plan.argv) if plan.argv else f"{plan.name}()"),
        *(_choices(plan) if plan.choices else where),
        ("race", _race(plan, asked)),
        ("keep", _keep(plan)),
        ("priority", str(plan.turn.get("priority") or "")),
        ("image", plan.image),
        ("store", f"{plan.store}, deployment {plan.deployment}"),
        *(("limits", text) for text in _limits(plan)),
        ("retry", f"user {plan.retry.user}, preemption {plan.retry.preemption}, infra {plan.retry.infra}"),
        (
            "environment",
            ", ".join([*plan.env, *(f"{name} ({by})" for name in (*plan.secrets, *plan.secret_refs))])
            or "none captured",
        ),
        ("volumes", ", ".join(plan.volumes) or "none"),
        ("output", plan.output_dir or "the job's own folder in the store"),
        ("profile", profile.describe(plan.profile)),
        ("partition", plan.partition_key),
        ("batch", _batch(plan)),
        ("labels", resource_labels.shown(plan.labels)),
        ("also", ", ".join(_exceptions(plan))),
    ]
    return "\n".join(f"{name:<12} {text}" for name, text in rows if text)


def _batch(plan: Plan) -> str:
    """Return how the hosts share the global batch; "" if there is none."""
    if not plan.global_batch:
        return ""
    from kinetic_orchestration.plan.hardware.global_batch import GlobalBatch

    return str(GlobalBatch.divided(plan.global_batch, plan.hosts))


_BY = {"order": "in your order", "price": "the cheapest first", "start": "first where hosts are likely to come soonest"}


def _choices(plan: Plan) -> Iterator[tuple[str, str]]:
    """The rows of a job's choices: what they are made of."""
    each = plan.each()
    yield "accelerator", f"one of {', '.join(dict.fromkeys(one.named for one in each))}"
    yield "backend", ", ".join(dict.fromkeys(one.backend for one in each))
    yield "project", plan.project
    ways = dict.fromkeys(_capacity(one) or ON_DEMAND for one in each if not one.traits.share_machine)
    yield "capacity", ", ".join(ways)
    yield "choices", f"{len(each)}, tried {_BY[plan.by]}"


def _race(plan: Plan, asked: Sequence[str]) -> str:
    if plan.race == 1:
        return ""
    now = f", now {' and '.join(asked)}" if asked else ""
    return f"{plan.race} places are asked at once{now}; the first with hosts is kept, and the others are released"


def _keep(plan: Plan) -> str:
    if plan.keep is None or not any(one.traits.may_be_kept for one in plan.each()):
        return ""
    if not plan.keep:
        return "it takes a warm slice, and leaves none"
    next_ones = "the next job with keep= that wants the same hardware"
    return f"it takes a warm slice, and its own stays warm for {duration(plan.keep)} after it, for {next_ones}"


def _kind_of_places(plan: Plan) -> str:
    return "zones" if plan.traits.in_zones else "places"


def _capacity(plan: Plan) -> str:
    if plan.traits.options is not Compute:
        return "spot" if plan.spot else ""
    reservation = plan.cloud["reservation"]
    model = accelerators.way_of(spot=plan.spot, flex_start=plan.flex_start, reservation=reservation)
    if model == accelerators.RESERVATION:
        return f"reservation {reservation}{', with which its VMs end' if plan.cloud.get('reservation_bound') else ''}"
    return "" if model == ON_DEMAND else model


def _emulation(hosts: int) -> str:
    return "emulated by one process" if hosts == 1 else f"emulated by {hosts} processes"


def _limits(plan: Plan) -> Iterator[str]:
    """Yield the rows of its limits: one, unless those of its choices differ."""
    of: dict[str, list[Plan]] = {}
    for one in plan.each():
        known = ((name, getattr(one.limits, name)) for name in ("provision", "run", "total", "stall"))
        of.setdefault(", ".join(f"{name} {duration(value)}" for name, value in known if value is not None), []).append(
            one
        )
    cost = _limit_of_cost(plan)
    if len(of) == 1:
        yield ", ".join(filter(None, (*of, cost))) or "none"
        return
    for limits, some in of.items():
        rest = {one.named for others in of.values() if others is not some for one in others}
        whose = (f"{one.named} {_capacity(one) or ON_DEMAND}" if one.named in rest else one.named for one in some)
        yield f"{limits or 'none'}, for {' and '.join(dict.fromkeys(whose))}"
    if cost:
        yield cost


def _limit_of_cost(plan: Plan) -> str:
    if plan.limits.cost is None:
        return ""
    what = "nothing is charged on this machine"
    if paid := [one.affordable for one in plan.each() if one.affordable]:
        where = "choices" if plan.choices else _kind_of_places(plan)
        what = f"pays for {min(paid) / 3600:,.2f} h in the dearest of its {where}"
    return f"cost ${plan.limits.cost:.2f} ({what})"


def _exceptions(plan: Plan) -> Iterator[str]:
    """The non-default properties of a plan."""
    if plan.reshard:
        yield "restores checkpoints of other sizes"
    if not plan.distributed:
        yield "the hosts are not joined"
    if not plan.compile_cache:
        yield "no compile cache"
    if not plan.device_metrics:
        yield "no device metrics"
    if plan.debug_port:
        yield "waits for a debugger"
    if plan.abort_without_owner:
        yield "ends with its submitter"
