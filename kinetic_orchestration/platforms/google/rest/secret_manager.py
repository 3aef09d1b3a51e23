"""Secrets of a job in Secret Manager, with an expiry: values that must not be in a store on their way to a host.

The submitter writes a secret, the hosts read it with their own account, and it is removed when the job's value is
collected; a forgotten one expires. The module knows names and values, not their use.

A job on this machine gets the same secrets: the submitter reads them with its own credentials.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from kinetic_orchestration.errors import BackendError, CredentialsError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import Answer, google
from kinetic_orchestration.protocol import schema

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
            there = api.call("GET", SERVICE, path)
            if there.ok and any(there.body.get("labels", {}).get(key) != text for key, text in labels.items()):
                raise BackendError(
                    f"{whole} is there already, and is none of this job's: it is left as it is. Find out who made it",
                    "configuration",
                )
            later = {"expireTime": body["expireTime"]}
            made = api.call("PATCH", SERVICE, path, later, {"updateMask": "expireTime"})
        _check(made, settings, "secretmanager.secrets.create")
        payload = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
        added = api.call("POST", SERVICE, f"{path}:addVersion", payload)
        _check(added, settings, "secretmanager.versions.add")
    return whole


def check_readable(settings: Settings, wanted: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Refuse, before anything is sent, what `read_values` could never find. Nothing is asked."""
    for variable, secret in wanted.items():
        try:
            schema.secret_ref(secret)
        except schema.Wrong:
            raise UsageError(
                f"secrets={{{variable!r}: {secret!r}}} is no name of a secret: write the name that it has in Secret "
                "Manager, or projects/PROJECT/secrets/NAME, or that with /versions/NUMBER"
            ) from None
        try:
            _whole(settings, secret)
            credentials.credentials(settings)
        except CredentialsError as error:
            _from(environ, variable, secret, error)


def read_values(settings: Settings, wanted: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of secrets by the variables that are to hold them, as the hosts of Cloud TPU get them, but read with
    the credentials of this process. Without a project or credentials, the variable itself is used.
    """
    check_readable(settings, wanted, environ)
    return {variable: _read_value(settings, variable, secret, environ) for variable, secret in wanted.items()}


def _read_value(settings: Settings, variable: str, secret: str, environ: Mapping[str, str]) -> str:
    try:
        whole = _whole(settings, secret)
        with google(settings) as api:
            answer = api.call(
                "GET", SERVICE, f"v1/{whole if '/versions/' in whole else f'{whole}/versions/latest'}:access"
            )
    except CredentialsError as error:
        return _from(environ, variable, secret, error)
    if answer.status == 404:
        project, name = whole.split("/")[1::2][:2]
        raise UsageError(
            f"there is no {whole} for {variable} in Secret Manager: {answer.status_of().message}. Look at gcloud "
            f"secrets versions list {name} --project={project}, or make it with gcloud secrets create {name} "
            f"--project={project} --data-file=-"
        )
    if answer.status == 403:
        raise UsageError(
            f"the secret {whole} for {variable} could not be read: {answer.status_of().message}. On this machine the "
            "secrets of a job are read with your own credentials, which need roles/secretmanager.secretAccessor on it"
        )
    _check(answer, settings, "secretmanager.versions.access", "read from")
    with _readable(f"the value of {whole}"):
        value = base64.b64decode(answer.body["payload"]["data"], validate=True)
    return value.decode("utf-8", "surrogateescape")


def _whole(settings: Settings, secret: str) -> str:
    if secret.startswith("projects/"):
        return secret
    if not (project := credentials.project(settings)):
        raise CredentialsError("no Google Cloud project is named")
    return resource(project, secret)


def _from(environ: Mapping[str, str], variable: str, secret: str, error: CredentialsError) -> str:
    if variable not in environ:
        raise UsageError(
            f"the secret {secret} for {variable} cannot be read on this machine: {str(error).rstrip('.')}. Set the "
            f"variable itself (export {variable}=…), or name the project with KINETIC_PROJECT and log in with "
            f"'{credentials.LOGIN}'"
        ) from None
    warn_once(
        f"{variable} is the one of this environment, not Secret Manager's {secret}: {str(error).partition('. ')[0]}"
    )
    return environ[variable]


def delete(settings: Settings, whole: str, labels: Mapping[str, str]) -> bool:
    """Remove a secret with all its versions, if it has these labels; True once it is gone.

    Only secrets that `put` stored for this very job are removed, regardless of the name.
    """
    path = path_of(whole)
    with google(settings) as api:
        found = api.call("GET", SERVICE, path)
        if not found.ok:
            return found.status == 404
        labels_there = found.body.get("labels")
        if not isinstance(labels_there, dict) or any(labels_there.get(name) != value for name, value in labels.items()):
            return False
        return api.call("DELETE", SERVICE, path).status in (200, 404)


def with_label(settings: Settings, label: str, value: str) -> Iterator[Kept]:
    """The secrets with this label that are still there."""
    token = ""
    with google(settings) as api:
        while True:
            params = {"filter": f"labels.{label}={value}", "pageSize": "1000"}
            path = f"v1/projects/{quote(settings.project, safe=':')}/secrets"
            page = api.call("GET", SERVICE, path, params=params | ({"pageToken": token} if token else {}))
            _check(page, settings, "secretmanager.secrets.list")
            with _readable("the list of secrets"):
                found = [_kept(entry) for entry in page.body.get("secrets", ())]
                token = str(page.body.get("nextPageToken", ""))
            yield from (kept for kept in found if kept.labels.get(label) == value)
            if not token:
                return


def _kept(entry: Mapping[str, Any]) -> Kept:
    return Kept(str(entry["name"]), dict(entry.get("labels", {})), _time(entry.get("expireTime", "")))


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Convert parse errors within the block to a BackendError: Secret Manager sent an invalid answer."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BackendError(
            f"{what} came from Secret Manager as what cannot be read ({type(error).__name__}: {error})",
            "infrastructure",
        ) from error


def _check(answer: Answer, settings: Settings, permission: str, what: str = "kept in") -> None:
    if answer.ok:
        return
    status = answer.status_of()
    needed = {"metadata": {"permission": permission, "service": f"{SERVICE}.googleapis.com"}}
    trouble = api_errors.classify(status._replace(details=(needed, *status.details)), CallContext(settings.project))
    raise BackendError(f"a secret could not be {what} Secret Manager: {trouble.sentence}", trouble.cause)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
