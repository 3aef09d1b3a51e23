"""The meaning of Compute Engine's errors, as a table: pure, from what a call or an operation answered.

A refusal comes in two forms. A call is refused with a status of HTTP and a reason in one word; or it is accepted, and
the operation that it began fails later with codes and details, which is how most stockouts and quotas are told. Both
become `Problem`s. As in `api_errors`, a sentence contains the API's message and its word, so that a later reader of it,
as the reason of a past attempt, finds the same row again (`recall`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import (
    ADOPT,
    AGAIN,
    BY_CODE,
    CODES,
    COMMON,
    DENIED,
    DROP,
    ELSEWHERE,
    EVERYWHERE,
    EXHAUSTED,
    EXISTS,
    FATAL,
    FRESH,
    HERE,
    INVALID,
    LATER,
    NOT_FOUND,
    PRECONDITION,
    UNAVAILABLE,
    UNKNOWN,
    CallContext,
    Row,
    Status,
    Trouble,
)
from kinetic_orchestration.protocol import wire

QUOTAS = "console.cloud.google.com/iam-admin/quotas"
_CODES_OF_HTTP = {
    0: UNAVAILABLE, 400: INVALID, 401: api_errors.UNAUTHENTICATED, 403: DENIED, 404: NOT_FOUND, 409: EXISTS,
    412: PRECONDITION, 429: EXHAUSTED, 500: api_errors.INTERNAL, 502: UNAVAILABLE, 503: UNAVAILABLE, 504: UNAVAILABLE,
}  # fmt: skip


class Problem(NamedTuple):
    """One error.

    Attributes:
        word: The API's own word for it: the code of an operation's error, or the reason of a refused call.
        message: Its message for people.
        code: As google.rpc.Code has it.
        details: As JSON, each with its `reason`, if it has one.
        quota: What was used up, if a quota was: the API's `quotaInfo`.
        zones: Zones that have capacity, as the API says.
    """

    word: str
    message: str
    code: int = UNKNOWN
    details: tuple[Mapping[str, Any], ...] = ()
    quota: Mapping[str, Any] = {}
    zones: tuple[str, ...] = ()


_OF_QUOTA = ({"reason": "quotaExceeded"},)  # of what tells a quota, whatever its word


def of_call(http: int, error: Mapping[str, Any]) -> list[Problem]:
    """Return the problem of a call that was refused, from the `error` of its answer."""
    details = tuple(detail for detail in error.get("details", ()) if isinstance(detail, Mapping))
    listed = [entry for entry in error.get("errors", ()) if isinstance(entry, Mapping)]
    named = [str(detail["reason"]) for detail in details if detail.get("reason")]
    words = [*named, *(str(entry.get("reason", "")) for entry in listed), str(error.get("status", ""))]
    code = _CODES_OF_HTTP.get(http) or CODES.get(str(error.get("status", "")), UNKNOWN)
    word = next(filter(None, words), "") or api_errors.name_of(code)
    known = tuple({"reason": str(entry["reason"])} for entry in listed if entry.get("reason"))
    if http == 429:  # of whatever rate
        known = (*known, {"reason": "rateLimitExceeded"})
    message = str(error.get("message") or f"HTTP {http}")
    told = (detail.get("quotaInfo") or detail for detail in details)
    quota = next((detail for detail in told if detail.get("metricName")), {})
    return [Problem(word, message, code, (*details, *known, *_OF_QUOTA[: bool(quota)]), quota)]


def of_operation(operation: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of an operation that has ended, or none."""
    http = int(operation.get("httpErrorStatusCode") or 0)
    # An operation that fails with 503 lacked capacity: nothing was unavailable, as it was carried out.
    code = EXHAUSTED if http == 503 else _CODES_OF_HTTP.get(http, UNKNOWN) if http else UNKNOWN
    return of_error(operation.get("error"), code)


