"""`keras_backend=`: the backend of Keras on the hosts, and what is said when it is not there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import ConflictingSettings, RequirementsError, UsageError
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from tests.support.wheels import offline, wheel

LOCAL = Settings(home=Path("/home"), store="/home/store", deployment="local", backend="local")
CLOUD = Settings(home=Path("/home"), store="gs://b/k", deployment="d", backend="tpu-vm", project="p")


def backend_of(settings: Settings, environ: dict[str, str], env: dict[str, str] | None = None, **options: Any) -> Any:
    spec = JobSpec("train", Options(accelerator="v5e-1", **options), env=env or {})
    return planner.make_plan(spec, settings, environ).env.get("KERAS_BACKEND")


@pytest.mark.parametrize("name", ["jaxx", "pytorch", "", 3])
def test_a_backend_that_does_not_exist_is_refused_where_it_is_written(name: Any) -> None:
    with pytest.raises(UsageError, match=r"keras_backend is .*, and Keras trains on 'jax', 'tensorflow' or 'torch'"):
        kinetic.run(accelerator="cpu", keras_backend=name)


def test_what_is_near_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'tensorflow'"):
        kinetic.command(["true"], accelerator="cpu", keras_backend="tensorflo")


@pytest.mark.parametrize("settings", [LOCAL, CLOUD], ids=["local", "cloud"])
def test_the_argument_wins_over_what_is_captured_and_over_the_shells(settings: Settings) -> None:
    shell = {"KERAS_BACKEND": "tensorflow"}
    captured = {"capture_env_vars": ["KERAS_BACKEND"]}
    assert backend_of(settings, shell, keras_backend="torch", **captured) == "torch"
    assert backend_of(settings, shell, keras_backend="torch") == "torch"
    assert backend_of(settings, shell, **captured) == "tensorflow"
    assert backend_of(settings, shell, env={"KERAS_BACKEND": "torch"}, **captured) == "torch"


def test_without_the_argument_it_is_the_shells_and_on_other_machines_at_least_jax() -> None:
    assert backend_of(LOCAL, {"KERAS_BACKEND": "torch"}) is None  # a process of this machine inherits it
    assert backend_of(CLOUD, {"KERAS_BACKEND": "torch"}) == "torch"
    assert backend_of(CLOUD, {}) == "jax"


def test_two_backends_at_once_and_a_variable_that_names_none_are_refused() -> None:
    with pytest.raises(ConflictingSettings, match=r"keras_backend='jax' and env=.*'torch'.* keep one"):
        backend_of(LOCAL, {}, env={"KERAS_BACKEND": "torch"}, keras_backend="jax")
    assert backend_of(LOCAL, {}, env={"KERAS_BACKEND": "jax"}, keras_backend="jax") == "jax"
    with pytest.raises(UsageError, match=r"KERAS_BACKEND is 'torhc'.*did you mean 'torch'"):
        backend_of(LOCAL, {"KERAS_BACKEND": "torhc"}, capture_env_vars=["KERAS_BACKEND"])
    assert backend_of(CLOUD, {"KERAS_BACKEND": "numpy"}) == "numpy"  # which infers


def test_an_asset_of_dagster_takes_it() -> None:
    import dagster as dg

    from dagster_kinetic import kinetic_asset

    @kinetic_asset(accelerator="cpu", keras_backend="torch")
    def model() -> None: ...

    assert isinstance(model, dg.AssetsDefinition)
    with pytest.raises(UsageError, match="keras_backend is 'jux'"):
        kinetic_asset(accelerator="cpu", keras_backend="jux")(lambda: None)


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_task_of_airflow_takes_it(tmp_path: Path) -> None:
    program = """
from airflow_kinetic.operators.kinetic import KineticTPUOperator
given = {"task_id": "t", "python_callable": print, "accelerator": "cpu"}
print(KineticTPUOperator(**given, keras_backend="torch").keras_backend)
import kinetic_orchestration as kinetic
for profile in (20, "30s", kinetic.Profile(steps=3, hosts="all"), "{{ params.profile }}"):
    print(KineticTPUOperator(**given, profile=profile).profile == profile, end=" ")
for wrong in ("20", kinetic.Profile()):
    try:
        KineticTPUOperator(**given, profile=wrong)
    except kinetic.errors.UsageError as error:
        print(str(error).split(":")[0])
KineticTPUOperator(**given, keras_backend="pytorch")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    backend, profiles, wrong = done.stdout.splitlines()[-3:]
    assert backend == "torch", done.stderr
    assert profiles == "True True True True profile is '20'"
    assert wrong == "profile has neither steps nor seconds"
    assert "UsageError: keras_backend is 'pytorch'" in done.stderr


# -- on a host ---------------------------------------------------------------------------------------------------


def import_torch() -> None:
    import torch  # noqa: F401


def test_the_variable_is_there_before_the_function_is(shared_home: Path) -> None:
    def backend() -> str:
        return os.environ["KERAS_BACKEND"]

    assert kinetic.run(accelerator="cpu", keras_backend="jax")(backend).run_async().result() == "jax"


@pytest.fixture
def links(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose pip installs from one folder, which has a keras and a scikit-learn."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "machine").mkdir()
    for name, value in offline(tmp_path / "machine").items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "machine" / "links"
    in_keras = {"keras/__init__.py": "import keras.src.backend", "keras/src/__init__.py": ""}
    wheel(folder, "keras", files={**in_keras, "keras/src/backend.py": "import tensorflow"})
    wheel(folder, "torch")
    return folder


def test_a_backend_that_the_jobs_environment_lacks_is_refused_before_anything_runs(home: Path, links: Path) -> None:
    named = {"accelerator": "cpu", "keras_backend": "torch"}
    with pytest.raises(RequirementsError, match=r"keras_backend='torch' is refused: .*Add the line torch"):
        kinetic.run(**named, requirements=["keras"])(import_torch).run_async()
    assert kinetic.list_jobs() == []
    job = kinetic.run(**named, requirements=["keras", "torch"])(import_torch).run_async()
    job.result()
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(RequirementsError, match="torch is not installed in this environment, in which the job"):
            kinetic.run(**named)(import_torch).run_async()


@pytest.mark.slow
def test_a_framework_that_is_not_installed_is_named_with_the_line_that_brings_it(home: Path, links: Path) -> None:
    def missing() -> dict[str, list[str]]:
        found = {}
        for name in ("keras", "sklearn.svm", "jax"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                found[name] = error
        raise found["sklearn.svm"] from found["jax"]

    with pytest.raises(ModuleNotFoundError) as caught:
        kinetic.run(accelerator="cpu", requirements=["keras"])(missing).run_async().result()
    said = "\n".join(caught.value.__notes__)
    assert "sklearn is not in the environment of this job: add the line scikit-learn to its requirements" in said

    def keras() -> None:
        import keras  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="tensorflow") as caught:
        kinetic.run(accelerator="cpu", requirements=["keras"])(keras).run_async().result()
    said = "\n".join(caught.value.__notes__)
    assert "add the line tensorflow to its requirements. It is the backend that Keras was told to use" in said


def test_without_an_environment_of_its_own_it_is_said_where_to_install(home: Path) -> None:
    def absent() -> None:
        import no_such_framework  # noqa: F401

    with pytest.raises(ModuleNotFoundError) as caught:
        kinetic.run(accelerator="cpu")(absent).run_async().result()
    said = "\n".join(caught.value.__notes__)
    assert "no_such_framework is not installed where this job runs" in said and "'no-such-framework']" in said
