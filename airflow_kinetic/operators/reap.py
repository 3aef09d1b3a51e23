"""Remove what no job needs, on a schedule: the layer of teardown that works when no other process is alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_kinetic._compat import BaseOperator
from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from airflow_kinetic.shared.location import JobLocation
from kinetic_orchestration.errors import BackendError, UsageError

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context

DELETION_PATIENCE = 60.0


class AtPlace(BaseOperator):
    """A task about all jobs of a deployment. Its parameters say where these are."""

    template_fields: Sequence[str] = (
        "store", "deployment", "cluster", "namespace", "project_id", "gcp_conn_id", "impersonation_chain",
    )  # fmt: skip
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        store: str | None = None,
        deployment: str | None = None,
        backend: str | None = None,
        cluster: str | None = None,
        namespace: str | None = None,
        project_id: str | None = None,
        gcp_conn_id: str = DEFAULT_CONNECTION,
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store = store
        self.deployment = deployment
        self.backend = backend
        self.cluster = cluster
        self.namespace = namespace
        self.project_id = project_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def location(self) -> JobLocation:
        return JobLocation.resolve(
            self.gcp_conn_id, self.impersonation_chain, store=self.store, deployment=self.deployment,
            backend=self.backend, cluster=self.cluster, namespace=self.namespace, project=self.project_id,
        )  # fmt: skip


class KineticReapOperator(AtPlace):
    """Release slices whose job is over, past its deadline or unknown, in all zones, and records past their time.

    It never removes live slices within their deadline, or resources of others. Its value lists the removed ones. It
    fails, and so notifies the users, if a resource that costs money could neither be deleted nor read.

    :param dry_run: only report what would be removed
    :param store: the deployment's store; by default as set for Airflow (templated)
    :param deployment: the prefix in it; by default as set for Airflow (templated)
    :param backend: the backend of its jobs; by default as set for Airflow
    :param cluster: the cluster of its jobs; by default as for a task (templated)
    :param namespace: the namespace in it (templated)
    :param project_id: by default the connection's (templated)
    :param gcp_conn_id: the connection to Google Cloud. Jobs on this machine need none (templated)
    :param impersonation_chain: the service account to act as, or a list that ends with it (templated)
    """

    def __init__(self, *, dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(dry_run, bool):
            raise UsageError(f"dry_run is {dry_run!r}, and should be True or False")
        self.only_reports = dry_run  # the name is Airflow's own method's

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from kinetic_orchestration.api.opening import place_of
        from kinetic_orchestration.jobs.cleanup import reaper

        del context
        location = self.location()
        with location.with_credentials():
            # Without one of its own, on all backends on which jobs of the settings may be.
            named = {"backend": location.backend if self.backend else None}
            store, backend, here = place_of(**{**location.settings(), **named})
            found = reaper.reap(store, backend, here, dry_run=self.only_reports, patience=DELETION_PATIENCE)
        for item in found:
            where = f" in {item.zone}" if item.zone else ""
            self.log.info("%s: %s %s%s, because %s", item.result, item.what, item.name, where, item.why)
        left = [item for item in found if item.result in (reaper.LEFT, reaper.UNREAD)]
        if left:
            names = ", ".join(f"{item.what} {item.name} ({item.why})" for item in left)
            raise BackendError(
                f"not all could be removed or looked at: {names}. Chips are charged for until somebody deletes them; "
                "kinetic-orchestration doctor says which right is missing"
            )
        return [item._asdict() for item in found]