def of_error(error: Mapping[str, Any] | None, code: int = UNKNOWN) -> list[Problem]:
    """Return the problems in the `error` of an operation, or of a group that has not got its instances."""
    return [_of_entry(entry, code) for entry in (error or {}).get("errors", ())]


def _of_entry(entry: Mapping[str, Any], code: int) -> Problem:
    word, message = str(entry.get("code") or ""), str(entry.get("message") or "")
    details: list[Mapping[str, Any]] = []
    quota: Mapping[str, Any] = {}
    zones: tuple[str, ...] = ()
    for detail in entry.get("errorDetails", ()):
        quota = detail.get("quotaInfo") or quota
        if info := detail.get("errorInfo"):
            metadata = info.get("metadatas") or info.get("metadata") or {}
            details.append({"reason": str(info.get("reason", "")), "metadata": metadata})
            zones = tuple(_ZONE.findall(str(metadata.get("zonesAvailable", "")))) or zones
        if text := (detail.get("localizedMessage") or {}).get("message"):
            message = f"{message} {text}" if text not in message else message
    details += _OF_QUOTA[: bool(quota)]
    return Problem(word or api_errors.name_of(code), message, code, tuple(details), quota, zones or _zones_in(message))


_REGION = r"[a-z]+-[a-z]+\d+"
_ZONE = re.compile(rf"{_REGION}-[a-z0-9]+\b")  # us-central1-a, and us-central1-ai1a of those for AI
_HINTED = re.compile(
    rf"(?:Consider trying (?:your request )?in the|[Zz]ones that have some:)((?:[ ,]*{_ZONE.pattern})+)"
)
# Google's words, and those of the advice below.
_WHERE = rf"(?P<where>{_REGION}(?:-[a-z0-9]+)?)"
_LIMITS = (
    re.compile(rf"is limited to (?P<limit>[\d.]*\d) in (?:{_WHERE}|all regions)"),
    re.compile(rf"[Ll]imit: (?P<limit>[\d.]*\d)(?: in (?:region|zone) {_WHERE}| globally)?"),
)
_SUBNETWORK = re.compile(rf"regions/(?P<region>{_REGION})/subnetworks/")


def _zones_in(message: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(zone for match in _HINTED.finditer(message) for zone in _ZONE.findall(match[1])))


RATE = f"{api_errors.RATE} until the next full minute"
IMAGE = (
    "name an image that is there with cloud=Compute(image='family/NAME' or its path): gcloud compute images list "
    "--project PROJECT --show-deprecated shows them"
)
NETWORK = (
    "name one of the zone's region with cloud=Compute(subnetwork=…), or KINETIC_SUBNETWORK: gcloud compute networks "
    "subnets list"
)
NO_NETWORK = (
    "name one that is there with cloud=Compute(network=…), or KINETIC_NETWORK: gcloud compute networks list shows "
    "them, and gcloud compute networks create default makes the usual one"
)
NOT_ALLOWED = (
    "Google has not opened these machines to the project: ask your contact there for access to them, or take another "
    "accelerator. GKE, with backend='gke', and for TPUs before TPU7x Cloud TPU, with backend='tpu-vm', may have it"
)
NO_ZONE = re.compile(r"Unknown zone|projects/[^/\s']+/zones/[^/\s']+' was not found")
ZONE = "there is no such zone, or not for this project: gcloud compute zones list shows those that are there"
DISKS = "the zone has no disks of the type that is asked for; cloud=Compute(disk_type=…) names another"
NOT_ITS_DISK = "the machine takes no disk of this type: name another with cloud=Compute(disk_type=…)"
NAMED = "name one that is there, or leave it out"
RESERVATION = "no reservation of that name is there: gcloud compute reservations list shows them with their zones"
NOT_READY = "the reservation is not ready yet: it is asked again"
NOT_SUCH = (
    "the reservation has none of these machines free. If it is of others, name another accelerator; if it was booked "
    "for a time, say cloud=Compute(reservation_bound=True), and leave that out if it was not"
)
OTHER_MACHINES = (
    "the reservation is of other machines, or for something else: gcloud compute reservations describe shows of which; "
    "name another accelerator, or another reservation"
)
ADDRESSES = (
    "the subnetwork has no address left in this region: make its range larger (gcloud compute networks subnets "
    "expand-ip-range), name another subnetwork, or zones of another region"
)
PROFILE = "the network belongs to another zone's fabric"
DISK = "name a larger disk with cloud=Compute(disk_gib=…), or leave it out"
TAKEN = "it was preempted while it was created"


