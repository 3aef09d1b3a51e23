"""The example pipelines, as people start them, on slices of an emulated cloud: not a line of them knows the difference.

Each host installs JAX from the package index of this machine, so these take a while.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.support.examples import EXAMPLES, airflow_started, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(3)]


def nothing_is_left(cloud: Emulator) -> None:
    cloud.wait_until_empty(60)
    cloud.ledger.assert_nothing_left()
    assert cloud.ledger.chip_seconds() > 0


def test_the_dagster_example_trains_on_four_hosts_of_a_slice(cloud: Emulator, tmp_path: Path) -> None:
    said = started(EXAMPLES / "dagster_train_evaluate.py", folder=tmp_path)
    for host in range(4):
        assert f"[host {host}] joined with 4 of 16 chips" in said
    assert "[host 0] metrics step 5: loss=" in said
    assert "running: 4 hosts" in said
    accuracy = re.search(r"result   accuracy (\d+\.\d)%", said)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    assert cloud.ledger.count("created", "node") == 1
    nothing_is_left(cloud)


def test_the_airflow_example_trains_on_a_slice(cloud: Emulator, tmp_path: Path) -> None:
    said = airflow_started("airflow_retrain.py", folder=tmp_path)
    assert "on 8 devices, of which 8 are here" in said
    off = re.search(r"the line is \S+ x \+ \S+, off by (\d\.\d+)", said)
    assert off is not None, said
    assert float(off[1]) < 0.1
    assert cloud.ledger.count("created", "node") == 1
    nothing_is_left(cloud)
