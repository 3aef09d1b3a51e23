"""Submitters that die, race, or do not hear what they asked for: one job, one run of it, and nothing left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.api.handle import all_jobs
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.protocol import wire
from tests.end_to_end.kubernetes.between import ANSWER, REQUEST, Between
from tests.end_to_end.kubernetes.cases import NONE, ONE_HOST, Cluster, run
from tests.support.jobs import WITHIN, changes, placements, told
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(0)]

BACKEND = "kinetic_orchestration.platforms.kubernetes"


def marks_in(path: Path) -> list[str]:
    """One for each run of the function."""
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("kinetic_orchestration.jobs.following.actions.intend", id="before the intent"),
        pytest.param(f"{BACKEND}.backend.submit", id="before the create call"),
        pytest.param(f"{BACKEND}.manifest.secret", id="after the create call"),
        pytest.param("kinetic_orchestration.jobs.following.actions.release", id="before it releases the set"),
    ],
)
def test_a_submitter_is_killed_and_the_next_one_with_the_same_key_goes_on(
    cluster: Cluster, submitters: Any, tmp_path: Path, at: str
) -> None:
    marks, value = tmp_path / "marks", tmp_path / "value"
    cluster.single()
    assert submitters.do("submit", key="one", marks=str(marks), at=at) == -signal.SIGKILL
    assert submitters.do("submit", report=value, key="one", marks=str(marks)) == 0
    assert marks_in(marks) == [json.loads(value.read_text())]
    assert len(all_jobs()) == 1


def test_two_processes_that_submit_at_once_have_one_job(cluster: Cluster, submitters: Any, tmp_path: Path) -> None:
    marks, values, go = tmp_path / "marks", [tmp_path / "a", tmp_path / "b"], tmp_path / "go"
    cluster.single()
    both = [submitters.start("submit", report=value, key="one", marks=str(marks), go=str(go)) for value in values]
    go.touch()
    assert [submitters.wait(child) for child in both] == [0, 0]
    assert [json.loads(value.read_text()) for value in values] == 2 * marks_in(marks)
    assert len(all_jobs()) == 1


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("kinetic_orchestration.jobs.following.actions.intend", id="before the intent"),
        pytest.param(f"{BACKEND}.backend.submit", id="before the create call"),
        pytest.param(f"{BACKEND}.manifest.secret", id="after the create call"),
    ],
)
def test_a_submitter_that_wakes_up_after_its_job_has_ended_changes_nothing(
    cluster: Cluster, submitters: Any, tmp_path: Path, at: str
) -> None:
    """The set that it still makes has the name of the one that is gone: its pods find the verdict, and run nothing."""
    marks, late, value = tmp_path / "marks", tmp_path / "late", tmp_path / "value"
    cluster.single()
    sleeper = submitters.start("submit", report=late, key="stale", marks=str(marks), at=at, then="sleep")
    assert submitters.wait_stopped(sleeper)
    assert submitters.do("submit", report=value, key="stale", marks=str(marks)) == 0
    cluster.wait_until_empty()
    submitters.wake(sleeper)
    assert submitters.wait(sleeper) == 0
    assert [json.loads(path.read_text()) for path in (late, value)] == 2 * marks_in(marks)
    assert len(all_jobs()) == 1


def test_a_submitter_that_wakes_up_after_its_attempt_was_followed_by_another_disturbs_nobody(
    cluster: Cluster, submitters: Any, tmp_path: Path
) -> None:
    """It sleeps before it makes the set of attempt 1, which has its verdict by then."""
    marks, late, value = tmp_path / "marks", tmp_path / "late", tmp_path / "value"
    cluster.single(2)
    at = f"{BACKEND}.backend.submit"
    sleeper = submitters.start("submit", report=late, key="stale", marks=str(marks), at=at, then="sleep")
    assert submitters.wait_stopped(sleeper)
    (job,) = all_jobs()
    actions.close(job._job, 1, wire.PREEMPTION, "taken away")
    assert submitters.do("submit", report=value, key="stale", marks=str(marks)) == 0
    submitters.wake(sleeper)
    assert submitters.wait(sleeper) == 0
    assert [json.loads(path.read_text()) for path in (late, value)] == 2 * marks_in(marks)
    assert len(placements(job)) == 2


@pytest.mark.parametrize("what", [ANSWER, REQUEST])
def test_a_create_call_whose_answer_is_lost_makes_one_set(
    cluster: Cluster, jobs: Any, tmp_path: Path, between: Between, what: str
) -> None:
    cluster.single()
    between.lose("POST", "/jobsets", what)
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST)
    assert [job.result(timeout=WITHIN)] == marks_in(tmp_path / "marks")
    assert between.lost == 1
    assert len(placements(job)) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_create_call_that_an_overloaded_server_refuses_is_made_again_in_the_same_place(
    cluster: Cluster, jobs: Any, tmp_path: Path, between: Between, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    cluster.single()
    between.refuse("POST", "/jobsets", status, times=5)
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST, retry=NONE)
    assert [job.result(timeout=WITHIN)] == marks_in(tmp_path / "marks")
    assert between.lost == 5
    assert len(placements(job)) == 1


def test_a_set_of_somebody_else_with_this_name_is_told_and_not_deleted(
    cluster: Cluster, jobs: Any, tmp_path: Path, between: Between
) -> None:
    def take(method: str, path: str, body: Any) -> None:
        if method == "POST" and path.endswith("/jobsets") and "-000000000000-" not in body["metadata"]["name"]:
            theirs = {**body, "metadata": {"name": body["metadata"]["name"], "labels": {"team": "other"}}}
            cluster.api.create(path, theirs)

    between.before = take
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST, retry=NONE)
    with pytest.raises(JobError, match=r"exists already and belongs to somebody else, without our labels: .*kubectl"):
        job.result(timeout=WITHIN)
    (theirs,) = cluster.sets()
    assert theirs["metadata"]["labels"] == {"team": "other"}
    assert "deletionTimestamp" not in theirs["metadata"]
    cluster.delete_set(theirs["metadata"]["name"])


def test_a_secret_that_was_not_made_with_its_set_is_made_once_its_pods_wait_for_it(
    cluster: Cluster, jobs: Any, tmp_path: Path, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has its value makes it: who submitted the set may have died in between."""
    monkeypatch.setattr(client, "PAUSES", ())
    monkeypatch.setenv("HF_TOKEN", "hf_of-this-process")
    cluster.single()
    (tmp_path / "go").touch()
    between.lose("POST", "/secrets", REQUEST, times=2)  # a kept connection that breaks is opened once more
    arguments = ["HF_TOKEN"], str(tmp_path / "go")
    job = run(jobs.fingerprint, *arguments, capture_env_vars=["HF_TOKEN"], accelerator=ONE_HOST, retry=NONE)
    wait_until(lambda: "CreateContainerConfigError" in json.dumps(cluster.list("pods")), "its pod waits", pause=0.1)
    assert list(job.result(timeout=WITHIN)) == ["HF_TOKEN"]
    assert between.lost == 2
    assert len(placements(job)) == 1


def test_a_controller_that_is_away_is_waited_for(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its webhook is asked before anything is created, so nothing is."""
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    cluster.single()
    cluster.plane.interrupt("jobset")
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST)
    cluster.plane.resume("jobset")
    said = changes(told(job))
    assert [job.result(timeout=WITHIN)] == marks_in(tmp_path / "marks")
    assert said
