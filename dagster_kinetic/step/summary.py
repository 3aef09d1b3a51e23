"""Dagster's record of a job after its end: the metadata of its assets, or the failure that a user reads.

Knows no steps: everything follows from the records alone, so any process can compute it, at any later time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import dagster as dg

from kinetic_orchestration.api import handle as job
from kinetic_orchestration.api import links
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration.store_address import bucket_path
from kinetic_orchestration.plan.declare.spec import LOCAL
from kinetic_orchestration.plan.hardware.cost import went_to
from kinetic_orchestration.plan.values import Outcome
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import curves as picture
from kinetic_orchestration.protocol.report import job_report

MOST_METRICS = 40
MOST_SPARKS = 2
MOST_CHOICES = 40
LAST_LINES = 25


# Plots are sorted by their names, so that the user's metrics come first only if our own numbers are named for the end.
LAST = "~"


def named(values: Mapping[str, Any], call: str = "") -> dict[str, Any]:
    """A job's metadata by their whole names, without those that are not known."""
    prefix = prefix_of(call)
    known = {name: value for name, value in values.items() if value not in (None, "")}
    return {f"{LAST if _is_of_its_keeping(name, value) else ''}{prefix}{name}": value for name, value in known.items()}


def _is_of_its_keeping(name: str, value: Any) -> bool:
    """Return True for a number that Dagster plots and that the user's code did not report."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("metrics/")


def prefix_of(call: str) -> str:
    """The prefix of a job's metadata, as a step may run many jobs."""
    return f"kinetic/{call}/" if call else "kinetic/"


def metadata_of(handle: JobHandle[Any], call: str = "", curves: picture.Curves | None = None) -> dict[str, Any]:
    """The metadata of the asset: where it ran, for how long, its cost, and its metrics."""
    cost = handle.cost()
    values: dict[str, Any] = {
        "job_id": handle.job_id,
        **pictures_of(handle, curves),
        "accelerator": handle.accelerator,
        "chosen": handle.chosen,
        "choices": table_of(handle),
        "where": handle.where,
        "emulated": handle.emulated,
        "zone": ", ".join(handle.zones()),
        "attempts": max(1, cost.attempts),
        "queued_seconds": round(cost.queued_seconds, 3),
        "running_seconds": round(cost.program_seconds, 3),
        "held_seconds": round(cost.ready_seconds, 3),
        "goodput": round(cost.goodput, 4) if cost.goodput is not None else None,
        "went_to": went_to(cost),
        "chip_hours": round(cost.chip_hours, 4),
        "cost": str(cost).removeprefix("cost: "),
        "cost_usd_estimate": 0.0 if cost.uncharged else cost.usd,
        "cost_prices": cost.note,
        "output_dir": handle.output_dir,
        **profile_of(handle),
        **pages_of(handle),
        "logs": f"kinetic-orchestration logs {handle.job_id}",
    }
    return named(values, call)


def table_of(handle: JobHandle[Any]) -> Any:
    """The choices of its job in the order in which one more attempt would try them now; None if it has one."""
    lines = []
    with contextlib.suppress(KineticError):  # a table is worth no step
        lines = handle.choices()
    rows = [
        dg.TableRecord(
            {
                "choice": handle._job.plan().at(line.choice).slice.name,
                "bought": line.way,
                "where": line.place,
                "an hour": "not known" if line.usd is None else f"{'~' * bool(line.stands_in)}${line.usd:,.2f}",
                "why": f"{line.reason}; ~: that {line.stands_in}, stands in" if line.stands_in else line.reason,
            }
        )
        for line in lines[:MOST_CHOICES]
    ]
    return dg.MetadataValue.table(rows) if rows else None


def profile_of(handle: JobHandle[Any]) -> dict[str, Any]:
    """The location of its profile and how to open it, if there is one."""
    if not (place := job.profile_of(handle._job)):
        return {}
    page = {"profile_url": dg.MetadataValue.url(links.browse(place))} if bucket_path(place) is not None else {}
    return {"profile": place, "xprof": names.xprof(place), **page}


