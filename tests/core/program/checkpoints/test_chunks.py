"""A host reads the chunks of others' parts that have something of its own, and believes each by its digest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kinetic_orchestration.program.checkpoints import commits, manager, parts, trees
from kinetic_orchestration.program.checkpoints.commits import Commit, Leaf
from kinetic_orchestration.program.checkpoints.store import CheckpointStore, open_checkpoints
from kinetic_orchestration.protocol.content.digest import CHUNK
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.bucket import unsummed

ROWS, WIDE = 96, 1 << 18  # 1 MiB a row
MIB = 1 << 20


def written(there: CheckpointStore, hosts: int) -> Commit:
    """A checkpoint of two hosts or more: 96 MiB, whose rows are spread over them."""
    leaves = {"rows": Leaf("uint32", (ROWS, WIDE))}
    told, folder, share = [], commits.folder(7, there.writer), ROWS // hosts
    for host in range(hosts):
        part = trees.HostPart(leaves=leaves, dtypes={"rows": "uint32"}, plain={"n": 5})
        piece = np.arange(host * share * WIDE, (host + 1) * share * WIDE, dtype=np.uint32).reshape(share, WIDE)
        part.pieces.append(trees.Piece("rows", (host * share, 0), (share, WIDE), trees._bytes(piece)))
        told.append(there.write(folder, host, part))
        there.report_part(folder, host, told[-1])
    every, why = there.part_reports(folder, hosts, 10.0)
    assert (every, why) == (told, "")
    assert there.commit(Commit(7, folder, hosts, 0, tuple(every), leaves))
    return there.read(folder)


def rows_of(there: CheckpointStore, record: Commit, host: int, hosts: int, columns: slice = slice(0, WIDE)) -> None:
    """Restore a host's rows, and check them."""
    share, wide = ROWS // hosts, columns.stop - columns.start
    start = (host * share, columns.start)
    with contextlib.ExitStack() as stack:
        of = manager.Source(there, record, host, hosts, stack)
        assert of.plain == {"n": 5}
        of.look("rows", start, (share, wide))
        data = np.frombuffer(of.fetch("rows", "uint32", start, (share, wide)), np.uint32).reshape(share, wide)
    first = np.arange(start[0], start[0] + share, dtype=np.uint32) * WIDE + columns.start
    assert (data == first[:, None] + np.arange(wide, dtype=np.uint32)).all()


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


def test_four_hosts_that_restore_what_two_wrote_read_about_their_share(
    storage: StorageServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    there = open_checkpoints(f"{storage.make_bucket('b-' + os.urandom(6).hex())}/t", "job-1")
    record = written(there, 2)
    assert [part.chunk for part in record.parts] == [CHUNK] * 2
    for host in range(4):
        since = len(storage.calls)
        rows_of(there, record, host, 4)
        read = sum(_size(call.span) for call in storage.calls[since:] if call.where.endswith(".safetensors"))
        share = ROWS // 4 * MIB
        assert share <= read <= share + 2 * CHUNK, "its rows, the chunk with the header, and where its last chunk ends"
    assert list(tmp_path.iterdir()) == [], "what was fetched for it is gone"
    there.close()


def _size(span: str) -> int:
    first, last = span.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Commit]:
    there = open_checkpoints(str(tmp_path_factory.mktemp("whole")), "job-1")
    return Path(there.place), written(there, 2)


@pytest.fixture
def copy(whole: tuple[Path, Commit], tmp_path: Path) -> tuple[CheckpointStore, Commit, Path]:
    place, record = whole
    shutil.copytree(place, tmp_path / "copy")
    return open_checkpoints(str(tmp_path / "copy"), "job-2"), record, tmp_path / "copy" / record.folder


Copy = tuple[CheckpointStore, Commit, Path]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def test_a_flipped_byte_of_what_a_host_needs_is_refused_wherever_it_is(copy: Copy) -> None:
    there, record, folder = copy
    part = folder / "part-00001.safetensors"
    size = part.stat().st_size
    for at in (0, 3, 40, 200, CHUNK - 1, CHUNK, 2 * CHUNK + 5, 23 * MIB):
        flip(part, at)
        with pytest.raises(parts.Torn, match=r"part-00001\.safetensors is torn: its bytes from "):
            rows_of(there, record, 2, 4)
        rows_of(there, record, 1, 4)
        flip(part, at)
    rows_of(there, record, 2, 4)
    flip(part, size - 1)  # of the fourth host's rows
    rows_of(there, record, 2, 4)
    with pytest.raises(parts.Torn, match="its bytes from 50331648 to "):
        rows_of(there, record, 3, 4)


def _none(path: Path) -> None:
    path.unlink()


def _flipped(path: Path) -> None:
    flip(path, 40)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _grown(path: Path) -> None:
    path.write_bytes(bytes(64 << 20))


@pytest.mark.parametrize("harm", [_none, _flipped, _cut, _grown])
def test_digests_of_chunks_that_are_not_the_parts_cost_a_read_of_all_of_it(
    copy: Copy, harm: Callable[[Path], None]
) -> None:
    there, record, folder = copy
    harm(folder / "part-00001.chunks")
    rows_of(there, record, 2, 4)
    flip(folder / "part-00001.safetensors", record.parts[1].size - 1)  # which this host does not need
    with pytest.raises(parts.Torn, match="its digest is not that of what was written"):
        rows_of(there, record, 2, 4)


def test_a_checkpoint_of_a_version_that_had_a_digest_of_each_part_alone_is_restored(copy: Copy) -> None:
    there, record, folder = copy
    commit = unsummed((folder / "commit.json").read_text())
    for part in commit["parts"]:
        assert set(part) == {"size", "digest", "chunk"}
        del part["chunk"]
    (folder / "commit.json").write_text(json.dumps(commit))
    for path in folder.glob("*.chunks"):
        path.unlink()
    old = there.read(record.folder)
    assert [part.chunk for part in old.parts] == [0, 0]
    for host in range(4):
        rows_of(there, old, host, 4)
    flip(folder / "part-00000.safetensors", 9 * MIB)
    with pytest.raises(parts.Torn, match="its digest is not that of what was written"):
        rows_of(there, old, 0, 4)


@pytest.mark.parametrize("chunk", [-1, 0, 1, 1 << 40])
def test_a_size_of_chunks_that_nobody_writes_is_none(copy: Copy, chunk: int) -> None:
    """As whoever can write to the bucket may have it: a list of digests as long as the part would be read."""
    told = commits.Part.of({"size": 1 << 40, "digest": "aa", "chunk": chunk})
    assert told.chunk == 0
