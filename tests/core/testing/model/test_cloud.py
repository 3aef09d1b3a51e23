"""The emulated cloud as a state machine: a clock of its own, hosts in memory, proto-JSON in and out."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import LostAnswer, Refusal
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.faults import Caller, random_faults
from kinetic_orchestration.testing.model.lifecycle import Timing
from tests.support.hosts_in_memory import Clock, Room

ZONE = "us-east5-a"
OTHER = "us-central1-b"
PARENT = f"projects/p/locations/{ZONE}"
QUEUED = f"{PARENT}/queuedResources/q"
NODE = f"{PARENT}/nodes/q"
VM = Caller("vm", "q", 0)


REQUEST = "0d1c5ad0-9f4b-4a63-8a3e-1f7a8c6b2d11"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def cloud(clock: Clock, room: Room) -> Cloud:
    return make(clock, room)


def make(clock: Clock, room: Room, **options: Any) -> Cloud:
    timing = Timing(accept=1.0, provision=10.0, suspend=2.0, delete=3.0, stop=1.0, repair=30.0)
    zones = {ZONE: None, OTHER: None}
    return Cloud(
        **{"zones": zones, "timing": timing, "clock": clock, "pause": clock.pause, "machines": room, **options}
    )


def node_spec(accelerator: str = "v6e-8", **more: Any) -> dict[str, Any]:
    return {"acceleratorType": accelerator, "runtimeVersion": "v2-alpha-tpuv6e", **more}


def request(name: str = "q", parent: str = PARENT, **more: Any) -> dict[str, Any]:
    """A create request of one slice; `node` replaces the node, other keys belong to the queued resource."""
    node = more.pop("node", None) or node_spec()
    naming = more.pop("naming", {"nodeId": name})
    spec = [{"parent": parent, "node": node, **naming}]
    request_id = {"requestId": more.pop("requestId")} if "requestId" in more else {}
    queued = {"tpu": {"nodeSpec": spec}, "spot": {}, **more}
    if "guaranteed" in queued or "reservationName" in queued:
        del queued["spot"]
    return {"parent": parent, "queuedResourceId": name, "queuedResource": queued, **request_id}


def create(cloud: Cloud, name: str = "q", **more: Any) -> dict[str, Any]:
    return cloud.call("CreateQueuedResource", request(name, **more))


def state(cloud: Cloud, name: str = QUEUED) -> str:
    found = cloud.queued_resource(name)
    return str(found["state"]["state"]) if found else "gone"


def node_state(cloud: Cloud, name: str = NODE) -> str:
    found = cloud.node(name)
    return str(found["state"]) if found else "gone"


def refused(cloud: Cloud, method: str, what: dict[str, Any], caller: Caller | None = None) -> Refusal:
    with pytest.raises(Refusal) as caught:
        cloud.call(method, what, caller or Caller())
    return caught.value


def active(cloud: Cloud, clock: Clock, name: str = "q", **more: Any) -> None:
    create(cloud, name, **more)
    clock.now += 11
    cloud.advance()


def test_a_queued_resource_goes_its_way_until_it_is_deleted(cloud: Cloud, clock: Clock, room: Room) -> None:
    create(cloud)
    seen = [state(cloud)]
    for _ in range(22):
        clock.now += 0.5
        seen += [state(cloud)] if state(cloud) != seen[-1] else []
    assert seen == ["CREATING", "PROVISIONING", "ACTIVE"]
    what = [item.what for item in cloud.history if item.kind == "queued resource"]
    assert what == ["CREATING", "ACCEPTED", "PROVISIONING", "ACTIVE"]
    assert node_state(cloud) == "READY"
    assert [host.machine.worker for host in room.made] == [0]

    operation = cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})
    assert (state(cloud), node_state(cloud)) == ("DELETING", "DELETING")
    assert not operation.get("done")
    clock.now += 3
    assert (state(cloud), node_state(cloud)) == ("gone", "gone")
    assert cloud.call("GetOperation", {"name": operation["name"]})["response"]["@type"].endswith("protobuf.Empty")
    assert refused(cloud, "GetQueuedResource", {"name": QUEUED}).http == 404
    assert not room.made[0].alive
    cloud.ledger.assert_nothing_left()


def test_every_host_of_every_slice_is_told_where_it_stands(cloud: Cloud, clock: Clock, room: Room) -> None:
    node = node_spec("v6e-16", metadata={"kinetic": "{}"}, labels={"a": "b"})
    active(cloud, clock, naming={"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "np"}}, node=node)
    told = [(host.machine.node, host.machine.slice_index, host.machine.worker) for host in room.made]
    assert told == [("np-0", 0, worker) for worker in range(4)] + [("np-1", 1, worker) for worker in range(4)]
    first = room.made[0].machine
    assert (first.workers, first.slices, first.topology, first.spot) == (4, 2, "4x4", True)
    assert first.metadata == {"kinetic": "{}"}
    shown = cloud.node("np-1")
    assert shown is not None
    assert shown["multisliceNode"] and shown["queuedResource"] == QUEUED
    assert len(shown["networkEndpoints"]) == 4
    assert shown["schedulingConfig"] == {"spot": True}


def test_a_multislice_without_a_prefix_takes_the_id_of_its_queued_resource(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock, naming={"multisliceParams": {"nodeCount": 2}})
    assert [node["name"].rpartition("/")[2] for node in cloud.nodes()] == ["q-0", "q-1"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"naming": {}}, "node_id or node_spec.multislice_params"),
        ({"naming": {"multisliceParams": {"nodeCount": 1}}}, "greater than 1"),
        ({"node": {"acceleratorType": "v6e-8"}}, "runtime_version is required"),
        ({"node": node_spec("v6e-7")}, "not supported"),
        ({"node": node_spec(labels={"Upper": "x"})}, "Invalid label"),
        ({"node": node_spec(metadata={"startup-script": "x" * 262_145})}, "262144 bytes"),
        ({"node": node_spec(networkConfig={}, networkConfigs=[{}])}, "mutually exclusive"),
        ({"tpu": {}}, "node_spec is required"),
    ],
)
def test_what_makes_no_sense_is_an_invalid_argument(cloud: Cloud, change: dict[str, Any], says: str) -> None:
    refusal = refused(cloud, "CreateQueuedResource", request(**change))
    assert refusal.code == 3
    assert says in refusal.message
    cloud.ledger.assert_nothing_left()


def test_a_topology_may_be_asked_for_instead_of_a_type(cloud: Cloud, clock: Clock) -> None:
    node = {"acceleratorConfig": {"type": "V5LITE_POD", "topology": "4x4"}, "runtimeVersion": "v2-alpha-tpuv5-lite"}
    active(cloud, clock, node=node)
    shown = cloud.node("q")
    assert shown is not None
    assert shown["acceleratorType"] == "v5litepod-16"


def test_a_second_one_of_the_same_name_already_exists(cloud: Cloud) -> None:
    create(cloud)
    assert refused(cloud, "CreateQueuedResource", request()).http == 409


def test_the_same_request_id_means_the_same_operation(cloud: Cloud) -> None:
    first = create(cloud, requestId=REQUEST)
    assert create(cloud, requestId=REQUEST)["name"] == first["name"]
    assert cloud.ledger.count("created", "queued resource") == 1


def test_the_same_request_id_of_another_request_is_refused(cloud: Cloud) -> None:
    create(cloud, requestId=REQUEST)
    for other in (request("other", requestId=REQUEST), request(requestId=REQUEST, node=node_spec("v6e-4"))):
        refusal = refused(cloud, "CreateQueuedResource", other)
        assert (refusal.code, REQUEST in refusal.message) == (3, True)
    assert cloud.ledger.count("created", "queued resource") == 1
    cloud.call("CreateQueuedResource", request("elsewhere", f"projects/p/locations/{OTHER}", requestId=REQUEST))


@pytest.mark.parametrize("ident", ["id-1", "00000000-0000-0000-0000-000000000000", REQUEST[1:], f"{REQUEST} "])
def test_a_request_id_that_is_no_uuid_is_refused(cloud: Cloud, ident: str) -> None:
    assert refused(cloud, "CreateQueuedResource", request(requestId=ident)).code == 3
    create(cloud)
    assert refused(cloud, "DeleteQueuedResource", {"name": QUEUED, "requestId": ident, "force": True}).code == 3
    cloud.call("DeleteQueuedResource", {"name": QUEUED, "requestId": REQUEST, "force": True})


@pytest.mark.parametrize("version", ["nonsense", "tpu-vm", "v3-alpha-tpuv9", "2.4", "tpu-vm-tf-", "v2-alpha-tpuv6e "])
def test_a_runtime_version_that_cannot_be_is_refused(cloud: Cloud, version: str) -> None:
    node = {**node_spec(), "runtimeVersion": version}
    for method, what in (
        ("CreateQueuedResource", request(node=node)),
        ("CreateNode", {"parent": PARENT, "nodeId": "n", "node": node}),
    ):
        refusal = refused(cloud, method, what)
        assert refusal.code == 3
        assert f'The field "RuntimeVersion" cannot be "{version}". [EID: 0x' in refusal.message


def test_runtime_versions_that_google_has_named_can_be(cloud: Cloud) -> None:
    names = (
        *("tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-v4-base", "tpu-vm-pt-2.0", "tpu-vm-tf-2.17.0-pod-pjrt"),
        *("tpu-vm-tf-2.16.1-pjrt", "tpu-vm-tf-2.9.1", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e", "v2-nightly20240101"),
        *(item["version"] for item in cloud.call("ListRuntimeVersions", {"parent": PARENT})["runtimeVersions"]),
        *(hardware.runtime_version for hardware in accelerators.catalogue() if hardware.api == "tpu-vm"),
    )
    for index, name in enumerate(dict.fromkeys(names)):
        create(cloud, f"q{index}", node={**node_spec(), "runtimeVersion": name})


def test_a_list_of_operations_has_pages_and_a_filter(cloud: Cloud) -> None:
    for index in range(5):
        create(cloud, f"q{index}")
    cloud.call("DeleteQueuedResource", {"name": f"{PARENT}/queuedResources/q0", "force": True})
    asked: dict[str, Any] = {"name": PARENT, "pageSize": 2}
    sizes, names, verbs = [], [], []
    while True:
        page = cloud.call("ListOperations", asked)
        sizes.append(len(page["operations"]))
        names += [one["name"] for one in page["operations"]]
        verbs += [one["metadata"]["verb"] for one in page["operations"]]
        if "nextPageToken" not in page:
            break
        asked["pageToken"] = page["nextPageToken"]
    assert sizes == [2, 2, 2] and len(set(names)) == 6 and sorted(verbs) == ["create"] * 5 + ["delete"]
    found = cloud.call("ListOperations", {"name": "projects/p/locations/-", "filter": "metadata.verb=delete"})
    assert [one["metadata"]["target"] for one in found["operations"]] == [f"{PARENT}/queuedResources/q0"]
    assert cloud.call("ListOperations", {"name": f"projects/p/locations/{OTHER}"}) == {}
    assert refused(cloud, "ListOperations", {"name": PARENT, "filter": "((("}).code == 3
    assert refused(cloud, "ListOperations", {"name": PARENT, "returnPartialSuccess": True}).code == 12
    assert len(cloud.call("ListOperations", {"name": "projects/p/locations/-", "returnPartialSuccess": True})) == 1


def test_pages_of_what_there_is_to_choose_from_miss_none(cloud: Cloud) -> None:
    asked: dict[str, Any] = {"parent": PARENT, "pageSize": 7}
    whole = cloud.call("ListAcceleratorTypes", {"parent": PARENT})["acceleratorTypes"]
    found: list[Any] = []
    while True:
        page = cloud.call("ListAcceleratorTypes", asked)
        found += page["acceleratorTypes"]
        if "nextPageToken" not in page:
            break
        asked["pageToken"] = page["nextPageToken"]
    assert found == whole
    assert refused(cloud, "ListAcceleratorTypes", {"parent": PARENT, "orderBy": "type desc"}).code == 12


def test_delete_without_force_needs_nodes_gone_or_a_state_without_them(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    refusal = refused(cloud, "DeleteQueuedResource", {"name": QUEUED})
    assert (refusal.code, refusal.http) == (9, 400)
    cloud.stockout(ZONE, "wait")
    create(cloud, "waits")
    clock.now += 1
    assert state(cloud, "waits") == "WAITING_FOR_RESOURCES"
    cloud.call("DeleteQueuedResource", {"name": f"{PARENT}/queuedResources/waits"})
    cloud.suspend("q")
    clock.now += 2
    assert state(cloud) == "SUSPENDED"
    cloud.call("DeleteQueuedResource", {"name": QUEUED})
    clock.now += 3
    cloud.ledger.assert_nothing_left()


def test_a_delete_under_way_is_the_same_operation_again(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    first = cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})
    assert cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})["name"] == first["name"]


def test_a_stockout_fails_the_request_with_the_words_of_the_cloud(cloud: Cloud, clock: Clock) -> None:
    cloud.stockout(ZONE)
    create(cloud)
    clock.now += 11
    shown = cloud.queued_resource("q")
    assert shown is not None
    error = shown["state"]["failedData"]["error"]
    assert error["code"] == 8
    assert error["message"].startswith(f'There is no more capacity in the zone "{ZONE}"; you can try in another zone')
    assert "[EID: 0x" in error["message"]
    assert state(cloud) == "FAILED" and node_state(cloud) == "gone"
    cloud.restock(ZONE)
    active(cloud, clock, "again")
    assert state(cloud, "again") == "ACTIVE"


def test_a_stockout_of_reserved_capacity_says_so(cloud: Cloud, clock: Clock) -> None:
    cloud.stockout(ZONE)
    create(cloud, reservationName=f"{PARENT}/reservations/r")
    clock.now += 11
    shown = cloud.queued_resource("q")
    assert shown is not None
    assert (
        "Insufficient reserved capacity. Contact customer support" in shown["state"]["failedData"]["error"]["message"]
    )


def test_those_who_wait_get_what_others_free(clock: Clock, room: Room) -> None:
    cloud = make(clock, room, zones={ZONE: 8})
    active(cloud, clock)
    create(cloud, "second")
    clock.now += 60
    assert state(cloud, "second") == "WAITING_FOR_RESOURCES"
    cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})
    clock.now += 3
    assert state(cloud, "second") == "PROVISIONING"
    clock.now += 10
    assert state(cloud, "second") == "ACTIVE"


def test_valid_until_ends_the_wait_and_failed_stays(cloud: Cloud, clock: Clock) -> None:
    cloud.stockout(ZONE, "wait")
    create(cloud, queueingPolicy={"validUntilDuration": "60s"})
    clock.now += 59
    assert state(cloud) == "WAITING_FOR_RESOURCES"
    clock.now += 2
    assert state(cloud) == "FAILED"
    cloud.restock(ZONE)
    clock.now += 1e6
    assert state(cloud) == "FAILED"
    assert cloud.ledger.leaks() == [f"queued resource {QUEUED}"]


def test_a_time_to_start_from_is_kept(cloud: Cloud, clock: Clock) -> None:
    create(cloud, queueingPolicy={"validAfterDuration": "100s"})
    clock.now += 50
    assert state(cloud) == "ACCEPTED"
    clock.now += 60
    assert state(cloud) == "ACTIVE"


def test_quota_is_per_zone_or_region_and_named_as_the_cloud_names_it(cloud: Cloud, clock: Clock) -> None:
    cloud.quota("us-east5", 0, "v6e", spot=True)
    refusal = refused(cloud, "CreateQueuedResource", request())
    assert refusal.http == 429
    assert refusal.message == (
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
    )
    assert refusal.details[0]["@type"].endswith("QuotaFailure")
    create(cloud, guaranteed={})
    cloud.quota("us-east5", None, "v6e", spot=True)
    cloud.quota(ZONE, 8)
    assert "PerZone" in refused(cloud, "CreateQueuedResource", request("more")).message


@pytest.mark.parametrize("end", ["FAILED", "SUSPENDED"])
def test_what_is_failed_or_suspended_holds_its_quota_until_deleted(cloud: Cloud, clock: Clock, end: str) -> None:
    cloud.quota(ZONE, 8)
    if end == "FAILED":
        cloud.stockout(ZONE, times=1)
    active(cloud, clock)
    if end == "SUSPENDED":
        cloud.preempt("q")
    clock.now += 5
    assert state(cloud) == end
    assert refused(cloud, "CreateQueuedResource", request("next")).http == 429
    cloud.call("DeleteQueuedResource", {"name": QUEUED})
    clock.now += 3
    create(cloud, "next")


def test_a_quota_may_also_strike_after_the_call(cloud: Cloud, clock: Clock) -> None:
    cloud.quota(ZONE, 0, at="provision")
    create(cloud)
    clock.now += 11
    assert state(cloud) == "FAILED"


def test_only_so_many_nodes_may_be_asked_for_in_a_minute(cloud: Cloud, clock: Clock) -> None:
    cloud.create_rate(2)
    create(cloud, "a")
    create(cloud, "b")
    refusal = refused(cloud, "CreateQueuedResource", request("c"))
    assert refusal.http == 429
    assert "Maximum number of CreateNode requests per minute" in refusal.message
    clock.now += 61
    create(cloud, "c")


def test_a_preemption_with_notice_tells_the_hosts_first(cloud: Cloud, clock: Clock, room: Room) -> None:
    active(cloud, clock, node=node_spec("v6e-16"))
    cloud.preempt("q", notice=30)
    assert [host.met for host in room.made] == [["preempted 30"]] * 4
    assert node_state(cloud) == "READY"
    clock.now += 30
    assert (node_state(cloud), state(cloud)) == ("PREEMPTED", "SUSPENDING")
    assert not any(host.alive for host in room.made)
    clock.now += 2
    shown = cloud.queued_resource("q")
    assert shown is not None
    assert shown["state"] == {"state": "SUSPENDED", "suspendedData": {}, "stateInitiator": "SERVICE"}
    assert cloud.ledger.chip_seconds() == pytest.approx(30 * 16)


@pytest.mark.parametrize("shows", ["UNKNOWN", "TERMINATED", 99, "gone", "DELETING"])
def test_a_preemption_need_not_look_like_one(cloud: Cloud, clock: Clock, shows: str | int) -> None:
    active(cloud, clock)
    cloud.preempt("q", shows=shows, suspends=False)
    assert node_state(cloud) == str(shows)
    clock.now += 3
    assert node_state(cloud) == ("gone" if shows in ("gone", "DELETING") else str(shows))
    assert state(cloud) == "ACTIVE"


def test_a_preempted_slice_takes_the_others_of_its_request_along(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock, naming={"multisliceParams": {"nodeCount": 2}})
    cloud.preempt("q-0")
    clock.now += 6
    assert state(cloud) == "SUSPENDED"
    assert [(node["name"][-3:], node["state"]) for node in cloud.nodes()] == [("q-0", "PREEMPTED")]
    refusal = refused(cloud, "UpdateNode", {"node": {"name": f"{PARENT}/nodes/q-0"}, "updateMask": "labels"})
    assert refusal.code == 3
    assert refusal.message == "update is not supported while in state PREEMPTED"


def test_a_node_that_the_user_deletes_suspends_its_queued_resource_by_the_user(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    cloud.call("DeleteNode", {"name": NODE})
    clock.now += 5
    shown = cloud.queued_resource("q")
    assert shown is not None
    assert (shown["state"]["state"], shown["state"]["stateInitiator"]) == ("SUSPENDED", "USER")
    assert node_state(cloud) == "gone"


def test_maintenance_repairs_the_node_and_boots_its_hosts_again(cloud: Cloud, clock: Clock, room: Room) -> None:
    active(cloud, clock)
    cloud.maintenance("q", seconds=60, notice=10)
    clock.now += 11
    shown = cloud.node("q")
    assert shown is not None
    assert (shown["state"], shown["health"]) == ("REPAIRING", "UNHEALTHY_MAINTENANCE")
    clock.now += 60
    assert node_state(cloud) == "READY"
    assert room.made[0].met == ["TERMINATE_ON_HOST_MAINTENANCE", "NONE", "rebooted"]


def test_one_host_can_reboot_lose_power_or_never_boot_while_the_node_is_ready(
    cloud: Cloud, clock: Clock, room: Room
) -> None:
    cloud.never_boots(worker=2)
    active(cloud, clock, node=node_spec("v6e-16"))
    assert [host.machine.worker for host in room.made] == [0, 1, 3]
    cloud.reboot("q", 1)
    cloud.power_off("q", 3)
    assert [(host.met, host.alive) for host in room.made] == [([], True), (["rebooted"], True), ([], False)]
    assert node_state(cloud) == "READY"
    active(cloud, clock, "second", node=node_spec("v6e-16"))
    assert len(room.made) == 7


def test_a_stuck_delete_stays_deleting_with_dead_hosts(cloud: Cloud, clock: Clock, room: Room) -> None:
    cloud.stuck_delete("q")
    active(cloud, clock)
    operation = cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})
    clock.now += 1e5
    assert (state(cloud), node_state(cloud), room.made[0].alive) == ("DELETING", "DELETING", False)
    assert cloud.ledger.chip_seconds() == 0
    assert "done" not in cloud.call("GetOperation", {"name": operation["name"]})
    cloud.unstick("q")
    assert (state(cloud), node_state(cloud)) == ("gone", "gone")


def test_a_slow_delete_takes_its_time(cloud: Cloud, clock: Clock) -> None:
    cloud.slow_delete(100)
    active(cloud, clock)
    cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})
    clock.now += 99
    assert state(cloud) == "DELETING"
    clock.now += 1
    assert state(cloud) == "gone"


def test_an_operation_may_never_end_while_its_node_serves(cloud: Cloud, clock: Clock) -> None:
    cloud.stuck_operations("create")
    operation = create(cloud)
    clock.now += 1e4
    assert state(cloud) == "ACTIVE"
    assert "done" not in cloud.call("GetOperation", {"name": operation["name"]})


def test_a_state_that_nobody_knows_is_a_number(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    cloud.show(QUEUED, 42)
    cloud.show(NODE, 77, health=55)
    cloud.symptom("q", "HBM_OUT_OF_MEMORY", worker=1, details="full")
    shown = cloud.node(NODE)
    assert shown is not None
    assert (state(cloud), shown["state"], shown["health"]) == ("42", 77, 55)
    assert shown["symptoms"][0]["workerId"] == "1"


def test_calls_fail_by_script_so_often_and_where_it_was_said(cloud: Cloud) -> None:
    cloud.fail("CreateQueuedResource", times=2, zone=ZONE)
    refusal = refused(cloud, "CreateQueuedResource", request())
    assert (refusal.code, refusal.message) == (13, "an internal error has occurred")
    other = f"projects/p/locations/{OTHER}"
    cloud.call("CreateQueuedResource", request(parent=other))
    refused(cloud, "CreateQueuedResource", request())
    create(cloud)
    cloud.fail("*", 14, times=None, caller="vm")
    assert refused(cloud, "GetQueuedResource", {"name": QUEUED}, VM).http == 503
    cloud.call("GetQueuedResource", {"name": QUEUED})
    cloud.fail("List*", refusal=refusals.service_controls("p"))
    assert "vpcServiceControlsUniqueIdentifier" in refused(cloud, "ListNodes", {"parent": PARENT}).message
    cloud.fail("CreateQueuedResource", 8, "too much", name="third")
    create(cloud, "second")
    assert refused(cloud, "CreateQueuedResource", request("third")).message == "too much"


def test_code_13_can_also_come_after_the_call(cloud: Cloud, clock: Clock) -> None:
    cloud.fail("CreateQueuedResource", 13, at="provision")
    operation_fails = create(cloud)
    clock.now += 11
    assert state(cloud) == "FAILED"
    cloud.fail("CreateQueuedResource", 13, at="operation")
    operation_fails = create(cloud, "second")
    clock.now += 2
    assert cloud.call("GetOperation", {"name": operation_fails["name"]})["error"]["code"] == 13


def test_a_lost_answer_is_done_all_the_same(cloud: Cloud) -> None:
    cloud.lose_answer("CreateQueuedResource")
    with pytest.raises(LostAnswer):
        create(cloud)
    assert state(cloud) == "CREATING"


def test_slow_calls_take_their_time(cloud: Cloud, clock: Clock) -> None:
    cloud.slow("ListNodes", 5.0, times=1)
    before = clock.now
    cloud.call("ListNodes", {"parent": PARENT})
    assert clock.now == before + 5


def test_permissions_are_of_clients_and_of_vms(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    cloud.deny("vm", "tpu.nodes.delete")
    refusal = refused(cloud, "DeleteQueuedResource", {"name": QUEUED, "force": True}, VM)
    assert refusal.http == 403
    assert "'tpu.nodes.delete' denied" in refusal.message
    assert refusal.details[0]["reason"] == "IAM_PERMISSION_DENIED"
    cloud.deny("client", "iam.serviceAccounts.actAs")
    assert "iam.serviceAccountUser" in refused(cloud, "CreateQueuedResource", request("x")).message
    cloud.allow("client", "iam.serviceAccounts.actAs")
    create(cloud, "x")
    cloud.call("DeleteQueuedResource", {"name": QUEUED, "force": True})


def test_zones_projects_and_apis_that_are_not_there_are_refused_in_their_words(clock: Clock, room: Room) -> None:
    cloud = make(clock, room, projects=["p"])
    unknown = refused(cloud, "ListNodes", {"parent": "projects/p/locations/mars-a"})
    assert (unknown.http, unknown.message) == (403, "Location mars-a is not found or access is unauthorized.")
    assert refused(cloud, "ListNodes", {"parent": f"projects/other/locations/{ZONE}"}).http == 403
    cloud.disable()
    refusal = refused(cloud, "ListNodes", {"parent": PARENT})
    assert refusal.details[0]["reason"] == "SERVICE_DISABLED"
    cloud.enable()
    cloud.remove_zone(ZONE)
    assert "is not found or access is unauthorized" in refused(cloud, "ListNodes", {"parent": PARENT}).message


def test_listings_have_pages_and_one_for_all_zones(cloud: Cloud) -> None:
    for index in range(5):
        create(cloud, f"q{index}")
    cloud.call("CreateQueuedResource", request("far", parent=f"projects/p/locations/{OTHER}"))
    names, token = [], ""
    while True:
        page = cloud.call("ListQueuedResources", {"parent": PARENT, "pageSize": 2, "pageToken": token})
        names += [item["name"].rpartition("/")[2] for item in page["queuedResources"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert names == [f"q{index}" for index in range(5)]
    everywhere = cloud.call("ListQueuedResources", {"parent": "projects/p/locations/-"})
    assert len(everywhere["queuedResources"]) == 6
    assert refused(cloud, "ListQueuedResources", {"parent": PARENT, "pageToken": "%"}).code == 3


def test_nodes_of_their_own_come_stop_start_and_go(cloud: Cloud, clock: Clock, room: Room) -> None:
    operation = cloud.call("CreateNode", {"parent": PARENT, "nodeId": "alone", "node": node_spec()})
    clock.now += 10
    assert cloud.call("GetOperation", {"name": operation["name"]})["response"]["state"] == "READY"
    name = {"name": f"{PARENT}/nodes/alone"}
    change = {"node": {**name, "labels": {"new": "label"}}, "updateMask": "labels,description"}
    cloud.call("UpdateNode", change)
    assert cloud.call("GetNode", name)["labels"] == {"new": "label"}
    attributes = cloud.call("GetGuestAttributes", {**name, "queryPath": "kinetic/"})["guestAttributes"]
    assert attributes[0]["queryValue"]["items"] == [{"namespace": "kinetic", "key": "state", "value": "up"}]
    cloud.call("StopNode", name)
    clock.now += 1
    assert node_state(cloud, "alone") == "STOPPED" and not room.made[0].alive
    cloud.call("StartNode", name)
    clock.now += 10
    assert node_state(cloud, "alone") == "READY" and room.made[1].alive
    cloud.call("DeleteNode", name)
    clock.now += 3
    cloud.ledger.assert_nothing_left()
    cloud.stockout(ZONE, "wait")
    operation = cloud.call("CreateNode", {"parent": PARENT, "nodeId": "more", "node": node_spec()})
    clock.now += 10
    assert "no more capacity" in cloud.call("GetOperation", {"name": operation["name"]})["error"]["message"]


def test_a_reset_boots_all_hosts_again(cloud: Cloud, clock: Clock, room: Room) -> None:
    active(cloud, clock)
    cloud.call("ResetQueuedResource", {"name": QUEUED})
    assert node_state(cloud) == "RESTARTING"
    clock.now += 30
    assert node_state(cloud) == "READY"
    assert "rebooted" in room.made[0].met


def test_the_ledger_bills_ready_chips_only_and_names_what_is_left(cloud: Cloud, clock: Clock) -> None:
    active(cloud, clock)
    assert cloud.ledger.chip_seconds() == 0
    clock.now += 100
    assert cloud.ledger.chip_seconds("q") == pytest.approx(800)
    with pytest.raises(
        AssertionError, match=r"3 left in the emulated cloud:\n.*queuedResources/q\n.*nodes/q\n  VM .*q/0"
    ):
        cloud.ledger.assert_nothing_left()
    cloud.sweep()
    cloud.ledger.assert_nothing_left()
    clock.now += 100
    assert cloud.ledger.chip_seconds() == pytest.approx(800)


def test_the_same_seed_brings_the_same_faults(clock: Clock) -> None:
    def story(seed: int) -> list[str]:
        cloud = make(Clock(), Room())
        faults = random_faults(cloud, seed, rate=0.3, limit=50)
        for index in range(40):
            for method, what in (
                ("CreateQueuedResource", request(f"q{index}")),
                ("ListNodes", {"parent": PARENT}),
                ("DeleteQueuedResource", {"name": f"{PARENT}/queuedResources/q{index}", "force": True}),
            ):
                try:
                    cloud.call(method, what)
                except (Refusal, LostAnswer):
                    pass
        return faults.met

    assert story(7) == story(7)
    assert story(7) != story(8)
    assert len(story(7)) > 10
    with pytest.raises(ValueError, match="no such faults: rain"):
        random_faults(make(clock, Room()), 1, kinds=["rain"])


def test_random_faults_reach_every_kind_and_end_by_themselves(clock: Clock, room: Room) -> None:
    cloud = make(clock, room, creates_per_minute=None)
    faults = random_faults(cloud, 3, rate=0.4, limit=150, within=5.0)
    for index in range(300):
        try:
            create(cloud, f"q{index}", node=node_spec("v6e-16"))
        except (Refusal, LostAnswer):
            pass
        clock.now += 3
    assert faults.left == 0
    assert {met.partition(":")[0] for met in faults.met} == set(_kinds())
    cloud.sweep()
    cloud.ledger.assert_nothing_left()


def _kinds() -> tuple[str, ...]:
    from kinetic_orchestration.testing.model.faults import KINDS

    return KINDS
