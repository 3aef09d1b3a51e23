"""Tests how slices of several hosts are made, seen and freed, against the emulated Compute Engine: each is a group of VMs, of
a template and by a policy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import BackendError, JobCancelled
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.cleanup.reaper import REMOVED, UNREAD, WAITS, reap
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.price_list import DISKS, HOURS
from kinetic_orchestration.plan.hardware.prices import Price, price
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    WOUNDED,
    Freed,
    Intent,
    Limits,
    Observation,
    Past,
    Plan,
    Staged,
)
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.compute import request, slices, states
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.compute.client import Instances
from kinetic_orchestration.platforms.google.compute.verbs import look, make
from kinetic_orchestration.platforms.google.vms import request_id
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from tests.support.jobs import WITHIN
from tests.support.wire_tasks import in_spec

JOB = "job-000000000001"
ZONES = ("us-central1-a", "us-east5-b")
MADE = ("resource policy", "instance template", "instance group")
DAY = 86400.0


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01,))
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries._throttled", {})
    with Emulator(tmp_path / "cloud", zones=ZONES, hosts=False) as running:
        for name, value in running.environ(backend="compute", deployment="prod").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("KINETIC_ZONES", ",".join(ZONES))
        running.compute.retry_seconds = 0.05
        yield running


def backend() -> ComputeBackend:
    return ComputeBackend(settings.load())


def planned(accelerator: str = "v6e-16", slices: int = 1, limits: Limits | None = None, **options: Any) -> Plan:
    own = {"num_slices": slices, **({"flex_start": True} if options.pop("flex_start", False) else {})}
    asked = Options(accelerator=accelerator, backend="compute", cloud=Compute(**own), **options)
    return replace(make_plan(JobSpec("train", asked), settings.load()), limits=limits or Limits(), zone_patience=0.0)


def submission(plan: Plan, placement: Mapping[str, Any], job: str = JOB, created: float = 0.0) -> Submission:
    staged = Staged(None, "", "", (), (), (), (), None, "")
    intent = Intent(1, "0" * 16, dict(placement), 2_000_000_000.0, created)
    return Submission(plan, staged, job, "0" * 64, intent, {})


def asked_for(plan: Plan | None = None, job: str = JOB, created: float = 0.0) -> tuple[ComputeBackend, Submission]:
    """A backend, and an attempt that it is to make."""
    one, plan = backend(), plan or planned()
    return one, submission(plan, one.place(plan, job, 1), job, created)


def submitted(plan: Plan | None = None, job: str = JOB, created: float = 0.0) -> tuple[ComputeBackend, dict[str, Any]]:
    one, asked = asked_for(plan, job, created)
    assert one.submit(asked) == ""
    return one, asked.intent.placement


def running(cloud: Emulator, plan: Plan | None = None, job: str = JOB) -> tuple[ComputeBackend, dict[str, Any]]:
    """A backend, and the placement of slices that run."""
    one, placement = submitted(plan, job)
    seen(cloud, one, placement, PRESENT)
    return one, placement


def seen(cloud: Emulator, one: ComputeBackend, placement: Mapping[str, Any], *wanted: str) -> Observation:
    """Wait until a placement is in one of these states."""
    found: list[Observation] = []

    def is_so() -> bool:
        found[:] = one.observe([placement])
        return found[0].state in wanted

    cloud.wait_until(is_so, WITHIN, str(wanted))
    return found[0]


def free(cloud: Emulator, one: ComputeBackend, placement: Mapping[str, Any]) -> None:
    cloud.wait_until(lambda: one.release(placement) is Freed.DONE, WITHIN)
    cloud.ledger.assert_nothing_left()


def inserts(asked: Submission) -> list[make.Insert]:
    return [insert for stage in make.stages(asked) for insert in stage]


def since(cloud: Emulator, number: int) -> list[str]:
    return [method for method, _ in list(cloud.requests)[number:]]


# ---- submit


def test_a_slice_is_made_of_a_policy_a_template_and_a_group_and_runs(cloud: Emulator) -> None:
    one, asked = asked_for()
    placement = asked.intent.placement
    assert one.observe([placement])[0].state == ABSENT
    assert one.submit(asked) == ""
    told = seen(cloud, one, placement, PRESENT)
    assert told.charged > 0 and f"{placement['name']}-001" in told.hint
    assert [cloud.ledger.count("created", kind) for kind in MADE] == [1, 1, 1]
    assert {path.rpartition("/")[2] for path in cloud.compute.instances} == set(request.members_of(placement))
    free(cloud, one, placement)
    assert one.observe([placement])[0].state == ABSENT


@pytest.mark.parametrize("made", range(5))
@pytest.mark.parametrize("forgets", [False, True], ids=["in time", "later"])
def test_another_process_finishes_what_one_that_was_killed_at_any_point_had_begun(
    cloud: Emulator, made: int, forgets: bool
) -> None:
    """Also once the API has forgotten the ids of the requests, when each name is taken."""
    one, asked = asked_for(planned("v6e-16", slices=2))
    api = Instances(settings.load())
    for insert in inserts(asked)[:made]:
        api.ended(api.insert(insert.collection, insert.body, request_id(asked.intent, f"{insert.kind}/{insert.name}")))
    if forgets:
        cloud.compute._requests.clear()
    other = backend()
    assert [other.submit(asked), other.submit(asked), one.submit(asked)] == [""] * 3
    seen(cloud, other, asked.intent.placement, PRESENT)
    assert [cloud.ledger.count("created", kind) for kind in MADE] == [1, 1, 2]
    free(cloud, other, asked.intent.placement)


@pytest.mark.parametrize("kind", [slices.POLICIES, slices.TEMPLATES, slices.GROUPS])
def test_what_somebody_else_has_made_by_the_same_name_is_refused_and_left_alone(cloud: Emulator, kind: str) -> None:
    one, asked = asked_for()
    api, placement = Instances(settings.load()), asked.intent.placement
    for insert in inserts(asked):
        body = {**insert.body, **({"description": "by hand"} if insert.kind == kind else {})}
        api.ended(api.insert(insert.collection, body, request_id(asked.intent, f"of theirs/{insert.kind}")))
        if insert.kind == kind:
            break
    with pytest.raises(BackendError) as caught:
        one.submit(asked)
    assert caught.value.cause == wire.CONFIGURATION
    said = str(caught.value)
    assert f"/{kind}/{placement['name']} exists already and belongs to somebody else, without our labels" in said
    assert "look at it with gcloud compute " in said
    in_use = Freed.PARTLY if kind == slices.GROUPS else Freed.DONE  # as their group is made of our template
    cloud.wait_until(lambda: one.release(placement) is in_use, WITHIN)
    assert any(f"/{kind}/" in item for item in cloud.ledger.leaks())


def test_a_template_that_cannot_be_made_ends_the_attempt_behind_a_200(cloud: Emulator) -> None:
    cloud.fail(
        "regionInstanceTemplates.insert", at="provision", refusal=refusals.quota("INSTANCE_TEMPLATES", 0, "", {}, "")
    )
    one, asked = asked_for()
    with pytest.raises(BackendError, match="INSTANCE_TEMPLATES") as caught:
        one.submit(asked)
    assert caught.value.cause == wire.QUOTA
    free(cloud, one, asked.intent.placement)


@pytest.mark.parametrize("method", ["resourcePolicies", "regionInstanceTemplates", "instanceGroupManagers"])
def test_a_lost_answer_leads_to_the_same_slice(cloud: Emulator, method: str) -> None:
    cloud.lose_answer(f"{method}.insert", times=2)
    one, asked = asked_for()
    cloud.wait_until(lambda: one.submit(asked) == "", WITHIN)
    seen(cloud, one, asked.intent.placement, PRESENT)
    assert [cloud.ledger.count("created", kind) for kind in MADE] == [1, 1, 1]
    free(cloud, one, asked.intent.placement)


@pytest.mark.parametrize(
    "right",
    [
        "compute.resourcePolicies.create", "compute.instanceTemplates.create", "compute.instanceGroupManagers.create",
        "compute.resourcePolicies.use", "compute.instanceTemplates.useReadOnly",
    ],
)  # fmt: skip
def test_a_right_that_is_missing_at_the_create_call_is_named(cloud: Emulator, right: str) -> None:
    cloud.deny("client", right)
    one, asked = asked_for()
    with pytest.raises(BackendError, match=right) as caught:
        one.submit(asked)
    assert caught.value.cause == wire.CONFIGURATION
    free(cloud, one, asked.intent.placement)


def test_too_many_requests_are_waited_for(cloud: Emulator) -> None:
    cloud.compute.request_rate(0)
    one, asked = asked_for()
    assert "until the next full minute" in one.submit(asked)
    assert one.observe([asked.intent.placement])[0].state == UNKNOWN


# ---- what a group has not got


def test_a_slice_that_a_zone_has_no_room_for_ends_the_attempt_and_the_next_zone_follows(cloud: Emulator) -> None:
    """A group would ask for ever."""
    cloud.compute.stockout(ZONES[0], available=[ZONES[1]])
    plan = planned()
    one, placement = submitted(plan)
    told = seen(cloud, one, placement, GONE)
    assert told.cause == wire.STOCKOUT
    assert told.message.startswith(f"{ZONES[0]}: ") and f"zones that have some: {ZONES[1]}" in told.message
    free(cloud, one, placement)
    past = Past(dict(placement), told.cause, told.message, 0.0)
    following = one.place(plan, JOB, 2, past)
    assert following["zone"] == ZONES[1] and following["grouped"]


@pytest.mark.parametrize(
    ("problem", "state", "cause", "says"),
    [
        (refusals.quota("TPUS", 8, "us-central1", {}, "TPUS"), GONE, wire.QUOTA, "Quota 'TPUS' exceeded"),
        (refusals.missing("projects/x/global/images/family/y"), GONE, wire.CONFIGURATION, "name an image that is there"),
        (refusals.machine_not_allowed("ct5lp-hightpu-4t", "p"), GONE, wire.CONFIGURATION, "not allowed"),
        (refusals.act_as("vm@p.iam"), GONE, wire.CONFIGURATION, "iam.serviceAccounts.actAs"),
        (refusals.exists("projects/p/zones/z/instances/k-001"), GONE, wire.CONFIGURATION, "already exists"),
        (
            refusals.ComputeRefusal(403, "x", "Required 'compute.disks.create' permission", code="PERMISSIONS_ERROR"),
            GONE, wire.CONFIGURATION, "the permission compute.disks.create is missing",
        ),
        (
            refusals.ComputeRefusal(412, "x", "Unsupported TPU configuration", code="CONDITION_NOT_MET"),
            GONE, wire.CONFIGURATION, "Unsupported TPU configuration",
        ),
        (
            refusals.ComputeRefusal(400, "x", "IP space of 'p/regions/r/subnetworks/s' is exhausted.",
                                    code="IP_SPACE_EXHAUSTED"),
            GONE, wire.QUOTA, "the subnetwork has no address left",
        ),
        (refusals.reservation("Specified reservations [r] do not exist."), GONE, wire.CONFIGURATION, "no reservation of"),
        (refusals.ComputeRefusal(400, "x", "Nobody knows", code="NEW"), PROVISIONING, "", "Nobody knows"),
        (refusals.ComputeRefusal(500, "internalError", "Internal error."), PROVISIONING, "", "Internal error"),
        (refusals.rate_limit(), PROVISIONING, "", "Rate Limit Exceeded"),
    ],
)  # fmt: skip
def test_the_error_of_a_groups_last_look_says_why_it_has_no_hosts(
    cloud: Emulator, problem: refusals.ComputeRefusal, state: str, cause: str, says: str
) -> None:
    cloud.fail("instanceGroupManagers.insert", at="provision", refusal=problem, times=None)
    one, placement = submitted()
    cloud.wait_until(lambda: says in one.observe([placement])[0].message, WITHIN)
    told = one.observe([placement])[0]
    assert (told.state, told.cause) == (state, cause), told
    if state == PROVISIONING:
        cloud.clear_faults()
        assert seen(cloud, one, placement, PRESENT)
    free(cloud, one, placement)


def test_errors_without_a_reason_end_the_attempt_after_a_while(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.compute.fail_member(times=None)
    one, placement = submitted()
    cloud.wait_until(lambda: "Internal error" in one.observe([placement])[0].message, WITHIN)
    assert one.observe([placement])[0].state == PROVISIONING
    monkeypatch.setattr(states, "GROUP_PATIENCE", -2.0)  # the API tells whole seconds
    told = one.observe([placement])[0]
    assert (told.state, told.cause) == (GONE, wire.INTERNAL)
    free(cloud, one, placement)


def test_flex_start_waits_through_stockouts_and_says_until_when(cloud: Emulator) -> None:
    cloud.compute.stockout(ZONES[0])
    flex = planned(flex_start=True, limits=Limits(provision=2 * DAY, run=3600.0))
    one, placement = submitted(flex, created=time.time())
    cloud.wait_until(lambda: "enough resources" in one.observe([placement])[0].message, WITHIN)
    told = one.observe([placement])[0]
    assert (told.state, told.cause) == (QUEUED, "")
    assert told.message.startswith(f"{placement['name']} waits for all of its hosts in {ZONES[0]} until 20")
    cloud.compute.restock()
    assert seen(cloud, one, placement, PRESENT)
    free(cloud, one, placement)


def test_flex_start_whose_time_has_passed_was_a_stockout(cloud: Emulator) -> None:
    cloud.compute.stockout(ZONES[0])
    flex = planned(flex_start=True, limits=Limits(provision=60.0, run=3600.0))
    one, placement = submitted(flex, created=time.time() - 61.0)
    cloud.wait_until(lambda: "The last answer" in one.observe([placement])[0].message, WITHIN)
    told = one.observe([placement])[0]
    assert (told.state, told.cause) == (GONE, wire.STOCKOUT)
    assert f"nothing became free in {ZONES[0]} while the request for {placement['name']} was valid" in told.message
    free(cloud, one, placement)


def test_a_slow_grant_is_waited_for(cloud: Emulator) -> None:
    cloud.compute.slow_grant(seconds=0.5)
    one, placement = submitted()
    assert seen(cloud, one, placement, PROVISIONING).message.endswith(f"waits for all of its hosts in {ZONES[0]}")
    seen(cloud, one, placement, PRESENT)
    free(cloud, one, placement)


# ---- what becomes of a slice


@pytest.mark.parametrize("state", ["FAILED", "ACTIVE_DEGRADED"])
def test_a_topology_that_is_broken_ends_the_attempt_though_all_its_vms_run(cloud: Emulator, state: str) -> None:
    one, placement = running(cloud)
    cloud.wait_until(lambda: cloud.compute.group(placement["name"])["status"]["isStable"], WITHIN)
    cloud.compute.topology(placement["name"], state)
    told = seen(cloud, one, placement, WOUNDED)
    assert told.cause == wire.INFRASTRUCTURE
    assert f"the topology of {placement['name']} in {ZONES[0]} is {state}: The accelerator topology" in told.message
    free(cloud, one, placement)


@pytest.mark.parametrize("knows", [True, False], ids=["seen before", "never seen"])
@pytest.mark.parametrize("spot", [True, False], ids=["spot", "on demand"])
def test_a_host_that_is_taken_back_is_told_by_its_operation(cloud: Emulator, knows: bool, spot: bool) -> None:
    one, placement = running(cloud, planned(spot=spot))
    cloud.compute.preempt(f"{placement['name']}-002", notice=0.0)
    told = seen(cloud, one if knows else backend(), placement, WOUNDED)
    assert told.cause == (wire.PREEMPTION if spot else wire.INFRASTRUCTURE)
    assert re.match(f"{placement['name']}-002 in {ZONES[0]} is (STOPPING|gone): ", told.message)
    free(cloud, one, placement)


def test_a_slice_of_which_all_hosts_are_taken_back_is_gone_also_for_who_never_saw_it(cloud: Emulator) -> None:
    one, placement = running(cloud, planned(spot=True))
    for name in request.members_of(placement):
        cloud.compute.preempt(name, notice=0.0)
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    told = backend().observe([placement])[0]
    assert (told.state, told.cause) == (GONE, wire.PREEMPTION)
    free(cloud, one, placement)


@pytest.mark.parametrize("knows", [True, False], ids=["seen before", "never seen"])
def test_hosts_that_somebody_has_a_group_delete_end_the_job_by_that_name(cloud: Emulator, knows: bool) -> None:
    """Their deletions are by Google's own account."""
    one, placement = running(cloud, planned("v6e-8", slices=2))
    group = slices.group_path(placement, f"{placement['name']}-1")
    Instances(settings.load())._call("POST", f"{group}/resize", None, {"size": "0"})
    cloud.wait_until(lambda: len(cloud.compute.instances) == 1, WITHIN)
    told = (one if knows else backend()).observe([placement])[0]
    assert (told.state, told.cause) == (WOUNDED, wire.CANCELLED), told
    assert told.message.startswith(f"{placement['name']}-1-001 in {ZONES[0]} is gone: ")
    assert told.message.endswith("deleted it") and "Google" not in told.message
    free(cloud, one, placement)


