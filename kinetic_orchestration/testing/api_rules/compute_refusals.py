"""The refusals of Compute Engine, in the form that its own errors have, and the errors of its operations.

An older kind of API than Cloud TPU: an error has a list `errors` with a reason in one word, and what goes wrong after a
request was accepted is told by an operation. docs/pipelines/emulator.md names the source of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal

SERVICE: Final = "compute.googleapis.com"
_CODES: Final = {400: 3, 403: 7, 404: 5, 409: 6, 412: 9, 429: 8, 501: 12, 503: 14}
_PHRASES: Final = {
    400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 500: "INTERNAL ERROR",
    503: "SERVICE UNAVAILABLE",
}  # fmt: skip
_STOCKOUT = "There is no more capacity"  # how refusals of Cloud TPU begin, which random faults share
Json = dict[str, Any]


class ComputeRefusal(Refusal):
    """An error of Compute Engine.

    Args:
        http: The status of HTTP; of an operation, its httpErrorStatusCode.
        reason: In one word, as the first format of errors has it.
        message: For people.
        details: As google.rpc errors have them.
        domain: Of the reason.
        code: Of the error of an operation.
        error_details: Of the error of an operation.
    """

    def __init__(
        self, http: int, reason: str, message: str, *details: Json, domain: str = "global", code: str = "",
        error_details: Iterable[Json] = (),
    ) -> None:  # fmt: skip
        super().__init__(_CODES.get(http, 13), message, *details)
        self._http = http
        self._reason = reason
        self.domain = domain
        self.error_code = code or "INTERNAL_ERROR"
        self.error_details = tuple(error_details)

    @property
    def http(self) -> int:
        return self._http

    @property
    def reason(self) -> str:
        return self._reason

    def to_http(self, *, errors: bool = False) -> Json:
        listed = {"message": self.message, "domain": self.domain, "reason": self.reason}
        error: Json = {"code": self.http, "message": self.message, "errors": [listed]}
        return {"error": error | ({"details": list(self.details)} if self.details else {})}

    def of_operation(self) -> Json:
        """The fields of an operation that ended with it."""
        error: Json = {"code": self.error_code, "message": self.message}
        if self.error_details:
            error["errorDetails"] = list(self.error_details)
        return {
            "error": {"errors": [error]},
            "httpErrorStatusCode": self.http,
            "httpErrorMessage": _PHRASES.get(self.http, "INTERNAL ERROR"),
        }


def of(refusal: Refusal) -> ComputeRefusal:
    """Return any refusal as one of Compute Engine's."""
    if isinstance(refusal, ComputeRefusal):
        return refusal
    if refusal.code == 8:  # of which this API says 403, as of everything that is too much
        if refusal.message.startswith(_STOCKOUT):
            return ComputeRefusal(503, "backendError", refusal.message, code="ZONE_RESOURCE_POOL_EXHAUSTED")
        return rate_limit(refusal.message)
    http = refusal.http
    reason = {403: "forbidden", 503: "backendError", 500: "backendError"}.get(http, refusal.reason)
    if any(detail.get("reason") == "SERVICE_DISABLED" for detail in refusal.details):
        reason = "accessNotConfigured"
    domain = "usageLimits" if reason == "accessNotConfigured" else "global"
    return ComputeRefusal(http, reason, refusal.message, *refusal.details, domain=domain)


def missing(resource: str) -> ComputeRefusal:
    message = f"The resource '{resource}' was not found"
    return ComputeRefusal(404, "notFound", message, code="RESOURCE_NOT_FOUND")


def exists(resource: str) -> ComputeRefusal:
    message = f"The resource '{resource}' already exists"
    return ComputeRefusal(409, "alreadyExists", message, code="RESOURCE_ALREADY_EXISTS")


def permission(name: str, resource: str) -> ComputeRefusal:
    info = refusals.permission(name, resource).details
    message = f"Required '{name}' permission for '{resource}'"
    return ComputeRefusal(403, "forbidden", message, *info)


def scopes() -> ComputeRefusal:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
        "domain": "googleapis.com",
        "metadata": {"service": SERVICE},
    }
    message = "Request had insufficient authentication scopes."
    return ComputeRefusal(403, "insufficientPermissions", message, info)


def act_as(account: str) -> ComputeRefusal:
    message = (
        f"The user does not have access to service account '{account}'.  User: 'emulated'.  Ask a project owner to "
        "grant you the iam.serviceAccountUser role on the service account"
    )
    return ComputeRefusal(400, "serviceAccountAccessDenied", message, code="SERVICE_ACCOUNT_ACCESS_DENIED")


