"""The dry run of a plan, as text for users. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings, duration
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.hardware import accelerators, regions
from kinetic_orchestration.plan.hardware.accelerators import ON_DEMAND
from kinetic_orchestration.plan.hardware.prices import Price, price
from kinetic_orchestration.plan.values import Plan


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
        ("capacity", capacity_of(plan)),
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
    ways = dict.fromkeys(capacity_of(one) or ON_DEMAND for one in each if not one.traits.share_files)
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


def capacity_of(plan: Plan) -> str:
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
        whose = (f"{one.named} {capacity_of(one) or ON_DEMAND}" if one.named in rest else one.named for one in some)
        yield f"{limits or 'none'}, for {' and '.join(dict.fromkeys(whose))}"
    if cost:
        yield cost


def _limit_of_cost(plan: Plan) -> str:
    if plan.limits.cost is None:
        return ""
    what = "nothing is charged on this machine"
    if paid := [one.affordable for one in plan.each() if one.affordable]:
        where = "choices" if plan.choices else _kind_of_places(plan)
        place = f"in the dearest of its {where}" if plan.zones or plan.choices else "by the price in the settings"
        what = f"pays for {min(paid) / 3600:,.2f} h {place}"
    return f"cost ${plan.limits.cost:.2f} ({what})"


def counts_with(plan: Plan, settings: Settings) -> str:
    """Return with which price a limit of cost counts, and where, if that price stands in for one that is not known;
    else ""."""
    limited = [one for one in plan.each() if one.affordable]
    if not limited:
        return ""
    one = min(limited, key=lambda one: one.affordable)  # whose hosts use the money up first
    asked = {zone: price(one.purchase, zone, settings.prices, settings.listed) for zone in one.zones}
    known = {zone: found for zone, found in asked.items() if isinstance(found, Price)}
    zone = max(known, key=lambda zone: known[zone].usd_per_chip_hour, default="")
    if not zone or not known[zone].stands_in:
        return ""
    where = zone if "/" in zone else regions.region_of(zone)
    return f"{one.named} in {where}: {known[zone].source}"


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
