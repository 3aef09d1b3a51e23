"""A search for a process of its own, which a test kills or interrupts: `python -m tests.core.api.steps.searching STORAGE FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import optuna

import kinetic_orchestration as kinetic

SPACE = {"lr": optuna.distributions.FloatDistribution(0.0, 1.0)}
TRIALS = 5


@kinetic.run(accelerator="cpu")
def train(lr: float, folder: str) -> float:
    """Note that this trial was trained, once more, and wait for a file of that name."""
    host = kinetic.current()
    with Path(folder, "trained").open("a") as trained:
        trained.write(f"{host.job_id}\n")
    host.log_metrics(step=0, loss=lr)
    while not Path(folder, "go").exists():
        time.sleep(0.02)
    return lr


def study_in(file: str) -> optuna.Study:
    """Return the study in a journal file, which any process may open."""
    backend = optuna.storages.journal.JournalFileBackend(file)
    storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(storage=storage, study_name="shared", load_if_exists=True)


def run(file: str, folder: str) -> kinetic.SearchResult:
    return kinetic.search(
        train, study_in(file), space=SPACE, trials=TRIALS, max_concurrent=2, metric="loss", fixed={"folder": folder}
    )


if __name__ == "__main__":
    result = run(*sys.argv[1:])
    print(len(result.trials), os.getpid())
