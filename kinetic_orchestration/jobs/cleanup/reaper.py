"""Finds and removes what no job needs: placements without a job that wants them, and old records.

Live placements within their deadline are never removed. Run by `kinetic-orchestration reap`, and sometimes at a submit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.capacity import prices
from kinetic_orchestration.capacity import records as capacity
from kinetic_orchestration.capacity.races import has_lost
from kinetic_orchestration.errors import BackendError, Corrupt, KineticError, NewerWire, StoreError, Unreachable
from kinetic_orchestration.host.prepare import environment
from kinetic_orchestration.jobs import lifecycle, trust
from kinetic_orchestration.jobs.cleanup import leased, raced, recorded
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.held_time import record_held
from kinetic_orchestration.jobs.job import ME, open_job
from kinetic_orchestration.jobs.watching import attempts, live_index, spending
from kinetic_orchestration.plan.configuration.settings import Settings, duration
from kinetic_orchestration.plan.hardware.prices import Price, price
from kinetic_orchestration.plan.identity import job_of
from kinetic_orchestration.plan.messages import command, warn_once
from kinetic_orchestration.plan.records import IDENTITY, SPEC, plan_of, spec_of, texts
from kinetic_orchestration.plan.records import REAPED as REAPED_RECORD
from kinetic_orchestration.plan.values import (
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    QUEUED,
    UNKNOWN,
    WOUNDED,
    Observation,
    Plan,
)
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.registry import others
from kinetic_orchestration.platforms.store import Store, staging_parents
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.protocol.content.verified import Verified
from kinetic_orchestration.protocol.records.base import Entry
from kinetic_orchestration.protocol.system.parallel import side_by_side

EVERY = 600.0
CLAIMED = 60.0  # the process of a pass that began longer ago and has not ended was killed
LONGEST_WAIT = 1.0  # of a submit, for the pass that it happens to make
BUDGETS_KEPT = 400 * 86400.0  # seconds after which a month's budgets are forgotten
FAILED_FACTOR = 3.0  # failed jobs are kept three times as long as others
BLOB_MARGIN = 7 * 86400.0
SETTLED = 60.0  # a verdict this old leaves its hosts no reason to live
UNCLAIMED = 300.0
EXPIRED = 300.0  # seconds after its deadline, at which a slice should have deleted itself
ENDED = 3600.0  # seconds after its end, no follower of an attempt needs its beats or its secrets
AGAIN = 1.0  # seconds between two checks of a deletion

REMOVED, DELETING, LEFT, UNREAD, WAITS = "removed", "deleting", "left", "not looked at", "waits"
PLACEMENT, PLACE = "placement", "place"  # hosts of an attempt; a zone or a namespace, of one that is UNREAD


class Reaped(NamedTuple):
    what: str
    name: str
    why: str
    zone: str = ""
    age: float | None = None
    usd_per_hour: float | None = None  # what it costs while it stays, where that is known
    result: str = REMOVED  # or, in a dry run, what would be tried


def reap(
    store: Store, backend: Backend, settings: Settings, *, dry_run: bool = False, patience: float = 0.0
) -> list[Reaped]:
    """Remove all that may go and return what was found; with `dry_run`, only name it. `patience`: seconds to wait until
    a deletion is seen. If no setting names a backend, hosts are looked for on all on which jobs may have been put.
    """
    believed = trust.of(settings)

    def on(one: Backend) -> Iterator[Reaped]:
        return _placements(store, one, dry_run, settings, patience, believed)

    found = [
        *_everywhere(backend, settings, on),
        *_secrets(store, backend, dry_run),
        *_beats(store, dry_run),
        *_facts(store, dry_run),
        *_leases(store, settings, dry_run),
        *_records(store, settings, dry_run),
        *_budgets(store, settings, dry_run),
        *_swept(store, dry_run),
        *_caches(settings, dry_run),
    ]
    if not dry_run:
        _left_by_the_killed(store, settings.home)
    return found


# ---- now and then -------------------------------------------------------------------------------------------------

_at_it: set[str] = set()  # stores that a thread of this process is at
os.register_at_fork(after_in_child=_at_it.clear)


def reap_now_and_then(store: Store, backend: Backend, settings: Settings) -> None:
    """Reap at most once in ten minutes for all processes that submit to a store; the age of a record decides, so a
    crash costs nothing. Never raises, and delays a submit for a moment at most: the rest is done in the background.
    """
    marker = settings.home / f".reaped-{hashlib.sha256(store.address.encode()).hexdigest()[:16]}"
    try:
        if time.time() - marker.stat().st_mtime < EVERY:
            return
    except OSError:
        pass
    if store.url in _at_it:
        return
    _at_it.add(store.url)
    thread = threading.Thread(target=_pass, args=(store, backend, settings, marker), name="kinetic-reap", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # too many threads, or the interpreter's end: the next submit makes it
        _at_it.discard(store.url)
        return
    if not store.metered:
        thread.join(LONGEST_WAIT)


def _pass(store: Store, backend: Backend, settings: Settings, marker: Path) -> None:
    try:
        claimed = _claim(store) if backend.shared else True
        if claimed:
            believed = trust.of(settings)

            def on(one: Backend) -> Iterator[Reaped]:
                return _placements(store, one, dry_run=False, believed=believed)

            for reaped in _everywhere(backend, settings, on, now_and_then=True):
                if reaped.result == UNREAD:
                    what = reaped.name if reaped.what == PLACE else f"{reaped.what} {reaped.name}"
                    warn_once(f"{what} could not be looked at for leftovers: {reaped.why}")
            if store.metered:
                list(_beats(store, dry_run=False))
                with contextlib.suppress(StoreError):  # without the right to list uploads, `reap` says so
                    store.sweep()
            if backend.shared:
                store.put(names.REAPED, wire.encode({"writer": ME, "ended": True}))
        if claimed is not None:
            marker.touch()
    except Exception as error:
        try:
            warn_once(f"leftovers could not be looked for ({error}): {command('reap')} does it now")
        except Warning:
            pass  # warnings may be errors, and nothing catches one in this thread
    finally:
        _at_it.discard(store.url)


def _claim(store: Store) -> bool | None:
    """Claim the next pass. Returns False if another process has just made one, None if one is making it."""
    record = store.read(names.REAPED)
    mine = wire.encode({"writer": ME, "ended": False})
    if record is None:
        return True if store.create(names.REAPED, mine) is not None else None
    ended = False  # as of one that is damaged, or of a newer version
    with contextlib.suppress(wire.Newer, ValueError, KeyError, TypeError):
        ended = bool(wire.fields_of(record.data, REAPED_RECORD, names.REAPED)["ended"])
    if store.now() - record.updated < (EVERY if ended else CLAIMED):
        return False if ended else None
    return True if store.swap(names.REAPED, mine, record.generation) is not None else None


# ---- placements ---------------------------------------------------------------------------------------------------


def _placements(
    store: Store,
    backend: Backend,
    dry_run: bool,
    settings: Settings | None = None,
    patience: float = 0.0,
    believed: trust.Trust = trust.ALONE,
) -> Iterator[Reaped]:
    placements, unseen = _found(store, backend, believed)
    yield from unseen
    going, kept = list[tuple[dict[str, Any], Reaped]](), list[tuple[dict[str, Any], Observation]]()
    late: list[dict[str, Any]] = []  # their hosts were charged for after their attempt's verdict
    for found, seen in zip(placements, backend.observe(placements) if placements else (), strict=True):
        placement, name, zone = found, _name_of(found), found.get("zone", "")
        try:
            placement, why, cause = _judged(store, backend, believed, found, seen)
            waits = _waits(store, placement, seen) if settings is not None and not why else ""  # else it is unused
            if not why and not waits:
                kept.append((placement, seen))
                continue
            usd = _usd_per_hour(store, backend, placement, seen, settings) if settings is not None else None
            if waits:
                yield Reaped(PLACEMENT, name, waits, zone, placement["age"], usd, WAITS)
                continue
            unread = _close(store, backend, placement, believed, cause, why, seen) if cause and not dry_run else ""
        except Unreachable:
            raise
        except StoreError as error:  # one that cannot be read keeps none of the others
            unread, cause = str(error), ""
        if unread and cause != wire.DEADLINE:  # it costs money, so it is released even if its records cannot be written
            yield Reaped(PLACEMENT, name, unread, zone, placement["age"], result=UNREAD)
            continue
        if not cause and backend.charges and seen.costs and leased.serves(placement):
            late.append(placement)
        is_lost = recorded.RECORDED in placement and seen.state == UNKNOWN
        result = LEFT if is_lost else DELETING  # if its release does not end, and no listing has it
        going.append((placement, Reaped(PLACEMENT, name, why, zone, placement["age"], usd, result)))
    yield from _not_looked_at(store, kept if settings is not None else (), {one.zone for one in unseen})
    going = [one for one in going if dry_run or leased.ended(store, one[0], one[1].why)]  # if nobody has just taken it
    left = [] if dry_run else _released(store, backend, [placement for placement, _ in going], patience)
    for placement in [one for one, _ in going if one in late and not dry_run]:
        raced.record_end(store, placement, done=placement not in left)
    states = {_key(entry): entry.get("state") for entry in backend.leftovers()} if left and settings else {}
    for placement, reaped in going:
        if placement not in left:
            yield reaped._replace(result=REMOVED)
        elif state := states.get(_key(placement)):
            yield reaped._replace(result=DELETING if state == "DELETING" else LEFT)
        else:
            yield reaped


def _not_looked_at(
    store: Store, kept: Iterable[tuple[Mapping[str, Any], Observation]], silent: Container[str]
) -> Iterator[Reaped]:
    """Yield of which placements of attempts that are not closed nothing is known, and why: one line for each reason and
    place. `silent`: places that were told of already."""
    unknown = defaultdict[tuple[str, str], list[str]](list)
    for placement, seen in kept:
        if seen.state != UNKNOWN or placement.get("zone") in silent:
            continue
        if store.read(names.verdict(placement["job"], placement["attempt"])) is None:
            unknown[seen.message, placement.get("zone", "")].append(_name_of(placement))
    for (why, zone), those in unknown.items():
        yield Reaped(PLACEMENT, those[0] if len(those) == 1 else f"{len(those)} placements", why, zone, result=UNREAD)


def _everywhere(
    backend: Backend,
    settings: Settings,
    look: Callable[[Backend], Iterable[Reaped]],
    *,
    now_and_then: bool = False,
) -> Iterator[Reaped]:
    """Yield what `look` finds on a backend, and on the others on which jobs of the same settings may run. Of several,
    one that nobody may use here hides nothing of the others: it is told of, unless the look is one of those that a
    submit happens to make.
    """
    there = [backend, *others(backend, settings)]
    if len(there) == 1:
        yield from look(backend)
        return
    for one in there:
        try:
            yield from look(one)
        except BackendError as error:
            if now_and_then and error.cause == wire.CONFIGURATION:  # it may be used by nobody here: `reap` says so
                continue
            used = next(other.kind for other in there if other is not one)
            says = f"{error}. If no job runs on {one.kind}, set KINETIC_BACKEND={used}"
            yield Reaped(PLACE, one.kind, says, one.kind, result=UNREAD)


def _found(store: Store, backend: Backend, believed: trust.Trust) -> tuple[list[dict[str, Any]], list[Reaped]]:
    """Return all placements with their ages, and the zones or places that could not be read."""
    listed = list(backend.leftovers())
    unread = dict.fromkeys((entry["zone"], entry["unread"]) for entry in listed if "unread" in entry)
    found = [entry for entry in listed if "unread" not in entry]
    if backend.charges:
        named = {entry.get("name") for entry in found}  # the labels of a kept slice are of the job it was made for
        others = recorded.placements(store, backend, believed, {entry["job"] for entry in found})
        found += [one for one in others if "lease" not in one or one.get("name") not in named]
    now = store.now()  # as everywhere: this machine's own clock may be off by more than UNCLAIMED
    placements = [{"age": max(0.0, now - entry.get("created", now)), **entry} for entry in found]
    return placements, [Reaped(PLACE, place, why, place, result=UNREAD) for place, why in unread]


def _released(
    store: Store, backend: Backend, placements: Sequence[dict[str, Any]], patience: float
) -> list[dict[str, Any]]:
    """Release the placements; return those of which something is left after `patience`."""
    deadline = time.monotonic() + patience
    left = list(placements)
    while left:
        gone = side_by_side(backend.release, left, backend.parallel)
        left = [placement for placement, is_gone in zip(left, gone, strict=True) if not is_gone]
        if not left or time.monotonic() + AGAIN > deadline:
            break
        time.sleep(AGAIN)
    return left


def _name_of(placement: Mapping[str, Any]) -> str:
    return str(placement.get("name") or f"{placement['job']}-{placement['attempt']}")


def _key(placement: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(placement.get(what) for what in ("zone", "name", "job", "attempt"))


def _saving(verdict: bytes) -> float:
    """Return the seconds that an attempt's programs have to save after its verdict; 0.0 if that cannot be read."""
    try:
        return attempt_rules.grace(wire.Verdict.decode(verdict), lifecycle.NO_HOST)
    except ValueError:
        return 0.0


