"""`kinor plan` of a job that keeps its slice or asks several places: what fits now, until when, and what is asked together."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration import Limits, TpuVm
from kinetic_orchestration.capacity import ledger
from kinetic_orchestration.capacity.ledger import Account, Entry, Ledger
from kinetic_orchestration.cli import main
from kinetic_orchestration.plan.configuration.budgets import month_of
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.wire.lease import ENDED
from tests.support.kept_slices import TRUST, Here

ZONES = ("us-east5-a", "us-central1-a")


@pytest.fixture(autouse=True)
def _has_key_and_zones(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRUST.signing_key is not None
    monkeypatch.setenv("KINETIC_SIGNING_KEY", TRUST.signing_key)
    monkeypatch.setenv("KINETIC_ZONES", ",".join(ZONES))


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that returns the words of `kinor plan` for these options of a job, written `at` that time."""

    def asked(*more: str, at: float = 0.0, **options: Any) -> str:
        given = {"accelerator": "v6e-8", "backend": "tpu-vm", "requirements": [], **options}
        words = ", ".join(f"{name}={value!r}" for name, value in given.items())
        imports = "import kinetic_orchestration as kinetic\nfrom kinetic_orchestration import Limits, TpuVm"
        program = f"{imports}\n\n@kinetic.run({words})\ndef train(): ...\n"
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        if at:
            os.utime(tmp_path / "train.py", (at, at))
        assert main(["plan", f"{tmp_path}/train.py:train", *more]) == 0
        return capsys.readouterr().out

    return asked


def row(told: str, name: str) -> str:
    return next((line[13:] for line in told.splitlines() if line.startswith(f"{name} ")), "")


