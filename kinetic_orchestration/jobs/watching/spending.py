"""Adds up what jobs have cost so far, by their records, and lets another one begin if its budgets do.

A job belongs to the month (UTC) in which it was submitted, as in `kinor cost`. What is charged for is `usage`'s; hosts
of an emulated cloud count by the prices of what they stand for, so that budgets can be tried, and what runs on this
machine costs nothing. A job without a known price is never taken for one that costs nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kinetic_orchestration.capacity import ledger
from kinetic_orchestration.capacity.ledger import Account, Entry, Kept, Ledger
from kinetic_orchestration.errors import BudgetExceeded, Corrupt, KineticError, NewerWire
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.job import set_aside
from kinetic_orchestration.jobs.watching import attempts, live_index, usage
from kinetic_orchestration.jobs.watching.live_index import NEVER_SUBMITTED
from kinetic_orchestration.plan.configuration import budgets
from kinetic_orchestration.plan.configuration.budgets import Budget, Spent
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.cost import Estimate
from kinetic_orchestration.plan.hardware.prices import Unknown, dearest
from kinetic_orchestration.plan.identity import pipeline_of
from kinetic_orchestration.plan.messages import warn
from kinetic_orchestration.plan.records import intent_of, plan_of, spec_of, verdict_at
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.system.parallel import side_by_side

SHARE = 20  # times as long as a check took, its result holds for the other submissions of this process,
LONGEST = 60.0  # but no longer than that: so many at once do not read the same records again and again
SETTLED = 120.0  # seconds after a job's end, for its hosts to go
UNREADABLE = (Corrupt, NewerWire)


class Spending(NamedTuple):
    """The cost of one job so far.

    Attributes:
        job_id: The job.
        at: When it was submitted.
        pipeline: What it is counted by; "" if its spec cannot be read.
        run: The orchestrator's run that it is part of; else the job itself.
        charged: It is charged for, or stands for what would be; jobs on this machine are not.
        usd: What counts for a budget; None if that is not known.
        live: It may cost more.
        settles: It does not, as far as its records can say.
        estimate: The whole of it; None if it cannot be read.
        damage: Why it cannot be read.
    """

    job_id: str
    at: float
    pipeline: str = ""
    run: str = ""
    charged: bool = True
    usd: float | None = None
    live: bool = False
    settles: bool = False
    estimate: Estimate | None = None
    damage: str = ""


def of_job(
    store: Store, job_id: str, settings: Settings, roll: Iterable[str], *, pipeline: str = ""
) -> Spending | None:
    """Return what a job has cost; None if it is not there, or not of the `pipeline`, if one is named.

    roll: the jobs that may not have ended.
    """
    record = store.read(names.spec(job_id))
    if record is None:
        return None
    try:
        spec = spec_of(record.data, job_id)
        plan, origin = plan_of(spec, job_id), spec.get("origin", {})
        of = pipeline_of(origin, plan.name)
        if pipeline not in ("", of):
            return None
        charged = not plan.traits.share_files
        stays = usage.stays(store, job_id, kept=plan.keep is not None)
        estimate = usage.estimate_of(plan, stays, settings.prices, settings.listed, charged=charged)
        live, settles = _goes_on(store, job_id, plan, is_listed=job_id in roll)
        if plan.keep is not None and not _is_spent(store, job_id, stays):
            live, settles = True, False
    except UNREADABLE as error:
        is_listed = job_id in roll
        return Spending(job_id, record.updated, live=is_listed, settles=not is_listed, damage=str(error))
    usd = estimate.usd if charged and usage.have_cost(stays) else 0.0
    return Spending(job_id, record.updated, of, origin.get("run") or job_id, charged, usd, live, settles, estimate)


def _goes_on(store: Store, job_id: str, plan: Plan, *, is_listed: bool) -> tuple[bool, bool]:
    """Return whether a job may cost more, by its records, and whether that is certain enough to be put down. A job
    without a follower stays on the roll after its end, until somebody lists it.
    """
    times = attempts.times(store, job_id)
    if any(it.refused and it.freed is None and it.left is None for it in times.values()):
        return True, False
    if not is_listed:
        return False, True
    last = max(times, default=0)
    record = store.read(names.verdict(job_id, last)) if last else None
    if record is None or not _is_final(store, job_id, last, record, plan):
        return True, False
    return False, store.now() - record.updated > SETTLED


def _is_spent(store: Store, job_id: str, stays: Sequence[usage.Stay]) -> bool:
    """Return True if no slice waits on the job's account, nor may its hosts still offer theirs."""
    last = attempts.times(store, job_id).get(stays[-1].attempt) if stays else None
    if any(stay.is_offered for stay in stays):
        return False
    return last is None or last.ended is None or store.now() - last.ended > SETTLED


