"""Copies the files of a model into the folder of a version, and verifies what is there then.

Inside one store its service or the kernel copies; between two stores the bytes pass through this machine, file by file.
A file that is there stays: versions are named by their content, so another process has copied the same.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kinetic_orchestration.errors import Corrupt, StoreError
from kinetic_orchestration.models.directory import agree, files_of
from kinetic_orchestration.models.places import marks
from kinetic_orchestration.models.places.folder import Folder
from kinetic_orchestration.models.places.place import Place
from kinetic_orchestration.models.values import ModelFile
from kinetic_orchestration.protocol.system.parallel import side_by_side

INSIDE: Final = "in the store"
THROUGH: Final = "through this machine"
_COPIES: Final = 8  # at once: the service does the work
_SHOWN: Final = 3


def copies_inside(source: Place, target: Place) -> bool:
    """Return True if no byte of a copy passes through this process."""
    return source.store == target.store


def copy(source: Place, files: Sequence[ModelFile], target: Place, version: str) -> str:
    """Copy the files into the folder of a version, and verify it.

    Returns:
        How the bytes went: `INSIDE` or `THROUGH`.

    Raises:
        Corrupt: What is there afterwards is not what the source had.
    """
    if copies_inside(source, target):
        there = {file.name for file in target.list(version)}
        missing = [file for file in files if file.name not in there]
        side_by_side(
            lambda file: target.copy(source, file, f"{version}/{file.name}"), missing, _COPIES, name="kinetic-copies"
        )
        verify(files, target, version)
        return INSIDE
    with tempfile.TemporaryDirectory(prefix="kinetic-model-") as folder:
        known = [_carry(source, file, target, version, Path(folder)) for file in files]
    verify(known, target, version)
    return THROUGH


def _carry(source: Place, file: ModelFile, target: Place, version: str, folder: Path) -> ModelFile:
    """Copy a file by way of this machine, and return it with all marks by which the copy can be verified."""
    path = source.address_of(file.name) if isinstance(source, Folder) else str(folder / "file")
    if not isinstance(source, Folder):
        source.fetch(file.name, path, file.size)
    told = marks.of_file(path, {"sha256", "crc32c", "md5", "etag"})
    if os.stat(path).st_size != file.size or agree(file.marks, told) is False:
        raise _changed([file.name], source.address_of(""))
    target.send(path, f"{version}/{file.name}")
    if not isinstance(source, Folder):
        Path(path).unlink()
    return file._replace(marks={**told, **file.marks})


def verify(files: Sequence[ModelFile], target: Place, version: str, *, read: bool = True) -> None:
    """Raise Corrupt unless the folder of a version has these files and no others.

    Args:
        files: The files.
        target: The place.
        version: The version.
        read: Compare also content that has to be read for that; sizes and the marks of a listing alone otherwise.
    """
    where = target.address_of(version)
    listed = files_of(target.list(version))
    expected = {file.name: file for file in files}
    if others := [file.name for file in listed if file.name not in expected]:
        raise Corrupt(
            f"{where} has {_shown(others)}, which the model does not have: somebody else writes there. Remove what is "
            "not of this model, and promote it again"
        )
    there = {file.name: file for file in (target.marked(version, listed) if read else listed)}
    if missing := [name for name in expected if name not in there]:
        raise _changed(missing, where)
    wrong = [
        name
        for name, file in expected.items()
        if there[name].size != file.size or agree(file.marks, there[name].marks) is False
    ]
    if wrong:
        raise Corrupt(
            f"{where} has {_shown(wrong)} with other content than the model: it was damaged, or written by somebody "
            "else. Remove the folder, and promote the model again"
        )


def _changed(names: Sequence[str], where: str) -> StoreError:
    return StoreError(
        f"{_shown(names)} changed while the model was copied ({where}): let whoever writes the model end, and promote "
        "it again. No version was made"
    )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
