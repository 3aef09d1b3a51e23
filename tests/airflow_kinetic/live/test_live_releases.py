"""An older Airflow as it runs, each with its own components: what happens there to a task, its job and its log.

`nox -s airflow -- 2.11.2` plays it on one of them, in an environment that it makes. What is checked is the truth: the
jobs of the store, the programs that began, the processes that live, and the state and the log that Airflow tells.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow_kinetic.conftest import environ_of
from tests.airflow_kinetic.live import scenes
from tests.airflow_kinetic.live.airflow_servers import Airflow, airflow_servers
from tests.airflow_kinetic.live.conftest import DAGS, HERE, MOST_HOSTS, SideBySide
from tests.airflow_kinetic.live.releases import Release
from tests.airflow_kinetic.live.scenes import (
    SOON,
    TOLERATED,
    Scenes,
    begun,
    check_lines,
    go,
    gone,
    jobs,
    lines,
    starts,
)
from tests.support.airflow_releases.environment import CHOSEN, RELEASES, NotInstalled, made

pytestmark = [pytest.mark.offline, pytest.mark.timeout(1800), TOLERATED]

HOSTS = 4
LATE = 6.0  # seconds that a line may need to be seen, once there is a trigger

SCENES = scene = Scenes()


@pytest.fixture(scope="module")
def release() -> Release:
    """The one that is asked for, else the oldest."""
    version = CHOSEN or RELEASES[0]
    try:
        return Release(version, made(version))
    except NotInstalled as error:
        pytest.skip(f"Airflow {version} cannot be installed from here: {error}")


@pytest.fixture(scope="module")
def servers(shared_home: Path, release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """It runs, with a KINETIC_HOME of the module's own."""
    folder = tmp_path_factory.mktemp("live")
    dags = shutil.copytree(HERE / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (home := folder / "home").mkdir()
    environ = {**environ_of(home, dags), "KINETIC_MAX_HOSTS": MOST_HOSTS, "KINETIC_HOME": str(shared_home)}
    release.prepare(home, environ)
    with airflow_servers(home, environ, DAGS, (), release) as started:
        yield started


# ---- while all is well -----------------------------------------------------------------------------------------------


@scene
def test_a_deferred_task_shows_the_lines_of_all_hosts_live_and_has_them_at_its_end(
    airflow: Airflow, folder: Path
) -> None:
    with begun(airflow, folder, accelerator="v5e-16") as run:
        run.wait("deferred")
        airflow.until(lambda: {host for host, *_ in lines(run)} == set(range(HOSTS)), about=run.text)
        airflow.until(lambda: time.time() - lines(run)[-1].said < LATE, about=run.text)
        airflow.until(lambda: run.worker() is None, about=lambda: "a worker is held")
        [job] = jobs(run)
        assert job.job_id in run.links()["Kinetic job"]
        assert run.task()["state"] == "deferred", "all of this was live"
        go(folder)
        assert run.wait("success")["try_number"] == 1
    value = run.value()
    assert value["hosts"] == HOSTS
    check_lines(run, hosts=HOSTS, steps=value["steps"])
    assert job.attempts() == 1
    logs = list(airflow.home.rglob(f"run_id={run.run_id}/**/*.trigger.*.log"))
    assert logs, "else nothing of this was tried"
    for path in logs:  # which are lost where a triggerer's log goes to no store
        path.unlink()
    assert f"step {value['steps'] - 1} at" in run.text(), "the end of the log is the task's own as well"


# ---- when a worker dies ----------------------------------------------------------------------------------------------


@scene
def test_a_worker_that_is_killed_after_the_submission_leaves_its_job_to_the_next_try(
    airflow: Airflow, folder: Path
) -> None:
    scenes.killed_after_the_submission(airflow, folder)


@scene
def test_a_worker_that_is_killed_with_all_its_processes_is_replaced_and_the_job_goes_on(
    airflow: Airflow, folder: Path
) -> None:
    scenes.killed_with_all_its_processes(airflow, folder)


# ---- when somebody ends a task ---------------------------------------------------------------------------------------


@scene
def test_a_clear_ends_the_job_and_begins_another_one(airflow: Airflow, folder: Path) -> None:
    scenes.cleared(airflow, folder)


@scene
def test_a_task_that_is_marked_by_somebody_ends_its_job(airflow: Airflow, folder: Path) -> None:
    """A deferred one that is marked failed or success, and one whose DAG run is."""
    scenes.marked(airflow, folder)


# ---- when the triggerer goes -----------------------------------------------------------------------------------------


def test_a_job_outlives_triggerers_that_are_stopped_or_killed_and_ends_when_its_task_is_marked(
    servers: Airflow, side_by_side: SideBySide, tmp_path: Path
) -> None:
    side_by_side.over()
    triggerer = servers.components["triggerer"]
    with begun(servers, tmp_path) as run:
        run.wait("deferred")
        servers.until(lambda: len(lines(run)) > 4, about=run.text)
        [job] = jobs(run)
        for end in (triggerer.stop, triggerer.kill):
            end()
            assert job.peek().status.value == "RUNNING", "nobody has ended the task"
            triggerer.start()
            back = time.time()
            servers.until(lambda back=back: lines(run)[-1].said > back, about=run.text)
            assert run.task()["state"] == "deferred"
        assert len(starts(tmp_path)) == 1
        run.mark_task("failed")
        servers.until(lambda: job.peek().status.final, SOON, run.text)
    assert job.peek().status.value == "CANCELLED"
    gone(servers, job)
    found = [line.step for line in lines(run)]
    assert found == list(range(len(found))), run.text()
