"""A restore from the machine's own copy of a checkpoint, on its disk or in its memory, and from another host's.

The floor is the same restore from the bucket in the same run, in alternating rounds. The bucket is emulated, by another
process of this machine: a real one is further away, so the ratio on a VM is smaller.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure
from tests.benchmarks.training import as_host

SIZE = 256 << 20
ROUNDS = 5
SERVER = """
import sys
from kinetic_orchestration.testing.storage_server.server import StorageServer
with StorageServer() as server:
    print(server.url, server.make_bucket("tier"), flush=True)
    sys.stdin.read()
"""
HOST = """
import contextlib, sys
from kinetic_orchestration.program.checkpoints.tier.buddies import Files, Listener
from kinetic_orchestration.program.checkpoints.tier.folder import Folder
folder = Folder(sys.argv[1], "t", print)
print(Listener("127.0.0.1", bytes.fromhex(sys.argv[2]), Files(folder.find, contextlib.nullcontext)).port, flush=True)
sys.stdin.read()
"""
KEY = b"k" * 32


def figures() -> Iterator[Figure]:
    if not measure.has("numpy"):
        return
    with (
        as_host() as folder,
        _process(SERVER) as (url, bucket),
        tempfile.TemporaryDirectory(prefix="kinetic-tier-", dir="/dev/shm") as memory,
    ):
        os.environ["KINETIC_CHECKPOINT_DIR"] = f"{bucket}/checkpoints"
        told = {
            "STORAGE_EMULATOR_HOST": url,
            "KINETIC_TIER_DISK": f"{folder}/tier/key",
            "KINETIC_TIER_MEMORY": f"{memory}/key",
        }
        os.environ.update(told)
        try:
            yield from _restored()
            yield from _sent(folder)
        finally:
            for name in told:
                del os.environ[name]


def _restored() -> Iterator[Figure]:
    import numpy as np

    from kinetic_orchestration.program.loop import Training

    state = {str(n): np.random.default_rng(n).integers(0, 256, SIZE // 8, dtype=np.uint8) for n in range(8)}
    for where in ("disk", "memory"):
        with Training(every=1, keep=1, name="t", tier=where) as training:
            _, done = training.restore(state)
            training.step(done + 1, state)

    def restore(where: str | None) -> None:
        with redirect_stderr(io.StringIO()), Training(name="t", tier=where) as training:  # type: ignore[arg-type]
            found, done = training.restore(state)
            assert done
            assert all(int(array[::4096].sum()) >= 0 for array in found.values())
            near = training._checkpoints.store.near  # type: ignore[union-attr]
            assert where is None or list(near.read) == ["this machine"], where  # type: ignore[union-attr]

    with (
        redirect_stderr(io.StringIO()),
        Training(name="t", tier="disk") as training,
    ):  # what the other one wrote last is kept here, too
        training.restore(state)
    disk, memory, bucket = measure.interleaved(
        ROUNDS, lambda: restore("disk"), lambda: restore("memory"), lambda: restore(None)
    )
    yield measure.figure("tier.disk", disk, "s of 256 MiB, from the emulated bucket", bucket, 0.8)
    yield measure.figure("tier.memory", memory, "s of 256 MiB, from the emulated bucket", bucket, 0.8)


def _sent(folder: Path) -> Iterator[Figure]:
    """The way of one part alone, to a file whose digest is right: from another host's program, or from the bucket."""
    from kinetic_orchestration.program.checkpoints import commits, parts
    from kinetic_orchestration.program.checkpoints.store import open_checkpoints
    from kinetic_orchestration.program.checkpoints.tier import buddies

    there = open_checkpoints(f"{os.environ['KINETIC_CHECKPOINT_DIR']}/t", "reader")
    record = there.newest()
    assert record is not None
    (part,) = record.parts
    path = str(folder / "part")

    def believed() -> None:
        parts.Opened(path, part).close()
        os.unlink(path)

    with _process(HOST, os.environ["KINETIC_TIER_DISK"], KEY.hex()) as (port,):

        def from_host() -> None:
            buddies.fetch("127.0.0.1", int(port), KEY, part.digest, part.size, path)
            believed()

        def from_bucket() -> None:
            there.records.download(commits.part(record.folder, 0), path, most=part.size)
            believed()

        host, bucket = measure.interleaved(ROUNDS, from_host, from_bucket)
    there.close()
    yield measure.figure("tier.buddy", host, "s of 256 MiB, from the emulated bucket", bucket, None)


@contextmanager
def _process(code: str, *arguments: str) -> Iterator[list[str]]:
    """A process that lives until this ends; the words of its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    for found in figures():
        print(json.dumps(found))
