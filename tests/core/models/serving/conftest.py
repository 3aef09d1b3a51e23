"""A real control plane whose Deployments run and whose Services are reached, for the tests of serving."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from kinetic_orchestration.models.serving.declaration import Serving
from tests.support.kubernetes import model_server
from tests.support.kubernetes.fixtures import serving_plane

SERVER = (sys.executable, str(model_server.__file__))
USUAL: dict[str, Any] = {
    "image": "server:1", "command": SERVER, "longest_request": 1, "startup": 120, "wait": 60,
}  # fmt: skip


class Declared(Protocol):
    def __call__(self, name: str = "ranker", **more: Any) -> Serving: ...


@pytest.fixture(scope="module")
def plane(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A plane of this file alone."""
    with serving_plane(tmp_path_factory.mktemp("serving"), built) as plane:
        yield plane


@pytest.fixture
def declared(namespace: str) -> Declared:
    """Returns declarations of servers in the namespace of this test, which are small programs."""

    def given(name: str = "ranker", **more: Any) -> Serving:
        return Serving(name=name, **{**USUAL, "namespace": namespace, **more})

    return given
