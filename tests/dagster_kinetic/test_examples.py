"""The example pipelines, to their ends on this machine, and every program of docs/pipelines/dagster.md."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_kinetic import KineticJobComponent, KineticResource
from tests.support import pages

EXAMPLES = pages.ROOT / "example_pipelines"
PROGRAMS = pages.programs("docs/pipelines/dagster.md")

pytestmark = [pytest.mark.usefixtures("shared_home"), pytest.mark.timeout(500), pytest.mark.turn(6)]


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder, env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_week_goes_on_where_its_slice_was_lost(tmp_path):
    said = run("dagster_weekly.py", tmp_path)
    assert re.search(r"result +\d\.\d\d, in 2 attempts; the last one went on after epoch 3", said)


@pytest.mark.filterwarnings("ignore:.*run_request_for_partition")  # called by Dagster itself
def test_the_weekly_schedule_asks_for_the_week_that_is_over(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import datetime

    import dagster_weekly

    schedule = dagster_weekly.defs.resolve_schedule_def("weekly_schedule")
    now = datetime.datetime(2026, 2, 1, 3, tzinfo=datetime.UTC)
    context = dg.build_schedule_context(
        scheduled_execution_time=now, repository_def=dagster_weekly.defs.get_repository_def()
    )
    [request] = list(schedule.evaluate_tick(context).run_requests)
    assert request.partition_key == "2026-01-25"


@pytest.mark.slow
def test_a_week_takes_one_of_the_slices_that_it_may_run_on(tmp_path):
    said = run("capacity_dagster.py", tmp_path)
    assert re.search(r"result +a slope of 3\.0\d, on v6e-8, emulated on this machine's CPU", said), said[-2000:]


@pytest.mark.slow
def test_three_steps_of_a_run_say_that_they_share_a_slice(tmp_path):
    said = run("warm_dagster.py", tmp_path)
    assert re.search(r"result +a slope that is off by 0\.0\d", said), said[-2000:]


@pytest.mark.slow
def test_steps_share_chips_of_which_the_third_at_once_waits_for_its_turn(tmp_path):
    said = run("shared_dagster.py", tmp_path)
    assert re.search(r"result +a slope of 3\.00, and trials: \{'0\.1': 3\.0, '0\.3': 3\.0, ", said), said[-2000:]


@pytest.mark.slow
def test_on_this_machine_a_step_that_would_ask_two_places_has_one(tmp_path):
    said = run("race_dagster.py", tmp_path)
    assert re.search(r"result +a slope of 3\.00, on the one place that was asked", said), said[-2000:]


@pytest.mark.slow
def test_a_sweep_promotes_the_best_and_shows_what_failed(tmp_path):
    said = run("dagster_sweep.py", tmp_path)
    assert re.search(r"result +a learning rate of 1, with a loss of 0\.", said), said[-2000:]
    assert "diverges" in said


@pytest.mark.slow
def test_a_search_ends_bad_trials_early_and_materializes_the_best_parameters(tmp_path):
    said = run("search_optuna.py", tmp_path)
    assert re.search(r"result +a rate of [01]\.\d+ and a width of \d+, with a loss of 0\.[01]", said), said[-2000:]
    states = re.findall(r"^\| \d+ \| (\w+) \|", said, re.M)
    assert len(states) == 12 and set(states) <= {"COMPLETE", "PRUNED"} and states.count("COMPLETE") >= 4


@pytest.mark.slow
def test_the_detached_pattern_on_the_terminal(tmp_path):
    said = run("dagster_detached.py", tmp_path)
    assert "the run is over, and no worker waits" in said
    assert "1 jobs have not ended" in said and "1 ended" in said
    assert "result   a loss of 0.125" in said


@pytest.mark.slow
def test_the_example_trains_on_sixteen_chips_and_what_it_prints_can_be_pasted(tmp_path: Path):
    """Into a terminal whose PATH does not lead to the environment, as after the README's first command."""
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "dagster_train_evaluate.py")],
        cwd=folder,
        env=(environ := os.environ | {"PATH": os.defpath}),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for host in range(4):
        assert f"[host {host}] joined with 4 of 16 chips" in ran.stdout
    assert "[host 0] metrics step 5: loss=" in ran.stdout
    assert "running: 4 hosts" in ran.stdout
    assert float(re.search(r"result   accuracy (\d+\.\d)%", ran.stdout)[1]) > 95
    assert "model │ cost: $0.00 on this machine; on Cloud TPU v5litepod-16" in ran.stdout
    assert "DEBUG" not in ran.stdout + ran.stderr
    assert not list(folder.iterdir()), "it left something in its folder"
    for name, added, told in (("its log", "", "metrics step 5: loss="), ("the UI", " --help", "Usage: dagster dev")):
        [line] = re.findall(rf"(?m)^{name} +(.+)$", ran.stdout)
        pasted = ["bash", "-c", line + added]
        done = subprocess.run(pasted, cwd=folder, env=environ, capture_output=True, text=True, timeout=100)
        assert (done.returncode, told in done.stdout) == (0, True), f"{line}: {done.stdout}{done.stderr}"


