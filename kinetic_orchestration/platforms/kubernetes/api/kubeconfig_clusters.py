"""The clusters of this machine's kubeconfig, by the names of its contexts, and the one in which this process runs.

A cluster is told from others of its name by its certificate authority. One that is renewed is known by the certificates
that it had before, if all of them are still named beside the new ones, as Kubernetes' page on their rotation has it:
https://kubernetes.io/docs/tasks/tls/manual-rotation-of-ca-certificates/
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import kubeconfig
from kinetic_orchestration.platforms.shared.cluster_access import Access, OtherCluster
from kinetic_orchestration.protocol.system import copies

IN_CLUSTER = "in-cluster"
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MOST: Final = 8  # certificates of an authority that tell it from others
_AND: Final = "+"


class KubeconfigClusters:
    def place(self, cluster: str, namespace: str) -> str:
        context = cluster or kubeconfig.current(copies.environ()) or IN_CLUSTER
        return f"{context}/{namespace or self.access(context).namespace}"

    def emulated(self, cluster: str) -> bool:
        return kubeconfig.noted(copies.environ(), cluster).get("emulated") in (True, "true")

    def mark(self, cluster: str) -> str:
        try:
            return self.access(cluster).mark
        except CredentialsError:
            return ""

    def access(self, cluster: str, project: str = "", mark: str = "") -> Access:
        environ = copies.environ()
        if cluster == IN_CLUSTER:
            return _found(partial(kubeconfig.in_cluster, environ), cluster, mark)
        return _found(partial(kubeconfig.load, environ, context=cluster), cluster, mark)


def _found(read: Callable[[], Access], cluster: str, mark: str) -> Access:
    """Return what is read of a cluster now. Whoever asks for one with a mark gets that one, later as well."""
    access = read()
    own = mark_of(access)
    access = access._replace(mark=own, find=partial(_found, read, cluster, own if mark else ""))
    if mark and not _is_one(mark, own, access):
        what = "certificate authority" if access.authority else "address"
        raise OtherCluster(
            f"the cluster {cluster} is another one here than where the job was submitted, as far as can be seen: its "
            f"{what} differs. Name clusters alike on all machines of a deployment, by contexts of kubeconfigs. If its "
            "authority was renewed, let certificate-authority-data contain the old certificate, too, until its jobs "
            "have ended",
            access,
        )
    return access


def mark_of(access: Access) -> str:
    """Return what tells a cluster from others of its name: a digest of each certificate of its authority, else of its
    address."""
    found = _CERTIFICATE.findall(access.authority) or [access.authority or access.server]
    return _AND.join(sorted(set(map(_digest, found[:_MOST]))))


def _is_one(mark: str, own: str, access: Access) -> bool:
    """Return True if marks are of one cluster: one of them has all certificates of the other, as the steps of a renewal
    have it. Some alone may be those of a company, which other clusters have too. A mark that was recorded by 0.1 is of
    its authority's text."""
    recorded, found = set(mark.split(_AND)), set(own.split(_AND))
    return recorded <= found or found <= recorded or mark == _digest(access.authority)


def _digest(text: str) -> str:
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()[:16]
