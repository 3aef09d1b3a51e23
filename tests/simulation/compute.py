"""A simulated Compute Engine, below the session of the real client: instances, their operations and disks, by zones.

It answers in Google's JSON. A refusal is told at the call, or by the operation that the call began. Lists lag and may
leave out zones, a VM may never be shown or vanish without a word, and what is deleted may stay, or leave its disk.
As `cloud`, it does not know what jobs are, except that it asks the judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kinetic_orchestration.platforms.google.rest.client import Answer
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from tests.simulation.world import Unreachable, World
from tests.simulation.zones import (
    DRY,
    FAILING,
    FREE,
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

Json = dict[str, Any]

PENDING, PROVISIONING, STAGING, RUNNING = "PENDING", "PROVISIONING", "STAGING", "RUNNING"
STOPPING, TERMINATED, REPAIRING = "STOPPING", "TERMINATED", "REPAIRING"
HIDDEN = "hidden"  # an insert that succeeds, and whose VM nobody ever sees
ACCOUNT, CLIENT, SOMEBODY, GOOGLE = "vm@p.iam.gserviceaccount.com", "client@example.com", "her@example.com", "system"
LISTS = ("operations", "instances", "disks", "instanceGroupManagers", "instanceTemplates", "resourcePolicies")
_KINDS = {  # of the operations by which Google tells what it did
    "preempted": "compute.instances.preempted",
    "host error": "compute.instances.hostError",
    "guest": "compute.instances.guestTerminate",
}


class Group:
    """The VMs of one attempt, whose names begin alike."""

    def __init__(self, name: str, told: Json) -> None:
        self.name = name
        _, _, _, self.zone, _, self.id = name.split("/")
        self.told = told
        self.members: list[Instance] = []  # all that ever were
        self.valid = 0.0
        self.harmed = False
        self.going = 0.0  # since when one of them is being deleted by whoever may

    @property
    def state(self) -> int:
        """As that of a queued resource."""
        if self.going:
            return states.DELETING
        there = {one.index for one in self.members if one.state == RUNNING}
        vms = self.told["hosts"] // self.told.get("processes", 1)
        return states.ACTIVE if len(there) == vms else states.BEING_MADE


class Instance:
    orphan = False

    def __init__(self, name: str, group: Group, body: Mapping[str, Any], now: float) -> None:
        self.name = name
        _, self.project, _, self.zone, _, self.id = name.split("/")
        self.queued = group
        self.told = orders_in(body)
        self.index: int = self.told.get("host", 0)  # of its first host
        self.labels: dict[str, str] = dict(body["labels"])
        scheduling = body["scheduling"]
        self.model: str = scheduling["provisioningModel"]
        self.spot, self.flex = self.model == "SPOT", self.model == "FLEX_START"
        self.runs = float(scheduling["maxRunDuration"]["seconds"])
        self.valid = float((body.get("params") or {}).get("requestValidForDuration", {}).get("seconds", "inf"))
        self.state = PROVISIONING
        self.created, self.started, self.ends = now, 0.0, 0.0
        self.going = 0.0
        self.off = 0.0  # since when it is charged for no longer, though it may be there
        self.asked = False  # somebody has asked for its deletion, whatever the answer was
        self.idle = 0  # accepted deletes that did nothing
        self.machines: list[Any] = []

    def shown(self) -> Json:
        limit = {"scheduling": {"terminationTimestamp": moment(self.ends)}} if self.ends else {}
        return {
            "name": self.id, "zone": f"https://compute/projects/{self.project}/zones/{self.zone}", "status": self.state,
            "labels": self.labels, "creationTimestamp": moment(self.created),
            "scheduling": {"provisioningModel": self.model}, "serviceAccounts": [{"email": ACCOUNT}],
            "networkInterfaces": [{"networkIP": f"10.0.0.{self.index}"}], "resourceStatus": limit,
            **({"lastStartTimestamp": moment(self.started)} if self.started else {}),
        }  # fmt: skip


class BootDisk:
    state = "READY"

    def __init__(self, name: str, labels: dict[str, str], group: Group, now: float) -> None:
        self.name = name
        _, self.project, _, self.zone, _, self.id = name.split("/")
        self.labels, self.queued, self.created = labels, group, now

    def shown(self) -> Json:
        zone = f"https://compute/projects/{self.project}/zones/{self.zone}"
        return {"name": self.id, "zone": zone, "labels": self.labels, "creationTimestamp": moment(self.created)}


def orders_in(body: Mapping[str, Any]) -> Json:
    """The orders that a VM is to be given."""
    found: Json = json.loads(next(it["value"] for it in body["metadata"]["items"] if it["key"] == "kinetic"))
    return found


def _is_chosen(one: Json, wanted: str) -> bool:
    """Return True for what a filter chooses: by a label, or by a part of its name."""
    if wanted.startswith("name:"):
        return wanted.removeprefix("name:") in one["name"]
    label, _, value = wanted.removeprefix("labels.").partition("=")
    return bool(one["labels"].get(label) == value)


def moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="microseconds")


class Compute(Zones):
    def __init__(self, world: World, zones: dict[str, Zone], odds: Odds) -> None:
        super().__init__(world, zones, odds)
        self.queued: dict[str, Group] = {}
        self.nodes: dict[str, Instance] = {}
        self.disks: dict[str, BootDisk] = {}
        self.operations: list[Json] = []
        self.answers: dict[str, Json] = {}
        self.account_of: Any = lambda: ""  # of the machine that asks; "" for a client
        self.shutdown = 0.0  # seconds that a VM has to shut down when it is deleted; at 0 its power is cut
        self.press: Callable[[Instance], object] = lambda _one: None
        self.is_off: Callable[[Instance], bool] = lambda _one: True

    # ---- calls -------------------------------------------------------------------------------------------

    def call(
        self, method: str, service: str, path: str, body: Any = None, params: Mapping[str, str] | None = None,
        within: float = 0.0,
    ) -> Answer:  # fmt: skip
        """Act as the session of a process (`rest.client.Google`)."""
        del service, within
        path = path.removeprefix("compute/v1/")
        plural = path.endswith(LISTS)
        verb = {"POST": "submit", "DELETE": "release"}.get(method, "list" if plural else "get")
        verb = "operation" if path.endswith("/wait") else verb
        name = path.removeprefix("projects/p/") if plural and method == "GET" else path.rpartition("/")[2]
        name = str(body["name"]) if body else name
        try:
            self.world.request(verb, name, Unreachable)
            answer = self.answered(method, path, body, params or {})
            self.world.request(verb, name, Unreachable, done=True)
        except Unreachable as lost:
            return Answer(0, {"error": {"message": str(lost), "status": "UNAVAILABLE"}})
        if body:
            self.made(self._job_of(body))
        return answer

    def _job_of(self, body: Mapping[str, Any]) -> str:
        return str(orders_in(body)["job"])

    def answered(self, method: str, path: str, body: Any, params: Mapping[str, str]) -> Answer:
        try:
            return Answer(200, self._answer(method, path, body, params), self.world.now)
        except ComputeRefusal as refusal:
            return Answer(refusal.http, refusal.to_http(), self.world.now)

    def _answer(self, method: str, path: str, body: Any, params: Mapping[str, str]) -> Json:
        _, _, rest = path.partition("projects/p/")
        if method == "POST":
            return self._inserted(f"{path}/{body['name']}", body, params["requestId"])
        if method == "DELETE":
            return self._delete_disk(path) if "/disks/" in path else self._delete(path)
        if rest.startswith("aggregated/"):
            return self._listed(rest.partition("/")[2], params["filter"])
        if rest.endswith("/operations"):
            return {"items": self._told_of(params["filter"].removeprefix("targetLink:"))}
        if path.endswith("/serialPort"):
            return {"contents": "the kernel says little\n"}
        things: Mapping[str, Instance | BootDisk] = self.disks if "/disks/" in path else self.nodes
        if path not in things:
            raise refusals.missing(path)
        return things[path].shown()

    def _listed(self, kind: str, wanted: str) -> Json:
        """An aggregated list: zones that are silent are told in one of two ways, and have things all the same."""
        items: dict[str, Json] = {f"zones/{zone}": {} for zone in self.zones}
        silent: list[str] = []
        for zone in self.zones:
            if not self.calm and self.world.random.random() < self.odds.unreachable:
                self.world.reached.add("a zone did not answer")
                if self.world.random.random() < 0.5:
                    items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE"}}
                else:
                    silent.append(f"projects/p/zones/{zone}")
                    del items[f"zones/{zone}"]
                continue
            names = [name for name in self.shown if f"/zones/{zone}/{kind}/" in name]
            found = [view for name in names if (view := self.view(name)) is not None]
            if mine := [one for one in found if _is_chosen(one, wanted)]:
                items[f"zones/{zone}"] = {kind: mine}
        return {"items": items, **({"unreachables": silent} if silent else {})}

    def _told_of(self, part: str) -> list[Json]:
        """The operations of everything whose path has a part in it."""
        if self.odds.forgets and not self.calm:
            self.world.reached.add("operations were forgotten")
            return []
        return [dict(one) for one in self.operations if part in one["targetLink"]]

    # ---- operations --------------------------------------------------------------------------------------

    def _begin(self, kind: str, path: str, user: str, *, ended: bool = False) -> Json:
        place = path.rsplit("/", 2)[0]
        scope = place.split("/")[2].removesuffix("s")
        operation = {
            "name": f"operation-{len(self.operations) + 1}", scope: f"https://compute/{place}", "operationType": kind,
            "targetLink": f"https://compute/{path}", "user": user, "status": "RUNNING",
            "insertTime": moment(self.world.now + 1e-6 * len(self.operations)),
        }  # fmt: skip
        self.operations.append(operation)
        if ended:
            self._end(operation)
        return operation

    def _end(self, operation: Json, refusal: ComputeRefusal | None = None) -> None:
        operation["status"], operation["endTime"] = "DONE", moment(self.world.now)
        if refusal is not None:
            operation.update(refusal.of_operation())

    def happens(self, what: str, one: Instance) -> None:
        """Record what Google did to an instance by itself."""
        self._begin(_KINDS[what], one.name, GOOGLE, ended=True)

    # ---- inserts -----------------------------------------------------------------------------------------

    def _inserted(self, path: str, body: Mapping[str, Any], request_id: str) -> Json:
        if request_id in self.answers and not self.odds.forgetful:
            self.world.reached.add("an insert was made again and recognised")
        else:
            self.answers[request_id] = self._insert(path, body)
        return dict(self.answers[request_id])

    def _admit(self, path: str, what: Any, known: Mapping[str, Any], kind: str = "an insert") -> None:
        """Refuse what is there already, and all for as long as the rate of inserts is limited."""
        self.may_create(what)
        if path in known:
            self.world.reached.add(f"{kind} met what was there")
            raise refusals.exists(path)
        if self.world.now < self.rate_until:
            self.world.reached.add("the rate of inserts was limited")
            raise refusals.rate_limit()

    def _insert(self, path: str, body: Mapping[str, Any]) -> Json:
        world, draw, told = self.world, self.world.random, orders_in(body)
        group = self.queued.setdefault(told["resource"], Group(told["resource"], told))
        one = Instance(path, group, body, world.now)
        group.valid = one.valid if one.flex else 0.0
        self._admit(path, group, self.nodes)
        weather, at_the_call = self.weather(self.zones[group.zone]), draw.random() < 0.4
        waits = one.flex and weather in (QUEUE, DRY, REFUSED)
        weather = DRY if weather == QUEUE else weather  # only flex-start waits
        refusal = None if waits else self._refusal(group, weather, at_the_call)
        if refusal is not None and at_the_call:
            world.reached.add(f"refused at the call: {weather}")
            self.harm(group, weather)
            raise refusal
        operation = self._begin("insert", path, CLIENT)
        if refusal is not None:
            self._fail_later(one, operation, refusal, weather)
        elif not self.calm and draw.random() < self.odds.hidden:
            self.harm(group, HIDDEN)
            world.reached.add("an insert succeeded, and its VM was never shown")
            self._end(operation)
        else:
            self._make(one)
            if waits:
                one.state = PENDING
                world.reached.add("flex-start waited")
                self._end(operation)
                world.at(world.now + one.valid, lambda: self._vanish(one))
                world.at(world.now + 60.0, lambda: self._consider(one))
            else:
                seconds = draw.uniform(3.0, 60.0)
                world.at(world.now + seconds, lambda: self._run(one))
                world.at(world.now + seconds * draw.choice((0.1, 1.0, 2.0)), lambda: self._end(operation))
            self.show(one)
        return operation

    def _refusal(self, group: Group, weather: str, at_the_call: bool) -> ComputeRefusal | None:
        zone, region = self.zones[group.zone], group.zone.rsplit("-", 1)[0]
        if weather in (REFUSED, DRY):
            free = [name for name, other in self.zones.items() if self.weather(other) == FREE]
            there = free if self.world.random.random() < 0.5 else []
            if there and not at_the_call:
                self.world.reached.add("a stockout named zones that have some")
            return refusals.stockout("p", zone.name, "g2-standard-4", "", there, "stockout")
        if weather == FAILING:
            if zone.times <= 0 or self.world.random.random() < 0.5:
                return None
            zone.times -= 1
            return ComputeRefusal(500, "backendError", "Internal error. Please try again or contact Google Support.")
        if weather == UNKNOWN_ZONE:
            why = f"Machine type with name 'g2-standard-4' does not exist in zone '{zone.name}'."
            return refusals.value("resource.machineType", "g2-standard-4", why)
        quotas = {
            QUOTAS: ("NVIDIA_L4_GPUS", 4.0),
            NEVER_REGION: ("NVIDIA_L4_GPUS", 0.0),
            NEVER: ("GPUS_ALL_REGIONS", 0.0),
        }
        if weather not in quotas:
            return None
        metric, limit = quotas[weather]
        where = "" if weather == NEVER else region
        return refusals.quota(metric, limit, where, {"region": where} if where else {}, metric)

    def _fail_later(self, one: Instance, operation: Json, refusal: ComputeRefusal, weather: str) -> None:
        """A VM that could not be had is shown for a while, or never."""
        world, draw = self.world, self.world.random
        shows = draw.random() < 0.5
        if shows:
            self._make(one)
            self.show(one)

        def fail() -> None:
            world.reached.add(f"refused by its operation: {weather}")
            self.harm(one.queued, weather)
            self._end(operation, refusal)
            if self.nodes.get(one.name) is one:
                one.state = STOPPING
                self.show(one)
                world.at(world.now + draw.uniform(0.0, 20.0), lambda: self._forget(one))

        seconds = draw.choice((0.0, 5.0, 30.0)) * draw.random()
        if seconds:
            world.at(world.now + seconds, fail)
        else:
            fail()

    def _make(self, one: Instance) -> None:
        self.nodes[one.name] = one
        one.queued.members.append(one)
        name = one.name.replace("/instances/", "/disks/")
        self.disks[name] = disk = BootDisk(name, one.labels, one.queued, self.world.now)
        self.show(disk)

    def _consider(self, one: Instance) -> None:
        """Give hardware to what waits for it, once there is some."""
        if self.nodes.get(one.name) is not one or one.state != PENDING:
            return
        if self.weather(self.zones[one.zone]) in (QUEUE, DRY, REFUSED):
            self.world.at(self.world.now + 60.0, lambda: self._consider(one))
            return
        one.state = PROVISIONING
        self.show(one)
        self.world.at(self.world.now + self.world.random.uniform(3.0, 60.0), lambda: self._run(one))

    def _vanish(self, one: Instance) -> None:
        """Nothing became free in time: it is gone, and no operation says so."""
        if self.nodes.get(one.name) is one and one.state == PENDING:
            self.world.reached.add("flex-start vanished without a word")
            self.harm(one.queued, "expired")
            self._forget(one)

    def _run(self, one: Instance) -> None:
        if self.nodes.get(one.name) is not one or one.state != PROVISIONING:
            return
        one.state, one.started = RUNNING, self.world.now
        one.ends = one.started + one.runs
        self.show(one)
        self.world.at(one.ends + self.world.random.uniform(0.0, 30.0), lambda: self._time_is_up(one))
        self.boot(one)

    def _time_is_up(self, one: Instance) -> None:
        if self.nodes.get(one.name) is one and one.state in (RUNNING, REPAIRING):
            self.world.reached.add("Google ended a VM that had run for as long as it may")
            self.harm(one.queued, "limit")
            if self.world.random.random() < 0.5:
                self._begin("delete", one.name, GOOGLE, ended=True)
            self.end(one)

    # ---- deletes -----------------------------------------------------------------------------------------

    def _delete(self, path: str) -> Json:
        one = self._wanted_gone(path, self.nodes)
        if self.odds.idle and not self.calm and one.state == PROVISIONING and self.world.random.random() < 0.3:
            self.world.reached.add("a delete met an insert that was under way")
            raise refusals.not_ready(path)

        def end() -> None:
            one.queued.going = one.queued.going or self.world.now
            self.end(one)

        return self._deleted(one, "an accepted delete", end)

    def _wanted_gone(self, path: str, known: Mapping[str, Any]) -> Any:
        """Return the resource to delete, once somebody has asked for that, unless all deletes are refused now."""
        one = known.get(path)
        if one is None:
            raise refusals.missing(path)
        self.may_delete(path, one)
        one.asked = True
        if self._refuses():
            raise self._too_much()
        return one

    def _deleted(self, one: Any, kind: str, end: Callable[[], object]) -> Json:
        """Accept a delete, of which nothing may come: in a world that is healed, too, as it is no fault of a seed's."""
        user = self.account_of() or CLIENT
        if one.idle < 2 and self.world.random.random() < self.odds.idle:
            one.idle += 1
            self.world.reached.add(f"{kind} did nothing")
            operation = self._begin("delete", one.name, user)
            self._end(operation, refusals.not_ready(one.name))
        else:
            operation = self._begin("delete", one.name, user, ended=True)
            end()
        return dict(operation)

    def _too_much(self) -> ComputeRefusal:
        """Rates are told with 403, and by what stands before the API with 429."""
        if self.world.random.random() < 0.5:
            return refusals.rate_limit()
        return ComputeRefusal(429, "rateLimitExceeded", "Too Many Requests", domain="usageLimits")

    def end(self, one: Instance, *, at_once: bool = False) -> None:
        """The instance goes, whoever wants it."""
        if one.going:
            return
        one.going, one.state = self.world.now, STOPPING
        one.off = one.off or one.going
        self.show(one)
        if self.shutdown and not at_once:
            self.world.at(self.world.now, lambda: self._press_button(one))
            return
        delay = 0.0 if at_once else self.world.random.choice((0.0, 2.0, 20.0))
        self.world.at(self.world.now + delay, lambda: self.end_machines(one))
        self.world.at(self.world.now + delay + self._slowness(), lambda: self._forget(one))

    def _press_button(self, one: Instance) -> None:
        """Apart from whoever asks for it, who may be on the VM."""
        self.press(one)
        self._shut_down(one, self.world.now + self.shutdown)

    def _shut_down(self, one: Instance, latest: float) -> None:
        """It is off once its last process has ended, and then in any case."""
        world, is_off = self.world, self.is_off(one)
        if not is_off and world.now < latest:
            world.at(world.now + 1.0, lambda: self._shut_down(one, latest))
            return
        world.reached.add("a VM shut down" if is_off else "a VM was given no more time to shut down")
        self.end_machines(one)
        world.at(world.now + self._slowness(), lambda: self._forget(one))

    def stop(self, one: Instance) -> None:
        """The instance is dead, and stays, with its disk."""
        if one.going:
            return
        one.state, one.off = TERMINATED, one.off or self.world.now
        for machine in one.machines:
            machine.power_off()
        self.show(one)

    def _forget(self, one: Instance) -> None:
        if self.nodes.get(one.name) is not one:
            return
        del self.nodes[one.name]
        one.off = one.off or self.world.now
        self.show(one, gone=True)
        self.end_machines(one)
        disk = self.disks[one.name.replace("/instances/", "/disks/")]
        if not self.calm and self.world.random.random() < self.odds.orphans:
            self.world.reached.add("a disk outlived its VM")
            return
        self._forget_disk(disk)

    def _delete_disk(self, path: str) -> Json:
        disk = self.disks.get(path)
        if disk is None:
            raise refusals.missing(path)
        self.may_delete(path, disk)
        if path.replace("/disks/", "/instances/") in self.nodes:
            raise refusals.in_use(path, path.replace("/disks/", "/instances/"))
        if self._refuses():
            raise self._too_much()
        self.world.at(self.world.now + self.world.random.uniform(0.0, 5.0), lambda: self._forget_disk(disk))
        return {"status": "RUNNING"}

    def _forget_disk(self, disk: BootDisk) -> None:
        if self.disks.get(disk.name) is disk:
            del self.disks[disk.name]
            self.show(disk, gone=True)
