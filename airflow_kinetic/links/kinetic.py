"""The buttons of a task: its job's records, its whole log, and the console. They are available while it is queued.

Airflow stores the URL of a link whenever a part of a task ends, also at its deferral; Airflow 2 asks for it in its
webserver, for which the task leaves it in XCom. A job on this machine has no page: its links name the folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kinetic._compat import BaseOperatorLink, substitutes, versions
from kinetic_orchestration.api import links
from kinetic_orchestration.plan.declare.spec import COMPUTE, TPU_VM
from kinetic_orchestration.protocol import names

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context
    from airflow_kinetic.shared.location import JobLocation


def urls_of(job_id: str, location: JobLocation) -> dict[str, str]:
    """Return the URL of each link of a job, without links that have none. Pure."""
    store_url = f"{location.store.rstrip('/')}/{location.deployment}"
    urls = {
        KineticJobLink.key: links.browse(store_url, names.job(job_id)),
        KineticLogLink.key: links.browse(store_url, f"{names.job(job_id)}out/"),
    }
    pages = {TPU_VM: links.tpus, COMPUTE: links.vms}
    if location.backend in pages:
        urls[KineticConsoleLink.key] = pages[location.backend](location.project)
    return urls


class _Link(BaseOperatorLink):
    key: ClassVar[str]

    @property
    def xcom_key(self) -> str:
        return f"kinetic_{self.key}"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL that the operator knows by now. Airflow 3 asks for it in the task's own process."""
        if not versions.links_are_stored():
            return substitutes.pulled_link(ti_key, self.xcom_key)
        return str(getattr(operator, "kinetic_urls", {}).get(self.key, ""))


class ShowsLinks:
    """A task whose links show what is known of its job. A link without a URL is empty, and no button is shown."""

    kinetic_urls: Mapping[str, str] = MappingProxyType({})

    def show_links(self, context: Context, urls: Mapping[str, str]) -> None:
        """Show these from now on, each by the key of its link."""
        task = context.get("ti")
        if task is not None and not versions.links_are_stored():
            for key, url in urls.items():
                if self.kinetic_urls.get(key) != url:
                    task.xcom_push(key=f"kinetic_{key}", value=url)
        self.kinetic_urls = urls


class KineticJobLink(_Link):
    name = "Kinetic job"
    key = "job_link"


class KineticLogLink(_Link):
    name = "Kinetic log"
    key = "log_link"


class KineticConsoleLink(_Link):
    name = "Google Cloud console"
    key = "console_link"


class KineticCurvesLink(_Link):
    """The link to the curves, for a job that reported metrics or ran for some seconds."""

    name = "Kinetic curves"
    key = "curves_link"


class KineticProfileLink(_Link):
    """The link to the profile, for a job that captured one."""

    name = "XProf profile"
    key = "profile_link"