def where_offered(kind: str, name: str) -> str:
    """Return the command that lists the zones with a type of machines or accelerators; `kind` is its collection."""
    listed = "accelerator-types" if kind == "acceleratorTypes" else "machine-types"
    return f"gcloud compute {listed} list --filter=name={name or 'NAME'}"


def _advise_offer(found: Mapping[str, str], context: CallContext) -> str:
    kind, _, name = found.get("offer", "").partition("/")
    what = "GPUs" if kind == "acceleratorTypes" else "machine"
    return f"the zone has no such {what}: {where_offered(kind, name)} shows where there are some"


_STOCKOUTS = tuple(
    f"{what}{tail}"
    for what in ("ZONE_RESOURCE_POOL_EXHAUSTED", "REGION_RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED")
    for tail in ("", "_WITH_DETAILS")
)

# The first matching row applies. Sources: Compute Engine's pages "Troubleshooting resource availability errors" and
# "Rate quotas", and the tables of SkyPilot and dstack, which were read in November 2026.
ROWS: tuple[Row, ...] = (
    Row((), r"[Rr]ate [Ll]imit [Ee]xceeded|requests per minute",
        ("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_OPERATION_RATE_EXCEEDED"),
        wire.QUOTA, LATER, RATE),
    Row((), "", ("SERVICE_ACCOUNT_ACCESS_DENIED", "serviceAccountAccessDenied"),
        wire.CONFIGURATION, FATAL, api_errors.advise_act_as),
    *COMMON,
    # How much there is.
    Row((), r"[Qq]uota '\S+' exceeded", ("QUOTA_EXCEEDED", "quotaExceeded"), wire.QUOTA, ELSEWHERE),
    # Of reservations: Kubernetes' autoscaler knows them by these words, behind CONDITION_NOT_MET or a status of 400.
    Row((), r"Specified reservations? .*do(es)? not exist|Could not find the given reservation", (),
        wire.CONFIGURATION, FATAL, RESERVATION),
    Row((), r"requires reservation to be in READY state", (), wire.STOCKOUT, ELSEWHERE, NOT_READY),
    Row((), r"No available resources in specified reservations", (), wire.STOCKOUT, ELSEWHERE, NOT_SUCH),
    Row((), r"Reservation .*is incorrect for the requested resources|for aggregate reservations|AggregateReservation"
        r"|must use ReservationAffinity of|The reservation must exist in the same project", (),
        wire.CONFIGURATION, FATAL, OTHER_MACHINES),
    Row((), r"[Rr]eservation\S* .*(not have|insufficient|not enough|no) .*(capacity|resources|available)",
        ("RESERVATION_CAPACITY_EXCEEDED",), wire.STOCKOUT, ELSEWHERE, api_errors.RESERVED),
    Row((), r"not have enough resources available|no more capacity|is currently unavailable in the \S+ zone"
        r"|not currently have sufficient capacity",
        (*_STOCKOUTS, "GPU_STOCKOUT", "STOCKOUT", "stockout", "insufficientCapacity", "resource_availability"),
        wire.STOCKOUT, ELSEWHERE),
    Row((), "", ("UNSUPPORTED_OPERATION",), wire.STOCKOUT, ELSEWHERE, TAKEN),
    Row((), r"IP space of \S+ is exhausted", ("IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"),
        wire.QUOTA, DROP, ADDRESSES),
    Row((), r"Network profile only allows", (), wire.QUOTA, DROP, PROFILE),
    Row((), r"[Mm]achine type with name '\S+' does not exist in zone|(machineTypes|acceleratorTypes)/\S+ was not found",
        (), wire.QUOTA, DROP, _advise_offer),
    Row((), r"diskTypes/\S+ was not found", (), wire.QUOTA, DROP, DISKS),
    Row((), NO_ZONE.pattern, (), wire.QUOTA, DROP, ZONE),
    # What was asked for.
    Row((), r"not allowed to use the machine type", (), wire.CONFIGURATION, FATAL, NOT_ALLOWED),
    Row((), r"/images/\S+ was not found", (), wire.CONFIGURATION, FATAL, IMAGE),
    Row((), r"/reservations/\S+ was not found", (), wire.CONFIGURATION, FATAL, RESERVATION),
    Row((), r"global/networks/\S+ was not found", (), wire.CONFIGURATION, FATAL, NO_NETWORK),
    Row((), r"networks/\S+ was not found|Subnetwork is in region|must specify a subnet", (),
        wire.CONFIGURATION, FATAL, NETWORK),
    Row((), r"cannot be smaller than the image size", (), wire.CONFIGURATION, FATAL, DISK),
    Row((), r"\[(pd|hyperdisk)-[a-z-]+\] features are not compatible|disk type cannot be used", (),
        wire.CONFIGURATION, FATAL, NOT_ITS_DISK),
    Row((), "", ("PERMISSIONS_ERROR",), wire.CONFIGURATION, FATAL, api_errors.advise_permission),
    Row((), "", ("INVALID_FIELD_VALUE", "INVALID_USAGE", "CONDITION_NOT_MET", "invalid", "badRequest"),
        wire.CONFIGURATION, FATAL),
    # Anything else that a request names. What it creates may be there, though it is not found yet.
    Row((), r"[Rr]esource '(?!\S*/(?:instances|disks|operations)/)\S+' (?:of type '\w+' )?was not found", (),
        wire.CONFIGURATION, FATAL, NAMED),
    # What is going on.
    Row((), "", ("RESOURCE_ALREADY_EXISTS", "alreadyExists"), wire.CONFIGURATION, ADOPT),
    Row((), r"is already being used by",
        ("RESOURCE_NOT_READY", "resourceNotReady", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
         "resourceInUseByAnotherResource"), wire.INTERNAL, AGAIN),
    Row((), "", ("RESOURCE_NOT_FOUND", "notFound"), wire.INTERNAL, AGAIN, "it is unknown what became of it"),
    Row((), "", ("INTERNAL_ERROR",), wire.INTERNAL, HERE),
    Row((), "", ("VM_MIN_COUNT_NOT_REACHED",), wire.STOCKOUT, ELSEWHERE),
    Row((EXHAUSTED,), "", (), wire.STOCKOUT, ELSEWHERE),
    *BY_CODE,
)  # fmt: skip

