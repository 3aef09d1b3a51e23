"""One Slurm for the tests of a file, which starts in a second, and its variables for each of them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.slurm import cluster
from tests.support.slurm.cluster import Cluster


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running Slurm of three nodes. Skips where there is none."""
    if why := cluster.missing():
        pytest.skip(why)
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def on_slurm(
    slurm: Cluster, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mapping[str, str]]:
    """The variables by which any process finds that Slurm, with a store of the test's own."""
    found = {**slurm.environ, "KINETIC_STORE": str(tmp_path / "store"), "KINETIC_BACKEND": "slurm"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", cluster.PLACES, prepend=":")
    yield found
    slurm.cancel_all()
    for node in slurm.nodes:
        slurm.await_idle(node)


@pytest.fixture
def programs(tmp_path: Path) -> ModuleType:
    """The functions of `programs.py`, in a project of their own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    shutil.copy(Path(__file__).with_name("programs.py"), folder / "slurm_programs.py")
    spec = importlib.util.spec_from_file_location("slurm_programs", folder / "slurm_programs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module
