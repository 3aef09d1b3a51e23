"""The meaning of instances, and of the operations of those that are gone, for an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    WOUNDED,
    Observation,
)
from kinetic_orchestration.platforms.google.api_errors import UNKNOWN, CallContext
from kinetic_orchestration.platforms.google.compute import states
from kinetic_orchestration.platforms.google.compute.causes import Problem
from kinetic_orchestration.platforms.google.compute.request import UNTIL
from kinetic_orchestration.platforms.google.compute.states import Event, Group, Member, Seen, Slice, Vm
from kinetic_orchestration.platforms.google.compute.verbs import memory
from kinetic_orchestration.platforms.google.compute.verbs.memory import Memory
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

ZONE = "us-central1-a"
NOW = 1_800_000_000.0
ACCOUNT = "trainer@ours.iam.gserviceaccount.com"
ASKED = CallContext("ours", ZONE, ACCOUNT, service="compute")


def vm(status: str = "RUNNING", name: str = "k-0", **more: Any) -> Vm:
    started = 0.0 if status in ("PENDING", "PROVISIONING", "STAGING") else NOW - 100
    return Vm(name, ZONE, status, **{"created": NOW - 200, "started": started, "account": ACCOUNT, **more})


def was(**more: Any) -> Seen:
    return Seen(**{"started": NOW - 100, "ends": 0.0, "account": ACCOUNT, **more})


def event(kind: str, user: str = "ada@example.com", **more: Any) -> Event:
    target = more.pop("target", "k-0")
    return Event("projects/ours/zones/z/operations/o", kind, target, user, NOW - 150, more.pop("ended", True), **more)


def seen(*members: Member, model: str = accelerators.ON_DEMAND, context: CallContext = ASKED) -> Observation:
    return states.observation(members, context, model, NOW)


def gone(*events: Event, before: Seen | None = None, model: str = accelerators.ON_DEMAND) -> Observation:
    return seen(Member("k-0", None, before, events), model=model)


def problem(word: str, message: str = "no") -> tuple[Problem, ...]:
    return (Problem(word, message, UNKNOWN),)


# ---- who ends what is still there


def test_who_deletes_a_vm_is_known_while_its_guest_still_shuts_down_and_its_host_may_still_save() -> None:
    told = seen(Member("k-0", vm("STOPPING"), was(), [event("delete", ended=False), event("insert")]))
    assert (told.state, told.cause) == (WOUNDED, wire.CANCELLED)
    assert told.message == f"k-0 in {ZONE} is STOPPING: ada@example.com deleted it"


def test_of_two_vms_the_one_that_a_person_ended_says_why_the_host_of_the_other_gave_up() -> None:
    by_host = Member("k-0", None, was(), [event("delete", ACCOUNT), event("insert")])
    by_person = Member("k-1", vm("STOPPING", "k-1"), None, [event("stop", target="k-1"), event("insert")])
    told = seen(by_host, by_person)
    assert (told.state, told.cause) == (WOUNDED, wire.CANCELLED)
    assert told.message == f"k-1 in {ZONE} is STOPPING: ada@example.com stopped it"


def test_a_vm_that_shuts_down_and_nobody_is_known_to_have_ended_is_still_there() -> None:
    assert seen(Member("k-0", vm("STOPPING"), was(), [event("insert")])).state == PRESENT


# ---- what is there


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", QUEUED),
        ("PROVISIONING", PROVISIONING),
        ("STAGING", PROVISIONING),
        ("RUNNING", PRESENT),
        ("REPAIRING", PRESENT),
        ("PENDING_STOP", PRESENT),
        ("STOPPING", PRESENT),
        ("SUSPENDING", PRESENT),
        ("DEPROVISIONING", PRESENT),
        ("TERMINATED", GONE),
        ("STOPPED", GONE),
        ("SUSPENDED", GONE),
        ("TRANSMOGRIFYING", ELSEWHERE),
    ],
)
def test_each_state_of_an_instance(status: str, state: str) -> None:
    assert seen(Member("k-0", vm(status))).state == state


def test_a_vm_that_waits_for_capacity_says_until_when() -> None:
    told = seen(Member("k-0", vm("PENDING", labels={UNTIL: "1800000000"})))
    assert told.message == f"PENDING in {ZONE}, waiting for capacity until 2027-01-15 08:00:00 UTC at the latest"


def test_vms_that_run_are_charged_since_the_first_started_and_have_a_log() -> None:
    told = seen(Member("k-0", vm(started=NOW - 50)), Member("k-1", vm(name="k-1", started=NOW - 70)))
    assert told == Observation(
        PRESENT, charged=NOW - 70,
        hint="gcloud compute instances get-serial-port-output k-0 --zone {zone} --project {project}",
    )  # fmt: skip
    assert "get-serial-port-output {name} " in seen(Member("k-0", vm(started=NOW - 50))).hint, "the same for all jobs"
    waiting = seen(Member("k-0", vm()), Member("k-1", vm("STAGING", "k-1")))
    assert (waiting.state, waiting.charged) == (PROVISIONING, NOW - 100), "one of them costs already"


def test_a_repair_is_waited_for_and_not_for_ever() -> None:
    assert seen(Member("k-0", vm("REPAIRING", repairing=899.0))).message == "k-0 REPAIRING"
    told = seen(Member("k-0", vm("REPAIRING", repairing=901.0)))
    assert (told.state, told.cause) == (GONE, wire.INFRASTRUCTURE)
    assert "REPAIRING for more than 15 min" in told.message


# ---- what is not there


def test_a_vm_that_nobody_made_is_absent() -> None:
    assert gone() == Observation(ABSENT, hint=states.WHOM_TO_ASK)


def test_a_vm_whose_insert_goes_on_is_being_made() -> None:
    assert gone(event("insert", ended=False)).state == PROVISIONING


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", wire.STOCKOUT),
        ("QUOTA_EXCEEDED", wire.QUOTA),
        ("INVALID_USAGE", wire.CONFIGURATION),
        ("PERMISSIONS_ERROR", wire.CONFIGURATION),
        ("CONDITION_NOT_MET", wire.CONFIGURATION),
        ("IP_SPACE_EXHAUSTED", wire.QUOTA),
        ("INTERNAL_ERROR", wire.INTERNAL),
    ],
)
def test_an_insert_that_failed_behind_a_200_says_why_also_while_the_vm_is_shown(word: str, cause: str) -> None:
    failed = event("insert", problems=problem(word, "none left"))
    told = gone(failed)
    assert (told.state, told.cause) == (ABSENT, cause)
    assert told.message.startswith(f"{ZONE}: none left ({word})")
    shown = seen(Member("k-0", vm("STOPPING", started=0.0), None, [failed]))
    assert (shown.state, shown.cause) == (GONE, cause)


def test_an_insert_whose_error_leaves_open_what_was_made_ends_nothing() -> None:
    assert gone(event("insert", problems=problem("RESOURCE_NOT_FOUND"))).state == ABSENT
    assert gone(event("insert", problems=problem("RESOURCE_NOT_FOUND"))).cause == ""


@pytest.mark.parametrize(
    ("happened", "model", "cause", "says"),
    [
        (event("compute.instances.preempted", "system"), accelerators.SPOT, wire.PREEMPTION, "it was preempted"),
        (event("compute.instances.preempted", "system"), accelerators.ON_DEMAND, wire.INFRASTRUCTURE, "defragment"),
        (event("compute.instances.preempted", "system"), accelerators.RESERVATION, wire.INFRASTRUCTURE, "defragment"),
        (event("compute.instances.hostError", "system"), accelerators.SPOT, wire.INFRASTRUCTURE, "(hostError)"),
        (
            event("compute.instances.terminateOnHostMaintenance", "system"), accelerators.ON_DEMAND, wire.INFRASTRUCTURE,
            "for maintenance",
        ),
        (
            event("compute.instances.terminateOnHostMaintenance", "system"), accelerators.SPOT, wire.PREEMPTION,
            "for maintenance",
        ),
        (
            event("compute.instances.preempted", "system"), accelerators.FLEX_START, wire.INFRASTRUCTURE, "defragment",
        ),
        (event("compute.instances.guestTerminate", "system"), accelerators.ON_DEMAND, wire.INFRASTRUCTURE, "from inside"),
        (event("delete"), accelerators.ON_DEMAND, wire.CANCELLED, "ada@example.com deleted it"),
        (event("stop"), accelerators.ON_DEMAND, wire.CANCELLED, "ada@example.com stopped it"),
        (event("delete", ACCOUNT), accelerators.ON_DEMAND, wire.INFRASTRUCTURE, f"its own account deleted it ({ACCOUNT})"),
        (event("delete", "system"), accelerators.ON_DEMAND, wire.INFRASTRUCTURE, "Google deleted it"),
    ],
)  # fmt: skip
def test_the_operations_say_what_became_of_a_vm(happened: Event, model: str, cause: str, says: str) -> None:
    insert = event("insert")
    for told, state in (
        (gone(happened, insert, before=was(), model=model), ABSENT),
        (seen(Member("k-0", vm("TERMINATED"), was(), [happened, insert]), model=model), GONE),
        (seen(Member("k-1", vm(name="k-1")), Member("k-0", None, was(), [happened, insert]), model=model), WOUNDED),
    ):
        assert (told.state, told.cause) == (state, cause)
        assert says in told.message


@pytest.mark.parametrize(
    ("first", "then", "model", "cause"),
    [
        ("compute.instances.hostError", event("delete"), accelerators.ON_DEMAND, wire.INFRASTRUCTURE),
        ("compute.instances.preempted", event("delete", "system"), accelerators.SPOT, wire.PREEMPTION),
        ("compute.instances.preempted", event("delete", ACCOUNT), accelerators.SPOT, wire.PREEMPTION),
    ],
)
def test_the_first_end_of_a_vm_is_its_reason_and_not_who_cleaned_up(
    first: str, then: Event, model: str, cause: str
) -> None:
    told = gone(then, event(first, "system"), event("insert"), before=was(), model=model)
    assert (told.state, told.cause) == (ABSENT, cause)


def test_a_flex_start_vm_that_nobody_has_seen_is_waited_for_before_it_counts_as_vanished() -> None:
    member = Member("k-0", None, None, [event("insert")])
    assert seen(member, model=accelerators.FLEX_START).cause == ""
    late = seen(member._replace(missed=states.UNSHOWN + 1.0), model=accelerators.FLEX_START)
    assert late.cause == wire.STOCKOUT


@pytest.mark.parametrize(
    "told", [event("setMetadata"), event("delete", problems=problem("INTERNAL_ERROR")), event("insert")]
)
def test_a_vm_is_asked_for_again_until_an_operation_says_why_it_is_gone(
    told: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google may tell of a preemption a while after the VM shows it."""
    monkeypatch.setattr(memory, "LOOK_AGAIN", 0.0)
    known, placement = Memory(("", "p")), {"project": "p", "zone": ZONE, "name": "k", "hosts": 1}
    known.listed("k-0", [told])
    assert known.is_to_be_asked(placement, "k-0")
    known.listed("k-0", [event("compute.instances.preempted", "system"), told])
    assert not known.is_to_be_asked(placement, "k-0")