@pytest.mark.slow
def test_training_is_released_only_behind_its_check(tmp_path):
    code = textwrap.dedent(
        f"""
        import sys; sys.path.insert(0, {str(EXAMPLES)!r})
        import dagster as dg, dagster_train_evaluate as example, numpy as np
        def made(required):
            example.REQUIRED = required
            io = dg.InMemoryIOManager()
            point = np.zeros((2, 2), np.float32)
            points = dg.asset(lambda: {{"xy": np.array([[0, 1], [1, 0]], np.float32), "kind": np.array([0, 1], np.float32)}}, name="points")
            model = dg.asset(lambda: np.zeros(example.WEIGHTS, np.float32), name="model")
            result = dg.materialize([points, model, example.accuracy, example.released], raise_on_error=False)
            return [event.asset_key.to_user_string() for event in result.get_asset_materialization_events()]
        assert "released" in made(0.4) and "released" not in made(0.9)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta")
def test_the_component_project_loads_and_makes_its_assets(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "dagster_component_project" / "src"))
    import shop_models.definitions as project

    defs = project.defs() if callable(project.defs) else project.defs
    assets = [defs.resolve_assets_def(name) for name in ("embeddings", "ranker")]
    result = dg.materialize(assets)
    [made] = result.asset_materializations_for_node("ranker")
    assert made.metadata["loss"].value == 0.125 and result.get_asset_check_evaluations()[0].passed
    assert result.asset_materializations_for_node("embeddings")[0].metadata["words"].value == 3


# ---- the page ----------------------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import one program of the page, each of which is a file of the folder in which the test runs."""
    for file, text in PROGRAMS.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = {file.removesuffix(".py") for file in PROGRAMS}
    assert modules.isdisjoint(sys.modules)
    yield importlib.import_module
    for module in modules:
        sys.modules.pop(module, None)


def test_every_program_of_the_page_is_a_file_of_its_own() -> None:
    assert len(PROGRAMS) == len(pages.blocks("docs/pipelines/dagster.md"))


@pytest.mark.parametrize("file", [file for file, text in PROGRAMS.items() if "\ndefs = " in text])
def test_the_definitions_of_the_page_load(load, file: str):
    dg.Definitions.validate_loadable(load(file.removesuffix(".py")).defs)


def test_the_definitions_of_the_readme_load():
    [text] = [block for block in pages.blocks("README.md") if "dagster_kinetic" in block]
    space: dict[str, object] = {"__name__": "readme"}
    exec(text, space)
    dg.Definitions.validate_loadable(space["defs"])


def test_the_rest_of_the_page_makes_what_it_says(load):
    assert list(load("tonight").tonight.tags) == ["dagster-kinetic/config"]
    assert isinstance(load("production").production, KineticResource)
    leftovers = load("leftovers")
    assert {leftovers.reaper.name, leftovers.with_branches.name} == {"kinetic_reaper", "kinetic_reaper_of_all"}


@pytest.mark.slow
def test_the_tests_of_the_page_pass(load):
    tests = load("test_training")
    tests.test_the_body_runs_on_hosts()
    tests.test_the_whole_pipeline()


def test_the_fleet_and_the_pipes_of_the_page_run(load):
    result = dg.materialize([load("sweep").best_rate], resources={"kinetic": KineticResource()})
    assert result.output_for_node("best_rate") == 0.1
    page = load("embeddings")
    made = dg.materialize([page.embeddings], resources=page.defs.resources)
    assert made.asset_materializations_for_node("embeddings")[0].metadata["words"].value == 2


@pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta")
def test_the_yaml_of_the_page_loads(tmp_path):
    import yaml

    [text] = pages.blocks("docs/pipelines/dagster.md", "yaml")
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(KineticJobComponent, defs_path="ranker")
        (folder / "defs.yaml").write_text(text)
        assert yaml.safe_load(text)["type"] == "dagster_kinetic.KineticJobComponent"
        with contextlib.ExitStack() as stack:
            component, _ = stack.enter_context(sandbox.load_component_and_build_defs(folder))
            assert component.accelerator == "cpu"


@pytest.mark.slow
@pytest.mark.turn(6)
def test_the_promotion_example_promotes_what_its_job_has_made(home: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "promote_dagster.py"), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    uri = Path(ran.stdout.splitlines()[-1])
    lineage = json.loads((uri / "lineage.json").read_text())
    assert uri.parent == tmp_path / "models" / "ranker" and lineage["kind"] == "safetensors"
    assert lineage["job"]["id"].startswith("job-") and lineage["metrics"]["error"] < 1e-2
    assert json.loads((uri.parent / "aliases" / "champion.json").read_text())["version"] == uri.name
