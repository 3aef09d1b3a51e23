"""A task's connection to Google Cloud, and the jobs of one place, for code of one's own in a task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from airflow_kinetic.shared.connection import Connection
from airflow_kinetic.shared.location import JobLocation
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms.google import credentials

if TYPE_CHECKING:
    from kinetic_orchestration import JobHandle


class KineticHook(Connection):
    """The connection that a task names, of the type `google_cloud_platform`, and the jobs of a location, for a
    `PythonOperator` or a custom operator. A location on this machine needs no connection.

    :param gcp_conn_id: its name
    :param impersonation_chain: the service account to act as, or a list that ends with it
    :param store: the store of the jobs; by default as set for Airflow
    :param deployment: the prefix in it; by default as set for Airflow
    :param backend: the backend of the jobs; by default as set for Airflow
    :param cluster: its cluster, for Kubernetes; by default, with a store in a bucket, the connection's, else as set for
        Airflow
    :param namespace: the namespace in it, by the same rule
    :param project_id: by default the connection's
    """

    def __init__(
        self,
        gcp_conn_id: str = DEFAULT_CONNECTION,
        impersonation_chain: str | Sequence[str] | None = None,
        *,
        store: str | None = None,
        deployment: str | None = None,
        backend: str | None = None,
        cluster: str | None = None,
        namespace: str | None = None,
        project_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(gcp_conn_id, impersonation_chain, **kwargs)
        self._given = {
            "store": store, "deployment": deployment, "backend": backend, "cluster": cluster, "namespace": namespace,
            "project": project_id,
        }  # fmt: skip

    def submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> JobHandle[Any]:
        """Submit a call of the function with the options of `kinetic_orchestration.run`, and return its handle
        immediately.

        Only a caller that uses the handle then follows the job. Without a `key=` every call is a job of its own, also
        in a retry of the task.
        """
        import kinetic_orchestration as kinetic

        location = self._location()
        with location.with_credentials():
            return kinetic.run(**{**location.settings(), **options})(function).run_async(*args, **(kwargs or {}))

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job: its status, log lines and result, and its cancel."""
        from kinetic_orchestration import JobHandle

        return JobHandle(self._location().open(job_id))

    def jobs(self) -> list[JobHandle[Any]]:
        """Return the handles of all jobs of the deployment that have not ended, the newest first."""
        from kinetic_orchestration.api.handle import live_jobs

        location = self._location()
        with location.with_credentials():
            return [handle for handle, _ in live_jobs(self.log.warning, **location.settings())]

    def acting_at(self, *addresses: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """Act as this connection says within the block: for calls of the core in a task, such as
        ``kinetic_orchestration.promote(model, to=place)`` or ``deploy``, which know no connections.

        Nothing is looked up if neither one of the addresses nor the jobs' location is on Google Cloud. The project is
        the hook's `project_id`, else the connection's.

        :param addresses: what is read and written, such as a model and the place of its versions
        :raises UsageError: the hook has a cluster or a namespace, which these calls take from their own arguments
        """
        if named := [name for name in ("cluster", "namespace") if self._given[name]]:
            told = " and ".join(f"{name}={self._given[name]!r}" for name in named)
            raise UsageError(
                f"acting_at says as whom and in which project calls of the core act, and this hook has {told} besides, "
                f"which they would not see: give {' and '.join(named)} to the call, such as "
                "kinetic_orchestration.Serving(cluster=…, namespace=…) to deploy, and make a hook without"
            )
        in_bucket = any(os.fspath(address).startswith("gs://") for address in addresses)
        if not (in_bucket or self._location().is_google):
            return nullcontext()
        found, project = self.identity()
        return credentials.handed_in(found, self._given["project"] or project)

    def _location(self) -> JobLocation:
        return JobLocation.resolve(self.gcp_conn_id, self.impersonation_chain, **self._given)
