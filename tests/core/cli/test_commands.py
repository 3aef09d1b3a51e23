"""The command line, run as people and programs run it, against real jobs of this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity import records
from kinetic_orchestration.capacity.facts import FactKey
from kinetic_orchestration.cli import COMMANDS, main
from kinetic_orchestration.errors import UsageError
from tests.support.faults import kill_host, trees
from tests.support.terminals import read_out
from tests.support.waits import wait_until

KINOR = [sys.executable, "-m", "kinetic_orchestration.cli"]
PATIENCE = 60


class Shown:
    """The exit code and the output of one command line."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Kinor = Callable[..., Shown]


@pytest.fixture
def kinor(home: Path, capsys: pytest.CaptureFixture[str]) -> Kinor:
    def call(*argv: str) -> Shown:
        capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return Shown(code, shown.out, shown.err)

    return call


def real(*argv: str, cwd: Path | None = None, **environ: str) -> Shown:
    """The command as a process of its own."""
    done = subprocess.run(
        [*KINOR, *argv], capture_output=True, encoding="utf-8", cwd=cwd, env={**os.environ, **environ}, timeout=PATIENCE
    )
    return Shown(done.returncode, done.stdout, done.stderr)


@kinetic.run(accelerator="cpu")
def add(one: int, two: int) -> dict[str, float]:
    print("adding")
    host = kinetic.current()
    host.log_metrics(step=1, loss=0.25)
    host.progress(1, 2, unit="epoch")
    return {"sum": one + two, "lost": float("nan")}


@kinetic.run(accelerator="cpu")
def fail() -> None:
    print("about to fail")
    raise ValueError("no such rate")


@kinetic.run(accelerator="cpu")
def wait_for(gate: str) -> str:
    from pathlib import Path

    print("waiting", flush=True)
    kinetic.current().progress(2, 5, unit="epoch")
    while not Path(gate).exists():
        time.sleep(0.01)
    return "gone through"


@kinetic.run(accelerator="cpu")
def be_quiet(gate: str) -> None:
    from pathlib import Path

    while not Path(gate).exists():
        time.sleep(0.01)


@kinetic.run(accelerator="v5e-16")
def speak() -> None:
    for number in range(3):
        print("line", number, "of", kinetic.current().host_index)


