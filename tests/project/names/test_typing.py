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


# The keywords of both, in one call; and what a job's value is.
DAGSTER = """
import dagster as dg
from dagster_kinetic import HostContext, KineticResource, kinetic_asset, kinetic_multi_asset, kinetic_op
from kinetic_orchestration import Limits

@kinetic_asset(accelerator="v5e-8", group_name="models", retry_policy=dg.RetryPolicy(), limits=Limits(run="2h"))
def ranker(host: HostContext, features: list[float]) -> float:
    return sum(features)

@kinetic_multi_asset(accelerator="v5e-8", outs={"a": dg.AssetOut()}, can_subset=True, detached=True, spot=True)
def several(selected: tuple[str, ...]) -> None: ...

@kinetic_op(accelerator="cpu", out=dg.Out(int), requirements=["jax"])
def doubled(number: int) -> int:
    return 2 * number

def plain(number: int) -> str:
    return str(number)

async def slowly(number: int) -> bytes:
    return bytes(number)

reveal_type(ranker)
reveal_type(several)
reveal_type(doubled)
reveal_type(KineticResource().run(plain, [1], accelerator="cpu", spot=True))
reveal_type(KineticResource().run(slowly, [1], accelerator="cpu"))
reveal_type(KineticResource().submit(plain, [1], accelerator="cpu").result())

kinetic_asset(accelerator="cpu", group_nam="models")  # wrong: no such keyword
kinetic_asset(accelerator="cpu", limits=3)  # wrong: an option of another type
kinetic_op(accelerator="cpu", pool=3)  # wrong: a keyword of another type
kinetic_asset(plain)  # wrong: no accelerator
KineticResource().run(plain, [1], accelerater="cpu")  # wrong: no such option
"""

DAGSTER_REVEALED = ["AssetsDefinition", "AssetsDefinition", "OpDefinition", "str", "bytes", "str"]


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(900)
def test_signatures_and_values_survive_the_decorator(tmp_path: Path) -> None:
    revealed, errors, wrong = checked(PROGRAM, tmp_path)
    assert revealed == REVEALED
    assert wrong == ["an argument of another type", "no such argument", "not a name", "no such option"], errors
    assert '"str"; expected "float"' in errors[0]


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(900)
def test_the_decorators_of_dagster_know_its_keywords_and_ours(tmp_path: Path) -> None:
    revealed, errors, wrong = checked(DAGSTER, tmp_path)
    assert revealed == DAGSTER_REVEALED
    assert wrong == [
        "no such keyword", "an option of another type", "a keyword of another type", "no accelerator", "no such option"
    ], errors  # fmt: skip


def checked(text: str, tmp_path: Path) -> tuple[list[str], list[str], list[str]]:
    """The types that mypy reveals, its errors, and what is said to be wrong in the lines that have one."""
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    options = ["--strict", "--no-error-summary", "--hide-error-context", "--cache-dir", str(tmp_path / "cache")]
    options += ["--config-file", "", "--follow-imports", "silent"]
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert not ran.stderr, ran.stderr
    revealed = [
        re.sub(r"\b[a-z_]+\.(?:[a-z_]+\.)*(?=\w)", "", told)
        for told in re.findall(r'Revealed type is "(.*)"', ran.stdout)
    ]
    errors = re.findall(r"program\.py:(\d+): error: (.*)", ran.stdout)
    lines = text.splitlines()
    wrong = dict.fromkeys(lines[int(number) - 1].partition("wrong: ")[2] for number, _ in errors)
    return revealed, [error for _, error in errors], list(wrong)
