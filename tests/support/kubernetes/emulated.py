"""The emulator's cluster in the place of a real control plane: what tests ask of either."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.rules import rights
from kinetic_orchestration.testing.kubernetes.api.rules.rights import User
from kinetic_orchestration.testing.kubernetes.cluster import Cluster
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
from tests.support.kubernetes.api import Api
from tests.support.waits import wait_until


class EmulatedPlane:
    """An emulated cluster, from a `with` on. It has no nodes."""

    has_jobset = has_kueue = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder)

    def __enter__(self) -> EmulatedPlane:
        self.cluster.open()
        self.kubeconfig = self._kubeconfig(rights.ADMIN)
        self.api = Api(self.kubeconfig)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    @property
    def token(self) -> str:
        """The token of an administrator."""
        return self.cluster.token

    def interrupt(self, part: str) -> None:
        self.cluster.interrupt(part)

    def resume(self, part: str) -> None:
        self.cluster.resume(part)

    def user_kubeconfig(self, user: str, *groups: str, namespace: str = "default") -> Path:
        """Return the kubeconfig of a user, who may do what Roles grant."""
        return self._kubeconfig(User(user, groups), namespace)

    def account_kubeconfig(self, namespace: str, account: str) -> Path:
        """Return the kubeconfig of a service account."""
        return self._kubeconfig(rights.account(namespace, account), namespace)

    def apply(self, text: str) -> None:
        """Create the objects of a file of YAML."""
        for found in yaml.safe_load_all(text):
            kind = next(kind for kind in kinds.ALL if kind.name == found["kind"])
            top = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
            where = f"/namespaces/{found['metadata']['namespace']}" if kind.namespaced else ""
            self.api.create(f"{top}{where}/{kind.plural}", found)

    def await_account(self, namespace: str) -> None:
        """Wait until pods may be created in a new namespace: they need its default service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_until(lambda: self.api.found(path), f"{namespace} has its default service account")

    def remove_pods(self, namespace: str) -> None:
        """Take all pods of a namespace away."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self.api.delete(pods, grace=0)
        wait_until(lambda: not self.api.get(pods)["items"], f"{namespace} has no pods")

    def _kubeconfig(self, user: User, namespace: str = "default") -> Path:
        path = self.folder / f"kubeconfig-{user.name.replace(':', '-')}"
        return self.cluster.write_kubeconfig(path, user, namespace, name="tests")


@contextlib.contextmanager
def emulated_nodes(plane: EmulatedPlane) -> Iterator[NodeGroup]:
    """The nodes of one test, none at first; none is left."""
    nodes = plane.cluster.nodes
    yield nodes
    nodes.remove(*nodes.pool.nodes)
    nodes.forget()
    wait_until(lambda: not plane.api.get("/api/v1/nodes")["items"], "its nodes go")
