"""Polls all jobs of a store at once: one listing of their signals, and one of each zone's resources."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.jobs.watching.decode import interned_observation, read_beat
from kinetic_orchestration.plan.values import UNKNOWN, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Signal
from kinetic_orchestration.protocol.wire import Beat

NOT_OBSERVED_YET = Observation(UNKNOWN)  # the next poll tells, or the one after it
_RING = names.ring("job").removeprefix(names.beats_of("job"))


class JobSignal(NamedTuple):
    """A signal of a job. The newest poll has one for each host of all jobs, so it is small."""

    name: str  # below its job's: the attempt and the host of a beat, or the ring's
    updated: float
    said: Beat | int  # a beat; of another signal, which writing of it this was


class Poll(NamedTuple):
    """State of a store's jobs at one moment, read with as few requests as possible. Each table is by job.

    Attributes:
        taken: Time at which it began, by the store's clock.
        signals: Signals of the hosts.
        observations: Observations by the backend.
        placements: Placements that were observed, each of one attempt.
        skipped: Jobs whose zone was not polled. Their observations are of an earlier poll.
    """

    taken: float
    signals: dict[str, tuple[JobSignal, ...]]
    observations: dict[str, Observation]
    placements: Mapping[str, Mapping[str, Any]]
    skipped: frozenset[str] = frozenset()

    @classmethod
    def take(
        cls,
        store: Store,
        backend: Backend,
        prefix: str,
        placements: Mapping[str, Mapping[str, Any]],
        read: Container[str] | None = None,
        before: Poll | None = None,
        *,
        paced: bool = False,
    ) -> Poll:
        """Poll the store, and then the backend.

        The time is taken first, so that no age is too great; beats come before the backend, as in `look`. What devices
        do is only kept of the jobs that are `read`, if that is given: it is more than all the rest, and no two hosts'
        are alike.

        `paced`, for those whom a watcher wakes later: a zone that this process may not look at yet is left out. Of its
        jobs stands what was seen in the poll `before`, for their signatures, and nothing follows from it.
        """
        taken = store.now()
        signals: dict[str, tuple[JobSignal, ...]] = {}
        for signal in store.signals(prefix):
            job, _, name = signal.name.removeprefix(names.BEATS).partition("/")
            job = sys.intern(job)
            signals[job] = (*signals.get(job, ()), _read_signal(name, signal, read is None or job in read))
        limits = {job: backend.rate_limit(placement) for job, placement in placements.items()}
        allowed = {limit: limit is None or not paced or limit.take() for limit in dict.fromkeys(limits.values())}
        asked = {job: placement for job, placement in placements.items() if allowed[limits[job]]}
        observed = backend.observe(list(asked.values())) if asked else ()
        known = {} if before is None else before.observations
        found = zip(asked, observed, strict=True)
        observations = {job: interned_observation(seen, known.get(job)) for job, seen in found}
        skipped = frozenset(placements.keys() - asked.keys())
        if before is not None:
            same = (job for job in skipped if job in known and before.placements.get(job) == placements[job])
            observations |= {job: known[job] for job in same}
        return cls(taken, signals, observations, placements, skipped)

    def observation(self, job_id: str) -> Observation | None:
        """Return what was seen of the job's placement; None if it was not asked for."""
        return NOT_OBSERVED_YET if job_id in self.skipped else self.observations.get(job_id)

    def signature(self, job_id: str) -> int:
        """Return a number that changes when there is news for the job's followers; that a host still lives is none. It
        is small, because a thousand followers and their watcher keep one each.
        """
        observation = self.observations.get(job_id)
        told = tuple(
            (name, said.state, said.segment, said.verdict, said.exit, said.full, said.told)
            if isinstance(said, Beat)
            else (name, said)
            for name, _, said in self.signals.get(job_id, ())
            if isinstance(said, Beat) or name == _RING
        )
        return hash((observation and observation[:3], told))


def _read_signal(name: str, signal: Signal, devices: bool) -> JobSignal:
    if not name.rpartition("/")[2].isdecimal():
        return JobSignal(sys.intern(name), signal.updated, signal.generation)
    return JobSignal(sys.intern(name), signal.updated, read_beat(signal.data, devices=devices))
