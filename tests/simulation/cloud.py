"""A simulated Cloud TPU API, below the calls that the real backend makes: queued resources, nodes and their fates.

What it says is what facts about the real one say: states, codes and messages. Every zone has its weather, every view
may lag, every answer may be lost, and what is deleted may take days to go. It does not know what jobs are, except
that it asks the judge before anything of theirs is taken away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.api_core import exceptions as google

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google.api_errors import Status
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.platforms.google.tpu.client import Page, Tpus
from kinetic_orchestration.platforms.google.tpu.states import Node, Queued
from tests.simulation.world import Violation, World
from tests.simulation.zones import (
    DRY,
    FAILING,
    NEVER,
    NEVER_REGION,
    QUEUE,
    QUOTAS,
    REFUSED,
    UNKNOWN_ZONE,
    Odds,
    Zone,
    Zones,
)

NO_CAPACITY = (
    'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are offered '
    "(see https://cloud.google.com/tpu/docs/regions) [EID: 0x5d3a]"
)
NO_QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone {zone}."
NO_QUOTA_THERE = (
    "Quota limit 'TPUV5sLitepodPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region {region}."
)
QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 16 in zone {zone}."
RATE = "Quota exceeded for quota metric 'Maximum number of CreateNode requests per minute' of service tpu."
FORBIDDEN = "Location {zone} is not found or access is unauthorized."
RESERVED = "Insufficient reserved capacity. Contact customer support to increase your reservation."

REFUSALS: dict[str, tuple[Any, str]] = {
    REFUSED: (google.ResourceExhausted, NO_CAPACITY),
    QUOTAS: (google.ResourceExhausted, QUOTA),
    NEVER: (google.ResourceExhausted, NO_QUOTA),
    NEVER_REGION: (google.ResourceExhausted, NO_QUOTA_THERE),
    UNKNOWN_ZONE: (google.PermissionDenied, FORBIDDEN),
}

STRANGE = 42  # a state that nobody knows


class QueuedResource:
    def __init__(self, name: str, body: Mapping[str, Any], now: float) -> None:
        spec = body["tpu"]["nodeSpec"][0]
        _, self.project, _, self.zone, _, self.id = name.split("/")
        self.name = name
        self.labels: dict[str, str] = dict(spec["node"]["labels"])
        self.told: dict[str, Any] = json.loads(spec["node"]["metadata"]["kinetic"])
        several = spec.get("multisliceParams")
        self.node_ids = (
            [f"{several['nodeIdPrefix']}-{index}" for index in range(several["nodeCount"])]
            if several
            else [spec["nodeId"]]
        )
        self.hardware = str(spec["node"].get("acceleratorType", ""))
        self.spot = "spot" in body
        self.reserved = "reservationName" in body
        self.valid = float(body.get("queueingPolicy", {}).get("validUntilDuration", "infs")[:-1])
        self.created = now
        self.state = states.CREATING
        self.initiator = 0
        self.error: Status | None = None
        self.until = 0.0  # what is deleted stays at least until then
        self.harmed = False
        self.asked = False  # somebody has asked for its deletion, whatever the answer was
        self.going = 0.0  # since when it is being deleted

    def shown(self) -> Queued:
        return Queued(
            self.id, self.zone, self.state, self.initiator, self.error, self.spot, self.reserved, self.created,
            self.labels,
        )  # fmt: skip


class TpuNode:
    def __init__(
        self, name: str, queued: QueuedResource | None, labels: dict[str, str], index: int, now: float
    ) -> None:
        self.name = name
        _, _, _, self.zone, _, self.id = name.split("/")
        self.queued = queued
        self.index = index
        self.labels = labels
        self.state = 1
        self.health = 0
        self.created = now
        self.machines: list[Any] = []
        self.orphan = False  # its queued resource goes without it

    def shown(self) -> Node:
        return Node(self.id, self.zone, self.state, self.health, "", (), 0.0, self.created, self.labels)


class Cloud(Zones):
    def __init__(self, world: World, zones: dict[str, Zone], odds: Odds) -> None:
        super().__init__(world, zones, odds)
        self.queued: dict[str, QueuedResource] = {}
        self.nodes: dict[str, TpuNode] = {}
        self.operations: dict[str, tuple[bool, Status | None]] = {}
        self.answers: dict[str, str] = {}

    def views(self, kind: str, zone: str) -> list[Any]:
        part = f"/locations/{zone}/{kind}/" if zone != "-" else f"/{kind}/"
        found = [self.view(name) for name in self.shown if part in name]
        return [one for one in found if one is not None]

    # ---- queued resources --------------------------------------------------------------------------------

    def create(self, request: Mapping[str, Any]) -> str:
        world, now = self.world, self.world.now
        name = f"{request['parent']}/queuedResources/{request['queuedResourceId']}"
        if request["requestId"] in self.answers and not self.odds.forgetful:
            world.reached.add("a create call was made again and recognised")
            return self.answers[request["requestId"]]
        queued = QueuedResource(name, request["queuedResource"], now)
        self.may_create(queued)
        if name in self.queued:
            world.reached.add("a create call met what was there")
            raise google.AlreadyExists(f"Resource '{name}' already exists")
        if now < self.rate_until:
            world.reached.add("the rate of creates was limited")
            raise google.ResourceExhausted(RATE)
        zone = self.zones[queued.zone]
        weather = self.weather(zone)
        refusal = self._refusal(queued, zone, weather)
        if refusal is not None:
            world.note("refused", queued.zone, weather)
            world.reached.add(f"refused: {weather}")
            self.harm(queued, weather)
            raise refusal
        self.queued[name] = queued
        self.show(queued)
        operation = f"{request['parent']}/operations/{len(self.operations) + 1}"
        self.operations[operation] = (False, None)
        self.answers[request["requestId"]] = operation
        draw = world.random
        world.at(now + draw.choice((0.0, 1.0, 10.0)) * draw.random(), lambda: self._accept(queued, operation))
        if queued.valid != float("inf"):
            world.at(now + queued.valid, lambda: self._expire(queued))
        return operation

    def _refusal(self, queued: QueuedResource, zone: Zone, weather: str) -> Exception | None:
        if weather == REFUSED and queued.reserved:
            return google.FailedPrecondition(RESERVED)
        if weather in REFUSALS:
            kind, text = REFUSALS[weather]
            refusal: Exception = kind(text.format(zone=zone.name, region=zone.name.rsplit("-", 1)[0]))
            return refusal
        if weather == FAILING and zone.times > 0 and self.world.random.random() < 0.5:
            zone.times -= 1
            return google.InternalServerError("an internal error has occurred")
        return None

    def _accept(self, queued: QueuedResource, operation: str) -> None:
        draw = self.world.random
        if draw.random() < 0.8:
            self.operations[operation] = (True, None)
        if self.queued.get(queued.name) is not queued or queued.state != states.CREATING:
            return
        queued.state = draw.choice((states.ACCEPTED, states.ACCEPTED, states.WAITING, STRANGE))
        if queued.state == STRANGE:
            self.world.reached.add("a state that nobody knows")
        self.show(queued)
        self.world.at(self.world.now + draw.choice((0.0, 5.0, 20.0)) * draw.random(), lambda: self._consider(queued))

    def _consider(self, queued: QueuedResource) -> None:
        """Give it hardware, or let it wait."""
        waits = (states.ACCEPTED, states.WAITING, STRANGE)
        if self.queued.get(queued.name) is not queued or queued.state not in waits:
            return
        world, zone = self.world, self.zones[queued.zone]
        weather = self.weather(zone)
        if weather == QUEUE:
            world.reached.add("waited in a queue")
            if queued.state != states.WAITING:
                queued.state = states.WAITING
                self.show(queued)
            world.at(min(zone.until, world.now + 120.0), lambda: self._consider(queued))
            return
        if any(self._node_name(queued, ident) in self.nodes for ident in queued.node_ids):
            world.reached.add("a node of another life had the name")
            world.at(world.now + 60.0, lambda: self._consider(queued))
            return
        queued.state = states.BEING_MADE
        self.show(queued)
        seconds = world.random.uniform(5.0, 60.0)
        if weather == DRY:
            error = Status(8, NO_CAPACITY.format(zone=zone.name))
            world.at(world.now + seconds, lambda: self._fail(queued, error, weather))
        elif weather == FAILING and zone.times > 0:
            zone.times -= 1
            error = Status(13, "an internal error has occurred")
            world.at(world.now + seconds, lambda: self._fail(queued, error, weather))
        else:
            self._provision(queued, seconds)

    def _fail(self, queued: QueuedResource, error: Status | None, kind: str) -> None:
        if self.queued.get(queued.name) is queued and queued.state != states.DELETING:
            self.harm(queued, kind)
            self.world.reached.add(f"failed in the queue: {kind}")
            queued.state, queued.error = states.FAILED, error
            self.show(queued)

    def _expire(self, queued: QueuedResource) -> None:
        if queued.state in (*states.IN_QUEUE, STRANGE):
            error = self.world.random.choice((None, Status(4, "the request is not valid any more"), Status(0, "")))
            self._fail(queued, error, "expired")

    def _provision(self, queued: QueuedResource, seconds: float) -> None:
        nodes = []
        for index, ident in enumerate(queued.node_ids):
            name = self._node_name(queued, ident)
            node = self.nodes[name] = TpuNode(name, queued, queued.labels, index, self.world.now)
            nodes.append(node)
            self.show(node)
        self.world.at(self.world.now + seconds, lambda: self._ready(queued, nodes))

    def _node_name(self, queued: QueuedResource, ident: str) -> str:
        return f"projects/{queued.project}/locations/{queued.zone}/nodes/{ident}"

    def _ready(self, queued: QueuedResource, nodes: list[TpuNode]) -> None:
        if self.queued.get(queued.name) is not queued or queued.state != states.BEING_MADE:
            return
        draw, now = self.world.random, self.world.now
        for node in nodes:
            if node.state == 1:
                node.state = states.READY
                self.show(node)
                self.boot(node)
        pause = draw.choice((0.0, 0.0, 0.0, 5.0, 100_000.0))
        if pause > 1000.0:
            self.world.reached.add("the queue never said that it was active")
        else:
            self.world.at(now + pause, lambda: self._activate(queued))

    def _activate(self, queued: QueuedResource) -> None:
        if queued.state == states.BEING_MADE:
            queued.state = states.ACTIVE
            self.show(queued)

    # ---- what befalls them -------------------------------------------------------------------------------

    def take(self, queued: QueuedResource, *, shows: int | None, suspends: float, initiator: int) -> None:
        """The nodes go, and look like `shows` (None: gone at once); after so long the queue says so, too."""
        for node in self.nodes_of(queued):
            self.end_machines(node)
            if shows is None:
                self._forget(node)
            else:
                node.state = shows
                self.show(node)
                if shows == 5:
                    self.world.at(
                        self.world.now + self.world.random.uniform(2.0, 60.0), lambda at=node: self._forget(at)
                    )
        if self.world.random.random() < 0.5:  # it is known at once by whom
            queued.initiator = initiator
            self.show(queued)
        if suspends < 1000.0:
            self.world.at(self.world.now + suspends, lambda: self._suspend(queued, initiator))

    def _suspend(self, queued: QueuedResource, initiator: int) -> None:
        if self.queued.get(queued.name) is not queued or queued.state == states.DELETING:
            return
        queued.initiator = initiator
        queued.state = states.SUSPENDING
        self.show(queued)

        def suspended() -> None:
            if self.queued.get(queued.name) is queued and queued.state == states.SUSPENDING:
                queued.state = states.SUSPENDED
                self.show(queued)

        self.world.at(self.world.now + self.world.random.uniform(0.0, 20.0), suspended)

    def _forget(self, what: TpuNode | QueuedResource) -> None:
        known: dict[str, Any] = self.nodes if isinstance(what, TpuNode) else self.queued
        if known.get(what.name) is what:
            del known[what.name]
            self.show(what, gone=True)
            if isinstance(what, TpuNode):
                self.end_machines(what)
                if what.queued is not None:
                    self.settle(what.queued)

    # ---- deletes -----------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        queued = self.queued.get(name)
        if queued is None:
            raise google.NotFound(f"Resource '{name}' was not found")
        self.may_delete(name, queued)
        queued.asked = True
        if self._refuses():
            raise google.ResourceExhausted("Quota exceeded for quota metric 'Write requests per minute'")
        if queued.state == states.DELETING:
            return
        queued.state, queued.going = states.DELETING, self.world.now
        self.show(queued)
        for node in self.nodes_of(queued):
            if not self.calm and self.world.random.random() < self.odds.orphans:
                node.orphan = True
                self.world.reached.add("a node outlived its queued resource")
            else:
                self._delete_node(node)
        self.settle_later(queued)

    def delete_node(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None:
            raise google.NotFound(f"Resource '{name}' was not found")
        self.may_delete(name, node)
        if self._refuses():
            raise google.ResourceExhausted("Quota exceeded for quota metric 'Write requests per minute'")
        self._delete_node(node)

    def _delete_node(self, node: TpuNode) -> None:
        if node.state == 5:
            return
        node.state = 5
        self.show(node)
        for machine in node.machines:
            last = machine
            self.world.at(self.world.now + self.world.random.choice((0.0, 2.0, 20.0)), lambda one=last: one.destroy())
        self.world.at(self.world.now + self._slowness(), lambda: self._forget(node))

    def settle_later(self, queued: QueuedResource) -> None:
        queued.until = self.world.now + self._slowness()
        self.world.at(queued.until, lambda: self.settle(queued))

    def settle(self, queued: QueuedResource) -> None:
        """Remove a resource that is being deleted once its nodes are gone."""
        left = [node for node in self.nodes_of(queued) if not node.orphan]
        if queued.state == states.DELETING and self.world.now >= queued.until and not left:
            self._forget(queued)


class SimulatedTpus(Tpus):
    """The same calls to the simulated cloud, one request each, and Google's own exceptions."""

    def __init__(self, settings: Settings, cloud: Cloud) -> None:
        super().__init__(settings)
        self._cloud = cloud
        self._world = cloud.world
        self._made: set[str] = set()

    def _ask(self, verb: str, name: str, done: bool = False) -> None:
        self._world.request(verb, name.rpartition("/")[2] or name, google.ServiceUnavailable, done)

    def create(self, request: Mapping[str, Any]) -> tuple[str, Status | None]:
        name = request["queuedResourceId"]
        self._ask("submit", name)
        if name in self._made:
            raise Violation(f"{name} is asked for again by who knows that it was taken")
        operation = self._cloud.create(request)
        self._ask("submit", name, done=True)
        self._made.add(name)
        self._cloud.made(
            json.loads(request["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["kinetic"])["job"]
        )
        return operation, None

    def operation_error(self, name: str) -> tuple[bool, Status | None]:
        self._ask("operation", name)
        if name not in self._cloud.operations:
            raise google.NotFound(name)
        return self._cloud.operations[name]

    def queued_resource(self, name: str) -> Queued | None:
        self._ask("get", name)
        found: Queued | None = self._cloud.view(name)
        return found

    def node(self, name: str) -> Node | None:
        self._ask("get", name)
        found: Node | None = self._cloud.view(name)
        return found

    def queued_resources(self, project: str, zone: str) -> Page:
        return self._listed("queuedResources", zone)

    def nodes(self, project: str, zone: str) -> Page:
        return self._listed("nodes", zone)

    def _listed(self, kind: str, zone: str) -> Page:
        self._ask("list", f"{zone}/{kind}")
        cloud, world = self._cloud, self._world
        if zone == "-" and cloud.odds.narrow:
            world.reached.add("the zones were listed one by one")
            raise google.InvalidArgument("a wildcard is not allowed here")
        if not cloud.calm and world.random.random() < cloud.odds.unreachable:
            world.reached.add("a zone did not answer")
            return Page([], (f"projects/p/locations/{next(iter(cloud.zones)) if zone == '-' else zone}",))
        return Page(cloud.views(kind, zone), ())

    def locations(self, project: str) -> list[str]:
        self._ask("list", "locations")
        return sorted(self._cloud.zones)

    def delete(self, name: str) -> None:
        self._ask("release", name)
        self._made.discard(name.rpartition("/")[2])
        self._cloud.delete(name)
        self._ask("release", name, done=True)

    def delete_node(self, name: str) -> None:
        self._ask("release", name)
        self._cloud.delete_node(name)
        self._ask("release", name, done=True)
