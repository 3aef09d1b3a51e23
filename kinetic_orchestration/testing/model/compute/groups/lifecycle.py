"""The life cycle of groups of instances in bulk mode: all members come at once, or none, and what becomes of a slice.

Each member is an instance as any other; this module decides when there is one, and whether it is made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.compute import catalog, checks
from kinetic_orchestration.testing.model.compute.groups import rules
from kinetic_orchestration.testing.model.compute.groups.resources import (
    Bulk,
    End,
    Group,
    Kept,
    Member,
    Policy,
    Template,
    Topology,
    path_of,
)
from kinetic_orchestration.testing.model.compute.lifecycle import Means, World
from kinetic_orchestration.testing.model.compute.networks import Networks
from kinetic_orchestration.testing.model.compute.resources import Instance, Operation, Placed, Status
from kinetic_orchestration.testing.model.compute.service import Request
from kinetic_orchestration.testing.model.faults import CLIENT, Caller
from kinetic_orchestration.testing.model.state.machine import project_number

GROUP, TEMPLATE, POLICY = "instance group", "instance template", "resource policy"  # in the ledger
KINDS: Final = {"instanceTemplates": TEMPLATE, "resourcePolicies": POLICY}


class Habits(NamedTuple):
    """The habits of a group that Google has not published: after which ends it makes a member again though it is to do
    nothing, and whether a slice is restarted whose instances are not."""

    remakes: frozenset[End] = frozenset()
    recovers: bool = False


class GroupLifecycle(Networks):
    def __init__(self, world: World, means: Means) -> None:
        super().__init__(world, means)
        self.retry_seconds = 2.0
        self.groups: dict[str, Group] = {}
        self.policies: dict[str, Policy] = {}
        self.templates: dict[str, Template] = {}
        self._held: dict[str, tuple[str, float]] = {}  # what a group that is gone holds on to: by whom, until when
        self._linger: float | None = None
        self._habits = Habits()
        self._late: list[tuple[str, float]] = []
        self._unmakeable: list[tuple[str, int | None]] = []
        self._states: list[tuple[str, Topology]] = []

    # The beginning

    def _fill(self, group: Group) -> None:
        """Ask for all members that are missing, as a whole: they are there at once, or none of them."""
        if self.groups.get(group.path) is not group or group.deleting is not None:
            return
        missing = [one for one in group.members if one.wanted and one.path not in self.instances]
        if not missing:
            return
        group.turns += 1
        since = group.bulk.since if group.bulk is not None else self.world.now
        group.bulk = Bulk(since, group.turns, self.world.now, group.bulk.error if group.bulk is not None else None)
        late = max((seconds for pattern, seconds in self._late if fnmatchcase(group.name, pattern)), default=0.0)
        if self.world.now < since + late:
            self._again(group, since + late - self.world.now)
            return
        for member in missing:
            if self._met(self._unmakeable, member.name):
                message = f"Internal error. Please try again or contact Google Support. (instance {member.name})"
                self._not_yet(group, [member], ComputeRefusal(500, "internalError", message))
                return
        try:
            made = [self._made_member(group, one) for one in missing]
            self._demand_all(group, made)
        except Refusal as refusal:
            self._not_yet(group, missing, refusals.of(refusal))
            return
        for member, instance in zip(missing, made, strict=True):
            member.error, member.end = None, None
            self._grant(instance)
        group.bulk = group.bulk._replace(error=None)

    def _demand_all(self, group: Group, made: list[Instance]) -> None:
        """Refuse what there is not, of all together."""
        first = made[0]
        fault = self.world.faults.take("provision", _method(group, "insert"), group.zone, CLIENT, group.path)
        if fault is not None and fault.refusal is not None:
            raise fault.refusal()
        for instance in made:
            if instance.path in self.instances:
                raise refusals.exists(instance.path)
            for disk in instance.disks:
                if disk.path in self._all_disks():
                    raise refusals.exists(disk.path)
        for at in ("call", "operation"):
            self._demand_quota(first, at, len(made))
        model = str(first.scheduling["provisioningModel"])
        if reservation := checks.reservation(first.body, model, f"projects/{group.project}/zones/{group.zone}"):
            self._demand_reservation(reservation, first.machine_type, model, len(made))
        lack = self._lack(first, len(made))
        if lack is not None:
            self._use_up(lack)
            raise refusals.stockout(
                group.project, group.zone, first.machine_type.name, "", lack.available, lack.reason
            )  # fmt: skip

    def _not_yet(self, group: Group, missing: list[Member], refusal: ComputeRefusal) -> None:
        """None comes this time; it is tried again, without end."""
        if group.bulk is not None:
            group.bulk = group.bulk._replace(error=refusal)
        for member in missing:
            if member.error is None or member.error.message != refusal.message:
                self.world.record(GROUP, group.path, f"{member.name}: {refusal.message}")
            member.error = refusal
        self._again(group, self.retry_seconds)

    def _again(self, group: Group, seconds: float) -> None:
        turn = group.turns
        self.world.later(seconds, lambda: self._fill(group) if group.turns == turn else None)

    def _made_member(self, group: Group, member: Member) -> Instance:
        """The instance that a template describes. Raises Refusal: only now is it known to be good."""
        template = self.templates[group.template]
        number = project_number(group.project)
        added = {
            "instance-template": f"projects/{number}{group.template.removeprefix(f'projects/{group.project}')}",
            "created-by": f"projects/{number}{group.path.removeprefix(f'projects/{group.project}')}",
        }
        body = rules.member(template.properties, member.name, group.project, group.zone, added)
        agent = Caller("agent", self._agent(group.project))
        instance = self._made(
            Request(group.project, group.zone, member.name, body=body, caller=agent), body, member.path
        )
        if group.topology:
            instance.placed = Placed(
                slice=group.name,
                made=f"{group.project}/{group.number}/{group.turns}",
                topology=group.topology,
                chips=instance.machine_type.accelerators * len(group.members),
                worker=member.worker,
                workers=len(group.members),
            )
        return instance

    def _grant(self, instance: Instance) -> None:
        self.instances[instance.path] = instance
        self.world.ledger.created("instance", instance.path)
        for disk in instance.disks:
            self._create_disk(disk)
        self._record(instance, instance.status)
        operation = self.operation("insert", instance, instance.path, self._agent(instance.project))
        self.world.later(self.world.timing.provision / 2, lambda: self._stage(instance, operation))

    # What becomes of a slice

    def _show(self, instance: Instance, status: Status) -> None:
        super()._show(instance, status)
        group, member = self._of(instance)
        if group is not None and member is not None:
            member.existed = member.existed or status == "RUNNING"
            self._look(group)

    def _look(self, group: Group) -> None:
        """See which of its members run."""
        there = [self.instances.get(one.path) for one in group.members]
        if group.bulk is not None and all(one is not None and one.starts for one in there):
            group.bulk = None
        if group.deleting is not None:
            group.state = "DEACTIVATING"
        elif not there or any(one is None or one.status != "RUNNING" for one in there):
            group.state = "INCOMPLETE"
        elif group.state == "INCOMPLETE":
            group.state = state = "REACTIVATING" if group.activated else "ACTIVATING"

            def activate() -> None:
                if group.state == state:
                    group.state, group.activated = "ACTIVE", True
                    self.world.record(GROUP, group.path, "ACTIVE")

            self.world.later(self.world.timing.provision / 2, activate)

    def state_of(self, group: Group) -> Topology:
        """The state of its topology, as it is scripted or as it is."""
        if group.state in ("ACTIVE", "REACTIVATING", "ACTIVATING"):
            return next((told for pattern, told in self._states if fnmatchcase(group.name, pattern)), group.state)
        return group.state

    def _of(self, instance: Instance) -> tuple[Group | None, Member | None]:
        for group in self.groups.values():
            for member in group.members:
                if member.path == instance.path:
                    return group, member
        return None, None

    def _ends(self, instance: Instance, end: End) -> None:
        _, member = self._of(instance)
        if member is not None and member.end is None:
            member.end = end

    def _preempt(self, instance: Instance, grace: float) -> None:
        if self._exists(instance) and instance.status == "RUNNING":
            self._ends(instance, "preempted")
        super()._preempt(instance, grace)

    def _stop(self, instance: Instance, action: str) -> None:
        self._ends(instance, "expired")
        super()._stop(instance, action)

    def _host_error(self, instance: Instance, kind: str = "compute.instances.hostError") -> None:
        """A slice of the managed capacity mode is restarted as a whole, unless its instances are not to be."""
        group, _ = self._of(instance)
        restarts = self._habits.recovers or instance.scheduling["automaticRestart"]
        is_spot = instance.scheduling["provisioningModel"] == catalog.SPOT
        if not self._exists(instance) or instance.status != "RUNNING":
            return
        if group is None or not group.topology or is_spot or not restarts:
            if not instance.scheduling["automaticRestart"]:
                self._ends(instance, "failed")
            super()._host_error(instance, kind)
            return
        self.event(instance, kind, "Instance terminated by Compute Engine.")
        for member in group.members:
            other = self.instances.get(member.path)
            if other is not None and other.status == "RUNNING":
                self._restart(other)

    def _terminate(self, instance: Instance, action: str) -> None:
        super()._terminate(instance, action)
        if not self._exists(instance) or instance.status != "TERMINATED":
            return
        group, member = self._of(instance)
        if group is not None and member is not None and self._is_remade(group, member):
            self._take_away(group, [member])

    def _is_remade(self, group: Group, member: Member) -> bool:
        return group.repairs or (member.end or "deleted") in self._habits.remakes

    # The end

    def _remove(self, instance: Instance) -> None:
        if not self._exists(instance):
            return
        group, member = self._of(instance)
        if group is None or member is None:
            super()._remove(instance)
            return
        if group.deleting is None and member.wanted:
            member.wanted = self._is_remade(group, member)
        super()._remove(instance)
        self._look(group)
        if group.deleting is not None:
            self._end_group(group)
        elif len(group.members) > group.size:
            group.members = [one for one in group.members if one is not member]
        else:
            self.world.later(0.0, lambda: self._fill(group))

    def _take_away(self, group: Group, members: Iterable[Member]) -> None:
        """Delete the instances of members, as the group does it by itself."""
        for member in members:
            instance = self.instances.get(member.path)
            if instance is None or instance.unwanted:
                continue
            self.operation("delete", instance, instance.path, self._agent(group.project))
            self._end_inserts(instance)
            instance.unwanted = True
            if instance.status != "STOPPING":
                self._delete(instance)

    def _delete_group(self, group: Group, operation: Operation) -> None:
        group.deleting, group.bulk = operation, None
        self._take_away(group, group.members)
        self._look(group)
        self.world.later(self.world.timing.delete, lambda: self._end_group(group))

    def _end_group(self, group: Group) -> None:
        """It is gone once its instances are; what it was made of is held for a while."""
        operation = group.deleting
        if operation is None or self.groups.get(group.path) is not group:
            return
        early = self.world.now < operation.created + self.world.timing.delete
        stuck = any(fnmatchcase(group.name, pattern) for pattern in self._stuck)
        if early or stuck or any(one.path in self.instances for one in group.members):
            return
        self._forget(group)
        self._settle(operation, _method(group, "delete"), group.zone)

    def _forget(self, group: Group) -> None:
        del self.groups[group.path]
        until = self.world.now + (self.world.timing.delete if self._linger is None else self._linger)
        for path in (group.template, group.policy):
            if path:
                self._held[path] = group.path, until
        self.world.ledger.deleted(GROUP, group.path)
        self.world.record(GROUP, group.path, "deleted")

    def user_of(self, path: str) -> str:
        """Return the user of a policy or a template; "" if there is none."""
        for group in self.groups.values():
            if path in (group.template, group.policy):
                return group.path
        for instance in self.instances.values():
            project, region = instance.project, region_of(instance.zone)
            links = instance.body.get("resourcePolicies") or ()
            if any(path_of(str(link), project, region) == path for link in links):
                return instance.path
        user, until = self._held.get(path, ("", 0.0))
        return user if self.world.now < until else ""

    def reconsider(self) -> None:
        super().reconsider()
        for group in list(self.groups.values()):
            if group.bulk is not None:
                self._fill(group)

    # Small parts

    def _kept(self, path: str) -> dict[str, Policy] | dict[str, Template]:
        return self.policies if "/resourcePolicies/" in path else self.templates

    def _drop(self, one: Kept) -> None:
        self._kept(one.path).pop(one.path, None)
        self.world.ledger.deleted(KINDS[one.path.split("/")[-2]], one.path)

    def _settle(self, operation: Operation, method: str, zone: str) -> None:
        fault = self.world.faults.take("operation", method, zone, CLIENT, operation.target)
        failed = fault is not None and fault.refusal is not None
        self._end_operation(operation, refusals.of(fault.refusal()) if failed else None)  # type: ignore[union-attr,misc]

    def _agent(self, project: str) -> str:
        """The account of Google by which groups act."""
        return f"{project_number(project)}@cloudservices.gserviceaccount.com"


def _method(group: Group, verb: str) -> str:
    return f"{'regionI' if '/regions/' in group.path else 'i'}nstanceGroupManagers.{verb}"
