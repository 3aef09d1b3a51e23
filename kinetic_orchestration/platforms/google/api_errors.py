"""The meaning of Google Cloud API errors, as a table: pure, from an error's code, message and details.

Rows that any API may answer are `COMMON` and `BY_CODE`; the others are the Cloud TPU API's, and come from reports of
its users. An error without a row is reported in the API's own words, and judged by its code alone. The sentence of a
row contains the API's message, so that a later reader of it, as the reason of a past attempt, finds the same row again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.plan.hardware.machines import IMAGES
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.values import Past
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.protocol import wire

# What to do about it.
ELSEWHERE = "the next zone"
DROP = "never there again"  # in the zone or the region that the message names
HERE = "the same zone, twice more"
LATER = "the same call, later"  # the rate of calls is limited
AGAIN = "the same call"  # it is unknown whether the call was carried out
ADOPT = "it is there"
FRESH = "new hosts"
FATAL = "nothing but a change by a person helps"
EVERYWHERE = "all"  # a scope

# As google.rpc.Code has them.
CANCELLED, UNKNOWN, INVALID, DEADLINE, NOT_FOUND, EXISTS, DENIED, EXHAUSTED, PRECONDITION, ABORTED = range(1, 11)
RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = range(11, 17)

_NAMES = (
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
CODES = {name: number for number, name in enumerate(_NAMES, 1)}


class Status(NamedTuple):
    """An error in the API's form: google.rpc.Status, its details as JSON."""

    code: int
    message: str = ""
    details: tuple[Mapping[str, Any], ...] = ()


class Trouble(NamedTuple):
    cause: str  # one of the wire's
    action: str
    sentence: str
    scope: str = ""  # the zone or the region that the message names


class CallContext(NamedTuple):
    """The subject of a call, as far as the advice depends on it."""

    project: str = ""
    zone: str = ""
    account: str = ""  # the account of the hosts
    reserved: bool = False
    service: str = "tpu"  # the API that was called


NO_CONTEXT = CallContext()


class Row(NamedTuple):
    codes: tuple[int, ...]  # empty: any
    says: str  # a pattern in the message; empty: any
    reasons: tuple[str, ...]  # or one of these in the details: ErrorInfo's reason, a violation's type
    cause: str
    action: str
    advice: str | Callable[[Mapping[str, str], CallContext], str] = ""


def _advise_enable(found: Mapping[str, str], context: CallContext) -> str:
    service = found.get("service") or f"{context.service}.googleapis.com"
    project = context.project or found.get("consumer") or "PROJECT"
    said = f"enable it: gcloud services enable {service} --project {project}"
    if (consumer := found.get("consumer", project)) != project:  # its number, or that of another one
        said += f" (if {consumer} is another project: calls are counted against it, see KINETIC_QUOTA_PROJECT)"
    return said


def advise_permission(found: Mapping[str, str], context: CallContext) -> str:
    permission = found.get("permission", "")
    role = role_of(permission, context.service)
    missing = f"the permission {permission} is missing" if permission else "a permission is missing"
    return f"{missing}: {grant(role, found.get('owner', context.project))}"


def advise_act_as(found: Mapping[str, str], context: CallContext) -> str:
    account = found.get("account") or context.account or "SERVICE_ACCOUNT"
    return (
        f"the permission iam.serviceAccounts.actAs on {account} is missing: gcloud iam service-accounts "
        f"add-iam-policy-binding {account} --member=user:YOU --role=roles/iam.serviceAccountUser"
    )


def _advise_constraint(found: Mapping[str, str], context: CallContext) -> str:
    constraint = f"constraints/{found['constraint']}" if found.get("constraint") else "a constraint"
    known = {**CONSTRAINTS, **_OF_COMPUTE} if context.service == "compute" else CONSTRAINTS
    fix = known.get(found.get("constraint", ""), "ask whoever administers the organisation for an exception")
    images = found.get("images") or f"the image's project ({IMAGES}, unless image= names another)"
    fix = fix.format(options=OPTIONS.get(context.service, ""), service=context.service, images=images)
    return f"the organisation's policy {constraint} forbids it: {fix}"


def _advise_perimeter(found: Mapping[str, str], context: CallContext) -> str:
    number = f" (number {found['perimeter']})" if found.get("perimeter") else ""
    return (
        f"a VPC Service Controls perimeter{number} forbids it: call from inside the perimeter, or ask its "
        "administrator for an ingress rule for this identity; the number leads them to the entry in the audit log"
    )


