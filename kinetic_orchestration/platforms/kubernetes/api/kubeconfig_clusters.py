"""The clusters of this machine's kubeconfig, by the names of its contexts, and the one in which this process runs."""

from __future__ import annotations

import hashlib

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import kubeconfig
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.protocol.system import copies

IN_CLUSTER = "in-cluster"


class KubeconfigClusters:
    def place(self, cluster: str, namespace: str) -> str:
        context = cluster or kubeconfig.current(copies.environ()) or IN_CLUSTER
        return f"{context}/{namespace or self.access(context).namespace}"

    def emulated(self, cluster: str) -> bool:
        return kubeconfig.noted(copies.environ(), cluster).get("emulated") in (True, "true")

    def mark(self, cluster: str) -> str:
        try:
            found = self.access(cluster)
        except CredentialsError:
            return ""
        return hashlib.sha256("".join(found.authority.split()).encode() or found.server.encode()).hexdigest()[:16]

    def access(self, cluster: str, project: str = "", mark: str = "") -> Access:
        if mark and self.mark(cluster) != mark:
            raise CredentialsError(
                f"the cluster {cluster} is another one here than where the job was submitted: its certificate "
                "authority differs. Name clusters alike on all machines of a deployment, by contexts of kubeconfigs"
            )
        environ = copies.environ()
        if cluster == IN_CLUSTER:
            return kubeconfig.in_cluster(environ)
        return kubeconfig.load(environ, context=cluster)
