"""Wheel and sdist work where nothing of the checkout is: see tests/project/release/package.py, which `nox -s package` runs, too."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.project.release import package
from tests.support.pages import ROOT, SOURCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(0)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.suffix: path for path in package.build(tmp_path_factory.mktemp("built"))}


def test_the_wheel_runs_in_an_empty_environment_outside_the_checkout(built: dict[str, Path], tmp_path: Path) -> None:
    assert not tmp_path.is_relative_to(ROOT)
    package.try_out(built[".whl"], tmp_path)


@pytest.mark.turn(0)
def test_the_sdist_installs_byte_by_byte_what_the_wheel_does(built: dict[str, Path], tmp_path: Path) -> None:
    """So whatever runs from the one runs from the other."""
    python, environ = package.install(built[".gz"], tmp_path)
    package.begin(built[".gz"], environ, tmp_path)
    [site] = python.parents[1].glob("lib/python*/site-packages")
    with zipfile.ZipFile(built[".whl"]) as archive:
        inside = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    packages = {Path(name).parts[0] for name in inside}
    there = {path.relative_to(site).as_posix(): path for name in packages for path in (site / name).rglob("*")}
    found = {name: path.read_bytes() for name, path in there.items() if path.is_file() and path.suffix != ".pyc"}
    assert found == inside


def test_the_sdist_has_what_its_own_tests_and_pages_need_and_both_say_where_the_source_is(
    built: dict[str, Path],
) -> None:
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "docs/index.md",
        "mkdocs.yml",
        "noxfile.py",
        "constraints.txt",
        "tests/project/release/package.py",
        "LICENSE",
        "CHANGELOG.md",
    ):
        assert name in names
    with zipfile.ZipFile(built[".whl"]) as archive:
        [told] = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    assert f"Project-URL: Source, {SOURCE}" in told
