"""An Airflow for all tests of a module, and what runs side by side in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path

import pytest

from tests.airflow_kinetic.conftest import environ_of
from tests.airflow_kinetic.live.airflow_servers import Airflow, airflow_servers
from tests.airflow_kinetic.live.releases import NEWEST, Release
from tests.support.airflow_releases.environment import CHOSEN

HERE = Path(__file__).parent
DAGS = 10
MOST_HOSTS = "64"  # of all jobs at once: most of them only sleep


@pytest.fixture(scope="module")
def servers(shared_home: Path, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A running Airflow with a KINETIC_HOME of the module's own."""
    folder = tmp_path_factory.mktemp("live")
    dags = shutil.copytree(HERE / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with started_airflow(folder, dags, DAGS, database, {"KINETIC_HOME": str(shared_home)}) as started:
        yield started


def started_airflow(
    folder: Path,
    dags: Path,
    number: int,
    database: Path,
    environ: Mapping[str, str],
    through: tuple[str, ...] = (),
    release: Release = NEWEST,
) -> AbstractContextManager[Airflow]:
    """Start an Airflow with that many DAGs, and a home below `folder`."""
    if CHOSEN:
        pytest.skip(f"Airflow {CHOSEN}: test_live_releases.py plays it")
    home = folder / "home"
    home.mkdir()
    shutil.copy(database, home)
    whole = {**environ_of(home, dags), "KINETIC_MAX_HOSTS": MOST_HOSTS, **environ}
    return airflow_servers(home, whole, number, through, release)


class SideBySide:
    """Scenes that wait much and compute little, all begun at once, so that a module takes as long as its longest."""

    def __init__(self, futures: dict[str, Future[None]]) -> None:
        self._futures = futures

    def result(self, name: str) -> None:
        self._futures[name].result()

    def over(self) -> None:
        """Wait for all of them, however they end: what comes disturbs them."""
        wait(self._futures.values())


@pytest.fixture(scope="module")
def side_by_side(
    request: pytest.FixtureRequest, servers: Airflow, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    """The scenes of the module whose tests were selected, in the order in which they stand there. What they take beside
    Airflow and a folder are fixtures of the module.
    """
    selected = {item.name for item in request.session.items if item.path == request.path}
    scenes: dict[str, Callable[..., None]] = {
        name: scene for name, scene in request.module.SCENES.items() if name in selected
    }
    others = {name: list(signature(scene).parameters)[2:] for name, scene in scenes.items()}
    given = {name: [request.getfixturevalue(other) for other in others[name]] for name in scenes}
    with ThreadPoolExecutor(max(1, len(scenes))) as pool:
        futures = {}
        for name, scene in scenes.items():
            folder = tmp_path_factory.mktemp(name.removeprefix("test_")[:40])
            futures[name] = pool.submit(scene, servers, folder, *given[name])
        yield SideBySide(futures)
