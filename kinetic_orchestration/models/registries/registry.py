"""The protocol of a registry of models, and the errors that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from kinetic_orchestration.errors import RegistryError
from kinetic_orchestration.models.values import Promoted, Registered


@runtime_checkable
class Registry(Protocol):
    """A registry. Every verb may be repeated: what is there already is found by the digest."""

    def planned(self, promoted: Promoted, alias: str) -> list[Mapping[str, Any]]:
        """Return the requests that would register a version, as `method`, `url` and `body`. Pure."""

    def register(self, promoted: Promoted, alias: str) -> Registered:
        """Register a version, unless it is registered, and let an alias point to it. Raises RegistryError."""

    def point(self, promoted: Promoted, alias: str) -> Registered:
        """Let an alias point to a version that is registered. Raises RegistryError if it is not."""


REPEAT = "The version stays in its store: the same call registers it once that is repaired, and copies nothing again"


def away(registry: str, why: str) -> RegistryError:
    """Return the error for a registry that does not answer."""
    return RegistryError(f"the registry {registry} does not answer ({why}). {REPEAT}")


def unknown(registry: str, promoted: Promoted) -> RegistryError:
    """Return the error for a version that a registry does not have."""
    return RegistryError(
        f"the registry {registry} has no version of {promoted.name} with the digest {promoted.digest}: promote "
        f"{promoted.uri} with registry= first"
    )
