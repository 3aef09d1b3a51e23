"""Shared parts of the emulated cloud's tests: running jobs, their results, and the requests of a client."""

from __future__ import annotations

from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.plan.values import Change, Event, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Beat
from kinetic_orchestration.testing import Emulator
from tests.support.waits import wait_until

WITHIN = 120.0  # for whatever has to come: the machine may be busy
FOUR_HOSTS = "v5e-16"


def run(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job on the smallest slice, or on what `options` say, that has been submitted."""
    return kinetic.run(**{"accelerator": "v5e-1", **options})(function).run_async(*arguments)


def beats(job: JobHandle[Any], attempt: int = 1) -> dict[int, Beat]:
    """The heartbeat of each host."""
    prefix = f"{names.beats_of(job.job_id)}{attempt}/"
    found = {int(signal.name.rsplit("/", 1)[1]): Beat.read(signal.data) for signal in job._job.store.signals(prefix)}
    return {host: beat for host, beat in found.items() if beat is not None}


def is_running(job: JobHandle[Any], attempt: int = 1) -> bool:
    states = [beat.state for beat in beats(job, attempt).values()]
    return len(states) == job.hosts and set(states) == {"running"}


def wait_running(job: JobHandle[Any], attempt: int = 1) -> None:
    wait_until(lambda: is_running(job, attempt), f"attempt {attempt} of {job.job_id}")


def told(job: JobHandle[Any], within: float = WITHIN) -> list[Event]:
    """All that a follower hears until the job ends."""
    events: list[Event] = []
    assert job.follow(events.append, timeout=within) is not None, f"{job.job_id} did not end within {within:g} s"
    return events


def changes(events: list[Event]) -> list[str]:
    return [f"{event.phase}: {event.message}" for event in events if isinstance(event, Change)]


def lines(events: list[Event], host: int = 0) -> str:
    return b"".join(
        event.text for event in events if isinstance(event, Output) and event.host == host and event.kind == "o"
    ).decode()


def placements(job: JobHandle[Any]) -> list[dict[str, Any]]:
    """The placement of each attempt."""
    found, attempt = [], 1
    while (record := job._job.store.read(names.intent(job.job_id, attempt))) is not None:
        found.append(wire.decode(record.data)["placement"])
        attempt += 1
    return found


def nodes(cloud: Emulator, job: JobHandle[Any]) -> list[str]:
    """The full names of the job's nodes that exist."""
    return [str(node["name"]) for node in cloud.nodes() if job.job_id.removeprefix("job-") in str(node["name"])]


def vm(cloud: Emulator, job: JobHandle[Any], host: int = 0) -> Any:
    """One machine of a job on one slice."""
    (node,) = nodes(cloud, job)
    found = cloud.vms(node)[host]
    assert found is not None
    return found
