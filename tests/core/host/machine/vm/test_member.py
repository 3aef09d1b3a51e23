"""Hosts that are members of groups of Compute Engine: slices of several TPU hosts, made by its API alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.opening import machine_of
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unanswered, Unauthorized, Ungranted
from kinetic_orchestration.host.machine.vm import awaited
from kinetic_orchestration.host.machine.vm.member import Member
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.testing.emulator import Emulator
from tests.core.host.machine.vm.test_instance import Google, google, shown
from tests.support.faults import break_hosts
from tests.support.instances import TPU_ZONE as ZONE
from tests.support.instances import group_body, policy_body, template_body
from tests.support.on_vms import Attempt, Site
from tests.support.waits import wait_until
from tests.support.wire_tasks import TASK

__all__ = ["google"]  # a fixture
PROJECT, REGION = "projects/emulated", ZONE.rpartition("-")[0]
GROUPS = f"{PROJECT}/zones/{ZONE}/instanceGroupManagers"
POLICY, TEMPLATE = (
    f"{PROJECT}/regions/{REGION}/{kind}" for kind in ("resourcePolicies/ko-p", "instanceTemplates/ko-t")
)
PARTS = ["instance template", "resource policy"]


@pytest.fixture
def place(cloud: Emulator, tmp_path: Path) -> Iterator[Place]:
    site = Site(cloud.storage, tmp_path)
    yield Place(cloud, site)
    site.close()


class Place:
    """A bucket, and Compute Engine's API as a client uses it, which asks for slices of two hosts of TPU7x each."""

    def __init__(self, cloud: Emulator, site: Site) -> None:
        self.cloud, self.site = cloud, site
        self.groups: list[str] = []

    def start(self, attempt: Attempt, **told: Any) -> None:
        orders = {"resource": f"{GROUPS}/{attempt.name}", **told}
        template = template_body()
        template["properties"]["metadata"] = {
            "items": [{"key": key, "value": value} for key, value in attempt.metadata(**orders).items()]
        }
        self.ask("POST", POLICY.rpartition("/")[0], policy_body())
        self.ask("POST", TEMPLATE.rpartition("/")[0], template)
        wait_until(lambda: self.ask("GET", POLICY)["status"] == "READY")
        self.groups = [
            attempt.name if attempt.slices == 1 else f"{attempt.name}-{number}" for number in range(attempt.slices)
        ]
        for name in self.groups:
            body = group_body(name, instanceTemplate=TEMPLATE, resourcePolicies={"workloadPolicy": POLICY})
            self.insist(GROUPS, body)

    def insist(self, path: str, body: Mapping[str, Any]) -> None:
        """Ask until the template is ready, too."""
        wait_until(lambda: "error" not in self.ask("POST", path, body))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return bootstrap.exchange(method, f"{self.cloud.rest.url}/compute/v1/{path}", sent, headers).json()

    def left(self) -> list[str]:
        return sorted(leak.split(" projects")[0] for leak in self.cloud.ledger.leaks())

    def gone(self) -> None:
        """The hosts have freed their groups, and what is left then costs nothing."""
        wait_until(lambda: not any(map(self.cloud.compute.group, self.groups)), within=60.0)
        wait_until(lambda: self.left() == PARTS, lambda: f"they leave no more: {self.left()}", within=60.0)
        for path in (TEMPLATE, POLICY):
            wait_until(lambda path=path: "error" not in self.ask("DELETE", path))  # type: ignore[misc]
        self.cloud.wait_until_empty()
        self.cloud.ledger.assert_nothing_left()


def test_the_hosts_of_a_slice_meet_and_free_its_group_with_no_right_but_on_its_names(place: Place, jobs: Any) -> None:
    place.cloud.compute.narrow("kinetic-")
    attempt = place.site.admit(jobs.topology, accelerator="v4-8")
    assert (attempt.hosts, attempt.slices) == (2, 1)
    place.start(attempt)
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.reason) == (wire.COMMITTED, "")
    found = attempt.value()
    assert (found["JAX_NUM_PROCESSES"], found["JAX_PROCESS_ID"]) == ("2", "0")
    assert [name for name in found if name.startswith("MEGASCALE_")] == []
    place.gone()
    assert attempt.log(kinds="n").startswith("this VM was made from ") and attempt.log(kinds="n").count("\n") == 1


