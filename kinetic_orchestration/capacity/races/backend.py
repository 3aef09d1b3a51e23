"""A backend for jobs whose attempts race: each call about an attempt goes to all places of it, or to the one that won.

It calls the backends that have the places, and the records of races. A placement without rivals is passed on.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kinetic_orchestration.capacity.races import records, rules
from kinetic_orchestration.capacity.races.rules import Failed
from kinetic_orchestration.errors import BackendError, StoreError
from kinetic_orchestration.plan.values import ABSENT, GONE, PRESENT, Freed, Intent, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import Backend, KeepsBootLog, KeepsSlices, RateLimit, Submission
from kinetic_orchestration.platforms.several import refusal_of
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names

CREATIONS = 4  # create calls of races that one process makes at a time
A_MOMENT = 1.0  # seconds for which one of them waits for its turn, before it is made later
MOST_REMEMBERED = 4096
ME = secrets.token_hex(8)

_charged: dict[str, float] = {}  # by the name of a place: since when it was seen to be charged for
_given_up: dict[str, None] = {}  # places that are released although their hosts are there

_creations = threading.BoundedSemaphore(CREATIONS)


def _after_fork() -> None:
    """Begin anew in the child of a fork, in which nobody makes the calls that were being made."""
    global _creations  # noqa: PLW0603 - of this process
    _creations = threading.BoundedSemaphore(CREATIONS)


os.register_at_fork(after_in_child=_after_fork)


class Racing:
    """The backend of a job whose attempts race."""

    def __init__(self, backend: Backend, store: Store, believes: records.Believes | None = None) -> None:
        self.inner, self._store, self._believes = backend, store, believes
        self._recorded: set[tuple[str, str]] = set()  # of losers, so that it is not written again
        self.kind = f"races on {backend.kind}"
        self.charges, self.shared, self.parallel = backend.charges, backend.shared, backend.parallel
        self.resolve, self.check, self.require = backend.resolve, backend.check, backend.require
        self.prepare, self.emulates, self.dry_run = backend.prepare, backend.emulates, backend.dry_run
        self.leftovers, self.secrets, self.forget = backend.leftovers, backend.secrets, backend.forget

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        return self.inner.place(plan, job_id, attempt, previous)

    def refusal(self, plan: Plan, past: Past) -> Refusal:
        return refusal_of(self.inner, plan, past)

    def submit(self, asked: Submission) -> str:
        """Ask all places that nothing was asked of yet. Raises BackendError once each of them has failed."""
        if not asked.intent.races:
            return self.inner.submit(asked)
        try:
            return self._submit(asked)
        except StoreError as error:  # what is known of the race is read again
            return f"waiting: {error}"

    def _submit(self, asked: Submission) -> str:
        job_id, attempt, places = asked.job_id, asked.intent.attempt, asked.intent.places
        failed = records.failures(self._store, job_id, attempt, range(len(places)))
        left = [number for number in range(len(places)) if number not in failed]
        seen = dict(zip(left, self.inner.observe([places[number] for number in left]), strict=True)) if left else {}
        says: list[str] = []
        for number in left:
            if seen[number].state == GONE:
                failed[number] = Failed(seen[number].cause, seen[number].message)
            if not rules.is_missing(seen[number]) or (
                seen[number].state == ABSENT and any(one.state == PRESENT for one in seen.values())
            ):
                continue
            if self._winner(job_id, attempt) is not None:
                return ""
            # Read again after what is there: whoever gives a place up records that before it is gone.
            failed |= records.failures(self._store, job_id, attempt, (number,))
            if number in failed:
                continue
            try:
                says.append(self._ask(_at(asked, places[number])))
            except BackendError as error:
                failed[number] = Failed(error.cause, str(error))
                records.fail(self._store, job_id, attempt, number, failed[number], ME)
                continue
            if (won := self._winner(job_id, attempt)) is not None:  # while it was asked
                if won != number:
                    self.inner.release(places[number])
                return ""
            failed |= self._withdrawn(places[number], job_id, attempt)
        if len(failed) == len(places):
            cause, reason = rules.ended(places, failed)
            raise BackendError(reason, cause)
        return "; ".join(dict.fromkeys(filter(None, says)))

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        """Return the orders for a kept slice, which is one place: whoever takes one does not race."""
        assert isinstance(self.inner, KeepsSlices)
        return self.inner.hand_over(asked)

    def note_ends(self, intent: Intent, job_id: str) -> None:
        """Record why places have failed, of an attempt that is about to be closed: the next one goes by each answer."""
        if not intent.races:
            return
        for number, seen in enumerate(self.inner.observe(intent.places)):
            if seen.state == GONE:
                records.fail(self._store, job_id, intent.attempt, number, Failed(seen.cause, seen.message), ME)

    def _ask(self, asked: Submission) -> str:
        """Make one create call, in its turn among those of this process."""
        if not _creations.acquire(timeout=A_MOMENT):
            return f"waiting: {CREATIONS} other requests of races are being made"
        try:
            return self.inner.submit(asked)
        finally:
            _creations.release()

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Observe all places of races that nobody is known to have won, and else the one place, with one call."""
        each = [_looked_at(placement) for placement in placements]
        found = iter(self.inner.observe([place for places in each for place in places]))
        seen = [[next(found) for _ in places] for places in each]
        return [
            self._joined(places, observed) if len(places) > 1 else observed[0]
            for places, observed in zip(each, seen, strict=True)
        ]

    def note_held(self, intent: Intent, job_id: str) -> None:
        """Record since when the hosts of places were seen to be charged for: whichever wins, the others are paid for,
        too."""
        for number, place in enumerate(intent.places):
            since = _charged.get(str(place["name"]), 0.0)
            if since and self._is_new("held", place):
                records.saw_held(self._store, job_id, intent.attempt, number, since)

    def _joined(self, places: Sequence[Mapping[str, Any]], seen: Sequence[Observation]) -> Observation:
        """Join what was seen of the places. One that cannot be there, or is not, may have failed; no other has."""
        job_id, attempt = _attempt_of(places[0])
        for place, one in zip(places, seen, strict=True):
            if one.costs and one.charged:
                _remember(_charged, str(place["name"]), one.charged)
        doubtful = [
            number
            for number, one in enumerate(seen)
            if one.state in (ABSENT, GONE) or rules.is_missing(one) or str(places[number]["name"]) in _given_up
        ]
        return rules.joined(places, seen, records.failures(self._store, job_id, attempt, doubtful))

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        limits = dict.fromkeys(map(self.inner.rate_limit, _looked_at(placement)))
        limits.pop(None, None)
        known = tuple(limit for limit in limits if limit is not None)
        return _together(known) if len(known) > 1 else next(iter(known), None)

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return all(map(self.inner.names_place, _all(placement)))

    def cancel(self, placement: Mapping[str, Any]) -> None:
        for place in _all(placement):
            self.inner.cancel(place)

    def last_words(self, placement: Mapping[str, Any], machines: Sequence[int]) -> str:
        if not isinstance(self.inner, KeepsBootLog):
            return ""
        told = (self.inner.last_words(place, machines) for place in _looked_at(placement))
        return "\n".join(filter(None, told))

    def release(self, placement: Mapping[str, Any]) -> Freed:
        return rules.freed([self.inner.release(place) for place in _all(placement)])

    def release_losers(self, placement: Mapping[str, Any]) -> Freed:
        """Release the places that have not won. May be called again."""
        job_id, attempt = _attempt_of(placement)
        result = []
        losers = list(placement["rivals"]) if placement.get("won") else []
        for place, seen in zip(losers, self.inner.observe(losers) if losers else (), strict=True):
            number = int(place.get("rival", 0))
            if seen.state == GONE:
                self._fail(place, job_id, attempt, Failed(seen.cause, seen.message))
            if seen.costs and seen.charged and self._is_new("held", place):
                records.saw_held(self._store, job_id, attempt, number, seen.charged)
            result.append(self._freed(place, job_id, attempt))
        return rules.freed(result)

    def give_up(self, intent: Intent, job_id: str, ended: Mapping[int, tuple[str, str]]) -> Freed:
        """Release places that cannot win any more, unless one of the attempt has won. May be called again."""
        if self._winner(job_id, intent.attempt) is not None:
            return Freed.DONE
        self.note_held(intent, job_id)
        result, places = list[Freed](), intent.places
        for number, why in ended.items():
            self._fail(places[number], job_id, intent.attempt, Failed(*why))
            _remember(_given_up, str(places[number]["name"]), None)
            result.append(self._freed(places[number], job_id, intent.attempt))
        return rules.freed(result)

    def _withdrawn(self, place: Mapping[str, Any], job_id: str, attempt: int) -> dict[int, Failed]:
        """Release a place that others have given up while it was asked. Returns why it has failed, by its number; {} if
        it has not."""
        out = records.failures(self._store, job_id, attempt, (int(place.get("rival", 0)),))
        if out:
            _remember(_given_up, str(place["name"]), None)
            self._freed(place, job_id, attempt)
        return out

    def _winner(self, job_id: str, attempt: int) -> int | None:
        return records.winner(self._store, job_id, attempt, self._believes)

    def _fail(self, place: Mapping[str, Any], job_id: str, attempt: int, why: Failed) -> None:
        """Record that a place has failed, before anything of it is released: else it would be asked again. Raises
        StoreError."""
        if ("lost", str(place["name"])) not in self._recorded:
            records.fail(self._store, job_id, attempt, int(place.get("rival", 0)), why, ME)
            self._recorded.add(("lost", str(place["name"])))

    def _freed(self, place: Mapping[str, Any], job_id: str, attempt: int) -> Freed:
        """Release a place of an attempt, and record once it is gone."""
        freed = self.inner.release(place)
        if freed is Freed.DONE:
            records.saw_gone(self._store, job_id, attempt, int(place.get("rival", 0)))
        return freed

    def _is_new(self, what: str, place: Mapping[str, Any]) -> bool:
        """Return True the first time that this process has something to record of a place."""
        known = len(self._recorded)
        self._recorded.add((what, str(place["name"])))
        return len(self._recorded) > known


