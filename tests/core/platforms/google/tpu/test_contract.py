"""The tpu-vm backend keeps the contract of backends, on the emulated cloud."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing import BackendContract, Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.turn(5)]


class TestTpuVmBackend(BackendContract):
    backend = "tpu-vm"
    one_host = "v5e-1"

    @pytest.fixture
    def environment(self, home: Path) -> Iterator[Mapping[str, str]]:
        with Emulator(zones=("us-west4-a", "us-central1-a"), python=sys.executable) as self.cloud:
            yield self.cloud.environ(deployment="prod")
            self.cloud.ledger.assert_nothing_left()

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        """Take the slice away: a host alone is not lost on Cloud TPU."""
        (node,) = (node["name"] for node in self.cloud.nodes() if str(node["name"]).endswith(placement["name"]))
        self.cloud.preempt(node)

    def left(self) -> Sequence[str]:
        return [str(item) for item in self.cloud.ledger.leaks()]
