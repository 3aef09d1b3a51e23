"""A search by Vizier's client, run in an environment of its own by `test_search_by_vizier.py`; prints JSON."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import kinetic_orchestration as kinetic

TRIALS = 5


@kinetic.run(accelerator="cpu")
def train(lr: float, units: int, folder: str) -> dict[str, float]:
    host = kinetic.current()
    with Path(folder, "trained").open("a") as trained:
        trained.write(f"{host.job_id}\n")
    assert isinstance(units, int)
    for step in range(3):
        host.log_metrics(step=step, loss=lr + 1 / (units + step))
    return {"loss": math.nan if units > 48 else lr + 1 / units}


def main(folder: str) -> None:
    from vizier.service import clients
    from vizier.service import pyvizier as vz

    config = vz.StudyConfig(algorithm="RANDOM_SEARCH")
    config.search_space.root.add_float_param("lr", 1e-4, 1e-1, scale_type=vz.ScaleType.LOG)
    config.search_space.root.add_int_param("units", 1, 64)
    config.metric_information.append(vz.MetricInformation("loss", goal=vz.ObjectiveMetricGoal.MINIMIZE))
    study = clients.Study.from_study_config(config, owner="tests", study_id="rates")
    if not list(study.trials()):
        study.request(vz.TrialSuggestion({"lr": 1e-4, "units": 64}))  # which fails
    result = kinetic.search(
        train, study, trials=TRIALS, max_concurrent=2, metric="loss", fixed={"folder": folder}, patience=TRIALS
    )
    measured = [[one.steps for one in trial.materialize().measurements] for trial in study.trials()]
    told = {one.number: (one.state, one.value, one.job_id, one.why) for one in result.trials}
    print(json.dumps({"best": dict(result.parameters), "value": result.value, "trials": told, "measured": measured}))


if __name__ == "__main__":
    main(sys.argv[1])
