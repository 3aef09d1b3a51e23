"""The log: every host's stdout and stderr, lines intact, in order per host, and live."""

from __future__ import annotations

import contextlib
import functools
import os
import pty
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.printer import Printer
from kinetic_orchestration.cli import main
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.values import Event, Metrics, Output, Progress
from kinetic_orchestration.protocol import names
from tests.support.by_hand import intended
from tests.support.faults import events, load_jobs, start_broken
from tests.support.terminals import read_out
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("logs") / "project", "log_jobs")


def started(function: Any, *arguments: Any, accelerator: str = "cpu") -> kinetic.JobHandle[Any]:
    return kinetic.run(accelerator=accelerator)(function).run_async(*arguments)


def heard(job: kinetic.JobHandle[Any]) -> list[Event]:
    """The events of a follower from the first line to the end."""
    told: list[Event] = []
    assert job.follow(told.append, timeout=150) is not None
    return told


def raw(told: list[Event], host: int = 0, kind: str = "o") -> bytes:
    return b"".join(
        event.text for event in told if isinstance(event, Output) and (event.host, event.kind) == (host, kind)
    )


BAR = b"".join(b"\r%3d%% done" % percent for percent in range(0, 101, 10)) + b"\nfinished\n"


@pytest.mark.parametrize(
    ("what", "written"),
    [
        ("no final newline", b"first\nwithout an end"),
        ("progress bar", BAR),
        ("carriage return and newline, apart", b"".join(b"line %d\r\n" % number for number in range(5))),
        ("a megabyte", b"a" * (1 << 20) + b"\n" + b"b" * (1 << 20) + b"\n"),
        ("invalid UTF-8", b"caf\xe9 \xff\xfe\x00 ok\n" + "größer, 大きい\n".encode()),
        ("a frame's own mark", b"\x1eo 12 4\nabcd\n\x1e\n"),
    ],
)
def test_what_a_program_writes_is_kept_byte_for_byte(jobs: Any, what: str, written: bytes) -> None:
    job = started(jobs.writes_what, what)
    told = heard(job)
    assert raw(told) == written
    assert raw(list(job.events())) == written
    shown = job.logs()
    assert shown is not None
    assert shown.rstrip("\n") == written.decode("utf-8", "backslashreplace").rstrip("\n")
    for event in told:  # a line is never cut into two events
        if isinstance(event, Output) and what != "no final newline":
            assert event.text[-1:] in b"\n\r"


