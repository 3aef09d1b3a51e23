"""The steps of a promotion in the store: a directory is inspected, judged, copied and named, and aliases point to it.

`lineage.json` is written last and never changed: a version exists when it does. Versions are named by their content, so
that any number of processes may promote the same model, and each of them may be killed at any moment.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import Corrupt, PromotionRefused, UsageError
from kinetic_orchestration.models import copying, directory
from kinetic_orchestration.models import lineage as lineages
from kinetic_orchestration.models.directory import LINEAGE
from kinetic_orchestration.models.found import Found
from kinetic_orchestration.models.places.opening import open_place
from kinetic_orchestration.models.places.place import Place, check_file
from kinetic_orchestration.models.values import Candidate, Promoted
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.plan.values import JobStatus

ALIASES: Final = "aliases"
_ALIAS_LIMIT: Final = 1 << 16
_VERSION: Final = re.compile(rf"[0-9a-f]{{{directory.VERSION_LETTERS}}}")
_SUCCEEDED: Final = JobStatus.SUCCEEDED.value
_REASONS: Final = 10
_REASON: Final = 1000  # characters

Check = Callable[[Candidate], object]


def inspect(model: str, kind: str = "") -> Found:
    """Look at a model directory. Raises NotAModel if it is none, UsageError for a name that cannot be copied, and
    Corrupt if it has the lineage of other files."""
    place = open_place(model)
    listed = place.list("")
    files = directory.files_of(listed)
    for file in files:
        check_file(file.name)

    def read(name: str) -> bytes:
        return place.read(name, directory.INDEX_LIMIT) or b""

    before = None
    if any(file.name == LINEAGE for file in listed):
        before = _lineage_in(place, "")
    found = directory.kind_of(files, place.address, kind or (before or {}).get("kind", ""), read)
    marked = tuple(place.marked("", files))
    if before is not None and (wrong := lineages.differing(before, marked)):
        raise Corrupt(
            f"{place.address} has the lineage of version {before['version']}, and other files than that "
            f"({directory.some(wrong)}): it was damaged, or changed since. If it is another model by now, remove "
            f"{LINEAGE}, which is not of it"
        )
    return Found(place, marked, found, before)


def check_succeeded(model: str, lineage: Mapping[str, Any]) -> None:
    """Raise PromotionRefused if the job that made a model did not succeed: its last files may be missing or half
    trained.

    Args:
        model: Address of the model.
        lineage: Lineage of the model, which has its job, or that of the version that the model already is.
    """
    job = lineage.get("job") or {}
    status = str(job.get("status") or _SUCCEEDED)
    if status == _SUCCEEDED:
        return
    ended = f"{job.get('id')}, which made it, has ended as {status.lower()}"
    raise PromotionRefused(
        f"the model in {model} is not promoted: {ended}, so it may be half trained, or lack files. Nothing was copied "
        f"or registered. Its log: `{command('logs', str(job.get('id')))}`. Promote the model of a job that succeeded; "
        "or, if this one is meant as it is, promote it with allow_failed=True",
        (ended,),
    )


def judge(candidate: Candidate, check: Check | object | None) -> tuple[str, ...]:
    """Let a check decide about a model.

    Args:
        candidate: The model.
        check: A callable that takes the candidate, or a result; both by `passed` or as True or False.

    Returns:
        The reasons that it gives for its yes.

    Raises:
        PromotionRefused: It says no.
        UsageError: It says neither.
    """
    if check is None:
        return ()
    result = check(candidate) if callable(check) and not hasattr(check, "passed") else check
    passed = getattr(result, "passed", result)
    if not isinstance(passed, bool) and type(passed).__name__ not in ("bool_", "bool"):  # numpy's
        raise UsageError(
            f"the check of {candidate.name} returned {result!r:.200}: return True or False, or an object with passed= "
            "and reasons="
        )
    reasons = _reasons(result)
    if passed:
        return reasons
    told = "; ".join(reasons) or "it gave no reason"
    raise PromotionRefused(
        f"the model in {candidate.uri} is not promoted: its check said no ({told}). Nothing was copied or registered",
        reasons,
    )


def _reasons(result: object) -> tuple[str, ...]:
    for attribute in ("reasons", "reason", "description"):
        told = getattr(result, attribute, None)
        if isinstance(told, str) and told:
            return (told[:_REASON],)
        if isinstance(told, Sequence) and told:
            return tuple(str(one)[:_REASON] for one in told[:_REASONS])
    return ()


def keep(found: Found, target: Place, lineage: Mapping[str, Any]) -> Promoted:
    """Make the version of a model in its place, or find it there.

    Args:
        found: The model directory.
        target: The place of the model's versions.
        lineage: Its lineage.
    """
    version = str(lineage["version"])
    name = f"{version}/{LINEAGE}"
    moved, created = "", False
    known = version_at(target, version)
    if known is None:
        moved = copying.copy(found.place, found.files, target, version)
        created = target.create(name, lineages.encode({**lineage, "uri": target.address_of(version)}))
        known = version_at(target, version)
        if known is None:
            raise Corrupt(f"{target.address_of(name)} was removed as soon as it was written: promote the model again")
    if known["digest"] != lineage["digest"]:
        raise Corrupt(f"{target.address_of(name)} is of another model: its digest begins like that of this one")
    if not created:
        copying.verify(found.files, target, version, read=False)
    return promoted_of(known, target, created=created, moved=moved)


def promoted_of(lineage: Mapping[str, Any], target: Place, *, created: bool = False, moved: str = "") -> Promoted:
    """Return the version that a lineage in a place is of."""
    version = lineage["version"]
    return Promoted(
        lineage["name"], version, target.address_of(version), lineage["digest"], lineage["kind"], lineage, created,
        moved=moved,
    )  # fmt: skip


def version_at(target: Place, version: str) -> dict[str, Any] | None:
    """Return the lineage of a version, None if the version does not exist."""
    return _lineage_in(target, version)


def _lineage_in(place: Place, folder: str) -> dict[str, Any] | None:
    name = f"{folder}/{LINEAGE}" if folder else LINEAGE
    data = place.read(name, lineages.LIMIT)
    if data is None:
        return None
    # Where it lies now counts, not where it was written: a bucket may have been copied.
    return {**lineages.decode(data, place.address_of(name)), "uri": place.address_of(folder)}


def lineage_of(version: str, target: Place) -> dict[str, Any]:
    """Return the lineage of a version that a user names: by its name, by an alias, or by its address.

    Raises:
        UsageError: There is none.
    """
    if "/" in version or "\\" in version:
        found = _lineage_in(open_place(version), "")
    elif _VERSION.fullmatch(version):
        found = version_at(target, version)
    else:
        directory.check_label(version)
        current = alias_at(target, version)
        found = version_at(target, current["version"]) if current is not None else None
    if found is None:
        raise UsageError(f"there is no version {version!r} of a model in {target.address}")
    return found


def alias_at(target: Place, alias: str) -> dict[str, Any] | None:
    """Return what an alias points to (`version`) and what it pointed to before that (`previous`); None without one."""
    data = target.read(f"{ALIASES}/{alias}.json", _ALIAS_LIMIT)
    if data is None:
        return None
    try:
        found = json.loads(data)
        named = [found["version"], found.get("previous", "")]
    except (ValueError, KeyError, TypeError, AttributeError):
        named = [None]
    if not all(isinstance(text, str) and (not text or _VERSION.fullmatch(text)) for text in named) or not named[0]:
        raise Corrupt(f"{target.address_of(f'{ALIASES}/{alias}.json')} cannot be read as an alias: remove it")
    return {"version": named[0], "previous": named[1]}


def check_unmoved(target: Place, alias: str, judged: Mapping[str, Any] | None, promoted: Promoted) -> None:
    """Raise PromotionRefused if an alias has moved since a check compared a model with the version that it had.

    Args:
        target: The place.
        alias: The alias.
        judged: What it pointed to then; None: nothing.
        promoted: The version that was checked.
    """
    now = alias_at(target, alias)
    if now is None or now["version"] in (promoted.version, (judged or {}).get("version")):
        return
    raise PromotionRefused(
        f"the alias {alias!r} has moved to {now['version']} while {promoted.name} was checked and copied, so the check "
        f"has not seen what it would replace. {promoted.uri} is there, and nothing points to it: promote it again"
    )


def point(target: Place, alias: str, version: str) -> None:
    """Let an alias point to a version. Of two processes that do this at once, the last one wins."""
    current = alias_at(target, alias)
    if current is not None and current["version"] == version:
        return
    told = {
        "release": __version__,
        "version": version,
        "previous": current["version"] if current else "",
        "at": round(time.time()),
    }
    target.put(f"{ALIASES}/{alias}.json", json.dumps(told).encode())