def _advise_quota_project(found: Mapping[str, str], context: CallContext) -> str:
    project = found.get("consumer") or "the quota project"
    return (
        f"calls may not be counted against {project}: name another with KINETIC_QUOTA_PROJECT, or "
        f"{grant('roles/serviceusage.serviceUsageConsumer', found.get('consumer', ''))}"
    )


def role_of(permission: str, service: str = "tpu") -> str:
    """Return the least role that has a permission, or with "" what is needed of the API that was called."""
    part, _, rest = permission.partition(".")
    what = rest.partition(".")[0]
    if part == "compute" and what == "images":
        return IMAGE_USER
    if part == "compute" and service == "compute" and what not in ("networks", "subnetworks"):
        return INSTANCE_ADMIN
    if part in ROLES:
        return ROLES[part]
    return INSTANCE_ADMIN if service == "compute" else ROLES.get(service, "roles/tpu.admin")


def grant(role: str, project: str) -> str:
    return (
        f"gcloud projects add-iam-policy-binding {project or 'PROJECT'} --member=user:YOU --role={role} "
        "(serviceAccount:NAME for a service account)"
    )


INSTANCE_ADMIN = "roles/compute.instanceAdmin.v1"
IMAGE_USER = "roles/compute.imageUser"
OPTIONS = {"tpu": "TpuVm", "compute": "Compute"}  # the class of `cloud=`, by the API

# The part of a permission before its first dot → the least role that has all we need of it.
ROLES = {
    "tpu": "roles/tpu.admin",
    "iam": "roles/iam.serviceAccountUser",
    "storage": "roles/storage.objectUser",
    "secretmanager": "roles/secretmanager.admin",
    "serviceusage": "roles/serviceusage.serviceUsageConsumer",
    "compute": "roles/compute.networkUser",
}

CONSTRAINTS = {
    "compute.vmExternalIpAccess": "use cloud={options}(external_ips=False) on a subnetwork with Private Google Access",
    "compute.requireShieldedVm": "use cloud={options}(secure_boot=True)",
    "compute.restrictSharedVpcSubnetworks": "name an allowed one with cloud={options}(subnetwork=…)",
    "compute.restrictSharedVpcHostProjects": "name a subnetwork of an allowed host project",
    "gcp.resourceLocations": "name zones of allowed locations with cloud={options}(zones=[…])",
    "gcp.restrictServiceUsage": "have {service}.googleapis.com added to the allowed services",
    "iam.disableCrossProjectServiceAccountUsage": "use a service account of the same project",
    "compute.skipDefaultNetworkCreation": "name a network with cloud={options}(network=…)",
}
_OF_COMPUTE = {
    "compute.trustedImageProjects": "have {images} added to the projects whose images are allowed, or name an image of "
    "one that is, with cloud={options}(image=…)",
    "compute.requireShieldedVm": "use cloud={options}(secure_boot=True, image=…) with an image of your own whose "
    "drivers are signed: those of GPUs and of TPU7x that come without image= do not boot so",
}

SCOPES = (
    "these credentials have not the scope https://www.googleapis.com/auth/cloud-platform: log in with it (gcloud auth "
    "application-default login), or give the machine that asks this scope"
)
LOGIN = "log in anew: gcloud auth application-default login"
RATE = "the rate of calls is limited"
RESERVED = "the reservation has not enough free: wait for its other users, ask for less, or leave the reservation out"

