"""What nobody wants any more is found and removed: placements without a job that wants them, and old records.

Never what is live within its deadline. Run by `kinetic-orchestration reap`, and now and then at a submit.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kinetic_orchestration.agent import environment, names, tree
from kinetic_orchestration.backends import Backend
from kinetic_orchestration.settings import Settings
from kinetic_orchestration.stores import Store
from kinetic_orchestration.values import ELSEWHERE, GONE
from kinetic_orchestration.watch import decoded, verdict_of

EVERY = 600.0
FAILED_FACTOR = 3.0  # failed jobs are kept three times as long as others
BLOB_MARGIN = 7 * 86400.0
SETTLED = 60.0  # a verdict this old leaves its hosts no reason to live
UNCLAIMED = 300.0


class Reaped(NamedTuple):
    what: str
    name: str
    why: str


def reap(store: Store, backend: Backend, settings: Settings, *, dry_run: bool = False) -> list[Reaped]:
    """All that may go, gone; with `dry_run`, only named."""
    found = [
        *_placements(store, backend, dry_run),
        *_records(store, settings, dry_run),
        *_caches(settings, dry_run),
    ]
    if not dry_run:
        _left_by_the_killed(settings)
    return found


def reap_now_and_then(store: Store, backend: Backend, settings: Settings) -> None:
    """At most once in ten minutes for all that submit from here; the marker's age decides, so a crash costs nothing."""
    marker = settings.home / ".reaped"
    try:
        if time.time() - marker.stat().st_mtime < EVERY:
            return
    except FileNotFoundError:
        pass
    marker.touch()
    list(_placements(store, backend, dry_run=False))


def _placements(store: Store, backend: Backend, dry_run: bool) -> Iterator[Reaped]:
    for placement in backend.leftovers():
        state = backend.observe([placement])[0].state
        why = _unwanted(store, placement["job"], placement["attempt"], placement["age"], state)
        if not why:
            continue
        if not dry_run:
            backend.release(placement)
        yield Reaped("placement", f"{placement['job']}-{placement['attempt']}", why)


def _unwanted(store: Store, job_id: str, attempt: int, age: float, state: str) -> str:
    """Why a placement should go, or '' if it may be wanted."""
    if state == ELSEWHERE:
        return ""
    now = store.now()
    verdict = store.read(names.verdict(job_id, attempt))
    if verdict is not None:
        return "its attempt has its verdict" if now - verdict.updated > SETTLED else ""
    if age < UNCLAIMED:
        return ""
    if store.read(names.intent(job_id, attempt)) is None:
        return "no job in this store knows it" if store.read(names.spec(job_id)) is not None else ""
    return "its hosts died and nobody follows them" if state == GONE else ""


def _records(store: Store, settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """Jobs past their retention, then blobs that no remaining job names. Outputs and checkpoints are never touched."""
    jobs = sorted({entry.name.split("/")[1] for entry in store.list(names.JOBS)})
    kept: set[str] = set()
    now = store.now()
    for job in jobs:
        ended = _ended(store, job)
        if ended is None or not _expired(ended, now, settings.retention):
            kept.add(job)
            continue
        if not dry_run:
            _forget(store, job)
        yield Reaped("job", job, f"its verdict is {(now - ended[0]) / 86400:.0f} days old")
    yield from _blobs(store, kept, now - settings.retention - BLOB_MARGIN, dry_run)


def _forget(store: Store, job: str) -> None:
    """The spec first: without it nobody can start or close an attempt. The verdicts last, and the first attempt's
    last of all: while it is there, nobody takes the job for one that never ran, wherever this process dies.
    """
    store.delete(names.spec(job))
    records = [entry.name for entry in store.list(names.job(job))]
    verdicts = sorted(name for name in records if name.startswith(f"{names.job(job)}attempts/"))
    beats = [entry.name for entry in store.list(f"{names.BEATS}{job}/")]
    for name in (*(name for name in records if name not in verdicts), *beats, *reversed(verdicts)):
        store.delete(name)


def _ended(store: Store, job: str) -> tuple[float, bool] | None:
    """When the newest attempt got its verdict, and whether it was a good one; None while an attempt has none."""
    newest: tuple[float, bool] | None = None
    promised = {entry.name.split("/")[4] for entry in store.list(f"{names.job(job)}in/attempts/")}
    for entry in store.list(f"{names.job(job)}attempts/"):
        if entry.name.endswith("verdict.json") and (record := store.read(entry.name)) is not None:
            well = verdict_of(record.data).kind == "committed"
            newest = max(newest or (0.0, False), (record.updated, well))
            promised.discard(entry.name.split("/")[3])
    return newest if not promised else None


def _expired(ended: tuple[float, bool], now: float, retention: float) -> bool:
    when, well = ended
    return now - when > retention * (1.0 if well else FAILED_FACTOR)


def _blobs(store: Store, kept: set[str], before: float, dry_run: bool) -> Iterator[Reaped]:
    for entry in list(store.list("projects/")):
        if entry.updated < before and not dry_run:
            store.delete(entry.name)
    named = _named(store, kept, before)
    for prefix in ("trees/", "blobs/"):
        for entry in list(store.list(prefix)):
            digest = _digest(entry.name)
            if digest not in named and entry.updated < before:
                if not dry_run:
                    store.delete(entry.name)
                yield Reaped(prefix.rstrip("s/"), digest, "no job names it")


def _named(store: Store, kept: set[str], before: float) -> set[str]:
    """The digests of everything that a remaining job, a tree in use or the newest tree of a project refers to.

    A tree that is staged again is made young again, so what a submission relies on at this moment is kept.
    """

    named: set[str] = set()
    for job in kept:
        record = store.read(names.spec(job))
        if record is None:
            continue
        staged = decoded(record.data, names.spec(job))["staged"]
        named |= {staged["payload"].get("digest", ""), staged["environment"].get("lock", ""), staged["tree"]}
        named |= {item["digest"] for item in (*staged["data"], *staged["packages"])}
    named |= {_digest(entry.name) for entry in store.list("trees/") if entry.updated >= before}
    for entry in store.list("projects/"):
        if entry.updated >= before and (record := store.read(entry.name)) is not None:
            named |= {str(value) for value in json.loads(record.data).values()}
    for digest in list(named):
        if digest and (record := store.read(names.tree(digest))) is not None:
            named |= {pack.id for pack in tree.packs_of(json.loads(record.data))}
    return named


def _digest(name: str) -> str:
    return name.rsplit("/", 1)[-1].removesuffix(".json")


def _caches(settings: Settings, dry_run: bool) -> Iterator[Reaped]:
    """Environments and data that this machine keeps for the next job, once no job has used them for so long."""
    days = settings.retention / 86400.0
    if dry_run:
        return
    for built in environment.prune(str(settings.home / "environments"), days):
        yield Reaped("environment", Path(built).name, f"no job used it for {days:.0f} days")
    data = settings.home / "cache" / "data"
    for folder in sorted(data.iterdir()) if data.is_dir() else ():
        if time.time() - folder.stat().st_mtime > settings.retention:
            shutil.rmtree(folder, ignore_errors=True)
            yield Reaped("data", folder.name, f"no job used it for {days:.0f} days")


def _left_by_the_killed(settings: Settings) -> None:
    """What a killed submitter left of its staging, a day later."""
    for parent in (settings.home / "staging", Path(settings.store) / settings.deployment / ".staging"):
        if parent.is_dir():
            for folder in parent.iterdir():
                if time.time() - folder.stat().st_mtime > 86400.0:
                    shutil.rmtree(folder, ignore_errors=True)