@pytest.mark.slow
@pytest.mark.turn(4)
def test_two_slices_are_two_groups_that_are_joined(place: Place, jobs: Any) -> None:
    attempt = place.site.admit(jobs.topology, accelerator="v4-8", slices=2)
    assert (attempt.hosts, attempt.slices) == (4, 2)
    place.start(attempt)
    assert attempt.verdict().kind == wire.COMMITTED
    found = attempt.value()
    assert (found["JAX_NUM_PROCESSES"], found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("4", "2", "0")
    place.gone()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts act as on machines of their own, and are less patient than these are."""
    break_hosts(
        monkeypatch,
        """
        from kinetic_orchestration.host.attempt import opening
        from kinetic_orchestration.host.machine.vm import instance, vm
        opening.Opening.shares_machine = lambda self: False
        instance.Instance.meet = lambda *others: None
        instance.UNMADE = instance.JUDGED = 0.5
        vm.COMPANY = 1.0
        """,
    )


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_slice_waits_for_another_that_is_granted_much_later_than_hosts_of_one_come(
    place: Place, jobs: Any, apart: None
) -> None:
    place.cloud.compute.slow_grant("*-1", seconds=8.0)
    of_one_slice = {"provision": 4.0}
    attempt = place.site.admit(jobs.topology, accelerator="v4-8", slices=2, task=of_one_slice)
    place.start(attempt)
    assert attempt.verdict().reason == ""
    assert attempt.value()["MEGASCALE_NUM_SLICES"] == "2"
    assert ("instanceGroupManagers.get", "vm") in [(method, who.kind) for method, who in place.cloud.requests]
    place.gone()


def test_a_slice_ends_with_the_group_of_another_that_somebody_deletes_while_it_waits(
    place: Place, jobs: Any, apart: None, tmp_path: Path
) -> None:
    place.cloud.compute.slow_grant("*-1", seconds=600.0)
    attempt = place.site.admit(jobs.until, str(tmp_path / "never"), accelerator="v4-8", slices=2)
    place.start(attempt)
    asked = ("instanceGroupManagers.get", "vm")
    wait_until(lambda: asked in [(method, who.kind) for method, who in list(place.cloud.requests)], within=30.0)
    place.ask("DELETE", f"{GROUPS}/{attempt.name}-1")
    verdict = attempt.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert re.match(
        f"{attempt.name}-1, the group of another slice, is (being deleted|gone|not there), and is not", verdict.reason
    )
    place.gone()


@pytest.mark.parametrize("lost", ["compute.instanceGroups.delete", "compute.instances.get"])
def test_an_account_that_could_not_delete_its_group_runs_nothing_and_the_command_says_how_it_may(
    place: Place, jobs: Any, tmp_path: Path, lost: str
) -> None:
    place.cloud.deny("vm", lost)
    attempt = place.site.admit(jobs.until, str(tmp_path / "never"), accelerator="v4-8")
    place.start(attempt)
    verdict = attempt.verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert f"lacks {lost} on the group {attempt.name} that has made it, so that the slice could not" in verdict.reason
    assert "gcloud iam roles create kineticSliceHost --project=emulated --permissions=" in verdict.reason
    assert 'resource.name.extract("instanceGroupManagers/{name}").startsWith("kinetic-")' in verdict.reason
    assert attempt.log() == ""
    place.cloud.allow("vm", lost)
    place.gone()


@pytest.mark.slow
@pytest.mark.parametrize("befalls", ["restarted as a whole", "made again"])
def test_a_slice_or_a_member_that_comes_back_ends_the_attempt_and_all_groups(
    place: Place, jobs: Any, tmp_path: Path, befalls: str
) -> None:
    """Google restarts a slice or makes a member again where it does what it has not published; their orders are old."""
    place.cloud.compute.group_habits(["preempted"], recovers=True)
    attempt = place.site.admit(jobs.until, str(tmp_path / "never"), accelerator="v4-8")
    place.start(attempt)
    wait_until(lambda: "running" in attempt.log(), within=30.0)
    name = f"{attempt.name}-002"
    if befalls == "made again":
        place.cloud.compute.power_off(name)
        place.cloud.compute.preempt(name, notice=0.0)
    else:
        place.cloud.compute.host_error(name)
    verdict = attempt.verdict()
    assert verdict.reason == "this machine was restarted in mid-run (another boot id)"
    place.gone()


@pytest.mark.slow
def test_at_the_deadline_all_groups_are_deleted_though_no_agent_ever_came(place: Place, jobs: Any) -> None:
    attempt = place.site.admit(jobs.attempt, accelerator="v4-8", slices=2)
    place.site.storage.fail(f"get *{attempt.agent}", status=503, times=None)
    place.start(attempt, deadline=time.time() + 4.0)
    place.gone()
    assert place.site.records.read(names.host(attempt.job, 1, 0, "started.json")) is None


# ---- what a member asks, without a cloud -----------------------------------------------------------------------

INSTANCES = "GET /compute/v1/projects/p/zones/z/instances"
ENDPOINTS = "attributes/worker-network-endpoints"


def member(host: int, slices: int = 2, hosts: int = 4) -> Member:
    resource = "projects/p/zones/z/instanceGroupManagers/kinetic-1"
    found = machine_of(
        Assignment(
            "gs://b/prod", "job-1", 1, host, hosts, "", f"b/{host}", "/r", "/h", "", "A=b", resource, slices=slices
        )
    )
    assert isinstance(found, Member)
    return found


ON_SLICES = TASK._replace(slices=2)
GROUP_0 = "GET /compute/v1/projects/p/zones/z/instanceGroupManagers/kinetic-1-0"
WAITS = {"currentActions": {"creating": 2}, "status": {"bulkInstanceOperation": {"inProgress": True}}}
MET = {"currentActions": {"none": 2, "creating": 0}, "status": {"bulkInstanceOperation": {"inProgress": False}}}
NO_QUOTA = {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'TPUS' exceeded"}]}
REFUSED = {"status": {"bulkInstanceOperation": {"inProgress": False, "lastProgressCheck": {"error": NO_QUOTA}}}}


def test_the_addresses_of_ones_own_slice_are_in_the_metadata_and_others_are_asked_for_by_their_names(
    google: Google,
) -> None:
    google.answers = {
        ENDPOINTS: [(200, "10.0.1.8,10.0.1.2")],
        "instance/name": [(200, "kinetic-1-1-001")],
        GROUP_0: [(404, {}), (200, WAITS), (503, {}), (200, "<html>"), (200, MET)],
        f"{INSTANCES}/kinetic-1-0-001": [(200, shown("10.0.0.9"))],
        f"{INSTANCES}/kinetic-1-0-002": [(404, {}), (200, shown("10.0.0.3"))],
    }
    assert member(2).addresses(ON_SLICES) == ["10.0.0.9", "10.0.0.3", "10.0.1.8", "10.0.1.2"]
    assert not any("kinetic-1-1-" in call for call, _ in google.asked)


def test_where_the_metadata_does_not_say_all_of_a_slice_is_asked_for(google: Google) -> None:
    google.answers = {
        ENDPOINTS: [(200, "10.0.0.9")],
        "instance/name": [(200, "kinetic-1-002")],
        f"{INSTANCES}/kinetic-1-001": [(200, shown("10.0.0.9"))],
        f"{INSTANCES}/kinetic-1-002": [(200, shown("10.0.0.3"))],
    }
    assert member(1, slices=1, hosts=2).addresses(TASK) == ["10.0.0.9", "10.0.0.3"]


def test_workers_that_are_not_in_the_order_of_their_names_are_no_matter_within_a_slice(google: Google) -> None:
    google.answers = {ENDPOINTS: [(200, "10.0.0.9,10.0.0.3")], "instance/name": [(200, "kinetic-1-001")]}
    assert member(1, slices=1, hosts=2).addresses(TASK) == ["10.0.0.9", "10.0.0.3"]
    assert [call for call, _ in google.asked if "compute" in call.partition("computeMetadata")[0]] == []


def test_slices_whose_workers_are_not_in_the_order_of_their_names_are_not_joined(google: Google) -> None:
    google.answers = {ENDPOINTS: [(200, "10.0.1.8,10.0.1.2")], "instance/name": [(200, "kinetic-1-1-002")]}
    with pytest.raises(Unauthorized) as refused:
        member(2).addresses(ON_SLICES)
    assert str(refused.value).startswith("kinetic-1-1-002 is worker 0 of its slice by its metadata, and another by its")
    assert "Nothing was run. Run the job on one slice" in str(refused.value)


def test_slices_of_one_host_each_have_no_order_that_could_be_wrong(google: Google) -> None:
    google.answers = {
        ENDPOINTS: [(200, "10.0.1.8")],
        "instance/name": [(200, "kinetic-1-1-007")],
        GROUP_0: [(200, MET)],
        f"{INSTANCES}/kinetic-1-0-001": [(200, shown("10.0.0.9"))],
    }
    assert member(1, hosts=2).addresses(ON_SLICES) == ["10.0.0.9", "10.0.1.8"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(404, {})], "is not there, and is not waited for"),
        ([(200, WAITS), (404, {})], "is gone, and is not waited for"),
        ([(200, {"currentActions": {"deleting": 2}})], "is being deleted, and is not waited for"),
        ([(200, {"name": "kinetic-1-0"})], "has no VMs and asks for none, and is not waited for"),
        ([(200, REFUSED)], "was refused its VMs .*QUOTA_EXCEEDED"),
        (
            [(200, {**MET, "status": {"appliedAcceleratorTopologies": [{"state": "FAILED"}]}})],
            "topology that is FAILED",
        ),
        ([(200, {**WAITS, "description": '{"kinetic": {}, "until": 1000}'})], "for as long as it could wait for them"),
    ],
)
def test_the_group_of_another_slice_that_will_have_no_vms_is_not_waited_for(
    google: Google, monkeypatch: pytest.MonkeyPatch, answers: list[Any], said: str
) -> None:
    monkeypatch.setattr(awaited, "JUDGED", 0.2)
    monkeypatch.setattr(awaited, "UNMADE", 0.4)
    google.answers = {ENDPOINTS: [(200, "10.0.1.8,10.0.1.2")], "instance/name": [(200, "kinetic-1-1-001")]}
    google.answers[GROUP_0] = list(answers)
    expected = Ungranted if "could wait" in said else Unanswered  # which is a stockout, and no failure of a machine
    with pytest.raises(expected, match=f"^kinetic-1-0, the group of another slice, .*{said}"):
        member(2).addresses(ON_SLICES)


@pytest.mark.parametrize(
    ("until", "expected", "said"),
    [
        (1000, Ungranted, "for as long as it could wait"),
        (9_000_000_000, Unanswered, "asks for none, and is not waited"),
    ],
)
def test_a_group_that_asks_for_none_any_more_found_no_capacity_once_its_wait_is_over(
    google: Google, monkeypatch: pytest.MonkeyPatch, until: int, expected: type[Exception], said: str
) -> None:
    """Though whoever follows the job could still say so."""
    monkeypatch.setattr(awaited, "OVER", 1e12)
    monkeypatch.setattr(awaited, "UNMADE", 0.2)
    google.answers = {ENDPOINTS: [(200, "10.0.1.8,10.0.1.2")], "instance/name": [(200, "kinetic-1-1-001")]}
    google.answers[GROUP_0] = [(200, {"name": "kinetic-1-0", "description": json.dumps({"until": until})})]
    with pytest.raises(expected, match=said):
        member(2).addresses(ON_SLICES)


def test_a_group_that_may_not_be_read_is_told_with_the_role(google: Google) -> None:
    google.answers = {
        ENDPOINTS: [(200, "10.0.1.8,10.0.1.2")],
        "instance/name": [(200, "kinetic-1-1-001")],
        GROUP_0: [(403, {"error": {"message": "Required 'compute.instanceGroupManagers.get' permission"}})],
        "default/email": [(200, "sa@p.iam")],
    }
    with pytest.raises(Unauthorized) as refused:
        member(2).addresses(ON_SLICES)
    assert (
        "kinetic-1-0, the group of another slice, could not be read by the service account sa@p.iam: Required"
        in str(refused.value)
    )
    assert "gcloud iam roles create kineticSliceHost" in str(refused.value)


def test_rights_are_asked_for_where_they_can_be(google: Google) -> None:
    zone = "POST /compute/v1/projects/p/zones/z"
    google.answers = {
        "instance/name": [(200, "kinetic-1-1-002")],
        "instanceGroups/kinetic-1-1/testIamPermissions": [(200, {"permissions": ["compute.instanceGroups.delete"]})],
        "instances/kinetic-1-1-002/testIamPermissions": [(200, {"permissions": ["compute.instances.get"]})],
    }
    assert member(3)._check_rights("p") == ""
    asked = {call.removeprefix(zone): body["permissions"] for call, body in google.asked if body}
    assert asked == {
        "/instanceGroups/kinetic-1-1/testIamPermissions": ["compute.instanceGroups.delete"],
        "/instances/kinetic-1-1-002/testIamPermissions": ["compute.instances.get"],
    }
    del google.answers["instanceGroups/kinetic-1-1/testIamPermissions"]
    assert "could not be checked" in member(3)._check_rights("p")
