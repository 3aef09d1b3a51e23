"""Slices of TPU VMs by the Cloud TPU API's queued resources: the verbs, each bounded and idempotent.

The create call is made by `request`, errors are interpreted by `api_errors` and states by `states`, `zones` chooses the
zone of an attempt, and `client` makes the calls. This module only joins them. It knows no records of a job, and no
clock but the one by which it waits.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.google import api_errors, preflight, vms
from kinetic_orchestration.platforms.google.api_errors import CallContext, Status
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.rest.kept_secrets import KeptSecrets
from kinetic_orchestration.platforms.google.tpu import request, states
from kinetic_orchestration.platforms.google.tpu.client import Page, Tpus, status_of
from kinetic_orchestration.platforms.google.tpu.states import MISSING, WITHOUT_NODES, Node, Queued
from kinetic_orchestration.platforms.shared import ownership, places
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.platforms.shared.rate_limit import pace_of
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import REQUESTS

SHOWN = 60.0  # a queued resource is visible in every request this long after its operation ended,
MOST_UNLISTED = 16  # nodes of a slice that are read one by one
NO_ZONE = "no zone is known for this slice: name some with cloud=TpuVm(zones=[…]) or KINETIC_ZONES"
UNSHOWN = 900.0  # and this long after its creation was requested, if that operation never ends


class TpuVmBackend:
    kind = "tpu-vm"
    charges = shared = True
    parallel = REQUESTS

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tpus = Tpus(settings)
        self._operations: dict[str, str] = {}  # name of a queued resource → the operation that makes it
        # (Requested resource that is not visible, True if its operation has ended) → time since which it is missing.
        self._missed: dict[tuple[str, bool], float] = {}
        self._secrets = KeptSecrets(settings)
        self._repairing: dict[str, float] = {}  # node → start of its repair by this process's clock

    # ---- before the create call

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def check(self, plan: Plan) -> None:
        request.check(plan)
        places.first(vms.zones_of(plan), NO_ZONE)

    def require(self, plan: Plan) -> None:
        preflight.require(replace(self._settings, service_account=str(plan.cloud["service_account"])))

    def prepare(self) -> None:
        self._tpus.prepare()

    def emulates(self, slice_: Slice) -> bool:
        return bool(self._settings.emulator or self._settings.emulator_grpc)

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        asked, seed = vms.zones_of(plan), f"{job_id}-{attempt}"
        choice = places.first(asked, NO_ZONE)
        if previous is not None:
            stay, refusal = bool(plan.cloud.get("reservation")), self.refusal(plan, previous)
            choice = places.following(asked, previous, seed, refusal, patience=plan.zone_patience, stay=stay)
        return {
            "backend": "tpu-vm",
            "project": plan.project,
            "zone": choice.place,
            "name": names.slice_of(plan.store, plan.deployment, job_id, attempt),
            "hosts": plan.hosts,
            "slices": plan.slices,
            **places.history(choice, previous),
        }

    def refusal(self, plan: Plan, past: Past) -> Refusal:
        return api_errors.refusal_of(vms.zones_of(plan), past)

    def dry_run(self, plan: Plan) -> str:
        """The create call that the first attempt would make, as text for users."""
        return request.dry_run(plan, self.place(plan, "job-000000000000", 1))

    # ---- the create call

    def submit(self, asked: Submission) -> str:
        placement = asked.intent.placement
        project = placement["project"]
        if retries.is_throttled((self._settings.emulator, project)):
            return "waiting: the project makes as many TPU VMs a minute as it may"
        resource = request.resource_of(placement)
        context = self._context(asked.plan, placement)
        if resource in self._operations:  # requested already, and not seen since
            found, unsure = self._find(resource)
            if found is not None:
                self._forget_missing(resource)
                _adopt(found, asked)
                return ""
            if unsure:
                return "waiting: the Cloud TPU API does not answer"
            if wait := self._still_made(resource, context):
                return wait
        try:
            self._secrets.keep(asked)
        except BackendError as trouble:
            if trouble.cause in places.WITHOUT_HOSTS:  # an error of Secret Manager, which no other zone helps against
                return f"waiting: {trouble}"
            raise
        try:
            operation, error = self._tpus.create(request.render_queued_resource(asked))
            self._operations[resource] = operation
        except Exception as raised:
            error = _status_of(raised)
        if error is None:
            retries.end_throttle((self._settings.emulator, project))
        return self._refused(error, context, asked) if error is not None else ""

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        self._secrets.keep(asked)
        return request.orders_for(asked)

    def _refused(self, error: Status, context: CallContext, asked: Submission) -> str:
        """Handle the refusal of a create call. Returns the state of the request, or raises BackendError."""
        trouble = api_errors.classify(error, context)
        if trouble.action == api_errors.LATER:
            retries.throttle((self._settings.emulator, context.project))
            return f"waiting: {trouble.sentence}"
        if trouble.action in (api_errors.ADOPT, api_errors.AGAIN, api_errors.HERE):
            found, unsure = self._find(request.resource_of(asked.intent.placement))
            if found is not None:
                _adopt(found, asked)
                return ""
            if unsure or trouble.action != api_errors.HERE:
                return f"waiting: {trouble.sentence}; the call is made again"
        raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)

    def _find(self, resource: str) -> tuple[Queued | None, bool]:
        """Return the resource of this name, or None, and True if its existence is unknown."""
        try:
            return self._tpus.queued_resource(resource), False
        except Exception as raised:
            _status_of(raised)
            return None, True

    def _still_made(self, resource: str, context: CallContext) -> str:
        """Return a waiting state if a requested queued resource that is not visible yet may still appear, else "".
        Raises BackendError if its creation failed or it stays invisible for too long."""
        if (operation := self._operations.get(resource)) is None:  # another follower of the job has seen its end
            return ""
        try:
            ended, error = self._tpus.operation_error(operation)
        except Exception as raised:
            if api_errors.classify(_status_of(raised), context).action == api_errors.AGAIN:
                return "waiting: the Cloud TPU API does not answer"
            self._operations.pop(resource, None)  # operations are forgotten after a while
            return ""
        if error is not None:
            self._operations.pop(resource, None)
            trouble = api_errors.classify(error, context)
            raise BackendError(f"{context.zone}: {trouble.sentence}", trouble.cause)
        now = time.monotonic()
        if now - self._missed.setdefault((resource, ended), now) > (SHOWN if ended else UNSHOWN):
            # A second call would not create it again: the API knows the request id.
            reason = (
                f"{context.zone}: the slice was made, was not shown for {now - self._missed[resource, ended]:.0f} s, "
                "and nobody here saw it READY or deleted it. Hosts that may not use the bucket can tell nobody: see "
                "that their account has roles/storage.objectUser on it. Or somebody deleted it: ask the "
                "project's audit log for DeleteQueuedResource, and look at who has tpu.nodes.delete"
            )
            raise BackendError(reason, wire.INFRASTRUCTURE)
        return f"waiting: {context.zone} has taken the request and not shown it yet"

    def _forget_missing(self, resource: str) -> None:
        for ended in (True, False):
            self._missed.pop((resource, ended), None)

    def _context(self, plan: Plan, placement: Mapping[str, Any]) -> CallContext:
        account = str(plan.cloud.get("service_account") or "")
        return CallContext(placement["project"], placement["zone"], account, bool(plan.cloud.get("reservation")))

    # ---- observing

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """One listing of queued resources and one of nodes for each project and zone, however many placements."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, placement in enumerate(placements):
            groups.setdefault((placement["project"], placement["zone"]), []).append(index)
        seen: dict[int, Observation] = {}
        for (project, zone), indices in groups.items():
            mine = [placements[index] for index in indices]
            try:
                seen.update(zip(indices, self._observe(project, zone, mine), strict=True))
            except Exception as raised:
                trouble = api_errors.classify(_status_of(raised), CallContext(project, zone))
                refused = trouble.cause if trouble.action == api_errors.DROP else ""
                seen.update((index, Observation(UNKNOWN, trouble.sentence, refused)) for index in indices)
        return [seen[index] for index in range(len(placements))]

    def _observe(self, project: str, zone: str, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """The queued resources first: one that is ACTIVE then has the nodes that are listed after it."""
        found = self._queued(project, zone, placements)
        with_nodes = [
            placement
            for placement in placements
            if (queued := found.get(placement["name"])) is not None and queued.state not in WITHOUT_NODES
        ]
        nodes = self._nodes(project, zone, with_nodes)
        for placement in with_nodes:
            if found[placement["name"]].state == states.ACTIVE:
                nodes |= self._unlisted(placement, nodes)
        return [self._judge(placement, found.get(placement["name"]), nodes) for placement in placements]

    def _judge(self, placement: Mapping[str, Any], queued: Queued | None, nodes: Mapping[str, Node]) -> Observation:
        context = CallContext(placement["project"], placement["zone"], reserved=queued is not None and queued.reserved)
        wanted = [name.rpartition("/")[2] for name in request.nodes_of(placement)]
        shown = [nodes.get(name) or Node(name, placement["zone"], MISSING) for name in wanted]
        return states.observation(queued, shown, context)

    def _queued(self, project: str, zone: str, placements: Sequence[Mapping[str, Any]]) -> dict[str, Queued]:
        if len(placements) == 1:  # resources of other jobs need not be sent
            one = self._tpus.queued_resource(request.resource_of(placements[0]))
            return {} if one is None else {one.name: one}
        page = self._tpus.queued_resources(project, zone)
        _all_answered(page.unreachable)
        return {queued.name: queued for queued in page.found}

    def _nodes(self, project: str, zone: str, placements: Sequence[Mapping[str, Any]]) -> dict[str, Node]:
        if not placements:
            return {}
        wanted = [name for placement in placements for name in request.nodes_of(placement)]
        if len(wanted) == 1:
            alone = self._tpus.node(wanted[0])
            found = [] if alone is None else [alone]
        else:
            page = self._tpus.nodes(project, zone)
            _all_answered(page.unreachable)
            found = page.found
        now = time.monotonic()
        for node in found:
            key = f"{project}/{zone}/{node.name}"
            if node.state == states.REPAIRING:
                self._repairing.setdefault(key, now)
            else:
                self._repairing.pop(key, None)
        return {
            node.name: node._replace(repairing=now - self._repairing.get(f"{project}/{zone}/{node.name}", now))
            for node in found
        }

    def _unlisted(self, placement: Mapping[str, Any], listed: Mapping[str, Node]) -> dict[str, Node]:
        """Nodes that should exist and were not listed: read by name, because a listing may lag behind. If many are
        missing, a sample shows if the listing lags, and the state is then unknown.
        """
        missing = [name for name in request.nodes_of(placement) if name.rpartition("/")[2] not in listed]
        found = [self._tpus.node(name) for name in missing[:MOST_UNLISTED]]
        if len(missing) > MOST_UNLISTED and None not in found:
            raise ConnectionError(f"the listing of nodes in {placement['zone']} lacks {len(missing)} that may be there")
        return {node.name: node for node in found if node is not None}

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return pace_of(placement)

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return placement["project"] == self._settings.project and placement["zone"] in self._zones_known()

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Hosts see the cancel record by themselves; what waits in a queue is released once the attempt is closed."""

    # ---- release

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Gone is what answers 404: the queued resource, and then each of its nodes. Under way: what shows DELETING."""
        try:
            return self._release(placement)
        except CredentialsError:
            return Freed.REFUSED
        except Exception as raised:
            _status_of(raised)
            return Freed.REFUSED

    def _release(self, placement: Mapping[str, Any]) -> Freed:
        resource = request.resource_of(placement)
        found = self._tpus.queued_resource(resource)
        if found is not None and not vms.is_ours(self._settings, found.name, found.labels):
            return Freed.DONE  # another owner's resource of this name: this placement was never created
        if found is not None:
            if found.state != states.DELETING:
                self._delete(resource)
            if (left := self._tpus.queued_resource(resource)) is not None:  # its hosts may have deleted it first
                # An accepted call is not yet a deletion: if the state does not show it, the caller repeats it.
                return Freed.UNDER_WAY if left.state == states.DELETING else Freed.REFUSED
        self._operations.pop(resource, None)
        self._forget_missing(resource)
        freed = Freed.DONE
        for name in request.nodes_of(placement):
            node = self._tpus.node(name)
            if node is not None and vms.is_ours(self._settings, placement["name"], node.labels):
                freed = Freed.UNDER_WAY
                if states.NODE_STATES.get(node.state) != "DELETING":
                    self._tpus.delete_node(name)
        return freed

    def _delete(self, resource: str) -> None:
        try:
            self._tpus.delete(resource)
        except CredentialsError:
            pass
        except Exception as raised:
            _status_of(raised)

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """All queued resources and nodes of this deployment, in all zones of the project."""
        project = self._settings.project
        if not project:
            raise UsageError("the project is not known: set KINETIC_PROJECT, so that its TPU VMs can be listed")
        unread: list[dict[str, Any]] = []
        queued = self._everywhere(self._tpus.queued_resources, project, unread)
        seen: set[tuple[str, str]] = set()
        for found in queued:
            if vms.is_ours(self._settings, found.name, found.labels):
                seen.add((found.zone, found.name))
                state = states.QUEUED_STATES.get(found.state, str(found.state))
                yield self._leftover(project, found, state)
        for node in self._everywhere(self._tpus.nodes, project, unread):
            owned = ownership.owned(node.labels)
            if owned is None:
                continue
            name = vms.name_of(self._settings, owned)
            # The index of several slices; a node with another name is not one of ours.
            index = node.name.removeprefix(name).removeprefix("-")
            if (node.zone, name) not in seen and node.name.startswith(name) and (not index or index.isdecimal()):
                seen.add((node.zone, name))
                state = states.NODE_STATES.get(node.state, str(node.state))
                yield self._leftover(project, node, state, name)
        yield from unread

    def secrets(self) -> Iterator[tuple[str, str]]:
        return self._secrets.secrets()

    def forget(self, secret: str, job_id: str) -> bool:
        return self._secrets.forget(secret, job_id)

    def _leftover(self, project: str, found: Queued | Node, state: str, name: str = "") -> dict[str, Any]:
        owned = ownership.owned(found.labels)
        assert owned is not None
        return {
            "backend": "tpu-vm", "project": project, "zone": found.zone, "name": name or found.name, "hosts": 0,
            "slices": int(found.labels.get(ownership.SLICES, "1")), "job": owned.job, "attempt": owned.attempt,
            "created": found.created, "expires": owned.expires, "state": state, "deployment": owned.deployment,
            **ownership.racing(owned),
        }  # fmt: skip

    def _everywhere(
        self, listing: Callable[[str, str], Any], project: str, unread: list[dict[str, Any]]
    ) -> Iterable[Any]:
        """List all zones in one request if the API supports that, else one zone after another."""
        try:
            page = listing(project, "-")
        except Exception as raised:
            if _status_of(raised).code not in (api_errors.INVALID, api_errors.NOT_FOUND, api_errors.UNIMPLEMENTED):
                raise self._failed(raised, project, "-") from None
        else:
            unread += _unreachable(page)
            return list(page.found)
        found: list[Any] = []
        zones_there, guessed = self._zones(project)
        # A zone that does not exist is denied as well: "Permission denied on 'locations/…' (or it may not exist)".
        nowhere = (api_errors.NOT_FOUND, api_errors.DENIED) if guessed else (api_errors.NOT_FOUND,)
        for zone in zones_there:
            try:
                page = listing(project, zone)
            except Exception as raised:
                error = self._failed(raised, project, zone)
                if _status_of(raised).code not in nowhere:
                    unread.append({"zone": zone, "unread": str(error)})
                continue
            found += page.found
            unread += _unreachable(page)
        return found

    def _failed(self, raised: Exception, project: str, zone: str) -> BackendError:
        trouble = api_errors.classify(_status_of(raised), CallContext(project, zone))
        return BackendError(trouble.sentence, trouble.cause)

    def _zones(self, project: str) -> tuple[list[str], bool]:
        """All that there are, and whether that is only what is known here."""
        try:
            return self._tpus.locations(project), False
        except Exception as raised:
            _status_of(raised)
        return sorted(self._zones_known()), True

    def _zones_known(self) -> set[str]:
        return {*self._settings.zones, *_known_zones()}


@functools.cache
def _known_zones() -> frozenset[str]:
    """The zones of all generations, from the table of accelerators."""
    slices = (slice_ for slice_ in accelerators.catalogue() if slice_.api == "tpu-vm")
    return frozenset(zone for slice_ in slices for zone in accelerators.zones(slice_))


def _unreachable(page: Page) -> list[dict[str, Any]]:
    return [{"zone": zone.rpartition("/")[2], "unread": "no answer"} for zone in page.unreachable]


def _status_of(raised: Exception) -> Status:
    """The API's error in an exception; any other exception is raised again."""
    status = status_of(raised)
    if status is None:
        raise raised
    return status


def _all_answered(unreachable: Sequence[str]) -> None:
    if unreachable:
        raise ConnectionError(f"no answer from {', '.join(unreachable)}")


def _adopt(found: Queued, asked: Submission) -> None:
    look = f"gcloud compute tpus queued-resources describe {found.name} --zone {found.zone}"
    vms.adopt(request.resource_of(asked.intent.placement), found.labels, asked, look)