def test_a_log_is_read_as_it_is_asked_for_and_its_hosts_in_the_order_of_their_times(
    jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(jobs.metrics, 500, accelerator="v4-8")
    whole = [event for event in heard(job) if isinstance(event, (Output, Metrics, Progress))]
    monkeypatch.setattr("kinetic_orchestration.jobs.following.logs.READ_BYTES", 4096)
    store, reads = job._job.store, list[str]()
    monkeypatch.setattr(store, "read", lambda name, *rest, real=store.read: reads.append(name) or real(name, *rest))
    read = iter(job.events())
    found: list[Any] = [next(read)]
    at_once = len(reads)
    found += read
    assert at_once < 6
    assert len(reads) > 20
    for host in range(2):
        mine = [event for event in found if event.host == host]
        assert mine == [event for event in whole if event.host == host]
        assert len(mine) > 1000
    assert [event.time for event in found] == sorted(event.time for event in found)
    lines = (job.logs() or "").splitlines(keepends=True)
    assert job.tail(7) == "".join(lines[-7:])
    assert job.tail(0) == job.tail(-1) == ""


def test_what_is_said_while_a_log_is_read_is_not_in_it(jobs: Any, tmp_path: Path) -> None:
    """Else a slow reader would see a host go on that another, whose log was short, had left behind."""
    job = started(jobs.one_by_one, str(tmp_path), 2)
    (tmp_path / "0").touch()
    wait_until(lambda: "line 0" in (job.logs() or ""))
    read = job.events()
    assert b"line 0" in raw([next(read)])
    (tmp_path / "1").touch()
    job.result(timeout=60)
    assert list(read) == []
    assert raw(list(job.events())).count(b"line") == 2


def test_a_carriage_return_and_its_newline_are_one_end_of_line(jobs: Any, tmp_path: Path) -> None:
    job = intended(functools.partial(jobs.writes_what, "carriage return and newline, apart"))
    start_broken(job, tmp_path, "host.TICK = 30.0")  # so long the newline may take on a busy machine
    told = [event.text for event in events(job) if isinstance(event, Output)]
    assert b"".join(told) == b"".join(b"line %d\r\n" % number for number in range(5))
    assert all(text.endswith(b"\r\n") for text in told)


def test_the_lines_of_a_child_that_forks_are_whole_too(jobs: Any) -> None:
    lines = raw(heard(started(jobs.writes_what, "a child that forks"))).decode().splitlines()
    for who in ("child", "parent"):
        assert [line for line in lines if line.startswith(who)] == [f"{who} {number}" for number in range(20)]
    assert len(lines) == 40


@pytest.mark.slow
def test_a_child_that_prints_for_ever_does_not_keep_the_job_from_ending(jobs: Any) -> None:
    job = started(jobs.writes_what, "a child that never stops")
    lines = raw(heard(job)).decode().splitlines()
    assert set(lines) == {"still here"}


def beat_of(job: Any) -> int:
    record = job._job.store.read(names.beat(job.job_id, 1, 0))
    return 0 if record is None else int(record.generation)


@pytest.mark.slow
def test_a_program_that_closes_its_output_goes_on(jobs: Any, tmp_path: Path) -> None:
    job = started(jobs.writes_what, "closes its output", str(tmp_path / "go"))
    wait_until(lambda: job.status() is kinetic.JobStatus.RUNNING and "before" in (job.logs() or ""))
    for _ in range(2):  # its agent goes round, and sees the end of its output
        before = beat_of(job)
        wait_until(lambda before=before: beat_of(job) > before)
    assert job.status() is kinetic.JobStatus.RUNNING
    (tmp_path / "go").touch()
    assert raw(heard(job)) == b"before\n"


def test_a_line_is_seen_while_the_job_still_runs_within_a_second(jobs: Any, tmp_path: Path) -> None:
    job = started(jobs.one_by_one, str(tmp_path), 5)
    told: list[Event] = []
    follower = threading.Thread(target=job.follow, args=(told.append,), kwargs={"timeout": 120})
    follower.start()
    seconds = []
    for number in range(5):
        (tmp_path / str(number)).touch()
        asked = time.monotonic()
        wait_until(lambda number=number: f"line {number} ".encode() in raw(told))
        seconds.append(time.monotonic() - asked)
        assert number == 4 or job.status() is kinetic.JobStatus.RUNNING
    follower.join(20)
    assert not follower.is_alive()
    assert min(seconds) < 1.0, seconds  # a machine may be busy for a while
    late = []
    for line in raw(told).splitlines():
        printed = float(line.split()[-1])
        stamped = next(event.time for event in told if isinstance(event, Output) and line in event.text)
        late.append(stamped - printed)
    assert min(late) > -0.05
    assert min(late) < 1.0, late


def test_a_commands_lines_are_live_too(tmp_path: Path) -> None:
    """Python below it would keep them until it ends, for its output is no terminal."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "work.py").write_text(
        "import os, time\nprint('live')\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n    "
        f"if os.path.exists({str(tmp_path / 'go')!r}):\n        break\n"
    )
    job = kinetic.command([sys.executable, "work.py"], accelerator="cpu", cwd=tmp_path)
    wait_until(lambda: "live" in (job.logs() or ""))
    assert job.status() is kinetic.JobStatus.RUNNING
    (tmp_path / "go").touch()
    assert raw(heard(job)) == b"live\n"


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(600)
def test_200_000_lines_arrive_in_order_and_nothing_is_lost(jobs: Any) -> None:
    job = started(jobs.writes_lines, 200_000)
    assert raw(heard(job)) == b"".join(b"line %d of host 0\n" % number for number in range(200_000))
    assert job.result(timeout=150) == 200_000


def test_every_host_keeps_its_own_order(jobs: Any) -> None:
    told = heard(started(jobs.writes_lines, 3000, accelerator="v5e-16"))
    for host in range(4):
        assert raw(told, host) == b"".join(b"line %d of host %d\n" % (number, host) for number in range(3000))
        times = [event.time for event in told if isinstance(event, Output) and event.host == host]
        assert times == sorted(times)


def test_stdout_and_stderr_are_told_apart_and_each_keeps_its_order(jobs: Any) -> None:
    told = heard(started(jobs.both_streams, 500))
    assert raw(told, kind="o") == b"".join(b"out %d\n" % number for number in range(500))
    assert raw(told, kind="e") == b"".join(b"err %d\n" % number for number in range(500))


def test_metrics_and_progress_are_records_beside_the_lines(jobs: Any) -> None:
    told = heard(started(jobs.metrics, 20))
    assert raw(told) == b"".join(b"step %d\n" % number for number in range(20))
    metrics = [event for event in told if isinstance(event, Metrics)]
    assert [(event.step, event.values) for event in metrics] == [
        (number, {"loss": 1.0 / (number + 1)}) for number in range(20)
    ]
    assert [event.done for event in told if isinstance(event, Progress)] == [float(number + 1) for number in range(20)]


def test_lines_of_several_hosts_never_mix_on_the_terminal(jobs: Any) -> None:
    shown: list[str] = []
    job = started(jobs.writes_lines, 200, accelerator="v5e-16")
    assert (
        follow(Follower(job._job), Printer(4, shown.append, job_id=job.job_id, changes=lambda _: None), timeout=60)
        is not None
    )
    lines = "".join(shown).splitlines()
    assert sorted(lines) == sorted(
        f"[host {host}] line {number} of host {host}" for host in range(4) for number in range(200)
    )


def ended_by_jax() -> None:
    import jax

    host = kinetic.current()
    jax.devices()
    if host.host_index == 0:
        raise ValueError("no column 'label'")
    threading.Event().wait(60)


@pytest.mark.slow
def test_the_first_cause_ends_the_log_and_what_other_hosts_say_of_it_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPROC", "32")
    job = started(ended_by_jax, accelerator="v4-16")
    heard(job)
    whole = job.logs()
    assert whole is not None
    assert whole.count("Fatal Python error: Aborted") >= 1, whole
    assert main(["logs", job.job_id]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "Fatal Python error" not in "\n".join(shown)
    others = [line.partition("] ") for line in shown if re.match(r"\[host [1-9]", line)]
    hint = f"kinetic-orchestration logs {job.job_id} --full"
    told = f"this host's framework ends it, as another host is gone; {hint} shows its report"
    assert {said for _, _, said in others} == {told}
    assert len({host for host, _, _ in others}) == len(others)
    assert shown[-1] == "ValueError: no column 'label'"
    assert any(f"job {job.job_id} failed on host 0 (user):" in line for line in shown[-12:])
    assert main(["logs", "--full", job.job_id]) == 0
    assert capsys.readouterr().out.startswith(whole)


def fails() -> None:
    raise ValueError("no column 'label'")


@pytest.mark.parametrize("way", ["kinor logs", "kinor logs -f", "logs(follow=True)"])
@pytest.mark.parametrize("terminal", [True, False], ids=["a terminal", "a pipe"])
def test_what_a_job_failed_of_ends_its_log_in_bold_on_a_terminal(way: str, terminal: bool) -> None:
    job = started(fails)
    heard(job)
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with os.fdopen(theirs, "w") as stream, contextlib.redirect_stdout(stream):
        if way == "logs(follow=True)":
            assert job.logs(follow=True) is None
        else:
            main(["logs", job.job_id, *way.split()[2:]])
    shown = read_out(ours).replace(b"\r", b"").decode()
    cause = f"kinetic: job {job.job_id} failed (user):\nTraceback"
    assert ("\x1b[1m" + cause in shown) is terminal
    assert cause in shown
    assert shown.endswith("\x1b[0m\n" if terminal else "\n")
