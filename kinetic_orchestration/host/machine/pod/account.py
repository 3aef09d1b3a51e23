"""The identity of a pod to Google, by the metadata server of GKE, and the role that it needs on a bucket.

A pod's first program has this module in its manifest, and the agent has it, too.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import namedtuple
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.pod import last_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

POOL = ".svc.id.goog"  # how the name of a cluster's pool of identities ends, after that of its project
ROLE = "roles/storage.objectUser"
ACTS_AS = "roles/iam.workloadIdentityUser"
PATIENCE = 5.0  # seconds for the metadata server, which has answered before
LOOK, LOOKS = 2.0, 4  # seconds between looks for one that seems not to be there, and how many of these follow
_ABSENT = re.compile(r"gaierror: \[Errno -[25]\]|\[Errno 1(01|13)\]")  # Linux: no such name, no network, no route


class Account(namedtuple("Account", "kubernetes google member")):
    """A pod's account.

    Attributes:
        kubernetes: NAMESPACE/NAME of its Kubernetes service account.
        google: The name by which Google knows it: an email, or the pool of identities of the cluster.
        member: Its name in policies.
    """

    __slots__ = ()
    kubernetes: str
    google: str
    member: str

    def __str__(self) -> str:
        mine = _kubernetes(self.kubernetes)
        return mine if self.google.endswith(POOL) else f"{mine}, which is {self.google} to Google"


def own(orders: Mapping[str, Any]) -> Account | None:
    """Return the account of this pod, whose orders these are; None if no metadata server tells it."""
    if not bootstrap.has_account():
        return None
    kubernetes = str(orders["account"])
    google = (bootstrap.metadata(f"{bootstrap.SCOPE}/email", patience=PATIENCE) or "").strip()
    if not google:
        return None
    if not google.endswith(POOL):
        return Account(kubernetes, google, f"serviceAccount:{google}")
    number = (bootstrap.metadata("project/numeric-project-id", patience=PATIENCE) or "").strip() or "PROJECT_NUMBER"
    return Account(kubernetes, google, principal(number, google, kubernetes))


def principal(number: str, pool: str, kubernetes: str) -> str:
    """Return the name in policies of a Kubernetes service account, as NAMESPACE/NAME, of a cluster whose identities are
    in a pool of the project of that number.

    https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
    """
    namespace, _, name = kubernetes.partition("/")
    of_pool = f"principal://iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools/{pool}"
    return f"{of_pool}/subject/ns/{namespace}/sa/{name}"


def federated(pool: str, kubernetes: str) -> str:
    """Return the name of a Kubernetes service account in the policy of a service account of Google."""
    return f"serviceAccount:{pool}[{kubernetes}]"


def let_use(bucket: str, member: str) -> str:
    """Return the line that lets a member of policies use gs://BUCKET. A member may have a command that a shell
    substitutes."""
    quote = '"' if "$(" in member else "'"
    return f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --role={ROLE} --member={quote}{member}{quote}"


def let_act(google: str, member: str) -> str:
    """Return the line that lets a Kubernetes service account act as one of Google."""
    return f"gcloud iam service-accounts add-iam-policy-binding {google} --role={ACTS_AS} --member='{member}'"


def told() -> str:
    """Return this pod's account, for users, as far as it is known."""
    account = own(orders := _orders())
    return f"{_kubernetes(orders['account'])} ({account.member})" if account else _kubernetes(orders["account"])


def advise(bucket: str) -> str:
    """Return what lets this pod use a bucket; "" if that is not known."""
    account = own(_orders())
    return "" if account is None else _advice(account, bucket)


def _advice(account: Account, bucket: str) -> str:
    return f"This pod runs as {account}. Let it use the bucket: {let_use(bucket, account.member)}"


def refused(orders: Mapping[str, Any], reply: bootstrap.Reply) -> tuple[str, bool]:
    """Return why a store denies this pod what it asks for (403), with what to do about it, and True if no retry can
    help."""
    said = reply.reason().rstrip(".")
    account = own(orders)
    if account is not None and " does not have " in said:
        first = said.partition(". Permission ")[0]  # the rest says it again, and few letters of a pod's words are shown
        return f"{first}. {_advice(account, _bucket_of(orders))}", True
    return said, "ateLimitExceeded" not in said


def is_nowhere(reply: bootstrap.Reply) -> bool:
    """Return True if an answer says that there is no metadata server: one that is just starting has a name, and an
    address that answers or refuses."""
    return reply.status == 0 and _ABSENT.search(reply.data.decode("utf-8", "replace")) is not None


def nowhere() -> str:
    """Return why this pod has no metadata server, with what to do about it; "" if it may have one."""
    if not bootstrap.has_account() or not is_nowhere(bootstrap.ask_metadata("", 0.0)):
        return ""
    for _ in range(LOOKS):  # a network that is just being set up
        time.sleep(LOOK)
        reply = bootstrap.ask_metadata("", 0.0)
        if not is_nowhere(reply):
            return ""
    return (
        f"a store in Cloud Storage is used as the account that GKE's metadata server tells, and this cluster has none "
        f"({reply.reason()}). Name a store on S3 with KINETIC_STORE, or a cluster with Workload Identity Federation"
    )


def without_token(orders: Mapping[str, Any]) -> tuple[str, bool]:
    """Return why this pod is given no token, with what to do about it, and True if no retry can help."""
    account = own(orders)
    reply = bootstrap.ask_metadata(f"{bootstrap.SCOPE}/token", 0.0)
    why = " ".join(reply.reason().split())
    if account is None:
        return f"this pod has no token of Google's: its metadata server does not give one: {why}", False
    if account.google.endswith(POOL) or reply.status not in (403, 404):
        return f"the metadata server gives no token to {account}: {why}", False
    return f"{account}, is given no token of it: {why} {_binding(account)}", True


def _binding(account: Account) -> str:
    """Return what lets a Kubernetes service account act as the one of Google that it is annotated with."""
    project = (bootstrap.metadata("project/project-id", patience=PATIENCE) or "").strip() or "PROJECT"
    return f"Let it act as that: {let_act(account.google, federated(project + POOL, account.kubernetes))}"


def _orders() -> Any:
    return json.loads(os.environ[last_words.ORDERS])


def _kubernetes(account: str) -> str:
    return f"the Kubernetes service account {account}"


def _bucket_of(orders: Mapping[str, Any]) -> str:
    return str(orders["store"]).removeprefix("gs://").partition("/")[0]
