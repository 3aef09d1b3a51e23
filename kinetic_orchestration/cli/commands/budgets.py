"""`cost --by pipeline`: what pipelines spend, beside their budgets; `cost --forecast`: what a schedule will."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity.ledger import Account
from kinetic_orchestration.capacity.prices import in_force
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import age, dollars, note, show_fields, show_json, show_table, working
from kinetic_orchestration.errors import Denied, UsageError
from kinetic_orchestration.jobs import request
from kinetic_orchestration.jobs.watching import spending
from kinetic_orchestration.jobs.watching.spending import Spending
from kinetic_orchestration.packaging.source.stat_index import replace_file
from kinetic_orchestration.plan.configuration import budgets, schedules
from kinetic_orchestration.plan.configuration.budgets import TOTAL, Budget, Forecast, Spent
from kinetic_orchestration.plan.configuration.settings import Settings, duration, seconds
from kinetic_orchestration.plan.hardware.cost import Total, total
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol.system import escaping

HISTORY = "90d"  # that a forecast rests on
MOST_PIPELINES = 200  # with series of their own in a text for Prometheus
NAMED = 5  # jobs without a known cost that are named


class _Row(NamedTuple):
    """A line of the table: what a pipeline has spent in a month, and its budget if that month goes on."""

    month: str
    pipeline: str
    total: Total
    budget: Budget | None = None
    spent: Spent = Spent()

    @property
    def used(self) -> float | None:
        return self.spent.usd / self.budget.usd if self.budget is not None and self.budget.usd else None


def by_pipeline(arguments: Namespace) -> int:
    store, _, settings = place_of(store=arguments.store, deployment=arguments.deployment)
    settings = in_force(settings, store)
    back = seconds("--since", arguments.since) or 0.0
    month = budgets.month_of(store.now())
    since = budgets.began(budgets.month_of(store.now() - back))
    with working("adding up"):
        jobs = spending.of_all(store, settings, since)
        rows = _rows(store, settings, jobs, month)
    dates = ", ".join(sorted({job.estimate.date for job in jobs if job.estimate and job.estimate.date})) or "no date"
    if arguments.json:
        show_json({"pipelines": [_row_record(row) for row in rows], "prices": dates})
        return codes.OK
    if not rows:
        note(f"no job was made since the beginning of {budgets.month_of(since)}")
        return codes.OK
    if arguments.jobs:
        _show_jobs(jobs)
        print()
    _show(rows)
    note(f"months are of UTC, and a job is of the month in which it was submitted; by list prices of {dates}")
    for job in [job for job in jobs if job.usd is None][:NAMED]:
        why = job.damage or (job.estimate.note if job.estimate else "")
        note(f"{job.job_id} counts for no sum, as its cost is not known: {why}")
    return codes.OK


# In the text for Prometheus: a gauge's name behind `kinetic_month_`, its help, and its value.
_GAUGES: tuple[tuple[str, str, Callable[[_Row], float | None]], ...] = (
    ("jobs", "Jobs that were submitted in this month (UTC).", lambda row: row.total.jobs),
    ("unpriced_jobs", "Those whose cost is not known; no sum has it.", lambda row: row.total.unpriced),
    ("hardware_seconds", "Time for which their hosts were charged for.", lambda row: row.total.ready_seconds),
    ("idle_seconds", "Time for which slices were kept and served nobody.", lambda row: row.total.idle_seconds),
    ("chip_seconds", "Time of their chips.", lambda row: 3600.0 * row.total.chip_hours),
    ("cost_usd", "Their estimated cost by list prices, in US dollars.", lambda row: row.total.least_usd),
    ("budget_usd", "The pipeline's budget, in US dollars.", lambda row: row.budget and row.budget.usd),
    ("budget_spent_usd", "What counts for the budget.", lambda row: None if row.budget is None else row.spent.usd),
)


def for_prometheus(arguments: Namespace) -> int:
    """Print the sums of this month as gauges in Prometheus' text format, or write them to a file for node_exporter."""
    target = Path(arguments.prometheus) if arguments.prometheus != "-" else None
    if target is not None and target.suffix != ".prom":
        raise UsageError(f"--prometheus {target}: a textfile collector reads only files whose names end in .prom")
    if arguments.json or arguments.since or arguments.job:
        raise UsageError("--prometheus is of all pipelines in this month: leave out the job, --since and --json")
    store, _, settings = place_of(store=arguments.store, deployment=arguments.deployment)
    settings, now = in_force(settings, store), store.now()
    month = budgets.month_of(now)
    jobs = spending.of_all(store, settings, budgets.began(month))
    rows = [row for row in _rows(store, settings, jobs, month) if row.month == month]
    text = _exposition(rows, settings.deployment, now)
    if target is None:
        sys.stdout.write(text)
    else:
        replace_file(target, text.encode(), mode=0o644)  # a collector is another user
    return codes.OK


