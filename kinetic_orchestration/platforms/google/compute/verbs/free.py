"""Freeing of what an attempt holds, in its order, and finding what was left behind. Gone is what answers 404."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, UsageError
from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.platforms.google import api_errors, vms
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.compute import causes, request, slices, states
from kinetic_orchestration.platforms.google.compute.client import DISKS, INSTANCES, Instances, Listing, Refused
from kinetic_orchestration.platforms.google.compute.slices import GROUPS, POLICIES, TEMPLATES
from kinetic_orchestration.platforms.google.compute.states import Event, Vm
from kinetic_orchestration.platforms.google.compute.verbs.look import named, path_of
from kinetic_orchestration.platforms.google.compute.verbs.memory import Memory
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import wire

ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z0-9]+")
_WORDS = {DISKS: "DISK", GROUPS: "GROUP", TEMPLATES: "TEMPLATE", POLICIES: "POLICY"}  # of what is left, if no VM is
_WORST = (Freed.REFUSED, Freed.UNDER_WAY, Freed.PARTLY, Freed.DONE)
A_MOMENT = 2.0  # seconds for which the end of groups is waited for, and that of what they were made of and by
MOST_HOSTS = 100_000  # of a placement: what claims more was not made here
# The names of `names.numbered` and `names.members`, after that of their placement.
_NUMBERED, _MEMBER = re.compile(r"(?:-(\d{1,6}))?"), re.compile(r"(?:-\d{1,6})?-(\d{3,6})")


class Free:
    """Frees placements, and finds those that hold something."""

    def __init__(self, settings: Settings, api: Instances, memory: Memory) -> None:
        self._settings = settings
        self._api = api
        self._memory = memory

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Free all that a placement holds: its VMs, and then what they were made of and by."""
        if not request.is_grouped(placement):
            return _worst([self._tried(self._release, placement, name) for name in request.members_of(placement)])
        freed = self._groups(placement)
        if freed is Freed.DONE:
            freed = self._tried(self._hosts, placement, placement["name"])
        for path in filter(None, (slices.template_path(placement), slices.policy_path(placement))):
            if freed is Freed.DONE:  # what is in use by the one before cannot go
                freed = self._tried(self._part, placement, path)
        return freed

    def _tried(self, free: Callable[[Mapping[str, Any], str], Freed], placement: Mapping[str, Any], what: str) -> Freed:
        try:
            return free(placement, what)
        except (Refused, CredentialsError):
            return Freed.REFUSED

    def _release(self, placement: Mapping[str, Any], name: str) -> Freed:
        """Free one VM, and then a disk of its name. Under way: what shows STOPPING."""
        path = path_of(placement, name)
        found = self._api.get(path)
        if found is not None and not self._is_ours(placement, found):
            return Freed.DONE  # another owner's VM of this name: this placement was never created
        if found is not None:
            # One that is STOPPING may do so by itself, and would stay as a disk that is billed.
            accepted = self._delete(path) is not None
            if (left := self._api.get(path)) is not None:
                # An accepted call is not yet a deletion: if the state does not show it, the caller repeats it.
                return Freed.UNDER_WAY if accepted and left.status in states.ENDING else Freed.REFUSED
        self._memory.forget(path)
        return self._disk(placement, name)

    def _disk(self, placement: Mapping[str, Any], name: str) -> Freed:
        path = f"{request.zone_of(placement)}/{DISKS}/{name}"
        disk = self._api.get(path)
        if disk is None or not self._is_ours(placement, disk):
            return Freed.DONE
        return Freed.UNDER_WAY if self._delete(path) is not None else Freed.REFUSED

    def _groups(self, placement: Mapping[str, Any]) -> Freed:
        """Free all groups, and with them their VMs. Once their deletion shows, what costs need not be asked for again;
        as the rest can only go after it, it is waited for a moment."""
        begun: dict[str, Event | None] = {}
        freed = [Freed.DONE]
        for name in request.groups_of(placement):
            path = slices.group_path(placement, name)
            try:
                found = self._api.get(path)
            except (Refused, CredentialsError):
                freed.append(Freed.REFUSED)
                continue
            if found is not None and self._is_ours(placement, found):
                begun[path] = self._delete(path)
            else:
                self._memory.forget(path)
        deadline = time.monotonic() + A_MOMENT
        for path, deletion in begun.items():
            try:
                freed.append(self._left(path, deletion, deadline))
            except (Refused, CredentialsError):
                freed.append(Freed.REFUSED)
        return _worst(freed)

    def _left(self, path: str, deletion: Event | None, deadline: float) -> Freed:
        """Say what is left of a group whose `deletion` was accepted, or not."""
        left = deadline - time.monotonic()
        if deletion is not None and left > 0:
            self._api.ended(deletion, left)
        found = self._api.get(path)
        if found is not None:
            # Of one that deletes all that it has, a second call may be refused.
            return Freed.PARTLY if found.leaves or (deletion is not None and found.deletes) else Freed.REFUSED
        self._memory.forget(path)
        return Freed.DONE

    def _hosts(self, placement: Mapping[str, Any], name: str) -> Freed:
        """Free what a group that is gone has left behind: it takes its VMs with it, and these their disks."""
        freed = [Freed.DONE]
        for collection in (INSTANCES, DISKS):
            listed = self._api.everywhere(placement["project"], collection, f"name:{name}")
            if not listed.is_whole(placement["zone"]):
                return Freed.REFUSED
            mine = {one.name for one in listed.found if one.zone == placement["zone"] and self._is_ours(placement, one)}
            here = [one for one in request.members_of(placement) if one in mine]
            if here and self._has_group(placement):  # made since it was looked for: it would make its VMs anew
                return Freed.REFUSED
            free = self._release if collection == INSTANCES else self._disk
            freed += [self._tried(free, placement, one) for one in here]
        return _worst(freed)

    def _has_group(self, placement: Mapping[str, Any]) -> bool:
        paths = (slices.group_path(placement, name) for name in request.groups_of(placement))
        return any((found := self._api.get(path)) is not None and self._is_ours(placement, found) for path in paths)

    def _part(self, placement: Mapping[str, Any], path: str) -> Freed:
        """Free a template or a policy, which cost nothing. A while after its groups are gone it is still in use."""
        found = self._api.get(path)
        if found is None or not self._is_ours(placement, found):
            return Freed.DONE
        if (deletion := self._delete(path)) is not None:
            self._api.ended(deletion, A_MOMENT)
        return Freed.DONE if self._api.get(path) is None else Freed.PARTLY

    def _is_ours(self, placement: Mapping[str, Any], found: Any) -> bool:
        return vms.is_ours(self._settings, placement["name"], found.labels)

    def _delete(self, path: str) -> Event | None:
        """Ask for a deletion. Returns its operation, or None if it was refused; what comes of it is seen by looking."""
        try:
            return self._api.delete(path)
        except (Refused, CredentialsError):  # one that was gone already, too
            return None

    # What was left behind

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """Yield all placements of this deployment of which something is there: VMs, disks, groups, templates, policies;
        and the zones and regions that did not answer, or only in part, and what may not be listed."""
        project = self._settings.project
        if not project:
            raise UsageError("the project is not known: set KINETIC_PROJECT, so that its VMs can be listed")
        label = f"labels.{ownership.DEPLOYMENT}={resource_labels.label(self._settings.deployment)}"
        chosen = {INSTANCES: label, DISKS: label, **dict.fromkeys((GROUPS, TEMPLATES, POLICIES), named(self._settings))}
        found: dict[tuple[str, str], dict[str, Any]] = {}
        silent: dict[str, str] = {}
        unread: list[dict[str, Any]] = []
        for collection, wanted in chosen.items():
            try:
                listed = self._listed(project, collection, wanted)
            except BackendError as error:
                if collection in (INSTANCES, DISKS) or error.cause != wire.CONFIGURATION:
                    raise
                unread.append({"zone": collection, "unread": str(error)})  # by who may make VMs one by one alone
                continue
            partial = (collection if place == api_errors.EVERYWHERE else place for place in listed.partial)
            silent = {**dict.fromkeys(partial, "its list is not whole"), **silent}
            silent |= dict.fromkeys(listed.silent, "no answer")
            for one in listed.found:
                if (entry := self._leftover(project, collection, one)) is not None:
                    known = found.setdefault((entry["zone"], entry["name"]), entry)
                    known |= {"hosts": max(known["hosts"], entry["hosts"]), **_model_of(entry)}
        yield from found.values()
        yield from [*unread, *({"zone": place, "unread": why} for place, why in sorted(silent.items()))]

    def _listed(self, project: str, collection: str, chosen: str) -> Listing:
        try:
            return self._api.everywhere(project, collection, chosen)
        except Refused as refused:
            trouble = causes.classify(refused.problems, CallContext(project, service="compute"))
            raise BackendError(trouble.sentence, trouble.cause) from None

    def _leftover(self, project: str, collection: str, one: Any) -> dict[str, Any] | None:
        """Return the placement that something is of; None for what is another deployment's, or has a name that none of
        its placements has."""
        owned = ownership.owned(one.labels)
        if owned is None or not ZONE.fullmatch(one.zone):
            return None
        name = vms.name_of(self._settings, owned)
        if not one.name.startswith(name):
            return None
        shape = _shape(collection, one, one.name.removeprefix(name))
        if not 0 < shape.get("slices", 0) <= shape["hosts"] <= MOST_HOSTS:
            return None
        state = one.status if isinstance(one, Vm) else _WORDS[collection]
        return {
            "backend": "compute", "project": project, "zone": one.zone, "name": name, **shape, "job": owned.job,
            "attempt": owned.attempt, "created": one.created, "expires": owned.expires,
            "state": "DELETING" if state in states.ENDING or getattr(one, "deletes", False) else state,
            "deployment": owned.deployment, **ownership.racing(owned),
        }  # fmt: skip


