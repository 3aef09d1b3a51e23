"""One gigabyte there and back: from an array in one process's memory to an array in another's, and the result back.

The floor of one way is `shutil.copyfile` of the same bytes on the same file system in the same run: like a way, it
writes every byte once and reads every byte once. A way also hashes every byte while it is written, which no copy does:
`transfer.hashing` says what that alone costs on this machine. It is not hashed again where it is known to be what was
written, in a private home: `transfer.receive_hashed` is a receiver that does not know it, as of a store elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import ROOT

SIZE = 1 << 30
ROUNDS = 5


def figures() -> Iterator[dict[str, Any]]:
    import numpy as np

    from kinetic_orchestration.protocol.content import digest, payload, verified
    from kinetic_orchestration.protocol.records.files import FileRecords

    with tempfile.TemporaryDirectory(prefix="kinetic-transfer-") as name:
        folder = Path(name)
        array = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
        plain, copy, temporary, blob = (folder / file for file in ("plain", "copy", "temporary", "store/blob"))
        records = FileRecords(str(folder / "store"))
        (folder / "store").mkdir(mode=0o700)
        array.tofile(plain)
        sent = ""

        def copyfile() -> None:
            copy.unlink(missing_ok=True)
            shutil.copyfile(plain, copy)

        def send() -> None:
            nonlocal sent
            blob.unlink(missing_ok=True)
            sent, _ = payload.dump(array, temporary)
            assert verified.deliver(records, "blob", str(temporary), sent, folder)

        def receive() -> None:
            touched(payload.load(blob, sent, home=folder))

        def receive_hashed() -> None:
            touched(payload.load(blob, sent))

        def touched(got: Any) -> None:
            assert int(got[:: os.sysconf("SC_PAGESIZE")].sum()) >= 0  # every page is touched

        def hashing() -> None:
            digest.of_bytes(array.data)

        # Interleaved, so that a busy moment of the machine hits all of them; the first round warms up.
        seconds: dict[Callable[[], None], list[float]] = {
            work: [] for work in (copyfile, send, receive, receive_hashed, hashing)
        }
        for number in range(ROUNDS + 1):
            for work, taken in seconds.items():
                start = time.perf_counter()
                work()
                if number:
                    taken.append(time.perf_counter() - start)
        floor, sending, receiving, hashed, alone = (statistics.median(taken) for taken in seconds.values())
        copy.unlink()
        plain.unlink()
        # There: send and receive. Back: the same again.
        yield _speed("transfer.there_and_back", 2 * (sending + receiving), 2 * floor, ways=2, target=0.6)
        yield _speed("transfer.send", sending, floor, ways=1)
        yield _speed("transfer.receive", receiving, floor, ways=1)
        yield _speed("transfer.receive_hashed", hashed, floor, ways=1)
        yield _speed("transfer.hashing", 2 * alone, floor, ways=1)
        for what in ("send", "receive"):
            yield _memory(f"transfer.{what}_memory", what, blob, sent)


def _speed(name: str, seconds: float, floor: float, ways: int, target: float | None = None) -> dict[str, Any]:
    value, copied = (round(ways * SIZE / 1e6 / taken) for taken in (seconds, floor))
    ratio = floor / seconds
    ok = None if target is None else ratio >= target
    return {
        "name": name,
        "value": value,
        "unit": "MB/s",
        "floor": copied,
        "ratio": round(ratio, 3),
        "target": target,
        "ok": ok,
    }


def _memory(name: str, what: str, blob: Path, sent: str) -> dict[str, Any]:
    """The peak of a fresh process beyond what it had before the array; the floor is the array.

    Mapped file pages are counted, though the system may drop them; `anonymous` is what it may not.
    """
    command = [sys.executable, "-m", "tests.benchmarks.transfer", what, blob, sent]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    measured = json.loads(run.stdout)
    value, ratio = round(measured["peak"] / 1e6), measured["peak"] / SIZE
    figure = {
        "name": name,
        "value": value,
        "unit": "MB",
        "floor": round(SIZE / 1e6),
        "ratio": round(ratio, 3),
        "target": 1.2,
    }
    return {**figure, "ok": ratio <= 1.2, "anonymous": round(measured["anonymous"] / 1e6)}


def _in_a_fresh_process(what: str, blob: str, sent: str) -> None:
    import numpy as np

    from kinetic_orchestration.protocol.content import payload

    before = _kilobytes("VmHWM")
    if what == "send":
        array = np.ones(SIZE, np.uint8)
        payload.dump(array, blob + ".again")
        Path(blob + ".again").unlink()
    else:
        array = payload.load(blob, sent)
        array[: SIZE // 2] += 1  # half of it becomes the process's own
        assert array[::4096].any()
    print(json.dumps({"peak": (_kilobytes("VmHWM") - before) * 1024, "anonymous": _kilobytes("RssAnon") * 1024}))


def _kilobytes(field: str) -> int:
    """The peak memory of this process alone: the one in getrusage() is inherited from the parent."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except FileNotFoundError:  # macOS, where it is not inherited
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field + ":"))


if __name__ == "__main__":
    _in_a_fresh_process(*sys.argv[1:])
