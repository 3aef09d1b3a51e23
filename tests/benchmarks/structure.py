"""Figures of the code's structure, counted from its source: folders, imports, sizes, docstrings, and the fast tests' time.

    python tests/benchmarks/run.py structure

A room is what lies at the top of the core: a folder with all below it, or a module. An import counts wherever it stands
in a file, but below `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import configparser
import gc
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

PACKAGES = ("kinetic_orchestration", "dagster_kinetic", "airflow_kinetic")
ENTRIES = 9
FUNCTION_LINES = 50

LARGE_FOLDERS = {
    "kinetic_orchestration": (
        "the folders are the table of contents; beside them are the errors, and modules that programs import by the "
        "names of Keras Kinetic, or that handles were pickled with by version 0.1"
    ),
    "kinetic_orchestration/cli": "for one release the script that tells the new name of the command",
    "kinetic_orchestration/platforms": "a folder for each platform, what they share, and the two protocols that they implement",
    "airflow_kinetic": "a folder for each kind of thing that Airflow's conventions name, and what knows its versions",
    "kinetic_orchestration/testing": "eight parts of an emulated cloud that know each other by layers, with what joins them, and pytest's plugin",
    "kinetic_orchestration/cli/commands": "the commands as `kinor --help` groups them: whoever looks for one finds its module by its name",
    "kinetic_orchestration/cli/verify": "nine modules, what each cloud is asked, and the recorded baselines with which they compare a project",
}
"""Folders that may have more than ENTRIES entries, with the reason."""

QUESTIONS = re.compile(r"(What|Whether|Who|How)\b")
FRAGMENTS = re.compile(
    r"(What(ever)?|Whether|Who(ever|se|m)?|How|Where|When|Which|Why|Those|Of|As|By|In|On|At|For|From|With|Without|Within"
    r"|To|Into|Before|After|Between|Beside|Under|Over|Until|Since|Through|Beyond)\b"
)
"""A docstring that begins with one of these describes no subject and no action."""

Imports = dict[str, set[str]]
"""For each module, or folder, those that it imports."""


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str
    lines: int
    tree: ast.Module


def figures() -> Iterator[Figure]:
    yield from counted(read(ROOT, PACKAGES))
    yield from counted_of_tests()
    yield measure.bounded("structure.fast_tests", measure.seconds(_run_fast_tests), "s", 60)


def counted(modules: Collection[Module]) -> Iterator[Figure]:
    """Return the figures of the packages, which need no run."""
    from kinetic_orchestration.platforms.shared import agent_zip

    imports = imports_of(modules)
    rooms = between_rooms(imports, PACKAGES[0])
    entries = entries_of(ROOT, PACKAGES)
    large = sorted(f"{folder} ({count})" for folder, count in entries.items() if count > ENTRIES)
    excepted = {folder: count for folder, count in entries.items() if folder in LARGE_FOLDERS}
    kept = {folder: count for folder, count in entries.items() if folder not in excepted}
    upwards = upward_imports(imports, layers(ROOT / ".importlinter"))
    loops = [*circles(imports), *(loop for folder in siblings(imports) for loop in circles(folder))]
    classes = sizes(modules, ast.ClassDef)
    functions = sizes(modules, ast.FunctionDef, ast.AsyncFunctionDef)
    host = max((size for name, size in classes.items() if re.match(r"kinetic_orchestration\.host\..*\bHost$", name)))
    longest = max(classes, key=classes.__getitem__)
    yield measure.bounded("structure.rooms", len(rooms), "rooms", None)
    yield measure.bounded("structure.floors", floors(rooms), "floors", None)
    yield measure.bounded("structure.room_imports", sum(map(len, rooms.values())), "imports", None)
    yield measure.bounded("structure.folders", len(entries), "folders", None)
    yield measure.bounded("structure.rungs", len(layers(ROOT / ".importlinter")[0]), "rungs", 9)
    yield measure.bounded("structure.circles", len(loops), "circles", 0) | {"circles": [sorted(loop) for loop in loops]}
    yield measure.bounded("structure.upward_imports", len(upwards), "imports", 0) | {"imports": upwards}
    yield measure.bounded("structure.entries", max(kept.values()), "entries", ENTRIES) | {"above": large}
    yield measure.bounded("structure.entries_excepted", max(excepted.values()), "entries", None) | {
        "reasons": LARGE_FOLDERS
    }
    yield measure.bounded("structure.host_class", host, "lines", 450)
    yield measure.bounded("structure.longest_class", classes[longest], "lines", None) | {"class": longest}
    long = {name: size for name, size in functions.items() if size > FUNCTION_LINES}
    yield measure.bounded("structure.long_functions", len(long), "functions", None) | {"functions": long}
    yield measure.bounded("structure.remote_readings", readings(modules, "remote"), "readings", None)
    yield measure.bounded("structure.docstrings_asking", 100 * share(modules, QUESTIONS), "%", 5)
    yield measure.bounded("structure.docstrings_fragments", 100 * share(modules, FRAGMENTS), "%", None)
    yield measure.bounded("structure.agent_zip", len(agent_zip.build().data) / 1e6, "MB", None)
    for package in PACKAGES:
        yield measure.bounded(f"structure.lines.{package}", lines_of(modules, package), "lines", None)
        yield measure.bounded(f"structure.code.{package}", code_of(modules, package), "lines", None)
    for folder in sorted({module.name.split(".")[1] for module in modules if module.name.count(".") > 1}):
        if lines := lines_of(modules, f"{PACKAGES[0]}.{folder}"):
            yield measure.bounded(f"structure.lines.{folder}", lines, "lines", None)


def counted_of_tests() -> Iterator[Figure]:
    tests = read(ROOT, ["tests"])
    yield measure.bounded("structure.tests_docstrings_asking", 100 * share(tests, QUESTIONS), "%", None)
    yield measure.bounded("structure.lines.tests", lines_of(tests, "tests"), "lines", None)


def _run_fast_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "fast"]
    done = subprocess.run(command, cwd=ROOT, env=measure.environment(), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"the fast tests did not pass:\n{done.stdout}")


def read(root: Path, packages: Collection[str]) -> list[Module]:
    """Read and parse all modules of the packages below `root`."""
    found = []
    was_enabled = gc.isenabled()
    gc.disable()  # it would look through all that was parsed again and again
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, text, len(text.splitlines()), ast.parse(text)))
    if was_enabled:
        gc.enable()
    return found


def imports_of(modules: Collection[Module]) -> Imports:
    """Return what each module imports of these modules. Names of a package count as an import of the package."""
    names = {module.name for module in modules}
    found: Imports = {}
    for module in modules:
        of = found[module.name] = set()
        for node in _statements(module.tree, executed=True):
            if isinstance(node, ast.Import):
                of.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                full = (f"{node.module}.{alias.name}" for alias in node.names)
                of.update(name if name in names else node.module for name in full)
        of.intersection_update(names - {module.name})
    return found


def _statements(node: ast.AST, *, executed: bool = False) -> Iterator[ast.AST]:
    """Yield a module's statements at all depths; if `executed`, not those that only a type checker reads."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if field == "body" and executed and _is_for_type_checkers(node):
            continue
        for child in getattr(node, field, ()):
            yield child
            yield from _statements(child, executed=executed)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def between_rooms(imports: Imports, package: str) -> Imports:
    """Return for each child of a package the other children that it imports, each of which stands for all below it."""
    room = {name: ".".join(name.split(".")[:2]) for name in imports if name.startswith(f"{package}.")}
    found: Imports = {name: set() for name in room.values()}
    for name, own in room.items():
        found[own].update({room[other] for other in imports[name] & room.keys()} - {own})
    return found


