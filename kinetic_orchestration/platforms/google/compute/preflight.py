"""Checks of a job on Compute Engine before it is submitted: rights, machine, image, network, quota.

Of quotas only one is checked, which lets a project have no accelerator at all: those of newer GPUs are shown nowhere,
and the operation that creates a VM names the one that is short. What passed is not asked again for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import reservation_of
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.accelerators import ON_DEMAND, RESERVATION
from kinetic_orchestration.plan.hardware.machines import machine_of
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.google import api_errors, preflight
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.compute import causes, request
from kinetic_orchestration.platforms.google.compute.client import SUBNETWORKS, Instances, Refused
from kinetic_orchestration.platforms.google.rest.client import Google
from kinetic_orchestration.platforms.google.vms import network_of, whole
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding

# One that may create a VM must be able to find it, to say why it is gone, and to remove it.
PERMISSIONS = (
    *("compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.list"),
    *("compute.instances.setMetadata", "compute.instances.setLabels", "compute.instances.setServiceAccount"),
    *("compute.disks.create", "compute.disks.delete", "compute.disks.get", "compute.disks.list"),
    *("compute.zoneOperations.get", "compute.zoneOperations.list"),
)
# A slice is made by a group, of a template and by a policy, which it uses.
OF_SLICES = (
    *(f"compute.instanceGroupManagers.{verb}" for verb in ("create", "delete", "get", "list")),
    "compute.instanceGroups.delete",
    *(f"compute.instanceTemplates.{verb}" for verb in ("create", "delete", "get", "list", "useReadOnly")),
    *(f"compute.resourcePolicies.{verb}" for verb in ("create", "delete", "get", "list", "use")),
    "compute.regionOperations.get",
)
USE_SUBNETWORK = "compute.subnetworks.use"
USE_ADDRESS = "compute.subnetworks.useExternalIp"
SET_TAGS = "compute.instances.setTags"
USE_IMAGE = ("compute.images.get", "compute.images.getFromFamily", "compute.images.useReadOnly")
_ARM, _DENSE, _READY = "ARM64", "DENSE", "READY"
GPUS_ALL_REGIONS = "GPUS_ALL_REGIONS"  # of TPUs, too
_PROCESSORS = {"a2": "A2_CPUS", "g2": "CPUS", "n1": "CPUS"}  # the metric of a family's processors
_SHOWN = ("t4", "l4", "a100", "a100-80gb")  # GPUs whose quota a region shows: of newer ones it is one by families


def require(settings: Settings, api: Instances, plan: Plan) -> None:
    """Refuse to submit what cannot be made. Of a job with a choice, a quota refuses nothing: another one may be had.

    Raises:
        BackendError: Something is missing; the message says what, and how to get it.
    """
    checks = checks_of(api, plan, quota=not plan.choices)
    preflight.require(_as_planned(settings, plan), checks, (*_about(plan), len(checks)))


def _as_planned(settings: Settings, plan: Plan) -> Settings:
    """Return the settings with what the job's own options name in their place."""
    return replace(settings, service_account=str(plan.cloud.get("service_account") or ""), zones=plan.zones)


def examine(settings: Settings, api: Instances, plan: Plan) -> Iterator[Finding]:
    """Run all checks, even after a failure, and those that only inform."""
    own = _as_planned(settings, plan)
    more: list[preflight.Check] = [lambda settings, google: _regional_quota(api, plan)]
    if plan.image:
        more.append(lambda settings, google: _containers(plan))
    return preflight.examine(own, checks_of(api, plan), tuple(more))


def checks_of(api: Instances, plan: Plan, *, quota: bool = True) -> tuple[preflight.Check, ...]:
    """Return the checks of a plan, each of which finds one thing. quota: that of accelerators is one of them."""

    def on(check: Callable[[Instances, Plan], Finding]) -> preflight.Check:
        return lambda settings, google: check(api, plan)

    limits = (on(_quota),) if quota else ()
    reserved = (on(_reservation),) if plan.cloud.get("reservation") else ()
    return (partial(_permissions, plan), on(_machine), on(_image), on(_network), *limits, *reserved)


