"""One `dagster dev` for all tests of a module, and a place where pictures of its pages are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dagster_kinetic.live.dagster_server import DagsterDev
from tests.dagster_kinetic.live.dagster_server import dagster_dev as started

OUTPUT = os.environ.get("KINETIC_TEST_OUTPUT", "")  # read before a test has an environment of its own


@pytest.fixture
def pictures(tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]) -> Path:
    """The folder of a test's pictures: below KINETIC_TEST_OUTPUT, or else in pytest's own folder of this session.

    It is named when all tests have ended (tests/conftest.py).
    """
    folder = Path(OUTPUT or tmp_path_factory.getbasetemp()).absolute() / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    record_property("kept", str(folder))
    return folder


@pytest.fixture(scope="module")
def dagster_dev(
    request: pytest.FixtureRequest, shared_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DagsterDev]:
    """A server on the file that the module names in DEFINITIONS, with a KINETIC_HOME of the module's own.

    The module may also set DAGSTER_SETTINGS, for dagster.yaml, and DAGSTER_ENVIRONMENT.
    """
    module = request.module
    with started(
        tmp_path_factory.mktemp("dagster"),
        module.DEFINITIONS,
        settings=getattr(module, "DAGSTER_SETTINGS", None),
        environment=getattr(module, "DAGSTER_ENVIRONMENT", None),
    ) as server:
        yield server
