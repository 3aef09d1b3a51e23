"""Registers versions in the Model Registry of Vertex AI, which Google now calls Gemini Enterprise Agent Platform.

Written by Google's discovery document of `aiplatform` v1 and tried on the emulated cloud alone. An upload has no
request id, so the version with our digest in a label is looked up before, and again after: the oldest one counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kinetic_orchestration.errors import CredentialsError, RegistryError, UsageError
from kinetic_orchestration.models.registries.registry import REPEAT, away, unknown
from kinetic_orchestration.models.values import Promoted, Registered
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.rest.client import Answer, Google, google
from kinetic_orchestration.protocol.system import escaping

DIGEST: Final = "kinetic-digest"
_ID: Final = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ALIAS: Final = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_LOCATION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z0-9-]{4,63}")
_PATIENCE: Final = 600.0  # seconds for an upload, which copies no model
_POLL: Final = 1.0
_PAGES: Final = 100
_WORDS: Final = 500


@dataclass(frozen=True, slots=True)
class Vertex:
    """The Model Registry of Vertex AI.

    Args:
        project: Project of Google Cloud; by default the setting.
        location: Region of the registry.
        model_id: Id of the model there; by default made from its name.
        container: Field `containerSpec` of the version, as Google documents it, for models that Vertex AI serves.
        service_account: Account that reads the bucket, instead of the service's own.
    """

    project: str = ""
    location: str = "us-central1"
    model_id: str = ""
    container: Mapping[str, Any] | None = None
    service_account: str = ""

    def __post_init__(self) -> None:
        if self.project and not _PROJECT.fullmatch(self.project):
            raise UsageError(f"project={self.project!r}: name a project of Google Cloud, or set KINETIC_PROJECT")
        if not _LOCATION.fullmatch(self.location):
            raise UsageError(f"location={self.location!r}: name a region, such as us-central1")
        if self.model_id and not _ID.fullmatch(self.model_id):
            raise UsageError(f"model_id={self.model_id!r}: give up to 63 of a-z, 0-9, _ and -, a letter first")

    @property
    def _owner(self) -> str:
        found = self.project or credentials.project()
        if not found:
            raise UsageError("no project has this registry: give Vertex(project=…), or set KINETIC_PROJECT")
        return found

    @property
    def _parent(self) -> str:
        return f"projects/{self._owner}/locations/{self.location}"

    @property
    def _service(self) -> str:
        return f"{self.location}-aiplatform"

    def _opened(self) -> AbstractContextManager[Google]:
        return google(configuration.load(store="", deployment="local", project=self._owner))

    def _model(self, promoted: Promoted) -> str:
        made = re.sub(r"[^a-z0-9_-]", "-", promoted.name.lower())
        return f"{self._parent}/models/{self.model_id or (made if made[0].isalpha() else f'm-{made}')[:63]}"

    def planned(self, promoted: Promoted, alias: str) -> list[Mapping[str, Any]]:
        """Return the requests that register a version which nobody has registered. Raises UsageError for what cannot
        be registered."""
        if not promoted.uri.startswith("gs://"):
            raise UsageError(f"Vertex AI registers models in Cloud Storage alone, and {promoted.uri} is elsewhere")
        if alias and not _ALIAS.fullmatch(alias):
            raise UsageError(f"alias={alias!r}: Vertex AI takes a letter in lower case, letters, digits and -")
        host = f"https://{self._service}.googleapis.com/v1/"
        calls = [(f"{self._parent}/models:upload", self.upload(promoted, new=True))]
        if alias:
            calls.append((f"{self._model(promoted)}@<version>:mergeVersionAliases", {"versionAliases": [alias]}))
        return [{"method": "POST", "url": host + path, "body": body} for path, body in calls]

    def upload(self, promoted: Promoted, *, new: bool) -> dict[str, Any]:
        """Return the body of an upload: of a new model, or of a version of one that is there."""
        lineage = promoted.lineage
        job = (lineage.get("job") or {}).get("id", "")
        labels = {DIGEST: promoted.digest, "kinetic-version": promoted.version, "kinetic-kind": _label(promoted.kind)}
        said = f"Version {promoted.version} of {promoted.name}" + (f", trained by {job}" if job else "")
        model: dict[str, Any] = {
            "displayName": promoted.name,
            "artifactUri": promoted.uri,
            "versionDescription": f"{said}. Lineage: {promoted.uri}/lineage.json",
            "labels": labels | ({"kinetic-job": _label(job)} if job else {}),
        }
        if self.container is not None:
            model["containerSpec"] = dict(self.container)
        name = self._model(promoted)
        body = {"model": model, **({"modelId": name.rpartition("/")[2]} if new else {"parentModel": name})}
        return {**body, "serviceAccount": self.service_account} if self.service_account else body

    def register(self, promoted: Promoted, alias: str) -> Registered:
        """Register a version, unless it is registered, and let an alias point to it. Raises RegistryError."""
        self.planned(promoted, alias)
        with self._opened() as api:
            there = self._versions(api, promoted)
            created, made = not there, False
            for pause in retries.PAUSES:
                if there:
                    break
                # A version that was made may be listed a moment later; another upload would make another.
                if made or self._upload(api, self.upload(promoted, new=there is None)):
                    time.sleep(pause)
                else:
                    made = True
                there = self._versions(api, promoted)
            if not there:
                raise away(f"of {self._parent}", "an upload was sent, and is not listed")
            return self._point(api, promoted, there[0], alias, created=created)

    def point(self, promoted: Promoted, alias: str) -> Registered:
        """Let an alias point to a version that is registered. Raises RegistryError if it is not."""
        self.planned(promoted, alias)
        with self._opened() as api:
            there = self._versions(api, promoted)
            if not there:
                raise unknown(self._model(promoted), promoted)
            return self._point(api, promoted, there[0], alias, created=False)

    def _point(self, api: Google, promoted: Promoted, version: str, alias: str, *, created: bool) -> Registered:
        name = self._model(promoted)
        if alias:
            path = f"v1/{name}@{quote(version, safe='')}:mergeVersionAliases"
            self._good(api.call("POST", self._service, path, {"versionAliases": [alias]}))
        return Registered(name, promoted.name, version, (alias,) if alias else (), created)

    def _versions(self, api: Google, promoted: Promoted) -> list[str] | None:
        """Return the versions with the digest of a model, the oldest first; None if there is no such model."""
        found: list[str] = []
        params = {"filter": f'labels.{DIGEST}="{promoted.digest}"', "pageSize": "100"}
        for _ in range(_PAGES):
            answer = api.call("GET", self._service, f"v1/{self._model(promoted)}:listVersions", params=params)
            if answer.status == 404:
                return None
            listed = self._good(answer).get("models", [])
            same = (one for one in listed if (one.get("labels") or {}).get(DIGEST) == promoted.digest)
            found += [version for one in same if (version := str(one.get("versionId", ""))).isdecimal()]
            token = str(answer.body.get("nextPageToken") or "")
            if not token:
                break
            params = {**params, "pageToken": token}
        return sorted(found, key=int)

    def _upload(self, api: Google, body: Mapping[str, Any]) -> bool:
        """Upload a version, and wait for the operation. Returns True if it is not known whether it was carried out."""
        answer = api.call("POST", self._service, f"v1/{self._parent}/models:upload", body, repeats=False)
        if answer.status == 409:  # the model is there since a moment ago, by another process or an earlier call
            return True
        if answer.status in retries.TRANSIENT:
            return True
        operation, deadline = self._good(answer), time.monotonic() + _PATIENCE
        name = str(operation.get("name", ""))
        while not operation.get("done"):
            if time.monotonic() > deadline:
                raise away(f"of {self._parent}", f"{name} is not done after {_PATIENCE:.0f} s")
            time.sleep(_POLL)
            operation = self._good(api.call("GET", self._service, f"v1/{name}"))
        if isinstance(error := operation.get("error"), dict):
            raise self._refused(str(error.get("message", "")), 0)
        return False

    def _good(self, answer: Answer) -> Mapping[str, Any]:
        if answer.ok:
            return answer.body
        words = answer.status_of().message
        if answer.status in retries.TRANSIENT:
            raise away(f"of {self._parent}", escaping.text(words)[:_WORDS])
        if answer.status == 401:
            raise CredentialsError(
                f"Vertex AI does not take these credentials: {escaping.text(words)[:_WORDS]}. {REPEAT}"
            )
        raise self._refused(words, answer.status)

    def _refused(self, words: str, status: int) -> RegistryError:
        said = escaping.text(words)[:_WORDS].rstrip(".")
        advice = (
            f" Grant roles/aiplatform.user in {self._owner}, and to Vertex AI's service agent the right to read the "
            "bucket."
            if status == 403
            else ""
        )
        return RegistryError(
            f"the registry of {self._parent} refused it ({status or 'operation'}: {said}).{advice} {REPEAT}"
        )


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]
