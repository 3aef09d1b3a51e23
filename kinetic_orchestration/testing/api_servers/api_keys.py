"""API keys, as the public APIs of Google take them: each belongs to a project, and may be restricted.

A key that nobody made is refused whatever is asked (400), one that is restricted where it must not be used (403), in
the words and with the reasons of Google's own front end. It does not know what is asked.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from kinetic_orchestration.testing.api_rules import refusals

_METHODS = {  # of the paths that a key alone may ask for
    re.compile(r"/v1/services/[^/]+/skus"): (
        "cloudbilling.googleapis.com", "google.cloud.billing.v1.CloudCatalog.ListSkus",
    ),
}  # fmt: skip
_ANY = ("", "")


class ApiKey(NamedTuple):
    project: str
    services: tuple[str, ...] = ()  # for which alone it may be used; () for all
    elsewhere: bool = False  # it may be used from other addresses alone


class ApiKeys:
    """The keys of an emulated cloud."""

    def __init__(self) -> None:
        self._keys: dict[str, ApiKey] = {}

    def add(self, project: str, *services: str, elsewhere: bool = False) -> str:
        """Make a key of a project, restricted to these services if there are some, and return its text."""
        text = f"AIza{secrets.token_urlsafe(32)[:35]}"
        self._keys[text] = ApiKey(project, services, elsewhere)
        return text

    def remove(self, text: str) -> None:
        del self._keys[text]

    def project_of(self, text: str, path: str) -> str:
        """Return the project that a call counts against. Raises Refusal for a key that must not make the call."""
        known = self._keys.get(text)
        service, method = next((told for form, told in _METHODS.items() if form.fullmatch(path)), _ANY)
        if known is None:
            raise refusals.key_invalid(service)
        if known.elsewhere:
            raise refusals.key_of_other_addresses(service, known.project)
        if known.services and service not in known.services:
            raise refusals.key_of_other_services(service, method, known.project)
        return known.project