_NEUTRAL = "VM_MIN_COUNT_NOT_REACHED"  # that not all were made; the other errors say why
_RANK = (wire.INTERNAL, wire.STOCKOUT, wire.QUOTA, wire.CONFIGURATION)
_WORDS = frozenset(CODES) | {word for row in ROWS for word in row.reasons}
_SAID = re.compile(r"\((\w+(?:, \w+)?)\)")


def classify(problems: Sequence[Problem], context: CallContext) -> Trouble:
    """Map the errors of one VM to their meaning and advice: of several, that of the gravest."""
    telling = [problem for problem in problems if problem.word != _NEUTRAL] or list(problems)
    found = [_classify(problem, context) for problem in telling]
    return max(found, key=lambda trouble: _RANK.index(trouble.cause) if trouble.cause in _RANK else -1)


def _classify(problem: Problem, context: CallContext) -> Trouble:
    status = _status(problem)
    row = api_errors.row_of(status, ROWS)
    if row is None:
        return Trouble(wire.INFRASTRUCTURE, FRESH, api_errors.sentence(problem.message, _words(problem), ""))
    cause, action, advice, scope = row.cause, row.action, api_errors.advice_of(row, status, context), ""
    if cause == wire.QUOTA and action == ELSEWHERE:
        advice = _of_quota(problem.quota)
        action, scope = _within(f"{problem.message} {advice}", context)
    elif cause == wire.STOCKOUT:
        if context.reserved and not row.advice:
            advice = api_errors.RESERVED  # VMs that are being deleted still occupy it, so it is asked for again
        elif problem.zones:
            there = f"zones that have some: {', '.join(problem.zones)}"
            advice = f"{advice}; {there}" if advice else there
    elif action == DROP:
        of_region = _SUBNETWORK.search(problem.message) if row.advice == ADDRESSES else None
        scope = of_region["region"] if of_region is not None else context.zone
    return Trouble(cause, action, api_errors.sentence(problem.message, _words(problem), advice), scope)


