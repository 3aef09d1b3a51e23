"""The commands for what surrounds jobs: the reaper and the bill."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from datetime import datetime
from typing import Any

from kinetic_orchestration.api.handle import UNREADABLE, JobHandle, all_jobs, find_job
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import age, dollars, note, show_fields, show_json, show_table, working
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.plan.configuration.settings import Settings, load, seconds
from kinetic_orchestration.plan.hardware import cost as prices
from kinetic_orchestration.plan.hardware.cost import Estimate
from kinetic_orchestration.plan.values import Traits, traits_of
from kinetic_orchestration.protocol.system.parallel import side_by_side

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
            note(f"per hour: estimates by list prices of {settings.listed.dates()}, or by KINETIC_PRICES")
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


def _per_hour(item: reaper.Reaped) -> str:
    if item.result == reaper.UNREAD:
        return ""
    return "unknown" if item.usd_per_hour is None else dollars(item.usd_per_hour)


def cost(arguments: Namespace) -> int:
    place = {"store": arguments.store, "deployment": arguments.deployment}
    if arguments.job:
        return _cost_of_one(find_job(arguments.job, **place), arguments.json)
    since = seconds("--since", arguments.since) or 0.0
    with working("adding up") as progress:
        handles = all_jobs(within=since, **place)
        progress("adding up", detail=f"{len(handles)} jobs")
        found = zip(handles, side_by_side(_cost_of, handles, ASKED_AT_ONCE), strict=True)
    rows = [(handle, estimate) for handle, estimate in found if estimate is not None]
    made = [(datetime.fromisoformat(handle.created_at).timestamp(), estimate) for handle, estimate in rows]
    totals = prices.summary(made, arguments.by)
    usd = sum(total.usd for total in totals)
    dates = ", ".join(sorted({estimate.date for _, estimate in rows if estimate.date})) or "no date"
    stood_for = sum(estimate.usd or 0.0 for _, estimate in rows if estimate.uncharged)
    if arguments.json:
        periods = [{**asdict(total), "goodput": total.goodput} for total in totals]
        jobs = [_record(handle, estimate) for handle, estimate in rows]
        told = {"usd": usd, "uncharged_usd": stood_for, "prices": dates}
        show_json({"periods": periods, "jobs": jobs, **told})
        return codes.OK
    if not totals:
        note(f"no job was made in the last {arguments.since}")
        return codes.OK
    if arguments.jobs:
        _show_jobs(rows)
        print()
    _show_totals(totals, arguments.by)
    unpriced = sum(total.unpriced for total in totals)
    known = f"; no price is known for {unpriced} of the jobs" if unpriced else ""
    note(f"{dollars(usd)} in the last {arguments.since}, by list prices of {dates}{known}")
    if stood_for:
        what = f"{dollars(stood_for)}, by list prices of {dates}"
        note(f"what runs on this machine or an emulated cloud costs nothing; on the hardware that was named: {what}")
    return codes.OK


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
            ("READY", f"{age(estimate.ready_seconds)}, {estimate.chip_hours:,.4g} chip-hours"),
            *used,
            ("cost", str(estimate).removeprefix("cost: ")),
        ]
    )
    return codes.OK


def _show_jobs(rows: list[tuple[JobHandle[Any], Estimate]]) -> None:
    columns = ("job", "name", "accelerator", "region", "attempts", "queued", "ready", "program", "goodput", "cost")
    cells = [
        (
            handle.job_id, handle.func_name, handle.accelerator + _spot(estimate), estimate.region,
            str(estimate.attempts), age(estimate.queued_seconds), age(estimate.ready_seconds),
            age(estimate.program_seconds), _share(estimate.goodput),
            dollars(0.0 if estimate.uncharged else estimate.usd),
        )
        for handle, estimate in rows
    ]  # fmt: skip
    show_table(columns, cells, right=columns[4:])


def _show_totals(totals: list[prices.Total], by: str) -> None:
    columns = (by, "jobs", "uncharged", "queued", "ready", "program", "goodput", "chip-hours", "cost")
    cells = [
        (
            total.period, str(total.jobs), str(total.uncharged), age(total.queued_seconds), age(total.ready_seconds),
            age(total.program_seconds), _share(total.goodput), f"{total.chip_hours:,.2f}", dollars(total.usd),
        )
        for total in totals
    ]  # fmt: skip
    show_table(columns, cells, right=columns[1:])


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
