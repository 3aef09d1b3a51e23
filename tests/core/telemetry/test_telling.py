"""Jobs of real processes tell real collectors, by the unmodified libraries, how their attempts went."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.protocol.report import trace_ids
from kinetic_orchestration.telemetry import exporter, lineage
from tests.support.collector import Collector, collecting, texts

PROGRAM = """
import json, os, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=1))
def train(state, data):
    import os, pathlib
    mark = pathlib.Path(state)
    if not mark.exists():
        mark.touch()
        raise ValueError("the first time")
    return os.environ["TRACEPARENT"]

if __name__ == "__main__":
    state, data = sys.argv[1:]
    job = train.run_async(state, kinetic.Data(data))
    value = job.result()
    print(json.dumps({"job": job.job_id, "program": value, "at": time.time()}), flush=True)
"""
FAILING = PROGRAM.replace("if not mark.exists():", "if True:").replace("user=1", "user=0")
FOLLOWING = "import sys, kinetic_orchestration as kinetic; print(kinetic.attach(sys.argv[1]).result())"


class Place:
    """A project with data, a home, and the environment of its processes."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        (folder / "data" / "a.txt").write_text("a")
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("OTEL_", "OPENLINEAGE", "TRACE"))
        }
        self.environ = {**kept, "KINETIC_HOME": str(folder / "home"), "KINETIC_STORE": str(folder / "store"), **environ}
        self.environ |= {"NO_PROXY": "127.0.0.1", "OTEL_METRIC_EXPORT_INTERVAL": "600000"}

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "program.py").write_text(program)
        return subprocess.run(
            [sys.executable, "program.py", *words], cwd=self.folder, env=self.environ, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip

    def train(self, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
        return self.run(program, str(self.folder / "mark"), str(self.folder / "data"))


def told_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spans_of(collector: Collector, job: str, attempt: int) -> dict[str, Any]:
    """Return the spans of an attempt's trace by name; each was told once."""
    trace = trace_ids.trace_of(job, attempt).to_bytes(16, "big")
    found = [span for span in collector.spans if span.trace_id == trace]
    assert len({span.span_id for span in found}) == len(found)
    return {span.name: span for span in found}


@pytest.mark.timeout(240)
def test_each_attempt_is_a_trace_with_its_phases_and_linked_to_the_one_before(tmp_path: Path) -> None:
    outer = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with collecting() as collector:
        place = Place(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.address, TRACEPARENT=outer)
        told = told_of(place.train())
        job = told["job"]
        assert place.run(FOLLOWING, job).returncode == 0  # another process sees it end, too
    first, second = spans_of(collector, job, 1), spans_of(collector, job, 2)
    assert len(collector.spans) == len(first) + len(second), "told once, though two processes saw it"
    assert {"RUN train", "running"} <= set(first) and {"RUN train", "running"} <= set(second)
    one, two = first.pop("RUN train"), second.pop("RUN train")
    assert one.links[0].trace_id.hex() == outer.split("-")[1] and one.links[0].span_id.hex() == outer.split("-")[2]
    assert (two.links[0].trace_id, two.links[0].span_id) == (one.trace_id, one.span_id)
    for root, phases in ((one, first), (two, second)):
        ordered = sorted(phases.values(), key=lambda span: span.start_time_unix_nano)
        assert {span.parent_span_id for span in ordered} == {root.span_id} and root.parent_span_id == b""
        assert root.start_time_unix_nano == ordered[0].start_time_unix_nano
        assert root.end_time_unix_nano == ordered[-1].end_time_unix_nano
        pairs = itertools.pairwise(ordered)
        assert all(before.end_time_unix_nano == after.start_time_unix_nano for before, after in pairs)
    of = texts(one.attributes)
    assert (of["cicd.pipeline.result"], of["error.type"], of["kinetic.attempt"]) == ("failure", "ValueError", 1)
    assert "the first time" in one.status.message and texts(two.attributes)["cicd.pipeline.result"] == "success"
    assert told["program"] == trace_ids.traceparent(job, 2, "running")
    assert second["running"].span_id.hex() == told["program"].split("-")[2], "spans of the program lie below it"
    assert collector.resources[0]["service.name"] == "kinetic-orchestration"
    counted = {metric.name: metric for metric in collector.metrics}
    jobs = counted["kinetic.jobs"].sum.data_points
    assert [(texts(point.attributes)["cicd.pipeline.result"], point.as_double or point.as_int) for point in jobs] == [
        ("success", 1)
    ]
    assert not [name for metric in counted.values() for name in str(metric) if job in name]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_job_waits_for_a_collector_that_does_not_answer(tmp_path: Path) -> None:
    with collecting(answers=False) as collector:
        place = Place(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.address, OPENLINEAGE_URL=collector.address)
        told = told_of(place.train())
        waited = time.time() - told["at"]
        assert collector.asked, "it was told, and did not answer"
    assert waited < exporter.LAST_SECONDS + 10, "of which the most is the interpreter's own end"


def test_without_the_library_that_is_said_once_and_the_job_runs(tmp_path: Path) -> None:
    place = Place(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OPENLINEAGE_URL="http://127.0.0.1:9")
    hidden = "import sys\nfor name in ('opentelemetry.sdk', 'openlineage'): sys.modules[name] = None\n"
    done = place.train(hidden + PROGRAM)
    told_of(done)
    assert done.stderr.count("pip install 'kinetic-orchestration[otel]'") == 1
    assert done.stderr.count("pip install 'kinetic-orchestration[openlineage]'") == 1


def test_the_providers_of_the_process_are_used_and_the_jobs_trace_is_linked_to_its_span(tmp_path: Path) -> None:
    traced = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


if __name__ == "__main__":
    provider = TracerProvider()
    shown = ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider.add_span_processor(SimpleSpanProcessor(shown))
    trace.set_tracer_provider(provider)
    outer = trace.get_tracer("theirs").start_as_current_span("outer")
    context = outer.__enter__().get_span_context()
    print('{"name": "outer", "span": "0x%016x"}' % context.span_id)
"""
    place = Place(tmp_path, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://127.0.0.1:9")
    (tmp_path / "mark").touch()
    done = place.train(traced + PROGRAM)
    assert done.returncode == 0, done.stderr
    spans = {span["name"]: span for span in map(json.loads, done.stdout.splitlines()) if "name" in span}
    root, outer = spans["RUN train"], spans["outer"]
    assert root["links"][0]["context"]["span_id"] == outer["span"]
    assert spans["running"]["parent_id"] == root["context"]["span_id"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_openlineage_hears_of_the_begin_and_the_end_with_what_was_read_and_written(tmp_path: Path) -> None:
    parent = "0197c9b0-0000-7000-8000-000000000000"
    with collecting() as collector:
        place = Place(tmp_path, OPENLINEAGE_URL=collector.address, OPENLINEAGE_PARENT_ID=f"nightly/all.train/{parent}")
        failed = place.train(FAILING)
        assert failed.returncode == 1 and "ValueError: the first time" in failed.stderr
        begun, ended = collector.events
        (tmp_path / "mark").touch()
        told = told_of(place.train())
    assert [event["eventType"] for event in collector.events] == ["START", "FAIL", "START", "COMPLETE"]
    assert begun["run"]["runId"] == ended["run"]["runId"] != lineage.run_id(told["job"])
    assert collector.events[3]["run"]["runId"] == lineage.run_id(told["job"])
    facets = ended["run"]["facets"]
    assert facets["errorMessage"]["message"] == "the first time" and facets["parent"]["run"]["runId"] == parent
    assert facets["processing_engine"]["name"] == "Kinetic Orchestration"
    assert ended["job"]["facets"]["jobType"] | {"_producer": "", "_schemaURL": ""} == {
        "processingType": "BATCH", "integration": "KINETIC", "jobType": "JOB", "_producer": "", "_schemaURL": ""
    }  # fmt: skip
    assert ended["job"]["name"] == "train" and ended["outputs"][0]["namespace"] == "file"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environ", "who"),
    [
        ({}, (False, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, (True, False)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, (True, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, (False, False)),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, (False, True)),
        ({"OPENLINEAGE_URL": "http://c", "OPENLINEAGE_DISABLED": "true"}, (False, False)),
    ],
)
def test_nobody_is_told_unless_the_environment_names_where(environ: dict[str, str], who: tuple[bool, bool]) -> None:
    assert exporter.wanted(environ) == who


@pytest.mark.fast
@pytest.mark.parametrize(
    ("place", "namespace", "name"),
    [
        ("gs://bucket/a/b/", "gs://bucket", "a/b"),
        ("gs://bucket", "gs://bucket", "/"),
        ("hf://owner/name@abc", "hf://owner", "name@abc"),
        ("/tmp/data", "file", "/tmp/data"),
    ],
)
def test_places_have_openlineages_names(place: str, namespace: str, name: str) -> None:
    assert lineage.address_of(place) == (namespace, name)
