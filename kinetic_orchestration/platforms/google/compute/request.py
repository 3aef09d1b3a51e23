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
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.declare.cloud import reservation_of
from kinetic_orchestration.plan.hardware import accelerators, machines
from kinetic_orchestration.plan.hardware.machines import FLEX_START_RUN, FLEX_START_WAIT, Machine, machine_of
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
from kinetic_orchestration.protocol import attempt_rules, names

UNTIL = f"{ownership.OURS}until"  # the label that says until when a request waits: no answer of the API has that
NOTICE = int(attempt_rules.SPOT_NOTICE)  # the API knows 0 and 120
SPARE = 900.0  # seconds after the attempt's deadline, when the VM's own software should long have deleted it
NEXT_RUN = planner.RUN + planner.PROVISION + SPARE  # seconds of an attempt that has no limits of its own
SHORTEST_RUN, LONGEST_RUN = 30, 120 * 86400  # seconds, by the API
RESERVATION_KEY = "compute.googleapis.com/reservation-name"

_PROVISIONING: dict[accelerators.Way, str] = {
    accelerators.ON_DEMAND: "STANDARD",
    accelerators.SPOT: "SPOT",
    accelerators.FLEX_START: "FLEX_START",
    accelerators.RESERVATION: "STANDARD",
}
_BOUND = "RESERVATION_BOUND"  # to the life of a reservation that was booked for a time


def model_of(plan: Plan) -> accelerators.Way:
    """Return the way in which a plan's VMs are requested."""
    reservation = str(plan.cloud.get("reservation") or "")
    return accelerators.way_of(spot=plan.spot, flex_start=plan.flex_start, reservation=reservation)


def check(plan: Plan) -> None:
    """Refuse what Compute Engine can never make, with what to use instead."""
    if reason := machines.refusal(plan.slice, model_of(plan)):
        raise Unsupported(reason)
    if plan.slices > 1 and plan.slice.kind != "tpu":
        raise Unsupported(
            f"num_slices is {plan.slices}, and only slices of TPUs are joined: join VMs with GPUs with "
            f"cloud=Compute(hosts={plan.slices})"
        )


# ---- names and paths, all of which are known before anything exists


def needs_groups(plan: Plan) -> bool:
    """Return True if a plan's VMs are made by groups, and not one by one."""
    return machines.are_grouped(plan.slice, plan.slices)


def is_grouped(placement: Mapping[str, Any]) -> bool:
    """Return True if a placement's VMs are the members of groups, and not created one by one."""
    return bool(placement.get("grouped"))


def groups_of(placement: Mapping[str, Any]) -> list[str]:
    """The names of a placement's groups, in the order of its slices; none if its VMs are created one by one."""
    if not is_grouped(placement):
        return []
    return names.numbered(placement["name"], int(placement.get("slices") or 1))


def members_of_group(placement: Mapping[str, Any], group: str) -> list[str]:
    """The names of the VMs of one of a placement's groups, in the order of its hosts."""
    return names.members(group, per_slice(placement))


def members_of(placement: Mapping[str, Any]) -> list[str]:
    """The names of a placement's VMs, in the order of its hosts."""
    if is_grouped(placement):
        return [name for group in groups_of(placement) for name in members_of_group(placement, group)]
    return names.numbered(placement["name"], int(placement.get("hosts") or 1))


def per_slice(placement: Mapping[str, Any]) -> int:
    """The number of hosts of each slice."""
    return int(placement.get("hosts") or 1) // int(placement.get("slices") or 1)


def zone_of(placement: Mapping[str, Any]) -> str:
    return f"projects/{placement['project']}/zones/{placement['zone']}"


def usual_network(project: str) -> str:
    """The path of the network of VMs for which none is named."""
    return f"projects/{project}/global/networks/default"


# ---- bodies


def render(asked: Submission) -> list[dict[str, Any]]:
    """Return the body of the insert of each VM, in the order of the hosts."""
    return [_instance(asked, number, name) for number, name in enumerate(members_of(asked.intent.placement))]


def _instance(asked: Submission, number: int, name: str) -> dict[str, Any]:
    plan, placement = asked.plan, asked.intent.placement
    first = number * plan.processes  # of the hosts that it has
    orders = {"resource": f"{zone_of(placement)}/instances/{placement['name']}", "host": first}
    body = {"name": name, **vm(asked, orders, name)}
    if model_of(plan) == accelerators.FLEX_START:
        wait = int(min(valid_for(plan, asked.intent) or FLEX_START_WAIT, FLEX_START_WAIT))
        body["params"] = {"requestValidForDuration": {"seconds": str(wait)}}
        until = {UNTIL: str(int(asked.intent.created + asked.intent.wait + wait))}
        body["labels"] = dict([*until.items(), *body["labels"].items()][: ownership.LABELS_LIMIT])
    return body


