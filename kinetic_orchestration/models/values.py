"""The values of a promotion: files of a model, what a check is given, and what a promotion returns.

Frozen, and without input or output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

_TEXT: Final = 500  # characters of a value in a flat table


class ModelFile(NamedTuple):
    """A file of a model directory.

    Attributes:
        name: Its path in the directory, with slashes.
        size: Its bytes.
        marks: What is known of its content without a copy: digests and checksums by their algorithm.
        generation: Which object it is, in a bucket; "" in a folder.
    """

    name: str
    size: int
    marks: Mapping[str, str] = {}
    generation: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a model in a registry.

    Attributes:
        registry: Address of the registry.
        name: The model's name there.
        version: The version's number there.
        aliases: Aliases that this call has pointed to it.
        created: True if this call has made the version, False if it was there.
    """

    registry: str
    name: str
    version: str
    aliases: tuple[str, ...] = ()
    created: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be promoted, as a check gets it.

    Attributes:
        uri: Address of its directory.
        name: Name of the model.
        kind: Kind of directory, such as "safetensors" or "keras".
        digest: Digest of its files.
        size: Bytes of all its files.
        files: Names of its files.
        metrics: Metrics given to `promote`, over the last ones that the job reported.
        lineage: What its version would say of where it comes from.
        parent: Lineage of the parent, None without one. Its metrics are `parent["metrics"]`.
    """

    uri: str
    name: str
    kind: str
    digest: str
    size: int
    files: tuple[str, ...]
    metrics: Mapping[str, float]
    lineage: Mapping[str, Any]
    parent: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Promoted:
    """A version of a model.

    Attributes:
        name: Name of the model.
        version: Name of the version: the first sixteen letters of its digest.
        uri: Address of its directory, which is never changed.
        digest: Digest of its files, see `lineage["covers"]`.
        kind: Kind of directory, such as "safetensors" or "keras".
        lineage: Content of its `lineage.json`.
        created: True if this call has made it, False if it was there.
        aliases: Aliases that this call has pointed to it.
        registered: The version in the registry, None without one.
        moved: How its bytes were copied: "in the store", "through this machine" or "" if they were there.
    """

    name: str
    version: str
    uri: str
    digest: str
    kind: str
    lineage: Mapping[str, Any] = field(repr=False)
    created: bool = False
    aliases: tuple[str, ...] = ()
    registered: Registered | None = None
    moved: str = ""

    @property
    def metadata(self) -> dict[str, str | int | float]:
        """The facts of the version as one flat table of plain values, as metadata of an orchestrator take them."""
        return flat(self.lineage)


def flat(lineage: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the facts of a lineage as one table of plain values: for tags, and for metadata of an orchestrator."""
    job, code = lineage.get("job") or {}, lineage.get("code") or {}
    cost, lock = lineage.get("cost") or {}, lineage.get("requirements") or {}
    parent = lineage.get("parent") or {}
    data = ", ".join(str(piece.get("digest", "")) for piece in lineage.get("data") or ())
    found: dict[str, Any] = {
        "kinetic.version": lineage["version"], "kinetic.digest": lineage["digest"], "kinetic.uri": lineage.get("uri"),
        "kinetic.kind": lineage["kind"], "kinetic.size": lineage.get("size"), "kinetic.job": job.get("id"),
        "kinetic.job_status": job.get("status"),
        "kinetic.code": code.get("tree"), "kinetic.lock": lock.get("lock"), "kinetic.data": data,
        "kinetic.cost_usd": cost.get("usd"), "kinetic.parent": parent.get("version"),
    }  # fmt: skip
    found |= {f"metric.{name}": value for name, value in (lineage.get("metrics") or {}).items()}
    return {
        name: value[:_TEXT] if isinstance(value, str) else value
        for name, value in found.items()
        if value not in (None, "") and isinstance(value, str | int | float)
    }
