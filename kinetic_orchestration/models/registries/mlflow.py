"""Registers versions in MLflow's model registry, by its REST API: nothing of MLflow is imported.

`model-versions/create` makes another version each time it is called, so the version with our digest is looked up first;
if two processes have created one all the same, both keep the one with the lower number.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from kinetic_orchestration.errors import RegistryError, UsageError
from kinetic_orchestration.models.registries.registry import REPEAT, away, unknown
from kinetic_orchestration.models.values import Promoted, Registered, flat
from kinetic_orchestration.protocol.system import copies, escaping

API: Final = "/api/2.0/mlflow/"
DIGEST: Final = "kinetic.digest"
_LIMIT: Final = 4 << 20  # bytes of an answer
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
_PAUSES: Final = (0.2, 0.6, 1.8)
_TRIES: Final = 3
_TAGS: Final = 200
# As mlflow/utils/validation.py has them: names of tags, and of aliases that are its own.
_IN_NO_KEY: Final = re.compile(r"[^\w.\- /]", re.ASCII)
_RESERVED: Final = re.compile(r"latest|v[0-9]+")
_KEY: Final = 250
_WORDS: Final = 500
_CODE: Final = 100


@dataclass(frozen=True, slots=True)
class MLflow:
    """A model registry of MLflow.

    Args:
        url: Address of the tracking server; by default MLFLOW_TRACKING_URI.
        username: Name of a user, for a server with its own logins; by default MLFLOW_TRACKING_USERNAME.
        password: Password of the user; by default MLFLOW_TRACKING_PASSWORD.
        token: Token that is sent instead; by default MLFLOW_TRACKING_TOKEN.
        run_id: Run that the version belongs to. A server takes a folder of its own machine only as a part of a run.
        timeout: Seconds for one request.
    """

    url: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    run_id: str = ""
    timeout: float = 20.0

    def __post_init__(self) -> None:
        given = copies.environ()
        for name, variable in _VARIABLES.items():
            if not getattr(self, name):
                object.__setattr__(self, name, given.get(variable, ""))
        where = urlsplit(self.url)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise UsageError(
                f"{self.url!r} is no address of an MLflow server: give kinetic.MLflow('https://…'), or set "
                "MLFLOW_TRACKING_URI"
            )
        if where.username or where.password:
            raise UsageError(
                "an address of an MLflow server has no password in it: set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def planned(self, promoted: Promoted, alias: str) -> list[Mapping[str, Any]]:
        """Return the requests that register a version which nobody has registered. Raises UsageError for an alias that
        no server takes."""
        if _RESERVED.fullmatch(alias.lower()):
            raise UsageError(f"alias={alias!r} is reserved by MLflow: name another one, such as 'champion'")
        calls = [("registered-models/create", _model(promoted)), ("model-versions/create", self._version(promoted))]
        if alias:
            calls.append(("registered-models/alias", {"name": promoted.name, "alias": alias, "version": "<version>"}))
        return [{"method": "POST", "url": f"{self.url}{API}{verb}", "body": body} for verb, body in calls]

    def register(self, promoted: Promoted, alias: str) -> Registered:
        """Register a version, unless it is registered, and let an alias point to it. Raises RegistryError."""
        self.planned(promoted, alias)
        with _session(self) as session:
            self._ask(session, "POST", "registered-models/create", _model(promoted), fine="RESOURCE_ALREADY_EXISTS")
            there = self._versions(session, promoted)
            created = not there
            if created:
                there = self._create(session, promoted)
            self._alias(session, promoted.name, there[0], alias)
        return Registered(self.url, promoted.name, there[0], (alias,) if alias else (), created)

    def point(self, promoted: Promoted, alias: str) -> Registered:
        """Let an alias point to a version that is registered. Raises RegistryError if it is not."""
        with _session(self) as session:
            there = self._versions(session, promoted)
            if not there:
                raise unknown(self.url, promoted)
            self._alias(session, promoted.name, there[0], alias)
        return Registered(self.url, promoted.name, there[0], (alias,))

    def _version(self, promoted: Promoted) -> dict[str, Any]:
        tags = [{"key": _key(key), "value": str(value)} for key, value in flat(promoted.lineage).items()][:_TAGS]
        description = f"Version {promoted.version} of {promoted.name}, promoted from {promoted.lineage.get('source')}"
        body = {"name": promoted.name, "source": promoted.uri, "tags": tags, "description": description}
        return {**body, "run_id": self.run_id} if self.run_id else body

    def _create(self, session: Any, promoted: Promoted) -> list[str]:
        """Create a version and return all that have its digest, the one that counts first."""
        for _ in range(_TRIES):
            made = self._ask(session, "POST", "model-versions/create", self._version(promoted), repeats=False)
            there = self._versions(session, promoted)
            if there:
                break
        else:
            raise away(self.url, "it did not say whether it made the version, and lists none")
        own = str(_field(made or {}, "model_version").get("version", ""))
        if own in there[1:]:  # another process has created it at the same time
            gone = {"name": promoted.name, "version": own}
            self._ask(session, "DELETE", "model-versions/delete", gone, fine="RESOURCE_DOES_NOT_EXIST")
        return there[:1]

    def _versions(self, session: Any, promoted: Promoted) -> list[str]:
        """Return the versions with the digest of a model, the oldest first."""
        query = {"filter": f"name='{promoted.name}' and tags.`{DIGEST}`='{promoted.digest}'", "max_results": "100"}
        found = self._ask(session, "GET", "model-versions/search", query)
        listed = (found or {}).get("model_versions", [])
        versions = [str(one.get("version", "")) for one in listed if isinstance(one, dict)]
        return sorted((version for version in versions if version.isdecimal()), key=int)

    def _alias(self, session: Any, name: str, version: str, alias: str) -> None:
        if alias:
            body = {"name": name, "alias": alias, "version": version}
            self._ask(session, "POST", "registered-models/alias", body)

    def _ask(
        self,
        session: Any,
        method: str,
        verb: str,
        body: Mapping[str, Any],
        *,
        fine: str = "",
        repeats: bool = True,
    ) -> dict[str, Any] | None:
        """Make a call, again while that may help.

        Args:
            session: The connection.
            method: Of HTTP.
            verb: The end of its address.
            body: Fields of a body, or of the query of a GET.
            fine: Code of an error that is as good as success.
            repeats: The call may be sent again if it is not known whether it was carried out.

        Returns:
            The answer; None for the error that is fine, and where it is not known whether the call was carried out.
        """
        why = ""
        for pause in (*_PAUSES, None):
            status, answer, why = self._once(session, method, verb, body)
            if status and status not in _PASSING:
                code = escaping.text(str(answer.get("error_code", ""))[:_CODE])
                if status == 200:
                    return answer
                if fine and code == fine:
                    return None
                raise self._refused(status, code, why)
            if not repeats and status != 429:
                return None  # the caller looks whether it was
            if pause is not None:
                time.sleep(pause)
        raise away(self.url, why)

    def _once(self, session: Any, method: str, verb: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any], str]:
        """Return status, answer and the words of an error; status 0 if nothing was answered."""
        from requests import exceptions
        from urllib3.exceptions import HTTPError

        sent: dict[str, Any] = {"params": dict(body)} if method == "GET" else {"json": dict(body)}
        try:
            with session.request(
                method, f"{self.url}{API}{verb}", **sent, timeout=self.timeout, stream=True, allow_redirects=False
            ) as reply:
                data = reply.raw.read(_LIMIT + 1, decode_content=True)
        except (exceptions.RequestException, HTTPError, OSError) as error:
            words = escaping.text(str(error).rpartition(": ")[2].rstrip("'\")"))[:_WORDS]
            return 0, {}, words + ")" * (words.count("(") - words.count(")"))
        try:
            answer = json.loads(data) if len(data) <= _LIMIT else None
        except (ValueError, RecursionError):
            answer = None
        text = escaping.text(data[:_WORDS].decode("utf-8", "replace")).strip()
        if not isinstance(answer, dict):
            if reply.status_code == 200:
                return 404, {}, f"what answers there is no MLflow: {text!r}"
            return reply.status_code, {}, text
        return reply.status_code, answer, escaping.text(str(answer.get("message") or text))[:_WORDS]

    def _refused(self, status: int, code: str, words: str) -> RegistryError:
        said = f"the registry {self.url} refused it ({status} {code or ''}".rstrip() + f": {words.rstrip('.')})"
        if status in (401, 403) and "Invalid Host header" not in words:
            advice = (
                "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of somebody who "
                "may register models. "
            )
        elif "Invalid Host header" in words:
            advice = "Start the server with --allowed-hosts, or give the address that it allows. "
        elif "source" in words.lower() and "local" in words.lower():
            advice = (
                "A server takes no folder of another machine: promote into a bucket, or give MLflow(run_id=…) of the "
                "run whose artifacts have it. "
            )
        else:
            advice = ""
        return RegistryError(f"{said}. {advice}{REPEAT}")


_VARIABLES: Final = {
    "url": "MLFLOW_TRACKING_URI",
    "username": "MLFLOW_TRACKING_USERNAME",
    "password": "MLFLOW_TRACKING_PASSWORD",
    "token": "MLFLOW_TRACKING_TOKEN",
}


def _key(name: str) -> str:
    """Return the name of a tag as MLflow takes it: a path without anything to resolve."""
    parts = _IN_NO_KEY.sub("_", name)[:_KEY].split("/")
    return "/".join(part for part in parts if part.strip(". "))


def _model(promoted: Promoted) -> dict[str, Any]:
    return {"name": promoted.name}


def _field(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _session(registry: MLflow) -> Any:
    """Return a session with the registry's login, and with none of a .netrc."""
    import requests

    class Login(requests.auth.AuthBase):
        def __call__(self, request: Any) -> Any:
            if registry.token:
                request.headers["Authorization"] = f"Bearer {registry.token}"
            elif registry.username:
                requests.auth.HTTPBasicAuth(registry.username, registry.password)(request)
            return request

    session = requests.Session()
    session.auth = Login()
    return session
