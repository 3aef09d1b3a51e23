"""Searches for a learning rate and a width with Optuna: bad trials end early, and their slices go to the next ones.

    python example_pipelines/search_optuna.py             here and now, on the terminal
    dagster dev -f example_pipelines/search_optuna.py     the same in Dagster's own pages

Optuna (`pip install optuna`) chooses the parameters in the process of the step; hosts do not need it. The study lies in
a file, so a step that is tried again goes on with the trials that run, and trains none twice.

To change for a real slice: the accelerator, and the study in a database that all workers reach,
    storage="postgresql://…"
    KINETIC_PROJECT=my-project KINETIC_STORE=gs://my-bucket/kinetic KINETIC_DEPLOYMENT=me
    KINETIC_REQUIRE_HARDWARE=true
`keep="5m"` is for there: here nothing is created, and nothing kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import optuna

import kinetic_orchestration as kinetic

SPACE = {
    "rate": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
    "width": optuna.distributions.IntDistribution(2, 32),
}
TRIALS, AT_ONCE, STEPS = 12, 3, 60


@kinetic.run(accelerator="v5e-1")
def train(rate: float, width: int) -> dict[str, float]:
    """A network of one hidden layer, on made data; a stand-in for your training."""
    host, random = kinetic.current(), np.random.default_rng(0)
    x = random.uniform(-3, 3, size=(256, 1))
    y = np.sin(x)
    first, bias, last = random.normal(size=(1, width)), np.zeros(width), random.normal(size=(width, 1)) / width
    loss = 0.0
    for step in range(STEPS):
        hidden = np.tanh(x @ first + bias)
        error = hidden @ last - y
        loss = float(np.mean(error**2))
        host.log_metrics(step=step, loss=loss)
        back = (error @ last.T) * (1 - hidden**2)
        last -= rate * hidden.T @ error / len(x)
        first -= rate * x.T @ back / len(x)
        bias -= rate * back.mean(axis=0)
    return {"loss": loss}


def search(folder: Path) -> kinetic.SearchResult:
    """Search, or go on with the search whose study is in this folder."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="rate-and-width",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True),  # for trials at the same time
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=10),
    )
    return kinetic.search(train, study, space=SPACE, trials=TRIALS, max_concurrent=AT_ONCE, metric="loss", keep="5m")


def folder_of_studies() -> Path:
    folder = Path(os.environ.get("STUDIES") or Path(tempfile.gettempdir(), f"studies-{os.getuid()}"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dg.asset
def best_parameters() -> dg.MaterializeResult[dict[str, Any]]:
    """The parameters of the best trial, with all trials as a table."""
    found = search(folder_of_studies())
    rows = [
        f"| {one.number} | {one.state} | {one.parameters['rate']:.4f} | {one.parameters['width']} | {one.value} |"
        for one in found.trials
    ]
    table = "\n".join(["| trial | state | rate | width | loss |", "|---|---|---|---|---|", *rows])
    metadata = {"trials": dg.MetadataValue.md(table), "loss": found.value, "job": found.job_id, **found.counts()}
    return dg.MaterializeResult(value=dict(found.parameters), metadata=metadata)


defs = dg.Definitions(assets=[best_parameters], jobs=[dg.define_asset_job("find")])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # so that this program begins anew each time
        os.environ.setdefault("STUDIES", folder)
        result = defs.resolve_job_def("find").execute_in_process()
    made = result.asset_materializations_for_node("best_parameters")[0].metadata
    print(f"\n{made['trials'].value}\n")
    best = result.output_for_node("best_parameters")
    print(
        f"result   a rate of {best['rate']:.3f} and a width of {best['width']}, with a loss of {made['loss'].value:.4f}"
    )
    print(f"the UI   dagster dev -f {sys.argv[0]}")


if __name__ == "__main__":
    main()
