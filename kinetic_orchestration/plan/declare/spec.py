"""The declaration of a job: the options as the user gave them, checked before anything is started."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from kinetic_orchestration.errors import ConflictingSettings, NotAFunction, Unsupported, UsageError
from kinetic_orchestration.plan.configuration import cluster_names, resource_labels, settings, store_address
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.choices import Choice, naming, told, ways
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, TpuVm, queues_of, reservation_of
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.hardware import accelerators, machines, regions
from kinetic_orchestration.protocol.schema import MOST_HOSTS, MOST_PLACES, MOST_SLICES

DEFAULT_ACCELERATOR = "tpu-v5e-1"
LOCAL = "local"
TPU_VM = "tpu-vm"
COMPUTE = "compute"
EACH_GPU = "gpu"
KINETIC_IMAGES = ("bundled", "prebuilt")  # as container_image, Keras Kinetic's words for images that it builds
KERAS_BACKENDS = ("jax", "tensorflow", "torch")  # on which it trains; "numpy" and "openvino" only infer


# As github.com/distribution/reference has it: [registry[:port]/]path[:tag][@digest].
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
LONGEST_REFERENCE = 512
_OF_CLUSTERS = ("kubernetes", "gke", "pathways")
PODS_END = (
    "a pod ends with its program, and its node is the cluster's, which itself keeps it for a while after the last pod "
    "(GKE for about ten minutes); leave keep out"
)
CONTAINER_STAYS = (
    "what a container leaves on its machine cannot be told from what was there before; leave one of them out"
)
AGENTS_APART = "no agent of several on a machine can tell that the others have left it clean; leave one of them out"
QUEUE_DECIDES = "the queue of its cluster decides where an attempt runs. Leave race out, or name a backend of VMs"
LONGEST_KEEP = 24 * 3600.0  # seconds for which an unclaimed slice is kept


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `run`. The first group has the names of Keras Kinetic."""

    accelerator: str | Choice | Sequence[str | Choice] = DEFAULT_ACCELERATOR
    container_image: str | None = None
    base_image_repo: str | None = None
    zone: str | None = None
    project: str | None = None
    capture_env_vars: Sequence[str] | None = None
    cluster: str | None = None
    backend: str | None = None
    namespace: str | None = None
    volumes: Mapping[str, Data] | None = None
    spot: bool = False
    output_dir: str | None = None
    debug: bool = False
    _: KW_ONLY
    cloud: CloudOptions | None = None
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    retry: Retry = Retry()  # noqa: RUF009 - frozen
    requirements: str | os.PathLike[str] | Sequence[str] | None = None
    python: str | None = None
    first_party: Sequence[str] = ()
    secrets: Mapping[str, str] | None = None
    key: str | None = None
    on_conflict: str = "return"
    store: str | None = None
    deployment: str | None = None
    distributed: bool | None = None
    keras_backend: str | None = None
    processes: int | str | None = None
    profile: Profile | int | str | None = None
    partition_key: str | None = None
    labels: Mapping[str, str] | None = None
    regions: str | Sequence[str] | None = None
    capacity: str | Sequence[str] | None = None
    by: str = "order"
    reshard: bool = False
    global_batch: int = 0
    race: int = 1
    keep: float | str | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One call: a function with its arguments, or a command with the folder in which it runs."""

    name: str
    options: Options
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # variables of the program; they override captured ones
    meant: tuple[str, ...] = ()  # what else of the launch means Google Cloud, as its user wrote it
    origin: Mapping[str, str] = field(default_factory=dict)  # who launches it, by an orchestrator's own names
    require_hardware: bool = False  # overrides the settings; True refuses every emulation


ON_CONFLICT = ("return", "error")  # the handling of a key that names a job of another call

OPTION_NAMES = frozenset(entry.name for entry in fields(Options))


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
    _check_regions(found)
    _check_global_batch(found)
    _check_race(found)
    check_priority("priority", options.priority)
    _check_held(found, keeps=check_keep(options.keep) is not None)
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
        rest = [way for way in options.capacity if way != machines.RESERVATION]
        options = replace(options, capacity=rest or None)
    if "accelerator" not in given:
        ways(options)
        options = replace(options, regions=None)  # of which each has some accelerator
    check_options(options)


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
    told = {each.name: ", ".join(dict.fromkeys(map(regions.region_of, accelerators.zones(each)))) for each in slices}
    return "; nor ".join(f"{name} (which is in {where})" for name, where in told.items())


def zones_in(slice_: accelerators.Slice, named: Sequence[str]) -> tuple[str, ...]:
    """Return the zones to try in these regions, in their order: those that are published for the hardware, or all, if
    none is published for it."""
    known = accelerators.zones(slice_)
    if not known:
        return tuple(zone for region in named for zone in regions.zones_of(region))
    return tuple(zone for region in named for zone in known if regions.region_of(zone) == region)


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
            known = (TpuVm, Compute, Kubernetes, type(None)) if name == "cloud" else types
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
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise UsageError(
            f"global_batch is {size!r}: give the samples of one step on all hosts together, or leave it out"
        )
    if size:
        from kinetic_orchestration.plan.hardware.global_batch import check_divides  # which few jobs have

        check_divides(size, [(str(one.accelerator), hosts_of(one)) for one in found])


def _check_race(found: Sequence[Options]) -> None:
    """Refuse a number of places that no race has."""
    race: Any = found[0].race
    if isinstance(race, bool) or not isinstance(race, int) or not 1 <= race <= MOST_PLACES:
        raise UsageError(
            f"race is {race!r}: give the places that are asked at once, 2 or {MOST_PLACES}, or leave it out. Each of "
            "them is paid for from the moment its hosts are there until it is released"
        )


def check_priority(name: str, given: Any) -> None:
    """Raise UsageError unless a job may have this priority, which `name` has; None: it has that of the settings."""
    if given is not None and (type(given) is not int or abs(given) > settings.HIGHEST_PRIORITY):
        raise UsageError(
            f"{name} is {given!r}: give a whole number from -{settings.HIGHEST_PRIORITY} to "
            f"{settings.HIGHEST_PRIORITY}; jobs of a higher one have their turn first where chips are shared"
        )


def _check_held(found: Sequence[Options], *, keeps: bool) -> None:
    """Refuse to keep a slice, or to ask several places, where that is not possible."""
    for one in found:
        with naming(told(one), found):
            if keeps and (why := unkept(one)):
                raise Unsupported(why)
            if one.race > 1 and (where := cluster_of(one)):
                raise Unsupported(f"race={one.race} is not possible on {where}: {QUEUE_DECIDES}")


def cluster_of(options: Options) -> str:
    """Return what of the options names a cluster, for users; "" if nothing does."""
    if options.backend in _OF_CLUSTERS:
        return f"the {options.backend} backend"
    return "Kubernetes" if isinstance(options.cloud, Kubernetes) else ""


def unkept(options: Options) -> str:
    """Return why the slice of a job of one way cannot be kept, by its options alone; "" if it may be. On this machine,
    if it is named, there is nothing to keep."""
    if where := cluster_of(options):
        return f"keep= is not possible on {where}: {PODS_END}"
    if options.backend != LOCAL and image_of(options):
        return f"keep= with container_image= is not possible: {CONTAINER_STAYS}"
    if options.backend != LOCAL and processes_of(options, slice_of(options)) > 1:
        return f"keep= with processes= is not possible: {AGENTS_APART}"
    return ""


def check_keep(given: Any) -> float | None:
    """Return the seconds for which slices are kept after a job; None for a job that neither leaves nor takes one.

    Raises:
        UsageError: It is no such time.
    """
    if isinstance(given, bool):
        raise UsageError(f"keep is {given!r}: give seconds, or a text such as '10m', or leave it out")
    if isinstance(given, int | float) and not given >= 0:
        raise UsageError(f"keep is {given!r}: it cannot be negative; leave it out for slices that end with their job")
    kept = settings.seconds("keep", given)
    if kept is not None and kept > LONGEST_KEEP:
        raise UsageError(
            f"keep is {given!r}: a slice is kept for {settings.duration(LONGEST_KEEP)} at most, since it costs money "
            "all the while"
        )
    return kept


def hosts_of(options: Options) -> int:
    """Return the number of hosts of all slices together."""
    slice_, cloud = slice_of(options), options.cloud
    machines_of = cloud.hosts if isinstance(cloud, Kubernetes | Compute) and cloud.hosts > 1 else slice_.hosts
    return machines_of * processes_of(options, slice_) * (cloud.num_slices if cloud is not None else 1)


def chips_of(options: Options) -> int:
    """Return the chips that shares count for a job of one way: 0 on a CPU, and in a cluster, whose queue decides."""
    slice_, cloud = slice_of(options), options.cloud
    if slice_.kind == "cpu" or cluster_of(options):
        return 0
    return slice_.chips * (cloud.hosts if isinstance(cloud, Compute) else 1) * (cloud.num_slices if cloud else 1)


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


def image_of(options: Options) -> str:
    """Return the container image of the job, or "". Keras Kinetic's own two words name no image here: hosts get locked
    packages.

    Raises:
        UsageError: No registry can have an image of this name.
    """
    image = options.container_image
    if not image or image in KINETIC_IMAGES:
        return ""
    if isinstance(image, str) and len(image) <= LONGEST_REFERENCE and _REFERENCE.fullmatch(image):
        return image
    near = image.strip().lower() if isinstance(image, str) else ""
    hint = f": did you mean {near!r}" if near != image and near in KINETIC_IMAGES else ""
    if not hint and near != image and _REFERENCE.fullmatch(near):
        hint = f": did you mean {near!r}? A repository is written in small letters, without spaces around it"
    raise UsageError(
        f"container_image is {image!r}, which no registry can have{hint or ''}. It is an image's reference, such as "
        "'us-docker.pkg.dev/my-project/images/train:7', or None for hosts with locked packages"
    )


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
        _check_slices(options, options.cloud.num_slices)
    if isinstance(options.cloud, Kubernetes):
        _check_pods(options, options.cloud)
    if isinstance(options.cloud, Compute):
        _check_vms(options, options.cloud)
    named = options.cloud.accelerator_type if isinstance(options.cloud, TpuVm) else ""
    if named and options.accelerator != DEFAULT_ACCELERATOR:
        raise ConflictingSettings(
            f"both accelerator={options.accelerator!r} and cloud=TpuVm(accelerator_type={named!r}) name the slice: "
            "keep one"
        )
    if isinstance(options.cloud, TpuVm | Compute) and options.zone and options.cloud.zones:
        given = f"cloud={type(options.cloud).__name__}(zones={list(options.cloud.zones)!r})"
        raise ConflictingSettings(f"both zone={options.zone!r} and {given} say where: keep one")
    if options.regions:
        _check_no_zones(options, options.regions)
    if isinstance(options.cloud, TpuVm | Compute) and options.cloud.reservation:
        _check_reservation(options, options.cloud)
    if isinstance(options.cloud, TpuVm | Compute | Kubernetes) and options.cloud.reservation and is_spot(options):
        raise ConflictingSettings(
            f"spot=True and the reservation {options.cloud.reservation!r} exclude each other: reserved hardware is "
            "never a spot slice; keep one"
        )


_OF_GPUS = re.compile(r"cuda|nvidia|nvcr\.io|rocm", re.IGNORECASE)
_OF_TPUS = re.compile(r"(?<![a-z])(lib)?tpu(?![a-z])", re.IGNORECASE)


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
    given |= {said: image for said, image in images.items() if others.search(image) and not own.search(image)}
    other = "TPUs" if hardware == "GPUs" else "GPUs"
    instead = f"an accelerator with {other}" if alone else "it for the others alone, as in Choice('…', cloud=…)"
    for said, is_given in given.items():
        if is_given:
            raise ConflictingSettings(
                f"{said} is for {other}, and {slice_.name} has {hardware}: leave it out, or name {instead}"
            )


def _check_no_zones(options: Options, named: Sequence[str]) -> None:
    """Refuse zones beside regions, and a reservation that lies elsewhere."""
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


def _check_reservation(options: Options, cloud: TpuVm | Compute) -> None:
    """Refuse what names no reservation, and a place that is not the reservation's own."""
    given = f"cloud={type(cloud).__name__}(reservation={cloud.reservation!r})"
    named = reservation_of(cloud.reservation)
    if named is None:
        part = "a block of one is none: " if "/reservationBlocks/" in cloud.reservation else ""
        raise UsageError(
            f"{given} names no reservation: {part}write its name, projects/PROJECT/reservations/NAME for one that "
            "another project shares, or projects/PROJECT/zones/ZONE/reservations/NAME, which says where it is as well"
        )
    zones = (cloud.zones,) if isinstance(cloud.zones, str) else cloud.zones
    others = [zone for zone in (*zones, options.zone or "") if zone and zone != named.zone]
    if named.zone and others:
        said = f"zone={options.zone!r}" if options.zone else f"zones={list(zones)!r}"
        raise ConflictingSettings(
            f"both {given} and {said} say where: leave out the latter, as a reservation is of one zone"
        )


