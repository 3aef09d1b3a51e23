"""A job whose host is started by hand, as a machine without this package would start it: `python agent.zip …`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.launch import admit, claim
from kinetic_orchestration.jobs.request import settings_of
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.packaging.bundle import package
from kinetic_orchestration.packaging.staging import stage, staging_folder
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.registry import open_store


def intended(
    function: Callable[..., Any] | None = None, argv: Sequence[str] = (), cwd: str = "", orchestrator: str = "",
    **options: Any,
) -> Job:  # fmt: skip
    """A job in the store, with the intent of its first attempt, and nothing that runs yet. Of one host, as it is."""
    spec = JobSpec("by-hand", Options(**{"accelerator": "cpu", **options}), function, argv=tuple(argv), cwd=cwd)
    here = settings_of(spec)
    plan = make_plan(spec, here, os.environ)
    store = open_store(plan.store, plan.deployment)
    backend = LocalBackend(here.home, here.max_hosts, here.store, here.deployment)
    identity = replace(of(plan.deployment, None), orchestrator=orchestrator or "random")
    job_id, _ = claim(store, backend, identity)
    with staging_folder(store, here.home) as folder:
        staged = stage(package(spec, plan, here, folder, os.environ), store, here.retention, here.home)
        admit(store, job_id, identity, plan, staged)
    job = open_job(job_id, store, backend)
    actions.intend(job, 1)
    return job


def words_of(job: Job, host: int = 0) -> tuple[str, ...]:
    """The command-line words for the launcher of one host of the job."""
    assert isinstance(job.backend, LocalBackend)
    intent = look(job.store, job.backend, job.job_id, 1, job.policy).intent
    assert intent is not None
    Path(intent.placement["run"]).mkdir(parents=True, exist_ok=True)
    return tuple(job.backend.assignment(job.plan(), job.job_id, job.spec_digest, intent, host).words())


def start_host(job: Job, python: str, agent: Path, host: int = 0, words: Sequence[str] = ()) -> None:
    """The launcher of one host of the job; it returns when the host has its lock."""
    words = words or words_of(job, host)
    done = subprocess.run(
        [python, "-I", "-S", str(agent), *words], input=b"{}", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
