"""The definitions of a live `dagster dev` with TPUs and GPUs of a cloud: the same asset as elsewhere, only the resource
differs.
"""

from __future__ import annotations

import time

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset


def train(host: HostContext):
    """Trains on every host of the slice, or of the VM."""
    print(f"host {host.host_index} of {host.host_count} joined")
    if host.attempt == 1:  # which is taken back
        time.sleep(300)
    for step in range(6):
        if host.host_index == 0:
            host.log_metrics(step=step, loss=1 / (step + 1))
        time.sleep(0.5)
    return {"hosts": host.host_count}


ranker = kinetic_asset(
    accelerator="v5e-16", name="ranker", kinds={"keras"}, group_name="ranking", owners=["team:ranking"]
)(train)
on_a_gpu = kinetic_asset(accelerator="l4", name="on_a_gpu", spot=True, owners=["team:ranking"])(train)
on_vms = kinetic_asset(accelerator="v6e-16", name="on_vms", spot=True, backend="compute")(train)


@dg.asset
def report(on_a_gpu: dict[str, int], on_vms: dict[str, int]) -> dg.MaterializeResult:
    """What comes after in the pipeline, with their values."""
    return dg.MaterializeResult(metadata={"hosts": on_a_gpu["hosts"] + on_vms["hosts"]})


production = KineticResource(
    project=dg.EnvVar("KINETIC_PROJECT"),
    store=dg.EnvVar("KINETIC_STORE"),
    zones=["us-west4-a", "us-central1-a"],
    limits={"provision": "10m", "cost": 50},
)
defs = dg.Definitions([ranker, on_a_gpu, on_vms, report], resources={"kinetic": production})
