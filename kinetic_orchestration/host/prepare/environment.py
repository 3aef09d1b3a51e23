"""The environment of an isolated job on this host: built once by uv from a lock, reused by every job after.

Responsible for: where it lies, one builder at a time, what a crash leaves behind, and what may be deleted.
Does not know: how the lock was made, where it came from, or what runs in the environment.

A virtual environment holds absolute paths, so it is built where it stays, under a file lock. The `complete`
marker is written last: an environment without one is rubble, and the next builder starts over. uv inherits
the lock, so that a builder that is killed leaves no uv behind that writes into its successor's work.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MARKER = "complete"

# Variables that would point uv or the interpreter at another environment than the one being built.
_FOREIGN = (
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_BREAK_SYSTEM_PACKAGES",
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_TORCH_BACKEND",
    "UV_VENV_CLEAR",
    "UV_VENV_SEED",
    "UV_WORKING_DIR",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


# Messages of a package index that may be transient; and those of the index itself, which other hosts may not get.
_REFUSED = r"\((429|50[0234])\b"
_PASSING = rf"{_REFUSED}|timed out|connection reset|dns error|temporary failure"
PAUSES = (2.0, 8.0, 20.0)
PATIENCE = 60.0  # of all that; uv asks several times itself


class BuildFailed(Exception):
    """The environment could not be built; the message has uv's own text and the next step."""

    passing = False  # the index itself was out of order


def ensure(
    lock_text: str,
    digest: str,
    root: str,
    *,
    uv: str = "",
    python: str,
    env: Mapping[str, str] | None = None,
    note: Callable[[str], object],
    links: Callable[[], str] | None = None,
) -> str:
    """Return the path of the environment's interpreter; build it first if no job on this host has built it yet.

    root: the folder of all environments. digest: that of the lock. uv: its path; "" for the one on PATH. python: a
    path, or a version that uv then finds or downloads. env: variables for uv, such as its index settings, which are
    never written down here. links: fetches wheels into a folder and returns it, called if uv's cache lacks some. note:
    writes a line to the log when there is something to wait for.
    """
    root = os.path.abspath(root)
    folder = os.path.join(root, key(digest, python, root))
    interpreter = _interpreter(folder)
    if _usable(folder):
        return interpreter
    try:
        os.makedirs(root, exist_ok=True)
        with Lock(folder + ".lock") as lock:
            if not lock.take(wait=False):
                note("waiting for the environment: another process builds it")
                lock.take(wait=True)
            if not _usable(folder):
                run = _Uv(_find_uv(uv), _environ(env), root, lock.descriptor)
                _build(folder, lock_text, python, run, note, links)
    except OSError as error:
        raise BuildFailed(
            f"The environment could not be written to {folder}: {error.strerror}. "
            "Free some space or choose another folder for the environments."
        ) from error
    return interpreter


def key(digest: str, python: str, root: str) -> str:
    """Return the key of an environment: its lock, the interpreter, the platform and its folder.

    Short, because the first line of an installed script may not be longer than 127 bytes.
    """
    import hashlib

    identity: list[object] = [digest, sys.platform, os.uname().machine, os.path.realpath(root)]
    if os.sep in python:
        base = os.path.realpath(python)
        try:
            status = os.stat(base)
        except OSError as error:
            raise BuildFailed(f"The interpreter {python} cannot be used: {error.strerror}.") from error
        # An interpreter replaced in place, as by a system update, is another one.
        identity += [base, status.st_size, int(status.st_mtime)]
    else:
        identity.append(python)
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:20]


