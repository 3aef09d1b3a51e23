"""The groups of the simulated Compute Engine: slices of TPUs, with their policies and templates, as `compute` has VMs.

A group in bulk mode has all its members at once, or none and a reason, and tries again for as long as it is there. Its
deletion ends its members, and holds on to policy and template for a while. One that loses a member makes it again, or
does not, as a seed has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from tests.simulation.compute import (
    CLIENT,
    RUNNING,
    Compute,
    Group,
    Instance,
    Json,
    moment,
    orders_in,
)
from tests.simulation.world import Violation
from tests.simulation.zones import DRY, FAILING, FREE, LASTING, QUEUE

AGENT = "123456789012@cloudservices.gserviceaccount.com"  # by which groups act
POLICIES, TEMPLATES, MANAGERS = "resourcePolicies", "instanceTemplates", "instanceGroupManagers"
RETRY = 30.0  # seconds until a group without members tries again
CREATING, ACTIVE, DEGRADED, FAILED, DELETING = "CREATING", "ACTIVE", "ACTIVE_DEGRADED", "FAILED", "DELETING"


class Described:
    """Whatever has a description instead of labels."""

    orphan = False

    def __init__(self, name: str, body: Mapping[str, Any], now: float) -> None:
        self.name = name
        _, self.project, _, self.place, self.kind, self.id = name.split("/")
        self.body = body
        self.description = str(body.get("description", ""))
        found = _read(self.description)
        self.labels: dict[str, str] = found.get("kinetic", {})
        self.until = float(found.get("until") or "inf")
        self.created = now
        self.state = CREATING
        self.asked = False  # somebody has asked for its deletion, whatever the answer was
        self.going = 0.0
        self.idle = 0  # accepted deletes that did nothing

    @property
    def ident(self) -> tuple[str, int]:
        """Job and attempt; ("", 0) of what is not ours."""
        return self.labels.get("kinetic-job", ""), int(self.labels.get("kinetic-attempt", 0))

    def shown(self) -> Json:
        scope, place = self.name.split("/")[2].removesuffix("s"), "/".join(self.name.split("/")[:4])
        return {
            "name": self.id, scope: f"https://compute/{place}", "description": self.description,
            "creationTimestamp": moment(self.created), "selfLink": f"https://compute/{self.name}",
        }  # fmt: skip


class Kept(Described):
    """A workload policy or an instance template."""

    ready = False

    def shown(self) -> Json:
        status = {"status": "READY" if self.ready else "CREATING"} if self.kind == POLICIES else {}
        return super().shown() | status


class Manager(Described):
    """A managed instance group."""

    def __init__(self, name: str, body: Mapping[str, Any], attempt: Group, now: float) -> None:
        super().__init__(name, body, now)
        self.queued = attempt
        self.zone = self.place
        self.template = str(body["instanceTemplate"])
        self.policy = str((body.get("resourcePolicies") or {}).get("workloadPolicy") or "")
        self.size, self.started = int(body["targetSize"]), now
        self.members: dict[int, Member] = {}  # those that there are
        self.had: set[int] = set()  # those that there were
        self.bulk = True  # it waits for members
        self.error: ComputeRefusal | None = None
        self.checked = 0.0
        self.leaves = 0.0  # what is deleted stays at least until then

    @property
    def told(self) -> Json:
        return self.queued.told

    def names(self) -> list[str]:
        base, _, first = str(self.body["baseInstanceName"]).rstrip("]").partition("[")
        digits = base.count("#")
        return [f"{base.rstrip('#')}{int(first) + index:0{digits}}" for index in range(self.size)]

    def shown(self) -> Json:
        there = sum(one.state == RUNNING for one in self.members.values())
        bulk: Json = {"inProgress": self.bulk}
        if self.bulk and self.checked:
            error = {} if self.error is None else {"error": self.error.of_operation()["error"]}
            bulk["lastProgressCheck"] = {"timestamp": moment(self.checked), **error}
        status: Json = {"isStable": not self.bulk and not self.going, "bulkInstanceOperation": bulk}
        if self.policy:
            topology = self.state if self.state in (ACTIVE, DEGRADED, FAILED) else "INCOMPLETE"
            topology = "DEACTIVATING" if self.going else topology
            status["appliedAcceleratorTopologies"] = [{"acceleratorTopology": "4x4", "state": topology}]
            status["currentInstanceStatuses"] = {"running": there, "nonExistent": self.size - len(self.members)}
        missing = [index for index in range(self.size) if index not in self.members and self.bulk]
        actions = {
            "creating": sum(index not in self.had for index in missing),
            "recreating": sum(index in self.had for index in missing),
            "deleting": self.size if self.going else 0,
            "none": 0 if self.going else len(self.members),
        }
        return super().shown() | {
            "currentActions": actions, "zone": f"https://compute/projects/{self.project}/zones/{self.zone}",
            "baseInstanceName": self.body["baseInstanceName"], "targetSize": self.size, "status": status,
            "instanceTemplate": f"https://compute/{self.template}", "resourcePolicies": self.body.get("resourcePolicies", {}),
        }  # fmt: skip


class Member(Instance):
    """A VM of a group."""

    def __init__(self, name: str, manager: Manager, worker: int, body: Mapping[str, Any], now: float) -> None:
        super().__init__(name, manager.queued, body, now)
        self.manager, self.worker = manager, worker
        base = self.told["resource"].rpartition("/")[2]
        number = manager.id.removeprefix(base).removeprefix("-")
        self.index = (int(number) if number else 0) * manager.size + worker


def _read(description: str) -> Json:
    try:
        found = json.loads(description)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Grouped(Compute):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.may_wait: Callable[[Manager], object] = lambda _manager: None
        self.reads: Callable[[Manager], object] = lambda _manager: None
        self.managers: dict[str, Manager] = {}
        self.kept: dict[str, Kept] = {}
        self.held: dict[str, tuple[str, float]] = {}  # what a group that is gone holds on to: by whom, until when

    def _job_of(self, body: Mapping[str, Any]) -> str:
        if "metadata" in body:
            return super()._job_of(body)
        return str(_read(body["description"])["kinetic"]["kinetic-job"])

    def attempt_of(self, one: Manager | Instance) -> list[Manager]:
        """The groups of the attempt that one of them is of."""
        return [other for other in self.managers.values() if other.queued is one.queued]

    def _answer(self, method: str, path: str, body: Any, params: Mapping[str, str]) -> Json:
        collection = path.rpartition("/")[0]
        kind = collection.rpartition("/")[2]
        if "/operations/" in path:
            return self._operation(path)
        if kind in (POLICIES, TEMPLATES, MANAGERS) and method != "POST":
            if method == "DELETE":
                return self._delete_group(path) if kind == MANAGERS else self._delete_kept(path)
            things: Mapping[str, Described] = self.managers if kind == MANAGERS else self.kept
            if path not in things:
                raise refusals.missing(path)
            if kind == MANAGERS:
                self.reads(self.managers[path])
            return things[path].shown()
        return super()._answer(method, path, body, params)

    def _listed(self, kind: str, wanted: str) -> Json:
        if kind not in (POLICIES, TEMPLATES, MANAGERS):
            return super()._listed(kind, wanted)
        items: dict[str, Json] = {}
        silent: list[str] = []
        for name in list(self.shown):
            _, _, scopes, place, its_kind, ident = name.split("/")
            if its_kind != kind or wanted.removeprefix("name:") not in ident or (view := self.view(name)) is None:
                continue
            items.setdefault(f"{scopes}/{place}", {}).setdefault(kind, []).append(view)
            if name in self.managers:
                self.reads(self.managers[name])
        for scope in list(items):
            if not self.calm and self.world.random.random() < self.odds.unreachable:
                self.world.reached.add("a place did not answer of its groups, templates or policies")
                silent.append(f"projects/p/{scope}")
                del items[scope]
        return {"items": items, **({"unreachables": silent} if silent else {})}

    def _operation(self, path: str) -> Json:
        """Return an operation as it is now, or once it has ended, for which it is waited a while."""
        name = path.removesuffix("/wait").rpartition("/")[2]
        found = next((one for one in self.operations if one["name"] == name), None)
        if found is None or (self.odds.forgets and not self.calm):
            raise refusals.missing(name)
        for _ in range(5 if path.endswith("/wait") else 0):
            if found["status"] == "DONE":
                break
            self.world.sleep(2.0)
        return dict(found)

    def _insert(self, path: str, body: Mapping[str, Any]) -> Json:
        kinds = {POLICIES: self._keep, TEMPLATES: self._keep, MANAGERS: self._insert_group}
        return kinds.get(path.split("/")[-2], super()._insert)(path, body)

    # ---- policies and templates --------------------------------------------------------------------------

    def _keep(self, path: str, body: Mapping[str, Any]) -> Json:
        world, draw = self.world, self.world.random
        one = Kept(path, body, world.now)
        self._admit(path, one, self.kept, "a policy or a template")
        operation = self._begin("insert", path, CLIENT)
        self.kept[path] = one

        def ready() -> None:
            one.ready = True
            one.state = "READY"
            self._end(operation)
            if self.kept.get(path) is one:
                self.show(one)

        self.show(one)
        if seconds := draw.choice((0.0, 1.0, 10.0)) * draw.random():
            world.at(world.now + seconds, ready)
        else:
            ready()
        return operation

    def _user_of(self, path: str) -> str:
        for manager in self.managers.values():
            if path in (manager.template, manager.policy):
                return manager.name
        user, until = self.held.get(path, ("", 0.0))
        return user if self.world.now < until else ""

    def _delete_kept(self, path: str) -> Json:
        one = self._wanted_gone(path, self.kept)
        if user := self._user_of(path):
            self.world.reached.add("a policy or a template was in use")
            raise refusals.in_use(path, user)
        operation = self._begin("delete", path, CLIENT)

        def gone() -> None:
            self._end(operation)
            if self.kept.get(path) is one:
                del self.kept[path]
                self.show(one, gone=True)

        self.world.at(self.world.now + self.world.random.uniform(0.0, 5.0), gone)
        return dict(operation)

    # ---- groups ------------------------------------------------------------------------------------------

    def _insert_group(self, path: str, body: Mapping[str, Any]) -> Json:
        world, draw = self.world, self.world.random
        policy = (body.get("resourcePolicies") or {}).get("workloadPolicy")
        for needed in (body["instanceTemplate"], *([policy] if policy else [])):
            if needed not in self.kept:
                world.reached.add("a group came before its policy or its template")
                raise refusals.missing(needed)
            if not self.kept[needed].ready:
                world.reached.add("a group came before its policy or its template was ready")
                raise refusals.not_ready(needed)
        template = self.kept[body["instanceTemplate"]]
        told = orders_in(template.body["properties"])
        attempt = self.queued.setdefault(told["resource"], Group(told["resource"], told))
        manager = Manager(path, body, attempt, world.now)
        attempt.valid = manager.until - world.now
        self._admit(path, attempt, self.managers)
        weather = self.weather(self.zones[attempt.zone])
        if weather == FAILING and draw.random() < 0.3 and (refusal := self._refusal(attempt, weather, True)):
            world.reached.add("the insert of a group was refused")
            self.harm(attempt, weather)
            raise refusal
        operation = self._begin("insert", path, CLIENT)
        self.managers[path] = manager
        self.may_wait(manager)
        if manager.until < world.now + 1.0:
            self._expire(manager)  # it is asked for by who comes late
        elif manager.until != float("inf"):
            world.at(manager.until - 1.0, lambda: self._expire(manager))
        self.show(manager)
        world.at(world.now + draw.choice((0.0, 2.0, 20.0)) * draw.random(), lambda: self._fill(manager, operation))
        return operation

    def _expire(self, manager: Manager) -> None:
        """Nothing happens by itself: it waits on, until somebody deletes it; or it gives up, and says nothing."""
        if self._exists(manager) and manager.bulk and not manager.had:
            self.world.reached.add("a group waited for longer than it was to")
            self.harm(manager.queued, "expired")
            if self.odds.gives_up:
                manager.bulk, manager.error = False, None
                self.show(manager)

    def _has_given_up(self, manager: Manager) -> bool:
        return self.odds.gives_up and not manager.had and self.world.now >= manager.until - 1.0

    def _exists(self, manager: Manager) -> bool:
        return self.managers.get(manager.name) is manager and not manager.going

    def _fill(self, manager: Manager, operation: Json | None = None) -> None:
        """Make all members that there are not, or none of them."""
        world, draw = self.world, self.world.random
        if operation is not None:
            self._end(operation)
        missing = [index for index in range(manager.size) if index not in manager.members]
        if not self._exists(manager) or not missing or self._has_given_up(manager):
            return
        if not manager.bulk:
            manager.bulk = True
            self.show(manager)
        weather = self.weather(self.zones[manager.zone])
        known = DRY if weather == QUEUE else weather
        refusal = None if weather == FREE else self._refusal(manager.queued, known, False)
        names = [f"projects/{manager.project}/zones/{manager.zone}/disks/{manager.names()[index]}" for index in missing]
        if taken := [name for name in names if name in self.disks]:
            world.reached.add("a disk kept a member from being made again")
            refusal = refusals.exists(taken[0])
        if refusal is not None:
            world.reached.add(f"a group has no members: {weather}")
            self.harm(manager.queued, known)
            said, manager.error, manager.checked = manager.error, refusal, world.now
            if said is None or said.message != refusal.message:
                self.show(manager)
            if not (self.calm and weather in LASTING):  # it goes on without end, and no more comes of it
                world.at(world.now + RETRY * draw.uniform(0.5, 2.0), lambda: self._fill(manager))
            return
        body = self.kept[manager.template].body["properties"] if manager.template in self.kept else None
        if body is None:
            raise Violation(f"the template of {manager.id} went before it")
        if len(missing) < manager.size:
            world.reached.add("a group made a member again")
        for index in missing:
            path = f"projects/{manager.project}/zones/{manager.zone}/instances/{manager.names()[index]}"
            one = Member(path, manager, index, body, world.now)
            manager.members[index] = one
            manager.had.add(index)
            self._make(one)
            insert = self._begin("insert", path, AGENT)
            seconds = draw.uniform(3.0, 60.0)
            world.at(world.now + seconds, lambda one=one: self._run(one))
            world.at(world.now + seconds, lambda insert=insert: self._end(insert))
            self.show(one)
        manager.error = None
        self.show(manager)

    def _run(self, one: Instance) -> None:
        super()._run(one)
        if isinstance(one, Member) and one.state == RUNNING and self._exists(one.manager):
            manager = one.manager
            if all(index in manager.members and manager.members[index].started for index in range(manager.size)):
                manager.bulk, manager.state = False, ACTIVE
                self.show(manager)

    def degrade(self, manager: Manager) -> None:
        """The links between its chips fail."""
        manager.state = self.world.random.choice((DEGRADED, FAILED))
        self.show(manager)

    def _forget(self, one: Instance) -> None:
        there = self.nodes.get(one.name) is one
        super()._forget(one)
        if not there or not isinstance(one, Member):
            return
        manager = one.manager
        if manager.members.get(one.worker) is one:
            del manager.members[one.worker]
        if manager.going:
            self._settle(manager)
            return
        if self.managers.get(manager.name) is manager:
            if manager.state not in (DEGRADED, FAILED):
                manager.state = "INCOMPLETE"
            self.show(manager)
            if self.odds.remakes:
                self.world.at(self.world.now + 5.0 * self.world.random.random(), lambda: self._fill(manager))

    def stop(self, one: Instance) -> None:
        super().stop(one)
        if self.odds.remakes and isinstance(one, Member) and self._exists(one.manager):
            self._begin("delete", one.name, AGENT, ended=True)
            self.world.at(self.world.now + 20.0 * self.world.random.random(), lambda: self.end(one))

    def _delete_group(self, path: str) -> Json:
        manager = self._wanted_gone(path, self.managers)
        return self._deleted(manager, "an accepted delete of a group", lambda: self.end_group(manager))

    def end_group(self, manager: Manager) -> None:
        """The group goes, and its members with it, whoever wants it."""
        if manager.going:
            return
        world = self.world
        manager.going, manager.state, manager.bulk = world.now, DELETING, False
        manager.queued.going = manager.queued.going or world.now
        self.show(manager)
        for one in list(manager.members.values()):
            if not one.going:
                self._begin("delete", one.name, AGENT, ended=True)
                one.asked = True
                self.end(one)
        manager.leaves = world.now + self._slowness()
        world.at(manager.leaves, lambda: self._settle(manager))

    def _settle(self, manager: Manager) -> None:
        """It is gone once its members are; what it was made of is held for a while."""
        if self.managers.get(manager.name) is not manager or manager.members or self.world.now < manager.leaves:
            return
        del self.managers[manager.name]
        self.show(manager, gone=True)
        lingers = self.world.random.choice((0.0, 0.0, 10.0, 60.0))
        for path in (manager.template, manager.policy):
            if path and lingers:
                self.held[path] = manager.name, self.world.now + lingers

    @property
    def described(self) -> list[Described]:
        return [*self.managers.values(), *self.kept.values()]
