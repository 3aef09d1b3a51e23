"""The agent and its guard: real processes of the local backend, ended in every way there is."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import JobCancelled, JobFailed, JobLost, JobTimedOut, ResultNotPicklable, StoreError
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.values import Change, Event, Output
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.by_hand import intended
from tests.support.faults import (
    events,
    folder_of,
    gone,
    kill,
    kill_host,
    load_jobs,
    nothing_left,
    result,
    start_broken,
    text,
    trees,
)
from tests.support.waits import wait_until  # fmt: skip

pytestmark = pytest.mark.usefixtures("shared_home")

NONE = kinetic.Retry(infra=0, preemption=0)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("host") / "project", "host_jobs")


def launched(function: Any, *arguments: Any, **options: Any) -> Job:
    """A job that runs, and that nobody follows."""
    return kinetic.run(**{"accelerator": "cpu", **options})(function).run_async(*arguments)._job


def verdict_of(job: Job, attempt: int = 1) -> wire.Verdict:
    name = names.verdict(job.job_id, attempt)
    wait_until(lambda: job.store.read(name) is not None)
    record = job.store.read(name)
    assert record is not None
    return wire.Verdict.decode(record.data)


def said(job: Job, what: str, times: int = 1) -> None:
    """Wait until its programs have printed it."""
    wait_until(lambda: (kinetic.attach(job.job_id).logs() or "").count(what) >= times)


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and bool(path.read_text()))
    return int(path.read_text())


def test_the_value_is_host_0s(jobs: Any) -> None:
    assert result(launched(jobs.of_host_0, accelerator="v5e-16")) == "of host 0"


def test_a_host_of_this_machine_imports_nothing_that_only_others_need(jobs: Any, tmp_path: Path) -> None:
    job = intended(jobs.of_host_0)
    told = f"""
    run = host.Host.run
    def told(self):
        run(self)
        with open({str(tmp_path / "part")!r}, "w") as file:
            file.write(" ".join(sys.modules))
        os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "modules")!r})
    host.Host.run = told
    """
    start_broken(job, tmp_path, told)
    assert result(job) == "of host 0"
    wait_until((tmp_path / "modules").exists)  # the host has more to do after its verdict
    found = (tmp_path / "modules").read_text().split()
    assert "kinetic_orchestration.host.prepare.prepare" in found
    slow = {"socket", "ssl", "urllib", "http", "email", "threading", "subprocess", "shutil", "dataclasses", "inspect"}
    assert not slow.intersection(found)


# ---- the barrier -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_host_that_never_comes_is_named_and_no_program_starts(jobs: Any, tmp_path: Path) -> None:
    function = functools.partial(jobs.until, str(tmp_path / "never"))
    job = intended(function, accelerator="v5e-16", limits=kinetic.Limits(provision=2.0), retry=NONE)
    patient = """
        def barrier(view, real=host.attempt_rules._barrier):  # with those who do come, however late
            return real(view if len(view.started) == 3 else view._replace(barrier_age=0.0))
        host.attempt_rules._barrier = barrier
    """
    for host in (0, 1, 3):
        start_broken(job, tmp_path, patient, host)
    verdict = verdict_of(job)
    assert (verdict.cause, verdict.host) == (wire.INFRASTRUCTURE, 2)
    assert verdict.reason == "host 2 did not start within 2 s"
    with pytest.raises(JobLost, match="host 2 did not start"):
        result(job)
    assert [event for event in kinetic.attach(job.job_id).events() if isinstance(event, Output)] == []


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_host_that_is_lost_is_missed_by_the_others_when_nobody_follows(jobs: Any, tmp_path: Path) -> None:
    job = intended(functools.partial(jobs.until, str(tmp_path / "never")), accelerator="v5e-16", retry=NONE)
    for host in range(4):
        start_broken(job, tmp_path, "host.attempt_rules.LOST = 10.0; peers.BEATS_PACE = 0.1", host)
    found = trees(job)
    kill_host(found[2])
    verdict = verdict_of(job)
    assert (verdict.cause, verdict.host) == (wire.INFRASTRUCTURE, 2)
    assert "no sign of life" in verdict.reason
    wait_until(lambda: all(gone(*tree) for tree in found))
    with pytest.raises(JobLost):
        result(job)


# ---- ends --------------------------------------------------------------------------------------------------


def test_a_program_that_ignores_the_request_to_end_is_killed_after_its_grace(jobs: Any, tmp_path: Path) -> None:
    job = intended(jobs.stubborn)
    start_broken(job, tmp_path, "host.attempt_rules.GRACE['cancelled'] = 0.7")
    tree = trees(job)[0]
    said(job, "ready")
    asked = time.monotonic()
    actions.cancel(job, "enough", "a test")
    with pytest.raises(JobCancelled, match="enough"):
        result(job)
    assert 0.6 < time.monotonic() - asked < attempt_rules.GRACE[wire.CANCELLED] - 5
    wait_until(lambda: gone(*tree))


@pytest.mark.parametrize("how", ["it ends", "it is cancelled", "its agent is killed"])
def test_sessions_of_their_own_and_daemons_that_forked_twice_end_with_the_job(
    jobs: Any, tmp_path: Path, shared_home: Path, how: str
) -> None:
    job = launched(jobs.daemons, str(tmp_path), retry=NONE)
    tree = trees(job)[0]
    left = [pid_in(tmp_path / "session"), pid_in(tmp_path / "daemon")]
    assert not any(gone(pid) for pid in left)
    if how == "it ends":
        (tmp_path / "end").touch()
    elif how == "it is cancelled":
        actions.cancel(job, "", "a test")
    else:
        kill(tree.agent)
    wait_until(lambda: gone(*left) and nothing_left(shared_home))
    assert events(job)


def test_when_guard_and_agent_are_killed_a_release_finds_what_they_left(
    jobs: Any, tmp_path: Path, shared_home: Path
) -> None:
    job = launched(jobs.daemons, str(tmp_path), "session", retry=NONE)
    tree = trees(job)[0]
    session = pid_in(tmp_path / "session")
    kill_host(tree)
    assert not gone(session)
    with pytest.raises(JobLost, match="host 0 and its guard were killed"):
        result(job)
    assert gone(session)
    assert nothing_left(shared_home)


def test_a_limit_of_an_attempt_ends_it(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.until, str(tmp_path / "never"), accelerator="v5e-16", limits=kinetic.Limits(run=0.5))
    with pytest.raises(JobTimedOut, match=r"the attempt ran longer than its limit of 0.5 s"):
        result(job)


def test_a_limit_does_not_lose_a_value_that_is_there(jobs: Any, tmp_path: Path) -> None:
    """Nor does a preemption that comes when every host has ended well."""
    job = intended(jobs.attempt)
    start_broken(job, tmp_path, """
        def on_exit(self, code, real=host.Host._on_exit):
            real(self, code)
            self.preempted = "a notice"
        host.Host._on_exit = on_exit
    """)  # fmt: skip
    assert result(job) == 1


@pytest.mark.parametrize(
    ("how", "told", "logged"),
    [
        ("os._exit(0)", r"ended without an outcome \(os._exit\?\)", ""),
        ("os._exit(7)", "ended with exit code 7", ""),
        ("SIGSEGV", "was ended by SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("real-time signal", "was ended by signal 40", ""),
        ("sys.exit(5)", "SystemExit: 5", ""),
        ("sys.exit('a reason')", "SystemExit: a reason", "a reason"),
    ],
)
def test_every_way_to_end_badly_is_told_as_what_it_is(jobs: Any, how: str, told: str, logged: str) -> None:
    job = launched(jobs.ends, how)
    with pytest.raises(JobFailed, match=told):
        result(job)
    assert logged in (kinetic.attach(job.job_id).logs() or "")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("late", "the program ended with exit code 9 after it had returned its value, which counts"),
        ("abort", "the program was ended by SIGABRT after it had returned its value, which counts"),
    ],
)
def test_a_function_that_has_returned_has_succeeded_however_its_process_ends(jobs: Any, how: str, told: str) -> None:
    """Processes of torch with gloo abort now and then at their very end."""
    job = launched(jobs.ends, how, accelerator="v4-8")
    assert result(job) == 1
    assert (kinetic.attach(job.job_id).logs() or "").count(told) == 2, "of both hosts"


def test_a_program_that_dies_before_its_files_are_sent_has_not_succeeded(jobs: Any) -> None:
    with StorageServer() as server:
        bucket = f"{server.make_bucket('files')}/checkpoints"
        job = launched(jobs.leaves_a_file, server.url, bucket, "first")
        with pytest.raises(JobFailed, match="ended by SIGABRT after it had returned its value, and before its last ch"):
            result(job)
        job = launched(jobs.leaves_a_file, server.url, f"{bucket}-of-another", "last")
        assert result(job) == 1
        assert "which counts" in (kinetic.attach(job.job_id).logs() or "")


def test_a_program_that_dies_before_its_last_checkpoint_is_there_has_not_succeeded(jobs: Any) -> None:
    job = launched(jobs.leaves_a_checkpoint, "first")
    with pytest.raises(JobFailed, match="ended by SIGABRT after it had returned its value, and before its last ch"):
        result(job)
    job = launched(jobs.leaves_a_checkpoint, "last")
    assert result(job) == 1
    assert "which counts" in (kinetic.attach(job.job_id).logs() or "")
    assert list(Path(kinetic.attach(job.job_id).checkpoint_dir).glob("*/step-*/commit.json"))


def test_a_program_whose_python_has_ended_is_not_killed_by_who_asks_for_its_stacks(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.lingers, str(tmp_path / "pid"), str(tmp_path / "go"))
    pid = pid_in(tmp_path / "pid")
    wait_until(lambda: processes.catches(pid, signal.SIGUSR2) is False)
    os.kill(pid, signal.SIGUSR2)
    (tmp_path / "go").touch()
    assert result(job) == 4


def test_a_value_or_an_exception_that_cannot_be_pickled_is_told_with_its_repr(jobs: Any) -> None:
    with pytest.raises(ResultNotPicklable, match=r"generator object returns.<locals>.<genexpr>"):
        result(launched(jobs.returns, "unpicklable"))
    with pytest.raises(JobFailed, match=r"Odd: \(1, <generator object") as caught:
        result(launched(jobs.returns, "an odd exception"))
    told = str(caught.value)  # with the remote traceback
    assert "raise Odd(1, (" in told
    begin = told.partition("Traceback (most recent call last):\n")[2].splitlines()[0]
    assert begin.endswith(", in returns"), "which the user wrote"


def test_a_shells_child_is_asked_to_end_too(tmp_path: Path) -> None:
    """A shell tells nobody below it, and dies at once."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "work.py").write_text(
        "import signal, time\n"
        "asked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(True))\nprint('ready')\n"
        "while not asked:\n    time.sleep(0.02)\n"
        "time.sleep(0.3)\nprint('saved the model')\n"
    )
    shell = ["sh", "-c", f"{shlex.quote(sys.executable)} work.py; true"]
    job = kinetic.command(shell, accelerator="cpu", cwd=tmp_path)._job
    said(job, "ready")
    actions.cancel(job, "", "a test")
    assert text(events(job), 0) == "ready\nsaved the model\n"


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_command_that_is_stuck_shows_the_stacks_of_every_python_below_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "work.py").write_text(
        "import subprocess, sys, time\n"
        "def hangs_here():\n    print('the child', flush=True)\n    time.sleep(60)\n"
        "def waits_for_it():\n    print('the parent', flush=True)\n    subprocess.run([sys.executable, 'work.py', 'child'])\n"
        "hangs_here() if sys.argv[1:] else waits_for_it()\n"
    )
    shell = ["sh", "-c", f"{shlex.quote(sys.executable)} work.py; true"]
    limits = kinetic.Limits(stall=20.0)
    job = kinetic.command(shell, accelerator="cpu", cwd=tmp_path, limits=limits, retry=NONE)._job
    notes = text(events(job), 0, kinds="n")
    assert "in hangs_here" in notes
    assert "in waits_for_it" in notes
    with pytest.raises(JobLost, match="no host printed"):
        result(job)


