"""What a module needs, read off its source: imports are followed, nothing is executed.

Which files of its own folder, for code without a project around it: a notebook's cell, or a file in a folder of an
orchestrator's where much else lies. And which modules from elsewhere, for a host that has nothing. Knows nothing of
ignore rules or contents, nor of what is installed.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kinetic_orchestration.packaging.ignore import DEFAULT_FOLDERS, ENVIRONMENT_MARKS

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOBODYS = frozenset({"", "__main__", "__mp_main__", *sys.stdlib_module_names})
_BY_NAME = frozenset({"import_module", "__import__"})
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})

# How much an import is needed: not, where the code goes on without; when some function or branch is reached; or
# whenever its file is loaded.
GUARDED, PERHAPS, LOADED = 0, 1, 2


class Import(NamedTuple):
    """Where a module is imported, and how much it is needed there."""

    place: str
    need: int


def import_paths(root: Path, path: Iterable[str]) -> tuple[str, ...]:
    """The entries of sys.path inside the project, relative to it ("." for itself), in their order.

    A home folder may hold the interpreter, too: its standard library is no part of any project.
    """
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    found: dict[str, None] = {}
    for entry in path:
        folder = os.path.realpath(entry or ".")
        relative = os.path.relpath(folder, root)
        if relative == ".." or relative.startswith("../") or not os.path.isdir(folder):
            continue
        if folder in standard or os.path.dirname(folder) in standard:  # lib-dynload is below it
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


def imported_from_elsewhere(
    starts: Iterable[str | Path],
    *,
    search: Iterable[Path],
    modules: Mapping[str, Path] | None = None,
    unread: frozenset[str] = frozenset(),
    as_program: bool = False,
) -> dict[str, Import]:
    """The dotted names that `starts` import, directly or through files found in `search`, and that are not there.

    Each with the place of an import, of those that need it most. `modules` are top-level modules that lie elsewhere and
    are read, too. Those of `unread` count as elsewhere wherever they are. What only a type checker or, unless
    `as_program`, the start as a program imports is left out, and so is the standard library.
    """
    finder = _Finder(tuple(search), dict(modules or {}), unread)
    found: dict[str, Import] = {}
    waiting: list[tuple[Path, int]] = []
    seen: dict[Path, int] = {}
    for start in starts:
        if isinstance(start, Path):
            waiting.append((start, LOADED))
        elif files := finder.loaded(start.split(".")):
            waiting += ((file, LOADED) for file in files)
        elif start.partition(".")[0] not in _NOBODYS:
            found.setdefault(start, Import("the function", PERHAPS))
    while waiting:
        source, most = waiting.pop()
        if seen.get(source, -1) >= most or source.suffix != ".py":
            continue
        seen[source] = most
        for line, level, module, names, own in _import_lines(source, as_program=as_program):
            need = min(own, most)
            loads = [module, *([*module, name] for name in names if name != "*")]
            folder = source.parents[min(level, len(source.parents)) - 1] if level else None
            files = [file for load in loads for file in finder.loaded(load, folder)]
            waiting += ((file, need) for file in files)
            if not files and not level and module[0] not in sys.stdlib_module_names:
                for name in map(".".join, loads):
                    if name not in found or found[name].need < need:
                        found[name] = Import(f"{source}, line {line}", need)
    return found


class _Finder:
    """Finds the files that an import loads, in folders and among modules that are known by name."""

    def __init__(self, search: tuple[Path, ...], modules: dict[str, Path], unread: frozenset[str]) -> None:
        self.search = search
        self.modules = modules
        self.unread = unread

    def loaded(self, names: list[str], below: Path | None = None) -> list[Path]:
        """All that `import a.b.c` executes, from the outermost package inwards; [] if `a` is not here."""
        if below is not None:
            return _files_below(below, names)
        if not names or names[0] in sys.stdlib_module_names or names[0] in self.unread:
            return []
        if (top := self.modules.get(names[0])) is not None:
            return [top] if top.is_file() else [*_initial(top), *_files_below(top, names[1:])]
        for base in self.search:
            if files := _files_below(base, names):
                return files
        return []


def _files_below(base: Path, names: list[str]) -> list[Path]:
    files: list[Path] = []
    folder = base
    for part in names:
        if not part.isidentifier():
            break
        if (folder / part / "__init__.py").is_file():
            files.append(folder / part / "__init__.py")
        elif (folder / f"{part}.py").is_file():
            files.append(folder / f"{part}.py")
            break
        folder = folder / part
        if not folder.is_dir():
            break
    return files


def _initial(folder: Path) -> list[Path]:
    return [folder / "__init__.py"] if (folder / "__init__.py").is_file() else []


def _import_lines(source: Path, *, as_program: bool) -> Iterator[tuple[int, int, list[str], list[str], int]]:
    """(line, level, module, names, need) of everything that a file may import when it is loaded or used."""
    try:
        waiting: list[tuple[ast.AST, int]] = [(ast.parse(source.read_bytes()), LOADED)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    while waiting:
        node, need = waiting.pop()
        if isinstance(node, ast.If) and (_is_typing(node.test) or (not as_program and _is_main(node.test))):
            waiting += ((below, need) for below in node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, 0, alias.name.split("."), [], need) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or node.level):
            module = node.module.split(".") if node.module else []
            yield node.lineno, node.level, module, [alias.name for alias in node.names], need
        elif isinstance(node, ast.Call) and node.args and _called(node) in _BY_NAME:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value[:1].isidentifier():
                yield node.lineno, 0, first.value.split("."), [], min(need, PERHAPS)
        waiting += ((below, min(need, _need_within(node, below))) for below in ast.iter_child_nodes(node))


def _need_within(node: ast.AST, below: ast.AST) -> int:
    """Whether what is below a statement is always executed with it, and whether an import that fails there matters."""
    if isinstance(node, ast.Try | ast.TryStar) and any(_catches_imports(handler.type) for handler in node.handlers):
        return PERHAPS if below in node.finalbody else GUARDED
    if isinstance(node, ast.With) and any("suppress" in ast.dump(item.context_expr) for item in node.items):
        return GUARDED
    return LOADED if isinstance(node, ast.Module | ast.ClassDef | ast.With | ast.Expr | ast.Assign) else PERHAPS


def _catches_imports(kinds: ast.expr | None) -> bool:
    if isinstance(kinds, ast.Tuple):
        return any(_catches_imports(kind) for kind in kinds.elts)
    return kinds is None or getattr(kinds, "id", "") in _IMPORT_ERRORS


def _is_typing(test: ast.expr) -> bool:
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


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
