"""An interpreter that runs on the hosts, as one archive: found here or fetched, packed, and tried out.

An interpreter of uv's is made to be moved. One that this machine was set up with may be, too, if all that it loads
comes along or is on every host; that is checked by moving it. Same files, same bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from kinetic_orchestration.errors import RequirementsError
from kinetic_orchestration.packaging.requirements.resolution import call, find_uv, here

GLIBC = 35  # 2.35, of Ubuntu 22.04
PLATFORM = "linux-x86_64-gnu"
FETCH_LIMIT = 600.0
# What every TPU VM's own Python needs, and so has (Ubuntu 22.04).
_ON_HOSTS = re.compile(
    rb"(linux-vdso|ld-linux-x86-64|lib(c|m|dl|pthread|util|rt|z|bz2|lzma|ffi|ssl|crypto|sqlite3|expat|uuid|crypt"
    rb"|readline|tinfo|ncursesw|panelw|db-5\.3|gdbm|gdbm_compat|nsl|tirpc|gcc_s|stdc\+\+))\.so"
)
_LEFT_OUT = re.compile(
    r"lib/python3\.\d+/(test|idlelib|turtledemo|lib2to3|ensurepip|config-[^/]*|site-packages/.+|dist-packages/.+)(/|$)"
    r"|.*/__pycache__(/|$)|.*\.(a|pyc)$|lib/pkgconfig(/|$)"
)
_TRIAL = """\
import ctypes, hashlib, lzma, sqlite3, ssl, sys, venv, zlib
print(sys.prefix)
print(open('/proc/self/maps').read())
"""


def find(version: str, environ: Mapping[str, str], folder: Path) -> Path:
    """The folder of an interpreter of this version that can be moved to a host; fetched by uv if none is here."""
    uv = find_uv(environ)
    wanted = f"cpython-{version}-{PLATFORM}"
    problems = []
    done = call([uv, "python", "find", "--managed-python", "--no-python-downloads", wanted], dict(environ), Path.cwd())
    candidates = [done.stdout.strip()] if not done.returncode else []
    if version == here().version:
        candidates.append(getattr(sys, "_base_executable", "") or sys.executable)
    done = call([uv, "python", "find", "--system", "--no-python-downloads", version], dict(environ), Path.cwd())
    candidates += [done.stdout.strip()] if not done.returncode else []
    for candidate in filter(None, candidates):
        root = Path(os.path.realpath(candidate)).parent.parent
        if not (problem := problem_of(root, version)):
            return root
        problems.append(f"{candidate}: {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    command = [uv, "python", "install", "--no-bin", "--install-dir", str(folder), wanted]
    done = call(command, dict(environ), folder, limit=FETCH_LIMIT)
    found = sorted(path for path in folder.glob(f"cpython-{version}.*{PLATFORM}") if not path.is_symlink())
    if done.returncode or not found:
        raise RequirementsError(
            f"no Python {version} here runs on the hosts ({'; '.join(problems) or 'none was found'}), and uv could "
            f" not fetch one:\n{done.stderr.strip()}\nRun this where uv can reach its downloads"
        )
    return found[-1]


def problem_of(root: Path, version: str) -> str:
    """The reason why the interpreter cannot be copied to a host, or ""."""
    program = root / "bin" / f"python{version}"
    if not program.is_file() or not (root / "lib" / f"python{version}" / "os.py").is_file():
        return "its folder does not hold it whole"
    for path in _binaries(root, version):
        if not runs_on_hosts(path):
            return "it is not for Linux on x86-64"
        newest = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\0", path.read_bytes())), default=0)
        if newest > GLIBC:
            return f"{path.name} needs glibc 2.{newest}, and the hosts have 2.{GLIBC}"
    return ""


def runs_on_hosts(program: Path) -> bool:
    """Return True for a program or a library for Linux on x86-64."""
    with program.open("rb") as file:
        head = file.read(20)
    return head[:5] == b"\x7fELF\x02" and head[18:20] == b"\x3e\x00"


def pack(root: Path, version: str, archive: Path) -> None:
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(mode="w", fileobj=packed, format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in _files(root, version):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
                continue
            data = _moved(path.read_bytes(), root)
            entry.size, entry.mode = len(data), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(data))


def check(archive: Path, root: Path, version: str) -> None:
    """Run it where it never was, if this machine is like a host."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return
    with tempfile.TemporaryDirectory(prefix="kinetic-moved-") as name:
        with tarfile.open(archive) as tar:
            tar.extractall(name, filter="fully_trusted")
        program = [str(Path(name, "bin", f"python{version}")), "-I", "-B", "-c", _TRIAL]
        done = subprocess.run(program, env={}, capture_output=True, text=True, timeout=60, check=False)
        prefix, _, maps = done.stdout.partition("\n")
        loaded = set(re.findall(r"\s(/\S+\.so[\d.]*)$", maps, re.MULTILINE))
    foreign = [
        path for path in loaded
        if not path.startswith(os.path.realpath(name) + os.sep) and not _ON_HOSTS.match(os.path.basename(path).encode())
    ]  # fmt: skip
    if done.returncode or os.path.realpath(prefix) != os.path.realpath(name) or foreign:
        reason = done.stderr.strip() or f"it loads {', '.join(sorted(foreign)) or prefix}"
        raise RequirementsError(
            f"the interpreter in {root} cannot be moved to a host: {reason}. Let uv install one: uv python install "
            f"{version}"
        )


def _binaries(root: Path, version: str) -> Iterator[Path]:
    yield root / "bin" / f"python{version}"
    yield from sorted((root / "lib").glob(f"libpython{version}*.so.*"))
    yield from sorted((root / "lib" / f"python{version}" / "lib-dynload").glob("*.so"))


def _files(root: Path, version: str) -> Iterator[Path]:
    """The program, its libraries and its headers, in one order everywhere."""
    names = [f"bin/python{version}", "bin/python3", "bin/python"]
    yield from (root / name for name in names if (root / name).exists())
    for part in (f"lib/python{version}", f"include/python{version}"):
        for path in sorted((root / part).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if (path.is_file() or path.is_symlink()) and not _LEFT_OUT.match(relative) and _stays_inside(path, root):
                yield path
    yield from sorted(path for path in (root / "lib").glob("lib*.so*") if path.is_file() and "python" in path.name)


def _stays_inside(path: Path, root: Path) -> bool:
    if not path.is_symlink():
        return True
    target = os.readlink(path)
    return not PurePosixPath(target).is_absolute() and Path(os.path.realpath(path)).is_relative_to(root)


def _moved(data: bytes, root: Path) -> bytes:
    """Patch a program that looks for its library by its build path to look next to itself."""
    if data[:4] != b"\x7fELF":
        return data
    built_at, beside = f"{root}/lib".encode() + b"\0", b"$ORIGIN/../lib"
    return data.replace(built_at, beside.ljust(len(built_at), b"\0")) if len(built_at) > len(beside) else data
