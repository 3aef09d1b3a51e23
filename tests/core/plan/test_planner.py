"""The plan: what was asked for and what is set become what will be done. Its print, the dry run, is held in golden/."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan import messages, planner
from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import TpuVm
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import TRAITS, Limits, Plan, Retry, Traits
from kinetic_orchestration.platforms import registry

pytestmark = pytest.mark.fast

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = Settings(home=Path("/home"), store="/home/store", deployment="local", backend="local")
ENVIRON = {
    "HF_HOME": "/models", "HF_TOKEN": "secret", "PATH": "/bin", "KERAS_BACKEND": "jax", "WANDB_MODE": "offline",
    "WANDB_API_KEY": "secret", "HFX": "no",
}  # fmt: skip

SPECS = {
    "plain": JobSpec("train", Options(accelerator="cpu")),
    "slice": JobSpec("train", Options(accelerator="v5litepod-16")),
    "cores": JobSpec(
        "train", Options(backend="local", cloud=TpuVm(accelerator_type="v5p-16", labels={"team": "rank"}))
    ),
    "command": JobSpec("python", Options(accelerator="l4"), argv=("python", "train.py", "--lr", "1e-3"), cwd="/x"),
    "everything": JobSpec(
        "train",
        Options(
            accelerator="tpu-v6e-8",
            capture_env_vars=["HF_*", "WANDB_API_KEY", "KERAS_*"],
            volumes={"/data": Data(GOLDEN.parent), "/weights": Data(GOLDEN.parent)},
            output_dir="gs://bucket/out",
            limits=Limits(provision="2h", run=5400, total="1d", stall=90.5),
            retry=Retry(user=2, preemption=5, infra=0),
            labels={"run": "7"},
            partition_key="2026-W07",
            distributed=False,
            debug=True,
            profile="30s",
        ),
    ),
}


def document(planned: Plan) -> str:
    fields = json.dumps(planned.to_json(), indent=1, sort_keys=True, ensure_ascii=False)
    return f"{planner.describe(planned)}\n\n{fields}\n"


@pytest.mark.parametrize("name", SPECS)
def test_the_dry_run_is_as_it_was(name: str) -> None:
    """To change it on purpose, run with UPDATE_GOLDEN=1 and read the difference."""
    text = document(planner.make_plan(SPECS[name], SETTINGS, ENVIRON))
    path = GOLDEN / f"plan-{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SPECS)
def test_a_plan_comes_back_from_its_json(name: str) -> None:
    planned = planner.make_plan(SPECS[name], SETTINGS, ENVIRON)
    assert Plan.from_json(json.loads(json.dumps(planned.to_json()))) == planned
    assert Plan.from_json({**planned.to_json(), "of a later version": 1}) == planned


def test_planning_is_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert document(planner.make_plan(SPECS["slice"], SETTINGS)) == document(
        planner.make_plan(SPECS["slice"], SETTINGS)
    )
    assert list(tmp_path.iterdir()) == [] and not SETTINGS.home.joinpath("store").exists()


def test_no_secret_is_in_a_plan() -> None:
    planned = planner.make_plan(SPECS["everything"], SETTINGS, ENVIRON)
    assert planned.secrets == ("HF_TOKEN", "WANDB_API_KEY") and "secret" not in json.dumps(planned.env)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["HF_*"], {"HF_HOME", "HF_TOKEN"}),
        (["*"], set(ENVIRON) - {"PATH", "KERAS_BACKEND"}),  # never by a wildcard
        (["*", "PATH"], set(ENVIRON) - {"KERAS_BACKEND"}),  # but by its exact name
        (["*_HOME"], set()),  # a * elsewhere is a letter, as in Keras Kinetic
        (["H?_HOME", "[H]F_HOME"], set()),
        ([], set()),
    ],
)
@pytest.mark.filterwarnings("ignore:capture_env_vars names")
def test_which_variables_are_captured(patterns: list[str], names: set[str]) -> None:
    open_, hidden = planner.capture(patterns, ENVIRON)
    assert {*open_, *hidden} == names


def test_no_credential_goes_to_another_machine_by_a_wildcard(recwarn: pytest.WarningsRecorder) -> None:
    assert planner.capture(["HF_*", "WANDB_API_KEY"], ENVIRON, named_only=True) == (
        {"HF_HOME": "/models"}, ("WANDB_API_KEY",)
    )  # fmt: skip
    assert [str(warning.message).partition(":")[0] for warning in recwarn] == ["HF_TOKEN"]
    assert "Name it exactly" in str(recwarn[0].message)


LEAKING = {
    "DB_URL": "postgresql://app:hunter2@db/app", "AIRFLOW_CONN_WAREHOUSE": "mysql://me:hunter2@db",
    "SENTRY_DSN": "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/2", "MYSQL_PWD": "hunter2",
    "SLACK_WEBHOOK": "https://hooks.slack" + ".com/services/T0/B0/abcdefgh", "GH_PAT": "hunter2",
    "PLAIN": "gh" + "p_" + "a1B2c3D4" * 5,
}  # fmt: skip


def test_no_secret_is_captured_in_the_open_whatever_its_name(recwarn: pytest.WarningsRecorder) -> None:
    environ = {**LEAKING, "GIT_SHA": "0123456789abcdef0123456789abcdef01234567", "TOKENIZERS_PARALLELISM": "false"}
    open_, hidden = planner.capture(["*"], environ)
    assert set(open_) == {"GIT_SHA", "TOKENIZERS_PARALLELISM"} and set(hidden) == set(LEAKING)
    assert not recwarn
    assert planner.capture(["*"], environ, named_only=True) == (open_, ())
    assert all(name in str(recwarn[0].message) for name in LEAKING)
    assert planner.capture(["DB_URL"], environ, named_only=True) == ({}, ("DB_URL",))  # by Secret Manager


@pytest.fixture
def said_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_shown", set())


@pytest.mark.usefixtures("said_nothing_yet")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("container_image", "gcr.io/me/i:1"), ("base_image_repo", "mine/kinetic"), ("cluster", "c"), ("namespace", "n"),
        ("zone", "us-east5-a"), ("project", "p"), ("spot", True), ("backend", "gke"), ("backend", "pathways"),
    ],
)  # fmt: skip
def test_kinetics_options_that_mean_nothing_here_are_warned_about_once(
    option: str, value: Any, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(3):
        planned = planner.make_plan(JobSpec("f", Options(accelerator="cpu", **{option: value})), SETTINGS)
        assert planned.backend == "local"
    assert len(recwarn) == 1 and option in str(recwarn[0].message)
    assert recwarn[0].filename == __file__


@pytest.mark.usefixtures("said_nothing_yet")
def test_all_that_local_does_not_use_is_named_in_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    cloud = TpuVm(network="lan", tags=["a"], labels={"team": "ml"})
    asked = Options(accelerator="cpu", backend="local", project="p", zone="us-east5-a", spot=True, cloud=cloud)
    for _ in range(3):
        planner.make_plan(JobSpec("f", asked), SETTINGS)
    assert [str(warning.message) for warning in recwarn] == [
        "project=, zone=, spot=, cloud=TpuVm(network=…, tags=…) have no meaning on the local backend and are ignored there"
    ]


@pytest.mark.usefixtures("said_nothing_yet")
def test_what_looks_like_a_secret_in_env_and_in_a_command_is_said_once(recwarn: pytest.WarningsRecorder) -> None:
    address = "postgresql://app:hunter2@db/app"
    spec = JobSpec(
        "python", Options(accelerator="cpu"), argv=("python", "x.py", "--db", address), env={"DB": address, "RATE": "1"}
    )
    for _ in range(2):
        planner.make_plan(spec, SETTINGS)
    told = [str(warning.message) for warning in recwarn]
    assert len(told) == 1 and "env=DB, part 4 of the command looks like a secret" in told[0] and "secrets=" in told[0]
    assert "hunter2" not in told[0]


@pytest.mark.usefixtures("said_nothing_yet")
def test_a_captured_name_that_is_not_set_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="names NOT_SET, not set here"):
        planner.capture(["NOT_SET"], ENVIRON)


def test_an_output_folder_is_a_whole_path_and_an_address_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert planner.absolute("out") == str(tmp_path / "out")
    assert planner.absolute("gs://b/out") == "gs://b/out" and planner.absolute("") == ""


def test_backends_are_refused_by_name() -> None:
    for store in (SETTINGS.store, "GS://bucket/kinetic"):  # hosts read addresses as they are
        with pytest.raises(UsageError, match="needs a store that its hosts can reach"):
            planner.make_plan(
                JobSpec("f", Options(accelerator="v5e-8", backend="tpu-vm")),
                replace(SETTINGS, store=store, project="p"),
            )
    with pytest.raises(UsageError, match="there is no backend 'x'"):
        planner.make_plan(JobSpec("f", Options(accelerator="cpu", backend="x")), SETTINGS)


def test_every_backend_that_a_plan_may_name_is_opened_by_the_table() -> None:
    assert registry.BACKENDS.keys() == TRAITS.keys()


def test_a_backend_is_planned_by_its_traits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the table is all that a plan needs of a backend: no project, no zones and no bucket are Cloud TPU's."""
    row = Traits(
        secret_service=False, in_project=False, in_zones=False, options=None, service="a cluster", stores=("box",),
        ignored=("zone",),
    )  # fmt: skip
    monkeypatch.setitem(TRAITS, "cluster", row)
    spec = JobSpec("f", Options(accelerator="a100x4", backend="cluster", secrets={"TOKEN": "a-secret"}))
    planned = planner.make_plan(spec, replace(SETTINGS, store="box://there"))
    assert (planned.project, planned.zones, planned.cloud, planned.limits.run) == ("", (), {}, planner.RUN)
    assert planned.where == "a cluster a100x4 of an emulated cloud"
    assert replace(planned, emulated=False).where == "a cluster a100x4"
    for store in ("/a/folder", "gs://bucket/kinetic"):
        with pytest.raises(UsageError, match=r"store that its hosts can reach, .* \(box://…\)"):
            planner.make_plan(spec, replace(SETTINGS, store=store))


