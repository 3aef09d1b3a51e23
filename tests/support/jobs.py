"""Jobs as a test follows them: their heartbeats, their events, and the records of their attempts."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.plan.values import Change, Event, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Beat
from tests.support.waits import wait_until

PROGRAM = r"child\.py|\.zip --child"  # in the command line of a program's process, of a folder and of a zip
ALL_OF_THE_AGENT = rf"^kinetic-(guard|agent)|{PROGRAM}"
WITHIN = 150.0  # for whatever has to come: the machine may be busy


def beats(job: JobHandle[Any], attempt: int = 1) -> dict[int, Beat]:
    """The heartbeat of each host."""
    prefix = f"{names.beats_of(job.job_id)}{attempt}/"
    found = {int(signal.name.rsplit("/", 1)[1]): Beat.read(signal.data) for signal in job._job.store.signals(prefix)}
    return {host: beat for host, beat in found.items() if beat is not None}


def is_running(job: JobHandle[Any], attempt: int = 1) -> bool:
    """Return True if every host of an attempt says that its program runs."""
    states = [beat.state for beat in beats(job, attempt).values()]
    return len(states) == job.hosts and set(states) == {wire.RUNNING}


def wait_running(job: JobHandle[Any], attempt: int = 1) -> None:
    wait_until(
        lambda: is_running(job, attempt), lambda: f"attempt {attempt} of {job.job_id} runs: {beats(job, attempt)}",
        pause=0.05,
    )  # fmt: skip


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


def verdicts(job: JobHandle[Any]) -> list[wire.Verdict]:
    return [attempt.verdict for attempt in job.history() if attempt.verdict is not None]
