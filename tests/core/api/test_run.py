"""`@run` and its handles: what a user does with one job."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import (
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    KeyTaken,
    ResultNotPicklable,
    Superseded,
    Unreachable,
    Unsupported,
    UsageError,
)
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.plan import values
from kinetic_orchestration.plan.planner import DEBUG_PORT
from kinetic_orchestration.protocol import names, wire
from tests.support.waits import wait_until

SUCCEEDED, RUNNING = kinetic.JobStatus.SUCCEEDED, kinetic.JobStatus.RUNNING

pytestmark = pytest.mark.usefixtures("shared_home")


class TooBold(ValueError):
    """A user's own exception, whose constructor takes what it likes."""

    def __init__(self, rate: float, *, why: str) -> None:
        super().__init__(f"{rate} is too bold: {why}")
        self.rate = rate


@kinetic.run(accelerator="cpu")
def add(a: int, b: int = 2) -> int:
    print(f"adding {a} and {b}")
    print("to stderr", file=sys.stderr)
    return a + b


@kinetic.run(accelerator="cpu")
def wait_for(path: str) -> str:
    print("waiting")
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"


@kinetic.run(accelerator="cpu")
def fail(rate: float) -> None:
    print("about to fail")
    try:
        {}["rate"]
    except KeyError as error:
        raise TooBold(rate, why="a reason") from error


@pytest.fixture(scope="module")
def done(shared_home: Path) -> kinetic.JobHandle[int]:
    """A job that has ended well, and whose compute is released."""
    job = add.run_async(1)
    assert job.result(cleanup=True) == 3
    return job


# ---- calling ---------------------------------------------------------------------------------------------------


