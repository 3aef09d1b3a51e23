"""The faults of the control plane that need no cloud, each with real processes that are really killed."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Corrupt, JobCancelled, JobError, JobLost
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.values import Cursor, Output
from kinetic_orchestration.protocol import names, wire
from tests.end_to_end.faults import submitter
from tests.support.bucket import unsummed
from tests.support.by_hand import intended, words_of
from tests.support.faults import (
    events,
    folder_of,
    gone,
    kill,
    kill_host,
    nothing_left,
    result,
    start_broken,
    stopped,
    text,
    trees,
)
from tests.support.waits import wait_until  # fmt: skip

pytestmark = pytest.mark.usefixtures("shared_home")

ONE = kinetic.Retry(infra=1, preemption=1)
NONE = kinetic.Retry(infra=0, preemption=0)


def launched(function: Any, *arguments: Any, **options: Any) -> Job:
    """A job that runs, and that nobody follows."""
    job = kinetic.run(**{"accelerator": "cpu", **options})(function).run_async(*arguments)
    return job._job


@pytest.fixture(scope="module")
def submit(tmp_path_factory: pytest.TempPathFactory, shared_home: Path) -> Any:
    """Runs `submitter.py` from a small project of its own."""
    folder = tmp_path_factory.mktemp("submitter")
    (folder / "pyproject.toml").touch()
    shutil.copy(submitter.__file__, folder / "submitter.py")

    def run(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "submitter.py", *words], cwd=folder, capture_output=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f01_a_submitter_may_be_killed_at_any_line(submit: Any) -> None:
    """Killed before the intent, after it, after the create call: the next submitter of the key finds one job and one
    result."""
    found = submit("lines", "7")
    assert found["wrong"] == []
    assert found["killed"] > 15


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f01_a_submitter_may_be_killed_between_two_hosts_of_a_slice(submit: Any) -> None:
    assert submit("hosts") == {"wrong": []}


@pytest.mark.slow
def test_f03_several_orchestrators_that_race_for_one_identity_get_one_job(submit: Any) -> None:
    assert submit("race") == {"ended": [0] * 6, "values": 1, "runs": 4}


def test_f04_a_stale_submitter_that_wakes_up_late_starts_nothing(submit: Any, shared_home: Path) -> None:
    assert submit("stale") == {"ended": 0, "values": 1, "runs": 1}
    wait_until(lambda: nothing_left(shared_home))


def test_f14_a_host_that_reboots_in_mid_run_ends_the_attempt_and_the_next_one_finishes(
    jobs: Any, tmp_path: Path
) -> None:
    job = launched(jobs.until, str(tmp_path / "go"), accelerator="v5e-16")
    host = trees(job)[2]
    words = Path(f"/proc/{host.guard}/cmdline").read_text().split("\0")[:-1]
    kill_host(host)
    subprocess.run(words, input=b"{}", check=True, timeout=30)  # as the startup script does at each boot
    (tmp_path / "go").touch()
    assert result(job) == 2
    first = kinetic.attach(job.job_id).history()[0].verdict
    assert first is not None
    assert (first.cause, first.host) == (wire.INFRASTRUCTURE, 2)
    assert first.reason == "the agent of this host was started again in mid-run"


@pytest.mark.parametrize("pause", [0.3, 0.0, -0.3], ids=["later", "at once", "earlier"])
def test_f15_the_failure_shown_is_that_of_the_host_that_failed_and_not_its_siblings(
    jobs: Any, tmp_path: Path, pause: float
) -> None:
    """Even when its siblings hear of it before it has said so itself."""
    job = intended(functools.partial(jobs.echoes, str(tmp_path), 2, pause), accelerator="v5e-16")
    for host in range(4):
        start_broken(job, tmp_path, "host.attempt_rules.ECHO = 30.0", host)
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        result(job)
    assert "on host 2" in caught.value.__notes__[0]


def test_f15_a_collective_that_another_hosts_death_has_torn_is_not_the_programs_failure(
    jobs: Any, tmp_path: Path
) -> None:
    """Gloo may know before anybody says that a host is gone."""
    job = intended(functools.partial(jobs.dies_in_gloo, str(tmp_path), 1), accelerator="v4-8", retry=ONE)
    for host in range(2):
        start_broken(job, tmp_path, "host.attempt_rules.ECHO = 30.0", host)
    culprit = trees(job)[1]
    (tmp_path / "lost").touch()
    wait_until(lambda: job.store.read(names.host(job.job_id, 1, 0, "exit.json")) is not None)
    kill(culprit.agent)
    assert result(job) == 2
    first = kinetic.attach(job.job_id).history()[0].verdict
    assert first is not None
    assert (first.cause, first.host) == (wire.INFRASTRUCTURE, 1)


def test_f15_a_host_that_fails_when_the_others_have_ended_well_is_heard_with_its_exception(
    jobs: Any, tmp_path: Path
) -> None:
    job = launched(jobs.last_one_fails, str(tmp_path), accelerator="v5e-16")
    with pytest.raises(ValueError, match="the last one"):
        result(job)


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f16_a_host_that_is_alive_but_stuck_is_ended_with_the_stacks_of_every_host_in_the_log(jobs: Any) -> None:
    job = launched(jobs.stuck, accelerator="v5e-16", limits=kinetic.Limits(stall=20.0), retry=NONE)
    heard = events(job, 110.0)  # sooner than it would wake up
    for host in range(4):
        assert "in hangs_here" in text(heard, host, kinds="n")
        assert text(heard, host) == "then nothing\n"
    with pytest.raises(JobLost, match=r"no host printed, logged or progressed for \d+ s \(the limit is 20 s\)"):
        result(job)


def test_f17_a_preemption_during_the_upload_of_the_result_does_not_lose_it(jobs: Any, tmp_path: Path) -> None:
    job = intended(jobs.attempt)
    start_broken(job, tmp_path, """
        def upload(*arguments, real=retrying_records.RetryingRecords.upload, **options):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(0.2)
            return real(*arguments, **options)
        retrying_records.RetryingRecords.upload = upload
    """)  # fmt: skip
    assert result(job) == 1


def test_f17_an_agent_that_is_killed_during_the_upload_is_followed_by_another_attempt(
    jobs: Any, tmp_path: Path
) -> None:
    job = intended(jobs.attempt)
    start_broken(job, tmp_path, """
        def upload(*arguments, real=retrying_records.RetryingRecords.upload, **options):
            real(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        retrying_records.RetryingRecords.upload = upload
    """)  # fmt: skip
    assert result(job) == 2
    verdict = kinetic.attach(job.job_id).history()[0].verdict
    assert verdict is not None
    assert verdict.reason == "the agent of host 0 was ended by SIGKILL"


def test_f18_a_zombie_attempt_cannot_commit_late(jobs: Any, tmp_path: Path) -> None:
    job = intended(jobs.attempt)
    start_broken(job, tmp_path, f"""
        def commit(self, *about, real=outcome.Outcome._commit):
            open({str(tmp_path / "asleep")!r}, "w").write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            real(self, *about)
        outcome.Outcome._commit = commit
    """)  # fmt: skip
    asleep = tmp_path / "asleep"
    wait_until(lambda: asleep.exists() and asleep.read_text())
    zombie = int(asleep.read_text())
    wait_until(lambda: stopped(zombie))
    actions.close(job, 1, wire.INFRASTRUCTURE, "given up")
    follower = Follower(job)
    assert follower.step() is None
    kill(zombie, number=signal.SIGCONT)
    assert result(job) == 2
    verdicts = [attempt.verdict.kind for attempt in kinetic.attach(job.job_id).history() if attempt.verdict]
    assert verdicts == ["closed", "committed"]


@pytest.mark.parametrize("commits_first", [True, False], ids=["and loses the reply", "before it writes"])
def test_f19_a_store_that_refuses_for_a_moment_costs_nothing(jobs: Any, tmp_path: Path, commits_first: bool) -> None:
    """The store refuses at the verdict, at the log and at the start of a host: one attempt, every line once."""
    job = _with_arguments(jobs.writes_lines, 50)
    start_broken(job, tmp_path, f"""
        def refuse(verb, mark):
            def refused(self, name, *arguments, real=getattr(files.FileRecords, verb), **options):
                first = once(mark + name.rsplit("/", 1)[-1])
                if {commits_first} and verb != "append" and first:
                    real(self, name, *arguments, **options)
                if first:
                    raise base.RecordsError(errno.EIO, "the disk, or the network below it, failed")
                return real(self, name, *arguments, **options)
            setattr(files.FileRecords, verb, refused)
        refuse("create", "create-")
        refuse("append", "append-")
        refuse("upload", "upload-")
        refuse("read", "read-")
    """)  # fmt: skip
    heard = events(job)
    assert text(heard, 0) == "".join(f"line {number} of host 0\n" for number in range(50))
    assert result(job) == 50
    assert kinetic.attach(job.job_id).attempts() == 1


def _with_arguments(function: Any, *arguments: Any) -> Job:
    import functools

    return intended(functools.partial(function, *arguments))


def test_f20_a_log_reader_that_dies_in_mid_segment_leaves_no_gap_and_replays_the_same(
    jobs: Any, tmp_path: Path
) -> None:
    """Each reader goes on from the last cursor that was saved; by (host, segment, offset) every frame is unique."""
    job = launched(jobs.writes_lines, 2000, str(tmp_path / "go"), accelerator="v5e-16")
    seen: dict[tuple[int, int, int], Output] = {}
    saved, left = json.dumps(Cursor().to_json()), 1

    class Died(Exception):
        pass

    def emit(event: Any) -> None:
        nonlocal left
        if not isinstance(event, Output):
            return
        key = (event.host, event.segment, event.offset)
        assert seen.setdefault(key, event) == event
        left -= 1
        if left == 0:
            raise Died

    outcome, deaths, deadline = None, 0, time.monotonic() + 60
    while outcome is None:
        assert time.monotonic() < deadline
        follower = Follower(job, Cursor.from_json(json.loads(saved)))
        try:
            outcome = follower.step(emit)
        except Died:
            deaths += 1
            left = 1 + deaths
            (tmp_path / "go").touch()
        saved = json.dumps(follower.cursor.to_json())
    for host in range(4):
        told = b"".join(event.text for key, event in sorted(seen.items()) if key[0] == host)
        assert told.decode() == "".join(f"line {number} of host {host}\n" for number in range(2000))
    assert deaths > 2


@pytest.mark.parametrize("how", ["preempted", "cancelled"])
def test_f21_the_last_lines_on_sigterm_arrive(jobs: Any, tmp_path: Path, how: str) -> None:
    job = intended(jobs.has_last_words, retry=NONE)
    start_broken(job, tmp_path, "host.attempt_rules.GRACE['preemption'] = 30.0")
    tree = trees(job)[0]
    wait_until(lambda: "ready" in (kinetic.attach(job.job_id).logs() or ""))
    if how == "preempted":
        kill(tree.guard, number=signal.SIGTERM)
    else:
        actions.cancel(job, "enough", "a test")
    said = text(events(job), 0)
    assert said == "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"


def test_f23_a_slice_whose_orchestrator_is_gone_for_ever_finishes_and_removes_itself(
    jobs: Any, tmp_path: Path, shared_home: Path
) -> None:
    job = launched(jobs.until, str(tmp_path / "go"), accelerator="v5e-16")
    found = trees(job)
    (tmp_path / "go").touch()
    wait_until(lambda: nothing_left(shared_home))  # and nobody has looked at the job
    wait_until(lambda: all(gone(*tree) for tree in found))
    assert result(job) == 1


def test_f27_clocks_that_are_off_by_ten_minutes_change_nothing(jobs: Any, tmp_path: Path) -> None:
    """Ages are the store's: nobody is taken for dead or stuck, and the lines of all hosts lie in one time."""
    import functools

    function = functools.partial(jobs.until, str(tmp_path / "go"))
    job = intended(function, accelerator="v5e-16", limits=kinetic.Limits(stall=20.0, run=60.0))
    began = job.store.now()
    for host in range(4):
        start_broken(job, tmp_path, f"""
            real, real_ns = time.time, time.time_ns
            time.time = lambda: real() + {(host - 1) * 600}
            time.time_ns = lambda: real_ns() + {(host - 1) * 600} * 10**9
        """, host)  # fmt: skip
    trees(job)
    (tmp_path / "go").touch()
    heard = events(job)
    assert result(job) == 1
    times = {event.host: event.time for event in heard if isinstance(event, Output)}
    assert len(times) == 4
    assert all(began - 1 < moment < job.store.now() + 1 for moment in times.values()), times


def test_f28_topology_variables_left_from_elsewhere_are_replaced_by_the_slices_own(
    jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_PROCESS_ID": "7", "MEGASCALE_SLICE_ID": "3",
        "TPU_WORKER_HOSTNAMES": "gone-1,gone-2", "RANK": "7", "MASTER_ADDR": "10.0.0.1", "TF_CONFIG": "{}",
        "WORLD_SIZE": "99", "NODE_RANK": "4",
    }  # fmt: skip
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    captured = kinetic.run(accelerator="v5e-16", capture_env_vars=["RANK", "TPU_*", "MASTER_ADDR", "JAX_*"])
    found = captured(jobs.topology).run_async().result(timeout=60)
    assert (found["RANK"], found["WORLD_SIZE"], found["JAX_PROCESS_ID"]) == ("0", "4", "0")
    assert json.loads(found["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert found["NODE_RANK"] == "0"
    assert not {"MEGASCALE_SLICE_ID", "TPU_WORKER_HOSTNAMES"} & set(found)
    alone = kinetic.run(accelerator="cpu", capture_env_vars=["RANK"])(jobs.topology).run_async().result(timeout=60)
    assert not {"JAX_COORDINATOR_ADDRESS", "TF_CONFIG"} & set(alone)
    assert (alone["RANK"], alone["NODE_RANK"], alone["WORLD_SIZE"], alone["MASTER_ADDR"]) == (
        "0",
        "0",
        "1",
        "127.0.0.1",
    )


@pytest.mark.parametrize("what", ["payload", "tree", "spec"])
def test_f29_what_was_changed_on_its_way_is_not_run_and_not_tried_again(jobs: Any, tmp_path: Path, what: str) -> None:
    """And a blob that is not what its name says is removed, so that the next submission brings a good one."""
    marks = tmp_path / "ran"
    job = _with_arguments(submitter.work, str(marks)) if what == "spec" else _with_arguments(jobs.until, str(marks))
    spec = job.spec()
    root = Path(job.store.url)
    if what == "payload":
        target = root / names.blob(spec["staged"]["payload"]["digest"])
    elif what == "tree":
        from kinetic_orchestration.protocol.content import tree

        manifest = json.loads((root / names.tree(spec["staged"]["tree"])).read_bytes())
        target = root / names.blob(tree.packs_of(manifest)[0].id)
    else:
        target = root / names.spec(job.job_id)
    words = words_of(job)
    data = bytearray(target.read_bytes())
    if what == "spec":  # a digit of a digest becomes another: it can be read all the same
        where = data.index(spec["staged"]["payload"]["digest"].encode())
        data[where : where + 1] = b"1" if data[where : where + 1] == b"0" else b"0"
    else:
        data[len(data) // 2] ^= 1
    target.write_bytes(json.dumps(unsummed(data)).encode() if what == "spec" else data)
    start_broken(job, tmp_path, "", words=words)
    with pytest.raises(JobError, match=r"not the one that was submitted|was sent|were sent") as caught:
        result(job)
    assert caught.value.cause == wire.CONFIGURATION
    assert not marks.exists()
    assert kinetic.attach(job.job_id).attempts() == 1
    if what != "spec":
        assert not target.exists()
        assert result(launched(jobs.attempt)) == 1


def test_f29_a_result_that_was_changed_is_not_unpickled(jobs: Any) -> None:
    job = launched(jobs.of_host_0)
    assert events(job)
    target = Path(job.store.url) / names.host(job.job_id, 1, 0, "result")
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    with pytest.raises(Corrupt, match="damaged or was changed"):
        result(job)


def test_f30_a_job_that_is_cancelled_while_it_waits_for_a_place_never_starts(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_MAX_HOSTS", "1")
    first = launched(jobs.until, str(tmp_path / "go"))
    second = launched(jobs.until, str(tmp_path / "never"))
    trees(first)
    waiting = kinetic.attach(second.job_id)
    assert waiting.status() is kinetic.JobStatus.PENDING
    waiting.cancel("changed my mind")
    with pytest.raises(JobCancelled, match="changed my mind"):
        waiting.result(timeout=60)
    assert not folder_of(second).exists()
    assert second.store.read(names.beat(second.job_id, 1, 0)) is None
    (tmp_path / "go").touch()
    assert result(first) == 1
