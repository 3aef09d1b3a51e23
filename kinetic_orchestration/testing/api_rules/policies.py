"""IAM policies, the accounts that tokens stand for, and what roles let these do. Pure.

A token of the emulated cloud names its account, so that a server can tell who asks. A resource whose policy nobody has
set lets everybody do everything; of one that has a policy, accounts may do what that grants them. Clients have no
account here, and are never refused by a policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

TOKEN = "emulator-token"
_ACCOUNT = f"{TOKEN}:account/"  # no node is called so
_SUBJECT = f"{TOKEN}:subject/"
EVERYBODY = ("allUsers", "allAuthenticatedUsers")
_OBJECTS = tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update"))

# https://cloud.google.com/storage/docs/access-control/iam-roles, https://cloud.google.com/iam/docs/roles-permissions/iam
ROLES: Mapping[str, tuple[str, ...]] = {
    "roles/storage.objectUser": _OBJECTS,
    "roles/storage.objectAdmin": _OBJECTS,
    "roles/storage.objectViewer": ("storage.objects.get", "storage.objects.list"),
    "roles/storage.objectCreator": ("storage.objects.create",),
    "roles/storage.legacyBucketReader": ("storage.buckets.get", "storage.objects.list"),
    "roles/storage.admin": (
        *_OBJECTS, "storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"
    ),
    "roles/iam.workloadIdentityUser": ("iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken"),
    "roles/iam.serviceAccountTokenCreator": (
        "iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken"
    ),
}  # fmt: skip


class Binding(NamedTuple):
    """The members of a role. One with a condition, which nobody reads here, grants nothing."""

    role: str
    members: tuple[str, ...]
    condition: str = ""  # as JSON

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"role": self.role, "members": list(self.members)}
        return {**told, "condition": json.loads(self.condition)} if self.condition else told


@dataclass(frozen=True)
class Policy:
    """The members of each role on one resource."""

    bindings: tuple[Binding, ...] = ()

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Policy:
        """Raises ValueError for what is no policy."""
        bindings: Any = told.get("bindings") or ()
        try:
            return cls(tuple(map(_binding, bindings)))
        except (TypeError, KeyError) as error:
            raise ValueError(f"bindings: {error}") from None

    def to_json(self) -> dict[str, Any]:
        bindings = [binding.to_json() for binding in self.bindings]
        etag = hashlib.sha256(json.dumps(bindings).encode()).hexdigest()[:11] + "="
        version = 3 if any(binding.condition for binding in self.bindings) else 1
        return {"version": version, "etag": etag, **({"bindings": bindings} if bindings else {})}

    def with_grant(self, role: str, members: Sequence[str]) -> Policy:
        """Return it with more members of a role."""
        return Policy((*self.bindings, Binding(role, tuple(members))))

    def has(self, role: str, member: str) -> bool:
        """Tell whether a member has a role without a condition."""
        return any(one.role == role and member in one.members and not one.condition for one in self.bindings)

    def without_account(self, email: str, unique_id: str) -> Policy:
        """Return it as it is once an account was deleted: its bindings are of nobody, also once there is another one
        of that name."""
        gone = {f"serviceAccount:{email}": f"deleted:serviceAccount:{email}?uid={unique_id}"}
        return Policy(
            tuple(one._replace(members=tuple(gone.get(each, each) for each in one.members)) for one in self.bindings)
        )

    def grants(
        self, permission: str, members: Sequence[str], roles: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> bool:
        """Tell whether one of the names of an account has a permission. `roles`: custom ones, in addition."""
        known = {*members, *EVERYBODY}
        held = (binding for binding in self.bindings if not binding.condition and known.intersection(binding.members))
        return any(permission in (*ROLES.get(each.role, ()), *roles.get(each.role, ())) for each in held)


def _binding(told: Mapping[str, Any]) -> Binding:
    condition = json.dumps(told["condition"]) if told.get("condition") else ""
    return Binding(str(told["role"]), tuple(map(str, told["members"])), condition)


OPEN = Policy((Binding("roles/storage.admin", ("allUsers",)),))  # of a bucket whose policy nobody has set


def account_token(email: str) -> str:
    """Return an access token of a service account of Google."""
    return f"{_ACCOUNT}{email}"


def subject_token(pool: str, project_number: int, namespace: str, account: str) -> str:
    """Return an access token of a service account of Kubernetes: that of a workload identity pool."""
    return f"{_SUBJECT}{project_number}/{pool}/{namespace}/{quote(account, safe='')}"


def members_of(token: str) -> tuple[str, ...]:
    """Return the names that policies have for the account of a token; none for a client.

    https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
    """
    if token.startswith(_ACCOUNT):
        return (f"serviceAccount:{token.removeprefix(_ACCOUNT)}",)
    if not token.startswith(_SUBJECT):
        return ()
    number, pool, namespace, account = token.removeprefix(_SUBJECT).split("/")
    whole = f"iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools/{pool}"
    return (
        f"principal://{whole}/subject/ns/{namespace}/sa/{unquote(account)}",
        f"principalSet://{whole}/namespace/{namespace}",
        f"serviceAccount:{pool}[{namespace}/{unquote(account)}]",
    )


def name_of(token: str) -> str:
    """Return how refusals call the account of a token: by its email, or as its pool has it; "" for a client."""
    return next((member.removeprefix("serviceAccount:") for member in members_of(token)), "")
