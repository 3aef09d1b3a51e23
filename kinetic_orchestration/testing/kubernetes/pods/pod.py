"""A pod as its kubelet knows it. It does nothing by itself."""

from __future__ import annotations

from pathlib import Path

from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.pods.container import Container
from kinetic_orchestration.testing.kubernetes.pods.metadata import PodMetadata
from kinetic_orchestration.testing.kubernetes.pods.probes import Probes


class Pod:
    """One pod: its container, and why that is to end."""

    def __init__(self, seen: Object, folder: Path) -> None:
        self.seen = seen
        self.folder = folder
        self.container: Container | None = None
        self.metadata: PodMetadata | None = None  # what it asks who it is
        self.probes = Probes({}, 0.0)
        self.restarts = 0
        self.last: Object = {}  # how its container ended before
        self.begins = 0.0  # when its container is to start, by the monotonic clock
        self.started = ""
        self.waits = ""  # the reason why it has no container
        self.killed_at = 0.0  # when it is to be killed, if it does not end by then
        self.reason: tuple[str, str] | None = None  # of the pod's own status
        self.asked = ""  # how its node is to end it
        self.dies = self.oom = False
        self.over = False
        self.let_go = False

    def close_metadata(self) -> None:
        """End its metadata server, if it has one."""
        if self.metadata is not None:
            self.metadata.close()
            self.metadata = None

    @property
    def name(self) -> str:
        return str(self.seen["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.seen["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.seen["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.seen["spec"]["nodeName"])

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.seen["metadata"]

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def spec(self) -> Object:
        return dict(self.seen["spec"]["containers"][0])

    @property
    def grace(self) -> float:
        return float(
            self.seen["metadata"].get("deletionGracePeriodSeconds", self.seen["spec"]["terminationGracePeriodSeconds"])
        )