def _exposition(rows: Sequence[_Row], deployment: str, now: float) -> str:
    of = f'deployment="{_label(deployment)}"'
    lines = [
        "# HELP kinetic_cost_read_timestamp_seconds When these sums were read.",
        "# TYPE kinetic_cost_read_timestamp_seconds gauge",
        f"kinetic_cost_read_timestamp_seconds{{{of}}} {now:.0f}",
    ]
    shown = sorted(rows, key=lambda row: -row.total.least_usd)[:MOST_PIPELINES]  # series are kept for ever
    for name, told, value in _GAUGES:
        lines += [f"# HELP kinetic_month_{name} {told}", f"# TYPE kinetic_month_{name} gauge"]
        for row in shown:
            if (number := value(row)) is not None:
                lines.append(f'kinetic_month_{name}{{{of},pipeline="{_label(row.pipeline)}"}} {number:.10g}')
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return escaping.text(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _rows(store: Store, settings: Settings, jobs: Sequence[Spending], month: str) -> list[_Row]:
    groups: dict[tuple[str, str], list[Spending]] = {}
    for job in jobs:
        groups.setdefault((budgets.month_of(job.at), job.pipeline), []).append(job)
    for budget in settings.budgets:
        if budget.pipeline not in (TOTAL, budgets.EACH):
            groups.setdefault((month, budget.pipeline), [])
    rows = []
    for (of, pipeline), found in groups.items():
        own = next((it for it in budgets.applying(settings.budgets, pipeline) if it.pipeline != TOTAL), None)
        rows.append(_row(store, settings, of, pipeline, found, own if of == month else None))
    whole = next((budget for budget in settings.budgets if budget.pipeline == TOTAL), None)
    if whole is not None:
        of_month = [job for job in jobs if budgets.month_of(job.at) == month]
        rows.append(_row(store, settings, month, TOTAL, of_month, whole))
    return sorted(rows, key=lambda row: (row.month, row.budget is whole and whole is not None, -row.total.least_usd))


def _row(
    store: Store, settings: Settings, month: str, pipeline: str, jobs: Sequence[Spending], budget: Budget | None
) -> _Row:
    added = total(month, [job.estimate for job in jobs if job.estimate is not None])
    spent = Spent() if budget is None else _spent(store, settings, Account(month, pipeline), jobs)
    return _Row(month, pipeline, added, budget, spent)


def _spent(store: Store, settings: Settings, account: Account, jobs: Sequence[Spending]) -> Spent:
    """Return what counts for a budget, and correct by the jobs' records what submissions go by."""
    charged = [job for job in jobs if job.charged]
    try:
        if charged:
            spending.correct(store, account, charged)
        return spending.standing(store, account, settings)
    except Denied:  # who may only read gets what the records say
        known = [job.usd for job in charged if job.usd is not None]
        return Spent(sum(known), len(charged), len(charged) - len(known))


def _show(rows: Iterable[_Row]) -> None:
    rows = list(rows)
    idle = any(row.total.idle_seconds for row in rows)
    columns = (
        *("month", "pipeline", "jobs", "uncharged", "ready"), *(("kept idle",) if idle else ()),
        *("chip-hours", "cost", "budget", "used"),
    )  # fmt: skip
    cells = [
        (
            row.month, row.pipeline or "unreadable", str(row.total.jobs), str(row.total.uncharged),
            age(row.total.ready_seconds), *((age(row.total.idle_seconds),) if idle else ()),
            f"{row.total.chip_hours:,.2f}", dollars(row.total.usd),
            "" if row.budget is None else f"{dollars(row.budget.usd)}, {row.budget.action}", _used(row),
        )
        for row in rows
    ]  # fmt: skip
    show_table(columns, cells, right=columns[2:])


def _used(row: _Row) -> str:
    if row.budget is None:
        return ""
    share = "" if row.used is None else f" ({row.used:.0%})"
    more = f", and {row.spent.unpriced} unknown" if row.spent.unpriced else ""
    return f"{dollars(row.spent.usd)}{share}{more}"


def _row_record(row: _Row) -> dict[str, Any]:
    budget = None
    if row.budget is not None:
        budget = {
            "usd": row.budget.usd, "action": row.budget.action, "spent_usd": row.spent.usd, "jobs": row.spent.jobs,
            "unpriced": row.spent.unpriced, "used": row.used,
        }  # fmt: skip
    return {
        "month": row.month, "pipeline": row.pipeline, "jobs": row.total.jobs, "uncharged": row.total.uncharged,
        "unpriced": row.total.unpriced, "ready_seconds": row.total.ready_seconds,
        "idle_seconds": row.total.idle_seconds, "chip_hours": row.total.chip_hours, "usd": row.total.usd,
        "budget": budget,
    }  # fmt: skip


def _show_jobs(jobs: Iterable[Spending]) -> None:
    cells = [
        (
            job.job_id, budgets.month_of(job.at), job.pipeline,
            age(job.estimate.ready_seconds) if job.estimate else "", "yes" if job.live else "",
            dollars(0.0 if job.estimate and job.estimate.uncharged else job.usd),
        )
        for job in jobs
    ]  # fmt: skip
    show_table(("job", "month", "pipeline", "ready", "goes on", "cost"), cells, right=("ready", "cost"))


# ---- forecast ----------------------------------------------------------------------------------------------------


class _History(NamedTuple):
    """Past runs of a pipeline that have ended and were charged for.

    Attributes:
        costs: Of each that had hosts and has a known price, in dollars.
        unpriced: How many have none.
        without_hosts: How many ended before they had hosts, as those that were cancelled while they waited.
        first: When the first of the others was submitted.
        last: When the last of them was.
        dates: Of the prices.
    """

    costs: list[float]
    unpriced: int
    without_hosts: int
    first: float
    last: float
    dates: str


def forecast(arguments: Namespace) -> int:
    schedule = _schedule(arguments)
    pipeline, plan, settings = _named(arguments)
    store = open_store(settings.store, settings.deployment)
    settings = in_force(settings, store)
    since = seconds("--since", arguments.since or HISTORY) or 0.0
    month = budgets.month_of(budgets.ended(budgets.month_of(store.now())))
    runs = schedule.runs(month)
    with working("adding up"):
        past = _history(spending.of_all(store, settings, store.now() - since, pipeline=pipeline))
    worst = None if plan is None else 0.0 if plan.traits.share_files else spending.worst(plan, settings)
    if not past.costs and plan is None:
        unpriced = f" with a known price, and {past.unpriced} without" if past.unpriced else ""
        raise UsageError(
            f"{pipeline} has no run{unpriced} in the last {arguments.since or HISTORY} that was charged for and has "
            "ended. `kinor cost --by pipeline` lists the names of pipelines; for the worst case by its limits, give "
            "the function as FILE:FUNCTION"
        )
    foreseen = budgets.forecast(past.costs, runs)
    budget = next(iter(budgets.applying(settings.budgets, pipeline)), None)
    if arguments.json:
        show_json(_forecast_record(pipeline, month, runs, past, foreseen, worst, budget))
        return codes.OK
    by = (
        f"{arguments.cron} (UTC)" if arguments.cron else f"every {duration(seconds('--every', arguments.every) or 0.0)}"
    )
    show_fields([
        ("pipeline", pipeline),
        ("schedule", f"{by}: {runs:,.10g} runs in {month}"),
        *(_by_history(past, foreseen) if foreseen else _by_limits(worst, runs)),
        *([] if budget is None else [("budget", _against(budget, foreseen, worst, runs))]),
    ])  # fmt: skip
    note("an estimate: runs may become longer, and prices change. `kinor prices --refresh` reads those of today")
    return codes.OK


def _schedule(arguments: Namespace) -> schedules.Every | schedules.Cron:
    if bool(arguments.every) == bool(arguments.cron):
        raise UsageError('--forecast needs one schedule: either --every 1d or --cron "0 3 * * *"')
    if arguments.job or arguments.by == "pipeline":
        raise UsageError("--forecast is of one pipeline: leave out the job and --by")
    if arguments.cron:
        return schedules.cron("--cron", arguments.cron)
    return schedules.every("--every", seconds("--every", arguments.every))


def _named(arguments: Namespace) -> tuple[str, Plan | None, Settings]:
    """Return the pipeline; its plan, if it was named by its function; and the settings."""
    target = arguments.forecast
    if ":" not in target and not target.endswith(".py"):
        return target, None, place_of(store=arguments.store, deployment=arguments.deployment)[2]
    from kinetic_orchestration.cli.commands import planning

    spec = planning.spec_of(Namespace(target=target, accelerator=None, **_place(arguments)))
    own = request.settings_of(spec)
    return spec.name, request.draft(spec, planning.complete(own, spec), dry=True).plan, own


def _place(arguments: Namespace) -> dict[str, str | None]:
    return {"store": arguments.store, "deployment": arguments.deployment}


def _history(jobs: Iterable[Spending]) -> _History:
    runs: dict[str, list[Spending]] = {}
    for job in jobs:
        if job.charged:
            runs.setdefault(job.run, []).append(job)
    ended = [found for found in runs.values() if not any(job.live for job in found)]
    over = [found for found in ended if any(job.estimate and job.estimate.ready_seconds for job in found)]
    costs = [sum(job.usd or 0.0 for job in found) for found in over if all(job.usd is not None for job in found)]
    times = [job.at for found in over for job in found]
    dates = sorted({job.estimate.date or "KINETIC_PRICES" for found in over for job in found if job.estimate})
    between = min(times, default=0.0), max(times, default=0.0)
    return _History(costs, len(over) - len(costs), len(ended) - len(over), *between, ", ".join(dates))


def _by_history(past: _History, foreseen: Forecast) -> list[tuple[str, str]]:
    between = f"{_day(past.first)} to {_day(past.last)}"
    unpriced, unhosted = past.unpriced, past.without_hosts
    left_out = f"; {unpriced} more {'has' if unpriced == 1 else 'have'} no known price" if unpriced else ""
    left_out += f"; {unhosted} more never had hosts" if unhosted else ""
    left_out += f", and {'is' if unpriced + unhosted == 1 else 'are'} left out" if left_out else ""
    usual, high = dollars(foreseen.month_median), dollars(foreseen.month_high)
    return [
        ("rests on", f"{_runs(len(past.costs))} of {between}, by prices of {past.dates}{left_out}"),
        ("a run", f"{dollars(foreseen.median)} (median), {dollars(foreseen.high)} (90th percentile)"),
        ("a month", f"{usual} if all are as the median, {high} if all are as the 90th percentile"),
    ]


def _by_limits(worst: float | None, runs: float) -> list[tuple[str, str]]:
    if worst is None:
        return [("a run", "unknown: no run yet, and its limits or its price are not known, see `kinor plan`")]
    return [
        ("rests on", "no run yet: the worst case by its limits"),
        ("a run", f"{dollars(worst)} at most"),
        ("a month", f"{dollars(worst * runs)} at most"),
    ]


def _against(budget: Budget, foreseen: Forecast | None, worst: float | None, runs: float) -> str:
    sums = [foreseen.month_median, foreseen.month_high] if foreseen else [] if worst is None else [worst * runs]
    of = f"{dollars(budget.usd)} a month{' of all pipelines' if budget.pipeline == TOTAL else ''}, {budget.action}"
    shares = " and ".join(f"{usd / budget.usd:.0%}" for usd in sums) if budget.usd else ""
    over = ": MORE than that" if any(usd > budget.usd for usd in sums) else ""
    return f"{of}{f'; it would use {shares}' if shares else ''}{over}"


def _forecast_record(
    pipeline: str, month: str, runs: float, past: _History, foreseen: Forecast | None, worst: float | None,
    budget: Budget | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "pipeline": pipeline, "month": month, "runs": runs,
        "history": {
            "runs": len(past.costs), "unpriced": past.unpriced, "without_hosts": past.without_hosts,
            "prices": past.dates,
            "first": _day(past.first) if past.costs else None, "last": _day(past.last) if past.costs else None,
        },
        "run_usd": foreseen and {"median": foreseen.median, "p90": foreseen.high},
        "month_usd": foreseen and {"median": foreseen.month_median, "p90": foreseen.month_high},
        "worst_case": None if worst is None else {"run_usd": worst, "month_usd": worst * runs},
        "budget": budget and {"of": budget.pipeline, "usd": budget.usd, "action": budget.action},
    }  # fmt: skip


def _day(time: float) -> str:
    return budgets.day_of(time)


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
