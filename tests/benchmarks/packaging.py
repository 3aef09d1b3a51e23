"""Figures of the source tree: what an unchanged and a new project cost, against a walk and `tar | zstd -3 -T2`.

Trees: a (51 files, 1.1 MB), b (5,001 files, 97 MB, half of it incompressible), c (20,002 files, of which 302 are
the project's; the floors of c cover these 302 only).
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kinetic_orchestration.packaging.source import tree
from kinetic_orchestration.platforms.local.store import LocalStore

Figure = dict[str, object]

_GITIGNORE = """
__pycache__/
*.py[cod]
*.so
build/
dist/
*.egg-info/
.env
.venv
*.log
/outputs/
"""


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kinetic-benchmark-") as folder:
        base = Path(folder)
        for name, make in (("a", _tree_a), ("b", tree_b), ("c", _tree_c)):
            root = base / name
            files = make(root)
            time.sleep(0.2)  # let the files become older than a tick, as a project's are
            yield from _unchanged(name, root, base)
            yield from _first(name, root, files, base)
            if name == "b":
                yield from _edited(name, root, base)
            shutil.rmtree(root)


def _unchanged(name: str, root: Path, base: Path) -> Iterator[Figure]:
    with Workplace(base) as place:
        place.stage(root)
        sent: list[int] = []
        repeats = 50 if name == "a" else 15
        ours, floor = _medians(repeats, lambda: sent.append(place.stage(root)), lambda: walk_and_stat(root))
    yield _figure(f"packaging {name} unchanged / walk and stat", ours, floor, 2.0)
    yield {
        "name": f"packaging {name} unchanged, uploaded", "value": max(sent), "unit": "bytes",
        "floor": 0, "ratio": None, "target": 0, "ok": max(sent) == 0,
    }  # fmt: skip


def _first(name: str, root: Path, files: list[str], base: Path) -> Iterator[Figure]:
    archive, how = _archiver(root, files, base)

    def ours() -> None:
        with Workplace(base) as place:
            before = time.perf_counter()
            place.stage(root)
            times.append(time.perf_counter() - before)

    times: list[float] = []
    _, floor = _medians(5, ours, archive)
    yield _figure(f"packaging {name} first / {how}", statistics.median(times), floor, 1.5)


def _edited(name: str, root: Path, base: Path) -> Iterator[Figure]:
    with Workplace(base) as place:
        place.stage(root)
        edited = next(root.rglob("*.py"))
        edited.write_bytes(edited.read_bytes() + b"# one more line\n")
        before = time.perf_counter()
        place.stage(root)
        took = time.perf_counter() - before
        size = edited.stat().st_size
        packs = sum(os.path.getsize(str(place.store.local_path(pack))) for pack in place.packs)
        yield {
            "name": f"packaging {name} one edit, packs uploaded", "value": packs, "unit": "bytes", "floor": size,
            "ratio": round(packs / size, 3), "target": 1.0, "ok": packs <= size,
        }  # fmt: skip
        _, floor = _medians(5, lambda: None, lambda: walk_and_stat(root))
        yield _figure(f"packaging {name} one edit / walk and stat", took, floor, None)
        for path in root.rglob("*.py"):
            os.utime(path)
        sent = place.stage(root)
        yield {
            "name": f"packaging {name} touched, uploaded", "value": sent, "unit": "bytes",
            "floor": 0, "ratio": None, "target": 0, "ok": sent == 0,
        }  # fmt: skip


class Workplace:
    """A store, an index and a spool that have seen nothing."""

    def __init__(self, base: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=base))
        (self.folder / "store" / "spool").mkdir(parents=True)
        self.store = LocalStore(str(self.folder / "store"), "benchmark")
        self.packs: tuple[str, ...] = ()

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)

    def stage(self, root: Path) -> int:
        spool = self.folder / "store" / "spool"
        snapshot = tree.snapshot(root, index_dir=self.folder / "index", spool=spool)
        staged = tree.upload(snapshot, self.store, spool=spool)
        self.packs = staged.packs
        return staged.uploaded_bytes


def _figure(name: str, value: float, floor: float, target: float | None) -> Figure:
    ratio = value / floor
    return {
        "name": name, "value": round(value * 1e3, 3), "unit": "ms", "floor": round(floor * 1e3, 3),
        "ratio": round(ratio, 2), "target": target, "ok": target is None or ratio <= target,
    }  # fmt: skip


def _medians(repeats: int, ours: Callable[[], object], floor: Callable[[], object]) -> tuple[float, float]:
    """Both in turn, so that what else the machine does falls on both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, taken in zip((ours, floor), times, strict=True):
            before = time.perf_counter()
            call()
            taken.append(time.perf_counter() - before)
    return statistics.median(times[0]), statistics.median(times[1])


def walk_and_stat(root: Path) -> int:
    """The floor: every file of the project seen and asked for its state, once. Of c, only what is not ignored."""
    count, stack = 0, [str(root)]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in (".venv", "node_modules", "outputs"):
                        stack.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
                    count += 1
    return count


def _archiver(root: Path, files: list[str], base: Path) -> tuple[Callable[[], None], str]:
    names = base / "files"
    names.write_text("\n".join(files))
    tar = ["tar", "-C", str(root), "--no-recursion", "-cf", "-", "-T", str(names)]
    target = base / "archive.tar.zst"
    if zstd := shutil.which("zstd"):

        def binary() -> None:
            with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
                subprocess.run([zstd, "-q", "-f", "-3", "-T2", "-o", str(target)], stdin=packing.stdout, check=True)

        return binary, "tar | zstd -3 -T2"

    import zstandard

    def library() -> None:
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing, target.open("wb") as file:
            assert packing.stdout is not None
            zstandard.ZstdCompressor(level=3, threads=2).copy_stream(packing.stdout, file)

    return library, "tar | python-zstandard -3, 2 threads"


def _tree_a(root: Path) -> list[str]:
    return _write(root, _paths(50), 22_000)


def tree_b(root: Path) -> list[str]:
    return _write(root, _paths(5000), 19_400)


def _tree_c(root: Path) -> list[str]:
    files = _write(root, _paths(301), 4_000)
    (root / ".venv").mkdir()
    (root / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    others = (
        *(f".venv/lib/python3.12/site-packages/p{i % 200}/m{i}.py" for i in range(9_999)),
        *(f"node_modules/n{i % 300}/i{i}.js" for i in range(6_000)),
        *(f"outputs/run{i % 40}/step{i}.bin" for i in range(3_700)),
    )
    for name in others:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    return files


def _paths(count: int) -> Iterator[str]:
    for number in range(count):
        package = f"src/package_{number % 20}/part_{number // 20 % 10}"
        yield f"{package}/module_{number}.py" if number % 2 else f"{package}/table_{number}.bin"


def _write(root: Path, names: Iterable[str], size: int) -> list[str]:
    """Every other file is noise, the others are like source code."""
    chance = random.Random(20)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(2, 12))) for _ in range(3000)]
    text = " ".join(f"{word}\n    " if i % 7 == 0 else word for i, word in enumerate(chance.choices(words, k=400_000)))
    files = [".gitignore"]
    root.mkdir()
    (root / ".gitignore").write_text(_GITIGNORE)
    for name in names:
        length = chance.randint(size // 2, size * 3 // 2)
        start = chance.randint(0, len(text) - length)
        content = text[start : start + length].encode() if name.endswith(".py") else chance.randbytes(length)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(name)
    return files
