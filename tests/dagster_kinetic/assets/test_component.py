"""`KineticJobComponent`: found by `dg`, scaffolded, loaded, run, and precise about what is wrong with the YAML."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_kinetic import KineticJobComponent
from dagster_kinetic.assets.component import _options
from kinetic_orchestration import Compute, Kubernetes, TpuVm
from tests.dagster_kinetic.stored import made_of

pytestmark = [
    pytest.mark.usefixtures("shared_home"),
    pytest.mark.filterwarnings("ignore:.*parse_obj_as"),  # by Dagster, as it reads YAML,
    pytest.mark.filterwarnings("ignore:.*is currently in beta"),  # and as it notes where that is
]


def materialized(
    contents: dict[str, Any], files: dict[str, str] | None = None, **given: Any
) -> tuple[dg.ExecuteInProcessResult, dg.Definitions]:
    """The assets of a component with these attributes and files beside it, made."""
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(
            KineticJobComponent,
            defs_path="training",
            defs_yaml_contents={"type": "dagster_kinetic.KineticJobComponent", "attributes": contents},
        )
        for name, text in (files or {}).items():
            (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        with sandbox.build_all_defs() as defs:
            assets = defs.resolve_assets_def(contents["assets"][0]["key"].split("/"))
            return dg.materialize([assets], **given), defs


def test_what_is_scaffolded_runs_as_it_is():
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(KineticJobComponent, defs_path="ranker")
        assert sorted(path.name for path in folder.iterdir()) == ["defs.yaml", "train.py"]
        with sandbox.load_component_and_build_defs(folder) as (component, defs):
            assert isinstance(component, KineticJobComponent)
            [assets] = list(defs.resolve_asset_graph().assets_defs)
            result = dg.materialize([assets])
    [made] = result.asset_materializations_for_node("ranker")
    assert made.metadata["loss"].value == pytest.approx(1 / 3)
    assert made.metadata["kinetic/job_id"].value.startswith("job-")


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_function_with_arguments_options_partitions_and_checks():
    result, defs = materialized(
        {
            "function": ".train.fit",
            "arguments": {"rate": 0.5},
            "accelerator": "v5e-16",
            "options": {"distributed": False, "limits": {"run": "2h"}, "retry": {"user": 1}},
            "pool": "tpu",
            "checks": [{"name": "sound", "asset": "models/ranker", "blocking": True}],
            "assets": [
                {
                    "key": "models/ranker",
                    "group_name": "ranking",
                    "kinds": ["keras"],
                    "deps": ["features"],
                    "partitions_def": {"type": "static", "partition_keys": ["a", "b"]},
                }
            ],
        },
        {
            "train.py": """
                import dagster as dg
                def fit(host, rate):
                    return dg.MaterializeResult(
                        metadata={"rate": rate, "hosts": host.host_count, "key": host.partition_key},
                        check_results=[dg.AssetCheckResult(check_name="sound", passed=True)],
                    )
            """
        },
        partition_key="b",
    )
    [made] = result.asset_materializations_for_node("models__ranker")
    told = {name: value.value for name, value in made.metadata.items() if not name.startswith("kinetic/")}
    assert (told["rate"], told["hosts"], told["key"], made.partition) == (0.5, 4, "b", "b")
    assert result.get_asset_check_evaluations()[0].passed
    spec = defs.resolve_asset_graph().get(dg.AssetKey(["models", "ranker"]))
    assert spec.group_name == "ranking" and spec.pools == {"tpu"}


@pytest.mark.parametrize(
    "attributes, kinds",
    [
        ({"function": ".train.fit", "accelerator": "v5e-1"}, {"tpu", "jax"}),
        ({"command": ["true"], "accelerator": "v5e-1", "options": {"requirements": ["torch"]}}, {"tpu", "pytorch"}),
        ({"command": ["true"], "accelerator": "cpu"}, set()),
    ],
)
def test_kinds_are_those_that_are_known_of_its_job_unless_the_file_names_some(attributes, kinds):
    with create_defs_folder_sandbox() as sandbox:
        assets = [{"key": "model"}, {"key": "mine", "kinds": ["keras"]}]
        contents = {"type": "dagster_kinetic.KineticJobComponent", "attributes": {"assets": assets, **attributes}}
        folder = sandbox.scaffold_component(KineticJobComponent, defs_path="training", defs_yaml_contents=contents)
        (folder / "train.py").write_text("def fit():\n    import jax\n")
        with sandbox.build_all_defs() as defs:
            graph = defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey("model")).kinds == kinds and graph.get(dg.AssetKey("mine")).kinds == {"keras"}


def test_a_script_reports_several_assets_by_pipes():
    result, _ = materialized(
        {
            "script": "train.py",
            "arguments": {"names": ["model", "picture"]},
            "accelerator": "cpu",
            "assets": [{"key": "model"}, {"key": "picture"}],
        },
        {
            "train.py": """
                from dagster_pipes import open_dagster_pipes
                with open_dagster_pipes() as pipes:
                    for name in pipes.get_extra("names"):
                        pipes.report_asset_materialization({"of": name}, asset_key=name)
            """
        },
    )
    made = result.asset_materializations_for_node("model")
    assert {event.asset_key.to_user_string(): event.metadata["of"].value for event in made} == {
        "model": "model",
        "picture": "picture",
    }


def test_a_command_and_settings_of_its_own(tmp_path):
    store = tmp_path / "store-of-mine"
    result, _ = materialized(
        {
            "command": ["sh", "-c", "echo made by $0", "a shell"],
            "accelerator": "cpu",
            "kinetic": {"store": str(store)},
            "assets": [{"key": "model"}],
        },
        run_config={"ops": {"model": {"config": {"accelerator": "v5e-1"}}}},
    )
    assert store.is_dir()
    assert made_of(result, "model")["kinetic/accelerator"] == "v5e-1"  # for this launch


def test_a_resource_of_the_project(tmp_path):
    store = tmp_path / "store-of-mine"
    materialized(
        {"command": ["true"], "accelerator": "cpu", "resource": "tpus", "assets": [{"key": "model"}]},
        {
            "../resources.py": f"""
                import dagster as dg
                from dagster_kinetic import KineticResource
                @dg.definitions
                def resources():
                    return dg.Definitions(resources={{"tpus": KineticResource(store={str(store)!r})}})
            """
        },
    )
    assert store.is_dir()


@pytest.mark.parametrize(
    "attributes, says",
    [
        ({"accelerator": "v5e-17", "command": ["true"]}, "v5e-16"),
        ({"accelerator": "cpu"}, "one of function, script and command"),
        ({"accelerator": "cpu", "command": ["true"], "script": "train.py"}, "one of function, script and command"),
        ({"accelerator": "cpu", "function": "train"}, "write package.module.name"),
        ({"accelerator": "cpu", "function": "json.dunps"}, "cannot be imported"),
        ({"accelerator": "cpu", "function": "json.loads", "arguments": {"speed": 1}}, "missing a required argument"),
        ({"accelerator": "cpu", "script": "nowhere.py"}, "there is no such file"),
        ({"accelerator": "cpu", "command": ["true"], "options": {"spott": True}}, "did you mean spot"),
        ({"accelerator": "cpu", "command": ["true"], "options": {"limits": {"rum": "2h"}}}, "limits has no 'rum'"),
        ({"accelerator": "cpu", "command": ["true"], "options": {"limits": {"run": "2 moons"}}}, "limits.run"),
        ({"accelerator": "cpu", "command": ["true"], "kinetic": {"projekt": "x"}}, "projekt"),
        ({"accelerator": "cpu", "command": ["true"], "kinetic": {}, "resource": "tpus"}, "keep one"),
        ({"command": ["true"]}, "accelerator"),
        (
            {"accelerator": "cpu", "command": ["true"], "op_tags": {"dagster-kinetic/config": {"spott": True}}},
            "did you mean spot",
        ),
        ({"accelerator": "cpu", "command": ["true"], "options": {"accelerator": "v5e-8"}}, "stands beside `options`"),
        ({"accelerator": "cpu", "function": "tests.dagster_kinetic.pipelines.numbers"}, "give the function itself"),
        (
            {"accelerator": "cpu", "function": "tests.dagster_kinetic.assets.test_decorators.generates"},
            "is a generator",
        ),
        ({"accelerator": "cpu", "command": "true"}, "command"),
        ({"accelerator": "cpu", "command": ["true"], "colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_in_the_file(attributes, says):
    with create_defs_folder_sandbox() as sandbox:
        contents = {
            "type": "dagster_kinetic.KineticJobComponent",
            "attributes": {"assets": [{"key": "model"}], **attributes},
        }
        sandbox.scaffold_component(KineticJobComponent, defs_path="training", defs_yaml_contents=contents)
        with pytest.raises(Exception) as caught, sandbox.build_all_defs():
            pass
    error: BaseException | None = caught.value
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    text = "\n".join(texts)
    assert says in text
    assert "defs.yaml" in text, text


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`dg` in a project, as a user's terminal has it."""
    root = tmp_path / "my-project"
    package = root / "src" / "my_project"
    (package / "defs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(
        "from pathlib import Path\nimport dagster as dg\n"
        "@dg.definitions\ndef defs():\n    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (root / "pyproject.toml").write_text(
        '[project]\nname = "my-project"\nversion = "0"\n[tool.dg]\ndirectory_type = "project"\n'
        '[tool.dg.project]\nroot_module = "my_project"\n'
    )
    environment = os.environ | {
        "PYTHONPATH": str(root / "src"),
        "DG_CLI_CONFIG": str(tmp_path / "dg.toml"),
        "DAGSTER_HOME": "",
    }
    environment.pop("DAGSTER_HOME")

    def dg_(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "dg"), *arguments],
            cwd=root, env=environment, capture_output=True, text=True, timeout=280,
        )  # fmt: skip

    return dg_


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(600)
def test_dg_lists_scaffolds_and_checks_it(project, tmp_path):
    listed = project("list", "components", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "dagster_kinetic.KineticJobComponent" in str(json.loads(listed.stdout)["items"])
    made = project("scaffold", "defs", "dagster_kinetic.KineticJobComponent", "ranker")
    assert made.returncode == 0, made.stdout + made.stderr
    text = (tmp_path / "my-project/src/my_project/defs/ranker/defs.yaml").read_text()
    assert "accelerator: cpu" in text
    checked = project("check", "defs")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    yaml = tmp_path / "my-project/src/my_project/defs/ranker/defs.yaml"
    yaml.write_text(text.replace("accelerator: cpu", "acelerator: cpu"))
    refused = project("check", "yaml")
    assert refused.returncode != 0 and "acelerator" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("given", "cloud"),
    [
        ({"cloud": {"network": "lan"}}, TpuVm(network="lan")),
        ({"cloud": {"queue": "tpus"}}, Kubernetes(queue="tpus")),
        ({"cloud": {"disk_gib": 300, "zones": ["us-east5-a"]}}, Compute(disk_gib=300, zones=["us-east5-a"])),
        ({"backend": "compute", "cloud": {"hosts": 2}}, Compute(hosts=2)),
        ({"backend": "kubernetes", "cloud": {"labels": {"team": "ml"}}}, Kubernetes(labels={"team": "ml"})),
        ({"cloud": {"labels": {"team": "ml"}}}, TpuVm(labels={"team": "ml"})),
    ],
)
def test_options_of_a_cloud_are_those_of_the_backend_that_is_named_or_has_such_names(given, cloud):
    assert _options(dg.ResolutionContext.default(), given)["cloud"] == cloud
