"""One job whose attempts take a slice of four hosts, then one of two, then one of four: its losses are those of a job
that nothing disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import nodes
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import placements
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(3)]

STEPS, BATCH = 24, 16
BOUND = 1e-12  # of a loss, as its part: the sums of four hosts are added in another order than those of two
BREAKS = [[9, 4], [18, 2]]
WAYS = [
    kinetic.Choice("v5e-16", cloud=kinetic.TpuVm(zones=[ZONES[0]])),
    kinetic.Choice("v4-8", cloud=kinetic.TpuVm(zones=[ZONES[1]])),
]


@pytest.fixture(autouse=True)
def _hurry(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.delenv("KINETIC_BACKEND", raising=False)


def launched(jobs: Any, folder: Path, breaks: list[list[int]], **options: Any) -> Any:
    folder.mkdir()
    decorate = kinetic.run(accelerator=WAYS, capacity=["spot"], **options)
    return decorate(jobs.descends).run_async(str(folder), STEPS, breaks)


def taken_away(cloud: Emulator, job: Any, folder: Path, step: int) -> None:
    """Its slice is preempted at a step, and there is no other one in that zone, but one in the other."""
    wait_until(lambda: job.status() and (folder / f"at-{step}-0").exists(), f"step {step}")
    zone = placements(job)[-1]["zone"]
    cloud.stockout(zone, "refuse")
    cloud.restock(next(other for other in ZONES[:2] if other != zone))
    (node,) = nodes(cloud, job)
    cloud.preempt(node)


def losses(folder: Path) -> tuple[list[float], list[int]]:
    """The loss of each step, and the number of hosts that made it, after its samples were found to be the batch."""
    told = [json.loads((folder / f"step-{step}").read_text()) for step in range(STEPS)]
    for step, (_, _, samples) in enumerate(told):
        assert samples == list(range(step * BATCH, (step + 1) * BATCH)), step
    return [loss for loss, _, _ in told], [hosts for _, hosts, _ in told]


def test_four_hosts_then_two_then_four_within_one_job(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    elastic = {"reshard": True, "global_batch": BATCH}
    whole = launched(jobs, tmp_path / "whole", [], **elastic)
    assert whole.result(timeout=200) == [0, STEPS * BATCH, "global batch 16 = 4 hosts × 4"]
    expected, _ = losses(tmp_path / "whole")
    folder = tmp_path / "disturbed"
    job = launched(jobs, folder, BREAKS, **elastic)
    for step, _ in BREAKS:
        taken_away(cloud, job, folder, step)
    assert job.result(timeout=200) == [18, STEPS * BATCH, "global batch 16 = 4 hosts × 4"]
    assert [one["choice"] for one in placements(job)] == [0, 1, 0]
    found, hosts = losses(folder)
    assert hosts == [4] * 9 + [2] * 9 + [4] * 6
    apart = max(abs(one - other) / other for one, other in zip(found, expected, strict=True))
    assert found[-1] < 0.7 * found[0] and apart < BOUND
    cloud.wait_until_empty(60)


def test_without_reshard_two_hosts_are_not_chosen_for_what_four_wrote_and_it_says_why(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = launched(jobs, tmp_path / "fixed", BREAKS, global_batch=BATCH)
    taken_away(cloud, job, tmp_path / "fixed", 9)
    wait_until(lambda: job.status() and len(placements(job)) > 1, "the next attempt")
    assert {one["choice"] for one in placements(job)} == {0}, "it waits for what can resume"
    (line,) = [line for line in job.choices() if line.choice == 1]
    assert line.state == "unfit" and line.reason == "cannot resume the checkpoint: it has 2 hosts, and 4 hosts wrote it"
    (tmp_path / "fixed" / "go-9").touch()
    cloud.restock(ZONES[0])
    assert job.result(timeout=200)[1:] == [STEPS * BATCH, "global batch 16 = 4 hosts × 4"]
    cloud.wait_until_empty(60)
