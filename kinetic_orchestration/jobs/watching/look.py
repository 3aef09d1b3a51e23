"""Looks at one attempt of a job: by its records and its backend, or by what a poll of all jobs has found."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic_orchestration.jobs.watching.cache import Memory
from kinetic_orchestration.jobs.watching.decode import (
    interned,
    interned_observation,
    observation_without_placement,
    read_beat,
)
from kinetic_orchestration.jobs.watching.poll import NOT_YET, Scene
from kinetic_orchestration.plan.records import cancel_of, verdict_at
from kinetic_orchestration.plan.values import PRESENT, UNKNOWN, Glimpse, Intent, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire import Beat

ASK_ANYWAY = 300.0  # for what the scene tells of, in case it did not


def look(
    store: Store,
    backend: Backend,
    job_id: str,
    attempt: int,
    hosts: int,
    *,
    memory: Memory | None = None,
    scene: Scene | None = None,
    once_more: bool = True,
) -> Glimpse:
    """One glimpse, in an order that makes a slow one no lie: the time first, so that no age is too great; beats
    before the backend, so that hosts which gave a sign and are absent are gone and not just made; the verdict last,
    for hosts that have just gone may have left one. If it came meanwhile, all before it is looked at once more.
    """
    if store.remote:
        return _look_from_afar(store, backend, job_id, attempt, hosts, memory or Memory(), scene)
    now = store.now()
    promised = store.read(names.intent(job_id, attempt))
    intent = None if promised is None else (memory or Memory()).intent_in(promised, backend, job_id, attempt)
    beats, ages, devices = [], [], memory is None or memory.reads
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
            return look(store, backend, job_id, attempt, hosts, memory=memory, once_more=False)
        done = sum(store.read(names.host(job_id, attempt, host, "done.json")) is not None for host in range(hosts))
    return _glimpse(job_id, attempt, now, intent, verdict, cancel, observation, beats, ages, done)


def _look_from_afar(
    store: Store, backend: Backend, job_id: str, attempt: int, hosts: int, memory: Memory, scene: Scene | None
) -> Glimpse:
    """In the same order as `look`, and with no more requests than there is news."""
    intent = memory.recall(store, backend, job_id, attempt)
    if (
        scene is None
        or scene.taken <= memory.not_before
        or (intent is not None and scene.placements.get(job_id, {}) != intent.placement)  # another attempt's, or none
        or (job_id in scene.unlooked and not memory.woken)
    ):
        placements = {job_id: intent.placement} if intent is not None and intent.placement else {}
        paced, memory.urgent = memory.woken and not memory.urgent, False
        read = None if memory.reads else ()
        scene = Scene.take(store, backend, names.beats_of(job_id), placements, read, paced=paced)
        memory.not_before = store.now()  # a scene that was begun before this answer came may show less than it
    found = None if intent is None else scene.observation(job_id)  # else it is of the attempt before
    now, observation, memory.overlooked = scene.taken, found or observation_without_placement(intent), found is NOT_YET
    if observation.state == PRESENT:
        memory.present, memory.shown = memory.present or now, now
    if observation.charged and not memory.charged:
        memory.charged = min(now, max(observation.charged, memory.without))
    elif not memory.charged and observation.state != UNKNOWN:
        memory.without = now
    told = {heard.name: heard for heard in scene.heard.get(job_id, ())}
    beat_of = len(names.beats_of(job_id))
    promised = range(hosts if intent is not None else 0)
    signals = [told.get(names.beat(job_id, attempt, host)[beat_of:]) for host in promised]
    beats: tuple[Beat | None, ...] = interned(
        tuple(signal.said if signal is not None and isinstance(signal.said, Beat) else None for signal in signals)
    )
    newest = max((signal.updated for signal in signals if signal is not None), default=0.0)
    until = min(now, newest + memory.silence_at(newest, now))
    ages = [0.0 if signal is None else until - signal.updated for signal in signals]
    hint = scene.signature(job_id)
    if memory.verdict is None and (hint != memory.hint or now - memory.asked > ASK_ANYWAY or now < memory.asked):
        if memory.cancel is None:
            memory.cancel = store.read(names.cancel(job_id))
        memory.verdict = store.read(names.verdict(job_id, attempt))
        memory.hint, memory.asked = hint, now
        if memory.verdict is not None and memory.verdict.updated > now:  # the scene is older than what ended it
            return _look_from_afar(store, backend, job_id, attempt, hosts, memory, None)
    done = sum(beat is not None and beat.state == wire.DONE for beat in beats)
    seen = _glimpse(job_id, attempt, now, intent, memory.verdict, memory.cancel, observation, beats, ages, done)
    return seen._replace(since=memory.present, shown=memory.shown, charged=memory.charged)


def _glimpse(
    job_id: str, attempt: int, now: float, intent: Intent | None, verdict: Record | None, cancel: Record | None,
    observation: Observation, beats: Sequence[Beat | None], ages: Sequence[float], done: int,
) -> Glimpse:  # fmt: skip
    """What the records say, by the time at which the look began."""
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
