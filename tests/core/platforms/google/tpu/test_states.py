"""The meaning of the states of a queued resource and of its nodes for an attempt: one table, row by row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PRESENT,
    PROVISIONING,
    QUEUED,
    WOUNDED,
    Observation,
)  # fmt: skip
from kinetic_orchestration.platforms.google.api_errors import CallContext, Status
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.platforms.google.tpu.states import MISSING, Node, Queued, observation
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

ASKED = CallContext("ours", "us-east5-a")
NEVER_HEARD_OF = 77


def queued(state: int, **fields: Any) -> Queued:
    return Queued("one", "us-east5-a", state, **fields)


def look(found: Queued | None, *nodes: int | Node) -> Observation:
    shown = [
        node if isinstance(node, Node) else Node(f"one-{index}", "us-east5-a", node) for index, node in enumerate(nodes)
    ]
    return observation(found, shown, ASKED)


def test_the_numbers_are_those_of_the_client_library() -> None:
    from google.cloud import tpu_v2

    def named(enumeration: Any) -> dict[int, str]:
        return {int(value): value.name for value in enumeration if int(value)}

    assert named(tpu_v2.QueuedResourceState.State) == states.QUEUED_STATES
    assert named(tpu_v2.Node.State) == states.NODE_STATES
    assert named(tpu_v2.Symptom.SymptomType) == states.SYMPTOMS
    assert states.HEALTH.items() <= named(tpu_v2.Node.Health).items()
    assert (int(tpu_v2.QueuedResourceState.StateInitiator.USER), states.USER) == (1, 1)
    assert (int(tpu_v2.QueuedResourceState.StateInitiator.SERVICE), states.SERVICE) == (2, 2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (states.CREATING, QUEUED),
        (states.ACCEPTED, QUEUED),
        (states.WAITING, QUEUED),
        (states.BEING_MADE, PROVISIONING),
        (NEVER_HEARD_OF, PROVISIONING),
        (0, PROVISIONING),
    ],
)
def test_before_there_are_hosts(state: int, expected: str) -> None:
    assert look(queued(state), MISSING).state == expected


def test_nothing_there_is_absent() -> None:
    seen = look(None, MISSING)
    assert seen == Observation(ABSENT, hint=seen.hint) and "DeleteQueuedResource" in seen.hint


@pytest.mark.parametrize("state", [states.BEING_MADE, states.ACTIVE, NEVER_HEARD_OF])
def test_all_nodes_ready_is_present_whatever_the_queue_says(state: int) -> None:
    assert look(queued(state), states.READY, states.READY).state == PRESENT


@pytest.mark.parametrize("node", states.ALIVE)
def test_a_node_in_a_living_state_is_present(node: int) -> None:
    assert look(queued(states.ACTIVE), node).state == PRESENT


@pytest.mark.parametrize("node", [state for state in states.NODE_STATES if state not in states.ALIVE])
@pytest.mark.parametrize("spot", [True, False])
def test_every_other_node_state_is_dead_and_spot_capacity_was_preempted_whatever_it_is_called(
    node: int, spot: bool
) -> None:
    seen = look(queued(states.ACTIVE, spot=spot), node)
    preempted = spot or node == states.PREEMPTED
    assert (seen.state, seen.cause) == (GONE, wire.PREEMPTION if preempted else wire.INFRASTRUCTURE)
    assert states.NODE_STATES[node] in seen.message


def test_a_node_that_is_gone_under_an_active_queued_resource_is_dead() -> None:
    assert look(queued(states.ACTIVE), MISSING)[:3:2] == (GONE, wire.INFRASTRUCTURE)
    assert look(queued(states.ACTIVE, spot=True), MISSING)[:3:2] == (GONE, wire.PREEMPTION)
    assert look(queued(states.ACTIVE, initiator=states.USER), MISSING)[:3:2] == (GONE, wire.CANCELLED)


def test_one_dead_slice_of_two_wounds_the_attempt() -> None:
    assert look(queued(states.ACTIVE, spot=True), states.READY, states.PREEMPTED)[:3:2] == (WOUNDED, wire.PREEMPTION)


def test_a_node_state_that_nobody_knows_ends_nothing_and_leaves_the_word_to_the_beats() -> None:
    assert look(queued(states.ACTIVE), NEVER_HEARD_OF).state == ELSEWHERE
    assert look(queued(states.ACTIVE), states.READY, NEVER_HEARD_OF).state == ELSEWHERE


def test_a_repair_has_its_time() -> None:
    node = Node("one", "us-east5-a", states.REPAIRING, 5, "maintenance", repairing=60.0)
    seen = look(queued(states.ACTIVE), node)
    assert seen.state == PRESENT
    assert "UNHEALTHY_MAINTENANCE maintenance" in seen.message
    assert "--zone us-east5-a --worker=all --command 'sudo journalctl" in seen.hint
    seen = look(queued(states.ACTIVE, spot=True), node._replace(repairing=states.REPAIR_PATIENCE + 1))
    assert seen[:3:2] == (GONE, wire.INFRASTRUCTURE)


def test_symptoms_are_told_and_end_nothing_by_themselves() -> None:
    node = Node("one", "us-east5-a", states.READY, symptoms=((2, "3", "of the host"), (NEVER_HEARD_OF, "0", "")))
    seen = look(queued(states.ACTIVE), node)
    assert seen.state == PRESENT
    assert "worker 3 OUT_OF_MEMORY of the host" in seen.message
    assert f"symptom {NEVER_HEARD_OF}" in seen.message


def test_a_slice_stopped_for_abuse_is_not_tried_again() -> None:
    node = Node("one", "us-east5-a", 8, symptoms=((states.ABUSE, "0", "mining"),))
    assert look(queued(states.ACTIVE, spot=True), node).cause == wire.CONFIGURATION


@pytest.mark.parametrize(
    ("initiator", "spot", "cause"),
    [
        (states.SERVICE, True, wire.PREEMPTION),
        (states.SERVICE, False, wire.PREEMPTION),
        (states.USER, True, wire.CANCELLED),
        (states.USER, False, wire.CANCELLED),
        (0, True, wire.PREEMPTION),
        (0, False, wire.INFRASTRUCTURE),
        (NEVER_HEARD_OF, False, wire.INFRASTRUCTURE),
    ],
)
def test_suspended_by_the_service_is_preempted_and_by_the_user_cancelled(
    initiator: int, spot: bool, cause: str
) -> None:
    assert look(queued(states.SUSPENDED, initiator=initiator, spot=spot), MISSING)[:3:2] == (GONE, cause)
    suspending = queued(states.SUSPENDING, initiator=initiator, spot=spot)
    assert look(suspending, 5)[:3:2] == (GONE, cause)
    assert look(suspending, states.READY).state == PRESENT, "its hosts still have their notice to use"


def test_a_slice_on_its_way_out_is_gone_with_its_nodes() -> None:
    assert look(queued(states.DELETING), states.READY).state == PRESENT
    assert look(queued(states.DELETING), 5)[:3:2] == (GONE, wire.INFRASTRUCTURE)
    assert look(queued(states.DELETING, spot=True), MISSING)[:3:2] == (GONE, wire.INFRASTRUCTURE)
    assert look(queued(states.DELETING, initiator=states.USER), 5).cause == wire.CANCELLED


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, wire.STOCKOUT),
        (Status(4, "could not be provisioned before its valid until time"), wire.STOCKOUT),
        (Status(8, "There is no more capacity in the zone"), wire.STOCKOUT),
        (Status(8, "Quota limit 'X' has been exceeded. Limit: 0 in region us-east5."), wire.QUOTA),
        (Status(13, "an internal error has occurred"), wire.INTERNAL),
        (Status(3, "no such runtime version"), wire.CONFIGURATION),
        (Status(6, "node exists"), wire.CONFIGURATION),
    ],
)
def test_a_failed_request_is_judged_by_its_error(error: Status | None, cause: str) -> None:
    seen = look(queued(states.FAILED, error=error), MISSING)
    assert (seen.state, seen.cause) == (GONE, cause)
    assert "us-east5-a" in seen.message
    assert error is None or error.message.rstrip(".") in seen.message


def test_no_combination_of_numbers_is_too_much() -> None:
    known = {ABSENT, ELSEWHERE, GONE, PRESENT, PROVISIONING, QUEUED, WOUNDED}
    numbers = (*range(18), NEVER_HEARD_OF)
    for state, initiator, one, other in itertools.product(numbers, (0, 1, 2, 9), (MISSING, *numbers), (MISSING, 2, 5)):
        seen = look(queued(state, initiator=initiator), one, other)
        assert seen.state in known
        assert bool(seen.cause) == (seen.state in (GONE, WOUNDED))
