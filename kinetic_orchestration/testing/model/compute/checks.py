"""The checks that Compute Engine makes of an instance before it answers, in its words where they are known. Pure rules.

What it finds out only later, of capacity and quotas, is in `lifecycle`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.model.compute import catalog
from kinetic_orchestration.testing.model.compute.catalog import Image, MachineType
from kinetic_orchestration.testing.model.compute.resources import Json, duration, moment, short

_NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_METADATA_VALUE, _METADATA_ALL = 256 << 10, 512 << 10
_DAY: Final = 86400.0
_PATTERN: Final = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
_LABELS: Final = 64
_FLEX_LEAST, _FLEX_MOST = 600.0, 7 * _DAY


def name(text: str, at: str = "resource.name") -> str:
    if not _NAME.fullmatch(text):
        raise refusals.value(at, text, f"Must be a match of regex '{_PATTERN}'")
    return text


def request_id(given: str) -> str:
    if given and (not _UUID.fullmatch(given) or not given.strip("0-")):
        raise refusals.value("requestId", given, "Must be a valid non-zero UUID.")
    return given


def labels(given: Mapping[str, str], at: str = "resource.labels") -> None:
    if len(given) > _LABELS:
        raise refusals.value(at, "", f"The number of labels must not exceed {_LABELS}.")
    for key, value in given.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            why = (
                "Label keys and values can only contain lowercase letters, numeric characters, underscores and dashes, "
                "are at most 63 characters long, and a key begins with a letter."
            )
            raise refusals.value(at, f"{key}={value}", why)


def machine_type(body: Json, project: str, zone: str, offered: Callable[[str, str], bool]) -> MachineType:
    asked = str(body.get("machineType") or "")
    if not asked:
        raise refusals.usage("Machine type specified is empty: 'resource.machineType' is required.")
    parts = short(asked).split("/")
    if len(parts) < 4 or parts[-2] != "machineTypes" or parts[-4] != "zones":
        raise refusals.value("resource.machineType", asked, "The URL is malformed.")
    if parts[-3] != zone:
        raise refusals.value(
            "resource.machineType", asked, f"Machine type is in another zone than the instance: {zone}."
        )
    if parts[-1].startswith(catalog.NOT_ALLOWED):
        raise refusals.machine_not_allowed(parts[-1], project)
    known = catalog.MACHINES.get(parts[-1])
    if known is None or not offered(zone, known.name):
        why = f"Machine type with name '{parts[-1]}' does not exist in zone '{zone}'."
        raise refusals.value("resource.machineType", asked, why)
    return known


def accelerators(body: Json, machine: MachineType, offered: Callable[[str], bool]) -> None:
    given = body.get("guestAccelerators") or ()
    for index, one in enumerate(given):
        at = f"resource.guestAccelerators[{index}]"
        kind = str(one.get("acceleratorType") or "").rpartition("/")[2]
        count = int(one.get("acceleratorCount") or 0)
        if machine.gpu or machine.tpu:  # naming a machine's own again is tolerated
            if (kind, count) != (machine.gpu, machine.accelerators):
                raise refusals.value(at, kind, f"Machine type {machine.name} does not support this accelerator.")
            continue
        known = catalog.ATTACHED.get(kind)
        if known is not None and not offered(kind):
            raise refusals.missing(short(str(one["acceleratorType"])))
        if known is None or not machine.takes_gpus:
            raise refusals.value(
                at, kind, f"[{machine.name}, {kind}] features are not compatible for creating instance."
            )
        if count not in known:
            raise refusals.value(
                f"{at}.acceleratorCount", count, f"The number of {kind} is one of {', '.join(map(str, known))}."
            )
        if machine.cpus > known[count]:
            why = f"Number of vCPUs {machine.cpus} exceeds the limit of {known[count]} for {count} {kind}."
            raise refusals.value(at, kind, why)
    if len(given) > 1:
        raise refusals.usage("At most one type of accelerator can be attached to an instance.")


def scheduling(body: Json, machine: MachineType, now: float) -> None:  # noqa: PLR0912 - a list of rules
    asked = body.get("scheduling") or {}
    model = asked.get("provisioningModel") or (catalog.SPOT if asked.get("preemptible") else catalog.STANDARD)
    has_gpu = bool(machine.gpu or machine.tpu or body.get("guestAccelerators"))
    at = "resource.scheduling"
    if has_gpu and asked.get("onHostMaintenance") != "TERMINATE" and model != catalog.SPOT:
        what = "guest accelerators" if not machine.tpu else "TPUs"
        raise refusals.usage(
            f"Instances with {what} do not support live migration: onHostMaintenance must be TERMINATE."
        )
    if model in (catalog.SPOT, catalog.FLEX_START) and asked.get("automaticRestart"):
        why = f"Scheduling must have automaticRestart be false when provisioningModel is {model}."
        raise refusals.value(f"{at}.automaticRestart", "true", why)
    if model not in machine.models:
        raise refusals.usage(
            f"Provisioning model {model} is not supported for machine type {machine.name}: it has "
            f"{', '.join(machine.models)}."
        )
    limit, until = duration(asked.get("maxRunDuration")), str(asked.get("terminationTime") or "")
    if limit and until:
        raise refusals.usage("Only one of maxRunDuration and terminationTime can be set.")
    if asked.get("maxRunDuration") and not 30 <= limit <= 120 * _DAY:
        raise refusals.value(f"{at}.maxRunDuration.seconds", int(limit), "Must be between 30 seconds and 120 days.")
    if until:
        try:
            ends = moment(until)
        except ValueError:
            raise refusals.value(f"{at}.terminationTime", until, "Must be a timestamp of RFC 3339.") from None
        if ends <= now:
            raise refusals.value(f"{at}.terminationTime", until, "Termination time must be in the future.")
    if (limit or until) and asked.get("instanceTerminationAction") not in ("STOP", "DELETE"):
        raise refusals.usage(
            "instanceTerminationAction must be specified when maxRunDuration or terminationTime is set."
        )
    if asked.get("instanceTerminationAction") and not (limit or until or model == catalog.SPOT):
        raise refusals.usage("instanceTerminationAction is for Spot VMs, and for VMs whose run is limited.")
    if asked.get("preemptionNoticeDuration"):
        if model != catalog.SPOT:
            raise refusals.usage("preemptionNoticeDuration is for Spot VMs only.")
        if (notice := duration(asked["preemptionNoticeDuration"])) not in (0, 120):
            raise refusals.value(f"{at}.preemptionNoticeDuration.seconds", int(notice), "Must be 0 or 120 seconds.")
    if model == catalog.FLEX_START:
        if not _FLEX_LEAST <= limit <= _FLEX_MOST:
            raise refusals.usage("Flex-start VMs must specify maxRunDuration between 10 minutes and 7 days.")
        if (body.get("reservationAffinity") or {}).get("consumeReservationType") != "NO_RESERVATION":
            raise refusals.usage("Flex-start VMs must have reservationAffinity NO_RESERVATION.")
    elif (body.get("params") or {}).get("requestValidForDuration"):
        raise refusals.usage("requestValidForDuration is for Flex-start VMs only.")


def disk_type(machine: MachineType, asked: str, zone: str, at: str, *, boot: bool = False) -> str:
    """The type of a disk, by default pd-standard. Of Hyperdisk none but Balanced can be a boot disk."""
    kind = asked.rpartition("/")[2] or "pd-standard"
    if kind not in (*catalog.PD, *catalog.HYPERDISK, "local-ssd"):
        raise refusals.missing(f"{short(asked) or kind}")
    if asked and f"zones/{zone}/" not in asked:
        raise refusals.value(at, asked, "Disk type must be in the zone of the instance.")
    if kind != "local-ssd" and kind not in machine.disks:
        own = ", ".join(machine.disks)
        raise refusals.usage(f"[{kind}] features are not compatible for creating instance: {machine.name} has {own}.")
    if boot and kind in catalog.HYPERDISK and kind != "hyperdisk-balanced":
        raise refusals.usage(f"[{kind}] features are not compatible for creating instance: it cannot be a boot disk.")
    return kind


def image_fits(image: Image, machine: MachineType, size: int, at: str) -> None:
    if image.arm != machine.arm:
        names = {True: "ARM64", False: "X86_64"}
        raise refusals.value(
            at,
            image.path,
            f"The image's architecture {names[image.arm]} is not that of the machine, {names[machine.arm]}.",
        )
    if size and size < image.disk_gib:
        raise refusals.value(
            f"{at}.diskSizeGb", size,
            f"Requested disk size cannot be smaller than the image size ({image.disk_gib} GB)",
        )  # fmt: skip


def secure_boot(body: Json, image: Image | None) -> None:
    wants = (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
    if wants and image is not None and "tpu7x" in image.family:
        raise refusals.usage("Secure Boot is enabled, but the boot disk's image does not support UEFI Secure Boot.")


def metadata(body: Json) -> None:
    items = (body.get("metadata") or {}).get("items") or []
    at = "resource.metadata.items"
    whole = 0
    seen: set[str] = set()
    for index, one in enumerate(items):
        key, value = str(one.get("key") or ""), str(one.get("value") or "")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", key):
            raise refusals.value(f"{at}[{index}].key", key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
        if key in seen:
            raise refusals.value("resource.metadata", key, f"Metadata has duplicate keys: {key}.")
        seen.add(key)
        if len(value.encode()) > _METADATA_VALUE:
            raise refusals.value(f"{at}[{index}].value", "", f"The value is larger than {_METADATA_VALUE} bytes.")
        whole += len(key) + len(value.encode())
    if whole > _METADATA_ALL:
        raise refusals.value("resource.metadata", "", f"Metadata is larger than {_METADATA_ALL} bytes in total.")


def reservation(body: Json, model: str, zone: str) -> str:
    """The path of the reservation that an instance in a zone asks for; "" if there is none.

    Args:
        body: The instance.
        model: Its provisioning model.
        zone: projects/P/zones/Z; a reservation of another project that shares it is of the same zone.
    """
    affinity: Mapping[str, Any] = body.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        if model == catalog.RESERVATION_BOUND:
            raise refusals.usage("A reservation-bound instance must have reservationAffinity SPECIFIC_RESERVATION.")
        return ""
    values: list[str] = list(affinity.get("values") or ())
    if affinity.get("key") != "compute.googleapis.com/reservation-name" or len(values) != 1:
        raise refusals.value(
            "resource.reservationAffinity", affinity, "A specific reservation is named by its key and one value."
        )
    parts = str(values[0]).split("/")
    if len(parts) == 1:
        return f"{zone}/reservations/{parts[0]}"
    return f"projects/{parts[1]}/zones/{zone.rpartition('/')[2]}/reservations/{parts[3]}"


_RIGHTS_OF_FIELDS: Final = {
    "metadata": "setMetadata", "tags": "setTags", "labels": "setLabels", "serviceAccounts": "setServiceAccount",
}  # fmt: skip


def rights(body: Json, instance: str, interfaces: Sequence[Json], image: str) -> Iterator[tuple[str, str]]:
    """Yield the permissions that an insert needs beside that to create an instance, with what each is needed for.

    Args:
        body: The instance that is asked for.
        instance: Its path.
        interfaces: Its network interfaces, as they will be shown.
        image: The path of its image, "" for one that everybody may use.
    """
    yield "compute.disks.create", instance.replace("/instances/", "/disks/")
    for field, verb in _RIGHTS_OF_FIELDS.items():
        if body.get(field) not in (None, {}, [], {"items": []}):
            yield f"compute.instances.{verb}", instance
    for one in interfaces:
        subnetwork = short(one["subnetwork"])
        yield "compute.subnetworks.use", subnetwork
        if one.get("accessConfigs"):
            yield "compute.subnetworks.useExternalIp", subnetwork
    if image:
        yield "compute.images.useReadOnly", image
