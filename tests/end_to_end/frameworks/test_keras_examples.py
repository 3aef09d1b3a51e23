"""The Keras examples: one training in Dagster and as a sweep, and how the best of its models is promoted.

In Airflow it is run by `tests/airflow_kinetic/test_examples.py`.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kinetic_orchestration.testing.storage_server.server import StorageServer

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"

ends = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(0)]


def run(name: str, folder: Path, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder, env={**os.environ, "PYTHONWARNINGS": "ignore", **environ}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(folder.iterdir()), "it left something in its folder"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "an empty folder"
    made.mkdir()
    return made


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import keras_rings

    return keras_rings


class TestToTheirEnds:
    pytestmark = ends

    def test_a_week_in_dagster_of_which_all_that_it_keeps_is_in_a_bucket(self, home: Path, folder: Path) -> None:
        with StorageServer() as storage:
            said = run(
                "training_keras_dagster.py", folder, STORAGE_EMULATOR_HOST=storage.url, KINETIC_BACKEND="local",
                KINETIC_STORE=storage.make_bucket("keras") + "/kinetic", KINETIC_DEPLOYMENT="t",
            )  # fmt: skip
        assert "[host 0] metrics step 40: " in said
        found = re.search(r"^result +an accuracy of ([\d.]+)%; the best so far is number 1, with \1%$", said, re.M)
        assert found is not None and float(found[1]) > 90, said[-2000:]

    def test_a_sweep_shows_a_curve_for_each_trial_and_promotes_the_best_though_one_diverges(
        self, home: Path, folder: Path
    ) -> None:
        said = run("training_keras_sweep.py", folder)
        rows = re.findall(r"^ +(\d+) +(\S+) +([\d.]+)%  ([▁-█]{4}) [\d.]+$", said, re.M)
        assert [(width, rate) for width, rate, *_ in rows] == [("2", "0.02"), ("32", "0.02")]
        assert re.search(r"^ +32  1e\+30  FloatingPointError: at step \d+, loss is ", said, re.M)
        assert f"result   the best so far has a width of 32, a rate of 0.02 and an accuracy of {rows[1][2]}%" in said


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.filterwarnings("ignore:.*run_request_for_partition")  # called by Dagster itself
def test_of_dagsters_weeks_a_bad_one_is_blocked_and_a_worse_one_changes_nothing(
    home: Path, tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the training itself, in whose place the accuracies of three weeks are given."""
    import training_keras_dagster as example

    given = {"2026-01-04": 0.95, "2026-01-11": 0.5, "2026-01-18": 0.93}
    monkeypatch.setattr(steps, "evaluate", lambda trained: {**trained, "accuracy": given[trained["week"]]})
    store = f"{tmp_path}/outputs"

    @dg.asset(name="model", partitions_def=example.weeks)
    def trained(context) -> dict[str, Any]:  # type: ignore[no-untyped-def]
        return {"week": context.partition_key, "model": f"{store}/job-of-{context.partition_key}/model.keras"}

    def made(week: str) -> Any:
        return dg.materialize(
            [trained, example.evaluation, example.best], partition_key=week, raise_on_error=False, instance=instance,
            resources={"kinetic": example.KineticResource(), "io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path))},
        )  # fmt: skip

    with dg.instance_for_test() as instance:
        first, bad, worse = map(made, given)
    chosen = first.output_for_node("best")
    assert (chosen["week"], chosen["number"], chosen["is_new"]) == ("2026-01-04", 1, True)
    assert [check.passed for check in bad.get_asset_check_evaluations()] == [False]
    assert "best" not in [event.asset_key.to_user_string() for event in bad.get_asset_materialization_events()]
    assert worse.output_for_node("best") == {**chosen, "is_new": False}
    assert [path.name for path in Path(store, "promoted").iterdir()] == ["000001.json"]

    schedule = example.defs.resolve_schedule_def("weekly_schedule")
    now = datetime.datetime(2026, 2, 1, 3, tzinfo=datetime.UTC)
    context = dg.build_schedule_context(
        scheduled_execution_time=now, repository_def=example.defs.get_repository_def()
    )  # fmt: skip
    [request] = list(schedule.evaluate_tick(context).run_requests)
    assert request.partition_key == "2026-01-25"


@pytest.fixture(params=["a folder", "a bucket"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "a folder":
        yield f"{tmp_path}/outputs/promoted"
        return
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulated")
        # The sockets of storage clients, which nobody closes: a filter counts for all threads, and until all are gone.
        with warnings.catch_warnings(action="ignore"):
            yield f"{storage.make_bucket('promoted')}/outputs/promoted"
            gc.collect()


def test_of_many_that_are_promoted_at_once_the_best_is_the_last_and_none_comes_after_a_better_one(
    shelf: str, steps: Any
) -> None:
    models = [
        {"model": f"job-{number}", "accuracy": accuracy / 100}
        for number, accuracy in enumerate([71, 74, 72, 75, 73, 70])
    ]

    def promoted(candidate: dict[str, Any]) -> dict[str, Any]:
        return steps.promote(candidate, shelf)

    with ThreadPoolExecutor(len(models)) as at_once:
        answers = list(at_once.map(promoted, models))
    there = [json.loads(steps.get(address)) for address in steps.listed(shelf)]
    assert there[-1] == models[3]
    assert [each["accuracy"] for each in there] == sorted({each["accuracy"] for each in there})
    assert [answer["is_new"] for answer in answers] == [model in there for model in models]
    assert all(answer["accuracy"] >= model["accuracy"] for answer, model in zip(answers, models, strict=True))
    # A retry of the step that has promoted it finds that it has.
    assert promoted(models[3]) == {**models[3], "number": len(there), "is_new": True}
    assert promoted(models[0])["model"] == "job-3"
    assert len(steps.listed(shelf)) == len(there)
    if "://" not in shelf and len(there) > 1:  # somebody who removed an old one keeps nobody waiting
        Path(shelf, "000001.json").unlink()
        assert promoted({"model": "job-6", "accuracy": 0.8})["number"] == len(there) + 1