def test_hosts_that_google_makes_again_do_not_hide_that_the_first_are_gone(cloud: Emulator) -> None:
    cloud.compute.group_habits(["preempted"])
    one, placement = running(cloud, planned(spot=True))
    cloud.compute.stockout(ZONES[0])
    cloud.compute.preempt(f"{placement['name']}-001", notice=0.0)
    assert seen(cloud, one, placement, WOUNDED).cause == wire.PREEMPTION
    assert backend().observe([placement])[0].cause == wire.PREEMPTION
    free(cloud, one, placement)


def test_a_group_that_somebody_deletes_ends_the_job_by_name(cloud: Emulator) -> None:
    one, placement = running(cloud)
    Instances(settings.load()).delete(slices.group_path(placement, placement["name"]))
    cloud.wait_until(lambda: not cloud.compute.groups, WITHIN)
    for observer in (one, backend()):
        told = observer.observe([placement])[0]
        assert (told.state, told.cause) == (ABSENT, wire.CANCELLED), told
        assert told.message.endswith("deleted it")
    free(cloud, one, placement)


def test_a_group_that_somebody_deletes_while_it_waits_is_not_made_again(cloud: Emulator) -> None:
    cloud.compute.stockout(ZONES[0])
    one, asked = asked_for(planned(flex_start=True, limits=Limits(run=3600.0)))
    assert one.submit(asked) == ""
    placement = asked.intent.placement
    seen(cloud, one, placement, QUEUED)
    Instances(settings.load()).delete(slices.group_path(placement, placement["name"]))
    cloud.wait_until(lambda: not cloud.compute.groups, WITHIN)
    assert one.observe([placement])[0].cause == wire.CANCELLED
    with pytest.raises(BackendError, match="deleted it") as caught:
        backend().submit(asked)
    assert caught.value.cause == wire.CANCELLED
    free(cloud, one, placement)