def is_spot(options: Options) -> bool:
    """Return True if spot capacity is asked for, by the option or behind the accelerator's name."""
    return options.spot or slice_of(options).spot


def way_of(options: Options) -> machines.Model:
    """Return how the hardware is bought by the options of one way."""
    flex_start = options.capacity == (machines.FLEX_START,) or bool(getattr(options.cloud, "flex_start", False))
    reservation = str(getattr(options.cloud, "reservation", ""))
    return machines.model_of(spot=is_spot(options), flex_start=flex_start, reservation=reservation)


def _check_slices(options: Options, slices: Any) -> None:
    if type(slices) is not int or not 1 <= slices <= MOST_SLICES:
        raise UsageError(f"num_slices is {slices!r}: it is a number of slices, from 1 to {MOST_SLICES}")
    one = slice_of(options)
    if slices > 1 and one.hosts * slices > MOST_HOSTS:
        raise UsageError(
            f"num_slices is {slices}, and so many slices of {one.name} have {one.hosts * slices} hosts: a job has "
            f"{MOST_HOSTS} at most, so choose {MOST_HOSTS // one.hosts} or less"
        )


def _check_pods(options: Options, cloud: Kubernetes) -> None:
    for name in ("clusters", "namespaces", "env_from", "image_pull_secrets", "tolerations"):
        several = getattr(cloud, name)
        if isinstance(several, str):
            raise UsageError(f"cloud=Kubernetes({name}={several!r}) is a list: write [{several!r}]")
    for name in ("clusters", "namespaces"):
        one, several = getattr(options, name[:-1]), getattr(cloud, name)
        if one and several:
            raise ConflictingSettings(
                f"both {name[:-1]}={one!r} and cloud=Kubernetes({name}={list(several)!r}) say where: keep one"
            )

    _check_cluster_names(cloud)
    if type(cloud.hosts) is not int or not 1 <= cloud.hosts <= MOST_HOSTS:
        raise UsageError(f"cloud=Kubernetes(hosts={cloud.hosts!r}): it is a number of nodes, from 1 to {MOST_HOSTS}")
    asked = slice_of(options)
    if cloud.hosts > 1 and not accelerators.may_be_on(asked, cloud.hosts):
        other = "; num_slices= joins several slices" if asked.kind == "tpu" else ""
        may = accelerators.otherwise(asked)
        also = f", or hosts={may.hosts} with {may.chips_per_host} chips each" if may is not None else ""
        raise UsageError(
            f"cloud=Kubernetes(hosts={cloud.hosts}) is for nodes with GPUs, and {asked.name} has {asked.crew()}{also}: "
            f"leave hosts out{other}"
        )
    given = {"spot=True": is_spot(options), f"reservation={cloud.reservation!r}": cloud.reservation}
    if cloud.flex_start and any(given.values()):
        other = next(name for name, value in given.items() if value)
        raise ConflictingSettings(f"flex_start=True and {other} name two kinds of capacity: keep one")
    if cloud.queued_provisioning and not cloud.flex_start:
        raise UsageError("queued_provisioning=True is a way of flex-start: add flex_start=True")


