"""`read_checkpoint`: reads the checkpoints of a training for other tools, such as evaluation and export.

Takes no part in a training: it writes nothing, waits for no host, and reads what any number of hosts wrote.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_orchestration.errors import CheckpointDiffers, CheckpointError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.program.checkpoints import commits, parts, trees
from kinetic_orchestration.program.checkpoints.commits import Commit
from kinetic_orchestration.program.checkpoints.leaves import apart, partial
from kinetic_orchestration.program.checkpoints.manager import Source
from kinetic_orchestration.program.checkpoints.store import CheckpointStore, open_checkpoints
from kinetic_orchestration.program.context import current


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        step: Its step.
        folder: Its folder.
    """

    step: int
    state: Any
    """The given state with these values; without one, a dictionary of whole arrays and plain values by their paths."""
    more: Mapping[str, Any]
    """The loop's own state beside it, such as the epoch and batch of KineticCallback."""
    folder: str


def read_checkpoint(
    place: str | os.PathLike[str], step: int | None = None, into: Any = None, only: Iterable[str] | None = None
) -> Checkpoint:
    """Read the newest complete checkpoint of a training, on any machine.

        found = kinetic.read_checkpoint("/checkpoints/training")
        weights = found.state["model/0 sequential/dense/kernel"]

    Args:
        place: Folder of the training's checkpoints, `<checkpoint_dir>/<name>`.
        step: Step of the checkpoint, also of one that the training has abandoned for an older one. None: the newest
            one.
        into: A state as `Training.restore` takes it, which shows structure and placement; a torch module or optimizer
            is restored in place. Without it arrays are numpy's, or torch's if torch was imported, what each host has
            of its own is host 0's, and what Orbax has written is the path of its folder.
        only: Paths in the state: what they name, or what lies below them, is read, and all else in `into` stays as it
            is given. This fills a part of a new model with the weights of another training.

    Raises:
        CheckpointError: There is no complete checkpoint.
        CheckpointDiffers: The checkpoint is of another model than `into`, or does not have what `only` names.
        UsageError: `only` is no list of paths.
    """
    paths = partial.checked(only)
    place = os.fspath(place).rstrip("/")
    if buckets.in_bucket(place):
        if place.startswith("gs://") and not current().job_id:
            raise CheckpointError(f"{place} is read by jobs: copy it here first, with gcloud storage cp -r {place} .")
    elif not os.path.isdir(place):
        raise CheckpointError(f"there is no folder {place}: give <checkpoint_dir>/<name of the training>")
    store = open_checkpoints(place, "reader")
    try:
        while (record := _wanted(store, step)) is not None:
            try:
                with contextlib.ExitStack() as stack:
                    found = _state(store, record, into, paths, stack)
                    return Checkpoint(record.step, found, record.more, record.folder)
            except parts.Torn as error:
                store.torn[record.folder] = str(error)
    finally:
        store.close()
    wanted = "whole checkpoint" if step is None else f"whole checkpoint of step {step}"
    told = f": {'; '.join(store.torn.values())}" if store.torn else ". A training's lie in <checkpoint_dir>/<its name>"
    raise CheckpointError(f"there is no {wanted} in {place}{told}")


def _wanted(store: CheckpointStore, step: int | None) -> Commit | None:
    found = store.newest(step)
    return store.newest(step, abandoned=True) if found is None and step is not None else found


def _state(
    store: CheckpointStore, record: Commit, into: Any, only: tuple[str, ...], stack: contextlib.ExitStack
) -> Any:
    of = Source(store, record, 0, record.hosts, stack, narrow=bool(only))
    if into is None:
        return _whole(store, record, of, only)
    layouts = trees.layouts(into)
    engines = {
        path: leaf for path, leaf in trees.named(into)
        if isinstance(leaf, trees.Engine) and (not only or partial.is_chosen(path, only))
    }  # fmt: skip
    apart.check(record, engines, store, 0, 1, all_of_it=not only)
    if only:
        give = partial.Chosen(into, record, of.plain, only).restorer(of.plain, of.fetch, of.look, layouts)
        apart.read(record, engines, store)
        return give()
    if told := commits.differences(record.leaves, trees.described(into)):
        raise CheckpointDiffers(f"step {record.step} in {store.place} is of another model:\n  " + "\n  ".join(told))
    of.check_names(into)
    give = trees.restorer(into, of.plain, of.fetch, of.look, layouts)
    apart.read(record, engines, store)
    return give()


def _whole(store: CheckpointStore, record: Commit, of: Source, only: tuple[str, ...]) -> dict[str, Any]:
    def read(path: str) -> bool:
        return not only or partial.is_chosen(path, only)

    found = {path: trees.whole(leaf, of.fetch, path) for path, leaf in record.leaves.items() if read(path)}
    found |= {path: trees.plain_value(told, of.fetch) for path, told in of.plain.items() if read(path)}
    for path, one in record.apart.items():  # for the library that has written it
        if read(path):
            found[path] = f"{store.place}/{record.folder}/{one.folder}"
    if not found:
        raise CheckpointDiffers(f"nothing in step {record.step} in {record.folder} has a path of only={list(only)}")
    return found
