"""The limits of an emulated cloud: permissions, services, the rate of creates, quotas, and the chips of a zone.

It counts existing resources and does not know how they came to exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.model.clock import Clock
from kinetic_orchestration.testing.model.faults import At, Caller
from kinetic_orchestration.testing.model.state import resources
from kinetic_orchestration.testing.model.state.projects import Projects
from kinetic_orchestration.testing.model.state.resources import Node, Queued, Wanted


class Quota(NamedTuple):
    scope: str
    limit: int
    generation: str
    spot: bool | None
    at: At


class Quotas(Clock):
    """All that exists, and how much of it there may be. `zones`: the ones there are, each with its chips."""

    def __init__(
        self,
        zones: Mapping[str, int | None] | Iterable[str] | None,
        creates_per_minute: int | None,
        clock: Callable[[], float],
        pause: Callable[[float], object],
    ) -> None:
        super().__init__(clock, pause)
        self.projects = Projects()
        self._zones: dict[str, int | None] = _zones(zones)
        self.has_own_zones = zones is not None
        self._queued: dict[str, Queued] = {}
        self._nodes: dict[str, Node] = {}
        self._quotas: list[Quota] = []
        self._rate = creates_per_minute
        self._creates: dict[str, deque[float]] = {}
        self._denied: set[tuple[str, str]] = set()
        self._disabled: set[str] = set()
        self._waiting: list[Callable[[], None]] = []

    @property
    def zones(self) -> Mapping[str, int | None]:
        """The zones there are, each with its chips (None: without end)."""
        return self._zones

    def free(self, zone: str) -> int | None:
        """Return the chips of a zone that no node occupies; None: without end."""
        return self._free(zone)

    def is_enabled(self, service: str, project: str = "") -> bool:
        return service not in self._disabled and (not project or self.projects.named(project).is_enabled(service))

    def is_denied(self, permission: str, caller: Caller) -> bool:
        who = ("*", caller.kind, caller.node)
        return any(one in who and named in (permission, "*") for one, named in self._denied)

    def demand(self, permission: str, resource: str, caller: Caller) -> None:
        """Raises a Refusal unless `caller` has `permission`."""
        if self.is_denied(permission, caller):
            raise refusals.permission(permission, resource)

    def demand_service(self, service: str, project: str) -> None:
        if service in self._disabled or not self.projects.is_usable(service, project, self._now):
            raise refusals.api_disabled(service, project)

    def _demand_account(self, wanted: list[Wanted], caller: Caller) -> None:
        if self.is_denied("iam.serviceAccounts.actAs", caller):
            account = wanted[0].spec.get("serviceAccount", {}).get("email")
            raise refusals.act_as(account or "emulated-compute@developer.gserviceaccount.com")

    def _demand_rate(self, project: str, nodes: int) -> None:
        recent = self._creates.setdefault(project, deque())
        while recent and recent[0] <= self._now - 60.0:
            recent.popleft()
        if self._rate is not None and len(recent) + nodes > self._rate:
            raise refusals.create_rate(project, self._rate)
        recent.extend([self._now] * nodes)

    def _demand_quota(
        self, wanted: list[Wanted], where: resources.ResourcePath, spot: bool, at: At, already: str = ""
    ) -> None:
        for known in self._quotas:
            asked = sum(
                resources.units(one.hardware)
                for one in wanted
                if known.at == at and _counts(known, where.zone, one.hardware.generation, spot)
            )
            if asked and asked + self._used(known, where.project, already) > known.limit:
                generation = wanted[0].hardware.generation
                raise refusals.quota(generation, spot, known.scope, known.limit, where.project)

    def _used(self, known: Quota, project: str, already: str) -> int:
        """The usage that counts against a quota, including FAILED and SUSPENDED resources."""
        used = 0
        for queued in self._queued.values():
            path = queued.path
            if queued.name == already or path.project != project:
                continue
            for one in resources.wanted_nodes(path.id, f"projects/{project}/locations/{path.zone}", queued.body):
                if _counts(known, path.zone, one.hardware.generation, queued.spot):
                    used += resources.units(one.hardware)
        for node in self._nodes.values():
            path = node.path
            alone = not node.queued and path.project == project
            if alone and _counts(known, path.zone, node.hardware.generation, node.spot):
                used += resources.units(node.hardware)
        return used

    def _free(self, zone: str) -> int | None:
        """The number of free chips in a zone; None: unlimited."""
        chips = self._zones.get(zone)
        if chips is None:
            return None
        here = [node for node in self._nodes.values() if node.path.zone == zone and node.occupies]
        return chips - sum(node.hardware.chips for node in here)

    def _room(self) -> None:
        """Capacity may have been freed: reconsider the waiting requests in their order."""
        asked, self._waiting = self._waiting, []
        for consider in asked:
            consider()


def _zones(given: Mapping[str, int | None] | Iterable[str] | None) -> dict[str, int | None]:
    if given is None:
        return {zone: None for hardware in accelerators.catalogue() for zone in accelerators.zones(hardware)}
    return dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)


def _counts(known: Quota, zone: str, generation: str, spot: bool) -> bool:
    return (
        known.scope in (zone, region_of(zone)) and known.generation in ("", generation) and known.spot in (None, spot)
    )