def vm(asked: Submission, orders: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Return the properties of a VM, except for its name.

    Args:
        asked: What is submitted.
        orders: The orders of its host beyond those that all hosts share.
        name: Its name; "" for the template of many, which names a machine and a disk of whatever zone.
    """
    plan, placement, cloud = asked.plan, asked.intent.placement, asked.plan.cloud
    machine, zone = machine_of(plan.slice), zone_of(placement)
    labels = ownership.labels_of(plan, asked.intent, asked.job_id, asked.spec_digest)
    if is_grouped(placement):  # what tells the VMs of groups, also of one, from as many that are made one by one
        labels = dict([(ownership.SLICES, str(plan.slices)), *labels.items()][: ownership.LABELS_LIMIT])
    told = {**orders_of(asked), **_last(asked), **orders}
    found: dict[str, Any] = {
        "machineType": f"{zone}/machineTypes/{machine.machine_type}" if name else machine.machine_type,
        "scheduling": _scheduling(asked, bound=bool(cloud.get("reservation_bound"))),
        "reservationAffinity": _affinity(plan, placement),
        "disks": [_boot_disk(plan, placement, machine, name, labels)],
        "networkInterfaces": [_interface(cloud, placement)],
        "serviceAccounts": [{"email": cloud.get("service_account") or "default", "scopes": [CLOUD_PLATFORM]}],
        "labels": labels,
        "metadata": {
            "items": [
                {"key": "startup-script", "value": startup_script()},
                {"key": "kinetic", "value": json.dumps(told, ensure_ascii=False)},
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
        found["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": machine.count}]
    if machine.threads_per_core:
        found["advancedMachineFeatures"] = {"threadsPerCore": machine.threads_per_core}
    if cloud.get("tags"):
        found["tags"] = {"items": list(cloud["tags"])}
    return found


def run_seconds(intent: Intent, model: accelerators.Way, *, keep: float = 0.0) -> int:
    """The seconds after its start at which Google deletes a VM, whatever has become of us.

    They count from the start, so a VM that waited outlives the deadline of its attempt by as much. Its own software
    keeps the deadline; this is for when that is dead.

    A VM that may be kept (`keep`: for how many seconds) gets the time of one more attempt, as long as its first or as
    one without limits of its own, whichever is longer. It is set once, so no claim can move it, and one that might go
    beyond it is not made (`_last`). With less, the second step of a pipeline found no warm VM; with more, a VM whose
    software is dead would cost more. Steps that end before their limits, as most do, share one VM for so long.
    """
    least, most = float(SHORTEST_RUN), float(LONGEST_RUN)
    if model == accelerators.FLEX_START:
        least, most = FLEX_START_RUN
    own = intent.deadline - intent.created - intent.wait
    # The discovery document lets instances.setScheduling change it of a VM that is TERMINATED, and of no other.
    after = keep + max(own, NEXT_RUN) if keep else 0.0
    return int(max(least, min(most, own + SPARE + after)))


def _last(asked: Submission) -> dict[str, float]:
    """Return what the hosts of a slice that is kept have to know: when Google deletes it at the earliest. Those of a
    reservation for a time end with it, if that is sooner: when, no answer of the API says."""
    if not asked.lease_key:
        return {}
    intent = asked.intent
    run = run_seconds(intent, model_of(asked.plan), keep=_keep(asked))
    return {"last": intent.created + intent.wait + run - SPARE}


def _keep(asked: Submission) -> float:
    """Return for how many seconds the VMs may be kept after the attempt."""
    return asked.plan.keep or 0.0 if asked.lease_key else 0.0


def _scheduling(asked: Submission, *, bound: bool) -> dict[str, Any]:
    """Return how the VMs are got, and how they end.

    Nothing that was found in November 2026 says whether a limit of the run may be named with RESERVATION_BOUND: the
    discovery document is silent, and the body that Google shows for A3 High and Mega has DELETE without a limit, as has
    xbill9/gemma4-dev. It is sent, since only the reservation's end would free what is left when all else is dead.
    """
    model = model_of(asked.plan)
    run = run_seconds(asked.intent, model, keep=_keep(asked))
    found: dict[str, Any] = {
        "provisioningModel": _BOUND if bound else _PROVISIONING[model],
        "onHostMaintenance": "TERMINATE",  # VMs with GPUs or TPUs are not moved
        "automaticRestart": False,  # an attempt must not come back to life behind our back
        "instanceTerminationAction": "DELETE",  # of a preemption, too: a stopped VM is billed for its disk
        "maxRunDuration": {"seconds": str(run)},
    }
    if model == accelerators.SPOT:
        found["preemptionNoticeDuration"] = {"seconds": str(NOTICE)}
    return found


def _affinity(plan: Plan, placement: Mapping[str, Any]) -> dict[str, Any]:
    """Never the default, ANY_RESERVATION, which uses up a reservation that nobody named."""
    named = reservation_of(str(plan.cloud.get("reservation") or ""))
    if named is None:
        return {"consumeReservationType": "NO_RESERVATION"}
    value = named.name
    if named.project not in ("", placement["project"]):  # that another project shares
        value = f"projects/{named.project}/reservations/{named.name}"
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
    """`name`: of a VM, and so of its disk; "" for a template, whose VMs name theirs in the same way by themselves."""
    disk = plan.boot_disk
    return {
        "boot": True,
        "autoDelete": True,
        "type": "PERSISTENT",
        "initializeParams": {
            **({"diskName": name} if name else {}),
            "sourceImage": image_of(plan, machine, placement["project"]),
            "diskSizeGb": str(disk.gib),
            "diskType": f"{zone_of(placement)}/diskTypes/{disk.type}" if name else disk.type,
            "labels": dict(labels),
        },
    }


def _interface(cloud: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, Any]:
    """One gVNIC, which every machine has; without an access configuration it has no public address."""
    found: dict[str, Any] = {"nicType": "GVNIC", **network_of(cloud, placement)}
    if "network" not in found and "subnetwork" not in found:
        found["network"] = usual_network(placement["project"])
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
    return shown(readable(body))


def readable(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a VM with the size of its program in place of the program."""
    items = {item["key"]: item["value"] for item in properties["metadata"]["items"]}
    return {**properties, "metadata": shown_metadata(items)}
