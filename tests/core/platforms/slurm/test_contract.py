"""The backend for Slurm keeps the contract of backends, on a real slurmctld and slurmd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.slurm.script import FOLDER
from kinetic_orchestration.testing import BackendContract
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.hosts import kill_host

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.turn]


class TestSlurmBackend(BackendContract):
    backend = "slurm"
    several_hosts = "cpu"
    options_of_several: Mapping[str, Any] = {"cloud": kinetic.Slurm(hosts=2)}
    test_hosts_that_cost_money_end_at_their_deadline_whatever_they_do = None  # these cost nothing

    @pytest.fixture
    def environment(self, slurm: Cluster, on_slurm: Mapping[str, str], home: Path) -> Mapping[str, str]:
        self.slurm, self.home = slurm, home
        return on_slurm

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        kill_host(str(placement["run"]), host)

    def left(self) -> Sequence[str]:
        return [*self.slurm.jobs(), *map(str, (self.home / FOLDER).glob("kinetic-*"))]
