"""Refuses what a backend cannot have of a job's options, and names what it ignores. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration.settings import Settings, duration
from kinetic_orchestration.plan.declare.checks.clouds import check_account, check_resource
from kinetic_orchestration.plan.declare.checks.held import PODS_END, QUEUE_DECIDES, unkept
from kinetic_orchestration.plan.declare.cloud import OF_ANY_BACKEND, Compute
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import COMPUTE, Options, image_of, processes_of, refuse, slice_of
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.cost import check_usd
from kinetic_orchestration.plan.values import Traits

LONGEST_RUN = 119 * 86400.0  # of a VM of Compute Engine, whose own limit of 120 days counts its boot and its end, too


def ignored(options: Options, traits: Traits) -> Iterator[str]:
    """Name what was asked for and means nothing on the backend."""
    for name in traits.ignored:
        if name == "spot" and options.capacity:  # which has said so
            continue
        if name == "project" and options.secrets:  # they are read there for every backend
            continue
        if image_of(options) if name == "container_image" else getattr(options, name):
            yield f"{name}="
    if traits.share_machine and options.race > 1:  # it is one place
        yield "race="
    cloud = [f"{name}=…" for name in emulation.named_cloud_options(options) if name not in OF_ANY_BACKEND]
    if cloud and not isinstance(options.cloud, traits.options or ()):
        yield f"cloud={type(options.cloud).__name__}({', '.join(cloud)})"


def check_shared(options: Options, backend: str) -> None:
    if options.cloud is not None and options.cloud.num_slices != 1 and slice_of(options).kind != "tpu":
        given = f"cloud={type(options.cloud).__name__}(num_slices=…)"
        raise refuse(given, backend, "only slices of TPUs are joined; name a TPU, or leave num_slices out")
    if options.limits.cost is not None:
        check_usd(options.limits.cost)


def check_remote(options: Options, settings: Settings, backend: str, traits: Traits) -> None:
    scheme, separator, _ = settings.store.partition("://")
    if traits.stores and (not separator or scheme not in traits.stores):
        lies = "is none that they reach" if separator else "is a folder of this machine"
        example = "a bucket with store= or KINETIC_STORE, such as gs://my-bucket/kinetic"
        if "gs" not in traits.stores:
            example = f"one with store= or KINETIC_STORE ({', '.join(f'{name}://…' for name in traits.stores)})"
        raise UsageError(
            f"the {backend} backend needs a store that its hosts can reach, and {settings.store} {lies}: name {example}"
        )
    if traits.in_project and not settings.project:
        raise UsageError(
            f"the {backend} backend needs a Google Cloud project: name it with project= or KINETIC_PROJECT"
        )
    if processes_of(options, slice_of(options)) > 1:
        _check_processes(options, backend, traits)
    if options.race > 1 and not traits.races:
        raise refuse(f"race={options.race}", backend, QUEUE_DECIDES)
    if options.debug and not traits.entered:
        raise refuse("debug=True", backend, "an editor cannot reach its hosts; debug on the local backend")
    if options.keep is not None:
        _check_keep(options, backend, traits)


def _check_keep(options: Options, backend: str, traits: Traits) -> None:
    """Refuse to keep slices that cannot serve another job."""
    if traits.keeps_ended:
        raise refuse("keep=", backend, PODS_END)
    if not traits.may_be_kept:
        raise refuse("keep=", backend, "its hosts cannot serve a second job; leave keep out")
    if why := unkept(options):
        raise Unsupported(why)


def _check_processes(options: Options, backend: str, traits: Traits) -> None:
    """Refuse several processes on a machine, unless it is a VM of Compute Engine that runs no container."""
    if traits.options is not Compute:
        raise refuse(
            "processes=",
            backend,
            f"a host of it is one process; it is for GPUs of this machine, and of VMs with backend='{COMPUTE}'",
        )
    if image_of(options):
        raise refuse(
            "processes= with container_image=",
            backend,
            "a container is one process that sees all GPUs of its VM. Leave container_image out, and the processes get "
            "locked packages; or leave processes out",
        )


def check_vms(options: Options, settings: Settings, limits: Limits) -> None:
    """Refuse what no VM of Compute Engine can be; the hardware itself is checked by `emulation`."""
    cloud = options.cloud if isinstance(options.cloud, Compute) else Compute()
    check_resource("KINETIC_NETWORK", settings.network)
    check_resource("KINETIC_SUBNETWORK", settings.subnetwork)
    check_account("KINETIC_SERVICE_ACCOUNT", settings.service_account)
    run = limits.run
    assert isinstance(run, float)
    if cloud.flex_start:
        machines.check_flex_start(run, duration(run))
    if run > LONGEST_RUN:
        raise UsageError(
            f"limits.run is {duration(run)}, and Compute Engine ends a VM after 120 days at most: choose "
            f"{duration(LONGEST_RUN)} or less"
        )
    if image_of(options) and (not cloud.image or machines.has_docker(cloud.image) is False):
        raise refuse(
            "container_image=",
            COMPUTE,
            f"{cloud.image or 'its default image'} has no docker. Leave it out, and the hosts get locked packages; or "
            + _image_with_docker(options),
        )


def _image_with_docker(options: Options) -> str:
    if slice_of(options).kind == "tpu":
        return "name an image of your own with cloud=Compute(image=…): one for these TPUs, with docker added"
    return (
        "name an image that has docker and NVIDIA's container toolkit, with "
        f"cloud=Compute(image='{machines.WITH_DOCKER}') or one of your own"
    )
