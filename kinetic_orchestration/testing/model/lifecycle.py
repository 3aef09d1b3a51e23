"""The life cycle of the resources in the emulated cloud: queued resources, nodes, their hosts.

A state machine without a clock, a socket or a process of its own: time is passed in, due events are carried out when
the cloud is used (`advance`), and `machines` creates the hosts. Every public method is one step under one lock, so any
number of threads may use a cloud. It does not know the callers' requests, nor the causes of failures.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeVar

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.clock import step
from kinetic_orchestration.testing.model.compute.groups.service import Compute
from kinetic_orchestration.testing.model.compute.lifecycle import Means
from kinetic_orchestration.testing.model.deviations import Deviation
from kinetic_orchestration.testing.model.faults import CLIENT, Caller, Fault, Faults
from kinetic_orchestration.testing.model.quotas import Quotas
from kinetic_orchestration.testing.model.state import resources
from kinetic_orchestration.testing.model.state.ledger import Ledger
from kinetic_orchestration.testing.model.state.machine import Host, Hosts, Machine
from kinetic_orchestration.testing.model.state.resources import Json, Node, Operation, Queued, State, Wanted

T = TypeVar("T")

# About 91 per minute and project: an observed value of the quota tpu.googleapis.com/qps/create.
CREATES_PER_MINUTE = 91
_QUEUED = ("ACCEPTED", "WAITING_FOR_RESOURCES")
_METHOD_OF = {("create", "QueuedResource"): "CreateQueuedResource", ("create", "Node"): "CreateNode"}


class Timing(NamedTuple):
    """Durations of cloud operations, in seconds."""

    accept: float = 0.0
    provision: float = 0.05
    suspend: float = 0.02
    delete: float = 0.02
    stop: float = 0.02
    repair: float = 0.2
    shutdown: float = 30.0  # at most, for the guest of an instance whose power button was pressed
    enable: float = 0.02  # services of a project
    spread: float = 0.0  # until an account, a service or a network that was made is known everywhere


DEFAULT_TIMING = Timing()


class Answered(NamedTuple):
    """A request that had an id, and the operation that it led to."""

    request: Json
    operation: Operation


class Lifecycle(Quotas):
    """All that exists in one cloud, and how each thing ends."""

    def __init__(
        self,
        *,
        zones: Mapping[str, int | None] | Iterable[str] | None = None,
        machines: Hosts | None = None,
        timing: Timing = DEFAULT_TIMING,
        creates_per_minute: int | None = CREATES_PER_MINUTE,
        projects: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] = time.sleep,
        seed: int = 0,
    ) -> None:
        super().__init__(zones, creates_per_minute, clock, pause)
        self.timing = timing
        self.faults = Faults()
        self.deviations: list[Deviation] = []
        self.planted: set[int] = set()
        self.requests: list[tuple[str, Caller]] = []
        self.ledger = Ledger(lambda: self._now, self._living, self.advance)
        self._random = random.Random(seed)
        self._projects = frozenset(projects)
        self._machines = machines
        self._operations: dict[str, Operation] = {}
        self._answers: dict[tuple[str, str], Answered] = {}
        self._handles: list[tuple[str, Host]] = []
        self._stuck_deletes: list[str] = []
        self._slow_deletes: dict[str, float] = {}
        self._endless = Faults()
        self._bootless = Faults()
        self._furnished: list[tuple[str, int | None, Mapping[str, Any]]] = []
        means = Means(self._boot_machine, self._random.getrandbits, lambda name: not projects or name in self._projects)
        self.compute = Compute(self, means)

    # Failures of nodes and queued resources

    @step
    def preempt(
        self,
        node: str,
        notice: float | None = None,
        shows: State | Literal["gone"] = "PREEMPTED",
        *,
        suspends: bool = True,
    ) -> None:
        """Preempt a node, `notice` seconds after notifying its hosts, or without notice.

        `shows` is the state that the node has afterwards: `DELETING` is followed by its removal, and `gone` removes it
        immediately. With `suspends=False` its queued resource does not change.
        """
        found = self._chosen("node", self._nodes, node)
        self._plant(shows)
        if notice is None:
            self._preempted(found, shows, suspends)
            return
        self._record("node", found.name, f"will be preempted in {notice:g} s")
        for machine in found.booted():
            machine.preempt(notice)
        self._later(notice, lambda: self._preempted(found, shows, suspends))

    @step
    def suspend(self, name: str, by: Literal["SERVICE", "USER"] = "SERVICE") -> None:
        """A queued resource loses its nodes."""
        queued = self._chosen("queued resource", self._queued, name)
        for node in self._nodes_of(queued):
            self._start_deleting(node)
        self._suspend(queued, by)

    @step
    def maintenance(self, node: str, seconds: float | None = None, notice: float = 0.0) -> None:
        """The node is under repair for `seconds`, then its hosts boot again; announced `notice` seconds before."""
        found = self._chosen("node", self._nodes, node)
        for machine in found.booted():
            machine.maintenance("TERMINATE_ON_HOST_MAINTENANCE")
        self._later(notice, lambda: self._repair(found, self.timing.repair if seconds is None else seconds))

    @step
    def reboot(self, node: str, worker: int | None = None) -> None:
        """One host, or all of them, boots again; the API does not show it."""
        found = self._chosen("node", self._nodes, node)
        self._record("node", found.name, f"host {worker} boots again" if worker is not None else "its hosts boot again")
        for machine in found.booted(worker):
            machine.reboot()

    @step
    def power_off(self, node: str, worker: int | None = None) -> None:
        """One host, or all of them, is dead; the node stays READY and costs on."""
        for machine in self._chosen("node", self._nodes, node).booted(worker):
            machine.destroy()

    # Queued resources

    def _accept(self, queued: Queued, wanted: list[Wanted], operation: Operation) -> None:
        if self._exists(queued) and queued.state == "CREATING":
            self._become(queued, "ACCEPTED")
            opens, _ = queued.window
            self._later(max(0.0, opens - self._now), lambda: self._consider(queued, wanted))
        self._finish(operation, queued.to_json())

    def _consider(self, queued: Queued, wanted: list[Wanted]) -> None:
        """Give hardware to one that waits, if there is some; ask again whenever some may have become free."""
        if not self._exists(queued) or queued.state not in _QUEUED:
            return
        zone = queued.path.zone
        free = self._free(zone)
        if free is not None and sum(one.hardware.chips for one in wanted) > free:
            if queued.state != "WAITING_FOR_RESOURCES":
                self._become(queued, "WAITING_FOR_RESOURCES")
            self._waiting.append(lambda: self._consider(queued, wanted))
            return
        self._provision(queued, wanted)

    def _provision(self, queued: Queued, wanted: list[Wanted]) -> None:
        self._become(queued, "PROVISIONING")
        path = queued.path
        try:
            self._demand_quota(wanted, path, queued.spot, "provision", already=queued.name)
            self._demand_capacity(queued)
        except Refusal as refused:
            refusal = refused
            self._later(self.timing.provision, lambda: self._fail(queued, refusal))
            return
        for one in wanted:
            node = self._new_node(path, one, queued.spot, queued.reserved, queued.name)
            queued.nodes.append(node.name)
        self._later(self.timing.provision, lambda: self._activate(queued))

    def _demand_capacity(self, queued: Queued) -> None:
        fault = self.faults.take("provision", "CreateQueuedResource", queued.path.zone, CLIENT, queued.name)
        if fault is not None and fault.refusal is not None:
            refusal = fault.refusal()
            none_left = refusal.message.startswith("There is no more capacity")
            raise refusals.no_reserved_capacity(self._event()) if queued.reserved and none_left else refusal

    def _activate(self, queued: Queued) -> None:
        if not self._exists(queued) or queued.state != "PROVISIONING":
            return
        self._become(queued, "ACTIVE")
        for node in self._nodes_of(queued):
            if node.state == "CREATING":
                self._ready(node)

    def _fail(self, queued: Queued, refusal: Refusal) -> None:
        if self._exists(queued) and queued.state in ("CREATING", *_QUEUED, "PROVISIONING"):
            queued.error = refusal
            for node in self._nodes_of(queued):
                self._remove(node)
            self._become(queued, "FAILED", refusal.message)

    def _expire(self, queued: Queued) -> None:
        if queued.state in ("CREATING", *_QUEUED):
            self._fail(queued, refusals.expired(queued.name))

    def _suspend(self, queued: Queued, by: str) -> None:
        queued.initiator = by
        self._become(queued, "SUSPENDING", f"by {by}")

        def suspended() -> None:
            if self._exists(queued) and queued.state == "SUSPENDING":
                for node in self._nodes_of(queued):
                    if node.state not in ("PREEMPTED", "DELETING"):
                        self._start_deleting(node)
                self._become(queued, "SUSPENDED", f"by {by}")

        self._later(self.timing.suspend, suspended)

    def _try_to_forget(self, queued: Queued) -> None:
        if self._exists(queued) and queued.state == "DELETING" and not queued.stuck and not self._nodes_of(queued):
            del self._queued[queued.name]
            self.ledger.deleted("queued resource", queued.name)
            self._record("queued resource", queued.name, "deleted")
            self._finish_all(queued.name, "delete")

    # Nodes and their hosts

    def _new_node(self, where: resources.ResourcePath, wanted: Wanted, spot: bool, reserved: bool, queued: str) -> Node:
        name = f"projects/{where.project}/locations/{where.zone}/nodes/{wanted.id}"
        node = Node(name, wanted, wanted.spec, self._now, self._random.getrandbits(62), spot, reserved, queued)
        self._nodes[name] = node
        self.ledger.created("node", name)
        self._record("node", name, "CREATING")
        return node

    def _ready(self, node: Node) -> None:
        if not node.endpoints:
            block = self._random.randrange(1, 250)
            external = node.spec.get("networkConfig", {}).get("enableExternalIps")
            for index in range(node.hardware.hosts):
                end = f"{block}.{index // 250}.{index % 250 + 2}"
                outside = {"accessConfig": {"externalIp": f"203.{end}"}} if external else {}
                node.endpoints.append({"ipAddress": f"10.{end}", "port": 8470, **outside})
        node.health = "HEALTHY"
        trouble = self.faults.random.node(node.hardware.hosts) if self.faults.random else None
        if trouble is not None and trouble.what == "never boots":
            self._bootless.add(Fault(str(trouble.worker), name=node.path.id))
        node.machines = [self._boot(node, worker) for worker in range(node.hardware.hosts)]
        self._show(node, "READY")
        if trouble is not None:
            self._later(trouble.after, lambda: self._befall(node, trouble.what, trouble.worker))

    def _boot(self, node: Node, worker: int) -> Host | None:
        where = node.path
        if self._bootless.take("call", str(worker), name=where.id) is not None or self._machines is None:
            return None
        machine = Machine(
            project=where.project,
            zone=where.zone,
            node=where.id,
            worker=worker,
            workers=node.hardware.hosts,
            slice_index=node.wanted.slice_index,
            slices=node.wanted.slices,
            accelerator_type=node.hardware.accelerator_type,
            topology=node.hardware.topology,
            runtime_version=node.spec.get("runtimeVersion", ""),
            metadata=node.spec.get("metadata", {}),
            labels=node.spec.get("labels", {}),
            spot=node.spot,
            service_account=node.spec.get("serviceAccount", {}).get("email", ""),
        )
        return self._boot_machine(f"{node.name}/{worker}", machine)

    def _boot_machine(self, name: str, machine: Machine) -> Host | None:
        """Boot a machine, furnished as tests want it; `name`: the ledger's. None in a cloud without machines."""
        if self._machines is None:
            return None
        for pattern, number, choices in self._furnished:
            if fnmatchcase(machine.node, pattern) and number in (None, machine.worker):
                machine = dataclasses.replace(machine, **choices)
        handle = self._machines.create(machine)
        self._handles.append((name, handle))
        return handle

    def _repair(self, node: Node, seconds: float, state: State = "REPAIRING") -> None:
        if self._nodes.get(node.name) is not node or node.state != "READY":
            return
        node.health = "UNHEALTHY_MAINTENANCE"
        node.health_description = "The node is under maintenance."
        self._show(node, state)

        def repaired() -> None:
            if node.state == state:
                node.health, node.health_description = "HEALTHY", ""
                for machine in node.booted():
                    machine.maintenance("NONE")
                    machine.reboot()
                self._show(node, "READY")

        self._later(seconds, repaired)

    def _plant(self, *shown: State | None) -> None:
        """Note the numbers among states that a test shows: no value of an enumeration has them."""
        self.planted.update(state for state in shown if isinstance(state, int))

    def _preempted(self, node: Node, shows: State, suspends: bool) -> None:
        if self._nodes.get(node.name) is not node or node.state == "DELETING":
            return
        self._end_machines(node)
        if shows == "gone":
            self._remove(node)
        elif shows == "DELETING":
            self._start_deleting(node)
        else:
            self._show(node, shows)
        self._room()
        queued = self._queued.get(node.queued)
        if suspends and queued is not None and queued.state in ("ACTIVE", "PROVISIONING"):
            self._suspend(queued, "SERVICE")

    def _befall(self, node: Node, what: str, worker: int) -> None:
        if self._nodes.get(node.name) is not node or node.state != "READY":
            return
        actions: dict[str, Callable[[], None]] = {
            "preemption with notice": lambda: self.preempt(node.name, 2.0),
            "preemption": lambda: self.preempt(node.name),
            "gone": lambda: self.preempt(node.name, shows="gone"),
            "reboot": lambda: self.reboot(node.name, worker),
            "maintenance": lambda: self.maintenance(node.name),
            "power failure": lambda: self.power_off(node.name, worker),
        }
        if what != "never boots":  # `_ready` sees to that one
            actions[what]()

    def _start_deleting(self, node: Node) -> None:
        if node.state == "DELETING":
            return
        self._show(node, "DELETING")
        self._later(self._delete_seconds(node.name), lambda: self._node_gone(node))

    def _node_gone(self, node: Node) -> None:
        if self._nodes.get(node.name) is not node:
            return
        self._end_machines(node)
        node.stuck = self._sticks(node.name)
        if not node.stuck:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        self._end_machines(node)
        self.ledger.idle(node.name)
        del self._nodes[node.name]
        self.ledger.deleted("node", node.name)
        self._record("node", node.name, "deleted")
        self._finish_all(node.name, "delete")
        queued = self._queued.get(node.queued)
        if queued is not None:
            self._try_to_forget(queued)
        self._room()

    def _end_machines(self, node: Node) -> None:
        for machine in node.booted():
            machine.destroy()

    def _show(self, node: Node, state: State) -> None:
        if state == node.state:
            return
        if node.state == "READY":
            self.ledger.idle(node.name)
        node.state = state
        if state == "READY":
            self.ledger.ready(node.name, node.hardware.chips)
        self._record("node", node.name, str(state))

    def _become(self, queued: Queued, state: State, why: str = "") -> None:
        queued.state = state
        if state not in ("SUSPENDING", "SUSPENDED"):
            queued.initiator = ""
        self._record("queued resource", queued.name, f"{state}: {why}" if why else str(state))

    # Operations

    def _operation(self, target: str, verb: str, answer: str = "") -> Operation:
        parent = "/".join(target.split("/")[:4])
        name = f"{parent}/operations/operation-{next(self._numbers)}-{self._random.getrandbits(48):012x}"
        operation = Operation(name, target, verb, self._now, answer)
        self._operations[name] = operation
        return operation

    def _finish(self, operation: Operation, response: Json | None = None, error: Refusal | None = None) -> None:
        if operation.ended:
            return
        if self._endless.take("operation", operation.verb) is not None:
            return
        fault = self.faults.take("operation", _METHOD_OF.get((operation.verb, operation.answer), ""))
        if fault is not None and fault.refusal is not None:
            error = fault.refusal()
        operation.ended, operation.response, operation.error = self._now, response, error

    def _finish_all(self, target: str, verb: str) -> None:
        for operation in list(self._operations.values()):
            if operation.target == target and operation.verb == verb:
                self._finish(operation)

    def _pending(self, target: str, verb: str) -> Operation:
        """The operation that is under way already."""
        for operation in self._operations.values():
            if operation.target == target and operation.verb == verb and not operation.ended:
                return operation
        return self._operation(target, verb)

    # Look-ups

    def _sticks(self, name: str) -> bool:
        return any(pattern in ("*", name, name.rpartition("/")[2]) for pattern in self._stuck_deletes)

    def _delete_seconds(self, name: str) -> float:
        for pattern in (name, name.rpartition("/")[2], "*"):
            if pattern in self._slow_deletes:
                return self._slow_deletes[pattern]
        return self.timing.delete

    def _nodes_of(self, queued: Queued) -> list[Node]:
        return [self._nodes[name] for name in queued.nodes if name in self._nodes]

    def _exists(self, queued: Queued) -> bool:
        return self._queued.get(queued.name) is queued

    @staticmethod
    def _named(among: Mapping[str, T], name: str) -> T:
        """Look up an entry for a caller of the API, by its full name."""
        if name not in among:
            raise refusals.missing(name)
        return among[name]

    def _chosen(self, kind: str, among: Mapping[str, T], name: str) -> T:
        """Look up an entry for a test, by its full name or by its id alone."""
        found = self._find(among, name)
        if found is None:
            raise LookupError(f"there is no {kind} {name}; there are: {', '.join(among) or 'none'}")
        return found

    @staticmethod
    def _find(among: Mapping[str, T], name: str) -> T | None:
        """Look up an entry by its full name or by its id alone."""
        if name in among:
            return among[name]
        return next((value for key, value in among.items() if key.rpartition("/")[2] == name), None)

    def _living(self) -> list[str]:
        self._handles = [(name, handle) for name, handle in self._handles if handle.alive]
        return [name for name, _ in self._handles]

    def _event(self) -> int:
        return self._random.getrandbits(60)
