"""The definitions of a live `dagster dev` whose jobs run on a cluster: the same asset as elsewhere, only the resource
differs.
"""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset


class Training(dg.Config):
    folder: str


@kinetic_asset(accelerator="v4-8", group_name="ranking", owners=["team:ranking"])
def ranker(host: HostContext, config: Training) -> dict[str, int]:
    """Says its steps on every host until a file lets it go."""
    for step in range(6000):
        print(f"step {step} of host {host.host_index}", flush=True)
        if host.host_index == 0 and step < 20:
            host.log_metrics(step=step, loss=1 / (step + 1))
        if (Path(config.folder) / "go").exists():
            break
        time.sleep(0.1)
    return {"hosts": host.host_count}


cluster = KineticResource(
    backend="kubernetes",
    cluster=dg.EnvVar("CLUSTER_OF_JOBS"),
    namespace=dg.EnvVar("NAMESPACE_OF_JOBS"),
    store=dg.EnvVar("KINETIC_STORE"),
    container_image="registry.example.com/ours/train:7",  # its Python is the node's, which has all that is imported
    kubernetes={"labels": {"team": "ranking"}},
)
defs = dg.Definitions([ranker], resources={"kinetic": cluster})
