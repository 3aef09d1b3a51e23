"""A search: Optuna chooses, real jobs train, bad ones end early, and whoever dies is followed by others."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.steps.searches import trials as rules
from kinetic_orchestration.api.steps.searches.driver import Driver, Terms
from kinetic_orchestration.api.steps.searches.studies import study_of as study_of_optuna
from kinetic_orchestration.api.steps.searches.trials import COMPLETE, DRIVER, FAIL, JOB, PRUNED
from kinetic_orchestration.errors import JobCancelled, KineticError, SearchFailed, UsageError
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.protocol.system import processes
from tests.core.api.steps import searching
from tests.support.waits import wait_until

SPACE = {"lr": optuna.distributions.FloatDistribution(0.0, 1000.0)}
ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.usefixtures("shared_home")


@kinetic.run(accelerator="cpu")
def train(lr: float) -> dict[str, float]:
    """Raise above 100, and diverge above 1: such a trial never ends by itself."""
    if lr > 100:
        raise ArithmeticError(f"a learning rate of {lr:g} is none")
    host = kinetic.current()
    host.log_metrics(step=0, loss=1.0)
    host.log_metrics(step=1, loss=math.nan if lr == 13 else lr)
    while lr > 1:
        time.sleep(0.02)
    return {"loss": lr, "accuracy": 1 - lr}


def study_of(*rates: float, **options: Any) -> Any:
    """Return a study whose first trials have these rates."""
    study = optuna.create_study(study_name="rates", pruner=optuna.pruners.ThresholdPruner(upper=10.0), **options)
    for rate in rates:
        study.enqueue_trial({"lr": rate})
    return study


def search(study: Any, trials: int, **options: Any) -> kinetic.SearchResult:
    terms = {"space": SPACE, "trials": trials, "metric": "loss", "max_concurrent": 2, **options}
    return kinetic.search(train, study, **terms)


def test_bad_trials_end_early_and_fail_alone_and_the_best_is_returned() -> None:
    study, told = study_of(0.5, 20.0, 13.0, 200.0, 0.25), list[kinetic.SearchTrial]()
    result = search(study, 5, on_trial=told.append)
    assert (result.parameters, result.value, result.best.number) == ({"lr": 0.25}, 0.25, 4)
    assert [one.state for one in result.trials] == [COMPLETE, PRUNED, FAIL, FAIL, COMPLETE]
    assert [one.value for one in result.trials] == [0.5, 20.0, None, None, 0.25]
    said = ["", "pruned at step 1, with loss 20", "loss is not a number at step 1"]
    said += ["ArithmeticError: a learning rate of 200 is none", ""]
    assert [one.why.partition("\n")[0] for one in result.trials] == said
    assert sorted(told, key=lambda one: one.number) == list(result.trials)
    assert [one.state.name for one in study.trials] == [one.state for one in result.trials]
    assert study.trials[1].intermediate_values == {0: 1.0, 1: 20.0}
    pruned = kinetic.attach(result.trials[1].job_id)
    assert pruned.status() is JobStatus.CANCELLED
    assert pruned.origin == {"orchestrator": "search", "run": "rates", "trial": "1"}
    with pytest.raises(JobCancelled, match="search rates, trial 1: pruned at step 1, with loss 20"):
        pruned.result()
    assert kinetic.attach(result.job_id).result() == {"loss": 0.25, "accuracy": 0.75}


def test_a_search_in_which_all_fail_ends_with_the_first_error() -> None:
    study = study_of(200.0, 300.0, 400.0, 500.0)
    with pytest.raises(SearchFailed, match=r"none of 2 trials is complete \(trial 0: .* 200 is none") as raised:
        search(study, 4, max_concurrent=1, patience=2)
    assert isinstance(raised.value.__cause__, ArithmeticError)
    assert "200 is none" in str(raised.value.__cause__)


def test_a_result_without_a_number_ends_the_search_which_goes_on_without_another_training() -> None:
    study = study_of(0.5)
    with pytest.raises(UsageError, match="or a dict with the number 'missing'"):
        search(study, 1, value="missing")
    (before,) = study.trials
    assert before.state.name == "RUNNING"
    result = search(study, 1, value=lambda found: found["accuracy"] * 10)
    assert (result.value, result.job_id) == (5.0, before.user_attrs[JOB])
    assert len(kinetic.attach(result.job_id).history()) == 1


def test_what_is_no_search_is_refused_before_a_trial_is_asked_for() -> None:
    study = study_of()
    two = optuna.create_study(directions=["minimize", "minimize"])
    keyed = kinetic.run(accelerator="cpu", key="one")(train.__kinetic_function__)
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (train, study, {"space": None}, "space= has the distribution of each parameter"),
        (train, study, {"space": {"lr": (0, 1)}}, "space= has the distribution of each parameter"),
        (train, two, {}, "has 2 objectives"),
        (train, object(), {}, "space= is for a study of Optuna"),
        (train, object(), {"space": None}, "study is a object: give a study of Optuna"),
        (train, study, {"trials": 0}, "trials is 0"),
        (train, study, {"max_concurrent": True}, "max_concurrent is True"),
        (train, study, {"keep": "soon"}, "keep"),
        (train.__kinetic_function__, study, {}, "decorated with kinetic.run"),
        (keyed, study, {}, "key= names one job"),
    ]
    for function, given, options, said in cases:
        with pytest.raises(UsageError, match=said):
            kinetic.search(function, given, **{"space": SPACE, "trials": 1, **options})
    assert study.trials == []


def test_a_job_that_cannot_be_submitted_ends_the_search_and_its_trial(tmp_path: Path) -> None:
    study = study_of(0.5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'rate'"):
        search(study, 1, fixed={"rate": 1})
    assert [one.state.name for one in study.trials] == ["WAITING"]  # it was not asked for
    lost = kinetic.run(accelerator="cpu", requirements=str(tmp_path / "none.txt"))(train.__kinetic_function__)
    with pytest.raises(KineticError, match=r"none\.txt"):
        kinetic.search(lost, study, space=SPACE, trials=1)
    (left,) = study.trials
    assert left.state.name == FAIL and "none.txt" in left.user_attrs["kinetic_why"]


def test_a_slice_that_cannot_be_released_costs_no_result(shared_home: Path) -> None:
    """The store fails after the last trial: no folder can be read that is a link to itself."""
    slices = shared_home / "store" / "local" / "slices"
    said = r"search rates: the slices .* are not released: Cannot list slices/ .* deleted once its keep= is over"
    try:
        with pytest.warns(UserWarning, match=said):
            result = search(study_of(0.5), 1, keep="10m", on_trial=lambda _: slices.symlink_to(slices))
    finally:
        slices.unlink()
    assert (result.value, result.counts()) == (0.5, {COMPLETE: 1})


@pytest.fixture(params=["WEST+10", "EAST-13"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Returns a block in which this process has another time zone."""

    @contextlib.contextmanager
    def there() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", request.param)
            time.tzset()
            yield
        time.tzset()

    yield there
    time.tzset()


