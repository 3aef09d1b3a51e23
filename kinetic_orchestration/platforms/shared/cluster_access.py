"""Access to the API server of a cluster, and the identity there: one frozen value, whoever found it.

It knows neither where the value comes from (a kubeconfig, a pod, a cloud's API) nor what is asked with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kinetic_orchestration.errors import BackendError, CredentialsError

EVERYTHING = "*"
WRITE_ANEW = "write the kubeconfig anew, for GKE with 'gcloud container clusters get-credentials CLUSTER'"
_ZONE = re.compile(r"-[a-z]$")


class ClusterGone(BackendError):
    """Whoever has all clusters says that there is none of this name: nothing of any job is left in it."""


class Cluster(NamedTuple):
    """A cluster of GKE, as Google names it."""

    project: str
    location: str  # a zone or a region
    name: str

    @property
    def zone(self) -> str:
        """Its zone; "" for a cluster of a region."""
        return self.location if _ZONE.search(self.location) else ""


class Pool(NamedTuple):
    """A pool of nodes of a cluster of GKE, as Google's API has it."""

    name: str
    machine: str  # its type
    gpus: tuple[tuple[str, int], ...] = ()  # model and number of those of a node
    topology: str = ""  # of the TPU slice that its nodes are; "": of one host, or a policy has it
    policy: str = ""  # by which its nodes lie close to each other
    zones: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()  # that were given to it: its nodes have others, too
    taints: tuple[tuple[str, str, str], ...] = ()  # key, value and effect
    spot: bool = False
    flex_start: bool = False
    queued_provisioning: bool = False
    reservations: tuple[str, ...] = ()
    scales: bool = False
    least: int = 0  # nodes, if it scales
    most: int = 0
    lasts: float = 0.0  # seconds for which a machine is given; 0: no limit
    metadata_server: bool = False  # pods are who their service account is


class Binding(NamedTuple):
    """The members of a role of Google's IAM."""

    role: str
    members: tuple[str, ...]
    conditional: bool = False  # they have it under a condition, which nobody here understands


class Policy(NamedTuple):
    """The grants on a resource of Google itself, without those of its project."""

    bindings: tuple[Binding, ...] = ()
    absent: bool = False  # there is no such resource
    unread: str = ""  # why it could not be read; "": it was


class Pair(NamedTuple):
    """A client certificate and its key, as PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        """Leave out the key, which no log may show."""
        return "Pair(…)"


def no_token(fresh: bool) -> str:
    """Return the token of a client that has none."""
    return ""


def no_pair() -> None:
    """Return the certificate of a client that has none."""


class Access(NamedTuple):
    """A server and a client's identity.

    `token` is called for each request. With True it has to get a new one, as the last was refused. `pair` is called
    after it, for each request, too. `find` looks for the cluster again: its address and certificate may have changed.
    """

    server: str  # https://HOST:PORT, with a path if it is one of several behind a proxy
    origin: str  # where this was found, for sentences: context "c" of /home/me/.kube/config
    authority: str = ""  # PEM of the certificates that may sign the server's; "": the system's
    insecure: bool = False  # the server may show any certificate
    server_name: str = ""  # in its certificate, if it is not the host in its address
    proxy: str = ""  # http://[USER:PASSWORD@]HOST:PORT
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = ()  # of each request: whom the client acts for
    token: Callable[[bool], str] = no_token
    pair: Callable[[], Pair | None] = no_pair
    find: Callable[[], Access] | None = None
    cluster: Cluster | None = None  # None: it is not known to be one of GKE
    pools: tuple[Pool, ...] | None = None  # all that can have nodes; None: not known
    identities: str | None = None  # the pool of those that pods have of their own; "": none; None: not known
    mark: str = ""  # which tells it from other clusters of its name, as `Clusters.mark`
    renewal: str = WRITE_ANEW  # how this comes to know a renewed authority, for sentences
    policy: Callable[[str], Policy] | None = (
        None  # of a service account of Google, or gs://BUCKET; None: nobody can ask
    )
    provisions: tuple[str, ...] = ()  # for what it makes nodes: EVERYTHING, or resources by their cloud's names

    @property
    def way(self) -> tuple[str, str, bool, str, str]:
        """All that a connection depends on, but for the client's own certificate."""
        return self.server, self.authority, self.insecure, self.server_name, self.proxy

    @property
    def is_autopilot(self) -> bool:
        """True if every node is made for the pods that wait, with no more than they request."""
        return EVERYTHING in self.provisions

    def __repr__(self) -> str:
        """Leave out what no log may show: a proxy's password, an identity."""
        return f"Access({self.server!r}, {self.origin!r})"


class OtherCluster(CredentialsError):
    """Nothing shows that the name of a cluster means the one here that it meant where a job was submitted.

    Attributes:
        access: How the cluster of that name is reached here.
    """

    def __init__(self, message: str, access: Access) -> None:
        super().__init__(message)
        self.access = access


class Clusters(Protocol):
    """The clusters that this process knows by name, from a kubeconfig or from a cloud's API."""

    def place(self, cluster: str, namespace: str) -> str:
        """Return CLUSTER/NAMESPACE, with this process's own configuration for what is "". Sends nothing.

        Raises:
            CredentialsError: It is not known either.
            UsageError: The cluster has to be named.
        """

    def emulated(self, cluster: str) -> bool:
        """Return True if the pods of a cluster are processes of one machine, which imitate their accelerators. Sends
        nothing."""

    def mark(self, cluster: str) -> str:
        """Return what tells a cluster from others of its name on other machines; "" if its name does, or it is not
        known here. May send a request for a cluster that was never asked for."""

    def access(self, cluster: str, project: str = "", mark: str = "") -> Access:
        """Return how the API of a cluster is reached. May send requests.

        Args:
            cluster: Its name.
            project: Its placement's, if it has one.
            mark: Its placement's, if it has one: of several clusters of that name, this one is meant.

        Raises:
            BackendError: It is not known which cluster that is.
            ClusterGone: There is no such cluster.
            CredentialsError: The caller has no credentials, or they are refused.
            OtherCluster: The name means another cluster here, as far as can be told from its mark.
        """
