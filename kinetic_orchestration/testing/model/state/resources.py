"""The resources of the emulated cloud: queued resources, nodes and operations, and their form in the API (proto-JSON).

Plain records that the model changes. Requests are parsed and checked here; the life cycle is not defined here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UnknownAccelerator
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.state.machine import Host

Json = dict[str, Any]
# The name of a state, or a number that no client knows yet.
State = str | int

_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_LIMIT = 256 << 10
# The names of AcceleratorConfig.Type; a generation that it does not name shows TYPE_UNSPECIFIED.
_GENERATIONS = {"V2": "v2", "V3": "v3", "V4": "v4", "V5LITE_POD": "v5e", "V5P": "v5p", "V6E": "v6e"}
_TYPES = {generation: name for name, generation in _GENERATIONS.items()}
# https://cloud.google.com/tpu/docs/runtimes; the lists differ by zone in the cloud.
RUNTIMES = tuple(sorted({"tpu-vm-base"} | {known.runtime_version for known in accelerators.catalogue()} - {""}))
# The families that Google's pages name, of which a zone lists some: https://cloud.google.com/tpu/docs/runtimes
_RUNTIME = re.compile(
    r"tpu-ubuntu[0-9]{4}-base"
    r"|tpu-vm-(v4-)?(base|pt-[0-9.]+)"
    r"|tpu-vm-tf-[0-9]+\.[0-9]+(\.[0-9]+)?(-v4)?(-pod)?(-v4)?(-(pjrt|se))?"
    r"|v2-(alpha|nightly)[a-z0-9.-]*"
)
_MOST_SLICES = 1000
# The states with a field of data of their own, such as creatingData, besides FAILED.
_WITH_DATA = ("CREATING", "ACCEPTED", "PROVISIONING", "DELETING", "ACTIVE", "SUSPENDING", "SUSPENDED")


class ResourcePath(NamedTuple):
    """`projects/P/locations/Z[/kind/id]`."""

    project: str
    zone: str
    id: str = ""


@dataclass
class Node:
    name: str
    wanted: Wanted
    spec: Json
    created: float
    number: int
    spot: bool = False
    reserved: bool = False
    queued: str = ""
    state: State = "CREATING"
    health: State = "HEALTH_UNSPECIFIED"
    health_description: str = ""
    symptoms: list[Json] = field(default_factory=list)
    endpoints: list[Json] = field(default_factory=list)
    machines: list[Host | None] = field(default_factory=list)
    stuck: bool = False

    @property
    def path(self) -> ResourcePath:
        return path_of(self.name)

    @property
    def hardware(self) -> Slice:
        return self.wanted.hardware

    @property
    def occupies(self) -> bool:
        """True if it occupies chips."""
        return self.state not in ("PREEMPTED", "TERMINATED", "STOPPED")

    def booted(self, worker: int | None = None) -> list[Host]:
        """The machines that were booted: of all workers, or of one."""
        chosen = self.machines if worker is None else [self.machines[worker]]
        return [machine for machine in chosen if machine is not None]

    def to_json(self) -> Json:
        kept = {key: value for key, value in self.spec.items() if key not in _OUTPUT_ONLY}
        shown: Json = kept | {
            "name": self.name,
            "state": self.state,
            "acceleratorType": self.hardware.accelerator_type,
            "acceleratorConfig": _config(self.hardware),
            "createTime": stamp(self.created),
            "id": str(self.number),
            "apiVersion": "V2",
            "schedulingConfig": {key: True for key in ("spot", "reserved") if getattr(self, key)},
        }
        if self.health != "HEALTH_UNSPECIFIED":
            shown["health"] = self.health
        optional = {
            "healthDescription": self.health_description,
            "symptoms": self.symptoms,
            "networkEndpoints": self.endpoints,
            "queuedResource": self.queued,
            "multisliceNode": self.wanted.multislice,
        }
        return shown | {key: value for key, value in optional.items() if value}


@dataclass
class Queued:
    name: str
    body: Json
    created: float
    state: State = "CREATING"
    initiator: str = ""
    error: Refusal | None = None
    nodes: list[str] = field(default_factory=list)
    stuck: bool = False

    @property
    def path(self) -> ResourcePath:
        return path_of(self.name)

    @property
    def spot(self) -> bool:
        return "spot" in self.body

    @property
    def reserved(self) -> bool:
        return bool(self.body.get("reservationName")) or "guaranteed" in self.body

    @property
    def window(self) -> tuple[float, float]:
        """The time from which on, and the time until which, hardware may be given to it."""
        policy = self.body.get("queueingPolicy", {})
        interval = policy.get("validInterval", {})
        start, end = interval.get("startTime"), interval.get("endTime")
        after = policy.get("validAfterTime", start)
        until = policy.get("validUntilTime", end)
        opens, closes = moment(after) if after else 0.0, moment(until) if until else float("inf")
        if "validAfterDuration" in policy:
            opens = self.created + seconds(policy["validAfterDuration"])
        if "validUntilDuration" in policy:
            closes = self.created + seconds(policy["validUntilDuration"])
        return opens, closes

    def to_json(self) -> Json:
        state: Json = {"state": self.state}
        if self.state == "FAILED" and self.error is not None:
            state["failedData"] = {"error": self.error.to_json()}
        elif self.state in _WITH_DATA:
            state[f"{str(self.state).lower()}Data"] = {}
        if self.initiator:
            state["stateInitiator"] = self.initiator
        kept = {key: value for key, value in self.body.items() if key not in ("name", "createTime", "state")}
        return kept | {"name": self.name, "createTime": stamp(self.created), "state": state}


@dataclass
class Operation:
    name: str
    target: str
    verb: str
    created: float
    answer: str = ""
    """The kind of what it answers with; empty: google.protobuf.Empty."""
    ended: float = 0.0
    error: Refusal | None = None
    response: Json | None = None

    def to_json(self) -> Json:
        metadata: Json = {
            "@type": "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata",
            "createTime": stamp(self.created),
            "target": self.target,
            "verb": self.verb,
            "apiVersion": "v2",
        }
        shown: Json = {"name": self.name, "metadata": metadata}
        if not self.ended:
            return shown
        metadata["endTime"] = stamp(self.ended)
        shown["done"] = True
        if self.error is not None:
            return shown | {"error": self.error.to_json()}
        if not self.answer:
            return shown | {"response": {"@type": "type.googleapis.com/google.protobuf.Empty"}}
        kind = f"type.googleapis.com/google.cloud.tpu.v2.{self.answer}"
        return shown | {"response": {"@type": kind, **(self.response or {})}}


_OUTPUT_ONLY = {
    *("name", "state", "healthDescription", "createTime", "networkEndpoints", "health", "id", "apiVersion", "symptoms"),
    *("queuedResource", "multisliceNode", "acceleratorType", "acceleratorConfig", "schedulingConfig"),
}


class Wanted(NamedTuple):
    """One node that a request asks for."""

    id: str
    spec: Json
    hardware: Slice
    multislice: bool = False
    slice_index: int = 0
    slices: int = 1


def wanted_nodes(queued_id: str, parent: str, body: Mapping[str, Any]) -> list[Wanted]:
    """The nodes of a queued resource, checked as the API checks them."""
    if not _ID.fullmatch(queued_id):
        raise refusals.invalid(f"Invalid queued resource id '{queued_id}'")
    specs = body.get("tpu", {}).get("nodeSpec", [])
    if not specs:
        raise refusals.invalid("queued_resource.tpu.node_spec is required")
    return [wanted for spec in specs for wanted in _wanted(queued_id, parent, spec)]


def _wanted(queued_id: str, parent: str, spec: Json) -> Iterator[Wanted]:
    if spec.get("parent") != parent:
        raise refusals.invalid(f"node_spec.parent must be '{parent}', not '{spec.get('parent', '')}'")
    node = spec.get("node")
    if node is None:
        raise refusals.invalid("node_spec.node is required")
    hardware = checked(node)
    many = spec.get("multisliceParams")
    if many is None:
        if "nodeId" not in spec:
            raise refusals.invalid("node_spec.node_id or node_spec.multislice_params is required")
        yield Wanted(node_id(spec["nodeId"]), node, hardware)
        return
    count = many.get("nodeCount", 0)
    if count <= 1:
        raise refusals.invalid("multislice_params.node_count must be greater than 1")
    if count > _MOST_SLICES:
        raise refusals.invalid(f"multislice_params.node_count must not be greater than {_MOST_SLICES}")
    prefix = node_id(many.get("nodeIdPrefix") or queued_id)
    for index in range(count):
        yield Wanted(f"{prefix}-{index}", node, hardware, True, index, count)


def request_id(request: Mapping[str, Any]) -> str:
    """The id of a request, used to detect its repetition; empty if it has none."""
    given = str(request.get("requestId", ""))
    if given and (not _UUID.fullmatch(given) or not given.strip("0-")):
        raise refusals.request_id(given)
    return given


def worker(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise refusals.typed("worker_ids", "TYPE_STRING", text)
    return int(text)


def node_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise refusals.invalid(f"Invalid node id '{text}'")
    return text


def checked(node: Mapping[str, Any]) -> Slice:
    """The hardware that a node asks for, once all else about it has been found good."""
    version = node.get("runtimeVersion", "")
    if not version:
        raise refusals.invalid("node.runtime_version is required")
    if not _RUNTIME.fullmatch(version):
        raise refusals.runtime_version(version)
    if len(node.get("description", "")) > 512:
        raise refusals.invalid("node.description is longer than 512 characters")
    if "networkConfig" in node and "networkConfigs" in node:
        raise refusals.invalid("network_config and network_configs are mutually exclusive")
    for key, value in node.get("labels", {}).items():
        if not key or not _LABEL.fullmatch(key) or not _LABEL.fullmatch(value) or not key[0].isalpha():
            raise refusals.invalid(f"Invalid label '{key}': '{value}'")
    for key, value in node.get("metadata", {}).items():
        if len(value.encode()) > _METADATA_LIMIT:
            raise refusals.invalid(f"Value for metadata key '{key}' is larger than {_METADATA_LIMIT} bytes")
    return _hardware(node)


def _hardware(node: Mapping[str, Any]) -> Slice:
    config = node.get("acceleratorConfig")
    try:
        if config and config.get("type") in _GENERATIONS:
            return accelerators.parse(f"{_GENERATIONS[config['type']]}-{config.get('topology', '')}")
        return accelerators.from_accelerator_type(node.get("acceleratorType", ""))
    except UnknownAccelerator:
        asked = config or node.get("acceleratorType", "")
        raise refusals.invalid(f"Accelerator type {asked!r} is not supported") from None


def accelerator_types(parent: str) -> list[Json]:
    found = (hardware for hardware in accelerators.catalogue() if hardware.api == "tpu-vm")
    return [
        {
            "name": f"{parent}/acceleratorTypes/{hardware.accelerator_type}",
            "type": hardware.accelerator_type,
            "acceleratorConfigs": [_config(hardware)],
        }
        for hardware in found
    ]


def runtime_versions(parent: str) -> list[Json]:
    return [{"name": f"{parent}/runtimeVersions/{version}", "version": version} for version in RUNTIMES]


def units(hardware: Slice) -> int:
    """The quota usage of a slice: the number in its accelerator type, cores or chips."""
    return int(hardware.accelerator_type.rpartition("-")[2])


def path_of(name: str) -> ResourcePath:
    parts = name.split("/")
    return ResourcePath(parts[1], parts[3], parts[5] if len(parts) > 5 else "")


def stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(text: str) -> float:
    whole, dot, rest = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + (float(f"0.{rest}") if dot else 0.0)


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def page_token(last: str) -> str:
    """The token for the rest of a listing, which begins after `last`."""
    return base64.b64encode(last.encode(), b"-_").decode()


def after(token: str) -> str:
    """The last name of the page before; empty for the first page."""
    try:
        return base64.b64decode(token, b"-_", validate=True).decode()
    except ValueError:
        raise refusals.invalid("Invalid page token") from None


def _config(hardware: Slice) -> Json:
    return {"type": _TYPES.get(hardware.generation, "TYPE_UNSPECIFIED"), "topology": hardware.topology}