def test_a_delete_that_failed_deleted_nothing() -> None:
    told = gone(event("delete", problems=problem("INTERNAL_ERROR")), event("insert"), before=was())
    assert (told.state, told.message) == (ABSENT, "")


def test_a_flex_start_vm_that_vanished_after_its_wait_was_a_stockout() -> None:
    told = gone(event("insert"), before=was(started=0.0), model=accelerators.FLEX_START)
    assert (told.cause, told.message) == (
        wire.STOCKOUT, f"nothing became free in {ZONE} while the request for k-0 was valid",
    )  # fmt: skip
    assert gone(event("insert"), before=was(), model=accelerators.FLEX_START).cause == "", "it ran"


def test_a_vm_that_has_run_for_as_long_as_it_may_ended_at_its_deadline() -> None:
    told = gone(event("insert"), before=was(ends=NOW - 1))
    assert (told.state, told.cause) == (ABSENT, wire.DEADLINE)
    assert gone(event("insert"), before=was(ends=NOW + 1)).cause == ""
    by_google = event("delete", user="system"), event("insert")
    assert gone(*by_google, before=was(ends=NOW - 1)).cause == wire.DEADLINE


def test_a_vm_that_died_before_its_limit_did_not_end_by_it_however_late_it_is_looked_at() -> None:
    dead = vm("TERMINATED", ends=NOW - 3600)
    told = seen(Member("k-0", dead, None, [event("compute.instances.hostError", user="system"), event("insert")]))
    assert (told.state, told.cause) == (GONE, wire.INFRASTRUCTURE)
    preempted = event("compute.instances.preempted", user="system")
    told = gone(preempted, event("insert"), before=was(ends=NOW - 3600), model=accelerators.SPOT)
    assert (told.state, told.cause) == (ABSENT, wire.PREEMPTION)


