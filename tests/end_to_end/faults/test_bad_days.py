"""Bad days: what a job comes to when the machine, or the person at it, does not play along."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors
from kinetic_orchestration.api.handle import all_jobs

INTERRUPTED = """
import os, signal, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-16")
def sleeper():
    time.sleep(600)

started = []

def interrupt(event, arguments):
    if event == "subprocess.Popen":
        started.append(event)
        if len(started) == 3:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
sleeper()
"""


def test_ctrl_c_while_the_hosts_are_being_started_cancels_what_is_on_its_way(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "interrupted.py"
    program.write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    (job,) = all_jobs()
    assert job.status() is kinetic.JobStatus.CANCELLED


@kinetic.run(accelerator="v5e-16", retry=kinetic.Retry(infra=1))
def four_hosts() -> str:
    return "done"


def test_hosts_that_cannot_be_started_are_tried_again_and_then_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a process whose environment is too long, as it would refuse one too many."""
    monkeypatch.setenv("FAR_TOO_LONG", "x" * 200_000)
    job = four_hosts.run_async()
    with pytest.raises(errors.JobLost, match="this machine could not start 4 hosts: Argument list too long"):
        job.result(timeout=60)
    assert job.attempts() == 2


@kinetic.run(accelerator="cpu")
def too_much_for_the_disk() -> bytes:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return bytes(4 << 20)


def test_a_disk_that_fills_while_the_value_is_written_is_not_blamed_on_the_value(home: Path) -> None:
    with pytest.raises(errors.JobError, match=r"the value could not be written to .*: File too large") as raised:
        too_much_for_the_disk.run_async().result(timeout=60)
    assert not isinstance(raised.value, errors.ResultNotPicklable)


@kinetic.run(accelerator="cpu")
def inner() -> str:
    return kinetic.current().output_dir


@kinetic.run(accelerator="cpu")
def outer() -> tuple[str, str]:
    submit = kinetic.run(accelerator="cpu")(lambda: kinetic.current().output_dir)
    return kinetic.current().output_dir, submit.run_async().result(timeout=60)


def test_a_job_that_a_job_submits_has_an_output_folder_of_its_own(home: Path) -> None:
    mine, theirs = outer.run_async().result(timeout=90)
    assert mine != theirs
    assert Path(theirs).parent == Path(mine).parent


@kinetic.run(accelerator="v5e-8")
def lookalike() -> None:
    print("3 peer ranks. Expected number of connected peer ranks is 3: a line of my own")
    print("[Gloo] Rank 7 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3")
    print("the end")


def test_only_what_gloo_says_of_itself_is_left_out_of_an_emulated_log(home: Path) -> None:
    job = lookalike.run_async()
    job.result(timeout=60)
    assert job.logs() == ("3 peer ranks. Expected number of connected peer ranks is 3: a line of my own\nthe end\n")


def test_a_plain_run_finds_no_checkpoints_of_another(tmp_path: Path) -> None:
    program = "import kinetic_orchestration as kinetic; print(kinetic.current().checkpoint_dir)"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
    found = {
        subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60).stdout
        for _ in range(2)
    }
    assert len(found) == 2
    assert not any(Path(folder.strip()).exists() for folder in found), "an empty folder is not left behind"


FORKED = """
import os, sys, time
import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs.cleanup import owner

@kinetic.run(accelerator="cpu")
def sleeper():
    time.sleep(600)

parent = sleeper.run_async()
if os.fork() == 0:
    child = sleeper.run_async()
    path = os.path.join(os.environ["KINETIC_HOME"], "store", "local", "jobs", child.job_id, "in", "owner.json")
    first = os.stat(path).st_mtime_ns
    deadline = time.monotonic() + 60
    while os.stat(path).st_mtime_ns == first and time.monotonic() < deadline:
        time.sleep(0.05)
    print("beats" if os.stat(path).st_mtime_ns != first else "silent", flush=True)
    child.cancel()
    os._exit(0)
os.wait()
parent.cancel()
"""


@pytest.mark.slow
def test_a_forked_process_owns_its_jobs_itself(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "forked.py"
    program.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, timeout=150,
        env={**os.environ, "KINETIC_ON_OWNER_LOST": "abort"},
    )  # fmt: skip
    assert re.search(r"^beats$", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_key": 3}, "partition_key is 3, and should be str or None"),
        ({"output_dir": 5}, "output_dir is 5, and should be str or PathLike or None"),
        ({"limits": {"run": 3}}, "limits is {'run': 3}, and should be Limits"),
        ({"retry": kinetic.Retry(user=1.5)}, "retry.user is 1.5: it is a whole number"),  # type: ignore[arg-type]
        ({"labels": {1: 2}}, "labels maps text to text, not 1 to 2"),
        ({"spot": "yes"}, "spot is 'yes', and should be True or False"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_when_decorating(options: dict[str, object], message: str) -> None:
    with pytest.raises(errors.UsageError, match=re.escape(message)):
        kinetic.run(accelerator="cpu", **options)  # type: ignore[arg-type]


def test_attaching_to_what_is_no_id(home: Path) -> None:
    with pytest.raises(errors.JobNotFound):
        kinetic.attach(None)  # type: ignore[arg-type]
