"""The model of the emulated Compute Engine, by a clock of its own and without processes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kinetic_orchestration.testing import Cloud, Timing
from kinetic_orchestration.testing.api_rules import compute_refusals
from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from kinetic_orchestration.testing.api_rules.refusals import LostAnswer, Refusal
from kinetic_orchestration.testing.api_servers.compute_api import ComputeApi
from kinetic_orchestration.testing.model.faults import CLIENT, Caller, random_faults
from tests.support.hosts_in_memory import Clock, Room
from tests.support.instances import IMAGES, NVIDIA, PATH, ZONE, body

pytestmark = pytest.mark.fast

Json = dict[str, Any]
ID = "0d1c5ad0-9f4b-4a63-8a3e-1f7a8c6b2d11"
DISK = f"projects/p/zones/{ZONE}/disks/ko-a"
DELETES = {"instanceTerminationAction": "DELETE"}


class World:
    """A cloud, its clock and its machines, asked as over HTTP."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.room = Clock(), Room()
        timing = Timing(provision=10.0, delete=5.0, stop=1.0)
        self.cloud = Cloud(machines=self.room, timing=timing, clock=self.clock, pause=self.clock.pause, **options)
        self.compute = self.cloud.compute
        self.api = ComputeApi(self.cloud)

    def ask(self, line: str, sent: Json | None = None, caller: Caller = CLIENT, **query: str) -> Json:
        method, _, path = line.partition(" ")
        return self.api.answer(method, f"/compute/v1/projects/p/{path}".rstrip("/"), query, sent or {}, caller)

    def insert(self, sent: Json | None = None, **more: str) -> Json:
        return self.ask(f"POST zones/{ZONE}/instances", body() if sent is None else sent, **more)

    def get(self, name: str = "ko-a") -> Json:
        return self.ask(f"GET zones/{ZONE}/instances/{name}")

    def delete(self, name: str = "ko-a", **more: str) -> Json:
        return self.ask(f"DELETE zones/{ZONE}/instances/{name}", **more)

    def operation(self, known: Json) -> Json:
        return self.ask(f"GET zones/{ZONE}/operations/{known['name']}")

    def happened(self, kind: str, name: str = "ko-a") -> list[Json]:
        filter_ = f'operationType="{kind}" AND targetLink:instances/{name}'
        return list(self.ask(f"GET zones/{ZONE}/operations", filter=filter_).get("items", ()))

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.cloud.advance()

    def leaks(self) -> list[str]:
        return [leak.replace(f"projects/p/zones/{ZONE}/", "") for leak in self.cloud.ledger.leaks()]


@pytest.fixture
def world() -> World:
    return World()


def refused(act: Any, *args: Any, **more: Any) -> ComputeRefusal:
    with pytest.raises(Refusal) as caught:
        act(*args, **more)
    found = compute_refusals.of(caught.value)
    error = found.to_http()["error"]
    assert error["code"] == found.http and error["errors"][0]["reason"] == found.reason
    return found


# ---- insert, get, delete -----------------------------------------------------------------------------------


def test_an_instance_is_provisioned_staged_and_running_and_its_operation_is_done_with_it(world: World) -> None:
    operation = world.insert()
    assert (operation["status"], operation["operationType"]) == ("RUNNING", "insert")
    assert operation["targetLink"].endswith(f"/{PATH}/ko-a")
    assert world.get()["status"] == "PROVISIONING" and world.get()["id"] == operation["targetId"]
    world.wait(5.0)
    assert world.get()["status"] == "STAGING"
    world.wait(5.0)
    assert world.get()["status"] == "RUNNING"
    assert world.operation(operation)["status"] == "DONE" and "error" not in world.operation(operation)
    assert world.leaks() == ["instance instances/ko-a", "disk disks/ko-a", "VM instances/ko-a"]
    world.delete()
    assert world.get()["status"] == "STOPPING"
    world.wait(5.0)
    assert refused(world.get).http == 404 and world.leaks() == []
    assert world.cloud.ledger.chip_seconds("ko-a") == 0.0


def test_the_same_request_id_is_the_same_operation_and_the_same_name_is_refused(world: World) -> None:
    first = world.insert(requestId=ID)
    assert first["clientOperationId"] == ID
    world.wait(10.0)
    again = world.insert(requestId=ID)
    assert (again["name"], again["status"]) == (first["name"], "DONE")
    assert len(world.room.made) == 1
    twice = refused(world.insert)
    assert (twice.http, twice.reason) == (409, "alreadyExists")
    assert twice.message == f"The resource '{PATH}/ko-a' already exists"
    assert refused(world.insert, requestId="00000000-0000-0000-0000-000000000000").http == 400


def test_a_delete_is_repeated_until_nothing_is_found(world: World) -> None:
    world.insert()
    world.wait(10.0)
    first = world.delete()
    assert world.delete()["name"] == first["name"]
    world.wait(5.0)
    gone = refused(world.delete)
    assert (gone.http, gone.reason, gone.message) == (404, "notFound", f"The resource '{PATH}/ko-a' was not found")
    assert world.operation(first)["status"] == "DONE"
    assert [one["user"] for one in world.happened("delete")] == ["user@emulated.example"]


def test_a_delete_while_the_insert_runs_ends_both(world: World) -> None:
    operation = world.insert()
    world.delete()
    assert world.operation(operation)["error"]["errors"][0]["code"] == "RESOURCE_NOT_FOUND"
    world.wait(30.0)
    assert world.leaks() == [] and world.room.made == []


