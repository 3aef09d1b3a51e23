"""Groups of instances of the emulated Compute Engine, by a clock of its own and without processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kinetic_orchestration.testing.api_rules.refusals import LostAnswer, Refusal
from kinetic_orchestration.testing.model.compute import catalog
from kinetic_orchestration.testing.model.compute.groups import rules
from kinetic_orchestration.testing.model.faults import Caller, random_faults
from tests.core.testing.model.compute.test_service import World, refused
from tests.support.hosts_in_memory import InMemory
from tests.support.instances import body, group_body, policy_body, template_body

pytestmark = pytest.mark.fast

Json = dict[str, Any]
ZONE, REGION = "us-central1-c", "us-central1"
NAMES = ["ko-w-001", "ko-w-002"]


class Slices(World):
    """A cloud in which a slice of two hosts of TPU7x is asked for: 2x2x2."""

    def parts(self, topology: str = "2x2x2", **scheduling: Any) -> None:
        self.ask(f"POST regions/{REGION}/resourcePolicies", policy_body(topology=topology))
        self.ask(f"POST regions/{REGION}/instanceTemplates", template_body(**scheduling))
        self.wait(1.0)

    def make(self, *, scheduling: Json | None = None, place: str = f"zones/{ZONE}", **more: Any) -> Json:
        self.parts(**(scheduling or {}))
        return self.ask(f"POST {place}/instanceGroupManagers", group_body(**more))

    def run(self, **more: Any) -> None:
        self.make(**more)
        self.wait(30.0)
        assert self.states() == ["RUNNING", "RUNNING"]

    def group(self) -> Json:
        return self.ask(f"GET zones/{ZONE}/instanceGroupManagers/ko-w")

    def status(self) -> Json:
        return dict(self.group()["status"])

    def topology(self) -> str:
        [applied] = self.status()["appliedAcceleratorTopologies"]
        return str(applied["state"])

    def members(self, **query: str) -> list[Json]:
        path = f"POST zones/{ZONE}/instanceGroupManagers/ko-w/listManagedInstances"
        return list(self.ask(path, **query).get("managedInstances", ()))

    def states(self) -> list[str | None]:
        return [one.get("instanceStatus") for one in self.members()]

    def remove(self, what: str) -> Json:
        return self.ask(f"DELETE {what}")

    def host(self, name: str) -> InMemory:
        return next(one for one in reversed(self.room.made) if one.machine.node == name)


@pytest.fixture
def world() -> Slices:
    return Slices()


def test_all_of_a_slice_come_at_once_by_names_that_were_known_and_its_topology_is_activated(world: Slices) -> None:
    operation = world.make()
    assert operation["status"] == "RUNNING" and operation["zone"].endswith(f"/zones/{ZONE}")
    assert [(one["name"], one["currentAction"], "id" in one) for one in world.members()] == [
        (name, "CREATING", False) for name in NAMES
    ]
    world.wait(1.0)
    assert world.ask(f"GET zones/{ZONE}/operations/{operation['name']}")["status"] == "DONE"
    assert world.status()["bulkInstanceOperation"]["inProgress"] and not world.status()["isStable"]
    assert (world.states(), world.topology()) == (["PROVISIONING"] * 2, "INCOMPLETE")
    world.wait(10.0)
    assert (world.states(), world.topology()) == (["RUNNING"] * 2, "ACTIVATING")
    world.wait(5.0)
    assert world.topology() == "ACTIVE" and world.status()["isStable"]
    assert world.status()["currentInstanceStatuses"]["running"] == 2
    inserts = world.ask(f"GET zones/{ZONE}/operations", filter="operationType=insert AND targetLink:instances/ko-w")
    assert {one["user"].partition("@")[2] for one in inserts["items"]} == {"cloudservices.gserviceaccount.com"}


def test_the_hosts_of_a_slice_are_told_of_all_of_it(world: Slices) -> None:
    world.run()
    told = [world.host(name).machine.attributes() for name in NAMES]
    assert [one["accelerator-type"] for one in told] == ["v7x-16"] * 2
    assert [(one["agent-worker-number"], one["worker-id"]) for one in told] == [("0", "0"), ("1", "1")]
    assert [one["worker-network-endpoints"] for one in told] == ["127.0.0.1,127.0.0.1"] * 2
    for line in ("TOPOLOGY: '2x2x2'", "HOST_BOUNDS: '1,1,2'", "WORKER_ID: '1'", "NODE_ID: 'ko-w'"):
        assert line in told[1]["tpu-env"]
    assert told[0]["created-by"].endswith(f"/zones/{ZONE}/instanceGroupManagers/ko-w")
    assert len({world.host(name).machine.first_boot for name in NAMES}) == 1


def test_a_stockout_is_told_by_the_group_and_not_by_its_operation_and_none_of_the_slice_comes(world: Slices) -> None:
    world.compute.stockout(ZONE, "tpu7x-*", available=["us-east5-a"])
    operation = world.make()
    world.wait(100.0)
    assert "error" not in world.ask(f"GET zones/{ZONE}/operations/{operation['name']}")
    [error] = world.status()["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert [one["lastAttempt"]["errors"]["errors"][0]["code"] for one in world.members()] == [error["code"]] * 2
    assert world.room.made == [] and world.status()["currentInstanceStatuses"]["nonExistent"] == 2
    world.compute.restock()
    world.wait(30.0)
    assert world.topology() == "ACTIVE" and not any("lastAttempt" in one for one in world.members())


@pytest.mark.slow
@pytest.mark.turn(2)
def test_flex_start_waits_without_end_until_it_is_granted_or_given_up(world: Slices) -> None:
    world.compute.stockout(ZONE)
    flex = {
        "provisioningModel": "FLEX_START",
        "maxRunDuration": {"seconds": "3600"},
        "instanceTerminationAction": "DELETE",
    }
    world.make(scheduling=flex)
    world.wait(3 * 86400.0)
    assert world.status()["currentInstanceStatuses"]["pending"] == 2 and world.states() == [None, None]
    world.remove(f"zones/{ZONE}/instanceGroupManagers/ko-w")
    world.wait(10.0)
    assert [leak.split(" projects")[0] for leak in world.leaks()] == ["resource policy", "instance template"]


def test_a_zone_without_room_for_all_gives_none() -> None:
    world = Slices(zones={ZONE: 7})
    world.make()
    world.wait(30.0)
    assert world.states() == [None, None] and world.room.made == []


def test_a_quota_counts_all_of_a_slice(world: Slices) -> None:
    world.compute.quota("GPUS_ALL_REGIONS", 7)
    world.make()
    world.wait(30.0)
    [error] = world.status()["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED" and world.states() == [None, None]


def test_a_template_proves_nothing_and_the_group_tells_what_is_wrong_with_it(world: Slices) -> None:
    world.ask("POST global/instanceTemplates", template_body(machine="tpu9-standard-4t"))
    world.wait(1.0)
    sent = group_body(instanceTemplate="global/instanceTemplates/ko-t")
    del sent["resourcePolicies"]
    world.ask(f"POST zones/{ZONE}/instanceGroupManagers", sent)
    world.wait(10.0)
    [error] = world.members()[0]["lastAttempt"]["errors"]["errors"]
    assert error["code"] == "INVALID_FIELD_VALUE" and "does not exist in zone" in error["message"]


def test_a_group_is_deleted_before_its_template_and_its_policy_which_are_in_use_for_a_while(world: Slices) -> None:
    world.run()
    kept = [f"regions/{REGION}/instanceTemplates/ko-t", f"regions/{REGION}/resourcePolicies/ko-p"]
    for what in kept:
        told = refused(world.remove, what)
        assert (told.reason, "is already being used by" in told.message) == ("resourceInUseByAnotherResource", True)
    first = world.remove(f"zones/{ZONE}/instanceGroupManagers/ko-w")
    assert world.remove(f"zones/{ZONE}/instanceGroupManagers/ko-w")["name"] == first["name"]
    assert [one["currentAction"] for one in world.members()] == ["DELETING"] * 2
    world.wait(5.0)
    assert refused(world.group).http == 404
    assert world.ask(f"GET zones/{ZONE}/operations/{first['name']}")["status"] == "DONE"
    assert "already being used" in refused(world.remove, kept[0]).message
    world.wait(5.0)
    for what in kept:
        world.remove(what)
        world.wait(5.0)
        assert refused(world.remove, what).http == 404
    assert world.leaks() == []


def test_a_group_that_is_gone_holds_its_template_as_long_as_a_test_wants_it(world: Slices) -> None:
    world.compute.linger(100.0)
    world.run()
    world.remove(f"zones/{ZONE}/instanceGroupManagers/ko-w")
    world.wait(90.0)
    assert refused(world.group).http == 404
    assert "already being used" in refused(world.remove, f"regions/{REGION}/instanceTemplates/ko-t").message
    world.wait(20.0)
    world.remove(f"regions/{REGION}/instanceTemplates/ko-t")


@pytest.mark.parametrize("repairs", [True, False])
def test_a_deleted_member_is_made_again_unless_the_group_is_to_do_nothing(world: Slices, repairs: bool) -> None:
    world.run(repairs=repairs)
    world.ask(f"DELETE zones/{ZONE}/instances/ko-w-002")
    world.wait(6.0)
    assert world.topology() == "INCOMPLETE"
    world.wait(60.0)
    assert world.states() == (["RUNNING"] * 2 if repairs else ["RUNNING", None])
    assert world.topology() == ("ACTIVE" if repairs else "INCOMPLETE")
    assert len(world.room.made) == (3 if repairs else 2)


def test_whether_a_member_is_made_again_under_do_nothing_is_a_choice_of_the_test(world: Slices) -> None:
    world.compute.group_habits(["preempted"])
    world.run(scheduling={"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"})
    world.ask(f"DELETE zones/{ZONE}/instances/ko-w-001")
    world.compute.preempt("ko-w-002")
    world.wait(60.0)
    assert world.states() == [None, "RUNNING"]


def test_a_host_error_restarts_a_whole_slice_unless_its_instances_do_not_restart(world: Slices) -> None:
    world.run(scheduling={"automaticRestart": True})
    world.compute.host_error("ko-w-002")
    assert world.states() == ["REPAIRING"] * 2 and world.topology() == "INCOMPLETE"
    world.wait(60.0)
    assert (world.states(), world.topology()) == (["RUNNING"] * 2, "ACTIVE")
    assert [world.host(name).met for name in NAMES] == [["cut", "rebooted"]] * 2


def test_a_host_error_ends_one_host_of_a_slice_that_does_not_restart(world: Slices) -> None:
    world.run()
    world.compute.host_error("ko-w-002")
    world.wait(60.0)
    assert (world.states(), world.topology()) == (["RUNNING", "TERMINATED"], "INCOMPLETE")


def test_a_run_that_may_not_last_ends_all_and_starts_no_other(world: Slices) -> None:
    world.run(scheduling={"maxRunDuration": {"seconds": "600"}, "instanceTerminationAction": "DELETE"})
    assert all("scheduling" in one for one in world.members())
    world.wait(700.0)
    assert world.states() == [None, None] and len(world.room.made) == 2


def test_a_topology_can_be_degraded_or_fail(world: Slices) -> None:
    world.run()
    world.compute.topology("ko-w", "FAILED")
    [applied] = world.status()["appliedAcceleratorTopologies"]
    assert applied["state"] == "FAILED" and "is FAILED" in applied["stateDetails"]["error"]["errors"][0]["message"]
    world.compute.topology("ko-w", "ACTIVE_DEGRADED")
    assert world.topology() == "ACTIVE_DEGRADED"
    world.compute.topology("ko-w", None)
    assert world.topology() == "ACTIVE"


def test_a_grant_can_be_slow_and_a_member_can_fail(world: Slices) -> None:
    world.compute.slow_grant("ko-*", 50.0)
    world.compute.fail_member("ko-w-002")
    world.make()
    world.wait(40.0)
    assert "error" not in world.status()["bulkInstanceOperation"]["lastProgressCheck"] and world.states() == [
        None,
        None,
    ]
    world.wait(11.5)
    assert ["lastAttempt" in one for one in world.members()] == [False, True] and world.states() == [None, None]
    world.wait(30.0)
    assert world.topology() == "ACTIVE"


def test_a_stuck_delete_keeps_the_group(world: Slices) -> None:
    world.run()
    world.compute.stuck_delete("ko-w*")
    world.remove(f"zones/{ZONE}/instanceGroupManagers/ko-w")
    world.wait(1000.0)
    assert world.states() == ["STOPPING"] * 2
    world.compute.unstick()
    assert refused(world.group).http == 404


def test_a_group_of_a_region_names_its_zone_and_has_operations_of_the_region(world: Slices) -> None:
    shape = {
        "distributionPolicy": {"zones": [{"zone": f"zones/{ZONE}"}], "targetShape": "ANY_SINGLE_ZONE"},
        "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
    }
    operation = world.make(place=f"regions/{REGION}", **shape)
    world.wait(30.0)
    done = world.ask(f"GET regions/{REGION}/operations/{operation['name']}")
    assert done["status"] == "DONE" and done["region"].endswith(f"/{REGION}") and "zone" not in done
    scopes = world.ask("GET aggregated/instanceGroupManagers")["items"]
    assert [one["name"] for one in scopes[f"regions/{REGION}"]["instanceGroupManagers"]] == ["ko-w"]
    assert scopes[f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert world.ask(f"GET zones/{ZONE}/instances")["items"][0]["name"] == "ko-w-001"


WRONG = {
    "a topology that there is not": ({"topology": "2x2x3"}, {}, "has the accelerator topologies: 2x2x1, 2x2x2"),
    "another number of hosts": ({}, {"targetSize": 3}, "The accelerator topology 2x2x2 of tpu7x-standard-4t has 2"),
    "one by one": ({}, {"targetSizePolicy": {"mode": "INDIVIDUAL"}}, "groups whose instances come one by one"),
    "no template": ({}, {"instanceTemplate": "global/instanceTemplates/none"}, "instanceTemplates/none' was not found"),
    "no policy": ({}, {"resourcePolicies": {"workloadPolicy": f"regions/{REGION}/resourcePolicies/x"}}, "was not found"),
    "a base name": ({}, {"baseInstanceName": "ko_w"}, "Must be a match of regex"),
    "too few digits": ({}, {"baseInstanceName": "ko-w-#[9]"}, "digits are too few"),
    "an unknown field": ({}, {"targetsize": 2}, 'Unknown name "targetsize" at \'resource\''),
    "an unknown action": ({}, {"instanceLifecyclePolicy": {"defaultActionOnFailure": "NOTHING"}}, "(TYPE_ENUM), NOTHING"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_group_is_refused_and_makes_nothing(world: Slices, case: str) -> None:
    parts, change, said = WRONG[case]
    world.parts(**parts)
    assert said in refused(world.ask, f"POST zones/{ZONE}/instanceGroupManagers", {**group_body(), **change}).message
    assert world.cloud.ledger.count("created", "instance group") == 0


def test_a_policy_or_a_template_that_is_not_ready_cannot_be_used_yet(world: Slices) -> None:
    world.ask(f"POST regions/{REGION}/resourcePolicies", policy_body())
    world.ask(f"POST regions/{REGION}/instanceTemplates", template_body())
    told = refused(world.ask, f"POST zones/{ZONE}/instanceGroupManagers", group_body())
    assert told.reason == "resourceNotReady"
    twice = refused(world.ask, f"POST regions/{REGION}/resourcePolicies", policy_body())
    assert twice.reason == "alreadyExists"


def test_a_placement_policy_is_in_use_by_an_instance(world: Slices) -> None:
    sent = {"name": "ko-c", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    world.ask(f"POST regions/{REGION}/resourcePolicies", sent)
    world.wait(1.0)
    world.insert(body(resourcePolicies=[f"projects/p/regions/{REGION}/resourcePolicies/ko-c"]))
    world.wait(10.0)
    assert "instances/ko-a'" in refused(world.remove, f"regions/{REGION}/resourcePolicies/ko-c").message
    world.delete()
    world.wait(5.0)
    world.remove(f"regions/{REGION}/resourcePolicies/ko-c")
    world.wait(5.0)
    assert world.leaks() == []


def test_a_group_can_be_emptied_and_filled_and_its_list_has_pages(world: Slices) -> None:
    world.run(listManagedInstancesResults="PAGINATED")
    first = world.ask(f"POST zones/{ZONE}/instanceGroupManagers/ko-w/listManagedInstances", maxResults="1")
    assert [one["name"] for one in first["managedInstances"]] == NAMES[:1]
    assert [one["name"] for one in world.members(pageToken=first["nextPageToken"])] == NAMES[1:]
    path = f"POST zones/{ZONE}/instanceGroupManagers/ko-w/resize"
    assert "has 2 instance(s)" in refused(world.ask, path, size="1").message
    world.ask(path, size="0")
    world.wait(10.0)
    assert world.members() == [] and world.group()["targetSize"] == 0
    world.ask(path, size="2")
    world.wait(30.0)
    assert world.states() == ["RUNNING"] * 2


def test_an_answer_can_be_lost_and_the_same_request_id_is_the_same_group(world: Slices) -> None:
    world.parts()
    world.cloud.lose_answer("instanceGroupManagers.insert")
    ident = "0d1c5ad0-9f4b-4a63-8a3e-1f7a8c6b2d11"
    with pytest.raises(LostAnswer):
        world.ask(f"POST zones/{ZONE}/instanceGroupManagers", group_body(), requestId=ident)
    again = world.ask(f"POST zones/{ZONE}/instanceGroupManagers", group_body(), requestId=ident)
    assert again["clientOperationId"] == ident
    world.wait(30.0)
    assert world.states() == ["RUNNING"] * 2 and world.cloud.ledger.count("created", "instance group") == 1


def test_rights_on_groups_are_asked_for_one_by_one(world: Slices) -> None:
    world.run()
    for permission in ("instanceGroups.delete", "instanceGroupManagers.delete"):
        world.cloud.deny("client", f"compute.{permission}")
        told = refused(world.remove, f"zones/{ZONE}/instanceGroupManagers/ko-w")
        assert f"Required 'compute.{permission}' permission" in told.message
        world.cloud.clear_faults()
    world.compute.narrow("ko-")
    vm = Caller("vm", "ko-w-001")
    world.ask(f"DELETE zones/{ZONE}/instanceGroupManagers/ko-w", caller=vm)
    world.wait(5.0)
    assert refused(world.group).http == 404


def test_a_reservation_has_room_for_all_of_a_slice_or_for_none(world: Slices) -> None:
    world.compute.add_reservation("p", ZONE, "r", "tpu7x-standard-4t", 1, bound=True)
    world.parts()
    sent = template_body("ko-r", provisioningModel="RESERVATION_BOUND")
    sent["properties"]["reservationAffinity"] = {
        "consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["r"],
    }  # fmt: skip
    world.ask("POST global/instanceTemplates", sent)
    world.wait(1.0)
    world.ask(f"POST zones/{ZONE}/instanceGroupManagers", group_body(instanceTemplate="global/instanceTemplates/ko-r"))
    world.wait(30.0)
    assert "does not have available resources" in world.members()[1]["lastAttempt"]["errors"]["errors"][0]["message"]
    assert world.room.made == []
    world.compute.add_reservation("p", ZONE, "r", "tpu7x-standard-4t", 2, bound=True)
    world.wait(30.0)
    assert world.topology() == "ACTIVE"


KEPT = ("instanceTemplates", "resourcePolicies")


def names_in(found: Json, kind: str) -> dict[str, list[str]]:
    """The names in an aggregated list, by scope."""
    return {scope: [one["name"] for one in told[kind]] for scope, told in found["items"].items() if kind in told}


def test_templates_and_policies_of_all_regions_are_listed_with_their_descriptions(world: Slices) -> None:
    described = '{"kinetic": {"kinetic-job": "job-1"}}'
    for name in ("ko-1", "ko-2", "other"):
        world.ask(f"POST regions/{REGION}/instanceTemplates", {**template_body(name), "description": described})
        world.ask(f"POST regions/{REGION}/resourcePolicies", {**policy_body(name), "description": described})
    world.ask("POST global/instanceTemplates", template_body("ko-g"))
    here = {f"regions/{REGION}": ["ko-1", "ko-2"]}
    for kind in KEPT:
        found = world.ask(f"GET aggregated/{kind}", filter="name:ko-")
        assert names_in(found, kind) == here | ({"global": ["ko-g"]} if kind == "instanceTemplates" else {})
        assert found["items"][f"regions/{REGION}"][kind][0]["description"] == described
        empty = {told["warning"]["code"] for told in found["items"].values() if "warning" in told}
        assert empty <= {"NO_RESULTS_ON_PAGE"}
    first = world.ask("GET aggregated/resourcePolicies", maxResults="2")
    rest = world.ask("GET aggregated/resourcePolicies", maxResults="2", pageToken=first["nextPageToken"])
    assert names_in(first, KEPT[1]) | names_in(rest, KEPT[1]) == {f"regions/{REGION}": ["other"]}
    assert world.ask("GET aggregated/instanceTemplates", filter="description:job-2")["items"]["global"]["warning"]


@pytest.mark.parametrize("told", ["unreachables", "warning", "error"])
@pytest.mark.parametrize("kind", KEPT)
def test_a_region_that_does_not_answer_is_told_and_is_not_empty(world: Slices, kind: str, told: Any) -> None:
    world.parts()
    world.compute.silence(REGION, told)
    assert refused(world.ask, f"GET regions/{REGION}/{kind}").http == 503
    if told == "error":
        assert refused(world.ask, f"GET aggregated/{kind}").http == 503
    else:
        found = world.ask(f"GET aggregated/{kind}")
        code = found["items"][f"regions/{REGION}"].get("warning", {}).get("code")
        assert not names_in(found, kind)
        if told == "unreachables" and kind == "resourcePolicies":
            assert (found["unreachables"], code) == ([f"projects/p/regions/{REGION}"], "NO_RESULTS_ON_PAGE")
        else:
            assert (found.get("unreachables"), code) == (None, "UNREACHABLE")
    world.compute.hear(REGION)
    world.compute.silence(ZONE, told)
    assert REGION in str(names_in(world.ask(f"GET aggregated/{kind}"), kind)), "a zone is not its region"


def test_lists_can_lag_behind(world: Slices) -> None:
    world.compute.lag(60.0)
    world.run()
    lists = (*KEPT, "instances", "instanceGroupManagers", "disks")
    assert not any(names_in(world.ask(f"GET aggregated/{kind}"), kind) for kind in lists)
    assert world.group()["name"] == "ko-w"
    world.wait(60.0)
    assert all(names_in(world.ask(f"GET aggregated/{kind}"), kind) for kind in lists)


def test_of_a_group_itself_rights_cannot_be_asked_for_but_of_its_instance_group_they_can(world: Slices) -> None:
    world.run()
    world.compute.narrow("ko-")
    path = f"POST zones/{ZONE}/instanceGroups/ko-w/testIamPermissions"
    vm = Caller("vm", "ko-w-001")
    wanted = {"permissions": ["compute.instanceGroups.delete"]}
    assert world.ask(path, wanted, caller=vm) == wanted
    world.cloud.deny("vm", "compute.instanceGroups.delete")
    assert world.ask(path, wanted, caller=vm) == {}
    others = {"permissions": ["compute.instanceGroupManagers.delete"]}
    assert "is not valid for this resource" in refused(world.ask, path, others).message
    assert refused(world.ask, path.replace("instanceGroups", "instanceGroupManagers"), wanted).http == 501


def test_a_sweep_leaves_nothing(world: Slices) -> None:
    world.run()
    world.cloud.sweep()
    assert world.leaks() == []


@pytest.mark.parametrize("seed", range(10))
def test_under_random_faults_a_group_that_is_deleted_until_it_is_gone_leaves_nothing(seed: int) -> None:
    world = Slices()
    random_faults(world.cloud, seed, rate=0.3, limit=8, within=20.0)

    def insist(line: str, sent: Json | None = None) -> None:
        for _ in range(40):
            try:
                world.ask(line, sent)
            except LostAnswer:
                pass
            except Exception as error:
                if getattr(error, "http", 0) in (404, 409):
                    return
            else:
                if line.startswith("POST"):
                    return
            world.wait(6.0)
        raise AssertionError(line)

    insist(f"POST regions/{REGION}/resourcePolicies", policy_body())
    insist(f"POST regions/{REGION}/instanceTemplates", template_body())
    insist(f"POST zones/{ZONE}/instanceGroupManagers", group_body())
    world.wait(60.0)
    parts = (f"zones/{ZONE}/instanceGroupManagers/ko-w", f"regions/{REGION}/instanceTemplates/ko-t")
    for what in (*parts, f"regions/{REGION}/resourcePolicies/ko-p"):
        insist(f"DELETE {what}")
    assert world.leaks() == []


def test_names_begin_with_the_number_that_is_asked_for() -> None:
    def bits(_: int) -> int:
        return next(numbers)

    numbers: Any = iter(range(100))
    assert rules.names("x-w-###[1]", 2, bits) == ["x-w-001", "x-w-002"]
    assert rules.names("x-w-##[0]", 2, bits) == ["x-w-00", "x-w-01"]
    assert rules.names("vm-###", 1, bits) == ["vm-001"]
    drawn = rules.names("vm", 2, bits)
    assert len(set(drawn)) == 2 and all(len(name) == len("vm-0000") for name in drawn)


@pytest.mark.parametrize(
    ("machine", "topology", "hosts"),
    [
        ("tpu7x-standard-4t", "2x2x2", 2), ("tpu7x-standard-4t", "4x4x4", 16), ("tpu7x-standard-4t", "2x4x2", 0),
        ("ct6e-standard-4t", "4x4", 4), ("ct6e-standard-4t", "2x4", 0), ("ct6e-standard-8t", "2x4", 1),
        ("ct5p-hightpu-4t", "2x2x4", 4), ("a4x-highgpu-4g", "1x72", 18), ("g2-standard-4", "2x2", 0),
    ],
)  # fmt: skip
def test_a_topology_is_of_so_many_machines(machine: str, topology: str, hosts: int) -> None:
    assert catalog.hosts(catalog.MACHINES[machine], topology) == hosts
    described: Iterable[str] = catalog.TOPOLOGIES
    assert all(name in catalog.MACHINES for name in described)


def _changed(sent: Any) -> Iterable[Any]:
    """Return a request with something senseless in place of one of its values."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            yield {name: one for name, one in sent.items() if name != key}
            yield from ({**sent, key: other} for other in (None, {}, [], "", "x", -1, 5, [{}], [None], ["x"]))
            yield from ({**sent, key: other} for other in _changed(value))
    elif isinstance(sent, list):
        for index, value in enumerate(sent):
            yield from ([*sent[:index], other, *sent[index + 1 :]] for other in _changed(value))


@pytest.mark.parametrize("what", ["policy", "template", "group"])
def test_senseless_requests_are_refused_or_wait_and_nothing_breaks(what: str) -> None:
    kinds = {
        "policy": (f"regions/{REGION}/resourcePolicies", policy_body("ko-q")),
        "template": (f"regions/{REGION}/instanceTemplates", template_body("ko-u")),
        "group": (f"zones/{ZONE}/instanceGroupManagers", group_body()),
    }
    path, sent = kinds[what]
    for changed in _changed(sent):
        world = Slices()
        world.parts()
        try:
            world.ask(f"POST {path}", changed)
        except Refusal as refusal:
            assert refusal.http in (400, 404, 501), changed
            continue
        world.wait(5.0)
        name = changed["name"]
        if what == "template":
            link = f"{path}/{name}"
            world.ask(
                f"POST zones/{ZONE}/instanceGroupManagers", group_body(instanceTemplate=link, resourcePolicies={})
            )
        world.wait(30.0)
        world.ask(f"GET {path}/{name}")
        if what != "policy":
            world.members() if what == "template" else world.ask("GET aggregated/instanceGroupManagers")
        world.cloud.sweep()
        assert world.leaks() == []