def _worst(freed: Iterable[Freed]) -> Freed:
    return min(freed, key=_WORST.index)


def _model_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a placement's hosts are to be had, if a thing of it has said so."""
    return {"model": entry["model"]} if "model" in entry else {}


def _shape(collection: str, one: Any, rest: str) -> dict[str, Any]:
    """Return what one thing tells of its placement: how many hosts and slices that has, at least; no slices for a name
    that it does not give. `rest`: The thing's name after the placement's."""
    told = one.labels.get(ownership.SLICES, "1")
    slices_told = int(told) if told.isdecimal() else 0
    if collection in (GROUPS, TEMPLATES, POLICIES):
        is_named = bool(_NUMBERED.fullmatch(rest)) if collection == GROUPS else not rest
        return {"hosts": one.hosts, "slices": slices_told if is_named else 0, "grouped": True, "model": one.model}
    if ownership.SLICES in one.labels:  # by which VMs of groups differ from the hundredth that is made by itself
        found = _MEMBER.fullmatch(rest)
        shape = {"hosts": int(found[1]) * slices_told, "slices": slices_told} if found else {"hosts": 1, "slices": 0}
        return {**shape, "grouped": True}
    found = _NUMBERED.fullmatch(rest)
    number = found and found[1]
    return {"hosts": max(2, int(number) + 1) if number else 1, "slices": 1 if found else 0}
