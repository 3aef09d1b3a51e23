"""The methods of the imitated APIs that the emulator does not serve, and the reasons: one table for all servers.

Every method of Google's is either served or in a row here, and then its calls are refused as unimplemented. A test
compares the table with Google's discovery documents. A method in neither has not been examined yet.
"""

from __future__ import annotations

import re
from functools import cached_property

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal


class Row:
    """`methods` of a resource, by their ids in its discovery document (*: of all that is below it, too), and the calls
    that reach them: HTTP methods, then a path in which * is one part and ** the rest."""

    def __init__(self, resource: str, methods: str, calls: str, why: str) -> None:
        self.resource = resource
        self.methods = tuple(methods.split())
        self.calls = tuple(line.strip() for line in calls.strip().splitlines())
        self.why = why

    def has(self, method: str) -> bool:
        """True if a method, by its id such as `storage.folders.get`, is in this row."""
        resource, _, name = method.rpartition(".")
        if self.methods == ("*",):
            return f"{method}.".startswith(f"{self.resource}.")
        return resource == self.resource and name in self.methods

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches `METHOD /path` of each of its calls."""
        return re.compile("|".join(_pattern(call) for call in self.calls))


def _pattern(call: str) -> str:
    methods, _, path = call.partition(" ")
    parts = re.split(r"(\*\*|\*|\{[^}]*\})", path)
    choices = {"**": "(?:[/:].*)?", "*": "[^/]+"}
    told = "".join(
        choices.get(part) or (f"(?:{part[1:-1].replace(',', '|')})" if part.startswith("{") else re.escape(part))
        for part in parts
    )
    return f"(?:{'[A-Z]+' if methods == '*' else methods}) {told}"


_NO_POLICIES = "it has no policy, and a permission is there unless it is denied"
_NO_PROJECTS = "whatever project is named is there, with its policy, and nothing else of Resource Manager is"
_AT_ONCE = "but for those that enable services, whose names begin with acat., there are no operations"
_NO_ACCOUNTS = "the ledger counts chip-seconds, and nobody is billed"
_NO_LISTS = "there are no access lists: who may do what, `storage.forbid` says"
_SERVER = "fake-gcs-server has nothing of the kind"

TABLE = (
    Row(
        "tpu.projects.locations.operations", "cancel",
        "POST /v2/projects/*/locations/*/operations/*:cancel",
        "what cancelling an operation of Cloud TPU does is not known",
    ),
    Row(
        "secretmanager.projects.locations", "*",
        "* /v1/projects/*/locations**",
        "secrets of one region are at addresses of their own",
    ),
    Row(
        "secretmanager.projects.secrets", "enableManagedRotation rotateSecret",
        "POST /v1/projects/*/secrets/*:{enableManagedRotation,rotateSecret}",
        "no secret is rotated",
    ),
    Row(
        "secretmanager.projects.secrets", "getIamPolicy setIamPolicy testIamPermissions",
        """
        GET /v1/projects/*/secrets/*:getIamPolicy
        POST /v1/projects/*/secrets/*:{setIamPolicy,testIamPermissions}
        """,
        _NO_POLICIES,
    ),
    Row(
        "secretmanager.projects.secrets.versions", "disable enable",
        "POST /v1/projects/*/secrets/*/versions/*:{disable,enable}",
        "a version is enabled until it is destroyed",
    ),
    Row("cloudbilling.services", "list", "GET /v1/services", "the catalog is that of Compute Engine alone"),
    Row(
        "cloudbilling.projects", "getBillingInfo updateBillingInfo",
        "GET|PUT /v1/projects/*/billingInfo",
        _NO_ACCOUNTS,
    ),
    Row("cloudbilling.organizations", "*", "* /v1/organizations/*/billingAccounts**", _NO_ACCOUNTS),
    Row("cloudbilling.billingAccounts", "*", "* /v1/billingAccounts**", _NO_ACCOUNTS),
    Row("cloudbilling.message", "*", "POST /v1/message:{send,stream}", _NO_ACCOUNTS),
    Row("cloudbilling.tasks", "*", "* /v1/tasks**", _NO_ACCOUNTS),
    Row("cloudbilling.v1", "getCard", "GET /v1/card", _NO_ACCOUNTS),
    Row(
        "cloudresourcemanager.projects", "create delete list move patch search undelete update",
        """
        GET|POST /{v1,v3}/projects
        GET /v3/projects:search
        DELETE|PATCH|PUT /{v1,v3}/projects/*
        POST /{v1,v3}/projects/*:{move,undelete}
        """,
        _NO_PROJECTS,
    ),
    Row(
        "cloudresourcemanager.projects",
        "clearOrgPolicy getAncestry getEffectiveOrgPolicy getOrgPolicy listAvailableOrgPolicyConstraints "
        "listOrgPolicies setOrgPolicy",
        """
        POST /v1/projects/*:{clearOrgPolicy,getAncestry,getEffectiveOrgPolicy,getOrgPolicy}
        POST /v1/projects/*:{listAvailableOrgPolicyConstraints,listOrgPolicies,setOrgPolicy}
        """,
        "it has no organisation, whose policies a test has calls refused by",
    ),
    Row("cloudresourcemanager.projects.capabilityConfigs", "*", "* /v3/projects/*/capabilityConfigs**", _NO_PROJECTS),
    Row("cloudresourcemanager.operations", "*", "* /{v1,v3}/operations**", _AT_ONCE),
    *(
        Row(f"cloudresourcemanager.{resource}", "*", f"* /{{v1,v3}}/{resource}**", _NO_PROJECTS)
        for resource in (
            *("effectiveTags", "folders", "liens", "locations", "organizations", "tagBindings", "tagKeys", "tagValues"),
        )
    ),
    Row("cloudresourcemanager.v3", "fetchResourceSemantics", "GET /v3:fetchResourceSemantics", _NO_PROJECTS),
    Row(
        "serviceusage.services", "disable enable list",
        """
        GET /v1/*/*/services
        POST /v1/*/*/services/*:{disable,enable}
        """,
        "services are enabled several at once, and a test disables them",
    ),
    Row("serviceusage.operations", "*", "* /v1/operations**", _AT_ONCE),
    *(
        Row(f"storage.{resource}", "*", f"* /storage/v1/b/*/{path}**", why)
        for resource, path, why in (
            ("anywhereCaches", "anywhereCaches", _SERVER),
            ("rapidCaches", "rapidCaches", _SERVER),
            ("bucketAccessControls", "acl", _NO_LISTS),
            ("defaultObjectAccessControls", "defaultObjectAcl", _NO_LISTS),
            ("folders", "folders", _SERVER),
            ("managedFolders", "managedFolders", _SERVER),
            ("notifications", "notificationConfigs", _SERVER),
            ("operations", "operations", _SERVER),
        )
    ),
    Row(
        "storage.objectAccessControls", "delete get insert patch update",
        """
        POST /storage/v1/b/*/o/*/acl
        DELETE|GET|PATCH|PUT /storage/v1/b/*/o/*/acl/*
        """,
        _NO_LISTS,
    ),
    Row(
        "storage.buckets", "getStorageLayout lockRetentionPolicy relocate restore update",
        """
        GET /storage/v1/b/*/storageLayout
        POST /storage/v1/b/*/{lockRetentionPolicy,relocate,restore}
        PUT /storage/v1/b/*
        """,
        _SERVER,
    ),
    Row(
        "storage.objects", "getIamPolicy setIamPolicy testIamPermissions",
        """
        GET|PUT /storage/v1/b/*/o/*/iam
        GET /storage/v1/b/*/o/*/iam/testPermissions
        """,
        _NO_POLICIES,
    ),
    Row(
        "storage.objects", "bulkRestore move restore viewFullContext",
        """
        POST /storage/v1/b/*/o/bulkRestore
        POST /storage/v1/b/*/o/*/moveTo/o/*
        POST /storage/v1/b/*/o/*/restore
        GET /storage/v1/b/*/o/*/viewFullContext
        """,
        _SERVER,
    ),
    Row("storage.projects", "*", "* /storage/v1/projects**", "keys and accounts of its own are not imitated"),
)  # fmt: skip
_ANY = re.compile("|".join(row.pattern.pattern for row in TABLE))


def row_of(method: str, path: str) -> Row | None:
    """The row that a call meets; of storage, `path` is as it was sent."""
    call = f"{method} {path}"
    return next((row for row in TABLE if row.pattern.fullmatch(call)), None) if _ANY.fullmatch(call) else None


def refusal(method: str, path: str) -> Refusal:
    """The refusal of a call that no server handles."""
    row = row_of(method, path)
    if row is None:
        return refusals.not_defined(method, path)
    return refusals.unimplemented(f"{method} {path}", row.why)
