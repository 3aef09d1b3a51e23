"""The answers that `kinor verify` ships as the emulator's are those of the emulator."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.verify import comparison, runner
from tests.core.cli.verify import recorded

WRITE = os.environ.get("KINETIC_TEST_BASELINE") == "write"


def test_what_is_shipped_is_whole() -> None:
    shipped, with_what = runner.baseline()
    assert with_what.startswith("kinetic-orchestration ")
    assert {"CREATING", "READY", "DELETING", "PREEMPTED"} <= {
        state for key, values in shipped.values.items() if "GetNode" in key for state in values.get("state", ())
    }
    queued = {
        state for key, of in shipped.values.items() if "GetQueuedResource" in key for state in of.get("state.state", ())
    }
    assert {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "SUSPENDED", "FAILED"} <= queued
    assert len(shipped.moments) >= 10


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(1000)
def test_what_is_shipped_is_what_the_emulator_answers_now_and_a_second_time(home: Path, tmp_path: Path) -> None:
    with recorded.emulated() as cloud:
        done, document, _ = recorded.verified(cloud, tmp_path / "first")
        failed = {step["name"]: step["why"] for step in document["steps"] if step["state"] != "passed"}
        assert failed == {}, done.stderr
        now = recorded.merged(comparison.from_json(document["facts"]), recorded.tour(dict(os.environ)))
        if WRITE:
            versions = document["versions"]
            names = ("kinetic-orchestration", "google-cloud-tpu", "google-cloud-storage")
            with_what = ", ".join(f"{name} {versions[name]}" for name in names)
            text = json.dumps({"recorded": with_what, "facts": now.to_json()}, indent=1, sort_keys=True)
            runner.BASELINES["tpu-vm"].write_text(text + "\n")
        shipped, _ = runner.baseline()
        assert recorded.differences(now, shipped) == []
        assert comparison.unrecorded(now, shipped) == comparison.unrecorded(shipped, now) == []
        again, second, page = recorded.verified(cloud, tmp_path / "second")
        assert (again.returncode, second["differences"], second["unrecorded"]) == (codes.OK, [], []), again.stderr
        assert "13 steps passed, 0 failed" in page
        assert not list(tmp_path.glob("*/.*")), "a temporary file was left"
