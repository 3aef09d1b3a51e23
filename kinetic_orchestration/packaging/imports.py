"""Which files a module needs from its own folder: imports followed through the source, nothing executed.

For code without a project around it: a notebook's cell, or a file in a folder of an orchestrator's where much
else lies. Knows nothing of ignore rules or contents; what it names is then taken by a snapshot's walk.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kinetic_orchestration.packaging.ignore import DEFAULT_FOLDERS, ENVIRONMENT_MARKS

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_BY_NAME = frozenset({"import_module", "__import__"})


def import_paths(root: Path, path: Iterable[str]) -> tuple[str, ...]:
    """The entries of sys.path inside the project, relative to it ("." for itself), in their order."""
    found: dict[str, None] = {}
    for entry in path:
        folder = os.path.realpath(entry or ".")
        relative = os.path.relpath(folder, root)
        if relative == ".." or relative.startswith("../") or not os.path.isdir(folder):
            continue
        if _INSTALLED.isdisjoint(relative.split("/")) and not _in_environment(root, relative):
            found[relative] = None
    return tuple(found)


def imported_files(root: Path, modules: Iterable[str | Path], *, path: Iterable[str] = ()) -> tuple[str, ...]:
    """The first-party files and packages that `modules` reach, with themselves, relative to `root`.

    A module is a dotted name or a file. Names are looked up in `root` and in the entries of `path` inside it;
    a package travels with its whole folder, a namespace folder only with what is imported from it. Names that
    are not found are somebody else's. The result may name folders: that is what `snapshot(include=…)` takes.
    """
    root = Path(os.path.realpath(root))
    search = tuple(dict.fromkeys([root, *(root / entry for entry in import_paths(root, path))]))
    taken: set[Path] = set()
    waiting: list[Path] = []
    for module in modules:
        if isinstance(module, Path):
            waiting.append(Path(os.path.realpath(module)))
        else:
            waiting += _resolve(search, module.split("."))
    while waiting:
        target = waiting.pop()
        if target in taken or not target.is_relative_to(root) or target == root:
            continue
        taken.add(target)
        for source in _sources(target):
            waiting += _imported(source, search)
    return tuple(sorted(target.relative_to(root).as_posix() for target in taken if not _inside(target, taken)))


def _resolve(search: Iterable[Path], names: list[str]) -> list[Path]:
    """What `import a.b.c` loads: the outermost package's folder, or a module's file."""
    for base in search:
        folder = base
        for part in names:
            if (folder / part / "__init__.py").is_file():
                return [folder / part]
            if (folder / f"{part}.py").is_file():
                return [folder / f"{part}.py"]
            extensions = sorted(folder.glob(f"{part}.*.so")) if part.isidentifier() and folder.is_dir() else []
            if extensions:
                return extensions
            folder = folder / part
            if not folder.is_dir():
                break
    return []


def _sources(target: Path) -> Iterator[Path]:
    if target.is_file():
        if target.suffix == ".py":
            yield target
        return
    for folder, folders, files in os.walk(target):
        folders[:] = sorted(name for name in folders if name not in DEFAULT_FOLDERS)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _imported(source: Path, search: tuple[Path, ...]) -> Iterator[Path]:
    """What a file imports anywhere in it; also by `import_module("a constant")`."""
    try:
        nodes = ast.walk(ast.parse(source.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # it travels as it is; Python will say the same on the host
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _resolve(search, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            # A relative import leads out of what travels already only in a namespace folder.
            bases = search if node.level == 0 else (source.parents[min(node.level, len(source.parents)) - 1],)
            module = node.module.split(".") if node.module else []
            yield from _resolve(bases, module)
            for alias in node.names:  # `from folder import module`
                yield from _resolve(bases, [*module, alias.name])
        elif isinstance(node, ast.Call) and node.args and _called(node) in _BY_NAME:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value[:1] != ".":
                yield from _resolve(search, first.value.split("."))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _inside(target: Path, taken: set[Path]) -> bool:
    return any(parent in taken for parent in target.parents)


def _in_environment(root: Path, relative: str) -> bool:
    folder = root
    for part in relative.split("/"):
        folder = folder / part
        if any((folder / mark).exists() for mark in ENVIRONMENT_MARKS) and folder != root:
            return True
    return False
