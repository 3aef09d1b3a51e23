"""The three calls of a plain loop on one host: what is kept, restored, told, refused, and how a training ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointDiffers, CheckpointError, UsageError
from kinetic_orchestration.plan.hardware.global_batch import GlobalBatch
from kinetic_orchestration.program import loop
from kinetic_orchestration.program.checkpoints import background, manager, trees
from kinetic_orchestration.protocol import wire
from tests.core.program.conftest import Host, on_a_small_disk
from tests.support.bucket import unsummed

Become = Callable[..., Host]


def state(value: float = 0.0) -> dict[str, Any]:
    return {"w": np.full((3, 4), value), "n": 0}


def train(steps: int, *, until: int | None = None, **options: Any) -> tuple[dict[str, Any], int]:
    """Adds the number of each step; the state it ends with and the step it began at. `until`: as if it died there."""
    with kinetic.Training(**{"every": 5, "name": "t", "total": steps, **options}) as training:
        now, begun = training.restore(state())
        for number in range(begun, steps):
            now = {"w": now["w"] + number, "n": now["n"] + 1}
            training.step(number + 1, now, loss=1 / (number + 1))
            if until == number + 1:
                return now, begun
        training.finish(now)
    return now, begun


def test_a_training_that_died_goes_on_at_its_checkpoint_and_comes_to_the_same_end(host: Become) -> None:
    there = host()
    train(23, until=13)
    host(attempt=2)
    found, begun = train(23)
    assert (begun, found["n"], float(found["w"][0, 0])) == (10, 23, float(sum(range(23))))
    assert there.steps() == [15, 20, 23]


def test_a_training_that_is_finished_is_not_done_again(host: Become) -> None:
    host()
    train(7)
    host(attempt=2, job="job-of-the-next-generation")
    assert train(7)[1] == 7


def test_without_a_checkpoint_the_given_state_is_used_as_it_is(host: Become) -> None:
    host()
    with kinetic.Training(name="t") as training:
        given = state(4.0)
        found, done = training.restore(given)
        assert (found is given, done) == (True, 0)


def test_off_a_host_a_training_runs_and_leaves_nothing(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with kinetic.Training(every=1) as training:
        assert training.restore(state())[1] == 0
        for number in range(5):
            training.step(number + 1, state(), loss=0.5)
        assert signal.getsignal(signal.SIGTERM) is handler
        training.finish(state())
        assert list(Path(training._host.checkpoint_dir).iterdir()) == []


def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step() -> None:
    with kinetic.Training() as training, pytest.raises(TypeError, match=r"odd is a builtins\.object, which is neither"):
        training.restore({"odd": object()})


def test_the_nth_training_of_a_program_finds_the_nth_ones_checkpoints(host: Become) -> None:
    def program(first: int, second: int) -> list[int]:
        from kinetic_orchestration.program import loop

        loop._named.clear()  # as a new process begins
        return [train(first, name="")[1], train(second, name="")[1]]

    host()
    assert program(6, 8) == [0, 0]
    host(attempt=2)
    assert program(6, 12) == [6, 8]


@pytest.mark.parametrize("harm", ["cut", "flipped", "missing", "no commit", "commit cut"])
def test_a_torn_checkpoint_is_never_restored(host: Become, harm: str, capfd: pytest.CaptureFixture[str]) -> None:
    there = host()
    train(12, until=12)
    newest = next((there.checkpoints / "t").glob("step-*10-*"))
    part, commit = newest / "part-00000.safetensors", newest / "commit.json"
    if harm in ("cut", "flipped"):
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data if harm == "flipped" else data[:-1])
    elif harm == "missing":
        part.unlink()
    elif harm == "no commit":
        commit.unlink()
    else:
        commit.write_bytes(commit.read_bytes()[:40])
    host(attempt=2)
    assert train(20)[1] == 5
    told = capfd.readouterr().err
    assert ("step-000000000010-0123456789abcdef-1 is not restored: " in told) is (harm != "no commit")
    assert "restored the checkpoint of step 5" in told


def test_what_a_killed_writer_left_is_removed_and_a_zombie_writes_beside_its_successor(host: Become) -> None:
    there = host()
    old = kinetic.Training(every=5, name="t")
    now, _ = old.restore(state())
    old.step(5, now)
    (there.checkpoints / "t" / ".tmp" / "part-0123456789abcdef-1-00000").write_bytes(b"half")
    host(attempt=2)
    new = kinetic.Training(every=5, name="t")
    assert new.restore(state())[1] == 5
    assert list((there.checkpoints / "t" / ".tmp").iterdir()) == []
    new.step(10, state(2.0))
    old.step(10, state(1.0))  # it wakes up late
    new.step(15, state(3.0))
    assert there.steps() == [5, 10, 15] or there.steps() == [10, 10, 15]
    host(attempt=3)
    with kinetic.Training(name="t") as last:
        found, done = last.restore(state())
        assert (done, found["w"][0, 0]) == (15, 3.0)
    old.close()
    new.close()


def test_only_the_newest_are_kept(host: Become) -> None:
    there = host()
    train(50, keep=2, until=50)
    assert there.steps() == [45, 50]


def test_time_is_a_pace_too(host: Become) -> None:
    there = host()
    began = time.monotonic()
    with kinetic.Training(every="0.2s", name="t", keep=99) as training:
        now, _ = training.restore(state())
        for number in range(60):
            time.sleep(0.01)
            training.step(number + 1, now)
        elapsed = time.monotonic() - began
    assert 2 <= len(there.steps()) <= elapsed / 0.2


# ---- what is told ------------------------------------------------------------------------------------------------------


def test_metrics_are_told_at_their_pace_and_progress_with_them(host: Become) -> None:
    there = host()
    train(100, every=None, log_every=10)
    told = there.told("m")
    assert [one["step"] for one in told] == list(range(10, 101, 10))
    assert told[0]["values"]["loss"] == 0.1
    last = there.told("p")[-1]  # with the rate, where that took long enough to have one
    assert (last["done"], last["total"], last["unit"]) == (100.0, 100.0, "step")


def test_metrics_are_not_looked_at_in_their_own_step(host: Become) -> None:
    """A value that is still being computed would make the loop wait for the device."""
    there = host()
    looked: list[int] = []

    class Lazy:
        def __init__(self, step: int) -> None:
            self.step = step

        def __float__(self) -> float:
            looked.append(now)
            return float(self.step)

    now = 0
    with kinetic.Training(every=None, name="t", log_every=3) as training:
        training.restore(state())
        for now in range(1, 10):
            training.step(now, None, loss=Lazy(now))
        training.finish()
    assert looked == [4, 7, 9]
    assert [one["values"]["loss"] for one in there.told("m")] == [3.0, 6.0, 9.0]


def test_a_loss_that_is_no_number_is_reported_and_the_last_good_checkpoint_stays(
    host: Become, capfd: pytest.CaptureFixture[str]
) -> None:
    there = host()
    with kinetic.Training(every=1, keep=1, name="t", log_every=1) as training:
        training.restore(state())
        for number in range(1, 8):
            training.step(number, state(), loss=float("nan") if number > 3 else 1.0)
    assert there.steps() == [3, 7]
    assert capfd.readouterr().err.count("at step 4, loss is nan. The training goes on") == 1


def test_after_numbers_that_are_none_the_next_attempt_goes_on_before_them(
    host: Become, capfd: pytest.CaptureFixture[str]
) -> None:
    """And where the state has none, at the newest one; with nothing else, at what there is."""

    def train(name: str, nan: float, *, first: int = 1) -> int:
        with kinetic.Training(every=1, keep=1, name=name, log_every=1) as training:
            now, begun = training.restore(state())
            for number in range(begun + 1, 8):
                bad = number > 3 or first > 3
                now = state(nan if bad else 1.0)
                training.step(number, now, loss=float("nan") if bad else 1.0)
        return begun

    there = host()
    assert train("t", float("nan")) == 0
    assert there.steps() == [3, 7]
    assert (train("sound", float("inf")), train("only", float("nan"), first=7)) == (0, 0)
    host(attempt=2)
    assert train("t", 2.0) == 3
    assert "is not restored: its state holds NaN; another one is looked for" in capfd.readouterr().err
    assert there.steps() == [3, 7], "the ones before were removed"
    assert (train("sound", 1.0), train("only", 1.0)) == (7, 7)


def test_of_a_state_that_cannot_be_looked_through_in_time_the_worse_is_taken(
    host: Become, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other hosts wait for that look."""

    def train() -> int:
        with kinetic.Training(every=1, keep=1, name="t", log_every=1) as training:
            begun = training.restore(state())[1]
            for number in range(begun + 1, 8):
                training.step(number, state(1.0), loss=float("inf") if number > 3 else 1.0)
        return begun

    host()
    assert train() == 0
    host(attempt=2)
    monkeypatch.setattr(manager, "PATIENCE", -1.0)
    assert train() == 3
    said = "is not restored: a loss or metric before it was no number, and there was no time to look through its state"
    assert said in capfd.readouterr().err


