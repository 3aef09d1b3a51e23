"""The commands about what there is: this machine with its settings, and the slices that can be asked for."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import dollars, note, show_json, show_table, working
from kinetic_orchestration.plan.hardware import accelerators as table
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from kinetic_orchestration.cli.doctor import Report
    from kinetic_orchestration.jobs.cleanup import decay
    from kinetic_orchestration.jobs.cleanup.decay import Damage
    from kinetic_orchestration.plan.configuration.settings import Settings
    from kinetic_orchestration.plan.hardware.cost import Price


def doctor(arguments: Namespace) -> int:
    from kinetic_orchestration.cli import doctor as preflight

    report = preflight.examine(copies.environ(), store=arguments.store, deployment=arguments.deployment)
    read = None
    if arguments.verify and report.settings:
        report, read = _verify(arguments, report)
    if arguments.json:
        blobs = (
            {} if read is None else {"blobs": {**read._asdict(), "damaged": [each._asdict() for each in read.damaged]}}
        )
        show_json(asdict(report) | blobs | {"ok": report.ok})
        return codes.OK if report.ok else codes.ENVIRONMENT
    if report.settings:
        show_table(
            ("setting", "value", "from"), [(entry.name, entry.value or "-", entry.source) for entry in report.settings]
        )
        print()
    show_table(("check", "is", "found"), [(check.name, check.state, check.found) for check in report.checks])
    for check in report.checks:
        if check.fix:
            print(f"\n{check.name}: {check.fix}")
    if read is not None and read.damaged:
        print()
        show_table(
            ("damaged", "where", "found", "jobs"),
            [(each.what, each.place, each.why, _jobs(each)) for each in read.damaged],
        )
        for what, fix in {each.what: each.fix for each in read.damaged}.items():
            print(f"\n{what}: {fix}")
    sys.stdout.flush()
    failed = sum(check.state == preflight.FAILED for check in report.checks)
    note("all is well" if report.ok else f"{failed} of {len(report.checks)} checks failed")
    return codes.OK if report.ok else codes.ENVIRONMENT


def _verify(arguments: Namespace, report: Report) -> tuple[Report, decay.Report | None]:
    """Doctor's report with a check that every blob still has its digest, and the result of that check."""
    from kinetic_orchestration.cli import doctor as preflight
    from kinetic_orchestration.errors import KineticError
    from kinetic_orchestration.jobs.cleanup import decay
    from kinetic_orchestration.plan.configuration import settings

    here = settings.load(store=arguments.store, deployment=arguments.deployment)
    try:
        with working("reading every blob") as say:
            read = decay.examine(here, say)
    except KineticError as error:
        check = preflight.Check("blobs", preflight.FAILED, "they could not be read", str(error))
        return replace(report, checks=(*report.checks, check)), None
    state = preflight.FAILED if read.damaged else preflight.OK
    fix = "see the table of what is damaged, and what stands below it" if read.damaged else ""
    return replace(report, checks=(*report.checks, preflight.Check("blobs", state, read.summary, fix))), read


def _jobs(damage: Damage) -> str:
    more = f", and {damage.many - len(damage.jobs)} more" if damage.many > len(damage.jobs) else ""
    return ", ".join(damage.jobs) + more or "-"


def accelerators(arguments: Namespace) -> int:
    from kinetic_orchestration.plan.configuration import settings

    here = settings.load(store="", deployment="local")  # of no store
    if arguments.name:
        from kinetic_orchestration.cli.drawing import draw

        slice_ = table.parse(arguments.name)
        if arguments.json:
            found = {"drawing": draw(slice_)} | ({"here": _gpus(here)} if slice_.kind == "gpu" else {})
            show_json(_record(slice_, here) | found)
            return codes.OK
        print(draw(slice_), end="")
        if slice_.kind == "tpu":
            print(f"\n{NOT_REACHED if slice_.api == 'gke' else MAINTAINED}")
        if slice_.kind == "gpu":
            print("\nOn this machine:" + ("" if (gpus := _gpus(here)) else " no GPU"))
            for gpu in gpus:
                holder = f"{gpu['job']} has it" if gpu["job"] else "free"
                print(f"  {gpu['number']}  {gpu['model']}  {gpu['uuid'] or '-'}  {holder}")
            print(ANY_MODEL if slice_.whichever else ONE_MODEL.format(slice_.generation), TOO_FEW)
        return codes.OK
    known = table.catalogue()
    if arguments.json:
        show_json([_record(slice_, here) for slice_ in known])
        return codes.OK
    rows = []
    for slice_ in known:
        cost = _price(slice_, here)
        rows.append(
            (
                slice_.name, str(slice_.chips), slice_.topology or "-", str(slice_.hosts),
                slice_.accelerator_type or ("GKE only" if slice_.kind == "tpu" else "-"),
                f"{slice_.hbm_gib_per_chip} GiB" if slice_.hbm_gib_per_chip else "-",
                dollars(cost.usd_per_chip_hour * slice_.chips) if cost is not None else "-",
            )
        )  # fmt: skip
    columns = ("name", "chips", "topology", "hosts", "Cloud TPU", "memory/chip", "$/hour")
    show_table(columns, rows, right=("chips", "hosts", "memory/chip", "$/hour"))
    print(f"$/hour: estimates by list prices of {here.listed.dates()}, in the first region that has one (`ko prices`).")
    print(f"tpu7x: {NOT_REACHED}\n{MAINTAINED}")
    sys.stdout.flush()
    return codes.OK


ANY_MODEL = "Whatever their model: a model's name, such as 'l4', takes GPUs of that model alone."
ONE_MODEL = "Only those of model {}: 'gpu' takes any."
TOO_FEW = "Where there are too few, a job is refused; with backend='local' it is emulated on the processor."
NOT_REACHED = "reached through GKE only, which is not part of this version: jobs run on it emulated, or not at all."
MAINTAINED = "The Cloud TPU API, which jobs use, ends at v6e, and Google gives it fixes only."


def _gpus(here: Settings) -> list[dict[str, Any]]:
    """The GPUs of this machine, and which job has each."""
    from kinetic_orchestration.platforms.local import backend

    rows, _ = backend.gpus_and_holders(here, copies.environ())
    return [
        {"vendor": gpu.vendor, "number": gpu.number, "model": gpu.model, "uuid": gpu.uuid, "job": holder}
        for gpu, holder in rows
    ]


def _price(slice_: table.Slice, here: Settings) -> Price | None:
    from kinetic_orchestration.plan.hardware.cost import price

    return price(slice_, overrides=here.prices, listed=here.listed)


def _record(slice_: table.Slice, here: Settings) -> dict[str, Any]:
    cost = _price(slice_, here)
    return slice_.to_json() | {
        "devices": slice_.devices,
        "devices_per_host": slice_.devices_per_host,
        "zones": list(table.zones(slice_)),
        "usd_per_hour": cost.usd_per_chip_hour * slice_.chips if cost is not None else None,
        "price": cost.source if cost is not None else None,
    }