# The first matching row applies. Rows about permissions come first: 403 and 400 have many reasons.
COMMON: tuple[Row, ...] = (
    Row((), r"insufficient authentication scopes", ("ACCESS_TOKEN_SCOPE_INSUFFICIENT",),
        wire.CONFIGURATION, FATAL, SCOPES),
    Row((), r"vpcServiceControlsUniqueIdentifier", ("SECURITY_POLICY_VIOLATED", "VPC_SERVICE_CONTROLS"),
        wire.CONFIGURATION, FATAL, _advise_perimeter),
    Row((), r"\bconstraints/[a-z]+\.\w+", ("ORG_POLICY_VIOLATION", "CUSTOM_ORG_POLICY_VIOLATION"),
        wire.CONFIGURATION, FATAL, _advise_constraint),
    Row((), r"to use project \S+?\. Grant the caller|serviceusage\.services\.use", ("USER_PROJECT_DENIED",),
        wire.CONFIGURATION, FATAL, _advise_quota_project),
    Row((), r"has not been used in project .* before or it is disabled", ("SERVICE_DISABLED",),
        wire.CONFIGURATION, FATAL, _advise_enable),
    Row((), r"billing (account|to be enabled|.*disabled)", ("BILLING_DISABLED",),
        wire.CONFIGURATION, FATAL, "link the project to a billing account that is open"),
    Row((UNAVAILABLE,), r"from plugin failed.*(invalid_grant|invalid_client|unauthorized_client|[Rr]eauthenti)", (),
        wire.CONFIGURATION, FATAL, LOGIN),  # gRPC's error for expired credentials
    Row((UNAUTHENTICATED,), "", (), wire.CONFIGURATION, FATAL, LOGIN),
    Row((DENIED, INVALID), r"access to (the )?service account|iam\.serviceAccounts\.actAs", (),
        wire.CONFIGURATION, FATAL, advise_act_as),
    Row((DENIED,), "", ("IAM_PERMISSION_DENIED",), wire.CONFIGURATION, FATAL, advise_permission),
)  # fmt: skip
# Without any other sign.
BY_CODE: tuple[Row, ...] = (
    Row((EXISTS,), "", (), wire.CONFIGURATION, ADOPT),
    Row((INTERNAL,), "", (), wire.INTERNAL, HERE),
    Row((UNAVAILABLE, DEADLINE, UNKNOWN, ABORTED, CANCELLED, DATA_LOSS), "", (), wire.INTERNAL, AGAIN),
    # What was asked for.
    Row((DENIED,), "", (), wire.CONFIGURATION, FATAL, advise_permission),
    Row((INVALID, NOT_FOUND, PRECONDITION, RANGE, UNIMPLEMENTED), "", (), wire.CONFIGURATION, FATAL),
)  # fmt: skip
# Of the Cloud TPU API.
ROWS: tuple[Row, ...] = (
    *COMMON[:-2],
    Row((DENIED, NOT_FOUND, INVALID), r"Location \S+ is not found or access is unauthorized", (),
        wire.QUOTA, DROP),
    *COMMON[-2:],
    # How much there is.
    Row((), r"\b[Ll]imit:? 0(\.0)?\b", (), wire.QUOTA, DROP,
        "there is none at all: ask for quota at console.cloud.google.com/iam-admin/quotas"),
    Row((EXHAUSTED,), rf"requests per (minute|second|day)|{RATE}", (), wire.QUOTA, LATER, RATE),
    Row((), r"[Ii]nsufficient reserved capacity", (), wire.STOCKOUT, ELSEWHERE),
    Row((), r"no more capacity in the zone|[Ii]nsufficient capacity|STOCKOUT|ZONE_RESOURCE_POOL_EXHAUSTED", (),
        wire.STOCKOUT, ELSEWHERE),
    Row((EXHAUSTED, DENIED), r"[Qq]uota", ("QUOTA_EXCEEDED", "QuotaFailure"), wire.QUOTA, ELSEWHERE),
    Row((EXHAUSTED,), "", ("RATE_LIMIT_EXCEEDED",), wire.QUOTA, LATER, RATE),
    Row((EXHAUSTED,), "", (), wire.STOCKOUT, ELSEWHERE),
    Row((INVALID, NOT_FOUND), r"accelerator\S* .*(was not found|not (available|supported|offered)) in", (),
        wire.QUOTA, DROP),
    # What happened to the hosts.
    Row((), r"not supported while in state PREEMPTED|was preempted", (), wire.PREEMPTION, FRESH),
    *BY_CODE,
)  # fmt: skip

_RESERVED = re.compile(r"[Ii]nsufficient reserved capacity")
_FACTS = {  # facts for the advice that only the message has
    "permission": re.compile(r"(?:[Pp]ermission '?|[Rr]equired ')([a-z]+\.[A-Za-z.]+\w)'?"),
    "constraint": re.compile(r"constraints/([a-z]+\.\w+)"),
    "perimeter": re.compile(r"vpcServiceControlsUniqueIdentifier:? ?([\w-]+)"),
    "account": re.compile(r"service account '?([\w.@-]+\w)'?"),
    "offer": re.compile(r"\b((?:machineTypes|acceleratorTypes)/[\w-]+)"),  # of a zone
    "consumer": re.compile(r"to use project ([\w:.-]*\w)"),
    "images": re.compile(r"images from project ([\w:.-]*\w)"),
    # Whose a permission is asked for on: of an image or a subnetwork it may be another project. Numbers say less.
    "owner": re.compile(r"[Pp]ermission\b.*\bprojects/([a-z][\w:.-]*\w)"),
}
_SCOPES = (
    re.compile(r"[Ll]imit:? 0(?:\.0)?\b.*?\bin (?:region|zone|region/zone)? ?\"?([a-z]+-[a-z]+\d+(?:-[a-z0-9]+)?)\"?"),
    re.compile(r"Location ([a-z]+-[a-z]+\d+(?:-[a-z0-9]+)?) is not found"),
    re.compile(r"in (?:the )?(?:zone|location|region) \"?([a-z]+-[a-z]+\d+(?:-[a-z0-9]+)?)\"?"),
)


