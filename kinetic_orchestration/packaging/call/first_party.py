"""Distributions that are sent as files: those that no package index has.

Responsible for: which distributions of this environment were installed from a folder, a repository or a file, the paths
of their modules, and their dependencies. Does not know how the files are sent or what a host installs.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from kinetic_orchestration.errors import UsageError

ITSELF = "kinetic-orchestration"

Origin = Literal["named", "folder", "repository", "archive"]


@dataclass(frozen=True)
class FirstParty:
    """One distribution that is sent as files.

    `paths` are pairs: its place below one folder of the host's sys.path, and its path on this machine.
    """

    name: str
    version: str
    origin: Origin
    paths: tuple[tuple[str, str], ...]
    modules: tuple[str, ...]
    requires: tuple[str, ...] = ()  # as in its metadata, extras included
    folder: str = ""  # what it was installed from, if that is a folder


def distributions_as_files(
    first_party: Sequence[str] | None = None, *, path: Sequence[str] | None = None
) -> list[FirstParty]:
    """The distributions of this environment that are sent as files: named ones, and those that no index has.

    The installer records the origin of the latter (PEP 610): a folder, editable or not, a repository, or a file on this
    machine. A name may be a distribution's or a module's. `path` is searched instead of sys.path, if given.
    """
    wanted = [first_party] if isinstance(first_party, str) else list(first_party or ())
    installed: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=list(sys.path if path is None else path)):
        if name := _name(distribution):
            installed.setdefault(normalized(name), distribution)
    installed.pop(ITSELF, None)
    named = {_find(name, installed) for name in wanted if normalized(name) != ITSELF}
    found = []
    for name in sorted(installed):
        origin, folder = _origin(installed[name])
        if name in named:
            origin = "named"
        if origin is not None and (description := _describe(name, installed[name], origin, folder)):
            found.append(description)
    return found


def from_folder(folder: Path) -> FirstParty:
    """A project's folder that is asked for but not installed here."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        name = normalized(project["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} is asked for by its folder, but its pyproject.toml has no [project] with a name, so "
            f"its modules are not known. Install it here (pip install -e {folder}) and it travels as files."
        ) from error
    root = folder / "src" if (folder / "src").is_dir() else folder
    paths = tuple(_importable(root))
    if not paths:
        raise UsageError(f"{folder} holds no package or module to import, neither itself nor its src folder.")
    modules = tuple(sorted({_module(place) for place, _ in paths}))
    return FirstParty(name, str(project.get("version", "0")), "folder", paths, modules, folder=str(folder))


def normalized(name: str) -> str:
    """The one way to write a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """Return the name of a requirement, also of the bare address of a wheel or an archive; "" if there is none."""
    match = re.match(r"(?:\w+://|\.{0,2}/)\S*?([^/\s]+?)-\d[^/\s]*\.(?:whl|zip|tar\.gz)", requirement)
    if match:
        return normalized(match[1])
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return normalized(match.group()) if match else ""


def _name(distribution: metadata.Distribution) -> str | None:
    """The name from the folder's name, if possible: parsing the metadata of everything installed takes a third of a
    second."""
    folder = _folder(distribution)
    if folder.endswith(".dist-info") and os.path.isfile(f"{folder}/METADATA"):
        name = os.path.basename(folder).removesuffix(".dist-info")
        return name.rpartition("-")[0]  # the name itself may have a hyphen: not all tools write an underscore
    return distribution.metadata["Name"]


def _folder(distribution: metadata.Distribution) -> str:
    """The folder of its metadata, "" if that is in an archive. As text: there are hundreds, at every job."""
    path = getattr(distribution, "_path", None)
    return str(path) if isinstance(path, Path) else ""


def _origin(distribution: metadata.Distribution) -> tuple[Origin | None, str]:
    if (metadata_folder := _folder(distribution)) and not os.path.exists(f"{metadata_folder}/direct_url.json"):
        return None, ""
    try:
        record = json.loads(distribution.read_text("direct_url.json") or "{}")
        url, folder = str(record.get("url", "")), ""
    except (ValueError, AttributeError):
        return None, ""
    # conda records its own build folders, of a machine that no user has.
    if not url or (distribution.read_text("INSTALLER") or "").strip() == "conda":
        return None, ""
    if url.startswith("file:"):
        folder = os.path.realpath(unquote(urlsplit(url).path))
    if "dir_info" in record:
        return "folder", folder
    if "vcs_info" in record:
        return "repository", ""
    return ("archive", "") if folder else (None, "")


def _describe(name: str, distribution: metadata.Distribution, origin: Origin, folder: str) -> FirstParty | None:
    paths = sorted(set(_installed(distribution)))
    if all(place.endswith(".dist-info") for place, _ in paths):
        if origin != "named":
            return None  # it has nothing but dependencies
        raise UsageError(
            f"first_party names {name}, but its list of installed files names no module, so nothing of it "
            "can travel. Install it again, or list what it depends on in requirements."
        )
    modules = tuple(sorted({_module(place) for place, _ in paths if not place.endswith(".dist-info")}))
    requires = tuple(distribution.requires or ())
    return FirstParty(name, distribution.version, origin, tuple(paths), modules, requires, folder)


def _installed(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Yield the paths of the distribution's modules and metadata, as few whole folders as possible."""
    files = [PurePosixPath(str(file)) for file in distribution.files or ()]
    inside = [file for file in files if ".." not in file.parts and "__pycache__" not in file.parts]
    packages = {str(file.parent) for file in inside if file.name == "__init__.py"}
    base = Path(str(distribution.locate_file("")))
    for file in inside:
        top = file.parts[0]
        if top.endswith(".dist-info"):
            yield top, str(base / top)
        elif file.suffix == ".pth":
            yield from _from_pth(base / file)
        elif top.endswith(".data") or re.match(r"__editable___.*_finder\.py$", file.name):
            yield from _from_finder(base / file)
        else:
            # The outermost package: a namespace's folder is shared with other distributions.
            place = next((str(parent) for parent in reversed(file.parents) if str(parent) in packages), str(file))
            yield place, str(base / place)


