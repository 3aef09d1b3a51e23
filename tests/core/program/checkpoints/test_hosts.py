"""Trainings on the hosts of a slice: they end at the same step, restore the same checkpoint, and lose nothing."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.protocol import attempt_rules, names, wire
from tests.support.faults import kill, kill_host, trees
from tests.support.on_vms import constants
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("shared_home")

FOUR_HOSTS = "v5e-16"
PATIENCE = 400.0  # four JAX hosts on few cores that others use too
OFTEN = kinetic.Retry(infra=40, preemption=40)
UNHURRIED = {**attempt_rules.GRACE, wire.PREEMPTION: 40.0}  # the next attempt waits `lifecycle.SETTLE_PATIENCE` for it


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are preempted have the time that a busy machine takes."""
    constants(monkeypatch, attempt_rules, GRACE=UNHURRIED)


def launched(function: Any, *arguments: Any, **more: Any) -> JobHandle[Any]:
    return kinetic.run(accelerator=FOUR_HOSTS, retry=OFTEN)(function).run_async(*arguments, **more)


def marks(folder: Path, what: str, attempt: int = 1) -> dict[int, str]:
    return {int(path.name.rsplit("-", 1)[1]): path.read_text() for path in folder.glob(f"{what}-{attempt}-*")}


def all_run(folder: Path, attempt: int = 1, within: float = 60.0) -> None:
    wait_until(lambda: len(marks(folder, "runs", attempt)) == 4, within=within)


def committed(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    there = Path(marks(folder, "keeps")[0], "training")
    return sorted(int(path.parent.name.split("-")[1]) for path in there.glob("step-*/commit.json"))


def is_intended(job: JobHandle[Any], attempt: int) -> bool:
    return job._job.store.read(names.intent(job.job_id, attempt)) is not None


def log(job: JobHandle[Any]) -> str:
    return job.logs() or ""


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.usefixtures("unhurried")
def test_hosts_at_different_steps_end_at_the_same_one_when_one_of_them_is_preempted(jobs: Any, tmp_path: Path) -> None:
    """Their speeds differ fourfold; the notice comes to host 2 alone. The next attempt goes on from that very step."""
    job = launched(jobs.counts, 20, 0.01, 5, str(tmp_path / "marks"), large=True, cut_off=True)
    all_run(tmp_path / "marks")
    kill(trees(job._job)[2].agent, number=signal.SIGTERM)
    found = job.result(timeout=120)
    ended = marks(tmp_path / "marks", "ended")
    assert len(ended) == 4
    assert len(set(ended.values())) == 1
    assert set(marks(tmp_path / "marks", "preemption").values()) == {"1"}
    assert set(marks(tmp_path / "marks", "began", 2).values()) == set(ended.values())
    chance, begun = random.Random(0), int(ended[0])
    expected = sum(chance.random() for _ in range(begun + 20))
    assert found == {"sum": expected, "own": [0], "begun": begun, "attempt": 2}


@pytest.mark.slow
@pytest.mark.turn(3)
def test_each_host_gets_back_what_was_its_own_and_minutes_are_agreed_on(jobs: Any, tmp_path: Path) -> None:
    """And what the others had written, beside their steps, when a host was killed is never restored."""
    job = launched(jobs.counts, 60, 0.004, "0.15s", str(tmp_path / "marks"), large=True, cut_off=True)
    all_run(tmp_path / "marks")
    wait_until(lambda: bool(committed(tmp_path / "marks")))
    kill(trees(job._job)[3].agent)
    found = job.result(timeout=60)
    began = set(marks(tmp_path / "marks", "began", 2).values())
    assert began == {str(found["begun"])}
    assert found["begun"] > 0
    chance = random.Random(0)
    assert found["sum"] == sum(chance.random() for _ in range(found["begun"] + 60))


def test_a_function_that_fails_is_not_ended_before_its_checkpoint_is_written(jobs: Any) -> None:
    once_more = kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=1))
    assert once_more(jobs.breaks).run_async().result(timeout=60) == 1


