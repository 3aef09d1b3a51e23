"""The tools with which a host builds an environment: uv and an interpreter, kept in the store by digest.

Responsible for storing them, and for the digests that a submitter passes to its hosts. A digest is trusted only if it
was not read from the bucket: that of uv is the one of the uv installed here, others are remembered here by the client
that staged them, or come from the settings (`tools`). Does not know how a host uses them (host/prepare/environment.py).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.errors import RequirementsError
from kinetic_orchestration.host.prepare.environment import redact
from kinetic_orchestration.packaging.requirements import indexes, interpreters
from kinetic_orchestration.packaging.requirements.locks import Hosts, Lock, lock
from kinetic_orchestration.packaging.requirements.resolution import call, find_uv, own_uv
from kinetic_orchestration.packaging.reuse import still_there
from kinetic_orchestration.packaging.source.stat_index import replace_file
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content.digest import plain_of_file

if TYPE_CHECKING:
    from kinetic_orchestration.platforms.store import Store

UV = "uv"
LIMIT = 1800.0  # for fetching wheels


class Tool(NamedTuple):
    """A tool in the store. `new`: it was not there before."""

    name: str
    digest: str
    size: int
    new: bool


def python_tool(version: str) -> str:
    return f"python-{version}"


def digest_own_uv(settings: Settings) -> None:
    """Read the uv installed here, tens of megabytes, unless that was done in an earlier process: `known` needs it."""
    Memory(settings.home).of_own_uv()


def known(python: str, settings: Settings) -> dict[str, str]:
    """The digests of the tools that hosts with this Python may use, as far as this client trusts them."""
    memory = Memory(settings.home)
    configured = {name: digest for name, digest in settings.tools.items() if re.fullmatch(r"[0-9a-f]{64}", digest)}
    staged = {UV: memory.of_own_uv(), **memory.staged, **configured}
    found = {UV: staged[UV], "python": staged.get(python_tool(python), "")}
    return {tool: digest for tool, digest in found.items() if digest}


def present(store: Store, digests: Mapping[str, str], retention: float) -> dict[str, str]:
    """The tools that are in the store and stay there for the retention: one request."""
    there = {entry.name: entry for entry in store.list(names.TOOLS)}
    found = {tool: there.get(names.tool(digest)) for tool, digest in digests.items()}
    return {
        tool: digests[tool]
        for tool, entry in found.items()
        if entry is not None and still_there(store, entry, retention)
    }


def itself_by_hash(environ: Mapping[str, str], cache: Path, hosts: Hosts) -> str:
    """A lock by which a host's pip installs this very version of uv only; "" if no index here has it."""
    try:
        return lock([f"uv=={metadata.version('uv')}"], environ=environ, cache=cache, hosts=hosts).text
    except (RequirementsError, metadata.PackageNotFoundError):
        return ""


def stage_uv(store: Store, settings: Settings) -> Tool:
    memory = Memory(settings.home)
    path = own_uv()
    if path is None or not interpreters.runs_on_hosts(path):
        raise RequirementsError(
            "there is no uv for Linux on x86-64 here to put into the store, only such a one runs on the hosts: install "
            f"it here ({sys.executable} -m pip install uv) on such a machine and stage it from there"
        )
    digest = memory.digest_of(path)
    new = store.upload(names.tool(digest), str(path))
    memory.remember(UV, digest)
    return Tool(UV, digest, path.stat().st_size, new)


def stage_python(store: Store, settings: Settings, version: str, environ: Mapping[str, str]) -> Tool:
    root = interpreters.find(version, environ, settings.home / "pythons")
    with tempfile.TemporaryDirectory(prefix="kinetic-python-") as folder:
        archive = Path(folder, "python.tar.gz")
        interpreters.pack(root, version, archive)
        interpreters.check(archive, root, version)
        digest, size = plain_of_file(archive), archive.stat().st_size
        new = store.upload(names.tool(digest), str(archive))
    Memory(settings.home).remember(python_tool(version), digest)
    return Tool(python_tool(version), digest, size, new)


