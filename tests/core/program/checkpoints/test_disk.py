"""A checkpoint on a disk waits for it as often as it must."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kinetic_orchestration.program.checkpoints import commits, trees
from kinetic_orchestration.program.checkpoints.commits import Commit, Leaf
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.protocol.content.digest import CHUNK


def test_a_checkpoint_waits_for_the_disk_for_its_part_and_its_commit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests of its chunks are not waited for: without them the whole part is verified."""
    there, folder = open_checkpoints(str(tmp_path / "t"), "job-1"), commits.folder(1, "job-1")
    array = np.arange(3 * CHUNK // 4, dtype=np.uint32)
    leaves = {"a": Leaf("uint32", array.shape)}
    part = trees.HostPart(leaves=leaves, dtypes={"a": "uint32"})
    part.pieces.append(trees.Piece("a", (0,), array.shape, memoryview(array).cast("B")))
    waited, wait = [], os.fsync

    def fsync(file: int) -> None:
        waited.append(os.fstat(file).st_size)
        wait(file)

    monkeypatch.setattr(os, "fsync", fsync)
    told = there.write(folder, 0, part)
    assert there.commit(Commit(1, folder, 1, 0, (told,), leaves))
    assert {path.name for path in Path(there.place, folder).iterdir()} == {
        "part-00000.safetensors", "part-00000.chunks", "commit.json"
    }  # fmt: skip
    assert waited == [told.size, (Path(there.place) / commits.commit(folder)).stat().st_size]
