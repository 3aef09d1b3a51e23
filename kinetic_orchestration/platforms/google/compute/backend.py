"""VMs of Compute Engine, one for each host of an attempt: the verbs, each bounded and idempotent.

The create calls are made by `request`, errors are interpreted by `causes` and states by `states`, and `client` makes
the calls. This module only joins them. VMs are found by the names that follow from their attempt; what is remembered
here only saves calls, and says more of VMs that were seen before they were gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare import resource_labels
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.google import api_errors, vms
from kinetic_orchestration.platforms.google.api_errors import CallContext, Trouble
from kinetic_orchestration.platforms.google.compute import causes, preflight, request, states
from kinetic_orchestration.platforms.google.compute.client import Disk, Instances, Refused
from kinetic_orchestration.platforms.google.compute.states import Event, Member, Vm
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.rest.kept_secrets import KeptSecrets
from kinetic_orchestration.platforms.google.vms import request_id
from kinetic_orchestration.platforms.shared import ownership, places
from kinetic_orchestration.platforms.shared.findings import Finding
from kinetic_orchestration.platforms.shared.ownership import Owned
from kinetic_orchestration.platforms.shared.rate_limit import pace_of
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import REQUESTS

NO_ZONE = "no zone is known for this accelerator: name some with cloud=Compute(zones=[…]) or KINETIC_ZONES"
LOOK_AGAIN = 15.0  # seconds until the operations of a VM that is gone are listed again, if they said nothing
MOST_SEEN = 4096  # VMs that are remembered
LAST_LINES = 25  # of a serial log, that a reason contains
MOST_LETTERS = 3000
_MINUTE = 60.0
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z0-9]+")


class ComputeBackend:
    kind = "compute"
    charges = shared = True
    parallel = REQUESTS

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api = Instances(settings)
        self._secrets = KeptSecrets(settings)
        self._throttle = (settings.emulator, f"compute/{settings.project}")
        # By the path of a VM:
        self._seen: dict[str, Vm] = {}  # as it was last seen
        self._events: dict[str, tuple[float, list[Event]]] = {}  # its operations, and when they were listed
        self._unshown: dict[str, float] = {}  # since when its insert has ended without it being shown
        self._repairing: dict[str, float] = {}  # start of its repair by this process's clock
        self._unmade: set[str] = set()  # placements that this process has chosen and nobody is known to have submitted

    # ---- before the create call

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def check(self, plan: Plan) -> None:
        request.check(plan)
        places.first(vms.zones_of(plan), NO_ZONE)

    def require(self, plan: Plan) -> None:
        preflight.require(self._settings, self._api, plan)

    def examine(self, plan: Plan) -> Iterator[Finding]:
        """Check all that a job with this plan needs, for a diagnosis."""
        return preflight.examine(self._settings, self._api, plan)

    def prepare(self) -> None:
        self._api.prepare()

    def emulates(self, slice_: Slice) -> bool:
        return bool(self._settings.emulator)

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        asked, seed = vms.zones_of(plan), f"{job_id}-{attempt}"
        choice = places.first(asked, NO_ZONE)
        if previous is not None:
            stay = bool(plan.cloud.get("reservation"))
            refusal = api_errors.refusal_of(asked, previous, causes.recall)
            ordered = causes.hinted(asked, previous.reason, str(previous.placement["zone"]))
            choice = places.following(ordered, previous, seed, refusal, patience=plan.zone_patience, stay=stay)
        placement = {
            "backend": self.kind,
            "project": plan.project,
            "zone": choice.place,
            "name": names.slice_of(plan.store, plan.deployment, job_id, attempt),
            "hosts": plan.hosts,
            "slices": plan.slices,
            "model": request.model_of(plan),
            **places.history(choice, previous),
        }
        if len(self._unmade) >= MOST_SEEN:
            self._unmade.clear()  # which costs a call for each
        self._unmade.add(_path(placement, placement["name"]))
        return placement

    def dry_run(self, plan: Plan) -> str:
        """The create calls that the first attempt would make, as text for users."""
        return request.dry_run(plan, self.place(plan, "job-000000000000", 1))

    # ---- the create call

    def submit(self, asked: Submission) -> str:
        """Make the VMs that do not exist. What one of them is refused for ends the attempt, and so frees the others."""
        placement = asked.intent.placement
        if retries.is_throttled(self._throttle):
            return f"waiting: {causes.RATE}"
        try:
            self._secrets.keep(asked)
        except BackendError as trouble:
            if trouble.cause in places.WITHOUT_HOSTS:  # an error of Secret Manager, which no other zone helps against
                return f"waiting: {trouble}"
            raise
        self._unmade.discard(_path(placement, placement["name"]))
        waits = ""
        for body in request.render(asked):
            if wait := self._make(asked, body):
                waits = waits or wait
        return waits

    def _make(self, asked: Submission, body: Mapping[str, Any]) -> str:
        """Make one VM. Returns a waiting state, or "" if it is there or being made; raises BackendError."""
        placement, name = asked.intent.placement, str(body["name"])
        path, context = _path(placement, name), self._context(placement, asked.plan)
        try:
            begun = self._api.insert(request.zone_of(placement), body, request_id(asked.intent, name))
        except Refused as refused:
            return self._refused(refused, asked, path, context)
        if not begun.ended:
            return ""
        trouble = None
        if begun.problems:
            trouble = causes.classify(begun.problems, context)
            if trouble.action != api_errors.AGAIN:
                raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)
        return self._made_before(asked, path, context, trouble)

    def _made_before(self, asked: Submission, path: str, context: CallContext, trouble: Trouble | None) -> str:
        """A call that the API has answered before does nothing: it is the VM that is looked at. `trouble`: with which
        the call's operation ended, and which leaves open whether there is a VM."""
        try:
            found = self._api.get(path)
            if found is not None:
                vms.adopt(path, found.labels, asked, _look_at(found))
                self._remember(path, found)
                self._unshown.pop(path, None)
                return ""
            events = self._api.events(path.rpartition("/instances/")[0], path.rpartition("/")[2])
        except Refused:
            return "waiting: Compute Engine does not answer"
        member = Member(path.rpartition("/")[2], None, self._seen.get(path), events)
        model = request.model_of(asked.plan)
        said = states.observation([member], context, model, time.time())
        if said.cause:
            raise BackendError(said.message, said.cause)
        now = time.monotonic()
        if now - self._unshown.setdefault(path, now) > states.UNSHOWN:
            if trouble is not None:
                raise BackendError(f"{context.zone}: {trouble.sentence}", wire.INTERNAL)
            raise BackendError(
                f"{context.zone}: {member.name} was made and is not there, and nobody here saw it running or deleted "
                "it. Hosts that may not use the bucket can tell nobody: see that their account has "
                f"roles/storage.objectUser on it. Or somebody deleted it: {states.WHOM_TO_ASK}",
                wire.INFRASTRUCTURE,
            )
        return f"waiting: {context.zone} has taken the request and not shown {member.name} yet"

    def _refused(self, refused: Refused, asked: Submission, path: str, context: CallContext) -> str:
        """Handle the refusal of an insert. Returns the state of the request, or raises BackendError."""
        trouble = causes.classify(refused.problems, context)
        if trouble.action == api_errors.LATER:
            self._slow_down()
            return f"waiting: {trouble.sentence}"
        if trouble.action in (api_errors.ADOPT, api_errors.AGAIN, api_errors.HERE):
            try:
                found = self._api.get(path)
            except Refused:
                return f"waiting: {trouble.sentence}; the call is made again"
            if found is not None:
                vms.adopt(path, found.labels, asked, _look_at(found))
                self._remember(path, found)
                return ""
            if trouble.action != api_errors.HERE:
                return f"waiting: {trouble.sentence}; the call is made again"
        raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)

    def _slow_down(self) -> None:
        """Make no call until the next full minute, when the API's rates begin anew."""
        retries.throttle(self._throttle, _MINUTE - time.time() % _MINUTE)

    def _context(self, placement: Mapping[str, Any], plan: Plan | None = None) -> CallContext:
        account = str(plan.cloud.get("service_account") or "") if plan is not None else self._settings.service_account
        reserved = placement.get("model") == machines.RESERVATION
        return CallContext(placement["project"], placement["zone"], account, reserved, service="compute")

    # ---- observing

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """One list of all zones for each project, however many placements; a single VM is read by its name, and so is
        what the list does not show, which lags. Of those that are gone the operations are listed, once each.
        """
        groups: dict[str, list[int]] = {}
        for index, placement in enumerate(placements):
            groups.setdefault(placement["project"], []).append(index)
        seen: dict[int, Observation] = {}
        for project, indices in groups.items():
            mine = [placements[index] for index in indices]
            try:
                if retries.is_throttled(self._throttle):
                    raise Refused(0, [causes.Problem("", causes.RATE, api_errors.UNAVAILABLE)])
                seen.update(zip(indices, self._observe(project, mine), strict=True))
            except (Refused, CredentialsError) as error:
                unknown = self._unknown(error, mine[0])
                seen.update((index, unknown) for index in indices)
        return [seen[index] for index in range(len(placements))]

    def _unknown(self, error: Refused | CredentialsError, placement: Mapping[str, Any]) -> Observation:
        if isinstance(error, CredentialsError):
            return Observation(UNKNOWN, str(error))
        trouble = causes.classify(error.problems, self._context(placement))
        if trouble.action == api_errors.LATER:
            self._slow_down()
        return Observation(UNKNOWN, trouble.sentence, trouble.cause if trouble.action == api_errors.DROP else "")

    def _observe(self, project: str, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        wanted = [_path(placement, name) for placement in placements for name in request.members_of(placement)]
        silent: tuple[str, ...] = ()
        if len(wanted) == 1:
            alone = self._api.get(wanted[0])
            found = {} if alone is None else {wanted[0]: alone}
        else:
            label = resource_labels.label(self._settings.deployment)
            listed = self._api.everywhere(project, ownership.DEPLOYMENT, label)
            found = {f"projects/{project}/zones/{vm.zone}/instances/{vm.name}": vm for vm in listed.found}
            silent = listed.silent
        is_list = len(wanted) > 1
        return [self._judge(placement, found, silent, is_list=is_list) for placement in placements]

    def _judge(
        self, placement: Mapping[str, Any], found: Mapping[str, Vm], silent: Sequence[str], *, is_list: bool
    ) -> Observation:
        if placement["zone"] in silent:
            return Observation(UNKNOWN, f"{placement['zone']} does not answer")
        context = self._context(placement)
        members = []
        try:
            for name in request.members_of(placement):
                path = _path(placement, name)
                vm, before = found.get(path), self._seen.get(path)
                if vm is None and is_list and self._is_to_be_asked(placement, path):
                    vm = self._api.get(path)
                if vm is not None:
                    self._unmade.discard(_path(placement, placement["name"]))
                    vm = self._remember(path, vm)
                told = self._told(placement, path, vm) if states.is_lost(vm) else None
                members.append(self._timed(path, Member(name, vm, before, told)))
        except Refused as refused:
            return self._unknown(refused, placement)
        return states.observation(members, context, str(placement.get("model", "")), time.time())

    def _timed(self, path: str, member: Member) -> Member:
        """Return the member with the seconds for which it was not shown, by this process's clock."""
        if member.now is not None or not member.is_made:
            self._unshown.pop(path, None)
            return member
        now = time.monotonic()
        return member._replace(missed=now - self._unshown.setdefault(path, now))

    def _remember(self, path: str, vm: Vm) -> Vm:
        """Keep what was seen of a VM; return it with the time for which it is known to be under repair."""
        now = time.monotonic()
        if vm.status == states.REPAIRING:
            vm = vm._replace(repairing=now - self._repairing.setdefault(path, now))
        else:
            self._repairing.pop(path, None)
        if not states.is_lost(vm):
            self._events.pop(path, None)
            self._seen.pop(path, None)
            self._seen[path] = vm
            while len(self._seen) > MOST_SEEN:
                del self._seen[next(iter(self._seen))]
        return vm

    def _told(self, placement: Mapping[str, Any], path: str, vm: Vm | None) -> Sequence[Event]:
        """The operations of a VM that is not there."""
        if self._is_to_be_asked(placement, path, vm):
            events = self._api.events(request.zone_of(placement), path.rpartition("/")[2])
            self._events[path] = (time.monotonic(), events)
            while len(self._events) > MOST_SEEN:
                del self._events[next(iter(self._events))]
        return self._events.get(path, (0.0, []))[1]

    def _is_to_be_asked(self, placement: Mapping[str, Any], path: str, vm: Vm | None = None) -> bool:
        """Return True if a VM that is not shown alive is worth a request: not while nobody has made it, nor once its
        operations have said why it is gone, and not again at once."""
        if _path(placement, placement["name"]) in self._unmade:
            return False
        listed, events = self._events.get(path, (0.0, []))
        if any(map(_is_an_end, events)):
            return False
        # That a VM is being made is soon over, and a list without its insert is older than one that is there.
        is_old = not listed or not all(event.ended for event in events) or (vm is not None and not events)
        return is_old or time.monotonic() - listed >= LOOK_AGAIN

    def last_words(self, placement: Mapping[str, Any]) -> str:
        """The end of the serial log of the first VM that has one: the only log of a boot that never came to an end."""
        for name in request.members_of(placement):
            try:
                log = self._api.serial_end(_path(placement, name))
            except (Refused, CredentialsError):
                return ""
            if lines := [line.rstrip() for line in log.splitlines() if line.strip()]:
                shown = "\n".join(lines[-LAST_LINES:])[-MOST_LETTERS:]
                return f"the serial log of {name} ends so:\n{shown}"
        return ""

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        """One for all zones of a project, as one list shows them all."""
        return pace_of({"project": f"compute/{placement['project']}", "zone": ""})

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        """Return True for a zone of the settings' project: no list says in which zones there are GPUs."""
        return placement["project"] == self._settings.project and bool(_ZONE.fullmatch(placement["zone"]))

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Hosts see the cancel record by themselves; what waits for capacity is released once the attempt is closed."""

    # ---- release

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Gone is what answers 404: each VM, and then a disk of its name. Under way: what shows STOPPING."""
        freed = Freed.DONE
        for name in request.members_of(placement):
            try:
                one = self._release(placement, name)
            except (Refused, CredentialsError):
                one = Freed.REFUSED
            if one is not Freed.DONE and freed is not Freed.REFUSED:
                freed = one
        return freed

    def _release(self, placement: Mapping[str, Any], name: str) -> Freed:
        path = _path(placement, name)
        found = self._api.get(path)
        if found is not None and not vms.is_ours(self._settings, placement["name"], found.labels):
            return Freed.DONE  # another owner's VM of this name: this placement was never created
        if found is not None:
            # One that is STOPPING may do so by itself, and would stay as a disk that is billed.
            accepted = self._delete(path)
            if (left := self._api.get(path)) is not None:
                # An accepted call is not yet a deletion: if the state does not show it, the caller repeats it.
                return Freed.UNDER_WAY if accepted and left.status in states.ENDING else Freed.REFUSED
        for known in (self._unshown, self._repairing):
            known.pop(path, None)
        disk = self._api.disk(path.replace("/instances/", "/disks/"))
        if disk is None or not vms.is_ours(self._settings, placement["name"], disk.labels):
            return Freed.DONE
        return Freed.UNDER_WAY if self._delete(path.replace("/instances/", "/disks/")) else Freed.REFUSED

    def _delete(self, path: str) -> bool:
        """Ask for a deletion. Returns True if that was accepted; what comes of it is seen by looking."""
        try:
            self._api.delete(path)
        except (Refused, CredentialsError):  # one that was gone already, too
            return False
        return True

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """All VMs of this deployment, in all zones of the project, and disks of theirs that were left behind."""
        project = self._settings.project
        if not project:
            raise UsageError("the project is not known: set KINETIC_PROJECT, so that its VMs can be listed")
        label = resource_labels.label(self._settings.deployment)
        try:
            instances = self._api.everywhere(project, ownership.DEPLOYMENT, label)
            disks = self._api.disks(project, ownership.DEPLOYMENT, label)
        except Refused as refused:
            trouble = causes.classify(refused.problems, CallContext(project, service="compute"))
            raise BackendError(trouble.sentence, trouble.cause) from None
        found: dict[tuple[str, str], dict[str, Any]] = {}
        hosts: dict[tuple[str, str], int] = {}
        for one in (*instances.found, *disks.found):
            owned = ownership.owned(one.labels)
            if owned is None:
                continue
            name = vms.name_of(self._settings, owned)
            index = one.name.removeprefix(name).removeprefix("-")
            if not one.name.startswith(name) or (index and not index.isdecimal()):
                continue  # another deployment's, or one with a name that no placement has
            key = (one.zone, name)
            hosts[key] = max(hosts.get(key, 1), int(index) + 1 if index else 1, 2 if index else 1)
            if key not in found:
                state = "DISK" if isinstance(one, Disk) else one.status
                found[key] = self._leftover(project, one, owned, name, state)
        yield from ({**entry, "hosts": hosts[key]} for key, entry in found.items())
        yield from ({"zone": zone, "unread": "no answer"} for zone in sorted({*instances.silent, *disks.silent}))

    def _leftover(self, project: str, one: Vm | Disk, owned: Owned, name: str, state: str) -> dict[str, Any]:
        shown = "DELETING" if state in states.ENDING else state
        return {
            "backend": self.kind, "project": project, "zone": one.zone, "name": name, "slices": 1, "job": owned.job,
            "attempt": owned.attempt, "created": one.created, "expires": owned.expires, "state": shown,
            "deployment": owned.deployment,
        }  # fmt: skip

    def secrets(self) -> Iterator[tuple[str, str]]:
        return self._secrets.secrets()

    def forget(self, secret: str, job_id: str) -> bool:
        return self._secrets.forget(secret, job_id)


def _path(placement: Mapping[str, Any], name: str) -> str:
    return f"{request.zone_of(placement)}/instances/{name}"


def _is_an_end(event: Event) -> bool:
    return event.kind != "insert" or bool(event.problems)


def _look_at(found: Vm) -> str:
    return f"gcloud compute instances describe {found.name} --zone {found.zone}"
