"""From a bare project to a first job: `kinor init`, then the line that it prints, in a shell of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.testing import Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_line_that_init_prints_runs_a_first_job(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KINETIC_PROFILE_FILE", str(tmp_path / "profiles.toml"))
    with Emulator(tmp_path / "cloud", zones=["us-west4-a"]) as cloud:
        cloud.projects.add("bare-project")
        cloud.compute.remove_default_network("bare-project")
        for name, value in cloud.addresses().items():
            monkeypatch.setenv(name, value)
        assert main(["init", "--project", "bare-project", "--region", "us-west4", "--yes", "--json"]) == 0
        command = json.loads(capsys.readouterr().out)["first_job"]
        (tmp_path / "work").mkdir()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environ = {**copies.environ(), "KINETIC_HOME": str(home), "PATH": path}
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=tmp_path / "work", env=environ, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        assert "42" in done.stdout + done.stderr
        cloud.wait_until(lambda: not cloud.nodes() and not cloud.queued_resources())
