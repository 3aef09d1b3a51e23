"""The backend that a call means by its option, its cluster and the settings, and why. Pure.

named by the call ▶ named by the settings ▶ this machine, without project and bucket ▶ the rule, by the hardware
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, TpuVm, as_compute
from kinetic_orchestration.plan.declare.spec import COMPUTE, LOCAL, TPU_VM, Options, slice_of, way_of
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.accelerators import Slice

KINETIC_BACKENDS = ("gke", "pathways")
GKE, KUBERNETES = "gke", "kubernetes"


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
    if options.capacity == (machines.FLEX_START,) and backend in _WITH_FLEX_START:
        kind = _WITH_FLEX_START[backend]
        given = kind() if given is None else given
        given = replace(given, flex_start=True) if isinstance(given, kind) else given
    return options if given is None else replace(options, cloud=given)


_WITH_FLEX_START: dict[str, type[Compute | Kubernetes]] = {COMPUTE: Compute, GKE: Kubernetes}
_WITH_FLEX_START[KUBERNETES] = Kubernetes


def by_hardware(slice_: Slice, way: machines.Model = machines.ON_DEMAND) -> Choice:
    """Return the backend on Google Cloud that has a slice without a cluster, for the way in which it is bought."""
    if slice_.kind == "gpu" or not _of_cloud_tpu(slice_):
        what = "GPUs have" if slice_.kind == "gpu" else "TPU7x has"
        return Choice(COMPUTE, f"{what} no Cloud TPU API; backend='gke' with a cluster also serves them")
    if way == machines.FLEX_START and machines.serves(slice_):
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
