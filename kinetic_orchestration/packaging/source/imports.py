"""The modules that a module needs, read off its source: imports are followed, nothing is executed.

Finds the files of its own folder, for code without a project: a notebook's cell, or a file in an orchestrator's folder
with many unrelated files. Also finds the modules from elsewhere, for a host that has nothing. Knows nothing of ignore
rules or contents, nor of what is installed.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import itertools
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kinetic_orchestration.packaging.source.ignore import DEFAULT_FOLDERS, ENVIRONMENT_MARKS
from kinetic_orchestration.protocol.system import copies

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOBODYS = frozenset({"", "__main__", "__mp_main__", *sys.stdlib_module_names})
_BY_NAME = frozenset({"import_module", "__import__"})
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})

MOST_UNSENT = 100  # modules that stay here, and that hosts can name
MOST_LOOKED_AT = 2_000  # entries of a folder, in search of them

# When an import is needed: never, as its failure is caught; when some function or branch is reached; or whenever its
# file is loaded.
GUARDED, PERHAPS, LOADED = 0, 1, 2


class Import(NamedTuple):
    """The place of an import, and how much the module is needed there."""

    location: str
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

    A module is a dotted name or a file. Names are looked up in `root` and in the entries of `path` inside it; a package
    is sent with its whole folder, a namespace folder only with the modules imported from it. Names that are not found
    are third-party. The result may name folders: that is what `snapshot(include=…)` takes.
    """
    root = Path(os.path.realpath(root))
    search = tuple(dict.fromkeys([root, *(root / entry for entry in import_paths(root, path))]))
    taken: set[Path] = set()
    waiting: list[Path] = []
    for module in modules:
        if isinstance(module, Path):
            waiting.append(Path(os.path.realpath(module)))
        else:
            waiting += resolve(search, module.split("."))
    while waiting:
        target = waiting.pop()
        if target in taken or not target.is_relative_to(root) or target == root:
            continue
        taken.add(target)
        for source in _sources(target):
            waiting += _imported(source, search)
    return tuple(sorted(target.relative_to(root).as_posix() for target in taken if taken.isdisjoint(target.parents)))


def imported_by(function: object, *, texts: bool = False) -> tuple[str, ...]:
    """The dotted names that a function without a file may import: a notebook's cell, or a prompt's line.

    They are modules that it refers to, those of its values, and the import statements in its code, in functions and
    classes within it, and in those next to it that it uses. `texts` as in `imports_in`.
    """
    found: set[str] = set()
    waiting: list[object] = [function]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.ModuleType):
            found.add(value.__name__)
        elif isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.MethodType):
            waiting += [value.__func__, value.__self__]
        elif isinstance(value, types.FunctionType):
            found.add(value.__module__ or "")
            waiting += _used_by(value)
            found.update(imports_in(value.__code__, texts=texts))
        elif (plain := inspect.getattr_static(value, "__kinetic_function__", None)) is not None:
            waiting.append(plain)
        else:
            kind = value if isinstance(value, type) else type(value)
            found.add(str(kind.__module__))
            if kind.__module__ == "__main__":
                waiting += [each for cls in kind.__mro__ for each in copies.members(cls).values() if callable(each)]
    return tuple(sorted(found - _NOBODYS - {"builtins"}))


def _used_by(function: types.FunctionType) -> Iterator[object]:
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a function's code uses, in functions within it, too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def imports_in(code: types.CodeType, *, texts: bool = False) -> Iterator[str]:
    """Yield what the import statements of a function's code name, in functions, classes and comprehensions in it, too.

    Of `from a import b` that is a, and a.b, which may be a module. `texts`: where a name is imported by a call, also
    every text that could be one.
    """
    module = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            module = instruction.argval or ""
            if module:
                yield module
        elif instruction.opname == "IMPORT_FROM" and module:
            yield f"{module}.{instruction.argval}"
    by_name = texts and not _BY_NAME.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_in(constant, texts=texts)
        elif by_name and isinstance(constant, str) and all(part.isidentifier() for part in constant.split(".")):
            yield constant