def _unwanted(store: Store, placement: Mapping[str, Any], seen: Observation) -> tuple[str, str]:  # noqa: PLR0911
    """Return why a placement should go, or '' if it may be wanted, and the cause with which its attempt then ends.

    A placement with a deadline of its own costs money: the store need not know it, and it is kept until the deadline.
    """
    job, attempt, expires = placement["job"], placement["attempt"], placement.get("expires", 0.0)
    if seen.state == ELSEWHERE and not expires:
        return "", ""
    now = store.now()
    if expires and now > expires + EXPIRED:  # before a record is read: other writers of the bucket may damage them
        return f"its deadline passed {(now - expires) / 60:.0f} min ago", wire.DEADLINE
    verdict = store.read(names.verdict(job, attempt))
    if verdict is not None and now - verdict.updated > SETTLED + _saving(verdict.data):
        return "its attempt has its verdict", ""
    if verdict is not None and store.read(names.intent(job, attempt + 1)) is not None:
        return "a later attempt has taken its place", ""
    if verdict is None and has_lost(store, placement):
        return raced.LOST, ""
    if verdict is not None or placement["age"] < UNCLAIMED:
        return "", ""
    if not expires and store.read(names.intent(job, attempt)) is None:
        return "no job in this store knows it" if store.read(names.spec(job)) is not None else "", ""
    if seen.state == GONE:
        state = placement.get("state")
        why = f"{state}, and nobody follows it" if state else "its hosts died and nobody follows them"
        return why, seen.cause or wire.INFRASTRUCTURE
    cancel = store.read(names.cancel(job)) if seen.state == QUEUED else None
    if cancel is not None and now - cancel.updated > UNCLAIMED:
        return "its job was cancelled", wire.CANCELLED
    kept = store.read(names.keeper(job))
    if kept is not None and (untaken := wire.untaken(kept.data, now - kept.updated)):
        return untaken, wire.CANCELLED
    return "", ""