# ---- agents and guards that are killed ---------------------------------------------------------------------


def test_an_agent_that_is_killed_is_spoken_for_by_its_guard(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.until, str(tmp_path / "go"), accelerator="v5e-16")
    found = trees(job)
    kill(found[1].agent)
    verdict = verdict_of(job)  # and nobody needs to follow the job for it
    assert (verdict.cause, verdict.host) == (wire.INFRASTRUCTURE, 1)
    assert verdict.reason == "the agent of host 1 was ended by SIGKILL"
    wait_until(lambda: all(gone(*tree) for tree in found))
    (tmp_path / "go").touch()
    heard = events(job)
    assert result(job) == 2
    assert "its log may be cut" in text(heard, 1, kinds="n", attempt=1)
    assert text(heard, 0, kinds="n") == ""


def test_a_guard_that_is_killed_is_not_missed_and_leaves_nothing(jobs: Any, tmp_path: Path, shared_home: Path) -> None:
    job = launched(jobs.until, str(tmp_path / "go"), accelerator="v5e-16")
    found = trees(job)
    kill(*(tree.guard for tree in found))
    wait_until(lambda: gone(*(tree.guard for tree in found)))
    assert not any(gone(tree.program) for tree in found)
    (tmp_path / "go").touch()
    wait_until(lambda: nothing_left(shared_home))  # and nobody has looked at the job
    assert result(job) == 1


