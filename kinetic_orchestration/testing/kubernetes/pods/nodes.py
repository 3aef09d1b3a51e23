"""The nodes of a cluster, as whoever owns them holds them: which there are, and what becomes of them and of their pods.

What adds and removes nodes, as an autoscaler does, speaks to `NodeGroup` alone; a kubelet carries out its `Pool`.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kinetic_orchestration.testing.kubernetes.api.answers import Object

SILENT = "silent"  # its pods go on, and nobody hears of it
LOST = "lost"  # its pods died, and nobody hears of it

KILLED = "Error"  # a signal killed a pod's first process
OOM_KILLED = "OOMKilled"  # a pod's container used more memory than its limit
_ENDS = 1000  # pods whose ends are remembered: of those before nothing is left
EVICTED = "Evicted"  # a pod had to go, as its node has no room

UNPULLED = "ErrImagePull"  # a registry has not, or does not give, an image
MISNAMED = "InvalidImageName"  # an image's name is none


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        environment: What its machine gives every container: addresses of servers, a PATH.
        identities: The workload identity pool whose metadata server its pods meet; "": they meet none.
        identities_after: Seconds from a pod's start in which that server takes no connection, as it does on GKE.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    identities: str = ""
    identities_after: float = 0.0
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


@dataclass(frozen=True)
class Pool:
    """All that a kubelet is told.

    Attributes:
        serial: Grows with every change.
        nodes: By their names.
        images: Those that cannot be had → `InvalidImageName`, or `ErrImagePull` and a registry's words after a colon.
        webhook: What GKE's webhook gives hosts of TPUs in place of the truth; None if it gives nothing.
        ends: UIDs of pods → how they are to end.
    """

    serial: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    webhook: Mapping[str, str] | None = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Pool:
        told = json.loads(text)
        nodes = {name: Node(**{**node, "taints": tuple(node["taints"])}) for name, node in told["nodes"].items()}
        return cls(**{**told, "nodes": nodes})


class NodeGroup(ABC):
    """Nodes, what becomes of them, and what their pods wrote. Threads share one.

    Args:
        folder: Where their kubelet keeps what pods write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = Pool()
        self._changing = threading.RLock()

    @abstractmethod
    def _apply(self) -> None:
        """Have the kubelet know the pool."""

    @abstractmethod
    def _await_ready(self, names: Iterable[str]) -> None:
        """Wait until pods may go to these nodes."""

    def add(self, *nodes: Node) -> None:
        """Have these nodes, too, or in place of those of the same names, and wait until pods may go there."""
        self.join(*nodes)
        self._await_ready(node.name for node in nodes if not node.fault)

    def join(self, *nodes: Node) -> None:
        """Do the same without waiting."""
        with self._changing:
            self._set(nodes={**self.pool.nodes, **{node.name: node for node in nodes}})

    def remove(self, *names: str) -> None:
        """Take nodes away with all that runs there, as when a spot machine is gone."""
        with self._changing:
            self._set(nodes={name: node for name, node in self.pool.nodes.items() if name not in names})

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
        """Have no pod of these images start: image → why, as in `Pool.images`. Raises ValueError for another text."""
        for image, why in images.items():
            reason, _, _ = why.partition(": ")
            if reason != UNPULLED and why != MISNAMED:
                known = f"{MISNAMED}, {UNPULLED} or '{UNPULLED}: WORDS'"
                raise ValueError(f"no node lacks the image {image} because of {why!r}: say {known}")
        with self._changing:
            self._set(images={**self.pool.images, **images})

    def inject(self, names: Mapping[str, str] | None) -> None:
        """Set what GKE's webhook gives hosts of TPUs: None for nothing, else the truth, but for these variables."""
        self._set(webhook=None if names is None else dict(names))

    def end(self, pod: Object, reason: str) -> None:
        """Have the node end a running pod: `KILLED`, `OOM_KILLED` or `EVICTED`."""
        with self._changing:
            ends = {**self.pool.ends, pod["metadata"]["uid"]: reason}
            self._set(ends=dict(list(ends.items())[-_ENDS:]))

    def forget(self) -> None:
        """Take back all that was said of images, of GKE's webhook, and of the ends of pods."""
        self._set(images={}, webhook={}, ends={})

    def root(self, uid: str) -> Path:
        """The folder that a pod has for its file system."""
        return self.folder / "pods" / uid / "root"

    def log(self, uid: str) -> str:
        """The output of a pod's container, of all its starts; "" if many pods have gone since this one."""
        path = self.folder / "pods" / uid / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _fault(self, fault: str, names: Iterable[str]) -> None:
        with self._changing:
            known = self.pool.nodes
            self._set(nodes={**known, **{name: replace(known[name], fault=fault) for name in names}})

    def _set(self, **changes: object) -> None:
        with self._changing:
            self.pool = replace(self.pool, serial=self.pool.serial + 1, **changes)  # type: ignore[arg-type]
            self._apply()
