"""Tools and wheels in the store, and a host that has nothing else: real uv, a real interpreter, no package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.packaging.requirements import interpreters, tools
from kinetic_orchestration.packaging.requirements.locks import Hosts, locked_for
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.files import FileRecords
from tests.support.interpreters import OLDEST, interpreter
from tests.support.wheels import offline, wheel

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
NOWHERE = "http://127.0.0.1:9/simple"  # nothing listens there
HOSTS = Hosts(parse("v5e-4"), emulated=True)

PROVIDE = """
import json, sys
sys.path.insert(0, {site!r})
from kinetic_orchestration.host.prepare import toolbox
from kinetic_orchestration.protocol.records.files import FileRecords
from kinetic_orchestration.protocol.wire.task import Environment
told = json.load(sys.stdin)
notes = []
try:
    wanted = Environment.from_json(told.pop("wanted"))
    print(toolbox.provide(FileRecords(told.pop("store")), wanted, note=notes.append, **told))
except toolbox.BuildFailed as error:
    print("failed:", error)
print(json.dumps(notes))
"""


class Desk:
    """A submitter with a store and one folder of wheels; and machines that see the store alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.links = folder / "links"
        wheel(self.links, "alpha")
        wheel(self.links, "beta", "2.0", ["alpha>=1"])
        self.environ = offline(folder) | {
            "KINETIC_HOME": str(folder / "home of ours"),
            "KINETIC_STORE": str(folder / "a store"),
        }
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        self.settings = settings.load(self.environ)
        self.store = open_store(self.settings.store, self.settings.deployment)

    def task(self, requirements: Sequence[str]) -> dict[str, object]:
        """The environment and the tools of a host."""
        found = locked_for(requirements, HOSTS, environ=self.environ)
        assert found.lock is not None
        wanted = {"python": HERE, "packages": found.lock.packages, "lock": found.lock.digest}
        digests = tools.present(self.store, tools.known(HERE, self.settings), self.settings.retention)
        return {"store": self.store.url, "wanted": wanted, "tools": digests, "lock_text": found.lock.text}

    def machine(
        self, task: dict[str, object], python: str = sys.executable, **changed: object
    ) -> tuple[str, list[str]]:
        """Build on a machine with another home, no uv on PATH and an index that does not answer; what it says."""
        home = self.folder / "a machine"
        empty = self.folder / "nothing"
        empty.mkdir(exist_ok=True)
        site = str(Path(tools.__file__).parents[tools.__name__.count(".")])
        told = {**task, "home": str(home), "env": {"UV_DEFAULT_INDEX": NOWHERE, "UV_HTTP_RETRIES": "0"}, **changed}
        done = subprocess.run(
            [python, "-I", "-S", "-c", PROVIDE.format(site=site)],
            input=json.dumps(told), capture_output=True, text=True, check=True, timeout=280,
            env={"PATH": f"/usr/bin:/bin:{empty}", "HOME": str(home)},
        )  # fmt: skip
        path, _, notes = done.stdout.rstrip("\n").rpartition("\n")
        return path, json.loads(notes)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def says(python: str, program: str) -> str:
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, env={}, check=False, timeout=60)
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(600)
def test_a_machine_without_an_index_builds_from_what_was_staged(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine has another Python than the job: uv, the interpreter and every wheel come from the store."""
    (tmp_path / "requirements.txt").write_text("beta\n")
    assert main(["stage-tools", "--offline", str(tmp_path / "requirements.txt"), "--accelerator", "v5e-4"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == [
        "uv", f"python-{HERE}", "alpha-1.0-py3-none-any.whl", "beta-2.0-py3-none-any.whl",
    ]  # fmt: skip
    old = interpreter(OLDEST) or sys.executable
    task = desk.task(["beta"])
    assert set(task["tools"]) == {"uv", "python"}  # type: ignore[call-overload]
    python, notes = desk.machine(task, old)
    assert notes[0] == "building the environment: 2 packages"
    assert notes[1].startswith("fetching 2 wheels from the store")
    program = (
        "import beta, alpha, sys; print(beta.version, alpha.version, '%d.%d' % sys.version_info[:2], sys.base_prefix)"
    )
    *versions, base = says(python, program).split(" ", 3)
    assert versions == ["2.0", "1.0", HERE]
    assert old == sys.executable or base.startswith(str(tmp_path / "a machine/tools"))
    again, said = desk.machine(task, old)
    assert (again, said) == (python, [])
    assert main(["stage-tools", "--json"]) == 0
    assert [tool["new"] for tool in json.loads(capsys.readouterr().out)["tools"]] == [False, False]


@pytest.mark.slow
@pytest.mark.turn
def test_wheels_of_all_choices_are_staged_each_once(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of TPUs and of GPUs, whether a file of requirements or a function with a choice is named."""
    wheel(desk.links, "libtpu", "0.0.42")
    wheel(desk.links, "jax_cuda12_plugin", "0.10.2")
    extras = ["alpha", "libtpu==0.0.42 ; extra == 'tpu'", "jax-cuda12-plugin==0.10.2 ; extra == 'cuda12'"]
    wheel(desk.links, "jax", "0.10.2", extras)
    (tmp_path / "requirements.txt").write_text("jax\n")
    (tmp_path / "chooses.py").write_text(
        "import kinetic_orchestration as kinetic\n\n\n"
        "@kinetic.run(accelerator=['v6e-4', 'v5e-4', kinetic.Gpu('l4')], requirements=['jax'])\n"
        "def train():\n    return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    requirements = [str(tmp_path / "requirements.txt"), "--accelerator", "v6e-4,l4"]
    for arguments, new in ((requirements, True), (["chooses.py:train"], False)):
        assert main(["stage-tools", "--json", "--offline", *arguments]) == 0
        staged = json.loads(capsys.readouterr().out)["tools"][2:]
        assert [tool["name"].partition("-")[0] for tool in staged] == ["alpha", "jax", "jax_cuda12_plugin", "libtpu"]
        assert {tool["new"] for tool in staged} == {new}
    assert main(["lock", "chooses.py:train"]) == 2
    assert "the choices of chooses.py:train need locks that differ" in capsys.readouterr().err
    assert main(["lock", "chooses.py:train", "--accelerator", "l4"]) == 0
    assert "jax-cuda12-plugin==0.10.2" in capsys.readouterr().out


def test_a_tool_that_was_changed_in_the_store_is_not_run(desk: Desk, tmp_path: Path) -> None:
    staged = tools.stage_uv(desk.store, desk.settings)
    marker = tmp_path / "was run"
    desk.store.put(names.tool(staged.digest), f"#!/bin/sh\ntouch '{marker}'\n".encode())
    told, _ = desk.machine(desk.task(["beta"]))
    assert told.startswith("failed:") and "its digest differs. Nothing of it was run" in told
    assert not marker.exists()


def test_a_tool_of_which_only_the_store_tells_is_not_used(desk: Desk) -> None:
    desk.store.put(names.tool("0" * 64), b"#!/bin/sh\n")
    task = desk.task(["beta"])
    assert task["tools"] == {}
    told, _ = desk.machine(task)
    assert "There is no uv on this host" in told and "kinetic-orchestration stage-tools" in told


def test_a_wheel_that_was_changed_in_the_store_is_not_installed(desk: Desk) -> None:
    tools.stage_uv(desk.store, desk.settings)
    found = locked_for(["beta"], HOSTS, environ=desk.environ)
    assert found.lock is not None
    for staged in tools.stage_wheels(desk.store, found.lock, desk.environ):
        if staged.name.startswith("alpha"):
            evil = wheel(desk.folder / "evil", "alpha", files={"alpha.py": "version = 'evil'\n"})
            desk.store.put(names.wheel(staged.digest, staged.name), evil.read_bytes())
    told, notes = desk.machine(desk.task(["beta"]))
    assert told.startswith("failed:")  # uv asks the index for all at once, and names whichever answer came first
    assert any("/alpha-" in note and "its digest differs" in note for note in notes)


def test_code_that_needs_nothing_runs_on_the_bare_interpreter(desk: Desk) -> None:
    """Without uv, an index or a virtual environment."""
    task = desk.task([])
    assert task["tools"] == {}
    python, notes = desk.machine(task)
    assert notes == []
    assert os.path.realpath(python) == os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    assert not (desk.folder / "a machine/environments").exists()


def test_an_interpreter_is_packed_to_the_same_bytes_without_what_a_job_does_not_need(tmp_path: Path) -> None:
    root = tmp_path / "python"
    kept = [
        "bin/python3.11",
        "lib/python3.11/os.py",
        "lib/python3.11/lib-dynload/_ssl.so",
        "include/python3.11/Python.h",
    ]
    dropped = [
        "lib/python3.11/test/x.py",
        "lib/python3.11/__pycache__/os.pyc",
        "lib/python3.11/site-packages/a/b.py",
        "bin/pip",
    ]
    for number, name in enumerate([*kept, *dropped]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{number}")
    (root / "bin/python3").symlink_to("python3.11")
    interpreters.pack(root, "3.11", tmp_path / "one.tar.gz")
    for path in root.rglob("*.py"):
        os.utime(path, (1, 1))
    interpreters.pack(root, "3.11", tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert sorted(archive.getnames()) == sorted([*kept, "bin/python3"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xcf\xfa\xed\xfe" + b"\0" * 40, "it is not for Linux on x86-64"),
        (
            b"\x7fELF\x02" + b"\0" * 13 + b"\x3e\0" + b"GLIBC_2.17\0GLIBC_2.38\0",
            "needs glibc 2.38, and the hosts have 2.35",
        ),
        (b"\x7fELF\x02" + b"\0" * 13 + b"\x3e\0" + b"GLIBC_2.34\0", ""),
    ],
)
def test_only_an_interpreter_that_a_host_can_run_is_taken(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/python3.11").mkdir(parents=True)
    (tmp_path / "lib/python3.11/os.py").touch()
    (tmp_path / "bin/python3.11").write_bytes(content)
    found = interpreters.problem_of(tmp_path, "3.11")
    assert found.endswith(problem) and bool(found) == bool(problem)


def test_digests_from_the_settings_are_believed(desk: Desk) -> None:
    digest = "a" * 64
    FileRecords(desk.store.url).put(names.tool(digest), b"an interpreter")
    told = settings.load({**desk.environ, "KINETIC_TOOLS": f"python-{HERE}={digest}"})
    assert tools.present(desk.store, tools.known(HERE, told), told.retention) == {"python": digest}


def test_the_digest_of_the_own_uv_is_read_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tools.known(HERE, desk.settings)
    read: list[Path] = []
    hashed: Callable[[Path], str] = lambda path: read.append(path) or ""  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr(tools, "plain_of_file", hashed)
    assert tools.known(HERE, desk.settings) == first
    assert read == []
