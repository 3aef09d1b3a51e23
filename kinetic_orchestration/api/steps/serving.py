"""Hands a model over to serving: `deploy` and what it returns.

It opens the cluster of a declaration and says what happens. How is decided in `models.serving`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, overload

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.serving import admission, manifests, smoke
from kinetic_orchestration.models.serving.declaration import Located, Serving, SmokeTest, model_of
from kinetic_orchestration.models.serving.rollout import Done, Rollout
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.registry import open_clusters
from kinetic_orchestration.protocol.system import escaping

__all__ = ["Deployed", "Serving", "SmokeTest", "deploy", "deployed"]


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model server that answers.

    Attributes:
        serving: The declaration by which it was deployed or found, with the port of the set that serves.
        cluster: Its cluster.
        revision: The number of its set of objects, which grows by each deployment.
        previous: The number of the set before it; 0 if there was none.
        service: The Service that answers, "" if KServe names none.
        proxy_path: Path of the API server that leads to it, for `kubectl get --raw` and other clients of the API.
        smoke: What the smoke test found; "" if none was made.
    """

    serving: Serving
    cluster: str
    revision: int
    previous: int
    service: str
    proxy_path: str
    smoke: str = ""

    @property
    def url(self) -> str:
        """The address of the OpenAI-compatible API for pods of the cluster; "" if KServe names no Service."""
        scheme = "https" if self.serving.kind == "llm_inference_service" else "http"
        where = f"{self.service}.{self.serving.namespace}.svc:{self.serving.port}"
        return f"{scheme}://{where}/v1" if self.service else ""

    def rollback(self, *, force: bool = False) -> Deployed:
        """Apply the set before the one that serves now again, all of it, and remove what it did not have.

        If a deployment was left unfinished, the set that served before it is applied again. Returns once it serves.

        Args:
            force: Take fields that others have changed meanwhile.

        Returns:
            The earlier set, by its own number.

        Raises:
            UsageError: There is no set before it.
            DeploymentBusy: Another client deploys now.
            DeploymentFailed: It does not serve. It stays applied.
        """
        with _opened(self.serving, self.cluster) as (api, cluster):
            return _told(self.serving, cluster, Rollout(api, self.serving, _say, force=force).rollback())


@overload
def deploy(
    model: str | Located, serving: Serving, *, dry_run: Literal[False] = False, force: bool = False
) -> Deployed: ...
@overload
def deploy(model: str | Located, serving: Serving, *, dry_run: Literal[True], force: bool = False) -> str: ...
def deploy(model: str | Located, serving: Serving, *, dry_run: bool = False, force: bool = False) -> Deployed | str:
    """Have a model served on Kubernetes, and return once it answers.

    All objects are applied as one set (server-side apply), awaited and asked a few questions. If any of it fails, the
    set before is applied again, and what it did not have is removed. What was applied is recorded in the namespace, so
    that it can be put back from anywhere, and so that a deployment whose client was killed is finished by the next one.

    Args:
        model: The model's address (gs://, s3://, hf://, pvc://), or what has one as `uri`, such as a promoted model.
        serving: The server.
        dry_run: Return the manifests as YAML. Nothing is sent.
        force: Take fields of the objects that others have changed; without it they are named and nothing changes.

    Returns:
        The server, or the manifests.

    Raises:
        UsageError: The model or the server is declared in a way that cannot be.
        ManifestRefused: The cluster refuses a manifest, or has no such kind. Nothing was changed.
        DeploymentBusy: Another client deploys this server now.
        DeploymentFailed: It does not serve: no accelerator, a server that ends, other answers than expected. The set
            before is applied again.
        CredentialsError: There is no access to the cluster.
    """
    if not isinstance(serving, Serving):
        raise UsageError(f"deploy takes a Serving(…) as its second argument, not {serving!r}")
    found = model_of(model)
    if dry_run:
        return manifests.shown(manifests.render(serving, found, _named(serving)))
    with _opened(serving, _named(serving)) as (api, cluster):
        objects = manifests.render(serving, found, cluster, has_sleep=admission.has_sleep(api))
        return _told(serving, cluster, Rollout(api, serving, _say, force=force).deploy(objects, found.uri))


def deployed(serving: Serving) -> Deployed:
    """Return what serves now under the name of a declaration, for its rollback from another process.

    Args:
        serving: The server. Its name, namespace and cluster count.

    Raises:
        UsageError: Nothing was deployed under this name.
        CredentialsError: There is no access to the cluster.
    """
    with _opened(serving, _named(serving)) as (api, cluster):
        found = Rollout(api, serving, _say).serves()
        if found is None:
            raise UsageError(f"nothing was deployed as {serving.name} in {serving.namespace} of {cluster}")
        return _told(serving, cluster, found)


def _told(serving: Serving, cluster: str, done: Done) -> Deployed:
    path = smoke.proxy_path(serving.namespace, done.service, done.port, tls=done.tls) if done.service else ""
    serving = serving if done.port == serving.port else replace(serving, port=done.port)
    return Deployed(serving, cluster, done.revision, done.previous, done.service, path, done.says)


def _named(serving: Serving) -> str:
    """Return the cluster that a declaration or the settings name; "" for the current one."""
    own = serving.cloud.clusters if serving.cloud is not None else ()
    return serving.cluster or next(iter(own), "") or configuration.load(None).cluster


@contextmanager
def _opened(serving: Serving, cluster: str) -> Iterator[tuple[Api, str]]:
    """Open a cluster, within the block. Yields its API, and its name as this machine knows it."""
    clusters = open_clusters(configuration.load(None))
    name, _, _ = clusters.place(cluster, serving.namespace).rpartition("/")
    with Api(clusters.access(name)) as api:
        yield api, name


def _say(text: str) -> None:
    print(escaping.text(f"kinetic: {text}"), file=sys.stderr, flush=True)
