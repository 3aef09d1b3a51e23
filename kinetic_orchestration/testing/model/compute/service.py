"""The emulated Compute Engine as its callers know it: one function for each method of its API that is served, in JSON.

It does not know by which protocol callers come.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules import filters
from kinetic_orchestration.testing.api_rules.compute_refusals import SERVICE
from kinetic_orchestration.testing.api_rules.refusals import unimplemented
from kinetic_orchestration.testing.model.compute import catalog, checks
from kinetic_orchestration.testing.model.compute.catalog import GPUS, Image, MachineType
from kinetic_orchestration.testing.model.compute.lifecycle import step, usage
from kinetic_orchestration.testing.model.compute.resources import (
    LINK,
    Disk,
    Instance,
    Json,
    Numbered,
    Operation,
    fingerprint,
    moment,
    short,
    stamp,
)
from kinetic_orchestration.testing.model.compute.script import ComputeScript
from kinetic_orchestration.testing.model.faults import CLIENT, Caller
from kinetic_orchestration.testing.model.state.machine import Host, project_number

PAGE: Final = 500
_LOOPBACK: Final = "127.0.0.1"
WAIT: Final = 120.0
_LOOK: Final = 0.5
_SERIAL: Final = 1 << 20
_CLOUD: Final = "https://www.googleapis.com/auth/cloud-platform"
_OWN: Final = (_CLOUD, "https://www.googleapis.com/auth/compute")
_READING: Final = "https://www.googleapis.com/auth/compute.readonly"
_BEGINNING: Final = 1_500_000_000.0  # of what was there before
_SHOWN_QUOTAS: Final = {
    "CPUS": 5000.0, "DISKS_TOTAL_GB": 102400.0, "SSD_TOTAL_GB": 81920.0, "INSTANCES": 6000.0, "A2_CPUS": 2400.0
}  # fmt: skip


class Request(NamedTuple):
    """One request: the names in its path, its query, and its body."""

    project: str
    place: str = ""  # its zone or region
    name: str = ""
    query: Mapping[str, str] = MappingProxyType({})
    body: Mapping[str, Any] = MappingProxyType({})
    caller: Caller = CLIENT

    @property
    def zone(self) -> str:
        return f"projects/{self.project}/zones/{self.place}"

    @property
    def scope(self) -> str:
        """The path of its zone, of its region, or of what is global."""
        kind = "zones" if self.place.count("-") > 1 else "regions"
        return f"projects/{self.project}/{f'{kind}/{self.place}' if self.place else 'global'}"


class ComputeEngine(ComputeScript):
    """Compute Engine of one cloud, which is its `world`."""

    @step
    def call(self, method: str, asked: Request) -> Json:
        """One request, of a method such as `instances.insert`. Raises Refusal."""
        verb = self.verbs()[method]
        self._demand_rate()
        if not self.means.has_project(asked.project):
            raise refusals.permission(f"compute.{verb.permission}", f"projects/{asked.project}")
        self.world.demand_service(SERVICE, asked.project)
        if verb.zonal and asked.place not in self.zones:
            raise refusals.value("zone", asked.place, f"Unknown zone: {asked.zone}.")
        if asked.place in self._silent and (verb.zonal or asked.place not in self.zones):
            raise refusals.unavailable(asked.place)
        if verb.permission:
            self._demand(f"compute.{verb.permission}", verb.resource(asked), asked.caller)
        ident = checks.request_id(asked.query.get("requestId", ""))
        known = self._requests.get((asked.scope, ident)) if ident else None
        return verb.act(self, asked) if known is None else known.to_json()

    def verbs(self) -> Mapping[str, Verb]:
        """The methods that are served, by Google's names."""
        return VERBS

    def wait(self, method: str, asked: Request) -> Json:
        """`zoneOperations.wait` and its like: until it is done, or two minutes are over."""
        deadline = time.monotonic() + WAIT
        while True:
            found = self.call(method.replace(".wait", ".get"), asked)
            left = deadline - time.monotonic()
            if found["status"] == "DONE" or left <= 0 or self.world.pause(0):
                return found
            with self.world.changed:
                self.world.changed.wait(min(left, _LOOK))

    # What a caller may do

    def _demand(self, permission: str, resource: str, caller: Caller) -> None:
        if caller.kind == "vm":
            self._demand_scope(permission, caller)
        if not self._may(permission, resource, caller):
            raise refusals.permission(permission, resource)

    def _may(self, permission: str, resource: str, caller: Caller) -> bool:
        if self.world.is_denied(permission, caller):
            return False
        if caller.kind != "vm" or self._narrowed is None:
            return True
        return "/instances/" in resource and resource.rpartition("/")[2].startswith(self._narrowed)

    def has_on_project(self, permission: str, caller: Caller) -> bool:
        """Return True if a caller has a permission on a whole project."""
        return not permission.startswith("compute.") or self._may(permission, "", caller)

    def _demand_scope(self, permission: str, caller: Caller) -> None:
        """Refuse a VM's account whose token has not the scope; of a VM of Cloud TPU it always has."""
        own = next((one for one in self.instances.values() if one.name == caller.node), None)
        reads = permission.rpartition(".")[2] in ("get", "list", "getSerialPortOutput")
        enough = (*_OWN, _READING) if reads else _OWN
        if own is not None and not set(own.scopes).intersection(enough):
            raise refusals.scopes()

    def _demand_rate(self) -> None:
        if self._rate is None:
            return
        minute = self.world.now // 60
        self._asked = [one for one in self._asked if one // 60 == minute]
        if len(self._asked) >= self._rate:
            message = (
                "Quota exceeded for quota group 'ReadGroup' and limit 'Read requests per minute' of service "
                f"'{SERVICE}' for consumer 'emulated'."
            )
            raise refusals.rate_limit(message)
        self._asked.append(self.world.now)

    # Instances

    def insert(self, asked: Request) -> Json:
        body = dict(asked.body)
        name = checks.name(str(body.get("name") or ""))
        path = f"{asked.zone}/instances/{name}"
        instance = self._made(asked, body, path)
        self._demand_parts(instance, asked.caller)
        if path in self.instances:
            raise refusals.exists(path)
        for disk in instance.disks:
            if any(disk.path and disk.path == other.path for one in self.instances.values() for other in one.disks):
                raise refusals.exists(disk.path)
            if disk.path in self.disks:
                raise refusals.exists(disk.path)
        self._demand_quota(instance, "call")
        operation = self._begun("insert", instance, path, asked)
        self._insert(instance, operation, asked.caller)
        return operation.to_json()

    def _made(self, asked: Request, body: Json, path: str) -> Instance:
        """The instance that a request asks for, once all about it has been found good."""
        project, zone = asked.project, asked.place
        machine = checks.machine_type(body, project, zone, self._offers)
        checks.accelerators(body, machine, lambda kind: self._offers(zone, kind))
        checks.scheduling(body, machine, self.world.now)
        checks.labels(body.get("labels") or {})
        checks.metadata(body)
        disks, image = self._disks(body, machine, path)
        checks.secure_boot(body, image)
        self._demand_account(asked)
        model = str((body.get("scheduling") or {}).get("provisioningModel") or "")
        if reservation := checks.reservation(body, model, asked.zone):
            self._demand_reservation(reservation, machine, model)
        return Instance(
            path, body, machine, self.means.random_bits(62) | 1 << 61, self.world.now, self._user(asked), image,
            disks, self._interfaces(body, machine, project, zone), labels=dict(body.get("labels") or {}),
        )  # fmt: skip

    def _demand_parts(self, instance: Instance, caller: Caller) -> None:
        """Refuse a caller who may not have, or use, what an instance consists of."""
        image = instance.image.path if instance.image is not None and instance.image not in catalog.IMAGES else ""
        for permission, resource in checks.rights(instance.body, instance.path, instance.networks, image):
            self._demand(permission, resource, caller)

    def _demand_account(self, asked: Request) -> None:
        accounts = asked.body.get("serviceAccounts") or ()
        if len(accounts) > 1:
            raise refusals.value("resource.serviceAccounts", "", "At most one service account may be specified.")
        if accounts and self.world.is_denied("iam.serviceAccounts.actAs", asked.caller):
            email = str(accounts[0].get("email") or "default")
            raise refusals.act_as(self.default_account(asked.project) if email == "default" else email)

    def _disks(self, body: Json, machine: MachineType, path: str) -> tuple[list[Disk], Image | None]:
        asked = body.get("disks") or []
        if not asked or not any(disk.get("boot") for disk in asked):
            raise refusals.usage("Instance must have a boot disk: 'resource.disks' has none.")
        zone = path.split("/")[3]
        made: list[Disk] = []
        boots: Image | None = None
        for index, disk in enumerate(asked):
            at = f"resource.disks[{index}].initializeParams"
            params = disk.get("initializeParams") or {}
            if disk.get("source"):
                raise refusals.of(unimplemented("disks that were there before an instance"))
            size = int(params.get("diskSizeGb") or disk.get("diskSizeGb") or 0)
            is_scratch = disk.get("type") == "SCRATCH"
            kind = checks.disk_type(
                machine, str(params.get("diskType") or ""), zone, f"{at}.diskType", boot=bool(disk.get("boot"))
            )
            checks.labels(params.get("labels") or {}, f"{at}.labels")
            if disk.get("boot"):
                image = self._image(str(params.get("sourceImage") or ""), f"{at}.sourceImage")
                checks.image_fits(image, machine, size, at)
                boots, size = image, size or image.disk_gib
            name = str(params.get("diskName") or "") or path.rpartition("/")[2] + (f"-{index}" if index else "")
            where = (
                ""
                if is_scratch
                else path.rpartition("/instances/")[0] + f"/disks/{checks.name(name, f'{at}.diskName')}"
            )
            made.append(
                Disk(
                    path=where,
                    asked=disk,
                    size_gib=375 if is_scratch else size or 500,
                    kind="local-ssd" if is_scratch else kind,
                    number=self.means.random_bits(62) | 1 << 61,
                    created=self.world.now,
                    image=boots.path if boots is not None and disk.get("boot") else "",
                    boot=bool(disk.get("boot")),
                    auto_delete=bool(disk.get("autoDelete")),
                )
            )
        return made, boots

    def _image(self, link: str, at: str) -> Image:
        """An image by its path, or the newest of a family."""
        parts = short(link).split("/")
        if len(parts) not in (5, 6) or parts[0] != "projects" or parts[2:4] != ["global", "images"]:
            raise refusals.value(at, link, "The URL is malformed.")
        if len(parts) == 6:
            if parts[4] != "family":
                raise refusals.value(at, link, "The URL is malformed.")
            return self._of_family(parts[1], parts[5])
        found = next(
            (one for one in self.images if (one.project, one.path.rpartition("/")[2]) == (parts[1], parts[4])), None
        )
        if found is None:
            raise refusals.missing(short(link))
        return found

    def _of_family(self, project: str, family: str) -> Image:
        found = next((one for one in self.images if (one.project, one.family) == (project, family)), None)
        if found is None or not family:
            raise refusals.missing(f"projects/{project}/global/images/family/{family}")
        return found

    def _interfaces(self, body: Json, machine: MachineType, project: str, zone: str) -> list[Json]:
        asked = body.get("networkInterfaces") or []
        if not asked:
            raise refusals.usage("At least one network interface is required: 'resource.networkInterfaces' has none.")
        made = []
        for index, one in enumerate(asked):
            at = f"resource.networkInterfaces[{index}]"
            network, subnetwork = self._network(one, project, zone, at)
            if machine.tpu and one.get("nicType") not in (None, "GVNIC"):
                raise refusals.usage(f"Machine type {machine.name} has network interfaces of the type GVNIC only.")
            shown: Json = {
                "kind": "compute#networkInterface",
                "name": f"nic{index}",
                "network": LINK + network,
                "subnetwork": LINK + subnetwork,
                "networkIP": _LOOPBACK,  # by which VMs reach each other: they are processes of one machine
                "stackType": "IPV4_ONLY",
                "fingerprint": fingerprint(network, index),
                **({"nicType": one["nicType"]} if one.get("nicType") else {}),
            }
            configs = [
                {
                    "kind": "compute#accessConfig",
                    "type": "ONE_TO_ONE_NAT",
                    "name": "external-nat",
                    "natIP": f"203.0.113.{self.means.random_bits(7)}",
                    "networkTier": "PREMIUM",
                    **config,
                }
                for config in one.get("accessConfigs") or ()
            ]
            made.append(shown | ({"accessConfigs": configs} if configs else {}))
        return made

    def _network(self, asked: Json, project: str, zone: str, at: str) -> tuple[str, str]:
        """The paths of an interface's network and subnetwork."""
        if asked.get("subnetwork"):
            path = short(str(asked["subnetwork"]))
            if path.startswith("regions/"):
                path = f"projects/{project}/{path}"
            parts = path.split("/")
            if len(parts) != 6 or parts[2] != "regions":
                raise refusals.value(f"{at}.subnetwork", asked["subnetwork"], "The URL is malformed.")
            if parts[3] != region_of(zone):
                why = f"Subnetwork is in region {parts[3]}, and the instance in region {region_of(zone)}."
                raise refusals.value(f"{at}.subnetwork", path, why)
            network = self._subnetwork_of(path)
            if asked.get("network") and short(str(asked["network"])).rpartition("/")[2] != network.rpartition("/")[2]:
                raise refusals.value(f"{at}.subnetwork", path, f"Subnetwork belongs to another network: {network}.")
            return network, path
        given = short(str(asked.get("network") or "global/networks/default"))
        network = given if given.startswith("projects/") else f"projects/{project}/{given}"
        if not self._makes_subnetworks(network):
            why = "Network interface must specify a subnet if the network resource is in custom subnet mode."
            raise refusals.value(at, network, why)
        name = network.rpartition("/")[2]
        return network, f"projects/{network.split('/')[1]}/regions/{region_of(zone)}/subnetworks/{name}"

    def _makes_subnetworks(self, network: str) -> bool:
        project = network.split("/")[1]
        usual = {} if project in self.bare else {f"projects/{project}/global/networks/default": True}
        known = {**usual, **self.networks}
        if network not in known:
            raise refusals.missing(network)
        return known[network]

    def _subnetwork_of(self, path: str) -> str:
        """The network of a subnetwork."""
        _, project, _, where, _, name = path.split("/")
        if name == "default" and project not in self.bare and where in catalog.regions(self.zones):
            return f"projects/{project}/global/networks/default"
        if path not in self.subnetworks:
            raise refusals.missing(path)
        return self.subnetworks[path]

    def get(self, asked: Request) -> Json:
        return self._shown(self._named(asked))

    def list_instances(self, asked: Request) -> Json:
        here = [one for path, one in sorted(self.instances.items()) if path.startswith(f"{asked.zone}/instances/")]
        shown, rest = page([self._shown(one) for one in here], asked.query)
        head = {
            "kind": "compute#instanceList",
            "id": f"{asked.zone}/instances",
            "selfLink": f"{LINK}{asked.zone}/instances",
        }
        return head | ({"items": shown} if shown else {}) | rest

    def aggregated(self, asked: Request) -> Json:
        there = {path: one.to_json(self.default_account(one.project)) for path, one in self.instances.items()}
        return self._aggregated(asked, "instances", "compute#instanceAggregatedList", there)

    def _aggregated(
        self, asked: Request, kind: str, name: str, there: Mapping[str, Json], places: Iterable[str] = ("zones",)
    ) -> Json:
        """One list of what there is by its path, of all zones, all regions, and what is global, as `places` say."""
        known = {"zones": self.zones, "regions": catalog.regions(self.zones), "global": [""]}
        scopes = [f"{place}/{one}".rstrip("/") for place in places for one in known[place]]
        prefix, silent = f"projects/{asked.project}/", self._silent_of(scopes, kind)
        scope_of = {path: "/".join(path.split("/")[2:-2]) for path in there if path.startswith(prefix)}
        curtailed = {f"zones/{zone}" for zone in self._curtailed if zone}
        heard = [path for path in sorted(scope_of) if scope_of[path] not in silent.keys() | curtailed]
        heard = [] if "" in self._curtailed else heard
        shown, rest = page([there[path] for path in heard if not self._is_late(there[path])], asked.query)
        items: dict[str, Json] = {}
        for scope in scopes:
            mine = [one for one in shown if f"/{scope}/" in one["selfLink"]]
            if silent.get(scope) == "warning":
                place = "zone" if scope.startswith("zones/") else "region"
                items[scope] = _warning("UNREACHABLE", f"The {place} '{scope}' is unreachable.", scope)
            elif scope in curtailed:
                items[scope] = _warning(*_CURTAILED, scope)
            elif mine:
                items[scope] = {kind: mine}
            else:
                said = f"There are no results for scope '{scope}' on this page."
                items[scope] = _warning("NO_RESULTS_ON_PAGE", said, scope)
        path = f"projects/{asked.project}/aggregated/{kind}"
        found: Json = {"kind": name, "id": path, "selfLink": LINK + path, "items": items}
        unreachable = [prefix + scope for scope, told in sorted(silent.items()) if told == "unreachables"]
        found |= _warning(*_CURTAILED, "") if "" in self._curtailed else {}
        return found | ({"unreachables": unreachable} if unreachable else {}) | rest

    def _silent_of(self, scopes: Iterable[str], kind: str) -> dict[str, str]:
        """Return the warning of a list for each scope that does not answer. Raises Refusal if it is not made at all."""
        silent = {scope: how for scope in scopes if (how := self._silent.get(scope.rpartition("/")[2], ""))}
        if broken := next((scope for scope, how in silent.items() if how == "error"), ""):
            raise refusals.unavailable(broken.rpartition("/")[2])
        if kind == "instanceTemplates":  # the one such list that has no field `unreachables`
            return dict.fromkeys(silent, "warning")
        return silent

    def _is_late(self, shown: Json) -> bool:
        return bool(self._lag) and moment(shown["creationTimestamp"]) + self._lag > self.world.now

    def delete(self, asked: Request) -> Json:
        instance = self._named(asked)
        if instance.body.get("deletionProtection"):
            why = "Resource cannot be deleted if it's protected against deletion."
            raise refusals.usage(f"Invalid resource usage: '{why} {instance.path}'.")
        if (running := self._running("delete", instance.number)) is not None:
            return running.to_json()
        operation = self._begun("delete", instance, instance.path, asked)
        self._end_inserts(instance)
        instance.unwanted = True
        if instance.status != "STOPPING":
            self._delete(instance)
        return operation.to_json()

    def _end_inserts(self, instance: Instance) -> None:
        """The insert of an instance that is deleted meanwhile fails."""
        for one in self.operations.values():
            if one.target_id == instance.number and one.kind == "insert" and not one.ended:
                self._end_operation(one, refusals.missing(instance.path))

    def serial(self, asked: Request) -> Json:
        instance = self._named(asked)
        port, start = number(asked.query, "port", 1), number(asked.query, "start", 0)
        if not 1 <= port <= 4:
            raise refusals.value("port", port, "Must be between 1 and 4.")
        whole = self.console_of(instance) if port == 1 else b""
        first = max(0, len(whole) - _SERIAL)
        at = min(max(start, first), len(whole))
        return {
            "kind": "compute#serialPortOutput",
            "selfLink": f"{LINK}{instance.path}/serialPort",
            "contents": whole[at:].decode("utf-8", "replace"),
            "start": str(at),
            "next": str(len(whole)),
        }

    def set_labels(self, asked: Request) -> Json:
        instance = self._named(asked)
        if asked.body.get("labelFingerprint") != fingerprint(instance.labels):
            message = f"Labels fingerprint either invalid or resource labels have changed: {instance.path}"
            raise refusals.ComputeRefusal(412, "conditionNotMet", message, code="CONDITION_NOT_MET")
        checks.labels(asked.body.get("labels") or {})
        instance.labels = dict(asked.body.get("labels") or {})
        operation = self.operation("setLabels", instance, instance.path, self._user(asked))
        operation.ended = self.world.now
        return operation.to_json()

    def set_metadata(self, asked: Request) -> Json:
        instance = self._named(asked)
        items = (instance.body.get("metadata") or {}).get("items") or []
        if asked.body.get("fingerprint") != fingerprint(items):
            message = f"Supplied fingerprint does not match current metadata fingerprint: {instance.path}"
            raise refusals.ComputeRefusal(412, "conditionNotMet", message, code="CONDITION_NOT_MET")
        checks.metadata({"metadata": asked.body})
        fresh = list(asked.body.get("items") or [])
        instance.body = {**instance.body, "metadata": {"items": fresh}}
        if instance.host is not None:
            instance.host.reconfigure({str(one["key"]): str(one.get("value", "")) for one in fresh})
        operation = self.operation("setMetadata", instance, instance.path, self._user(asked))
        operation.ended = self.world.now
        return operation.to_json()

    def guest_attributes(self, asked: Request) -> Json:
        """Return what programs and the guest agent of a VM have put there, if its metadata enable that."""
        instance, path = self._named(asked), asked.query.get("queryPath", "")
        items = (instance.body.get("metadata") or {}).get("items") or []
        enabled = any(
            one["key"] == "enable-guest-attributes" and str(one.get("value")).upper() == "TRUE" for one in items
        )
        host = instance.host
        spaces = {**host.guest_attributes, **host.published()} if host is not None and enabled else {}
        found = [
            {"namespace": space, "key": key, "value": value}
            for space, pairs in sorted(spaces.items())
            for key, value in sorted(pairs.items())
            if not path.strip("/") or f"{space}/{key}/".startswith(f"{path.strip('/')}/")
        ]
        if not found:
            raise refusals.missing(f"{instance.path}/guestAttributes/{path}")
        link = f"{LINK}{instance.path}/guestAttributes/{path}"
        return {"kind": "compute#guestAttributes", "selfLink": link, "queryPath": path, "queryValue": {"items": found}}

    def test_permissions(self, asked: Request) -> Json:
        """List the permissions of a caller on one instance; asked also of one that is not there."""
        path = f"{asked.zone}/instances/{asked.name}"
        if path not in self.instances:
            raise refusals.missing(path)
        held = [one for one in asked.body.get("permissions") or () if self._may(one, path, asked.caller)]
        return {"permissions": held} if held else {}

    def _named(self, asked: Request) -> Instance:
        """By its name, or by its number."""
        path = f"{asked.zone}/instances/{asked.name}"
        found = self.instances.get(path)
        if found is None and asked.name.isdigit():
            here = (one for one in self.instances.values() if one.path.startswith(f"{asked.zone}/instances/"))
            found = next((one for one in here if str(one.number) == asked.name), None)
        if found is None:
            raise refusals.missing(path)
        return found

    def _user(self, asked: Request) -> str:
        """Return the requester that an operation shows."""
        if asked.caller.kind != "vm":
            return asked.caller.node.removeprefix("serviceAccount:") or "user@emulated.example"
        own = next((one.account for one in self.instances.values() if one.name == asked.caller.node), "default")
        return self.default_account(asked.project) if own == "default" else own

    def _shown(self, instance: Instance) -> Json:
        return instance.to_json(self.default_account(instance.project))

    # Disks

    def get_disk(self, asked: Request) -> Json:
        disk, user = self._disk(asked)
        return disk.to_json(user)

    def aggregated_disks(self, asked: Request) -> Json:
        there = {path: disk.to_json(user) for path, (disk, user) in self._all_disks().items()}
        return self._aggregated(asked, "disks", "compute#diskAggregatedList", there)

    def delete_disk(self, asked: Request) -> Json:
        disk, user = self._disk(asked)
        if user:
            raise refusals.in_use(disk.path, user)
        for one in self.operations.values():
            if one.target_id == disk.number and not one.ended:
                return one.to_json()
        operation = self._begun("delete", disk, disk.path, asked)
        disk.deletes = True

        def gone() -> None:
            self._end_operation(operation)
            if self.disks.get(disk.path) is disk:
                del self.disks[disk.path]
                self.world.ledger.deleted("disk", disk.path)

        self.world.later(self.world.timing.delete, gone)
        return operation.to_json()

    def _all_disks(self) -> dict[str, tuple[Disk, str]]:
        """Each disk with the path of the instance that it is attached to."""
        found = {path: (disk, "") for path, disk in self.disks.items()}
        attached = ((disk, path) for path, one in self.instances.items() for disk in one.disks if disk.path)
        return found | {disk.path: (disk, path) for disk, path in attached}

    def _disk(self, asked: Request) -> tuple[Disk, str]:
        path = f"{asked.zone}/disks/{asked.name}"
        found = self._all_disks().get(path)
        if found is None:
            raise refusals.missing(path)
        return found

    # Operations

    def _begun(self, kind: str, about: Numbered, path: str, asked: Request) -> Operation:
        """The operation that a request begins, and by which it is answered if it is sent again."""
        ident = asked.query.get("requestId", "")
        operation = self.operation(kind, about, path, self._user(asked), ident)
        if ident:
            self._requests[asked.scope, ident] = operation
        return operation

    def _running(self, kind: str, target: int) -> Operation | None:
        known = (one for one in self.operations.values() if (one.kind, one.target_id) == (kind, target))
        return next((one for one in known if not one.ended), None)

    def get_operation(self, asked: Request) -> Json:
        return self._operation_named(asked).to_json()

    def _operation_named(self, asked: Request) -> Operation:
        path = f"{asked.scope}/operations/{asked.name}"
        found = self.operations.get(path)
        if found is None:
            raise refusals.missing(path)
        return found

    def list_operations(self, asked: Request) -> Json:
        here = [one for path, one in self.operations.items() if path.startswith(f"{asked.scope}/operations/")]
        here.sort(key=lambda one: one.created, reverse=True)
        shown, rest = page([one.to_json() for one in here], asked.query)
        path = f"{asked.scope}/operations"
        head = {"kind": "compute#operationList", "id": path, "selfLink": LINK + path}
        return head | ({"items": shown} if shown else {}) | rest

    # What is there anyway

    def get_zone(self, asked: Request) -> Json:
        if asked.place not in self.zones:
            raise refusals.missing(asked.zone)
        return _zone(asked.project, asked.place)

    def list_zones(self, asked: Request) -> Json:
        shown, rest = page([_zone(asked.project, zone) for zone in self.zones], asked.query)
        path = f"projects/{asked.project}/zones"
        return {"kind": "compute#zoneList", "id": path, "selfLink": LINK + path, "items": shown} | rest

    def _offers(self, zone: str, kind: str) -> bool:
        """Return True if a zone has a type of machines, or of accelerators."""
        return (zone, kind) not in self._lacking

    def get_accelerator_type(self, asked: Request) -> Json:
        path = f"{asked.zone}/acceleratorTypes/{asked.name}"
        known = catalog.GPUS.get(asked.name)
        if known is None or not self._offers(asked.place, asked.name):
            raise refusals.missing(path)
        return {
            **_head("acceleratorType", path),
            "zone": asked.place,
            "description": known.shown,
            "maximumCardsPerInstance": max(catalog.ATTACHED.get(asked.name, (8,))),
        }

    def get_machine_type(self, asked: Request) -> Json:
        path = f"{asked.zone}/machineTypes/{asked.name}"
        known = catalog.MACHINES.get(asked.name)
        if known is None or not self._offers(asked.place, asked.name):
            raise refusals.missing(path)
        kind = known.gpu or (f"{known.tpu}-tpu" if known.tpu else "")
        own = {"guestAcceleratorType": kind, "guestAcceleratorCount": known.accelerators}
        return {
            **_head("machineType", path),
            "zone": asked.place,
            "description": f"{known.cpus} vCPUs, {known.memory_gib} GB RAM",
            "guestCpus": known.cpus,
            "memoryMb": known.memory_gib * catalog.GIB,
            "imageSpaceGb": 0,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "isSharedCpu": False,
            "architecture": "ARM64" if known.arm else "X86_64",
            **({"accelerators": [own]} if kind else {}),
        }

    def get_image(self, asked: Request) -> Json:
        return _image(self._image(f"projects/{asked.project}/global/images/{asked.name}", "image"))

    def get_from_family(self, asked: Request) -> Json:
        return _image(self._of_family(asked.project, asked.name))

    def get_subnetwork(self, asked: Request) -> Json:
        return self._subnetwork(f"projects/{asked.project}/regions/{asked.place}/subnetworks/{asked.name}")

    def _subnetwork(self, path: str) -> Json:
        network = self._subnetwork_of(path)
        return {
            **_head("subnetwork", path),
            "region": LINK + path.partition("/subnetworks/")[0],
            "network": LINK + network,
            "ipCidrRange": "10.128.0.0/20",
            "gatewayAddress": "10.128.0.1",
            "privateIpGoogleAccess": path in self.private,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "fingerprint": fingerprint(path),
        }

    def aggregated_subnetworks(self, asked: Request) -> Json:
        regions = catalog.regions(self.zones)
        usual = [f"projects/{asked.project}/regions/{one}/subnetworks/default" for one in regions]
        usual = [] if asked.project in self.bare else usual
        paths = [*usual, *(path for path in self.subnetworks if path not in usual)]
        there = {path: self._subnetwork(path) for path in paths}
        return self._aggregated(asked, "subnetworks", "compute#subnetworkAggregatedList", there, ("regions",))

    def get_network(self, asked: Request) -> Json:
        path = f"projects/{asked.project}/global/networks/{asked.name}"
        automatic = self._makes_subnetworks(path)
        own = [one for one, network in self.subnetworks.items() if network == path]
        if automatic:
            there = catalog.regions(self.zones)
            own = [f"projects/{asked.project}/regions/{one}/subnetworks/{asked.name}" for one in there]
        return {
            **_head("network", path),
            "autoCreateSubnetworks": automatic,
            "mtu": 1460,
            "routingConfig": {"routingMode": "REGIONAL"},
            **({"subnetworks": [LINK + one for one in own]} if own else {}),
        }

    def get_region(self, asked: Request) -> Json:
        path = f"projects/{asked.project}/regions/{asked.place}"
        zones = [zone for zone in self.zones if region_of(zone) == asked.place]
        if not zones:
            raise refusals.missing(path)
        return {
            **_head("region", path),
            "description": asked.place,
            "status": "UP",
            "zones": [f"{LINK}projects/{asked.project}/zones/{zone}" for zone in zones],
            "quotas": self._quotas_of(asked.project, asked.place),
        }

    def get_project(self, asked: Request) -> Json:
        path = f"projects/{asked.project}"
        return {
            **_head("project", path),
            "id": str(project_number(asked.project)),
            "defaultServiceAccount": self.default_account(asked.project),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint(path)},
            "quotas": self._quotas_of(asked.project, ""),
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        }

    def _quotas_of(self, project: str, where: str) -> list[Json]:
        """The quotas of a region, or of all: of H100 and newer there are none to be seen."""
        known: dict[str, float] = {"GPUS_ALL_REGIONS": 10_000.0, "CPUS_ALL_REGIONS": 20_000.0}
        if where:
            metrics = [metric for gpu in GPUS.values() if not gpu.family for metric in (gpu.quota, gpu.spot_quota)]
            known = {**_SHOWN_QUOTAS, **dict.fromkeys(metrics, 1000.0)}
        for one in self._quotas:
            if one.region == where and not one.family:
                known[one.metric] = one.limit
        hidden = {gpu.spot_quota for gpu in GPUS.values() if gpu.family}
        here = [one for one in self.instances.values() if one.project == project and where in ("", region_of(one.zone))]
        used = [usage(one) for one in here]
        return [
            {"metric": metric, "limit": limit, "usage": float(sum(one.get(metric, 0) for one in used))}
            for metric, limit in sorted(known.items())
            if metric not in hidden
        ]

    def get_reservation(self, asked: Request) -> Json:
        path = f"{asked.zone}/reservations/{asked.name}"
        if path not in self.reservations:
            raise refusals.missing(path)
        known = self.reservations[path]
        return {
            **_head("reservation", path),
            "zone": LINK + asked.zone,
            "status": known.status,
            "specificReservationRequired": True,
            **({"deploymentType": "DENSE"} if known.bound else {}),
            "specificReservation": {
                "count": str(known.machines),
                "inUseCount": str(self._reserved(path)),
                "instanceProperties": {"machineType": known.machine_type},
            },
        }

    def _demand_reservation(self, path: str, machine: MachineType, model: str, number: int = 1) -> None:
        name, known = path.rpartition("/")[2], self.reservations.get(path)
        if known is None:
            raise refusals.reservation(f"Specified reservations [{name}] do not exist.")
        if known.status != "READY":
            raise refusals.reservation(
                f"Cannot insert instance to a reservation with status: {known.status}, as it requires reservation to "
                "be in READY state."
            )
        if (known.machine_type, known.bound) != (machine.name, model == catalog.RESERVATION_BOUND):
            raise refusals.reservation(f"No available resources in specified reservations '{name}'.")
        if self._reserved(path) + number > known.machines:
            raise refusals.reservation(
                f"Specified reservation '{name}' does not have available resources for the request."
            )

    def _reserved(self, path: str) -> int:
        return sum(_reservation(one) == path and one.occupies for one in self.instances.values())

    # Inspection by tests

    @step
    def instance(self, name: str) -> Json | None:
        """An instance as the API shows it, by its path or its name; or None."""
        found = next((one for path, one in self.instances.items() if name in (path, one.name)), None)
        return self._shown(found) if found is not None else None

    @step
    def hosts(self, name: str) -> list[Host | None]:
        """The machine of an instance, by its path or its name, in a list; empty if there is no such instance."""
        return [one.host for path, one in self.instances.items() if name in (path, one.name)]


