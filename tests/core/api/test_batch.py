"""Many jobs of one function, with Keras Kinetic's names and meanings."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.batch import child
from kinetic_orchestration.errors import (
    Corrupt,
    JobCancelled,
    JobNotFound,
    NewerWire,
    NotPicklable,
    UsageError,
)
from kinetic_orchestration.plan.identity import job_id
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names, wire
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("shared_home")


@kinetic.run(accelerator="cpu")
def train(lr: float, epochs: int = 1) -> dict[str, float]:
    if lr > 1:
        raise ValueError(f"learning rate {lr} is too high")
    return {"lr": lr, "epochs": epochs}


@kinetic.run(accelerator="cpu")
def wait_for(flag: str, value: Any = None) -> Any:
    Path(f"{flag}.{value}.begun").touch()
    while not os.path.exists(flag):
        time.sleep(0.01)
    if value == "fail":
        raise ValueError("as asked")
    return value


@pytest.fixture(scope="module")
def mixed(shared_home: Path) -> kinetic.BatchHandle[dict[str, float]]:
    """Three jobs, of which the second fails."""
    batch = train.run_async_map([0.1, 2.0, 0.3], name="mixed", tags={"team": "surface"})
    batch.wait(timeout=60)
    return batch


# ---- inputs ----------------------------------------------------------------------------------------------------


def test_each_input_becomes_a_job_by_its_type() -> None:
    """A dict is passed as keyword arguments, a list or tuple as positional ones, anything else alone."""
    batch = train.run_async_map([{"lr": 0.1, "epochs": 2}, (0.2, 3), [0.3], 0.4])
    assert batch.results() == [
        {"lr": 0.1, "epochs": 2}, {"lr": 0.2, "epochs": 3}, {"lr": 0.3, "epochs": 1}, {"lr": 0.4, "epochs": 1}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "items", "values"),
    [
        ("single", [(1, 2), {"a": 1}], ["(1, 2)", "{'a': 1}"]),
        ("args", [(1,), [2]], ["1", "2"]),
        ("kwargs", [{"x": 1}], ["1"]),
    ],
)
def test_input_mode_says_it_outright(mode: str, items: list[Any], values: list[str]) -> None:
    @kinetic.run(accelerator="cpu")
    def shown(x: Any) -> str:
        return repr(x)

    assert shown.run_async_map(items, input_mode=mode).results() == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": [0.1], "max_concurrent": 0}, "max_concurrent is 0"),
        ({"inputs": [0.1], "retries": -1}, "retries is -1"),
        ({"inputs": [0.1], "input_mode": "magic"}, "input_mode is 'magic'; it can be auto, single, args, kwargs"),
        ({"inputs": [0.1], "input_mode": "args"}, "'args' takes lists and tuples"),
        ({"inputs": [{1: 2}], "input_mode": "kwargs"}, "'kwargs' takes dicts of names"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        train.run_async_map(**arguments)
    assert isinstance(caught.value, ValueError)


def test_an_input_that_the_function_does_not_take_is_named(shared_home: Path) -> None:
    with pytest.raises(TypeError, match=r"input 1: train\(\) missing a required argument: 'lr'"):
        train.run_async_map([{"lr": 0.1}, {"rate": 1}])


# ---- looking ---------------------------------------------------------------------------------------------------


def test_statuses_and_counts(mixed: kinetic.BatchHandle[Any]) -> None:
    succeeded, failed = kinetic.JobStatus.SUCCEEDED, kinetic.JobStatus.FAILED
    assert mixed.statuses() == [(0, succeeded), (1, failed), (2, succeeded)]
    assert mixed.status_counts() == {"SUCCEEDED": 2, "FAILED": 1}
    assert mixed.group_id.startswith("grp-") and mixed.name == "mixed" and mixed.tags == {"team": "surface"}
    assert [(job.group_id, job.group_index) for job in mixed.jobs if job is not None] == [
        (mixed.group_id, index) for index in range(3)
    ]
    assert mixed.group_id in repr(mixed)


def test_wait_is_bounded_and_leaves_the_jobs_alone(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    batch = wait_for.run_async_map([(str(flag), n) for n in range(2)])
    with pytest.raises(TimeoutError, match=r"0 of 2 jobs have ended after 0.2 s; the others go on"):
        batch.wait(timeout=0.2)
    with pytest.raises(TimeoutError):
        batch.results(timeout=0.1)
    flag.touch()
    assert batch.results(timeout=60) == [0, 1]


# ---- collecting ------------------------------------------------------------------------------------------------


def test_a_failure_raises_a_batch_error_with_what_there_is(mixed: kinetic.BatchHandle[Any]) -> None:
    with pytest.raises(kinetic.BatchError, match=rf"batch {mixed.group_id}: 1 of 3 jobs failed \(job-") as caught:
        mixed.results(cleanup=False)
    error = caught.value
    assert error.group_id == mixed.group_id and error.submission_failures == {}
    assert error.partial_results == [{"lr": 0.1, "epochs": 1}, None, {"lr": 0.3, "epochs": 1}]
    assert [job.job_id for job in error.failures] == [mixed.jobs[1].job_id]  # type: ignore[union-attr]
    assert [job.job_id for job in mixed.failures()] == [mixed.jobs[1].job_id]  # type: ignore[union-attr]


def test_a_batch_error_travels_to_another_process(mixed: kinetic.BatchHandle[Any]) -> None:
    with pytest.raises(kinetic.BatchError) as raised:
        mixed.results()
    raised.value.add_note("a note")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.partial_results, again.__notes__) == (
        str(raised.value), raised.value.partial_results, ["a note"],
    )  # fmt: skip
    assert [job.job_id for job in again.failures] == [job.job_id for job in raised.value.failures]


def test_return_exceptions_puts_them_in_their_places(mixed: kinetic.BatchHandle[Any]) -> None:
    first, second, third = mixed.results(return_exceptions=True)
    assert (first["lr"], third["lr"]) == (0.1, 0.3)
    assert isinstance(second, ValueError) and str(second) == "learning rate 2.0 is too high"


def test_as_completed_and_unordered_results_come_in_the_order_of_their_ends(tmp_path: Path) -> None:
    flags = [tmp_path / str(n) for n in range(3)]
    batch = wait_for.run_async_map([(str(flag), n) for n, flag in enumerate(flags)])
    ended = []
    flags[2].touch()
    for job in batch.as_completed(timeout=60, poll_interval=5.0):
        ended.append(job.result())
        if len(ended) < 3:
            flags[2 - len(ended)].touch()
    assert ended == [2, 1, 0]
    assert batch.results(ordered=True) == [0, 1, 2]
    assert sorted(batch.results(ordered=False)) == [0, 1, 2]


def test_cleanup_releases_compute_and_the_records_live_on(mixed: kinetic.BatchHandle[Any], shared_home: Path) -> None:
    mixed.cleanup(k8s=True, gcs=True)
    left = [path.name for path in (shared_home / "run").iterdir() if path.is_dir()]
    assert not [name for name in left for job in mixed.jobs if job is not None and name.startswith(job.job_id)]
    again = kinetic.attach_batch(mixed.group_id)
    assert [type(value) for value in again.results(return_exceptions=True)] == [dict, ValueError, dict]


# ---- how many at once, and what becomes of failures ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn(6)
def test_no_more_than_max_concurrent_run_at_once(tmp_path: Path) -> None:
    """They are let go one by one. Of more than two that run, the others would have begun by then."""
    batch = wait_for.run_async_map([(str(tmp_path / str(number)), number) for number in range(5)], max_concurrent=2)
    for ended in range(5):
        running = min(5, ended + 2)
        wait_until(lambda running=running: len(list(tmp_path.glob("*.begun"))) >= running, within=60)
        begun = sorted(path.name.partition(".")[0] for path in tmp_path.glob("*.begun"))
        assert len(begun) == sum(job is not None for job in batch.jobs) == running
        (tmp_path / next(number for number in begun if not (tmp_path / number).exists())).touch()
    assert batch.results(timeout=60) == list(range(5))


@pytest.mark.slow
def test_retries_are_further_attempts_of_the_same_job() -> None:
    @kinetic.run(accelerator="cpu")
    def flaky(good_attempt: int) -> int:
        if kinetic.current().attempt < good_attempt:
            raise ValueError("not yet")
        return kinetic.current().attempt

    batch = flaky.run_async_map([1, 3, 9], retries=2)
    values = batch.results(return_exceptions=True, timeout=60)
    assert values[:2] == [1, 3] and isinstance(values[2], ValueError)
    assert [job.attempts() for job in batch.jobs if job is not None] == [1, 3, 3]


def test_fail_fast_starts_nothing_new_and_lets_the_rest_end(tmp_path: Path) -> None:
    flag, first = tmp_path / "go", tmp_path / "first"
    first.touch()
    batch = wait_for.run_async_map(
        [(str(first), "fail"), *((str(flag), n) for n in range(4))], max_concurrent=2, fail_fast=True
    )
    wait_until(lambda: batch.status_counts().get("FAILED") == 1)
    wait_until(lambda: not _submitting(batch))
    flag.touch()
    with pytest.raises(kinetic.BatchError) as caught:
        batch.results(timeout=60)
    assert [job.group_index for job in caught.value.failures] == [0]
    assert caught.value.partial_results[:2] == [None, 0] and None in caught.value.partial_results[2:]
    assert kinetic.JobStatus.CANCELLED not in dict(batch.statuses()).values()


def _submitting(batch: kinetic.BatchHandle[Any]) -> bool:
    return not batch._submitted.is_set()


def test_cancel_running_on_fail_ends_the_others(tmp_path: Path) -> None:
    never, first = tmp_path / "never", tmp_path / "first"
    batch = wait_for.run_async_map(
        [(str(first), "fail"), (str(never), 1), (str(never), 2)], fail_fast=True, cancel_running_on_fail=True
    )
    wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 3)
    first.touch()
    failed, *others = batch.results(return_exceptions=True, timeout=60)
    assert isinstance(failed, ValueError) and all(isinstance(value, JobCancelled) for value in others)
    assert [job.group_index for job in batch.failures()] == [0, 1, 2]  # those without a value, as results() found them


def test_cancel_running_on_fail_alone_has_no_effect_and_says_so() -> None:
    with pytest.warns(UserWarning, match="no effect without fail_fast=True"):
        batch = train.run_async_map([0.1, 2.0, 0.2], cancel_running_on_fail=True)
    assert [type(value) for value in batch.results(return_exceptions=True)] == [dict, ValueError, dict]


def test_an_input_that_cannot_be_sent_is_a_submission_failure() -> None:
    @kinetic.run(accelerator="cpu")
    def same(value: Any) -> Any:
        return value

    batch = same.run_async_map([1, sys._getframe(), 3])
    with pytest.warns(UserWarning, match="1 of its inputs could not be submitted"):
        batch.wait()
    assert list(batch.submission_failures) == [1] and batch.jobs[1] is None
    assert isinstance(batch.submission_failures[1], NotPicklable) and batch.failures() == []
    with pytest.warns(UserWarning, match="could not be submitted"), pytest.raises(kinetic.BatchError) as caught:
        batch.results()
    assert caught.value.partial_results == [1, None, 3] and list(caught.value.submission_failures) == [1]


def test_cancel_ends_what_runs_and_drops_what_waits(tmp_path: Path) -> None:
    never = tmp_path / "never"
    batch = wait_for.run_async_map([(str(never), n) for n in range(6)], max_concurrent=2, retries=3)
    wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
    batch.cancel()
    assert set(batch.status_counts()) == {"CANCELLED"} and batch.jobs[3:] == [None, None, None]
    batch.wait(timeout=60)
    assert all(value is None or isinstance(value, JobCancelled) for value in batch.results(return_exceptions=True))


# ---- from elsewhere --------------------------------------------------------------------------------------------

SUBMITTER = """
import os, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="cpu")
def wait_for(flag, value):
    print("begun", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.01)
    return value

