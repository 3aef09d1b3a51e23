"""The backend that a call means by its option, its cluster and the settings, and why. Pure.

named by the call ▶ named by the settings ▶ this machine, without project and bucket ▶ the rule, by the hardware
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kinetic_orchestration.errors import ConflictingSettings, Unsupported
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings, duration, seconds
from kinetic_orchestration.plan.declare.choices import naming, told, ways
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, Slurm, TpuVm, as_compute
from kinetic_orchestration.plan.declare.spec import COMPUTE, LOCAL, TPU_VM, Options, not_on_cloud, slice_of, way_of
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice

KINETIC_BACKENDS = ("gke", "pathways")
GKE, KUBERNETES, SLURM = "gke", "kubernetes", "slurm"


class Choice(NamedTuple):
    """A backend, and why it is that one.

    Attributes:
        backend: Its name.
        reason: The reason for users; "" if it was named.
    """

    backend: str
    reason: str = ""


def chosen(options: Options, settings: Settings) -> Choice:
    """Return the backend of a call."""
    asked = asked_backend(options, settings)
    if asked is not None:
        return Choice(asked)
    return by_rule(options, settings) if leaves_open(settings) else Choice(settings.backend)


def leaves_open(settings: Settings) -> bool:
    """Return True if jobs run on Google Cloud and no setting names the backend, so that the rule chooses one."""
    return settings.backend != LOCAL and settings.sources.get("backend", "default") == "default"


def may_run_on(settings: Settings) -> tuple[str, ...]:
    """Return the backends on which jobs of calls that name none run with these settings."""
    if not leaves_open(settings):
        return (settings.backend,)
    return (TPU_VM, COMPUTE, *((GKE,) if settings.cluster else ()))


def by_rule(options: Options, settings: Settings) -> Choice:
    """Return the backend on Google Cloud of a call that names none, nor do its settings."""
    options = ways(options)[0]
    cloud, found = options.cloud, by_hardware(slice_of(options), way_of(options))
    if isinstance(cloud, TpuVm) and found.backend == COMPUTE and as_compute(cloud) is not None:
        return found
    if isinstance(cloud, TpuVm | Compute):
        return Choice(TPU_VM if isinstance(cloud, TpuVm) else COMPUTE, f"cloud={type(cloud).__name__}(…) is given")
    if cluster := settings.cluster or ", ".join(getattr(cloud, "clusters", ())):
        return Choice(GKE, f"the cluster {cluster} is named")
    return found


def fitting(options: Options, backend: str) -> Options:
    """Return the options of one way with those of `cloud=` in the class of the backend's, if they mean the same there,
    and with flex-start among them, if that is the way."""
    given: CloudOptions | None = as_compute(options.cloud) if backend == COMPUTE else options.cloud
    if options.capacity == (accelerators.FLEX_START,) and backend in _WITH_FLEX_START:
        kind = _WITH_FLEX_START[backend]
        given = kind() if given is None else given
        given = replace(given, flex_start=True) if isinstance(given, kind) else given
    return options if given is None else replace(options, cloud=given)


_WITH_FLEX_START: dict[str, type[Compute | Kubernetes]] = {COMPUTE: Compute, GKE: Kubernetes}
_WITH_FLEX_START[KUBERNETES] = Kubernetes


def by_hardware(slice_: Slice, way: accelerators.Way = accelerators.ON_DEMAND) -> Choice:
    """Return the backend on Google Cloud that has a slice without a cluster, for the way in which it is bought."""
    from kinetic_orchestration.plan.hardware import machines  # whose tables no declaration needs

    if slice_.kind == "gpu" or not _of_cloud_tpu(slice_):
        what = "GPUs have" if slice_.kind == "gpu" else "TPU7x has"
        return Choice(COMPUTE, f"{what} no Cloud TPU API; backend='gke' with a cluster also serves them")
    if way == accelerators.FLEX_START and machines.serves(slice_):
        return Choice(COMPUTE, "the Cloud TPU API has no flex-start; backend='gke' with a cluster also has it")
    also = "; backend='compute' also serves it" if machines.serves(slice_) else ""
    return Choice(TPU_VM, f"{slice_.generation} has the Cloud TPU API{also}")


def _of_cloud_tpu(slice_: Slice) -> bool:
    return slice_.kind == "cpu" or bool(slice_.runtime_version)  # that backend says why a CPU is none


def asked_backend(options: Options, settings: Settings) -> str | None:
    """Return the backend that a call's options mean; None to leave it to the settings."""
    has_cluster = bool(settings.cluster or isinstance(options.cloud, Kubernetes))
    return named_backend(options.backend, settings, has_cluster=has_cluster)


def named_backend(asked: str | None, settings: Settings, *, has_cluster: bool) -> str | None:
    """Return the backend that a name means; None to leave it to the settings.

    Keras Kinetic's words mean GKE where all is named that it takes, and any cluster where the settings name one. Its
    programs run without that, too.
    """
    if asked not in KINETIC_BACKENDS:
        return asked
    if asked != GKE and settings.backend == KUBERNETES:
        return None
    in_bucket = store_address.bucket_path(settings.store) is not None
    return GKE if in_bucket and settings.project and has_cluster else None