def _words(problem: Problem) -> str:
    """The API's word for an error, and if no row has that, the one by which its row is found again."""
    if problem.word in _WORDS:
        return problem.word
    reasons = (str(detail.get("reason", "")) for detail in problem.details)
    known = next((reason for reason in reasons if reason in _WORDS), api_errors.name_of(problem.code))
    return ", ".join(dict.fromkeys(filter(None, (problem.word, known))))


def _status(problem: Problem) -> Status:
    return Status(problem.code, problem.message, ({"reason": problem.word}, *problem.details))


def _of_quota(quota: Mapping[str, Any]) -> str:
    """The advice about a quota, with the one that really was short: the message may name another."""
    if not quota.get("metricName"):
        return f"ask for more at {QUOTAS}, or use another region"
    of = dict(quota.get("dimensions") or {})
    region, zone = of.pop("region", ""), of.pop("zone", "")
    where = zone or region or "all regions"
    kind = ", ".join(str(value) for name, value in sorted(of.items()) if name != "global" and value)
    metric = str(quota["metricName"]).rpartition("/")[2].upper()
    told = f"{metric}{f' of {kind}' if kind else ''} ({quota.get('limitName') or 'its limit'})"
    if quota.get("limit") is None:  # 0 or inherited: nobody can tell
        return f"{told} is used up in {where}: ask for more at {QUOTAS}"
    limit = float(quota["limit"])
    return f"{told} is limited to {limit:g} in {where}: ask for {'some' if not limit else 'more'} at {QUOTAS}"


def _within(text: str, context: CallContext) -> tuple[str, str]:
    """Return the action for a quota, and its scope: one that is 0 is never asked for again."""
    match = next(filter(None, (pattern.search(text) for pattern in _LIMITS)), None)
    if match is None or float(match["limit"]) > 0:
        return ELSEWHERE, ""
    if match["where"]:
        return DROP, match["where"]
    return DROP, EVERYWHERE if match[0].endswith((" in all regions", " globally")) else context.zone


def recall(reason: str) -> Trouble | None:
    """The trouble from a sentence of this module, as stored as a past attempt's reason."""
    said = (word for words in _SAID.findall(reason) for word in words.split(", "))
    word = next((word for word in said if word in _WORDS), "")
    return _classify(Problem(word, reason, CODES.get(word, UNKNOWN)), CallContext()) if word else None


def hinted(zones: Sequence[str], reason: str, zone: str) -> list[str]:
    """Return the zones in the order in which they are tried after `zone`: first those that the API said have some."""
    there = [other for other in _zones_in(reason) if other in zones and other != zone]
    if not there or zone not in zones:
        return list(zones)
    at = zones.index(zone)
    return list(dict.fromkeys([zone, *there, *zones[at + 1 :], *zones[:at]]))
