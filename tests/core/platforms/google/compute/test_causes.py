"""Each row of the table, in the forms in which Compute Engine answers, and read again from a past attempt's reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.plan.values import Past
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import (
    ADOPT,
    AGAIN,
    DROP,
    ELSEWHERE,
    EVERYWHERE,
    FATAL,
    HERE,
    LATER,
    CallContext,
)
from kinetic_orchestration.platforms.google.compute import causes
from kinetic_orchestration.platforms.google.compute.causes import Problem
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

Json = dict[str, Any]
ZONE = "us-central1-a"
ASKED = CallContext("ours", ZONE, "trainer@ours.iam.gserviceaccount.com", service="compute")
RESOURCES = (
    "The zone 'projects/ours/zones/us-central1-a' does not have enough resources available to fulfill the request.  "
    "'(resource type:compute)'."
)
THERE = (
    "A g2-standard-4 VM instance is currently unavailable in the us-central1-a zone. Consider trying your request in the "
    "us-central1-b, us-east4-c zone(s), which currently has capacity to accommodate your request."
)


def call(http: int, reason: str, message: str, *details: Json) -> list[Problem]:
    """The problem of a call that was refused, from its answer's error."""
    listed = [{"domain": "global", "reason": reason, "message": message}]
    return causes.of_call(http, {"code": http, "message": message, "errors": listed, "details": list(details)})


def operation(*errors: Json, http: int = 400) -> list[Problem]:
    """The problems of an operation that failed, behind an answer of 200."""
    ended = {"status": "DONE", "httpErrorStatusCode": http, "error": {"errors": list(errors)}}
    return causes.of_operation(ended)


def failed(code: str, message: str, *details: Json) -> Json:
    return {"code": code, "message": message, **({"errorDetails": list(details)} if details else {})}


def quota(metric: str, limit: float, name: str = "limit", **dimensions: str) -> Json:
    return {"quotaInfo": {"metricName": metric, "limitName": name, "limit": limit, "dimensions": dimensions}}


def info(reason: str, **metadatas: str) -> Json:
    return {"errorInfo": {"reason": reason, "domain": "compute.googleapis.com", "metadatas": metadatas}}


class Case(NamedTuple):
    problems: list[Problem]
    cause: str
    action: str
    says: tuple[str, ...] = ()
    scope: str = ""


DENIED = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "IAM_PERMISSION_DENIED",
    "metadata": {"permission": "compute.instances.create"},
}
IMAGES = {**DENIED, "metadata": {"permission": "compute.images.useReadOnly"}}
SCOPE = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT"}
DISABLED = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "SERVICE_DISABLED",
    "metadata": {"service": "compute.googleapis.com", "consumer": "projects/ours"},
}
POLICY = "Constraint constraints/compute.vmExternalIpAccess violated for project ours. Add instance to the constraint."