def _judged(
    store: Store, backend: Backend, believed: trust.Trust, placement: dict[str, Any], seen: Observation
) -> leased.Judgement:
    """Return the placement as that of the attempt whose it is by now, and as `_unwanted` why it should go."""
    if recorded.says_nothing(store, placement, seen, EXPIRED):
        return placement, "", ""
    why, cause = _unwanted(store, placement, seen)
    if why == raced.LOST and not raced.is_proven(store, backend, placement, believed):
        return placement, "", ""
    return leased.judged(store, placement, seen, why, cause, _unwanted) if why else (placement, "", "")


def _waits(store: Store, placement: Mapping[str, Any], seen: Observation) -> str:
    """Return why hosts of a wanted placement cannot continue for now, as their backend or their beats report."""
    if seen.waits or seen.state not in (PRESENT, PARTIAL, WOUNDED):
        return seen.waits
    prefix, now = names.beats_in(placement["job"], placement["attempt"]), store.now()
    told = [(beat.name.removeprefix(prefix), beat) for beat in store.signals(prefix)]
    return lifecycle.wants_room(
        (int(host), wire.Beat.read(beat.data), now - beat.updated) for host, beat in told if host.isdecimal()
    )


def _close(
    store: Store, backend: Backend, placement: Mapping[str, Any], believed: trust.Trust, cause: str, why: str,
    seen: Observation,
) -> str:  # fmt: skip
    """Close the job's attempt, so that later followers learn why its hosts are gone and when they may have cost.

    Returns why that could not be written, or ""; then the hosts stay until the next pass.
    """
    reason = seen.message or why
    try:
        job = open_job(placement["job"], store, backend, believed)
        over = raced.ended(job, placement, cause, reason)
        if over is None:
            return ""
        cause, reason = over
        if cause == wire.CANCELLED:  # a later request may start it again, unless it was cancelled for good
            actions.cancel(job, reason, "the reaper", anew=True)
        if store.read(names.intent(job.job_id, placement["attempt"])) is not None:
            if seen.charged and not job.doubt:
                record_held(store, job.job_id, placement["attempt"], seen.charged)
            actions.close(job, placement["attempt"], cause, reason)
    except StoreError as error:
        if not isinstance(error, (NewerWire, Corrupt)):
            return f"its records could not be read or written: {error}"
    except KineticError:
        pass  # removed, damaged or of a newer version: it cannot be followed here, and its hosts have to go
    return ""


