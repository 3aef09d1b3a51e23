"""A sign of life from the process that submitted a job, for those who set `on_owner_lost="abort"`.

Losing an orchestrator does not end a job: it may only be deploying. Whoever wants it otherwise has hosts look at
this beat, which ends with the process that gives it. Nothing else that is slow or fails may hold it back, so the looks
for an end have a thread of their own.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from kinetic_orchestration.errors import JobNotFound
from kinetic_orchestration.jobs.following.drivers import step_all
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.rules import OWNER_BEAT
from kinetic_orchestration.protocol.system.ahead import Several
from kinetic_orchestration.protocol.system.parallel import REQUESTS

_Work = Callable[[Sequence[Follower]], object]

_lock = threading.Lock()
_owned: dict[str, Follower] = {}
_going_on: set[_Work] = set()
_process = 0  # whose threads these are: a fork takes the tables along, and not the threads


def beat(job: Job) -> None:
    """Now, and again every few seconds until the job has ended or this process has."""
    global _process  # noqa: PLW0603 - of this process
    job.store.put(*_sign(job))
    with _lock:
        if _process != os.getpid():
            _owned.clear()
            _going_on.clear()
            _process = os.getpid()
        _owned[job.job_id] = Follower(job)
        for work in (_beat_for_all, _look_for_ends):
            if work not in _going_on:
                threading.Thread(target=_go_on, args=(work,), name="kinetic-owner", daemon=True).start()
                _going_on.add(work)


def _sign(job: Job) -> tuple[str, bytes]:
    return names.owner(job.job_id), wire.encode({"owner": ME})


def _go_on(work: _Work) -> None:
    pause = threading.Event()
    while True:
        pause.wait(OWNER_BEAT)
        with _lock:
            if not _owned:
                _going_on.discard(work)
                return
            owned = list(_owned.values())
        with suppress(Exception):  # whatever it is, hosts would end their jobs if this thread ended
            work(owned)


def _beat_for_all(owned: Sequence[Follower]) -> None:
    """In one short try each, and again in a few seconds: a store that stays away ends the job, as was asked. On threads
    that no process which ends has to wait for.
    """
    Several(lambda follower: follower.job.store.hint(*_sign(follower.job)), owned, most=REQUESTS).result()


def _look_for_ends(owned: Sequence[Follower]) -> None:
    """By one look at all of them. Whoever follows a job hears of what is wrong with it; here it only means that its end
    has not been seen.
    """
    for follower, error in step_all(owned, patience=math.inf):
        if follower.outcome is not None or isinstance(error, JobNotFound):
            with _lock:
                if _owned.get(follower.job.job_id) is follower:
                    del _owned[follower.job.job_id]