def _from_pth(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.strip() and not line.startswith(("#", "import ", "import\t")) and Path(line.strip()).is_dir():
            yield from _importable(Path(line.strip()))


def _from_finder(path: Path) -> Iterator[tuple[str, str]]:
    """The editable installation of setuptools: a mapping from module to path, written into its finder."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(node, ast.AnnAssign) and node.value:
            for module, here in ast.literal_eval(node.value).items():
                place = module.replace(".", "/")
                if Path(here).is_dir():
                    yield place, here
                elif Path(here + ".py").is_file():
                    yield place + ".py", here + ".py"


def _importable(root: Path) -> Iterator[tuple[str, str]]:
    """The packages and modules that a folder on sys.path offers."""
    for entry in sorted(root.iterdir()):
        if entry.is_dir() and entry.name.isidentifier() and (entry / "__init__.py").is_file():
            yield entry.name, str(entry)
        elif entry.is_dir() and entry.name.isidentifier() and root.name == "src" and any(entry.rglob("*.py")):
            yield entry.name, str(entry)  # a namespace
        elif entry.suffix == ".py" and entry.stem.isidentifier() and entry.stem not in ("setup", "conftest", "noxfile"):
            yield entry.name, str(entry)


def _module(place: str) -> str:
    return re.sub(r"\.py$|(\.[A-Za-z0-9_-]+)*\.(so|pyd)$", "", place).replace("/", ".")


def _find(name: str, installed: dict[str, metadata.Distribution]) -> str:
    if normalized(name) in installed:
        return normalized(name)
    for key, distribution in installed.items():
        if any(str(file).split("/", 1)[0] in (name, f"{name}.py") for file in distribution.files or ()):
            return key
    near = difflib.get_close_matches(normalized(name), installed, n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else "Install it here first, for instance pip install -e FOLDER."
    raise UsageError(f"first_party names {name!r}, which is not installed in this environment. {hint}")


def stub(folder: Path, distribution: FirstParty, leave_out: Iterable[str] = ()) -> Path:
    """A wheel without content but with the distribution's name, version and dependencies.

    With it a resolver includes the dependencies and does not search for the distribution itself.
    """
    import zipfile

    from packaging.version import InvalidVersion, Version

    try:
        version = str(Version(distribution.version))
    except InvalidVersion:
        version = "0"
    pinned = set(leave_out)
    requires = [line for line in distribution.requires if name_of(line) not in pinned]
    if distribution.name == ITSELF:  # it is on every host already; only its extras need anything
        requires = [line for line in requires if re.search(r"\bextra\s*==", line)]
    extras = sorted({extra for line in requires for extra in re.findall(r"extra\s*==\s*['\"]([^'\"]+)", line)})
    name = distribution.name.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {distribution.name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {line}" for line in requires]
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def itself() -> FirstParty:
    """This project, which is on every host next to the agent and never part of an environment."""
    try:
        distribution = metadata.distribution(ITSELF)
    except metadata.PackageNotFoundError:
        return FirstParty(ITSELF, "0", "named", (), ())
    return FirstParty(ITSELF, distribution.version, "named", (), (), tuple(distribution.requires or ()))
