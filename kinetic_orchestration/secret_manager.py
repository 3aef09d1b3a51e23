"""What must not lie in a store on its way to a host: secrets of a job in Secret Manager, with an end.

A secret is written by whoever submits, read by the hosts with their own account, and removed when the job's value is
collected; whatever is forgotten expires. It knows names and values, not what they are for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

from kinetic_orchestration import troubles
from kinetic_orchestration.agent import schema
from kinetic_orchestration.errors import BackendError, UsageError
from kinetic_orchestration.google_rest import Answer, google
from kinetic_orchestration.settings import Settings
from kinetic_orchestration.troubles import Asked

SERVICE = "secretmanager"


class Kept(NamedTuple):
    resource: str
    labels: Mapping[str, str]
    expires: float


_NAME = re.compile(r"projects/(?P<project>[^/?#]+)/secrets/(?P<secret>[^/?#]+)")


def resource(project: str, name: str) -> str:
    return f"projects/{project}/secrets/{name}"


def path_of(whole: str) -> str:
    """The path of a secret in the API, each part of it checked and quoted. Raises UsageError for what is none."""
    found = _NAME.fullmatch(whole)
    try:
        if found is None:
            raise schema.Wrong(whole)
        schema.project(found["project"])
        schema.secret(found["secret"])
    except schema.Wrong:
        raise UsageError(
            f"{schema.short(whole)} is not the name of a secret: projects/PROJECT/secrets/NAME, with letters, digits, "
            "- and _ in its name"
        ) from None
    return f"v1/projects/{quote(found['project'], safe=':')}/secrets/{quote(found['secret'], safe='')}"


def put(settings: Settings, name: str, value: str, expires: float, labels: Mapping[str, str]) -> str:
    """Keep a value under a name until then; what is there under that name is renewed. Its resource name."""
    whole = resource(settings.project, name)
    path = path_of(whole)
    body = {"replication": {"automatic": {}}, "expireTime": _stamp(expires), "labels": dict(labels)}
    with google(settings) as api:
        made = api.call("POST", SERVICE, path.rpartition("/")[0], body, {"secretId": name})
        if made.status == 409:
            later = {"expireTime": body["expireTime"]}
            made = api.call("PATCH", SERVICE, path, later, {"updateMask": "expireTime"})
        _check(made, settings, "secretmanager.secrets.create")
        payload = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
        added = api.call("POST", SERVICE, f"{path}:addVersion", payload)
        _check(added, settings, "secretmanager.versions.add")
    return whole


def delete(settings: Settings, whole: str, labels: Mapping[str, str]) -> bool:
    """Remove a secret with all its versions, if it has these labels; True once it is gone.

    Whatever its name: nothing is removed that was not kept by `put`, for this very job.
    """
    path = path_of(whole)
    with google(settings) as api:
        found = api.call("GET", SERVICE, path)
        if not found.ok:
            return found.status == 404
        told = found.body.get("labels")
        if not isinstance(told, dict) or any(told.get(name) != value for name, value in labels.items()):
            return False
        return api.call("DELETE", SERVICE, path).status in (200, 404)


def kept(settings: Settings, label: str, value: str) -> Iterator[Kept]:
    """The secrets with this label that are still there."""
    token = ""
    with google(settings) as api:
        while True:
            params = {"filter": f"labels.{label}={value}", "pageSize": "1000"}
            path = f"v1/projects/{quote(settings.project, safe=':')}/secrets"
            page = api.call("GET", SERVICE, path, params=params | ({"pageToken": token} if token else {}))
            _check(page, settings, "secretmanager.secrets.list")
            for entry in page.body.get("secrets", ()):
                labels = entry.get("labels", {})
                if labels.get(label) == value:
                    yield Kept(entry["name"], labels, _time(entry.get("expireTime", "")))
            token = page.body.get("nextPageToken", "")
            if not token:
                return


def _check(answer: Answer, settings: Settings, permission: str) -> None:
    if answer.ok:
        return
    status = answer.status_of()
    needed = {"metadata": {"permission": permission, "service": f"{SERVICE}.googleapis.com"}}
    trouble = troubles.classify(status._replace(details=(needed, *status.details)), Asked(settings.project))
    raise BackendError(f"a secret could not be kept in Secret Manager: {trouble.sentence}", trouble.cause)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
