"""The buttons of a task: its job's records, its whole log, and the console. They are there while it is queued.

Airflow keeps what a link says at the end of each leg of a task, the deferral among them. A job on this machine has no
page: its links name the folders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_kinetic.place import Place
from kinetic_orchestration import links
from kinetic_orchestration.agent import names
from kinetic_orchestration.spec import LOCAL


def urls_of(job_id: str, place: Place) -> dict[str, str]:
    """What each link of a job says; one that leads nowhere is left out. Pure."""
    store_url = f"{place.store.rstrip('/')}/{place.deployment}"
    found = {
        KineticJobLink.key: links.browse(store_url, names.job(job_id)),
        KineticLogLink.key: links.browse(store_url, f"{names.job(job_id)}out/"),
    }
    if place.backend != LOCAL:
        found[KineticConsoleLink.key] = links.tpus(place.project)
    return found


def url_of_profile(place: str) -> dict[str, str]:
    """The same of what was captured, once it was."""
    return {KineticProfileLink.key: links.browse(place)}


def url_of_curves(page: str) -> dict[str, str]:
    """The same of the picture that its hosts have kept."""
    return {KineticCurvesLink.key: page}


class _Link(BaseOperatorLink):
    key: ClassVar[str]

    @property
    def xcom_key(self) -> str:
        return f"kinetic_{self.key}"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Asked in the task's own process: what the operator has found out of its job by then."""
        del ti_key
        return str(getattr(operator, "kinetic_urls", {}).get(self.key, ""))


class ShowsLinks:
    """A task whose links say what was found out of its job. One that leads nowhere is empty, and no button: once it is
    known which do, Airflow is not handed the others, each of which would be a request and a row of its database.
    """

    operator_extra_links: Collection[BaseOperatorLink]
    _urls: Mapping[str, str] = MappingProxyType({})

    @property
    def kinetic_urls(self) -> Mapping[str, str]:
        return self._urls

    @kinetic_urls.setter
    def kinetic_urls(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        shown = tuple(link for link in self._all_links if not isinstance(link, _Link) or link.key in urls)
        with suppress(AttributeError):  # of a subclass that makes them itself
            self.operator_extra_links = shown

    @cached_property
    def _all_links(self) -> tuple[BaseOperatorLink, ...]:
        return tuple(self.operator_extra_links)


class KineticJobLink(_Link):
    name = "Kinetic job"
    key = "job_link"


class KineticLogLink(_Link):
    name = "Kinetic log"
    key = "log_link"


class KineticConsoleLink(_Link):
    name = "Cloud TPU console"
    key = "console_link"


class KineticCurvesLink(_Link):
    """Of a task whose job has reported metrics, or ran for some seconds."""

    name = "Kinetic curves"
    key = "curves_link"


class KineticProfileLink(_Link):
    """Of a task whose job has captured one."""

    name = "XProf profile"
    key = "profile_link"
