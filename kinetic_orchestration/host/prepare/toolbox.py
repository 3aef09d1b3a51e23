"""Tools to build a job's environment on a machine that has nothing: an interpreter, uv, and wheels.

Finds or fetches each, and trusts none: a tool is run only if its digest is the one that the submitter named in the
spec, whose own digest came by the machine's metadata; a wheel is installed only if the lock has its hash. So a process
that can write to the store can break a build, but cannot take it over. The build itself is in `environment`.

Wheels are cached for the next machine, not the finished environment. An archive of an environment cannot be checked
against anything that the submitter knows beforehand: each would need a signature. Wheels are checked by their hashes,
and to install them costs less: for jax and what it needs (528 MB) 3.1 s of a processor's time from wheels into an empty
cache, 4.1 s from one .tar.gz, measured side by side.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kinetic_orchestration.host.prepare import environment
from kinetic_orchestration.host.prepare.environment import BuildFailed
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import TooLarge
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.protocol.system.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetic_orchestration.protocol.records.base import Entry
    from kinetic_orchestration.protocol.records.files import FileRecords
    from kinetic_orchestration.protocol.wire.task import Environment

THREADS = 8
UNPACKED = 4  # a wheel's size on disk, times its own; measured 2 to 4
STAGE = "stage one for the machines: kinetic-orchestration stage-tools"


def provide(
    records: FileRecords,
    wanted: Environment,
    tools: Mapping[str, str],
    lock_text: str,
    home: str,
    env: Mapping[str, str],
    note: Callable[[str], object],
) -> str:
    """Return the path of the interpreter of the environment that the spec asks for, built if need be.

    `wanted` is the spec's environment and `tools` are its digests; the lock's text has been verified. `env` holds the
    settings of the package index, passwords among them.
    """
    import shutil

    python = _interpreter(records, wanted.python, tools.get("python", ""), home)
    if wanted.is_bare and os.sep in python:
        return python
    env = {**env, **_cache(home)}
    links = os.path.join(home, "wheels", f"{wanted.lock[:20]}-{os.getpid()}")  # one for each process of this machine
    try:
        built = environment.ensure(
            lock_text,
            wanted.lock,
            os.path.join(home, "environments"),
            uv=_uv(records, tools.get("uv", ""), wanted.uv_itself, home, env, note),
            python=python,
            env=with_tokens(env),
            note=note,
            links=lambda: _wheels(records, lock_text, links, note),
        )
    finally:
        shutil.rmtree(links, ignore_errors=True)
    environment.hold(built)  # for as long as this agent lives
    return built


def with_tokens(env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with this machine's access token in the addresses of Artifact Registry repositories."""
    import re

    def sign_in(match: re.Match[str]) -> str:
        from kinetic_orchestration.host.machine import bootstrap

        found = bootstrap.token()
        return f"https://oauth2accesstoken:{found}@{match.group(1)}" if found else match.group()

    places = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    signed = {
        name: re.sub(r"https://([\w-]+-python\.pkg\.dev/)", sign_in, value)
        for name, value in env.items()
        if name in places
    }
    return {**env, **signed}


def _interpreter(records: FileRecords, version: str, digest: str, home: str) -> str:
    """Return the path of an interpreter, or a version that uv finds or downloads."""
    from kinetic_orchestration.host.machine import bootstrap

    if digest and version != f"{sys.version_info[0]}.{sys.version_info[1]}":
        folder = _tool(records, digest, home, _unpack)
        return os.path.join(folder, "bin", f"python{version}")
    return bootstrap.python_of(version) or version


def _uv(
    records: FileRecords, digest: str, itself: str, home: str, env: Mapping[str, str], note: Callable[[str], object]
) -> str:
    import shutil

    if digest:
        return os.path.join(_tool(records, digest, home, _program), "uv")
    if found := shutil.which("uv"):
        return found
    if not itself:
        raise BuildFailed(f"There is no uv on this host to build the environment with, and none in the store: {STAGE}")
    return _installed_uv(itself, home, env, note)


def _installed_uv(itself: str, home: str, env: Mapping[str, str], note: Callable[[str], object]) -> str:
    """Return the path of uv, installed by this machine's pip, which refuses files whose hash is not in the spec."""
    import hashlib

    folder = os.path.join(home, "tools", hashlib.sha256(itself.encode()).hexdigest()[:20])
    program, whole = os.path.join(folder, "bin", "uv"), os.path.join(folder, "whole")
    if os.path.exists(whole):
        return program
    os.makedirs(folder, exist_ok=True)
    with environment.Lock(f"{folder}.lock") as lock:  # several processes of this machine may need it at once
        lock.take(wait=True)
        if not os.path.exists(whole):
            _install_uv(itself, folder, env, note)
            with open(whole, "w", encoding="utf-8"):
                pass
    return program


