"""The declaration of a job: the options as the user gave them, and what they say by themselves. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.declare.choices import Choice, ways
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, Slurm, TpuVm
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.hardware import accelerators

DEFAULT_ACCELERATOR = "tpu-v5e-1"
LOCAL = "local"
TPU_VM = "tpu-vm"
COMPUTE = "compute"
EACH_GPU = "gpu"
KINETIC_IMAGES = ("bundled", "prebuilt")  # as container_image, Keras Kinetic's words for images that it builds


# Patterns are compiled when they are first asked. As github.com/distribution/reference has it:
# [registry[:port]/]path[:tag][@digest].
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = (
    rf"(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
LONGEST_REFERENCE = 512
_OF_CLUSTERS = ("kubernetes", "gke", "pathways")


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


class Need(NamedTuple):
    """A module that hosts have to have though no code of a job imports it, as the server of a model is.

    Attributes:
        module: Its name.
        advice: The requirement that brings it, for users.
        others: Distributions that have it, besides those whose names begin like it.
    """

    module: str
    advice: str
    others: tuple[str, ...] = ()


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
    defaults: Mapping[str, str] = field(default_factory=dict)  # what of FOR_THOSE_THAT_CAN is only meant so, and whose
    output: str = ""  # folder or address where its program keeps its results: it has to outlive the hosts
    is_priced: bool = False  # its hosts are told what they cost
    needs: tuple[Need, ...] = ()


OPTION_NAMES = frozenset(entry.name for entry in fields(Options))


def zones_in(slice_: accelerators.Slice, named: Sequence[str]) -> tuple[str, ...]:
    """Return the zones to try in these regions, in their order: those that are published for the hardware, or all, if
    none is published for it."""
    from kinetic_orchestration.plan.hardware import regions  # which few jobs name

    known = accelerators.zones(slice_)
    if not known:
        return tuple(zone for region in named for zone in regions.zones_of(region))
    return tuple(zone for region in named for zone in known if regions.region_of(zone) == region)


def cluster_of(options: Options) -> str:
    """Return what of the options names a cluster, for users; "" if nothing does."""
    if options.backend in _OF_CLUSTERS:
        return f"the {options.backend} backend"
    return "Kubernetes" if isinstance(options.cloud, Kubernetes) else ""


def hosts_of(options: Options) -> int:
    """Return the number of hosts of all slices together."""
    slice_, cloud = slice_of(options), options.cloud
    machines_of = cloud.hosts if isinstance(cloud, Kubernetes | Compute | Slurm) and cloud.hosts > 1 else slice_.hosts
    return machines_of * processes_of(options, slice_) * (cloud.num_slices if cloud is not None else 1)


def chips_of(options: Options) -> int:
    """Return the chips that shares count for a job of one way: 0 on a CPU, and in a cluster, whose queue decides."""
    slice_, cloud = slice_of(options), options.cloud
    if slice_.kind == "cpu" or cluster_of(options):
        return 0
    return slice_.chips * (cloud.hosts if isinstance(cloud, Compute) else 1) * (cloud.num_slices if cloud else 1)


def image_of(options: Options) -> str:
    """Return the container image of the job, or "". Keras Kinetic's own two words name no image here: hosts get locked
    packages.

    Raises:
        UsageError: No registry can have an image of this name.
    """
    image = options.container_image
    if not image or image in KINETIC_IMAGES:
        return ""
    if isinstance(image, str) and len(image) <= LONGEST_REFERENCE and re.fullmatch(_REFERENCE, image):
        return image
    near = image.strip().lower() if isinstance(image, str) else ""
    hint = f": did you mean {near!r}" if near != image and near in KINETIC_IMAGES else ""
    if not hint and near != image and re.fullmatch(_REFERENCE, near):
        hint = f": did you mean {near!r}? A repository is written in small letters, without spaces around it"
    raise UsageError(
        f"container_image is {image!r}, which no registry can have{hint or ''}. It is an image's reference, such as "
        "'us-docker.pkg.dev/my-project/images/train:7', or None for hosts with locked packages"
    )


def is_spot(options: Options) -> bool:
    """Return True if spot capacity is asked for, by the option or behind the accelerator's name."""
    return options.spot or slice_of(options).spot


def way_of(options: Options) -> accelerators.Way:
    """Return how the hardware is bought by the options of one way."""
    flex_start = options.capacity == (accelerators.FLEX_START,) or bool(getattr(options.cloud, "flex_start", False))
    reservation = str(getattr(options.cloud, "reservation", ""))
    return accelerators.way_of(spot=is_spot(options), flex_start=flex_start, reservation=reservation)


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


def refuse(option: str, backend: str, why: str) -> Unsupported:
    """Return the error for an option that a backend does not have."""
    return Unsupported(f"{option} is not possible on the {backend} backend: {why}")