def _usd_per_hour(
    store: Store, backend: Backend, placement: Mapping[str, Any], seen: Observation, settings: Settings
) -> float | None:
    """Return a placement's cost per hour, or None if unknown. Chips are charged for while their nodes are READY."""
    if not seen.costs and placement.get("state") != "READY":
        return 0.0
    plan: Plan | None = None
    with contextlib.suppress(KineticError, LookupError, TypeError, ValueError):  # one that is damaged has no price
        record = store.read(names.spec(placement["job"]))
        plan = plan_of(spec_of(record.data, placement["job"]), placement["job"]) if record is not None else None
        if plan is not None and plan.choices:  # a listing does not tell of which candidate it is
            plan = plan.at(raced.choice(store, placement))
    if plan is None:
        return None
    if not backend.charges:
        return 0.0
    listed = prices.in_force(settings, store).listed
    found = price(plan.purchase, placement.get("zone"), settings.prices, listed)
    if not isinstance(found, Price):
        return None
    return found.usd_per_chip_hour * plan.slice.chips * (seen.slices or plan.slices)


def _secrets(store: Store, backend: Backend, dry_run: bool) -> Iterator[Reaped]:
    """Remove the secrets of jobs that are over, and yield what was removed."""
    over: dict[str, bool] = {}
    try:
        kept = list(backend.secrets())
    except BackendError as error:
        if error.cause != wire.CONFIGURATION:  # else there is no access to Secret Manager; secrets expire
            yield Reaped("secrets", "Secret Manager", str(error), result=UNREAD)
        return
    for job, secret in kept:
        if job not in over:
            over[job] = _is_over(store, job)
        if over[job]:
            gone = dry_run or backend.forget(secret, job)
            name = secret.rsplit("/", 1)[-1]
            yield Reaped("secret", name, "its job is over", result=REMOVED if gone else LEFT)


