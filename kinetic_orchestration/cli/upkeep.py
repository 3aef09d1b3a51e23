"""The commands for what surrounds jobs: the reaper, the bill, the emulator."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from datetime import datetime

from kinetic_orchestration import reaper, settings
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import dollars, note, show_json, show_table, working
from kinetic_orchestration.errors import Unsupported


def reap(arguments: Namespace) -> int:
    from kinetic_orchestration.backends import open_backend
    from kinetic_orchestration.stores import open_store

    here = settings.load(store=arguments.store, deployment=arguments.deployment)
    store, backend = open_store(here.store, here.deployment), open_backend(here.backend, here)
    with working(f"looking through {store.url}"):
        found = reaper.reap(store, backend, here, dry_run=arguments.dry_run)
    if arguments.json:
        show_json({"dry_run": arguments.dry_run, "reaped": [item._asdict() for item in found]})
        return codes.OK
    if found:
        show_table(("what", "name", "why"), found)
    would = "would be removed" if arguments.dry_run else "removed"
    note(f"{len(found)} {would}" if found else "nothing to remove")
    return codes.OK


def cost(arguments: Namespace) -> int:
    from kinetic_orchestration import cost as prices
    from kinetic_orchestration.job import all_jobs

    since = settings.seconds("--since", arguments.since) or 0.0
    with working("adding up"):
        handles = all_jobs(store=arguments.store, deployment=arguments.deployment)
        rows = [
            (datetime.fromisoformat(handle.created_at).timestamp(), handle.cost())
            for handle in handles
            if handle.age() <= since
        ]
    totals = prices.summary(rows, arguments.by)
    usd = sum(total.usd for total in totals)
    stood_for = sum(estimate.usd or 0.0 for _, estimate in rows if estimate.emulated)
    if arguments.json:
        show_json({"periods": [asdict(total) for total in totals], "usd": usd, "emulated_usd": stood_for})
        return codes.OK
    if not totals:
        note(f"no job was made in the last {arguments.since}")
        return codes.OK
    columns = (arguments.by, "jobs", "emulated", "chip-hours", "cost")
    cells = [
        (total.period, str(total.jobs), str(total.emulated), f"{total.chip_hours:,.2f}", dollars(total.usd))
        for total in totals
    ]
    show_table(columns, cells, right=columns[1:])
    unpriced = sum(total.unpriced for total in totals)
    known = f"; no price is known for {unpriced} of the jobs" if unpriced else ""
    note(f"{dollars(usd)} in the last {arguments.since}, by list prices of {prices.PRICES_DATE}{known}")
    if stood_for:
        note(f"emulated jobs cost nothing here; on the hardware they stood for: {dollars(stood_for)}")
    return codes.OK


def emulator(_: Namespace) -> int:
    raise Unsupported(
        "the Cloud TPU emulator comes with the Cloud TPU backend, which this version does not have yet. Every slice "
        "can be emulated by jobs themselves: backend='local', the default"
    )
