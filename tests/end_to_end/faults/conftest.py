"""Functions to run as jobs, from a small project."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.faults import load_jobs


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("faults") / "project", "fault_jobs")
