"""`accelerators` and `prices`: the slices that can be requested, and the list prices that estimates are made from."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from typing import Any

from kinetic_orchestration.capacity import prices as stored_prices
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import dollars, note, show_json, show_table, working
from kinetic_orchestration.cli.slice_drawing import draw
from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.hardware import accelerators as table
from kinetic_orchestration.plan.hardware import machines, price_list
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, incomplete, price
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.platforms.local import backend
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system import copies


def accelerators(arguments: Namespace) -> int:
    settings = load(store="", deployment="local")  # of no store
    if arguments.name:
        _show_one(table.parse(arguments.name), settings, as_json=arguments.json)
        return codes.OK
    known = table.catalogue()
    if arguments.json:
        show_json([_record(slice_, settings) for slice_ in known])
        return codes.OK
    columns = ("name", "chips", "topology", "hosts", "Cloud TPU", "backends", "memory/chip", "$/hour")
    show_table(columns, [_row(slice_, settings) for slice_ in known], right=("chips", "hosts", "memory/chip", "$/hour"))
    dates = settings.listed.dates()
    print(f"$/hour: estimates by list prices of {dates}, in the first region that has one (`kinor prices`).")
    print(f"tpu7x: {NOT_REACHED}\n{MAINTAINED}")
    sys.stdout.flush()
    return codes.OK


def _show_one(slice_: table.Slice, settings: Settings, *, as_json: bool) -> None:
    if as_json:
        found = {"drawing": draw(slice_)} | ({"here": _gpus(settings)} if slice_.kind == "gpu" else {})
        show_json(_record(slice_, settings) | found)
        return
    print(draw(slice_), end="")
    if slice_.kind == "tpu":
        print(f"\n{NOT_REACHED if slice_.api == 'gke' else MAINTAINED}")
    if slice_.kind != "cpu":
        print(_served(slice_))
    if slice_.kind == "gpu":
        print("\nOn this machine:" + ("" if (gpus := _gpus(settings)) else " no GPU"))
        for gpu in gpus:
            holder = f"{gpu['job']} has it" if gpu["job"] else "free"
            print(f"  {gpu['number']}  {gpu['model']}  {gpu['uuid'] or '-'}  {holder}")
        print(ANY_MODEL if slice_.whichever else ONE_MODEL.format(slice_.generation), TOO_FEW)


def _row(slice_: table.Slice, settings: Settings) -> tuple[str, ...]:
    cost = _price(slice_, settings)
    return (
        slice_.name, str(slice_.chips), slice_.topology or "-", str(slice_.hosts),
        slice_.accelerator_type or "-", ", ".join(machines.platforms(slice_)) or "-",
        f"{slice_.hbm_gib_per_chip} GiB" if slice_.hbm_gib_per_chip else "-",
        dollars(cost.usd_per_chip_hour * slice_.chips) if cost is not None else "-",
    )  # fmt: skip


SHOWN = 10  # of the rows that a refresh leaves out
ANY_MODEL = "Whatever their model: a model's name, such as 'l4', takes GPUs of that model alone."
ONE_MODEL = "Only those of model {}: 'gpu' takes any."
TOO_FEW = "Where there are too few, a job is refused; with backend='local' it is emulated on the processor."
NOT_REACHED = "no Cloud TPU API: VMs with backend='compute', or a cluster with backend='gke'."
MAINTAINED = "The Cloud TPU API ends at v6e, and Google gives it fixes only."


def _served(slice_: table.Slice) -> str:
    """Say which backends on Google Cloud have the slice, and which of them a job gets that names none."""
    found = machines.platforms(slice_)
    if not found:
        return f"No backend on Google Cloud has it: {machines.refusal(slice_, table.ON_DEMAND)}"
    told = f"On Google Cloud: {', '.join(found)}."
    if not machines.serves(slice_):
        return told
    machine = machines.machine_of(slice_)
    ways, linked = ", ".join(machine.models), ", all linked by one group" if slice_.machines > 1 else ""
    return f"{told} On compute each host is a VM of {machine.machine_type} ({ways}){linked}."


def _gpus(settings: Settings) -> list[dict[str, Any]]:
    """The GPUs of this machine, and which job has each."""
    rows, _ = backend.gpus_and_holders(settings, copies.environ())
    return [
        {"vendor": gpu.vendor, "number": gpu.number, "model": gpu.model, "uuid": gpu.uuid, "job": holder}
        for gpu, holder in rows
    ]


def _price(slice_: table.Slice, settings: Settings) -> Price | None:
    found = price(Purchase(slice_), own=settings.prices, listed=settings.listed)
    return found if isinstance(found, Price) else None


def _record(slice_: table.Slice, settings: Settings) -> dict[str, Any]:
    cost = _price(slice_, settings)
    return slice_.to_json() | {
        "devices": slice_.devices,
        "devices_per_host": slice_.devices_per_host,
        "zones": list(table.zones(slice_)),
        "backends": list(machines.platforms(slice_)),
        "usd_per_hour": cost.usd_per_chip_hour * slice_.chips if cost is not None else None,
        "price": cost.source if cost is not None else None,
    }


def prices(arguments: Namespace) -> int:
    settings, is_shared = _settings_of_prices()
    code = codes.OK
    if arguments.refresh:
        settings, code = _refreshed(settings, is_shared)
    elif is_shared:
        settings = stored_prices.in_force(settings)
    listed = settings.listed
    rates = sorted(listed.rates, key=lambda rate: (rate.generation, rate.region, rate.model))
    if arguments.json:
        prices = [rate._asdict() for rate in rates]
        show_json({"refreshed": listed.refreshed or None, "prices": prices, "own": dict(settings.prices)})
        return code
    rows = [
        (rate.generation, rate.region or "any", rate.model, f"{rate.usd:.4g}", rate.date, rate.source) for rate in rates
    ]
    rows += [(name, "", "", f"{usd:.4g}", "", settings.sources["prices"]) for name, usd in settings.prices.items()]
    show_table(("price of", "region", "model", "$/hour", "date", "from"), rows, right=("$/hour",))
    sys.stdout.flush()
    if not listed.refreshed:
        note(f"these are of {listed.dates()}; to read today's from Google: {command('prices', '--refresh')}")
    elif old := price_list.staleness(listed):
        note(old)
    return code


def _settings_of_prices() -> tuple[Settings, bool]:
    """The settings, and whether they name a store that others may use: the list lies in that, and a copy here."""
    try:
        settings = load()
    except UsageError:  # of no deployment, or of no store that can be
        return load(store="", deployment="local"), False
    return settings, settings.sources["store"] != "default"


def _refreshed(settings: Settings, is_shared: bool) -> tuple[Settings, int]:
    """Read Google's list, keep it, and say what is new and what is left out; return the settings with it, and a code
    that says whether the deployment has it, too."""
    from kinetic_orchestration.platforms.google.rest import billing_catalog

    known = stored_prices.in_force(settings).listed if is_shared else settings.listed
    with working("asking Google's Billing Catalog"):
        fetched = billing_catalog.fetch(settings, known)
    data = price_list.to_bytes(fetched.rates, price_list.now())
    kept = str(price_list.write(settings.home, data))
    before = {(rate.generation, rate.region, rate.model): rate.usd for rate in known.rates}
    changed = sum(before.get((rate.generation, rate.region, rate.model)) != rate.usd for rate in fetched.rates)
    note(f"{len(fetched.rates)} prices of {fetched.read} SKUs, {changed} of them new or changed; kept in {kept}")
    for description in fetched.unknown[:SHOWN]:
        note(f"left out: {description}")
    if (more := len(fetched.unknown) - SHOWN) > 0:
        note(f"left out: {more} more")
    listed, code = price_list.read(settings.home), codes.OK
    try:
        if is_shared:
            store = open_store(settings.store, settings.deployment)
            listed = stored_prices.keep(store, data)
            note(f"and for all of the deployment in {store.url.rstrip('/')}/{names.PRICES}")
    except KineticError as error:
        note(f"on this machine alone: others of the deployment have the list of before, as {error}")
        code = codes.ENVIRONMENT
    for lack in (*price_list.unmatched(known, listed, fetched.rates), *incomplete(table.catalogue(), listed)):
        note(lack)
    return replace(settings, listed=listed), code
