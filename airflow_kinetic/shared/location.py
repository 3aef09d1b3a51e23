"""The location of a job and the identity to access it with: a trigger finds its job again by it.

JSON without secrets: it holds the name of a connection, and the process that opens the job looks the connection up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from kinetic_orchestration.plan.configuration import settings, store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.backend_choice import named_backend
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import Traits, traits_of
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.store import Store

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.job import Job

_IN_CLUSTER = ("cluster", "namespace")

# Shared by open jobs, as long as one of them is: a triggerer has a thousand of the same location.
_stores: WeakValueDictionary[tuple[Any, ...], Store] = WeakValueDictionary()
_backends: WeakValueDictionary[tuple[Any, ...], Backend] = WeakValueDictionary()


class JobLocation(NamedTuple):
    store: str
    deployment: str
    backend: str
    project: str = ""
    gcp_conn_id: str = DEFAULT_CONNECTION
    impersonation_chain: str | list[str] | None = None
    cluster: str = ""
    namespace: str = ""

    @classmethod
    def resolve(
        cls, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None, **given: str | None
    ) -> JobLocation:
        """Resolve the location by the given values, the connection's and the settings of this process."""
        backend = given.pop("backend", None)
        loaded = settings.load(None, **given)
        return cls._of(loaded, gcp_conn_id, impersonation_chain, backend, given.get("project"))

    @classmethod
    def of_task(cls, operator: Any, loaded: Settings | None = None, *, on_cluster: bool = False) -> JobLocation:
        """Resolve the location by the parameters of an operator or a sensor.

        Args:
            operator: The operator or sensor.
            loaded: The settings with its store, deployment, project, cluster and namespace, if they are loaded already.
            on_cluster: True if its `cloud=` has options of a cluster.
        """
        if loaded is None:
            loaded = settings.load(
                None, store=operator.store, deployment=operator.deployment, project=operator.project_id
            )
        return cls._of(
            loaded, operator.gcp_conn_id, operator.impersonation_chain, operator.backend, operator.project_id,
            on_cluster=on_cluster,
        )  # fmt: skip

    @classmethod
    def _of(
        cls, loaded: Settings, gcp_conn_id: str, accounts: str | Sequence[str] | None, backend: str | None,
        project: str | None, *, on_cluster: bool = False,
    ) -> JobLocation:  # fmt: skip
        named = named_backend(backend, loaded, has_cluster=on_cluster or bool(loaded.cluster))
        several = listed(accounts or ())
        chain = several[0] if len(several) == 1 else several or None
        location = cls(loaded.store, loaded.deployment, named or loaded.backend, loaded.project, gcp_conn_id, chain)
        if not location.is_google:
            return location._in_cluster(loaded)
        from airflow_kinetic.shared.connection import Connection

        connection = Connection(gcp_conn_id, chain)
        own = {name: connection.setting(name) for name in _IN_CLUSTER if loaded.sources[name] != "argument"}
        cluster, namespace = (own.get(name) or getattr(loaded, name) for name in _IN_CLUSTER)
        found = replace(loaded, cluster=cluster, namespace=namespace)
        if location._traits.options is Kubernetes and not location._traits.in_project:
            return location._replace(project=project or "")._in_cluster(found)
        found = settings.with_project(found, connection.project_of(project, loaded.project))
        named = named_backend(backend, found, has_cluster=on_cluster or bool(found.cluster))
        return location._replace(project=found.project, backend=named or found.backend)._in_cluster(found)

    def on(self, backend: str, loaded: Settings) -> JobLocation:
        """Return the location of a job on that backend, which the rule of platforms may have chosen for it."""
        return self if backend == self.backend else self._replace(backend=backend)._in_cluster(loaded)

    @property
    def _traits(self) -> Traits:
        return traits_of(self.backend) or Traits()

    def _in_cluster(self, loaded: Settings) -> JobLocation:
        """The same location, with the cluster and the namespace of the settings if its backend has any."""
        names = [name for name in _IN_CLUSTER if name not in self._traits.ignored]
        return self._replace(**{name: getattr(loaded, name) for name in names})

    def to_json(self) -> dict[str, Any]:
        """The fields, as a trigger keeps them: one of an older version knows no cluster."""
        return {name: value for name, value in self._asdict().items() if value or name not in _IN_CLUSTER}

    @property
    def is_google(self) -> bool:
        """True if the store or the backend is on Google Cloud."""
        in_bucket = store_address.bucket_path(self.store) is not None
        return in_bucket or self._traits.in_project

    def with_credentials(self) -> AbstractContextManager[None]:
        """Look the connection up, and use its credentials within the block. A location on this machine has none."""
        if not self.is_google:
            return nullcontext()
        from airflow_kinetic.shared.connection import Connection

        return Connection(self.gcp_conn_id, self.impersonation_chain).acting()

    def open(
        self, job_id: str, spec_digest: str = "", ended: str = "", *, acting: AbstractContextManager[None] | None = None
    ) -> Job:
        """Open the job. Its store and its hosts are accessed with the connection's credentials from then on.

        Args:
            job_id: The job.
            spec_digest: The digest of its spec, if it was seen.
            ended: The end of the job, if it was seen.
            acting: What `with_credentials` returned, if the connection is looked up already.
        """
        from kinetic_orchestration.api.opening import reopened

        with acting or self.with_credentials():
            loaded = settings.load(None, **self.settings())
            store, backend = self._shared(loaded)
            return reopened(job_id, store, {loaded.backend: backend}, loaded, spec_digest, ended)

    def open_store(self) -> Store:
        """Open the store of its jobs, with the connection's credentials."""
        with self.with_credentials():
            return self._shared(settings.load(None, **self.settings()))[0]

    def _shared(self, loaded: Settings) -> tuple[Store, Backend]:
        """The same two for the same caller and settings, as long as a job of theirs is open."""
        caller = credentials.credentials(loaded) if self.is_google else None
        key = os.getpid(), id(caller), tuple(str(getattr(loaded, setting.name)) for setting in fields(loaded))
        store, backend = _stores.get(key), _backends.get(key)
        if store is None or backend is None:
            store, backend = open_store(loaded.store, loaded.deployment), open_backend(loaded.backend, loaded)
            if store.caller is caller:  # the store keeps it alive, so that its id is not reused
                store, backend = _stores.setdefault(key, store), _backends.setdefault(key, backend)
        return store, backend

    def settings(self) -> dict[str, str | None]:
        """The location as keyword arguments of the core."""
        named = {"store": self.store, "deployment": self.deployment, "backend": self.backend}
        others = ("project", *_IN_CLUSTER)
        return {**named, **{name: getattr(self, name) or None for name in others}}


def listed(value: str | Sequence[str]) -> list[str]:
    """Names from a list, or from the text that a template renders one to: `a, b`, or a list as Python writes it."""
    if isinstance(value, str):
        return re.findall(r"[^\s,'\"()\[\]]+", value)
    return [name for entry in value for name in listed(entry)]
