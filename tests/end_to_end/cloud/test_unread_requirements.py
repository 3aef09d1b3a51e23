"""A file with requirements beside a program, which a job without `requirements=` does not read: said to who launches."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs.launch import launch
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.testing import Emulator

SAID = (
    "kinetic: requirements.txt is not read: hosts get what the program imports, at the versions installed here. "
    'To have them install what it lists instead: requirements="requirements.txt"'
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("a-package-that-nobody-imports\n", encoding="utf-8")
    (folder / "program_with_requirements.py").write_text("def one():\n    return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    spec = importlib.util.find_spec("program_with_requirements")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_program_is_told_once_and_an_orchestrator_is_not(
    cloud: Emulator, program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[str]:
        return [line for line in capsys.readouterr().err.splitlines() if "requirements.txt" in line]

    launch(
        draft(JobSpec("one", Options(accelerator="v5e-1"), program.one)).open()
    )  # as an orchestrator's adapter does it
    assert told() == []
    run = kinetic.run(accelerator="v5e-1")(program.one)
    job = run.run_async()
    assert told() == [SAID]
    batch = run.run_async_map([{}])
    assert told() == []  # once in a process
    monkeypatch.setattr("kinetic_orchestration.api.handle._told", set())
    assert run() == 1
    assert told() == [SAID]
    monkeypatch.setattr("kinetic_orchestration.api.handle._told", set())
    another = run.run_async_map([{}])
    assert told() == [SAID]
    assert [job.result(), *batch.results(), *another.results()] == [1, 1, 1]
