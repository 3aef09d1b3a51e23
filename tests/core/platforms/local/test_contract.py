"""The local backend keeps the contract of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import BackendContract
from tests.support.faults import Tree, guard_in, kill_host
from tests.support.leftovers import processes_of
from tests.support.waits import wait_until

pytestmark = pytest.mark.slow


class TestLocalBackend(BackendContract):
    backend = "local"
    test_hosts_that_cost_money_end_at_their_deadline_whatever_they_do = None  # these cost nothing

    @pytest.fixture
    def environment(self, home: Path, tmp_path: Path) -> Mapping[str, str]:
        self.home, self.other_home = home, tmp_path / "another home"
        return {"KINETIC_STORE": str(tmp_path / "store")}

    def neighbour(self) -> Mapping[str, str]:
        """Hosts of this machine are known by the home in which they work, whatever their deployment."""
        return {"KINETIC_HOME": str(self.other_home)}

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        lock = Path(placement["run"]) / f"host-{host}.json"
        guard = wait_until(lambda: guard_in(lock), "the guard of the host")
        agent, program, *_ = (process.pid for process in processes.descendants(guard))
        kill_host(Tree(guard, agent, program))

    def left(self) -> Sequence[str]:
        folders = [str(path) for path in (self.home / "run").glob("job-*")]
        return [*map(str, processes_of(self.home)), *folders]

    # These two wait, for as long as hosts have for their ends.

    @pytest.mark.turn(5)
    def test_hosts_end_with_a_cancelled_job(self, programs: ModuleType) -> None:
        super().test_hosts_end_with_a_cancelled_job(programs)

    @pytest.mark.turn(3)
    def test_hosts_that_nobody_follows_end_at_their_limit(self, programs: ModuleType) -> None:
        super().test_hosts_that_nobody_follows_end_at_their_limit(programs)
