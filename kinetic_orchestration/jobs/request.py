"""One call, resolved once: its settings, its plan, and then the store, the backend and the identity of its job.

    draft(spec) ─▶ Draft ─▶ open() ─▶ Request ─▶ launch, find, differences

A draft asks nobody anything, so what it refuses is refused before a store is opened. A request is opened by whoever the
process acts for at that moment, and handed on.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from kinetic_orchestration.errors import JobNotFound, StoreError, UsageError
from kinetic_orchestration.jobs import trust
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.packaging.bundle import other_arguments
from kinetic_orchestration.plan import emulation, identity, planner
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.spec import JobSpec, check_options
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol.system import copies

# Set while a file is imported for a dry run: a call at its top level must not become a job.
only_looking: ContextVar[bool] = ContextVar("only_looking", default=False)


@dataclass(frozen=True, slots=True, repr=False)
class Draft:
    """A call with its settings and its plan.

    The plan lacks what only a contact can tell (`located`) and what only its submission adds (`planner.completed`).
    """

    spec: JobSpec
    settings: Settings
    plan: Plan

    def open(self, of: Identity | None = None) -> Request:
        """Open the store and the backend, as the user for whom this process acts now.

        of: the identity of the job; by default that of a call outside any orchestrator: its key's, or a random one.
        Raises StoreError.
        """
        of = of or identity.of(self.settings.deployment, self.spec.options.key)
        store = open_store(self.plan.store, self.plan.deployment)
        backend = open_backend(self.plan.backend, self.settings)
        return Request(self.spec, self.settings, self.plan, store, backend, trust.of(self.settings), of)


@dataclass(frozen=True, slots=True, repr=False)
class Request(Draft):
    """A call with all that its job needs: which one it is, where its records are, and where it runs."""

    store: Store
    backend: Backend
    trust: Trust
    identity: Identity

    def of(self, identity: Identity) -> Request:
        """Return the request for the job of another identity."""
        return replace(self, identity=identity)

    def another_call(self, spec: JobSpec, identity: Identity) -> Request:
        """Return the request of another call that differs in its function's arguments alone."""
        same = spec.name, spec.options, spec.argv, spec.env
        assert same == (self.spec.name, self.spec.options, self.spec.argv, self.spec.env)
        return replace(self, spec=spec, identity=identity)


D = TypeVar("D", bound=Draft)


def settings_of(spec: JobSpec) -> Settings:
    """Load the settings that a call's options name, and those of this process. Raises UsageError."""
    options = check_options(spec.options)
    return settings.load(
        store=options.store, deployment=options.deployment, project=options.project, zone=options.zone,
        cluster=options.cluster, namespace=options.namespace, require_hardware=True if spec.require_hardware else None,
    )  # fmt: skip


def interpreter_of(spec: JobSpec) -> str:
    """Return the file to which the `python=` of a call leads, through links, if that is a path; "" for a version."""
    asked = spec.options.python or ""
    return os.path.realpath(os.path.expanduser(asked)) if os.sep in asked else ""


def draft(spec: JobSpec, settings: Settings | None = None, *, found: bool = False) -> Draft:
    """Plan a call as far as it goes without a contact.

    settings: others than the call's own, for a dry run. found: its job is there already, and needs nothing here.
    Raises UsageError; unless it is found, also for what would be emulated though hardware is meant.
    """
    if only_looking.get():
        raise UsageError(
            f"importing the file calls {spec.name}, which would run it as a job: put that call in a function, or "
            'below `if __name__ == "__main__":`'
        )
    settings = settings or settings_of(spec)
    plan = planner.make_plan(spec, settings, copies.environ(), interpreter=interpreter_of(spec))
    backend = open_backend(plan.backend, settings)
    plan = backend.resolve(plan)
    if found:
        return Draft(spec, settings, replace(plan, emulated=backend.emulates(plan.slice)))
    backend.check(plan)  # an error about missing hardware comes before one about emulation
    plan = replace(plan, emulated=backend.emulates(plan.slice))
    emulation.check_hardware(plan, settings)
    return Draft(spec, settings, plan)


def located(asked: D) -> D:
    """Return the request with the zones of the store's bucket, unless zones were named. Asks once in a process."""
    plan = asked.plan
    if not (plan.traits.in_zones and plan.zones) or planner.zones_named(asked.spec.options, asked.settings):
        return asked
    from kinetic_orchestration.platforms.google.storage.location import location_of

    return replace(asked, plan=planner.near_bucket(plan, location_of(asked.settings), asked.settings))


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between a job that was found by its identity and a request: where it runs, and the call."""

    place: tuple[str, ...] = ()
    call: tuple[str, ...] = ()

    def describe(self, *, ended: bool) -> str:
        """Return the differences in words. The place of a job that has ended no longer matters."""
        return "; ".join(self.call if ended else (*self.place, *self.call))

    def __bool__(self) -> bool:
        return bool(self.place or self.call)


def differences(request: Request, job: Job) -> Differences:
    """Compare a job that was found by its identity with the request. The job keeps its own settings.

    Nothing differs of a job whose store does not answer: its follower hears of that, with more patience.
    """
    if job.written:  # by this process, just now
        return Differences()
    try:
        has, had = job.plan(), job.spec().get("arguments")
    except (StoreError, JobNotFound):
        return Differences()
    wanted = located(request).plan
    named = {
        "hardware": (has.asked, wanted.asked),
        "spot": (has.spot, wanted.spot),
        "zones": (", ".join(has.zones) or "any", ", ".join(wanted.zones) or "any"),
    }
    place = tuple(f"{name} {before}, not {now}" for name, (before, now) in named.items() if before != now)
    if has.name != wanted.name:
        return Differences(place, (f"another function: {has.name!r:.100}",))
    if has.argv != wanted.argv:
        return Differences(place, (f"another command: {list(has.argv)!r:.200}",))
    if not isinstance(had, dict) or not all(isinstance(each, str) for each in had.values()):
        return Differences(place)
    names = other_arguments(request.spec, request.settings.home, had)
    of = "another value of" if len(names) == 1 else "other values of"
    return Differences(place, (f"{of} {', '.join(names)}",) if names else ())
