"""The public namespace: complete, lazy, and importing it does nothing."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.declare import spec

pytestmark = pytest.mark.fast

KINETICS = {
    "BatchError",
    "BatchHandle",
    "Data",
    "JobHandle",
    "RemoteCallable",
    "attach",
    "attach_batch",
    "list_jobs",
    "run",
}
OURS = {
    "BatchReport", "Candidate", "Choice", "Compute", "Deployed", "Evaluation", "Gpu", "HostContext",
    "JobStatus", "KineticCallback", "Kubernetes", "Limits", "MLflow", "Orbax", "Profile", "Promoted", "Retry",
    "SearchResult", "SearchTrial", "Server", "Serving", "Slurm", "SmokeTest", "StreamedData", "TpuVm", "Training", "TrainingEnded",
    "Vertex", "command", "current", "deploy", "deployed", "evaluate", "move_alias", "promote", "read_answers",
    "read_checkpoint", "search", "serve_batch",
}  # fmt: skip
SDKS = {"absl", "cloudpickle", "dagster", "airflow", "google", "jax", "keras", "kubernetes", "numpy", "rich", "uv"}


def test_all_public_names_are_there_and_documented() -> None:
    assert set(kinetic.__all__) == KINETICS | OURS
    assert set(kinetic.__all__) <= set(dir(kinetic)) and kinetic.__version__
    for name in kinetic.__all__:
        assert inspect.getdoc(getattr(kinetic, name)), f"{name} has no docstring"
        assert getattr(kinetic, name).__module__.startswith("kinetic_orchestration.")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kinetic.nothing  # noqa: B018


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(kinetic.__file__).read_text(encoding="utf-8"))
    checking = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checking.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    named = {alias.name for node in imports for alias in node.names}
    assert named == {*kinetic.__all__, "torch"}, "that module is none of `import *`, which would hide torch itself"
    assert kinetic.torch.__all__ and "torch" not in kinetic.__all__


def loaded_by(program: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {program}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_loads_no_sdk_and_nothing_else_of_ours() -> None:
    loaded = loaded_by("import kinetic_orchestration as kinetic")
    assert {name for name in loaded if name.startswith("kinetic")} == {"kinetic_orchestration"}
    assert not {name.partition(".")[0] for name in loaded} & SDKS


def test_decorating_loads_no_sdk_either() -> None:
    loaded = loaded_by(
        "import kinetic_orchestration as kinetic; kinetic.run(accelerator='v5e-8')(print); kinetic.current"
    )
    assert not {name.partition(".")[0] for name in loaded} & SDKS
    assert importlib.util.find_spec("kinetic_orchestration.jobs.launch") is not None
    assert "asyncio" not in loaded and "kinetic_orchestration.jobs.launch" not in loaded


def test_to_declare_a_function_loads_nothing_that_only_a_submission_needs() -> None:
    loaded = loaded_by("import kinetic_orchestration as kinetic; kinetic.run(accelerator='v5e-1')(lambda: None)")
    unwanted = {
        "kinetic_orchestration.protocol.wire",
        "kinetic_orchestration.api.handle",
        "kinetic_orchestration.jobs.launch",
        "kinetic_orchestration.jobs.request",
        "kinetic_orchestration.plan.configuration.home",
        "kinetic_orchestration.plan.declare.keras_kinetic",
        "kinetic_orchestration.plan.hardware.machines",
        "kinetic_orchestration.plan.hardware.nodes",
        "kinetic_orchestration.plan.planner",
        "kinetic_orchestration.plan.values",
    }
    assert all(map(importlib.util.find_spec, unwanted)), "a module of that name exists"
    assert not loaded & unwanted
    assert not loaded & {"difflib", "json", "tempfile", "shutil", "subprocess", "pathlib", "urllib.parse"}, loaded


def test_importing_sets_nothing(tmp_path: Path) -> None:
    program = (
        "import logging, os, signal, threading, warnings; before = (dict(os.environ), list(warnings.filters), "
        "signal.getsignal(signal.SIGINT), logging.root.handlers[:], threading.active_count()); "
        "import kinetic_orchestration as kinetic; [getattr(kinetic, name) for name in kinetic.__all__]; "
        "assert before == (dict(os.environ), list(warnings.filters), signal.getsignal(signal.SIGINT), "
        "logging.root.handlers[:], threading.active_count())"
    )
    environ = {**os.environ, "KINETIC_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_run_has_the_parameters_of_its_options_and_refuses_others_by_its_own_name() -> None:
    taken, stated = inspect.signature(kinetic.run), inspect.signature(spec.Options)
    assert taken.parameters == stated.parameters and taken.return_annotation == "Decorate"
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'accelerater'"):
        kinetic.run(accelerater="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^run\(\) too many positional arguments"):
        kinetic.run(*["cpu"] * 14)  # type: ignore[arg-type]


def test_the_names_and_options_of_keras_kinetic_are_there_in_its_order() -> None:
    options = list(inspect.signature(kinetic.run).parameters)
    assert options[:13] == [
        "accelerator", "container_image", "base_image_repo", "zone", "project", "capture_env_vars", "cluster", "backend",
        "namespace", "volumes", "spot", "output_dir", "debug",
    ]  # fmt: skip
    assert inspect.signature(kinetic.run).parameters["accelerator"].default == "tpu-v5e-1"
    parameters = {
        kinetic.RemoteCallable.run_async_map: "inputs input_mode max_concurrent retries fail_fast cancel_running_on_fail "
        "name tags project cluster",
        kinetic.JobHandle.result: "timeout cleanup cleanup_timeout cleanup_poll_interval stream_logs on_status_change",
        kinetic.JobHandle.cancel: "cleanup_timeout cleanup_poll_interval",
        kinetic.JobHandle.cleanup: "k8s gcs cleanup_timeout cleanup_poll_interval",
        kinetic.JobHandle.logs: "follow",
        kinetic.JobHandle.tail: "n",
        kinetic.BatchHandle.wait: "timeout",
        kinetic.BatchHandle.as_completed: "poll_interval timeout",
        kinetic.BatchHandle.results: "timeout ordered cleanup return_exceptions",
        kinetic.BatchHandle.cleanup: "k8s gcs",
        kinetic.attach: "job_id project cluster",
        kinetic.attach_batch: "group_id project cluster poll_interval poll_timeout",
        kinetic.list_jobs: "project zone cluster namespace",
    }
    for function, names in parameters.items():
        assert set(names.split()) <= set(inspect.signature(function).parameters), function
    assert {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND"} <= {status.value for status in kinetic.JobStatus}
