"""The compute backend keeps the contract of backends, on the emulated cloud."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.testing import BackendContract, Emulator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.turn(4),
    pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP"),
]


class OnComputeEngine(BackendContract):
    backend = "compute"
    zones: tuple[str, ...]

    @pytest.fixture
    def environment(self, home: Path) -> Iterator[Mapping[str, str]]:
        with Emulator(zones=self.zones, python=sys.executable) as self.cloud:
            yield self.cloud.environ(deployment="prod", backend="compute")
            self.cloud.ledger.assert_nothing_left()

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        """The machine under one VM fails."""
        self.cloud.compute.host_error(request.members_of(placement)[host])

    def left(self) -> Sequence[str]:
        """Templates and policies, which cost nothing, are removed by whoever looks for leftovers."""
        backend = self.opened()
        for entry in backend.leftovers():
            if entry["state"] in ("TEMPLATE", "POLICY"):
                backend.release(entry)
        return [str(item) for item in self.cloud.ledger.leaks()]


class TestComputeBackend(OnComputeEngine):
    zones = ("us-central1-a", "us-west4-a")
    one_host = "l4"
    several_hosts = "l4"
    options_of_several = {"cloud": kinetic.Compute(hosts=2)}  # noqa: RUF012 - of the test


class TestSlices(OnComputeEngine):
    """The same of slices whose VMs are made by groups."""

    zones = ("us-central1-a", "us-east5-b")
    one_host = "v6e-4"
    several_hosts = "v6e-8"
    options_of_several = {"cloud": kinetic.Compute(num_slices=2)}  # noqa: RUF012 - of the test