CLOUD = replace(SETTINGS, store="gs://bucket/kinetic", project="p", backend="tpu-vm")


@pytest.mark.usefixtures("said_nothing_yet")
@pytest.mark.parametrize("settings", [SETTINGS, CLOUD])
@pytest.mark.parametrize("word", ["bundled", "prebuilt", "", None])
def test_keras_kinetics_words_for_the_images_that_it_builds_name_no_image(settings: Settings, word: str | None) -> None:
    """And nothing of them is ignored, about which one would have to be warned."""
    planned = planner.make_plan(JobSpec("f", Options(accelerator="v5e-8", container_image=word)), settings)
    assert planned.image == ""


@pytest.mark.parametrize(
    "image",
    [
        "python", "python:3.11", "gcr.io/p/i", "us-docker.pkg.dev/p/r/train:7", "localhost:5000/a__b/c-d.e:V_1.2",
        "r/i@sha256:" + "0a" * 32, "r/i:1@sha256:" + "0a" * 32, "[::1]:5000/i", "Registry.Example/i",
    ],
)  # fmt: skip
def test_an_image_is_named_as_docker_names_it(image: str) -> None:
    planned = planner.make_plan(JobSpec("f", Options(accelerator="v5e-8", container_image=image)), CLOUD)
    assert planned.image == image


