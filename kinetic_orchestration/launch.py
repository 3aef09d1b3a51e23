"""The way of a job, from the call to the released slice, in two functions.

    declare ─▶ plan ─▶ package ─▶ stage ─▶ provision ─▶ run ─▶ stream ─▶ collect ─▶ teardown
    JobSpec    Plan    Bundle     Staged   Placement    agent  lines     Outcome    Released

`launch` brings a job on its way and returns; `complete` sees it to its end. Between the two, and at any line of
either, the process may die: whoever asks for the same identity again goes on from the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, replace
from typing import Any

from kinetic_orchestration import act, owner, settings
from kinetic_orchestration.act import Job
from kinetic_orchestration.agent import names, wire
from kinetic_orchestration.backends import Backend, open_backend
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.follow import Emit, Follower, follow
from kinetic_orchestration.identity import Identity, job_id, of
from kinetic_orchestration.packaging.bundle import package
from kinetic_orchestration.plan import make_plan
from kinetic_orchestration.reaper import reap_now_and_then
from kinetic_orchestration.results import collect
from kinetic_orchestration.settings import Settings
from kinetic_orchestration.spec import JobSpec, check_options
from kinetic_orchestration.staging import stage, staging_folder
from kinetic_orchestration.stores import Store, open_store
from kinetic_orchestration.values import JobStatus, Plan, Staged
from kinetic_orchestration.watch import decoded

CANCEL_SECONDS = 60.0
QUICK_BYTES = 4 << 20  # so much source is unpacked before a thread for it would have started

# Set while a file is imported only to be looked at: a call at its top level must not become a job.
only_looking: ContextVar[bool] = ContextVar("only_looking", default=False)


def launch(spec: JobSpec, identity: Identity | None = None) -> Job:
    """Everything up to a running attempt. The job then needs nobody."""
    _refuse_if_only_looking(spec)
    here = settings_for(spec)
    plan = make_plan(spec, here, os.environ)
    store, backend = open_store(plan.store, plan.deployment), open_backend(plan.backend, here)
    backend.check(plan)
    plan = replace(plan, emulated=backend.emulates(plan.slice))
    identity = identity or identity_of(spec)
    job = claim(store, backend, identity)
    if store.read(names.spec(job)) is None:
        with staging_folder(store, here.home) as folder:
            bundle = package(spec, plan, here, folder, os.environ)
            staged = stage(bundle, store)
        admit(store, job, identity, plan, staged)
    reap_now_and_then(store, backend, here)
    launched = provision(act.open_job(job, store, backend))
    if plan.abort_without_owner:
        owner.beat(launched)
    return launched


def identity_of(spec: JobSpec) -> Identity:
    """Who the job of a call outside any orchestrator is."""
    return of(settings_for(spec).deployment, spec.options.key)


@contextmanager
def cancel_if_interrupted(spec: JobSpec, identity: Identity) -> Iterator[None]:
    """Ctrl-C while a job is being brought on its way: what of it is on the way already is called back."""
    try:
        yield
    except KeyboardInterrupt:
        if (job := find(spec, identity)) is not None:
            act.cancel(job, "interrupted by Ctrl-C", act.ME)
            follow(Follower(job), timeout=CANCEL_SECONDS)
        raise


def complete(job: Job, emit: Emit | None = None) -> Any:
    """Everything from there on: its value, or its exception, when all its hosts are gone."""
    outcome = follow(Follower(job), emit)
    assert outcome is not None
    return collect(job, outcome)


def _refuse_if_only_looking(spec: JobSpec) -> None:
    if only_looking.get():
        raise UsageError(
            f"importing the file calls {spec.name}, which would run it as a job: put that call in a function, or "
            'below `if __name__ == "__main__":`'
        )


def settings_for(spec: JobSpec) -> Settings:
    options = check_options(spec.options)
    return settings.load(
        store=options.store, deployment=options.deployment, project=options.project, zone=options.zone,
        cluster=options.cluster, namespace=options.namespace,
    )  # fmt: skip


def find(spec: JobSpec, identity: Identity) -> Job | None:
    """The job that this identity means now, if one was admitted. Nothing is started."""
    here = settings_for(spec)
    plan = make_plan(spec, here, os.environ)
    store = open_store(plan.store, plan.deployment)
    name = names.identity(identity.key)
    record = store.read(name)
    if record is None:
        return None
    job = job_id(identity, decoded(record.data, name)["generation"])
    if store.read(names.spec(job)) is None:
        return None
    return act.open_job(job, store, open_backend(plan.backend, here))


def claim(store: Store, backend: Backend, identity: Identity) -> str:
    """The job that this identity means now: the live or finished one, or the next generation of a failed one."""
    name = names.identity(identity.key)
    while True:
        record = store.read(name)
        if record is None:
            store.create(name, wire.encode({"generation": 1, "identity": astuple(identity)}))
            continue
        fields = decoded(record.data, name)
        job = job_id(identity, fields["generation"])
        if not failed(store, backend, job):
            return job
        following = {**fields, "generation": fields["generation"] + 1}
        store.swap(name, wire.encode(following), record.generation)


def failed(store: Store, backend: Backend, job: str) -> bool:
    """Whether the job ended, and neither well nor because somebody wanted it to end."""
    if store.read(names.spec(job)) is None:
        # New, or being forgotten: then it has a verdict and, also after that was read, no spec.
        return store.read(names.verdict(job, 1)) is not None and store.read(names.spec(job)) is None
    outcome = Follower(act.open_job(job, store, backend)).step()
    return outcome is not None and outcome.status is JobStatus.FAILED


def admit(store: Store, job: str, identity: Identity, plan: Plan, staged: Staged) -> None:
    """The spec, last of all that is staged: the job exists from here on. The first one wins."""
    fields = {
        "job": job,
        "name": plan.name,
        "identity": identity.key,
        "plan": plan.to_json(),
        "staged": staged.to_json(),
        "task": render_task(plan, staged, store, job, identity),
    }
    store.create(names.spec(job), wire.encode(fields))


def render_task(plan: Plan, staged: Staged, store: Store, job: str, identity: Identity) -> dict[str, Any]:
    """What the hosts are told. Pure: the same plan and staged blobs give the same task."""
    return {
        "name": plan.name,
        "argv": list(plan.argv),
        "payload": staged.payload,
        "tree": staged.tree,
        "cwd": staged.cwd,
        "path": list(staged.path),
        "extra_path": list(staged.extra_path),
        "data": list(staged.data),
        "packages": list(staged.packages),
        "volumes": {mount: index for index, mount in enumerate(plan.volumes, len(staged.data) - len(plan.volumes))},
        "environment": staged.environment,
        "python": staged.python,
        "env": plan.env,
        "devices": plan.slice.devices_per_host,
        "emulated": plan.emulated,
        "distributed": plan.distributed,
        "output_dir": plan.output_dir or f"{store.url}/{names.output_dir(job)}",
        "checkpoint_dir": f"{store.url}/{names.checkpoint_dir(identity.key)}",
        "partition_key": plan.partition_key,
        "provision": float(plan.limits.provision or 600.0),
        # The total is the followers' to watch; a host that nobody follows at least ends itself after so long.
        "run": min((float(limit) for limit in (plan.limits.run, plan.limits.total) if limit), default=0.0),
        "stall": float(plan.limits.stall or 0.0),
        "debug": plan.debug_port,
        "owned": plan.abort_without_owner,
        "compile_cache": plan.compile_cache,
        "quick": not staged.environment and not staged.data and staged.size < QUICK_BYTES,
    }


def provision(job: Job) -> Job:
    """The first attempt's intent and its create call. A job that runs or ended already is left as it is."""
    Follower(job).step()
    return job
