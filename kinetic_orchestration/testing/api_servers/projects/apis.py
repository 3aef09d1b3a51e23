"""Resource Manager, Service Usage and IAM: what a project is, its services, its policy, its accounts and custom roles.

As much of each as setting up a project and one job need, from and to JSON. What projects have is `model.projects`;
permissions, faults and the clock are the cloud's.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Final

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.policies import Policy
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.api_servers.projects.requests import Request, route
from kinetic_orchestration.testing.api_servers.projects.service_accounts import ServiceAccounts
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.state.projects import Project
from kinetic_orchestration.testing.model.state.resources import Json, stamp

_RESOURCES = "cloudresourcemanager.googleapis.com"
_SERVICES = "serviceusage.googleapis.com"
_IAM = "iam.googleapis.com"
_CREDENTIALS = "iamcredentials.googleapis.com"
_AT_ONCE: Final = 20  # services
_FREE: Final = ("cloudresourcemanager", "iam", "iamcredentials", "serviceusage", "storage")  # without billing
_BEGINNING: Final = 1_500_000_000.0
_ROLE = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_OWN_ACCOUNT = re.compile(r"serviceAccount:(.+@[a-z0-9-]+\.iam\.gserviceaccount\.com)")
_ENABLED = "type.googleapis.com/google.api.serviceusage.v1.BatchEnableServicesResponse"


class ProjectApis:
    def __init__(self, cloud: Cloud, accounts: ServiceAccounts) -> None:
        self._cloud = cloud
        self._accounts = accounts
        self._operations: dict[str, Json] = {}
        accounts.forgetful.append(self._forget)

    def _project(self, asked: Request) -> Project:
        """Return the project of a request. One that is not there is refused as one that the caller may not see."""
        if not self._cloud.compute.means.has_project(asked.project):
            raise Refusal(7, "The caller does not have permission")
        return self._cloud.projects.named(asked.project)

    # Resource Manager

    def _get_project(self, asked: Request) -> Json:
        project = self._project(asked)
        created = stamp(_BEGINNING)
        return {
            "name": f"projects/{project.number}", "projectId": project.id, "displayName": project.id, "state": "ACTIVE",
            "createTime": created,
        }  # fmt: skip

    def _get_old_project(self, asked: Request) -> Json:
        project = self._project(asked)
        created = stamp(_BEGINNING)
        return {
            "projectNumber": str(project.number), "projectId": project.id, "name": project.id,
            "lifecycleState": "ACTIVE", "createTime": created,
        }  # fmt: skip

    def _test_permissions(self, asked: Request) -> Json:
        permissions = asked.body.get("permissions", [])
        if not isinstance(permissions, list) or not all(isinstance(permission, str) for permission in permissions):
            raise refusals.typed("permissions", "TYPE_STRING", permissions)
        granted = [permission for permission in permissions if self._has(permission, asked)]
        return {"permissions": granted} if granted else {}

    def _has(self, permission: str, asked: Request) -> bool:
        if self._cloud.is_denied(permission, asked.caller):
            return False
        project = self._project(asked)
        if asked.caller.kind == "account" and project.policy.bindings:
            roles = {name: told["includedPermissions"] for name, told in project.roles.items()}
            return project.policy.grants(permission, asked.caller.members, roles)
        return self._cloud.compute.has_on_project(permission, asked.caller)

    def _get_policy(self, asked: Request) -> Json:
        told = self._project(asked).policy.to_json()
        version = (asked.body.get("options") or {}).get("requestedPolicyVersion", 1)
        if version >= 3:
            return told
        return {**told, "version": 1, "bindings": [_without_condition(one) for one in told.get("bindings", ())]}

    def _set_policy(self, asked: Request) -> Json:
        project, told = self._project(asked), asked.body.get("policy", {})
        if told.get("etag", "") not in ("", project.policy.to_json()["etag"]):
            raise refusals.concurrent_policy_changes()
        try:
            wanted = Policy.of_json(told)
        except ValueError as error:
            raise refusals.invalid(str(error)) from None
        if any(one.condition for one in wanted.bindings) and told.get("version") != 3:
            raise refusals.invalid("Specified policy has conditional role bindings, and its version is not 3.")
        for binding in wanted.bindings:
            own = binding.role.startswith("projects/")
            if own and project.roles.get(binding.role, {"deleted": True}).get("deleted"):
                raise refusals.invalid(f"Role ({binding.role}) does not exist in the resource's hierarchy.")
            for member in binding.members:
                found = _OWN_ACCOUNT.fullmatch(member)
                ours = found is not None and found[1].endswith(f"@{project.id}.iam.gserviceaccount.com")
                if found is not None and ours and not self._accounts.is_known(found[1]):
                    raise refusals.no_account(found[1])
        project.policy = wanted
        return wanted.to_json()

    def _forget(self, email: str, unique_id: str) -> None:
        name = email.partition("@")[2].partition(".")[0]
        project = self._cloud.projects.named(name)
        project.policy = project.policy.without_account(email, unique_id)

    # Service Usage

    def _get_service(self, asked: Request) -> Json:
        project = self._project(asked)
        if not self._cloud.compute.means.has_project(project.id):
            raise Refusal(7, "The caller does not have permission")
        return self._service(project, asked.last)

    def _service(self, project: Project, service: str) -> Json:
        state = "ENABLED" if self._cloud.is_enabled(service, project.id) else "DISABLED"
        parent = f"projects/{project.number}"
        return {
            "name": f"{parent}/services/{service}", "config": {"name": service}, "parent": parent, "state": state
        }  # fmt: skip

    def _get_services(self, asked: Request) -> Json:
        project = self._project(asked)
        names = [name for name in asked.query.get("names", "").split(",") if name]
        _demand_few(names)
        return {"services": [self._service(project, name.rpartition("/")[2]) for name in names]}

    def _enable(self, asked: Request) -> Json:
        project, services = self._project(asked), asked.body.get("serviceIds", [])
        _demand_few(services)
        lacking = [one for one in services if not self._cloud.is_enabled(one, project.id)]
        if project.activating and lacking:
            raise refusals.activating()
        charged = [one for one in lacking if one.partition(".")[0] not in _FREE]
        if charged and project.billing != "open":
            how = "not found" if project.billing == "none" else "not open"
            raise refusals.no_billing(project.number, how, ",".join(charged))
        parent = f"projects/{project.number}"
        name = f"operations/acat.p2-{project.number}-{uuid.uuid4()}"
        resources = [f"{parent}/services/{one}" for one in services]
        kind = "type.googleapis.com/google.api.serviceusage.v1.OperationMetadata"
        operation: Json = {"name": name, "metadata": {"@type": kind, "resourceNames": resources}}
        self._operations[name] = operation
        project.activating += 1

        def done() -> None:
            project.activating -= 1
            for service in services:
                self._cloud.enable(service)
                if project.services is not None:
                    project.services.setdefault(service, self._cloud.now + self._cloud.timing.spread)
            shown = [self._service(project, one) for one in services]
            operation.update(done=True, response={"@type": _ENABLED, "services": shown})

        self._cloud.later(self._cloud.timing.enable if lacking else 0.0, done)
        return dict(operation)

    def _get_operation(self, asked: Request) -> Json:
        found = self._operations.get(f"operations/{asked.last}")
        if found is None:
            raise Refusal(5, f"Operation operations/{asked.last} was not found.")
        return dict(found)

    # IAM

    def _create_account(self, asked: Request) -> Json:
        about = asked.body.get("serviceAccount") or {}
        email = self._accounts.add(self._project(asked).id, str(asked.body.get("accountId", "")), about)
        return self._accounts.told(email, made=True)

    def _get_account(self, asked: Request) -> Json:
        return self._accounts.told(asked.last)

    def _delete_account(self, asked: Request) -> Json:
        self._accounts.remove(asked.last)
        return {}

    def _get_account_policy(self, asked: Request) -> Json:
        return self._accounts.policy(asked.last)

    def _set_account_policy(self, asked: Request) -> Json:
        policy = asked.body.get("policy", {})
        return self._accounts.set_policy(asked.last, policy if isinstance(policy, dict) else {"bindings": policy})

    def _access_token(self, asked: Request) -> Json:
        return self._accounts.access_token(asked.last, asked.caller)

    def _identity_token(self, asked: Request) -> Json:
        return self._accounts.identity_token(asked.last, asked.body, asked.caller)

    def _create_role(self, asked: Request) -> Json:
        project, ident = self._project(asked), str(asked.body.get("roleId", ""))
        if not _ROLE.fullmatch(ident):
            raise refusals.invalid(f"The role_id ({ident}) must match the pattern {_ROLE.pattern}.")
        name = f"projects/{project.id}/roles/{ident}"
        if project.roles.get(name, {}).get("deleted"):
            raise Refusal(9, f"You can't create a role_id ({ident}) which has been marked for deletion.")
        if name in project.roles:
            raise Refusal(6, f"A role named {ident} in projects/{project.id} already exists.")
        project.roles[name] = _role(name, asked.body.get("role") or {})
        return project.roles[name]

    def _role(self, asked: Request) -> Json:
        found = self._project(asked).roles.get(f"projects/{self._project(asked).id}/roles/{asked.last}")
        if found is None:
            raise Refusal(5, f"The role named {asked.name} was not found.")
        return found

    def _patch_role(self, asked: Request) -> Json:
        role = self._role(asked)
        if role.get("deleted"):
            raise Refusal(9, f"You can't update role_id ({asked.name}) as it is deleted.")
        changed = {key: asked.body[key] for key in asked.update if key in asked.body}
        role.update(_role(role["name"], {**role, **changed}))
        return role

    def _delete_role(self, asked: Request) -> Json:
        role = self._role(asked)
        if role.get("deleted"):
            raise Refusal(9, f"You can't delete role_id ({asked.name}) as it is already deleted.")
        role["deleted"] = True
        return role

    def _undelete_role(self, asked: Request) -> Json:
        role = self._role(asked)
        if not role.pop("deleted", False):
            raise Refusal(9, f"You can't undelete role_id ({asked.name}) as it is not deleted.")
        return role


def _role(name: str, told: Json) -> Json:
    fields: Json = {key: told[key] for key in ("title", "description", "stage") if key in told}
    kept: Json = {"name": name, **fields, "includedPermissions": sorted(told.get("includedPermissions", ()))}
    return {**kept, "etag": hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:11] + "="}


def _without_condition(binding: Json) -> Json:
    """Return how whoever asks for no conditions sees a binding that has one."""
    if "condition" not in binding:
        return binding
    sign = hashlib.sha256(json.dumps(binding["condition"]).encode()).hexdigest()[:20]
    return {"role": f"{binding['role']}_withcond_{sign}", "members": binding["members"]}


def _demand_few(services: object) -> None:
    if not isinstance(services, list) or not 1 <= len(services) <= _AT_ONCE:
        raise refusals.invalid(f"Between 1 and {_AT_ONCE} services may be named.")


ROUTES = (
    route(
        "GET /v3/projects/P", "GetProject", "resourcemanager.projects.get", ProjectApis._get_project, _RESOURCES
    ),
    route(
        "GET /v1/projects/P", "GetProject", "resourcemanager.projects.get", ProjectApis._get_old_project, _RESOURCES
    ),
    route(
        "POST /v[13]/projects/P:testIamPermissions", "TestIamPermissions", "", ProjectApis._test_permissions,
        _RESOURCES,
    ),
    route(
        "POST /v[13]/projects/P:getIamPolicy", "GetIamPolicy", "resourcemanager.projects.getIamPolicy",
        ProjectApis._get_policy, _RESOURCES,
    ),
    route(
        "POST /v[13]/projects/P:setIamPolicy", "SetIamPolicy", "resourcemanager.projects.setIamPolicy",
        ProjectApis._set_policy, _RESOURCES,
    ),
    route(
        "GET /v1/projects/P/services/S", "GetService", "serviceusage.services.get", ProjectApis._get_service,
        _SERVICES,
    ),
    route(
        "GET /v1/projects/P/services:batchGet", "BatchGetServices", "serviceusage.services.get",
        ProjectApis._get_services, _SERVICES,
    ),
    route(
        "POST /v1/projects/P/services:batchEnable", "BatchEnableServices", "serviceusage.services.enable",
        ProjectApis._enable, _SERVICES,
    ),
    route(r"GET /v1/operations/acat\.[^/:]+", "GetOperation", "", ProjectApis._get_operation, _SERVICES),
    route(
        "POST /v1/projects/P/serviceAccounts", "CreateServiceAccount", "iam.serviceAccounts.create",
        ProjectApis._create_account, _IAM,
    ),
    route(
        "GET /v1/projects/P/serviceAccounts/S", "GetServiceAccount", "iam.serviceAccounts.get",
        ProjectApis._get_account, _IAM,
    ),
    route(
        "DELETE /v1/projects/P/serviceAccounts/S", "DeleteServiceAccount", "iam.serviceAccounts.delete",
        ProjectApis._delete_account, _IAM,
    ),
    route(
        "POST /v1/projects/P/serviceAccounts/S:getIamPolicy", "GetAccountIamPolicy",
        "iam.serviceAccounts.getIamPolicy", ProjectApis._get_account_policy, _IAM,
    ),
    route(
        "POST /v1/projects/P/serviceAccounts/S:setIamPolicy", "SetAccountIamPolicy",
        "iam.serviceAccounts.setIamPolicy", ProjectApis._set_account_policy, _IAM,
    ),
    route(
        "POST /v1/projects/P/serviceAccounts/S:generateAccessToken", "GenerateAccessToken",
        "iam.serviceAccounts.getAccessToken", ProjectApis._access_token, _CREDENTIALS,
    ),
    route(
        "POST /v1/projects/P/serviceAccounts/S:generateIdToken", "GenerateIdToken",
        "iam.serviceAccounts.getOpenIdToken", ProjectApis._identity_token, _CREDENTIALS,
    ),
    route("POST /v1/projects/P/roles", "CreateRole", "iam.roles.create", ProjectApis._create_role, _IAM),
    route("GET /v1/projects/P/roles/S", "GetRole", "iam.roles.get", ProjectApis._role, _IAM),
    route("PATCH /v1/projects/P/roles/S", "UpdateRole", "iam.roles.update", ProjectApis._patch_role, _IAM),
    route("DELETE /v1/projects/P/roles/S", "DeleteRole", "iam.roles.delete", ProjectApis._delete_role, _IAM),
    route(
        "POST /v1/projects/P/roles/S:undelete", "UndeleteRole", "iam.roles.undelete", ProjectApis._undelete_role, _IAM
    ),
)  # fmt: skip