def test_a_budget_of_the_pipeline_is_shown_with_what_its_ended_jobs_have_used(
    here: Here, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row(plan(), "budget") == ""
    monkeypatch.setenv("KINETIC_BUDGETS", "train=$5,other=3,*=7:warn,total=2000")
    shown = [line[13:] for line in plan().splitlines() if line.startswith("budget ")]
    assert shown == ["$5.00 a month of pipeline train, refuse", "$2,000.00 a month of all pipelines together, refuse"]
    month = month_of(here.store.now())
    account = Account(month, "train")
    ended = Ledger({"job-0123456789ab": Entry(1.25, here.store.now())})
    assert ledger.write(here.store, account, None, ended)
    assert row(plan(), "budget") == (
        f"$5.00 a month of pipeline train, refuse; $1.25 of it used in {month} by jobs that have ended"
    )
    assert json.loads(plan("--json"))["budgets"][0] == {
        "pipeline": "train", "usd": 5.0, "action": "refuse", "month": month, "used_by_ended_usd": 1.25
    }  # fmt: skip
    monkeypatch.setenv("KINETIC_BUDGETS", "*=7:warn")
    assert row(plan(), "budget").startswith("$7.00 a month of pipeline train, warn; $1.25 of it used in ")


def test_a_warm_slice_that_fits_is_named_with_its_end(here: Here, plan: Any) -> None:
    assert row(plan(keep="10m"), "warm") == "none fits now, so hosts are requested"
    job, name = here.kept()
    here.lease(job, name, until=here.store.now() + 300.5)
    told = plan(keep="10m")
    assert row(told, "keep").startswith("it takes a warm slice, and its own stays warm for 10m after it, for the next")
    assert row(told, "warm").startswith(f"{name} fits now: v6e-8 in us-east5-a, it is warm: {job.job_id} has left it ")
    assert re.search(r"; it ends in (29\d|300|5m)s?$", row(told, "warm")), row(told, "warm")
    found = json.loads(plan("--json", keep="10m"))
    assert [one["slice"] for one in found["warm"]["fit"]] == [name]
    assert row(plan(), "warm") == row(plan(), "keep") == "", "a job without keep takes none"
    assert here.store.read(names.lease(name)) is not None and here.left() == [name], "nothing was claimed"


def test_a_program_that_was_changed_in_the_same_second_is_read_anew(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's byte code would be taken for it: it has the same size, and the same time in seconds."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    assert row(plan(accelerator="v5e-8", at=1e9), "accelerator").startswith("v5e-8: ")
    assert row(plan(accelerator="v6e-8", at=1e9), "accelerator").startswith("v6e-8: ")
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["train.py"], "and nothing is left"


def test_it_says_why_a_slice_that_is_free_does_not_fit(here: Here, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job, name = here.kept()
    here.lease(job, name)
    told = row(plan(keep="0s", accelerator="v5e-8"), "warm")
    assert told == "none fits now, so hosts are requested; 1 free is of others' shape, or elsewhere"
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "")
    assert row(plan(keep="0s"), "warm") == (
        "none fits now, so hosts are requested; 1 would, and obeys the home that made it: KINETIC_SIGNING_KEY is for all"
    )
    here.lease(job, name, epoch=1, state=ENDED)
    assert row(plan(keep="0s"), "warm") == "none fits now, so hosts are requested"


@pytest.mark.filterwarnings("ignore:the prices of .* cannot be read")
def test_a_store_that_does_not_answer_and_a_record_that_is_damaged_fail_no_plan(
    here: Here, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, name = here.kept()
    here.lease(job, name)
    there = here.store.read(names.lease(name))
    assert there is not None
    here.store.swap(names.lease(name), b"{", there.generation)
    assert row(plan(keep="10m"), "warm") == "none fits now, so hosts are requested"
    monkeypatch.setenv("KINETIC_STORE", "gs://a-bucket-that-is-not-there/kinetic")
    told = plan(keep="10m")
    assert row(told, "warm") == "not known: the deployment's store cannot be read here"


def test_it_names_the_places_that_are_asked_together(here: Here, plan: Any) -> None:
    told = row(plan(race=2, cloud=TpuVm(zones=list(ZONES))), "race")
    assert told.startswith("2 places are asked at once, now us-east5-a and us-central1-a; the first with hosts is kept")
    told = row(plan(race=2, accelerator=["v6e-8", "v5e-8"], regions=["us-central1", "us-east5"]), "race")
    assert re.match(r"2 places are asked at once, now v6e-8 on-demand in us-\S+ and v6e-8 on-demand in us-\S+;", told)
    found = json.loads(plan("--json", race=2, cloud=TpuVm(zones=list(ZONES))))
    assert found["race"] == list(ZONES)
    assert json.loads(plan("--json"))["race"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"cloud": TpuVm(zones=["us-east5-a", "us-central1-b"])},
            "v6e-8 in us-central1: list price of .* for asia-northeast1, the",
        ),
        ({"cloud": TpuVm(zones=["us-east5-a"])}, ""),
        (
            {"accelerator": ["v6e-8", "v5e-8"], "regions": ["us-central1"]},
            "v6e-8 in us-central1: list price of .* for asia-n",
        ),
        ({"accelerator": ["v6e-8", "v5e-8"], "regions": ["us-east5", "us-central1"], "limits": Limits(run="2h")}, ""),
    ],
    ids=["of one of its zones", "no zone", "of a choice", "no limit of cost"],
)
def test_a_limit_of_cost_that_counts_with_the_price_of_another_region_says_so(
    plan: Any, options: dict[str, Any], told: str
) -> None:
    said = row(plan(**{"limits": Limits(run="2h", cost=40), **options}), "cost limit")
    assert re.match(f"counts with {told}" if told else "$", said), said


def test_prices_of_choices_that_stand_in_for_others_or_are_old_are_told(
    here: Here, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import kinetic_orchestration as kinetic\n\n@kinetic.run(accelerator=['v6e-8', 'v5e-8'])\ndef train(): ...\n"
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    assert main(["plan", f"{tmp_path}/train.py:train"]) == 0
    shown = capsys.readouterr()
    assert "~" in shown.out
    assert "~ marks a price that is not known. What stands in for it: that of " in shown.err
    assert re.search(r"the list prices are of .* days ago; to read today's from Google: .*prices --refresh", shown.err)
    (tmp_path / "train.py").write_text(program.replace("'v5e-8']", "'v5e-8'], by='price'"), encoding="utf-8")
    assert main(["plan", f"{tmp_path}/train.py:train"]) == 0
    rows = re.findall(r"on-demand +\S+ +(~?\$\S+) +(~?\$\S+) an hour", capsys.readouterr().out)
    assert any(cost.startswith("~") for cost, _ in rows) and all(cost == why for cost, why in rows), rows
