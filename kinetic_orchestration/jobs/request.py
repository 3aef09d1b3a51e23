"""One call, resolved once: its settings, its plan, and then the store, the backend and the identity of its job.

    draft(spec) ─▶ Draft ─▶ open() ─▶ Request ─▶ launch, find, differences

A draft asks nobody anything, so what it refuses is refused before a store is opened. A request is opened by whoever the
process acts for at that moment, and handed on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from kinetic_orchestration.capacity import prices
from kinetic_orchestration.capacity.facts import way_of
from kinetic_orchestration.errors import JobNotFound, KineticError, StoreError, UsageError
from kinetic_orchestration.jobs import trust
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.packaging.bundle import other_arguments
from kinetic_orchestration.plan import emulation, identity, planner
from kinetic_orchestration.plan.configuration import home, settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import naming, ways
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Plan, traits_of
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

    @property
    def pipeline(self) -> str:
        """The pipeline of its job, for budgets and shares."""
        return identity.pipeline_of(self.spec.origin, self.spec.name)

    def open(self, of: Identity | None = None) -> Request:
        """Open the store and the backend, as the user for whom this process acts now.

        of: the identity of the job; by default that of a call outside any orchestrator: its key's, or a random one.
        Raises StoreError; UsageError if the shares of its pipeline can never hold it.
        """
        of = of or identity.of(self.settings.deployment, self.spec.options.key)
        store = open_store(self.plan.store, self.plan.deployment)
        backend = open_backend(self.plan.runs_on, self.settings)
        plan = planner.within_shares(self.plan, self.pipeline)
        return Request(self.spec, self.settings, plan, store, backend, trust.of(self.settings), of)


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


def draft(spec: JobSpec, settings: Settings | None = None, *, found: bool = False, dry: bool = False) -> Draft:
    """Plan a call as far as it goes without a contact; where its prices decide anything, they are the deployment's.

    settings: others than the call's own. found: its job is there already, and needs nothing here. dry: its store may
    stand for another, and is not asked.
    Raises UsageError; unless it is found, also for what would be emulated though hardware is meant.
    """
    if only_looking.get():
        raise UsageError(
            f"importing the file calls {spec.name}, which would run it as a job: put that call in a function, or "
            'below `if __name__ == "__main__":`'
        )
    settings = settings or settings_of(spec)
    if not (found or dry) and needs_prices(spec, settings):
        settings = prices.in_force(settings)
    plan = planner.make_plan(spec, settings, _with_user(copies.environ()), interpreter=interpreter_of(spec))
    _check_together(plan)
    backends = {name: open_backend(name, settings) for name in plan.runs_on.split("+")}
    each = []
    for one in plan.each():
        with naming(f"{one.named}, {way_of(one)}", plan.choices):
            each.append(_on(backends[one.backend], one, settings, found=found))
    if spec.output and not found:
        _check_outlives(spec.output, each)
    return Draft(spec, settings, planner.choice_of(each, plan.by, settings))


def _with_user(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables, with the name of this process's account if they have no user's, as in a container."""
    if environ.get("USER") or environ.get("LOGNAME"):
        return environ
    name = home.name_of(os.getuid())
    return environ if name is None else {**environ, "LOGNAME": name}


def needs_prices(spec: JobSpec, settings: Settings) -> bool:
    """Return True if something of a job depends on prices: its limits of cost, the order of its choices, a budget, or
    for how many its chips count where chips are shared."""
    if settings.budgets or settings.chips or spec.options.by == "price":
        return True
    return any(one.limits.cost is not None for one in ways(spec.options))


def _on(backend: Backend, plan: Plan, settings: Settings, *, found: bool) -> Plan:
    """Return the plan as the backend has it. Unless the job is found, it refuses what it cannot run."""
    plan = backend.resolve(plan)
    if not found:
        backend.check(plan)  # an error about missing hardware comes before one about emulation
    plan = replace(plan, emulated=backend.emulates(plan.slice))
    if not found:
        emulation.check_hardware(plan, settings)
    return plan


def _check_outlives(output: str, each: Sequence[Plan]) -> None:
    """Raise UsageError for a folder of machines that end with their job, before there are any."""
    if "://" in output:
        return
    for plan in each:
        mounted = any(f"{output}/".startswith(f"{mount.rstrip('/')}/") for mount in plan.volumes)
        if not (plan.traits.share_files or mounted):
            from kinetic_orchestration.program.inference.output import out_of_reach  # which few jobs need

            raise out_of_reach(output)


def _check_together(plan: Plan) -> None:
    """Refuse candidates of which no process could send the same program, or follow the same attempt."""
    apart = {one.backend: one.traits for one in plan.each() if one.traits.share_files or one.traits.keeps_ended}
    if apart and len(backends := plan.runs_on.split("+")) > 1:
        names = ", ".join(traits_of(name).service or name for name in backends)  # type: ignore[union-attr]
        raise UsageError(
            f"the choices of {plan.name} are on {names}: those on this machine, or on Kubernetes, cannot be chosen "
            "together with others. Leave one kind out, or name one backend for all with backend="
        )


def located(asked: D) -> D:
    """Return the request with the zones of the store's bucket, unless zones were named; then those near it are noted,
    if that decides between equals. Asks once in a process."""
    if not planner.needs_location(asked.plan, asked.spec.options, asked.settings):
        return asked
    from kinetic_orchestration.platforms.google.storage.location import location_of

    try:
        where = location_of(asked.settings)
    except KineticError:
        if planner.is_open(asked.plan, asked.spec.options, asked.settings):
            raise
        return asked  # it would only decide between equals
    return replace(asked, plan=planner.near_bucket(asked.plan, where, asked.settings, asked.spec.options))


def priced(asked: D) -> D:
    """Return the request with what its hosts cost by the deployment's prices, if their program reports that.

    Each choice has its own, the dearest of its places, as far as it is known. Of emulated hardware it is what the named
    one would cost. It is no part of the call: the same call at another price is the same job.
    """
    plan = asked.plan
    if not asked.spec.is_priced or all(one.slice.kind == "cpu" for one in plan.each()):
        return asked
    settings = prices.in_force(asked.settings)
    return replace(asked, plan=plan.joined([planner.priced(one, settings) for one in plan.each()]))


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
    before, now = (_place_of(plan, in_words=bool(has.choices or wanted.choices)) for plan in (has, wanted))
    place = tuple(f"{name} {before[name]}, not {now[name]}" for name in before if before[name] != now[name])
    if has.name != wanted.name:
        return Differences(place, (f"another function: {has.name!r:.100}",))
    if has.argv != wanted.argv:
        return Differences(place, (f"another command: {list(has.argv)!r:.200}",))
    if not isinstance(had, dict) or not all(isinstance(each, str) for each in had.values()):
        return Differences(place)
    names = other_arguments(request.spec, request.settings.home, had)
    of = "another value of" if len(names) == 1 else "other values of"
    return Differences(place, (f"{of} {', '.join(names)}",) if names else ())


def _place_of(plan: Plan, *, in_words: bool) -> dict[str, object]:
    """Return where a job runs, by names for users. in_words: how it is bought is said with the hardware."""
    each = plan.each()
    zones = ", ".join(dict.fromkeys(zone for one in each for zone in one.zones)) or "any"
    if not in_words:
        return {"hardware": plan.asked, "spot": plan.spot, "zones": zones}
    hardware = " or ".join(one.named if one.traits.share_files else f"{one.named} {way_of(one)}" for one in each)
    return {"hardware": hardware, "order": plan.by, "zones": zones}