def _install_uv(itself: str, folder: str, env: Mapping[str, str], note: Callable[[str], object]) -> None:
    program = os.path.join(folder, "bin", "uv")
    note("fetching uv")
    listed = os.path.join(folder, "uv.txt")
    with open(listed, "w", encoding="utf-8") as file:
        file.write(itself)
    by_pip = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS": "PIP_FIND_LINKS"}
    told = {by_pip[name]: value for name, value in with_tokens(env).items() if name in by_pip}
    if environment.no_index(env):
        told["PIP_NO_INDEX"] = "1"
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--require-hashes", "--only-binary", ":all:", "--target", folder, "-r", listed),
    ]
    code, text = environment.output_of(command, {**copies.environ(), **told}, folder)
    if code != "0" or not os.path.exists(program):
        raise BuildFailed(
            f"There is no uv on this host to build the environment with, and pip could not fetch it:\n"
            f"{environment.redact(text).strip()}\nGive the machines a way to the package index, or {STAGE}"
        )


def _tool(records: FileRecords, digest: str, home: str, place: Callable[[str, str], None]) -> str:
    """Return the tool's folder on this machine, unpacked once from the store's content with that digest."""
    import shutil

    folder = os.path.join(home, "tools", digest)
    if os.path.isdir(folder):
        return folder
    fresh = f"{folder}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    try:
        _fetch(records, names.tool(digest), digest, os.path.join(fresh, "fetched"))
        place(os.path.join(fresh, "fetched"), fresh)
        os.unlink(os.path.join(fresh, "fetched"))
        try:
            os.rename(fresh, folder)
        except OSError:
            if not os.path.isdir(folder):  # else another job of this machine was first
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _program(fetched: str, folder: str) -> None:
    path = os.path.join(folder, "uv")
    os.link(fetched, path)
    os.chmod(path, 0o755)


def _unpack(fetched: str, folder: str) -> None:
    import tarfile

    with tarfile.open(fetched, "r:gz") as archive:  # its digest is the submitter's, so its content is trusted
        archive.extractall(folder)


def _fetch(records: FileRecords, name: str, digest: str, path: str, most: int | None = None) -> None:
    from kinetic_orchestration.protocol.content.digest import plain_of_file

    try:
        records.download(name, path, most=most)
    except OSError as error:
        raise BuildFailed(f"{name} cannot be read from the store: {error}. {STAGE}") from None
    if plain_of_file(path) != digest:
        os.unlink(path)
        raise BuildFailed(f"{name} in the store is not what was put there: its digest differs. Nothing of it was run.")


def _wheels(records: FileRecords, lock_text: str, folder: str, note: Callable[[str], object]) -> str:
    """Return a folder with the wheels of the lock that the store has; "" if it has none."""
    import re
    import shutil

    wanted = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock_text))
    found = []
    for entry in records.list(names.WHEELS) if wanted else ():
        *_, digest, file = entry.name.split("/")
        if digest in wanted and re.fullmatch(r"[\w.+!-]+\.whl", file):
            if entry.size > (most := names.file_limit_of(entry.name)):
                why = TooLarge(entry.name, records.root, most, entry.size)
                note(f"{why}. It is taken from the package index instead.")
            else:
                found.append((entry, digest, file))
    if not found:
        return ""
    size = sum(entry.size for entry, _, _ in found)
    os.makedirs(folder, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size * (1 + UNPACKED):
        raise BuildFailed(
            f"The environment needs about {size * (1 + UNPACKED) >> 20:,} MiB, and {folder} has {free >> 20:,} MiB "
            "free. Take a machine with a larger disk, or fewer requirements."
        )
    note(f"fetching {len(found)} wheel{'' if len(found) == 1 else 's'} from the store, {size / 1e6:,.0f} MB")

    def bring(wheel: tuple[Entry, str, str]) -> Exception | None:
        entry, digest, file = wheel
        try:
            _fetch(records, entry.name, digest, os.path.join(folder, file), entry.size)
        except Exception as error:
            return error
        return None

    for error in side_by_side(bring, found, THREADS, name="kinetic-wheel"):
        if error is not None:
            note(f"{error} It is taken from the package index instead.")
    return folder


def _cache(home: str) -> dict[str, str]:
    """Return the setting of uv's cache for an account without a home, as that of a startup script."""
    if os.environ.get("HOME") or os.environ.get("UV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME"):
        return {}
    return {"UV_CACHE_DIR": os.path.join(home, "cache", "uv")}
