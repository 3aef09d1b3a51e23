"""A step's job is refused if it could only be emulated though Google Cloud is meant; else it is said where it runs."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, PipesKineticClient, kinetic_asset, kinetic_multi_asset
from kinetic_orchestration.cli import main
from kinetic_orchestration.errors import NotEmulated, Unsupported
from kinetic_orchestration.plan.declare.backend_choice import by_hardware, refusal_of
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.plan.hardware.accelerators import parse
from tests.dagster_kinetic import pipelines
from tests.dagster_kinetic.assets.test_component import materialized
from tests.dagster_kinetic.stored import made_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*parse_obj_as"),  # by Dagster, as it reads YAML,
    pytest.mark.filterwarnings("ignore:.*is currently in beta"),  # and as it notes where that is
]

MISSING = r"KINETIC_STORE=gs://my-bucket/kinetic \(or store=\)"
HERE = "emulated on this machine's CPU"


@kinetic_asset(accelerator="v5e-1")
def ranker(host: HostContext) -> int:
    return host.host_count


@kinetic_asset(accelerator="v5e-1", spot=True)
def cheap(host: HostContext) -> int:
    return host.host_count


@kinetic_asset(accelerator="v5e-1", detached=True)
def detached(host: HostContext) -> int:
    return host.host_count


@dg.asset
def submitted(kinetic: KineticResource) -> str:
    return kinetic.submit(len, ["ab"], accelerator="v5e-1").job_id


@dg.asset
def swept(kinetic: KineticResource) -> int:
    return len(kinetic.map(len, ["a", "bc"], accelerator="v5e-1", input_mode="single"))


@dg.asset
def piped(context: dg.AssetExecutionContext, pipes: PipesKineticClient) -> Any:
    program = "import dagster_pipes as d\nwith d.open_dagster_pipes() as p: p.report_asset_materialization({})"
    folder = Path(pipelines.__file__).parent / "live"
    ran = pipes.run(context=context, command=[sys.executable, "-c", program], cwd=folder, accelerator="v5e-1")
    return ran.get_materialize_result()


def in_python(asset: dg.AssetsDefinition) -> Callable[..., dg.ExecuteInProcessResult]:
    def run(settings: dict[str, Any], **more: Any) -> dg.ExecuteInProcessResult:
        kinetic = KineticResource(**settings)
        resources = {"pipes": PipesKineticClient(kinetic)} if asset is piped else {"kinetic": kinetic}
        return dg.materialize([asset], resources=resources, **more)

    return run


def in_yaml(settings: dict[str, Any], **more: Any) -> dg.ExecuteInProcessResult:
    asked = {"function": ".train.train", "accelerator": "v5e-1", "assets": [{"key": "in_yaml"}], "kinetic": settings}
    return materialized(asked, {"train.py": "def train():\n    return {}\n"}, **more)[0]


FACES = {each.key.to_user_string(): in_python(each) for each in (ranker, detached, submitted, swept, piped)}
FACES["in_yaml"] = in_yaml


@pytest.mark.parametrize(
    ("asset", "given", "named"),
    [
        (ranker, {"project": "p"}, "project='p'"),
        (ranker, {"zones": ["us-west4-a"]}, "zones="),
        (ranker, {"cloud": {"service_account": "vm@p"}}, "service_account='vm@p'"),
        (ranker, {"spot": True}, "spot=True"),
        (cheap, {}, "spot=True"),
    ],
)
def test_a_step_that_means_the_cloud_is_not_trained_on_its_worker(
    asset: dg.AssetsDefinition, given: dict[str, Any], named: str, home: Path
) -> None:
    with pytest.raises(NotEmulated, match=MISSING) as refused:
        in_python(asset)(given)
    assert named in str(refused.value)
    assert not (home / "store").exists()


NAMES = ["gpu", "gpu:3", "v100", "h100", "cpu:4", "tpu7x-192"]


def test_a_step_says_of_what_the_cloud_cannot_run_what_everybody_says(home: Path) -> None:
    told: dict[str, str] = {}

    @dg.asset
    def sweep(kinetic: KineticResource) -> None:
        for name in NAMES:
            for start in (kinetic.run, kinetic.submit):
                with pytest.raises(Unsupported) as refused:
                    start(len, args=("four",), accelerator=name)
                assert told.setdefault(name, str(refused.value)) == str(refused.value)

    cloud = KineticResource(project="p", store="gs://no-bucket-is-asked-for/kinetic")
    dg.materialize([sweep], resources={"kinetic": cloud})
    assert told == {name: refusal_of(by_hardware(parse(name)).backend, Options(name)) for name in NAMES}


@pytest.mark.filterwarnings("ignore:.*no meaning")
@pytest.mark.parametrize("face", FACES)
def test_whatever_runs_it_a_job_is_refused_before_anything_is_written(
    face: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotEmulated, match=MISSING):
        FACES[face]({"project": "p"})
    with pytest.raises(NotEmulated, match=r"hardware is required \(require_hardware=True\).*, require_hardware=False"):
        FACES[face]({"backend": "local", "require_hardware": True})
    monkeypatch.setenv("KINETIC_REQUIRE_HARDWARE", "true")
    with pytest.raises(NotEmulated, match=r"hardware is required \(KINETIC_REQUIRE_HARDWARE\)"):
        FACES[face]({"backend": "local"})
    assert not (home / "store").exists()


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.filterwarnings("ignore:.*no meaning")
@pytest.mark.parametrize("face", [name for name in FACES if name != "submitted"])
def test_an_emulated_step_says_so_in_its_metadata_and_its_log(face: str, home: Path, new_instance: Any) -> None:
    with new_instance() as instance:
        result = FACES[face]({"project": "p", "backend": "local"}, instance=instance)
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    [first] = [text for text in said if " runs " in text or " jobs run " in text]
    assert HERE in first and "Cloud TPU" not in first
    if face != "detached":  # which a second run makes
        made = made_of(result, face)
        assert made["kinetic/where"] == HERE and made["kinetic/emulated"] is True
        assert made["kinetic/cost_prices"].startswith("list price of 20")


# ---- by whom a job was asked for ---------------------------------------------------------------------------


DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])


@kinetic_multi_asset(
    accelerator="cpu", specs=[dg.AssetSpec(["models", name], partitions_def=DAYS) for name in "abcdefg"]
)
def models():
    return [dg.MaterializeResult(asset_key=["models", name]) for name in "abcdefg"]


@dg.asset(key_prefix="sweeps", partitions_def=DAYS)
def swept(context: dg.AssetExecutionContext, kinetic: KineticResource) -> None:
    kinetic.map(abs, [-1, 1], accelerator="cpu", context=context)


@dg.op
def swept_by_an_op(context: dg.OpExecutionContext, kinetic: KineticResource) -> None:
    kinetic.map(abs, [-2], accelerator="cpu", context=context)


@dg.job(resource_defs={"kinetic": KineticResource()})
def sweeping() -> None:
    swept_by_an_op()


@pytest.mark.slow
@pytest.mark.turn(4)
def test_jobs_are_listed_by_their_assets_partition_and_run_those_of_a_map_too(
    home: Path, new_instance: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_of(asset: dg.AssetsDefinition) -> str:
        resources = {"kinetic": KineticResource()}
        return dg.materialize([asset], instance=instance, partition_key="tuesday", resources=resources).run_id

    with new_instance() as instance:
        runs = [run_of(models), run_of(swept), sweeping.execute_in_process(instance=instance).run_id]
    of = {"orchestrator": "dagster"}
    wanted = [
        {**of, "asset": "models/a, models/b, models/c, models/d, models/e and 2 more", "partition": "tuesday"},
        {**of, "asset": "sweeps/swept", "partition": "tuesday"},
        {**of, "op": "swept_by_an_op"},
    ]
    wanted = [{**origin, "run": run} for origin, run in zip(wanted, runs, strict=True)]

    capsys.readouterr()
    assert main(["jobs", "--all", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)
    by_run = sorted((job["origin"] for job in jobs), key=lambda origin: runs.index(origin["run"]))
    assert by_run == [wanted[0], wanted[1], wanted[1], wanted[2]]
    one = next(job["job_id"] for job in jobs if job["origin"] == wanted[1])
    assert main(["status", one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["origin"] == wanted[1]
    assert main(["status", one]) == 0
    assert re.search(rf"^asset +sweeps/swept\npartition +tuesday\nrun +{runs[1]}$", capsys.readouterr().out, re.M)
    assert main(["jobs", "--all"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert {"ASSET", "PARTITION", "RUN", "OP"} < set(head.split())
    [row] = [row for row in rows if row.startswith(one)]
    assert {"sweeps/swept", "tuesday", runs[1]} < set(row.split())
