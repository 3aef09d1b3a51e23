"""Lists slices that are kept, and releases them before their time: by name, or all that an orchestrator's run has left.

The backend of each is opened by its lease's placement; `capacity.warm.releasing` knows how a slice is freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kinetic_orchestration.capacity import prices
from kinetic_orchestration.capacity.races import known as with_winner
from kinetic_orchestration.capacity.warm import records, releasing
from kinetic_orchestration.errors import Corrupt, KineticError, NewerWire, StoreError
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.jobs.watching import attempts, usage
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.records import intent_of, plan_of, spec_of
from kinetic_orchestration.plan.values import ABSENT, GONE, UNKNOWN, WOUNDED, Freed, Observation, Outcome, traits_of
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.system.parallel import side_by_side
from kinetic_orchestration.protocol.wire.lease import ENDED, FREE, Lease

PATIENCE = 15.0  # seconds for which a step or a call waits until its slice is offered to the next one

Run = tuple[str, ...]  # the values of `OF_RUN`


class Kept(NamedTuple):
    """A kept slice as it is shown: its lease, its hardware, for how long it was idle and what that cost, and what is
    seen of its hosts, if they were looked at."""

    lease: Lease
    hardware: str
    idle: float
    usd: float | None
    uncharged: bool
    seen: Observation | None = None

    @property
    def is_gone(self) -> bool:
        """True if its lease has not ended, and its hosts are not there any more."""
        return self.seen is not None and self.seen.state in (ABSENT, GONE)

    @property
    def said(self) -> str:
        """Return the words that its row needs beside its state."""
        if self.is_gone:
            return "its hosts are gone" + ("; `kinor release` ends its lease" if self.lease.state == FREE else "")
        if self.seen is not None and self.seen.state == WOUNDED:
            return f"it cannot serve any more ({self.seen.message})"
        return self.lease.why

    @property
    def whose(self) -> str:
        run = self.lease.origin.get("run", "")
        return f"{self.lease.job} of run {run}" if run else self.lease.job

    def to_json(self) -> dict[str, Any]:
        """Return the slice as `kinor slices --json` prints it."""
        lease = self.lease
        return {
            "slice": lease.slice, "hardware": self.hardware, "zone": lease.placement.get("zone"),
            "backend": lease.placement.get("backend"), "state": lease.state, "since": lease.since, "until": lease.until,
            "job": lease.job, "attempt": lease.attempt, "origin": dict(lease.origin), "served": lease.epoch + 1,
            "idle_seconds": self.idle, "usd": 0.0 if self.uncharged else self.usd,
            "would_have_cost_usd": self.usd if self.uncharged else None, "why": self.said or None,
            "last": lease.last or None, "gone": self.is_gone if self.seen is not None else None,
        }  # fmt: skip


def listed(store: Store, settings: Settings, now: float, *, ended: bool = False) -> list[Kept]:
    """Return the slices that are kept, as far as their leases can be read; with `ended` also those that are over."""
    settings = prices.in_force(settings, store)
    found = [held.lease for held in records.slices(store) if ended or held.lease.state != ENDED]
    there = seen(settings, found)
    told = side_by_side(lambda lease: _kept(store, settings, lease, now), found, store.parallel)
    return [each._replace(seen=there.get(each.lease.slice)) for each in told]


def _kept(store: Store, settings: Settings, lease: Lease, now: float) -> Kept:
    """Return a kept slice, with its hardware and price by the job that it was made for, if that is not forgotten."""
    idle = usage.idle_seconds(lease, now)
    try:
        record = store.read(names.spec(lease.made_for))
        plan = None if record is None else plan_of(spec_of(record.data, lease.made_for), lease.made_for)
    except (Corrupt, NewerWire):
        plan = None
    if plan is None:
        return Kept(lease, "unknown", idle, None, False)
    zone, choice = str(lease.placement.get("zone", "")), int(lease.placement.get("choice", 0))
    stay = usage.Stay(lease.made_at, zone, 0.0, idle, 0.0, choice=choice)
    told = usage.estimate_of(plan, [stay], settings.prices, settings.listed)
    named = plan.at(choice).named if choice < len(plan.choices) else plan.named
    return Kept(lease, f"{named}{', spot' if told.spot else ''}", idle, told.usd, told.uncharged)


def release(store: Store, settings: Settings, lease: Lease, why: str) -> Freed:
    """Free a kept slice; KEPT if a job has it now. Raises StoreError, BackendError."""
    named = _named([lease.placement])
    if not named:
        return Freed.REFUSED
    return releasing.release_slice(store, open_backend(named.pop(), settings), lease.slice, why, writer=ME)


def seen(settings: Settings, found: Sequence[Lease]) -> dict[str, Observation]:
    """Return what is seen of slices whose leases have not ended, by name: their hosts may be gone, and no lease says
    so. One that cannot be looked at is left out."""
    named = _named(lease.placement for lease in found if lease.state != ENDED)
    if not named:
        return {}
    with suppress(KineticError):
        backend = open_backend("+".join(sorted(named)), settings)
        wanted = [one for one in found if one.state != ENDED and backend.names_place(one.placement)]
        each = backend.observe([one.placement for one in wanted]) if wanted else []
        return {one.slice: it for one, it in zip(wanted, each, strict=True) if it.state != UNKNOWN}
    return {}


def wait_until_offered(job: Job, outcome: Outcome, patience: float = PATIENCE) -> bool:
    """Wait until the hosts of a job that has ended are clean and offer their slice, so that the next step finds it.
    Returns True if they do; False if its plan keeps none, it ended so that they do not, or they do not soon.
    """
    if not (outcome.verdict.leaves_slice(outcome.cause) and job.plan().keep):
        return False
    with suppress(StoreError, Corrupt, NewerWire, wire.Unreadable, wire.Newer):  # it is worth no step
        name = next((str(placement.get("name", "")) for placement in _placements(job.store, [job.job_id])), "")
        until = time.monotonic() + patience if name and _ended_within(job, outcome.attempt, patience) else 0.0
        while time.monotonic() < until:
            held = leases.read(job.store, name)
            if held is not None and not held.lease.is_of(job.job_id, outcome.attempt):
                return held.lease.state == FREE
            time.sleep(0.1)
    return False


def _ended_within(job: Job, attempt: int, seconds: float) -> bool:
    """Return True if an attempt has ended just now: what hosts of an older one did with their slice is done."""
    verdict = job.store.read(names.verdict(job.job_id, attempt))
    return verdict is not None and job.store.now() - verdict.updated < seconds


def release_run(store: Store, settings: Settings, run: Run, jobs: Collection[str] = ()) -> int:
    """Free the slices that a run has left, which is over. Returns how many there were. Raises StoreError, BackendError.

    Args:
        store: The store.
        settings: The settings, of which backends are opened.
        run: The run.
        jobs: Jobs of it, as far as they are known: the hosts of the last ones may still be cleaning themselves.
    """
    of_run = [held.lease for held in records.slices(store) if held.lease.run == run]
    named = {*_named(lease.placement for lease in of_run), *_named(_placements(store, jobs))}
    if not named:
        return 0
    orchestrator, dag, name = run
    backend = open_backend("+".join(sorted(named)), settings)
    return releasing.release_run(store, backend, orchestrator, name, dag=dag, jobs=jobs, writer=ME)


def release_runs(store: Store, settings: Settings, is_over: Callable[[Run], bool]) -> int:
    """Free the slices that any runs have left which are over. Returns how many there were."""
    left = {held.lease.run for held in records.slices(store) if held.lease.state != ENDED}
    return sum(release_run(store, settings, run) for run in sorted(left) if run[-1] and is_over(run))


def _placements(store: Store, jobs: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the newest placement of each job; one whose records are damaged is left out."""
    for job in jobs:
        with suppress(Corrupt, NewerWire):
            number = attempts.newest(store, job)
            record = store.read(names.intent(job, number)) if number else None
            if record is not None:
                yield with_winner(store, job, intent_of(record, job, number)).placement


def _named(placements: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the backends that they name and that can keep slices; a record of the store may name any."""
    named = {str(placement.get("backend", "")) for placement in placements}
    return {name for name in named if (traits := traits_of(name)) is not None and traits.may_be_kept}
