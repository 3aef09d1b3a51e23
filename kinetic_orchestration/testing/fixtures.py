"""Fixtures of pytest for pipelines that run on Cloud TPU: an emulated cloud for a test, or for all of them.

Registered as a plugin, so it is imported by every pytest of an environment that has this project: nothing is
imported here until a test asks for a cloud.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kinetic_orchestration.testing.emulator import Emulator

# Hosts delete their own slice after their verdict; this is what they may take.
_PATIENCE = 60.0


@pytest.fixture
def tpu_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulated cloud that this process's environment points at; the test fails if it leaves anything behind."""
    from kinetic_orchestration.testing.emulator import Emulator

    with Emulator() as cloud:
        for name, value in cloud.environ().items():
            monkeypatch.setenv(name, value)
        yield cloud
        _settle(cloud)


@pytest.fixture(scope="session")
def tpu_cloud_session() -> Iterator[Emulator]:
    """One emulated cloud for all tests of a session, which points nothing at it: use `environ()` of it."""
    from kinetic_orchestration.testing.emulator import Emulator

    with Emulator() as cloud:
        yield cloud
        _settle(cloud)


def _settle(cloud: Emulator) -> None:
    """Clear all faults, wait for the cloud to become empty, and assert that nothing was left."""
    cloud.clear_faults()
    with contextlib.suppress(TimeoutError):
        cloud.wait_until_empty(_PATIENCE)
    cloud.ledger.assert_nothing_left()
