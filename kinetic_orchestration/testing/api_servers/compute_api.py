"""Compute Engine's REST API v1, below /compute/v1/: what its paths and parameters mean for the model, and back.

Its methods are those of `VERBS`. Permissions, faults, the clock and the ledger are the cloud's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal, unimplemented
from kinetic_orchestration.testing.api_servers import compute_fields
from kinetic_orchestration.testing.model import deviations
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.compute.service import Request
from kinetic_orchestration.testing.model.faults import Caller
from kinetic_orchestration.testing.model.state.resources import Json

ROOT: Final = "/compute/v1/"
NOTHING: Final = b'""'  # what Google's client for Node sends as the body of a method that has none
_LIST: Final = "filter maxResults orderBy pageToken"
_AGGREGATED: Final = f"{_LIST} includeAllScopes serviceProjectNumber"
_NAMES: Final = {"P": "project", "Z": "place", "R": "place", "N": "name"}


class Route(NamedTuple):
    verb: str
    path: re.Pattern[str]
    method: str
    parameters: tuple[str, ...] = ()
    schema: str = ""  # of its body; "" if it has none


def _route(line: str, method: str, parameters: str = "", schema: str = "") -> Route:
    """`METHOD path` with a letter in place of each name: of a project, a zone, a region, or of what it is about."""
    verb, _, path = line.partition(" ")
    for letter, name in _NAMES.items():
        path = re.sub(rf"(?<=/){letter}(?=/|$)", rf"(?P<{name}>[^/]+)", path)
    return Route(verb, re.compile(ROOT + path), method, tuple(parameters.split()), schema)


def _routes_of_kept(place: str, kind: str, resource: str, schema: str) -> tuple[Route, ...]:
    path = f"projects/P/{place}/{kind}"
    return (
        _route(f"POST {path}", f"{resource}.insert", "requestId", schema),
        _route(f"GET {path}", f"{resource}.list", _LIST),
        _route(f"GET {path}/N", f"{resource}.get"),
        _route(f"DELETE {path}/N", f"{resource}.delete", "requestId"),
    )


def _routes_of_groups(place: str, resource: str) -> tuple[Route, ...]:
    path = f"projects/P/{place}/instanceGroupManagers"
    return (
        _route(f"POST {path}", f"{resource}.insert", "requestId", "InstanceGroupManager"),
        _route(f"GET {path}", f"{resource}.list", _LIST),
        _route(f"GET {path}/N", f"{resource}.get"),
        _route(f"DELETE {path}/N", f"{resource}.delete", "noGracefulShutdown requestId"),
        _route(f"POST {path}/N/listManagedInstances", f"{resource}.listManagedInstances", _LIST),
        _route(f"POST {path}/N/resize", f"{resource}.resize", "requestId size"),
    )


def _routes_of_operations(place: str, resource: str) -> tuple[Route, ...]:
    path = f"projects/P/{place}/operations"
    return (
        _route(f"GET {path}", f"{resource}.list", _LIST),
        _route(f"GET {path}/N", f"{resource}.get"),
        _route(f"POST {path}/N/wait", f"{resource}.wait"),
    )


def _routes_of_networks(place: str, kind: str, schema: str) -> tuple[Route, ...]:
    path = f"projects/P/{place}/{kind}"
    return (
        _route(f"POST {path}", f"{kind}.insert", "requestId", schema),
        _route(f"GET {path}/N", f"{kind}.get"),
        _route(f"DELETE {path}/N", f"{kind}.delete", "requestId"),
    )


ROUTES: Final = (
    _route("POST projects/P/zones/Z/instances", "instances.insert", "requestId", "Instance"),
    _route("GET projects/P/zones/Z/instances", "instances.list", _LIST),
    _route("GET projects/P/zones/Z/instances/N", "instances.get"),
    _route("DELETE projects/P/zones/Z/instances/N", "instances.delete", "noGracefulShutdown requestId"),
    _route("GET projects/P/zones/Z/instances/N/serialPort", "instances.getSerialPortOutput", "port start"),
    _route(
        "POST projects/P/zones/Z/instances/N/setLabels", "instances.setLabels", "requestId", "InstancesSetLabelsRequest"
    ),
    _route("POST projects/P/zones/Z/instances/N/setMetadata", "instances.setMetadata", "requestId", "Metadata"),
    _route(
        "GET projects/P/zones/Z/instances/N/getGuestAttributes", "instances.getGuestAttributes", "queryPath variableKey"
    ),
    _route(
        "POST projects/P/zones/Z/instances/N/testIamPermissions", "instances.testIamPermissions", "",
        "TestPermissionsRequest",
    ),
    _route("GET projects/P/zones/Z/disks/N", "disks.get"),
    _route("DELETE projects/P/zones/Z/disks/N", "disks.delete", "requestId"),
    *_routes_of_operations("zones/Z", "zoneOperations"),
    *_routes_of_operations("regions/R", "regionOperations"),
    *_routes_of_operations("global", "globalOperations"),
    *_routes_of_kept("regions/R", "resourcePolicies", "resourcePolicies", "ResourcePolicy"),
    *_routes_of_kept("regions/R", "instanceTemplates", "regionInstanceTemplates", "InstanceTemplate"),
    *_routes_of_kept("global", "instanceTemplates", "instanceTemplates", "InstanceTemplate"),
    *_routes_of_groups("zones/Z", "instanceGroupManagers"),
    *_routes_of_groups("regions/R", "regionInstanceGroupManagers"),
    *(
        _route(f"GET projects/P/aggregated/{kind}", f"{kind}.aggregatedList", _AGGREGATED)
        for kind in ("instances", "disks", "instanceGroupManagers", "instanceTemplates", "resourcePolicies")
    ),
    _route(
        "POST projects/P/zones/Z/instanceGroups/N/testIamPermissions", "instanceGroups.testIamPermissions", "",
        "TestPermissionsRequest",
    ),
    _route("GET projects/P/zones", "zones.list", _LIST),
    _route("GET projects/P/zones/Z", "zones.get"),
    _route("GET projects/P/zones/Z/machineTypes/N", "machineTypes.get"),
    _route("GET projects/P/zones/Z/acceleratorTypes/N", "acceleratorTypes.get"),
    _route("GET projects/P/zones/Z/reservations/N", "reservations.get"),
    _route("GET projects/P/global/images/N", "images.get"),
    _route("GET projects/P/global/images/family/N", "images.getFromFamily"),
    *_routes_of_networks("global", "networks", "Network"),
    *_routes_of_networks("global", "firewalls", "Firewall"),
    *_routes_of_networks("regions/R", "subnetworks", "Subnetwork"),
    *_routes_of_networks("regions/R", "routers", "Router"),
    _route("GET projects/P/regions/R", "regions.get"),
    _route("GET projects/P/aggregated/subnetworks", "subnetworks.aggregatedList", _AGGREGATED),
    _route("GET projects/P", "projects.get"),
)  # fmt: skip


class ComputeApi:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    @staticmethod
    def serves(path: str) -> bool:
        return path.startswith(ROOT)

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Json, caller: Caller) -> Json:
        """One request. Raises Refusal, or LostAnswer once it is done."""
        for route in ROUTES:
            found = route.path.fullmatch(path) if route.verb == method else None
            if found is not None:
                return self._go(route, found.groupdict(), query, body, caller)
        raise unimplemented(
            f"{method} {path}",
            "of Compute Engine it has instances, groups of them in bulk mode, networks, and what they need",
        )

    def _go(self, route: Route, names: Mapping[str, str], query: Mapping[str, str], body: Json, caller: Caller) -> Json:
        for name in query:
            if name not in route.parameters:
                raise refusals.unknown_parameter(name)
        if route.schema:
            compute_fields.check(route.schema, body, "resource" if route.method.endswith(".insert") else "")
        elif body:
            raise refusals.unknown_name(next(iter(body)), "")
        cloud = self._cloud
        asked = Request(names["project"], names.get("place", ""), names.get("name", ""), query, body, caller)
        about = f"{asked.scope}/{asked.name or body.get('name') or ''}"
        zone = asked.place if asked.place.count("-") > 1 else ""
        act = cloud.compute.wait if route.method.endswith("Operations.wait") else cloud.compute.call
        with cloud.meeting(route.method, zone, about, caller):
            return deviations.apply(
                cloud.deviations, route.method, body, caller,
                lambda: act(route.method, asked),
            )  # fmt: skip


def refused(path: str, refusal: Refusal) -> Refusal:
    """Return a refusal in the form of the API whose path it is."""
    return refusals.of(refusal) if path.startswith(ROOT) else refusal