def stage_wheels(store: Store, found: Lock, environ: Mapping[str, str]) -> Iterator[Tool]:
    """Store all wheels of a lock: local ones, and the others as pip finds them. Their hashes are the lock's."""
    with tempfile.TemporaryDirectory(prefix="kinetic-wheels-") as name:
        folder = Path(name)
        paths = [Path(path) for _, path in found.wheels]
        here = {digest for digest, _ in found.wheels}
        entries = [entry for entry in re.split(r"\n(?=\S)", found.text.strip()) if entry]
        others = [entry for entry in entries if here.isdisjoint(re.findall(r"sha256:(\w+)", entry))]
        if others:
            _download(others, found, folder, environ)
            paths += sorted(folder.glob("*.whl"))
        for path in sorted(paths, key=lambda path: path.name):
            digest = plain_of_file(path)
            if digest not in found.text:
                raise RequirementsError(f"{path.name} is not the file that the lock names: its hash is {digest}")
            new = store.upload(names.wheel(digest, path.name), str(path))
            yield Tool(path.name, digest, path.stat().st_size, new)


def _download(entries: list[str], found: Lock, folder: Path, environ: Mapping[str, str]) -> None:
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(entries) + "\n", encoding="utf-8")
    glibc = re.search(r"manylinux_2_(\d+)$", found.platform)
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(int(glibc.group(1)), 4, -1)] if glibc else []
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"] if glibc else []
    command = [
        *(*_pip(environ), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"),
        *("--only-binary", ":all:", "--python-version", found.python, "--implementation", "cp"),
        *(part for tag in tags for part in ("--platform", tag)),
        *("--dest", str(folder), "--requirement", str(listed)),
    ]
    variables = {
        "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
        "UV_INDEX": "PIP_EXTRA_INDEX_URL",
        "UV_FIND_LINKS": "PIP_FIND_LINKS",
    }
    uv = {**environ, **indexes.uv_settings(environ)}
    by_pip = {there: uv[name].replace(",", " ") for name, there in variables.items() if uv.get(name)}
    done = call(command, {**environ, **by_pip}, folder, limit=LIMIT)
    if done.returncode:
        raise RequirementsError(
            f"the wheels of the lock cannot be fetched for Python {found.python} on {found.platform}. pip says:\n"
            f"{redact(done.stderr).strip()}\nNothing of them was staged. A package without a wheel "
            "for the hosts has to be built first (uv build --wheel) and named by its file"
        )


def _pip(environ: Mapping[str, str]) -> list[str]:
    """This Python's pip, else the one that Python brings along, else one that uv fetches."""
    import ensurepip
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = sorted(Path(ensurepip.__file__).with_name("_bundled").glob("pip-*.whl"))
    return [sys.executable, str(bundled[-1] / "pip")] if bundled else [find_uv(environ), "tool", "run", "pip"]


class Memory:
    """This client's record of tools, in its home: those that it has staged, and digests of files that it has read."""

    def __init__(self, home: Path) -> None:
        self._path = home / "tools.json"
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        self._kept: dict[str, Any] = kept if isinstance(kept, dict) else {}

    @property
    def staged(self) -> dict[str, str]:
        return dict(self._kept.get("staged", {}))

    def remember(self, tool: str, digest: str) -> None:
        self._save({**self._kept, "staged": {**self.staged, tool: digest}})

    def of_own_uv(self) -> str:
        """The digest of the uv installed here, if a host can run it."""
        path = own_uv()
        return self.digest_of(path) if path is not None and interpreters.runs_on_hosts(path) else ""

    def digest_of(self, path: Path) -> str:
        """Read once for each version of the file."""
        found = path.stat()
        stamp = [found.st_size, found.st_mtime_ns]
        seen = self._kept.get("seen", {})
        if (kept := seen.get(str(path))) and kept[:2] == stamp:
            return str(kept[2])
        digest = plain_of_file(path)
        self._save({**self._kept, "seen": {str(path): [*stamp, digest]}})
        return digest

    def _save(self, kept: dict[str, Any]) -> None:
        self._kept = kept
        with suppress(OSError):  # it is read again next time
            replace_file(self._path, json.dumps(kept).encode())
