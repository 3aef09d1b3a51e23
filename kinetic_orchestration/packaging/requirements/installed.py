"""The distributions of this environment: which one owns a module, its version, and its dependencies.

Reads the files that installers left next to the modules and imports none of them. Does not know what a job needs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from kinetic_orchestration.packaging.call.first_party import normalized
from kinetic_orchestration.packaging.source.imports import resolve


def owners(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions that the modules of these dotted names belong to, by their normalized names.

    A name that nothing here provides is left out: what cannot be imported here is not needed to run here.
    """
    folders = [Path(entry) for entry in sys.path if _is_installed(entry)]
    found: dict[str, metadata.Distribution] = {}
    places = {place: name for name in sorted(names) for folder in folders if (place := _place(folder, name))}
    for (folder, file), name in places.items():
        distribution = _owner(folder, file, name.partition(".")[0])
        if distribution is not None:
            found.setdefault(normalized(distribution.metadata["Name"]), distribution)
    return found


def stands_on(distributions: Mapping[str, metadata.Distribution]) -> dict[str, str]:
    """All that these need, directly or not, as far as it is installed here: normalized name → version."""
    versions: dict[str, str] = {}
    waiting = [(distribution, frozenset[str]()) for distribution in distributions.values()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        distribution, extras = waiting.pop()
        name = normalized(distribution.metadata["Name"])
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        versions[name] = distribution.version
        for line in distribution.requires or ():
            wanted = set(re.findall(r"\bextra\s*==\s*['\"]([^'\"]+)", line))
            match = re.match(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?", line)
            if match is None or (wanted and wanted.isdisjoint(extras)):
                continue
            try:
                below = metadata.distribution(match.group(1))
            except metadata.PackageNotFoundError:
                continue
            waiting.append((below, frozenset(filter(None, re.split(r"[,\s]+", match.group(2) or "")))))
    return versions


def is_here(name: str) -> bool:
    """Return True if a top-level module can be imported in this process. It is not imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # a custom finder, or a module created at run time
        return True


def _is_installed(entry: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(entry or ".").parts)


def _place(folder: Path, name: str) -> tuple[Path, str] | None:
    """The file that represents the module in a list of installed files: of its outermost package, if it has one."""
    found = next(iter(resolve([folder], name.split("."))), None)
    if found is None:
        return None
    file = found / "__init__.py" if found.is_dir() else found
    return folder, file.relative_to(folder).as_posix()


def _owner(folder: Path, file: str, top: str) -> metadata.Distribution | None:
    records = (name for name in os.listdir(folder) if name.endswith(".dist-info"))
    likely = sorted(records, key=lambda info: normalized(info.split("-", 1)[0]) != normalized(top))
    for info in likely:
        if _lists(folder / info, file):
            return metadata.PathDistribution(folder / info)
    return None


@functools.lru_cache(maxsize=1024)
def _record(info: Path) -> str:
    try:
        return "\n" + (info / "RECORD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _lists(info: Path, file: str) -> bool:
    text = _record(info)
    return f"\n{file}," in text or f'\n"{file}"' in text


def reachable(path: Iterable[str]) -> Iterator[Path]:
    """The entries of sys.path whose modules are neither installed nor the interpreter's own."""
    own = {os.path.realpath(os.path.dirname(os.__file__))}
    own |= {os.path.join(entry, "lib-dynload") for entry in own}
    for entry in path:
        real = os.path.realpath(entry or os.getcwd())
        if os.path.isdir(real) and real not in own and not _is_installed(real):
            yield Path(real)
