"""The states of instances and what happened to those that are gone, and the meaning for an attempt: tables, pure.

An instance that is gone says nothing: the operations of its zone do, for some days. A state that this version does not
know ends no attempt by itself. A slice is the instances of a group, which itself says why it has not got them: it asks
for them without end, so an end is put to that here. It knows no client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from kinetic_orchestration.plan.hardware.accelerators import FLEX_START, SPOT
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
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.compute import causes
from kinetic_orchestration.platforms.google.compute.causes import Problem
from kinetic_orchestration.platforms.google.compute.request import UNTIL
from kinetic_orchestration.protocol import wire

REPAIR_PATIENCE = 900.0  # an instance that is under repair for longer is dead
GROUP_PATIENCE = 900.0  # a group to which errors without a reason happen for longer gets no instances
BESIDE = 60.0  # seconds for which some slices may run before the others without a word
WHOM_TO_ASK = (
    "no operation of its zone says why. Ask the project's audit log for compute.instances.delete, and look at who has "
    "that permission"
)
SERIAL_LOG = "gcloud compute instances get-serial-port-output {name} --zone {zone} --project {project}"

WAITING, RUNNING, STOPPING, REPAIRING = "PENDING", "RUNNING", "STOPPING", "REPAIRING"
BEING_MADE = ("PROVISIONING", "STAGING")
ENDING = ("PENDING_STOP", STOPPING, "DEPROVISIONING", "SUSPENDING")
DEAD = ("TERMINATED", "STOPPED", "SUSPENDED")
KNOWN = (WAITING, *BEING_MADE, RUNNING, REPAIRING, *ENDING, *DEAD)
# https://cloud.google.com/compute/docs/instances/instance-lifecycle: PENDING_STOP is charged for as RUNNING is.
_CHARGED_NO_LONGER = (STOPPING, "DEPROVISIONING", *DEAD)

# What Google does to an instance by itself: kind of the operation → what to say of it.
_BY_GOOGLE = {
    "compute.instances.hostError": "the machine under it failed (hostError)",
    "compute.instances.guestTerminate": "it was shut down from inside (guestTerminate)",
    "compute.instances.automaticRestart": "Google started it again on another machine (automaticRestart)",
}
_PREEMPTED, _MAINTAINED = "compute.instances.preempted", "compute.instances.terminateOnHostMaintenance"
_BY_SOMEBODY = {"delete": "deleted", "stop": "stopped", "suspend": "suspended"}
_ENDS = (*_BY_GOOGLE, _PREEMPTED, _MAINTAINED, *_BY_SOMEBODY)
UNSHOWN = 60.0  # seconds for which a VM whose insert has ended may not be shown yet
_GOOGLE = "system"
_OF_SERVICE = "gserviceaccount.com"  # how accounts end that are no person
_OF_GROUPS = "@cloudservices.gserviceaccount.com"  # Google's own of a project, by which groups act
_OF_MEMBERS = "compute.instanceGroupManagers."  # operations of a group on its members: deleteInstances, resize, …
OBEYED = 600.0  # seconds after such an operation in which the group may still do as it says
_BROKEN = ("FAILED", "ACTIVE_DEGRADED")  # topologies on which a program does not run, though the instances do


class Vm(NamedTuple):
    """An instance, with the fields that are used here."""

    name: str
    zone: str
    status: str
    labels: Mapping[str, str] = {}
    created: float = 0.0
    started: float = 0.0  # 0: it never ran
    ends: float = 0.0  # when its limit ends it; 0: unknown
    account: str = ""
    model: str = ""  # its provisioning model
    repairing: float = 0.0  # known seconds in that state


class Seen(NamedTuple):
    """Facts about an instance that was seen, which tell why it is gone once it is. A process may follow
    thousands."""

    started: float
    ends: float
    account: str


class Group(NamedTuple):
    """A managed instance group in bulk mode: it gets all of its instances at once.

    Attributes:
        name: Its name.
        zone: Its zone.
        labels: Whose it is, as its description says it.
        hosts: Of the placement that it is of, which may have several groups.
        model: How they are to be had, as the placement has it.
        created: When it was.
        until: Until when it may wait for instances; 0 for no limit.
        asks: It asks for instances, and has not got them.
        remakes: It makes instances again that were there before.
        deletes: It deletes instances, as it does once its own deletion has begun.
        leaves: It deletes all that it has, and makes none.
        problems: Of its last request.
        topology: The state of its topology, in the API's word; "" if it has none.
        said: The error of that topology.
    """

    name: str
    zone: str
    labels: Mapping[str, str] = {}
    hosts: int = 0
    model: str = ""
    created: float = 0.0
    until: float = 0.0
    asks: bool = False
    remakes: bool = False
    deletes: bool = False
    leaves: bool = False
    problems: tuple[Problem, ...] = ()
    topology: str = ""
    said: str = ""


class Resource(NamedTuple):
    """A disk, a template or a policy: what belongs to an attempt and is no machine.

    Attributes:
        name: Its name.
        zone: The zone of the placement that it is of.
        labels: Whose it is, as its labels or its description say it.
        created: When it was.
        hosts: Of the placement, if it says so.
        model: How they are to be had, if it says so.
        deletes: Its deletion has begun.
    """

    name: str
    zone: str
    labels: Mapping[str, str] = {}
    created: float = 0.0
    hosts: int = 0
    model: str = ""
    deletes: bool = False


class Event(NamedTuple):
    """An operation: what somebody asked of an instance, or what Google did to it."""

    path: str
    kind: str
    target: str  # the instance's name
    user: str
    began: float
    ended: bool
    problems: tuple[Problem, ...] = ()
    said: str = ""


class Member(NamedTuple):
    """One VM of a placement, as far as it is known.

    Attributes:
        name: Its name.
        now: The instance; None if there is none.
        before: What is remembered of the instance; None if it was never seen.
        events: Its operations, the newest first; None if nobody asked for them.
        missed: Seconds for which it is known not to be shown, since its insert has ended.
    """

    name: str
    now: Vm | None
    before: Seen | None = None
    events: Sequence[Event] | None = None
    missed: float = 0.0

    @property
    def is_made(self) -> bool:
        """True if its insert has ended."""
        return any(event.kind == "insert" and event.ended for event in self.events or ())


class Slice(NamedTuple):
    """One slice of a placement, as far as it is known.

    Attributes:
        name: The name of its group.
        group: The group; None if there is none.
        members: Its VMs, in the order of its hosts.
        empty: Seconds for which the group is known to be there without instances, though it asks for none.
    """

    name: str
    group: Group | None
    members: Sequence[Member]
    empty: float = 0.0

    @property
    def waits(self) -> bool:
        """True if it is to get its first instances: one of which some were there gets no others that are wanted."""
        if self.group is None or self.group.remakes or not self.group.asks:
            return False
        return not self._was_had

    @property
    def is_refused(self) -> bool:
        """True if its request has ended with an error, and it never had an instance."""
        group = self.group
        return group is not None and not group.asks and bool(group.problems) and not self._was_had

    @property
    def gave_up(self) -> bool:
        """True if it asks for nothing any more, and nothing tells of an instance that it ever had."""
        made = self._was_had or any(member.is_made for member in self.members)
        return self.empty > UNSHOWN and not made

    @property
    def _was_had(self) -> bool:
        return any(member.now or member.before for member in self.members)


def is_an_end(event: Event) -> bool:
    """Return True if an operation tells of the end of an instance, or that it was never made."""
    return bool(event.problems) if event.kind == "insert" else event.kind in _ENDS and not event.problems


def is_lost(vm: Vm | None) -> bool:
    """Return True if only the operations of its zone say what became of an instance."""
    if vm is None or vm.status in DEAD:
        return True
    # One whose insert failed is shown STOPPING for a while.
    return vm.status in ENDING and not vm.started


def is_told(vm: Vm | None) -> bool:
    """Return True if the operations of its zone say what becomes of an instance: it is lost, or about to be."""
    return is_lost(vm) or (vm is not None and vm.status in ENDING)


def observation(members: Sequence[Member], context: CallContext, model: str, now: float) -> Observation:
    """Return what follows for an attempt from its VMs, in the order of the hosts.

    Args:
        members: The VMs.
        context: Whose they are.
        model: How they were to be had, as a placement has it.
        now: The time.
    """
    alive = [member.now for member in members if member.now is not None and _lives(member.now)]
    if strange := [vm for vm in alive if vm.status not in KNOWN]:
        return Observation(ELSEWHERE, f"{strange[0].name} is in a state that this version does not know")
    lost = [
        member for member in members
        if member.now is None or not _lives(member.now) or _is_ended(member, context, model, now)
    ]  # fmt: skip
    alive = [vm for vm in alive if not any(member.now is vm for member in lost)]
    charged = min((vm.started for vm in _seen(members) if vm.started), default=0.0)
    if lost:
        return _without(lost, alive, context, model, now)._replace(charged=charged, ending=_shut_down(members))
    waiting = [vm for vm in alive if vm.status == WAITING]
    if waiting:
        return Observation(QUEUED, f"PENDING in {waiting[0].zone}, waiting for capacity{_until(waiting[0])}")
    if making := [vm for vm in alive if vm.status in BEING_MADE]:
        return Observation(PROVISIONING, f"{making[0].status} in {making[0].zone}", charged=charged)
    said = ", ".join(f"{vm.name} {vm.status}" for vm in alive if vm.status != RUNNING)
    # Of one VM alone it is the same text for all jobs, of which one process may follow thousands.
    hint = SERIAL_LOG if len(members) == 1 else SERIAL_LOG.replace("{name}", alive[0].name)
    return Observation(PRESENT, said, charged=charged, hint=hint, ending=_shut_down(members))


def of_slices(slices: Sequence[Slice], context: CallContext, model: str, now: float) -> Observation:
    """Return what follows for an attempt from its groups and their VMs, in the order of the slices.

    Args:
        slices: The slices.
        context: Whose they are.
        model: How their VMs were to be had, as a placement has it.
        now: The time.
    """
    members = [member for one in slices for member in one.members]
    alive = [[vm for member in one.members if (vm := member.now) is not None and _lives(vm)] for one in slices]
    running = sum(any(vm.started and vm.status not in _CHARGED_NO_LONGER for vm in vms) for vms in alive)
    charged = min((vm.started for vm in _seen(members) if vm.started), default=0.0)
    if told := [why for one in slices if (why := _fails(one, context, model, now)) is not None]:
        whole, ending = WOUNDED if any(alive) else GONE, _shut_down(members)
        return Observation(whole, *_gravest(told), charged=charged, slices=running, ending=ending)
    waiting = [one for one in slices if one.waits]
    missing = [one for one in slices if one.group is None and not any(member.now for member in one.members)]
    had = [member for one in slices if not one.waits for member in one.members]
    seen = observation(had, context, model, now) if had else Observation(QUEUED)
    if seen.cause:  # of a group that is there, hosts are gone rather than absent
        return seen._replace(state=seen.state if len(missing) == len(slices) or seen.state != ABSENT else GONE)
    if missing and len(missing) < len(slices):
        said = f"{missing[0].name} is not there yet"
        ending = _shut_down(members) or not any(member.now for member in members)  # a group alone costs nothing
        return Observation(PARTIAL, said, charged=charged, slices=running, ending=ending)
    if waiting:
        state, said, waits = QUEUED if model == FLEX_START else PROVISIONING, _waits(waiting[0], context), ""
        if running and now - charged > BESIDE:
            waits = f"{running} of {len(slices)} slices run and are charged for, while {said}"
        return Observation(state, said, charged=charged, waits=waits, slices=running)
    if seen.state == ABSENT and not missing:
        return _empty(max(slices, key=lambda one: one.empty), context)
    return seen


def _fails(one: Slice, context: CallContext, model: str, now: float) -> tuple[str, str] | None:
    """Return the reason for which a slice cannot be used, or never comes, and its cause; None if there is none."""
    group = one.group
    if group is not None and group.topology in _BROKEN:
        said = f": {group.said.rstrip('.')}" if group.said else ""
        return f"the topology of {group.name} in {context.zone} is {group.topology}{said}", wire.INFRASTRUCTURE
    if group is None or not (one.waits or one.is_refused or one.gave_up):
        return None
    if group.problems:
        trouble = causes.classify(group.problems, context)
        may_pass = trouble.action in (api_errors.AGAIN, api_errors.HERE, api_errors.LATER)
        is_late = model != FLEX_START and now - group.created > GROUP_PATIENCE
        comes = model == FLEX_START and trouble.action == api_errors.ELSEWHERE
        if one.is_refused or (not comes and (not may_pass or is_late)):
            taken = "; it was not made by this group: delete it" if trouble.action == api_errors.ADOPT else ""
            return f"{context.zone}: {trouble.sentence}{taken}", trouble.cause
    is_over = 0 < group.until <= now
    if is_over or (one.gave_up and model == FLEX_START):  # that wait is Google's to end
        why = _wait_is_over(context, group.name)
        if group.problems:
            why = f"{why}. The last answer: {causes.classify(group.problems, context).sentence}"
        return why, wire.STOCKOUT
    return None


def _waits(one: Slice, context: CallContext) -> str:
    """Say that a group waits, until when, and what it was told last."""
    assert one.group is not None
    said = f"{one.name} waits for all of its hosts in {context.zone}{_at_the_latest(one.group.until)}"
    if not one.group.problems:
        return said
    return f"{said}: {causes.classify(one.group.problems, context).sentence}"


def _empty(one: Slice, context: CallContext) -> Observation:
    """The observation for groups that ask for nothing, none of whose VMs was ever seen, or is known to be gone."""
    if one.empty <= UNSHOWN:
        return Observation(PROVISIONING, f"{one.name} in {context.zone} shows no VMs yet")
    said = f"{one.name} in {context.zone} has no VMs and asks for none: {WHOM_TO_ASK}"
    return Observation(GONE, said, wire.INFRASTRUCTURE)


def events_of(events: Sequence[Event], member: str, group: str = "") -> list[Event]:
    """Return the operations that tell of one VM, in their order.

    What a group deletes with itself is deleted by whoever deleted the group, also before it was there; what it deletes
    as somebody has told it to, by whoever did; and the rest by Google. A group whose insert failed gets no instances.

    Args:
        events: All operations of a placement.
        member: The VM's name.
        group: The name of its group; "" if it has none.
    """
    own = [event for event in events if event.target == member]
    if not group:
        return own
    of_group = [event for event in events if event.target == group]
    over = [event for event in of_group if event.kind == "delete" and not event.problems]
    failed = [event for event in of_group if event.kind == "insert" and event.problems and not own]
    if over:
        own = [event for event in own if event.kind != "delete" or not event.user.endswith(_OF_GROUPS)]
    asked = [event for event in of_group if event.kind.startswith(_OF_MEMBERS) and not event.problems]
    own = [_by_whoever_asked(event, asked) for event in own]
    return sorted([*own, *over, *failed], key=lambda event: event.began, reverse=True)


def _by_whoever_asked(event: Event, asked: Sequence[Event]) -> Event:
    """Return the operation as one of the user who told its group to, if its account is the group's."""
    if not event.user.endswith(_OF_GROUPS):
        return event
    before = [one for one in asked if 0 <= event.began - one.began <= OBEYED]
    return event._replace(user=max(before, key=lambda one: one.began).user) if before else event


