"""The refusals of the emulated cloud, verbatim where Google's words are known: one function per row.

A refusal is a google.rpc.Status: a code, a message, and details as proto-JSON. It does not know the protocol that
carries it. docs/pipelines/emulator.md names the source of each row.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from kinetic_orchestration.platforms.google import api_errors

CODES: Final = {number: name for name, number in api_errors.CODES.items()}
# The mapping that google/rpc/code.proto gives.
_HTTP: Final = {
    1: 499, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 14: 503, 16: 401,
}  # fmt: skip

# What the first format of errors calls them.
_REASONS: Final = {
    3: "badRequest", 5: "notFound", 6: "alreadyExists", 7: "forbidden", 8: "rateLimitExceeded", 9: "failedPrecondition",
    12: "notImplemented", 16: "authError",
}  # fmt: skip

TPU = "tpu.googleapis.com"
_API_NAMES = {
    TPU: "Cloud TPU API",
    "secretmanager.googleapis.com": "Secret Manager API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "serviceusage.googleapis.com": "Service Usage API",
    "storage.googleapis.com": "Cloud Storage API",
    "compute.googleapis.com": "Compute Engine API",
    "aiplatform.googleapis.com": "Agent Platform API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "iap.googleapis.com": "Cloud Identity-Aware Proxy API",
}
# accelerator type → what stands for it in the name of a quota, with spot and without
_QUOTA_NAMES = {
    "v2": ("TPUV2sPod", "TPUV2sPreemptiblePod"),
    "v3": ("TPUV3sPod", "TPUV3sPreemptiblePod"),
    "v4": ("TPUV4sPod", "TPUV4sPreemptiblePod"),
    "v5e": ("TPUV5sLitepod", "TPUV5sPreemptibleLitepod"),
    "v5p": ("TPUV5P", "TPUV5PPreemptible"),
    "v6e": ("TPUV6E", "TPUV6EPreemptible"),
}


class Refusal(Exception):
    """An error of the cloud: google.rpc.Status."""

    def __init__(self, code: int, message: str, *details: dict[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    @property
    def http(self) -> int:
        return _HTTP.get(self.code, 500)

    @property
    def status(self) -> str:
        return CODES.get(self.code, "UNKNOWN")

    @property
    def reason(self) -> str:
        """The first format of errors has one word for it."""
        return _REASONS.get(self.code, "backendError")

    def to_json(self) -> dict[str, Any]:
        """A google.rpc.Status, as an operation and a failed queued resource hold it."""
        found: dict[str, Any] = {"code": self.code, "message": self.message}
        return found | ({"details": list(self.details)} if self.details else {})

    def to_http(self, *, errors: bool = False) -> dict[str, Any]:
        """The body of an error of a Google API over REST; with the list `errors` of its first format if asked for."""
        error: dict[str, Any] = {"code": self.http, "message": self.message}
        if errors:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        error["status"] = self.status
        return {"error": error | ({"details": list(self.details)} if self.details else {})}


class LostAnswer(Exception):
    """The call was carried out, but its answer is dropped."""


def no_capacity(zone: str, event: int) -> Refusal:
    return Refusal(
        8,
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are '
        f"offered (see https://cloud.google.com/tpu/docs/regions) [EID: {event:#x}]",
    )


def no_reserved_capacity(event: int) -> Refusal:
    return Refusal(
        8,
        f"Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: {event:#x}]",
    )


def internal() -> Refusal:
    return Refusal(13, "an internal error has occurred")


def unavailable() -> Refusal:
    return Refusal(14, "The service is currently unavailable.")


def expired(name: str) -> Refusal:
    return Refusal(4, f"The queued resource {name} could not be provisioned before its valid until time.")


def quota(generation: str, spot: bool, scope: str, limit: int, project: str) -> Refusal:
    where = "zone" if scope.count("-") >= 2 else "region"  # us-east5-a and us-east5
    per = f"PerProjectPer{where.capitalize()}"
    name = f"{_QUOTA_NAMES.get(generation, ('TPU', 'TPUPreemptible'))[spot]}{per}ForTPUAPI"
    text = f"Quota limit '{name}' has been exceeded. Limit: {limit} in {where} {scope}."
    violation = {"subject": f"project:{project}", "description": text}
    return Refusal(8, text, {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]})


def create_rate(project: str, limit: int) -> Refusal:
    create = "Maximum number of CreateNode requests"
    extra = {"quota_metric": "tpu.googleapis.com/qps/create", "quota_limit_value": str(limit)}
    return _rate_exceeded(project, create, f"{create} per minute", **extra)


def too_many_requests(project: str) -> Refusal:
    return _rate_exceeded(project, "Requests", "Requests per minute")


def _rate_exceeded(project: str, metric: str, limit: str, **extra: str) -> Refusal:
    consumer = f"projects/{project}"
    return Refusal(
        8,
        f"Quota exceeded for quota metric '{metric}' and limit '{limit}' of service '{TPU}' for consumer '{consumer}'.",
        _info("RATE_LIMIT_EXCEEDED", service=TPU, consumer=consumer, **extra),
    )


def zone_unknown(zone: str) -> Refusal:
    return Refusal(7, f"Location {zone} is not found or access is unauthorized.")


def permission(name: str, resource: str) -> Refusal:
    others = f"Permission '{name}' denied for resource '{resource}' (or it may not exist)."
    return Refusal(
        7,
        f"Permission '{name}' denied on '{resource}'" if name.startswith("tpu.") else others,
        _info("IAM_PERMISSION_DENIED", domain="iam.googleapis.com", permission=name, resource=resource),
    )


def act_as(account: str) -> Refusal:
    return Refusal(
        7,
        f"The user does not have access to service account '{account}'. Ask a project owner to grant you the "
        "iam.serviceAccountUser role on the service account",
    )


def api_disabled(service: str, project: str) -> Refusal:
    url = f"https://console.developers.google.com/apis/api/{service}/overview?project={project}"
    return Refusal(
        7,
        f"{_API_NAMES.get(service, service)} has not been used in project {project} before or it is disabled. Enable "
        f"it by visiting {url} then retry. If you enabled this API recently, wait a few minutes for the action to "
        "propagate to our systems and retry.",
        _info("SERVICE_DISABLED", service=service, consumer=f"projects/{project}", activationUrl=url),
    )


def key_invalid(service: str) -> Refusal:
    return Refusal(
        3, "API key not valid. Please pass a valid API key.",
        _info("API_KEY_INVALID", domain="googleapis.com", service=service),
    )  # fmt: skip


def key_of_other_services(service: str, method: str, project: str) -> Refusal:
    return Refusal(
        7,
        f"Requests to this API {service} method {method} are blocked.",
        _info("API_KEY_SERVICE_BLOCKED", service=service, methodName=method, consumer=f"projects/{project}"),
    )


def key_of_other_addresses(service: str, project: str) -> Refusal:
    return Refusal(
        7,
        "The provided API key has an IP address restriction. The originating IP address of the call (127.0.0.1) "
        "violates this restriction.",
        _info("API_KEY_IP_ADDRESS_BLOCKED", service=service, consumer=f"projects/{project}"),
    )


def service_controls(project: str, event: str = "emulated") -> Refusal:
    return Refusal(
        7,
        f"Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: {event}",
        _info("SECURITY_POLICY_VIOLATED", service=TPU, consumer=f"projects/{project}", uid=event),
        {
            "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
            "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": event}],
        },
    )


def organization_policy(constraint: str, project: str) -> Refusal:
    return Refusal(9, f"Constraint {constraint} violated for project {project}.")


def members_domain() -> Refusal:
    """The organisation allows no members from outside: constraints/iam.allowedPolicyMemberDomains."""
    return Refusal(
        9,
        "One or more users named in the policy do not belong to a permitted customer, perhaps due to an organization "
        "policy.",
    )


def concurrent_policy_changes() -> Refusal:
    return Refusal(
        10,
        "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.",
    )


def no_account(email: str) -> Refusal:
    return Refusal(3, f"Service account {email} does not exist.")


def activating() -> Refusal:
    return Refusal(9, "Another activation or deactivation is in progress.")


def no_billing(number: int, how: str, services: str) -> Refusal:
    """`how`: not found, or not open."""
    return Refusal(
        9,
        f"Billing account for project '{number}' is {how}. Billing must be enabled for activation of service(s) "
        f"'{services}' to proceed.",
        {
            "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
            "violations": [
                {
                    "type": "googleapis.com/billing-enabled",
                    "subject": f"{number}",
                    "description": "billing-enabled",
                }
            ],
        },
        _info("UREQ_PROJECT_BILLING_NOT_FOUND", domain="serviceusage.googleapis.com"),
    )


def user_project_denied(project: str) -> Refusal:
    return Refusal(
        7,
        f"Caller does not have required permission to use project {project}. Grant the caller the "
        "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use permission, "
        "and then retry.",
        _info("USER_PROJECT_DENIED", service=TPU, consumer=f"projects/{project}"),
    )


def exists(name: str) -> Refusal:
    return Refusal(6, f"Resource '{name}' already exists")


def missing(name: str) -> Refusal:
    return Refusal(5, f"Resource '{name}' was not found")


def has_nodes(name: str) -> Refusal:
    return Refusal(
        9,
        f"Queued resource '{name}' has nodes that are not deleted. Delete them first, or delete it with force.",
    )


def not_while(verb: str, state: str) -> Refusal:
    return Refusal(3, f"{verb} is not supported while in state {state}")


def invalid(message: str) -> Refusal:
    return Refusal(3, message)


def unimplemented(what: str, why: str = "") -> Refusal:
    return Refusal(12, f"The emulator does not imitate {what}{f': {why}' if why else ''}.")


def not_defined(method: str, path: str) -> Refusal:
    return Refusal(5, f"No API that the emulator imitates has {method} {path}.")


def failed(method: str, path: str, error: Exception) -> Refusal:
    """The emulator itself went wrong."""
    return Refusal(13, f"The emulator failed at {method} {path}: {error!r}")


def resource_name() -> Refusal:
    return Refusal(3, "Invalid resource field value in the request.")


def runtime_version(version: str) -> Refusal:
    event = zlib.crc32(version.encode())
    return Refusal(
        3,
        f'Cloud TPU received an invalid argument. The field "RuntimeVersion" cannot be "{version}". [EID: {event:#x}]',
    )


def request_id(given: str) -> Refusal:
    return Refusal(3, f"Invalid request id '{given}': a request id is a UUID, and not the zero one.")


def request_id_used(given: str) -> Refusal:
    return Refusal(3, f"The request id '{given}' was used for another request.")


def json_payload(why: str) -> Refusal:
    return Refusal(3, f"Invalid JSON payload received. {why}")


def typed(field: str, kind: str, given: object) -> Refusal:
    return Refusal(3, f"Invalid value at '{field}' ({kind}), {given}")


def unknown_parameter(name: str) -> Refusal:
    return json_payload(
        f"Unknown name \"{name}\": Cannot bind query parameter. Field '{name}' could not be found in request message."
    )


def alt_media() -> Refusal:
    return Refusal(3, 'Unsupported alt type "media" for non byte stream request.')


def alt_unknown(alt: str) -> Refusal:
    return Refusal(3, f"Invalid value \"{alt}\" for query parameter 'alt'")


def system_parameter(name: str, value: str) -> Refusal:
    return Refusal(3, f"Invalid query parameters. Invalid value '{value}' for system query parameter : {name}")


def bad_mask(mask: str, path: str) -> Refusal:
    told = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{path}'."
    violation = {"field": mask, "description": told}
    return Refusal(
        3,
        "Request contains an invalid argument.",
        {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]},
    )


def bad_filter(text: str) -> Refusal:
    told = "comparisons of fields, joined by AND, OR and NOT, are understood"
    return Refusal(3, f"Invalid filter '{text[:200]}': {told}.")


def _info(reason: str, *, domain: str = "googleapis.com", **metadata: str) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": domain, "metadata": metadata}