class Verb(NamedTuple):
    act: Callable[[Any, Request], Json]
    permission: str
    zonal: bool = True
    kind: str = "instances"

    def resource(self, asked: Request) -> str:
        """The path of what a permission is needed for."""
        if not asked.name:
            return asked.scope if asked.place else f"projects/{asked.project}"
        return f"{asked.scope}/{self.kind}/{asked.name}"


VERBS: Final[Mapping[str, Verb]] = {
    "instances.insert": Verb(ComputeEngine.insert, "instances.create"),
    "instances.get": Verb(ComputeEngine.get, "instances.get"),
    "instances.list": Verb(ComputeEngine.list_instances, "instances.list"),
    "instances.aggregatedList": Verb(ComputeEngine.aggregated, "instances.list", False),
    "instances.delete": Verb(ComputeEngine.delete, "instances.delete"),
    "instances.getSerialPortOutput": Verb(ComputeEngine.serial, "instances.getSerialPortOutput"),
    "instances.setLabels": Verb(ComputeEngine.set_labels, "instances.setLabels"),
    "instances.setMetadata": Verb(ComputeEngine.set_metadata, "instances.setMetadata"),
    "instances.getGuestAttributes": Verb(ComputeEngine.guest_attributes, "instances.getGuestAttributes"),
    "instances.testIamPermissions": Verb(ComputeEngine.test_permissions, ""),
    "disks.get": Verb(ComputeEngine.get_disk, "disks.get", kind="disks"),
    "disks.delete": Verb(ComputeEngine.delete_disk, "disks.delete", kind="disks"),
    "disks.aggregatedList": Verb(ComputeEngine.aggregated_disks, "disks.list", False, "disks"),
    "zoneOperations.get": Verb(ComputeEngine.get_operation, "zoneOperations.get", kind="operations"),
    "zoneOperations.list": Verb(ComputeEngine.list_operations, "zoneOperations.list", kind="operations"),
    "zoneOperations.wait": Verb(ComputeEngine.get_operation, "zoneOperations.get", kind="operations"),
    "zones.get": Verb(ComputeEngine.get_zone, "zones.get", False),
    "zones.list": Verb(ComputeEngine.list_zones, "zones.list", False),
    "machineTypes.get": Verb(ComputeEngine.get_machine_type, "machineTypes.get", kind="machineTypes"),
    "acceleratorTypes.get": Verb(ComputeEngine.get_accelerator_type, "acceleratorTypes.get", kind="acceleratorTypes"),
    "images.get": Verb(ComputeEngine.get_image, "images.get", False, "images"),
    "images.getFromFamily": Verb(ComputeEngine.get_from_family, "images.getFromFamily", False, "images"),
    "subnetworks.get": Verb(ComputeEngine.get_subnetwork, "subnetworks.get", False, "subnetworks"),
    "subnetworks.aggregatedList": Verb(ComputeEngine.aggregated_subnetworks, "subnetworks.list", False, "subnetworks"),
    "networks.get": Verb(ComputeEngine.get_network, "networks.get", False, "networks"),
    "regions.get": Verb(ComputeEngine.get_region, "regions.get", False, "regions"),
    "projects.get": Verb(ComputeEngine.get_project, "projects.get", False, "projects"),
    "reservations.get": Verb(ComputeEngine.get_reservation, "reservations.get", kind="reservations"),
}