# ---- what is refused while it is declared ------------------------------------------------------------------------

_OPTIONS_OF: dict[str, type[CloudOptions]] = {TPU_VM: TpuVm, COMPUTE: Compute, KUBERNETES: Kubernetes}
_OPTIONS_OF[SLURM] = Slurm


def check_backend(options: Options, *, bought_later: bool = False) -> Options:
    """Return the options if the backend that they name can have each choice, and one can have all of them.

    Of options that name none the settings decide, when the job is planned; so they do where a cluster is named, which
    may be a word of Keras Kinetic.

    Args:
        options: Those of a job.
        bought_later: A resource, a connection or a template may still say how the hardware is bought, unless they do.

    Raises:
        UsageError: It lacks a choice, or choices exclude each other.
    """
    found = ways(options)
    for one in found:
        with naming(told(one), found):
            _check_class(one)
            if slice_of(one).kind == "cpu":  # which stands for an accelerator that is not known yet
                continue
            if (why := refusal_of(one.backend or "", one)) and not (bought_later and _may_be_bought(one)):
                raise Unsupported(why)
            _check_flex_start(one, alone=len(found) == 1)
    if options.backend is None:
        _check_clouds(found)
    return options


def _may_be_bought(options: Options) -> bool:
    """Return True if the options of one way do not say how the hardware is bought, and there is a way."""
    from kinetic_orchestration.plan.hardware import machines  # whose tables few declarations need

    is_open = options.capacity is None and way_of(options) == accelerators.ON_DEMAND
    return is_open and options.backend == COMPUTE and machines.serves(slice_of(options))


def refusal_of(backend: str, options: Options) -> str:
    """Return why a backend of VMs cannot have the slice in the way that is asked for; "" if it can, or is another."""
    slice_ = slice_of(options)
    if backend == TPU_VM:
        return not_on_cloud(slice_) or _no_flex_start(options)
    if backend != COMPUTE:
        return ""
    from kinetic_orchestration.plan.hardware import machines  # whose tables few declarations need

    return machines.refusal(slice_, way_of(options))


def _no_flex_start(options: Options) -> str:
    """Return why the Cloud TPU API cannot have a slice by flex-start; "" for another way."""
    slice_ = slice_of(options)
    if way_of(options) != accelerators.FLEX_START:
        return ""
    from kinetic_orchestration.plan.hardware import machines  # whose tables few declarations need

    vms = f"VMs with backend='{COMPUTE}' do, and a cluster" if machines.serves(slice_) else "a cluster does"
    return (
        f"{slice_.name} does not come by flex-start on the {TPU_VM} backend, as the Cloud TPU API has none: {vms} with "
        f"backend='gke'. Or leave 'flex-start' out of capacity=; in a list, Choice({slice_.name!r}, capacity=[…]) has "
        "ways of its own"
    )


def _check_class(options: Options) -> None:
    """Refuse options of another kind of cloud than that of the backend which is named beside them."""
    backend = options.backend or ""
    wanted, given = _OPTIONS_OF.get(backend), fitting(options, backend).cloud
    if wanted is None or given is None or isinstance(given, wanted):
        return
    whose = " and ".join((GKE, KUBERNETES) if isinstance(given, Kubernetes) else _named_of(type(given)))
    raise ConflictingSettings(
        f"cloud={type(given).__name__}(…) has options of {whose}, and backend={backend!r} is named: leave one of them "
        "out"
    )


def _named_of(kind: type[CloudOptions]) -> tuple[str, ...]:
    return tuple(name for name, options in _OPTIONS_OF.items() if options is kind)


def _check_flex_start(options: Options, *, alone: bool) -> None:
    """Refuse a run that flex-start does not give a VM. Beside other ways a longer one is cut, as `planner` says."""
    if options.backend != COMPUTE or way_of(options) != accelerators.FLEX_START:
        return
    from kinetic_orchestration.plan.hardware import machines  # whose tables few declarations need

    run = seconds("limits.run", options.limits.run)
    longest = machines.FLEX_START_RUN[1] - machines.FLEX_START_SPARE
    if run is not None and (alone or run <= longest):
        machines.check_flex_start(run, duration(run))


def _check_clouds(found: Sequence[Options]) -> None:
    """Refuse choices with options of a cluster beside others with options of VMs: no job is on both."""
    kinds = dict.fromkeys(type(one.cloud).__name__ for one in found if one.cloud is not None)
    others = [f"with cloud={kind}(…)" for kind in kinds if kind != Kubernetes.__name__]
    if len(others) == len(kinds) or not others:
        return
    raise ConflictingSettings(
        f"choices with cloud={Kubernetes.__name__}(…) and {' and '.join(others)} cannot be chosen together: leave one "
        "kind out, or make two jobs of them"
    )
