"""Tells others of a job: that it was submitted, and of each attempt that had hosts, or decided it, once it has ended.

What is told comes from the records, by whoever sees an attempt end first: that is itself a record. It is read and sent
on the exporter's thread, and only where the environment names a collector.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial

from kinetic_orchestration.capacity.prices import in_force
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.watching import attempts, usage
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.identity import pipeline_of
from kinetic_orchestration.plan.records import plan_of
from kinetic_orchestration.plan.values import Glimpse
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.report import trace_ids
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.protocol.wire.task import Task
from kinetic_orchestration.telemetry import facts
from kinetic_orchestration.telemetry.exporter import EXPORTER, Wanted, wanted

_RESULTS = {
    wire.USER: facts.FAILURE, wire.CANCELLED: facts.CANCELLATION, wire.DEADLINE: facts.TIMEOUT,
    wire.STALL: facts.TIMEOUT,
}  # fmt: skip


def submitted(job: Job) -> None:
    """Tell that this process has submitted a job."""
    who = wanted(copies.environ())
    if any(who) and not job.doubt:
        EXPORTER.hand_over(partial(_submitted, job, who, _current_trace()))


def attempt_ended(job: Job, attempt: int, seen: Glimpse, *, is_last: bool) -> None:
    """Tell that an attempt has ended, unless another process has told it.

    Args:
        job: Its job.
        attempt: Its number.
        seen: What was seen of it at last.
        is_last: The job has ended with it.
    """
    who, verdict = wanted(copies.environ()), seen.verdict
    if any(who) and verdict is not None and not job.doubt and (is_last or not lifecycle.was_free(seen)):
        EXPORTER.hand_over(partial(_ended, job, attempt, verdict, who, is_last=is_last))


def _submitted(job: Job, who: Wanted, trace: str) -> None:
    if who.telemetry and trace:
        job.store.create(names.trace(job.job_id), wire.encode({"traceparent": trace}))
    if who.lineage:
        from kinetic_orchestration.telemetry import lineage

        lineage.begins(facts_of(job), job.store.now())


def _ended(job: Job, attempt: int, verdict: wire.Verdict, who: Wanted, *, is_last: bool) -> None:
    with suppress(StoreError):  # who may not write tells it all the same: its ids are those of everybody
        if job.store.create(names.told(job.job_id, attempt), wire.encode({})) is None:
            return
    ended = _attempt(job, attempt, verdict, is_last=is_last)
    if who.telemetry:
        from kinetic_orchestration.telemetry import spans

        spans.export(ended)
    if who.lineage and is_last:
        from kinetic_orchestration.telemetry import lineage

        lineage.ended(ended)


def _attempt(job: Job, attempt: int, verdict: wire.Verdict, *, is_last: bool) -> facts.EndedAttempt:
    times = attempts.times(job.store, job.job_id).get(attempt, attempts.Times())
    stays = [stay for stay in usage.stays(job.store, job.job_id, attempt) if stay.attempt == attempt]
    ended = times.ended or job.store.now()
    began = times.began or ended
    phases = [facts.Phase(*phase) for stay in stays for phase in usage.phases_of(stay, began)]
    settings, failure = in_force(load(), job.store), verdict.failure
    cost = usage.estimate_of(job.plan(), stays, settings.prices, settings.listed, charged=job.backend.charges)
    result = facts.SUCCESS
    if verdict.kind != wire.COMMITTED:
        result = _RESULTS.get(lifecycle.classify(verdict), facts.ERROR)
    return facts.EndedAttempt(
        facts_of(job, stays[0].choice if stays else 0), attempt, result,
        tuple(phases) or (facts.Phase(usage.TIMELINE[0], began, ended),),
        cause="" if result == facts.SUCCESS else lifecycle.classify(verdict),
        error=failure.type if failure is not None else "",
        message=(failure.message if failure is not None else "") or verdict.reason,
        zone=stays[0].zone if stays else "", hardware=usage.ready_seconds(stays),
        usd=0.0 if cost.uncharged or not usage.have_cost(stays) else cost.usd,
        is_last=is_last, parent=_parent(job) if attempt == 1 else "",
    )  # fmt: skip


def facts_of(job: Job, choice: int = 0) -> facts.JobFacts:
    """Return what is told of a job, by its record; its hardware is that of the candidate of the number `choice`."""
    from kinetic_orchestration.telemetry.lineage import address_of

    spec = job.spec()
    plan, task, origin = plan_of(spec, job.job_id), Task.from_json(spec["task"]), spec.get("origin", {})
    read = (piece.url or piece.here for piece in task.data)
    taken, pipeline = plan.at(choice) if choice < len(plan.choices) else plan, pipeline_of(origin, plan.name)
    return facts.JobFacts(
        job.job_id, plan.name, pipeline, plan.deployment, taken.backend, taken.named, dict(origin),
        tuple(address_of(place) for place in dict.fromkeys(read) if place), (address_of(task.output_dir),),
    )  # fmt: skip


def _current_trace() -> str:
    """Return TRACEPARENT of the span that this thread is in, or of what started this process; "" if there is none."""
    api = sys.modules.get("opentelemetry.trace")  # who is in a span has imported it
    context = api.get_current_span().get_span_context() if api is not None else None
    if context is not None and context.is_valid:
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    text = os.environ.get("TRACEPARENT", "")
    return text if trace_ids.parsed(text) else ""


def _parent(job: Job) -> str:
    """Return TRACEPARENT of what submitted the job; "" if it told none."""
    record = job.store.read(names.trace(job.job_id))
    try:
        text = wire.decode(record.data).get("traceparent") if record is not None else ""
    except wire.Unreadable:
        return ""
    return text if isinstance(text, str) and trace_ids.parsed(text) else ""
