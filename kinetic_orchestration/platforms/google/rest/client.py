"""Google's JSON APIs over HTTPS, for what needs no client library: one call, its answer or its error.

Secret Manager, Resource Manager, Service Usage and Compute Engine are asked this way. It knows neither what is asked
nor why.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.api_errors import Status
from kinetic_orchestration.platforms.google.rest import call_listeners, retries

TIMEOUT = 20.0
KEPT = 16  # sessions of one process: one for each project's credentials that jobs are submitted with
CONNECTIONS = 32  # of one of them, which many threads use at once
_CODES = {0: api_errors.UNAVAILABLE, 401: api_errors.UNAUTHENTICATED, 502: api_errors.UNAVAILABLE}


class Answer(NamedTuple):
    """An HTTP status, 0 for no answer at all, the JSON that came, and its time by the server's clock, 0 if unknown."""

    status: int
    body: Mapping[str, Any]
    date: float = 0.0

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def status_of(self) -> Status:
        """The error in the form that all Google APIs share."""
        found = self.body.get("error")
        error = found if isinstance(found, dict) else {}
        details = tuple(detail for detail in error.get("details", ()) if isinstance(detail, dict))
        code = _CODES.get(self.status) or api_errors.code_of(str(error.get("status", "")))
        return Status(code, str(error.get("message") or f"HTTP {self.status}"), details)


class Google:
    """A session with this process's credentials. Every call is bounded, and repeated if that may help."""

    def __init__(self, settings: Settings, session: Any) -> None:
        self._settings = settings
        self._session = session

    def call(
        self,
        method: str,
        service: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        within: float = 0.0,
        *,
        repeats: bool = True,
    ) -> Answer:
        """Make a call, for example `call("GET", "secretmanager", "v1/projects/p/secrets")`.

        Args:
            method: Of HTTP.
            service: The first word of the API's host name.
            path: Of the resource, without a slash at its beginning.
            body: Sent as JSON, unless it is None.
            params: Of the query.
            within: Seconds for the call with its repetitions; 0 bounds only each of them.
            repeats: It may be sent again if it is not known whether it was carried out.
        """
        url = f"{self._base(service)}/{path}"
        deadline = time.monotonic() + within if within else float("inf")
        answer = self._once(service, method, url, body, params, min(TIMEOUT, within or TIMEOUT))
        for pause in retries.PAUSES if repeats else ():
            left = deadline - time.monotonic() - pause
            if answer.status not in retries.TRANSIENT or left <= 0:
                break
            time.sleep(pause)
            answer = self._once(service, method, url, body, params, min(TIMEOUT, left))
        return answer

    def _base(self, service: str) -> str:
        emulated = self._settings.storage_emulator if service == "storage" else self._settings.emulator
        return emulated or f"https://{service}.googleapis.com"

    def _once(
        self, service: str, method: str, url: str, body: Any, params: Mapping[str, str] | None, timeout: float
    ) -> Answer:
        from google.auth import exceptions as auth
        from requests import exceptions as requests

        try:
            reply = self._session.request(method, url, json=body, params=params, timeout=timeout)
        except auth.RefreshError as error:
            raise credentials.refused(error) from error
        except (auth.GoogleAuthError, requests.RequestException) as error:
            return Answer(0, {"error": {"message": f"{type(error).__name__}: {error}", "status": "UNAVAILABLE"}})
        call_listeners.report_http(service, reply, self._base(service))
        try:
            found = reply.json() if reply.content else {}
        except ValueError:
            found = None
        if isinstance(found, dict):
            return Answer(reply.status_code, found, _date(reply.headers.get("Date")))
        said = {"message": f"the answer cannot be read: {reply.text[:300]!r}"}
        if reply.ok:
            return Answer(0, {"error": {**said, "status": "UNAVAILABLE"}})
        return Answer(reply.status_code, {"error": {**said, "status": "UNKNOWN"}})


def _date(header: str | None) -> float:
    try:
        return parsedate_to_datetime(header).timestamp() if header else 0.0
    except (TypeError, ValueError):
        return 0.0


_sessions: OrderedDict[tuple[Any, ...], tuple[Google, Any]] = OrderedDict()
_lock = threading.Lock()
_inherited: list[Any] = []  # a parent's sessions: not closed here, as that would end the parent's connections


def _after_fork() -> None:
    """Reset the child's state: the thread that held the lock does not exist in it."""
    global _lock  # noqa: PLW0603 - of this process
    _lock = threading.Lock()
    _inherited.extend(_sessions.values())
    _sessions.clear()


os.register_at_fork(after_in_child=_after_fork)


def kept(settings: Settings) -> Google:
    """The process's one session for these settings and the current credentials: its connections and its token last."""
    identity = credentials.credentials(settings)
    key = (settings.emulator, settings.storage_emulator, settings.quota_project, id(identity))
    with _lock:
        if key not in _sessions:
            # The identity is kept, so that its id is its own.
            _sessions[key] = (Google(settings, _session(identity)), identity)
            while len(_sessions) > KEPT:
                _sessions.popitem(last=False)  # not closed: a call may still use it
        _sessions.move_to_end(key)
        return _sessions[key][0]


KEY_HEADER = "X-Goog-Api-Key"  # a header, so that no address that is shown or logged has it


def _keyed(key: str) -> Any:
    """A session that says by an API key whose project asks, and nobody's name."""
    from requests import Session

    session = Session()
    session.max_redirects = 0  # a key is for the address that was asked
    session.headers[KEY_HEADER] = key
    return session


def _session(identity: Any) -> Any:
    from google.auth.transport.requests import AuthorizedSession
    from requests.adapters import HTTPAdapter

    if identity is None:
        raise CredentialsError("nobody to be for Google Cloud: run 'gcloud auth application-default login'")
    session = AuthorizedSession(identity)  # type: ignore[no-untyped-call]
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return session


@contextmanager
def google(settings: Settings, key: str = "") -> Iterator[Google]:
    """Opened for a few calls and closed again; with an API key, if one is given, in place of this process's login."""
    with _keyed(key) if key else _session(credentials.credentials(settings)) as session:
        yield Google(settings, session)
