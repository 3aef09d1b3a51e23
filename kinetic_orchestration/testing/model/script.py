"""The methods by which a test scripts failures of the emulated cloud. docs/pipelines/emulator.md explains them.

Each method states one fact about the cloud; `lifecycle` decides the consequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import TPU, Refusal
from kinetic_orchestration.testing.model.clock import step
from kinetic_orchestration.testing.model.deviations import Alter, AlterRefusal, Deviation, Instead
from kinetic_orchestration.testing.model.faults import At, Fault, Faults
from kinetic_orchestration.testing.model.lifecycle import Lifecycle
from kinetic_orchestration.testing.model.quotas import Quota
from kinetic_orchestration.testing.model.state import resources
from kinetic_orchestration.testing.model.state.resources import State

_KNOWN = {13: refusals.internal, 14: refusals.unavailable}


class Script(Lifecycle):
    @step
    def fail(
        self,
        method: str,
        code: int = 13,
        message: str = "",
        *,
        times: int | None = 1,
        at: At = "call",
        zone: str = "*",
        caller: str = "*",
        name: str = "*",
        refusal: Refusal | None = None,
    ) -> None:
        """The next `times` calls of `method` (`*` matches any; None: for ever) are refused.

        `at="call"`: the call itself. `at="provision"`: the call works, and the queued resource becomes FAILED.
        `at="operation"`: it works, and only its operation says that it failed.
        """
        known = refusal or (_KNOWN[code]() if code in _KNOWN and not message else Refusal(code, message or "emulated"))
        self.faults.add(Fault(method, times, lambda: known, at, zone=zone, caller=caller, name=name))

    @step
    def lose_answer(self, method: str, times: int | None = 1, *, zone: str = "*", caller: str = "*") -> None:
        """The next calls of `method` are done, but their callers see the connection break."""
        self.faults.add(Fault(method, times, lose=True, zone=zone, caller=caller))

    @step
    def slow(
        self, method: str, seconds: float, times: int | None = None, *, zone: str = "*", caller: str = "*"
    ) -> None:
        """Calls of `method` are answered `seconds` later."""
        self.faults.add(Fault(method, times, delay=seconds, zone=zone, caller=caller))

    @step
    def stockout(self, zone: str, how: Literal["fail", "wait", "refuse"] = "fail", times: int | None = None) -> None:
        """`zone` has no hardware left: queued resources become FAILED, wait, or are refused at once."""
        if how == "wait":
            self._zones[zone] = 0
            return
        at: At = "provision" if how == "fail" else "call"
        self.faults.add(Fault("Create*", times, lambda: refusals.no_capacity(zone, self._event()), at, zone=zone))

    @step
    def restock(self, zone: str, chips: int | None = None) -> None:
        """`zone` has hardware again: `chips` of it, or without end."""
        self._zones[zone] = chips
        self.faults.scripted = [fault for fault in self.faults.scripted if fault.zone != zone]
        self._room()

    @step
    def quota(
        self, scope: str, limit: int | None, generation: str = "", *, spot: bool | None = None, at: At = "call"
    ) -> None:
        """Limit `scope`, a zone or a region, to `limit` cores or chips, as accelerator types count them.

        None lifts the limit. FAILED and SUSPENDED resources count until they are deleted.
        """
        same = (scope, generation, spot)
        self._quotas = [known for known in self._quotas if (known.scope, known.generation, known.spot) != same]
        if limit is not None:
            self._quotas.append(Quota(scope, limit, generation, spot, at))

    @step
    def create_rate(self, per_minute: int | None) -> None:
        """Limit the number of nodes that may be requested per minute; None: no limit."""
        self._rate = per_minute

    @step
    def deny(self, caller: str, permission: str) -> None:
        """`caller` (client, vm, a node's id, or `*`) has not got `permission` (`*`: any at all)."""
        self._denied.add((caller, permission))

    @step
    def allow(self, caller: str, permission: str) -> None:
        self._denied.discard((caller, permission))

    @step
    def disable(self, service: str = TPU) -> None:
        """The API is not enabled in any project."""
        self._disabled.add(service)

    @step
    def enable(self, service: str = TPU) -> None:
        self._disabled.discard(service)

    @step
    def remove_zone(self, zone: str) -> None:
        """Remove `zone` from all projects."""
        self._zones.pop(zone, None)

    @step
    def never_boots(self, worker: int = 0, node: str = "*", times: int | None = 1) -> None:
        """The worker `worker` of the next nodes never boots, though the node becomes READY."""
        self._bootless.add(Fault(str(worker), times, name=node))

    @step
    def furnish(self, choices: Mapping[str, Any], node: str = "*", worker: int | None = None) -> None:
        """Hosts that boot from now on get other fields of `Machine`: python, index, clock_skew, disk, silent, …

        `node` is the id of a node or the name of an instance, or a pattern of such (`*-1`).
        """
        self._furnished.append((node, worker, choices))

    @step
    def stuck_operations(self, method: str = "Create", times: int | None = None) -> None:
        """Operations of that verb (create, delete, …) never finish, regardless of their target."""
        self._endless.add(Fault(method.lower(), times, at="operation"))

    @step
    def stuck_delete(self, name: str = "*") -> None:
        """The queued resource or node of that id stays DELETING, its hosts dead, until `unstick`."""
        self._stuck_deletes.append(name)

    @step
    def unstick(self, name: str = "*") -> None:
        self._stuck_deletes = [pattern for pattern in self._stuck_deletes if pattern != name]
        for node in list(self._nodes.values()):
            if node.stuck and not self._sticks(node.name):
                node.stuck = False
                self._node_gone(node)
        for queued in list(self._queued.values()):
            queued.stuck = queued.stuck and self._sticks(queued.name)
            self._try_to_forget(queued)

    @step
    def slow_delete(self, seconds: float, name: str = "*") -> None:
        """Set the duration of a delete."""
        self._slow_deletes[name] = seconds

    @step
    def show(self, name: str, state: State, health: State | None = None) -> None:
        """A node or queued resource shows that state, for once: also a number that no client knows."""
        found = self._find(self._nodes, name)
        if found is not None:
            self._plant(state, health)
            self._show(found, state)
            found.health = found.health if health is None else health
            return
        self._plant(state)
        self._become(self._chosen("queued resource", self._queued, name), state)

    @step
    def symptom(self, node: str, kind: str, worker: int = 0, details: str = "") -> None:
        """A symptom, such as HBM_OUT_OF_MEMORY, is seen on a worker."""
        self._chosen("node", self._nodes, node).symptoms.append(
            {
                "createTime": resources.stamp(self._now),
                "symptomType": kind,
                "workerId": str(worker),
                "details": details,
            }
        )

    @step
    def deviate(
        self, call: str, *, answer: Alter | None = None, refusal: AlterRefusal | None = None,
        instead: Instead | None = None, unknown: bytes = b"",
    ) -> None:  # fmt: skip
        """Clients are answered otherwise than the emulator has it, as a cloud might that is not as was assumed.

        `call` is a method, or the HTTP method and path of another API, with `*`. `answer` makes another answer of
        the right one, and `refusal` another refusal; `instead` gives an answer without anything being done, or None;
        `unknown` are bytes of fields that no client library knows, over gRPC.
        """
        self.deviations.append(Deviation(call, answer, refusal, instead, unknown))

    @step
    def clear_faults(self) -> None:
        """Remove all faults, denials and limits; past failures keep their effects."""
        self.faults = Faults()
        self.deviations.clear()
        self._endless, self._bootless, self._quotas, self._slow_deletes = Faults(), Faults(), [], {}
        self._denied, self._disabled = set(), set()
        self._stuck_deletes = []
        self.unstick()
        self.compute.clear_faults()

    @step
    def sweep(self) -> None:
        """Delete all resources immediately, as a user would at the console after a test."""
        self.clear_faults()
        for queued in list(self._queued.values()):
            if queued.state != "DELETING":
                self._become(queued, "DELETING")
        for node in list(self._nodes.values()):
            self._remove(node)
        for queued in list(self._queued.values()):
            self._try_to_forget(queued)
        self.compute.sweep()
