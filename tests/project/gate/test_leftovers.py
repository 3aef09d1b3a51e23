"""Processes that a test left running in its home are found, whichever process started them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.leftovers import left_in, processes_of


def test_a_process_of_a_home_is_found_until_it_has_ended(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    environ = {**os.environ, "KINETIC_PLACEMENT": f"{home}/run/job-1"}
    with subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True) as left:
        try:
            assert [found.pid for found in left_in(home, within=0.1)] == [left.pid]
            assert processes_of(other) == []
        finally:
            left.kill()
    assert left_in(home, within=60.0) == []