def permissions_of(plan: Plan) -> list[str]:
    """Return the permissions that a submitter of the plan needs on its project."""
    cloud = plan.cloud
    found = [*PERMISSIONS, *(OF_SLICES if request.needs_groups(plan) else ())]
    if request.image_of(plan, machine_of(plan.slice), plan.project).startswith(f"projects/{plan.project}/"):
        found += USE_IMAGE  # those of other projects are public, or shared there
    subnetwork = str(cloud.get("subnetwork") or "")
    if whole(subnetwork, plan.project).startswith(f"projects/{plan.project}/"):  # else granted in the host project
        found += [USE_SUBNETWORK, *([USE_ADDRESS] if _has_addresses(plan) else [])]
    return [*found, *([SET_TAGS] if cloud.get("tags") else [])]


def _about(plan: Plan) -> tuple[Any, ...]:
    machine = machine_of(plan.slice)
    image, disk = request.image_of(plan, machine, plan.project), plan.boot_disk
    network = (plan.cloud.get("network"), plan.cloud.get("subnetwork"))
    reserved = (plan.cloud.get("reservation"), plan.cloud.get("reservation_bound"))
    size = (plan.machines, plan.slice.chips)
    return (plan.zones, machine.machine_type, size, image, disk, network, reserved, tuple(permissions_of(plan)))


def _permissions(plan: Plan, settings: Settings, google: Google) -> Finding:
    needed = permissions_of(plan)
    answer = preflight.test_permissions(settings, google, needed)
    if not answer.ok:
        return preflight.unchecked("permissions", answer, settings, "compute")
    missing = preflight.missing_of(answer, needed)
    if not missing:
        return Finding("permissions", OK, "VMs may be made, seen and deleted")
    roles = dict.fromkeys(api_errors.role_of(permission, "compute") for permission in missing)
    fix = "Grant them: " + "; ".join(api_errors.grant(role, settings.project) for role in roles)
    keeps = any(permission.endswith(".delete") for permission in missing)
    lack = "they could be made and not be deleted" if keeps else "VMs cannot be managed"
    return Finding("permissions", FAILED, f"{', '.join(missing)} missing in {settings.project}: {lack}", fix)


def _machine(api: Instances, plan: Plan) -> Finding:
    """Check that one zone at least has the machine, and the GPUs that are attached to it, in the order in which they
    are tried."""
    machine = machine_of(plan.slice)
    offers = {"machineTypes": machine.machine_type}
    if machine.accelerator:
        offers["acceleratorTypes"] = machine.accelerator
    lacking = ("machineTypes", machine.machine_type)
    none: list[str] = []
    for zone in plan.zones:
        try:
            for lacking in offers.items():
                api.offer(f"projects/{plan.project}/zones/{zone}/{'/'.join(lacking)}")
        except Refused as refused:
            none += [zone] if _is_no_zone(refused) else []
            if refused.missing or _is_no_zone(refused):
                continue
            return _refused("machine type", refused, plan)
        return Finding("machine type", OK, f"{' with '.join(offers.values())} is offered in {zone}")
    fix = f"Name zones that have it: {causes.where_offered(*lacking)}"
    what = "GPUs" if lacking[0] == "acceleratorTypes" else "machine"
    found = f"none of {', '.join(plan.zones)} offers {lacking[1]}, the {what} of {plan.slice.name}"
    if none:
        found += f"; {', '.join(none)} {'is no zone' if len(none) == 1 else 'are no zones'}"
    return Finding("machine type", FAILED, found, fix)


def _is_no_zone(refused: Refused) -> bool:
    return any(causes.NO_ZONE.search(problem.message) for problem in refused.problems)


def _image(api: Instances, plan: Plan) -> Finding:
    """Check that the image is there, for the machine, and no larger than the disk."""
    machine = machine_of(plan.slice)
    path = request.image_of(plan, machine, plan.project)
    try:
        found = api.image(path)
    except Refused as refused:
        if refused.missing:
            family = "family " if "/family/" in path else ""
            fix = _sentence_of(causes.IMAGE.replace("PROJECT", whole(path, plan.project).split("/")[1]))
            return Finding("image", FAILED, f"there is no image {family}{path}, or not for you", fix)
        return _refused("image", refused, plan)
    if found.get("architecture") == _ARM:
        said = f"the image {found.get('name')} is for Arm processors, and those of {machine.machine_type} are x86"
        return Finding("image", FAILED, said, "Name an image for x86, or leave it out")
    size, disk = int(found.get("diskSizeGb") or 0), plan.boot_disk.gib
    if size > disk:
        less = ", or leave it out" if size <= machine.disk_gib else ""
        fix = f"Name a disk of {size} GiB or more with cloud=Compute(disk_gib=…){less}"
        return Finding("image", FAILED, f"the image {found.get('name')} takes {size} GiB, and the disk has {disk}", fix)
    return Finding("image", OK, f"{found.get('name')}, for a disk of {disk} GiB")