def test_guard_and_agent_that_are_killed_are_noticed_and_the_next_attempt_follows(
    jobs: Any, tmp_path: Path, shared_home: Path
) -> None:
    job = launched(jobs.until, str(tmp_path / "go"), accelerator="v5e-16")
    found = trees(job)
    kill_host(found[3])
    follower = Follower(job)
    wait_until(lambda: follower.step() is not None or follower.cursor.attempt == 2)
    assert not folder_of(job, 1).exists()
    assert all(gone(*tree) for tree in found)
    (tmp_path / "go").touch()
    assert result(job) == 2
    assert "host 3 and its guard were killed" in verdict_of(job).reason


def test_the_budget_for_lost_hosts_is_kept(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.until, str(tmp_path / "never"), retry=kinetic.Retry(infra=1))
    for attempt in (1, 2):
        follower = Follower(job)
        wait_until(lambda follower=follower, attempt=attempt: follower.step() or follower.cursor.attempt == attempt)
        kill(trees(job, attempt)[0].agent)
        verdict_of(job, attempt)
    with pytest.raises(JobLost, match="in attempt 2"):
        result(job)
    assert kinetic.attach(job.job_id).attempts() == 2


def test_when_one_host_dies_the_last_lines_of_the_others_arrive(jobs: Any, tmp_path: Path) -> None:
    job = intended(jobs.has_last_words, accelerator="v5e-16", retry=NONE)
    for host in range(4):
        start_broken(job, tmp_path, "host.attempt_rules.SIBLING_GRACE = 30.0", host)
    found = trees(job)
    said(job, "ready", times=4)
    kill_host(found[2])
    heard = events(job)
    for host in (0, 1, 3):
        assert text(heard, host).endswith("last word 99\nand the very last")


