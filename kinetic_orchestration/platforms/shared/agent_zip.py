"""The agent as one deterministic zip: the part of the package that hosts need, cloudpickle, and their byte code.

Same files and Python, same bytes: order, times and modes are fixed, and nothing is compressed, which each zlib does in
its own way. An edit of what hosts do not need changes no byte. Hosts of another minor version of Python compile the
sources. `python agent.zip ASSIGNMENT` is a host: byte code lies beside its source, where an import from a zip looks for
it. On this machine the zip is unpacked once per version, because a folder starts a process 2 ms sooner.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import marshal
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2]

_MAIN = """\
import os
import sys

if sys.version_info < (3, 10):
    sys.stderr.write("the agent needs Python 3.10 or later, and this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(126)  # as a program that cannot be run, see `boot.Ended`

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site"))
    if sys.argv[1] == "--child":
        from kinetic_orchestration.host.process.child import main

        if sys.argv[-1] == "function":
            import cloudpickle
        del sys.argv[1], sys.path[:2]
    else:
        own = f"__init__.{sys.implementation.cache_tag}.pyc"
        if os.path.isfile(os.path.join(sys.path[0], "kinetic_orchestration", "__pycache__", own)):
            sys.dont_write_bytecode = True  # all of it is there
        from kinetic_orchestration.host.start import main

    main()
"""

_CHILD = """\
import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
    from kinetic_orchestration.host.process.child import main

    if sys.argv[-1] == "function":
        import cloudpickle
    del sys.path[0]
    main()
"""


# cloudpickle is always imported from the zip, not from the job's environment: what it pickled in one version, another
# may not be able to read. It also is most of the time on the way to the first line, so it is imported early.

# Whole folders that hosts need: the agent, the API of programs, the protocol, and the imports of a module that declares
# jobs. The other public names exist on a host, and raise when they are used.
_ROOMS = ("host", "plan", "program", "protocol")
_FILES = (
    "__init__.py", "api/decorator.py", "collections.py", "data.py", "errors.py", "job_status.py",
)  # fmt: skip
_INSTEAD = {f"api/{name}.py": f"api/on_hosts/{name}.py" for name in ("__init__", "batch", "handle")}
_UNCHECKED = 1  # byte code of a source that is not looked at
# The version of marshal whose bytes do not depend on what else this process knows. Slices of Python 3.14 need another.
_WITHOUT_REFERENCES = 2
_KEPT_VERSIONS = 3
_KEPT_SECONDS = 7 * 86400.0  # no job of the local backend is expected to run from an older version for longer


class AgentZip(NamedTuple):
    data: bytes
    digest: str


def build(package: Path | None = None) -> AgentZip:
    """Return the zip; the same versions of packages and of Python give the same bytes.

    package: the folder of `kinetic_orchestration`; by default this one.
    """
    buffer = io.BytesIO()
    contents = {"__main__.py": _MAIN.encode(), "child.py": _CHILD.encode()}
    for name, path in _sources(package or PACKAGE):
        source = path.read_bytes()
        contents |= {f"site/{name}": source, f"site/{name}c": _byte_code(name, source)}
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name])
    data = buffer.getvalue()
    return AgentZip(data, hashlib.sha256(data).hexdigest())


def _cached(name: str) -> str:
    """Return the name of a module's byte code in a folder; importlib's puts it elsewhere under PYTHONPYCACHEPREFIX."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/__pycache__/{file.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"


def _byte_code(name: str, source: bytes) -> bytes:
    """Return a module's byte code as a file that Python loads whatever the time of its source is, see PEP 552."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _WITHOUT_REFERENCES)


def packed(home: Path) -> AgentZip:
    """Return the zip as it was kept here when it was unpacked; built anew if that was removed or damaged since."""
    with contextlib.suppress(OSError):
        for kept in unpacked(home).glob("*.zip"):
            data = kept.read_bytes()
            if (digest := hashlib.sha256(data).hexdigest()) == kept.stem:
                return AgentZip(data, digest)
    return build()


def unpacked(home: Path) -> Path:
    """The agent's folder on this machine, made at the first job after an upgrade."""
    folder = home / "agent" / _fingerprint()
    try:
        os.utime(folder)  # in use, for `_prune`
    except FileNotFoundError:
        _unpack(folder)
        _prune(folder.parent, time.time())
    except OSError:
        pass  # another user's, but as good
    return folder


def _unpack(folder: Path) -> None:
    import tempfile

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        agent = build()
        with zipfile.ZipFile(io.BytesIO(agent.data)) as archive:
            for name in archive.namelist():
                file = temporary / (_cached(name[:-1]) if name.endswith(".pyc") else name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
        (temporary / f"{agent.digest}.zip").write_bytes(agent.data)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same bytes
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _prune(parent: Path, now: float) -> None:
    """Delete old versions, and what an unpacking that died has left. Jobs may still run from the newer ones."""
    found = []
    for entry in parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            found.append((os.stat(entry).st_mtime, entry))
    found.sort(reverse=True)
    rubble = [(used, entry) for used, entry in found if entry.name.startswith(".")]
    versions = [(used, entry) for used, entry in found if not entry.name.startswith(".")]
    for used, entry in [*versions[_KEPT_VERSIONS:], *rubble]:
        if now - used > _KEPT_SECONDS:
            shutil.rmtree(entry, ignore_errors=True)


@functools.cache
def _sources(package: Path) -> list[tuple[str, Path]]:
    """Return the name in the zip and the file of each source, sorted by name."""
    import cloudpickle

    pickler = Path(cloudpickle.__file__).parent
    found = {f"{package.name}/{name}": package / name for name in _FILES}
    found |= {f"{package.name}/{name}": package / file for name, file in _INSTEAD.items()}
    for folder in (pickler, *(package / room for room in _ROOMS)):
        top = pickler.parent if folder == pickler else package.parent
        found |= {path.relative_to(top).as_posix(): path for path in folder.rglob("*.py")}
    return sorted(found.items())


def _fingerprint() -> str:
    """The fingerprint of the unpacked folder's sources and of this module, by names, sizes and times."""
    facts = [f"{sys.implementation.cache_tag} {PACKAGE} {_MAIN}{_CHILD}"]
    for name, path in (*_sources(PACKAGE), ("", Path(__file__))):
        found = os.stat(path)
        facts.append(f"{name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