def test_a_group_without_vms_that_asks_for_none_is_not_waited_for_for_ever(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, placement = running(cloud)
    for name in request.members_of(placement):
        cloud.compute.preempt(name, notice=0.0)
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    cloud.compute.operations.clear()
    other = backend()
    assert other.observe([placement])[0].state == PROVISIONING
    monkeypatch.setattr(states, "UNSHOWN", 0.0)
    told = other.observe([placement])[0]
    assert (told.state, told.cause) == (GONE, wire.INFRASTRUCTURE)
    assert "has no VMs and asks for none" in told.message
    free(cloud, one, placement)


def test_of_several_slices_one_that_is_not_made_is_asked_for_again(cloud: Emulator) -> None:
    one, asked = asked_for(planned(slices=2))
    cloud.fail("instanceGroupManagers.insert", 14, times=2, name="*-1")
    assert one.submit(asked).startswith("waiting: ")
    told = seen(cloud, one, asked.intent.placement, PARTIAL)
    assert told.message == f"{asked.intent.placement['name']}-1 is not there yet"
    assert one.submit(asked) == ""
    seen(cloud, one, asked.intent.placement, PRESENT)
    free(cloud, one, asked.intent.placement)


def test_of_several_slices_one_that_a_zone_has_no_room_for_ends_them_all(cloud: Emulator) -> None:
    one, asked = asked_for(planned(slices=2))
    shortage = refusals.stockout("p", ZONES[0], "ct6e-standard-4t", "", (), "stockout")
    cloud.fail("instanceGroupManagers.insert", at="provision", refusal=shortage, times=None, name="*-1")
    assert one.submit(asked) == ""
    cloud.wait_until(lambda: len(cloud.compute.instances) == 4, WITHIN)
    told = seen(cloud, one, asked.intent.placement, WOUNDED)
    assert told.cause == wire.STOCKOUT
    free(cloud, one, asked.intent.placement)


def test_slices_of_one_host_each_have_no_policy(cloud: Emulator) -> None:
    one, placement = running(cloud, planned("v6e-8", slices=2))
    assert [cloud.ledger.count("created", kind) for kind in MADE] == [0, 1, 2]
    free(cloud, one, placement)


# ---- requests


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_the_requests_of_a_tick_do_not_depend_on_the_number_of_slices(cloud: Emulator, waits: bool) -> None:
    if waits:
        cloud.compute.stockout(ZONES[0])
    plan = planned(flex_start=True, limits=Limits(run=3600.0)) if waits else planned()
    one = backend()
    placements = []
    for number in range(20):
        job = f"job-{number:012}"
        placements.append(one.place(plan, job, 1))
        made = submission(plan, placements[-1], job)
        cloud.wait_until(lambda made=made: one.submit(made) == "", WITHIN)
    state = QUEUED if waits else PRESENT
    cloud.wait_until(lambda: {told.state for told in one.observe(placements)} == {state}, WITHIN)
    counted = []
    for some in (placements[:1], placements):
        number = len(cloud.requests)
        assert {told.state for told in one.observe(some)} == {state}
        counted.append(len(since(cloud, number)))
    assert counted == [2, 2]
    for placement in placements:
        cloud.wait_until(lambda placement=placement: one.release(placement) is Freed.DONE, WITHIN)
    cloud.ledger.assert_nothing_left()


def test_what_a_list_does_not_show_yet_is_read_by_its_name(cloud: Emulator) -> None:
    cloud.compute.lag(60.0)
    one, first = submitted()
    two, second = submitted(job="job-000000000002")
    cloud.wait_until(lambda: [told.state for told in one.observe([first, second])] == [PRESENT] * 2, WITHIN)
    cloud.compute.lag(0.0)
    for placement in (first, second):
        cloud.wait_until(lambda placement=placement: two.release(placement) is Freed.DONE, WITHIN)


def test_each_host_of_a_slice_that_is_looked_up_counts(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google limits the reads of a minute, and those of a group and its four VMs are five."""
    monkeypatch.setattr(look, "LOOKS_PER_SECOND", 0.001)
    monkeypatch.setattr(look, "LOOKS_AT_ONCE", 5.0)
    cloud.compute.lag(60.0)
    one = backend()
    placements = [one.place(planned(), f"job-{number:012}", 1) for number in range(2)]
    for number, placement in enumerate(placements):
        assert one.submit(submission(planned(), placement, f"job-{number:012}")) == ""
    groups = [placement["name"] for placement in placements]
    cloud.wait_until(lambda: all(cloud.compute.group(name)["status"]["isStable"] for name in groups), WITHIN)
    number = len(cloud.requests)
    assert [told.state for told in one.observe(placements)].count(UNKNOWN) == 1
    assert since(cloud, number).count("instances.get") == 4
    cloud.compute.lag(0.0)
    for placement in placements:
        cloud.wait_until(lambda placement=placement: one.release(placement) is Freed.DONE, WITHIN)


@pytest.mark.parametrize("told_by", ["unreachables", "warning", "error"])
def test_a_zone_that_does_not_answer_leads_to_no_conclusion(cloud: Emulator, told_by: Any) -> None:
    one, placement = running(cloud)
    cloud.compute.silence(ZONES[0], told_by)
    assert one.observe([placement])[0].state == UNKNOWN
    assert one.release(placement) is Freed.REFUSED
    cloud.compute.hear(ZONES[0])
    assert one.observe([placement])[0].state == PRESENT
    free(cloud, one, placement)


# ---- release


def test_all_goes_in_its_order_group_template_policy(cloud: Emulator) -> None:
    one, placement = running(cloud)
    number = len(cloud.requests)
    free(cloud, one, placement)
    deleted = [method for method in dict.fromkeys(since(cloud, number)) if method.endswith(".delete")]
    assert deleted == ["instanceGroupManagers.delete", "regionInstanceTemplates.delete", "resourcePolicies.delete"]


def test_a_template_that_is_in_use_for_a_while_is_asked_for_again_and_keeps_nothing_waiting(cloud: Emulator) -> None:
    one, placement = running(cloud)
    cloud.compute.linger(1.0)
    cloud.wait_until(lambda: one.release(placement) is Freed.PARTLY and not cloud.compute.groups, WITHIN)
    assert sorted(item.split(" projects")[0] for item in cloud.ledger.leaks()) == [
        "instance template",
        "resource policy",
    ]
    free(cloud, one, placement)


def test_a_group_whose_deletion_takes_long_is_under_way_and_its_parts_stay(cloud: Emulator) -> None:
    one, placement = running(cloud)
    cloud.compute.stuck_delete(f"{placement['name']}*")
    assert one.release(placement) is Freed.PARTLY
    assert one.release(placement) is Freed.PARTLY
    assert any("instance template" in item for item in cloud.ledger.leaks())
    cloud.compute.unstick()
    free(cloud, one, placement)


def test_a_second_deletion_that_is_refused_leaves_a_group_that_goes_under_way(cloud: Emulator) -> None:
    one, placement = running(cloud)
    cloud.compute.stuck_delete(f"{placement['name']}*")
    assert one.release(placement) is Freed.PARTLY
    cloud.deny("client", "compute.instanceGroupManagers.delete")
    for other in (one, backend()):
        assert other.release(placement) is Freed.PARTLY
    cloud.allow("client", "compute.instanceGroupManagers.delete")
    cloud.compute.unstick()
    free(cloud, one, placement)


@pytest.mark.parametrize(
    ("right", "is_left"),
    [
        ("compute.instanceGroupManagers.delete", Freed.REFUSED), ("compute.instanceGroups.delete", Freed.REFUSED),
        ("compute.instanceTemplates.delete", Freed.PARTLY), ("compute.resourcePolicies.delete", Freed.PARTLY),
    ],
)  # fmt: skip
def test_a_release_that_is_refused_is_asked_for_again(cloud: Emulator, right: str, is_left: Freed) -> None:
    one, placement = running(cloud)
    cloud.deny("client", right)
    for _ in range(3):
        assert not one.release(placement)
    assert one.release(placement) is is_left
    cloud.allow("client", right)
    free(cloud, one, placement)


def test_a_placement_that_was_never_made_is_released_by_a_handful_of_requests(cloud: Emulator) -> None:
    one, plan = backend(), planned("v6e-256")
    placement = one.place(plan, JOB, 1)
    number = len(cloud.requests)
    assert one.release(placement) is Freed.DONE
    assert since(cloud, number) == [
        "instanceGroupManagers.get", "instances.aggregatedList", "disks.aggregatedList",
        "regionInstanceTemplates.get", "resourcePolicies.get",
    ]  # fmt: skip


def train(_number: int = 0) -> None:
    """A job, which no host ever runs here."""


def test_a_job_does_not_wait_until_its_group_is_gone(cloud: Emulator) -> None:
    """Its deletion is under way, and what can only go after it costs nothing."""
    cloud.compute.stockout()
    cloud.compute.stuck_delete("*")
    asked = {
        "accelerator": "v6e-16",
        "backend": "compute",
        "cloud": Compute(flex_start=True),
        "limits": kinetic.Limits(run=1800),
    }
    job = kinetic.run(**asked)(train).run_async()
    cloud.wait_until(lambda: cloud.compute.groups, WITHIN)
    job.cancel("no longer wanted")
    with pytest.raises(JobCancelled):
        job.result(timeout=50.0)  # a release that is refused is retried for 60 s
    assert len(cloud.compute.groups) == len(cloud.compute.templates) == len(cloud.compute.policies) == 1
    cloud.compute.unstick()
    (entry,) = left(backend())
    free(cloud, backend(), entry)


def test_the_reaper_tells_what_a_slice_costs_that_runs_beside_one_that_waits(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "BESIDE", -2.0)
    cloud.compute.slow_grant("*-1", seconds=600.0)
    job = kinetic.run(accelerator="v6e-16", backend="compute", cloud=Compute(num_slices=2))(train).run_async()
    one, here = backend(), settings.load()
    cloud.wait_until(lambda: len(cloud.compute.groups) == 2, WITHIN)
    placement = left(one)[0]
    cloud.wait_until(lambda: one.observe([placement])[0].charged > 0, WITHIN)
    (item,) = [item for item in reap(open_store(here.store, here.deployment), one, here) if item.what == "placement"]
    rate = price(planned().purchase, ZONES[0], here.prices, here.listed)
    assert isinstance(rate, Price) and item.usd_per_hour == pytest.approx(rate.usd_per_chip_hour * 16)
    assert (item.name, item.result) == (placement["name"], WAITS)
    waits = f"{placement['name']}-1 waits for all of its hosts in {ZONES[0]} until "
    assert item.why.startswith(f"1 of 2 slices run and are charged for, while {waits}")
    job.cancel("no longer wanted")
    with pytest.raises(JobCancelled):
        job.result(timeout=50.0)
    cloud.wait_until(lambda: one.release(placement) is Freed.DONE, WITHIN)


def test_the_reaper_says_what_it_did_not_look_at(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "LOOKS_PER_SECOND", 0.001)
    monkeypatch.setattr(look, "LOOKS_AT_ONCE", 1.0)
    run = kinetic.run(accelerator="l4", backend="compute")(train)
    jobs = [run.run_async(number) for number in range(3)]
    cloud.wait_until(lambda: len(cloud.compute.instances) == 3, WITHIN)
    here = settings.load()
    for path in list(cloud.compute.instances):
        Instances(here).delete(path)
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    found = reap(open_store(here.store, here.deployment), backend(), here, dry_run=True)
    assert [(item.name, item.why) for item in found if item.result == UNREAD] == [
        ("2 placements", "no list shows its VM, and others are looked up first")
    ]
    for job in jobs:
        job.cancel("no longer wanted")


def test_a_disk_that_a_slice_left_behind_goes_before_its_template(cloud: Emulator) -> None:
    one, placement = running(cloud)
    for instance in cloud.compute.instances.values():
        instance.disks[0].auto_delete = False
    free(cloud, one, placement)


# ---- leftovers


def left(one: ComputeBackend) -> list[dict[str, Any]]:
    return [entry for entry in one.leftovers() if "unread" not in entry]


@pytest.mark.parametrize("slices_", [1, 2])
def test_slices_that_run_are_one_leftover(cloud: Emulator, slices_: int) -> None:
    _, placement = running(cloud, planned(slices=slices_))
    other = backend()
    (entry,) = left(other)
    assert {key: entry[key] for key in ("zone", "name", "hosts", "slices", "grouped", "job", "attempt")} == {
        **{key: placement[key] for key in ("zone", "name", "hosts", "slices", "grouped")}, "job": JOB, "attempt": 1,
    }  # fmt: skip
    assert entry["state"] == "RUNNING" and entry["expires"] == 2_000_000_000.0 and entry["created"] > 0
    assert other.observe([entry])[0].state == PRESENT
    free(cloud, other, entry)
    assert left(other) == []


@pytest.mark.parametrize("alone", [slices.POLICIES, slices.TEMPLATES, slices.GROUPS, "instances", "disks"])
def test_each_thing_that_is_left_alone_is_found_and_freed(cloud: Emulator, alone: str) -> None:
    """A client was killed before it had made the rest, or somebody deleted that."""
    one, asked = asked_for(planned(flex_start=True, limits=Limits(run=3600.0)) if alone == slices.GROUPS else None)
    api, placement = Instances(settings.load()), asked.intent.placement
    if alone == slices.GROUPS:
        cloud.compute.stockout(ZONES[0])
    if alone in ("instances", "disks"):
        assert one.submit(asked) == ""
        seen(cloud, one, placement, PRESENT)
        one_vm = next(iter(cloud.compute.instances.values()))
        if alone == "disks":
            one_vm.disks[0].auto_delete = False
        for path in request.members_of(placement)[1:]:
            api.delete(f"{request.zone_of(placement)}/instances/{path}")
        cloud.wait_until(lambda: len(cloud.compute.instances) == 1, WITHIN)
        if alone == "disks":
            api.delete(one_vm.path)
            cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
            cloud.compute.linger(0.0)
            api.delete(slices.group_path(placement, placement["name"]))
            for path in (slices.template_path(placement), slices.policy_path(placement)):
                cloud.wait_until(lambda path=path: _goes(api, path), WITHIN)
    else:
        for insert in inserts(asked):
            if insert.kind in {slices.POLICIES: (slices.POLICIES,), slices.TEMPLATES: (slices.TEMPLATES,)}.get(
                alone, (slices.POLICIES, slices.TEMPLATES, slices.GROUPS)
            ):
                api.ended(api.insert(insert.collection, insert.body, request_id(asked.intent, insert.kind)))
    words = {slices.POLICIES: "POLICY", slices.TEMPLATES: "TEMPLATE", slices.GROUPS: "GROUP", "disks": "DISK"}
    other = backend()
    (entry,) = left(other)
    assert (entry["zone"], entry["name"], entry["slices"], entry["grouped"]) == (ZONES[0], placement["name"], 1, True)
    assert entry["state"] == words.get(alone, "RUNNING")
    assert alone == "disks" or entry["hosts"] == 4
    assert other.observe([entry])[0].state in (ABSENT, QUEUED, WOUNDED)
    free(cloud, other, entry)
    assert left(other) == []


@pytest.mark.filterwarnings("ignore:the 120 hosts of l4 are joined over plain TCP")
@pytest.mark.parametrize("kind", ["instances", "disks"])
def test_the_hundredth_of_many_vms_that_is_left_alone_is_no_member_of_a_group(cloud: Emulator, kind: str) -> None:
    asked = Options(accelerator="l4", backend="compute", cloud=Compute(hosts=120))
    plan = replace(make_plan(JobSpec("train", asked), settings.load()), limits=Limits())
    sent = submission(plan, backend().place(plan, JOB, 1))
    body, api = request.render(sent)[100], Instances(settings.load())
    api.ended(api.insert(f"{request.zone_of(sent.intent.placement)}/instances", body, request_id(sent.intent, "100")))
    cloud.wait_until(lambda: len(cloud.compute.instances) == 1, WITHIN)
    if kind == "disks":
        one_vm = next(iter(cloud.compute.instances.values()))
        one_vm.disks[0].auto_delete = False
        api.delete(one_vm.path)
        cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    other = backend()
    (entry,) = left(other)
    assert (entry["hosts"], entry["slices"], entry.get("grouped")) == (101, 1, None)
    free(cloud, other, entry)


def _goes(api: Instances, path: str) -> bool:
    """Delete something until it is gone."""
    if api.get(path) is None:
        return True
    try:
        api.delete(path)
    except Exception:
        return False
    return api.get(path) is None


def test_what_is_another_deployments_or_nobodys_is_no_leftover(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, placement = running(cloud)
    api = Instances(settings.load())
    region = slices.region_path(placement)
    by_hand = {**inserts(asked_for()[1])[0].body, "name": f"{placement['name']}9", "description": "by hand"}
    api.ended(
        api.insert(f"{region}/{slices.POLICIES}", by_hand, request_id(submission(planned(), placement).intent, "x"))
    )
    assert len(left(one)) == 1
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "neighbor")
    assert left(backend()) == []
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
    cloud.wait_until(lambda: one.release(placement) is Freed.DONE, WITHIN)
    assert [item.split(" projects")[0] for item in cloud.ledger.leaks()] == ["resource policy"]


def test_a_region_that_does_not_answer_is_told_beside_what_was_found(cloud: Emulator) -> None:
    one, placement = running(cloud)
    cloud.compute.silence("us-east5", "warning")
    assert [entry["zone"] for entry in one.leftovers()] == [ZONES[0], "us-east5"]
    assert [entry for entry in one.leftovers() if "unread" in entry] == [{"zone": "us-east5", "unread": "no answer"}]
    cloud.compute.hear("us-east5")
    free(cloud, one, placement)


@pytest.mark.parametrize("place", ["", ZONES[0]], ids=["all", "a zone"])
def test_a_list_that_is_not_whole_is_told_and_nothing_is_taken_for_gone(cloud: Emulator, place: str) -> None:
    one, placement = running(cloud)
    cloud.compute.curtail(place)
    assert list(one.leftovers())[-1] == {"zone": place or slices.POLICIES, "unread": "its list is not whole"}
    assert one.observe([placement])[0].state == PRESENT
    cloud.wait_until(lambda: one.release(placement) is Freed.REFUSED, WITHIN)  # VMs may be left over
    cloud.compute.curtail(place, ends=True)
    free(cloud, one, placement)


def test_who_may_not_list_groups_still_finds_vms_and_is_told_what_is_missing(cloud: Emulator) -> None:
    """A role from before there were slices lacks that right."""
    one, placement = running(cloud)
    cloud.deny("client", "compute.instanceGroupManagers.list")
    found = list(one.leftovers())
    assert found[0]["name"] == placement["name"]
    (unread,) = [entry for entry in found if "unread" in entry]
    assert unread["zone"] == slices.GROUPS and "compute.instanceGroupManagers.list" in unread["unread"]
    cloud.allow("client", "compute.instanceGroupManagers.list")
    free(cloud, one, placement)


def test_a_slice_that_runs_beside_one_that_waits_is_told_with_its_cost_when_its_job_has_ended(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an attempt is not there yet, and was told to cost nothing."""
    monkeypatch.setattr(reaper, "SETTLED", -3600.0)
    one, asked = asked_for(planned(slices=2))
    here, placement = settings.load(), asked.intent.placement
    store = open_store(here.store, here.deployment)
    spec = {"name": "train", "plan": asked.plan.to_json(), "staged": asked.staged.to_json(), "task": in_spec()}
    store.create(names.spec(JOB), wire.encode(spec))
    verdict = {"kind": wire.CLOSED, "writer": "w", "time": 1.0, "cause": wire.CANCELLED}
    store.create(names.verdict(JOB, 1), wire.encode(verdict))
    cloud.compute.slow_grant("*-1")
    assert one.submit(asked) == ""
    cloud.wait_until(lambda: one.observe([placement])[0].charged > 0, WITHIN)
    assert one.observe([placement])[0].state == PROVISIONING
    (item,) = [item for item in reap(store, one, here, dry_run=True) if item.what == "placement"]
    disks = 4 * 100 * DISKS["asia-northeast1"] / HOURS  # in the dearest region, as none is listed for the zone's
    assert (item.why, item.usd_per_hour) == ("its attempt has its verdict", pytest.approx(16 * 3.24 + disks))
    cloud.compute.clear_faults()
    free(cloud, one, placement)


def test_a_reaper_removes_a_policy_whose_job_is_over(cloud: Emulator) -> None:
    """It is all that is left: a template, and then it, can only go once the group is gone."""
    one, asked = asked_for()
    asked = asked.__class__(**{**asked.__dict__, "intent": asked.intent._replace(deadline=1_000_000_000.0)})
    insert = inserts(asked)[0]
    api = Instances(settings.load())
    api.ended(api.insert(insert.collection, insert.body, request_id(asked.intent, insert.kind)))
    here = settings.load()
    found = [
        item
        for item in reap(open_store(here.store, here.deployment), one, here, dry_run=True)
        if item.what == "placement"
    ]
    (item,) = found
    assert (item.name, item.zone, item.usd_per_hour) == (asked.intent.placement["name"], ZONES[0], 0.0)
    assert "its deadline passed" in item.why
    (item,) = [
        item
        for item in reap(open_store(here.store, here.deployment), one, here, patience=5.0)
        if item.what == "placement"
    ]
    assert item.result == REMOVED
    cloud.ledger.assert_nothing_left()