def test_a_preempted_attempt_is_followed_by_one_that_finds_its_checkpoints(jobs: Any, tmp_path: Path) -> None:
    job = launched(jobs.checkpoints, str(tmp_path / "never"), accelerator="v5e-16")
    said(job, "running", times=4)
    for tree in trees(job):
        kill(tree.guard, number=signal.SIGTERM)
    assert result(job) == [1, 2]
    assert verdict_of(job).cause == wire.PREEMPTION


def test_a_machine_that_ends_all_its_processes_is_a_preemption_and_no_failure_of_the_program(
    jobs: Any, tmp_path: Path
) -> None:
    """The program may die of it before its agent hears."""
    job = intended(functools.partial(jobs.checkpoints, str(tmp_path / "never")))
    start_broken(job, tmp_path, "host.attempt_rules.ECHO = 30.0")
    said(job, "running")
    tree = trees(job)[0]
    kill(tree.program, number=signal.SIGTERM)
    time.sleep(0.2)
    kill(tree.agent, tree.guard, number=signal.SIGTERM)
    assert result(job) == [1, 2]


@pytest.mark.slow
def test_a_host_that_others_have_left_behind_soon_shows_where_it_waits(shared_home: Path, tmp_path: Path) -> None:
    """Such a host's last collective misses a partner."""
    begun, go = tmp_path / "begun", tmp_path / "go"

    def waits_on_host_1() -> int:
        if kinetic.current().host_index == 1:
            begun.touch()
        while not (go if kinetic.current().host_index == 1 else begun).exists():
            time.sleep(0.05)
        return 1

    job = intended(waits_on_host_1, accelerator="v5e-16")
    for number in range(4):
        start_broken(job, tmp_path, "peers.REPORT_LEFT_BEHIND = 0.5", number)
    follower, heard = Follower(job), list[Event]()

    def shown() -> bool:
        assert follower.step(heard.append) is None
        return "in waits_on_host_1" in text(heard, 1, kinds="n")

    try:
        wait_until(shown)
        assert " done; the stacks of this host follow" in text(heard, 1, kinds="n")
    finally:
        go.touch()
    assert result(job) == 1