def value(field: str, given: object, why: str) -> ComputeRefusal:
    """A value that a field cannot have."""
    message = f"Invalid value for field '{field}': '{given}'. {why}"
    return ComputeRefusal(400, "invalid", message, code="INVALID_FIELD_VALUE")


def usage(message: str) -> ComputeRefusal:
    return ComputeRefusal(400, "badRequest", message, code="INVALID_USAGE")


def unknown_name(field: str, at: str) -> ComputeRefusal:
    where = f" at '{at}'" if at else ""
    message = f'Invalid JSON payload received. Unknown name "{field}"{where}: Cannot find field.'
    violation = {"field": at, "description": message}
    details = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
    return ComputeRefusal(400, "badRequest", message, details)


def unknown_parameter(name: str) -> ComputeRefusal:
    return of(refusals.unknown_parameter(name))


def typed(field: str, kind: str, given: object) -> ComputeRefusal:
    return of(refusals.typed(field, kind, given))


def rate_limit(message: str = "") -> ComputeRefusal:
    """Too many requests: 403, and there is room again at the next full minute."""
    text = message or "Rate Limit Exceeded"
    return ComputeRefusal(403, "rateLimitExceeded", text, domain="usageLimits", code="RATE_LIMIT_EXCEEDED")


def unavailable(place: str) -> ComputeRefusal:
    """A zone or a region does not answer."""
    kind = "zone" if place.count("-") > 1 else "region"
    return ComputeRefusal(503, "backendError", f"The {kind} '{place}' is currently unavailable. Try again later.")


def not_of_resource(permission: str) -> ComputeRefusal:
    message = f"Permission {permission} is not valid for this resource."
    return ComputeRefusal(400, "badRequest", message)


def machine_not_allowed(machine: str, project: str) -> ComputeRefusal:
    message = f"The project {project} is not allowed to use the machine type {machine}: this user agent is not allowed."
    return ComputeRefusal(400, "invalid", message, code="INVALID_FIELD_VALUE")


def stockout(
    project: str, zone: str, machine: str, attached: str, others: Iterable[str], reason: str
) -> ComputeRefusal:
    """There are no such machines in a zone; `others` are zones that have some."""
    there = list(others)
    kind, _, count = attached.rpartition(":")
    what = f"A {machine} VM instance{f' with {count} {kind} accelerator(s)' if attached else ''}"
    more = "you can try your request again with a different VM hardware configuration or at a later time."
    hint = (
        f"Consider trying your request in the {', '.join(there)} zone(s), which currently has capacity to accommodate "
        f"your request. Alternatively, {more}"
        if there
        else f"Alternatively, {more}"
    )
    told: Mapping[str, str] = {
        "vmType": machine,
        "zone": zone,
        "zonesAvailable": ",".join(there),
        **({"attachment": attached} if attached else {}),
    }
    pages = {
        "description": "Troubleshooting documentation",
        "url": "https://cloud.google.com/compute/docs/resource-error",
    }
    return ComputeRefusal(
        503,
        "backendError",
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request.  "
        "'(resource type:compute)'.",
        code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        error_details=(
            {"help": {"links": [pages]}},
            {
                "localizedMessage": {
                    "locale": "en-US",
                    "message": f"{what} is currently unavailable in the {zone} zone. {hint} For more information, see "
                    "the troubleshooting documentation.",
                }
            },
            {"errorInfo": {"reason": reason, "domain": SERVICE, "metadatas": dict(told)}},
        ),
    )


def quota(metric: str, limit: float, region: str, dimensions: Mapping[str, str], name: str) -> ComputeRefusal:
    """A quota of a region, of a zone, or with "" of all regions, is used up."""
    where = f"in {'zone' if region.count('-') > 1 else 'region'} {region}" if region else "globally"
    info = {
        "metricName": f"{SERVICE}/{metric.lower()}",
        "limitName": name,
        "limit": limit,
        "dimensions": dict(dimensions),
    }
    return ComputeRefusal(
        403,
        "quotaExceeded",
        f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}.",
        domain="usageLimits",
        code="QUOTA_EXCEEDED",
        error_details=({"quotaInfo": info},),
    )


def reservation(message: str) -> ComputeRefusal:
    """A reservation gives no machine; the words are those by which Kubernetes' autoscaler knows it."""
    return ComputeRefusal(400, "invalid", message, code="CONDITION_NOT_MET")


def in_use(resource: str, user: str) -> ComputeRefusal:
    message = f"The {resource.split('/')[-2].removesuffix('s')} resource '{resource}' is already being used by '{user}'"
    return ComputeRefusal(400, "resourceInUseByAnotherResource", message, code="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")


def not_ready(resource: str) -> ComputeRefusal:
    message = f"The resource '{resource}' is not ready"
    return ComputeRefusal(400, "resourceNotReady", message, code="RESOURCE_NOT_READY")
