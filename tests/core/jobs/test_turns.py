"""Jobs that share chips, on this machine: who waits, what it is told, and when its turn comes."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity.shares import records
from kinetic_orchestration.capacity.shares.line import Line, give_back
from kinetic_orchestration.capacity.shares.rules import Want
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs import request
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.resource_labels import label
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names, wire
from tests.support.waits import wait_until

PATIENCE = 90.0


@kinetic.run(accelerator="v5e-4")
def until(flag: str) -> str:
    while not os.path.exists(flag):
        time.sleep(0.01)
    return "done"


@pytest.fixture
def shares(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=4")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "shared-chips")


@pytest.mark.usefixtures("shares")
def test_a_job_waits_for_the_chips_of_another_says_its_place_and_runs_when_they_are_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting is not a failure and says its place in the line."""
    first = until.run_async(str(tmp_path / "flag"))
    second = until.run_async(str(tmp_path / "flag"))
    told: list[str] = []

    def waits() -> bool:
        told.append(second.status().value)
        capsys.readouterr()
        assert main(["shares", "--json"]) == codes.OK
        found = json.loads(capsys.readouterr().out)
        told.extend(one["why"] for one in found["waiting"])
        return [one["job"] for one in found["held"]] == [first.job_id] and bool(found["waiting"])

    wait_until(waits, PATIENCE)
    assert told[0] == "PENDING"
    assert told[-1] == "for 4 of v5e=4 chips (4 in use)"
    assert main(["status", second.job_id]) == codes.RUNNING
    assert "PENDING (queued, 1st in line for 4 of v5e=4 chips (4 in use))" in capsys.readouterr().out
    (tmp_path / "flag").touch()
    assert first.result(timeout=PATIENCE) == "done"
    assert second.result(timeout=PATIENCE) == "done"
    capsys.readouterr()
    main(["shares", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["held"] == found["waiting"] == []


@pytest.mark.usefixtures("shares")
def test_chips_of_an_attempt_that_has_ended_are_not_told_as_those_of_a_job_that_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of one whose process ended before its hosts were gone: its chips are given back by whoever waits next."""
    found = settings.load()
    store = open_store(found.store, found.deployment)
    held, runs = (
        Line(store, Want(f"job-{one}", 1, "v5e", 2, user="ann", since=store.now()), found.chips)
        for one in ("000000000001", "000000000002")
    )
    wait_until(lambda: held.turn().granted and runs.turn().granted, PATIENCE)
    store.create(names.verdict("job-000000000001", 1), wire.Verdict(wire.COMMITTED, "host", 0.0).encode())
    assert main(["shares"]) == codes.OK
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "its attempt ended" in first and "free for who waits once its hosts are gone" in first
    assert "ended" not in second
    main(["shares", "--json"])
    assert ["ended" in one for one in json.loads(capsys.readouterr().out)["held"]] == [True, False]
    for line in (held, runs):
        give_back(store, line.want.key)


@pytest.mark.usefixtures("shares")
def test_a_job_that_has_ended_in_the_line_is_not_told_as_one_that_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """As of one that was cancelled: its place is given up by whoever decides next, and nobody may come for long."""
    found = settings.load()
    store = open_store(found.store, found.deployment)
    held, over, waits = (
        Want(f"job-{one}", 1, "v5e", 4, user="ann", since=store.now())
        for one in ("000000000011", "000000000012", "000000000013")
    )
    for one in (over, waits):
        store.put(records.name_of(one), b"")
    line = Line(store, held, found.chips)
    wait_until(lambda: line.turn().granted, PATIENCE)
    main(["shares", "--json"])
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["waiting"]] == [over.job, waits.job]
    store.create(names.verdict(*over.key), wire.Verdict(wire.ABORTED, "host", 0.0).encode())
    main(["shares", "--json"])
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["waiting"]] == [waits.job]
    assert main(["shares"]) == codes.OK
    told = capsys.readouterr().out
    assert over.job not in told and "place 1, for 4 of v5e=4 chips (4 in use)" in told
    for one in (held, over, waits):
        give_back(store, one.key)


@pytest.mark.usefixtures("shares")
def test_a_job_that_its_share_can_never_hold_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A share that no job can ever fit in."""
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=2")
    with pytest.raises(UsageError, match=r"takes 4 chips of the share v5e=2, and so could never run"):
        until.run_async(str(tmp_path / "flag"))
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=64,pipeline:until=2")
    with pytest.raises(UsageError, match=r"takes 4 chips of the share pipeline:until=2, and so could never run"):
        until.run_async(str(tmp_path / "flag"))
    monkeypatch.setenv("KINETIC_CHIPS", "v55=2")
    with pytest.raises(UsageError, match=r"^KINETIC_CHIPS has 'v55=2': 'v55' is no accelerator"):
        until.run_async(str(tmp_path / "flag"))


@pytest.mark.fast
def test_the_user_of_a_job_is_whom_its_label_names_then_the_login_then_the_account_of_its_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = {"PROJECT": "p", "STORE": "gs://b/k", "DEPLOYMENT": "d", "CHIPS": "user:*=64", "ZONES": "us-west4-a"}
    for name, value in cloud.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)

    def user(**options: Any) -> str:
        spec = JobSpec("train", check_options(Options("v5e-8", **options)))
        return str(request.draft(spec, dry=True).plan.turn["user"])

    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    account = pwd.getpwuid(os.getuid()).pw_name
    assert user() == label(account), "as in a container"
    monkeypatch.setenv("LOGNAME", "Ada@lab")
    assert user() == "ada-lab"
    monkeypatch.setenv("USER", "eve")
    assert user() == "eve"
    assert user(labels={"owner": "ml"}) == "ml"