def test_a_call_runs_on_a_host_and_returns_its_value_with_its_lines_and_the_resolved_topology(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert add(20, b=22) == 42
    out, err = capfd.readouterr()
    assert "adding 20 and 22\n" in out and "to stderr\n" in out
    assert re.search(r"kinetic: job-[0-9a-f]{12} runs add on cpu: 1 device, 1 host, this machine's CPU\n", err)
    assert "kinetic: succeeded\n" in err and "cost: $0.00" in err


def test_every_hosts_lines_are_led_by_its_number(capfd: pytest.CaptureFixture[str]) -> None:
    @kinetic.run(accelerator="v5e-16")
    def where() -> tuple[int, int]:
        host = kinetic.current()
        print(f"I am {host.host_index}")
        return host.host_index, host.host_count

    assert where() == (0, 4)  # host 0's value
    out, err = capfd.readouterr()
    assert {line for line in out.splitlines() if "I am" in line} == {f"[host {n}] I am {n}" for n in range(4)}
    assert "runs where on v5e-16: 16 chips (4x4), 4 hosts × 4 chips, emulated on this machine's CPU\n" in err


def test_run_async_does_not_wait_and_says_what_it_started(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flag = tmp_path / "go"
    job = wait_for.run_async(str(flag))
    assert f"kinetic: {job.job_id} runs wait_for on cpu" in capfd.readouterr().err
    wait_until(lambda: job.status() is RUNNING)
    flag.touch()
    assert job.result() == "seen"
    assert job.status() is SUCCEEDED


def test_wrong_arguments_are_pythons_own_type_error_before_anything_is_sent(home: Path) -> None:
    with pytest.raises(TypeError, match=r"add\(\) missing a required argument: 'a'"):
        add.run_async()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'c'"):
        add(1, c=3)  # type: ignore[call-arg]
    assert os.listdir(home) == ["agent"]  # which the fixture has put there


def test_a_decorated_function_looks_like_the_function_and_travels_as_the_plain_one() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", None, __name__)
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert add.__reduce__()[0].__module__ == "kinetic_orchestration.protocol.content.payload"

    @kinetic.run(accelerator="cpu")
    def calls_another(x: int) -> int:
        return add(x) * 10  # on the host: a plain call

    assert calls_another(1) == 30
    assert kinetic.run(accelerator="cpu")(add)(5) == 7


# ---- what can be decorated -------------------------------------------------------------------------------------


class Trainer:
    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.options = "the user's own"

    @kinetic.run(accelerator="cpu")
    def train(self, x: int) -> int:
        return x * self.scale

    @classmethod
    @kinetic.run(accelerator="cpu")
    def of_class(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @staticmethod
    @kinetic.run(accelerator="cpu")
    def of_nobody(x: int) -> int:
        return -x

    def __call__(self, x: int) -> int:
        return x + self.scale


@pytest.mark.slow
@pytest.mark.turn(2)
def test_methods_of_every_kind() -> None:
    trainer = Trainer(3)
    assert trainer.train(4) == 12
    assert trainer.train.run_async(5).result() == 15
    assert trainer.train.run_async_map([1, 2]).results() == [3, 6]
    assert Trainer.of_class(1) == ("Trainer", 1)
    assert Trainer.of_nobody(2) == -2 and trainer.of_nobody.run_async(3).result() == -3


@pytest.mark.slow
@pytest.mark.turn(9)
def test_partials_callable_objects_lambdas_and_closures() -> None:
    offset = 100
    run = kinetic.run(accelerator="cpu")
    assert run(functools.partial(int.__add__, 5))(6) == 11
    part = run(functools.partial(add.__kinetic_function__, b=10))
    assert (part.__name__, part(1)) == ("add", 11)
    called = run(Trainer(7))
    assert (called.__name__, called(1)) == ("Trainer", 8)
    assert run(lambda x: x + offset)(1) == 101


def test_a_coroutine_function_is_run_to_its_end() -> None:
    @kinetic.run(accelerator="cpu")
    async def slowly(x: int) -> int:
        import asyncio

        await asyncio.sleep(0.01)
        return x + 1

    value: int = slowly(1)
    assert value == 2


def test_a_function_decorated_by_keras_kinetic_itself_is_taken_as_the_plain_function_inside() -> None:
    class RemoteCallable:  # as that package has it; it cannot be installed beside its own dependencies here
        def __init__(self, function: Any) -> None:
            self._func = function

        def __call__(self, *_: Any) -> None:
            raise AssertionError("it would go to Kinetic's cluster")

    RemoteCallable.__module__ = "kinetic.core.core"
    assert kinetic.run(accelerator="cpu")(RemoteCallable(lambda x: x + 1))(1) == 2


# ---- handles ---------------------------------------------------------------------------------------------------


def test_a_handle_tells_what_it_is(done: kinetic.JobHandle[int]) -> None:
    assert re.fullmatch(r"job-[0-9a-f]{12}", done.job_id)
    assert (done.func_name, done.backend, done.accelerator) == ("add", "local", "cpu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", done.created_at)
    assert done.group_id is None and done.job_id in repr(done)


def test_logs_and_tail(done: kinetic.JobHandle[int], capfd: pytest.CaptureFixture[str]) -> None:
    text = done.logs()
    assert text is not None and sorted(text.splitlines()) == ["adding 1 and 2", "to stderr"]
    assert done.tail(1) == text.splitlines(keepends=True)[-1]
    assert done.tail() == text and done.tail(n=0) == ""
    assert done.logs(follow=True) is None
    assert "adding 1 and 2\n" in capfd.readouterr().out


def test_logs_are_followed_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, shown = tmp_path / "go", io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)  # what a capture takes away while somebody writes may be lost
    job = wait_for.run_async(str(flag))
    thread = threading.Thread(target=job.logs, kwargs={"follow": True})
    thread.start()
    wait_until(lambda: "waiting\n" in shown.getvalue())
    flag.touch()
    thread.join(60)
    assert not thread.is_alive() and job.result() == "seen"


def test_attach_works_from_another_process_after_the_compute_was_released(done: kinetic.JobHandle[int]) -> None:
    program = (
        "import sys, kinetic_orchestration as kinetic\n"
        "job = kinetic.attach(sys.argv[1])\n"
        "print([job.job_id, job.func_name, job.accelerator, job.status().value, job.result(), job.tail(1)])"
    )
    found = subprocess.run([sys.executable, "-c", program, done.job_id], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"['{done.job_id}', 'add', 'cpu', 'SUCCEEDED', 3,")


def test_a_handle_can_be_pickled(done: kinetic.JobHandle[int]) -> None:
    twin = pickle.loads(pickle.dumps(done))
    assert twin.job_id == done.job_id and twin.result() == 3


def test_a_job_id_that_does_not_exist_is_a_lookup_error_that_says_where_it_looked() -> None:
    with pytest.raises(JobNotFound, match=r"no job 'job-000000000000' in .*store/local.*kinetic-orchestration jobs"):
        kinetic.attach("job-000000000000")


def test_a_job_whose_records_are_gone_is_not_found() -> None:
    job = add.run_async(1)
    other = kinetic.attach(job.job_id)
    job.result()
    store = job._job.store
    for entry in list(store.list(f"jobs/{job.job_id}/")):
        store.delete(entry.name)
    assert other.status() is kinetic.JobStatus.NOT_FOUND


def test_result_with_a_timeout_leaves_the_job_alone(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    job = wait_for.run_async(str(flag))
    with pytest.raises(TimeoutError, match=f"{job.job_id} has not ended within 0.2 s; it goes on"):
        job.result(timeout=0.2)
    flag.touch()
    assert job.result(timeout=60, cleanup=None, stream_logs=None) == "seen"


def test_on_status_change_hears_every_change_and_cannot_break_the_job(tmp_path: Path) -> None:
    flag, told = tmp_path / "go", list[kinetic.JobStatus]()
    job = wait_for.run_async(str(flag))

    def tell(status: kinetic.JobStatus) -> None:
        told.append(status)
        if status is RUNNING:
            flag.touch()
        if status is SUCCEEDED:
            raise RuntimeError("a clumsy callback")

    with pytest.warns(UserWarning, match="a clumsy callback") as warned:
        assert job.result(on_status_change=tell) == "seen"
    assert told[-2:] == [RUNNING, SUCCEEDED] and len(set(told)) == len(told)
    assert warned[0].filename == __file__  # the user's own line


def test_result_can_print_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    assert add.run_async(3).result(stream_logs=True) == 5
    assert "adding 3 and 2\n" in capfd.readouterr().out


def test_cancel_ends_the_job_and_releases_its_hosts(tmp_path: Path, shared_home: Path) -> None:
    job = wait_for.run_async(str(tmp_path / "never"))
    wait_until(lambda: "waiting" in (job.logs() or ""))
    began = time.monotonic()
    job.cancel()
    assert time.monotonic() - began < 20  # it does not need its grace
    assert job.status() is kinetic.JobStatus.CANCELLED
    assert not list((shared_home / "run").glob(f"{job.job_id}*"))
    with pytest.raises(JobCancelled, match=f"{job.job_id} was cancelled: cancelled by its user"):
        job.result()
    job.cancel()  # again, without harm


def test_cancelling_what_has_ended_changes_nothing(done: kinetic.JobHandle[int]) -> None:
    done.cancel()
    assert done.status() is SUCCEEDED and done.result() == 3


def test_list_jobs_has_what_has_not_ended_the_newest_first(done: kinetic.JobHandle[int], tmp_path: Path) -> None:
    flag = tmp_path / "go"
    first, second = (wait_for.run_async(str(flag)) for _ in range(2))
    listed = [job.job_id for job in kinetic.list_jobs()]
    assert listed == [second.job_id, first.job_id]
    flag.touch()
    assert [first.result(), second.result()] == ["seen", "seen"]
    assert not {first.job_id, second.job_id, done.job_id} & {job.job_id for job in kinetic.list_jobs()}


def test_events_have_the_metrics_and_the_progress_beside_the_lines() -> None:
    @kinetic.run(accelerator="cpu")
    def train() -> None:
        host = kinetic.current()
        host.log_metrics(step=3, loss=0.5, accuracy=1)
        host.log_metrics(learning_rate=1e-3)
        host.progress(1, 3, unit="epoch")

    job = train.run_async()
    told: list[values.Event] = []
    assert job.follow(told.append) is not None
    metrics = [(event.step, event.values) for event in told if isinstance(event, values.Metrics)]
    assert metrics == [(3, {"loss": 0.5, "accuracy": 1.0}), (None, {"learning_rate": 1e-3})]
    progress = [(event.done, event.total, event.unit) for event in told if isinstance(event, values.Progress)]
    assert progress == [(1, 3, "epoch")]


# ---- failures --------------------------------------------------------------------------------------------------


def test_the_users_own_exception_comes_back_as_itself_with_its_cause_and_the_remote_traceback() -> None:
    job = fail.run_async(0.5)
    with pytest.raises(TooBold) as caught:
        job.result()
    assert caught.value.rate == 0.5 and str(caught.value) == "0.5 is too bold: a reason"
    notes = "\n".join(caught.value.__notes__)
    assert f"Raised on host 0 of job {job.job_id}" in notes
    assert 'raise TooBold(rate, why="a reason") from error' in notes and "KeyError: 'rate'" in notes
    assert f"kinetic-orchestration logs {job.job_id}" in notes
    assert isinstance(caught.value.__cause__, KeyError)
    assert job.status() is kinetic.JobStatus.FAILED and job.logs() == "about to fail\n"
    with pytest.raises(TooBold):  # as often as one asks
        kinetic.attach(job.job_id).result()


def test_an_exception_whose_class_is_not_here_is_a_stand_in_that_names_it() -> None:
    @kinetic.run(accelerator="cpu")
    def fail_elsewhere() -> None:
        folder = os.environ["KINETIC_CHECKPOINT_DIR"]
        Path(folder, "only_on_the_host.py").write_text("class Odd(Exception): pass\n", encoding="utf-8")
        sys.path.insert(0, folder)
        raise __import__("only_on_the_host").Odd("in an odd way")

    with pytest.raises(JobFailed, match=r"only_on_the_host\.Odd: in an odd way") as caught:
        fail_elsewhere()
    assert "Traceback (most recent call last)" in str(caught.value) and isinstance(caught.value, JobError)
    assert caught.value.job_id in str(caught.value) and caught.value.host == 0


def test_a_value_that_cannot_travel_is_said_with_its_repr() -> None:
    @kinetic.run(accelerator="cpu")
    def unpicklable() -> Any:
        return (n for n in range(3))

    with pytest.raises(ResultNotPicklable, match=r"generator.*<generator object"):
        unpicklable()


@pytest.mark.parametrize(("code", "message"), [(3, "exit code 3|SystemExit: 3"), ("a reason", "a reason")])
def test_sys_exit_is_a_failure_with_its_code(code: object, message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        kinetic.run(accelerator="cpu")(lambda: sys.exit(code))()  # type: ignore[arg-type]


def test_a_limit_that_passes_is_a_timeout() -> None:
    @kinetic.run(accelerator="cpu", limits=kinetic.Limits(run=0.3))
    def forever() -> None:
        while True:
            time.sleep(0.01)

    with pytest.raises(JobTimedOut, match=r"longer than its limit of 0.3 s") as caught:
        forever()
    assert isinstance(caught.value, TimeoutError)


# ---- identity --------------------------------------------------------------------------------------------------


def keyed(key: str, function: Callable[..., Any]) -> kinetic.RemoteCallable[..., Any]:
    return kinetic.run(accelerator="cpu", key=key)(function)


def append_and_wait(record: str, flag: str) -> int:
    with Path(record).open("a", encoding="utf-8") as file:
        file.write("run\n")
    while not os.path.exists(flag):
        time.sleep(0.01)
    return len(Path(record).read_text(encoding="utf-8").splitlines())


def test_a_key_attaches_to_the_live_job_and_later_to_its_value_without_a_second_run(tmp_path: Path) -> None:
    record, flag = str(tmp_path / "record"), tmp_path / "go"
    step = keyed("live-then-done", append_and_wait)
    first, second = step.run_async(record, str(flag)), step.run_async(record, str(flag))
    assert first.job_id == second.job_id
    flag.touch()
    assert (first.result(), second.result(), step(record, str(flag))) == (1, 1, 1)


def test_a_key_runs_a_failed_job_again_as_another_with_the_same_checkpoints(tmp_path: Path) -> None:
    def resume() -> list[str]:
        folder = kinetic.current().checkpoint_dir
        Path(folder, f"step-{len(os.listdir(folder))}").touch()
        if len(os.listdir(folder)) < 2:
            raise TooBold(1, why="the first time")
        return sorted(os.listdir(folder))

    step = keyed("failed-then-fine", resume)
    first = step.run_async()
    with pytest.raises(TooBold):
        first.result()
    second = step.run_async()
    assert second.job_id != first.job_id
    assert second.result() == ["step-0", "step-1"]
    assert first.output_dir != second.output_dir


def test_a_key_of_a_cancelled_job_stays_cancelled(tmp_path: Path) -> None:
    step = keyed("cancelled", append_and_wait)
    job = step.run_async(str(tmp_path / "record"), str(tmp_path / "never"))
    job.cancel()
    with pytest.raises(JobCancelled, match=job.job_id):
        step(str(tmp_path / "record"), str(tmp_path / "never"))


def shift(number: int, by: int = 1) -> int:
    return number + by


def moved(number: int, by: int = 1) -> int:
    return number + by


def test_a_key_with_other_arguments_says_so_and_returns_what_it_named(recwarn: pytest.WarningsRecorder) -> None:
    def told() -> list[str]:
        texts = [str(warning.message) for warning in recwarn]
        recwarn.clear()
        return texts

    step = keyed("other-arguments", shift)
    job = step.run_async(1)
    assert job.result() == 2
    assert (step(1), step(1, by=1), step(number=1)) == (2, 2, 2)
    assert told() == []
    assert step(2) == 2
    (text,) = told()
    assert f"names job {job.job_id}, which was submitted before with another value of number, and has ended" in text
    assert step.run_async(2, by=3).job_id == job.job_id
    assert "with other values of by, number, and has ended" in told()[0]
    assert keyed("other-arguments", moved)(1) == 2
    assert "with another function: 'shift'" in told()[0]


def test_a_key_with_other_arguments_is_refused_where_that_was_asked_for(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    step = kinetic.run(accelerator="cpu", key="refuse-others", on_conflict="error")(append_and_wait)
    record, flag = str(tmp_path / "record"), tmp_path / "go"
    job = step.run_async(record, str(flag))
    with pytest.raises(
        KeyTaken, match=rf"'refuse-others' names job {job.job_id}.*another value of flag.*nothing has run"
    ):
        step.run_async(record, "elsewhere")
    flag.touch()
    assert (job.result(), step(record, str(flag))) == (1, 1)
    with pytest.raises(KeyTaken, match="another value of record"):
        step("elsewhere", str(flag))
    assert not recwarn


# ---- data, variables, outputs ----------------------------------------------------------------------------------


def read(what: Any) -> Any:
    if isinstance(what, dict):
        return {name: read(value) for name, value in what.items()}
    if isinstance(what, list | tuple):
        return [read(value) for value in what]
    if isinstance(what, str) and os.path.isdir(what):
        return {name: Path(what, name).read_text(encoding="utf-8") for name in sorted(os.listdir(what))}
    return Path(what).read_text(encoding="utf-8") if isinstance(what, str) else what


@pytest.mark.slow
@pytest.mark.turn(8)
def test_data_anywhere_in_the_arguments_is_a_path_on_the_host(tmp_path: Path) -> None:
    folder = tmp_path / "données"
    folder.mkdir()
    (folder / "a b.csv").write_text("1,2", encoding="utf-8")
    (folder / ".git").write_text("data may be called anything", encoding="utf-8")
    file = tmp_path / "config.json"
    file.write_text("{}", encoding="utf-8")
    content = {".git": "data may be called anything", "a b.csv": "1,2"}
    reader = kinetic.run(accelerator="cpu")(read)
    nested = {"train": kinetic.Data(folder), "others": [kinetic.Data(file), (kinetic.Data(folder), 3)]}
    assert reader(nested) == {"train": content, "others": ["{}", [content, 3]]}
    assert reader(kinetic.Data(file, fuse=True)) == "{}"  # mounted: here, read in place

    @kinetic.run(accelerator="cpu")
    def name_of(path: str) -> str:
        return os.path.basename(path)

    assert name_of(kinetic.Data(file)) == "config.json"  # type: ignore[arg-type]


def test_data_in_volumes_is_at_its_absolute_path(tmp_path: Path) -> None:
    source, mount = tmp_path / "source", tmp_path / "mounted" / "data"
    source.mkdir()
    (source / "train.csv").write_text("1", encoding="utf-8")
    reader = kinetic.run(accelerator="cpu", volumes={str(mount): kinetic.Data(source)})(read)
    assert reader(str(mount)) == {"train.csv": "1"}
    (source / "train.csv").write_text("2", encoding="utf-8")
    assert reader(str(mount)) == {"train.csv": "2"}


def test_captured_variables_arrive_and_no_secret_is_ever_in_the_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables are named exactly or by prefix; values that look like secrets are sent by an inherited pipe."""
    secret = "5up3r-" + os.urandom(8).hex()
    for name, value in {
        "SURFACE_MODE": "open-" + "value", "SURFACE_API_KEY": secret, "MY_PASSWORD": secret + "2", "ODD*NAME": "x",
        "SURFACEXODD": "no",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERAS_BACKEND", "torch")

    @kinetic.run(accelerator="cpu", capture_env_vars=["SURFACE_*", "MY_PASSWORD", "ODD*NAME", "KERAS_*"])
    def look() -> dict[str, str]:
        names = ("SURFACE_MODE", "SURFACE_API_KEY", "MY_PASSWORD", "ODD*NAME")
        return {name: os.environ[name][::-1] for name in names}  # backwards, because the store has what is returned

    job = look.run_async()
    seen = {name: text[::-1] for name, text in job.result().items()}
    assert seen == {
        "SURFACE_MODE": "open-value", "SURFACE_API_KEY": secret, "MY_PASSWORD": secret + "2", "ODD*NAME": "x"
    }  # fmt: skip
    plan = job._job.plan()
    assert set(plan.env) == {"SURFACE_MODE", "ODD*NAME"} and plan.secrets == ("MY_PASSWORD", "SURFACE_API_KEY")
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert any(b"open-value" in path.read_bytes() for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def write_output(text: str) -> tuple[str, str]:
    host = kinetic.current()
    assert os.environ["KINETIC_OUTPUT_DIR"] == host.output_dir
    Path(host.output_dir + "/model.txt").write_text(text, encoding="utf-8")
    return host.output_dir, host.job_id


@pytest.mark.slow
@pytest.mark.turn(9)
def test_outputs_lie_in_the_store_unless_a_folder_is_given(
    shared_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, job_id = kinetic.run(accelerator="cpu")(write_output)("a")
    assert Path(folder) == shared_home / "store" / "local" / "outputs" / job_id
    assert Path(folder, "model.txt").read_text(encoding="utf-8") == "a"
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", str(tmp_path / "set"))
    assert kinetic.run(accelerator="cpu")(write_output)("b")[0] == str(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    assert kinetic.run(accelerator="cpu", output_dir="given")(write_output)("c")[0] == str(tmp_path / "given")
    assert (tmp_path / "given" / "model.txt").read_text(encoding="utf-8") == "c"


def test_off_a_host_current_is_a_harmless_stand_in(home: Path) -> None:
    host = kinetic.current()
    assert (host.job_id, host.attempt, host.host_index, host.host_count) == ("", 1, 0, 1)
    host.log_metrics(step=1, loss=0.1)
    host.progress(1, 2)
    assert Path(host.output_dir).is_dir() and Path(host.checkpoint_dir).is_dir()
    assert os.listdir(home) == ["agent"]  # which the fixture has put there


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="cpu")
def forever():
    print("begun", flush=True)
    while True:
        time.sleep(0.01)

how = sys.argv[1]
if how == "call":
    forever()
job = forever.run_async()
print("id", job.job_id, flush=True)
if how == "result":
    job.result(stream_logs=True)
job.follow(lambda event: print(event, flush=True))
"""


@pytest.fixture
def interrupt(tmp_path: Path) -> Iterator[Callable[[str], tuple[str, str]]]:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED, encoding="utf-8")

    def interrupted(how: str) -> tuple[str, str]:
        with subprocess.Popen(
            [sys.executable, str(program), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            seen = ""
            for line in process.stdout:
                seen += line
                if "begun" in line:
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT, err
            return seen + out, err

    return interrupted


def test_ctrl_c_in_a_blocking_call_cancels(interrupt: Callable[[str], tuple[str, str]]) -> None:
    _, err = interrupt("call")
    found = re.search(r"cancelling (job-\w+)", err)
    assert found is not None, err
    assert "kinetic: cancelled\n" in err
    assert kinetic.attach(found[1]).status() is kinetic.JobStatus.CANCELLED


@pytest.mark.parametrize("how", ["result", "follow"])
def test_ctrl_c_in_result_and_follow_detaches_and_prints_the_command_that_cancels(
    how: str, interrupt: Callable[[str], tuple[str, str]]
) -> None:
    out, err = interrupt(how)
    job = kinetic.attach(re.findall(r"id (job-\w+)", out)[0])
    assert re.search(rf"{job.job_id} goes on\. To end it: \S*kinetic-orchestration cancel {job.job_id}$", err, re.M)
    assert job.status() is RUNNING
    job.cancel()


# ---- debugging -------------------------------------------------------------------------------------------------


@kinetic.run(accelerator="cpu", debug=True)
def debugged(x: int) -> int:
    print("under the debugger")
    return x + 1


def attach_debugger(port: int) -> None:
    """The handshake of the debug adapter protocol, as an editor does it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection, connection.makefile("rwb") as stream:

        def send(number: int, command: str, **arguments: object) -> None:
            request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
            body = json.dumps(request).encode()
            stream.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            stream.flush()

        def receive() -> dict[str, Any]:
            length = 0
            while header := stream.readline().strip():
                name, _, value = header.partition(b":")
                length = int(value) if name == b"Content-Length" else length
            message: dict[str, Any] = json.loads(stream.read(length))
            return message

        send(1, "initialize", adapterID="test")
        send(2, "attach", connect={"host": "127.0.0.1", "port": port})
        while receive().get("event") != "initialized":
            pass
        send(3, "configurationDone")
        while receive().get("command") != "configurationDone":
            pass


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.parametrize("is_taken", [False, True], ids=["", "another session has the usual port"])
def test_debug_waits_for_a_debugger_on_loopback(is_taken: bool) -> None:
    port = 0

    def listening() -> bool:
        nonlocal port
        found = re.search(r"waiting for a debugger on 127\.0\.0\.1:(\d+)", job.logs() or "")
        port = int(found[1]) if found else 0
        return bool(port)

    def taken() -> bool:  # by this test, however long another one has it
        with contextlib.suppress(OSError):
            held.enter_context(socket.create_server(("127.0.0.1", DEBUG_PORT)))
            return True
        return False

    with contextlib.ExitStack() as held:
        if is_taken:
            wait_until(taken)
        job = debugged.run_async(1)
        wait_until(listening)
        assert port != DEBUG_PORT or not is_taken
        assert "under the debugger" not in (job.logs() or "")
        attach_debugger(port)
        assert job.result(timeout=60) == 2 and "under the debugger" in (job.logs() or "")


def test_a_blocking_debug_call_without_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, Path(os.devnull).open(encoding="ascii") as nothing:
        patch.setattr("sys.stdin", nothing)
        with pytest.raises(UsageError, match=r"not a TTY.*KINETIC_NO_TTY_DEBUG=1"):
            debugged(1)


def test_debug_without_debugpy_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(Unsupported, match=r"it needs debugpy.*pip install debugpy"):
        debugged.run_async(1)


def test_debug_on_a_spot_slice_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="preemption would end the session"):
        kinetic.run(accelerator="cpu", debug=True, spot=True)


@kinetic.run(accelerator="cpu")
def fenced(seen: str) -> int:
    import signal

    from kinetic_orchestration.errors import Superseded

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a program that is slow to end
    host = kinetic.current()
    token = host.fence()
    while token == 1:
        Path(seen).touch()
        try:
            host.fence()
        except Superseded as error:
            Path(seen + ".refused").write_text(str(error))
            time.sleep(60)
    return token


@pytest.mark.slow
@pytest.mark.turn(1)
def test_an_attempt_that_is_over_has_no_fence_any_more_and_the_next_one_a_greater(home: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    job = fenced.run_async(str(seen))
    wait_until(seen.exists)
    actions.close(job._job, 1, wire.PREEMPTION, "its machine is taken")
    wait_until((tmp_path / "seen.refused").exists)
    assert (tmp_path / "seen.refused").read_text().startswith(f"attempt 1 of {job.job_id} has its verdict")
    assert job.result(timeout=60) == 2
    assert kinetic.current().fence() == 1


def test_a_fence_that_cannot_be_looked_at_is_none(tmp_path: Path) -> None:
    host = kinetic.HostContext("job-1", 1, _fence=3, _store=str(tmp_path))
    with pytest.raises(Superseded, match="attempt 3 of job-1 is not known"):
        host.fence()
    intent = tmp_path / names.intent("job-1", 3)
    intent.parent.mkdir(parents=True)
    intent.symlink_to(intent)  # what cannot be opened is no answer
    with pytest.raises(Unreachable, match="nobody could say whether attempt 3 of job-1 is the newest"):
        host.fence()
