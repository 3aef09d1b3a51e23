"""The create call of a slice of TPU VMs as plain data, from a job's spec and an attempt's intent alone.

Pure: the same spec and intent give the same request in any process, so a call that may or may not have been carried out
is repeated. The request is proto-JSON of `google.cloud.tpu_v2`; this module knows no client, no zone table and no
answer of the API. It contains no secrets: every user of a VM can read its metadata. The one key in it is of this
attempt alone, and any program on the VM may report the attempt's result anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.declare.cloud import reservation_of
from kinetic_orchestration.plan.declare.spec import not_on_cloud
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.vms import (
    CLOUD_PLATFORM,
    network_of,
    request_id,
    shown,
    shown_metadata,
    startup_script,
    valid_for,
    would_submit,
)
from kinetic_orchestration.platforms.shared.orders import orders_of
from kinetic_orchestration.platforms.shared.ownership import labels_of
from kinetic_orchestration.protocol import names


def check(plan: Plan) -> None:
    """Refuse what the Cloud TPU API can never make, with what to use instead."""
    if reason := not_on_cloud(plan.slice):
        raise Unsupported(reason)
    if plan.spot and plan.cloud.get("reservation"):
        raise UsageError(
            f"spot capacity and the reservation {plan.cloud['reservation']!r} exclude each other: keep one of them"
        )


def parent_of(placement: Mapping[str, Any]) -> str:
    return f"projects/{placement['project']}/locations/{placement['zone']}"


def resource_of(placement: Mapping[str, Any]) -> str:
    return f"{parent_of(placement)}/queuedResources/{placement['name']}"


def nodes_of(placement: Mapping[str, Any]) -> list[str]:
    """The full names of the placement's nodes: one for each slice."""
    return names.numbered(f"{parent_of(placement)}/nodes/{placement['name']}", placement.get("slices", 1))


def render_queued_resource(asked: Submission) -> dict[str, Any]:
    """Returns the whole create call."""
    plan, intent = asked.plan, asked.intent
    placement = intent.placement
    name, slices = placement["name"], placement["slices"]
    spec: dict[str, Any] = {
        "parent": parent_of(placement),
        "node": _node(asked),
    }
    if slices == 1:
        spec["nodeId"] = name
    else:
        spec["multisliceParams"] = {"nodeCount": slices, "nodeIdPrefix": name}
    queued: dict[str, Any] = {"tpu": {"nodeSpec": [spec]}}
    if plan.spot:
        queued["spot"] = {}
    elif plan.cloud.get("reservation"):
        queued["guaranteed"] = {}
        queued["reservationName"] = _reservation(plan.cloud["reservation"], placement)
    if valid := valid_for(plan, intent):
        queued["queueingPolicy"] = {"validUntilDuration": f"{valid:.3f}".rstrip("0").rstrip(".") + "s"}
    return {
        "parent": parent_of(placement),
        "queuedResourceId": name,
        "requestId": request_id(intent),
        "queuedResource": queued,
    }


def orders_for(asked: Submission) -> dict[str, Any]:
    """Return the orders of all hosts, with what they are to delete in the end."""
    return {**orders_of(asked), "resource": resource_of(asked.intent.placement)}


def _node(asked: Submission) -> dict[str, Any]:
    plan, intent, cloud = asked.plan, asked.intent, asked.plan.cloud
    node: dict[str, Any] = {
        "acceleratorType": plan.slice.accelerator_type,
        "runtimeVersion": cloud.get("runtime_version") or plan.slice.runtime_version,
        "networkConfig": {
            "enableExternalIps": bool(cloud.get("external_ips", True)),
            **network_of(cloud, intent.placement),
        },
        "serviceAccount": {"scope": [CLOUD_PLATFORM]},
        "labels": labels_of(plan, intent, asked.job_id, asked.spec_digest),
        "metadata": {
            "startup-script": startup_script(),
            "kinetic": json.dumps(orders_for(asked), ensure_ascii=False),
        },
    }
    if cloud.get("service_account"):
        node["serviceAccount"]["email"] = cloud["service_account"]
    if cloud.get("tags"):
        node["tags"] = list(cloud["tags"])
    if cloud.get("secure_boot"):
        node["shieldedInstanceConfig"] = {"enableSecureBoot": True}
    return node


def _reservation(given: str, placement: Mapping[str, Any]) -> str:
    """Return a reservation as the API has it: by project and zone, in whichever of the forms it was given."""
    named = reservation_of(given)
    if named is None:
        return given
    owner, zone = named.project or placement["project"], named.zone or placement["zone"]
    return f"projects/{owner}/locations/{zone}/reservations/{named.name}"


def describe_request(request: Mapping[str, Any]) -> str:
    """The create call for users: complete, except that a program is replaced by its size."""
    whole = json.loads(json.dumps(request))
    for spec in whole["queuedResource"]["tpu"]["nodeSpec"]:
        spec["node"]["metadata"] = shown_metadata(spec["node"]["metadata"])
    return shown(whole)


def dry_run(plan: Plan, placement: Mapping[str, Any]) -> str:
    """The output of `plan`: the first attempt's create call, with a job that does not exist yet."""
    request = render_queued_resource(would_submit(plan, placement))
    waits = request["queuedResource"].get("queueingPolicy", {}).get("validUntilDuration", "")
    note = f"the create call in {placement['zone']}, waiting in its queue for up to {duration(float(waits[:-1]))}"
    return f"{note}\n{describe_request(request)}" if waits else describe_request(request)
