"""`ko verify` on Compute Engine: what it would make is known before, and one run proves every step and leaves nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.cli.verify import budget, comparison, runner
from kinetic_orchestration.cli.verify.clouds.compute_engine import ComputeCalls
from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.cli.verify.steps import STEPS_OF_COMPUTE
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms.google.rest.call_listeners import Call
from tests.core.cli.verify import recorded

WRITE = os.environ.get("KINETIC_TEST_BASELINE") == "write"
WISHES = [step.wish for step in STEPS_OF_COMPUTE]
ZONE = "us-central1-a"
ZONES = (ZONE, "us-central1-b")
HERE = {
    "KINETIC_BACKEND": "compute", "KINETIC_PROJECT": "acme", "KINETIC_STORE": "gs://acme/kinetic",
    "KINETIC_ZONES": ZONE, "KINETIC_PRICES": "l4=0.8,l4:spot=0.3,a100=3",
}  # fmt: skip


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A project whose jobs run on Compute Engine, of which nothing is asked."""
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


# ---- before anything is made


@pytest.mark.fast
def test_the_cheapest_gpu_with_a_price_is_taken_unless_one_is_named(here: pytest.MonkeyPatch) -> None:
    assert runner.completed(runner.Wanted()).accelerator == "l4"
    assert runner.completed(runner.Wanted(accelerator="a100")).accelerator == "a100"
    here.setenv("KINETIC_PRICES", "l4=0.8,t4=0.4,l4:spot=0.1")
    assert runner.completed(runner.Wanted()).accelerator == "t4"
    assert runner.completed(runner.Wanted(spot=True)).accelerator == "l4"