@kinetic.run(accelerator="cpu")
def killed() -> None:
    import os
    import signal

    print("about to be killed", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def first_line(errors: IO[str]) -> str:
    """The first line of a command that waits; one that needed a second to find its job has printed a wait before."""
    while (line := errors.readline()).startswith("kinetic: waiting for "):
        pass
    return line


def ended(job: JobHandle[Any]) -> JobHandle[Any]:
    job.follow(timeout=PATIENCE)
    return job


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def live(home: Path, gate: Path) -> Iterator[JobHandle[str]]:
    """A job that runs until the gate is there."""
    job = wait_for.run_async(str(gate))
    wait_until(lambda: "waiting" in (job.logs() or "") and job.peek().status is kinetic.JobStatus.RUNNING)
    yield job
    gate.touch()
    job.follow(timeout=PATIENCE)


# ---- the command itself ------------------------------------------------------------------------------------


def test_both_names_of_the_command_are_installed() -> None:
    scripts = {entry.name: entry.value for entry in importlib.metadata.entry_points(group="console_scripts")}
    assert scripts["kinor"] == scripts["kinetic-orchestration"] == "kinetic_orchestration.cli:main"


def test_help_names_every_command_and_what_the_exit_codes_mean(kinor: Kinor) -> None:
    shown = kinor("--help")
    assert shown.code == 0
    for word in COMMANDS:
        assert re.search(rf"^    {word}\b", shown.out, re.MULTILINE), word
    for code in (0, 1, 2, 3, 4, 5, 130):
        assert re.search(rf"^  {code} +\w", shown.out, re.MULTILINE), code


def test_help_is_quick_because_it_imports_next_to_nothing() -> None:
    program = "import sys; from kinetic_orchestration.cli.parser import make_parser; make_parser().format_help()\n"
    program += (
        "print(*(name for name in ('rich', 'json', 'subprocess', 'asyncio', 'cloudpickle') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_the_version_is_the_packages(kinor: Kinor) -> None:
    assert kinor("--version").out == f"kinetic-orchestration {kinetic.__version__}\n"


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["status"], ["logs", "x", "--host", "-1"], ["cost", "--by", "hour"]]
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(kinor: Kinor, argv: list[str]) -> None:
    shown = kinor(*argv)
    assert shown.code == 2
    assert shown.err.startswith("kinetic: error: ")
    assert "--help" in shown.err


@pytest.mark.parametrize("command", ["status", "logs", "result", "cancel"])
def test_a_command_without_its_job_says_how_to_find_one(kinor: Kinor, command: str) -> None:
    first = kinor(command).err.splitlines()[0]
    assert first == (
        f"kinetic: error: {command} wants the ID of a job: `kinor jobs` lists those under way, `kinor jobs --all` those that "
        "ended, too"
    )


def test_an_error_is_one_message_and_its_traceback_only_with_debug(home: Path) -> None:
    shown = real("status", "job-000000000000")
    assert shown.code == 3
    assert shown.out == ""
    assert shown.err.startswith("kinetic: error: there is no job 'job-000000000000' in ")
    assert "Traceback" not in shown.err
    for argv in (["--debug", "status", "nope"], ["status", "nope", "--debug"]):
        assert "Traceback" in real(*argv).err


def test_a_store_that_cannot_be_used_has_its_own_exit_code(kinor: Kinor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    shown = kinor("jobs", "--store", str(tmp_path / "file"))
    assert shown.code == 5
    assert "Cannot keep a store" in shown.err


def test_a_reader_that_leaves_early_ends_the_command_quietly(home: Path) -> None:
    for argv in (["accelerators"], ["accelerators", "v5e-16"], ["--help"], ["jobs", "--json"]):
        command = subprocess.Popen([*KINOR, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert command.stdout is not None
        command.stdout.close()
        _, errors = command.communicate(timeout=PATIENCE)
        assert (command.returncode, errors) == (0, b""), argv


def test_a_terminal_that_knows_ascii_alone_still_gets_its_drawing(home: Path) -> None:
    shown = real("accelerators", "v5e-16", PYTHONIOENCODING="ascii")
    assert shown.code == 0
    assert "host 3" in shown.out


# ---- what there is -----------------------------------------------------------------------------------------


def test_accelerators_are_listed_with_their_hosts_and_prices(kinor: Kinor) -> None:
    rows = {line.split()[0]: line.split() for line in kinor("accelerators").out.splitlines()}
    assert rows["v5e-16"] == ["v5e-16", "16", "4x4", "4", "v5litepod-16", "tpu-vm,", "gke", "16", "GiB", "$19.20"]
    assert rows["h100x8"][4:] == ["-", "compute,", "gke", "80", "GiB", "-"] and rows["gb200x4"][5] == "gke"
    assert {"v6e-256", "cpu", "NAME"} <= rows.keys()
    one = kinor("accelerators", "h100").out
    assert "On Google Cloud: compute, gke. On compute each host is a VM of a3-highgpu-1g (spot, flex-start)." in one


def test_ids_and_numbers_are_whole_on_a_narrow_terminal(home: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "NO_COLOR": "1"}
    with subprocess.Popen([*KINOR, "accelerators"], stdout=theirs, env=environ) as command:
        os.close(theirs)
        shown = read_out(ours)
        assert command.wait(PATIENCE) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert re.fullmatch(r"v3-512 +512 +16x32 +128 +v3-1024 +tpu-vm, gke +32 GiB +-", lines[13].strip())
    assert lines[0].split()[:3] == ["name", "chips", "topology"]  # no empty line above


def test_one_accelerator_is_drawn(kinor: Kinor) -> None:
    shown = kinor("accelerators", "v5e-16")
    assert shown.out.startswith("v5e-16: 16 chips (4x4), 4 hosts × 4 chips")
    assert "host 3" in shown.out


def test_an_unknown_accelerator_is_answered_with_what_is_near(kinor: Kinor) -> None:
    shown = kinor("accelerators", "v5e-7")
    assert shown.code == 2
    assert "Near:" in shown.err


def test_programs_read_accelerators_as_json(kinor: Kinor) -> None:
    assert {entry["name"] for entry in kinor("accelerators", "--json").json} >= {"v5e-16", "cpu"}
    one = kinor("accelerators", "v5e-16", "--json").json
    assert (one["hosts"], one["devices_per_host"], one["usd_per_hour"]) == (4, 4, 19.2)
    assert "host 3" in one["drawing"]


# ---- jobs --------------------------------------------------------------------------------------------------


def test_without_jobs_the_list_says_how_to_see_more(kinor: Kinor) -> None:
    shown = kinor("jobs")
    assert (shown.code, shown.out) == (0, "")
    assert "--all" in shown.err
    assert kinor("jobs", "--json").json == []


def test_jobs_lists_what_is_under_way_and_with_all_what_ended(kinor: Kinor, live: JobHandle[str]) -> None:
    done = ended(add.run_async(1, 2))
    rows = [line.split() for line in kinor("jobs").out.splitlines()]
    assert rows[0] == ["ID", "NAME", "ACCELERATOR", "STATE", "ATTEMPTS", "AGE", "COST", "WHERE"]
    assert [row[:5] for row in rows[1:]] == [[live.job_id, "wait_for", "cpu", "RUNNING", "1"]]
    both = [line.split()[:4] for line in kinor("jobs", "--all").out.splitlines()[1:]]
    assert [done.job_id, "add", "cpu", "SUCCEEDED"] in both
    assert len(both) == 2


def test_programs_read_jobs_as_json(kinor: Kinor, live: JobHandle[str]) -> None:
    wait_until(lambda: live.peek().done)
    (job,) = kinor("jobs", "--json").json
    assert job["job_id"] == live.job_id
    assert (job["state"], job["phase"], job["hosts"], job["attempts"]) == ("RUNNING", "running", 1, 1)
    assert job["progress"] == {"done": 2.0, "total": 5.0, "unit": "epoch", "rate": 0.0}
    races = {"seconds": 0, "usd": 0.0}
    assert job["cost"] == {"usd": 0.0, "chip_hours": 0.0, "uncharged": True, "prices": "", "races": races}


def test_the_beginning_of_an_id_is_enough(kinor: Kinor, home: Path) -> None:
    first, second = ended(add.run_async(1, 2)), ended(add.run_async(3, 4))
    differ = next(
        index for index, pair in enumerate(zip(first.job_id, second.job_id, strict=True)) if len(set(pair)) == 2
    )
    shared, own = first.job_id[:differ], first.job_id[: differ + 1]
    assert kinor("result", own).out == "{'sum': 3, 'lost': nan}\n"
    assert kinor("result", own.removeprefix("job-")).out == "{'sum': 3, 'lost': nan}\n"
    several = kinor("status", shared)
    assert several.code == 2
    assert first.job_id in several.err and second.job_id in several.err


@pytest.mark.parametrize("text", ["job-ffffffffffff", "nope", "../deployment", "", ".", "job-*", "jobs/job-ffff", "é"])
def test_what_is_no_job_is_not_found(kinor: Kinor, text: str) -> None:
    shown = kinor("status", text)
    assert shown.code == 3
    assert "there is no job" in shown.err


def test_status_tells_how_a_job_stands(kinor: Kinor, live: JobHandle[str], gate: Path) -> None:
    wait_until(lambda: live.peek().done)
    shown = kinor("status", live.job_id)
    assert shown.code == 4
    assert "RUNNING (2/5 epoch)" in shown.out
    gate.touch()
    ended(live)
    shown = kinor("status", live.job_id)
    assert shown.code == 0
    assert "SUCCEEDED" in shown.out
    assert live.output_dir in shown.out
    assert "$0.00 on this machine" in shown.out


def test_status_of_a_failed_job_shows_why_and_where_the_log_is(kinor: Kinor, home: Path) -> None:
    job = ended(fail.run_async())
    shown = kinor("status", job.job_id)
    assert shown.code == 1
    assert "FAILED (user)" in shown.out
    assert "user on host 0: ValueError: no such rate" in shown.out
    assert 'raise ValueError("no such rate")' in shown.out
    assert f"kinetic-orchestration logs {job.job_id}" in shown.out
    (attempt,) = kinor("status", job.job_id, "--json").json["history"]
    assert (attempt["verdict"], attempt["cause"], attempt["host"]) == ("aborted", "user", 0)
    assert attempt["ended"] >= attempt["began"]


def test_status_of_a_killed_program_shows_what_it_said_last(kinor: Kinor, home: Path) -> None:
    shown = kinor("status", ended(killed.run_async()).job_id)
    assert shown.code == 1
    assert shown.out.count("ended by SIGKILL") == 1
    assert "\n\nIts last lines:\nabout to be killed\n\nThe log: " in shown.out


def test_listing_changes_nothing_and_asking_for_the_status_moves_a_lost_job_on(
    kinor: Kinor, live: JobHandle[str], home: Path
) -> None:
    (tree,) = trees(live._job)
    kill_host(tree)
    for _ in range(2):
        shown = kinor("jobs")
        assert live.job_id in shown.out
        assert "were killed" in shown.err
        assert [attempt.verdict for attempt in live.history()] == [None]
    assert kinor("status", live.job_id).code == 4
    assert len(live.history()) == 2


# ---- logs --------------------------------------------------------------------------------------------------


def test_logs_show_every_host_and_one_alone(kinor: Kinor, home: Path) -> None:
    job = ended(speak.run_async())
    lines = kinor("logs", job.job_id).out.splitlines()
    assert sorted(lines) == [f"[host {host}] line {number} of {host}" for host in range(4) for number in range(3)]
    assert kinor("logs", job.job_id, "--host", "2").out == "line 0 of 2\nline 1 of 2\nline 2 of 2\n"
    assert kinor("logs", job.job_id, "--host", "2", "--tail", "1").out == "line 2 of 2\n"
    assert kinor("logs", job.job_id, "-n", "0").out == ""
    wrong = kinor("logs", job.job_id, "--host", "4")
    assert wrong.code == 2
    assert "4 hosts, counted from 0" in wrong.err


def test_the_log_of_a_job_without_output_says_how_the_job_stands(kinor: Kinor, home: Path, gate: Path) -> None:
    job = be_quiet.run_async(str(gate))
    told = f"kinetic: {job.job_id} has no output: "
    shown = kinor("logs", job.job_id)
    assert (shown.code, shown.out, shown.err.startswith(told)) == (0, "", True)
    assert kinor("logs", job.job_id, "--json").err == ""
    job.cancel("too dear")
    shown = kinor("logs", job.job_id)
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.startswith(f"{told}CANCELLED: ")
    assert "too dear" in shown.err


def test_logs_as_json_are_one_event_on_each_line(kinor: Kinor, home: Path) -> None:
    job = ended(add.run_async(1, 2))
    events = [json.loads(line) for line in kinor("logs", job.job_id, "--json").out.splitlines()]
    told = {event["event"]: event for event in events}
    assert told["output"]["text"] == "adding\n"
    assert (told["output"]["stream"], told["output"]["host"], told["output"]["attempt"]) == ("stdout", 0, 1)
    assert (told["metrics"]["step"], told["metrics"]["values"]) == (1, {"loss": 0.25})
    assert (told["progress"]["done"], told["progress"]["total"], told["progress"]["unit"]) == (1, 2, "epoch")


def test_following_a_log_ends_with_the_job_and_has_its_exit_code(home: Path, gate: Path, live: JobHandle[str]) -> None:
    command = subprocess.Popen(
        [*KINOR, "logs", "-f", live.job_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert command.stdout is not None
    said = {command.stdout.readline() for _ in range(2)}  # while it runs, and by two ways
    gate.touch()
    rest = command.stdout.read()  # not by communicate(), which knows nothing of what readline() has read ahead
    _, changes = command.communicate(timeout=PATIENCE)
    assert (command.returncode, said, rest) == (0, {"waiting\n", "progress: 2/5 epoch\n"}, "")
    assert "kinetic: succeeded" in changes
    failed = fail.run_async()
    assert real("logs", "-f", failed.job_id).code == 1
    for options in ((), ("-f",), ("-n", "3")):
        assert real("logs", *options, failed.job_id).out.endswith("ValueError: no such rate\n"), options


def test_following_only_the_tail_of_a_log(kinor: Kinor, home: Path) -> None:
    job = ended(speak.run_async())
    shown = kinor("logs", "-f", "-n", "2", "--host", "1", job.job_id)
    assert (shown.code, shown.out) == (0, "line 1 of 1\nline 2 of 1\n")


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_log_piped_into_head_is_quiet(home: Path) -> None:
    job = ended(speak.run_async())
    pipe = f"{shlex.join(KINOR)} logs {job.job_id} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.parametrize("argv", [["logs", "-f"], ["result"]])
def test_ctrl_c_leaves_the_job_running_and_says_how_to_end_it(
    home: Path, live: JobHandle[str], argv: list[str]
) -> None:
    command = subprocess.Popen(
        [*KINOR, *argv, live.job_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert command.stderr is not None
    said = first_line(command.stderr)  # it waits from here on
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=PATIENCE)
    assert "running" in said
    assert command.returncode == 130
    assert f"kinetic-orchestration cancel {live.job_id}" in errors
    assert "Traceback" not in errors
    assert not live.peek().status.final


# ---- result ------------------------------------------------------------------------------------------------


def test_a_result_is_printed_as_python_shows_it_and_for_programs_as_json(kinor: Kinor, home: Path) -> None:
    job = add.run_async(1, 2)
    shown = kinor("result", job.job_id)
    assert (shown.code, shown.out) == (0, "{'sum': 3, 'lost': nan}\n")
    assert kinor("result", job.job_id, "--json").json == {
        "job_id": job.job_id,
        "state": "SUCCEEDED",
        "value": {"sum": 3, "lost": None},  # JSON has no NaN
        "repr": "{'sum': 3, 'lost': nan}",
        "error": None,
    }


def test_what_a_job_raised_is_told_with_its_remote_traceback(kinor: Kinor, home: Path) -> None:
    job = fail.run_async()
    shown = kinor("result", job.job_id)
    assert (shown.code, shown.out) == (1, "")
    assert f"job {job.job_id} raised ValueError: no such rate" in shown.err
    assert 'raise ValueError("no such rate")' in shown.err  # the host's own line
    answer = kinor("result", job.job_id, "--json")
    assert (answer.code, answer.json["state"], answer.json["value"], answer.json["repr"]) == (1, "FAILED", None, None)
    assert (answer.json["error"]["type"], answer.json["error"]["message"]) == ("ValueError", "no such rate")


def test_a_result_that_is_not_there_yet_has_its_own_exit_code(kinor: Kinor, live: JobHandle[str]) -> None:
    assert kinor("result", live.job_id, "--timeout", "0").code == 4
    shown = kinor("result", live.job_id, "--timeout", "0.1s")
    assert shown.code == 4
    assert "it goes on" in shown.err
    assert kinor("result", live.job_id, "--timeout", "0", "--json").json["state"] == "RUNNING"
    wrong = kinor("result", live.job_id, "--timeout", "-3")
    assert wrong.code == 2
    assert "--timeout" in wrong.err


def test_waiting_is_told_in_plain_lines_without_a_terminal(home: Path, live: JobHandle[str], gate: Path) -> None:
    command = subprocess.Popen(
        [*KINOR, "result", live.job_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert command.stderr is not None
    assert first_line(command.stderr) == f"kinetic: {live.job_id} wait_for on cpu: running\n"
    gate.touch()
    out, rest = command.communicate(timeout=PATIENCE)
    assert (command.returncode, out, rest) == (0, "'gone through'\n", "")


def test_waiting_is_shown_live_on_a_terminal(home: Path, live: JobHandle[str], gate: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = subprocess.Popen([*KINOR, "result", live.job_id], stdout=subprocess.PIPE, stderr=theirs, env=environ)
    os.close(theirs)
    shown = b""
    while b"2/5 epoch" not in shown:
        shown += os.read(ours, 4096)
    gate.touch()
    read_out(ours)
    out, _ = command.communicate(timeout=PATIENCE)
    assert (command.returncode, out) == (0, b"'gone through'\n")


# ---- cancel ------------------------------------------------------------------------------------------------


def test_cancel_ends_a_job_and_keeps_the_reason(kinor: Kinor, live: JobHandle[str]) -> None:
    shown = kinor("cancel", live.job_id, "--reason", "too dear")
    assert (shown.code, shown.out) == (0, f"{live.job_id}  CANCELLED\n")
    shown = kinor("result", live.job_id)
    assert shown.code == 1
    assert "too dear" in shown.err
    assert kinor("status", live.job_id).code == 1


def test_cancelling_what_ended_changes_nothing(kinor: Kinor, home: Path) -> None:
    good, bad = ended(add.run_async(1, 2)), ended(fail.run_async())
    shown = kinor("cancel", good.job_id, bad.job_id)
    assert (shown.code, shown.out) == (0, f"{good.job_id}  SUCCEEDED\n{bad.job_id}  FAILED\n")
    assert [job["state"] for job in kinor("cancel", good.job_id, bad.job_id, "--json").json] == ["SUCCEEDED", "FAILED"]


def test_a_wrong_id_among_several_cancels_none(kinor: Kinor, live: JobHandle[str]) -> None:
    assert kinor("cancel", live.job_id, "job-ffffffffffff").code == 3
    assert not live.peek().status.final


# ---- reap, cost --------------------------------------------------------------------------------------------


def test_reap_names_what_it_would_remove_and_then_removes_it(
    kinor: Kinor, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(add.run_async(1, 2))
    assert kinor("reap").err.endswith("kinetic: nothing to remove\n")
    monkeypatch.setenv("KINETIC_RETENTION", "0")
    shown = kinor("reap", "--dry-run")
    assert job.job_id in shown.out
    assert "1 would be removed" in shown.err
    assert kinor("status", job.job_id).code == 0
    told = kinor("reap", "--json").json
    assert (told["dry_run"], told["reaped"][0]["what"], told["reaped"][0]["name"]) == (False, "job", job.job_id)
    assert kinor("status", job.job_id).code == 3


def test_capacity_shows_what_jobs_met_lately_and_what_follows_from_it(kinor: Kinor, home: Path) -> None:
    assert "no attempt of this deployment" in kinor("capacity").err
    store, _, _ = place_of()
    now, key = store.now(), FactKey("tpu-vm", "us-east5-a", "v6e", 16, "spot")
    for number, (outcome, ago) in enumerate((("got", 900.0), ("stockout", 250.0), ("stockout", 240.0))):
        records.learn(store, key, outcome, now - ago, f"job-{number}-1")
    records.learn(store, key._replace(place="europe-west4-a"), "got", now - 3600, "job-9-1")
    heading, old, row = kinor("capacity").out.splitlines()
    assert heading.split() == ["PLACE", "HARDWARE", "BOUGHT", "LATELY", "STATE", "WHY"]
    assert old.endswith("unknown   too long ago to say anything")
    assert " ".join(row.split()) == (
        "us-east5-a v6e-16 spot got, 2 × stockout stockout stockout 4 min ago, seen by 2 jobs"
    )
    (_, fact) = kinor("capacity", "--json").json["facts"]
    assert (fact["place"], fact["size"], fact["state"], len(fact["attempts"])) == ("us-east5-a", 16, "stockout", 3)


def test_cost_adds_up_and_says_what_uncharged_jobs_would_cost(kinor: Kinor, home: Path) -> None:
    assert "no job was made" in kinor("cost").err
    ended(add.run_async(1, 2))
    ended(speak.run_async())
    shown = kinor("cost", "--since", "1h")
    heading, row = shown.out.splitlines()
    assert heading.split() == (
        ["DAY", "JOBS", "UNCHARGED", "QUEUED", "READY", "PROGRAM", "GOODPUT", "CHIP-HOURS", "COST"]
    )  # fmt: skip
    assert re.fullmatch(r"\S+ +2 +2 +[0-9.]+ s +[0-9.]+ s +[0-9.]+ s +0\.00 +\$0\.00", row)
    assert "on the hardware that was named" in shown.err
    told = kinor("cost", "--json", "--by", "month").json
    assert (told["periods"][0]["jobs"], told["usd"]) == (2, 0)
    assert told["uncharged_usd"] > 0
    assert {job["name"] for job in told["jobs"]} == {"add", "speak"}
    assert kinor("cost", "--since", "0").out == ""


def test_cost_of_one_job_tells_what_it_took_and_would_have_cost(kinor: Kinor, home: Path) -> None:
    job = ended(speak.run_async())
    shown = kinor("cost", job.job_id.removeprefix("job-")[:6])
    fields = dict(line.split(None, 1) for line in shown.out.splitlines())
    assert list(fields) == ["job", "hardware", "attempts", "queued", "READY", "program", "cost"]
    assert "chip-hours" in fields["READY"]
    assert fields["cost"].startswith("$0.00 on this machine; on Cloud TPU v5litepod-16")
    told = kinor("cost", job.job_id, "--json").json
    assert (told["job_id"], told["attempts"], told["usd"], told["uncharged"]) == (job.job_id, 1, 0.0, True)
    assert told["would_have_cost_usd"] > 0
    assert 0 < told["program_seconds"] <= told["ready_seconds"]
    assert (told["productive_seconds"], told["goodput"], told["parts"]) == (None, None, {})
    row = kinor("cost", "--jobs").out.splitlines()[1]
    assert row.startswith(f"{job.job_id}  speak  v5e-16")
    assert kinor("cost", "nosuchjob").code == 3


def test_cost_adds_up_each_pipeline_and_month_beside_its_budget(
    kinor: Kinor, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no job was made since the beginning of " in kinor("cost", "--by", "pipeline").err
    ended(add.run_async(1, 2))
    ended(speak.run_async())
    monkeypatch.setenv("KINETIC_BUDGETS", "add=2USD,*=5USD:warn,later=$7,total=9")
    shown = kinor("cost", "--by", "pipeline", "--jobs").out.splitlines()
    heading = next(line for line in shown if line.startswith("MONTH"))
    assert heading.split() == (
        ["MONTH", "PIPELINE", "JOBS", "UNCHARGED", "READY", "CHIP-HOURS", "COST", "BUDGET", "USED"]
    )  # fmt: skip
    rows = {line.split()[1]: line for line in shown[shown.index(heading) + 1 :]}
    assert set(rows) == {"add", "speak", "later", "total"}
    assert re.search(r" 1 +1 .* \$0\.00 +\$2\.00, refuse +\$0\.00 \(0%\)$", rows["add"])
    assert "$5.00, warn" in rows["speak"] and "$7.00, refuse" in rows["later"]
    assert re.search(r"total +2 +2 .*\$9\.00, refuse", rows["total"])
    told = kinor("cost", "--by", "pipeline", "--json").json["pipelines"]
    found = {row["pipeline"]: row for row in told}
    assert found["total"]["budget"] == {
        "usd": 9.0, "action": "refuse", "spent_usd": 0.0, "jobs": 0, "unpriced": 0, "used": 0.0
    }  # fmt: skip
    assert found["add"]["jobs"] == 1
    monkeypatch.setenv("KINETIC_BUDGETS", "")
    assert [row["budget"] for row in kinor("cost", "--by", "pipeline", "--json").json["pipelines"]] == [None, None]


def test_cost_tells_prometheus_of_this_month(kinor: Kinor, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BUDGETS", 'add=2USD,a"b\\c=7USD')
    ended(add.run_async(1, 2))
    text = kinor("cost", "--prometheus").out
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.type for family in families.values()} == {"gauge"}
    jobs = {sample.labels["pipeline"]: sample.value for sample in families["kinetic_month_jobs"].samples}
    assert jobs == {"add": 1, 'a"b\\c': 0}
    budget = {sample.labels["pipeline"]: sample.value for sample in families["kinetic_month_budget_usd"].samples}
    assert budget == {"add": 2, 'a"b\\c': 7}
    assert {sample.timestamp for family in families.values() for sample in family.samples} == {None}
    file = home / "kinetic.prom"
    kinor("cost", "--prometheus", str(file))
    assert list(text_string_to_metric_families(file.read_text())) and [*home.glob("*.prom*")] == [file]
    assert file.stat().st_mode & 0o777 == 0o644, "a collector is another user"
    refused = kinor("cost", "--prometheus", str(home / "kinetic.txt"))
    assert refused.code == 2 and "names end in .prom" in refused.err


def test_reap_forgets_what_pipelines_spent_long_ago(kinor: Kinor, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ended(add.run_async(1, 2))._job.store
    old, new = (f"budgets/{month}/total/ledger.json" for month in ("2020-01", "2999-01"))
    for name in (old, new):
        store.put(name, b"{}")
    assert not [item for item in kinor("reap", "--json").json["reaped"] if item["what"] == "budgets"], "nobody has any"
    monkeypatch.setenv("KINETIC_BUDGETS", "total=9")
    for words in (["--dry-run"], []):
        [item] = [item for item in kinor("reap", "--json", *words).json["reaped"] if item["what"] == "budgets"]
        assert (item["name"], item["why"]) == ("1 records", "of months more than 400d ago")
        assert (store.read(old) is not None) is bool(words)
    assert store.read(new) is not None


def test_a_budget_in_another_currency_is_refused_by_every_command(
    kinor: Kinor, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_BUDGETS", "retrain=500EUR")
    for words in (["cost"], ["jobs"]):
        refused = kinor(*words)
        assert refused.code == 2
        assert "budgets are in US dollars" in refused.err and "write retrain=500USD" in refused.err
    with pytest.raises(UsageError, match="write retrain=500USD"):
        add.run_async(1, 2)


def test_what_runs_on_this_machine_foresees_nothing_unless_its_limits_do(kinor: Kinor, home: Path) -> None:
    ended(add.run_async(1, 2))
    refused = kinor("cost", "--forecast", "add", "--every", "1d")
    assert refused.code == 2 and "add has no run in the last 90d that was charged for" in refused.err
    for words, said in (
        (["add"], "needs one schedule"), (["add", "--every", "1d", "--by", "pipeline"], "leave out the job"),
        (["add", "--cron", "61 * * * *"], "minute '61' is none"),
    ):  # fmt: skip
        refused = kinor("cost", "--forecast", *words)
        assert refused.code == 2 and said in refused.err
    assert "the schedule of a --forecast" in kinor("cost", "--every", "1d").err


# ---- plan, lock --------------------------------------------------------------------------------------------

PROGRAM = """
import kinetic_orchestration as kinetic
import helper

print("importing")

@kinetic.run(accelerator="v5e-16", capture_env_vars=["RATE"])
def train(rate, steps=3):
    return helper.twice(rate) * steps

def plain():
    return 1

class Trainer:
    @kinetic.run(accelerator="cpu:2")
    def fit(self):
        return 2

if __name__ == "__main__":
    train(1.0)
"""


@pytest.fixture
def project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my prøject"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "helper.py").write_text("def twice(value):\n    return 2 * value\n", encoding="utf-8")
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("RATE", "0.5")
    return folder


def test_plan_prints_the_dry_run_draws_the_slice_and_sends_nothing(home: Path, project: Path) -> None:
    before = sorted(project.iterdir())
    shown = real("plan", "train.py:train")
    assert shown.code == 0
    fields = dict(re.findall(r"^(\w[\w ]*?)  +(\S.*)$", shown.out, re.MULTILINE))
    assert fields["job"] == "train()"
    assert fields["accelerator"].startswith("v5e-16: 16 chips (4x4)")
    assert fields["environment"] == "RATE"
    assert fields["code"].startswith(f"{project}: 3 files, ")
    assert fields["by value"] == "helper, train"
    assert fields["python"].startswith("this environment")
    assert "host 3" in shown.out
    assert "nothing was run or sent" in shown.err
    assert "importing" not in shown.out  # what the file prints is no part of the answer
    assert sorted(project.iterdir()) == before
    assert not (home / "store").exists()
    assert not any((home / "staging").iterdir())


@pytest.mark.parametrize("named", [True, False])
def test_plan_needs_nobody_to_be_for_google_cloud(home: Path, project: Path, named: bool) -> None:
    place = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://nobodys/x", "KINETIC_DEPLOYMENT": "d"} if named else {}
    nobody = {"GOOGLE_APPLICATION_CREDENTIALS": str(home / "none"), "KINETIC_BACKEND": "tpu-vm"}
    shown = real("plan", "train.py:train", **nobody, **place)
    assert shown.code == 0, shown.err
    assert f'parent: "projects/{"p" if named else "your-project"}/locations/' in shown.out
    assert "host 3" in shown.out
    assert ("KINETIC_PROJECT" in shown.err, "KINETIC_STORE" in shown.err) == (not named, not named)
    assert "nothing was run or sent" in shown.err


CLOUD = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://nobodys/x", "KINETIC_DEPLOYMENT": "d"}


def test_plan_says_which_platform_a_job_gets_and_why(home: Path, project: Path) -> None:
    nobody = {**CLOUD, "GOOGLE_APPLICATION_CREDENTIALS": str(home / "none")}
    shown = real("plan", "train.py:train", "--accelerator", "v6e-8", **nobody)
    assert re.search(
        r"^backend +tpu-vm \(v6e has the Cloud TPU API; backend='compute' also serves it\)$", shown.out, re.M
    )
    shown = real("plan", "train.py:train", "--accelerator", "v6e-8", **nobody, KINETIC_BACKEND="tpu-vm")
    assert re.search(r"^backend +tpu-vm$", shown.out, re.M)
    shown = real("plan", "train.py:train", "--accelerator", "v6e-8", "--json", **nobody)
    assert json.loads(shown.out)["reason"].startswith("v6e has the Cloud TPU API")


def test_plan_of_tpus_and_gpus_with_a_backend_of_tpus_says_which_choice_and_what_helps(
    home: Path, project: Path
) -> None:
    nobody = {**CLOUD, "GOOGLE_APPLICATION_CREDENTIALS": str(home / "none"), "KINETIC_BACKEND": "tpu-vm"}
    Path("list.py").write_text(
        "import kinetic_orchestration as kinetic\n@kinetic.run(accelerator=['v6e-8', 'h100x8'])\ndef train(): ...\n"
    )
    shown = real("plan", "list.py:train", **nobody)
    assert shown.code == 2
    assert "error: in the choice of h100x8: h100x8 is no TPU, and the tpu-vm backend runs TPUs alone" in shown.err
    assert shown.err.rstrip().endswith("leave KINETIC_BACKEND out: each choice then gets a backend that has it")


def test_plan_of_gpus_is_that_of_vms_and_needs_no_zone_yet(home: Path, project: Path) -> None:
    nobody = {"KINETIC_PROJECT": "p", "GOOGLE_APPLICATION_CREDENTIALS": str(home / "none")}
    shown = real("plan", "train.py:train", "--accelerator", "l4x4", **nobody)
    assert shown.code == 0, shown.err
    assert re.search(r"^backend +compute \(GPUs have no Cloud TPU API; backend='gke' with a cluster", shown.out, re.M)
    assert re.search(r"^zones +your-zone$", shown.out, re.M) and "g2-standard-48" in shown.out
    assert "no zone is named (KINETIC_ZONES): your-zone stands for one here, and a job needs one" in shown.err


CHOICE = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator=["v6e-16", "v5p-16", kinetic.Gpu("h100", 8)], regions=["us-east5", "europe-west4"],
             capacity=["flex-start", "spot", "on-demand"])
def train():
    pass

@kinetic.run(accelerator=["v5e-4", "v5e-8"])
def small():
    pass

@kinetic.run(accelerator=["v6e-16", "v5p-16", kinetic.Gpu("h100", 8)], regions=["us-east5"], by="price")
def cheap():
    pass
"""


def test_plan_shows_the_choices_in_the_order_in_which_they_are_tried(home: Path, project: Path) -> None:
    (project / "choice.py").write_text(CHOICE, encoding="utf-8")
    nobody = {**CLOUD, "GOOGLE_APPLICATION_CREDENTIALS": str(home / "none")}
    shown = real("plan", "choice.py:train", **nobody)
    assert shown.code == 0, shown.err
    fields = dict(re.findall(r"^(\w[\w ]*?)  +(\S.*)$", shown.out, re.MULTILINE))
    assert fields["accelerator"] == "one of v6e-16, v5p-16, h100x8"
    assert (fields["backend"], fields["capacity"]) == ("compute, tpu-vm", "flex-start, spot, on-demand")
    assert fields["choices"] == "9, tried in your order"
    [head, *rows] = [re.split("  +", line) for line in shown.out.split("\n\n")[1].splitlines()]
    assert head == ["CHOICE", "CHIPS", "BOUGHT", "WHERE", "AN HOUR", "WHY"]
    assert rows[0][:4] == ["v6e-16", "16 on 4 hosts", "flex-start", "us-east5-{a,b}"] and rows[0][4].startswith("$")
    assert rows[0][5] == "first in your order" and rows[1][5] == "number 3 in your order"
    assert [row[:1] + row[2:4] for row in rows[4:8]] == [
        ["h100x8", "flex-start", "us-east5-{a,b,c}"], ["h100x8", "flex-start", "europe-west4-{a,b,c}"],
        ["v6e-16", "spot", "us-east5-{a,b}"], ["v6e-16", "spot", "europe-west4-a"],
    ]  # fmt: skip
    assert "regions/us-east5/instanceTemplates" in shown.out  # the request that would be the first
    told = real("plan", "choice.py:train", "--json", **nobody).json
    assert [len(told["plan"]["choices"]), len(told["choices"])] == [9, 33]
    assert told["choices"][0]["place"] == "us-east5-a" and told["choices"][0]["way"] == "flex-start"


def test_plan_puts_the_cheapest_first_and_what_has_no_known_price_last(home: Path, project: Path) -> None:
    (project / "choice.py").write_text(CHOICE, encoding="utf-8")
    nobody = {**CLOUD, "GOOGLE_APPLICATION_CREDENTIALS": str(home / "none"), "KINETIC_PRICES": "v5p=1,v6e=2"}
    shown = real("plan", "choice.py:cheap", **nobody)
    rows = [re.split("  +", line) for line in shown.out.split("\n\n")[1].splitlines()]
    assert [(row[0], row[4]) for row in rows[1:3]] == [("v5p-16", "$16.00"), ("v6e-16", "$32.00")]
    assert 'acceleratorType: "v5p-32"' in shown.out  # what would be requested first


def test_plan_of_choices_on_this_machine_leaves_nothing_behind(home: Path, project: Path) -> None:
    (project / "choice.py").write_text(CHOICE, encoding="utf-8")
    shown = real("plan", "choice.py:small")
    assert shown.code == 0, shown.err
    assert re.search(r"^v5e-4 +4 on 1 host +on-demand +this machine +- +first in your order$", shown.out, re.M)
    assert re.search(r"^v5e-8 +8 on 1 host +on-demand +this machine +- +number 2 in your order$", shown.out, re.M)
    assert not (home / "store").exists()


def test_plan_for_programs(home: Path, project: Path) -> None:
    (project / ".env").write_text("TOKEN=1", encoding="utf-8")
    told = real("plan", "train.py:train", "--json", "--files").json
    assert told["plan"]["slice"]["name"] == "v5e-16"
    assert told["plan"]["env"] == ["RATE"]  # names, not values
    assert told["project"]["files"] == 3
    assert told["project"]["secrets"] == [".env"]  # which stays here
    assert sorted(told["project"]["paths"]) == ["helper.py", "pyproject.toml", "train.py"]
    assert told["call"]["by_value"] == ["helper", "train"]
    assert told["environment"]["kind"] == "current"
    assert any("like a secret" in text for text in told["warnings"])
    assert "host 3" in told["drawing"]


def test_plan_warns_of_what_looks_like_a_secret_and_lists_files(home: Path, project: Path) -> None:
    (project / "id_rsa").write_text("x", encoding="utf-8")
    shown = real("plan", "train.py:train", "--files")
    assert "kinetic: warning:" in shown.err and "id_rsa" in shown.err
    assert "  helper.py  " in shown.out


@pytest.mark.parametrize("target", ["train.py:Trainer.fit", "train:Trainer.fit"])
def test_plan_takes_methods_and_modules(project: Path, target: str) -> None:
    assert "cpu-2" in real("plan", target).out or "cpu:2" in real("plan", target).out


def test_plan_takes_the_one_decorated_function_of_a_file(project: Path) -> None:
    (project / "other.py").write_text(PROGRAM.partition("class")[0], encoding="utf-8")
    assert "train()" in real("plan", "other.py").out


def test_plan_takes_a_plain_function_with_an_accelerator(project: Path) -> None:
    shown = real("plan", "train.py:plain")
    assert shown.code == 2
    assert "--accelerator" in shown.err
    assert "v5e-8" in real("plan", "train.py:plain", "--accelerator", "v5e-8").out


def test_plan_follows_a_packages_relative_imports(project: Path) -> None:
    package = project / "src" / "ours"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rates.py").write_text("RATE = 3\n", encoding="utf-8")
    (package / "train.py").write_text(
        "import kinetic_orchestration as kinetic\nfrom .rates import RATE\n\n"
        "@kinetic.run(accelerator='cpu')\ndef train():\n    return RATE\n",
        encoding="utf-8",
    )
    shown = real("plan", "src/ours/train.py:train")
    assert (shown.code, "train()" in shown.out) == (0, True), shown.err


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere.py:train", "there is no file 'nowhere.py'"),
        ("no.such.module:train", "no module of that name"),
        ("train.py:missing", "has no 'missing'; decorated there: train"),
        ("broken.py:train", "cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("leaves.py:train", "cannot be imported: SystemExit: 3"),
        ("calls.py:train", '__name__ == "__main__"'),
        ("train.yaml:train", "train.yaml is not a Python file"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_message(project: Path, home: Path, target: str, told: str) -> None:
    (project / "broken.py").write_text("import nothing_like_it\n", encoding="utf-8")
    (project / "leaves.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    (project / "calls.py").write_text(PROGRAM.replace('if __name__ == "__main__":', "if True:"), encoding="utf-8")
    (project / "train.yaml").write_text("print('a program')\n", encoding="utf-8")
    shown = real("plan", target)
    assert shown.code == 2
    assert told in shown.err
    assert "Traceback" not in shown.err
    assert not (home / "store").exists()  # nothing became a job


def test_a_slice_that_this_machine_cannot_hold_is_refused_by_the_plan(project: Path) -> None:
    shown = real("plan", "train.py:train", KINETIC_MAX_HOSTS="2")
    assert shown.code == 2
    assert "KINETIC_MAX_HOSTS" in shown.err


def test_a_committed_lock_is_taken_as_it_is(kinor: Kinor, home: Path, tmp_path: Path) -> None:
    committed = tmp_path / "requirements.txt"
    committed.write_text(f"wheels==1.0 \\\n    --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    shown = kinor("lock", str(committed))
    assert (shown.code, shown.out) == (0, committed.read_text(encoding="utf-8"))
    assert "1 package" in shown.err and "used as it is" in shown.err
    output = tmp_path / "lock.txt"
    told = kinor("lock", str(committed), "-o", str(output), "--json").json
    assert output.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    assert (told["packages"], told["output"], told["text"]) == (1, str(output), None)


def test_requirements_that_are_not_there_are_a_usage_error(kinor: Kinor, home: Path) -> None:
    shown = kinor("lock", "nowhere.txt")
    assert shown.code == 2
    assert "nowhere.txt" in shown.err


def test_a_plan_for_a_cluster_names_places_and_not_what_cloud_tpu_has(
    kinor: Kinor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"BACKEND": "gke", "PROJECT": "p", "CLUSTER": "prod", "SIGNING_KEY": "0123456789abcdef"}
    for name, value in names.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n@kinetic.run(accelerator='v5e-8')\ndef train():\n    pass\n"
    )
    shown = kinor("plan", str(tmp_path / "train.py"))
    assert re.search(r"^places +prod/default$", shown.out, re.MULTILINE), shown.out
    assert re.search(r"^price .* an hour while its nodes exist in prod/default \(8 × ", shown.out, re.MULTILINE)
    assert "\nv5e-8: 8 chips (2x4), 1 host × 8 chips, GKE v5e-8\n" in shown.out
    assert not {word for word in ("zone", "READY", "Cloud TPU") if word in shown.out}


def test_a_choice_on_a_cluster_has_prices_and_is_refused_by_name(
    kinor: Kinor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"BACKEND": "gke", "PROJECT": "p", "CLUSTER": "prod", "SIGNING_KEY": "0123456789abcdef"}
    for name, value in names.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    program = "import kinetic_orchestration as kinetic\n\n@kinetic.run(accelerator={})\ndef train():\n    pass\n"
    (tmp_path / "train.py").write_text(program.format("['v5e-8', 'v6e-8'], capacity=['spot', 'flex-start']"))
    shown = kinor("plan", str(tmp_path / "train.py"))
    assert re.search(r"^v5e-8 +8 on 1 host +spot +prod/default +~\$[\d.]+ +first in your order$", shown.out, re.M), (
        shown.out
    )
    assert re.search(
        r"^v6e-8 +8 on 1 host +flex-start +prod/default +~\$[\d.]+ +number 4 in your order$", shown.out, re.M
    )
    (tmp_path / "train.py").write_text(program.format("['v6e-8', 'v6e-16'], capacity=['spot', 'flex-start']"))
    refused = kinor("plan", str(tmp_path / "train.py"))
    assert "in the choice of v6e-16, flex-start: the job has 4 hosts, and flex-start gives machines" in refused.err


@pytest.mark.parametrize(
    ("namespace", "place"), [({}, "unknown"), ({"KINETIC_NAMESPACE": "training"}, "unknown/training")]
)
def test_leftovers_of_a_cluster_that_is_not_known_are_of_an_unknown_place(
    kinor: Kinor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: dict[str, str], place: str
) -> None:
    key = {"KINETIC_SIGNING_KEY": "0123456789abcdef"}
    for name, value in {
        "KINETIC_BACKEND": "kubernetes",
        "KUBECONFIG": str(tmp_path / "none"),
        **namespace,
        **key,
    }.items():
        monkeypatch.setenv(name, value)
    heading, row = kinor("reap").out.splitlines()
    assert (heading.split()[0], row.split()[:2]) == ("PLACE", [place, "leftovers"])
    assert "not looked at" in row