def pages_of(handle: JobHandle[Any]) -> dict[str, Any]:
    """Addresses that can be clicked on; a job on this machine has none."""
    urls = handle.links()
    if urls and bucket_path(handle.output_dir) is not None:
        urls["output_url"] = links.browse(handle.output_dir)
    return {name: dg.MetadataValue.url(url) for name, url in urls.items()}


def pictures_of(handle: JobHandle[Any], curves: picture.Curves | None) -> dict[str, Any]:
    """Pictures of its metrics, as they were received here or as its hosts stored them, and of its devices, which only
    the hosts know. Also the URL of the stored picture, if it has one."""
    kept: dict[str, Any] = {}
    page = ""
    with contextlib.suppress(KineticError):  # a picture is worth no step
        kept = job_report.read(handle.picture() or b"", handle.job_id)
        page = handle.picture_url() if kept and handle.backend != LOCAL else ""
    url = {"curves_url": dg.MetadataValue.url(page)} if page else {}
    if curves:
        return {**metrics_of(curves, handle.func_name, kept.get("devices", {})), **url}
    return {"curves": _image(job_report.draw(kept, handle.func_name, keep=False), "metrics"), **url} if kept else {}


def metrics_of(curves: picture.Curves, title: str, devices: Mapping[str, Any]) -> dict[str, Any]:
    """Their curves, and the last value of each, which Dagster plots from one materialization to the next.

    Dagster shows short Markdown in its place, and a picture as large as `curves` on a click.
    """
    points = curves.points()
    panels, unit = job_report.panels_of(devices)
    drawn = picture.svg(picture.grouped(points), axis=curves.axis, title=title, amounts=panels, amounts_axis=unit)
    return {
        **{f"curve/{name}": _image(picture.spark(points[name]), name) for name in list(points)[:MOST_SPARKS]},
        "curves": _image(drawn, "metrics"),
        **{f"metrics/{name}": number(value) for name, value in list(curves.last.items())[:MOST_METRICS]},
    }


def _image(drawn: str, name: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(picture.markdown(drawn, name))


def number(value: float) -> float | str:
    """A number that a plot can take, or else its name."""
    return value if math.isfinite(value) else str(value)


def failure_of(
    handle: JobHandle[Any],
    outcome: Outcome | None,
    error: BaseException,
    call: str,
    curves: picture.Curves | None = None,
) -> dg.Failure:
    """The failure that the run's page shows; `error`, as its cause, stays the user's own exception."""
    failure = outcome.verdict.failure if outcome is not None else None
    host = outcome.verdict.host if outcome is not None else None
    where = f" on host {host} of {handle.hosts}" if host is not None and handle.hosts > 1 else ""
    again = f", in attempt {outcome.attempts}" if outcome is not None and outcome.attempts > 1 else ""
    log = f"kinetic-orchestration logs {handle.job_id}" + (f" --host {host}" if host and handle.hosts > 1 else "")
    tail = "\n".join(failure.log_tail.strip().splitlines()[-LAST_LINES:]) if failure is not None else ""
    description = f"{handle.func_name} failed{where}{again}: {headline(error)}"
    if tail:
        description += f"\n\nThe last lines of host {host or 0}:\n{tail}"
    description += f"\n\nNext: {log}"
    prefix = prefix_of(call)
    first: dict[str, Any] = {}
    if host is not None:
        first[f"{prefix}host"] = host
    if failure is not None and failure.traceback.strip():
        first[f"{prefix}traceback"] = dg.MetadataValue.md(fenced(failure.traceback))
    first[f"{prefix}logs"] = log
    told, allow_retries = (error.metadata, error.allow_retries) if isinstance(error, dg.Failure) else ({}, None)
    metadata = {**told, **first, **metadata_of(handle, call, curves), **first}
    return dg.Failure(description, metadata, allow_retries)


def headline(error: BaseException) -> str:
    """The first line of its message, with its type unless that is ours."""
    said = (str(error).strip().splitlines() or [""])[0]
    own = type(error).__module__.startswith("kinetic_orchestration.")
    return said if own and said else f"{type(error).__name__}: {said}".rstrip(": ")


def fenced(text: str) -> str:
    """The text as a code block in Markdown, whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
