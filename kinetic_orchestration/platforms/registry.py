"""Opens a backend by its name and a store by its address. The only module that names every platform of this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import plugins, store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.backend_choice import may_run_on
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.several import Several
from kinetic_orchestration.platforms.shared.cluster_access import Clusters
from kinetic_orchestration.platforms.store import Store


def open_backend(name: str, settings: Settings) -> Backend:
    """Returns the backend of that name, or of several names with + between them. Raises UsageError if there is none."""
    if "+" in name:
        return Several({one: open_backend(one, settings) for one in name.split("+")})
    opener = BACKENDS.get(name)
    if opener is not None:
        return opener(settings)
    platform = plugins.find(name)
    if platform is None:
        raise UsageError(f"there is no backend {name!r}")
    return platform.open_backend(settings)


def others(backend: Backend, settings: Settings) -> list[Backend]:
    """Returns the other backends on which jobs of the same settings may run, where no setting names one."""
    kinds, known = may_run_on(settings), backend.kind.split("+")
    left = [name for name in kinds if name not in known]
    return [open_backend(name, settings) for name in left] if len(left) < len(kinds) else []


def open_clusters(settings: Settings) -> Clusters:
    """Returns the clusters that these settings name: those of GKE with the backend `gke`, else the kubeconfig's."""
    if settings.backend == "gke":
        from kinetic_orchestration.platforms.google.rest.gke import GkeClusters

        return GkeClusters(settings)
    from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters

    return KubeconfigClusters()


def open_store(url: str | os.PathLike[str], deployment: str) -> Store:
    """Returns the store of one deployment at an address: a folder, `file://…`, `gs://bucket/prefix` or
    `s3://bucket/prefix`.

    Raises UsageError if no platform keeps stores at such addresses.
    """
    address = store_address.resolve(os.fspath(url))
    scheme, separator, _ = address.partition("://")
    opener = STORES.get(scheme.lower() if separator else "")
    if opener is None:
        raise UsageError(
            f"No store can be opened at {address!r}: give a folder, a file:// address, gs://bucket/prefix or "
            "s3://bucket/prefix with store= or KINETIC_STORE."
        )
    return opener(address, deployment)


def _local(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.google.rest import secret_manager
    from kinetic_orchestration.platforms.local.backend import LocalBackend, SecretSource

    secrets = SecretSource(
        partial(secret_manager.check_readable, settings), partial(secret_manager.read_values, settings)
    )
    return LocalBackend(settings.home, settings.max_hosts, settings.store, settings.deployment, secrets)


def _tpu_vm(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.google.tpu.backend import TpuVmBackend

    return TpuVmBackend(settings)


def _compute(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend

    return ComputeBackend(settings)


def _kubernetes(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(settings, KubeconfigClusters())


def _gke(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.google.rest.gke import GkeClusters
    from kinetic_orchestration.platforms.google.rest.kept_secrets import KeptSecrets
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(settings, GkeClusters(settings), KeptSecrets(settings), "gke")


def _slurm(settings: Settings) -> Backend:
    from kinetic_orchestration.platforms.google.rest import secret_manager
    from kinetic_orchestration.platforms.slurm.backend import SecretSource, SlurmBackend

    secrets = SecretSource(
        partial(secret_manager.check_readable, settings), partial(secret_manager.read_values, settings)
    )
    return SlurmBackend(settings, secrets)


BACKENDS: dict[str, Callable[[Settings], Backend]] = {
    "local": _local,
    "tpu-vm": _tpu_vm,
    "compute": _compute,
    "gke": _gke,
    "kubernetes": _kubernetes,
    "slurm": _slurm,
}


def _folder(address: str, deployment: str) -> Store:
    from kinetic_orchestration.platforms.local.store import open_local

    return open_local(address, deployment)


def _bucket(address: str, deployment: str) -> Store:
    from kinetic_orchestration.platforms.google.storage.store import open_gcs

    return open_gcs(address, deployment)


def _s3(address: str, deployment: str) -> Store:
    from kinetic_orchestration.platforms.s3.store import open_s3

    return open_s3(address, deployment)


STORES: dict[str, Callable[[str, str], Store]] = {"": _folder, "gs": _bucket, "s3": _s3}