batch = wait_for.run_async_map([(sys.argv[1], n) for n in range(5)], max_concurrent=2, name="far")
print(batch.group_id, flush=True)
while sum(job is not None for job in batch.jobs) < 2:
    time.sleep(0.01)
print("two", flush=True)
print(batch.results(return_exceptions=True))
"""


@pytest.fixture
def submitter(tmp_path: Path) -> Any:
    """A process of its own that has submitted two of five jobs, with its batch's id."""
    program = tmp_path / "submitter.py"
    program.write_text(SUBMITTER, encoding="utf-8")
    flag = tmp_path / "go"
    process = subprocess.Popen(
        [sys.executable, str(program), str(flag)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    group_id = process.stdout.readline().strip()
    assert process.stdout.readline() == "two\n"
    yield process, group_id, flag
    process.kill()
    process.communicate()


def test_a_batch_is_attached_to_from_another_process_while_it_is_submitted(submitter: Any) -> None:
    process, group_id, flag = submitter
    batch = kinetic.attach_batch(group_id)
    assert (batch.group_id, batch.name, len(batch.jobs)) == (group_id, "far", 5)
    assert sum(job is not None for job in batch.jobs) == 2
    flag.touch()
    assert batch.results(timeout=60) == [0, 1, 2, 3, 4]
    assert process.communicate(timeout=60)[0] == "[0, 1, 2, 3, 4]\n"


def test_a_batch_whose_submitter_was_killed_midway_has_the_jobs_that_were_submitted(submitter: Any) -> None:
    process, group_id, flag = submitter
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    batch = kinetic.attach_batch(group_id)
    flag.touch()
    with pytest.warns(UserWarning, match="3 of its inputs have not been submitted"):
        assert batch.results(timeout=60) == [0, 1, None, None, None]


def test_a_submitter_killed_while_somebody_waits_elsewhere_does_not_leave_them_waiting(submitter: Any) -> None:
    process, group_id, flag = submitter
    batch = kinetic.attach_batch(group_id)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    flag.touch()
    with pytest.warns(UserWarning, match="have not been submitted"):
        assert batch.results(timeout=60)[:2] == [0, 1]


def test_cancel_from_another_process_stops_the_submitter_too(submitter: Any) -> None:
    process, group_id, _ = submitter
    kinetic.attach_batch(group_id).cancel()
    out, _ = process.communicate(timeout=60)
    assert out.count("JobCancelled") == 2 and out.endswith("None, None, None]\n")


# ---- where things are not as they should be ----------------------------------------------------------------------


def spoil_intent(job: kinetic.JobHandle[Any]) -> None:
    """Make the job impossible to follow; its hosts are not affected."""
    path = Path(job._job.store.url) / names.intent(job.job_id, 1)
    wait_until(path.exists)
    of_later_version(path)


def of_later_version(path: Path) -> None:
    """Put a record there that nobody of this version can read, at once and whole."""
    path.with_suffix(".new").write_text('{"wire": 99}')
    path.with_suffix(".new").replace(path)


def verdict_of(job: kinetic.JobHandle[Any]) -> object:
    return job._job.store.read(names.verdict(job.job_id, 1))


def test_a_job_that_cannot_be_followed_keeps_none_of_the_others(tmp_path: Path) -> None:
    """Neither from being submitted, nor their values from whoever waits for them."""
    flag = tmp_path / "flag"
    batch = wait_for.run_async_map([(str(flag), "first"), (str(flag), "second")], max_concurrent=1)
    wait_until(lambda: batch.jobs[0])
    first = batch.jobs[0]
    assert first is not None
    spoil_intent(first)
    wait_until(lambda: batch.jobs[1])
    flag.touch()
    first_error, second = batch.results(timeout=60, return_exceptions=True)
    assert isinstance(first_error, NewerWire)
    assert second == "second"
    wait_until(lambda: verdict_of(first))


def test_a_batch_is_cancelled_though_one_of_its_jobs_cannot_be_followed(tmp_path: Path) -> None:
    flag = str(tmp_path / "never")
    batch = wait_for.run_async_map([(flag, "first"), (flag, "second")])
    first, second = batch.jobs
    assert first is not None
    assert second is not None
    wait_until(lambda: os.path.exists(f"{flag}.first.begun"))
    spoil_intent(first)
    with pytest.raises(NewerWire, match="wire version 99"):
        batch.cancel()
    assert second.status() is kinetic.JobStatus.CANCELLED
    wait_until(lambda: verdict_of(first))


def test_inputs_that_cannot_be_submitted_any_more_are_failures(tmp_path: Path) -> None:
    """The record of the batch's end cannot be read."""
    flag = tmp_path / "flag"
    batch = wait_for.run_async_map([(str(flag), number) for number in range(3)], max_concurrent=1)
    wait_until(lambda: batch.jobs[0])
    end = Path(batch._store.url) / names.group_end(batch.group_id)
    of_later_version(end)
    submitted = batch._submitted.wait(60)
    end.unlink()
    flag.touch()
    assert submitted
    with pytest.warns(UserWarning, match="2 of its inputs could not be submitted; submission_failures says why"):
        values = batch.results(timeout=60, return_exceptions=True)
    assert values[0] == 0
    assert [type(value) for value in values[1:]] == [NewerWire, NewerWire]


def test_nobody_waits_for_ever_because_the_end_of_a_batch_could_not_be_written(
    tmp_path: Path, shared_home: Path
) -> None:
    flag, groups = tmp_path / "flag", shared_home / "store" / "local" / "groups"
    batch = wait_for.run_async_map([(str(flag), number) for number in range(2)], max_concurrent=1)
    groups.rename(tmp_path / "groups")
    groups.write_text("a file")
    flag.touch()
    submitted = batch._submitted.wait(60)
    groups.unlink()
    (tmp_path / "groups").rename(groups)
    assert submitted
    assert batch.results(timeout=60) == [0, 1]


def test_a_batch_that_is_watched_no_more_says_that_nothing_of_it_is_cancelled(tmp_path: Path) -> None:
    """All are submitted; what cannot be read now is whether somebody cancelled them."""
    flag = tmp_path / "flag"
    batch = wait_for.run_async_map(
        [(str(flag), number) for number in range(2)], fail_fast=True, cancel_running_on_fail=True
    )
    wait_until(lambda: None not in batch.jobs)
    end = Path(batch._store.url) / names.group_end(batch.group_id)
    with pytest.warns(UserWarning, match="is watched no more, so this process cancels nothing of it: "):
        of_later_version(end)
        assert batch._submitted.wait(60)
    end.unlink()
    flag.touch()
    assert batch.results(timeout=60) == [0, 1]


class Interrupting:
    def __reduce__(self) -> Any:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("unreachable")


def test_ctrl_c_while_a_batch_is_submitted_says_what_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train.run_async_map([0.5, Interrupting(), 0.7], input_mode="single")
    told = capfd.readouterr().err
    found = re.search(r"1 of 3 jobs of batch (grp-\w+) are submitted, and go on. To end them: .*cancel\(\)", told)
    assert found is not None, told
    again = kinetic.attach_batch(found[1])
    assert again.results(timeout=60) == [{"lr": 0.5, "epochs": 1}, None, None]


def test_a_key_of_a_batch_means_nothing_and_is_said_to() -> None:
    keyed = kinetic.run(accelerator="cpu", key="sweep")(train.__kinetic_function__)
    with pytest.warns(UserWarning, match="key= names one job and has no meaning for a batch"):
        batch = keyed.run_async_map([0.1])
    assert batch.results(timeout=60) == [{"lr": 0.1, "epochs": 1}]


@pytest.mark.parametrize("group_id", ["", "../x", "grp-0/1", None])
def test_what_is_no_batch_is_not_found(group_id: Any) -> None:
    with pytest.raises(JobNotFound, match=r"there is no batch .* check that KINETIC_STORE"):
        kinetic.attach_batch(group_id)


def test_tags_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(UsageError, match=r"name= and tags= are kept as JSON, which these cannot be: .* type object "):
        train.run_async_map([0.1], tags={"team": object()})  # type: ignore[dict-item]


def test_a_batch_that_does_not_exist() -> None:
    with pytest.raises(JobNotFound, match="no batch 'grp-000' in"):
        kinetic.attach_batch("grp-000")


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_group_record_that_speaks_of_fewer_jobs_loses_no_results() -> None:
    """A writer of the store changes the record."""
    batch = train.run_async_map([0.1, 0.2, 0.3])
    assert len(batch.results(timeout=60)) == 3
    store, name = batch._store, names.group(batch.group_id)
    record = store.read(name)
    assert record is not None
    said = {key: value for key, value in json.loads(record.data).items() if key not in ("wire", "sum")}
    for changes in ({"size": 1}, {"size": 2}, {"size": 4}, {"deployment": "another"}):
        store.put(name, wire.encode({**said, **changes}))
        with pytest.raises(Corrupt, match=f"groups/{batch.group_id}"):
            kinetic.attach_batch(batch.group_id)
    store.put(name, record.data)
    assert len(kinetic.attach_batch(batch.group_id).results(timeout=60)) == 3


@pytest.mark.parametrize("told_by", ["its end", "its next member"])
def test_of_a_group_whose_id_tells_no_size_others_do(told_by: str, shared_home: Path) -> None:
    store = open_store(str(shared_home / "store"), "local")
    group = f"grp-{os.urandom(6).hex()}"
    fields = {"name": None, "tags": {}, "size": 1, "deployment": "local", "backend": "local"}
    store.put(names.group(group), wire.encode(fields))
    if told_by == "its end":
        store.put(names.group_end(group), wire.encode({"why": "submitted", "size": 3}))
    else:
        store.put(names.spec(job_id(child("local", group, 1), 1)), b"{}")
    with pytest.raises(Corrupt, match=r"says that the batch has 1 jobs, and it has \d or more"):
        kinetic.attach_batch(group)
    store.delete(names.spec(job_id(child("local", group, 1), 1)))
