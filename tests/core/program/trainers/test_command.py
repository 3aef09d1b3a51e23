"""A command whose numbers are read on its way: what the job sees of it, and what the command itself notices (nothing)."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobFailed, UsageError
from kinetic_orchestration.plan import values
from kinetic_orchestration.program.trainers.command import Tail

pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def make(**files: str) -> Path:
        root = tmp_path / "projekt ü"
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            (root / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.chdir(root)
        return root

    return make


def told(job: Any) -> tuple[dict[int | None, dict[str, float]], list[tuple[float, float]], set[int]]:
    """Return the metrics of a job by step, its progress, and the hosts that reported any."""
    events: list[values.Event] = []
    job.follow(events.append)
    metrics: dict[int | None, dict[str, float]] = {}
    for event in events:
        if isinstance(event, values.Metrics):
            metrics.setdefault(event.step, {}).update(event.values)
    reported = [event for event in events if isinstance(event, values.Metrics | values.Progress)]
    progress = [(event.done, event.total) for event in events if isinstance(event, values.Progress)]
    return metrics, progress, {event.host for event in reported}


def test_numbers_of_host_0_reach_the_job_while_every_line_stays_as_it_was(project: Callable[..., Path]) -> None:
    project(
        train="""
            import os, sys
            host = int(os.environ["KINETIC_HOST_INDEX"])
            for step in range(3):
                print(f"step: {step}/3, loss: {step + host / 10}")
            sys.stdout.buffer.write(b"\\xff no text\\r50%|\\r")
            sys.stdout.flush()
            print("step: 7, loss: 0.5", end="")
        """
    )
    job = kinetic.command(["python", "train.py"], accelerator="v5p-8", metrics="torchrun")
    metrics, progress, hosts = told(job)
    assert metrics == {0: {"loss": 0}, 1: {"loss": 1}, 2: {"loss": 2}, 7: {"loss": 0.5}}
    assert progress == [(0, 3), (1, 3), (2, 3), (7, 0)]
    assert hosts == {0}
    log = job.logs() or ""
    for host in range(2):
        # Another host's line may follow the carriage return of a bar.
        mine = "".join(re.findall(rf"\[host {host}\] (.*?)(?=\[host |\Z)", log, re.DOTALL)).split("\n")
        assert mine[:3] == [f"step: {step}/3, loss: {step + host / 10}" for step in range(3)]
        assert mine[3].startswith("\\xff no text\r50%|\r") and mine[3].endswith("step: 7, loss: 0.5")


def test_a_megabyte_of_any_bytes_arrives_whole_and_in_order(project: Callable[..., Path]) -> None:
    project(
        train="""
            import hashlib, random, sys
            data = random.Random(1).randbytes(3 << 19).replace(b"\\n", b"n")
            lines = b"".join(data[at : at + 700] + b"\\n" for at in range(0, len(data), 700)) + data[:200000]
            sys.stdout.buffer.write(lines + b"\\n")
            sys.stdout.flush()
            print("is", hashlib.sha256(lines + b"\\n").hexdigest(), file=sys.stderr)
        """
    )
    job = kinetic.command(["python", "train.py"], accelerator="cpu", metrics="maxtext")
    parts: dict[str, bytes] = {"out": b"", "err": b""}

    def keep(event: values.Event) -> None:
        if isinstance(event, values.Output):
            parts["out" if event.kind == "o" else "err"] += event.text

    job.follow(keep)
    expected = next(line for line in parts["err"].decode().splitlines() if line.startswith("is "))
    assert expected == f"is {hashlib.sha256(parts['out']).hexdigest()}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sh", "-c", "echo the last words; exit 3"], r"exit code 3(.|\n)*Its last lines:\nthe last words"),
        (["sh", "-c", "kill -KILL $$"], "ended by SIGKILL: perhaps the machine ran out of memory"),
        (["sh", "-c", "kill -SEGV $$"], "ended by SIGSEGV"),
        (["no-such-program"], "exit code 127(.|\n)*no-such-program: No such file or directory"),
    ],
)
def test_a_command_ends_as_it_does_without_a_parser(
    argv: list[str], message: str, project: Callable[..., Path]
) -> None:
    project()
    job = kinetic.command(argv, accelerator="cpu", metrics="torchrun")
    with pytest.raises(JobFailed, match=message):
        job.result()


def test_a_cancelled_command_hears_of_it_once_and_may_say_goodbye(project: Callable[..., Path]) -> None:
    project(
        train="""
            import signal, sys, time
            heard = []
            def hear(*_):
                heard.append(1)
            signal.signal(signal.SIGTERM, hear)
            print("step: 1, loss: 2", flush=True)
            while not heard:
                time.sleep(0.01)
            time.sleep(0.5)  # for a second one, if there was any
            print("heard", len(heard), flush=True)
        """
    )
    job = kinetic.command(["python", "train.py"], accelerator="cpu", metrics="torchrun")
    events: list[values.Event] = []

    def cancel_once(event: values.Event) -> None:
        events.append(event)
        if isinstance(event, values.Metrics):
            job.cancel()

    job.follow(cancel_once)
    text = b"".join(event.text for event in events if isinstance(event, values.Output))
    assert b"heard 1\n" in text, text


def test_nothing_of_a_command_outlives_the_process_that_reads_it(project: Callable[..., Path], tmp_path: Path) -> None:
    project(
        train="""
            import os, time
            print("step: 1, loss: 2", flush=True)
            open(os.environ["NOTE"], "w").write(f"{os.getpid()} {os.getppid()}")
            time.sleep(600)
        """
    )
    note = tmp_path / "note"
    argv = ["env", f"NOTE={note}", "python3", "train.py"]
    job = kinetic.command(argv, accelerator="cpu", metrics="torchrun")
    end = time.monotonic() + 60
    while not (note.exists() and note.read_text().count(" ")) and time.monotonic() < end:
        time.sleep(0.01)
    process, reader = map(int, note.read_text().split())
    command = Path(f"/proc/{reader}/cmdline").read_bytes()
    assert b"trainers.command" in command and b"train.py" in command, "the process that this job started"
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(JobFailed, match="SIGKILL"):
        job.result(timeout=60)
    end = time.monotonic() + 30
    while Path(f"/proc/{process}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path(f"/proc/{process}").exists()


def test_parsers_of_the_project_come_along_by_their_names(project: Callable[..., Path], tmp_path: Path) -> None:
    root = project(
        mine="""
            import helper

            def read(line):
                return {"step": len(line), helper.NAME: 1.5, "text": "no number"} if line.startswith("fails") else (
                    {"step": len(line), helper.NAME: 1.5} if line else None)

            class Counts:
                def __init__(self, argv):
                    self.words, self.seen = len(argv), 0
                def __call__(self, line):
                    self.seen += 1
                    return {"step": self.seen, "words": self.words}
        """,
        helper="NAME = 'from the project'",
        train="print('abc'); print('fails'); print('ok')",
    )
    command = ["python", "train.py"]
    by_name = kinetic.command(command, accelerator="cpu", metrics="mine:read")
    by_file = kinetic.command(command, accelerator="cpu", metrics="mine.py:Counts")
    assert told(by_name)[0] == {3: {"from the project": 1.5}}
    assert "kinetic: the parser failed, and reads no more: ValueError" in (by_name.logs() or "")
    by_name.result()  # which it did not hurt
    assert told(by_file)[0] == {1: {"words": 2}, 2: {"words": 2}, 3: {"words": 2}}
    (root / "submits.py").write_text(
        textwrap.dedent("""
            import kinetic_orchestration as kinetic
            def read(line):
                return {"length": len(line)}
            if __name__ == "__main__":
                job = kinetic.command(["python", "train.py"], accelerator="cpu", metrics=read)
                found = []
                job.follow(lambda event: found.append(getattr(event, "values", None)))
                print("found", [each for each in found if each])
        """)
    )
    import subprocess
    import sys

    said = subprocess.run([sys.executable, "submits.py"], cwd=root, capture_output=True, text=True, timeout=100)
    assert "found [{'length': 3.0}, {'length': 5.0}, {'length': 2.0}]" in said.stdout, said.stdout + said.stderr
    with pytest.raises(JobFailed, match="the parser mine:gone cannot be loaded: AttributeError"):
        kinetic.command(command, accelerator="cpu", metrics="mine:gone").result()


def test_a_file_counts_before_the_lines_and_what_an_earlier_attempt_left_in_it_does_not(
    project: Callable[..., Path],
) -> None:
    project(
        train="""
            import os
            attempt = int(os.environ["KINETIC_ATTEMPT"])
            folder = os.path.join(os.environ["KINETIC_CHECKPOINT_DIR"], "logs")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "metrics.csv"), "a") as file:
                if attempt == 1:
                    file.write("epoch,step,loss\\n")
                for step in range(2 * attempt - 2, 2 * attempt):
                    file.write(f"0,{step},{attempt + step}\\n")
            print("Epoch 0:  60%|█ | 60/100 [00:00<00:00, 1it/s, loss=9]", flush=True)
            raise SystemExit(2 - attempt)
        """
    )
    job = kinetic.command(
        ["python", "train.py"], accelerator="cpu", metrics="lightning",
        metrics_file="$KINETIC_CHECKPOINT_DIR/**/metrics.csv", retry=kinetic.Retry(user=1),
    )  # fmt: skip
    events: list[values.Event] = []
    job.follow(events.append)
    found = [(event.attempt, event.step, event.values["loss"]) for event in events if isinstance(event, values.Metrics)]
    assert found == [(1, 0, 1), (1, 1, 2), (2, 2, 4), (2, 3, 5)]


def test_a_dead_link_among_the_files_of_metrics_does_not_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "old.csv").symlink_to(tmp_path / "gone")
    tail = Tail(f"{tmp_path}/*.csv")
    (tmp_path / "new.csv").write_text("a line\n")
    assert list(tail.read()) == [(b"a line", True)]


def test_a_script_writes_its_numbers_into_a_file_of_its_own(project: Callable[..., Path]) -> None:
    project(train="import os; print('step: 1, loss: 3', file=open(os.environ['KINETIC_METRICS_FILE'], 'a'))")
    assert told(kinetic.command(["python", "train.py"], accelerator="cpu", metrics="torchrun"))[0] == {1: {"loss": 3}}


def test_what_names_no_parser_is_refused_before_anything_is_sent(project: Callable[..., Path]) -> None:
    project()

    def local(line: str) -> None: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"metrics": "tensorboard"}, "names no parser: name one of 'lightning', 'maxtext'"),
        ({"metrics": "mine:"}, "names no parser"),
        ({"metrics": local}, "cannot be found by its name on a host"),
        ({"metrics": 3}, "cannot be found by its name on a host"),
        ({"metrics_file": "m.csv"}, "needs metrics="),
        ({"metrics": "maxtext", "metrics_file": "x" * 5000}, "too long"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=message):
            kinetic.command(["true"], accelerator="cpu", **options)