_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")
_SUBNETWORK = re.compile(r"(?:projects/[^/]+/)?regions/(?P<region>[^/]+)/subnetworks/[^/]+")
_NETWORK = re.compile(r"(?:^|/)global/networks/[^/]+$")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")  # of any resource of Compute Engine, and of a tag
_ACCOUNT = re.compile(r"[^@\s/]+@[^@\s/]+\.[^@\s/]+")
LEAST_DISK, LARGEST_DISK = 10, 65536  # GiB: of the images, and of any disk


def region_of_subnetwork(subnetwork: str) -> str:
    """Return the region of a subnetwork that is given by its path; "" for a name."""
    found = _SUBNETWORK.fullmatch(subnetwork)
    return found["region"] if found is not None else ""


def _check_vms(options: Options, cloud: Compute) -> None:
    for name in ("zones", "tags"):
        several = getattr(cloud, name)
        if isinstance(several, str):
            raise UsageError(f"cloud=Compute({name}={several!r}) is a list: write [{several!r}]")
    for zone in cloud.zones:
        if not _ZONE.fullmatch(zone):
            near = f"it is a region, so name zones of it, such as '{zone}-a'" if zone.count("-") == 1 else ""
            near = near or "zones have names such as 'us-central1-a', and `gcloud compute zones list` shows them"
            raise UsageError(f"cloud=Compute(zones=…) has {zone!r}, which is no zone: {near}")
    for tag in cloud.tags:
        if not _NAME.fullmatch(tag):
            raise UsageError(
                f"cloud=Compute(tags=…) has {tag!r}: a tag has small letters, digits and '-', begins with a letter, "
                "and is 63 letters long at most"
            )
    for name in ("image", "network", "subnetwork"):
        check_resource(f"cloud=Compute({name}=…)", getattr(cloud, name))
    check_account("cloud=Compute(service_account=…)", cloud.service_account)
    _check_machines(options, cloud)
    given = {"spot=True": is_spot(options), f"reservation={cloud.reservation!r}": cloud.reservation}
    if cloud.flex_start and any(given.values()):
        other = next(name for name, value in given.items() if value)
        raise ConflictingSettings(f"flex_start=True and {other} name two kinds of capacity: keep one")
    if cloud.reservation_bound and not cloud.reservation:
        raise UsageError("cloud=Compute(reservation_bound=True) names no reservation: add reservation='NAME'")
    several = f"hosts={cloud.hosts}" if cloud.hosts > 1 else f"num_slices={cloud.num_slices}"
    if cloud.flex_start and (cloud.hosts > 1 or cloud.num_slices > 1):
        each, one = ("VM", "host") if cloud.hosts > 1 else ("slice", "slice")
        raise ConflictingSettings(
            f"flex_start=True gives each {each} by itself, and the first of {several} would cost money while it waits "
            f"for the others, for hours if need be: take one {one}, spot=True or a reservation; or all at once "
            "from GKE, with Kubernetes(flex_start=True, queued_provisioning=True)"
        )
    if "/" in cloud.network and not _NETWORK.search(cloud.network):
        raise UsageError(
            f"cloud=Compute(network={cloud.network!r}) is neither a name nor a path: write "
            "projects/HOST/global/networks/NAME"
        )
    if "/" in cloud.subnetwork and not region_of_subnetwork(cloud.subnetwork):
        raise UsageError(
            f"cloud=Compute(subnetwork={cloud.subnetwork!r}) is neither a name nor a path: write "
            "projects/HOST/regions/REGION/subnetworks/NAME"
        )