def _reservation(instance: Instance) -> str:
    """The path of the reservation that an instance takes a machine of; "" if there is none."""
    return checks.reservation(instance.body, "", f"projects/{instance.project}/zones/{instance.zone}")


_CURTAILED = ("LIST_OVERHEAD_QUOTA_EXCEED", "The list is not complete: its filter has exceeded a quota of overhead.")


def _warning(code: str, message: str, scope: str) -> Json:
    return {"warning": {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}}


def _head(kind: str, path: str) -> Json:
    """The fields of everything that was there before."""
    return {
        "kind": f"compute#{kind}",
        "id": str(identity(path)),
        "name": path.rpartition("/")[2],
        "selfLink": LINK + path,
        "creationTimestamp": stamp(_BEGINNING),
    }


def _zone(project: str, zone: str) -> Json:
    return {
        **_head("zone", f"projects/{project}/zones/{zone}"),
        "description": zone,
        "status": "UP",
        "region": f"{LINK}projects/{project}/regions/{region_of(zone)}",
    }


def _image(image: Image) -> Json:
    return {
        **_head("image", image.path),
        "status": "READY",
        "sourceType": "RAW",
        "architecture": "ARM64" if image.arm else "X86_64",
        "diskSizeGb": str(image.disk_gib),
        "archiveSizeBytes": str(image.disk_gib << 28),
        "storageLocations": ["us"],
        **({"family": image.family} if image.family else {"deprecated": {"state": "DEPRECATED"}}),
    }