def test_a_disk_that_is_not_deleted_with_its_instance_is_left(world: World) -> None:
    sent = body()
    sent["disks"][0]["autoDelete"] = False
    sent["disks"][0]["initializeParams"]["labels"] = {"ko-managed": "true"}
    world.insert(sent)
    world.wait(10.0)
    used = refused(world.ask, f"DELETE zones/{ZONE}/disks/ko-a")
    assert (used.http, used.reason) == (400, "resourceInUseByAnotherResource")
    assert used.message == f"The disk resource '{DISK}' is already being used by '{PATH}/ko-a'"
    world.delete()
    world.wait(5.0)
    assert world.leaks() == ["disk disks/ko-a"]
    assert refused(world.insert).message == f"The resource '{DISK}' already exists"
    found = world.ask("GET aggregated/disks", filter="labels.ko-managed=true")["items"][f"zones/{ZONE}"]["disks"]
    assert [(one["name"], one["sizeGb"], "users" in one) for one in found] == [("ko-a", "50", False)]
    assert found[0]["type"].endswith("/diskTypes/pd-balanced") and NVIDIA in found[0]["sourceImage"]
    operation = world.ask(f"DELETE zones/{ZONE}/disks/ko-a")
    assert world.ask(f"GET zones/{ZONE}/disks/ko-a")["status"] == "DELETING"
    world.wait(5.0)
    assert world.operation(operation)["status"] == "DONE"
    assert refused(world.ask, f"DELETE zones/{ZONE}/disks/ko-a").http == 404
    assert world.leaks() == []


def test_a_delete_can_be_stuck(world: World) -> None:
    world.insert()
    world.wait(10.0)
    world.compute.stuck_delete("ko-*")
    world.delete()
    world.wait(1000.0)
    assert world.get()["status"] == "STOPPING" and world.leaks()
    world.compute.unstick()
    assert world.leaks() == []


def test_an_operation_may_never_finish_though_its_instance_runs(world: World) -> None:
    world.compute.stuck_operations("insert", 1)
    operation = world.insert()
    other = world.insert(body("ko-b"))
    world.wait(10.0)
    assert [world.operation(one)["status"] for one in (operation, other)] == ["RUNNING", "DONE"]
    assert world.get()["status"] == "RUNNING"


def test_hosts_are_furnished_as_those_of_tpus_are(world: World) -> None:
    world.cloud.furnish({"clock_skew": 600.0, "lacking": ("tpu-env",)}, "ko-*a")
    image = f"{IMAGES}/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    for name in ("ko-a", "ko-b"):
        world.insert(body(name, "ct6e-standard-8t", disk="hyperdisk-balanced", image=image))
    world.wait(10.0)
    first, second = (made.machine for made in world.room.made)
    assert (first.clock_skew, second.clock_skew) == (600.0, 0.0)
    assert "tpu-env" not in first.attributes() and second.attributes()["accelerator-type"] == "v6e-8"


def test_what_an_instance_is_not_told_has_googles_defaults(world: World) -> None:
    sent = body(machine="n1-standard-4", image="projects/debian-cloud/global/images/family/debian-12", labels={})
    del sent["scheduling"], sent["serviceAccounts"], sent["disks"][0]["initializeParams"]["diskSizeGb"]
    del sent["disks"][0]["autoDelete"]
    world.insert(sent)
    shown = world.get()
    assert shown["scheduling"]["automaticRestart"] is True and shown["scheduling"]["onHostMaintenance"] == "MIGRATE"
    assert (shown["disks"][0]["autoDelete"], shown["disks"][0]["diskSizeGb"]) == (False, "10")
    assert "serviceAccounts" not in shown and "accessConfigs" not in shown["networkInterfaces"][0]


# ---- what is refused at once -------------------------------------------------------------------------------

