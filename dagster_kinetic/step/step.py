"""One job of one Dagster step: its identity, and its end or continuation when the step is interrupted.

Knows runs, steps, tags and interrupts. `events` reports the job while it runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.step.events import Narrator
from dagster_kinetic.step.ticket import SHARED_STORE
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import describe_differences
from kinetic_orchestration.errors import (
    BudgetExceeded,
    JobCancelled,
    KeyTaken,
    KineticError,
    StoreError,
    UsageError,
)
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.logs import Emit
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.jobs.launch import find, launch, refuse_another
from kinetic_orchestration.jobs.request import Draft, Request, draft
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Outcome
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

LONGEST_ANCESTRY = 64
MOST_NAMED = 5  # assets of one step: they are a column of `kinor jobs`
CANCEL_SECONDS = 60.0


class StepCall(NamedTuple):
    """The position of a call in Dagster."""

    run: str
    step: str
    partition: str = ""
    call: str = ""  # "" for the first of the step, then its number, or the key that the user gave it
    resumes: tuple[str, ...] = ()  # the runs that this one resumes, the nearest first
    origin: Mapping[str, str] = {}  # as `origin_of` names it

    def identity(self, deployment: str, run: str = "") -> Identity:
        index = f"{self.partition}#{self.call}" if self.call else self.partition
        return Identity(deployment, "dagster", run or self.run, self.step, index, 0)


def step_call_of(context: _compat.Context, call: str = "") -> StepCall:
    run, step, partition = _compat.run_id(context), _compat.step_key(context), _compat.partition_of(context)
    return StepCall(run, step, partition, call, tuple(_ancestry(context.run, context.instance)), origin_of(context))


def origin_of(context: _compat.Context) -> dict[str, str]:
    """Name what launches a job, for `kinor jobs` and `kinor status`: the assets that its step makes, or its step."""
    if _compat.is_direct(context):
        return {}
    assets, partition = _compat.asset_names(context), _compat.partition_of(context)
    more = f" and {len(assets) - MOST_NAMED} more" if len(assets) > MOST_NAMED else ""
    what = {"asset": ", ".join(assets[:MOST_NAMED]) + more} if assets else {"op": _compat.step_key(context)}
    within = {"partition": partition} if partition else {}
    return {"orchestrator": "dagster", **what, **within, "run": _compat.run_id(context)}


class LeftJob(NamedTuple):
    """A job of an interrupted step, and the run that its identity names."""

    handle: JobHandle[Any]
    of: str = ""


def request_of(asked: Draft, step_call: StepCall) -> Request:
    """Open the request for the job of a resumed run, if it left one; else for this step's own."""
    deployment = asked.settings.deployment
    own = replace(asked, spec=replace(asked.spec, origin=step_call.origin)).open(step_call.identity(deployment))
    for run in step_call.resumes:
        left = own.of(step_call.identity(deployment, run))
        if find(left) is not None:
            return left
    return own


@dataclass
class Launching:
    """A job that a step brings on its way, as far as it has come."""

    context: _compat.Context
    request: Request | None = None
    handle: JobHandle[Any] | None = None
    troubles: list[KineticError] = field(default_factory=list)

    def launch(self, request: Request, claimed: Callable[[str], object] | None = None) -> Job:
        self.request = request
        with _for_good(self.context):
            job = launch(request, claimed=claimed, say=self.context.log.info)
        self.handle = JobHandle(job)
        _warn_of_another_slice(request, job, self.context)
        if owner := owner_of(job, request.identity.run, self.context):
            self.context.log.info(f"this step goes on with {owner}")
        return job

    def left(self) -> list[LeftJob]:
        """The job to deal with when the step is interrupted; none before its spec is stored."""
        if self.handle is None and self.request is not None:
            try:
                job = find(self.request)
            except KineticError as error:
                self.troubles.append(error)
            else:
                self.handle = None if job is None else JobHandle(job)
        of = "" if self.request is None else self.request.identity.run
        return [] if self.handle is None else [LeftJob(self.handle, of)]