def test_numbers_that_are_none_in_the_part_of_any_host_are_passed_over(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(until: int) -> list[int]:
        """Train on both hosts, and return their first steps. The second one's own state goes bad at step 4, and the
        loss with it."""
        monkeypatch.setenv("KINETIC_HOST_COUNT", "2")
        trainings = []
        for index in "01":
            monkeypatch.setenv("KINETIC_HOST_INDEX", index)
            trainings.append(kinetic.Training(every=1, keep=1, name="t", log_every=1))

        def loop(index: int) -> int:
            with trainings[index] as training:
                _, done = training.restore(state())
                for number in range(done + 1, until + 1):
                    bad = float("nan") if number > 3 else 1.0
                    training.step(number, state(bad if index else 1.0), loss=bad)
            return done

        with ThreadPoolExecutor(2) as both:
            return list(both.map(loop, range(2)))

    there = host()
    assert train(6) == [0, 0]
    assert there.steps() == [3, 6]
    host(attempt=2)
    assert train(3) == [3, 3]


def test_where_every_checkpoint_is_torn_it_says_that_it_begins_at_0(
    host: Become, capfd: pytest.CaptureFixture[str]
) -> None:
    there = host()
    train(12, until=12)
    for part in (there.checkpoints / "t").glob("step-*/part-*.safetensors"):
        part.write_bytes(b"torn")
    host(attempt=2)
    assert train(12, until=12)[1] == 0
    err = capfd.readouterr().err
    assert err.count("another one is looked for") == 2
    assert f"no whole checkpoint is left in {there.checkpoints}/t: the training begins at step 0" in err


def test_a_training_that_ends_before_its_first_checkpoint_says_that_there_is_none(host: Become) -> None:
    host()
    with (
        kinetic.Training(every=100, name="t", log_every=1, on_nan="stop") as training,
        pytest.raises(FloatingPointError, match="at step 1, loss is nan; there is no checkpoint yet"),
    ):
        training.restore(state())
        for number in (1, 2, 3):
            training.step(number, state(), loss=float("nan"))


def test_a_loss_that_is_no_number_ends_the_training_if_the_user_wants(host: Become) -> None:
    there = host()
    with (
        kinetic.Training(every=1, name="t", log_every=1, on_nan="stop") as training,
        pytest.raises(FloatingPointError, match="at step 4, loss is inf; the newest checkpoint is that of step 3"),
    ):
        training.restore(state())
        for number in range(1, 8):
            training.step(number, state(), loss=float("inf") if number > 3 else 1.0)
    assert there.steps() == [1, 2, 3]


# ---- what is refused ---------------------------------------------------------------------------------------------------


def test_another_model_is_refused_with_what_differs(host: Become) -> None:
    host()
    train(5)
    host(attempt=2)
    with kinetic.Training(name="t") as training, pytest.raises(CheckpointDiffers) as caught:
        training.restore({"w": np.zeros((3, 5), np.float32), "n": 0, "bias": np.zeros(3)})
    assert "w is float32[3, 5] here and float64[3, 4] in the checkpoint" in str(caught.value)
    assert "bias, float64[3], is only here" in str(caught.value)


def test_another_state_of_plain_values_is_refused(host: Become) -> None:
    host()
    train(5)
    host(attempt=2)
    with kinetic.Training(name="t") as training, pytest.raises(CheckpointDiffers, match="m, n is on one side only"):
        training.restore({"w": state()["w"], "m": 0})


def test_another_topology_is_refused_and_can_be_asked_for(host: Become) -> None:
    import jax  # noqa: F401 - which tells of devices

    there = host()
    train(5)
    (path,) = (there.checkpoints / "t").glob("step-*/commit.json")
    record = unsummed(path.read_bytes())
    path.write_text(json.dumps({**record, "hosts": 1, "devices": 16}))
    host(attempt=2)
    with kinetic.Training(name="t") as training, pytest.raises(CheckpointDiffers) as caught:
        training.restore(state())
    assert "was written by 1 host with 16 devices, and this is 1 host with " in str(caught.value)
    assert "reshard=True" in str(caught.value)
    assert train(7, reshard=True)[1] == 5


# ---- on another number of hosts ----------------------------------------------------------------------------------------


def sampled(until: int, **options: Any) -> list[int]:
    """This host's samples, from where it goes on; and no more is counted than they are."""
    with kinetic.Training(**{"every": 1, "name": "t", **options}) as training:
        now, begun = training.restore(state())
        first, seen = training.samples, list[int]()
        for number in range(begun, until):
            seen += [sample for part in training.indices() for sample in part]
            training.step(number + 1, now)
        assert training.samples == first + len(seen)
    return seen


def test_samples_are_counted_on_in_one_order_also_by_another_batch_and_from_an_older_checkpoint(
    host: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    there = host()
    assert sampled(2, global_batch=6, per_host=2) == list(range(12))
    assert "t: global batch 6 = 1 host × 2 × 3 steps of accumulation" in capsys.readouterr().err
    host(attempt=2)
    assert sampled(4, global_batch=8) == list(range(12, 28))
    told = capsys.readouterr().err
    assert "the global batch was 6 and is 8: the data go on at sample 12" in told
    path = max((there.checkpoints / "t").glob("step-*/commit.json"))
    record = unsummed(path.read_bytes())
    assert (record.pop("samples"), record.pop("batch")) == (28, 8)
    path.write_text(json.dumps(record))  # as an older version wrote it
    host(attempt=3)
    assert sampled(5, global_batch=8) == list(range(32, 40))


def test_rows_are_read_again_when_they_end(host: Become) -> None:
    host()
    with kinetic.Training(every=None, global_batch=4) as training:
        training.restore(state())
        training.step(2, state())
        assert training.indices(10) == [[8, 9, 0, 1]]


def test_a_batch_is_told_by_the_job_and_refused_before_the_first_step(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    host()
    monkeypatch.setenv("KINETIC_HOST_COUNT", "4")
    monkeypatch.setenv("KINETIC_HOST_INDEX", "1")
    monkeypatch.setenv("KINETIC_GLOBAL_BATCH", "8")
    monkeypatch.setenv("KINETIC_RESHARD", "1")
    training = kinetic.Training()
    assert (training.batch, training._reshard) == (GlobalBatch(8, 4, 1), True)
    assert training.indices() == [[2, 3]]
    assert kinetic.Training(global_batch=0, reshard=False).batch is None
    with pytest.raises(UsageError, match=r"global_batch=6 cannot be divided .*among 1, 2, 3, 6 hosts"):
        kinetic.Training(global_batch=6)
    monkeypatch.delenv("KINETIC_GLOBAL_BATCH")
    with pytest.raises(UsageError, match="give global_batch= as well"):
        kinetic.Training(per_host=2)
    with pytest.raises(UsageError, match="give Training, or run, a global_batch="):
        kinetic.Training().indices()


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(host: Become) -> None:
    there = host()
    train(5)
    (path,) = (there.checkpoints / "t").glob("step-*/commit.json")
    path.write_text(json.dumps({**unsummed(path.read_bytes()), "wire": 99}))
    host(attempt=2)
    with pytest.raises(wire.Newer, match="upgrade kinetic-orchestration"):
        train(5)


def test_what_is_kept_is_looked_at_first_whatever_the_pace_of_the_metrics(host: Become) -> None:
    there = host()
    with kinetic.Training(every=2, name="t", on_nan="stop") as training:
        training.restore(state())
        training.step(1, state(), loss=1.0)
        training.step(2, state(), loss=1.0)
        training.step(3, state(), loss=float("nan"))
        with pytest.raises(FloatingPointError, match="at step 4, loss is nan; the newest checkpoint is that of step 2"):
            training.step(4, state(), loss=float("nan"))
    assert there.steps() == [2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"every": 0}, "every is 0"), ({"every": "100"}, "give 100 for steps, or '100s'"), ({"every": "soon"}, "'soon'"),
        ({"every": True}, "every is True"), ({"keep": 0}, "keep is 0"), ({"on_nan": "ignore"}, 'on_nan is \'ignore\': give "warn"'),
        ({"on_full_disk": 1}, "on_full_disk is 1"), ({"every": "0s"}, "every is '0s'"), ({"every": 0.5}, "every is 0.5"),
        ({"keep": "3"}, "keep is '3'"), ({"name": "../x"}, "name is '../x'"), ({"hosts": 0}, "hosts is 0"),
        ({"log_every": -3}, "log_every is -3"), ({"total": -1}, "total is -1"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        kinetic.Training(**options)
    assert told in str(caught.value)


def test_a_job_of_one_host_cannot_train_on_two_and_numbers_may_be_numpys(host: Become) -> None:
    host()
    with pytest.raises(UsageError, match="hosts is 2, and this job has 1"):
        kinetic.Training(hosts=2)
    assert kinetic.Training(every=np.int64(5), total=1e3)._steps == 5  # type: ignore[arg-type]


def test_where_nothing_was_told_a_state_is_as_finite_as_before(host: Become) -> None:
    there = host()
    with kinetic.Training(every=1, keep=1, name="t") as training:
        training.restore(state())
        training.report(1, {"loss": 1.0})
        training.step(1, state())
        for number in (2, 3):
            training.report(number, {"loss": float("nan")})
            training.step(number, state())
    assert there.steps() == [1, 3]


@pytest.mark.parametrize("moment", ["commit.json", ".safetensors"])
def test_what_another_writer_removes_while_it_is_restored_was_removed_for_a_newer_one(
    host: Become, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    there = host()
    zombie = kinetic.Training(every=5, keep=1, name="t")
    zombie.restore(state())
    zombie.step(5, state(5.0))
    host(attempt=2)
    opened = os.open

    def late(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).endswith(moment) and there.steps() == [5]:
            zombie.step(10, state(10.0))
            assert there.steps() == [10]
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", late)
    with kinetic.Training(name="t") as training:
        found, done = training.restore(state())
        assert (done, found["w"][0, 0]) == (10, 10.0)
    zombie.close()


def test_a_step_that_is_done_twice_costs_no_checkpoint(host: Become, capfd: pytest.CaptureFixture[str]) -> None:
    there = host()
    with kinetic.Training(every=1, name="t") as training:
        training.restore(state())
        for number in (1, 2, 3, 2, 3):  # a loop that has gone back to numbers of its own
            training.step(number, state(number))
        assert there.steps() == [1, 2, 3]
    assert capfd.readouterr().err.count("is there already, of this attempt, and stays") == 2


def test_hosts_that_try_again_in_the_same_program_agree_anew(host: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    host()
    monkeypatch.setenv("KINETIC_HOST_COUNT", "2")

    def train(until: int) -> list[int]:
        """Train on both hosts, and return their first steps."""
        trainings = []
        for index in "01":
            monkeypatch.setenv("KINETIC_HOST_INDEX", index)
            trainings.append(kinetic.Training(every=2, name="t"))

        def loop(training: kinetic.Training) -> int:
            _, done = training.restore(state())
            for number in range(done, until):
                training.step(number + 1, state(float(number)))
            training.close()
            return done

        with ThreadPoolExecutor(2) as both:
            return list(both.map(loop, trainings))

    assert train(5) == [0, 0]
    assert train(7) == [4, 4]
    assert train(7) == [6, 6]


def test_a_checkpoint_that_was_found_torn_takes_no_good_ones_place(host: Become) -> None:
    there = host()
    train(15, until=15)
    part = next((there.checkpoints / "t").glob("step-*15-*")) / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    host(attempt=2)
    train(12, every=1, keep=2, until=12)
    assert there.steps() == [11, 12]


def test_nothing_is_given_back_in_place_before_all_of_it_was_found(host: Become) -> None:
    there = host()
    data = {"a": np.random.default_rng(1), "w": np.zeros(3)}
    with kinetic.Training(every=1, name="t") as training:
        training.restore(data)
        training.step(1, data)
    (commit,) = (there.checkpoints / "t").glob("step-*/commit.json")
    record = json.loads(commit.read_bytes())
    commit.write_text(json.dumps({**record, "leaves": {"w": ["float64", [4]]}}))  # of which the part has three
    host(attempt=2)
    here = {"a": np.random.default_rng(2), "w": np.zeros(4)}
    with kinetic.Training(name="t") as training:
        assert training.restore(here)[1] == 0
    assert here["a"].random() == np.random.default_rng(2).random()


def test_a_large_part_is_on_the_disk_before_its_commit(host: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    there = host()
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        fsync(file)
        committed = any((there.checkpoints / "t").glob("step-*/commit.json"))
        synced.append((os.fstat(file).st_size, committed))

    monkeypatch.setattr(os, "fsync", watched)
    with kinetic.Training(every=1, name="t") as training:
        training.step(1, {"w": np.zeros(17 << 20, np.uint8)})
    assert [committed for size, committed in synced if size > 17 << 20] == [False]


def test_a_second_training_of_one_name_does_not_find_the_end_of_the_first(host: Become) -> None:
    there = host()
    assert [train(6)[1], train(8)[1]] == [0, 0]
    assert (there.steps()[-1], there.steps("t-2")[-1]) == (6, 8)
    host(attempt=2)
    assert [train(6)[1], train(8)[1], train(7)[1]] == [6, 8, 0]
    assert there.steps("t-3")[-1] == 7
    host(attempt=3)
    train(9, until=8)  # tried again in the same program, it goes on
    assert train(9)[1] == 6


def test_after_an_exception_nobody_listens_any_more(host: Become) -> None:
    host()
    handler = signal.getsignal(signal.SIGTERM)

    def loop() -> None:
        training = kinetic.Training(every=5, name="t")
        training.restore(state())
        raise KeyError("no data")

    with contextlib.suppress(KeyError):
        loop()
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) == handler
    for thread in threading.enumerate():
        if thread.name == "kinetic-notice":
            thread.join(5)
            assert not thread.is_alive()


def test_a_writer_that_has_a_successor_removes_nothing(host: Become) -> None:
    there = host()
    old = kinetic.Training(every=5, name="t")
    now, _ = old.restore(state())
    ours = there.checkpoints / "t" / "step-000000000003-0123456789abcdef-2"
    ours.mkdir()
    (ours / "part-00000.safetensors").touch()  # on its way
    half = there.checkpoints / "t" / ".tmp" / "part-0123456789abcdef-2-00000"
    half.parent.mkdir(exist_ok=True)
    half.touch()
    old.step(5, now)
    old.step(10, now)
    old._checkpoints.store.sweep()  # type: ignore[union-attr]
    assert (ours / "part-00000.safetensors").exists()
    assert half.exists()
    old.close()


# ---- in a process of its own -------------------------------------------------------------------------------------------

LOOP = """
    import os, resource, signal, sys, time
    import kinetic_orchestration as kinetic
    {before}
    with kinetic.Training(every={every}, name="t", {options}) as training:
        state, begun = training.restore({{"w": list(map(float, range(4))), "big": bytes({size})}})
        for number in range(begun, {steps}):
            time.sleep({pause})
            state = {{"w": [value + number for value in state["w"]], "big": state["big"]}}
            training.step(number + 1, state)
            print(number + 1, flush=True)
        training.finish(state)
    print("end", begun, state["w"], flush=True)
    {after}
"""


def program(before: str = "", after: str = "", **given: Any) -> subprocess.Popen[str]:
    words = {"every": 5, "options": "", "steps": 20, "pause": 0, "size": 8, **given}
    code = textwrap.dedent(LOOP).format(before=before, after=after, **words)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip


def line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for got in process.stdout:
        if got.strip() == wanted:
            return
    raise AssertionError(f"it never said {wanted}")


@pytest.mark.parametrize(("choice", "code"), [("warn", 0), ("stop", 1)])
def test_on_a_full_disk_the_training_goes_on_or_ends_and_the_last_good_checkpoint_stays(
    host: Become, choice: str, code: int
) -> None:
    """A limit of the file size acts as a full disk, after the second checkpoint."""
    there = host()
    full = "number >= 12 and resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))"
    process = program(before=f"kinetic.Training.fill = staticmethod(lambda number: {full})", size=50_000,
                      options=f"on_full_disk={choice!r}", pause="0 if kinetic.Training.fill(number) else 0")  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert there.steps() == [5, 10]
    assert "the checkpoint of step 15 could not be written: " in err
    assert "the newest one is that of step 10" in err
    assert ("end 0" in out) is (choice == "warn")
    if choice == "stop":
        assert "CheckpointError" in err and "Make room there" in err
    assert [path.name for path in (there.checkpoints / "t" / ".tmp").iterdir()] == []
    host(attempt=2)
    process = program(size=50_000)
    assert process.communicate(timeout=60)[0].splitlines()[-1].startswith("end 10 ")


FULL = """
import contextlib, os, sys
from pathlib import Path
import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError

filling = Path(sys.argv[1], "filling")
os.environ["KINETIC_CHECKPOINT_DIR"], os.environ["KINETIC_EVENTS"] = f"{sys.argv[1]}/checkpoints", f"{sys.argv[1]}/events"

def train(choice, full=True):
    with kinetic.Training(every=5, name=choice, keep=1, on_full_disk=choice, log_every=1) as training:
        state, begun = training.restore({"sum": 0, "big": bytes(300_000)})
        for number in range(begun, 20):
            if full and number == 12:  # nothing more fits, to the last byte
                with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
            if number == 17:
                filling.unlink(missing_ok=True)
            state = {**state, "sum": state["sum"] + number}
            training.step(number + 1, state, **{"long " * 700: 1.0})
    return begun, state["sum"]

def kept(name):
    return [path.parent.name.split("-")[1].lstrip("0") for path in Path(sys.argv[1]).glob(f"checkpoints/{name}/*/commit.json")]

print(*train("warn"), *kept("warn"))
try:
    train("stop")
except CheckpointError as error:
    print(error)
print(*kept("stop"))
filling.unlink()
print(*train("stop", full=False))
"""


def test_a_disk_that_is_full_to_the_last_byte_and_has_room_again(host: Become, tmp_path: Path) -> None:
    """The one training goes on without, and keeps the next one; the other ends, and goes on from the one before."""
    host()
    out, err = on_a_small_disk(FULL, tmp_path)
    warned, stopped, left, again = out.splitlines()
    assert (warned, left, again) == ("0 190 20", "10", "10 190")
    assert "the checkpoint of step 15 could not be written: the disk is full" in stopped
    assert "the newest one is that of step 10. Make room there" in stopped
    assert "warn: the checkpoint of step 15 could not be written: the disk is full" in err


NARROW = """
import os, sys
from pathlib import Path
import kinetic_orchestration as kinetic

os.environ["KINETIC_CHECKPOINT_DIR"], os.environ["KINETIC_EVENTS"] = f"{sys.argv[1]}/checkpoints", f"{sys.argv[1]}/events"
with kinetic.Training(every=1, name="t", keep=3) as training:
    training.restore({"big": bytes(450_000)})
    for number in range(1, 9):
        training.step(number, {"big": bytes(450_000)})
    print(*sorted(int(path.parent.name.split("-")[1]) for path in Path(sys.argv[1]).glob("checkpoints/t/*/commit.json")))
"""


def test_a_disk_without_room_for_one_more_than_are_kept_keeps_the_newest(host: Become, tmp_path: Path) -> None:
    host()
    out, err = on_a_small_disk(NARROW, tmp_path)
    assert out.split() == ["6", "7", "8"]
    assert err.count("there is no room for another checkpoint beside 3: the oldest of them was removed first") == 1
    assert "could not be written" not in err


def test_a_sigterm_without_a_word_is_a_preemption(host: Become) -> None:
    there = host()
    process = program(every="None", steps=10_000, pause=0.005)
    line(process, "7")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    (last,) = there.steps()
    assert (process.returncode, last > 7) == (143, True)
    assert f"ends at step {last}, asked to (preemption); its state is kept" in err


@pytest.mark.parametrize(
    ("cause", "kept"), [(wire.PREEMPTION, True), (wire.DEADLINE, True), (wire.CANCELLED, False), (wire.USER, False)]
)
def test_a_notice_says_whether_anything_is_worth_keeping(host: Become, cause: str, kept: bool) -> None:
    there = host()
    process = program(every="None", steps=10_000, pause=0.005)
    line(process, "7")
    there.ask_to_end(cause)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert bool(there.steps()) is kept
    assert f"asked to ({cause})" in err


def test_the_programs_own_handler_is_called_too_and_is_back_in_its_place_afterwards(host: Become) -> None:
    there = host()
    before = "signal.signal(signal.SIGTERM, mine := lambda *_: os.write(1, b'mine\\n'))"
    process = program(before=before, every="None", steps=10_000, pause=0.005)
    line(process, "7")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "mine\n" in out
    assert (process.returncode, len(there.steps())) == (143, 1)
    host(attempt=2)
    process = program(
        before=before, after="print(signal.getsignal(signal.SIGTERM) is mine)", steps=there.steps()[0] + 3
    )
    assert process.communicate(timeout=60)[0].splitlines()[-1] == "True"


def test_a_handler_in_c_stays_as_it_is(host: Become) -> None:
    """JAX installs one when its hosts join: Python does not know of it, and it keeps the process alive."""
    there = host()
    before = "import faulthandler; faulthandler.register(signal.SIGTERM, chain=False)"
    process = program(before=before, every="None", steps=10_000, pause=0.005)
    line(process, "7")
    there.ask_to_end(wire.PREEMPTION)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert "most recent call first" in err  # which is what that handler does
    assert (process.returncode, len(there.steps())) == (143, 1)


def test_a_worker_that_was_forked_ends_at_a_sigterm_as_it_would_without_us(host: Become) -> None:
    """The workers of a data loader or a pool end immediately, at any point, not at Python's next check."""
    host()
    code = (
        "import os, signal\nimport kinetic_orchestration as kinetic\n"
        "training = kinetic.Training(name='t')\ntraining.restore({'n': 0})\n"
        "there, ready = os.pipe()\nworker = os.fork()\n"
        "if worker == 0:\n    signal.alarm(20)\n    os.write(ready, b'x')\n    sum(range(10**11))\n    os._exit(0)\n"
        "os.read(there, 1)\nos.kill(worker, signal.SIGTERM)\nprint(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, env={**os.environ})
    assert done.stdout == "-15\n", done.stderr


def test_a_worker_that_is_told_to_end_while_it_is_being_forked_ends(host: Become) -> None:
    """Python forgets a signal that came before the worker's first line."""
    host()
    code = (
        "import os, signal, time\nimport kinetic_orchestration as kinetic\n"
        "training = kinetic.Training(name='t')\ntraining.restore({'n': 0})\n"
        "for _ in range(20):\n"
        "    if not (worker := os.fork()):\n        signal.alarm(30)\n        time.sleep(60)\n        os._exit(0)\n"
        "    os.kill(worker, signal.SIGTERM)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM\n"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env={**os.environ})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_that_was_forked_neither_waits_for_its_parents_checkpoint_nor_commits_it(host: Become) -> None:
    """It has the training, and none of its threads; it ends as Python does, with all that is done at an exit."""
    there = host()
    code = """
        import os, sys, threading
        import numpy as np
        import kinetic_orchestration as kinetic

        go, opened = threading.Event(), os.open
        os.open = lambda path, *more, **named: (".tmp/part-" not in path or go.wait(60)) and opened(path, *more, **named)
        with kinetic.Training(every=1, name="t") as training:
            training.restore(state := {"w": np.zeros(40 << 20, np.uint8)})
            training.step(1, state)
            if not (worker := os.fork()):
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), *os.listdir(training._checkpoints.store.place))
            go.set()
            training.finish()
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50,
        env={**os.environ},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("7 .tmp\n", "")
    assert there.steps() == [1]


def test_two_trainings_give_the_signal_back_in_whichever_order_they_end(host: Become) -> None:
    host()
    handler = signal.getsignal(signal.SIGTERM)
    first, second = (kinetic.Training(name=name) for name in ("one", "other"))
    for training in (first, second):
        training.restore(state())
    first.close()
    second.close()
    assert signal.getsignal(signal.SIGTERM) == handler


def test_in_a_thread_the_notice_is_heard_without_the_signal(host: Become) -> None:
    there = host()
    raised: list[BaseException] = []

    def loop() -> None:
        try:
            with kinetic.Training(every=None, name="t") as training:
                training.restore(state())
                for number in range(100_000):
                    time.sleep(0.002)
                    training.step(number + 1, state())
        except SystemExit as error:
            raised.append(error)

    handler = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=loop)
    thread.start()
    there.ask_to_end(wire.PREEMPTION)
    thread.join(20)
    assert not thread.is_alive()
    (ended,) = raised
    assert isinstance(ended, kinetic.TrainingEnded)
    assert str(pickle.loads(pickle.dumps(ended))) == str(ended)
    assert (ended.cause, ended.saved, [ended.step]) == (wire.PREEMPTION, True, there.steps())
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.slow
@pytest.mark.turn(6)
def test_killed_at_any_moment_it_goes_on_from_a_whole_checkpoint(host: Become, tmp_path: Path) -> None:
    """Writers of two megabytes at every step, killed three times, come to the end of one that was not disturbed."""
    import random

    chance = random.Random(20)
    begun = []
    for attempt in range(1, 40):
        there = host(attempt=attempt)
        disturbed = attempt <= 3  # and so slow that the first two cannot come to its end, on no machine
        process = program(every=1, steps=60, size=2_000_000, pause=0.03 if disturbed else 0.005)
        try:
            process.wait(chance.uniform(0.3, 0.8) if disturbed else 60)
        except subprocess.TimeoutExpired:
            process.kill()
        out = process.communicate()[0]
        if process.returncode == 0:
            break
        begun.append(len(out.split()))
    assert out.splitlines()[-1].split(maxsplit=2)[2] == str([value + sum(range(60)) for value in (0.0, 1.0, 2.0, 3.0)])
    assert attempt > 2
    assert there.steps() == [58, 59, 60]
    left = [folder for folder in there.folders() if any((there.checkpoints / "t" / folder).iterdir())]
    assert len(left) == 3  # besides what a kill in the middle of a removal may have emptied and left


def test_a_failure_to_write_for_another_reason_is_told_the_same_way(host: Become) -> None:
    there = host()
    with kinetic.Training(every=1, name="t", on_full_disk="stop") as training:
        training.restore(state())
        training.step(1, state())
        folder = there.checkpoints / "t" / "step-000000000002-0123456789abcdef-1"
        folder.touch()  # where a folder has to be
        with pytest.raises(CheckpointError, match="a part of the name is an object itself"):
            training.step(2, state())
        folder.unlink()
    assert there.steps() == [1]


# ---- beside the training -----------------------------------------------------------------------------------------------


def test_a_large_checkpoint_is_written_beside_the_training_from_a_copy(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, go = host(), threading.Event()
    fsync = os.fsync

    def slow(file: int) -> None:
        if os.fstat(file).st_size > background.LARGE:
            assert go.wait(60)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    big = {"w": np.zeros(background.LARGE, np.uint8), "n": 0}
    with kinetic.Training(every=5, name="t") as training:
        training.restore(big)
        training.step(5, {**big, "n": 5})
        big["w"] += 7
        training.step(6, {**big, "n": 6})
        assert there.steps() == []
        go.set()
        training.finish(big, 8)
    assert there.steps() == [5, 8]
    for step, value in ((5, 0), (8, 7)):
        found = kinetic.read_checkpoint(there.checkpoints / "t", step=step).state
        assert (found["w"] == value).all()


def test_the_memory_of_copies_is_used_again_and_never_by_two(tmp_path: Path) -> None:
    room = background.CopyBuffers()
    first = room.take([background.LARGE, 3, 0])
    for copy in first:
        copy[:] = bytes(len(copy))
    second = room.take([5])  # of a writing that was given up, the bytes are needed until it ends
    second[0][:] = b"other"
    assert not any(first[1]) and [len(copy) for copy in first] == [background.LARGE, 3, 0]
    room.leave()
    again = room.take([background.LARGE, 3, 0])
    again[0][:3] = b"new"
    assert bytes(first[0][:3]) == b"new"
    room.leave()
    assert [len(copy) for copy in room.take([background.LARGE, 7])] == [background.LARGE, 7]


def test_checkpoints_one_after_another_hold_each_their_own_bytes(host: Become) -> None:
    there = host()
    states = [
        {"w": np.random.default_rng(step).integers(0, 256, size, np.uint8), "n": np.full(9, step)}
        for step, size in enumerate(
            [background.LARGE + 5, background.LARGE + 5, 3 * trees.TOGETHER + background.LARGE, background.LARGE]
        )
    ]
    with kinetic.Training(every=1, keep=4, name="t") as training:
        for step, state in enumerate(states, 1):
            training.step(step, state)
            assert training._writing is not None
    for step, state in enumerate(states, 1):
        found = kinetic.read_checkpoint(there.checkpoints / "t", step=step).state
        assert (found["w"] == state["w"]).all() and (found["n"] == state["n"]).all()


def test_one_that_cannot_be_written_beside_is_told_as_any_other(host: Become) -> None:
    there = host()
    code = """
        import resource, sys
        import numpy as np
        import kinetic_orchestration as kinetic
        from kinetic_orchestration.errors import CheckpointError

        state = {"w": np.zeros(40 << 20, np.uint8)}
        for choice in ("warn", "stop"):
            with kinetic.Training(every=1, name=choice, on_full_disk=choice, keep=1) as training:
                training.restore(state)
                training.step(1, state)
                training.step(2, state)
                training._writing.wait(60)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
                try:
                    training.step(3, state)
                    training._writing.wait(60)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                    training.step(4, state)
                except CheckpointError as error:
                    print(choice, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stop the checkpoint of step 3 could not be written: ")
    assert "the newest one is that of step 2. Make room there" in done.stdout
    assert "warn: the checkpoint of step 3 could not be written: " in done.stderr
    assert (there.steps("warn"), there.steps("stop")) == ([4], [2])


def test_whoever_closes_waits_for_it_unless_it_would_be_killed_meanwhile(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, go = host(), threading.Event()
    fsync, big = os.fsync, {"w": np.zeros(background.LARGE, np.uint8)}

    def slow(file: int) -> None:
        if os.fstat(file).st_size > background.LARGE:
            go.wait(60)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(loop, "CLOSING", 0.0)  # of several hosts
    later = threading.Timer(0.5, go.set)
    with pytest.raises(ZeroDivisionError), kinetic.Training(every=1, name="t") as training:
        training.step(1, big)
        assert there.steps() == []
        later.start()
        training.step(1 // 0, big)
    assert there.steps() == [1]
    later.join()
    go.clear()
    with pytest.raises(kinetic.TrainingEnded), kinetic.Training(every=1, name="u") as training:
        training.step(1, big)
        there.ask_to_end(wire.CANCELLED, grace=2.0)
        assert training._agreed.wait(20)
        begun = time.monotonic()
        training.step(2, big)
    assert time.monotonic() - begun < 30  # of the 60 s that the file takes
    assert there.steps("u") == []
    go.set()


def test_a_loop_without_with_that_an_exception_ends_keeps_what_was_on_its_way_and_is_not_held_up(host: Become) -> None:
    """It is written once the program is at its end already, when no thread begins any more, or not at all."""
    there = host()
    code = """
        import atexit, os, sys, threading
        import numpy as np
        import kinetic_orchestration as kinetic
        from kinetic_orchestration.program import loop

        go, opened, name = threading.Event(), os.open, sys.argv[1]
        os.open = lambda path, *more, **named: (".tmp/part-" not in path or go.wait(60)) and opened(path, *more, **named)
        if name == "hangs":
            loop.PATIENCE = 0.2
        training = kinetic.Training(every=1, name=name)
        training.restore(state := {"w": np.zeros(40 << 20, np.uint8)})
        training.step(1, state)
        if name == "kept":
            atexit.register(go.set)
        raise KeyError("no data")
    """
    said = {}
    for name in ("kept", "hangs"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), name], capture_output=True, text=True, timeout=50,
            env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count("KeyError: 'no data'") == 1
        said[name] = done.stderr.splitlines()[-1]
    assert (there.steps("kept"), there.steps("hangs")) == ([1], [])
    assert said["kept"] == "KeyError: 'no data'"
    assert said["hangs"] == "hangs: the checkpoint of step 1 was not written in 0 s, and is given up"
    assert kinetic.read_checkpoint(there.checkpoints / "kept").step == 1


def test_tried_again_in_the_same_program_it_goes_on_at_what_was_on_its_way(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, go = host(), threading.Event()
    fsync, big = os.fsync, {"w": np.zeros(background.LARGE, np.uint8)}

    def slow(file: int) -> None:
        if os.fstat(file).st_size > background.LARGE:
            assert go.wait(60)
        fsync(file)

    def loop() -> int:
        training = kinetic.Training(every=1, name="t")
        _, done = training.restore(big)
        training.step(done + 1, big)
        if not done:
            raise KeyError("no data")
        training.finish()
        return done

    monkeypatch.setattr(os, "fsync", slow)
    with contextlib.suppress(KeyError):
        loop()
    assert there.steps() == []
    later = threading.Timer(0.3, go.set)
    later.start()
    assert loop() == 1
    assert there.steps() == [1, 2]
    later.join()


def test_without_room_for_a_copy_it_is_written_in_the_step(host: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    there = host()
    monkeypatch.setattr(background, "SPARE", 1 << 40)
    with kinetic.Training(every=1, name="t") as training:
        training.step(1, {"w": np.zeros(background.LARGE, np.uint8)})
        assert there.steps() == [1]
