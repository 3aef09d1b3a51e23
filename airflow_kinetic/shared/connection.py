"""An Airflow connection to Google Cloud as the core understands it: credentials, a project, and perhaps a cluster.

Knows connections. What is asked for with them is the core's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from airflow_kinetic._compat import AirflowNotFoundException, GoogleBaseHook
from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
from kinetic_orchestration.errors import CredentialsError, UsageError
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, from_text
from kinetic_orchestration.platforms.google import credentials

_KEPT = 16  # connections of a process
_SECRET_SECONDS = 3600.0  # a key in Secret Manager is read again after that: there is no notice of a change
_FILES = ("key_path", "credential_config_file")
_KEYS = (*_FILES, "keyfile_dict", "key_secret_name", "idp_issuer_url")
_DEFAULT = "GOOGLE_APPLICATION_CREDENTIALS"


class _Found(NamedTuple):
    credentials: Any
    project: str
    until: float


_found: dict[str, _Found] = {}
_asking: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # one each: a key may be long in coming
_lock = threading.Lock()  # of these two


class Connection(GoogleBaseHook):
    """A connection of the type `google_cloud_platform`, by its name. Work on this machine needs none.

    :param gcp_conn_id: its name
    :param impersonation_chain: the service account to act as, or a list that ends with it
    """

    def __init__(
        self,
        gcp_conn_id: str = DEFAULT_CONNECTION,
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._missing = False
        try:
            super().__init__(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain, **kwargs)
        except AirflowNotFoundException:
            self.extras = {}  # an emulator, or a place on this machine, needs no credentials
            self._missing = not (gcp_conn_id == DEFAULT_CONNECTION and credentials.is_emulated())

    def acting(self) -> AbstractContextManager[None]:
        """Use this connection's credentials in the core within the block."""
        return credentials.handed_in(*self.identity())

    def identity(self) -> tuple[Any, str]:
        """The credentials and the project, or "". Equal connections share one object, because clients are cached by it.
        A connection that was edited, or whose key file was, gets another object.
        """
        if self._missing:
            raise CredentialsError(
                f"there is no connection {self.gcp_conn_id!r}, which says as whom Google Cloud is asked, and in which "
                f"project. Add it: airflow connections add {self.gcp_conn_id} --conn-type google_cloud_platform "
                '--conn-extra \'{"project": "YOUR-PROJECT"}\'; without a key in it, it means the application\'s '
                "default credentials. Or name another one with gcp_conn_id="
            )
        said = [self.extras, self.impersonation_chain, getattr(self, "quota_project_id", None), self._files()]
        key = json.dumps(said, sort_keys=True, default=list)
        with _lock:
            asking = _asking.setdefault(key, threading.Lock())
        with asking:
            kept = _found.get(key)
            if kept is None or time.monotonic() > kept.until:
                found, project = self._found_or_anonymous()
                lasts = _SECRET_SECONDS if self._get_field("key_secret_name") else float("inf")
                kept = _Found(found, project or "", time.monotonic() + lasts)
                with _lock:
                    _found.pop(key, None)
                    _found[key] = kept
                    while len(_found) > _KEPT:
                        del _found[next(iter(_found))]
            return kept.credentials, kept.project

    def _found_or_anonymous(self) -> tuple[Any, str | None]:
        """The credentials of a connection without a key: the application default, or anonymous ones at the emulator."""
        if credentials.is_emulated() and not any(self._get_field(name) for name in _KEYS):
            return credentials.anonymous(), self._get_field("project")
        return self.get_credentials_and_project_id()

    def _files(self) -> list[Any]:
        """The credential files and their versions, to detect changes."""
        named = [*(self._get_field(name) for name in _FILES), os.environ.get(_DEFAULT)]
        return [(name, _changed(name)) for name in named if isinstance(name, str) and name]

    def setting(self, name: str) -> str:
        """A setting of jobs that the connection's extra may hold, such as `cluster`, or ""."""
        return str(self._get_field(name) or "")

    def buying(self) -> dict[str, Any]:
        """Return what the connection's extra says of `OF_CAPACITY`, as `run` takes it: how hardware is chosen, bought
        and held. Lists may be text with commas.
        """
        found = {name: from_text(name, self._get_field(name)) for name in OF_CAPACITY}
        return {name: given for name, given in found.items() if given or (name in ("keep", "priority") and given == 0)}

    def project_of(self, given: str | None, otherwise: str) -> str:
        """The project to work in: the given one, the connection's, or the one in the settings. Never none."""
        project = given or self.identity()[1] or otherwise
        if not project:
            raise UsageError(
                f"the connection {self.gcp_conn_id!r} has no project, and none is given: fill in its Project Id "
                '(in its extra: {"project": "…"}), pass project_id=, or set KINETIC_PROJECT for Airflow\'s workers'
            )
        return project


def _changed(file: str) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:  # it may be no file, or none yet: its reader raises the error
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
