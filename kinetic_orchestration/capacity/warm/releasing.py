"""Frees slices that may be kept. Whoever deletes one ends its lease first, and nobody deletes what another holds.

Every way by which hosts are freed comes through here, if their job or their placement speaks of a lease: a follower, a
cancel, the reaper, and those who want a slice or the slices of a run gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.capacity.races.records import Believes, winner
from kinetic_orchestration.capacity.races.rules import freed
from kinetic_orchestration.capacity.shares.line import leave_slice
from kinetic_orchestration.capacity.shares.rules import RELEASED
from kinetic_orchestration.capacity.warm import records
from kinetic_orchestration.capacity.warm.shape import shape_of
from kinetic_orchestration.plan.values import Freed, Plan
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.leases import Held
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease

CLEANED = 180.0  # seconds after a verdict in which hosts have cleaned themselves and offer their slice, or delete it
TRIES = 3
_OF_RACE = ("rivals", "won")  # what an attempt's placement has of other places, and none of its own


class Use(NamedTuple):
    """The part that an attempt has in a slice.

    Attributes:
        job: The job.
        attempt: The attempt.
        plan: Its plan; None if that is not known.
        placement: Where it is.
        leaves: True if it ended so that its hosts may offer the slice.
        ended: When, by the store's time; 0.0 if it has not.
        writer: This process.
        lost: True if its hosts are known to be gone.
        believes: Which records of who has won its race count; None for any.
    """

    job: str
    attempt: int
    plan: Plan | None
    placement: Mapping[str, Any]
    leaves: bool
    ended: float
    writer: str
    lost: bool = False
    believes: Believes | None = None

    @property
    def may_be_offered(self) -> bool:
        """True if its hosts may offer the slice, now or later."""
        return self.leaves and self.plan is not None and bool(self.plan.keep)

    def is_cleaning(self, now: float) -> bool:
        """Return True while its hosts may be about to offer the slice."""
        return self.may_be_offered and not self.lost and now - self.ended < CLEANED

    @property
    def name(self) -> str:
        return str(self.placement.get("name") or "")


def free_each(store: Store, backend: Backend, use: Use) -> Freed:
    """Free all places of an attempt, as `free` does each: of a race only that which has won may be kept, and the others
    go. Raises StoreError."""
    places = [{name: value for name, value in use.placement.items() if name not in _OF_RACE}]
    places += use.placement.get("rivals", ())
    if "rival" not in use.placement:
        return free(store, backend, use)
    is_known = use.placement.get("won")
    won = use.placement["rival"] if is_known else winner(store, use.job, use.attempt, use.believes)
    return freed([
        free(store, backend, use._replace(placement=place, leaves=use.leaves and won in (None, place.get("rival"))))
        for place in places
    ])  # fmt: skip


def free(store: Store, backend: Backend, use: Use) -> Freed:
    """Free the slice of an attempt, unless it is kept, or serves another one by now. Returns KEPT for those. Raises
    StoreError.
    """
    leased = use.placement.get("lease") is not None
    is_kept = leased or use.plan is None or bool(use.plan.keep)
    for _ in range(TRIES):
        try:
            held = leases.read(store, use.name) if is_kept else None
        except (wire.Unreadable, wire.Newer):  # whose it is now is not known: the reaper judges it by its deadline
            return Freed.REFUSED
        was_never_offered = held is None and (leased or not use.may_be_offered)  # or its lease is long forgotten
        if was_never_offered or (held is not None and held.lease.state == ENDED):
            return backend.release(use.placement)
        is_anothers = held is not None and not held.lease.is_of(use.job, use.attempt)
        if is_anothers or use.is_cleaning(store.now()):
            return Freed.KEPT
        if _end(store, use, held, _why(use)):
            return backend.release(use.placement)
    return Freed.REFUSED


def _why(use: Use) -> str:
    """Return why the slice of an attempt is not kept, for `kinor slices --all`."""
    if use.lost:
        return "its hosts were gone before they could offer it"
    if use.plan is not None and not use.plan.keep:
        return "its last job leaves none (keep is 0)"
    if not use.leaves:
        return "its last attempt did not end by success, by an error of its own code, or pruned by a search"
    return "its hosts have not offered it in time after its last attempt"


def is_undecided(store: Store, use: Use) -> bool:
    """Return True while neither the hosts of an attempt nor anybody else have decided what becomes of its slice. Raises
    StoreError."""
    try:
        held = leases.read(store, use.name)
    except (wire.Unreadable, wire.Newer):
        return False
    return use.placement.get("lease") is None if held is None else held.lease.is_of(use.job, use.attempt)


def free_found(store: Store, backend: Backend, placement: Mapping[str, Any], *, writer: str) -> Freed:
    """Free what a listing has found of an attempt that has long ended, unless its slice serves another one, or waits
    for one. Raises StoreError."""
    use = Use(str(placement["job"]), int(placement["attempt"]), None, placement, False, 0.0, writer)
    if not use.name or not placement.get("zone"):
        return backend.release(placement)
    for _ in range(TRIES):
        try:
            held = leases.read(store, use.name)
        except (wire.Unreadable, wire.Newer):
            return Freed.REFUSED
        if held is None or held.lease.state == ENDED:
            return backend.release(placement)
        if not held.lease.is_of(use.job, use.attempt):
            return Freed.KEPT
        if _end(store, use, held, "its attempt has long ended"):
            return backend.release(placement)
    return Freed.REFUSED


def refuse_offers(store: Store, use: Use, why: str) -> bool:
    """Give a slice without a lease one that has ended, so that its hosts cannot offer it any more. Returns False if
    they did first."""
    return _end(store, use, None, why)


def _end(store: Store, use: Use, held: Held | None, why: str) -> bool:
    if held is not None:
        return leases.write(store, held.lease.ended(why, writer=use.writer, now=store.now()), held)
    return leases.write(store, _ended_lease(use, why, store.now()), None)


def _ended_lease(use: Use, why: str, now: float) -> Lease:
    """Return the lease of a slice that is never to be offered."""
    placement = {name: value for name, value in use.placement.items() if name in wire.PLACEMENT.checks}
    shape = shape_of(use.plan) if use.plan is not None else ""
    return Lease(
        use.name, 0, ENDED, shape, placement, use.job, use.attempt, use.job, use.attempt, now, use.writer, since=now,
        why=why,
    )  # fmt: skip


# ---- slices by their own names


def release_slice(store: Store, backend: Backend, name: str, why: str, *, writer: str, force: bool = False) -> Freed:
    """Free a kept slice: its lease is ended, and then it is deleted. Raises StoreError.

    Args:
        store: The store.
        backend: The backend that has it.
        name: Its name.
        why: Why, for whoever looks at its lease later.
        writer: This process.
        force: Also one that serves a job now, whose attempt then ends and is made again elsewhere.

    Returns:
        What is left of it; KEPT if it serves a job, REFUSED if its lease cannot be read.
    """
    return _release(store, backend, name, why, writer, lambda lease: force or lease.state != CLAIMED)


def make_way(store: Store, backend: Backend, name: str, why: str, *, writer: str, opened: Container[str]) -> bool:
    """Free a kept slice whose chips another attempt waits for. Returns True once they are free, or it serves a job
    again. Raises StoreError.

    Of a slice that this process cannot see gone, the chips are free as long after its lease has ended as its hosts may
    take to delete it, if nobody says otherwise.

    Args:
        store: The store.
        backend: The backend of the attempt that waits.
        name: The slice.
        why: As of `release_slice`.
        writer: This process.
        opened: The names of the platforms that the backend is of. A slice of another one is deleted by its hosts, which
            see that its lease has ended.
    """
    record = store.read(names.lease(name))
    if record is None:
        return True
    is_old = store.now() - record.updated > RELEASED
    try:
        lease = Lease.decode(record.data, names.lease(name))
    except (wire.Unreadable, wire.Newer):  # its hosts cannot be claimed by it, and end
        return is_old
    if lease.state == CLAIMED:
        return True
    if lease.placement.get("backend") in opened:
        freed = release_slice(store, backend, name, why, writer=writer)
        return bool(freed) or (is_old and lease.state == ENDED)
    if lease.state != ENDED:
        leases.end(store, name, why, writer=writer, now=store.now(), may=lambda one: one.state != CLAIMED)
        return False
    return is_old


def _release(store: Store, backend: Backend, name: str, why: str, writer: str, may: Callable[[Lease], bool]) -> Freed:
    try:
        has_ended = leases.end(store, name, why, writer=writer, now=store.now(), may=may)
        held = leases.read(store, name)
    except (wire.Unreadable, wire.Newer):
        return Freed.REFUSED
    if held is None:
        return Freed.DONE
    if not has_ended:
        return Freed.KEPT if not may(held.lease) else Freed.REFUSED
    placement = held.lease.placement
    if placement.get("name") != name or not backend.names_place(placement):
        return Freed.REFUSED  # a record alone leads nowhere that our settings do not name
    found = backend.release(placement)
    if found is Freed.DONE:  # where chips are shared, it had those of its last attempt
        leave_slice(store, (held.lease.job, held.lease.attempt))
    return found


def release_run(
    store: Store,
    backend: Backend,
    orchestrator: str,
    run: str,
    *,
    writer: str,
    dag: str = "",
    jobs: Collection[str] = (),
) -> int:
    """Free the slices that the steps of a run have left, or are about to: the run has ended. Raises StoreError.

    Args:
        store: The store.
        backend: The backend that has them.
        orchestrator: The orchestrator, as the jobs' origin names it.
        run: The run.
        writer: This process.
        dag: The DAG of Airflow that the run is of.
        jobs: Jobs of the run, as far as they are known, whose hosts may still be at cleaning for the first time.

    Returns:
        How many there were.
    """
    why, count, seen = f"its run {run} has ended", 0, set[str]()
    for held in records.slices(store):
        lease = held.lease
        seen.add(lease.slice)
        of_run = lease.run == (orchestrator, dag, run)
        if lease.state == ENDED or not (of_run or lease.job in jobs):
            continue
        if lease.state != FREE and store.read(names.verdict(lease.job, lease.attempt)) is None:
            continue

        def same(now: Lease, before: Lease = lease) -> bool:
            return (now.job, now.attempt) == (before.job, before.attempt)

        count += _release(store, backend, lease.slice, why, writer, same) is not Freed.KEPT
    for job in jobs:
        count += _refuse_first_offer(store, backend, job, seen, why, writer)
    return count


def _refuse_first_offer(store: Store, backend: Backend, job: str, known: Container[str], why: str, writer: str) -> bool:
    """Free the slice that the hosts of a job's last attempt are cleaning, if it has no lease yet; of a race that nobody
    is known to have won, those of all places. By a forged record of who has won another place of the same attempt
    goes, which is over, and the slice that has won ends with its lease."""
    numbers = [int(part) for entry in store.list(names.intents(job)) if (part := entry.name.split("/")[4]).isdecimal()]
    attempt = max(numbers, default=0)
    if not attempt:
        return False
    promised, ended = store.read_all([names.intent(job, attempt), names.verdict(job, attempt)])
    if promised is None or ended is None:
        return False
    try:
        placement = wire.fields_of(promised.data, wire.INTENT)["placement"]
    except (wire.Unreadable, wire.Newer):
        return False
    places = [{name: value for name, value in placement.items() if name not in _OF_RACE}, *placement.get("rivals", ())]
    won = winner(store, job, attempt) if len(places) > 1 else None
    is_freed = False
    for place in [one for one in places if one.get("rival") == won] or places:
        use = Use(job, attempt, None, place, True, ended.updated, writer)
        if use.name and use.name not in known and "lease" not in place and backend.names_place(place):
            is_freed |= refuse_offers(store, use, why) and backend.release(place) is not Freed.REFUSED
    return is_freed
