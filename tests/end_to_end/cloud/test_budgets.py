"""A budget of a pipeline and a month over a whole emulated cloud: what is refused, told, and foreseen."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import BudgetExceeded
from kinetic_orchestration.jobs.watching import spending
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.waits import wait_until

pytestmark = pytest.mark.slow
WITHIN = 120.0


def run(function: Any, *arguments: Any, **options: Any) -> Any:
    return kinetic.run(accelerator="v5e-1", **options)(function).run_async(*arguments)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == codes.OK
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def priced(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """A cloud where a chip costs a cent a second."""
    spending._checked.clear()
    monkeypatch.setenv("KINETIC_PRICES", "v5e=36")
    return cloud


def objects(job: Any) -> list[str]:
    return [entry.name for entry in job._job.store.list(names.BUDGETS)]


@pytest.mark.turn(6)
def test_a_pipeline_runs_until_its_budget_is_used_up_and_its_live_jobs_count(
    priced: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(jobs.attempt)  # of the same month, before there was a budget
    assert before.result(timeout=WITHIN) == 1
    assert objects(before) == []
    monkeypatch.setenv("KINETIC_BUDGETS", "until=0.05USD,total=1000USD")
    limited = kinetic.Limits(run=60)
    with pytest.warns(UserWarning, match=r"may cost up to \$0\.60 by its limits, and \$0\.05 are left"):
        live = run(jobs.until, str(tmp_path / "go"), limits=limited)
    marks = [name for name in objects(live) if name.endswith(live.job_id)]
    assert len(marks) == 2, "of its pipeline, and of all"
    wait_until(lambda: (live.cost().usd or 0.0) > 0.06, "what it costs while it runs")
    with pytest.raises(BudgetExceeded, match=r"budget of pipeline until, \$0\.05 a month, is used up.*on 1 job"):
        run(jobs.until, str(tmp_path / "go"))
    assert [job.job_id for job in kinetic.list_jobs()] == [live.job_id], "nothing was submitted"
    assert run(jobs.attempt).result(timeout=WITHIN) == 1, "another pipeline"
    (tmp_path / "go").touch()
    assert live.result(timeout=WITHIN) == 1
    rows = {row["pipeline"]: row for row in told(capsys, "cost", "--by", "pipeline")["pipelines"]}
    assert set(rows) == {"until", "attempt", "total"}
    assert rows["until"]["budget"]["spent_usd"] == pytest.approx(live.cost().usd, abs=0.05)
    assert rows["until"]["budget"]["used"] > 1
    assert rows["attempt"]["budget"] is None and rows["attempt"]["jobs"] == 2
    counted = rows["total"]["budget"]
    assert (counted["jobs"], counted["unpriced"]) == (3, 0)
    assert counted["spent_usd"] > rows["until"]["budget"]["spent_usd"]

    def is_settled() -> bool:
        told(capsys, "cost", "--by", "pipeline")
        return not [name for name in objects(live) if "/open/" in name]

    wait_until(is_settled, "the end of the machines, after which all is settled")
    assert main(["cost", "--by", "pipeline", "--jobs"]) == codes.OK
    shown = capsys.readouterr()
    assert "$0.05, refuse" in shown.out and live.job_id in shown.out and "months are of UTC" in shown.err
    monkeypatch.setenv("KINETIC_BUDGETS", "until=0.05USD:warn")
    with pytest.warns(UserWarning, match="is used up"):
        assert run(jobs.until, str(tmp_path / "go")).result(timeout=WITHIN) == 1


@pytest.mark.turn(2)
def test_a_forecast_rests_on_past_runs_or_on_limits_and_says_which(
    priced: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "nightly.py"
    script.write_text(
        "import kinetic_orchestration as kinetic\n@kinetic.run(accelerator='v5e-1', limits=kinetic.Limits(cost=2.5))\n"
        "def nightly():\n    return 1\n"
    )
    monkeypatch.setenv("KINETIC_BUDGETS", "nightly=50USD")
    first = told(capsys, "cost", "--forecast", f"{script}:nightly", "--cron", "0 3 1 * *")
    assert (first["runs"], first["run_usd"], first["worst_case"]) == (1, None, {"run_usd": 2.5, "month_usd": 2.5})
    assert main(["cost", "--forecast", f"{script}:nightly", "--every", "3600"]) == codes.OK
    shown = capsys.readouterr().out
    assert "every 1h: 7" in shown, "a number alone is of seconds, and told as what it is"
    assert (
        "no run yet: the worst case by its limits" in shown and "$2.50 at most" in shown and "MORE than that" in shown
    )
    assert main(["cost", "--forecast", "attempt", "--every", "1d"]) == codes.USAGE
    assert "attempt has no run in the last 90d" in capsys.readouterr().err
    done = [run(jobs.attempt) for _ in range(3)]
    assert [job.result(timeout=WITHIN) for job in done] == [1, 1, 1]
    costs = sorted(job.cost().usd for job in done)
    for zone in ZONES:
        priced.stockout(zone, "wait")
    for _ in range(5):  # if they counted as runs for nothing, the median would be of them
        waits = run(jobs.attempt)
        waits.cancel()
    assert waits.cost().usd == 0.0
    found = told(capsys, "cost", "--forecast", "attempt", "--cron", "0 0 1,2 * *")
    assert found["runs"] == 2
    assert (found["history"]["runs"], found["history"]["without_hosts"]) == (3, 5) and found["history"][
        "prices"
    ] == "KINETIC_PRICES"
    assert found["run_usd"]["median"] == pytest.approx(costs[1])
    assert found["run_usd"]["p90"] == pytest.approx(costs[1] + 0.8 * (costs[2] - costs[1]))
    assert found["month_usd"]["median"] == pytest.approx(2 * costs[1])
    assert main(["cost", "--forecast", "attempt", "--every", "1d"]) == codes.OK
    shown = capsys.readouterr().out
    assert "5 more never had hosts, and are left out" in shown
    assert "3 runs of " in shown and "(median)" in shown and "(90th percentile)" in shown
    for words, said in (
        ([], "needs one schedule"), (["--every", "1d", "--cron", "0 3 * * *"], "needs one schedule"),
        (["--every", "0"], "no interval"), (["--cron", "0 3 * *"], "4 fields"),
    ):  # fmt: skip
        assert main(["cost", "--forecast", "attempt", *words]) == codes.USAGE
        assert said in capsys.readouterr().err
    assert main(["cost", "--every", "1d"]) == codes.USAGE
    assert "the schedule of a --forecast" in capsys.readouterr().err


@pytest.mark.turn(3)
def test_without_a_budget_nothing_more_is_asked(priced: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for text in ("", "another=1USD", "attempt=1000USD"):
        monkeypatch.setenv("KINETIC_BUDGETS", text)
        assert run(jobs.attempt).result(timeout=WITHIN) == 1  # asks what only a first submission does
        spending._checked.clear()  # as another process
        priced.storage.forget()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            job = run(jobs.attempt)
        asked.append(sum(names.BUDGETS in call.where for call in priced.storage.calls))
        assert job.result(timeout=WITHIN) == 1
    assert asked[:2] == [0, 0]
    assert 2 <= asked[2] <= 8, "a listing, the ledger, the mark of the new job; and the one before is settled"