def test_of_several_the_missing_ones_are_asked_for_again_unless_they_were_there() -> None:
    other = Member("k-1", vm(name="k-1"))
    assert seen(other, Member("k-0", None, None, [])).state == PARTIAL
    lost = seen(other, Member("k-0", None, was(), []))
    assert (lost.state, lost.cause) == (WOUNDED, wire.INFRASTRUCTURE)
    assert "ask the project's audit log" in lost.message.lower()


def test_of_several_that_could_not_be_had_is_told_rather_than_what_followed() -> None:
    short = Member("k-0", None, None, [event("insert", problems=problem("GPU_STOCKOUT", "none"))])
    deleted = Member("k-1", None, was(), [event("delete")])
    assert seen(deleted, short).cause == wire.STOCKOUT


def test_a_group_whose_request_ended_with_an_error_says_which_whatever_it_waits_for() -> None:
    """And not that it is empty, as if somebody had taken its VMs."""
    ended = Group("k", ZONE, problems=problem("ZONE_RESOURCE_POOL_EXHAUSTED", "none left"), until=NOW - 1.0)
    none = Slice("k", ended, [Member("k-001", None), Member("k-002", None)], states.UNSHOWN + 1.0)
    for model in (accelerators.ON_DEMAND, accelerators.FLEX_START):
        told = states.of_slices([none], ASKED, model, NOW)
        assert (told.state, told.cause) == (GONE, wire.STOCKOUT)
        assert "none left" in told.message
    there = none._replace(members=[Member(name, vm(name=name)) for name in ("k-001", "k-002")], empty=0.0)
    assert states.of_slices([there], ASKED, accelerators.FLEX_START, NOW).state == PRESENT


