"""The checks of a job's options, before anything is started. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.configuration import resource_labels, settings, store_address
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.checks.held import check_held, check_keep, check_race
from kinetic_orchestration.plan.declare.choices import naming, told, ways
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, Slurm, TpuVm, reservation_of
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.spec import (
    COMPUTE,
    TPU_VM,
    Options,
    chips_of,
    hosts_of,
    image_of,
    processes_of,
    slice_of,
    way_of,
    zones_in,
)
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.protocol.schema import LARGEST

KERAS_BACKENDS = ("jax", "tensorflow", "torch")  # on which it trains; "numpy" and "openvino" only infer


ON_CONFLICT = ("return", "error")  # the handling of a key that names a job of another call


def check_options(options: Options) -> Options:
    """Return the options if they are valid on every backend.

    Raises:
        UsageError: An option is invalid, or two exclude each other.
    """
    if callable(options.accelerator):
        raise UsageError("run got a function where its accelerator belongs: write @kinetic.run() with parentheses")
    found = ways(options)
    for one in found:
        with naming(told(one), found):
            _check_one(one)
            _check_software(one, alone=len(found) == 1)
    _check_twice(found)
    _check_regions(found)
    _check_global_batch(found)
    check_race(found)
    check_priority("priority", options.priority)
    check_held(found, keeps=check_keep(options.keep) is not None)
    return options


def check_declared(options: Options) -> Options:
    """Return the options if the variables of this process for shares and budgets allow such a job.

    What they cannot tell yet is judged when the job is launched: shares of a pipeline or a user, those that count chips
    by what they cost, and settings of a profile.

    Raises:
        UsageError: A variable cannot be read, or its shares can never hold the job.
    """
    shares = settings.variables("budgets", "chips").get("chips")
    if shares:
        from kinetic_orchestration.plan.configuration import chip_shares  # which few deployments have

        never = [
            chip_shares.never_of_deployment(shares, told(one), slice_of(one).generation, chips_of(one))
            for one in ways(options)
        ]
        if all(never):
            raise UsageError("; ".join(dict.fromkeys(never)))
    return options


def check_part(given: Mapping[str, Any]) -> None:
    """Refuse options of a job of which others are not known yet, if no others could make them valid.

    Args:
        given: Those that are known, by their names.

    Raises:
        UsageError: An option is invalid, or two exclude each other.
    """
    options = Options(**given)
    if "cloud" not in given and isinstance(options.capacity, list | tuple):  # which may name the reservation
        rest = [way for way in options.capacity if way != accelerators.RESERVATION]
        options = replace(options, capacity=rest or None)
    if "accelerator" not in given:
        ways(options)
        options = replace(options, regions=None)  # of which each has some accelerator
    check_options(options)


def _check_twice(found: Sequence[Options]) -> None:
    """Refuse the same purchase by two names of its accelerator, or once with its way and once without."""
    seen: list[tuple[Options, str]] = []
    for one in found:
        name, way = slice_of(one).name, way_of(one)
        same = replace(one, accelerator=name, capacity=(way,), spot=way == accelerators.SPOT)
        if first := next((said for other, said in seen if other == same), ""):
            raise UsageError(f"accelerator names {first} twice, also as {told(one)}: keep one")
        seen.append((same, told(one)))


def _check_one(options: Options) -> None:
    """Refuse invalid options of one way in which the job may get its hosts."""
    _check_types(options)
    processes_of(options, slice_of(options))
    _check_names(options)
    if options.keras_backend is not None:
        check_keras_backend("keras_backend", options.keras_backend)
    profile.asked(options.profile)
    image_of(options)
    _check_volumes(options.volumes)
    _check_conflicts(options)
    for entry in fields(Limits):
        if entry.name != "cost":
            settings.seconds(f"limits.{entry.name}", getattr(options.limits, entry.name))
    if options.limits.cost is not None:
        from kinetic_orchestration.plan.hardware.cost import check_usd  # which few jobs have

        check_usd(options.limits.cost)
    for entry in fields(Retry):
        if getattr(options.retry, entry.name) < 0:
            raise UsageError(f"retry.{entry.name} is {getattr(options.retry, entry.name)}: it cannot be negative")


def _check_regions(found: Sequence[Options]) -> None:
    """Refuse a region that has none of the accelerators of a job, and an accelerator that is in none of its regions."""
    for region in dict.fromkeys(region for one in found for region in one.regions or ()):
        there = [slice_of(one) for one in found if region in (one.regions or ())]
        if not any(zones_in(each, [region]) for each in there):
            raise UsageError(f"regions has {region!r}, and it is known to have none of {_known_regions(there)}")
    for one in found:
        if one.regions and not zones_in(slice_of(one), one.regions):
            raise UsageError(
                f"regions is {list(one.regions)!r}, and none of them has {_known_regions([slice_of(one)])}"
            )


def _known_regions(slices: Sequence[accelerators.Slice]) -> str:
    from kinetic_orchestration.plan.hardware import regions  # which few jobs name

    told = {each.name: ", ".join(dict.fromkeys(map(regions.region_of, accelerators.zones(each)))) for each in slices}
    return "; nor ".join(f"{name} (which is in {where})" for name, where in told.items())


# What the options of ours may be, where a wrong type would only be found on a host.
_TYPES: dict[str, tuple[type, ...]] = {
    "output_dir": (str, os.PathLike, type(None)),
    "spot": (bool,),
    "debug": (bool,),
    "limits": (Limits,),
    "retry": (Retry,),
    "cloud": (CloudOptions, type(None)),
    "partition_key": (str, type(None)),
    "labels": (Mapping, type(None)),
    "distributed": (bool, type(None)),
    "reshard": (bool,),
}

_WORDS = {type(None): "None", bool: "True or False"}


def _check_types(options: Options) -> None:
    for name, types in _TYPES.items():
        value = getattr(options, name)
        if not isinstance(value, types):
            known = (TpuVm, Compute, Kubernetes, Slurm, type(None)) if name == "cloud" else types
            wanted = " or ".join(_WORDS.get(kind, kind.__name__) for kind in known)
            raise UsageError(f"{name} is {value!r}, and should be {wanted}")
    for key, value in (options.labels or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"labels maps text to text, not {key!r} to {value!r}")
    for given in (options.labels or {}, options.cloud.labels if options.cloud else {}):
        resource_labels.check(given)
    for entry in fields(Retry):
        if not isinstance(getattr(options.retry, entry.name), int):
            raise UsageError(f"retry.{entry.name} is {getattr(options.retry, entry.name)!r}: it is a whole number")


def _check_global_batch(found: Sequence[Options]) -> None:
    """Refuse a batch that the hosts of one of these ways cannot share: they are paid for until a program would find
    that."""
    size: Any = found[0].global_batch
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise UsageError(
            f"global_batch is {size!r}: give the samples of one step on all hosts together, or leave it out"
        )
    if size:
        from kinetic_orchestration.plan.hardware.global_batch import check_divides  # which few jobs have

        check_divides(size, [(str(one.accelerator), hosts_of(one)) for one in found])


def check_priority(name: str, given: Any) -> None:
    """Raise UsageError unless a job may have this priority, which `name` has; None: it has that of the settings."""
    if given is not None and (type(given) is not int or abs(given) > settings.HIGHEST_PRIORITY):
        raise UsageError(
            f"{name} is {given!r}: give a whole number from -{settings.HIGHEST_PRIORITY} to "
            f"{settings.HIGHEST_PRIORITY}; jobs of a higher one have their turn first where chips are shared"
        )


def check_keras_backend(source: str, name: Any) -> None:
    """Raise UsageError unless Keras trains on this backend.

    Args:
        source: The option or variable that names it.
        name: Its value.
    """
    if name not in KERAS_BACKENDS:
        import difflib

        near = difflib.get_close_matches(name, KERAS_BACKENDS, 1) if isinstance(name, str) else []
        hint = f": did you mean {near[0]!r}?" if near else ""
        *most, last = map(repr, KERAS_BACKENDS)
        raise UsageError(f"{source} is {name!r}, and Keras trains on {', '.join(most)} or {last}{hint}")


def _check_volumes(volumes: Any) -> None:
    if volumes is None:
        return
    if not isinstance(volumes, Mapping):
        raise UsageError(f"volumes must be a dict of absolute path to Data, not {type(volumes).__name__}")
    for mount, data in volumes.items():
        if not isinstance(mount, str) or not mount.startswith("/"):
            raise UsageError(f"the volume path {mount!r} is not absolute: write it from the root, as '/data'")
        if not isinstance(data, Data):
            raise UsageError(f"the volume {mount!r} is a {type(data).__name__}: wrap it, as Data({data!r})")
        if data.stream:
            raise UsageError(f"the volume {mount!r} is {data!r}, which has no path: pass it as an argument")


def _check_conflicts(options: Options) -> None:
    if options.python and options.requirements is None:
        raise ConflictingSettings(
            "python= chooses the interpreter of an isolated environment, and requirements=None means this one: "
            "name the requirements too, or leave python out"
        )
    if options.backend in (TPU_VM, COMPUTE) and options.store and store_address.is_folder(options.store):
        raise ConflictingSettings(
            f"backend={options.backend!r} runs on other machines, and the store {options.store} is a folder of this "
            "one, which they cannot reach: name a bucket, as store='gs://my-bucket/kinetic', or leave backend out"
        )
    if options.cloud is not None:
        from kinetic_orchestration.plan.declare.checks.clouds import check_cloud  # which many jobs do without

        check_cloud(options, options.cloud)
    if options.regions:
        _check_no_zones(options, options.regions)


_OF_GPUS = r"(?i)cuda|nvidia|nvcr\.io|rocm"
_OF_TPUS = r"(?i)(?<![a-z])(lib)?tpu(?![a-z])"


def _check_software(options: Options, *, alone: bool) -> None:
    """Refuse what is for another kind of hardware by its name alone: an image for GPUs may be of a project that is
    named by TPUs, as those of PyTorch/XLA are. `alone`: there is no other choice that it may be for."""
    slice_, cloud = slice_of(options), options.cloud
    if slice_.kind == "cpu":
        return
    hardware = "GPUs" if slice_.kind == "gpu" else "TPUs"
    given = {}
    if isinstance(cloud, TpuVm) and hardware == "GPUs":
        given[f"cloud=TpuVm(runtime_version={cloud.runtime_version!r})"] = cloud.runtime_version
    own, others = (_OF_GPUS, _OF_TPUS) if hardware == "GPUs" else (_OF_TPUS, _OF_GPUS)
    images = {f"container_image={options.container_image!r}": image_of(options)}
    if isinstance(cloud, Compute):
        images[f"cloud=Compute(image={cloud.image!r})"] = cloud.image
    given |= {said: image for said, image in images.items() if re.search(others, image) and not re.search(own, image)}
    other = "TPUs" if hardware == "GPUs" else "GPUs"
    instead = f"an accelerator with {other}" if alone else "it for the others alone, as in Choice('…', cloud=…)"
    for said, is_given in given.items():
        if is_given:
            raise ConflictingSettings(
                f"{said} is for {other}, and {slice_.name} has {hardware}: leave it out, or name {instead}"
            )


def _check_no_zones(options: Options, named: Sequence[str]) -> None:
    """Refuse zones beside regions, and a reservation that lies elsewhere."""
    from kinetic_orchestration.plan.hardware import regions  # which few jobs name

    zones = getattr(options.cloud, "zones", ())
    if options.zone or zones:
        said = (
            f"zone={options.zone!r}" if options.zone else f"cloud={type(options.cloud).__name__}(zones={list(zones)!r})"
        )
        raise ConflictingSettings(f"both regions={list(named)!r} and {said} say where: keep one")
    reserved = reservation_of(getattr(options.cloud, "reservation", ""))
    if reserved is not None and reserved.zone and regions.region_of(reserved.zone) not in named:
        raise ConflictingSettings(
            f"the reservation is of {reserved.zone}, and regions={list(named)!r} lacks its region: add it, or leave "
            "regions out"
        )


def _check_names(options: Options) -> None:
    for name in ("capture_env_vars", "first_party"):
        value = getattr(options, name)
        if isinstance(value, str) or not all(isinstance(entry, str) for entry in value or ()):
            raise UsageError(f"{name} is a list of names, such as [{str(value)!r}], not {value!r}")
    if options.on_conflict not in ON_CONFLICT:
        raise UsageError(f"on_conflict is {options.on_conflict!r}: it can be {' or '.join(map(repr, ON_CONFLICT))}")
    if options.key is not None and (not isinstance(options.key, str) or not options.key):
        raise UsageError(f"key is {options.key!r}: it is a text that names this job, such as 'ranker-2025-06-01'")
