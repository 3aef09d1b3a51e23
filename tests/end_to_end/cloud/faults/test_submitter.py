"""Submitters that are killed, race or oversleep: with the same key there is one job, one run, one result, and nothing
is left. Each submitter is a process of its own."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import all_jobs
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import run
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import WITHIN, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]

KILLED = -9
PROMPTLY = 60.0  # of the hours for which it would wait


def made(cloud: Emulator) -> int:
    """The number of slices created so far."""
    return cloud.ledger.count("created", "queued resource")


def marks_in(path: Path) -> list[str]:
    """One for each run of the function."""
    return path.read_text().split() if path.exists() else []


def assert_one_of_all(cloud: Emulator, marks: Path, values: list[str], slices: int = 1) -> None:
    """One job, one run of the function, one result, and nothing that costs."""
    assert values == marks_in(marks) * len(values)
    assert len(all_jobs()) == 1
    cloud.wait_until_empty(WITHIN)
    assert made(cloud) == slices


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("kinetic_orchestration.jobs.launch.claim", id="before it asks for its job"),
        pytest.param("kinetic_orchestration.jobs.launch.admit", id="before the spec"),
        pytest.param("kinetic_orchestration.jobs.following.actions.intend", id="before the intent"),
        pytest.param("kinetic_orchestration.platforms.google.tpu.client.create", id="after the intent"),
        pytest.param(
            "kinetic_orchestration.platforms.google.tpu.client._error_of",
            id="after the create call, before its operation is kept",
        ),
        pytest.param("kinetic_orchestration.jobs.following.drivers.follow", id="before it follows"),
        pytest.param("kinetic_orchestration.jobs.following.actions.release", id="before it releases the slice"),
        pytest.param("kinetic_orchestration.jobs.results.collect", id="before it collects"),
    ],
)
def test_f01_a_submitter_is_killed_and_the_next_one_with_the_same_key_goes_on(
    cloud: Emulator, submitters: Any, tmp_path: Path, at: str
) -> None:
    marks, value = tmp_path / "marks", tmp_path / "value"
    assert submitters.do("submit", key="one", marks=str(marks), at=at) == KILLED
    assert submitters.do("submit", report=value, key="one", marks=str(marks)) == 0
    assert_one_of_all(cloud, marks, [json.loads(value.read_text())])


@pytest.mark.offline
@pytest.mark.timeout(900)
def test_f01_a_submitter_may_be_killed_at_any_line(cloud: Emulator, submitters: Any, tmp_path: Path) -> None:
    """Every 12th line of the core that a submission runs, four submitters side by side."""
    assert submitters.do("lines", tmp_path / "lines", key="counted", marks=str(tmp_path / "counted")) == 0
    lines = json.loads((tmp_path / "lines").read_text())[::12]
    assert len(lines) > 40
    wrong: list[Any] = []
    for some in (lines[first : first + 4] for first in range(0, len(lines), 4)):
        these = [(line, tmp_path / f"marks-{lines.index(line)}") for line in some]
        killed = [submitters.start("submit_to", key=marks.name, marks=str(marks), line=line) for line, marks in these]
        ended = [submitters.wait(child) for child in killed]
        again = [submitters.start("submit", key=marks.name, marks=str(marks)) for _, marks in these]
        after = [submitters.wait(child) for child in again]
        wrong += [
            (line, first, second, marks_in(marks))
            for (line, marks), first, second in zip(these, ended, after, strict=True)
            if first not in (KILLED, 0) or second != 0 or len(marks_in(marks)) != 1
        ]
    assert not wrong
    assert len(all_jobs()) == len(lines) + 1
    assert made(cloud) == len(lines) + 1


def test_f01_a_batch_outlives_its_submitter(cloud: Emulator, submitters: Any, tmp_path: Path) -> None:
    marks, group = tmp_path / "marks", tmp_path / "group"
    assert submitters.do("submit_many", marks=str(marks), count=3, group=str(group)) == KILLED
    values = kinetic.attach_batch(group.read_text()).results(timeout=WITHIN)
    assert values == [only for n in range(3) for only in marks_in(tmp_path / f"marks-{n}")]
    assert len(set(values)) == 3
    cloud.wait_until_empty(WITHIN)
    assert made(cloud) == 3


def test_f01_a_batch_whose_submitter_dies_within_it_gives_what_was_submitted_and_says_what_was_not(
    cloud: Emulator, submitters: Any, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    ended = submitters.do(
        "submit_many",
        marks=str(marks),
        count=3,
        group="/nowhere",
        at="kinetic_orchestration.jobs.following.actions.intend",
        nth=2,
    )
    assert ended == KILLED
    with pytest.warns(UserWarning, match="1 of its inputs have not been submitted"):
        values = kinetic.attach_batch(_only_group(), poll_timeout=5.0).results(timeout=WITHIN)
    assert values == [*marks_in(tmp_path / "marks-0"), *marks_in(tmp_path / "marks-1"), None]
    cloud.wait_until_empty(WITHIN)
    assert made(cloud) == 2


def _only_group() -> str:
    from kinetic_orchestration.api.opening import place_of

    store, _, _ = place_of()
    (group,) = {entry.name.split("/")[1].partition(".")[0] for entry in store.list("groups/")}
    return group


@pytest.mark.parametrize(("api", "times"), [("gRPC", 1), ("gRPC", 3), ("REST", 1)])
def test_f02_the_answer_of_the_create_call_is_lost_and_there_is_one_slice(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, times: int
) -> None:
    if api == "REST":
        monkeypatch.delenv("KINETIC_EMULATOR_GRPC")
    cloud.lose_answer("CreateQueuedResource", times)
    job = run(jobs.leaves_mark, str(tmp_path / "marks"))
    assert_one_of_all(cloud, tmp_path / "marks", [job.result(timeout=WITHIN)])
    assert job.attempts() == 1
    assert not cloud.faults.scripted


def test_f03_four_submitters_that_race_for_one_identity_get_one_job(
    cloud: Emulator, submitters: Any, tmp_path: Path
) -> None:
    marks, go, reports = tmp_path / "marks", tmp_path / "go", [tmp_path / f"value-{n}" for n in range(4)]
    children = [submitters.start("submit", report, key="race", marks=str(marks), go=str(go)) for report in reports]
    go.touch()
    assert [submitters.wait(child) for child in children] == [0] * 4
    assert_one_of_all(cloud, marks, [json.loads(report.read_text()) for report in reports])


@pytest.mark.parametrize(
    ("at", "remembered"),
    [
        pytest.param("kinetic_orchestration.jobs.following.actions.intend", True, id="before the intent"),
        pytest.param("kinetic_orchestration.platforms.google.tpu.client.create", True, id="before the create call"),
        pytest.param(
            "kinetic_orchestration.platforms.google.tpu.client.create",
            False,
            id="before a create call that the API knows no more",
        ),
        pytest.param("kinetic_orchestration.jobs.following.actions.release", True, id="before it releases the slice"),
    ],
)
def test_f04_a_submitter_that_wakes_up_after_its_job_has_ended_changes_nothing(
    cloud: Emulator, submitters: Any, tmp_path: Path, at: str, remembered: bool
) -> None:
    """Anything that it still requests ends itself before it runs anything."""
    marks, late, value = tmp_path / "marks", tmp_path / "late", tmp_path / "value"
    sleeper = submitters.start("submit", late, key="stale", marks=str(marks), at=at, then="sleep")
    assert submitters.wait_stopped(sleeper)
    assert submitters.do("submit", report=value, key="stale", marks=str(marks)) == 0
    cloud.wait_until_empty(WITHIN)
    if not remembered:
        cloud._answers.clear()
    submitters.wake(sleeper)
    assert submitters.wait(sleeper) == 0
    values = [json.loads(path.read_text()) for path in (late, value)]
    assert_one_of_all(cloud, marks, values, slices=1 if remembered else 2)


def test_f04_a_submitter_that_wakes_up_after_its_attempt_was_followed_by_another_disturbs_nobody(
    cloud: Emulator, submitters: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps before the create call of attempt 1, which another process makes in vain."""
    marks, late = tmp_path / "marks", tmp_path / "late"
    sleeper = submitters.start(
        "submit",
        late,
        key="stale",
        marks=str(marks),
        at="kinetic_orchestration.platforms.google.tpu.client.create",
        then="sleep",
    )
    assert submitters.wait_stopped(sleeper)
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)
    cloud.fail("CreateQueuedResource", 13, at="provision")
    (job,) = all_jobs()
    wait_until(lambda: job.status().final)
    assert job._newest() == 2
    submitters.wake(sleeper)
    assert submitters.wait(sleeper) == 0
    assert_one_of_all(cloud, marks, [json.loads(late.read_text())], slices=2)