def _shut_down(members: Sequence[Member]) -> bool:
    """Return True if VMs are left, and none of them is charged for any longer."""
    there = [member.now for member in members if member.now is not None]
    return bool(there) and all(vm.status in _CHARGED_NO_LONGER for vm in there)


def _seen(members: Sequence[Member]) -> list[Vm | Seen]:
    return [vm for member in members if (vm := member.now or member.before) is not None]


def _lives(vm: Vm) -> bool:
    if vm.status == REPAIRING and vm.repairing > REPAIR_PATIENCE:
        return False
    return not is_lost(vm)


def _is_ended(member: Member, context: CallContext, model: str, now: float) -> bool:
    """Return True if it is known who ends a VM that is still there, and shuts down: its own host cannot know it."""
    ending = member.now is not None and member.now.status in ENDING
    return ending and _end(member, context, model, now) is not None


def _without(lost: Sequence[Member], alive: Sequence[Vm], context: CallContext, model: str, now: float) -> Observation:
    """The observation for VMs of which some, or all, are not there."""
    none_left = ABSENT if all(member.now is None for member in lost) else GONE
    ending = any(member.now is not None and _lives(member.now) for member in lost)  # its program may still save
    whole = WOUNDED if alive or ending else none_left
    told = [why for member in lost if (why := _end(member, context, model, now)) is not None]
    if told:
        return Observation(whole, *_gravest(told))
    if making := [member for member in lost if _is_being_made(member)]:
        return Observation(PROVISIONING, f"{making[0].name} is requested in {context.zone}")
    if dead := [member for member in lost if member.now is not None]:
        return Observation(whole, f"{dead[0].name} in {context.zone} is {_state(dead[0])}", wire.INFRASTRUCTURE)
    if alive and not any(member.before for member in lost):
        return Observation(PARTIAL, f"{lost[0].name} is not there yet")
    if alive:
        return Observation(WOUNDED, f"{lost[0].name} in {context.zone} is gone: {WHOM_TO_ASK}", wire.INFRASTRUCTURE)
    return Observation(ABSENT, hint=WHOM_TO_ASK)


