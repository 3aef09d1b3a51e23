"""The create calls of the VMs of an attempt as plain data, from a job's spec and an attempt's intent alone.

Pure: the same spec and intent give the same requests in any process, so a call that may or may not have been carried
out is repeated. Each is an `Instance` of Compute Engine's discovery document, revision 20261106. This module knows no
client and no answer of the API. Nothing here is secret: every user of a VM can read its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.errors import Unsupported
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.machines import FLEX_START_RUN, FLEX_START_WAIT, Machine, Model, machine_of
from kinetic_orchestration.plan.values import Intent, Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.vms import (
    CLOUD_PLATFORM,
    network_of,
    shown,
    shown_metadata,
    startup_script,
    valid_for,
    would_submit,
)
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.orders import orders_of

UNTIL = f"{ownership.OURS}until"  # the label that says until when a request waits: no answer of the API has that
NOTICE = 120  # seconds of a spot VM between the notice in its metadata and its end: the API knows 0 and 120
SPARE = 900.0  # seconds after the attempt's deadline, when the VM's own software should long have deleted it
SHORTEST_RUN, LONGEST_RUN = 30, 120 * 86400  # seconds, by the API
RESERVATION_KEY = "compute.googleapis.com/reservation-name"

_PROVISIONING: dict[Model, str] = {
    machines.ON_DEMAND: "STANDARD",
    machines.SPOT: "SPOT",
    machines.FLEX_START: "FLEX_START",
    machines.RESERVATION: "STANDARD",
}


def model_of(plan: Plan) -> Model:
    """Return the way in which a plan's VMs are requested."""
    cloud = plan.cloud
    return machines.model_of(
        spot=plan.spot, flex_start=bool(cloud.get("flex_start")), reservation=str(cloud.get("reservation") or "")
    )


def check(plan: Plan) -> None:
    """Refuse what Compute Engine can never make, with what to use instead."""
    if reason := machines.refusal(plan.slice, model_of(plan)):
        raise Unsupported(reason)
    if plan.slices > 1:
        raise Unsupported(
            f"{plan.slices} slices of {plan.slice.name} are not joined on Compute Engine: use backend='tpu-vm' or 'gke'"
        )


def members_of(placement: Mapping[str, Any]) -> list[str]:
    """The names of a placement's VMs, in the order of its hosts."""
    name, hosts = placement["name"], int(placement.get("hosts") or 1)
    return [name] if hosts == 1 else [f"{name}-{index}" for index in range(hosts)]


def zone_of(placement: Mapping[str, Any]) -> str:
    return f"projects/{placement['project']}/zones/{placement['zone']}"


def render(asked: Submission) -> list[dict[str, Any]]:
    """Return the body of the insert of each VM, in the order of the hosts."""
    return [_instance(asked, host, name) for host, name in enumerate(members_of(asked.intent.placement))]


