"""Two assets: a model is trained on a slice, and promoted if it is better than the one that serves.

    python example_pipelines/promote_dagster.py [FOLDER]       here and now; the versions are in FOLDER/models/ranker

To change for a real slice and a real registry: `PLACE` becomes gs://my-bucket/models/ranker, the resource becomes
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True)
and `promote` gets registry=kinetic.MLflow("https://my-mlflow").
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dagster as dg

import kinetic_orchestration as kinetic
from dagster_kinetic import HostContext, KineticResource, kinetic_asset

PLACE = os.path.join(sys.argv[1] if len(sys.argv) > 1 else ".", "models", "ranker")


@kinetic_asset(accelerator="v5e-1")
def model(host: HostContext) -> dict[str, object]:
    """A line through points, fitted by JAX; its weights as safetensors, beside a config.json."""
    import jax.numpy as jnp
    import numpy as np

    x = jnp.linspace(0.0, 1.0, 64)
    weights = np.asarray(jnp.polyfit(x, 3 * x + 1, 1), np.float32)
    header = b'{"line":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    folder = Path(host.output_dir, "model")
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "line"}')
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights.tobytes())
    error = float(np.abs(weights - np.array([3.0, 1.0])).max())
    host.log_metrics(step=1, error=error)
    return {"folder": str(folder), "error": error}


def is_better(candidate: kinetic.Candidate) -> bool:
    """Tell whether a model is as good as the one to which "champion" points now, or the first one."""
    return candidate.parent is None or candidate.metrics["error"] <= candidate.parent["metrics"]["error"]


@dg.asset
def promoted(model: dict[str, object]) -> dg.MaterializeResult:
    """The version that serving takes. The folder of the model says which job made it."""
    version = kinetic.promote(str(model["folder"]), to=PLACE, alias="champion", check=is_better)
    return dg.MaterializeResult(value=version.uri, metadata=version.metadata)


defs = dg.Definitions(assets=[model, promoted], resources={"kinetic": KineticResource()})

if __name__ == "__main__":
    result = dg.materialize([model, promoted], resources={"kinetic": KineticResource()})
    print(result.output_for_node("promoted"))