def test_a_cancel_ends_all_hosts_at_once_and_keeps_nothing(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.counts, 100_000, 0.01, None, str(tmp_path / "marks"))
    all_run(tmp_path / "marks")
    began = time.monotonic()
    job.cancel("no longer needed")
    with pytest.raises(JobCancelled):
        job.result(timeout=60)
    assert time.monotonic() - began < 45  # of the 1000 s that it would train
    assert len(set(marks(tmp_path / "marks", "ended").values())) == 1
    assert set(marks(tmp_path / "marks", "cancelled").values()) == {"0"}


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unhurried")
def test_jax_hosts_are_preempted_within_a_collective_and_the_next_attempt_goes_on_at_their_last_step(
    jobs: Any, tmp_path: Path
) -> None:
    """Each step is a collective of all hosts, and JAX has a handler of SIGTERM of its own."""
    job = launched(jobs.trains_on_a_slice, 200, 0.3, None, str(tmp_path / "marks"), paused=1)
    all_run(tmp_path / "marks", within=PATIENCE)
    kill(trees(job._job)[1].agent, number=signal.SIGTERM)
    found = job.result(timeout=PATIENCE)
    assert (found["attempt"], found["processes"]) == (2, 4)
    assert found["begun"] > 0
    assert log(job).count(f"ends at step {found['begun']}, asked to (preemption); its state is kept") == 4


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unhurried")
def test_keras_on_two_hosts_that_are_killed_and_preempted_comes_to_the_same_weights(jobs: Any, tmp_path: Path) -> None:
    """A host dies in the first attempt, and is taken back in the second."""
    folder = tmp_path / "marks"
    job = kinetic.run(accelerator="v4-8", retry=OFTEN, keras_backend="jax")(jobs.fits_on_a_slice).run_async(
        4, 0.6, str(folder)
    )
    for attempt, number in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
        wait_until(lambda number=attempt: len(marks(folder, "runs", number)) == 2, within=PATIENCE)
        kill(trees(job._job, attempt)[1].agent, number=number)
        if attempt == 1:  # whoever waits for the job starts its attempts
            waiting = ThreadPoolExecutor(1)
            ended = waiting.submit(job.result, timeout=PATIENCE)
    found = ended.result()
    waiting.shutdown()
    assert found["attempt"] == 3
    assert found["digests"][0] == found["digests"][1]
    told = log(job)
    assert told.count("asked to (preemption); its state is kept") == 2
    assert told.count("restored the checkpoint of step ") == 4


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.timeout(600)
def test_what_four_hosts_wrote_two_restore_if_they_are_asked_to(jobs: Any, tmp_path: Path) -> None:
    there = str(tmp_path / "checkpoints")
    written = launched(jobs.lies_on_a_slice, there).result(timeout=PATIENCE)
    read = kinetic.run(accelerator="v4-8")(jobs.lies_on_a_slice).run_async(there).result(timeout=PATIENCE)
    assert written == [7]
    assert read[:3] == [7, 7, [True, True, True]]
    assert "was written by 4 hosts with 16 devices, and this is 2 hosts with 8 devices. With reshard=True" in read[3]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "dark"),
    [pytest.param(1903, 6, marks=pytest.mark.turn(0)), pytest.param(1904, 7, marks=pytest.mark.turn(5))],
)
def test_a_training_on_four_hosts_that_is_killed_ten_times_comes_to_the_very_same_weights(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, dark: int
) -> None:
    """Killed at random moments: half of them while JAX starts, compiles or restores, half in a step or while a
    checkpoint is written. It is an agent that dies, a machine that is taken back, or a host that loses its power, in the
    attempt that is `dark`. `fill` makes checkpoints long enough to be hit."""
    constants(monkeypatch, attempt_rules, ECHO=20.0)  # who waits for the job tells of a host without power, in its time
    kills, steps, fill, chance = 10, 240, 2_000_000, random.Random(seed)
    undisturbed = launched(jobs.trains_on_a_slice, steps, 0.0, 50, str(tmp_path / "undisturbed"), fill, devices=2)
    expected = undisturbed.result(timeout=PATIENCE)
    assert expected["begun"] == 0
    folder = tmp_path / "marks"
    job = launched(jobs.trains_on_a_slice, steps, 0.05, 4, str(folder), fill, devices=2, paused=kills)
    follower = ThreadPoolExecutor(1)
    ended = follower.submit(job.result, timeout=(kills + 1) * PATIENCE)  # whoever waits for it starts the attempts
    start = 0.0  # seconds until all hosts train
    for attempt in range(1, kills + 1):
        wait_until(lambda number=attempt: is_intended(job, number) or ended.done(), within=PATIENCE)
        assert not ended.done(), f"it was over before its last kill: {ended.exception()!r}"
        hosts = trees(job._job, attempt, within=PATIENCE)
        began = time.monotonic()
        if attempt % 2:
            all_run(folder, attempt, within=PATIENCE)
            start = time.monotonic() - began
            time.sleep(chance.uniform(0.0, 0.3))
        else:  # however much sooner than the attempt before it may begin
            moment = began + chance.uniform(0.0, start)
            wait_until(
                lambda at=moment, of=attempt: time.monotonic() > at or marks(folder, "runs", of), within=PATIENCE
            )
        if attempt == dark:
            kill_host(hosts[chance.randrange(4)])  # loses its power: nobody speaks for it
        else:
            kill(
                hosts[chance.randrange(4)].agent, number=chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            )
    found = ended.result(timeout=PATIENCE)
    follower.shutdown()
    assert found["attempt"] == kills + 1
    assert found["begun"] > 0
    agreed = [set(marks(folder, "began", attempt).values()) for attempt in range(1, kills + 2)]
    assert all(len(steps) <= 1 for steps in agreed)
    began_at = [int(step) for steps in agreed for step in steps]
    assert began_at == sorted(began_at)
    assert (found["digest"], found["drawn"], found["loss"]) == (expected["digest"], expected["drawn"], expected["loss"])


def test_a_host_whose_disk_is_full_is_named_and_all_go_on_with_the_checkpoints_before(
    jobs: Any, tmp_path: Path
) -> None:
    job = launched(jobs.counts, 60, 0.002, 10, str(tmp_path / "marks"), full=(2, 25))
    assert job.result(timeout=60)["begun"] == 0
    told = log(job)
    assert (
        "[host 0] training: the checkpoint of step 30 could not be written: host 2 could not write its part: " in told
    )
    assert "the newest one is that of step 20. The training goes on" in told
    assert committed(tmp_path / "marks") == [10, 20]