def _is_over(store: Store, job: str) -> bool:
    last = attempts.newest(store, job)
    if not last:
        return store.read(names.spec(job)) is None
    verdict = store.read(names.verdict(job, last))
    return verdict is not None and store.now() - verdict.updated > ENDED


# ---- records ------------------------------------------------------------------------------------------------------


def _beats(store: Store, dry_run: bool) -> Iterator[Reaped]:
    """Remove the beats of attempts that are over, and old rings: watchers of a job list the beats of all jobs."""
    now = store.now()
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in store.list(names.BEATS):
        _, job, *rest = entry.name.split("/")
        groups.setdefault((job, rest[0] if len(rest) > 1 and rest[0].isdecimal() else ""), []).append(entry)
    gone: dict[str, list[str]] = {}
    for (job, attempt), entries in groups.items():
        if now - max(entry.updated for entry in entries) < ENDED:
            continue
        if attempt:
            verdict = store.read(names.verdict(job, int(attempt)))
            over = verdict is not None and now - verdict.updated > ENDED
            if not over and (verdict is not None or store.read(names.spec(job)) is not None):
                continue
        gone.setdefault(job, []).extend(entry.name for entry in entries)
    for job, beats in gone.items():
        if not dry_run:
            _delete(store, beats)
        yield Reaped("beats", job, f"of an attempt that ended more than {duration(ENDED)} ago")


def _facts(store: Store, dry_run: bool) -> Iterator[Reaped]:
    """Remove what attempts learned of places in which nobody has asked for a day."""
    if old := capacity.expired(store):
        if not dry_run:
            _delete(store, old)
        age = duration(capacity.FORGOTTEN)
        yield Reaped("facts", f"{len(old)} about capacity", f"nobody has added to them for {age}")