def _is_final(store: Store, job_id: str, attempt: int, record: Record, plan: Plan) -> bool:
    """Tell whether no other attempt follows a verdict, by the sums in the attempt's intent."""
    verdict = verdict_at(record.data, names.verdict(job_id, attempt))
    if verdict.kind == wire.COMMITTED:
        return True
    budget, _ = lifecycle.rule_of(lifecycle.classify(verdict))
    if budget is None:
        return True
    intent = store.read(names.intent(job_id, attempt)) if budget != lifecycle.FREE else None
    try:
        before = None if intent is None else intent_of(intent, job_id, attempt).before
    except Corrupt:
        before = None
    if before is None:  # it is not known how many came before
        return False
    return bool(getattr(lifecycle.spend(before.spent, budget), budget) > getattr(plan.retry, budget))


def of_all(
    store: Store, settings: Settings, since: float, before: float = math.inf, *, pipeline: str = ""
) -> list[Spending]:
    """Return what each job cost that was submitted `since` then and `before` then, or those of one pipeline alone."""
    found = [job_id for job_id, at in live_index.submitted(store).items() if since <= at < before]
    roll, found = _roll(store), [job_id for job_id in found if ledger.is_id(job_id)]
    read = side_by_side(lambda job: of_job(store, job, settings, roll, pipeline=pipeline), found, store.parallel)
    of_it = (each for each in read if each is not None and pipeline in ("", each.pipeline))  # not the damaged ones
    return sorted(of_it, key=lambda each: each.at)


def _roll(store: Store) -> frozenset[str]:
    return frozenset(entry.name.removeprefix(names.LIVE) for entry in store.list(names.LIVE))


# ---- what a month's budget has left ------------------------------------------------------------------------------


def standing(store: Store, account: Account, settings: Settings) -> Spent:
    """Return what the jobs of a pipeline and a month have cost up to now. Reads the ledger and the records of jobs that
    it does not have yet, and puts those that have ended into it. Without a ledger, the month's jobs are counted.
    """
    opened = ledger.opened(store, account)  # before the ledger: a job that is settled in between is in both
    kept = _kept(store, account)
    if kept is None:
        _count(store, account, settings)
        opened, kept = ledger.opened(store, account), _kept(store, account)
    known = kept.ledger if kept is not None else Ledger()
    unknown = [job_id for job_id in opened if job_id not in known.ended]
    roll = _roll(store) if unknown else frozenset[str]()
    read = side_by_side(lambda job: of_job(store, job, settings, roll), unknown, store.parallel)
    found = dict(zip(unknown, read, strict=True))
    of_month = {job: it for job, it in found.items() if it is not None and budgets.month_of(it.at) == account.month}
    ended = {job: Entry(it.usd, it.at) for job, it in of_month.items() if it.settles}
    gone = [job for job, it in found.items() if it is None and store.now() - opened[job] > NEVER_SUBMITTED]
    for job, it in found.items():
        if it is not None and job not in of_month:  # submitted just after the month's end
            ledger.open_job(store, account._replace(month=budgets.month_of(it.at)), job)
            gone.append(job)
    settled = known.with_ended(ended, opened)
    if not ended or ledger.write(store, account, kept, settled):  # else another process settles them now
        ledger.close_jobs(store, account, [*ended, *(job for job in opened if job in known.ended), *gone])
    live = [it.usd for it in of_month.values() if not it.settles]
    spent, unpriced = settled.spent, sum(usd is None for usd in live)
    return Spent(spent.usd + sum(usd or 0.0 for usd in live), spent.jobs + len(live), spent.unpriced + unpriced)


def _kept(store: Store, account: Account) -> Kept | None:
    """Return the ledger; None if there is none. A damaged one is put aside and told of: then there is none."""
    try:
        return ledger.read(store, account)
    except Corrupt as error:
        record = store.read(account.name)
        told = "" if record is None else f". {set_aside(store, account.name, record.data)}"
        warn(
            f"{error}{told}. What {account.month} has cost is counted anew, from the records of its jobs that are left"
        )
        store.delete(account.name)
        return None


def _count(store: Store, account: Account, settings: Settings) -> None:
    """Make the ledger of a month from the records of its jobs."""
    of = "" if account.pipeline == budgets.TOTAL else account.pipeline
    month = budgets.began(account.month), budgets.ended(account.month)
    correct(store, account, of_all(store, settings, *month, pipeline=of))


