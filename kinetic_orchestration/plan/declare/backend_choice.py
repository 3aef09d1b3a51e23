"""The backend that a call means by its option, its cluster and the settings. Pure."""

from __future__ import annotations

from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import Options

KINETIC_BACKENDS = ("gke", "pathways")
GKE, KUBERNETES = "gke", "kubernetes"


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