CASES: Mapping[str, Case] = {
    # stockout → next zone
    **{
        f"stockout: {code}": Case(
            operation(failed(code, "no words")), wire.STOCKOUT, ELSEWHERE
        )
        for code in (
            *("ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "GPU_STOCKOUT"),
            *("REGION_RESOURCE_POOL_EXHAUSTED", "REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "insufficientCapacity"),
            *("RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        )
    },
    "stockout in words alone": Case(operation(failed("", RESOURCES)), wire.STOCKOUT, ELSEWHERE),
    "stockout by its reason": Case(operation(failed("SOMETHING", "no", info("stockout"))), wire.STOCKOUT, ELSEWHERE),
    "stockout with zones": Case(
        operation(
            failed(
                "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", RESOURCES,
                info("resource_availability", zonesAvailable="us-central1-b,us-east4-c"),
            ),
            http=503,
        ),
        wire.STOCKOUT, ELSEWHERE, ("does not have enough resources", "zones that have some: us-central1-b, us-east4-c"),
    ),
    "stockout with zones in words": Case(
        operation(failed("STOCKOUT", "no", {"localizedMessage": {"locale": "en-US", "message": THERE}}), http=503),
        wire.STOCKOUT, ELSEWHERE, ("zones that have some: us-central1-b, us-east4-c",),
    ),
    "503 of an operation": Case(operation(failed("", "try again"), http=503), wire.STOCKOUT, ELSEWHERE),
    "preempted while created": Case(
        operation(failed("UNSUPPORTED_OPERATION", "not supported")), wire.STOCKOUT, ELSEWHERE,
        ("it was preempted while it was created",),
    ),
    "neutral alone": Case(operation(failed("VM_MIN_COUNT_NOT_REACHED", "0 of 2")), wire.STOCKOUT, ELSEWHERE),
    "neutral with a stockout": Case(
        operation(failed("VM_MIN_COUNT_NOT_REACHED", "0 of 2"), failed("GPU_STOCKOUT", "none")), wire.STOCKOUT, ELSEWHERE,
        ("none (GPU_STOCKOUT)",),
    ),
    "quota outranks a stockout": Case(
        operation(
            failed("VM_MIN_COUNT_NOT_REACHED", "0 of 2"), failed("GPU_STOCKOUT", "none"),
            failed("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 4.0 in region us-central1."),
        ),
        wire.QUOTA, ELSEWHERE, ("QUOTA_EXCEEDED",),
    ),
    # quota
    "quota above 0": Case(
        operation(failed("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 4.0 in region us-central1.")),
        wire.QUOTA, ELSEWHERE, ("console.cloud.google.com/iam-admin/quotas",),
    ),
    "quota of a call": Case(
        call(403, "quotaExceeded", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."), wire.QUOTA, ELSEWHERE
    ),
    "the quota that really was short, of a call": Case(
        call(403, "quotaExceeded", "Quota 'A2_CPUS' exceeded.", quota("compute.googleapis.com/a2_cpus", 0.0, "A2-CPUS",
             region="us-central1")),
        wire.QUOTA, DROP, ("A2_CPUS (A2-CPUS) is limited to 0 in us-central1: ask for some",), "us-central1",
    ),
    "the quota that really was short, of a call in another form": Case(
        call(403, "quotaExceeded", "The request exceeds your quota.", quota("compute.googleapis.com/a2_cpus", 12.0, "A2-CPUS",
             region="us-central1")["quotaInfo"]),
        wire.QUOTA, ELSEWHERE, ("A2_CPUS (A2-CPUS) is limited to 12 in us-central1: ask for more",),
    ),
    "a call that is forbidden by a quota alone": Case(
        call(403, "forbidden", "The request is too large.", quota("compute.googleapis.com/a2_cpus", 12.0, "A2-CPUS",
             region="us-central1")),
        wire.QUOTA, ELSEWHERE, ("A2_CPUS (A2-CPUS) is limited to 12 in us-central1: ask for more",),
    ),
    "quota of 0": Case(
        call(403, "quotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-central1."),
        wire.QUOTA, DROP, (), "us-central1",
    ),
    "the quota that really was short": Case(
        operation(
            failed(
                "QUOTA_EXCEEDED", "Quota 'GPUS_PER_GPU_FAMILY' exceeded.",
                quota("compute.googleapis.com/gpus_per_gpu_family", 0.0, "GPUS-PER-GPU-FAMILY-per-project-region",
                      region="us-central1", gpu_family="NVIDIA_H100"),
            )
        ),
        wire.QUOTA, DROP,
        ("GPUS_PER_GPU_FAMILY of NVIDIA_H100 (GPUS-PER-GPU-FAMILY-per-project-region) is limited to 0 in us-central1",),
        "us-central1",
    ),
    "another metric than the message names": Case(
        operation(
            failed(
                "QUOTA_EXCEEDED", "The request exceeds your quota.",
                quota("compute.googleapis.com/a2_cpus", 12.0, "A2-CPUS-per-project-region", region="us-central1"),
            )
        ),
        wire.QUOTA, ELSEWHERE, ("A2_CPUS (A2-CPUS-per-project-region) is limited to 12 in us-central1: ask for more",),
    ),
    "a quota by its quotaInfo alone": Case(
        operation(failed("FORBIDDEN", "no", quota("compute.googleapis.com/ssd_total_storage", 500.0, "SSD-TOTAL-GB-per-project-region",
                                                  region="us-central1"))),
        wire.QUOTA, ELSEWHERE, ("SSD_TOTAL_STORAGE (SSD-TOTAL-GB-per-project-region) is limited to 500 in us-central1",),
    ),
    "no GPU in any region": Case(
        operation(
            failed(
                "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
                quota("compute.googleapis.com/gpus_all_regions", 0.0, "GPUS-ALL-REGIONS-per-project"),
            )
        ),
        wire.QUOTA, DROP, ("GPUS_ALL_REGIONS", "is limited to 0 in all regions: ask for some at"), EVERYWHERE,
    ),
    "a quota of a zone": Case(
        operation(
            failed(
                "QUOTA_EXCEEDED", "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in zone us-central1-a.",
                quota("compute.googleapis.com/tpus_per_tpu_family", 0.0, "TPUS-PER-TPU-FAMILY-per-project-zone",
                      region="us-central1", zone="us-central1-a", tpu_family="CT6E"),
            )
        ),
        wire.QUOTA, DROP, ("TPUS_PER_TPU_FAMILY of CT6E (", "-per-project-zone) is limited to 0 in us-central1-a: ask for some"), ZONE,
    ),
    "a quota of a zone, by its quotaInfo alone": Case(
        operation(
            failed("QUOTA_EXCEEDED", "The request exceeds your quota.",
                   quota("compute.googleapis.com/tpus", 0.0, zone="us-central1-ai1a"))
        ),
        wire.QUOTA, DROP, ("TPUS (limit) is limited to 0 in us-central1-ai1a",), "us-central1-ai1a",
    ),
    "a quota of a zone, in words alone": Case(
        call(403, "quotaExceeded", "Quota 'TPUS' exceeded.  Limit: 0.0 in zone us-central1-a."), wire.QUOTA, DROP, (), ZONE,
    ),
    "a quota whose limit nobody tells": Case(
        operation(
            failed("QUOTA_EXCEEDED", "The request exceeds your quota.",
                   {"quotaInfo": {"metricName": "compute.googleapis.com/a2_cpus", "limitName": "A2-CPUS",
                                  "dimensions": {"region": "us-central1"}}})
        ),
        wire.QUOTA, ELSEWHERE, ("A2_CPUS (A2-CPUS) is used up in us-central1: ask for more at",),
    ),
    # slow down
    "rate": Case(call(403, "rateLimitExceeded", "Rate Limit Exceeded"), wire.QUOTA, LATER, ("until the next full minute",)),
    "rate in other words": Case(
        call(403, "rateLimitExceeded", "Quota exceeded for quota group 'ReadGroup' and limit 'Read requests per minute'"),
        wire.QUOTA, LATER,
    ),
    "rate of operations": Case(
        operation(failed("RESOURCE_OPERATION_RATE_EXCEEDED", "Operation rate exceeded for resource")), wire.QUOTA, LATER
    ),
    # rights
    "no right": Case(
        call(403, "forbidden", "Required 'compute.instances.create' permission for 'projects/ours/zones/z'", DENIED),
        wire.CONFIGURATION, FATAL, ("compute.instances.create is missing", "--role=roles/compute.instanceAdmin.v1"),
    ),
    "no right, in words alone": Case(
        call(403, "forbidden", "Required 'compute.subnetworks.use' permission for 'projects/host/regions/r/subnetworks/s'"),
        wire.CONFIGURATION, FATAL,
        ("compute.subnetworks.use is missing: gcloud projects add-iam-policy-binding host ", "--role=roles/compute.networkUser"),
    ),
    "no right to the image of another project": Case(
        call(403, "forbidden", "Required 'compute.images.useReadOnly' permission for 'projects/theirs/global/images/i'", IMAGES),
        wire.CONFIGURATION, FATAL,
        ("compute.images.useReadOnly is missing: gcloud projects add-iam-policy-binding theirs ", "--role=roles/compute.imageUser"),
    ),
    "no right to act as": Case(
        call(400, "serviceAccountAccessDenied", "The user does not have access to service account 'x@ours.iam'."),
        wire.CONFIGURATION, FATAL, ("iam.serviceAccounts.actAs on", "roles/iam.serviceAccountUser"),
    ),
    "no scope": Case(
        call(403, "insufficientPermissions", "Request had insufficient authentication scopes.", SCOPE),
        wire.CONFIGURATION, FATAL, ("auth/cloud-platform",),
    ),
    "API off": Case(
        call(403, "accessNotConfigured", "Compute Engine API has not been used in project 1 before or it is disabled.",
             DISABLED),
        wire.CONFIGURATION, FATAL, ("gcloud services enable compute.googleapis.com --project ours",),
    ),
    "policy": Case(
        call(412, "conditionNotMet", POLICY), wire.CONFIGURATION, FATAL, ("use cloud=Compute(external_ips=False)",)
    ),
    "policy: images": Case(
        operation(failed("CONDITION_NOT_MET", "Constraint constraints/compute.trustedImageProjects violated for project "
                         "ours. Use of images from project ubuntu-os-accelerator-images is prohibited."), http=412),
        wire.CONFIGURATION, FATAL, ("forbids it: have ubuntu-os-accelerator-images added to the projects whose images are",),
    ),
    "policy: images of whom it does not say": Case(
        call(412, "conditionNotMet", "Constraint constraints/compute.trustedImageProjects violated for project ours."),
        wire.CONFIGURATION, FATAL, ("the image's project (ubuntu-os-accelerator-images, unless image= names another)",),
    ),
    "policy: secure boot": Case(
        call(412, "conditionNotMet", "Constraint constraints/compute.requireShieldedVm violated for project ours."),
        wire.CONFIGURATION, FATAL, ("use cloud=Compute(secure_boot=True, image=…) with an image of your own whose",),
    ),
    "not logged in": Case(call(401, "authError", "Invalid Credentials"), wire.CONFIGURATION, FATAL, ("log in anew",)),
    # what was asked for
    "a machine for others": Case(
        call(400, "invalid", "The project ours is not allowed to use the machine type ct5lp-hightpu-1t."),
        wire.CONFIGURATION, FATAL, ("Google has not opened these machines to the project",),
    ),
    "a machine that needs an agreement": Case(
        call(400, "invalid", "This user agent is not allowed to use the machine type tpu7x-standard-4t."),
        wire.CONFIGURATION, FATAL, ("tpu7x-standard-4t", "ask your contact there for access"),
    ),
    "an unknown zone": Case(
        call(400, "invalid", "Invalid value for field 'zone': 'us-central1-x'. Unknown zone."),
        wire.QUOTA, DROP, ("there is no such zone", "gcloud compute zones list"), ZONE,
    ),
    "a zone that is not found": Case(
        call(404, "notFound", "The resource 'projects/ours/zones/us-central1-x' was not found"),
        wire.QUOTA, DROP, ("there is no such zone",), ZONE,
    ),
    "disks of other zones": Case(
        call(404, "notFound", "The resource 'projects/ours/zones/z/diskTypes/hyperdisk-balanced' was not found"),
        wire.QUOTA, DROP, ("the zone has no disks of the type", "cloud=Compute(disk_type=…)"), ZONE,
    ),
    "an account that is not there": Case(
        call(404, "notFound", "The resource 'projects/-/serviceAccounts/x@ours' of type 'serviceAccount' was not found."),
        wire.CONFIGURATION, FATAL, ("name one that is there",),
    ),
    "a project that is not there": Case(
        call(404, "notFound", "The resource 'projects/gone' was not found"), wire.CONFIGURATION, FATAL,
    ),
    "a machine of other zones": Case(
        call(400, "invalid", "Invalid value for field 'resource.machineType': 'zones/z/machineTypes/a2-highgpu-1g'. Machine "
             "type with name 'a2-highgpu-1g' does not exist in zone 'us-central1-a'."),
        wire.QUOTA, DROP, ("gcloud compute machine-types list --filter=name=a2-highgpu-1g",), ZONE,
    ),
    "GPUs of other zones": Case(
        call(404, "notFound", "The resource 'projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4' was not found"),
        wire.QUOTA, DROP, ("no such GPUs", "accelerator-types list --filter=name=nvidia-tesla-t4 shows"), ZONE,
    ),
    "no such image": Case(
        call(404, "notFound", "The resource 'projects/p/global/images/family/gone' was not found"),
        wire.CONFIGURATION, FATAL, ("cloud=Compute(image=",),
    ),
    "no such network": Case(
        call(404, "notFound", "The resource 'projects/p/global/networks/n' was not found"),
        wire.CONFIGURATION, FATAL, ("cloud=Compute(network=", "gcloud compute networks list"),
    ),
    "no such subnetwork": Case(
        call(404, "notFound", "The resource 'projects/p/regions/r/subnetworks/s' was not found"),
        wire.CONFIGURATION, FATAL, ("cloud=Compute(subnetwork=",),
    ),
    "a subnetwork of another region": Case(
        call(400, "invalid", "Invalid value for field: Subnetwork is in region us-east1, and the instance in us-central1."),
        wire.CONFIGURATION, FATAL, ("cloud=Compute(subnetwork=",),
    ),
    "a network of another fabric": Case(
        operation(failed("INVALID_USAGE", "Network profile only allows MRDMA.")), wire.QUOTA, DROP, (), ZONE
    ),
    "no such reservation": Case(
        call(404, "notFound", "The resource 'projects/p/zones/z/reservations/r' was not found"),
        wire.CONFIGURATION, FATAL, ("gcloud compute reservations list",),
    ),
    **{
        f"no such reservation: {said}": Case(
            operation(failed("CONDITION_NOT_MET", said)), wire.CONFIGURATION, FATAL, ("gcloud compute reservations list",),
        )
        for said in (
            "Specified reservations [mine] do not exist. (when acting as 'x@y.iam.gserviceaccount.com')",
            "Specified reservation mine does not exist", "Could not find the given reservation with the following name: mine",
        )
    },
    "no such reservation, of a call": Case(
        call(400, "invalid", "Invalid value for field 'resource.reservationAffinity': '{…}'. Specified reservations [mine] "
             "do not exist."),
        wire.CONFIGURATION, FATAL, ("gcloud compute reservations list",),
    ),
    "a reservation in use": Case(
        operation(
            failed("CONDITION_NOT_MET", "Specified reservation 'mine' does not have available resources for the request.")
        ),
        wire.STOCKOUT, ELSEWHERE, ("the reservation has not enough free: wait for its other users",),
    ),
    "a reservation of others": Case(
        operation(failed("CONDITION_NOT_MET", "No available resources in specified reservations 'mine'")),
        wire.STOCKOUT, ELSEWHERE, ("has none of these machines free", "cloud=Compute(reservation_bound=True)"),
    ),
    "a reservation of others, of a call": Case(
        call(400, "invalid", "Invalid value for field 'resource.reservationAffinity': '{…}'. No available resources in "
             "specified reservations."),
        wire.STOCKOUT, ELSEWHERE, ("cloud=Compute(reservation_bound=True)",),
    ),
    "a reservation that is being made": Case(
        operation(
            failed("CONDITION_NOT_MET", "Cannot insert instance to a reservation with status: CREATING, as it requires "
                   "reservation to be in READY state.")
        ),
        wire.STOCKOUT, ELSEWHERE, ("the reservation is not ready yet: it is asked again",),
    ),
    "a reservation of another kind": Case(
        operation(failed("CONDITION_NOT_MET", "Reservation mine is incorrect for the requested resources.")),
        wire.CONFIGURATION, FATAL, ("the reservation is of other machines",),
    ),
    "a condition": Case(
        operation(failed("CONDITION_NOT_MET", "Unsupported TPU configuration")), wire.CONFIGURATION, FATAL,
        ("Unsupported TPU configuration (CONDITION_NOT_MET)",),
    ),
    "a right, by its word": Case(
        operation(failed("PERMISSIONS_ERROR", "Required 'compute.subnetworks.use' permission for 'projects/host/s'")),
        wire.CONFIGURATION, FATAL, ("compute.subnetworks.use is missing", "--role=roles/compute.networkUser"),
    ),
    "no address left": Case(
        operation(
            failed("IP_SPACE_EXHAUSTED", "IP space of 'projects/ours/regions/us-central1/subnetworks/default-1' is exhausted.")
        ),
        wire.QUOTA, DROP, ("the subnetwork has no address left", "expand-ip-range"), "us-central1",
    ),
    "no address left, of whatever": Case(
        operation(failed("IP_SPACE_EXHAUSTED_WITH_DETAILS", "none")), wire.QUOTA, DROP, ("no address left",), ZONE,
    ),
    "a disk that is too small": Case(
        call(400, "invalid", "Requested disk size cannot be smaller than the image size (50 GB)"),
        wire.CONFIGURATION, FATAL, ("cloud=Compute(disk_gib=",),
    ),
    "a disk that the machine does not take": Case(
        operation(failed("INVALID_USAGE", "[pd-balanced] features are not compatible for creating instance.")),
        wire.CONFIGURATION, FATAL, ("takes no disk of this type", "cloud=Compute(disk_type=…)"),
    ),
    "a value": Case(operation(failed("INVALID_FIELD_VALUE", "Invalid value")), wire.CONFIGURATION, FATAL),
    "a usage": Case(operation(failed("INVALID_USAGE", "Disk type is not compatible")), wire.CONFIGURATION, FATAL),
    # what is going on
    "there already": Case(
        call(409, "alreadyExists", "The resource 'projects/p/zones/z/instances/n' already exists"), wire.CONFIGURATION, ADOPT
    ),
    "not ready": Case(call(400, "resourceNotReady", "The resource 'x' is not ready"), wire.INTERNAL, AGAIN),
    "in use": Case(
        call(400, "resourceInUseByAnotherResource", "The resource 'x' is already being used by 'y'"), wire.INTERNAL, AGAIN
    ),
    "not found after the insert": Case(
        operation(failed("RESOURCE_NOT_FOUND", "The resource 'projects/p/zones/z/instances/n' was not found"), http=404),
        wire.INTERNAL, AGAIN,
    ),
    "an answer that never came": Case(causes.of_call(0, {"message": "timed out"}), wire.INTERNAL, AGAIN),
    "a proxy's answer": Case(causes.of_call(502, {"message": "bad gateway"}), wire.INTERNAL, AGAIN),
    "503 of a call": Case(call(503, "backendError", "The zone is currently unavailable."), wire.INTERNAL, AGAIN),
    "internal": Case(operation(failed("INTERNAL_ERROR", "Internal error"), http=500), wire.INTERNAL, HERE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_error_leads_to_its_row(name: str) -> None:
    case = CASES[name]
    trouble = causes.classify(case.problems, ASKED)
    assert (trouble.cause, trouble.action, trouble.scope) == (case.cause, case.action, case.scope), trouble
    for text in case.says:
        assert text in trouble.sentence
    assert "\n" not in trouble.sentence


@pytest.mark.parametrize("name", CASES)
def test_the_reason_of_a_past_attempt_leads_to_the_same_row_again(name: str) -> None:
    case = CASES[name]
    trouble = causes.classify(case.problems, ASKED)
    again = causes.recall(f"{ZONE}: {trouble.sentence}")
    assert again is not None
    if case.action in (LATER, DROP):  # what the next place depends on
        assert (again.cause, again.action, again.scope or ZONE) == (case.cause, case.action, case.scope or ZONE)
    else:
        assert again.action not in (LATER, DROP)


def test_an_error_that_nobody_knows_is_told_in_its_own_words_and_new_hosts_are_tried() -> None:
    trouble = causes.classify([Problem("QUANTUM_FLUX", "the cat is both")], ASKED)
    assert (trouble.cause, trouble.sentence) == (wire.INTERNAL, "the cat is both (QUANTUM_FLUX, UNKNOWN)")


def test_a_reason_that_no_api_gave_leads_to_no_row() -> None:
    assert causes.recall("the hosts are gone without a word (really)") is None


def test_what_a_reservation_lacks_is_asked_for_again_as_vms_of_the_attempt_before_may_still_occupy_it() -> None:
    trouble = causes.classify(CASES["stockout with zones"].problems, ASKED._replace(reserved=True))
    assert (trouble.cause, trouble.action) == (wire.STOCKOUT, ELSEWHERE)
    assert "the reservation has not enough free" in trouble.sentence
    for name in ("a reservation of others", "a reservation that is being made", "preempted while created"):
        assert "not enough free" not in causes.classify(CASES[name].problems, ASKED._replace(reserved=True)).sentence


def test_too_many_requests_without_a_reason_are_a_rate() -> None:
    trouble = causes.classify(causes.of_call(429, {"message": "Too many requests"}), ASKED)
    assert (trouble.cause, trouble.action) == (wire.QUOTA, LATER)


ZONES = ("us-central1-a", "us-central1-f", "us-east4-c", "us-central1-b")


def past(name: str, zone: str = ZONE) -> Past:
    trouble = causes.classify(CASES[name].problems, ASKED._replace(zone=zone))
    return Past({"zone": zone}, trouble.cause, f"{zone}: {trouble.sentence}", 0.0)


def test_zones_that_have_some_are_tried_next_and_all_others_after_them() -> None:
    reason = past("stockout with zones").reason
    assert causes.hinted(ZONES, reason, ZONE) == [ZONE, "us-central1-b", "us-east4-c", "us-central1-f"]
    assert causes.hinted(ZONES, "a reason without zones", ZONE) == list(ZONES)
    ai = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-ai1a")
    short = failed("STOCKOUT", "none", info("stockout", zonesAvailable="us-central1-ai1a,us-central1-c"))
    told = causes.classify(operation(short, http=503), ASKED).sentence
    assert "zones that have some: us-central1-ai1a, us-central1-c" in told
    assert causes.hinted(ai, told, ZONE) == [ZONE, "us-central1-ai1a", "us-central1-c", "us-central1-b"]
    said = THERE.replace("us-central1-b, us-east4-c", "us-central1-ai1a, us-central1-c")
    assert causes.hinted(ai, said, ZONE)[1:3] == ["us-central1-ai1a", "us-central1-c"]
    assert causes.hinted(ZONES[:2], reason, ZONE) == list(ZONES[:2]), "a zone that nobody named is not tried"


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("rate", Refusal(later=True)),
        ("quota of 0", Refusal(gone=("us-central1-a", "us-central1-f", "us-central1-b"))),
        ("no GPU in any region", Refusal(gone=ZONES)),
        ("a machine of other zones", Refusal(gone=(ZONE,))),
        ("a quota of a zone", Refusal(gone=(ZONE,))),
        ("a quota of a zone, in words alone", Refusal(gone=(ZONE,))),
        ("a quota whose limit nobody tells", Refusal()),
        ("no address left", Refusal(gone=("us-central1-a", "us-central1-f", "us-central1-b"))),
        ("no address left, of whatever", Refusal(gone=(ZONE,))),
        ("quota above 0", Refusal()),
        ("stockout in words alone", Refusal()),
    ],
)
def test_what_an_answer_means_for_the_next_place(name: str, refusal: Refusal) -> None:
    assert api_errors.refusal_of(ZONES, past(name), causes.recall) == refusal
