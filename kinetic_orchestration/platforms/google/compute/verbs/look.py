"""Observes placements: one list of each kind for each project, however many placements, and its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import UNKNOWN, Observation, Plan
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.compute import causes, request, slices, states
from kinetic_orchestration.platforms.google.compute.client import INSTANCES, Instances, Refused
from kinetic_orchestration.platforms.google.compute.slices import GROUPS
from kinetic_orchestration.platforms.google.compute.states import Event, Group, Member, Slice, Vm
from kinetic_orchestration.platforms.google.compute.verbs.memory import Memory
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.rate_limit import Pace
from kinetic_orchestration.protocol import names

# VMs that the list does not show, or shows dead, are looked up one by one, with two requests each: so many a second,
# and after a pause at once. Google allows 1,500 reads a minute, to all of a project together.
LOOKS_PER_SECOND, LOOKS_AT_ONCE = 5.0, 40.0
NOT_LOOKED_UP = Observation(UNKNOWN, "no list shows its VM, and others are looked up first")


class There(NamedTuple):
    """Resources of one kind: those that were read, by path, zones that did not answer, and the listing's success."""

    found: Mapping[str, Any]
    silent: tuple[str, ...] = ()
    is_list: bool = False


class Look:
    """Observes placements, and says what became of VMs that are not there."""

    def __init__(self, settings: Settings, api: Instances, memory: Memory) -> None:
        self._settings = settings
        self._api = api
        self._memory = memory
        self._looks = Pace(LOOKS_PER_SECOND, LOOKS_AT_ONCE)

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Return the observation of each placement. A single VM or group is read by its name, and so is what the list
        does not show, which lags. Of those that are gone the operations are listed, once each. Both are bounded: of
        those that are not looked up this time nothing is said.
        """
        projects: dict[str, list[int]] = {}
        for index, placement in enumerate(placements):
            projects.setdefault(placement["project"], []).append(index)
        seen: dict[int, Observation] = {}
        for project, indices in projects.items():
            mine = [placements[index] for index in indices]
            try:
                if self._memory.is_throttled:
                    raise Refused(0, [causes.Problem("", causes.RATE, api_errors.UNAVAILABLE)])
                seen.update(zip(indices, self._observe(project, mine), strict=True))
            except (Refused, CredentialsError) as error:
                unknown = self._unknown(error, mine[0])
                seen.update((index, unknown) for index in indices)
        return [seen[index] for index in range(len(placements))]

    def became(self, placement: Mapping[str, Any], name: str, context: CallContext, model: str) -> Observation:
        """Return what the operations tell of a VM or a group of the placement that is not there. Raises Refused."""
        events = self._api.events(request.zone_of(placement), _told_by(placement, name))
        if not request.is_grouped(placement):
            return states.observation([self._lost(placement, name, events)], context, model, self._api.now())
        members = [self._lost(placement, one, events, name) for one in request.members_of_group(placement, name)]
        return states.of_slices([Slice(name, None, members)], context, model, self._api.now())

    def _lost(self, placement: Mapping[str, Any], name: str, events: Sequence[Event], group: str = "") -> Member:
        path = path_of(placement, name)
        member = Member(name, None, self._memory.before(name), states.events_of(events, name, group))
        return member._replace(missed=self._memory.missed(path)) if member.is_made else member

    def _unknown(self, error: Refused | CredentialsError, placement: Mapping[str, Any]) -> Observation:
        if isinstance(error, CredentialsError):
            return Observation(UNKNOWN, str(error))
        trouble = causes.classify(error.problems, context_of(self._settings, placement))
        if trouble.action == api_errors.LATER:
            self._memory.slow_down()
        return Observation(UNKNOWN, trouble.sentence, trouble.cause if trouble.action == api_errors.DROP else "")

    def _observe(self, project: str, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        wanted = [path_of(placement, name) for placement in placements for name in request.members_of(placement)]
        label = resource_labels.label(self._settings.deployment)
        vms = self._there(project, INSTANCES, wanted, f"labels.{ownership.DEPLOYMENT}={label}")
        asked = [
            slices.group_path(placement, name) for placement in placements for name in request.groups_of(placement)
        ]
        refused: Observation | None = None
        try:
            groups = self._there(project, GROUPS, asked, named(self._settings))
        except Refused as error:  # by who may make VMs one by one alone, and sees those of others
            refused = self._unknown(error, placements[0])
            groups = There({})
        unheard = [_unheard(placement, (*vms.silent, *groups.silent), refused) for placement in placements]
        heard = [placement for placement, unknown in zip(placements, unheard, strict=True) if unknown is None]
        later = self._postponed(heard, vms, groups)
        return [
            unknown or (NOT_LOOKED_UP if path_of_all(placement) in later else self._judge(placement, vms, groups))
            for placement, unknown in zip(placements, unheard, strict=True)
        ]

    def _postponed(self, placements: Sequence[Mapping[str, Any]], vms: There, groups: There) -> set[str]:
        """Return which placements have something that is to be looked up, and is not now, as too much is: first comes
        what was seen to run, then what was looked up longest ago."""
        due: list[tuple[bool, float, str, int]] = []
        for placement in placements:
            if asked := self._unshown(placement, vms, groups):
                listed = min(self._memory.listed_at(path) for path in asked)
                has_run = not listed and any(map(self._memory.before, request.members_of(placement)))
                due.append((not has_run, listed, path_of_all(placement), len(asked)))
        later: set[str] = set()
        for _, _, path, count in sorted(due):
            taken = [self._looks.take() for _ in range(count)] if not later else [False]
            if not any(taken):  # of several hosts all are looked up, or none could be judged
                later.add(path)
        return later

    def _unshown(self, placement: Mapping[str, Any], vms: There, groups: There) -> list[str]:
        """Return what of a placement is to be looked up, as lists do not show it or show it dead: the path of each, or
        of a placement with groups, that of all as many times."""
        if not request.is_grouped(placement):
            paths = [path_of(placement, name) for name in request.members_of(placement)] if vms.is_list else []
            shown = [(path, vms.found.get(path)) for path in paths]
        else:
            shown = [(path_of_all(placement), None)] * self._missing(placement, vms, groups)
        return [
            path for path, vm in shown if states.is_told(vm) and self._memory.is_to_be_asked(placement, path, vm)
        ]  # fmt: skip

    def _missing(self, placement: Mapping[str, Any], vms: There, groups: There) -> int:
        """Return how many groups the lists lack, and VMs of those that have got their VMs."""
        missing = 0
        for name in request.groups_of(placement):
            group: Group | None = groups.found.get(slices.group_path(placement, name))
            missing += group is None and groups.is_list
            known = self._known(placement, name, vms)
            if vms.is_list and not Slice(name, group, known).waits:
                missing += sum(states.is_told(one.now) for one in known)
        return missing

    def _known(self, placement: Mapping[str, Any], group: str, vms: There) -> list[Member]:
        """The VMs of a group, as far as they are read already."""
        paths = {name: path_of(placement, name) for name in request.members_of_group(placement, group)}
        return [Member(name, vms.found.get(path), self._memory.before(name)) for name, path in paths.items()]

    def _there(self, project: str, collection: str, wanted: Sequence[str], chosen: str) -> There:
        if len(wanted) < 2:
            return There({path: found for path in wanted if (found := self._api.get(path)) is not None})
        listed = self._api.everywhere(project, collection, chosen)
        by_path = {f"projects/{project}/zones/{one.zone}/{collection}/{one.name}": one for one in listed.found}
        return There(by_path, listed.silent, is_list=True)

    def _judge(self, placement: Mapping[str, Any], vms: There, groups: There) -> Observation:
        context, model = context_of(self._settings, placement), str(placement.get("model", ""))
        try:
            if not request.is_grouped(placement):
                members = [self._member(placement, name, vms) for name in request.members_of(placement)]
                return states.observation(members, context, model, self._api.now())
            seen = [self._slice(placement, name, vms, groups) for name in request.groups_of(placement)]
            return states.of_slices(seen, context, model, self._api.now())
        except Refused as refused:
            return self._unknown(refused, placement)

    def _member(
        self, placement: Mapping[str, Any], name: str, vms: There, group: str = "", *, is_whole: bool = False
    ) -> Member:
        """One VM. `is_whole`: what was read has it if it exists."""
        path = path_of(placement, name)
        vm, before, known_as = vms.found.get(path), self._memory.before(name), known_by(placement, path)
        is_list = vms.is_list and not is_whole
        if vm is None and is_list and self._memory.is_to_be_asked(placement, known_as):
            vm = self._api.get(path)
        if vm is not None:
            self._memory.asked_for(placement)
            vm = self._memory.keep(name, path, vm, known_as)
        told = self._told(placement, path, vm, group) if states.is_told(vm) else None
        return self._memory.timed(path, Member(name, vm, before, told))

    def _slice(self, placement: Mapping[str, Any], name: str, vms: There, groups: There) -> Slice:
        """One slice: a group that has not got its VMs is not asked for each of them."""
        path = slices.group_path(placement, name)
        group: Group | None = groups.found.get(path)
        if group is None and groups.is_list and self._memory.is_to_be_asked(placement, path_of_all(placement)):
            group = self._api.get(path)
        if group is not None:
            self._memory.asked_for(placement)
        known = self._known(placement, name, vms)
        if (waits := Slice(name, group, known)).waits:
            self._memory.shows(path)
            return waits
        members = [self._member(placement, one.name, vms, name, is_whole=group is None) for one in known]
        if group is None or any(member.now for member in members):
            self._memory.shows(path)
            return Slice(name, group, members)
        return Slice(name, group, members, self._memory.missed(path))

    def _told(self, placement: Mapping[str, Any], path: str, vm: Vm | None, group: str) -> Sequence[Event]:
        """The operations of a VM that is not there: those of all VMs of groups are listed at once."""
        name, known_as = path.rpartition("/")[2], known_by(placement, path)
        is_fresh = request.is_grouped(placement) and self._memory.is_fresh(known_as)  # listed for the VM before
        if not is_fresh and self._memory.is_to_be_asked(placement, known_as, vm):
            events = self._api.events(request.zone_of(placement), _told_by(placement, name))
            self._memory.listed(known_as, events)
        return states.events_of(self._memory.told(known_as), name, group)


def _unheard(placement: Mapping[str, Any], silent: Sequence[str], refused: Observation | None) -> Observation | None:
    """Return the observation of a placement of which the lists say nothing; None for any other. `refused`: of all that
    have groups."""
    if placement["zone"] in silent:
        return Observation(UNKNOWN, f"{placement['zone']} does not answer")
    return refused if request.is_grouped(placement) else None


def context_of(settings: Settings, placement: Mapping[str, Any], plan: Plan | None = None) -> CallContext:
    """Return what errors about a placement are judged by."""
    account = str(plan.cloud.get("service_account") or "") if plan is not None else settings.service_account
    reserved = placement.get("model") == accelerators.RESERVATION
    return CallContext(placement["project"], placement["zone"], account, reserved, service="compute")


def named(settings: Settings) -> str:
    """Return the filter of what has no labels: by the names that this deployment gives."""
    return f"name:kinetic-{names.mark(settings.store, settings.deployment)}-"


def path_of(placement: Mapping[str, Any], name: str) -> str:
    """Return the path of a VM."""
    return f"{request.zone_of(placement)}/{INSTANCES}/{name}"


def path_of_all(placement: Mapping[str, Any]) -> str:
    return path_of(placement, placement["name"])


def known_by(placement: Mapping[str, Any], path: str) -> str:
    """The path by which the operations of a VM are remembered: those of a placement with groups are so as a whole."""
    return path_of_all(placement) if request.is_grouped(placement) else path


def _told_by(placement: Mapping[str, Any], name: str) -> str:
    """Return the texts in the paths of operations about a VM, or about all of a placement with groups."""
    return str(placement["name"]) if request.is_grouped(placement) else f"{INSTANCES}/{name}"