@pytest.mark.parametrize(
    ("image", "advice"),
    [
        ("My/Image", "did you mean 'my/image'"), (" prebuilt", "did you mean 'prebuilt'"),
        ("r/i:", "such as 'us-docker"), ("https://gcr.io/p/i", "such as"), ("r/i:a b", "such as"), ("-r/i", "such as"),
        ("r/i@sha256:12", "such as"), ("r//i", "such as"), (7, "container_image is 7"), ("r/" + "i" * 600, "such as"),
        ("--privileged", "such as"), ("r/i\n", "did you mean 'r/i'"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_is_refused_before_anything_is_sent(image: Any, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        check_options(Options(accelerator="v5e-8", container_image=image))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(labels={"kinetic-mark": "x"}), "the key 'kinetic-mark': keys that begin with 'kinetic-' are"),
        (Options(cloud=TpuVm(labels={"Kinetic job": "x"})), "the key 'Kinetic job'"),
        (Options(labels={"7": "x"}), "a label's key needs a letter"),
    ],
)
def test_a_label_that_no_resource_would_get_is_refused(options: Options, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_options(options)


def test_the_dry_run_shows_labels_as_they_are_sent() -> None:
    long = "x" * 70
    told = resource_labels.shown({"team": "vision", "Who": "Ada L.", "long": long, "none": ""})
    assert told == (
        "who=ada-l (of Who=Ada L.: 63 of a-z, 0-9, '-' and '_' at most), "
        f"long={'x' * 63} (of long={long}: 63 of a-z, 0-9, '-' and '_' at most), team=vision"
    )