def _gravest(told: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Choose the reason that is told of several: a VM that could not be had, rather than what followed from it; and
    one that a person ended, rather than those that its hosts then gave up."""
    order = (wire.CONFIGURATION, wire.QUOTA, wire.STOCKOUT, wire.CANCELLED, wire.PREEMPTION)
    return min(told, key=lambda why: order.index(why[1]) if why[1] in order else len(order))


def _is_being_made(member: Member) -> bool:
    return any(event.kind == "insert" and not event.ended for event in member.events or ())


def _end(member: Member, context: CallContext, model: str, now: float) -> tuple[str, str] | None:
    """Return the reason for which a VM is not there, and the cause; None if nothing tells it."""
    vm = member.now or member.before
    if member.now is not None and member.now.status == REPAIRING:
        return f"{member.name} is REPAIRING for more than {REPAIR_PATIENCE / 60:.0f} min", wire.INFRASTRUCTURE
    # What is over deletes a VM: one that is dead and still there ended earlier, as did one of which more is told.
    is_over = member.now is None and vm is not None and vm.started > 0 and 0 < vm.ends <= now
    for event in reversed(member.events or ()):  # the first end is the reason: what follows cleans up
        if is_over and event.kind == "delete" and _is_google(event.user):
            break
        if (why := _told_by(event, member, vm, context, model)) is not None:
            return why
    if is_over:
        return f"{member.name} has run for as long as Google lets it (maxRunDuration)", wire.DEADLINE
    if model == FLEX_START and member.now is None and member.is_made and not (vm is not None and vm.started):
        # Such a VM vanishes without a word once its request is no longer valid. One that was never seen may be late.
        if vm is None and member.missed <= UNSHOWN:
            return None
        return _wait_is_over(context, member.name), wire.STOCKOUT
    return None


def _wait_is_over(context: CallContext, name: str) -> str:
    return f"nothing became free in {context.zone} while the request for {name} was valid"


def _told_by(
    event: Event, member: Member, vm: Vm | Seen | None, context: CallContext, model: str
) -> tuple[str, str] | None:
    """Read the end of a VM and its cause from one operation; None if it tells of none."""
    where = f"{member.name} in {context.zone} is {_state(member)}"
    if event.kind == "insert" and event.problems:
        trouble = causes.classify(event.problems, context)
        # Whether a VM was made is not known from every error: then it is looked for.
        return None if trouble.action == api_errors.AGAIN else (f"{context.zone}: {trouble.sentence}", trouble.cause)
    if event.kind in (_PREEMPTED, _MAINTAINED):
        return taken_back(event.kind, where, model)
    if event.kind in _BY_GOOGLE:
        return f"{where}: {_BY_GOOGLE[event.kind]}", wire.INFRASTRUCTURE
    if event.kind in _BY_SOMEBODY and not event.problems:
        return _by(event, where, vm, context)
    return None


def taken_back(kind: str, where: str, model: str) -> tuple[str, str]:
    """Return what Google's taking of a machine is told as, and its cause. Only a spot VM is had on that condition; of
    any other, the host that has a notice of it says the same cause (`host.machine.vm.instance`)."""
    cause = wire.PREEMPTION if model == SPOT else wire.INFRASTRUCTURE
    if kind == _MAINTAINED:
        return f"{where}: Google ended it for maintenance (terminateOnHostMaintenance)", cause
    if model == SPOT:
        return f"{where}: it was preempted", cause
    return f"{where}: Google took its machine back, as it does to defragment a zone", cause


def _by(event: Event, where: str, vm: Vm | Seen | None, context: CallContext) -> tuple[str, str]:
    """Name who ended a VM. A user who does so manually wants its job to end."""
    did = _BY_SOMEBODY[event.kind]
    own = {account for account in (context.account, vm.account if vm is not None else "") if account}
    if event.user in own:
        return f"{where}: its own account {did} it ({event.user})", wire.INFRASTRUCTURE
    if _is_google(event.user):
        return f"{where}: Google {did} it", wire.INFRASTRUCTURE
    if vm is None and event.user.endswith(_OF_SERVICE):  # of a VM that nobody here has seen
        return f"{where}: {event.user} {did} it, which may be its own account", wire.INFRASTRUCTURE
    return f"{where}: {event.user} {did} it", wire.CANCELLED


def _is_google(user: str) -> bool:
    return user.partition("@")[0] in ("", _GOOGLE) or user.endswith(_OF_GROUPS)


def _state(member: Member) -> str:
    return "gone" if member.now is None else member.now.status


def _until(vm: Vm) -> str:
    until = vm.labels.get(UNTIL, "")
    return _at_the_latest(float(until)) if until.isdecimal() else ""


def _at_the_latest(until: float) -> str:
    return f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC at the latest" if until else ""