@contextlib.contextmanager
def left_if_interrupted(context: _compat.Context, forward_termination: bool = True) -> Iterator[Launching]:
    """Wrap all work of a step with one job: if it is interrupted at any point, `detach_or_cancel` decides the end of
    its job and run."""
    launching = Launching(context)
    try:
        yield launching
    except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
        with _compat.uninterrupted():
            detach_or_cancel(launching.left(), context, forward_termination, launching.troubles)
        raise


def refuse_if_it_would_end_with_its_run(asked: Draft, context: _compat.Context) -> None:
    """Refuse a local job that is not waited for, in a container that is removed as soon as the step is over."""
    plan = asked.plan
    if plan.traits.share_machine and _compat.is_contained(context):
        raise UsageError(
            f"{plan.name} would run on this machine (backend 'local', store {plan.store}), which is the container of "
            f"this run and ends with it, and no sensor in another container could see its records. {SHARED_STORE}, or "
            "use run(), which waits for the job here"
        )


def launch_in_step(asked: Draft, context: _compat.Context, call: str) -> Job:
    """Launch a job that the step does not wait for."""
    with left_if_interrupted(context) as launching:
        return launching.launch(request_of(asked, step_call_of(context, call)))


def _wait_until_offered(context: _compat.Context, handle: JobHandle[Any], outcome: Outcome) -> None:
    """Wait a moment until the hosts of a job with `keep` offer their slice: then the next step of the run finds it, and
    so does the next try of a step that has failed by its own code.
    """
    if handle._job.plan().keep and not _compat.is_direct(context):
        from kinetic_orchestration.jobs.cleanup import kept_slices

        kept_slices.wait_until_offered(handle._job, outcome)


def run_in_step(
    spec: JobSpec,
    context: _compat.Context,
    call: str = "",
    *,
    shown: str | None = None,
    here: Settings | None = None,
    job: Job | None = None,
    through: Callable[[Emit], Emit] | None = None,
    made: Callable[[JobHandle[Any]], object] | None = None,
    forward_termination: bool = True,
) -> Any:
    """Run the job as this step: its lines in the step's log, its value returned, its failure raised.

    `shown`: the name of the call in the page, if not the one that identifies it. `here`: the settings, if they are
    loaded. `job`: one that another run submitted. `through` wraps the job's events; `made` is called as soon as the job
    exists. Without `forward_termination` the job continues when its run is terminated.
    """

    def request() -> Request:
        asked = draft(spec, here)  # what is refused there is refused before a store is opened
        return asked.open() if _compat.is_direct(context) else request_of(asked, step_call_of(context, call))

    told = contextlib.ExitStack()  # closed when an interrupted job is left already: to store its logs may take long
    try:
        with left_if_interrupted(context, forward_termination) as begun:
            handle = begun.handle = JobHandle(job or begun.launch(request()))
            if made is not None:
                made(handle)
            narrator = told.enter_context(Narrator(context, handle, call if shown is None else shown))
            narrator.begin(here if begun.request is None else begun.request.settings)
            try:
                outcome = handle.follow(narrator if through is None else through(narrator))
            except StoreError:
                context.log.error(
                    f"job {handle.job_id} cannot be seen from here, and may go on: a retry of the step finds it again; "
                    f"to end it: kinetic-orchestration cancel {handle.job_id}"
                )
                raise
            assert outcome is not None
            try:
                value = collect(handle._job, outcome)
            except JobCancelled:
                raise
            except Exception as error:
                failure = narrator.failed(error, outcome)
                _wait_until_offered(context, handle, outcome)
                raise failure from failure.__cause__
            narrator.end()
            _wait_until_offered(context, handle, outcome)
            return value
    except JobCancelled as error:
        raise dg.Failure(str(error), metadata={"kinetic/job_id": error.job_id}, allow_retries=False) from None
    finally:
        told.close()


