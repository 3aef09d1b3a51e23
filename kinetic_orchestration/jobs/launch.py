"""The way of a job, from the call to the released slice.

    declare ─▶ plan ─▶ package ─▶ stage ─▶ provision ─▶ run ─▶ stream ─▶ collect ─▶ teardown
    JobSpec    Request Bundle     Staged   Placement    agent  lines     Outcome    Released

`launch` brings a job on its way and returns; a `follower` sees it to its end, and `results` collects what it came to.
Between the two, and at any line of either, the process may die: whoever asks for the same identity again goes on from
the records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, replace
from types import MappingProxyType
from typing import Any

from kinetic_orchestration.errors import Corrupt, KeyTaken, KineticError, StoreError, UsageError
from kinetic_orchestration.jobs import trust
from kinetic_orchestration.jobs.cleanup import owner
from kinetic_orchestration.jobs.cleanup.reaper import reap_now_and_then
from kinetic_orchestration.jobs.following import actions, told
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import ME, Job, how_it_ended, open_job, set_aside
from kinetic_orchestration.jobs.request import Request, differences, located, priced
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.jobs.watching import live_index, spending
from kinetic_orchestration.packaging.bundle import argument_digests, package
from kinetic_orchestration.packaging.staging import stage, staging_folder
from kinetic_orchestration.plan.identity import Identity, job_id
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.plan.planner import completed
from kinetic_orchestration.plan.records import IDENTITY, fields_of, spec_of
from kinetic_orchestration.plan.values import Glimpse, JobStatus, Outcome, Plan, Staged
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.protocol.system.parallel import Ahead
from kinetic_orchestration.protocol.wire.task import NOT_KEPT, Environment, Hardware, Task

CANCEL_SECONDS = 60.0
BARRIER_SECONDS = 900.0
GENERATIONS = 1000  # generations of one identity that are checked
LOOKED_FOR = 64  # generations of an identity whose record is damaged
CLAIMS = 20  # tries with an identity that other processes change concurrently
LAST_HOSTS = 0.5  # seconds between two steps of a job that has failed and whose hosts are ending
KEEPING = ("airflow",)  # orchestrators of which a process keeps each job, and hands it over to another
NEVER_AGAIN = ("random", "group")  # orchestrators whose identities are never requested again
QUICK_BYTES = 4 << 20  # source that is unpacked faster than a thread starts


def launch(
    request: Request,
    *,
    claimed: Callable[[str], object] | None = None,
    noted: Callable[[], object] | None = None,
    say: Callable[[str], object] | None = None,
) -> Job:
    """Bring a job to its first attempt; it then runs without this process. `claimed` is called with its id before
    anything is sent, `noted` before it is admitted, and `say` with a line before each slow step: packaging, submitting.
    """
    request = _ready(request)
    job, is_new = claim(request.store, request.backend, request.identity, request.trust)
    if not is_new:
        _refuse_if_strict(request, job)
    elif request.settings.budgets and request.backend.charges:
        spending.admit(request.store, request.plan, request.pipeline, request.settings, job)
    if claimed is not None:
        claimed(job)
    written = _submit(request, job, noted or _say_nothing, say or _say_nothing) if is_new else None
    launched = open_job(job, request.store, request.backend, request.trust, written=written)
    if is_new and written is None:  # another process was faster
        _refuse_if_strict(request, job)
    if written is not None:
        told.submitted(launched)
    with _reaping(request, job):
        provision(launched, is_new=written is not None)
    if request.plan.abort_without_owner:
        owner.beat(launched)
    return launched


def _say_nothing(*_: object) -> None:
    """Tell nobody."""


def _refuse_if_strict(request: Request, job: str) -> None:
    """Refuse a job that was there already, if the request is to meet none of another call."""
    if request.spec.options.on_conflict == "error":
        refuse_another(request, open_job(job, request.store, request.backend, request.trust))


def _submit(request: Request, job: str, noted: Callable[[], object], say: Callable[[str], object]) -> Record | None:
    """Package, stage and admit a claimed job. Returns its spec, or None if another process has admitted it first."""
    request = priced(request)
    spec, settings, store = request.spec, request.settings, request.store
    entered = Ahead(live_index.add, store, job, in_background=store.parallel > 1)
    with staging_folder(store, settings.home) as folder:
        say(f"packaging {spec.name}: its code, its arguments and what they need")
        bundle = package(spec, request.plan, settings, folder, copies.environ())
        say(f"submitting job {job}: {bundle.summary} to {store.url}")
        staged = stage(bundle, store, settings.retention, settings.home)
    repeatable = request.identity.orchestrator not in NEVER_AGAIN
    asked = argument_digests(spec, settings.home, bundle) if repeatable else {}
    plan, staged = _with_logins(request, staged)
    entered.result()
    noted()
    return admit(store, job, request.identity, plan, staged, request.trust, asked, spec.origin)


def _with_logins(request: Request, staged: Staged) -> tuple[Plan, Staged]:
    """Complete the plan with the secrets by which a private package index is read. Those that the job itself does not
    ask for are its installer's only.
    """
    whose, alone = request.pipeline, not request.spec.origin
    if staged.environment is None:
        return completed(request.plan, request.identity, (), whose, alone=alone), staged
    known = {*request.plan.secrets, *request.plan.secret_refs}

    def described(one: Environment) -> Environment:
        return one._replace(installer_only=tuple(name for name in one.secrets if name not in known))

    own, others = staged.environment, staged.others
    logins = dict.fromkeys(name for one in (own, *others) for name in one.secrets)
    staged = replace(staged, environment=described(own), others=tuple(map(described, others)))
    return completed(request.plan, request.identity, tuple(logins), whose, alone=alone), staged


@contextmanager
def _reaping(request: Request, job: str) -> Iterator[None]:
    """Remove now and then what other jobs have left, after the block. An error of the store in the block says that the
    job was submitted: its hosts may have been requested, or a follower may request them.
    """
    try:
        yield
    except Exception as error:  # and not Ctrl-C, which waits for nothing
        if isinstance(error, StoreError):
            error.add_note(f"Job {job} was submitted all the same; to see it: {command('status', str(job))}")
        reap_now_and_then(request.store, request.backend, request.settings)
        raise
    reap_now_and_then(request.store, request.backend, request.settings)


def _ready(request: Request) -> Request:
    """Check the resources that the job needs, once in a while, and find the zones of the store's bucket."""
    request.backend.prepare()
    for one in request.plan.each():
        request.backend.require(one)
    return located(request)