def hold(interpreter: str) -> int:
    """Keep an environment from being pruned until the descriptor is closed or the process ends."""
    import fcntl

    marker = os.path.join(os.path.dirname(os.path.dirname(interpreter)), MARKER)
    descriptor = os.open(marker, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def prune(root: str, keep_days: float) -> list[str]:
    """Delete the environments that no process holds and no job has used for `keep_days`; return those deleted."""
    import time

    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    limit = time.time() - keep_days * 86_400
    deleted = []
    for name in names:
        folder = os.path.join(root, name)
        if not os.path.isdir(folder):
            continue
        with Lock(folder + ".lock") as lock:
            if lock.take(wait=False) and _retire(folder, limit):
                deleted.append(folder)
    return deleted


def packages(lock_text: str) -> int:
    """Return the number of packages that a lock names."""
    return sum(1 for line in lock_text.splitlines() if line[:1] not in ("", " ", "\t", "#", "-"))


def redact(text: str) -> str:
    """Return the text without the user names and passwords in its addresses."""
    import re

    return re.sub(r"(?<=://)[^/\s@]+@", "***@", text)


def no_index(environ: Mapping[str, str]) -> list[str]:
    """Return the --no-index option if UV_NO_INDEX asks for it: uv has no variable of its own, and this one is ours."""
    return ["--no-index"] if environ.get("UV_NO_INDEX", "").lower() not in ("", "0", "false", "no", "off") else []


def with_own(env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return uv's settings, merged with those that the requirements set themselves, which may name variables."""
    merged = dict(env)
    for name, value in own.items():
        separator = {"UV_FIND_LINKS": ",", "UV_INDEX": " "}.get(name)
        before = env.get(name) or os.environ.get(name, "") if separator else ""
        merged[name] = (separator or "").join(filter(None, (before, _filled_in(value, env))))
    return merged


def _filled_in(value: str, env: Mapping[str, str]) -> str:
    import re

    def variable(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        return env.get(name) or os.environ.get(name) or match.group()

    return re.sub(r"\$(?:(\w+)|\{([^}]*)\})", variable, value)


def _build(
    folder: str,
    lock_text: str,
    python: str,
    run: _Uv,
    note: Callable[[str], object],
    links: Callable[[], str] | None,
) -> None:
    import json
    import shutil
    import time

    started = time.monotonic()
    count = packages(lock_text)
    note(f"building the environment: {count} package{'' if count == 1 else 's'}")
    shutil.rmtree(folder, ignore_errors=True)
    run(["venv", "--no-project", "--python", python, folder])
    requirements = os.path.join(folder, "requirements.txt")
    _write(requirements, lock_text)
    if count:
        sync = ["pip", "sync", "--python", _interpreter(folder), *no_index(run.environ), requirements]
        if _all_hashed(lock_text):
            sync.insert(2, "--require-hashes")
        # Packages in uv's cache need no index; asking it anyway costs more than the installation.
        if run.fails([*sync, "--offline"]):
            if wheels := links() if links is not None else "":
                sync[2:2] = ["--find-links", wheels]
            if not wheels or run.fails([*sync, "--offline"]):
                _from_index(run, sync, note)
    _write(os.path.join(folder, MARKER), json.dumps({"python": python, "uv": run.path, "packages": count}))
    note(f"the environment is ready after {time.monotonic() - started:.1f} s")


def _from_index(run: _Uv, sync: Sequence[str], note: Callable[[str], object]) -> None:
    """Run uv, and retry while the package index is unavailable, so that the job does not lose its hosts."""
    import re
    import time

    began = time.monotonic()
    for pause in PAUSES:
        if not run.fails(sync):
            return
        if not re.search(_PASSING, run.text, re.I) or time.monotonic() - began > PATIENCE:
            raise run.failure(sync)
        note(f"the package index is asked again in {pause:g} s: {run.text.splitlines()[-1].strip()}")
        time.sleep(pause)
    run(sync)


def warm_up(python: str, modules: Sequence[str], note: Callable[[str], object]) -> None:
    """Import modules once, so that the next import finds their byte code made and their files in memory.

    By the way with the least priority, and nothing depends on it.
    """
    import time

    began = time.monotonic()
    command = ["nice", "-n", "19", python, "-I", "-c", f"import {', '.join(modules)}"]
    code, _ = output_of(command, {**_environ(None), "JAX_PLATFORMS": "cpu"}, os.path.dirname(python))
    if code == "0":
        note(f"{' and '.join(modules)} was imported ahead, in {time.monotonic() - began:.1f} s")


TELLING = '"$@"; code=$?; echo; echo $code'


def output_of(
    command: Sequence[str], environ: Mapping[str, str], folder: str, held: Sequence[int] = ()
) -> tuple[str, str]:
    """Return a command's exit code, as text, and all its output."""
    import subprocess

    done = subprocess.run(
        ["sh", "-c", TELLING, "sh", *command],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(held),
        check=False,
    )
    text, _, code = done.stdout.decode(errors="replace").rstrip("\n").rpartition("\n")
    return code, text


class _Uv:
    """Runs uv without a terminal, with the builder's lock in its hands."""

    def __init__(self, path: str, environ: dict[str, str], folder: str, descriptor: int) -> None:
        self.path, self.environ, self.folder, self.descriptor = path, environ, folder, descriptor
        self.text = ""

    def fails(self, arguments: Sequence[str]) -> bool:
        command = [self.path, *arguments, "--no-progress", "--color", "never"]
        code, text = output_of(command, self.environ, self.folder, (self.descriptor,))
        if code == "127":
            raise BuildFailed(_no_uv(self.path))
        self.text = redact(text).strip()
        return code != "0"

    def __call__(self, arguments: Sequence[str]) -> None:
        if self.fails(arguments):
            raise self.failure(arguments)

    def failure(self, arguments: Sequence[str]) -> BuildFailed:
        import re

        step = "uv " + " ".join(arguments[: 2 if arguments[0] == "pip" else 1])
        failed = BuildFailed(
            f"The environment could not be built, `{step}` failed:\n{self.text}\n"
            "The next job starts it anew. If a package is missing, make the lock anew for this platform, "
            "or give this host the package index that the lock was made with."
        )
        failed.passing = re.search(_REFUSED, self.text) is not None
        return failed


class Lock:
    """A lock between processes that the kernel releases with its last holder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1

    def __enter__(self) -> Lock:
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self

    def __exit__(self, *_: object) -> None:
        # Not LOCK_UN: that would take the lock away from a uv that still runs.
        os.close(self.descriptor)

    def take(self, *, wait: bool) -> bool:
        import fcntl

        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as error:
            raise BuildFailed(
                f"{self.path} cannot be locked: {error.strerror}. Choose a folder for the environments on a "
                "file system with locks, such as the local disk."
            ) from error
        return True


def _usable(folder: str) -> bool:
    """Return True if the environment is complete; it then counts as used from now on."""
    import fcntl

    try:
        descriptor = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # shuts out `_retire`, which looks at the age again under its lock
        if not os.fstat(descriptor).st_nlink or not os.path.exists(_interpreter(folder)):
            return False
        try:
            os.utime(descriptor)
        except OSError:
            pass  # on a read-only root it is as good as ever
        return True
    finally:
        os.close(descriptor)


def _retire(folder: str, limit: float) -> bool:
    """Delete an environment last used before `limit`; the caller has its build lock."""
    import fcntl
    import shutil

    marker = os.path.join(folder, MARKER)
    try:
        descriptor = os.open(marker, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # rubble: no builder has the lock
        shutil.rmtree(folder, ignore_errors=True)
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_mtime > limit:
            return False
        os.unlink(marker)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _interpreter(folder: str) -> str:
    return os.path.join(folder, "bin", "python")


def _all_hashed(lock_text: str) -> bool:
    joined = lock_text.replace("\\\n", " ")
    return all("--hash" in line for line in joined.splitlines() if line.strip() and not line.startswith("#"))


def _environ(env: Mapping[str, str] | None) -> dict[str, str]:
    found = ((name, os.environ.get(name)) for name in os.environ)  # of which another thread may take one away
    environ = {name: value for name, value in found if value is not None} | dict(env or {})
    for name in _FOREIGN:
        environ.pop(name, None)
    return environ


def _find_uv(uv: str) -> str:
    import shutil

    found = uv or shutil.which("uv")
    if not found:
        raise BuildFailed(_no_uv("uv"))
    return found


def _no_uv(path: str) -> str:
    return f"There is no {path} on this host to build the environment with. Install it: python -m pip install uv"


def _write(path: str, text: str) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)
