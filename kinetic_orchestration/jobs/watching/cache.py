"""A cache of what was read of one attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.capacity.races import known as with_winner
from kinetic_orchestration.jobs.watching.decode import read_intent
from kinetic_orchestration.plan.records import Within
from kinetic_orchestration.plan.values import PRESENT, UNKNOWN, Intent, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.system import watched

if TYPE_CHECKING:
    from kinetic_orchestration.capacity.races.records import Believes


class AttemptCache:
    """Keeps what a follower has read of an attempt, so that it is not read again where each read is a request."""

    __slots__ = (
        "absent_last", "allowed_places", "attempt", "believes", "cancel", "charge_recorded", "charged_since", "claimed",
        "intent", "intent_generation", "looked_at", "newest_beat", "observe_now", "places", "present_last",
        "present_since", "read_at", "signature", "silence", "stale_before", "subscribed", "verdict", "wants_devices",
        "zone_skipped",
    )  # fmt: skip

    def __init__(self, within: Within | None = None, believes: Believes | None = None) -> None:
        """`believes`: which records of who has won a race count; None for any."""
        self.allowed_places, self.believes = within, believes
        self.wants_devices = True  # device samples, which are larger than the rest of a beat
        self.subscribed = False  # to a watcher, which also wakes it once its zone was polled that had to be skipped
        self.observe_now = False  # in spite of the rate limit: the hosts of a new intent are requested after it
        self.attempt = 0
        self.cancel: Record | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all of the attempt. A cancel stays, because it is the job's."""
        self.intent: Intent | None = None
        self.intent_generation = 0  # the generation of the record that it was read from
        self.verdict: Record | None = None
        self.signature: object = None
        self.read_at = 0.0
        self.stale_before = 0.0
        self.zone_skipped = False  # the newest poll skipped its zone, so the next one always has news
        self.present_since = 0.0  # since when its hosts were seen to be there
        self.present_last = 0.0  # when they were last
        self.absent_last = 0.0  # when none of them was, before that
        self.charged_since = 0.0  # before which none can have been charged for; 0: none was seen
        self.places: dict[int, float] = {}  # of a race: since when the hosts of each were seen to be there
        self.claimed = False  # its place is a kept slice, which it has claimed
        self.charge_recorded = False  # and the store has a record of it, as host 0 does not report it
        self.newest_beat = self.looked_at = self.silence = 0.0

    def intent_of_attempt(self, store: Store, backend: Backend, job_id: str, attempt: int) -> Intent | None:
        """Return the attempt's intent, read from the store unless it is known; None if there is none."""
        self._turn_to(attempt)
        if self.intent is None and (promised := store.read(names.intent(job_id, attempt))) is not None:
            return self.cached_intent(promised, backend, job_id, attempt)
        return self.intent

    def cached_intent(self, promised: Record, backend: Backend, job_id: str, attempt: int) -> Intent:
        """Return the intent of a record, decoded unless its generation is known."""
        self._turn_to(attempt)
        if self.intent is None or self.intent_generation != promised.generation:
            intent = read_intent(promised, backend, job_id, attempt, self.allowed_places)
            unknown = intent.damage and not intent.placement  # nothing exists yet, or that is unknown: read again
            if unknown:
                return intent
            self.intent, self.intent_generation = intent, promised.generation
        return self.intent

    def decide(self, store: Store, job_id: str) -> Intent | None:
        """Return the attempt's intent, with the place that has won its race, if one has by now. What was seen before
        was not of that alone."""
        if self.intent is not None and self.intent.races:
            self.intent = with_winner(store, job_id, self.intent, self.believes)
            if not self.intent.races:
                self.forget_hosts()
                self.places = {}
        return self.intent

    def forget_hosts(self) -> None:
        """Forget the hosts that were seen: none of them is the attempt's."""
        self.present_since = self.present_last = self.absent_last = self.charged_since = 0.0

    def see_hosts(self, observed: Observation, now: float) -> None:
        """Remember since when the attempt's hosts are there, and may have been charged for."""
        if observed.state == PRESENT:
            self.present_since, self.present_last = self.present_since or now, now
        if observed.charged and not self.charged_since:
            self.charged_since = min(now, max(observed.charged, self.absent_last))
        elif not self.charged_since and observed.state != UNKNOWN:
            self.absent_last = now

    def see_places(self, there: tuple[int, ...], now: float, *, costs: bool) -> None:
        """Remember since when the hosts of places of an undecided race are there. Those of one that was given up are
        not of the attempt any more: what is there later is another one's."""
        self.places = {number: self.places.get(number, now) for number in there}
        if not there:
            self.present_since = self.present_last = 0.0
            if not costs:
                self.charged_since = 0.0

    def _turn_to(self, attempt: int) -> None:
        if self.attempt != attempt:
            self.reset()
            self.attempt = attempt

    def observed_silence(self, newest: float, now: float) -> float:
        """Return for how many seconds this process has watched and heard nothing newer than `newest`. While a store is
        away, hosts cannot be heard either, and those that are well speak soon after it is back.
        """
        if newest != self.newest_beat:
            self.newest_beat, self.silence = newest, 0.0
        else:
            self.silence += watched.since(self.looked_at, now)
        self.looked_at = max(now, self.looked_at)
        return self.silence

    def invalidate(self, now: float) -> None:
        """Believe no poll that was begun before `now`, because an action has changed what is there."""
        self.signature = None
        self.stale_before = now
