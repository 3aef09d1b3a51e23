"""The kubernetes backend keeps the contract of backends, on a real control plane."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing import BackendContract, Emulator
from kinetic_orchestration.testing.kubernetes.pods.nodes import KILLED, NodeGroup, tpu_pool
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane

pytestmark = [pytest.mark.slow, pytest.mark.turn]

KEY = "a-signing-key-of-the-tests"


class TestKubernetesBackend(BackendContract):
    backend = "kubernetes"
    one_host = "v5e-4"
    within = 200.0

    @pytest.fixture
    def environment(
        self, home: Path, plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup, tmp_path: Path
    ) -> Iterator[Mapping[str, str]]:
        self.plane, self.namespace, self.nodes = plane, namespace, nodes
        with Emulator(python=sys.executable, hosts=False) as bucket:
            found = bucket.environ(deployment="prod")
            machine = {
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "STORAGE_EMULATOR_HOST": found["STORAGE_EMULATOR_HOST"],
            }
            nodes.add(
                *tpu_pool("several", 4, topology="4x4", **machine), *tpu_pool("one", 1, topology="2x2", **machine)
            )
            yield {
                **{name: found[name] for name in ("STORAGE_EMULATOR_HOST", "KINETIC_STORE", "KINETIC_DEPLOYMENT")},
                "KINETIC_SIGNING_KEY": KEY,
                "KUBECONFIG": str(self._kubeconfig(tmp_path / "kubeconfig")),
            }

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        (pod,) = (
            pod
            for pod in self._objects("/api/v1", "pods")
            if pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index") == str(host)
        )
        self.nodes.end(pod, KILLED)

    def left(self) -> Sequence[str]:
        return [
            f"{kind} {found['metadata']['name']}"
            for api, kind in (
                ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
                ("/api/v1", "pods"),
                ("/api/v1", "secrets"),
            )
            for found in self._objects(api, kind)
        ]

    def _objects(self, api: str, kind: str) -> list[Any]:
        return list(self.plane.api.get(f"{api}/namespaces/{self.namespace}/{kind}")["items"])

    def _kubeconfig(self, path: Path) -> Path:
        """This process's own, for the namespace of the test. Its cluster says that it is emulated."""
        config = json.loads(self.plane.kubeconfig.read_text(encoding="utf-8"))
        emulated = {"name": "kinetic-orchestration", "extension": {"emulated": True}}
        config["clusters"][0]["cluster"]["extensions"] = [emulated]
        config["contexts"][0]["context"]["namespace"] = self.namespace
        path.write_text(json.dumps(config), encoding="utf-8")
        return path
