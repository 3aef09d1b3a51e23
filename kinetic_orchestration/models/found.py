"""A model directory as it was found: the value that an inspection returns, and that all later steps take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_orchestration.models.directory import digest_of
from kinetic_orchestration.models.places.place import Place
from kinetic_orchestration.models.values import ModelFile


@dataclass(frozen=True, slots=True)
class Found:
    """A model directory.

    Attributes:
        place: The place that it is.
        files: Its files, with the marks that its digest covers.
        kind: Kind of directory.
        before: Lineage of the version that it is itself, if it is one.
    """

    place: Place
    files: tuple[ModelFile, ...]
    kind: str
    before: Mapping[str, Any] | None = None

    @property
    def digest(self) -> str:
        """Digest of its files."""
        return digest_of(self.files)
