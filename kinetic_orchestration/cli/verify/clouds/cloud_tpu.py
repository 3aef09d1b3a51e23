"""Cloud TPU, as a verification uses it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.cli.verify.clouds.cloud import ASKED, DELETED, MISSING, SEEN, Question, Slice, Told, state_of
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import TpuVm
from kinetic_orchestration.platforms.google.rest.call_listeners import OK, Call
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.platforms.google.tpu.client import Tpus, client

QUEUED, NODE = "queued resource", "node"
_NOT_FOUND = ("NOT_FOUND", "404")
_KINDS = {
    "GetQueuedResource": QUEUED, "GetNode": NODE, "DeleteQueuedResource": QUEUED, "DeleteNode": NODE,
}  # fmt: skip


class TpuCalls:
    SERVICE = "tpu"

    def told(self, call: Call) -> Told | None:
        if call.method == "CreateQueuedResource":
            name = f"{call.request.get('parent', '')}/queuedResources/{call.request.get('queuedResourceId', '')}"
            return Told(ASKED, QUEUED, name, "", dict(call.request.get("queuedResource", {})))
        if (kind := _KINDS.get(call.method)) is None:
            return None
        resource = str(call.request.get("name", "")).replace("/nodes/", "/queuedResources/")
        if call.method.startswith("Delete"):
            return Told(DELETED, kind, resource) if call.status == OK else None
        word = MISSING if call.status in _NOT_FOUND else state_of(call.answer) if call.status == OK else ""
        return Told(SEEN, kind, resource, word) if word else None

    def name_of(self, call: Call) -> str:
        return "" if " " in call.method else call.method

    def echoed(self, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if kind == QUEUED:
            return asked
        specs = asked.get("tpu", {}).get("nodeSpec", ({},))
        node: Mapping[str, Any] = specs[0].get("node", {})
        return node


class CloudTpu:
    backend = "tpu-vm"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tpus = Tpus(settings)

    def option(self, zones: Sequence[str], hosts: int = 1, slices: int = 1) -> TpuVm | None:
        del hosts, slices  # its slices have hosts by their names, and each step has one
        return TpuVm(zones=list(zones)) if zones else None

    def zones(self) -> Sequence[str]:
        there = self._tpus.locations(self._settings.project)
        return [zone for zone in self._settings.zones if zone in there]

    def absent(self, name: str) -> Mapping[str, Question]:
        parent = f"projects/{self._settings.project}/locations/{self._settings.zones[0]}"
        queued, node, api = f"{parent}/queuedResources/{name}", f"{parent}/nodes/{name}", client(self._settings)
        return {
            "get a queued resource that never was": lambda: api.get_queued_resource(name=queued, timeout=20),
            "get a node that never was": lambda: api.get_node(name=node, timeout=20),
            "delete a queued resource that never was": lambda: api.delete_queued_resource(
                request={"name": queued, "force": True}, timeout=20
            ),
            "delete a node that never was": lambda: api.delete_node(name=node, timeout=20),
            "get an operation that never was": lambda: api.get_operation(
                {"name": f"{parent}/operations/operation-0-{name}"}, timeout=20
            ),
        }

    def refused(self, slice_: Slice) -> Mapping[str, Question]:
        from google.cloud import tpu_v2
        from google.protobuf import json_format

        api, parent = client(self._settings), slice_.resource.partition("/queuedResources/")[0]
        message = tpu_v2.CreateQueuedResourceRequest()
        again = {
            "parent": parent, "queuedResourceId": slice_.resource.rpartition("/")[2],
            "requestId": str(uuid.uuid4()), "queuedResource": slice_.asked,
        }  # fmt: skip
        json_format.ParseDict(again, type(message).pb(message))
        return {
            "create a queued resource whose name is taken": lambda: api.create_queued_resource(
                request=message, timeout=40
            ),
            "list what is there, with a field mask": lambda: (
                self._tpus.queued_resources(self._settings.project, "-"),
                self._tpus.nodes(self._settings.project, "-"),
            ),
            "delete an ACTIVE queued resource without force": lambda: api.delete_queued_resource(
                request={"name": slice_.resource}, timeout=40
            ),
            "delete the node of an ACTIVE queued resource": lambda: api.delete_node(name=_node_of(slice_), timeout=40),
        }

    def polls(self, slice_: Slice, *, whole: bool = False) -> Iterator[Callable[[], bool]]:
        del whole  # both tell what costs
        yield lambda: self._tpus.queued_resource(slice_.resource) is None
        yield lambda: self._tpus.node(_node_of(slice_)) is None

    def deleted(self, slice_: Slice) -> Mapping[str, Question]:
        api = client(self._settings)
        return {
            "get a queued resource that was deleted": lambda: api.get_queued_resource(name=slice_.resource, timeout=20),
            "get a node that was deleted": lambda: api.get_node(name=_node_of(slice_), timeout=20),
        }

    def delete(self, slice_: Slice) -> None:
        self._tpus.delete(slice_.resource)

    def is_going(self, slice_: Slice) -> bool:
        found = self._tpus.queued_resource(slice_.resource)
        return found is None or found.state == states.DELETING

    def removals(self, slice_: Slice) -> Iterator[Question]:
        yield lambda: self._tpus.delete(slice_.resource)
        yield lambda: self._tpus.delete_node(_node_of(slice_))

    def word(self, error: Exception) -> str:
        return type(error).__name__

    def command(self, slice_: Slice) -> str:
        return (
            f"gcloud compute tpus queued-resources delete {slice_.resource.rpartition('/')[2]} --force "
            f"--zone={slice_.resource.split('/')[3]} --project={self._settings.project}"
        )


def _node_of(slice_: Slice) -> str:
    return slice_.resource.replace("/queuedResources/", "/nodes/")
