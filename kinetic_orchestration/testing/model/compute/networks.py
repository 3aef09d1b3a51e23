"""Networks of the emulated Compute Engine that callers make: subnetworks, firewalls and routers with NAT in them.

Each takes a moment to be made, in which nothing can be made in it, and is refused to be deleted while something is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.model.compute import checks
from kinetic_orchestration.testing.model.compute.lifecycle import Means, World
from kinetic_orchestration.testing.model.compute.resources import LINK, Json, fingerprint, short, stamp
from kinetic_orchestration.testing.model.compute.service import VERBS as OF_INSTANCES
from kinetic_orchestration.testing.model.compute.service import ComputeEngine, Request, Verb

_NEEDS: Final = {"networks": (), "subnetworks": ("ipCidrRange",), "firewalls": (), "routers": ()}


@dataclass
class Part:
    """A network, or something in it. `network`: the path of the one that it is in."""

    path: str
    body: Json
    network: str
    number: int
    created: float
    ready: bool = False

    @property
    def kind(self) -> str:
        return self.path.split("/")[-2]

    def to_json(self) -> Json:
        place = self.path.split("/")
        region = {"region": f"{LINK}{'/'.join(place[:4])}"} if place[2] == "regions" else {}
        within = {} if self.kind == "networks" else {"network": LINK + self.network}
        shown = {
            "kind": f"compute#{self.kind.removesuffix('s')}", "id": str(self.number), "selfLink": LINK + self.path,
            "creationTimestamp": stamp(self.created), **self.body, **region, **within,
        }  # fmt: skip
        return {**shown, "fingerprint": fingerprint(self.path)} if self.kind == "subnetworks" else shown


class Networks(ComputeEngine):
    def __init__(self, world: World, means: Means) -> None:
        super().__init__(world, means)
        self.parts: dict[str, Part] = {}

    def insert_part(self, asked: Request, kind: str) -> Json:
        """Begin to make a network, or something in one."""
        body = dict(asked.body)
        path = f"{asked.scope}/{kind}/{checks.name(str(body.get('name') or ''))}"
        if path in self.parts or path in self.networks or path in self.subnetworks:
            raise refusals.exists(path)
        for field in _NEEDS[kind]:
            if not body.get(field):
                raise refusals.value(f"resource.{field}", "", "A value is needed.")
        network = path
        if kind != "networks":
            network = self._ready_network(str(body.get("network") or ""), asked.project)
        if kind == "subnetworks":
            self._demand_free(str(body["ipCidrRange"]), network)
        part = Part(path, body, network, self.means.random_bits(62) | 1 << 61, self.world.now)
        self.parts[path] = part
        if kind == "routers":  # of whose NAT each hour is charged
            self.world.ledger.created("router", path)
        operation = self._begun("insert", part, path, asked)
        fault = self.world.faults.take("provision", f"{kind}.insert", "", asked.caller, path)

        def made() -> None:
            if fault is not None and fault.refusal is not None:
                self._drop_part(part)
                self._end_operation(operation, refusals.of(fault.refusal()))
                return
            if kind == "networks":
                self.networks[path] = bool(body.get("autoCreateSubnetworks"))
            elif kind == "subnetworks":
                self.subnetworks[path] = network
                if body.get("privateIpGoogleAccess"):
                    self.private.add(path)
            self._end_operation(operation)
            self.world.later(self.world.timing.spread, lambda: setattr(part, "ready", True))

        self.world.later(self.world.timing.provision, made)
        return operation.to_json()

    def _ready_network(self, link: str, project: str) -> str:
        given = short(link or "global/networks/default")
        path = given if given.startswith("projects/") else f"projects/{project}/{given}"
        part = self.parts.get(path)
        if part is not None and not part.ready:
            raise refusals.not_ready(path)
        self._makes_subnetworks(path)  # it is there
        return path

    def _demand_free(self, given: str, network: str) -> None:
        try:
            wanted = ipaddress.IPv4Network(given)
        except ValueError:
            raise refusals.value("resource.ipCidrRange", given, "Must be a valid IPV4 CIDR range.") from None
        for part in self.parts.values():
            beside = part.kind == "subnetworks" and part.network == network
            if beside and wanted.overlaps(ipaddress.IPv4Network(str(part.body["ipCidrRange"]))):
                where = f"'{part.body['name']}' in region '{part.path.split('/')[3]}'"
                raise refusals.usage(f"Invalid IPCidrRange: {given} conflicts with existing subnetwork {where}.")

    def get_part(self, asked: Request, kind: str) -> Json:
        path = f"{asked.scope}/{kind}/{asked.name}"
        part = self.parts.get(path)
        if part is not None:
            return part.to_json()
        usual = {"networks": self.get_network, "subnetworks": self.get_subnetwork}.get(kind)
        if usual is None:
            raise refusals.missing(path)
        return usual(asked)

    def _subnetwork(self, path: str) -> Json:
        part = self.parts.get(path)
        return super()._subnetwork(path) if part is None else part.to_json()

    def delete_part(self, asked: Request, kind: str) -> Json:
        path = f"{asked.scope}/{kind}/{asked.name}"
        part = self.parts.get(path)
        if part is None:
            raise refusals.missing(path)
        if user := self._part_user(part):
            raise refusals.in_use(part.path, user)
        operation = self._begun("delete", part, part.path, asked)

        def gone() -> None:
            self._drop_part(part)
            self._end_operation(operation)

        self.world.later(self.world.timing.delete, gone)
        return operation.to_json()

    def _part_user(self, part: Part) -> str:
        """The path of what uses a network or a subnetwork; "" if nothing does."""
        if part.kind == "networks":
            inside = (one.path for one in self.parts.values() if one.network == part.path and one is not part)
            return next(inside, "")
        if part.kind != "subnetworks":
            return ""
        return next(
            (
                one.path
                for one in self.instances.values()
                if any(short(str(told.get("subnetwork"))) == part.path for told in one.networks)
            ),
            "",
        )

    def _drop_part(self, part: Part) -> None:
        self.parts.pop(part.path, None)
        self.networks.pop(part.path, None)
        self.subnetworks.pop(part.path, None)
        self.private.discard(part.path)
        self.world.ledger.deleted("router", part.path)


def _verbs(kind: str) -> dict[str, Verb]:
    return {
        f"{kind}.insert": Verb(lambda own, asked: own.insert_part(asked, kind), f"{kind}.create", False, kind),
        f"{kind}.get": Verb(lambda own, asked: own.get_part(asked, kind), f"{kind}.get", False, kind),
        f"{kind}.delete": Verb(lambda own, asked: own.delete_part(asked, kind), f"{kind}.delete", False, kind),
    }


VERBS: Final[Mapping[str, Verb]] = {
    **OF_INSTANCES, **{name: verb for kind in _NEEDS for name, verb in _verbs(kind).items()}
}  # fmt: skip
