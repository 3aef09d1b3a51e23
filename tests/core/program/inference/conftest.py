"""A server of the tests, as an engine is declared, a model's directory, and what a batch has written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.program.inference import step
from tests.support import openai_server


class Lab:
    """What one batch of a test works with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        self.model = folder / "model"
        self.model.mkdir()
        self.output = folder / "output"
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(b"weights")
        (self.model / "tokenizer.json").write_text("{}")

    def server(self, *more: str, **options: Any) -> kinetic.Server:
        argv = [
            "{python}",
            openai_server.__file__,
            "--model",
            "{model}",
            "--port",
            "{port}",
            "--state",
            str(self.state),
            *more,
        ]
        return kinetic.Server(argv=argv, **options)

    def faults(self, faults: dict[str, Any]) -> None:
        (self.state / "faults.json").write_text(json.dumps(faults))

    def asked(self) -> list[dict[str, Any]]:
        """The requests that reached a server."""
        path = self.state / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def prompts_asked(self) -> list[str]:
        return [one["prompt"] for one in self.asked()]

    def answers(self, kind: str = "parts") -> list[dict[str, Any]]:
        """The lines of all parts, or of journals."""
        found: list[dict[str, Any]] = []
        for file in sorted((self.output / kind).rglob("*.jsonl")):
            with contextlib.suppress(FileNotFoundError):  # its answers are in a part by now
                found += [json.loads(line) for line in file.read_text().splitlines()]
        return found

    def texts(self) -> dict[str, Any]:
        """By prompt the text of its one answer, or its failure's message."""
        found = {}
        for answer in self.answers():
            assert answer["prompt"] not in found, "written twice"
            found[answer["prompt"]] = answer.get("text") if "error" not in answer else answer["error"]["message"]
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def prompts() -> Callable[[int], list[str]]:
    return lambda count: [f"prompt number {n} " + "word " * (n % 7) for n in range(count)]


@pytest.fixture
def answer(lab: Lab) -> Callable[..., Any]:
    """Answers prompts in this process, as one host of one attempt."""

    def run(asked: Any, *more: str, model: str | None = None, **settings: Any) -> Any:
        of_server = {
            name: settings.pop(name) for name in ("answer_within", "module", "distributions") if name in settings
        }
        told = {"engine": lab.server(*more, **of_server), "output": str(lab.output), "concurrency": 8, **settings}
        return step.answer_all(model or str(lab.model), asked, step.Settings(**told))

    return run
