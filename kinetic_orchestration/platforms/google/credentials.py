"""The Google Cloud credentials of this process: passed in by an orchestrator, impersonated, or the application default.

It owns the order in which they are tried, and the error if there are none. It does not know what the credentials are
used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.plan.configuration import settings as settings_module
from kinetic_orchestration.plan.configuration.settings import Settings

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LOGIN = "gcloud auth application-default login"


class _HandedIn(NamedTuple):
    credentials: Any
    project: str


_handed_in: ContextVar[_HandedIn | None] = ContextVar("kinetic_credentials", default=None)


@contextmanager
def handed_in(credentials: Any, project: str = "") -> Iterator[None]:
    """Within the block, use the credentials of an orchestrator's connection instead of the application default."""
    token = _handed_in.set(_HandedIn(credentials, project))
    try:
        yield
    finally:
        _handed_in.reset(token)


def as_now() -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager factory by which other threads (those that watch and release) use the current
    credentials."""
    handed = _handed_in.get()
    return nullcontext if handed is None else partial(handed_in, *handed)


def credentials(settings: Settings | None = None) -> Any:
    """The google.auth credentials of this process; those of the same settings are the same object."""
    settings = settings or _settings()
    handed = _handed_in.get()
    if handed is not None:
        return _with_quota(handed.credentials, settings.quota_project)
    if _emulated(settings):
        return anonymous()
    return _found(settings.impersonate, settings.quota_project)


def project(settings: Settings | None = None) -> str:
    """The project of the credentials passed in, else that of the settings, else the default credentials' own; "" if
    none."""
    settings = settings or _settings()
    handed = _handed_in.get()
    if handed is not None and handed.project:
        return handed.project
    if settings.project or _emulated(settings) or handed is not None:
        return settings.project
    return _default()[1]


def _settings() -> Settings:
    return settings_module.load(store="", deployment="local")  # the store does not matter here


def _emulated(settings: Settings) -> bool:
    return bool(settings.emulator or settings.storage_emulator)


def is_emulated() -> bool:
    """Return True if this process uses an emulator instead of Google Cloud, and so needs no credentials."""
    return _emulated(_settings())


@lru_cache(maxsize=1)
def anonymous() -> Any:
    """Anonymous credentials, which an emulator accepts."""
    from google.auth import credentials

    nobody: Any = credentials.AnonymousCredentials
    return nobody()


@lru_cache(maxsize=8)
def _found(impersonate: str, quota_project: str) -> Any:
    source = _default()[0]
    if impersonate:
        from google.auth import impersonated_credentials

        # Its user requests new tokens an hour later.
        acting: Any = impersonated_credentials.Credentials
        source = acting(source, target_principal=impersonate, target_scopes=[SCOPE])
    return _with_quota(source, quota_project)


@lru_cache(maxsize=1)
def _default() -> tuple[Any, str]:
    import google.auth
    from google.auth import exceptions

    try:
        found, project = google.auth.default(scopes=[SCOPE])
    except exceptions.DefaultCredentialsError as error:
        raise CredentialsError(
            f"Google Cloud does not know who you are: {str(error).partition('. To set up')[0].rstrip('.')}. Run "
            f"'{LOGIN}', or set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account."
        ) from error
    return found, project or ""


def _with_quota(credentials: Any, quota_project: str) -> Any:
    if not quota_project or not hasattr(credentials, "with_quota_project"):
        return credentials
    return _quota(credentials, quota_project)


@lru_cache(maxsize=8)
def _quota(credentials: Any, quota_project: str) -> Any:
    return credentials.with_quota_project(quota_project)


def refused(error: Exception) -> CredentialsError:
    """The error for credentials that give no token (google.auth.exceptions.RefreshError), with advice."""
    message = " ".join(str(part) for part in error.args if isinstance(part, str)) or str(error)
    if "getAccessToken" in message or "impersonated credentials" in message:
        advice = (
            "to act as another service account you need roles/iam.serviceAccountTokenCreator on it: gcloud iam "
            "service-accounts add-iam-policy-binding ACCOUNT --member=user:YOU "
            "--role=roles/iam.serviceAccountTokenCreator"
        )
    else:
        advice = f"they may have expired or been revoked; run '{LOGIN}'"
    return CredentialsError(f"Google Cloud refused the credentials: {message.rstrip('.')}. What helps: {advice}.")
