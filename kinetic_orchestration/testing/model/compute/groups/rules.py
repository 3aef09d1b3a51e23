"""The checks of groups, templates and policies before an answer, and the names of members. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.refusals import unimplemented
from kinetic_orchestration.testing.model.compute import catalog
from kinetic_orchestration.testing.model.compute.resources import Json

_BASE: Final = re.compile(r"([a-z](?:[-a-z0-9]{0,51}-)?)(#{1,10})(?:\[([0-9]{1,10})\])?|([a-z][-a-z0-9]{0,57})")
_TOPOLOGY: Final = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")
_POLICIES: Final = ("workloadPolicy", "groupPlacementPolicy")
_ALPHABET: Final = "0123456789bcdfghjklmnpqrstvwxz"
MOST: Final = 1000


def policy(body: Json) -> None:
    others = [key for key in body if key.endswith("Policy") and key not in _POLICIES]
    if others:
        raise refusals.of(unimplemented(f"resource policies with {others[0]}"))
    if sum(key in body for key in _POLICIES) != 1:
        raise refusals.usage("Exactly one kind of policy must be specified.")
    if "groupPlacementPolicy" in body:
        if (body["groupPlacementPolicy"] or {}).get("collocation") != "COLLOCATED":
            raise refusals.of(unimplemented("group placement policies other than COLLOCATED"))
        return
    asked = body["workloadPolicy"] or {}
    at = "resource.workloadPolicy"
    if not asked.get("type"):
        raise refusals.value(f"{at}.type", "", "The type of a workload policy is required.")
    topology = asked.get("acceleratorTopology")
    if topology is not None and not _TOPOLOGY.fullmatch(topology):
        raise refusals.value(f"{at}.acceleratorTopology", topology, "Must be of the form 4x4 or 4x4x4.")
    if topology and asked["type"] != "HIGH_THROUGHPUT":
        raise refusals.usage("acceleratorTopology can be specified only when the type is HIGH_THROUGHPUT.")
    if asked.get("acceleratorTopologyMode") and not topology:
        raise refusals.usage("acceleratorTopologyMode can be specified only with acceleratorTopology.")


def template(body: Json) -> None:
    """Hardly anything is: a template proves nothing of its machine, its image or its network."""
    properties = body.get("properties")
    if not properties:
        raise refusals.value("resource.properties", "", "The properties of a template are required.")
    named = [("machineType", properties.get("machineType"))]
    for index, disk in enumerate(properties.get("disks") or ()):
        at = f"disks[{index}].initializeParams.diskType"
        named.append((at, (disk.get("initializeParams") or {}).get("diskType")))
    for at, given in named:
        if given and "/" in given:
            raise refusals.value(f"resource.properties.{at}", given, "A template names it without a zone.")


def template_of(body: Json) -> str:
    """The link of a group's template."""
    versions = body.get("versions") or ()
    given = [str(one.get("instanceTemplate") or "") for one in versions] or [str(body.get("instanceTemplate") or "")]
    if len(given) > 1:
        raise refusals.of(unimplemented("groups of several versions"))
    if not given[0]:
        raise refusals.value("resource.instanceTemplate", "", "An instance template is required.")
    return given[0]


def size(given: object, at: str = "resource.targetSize") -> int:
    if given is None:
        raise refusals.value(at, "", "The target size of a group is required.")
    number = int(str(given))
    if not 0 <= number <= MOST:
        raise refusals.value(at, number, f"Must be between 0 and {MOST}.")
    return number


def mode(body: Json) -> None:
    if (body.get("targetSizePolicy") or {}).get("mode") != "BULK":
        raise refusals.of(unimplemented("groups whose instances come one by one", "it has those in the mode BULK"))