@pytest.mark.parametrize(
    ("until", "model", "events", "cause"),
    [
        (NOW - 1.0, accelerators.ON_DEMAND, [], wire.STOCKOUT),
        (NOW + 9.0, accelerators.FLEX_START, [], wire.STOCKOUT),
        (NOW + 9.0, accelerators.ON_DEMAND, [], wire.INFRASTRUCTURE),
        (0.0, accelerators.ON_DEMAND, [], wire.INFRASTRUCTURE),
        (NOW - 1.0, accelerators.FLEX_START, [event("insert")], wire.INFRASTRUCTURE),  # it had its VMs
    ],
)
def test_a_group_that_asks_for_nothing_any_more_and_never_had_a_vm_found_no_capacity_once_its_wait_is_over(
    until: float, model: str, events: list[Event], cause: str
) -> None:
    """Also one of which nobody saw that its wait ended; beside a slice that runs it is no other."""
    members = [Member("k-001", None, None, events), Member("k-002", None, None, [])]
    one = Slice("k", Group("k", ZONE, until=until), members, states.UNSHOWN + 1.0)
    told = states.of_slices([one], ASKED, model, NOW)
    assert (told.state, told.cause) == (GONE, cause)
    if cause == wire.STOCKOUT:
        assert told.message == f"nothing became free in {ZONE} while the request for k was valid"
        assert states.of_slices([one._replace(empty=states.UNSHOWN)], ASKED, model, NOW).state == PROVISIONING
        other = Slice("j", Group("j", ZONE, until=until), [Member("j-001", vm(name="j-001"))])
        assert states.of_slices([other, one], ASKED, model, NOW)[:3] == (WOUNDED, told.message, cause)


AGENT = "123456789012@cloudservices.gserviceaccount.com"


@pytest.mark.parametrize(
    ("kind", "before", "cause", "says"),
    [
        ("deleteInstances", 5.0, wire.CANCELLED, "ada@example.com deleted it"),
        ("resize", 5.0, wire.CANCELLED, "ada@example.com deleted it"),
        ("deleteInstances", 2 * states.OBEYED, wire.INFRASTRUCTURE, "Google deleted it"),
        ("deleteInstances", -5.0, wire.INFRASTRUCTURE, "Google deleted it"),
    ],
)
def test_what_a_group_deletes_because_somebody_told_it_to_is_told_by_that_name(
    kind: str, before: float, cause: str, says: str
) -> None:
    asked = event(f"compute.instanceGroupManagers.{kind}", target="g")._replace(began=NOW - 150 - before)
    told = states.events_of([event("delete", AGENT, target="g-001"), asked], "g-001", "g")
    seen = states.observation([Member("g-001", None, vm(name="g-001"), told)], ASKED, accelerators.ON_DEMAND, NOW)
    assert (seen.cause, seen.message.partition(": ")[2]) == (cause, says)


