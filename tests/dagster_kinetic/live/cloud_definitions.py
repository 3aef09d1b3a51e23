"""The definitions of a live `dagster dev` with slices of a cloud: the same asset as elsewhere, only the resource
differs.
"""

from __future__ import annotations

import time

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset


@kinetic_asset(accelerator="v5e-16", kinds={"keras"}, group_name="ranking", owners=["team:ranking"])
def ranker(host: HostContext):
    """Trains on every host of the slice."""
    print(f"host {host.host_index} of {host.host_count} joined")
    if host.attempt == 1:  # which is taken back
        time.sleep(300)
    for step in range(6):
        if host.host_index == 0:
            host.log_metrics(step=step, loss=1 / (step + 1))
        time.sleep(0.5)
    return {"hosts": host.host_count}


production = KineticResource(
    project=dg.EnvVar("KINETIC_PROJECT"),
    store=dg.EnvVar("KINETIC_STORE"),
    zones=["us-west4-a", "us-central1-a"],
    limits={"provision": "10m", "cost": 50},
)
defs = dg.Definitions([ranker], resources={"kinetic": production})
