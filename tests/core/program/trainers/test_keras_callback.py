"""`KineticCallback` with a real Keras on JAX: killed in mid-epoch, it comes to the same weights, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.program.conftest import Host

Become = Callable[..., Host]
Moments = tuple[Host, dict[str, str], dict[str, str]]
pytestmark = pytest.mark.timeout(900)  # of several programs that import Keras, on a machine that others use

PROGRAM = Path(__file__).with_name("keras_program.py")
ROOT = Path(__file__).parents[3]


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    while started:
        with started.pop() as process:
            process.kill()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def _compiled_once(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All programs here train nearly the same model."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled))


def start(how: dict[str, Any], **environ: str) -> subprocess.Popen[str]:
    started.append(
        subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(how)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **environ},
        )
    )  # fmt: skip
    return started[-1]


def ended(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=400)
    assert process.returncode == code, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1]) if code == 0 else {"err": err}
    return found


def fit(code: int = 0, **how: Any) -> dict[str, Any]:
    return ended(start({"epochs": 3, **how}), code)


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_fit_that_is_killed_in_mid_epoch_resumes_at_its_step_and_comes_to_the_same_weights(
    host: Become, tmp_path: Path
) -> None:
    """With shuffled data, dropout, batch normalization, Adam, and metrics that are means of the whole epoch."""
    there = host()
    fit(-signal.SIGKILL, die=[1, 6])
    assert there.steps("training") == [9, 12, 15]
    host(attempt=2)
    found = fit()
    host(job="job-undisturbed")
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    undisturbed = fit()
    assert found["digest"] == undisturbed["digest"]
    assert found["iterations"] == 30
    assert (found["epoch"], found["history"]) == (undisturbed["epoch"], undisturbed["history"])
    assert found["seen"][:5] == [[1, batch] for batch in range(5, 10)]  # of those passed over nobody hears
    told = [(one["step"], sorted(one["values"])) for one in there.told("m")]
    assert (30, ["loss", "mae"]) in told
    last = there.told("p")[-1]  # with the rate, where that took long enough to have one
    assert (last["done"], last["total"], last["unit"]) == (30.0, 30.0, "step")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"data": "dataset", "options": {"every": "epoch"}}, marks=pytest.mark.turn(8)),
        pytest.param(
            {"per_execution": 4, "validate": True, "options": {"every": "0.2s", "keep": 1}}, marks=pytest.mark.turn(7)
        ),
        pytest.param({"data": "generator", "options": {"every": 3, "stream": True}}, marks=pytest.mark.turn(8)),
        pytest.param({"data": "generator", "options": {"every": "epoch", "stream": True}}, marks=pytest.mark.turn(6)),
    ],
    ids=str,
)  # fmt: skip
def test_however_the_data_come_the_weights_are_the_same(host: Become, tmp_path: Path, how: dict[str, Any]) -> None:
    host()
    undisturbed = start({"epochs": 3, **how}, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))  # at the same time
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    fit(-signal.SIGKILL, die=[2, 4 if "per_execution" in how else 5], **how)
    host(attempt=2)
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    assert fit(**how)["digest"] == ended(undisturbed)["digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "every"),
    [pytest.param(True, "epoch", marks=pytest.mark.turn(6)), pytest.param(False, 3, marks=pytest.mark.turn(8))],
)
def test_what_other_callbacks_know_comes_back_and_of_those_that_cannot_be_kept_a_line_says_so(
    host: Become, tmp_path: Path, first: bool, every: Any
) -> None:
    """Schedules, counts towards an early end and the best file so far, in whichever order the callbacks are."""
    host()
    how = {"epochs": 6, "others first": first, "options": {"every": every}}
    undisturbed = start({**how, "file": str(tmp_path / "whole.weights.h5")})
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    fit(-signal.SIGKILL, die=[3, 5], file=str(tmp_path / "best.weights.h5"), **how)
    host(attempt=2)
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    process = start({**how, "file": str(tmp_path / "best.weights.h5")})
    out, err = process.communicate(timeout=400)
    found, whole = json.loads(out.splitlines()[-1]), ended(undisturbed)
    assert found["history"] == whole["history"]
    assert found["epoch"] == whole["epoch"] == [0, 1, 2, 3, 4, 5]
    assert found["others"] == whole["others"]
    assert found["digest"] == whole["digest"]
    assert weights(tmp_path / "best.weights.h5") == weights(tmp_path / "whole.weights.h5")
    (line,) = (line for line in err.splitlines() if "begun anew" in line)
    assert "anew: Break, Score, Stateful, what Forgets has beside Keras' EarlyStopping. A callback" in line


def weights(file: Path) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, one: found.update({name: one[()].tolist()} if hasattr(one, "shape") else {}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "two", [pytest.param("built", marks=pytest.mark.turn(8)), pytest.param("unbuilt", marks=pytest.mark.turn(8))]
)
def test_every_optimizer_that_a_model_holds_is_kept_also_one_that_is_built_within_the_fit(
    host: Become, tmp_path: Path, two: str
) -> None:
    host()
    undisturbed = start({"epochs": 3, "two": two}, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    fit(-signal.SIGKILL, two=two, die=[1, 6])
    host(attempt=2)
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    assert fit(two=two)["digest"] == ended(undisturbed)["digest"]


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_generator_that_goes_on_from_epoch_to_epoch_is_told_what_it_lacks(host: Become) -> None:
    host()
    process = start({"epochs": 2, "data": "generator"})
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert "the data are a generator, which goes on from epoch to epoch" in err and "stream=True" in err
    process = start({"epochs": 2, "data": "generator", "options": {"stream": True, "name": "other"}})
    assert "the data are a generator" not in process.communicate(timeout=400)[1]


@pytest.mark.slow
@pytest.mark.turn(6)
def test_asked_to_end_it_keeps_its_step_and_nothing_after_the_fit_runs(host: Become, tmp_path: Path) -> None:
    there = host()
    told = fit(143, term=[1, 4], options={"every": None})
    (last,) = there.steps("training")
    assert 14 <= last <= 16
    assert f"ends at step {last}, asked to (preemption); its state is kept" in told["err"]
    host(attempt=2)
    found = fit()
    host()
    os.environ["KINETIC_CHECKPOINT_DIR"] = str(tmp_path / "others")
    assert found["digest"] == fit()["digest"]


@pytest.mark.slow
@pytest.mark.turn(7)
def test_each_fit_of_a_program_has_its_own_checkpoints_and_one_that_ended_is_not_done_again(host: Become) -> None:
    there = host()
    whole = fit(second=True)
    assert there.steps("training")[-1] == 30
    assert there.steps("training-2")[-1] == 20
    host(attempt=2)
    again = fit(second=True)
    assert (again["digest"], again["history"], again["again"]) == (whole["digest"], whole["history"], whole["again"])
    assert again["seen"] == []


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_fit_that_another_callback_ended_early_is_not_taken_up_again_and_more_epochs_go_on(host: Become) -> None:
    host()
    early = fit(stop=[1, 4])
    assert early["iterations"] == 15
    host(attempt=2)
    assert fit()["digest"] == early["digest"]
    os.environ["KINETIC_CHECKPOINT_DIR"] += "-more"
    assert fit()["iterations"] == 30
    more = fit(epochs=4)
    assert (more["iterations"], more["epoch"]) == (40, [0, 1, 2, 3])
    os.environ["KINETIC_CHECKPOINT_DIR"] += "-at-once"
    assert fit(epochs=4)["digest"] == more["digest"]


@pytest.mark.slow
@pytest.mark.turn(7)
def test_another_model_and_a_loss_that_is_no_number_are_told(host: Become) -> None:
    there = host()
    fit(epochs=1)
    told = fit(1, units=8)["err"]
    assert (
        "is of another model:\n  model/0 sequential/dense/kernel is float32[6, 8] here and float32[6, 16] in the"
        in told
    )
    os.environ["KINETIC_CHECKPOINT_DIR"] += "-more"
    told = fit(1, scale=1e30, options={"on_nan": "stop"})["err"]
    assert "FloatingPointError: at step " in told
    assert not list(Path(os.environ["KINETIC_CHECKPOINT_DIR"]).rglob("commit.json"))
    assert there.steps("training") == [3, 6, 9, 10][-3:]


def test_without_keras_it_says_what_to_do(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['keras'] = None\nimport kinetic_orchestration as kinetic\nkinetic.KineticCallback\n"
        "try: kinetic.KineticCallback()\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "add keras to its requirements, or use kinetic.Training" in done.stdout


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_callback_travels_as_an_argument_and_can_be_subclassed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    code = (
        "import pickle, keras, kinetic_orchestration as kinetic\n"
        "class Mine(kinetic.KineticCallback):\n    'own'\n"
        "for made in (kinetic.KineticCallback(every=7), Mine(every=7)):\n"
        "    found = pickle.loads(pickle.dumps(made))\n"
        "    print(type(found).__name__, found._options['every'], isinstance(found, keras.callbacks.Callback))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert done.stdout.splitlines() == ["KineticCallback 7 True", "Mine 7 True"], done.stderr


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    """The output of each case in one attempt's process, and in the next one's."""
    there = Host(tmp_path_factory.mktemp("moments"))

    def said(attempt: int, *names: str) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, str(PROGRAM.with_name("keras_moments.py")), *names],
            text=True, capture_output=True, timeout=400,
            env={**os.environ, **there.environ(attempt), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    first = said(
        1, "failed", "plain", "twice", "stream", "unbuilt", "shares", "taken_back", "passes", "endless", "elsewhere"
    )
    return there, first, said(2, "memory", "plain", "validated", "passes")


@pytest.mark.slow
@pytest.mark.turn(7)
def test_after_a_fit_that_had_ended_already_the_next_one_begins_where_it_is_told_to(moments: Moments) -> None:
    _, first, second = moments
    assert (first["plain"], second["plain"]) == ("3", "3")


@pytest.mark.slow
@pytest.mark.turn(8)
def test_one_callback_with_a_name_in_two_fits_trains_both(moments: Moments) -> None:
    there, first, _ = moments
    assert first["twice"] == "2 2"
    assert (there.steps("mine")[-1], there.steps("mine-2")[-1]) == (4, 4)


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_stream_on_torch_is_refused_before_anything_was_trained(moments: Moments) -> None:
    there, first, _ = moments
    assert "give the data an end" in first["stream"]
    assert not (there.checkpoints / "stream").exists()


@pytest.mark.slow
@pytest.mark.turn(7)
def test_batches_that_are_no_share_of_the_global_one_are_refused_before_the_first_step(moments: Moments) -> None:
    there, first, _ = moments
    assert (
        "the batches of fit have 8 samples, and global batch 16 = 1 host × 16: give fit batch_size=" in first["shares"]
    )
    assert not (there.checkpoints / "shares").exists()


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_model_that_cannot_be_built_before_its_first_step_is_refused_with_what_to_do(moments: Moments) -> None:
    there, first, _ = moments
    assert "call it on a batch before fit" in first["unbuilt"]
    assert not (there.checkpoints / "unbuilt").exists()


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_fit_that_an_exception_ended_leaves_nobody_who_listens(moments: Moments) -> None:
    assert moments[1]["failed"].split() == ["True", "0"] * 2


@pytest.mark.slow
@pytest.mark.turn(7)
def test_batches_that_are_passed_over_are_a_part_of_the_restoration_and_no_compilation(moments: Moments) -> None:
    there, first, second = moments
    assert (first["passes"], second["passes"]) == ("fails", "10")
    steps, _, restores = [one["spent"][2:5] for one in there.told("t") if one["name"] == "passes"][-1]
    assert restores >= 7 * 0.2, "seven batches took so long"
    assert steps >= 2 * 0.2, "and so did those that were trained on"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_of_all_data_that_go_on_from_epoch_to_epoch_a_line_says_what_they_lack(moments: Moments) -> None:
    said = moments[1]["endless"].split("; ")
    assert said[:2] == [
        f"the data are {what} from epoch to epoch, and what is resumed in a later epoch would see other batches: give {more}"
        for what, more in (
            ("without an end or a known length, and with steps_per_epoch go on", "KineticCallback stream=True"),
            ("4 batches, which with steps_per_epoch=3 go on", "data that begin anew in each, without steps_per_epoch"),
        )
    ]
    assert said[2:] == ["none"] * 3, "of those that begin anew, and with stream=True"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_an_optimizer_for_what_the_model_does_not_have_is_refused_at_a_checkpoint(moments: Moments) -> None:
    said = moments[1]["elsewhere"]
    assert said.startswith("the optimizer other made its variables within this fit, for some that the model does not")


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_notice_is_heard_within_a_validation_and_the_next_epoch_is_the_next(moments: Moments) -> None:
    there, first, second = moments
    assert first["taken_back"] == "2 True"
    assert there.steps("v")[0] == 2
    assert second["validated"] == "[1]"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_model_is_restored_in_place_and_is_not_in_memory_twice(moments: Moments) -> None:
    more, _, values = moments[2]["memory"].partition(" ")
    assert json.loads(values) == [1.0] * 10
    assert float(more) < 0.9  # a few layers, which are freed when Python comes to it; a second copy is 1, and more