_LONGEST_NAME = 63


def check_resource(option: str, given: str) -> None:
    """Refuse a name, or a path that ends in one, that nothing on Compute Engine can have.

    Args:
        option: Where it was declared, for the message.
        given: The name or the path; "" if there is none.

    Raises:
        UsageError: It can be no name.
    """
    name = given.rpartition("/")[2]
    if given and not _NAME.fullmatch(name):
        raise UsageError(
            f"{option} has {given!r}, which Compute Engine never accepts: such a name has small letters, digits and "
            "'-', begins with a letter, and is 63 letters long at most"
            + (f"; this one has {len(name)}" if len(name) > _LONGEST_NAME else "")
        )


def check_account(option: str, given: str) -> None:
    """Refuse what is no address of an account.

    Args:
        option: Where it was declared, for the message.
        given: The address; "" if there is none.

    Raises:
        UsageError: It is no address.
    """
    if given and given != "default" and not _ACCOUNT.fullmatch(given):
        raise UsageError(
            f"{option} has {given!r}, which is the address of no account: write it whole, as in "
            "NAME@PROJECT.iam.gserviceaccount.com"
        )


def _check_machines(options: Options, cloud: Compute) -> None:
    asked = slice_of(options)
    if type(cloud.hosts) is not int or not 1 <= cloud.hosts <= MOST_HOSTS:
        raise UsageError(f"cloud=Compute(hosts={cloud.hosts!r}): it is a number of VMs, from 1 to {MOST_HOSTS}")
    if cloud.hosts > 1 and asked.kind != "gpu":
        other = "; num_slices= joins several slices" if asked.kind == "tpu" else ""
        raise UsageError(
            f"cloud=Compute(hosts={cloud.hosts}) is for VMs with GPUs, and {asked.name} has {asked.crew()}: leave "
            f"hosts out{other}"
        )
    if cloud.num_slices != 1 and asked.kind != "tpu":
        raise UsageError(
            f"cloud=Compute(num_slices={cloud.num_slices!r}) joins slices of TPUs, and {asked.name} is none: hosts= "
            "joins VMs with GPUs"
        )
    _check_disk(asked, cloud)
    why = {"gpu": "NVIDIA's modules are not signed", "tpu7x": "the image for TPU7x refuses it"}
    told = why.get(asked.kind) or why.get(asked.generation)
    if cloud.secure_boot and not cloud.image and told:
        raise UsageError(
            f"cloud=Compute(secure_boot=True): {told}, so {asked.name} would not work: leave it out, or name an image "
            "of your own with image="
        )