@contextmanager
def cancel_if_interrupted(request: Request, say: Callable[[str], object]) -> Iterator[None]:
    """Cancel a job that is being submitted when Ctrl-C interrupts this process."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            if (job := find(request)) is not None:
                say(f"cancelling {job.job_id}")
                actions.cancel(job, "interrupted by Ctrl-C", ME)
                say(how_it_ended(job, follow(Follower(job), timeout=CANCEL_SECONDS)))
        except KineticError as error:  # Ctrl-C stays what it is
            say(f"what was on its way could not be called back: {error}")
        raise


def refuse_another(request: Request, job: Job) -> None:
    """Raise KeyTaken if the job is of another call. The one job of an orchestrator's step is cancelled, as no other
    process would collect it. One of several jobs of a step goes on: its holder may have started it in this very try.
    """
    if not (other := differences(request, job).describe(ended=True)):
        return
    identity = request.identity
    found = f"job {job.job_id}, which was submitted before with {other}, and on_conflict is 'error'"
    if identity.orchestrator == "key":
        raise KeyTaken(
            f"the key {identity.run!r} names {found}: nothing has run. Give another key; or, for the value of that "
            "job, on_conflict='return'"
        )
    follower = Follower(job)
    if follower.step() is not None or follower.foreseen is not None:
        raise KeyTaken(f"this step has {found}: its value is not taken, and nothing has run")
    if "#" in identity.index:
        raise KeyTaken(
            f"this step has {found}: nothing else has run, and that job goes on. To end it: "
            f"kinetic-orchestration cancel {job.job_id}"
        )
    actions.cancel(job, "its step asks for another call now, and on_conflict is 'error'", ME, anew=True)
    ended = how_it_ended(job, follow(follower, timeout=CANCEL_SECONDS))
    raise KeyTaken(f"this step has {found}: it was cancelled ({ended}), and nothing else has run")


def find(request: Request) -> Job | None:
    """Return the job that the request's identity means now, if one was admitted. Nothing is started."""
    store = request.store
    record = store.read(names.identity(request.identity.key))
    if record is None:
        return None
    job = job_id(request.identity, _meant(store, request.identity, record)["generation"])
    if store.read(names.spec(job)) is None:
        return None
    return open_job(job, store, request.backend, request.trust)


