"""Looks at one attempt of a job: by its records and its backend, or by what a poll of all jobs has found."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic_orchestration.jobs.lifecycle import Policy
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.decode import (
    interned,
    interned_observation,
    observation_without_placement,
    read_beat,
)
from kinetic_orchestration.jobs.watching.poll import NOT_OBSERVED_YET, Poll
from kinetic_orchestration.plan.records import cancel_of, verdict_at
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    Glimpse,
    Intent,
    Observation,
)
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire import Beat

REREAD_SECONDS = 300.0  # seconds after which the verdict is read although no poll hints at one


def look(
    store: Store,
    backend: Backend,
    job_id: str,
    attempt: int,
    policy: Policy,
    *,
    cache: AttemptCache | None = None,
    poll: Poll | None = None,
    once_more: bool = True,
) -> Glimpse:
    """Return a glimpse, read in an order that stays true if it is slow: the time first, so that no age is too great;
    beats before the backend, so that hosts that reported and are absent are gone and not just created; the verdict
    last, as hosts that have just gone may have left one. If a verdict arrived in between, everything before it is read
    again.
    """
    if store.metered:
        return _look_with_few_requests(store, backend, job_id, attempt, policy, cache or AttemptCache(), poll)
    now = store.now()
    promised = store.read(names.intent(job_id, attempt))
    cache = cache or AttemptCache()
    intent = None if promised is None else cache.cached_intent(promised, backend, job_id, attempt)
    if intent is not None and intent.races:
        intent = cache.decide(store, job_id)
    beats, ages, devices = [], [], cache.wants_devices
    hosts = policy.of(intent).hosts
    for host in range(hosts if intent is not None else 0):
        record = store.read(names.beat(job_id, attempt, host))
        beats.append(None if record is None else read_beat(record.data, devices=devices))
        ages.append(0.0 if record is None else now - record.updated)
    if intent is not None and intent.placement:
        observation = interned_observation(backend.observe([intent.placement])[0])
    else:
        observation = observation_without_placement(intent)
    cancel = store.read(names.cancel(job_id))
    verdict = store.read(names.verdict(job_id, attempt))
    done = 0
    if verdict is not None:
        if verdict.updated > now and once_more:
            return look(store, backend, job_id, attempt, policy, cache=cache, once_more=False)
        done = sum(store.read(names.host(job_id, attempt, host, "done.json")) is not None for host in range(hosts))
    return _glimpse(job_id, attempt, now, intent, verdict, cancel, observation, beats, ages, done)


def _look_with_few_requests(
    store: Store, backend: Backend, job_id: str, attempt: int, policy: Policy, cache: AttemptCache, poll: Poll | None
) -> Glimpse:
    """Look in the same order as `look`, with no more requests than there is news."""
    intent = cache.intent_of_attempt(store, backend, job_id, attempt)
    if (
        poll is None
        or poll.taken <= cache.stale_before
        or (intent is not None and poll.placements.get(job_id, {}) != intent.placement)  # another attempt's, or none
        or (job_id in poll.skipped and not cache.subscribed)
    ):
        placements = {job_id: intent.placement} if intent is not None and intent.placement else {}
        paced, cache.observe_now = cache.subscribed and not cache.observe_now, False
        read = None if cache.wants_devices else ()
        poll = Poll.take(store, backend, names.beats_of(job_id), placements, read, paced=paced)
        cache.stale_before = store.now()  # a poll that was begun before this answer came may show less than it
    found = None if intent is None else poll.observation(job_id)  # else it is of the attempt before
    now, observation = poll.taken, found or observation_without_placement(intent)
    if intent is not None and intent.races and _may_have_won(poll, job_id, attempt, observation):
        decided = cache.decide(store, job_id)
        if decided is not None and not decided.races:
            return _look_with_few_requests(store, backend, job_id, attempt, policy, cache, None)
    if intent is not None and intent.races and observation.state != UNKNOWN:
        cache.see_places(observation.there, now, costs=observation.charged > 0.0)
    cache.zone_skipped = found is NOT_OBSERVED_YET
    cache.see_hosts(observation, now)
    told = {signal.name: signal for signal in poll.signals.get(job_id, ())}
    beat_of = len(names.beats_of(job_id))
    promised = range(policy.of(intent).hosts if intent is not None else 0)
    signals = [told.get(names.beat(job_id, attempt, host)[beat_of:]) for host in promised]
    beats: tuple[Beat | None, ...] = interned(
        tuple(signal.said if signal is not None and isinstance(signal.said, Beat) else None for signal in signals)
    )
    newest = max((signal.updated for signal in signals if signal is not None), default=0.0)
    until = min(now, newest + cache.observed_silence(newest, now))
    ages = [0.0 if signal is None else until - signal.updated for signal in signals]
    signature, since = poll.signature(job_id), now - cache.read_at
    if cache.verdict is None and (signature != cache.signature or not 0 <= since <= REREAD_SECONDS):
        if cache.cancel is None:
            cache.cancel = store.read(names.cancel(job_id))
        cache.verdict = store.read(names.verdict(job_id, attempt))
        cache.signature, cache.read_at = signature, now
        if cache.verdict is not None and cache.verdict.updated > now:  # the poll is older than what ended it
            return _look_with_few_requests(store, backend, job_id, attempt, policy, cache, None)
    done = sum(beat is not None and beat.state == wire.DONE for beat in beats)
    seen = _glimpse(job_id, attempt, now, intent, cache.verdict, cache.cancel, observation, beats, ages, done)
    places = tuple(cache.places.items())
    return seen._replace(
        since=cache.present_since, shown=cache.present_last, charged=cache.charged_since, places=places
    )


def _may_have_won(poll: Poll, job_id: str, attempt: int, observation: Observation) -> bool:
    """Return True if a place of a race may have had hosts, and so have won."""
    own = names.beats_in(job_id, attempt).removeprefix(names.beats_of(job_id))
    spoke = any(signal.name.startswith(own) for signal in poll.signals.get(job_id, ()))
    return spoke or observation.state not in (QUEUED, PROVISIONING, UNKNOWN)


def of_its_claim(store: Store, job_id: str, seen: Glimpse, cache: AttemptCache | None) -> Glimpse:
    """Return what was seen of an attempt whose place is a kept slice: before it has claimed that, nothing is there that
    is its own, and nothing of what was there before counts for it. Raises StoreError."""
    from kinetic_orchestration.capacity.warm.records import is_claimed

    intent = seen.intent
    assert intent is not None
    attempt, lease = intent.attempt, intent.placement["lease"]
    cache = cache or AttemptCache()
    cache.claimed = cache.claimed or any(seen.beats) or is_claimed(store, lease["slice"], job_id, attempt)
    if not cache.claimed:
        cache.present_since = cache.present_last = cache.charged_since = 0.0
        message = f"the warm slice {lease['slice']} is to be taken"
        return seen._replace(observation=Observation(ABSENT, message), since=0.0, shown=0.0, charged=0.0)
    if seen.observation.state == ABSENT:
        gone = Observation(GONE, f"the warm slice {lease['slice']} is gone", seen.observation.cause)
        seen = seen._replace(observation=gone)
    return seen._replace(charged=max(seen.charged, intent.created) if seen.charged else 0.0)


def _glimpse(
    job_id: str, attempt: int, now: float, intent: Intent | None, verdict: Record | None, cancel: Record | None,
    observation: Observation, beats: Sequence[Beat | None], ages: Sequence[float], done: int,
) -> Glimpse:  # fmt: skip
    """Return the content of the records, as of the time at which the look began."""
    return Glimpse(
        now=now,
        intent=intent,
        verdict=None if verdict is None else verdict_at(verdict.data, names.verdict(job_id, attempt)),
        verdict_age=0.0 if verdict is None else now - verdict.updated,
        cancel=None if cancel is None else cancel_of(cancel, now, names.cancel(job_id)),
        observation=observation,
        beats=tuple(beats),
        beat_ages=tuple(ages),
        done=done,
    )
