"""The same code as on this machine, on slices of an emulated Google Cloud: submit, follow, collect, and nothing left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.plan.values import JobStatus, Output
from kinetic_orchestration.testing import Emulator


def run(function: Any, *arguments: Any, **options: Any) -> Any:
    return kinetic.run(**{"accelerator": "v5e-1", **options})(function).run_async(*arguments)


def test_a_function_runs_on_a_slice_and_its_value_comes_back(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert job.status() is JobStatus.SUCCEEDED
    cloud.wait_until_empty(60)
    assert cloud.ledger.chip_seconds() > 0


def test_four_hosts_run_and_every_hosts_lines_arrive(cloud: Emulator, jobs: Any) -> None:
    job, lines = run(jobs.writes_lines, 50, accelerator="v5e-16"), []
    job.follow(
        lambda event: (
            lines.append((event.host, event.text)) if isinstance(event, Output) and event.kind == "o" else None
        )
    )
    for host in range(4):
        said = b"".join(text for from_host, text in lines if from_host == host)
        assert said == b"".join(b"line %d of host %d\n" % (number, host) for number in range(50))
    assert job.result(timeout=30) == 50


def test_the_users_exception_comes_back_as_itself(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.echoes, str(tmp_path), 0, 0.0)
    with pytest.raises(ValueError, match="the learning rate is negative"):
        job.result(timeout=60)


@pytest.mark.slow
def test_a_job_is_cancelled_wherever_it_is(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    while "running" not in (job.logs() or ""):
        time.sleep(0.1)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(timeout=60)


def test_a_batch_is_attached_to_from_where_new_jobs_would_run_elsewhere(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are looked at where they are."""
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    attempt = kinetic.run(accelerator="v5e-1", backend="tpu-vm")(jobs.attempt)
    batch = attempt.run_async_map([(), ()], input_mode="args")
    again = kinetic.attach_batch(batch.group_id)
    assert {job.backend for job in again.jobs if job is not None} == {"tpu-vm"}
    assert again.results(timeout=60) == [1, 1]


def test_another_process_of_the_same_person_goes_on_with_the_job(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.attempt)
    assert kinetic.attach(job.job_id).result(timeout=60) == 1


def test_a_batch_runs_its_jobs_side_by_side(cloud: Emulator, jobs: Any) -> None:
    batch = kinetic.run(accelerator="v5e-1")(jobs.writes_lines).run_async_map([1, 2, 3], max_concurrent=2)
    assert batch.results(timeout=90) == [1, 2, 3]


LEAVES = """
import {module}
import kinetic_orchestration as kinetic

batch = kinetic.run(accelerator="v5e-1")({module}.attempt).run_async_map([(), ()], input_mode="args", max_concurrent=1)
print(batch.group_id)
"""


def test_a_batch_is_submitted_to_its_end_by_a_program_that_has_come_to_its_own(cloud: Emulator, jobs: Any) -> None:
    left = subprocess.run(
        [sys.executable, "-c", LEAVES.format(module=jobs.__name__)], cwd=Path(jobs.__file__).parent,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert left.returncode == 0, left.stderr
    assert kinetic.attach_batch(left.stdout.strip()).results(timeout=120) == [1, 1]
