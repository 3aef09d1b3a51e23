"""`kinetic.command([...])`: what is no function, with the project around it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError, JobFailed
from kinetic_orchestration.plan import values
from kinetic_orchestration.plan.messages import command

pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A folder with these files, and the working directory in it."""

    def make(**files: str) -> Path:
        root = tmp_path / "projekt ü"
        for name, text in files.items():
            path = root / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        root.mkdir(exist_ok=True)
        monkeypatch.chdir(root)
        return root

    return make


def test_a_command_runs_with_its_project_around_it(project: Callable[..., Path]) -> None:
    root = project(
        train_py="""
            import json, os, sys
            import helper
            print(json.dumps({"argv": sys.argv[1:], "helper": helper.NAME, "cwd": os.getcwd(), "python": sys.executable,
                              "data": open("data.txt").read(),
                              "env": {name: value for name, value in os.environ.items() if name.startswith("KINETIC_")}}))
        """,
        helper_py="NAME = 'from the project'",
    )
    (root / "data.txt").write_text("beside it", encoding="utf-8")
    job = kinetic.command(["python", "train.py", "--lr", "1e-3"], accelerator="cpu")
    assert job.result() is None and job.func_name == "python"
    told = json.loads(job.logs() or "")
    assert (told["argv"], told["helper"], told["data"]) == (["--lr", "1e-3"], "from the project", "beside it")
    assert told["python"] == sys.executable and told["cwd"] != str(root)
    env = told["env"]
    assert (env["KINETIC_JOB_ID"], env["KINETIC_ATTEMPT"], env["KINETIC_HOST_INDEX"]) == (job.job_id, "1", "0")
    assert env["KINETIC_OUTPUT_DIR"] == job.output_dir and env["KINETIC_HOST_COUNT"] == "1"


def test_a_commands_own_process_logs_metrics_through_current(project: Callable[..., Path], tmp_path: Path) -> None:
    """Also under a Python that has not installed kinetic_orchestration: it comes along, last on the path."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    assert subprocess.run([python, "-c", "import kinetic_orchestration"], capture_output=True, cwd=tmp_path).returncode
    project(
        train_py="""
            import kinetic_orchestration as kinetic
            host = kinetic.current()
            host.log_metrics(step=1, loss=0.25)
            host.progress(1, 2, unit="step")
            print(host.job_id, host.host_index)
        """
    )
    job = kinetic.command([python, "train.py"], accelerator="cpu")
    told: list[values.Event] = []
    job.follow(told.append)
    assert [event.values for event in told if isinstance(event, values.Metrics)] == [{"loss": 0.25}]
    assert [event.done for event in told if isinstance(event, values.Progress)] == [1]
    assert job.logs() == f"{job.job_id} 0\n"


def test_a_commands_folder_is_its_working_directory_in_the_project(project: Callable[..., Path]) -> None:
    root = project(pyproject_toml="", sub__run_py="import os; print(os.path.basename(os.getcwd()), os.listdir('..'))")
    (root / "pyproject.toml").touch()
    job = kinetic.command(["python", "run.py"], cwd=root / "sub", accelerator="cpu")
    job.result()
    assert (job.logs() or "").startswith("sub [") and "pyproject.toml" in (job.logs() or "")


def test_any_program_will_do(project: Callable[..., Path]) -> None:
    project()
    job = kinetic.command(["sh", "-c", "echo $0 $1; echo oops >&2", "a b", "ü"], accelerator="cpu")
    job.result()
    assert sorted((job.logs() or "").splitlines()) == ["a b ü", "oops"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sh", "-c", "echo the last words; exit 3"], r"exit code 3(.|\n)*Its last lines:\nthe last words"),
        (["sh", "-c", "kill -KILL $$"], "ended by SIGKILL: perhaps the machine ran out of memory"),
        (["no-such-program"], "exit code 127(.|\n)*no-such-program: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_job_failed_with_its_last_lines(
    argv: list[str], message: str, project: Callable[..., Path]
) -> None:
    project()
    job = kinetic.command(argv, accelerator="cpu")
    with pytest.raises(JobFailed, match=message) as caught:
        job.result()
    assert command("logs", job.job_id) in str(caught.value)
    assert isinstance(caught.value, JobError) and caught.value.job_id == job.job_id


def test_every_host_runs_the_command(project: Callable[..., Path]) -> None:
    project()
    job = kinetic.command(["sh", "-c", "echo $KINETIC_HOST_INDEX of $KINETIC_HOST_COUNT"], accelerator="v5p-8")
    job.result()
    assert sorted((job.logs() or "").splitlines()) == ["[host 0] 0 of 2", "[host 1] 1 of 2"]


def test_a_command_in_a_folder_where_much_else_lies_takes_only_the_files_it_names(
    shared_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder is nobody's project."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secret-diary.txt").touch()
    (tmp_path / "train.py").write_text("import os, beside; print(sorted(os.listdir()))", encoding="utf-8")
    (tmp_path / "beside.py").touch()
    job = kinetic.command(["python", "-B", "train.py"], cwd=tmp_path, accelerator="cpu")
    job.result()
    assert job.logs() == "['beside.py', 'train.py']\n"
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "train.py").write_text("import helper", encoding="utf-8")
    (tmp_path / "below" / "helper.py").write_text("print('helped')", encoding="utf-8")
    for marker in (None, "setup.py"):  # a loose file, and one of a project
        if marker is not None:
            (tmp_path / "below" / marker).touch()
        below = kinetic.command(["python", "-B", "below/train.py"], cwd=tmp_path, accelerator="cpu")
        below.result()
        assert below.logs() == "helped\n"
    nothing = kinetic.command(["sh", "-c", "ls"], cwd=tmp_path, accelerator="cpu")
    nothing.result()
    assert nothing.logs() == ""


def test_data_in_volumes_and_captured_variables_reach_a_command(
    project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project()
    (tmp_path / "x.csv").write_text("1,2", encoding="utf-8")
    monkeypatch.setenv("A_TOKEN", "hidden")
    mount = tmp_path / "mounted.csv"
    options: dict[str, Any] = {
        "volumes": {str(mount): kinetic.Data(tmp_path / "x.csv")},
        "capture_env_vars": ["A_TOKEN"],
    }
    job = kinetic.command(["sh", "-c", f"cat '{mount}'; echo; printf $A_TOKEN | wc -c"], accelerator="cpu", **options)
    job.result()
    assert (job.logs() or "").split() == ["1,2", "6"]


def test_a_key_makes_a_command_run_once(project: Callable[..., Path], tmp_path: Path) -> None:
    project()
    record = tmp_path / "record"
    for _ in range(2):
        kinetic.command(["sh", "-c", f"echo run >> '{record}'"], accelerator="cpu", key="command-once").result()
    assert record.read_text(encoding="utf-8") == "run\n"