@pytest.mark.parametrize("who", ["its own process", "another process", "a process that dies of it"])
def test_f30_a_job_that_waits_for_hardware_is_cancelled_promptly(
    cloud: Emulator, submitters: Any, jobs: Any, who: str
) -> None:
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.attempt)
    wait_until(lambda: _is_waiting(cloud))
    raised: list[BaseException] = []
    follower = threading.Thread(target=_collect, args=(job, raised))
    follower.start()
    began = time.monotonic()
    if who == "its own process":
        job.cancel("no longer needed")
    elif who == "another process":
        assert submitters.do("cancel", job_id=job.job_id) == 0
    else:
        assert (
            submitters.do("cancel", job_id=job.job_id, at="kinetic_orchestration.jobs.following.drivers.follow")
            == KILLED
        )
    wait_until(lambda: not cloud.queued_resources(), "the end of the queued resource")
    took = time.monotonic() - began
    follower.join(WITHIN)
    cloud.wait_until_empty(WITHIN)
    assert cloud.ledger.count("created", "queued resource") == 1  # and none after it
    assert isinstance(raised[0], JobCancelled)
    assert "no longer needed" in str(raised[0])
    assert job.status() is JobStatus.CANCELLED
    assert job.attempts() == 1
    assert cloud.ledger.count("created", "node") == 0
    assert took < PROMPTLY


def test_f30_a_cancel_before_the_intent_makes_no_request_at_all(
    cloud: Emulator, submitters: Any, tmp_path: Path
) -> None:
    assert (
        submitters.do(
            "submit",
            key="early",
            marks=str(tmp_path / "marks"),
            at="kinetic_orchestration.jobs.following.actions.intend",
        )
        == KILLED
    )
    (job,) = all_jobs()
    job.cancel("no longer needed")
    assert job.status() is JobStatus.CANCELLED
    assert made(cloud) == 0
    assert job._job.store.read(names.intent(job.job_id, 1)) is None


def test_f30_a_running_job_is_cancelled_from_another_process(
    cloud: Emulator, submitters: Any, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    assert submitters.do("cancel", job_id=job.job_id) == 0
    with pytest.raises(JobCancelled, match="no longer needed"):
        job.result(timeout=WITHIN)


def _is_waiting(cloud: Emulator) -> bool:
    return any(queued["state"]["state"] == "WAITING_FOR_RESOURCES" for queued in cloud.queued_resources())


def _collect(job: Any, raised: list[BaseException]) -> None:
    try:
        job.result(timeout=WITHIN)
    except BaseException as error:
        raised.append(error)