def siblings(imports: Imports) -> list[Imports]:
    """Return for each package the imports between its direct children, each of which stands for all below it."""
    found: dict[str, Imports] = {}
    for name, others in imports.items():
        for other in others:
            ours, theirs = name.split("."), other.split(".")
            same = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
            if same:  # neither is the other's parent, and both are of one package
                of = found.setdefault(".".join(ours[:same]), {})
                child, target = (".".join(parts[: same + 1]) for parts in (ours, theirs))
                of.setdefault(child, set()).add(target)
                of.setdefault(target, set())
    return list(found.values())


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups of names that import one another, directly or by others."""

    @cache
    def reached(name: str) -> frozenset[str]:
        seen: set[str] = set()
        waiting = list(imports[name])
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting.extend(imports.get(one, ()))
        return frozenset(seen)

    groups = {frozenset(other for other in reached(name) if name in reached(other)) for name in imports}
    return [set(group) for group in groups if group]


def floors(imports: Mapping[str, set[str]]) -> int:
    """Return the number of names in the longest chain of imports. A circle counts as one."""
    group = {name: min(loop) for loop in circles(imports) for name in loop}
    below: Imports = {}
    for name, others in imports.items():
        own = group.get(name, name)
        below.setdefault(own, set()).update({group.get(other, other) for other in others} - {own})

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, below[name]), default=0)

    return max(map(height, below), default=0)


def layers(file: Path) -> list[list[set[str]]]:
    """Return the rungs of each contract of type `layers`, the highest first; a rung is a set of modules."""
    parser = configparser.ConfigParser()
    parser.read(file)
    found = []
    for name in parser.sections():
        if parser.get(name, "type", fallback="") == "layers":
            for container in parser.get(name, "containers", fallback="").split() or [""]:
                rungs = [line for line in parser.get(name, "layers").splitlines() if line.strip()]
                inside = f"{container}." if container else ""
                found.append([{inside + part.strip() for part in re.split(r"[|:]", line)} for line in rungs])
    return found


def upward_imports(imports: Imports, contracts: list[list[set[str]]]) -> list[str]:
    """Return the imports that go up, or from one module of a rung to another of the same rung."""
    found = set()
    for rungs in contracts:
        rank = {member: number for number, members in enumerate(rungs) for member in members}

        def member_of(name: str, rank: dict[str, int] = rank) -> str:
            return next((member for member in rank if name == member or name.startswith(f"{member}.")), "")

        for name, others in imports.items():
            for other in others:
                ours, theirs = member_of(name), member_of(other)
                if ours and theirs and ours != theirs and rank[theirs] <= rank[ours]:
                    found.add(f"{name} -> {other}")
    return sorted(found)


def entries_of(root: Path, packages: Collection[str]) -> dict[str, int]:
    """Return the number of files and folders in each folder with code, without `__init__.py` and the marker `py.typed`."""
    passed_over = {"__init__.py", "__pycache__", "py.typed"}
    folders = {path.parent for package in packages for path in (root / package).rglob("*.py")}
    return {
        folder.relative_to(root).as_posix(): len([path for path in folder.iterdir() if path.name not in passed_over])
        for folder in folders
    }


def sizes(
    modules: Collection[Module], *kinds: type[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]
) -> dict[str, int]:
    """Return the lines of each class or function, from its first line to its last, by its dotted name."""
    found: dict[str, int] = {}

    for module in modules:
        spans: list[tuple[int, str]] = []  # the last line and the name of what the statement stands in
        for node in _statements(module.tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                while spans and spans[-1][0] < node.lineno:
                    spans.pop()
                end = node.end_lineno or node.lineno
                spans.append((end, node.name))
                if isinstance(node, kinds):
                    name = ".".join([module.name, *(outer for _, outer in spans)])
                    found[name] = max(end - node.lineno + 1, found.get(name, 0))  # of a property's parts, the longest
    return found


def readings(modules: Collection[Module], attribute: str) -> int:
    """Return how often an attribute of this name is read."""
    nodes = (node for module in modules if attribute in module.text for node in ast.walk(module.tree))
    return sum(
        isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load) for node in nodes
    )


def share(modules: Collection[Module], beginning: re.Pattern[str]) -> float:
    """Return the share of docstrings that begin in this way."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for module in modules for node in (module.tree, *_statements(module.tree)) if isinstance(node, kinds))
    texts = [text for node in nodes if (text := ast.get_docstring(node))]
    return sum(beginning.match(text) is not None for text in texts) / len(texts)


def lines_of(modules: Collection[Module], package: str) -> int:
    """Return the lines of a package and of all below it."""
    return sum(module.lines for module in modules if f"{module.name}.".startswith(f"{package}."))


def code_of(modules: Collection[Module], package: str) -> int:
    """Return these lines without blank ones, comments and docstrings."""
    count = 0
    for module in modules:
        if not f"{module.name}.".startswith(f"{package}."):
            continue
        lines = module.text.splitlines()
        for node in (module.tree, *_statements(module.tree)):
            if isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ) and ast.get_docstring(node):
                text = node.body[0]
                lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or text.lineno) - text.lineno + 1)
        count += sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)
    return count