class _Together:
    """The rate limits of several places, of which none is looked at without the others."""

    def __init__(self, limits: tuple[RateLimit, ...]) -> None:
        self._limits = limits

    def wait(self) -> float:
        return max(limit.wait() for limit in self._limits)

    def take(self) -> bool:
        if self.wait() > 0.0:
            return False
        taken = [limit.take() for limit in self._limits]  # each counts
        return all(taken)


@lru_cache(maxsize=256)
def _together(limits: tuple[RateLimit, ...]) -> RateLimit:
    return _Together(limits)


def _remember(known: dict[str, Any], name: str, value: Any) -> None:
    """Remember something of a place, unless it is known, and forget what is known for longest."""
    known.setdefault(name, value)
    while len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]


def _looked_at(placement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the places that an attempt is looked at in."""
    return [placement] if placement.get("won") else _all(placement)


def _all(placement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rivals = placement.get("rivals")
    return [placement, *rivals] if rivals else [placement]


def _attempt_of(placement: Mapping[str, Any]) -> tuple[str, int]:
    """Return the job and the attempt that a placement's name says it is of."""
    name = str(placement["name"])
    return names.job_of_slice(name), names.attempt_of_slice(name)[0]


def _at(asked: Submission, place: Mapping[str, Any]) -> Submission:
    """Return the submission of one place: its candidate's plan, and what its hosts need."""
    choice = int(place.get("choice", 0))
    plan = asked.plan.at(choice) if asked.plan.choices else asked.plan
    return replace(
        asked, plan=plan, staged=asked.staged.at(choice), intent=asked.intent._replace(placement=dict(place))
    )
