"""Google's small JSON APIs over HTTPS, for what needs no client library: one call, its answer or its error.

Secret Manager, Resource Manager and Service Usage are asked this way. It knows neither what is asked nor why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors, call_listeners, credentials, retries
from kinetic_orchestration.platforms.google.api_errors import Status

TIMEOUT = 20.0
_CODES = {0: api_errors.UNAVAILABLE, 401: api_errors.UNAUTHENTICATED, 502: api_errors.UNAVAILABLE}


class Answer(NamedTuple):
    """An HTTP status, 0 for no answer at all, and the JSON that came."""

    status: int
    body: Mapping[str, Any]

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
        self, method: str, service: str, path: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> Answer:
        """Make a call, for example `call("GET", "secretmanager", "v1/projects/p/secrets")`."""
        url = f"{self._base(service)}/{path}"
        answer = self._once(service, method, url, body, params)
        for pause in retries.PAUSES:
            if answer.status not in retries.TRANSIENT:
                break
            time.sleep(pause)
            answer = self._once(service, method, url, body, params)
        return answer

    def _base(self, service: str) -> str:
        emulated = self._settings.storage_emulator if service == "storage" else self._settings.emulator
        return emulated or f"https://{service}.googleapis.com"

    def _once(self, service: str, method: str, url: str, body: Any, params: Mapping[str, str] | None) -> Answer:
        from google.auth import exceptions as auth
        from requests import exceptions as requests

        try:
            reply = self._session.request(method, url, json=body, params=params, timeout=TIMEOUT)
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
            return Answer(reply.status_code, found)
        said = {"message": f"the answer cannot be read: {reply.text[:300]!r}"}
        if reply.ok:
            return Answer(0, {"error": {**said, "status": "UNAVAILABLE"}})
        return Answer(reply.status_code, {"error": {**said, "status": "UNKNOWN"}})


@contextmanager
def google(settings: Settings) -> Iterator[Google]:
    """Opened for a few calls and closed again."""
    from google.auth.transport.requests import AuthorizedSession

    identity = credentials.credentials(settings)
    if identity is None:
        raise CredentialsError("nobody to be for Google Cloud: run 'gcloud auth application-default login'")
    with AuthorizedSession(identity) as session:  # type: ignore[no-untyped-call]
        yield Google(settings, session)
