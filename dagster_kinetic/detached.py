"""The detached pattern: a run submits a job and ends, no worker waits, a sensor watches, and a second run finishes.

Both runs make the same assets, by the same step. A ticket connects them, which the step writes into the event log of
the first run: the job, its place, and the digest by which another process trusts its spec. Only the run itself writes
there. Tags only mark that a run waits, and which run's log has the ticket: any user who may launch a run chooses its
tags, so no value of a tag is opened, started or unpickled.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.resource.config import KineticRunConfig
from dagster_kinetic.resource.kinetic_resource import Accelerator, KineticResource
from dagster_kinetic.step.ticket import (
    ENDED,
    FINISHED,
    FINISHES,
    LOGGED,
    TICKET,
    WAITING,
    WAITS,
    Ticket,
    opened,
    refuse_elsewhere,
    tag_of,
    tickets_of,
)
from kinetic_orchestration.errors import JobNotFound, UsageError
from kinetic_orchestration.plan.declare.spec import Options

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.request import Draft

RESULTS = (dg.MaterializeResult, dg.AssetCheckResult, dg.Output)  # some are tuples by themselves


class _Submitted(Exception):
    """Ends the step of a run that only submits."""


def as_detached(step: Callable[..., Any], needed: Collection[str]) -> Callable[..., Any]:
    """The step of assets that are made by two runs. In a test, called as a function, it waits for its job.

    `needed`: the outputs that the second run has to give, which Dagster does not know, since the first one has none.
    """

    @functools.wraps(step)
    def detached(*args: Any, **kwargs: Any) -> Iterator[Any]:
        given = {
            name: _Detached(value) if isinstance(value, KineticResource) else value for name, value in kwargs.items()
        }
        context = args[0] if args else kwargs["context"]
        try:
            value = step(*args, **given)
        except _Submitted:
            return
        results = _results(value, context)
        if not _compat.is_direct(context):
            results += _left_out(results, context, needed)
        yield from results

    detached.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    return detached


def refuse_store_of_its_own(options: Options) -> None:
    """Refuse a detached asset whose options name a store: its sensor opens only the store of the resource."""
    named = [f"{name}=" for name in ("store", "deployment") if getattr(options, name)]
    if named:
        raise UsageError(
            "an asset with detached=True is finished by a sensor, which looks only where the KineticResource of its "
            f"code location says: give {' and '.join(named)} to the resource, and not to the asset"
        )


def two_runs(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of such an asset: a run that makes nothing is none that failed."""
    if keywords.get("output_required"):
        raise UsageError(
            "an asset with detached=True is made by a second run, and the first one makes nothing: leave out "
            "output_required=True"
        )
    return {**keywords, "output_required": False}


def _results(value: Any, context: _compat.Context) -> list[Any]:
    """The results of the body, each with its output."""
    names = list(_compat.outputs_of(context))
    if len(names) > 1 and isinstance(value, tuple) and not isinstance(value, RESULTS):
        values = list(value)
    elif inspect.isgenerator(value) or (len(names) > 1 and value is None):
        values = list(value or ())
    else:
        values = [value]
    found: list[Any] = []
    for index, each in enumerate(values):
        if isinstance(each, dg.MaterializeResult | dg.AssetCheckResult):
            found.append(each)
        elif index >= len(names):
            raise UsageError(f"the body returned {len(values)} values for {len(names)} assets: {', '.join(names)}")
        elif not isinstance(each, dg.Output):
            found.append(dg.Output(each, output_name=names[index]))
        elif each.output_name != _compat.OUTPUT:
            found.append(each)
        else:  # named by its place
            rest: dict[str, Any] = {"metadata": each.metadata, "data_version": each.data_version, "tags": each.tags}
            found.append(dg.Output(each.value, output_name=names[index], **rest))
    return found


def _left_out(results: list[Any], context: _compat.Context, needed: Collection[str]) -> list[dg.Output[None]]:
    """The assets without a value that the results omit, which are made all the same. Other missing results are refused,
    as Dagster would if it knew that they are required.
    """
    outputs = _compat.outputs_of(context)
    named = {each.output_name for each in results if isinstance(each, dg.Output)}
    keys = {each.asset_key for each in results if isinstance(each, dg.MaterializeResult)}
    missing = [name for name, key in outputs.items() if name in needed and name not in named and key not in keys]
    if None in keys and len(outputs) == 1:
        missing = []
    for name in missing:
        if not _compat.is_nothing(context, name):
            raise UsageError(f"the body returned no value of {outputs[name].to_user_string()}")
    told = {check.check_name for each in results for check in _checks_in(each)}
    for check in _compat.selected_checks(context):
        if check.name not in told and None not in told:
            raise UsageError(
                f"the body returned no result of the check {check.name!r}: return a MaterializeResult with "
                "check_results"
            )
    return [dg.Output(None, output_name=name) for name in missing]