def _containers(plan: Plan) -> Finding:
    """Say whether the image of the VM is known to run containers. What is in an image nobody sees before it boots."""
    path = request.image_of(plan, machine_of(plan.slice), plan.project)
    if machines.has_docker(path) and plan.slice.kind == "gpu":
        return Finding("containers", OK, f"{path} has docker and NVIDIA's container toolkit, for {plan.image}")
    needs = "docker and NVIDIA's container toolkit" if plan.slice.kind == "gpu" else "docker"
    found = (
        f"{plan.image} needs {needs}, and nobody sees before it boots whether {path} has it; if not, its host says so"
    )
    fix = f"One that has it: cloud=Compute(image='{machines.WITH_DOCKER}')" if plan.slice.kind == "gpu" else ""
    return Finding("containers", WARNING, found, fix)


def _network(api: Instances, plan: Plan) -> Finding:
    """Check the subnetwork, if one is named, in the region of every zone that may be tried; else the network."""
    found: dict[str, str] = {}  # path → a zone that leads to it
    for zone in plan.zones:
        named = network_of(plan.cloud, {"project": plan.project, "zone": zone})
        path = named.get("subnetwork", "")
        if not path:
            return _of_network(api, plan, named.get("network") or request.usual_network(plan.project))
        region = path.split("/")[3] if path.count("/") >= 5 else ""
        if region and region_of(zone) != region:
            said = f"{path} is in {region}, and {zone} is elsewhere"
            return Finding("subnetwork", FAILED, said, _sentence_of(causes.NETWORK))
        found.setdefault(path, zone)
    return _subnetworks(api, plan, found)


def _subnetworks(api: Instances, plan: Plan, found: Mapping[str, str]) -> Finding:
    """Check subnetworks, each with a zone that leads to it."""
    for path, zone in found.items():
        try:
            known = api.subnetwork(path)
        except Refused as refused:
            if refused.missing:
                said = f"there is no {path}, which a VM in {zone} would need{_elsewhere(api, path)}"
                return Finding("subnetwork", FAILED, said, _sentence_of(causes.NETWORK))
            trouble = causes.classify(refused.problems, CallContext(plan.project, service="compute"))
            return Finding("subnetwork", WARNING, trouble.sentence)  # who may use one need not be able to look at it
        if not _has_addresses(plan) and not known.get("privateIpGoogleAccess"):
            _, project, _, region, _, name = path.split("/")
            said = f"{path} has no Private Google Access, by which VMs without external addresses reach the bucket"
            fix = (
                f"gcloud compute networks subnets update {name} --project={project} --region={region} "
                "--enable-private-ip-google-access; package indexes take Cloud NAT as well, or "
                "kinor stage-tools --offline"
            )
            return Finding("subnetwork", WARNING, said, fix)  # another way out may be there: a NAT of one's own
    return Finding("subnetwork", OK, ", ".join(found))


def _elsewhere(api: Instances, path: str) -> str:
    """Return where else there is a subnetwork of the same name, to follow a sentence; "" if that is not told."""
    _, project, *_, name = path.split("/")
    try:
        listed = api.everywhere(project, SUBNETWORKS, f'name = "{name}"')
    except Refused:  # who may use one need not be able to list them
        return ""
    regions = sorted(listed.found)
    if len(regions) > 1:
        return f"; of that name there are some in {', '.join(regions)}, each for zones of its region"
    if regions:
        return f"; of that name there is one in {regions[0]}, for zones of that region"
    return "" if listed.silent or listed.partial else "; no region has one of that name"


def _has_addresses(plan: Plan) -> bool:
    return bool(plan.cloud.get("external_ips", True))


