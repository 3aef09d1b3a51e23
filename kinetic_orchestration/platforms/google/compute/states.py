"""The states of instances and what happened to those that are gone, and the meaning for an attempt: tables, pure.

An instance that is gone says nothing: the operations of its zone do, for some days. A state that this version does not
know ends no attempt by itself. It knows no client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from kinetic_orchestration.plan.hardware import machines
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
WHOM_TO_ASK = (
    "no operation of its zone says why. Ask the project's audit log for compute.instances.delete, and look at who has "
    "that permission"
)
SERIAL_LOG = "gcloud compute instances get-serial-port-output {} --zone {} --project {}"

WAITING, RUNNING, STOPPING, REPAIRING = "PENDING", "RUNNING", "STOPPING", "REPAIRING"
BEING_MADE = ("PROVISIONING", "STAGING")
ENDING = ("PENDING_STOP", STOPPING, "DEPROVISIONING", "SUSPENDING")
DEAD = ("TERMINATED", "STOPPED", "SUSPENDED")
KNOWN = (WAITING, *BEING_MADE, RUNNING, REPAIRING, *ENDING, *DEAD)

# What Google does to an instance by itself: kind of the operation → what to say of it.
_BY_GOOGLE = {
    "compute.instances.hostError": "the machine under it failed (hostError)",
    "compute.instances.terminateOnHostMaintenance": "Google ended it for maintenance (terminateOnHostMaintenance)",
    "compute.instances.guestTerminate": "it was shut down from inside (guestTerminate)",
    "compute.instances.automaticRestart": "Google started it again on another machine (automaticRestart)",
}
_PREEMPTED = "compute.instances.preempted"
_BY_SOMEBODY = {"delete": "deleted", "stop": "stopped", "suspend": "suspended"}
UNSHOWN = 60.0  # seconds for which a VM whose insert has ended may not be shown yet
_GOOGLE = "system"
_OF_SERVICE = "gserviceaccount.com"  # how accounts end that are no person


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
        before: The instance when it was last seen; None if it never was.
        events: Its operations, the newest first; None if nobody asked for them.
        missed: Seconds for which it is known not to be shown, since its insert has ended.
    """

    name: str
    now: Vm | None
    before: Vm | None = None
    events: Sequence[Event] | None = None
    missed: float = 0.0

    @property
    def is_made(self) -> bool:
        """True if its insert has ended."""
        return any(event.kind == "insert" and event.ended for event in self.events or ())


def is_lost(vm: Vm | None) -> bool:
    """Return True if only the operations of its zone say what became of an instance."""
    if vm is None or vm.status in DEAD:
        return True
    # One whose insert failed is shown STOPPING for a while.
    return vm.status in ENDING and not vm.started


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
    lost = [member for member in members if member.now is None or not _lives(member.now)]
    charged = min((vm.started for vm in _seen(members) if vm.started), default=0.0)
    if lost:
        return _without(lost, alive, context, model, now)._replace(charged=charged)
    waiting = [vm for vm in alive if vm.status == WAITING]
    if waiting:
        return Observation(QUEUED, f"PENDING in {waiting[0].zone}, waiting for capacity{_until(waiting[0])}")
    if making := [vm for vm in alive if vm.status in BEING_MADE]:
        return Observation(PROVISIONING, f"{making[0].status} in {making[0].zone}", charged=charged)
    said = ", ".join(f"{vm.name} {vm.status}" for vm in alive if vm.status != RUNNING)
    hint = SERIAL_LOG.format(alive[0].name, alive[0].zone, context.project)
    return Observation(PRESENT, said, charged=charged, hint=hint)


def _seen(members: Sequence[Member]) -> list[Vm]:
    return [vm for member in members if (vm := member.now or member.before) is not None]


def _lives(vm: Vm) -> bool:
    if vm.status == REPAIRING and vm.repairing > REPAIR_PATIENCE:
        return False
    return not is_lost(vm)


def _without(lost: Sequence[Member], alive: Sequence[Vm], context: CallContext, model: str, now: float) -> Observation:
    """The observation for VMs of which some, or all, are not there."""
    none_left = ABSENT if all(member.now is None for member in lost) else GONE
    whole = WOUNDED if alive else none_left
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
    """Choose the reason that is told of several: a VM that could not be had, rather than what followed from it."""
    order = (wire.CONFIGURATION, wire.QUOTA, wire.STOCKOUT, wire.PREEMPTION)
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
    if model == machines.FLEX_START and member.now is None and member.is_made and not (vm is not None and vm.started):
        # Such a VM vanishes without a word once its request is no longer valid. One that was never seen may be late.
        if vm is None and member.missed <= UNSHOWN:
            return None
        return f"nothing became free in {context.zone} while the request for {member.name} was valid", wire.STOCKOUT
    return None


def _told_by(event: Event, member: Member, vm: Vm | None, context: CallContext, model: str) -> tuple[str, str] | None:
    """Read the end of a VM and its cause from one operation; None if it tells of none."""
    where = f"{member.name} in {context.zone} is {_state(member)}"
    if event.kind == "insert" and event.problems:
        trouble = causes.classify(event.problems, context)
        # Whether a VM was made is not known from every error: then it is looked for.
        return None if trouble.action == api_errors.AGAIN else (f"{context.zone}: {trouble.sentence}", trouble.cause)
    if event.kind == _PREEMPTED and model == machines.SPOT:
        return f"{where}: it was preempted", wire.PREEMPTION
    if event.kind == _PREEMPTED:
        return f"{where}: Google took its machine back, as it does to defragment a zone", wire.INFRASTRUCTURE
    if event.kind in _BY_GOOGLE:
        return f"{where}: {_BY_GOOGLE[event.kind]}", wire.INFRASTRUCTURE
    if event.kind in _BY_SOMEBODY and not event.problems:
        return _by(event, where, vm, context)
    return None


def _by(event: Event, where: str, vm: Vm | None, context: CallContext) -> tuple[str, str]:
    """Name who ended a VM. A user who does so manually wants its job to end."""
    did = _BY_SOMEBODY[event.kind]
    own = {account for account in (context.account, vm.account if vm is not None else "") if account}
    if event.user in own:
        return f"{where}: its own account {did} it ({event.user})", wire.INFRASTRUCTURE
    if _is_google(event.user):
        return f"{where}: Google {did} it", wire.INFRASTRUCTURE
    if not own and event.user.endswith(_OF_SERVICE):  # of a VM that nobody here has seen
        return f"{where}: {event.user} {did} it, which may be its own account", wire.INFRASTRUCTURE
    return f"{where}: {event.user} {did} it", wire.CANCELLED


def _is_google(user: str) -> bool:
    return user.partition("@")[0] in ("", _GOOGLE)


def _state(member: Member) -> str:
    return "gone" if member.now is None else member.now.status


def _until(vm: Vm) -> str:
    until = vm.labels.get(UNTIL, "")
    if not until.isdecimal():
        return ""
    return f" until {datetime.fromtimestamp(int(until), UTC):%Y-%m-%d %H:%M:%S} UTC at the latest"
