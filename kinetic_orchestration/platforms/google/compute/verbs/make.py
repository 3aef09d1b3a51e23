"""The making of what an attempt needs, one stage after another: the calls of each can be repeated by any process.

An attempt's VMs are one stage. Those of groups have another one before it: their template and their policy, which have
to be there before a group can name them. Whatever is made, an answer that the API has given before, a name that is
taken and a call whose outcome is unknown all lead to looking at what is there, and to adopting it if it is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google import api_errors, vms
from kinetic_orchestration.platforms.google.api_errors import CallContext, Trouble
from kinetic_orchestration.platforms.google.compute import causes, request, slices, states
from kinetic_orchestration.platforms.google.compute.client import INSTANCES, Instances, Refused
from kinetic_orchestration.platforms.google.compute.slices import GROUPS, POLICIES, TEMPLATES
from kinetic_orchestration.platforms.google.compute.states import Event, Vm
from kinetic_orchestration.platforms.google.compute.verbs.look import Look, context_of, known_by
from kinetic_orchestration.platforms.google.compute.verbs.memory import Memory
from kinetic_orchestration.platforms.google.vms import request_id
from kinetic_orchestration.protocol import wire

_LOOKS = {
    INSTANCES: "instances describe {name} --zone {zone}",
    GROUPS: "instance-groups managed describe {name} --zone {zone}",
    TEMPLATES: "instance-templates describe {name} --region {region}",
    POLICIES: "resource-policies describe {name} --region {region}",
}


class Insert(NamedTuple):
    """A create call: the collection's path, and the body."""

    collection: str
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def kind(self) -> str:
        return self.collection.rpartition("/")[2]

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"

    @property
    def is_part(self) -> bool:
        """True for what VMs are made of, and false for what makes or is a VM."""
        return self.kind in (POLICIES, TEMPLATES)


def stages(asked: Submission) -> list[list[Insert]]:
    """Return the create calls of an attempt: those of one stage need what is made in the stages before it."""
    placement = asked.intent.placement
    zone = request.zone_of(placement)
    if not request.is_grouped(placement):
        return [[Insert(f"{zone}/{INSTANCES}", body) for body in request.render(asked)]]
    bodies, region = slices.render(asked), slices.region_path(placement)
    policy = [] if bodies.policy is None else [Insert(f"{region}/{POLICIES}", bodies.policy)]
    parts = [*policy, Insert(f"{region}/{TEMPLATES}", bodies.template)]
    return [parts, [Insert(f"{zone}/{GROUPS}", body) for body in bodies.groups]]


class Make:
    """Makes what does not exist of an attempt."""

    def __init__(self, settings: Settings, api: Instances, memory: Memory, look: Look) -> None:
        self._settings = settings
        self._api = api
        self._memory = memory
        self._look = look

    def make(self, asked: Submission) -> str:
        """Make all that does not exist. What one of it is refused for ends the attempt, and so frees the others.

        Returns:
            A waiting state, or "" if all is there or being made.

        Raises:
            BackendError: It cannot be made.
        """
        *parts, last = stages(asked)
        for stage in parts:  # all of one at the same time
            begun = [self._begin(asked, insert) for insert in stage]
            waits = [self._end(asked, insert, event) for insert, event in zip(stage, begun, strict=True)]
            if said := next(filter(None, waits), ""):
                return said
        waits = [self._end(asked, insert, self._begin(asked, insert)) for insert in last]
        return next(filter(None, waits), "")

    def _begin(self, asked: Submission, insert: Insert) -> Event | str:
        """Make one call. Returns its operation, or a waiting state; raises BackendError."""
        name = insert.name if insert.kind == INSTANCES else f"{insert.kind}/{insert.name}"
        try:
            return self._api.insert(insert.collection, insert.body, request_id(asked.intent, name))
        except Refused as refused:
            return self._refused(refused, asked, insert)

    def _end(self, asked: Submission, insert: Insert, begun: Event | str) -> str:
        """Follow what a call has begun: that of a part to its end. Returns a waiting state, or "" if what it makes is
        there or being made; raises BackendError."""
        if isinstance(begun, str):
            return begun
        context, event = self._context(asked), self._api.ended(begun) if insert.is_part else begun
        if not event.ended:
            return f"waiting: {insert.name} is made in {_place_of(insert, context)}" if insert.is_part else ""
        trouble = None
        if event.problems:
            trouble = causes.classify(event.problems, context)
            if trouble.action != api_errors.AGAIN:
                raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)
        elif not begun.ended:
            return ""
        return self._made_before(asked, insert, context, trouble)

    def _made_before(self, asked: Submission, insert: Insert, context: CallContext, trouble: Trouble | None) -> str:
        """A call that the API has answered before does nothing: it is looked at what is there. `trouble`: with which
        the call's operation ended, and which leaves open whether there is something."""
        try:
            found = self._api.get(insert.path)
            if found is not None:
                self._adopt(asked, insert, found, context)
                self._memory.shows(insert.path)
                return ""
            if not insert.is_part:
                model = request.model_of(asked.plan)
                said = self._look.became(asked.intent.placement, insert.name, context, model)
                if said.cause:
                    raise BackendError(said.message, said.cause)
        except Refused:
            return "waiting: Compute Engine does not answer"
        if self._memory.missed(insert.path) > states.UNSHOWN:
            if trouble is not None:
                raise BackendError(f"{context.zone}: {trouble.sentence}", wire.INTERNAL)
            raise BackendError(f"{context.zone}: {_lost(insert)}", wire.INFRASTRUCTURE)
        return f"waiting: {context.zone} has taken the request and not shown {insert.name} yet"

    def _refused(self, refused: Refused, asked: Submission, insert: Insert) -> str:
        """Handle the refusal of an insert. Returns the state of the request, or raises BackendError."""
        context = self._context(asked)
        trouble = causes.classify(refused.problems, context)
        if trouble.action == api_errors.LATER:
            self._memory.slow_down()
            return f"waiting: {trouble.sentence}"
        if trouble.action in (api_errors.ADOPT, api_errors.AGAIN, api_errors.HERE):
            try:
                found = self._api.get(insert.path)
            except Refused:
                return f"waiting: {trouble.sentence}; the call is made again"
            if found is not None:
                self._adopt(asked, insert, found, context)
                return ""
            if trouble.action != api_errors.HERE:
                return f"waiting: {trouble.sentence}; the call is made again"
        raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)

    def _adopt(self, asked: Submission, insert: Insert, found: Any, context: CallContext) -> None:
        """Accept what is there as ours. Raises BackendError."""
        place = {"name": insert.name, "zone": context.zone, "region": region_of(context.zone)}
        vms.adopt(insert.path, found.labels, asked, f"gcloud compute {_LOOKS[insert.kind].format(**place)}")
        if isinstance(found, Vm):
            self._memory.keep(insert.name, insert.path, found, known_by(asked.intent.placement, insert.path))

    def _context(self, asked: Submission) -> CallContext:
        return context_of(self._settings, asked.intent.placement, asked.plan)


def _lost(insert: Insert) -> str:
    if insert.is_part:
        return f"{insert.path} was made and is not there: ask the project's audit log who deleted it"
    return (
        f"{insert.name} was made and is not there, and nobody here saw it running or deleted it. Hosts that may not "
        "use the bucket can tell nobody: see that their account has roles/storage.objectUser on it. Or somebody "
        f"deleted it: {states.WHOM_TO_ASK}"
    )


def _place_of(insert: Insert, context: CallContext) -> str:
    return region_of(context.zone) if insert.is_part else context.zone