def test_a_store_that_failed_within_a_training_is_not_the_users_failure(shared_home: Path) -> None:
    def meets() -> None:
        import errno

        from kinetic_orchestration.protocol.records.base import RecordsError

        raise RecordsError(errno.EIO, "Cannot read where the others are: no answer.")

    job = launched(meets, retry=NONE)
    with pytest.raises(JobLost, match="no answer"):
        result(job)
    assert verdict_of(job).cause == wire.INFRASTRUCTURE


def raised_by_us(kind: type[BaseException], where: str) -> None:
    """Have one of our own modules raise it below what the user calls."""
    import errno
    from unittest import mock

    import kinetic_orchestration as kinetic
    from kinetic_orchestration.program import context, loop
    from kinetic_orchestration.protocol.records.base import TooLarge

    ours: dict[str, Any] = {"__name__": "kinetic_orchestration.program.checkpoints.store"}
    exec("def meets(*_, **__):\n    raise error", ours)
    if kind is TooLarge:
        ours["error"] = TooLarge("name", "store", 1)
    else:
        system = issubclass(kind, OSError) and not issubclass(kind, errors.KineticError)
        ours["error"] = kind(errno.ENOSPC, "told") if system else kind("told")
    if where == "Training":
        with mock.patch.object(loop.Training, "__enter__", ours["meets"]), kinetic.Training(name="t"):
            pass
    elif where == "current":
        with mock.patch.object(context.HostContext, "__init__", ours["meets"]):
            kinetic.current()
    else:
        here = kinetic.current()
        with mock.patch.object(context.HostContext, "_record", ours["meets"]):
            here.progress(1) if where == "progress" else here.log_metrics(1, loss=1.0)
    raise AssertionError(f"nothing came of {where}")


def _below(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*map(_below, kind.__subclasses__()))


def our_errors() -> list[type[BaseException]]:
    from kinetic_orchestration.host.machine.bucket_records import NoObject
    from kinetic_orchestration.program.checkpoints import agreement, parts
    from kinetic_orchestration.protocol.records.base import RecordsError, TooLarge

    found = {each for each in _below(errors.KineticError) if each.__module__ == errors.__name__}
    more = [RecordsError, NoObject, TooLarge, OSError, wire.Unreadable, wire.Newer, parts.Torn, agreement.Alone]
    return [*sorted(found, key=lambda each: each.__name__), *more]


CALLS = ("Training", "log_metrics", "progress", "current")


def test_no_error_of_ours_is_charged_to_the_user(shared_home: Path) -> None:
    """Each of them, raised in each call, and what the child says of it."""
    kinds = our_errors()
    told = result(launched(charged, kinds, retry=NONE))
    assert len(told) == len(kinds) * len(CALLS)
    for (kind, where), cause in told.items():
        configured = issubclass(
            kind, errors.UsageError | errors.CheckpointDiffers | errors.DataChanged | errors.EngineNotStarted
        )
        assert (kind, where, cause) == (kind, where, wire.CONFIGURATION if configured else wire.INFRASTRUCTURE)


