"""The example pipelines, to their ends on this machine, and every program of docs/dagster.md."""

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_kinetic import KineticJobComponent, KineticResource

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "example_pipelines"
PAGE = (ROOT / "docs" / "dagster.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.usefixtures("shared_home"), pytest.mark.timeout(500), pytest.mark.turn(3)]


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
def test_a_sweep_promotes_the_best_and_shows_what_failed(tmp_path):
    said = run("dagster_sweep.py", tmp_path)
    assert re.search(r"result +a learning rate of 1, with a loss of 0\.", said), said[-2000:]
    assert "diverges" in said


@pytest.mark.slow
def test_the_detached_pattern_on_the_terminal(tmp_path):
    said = run("dagster_detached.py", tmp_path)
    assert "the run is over, and no worker waits" in said
    assert "1 jobs have not ended" in said and "1 ended" in said
    assert "result   a loss of 0.125" in said


@pytest.mark.slow
def test_the_example_trains_on_sixteen_chips_and_leaves_nothing_in_its_folder(tmp_path: Path):
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "dagster_train_evaluate.py")],
        cwd=folder,
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
    assert not list(folder.iterdir())


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


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """All of the page's Python in one module, but for what runs on hosts, which is a file of its own."""
    script = next(block for block in blocks("python") if block.startswith("# embed.py"))
    (tmp_path / "embed.py").write_text(script)
    text = "\n\n".join(block for block in blocks("python") if block != script)
    (tmp_path / "page.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "page"}
    exec(compile(text, str(tmp_path / "page.py"), "exec"), space)
    return space


def test_every_program_of_the_page_is_valid_and_its_definitions_load(programs):
    for name in ("defs", "detached_defs", "pipes_defs"):
        definitions = programs[name]
        assert isinstance(definitions, dg.Definitions)
        dg.Definitions.validate_loadable(definitions)
    assert isinstance(programs["production"], KineticResource)
    assert {programs[name].name for name in ("reaper", "with_branches")} == {"kinetic_reaper", "kinetic_reaper_of_all"}


@pytest.mark.slow
def test_the_tests_of_the_page_pass(programs):
    programs["test_the_body_runs_on_hosts"]()
    programs["test_the_whole_pipeline"]()


def test_the_fleet_and_the_pipes_of_the_page_run(programs):
    result = dg.materialize([programs["best_rate"]], resources={"kinetic": KineticResource()})
    assert result.output_for_node("best_rate") == 0.1
    made = dg.materialize([programs["embeddings"]], resources=programs["pipes_defs"].resources)
    assert made.asset_materializations_for_node("embeddings")[0].metadata["words"].value == 2


@pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta")
def test_the_yaml_of_the_page_loads(tmp_path):
    import yaml

    [text] = blocks("yaml")
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(KineticJobComponent, defs_path="ranker")
        (folder / "defs.yaml").write_text(text)
        assert yaml.safe_load(text)["type"] == "dagster_kinetic.KineticJobComponent"
        with contextlib.ExitStack() as stack:
            component, _ = stack.enter_context(sandbox.load_component_and_build_defs(folder))
            assert component.accelerator == "cpu"
