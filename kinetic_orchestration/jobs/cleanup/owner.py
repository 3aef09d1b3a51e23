"""Beats of the process that submitted a job, for jobs with `on_owner_lost="abort"`.

Losing an orchestrator does not end a job: it may only be deploying. With this option hosts watch the beat, which ends
with the process that writes it. No other slow or failing work may delay it, so the polls for a job's end have a thread
of their own.
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
from kinetic_orchestration.protocol.attempt_rules import OWNER_BEAT
from kinetic_orchestration.protocol.system.parallel import REQUESTS, Several

_Work = Callable[[Sequence[Follower]], object]

_lock = threading.Lock()
_owned: dict[str, Follower] = {}
_going_on: set[_Work] = set()
_process = 0  # the process of these threads: a fork copies the tables, and not the threads


def beat(job: Job) -> None:
    """Write the owner's beat now, and again every few seconds until the job or this process has ended."""
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
        with suppress(Exception):  # of any kind: hosts would end their jobs if this thread ended
            work(owned)


def _beat_for_all(owned: Sequence[Follower]) -> None:
    """Write the beats of all owned jobs, in one short try each; the next follow in a few seconds. A store that stays
    unreachable ends the job, as requested. Runs on threads that an exiting process does not wait for.
    """
    Several(lambda follower: follower.job.store.hint(*_sign(follower.job)), owned, most=REQUESTS).result()


def _look_for_ends(owned: Sequence[Follower]) -> None:
    """Look at all owned jobs in one poll, and drop those that have ended. Errors are reported to a job's followers;
    here they only mean that no end was seen.
    """
    for follower, error in step_all(owned, patience=math.inf):
        if follower.outcome is not None or isinstance(error, JobNotFound):
            with _lock:
                if _owned.get(follower.job.job_id) is follower:
                    del _owned[follower.job.job_id]