def charged(kinds: list[type[BaseException]]) -> dict[tuple[type[BaseException], str], str]:
    from kinetic_orchestration.host.process import child

    told = {}
    for kind in kinds:
        for where in CALLS:
            try:
                raised_by_us(kind, where)
            except BaseException as error:
                told[kind, where] = child._cause(error) if type(error) is kind else f"{error!r} came in its place"
    return told


def meets_a_broken_disk(what: str) -> str:
    import os
    import shutil

    import kinetic_orchestration as kinetic
    from kinetic_orchestration.host.process import child

    here = kinetic.current()
    if what == "checkpoints":
        shutil.rmtree(here.checkpoint_dir, ignore_errors=True)
        Path(here.checkpoint_dir).write_text("no folder")
        with kinetic.Training(name="t") as training:
            training.restore({"a": 1.0})
    try:
        if what == "events":
            os.environ["KINETIC_EVENTS"] = "/dev/null/none"
            kinetic.current().progress(1)
        elif what == "environment":
            del os.environ["KINETIC_HOST_COUNT"]
            kinetic.current()
        elif what == "metrics":
            here.log_metrics(1, loss="much")  # type: ignore[arg-type]
        elif what == "own":
            open("/dev/null/none")  # noqa: PTH123, SIM115
    except Exception as error:
        return child._cause(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    ("what", "cause"),
    [("events", wire.INFRASTRUCTURE), ("environment", wire.INFRASTRUCTURE), ("metrics", ""), ("own", "")],
)
def test_a_disk_that_fails_below_a_call_of_ours_is_not_the_users_failure(
    shared_home: Path, what: str, cause: str
) -> None:
    assert result(launched(meets_a_broken_disk, what, retry=NONE)) == cause


def test_a_training_whose_disk_fails_is_not_the_users_failure(shared_home: Path) -> None:
    job = launched(meets_a_broken_disk, "checkpoints", retry=NONE)
    with pytest.raises(JobLost):
        result(job)
    assert verdict_of(job).cause == wire.INFRASTRUCTURE


def test_a_function_that_python_itself_calls_fails_by_itself(shared_home: Path) -> None:
    """Below which there is no frame but the child's."""
    import operator

    with pytest.raises(KeyError):
        result(launched(operator.getitem, {}, "missing", retry=NONE))


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.parametrize("where", CALLS)
def test_a_store_that_fails_below_what_the_user_calls_is_not_the_users_failure(shared_home: Path, where: str) -> None:
    job = launched(raised_by_us, errors.Unreachable, where, retry=NONE)
    with pytest.raises(JobLost, match="told") as lost:
        result(job)
    assert isinstance(lost.value.__cause__, errors.Unreachable)


def test_a_mistake_in_a_call_of_ours_comes_back_as_itself(shared_home: Path) -> None:
    with pytest.raises(errors.UsageError, match="told"):
        result(launched(raised_by_us, errors.UsageError, "progress", retry=NONE))


def test_an_exception_of_ours_that_the_function_raises_by_itself_is_its_own(shared_home: Path) -> None:
    def raises() -> None:
        from kinetic_orchestration.errors import StoreError

        raise StoreError("of the user's making")

    with pytest.raises(StoreError, match="of the user's making"):
        result(launched(raises, retry=NONE))


def waits_long() -> None:
    time.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize("slept", [False, True], ids=["awake", "slept"])
