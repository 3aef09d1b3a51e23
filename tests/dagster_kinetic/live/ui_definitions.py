"""The definitions of a live `dagster dev`: a training that waits for the tests, and one that fails on one of its hosts."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset

LONGEST = 1100.0  # seconds that the training waits for whoever looks at it


@kinetic_asset(accelerator="v5e-16", kinds={"keras"}, group_name="ranking")
def ranker(host: HostContext):
    """Trains on every host of the slice, and reports until it is let go."""
    print(f"host {host.host_index} of {host.host_count} joined")
    go = Path(os.environ["KINETIC_TEST_FOLDER"], "go")
    deadline = time.monotonic() + LONGEST
    step = 0
    while not (go.exists() and step >= 20) and time.monotonic() < deadline:
        if host.host_index == 0:
            loss = 2.3 * math.exp(-step / 60) + 0.1 + 0.02 * math.sin(step)
            host.log_metrics(step=step, loss=loss, val_loss=loss * 1.1 + 0.05, accuracy=1 - loss / 2.5, odd=math.nan)
            host.progress(step + 1, 5000, unit="steps")
        if step % 5 == 0:
            print(f"step {step} done")
        step += 1
        time.sleep(0.2)
    return {"steps": step}


@kinetic_asset(accelerator="v5e-16", group_name="ranking")
def broken(host: HostContext):
    """Fails on host 2."""
    print("reading the table")
    if host.host_index == 2:
        raise KeyError("no such column: price")
    time.sleep(LONGEST)


defs = dg.Definitions([ranker, broken], resources={"kinetic": KineticResource()})
