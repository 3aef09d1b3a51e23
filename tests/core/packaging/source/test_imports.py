"""Code without a project ships the modules it imports, found without executing anything."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from kinetic_orchestration.packaging.source.imports import import_paths, imported_by, imported_files, unsent_modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in {
        "start.py": "import numpy, first\nfrom second import thing\n",
        "first.py": "def later():\n    import third\n",
        "second/__init__.py": "from .inner import thing\n",
        "second/inner.py": "import fourth.deep\n",
        "second/data.csv": "1,2",
        "third.py": "this is no Python",
        "fourth/deep.py": "from . import beside\nfrom ..fifth import sixth\n",
        "fourth/beside.py": "",
        "fourth/unused.py": "",
        "fifth/sixth.py": "import importlib\nimportlib.import_module('seventh')\n__import__('eighth')\n",
        "seventh.py": "import start\n",
        "eighth.py": "",
        "unused.py": "",
        "fast.cpython-311-x86_64-linux-gnu.so": "",
        "src/nested.py": "import other_nested",
        "src/other_nested.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_imports_are_followed_into_functions_packages_and_namespace_folders(folder: Path) -> None:
    everything = (
        "eighth.py", "fifth/sixth.py", "first.py", "fourth/beside.py", "fourth/deep.py", "second", "seventh.py",
        "start.py", "third.py",
    )  # fmt: skip
    assert imported_files(folder, [folder / "start.py"]) == everything
    assert imported_files(folder, ["start"]) == everything


def test_a_submodule_brings_the_whole_of_its_outermost_package(folder: Path) -> None:
    assert "second" in imported_files(folder, ["second.inner"])
    assert imported_files(folder, ["fourth.unused"]) == ("fourth/unused.py",)


def test_an_extension_module_travels(folder: Path) -> None:
    assert imported_files(folder, ["fast"]) == ("fast.cpython-311-x86_64-linux-gnu.so",)


def test_modules_that_are_somebody_elses_do_not_travel(folder: Path) -> None:
    assert imported_files(folder, ["numpy", "os.path", "__main__", "builtins", "not there", ""]) == ()


def test_entries_of_sys_path_inside_the_folder_are_searched(folder: Path) -> None:
    assert imported_files(folder, ["nested"]) == ()
    found = imported_files(folder, ["nested"], path=["/usr/lib", str(folder / "src")])
    assert found == ("src/nested.py", "src/other_nested.py")


def test_an_interpreter_in_a_home_folder_is_no_part_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / ".pyenv" / "lib" / "python3"
    (library / "lib-dynload").mkdir(parents=True)
    (library / "json.py").touch()
    (tmp_path / "train.py").write_text("import json\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library))
    path = [str(tmp_path), str(library), str(library / "lib-dynload")]
    assert import_paths(tmp_path, path) == (".",)
    assert imported_files(tmp_path, [tmp_path / "train.py"], path=path) == ("train.py",)


def test_the_import_paths_of_a_project_are_relative_and_hold_no_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "env" / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").touch()
    monkeypatch.chdir(folder)
    given = [
        "", str(folder / "src"), str(folder / "env" / "lib"), str(folder / "env/lib/python3/site-packages"),
        str(folder / "src"), str(folder / "gone"), "/usr/lib", str(folder.parent),
    ]  # fmt: skip
    assert import_paths(folder, given) == (".", "src")


CELL = """
import json as j
import functools
def helper(x):
    from folder import module
    return [inner(y) for y in x]
def inner(y):
    import importlib
    return importlib.import_module("named.later")
def unused():
    import nobody
class Model:
    def fit(self):
        import in_a_method
        return helper([1])
def work(model=Model()):
    def nested():
        import in_a_nested_function
    return [__import__("by_call") for _ in ()], j, (lambda: model), nested
def other():
    return functools.partial(work, Model)
"""


def test_what_a_function_without_a_file_imports_is_read_off_its_code() -> None:
    cell = {"__name__": "__main__"}
    exec(CELL, cell)  # as a notebook does
    found = imported_by(cell["other"], texts=True)
    assert {
        "by_call",
        "folder",
        "folder.module",
        "in_a_method",
        "in_a_nested_function",
        "json",
        "named.later",
    } - set(found) <= {"json"}  # which nobody sends
    assert "nobody" not in found
    assert "named.later" not in imported_by(cell["other"])


def test_modules_that_stay_beside_the_code_are_known_by_name(folder: Path) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "lower.py").touch()
    found = unsent_modules(folder, lambda path: path.name in ("start.py", "__init__.py"))
    assert found["first"] == str(folder / "first.py") and found["lower"] == str(folder / "lib" / "lower.py")
    assert "start" not in found and "second" not in found