def correct(store: Store, account: Account, jobs: Iterable[Spending]) -> None:
    """Correct the ledger of a month by what the records of its jobs say; make it if it is not there. Jobs without
    records keep what the ledger has of them. `jobs`: those of the pipeline that were submitted in the month.
    """
    opened = ledger.opened(store, account)
    kept = _kept(store, account)
    known = kept.ledger if kept is not None else Ledger()
    ended = {}
    for it in jobs:
        if not it.charged:
            continue
        if it.job_id in opened or (it.job_id not in known.ended and it.at <= known.before.until):
            continue  # it is counted when it is settled, or was when the oldest were summed up
        if not it.settles:
            ledger.open_job(store, account, it.job_id)
        else:
            ended[it.job_id] = Entry(it.usd, it.at)
    corrected = known.with_ended(ended, opened)
    if kept is None or corrected != known:
        ledger.write(store, account, kept, corrected)  # if another process is faster, it has just done the same


# ---- at a submission ---------------------------------------------------------------------------------------------

_checked: dict[tuple[str, Account], tuple[float, Spent]] = {}
os.register_at_fork(after_in_child=_checked.clear)


def admit(store: Store, plan: Plan, pipeline: str, settings: Settings, job_id: str) -> None:
    """Let a job begin that is charged for, by the budgets in the settings: it is marked as one that costs from now on.

    Raises BudgetExceeded, before anything of the job is sent.
    """
    month = budgets.month_of(store.now())
    worst, no_price = _worst(plan, settings)
    accounts = []
    for budget in budgets.applying(settings.budgets, pipeline):
        account = Account(month, budget.pipeline)
        accounts.append(account)
        said = budgets.judge(budget, _lately(store, account, settings), month, worst, no_price)
        if said.refusal:
            raise BudgetExceeded(said.refusal)
        if said.warning:
            warn(said.warning)
    for account in accounts:
        ledger.open_job(store, account, job_id)


def _lately(store: Store, account: Account, settings: Settings) -> Spent:
    """Return what was spent, as it was found a moment ago if finding it takes long."""
    key = store.url, account
    until, spent = _checked.get(key, (0.0, Spent()))
    began = time.monotonic()
    if began >= until:
        spent = standing(store, account, settings)
        took = time.monotonic() - began
        _checked[key] = began + took + min(SHARE * took, LONGEST), spent
    return spent


def _worst(plan: Plan, settings: Settings) -> tuple[float | None, str]:
    """Return the most that a job may cost by its limits, in its dearest way, or None; and why it has no price."""
    most: list[float | None] = []
    for number in range(max(1, len(plan.choices))):
        of = plan.at(number)
        found = dearest(of.purchase, of.zones, settings.prices, settings.listed)
        if isinstance(found, Unknown):
            return None, str(found)
        seconds = float(of.limits.total or of.limits.run or 0.0)
        usd = found.usd_per_chip_hour * of.purchase.chips * seconds / 3600 if seconds else None
        most.append(min(filter(None, (usd, of.limits.cost)), default=None))
    return (None if None in most else max(usd for usd in most if usd is not None)), ""


def settled(store: Store, pipeline: str, settings: Settings) -> list[tuple[Budget, str, float | None]]:
    """Return the budgets that bind a job of the pipeline, the month, and what jobs that have ended have used of each by
    its ledger, which is one read; None if there is none. Raises StoreError, and Corrupt for a damaged one."""
    month, found = budgets.month_of(store.now()), []
    for budget in budgets.applying(settings.budgets, pipeline):
        kept = ledger.read(store, Account(month, budget.pipeline))
        found.append((budget, month, None if kept is None else kept.ledger.spent.usd))
    return found


def foreseen(plan: Plan, settings: Settings) -> list[tuple[Budget, str, float | None]]:
    """Return the budgets that a job of the plan would have to keep if it were launched by itself, the month, and what
    is known to be used of each; "" and None if its store cannot be read here, or is not that of the settings."""
    pipeline = pipeline_of({}, plan.name)
    if settings.budgets and settings.store == plan.store:
        with suppress(KineticError):
            return settled(open_store(plan.store, plan.deployment), pipeline, settings)
    return [(budget, "", None) for budget in budgets.applying(settings.budgets, pipeline)]


def worst(plan: Plan, settings: Settings) -> float | None:
    """Return the most that a job of the plan may cost by its limits; None if they, or its price, do not say."""
    return _worst(plan, settings)[0]


def forget_before(store: Store, time: float, *, dry_run: bool = False) -> int:
    """Remove the records of budgets of months that ended before then. Returns how many they are."""
    old = [entry.name for entry in store.list(names.BUDGETS) if entry.name.split("/")[1] < budgets.month_of(time)]
    if not dry_run:
        side_by_side(store.delete, old, store.parallel)
    return len(old)