WRONG = {
    "a name": ({"name": "Ko_a"}, "Must be a match of regex"),
    "a name too long": ({"name": "k" * 64}, "Must be a match of regex"),
    "a machine that there is not": ({"machineType": f"zones/{ZONE}/machineTypes/g2-standard-7"}, "does not exist in zone"),
    "a machine of another zone": ({"machineType": "zones/us-east1-c/machineTypes/g2-standard-4"}, "another zone"),
    "a v5e": ({"machineType": f"zones/{ZONE}/machineTypes/ct5lp-hightpu-4t"}, "not allowed to use the machine type"),
    "live migration": ({"scheduling": {}}, "do not support live migration"),
    "a limit without an action": (
        {"scheduling": {"onHostMaintenance": "TERMINATE", "maxRunDuration": {"seconds": "3600"}}},
        "instanceTerminationAction must be specified",
    ),
    "a limit too short": (
        {"scheduling": {"onHostMaintenance": "TERMINATE", "maxRunDuration": {"seconds": "5"}, **DELETES}},
        "between 30 seconds and 120 days",
    ),
    "a past end": (
        {"scheduling": {"onHostMaintenance": "TERMINATE", "terminationTime": "1970-01-02T00:00:00Z", **DELETES}},
        "must be in the future",
    ),
    "spot that restarts": (
        {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}}, "automaticRestart be false",
    ),
    "flex-start without an end": (
        {"scheduling": {"provisioningModel": "FLEX_START", "onHostMaintenance": "TERMINATE"}}, "maxRunDuration between",
    ),
    "a notice on demand": (
        {"scheduling": {"onHostMaintenance": "TERMINATE", "preemptionNoticeDuration": {"seconds": "120"}}}, "Spot VMs only",
    ),
    "a wait on demand": ({"params": {"requestValidForDuration": {"seconds": "600"}}}, "Flex-start VMs only"),
    "a small a3 on demand": (
        {"machineType": f"zones/{ZONE}/machineTypes/a3-highgpu-1g"}, "STANDARD is not supported for machine type",
    ),
    "a network that there is not": (
        {"networkInterfaces": [{"network": "global/networks/none"}]}, "'projects/p/global/networks/none' was not found",
    ),
    "a subnetwork of another region": (
        {"networkInterfaces": [{"subnetwork": "projects/p/regions/us-east1/subnetworks/default"}]}, "Subnetwork is in region",
    ),
    "no network": ({"networkInterfaces": []}, "At least one network interface"),
    "no boot disk": ({"disks": []}, "must have a boot disk"),
    "an accelerator that its machine has not": (
        {"guestAccelerators": [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}]},
        "does not support this accelerator",
    ),
    "an unknown field": ({"machine": "x"}, 'Unknown name "machine" at \'resource\''),
    "an unknown field below": ({"scheduling": {"maxRunTime": "1"}}, 'Unknown name "maxRunTime" at \'resource.scheduling\''),
    "an unknown value": ({"scheduling": {"provisioningModel": "CHEAP"}}, "(TYPE_ENUM), CHEAP"),
    "a text for a number": ({"guestAccelerators": [{"acceleratorCount": "many"}]}, "(TYPE_INT32), many"),
    "a label": ({"labels": {"Team": "x"}}, "Label keys and values"),
    "two keys": ({"metadata": {"items": [{"key": "a", "value": ""}] * 2}}, "duplicate keys"),
    "a large value": ({"metadata": {"items": [{"key": "a", "value": "x" * (262144 + 1)}]}}, "larger than 262144"),
    "two accounts": ({"serviceAccounts": [{"email": "a@b"}, {"email": "c@d"}]}, "At most one service account"),
    "a reservation that there is not": (
        {"reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["r"],
        }},
        "Specified reservations [r] do not exist.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused_in_googles_words_and_makes_nothing(world: World, case: str) -> None:
    change, said = WRONG[case]
    assert said in refused(world.insert, {**body(), **change}).message
    assert world.leaks() == []


@pytest.mark.parametrize(
    ("machine", "disk", "image", "said"),
    [
        ("g2-standard-4", "hyperdisk-balanced", "", "[hyperdisk-balanced] features are not compatible"),
        ("a4-highgpu-8g", "pd-balanced", "", "[pd-balanced] features are not compatible"),
        ("g4-standard-48", "pd-ssd", "", "[pd-ssd] features are not compatible"),
        ("a4-highgpu-8g", "hyperdisk-extreme", "", "[hyperdisk-extreme] features are not compatible"),
        ("g2-standard-4", "pd-balanced", f"{IMAGES}/none", "images/family/none' was not found"),
        (
            "g2-standard-4", "pd-balanced", f"{IMAGES}/ubuntu-accelerator-2404-arm64-with-nvidia-580", "architecture ARM64",
        ),
    ],
)  # fmt: skip
def test_disks_and_images_have_to_suit_their_machine(
    world: World, machine: str, disk: str, image: str, said: str
) -> None:
    sent = body(machine=machine, disk=disk, **({"image": image} if image else {}))
    assert said in refused(world.insert, sent).message


def test_a_disk_smaller_than_its_image_and_a_family_that_is_gone_are_refused(world: World) -> None:
    large = "projects/ml-images/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    assert "smaller than the image size (50 GB)" in refused(world.insert, body(image=large, gib=20)).message
    world.compute.retire("common-cu129-ubuntu-2204-nvidia-580")
    assert refused(world.insert, body(image=large)).http == 404
    path = "global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    with pytest.raises(Refusal, match="was not found"):
        world.api.answer("GET", f"/compute/v1/projects/ml-images/{path}", {}, {}, CLIENT)


def test_a_network_in_custom_mode_needs_a_subnetwork_of_the_region(world: World) -> None:
    world.compute.add_network("p", "own", "us-central1")
    only = refused(world.insert, body(networkInterfaces=[{"network": "global/networks/own"}]))
    assert "must specify a subnet if the network resource is in custom subnet mode" in only.message
    world.insert(body(networkInterfaces=[{"subnetwork": "regions/us-central1/subnetworks/own"}]))
    assert world.get()["networkInterfaces"][0]["network"].endswith("projects/p/global/networks/own")
    assert world.ask("GET regions/us-central1/subnetworks/own")["network"].endswith("/own")
    assert world.ask("GET global/networks/own")["autoCreateSubnetworks"] is False


def test_n1_machines_take_gpus_within_their_limits(world: World) -> None:
    kind = f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4"
    one = {"acceleratorType": f"projects/p/{kind}", "acceleratorCount": 1}
    world.insert(body(machine="n1-standard-4", guestAccelerators=[one]))
    assert world.get()["guestAccelerators"][0]["acceleratorType"].endswith(kind)
    many = body("ko-b", "n1-standard-64", guestAccelerators=[one])
    assert "exceeds the limit of 48" in refused(world.insert, many).message
    assert (
        "one of 1, 2, 4"
        in refused(
            world.insert, body("ko-b", "n1-standard-4", guestAccelerators=[{**one, "acceleratorCount": 3}])
        ).message
    )


