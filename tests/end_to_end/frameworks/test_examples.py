"""The example pipelines of training frameworks, to their ends on this machine, with data that they make themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BOUNDED
from tests.support.pages import SOURCE, page

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
MINE = sorted(EXAMPLES.glob("training_*.py"))

ends = [pytest.mark.offline, pytest.mark.timeout(1200)]  # each makes an environment of a gigabyte
of_light = [pytest.mark.slow, pytest.mark.turn(8), pytest.mark.timeout(1200)]
of_tunix = [pytest.mark.slow, pytest.mark.turn(5), pytest.mark.timeout(1200)]  # all else of it is offline
with_trainers = [pytest.mark.slow, pytest.mark.turn(3), pytest.mark.timeout(1200)]  # in whose turn its environment is


def run(name: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=folder, env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(folder.iterdir()), "it left something in its folder"
    return done.stdout


def losses(said: str) -> tuple[float, float]:
    found = re.search(r"^result +loss ([\d.]+) → ([\d.]+) on", said, re.M)
    assert found is not None, said[-2000:]
    return float(found[1]), float(found[2])


@pytest.mark.parametrize("path", MINE, ids=lambda path: path.stem)
def test_an_example_says_what_it_shows_and_what_to_change_and_is_on_the_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    begin = text.partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{path.name}" in begin
    assert re.search(r"(?i)for a real slice", begin)
    assert f"({SOURCE}/blob/main/example_pipelines/{path.name})" in page("docs/training/frameworks.md")
    named = re.search(r'with_name\("(training_\w+\.txt)"\)', text)
    assert named is None or (EXAMPLES / named[1]).is_file()


class TestPlainJax:
    pytestmark = of_light

    def test_lora_in_plain_jax_learns(self, home: Path, tmp_path: Path) -> None:
        folder = tmp_path / "an empty folder"
        folder.mkdir()
        before, after = losses(run("training_lora_jax.py", folder))
        assert after < 0.2 * before

    @pytest.mark.offline
    def test_it_goes_on_where_it_was_cut_off(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import training_lora_jax as example

        train = example.finetune.__kinetic_function__

        def cut_off() -> dict[str, Any]:
            if kinetic.current().attempt == 1:
                train(steps=10)
                os.kill(os.getpid(), signal.SIGKILL)
            rest = train(steps=20)
            os.environ["KINETIC_CHECKPOINT_DIR"] += "/undisturbed"
            return {"first": rest["first"], "rest": rest["losses"], "whole": train(20)["losses"]}

        options = {"accelerator": "v5e-4", "limits": BOUNDED, "retry": kinetic.Retry(user=1, infra=1)}
        found = kinetic.run(**options)(cut_off).run_async().result()
        assert found["first"] == 10
        assert found["rest"] == found["whole"][10:]


class TestFlax:
    pytestmark = ends

    def test_the_asset_is_made_in_an_environment_that_dagster_has_nothing_of(
        self, frameworks: Path, tmp_path: Path
    ) -> None:
        said = run("training_flax.py", tmp_path)
        found = re.search(r"^result +accuracy ([\d.]+)% on 16 devices", said, re.M)
        assert found is not None and float(found[1]) >= 90, said[-3000:]

    def test_model_optimizer_and_place_in_the_data_come_back_together(
        self, frameworks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        import training_flax as example

        made = example.points()
        train = example.train

        def twice() -> dict[str, Any]:
            import dataclasses

            host = kinetic.current()
            other = dataclasses.replace(host, checkpoint_dir=host.checkpoint_dir + "/undisturbed")
            first = train(host, made, 20, 0.02)
            rest = train(host, made, 30, 0.02)
            whole = train(other, made, 30, 0.02)
            return {"first": rest["first_step"], "cut": first["losses"] + rest["losses"], "whole": whole["losses"]}

        options = {"accelerator": "cpu:4", "requirements": example.REQUIREMENTS, "limits": BOUNDED}
        found = kinetic.run(**options)(twice).run_async().result()
        assert found["first"] == 20
        assert found["cut"] == found["whole"]


class TestPeft:
    pytestmark = of_light

    def test_the_adapters_of_a_transformers_model_are_trained_on_two_hosts(
        self, frameworks: Path, tmp_path: Path
    ) -> None:
        said = run("training_peft.py", tmp_path)
        before, after = losses(said)
        assert after < 0.9 * before and "on 2 hosts" in said
        kept = re.search(r"which are in (.*)$", said, re.M)
        assert kept is not None
        assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in Path(kept[1]).iterdir()}


class TestTorch:
    pytestmark = with_trainers

    def test_the_trainer_that_is_named_learns_on_two_hosts(self, frameworks: Path, tmp_path: Path) -> None:
        """It is FSDP, which needs most beside: the weights of all hosts for its last loss."""
        said = run("train_torch.py", tmp_path, "fsdp")
        found = re.findall(r"^result +(\w+): loss ([\d.]+) → ([\d.]+) on 2 hosts$", said, re.M)
        assert [name for name, *_ in found] == ["fsdp"], said[-3000:]
        assert float(found[0][2]) < 0.5 * float(found[0][1])


class TestTunix:
    pytestmark = of_tunix

    def test_tunix_fine_tunes(self, frameworks: Path, tmp_path: Path) -> None:
        said = run("training_tunix.py", tmp_path, "finetune")
        before, after = losses(said)
        assert after < 0.95 * before and "on 4 devices, by finetune" in said
