"""A client of its own that deploys a server: `python -m … KUBECONFIG LEASE MODEL DECLARATION`, the last as JSON."""

from __future__ import annotations

import json
import os
import sys

from kinetic_orchestration.api.steps import serving
from kinetic_orchestration.models.serving import manifests, revisions, rollout
from kinetic_orchestration.protocol.system import processes
from tests.core.models.serving.conftest import USUAL


def main(kubeconfig: str, lease: str, model: str, told: str) -> None:
    processes.die_with_parent()
    os.environ["KUBECONFIG"] = kubeconfig
    revisions.LEASE, rollout.PAUSE, manifests.PERIOD = float(lease), 0.2, 1  # type: ignore[misc]
    serving.deploy(model, serving.Serving("ranker", **{**USUAL, **json.loads(told)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
