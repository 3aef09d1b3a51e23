"""The fate of a job when the worker of its step ends too early: killed, terminated, moved elsewhere."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from kinetic_orchestration import JobStatus, attach
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.protocol.system import processes
from tests.support.waits import wait_until

HERE = Path(__file__).parents[1]
WITHIN = 150.0  # for whatever has to come: the machine may be busy

pytestmark = [pytest.mark.turn, pytest.mark.timeout(600)]


AGAIN = """
import sys
import dagster as dg
import pipelines

if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        again = dg.ReexecutionOptions.from_failure(sys.argv[2], instance)
        job = dg.reconstructable(getattr(pipelines, sys.argv[1] + "_again"))
        dg.execute_job(job, instance, reexecution_options=again)
"""


class Worker:
    """`dagster job execute`, as a run worker runs it: its steps are processes of their own.

    `name`: one that executes the run `after` again from its failure, by `ReexecutionOptions.from_failure`.
    """

    def __init__(self, folder: Path, asset: str = "patient", name: str = "worker", after: str = "") -> None:
        self.folder = folder
        self.asset = asset
        self.instance = dg.DagsterInstance.from_config(str(folder))
        self.log_path = folder / f"{name}.log"
        self.began = {run.run_id for run in self.instance.get_runs()}
        command = [sys.executable, "-m", "dagster", "job", "execute", "-f", "pipelines.py", "-j", f"{asset}_job"]
        if after:
            command = [sys.executable, "-c", AGAIN, asset, after]
        environment = {**os.environ, "DAGSTER_HOME": str(folder), "KINETIC_TEST_FOLDER": str(folder)}
        self.log = self.log_path.open("wb")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log, cwd=HERE)

    def jobs(self) -> list[str]:
        path = self.folder / "jobs"
        return path.read_text().split() if path.exists() else []

    def wait_for_job(self) -> str:
        return self.wait_for_jobs(1)[0]

    def wait_for_jobs(self, count: int) -> list[str]:
        wait_until(lambda: len(self.jobs()) >= count or self.process.poll() is not None)
        assert len(self.jobs()) == count, self.said()
        return self.jobs()

    def step(self) -> int:
        """The process of the one step that runs. What that forks looks like it, until it is another program."""
        for process in processes.descendants(self.process.pid):  # the nearest first
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"spawn_main" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                    return process.pid
        raise AssertionError(self.said())

    def said(self) -> str:
        return self.log_path.read_text()

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def run(self) -> dg.DagsterRun:
        return [run for run in self.instance.get_runs() if run.run_id not in self.began][-1]  # the oldest

    def wait_to_say(self, text: str) -> str:
        """The text in its output that matches this expression."""
        wait_until(lambda: re.search(text, self.said()) or self.process.poll() is not None)
        found = re.search(text, self.said())
        assert found is not None, self.said()
        return found[0]

    def terminate(self) -> None:
        self.instance.report_run_canceling(self.run())
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.instance.dispose()
        self.log.close()

    def wait(self) -> dg.DagsterRunStatus:
        self.process.wait(WITHIN)
        return self.run().status


@pytest.fixture
def worker(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Iterator[Worker]:
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}")
    worker = Worker(tmp_path / "dagster", getattr(request, "param", "patient"))
    yield worker
    worker.let_go()
    for job in worker.jobs():
        attach(job).cancel()
    worker.close()


@pytest.mark.slow
def test_a_killed_step_worker_finds_its_job_again(worker: Worker):
    worker.wait_for_job()
    os.kill(worker.step(), signal.SIGKILL)
    wait_until(lambda: "STEP_RESTARTED" in worker.said() or worker.process.poll() is not None)
    worker.let_go()
    assert worker.wait() is dg.DagsterRunStatus.SUCCESS
    assert len(worker.jobs()) == 1  # the body ran once


@pytest.mark.slow
def test_terminate_cancels_the_job_and_the_run_ends_canceled(worker: Worker):
    job = worker.wait_for_job()
    worker.terminate()
    assert worker.wait() is dg.DagsterRunStatus.CANCELED
    assert attach(job).status() is JobStatus.CANCELLED
    assert len(worker.jobs()) == 1  # its retry policy did not run it again


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_run_that_takes_too_long_for_dagster_ends_its_job_though_it_is_said_to_have_failed_first(worker: Worker):
    """Repeats the daemon's actions when `max_runtime` has passed, with a launcher that does not wait for the worker."""
    job = worker.wait_for_job()
    worker.instance.report_run_canceling(worker.run())
    worker.instance.report_run_failed(worker.run(), "Exceeded maximum runtime of 1 seconds.")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait()
    assert attach(job).status() is JobStatus.CANCELLED
    assert len(worker.jobs()) == 1


@pytest.mark.slow
def test_a_worker_that_is_moved_elsewhere_leaves_its_job_running(worker: Worker):
    job = worker.wait_for_job()
    worker.process.send_signal(signal.SIGTERM)
    worker.wait()
    assert attach(job).status() is JobStatus.RUNNING
    assert f"detached: job {job} goes on" in worker.said()
    worker.let_go()
    assert attach(job).result(timeout=WITHIN) == job


@pytest.mark.slow
@pytest.mark.parametrize(
    "worker, count",
    [pytest.param("patient", 1, marks=pytest.mark.turn(1)), ("patient_map", 2)],
    indirect=["worker"],
)
def test_of_two_re_executions_at_once_the_last_that_is_terminated_ends_the_jobs_that_they_share(
    worker: Worker, count: int
):
    jobs = worker.wait_for_jobs(count)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() is dg.DagsterRunStatus.FAILURE
    first_run = worker.run().run_id
    goes_on = "this step goes on with "
    if count > 1:
        goes_on += r"jobs of a run before it, of input \d with "
    goes_on += rf"job ({'|'.join(jobs)}), which run {first_run} submitted"
    named = " and ".join(rf"job ({'|'.join(jobs)})" for _ in jobs)
    first = Worker(worker.folder, worker.asset, "first", first_run)
    with contextlib.closing(first):
        first.wait_to_say(goes_on)
        if count > 1:
            first.wait_to_say(f"{count} run, 0 wait")
        second = Worker(worker.folder, worker.asset, "second", first_run)
        with contextlib.closing(second):
            one = first.run().run_id
            second.wait_to_say(f"{goes_on}; run {one} follows it too, and it ends when the last of them is terminated")
            if count > 1:
                second.wait_to_say(f"{count} run, 0 wait")
            assert len(re.findall(goes_on, second.said())) == 1, "once, for all of them"
            other = second.run().run_id
            first.terminate()
            assert first.wait() is dg.DagsterRunStatus.CANCELED
            left = first.wait_to_say(f"detached: run {other} still follows {named}, which go(es)? on")
            assert set(re.findall(r"job-\w+", left)) == set(jobs)
            assert [attach(job).status() for job in jobs] == [JobStatus.RUNNING] * count
            second.terminate()
            assert second.wait() is dg.DagsterRunStatus.CANCELED
            for job in jobs:
                with pytest.raises(JobCancelled, match=f"its Dagster run {other} was terminated"):
                    attach(job).result(timeout=WITHIN)
    assert worker.jobs() == jobs  # each body ran once
