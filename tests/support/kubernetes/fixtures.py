"""pytest's fixtures of a real Kubernetes control plane, and what every file of tests on one is marked with:

pytestmark = [pytest.mark.slow, *CONFORMANCE]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import go_programs

TYPE_CHECKING = False
if TYPE_CHECKING:  # every test loads this module, also where what they need is not installed
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.nodes import Nodes

# What a first test waits for is made once, in its own time: a build takes longer than a test may.
CONFORMANCE = (pytest.mark.conformance, pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the control plane's programs."""
    if not go_programs.has_go():
        pytest.skip(go_programs.NONE)
    return go_programs.control_plane()


@pytest.fixture(scope="module")  # a start takes 8 s, and an idle one a tenth of a processor from all other tests
def plane(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with JobSet and Kueue, for all tests of a file; each leaves it as it was."""
    from tests.support.kubernetes.control_plane import ControlPlane

    with ControlPlane(tmp_path_factory.mktemp("plane") / "plane", built) as plane:
        yield plane


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace of this test alone. Its pods go at once, as they hold room on nodes, and then all that is in it."""
    created = plane.api.create("/api/v1/namespaces", {"metadata": {"generateName": "test-"}})
    name = str(created["metadata"]["name"])
    plane.await_account(name)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")
    plane.remove_pods(name)


@pytest.fixture
def nodes(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Nodes]:
    """The nodes of this test, none at first; they go before its namespace does."""
    from tests.support.kubernetes.nodes import Nodes

    with Nodes(plane, tmp_path / "nodes") as nodes:
        yield nodes
