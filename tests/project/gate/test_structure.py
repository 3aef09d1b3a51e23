"""The structure that `tests/benchmarks/run.py structure` measures: counted right, and within the limits that the code keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import compute, run, structure
from tests.support.pages import ROOT, page

pytestmark = pytest.mark.fast

FILES = {
    "house/__init__.py": '"""What a house is."""\n',
    "house/roof.py": '''"""The roof."""
from house.walls import north
import house.floor.tiles, os
TYPE_CHECKING = False
if TYPE_CHECKING:
    from house import errors
class Roof:
    """Whether it rains."""
    remote = False
    @property
    def wet(self):
        def inner():
            return self.remote
        return inner()
    async def dry(self):
        """Dry it.

        What follows does not count.
        """
''',
    "house/walls/__init__.py": "",
    "house/walls/north.py": "def build():\n    from house.walls import south\n    self.remote = south\n",
    "house/walls/south.py": "try:\n    from house.walls.north import build\nexcept ImportError:\n    from house import roof\n",
    "house/floor/tiles.py": '"""Of tiles, and of what is below."""\n',
    "house/errors.py": "",
    "house/py.typed": "",
}
IMPORTS = {
    "house": set(),
    "house.roof": {"house.walls.north", "house.floor.tiles"},
    "house.walls": set(),
    "house.walls.north": {"house.walls.south"},
    "house.walls.south": {"house.walls.north", "house.roof"},
    "house.floor.tiles": set(),
    "house.errors": set(),
}


@pytest.fixture
def house(tmp_path: Path) -> list[structure.Module]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return structure.read(tmp_path, ["house"])


def test_imports_are_those_that_can_be_executed(house: list[structure.Module]) -> None:
    assert structure.imports_of(house) == IMPORTS


def test_rooms_stand_for_all_below_them() -> None:
    rooms = structure.between_rooms(IMPORTS, "house")
    assert rooms == {
        "house.roof": {"house.walls", "house.floor"}, "house.walls": {"house.roof"}, "house.floor": set(),
        "house.errors": set(),
    }  # fmt: skip
    assert structure.circles(rooms) == [{"house.roof", "house.walls"}]
    assert structure.floors(rooms) == 2  # the circle, and the floor below it
    assert structure.floors({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": set()}) == 4


def test_circles_are_found_between_modules_and_between_folders() -> None:
    assert structure.circles(IMPORTS) == [{"house.roof", "house.walls.north", "house.walls.south"}]
    found = [loop for level in structure.siblings(IMPORTS) for loop in structure.circles(level)]
    assert sorted(map(sorted, found)) == [["house.roof", "house.walls"], ["house.walls.north", "house.walls.south"]]


def test_an_import_is_upward_if_its_rung_is_not_below(tmp_path: Path) -> None:
    contract = "[importlinter:contract:{}]\nname = x\ntype = {}\n"
    (tmp_path / "linter").write_text(
        contract.format("a", "layers")
        + "layers =\n    house.roof\n    house.walls\n    house.floor : house.errors\n"
        + contract.format("b", "forbidden")
        + contract.format("c", "layers")
        + "containers =\n    house.walls\nlayers =\n    north | south\n",
        encoding="utf-8",
    )
    found = structure.layers(tmp_path / "linter")
    assert found == [
        [{"house.roof"}, {"house.walls"}, {"house.floor", "house.errors"}],
        [{"house.walls.north", "house.walls.south"}],
    ]
    assert structure.upward_imports(IMPORTS, found) == [
        "house.walls.north -> house.walls.south",
        "house.walls.south -> house.roof",
        "house.walls.south -> house.walls.north",
    ]


def test_entries_sizes_readings_and_docstrings_are_counted(house: list[structure.Module], tmp_path: Path) -> None:
    assert structure.entries_of(tmp_path, ["house"]) == {"house": 4, "house/walls": 2, "house/floor": 1}
    assert structure.sizes(house, structure.ast.ClassDef) == {"house.roof.Roof": 13}
    functions = structure.sizes(house, structure.ast.FunctionDef, structure.ast.AsyncFunctionDef)
    assert functions == {
        "house.roof.Roof.wet": 4, "house.roof.Roof.wet.inner": 2, "house.roof.Roof.dry": 5, "house.walls.north.build": 3,
    }  # fmt: skip
    assert structure.readings(house, "remote") == 1
    assert structure.share(house, structure.QUESTIONS) == 2 / 5
    assert structure.share(house, structure.FRAGMENTS) == 3 / 5
    assert structure.lines_of(house, "house.walls") == 7
    assert structure.lines_of(house, "house.roof") == 19 and structure.code_of(house, "house.roof") == 13


@pytest.fixture(scope="module")
def modules() -> list[structure.Module]:
    return structure.read(ROOT, structure.PACKAGES)


def test_no_module_and_no_folder_imports_itself_in_a_circle_or_upwards(modules: list[structure.Module]) -> None:
    imports = structure.imports_of(modules)
    assert not structure.circles(imports)
    assert not [loop for level in structure.siblings(imports) for loop in structure.circles(level)]
    assert not structure.upward_imports(imports, structure.layers(ROOT / ".importlinter"))


def test_a_folder_with_more_than_nine_entries_has_a_reason() -> None:
    entries = structure.entries_of(ROOT, structure.PACKAGES)
    assert {name for name, count in entries.items() if count > structure.ENTRIES} <= structure.LARGE_FOLDERS.keys()


def test_the_page_has_the_sections_of_the_benchmarks_and_the_figures_that_have_targets() -> None:
    text = page("docs/choose/figures.md")
    line = next(line for line in text.splitlines() if line.startswith(".venv/bin/python tests/benchmarks/run.py"))
    assert re.findall(r"\[(\w+)\]", line) == list(run.SECTIONS)
    part = text.partition("## Compute Engine")[2].partition("\n## ")[0]
    for seconds in compute.TARGETS.values():
        assert f"{seconds} s for" in part, seconds
    part = text.partition("## Structure")[2].partition("\n## ")[0]
    for words in ("rungs", "circles", "upward", "entries in one folder", "`Host`", "docstrings", "fast tests"):
        assert words in part, words


ROWS = {
    "rooms of the core": ("rooms",),
    "floors": ("floors",),
    "imports between them": ("room_imports",),
    "rungs": ("rungs",),
    "circles": ("circles",),
    "upward imports": ("upward_imports",),
    "most entries": ("entries",),
    "the class `Host`": ("host_class",),
    "functions above 50 lines": ("long_functions",),
    "readings of an attribute": ("remote_readings",),
    "the agent's zip": ("agent_zip",),
    "lines of": tuple(f"lines.{package}" for package in structure.PACKAGES),
    "of these": tuple(f"code.{package}" for package in structure.PACKAGES),
}
"""The figures in the page's rows, by how a row begins."""


