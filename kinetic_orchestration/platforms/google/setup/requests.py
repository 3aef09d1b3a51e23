"""The REST requests of a set-up, made from its table: how each item is looked at, made and removed. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from kinetic_orchestration.platforms.google.setup.table import (
    ACCOUNT,
    BUCKET,
    MANIFEST,
    Account,
    Bucket,
    Condition,
    Firewall,
    Grant,
    Item,
    Network,
    Role,
    Router,
    Setup,
    Subnetwork,
)

Json = dict[str, Any]
PAGE: Final = 1000  # entries of a list
COMPUTE = Network | Subnetwork | Firewall | Router
_KINDS: Mapping[type, str] = {
    Network: "networks", Subnetwork: "subnetworks", Firewall: "firewalls", Router: "routers"
}  # fmt: skip


class Call(NamedTuple):
    """One request. `service`: the first word of the API's host name."""

    method: str
    service: str
    path: str
    body: Json | None = None
    params: Mapping[str, Any] = {}


# What a project is


def services(project: str, names: Sequence[str]) -> Call:
    """Ask which services are enabled. The answer names the project's number, too."""
    params = {"names": [f"projects/{project}/services/{name}" for name in names]}
    return Call("GET", "serviceusage", f"v1/projects/{project}/services:batchGet", None, params)


def enable(project: str, names: Sequence[str]) -> Call:
    return Call("POST", "serviceusage", f"v1/projects/{project}/services:batchEnable", {"serviceIds": list(names)})


def operation(name: str) -> Call:
    return Call("GET", "serviceusage", f"v1/{name}")


def permissions(project: str, names: Sequence[str]) -> Call:
    path = f"v3/projects/{project}:testIamPermissions"
    return Call("POST", "cloudresourcemanager", path, {"permissions": list(names)})


def identity(made: Setup, zone: str) -> Call:
    """Have Google make Cloud TPU's own account of the project."""
    path = f"v2/projects/{made.wish.project}/locations/{zone}:generateServiceIdentity"
    return Call("POST", "tpu", path, {})


# What is there


def look(item: Item, made: Setup) -> Call:
    """The request that shows an item. A grant is shown by the policy of what it is on (`policy`)."""
    project = made.wish.project
    if isinstance(item, Bucket):
        return Call("GET", "storage", f"storage/v1/b/{item.name}")
    if isinstance(item, Account):
        return Call("GET", "iam", f"v1/projects/{project}/serviceAccounts/{item.email}")
    if isinstance(item, Role):
        return Call("GET", "iam", f"v1/projects/{project}/roles/{item.id}")
    assert not isinstance(item, Grant)
    return Call("GET", "compute", f"{_place(item, project)}/{item.name}")


def network(made: Setup) -> Call:
    """The request that shows the network that is used, and not made."""
    return Call("GET", "compute", f"compute/v1/projects/{made.wish.project}/global/networks/{made.wish.network}")


def _place(item: COMPUTE, project: str) -> str:
    region = getattr(item, "region", "")
    where = f"regions/{region}" if region else "global"
    return f"compute/v1/projects/{project}/{where}/{_KINDS[type(item)]}"


# What is made


def make(item: Item, made: Setup) -> Call:
    project = made.wish.project
    if isinstance(item, Bucket):
        return Call("POST", "storage", "storage/v1/b", _bucket(item), {"project": project})
    if isinstance(item, Account):
        about = {"displayName": item.title, "description": item.description}
        body = {"accountId": item.id, "serviceAccount": about}
        return Call("POST", "iam", f"v1/projects/{project}/serviceAccounts", body)
    if isinstance(item, Role):
        return Call("POST", "iam", f"v1/projects/{project}/roles", {"roleId": item.id, "role": role(item)})
    assert not isinstance(item, Grant)
    # The id makes it repeatable: sent again after a lost answer, it is the same request.
    params = {"requestId": str(uuid.uuid4())}
    return Call("POST", "compute", _place(item, project), _in_network(item, project), params)


def _bucket(item: Bucket) -> Json:
    return {
        "name": item.name,
        "location": item.location,
        "labels": dict(item.labels),
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": item.uniform_access},
            "publicAccessPrevention": item.public_access,
        },
        "softDeletePolicy": {"retentionDurationSeconds": str(item.soft_delete_seconds)},
    }


def role(item: Role, further: Sequence[str] = ()) -> Json:
    """The body of a custom role. `further`: permissions that it has already, and keeps."""
    return {
        "title": item.title,
        "description": item.description,
        "includedPermissions": sorted({*item.permissions, *further}),
        "stage": "GA",
    }


def _in_network(item: COMPUTE, project: str) -> Json:
    shared: Json = {"name": item.name, "description": item.description}
    if isinstance(item, Network):  # without the field a legacy network results
        return {**shared, "autoCreateSubnetworks": False, "routingConfig": {"routingMode": "REGIONAL"}}
    within = {**shared, "network": f"projects/{project}/global/networks/{item.network}"}
    if isinstance(item, Subnetwork):
        return {**within, "ipCidrRange": item.range, "privateIpGoogleAccess": item.private_access}
    if isinstance(item, Firewall):
        allowed = [
            {"IPProtocol": one.protocol, **({"ports": list(one.ports)} if one.ports else {})} for one in item.allowed
        ]
        return {**within, "direction": "INGRESS", "sourceRanges": list(item.sources), "allowed": allowed}
    nat = {
        "name": item.nat, "natIpAllocateOption": "AUTO_ONLY", "enableDynamicPortAllocation": True,
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        # Google refuses both together.
        "enableEndpointIndependentMapping": False,
    }  # fmt: skip
    return {**within, "nats": [nat]}


