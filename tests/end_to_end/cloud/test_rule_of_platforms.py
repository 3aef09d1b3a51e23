"""One deployment without a backend named: each job is where its hardware is, and any process finds it there."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Intent
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.testing import Emulator
from tests.support.on_cloud import STAGED

OLD = 1e6  # seconds, for a limit of patience that is over at once when it is taken from zero


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(300)
def test_tpus_and_gpus_of_one_deployment_run_where_they_are_and_leave_nothing_anywhere(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINETIC_BACKEND")
    for accelerator, backend, page in (("v6e-1", "tpu-vm", "tpus_url"), ("l4", "compute", "vms_url")):
        job = kinetic.run(accelerator=accelerator)(jobs.index).run_async()
        assert (job.backend, job.result(timeout=120)) == (backend, 0)
        assert page in job.links()
        assert kinetic.attach(job.job_id).backend == backend
    here = settings.load()
    store = open_store(here.store, here.deployment)
    _leave_a_vm(job.job_id, store.now())
    monkeypatch.setattr(reaper, "SETTLED", -OLD)
    found = reaper.reap(store, open_backend(here.backend, here), here, patience=60.0)
    assert [(one.zone, one.result) for one in found if one.what == reaper.PLACEMENT] == [("us-west4-a", reaper.REMOVED)]


def _leave_a_vm(job_id: str, now: float) -> None:
    """A VM of an attempt that has its verdict, as a client leaves it that is killed, or asks too late."""
    here = settings.load()
    job = kinetic.attach(job_id)._job
    backend = open_backend("compute", here)
    placement = backend.place(job.plan(), job_id, 1)
    intent = Intent(1, f"boot-{job_id}-1", placement, now + 3600.0, now)
    asked = Submission(job.plan(), STAGED, job_id, digest.of_bytes(b""), intent, {})
    assert backend.submit(asked) == ""