def test_the_page_says_what_the_benchmark_counts(modules: list[structure.Module]) -> None:
    """A row may be a tenth off, so that not every change has to touch the page."""
    counted = {figure["name"].removeprefix("structure."): figure["value"] for figure in structure.counted(modules)}
    part = page("docs/choose/figures.md").partition("## Structure")[2].partition("\n## ")[0]
    for beginning, names in ROWS.items():
        row = next(line for line in part.splitlines() if line.startswith(f"| {beginning}"))
        told = [float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", row.split(" | ")[2])]
        assert told == pytest.approx([counted[name] for name in names], rel=0.1), row


@pytest.mark.parametrize(
    ("folder", "package", "own"),
    [
        ("core", "kinetic_orchestration", {"api/keras_kinetic", "plan/golden", "platforms/google/tpu/golden"}),
        ("dagster_kinetic", "dagster_kinetic", {"live"}),
        ("airflow_kinetic", "airflow_kinetic", {"live", "dags", "releases"}),
    ],
)
def test_the_tests_of_a_package_are_in_folders_of_its_own_names(folder: str, package: str, own: set[str]) -> None:
    def folders(top: Path) -> set[str]:
        return {path.parent.relative_to(top).as_posix() for path in top.rglob("*.py")} - {"."}

    tests = {name for name in folders(ROOT / "tests" / folder) if not any(f"{name}/".startswith(f"{x}/") for x in own)}
    assert tests
    assert tests - folders(ROOT / package) == set()