def _instance(asked: Submission, host: int, name: str) -> dict[str, Any]:
    plan, placement, cloud = asked.plan, asked.intent.placement, asked.plan.cloud
    machine, model, zone = machine_of(plan.slice), model_of(plan), zone_of(placement)
    labels = ownership.labels_of(plan, asked.intent, asked.job_id, asked.spec_digest)
    orders = {**orders_of(asked), "resource": f"{zone}/instances/{placement['name']}", "host": host}
    body: dict[str, Any] = {
        "name": name,
        "machineType": f"{zone}/machineTypes/{machine.machine_type}",
        "scheduling": _scheduling(asked.intent, model),
        "reservationAffinity": _affinity(plan, placement),
        "disks": [_boot_disk(plan, placement, machine, name, labels)],
        "networkInterfaces": [_interface(cloud, placement)],
        "serviceAccounts": [{"email": cloud.get("service_account") or "default", "scopes": [CLOUD_PLATFORM]}],
        "labels": labels,
        "metadata": {
            "items": [
                {"key": "startup-script", "value": startup_script()},
                {"key": "kinetic", "value": json.dumps(orders, ensure_ascii=False)},
            ]
        },
        "shieldedInstanceConfig": {
            "enableSecureBoot": bool(cloud.get("secure_boot")),
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if machine.accelerator:
        accelerator = f"{zone}/acceleratorTypes/{machine.accelerator}"
        body["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": machine.count}]
    if machine.threads_per_core:
        body["advancedMachineFeatures"] = {"threadsPerCore": machine.threads_per_core}
    if cloud.get("tags"):
        body["tags"] = {"items": list(cloud["tags"])}
    if model == machines.FLEX_START:
        wait = int(min(valid_for(plan, asked.intent) or FLEX_START_WAIT, FLEX_START_WAIT))
        body["params"] = {"requestValidForDuration": {"seconds": str(wait)}}
        until = {UNTIL: str(int(asked.intent.created + asked.intent.wait + wait))}
        body["labels"] = dict([*until.items(), *labels.items()][: ownership.LABELS_LIMIT])
    return body


def run_seconds(intent: Intent, model: Model) -> int:
    """The seconds after its start at which Google deletes a VM, whatever has become of us.

    They count from the start, so a VM that waited outlives the deadline of its attempt by as much. Its own software
    keeps the deadline; this is for when that is dead.
    """
    least, most = float(SHORTEST_RUN), float(LONGEST_RUN)
    if model == machines.FLEX_START:
        least, most = FLEX_START_RUN
    return int(max(least, min(most, intent.deadline - intent.created - intent.wait + SPARE)))


def _scheduling(intent: Intent, model: Model) -> dict[str, Any]:
    found: dict[str, Any] = {
        "provisioningModel": _PROVISIONING[model],
        "onHostMaintenance": "TERMINATE",  # VMs with GPUs or TPUs are not moved
        "automaticRestart": False,  # an attempt must not come back to life behind our back
        "instanceTerminationAction": "DELETE",  # of a preemption, too: a stopped VM is billed for its disk
        "maxRunDuration": {"seconds": str(run_seconds(intent, model))},
    }
    if model == machines.SPOT:
        found["preemptionNoticeDuration"] = {"seconds": str(NOTICE)}
    return found


def _affinity(plan: Plan, placement: Mapping[str, Any]) -> dict[str, Any]:
    """Never the default, ANY_RESERVATION, which uses up a reservation that nobody named."""
    given = str(plan.cloud.get("reservation") or "")
    if not given:
        return {"consumeReservationType": "NO_RESERVATION"}
    parts = given.split("/")
    value = parts[-1]
    if len(parts) > 1 and parts[1] != placement["project"]:  # that another project shares
        value = f"projects/{parts[1]}/reservations/{parts[-1]}"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": RESERVATION_KEY, "values": [value]}


def image_of(plan: Plan, machine: Machine, project: str) -> str:
    """The path of the image, or of the family whose newest one is taken."""
    given = str(plan.cloud.get("image") or "")
    if not given:
        return f"projects/{machine.image_project}/global/images/family/{machine.image_family}"
    if "/images/" in given:
        return given
    return f"projects/{project}/global/images/{given}"


def _boot_disk(
    plan: Plan, placement: Mapping[str, Any], machine: Machine, name: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "boot": True,
        "autoDelete": True,
        "type": "PERSISTENT",
        "initializeParams": {
            "diskName": name,
            "sourceImage": image_of(plan, machine, placement["project"]),
            "diskSizeGb": str(plan.cloud.get("disk_gib") or machine.disk_gib),
            "diskType": f"{zone_of(placement)}/diskTypes/{machine.disk_type}",
            "labels": dict(labels),
        },
    }


def _interface(cloud: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, Any]:
    """One gVNIC, which every machine has; without an access configuration it has no public address."""
    found: dict[str, Any] = {"nicType": "GVNIC", **network_of(cloud, placement)}
    if "network" not in found and "subnetwork" not in found:
        found["network"] = f"projects/{placement['project']}/global/networks/default"
    if cloud.get("external_ips", True):
        found["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return found


def dry_run(plan: Plan, placement: Mapping[str, Any]) -> str:
    """The output of `plan`: the first attempt's create calls, with a job that does not exist yet."""
    bodies = render(would_submit(plan, placement))
    calls = "the create call" if len(bodies) == 1 else f"the first of {len(bodies)} create calls, alike but for name"
    note = f"{calls} in {placement['zone']}"
    if wait := (bodies[0].get("params") or {}).get("requestValidForDuration"):
        note += f", waiting for capacity for up to {duration(float(wait['seconds']))}"
    return f"{note}: POST {zone_of(placement)}/instances\n{describe(bodies[0])}"


def describe(body: Mapping[str, Any]) -> str:
    """A create call for users: complete, except that a program is replaced by its size."""
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    return shown({**body, "metadata": shown_metadata(items)})