@contextlib.contextmanager
def _for_good(context: _compat.Context) -> Iterator[None]:
    """A job of other arguments, where that is refused, or one without a budget: it would be in each try."""
    try:
        yield
    except (BudgetExceeded, KeyTaken) as error:
        if _compat.is_direct(context):
            raise
        again = "To have what is asked for now, materialize it anew"
        if isinstance(error, BudgetExceeded):
            again = "Once there is a budget again, materialize it anew"
        raise dg.Failure(f"{error}. {again}", allow_retries=False) from error


def check_same_request(spec: JobSpec, here: Settings, identity: Identity, job: Job, context: _compat.Context) -> None:
    """Warn about a job of an earlier run that differs from this launch, or refuse it."""
    strict = spec.options.on_conflict == "error"
    try:
        request = draft(spec, here, found=True).open(identity)
    except KineticError:
        if strict:
            raise
        return
    if strict:
        with _for_good(context):
            refuse_another(request, job)
    _warn_of_another_slice(request, job, context)


def owner_of(job: Job, of: str, context: _compat.Context) -> str:
    """Describe which earlier run submitted the job, and which others follow it; "" for the run's own."""
    if _compat.is_direct(context) or of in ("", _compat.run_id(context)) or job.written:  # or written here just now
        return ""
    try:
        by = job.plan().labels.get("run", "") or of
    except KineticError:  # its follower reports that, after more retries
        by = of
    others = sorted(_followers(context, {of})[of])
    others = [f"run {run}{', which submitted it,' if run == by else ''}" for run in others]
    submitted = "" if any(by in other for other in others) else f", which run {by} submitted"
    if not others:
        return f"job {job.job_id}{submitted}"
    too = f"{' and '.join(others)} {'follow' if len(others) > 1 else 'follows'} it too"
    return f"job {job.job_id}{submitted}; {too}, and it ends when the last of them is terminated"


def _followers(context: _compat.Context, owners: Collection[str]) -> dict[str, set[str]]:
    """The other runs that are at this step now and go on with the jobs of each of these runs."""
    found: dict[str, set[str]] = {run: set() for run in owners}
    mine = context.run
    for other in _compat.runs_at(context.instance, _compat.step_key(context), mine.root_run_id or mine.run_id):
        if other.run_id != mine.run_id:
            for run in {other.run_id, *_ancestry(other, context.instance)} & found.keys():
                found[run].add(other.run_id)
    return found


def _warn_of_another_slice(request: Request, job: Job, context: _compat.Context) -> None:
    """Warn if a job that was found again has another slice than its launch asks for now; it keeps its own."""
    differs, ended = describe_differences(request, job)
    if differs and ended:
        context.log.warning(
            f"this step has the value of job {job.job_id}, which was submitted before with {differs}, and has ended"
        )
    elif differs:
        context.log.warning(
            f"this step goes on with job {job.job_id}, which was submitted before with {differs}. To have "
            f"what is asked for now: kinetic-orchestration cancel {job.job_id}, and materialize it anew"
        )


