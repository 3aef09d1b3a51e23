"""Submitters that are killed, race or oversleep, and jobs that are cancelled while they wait: one job, one run, one VM,
and nothing is left. Each submitter is a process of its own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import all_jobs
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import ZONES, instances, made, run
from tests.support.faults import KILLED, RECORDS
from tests.support.jobs import WITHIN, lines, told, verdicts
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]

CLIENT = "kinetic_orchestration.platforms.google.compute.client"
FOLLOWING = "kinetic_orchestration.jobs.following"
JOINED = "ignore:the 2 hosts of l4 are joined over plain TCP"


def marks_in(path: Path) -> list[str]:
    """One for each run of the function."""
    return path.read_text().split() if path.exists() else []


def assert_one_of_all(cloud: Emulator, marks: Path, values: list[str], vms: int = 1) -> None:
    """One job, one run of the function, one result, and nothing that costs."""
    assert values == marks_in(marks) * len(values)
    assert len(all_jobs()) == 1
    cloud.wait_until_empty(WITHIN)
    assert made(cloud) == vms


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(f"{FOLLOWING}.actions.intend", id="before the intent"),
        pytest.param(f"{CLIENT}.insert", id="after the intent"),
        pytest.param(f"{CLIENT}._event", id="after the create call, before its operation is read"),
        pytest.param(f"{FOLLOWING}.actions.release", id="before it releases the VM"),
    ],
)
def test_f01_a_submitter_is_killed_and_the_next_one_with_the_same_key_goes_on(
    cloud: Emulator, submitters: Any, tmp_path: Path, at: str
) -> None:
    marks, value = tmp_path / "marks", tmp_path / "value"
    job = {"key": "one", "marks": str(marks), "accelerator": "l4"}
    assert submitters.do("submit", **job, at=at) == KILLED
    assert submitters.do("submit", report=value, **job) == 0
    assert_one_of_all(cloud, marks, [json.loads(value.read_text())])


def test_f03_four_submitters_that_race_for_one_identity_get_one_job(
    cloud: Emulator, submitters: Any, tmp_path: Path
) -> None:
    marks, go, reports = tmp_path / "marks", tmp_path / "go", [tmp_path / f"value-{n}" for n in range(4)]
    job = {"key": "race", "marks": str(marks), "accelerator": "l4", "go": str(go)}
    children = [submitters.start("submit", report, **job) for report in reports]
    go.touch()
    assert [submitters.wait(child) for child in children] == [0] * 4
    assert_one_of_all(cloud, marks, [json.loads(report.read_text()) for report in reports])


@pytest.mark.parametrize(
    ("at", "remembered"),
    [
        pytest.param(f"{FOLLOWING}.actions.intend", True, id="before the intent"),
        pytest.param(f"{CLIENT}.insert", True, id="before the create call"),
        pytest.param(f"{CLIENT}.insert", False, id="before a create call that the API knows no more"),
        pytest.param(f"{FOLLOWING}.actions.release", True, id="before it releases the VM"),
    ],
)
def test_f04_a_submitter_that_wakes_up_after_its_job_has_ended_changes_nothing(
    cloud: Emulator, submitters: Any, tmp_path: Path, at: str, remembered: bool
) -> None:
    """Anything that it still requests ends itself before it runs anything: how long the API remembers is unknown."""
    marks, late, value = tmp_path / "marks", tmp_path / "late", tmp_path / "value"
    job = {"key": "stale", "marks": str(marks), "accelerator": "l4"}
    sleeper = submitters.start("submit", late, **job, at=at, then="sleep")
    assert submitters.wait_stopped(sleeper)
    assert submitters.do("submit", report=value, **job) == 0
    cloud.wait_until_empty(WITHIN)
    if not remembered:
        cloud.compute._requests.clear()
    submitters.wake(sleeper)
    assert submitters.wait(sleeper) == 0
    values = [json.loads(path.read_text()) for path in (late, value)]
    assert_one_of_all(cloud, marks, values, vms=1 if remembered else 2)


@pytest.mark.parametrize("how", ["503", "no answer", "done, and the answer lost"])
@pytest.mark.filterwarnings(JOINED)
def test_f19_every_write_of_client_and_hosts_may_be_refused_or_done_and_its_answer_lost(
    cloud: Emulator, jobs: Any, how: str
) -> None:
    """The first write of each record is struck: one attempt, one result, every line once."""
    for match in RECORDS:
        cloud.storage.fail(match, 503 if how == "503" else 0, after="lost" in how)
    job = run(jobs.writes_lines, 50, cloud=kinetic.Compute(hosts=2))
    heard = told(job)
    for host in range(2):
        assert lines(heard, host) == "".join(f"line {number} of host {host}\n" for number in range(50))
    assert job.result(timeout=WITHIN) == 50
    assert [verdict.kind for verdict in verdicts(job)] == ["committed"]
    assert made(cloud) == 2
    assert not [rule.glob for rule in cloud.storage._rules if rule.left], "every record was struck"


@pytest.mark.filterwarnings(JOINED)
def test_f20_a_log_reader_that_is_killed_in_mid_segment_leaves_no_gap_for_the_next_one(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path
) -> None:
    """Each goes on from the cursor that was saved last; by (host, segment, offset) every piece is unique."""
    job = run(jobs.writes_lines, 1000, str(tmp_path / "go"), cloud=kinetic.Compute(hosts=2))
    how = {"job_id": job.job_id, "cursor": str(tmp_path / "cursor"), "heard": str(tmp_path / "heard")}
    ended = []
    for most in (1, 2, 3):
        ended.append(submitters.do("read", **how, most=most))
        (tmp_path / "go").touch()
    assert ended.count(KILLED) >= 2
    assert submitters.do("read", **how, most=-1) == 0
    pieces: dict[tuple[int, int, int], list[Any]] = {}
    for line in (tmp_path / "heard").read_text().splitlines():
        host, segment, offset, *rest = json.loads(line)
        assert pieces.setdefault((host, segment, offset), rest) == rest
    for host in range(2):
        found = "".join(rest[2] for key, rest in sorted(pieces.items()) if key[0] == host and rest[0] == "o")
        assert found == "".join(f"line {number} of host {host}\n" for number in range(1000))
    assert job.result(timeout=WITHIN) == 1000


@pytest.mark.parametrize("who", ["its own process", "another process", "a process that dies of it"])
def test_f30_a_job_that_waits_for_capacity_is_cancelled_promptly(
    cloud: Emulator, submitters: Any, jobs: Any, who: str
) -> None:
    """It never ran, and its request is gone: nothing comes of it once there is capacity again."""
    cloud.compute.stockout(ZONES[0])
    job = run(jobs.attempt, cloud=kinetic.Compute(flex_start=True), limits=kinetic.Limits(run=3600))
    wait_until(lambda: [cloud.compute.chosen(name).status for name in instances(cloud, job)] == ["PENDING"])
    raised: list[BaseException] = []
    follower = threading.Thread(target=_collect, args=(job, raised))
    follower.start()
    if who == "its own process":
        job.cancel("no longer needed")
    else:
        dies = {} if who == "another process" else {"at": f"{FOLLOWING}.drivers.follow"}
        assert submitters.do("cancel", job_id=job.job_id, **dies) == (KILLED if dies else 0)
    wait_until(lambda: not cloud.compute.instances, "the end of the request", within=60)
    cloud.compute.restock(ZONES[0])
    follower.join(WITHIN)
    assert isinstance(raised[0], JobCancelled)
    assert "no longer needed" in str(raised[0])
    assert job.status() is JobStatus.CANCELLED
    assert made(cloud) == 1
    assert cloud.ledger.chip_seconds() == 0


def _collect(job: Any, raised: list[BaseException]) -> None:
    try:
        job.result(timeout=WITHIN)
    except BaseException as error:
        raised.append(error)
