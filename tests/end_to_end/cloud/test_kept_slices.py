"""The commands for slices that stay warm: `kinor slices`, `kinor release`, and who pays for the time that they wait."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.cli import main
from kinetic_orchestration.protocol.wire.lease import FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import run
from tests.support.waits import wait_until

WITHIN = 150.0


def lease_of(job: JobHandle[Any]) -> Lease:
    """The lease of the one slice that there is."""
    (held,) = slices(job._job.store)
    return held.lease


def free(job: JobHandle[Any]) -> Lease:
    """Wait until the slice of a job is offered."""
    wait_until(lambda: [held.lease.state for held in slices(job._job.store)] == [FREE], "an offer", within=60.0)
    return lease_of(job)


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def idle_of_month(capsys: pytest.CaptureFixture[str]) -> float:
    """Return for how long slices of the only pipeline were kept idle, as the months' costs say."""
    pipelines = told(capsys, "cost", "--by", "pipeline")["pipelines"]
    (idle,) = [float(each["idle_seconds"]) for each in pipelines if each["pipeline"] != "total"]
    return idle


def test_a_kept_slice_is_listed_released_and_paid_for_by_whoever_left_it(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_BUDGETS", "total=50")
    assert "no slice is kept" in shown(capsys, "slices")[2]
    job = run(jobs.hardware, keep="10m")
    assert job.result(timeout=WITHIN) == (1, 1)
    name = free(job).slice
    _, table, said = shown(capsys, "slices")
    assert re.search(r"\$0\.00 of slices that an emulated cloud has on this machine; on Google Cloud <?\$0\.\d\d", said)
    heading, row = table.splitlines()
    assert heading.split("  ")[0] == "SLICE" and "KEPT IDLE" in heading
    assert row.split()[:3] == [name, "v5e-1", "us-west4-a"] and "free for" in row and job.job_id in row
    (kept,) = told(capsys, "slices")["slices"]
    assert (kept["state"], kept["served"], kept["job"], kept["backend"]) == ("free", 1, job.job_id, "tpu-vm")
    assert kept["usd"] == 0 and kept["would_have_cost_usd"] is not None, "an emulated cloud costs nothing"
    cloud.wait_until(lambda: idle_of_month(capsys) > 0, 60.0, "a second of the store, in which it was idle")

    code, _, err = shown(capsys, "release", name)
    assert (code in (0, 4), "deleted" in err) == (True, True), err
    assert "released by `kinor release`" in lease_of(job).why
    assert told(capsys, "slices") == {"slices": []}
    cloud.wait_until_empty(60)
    (ended,) = told(capsys, "slices", "--all")["slices"]
    cost = told(capsys, "cost", job.job_id)
    assert (ended["state"], ended["idle_seconds"]) == ("ended", cost["idle_seconds"]) and cost["idle_seconds"] > 0
    assert cost["chip_hours"] * 3600 == pytest.approx(cost["ready_seconds"] + cost["idle_seconds"])
    assert "kept idle" in shown(capsys, "cost", job.job_id)[1]
    assert "kept idle" in shown(capsys, "cost", "--jobs")[1].lower()
    code, _, err = shown(capsys, "release", "--all")
    assert code == 0 and "no slice is kept that could be released" in err
    assert shown(capsys, "release", "nobody-has-this")[0] == 2 and shown(capsys, "release")[0] == 2


def test_a_slice_that_a_job_has_is_not_released(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    job = run(jobs.hardware, keep="10m")
    assert job.result(timeout=WITHIN) == (1, 1)
    name = free(job).slice
    second = run(jobs.until, str(tmp_path / "gate"), keep="0s")
    cloud.wait_until(lambda: lease_of(job).state == "claimed", 60.0, "a claim")
    code, _, err = shown(capsys, "release", name)
    assert code == 5 and "a job has it" in err
    assert "claimed" in shown(capsys, "slices")[1]
    (tmp_path / "gate").touch()
    second.result(timeout=WITHIN)
    cloud.wait_until_empty(60)
    assert lease_of(job).state == "ended", "keep='0s' takes a warm slice and leaves none"


def test_a_slice_that_somebody_has_deleted_is_not_told_as_one_that_waits(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = run(jobs.hardware, keep="10m")
    assert job.result(timeout=WITHIN) == (1, 1)
    name = free(job).slice
    (kept,) = told(capsys, "slices")["slices"]
    assert (kept["gone"], kept["last"], kept["why"]) == (False, None, None), "no TPU tells when it is taken away"
    cloud.sweep()
    cloud.wait_until_empty(60)
    (kept,) = told(capsys, "slices")["slices"]
    assert kept["gone"] is True and kept["state"] in ("free", "ended")
    assert "its hosts are gone; `kinor release` ends its lease" in shown(capsys, "slices")[1]
    code, _, err = shown(capsys, "release", name)
    assert (code, "deleted" in err) == (0, True), err
    assert told(capsys, "slices") == {"slices": []}
