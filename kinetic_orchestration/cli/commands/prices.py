"""`prices`: the table that estimates are made from, with the source and the date of each price; and how to renew it."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import UTC, datetime

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, show_json, show_table, working
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware import price_list
from kinetic_orchestration.plan.hardware.price_list import Rate
from kinetic_orchestration.plan.text.wording import command


def prices(arguments: Namespace) -> int:
    here = settings.load(store="", deployment="local")  # of no store
    listed = here.listed
    if arguments.refresh:
        from kinetic_orchestration.platforms.google.rest import billing_catalog

        with working("asking Google's Billing Catalog"):
            told = billing_catalog.fetch(here, listed)
        kept = price_list.write(here.home, told.rates, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        changed = sum(_changed(rate, listed.rate(rate.generation, rate.region, rate.model)) for rate in told.rates)
        listed = price_list.read(here.home)
        note(f"{len(told.rates)} prices of {told.read} SKUs, {changed} of them new or changed; kept in {kept}")
        for description in told.unknown[:10]:
            note(f"left out, since it is not known what it is: {description}")
    rates = sorted(listed.rates, key=lambda rate: (rate.generation, rate.region, rate.model))
    if arguments.json:
        told_prices = [rate._asdict() for rate in rates]
        show_json({"refreshed": listed.refreshed or None, "prices": told_prices, "own": dict(here.prices)})
        return codes.OK
    rows = [
        (rate.generation, rate.region or "any", rate.model, f"{rate.usd:.4g}", rate.date, rate.source) for rate in rates
    ]
    rows += [(name, "", "", f"{usd:.4g}", "", here.sources["prices"]) for name, usd in here.prices.items()]
    show_table(("chip", "region", "model", "$/chip-hour", "of", "from"), rows, right=("$/chip-hour",))
    sys.stdout.flush()
    if not listed.refreshed:
        note(f"these are of {listed.dates()}; to read today's from Google: {command('prices', '--refresh')}")
    return codes.OK


def _changed(new: Rate, old: Rate | None) -> bool:
    return old is None or old.usd != new.usd