def unsent_modules(folder: Path, travels: Callable[[Path], bool]) -> dict[str, str]:
    """The path of each module in a folder or one below it that is not sent, by the name under which it is imported."""
    found: dict[str, str] = {}
    waiting = [(folder, 0)]
    while waiting and len(found) < MOST_UNSENT:
        here, depth = waiting.pop(0)
        try:
            with os.scandir(here) as scanned:
                entries = sorted(itertools.islice(scanned, MOST_LOOKED_AT), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            name, path = entry.name.removesuffix(".py"), Path(entry.path)
            if not name.isidentifier() or name in DEFAULT_FOLDERS:
                continue
            if entry.is_dir():
                if (path / "__init__.py").is_file():
                    if not travels(path / "__init__.py"):
                        found.setdefault(name, entry.path)
                elif depth == 0:
                    waiting.append((path, 1))
            elif entry.name != name and not travels(path):
                found.setdefault(name, entry.path)
    return dict(itertools.islice(found.items(), MOST_UNSENT))


def imported_from_elsewhere(
    starts: Iterable[str | Path],
    *,
    search: Iterable[Path],
    modules: Mapping[str, Path] | None = None,
    unread: frozenset[str] = frozenset(),
    as_program: bool = False,
) -> dict[str, Import]:
    """The dotted names that `starts` import, directly or through files found in `search`, and that are not there.

    Each has the place of an import, of those that need it most. `modules` are top-level modules in other places that
    are read, too. Those of `unread` are not read. Imports for a type checker, imports that only run when the file
    is started as a program (unless `as_program`), and the standard library are left out.
    """
    loaded = functools.partial(_loaded, search=tuple(search), modules=modules or {}, unread=unread)
    found: dict[str, Import] = {}
    waiting: list[tuple[Path, int]] = []
    seen: dict[Path, int] = {}
    for start in starts:
        if isinstance(start, Path):
            waiting.append((start, LOADED))
        elif files := loaded(start.split(".")):
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
            files = [file for load in loads for file in loaded(load, folder)]
            waiting += ((file, need) for file in files)
            if not files and not level and module[0] not in sys.stdlib_module_names:
                for name in map(".".join, loads):
                    if name not in found or found[name].need < need:
                        found[name] = Import(f"{source}, line {line}", need)
    return found


def _loaded(
    names: list[str],
    below: Path | None = None,
    *,
    search: tuple[Path, ...],
    modules: Mapping[str, Path],
    unread: frozenset[str],
) -> list[Path]:
    """All that `import a.b.c` executes, from the outermost package inwards; [] if `a` is not here."""
    if below is not None:
        return _files_below(below, names)
    if not names or names[0] in sys.stdlib_module_names or names[0] in unread:
        return []
    if (top := modules.get(names[0])) is not None:
        return [top] if top.is_file() else [*filter(Path.is_file, [top / "__init__.py"]), *_files_below(top, names[1:])]
    return next(filter(None, (_files_below(base, names) for base in search)), [])


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
        own = min(need, PERHAPS) if isinstance(node, ast.Call) else need
        for line, level, module, names in _imports_of(node):
            if not module or module[0][:1].isidentifier():
                yield line, level, module, names, own
        waiting += ((below, min(need, _need_within(node, below))) for below in ast.iter_child_nodes(node))


def _need_within(node: ast.AST, below: ast.AST) -> int:
    """The need of imports below a statement: executed always or perhaps, and whether a failing import is caught."""
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


def resolve(search: Iterable[Path], names: list[str]) -> list[Path]:
    """The files that `import a.b.c` loads: the outermost package's folder, or a module's file."""
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
    """The files that a file imports anywhere in it, also by `import_module("a constant")`."""
    try:
        nodes = ast.walk(ast.parse(source.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # it is sent unchanged; Python will raise the same error on the host
    for _, level, module, names in itertools.chain.from_iterable(map(_imports_of, nodes)):
        # A relative import leaves the files that are sent already only in a namespace folder.
        bases = (source.parents[min(level, len(source.parents)) - 1],) if level else search
        yield from resolve(bases, module)
        for name in names:  # `from folder import module`
            yield from resolve(bases, [*module, name])


def _imports_of(node: ast.AST) -> Iterator[tuple[int, int, list[str], list[str]]]:
    """(line, level, module, names) of an import statement, or of a call that imports a module by its name."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, 0, alias.name.split("."), []) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        yield node.lineno, node.level, node.module.split(".") if node.module else [], names
    elif isinstance(node, ast.Call) and node.args and _called(node) in _BY_NAME:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value[:1] != ".":
            yield node.lineno, 0, first.value.split("."), []


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _in_environment(root: Path, relative: str) -> bool:
    folder = root
    for part in relative.split("/"):
        folder = folder / part
        if any((folder / mark).exists() for mark in ENVIRONMENT_MARKS) and folder != root:
            return True
    return False