def undelete(item: Role, project: str) -> Call:
    return Call("POST", "iam", f"v1/projects/{project}/roles/{item.id}:undelete", {})


def patch(item: Role, project: str, further: Sequence[str] = ()) -> Call:
    """Give a role that is there all permissions that it needs."""
    body = role(item, further)
    params = {"updateMask": ",".join(body)}
    return Call("PATCH", "iam", f"v1/projects/{project}/roles/{item.id}", body, params)


def wait(link: str) -> Call:
    """Wait for the end of an operation of Compute Engine, at most two minutes."""
    path = link.partition("/compute/v1/")[2]
    return Call("POST", "compute", f"compute/v1/{path}/wait")


# What is removed


def machines(project: str) -> tuple[Call, Call]:
    """Ask for the first page of all TPU VMs and of all instances of a project, with the accounts that they act as."""
    of_compute = {
        "fields": "items/*/instances(name,serviceAccounts/email),nextPageToken",
        "maxResults": str(min(500, PAGE)),
    }
    return (
        Call("GET", "tpu", f"v2/projects/{project}/locations/-/nodes", None, {"pageSize": str(PAGE)}),
        Call("GET", "compute", f"compute/v1/projects/{project}/aggregated/instances", None, of_compute),
    )


def remove(item: Item, made: Setup) -> Call:
    assert not isinstance(item, Grant)
    shown = look(item, made)
    params = {"requestId": str(uuid.uuid4())} if shown.service == "compute" else {}
    return shown._replace(method="DELETE", params=params)


# Policies


def policy(where: str, name: str) -> Call:
    """The request that shows the policy of the project, the bucket or the account."""
    if where == BUCKET:
        return Call("GET", "storage", f"storage/v1/b/{name}/iam", None, {"optionsRequestedPolicyVersion": "3"})
    if where == ACCOUNT:
        params = {"options.requestedPolicyVersion": "3"}
        return Call("POST", "iam", f"v1/projects/-/serviceAccounts/{name}:getIamPolicy", None, params)
    body = {"options": {"requestedPolicyVersion": 3}}
    return Call("POST", "cloudresourcemanager", f"v3/projects/{name}:getIamPolicy", body)


def set_policy(where: str, name: str, told: Json) -> Call:
    if where == BUCKET:
        return Call("PUT", "storage", f"storage/v1/b/{name}/iam", told)
    if where == ACCOUNT:
        return Call("POST", "iam", f"v1/projects/-/serviceAccounts/{name}:setIamPolicy", {"policy": told})
    return Call("POST", "cloudresourcemanager", f"v3/projects/{name}:setIamPolicy", {"policy": told})


def has(told: Mapping[str, Any], grant: Grant) -> bool:
    """Return True if a policy has a grant."""
    return any(_is_of(binding, grant) and grant.member in binding.get("members", ()) for binding in _bindings(told))


def with_grants(told: Mapping[str, Any], grants: Sequence[Grant]) -> Json:
    """Return a policy with further grants. It has the etag of the one that was read, and version 3: without either,
    conditions of others may be lost."""
    bindings = [{**binding, "members": list(binding.get("members", ()))} for binding in _bindings(told)]
    for grant in grants:
        found = next((binding for binding in bindings if _is_of(binding, grant)), None)
        if found is None:
            condition = {"condition": grant.condition._asdict()} if grant.condition else {}
            bindings.append({"role": grant.role, "members": [grant.member], **condition})
        elif grant.member not in found["members"]:
            found["members"].append(grant.member)
    return _policy(told, bindings)


def without_grants(told: Mapping[str, Any], grants: Sequence[Grant]) -> Json:
    bindings = []
    for binding in _bindings(told):
        gone = {grant.member for grant in grants if _is_of(binding, grant)}
        members = [member for member in binding.get("members", ()) if member not in gone]
        if members:
            bindings.append({**binding, "members": members})
    return _policy(told, bindings)


def _policy(told: Mapping[str, Any], bindings: list[Json]) -> Json:
    return {"version": 3, "etag": told.get("etag", ""), "bindings": bindings}


def _bindings(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [binding for binding in told.get("bindings") or () if isinstance(binding, Mapping)]


def _is_of(binding: Mapping[str, Any], grant: Grant) -> bool:
    if binding.get("role") != grant.role:
        return False
    told = binding.get("condition")
    if not told or grant.condition is None:
        return not told and grant.condition is None
    return grant.condition == Condition(
        str(told.get("title", "")), str(told.get("description", "")), str(told.get("expression", ""))
    )


# The manifest


def manifest(bucket: str) -> Call:
    return Call("GET", "storage", f"storage/v1/b/{bucket}/o/{quote(MANIFEST, safe='')}", None, {"alt": "media"})


def delete_manifest(bucket: str) -> Call:
    return Call("DELETE", "storage", f"storage/v1/b/{bucket}/o/{quote(MANIFEST, safe='')}")


def objects(bucket: str) -> Call:
    """Ask for two objects of a bucket: the manifest may be one."""
    return Call("GET", "storage", f"storage/v1/b/{bucket}/o", None, {"maxResults": "2", "fields": "items(name)"})


def write_manifest(bucket: str, body: Json) -> Call:
    return Call(
        "POST", "storage", f"upload/storage/v1/b/{bucket}/o", body, {"uploadType": "media", "name": MANIFEST}
    )  # fmt: skip