def claim(store: Store, backend: Backend, identity: Identity, believed: Trust = trust.ALONE) -> tuple[str, bool]:
    """Return the job that this identity means now, and True if it has yet to be admitted: the live or finished job, or
    the next generation of a failed one. An identity that was never requested before has no job to look for.
    """
    name, believed = names.identity(identity.key), believed.at(store)
    first = wire.encode({"generation": 1, "identity": astuple(identity)})
    if store.create(name, first) is not None:
        return job_id(identity, 1), True
    for _ in range(CLAIMS):
        record = store.read(name)
        if record is None:  # records of this store are being removed, and the job's own may be left
            store.create(name, first)
            continue
        fields = _meant(store, identity, record)
        if fields.pop("damaged", False):
            set_aside(store, name, record.data)
            store.swap(name, wire.encode(fields), record.generation)
            continue
        generation = fields["generation"]
        job = job_id(identity, generation)
        spec, verdict = store.read_all([names.spec(job), names.verdict(job, 1)])
        if spec is None and verdict is None:
            now = store.read(name)
            if now is None or now.generation != record.generation:  # the job was there and is being forgotten
                continue
            _refuse_after_success(store, backend, believed, identity, generation)
            return job, True
        if not failed(store, backend, job, believed):
            return job, False
        believed.refuse_anew(store, job)
        following = {**fields, "generation": generation + 1}
        store.swap(name, wire.encode(following), record.generation)
    raise StoreError(
        f"{name} in {store.url} was removed or changed {CLAIMS} times while a job was submitted by it. Find out who "
        "does that, and submit it again"
    )


def _meant(store: Store, identity: Identity, record: Record) -> dict[str, Any]:
    """Return the fields of the identity's record, which name its generation. If the record is damaged, the generation
    is the newest that has a spec, as jobs' names follow from it.
    """
    name = names.identity(identity.key)
    try:
        return fields_of(record.data, IDENTITY, name)
    except Corrupt:
        numbers = range(1, LOOKED_FOR + 1)
        specs = store.read_all([names.spec(job_id(identity, number)) for number in numbers])
        newest = max((number for number, spec in zip(numbers, specs, strict=True) if spec is not None), default=1)
        return {"generation": newest, "identity": astuple(identity), "damaged": True}


def _refuse_after_success(store: Store, backend: Backend, believed: Trust, identity: Identity, generation: int) -> None:
    """Raise Corrupt before a generation begins if it or an earlier one was seen to succeed, unless its records may have
    expired. A process that can write to the bucket can remove a job, and choose the next generation.
    """
    if not believed.checks:
        return
    for number in range(1, min(generation, GENERATIONS) + 1):
        believed.refuse_anew(store, job_id(identity, number))
    before = job_id(identity, generation - 1)
    if generation > 1 and not failed(store, backend, before, believed):
        raise Corrupt(
            f"{names.identity(identity.key)} in {store.url} speaks of generation {generation} of a job whose "
            f"generation {generation - 1} ({before}) has not failed: somebody has changed it. Nothing was started. "
            "Find out who can write to the bucket; to have it run anew, give another key, or start another run"
        )


def failed(store: Store, backend: Backend, job: str, believed: Trust = trust.ALONE) -> bool:
    """Return True if the job ended and may be started again: it did not succeed, and its end was not meant to be final.
    Also true while a job is being removed: then it has a verdict and, after that was read, no spec. The last hosts of a
    failed job are waited for, as long as a follower would; hosts that cannot be freed do not prevent a new start.
    """
    if store.read(names.spec(job)) is None:
        return True
    try:
        opened = open_job(job, store, backend, believed)
    except Corrupt as error:
        actions.abandon(store, backend, job, str(error), ME, patience=CANCEL_SECONDS)
        return True
    follower = Follower(opened)
    while True:
        outcome = follower.step() or follower.foreseen
        if outcome is None or not _is_failure(opened, outcome):
            return False
        if follower.outcome is not None or follower.held:
            return True
        time.sleep(LAST_HOSTS)  # its last hosts may still write the checkpoint from which the next job continues


def _is_failure(job: Job, outcome: Outcome) -> bool:
    if outcome.status is JobStatus.CANCELLED:
        return actions.may_begin_anew(job)
    return outcome.status is JobStatus.FAILED


def admit(
    store: Store,
    job: str,
    identity: Identity,
    plan: Plan,
    staged: Staged,
    believed: Trust = trust.ALONE,
    arguments: Mapping[str, str] = MappingProxyType({}),
    origin: Mapping[str, str] = MappingProxyType({}),
) -> Record | None:
    """Write the spec after everything else is staged: the job exists from here on. The first writer wins.

    Returns the record if it is the one that was written here: no other is authenticated by this process.
    """
    believed = believed.at(store)
    fields = {
        "job": job,
        **({"signed": believed.key_id} if believed.key_id else {}),
        "name": plan.name,
        "identity": identity.key,
        "plan": plan.to_json(),
        "staged": staged.to_json(),
        "arguments": dict(arguments),
        **({"origin": dict(origin)} if origin else {}),
        "task": render_task(plan, staged, store, job, identity).to_json(),
    }
    spec = wire.encode(fields)
    try:
        spec_of(spec, job)
    except Corrupt as error:  # no process could read it
        raise UsageError(f"{plan.name} cannot be submitted: {error}") from None
    spec_digest = digest.of_bytes(spec)
    believed.sign(store, job, spec_digest)
    believed.remember(store, job, trust.OFFERED, spec_digest)
    generation = store.create(names.spec(job), spec)
    if generation is None:
        return None
    believed.remember(store, job, trust.SPEC, spec_digest)
    return Record(spec, generation, store.written_at(names.spec(job), generation))