def _check_disk(asked: accelerators.Slice, cloud: Compute) -> None:
    if type(cloud.disk_gib) is not int or (cloud.disk_gib and not LEAST_DISK <= cloud.disk_gib <= LARGEST_DISK):
        raise UsageError(
            f"cloud=Compute(disk_gib={cloud.disk_gib!r}): the image alone takes {LEAST_DISK} GiB, with the packages on "
            f"top, and no disk has more than {LARGEST_DISK}: give a whole number of GiB, or leave it out"
        )
    if not cloud.disk_type or not machines.serves(asked):
        return
    machine = machines.machine_of(asked)
    if cloud.disk_type not in machine.disk_types:
        raise UsageError(
            f"cloud=Compute(disk_type={cloud.disk_type!r}): {asked.name} ({machine.machine_type}) boots from "
            f"{' or '.join(machine.disk_types)}: name {'one of these' if machine.disk_types[1:] else 'that'}, or leave "
            f"it out for {machine.disk_types[0]}"
        )


def _check_cluster_names(cloud: Kubernetes) -> None:
    named = (
        ("namespaces", cloud.namespaces, cluster_names.NAMESPACE),
        ("queue", queues_of(cloud.queue), cluster_names.OF_QUEUE),
        ("priority_class", (cloud.priority_class,), cluster_names.OF_QUEUE),
        ("service_account", (cloud.service_account,), cluster_names.OBJECT),
        ("env_from", cloud.env_from, cluster_names.OBJECT),
        ("image_pull_secrets", cloud.image_pull_secrets, cluster_names.OBJECT),
    )
    for option, given, rule in named:
        for name in given:
            if name or option not in ("priority_class", "service_account"):  # "" is none
                cluster_names.check(f"cloud=Kubernetes({option}=…)", name, rule)
    for key, value in (cloud.node_selector or {}).items():
        cluster_names.check_label_key("cloud=Kubernetes(node_selector=…)", key)
        cluster_names.check("cloud=Kubernetes(node_selector=…)", value, cluster_names.LABEL_VALUE)


