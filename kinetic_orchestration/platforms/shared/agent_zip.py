"""The agent as one deterministic zip: the part of the package that hosts need, cloudpickle, and their byte code.

Same files and Python, same bytes: order, times and modes are fixed, and nothing is compressed, which each zlib does in
its own way. An edit of what hosts do not need changes no byte. Hosts of another minor version of Python compile the
sources. `python agent.zip ASSIGNMENT` is a host: byte code lies beside its source, where an import from a zip looks for
it. For jobs on other machines it is packed once per version, and unpacked for those on this one, because a folder
starts a process 2 ms sooner.
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
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2]

_MAIN = """\
import os
import sys
import zipimport

if sys.version_info < (3, 10):
    sys.stderr.write("the agent needs Python 3.10 or later, and this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(126)  # as a program that cannot be run, see `boot.Ended`

AGENT = os.path.dirname(os.path.abspath(__file__))


class Importer(zipimport.zipimporter):
    def __init__(self, path):
        if not str(path).startswith(AGENT):  # the program may have a zip of its own
            raise ImportError(path)
        super().__init__(path)

    def get_filename(self, name):  # zipimport compiles a module to find its path, and once more to run it
        path = os.path.join(self.archive, self.prefix, name.rpartition(".")[2])
        return os.path.join(path, "__init__.py") if self.is_package(name) else path + ".py"


if __name__ == "__main__":
    sys.path_hooks.insert(0, Importer)
    sys.path.insert(0, os.path.join(AGENT, "site"))
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
    "__init__.py", "api/decorator.py", "api/steps/asked.py", "api/steps/evaluation.py",
    "api/steps/inference.py",
    "api/steps/searches/__init__.py", "api/steps/searches/results.py", "collections.py", "data.py", "errors.py",
    "job_status.py",
)  # fmt: skip
_STAND_INS = (
    "__init__", "batch", "handle", "steps/__init__", "steps/promotion", "steps/search", "steps/serving",
)  # fmt: skip
_INSTEAD = {f"api/{name}.py": f"api/on_hosts/{name}.py" for name in _STAND_INS}
_UNCHECKED = 1  # byte code of a source that is not looked at
# The version of marshal whose bytes do not depend on what else this process knows. It has no slices, of which Python
# 3.14 makes constants: a host compiles such a module by itself.
_WITHOUT_REFERENCES = 2
_PACKED = "-packed"  # how the folder of a version ends in which the zip is whole
_KEPT_VERSIONS = 3  # of each kind of folder
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
        contents[f"site/{name}"] = source
        if compiled := _byte_code(name, path, source):
            contents[f"site/{name}c"] = compiled
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


def _byte_code(name: str, path: Path, source: bytes) -> bytes | None:
    """Return a module's byte code as a file that Python loads whatever the time of its source is, see PEP 552; None if
    there is none that is the same whoever makes it.
    """
    code = _known(name, path, source) or compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    return _written(head, code)


def _written(head: bytes, code: CodeType) -> bytes | None:
    try:
        return head + marshal.dumps(code, _WITHOUT_REFERENCES)
    except ValueError:
        return None


def _known(name: str, path: Path, source: bytes) -> CodeType | None:
    """Return what Python keeps as the byte code of a source, as if it had been compiled by its name in the zip: to
    compile all sources takes six times as long. None if nothing is kept of this very source.
    """
    try:
        cached = importlib.util.cache_from_source(path, optimization="")
        made, edited = os.stat(cached).st_mtime_ns, os.stat(path)
        with open(cached, "rb") as file:  # noqa: PTH123 - a path as text
            data = file.read()
        facts = (0, int(edited.st_mtime) & 0xFFFFFFFF, len(source) & 0xFFFFFFFF)
        head = importlib.util.MAGIC_NUMBER + b"".join(fact.to_bytes(4, "little") for fact in facts)
        # Python takes that of an earlier text of the same second and size for this one's.
        if data[: len(head)] != head or made < edited.st_mtime_ns:
            return None
        code = marshal.loads(data[len(head) :])
    except (OSError, NotImplementedError, EOFError, ValueError, TypeError):
        return None
    return _renamed(code, name) if isinstance(code, CodeType) else None


def _renamed(code: CodeType, name: str) -> CodeType:
    inner = tuple(_renamed(const, name) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=name, co_consts=inner)


class Packed(NamedTuple):
    """The agent in a file, which is read once a store lacks it."""

    digest: str
    path: Path

    def data(self) -> bytes:
        """Return its bytes; those of one built anew if the file was damaged or removed since."""
        with contextlib.suppress(OSError):
            data = self.path.read_bytes()
            if hashlib.sha256(data).hexdigest() == self.digest:
                return data
        data = build().data
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise OSError(f"{self.path} is gone, and this package was changed since: start this process anew")
        return data


def packed(home: Path) -> Packed:
    """Return the zip that is kept here since the first job after an upgrade."""
    digest, folder = "", home
    with contextlib.suppress(OSError):  # of a disk that is full: then it is built for each job
        folder = _kept(home, _PACKED, _pack)
        digest = next((kept.stem for kept in folder.glob("*.zip")), "")
    digest = digest or build().digest
    return Packed(digest, folder / f"{digest}.zip")


def unpacked(home: Path) -> Path:
    """The agent's folder on this machine, made at the first job after an upgrade."""
    return _kept(home, "", _unpack)


def _kept(home: Path, kind: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder of this version, which `fill` fills if there is none yet."""
    folder = home / "agent" / f"{_fingerprint()}{kind}"
    try:
        os.utime(folder)  # in use, for `_prune`
    except FileNotFoundError:
        _make(folder, fill)
        _prune(folder.parent, time.time())
    except OSError:
        pass  # another user's, but as good
    return folder


def _make(folder: Path, fill: Callable[[Path], object]) -> None:
    import tempfile

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        fill(temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same bytes
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _pack(folder: Path) -> None:
    agent = build()
    (folder / f"{agent.digest}.zip").write_bytes(agent.data)


def _unpack(folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build().data)) as archive:
        for name in archive.namelist():
            file = folder / (_cached(name[:-1]) if name.endswith(".pyc") else name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))


def _prune(parent: Path, now: float) -> None:
    """Delete old versions, and what an unpacking that died has left. Jobs may still run from the newer ones."""
    found = []
    for entry in parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            found.append((os.stat(entry).st_mtime, entry))
    found.sort(reverse=True)
    rubble = [(used, entry) for used, entry in found if entry.name.startswith(".")]
    whole = [(used, entry) for used, entry in found if not entry.name.startswith(".")]
    kinds = ([one for one in whole if one[1].name.endswith(_PACKED) == packed] for packed in (True, False))
    for used, entry in [*rubble, *(one for kind in kinds for one in kind[_KEPT_VERSIONS:])]:
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
