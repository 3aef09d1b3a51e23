"""pytest's fixtures of a Kubernetes control plane, a real one and the emulator's.

A file of tests on a real one alone is marked so: `pytestmark = [pytest.mark.slow, *CONFORMANCE]`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import go_programs

TYPE_CHECKING = False
if TYPE_CHECKING:  # every test loads this module, also where what they need is not installed
    from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
    from tests.support.exchanges.openapi import Documents
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.emulated import EmulatedPlane

# What a first test waits for is made once, in its own time: a build takes longer than a test may.
CONFORMANCE = (pytest.mark.conformance, pytest.mark.timeout(func_only=True))
REAL = pytest.param("real", marks=CONFORMANCE)
EMULATED = pytest.param("emulated")
only_real = pytest.mark.parametrize("plane", [REAL], indirect=True)
only_emulated = pytest.mark.parametrize("plane", [EMULATED], indirect=True)


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the control plane's programs."""
    if not go_programs.has_go():
        pytest.skip(go_programs.NONE)
    return go_programs.control_plane()


@pytest.fixture(scope="session")
def documents(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """Return what a real server with these programs publishes of its API: it is asked once, and its answer is kept
    beside them."""
    from tests.support.exchanges.openapi import Documents
    from tests.support.kubernetes.control_plane import ControlPlane

    kept = built.with_name(f"{built.name}.openapi.json")
    if not kept.exists():
        with ControlPlane(tmp_path_factory.mktemp("real") / "plane", built) as real:
            found = real.documents()
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(found), encoding="utf-8")
        fresh.replace(kept)
    return Documents(json.loads(kept.read_text(encoding="utf-8")))


@pytest.fixture
def described(plane: ControlPlane | EmulatedPlane, request: pytest.FixtureRequest) -> Iterator[None]:
    """All that this process hears of an emulated plane is as a real server's documents have it, where these can be had."""
    from kinetic_orchestration.platforms.kubernetes.api import client
    from tests.support.kubernetes.emulated import EmulatedPlane

    if not isinstance(plane, EmulatedPlane) or not go_programs.has_go():
        yield
        return
    documents: Documents = request.getfixturevalue("documents")
    heard: list[client.Exchange] = []
    with client.listening(heard.append):
        yield
    assert not (wrong := documents.all_wrongs(heard)), "\n".join(wrong)


@pytest.fixture(scope="module", params=[REAL, EMULATED])
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane | EmulatedPlane]:
    """A control plane with JobSet and Kueue, for all tests of a file; each leaves it as it was. An idle one takes a tenth of
    a processor from all other tests, and a start 8 s.

    First a real one, then the emulator's: whatever differs is a defect of the emulator. A test of only one of them says so:
    `@only_real`, `@only_emulated`.
    """
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.emulated import EmulatedPlane

    folder = tmp_path_factory.mktemp("plane") / "plane"
    if request.param == "real":
        with ControlPlane(folder, request.getfixturevalue("built")) as real:
            yield real
    else:
        with EmulatedPlane(folder) as emulated:
            yield emulated


@pytest.fixture
def namespace(plane: ControlPlane | EmulatedPlane) -> Iterator[str]:
    """A namespace of this test alone. Its pods go at once, as they hold room on nodes, and then all that is in it."""
    created = plane.api.create("/api/v1/namespaces", {"metadata": {"generateName": "test-"}})
    name = str(created["metadata"]["name"])
    plane.await_account(name)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")
    plane.remove_pods(name)


@pytest.fixture
def nodes(plane: ControlPlane | EmulatedPlane, namespace: str, tmp_path: Path) -> Iterator[NodeGroup]:
    """The nodes of this test, none at first; they go before its namespace does."""
    from tests.support.kubernetes.emulated import EmulatedPlane, emulated_nodes
    from tests.support.kubernetes.nodes import Nodes

    found = emulated_nodes(plane) if isinstance(plane, EmulatedPlane) else Nodes(plane, tmp_path / "nodes")
    with found as nodes:
        yield nodes
