"""A search on an emulated cloud: a bad trial's slice goes to the next one, warm, and none is left at the end."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.wire.lease import ENDED
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import here
from tests.support.jobs import placements, verdicts

RATES = (0.5, 3.0, 0.4, 5.0, 7.0, 0.3)
AT_ONCE = 2


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.parametrize("accelerator", ["v5e-1", "v5e-16"])
def test_pruned_trials_leave_their_slices_to_the_next_ones(cloud: Emulator, jobs: Any, accelerator: str) -> None:
    study = optuna.create_study(study_name="rates", pruner=optuna.pruners.ThresholdPruner(upper=20.0))
    for rate in RATES:
        study.enqueue_trial({"rate": rate})
    train = kinetic.run(accelerator=accelerator)(jobs.tries_rate)
    width = AT_ONCE if accelerator == "v5e-1" else 1
    result = kinetic.search(
        train, study, space={"rate": optuna.distributions.FloatDistribution(0.0, 10.0)}, trials=len(RATES),
        max_concurrent=width, metric="loss", keep="10m",
    )  # fmt: skip
    assert result.counts() == {"COMPLETE": 3, "PRUNED": 3}
    assert (result.parameters, result.value) == ({"rate": 0.3}, 0.3)
    assert cloud.ledger.count("created", "queued resource") == width
    handles = [kinetic.attach(one.job_id) for one in result.trials]
    assert sum("lease" in placement for one in handles for placement in placements(one)) == len(RATES) - width
    for trial, handle in zip(result.trials, handles, strict=True):
        (verdict,) = verdicts(handle)
        assert (verdict.cause, verdict.leaves) == ((wire.CANCELLED, True) if trial.state == "PRUNED" else ("", False))
    assert {held.lease.state for held in slices(here()[0])} == {ENDED}
    cloud.wait_until_empty(60)
