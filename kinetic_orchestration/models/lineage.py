"""The lineage of a version: the document beside its files, as it is written and read. Pure.

What a job, its code and its cost are comes from the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import Corrupt, NewerWire, UsageError
from kinetic_orchestration.models.directory import agree, covered, covers, version_of
from kinetic_orchestration.models.found import Found
from kinetic_orchestration.models.values import ModelFile

WIRE: Final = 1
LIMIT: Final = 64 << 20  # bytes: of a directory of 100,000 files it has 20 million
_CARRIED: Final = ("job", "code", "requirements", "cost", "data", "metrics")


def compose(
    name: str,
    found: Found,
    *,
    job: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    data: Sequence[str] = (),
    parent: Mapping[str, Any] | None = None,
    now: float = 0.0,
) -> dict[str, Any]:
    """Return the lineage of a model.

    Args:
        name: Name of the model.
        found: Its directory.
        job: Fields about its job, as far as they are known: `job`, `code`, `data`, `requirements`, `cost`, `metrics`.
        metrics: Metrics that the caller gave, which win over the job's.
        data: Digests that the caller gave, besides the job's data.
        parent: Lineage of the version that this one continues or replaces.
        now: Time of the promotion.
    """
    files, before, digest = found.files, found.before, found.digest
    known: dict[str, Any] = {key: before[key] for key in _CARRIED if before is not None and before.get(key)}
    known |= {key: value for key, value in (job or {}).items() if value}
    pieces = [*known.get("data", ()), *({"digest": one} for one in data)]
    return {
        "kinetic": WIRE,
        "release": __version__,
        "name": name,
        "version": version_of(digest),
        "digest": digest,
        "covers": covers(files),
        "kind": found.kind,
        "size": sum(file.size for file in files),
        "source": found.place.address,
        "promoted_at": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "job": known.get("job"),
        "code": known.get("code"),
        "requirements": known.get("requirements"),
        "data": list({json.dumps(one, sort_keys=True): one for one in pieces}.values()),
        "metrics": {**known.get("metrics", {}), **check_metrics(metrics or {})},
        "cost": known.get("cost"),
        "parent": brief(parent),
        "from_version": brief(before),
        "files": [{"name": file.name, "size": file.size, **covered(file)} for file in files],
    }


def differing(lineage: Mapping[str, Any], files: Sequence[ModelFile]) -> list[str]:
    """Return the names of files that are not as a lineage says, by what both know of them; of one without a list of
    files, none."""
    listed = lineage.get("files")
    known = {str(one.get("name")): one for one in listed if isinstance(one, dict)} if isinstance(listed, list) else {}
    if not known:
        return []
    there = {file.name: file for file in files}
    wrong = set(known) ^ set(there)
    for name in set(known) & set(there):
        marks = {mark: str(value) for mark, value in known[name].items() if mark not in ("name", "size")}
        if known[name].get("size") != there[name].size or agree(marks, there[name].marks) is False:
            wrong.add(name)
    return sorted(wrong)


def check_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as plain numbers. Raises UsageError for what is none, or not finite, which no registry takes."""
    found = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not isinstance(name, str) or not name or not math.isfinite(number):
            raise UsageError(f"metrics={{{name!r}: {value!r}}}: give names with finite numbers")
        found[name] = number
    return found


def brief(lineage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a lineage says of another version: enough to find it and to compare with it."""
    if lineage is None:
        return None
    return {key: lineage.get(key) for key in ("name", "version", "digest", "uri", "metrics")}


def encode(lineage: Mapping[str, Any]) -> bytes:
    """Return the document as it is stored."""
    return (json.dumps(lineage, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def decode(data: bytes, address: str) -> dict[str, Any]:
    """Return a lineage that was read.

    Raises:
        Corrupt: It is none.
        NewerWire: A newer version of this package has written it.
    """
    try:
        found = json.loads(data)
        wire = found["kinetic"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupt(
            f"{address} cannot be read as the lineage of a model: it was changed, or is another's file"
        ) from None
    if not isinstance(wire, int) or wire > WIRE:
        raise NewerWire(f"{address} was written by a newer version of kinetic-orchestration: update it here")
    texts = [found.get(key) for key in ("name", "version", "digest", "kind")]
    if not all(isinstance(text, str) for text in texts) or version_of(found["digest"]) != found["version"]:
        raise Corrupt(f"{address} cannot be read as the lineage of a model: its version is not that of its digest")
    if not isinstance(found.get("metrics"), dict):
        raise Corrupt(f"{address} cannot be read as the lineage of a model: it has no metrics")
    return dict(found)
