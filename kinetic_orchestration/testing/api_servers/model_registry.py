"""Vertex AI's Model Registry: as much of it as a registration needs, by the discovery document of `aiplatform` v1.

Versions are kept in memory; nothing reads what `artifactUri` names. Permissions and faults are the cloud's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.state.resources import Json

SERVICE = "aiplatform.googleapis.com"
_UPLOADED = "type.googleapis.com/google.cloud.aiplatform.v1.UploadModelResponse"
_UPLOADING = "type.googleapis.com/google.cloud.aiplatform.v1.UploadModelOperationMetadata"
_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_LABEL = re.compile(r"[a-z0-9_-]{0,64}")
_FILTER = re.compile(r'labels\.([a-z0-9_-]+)="?([a-z0-9_-]*)"?')
_DISPLAY = 128
_PAGE = 2  # so that a listing has more than one


class ModelRegistry:
    """The models of an emulated cloud, by name, each with its versions in their order."""

    def __init__(self) -> None:
        self._models: dict[str, list[Json]] = {}
        self._operations: dict[str, Json] = {}
        self.lag = 0
        """Listings after an upload that lack its version still."""
        self._lacking = 0

    def versions(self, name: str) -> list[Json]:
        """Return the versions of a model as a test looks at them."""
        return [dict(version) for version in self._models.get(name, ())]

    def upload(self, parent: str, body: Json) -> Json:
        """Begin to upload a version."""
        model = body.get("model")
        if not isinstance(model, dict) or not 0 < len(str(model.get("displayName", ""))) <= _DISPLAY:
            raise refusals.invalid("The request was invalid: model.display_name must have 1 to 128 characters.")
        if not all(_LABEL.fullmatch(text) for pair in model.get("labels", {}).items() for text in pair):
            raise refusals.invalid("The request was invalid: a label has other characters than a-z, 0-9, _ and -.")
        name = self._named(parent, body)
        versions = self._models.setdefault(name, [])
        number = str(len(versions) + 1)
        aliases = [*model.get("versionAliases", ()), *([] if versions else ["default"])]
        versions.append({**model, "name": f"{name}@{number}", "versionId": number, "versionAliases": aliases})
        self._lacking = self.lag
        operation = f"{name}/operations/{len(self._operations) + 1}"
        done = {"@type": _UPLOADED, "model": name, "modelVersionId": number}
        self._operations[operation] = {
            "name": operation,
            "metadata": {"@type": _UPLOADING},
            "response": done,
            "done": True,
        }
        return {"name": operation, "metadata": {"@type": _UPLOADING}}

    def _named(self, parent: str, body: Json) -> str:
        """Return the name of the model that an upload is of."""
        if (of := body.get("parentModel")) is not None:
            if of not in self._models:
                raise Refusal(5, f"The Model {of} does not exist.")
            return str(of)
        ident = body.get("modelId") or str(1000 + len(self._models))
        name = f"{parent}/{ident}"
        if body.get("modelId") and not _ID.fullmatch(ident):
            raise refusals.invalid("The request was invalid: model_id has other characters than a-z, 0-9, _ and -.")
        if name in self._models:
            raise Refusal(6, f"The Model {name} already exists.")
        return name

    def operation(self, name: str) -> Json:
        """Return an operation."""
        if name not in self._operations:
            raise Refusal(5, f"The operation {name} does not exist.")
        return self._operations[name]

    def list_versions(self, name: str, query: Mapping[str, str]) -> Json:
        """Return a page of a model's versions."""
        wanted = _FILTER.fullmatch(query.get("filter", ""))
        if query.get("filter") and wanted is None:
            raise refusals.invalid("The request was invalid: the filter cannot be parsed.")
        listed = self._the(name)[:-1] if self._lacking else self._the(name)
        self._lacking = max(0, self._lacking - 1)
        found = [one for one in listed if wanted is None or one.get("labels", {}).get(wanted[1]) == wanted[2]]
        start = int(query.get("pageToken") or 0)
        page: dict[str, Any] = {"models": found[start : start + _PAGE]}
        return page | ({"nextPageToken": str(start + _PAGE)} if len(found) > start + _PAGE else {})

    def merge_aliases(self, name: str, body: Json) -> Json:
        """Let aliases point to a version; one that begins with `-` is removed from it."""
        whole, _, number = name.partition("@")
        versions = self._the(whole)
        version = next((one for one in versions if one["versionId"] == number), None)
        if version is None:
            raise Refusal(5, f"The Model {name} does not exist.")
        for alias in body.get("versionAliases", ()):
            bare = alias.removeprefix("-")
            for one in versions if not alias.startswith("-") else [version]:
                one["versionAliases"] = [other for other in one["versionAliases"] if other != bare]
            if bare == alias:
                version["versionAliases"].append(alias)
        return version

    def _the(self, name: str) -> list[Json]:
        if name not in self._models:
            raise Refusal(5, f"The Model {name} does not exist.")
        return self._models[name]