def _check_names(options: Options) -> None:
    for name in ("capture_env_vars", "first_party"):
        value = getattr(options, name)
        if isinstance(value, str) or not all(isinstance(entry, str) for entry in value or ()):
            raise UsageError(f"{name} is a list of names, such as [{str(value)!r}], not {value!r}")
    if options.on_conflict not in ON_CONFLICT:
        raise UsageError(f"on_conflict is {options.on_conflict!r}: it can be {' or '.join(map(repr, ON_CONFLICT))}")
    if options.key is not None and (not isinstance(options.key, str) or not options.key):
        raise UsageError(f"key is {options.key!r}: it is a text that names this job, such as 'ranker-2025-06-01'")


def slice_of(options: Options) -> accelerators.Slice:
    """Return the requested slice, by Kinetic's name or by Cloud TPU's.

    Raises:
        UnknownAccelerator: There is none. The message lists similar names.
    """
    if isinstance(options.cloud, TpuVm) and options.cloud.accelerator_type:
        return accelerators.from_accelerator_type(options.cloud.accelerator_type)
    first = ways(options)[0]
    assert isinstance(first.accelerator, str)
    return accelerators.parse(first.accelerator)


def not_on_cloud(slice_: accelerators.Slice) -> str:
    """Return why the cloud backend cannot have a slice and what works instead, or "" if it can.

    The same sentence for `plan`, a launch and an orchestrator's task.
    """
    if slice_.kind != "tpu":
        gpus = "GPU" if slice_.chips == 1 else "GPUs"
        where = "this machine's CPU" if slice_.kind == "cpu" else f"a machine that has the {gpus}"
        vms = "" if slice_.kind == "cpu" else f"on VMs with backend='{COMPUTE}', "
        return (
            f"{slice_.name} is no TPU, and the {TPU_VM} backend runs TPUs alone: name a TPU, such as v5e-8, or run it "
            f"{vms}on a cluster with backend='gke' or 'kubernetes', or on {where} with backend='local'"
        )
    if slice_.api == TPU_VM:
        return ""
    if any(known.api == TPU_VM for known in accelerators.catalogue() if known.generation == slice_.generation):
        return (
            f"{slice_.name} has no name in the Cloud TPU API: its largest {slice_.generation} slice is smaller. "
            "Choose a smaller one, or several with cloud=TpuVm(num_slices=…)"
        )
    return (
        f"{slice_.name} cannot be made by the {TPU_VM} backend: the Cloud TPU API stops at v6e. TPU7x comes as VMs "
        f"with backend='{COMPUTE}', and in more sizes with backend='gke' or 'kubernetes'. Use v6e or v5p here "
        "(see `kinetic-orchestration accelerators`)"
    )