@pytest.mark.parametrize(("since", "is_told"), [(states.BESIDE + 1.0, True), (states.BESIDE - 1.0, False)])
def test_a_slice_that_runs_beside_one_that_waits_is_charged_for_and_says_so_after_a_while(
    since: float, is_told: bool
) -> None:
    there = Slice("k-0", Group("k-0", ZONE), [Member("k-0-001", vm(name="k-0-001", started=NOW - since))])
    waits = Slice("k-1", Group("k-1", ZONE, asks=True), [Member("k-1-001", None)])
    told = states.of_slices([there, waits], ASKED, accelerators.ON_DEMAND, NOW)
    assert (told.state, told.slices, told.costs) == (PROVISIONING, 1, True)
    said = f"1 of 2 slices run and are charged for, while k-1 waits for all of its hosts in {ZONE}"
    assert told.waits == (said if is_told else "")
    none = states.of_slices([waits._replace(name="k-0"), waits], ASKED, accelerators.ON_DEMAND, NOW)
    assert (none.slices, none.costs, none.waits) == (0, False, "")


@pytest.mark.parametrize(
    ("status", "costs"),
    [("STOPPING", False), ("DEPROVISIONING", False), ("PENDING_STOP", True), ("RUNNING", True), ("SUSPENDING", True)],
)
@pytest.mark.parametrize("told", [(), (event("delete", ACCOUNT),)], ids=["nobody says why", "by its own account"])
def test_vms_that_shut_down_are_charged_for_no_longer(status: str, costs: bool, told: tuple[Event, ...]) -> None:
    """Google lets them shut down for minutes, and charges for none of it."""
    two = [
        Member(name, vm(status, name=name), None, [one._replace(target=name) for one in told]) for name in ("a", "b")
    ]
    half = [Member("a", None, was(), [event("delete", ACCOUNT, target="a")]), two[1]]
    for members in (two, half):
        assert seen(*members).costs == costs
        one = states.of_slices([Slice("k", Group("k", ZONE, leaves=True), members)], ASKED, accelerators.SPOT, NOW)
        assert one.costs == costs
    assert seen(two[0], Member("b", vm(name="b"))).costs, "the other one runs"


def test_of_slices_of_which_one_shuts_down_while_another_waits_none_is_charged_for() -> None:
    ends = Slice("k-0", Group("k-0", ZONE, leaves=True), [Member("k-0-001", vm("STOPPING", name="k-0-001"))])
    waits = Slice("k-1", Group("k-1", ZONE, asks=True), [Member("k-1-001", None)])
    told = states.of_slices([ends, waits], ASKED, accelerators.ON_DEMAND, NOW)
    assert (told.slices, told.costs) == (0, False)
    failed = waits._replace(group=Group("k-1", ZONE, problems=problem("ZONE_RESOURCE_POOL_EXHAUSTED")))
    told = states.of_slices([ends, failed], ASKED, accelerators.ON_DEMAND, NOW)
    assert (told.state, told.costs) == (WOUNDED, False)
    absent = Slice("k-2", None, [Member("k-2-001", None)])
    assert not states.of_slices([ends, absent], ASKED, accelerators.ON_DEMAND, NOW).costs


def test_whose_account_deleted_a_vm_that_was_never_seen_is_not_guessed() -> None:
    """A process that only now looks does not know a VM's account, and takes no service account for a user's wish."""
    for account in ("", "of-the-settings@p.iam.gserviceaccount.com"):
        unseen = CallContext("p", "us-central1-a", account, service="compute")
        _judge_unseen(unseen)


def _judge_unseen(unseen: CallContext) -> None:
    for user, cause in ((ACCOUNT, wire.INFRASTRUCTURE), ("somebody@example.com", wire.CANCELLED)):
        member = Member("k-0", None, None, [event("delete", user), event("insert")])
        told = states.observation([member], unseen, accelerators.ON_DEMAND, NOW)
        assert (told.state, told.cause) == (ABSENT, cause)
        assert user in told.message