# ---- what fails after HTTP 200 -----------------------------------------------------------------------------


def test_a_stockout_is_an_operation_that_fails_and_names_zones_that_have_some(world: World) -> None:
    world.compute.stockout(ZONE, "g2-*", ["us-central1-b", "us-central1-c"], reason="stockout")
    operation = world.insert()
    world.wait(10.0)
    failed = world.operation(operation)
    assert (failed["status"], failed["httpErrorStatusCode"]) == ("DONE", 503)
    [error] = failed["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    [info] = [detail["errorInfo"] for detail in error["errorDetails"] if "errorInfo" in detail]
    assert info == {
        "reason": "stockout", "domain": "compute.googleapis.com",
        "metadatas": {"vmType": "g2-standard-4", "zone": ZONE, "zonesAvailable": "us-central1-b,us-central1-c"},
    }  # fmt: skip
    assert refused(world.get).http == 404 and world.leaks() == []
    world.compute.restock(ZONE)
    world.insert(body("ko-b"))
    world.wait(10.0)
    assert world.get("ko-b")["status"] == "RUNNING"


def test_a_stockout_may_show_an_instance_that_is_stopping(world: World) -> None:
    world.compute.stockout(ZONE, shows=True, times=1)
    world.insert()
    world.wait(10.0)
    assert world.get()["status"] == "STOPPING"
    world.wait(5.0)
    assert world.leaks() == []
    world.insert()
    world.wait(10.0)
    assert world.get()["status"] == "RUNNING"


def test_a_zone_with_few_chips_is_sold_out_when_they_are_used() -> None:
    world = World(zones={ZONE: 1})
    world.insert()
    operation = world.insert(body("ko-b"))
    world.wait(10.0)
    assert world.operation(operation)["error"]["errors"][0]["code"].startswith("ZONE_RESOURCE_POOL_EXHAUSTED")


@pytest.mark.parametrize(
    ("metric", "where", "family", "machine", "model", "limit_name"),
    [
        ("NVIDIA_L4_GPUS", "us-central1", "", "g2-standard-4", "", "NVIDIA-L4-GPUS-per-project-region"),
        ("PREEMPTIBLE_NVIDIA_L4_GPUS", "us-central1", "", "g2-standard-4", "SPOT", "PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region"),
        ("GPUS_PER_GPU_FAMILY", "us-central1", "NVIDIA_H100", "a3-highgpu-8g", "", "GPUS-PER-GPU-FAMILY-per-project-region"),
        ("A2_CPUS", "us-central1", "", "a2-highgpu-1g", "", "A2-CPUS-per-project-region"),
        ("SSD_TOTAL_GB", "us-central1", "", "g2-standard-4", "", "SSD-TOTAL-GB-per-project-region"),
        ("GPUS_ALL_REGIONS", "", "", "g2-standard-4", "", "GPUS-ALL-REGIONS-per-project"),
        ("GPUS_ALL_REGIONS", "", "", "ct6e-standard-1t", "", "GPUS-ALL-REGIONS-per-project"),
    ],
)  # fmt: skip
def test_a_quota_that_is_short_is_named_by_the_operation(
    world: World, metric: str, where: str, family: str, machine: str, model: str, limit_name: str
) -> None:
    world.compute.quota(metric, 0, where, family=family)
    disk = "hyperdisk-balanced" if machine.startswith("ct") else "pd-balanced"
    image = f"{IMAGES}/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    sent = body(machine=machine, disk=disk, **({"image": image} if machine.startswith("ct") else {}))
    if model:
        sent["scheduling"]["provisioningModel"] = model
    operation = world.insert(sent)
    world.wait(10.0)
    failed = world.operation(operation)
    [error] = failed["error"]["errors"]
    assert (error["code"], failed["httpErrorStatusCode"]) == ("QUOTA_EXCEEDED", 403)
    place = f"in region {where}" if where else "globally"
    assert error["message"] == f"Quota '{metric}' exceeded.  Limit: 0.0 {place}."
    dimensions = {"region": where} if where else {"global": "global"}
    dimensions |= {"gpu_family": family} if family else {}
    assert error["errorDetails"] == [
        {"quotaInfo": {
            "metricName": f"compute.googleapis.com/{metric.lower()}", "limitName": limit_name, "limit": 0,
            "dimensions": dimensions,
        }}
    ]  # fmt: skip
    assert world.leaks() == []


def test_quotas_are_shown_but_for_those_of_the_newest_gpus(world: World) -> None:
    world.compute.quota("NVIDIA_L4_GPUS", 4, "us-central1")
    world.compute.quota("GPUS_PER_GPU_FAMILY", 8, "us-central1", family="NVIDIA_H100")
    world.insert()
    quotas = {one["metric"]: one for one in world.ask("GET regions/us-central1")["quotas"]}
    assert quotas["NVIDIA_L4_GPUS"] == {"metric": "NVIDIA_L4_GPUS", "limit": 4, "usage": 1.0}
    assert not [metric for metric in quotas if "H100" in metric or "FAMILY" in metric]
    everywhere = {one["metric"]: one["usage"] for one in world.ask("GET")["quotas"]}
    assert everywhere["GPUS_ALL_REGIONS"] == 1.0
    world.compute.quota("NVIDIA_L4_GPUS", 1, "us-central1", at="call")
    assert refused(world.insert, body("ko-b")).reason == "quotaExceeded"


def test_flex_start_waits_for_machines_and_gets_them_or_vanishes_without_a_word(world: World) -> None:
    scheduling = {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": "3600"}, **DELETES}
    asked = {
        "scheduling": {"onHostMaintenance": "TERMINATE", **scheduling},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }
    for name, seconds in (("ko-a", "7200"), ("ko-b", "600"), ("ko-c", "60")):
        world.compute.stockout(ZONE)
        operation = world.insert({**body(name), **asked, "params": {"requestValidForDuration": {"seconds": seconds}}})
        world.wait(10.0)
        if name == "ko-c":  # too short a wait is none
            assert world.operation(operation)["error"]["errors"][0]["code"].startswith("ZONE_RESOURCE_POOL")
            continue
        assert world.get(name)["status"] == "PENDING" and world.operation(operation)["status"] == "RUNNING"
    world.wait(600.0)
    assert refused(world.get, "ko-b").http == 404
    assert [("error" in one, one["status"]) for one in world.happened("insert", "ko-b")] == [(False, "DONE")]
    world.compute.restock()
    world.wait(10.0)
    assert world.get()["status"] == "RUNNING"
    world.wait(3600.0 + 10.0)
    assert refused(world.get).http == 404 and world.leaks() == []


# ---- faults by the names of methods ------------------------------------------------------------------------


def test_scripts_of_calls_know_the_methods_of_compute_engine(world: World) -> None:
    world.cloud.fail("instances.insert", 14)
    assert (refused(world.insert).http, world.leaks()) == (503, [])
    world.cloud.lose_answer("instances.insert")
    with pytest.raises(LostAnswer):
        world.insert()
    assert world.get()["name"] == "ko-a"
    world.cloud.slow("instances.get", 3.0, 1)
    before = world.clock.now
    world.get()
    assert world.clock.now - before == 3.0
    world.cloud.fail("instances.insert", 13, at="provision")
    operation = world.insert(body("ko-b"))
    world.wait(10.0)
    assert world.operation(operation)["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
    world.cloud.fail("instances.insert", at="operation", refusal=compute_refusals.not_ready(f"{PATH}/ko-c"))
    operation = world.insert(body("ko-c"))
    world.wait(10.0)
    assert world.operation(operation)["error"]["errors"][0]["code"] == "RESOURCE_NOT_READY"
    assert world.get("ko-c")["status"] == "RUNNING"
    assert world.cloud.count("instances.insert") == 4
    world.cloud.deviate("instances.get", answer=lambda found: {**found, "status": "SUSPENDED"})
    assert world.get("ko-c")["status"] == "SUSPENDED"


def test_rights_are_denied_in_googles_words_and_the_api_can_be_off(world: World) -> None:
    world.cloud.deny("client", "compute.instances.create")
    denied = refused(world.insert)
    assert (denied.http, denied.reason) == (403, "forbidden")
    assert denied.message == f"Required 'compute.instances.create' permission for 'projects/p/zones/{ZONE}'"
    world.cloud.allow("client", "compute.instances.create")
    world.cloud.deny("*", "iam.serviceAccounts.actAs")
    assert refused(world.insert).reason == "serviceAccountAccessDenied"
    world.cloud.clear_faults()
    world.cloud.disable("compute.googleapis.com")
    off = refused(world.insert)
    assert (off.http, off.reason) == (403, "accessNotConfigured") and "has not been used in project p" in off.message


@pytest.mark.parametrize(
    ("right", "resource"),
    [
        ("disks.create", f"projects/p/zones/{ZONE}/disks/ko-a"),
        ("instances.setMetadata", f"projects/p/zones/{ZONE}/instances/ko-a"),
        ("instances.setTags", f"projects/p/zones/{ZONE}/instances/ko-a"),
        ("instances.setLabels", f"projects/p/zones/{ZONE}/instances/ko-a"),
        ("instances.setServiceAccount", f"projects/p/zones/{ZONE}/instances/ko-a"),
        ("subnetworks.use", "projects/host/regions/us-central1/subnetworks/shared"),
        ("subnetworks.useExternalIp", "projects/host/regions/us-central1/subnetworks/shared"),
        ("images.useReadOnly", "projects/theirs/global/images/own"),
    ],
)
def test_what_an_instance_consists_of_needs_rights_of_its_own(world: World, right: str, resource: str) -> None:
    world.compute.add_network("host", "shared", "us-central1")
    world.compute.add_image("theirs", "own", driver="580")
    asked = body("ko-a", script="true")
    asked["tags"] = {"items": ["ours"]}
    asked["networkInterfaces"][0] = {
        "subnetwork": "projects/host/regions/us-central1/subnetworks/shared", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}],
    }  # fmt: skip
    asked["disks"][0]["initializeParams"]["sourceImage"] = "projects/theirs/global/images/family/own"
    world.cloud.deny("client", f"compute.{right}")
    denied = refused(world.insert, asked)
    assert denied.message.startswith(f"Required 'compute.{right}' permission for '{resource}")
    assert not world.compute.instances
    world.cloud.allow("client", f"compute.{right}")
    world.insert(asked)


def test_a_vm_may_do_what_its_account_may_with_its_own_name(world: World) -> None:
    for name in ("ko-a", "other"):
        world.insert(body(name))
    world.insert(body("bare", scopes=["https://www.googleapis.com/auth/devstorage.read_only"]))
    world.wait(10.0)
    vm = Caller("vm", "ko-a", 0)
    asked = {"permissions": ["compute.instances.get", "compute.instances.delete"]}
    test = "testIamPermissions"
    assert world.ask(f"POST zones/{ZONE}/instances/ko-a/{test}", asked, vm) == asked
    world.compute.narrow("ko-")
    assert "permissions" not in world.ask(f"POST zones/{ZONE}/instances/other/{test}", asked, vm)
    assert not world.compute.has_on_project("compute.instances.delete", vm)
    with pytest.raises(Refusal, match=r"Required 'compute\.instances\.delete' permission"):
        world.ask(f"DELETE zones/{ZONE}/instances/other", None, vm)
    with pytest.raises(Refusal, match="insufficient authentication scopes"):
        world.ask(f"DELETE zones/{ZONE}/instances/bare", None, Caller("vm", "bare", 0))
    world.ask(f"DELETE zones/{ZONE}/instances/ko-a", None, vm)
    [deleted] = world.happened("delete")
    assert deleted["user"].endswith("-compute@developer.gserviceaccount.com")
    world.cloud.deny("other", "compute.instances.delete")
    assert world.ask(f"POST zones/{ZONE}/instances/ko-a/{test}", asked)["permissions"] == asked["permissions"]


def test_too_many_requests_are_a_403_until_the_next_full_minute(world: World) -> None:
    world.clock.now = 1_000_020.0  # which begins a minute
    world.compute.request_rate(2)
    world.ask("GET zones")
    world.ask("GET zones")
    limited = refused(world.ask, "GET zones")
    assert (limited.http, limited.reason) == (403, "rateLimitExceeded")
    world.wait(59.0)
    assert refused(world.ask, "GET zones").reason == "rateLimitExceeded"
    world.wait(1.0)
    assert world.ask("GET zones")["items"]


def test_random_faults_meet_instances_too(world: World) -> None:
    faults = random_faults(world.cloud, 3, rate=0.4, limit=60, within=5.0)
    for number in range(40):
        try:
            world.insert(body(f"ko-{number}"))
        except (Refusal, LostAnswer):
            pass
        world.wait(10.0)
    met = " ".join(faults.met)
    assert "stockout: provision instances.insert" in met and "throttled: call instances.insert" in met
    assert "preemption" in met and "lost answer" in met
    world.cloud.faults.random = None
    world.cloud.sweep()
    assert world.leaks() == []


# ---- lists -------------------------------------------------------------------------------------------------


def test_one_list_of_all_zones_by_a_label_in_pages(world: World) -> None:
    for name in ("ko-a", "ko-b", "ko-c"):
        world.insert(body(name))
    other = "us-east1-c"
    world.ask(f"POST zones/{other}/instances", body("ko-d", zone=other))
    world.insert(body("stranger", labels={}))
    names: list[str] = []
    token = ""
    pages = 0
    while pages == 0 or token:
        found = world.ask(
            "GET aggregated/instances", filter="labels.ko-managed=true", maxResults="3", **({"pageToken": token} if token else {})
        )  # fmt: skip
        names += [one["name"] for scope in found["items"].values() for one in scope.get("instances", ())]
        empty = [scope["warning"]["code"] for scope in found["items"].values() if "warning" in scope]
        assert set(empty) == {"NO_RESULTS_ON_PAGE"}
        token = found.get("nextPageToken", "")
        pages += 1
    assert (sorted(names), pages) == (["ko-a", "ko-b", "ko-c", "ko-d"], 2)
    listed = world.ask(f"GET zones/{ZONE}/instances", filter="(labels.ko-managed:*) AND (status=PROVISIONING)")
    assert [one["name"] for one in listed["items"]] == ["ko-a", "ko-b", "ko-c"]
    assert refused(world.ask, "GET aggregated/instances", maxResults="501").http == 400
    assert (
        "Cannot bind query parameter"
        in refused(world.ask, "GET aggregated/instances", returnPartialSuccess="true").message
    )


@pytest.mark.parametrize("told", ["unreachables", "warning", "error"])
def test_a_zone_that_does_not_answer_is_told_and_is_not_empty(world: World, told: Any) -> None:
    world.insert()
    world.compute.silence(ZONE, told)
    assert refused(world.get).http == 503
    if told == "error":
        assert refused(world.ask, "GET aggregated/instances").http == 503
        return
    found = world.ask("GET aggregated/instances")
    if told == "unreachables":
        assert found["unreachables"] == [f"projects/p/zones/{ZONE}"]
    else:
        assert found["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert not any("instances" in scope for scope in found["items"].values())
    world.compute.hear(ZONE)
    assert world.get()["name"] == "ko-a"


# ---- what befalls a VM -------------------------------------------------------------------------------------

SPOT = {"provisioningModel": "SPOT", "preemptionNoticeDuration": {"seconds": "120"}}


def test_a_spot_vm_has_its_notice_and_is_deleted_or_stays_as_it_was_asked_to(world: World) -> None:
    world.insert(body(scheduling={**SPOT, **DELETES}))
    world.insert(body("ko-b", scheduling=SPOT))
    world.wait(10.0)
    for name in ("ko-a", "ko-b"):
        world.compute.preempt(name, grace=30.0)
    first, _ = world.room.made
    assert first.met == ["warned"] and world.get()["status"] == "RUNNING"
    world.wait(120.0)
    assert first.met == ["warned", "preempted 30.0"] and world.get()["status"] == "STOPPING"
    [event] = world.happened("compute.instances.preempted")
    assert (event["statusMessage"], event["user"], event["status"]) == (
        "Instance was preempted.",
        "system@google.com",
        "RUNNING",
    )
    world.wait(40.0)
    assert refused(world.get).http == 404
    assert world.get("ko-b")["status"] == "TERMINATED"  # Google's default is to stop it
    assert world.leaks()[:2] == ["instance instances/ko-b", "disk disks/ko-b"]
    [event] = world.happened("compute.instances.preempted")
    assert event["status"] == "DONE"
    world.compute.forget_operations()
    assert world.happened("compute.instances.preempted") == []
    world.cloud.sweep()


def test_a_vm_that_is_deleted_while_it_is_being_stopped_is_deleted_then(world: World) -> None:
    world.insert(body(scheduling=SPOT))
    world.wait(10.0)
    world.compute.preempt("ko-a", notice=0.0, grace=30.0)
    world.wait(1.0)
    operation = world.delete()
    assert world.operation(operation)["status"] == "RUNNING"
    world.wait(40.0)
    assert world.operation(operation)["status"] == "DONE" and world.leaks() == []


def test_a_reservation_has_machines_of_one_type_and_no_more_than_it_has(world: World) -> None:
    world.compute.add_reservation("p", ZONE, "r", "a3-highgpu-8g", 1)
    asked = {
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
            "values": ["projects/p/reservations/r"],
        },
    }  # fmt: skip
    assert "No available resources in specified reservations 'r'" in refused(world.insert, body(**asked)).message
    world.insert(body(machine="a3-highgpu-8g", **asked))
    assert world.ask(f"GET zones/{ZONE}/reservations/r")["specificReservation"]["inUseCount"] == "1"
    assert "does not have available resources" in refused(world.insert, body("ko-b", "a3-highgpu-8g", **asked)).message
    world.compute.add_reservation("p", ZONE, "r", "a3-highgpu-8g", 9, status="CREATING")
    said = refused(world.insert, body("ko-b", "a3-highgpu-8g", **asked)).message
    assert "status: CREATING, as it requires reservation to be in READY state" in said


def test_a_reservation_for_a_time_has_bound_machines_alone_and_another_has_none(world: World) -> None:
    affinity = {
        "consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
        "values": ["projects/owner/reservations/r"],
    }  # fmt: skip
    scheduling = {"onHostMaintenance": "TERMINATE", **DELETES, "maxRunDuration": {"seconds": "3600"}}
    standard, bound = (
        body(machine="a3-ultragpu-8g", disk="hyperdisk-balanced", reservationAffinity=affinity,
             scheduling={**scheduling, "provisioningModel": model})
        for model in ("STANDARD", "RESERVATION_BOUND")
    )  # fmt: skip
    for is_bound, refuses, gives in ((True, standard, bound), (False, bound, standard)):
        world.compute.add_reservation("owner", ZONE, "r", "a3-ultragpu-8g", 1, bound=is_bound)
        assert "No available resources in specified reservations 'r'" in refused(world.insert, refuses).message
        world.insert(gives)
        world.wait(10.0)
        assert world.get()["status"] == "RUNNING"
        world.delete()
        world.wait(120.0)
    assert world.leaks() == []


def test_the_notice_is_scaled_with_all_that_requests_name(world: World) -> None:
    world.compute.speed_up(60.0)
    world.insert(body(scheduling={**SPOT, **DELETES, "maxRunDuration": {"seconds": "3600"}}))
    world.wait(10.0)
    ends = world.get()["resourceStatus"]["scheduling"]["terminationTimestamp"]
    assert ends.endswith("-08:00")
    world.compute.preempt("ko-a")
    world.wait(1.9)
    assert world.get()["status"] == "RUNNING"
    world.wait(0.1)
    assert world.get()["status"] == "STOPPING"


def test_a_run_ends_when_its_time_is_over(world: World) -> None:
    world.insert(body(scheduling={"maxRunDuration": {"seconds": "600"}, **DELETES}))
    world.wait(10.0)
    world.wait(599.0)
    assert world.get()["status"] == "RUNNING"
    world.wait(1.5)
    assert world.get()["status"] == "STOPPING" and world.room.made[0].met == ["shut down"]
    world.wait(6.0)
    assert refused(world.get).http == 404 and world.leaks() == []
    assert world.happened("delete") == []


def test_a_host_error_boots_a_vm_again_unless_it_was_told_not_to(world: World) -> None:
    world.insert(body(scheduling={"automaticRestart": True}))
    world.insert(body("ko-b"))
    world.wait(10.0)
    world.compute.host_error("ko-a")
    assert world.get()["status"] == "REPAIRING" and world.room.made[0].met == ["cut"]
    world.wait(20.0)
    assert world.get()["status"] == "RUNNING" and world.room.made[0].met == ["cut", "rebooted"]
    kinds = [
        one["operationType"] for one in world.ask(f"GET zones/{ZONE}/operations", filter="targetLink:ko-a")["items"]
    ]
    assert kinds == ["compute.instances.automaticRestart", "compute.instances.hostError", "insert"]
    world.compute.host_error("ko-b", "compute.instances.terminateOnHostMaintenance")
    assert world.get("ko-b")["status"] == "TERMINATED"
    assert "disk disks/ko-b" in world.leaks()
    world.delete("ko-b")
    world.wait(5.0)
    assert refused(world.get, "ko-b").http == 404


def test_serial_output_is_read_from_where_it_was_left(world: World) -> None:
    world.insert()
    assert world.ask(f"GET zones/{ZONE}/instances/ko-a/serialPort")["contents"] == ""
    world.wait(10.0)
    found = world.ask(f"GET zones/{ZONE}/instances/ko-a/serialPort")
    assert found["contents"].endswith("startup-script: kinetic: up\n") and found["start"] == "0"
    rest = world.ask(f"GET zones/{ZONE}/instances/ko-a/serialPort", start=found["next"])
    assert (rest["contents"], rest["start"]) == ("", found["next"])
    world.compute.never_boots()
    world.insert(body("ko-b"))
    world.wait(10.0)
    assert world.get("ko-b")["status"] == "RUNNING"
    assert world.ask(f"GET zones/{ZONE}/instances/ko-b/serialPort")["contents"].endswith(
        "Booting from Hard Disk 0...\n"
    )


# ---- what is there anyway ----------------------------------------------------------------------------------


def test_labels_are_changed_with_the_fingerprint_of_those_that_are(world: World) -> None:
    world.insert()
    asked = {"labels": {"ko-managed": "true", "a": "b"}, "labelFingerprint": world.get()["labelFingerprint"]}
    operation = world.ask(f"POST zones/{ZONE}/instances/ko-a/setLabels", asked)
    assert (operation["status"], world.get()["labels"]) == ("DONE", asked["labels"])
    assert refused(world.ask, f"POST zones/{ZONE}/instances/ko-a/setLabels", asked).http == 412


def test_machines_images_zones_and_reservations_are_found(world: World) -> None:
    found = world.ask(f"GET zones/{ZONE}/machineTypes/a3-highgpu-8g")
    assert found["accelerators"] == [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": 8}]
    assert (found["guestCpus"], found["memoryMb"]) == (208, 1872 * 1024)
    world.compute.lack(ZONE, "a3-highgpu-8g")
    assert refused(world.ask, f"GET zones/{ZONE}/machineTypes/a3-highgpu-8g").http == 404
    found = world.ask(f"GET zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4")
    assert (found["name"], found["maximumCardsPerInstance"]) == ("nvidia-tesla-t4", 4)
    world.compute.lack(ZONE, "nvidia-tesla-t4")
    assert refused(world.ask, f"GET zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4").http == 404
    assert world.ask(f"GET zones/{ZONE}")["region"].endswith("/regions/us-central1")
    assert refused(world.ask, "GET zones/mars-a").http == 404
    assert "Unknown zone" in refused(world.ask, "GET zones/mars-a/instances").message
    world.compute.add_reservation("p", ZONE, "r", "a4x-highgpu-4g", 2)
    assert world.ask(f"GET zones/{ZONE}/reservations/r")["specificReservation"]["count"] == "2"
    own = world.compute.add_image("p", "mine", 30, driver="580")
    assert world.ask("GET global/images/family/mine")["diskSizeGb"] == "30"
    assert world.ask(f"GET global/images/{own.rpartition('/')[2]}")["family"] == "mine"
    with pytest.raises(Refusal, match="does not imitate POST") as other:
        world.ask(f"POST zones/{ZONE}/instances/ko-a/reset")
    assert compute_refusals.of(other.value).http == 501


# ---- senseless requests ------------------------------------------------------------------------------------

VALUES = (
    None,
    True,
    0,
    -1,
    1e9,
    "",
    "x",
    "projects/",
    "a/b/c/d/e/f",
    [],
    [None],
    [{}],
    {},
    {"seconds": "x"},
    {"a": {}},
)


def changed(dice: random.Random, value: Any) -> Any:
    """The value with one part of it, anywhere, put in place by another."""
    if dice.random() < 0.2 or not value or not isinstance(value, dict | list):
        return dice.choice(VALUES)
    if isinstance(value, list):
        at = dice.randrange(len(value))
        return [changed(dice, item) if index == at else item for index, item in enumerate(value)]
    key = dice.choice(sorted(value))
    return {**value, key: changed(dice, value[key])}


def test_whatever_is_sent_is_taken_or_refused_and_the_emulator_does_not_break(world: World) -> None:
    dice = random.Random(7)
    taken = 0
    for number in range(3000):
        whole = body(
            f"ko-{number}", scheduling={**SPOT, "maxRunDuration": {"seconds": "600"}, **DELETES},
            params={"requestValidForDuration": {"seconds": "600"}} if number % 7 == 0 else {},
            reservationAffinity={"consumeReservationType": "NO_RESERVATION", "values": []},
            shieldedInstanceConfig={"enableSecureBoot": False}, tags={"items": ["a"]}, script="x",
        )  # fmt: skip
        sent = changed(dice, whole)
        try:
            world.insert(sent if isinstance(sent, dict) else {"name": sent})
            taken += 1
        except Refusal as refusal:
            assert compute_refusals.of(refusal).http in (400, 404, 409), refusal.message
    world.wait(10.0)
    world.ask("GET aggregated/instances")
    assert 100 < taken < 2900 and len(world.room.made) == taken
    for query in (
        {"filter": "(("},
        {"maxResults": "x"},
        {"pageToken": "%%"},
        {"pageToken": "AAAA"},
        {"maxResults": "-1"},
    ):
        assert refused(world.ask, "GET aggregated/instances", **query).http == 400
    assert refused(world.ask, f"GET zones/{ZONE}/instances/ko-1/serialPort", start="x").http in (400, 404)
