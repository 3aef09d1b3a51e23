"""The states of a queued resource and its nodes, and their meaning for an attempt: tables, pure.

The numbers are those of `google.cloud.tpu_v2`; an unknown number never ends an attempt by itself. It knows no client:
states are passed in as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PRESENT,
    PROVISIONING,
    QUEUED,
    WOUNDED,
    Observation,
)
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext, Status
from kinetic_orchestration.protocol import wire

REPAIR_PATIENCE = 900.0  # a node that is under repair for longer is dead
WHOM_TO_ASK = (
    "nobody of this job deleted it. Ask the project's audit log for DeleteQueuedResource and DeleteNode, and look at "
    "who has tpu.nodes.delete"
)
START_LOG = (  # of a slice by its name and zone
    "gcloud compute tpus tpu-vm ssh {} --zone {} --worker=all --command 'sudo journalctl -u google-startup-scripts'"
)

# QueuedResourceState.State
CREATING, ACCEPTED, BEING_MADE, FAILED, DELETING, ACTIVE, SUSPENDING, SUSPENDED, WAITING = range(1, 10)
QUEUED_STATES = {
    CREATING: "CREATING",
    ACCEPTED: "ACCEPTED",
    BEING_MADE: "PROVISIONING",
    FAILED: "FAILED",
    DELETING: "DELETING",
    ACTIVE: "ACTIVE",
    SUSPENDING: "SUSPENDING",
    SUSPENDED: "SUSPENDED",
    WAITING: "WAITING_FOR_RESOURCES",
}
IN_QUEUE = (CREATING, ACCEPTED, WAITING)
WITHOUT_NODES = (*IN_QUEUE, FAILED, SUSPENDED)

# QueuedResourceState.StateInitiator
USER, SERVICE = 1, 2

# Node.State
BEGUN, READY, REPAIRING, PREEMPTED = 1, 2, 6, 11
NODE_STATES = {
    BEGUN: "CREATING",
    READY: "READY",
    3: "RESTARTING",
    4: "REIMAGING",
    5: "DELETING",
    REPAIRING: "REPAIRING",
    8: "STOPPED",
    9: "STOPPING",
    10: "STARTING",
    PREEMPTED: "PREEMPTED",
    12: "TERMINATED",
    13: "HIDING",
    14: "HIDDEN",
    15: "UNHIDING",
    16: "UNKNOWN",
}
ALIVE = (BEGUN, READY, 3, 4, REPAIRING, 10)
MISSING = -1  # the API has no such node

HEALTH = {3: "TIMEOUT", 4: "UNHEALTHY_TENSORFLOW", 5: "UNHEALTHY_MAINTENANCE"}
SYMPTOMS = {
    1: "LOW_MEMORY",
    2: "OUT_OF_MEMORY",
    3: "EXECUTE_TIMED_OUT",
    4: "MESH_BUILD_FAIL",
    5: "HBM_OUT_OF_MEMORY",
    6: "PROJECT_ABUSE",
}
ABUSE = 6


class Queued(NamedTuple):
    """A queued resource, with the fields that are used here."""

    name: str  # its id
    zone: str
    state: int
    initiator: int = 0
    error: Status | None = None
    spot: bool = False
    reserved: bool = False
    created: float = 0.0
    labels: Mapping[str, str] = {}


class Node(NamedTuple):
    name: str  # its id
    zone: str
    state: int
    health: int = 0
    description: str = ""  # of its health
    symptoms: tuple[tuple[int, str, str], ...] = ()  # kind, worker, details
    repairing: float = 0.0  # known seconds in that state
    created: float = 0.0
    labels: Mapping[str, str] = {}


def observation(found: Queued | None, nodes: Sequence[Node], context: CallContext) -> Observation:
    """The observation that follows from the queued resource and, in the order of the slices, its nodes."""
    if found is None:
        return Observation(ABSENT, hint=WHOM_TO_ASK)
    if found.state in IN_QUEUE:
        return Observation(QUEUED, f"{QUEUED_STATES[found.state]} in {found.zone}")
    if found.state == FAILED:
        return _failed(found, context)
    if found.state == SUSPENDED:
        return Observation(GONE, *_suspended(found), charged=charged(found, nodes))
    return _with_nodes(found, nodes)._replace(charged=charged(found, nodes))


def charged(found: Queued, nodes: Sequence[Node]) -> float:
    """A time before which no node can have been READY; 0: none was. If the nodes are gone, only their request's time is
    known."""
    made = [node.created for node in nodes if node.state not in (BEGUN, MISSING) and node.created]
    if made:
        return min(made)
    missing = all(node.state == MISSING for node in nodes)
    return found.created if missing and found.state in (ACTIVE, SUSPENDING, SUSPENDED) else 0.0


def _with_nodes(found: Queued, nodes: Sequence[Node]) -> Observation:
    """The observation for a state in which there may be nodes: their states are more exact than the queue's."""
    strange = [node for node in nodes if node.state not in NODE_STATES and node.state != MISSING]
    if strange:
        return Observation(ELSEWHERE, f"node {strange[0].name} is in a state that this version does not know")
    going = found.state in (SUSPENDING, DELETING)
    dead = [node for node in nodes if not _lives(node)]
    made = [node for node in dead if node.state != MISSING]
    if made or (dead and (going or found.state == ACTIVE)):
        why = _suspended(found) if going else _death(found, (made or dead)[0])
        return Observation(GONE if len(dead) == len(nodes) else WOUNDED, *why)
    if found.state == ACTIVE or going or all(node.state == READY for node in nodes):
        said = "; ".join(filter(None, (_states(nodes), _complaints(nodes))))
        return Observation(PRESENT, said, hint=START_LOG.format(found.name, found.zone))
    state = QUEUED_STATES.get(found.state, f"state {found.state}")
    return Observation(PROVISIONING, f"{state} in {found.zone}")


