"""The nodes of a control plane, as a test holds them: it says which there are and what becomes of them, while pods run.

What adds and removes nodes, as an autoscaler does, speaks to `Nodes` alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

from tests.support.kubernetes.api import Object
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.waits import wait_until

ROOT = Path(__file__).resolve().parents[3]

SILENT = "silent"  # its pods go on, and nobody hears of it
LOST = "lost"  # its pods died, and nobody hears of it

KILLED = "Error"  # a signal killed a pod's first process
OOM_KILLED = "OOMKilled"  # a pod's container used more memory than its limit
EVICTED = "Evicted"  # a pod had to go, as its node has no room


@dataclass(frozen=True)
class Node:
    """One node. `environment` is what its machine gives every container: addresses of servers, a PATH."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


def tpu_pool(pool: str, hosts: int, *, topology: str = "2x4", chips: int = 4, **environment: str) -> list[Node]:
    """The nodes of one slice of v5e, as GKE labels and taints them."""
    labels = {
        "cloud.google.com/gke-nodepool": pool, "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
    }  # fmt: skip
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    allocatable = {"google.com/tpu": str(chips)}
    return [Node(f"{pool}-{host}", labels, (taint,), allocatable, environment) for host in range(hosts)]


class Nodes:
    """The nodes of one test, from `start` until `stop`, and the kubelet of all of them.

    Args:
        plane: The control plane that they join.
        folder: Where their kubelet keeps what pods write; it is made.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.folder = folder
        self._plane = plane
        self._nodes: dict[str, Node] = {}
        self._images: dict[str, str] = {}
        self._webhook: dict[str, str] | None = {}
        self._ends: dict[str, str] = {}
        self._serial = 0
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

    # What there is

    def add(self, *nodes: Node) -> None:
        """Have these nodes, too, or in place of those of the same names, and wait until pods may go there."""
        self._nodes |= {node.name: node for node in nodes}
        self._apply()
        ready = {node.name for node in nodes if not node.fault}
        wait_until(lambda: ready <= self._ready(), lambda: f"{sorted(ready - self._ready())} ready", pause=0.05)

    def remove(self, *names: str) -> None:
        """Take nodes away with all that runs there, as when a spot machine is gone."""
        for name in names:
            del self._nodes[name]
        self._apply()

    def silence(self, *names: str) -> None:
        """Have nothing heard of nodes whose pods go on."""
        self._fault(SILENT, names)

    def lose(self, *names: str) -> None:
        """Have the pods of nodes dead and nothing heard of it."""
        self._fault(LOST, names)

    def restore(self, *names: str) -> None:
        """Have nodes heard of again."""
        self._fault("", names)

    def lack(self, images: Mapping[str, str]) -> None:
        """Have no pod of these images start: image → `ErrImagePull` or `InvalidImageName`."""
        self._images |= images
        self._apply()

    def inject(self, names: Mapping[str, str] | None) -> None:
        """What GKE's webhook gives hosts of TPUs: None for nothing, else the truth, but for these variables."""
        self._webhook = None if names is None else dict(names)
        self._apply()

    def end(self, pod: Object, reason: str) -> None:
        """Have the node end a running pod: `KILLED`, `OOM_KILLED` or `EVICTED`."""
        self._ends[pod["metadata"]["uid"]] = reason
        self._apply()

    # What pods wrote

    def root(self, uid: str) -> Path:
        """The folder that a pod has for its file system."""
        return self.folder / "pods" / uid / "root"

    def log(self, uid: str) -> str:
        """The output of a pod's container, of all its starts."""
        path = self.folder / "pods" / uid / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _fault(self, fault: str, names: Iterable[str]) -> None:
        self._nodes |= {name: replace(self._nodes[name], fault=fault) for name in names}
        self._apply()

    def _ready(self) -> set[str]:
        nodes = self._plane.api.get("/api/v1/nodes")["items"]
        closed = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        return {
            node["metadata"]["name"]
            for node in nodes
            if not closed & {taint["key"] for taint in node["spec"].get("taints", ())}
        }

    def _write(self) -> None:
        self._serial += 1
        pool = {
            "serial": self._serial, "nodes": [asdict(node) for node in self._nodes.values()], "images": self._images,
            "webhook": self._webhook, "ends": self._ends,
        }  # fmt: skip
        fresh = self.folder / "pool.new"
        fresh.write_text(json.dumps(pool), encoding="utf-8")
        fresh.rename(self.folder / "pool.json")

    def _apply(self) -> None:
        """Tell the kubelet, and wait until it knows."""
        self._write()
        wait_until(self._is_taken, lambda: f"the kubelet takes the pool: see {self.folder}/kubelet.log", within=60)

    def _is_taken(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"there is no kubelet: see {self.folder}/kubelet.log")
        taken = self.folder / "taken"
        return taken.exists() and int(taken.read_text(encoding="ascii")) == self._serial