def render_task(plan: Plan, staged: Staged, store: Store, job: str, identity: Identity) -> Task:
    """Return what the hosts run. Pure: the same plan and staged blobs give the same task."""
    first, *others = (_task(one, staged.at(number), store, job, identity) for number, one in enumerate(plan.each()))
    return first.joined(others) if others else first


def _shape(plan: Plan) -> str:
    """Return the shape of the slice that the job's hosts may keep; "" if they keep none."""
    if plan.keep is None:
        return ""
    from kinetic_orchestration.capacity.warm.shape import shape_of

    return shape_of(plan)


def _task(plan: Plan, staged: Staged, store: Store, job: str, identity: Identity) -> Task:
    return Task(
        name=plan.name,
        argv=tuple(plan.argv),
        payload=staged.payload,
        tree=staged.tree,
        cwd=staged.cwd,
        path=tuple(staged.path),
        extra_path=tuple(staged.extra_path),
        data=staged.data,
        packages=staged.packages,
        volumes={mount: index for index, mount in enumerate(plan.volumes, len(staged.data) - len(plan.volumes))},
        environment=staged.environment,
        python=staged.python,
        env=plan.env,
        devices=plan.devices,
        emulated=plan.emulated,
        processes=plan.processes,
        distributed=plan.distributed,
        output_dir=plan.output_dir or f"{store.url}/{names.output_dir(job)}",
        checkpoint_dir=f"{store.url}/{names.checkpoint_dir(identity.key)}",
        partition_key=plan.partition_key,
        # Hosts of one slice come together, however long it was waited for.
        provision=min(float(plan.limits.provision or BARRIER_SECONDS), BARRIER_SECONDS),
        # Followers enforce the total; a host without a follower at least ends itself after that time.
        run=min((float(limit) for limit in (plan.limits.run, plan.limits.total) if limit), default=0.0),
        affordable=plan.affordable,  # the intent has the rest of it that is left to its attempt
        stall=float(plan.limits.stall or 0.0),
        debug=plan.debug_port,
        profile=plan.profile,
        project=plan.project,
        accelerator=Hardware(plan.slice.kind, plan.slice.generation, plan.slice.topology),
        slices=plan.slices,
        secrets=secret_refs(plan, job),
        tools=staged.tools,
        beside=staged.beside,
        image=plan.image,
        owned=plan.abort_without_owner,
        kept=identity.orchestrator in KEEPING,
        compile_cache=plan.compile_cache,
        device_metrics=plan.device_metrics,
        reshard=plan.reshard,
        global_batch=plan.global_batch,
        keep=NOT_KEPT if plan.keep is None else plan.keep,
        shape=_shape(plan),
        usd_per_hour=plan.usd_per_hour,
        quick=all(one.traits.share_files for one in plan.each())
        and not (staged.environment is not None or staged.data)
        and staged.size < QUICK_BYTES,
    )


def secret_refs(plan: Plan, job: str) -> dict[str, str]:
    """Return the names by which other machines find the variables that are sent by Secret Manager."""
    if not plan.traits.secret_service:
        return {}
    found = {variable: names.secret(job, variable) for variable in plan.secrets} | plan.secret_refs
    return {
        variable: secret if secret.startswith("projects/") else f"projects/{plan.project}/secrets/{secret}"
        for variable, secret in found.items()
    }


def provision(job: Job, *, is_new: bool = False) -> None:
    """Write the first attempt's intent and make its create call. A job that runs or has ended is left as it is.

    `is_new`: the job was made here just now, so only another process may have been quicker or have ended it already.
    """
    intent = actions.intend(job, 1) if is_new else None
    ended = names.cancel(job.job_id), names.verdict(job.job_id, 1)
    if intent is None or intent.wait or any(job.store.read_all(ended)):
        Follower(job).step()
    elif not actions.waits(job, 1):
        actions.submit(job, 1, Glimpse(intent.created, intent), copies.environ())