def test_a_trial_that_a_driver_elsewhere_has_just_asked_for_is_its_own_for_a_minute(
    elsewhere: Callable[[], contextlib.AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna notes when a trial was asked for by the clock and in the time zone of whoever asked, without saying which."""
    study = study_of()
    with elsewhere():
        other = study.ask(SPACE).number
    terms = Terms(trials=3, max_concurrent=2, metric=None, value=None, patience=3, releases=False, on_trial=None)
    driver = Driver(lambda _: pytest.fail("no job is to run"), study_of_optuna(study, SPACE, None), terms)
    mine = driver._next()
    assert mine is not None and mine.number != other
    monkeypatch.setattr(rules, "UNMARKED", 0.0)
    left = driver._next()
    assert left is not None and left.number == other


def test_a_trial_whose_driver_died_before_its_job_is_gone_on_with_at_once() -> None:
    study = study_of()
    other = study.ask(SPACE)
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        there = processes.find(gone.pid)
        assert there is not None
        other.set_user_attr(DRIVER, f"{processes.machine()} {gone.pid} {there.started}")
        terms = Terms(trials=3, max_concurrent=2, metric=None, value=None, patience=3, releases=False, on_trial=None)
        driver = Driver(lambda _: pytest.fail("no job is to run"), study_of_optuna(study, SPACE, None), terms)
        mine = driver._next()
        assert mine is not None and mine.number != other.number, "its driver lives"
    finally:
        gone.communicate()
    left = driver._next()
    assert left is not None and left.number == other.number


# ---- drivers that die, and several ---------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Any]:
    """Start drivers, processes of their own."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.core.api.steps.searching", str(tmp_path / "journal"), str(tmp_path)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        started.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
        return started[-1]

    yield start
    (tmp_path / "go").touch()
    for one in started:
        one.kill()
        one.communicate()


def trained(folder: Path) -> list[str]:
    file = folder / "trained"
    return file.read_text().split() if file.exists() else []


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=120)
    return said


@pytest.mark.slow
def test_after_a_driver_was_killed_two_others_go_on_and_nothing_is_trained_twice(driver: Any, tmp_path: Path) -> None:
    first = driver()
    wait_until(lambda: len(trained(tmp_path)) == 2, "two trials run")
    first.kill()
    first.wait()
    left = searching.study_in(str(tmp_path / "journal")).trials
    assert [one.state.name for one in left] == ["RUNNING", "RUNNING"]
    assert sorted(one.user_attrs[JOB] for one in left) == sorted(trained(tmp_path))
    other = driver()
    wait_until(lambda: mark(tmp_path, 0) != left[0].user_attrs[DRIVER], "another driver goes on")
    (tmp_path / "go").touch()
    result = searching.run(str(tmp_path / "journal"), str(tmp_path))
    assert other.wait(120) == 0, ended(other)
    assert [one.state for one in result.trials] == [COMPLETE] * searching.TRIALS
    assert [one.job_id for one in result.trials[:2]] == [one.user_attrs[JOB] for one in left]
    assert sorted(one.job_id for one in result.trials) == sorted(trained(tmp_path))
    assert result.value == min(one.value or 0.0 for one in result.trials)


def mark(folder: Path, number: int) -> str:
    return str(searching.study_in(str(folder / "journal")).trials[number].user_attrs[DRIVER])


@pytest.mark.slow
def test_ctrl_c_cancels_the_trials_that_run(driver: Any, tmp_path: Path) -> None:
    process = driver()
    wait_until(lambda: len(trained(tmp_path)) == 2, "two trials run")
    process.send_signal(signal.SIGINT)
    said = ended(process)
    assert "cancelling 2 trials of search shared" in said and "KeyboardInterrupt" in said, said
    assert [kinetic.attach(job).status() for job in trained(tmp_path)] == [JobStatus.CANCELLED] * 2
    found = searching.study_in(str(tmp_path / "journal")).trials
    assert [one.state.name for one in found] == [FAIL, FAIL]
    assert all("interrupted by Ctrl-C" in one.user_attrs["kinetic_why"] for one in found)
