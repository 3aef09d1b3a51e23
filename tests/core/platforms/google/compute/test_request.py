"""The create calls as data, each of which is what Google's discovery document says of an instance."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kinetic_orchestration.errors import Unsupported
from kinetic_orchestration.plan.declare.cloud import Compute, fields_of
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import on_hosts
from kinetic_orchestration.plan.values import Intent, Limits, Plan, Retry, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google import vms
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol.names import slice_of
from tests.support.exchanges.documents import find
from tests.support.exchanges.rules import Shape

pytestmark = pytest.mark.fast

STAGED = Staged(None, "", "", (), (), (), (), None, "", agent="a" * 64)
SPEC = "5" * 64
HOUR, DAY = 3600.0, 86400.0
ZONE = "us-central1-a"
IN_ZONE = f"projects/ours/zones/{ZONE}"


def plan_of(name: str, hosts: int = 1, cloud: dict[str, Any] | None = None, **fields: Any) -> Plan:
    slice_ = accelerators.parse(name)
    plan = Plan(
        name="train",
        slice=slice_ if hosts == 1 else on_hosts(slice_, hosts),
        backend="compute",
        store="gs://bucket/kinetic",
        deployment="Production EU",
        limits=Limits(provision=HOUR, run=24 * HOUR),
        retry=Retry(),
        emulated=False,
        project="ours",
        zones=(ZONE, "us-east4-c"),
        zone_patience=900.0,
        cloud={**fields_of(Compute()), **(cloud or {})},
    )
    return replace(plan, **fields)


def intent_of(plan: Plan, attempt: int = 1, deadline: float = 100_000.0) -> Intent:
    name = slice_of(plan.store, plan.deployment, "job-0123456789ab", attempt)
    placed = {
        "backend": "compute",
        "project": plan.project,
        "zone": ZONE,
        "name": name,
        "hosts": plan.machines,
        "slices": plan.slices,
        **({"grouped": True} if request.needs_groups(plan) else {}),
    }
    created = 1_799_900_000.0
    return Intent(attempt, "b007" * 4, placed, created + deadline, created)


def render(plan: Plan, intent: Intent | None = None) -> list[dict[str, Any]]:
    return request.render(Submission(plan, STAGED, "job-0123456789ab", SPEC, intent or intent_of(plan), {}))


CASES = {
    "l4": plan_of("l4"),
    "l4x8": plan_of("l4x8"),
    "t4x4": plan_of("t4x4"),
    "a100": plan_of("a100"),
    "a100-80gbx8": plan_of("a100-80gbx8"),
    "h100, spot": plan_of("h100", spot=True),
    "h100x8": plan_of("h100x8"),
    "h200x8": plan_of("h200x8"),
    "b200x8": plan_of("b200x8"),
    "rtx-pro-6000x2": plan_of("rtx-pro-6000x2"),
    "v6e-8": plan_of("v6e-8"),
    "v5p-4": plan_of("v5p-4"),
    "v5p-4 with Hyperdisk": plan_of("v5p-4", cloud={"disk_type": "hyperdisk-balanced"}),
    "tpu7x-4": plan_of("tpu7x-4"),
    "two hosts": plan_of("l4", hosts=2),
    "flex-start": plan_of("h100", cloud={"flex_start": True}),
    "a reservation": plan_of("h100x8", cloud={"reservation": "mine"}),
    "a reservation for a time": plan_of("h200x8", cloud={"reservation": "mine", "reservation_bound": True}),
    "everything": plan_of(
        "l4", labels={"team": "Vision"},
        cloud={
            "network": "shared", "subnetwork": "projects/host/regions/us-central1/subnetworks/gpus", "external_ips": False,
            "service_account": "trainer@ours.iam.gserviceaccount.com", "tags": ("gpu", "no-ingress"), "secure_boot": True,
            "image": "family/own", "disk_gib": 300, "disk_type": "pd-ssd", "owner": "Ada@Example.com",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_body_is_what_googles_discovery_document_says(name: str) -> None:
    method = find("POST", f"/compute/v1/{IN_ZONE}/instances")
    assert method is not None and method.request is not None
    for body in render(CASES[name]):
        shape = Shape(method.document, method.id, sent=True)
        assert list(shape.wrongs(method.request, json.loads(json.dumps(body)))) == []
        assert len(body["name"]) <= 63
        scheduling = body["scheduling"]
        assert scheduling["automaticRestart"] is False, "Google must not revive an attempt"
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert scheduling["onHostMaintenance"] == "TERMINATE"
        assert int(scheduling["maxRunDuration"]["seconds"]) > 0
        assert body["reservationAffinity"]["consumeReservationType"] != "ANY_RESERVATION"
        assert body["disks"][0]["autoDelete"] is True


@pytest.mark.parametrize("name", ["l4", "a100"])
def test_a_vm_that_is_kept_may_run_longer_and_its_hosts_know_until_when(name: str) -> None:
    intent = intent_of(CASES[name])
    (plain,) = render(CASES[name], intent)
    keeps = replace(CASES[name], keep=600.0)
    (kept,) = request.render(Submission(keeps, STAGED, "job-0123456789ab", SPEC, intent, {}, lease_key="5e" * 32))
    own = intent.deadline - intent.created - intent.wait
    more = int(kept["scheduling"]["maxRunDuration"]["seconds"]) - int(plain["scheduling"]["maxRunDuration"]["seconds"])
    assert more == 600.0 + max(own, request.NEXT_RUN), "one more attempt, and not as long as the API allows"
    told, before = ({one["key"]: one["value"] for one in body["metadata"]["items"]} for body in (kept, plain))
    orders = json.loads(told["kinetic"])
    assert orders["lease_key"] == "5e" * 32
    run = int(kept["scheduling"]["maxRunDuration"]["seconds"])
    assert orders["last"] == intent.created + run - request.SPARE
    assert not {"lease_key", "last"} & json.loads(before["kinetic"]).keys()


@pytest.mark.parametrize(
    ("model", "own", "run"),
    [
        (accelerators.ON_DEMAND, HOUR, HOUR + 600.0 + request.SPARE + request.NEXT_RUN),  # the next may have no limits
        (accelerators.ON_DEMAND, 10 * DAY, 20 * DAY + 600.0 + request.SPARE),  # and is as long as this one
        (accelerators.ON_DEMAND, 119 * DAY, request.LONGEST_RUN),
        (accelerators.FLEX_START, 6 * DAY, 7 * DAY),
    ],
)
def test_a_vm_that_may_be_kept_lives_as_long_as_one_more_attempt_takes_and_no_longer(
    model: accelerators.Way, own: float, run: float
) -> None:
    intent = intent_of(CASES["l4"])._replace(deadline=intent_of(CASES["l4"]).created + own)
    assert request.run_seconds(intent, model, keep=600.0) == run
    assert request.run_seconds(intent, model) == min(own + request.SPARE, run)


def test_a_disk_of_a_type_and_a_size_that_are_named_is_asked_for() -> None:
    for name, kind, gib in (("everything", "pd-ssd", "300"), ("v5p-4 with Hyperdisk", "hyperdisk-balanced", "100")):
        (body,) = render(CASES[name])
        disk = body["disks"][0]["initializeParams"]
        zone = disk["diskType"].rpartition("/diskTypes/")[0]
        assert (
            disk["diskType"] == f"{zone}/diskTypes/{kind}"
            and zone == body["machineType"].rpartition("/machineTypes/")[0]
        )
        assert disk["diskSizeGb"] == gib


def test_one_host_is_one_vm_with_its_machine_disk_image_and_orders() -> None:
    plan = CASES["l4"]
    (body,) = render(plan)
    name = intent_of(plan).placement["name"]
    assert body["name"] == name
    assert body["machineType"] == f"{IN_ZONE}/machineTypes/g2-standard-4"
    assert "guestAccelerators" not in body
    disk = body["disks"][0]["initializeParams"]
    assert disk["diskType"] == f"{IN_ZONE}/diskTypes/pd-balanced"
    assert disk["sourceImage"].startswith("projects/ubuntu-os-accelerator-images/global/images/family/")
    assert disk["labels"] == body["labels"]
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert items["startup-script"] == vms.startup_script()
    orders = json.loads(items["kinetic"])
    assert (orders["resource"], orders["host"]) == (f"{IN_ZONE}/instances/{name}", 0)
    assert body["networkInterfaces"] == [
        {
            "nicType": "GVNIC",
            "network": "projects/ours/global/networks/default",
            "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
        }
    ]
    assert body["serviceAccounts"] == [{"email": "default", "scopes": [vms.CLOUD_PLATFORM]}]
    owned = ownership.owned(body["labels"])
    assert owned is not None and (owned.job, owned.attempt) == ("job-0123456789ab", 1)


def test_gpus_are_added_to_machines_that_have_none_alone() -> None:
    (body,) = render(CASES["t4x4"])
    wanted = {"acceleratorType": f"{IN_ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 4}
    assert body["guestAccelerators"] == [wanted]


def test_several_hosts_are_as_many_vms_that_know_their_number_and_share_a_name() -> None:
    bodies = render(CASES["two hosts"])
    base = intent_of(CASES["two hosts"]).placement["name"]
    assert [body["name"] for body in bodies] == [f"{base}-0", f"{base}-1"]
    orders = [json.loads(body["metadata"]["items"][1]["value"]) for body in bodies]
    assert [order["host"] for order in orders] == [0, 1]
    assert {order["resource"] for order in orders} == {f"{IN_ZONE}/instances/{base}"}


def test_several_processes_of_a_vm_are_its_hosts_and_the_machines_are_the_same() -> None:
    plan = plan_of("l4x4", hosts=2, processes=4)
    bodies, alone = render(plan), render(plan_of("l4x4", hosts=2))
    orders = [json.loads(body["metadata"]["items"][1]["value"]) for body in bodies]
    assert [(order["host"], order["hosts"], order["processes"], order["gpus"]) for order in orders] == [
        (0, 8, 4, 4), (4, 8, 4, 4)
    ]  # fmt: skip
    for body, other in zip(bodies, alone, strict=True):
        assert {**body, "metadata": None} == {**other, "metadata": None}
    assert (plan.machines, plan.hosts, plan.devices, plan.crew) == (2, 8, 1, "2 hosts, 8 processes")
    assert plan.hardware == "l4x4: 8 GPUs, 2 hosts × 4 GPUs, 8 processes, Compute Engine l4x4"


def test_the_ways_to_get_a_vm() -> None:
    (spot,) = render(CASES["h100, spot"])
    assert spot["scheduling"]["provisioningModel"] == "SPOT"
    assert spot["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    (flex,) = render(CASES["flex-start"])
    assert flex["scheduling"]["provisioningModel"] == "FLEX_START"
    assert flex["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert flex["params"] == {"requestValidForDuration": {"seconds": "900"}}
    assert flex["labels"][request.UNTIL] == str(1_799_900_000 + 900)
    (reserved,) = render(CASES["a reservation"])
    assert reserved["scheduling"]["provisioningModel"] == "STANDARD"
    assert reserved["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["mine"],
    }
    (bound,) = render(CASES["a reservation for a time"])
    assert bound["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert bound["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert bound["reservationAffinity"] == reserved["reservationAffinity"]
    (shared,) = render(plan_of("h100x8", cloud={"reservation": "projects/host/zones/z/reservations/theirs"}))
    assert shared["reservationAffinity"]["values"] == ["projects/host/reservations/theirs"]


def test_options_of_the_job_are_in_the_call() -> None:
    (body,) = render(CASES["everything"])
    assert body["networkInterfaces"] == [
        {
            "nicType": "GVNIC",
            "network": "projects/ours/global/networks/shared",
            "subnetwork": "projects/host/regions/us-central1/subnetworks/gpus",
        }
    ], "without an access configuration there is no public address"
    assert body["serviceAccounts"][0]["email"] == "trainer@ours.iam.gserviceaccount.com"
    assert body["tags"] == {"items": ["gpu", "no-ingress"]}
    assert body["shieldedInstanceConfig"]["enableSecureBoot"] is True
    disk = body["disks"][0]["initializeParams"]
    assert (disk["sourceImage"], disk["diskSizeGb"]) == ("projects/ours/global/images/family/own", "300")
    assert body["labels"]["team"] == "vision"


def test_a_core_runs_one_thread_where_the_api_wants_it() -> None:
    (body,) = render(CASES["v6e-8"])
    assert body["advancedMachineFeatures"] == {"threadsPerCore": 1}


@pytest.mark.parametrize(
    ("model", "deadline", "seconds"),
    [
        (accelerators.ON_DEMAND, 3600.0, 4500),
        (accelerators.ON_DEMAND, 365 * 86400.0, 120 * 86400),
        (accelerators.FLEX_START, -1000.0, 600),
        (accelerators.FLEX_START, 7 * 86400.0, 7 * 86400),
        (accelerators.SPOT, -1000.0, 30),
    ],
)
def test_google_ends_a_vm_some_time_after_the_deadline_of_its_attempt(
    model: Any, deadline: float, seconds: int
) -> None:
    assert request.run_seconds(intent_of(CASES["l4"], deadline=deadline), model) == seconds


def test_the_same_intent_gives_the_same_calls_and_another_one_others() -> None:
    plan = CASES["two hosts"]
    first, second = intent_of(plan), intent_of(plan, 2)
    assert render(plan, first) == render(plan, first)
    ids = [vms.request_id(intent, name) for intent in (first, second) for name in request.members_of(intent.placement)]
    assert len(set(ids)) == 4
    assert vms.request_id(first, f"{first.placement['name']}-0") == ids[0]


def test_a_dry_run_shows_the_whole_call_and_not_the_program() -> None:
    plan = CASES["flex-start"]
    text = request.dry_run(plan, intent_of(plan).placement)
    assert text.startswith(f"the create call in {ZONE}, waiting for capacity for up to ")
    assert f"POST {IN_ZONE}/instances" in text
    assert 'provisioningModel: "FLEX_START"' in text
    assert "bytes, sha256" in text
    assert "#!/bin/sh" not in text
    several = request.dry_run(CASES["two hosts"], intent_of(CASES["two hosts"]).placement)
    assert several.startswith("the first of 2 create calls")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (plan_of("h100"), "does not come on demand"),
        (plan_of("v5p-4096"), "no group of VMs links"),
        (plan_of("l4", slices=2), "only slices of TPUs are joined"),
    ],
)
def test_what_can_never_be_made_is_refused_with_what_to_use_instead(plan: Plan, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        request.check(plan)
