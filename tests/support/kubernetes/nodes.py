"""The nodes of a control plane, as a test holds them. Their kubelet is a process, and reads of them from a file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.waits import wait_until

ROOT = Path(__file__).resolve().parents[3]


class Nodes(NodeGroup):
    """The nodes of one test, from `start` until `stop`, and the kubelet of all of them.

    Args:
        plane: The control plane that they join.
        folder: Where their kubelet keeps what pods write; it is made.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        super().__init__(folder)
        self._plane = plane
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Nodes:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        for path in (self._plane.kubeconfig, *self._plane.server_certificate):
            shutil.copy(path, self.folder)
        self._write()
        with (self.folder / "kubelet.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kubernetes.kubelet", str(self.folder)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        """End all pods and take the nodes away."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def _await_ready(self, names: Iterable[str]) -> None:
        ready = set(names)
        wait_until(lambda: ready <= self._ready(), lambda: f"{sorted(ready - self._ready())} ready", pause=0.05)

    def _ready(self) -> set[str]:
        nodes = self._plane.api.get("/api/v1/nodes")["items"]
        closed = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        return {
            node["metadata"]["name"]
            for node in nodes
            if not closed & {taint["key"] for taint in node["spec"].get("taints", ())}
        }

    def _write(self) -> None:
        fresh = self.folder / "pool.new"
        fresh.write_text(self.pool.to_text(), encoding="utf-8")
        fresh.rename(self.folder / "pool.json")

    def _apply(self) -> None:
        """Tell the kubelet, and wait until it knows."""
        self._write()
        wait_until(self._is_taken, lambda: f"the kubelet takes the pool: see {self.folder}/kubelet.log", within=60)

    def _is_taken(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"there is no kubelet: see {self.folder}/kubelet.log")
        taken = self.folder / "taken"
        return taken.exists() and int(taken.read_text(encoding="ascii")) == self.pool.serial