def _leases(store: Store, settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """End leases of slices that are gone, and remove those that ended long ago."""
    late, old = leased.overdue(store, settings.retention, dry_run=dry_run)
    if late:
        yield Reaped("leases", ", ".join(late), "their slices were not seen to end")
    if old:
        yield Reaped("leases", f"{len(old)} of slices", f"they ended more than {duration(settings.retention)} ago")


def _records(store: Store, settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """Remove jobs past their retention, then blobs that no remaining job names; never outputs and checkpoints.

    One listing tells of all jobs when they ended; few verdicts have to be read.
    """
    now = store.now()
    kept: set[str] = set()
    expired: dict[str, float] = {}
    for job, entries in itertools.groupby(store.list(names.JOBS), key=lambda entry: entry.name.split("/")[1]):
        age = _past_retention(store, entries, now, settings.retention)
        if age is None:
            kept.add(job)
        else:
            expired[job] = age
    for job, age in expired.items():
        records = list(store.list(names.job(job)))
        if _past_retention(store, records, now, settings.retention) is None:  # another attempt was made
            kept.add(job)
            continue
        if not dry_run:
            _forget(store, job, [entry.name for entry in records])
        yield Reaped("job", job, f"its verdict is {age / 86400:.0f} days old")
    yield from _blobs(store, kept, now - settings.retention - BLOB_MARGIN, dry_run)


def _budgets(store: Store, settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """Remove what pipelines spent in months long ago, if there are budgets: otherwise nobody writes it."""
    age = max(BUDGETS_KEPT, settings.retention)
    if settings.budgets and (count := spending.forget_before(store, store.now() - age, dry_run=dry_run)):
        yield Reaped("budgets", f"{count} records", f"of months more than {duration(age)} ago")


def _past_retention(store: Store, entries: Iterable[Entry], now: float, retention: float) -> float | None:
    """Return the age of a job's newest verdict if it may go; None if it is kept, or an attempt has no verdict."""
    promised: set[str] = set()
    verdicts: dict[str, Entry] = {}
    for entry in entries:
        parts = entry.name.split("/")
        if parts[2:4] == ["in", "attempts"]:
            promised.add(parts[4])
        elif parts[2] == "attempts" and parts[-1] == "verdict.json":
            verdicts[parts[3]] = entry
    if not verdicts or promised - set(verdicts):
        return None
    newest = max(verdicts.values(), key=lambda entry: entry.updated)
    age = now - newest.updated
    if age <= retention:
        return None
    if age <= retention * FAILED_FACTOR:
        record = store.read(newest.name)
        with _if_sound():
            if record is not None and wire.Verdict.decode(record.data).kind == wire.COMMITTED:
                return age
        return None
    return age


def _forget(store: Store, job: str, records: Sequence[str]) -> None:
    """Remove a job's records. The spec goes first: without it no process can start or close an attempt. The verdicts go
    last, and the first attempt's after all others: while it exists, the job is not taken for one that never ran,
    wherever this process dies.
    """
    spec = store.read(names.spec(job))
    store.delete(names.spec(job))
    live_index.remove(store, job)
    if spec is not None:
        _pass_on_identity(store, job, spec.data)
    verdicts = [name for name in records if name.startswith(names.verdicts(job)) and name.endswith("/verdict.json")]
    beats = [entry.name for entry in store.list(names.beats_of(job))]
    _delete(store, [*(name for name in records if name not in verdicts and name != names.spec(job)), *beats])
    for name in sorted(verdicts, reverse=True):
        store.delete(name)


def _pass_on_identity(store: Store, job: str, spec: bytes) -> None:
    """Advance the identity to its next generation: other processes remember this job's spec, and its outputs stay."""
    with _if_sound(), contextlib.suppress(StoreError):  # on a full disk room is made all the same
        key = str(wire.fields_of(spec, SPEC)["identity"])
        record = store.read(names.identity(key))
        if record is None:
            return
        fields = wire.fields_of(record.data, IDENTITY)
        if job_of(key, fields["generation"]) == job:
            following = {**fields, "generation": fields["generation"] + 1}
            store.swap(names.identity(key), wire.encode(following), record.generation)


def _delete(store: Store, objects: Sequence[str]) -> None:
    side_by_side(store.delete, objects, store.parallel)


def _swept(store: Store, dry_run: bool) -> Iterator[Reaped]:
    """Remove parts of uploads whose process was killed; no other process can name them."""
    if not dry_run and (parts := store.sweep()):
        yield Reaped("parts", f"{parts} objects" if parts > 1 else "1 object", "left by uploads that were killed")


# Content that stays as long as a remaining job names it, and the word for it.
NAMED = {"trees/": "tree", "blobs/": "blob", "wheels/": "wheel", "tools/": "tool"}


def _blobs(store: Store, kept: set[str], before: float, dry_run: bool) -> Iterator[Reaped]:
    projects = list(store.list("projects/"))
    trees = list(store.list("trees/"))
    old = [
        (prefix, entry)
        for prefix in NAMED
        for entry in (trees if prefix == "trees/" else store.list(prefix))
        if entry.updated < before
    ]
    stale = [entry.name for entry in store.list("compiled/") if entry.updated < before]
    if not dry_run:
        _delete(store, [*(entry.name for entry in projects if entry.updated < before), *stale])
    if stale:
        yield Reaped("cache", f"{len(stale)} objects", "compiled programs older than jobs are kept")
    if not old:
        return
    young = [entry.name for entry in (*trees, *projects) if entry.updated >= before]
    named = _named(store, kept, young, {entry.name for entry in trees})
    unnamed = [(prefix, entry.name) for prefix, entry in old if _digest(prefix, entry.name) not in named]
    if not dry_run:
        _delete(store, [name for _, name in unnamed])
    for prefix, name in unnamed:
        yield Reaped(NAMED[prefix], _digest(prefix, name), "no job names it")


def _named(store: Store, kept: set[str], young: Sequence[str], trees: set[str]) -> set[str]:
    """Return the digests of all content that a remaining job, a tree in use or the newest tree of a project refers to.

    The age of a tree is reset when it is staged again, so content that a submission relies on at this moment is kept.
    """
    threads = store.parallel
    named = {_digest("trees/", name) for name in young if name.startswith("trees/")}
    locks: set[str] = set()
    for record in side_by_side(store.read, [names.spec(job) for job in sorted(kept)], threads):
        if record is not None:
            with _if_sound():
                staged = wire.decode(record.data)["staged"]
                named.update(texts(staged))
                locks |= {str(one.get("lock", "")) for one in (staged["environment"], *staged.get("others", ()))}
    for record in side_by_side(store.read, [name for name in young if name.startswith("projects/")], threads):
        if record is not None:
            with _if_sound():
                named.update(texts(json.loads(record.data)))
    for record in side_by_side(store.read, [names.blob(lock) for lock in sorted(locks) if lock], threads):
        if record is not None:
            named.update(re.findall(r"sha256:([0-9a-f]{64})", record.data.decode("utf-8", "replace")))
    used = sorted(trees.intersection(map(names.tree, named)))
    for record in side_by_side(store.read, used, threads):
        if record is not None:
            with _if_sound():
                named |= {pack.id for pack in tree.packs_of(json.loads(record.data))}
    return named


@contextlib.contextmanager
def _if_sound() -> Iterator[None]:
    """Ignore damaged records: they keep nothing alive. Raises NewerWire for a record of a newer version."""
    try:
        yield
    except wire.Newer as error:
        raise NewerWire(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass


def _digest(prefix: str, name: str) -> str:
    if prefix == "wheels/":
        return name.split("/")[2]
    return name.rsplit("/", 1)[-1].removesuffix(".json")


def _caches(settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """Remove cached environments and data of this machine that no job has used for the retention time."""
    days = settings.retention / 86400.0
    if dry_run:
        return
    Verified(settings.home).prune()
    trust.prune(settings.home, settings.retention * FAILED_FACTOR + BLOB_MARGIN)
    for built in environment.prune(str(settings.home / "environments"), days):
        yield Reaped("environment", Path(built).name, f"no job used it for {days:.0f} days")
    data = settings.home / "cache" / "data"
    for folder in sorted(data.iterdir()) if data.is_dir() else ():
        if _age(folder) > settings.retention:
            shutil.rmtree(folder, ignore_errors=True)
            yield Reaped("data", folder.name, f"no job used it for {days:.0f} days")


def _left_by_the_killed(store: Store, home: Path) -> None:
    """Remove the staging folders of killed submitters, a day later."""
    for parent in staging_parents(store, home):
        if parent.is_dir():
            for folder in parent.iterdir():
                if _age(folder) > 86400.0:
                    shutil.rmtree(folder, ignore_errors=True)


def _age(folder: Path) -> float:
    """Return the seconds since the folder was changed; 0.0 if it has just gone."""
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
