"""A store and an API that refuse, lose their answers or say nothing for a while: that costs time and nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Denied, Unreachable
from kinetic_orchestration.jobs.following import follower
from kinetic_orchestration.plan.values import Event, JobStatus
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import FOUR_HOSTS, run
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.faults import KILLED, RECORDS
from tests.support.jobs import WITHIN, changes, lines, placements, told, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]

OF_SEVERAL_HOSTS = ("insert */exit.json",)
ONE_HOST = "v5e-1"
READS = ("GetNode", "ListNodes", "GetQueuedResource", "ListQueuedResources")
REFUSED = 3  # requests, so that whoever asks has asked again


def assert_one_good_attempt(cloud: Emulator, job: Any, value: Any) -> None:
    """Assert that the fault had no effect: one committed attempt, on one slice."""
    assert job.result(timeout=WITHIN) == value
    (attempt,) = job.history()
    assert attempt.verdict is not None
    assert attempt.verdict.kind == "committed"
    assert cloud.ledger.count("created", "queued resource") == 1


@pytest.mark.parametrize(
    ("how", "accelerator"),
    [
        ("503", ONE_HOST),
        ("429", ONE_HOST),
        ("no answer", ONE_HOST),
        ("done, and the answer lost", FOUR_HOSTS),
        ("done, and the answer lost, and then 503", ONE_HOST),
    ],
)
def test_f19_every_write_of_client_and_hosts_may_be_refused_or_done_and_its_answer_lost(
    cloud: Emulator, jobs: Any, how: str, accelerator: str
) -> None:
    """The first write of each record is struck: one attempt, one result, every line once. A write that was done is
    answered with 412 when it is made again."""
    struck = [match for match in RECORDS if accelerator == FOUR_HOSTS or match not in OF_SEVERAL_HOSTS]
    for match in struck:
        if "lost" in how:
            cloud.storage.fail(match, after=True)
        if how != "done, and the answer lost":
            cloud.storage.fail(match, 0 if how == "no answer" else int(how[-3:]))
    job = run(jobs.writes_lines, 50, accelerator=accelerator)
    heard = told(job)
    for host in range(job.hosts):
        assert lines(heard, host) == "".join(f"line {number} of host {host}\n" for number in range(50))
    assert_one_good_attempt(cloud, job, 50)
    assert not [rule.glob for rule in cloud.storage._rules if rule.left], "every record was struck"


def test_f19_a_policy_that_is_refused_with_412_is_no_lost_race(cloud: Emulator, jobs: Any) -> None:
    cloud.storage.refuse("insert */in/spec.json", "org-policy")
    with pytest.raises(Denied, match=r"constraints/gcp\.resourceLocations"):
        run(jobs.attempt)
    assert not cloud.queued_resources()


def test_f20_a_log_reader_that_is_killed_in_mid_segment_leaves_no_gap_for_the_next_one(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path
) -> None:
    """Each goes on from the cursor that was saved last; by (host, segment, offset) every piece is unique."""
    job = run(jobs.writes_lines, 2000, str(tmp_path / "go"), accelerator=FOUR_HOSTS)
    cursor, heard = tmp_path / "cursor.json", tmp_path / "heard"
    ended = []
    for most in (1, 2, 3, 5):
        ended.append(_read(submitters, job, cursor, heard, most))
        (tmp_path / "go").touch()
    assert ended.count(KILLED) >= 3
    assert _read(submitters, job, cursor, heard, -1) == 0
    pieces: dict[tuple[int, int, int], list[Any]] = {}
    for line in heard.read_text().splitlines():
        host, segment, offset, *rest = json.loads(line)
        assert pieces.setdefault((host, segment, offset), rest) == rest
    for host in range(4):
        found = "".join(rest[2] for key, rest in sorted(pieces.items()) if key[0] == host and rest[0] == "o")
        assert found == "".join(f"line {number} of host {host}\n" for number in range(2000))
    assert max(segment for _, segment, _ in pieces) > 0
    assert job.result(timeout=WITHIN) == 2000


def _read(submitters: Any, job: Any, cursor: Path, heard: Path, most: int) -> int:
    return int(submitters.do("read", job_id=job.job_id, cursor=str(cursor), heard=str(heard), most=most))


def _refused(cloud: Emulator) -> int:
    return sum(call.status == 503 for call in cloud.storage.calls)


@pytest.mark.parametrize("match", ["get *", "list *", "*"])
def test_f32_a_store_that_cannot_be_read_for_a_while_ends_no_attempt(
    cloud: Emulator, jobs: Any, tmp_path: Path, match: str
) -> None:
    """Neither its follower nor its host take what they cannot read for gone."""
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    cloud.storage.fail(match, 503, times=None)
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(job.result(timeout=WITHIN)))
    thread.start()
    wait_until(lambda: _refused(cloud) >= REFUSED, "refusals")
    assert thread.is_alive()
    cloud.storage.heal()
    (tmp_path / "go").touch()
    thread.join(WITHIN)
    assert values == [1]
    assert_one_good_attempt(cloud, job, 1)


def test_f32_a_store_that_is_away_for_longer_than_a_client_waits_is_told_and_ends_no_attempt(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    monkeypatch.setattr(job._job.store.requests, "patience", 0.5)
    cloud.storage.fail("*", 503, times=None)
    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(follower, "STORE_PATIENCE", 0.0)
        with pytest.raises(Unreachable, match="try again"):
            job.result(timeout=WITHIN)
    events: list[Event] = []
    thread = threading.Thread(target=lambda: job.follow(events.append, timeout=WITHIN))
    thread.start()
    wait_until(lambda: any("try again" in line for line in changes(list(events))), "word of the store")
    assert thread.is_alive()
    cloud.storage.heal()
    (tmp_path / "go").touch()
    thread.join(WITHIN)
    assert not thread.is_alive()
    assert_one_good_attempt(cloud, kinetic.attach(job.job_id), 1)


@pytest.mark.parametrize("how_many", [1, 2], ids=["asked for by name", "listed"])
@pytest.mark.parametrize("code", [14, 8, 13], ids=["503", "429", "500"])
def test_f32_a_tpu_api_that_does_not_answer_ends_no_attempt_and_makes_no_slice(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how_many: int, code: int
) -> None:
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.2)
    running = [run(jobs.until, str(tmp_path / "go")) for _ in range(how_many)]
    for job in running:
        wait_running(job)
    before = cloud.count("CreateQueuedResource")
    asked = _reads(cloud)
    for method in READS:
        cloud.fail(method, code, "try again later", times=None, caller="client")
    values: list[Any] = []
    followers = [threading.Thread(target=lambda job=job: values.append(job.result(timeout=WITHIN))) for job in running]
    for thread in followers:
        thread.start()
    wait_until(lambda: _reads(cloud) > asked + 4, "a look at the API")
    assert [job.status() for job in running] == [JobStatus.RUNNING] * how_many
    cloud.clear_faults()
    (tmp_path / "go").touch()
    for thread in followers:
        thread.join(WITHIN)
    assert values == [1] * how_many
    for job in running:
        assert [attempt.verdict.kind for attempt in job.history() if attempt.verdict] == ["committed"]
    assert cloud.count("CreateQueuedResource") == before == how_many


def test_f32_a_job_that_waits_for_hardware_waits_on_while_the_api_does_not_answer(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.2)
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.attempt)
    assert job.status() is JobStatus.PENDING
    asked = _reads(cloud)
    for method in READS:
        cloud.fail(method, 14, times=None, caller="client")
    wait_until(lambda: job.status() is not JobStatus.PENDING or _reads(cloud) > asked + 4)
    cloud.clear_faults()
    cloud.restock(ZONES[0])
    assert_one_good_attempt(cloud, job, 1)


def test_f32_a_create_call_that_is_answered_with_503_is_made_again_in_the_same_place(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.fail("CreateQueuedResource", 14, times=3)
    job = run(jobs.attempt)
    assert_one_good_attempt(cloud, job, 1)
    assert len(placements(job)) == 1
    assert job._job.store.read(names.intent(job.job_id, 2)) is None


def _reads(cloud: Emulator) -> int:
    return sum(cloud.count(method, "client") for method in READS)