def processes_of(options: Options, slice_: accelerators.Slice) -> int:
    """Return the number of processes that run the function on one machine: 1, or one for each of its GPUs.

    Raises:
        UsageError: The slice cannot be divided like that.
    """
    asked = options.processes
    if asked is None or (asked == 1 and not isinstance(asked, bool)):
        return 1
    if slice_.kind == "tpu":
        raise UsageError(
            f"processes={asked!r} is for GPUs, and a host of {slice_.name} is one process with all its chips: leave "
            "processes out"
        )
    if asked != EACH_GPU and (asked != slice_.chips or isinstance(asked, bool)):
        raise UsageError(
            f"processes is {asked!r}: it is {EACH_GPU!r}, one process for each GPU ({slice_.chips} for {slice_.name}), "
            "or None, one process for all of them"
        )
    return slice_.chips


def options_from(given: Mapping[str, Any]) -> Options:
    """Return the options with these names and values.

    Raises:
        UsageError: There is no option of a name. The message has the most similar one.
    """
    for name in given:
        if name not in OPTION_NAMES:
            import difflib

            near = difflib.get_close_matches(name, OPTION_NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(OPTION_NAMES))}"
            raise UsageError(f"there is no option {name!r}: {hint}")
    return Options(**given)


def check_function(function: Any) -> Callable[..., Any]:
    """Return the plain function to run.

    Raises:
        NotAFunction: The object cannot run as a job. The message shows the correction.
    """
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        raise NotAFunction(
            f"run() got a {kind} object: its order with @{kind} is wrong. Put it below:\n"
            f"    @{kind}\n    @kinetic.run(...)\n    def train(...): ..."
        )
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise NotAFunction(
            "run() got a function wrapped by functools.lru_cache or cache, whose cache cannot travel and would be "
            "empty in the job's process anyway. Decorate the function below the cache, or drop the cache."
        )
    if _is_generator(function):
        raise NotAFunction(
            f"{name_of(function)} is a generator, which cannot give its values from another machine: return them, as "
            "list(...), and report on the way with kinetic.current().log_metrics(...)"
        )
    if not callable(function):
        raise NotAFunction(f"run() decorates functions and other callables, not {type(function).__name__}")
    plain = getattr(function, "__kinetic_function__", None)
    if plain is None and type(function).__module__.split(".")[0] == "kinetic":
        plain = _inside_kinetic(function)
    found: Callable[..., Any] = plain if plain is not None else function
    return found


def _is_generator(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _inside_kinetic(function: Any) -> Callable[..., Any] | None:
    """The plain function inside one that Keras Kinetic itself decorated, or a method bound to its object."""
    if hasattr(function, "_func"):
        plain: Callable[..., Any] = function._func
        return plain
    if hasattr(function, "_c") and hasattr(function, "_instance"):
        return functools.partial(function._c._func, function._instance)
    return None


def check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if the function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # what a wrapper takes is what counts
    except (TypeError, ValueError):
        return  # a builtin without a signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name_of(function)}() {error}") from None


def name_of(function: Any) -> str:
    """Return the name of a function, in characters that a job's name can have."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", None) or type(target).__name__
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "job"


def refuse(option: str, backend: str, why: str) -> Unsupported:
    """Return the error for an option that a backend does not have."""
    return Unsupported(f"{option} is not possible on the {backend} backend: {why}")
