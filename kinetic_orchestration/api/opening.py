"""Opens the store and the backend that settings or an address name, and a job there; and says of a job what it runs on.

`handle` and the adapters share this. What a job can be asked and told is `handle`'s.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from kinetic_orchestration.api import links
from kinetic_orchestration.capacity.facts import way_of
from kinetic_orchestration.errors import ConflictingSettings, JobNotFound, KineticError, UsageError
from kinetic_orchestration.jobs import trust
from kinetic_orchestration.jobs.following.snapshot import snapshot
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.request import Request, differences
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.emulation import remark
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names

_IN_STORE = re.compile(r"(?P<store>.+)/(?P<deployment>[^/]+)/(?:jobs|outputs)/(?P<job>job-[0-9a-z]+)(?:[/.].*)?")


def place_of(**arguments: str | None) -> tuple[Store, Backend, Settings]:
    """Return the store and the backend that the settings name, and the settings."""
    settings = configuration.load(None, **arguments)
    return open_store(settings.store, settings.deployment), open_backend(settings.backend, settings), settings


def open_job_at(job_id: str, spec_digest: str = "", ended: str = "", **place: str | None) -> Job:
    """Open a job of the given or the configured place.

    Args:
        job_id: The job.
        spec_digest: Digest of its spec, if the caller knows it from elsewhere than the store.
        ended: End that the caller has seen, if it has.
        **place: Settings of the place.
    """
    opened, backend, settings = place_of(**place)
    return reopened(job_id, opened, {settings.backend: backend}, settings, spec_digest, ended)


def reopened(
    job_id: str, store: Store, backends: dict[str, Backend], settings: Settings, spec_digest: str = "", ended: str = ""
) -> Job:
    """Open a job with the backend that it runs on. Jobs of one backend share an instance.

    Args:
        job_id: The job.
        store: Its store.
        backends: Open backends by name, to which the job's is added.
        settings: The settings.
        spec_digest: Digest of its spec, if the caller knows it from elsewhere than the store.
        ended: End that the caller has seen, if it has.
    """
    job = open_job(job_id, store, backends[settings.backend], trust.of(settings), spec_digest, ended=ended)
    if job.runs_on not in backends:
        backends[job.runs_on] = open_backend(job.runs_on, settings)
    return job.on(backends[job.runs_on])


def split_address(text: str, **place: str | None) -> tuple[str, dict[str, str | None]]:
    """Split an address in a store into a job id and its place; any other text is returned unchanged.

    Raises:
        ConflictingSettings: Another store or deployment is given.
        JobNotFound: The folder is of another machine, or no store.
        UsageError: The store is not the configured one and cannot be trusted.
    """
    found = _IN_STORE.fullmatch(links.address_of(text)) if isinstance(text, str) else None
    if found is None:
        return text, place
    try:
        store, deployment = store_address.resolve(found["store"]).rstrip("/") or "/", found["deployment"]
    except UsageError as error:
        raise JobNotFound(f"there is no job at {text!r}: {error}") from None
    given_store = place.get("store")
    given = store_address.resolve(given_store or store).rstrip("/") or "/", place.get("deployment") or deployment
    if given != (store, deployment):
        raise ConflictingSettings(
            f"{text!r} is of the deployment {deployment!r} in {store}, and {given[1]!r} in {given[0]} is given: leave "
            "that out, or give the job's id alone"
        )
    place = {**place, "store": store, "deployment": deployment}
    in_force = store == store_address.resolve(given_store or configuration.stated("store")).rstrip("/")
    if store_address.is_folder(store):
        _check_folder(text, store, deployment, in_force=in_force)
    elif not in_force and configuration.load(None, **place).trust_store:
        raise UsageError(
            f"{text!r} is of another store than the one in force, of which KINETIC_TRUST_STORE=true speaks: if it "
            f"may run code as you too, set KINETIC_STORE={store}"
        )
    return found["job"], place


def _check_folder(text: str, store: str, deployment: str, *, in_force: bool) -> None:
    """Refuse a folder that only an address names if it is no store or is not safe to open."""
    folder = Path(store, deployment)
    if not (folder / names.DEPLOYMENT).is_file():
        raise JobNotFound(
            f"there is no store of the deployment {deployment!r} in {store}, which {text!r} is of: it lies on another "
            "machine, or was removed. Give the job's id, with the KINETIC_STORE and KINETIC_DEPLOYMENT of its submitter"
        )
    about = folder.stat()
    if not in_force and (about.st_uid not in (os.getuid(), 0) or about.st_mode & stat.S_IWOTH):
        raise UsageError(
            f"{folder}, which {text!r} is of, belongs to another user, or any user may write to it: they could have "
            f"values unpickled here that run code as you. If you trust them, set KINETIC_STORE={store}"
        )


def runs(job: Job, settings: Settings | None = None) -> str:
    """Return the text of a job's first line: its name, its hardware, and where that is.

    Args:
        settings: Settings that it was launched with; by default those of this process.
    """
    plan = job.plan()
    others = dict.fromkeys(f"{one.named} {way_of(one)}" for one in plan.each()[1:])
    hardware = f"{plan.hardware}, or else {', '.join(others)}" if others else plan.hardware
    return f"{plan.name} on {hardware}{remark(plan, settings or configuration.load(deployment=plan.deployment))}"


def describe_differences(request: Request, job: Job) -> tuple[str, bool]:
    """Describe how a job found by its key differs from this request.

    Args:
        request: The request.
        job: The job that was found.

    Returns:
        The differences, or "" if there are none or the store does not answer; and True if the job has ended.
    """
    try:
        other = differences(request, job)
        ended = bool(other) and snapshot(job).status.final
    except KineticError:
        return "", False
    return other.describe(ended=ended), ended
