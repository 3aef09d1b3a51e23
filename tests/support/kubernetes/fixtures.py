"""pytest's fixtures of a Kubernetes control plane, a real one and the emulator's.

A file of tests on a real one alone is marked so: `pytestmark = [pytest.mark.slow, *CONFORMANCE]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import go_programs
from tests.support.waits import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:  # every test loads this module, also where what they need is not installed
    from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.emulated import EmulatedPlane

# What a first test waits for is made once, in its own time: a build takes longer than a test may.
CONFORMANCE = (pytest.mark.conformance, pytest.mark.timeout(func_only=True))
REAL = pytest.param("real", marks=CONFORMANCE)
EMULATED = pytest.param("emulated")
SERVING = ("deployment-controller", "replicaset-controller", "endpoints-controller")  # by which Deployments serve
only_real = pytest.mark.parametrize("plane", [REAL], indirect=True)


def on_both(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Return what marks a file of tests as `plane` does, and those on the real plane as slow or in turn, too."""
    return pytest.mark.parametrize(
        "plane", [pytest.param("real", marks=(*CONFORMANCE, *marks)), EMULATED], indirect=True
    )


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the control plane's programs."""
    if not go_programs.has_go():
        pytest.skip(go_programs.NONE)
    return go_programs.control_plane()


class _Kept:
    """One real control plane for the tests of a session, started when the first of them needs it, and another one once it
    is not whole, or not as it was. An idle one takes a fiftieth of a processor, and a start 8 s."""

    def __init__(self, folder: Path, built: Path) -> None:
        self._folder, self._built, self._number = folder, built, 0
        self._plane: ControlPlane | None = None

    @contextlib.contextmanager
    def lent(self) -> Iterator[ControlPlane]:
        """Within the block, the plane is that of one file of tests. Raises AssertionError if they leave anything."""
        plane = self._whole()
        before = plane.shared()
        try:
            yield plane
            if plane.is_whole():
                wait_until(lambda: not plane.shared() - before, lambda: f"left: {plane.shared() - before}")
        except BaseException:
            self.stop()
            raise

    def _whole(self) -> ControlPlane:
        from tests.support.kubernetes.control_plane import ControlPlane

        if self._plane is not None and not self._plane.is_whole():
            self.stop()
        if self._plane is None:
            self._number += 1
            self._plane = ControlPlane(self._folder / f"plane-{self._number}", self._built).__enter__()
        return self._plane

    def stop(self) -> None:
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.stop()


@pytest.fixture(scope="session")
def kept_plane(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Kept]:
    """The real control plane of this session."""
    kept = _Kept(tmp_path_factory.mktemp("real"), built)
    yield kept
    kept.stop()


@contextlib.contextmanager
def serving_plane(folder: Path, built: Path) -> Iterator[ControlPlane]:
    """Within the block, there is a real plane whose Deployments run and whose Services are reached through it.

    It has more controllers than others, and its server reaches pods. `folder`: what it may keep files in.
    """
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.egress import egress

    way = folder / "egress"
    made = ControlPlane(folder / "plane", built, jobset=False, kueue=False, controllers=SERVING, reach=way)
    with egress(way), made as plane:
        yield plane


@pytest.fixture(scope="module", params=[REAL, EMULATED])
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane | EmulatedPlane]:
    """A control plane with JobSet and Kueue, for all tests of a file; each leaves it as it was. The emulator's is of this
    file alone, and the real one is the session's.

    First a real one, then the emulator's: whatever differs is a defect of the emulator. A test of the real one alone says so:
    `@only_real`.
    """
    from tests.support.kubernetes.emulated import EmulatedPlane

    if request.param == "real":
        kept: _Kept = request.getfixturevalue("kept_plane")
        with kept.lent() as real:
            yield real
    else:
        with EmulatedPlane(tmp_path_factory.mktemp("plane") / "plane") as emulated:
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


class Lingering:
    """A namespace that stays in deletion, once it is deleted, until it is let go."""

    def __init__(self, plane: ControlPlane | EmulatedPlane) -> None:
        self._api = plane.api
        self.name = str(
            self._api.create("/api/v1/namespaces", {"metadata": {"generateName": "lingers-"}})["metadata"]["name"]
        )
        self._path = f"/api/v1/namespaces/{self.name}"
        plane.await_account(self.name)
        holds = {"metadata": {"name": "holds", "finalizers": ["tests.example/holds"]}}
        self._api.create(f"{self._path}/configmaps", holds)

    def delete(self) -> None:
        """Begin its deletion, in which all that it has goes, its Roles too; return when these are gone."""
        self._api.delete(self._path)
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}/rolebindings"
        for path in (f"{self._path}/serviceaccounts", roles):
            wait_until(lambda path=path: not self._api.get(path)["items"], f"{path} go", pause=0.1)  # type: ignore[misc]

    def let_go(self) -> None:
        """Delete it, if that is not done, and wait until it is gone."""
        found = self._api.found(self._path)
        if found is None:
            return
        if "deletionTimestamp" not in found["metadata"]:
            self._api.delete(self._path)
        self._api.patch(f"{self._path}/configmaps/holds", {"metadata": {"finalizers": None}})
        wait_until(lambda: self._api.found(self._path) is None, f"the end of {self.name}", pause=0.1)


@pytest.fixture
def lingering(plane: ControlPlane | EmulatedPlane) -> Iterator[Lingering]:
    """Another namespace of this test."""
    found = Lingering(plane)
    yield found
    found.let_go()


@pytest.fixture
def nodes(plane: ControlPlane | EmulatedPlane, namespace: str, tmp_path: Path) -> Iterator[NodeGroup]:
    """The nodes of this test, none at first; they go before its namespace does."""
    with nodes_of(plane, tmp_path / "nodes") as nodes:
        yield nodes


def nodes_of(plane: ControlPlane | EmulatedPlane, folder: Path) -> contextlib.AbstractContextManager[NodeGroup]:
    """Return what has nodes of a plane within a `with`, none at first. `folder`: where a real plane's kubelet keeps what
    pods write; it is made."""
    from tests.support.kubernetes.emulated import EmulatedPlane, emulated_nodes
    from tests.support.kubernetes.nodes import Nodes

    return emulated_nodes(plane) if isinstance(plane, EmulatedPlane) else Nodes(plane, folder)
