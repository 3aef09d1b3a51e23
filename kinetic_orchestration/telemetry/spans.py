"""Tells OpenTelemetry of an attempt: a trace of its own with a span for each phase, and metrics.

Spans have the times of the records, and ids that follow from job and attempt, so that whoever tells of them names the
same ones. They go by the process's global providers where those are of the SDK, as in an Airflow that traces itself;
else by providers of our own, which are never made the global ones.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.protocol.report import trace_ids
from kinetic_orchestration.telemetry.facts import SUCCESS, EndedAttempt, Phase

SCOPE = "kinetic_orchestration"
FLUSH_MILLIS = 10_000
MISSING = (
    "telemetry: OTEL_EXPORTER_OTLP_ENDPOINT is set, and {name} is not installed here: nothing is told of jobs. "
    "pip install 'kinetic-orchestration[otel]'"
)


def export(ended: EndedAttempt) -> None:
    """Tell of an attempt that has ended, and wait until the collector has it, or has not.

    Args:
        ended: The attempt.
    """
    try:
        providers = _providers()
    except ImportError as error:
        warn_once(MISSING.format(name=error.name or "the SDK of OpenTelemetry"))
        return
    tracers, meters = providers
    if tracers is not None:
        _trace(tracers, ended)
        tracers.force_flush(FLUSH_MILLIS)
    if meters is not None:
        _measure(_instruments(meters), ended)
        meters.force_flush(FLUSH_MILLIS)


# ---- providers ---------------------------------------------------------------------------------------------------


def _providers() -> tuple[Any, Any]:
    """Return those of traces and of metrics, each None if it has no endpoint. Raises ImportError without the SDK."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    own_tracers = tracers if isinstance(tracers, TracerProvider) else _own_tracers() if _sends("TRACES") else None
    own_meters = meters if isinstance(meters, MeterProvider) else _own_meters() if _sends("METRICS") else None
    return own_tracers, own_meters


def _sends(signal: str) -> bool:
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in names) and os.environ.get(f"OTEL_{signal}_EXPORTER", "") != "none"


@functools.cache
def _own_tracers() -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if _protocol("TRACES") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[assignment]
            OTLPSpanExporter,
        )
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)  # which would wait for a collector
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@functools.cache
def _own_meters() -> Any:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if _protocol("METRICS") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # type: ignore[assignment]
            OTLPMetricExporter,
        )
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)


def _protocol(signal: str) -> str:
    both = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    return os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", both)


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if named else {"service.name": "kinetic-orchestration"})


# ---- spans -------------------------------------------------------------------------------------------------------


def _trace(provider: Any, ended: EndedAttempt) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode

    job, number = ended.job.job_id, ended.number
    ids = _ids()
    tracer = provider.get_tracer(SCOPE, _version())
    tracer.id_generator = ids  # of this scope's tracer alone
    links = []
    before = (trace_ids.trace_of(job, number - 1), trace_ids.span_of(job, number - 1)) if number > 1 else None
    if (found := before or trace_ids.parsed(ended.parent)) is not None:
        links.append(Link(_context(*found)))
    ids.take(trace_ids.trace_of(job, number), trace_ids.span_of(job, number))
    root = tracer.start_span(
        f"RUN {ended.job.pipeline}", context=trace.set_span_in_context(trace.INVALID_SPAN), kind=SpanKind.SERVER,
        attributes=_attributes(ended), links=links, start_time=_nanos(ended.phases[0].began),
    )  # fmt: skip
    for phase in ended.phases:
        ids.take(trace_ids.trace_of(job, number), trace_ids.span_of(job, number, phase.name))
        below = trace.set_span_in_context(NonRecordingSpan(root.get_span_context()))
        span = tracer.start_span(
            phase.name, context=below, attributes=_of_phase(ended, phase), start_time=_nanos(phase.began)
        )
        span.end(_nanos(phase.ended))
    if ended.result != SUCCESS:
        root.set_status(Status(StatusCode.ERROR, ended.message[:1000]))
    root.end(_nanos(ended.phases[-1].ended))


def _attributes(ended: EndedAttempt) -> dict[str, Any]:
    job = ended.job
    told: dict[str, Any] = {
        "cicd.pipeline.name": job.pipeline, "cicd.pipeline.run.id": job.job_id, "cicd.pipeline.result": ended.result,
        "kinetic.job.name": job.name, "kinetic.attempt": ended.number, "kinetic.backend": job.backend,
        "kinetic.accelerator": job.accelerator, "kinetic.deployment": job.deployment, "kinetic.zone": ended.zone,
        "kinetic.hardware_seconds": ended.hardware, "kinetic.job.is_over": ended.is_last,
        **{f"kinetic.origin.{name}": text for name, text in job.origin.items()},
    }  # fmt: skip
    if ended.usd is not None:
        told["kinetic.cost_usd"] = ended.usd
    if ended.result != SUCCESS:
        told |= {"error.type": ended.error or ended.cause or ended.result, "kinetic.cause": ended.cause}
    return {name: value for name, value in told.items() if value != ""}


def _of_phase(ended: EndedAttempt, phase: Phase) -> dict[str, Any]:
    of = f"{ended.job.job_id}/{ended.number}/{phase.name}"
    return {"cicd.pipeline.task.name": phase.name, "cicd.pipeline.task.run.id": of, "kinetic.attempt": ended.number}


def _context(trace_id: int, span_id: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@functools.cache
def _ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Gives the span that begins next its ids. One thread alone begins spans with it."""

        def __init__(self) -> None:
            self._next = (0, 0)

        def take(self, trace_id: int, span_id: int) -> None:
            self._next = trace_id, span_id

        def generate_trace_id(self) -> int:
            return self._next[0]

        def generate_span_id(self) -> int:
            return self._next[1]

        def is_trace_id_random(self) -> bool:
            return False

    return Ids()


def _nanos(seconds: float) -> int:
    return int(seconds * 1e9)


# ---- metrics -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _instruments(provider: Any) -> Mapping[str, Callable[[float, Mapping[str, str]], None]]:
    meter = provider.get_meter(SCOPE, _version())
    return {
        "attempt": meter.create_histogram("kinetic.attempt.duration", "s", "Time of an attempt, with its wait.").record,
        "phase": meter.create_histogram("kinetic.attempt.phase.duration", "s", "Time of an attempt's phase.").record,
        "jobs": meter.create_counter("kinetic.jobs", "{job}", "Jobs that have ended.").add,
        "hardware": meter.create_counter("kinetic.hardware.time", "s", "Time that hosts were charged for.").add,
        "cost": meter.create_counter("kinetic.cost", "USD", "Estimated cost by list prices.").add,
    }


def _measure(tell: Mapping[str, Callable[[float, Mapping[str, str]], None]], ended: EndedAttempt) -> None:
    job = ended.job  # its id is no attribute: series are kept for ever
    of = {
        "cicd.pipeline.name": job.pipeline, "kinetic.backend": job.backend, "kinetic.accelerator": job.accelerator,
        "kinetic.deployment": job.deployment,
    }  # fmt: skip
    over = {**of, "cicd.pipeline.result": ended.result}
    tell["attempt"](ended.phases[-1].ended - ended.phases[0].began, over)
    for phase in ended.phases:
        tell["phase"](phase.ended - phase.began, {**of, "cicd.pipeline.task.name": phase.name})
    tell["hardware"](ended.hardware, of)
    if ended.usd is not None:
        tell["cost"](ended.usd, of)
    if ended.is_last:
        tell["jobs"](1, over)


def _version() -> str:
    import kinetic_orchestration

    return kinetic_orchestration.__version__
