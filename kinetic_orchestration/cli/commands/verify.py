"""`verify`: what the emulator proves, on the real thing and within a budget, with a report of every answer."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import dollars, note, show_json, show_table
from kinetic_orchestration.cli.verify import report as reports
from kinetic_orchestration.cli.verify import runner
from kinetic_orchestration.cli.verify.budget import Budget
from kinetic_orchestration.cli.verify.runner import FAILED, PASSED, Report, Wanted
from kinetic_orchestration.errors import BackendError, CredentialsError, StoreError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings, seconds


def verify(arguments: Namespace) -> int:
    wanted = runner.Wanted(
        accelerator=arguments.accelerator, backend=arguments.backend, usd=arguments.budget, spot=arguments.spot,
        zones=tuple(arguments.zone),
        wait=seconds("--wait", arguments.wait) or 0.0, only=tuple(arguments.only), store=arguments.store,
    )  # fmt: skip
    folder = Path(arguments.output)
    try:
        wanted = runner.completed(wanted)
        settings = runner.settings_for(wanted, dry_run=arguments.dry_run)
    except (BackendError, CredentialsError, StoreError) as error:  # of the bucket, whose location selects the zones
        reports.check_folder(folder)
        found = runner.closed(wanted, error, note)
        return _show_report(found, *reports.write(found, folder), as_json=arguments.json)
    planned = runner.plan(wanted, settings)
    if not arguments.json:
        _show_plan(planned, wanted, settings)
    if arguments.dry_run:
        if arguments.json:
            show_json(_document(planned))
        return codes.OK
    reports.check_folder(folder)
    if not arguments.yes and not _agreed():
        note("nothing was run")
        return codes.OK
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it removes what it made then, too
    emulator, recorded = runner.baseline(settings.backend)
    found = runner.run(wanted, settings, planned, note, emulator)
    found.baseline = recorded
    page, document = reports.write(found, folder)
    return _show_report(found, page, document, as_json=arguments.json)


def _show_plan(planned: Budget, wanted: Wanted, settings: Settings) -> None:
    rows = []
    for step in planned.steps:
        slices = f"{step.wish.slices} × {step.slice.name}" if step.slice is not None else "-"
        minutes = f"{step.wish.minutes:g} min each" if step.slice is not None else "-"
        state = f"not run: {step.left_out}" if step.left_out else "run"
        rows.append((step.wish.name, slices, minutes, dollars(step.usd) if step.usd else "-", state))
    show_table(("step", "slices", "at most", "costs at most", "is"), rows, right=("costs at most",))
    project = f"project {settings.project}"
    where = "an emulated Google Cloud, where nothing costs anything" if settings.emulator else project
    print(
        f"\nIn {where}, zones {', '.join(settings.zones)}{', spot' if wanted.spot else ''}: at most "
        f"{dollars(planned.most)} of {dollars(planned.usd)} ({planned.price}). Requests to the bucket are not in it.\n"
        f"All of it lies under {settings.store.rstrip('/')}/{settings.deployment} and is removed at the end."
    )
    sys.stdout.flush()


def _agreed() -> bool:
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("verify makes slices that cost money, and there is no terminal to ask on: add --yes")
    sys.stderr.write("Run this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _document(planned: Budget) -> dict[str, Any]:
    steps = [
        {
            "step": step.wish.name, "proves": step.wish.proves, "slices": step.wish.slices,
            "accelerator": step.slice.name if step.slice is not None else None, "usd": step.usd,
            "left_out": step.left_out,
        }
        for step in planned.steps
    ]  # fmt: skip
    return {"steps": steps, "most": planned.most, "budget": planned.usd, "price": planned.price}


def _show_report(found: Report, page: Path, document: Path, *, as_json: bool) -> int:
    passed, failed = (sum(result.state == state for result in found.results) for state in (PASSED, FAILED))
    if as_json:
        show_json({"page": str(page), "document": str(document), "passed": passed, "failed": failed,
                   "differences": [each._asdict() for each in found.differences]})  # fmt: skip
    else:
        print()
        for each in found.differences:
            print(f"{each.call}: {each.where}: the emulator says {each.emulator}; here it is {each.real}")
        print(f"{passed} passed, {failed} failed, {len(found.differences)} differences. The report: {page}")
        sys.stdout.flush()
    for command in found.left:
        note(f"COSTS MONEY UNTIL IT IS DONE: {command}" if "gcloud compute" in command else f"left behind: {command}")
    if found.interrupted:
        return codes.INTERRUPTED
    return codes.FAILED if found.failed else codes.DIFFERENT if found.differences else codes.OK
