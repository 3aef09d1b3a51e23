"""The create call of a slice of TPU VMs as plain data, from a job's spec and an attempt's intent alone.

Pure: the same spec and intent give the same request in any process, so a call that may or may not have been carried out
is repeated. The request is proto-JSON of `google.cloud.tpu_v2`; this module knows no client, no zone table and no
answer of the API. It contains no secrets: every user of a VM can read its metadata. The one key in it is of this
attempt alone, and any program on the VM may report the attempt's result anyway.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.declare.spec import not_on_cloud
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.shared.orders import orders_of
from kinetic_orchestration.platforms.shared.ownership import labels_of

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
METADATA_LIMIT = 256 << 10  # bytes of one metadata value
SHORTEST_QUEUE = 1.0  # seconds; the API rejects less

_END_OF_PROGRAM = "END_OF_KINETIC_BOOT"


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
    name, slices = placement["name"], placement.get("slices", 1)
    ids = [name] if slices == 1 else [f"{name}-{index}" for index in range(slices)]
    return [f"{parent_of(placement)}/nodes/{node}" for node in ids]


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


def request_id(intent: Intent) -> str:
    """The same for every call that the same intent leads to, so that the API makes one of them."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{intent.boot}/{intent.placement['name']}"))


def valid_for(plan: Plan, intent: Intent) -> float:
    """The seconds for which the request may wait in its zone's queue; 0: unlimited.

    No longer than the job may still wait for hardware, and with other zones left, no longer than the limit of one zone.
    """
    left = [float(plan.zone_patience)] if plan.zone_patience and _elsewhere(plan, intent.placement) else []
    if plan.limits.provision:
        left.append(float(plan.limits.provision) - (intent.created + intent.wait - intent.since))
    return max(SHORTEST_QUEUE, min(left)) if left else 0.0


def _elsewhere(plan: Plan, placement: Mapping[str, Any]) -> bool:
    return not plan.cloud.get("reservation") and len(plan.zones) > 1 + len(placement.get("dropped", ()))


def _node(asked: Submission) -> dict[str, Any]:
    plan, intent, cloud = asked.plan, asked.intent, asked.plan.cloud
    node: dict[str, Any] = {
        "acceleratorType": plan.slice.accelerator_type,
        "runtimeVersion": cloud.get("runtime_version") or plan.slice.runtime_version,
        "networkConfig": _network(cloud, intent.placement),
        "serviceAccount": {"scope": [CLOUD_PLATFORM]},
        "labels": labels_of(plan, intent, asked.job_id, asked.spec_digest),
        "metadata": {
            "startup-script": startup_script(),
            "kinetic": json.dumps({**orders_of(asked), "resource": resource_of(intent.placement)}, ensure_ascii=False),
        },
    }
    if cloud.get("service_account"):
        node["serviceAccount"]["email"] = cloud["service_account"]
    if cloud.get("tags"):
        node["tags"] = list(cloud["tags"])
    if cloud.get("secure_boot"):
        node["shieldedInstanceConfig"] = {"enableSecureBoot": True}
    return node


def _network(cloud: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"enableExternalIps": bool(cloud.get("external_ips", True))}
    project = placement["project"]
    if network := cloud.get("network"):
        found["network"] = network if "/" in network else f"projects/{project}/global/networks/{network}"
    if subnetwork := cloud.get("subnetwork"):
        whole = f"projects/{project}/regions/{region_of(placement['zone'])}/subnetworks/{subnetwork}"
        found["subnetwork"] = subnetwork if "/" in subnetwork else whole
    return found


def _reservation(name: str, placement: Mapping[str, Any]) -> str:
    return name if "/" in name else f"{parent_of(placement)}/reservations/{name}"


def startup_script() -> str:
    """The script that each host runs as root at every boot: a program of its own, which arms the deadline before all
    else."""
    program = (Path(__file__).parents[3] / "host" / "machine" / "bootstrap.py").read_text(encoding="utf-8")
    assert _END_OF_PROGRAM not in program
    script = f"""\
#!/bin/sh
# Starts the agent of a kinetic-orchestration job. Runs at every boot, and again at any time without harm.
# Where the disk is full it lies in memory: it has a slice to delete.
for at in "${{KINETIC_ROOT:-}}/var/lib/kinetic" "${{KINETIC_ROOT:-}}/dev/shm/kinetic"; do
mkdir -p "$at"
cat > "$at/boot.py.new" <<'{_END_OF_PROGRAM}' && mv "$at/boot.py.new" "$at/boot.py" && exec python3 -I "$at/boot.py"
{program.rstrip()}
{_END_OF_PROGRAM}
done
exit 1
"""
    assert len(script.encode()) < METADATA_LIMIT
    return script


def describe_request(request: Mapping[str, Any]) -> str:
    """The create call for users: complete, except that a program is replaced by its size."""
    shown = json.loads(json.dumps(request))
    for spec in shown["queuedResource"]["tpu"]["nodeSpec"]:
        metadata = spec["node"]["metadata"]
        script = metadata["startup-script"].encode()
        metadata["startup-script"] = f"({len(script)} bytes, sha256 {hashlib.sha256(script).hexdigest()[:12]})"
        metadata["kinetic"] = json.loads(metadata["kinetic"])
    return "\n".join(_lines(shown, ""))


def _lines(value: Any, indent: str) -> Iterable[str]:
    items = value.items() if isinstance(value, dict) else [("-", entry) for entry in value]
    for key, entry in items:
        head = f"{indent}{key}" if key == "-" else f"{indent}{key}:"
        if isinstance(entry, dict | list) and entry:
            yield head
            yield from _lines(entry, indent + "  ")
        else:
            yield f"{head} {json.dumps(entry, ensure_ascii=False)}"


def dry_run(plan: Plan, placement: Mapping[str, Any]) -> str:
    """The output of `plan`: the first attempt's create call, with a job that does not exist yet."""
    limit = sum(float(value or 0.0) for value in (plan.limits.provision, plan.limits.run))
    intent = Intent(1, "0" * 16, dict(placement), limit, 0.0)
    staged = Staged(None, "", "", (), (), (), (), None, "")
    request = render_queued_resource(Submission(plan, staged, "job-000000000000", "0" * 64, intent, {}))
    waits = request["queuedResource"].get("queueingPolicy", {}).get("validUntilDuration", "")
    note = f"the create call in {placement['zone']}, waiting in its queue for up to {duration(float(waits[:-1]))}"
    return f"{note}\n{describe_request(request)}" if waits else describe_request(request)