def classify(status: Status, context: CallContext = NO_CONTEXT) -> Trouble:
    """Map an API error to its meaning and advice."""
    row = row_of(status)
    if row is None:
        return Trouble(wire.INFRASTRUCTURE, FRESH, _sentence(status, ""))
    cause, action, advice = row.cause, row.action, advice_of(row, status, context)
    if context.reserved and _RESERVED.search(status.message):
        cause, action, advice = wire.CONFIGURATION, FATAL, RESERVED
    scope = _scope(status.message) or context.zone if action == DROP else ""
    return Trouble(cause, action, _sentence(status, advice), scope)


def advice_of(row: Row, status: Status, context: CallContext) -> str:
    """Return what a row advises about this error."""
    _, facts = _details(status.details)
    for name, pattern in _FACTS.items():
        if name not in facts and (match := pattern.search(status.message)):
            facts[name] = match[1]
    return row.advice if isinstance(row.advice, str) else row.advice(facts, context)


def recall(reason: str) -> Trouble | None:
    """The trouble from a sentence of this module, as stored as a past attempt's reason."""
    match = re.search(rf"\(({'|'.join(CODES)})\)", reason)
    return classify(Status(CODES[match[1]], reason)) if match is not None else None


def refusal_of(zones: Sequence[str], previous: Past, read: Callable[[str], Trouble | None] = recall) -> Refusal:
    """Return what an API's answer to the previous attempt means for its zone, for a whole region, or for all zones.

    Args:
        zones: All zones that may be tried.
        previous: The attempt before.
        read: Finds the trouble in a stored reason.
    """
    trouble = read(previous.reason)
    if trouble is None or trouble.action not in (LATER, DROP):
        return Refusal()
    if trouble.action == LATER:
        return Refusal(later=True)
    zone = str(previous.placement["zone"])
    scope, dropped = trouble.scope or zone, previous.placement.get("dropped", ())
    gone = tuple(other for other in zones if other not in dropped and scope in (EVERYWHERE, other, region_of(other)))
    return Refusal(gone=gone or (zone,))


def code_of(name: str) -> int:
    """The code by its name, as REST has it."""
    return CODES.get(name, UNKNOWN)


def name_of(code: int) -> str:
    """The name of a code; of one that has none, its number."""
    return next((name for name, known in CODES.items() if known == code), str(code))


def row_of(status: Status, rows: Sequence[Row] = ROWS) -> Row | None:
    """Return the first of some rows that applies to an error, or None."""
    reasons, _ = _details(status.details)
    return next((row for row in rows if _applies(row, status, reasons)), None)


def _applies(row: Row, status: Status, reasons: Iterable[str]) -> bool:
    if row.codes and status.code not in row.codes:
        return False
    if not row.says and not row.reasons:
        return True
    return bool(row.says and re.search(row.says, status.message)) or any(reason in row.reasons for reason in reasons)


def _details(details: Iterable[Mapping[str, Any]]) -> tuple[set[str], dict[str, str]]:
    """Every reason that the details give, and the facts in them that advice needs."""
    reasons: set[str] = set()
    facts: dict[str, str] = {}
    for detail in details:
        kind = str(detail.get("@type", "")).rsplit(".", 1)[-1]
        reasons.add(kind)
        if detail.get("reason"):
            reasons.add(str(detail["reason"]))
        for violation in detail.get("violations", ()):
            if violation.get("type"):
                reasons.add(str(violation["type"]))
            if violation.get("type") == "VPC_SERVICE_CONTROLS":
                facts["perimeter"] = str(violation.get("description", ""))
            if match := _FACTS["constraint"].search(str(violation)):
                facts["constraint"] = match[1]
        metadata = detail.get("metadata") or {}
        for name, key in (("permission", "permission"), ("service", "service"), ("uid", "perimeter")):
            if metadata.get(name):
                facts[key] = str(metadata[name])
        if metadata.get("consumer"):
            facts["consumer"] = str(metadata["consumer"]).removeprefix("projects/")
    return reasons, facts


def _scope(message: str) -> str:
    return next((match[1] for pattern in _SCOPES if (match := pattern.search(message))), "")


def _sentence(status: Status, advice: str) -> str:
    """The API's own words and the advice, on one line."""
    return sentence(status.message, name_of(status.code), advice)


def sentence(message: str, word: str, advice: str) -> str:
    """Join an API's message, its word for it and the advice, on one line."""
    said = " ".join(message.split()) or "no message"
    return f"{said.rstrip('.')} ({word}){f': {advice}' if advice else ''}"
