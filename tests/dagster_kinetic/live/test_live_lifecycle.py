"""The fate of jobs when a real run is terminated, its workers are stopped or killed, or it is executed again."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration import JobStatus, attach, list_jobs
from tests.dagster_kinetic.fleet import fleets
from tests.dagster_kinetic.live.browser import chromium, page_of, picture
from tests.dagster_kinetic.live.dagster_server import DagsterDev

FOLDER = Path(tempfile.gettempdir(), f"kinetic-live-lifecycle-{os.getpid()}")
DEFINITIONS = Path(fleets.__file__)
DAGSTER_ENVIRONMENT = {"KINETIC_TEST_FOLDER": str(FOLDER)}
FLEET = 5
WITHIN = 240.0  # for whatever has to come: the machine may be busy

pytestmark = [pytest.mark.slow, pytest.mark.turn(3), pytest.mark.timeout(1200)]


@pytest.fixture(autouse=True)
def folder(dagster_dev: DagsterDev) -> Iterator[Path]:
    """The folder in which jobs report that they run, and wait for the file that lets them go."""
    FOLDER.mkdir(exist_ok=True)
    yield FOLDER
    (FOLDER / "go").touch()
    dagster_dev.until(lambda: not list_jobs(), WITHIN)
    for file in FOLDER.iterdir():
        file.unlink()
    FOLDER.rmdir()


def there() -> list[str]:
    """The jobs whose bodies have begun, one entry for each time that one has."""
    return sorted(path.name.rpartition("-job-")[2] for path in FOLDER.glob("here-*"))


def wait_for_jobs(dagster_dev: DagsterDev, run: str, count: int) -> list[str]:
    dagster_dev.wait(run, "STARTED", within=WITHIN)
    dagster_dev.until(lambda: len(there()) == count, WITHIN, lambda: dagster_dev._story(run))
    return [f"job-{name}" for name in there()]


def retried(dagster_dev: DagsterDev, run: str) -> bool:
    return any(event["eventType"] in ("STEP_UP_FOR_RETRY", "STEP_RESTARTED") for event in dagster_dev.events(run))


@pytest.mark.turn(9)
def test_terminate_cancels_all_jobs_of_a_step_and_only_a_re_execution_runs_it_again(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["waiting_fleet"])
    jobs = wait_for_jobs(dagster_dev, run, FLEET)
    dagster_dev.terminate(run)
    dagster_dev.wait(run, "CANCELED", within=WITHIN)
    assert {attach(job).status() for job in jobs} == {JobStatus.CANCELLED}
    assert not list_jobs()
    assert not retried(dagster_dev, run)
    assert any(f"cancelling {FLEET} jobs" in line for line in dagster_dev.messages(run))
    (FOLDER / "go").touch()
    again = dagster_dev.reexecute(run, "FROM_FAILURE")
    dagster_dev.wait(again, "SUCCESS", within=WITHIN)
    assert len(there()) == 2 * FLEET


def test_more_signals_while_a_terminated_step_cleans_up_change_nothing(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["waiting_asset"])
    [job] = wait_for_jobs(dagster_dev, run, 1)
    worker = dagster_dev.step_worker(run, "waiting_asset")
    dagster_dev.terminate(run)
    dagster_dev.wait_for_message(run, f"cancelling job {job}", WITHIN)
    for _ in range(3):
        try:
            os.kill(worker, signal.SIGTERM)
        except ProcessLookupError:
            break
    dagster_dev.wait(run, "CANCELED", within=WITHIN)
    assert attach(job).status() is JobStatus.CANCELLED
    assert not retried(dagster_dev, run)


def test_a_stopped_run_worker_leaves_its_jobs_and_a_re_execution_from_failure_adopts_them(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["waiting_fleet"])
    jobs = wait_for_jobs(dagster_dev, run, FLEET)
    os.kill(dagster_dev.run_worker(run), signal.SIGTERM)
    dagster_dev.wait_for_message(run, f"detached: {FLEET} jobs .* go on", WITHIN)
    dagster_dev.wait(run, within=WITHIN)
    assert {attach(job).status() for job in jobs} == {JobStatus.RUNNING}
    again = dagster_dev.reexecute(run, "FROM_FAILURE")
    dagster_dev.wait_for_message(again, "of 5 have ended", WITHIN)
    (FOLDER / "go").touch()
    dagster_dev.wait(again, "SUCCESS", within=WITHIN)
    assert [f"job-{name}" for name in there()] == jobs  # each body began once


def test_a_killed_step_worker_finds_its_job_again(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["waiting_asset"])
    [job] = wait_for_jobs(dagster_dev, run, 1)
    os.kill(dagster_dev.step_worker(run, "waiting_asset"), signal.SIGKILL)
    dagster_dev.until(lambda: retried(dagster_dev, run), WITHIN)
    (FOLDER / "go").touch()
    dagster_dev.wait(run, "SUCCESS", within=WITHIN)
    assert [f"job-{name}" for name in there()] == [job]


@pytest.mark.turn(9)
def test_a_killed_run_worker_leaves_a_job_that_a_re_execution_adopts(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["waiting_asset"])
    [job] = wait_for_jobs(dagster_dev, run, 1)
    step, worker = dagster_dev.step_worker(run, "waiting_asset"), dagster_dev.run_worker(run)
    for process in (worker, step):
        os.kill(process, signal.SIGKILL)
    assert attach(job).status() is JobStatus.RUNNING
    # Nobody presses Terminate here: Dagster's code server would wait for the killed worker in Event.set, and hang.
    dagster_dev.wait(run, "FAILURE", within=WITHIN)  # its code server finds the worker dead
    again = dagster_dev.reexecute(run, "FROM_FAILURE")
    dagster_dev.wait_for_message(again, f"{job} runs", WITHIN)
    (FOLDER / "go").touch()
    dagster_dev.wait(again, "SUCCESS", within=WITHIN)
    assert [f"job-{name}" for name in there()] == [job]


@pytest.mark.turn(9)
@pytest.mark.skipif(not chromium(), reason="there is no chromium: apt-get install chromium")
def test_of_two_re_executions_at_once_each_page_says_whose_job_it_follows_and_what_goes_on(
    dagster_dev: DagsterDev, pictures: Path
):
    run = dagster_dev.launch(assets=["waiting_asset"])
    [job] = wait_for_jobs(dagster_dev, run, 1)
    os.kill(dagster_dev.run_worker(run), signal.SIGTERM)
    dagster_dev.wait(run, "FAILURE", "CANCELED", within=WITHIN)
    first, second = (dagster_dev.reexecute(run, "FROM_FAILURE") for _ in range(2))
    for again in (first, second):
        dagster_dev.wait_for_message(again, f"this step goes on with job {job}, which run {run} submitted", WITHIN)
    follows = rf"run ({first}|{second}) follows it too"
    dagster_dev.until(lambda: any(said(dagster_dev, again, follows) for again in (first, second)), WITHIN)
    later, earlier = (first, second) if said(dagster_dev, first, follows) else (second, first)
    shows(f"{dagster_dev.url}/runs/{later}", f"run {earlier} follows it too", pictures, "run-that-follows-too")
    dagster_dev.terminate(earlier)
    dagster_dev.wait(earlier, "CANCELED", within=WITHIN)
    shows(f"{dagster_dev.url}/runs/{earlier}", f"detached: run {later} still follows", pictures, "run-that-detached")
    assert attach(job).status() is JobStatus.RUNNING
    (FOLDER / "go").touch()
    dagster_dev.wait(later, "SUCCESS", within=WITHIN)
    assert [f"job-{name}" for name in there()] == [job]  # its body began once


def said(dagster_dev: DagsterDev, run: str, pattern: str) -> bool:
    return any(re.search(pattern, message) for message in dagster_dev.messages(run))


def shows(url: str, text: str, pictures: Path, name: str) -> None:
    with page_of(url) as page:
        page.get_by_placeholder("Filter…", exact=True).fill(text)  # only rows that are in view are in the page
        page.get_by_text(text).first.wait_for()
        picture(page, pictures, name)


def test_more_jobs_in_one_step_than_its_table_has_rows(dagster_dev: DagsterDev):
    run = dagster_dev.launch(assets=["more_than_a_table_holds"])
    dagster_dev.wait(run, "SUCCESS", within=600)
    [made] = dagster_dev.asset("more_than_a_table_holds")["assetMaterializations"][:1]
    values = {entry["label"]: entry for entry in made["metadataEntries"]}
    assert values["ok"]["intValue"] == 117
    assert values["failed"]["jsonString"].replace(" ", "") == "[13,63,113]"
    assert any("120 of 120 have ended, 3" in line for line in dagster_dev.messages(run))