@pytest.mark.fast
def test_the_hardware_chooses_the_platform_where_no_setting_does(here: pytest.MonkeyPatch) -> None:
    here.delenv("KINETIC_BACKEND")
    assert runner.settings_for(runner.Wanted("l4")).backend == "compute"
    assert runner.settings_for(runner.Wanted("v5e-1")).backend == "tpu-vm"
    assert runner.completed(runner.Wanted()).accelerator == "v5e-1"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environ", "wanted", "said"),
    [
        (
            {"KINETIC_ZONES": ""},
            runner.Wanted("l4"),
            r"no zones of l4 are known: name those that have some with --zone",
        ),
        ({"KINETIC_PRICES": ""}, runner.Wanted(), r"no price of a GPU is known.*KINETIC_PRICES=l4="),
        ({"KINETIC_PRICES": "l4=1"}, runner.Wanted(spot=True), r"no price of a GPU is known.*KINETIC_PRICES=l4:spot="),
        ({}, runner.Wanted("v5e-1"), r"v5e-1.*cannot be a VM of Compute Engine"),
        ({}, runner.Wanted("h100"), r"h100.*does not come on demand"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_what_to_name(
    here: pytest.MonkeyPatch, environ: dict[str, str], wanted: runner.Wanted, said: str
) -> None:
    for name, value in environ.items():
        here.setenv(name, value)
    with pytest.raises(UsageError, match=said):
        runner.plan(wanted, runner.settings_for(runner.completed(wanted)))


@pytest.mark.fast
@pytest.mark.parametrize("usd", [0.0, 0.1, 0.3, 0.7, 1.0, 5.0])
def test_no_plan_costs_more_than_its_budget(usd: float) -> None:
    planned = budget.plan(WISHES, "l4", usd, [ZONE], prices={"l4": 0.8}, backend="compute")
    assert planned.most <= usd + 1e-9
    assert {"doctor", "api", "bucket", "reap"} <= {step.wish.name for step in planned.steps if not step.left_out}


@pytest.mark.fast
def test_a_dry_run_shows_the_steps_and_their_cost_and_makes_nothing(
    here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--dry-run", "--json"]) == codes.OK
    shown = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in shown["steps"] if step["accelerator"]] == [
        "job", "secrets", "self-deletion", "cancel", "VM deleted", "two hosts",
    ]  # fmt: skip
    assert {step["accelerator"] for step in shown["steps"]} == {None, "l4"}
    assert 0 < shown["most"] <= shown["budget"] == 5.0


# ---- what is seen of a VM


def _call(method: str, path: str, status: str = "OK", body: Any = None, **answer: Any) -> Call:
    at = float(len(path))
    return Call("compute", f"{method} compute/v1/{path}", {"body": body or {}}, status, answer, (), at, 0.5)


@pytest.mark.fast
def test_a_vm_is_charged_from_running_until_it_is_seen_gone() -> None:
    path = "projects/acme/zones/us-central1-a/instances"
    moments = iter(range(100, 200))
    recorder = Recorder(Redactor({"acme": "PROJECT"}), "kinetic-0a-", clock=lambda: 99.0, calls=ComputeCalls())
    recorder.rate = 0.1
    for call in (
        _call("POST", path, body={"name": "kinetic-0a-1"}),
        _call("POST", path, body={"name": "other"}),
        _call("GET", f"{path}/kinetic-0a-1", status="STAGING"),
        _call("GET", f"{path}/kinetic-0a-1", status="404"),
    ):
        recorder.record(call._replace(began=float(next(moments))))
    (slice_,) = recorder.slices.values()
    assert slice_.seconds(1000.0) == 0.0
    for answer in ({"status": "RUNNING"}, {"status": "STOPPING"}):
        found = Call("compute", f"GET compute/v1/{path}/kinetic-0a-1", {}, "OK", answer, (), float(next(moments)), 0.1)
        recorder.record(found)
    recorder.record(
        Call("compute", f"DELETE compute/v1/{path}/kinetic-0a-1", {}, "OK", {}, (), float(next(moments)), 0.1)
    )
    assert slice_.seconds(110.0) == 6.0
    assert recorder.deletions(slice_) == 1
    gone = Call("compute", f"GET compute/v1/{path}/kinetic-0a-1", {}, "404", {}, (), 124.0, 0.1)
    recorder.record(gone)
    assert (slice_.seconds(1000.0), recorder.lost) == (20.0, 0)
    assert {seen.name for seen in recorder.seen} == {"NAME-1"}


# ---- a whole run


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(480)
def test_a_whole_verification_on_emulated_vms_passes_leaves_nothing_and_answers_as_is_shipped(
    home: Path, tmp_path: Path
) -> None:
    with recorded.emulated(zones=ZONES) as cloud:
        done, document, page = recorded.verified(
            cloud, tmp_path, within=300.0, **{**HERE, **cloud.environ(backend="compute", project="quokka-42")}
        )
        failed = {step["name"]: step["why"] for step in document["steps"] if step["state"] != "passed"}
        assert failed == {}, done.stderr
        assert "On the emulator of Compute Engine: 12 steps passed, 0 failed" in page
        assert "quokka" not in page + json.dumps(document), "a name of the user's is in the report"
        assert cloud.ledger.chip_seconds() > 0
        by_name = {step["name"]: step["seen"] for step in document["steps"]}
        assert by_name["self-deletion"]["deleted_here"] == 0 < by_name["self-deletion"]["slices"]
        assert (by_name["reap"]["listed"], by_name["reap"]["slices"] >= 7, by_name["reap"]["left"]) == (0, True, [])
        now = comparison.from_json(document["facts"])
        if WRITE:
            versions = document["versions"]
            with_what = ", ".join(
                f"{name} {versions[name]}" for name in ("kinetic-orchestration", "google-cloud-storage")
            )
            text = json.dumps({"recorded": with_what, "facts": now.to_json()}, indent=1, sort_keys=True)
            runner.BASELINES["compute"].write_text(text + "\n")
        shipped, _ = runner.baseline("compute")
        assert recorded.differences(now, shipped) == []
        assert comparison.unrecorded(now, shipped) == comparison.unrecorded(shipped, now) == []
