"""A home for the runs of a file, on a small disk where one may be mounted; in the end nothing of it lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.disasters.run import Told, own_disk
from tests.support.leftovers import left_in


@pytest.fixture(scope="module")
def whole() -> dict[int, Told]:
    """Each run of a file that was whole, by its seed."""
    return {}


@pytest.fixture(scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_disk(tmp_path_factory.mktemp("disasters") / "disk") as home:
        yield home
        assert left_in(home, within=60.0) == []
