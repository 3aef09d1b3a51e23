"""The create calls of slices of several hosts, each of which is what Google's discovery document says, and what the
emulated cloud makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import accelerators, machines
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.records import intent_of as intent_of_record
from kinetic_orchestration.plan.records import within
from kinetic_orchestration.plan.values import Intent, Limits, Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.compute import request, slices
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.compute.slices import Bodies, described
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from tests.core.platforms.google.compute.test_request import SPEC, STAGED, intent_of, plan_of
from tests.core.testing.model.compute.test_service import World
from tests.support.exchanges.documents import find
from tests.support.exchanges.rules import Shape

pytestmark = pytest.mark.fast

JOB = "job-0123456789ab"
REGION = "projects/ours/regions/us-central1"
ZONE = "projects/ours/zones/us-central1-a"


def asked(plan: Plan, intent: Intent | None = None) -> Submission:
    return Submission(plan, STAGED, JOB, SPEC, intent or intent_of(plan), {})


def render(plan: Plan) -> Bodies:
    return slices.render(asked(plan))


CASES = {
    "v6e-16": plan_of("v6e-16"),
    "v5p-2048": plan_of("v5p-2048"),
    "v5p-8 with Hyperdisk": plan_of("v5p-8", cloud={"disk_type": "hyperdisk-balanced"}),
    "tpu7x-8": plan_of("tpu7x-8"),
    "two slices": plan_of("v6e-32", slices=2),
    "two slices of one host each": plan_of("v6e-8", slices=2),
    "flex-start": plan_of("tpu7x-64", cloud={"flex_start": True}),
    "spot": plan_of("v5p-8", spot=True),
    "a reservation for a time": plan_of("tpu7x-64", cloud={"reservation": "mine", "reservation_bound": True}),
    "a reservation": plan_of("v6e-256", cloud={"reservation": "projects/host/zones/z/reservations/theirs"}),
    "everything": plan_of(
        "v6e-16", slices=3, labels={f"{number}-team": "x" * 63 for number in range(70)} | {"team": "Vision"},
        cloud={
            "network": "shared", "subnetwork": "tpus", "external_ips": False, "tags": ("tpu",), "image": "family/own",
            "service_account": "trainer@ours.iam.gserviceaccount.com", "disk_gib": 300, "owner": "Ada@Example.com",
        },
    ),
}  # fmt: skip


def calls(plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """The path and the body of each call."""
    placement, bodies = intent_of(plan).placement, render(plan)
    found = [] if bodies.policy is None else [(f"{slices.region_path(placement)}/{slices.POLICIES}", bodies.policy)]
    found += [(f"{slices.region_path(placement)}/{slices.TEMPLATES}", bodies.template)]
    return found + [(f"{request.zone_of(placement)}/{slices.GROUPS}", group) for group in bodies.groups]


@pytest.mark.parametrize("name", CASES)
def test_every_body_is_what_googles_discovery_document_says(name: str) -> None:
    for path, body in calls(CASES[name]):
        method = find("POST", f"/compute/v1/{path}")
        assert method is not None and method.request is not None
        shape = Shape(method.document, method.id, sent=True)
        assert list(shape.wrongs(method.request, json.loads(json.dumps(body)))) == []
        assert len(body["name"]) <= 63 and len(body["description"]) < 1024


@pytest.mark.parametrize("name", CASES)
def test_google_neither_repairs_a_slice_nor_keeps_it_for_ever(name: str) -> None:
    bodies = render(CASES[name])
    for group in bodies.groups:
        assert group["targetSizePolicy"] == {"mode": "BULK"}
        assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
        assert group["updatePolicy"] == {"type": "OPPORTUNISTIC"}
    properties = bodies.template["properties"]
    assert properties["scheduling"]["automaticRestart"] is False
    assert properties["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert int(properties["scheduling"]["maxRunDuration"]["seconds"]) > 0
    assert properties["reservationAffinity"]["consumeReservationType"] != "ANY_RESERVATION"
    assert properties["disks"][0]["autoDelete"] is True


def test_a_slice_is_a_policy_a_template_and_a_group_of_its_hosts() -> None:
    plan = CASES["v6e-16"]
    placement = intent_of(plan).placement
    name, bodies = placement["name"], render(plan)
    assert bodies.policy is not None
    assert bodies.policy["workloadPolicy"] == {
        "type": "HIGH_THROUGHPUT",
        "acceleratorTopology": "4x4",
        "acceleratorTopologyMode": "AUTO_CONNECT",
    }
    [group] = bodies.groups
    assert (bodies.policy["name"], bodies.template["name"], group["name"]) == (name, name, name)
    assert group["baseInstanceName"] == f"{name}-###[1]" and group["targetSize"] == 4
    assert group["instanceTemplate"] == slices.template_path(placement) == f"{REGION}/instanceTemplates/{name}"
    policy = slices.policy_path(placement)
    assert (
        group["resourcePolicies"]
        == {"workloadPolicy": policy}
        == {"workloadPolicy": f"{REGION}/resourcePolicies/{name}"}
    )
    assert request.members_of(placement) == [f"{name}-001", f"{name}-002", f"{name}-003", f"{name}-004"]


def test_a_template_names_no_zone_no_host_and_no_disk() -> None:
    """Its VMs are of whatever zone, and so many that a number or the name of a disk would be that of one alone."""
    plan = CASES["v6e-16"]
    template, name = render(plan).template, intent_of(plan).placement["name"]
    properties = template["properties"]
    assert properties["machineType"] == "ct6e-standard-4t"
    disk = properties["disks"][0]["initializeParams"]
    assert disk["diskType"] == "hyperdisk-balanced" and "diskName" not in disk
    for case, kind in (("v5p-2048", "pd-balanced"), ("v5p-8 with Hyperdisk", "hyperdisk-balanced")):
        disk = render(CASES[case]).template["properties"]["disks"][0]["initializeParams"]
        assert (disk["diskType"], disk["diskSizeGb"]) == (kind, "100")
    orders = json.loads(next(item["value"] for item in properties["metadata"]["items"] if item["key"] == "kinetic"))
    assert "host" not in orders and orders["resource"] == f"{ZONE}/instanceGroupManagers/{name}"
    assert (orders["hosts"], orders["slices"], orders["hosts_per_slice"]) == (4, 1, 4)
    owned = ownership.owned(properties["labels"])
    assert owned is not None and (owned.job, owned.attempt) == (JOB, 1)


def test_several_slices_are_as_many_groups_of_one_template_and_one_policy() -> None:
    plan = CASES["two slices"]
    placement, bodies = intent_of(plan).placement, render(plan)
    name = placement["name"]
    assert request.groups_of(placement) == [group["name"] for group in bodies.groups] == [f"{name}-0", f"{name}-1"]
    assert [group["baseInstanceName"] for group in bodies.groups] == [f"{name}-0-###[1]", f"{name}-1-###[1]"]
    assert (
        len({(group["instanceTemplate"], group["resourcePolicies"]["workloadPolicy"]) for group in bodies.groups}) == 1
    )
    members = request.members_of(placement)
    assert (members[0], members[7], members[8], len(members)) == (f"{name}-0-001", f"{name}-0-008", f"{name}-1-001", 16)
    orders = json.loads(bodies.template["properties"]["metadata"]["items"][1]["value"])
    assert orders["resource"] == f"{ZONE}/instanceGroupManagers/{name}", "the hosts of all slices have the same orders"
    assert (orders["slices"], orders["hosts_per_slice"]) == (2, 8)


def test_slices_of_one_host_each_have_no_policy_as_nothing_is_linked() -> None:
    plan = CASES["two slices of one host each"]
    placement, bodies = intent_of(plan).placement, render(plan)
    assert bodies.policy is None and slices.policy_path(placement) == ""
    assert [group["targetSize"] for group in bodies.groups] == [1, 1]
    assert not any("resourcePolicies" in group for group in bodies.groups)
    assert bodies.template["properties"]["advancedMachineFeatures"] == {"threadsPerCore": 1}
    assert [name.rpartition("-")[2] for name in request.members_of(placement)] == ["001", "001"]


def test_only_tpus_of_several_hosts_are_grouped() -> None:
    for plan in (plan_of("l4"), plan_of("l4", hosts=4), plan_of("v6e-8"), plan_of("tpu7x-4")):
        placement = intent_of(plan).placement
        assert not request.needs_groups(plan) and not request.is_grouped(placement)
        assert request.groups_of(placement) == [] and slices.policy_path(placement) == ""
    assert all(request.needs_groups(plan) for plan in CASES.values())


def test_the_ways_to_get_a_slice() -> None:
    flex, spot, reserved = (
        render(CASES[name]).template["properties"] for name in ("flex-start", "spot", "a reservation")
    )
    assert flex["scheduling"]["provisioningModel"] == "FLEX_START"
    assert flex["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert "params" not in flex, "a group waits until it is deleted, and no VM of it for a time of its own"
    assert request.UNTIL not in flex["labels"]
    assert spot["scheduling"]["provisioningModel"] == "SPOT"
    assert spot["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert reserved["scheduling"]["provisioningModel"] == "STANDARD"
    bound = render(CASES["a reservation for a time"]).template["properties"]
    assert bound["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert bound["reservationAffinity"]["values"] == ["mine"]
    assert reserved["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": request.RESERVATION_KEY,
        "values": ["projects/host/reservations/theirs"],
    }


def test_a_description_says_whose_a_resource_without_labels_is_and_until_when_it_waits() -> None:
    plan = CASES["everything"]
    found = described(slices.description_of(asked(plan)))
    labels = render(plan).template["properties"]["labels"]
    assert ownership.owned(found.labels) == ownership.owned(labels) is not None
    assert found.until == 1_799_900_000 + 900, "the patience with one zone of two"
    assert (found.zone, found.hosts, found.model) == ("us-central1-a", 12, "on-demand"), "which placement it is of"
    assert "team" not in found.labels, "a description has room for what finds the owner, and labels for bills"
    assert described(slices.description_of(asked(plan_of("v6e-16", limits=Limits(), zone_patience=0.0)))).until == 0


@pytest.mark.parametrize("text", ["", "by hand", "[]", "7", '{"kinetic": 7}', '{"kinetic": {}, "until": "soon"}', "{"])
def test_a_description_by_anybody_else_says_nothing(text: str) -> None:
    assert described(text) == slices.Described({}) and ownership.owned(described(text).labels) is None


def test_the_longest_names_are_none_too_long_for_google() -> None:
    """By the pattern of `baseInstanceName`: 52 letters, then a dash, digits and where they begin."""
    plan = plan_of("v6e-16", slices=4096)
    placement = intent_of(plan, attempt=9999).placement
    last = request.groups_of(placement)[-1]
    assert last.endswith("-9999-4095") and len(last) <= 52
    largest = max(one.hosts for one in accelerators.catalogue() if one.kind == "tpu" and machines.serves(one))
    assert largest < 10 ** names.MEMBERS.count("#")


def test_a_dry_run_shows_all_calls_and_until_when_the_groups_wait() -> None:
    plan = CASES["two slices"]
    text = slices.dry_run(plan, intent_of(plan).placement)
    told = "the create calls in us-central1-a; the 2 groups wait for their hosts until they are deleted: after 15m"
    assert text.startswith(f"{told} without them\nPOST {REGION}/resourcePolicies\n")
    assert text.count(f"\nPOST {ZONE}/instanceGroupManagers\n") == 2
    assert f"\nPOST {REGION}/instanceTemplates\n" in text and 'acceleratorTopology: "4x8"' in text
    assert "bytes, sha256" in text and "#!/bin/sh" not in text
    one = plan_of("v6e-16", limits=Limits(), zone_patience=0.0)
    assert "the group waits for its hosts until it is deleted: limits.provision sets no time" in slices.dry_run(
        one, intent_of(one).placement
    )


@pytest.mark.parametrize("name", ["v6e-16", "v5p-16", "tpu7x-8", "v6e-8 x 2", "v6e-1 x 2", "v5p-8 x 3"])
def test_the_cloud_makes_the_slices_by_names_that_were_known_before(name: str) -> None:
    """The emulated cloud, which knows the topologies of each machine."""
    accelerator, _, number = name.partition(" x ")
    zone = "us-central1-c" if accelerator.startswith("tpu7x") else "us-east5-a"
    plan = plan_of(accelerator, slices=int(number or 1), zones=(zone,), project="p")
    intent = intent_of(plan)
    intent.placement["zone"] = zone
    world, bodies = World(), slices.render(asked(plan, intent))

    def post(kind: str, body: dict[str, Any]) -> None:
        place = f"zones/{zone}" if kind == slices.GROUPS else f"regions/{region_of(zone)}"
        world.ask(f"POST {place}/{kind}", json.loads(json.dumps(body)))

    if bodies.policy is not None:
        post(slices.POLICIES, bodies.policy)
    post(slices.TEMPLATES, bodies.template)
    world.wait(5.0)
    for group in bodies.groups:
        post(slices.GROUPS, group)
    world.wait(60.0)
    found = world.ask(f"GET zones/{zone}/instances")["items"]
    assert sorted(one["name"] for one in found) == sorted(request.members_of(intent.placement))
    assert {one["status"] for one in found} == {"RUNNING"}
    assert {one["labels"]["kinetic-job"] for one in found} == {JOB}
    for group in request.groups_of(intent.placement):
        shown = world.ask(f"GET zones/{zone}/instanceGroupManagers/{group}")
        assert described(shown["description"]) == described(slices.description_of(asked(plan, intent)))
        assert shown["status"]["isStable"]


def test_the_backend_puts_slices_into_groups_and_shows_all_of_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {
        "HOME": str(tmp_path),
        "PROJECT": "p",
        "STORE": "gs://bucket/kinetic",
        "DEPLOYMENT": "d",
        "ZONES": "us-east5-a",
    }
    for name, value in named.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    here = settings.load()
    backend = ComputeBackend(here)

    def plan(**options: Any) -> Plan:
        return make_plan(JobSpec("train", Options(backend="compute", **options)), here)

    two, lone = plan(accelerator="v6e-16", cloud=Compute(num_slices=2)), plan(accelerator="v6e-8")
    placement = backend.place(two, JOB, 1)
    assert placement["grouped"] is True and (placement["hosts"], placement["slices"]) == (8, 2)
    assert "grouped" not in backend.place(lone, JOB, 1)
    assert backend.dry_run(two).startswith("the create calls in us-east5-a; the 2 groups wait for their hosts")
    assert backend.dry_run(lone).startswith("the create call in us-east5-a")


def test_a_record_neither_denies_groups_nor_makes_them_up() -> None:
    """The members of groups have names of their own, so a release names those that exist."""
    plan, lone = CASES["v6e-16"], plan_of("v6e-8")

    def read(of: Plan, **changes: Any) -> dict[str, Any]:
        place = {name: value for name, value in intent_of(of).placement.items() if name not in ("grouped", "name")}
        data = wire.encode({"attempt": 1, "boot": "b", "placement": {**place, **changes}, "allowed": 60.0})
        return intent_of_record(Record(data, 1, 1.0), JOB, 1, within(of)).placement

    assert request.members_of(read(plan)) == request.members_of(intent_of(plan).placement)
    assert read(plan, grouped=True) == read(plan) and "grouped" not in read(lone)
    for of, grouped in ((plan, False), (lone, True)):
        with pytest.raises(Corrupt, match=r"placement\.grouped"):
            read(of, grouped=grouped)
    assert intent_of(plan).placement.keys() <= wire.PLACEMENT.checks.keys(), "a reaper reads these fields alone"
