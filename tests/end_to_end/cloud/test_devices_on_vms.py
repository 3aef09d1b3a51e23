"""Device samples on VMs, where every read is a request: they are sent with heartbeats that are written anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import Devices, Event
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import job_report
from kinetic_orchestration.testing import Emulator


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(600)
def test_samples_of_two_vms_arrive_and_their_picture_lies_in_the_bucket(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = kinetic.run(accelerator="v5p-8")(jobs.until).run_async(str(tmp_path / "end"))
    told: set[int] = set()

    def emit(event: Event) -> None:
        if isinstance(event, Devices) and "cpu" in event.values:
            told.add(event.host)
        if told == {0, 1}:
            (tmp_path / "end").touch()

    assert job.follow(emit, timeout=300) is not None
    kept = job_report.read(job.picture() or b"", job.job_id)
    assert set(kept["devices"]["panels"]["memory, GiB"]) == {"host 0", "host 1"}
    assert job.picture_url().startswith("https://storage.cloud.google.com/")
    assert job.picture_url().endswith(f"{names.output_dir(job.job_id)}.svg")
    store = open_store(cloud.environ()["KINETIC_STORE"], cloud.environ()["KINETIC_DEPLOYMENT"])
    for host in (0, 1):
        written = [entry.name for entry in store.list(names.host(job.job_id, 1, host, "log/"))]
        assert len(written) == 1, "its one line; no sample was worth a segment"
