"""Parts of a state that other libraries write (`trees.Engine`), within our checkpoints and by our commit.

They are written on all hosts beside our own parts, and a checkpoint is committed once all are there. On a file system
the hosts digest the files that the libraries have written, each a share of them, and so verify them before any is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from kinetic_orchestration.errors import CheckpointDiffers
from kinetic_orchestration.program.checkpoints import commits, parts
from kinetic_orchestration.program.checkpoints.commits import Apart, Commit, File
from kinetic_orchestration.program.checkpoints.store import CheckpointStore
from kinetic_orchestration.program.checkpoints.trees import Engine

Engines = Mapping[str, Engine]


def described(engines: Engines) -> dict[str, Apart]:
    """The parts of a state that others write, and the folders of a checkpoint that they write into."""
    return {
        path: Apart(engine.kind, commits.apart_name(engine.kind, number), dict(engine.described()))
        for number, (path, engine) in enumerate(sorted(engines.items()))
    }


def check_place(place: str, engines: Engines) -> None:
    """Let each of them refuse the location of the checkpoints, before the first step. Raises UsageError."""
    for engine in engines.values():
        if (check := getattr(engine, "check_place", None)) is not None:
            check(place)


def begin(store: CheckpointStore, folder: str, engines: Engines) -> str:
    """Begin to write; why that failed, or ""."""
    for path, told in described(engines).items():
        try:
            engines[path].begin_writing(f"{store.place}/{folder}/{told.folder}")
        except Exception as error:  # of any kind, by a library: this checkpoint is not written, and others may be
            return f"{told.kind} could not write {path or 'the state'}: {error or type(error).__name__}"
    return ""


def end(
    store: CheckpointStore, folder: str, engines: Engines, host: int, hosts: int, patience: float
) -> dict[str, File]:
    """Wait until it is written. Returns this host's share of the files, by their names within the folder, with their
    digests. Raises OSError."""
    for engine in engines.values():
        engine.end_writing(patience)
    if not engines:
        return {}
    found = {}
    for told in described(engines).values():
        prefix = f"{folder}/"
        for entry in store.records.list(f"{prefix}{told.folder}/"):
            name = entry.name.removeprefix(prefix)
            if _owner(name, hosts) == host:
                found[name] = entry.size, _digest(store, entry.name)
    return found


def _owner(name: str, hosts: int) -> int:
    """The host that looks through a file: the one whose process wrote it, if its name says that."""
    for step in name.split("/"):
        number = step.rpartition("process_")[2]
        if step != number and number.isdecimal():
            return int(number) % hosts
    return 0


def _digest(store: CheckpointStore, name: str) -> str:
    """ "" in a bucket, from which all of it would have to be fetched."""
    path = store.records.local_path(name)
    if path is None:
        return ""
    return parts.digest_of_file(path)


def check(
    record: Commit, here: Engines, store: CheckpointStore, host: int, hosts: int, *, all_of_it: bool = True
) -> None:
    """Check that a checkpoint has these, and that this host's share of their files is what was written. `all_of_it`:
    and that it has no others.

    Raises:
        CheckpointDiffers: It has others.
        Torn: A file is not what was written.
    """
    wanted = {path: Apart(engine.kind, "", engine.described()) for path, engine in here.items()}
    told = [
        f"{path or 'the state'} is written by {wanted[path].kind} here, and "
        f"{'by ' + record.apart[path].kind if path in record.apart else 'not by it'} in the checkpoint"
        for path in wanted
        if path not in record.apart or record.apart[path].kind != wanted[path].kind
    ]
    told += [
        f"{path or 'the state'} is written by {one.kind} in the checkpoint, and not by it here"
        for path, one in record.apart.items()
        if all_of_it and path not in here
    ]
    for path, one in wanted.items() if not told else ():
        saved, leaves = (
            {f"{path}/{name}": leaf for name, leaf in side.leaves.items()} for side in (record.apart[path], one)
        )
        told += commits.differences(saved, leaves)
    if told:
        raise CheckpointDiffers(
            f"the checkpoint of step {record.step} in {store.place} is of another model:\n  " + "\n  ".join(told)
        )
    folders = {record.apart[path].folder for path in here}
    files = sorted((name, file) for part in record.parts for name, file in part.files.items())
    for name, (_, digest) in [one for one in files if one[0].partition("/")[0] in folders][host::hosts]:
        path_here = store.records.local_path(f"{record.folder}/{name}") if digest else None
        if digest and (path_here is None or parts.digest_of_file(path_here) != digest):
            raise parts.Torn(f"{record.folder}/{name} is not what was written: its digest is another")


def read(record: Commit, here: Engines, store: CheckpointStore) -> None:
    """Restore them, each by its own library."""
    for path, engine in sorted(here.items()):
        engine.read_written(os.path.join(store.place, record.folder, record.apart[path].folder))
