"""A verification's highest cost is known before anything is made, and it never costs more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.cli.verify import budget, runner
from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.cli.verify.steps import STEPS_OF_CLOUD_TPU
from kinetic_orchestration.errors import BackendError, NoPlace, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, ON_DEMAND, Rate
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.testing import Emulator

pytestmark = pytest.mark.fast

WISHES = [step.wish for step in STEPS_OF_CLOUD_TPU]
PAID = {wish.name for wish in WISHES if wish.slices}


def ran(planned: budget.Budget) -> list[str]:
    return [step.wish.name for step in planned.steps if not step.left_out]


def test_five_dollars_pay_for_every_step_where_a_chip_is_cheap() -> None:
    planned = budget.plan(WISHES, "v5e-1", 5.0, ["us-west4-a"])
    assert ran(planned) == [wish.name for wish in WISHES]
    assert planned.most <= 5.0
    assert "2026-08-07" in planned.price


@pytest.mark.parametrize("usd", [0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 4.2, 5.0, 50.0])
@pytest.mark.parametrize("zones", [["us-west4-a"], ["us-west4-a", "europe-west4-b"], []])
@pytest.mark.parametrize("spot", [False, True])
def test_no_plan_costs_more_than_its_budget_and_what_is_left_out_says_why(
    usd: float, zones: list[str], spot: bool
) -> None:
    planned = budget.plan(WISHES, "v5e-1", usd, zones, spot=spot)
    assert planned.most <= usd + 1e-9
    assert {"doctor", "api", "bucket", "reap"} <= set(ran(planned))
    for step in planned.steps:
        if step.left_out:
            assert step.left_out.startswith(("budget: it can cost $", "needs "))


def test_a_step_that_needs_another_is_left_out_with_it() -> None:
    planned = budget.plan(WISHES, "v5e-1", 0.1, ["us-west4-a"])
    told = {step.wish.name: step.left_out for step in planned.steps}
    assert (told["logs"], told["cost"], told["resume"]) == ("needs job", "needs job", "needs preemption")


def test_what_was_spent_takes_away_what_is_not_run_yet() -> None:
    planned = {step.wish.name: step for step in budget.plan(WISHES, "v5e-1", 5.0, ["us-west4-a"]).steps}
    assert budget.over(planned["four hosts"], 5.0, 1.0) == ""
    assert budget.over(planned["four hosts"], 5.0, 2.5) == "budget: it can cost $3.20, and $2.50 are left"
    assert budget.over(planned["reap"], 5.0, 99.0) == ""  # what removes things is run whatever was spent


def test_the_dearest_of_the_zones_counts() -> None:
    cheap, dear = (
        budget.plan(WISHES, "v5e-1", 50.0, zones).most for zones in (["us-west4-a"], ["us-west4-a", "europe-west4-b"])
    )
    assert dear == pytest.approx(cheap * 1.56 / 1.20)


def test_refreshed_prices_bound_the_cost_and_prices_from_settings_come_before_them() -> None:
    """Prices that rose since the package was made would let a verification cost more than its budget."""
    rose = Rate("v5e", "us-west4", ON_DEMAND, 2.40, "2026-01-01", "a catalogue")
    loaded = replace(
        settings.load(zones="us-west4-a", prices={}), listed=BUILT_IN.with_rates([rose], refreshed="2026-01-02")
    )
    wanted = runner.Wanted("v5e-1", 50.0)
    usual = budget.plan(WISHES, "v5e-1", 50.0, ["us-west4-a"]).most
    planned = runner.plan(wanted, loaded)
    assert planned.most == pytest.approx(2 * usual)
    assert "2026-01-01" in planned.price
    assert runner.plan(wanted, replace(loaded, prices={"v5e": 1.20})).most == pytest.approx(usual)


@pytest.mark.parametrize(
    ("name", "words"), [("v5e-16", "one host"), ("a100", "one host"), ("cpu", "one host"), ("v2-4", "no price")]
)
def test_what_cannot_be_verified_on_is_refused_with_what_can(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        budget.plan(WISHES, name, 5.0, ["us-central1-a"])


def test_a_budget_is_not_kept_by_the_price_of_one_zone_where_that_of_another_is_unknown() -> None:
    zones, prices = ["us-central1-b", "europe-west4-a"], {"v2/us-central1": 1.0}
    assert budget.plan(WISHES, "v2-4", 50.0, zones[:1], prices=prices).price.startswith("$1.00 a chip and hour")
    with pytest.raises(UsageError, match=r"of v2-4 in europe-west4: .* KINETIC_PRICES=v2/europe-west4=…"):
        budget.plan(WISHES, "v2-4", 50.0, zones, prices=prices)


def look(recorder: Recorder, at: float, kind: str, state: str) -> None:
    name = {"Node": "nodes", "QueuedResource": "queuedResources"}[kind]
    answer = {"state": state} if kind == "Node" else {"state": {"state": state}}
    request = {"name": f"projects/p/locations/z/{name}/kinetic-mine-1"}
    status = "NOT_FOUND" if state == "404" else "OK"
    recorder.record(
        call_listeners.Call("tpu", f"Get{kind}", request, status, {} if state == "404" else answer, (), at, 0.0)
    )


def test_dollars_are_counted_from_ready_until_it_is_seen_gone() -> None:
    now = [0.0]
    recorder = Recorder(Redactor({}), "kinetic-mine-", clock=lambda: now[0])
    recorder.rate = 0.5
    look(recorder, 1.0, "QueuedResource", "PROVISIONING")
    now[0] = 100.0
    assert recorder.spent() == 0.0
    look(recorder, 100.0, "Node", "READY")
    now[0] = 130.0
    assert recorder.spent() == pytest.approx(15.0)  # it runs on until somebody sees its end
    look(recorder, 135.0, "Node", "DELETING")
    look(recorder, 140.0, "Node", "404")
    now[0] = 500.0
    assert recorder.spent() == pytest.approx(20.0)
    assert recorder.lost == 0


def verify(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kinetic_orchestration.cli", "verify", *arguments],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


CLOUD = {
    "KINETIC_PROJECT": "p",
    "KINETIC_STORE": "gs://b/k",
    "KINETIC_ZONES": "us-west4-a",
    "KINETIC_EMULATOR": "http://127.0.0.1:9",
}


def test_the_plan_is_printed_first_and_nobody_is_asked_without_a_terminal(home: Path, tmp_path: Path) -> None:
    done = verify("--budget", "1", "-o", str(tmp_path), **CLOUD)
    assert done.returncode == codes.USAGE
    assert (
        "four hosts" in done.stdout and "not run: budget" in done.stdout and "list price of 2026-08-07" in done.stdout
    )
    assert "--yes" in done.stderr
    assert list(tmp_path.glob("verify-*")) == []


def test_a_dry_run_is_the_plan_alone_and_needs_no_cloud(home: Path) -> None:
    done = verify("--dry-run", "--json", **CLOUD)
    plan = json.loads(done.stdout)
    assert done.returncode == codes.OK
    assert {step["step"] for step in plan["steps"] if step["usd"]} == PAID
    assert plan["most"] <= plan["budget"] == 5.0


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        ((), {}, "kinor emulator --print-env"),
        (("--only", "nonsense"), CLOUD, "there is no step 'nonsense'"),
        (("--budget", "-1"), CLOUD, "--budget is -1"),
        (("--yes", "-o", "/proc/none"), CLOUD, "--output is /proc/none"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    home: Path, arguments: tuple[str, ...], environ: dict[str, str], words: str
) -> None:  # fmt: skip
    done = verify(*arguments, **environ)
    assert (done.returncode, words in done.stderr) == (codes.USAGE, True), done.stderr


def test_a_run_has_a_deployment_of_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CLOUD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "production")
    one, other = runner.settings_for(runner.Wanted()), runner.settings_for(runner.Wanted())
    assert one.deployment.startswith("verify-") and one.deployment != other.deployment


@pytest.mark.parametrize(
    ("location", "zones", "left_out"),
    [
        ("US-WEST4", ("us-west4-a",), []),
        (
            "US",
            ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a"),
            ["four hosts"],
        ),  # two of them have no price in the table
        ("EU", ("europe-west4-b",), ["four hosts"]),
    ],
)
def test_without_named_zones_they_are_those_of_the_bucket(
    tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch,
    location: str, zones: tuple[str, ...], left_out: list[str],
) -> None:  # fmt: skip
    bucket = f"verify-{location.lower()}"
    for name, value in tpu_cloud.environ(store=f"gs://{bucket}/k", location=location).items():
        monkeypatch.setenv(name, value)
    here = runner.settings_for(runner.Wanted())
    planned = runner.plan(runner.Wanted(), here)
    assert here.zones == zones
    assert [step.wish.name for step in planned.steps if step.left_out] == left_out
    assert planned.most <= planned.usd == 5.0
    advice = "; `kinor prices --refresh` reads that of us-south1 and us-west1, and --zone us-central1-a does without"
    assert planned.price.endswith(advice) == (location == "US") == ("--refresh" in planned.price)


def test_a_bucket_in_a_large_area_counts_the_dearest_price_until_those_of_its_regions_are_read(home: Path) -> None:
    zones = ["us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a"]
    planned = budget.plan(WISHES, "v5e-1", 5.0, zones)
    assert planned.price == (
        "$1.56 a chip and hour, list price of 2024-12-23 for europe-west4, the dearest, as none is known for us-south1; "
        "`kinor prices --refresh` reads that of us-south1 and us-west1, and --zone us-central1-a does without"
    )
    assert [step.wish.name for step in planned.steps if step.left_out] == ["four hosts"]
    for helped in (
        budget.plan(WISHES, "v5e-1", 5.0, zones[:1]),
        budget.plan(WISHES, "v5e-1", 5.0, zones, prices={"v5e": 1.2}),
        budget.plan(
            WISHES, "v5e-1", 5.0, zones,
            listed=BUILT_IN.with_rates(
                [Rate("v5e", region, ON_DEMAND, 1.2, "2026-08-11", "x") for region in ("us-south1", "us-west1")], ""
            ),
        ),
    ):  # fmt: skip
        assert "--refresh" not in helped.price and [step for step in helped.steps if step.left_out] == []
    nowhere = budget.plan(WISHES, "v5e-1", 5.0, ["us-south1-a"]).price
    assert nowhere.endswith("; `kinor prices --refresh` reads that of us-south1")


def test_a_bucket_that_tells_no_zone_has_none_chosen_for_it(
    tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tpu_cloud.environ(store="gs://verify-far/k", location="US-WEST2").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoPlace, match="US-WEST2"):
        runner.settings_for(runner.Wanted())
    monkeypatch.setenv("KINETIC_STORE", "gs://verify-closed/k")
    tpu_cloud.storage.forbid("bucket verify-closed*")
    with pytest.raises(BackendError, match="is not known"):
        runner.settings_for(runner.Wanted())
    with pytest.warns(UserWarning, match="all known zones stand for its own here"):
        assert "europe-west4-b" in runner.settings_for(runner.Wanted(), dry_run=True).zones
    assert runner.settings_for(runner.Wanted(zones=("us-west4-a",))).zones == ("us-west4-a",)


@pytest.mark.parametrize(
    "forbidden, zones, permission",
    [("bucket", (), "storage.buckets.get"), ("*", ("--zone", "us-west4-a"), "storage.objects.get")],
)
def test_a_bucket_that_cannot_be_opened_ends_with_a_report_of_what_was_answered(
    tpu_cloud: Emulator, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: str,
    zones: tuple[str, ...], permission: str,
) -> None:  # fmt: skip
    for name, value in tpu_cloud.environ(store="gs://verify-closed/k").items():
        monkeypatch.setenv(name, value)
    tpu_cloud.storage.forbid(f"{forbidden} verify-closed*")
    assert main(["verify", "--yes", *zones, "--output", str(tmp_path / "reports")]) == codes.FAILED
    (path,) = (tmp_path / "reports").glob("*.json")
    document = json.loads(path.read_text())
    states = {step["name"]: step["state"] for step in document["steps"]}
    assert states.pop("bucket") == "failed" and set(states.values()) == {"not run"}
    assert {call["step"] for call in document["calls"]} == {"bucket"} and "403" in str(document["calls"])
    (page,) = (tmp_path / "reports").glob("*.md")
    assert f"{permission} access" in page.read_text() and "verify-closed" not in page.read_text()
    assert tpu_cloud.queued_resources() == []