def _of_network(api: Instances, plan: Plan, network: str) -> Finding:
    """Check a network, and its subnetworks if VMs get there only by what these have."""
    finding = _own_subnetworks(api, plan, network)
    if finding.state != OK or _has_addresses(plan):
        return finding
    owner, _, name = network.partition("/global/networks/")
    of_regions = {f"{owner}/regions/{region_of(zone)}/subnetworks/{name}": zone for zone in plan.zones}
    return _subnetworks(api, plan, of_regions)


def _own_subnetworks(api: Instances, plan: Plan, network: str) -> Finding:
    """Check that a network is there, and has a subnetwork in each region by itself."""
    try:
        found = api.network(network)
    except Refused as refused:
        if refused.missing:
            said = f"there is no {network}, and each VM needs a network"
            return Finding("subnetwork", FAILED, said, _sentence_of(causes.NO_NETWORK))
        return Finding("subnetwork", OK, f"that of {network} in each zone's region; from here it cannot be looked at")
    if not found.get("autoCreateSubnetworks") and not found.get("IPv4Range"):  # of a legacy one, which has none
        said = f"{network} has no subnetworks but those that somebody made, and a VM there has to name one"
        return Finding("subnetwork", FAILED, said, _sentence_of(causes.NETWORK))
    return Finding("subnetwork", OK, f"that of {network} in each zone's region")


def _reservation(api: Instances, plan: Plan) -> Finding:
    """Check the reservation, in the first zone: in that it is asked for VMs."""
    named = reservation_of(str(plan.cloud["reservation"]))
    assert named is not None
    owner = named.project or plan.project
    path = f"projects/{owner}/zones/{plan.zones[0]}/reservations/{named.name}"
    try:
        known = api.reservation(path)
    except Refused as refused:
        if refused.missing and owner == plan.project:
            return Finding("reservation", FAILED, f"there is no {path}", _sentence_of(causes.RESERVATION))
        trouble = causes.classify(refused.problems, CallContext(owner, service="compute"))
        return Finding("reservation", WARNING, trouble.sentence)  # who may use one need not be able to look at it
    return _reserved(known, path, plan)


def _reserved(known: Mapping[str, Any], path: str, plan: Plan) -> Finding:
    """Judge a reservation. One of dense machines was booked for a time, and its VMs have to end with it; another may
    be so, too, and does not say it."""
    name, kind, own = (
        path.rpartition("/")[2],
        machine_of(plan.slice).machine_type,
        known.get("specificReservation") or {},
    )
    machine = str((own.get("instanceProperties") or {}).get("machineType") or kind).rpartition("/")[2]
    if machine != kind:
        said = f"{name} has machines of type {machine}, and {plan.slice.name} is {kind}"
        return Finding("reservation", FAILED, said, "Name another reservation, or the accelerator that it has")
    if known.get("deploymentType") == _DENSE and not plan.cloud.get("reservation_bound"):
        said = f"{name} was booked for a time (its deployment is {_DENSE}), and gives no VM that may outlive it"
        return Finding("reservation", FAILED, said, "Say cloud=Compute(reservation_bound=True)")
    if (status := str(known.get("status") or _READY)) != _READY:
        return Finding("reservation", WARNING, f"{path} is {status}, and gives VMs once it is {_READY}")
    free = int(own.get("count") or 0) - int(own.get("inUseCount") or 0)
    if own and free < plan.machines:
        said = f"{path} has {free} free of {plan.machines}: the job waits for the others"
        return Finding("reservation", WARNING, said)
    return Finding("reservation", OK, f"{path}, of which {free} are free" if own else path)


