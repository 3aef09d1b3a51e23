"""`promote` and `move_alias`: a model becomes a version that serving can rely on, in its store and in a registry.

It joins what the job's records say with the steps in `models/`. What a model directory is, how it is copied and what a
registry is asked is theirs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.printer import say, write
from kinetic_orchestration.api.steps.job_facts import facts_of, handle_of
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models import copying, directory, lineage, promotion
from kinetic_orchestration.models.found import Found
from kinetic_orchestration.models.places.opening import open_place
from kinetic_orchestration.models.places.place import Place
from kinetic_orchestration.models.promotion import Check
from kinetic_orchestration.models.registries.mlflow import MLflow
from kinetic_orchestration.models.registries.registry import Registry
from kinetic_orchestration.models.registries.vertex import Vertex
from kinetic_orchestration.models.values import Candidate, Promoted, Registered
from kinetic_orchestration.plan.messages import size

__all__ = ["Candidate", "MLflow", "Promoted", "Registered", "Vertex", "move_alias", "promote"]


def promote(
    model: str | os.PathLike[str] | JobHandle[Any],
    to: str | os.PathLike[str],
    *,
    name: str = "",
    alias: str = "",
    kind: str = "",
    check: Check | object | None = None,
    job: JobHandle[Any] | str | None = None,
    metrics: Mapping[str, float] | None = None,
    data: Sequence[str] = (),
    parent: Promoted | str | None = None,
    registry: Registry | None = None,
    allow_failed: bool = False,
    dry_run: bool = False,
) -> Promoted:
    """Make a version of a model directory: checked, copied, with its lineage, and registered.

    The version is the folder `to/VERSION`, named by the model's content. It exists as soon as its `lineage.json` does,
    which is written last. The same call again finds it, copies nothing, and registers what is not registered.

    Args:
        model: Model directory: a folder, `gs://…` or `s3://…`; or the handle of the job whose `output_dir` it is.
        to: Place for the versions of one model: a folder, `gs://bucket/folder` or `s3://bucket/folder`.
        name: Name of the model; by default the last part of `to`.
        alias: Alias that shall point to the version, in `to` and in the registry, such as "champion".
        kind: Name for a layout that is not known here; the directory is then taken as it is.
        check: Callable that takes a `Candidate`, or a result; True and False, or an object with `passed` and `reasons`.
        job: Job that made the model, if it is not in that job's folder of outputs.
        metrics: Metrics of the model, over the last ones that its job reported.
        data: Digests of data, besides those of the job.
        parent: Version that this one continues or replaces: a name, an alias or an address; by default the one to which
            `alias` points.
        registry: `kinetic.MLflow(…)` or `kinetic.Vertex(…)`.
        allow_failed: Also promote what a job has left that failed or was cancelled, as a model that is meant to be
            taken before its training is over. Its lineage says how the job ended.
        dry_run: Print what would be copied, and what the registry would be sent, and do none of it.

    Returns:
        The version.

    Raises:
        NotAModel: `model` is no model directory, or is not complete.
        PromotionRefused: The check said no, or the job that made the model did not succeed: nothing was copied or
            registered. Or the alias moved while the check was asked, so that it has not compared with what
            serves now: the version is there, and nothing points to it.
        RegistryError: The version is there, and the registry refused it or did not answer.
        StoreError: A store refused, or the model changed while it was copied.
    """
    handle = model if isinstance(model, JobHandle) else None
    target = open_place(to)
    name = name or target.address.rstrip("/").rpartition("/")[2]
    _check_names(name, alias, registry)
    source = model.output_dir if isinstance(model, JobHandle) else os.fspath(model)
    handle = handle_of(model if job is None and isinstance(model, JobHandle) else job, source)
    of_job = facts_of(handle) if handle is not None else None
    found = promotion.inspect(source, kind)
    _check_apart(found, target)
    current = promotion.alias_at(target, alias) if alias else None
    before = _parent(parent, current, target, found.digest)
    told = lineage.compose(name, found, job=of_job, metrics=metrics, data=data, parent=before, now=time.time())
    if not allow_failed:
        promotion.check_succeeded(found.place.address, told)
    reasons = promotion.judge(_candidate(found, told, before), check)
    told["check"] = {"passed": True, "reasons": list(reasons)} if check is not None else None
    planned = promotion.promoted_of({**told, "uri": target.address_of(told["version"])}, target)
    requests = registry.planned(planned, alias) if registry is not None else []  # also refuses what it cannot take
    if dry_run:
        _show(planned, found, target, requests)
        return planned
    _say_how(found, target, told)
    promoted = promotion.keep(found, target, told)
    if check is not None and parent is None and alias:
        promotion.check_unmoved(target, alias, current, promoted)
    return _named(promoted, target, alias, registry)


def move_alias(
    to: str | os.PathLike[str], alias: str, version: str = "", *, registry: Registry | None = None
) -> Promoted:
    """Let an alias point to another version of a model, in its place and in the registry: a rollback in one call.

    Args:
        to: Place of the model's versions.
        alias: The alias.
        version: Name, alias or address of the version; by default the one that the alias pointed to before.
        registry: `kinetic.MLflow(…)` or `kinetic.Vertex(…)`, if the version is registered there.

    Returns:
        The version to which the alias points now.

    Raises:
        UsageError: There is no such version, or the alias pointed to no other before.
        RegistryError: The registry refused, or does not have the version. The alias in the place is as it was.
    """
    target = open_place(to)
    directory.check_label(alias)
    if not version:
        current = promotion.alias_at(target, alias)
        version = current["previous"] if current is not None else ""
        if not version:
            raise UsageError(f"the alias {alias!r} in {target.address} pointed to no other version before: name one")
    there = promotion.lineage_of(version, target)
    if promotion.version_at(target, there["version"]) is None:
        raise UsageError(f"{version} is a version of another place than {target.address}: promote it there first")
    promoted = promotion.promoted_of(there, target)
    registered = registry.point(promoted, alias) if registry is not None else None
    promotion.point(target, alias, promoted.version)
    return replace(promoted, aliases=(alias,), registered=registered)


def _named(promoted: Promoted, target: Place, alias: str, registry: Registry | None) -> Promoted:
    """Register a version that exists, then let the alias of its place point to it: that says that all is done."""
    registered = registry.register(promoted, alias) if registry is not None else None
    if alias:
        promotion.point(target, alias, promoted.version)
    return replace(promoted, registered=registered, aliases=(alias,) if alias else ())


def _parent(
    parent: Promoted | str | None, current: Mapping[str, Any] | None, target: Place, digest: str
) -> dict[str, Any] | None:
    """Return the lineage of the parent, by default that of the alias as it is now; of a version that is there already,
    that which it names."""
    if parent is not None:
        return promotion.lineage_of(parent.uri if isinstance(parent, Promoted) else parent, target)
    if current is None:
        return None
    found = promotion.version_at(target, current["version"])
    if found is not None and found["digest"] == digest:  # this version is promoted again
        return found.get("parent")
    return found


def _candidate(found: Found, told: Mapping[str, Any], parent: Mapping[str, Any] | None) -> Candidate:
    return Candidate(
        uri=found.place.address,
        name=told["name"],
        kind=found.kind,
        digest=told["digest"],
        size=told["size"],
        files=tuple(file.name for file in found.files),
        metrics=dict(told["metrics"]),
        lineage=told,
        parent=parent,
    )


def _check_names(name: str, alias: str, registry: Registry | None) -> None:
    for label in (name, alias or name):
        directory.check_label(label)
    if registry is not None and not isinstance(registry, Registry):
        raise UsageError(f"registry={registry!r}: give kinetic.MLflow(…) or kinetic.Vertex(…)")


def _say_how(found: Found, target: Place, told: Mapping[str, Any]) -> None:
    """Tell if bytes are about to pass through this machine."""
    if not copying.copies_inside(found.place, target) and promotion.version_at(target, told["version"]) is None:
        say(
            f"{size(told['size'])} of {told['name']} pass through this machine, since {found.place.address} and "
            f"{target.address} are in different stores"
        )


def _check_apart(found: Found, target: Place) -> None:
    """Refuse a place of versions inside of the model: its next version would contain the one before."""
    inside = f"{target.address}/".startswith(f"{found.place.address}/") and found.place.store == target.store
    if inside:
        raise UsageError(
            f"to={target.address!r} is in the model directory {found.place.address}: name a place outside of it"
        )


def _show(planned: Promoted, found: Found, target: Place, requests: Sequence[Mapping[str, Any]]) -> None:
    """Print what a promotion would do."""
    there = promotion.version_at(target, planned.version) is not None
    how = copying.INSIDE if copying.copies_inside(found.place, target) else copying.THROUGH
    total = size(sum(file.size for file in found.files))
    first = "is there" if there else f"{len(found.files)} files, {total}, would be copied {how}"
    lines = [f"{planned.uri}: {first}", json.dumps(planned.lineage, indent=2, ensure_ascii=False)]
    for one in requests:
        lines += [f"{one['method']} {one['url']}", json.dumps(one["body"], indent=2, ensure_ascii=False)]
    write("\n".join(lines) + "\n")