def _lives(node: Node) -> bool:
    return node.state in ALIVE and not (node.state == REPAIRING and node.repairing > REPAIR_PATIENCE)


def _failed(found: Queued, context: CallContext) -> Observation:
    if found.error is None or found.error.code in (0, api_errors.DEADLINE):
        said = f" ({found.error.message})" if found.error is not None and found.error.message else ""
        return Observation(
            GONE, f"nothing became free in {found.zone} while the request was valid{said}", wire.STOCKOUT
        )
    trouble = api_errors.classify(found.error, context)
    cause = wire.CONFIGURATION if trouble.action == api_errors.ADOPT else trouble.cause
    return Observation(GONE, f"{found.zone}: {trouble.sentence}", cause)


def _suspended(found: Queued) -> tuple[str, str]:
    """The reason why a queued resource lost its nodes. A user who deletes a slice manually wants its job to end."""
    where = f"{QUEUED_STATES[found.state]} in {found.zone}"
    if found.initiator == USER:
        return f"somebody deleted the slice ({where}, by USER)", wire.CANCELLED
    if found.state == DELETING:
        return f"the slice is being deleted ({where})", wire.INFRASTRUCTURE
    if found.initiator == SERVICE or found.spot:
        return f"the slice was preempted ({where}, by SERVICE)", wire.PREEMPTION
    return f"the slice was taken away ({where})", wire.INFRASTRUCTURE


def _death(found: Queued, node: Node) -> tuple[str, str]:
    """The reason why a node is dead. Spot capacity is lost in many ways, and not always with the state PREEMPTED."""
    abuse = [details for kind, _, details in node.symptoms if kind == ABUSE]
    if abuse:
        return f"node {node.name} was stopped for abuse of the project: {abuse[0]}", wire.CONFIGURATION
    state = "gone" if node.state == MISSING else NODE_STATES[node.state]
    text = f"node {node.name} in {node.zone} is {state}"
    if node.state == REPAIRING:
        text += f" for more than {REPAIR_PATIENCE / 60:.0f} min"
    text = "; ".join(filter(None, (text, _complaints([node]))))
    if found.initiator == USER:
        return f"{text}: somebody deleted it", wire.CANCELLED
    if node.state == MISSING and not found.spot:
        return f"{text}; {WHOM_TO_ASK}", wire.INFRASTRUCTURE
    if node.state == PREEMPTED or (found.spot and node.state != REPAIRING):
        return text, wire.PREEMPTION
    return text, wire.INFRASTRUCTURE


def _states(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.name} {NODE_STATES[node.state]}" for node in nodes if node.state != READY)


def _complaints(nodes: Sequence[Node]) -> str:
    """The health problems of the nodes, for users."""
    said = []
    for node in nodes:
        if node.health in HEALTH:
            said.append(f"{node.name} {HEALTH[node.health]} {node.description}".strip())
        for kind, worker, details in node.symptoms:
            said.append(f"{node.name} worker {worker} {SYMPTOMS.get(kind, f'symptom {kind}')} {details}".strip())
    return "; ".join(said)
