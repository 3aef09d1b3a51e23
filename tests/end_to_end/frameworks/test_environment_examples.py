"""One pipeline on this machine, on both kinds of VMs of an emulated cloud and, as far as an account is not needed, in
production: unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.support.pages import SOURCE, page

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"


def said(folder: Path, *command: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONWARNINGS": "ignore", **environ},
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.turn(7)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_of_dagster_goes_from_here_to_production_by_its_variables_alone(home: Path, tmp_path: Path) -> None:
    folder, example = tmp_path / "an empty folder", str(EXAMPLES / "environments_dagster.py")
    folder.mkdir()

    def output_of(**environ: str) -> str:
        found = re.search(r"^result +y = 2\.99 x \+ 1\.01\nits job +\S+, whose output is in (.*)$", told := said(
            folder, example, **environ
        ), re.M)  # fmt: skip
        assert found is not None, told[-3000:]
        return found[1]

    assert output_of().startswith(f"{home}/store/local/outputs/")
    with Emulator(zones=("us-east5-a",), python=sys.executable) as cloud:
        for backend, made in (("tpu-vm", "node"), ("compute", "instance")):
            output = output_of(**cloud.environ(backend=backend, deployment=backend))
            assert output.startswith(f"gs://emulated/kinetic/{backend}/outputs/")
            assert cloud.ledger.count("created", made) == 1
            cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()
    production = {"KINETIC_PROFILE_FILE": str(EXAMPLES / "environments.toml"), "KINETIC_PROFILE": "production"}
    planned = ("-m", "kinetic_orchestration.cli", "plan", f"{example}:fit", "--accelerator", "v6e-8")
    asked = said(folder, *planned, **production)
    assert "gs://my-bucket/kinetic, deployment production" in asked
    assert 'parent: "projects/my-project/locations/us-east5-a"' in asked
    assert 'acceleratorType: "v6e-8"' in asked
    asked = said(folder, *planned, **production, KINETIC_BACKEND="compute")
    assert 'machineType: "projects/my-project/zones/us-east5-a/machineTypes/ct6e-standard-8t"' in asked
    assert not list(folder.iterdir()), "it left something in its folder"


@pytest.mark.turn(7)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_asks_two_zones_at_once_runs_in_one_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    with Emulator(zones=("us-east5-a", "us-west4-a"), python=sys.executable) as cloud:
        told = said(tmp_path, str(EXAMPLES / "race_dagster.py"), **cloud.environ(backend="tpu-vm"))
        assert re.search(
            r"^result +a slope of 3\.00, on v5e-4 on-demand in \S+, which won against v5e-4 ", told, re.M
        ), told
        assert cloud.ledger.count("created", "queued resource") == 2
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.turn(7)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_steps_of_a_run_share_one_slice_and_the_last_leaves_none(home: Path, tmp_path: Path) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        told = said(tmp_path, str(EXAMPLES / "warm_dagster.py"), **cloud.environ(backend="tpu-vm"))
        assert re.search(r"^result +a slope that is off by 0\.0\d", told, re.M), told[-3000:]
        cloud.wait_until_empty(60)
        assert cloud.ledger.count("created", "node") == 1, "one for all steps, of which the last one leaves none"
        cloud.ledger.assert_nothing_left()


@pytest.mark.parametrize("topic", ["environments", "capacity", "race", "warm", "shared"])
@pytest.mark.parametrize("orchestrator", ["dagster", "airflow"])
def test_an_example_says_what_it_shows_and_what_to_change_and_is_on_its_page(topic: str, orchestrator: str) -> None:
    name = f"{topic}_{orchestrator}.py"
    begin = (EXAMPLES / name).read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{name}" in begin
    assert re.search(r"(?i)for a real slice", begin)
    text = page(f"docs/pipelines/{orchestrator}.md")
    assert f"({SOURCE}/blob/main/example_pipelines/{name})" in text