def page(items: list[Json], query: Mapping[str, str]) -> tuple[list[Json], Json]:
    """The next page of what the filter lets through, and what to say of the rest."""
    size = number(query, "maxResults", PAGE)
    if not 0 <= size <= PAGE:
        raise refusals.value("maxResults", size, f"Values must be between 0 and {PAGE}.")
    chosen = filters.chosen(items, query.get("filter", ""))
    after = _after(query.get("pageToken", ""))
    found = chosen[after : after + (size or PAGE)]
    end = after + len(found)
    token = base64.urlsafe_b64encode(f"at {end}".encode()).decode()
    return found, {"nextPageToken": token} if end < len(chosen) else {}


def _after(token: str) -> int:
    if not token:
        return 0
    try:
        word, _, number = base64.urlsafe_b64decode(token).decode().partition(" ")
        if word != "at":
            raise ValueError
        return int(number)
    except ValueError:
        raise refusals.value("pageToken", token, "The page token is invalid.") from None


def number(query: Mapping[str, str], name: str, default: int) -> int:
    given = query.get(name, "")
    try:
        return int(given) if given else default
    except ValueError:
        raise refusals.typed(name, "TYPE_INT64", given) from None


def identity(path: str) -> int:
    return int.from_bytes(base64.b64decode(fingerprint(path))[:7])