def test_a_job_that_nobody_takes_ends_and_one_whose_machine_slept_waits_for_whoever_wakes_later(
    tmp_path: Path, slept: bool
) -> None:
    """The record of the hand-over is then as old as the sleep was long, by the store's clock."""
    job = intended(waits_long, orchestrator="airflow", retry=NONE)
    within = 30.0 if slept else 2.0
    job.store.put(names.keeper(job.job_id), wire.encode({"keeper": "gone", "within": within}))
    seen = tmp_path / "seen"
    start_broken(
        job,
        tmp_path,
        f"""
        from kinetic_orchestration.host.view import files
        def keeper(self, look=files.FileView.keeper):
            os.makedirs({str(seen)!r} + "/" + str(time.monotonic()))
            kept, moment = look(self)
            return kept, moment + {3600.0 if slept else 0.0}
        files.FileView.keeper = keeper
        """,
    )
    if not slept:
        assert "nobody has taken it over within 2 s" in verdict_of(job).reason
        return
    wait_until(lambda: seen.exists() and len(list(seen.iterdir())) > 1)  # the first look would have ended it
    assert job.store.read(names.cancel(job.job_id)) is None
    actions.cancel(job, "enough", "this test")
    assert verdict_of(job).cause == wire.CANCELLED


@pytest.fixture
def small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home on a disk of its own, of a few MiB; the store lies elsewhere."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "kinetic-test", str(place)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    monkeypatch.setenv("KINETIC_HOME", str(place))
    monkeypatch.setenv("KINETIC_STORE", str(tmp_path / "store"))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fills_the_disk(folder: str, patience: float) -> bytes:
    frame: Any = sys._getframe()
    while "REPORT_PATIENCE" not in frame.f_globals:
        frame = frame.f_back
    frame.f_globals["REPORT_PATIENCE"] = patience
    with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:  # noqa: PTH123
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return b"\xff" * 300_000