def _quota(api: Instances, plan: Plan) -> Finding:
    """Check that the project may have so many accelerators. Of new projects that quota is 0, whatever others are."""
    try:
        known = api.quotas(f"projects/{plan.project}").get(GPUS_ALL_REGIONS)
    except Refused:
        return Finding("quota", OK, "not readable from here: a VM beyond it is refused by name")
    if known is None:
        return Finding("quota", OK, f"{plan.project} shows no {GPUS_ALL_REGIONS}: a VM beyond it is refused by name")
    limit, used = known
    told = f"{GPUS_ALL_REGIONS} of {plan.project} is {limit:g}"
    if limit <= 0:
        fix = f"Ask for some at {causes.QUOTAS} (service: Compute Engine API, name: GPUs (all regions))"
        return Finding("quota", FAILED, f"{told}, so that it can have neither GPUs nor TPUs", fix)
    said = f"{told}, of which {used:g} are used"
    needed = plan.slice.chips if plan.slice.kind == "gpu" else 0  # how TPUs count is not published
    if limit < needed:
        fix = f"Name fewer, or ask for more at {causes.QUOTAS} (service: Compute Engine API, name: GPUs (all regions))"
        return Finding("quota", FAILED, f"{told}, and {_of_all(plan)} needs {needed}", fix)
    if limit - used < needed and not plan.cloud.get(
        "reservation"
    ):  # what is used may be free by the time the VM is made
        fix = f"{_of_all(plan)} needs {needed}: wait until some are free, or ask for more at {causes.QUOTAS}"
        return Finding("quota", WARNING, said, fix)
    return Finding("quota", OK, said)


def _of_all(plan: Plan) -> str:
    return plan.slice.name if plan.slice.hosts == 1 else f"{plan.slice.name} on {plan.slice.hosts} VMs"


def _regional_quota(api: Instances, plan: Plan) -> Finding:
    """Report the quota of the GPUs in each region, where it is shown, and what else is short there: it is a hint, and
    no gate."""
    metric, needs = metric_of(plan), needs_of(plan)
    told: dict[str, list[str]] = {}
    short: list[str] = []
    for region in dict.fromkeys(map(region_of, plan.zones)):
        try:
            known = api.quotas(f"projects/{plan.project}/regions/{region}")
        except Refused:
            known = {}
        if metric and metric not in known:
            told.setdefault(metric, []).append(f"not readable in {region}")
        for one, needed in needs.items():
            limit, used = known.get(one, (math.inf, 0.0))
            if one in known and (one == metric or limit - used < needed):
                told.setdefault(one, []).append(f"{limit:g} in {region}, {used:g} used")
            if limit - used < needed:
                short.append(f"{needed} of {one} in {region}")
    unseen = "" if metric else f"that of {plan.slice.generation} is shown nowhere: a VM beyond it is refused by name"
    found = "; ".join(filter(None, (unseen, *(f"{one}: {'; '.join(said)}" for one, said in told.items()))))
    if not short:
        return Finding("regional quota", OK, found)
    fix = f"{_of_all(plan)} needs {', '.join(short)}: ask for more at {causes.QUOTAS}"
    return Finding("regional quota", WARNING, found, fix)


def needs_of(plan: Plan) -> dict[str, int]:
    """Return what a plan's VMs take of the quotas that a region may show, by their metrics: a new project may have the
    GPU, and neither the processors of its machine nor its disk."""
    machine = machine_of(plan.slice)
    found = {metric: plan.slice.chips} if (metric := metric_of(plan)) else {}
    if processors := _PROCESSORS.get(machine.machine_type.partition("-")[0]):
        found[processors] = machine.vcpus * plan.machines
    disk = plan.boot_disk
    if disk.type in (machines.PD_BALANCED, machines.PD_SSD):
        found["SSD_TOTAL_GB"] = disk.gib * plan.machines
    return found


def metric_of(plan: Plan) -> str:
    """Return the metric of the regional quota of the plan's GPUs; "" of hardware whose quota no region shows."""
    if plan.slice.generation not in _SHOWN:
        return ""
    name = f"NVIDIA_{plan.slice.generation.upper().replace('-', '_')}_GPUS"
    return name if request.model_of(plan) in (ON_DEMAND, RESERVATION) else f"PREEMPTIBLE_{name}"


def _refused(name: str, refused: Refused, plan: Plan) -> Finding:
    """A check to which the API gave no answer: it fails only for what a person has to change."""
    trouble = causes.classify(refused.problems, CallContext(plan.project, service="compute"))
    said, _, advice = trouble.sentence.partition("): ")
    state = FAILED if trouble.action == api_errors.FATAL else WARNING
    return Finding(name, state, f"{said})" if advice else said, _sentence_of(advice))


def _sentence_of(advice: str) -> str:
    return advice[:1].upper() + advice[1:]
