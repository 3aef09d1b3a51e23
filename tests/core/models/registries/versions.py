"""A version of a model as a registry gets it."""

from __future__ import annotations

from kinetic_orchestration.models import lineage
from kinetic_orchestration.models.found import Found
from kinetic_orchestration.models.places.folder import Folder
from kinetic_orchestration.models.values import ModelFile, Promoted


def version(name: str = "ranker", place: str = "gs://models/ranker", content: str = "0", **more: object) -> Promoted:
    """Return a version with a lineage of one file."""
    files = [ModelFile("model.keras", 3, {"sha256": content * 64})]
    told = lineage.compose(name, Found(Folder("/outputs/model"), tuple(files), "keras"), **more)  # type: ignore[arg-type]
    uri = f"{place}/{told['version']}"
    return Promoted(name, told["version"], uri, told["digest"], "keras", {**told, "uri": uri})
