"""The commands for what surrounds jobs: the reaper, the bill, and what is known of capacity."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.api.handle import UNREADABLE, JobHandle, all_jobs, find_job
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity import choosing, facts, records
from kinetic_orchestration.capacity.facts import Fact, FactKey, Judgement
from kinetic_orchestration.capacity.prices import in_force
from kinetic_orchestration.capacity.warm import records as kept_records
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import age, dollars, note, show_fields, show_json, show_table, working
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs.cleanup import kept_slices, reaper
from kinetic_orchestration.plan.configuration import chip_shares
from kinetic_orchestration.plan.configuration.settings import Settings, load, seconds
from kinetic_orchestration.plan.hardware import cost as prices
from kinetic_orchestration.plan.hardware.cost import Estimate
from kinetic_orchestration.plan.hardware.price_list import staleness
from kinetic_orchestration.plan.values import Freed, Traits, traits_of
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol.system.parallel import side_by_side
from kinetic_orchestration.protocol.wire.lease import ENDED, FREE, Lease

if TYPE_CHECKING:
    from kinetic_orchestration.capacity.shares import rules

DELETION_PATIENCE = 30.0
ASKED_AT_ONCE = 8


def reap(arguments: Namespace) -> int:
    from kinetic_orchestration.platforms.registry import open_backend, open_store

    settings = load(store=arguments.store, deployment=arguments.deployment)
    store, backend = open_store(settings.store, settings.deployment), open_backend(settings.backend, settings)
    with working(f"looking through {store.url}"):
        found = reaper.reap(store, backend, settings, dry_run=arguments.dry_run, patience=DELETION_PATIENCE)
    if arguments.json:
        show_json({"dry_run": arguments.dry_run, "reaped": [item._asdict() for item in found]})
    else:
        _show_reaped(found, arguments.dry_run, settings)
    results = {item.result for item in found}
    if results & {reaper.LEFT, reaper.UNREAD}:
        return codes.ENVIRONMENT
    return codes.RUNNING if reaper.DELETING in results else codes.OK


def _show_reaped(found: list[reaper.Reaped], dry_run: bool, settings: Settings) -> None:
    placements = [item for item in found if item.what == reaper.PLACEMENT or item.result == reaper.UNREAD]
    if placements:
        traits = traits_of(settings.backend) or Traits()
        columns = ("zone" if traits.in_zones else "place", "what", "age", "per hour", "result", "why")
        cells = [
            (
                item.zone or "here", "leftovers" if item.what == reaper.PLACE else item.name,
                "" if item.age is None else age(item.age), _per_hour(item),
                "would go" if dry_run and item.result == reaper.REMOVED else item.result, item.why,
            )
            for item in placements
        ]  # fmt: skip
        show_table(columns, cells, right=("age", "per hour"))
        if any(item.usd_per_hour for item in placements):
            dates = in_force(settings).listed.dates()
            note(f"per hour: estimates by list prices of {dates}, or by KINETIC_PRICES")
    if others := [item for item in found if item not in placements]:
        if placements:
            print()
        show_table(("what", "name", "why"), [(item.what, item.name, item.why) for item in others])
    gone = sum(item.result == reaper.REMOVED for item in found)
    none = "nothing was removed" if found else "nothing to remove"
    note(f"{gone} {'would be removed' if dry_run else 'removed'}" if gone else none)
    deleting = [item for item in placements if item.result == reaper.DELETING]
    if deleting:
        note(f"{len(deleting)} still being deleted: look again with reap --dry-run; chips are charged for until then")
    for item in found:
        if item.result == reaper.LEFT:
            where = f" in {item.zone}" if item.zone else ""
            note(f"{item.name}{where} could not be deleted, and costs what it costs until somebody does: see `doctor`")


def capacity(arguments: Namespace) -> int:
    from kinetic_orchestration.platforms.registry import open_store

    settings = load(store=arguments.store, deployment=arguments.deployment)
    store = open_store(settings.store, settings.deployment)
    found, now = records.everything(store), store.now()
    judged = facts.judge(found, found, now)
    if arguments.json:
        show_json({"facts": [_fact(key, found[key], judged[key], now) for key in sorted(found)]})
    elif found:
        columns = ("place", "hardware", "bought", "lately", "state", "why")
        several = len({key.project for key in found}) > 1
        show_table(columns, [_row(key, found[key], judged[key], now, several) for key in sorted(found)])
    else:
        note("no attempt of this deployment has met anything in the last day")
    return codes.OK


def _row(key: FactKey, fact: Fact, judged: Judgement, now: float, projects: bool) -> tuple[str, ...]:
    """A fact as people read it, its attempts from the oldest to the newest."""
    lately = [(outcome, len(list(group))) for outcome, group in groupby(one.outcome for one in fact.attempts)]
    told = ", ".join(outcome if count == 1 else f"{count} × {outcome}" for outcome, count in lately)
    why = choosing.said(judged, key, now) or "too long ago to say anything"
    place = f"{key.place} of {key.project}" if projects and key.project else key.place or "here"
    way = f"{key.way} {key.reservation.rpartition('/')[2]}".rstrip()
    return place, f"{key.generation}-{key.size}", way, told, judged.state, why


def _fact(key: FactKey, fact: Fact, judged: Judgement, now: float) -> dict[str, Any]:
    attempts = [{"outcome": one.outcome, "age": now - one.at, "attempt": one.token} for one in fact.attempts]
    return {**key._asdict(), "state": judged.state, "attempts": attempts}


def _per_hour(item: reaper.Reaped) -> str:
    if item.result == reaper.UNREAD:
        return ""
    return "unknown" if item.usd_per_hour is None else dollars(item.usd_per_hour)


def cost(arguments: Namespace) -> int:
    from kinetic_orchestration.cli.commands import budgets

    if arguments.forecast:
        return budgets.forecast(arguments)
    if arguments.prometheus:
        return budgets.for_prometheus(arguments)
    if arguments.every or arguments.cron:
        raise UsageError("--every and --cron are the schedule of a --forecast: name the pipeline with it")
    if arguments.by == "pipeline" and not arguments.job:
        return budgets.by_pipeline(arguments)
    place = {"store": arguments.store, "deployment": arguments.deployment}
    arguments.since = arguments.since or "7d"
    if arguments.job:
        return _cost_of_one(find_job(arguments.job, **place), arguments.json)
    since = seconds("--since", arguments.since) or 0.0
    with working("adding up") as progress:
        handles = all_jobs(within=since, **place)
        progress("adding up", detail=f"{len(handles)} jobs")
        found = zip(handles, side_by_side(_cost_of, handles, ASKED_AT_ONCE), strict=True)
    rows = [(handle, estimate) for handle, estimate in found if estimate is not None]
    _show_cost(arguments, rows)
    is_priced = not arguments.json and any(estimate.date for _, estimate in rows)
    if is_priced and (old := staleness(in_force(load(**place)).listed)):
        note(old)
    return codes.OK


def _show_cost(arguments: Namespace, rows: list[tuple[JobHandle[Any], Estimate]]) -> None:
    made = [(datetime.fromisoformat(handle.created_at).timestamp(), estimate) for handle, estimate in rows]
    totals = prices.summary(made, arguments.by)
    least, unpriced = sum(total.least_usd for total in totals), sum(total.unpriced for total in totals)
    dates = ", ".join(sorted({estimate.date for _, estimate in rows if estimate.date})) or "no date"
    would_be = [estimate.usd for _, estimate in rows if estimate.uncharged and estimate.chip_hours]
    stood_for = sum(usd for usd in would_be if usd is not None)
    if arguments.json:
        periods = [{**asdict(total), "goodput": total.goodput} for total in totals]
        jobs = [_record(handle, estimate) for handle, estimate in rows]
        told = {
            "usd": None if unpriced else least, "least_usd": least, "unpriced": unpriced,
            "uncharged_usd": None if None in would_be else stood_for, "prices": dates,
        }  # fmt: skip
        show_json({"periods": periods, "jobs": jobs, **told})
        return
    if not totals:
        note(f"no job was made in the last {arguments.since}")
        return
    if arguments.jobs:
        _show_jobs(rows)
        print()
    _show_totals(totals, arguments.by)
    known = f", and what {unpriced} of the jobs cost, for which no price is known" if unpriced else ""
    note(f"{dollars(least)} in the last {arguments.since}, by list prices of {dates}{known}")
    if stood_for:
        what = f"{dollars(stood_for)}, by list prices of {dates}"
        unknown = f", and that of {would_be.count(None)} jobs is not known" if None in would_be else ""
        where = "on the hardware that was named"
        note(f"what runs on this machine or an emulated cloud costs nothing; {where}: {what}{unknown}")


def shares(arguments: Namespace) -> int:
    from kinetic_orchestration.capacity.shares import records, rules
    from kinetic_orchestration.platforms.registry import open_store

    settings = load(store=arguments.store, deployment=arguments.deployment)
    store = open_store(settings.store, settings.deployment)
    now = store.now()
    book = rules.settled(records.read(store).book, now)
    there = records.wants(store)  # what is not has been given back, or has left the line
    held = [grant for grant in book.grants if grant.want.key in there]
    line = [one for one in book.line if (one.job, one.attempt) in there and book.grant((one.job, one.attempt)) is None]
    asked = [*(grant.want.key for grant in held if not grant.kept), *((one.job, one.attempt) for one in line)]
    over = records.ended(store, asked)
    line = [one for one in line if (one.job, one.attempt) not in over]  # who decides next takes those out as well
    in_force = book.shares or chip_shares.text_of(settings.chips)
    if arguments.json:
        show_json({
            "shares": in_force,
            "held": [
                {
                    **grant.holds._asdict(), "held": now - grant.at, **({"idle": grant.kept} if grant.kept else {}),
                    **({"ended": now - over[grant.want.key]} if grant.want.key in over else {}),
                }
                for grant in held
            ],
            "waiting": [one._asdict() for one in line],
            "behind": book.waiting - len(book.line),
            "used": {whose: use.used / 3600.0 for whose, use in book.uses.items()},
        })  # fmt: skip
        return codes.OK
    if not in_force:
        note("no chips are shared here: KINETIC_CHIPS is not set, and no job was launched with it")
        return codes.OK
    _show_shares([(grant, _so_far(grant, over, now)) for grant in held], line, book)
    note(f"in force: {in_force}; recent use is in hours of chips that count as one v5e, halved each day")
    return codes.OK


def _so_far(grant: rules.Grant, over: Mapping[tuple[str, int], float], now: float) -> str:
    """Say for how long chips have been held, and by what if no job has them any more."""
    said = f"for {age(now - grant.at)}"
    if grant.kept:
        return f"{said}, {grant.kept} is idle"
    if (ended := over.get(grant.want.key)) is not None:
        return f"{said}, its attempt ended {age(now - ended)} ago: free for who waits once its hosts are gone"
    return said


def _show_shares(held: Sequence[tuple[rules.Grant, str]], line: Sequence[rules.Waiting], book: rules.Book) -> None:
    def used(whose: str) -> str:
        return f"{book.uses[whose].used / 3600.0:,.1f}" if whose in book.uses else "0"

    rows = [
        (
            grant.want.job, grant.want.whose, f"{grant.holds.chips} of {grant.want.generation}",
            used(grant.want.whose), so_far,
        )
        for grant, so_far in held
    ]  # fmt: skip
    rows += [
        (one.job, one.whose, "waits", used(one.whose), f"place {number}, {one.why}")
        for number, one in enumerate(line, 1)
    ]
    if not rows:
        note("nobody holds chips or waits for any")
        return
    show_table(("job", "whose", "chips", "recent use", "since, or why"), rows, right=("recent use",))
    if book.waiting > len(book.line):
        note(f"{book.waiting - len(book.line)} more wait behind them")
    sys.stdout.flush()


# ---- slices that are kept -----------------------------------------------------------------------------------------


def slices(arguments: Namespace) -> int:
    store, _, settings = place_of(store=arguments.store, deployment=arguments.deployment)
    now = store.now()
    found = kept_slices.listed(store, settings, now, ended=arguments.all)
    if arguments.json:
        show_json({"slices": [each.to_json() for each in found]})
        return codes.OK
    if not found:
        note("no slice is kept: jobs with keep= leave one, for as long as they say")
        return codes.OK
    columns = ("slice", "hardware", "where", "state", "whose", "until", "kept idle", "cost of that", "served")
    show_table(columns, [_kept_row(each, now) for each in found], right=columns[6:])
    note(
        "idle time is charged to the job that had left the slice: `kinor cost` shows it. "
        "`kinor release` deletes a free one"
    )
    if here := [each.usd for each in found if each.uncharged]:
        known = sum(usd or 0.0 for usd in here)
        least = "at least " if None in here else ""
        note(f"$0.00 of slices that an emulated cloud has on this machine; on Google Cloud {least}{dollars(known)}")
    return codes.OK


def _kept_row(kept: kept_slices.Kept, now: float) -> tuple[str, ...]:
    lease = kept.lease
    for_ = f" for {age(now - lease.since)}" if lease.since else ""
    left = "" if lease.state == ENDED else f"in {age(lease.until - now)}" if lease.until > now else "now"
    state = f"{lease.state}{for_}{f': {kept.said}' if kept.said else ''}"
    cost = dollars(0.0 if kept.uncharged else kept.usd)
    where = str(lease.placement.get("zone") or lease.placement.get("backend", ""))
    return lease.slice, kept.hardware, where, state, kept.whose, left, age(kept.idle), cost, str(lease.epoch + 1)


def release(arguments: Namespace) -> int:
    if not (arguments.slice or arguments.run or arguments.all):
        raise UsageError("release wants the name of a slice, --run or --all: `kinor slices` lists those that are kept")
    store, _, settings = place_of(store=arguments.store, deployment=arguments.deployment)
    listed = {held.lease.slice: held.lease for held in kept_records.slices(store)}
    if unknown := [name for name in arguments.slice if name not in listed]:
        raise UsageError(f"no slice {unknown[0]} is kept: `kinor slices --all` lists those there are")
    wanted = [listed[name] for name in arguments.slice] or [
        lease for lease in listed.values() if lease.state == FREE and (arguments.all or _is_of(lease, arguments.run))
    ]
    told = [(lease, _released(store, settings, lease)) for lease in wanted]
    if arguments.json:
        show_json({"released": [{"slice": lease.slice, "result": result} for lease, result in told]})
    for lease, result in told:
        note(f"{lease.slice}: {result}")
    if not told:
        note("no slice is kept that could be released")
    results = {result for _, result in told}
    return codes.OK if results <= {_DELETED} else codes.RUNNING if results <= {_DELETED, _GOING} else codes.ENVIRONMENT


def _is_of(lease: Lease, run: str) -> bool:
    return lease.origin.get("run") == run


_DELETED, _GOING = "deleted", "is being deleted"


def _released(store: Store, settings: Settings, lease: Lease) -> str:
    """Delete a kept slice unless a job has it; return what became of it."""
    freed = kept_slices.release(store, settings, lease, "released by `kinor release`")
    if freed is Freed.KEPT:
        return "kept, as a job has it: `kinor slices` shows which, and `kinor cancel` ends that"
    if freed:
        return _DELETED
    return _GOING if freed is Freed.UNDER_WAY else "could not be deleted, and costs what it costs until it is"


def _cost_of(handle: JobHandle[Any]) -> Estimate | None:
    try:
        return handle.cost()
    except UNREADABLE as error:  # one damaged record must not hide all other jobs
        note(f"{handle.job_id} is left out: {error}")
        return None


def _cost_of_one(handle: JobHandle[Any], as_json: bool) -> int:
    estimate = handle.cost()
    if as_json:
        show_json(_record(handle, estimate))
        return codes.OK
    known = estimate.productive_seconds
    used = [("program", age(estimate.program_seconds))]
    if known is not None:
        used = [
            ("productive", f"{age(known)}, goodput {_share(estimate.goodput)}"),
            ("went to", prices.went_to(estimate)),
        ]
    show_fields(
        [
            ("job", f"{handle.job_id} ({handle.func_name})"),
            ("hardware", f"{estimate.hardware}{' in ' + estimate.region if estimate.region else ''}{_spot(estimate)}"),
            ("attempts", str(estimate.attempts)),
            ("queued", age(estimate.queued_seconds)),
            *_held(estimate),
            *used,
            *_beside(estimate),
            ("cost", str(estimate).removeprefix("cost: ")),
        ]
    )
    return codes.OK


def _beside(estimate: Estimate) -> list[tuple[str, str]]:
    """The row of what places of races that did not win have cost; none if there were none."""
    if not estimate.beside_seconds:
        return []
    usd = dollars(estimate.beside_usd)
    cost = f"nothing here, {usd} on {estimate.hardware}" if estimate.uncharged else f"{usd} of the cost"
    return [("races", f"{age(estimate.beside_seconds)} of places that did not win, {cost}")]


def _held(estimate: Estimate) -> list[tuple[str, str]]:
    """The time that is charged for: that of its hosts, and that of slices which were kept after it."""
    hours = f"{estimate.chip_hours:,.4g} chip-hours"
    if not estimate.idle_seconds:
        return [("READY", f"{age(estimate.ready_seconds)}, {hours}")]
    return [("READY", age(estimate.ready_seconds)), ("kept idle", f"{age(estimate.idle_seconds)}; {hours} with that")]


def _show_jobs(rows: list[tuple[JobHandle[Any], Estimate]]) -> None:
    idle = any(estimate.idle_seconds for _, estimate in rows)
    columns = (
        *("job", "name", "accelerator", "region", "attempts", "queued", "ready"), *(("kept idle",) if idle else ()),
        *("program", "goodput", "cost"),
    )  # fmt: skip
    cells = [
        (
            handle.job_id, handle.func_name, handle.accelerator + _spot(estimate), estimate.region,
            str(estimate.attempts), age(estimate.queued_seconds), age(estimate.ready_seconds),
            *((age(estimate.idle_seconds),) if idle else ()), age(estimate.program_seconds),
            _share(estimate.goodput), dollars(0.0 if estimate.uncharged else estimate.usd),
        )
        for handle, estimate in rows
    ]  # fmt: skip
    show_table(columns, cells, right=columns[4:])


def _show_totals(totals: list[prices.Total], by: str) -> None:
    idle = any(total.idle_seconds for total in totals)
    columns = (
        *(by, "jobs", "uncharged", "queued", "ready"), *(("kept idle",) if idle else ()),
        *("program", "goodput", "chip-hours", "cost"),
    )  # fmt: skip
    cells = [
        (
            total.period, str(total.jobs), str(total.uncharged), age(total.queued_seconds), age(total.ready_seconds),
            *((age(total.idle_seconds),) if idle else ()), age(total.program_seconds), _share(total.goodput),
            f"{total.chip_hours:,.2f}", _dollars(total),
        )
        for total in totals
    ]  # fmt: skip
    show_table(columns, cells, right=columns[1:])


def _dollars(total: prices.Total) -> str:
    if total.usd is not None:
        return dollars(total.usd)
    return f"{dollars(total.least_usd)} + ?" if total.unpriced < total.jobs - total.uncharged else "unknown"


def _record(handle: JobHandle[Any], estimate: Estimate) -> dict[str, Any]:
    """A job's cost for programs. The would-be cost of an uncharged job has a field of its own."""
    fields = asdict(estimate)
    usd = fields.pop("usd")
    return {
        "job_id": handle.job_id,
        "name": handle.func_name,
        "created": handle.created_at,
        **fields,
        "productive_seconds": estimate.productive_seconds,
        "goodput": estimate.goodput,
        "usd": 0.0 if estimate.uncharged else usd,
        "would_have_cost_usd": usd if estimate.uncharged else None,
    }


def _spot(estimate: Estimate) -> str:
    return ", spot" if estimate.spot else ""


def _share(goodput: float | None) -> str:
    return "" if goodput is None else f"{goodput:.0%}"
