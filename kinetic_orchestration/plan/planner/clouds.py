"""The fields of a plan for hosts that are other machines: places, names and options of their cloud. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import cluster_names
from kinetic_orchestration.plan.configuration.settings import Settings, set_by
from kinetic_orchestration.plan.declare.checks.clouds import region_of_subnetwork
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm, fields_of, queues_of, reservation_of
from kinetic_orchestration.plan.declare.spec import Options, image_of, slice_of, zones_in
from kinetic_orchestration.plan.hardware import machines, regions
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.accelerators import zones as zones_of
from kinetic_orchestration.plan.planner.variables import owner_in
from kinetic_orchestration.plan.values import Traits


def cloud_of(
    options: Options, settings: Settings, slice_: Slice, traits: Traits, environ: Mapping[str, str], interpreter: str
) -> dict[str, Any]:
    """The additional fields of a plan for other machines."""
    spot = options.spot or slice_.spot
    slices = getattr(options.cloud, "num_slices", 1)
    common = {"slices": slices, "spot": spot, "image": image_of(options), "secret_refs": dict(options.secrets or {})}
    if not traits.in_zones:
        given = options.cloud if isinstance(options.cloud, traits.options or ()) else None
        cloud: Any = given if given is not None or traits.options is None else traits.options()
        who: dict[str, str] = {}
        if isinstance(cloud, Kubernetes):
            cloud, who = with_queue(cloud, settings), {"owner": owner_in(environ), **_python(options, interpreter)}
            if not traits.secret_service:
                _check_cluster_secrets(options.secrets or {})
        return {
            **common,
            "project": settings.project if traits.in_project else "",
            "zones": _clusters(cloud, settings) if isinstance(cloud, Kubernetes) else (),
            "cloud": {} if cloud is None else {**fields_of(cloud), **who},
            "zone_patience": settings.zone_patience if traits.options is Kubernetes else 0.0,
        }
    _check_zones(options, settings)
    of_zones = Compute if traits.options is Compute else TpuVm
    cloud = options.cloud if isinstance(options.cloud, of_zones) else of_zones()
    if of_zones is Compute:
        zones = _vm_zones(options, settings, slice_, cloud.subnetwork or settings.subnetwork)
    else:
        zones = zones_named(options, settings) or zones_of(slice_)
    own = {
        "network": cloud.network or settings.network,
        "subnetwork": cloud.subnetwork or settings.subnetwork,
        "service_account": cloud.service_account or settings.service_account,
        "quota_project": cloud.quota_project or settings.quota_project,
        "owner": owner_in(environ),
    }
    return {
        **common,
        "project": settings.project,
        "zones": zones,
        "cloud": {**fields_of(cloud), **own},
        "zone_patience": settings.zone_patience,
    }


def _python(options: Options, interpreter: str) -> dict[str, str]:
    """The minor version that a job asks for, if it names one: that of the image in which a command's pods start. An
    interpreter is not asked: its file is mostly named by its version. Else it is any Python 3.
    """
    if interpreter:
        found = re.search(r"python(3\.\d+)$", interpreter)
        return {"python": found[1] if found else "3"}
    found = re.match(r"(3\.\d+)(?=\.|$)", options.python or "")
    return {"python": found[1]} if found else {}


def _check_cluster_secrets(secrets: Mapping[str, str]) -> None:
    """Raise UsageError for what can be no Secret of a namespace: `NAME`, or `NAME/KEY`."""
    for variable, reference in secrets.items():
        name, slash, key = reference.partition("/")
        cluster_names.check(f"secrets={{{variable!r}: {reference!r}}}", name, cluster_names.OBJECT)
        if slash:
            cluster_names.check(f"secrets={{{variable!r}: {reference!r}}}", key, cluster_names.KEY_OF_SECRET)


def with_queue(cloud: Kubernetes, settings: Settings) -> Kubernetes:
    """Return the options with the queue of the settings, if they name none.

    Raises:
        UsageError: A queue is needed, and neither names one.
    """
    found = cloud if queues_of(cloud.queue) else replace(cloud, queue=settings.queue)
    if found.queued_provisioning and not queues_of(found.queue):
        raise UsageError(
            "queued_provisioning=True takes a queue, whose admission check of the controller "
            "kueue.x-k8s.io/provisioning-request asks for the machines: name it with cloud=Kubernetes(queue=…) or "
            "KINETIC_QUEUE"
        )
    return found


def _clusters(cloud: Kubernetes, settings: Settings) -> tuple[str, ...]:
    """The namespaces to try, each of its cluster; what is not named is known to the kubeconfig."""
    namespaces = tuple(cloud.namespaces) or (settings.namespace,)
    clusters = tuple(cloud.clusters) or (settings.cluster,)
    return tuple(dict.fromkeys(f"{cluster}/{namespace}" for cluster in clusters for namespace in namespaces))


def _vm_zones(options: Options, settings: Settings, slice_: Slice, subnetwork: str) -> tuple[str, ...]:
    """Return the zones to try for VMs of Compute Engine.

    Raises:
        UsageError: None is named, and none is published for the hardware; or the subnetwork is in another region.
    """
    named = zones_named(options, settings)
    zones, region = named or zones_of(slice_), region_of_subnetwork(subnetwork)
    if not zones:
        machine = machines.machine_of(slice_)
        what = (
            ("accelerator-types", machine.accelerator)
            if machine.accelerator
            else ("machine-types", machine.machine_type)
        )
        raise UsageError(
            f"no zone is named, and none is known to have {slice_.name}: name some, in the order in which they are "
            "tried, with KINETIC_ZONES=us-central1-a,… or cloud=Compute(zones=[…]). "
            f"`gcloud compute {what[0]} list --filter=name={what[1]}` shows those that have it"
        )
    elsewhere = [zone for zone in zones if region and regions.region_of(zone) != region]
    if elsewhere and (named or len(elsewhere) == len(zones)):
        raise UsageError(
            f"the subnetwork {subnetwork} is of {region}, and no VM in {', '.join(elsewhere)} can use it: name zones "
            "of its region, or another subnetwork"
        )
    return tuple(zone for zone in zones if zone not in elsewhere)


def _check_zones(options: Options, settings: Settings) -> None:
    """Raise UsageError for a zone of the settings that is none, if they say where. On GKE, whose clusters may be of a
    region, they are not asked."""
    name = set_by(settings, "zones", "zone")
    for zone in settings.zones if name and zones_named(options, settings) == settings.zones else ():
        regions.check_zone(name, zone)


def zones_named(options: Options, settings: Settings) -> tuple[str, ...]:
    """The zones that the user has chosen for one way: that of a reservation which is given by its whole path, above all
    others; else those of regions, before those of settings."""
    cloud = options.cloud if isinstance(options.cloud, TpuVm | Compute) else TpuVm()
    reserved = reservation_of(cloud.reservation)
    if reserved is not None and reserved.zone:
        return (reserved.zone,)
    if options.regions:
        return zones_in(slice_of(options), options.regions)
    return tuple(cloud.zones) or ((options.zone,) if options.zone else settings.zones)
