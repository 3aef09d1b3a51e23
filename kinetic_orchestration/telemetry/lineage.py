"""Tells OpenLineage of a job: that it begins, what it reads and writes, and how it ended.

Not of those that Airflow launches: its provider asks our operators, which take the facets from here, and emits events
of its own.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from typing import Any

from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.telemetry.facts import CANCELLATION, SUCCESS, Address, EndedAttempt, JobFacts

NAMESPACE = "kinetic-orchestration"
PRODUCER = "https://github.com/kinetic-orchestration/kinetic-orchestration"
MISSING = (
    "lineage: OPENLINEAGE_URL or its like is set, and openlineage-python is not installed here: nothing is told of "
    "jobs. pip install 'kinetic-orchestration[openlineage]'"
)


def begins(job: JobFacts, at: float) -> None:
    """Tell that a job begins.

    Args:
        job: The job.
        at: When, in seconds since the epoch.
    """
    _emit("START", job, at, "")


def ended(last: EndedAttempt) -> None:
    """Tell how a job ended.

    Args:
        last: The attempt that decided it.
    """
    state = {SUCCESS: "COMPLETE", CANCELLATION: "ABORT"}.get(last.result, "FAIL")
    failure = "" if last.result == SUCCESS else last.message or last.cause or last.result
    _emit(state, last.job, last.phases[-1].ended, failure)


def run_id(job_id: str) -> str:
    """Return the UUID of a job's run, which is the same for whoever tells of it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}/jobs/{job_id}"))


def _emit(state: str, job: JobFacts, at: float, failure: str) -> None:
    if "dag" in job.origin:
        return
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    except ImportError:
        warn_once(MISSING)
        return
    event = RunEvent(
        eventType=RunState(state),
        eventTime=datetime.fromtimestamp(at, UTC).isoformat(),
        run=Run(run_id(job.job_id), _run_facets(job, failure)),
        job=Job(os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE, _name(job), _job_facets()),
        inputs=[InputDataset(*address) for address in job.inputs],
        outputs=[OutputDataset(*address) for address in job.outputs],
        producer=PRODUCER,
    )
    client = OpenLineageClient()
    try:
        client.emit(event)
    finally:
        client.close(5.0)


def _name(job: JobFacts) -> str:
    return job.name if job.pipeline in ("", job.name) else f"{job.pipeline}.{job.name}"


def facets_of(job: JobFacts, failure: str = "") -> dict[str, Any]:
    """Return the facets of a job's run, whoever emits the event: its tags, and the message of its failure.

    Args:
        job: The job.
        failure: Why it failed; "" if it did not.

    Raises:
        ImportError: openlineage-python is not installed.
    """
    from openlineage.client.facet_v2 import error_message_run, tags_run

    tags = {
        "job_id": job.job_id, "backend": job.backend, "accelerator": job.accelerator, "deployment": job.deployment,
        **job.origin,
    }  # fmt: skip
    facets: dict[str, Any] = {
        "tags": tags_run.TagsRunFacet([tags_run.TagsRunFacetFields(*pair, "KINETIC") for pair in tags.items()]),
    }
    if failure:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(failure, "PYTHON")
    return facets


def _run_facets(job: JobFacts, failure: str) -> dict[str, Any]:
    from openlineage.client.facet_v2 import parent_run, processing_engine_run

    import kinetic_orchestration

    facets = facets_of(job, failure)
    facets["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(
        version=kinetic_orchestration.__version__, name="Kinetic Orchestration"
    )
    if (parent := _parent(job)) is not None:
        namespace, name, run = parent
        facets["parent"] = parent_run.ParentRunFacet(parent_run.Run(run), parent_run.Job(namespace, name))
    return facets


def _job_facets() -> dict[str, Any]:
    from openlineage.client.facet_v2 import job_type_job

    return {"jobType": job_type_job.JobTypeJobFacet("BATCH", "KINETIC", jobType="JOB")}


def _parent(job: JobFacts) -> tuple[str, str, str] | None:
    """Return namespace, name and run of what launched the job, by OPENLINEAGE_PARENT_ID or by Dagster's run."""
    parts = os.environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)
    name, run = job.origin.get("asset") or job.origin.get("op", ""), job.origin.get("run", "")
    found = (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("dagster", name, run)
    try:
        uuid.UUID(found[2])
    except ValueError:
        return None
    return found if all(found) else None


def address_of(place: str) -> Address:
    """Return a place in OpenLineage's terms.

    Args:
        place: A path, or an address such as `gs://bucket/folder`.
    """
    scheme, there, rest = place.partition("://")
    if not there or scheme == "file":
        return Address("file", rest if there else place)
    bucket, _, path = rest.partition("/")
    return Address(f"{scheme}://{bucket}", path.strip("/") or "/")