def test_a_disk_that_is_full_when_the_function_returns_is_waited_for_and_told_of_at_once(
    small_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = launched(fills_the_disk, str(small_home), 60.0, retry=NONE)
    seen, heard = kinetic.attach(job.job_id), list[Event]()
    with ThreadPoolExecutor() as pool:
        awaited = pool.submit(seen.follow, heard.append, timeout=60)
        told = f"host 0 waits for room on its disk at {folder_of(job)}/host-0"
        wait_until(lambda: Change("waiting", told, 1) in heard, within=10)
        said(job, "the disk is full. It is kept in memory")
        assert main(["status", job.job_id]) == codes.RUNNING
        assert f"RUNNING (waiting, {told}" in capsys.readouterr().out
        assert main(["jobs"]) == 0
        assert re.search(rf"{job.job_id}: {told}$", capsys.readouterr().err, re.M)
        main(["reap"])
        assert re.search(rf" waits +{told}", capsys.readouterr().out)
        (small_home / "filler").unlink()
        awaited.result(60)
    assert [event.phase for event in heard if isinstance(event, Change)][-2:] == ["running", "succeeded"]
    assert result(job) == b"\xff" * 300_000
    assert seen.peek().message == ""


@pytest.mark.slow
def test_what_cannot_be_written_on_a_full_disk_is_no_failure_of_the_user(small_home: Path) -> None:
    job = launched(fills_the_disk, str(small_home), 1.0, retry=NONE)
    verdict = verdict_of(job)
    (small_home / "filler").unlink(missing_ok=True)
    assert verdict.cause == wire.INFRASTRUCTURE
    assert "could not be written" in verdict.reason


@pytest.fixture
def small_store(small_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store is on that disk, too."""
    monkeypatch.delenv("KINETIC_STORE")
    return small_home


def fills_the_store(folder: str, raises: bool) -> int:
    """A file that leaves no room for a byte more, and a line whose record needs some."""
    with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:  # noqa: PTH123
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    print("x" * 20_000, flush=True)
    if raises:
        raise ValueError("too steep")
    return 7


@pytest.mark.parametrize("raises", [False, True], ids=["a value", "an exception"])
def test_a_store_whose_disk_is_full_is_told_of_at_once_and_waited_for(
    small_store: Path, raises: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    job = kinetic.attach(launched(fills_the_store, str(small_store), raises, retry=NONE).job_id)
    with ThreadPoolExecutor() as pool:
        awaited = pool.submit(job.result, timeout=60)
        wait_until(lambda: job.peek().phase == "waiting", within=10)
        assert "host 0 waits for room: the disk of the store is full" in job.peek().message
        assert main(["status", job.job_id]) == codes.RUNNING
        # Whether it runs may be among what it could not say.
        assert re.search(r"(RUNNING|PENDING) \(waiting, host 0 waits for room", capsys.readouterr().out)
        assert main(["jobs"]) == 0
        assert re.search(rf"{job.job_id}: host 0 waits for room: [^;]*$", capsys.readouterr().err, re.M)
        main(["reap"])
        assert re.search(r" waits  +host 0 waits for room", capsys.readouterr().out)
        assert not awaited.done()
        (small_store / "filler").unlink()
        if raises:
            with pytest.raises(ValueError, match="too steep"):
                awaited.result(60)
        else:
            assert awaited.result(60) == 7
    assert job.attempts() == 1


def test_a_dead_host_whose_last_words_had_no_room_left_a_sign_of_it(jobs: Any) -> None:
    job = intended(jobs.of_host_0)
    run = folder_of(job)
    run.mkdir(parents=True)
    lock = run / "host-0.json"
    lock.touch()
    seen = kinetic.attach(job.job_id)
    for mode, said in ((0o600, "host 0 and its guard were killed"), (0o700, "host 0 ended, as the disk of the store")):
        lock.chmod(mode)
        assert said in seen.peek().message
    actions.release_all(job, 1)
    assert not run.exists()


@pytest.mark.slow
def test_of_a_host_that_gave_up_a_disk_that_stayed_full_it_is_said(small_store: Path, tmp_path: Path) -> None:
    job = intended(functools.partial(fills_the_store, str(small_store), False), retry=NONE)
    run = folder_of(job)
    start_broken(job, tmp_path, "retrying_records.STORE_PATIENCE = 0.5")
    seen = kinetic.attach(job.job_id)
    wait_until(lambda: "the disk of the store stayed full" in str(seen.peek()), within=30)
    (small_store / "filler").unlink()
    with pytest.raises(JobLost, match="the disk of the store stayed full"):
        seen.result(timeout=60)
    assert not run.exists()


@pytest.mark.turn(4)
@pytest.mark.slow
def test_hosts_that_showed_nothing_for_long_may_still_end_one_after_the_other(
    shared_home: Path, tmp_path: Path
) -> None:
    """One that is done has shown something: only a silence since then is one of the others."""

    def is_quiet() -> int:
        import threading

        late = 3.0 if kinetic.current().host_index else 0.0
        time.sleep(22.0 + late)
        threading.Thread(target=time.sleep, args=(4.0 - late,)).start()  # the program goes on when its function is done
        return 1

    job = intended(is_quiet, accelerator="v5e-16", retry=NONE)
    for number in range(4):
        start_broken(job, tmp_path, "host.attempt_rules.DESERTED, peers.BEATS_PACE = 20.0, 0.2", number)
    assert result(job) == 1


# ---- records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b'{"wire": 99, "kind": "?"}'], ids=["torn", "zeros", "newer"])
def test_hosts_end_at_a_verdict_that_they_cannot_read(
    jobs: Any, tmp_path: Path, shared_home: Path, data: bytes
) -> None:
    job = launched(jobs.until, str(tmp_path / "never"))
    tree = trees(job)[0]
    job.store.create(names.verdict(job.job_id, 1), data)
    wait_until(lambda: gone(*tree) and nothing_left(shared_home))
    with pytest.raises((StoreError, JobLost), match="verdict"):
        result(job)


@pytest.mark.slow
def test_a_beat_that_a_power_cut_tore_is_no_reason_to_fail(jobs: Any, tmp_path: Path) -> None:
    """Hosts read each other's beats when all was silent for a while, and then say so."""
    job = intended(functools.partial(jobs.until, str(tmp_path / "go")), accelerator="v5e-16")
    for host in range(4):
        start_broken(job, tmp_path, "peers.REPORT_SILENCE = 2.0", host)
    trees(job)
    follower, heard = Follower(job), list[Event]()

    def was_read() -> bool:
        job.store.put(names.beat(job.job_id, 1, 1), b"\0" * 40)
        assert follower.step(heard.append) is None
        return "no host has shown progress" in text(heard, 0, kinds="n")

    wait_until(was_read)
    (tmp_path / "go").touch()
    assert result(job) == 1
