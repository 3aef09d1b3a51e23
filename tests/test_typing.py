"""A type checker knows what a decorated function takes and what its job returns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-8", limits=kinetic.Limits(run="2h"), volumes={"/data": kinetic.Data("data")})
def train(lr: float, epochs: int = 1) -> dict[str, float]:
    host = kinetic.current()
    host.log_metrics(step=1, loss=0.5)
    return {"loss": lr * epochs}

@kinetic.run()
async def slowly(x: int) -> str:
    return str(x)

class Trainer:
    @kinetic.run()
    def fit(self, x: int) -> bytes:
        return b"" * x

reveal_type(train)
reveal_type(train(0.1, epochs=2))
reveal_type(train.run_async(0.1))
reveal_type(train.run_async(0.1).result())
reveal_type(train.run_async_map([0.1]))
reveal_type(train.run_async_map([0.1]).results())
reveal_type(slowly(1))
reveal_type(slowly.run_async(1))
reveal_type(Trainer().fit(1))
reveal_type(kinetic.attach("job-1").status())
reveal_type(kinetic.attach_batch("grp-1").jobs)
reveal_type(kinetic.command(["true"]))

train("fast")  # wrong: an argument of another type
train.run_async(0.1, epoch=2)  # wrong: no such argument
kinetic.run(accelerator=8)  # wrong: not a name
kinetic.run(accelerater="cpu")  # wrong: no such option
"""

REVEALED = [
    "RemoteCallable[[lr: float, epochs: int =], dict[str, float]]",
    "dict[str, float]",
    "JobHandle[dict[str, float]]",
    "dict[str, float]",
    "BatchHandle[dict[str, float]]",
    "list[dict[str, float]]",
    "str",
    "JobHandle[str]",
    "bytes",
    "JobStatus",
    "list[JobHandle[Any] | None]",
    "JobHandle[None]",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_signatures_and_values_survive_the_decorator(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--strict", "--no-error-summary", "--hide-error-context", "--cache-dir", str(tmp_path / "cache")]
    options += ["--config-file", "", "--follow-imports", "silent"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert not checked.stderr, checked.stderr
    revealed = [
        re.sub(r"\b[a-z_]+\.(?:[a-z_]+\.)*(?=\w)", "", text)
        for text in re.findall(r'Revealed type is "(.*)"', checked.stdout)
    ]
    assert revealed == REVEALED
    errors = dict(re.findall(r"program\.py:(\d+): error: (.*)", checked.stdout))
    lines = PROGRAM.splitlines()
    assert [lines[int(number) - 1].partition("wrong: ")[2] for number in errors] == [
        "an argument of another type", "no such argument", "not a name", "no such option"
    ], checked.stdout  # fmt: skip
    assert '"str"; expected "float"' in next(iter(errors.values()))