def zone(body: Json, place: str, zones: list[str]) -> str:
    """The one zone of a group, which is of a zone or of a region."""
    given = (body.get("distributionPolicy") or {}).get("zones") or ()
    chosen = [str(one.get("zone") or "").rpartition("/")[2] for one in given]
    at = "resource.distributionPolicy.zones"
    if place in zones:
        if chosen:
            raise refusals.value(at, chosen[0], "A group of a zone has no distribution policy.")
        return place
    if len(chosen) != 1:
        raise refusals.of(unimplemented("groups of several zones", "a group of a region names one zone"))
    if chosen[0] not in zones or region_of(chosen[0]) != place:
        raise refusals.value(at, chosen[0], f"It is not a zone of the region {place}.")
    if (body.get("distributionPolicy") or {}).get("targetShape") != "ANY_SINGLE_ZONE":
        raise refusals.usage("The target shape of a group with targetSizePolicy BULK must be ANY_SINGLE_ZONE.")
    if (body.get("updatePolicy") or {}).get("instanceRedistributionType") != "NONE":
        raise refusals.usage("instanceRedistributionType must be NONE with the target shape ANY_SINGLE_ZONE.")
    return chosen[0]


def shape(machine: str, topology: str, hosts: int) -> None:
    """Refuse a topology that its machines cannot have, or another number of them. An unknown machine passes."""
    known = catalog.MACHINES.get(machine)
    if not topology or known is None:
        return
    needed = catalog.hosts(known, topology)
    at = "resource.resourcePolicies.workloadPolicy"
    if not needed:
        there = ", ".join(catalog.TOPOLOGIES.get(machine, "").split()) or "none"
        raise refusals.value(at, topology, f"Machine type {machine} has the accelerator topologies: {there}.")
    if hosts not in (0, needed):
        why = f"The accelerator topology {topology} of {machine} has {needed} instance(s)."
        raise refusals.value("resource.targetSize", hosts, why)


def names(base: str, number: int, random_bits: Callable[[int], int]) -> list[str]:
    """The names of the members: numbers in place of the # at its end, from that of `[1]` on, or random ends."""
    found = _BASE.fullmatch(base)
    if found is None:
        raise refusals.value("resource.baseInstanceName", base, f"Must be a match of regex '{_BASE.pattern}'")
    if found[4]:
        made: list[str] = []
        while len(made) < number:
            name = f"{base}-{''.join(_ALPHABET[random_bits(16) % len(_ALPHABET)] for _ in range(4))}"
            made += [name] if name not in made else []
        return made
    first, digits = int(found[3] or 1), len(found[2])
    if number and first + number > 10**digits:
        raise refusals.value("resource.baseInstanceName", base, f"{digits} digits are too few for {number} instances.")
    return [f"{found[1]}{first + index:0{digits}}" for index in range(number)]


def member(properties: Json, name: str, project: str, zone: str, added: Json) -> Json:
    """The request for an instance as a template describes it; `added`: metadata that Compute Engine adds."""
    body = {key: value for key, value in properties.items() if key != "resourceManagerTags"}
    where = f"zones/{zone}"
    disks = []
    for disk in properties.get("disks") or ():
        params = dict(disk.get("initializeParams") or {})
        if params.get("diskType"):
            params["diskType"] = f"{where}/diskTypes/{params['diskType']}"
        disks.append({**disk, **({"initializeParams": params} if params else {})})
    given = [
        {**one, "acceleratorType": f"{where}/acceleratorTypes/{str(one.get('acceleratorType')).rpartition('/')[2]}"}
        for one in properties.get("guestAccelerators") or ()
    ]
    policies = [
        one if "/" in one else f"projects/{project}/regions/{region_of(zone)}/resourcePolicies/{one}"
        for one in properties.get("resourcePolicies") or ()
    ]
    items = [*((properties.get("metadata") or {}).get("items") or ())]
    items += [{"key": key, "value": value} for key, value in added.items()]
    return {
        **body,
        "name": name,
        "machineType": f"{where}/machineTypes/{properties.get('machineType') or ''}",
        "disks": disks,
        "metadata": {"items": items},
        **({"guestAccelerators": given} if given else {}),
        **({"resourcePolicies": policies} if policies else {}),
    }
