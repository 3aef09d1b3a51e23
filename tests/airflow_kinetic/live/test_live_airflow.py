"""Airflow as it runs: an API server, a scheduler, a triggerer and a DAG processor, and what may happen to a task there.

What is checked is the truth: the jobs of the store, the programs that began, the processes that live, and the state and
the log that Airflow's REST API tells. One file, so that its Airflow is started once.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.system import processes
from tests.airflow_kinetic.live import scenes
from tests.airflow_kinetic.live.airflow_servers import WITHIN, Airflow
from tests.airflow_kinetic.live.conftest import SideBySide
from tests.airflow_kinetic.live.scenes import (
    SOON,
    TOLERATED,
    Scenes,
    begin,
    begun,
    check_folds,
    check_lines,
    go,
    gone,
    jobs,
    lines,
    living,
    seconds,
    starts,
    stopped,
    triggerer_killed,
)
from tests.dagster_kinetic.live.browser import chromium, page_of, picture

pytestmark = [pytest.mark.slow, pytest.mark.turn(1), pytest.mark.timeout(3600), TOLERATED]

HOSTS = 4
LATE = 6.0  # seconds that a line may need to be seen, once there is a trigger
STOOD_STILL = 15.0  # seconds, longer than a trigger waits after a deferral
CROWD = 500
MAPPED = 480.0  # seconds until so many task instances are there, on a machine that is busy
MEASURED = 20.0  # seconds
MOST_MEMORY = 1.0  # MiB for a task that waits
MOST_CPU = 1.5  # cores, for all of them

SCENES = scene = Scenes()


# ---- while all is well -----------------------------------------------------------------------------------------------


@scene
def test_the_lines_of_all_hosts_are_shown_while_the_task_is_deferred(airflow: Airflow, folder: Path) -> None:
    with begun(airflow, folder, accelerator="v5e-16") as run:
        run.wait("deferred")
        airflow.until(lambda: {host for host, *_ in lines(run)} == set(range(HOSTS)), about=run.text)
        airflow.until(lambda: time.time() - lines(run)[-1][2] < LATE, about=run.text)
        airflow.until(lambda: run.worker() is None, about=lambda: "a worker is held")
        links = run.links()
        assert set(links) >= {"Kinetic job", "Kinetic log"} and all(
            links[name] for name in ("Kinetic job", "Kinetic log")
        )
        [job] = jobs(run)
        assert job.job_id in links["Kinetic job"]
        assert run.task()["state"] == "deferred", "all of this was live"
        go(folder)
        assert run.wait("success")["try_number"] == 1
    assert run.value()["hosts"] == HOSTS
    check_lines(run, hosts=HOSTS, steps=run.value()["steps"])
    assert job.attempts() == 1


@scene
def test_jobs_that_end_in_the_first_seconds_after_the_deferral_fail_no_task(airflow: Airflow, folder: Path) -> None:
    """A trigger that fires then can meet a scheduler which has not noted that the task waits, and which fails it."""
    run = begin(airflow, folder, "first_seconds")
    airflow.until(lambda: run.state in ("success", "failed"), 3 * WITHIN, run.tasks)
    tasks = run.tasks()
    assert {task["state"] for task in tasks} == {"success"}, tasks
    assert {task["try_number"] for task in tasks} == {1}
    values = [run.value(map_index=task["map_index"]) for task in tasks]
    assert sorted(values) == [4.0 * index / len(tasks) for index in range(len(tasks))]
    fired = sum("Trigger fired event" in str(run.log(map_index=task["map_index"])) for task in tasks)
    assert fired >= len(tasks) // 2, "else nothing of this was tried"
    assert len(jobs(run)) == len(tasks)


def test_a_scheduler_that_stands_still_fails_no_task_whose_job_has_ended(
    servers: Airflow, side_by_side: SideBySide, tmp_path: Path
) -> None:
    """The scheduler stops before the deferral, and for longer than a trigger waits otherwise."""
    side_by_side.over()
    scheduler = servers.components["scheduler"].process
    assert scheduler is not None
    with begun(servers, tmp_path, "tried_once") as run:
        run.wait("running")
        scheduler.send_signal(signal.SIGSTOP)
        try:
            run.wait("deferred")
            deferred = time.monotonic()
            go(tmp_path)
            servers.until(lambda: time.monotonic() - deferred > STOOD_STILL)
        finally:
            scheduler.send_signal(signal.SIGCONT)
        assert run.wait("success")["try_number"] == 1
    assert len(jobs(run)) == len(starts(tmp_path)) == 1


@scene
def test_a_person_sees_the_lines_of_a_deferred_task_in_a_browser(airflow: Airflow, folder: Path) -> None:
    if not chromium():
        pytest.skip("there is no chromium: apt-get install chromium")
    with begun(airflow, folder, "weekly_ranker", name="ranker-2026-11-22", accelerator="v5e-16") as run:
        run.wait("deferred")
        airflow.until(lambda: "epoch 6" in run.text(), about=run.text)
        with page_of(f"{airflow.url}/api/v2/version") as page:
            page.context.add_cookies([{"name": "_token", "value": airflow.token, "url": airflow.url}])
            page.goto(f"{airflow.url}/{run.path.replace('dagRuns', 'runs')}/tasks/train")
            page.get_by_text("Deferred").first.wait_for()
            for host in range(HOSTS):
                page.get_by_text(re.compile(rf"epoch \d+: loss .*host={host}\b")).first.wait_for()
            picture(page, folder, "airflow-log")
        assert run.task()["state"] == "deferred", "all of this was live"
        go(folder)
        run.wait("success")


# ---- when a worker dies ----------------------------------------------------------------------------------------------


@scene
def test_a_worker_that_is_killed_in_the_submission_leaves_no_second_job(airflow: Airflow, folder: Path) -> None:
    with begun(airflow, folder, "killed_in_the_submit") as run:
        process = stopped(airflow, run, "in-the-submit")
        assert not jobs(run), "it is not submitted yet"
        noted = run.kept("kinetic")["job_id"]
        processes.send(process, signal.SIGKILL)
        run.wait("deferred", number=2)
        airflow.until(lambda: lines(run, 2), about=lambda: run.text(2))
        go(folder)
        run.wait("success", number=2)
    assert [job.job_id for job in jobs(run)] == [noted], "what it is was written down before it was made"
    assert len(starts(folder)) == 1


@scene
def test_a_worker_that_is_killed_after_the_submission_leaves_its_job_to_the_next_try(
    airflow: Airflow, folder: Path
) -> None:
    scenes.killed_after_the_submission(airflow, folder)


@pytest.mark.turn(8)
@scene
def test_a_worker_that_is_killed_with_all_its_processes_is_replaced_and_the_job_goes_on(
    airflow: Airflow, folder: Path
) -> None:
    scenes.killed_with_all_its_processes(airflow, folder)


# ---- when somebody ends a task ---------------------------------------------------------------------------------------


@pytest.mark.turn(8)
@scene
def test_a_clear_ends_the_job_and_begins_another_one(airflow: Airflow, folder: Path) -> None:
    scenes.cleared(airflow, folder)


@pytest.mark.turn(8)
@scene
def test_a_clear_of_a_task_on_a_worker_does_the_same(airflow: Airflow, folder: Path) -> None:
    with begun(airflow, folder, "training_on_a_worker") as run:
        run.wait("running")
        airflow.until(lambda: starts(folder), about=run.text)
        [first] = jobs(run)
        assert living(first)
        run.clear()
        run.wait("running", number=2)
        airflow.until(lambda: lines(run, 2), about=lambda: run.text(2))
        assert first.peek().status.value == "CANCELLED"
        gone(airflow, first)
        go(folder)
        run.wait("success", number=2)
    assert len(jobs(run)) == 2
    assert len(starts(folder)) == 2


@pytest.mark.turn(8)
@scene
def test_a_task_that_is_marked_by_somebody_ends_its_job(airflow: Airflow, folder: Path) -> None:
    """A deferred one that is marked failed or success, one whose DAG run is, and one on a worker."""
    scenes.marked(airflow, folder, on_worker=("worker",))


# ---- when time is over -----------------------------------------------------------------------------------------------


@scene
def test_an_execution_timeout_passes_while_the_task_is_deferred(airflow: Airflow, folder: Path) -> None:
    with begun(airflow, folder, "out_of_time") as run:
        task = run.wait("failed")
        [job] = jobs(run)
        airflow.until(lambda: job.peek().status.final, SOON, run.text)
    assert job.peek().status.value == "CANCELLED"
    gone(airflow, job)
    said = str(run.log())
    assert "out of time after 0:02:00, its execution_timeout" in said
    assert "Pausing task as DEFERRED" in said
    shown = lines(run)
    assert shown[-1].said - seconds(task["start_date"]) > 100, "and not before"
    assert [line.step for line in shown] == [int(step) for step in re.findall(r"^step (\d+) at", job.logs(), re.M)]
    check_folds(run)


@scene
def test_a_dagrun_timeout_passes_while_the_task_is_deferred(airflow: Airflow, folder: Path) -> None:
    with begun(airflow, folder, "run_out_of_time") as run:
        airflow.until(lambda: run.state == "failed", 2 * WITHIN, run.task)
        assert "Pausing task as DEFERRED" in run.text()
        [job] = jobs(run)
        airflow.until(lambda: job.peek().status.final, SOON, run.text)
    assert job.peek().status.value == "CANCELLED"
    gone(airflow, job)


# ---- when the triggerer dies -----------------------------------------------------------------------------------------


def test_a_triggerer_that_is_killed_loses_no_line_and_no_job(
    servers: Airflow, side_by_side: SideBySide, tmp_path: Path
) -> None:
    side_by_side.over()
    with begun(servers, tmp_path, accelerator="v5e-16") as run:
        run.wait("deferred")
        servers.until(lambda: {host for host, *_ in lines(run)} == set(range(HOSTS)), about=run.text)
        servers.until(lambda: len(lines(run)) > 10 * HOSTS, about=run.text)
        with triggerer_killed(servers):
            [job] = jobs(run)
            assert job.peek().status.value == "RUNNING"
        back = time.time()
        servers.until(lambda: lines(run)[-1][2] > back, about=run.text)
        go(tmp_path)
        assert run.wait("success")["try_number"] == 1
    check_lines(run, hosts=HOSTS, steps=run.value()["steps"])
    assert len(jobs(run)) == 1
    assert len(starts(tmp_path)) == HOSTS


@pytest.mark.turn(8)
def test_worker_and_triggerer_are_killed_at_once_and_there_is_one_job(
    servers: Airflow, side_by_side: SideBySide, tmp_path: Path
) -> None:
    side_by_side.over()
    with begun(servers, tmp_path, "killed_before_the_deferral") as run:
        process = stopped(servers, run, run.run_id)
        servers.until(lambda: starts(tmp_path))
        with triggerer_killed(servers):
            processes.send(process, signal.SIGKILL)
            run.wait("up_for_retry", "queued", "running", "deferred", number=None)
        run.wait("deferred", number=2)
        servers.until(lambda: lines(run, 2), about=lambda: run.text(2))
        go(tmp_path)
        run.wait("success", number=2)
    check_lines(run, hosts=1, steps=run.value()["steps"], number=2)
    assert len(jobs(run)) == 1
    assert len(starts(tmp_path)) == 1


# ---- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.turn(8)
def test_five_hundred_tasks_wait_at_once(servers: Airflow, side_by_side: SideBySide, tmp_path: Path) -> None:
    """Five hundred task instances with a trigger, a follower and a log each, which the triggerer finds in the database.

    One of them got there by a worker; the others are copies of its deferral, because five hundred workers' legs take
    minutes on two cores. All are sensors of one job, because five hundred jobs would be as many process trees. The task
    of that job is deferred, too: its lines are to come as quickly as before.
    """
    side_by_side.over()
    triggerer = servers.components["triggerer"]
    with begun(servers, tmp_path) as run:
        run.wait("deferred")
        servers.until(lambda: len(lines(run)) > 4, about=run.text)
        [job] = jobs(run)
        _, before = triggerer.usage()
        servers.ask("POST", "pools", {"name": "closed", "slots": 0})
        crowd = servers.trigger("crowd", "crowd", job=job.job_id)
        crowd.wait("deferred", task_id="watch")
        servers.until(lambda: crowd.count("scheduled") == CROWD - 1, MAPPED, lambda: crowd.tasks()[:3])
        multiplied = servers.execute(Path(__file__).with_name("multiply.py"), "crowd", "crowd", "watch", "watch_too")
        assert int(multiplied) == CROWD - 1
        began = time.monotonic()
        servers.until(lambda: all(task["triggerer_job"] for task in crowd.tasks()), about=lambda: crowd.tasks()[:3])
        servers.until(lambda: len(list(servers.home.rglob("dag_id=crowd/**/*.trigger.*.log"))) == CROWD)
        taken = time.monotonic() - began
        servers.until(lambda: time.time() - lines(run)[-1][2] < LATE, about=run.text)
        spent, _ = triggerer.usage()
        since = time.monotonic()
        time.sleep(MEASURED)
        now, after = triggerer.usage()
        cpu = (now - spent) / (time.monotonic() - since)
        each = (after - before) / CROWD
        print(f"{CROWD} within {taken:.0f} s; {before:.0f} to {after:.0f} MiB, {each:.2f} each; {cpu:.1%} of a core")
        assert each < MOST_MEMORY
        assert cpu < MOST_CPU
        assert crowd.count("deferred") == CROWD
        servers.until(lambda: time.time() - lines(run)[-1][2] < LATE, about=run.text)
        crowd.mark("failed")
        servers.until(lambda: crowd.count("deferred") == 0)
        assert not job.peek().status.final, "it was only watched"
        go(tmp_path)
        assert run.wait("success")["try_number"] == 1
    check_lines(run, hosts=1, steps=run.value()["steps"])