def detach_or_cancel(
    left: Sequence[LeftJob],
    context: _compat.Context,
    forward_termination: bool = True,
    unseen: Sequence[KineticError] = (),
) -> None:
    """End the interrupted step. Its jobs end too if a user wants that, or if no run can resume them; jobs that another
    run has taken over do not.

    `unseen`: the errors due to which the existence of some of them is unknown.
    """
    log = dg.get_dagster_logger() if context is None else context.log  # none of a map outside of any step
    terminated = forward_termination and _is_terminated(context)
    if unseen:
        log.error(
            f"whether {len(unseen)} jobs of this step were submitted cannot be told: {unseen[0]}. To see what runs: "
            "kinetic-orchestration jobs; to end one: kinetic-orchestration cancel ID"
        )
    ids = [each.handle.job_id for each in left]
    if not ids:
        log.info("interrupted before there was a job")
    elif not terminated and not _is_forgotten(context):
        log.info(
            f"detached: {_named(ids)} {'go' if len(ids) > 1 else 'goes'} on, and a retry of this step finds "
            f"{'them' if len(ids) > 1 else 'it'} again. To watch: kinetic-orchestration logs -f {ids[0]}. "
            f"{_to_end(ids)}"
        )
        return
    others = _followers(context, {each.of for each in left}) if terminated and left else {}
    shared = [each.handle.job_id for each in left if others.get(each.of)]
    let_go = ""
    if shared:
        runs = sorted(set().union(*others.values()))
        follow = f"{' and '.join(f'run {run}' for run in runs)} still {'follow' if len(runs) > 1 else 'follows'}"
        let_go = f"detached: {follow} {_named(shared)}, which {'go' if len(shared) > 1 else 'goes'} on"
        log.info(f"{let_go}. {_to_end(shared)}")
    handles = [each.handle for each in left if not others.get(each.of)]
    ids = [handle.job_id for handle in handles]
    if ids:
        log.info(f"cancelling {_named(ids)}")
    why = f"its Dagster run {_compat.run_id(context)} was terminated" if terminated else "interrupted"
    troubles = _cancelled(handles, why)
    if troubles:
        log.error(f"{len(troubles)} of them could not be: {troubles[0]}. {_to_end(ids, 'To end what is left')}")
    if terminated:  # a retry policy would run the step again, so it is told not to
        cancelled = f"{_named(ids) or 'the step'} was cancelled with its run" if ids or not shared else ""
        raise dg.Failure("; ".join(filter(None, (cancelled, let_go))), allow_retries=False) from None


def _named(ids: Sequence[str]) -> str:
    return f"{len(ids)} jobs ({', '.join(ids[:3])}, …)" if len(ids) > 3 else " and ".join(f"job {name}" for name in ids)


def _to_end(ids: Sequence[str], what: str = "To end") -> str:
    return f"{what}: kinetic-orchestration cancel {' '.join(ids[:10])}{' …' if len(ids) > 10 else ''}"


def _cancelled(handles: Sequence[JobHandle[Any]], reason: str) -> list[KineticError]:
    """All are asked before the first is waited for, and what goes wrong with one keeps none of the others.

    A run that is executed again from its failure, later, means the next generation of each.
    """
    troubles: dict[str, KineticError] = {}

    def each(do: Callable[[JobHandle[Any]], object]) -> Callable[[JobHandle[Any]], None]:
        def safely(handle: JobHandle[Any]) -> None:
            try:
                do(handle)
            except KineticError as error:
                troubles[handle.job_id] = error

        return safely

    def ask(handle: JobHandle[Any]) -> None:
        if not handle.peek().status.final:
            actions.cancel(handle._job, reason, ME, anew=True)

    side_by_side(each(ask), handles, REQUESTS)
    deadline = time.monotonic() + CANCEL_SECONDS
    side_by_side(each(lambda handle: handle.follow(timeout=max(0.1, deadline - time.monotonic()))), handles, REQUESTS)
    return list(troubles.values())


def _is_forgotten(context: _compat.Context) -> bool:
    """Return True if no process will resume the step: it is a test, or its instance ends with this process."""
    return _compat.is_direct(context) or context.instance.is_ephemeral


def _is_terminated(context: _compat.Context) -> bool:
    """Return True if the run is to end; if a worker is only moved elsewhere, the run's status is unchanged."""
    if _compat.is_direct(context):
        return False
    run = context.instance.get_run_by_id(_compat.run_id(context))
    if run is None or run.status is not dg.DagsterRunStatus.FAILURE:
        return run is not None and run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
    # A run that exceeds Dagster's max_runtime is cancelled, and marked as failed before its worker is interrupted.
    seen = context.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELING, limit=1)
    return bool(seen.records)


def _ancestry(run: dg.DagsterRun | None, instance: dg.DagsterInstance) -> Iterator[str]:
    """The runs that a run resumes, the nearest first."""
    for _ in range(LONGEST_ANCESTRY):
        if run is None or not run.parent_run_id or not _compat.is_resumed(run, instance):
            return
        yield run.parent_run_id
        run = instance.get_run_by_id(run.parent_run_id)