def _checks_in(result: Any) -> list[dg.AssetCheckResult]:
    if isinstance(result, dg.AssetCheckResult):
        return [result]
    return list(getattr(result, "check_results", None) or ())


class _Detached:
    """Stands for the KineticResource in such a step."""

    def __init__(self, kinetic: KineticResource) -> None:
        self._kinetic = kinetic

    def overridden_by(self, config: KineticRunConfig | None) -> _Detached:
        return _Detached(self._kinetic.overridden_by(config))

    def of_only_call(self, key: str) -> _Detached:
        """The same: the run that only submits is over long before the assets after it are made."""
        del key
        return self

    def run(
        self,
        function: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: Accelerator | None = None,
        context: _compat.Context = None,
        **options: Any,
    ) -> Any:
        if _compat.is_direct(context):
            return self._kinetic.run(function, args, kwargs, accelerator=accelerator, context=context, **options)
        from dagster_kinetic.step.step import StepCall, check_same_request, run_in_step
        from kinetic_orchestration.api.handle import JobHandle
        from kinetic_orchestration.jobs.request import draft, settings_of
        from kinetic_orchestration.plan.values import JobStatus

        spec = self._kinetic._spec(function, (args, kwargs), accelerator, context, options)
        here = settings_of(spec)
        ticket = _ticket_of(context)
        if ticket is not None:
            refuse_elsewhere(ticket, here.store, here.deployment)
            again = context.retry_number or context.run.parent_run_id
            try:
                job = opened(ticket, here, context.run.tags.get(tag_of(ENDED, ticket.step), ""))
            except JobNotFound:  # its records were removed before any run finished it
                if not again:
                    raise
            else:
                if not again or JobHandle(job).peek().status is not JobStatus.FAILED:
                    step_call = StepCall(ticket.run, ticket.step, ticket.partition, ticket.call)
                    check_same_request(spec, here, step_call.identity(here.deployment), job, context)
                    return run_in_step(spec, context, here=here, job=job)
        self._submit(draft(spec, here), context, ticket)
        raise _Submitted

    def _submit(self, asked: Draft, context: _compat.Context, ticket: Ticket | None) -> None:
        """Again, where a try has failed: the next generation of the same identity, with its checkpoints."""
        from dagster_kinetic.step.step import (
            StepCall,
            left_if_interrupted,
            origin_of,
            refuse_if_it_would_end_with_its_run,
            request_of,
            step_call_of,
        )
        from kinetic_orchestration.api.opening import runs

        refuse_if_it_would_end_with_its_run(asked, context)
        here = asked.settings
        with left_if_interrupted(context) as launching:
            if ticket is None:
                step_call = step_call_of(context, self._kinetic._call(context, None))
                request = request_of(asked, step_call)
            else:
                origin = origin_of(context)
                step_call = StepCall(ticket.run, ticket.step, ticket.partition, ticket.call, origin=origin)
                request = request_of(asked, step_call)
            found = Ticket(
                "", _compat.asset_names(context), request.identity.run, step_call.step, step_call.partition,
                step_call.call, store=here.store, deployment=here.deployment,
            )  # fmt: skip

            def note(job: str, digest: str = "") -> None:
                ticket = replace(found, job=job, spec=digest)
                _compat.log_event(context, f"job {job} is submitted by this step", {LOGGED: ticket.to_text()})
                tags = {WAITS: WAITING, tag_of(TICKET, _compat.step_key(context)): job}
                context.instance.add_run_tags(_compat.run_id(context), tags)

            try:
                job = launching.launch(request, claimed=note)
            except Exception:
                if not launching.left() and not launching.troubles:  # there is no job: the sensor must not wait for one
                    context.instance.add_run_tags(
                        _compat.run_id(context), {tag_of(TICKET, _compat.step_key(context)): FINISHED}
                    )
                raise
            note(job.job_id, "" if job.doubt else job.spec_digest)
        context.log.info(
            f"job {job.job_id} runs {runs(job, here)}, and this run is over: the completion sensor starts another one "
            f"when it has ended. To watch it: kinetic-orchestration logs -f {job.job_id}. To end it: "
            f"kinetic-orchestration cancel {job.job_id}"
        )


def _ticket_of(context: _compat.Context) -> Ticket | None:
    """The ticket of the job that this run is to finish: from the log of the run that a tag names."""
    step = _compat.step_key(context)
    run = context.run.tags.get(tag_of(FINISHES, step))
    if run is None:
        return None
    found = tickets_of(context.instance, run).get(tag_of(TICKET, step))
    if found is None:
        raise UsageError(
            f"this run is to finish a job of run {run[:100]!r}, and the step {step} of that run has submitted none, as "
            "far as its event log says. Materialize the asset anew; `kinetic-orchestration jobs` lists what goes on"
        )
    return found
