"""A sign of life from the process that submitted a job, for those who set `on_owner_lost="abort"`.

Losing an orchestrator does not end a job: it may only be deploying. Whoever wants it otherwise has hosts look at
this beat, which ends with the process that gives it.
"""

from __future__ import annotations

import os
import threading

from kinetic_orchestration.act import ME, Job
from kinetic_orchestration.agent import names, wire
from kinetic_orchestration.agent.rules import OWNER_BEAT
from kinetic_orchestration.errors import JobNotFound, KineticError
from kinetic_orchestration.follow import Follower

_lock = threading.Lock()
_owned: dict[str, Follower] = {}
_process = 0  # whose thread beats: a fork takes the table along, and not the thread


def beat(job: Job) -> None:
    """Now, and again every few seconds until the job has ended or this process has."""
    global _process
    _beat(job)
    with _lock:
        if _process != os.getpid():
            _owned.clear()
        first, _process = not _owned, os.getpid()
        _owned[job.job_id] = Follower(job)
    if first:
        threading.Thread(target=_beat_on, name="kinetic-owner", daemon=True).start()


def _beat(job: Job) -> None:
    job.store.put(names.owner(job.job_id), wire.encode({"owner": ME}))


def _beat_on() -> None:
    pause = threading.Event()
    while True:
        pause.wait(OWNER_BEAT)
        with _lock:
            owned = dict(_owned)
        for job_id, follower in owned.items():
            try:
                _beat(follower.job)
                ended = follower.step() is not None
            except JobNotFound:
                ended = True
            except KineticError:  # tried again in a few seconds; a store that stays away ends the job, as was asked
                continue
            if ended:
                with _lock:
                    del _owned[job_id]
        with _lock:
            if not _owned:
                return
