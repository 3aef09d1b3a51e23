"""A job that was called back, and is asked for again: by whoever wanted it to end, or by whoever lost it to a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.plan.values import JobStatus


@pytest.mark.parametrize("anew", [True, False], ids=["only this run is unwanted", "the job is unwanted"])
def test_a_cancel_says_whether_the_job_may_begin_anew(home: Path, anew: bool) -> None:
    (home / "go").mkdir()  # what keeps the first run waiting
    command = ["sh", "-c", f"while [ -d {home / 'go'} ]; do sleep 0.1; done"]
    job = kinetic.command(command, accelerator="cpu", key="k")
    actions.cancel(job._job, "its task was killed", "a test", anew=anew)
    outcome = job.follow(timeout=60)
    assert outcome is not None
    assert outcome.status is JobStatus.CANCELLED
    (home / "go").rmdir()
    again = kinetic.command(command, accelerator="cpu", key="k")
    assert (again.job_id != job.job_id) is anew
    if anew:
        assert again.result(timeout=60) is None
    else:
        with pytest.raises(JobCancelled, match="its task was killed"):
            again.result(timeout=60)
