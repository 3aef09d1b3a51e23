"""A job runs where its launch says, or not at all; and everybody who tells of it says where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.errors import NotEmulated, Unsupported, UsageError
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan import emulation, messages
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, not_on_cloud
from kinetic_orchestration.plan.hardware import accelerators, machines
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import TRAITS, Traits
from kinetic_orchestration.testing import Emulator

PROGRAM = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-1"{options})
def train():
    return "trained"

if __name__ == "__main__":
    print(train())
"""


def script(folder: Path, options: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(PROGRAM.format(options=options), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GOOGLE_")}
    return subprocess.run(
        [sys.executable, str(program)],
        cwd=folder, env={**clean, **environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def planned_with(environ: dict[str, str], home: Path, options: Options, *meant: str) -> Any:
    here = settings.load({"KINETIC_HOME": str(home), "KINETIC_PROFILE_FILE": "/none", **environ}, **_place(options))
    return make_plan(JobSpec("train", options, meant=meant), here, environ)


def _place(options: Options) -> dict[str, str | None]:
    return {name: getattr(options, name) for name in ("store", "deployment", "project", "zone", "cluster", "namespace")}


# ---- refused instead of emulated ---------------------------------------------------------------------------


def test_a_backend_that_is_named_is_meant_whatever_is_set_for_google_cloud(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRAITS, "cluster", Traits(in_zones=False, service="a cluster", stores=()))
    environ = {"KINETIC_PROJECT": "p"}
    assert planned_with(environ, home, Options(accelerator="v5e-1", backend="cluster")).backend == "cluster"
    with pytest.raises(NotEmulated):
        planned_with(environ, home, Options(accelerator="v5e-1"))


IN_GOOGLE = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d"}


@pytest.mark.parametrize("word", ["gke", "pathways"])
def test_keras_kinetics_words_with_a_cluster_mean_gke_and_its_gpus_though_the_settings_lead_to_cloud_tpu(
    word: str, home: Path
) -> None:
    for more in ({"cloud": Kubernetes()}, {"cluster": "prod"}):
        plan = planned_with(IN_GOOGLE, home, Options(accelerator="gpu-l4x4", backend=word, **more))
        assert (plan.backend, plan.slice.name) == ("gke", "l4x4")
    with pytest.warns(UserWarning, match="no cluster of GKE is named, so this job runs on compute"):
        plan = planned_with(IN_GOOGLE, home, Options(accelerator="gpu-l4x4", backend=word, zone="us-central1-a"))
    assert (plan.backend, plan.slice.name) == ("compute", "l4x4")


@pytest.mark.parametrize("word", ["gke", "pathways"])
def test_keras_kinetics_words_mean_the_cluster_that_a_setting_names(
    word: str, home: Path, recwarn: pytest.WarningsRecorder
) -> None:
    environ = {"KINETIC_BACKEND": "kubernetes", "KINETIC_STORE": "s3://b/k", "KINETIC_DEPLOYMENT": "d"}
    plan = planned_with(environ, home, Options(accelerator="gpu-l4x4", backend=word, cluster="prod", namespace="ml"))
    assert (plan.backend, plan.zones) == ("kubernetes", ("prod/ml",))
    assert not recwarn.list


def test_keras_kinetics_word_of_its_own_gives_way_to_a_backend_of_the_settings(home: Path) -> None:
    environ = {**IN_GOOGLE, "KINETIC_BACKEND": "kubernetes", "KINETIC_CLUSTER": "prod"}
    assert planned_with(environ, home, Options(accelerator="l4", backend="pathways")).backend == "kubernetes"
    assert planned_with(environ, home, Options(accelerator="l4", backend="gke")).backend == "gke"


def test_a_step_that_names_a_cluster_does_not_run_here_instead(home: Path) -> None:
    """A program by itself does, as one of Keras Kinetic's may: it is warned."""
    options = Options(accelerator="l4", cluster="prod")
    with pytest.raises(
        NotEmulated, match=r"cluster='prod' means a cluster, .* Name one: backend='kubernetes' or 'gke'"
    ):
        planned_with({}, home, options, *emulation.kinetics_own(options))
    here = {"KINETIC_BACKEND": "local"}
    with pytest.warns(UserWarning, match="cluster="):
        assert planned_with(here, home, options, *emulation.kinetics_own(options)).backend == "local"


def test_a_script_with_a_project_and_no_store_is_refused_with_the_line_that_is_missing(
    home: Path, tmp_path: Path
) -> None:
    done = script(tmp_path, KINETIC_PROJECT="p", KINETIC_ZONES="us-west4-a", KINETIC_SERVICE_ACCOUNT="vm@p")
    assert done.returncode == 1 and done.stdout == ""
    told = done.stderr.strip().splitlines()[-1]
    assert "KINETIC_PROJECT, KINETIC_ZONES, KINETIC_SERVICE_ACCOUNT mean Google Cloud" in told
    assert "KINETIC_STORE=gs://my-bucket/kinetic (or store=)" in told and "KINETIC_BACKEND=local" in told
    assert not (home / "store").exists(), "nothing was written"


def test_local_says_that_emulation_is_wanted_and_the_first_line_says_that_it_is_one(home: Path, tmp_path: Path) -> None:
    done = script(tmp_path, KINETIC_PROJECT="p", KINETIC_BACKEND="local")
    assert done.stdout.splitlines()[-1] == "trained", done.stderr
    first = next(line for line in done.stderr.splitlines() if " runs train on " in line)
    assert first.endswith("v5e-1: 1 chip (1x1), 1 host × 1 chip, emulated on this machine's CPU")
    assert "Cloud TPU" not in first


def test_a_bare_google_cloud_project_means_no_cloud_and_the_first_line_says_so(home: Path, tmp_path: Path) -> None:
    done = script(tmp_path, GOOGLE_CLOUD_PROJECT="of-the-machine")
    assert done.stdout.splitlines()[-1] == "trained", done.stderr
    first = next(line for line in done.stderr.splitlines() if " runs train on " in line)
    assert "emulated on this machine's CPU (GOOGLE_CLOUD_PROJECT=of-the-machine alone means no cloud" in first


SETTINGS = {
    "KINETIC_PROJECT": "p", "KINETIC_ZONE": "us-west4-a", "KINETIC_ZONES": "us-west4-a", "KINETIC_IMPERSONATE": "a@p",
    "KINETIC_SERVICE_ACCOUNT": "a@p", "KINETIC_NETWORK": "lan", "KINETIC_SUBNETWORK": "lan", "KINETIC_QUOTA_PROJECT": "p",
    "KINETIC_EMULATOR": "http://127.0.0.1:1", "KINETIC_EMULATOR_GRPC": "127.0.0.1:1",
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_that_only_google_cloud_understands_means_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotEmulated, match=rf"{name} means Google Cloud.*KINETIC_STORE=gs://"):
        planned_with({name: SETTINGS[name]}, tmp_path, Options(accelerator="v5e-1"))


def test_a_profile_means_it_too_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('[default]\nproject = "p"\nzones = ["us-west4-a"]\n', encoding="utf-8")
    with pytest.raises(NotEmulated, match=r"project of \[default\] in .*profiles.toml, zones of \[default\]"):
        planned_with({"KINETIC_PROFILE_FILE": str(file)}, tmp_path, Options(accelerator="v5e-1"))
    file.write_text('[default]\nproject = "p"\nbackend = "local"\n', encoding="utf-8")
    assert planned_with({"KINETIC_PROFILE_FILE": str(file)}, tmp_path, Options(accelerator="v5e-1")).backend == "local"


@pytest.mark.filterwarnings("ignore:.*no meaning")
@pytest.mark.parametrize(
    "cloud", [TpuVm(zones=["us-west4-a"]), TpuVm(service_account="a@p"), TpuVm(accelerator_type="v5p-8")]
)
def test_what_only_cloud_tpu_understands_means_it(cloud: TpuVm, tmp_path: Path) -> None:
    accelerator = {} if cloud.accelerator_type else {"accelerator": "v5e-1"}
    with pytest.raises(NotEmulated, match="means Google Cloud"):
        planned_with({}, tmp_path, Options(cloud=cloud, **accelerator))
    assert planned_with({}, tmp_path, Options(cloud=cloud, backend="local", **accelerator)).backend == "local"
    assert planned_with({}, tmp_path, Options(cloud=TpuVm(), accelerator="v5e-1")).backend == "local"


def test_a_bucket_without_a_project_is_told_what_it_lacks(tmp_path: Path) -> None:
    place = {"KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d"}
    with pytest.raises(NotEmulated, match=r"no project is named.*KINETIC_PROJECT=my-project \(or project=\)\. To have"):
        planned_with(place, tmp_path, Options(accelerator="v5e-1"))
    assert (
        planned_with({**place, "KINETIC_BACKEND": "local"}, tmp_path, Options(accelerator="v5e-1")).store == "gs://b/k"
    )
    assert (
        planned_with({**place, "GOOGLE_CLOUD_PROJECT": "p"}, tmp_path, Options(accelerator="v5e-1")).backend == "tpu-vm"
    )


@pytest.mark.filterwarnings("ignore:.*no meaning")
def test_keras_kinetics_own_options_mean_it_in_an_orchestrator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_shown", set())
    options = Options(accelerator="v5e-1", project="p", zone="us-west4-a", spot=True)
    assert planned_with({}, tmp_path, options).backend == "local"
    meant = emulation.kinetics_own(options)
    with pytest.raises(NotEmulated, match="project='p', zone='us-west4-a', spot=True mean Google Cloud"):
        planned_with({}, tmp_path, options, *meant)


# ---- hardware that is required -----------------------------------------------------------------------------


def test_required_hardware_refuses_every_emulation_and_says_whose_word_that_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec("train", Options(accelerator="v5e-4"))
    monkeypatch.setenv("KINETIC_REQUIRE_HARDWARE", "true")
    told = r"v5e-4 would be emulated on this machine's CPU.*KINETIC_PROJECT, KINETIC_STORE"
    with pytest.raises(NotEmulated, match=told):
        draft(spec)
    with pytest.raises(NotEmulated):  # also where it is asked for: a shared setting outranks one program
        draft(JobSpec("train", Options(accelerator="v5e-4", backend="local")))
    plan = draft(JobSpec("train", Options(accelerator="cpu"))).plan
    assert not plan.stands_in and plan.where == "this machine's CPU"


def test_an_emulated_cloud_is_no_hardware_either(
    tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tpu_cloud.environ().items():  # `home` has taken them away
        monkeypatch.setenv(name, value)
    spec = JobSpec("train", Options(accelerator="v5e-4"))
    plan = draft(spec).plan
    assert plan.where == "Cloud TPU v5litepod-4 of an emulated cloud"
    monkeypatch.setenv("KINETIC_REQUIRE_HARDWARE", "true")
    with pytest.raises(NotEmulated, match=r"of an emulated cloud.*unset KINETIC_EMULATOR"):
        draft(spec)


def test_a_profile_may_require_hardware(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text("[default]\nrequire_hardware = true\n", encoding="utf-8")
    here = settings.load({"KINETIC_HOME": str(tmp_path), "KINETIC_PROFILE_FILE": str(file)})
    assert here.require_hardware is True and "[default]" in here.sources["require_hardware"]
    with pytest.raises(UsageError, match="KINETIC_REQUIRE_HARDWARE is 'perhaps'"):
        settings.load({"KINETIC_HOME": str(tmp_path), "KINETIC_REQUIRE_HARDWARE": "perhaps"})


# ---- where it runs, in one wording -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "backend", "emulated", "where"),
    [
        ("v5e-4", "local", True, "emulated on this machine's CPU"),
        ("v5e-4", "local", False, "this machine's own TPU"),
        ("a100x2", "local", False, "this machine's own GPUs"),
        ("gpu", "local", False, "this machine's own GPU"),
        ("cpu:8", "local", True, "this machine's CPU"),
        ("v5e-4", "tpu-vm", False, "Cloud TPU v5litepod-4"),
        ("v5e-4", "tpu-vm", True, "Cloud TPU v5litepod-4 of an emulated cloud"),
    ],
)
def test_one_wording_of_where(accelerator: str, backend: str, emulated: bool, where: str, tmp_path: Path) -> None:
    from dataclasses import replace

    here = settings.load({"KINETIC_HOME": str(tmp_path), "KINETIC_PROFILE_FILE": "/none", "KINETIC_BACKEND": "local"})
    plan = make_plan(JobSpec("train", Options(accelerator=accelerator)), here)
    plan = replace(plan, backend=backend, emulated=emulated)
    assert plan.where == where
    assert plan.hardware == f"{parse(accelerator).shape}, {where}"


def test_jobs_and_status_say_where(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import kinetic_orchestration as kinetic

    (tmp_path / "program").mkdir()
    job = kinetic.command(["true"], accelerator="v5e-1", cwd=tmp_path / "program")
    job.result()
    capsys.readouterr()
    cli.main(["jobs", "--all"])
    header, row = capsys.readouterr().out.splitlines()
    assert header.endswith("WHERE") and row.endswith("emulated on this machine's CPU")
    cli.main(["status", job.job_id])
    fields = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert fields["where"].strip() == "emulated on this machine's CPU"
    cli.main(["status", job.job_id, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["where"], told["emulated"]) == ("emulated on this machine's CPU", True)


def test_a_batch_is_refused_before_the_first_of_its_jobs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kinetic_orchestration as kinetic

    monkeypatch.setenv("KINETIC_PROJECT", "p")
    with pytest.raises(NotEmulated, match="KINETIC_PROJECT means Google Cloud"):
        kinetic.run(accelerator="v5e-1")(lambda x: x).run_async_map([1, 2])
    assert not (home / "store").exists()


def test_plan_shows_what_is_meant_and_says_what_a_job_lacks(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(options=""), encoding="utf-8")
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    monkeypatch.setenv("KINETIC_ZONES", "us-west4-a")
    assert cli.main(["plan", str(tmp_path / "train.py")]) == 0
    shown = capsys.readouterr()
    assert "Cloud TPU v5litepod-1" in shown.out and "KINETIC_STORE=gs://my-bucket/kinetic" in shown.err


def test_doctor_says_that_jobs_cannot_run_where_they_are_meant_to(home: Path) -> None:
    from kinetic_orchestration.cli import doctor

    def backend(**environ: str) -> doctor.Check:
        report = doctor.examine({**os.environ, "KINETIC_PROFILE_FILE": "/none", **environ})
        return next(check for check in report.checks if check.name == "backend")

    assert backend().state == doctor.OK and "emulated on its CPU" in backend().found
    refused = backend(KINETIC_PROJECT="p")
    assert refused.state == doctor.FAILED and "KINETIC_STORE=gs://my-bucket/kinetic" in refused.fix
    assert "refuses that" in backend(KINETIC_REQUIRE_HARDWARE="true").found
    cloud = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://no-bucket-is-asked-for/k", "KINETIC_DEPLOYMENT": "d"}
    assert backend(**cloud).found == "by the hardware of a job: tpu-vm, compute"
    assert backend(**cloud, KINETIC_BACKEND="tpu-vm").found == "tpu-vm"


NO_TPU = (
    "{} is no TPU, and the tpu-vm backend runs TPUs alone: name a TPU, such as v5e-8, or run it {}on a cluster with "
    "backend='gke' or 'kubernetes', or on {} with backend='local'"
)
NOT_THERE = {
    "gpu": NO_TPU.format("gpu", "on VMs with backend='compute', ", "a machine that has the GPU"),
    "gpu:3": NO_TPU.format("gpu:3", "on VMs with backend='compute', ", "a machine that has the GPUs"),
    "v100": NO_TPU.format("v100", "on VMs with backend='compute', ", "a machine that has the GPU"),
    "h100": NO_TPU.format("h100", "on VMs with backend='compute', ", "a machine that has the GPU"),
    "cpu:4": NO_TPU.format("cpu:4", "", "this machine's CPU"),
    "tpu7x-192": not_on_cloud(parse("tpu7x-192")),
}
# Without backend=, GPUs and TPU7x are meant for VMs, which have most of them: these not.
BY_RULE = {
    name: machines.refusal(parse(name), accelerators.ON_DEMAND)
    for name in ("gpu", "gpu:3", "v100", "h100", "tpu7x-192")
}


@pytest.mark.parametrize("accelerator", NOT_THERE)
def test_plan_and_launch_say_the_same_of_what_the_cloud_cannot_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], accelerator: str
) -> None:
    """In one line, before anybody is asked, and whatever else is missing: a store would not help."""
    told = NOT_THERE[accelerator]
    (tmp_path / "train.py").write_text("def train():\n    return 1\n", encoding="utf-8")

    def planned_as(*options: str) -> str:
        assert cli.main(["plan", f"{tmp_path / 'train.py'}:train", "--accelerator", accelerator, *options]) == 2
        shown = capsys.readouterr()
        assert not shown.out and shown.err.startswith("kinetic: error: ")
        return shown.err.removeprefix("kinetic: error: ").rstrip("\n")

    def launched_as(**options: Any) -> str:
        with pytest.raises(Unsupported) as refused:
            kinetic.run(accelerator=accelerator, **options)(len).run_async("four")
        with pytest.raises(Unsupported) as all_refused:
            kinetic.run(accelerator=accelerator, **options)(len).run_async_map(["four"])
        assert str(all_refused.value) == str(refused.value)
        return str(refused.value)

    assert launched_as(backend="tpu-vm") == told
    told = BY_RULE.get(accelerator, told)
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    means = " was not run: KINETIC_PROJECT means Google Cloud, and "
    assert (planned_as(), launched_as()) == (f"train{means}{told}", f"len{means}{told}")
    monkeypatch.setenv("KINETIC_STORE", "gs://no-bucket-is-asked-for/kinetic")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "d")
    assert (planned_as(), launched_as()) == (told, told)
    assert not (home / "store").exists()
