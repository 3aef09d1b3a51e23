"""A language model goes all the way, by Dagster: from its data to a server in a real Kubernetes, with MaxText, PEFT,
transformers and vLLM themselves, each in an environment of its own. One step is killed, and one model is held back.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import dagster as dg
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import Metrics
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node
from tests.support.interpreters import required
from tests.support.kubernetes import vllm_server
from tests.support.kubernetes.fixtures import nodes_of, serving_plane
from tests.support.pages import SOURCE, page

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
EXAMPLE = EXAMPLES / "whole_llm_dagster.py"
DIES_AT = 45  # after the checkpoints of the steps 20 and 40, of which the second may not be whole yet

real = [pytest.mark.slow, pytest.mark.turn(9), pytest.mark.conformance, pytest.mark.timeout(2700, func_only=True)]

# The command of the step, whose process is killed the first time.
DIES = """
    import os, pathlib, signal, sys
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"
    sys.path.insert(0, {examples!r})
    import whole_llm
    from maxtext.common import metric_logger

    once, write = pathlib.Path({once!r}), metric_logger.MetricLogger.log_metrics

    def write_or_die(self, metrics, step, *more):
        if step == {dies_at} and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, metrics, step, *more)

    metric_logger.MetricLogger.log_metrics = write_or_die
    whole_llm.pretrain(sys.argv[1], sys.argv[2:])
"""


@pytest.fixture(scope="module")
def python_of_maxtext() -> Iterator[None]:
    """MaxText wants Python 3.12, which uv finds on PATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.path.dirname(required("3.12")) + os.pathsep + os.environ["PATH"])
        yield


@pytest.fixture(scope="module")
def plane(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of this file alone, in which Deployments run."""
    with serving_plane(tmp_path_factory.mktemp("serving"), built) as plane:
        yield plane


class Way(NamedTuple):
    """The example, pointed at a folder and a namespace of a cluster."""

    example: ModuleType
    steps: ModuleType
    instance: dg.DagsterInstance
    folder: Path
    namespace: str
    plane: Any


def whole() -> dg.JobDefinition:
    """Return the example's job, as another process would find it."""
    import whole_llm_dagster

    return whole_llm_dagster.defs.resolve_job_def("whole")


class Ran(NamedTuple):
    """Return what is left of a run."""

    run_id: str
    success: bool
    made: dict[str, dict[str, Any]]  # assets, with their metadata
    checks: dict[str, tuple[bool, dict[str, Any]]]


def ran(way: Way, **given: Any) -> Ran:
    """Run the job in this process. `given`: of a run that is executed again."""
    again = {"reexecution_options": dg.ReexecutionOptions(**given)} if given else {}
    return _ran(way, again)


def ran_from_failure(way: Way, failed: Ran) -> Ran:
    return _ran(way, {"reexecution_options": dg.ReexecutionOptions.from_failure(failed.run_id, way.instance)})


def _ran(way: Way, again: dict[str, Any]) -> Ran:
    config = {"execution": {"config": {"in_process": {}}}}
    job = dg.reconstructable(whole)
    with dg.execute_job(job, way.instance, run_config=config, raise_on_error=False, **again) as result:
        made = {
            each.asset_key.to_user_string(): {name: one.value for name, one in each.materialization.metadata.items()}
            for each in result.get_asset_materialization_events()
        }
        checks = {
            each.check_name: (each.passed, {name: one.value for name, one in each.metadata.items()})
            for each in result.get_asset_check_evaluations()
        }
        return Ran(result.run_id, result.success, made, checks)


def volume(plane: Any, namespace: str) -> None:
    """Have a volume of a namespace, bound as the controller of volumes binds it, which this plane has not."""
    size = {"storage": "1Gi"}
    shared: dict[str, Any] = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    of = {"namespace": namespace, "name": "models", "kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    spec = {**shared, "capacity": size, "hostPath": {"path": "/nowhere"}, "claimRef": of}
    plane.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"models-{namespace}"}, "spec": spec})
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    asked = {**shared, "resources": {"requests": size}, "volumeName": f"models-{namespace}"}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    plane.api.create(claims, {"metadata": {"name": "models", "annotations": bound}, "spec": asked})


def python_of(requirements: Path) -> str:
    """Return the interpreter of an environment, which is made if it is not there."""

    def interpreter() -> str:
        import sys

        return sys.executable

    return kinetic.run(accelerator="cpu", requirements=requirements)(interpreter)()


@pytest.fixture(scope="module")
def way(
    frameworks: Path, python_of_maxtext: None, plane: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Way]:
    folder, namespace = tmp_path_factory.mktemp("whole"), "counting"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    plane.await_account(namespace)
    volume(plane, namespace)
    with (
        pytest.MonkeyPatch.context() as patch,
        nodes_of(plane, folder / "nodes") as nodes,
        tempfile.TemporaryDirectory() as sockets,  # whose paths are short enough for a socket, as a pod's own are
    ):
        nodes.add(Node("cpu-0"))
        patch.syspath_prepend(str(EXAMPLES))
        patch.setenv("KUBECONFIG", str(plane.kubeconfig))
        patch.setenv("SERVING_CLUSTER", "tests")
        patch.setenv("PLACE", str(folder / "place"))
        import whole_llm
        import whole_llm_dagster

        (folder / "dies.py").write_text(
            textwrap.dedent(DIES).format(examples=str(EXAMPLES), once=str(folder / "died"), dies_at=DIES_AT), "utf-8"
        )
        command = whole_llm.pretrain_command
        patch.setattr(
            whole_llm, "pretrain_command",
            lambda *given: ["python", str(folder / "dies.py"), *command(*given)[3:]],
        )  # fmt: skip
        patch.setitem(whole_llm.PRETRAIN, "retry", kinetic.Retry())  # or the job itself would go on
        server = {
            "namespace": namespace, "command": (sys.executable, vllm_server.__file__), "startup": 1500, "wait": 120,
            "longest_request": 1, "engine_options": whole_llm.ENGINE_OPTIONS["vllm"],
            "env": {
                **whole_llm.ENVIRONMENT, "MODELS": str(folder / "place" / "models"), "VLLM_RPC_BASE_PATH": sockets,
                "VLLM_PYTHON": python_of(whole_llm.ANSWER["requirements"]),
            },
        }  # fmt: skip
        for name, value in server.items():
            patch.setitem(whole_llm.SERVING, name, value)
        (folder / "dagster").mkdir()
        with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
            yield Way(whole_llm_dagster, whole_llm, instance, folder, namespace, plane)


@pytest.fixture(scope="module")
def failed(way: Way) -> Ran:
    """The run whose pre-training was killed."""
    return ran(way)


@pytest.fixture(scope="module")
def arrived(way: Way, failed: Ran) -> Ran:
    """The same run, executed again from there."""
    return ran_from_failure(way, failed)


class TestTheWholeWay:
    pytestmark = real

    def test_a_run_whose_training_was_killed_goes_on_at_its_checkpoint_and_ends_with_a_server_in_the_cluster(
        self, way: Way, failed: Ran, arrived: Ran
    ) -> None:
        assert (way.folder / "died").exists() and (failed.success, list(failed.made)) == (False, ["data"])
        assert list(arrived.made) == ["pretrained", "base", "tuned", "answers", "promoted", "served"], arrived
        trained = kinetic.attach(str(arrived.made["pretrained"]["kinetic/job_id"]))
        losses = {event.step: event.values["loss"] for event in trained.events() if isinstance(event, Metrics)}
        assert min(losses) in (21, 41) and max(losses) == way.steps.STEPS - 1
        assert losses[max(losses)] < 1.5, "of about six at the beginning"

        passed, told = arrived.checks["good_enough"]
        assert passed and told["right"] >= way.example.REQUIRED
        assert (arrived.made["answers"]["batch/rows"], arrived.made["answers"]["batch/failed"]) == (19, 0)
        assert arrived.success and arrived.checks["answers_as_before"][0]

        [lineage_of] = (way.folder / "place" / "models" / "counting").glob("*/lineage.json")
        lineage = json.loads(lineage_of.read_text(encoding="utf-8"))
        assert lineage["metrics"]["right"] == told["right"] and lineage["job"]

        assert "4 of 4 prompts" in arrived.made["served"]["smoke test"]
        asked = {"model": "counting", "prompt": "after fifteen comes", "max_tokens": 2, "temperature": 0}
        path = arrived.made["served"]["path in the cluster"]
        said = way.plane.api.create(f"{path}/v1/completions", asked)
        assert said["choices"][0]["text"].startswith(" sixteen"), "by vLLM, through the API server"

    def test_a_model_that_has_learned_too_little_is_neither_promoted_nor_deployed(
        self, way: Way, arrived: Ran, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(way.example, "TUNING_STEPS", 0)
        versions = sorted((way.folder / "place" / "models" / "counting").rglob("*.json"))
        serves = kinetic.deployed(way.steps.serving({}, cluster="tests"))
        bad = ran(way, parent_run_id=arrived.run_id, step_selection=["tuned*"])
        assert not bad.success and list(bad.made) == ["tuned", "answers"]
        passed, told = bad.checks["good_enough"]
        assert not passed and told["right"] < way.example.REQUIRED
        assert sorted((way.folder / "place" / "models" / "counting").rglob("*.json")) == versions
        assert kinetic.deployed(way.steps.serving({}, cluster="tests")).revision == serves.revision == 1


@pytest.mark.offline
@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_without_a_cluster_the_example_shows_the_manifests_and_asks_a_server_of_this_machine(
    frameworks: Path, python_of_maxtext: None, tmp_path: Path
) -> None:
    environ = {**os.environ, "PLACE": str(tmp_path / "place"), "PYTHONWARNINGS": "ignore"}
    environ.pop("SERVING_CLUSTER", None)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=2400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.search(r"^result +(\d+)% of the answers are right; made data, .*, promoted, served$", done.stdout, re.M)
    assert found is not None and int(found[1]) >= 90, done.stdout[-3000:]
    assert "kind: Deployment" in done.stdout and "claimName: models" in done.stdout
    assert "smoke    answers as before: a server on cpu" in done.stdout
    assert "served   nowhere: SERVING_CLUSTER names no cluster" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["place"], "it left something in its folder"


def test_a_folder_of_a_store_is_fetched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    fsspec, whole_llm = (importlib.import_module(name) for name in ("fsspec", "whole_llm"))
    files = {"text-0.jsonl": b"one two", "tokenizer/tokenizer.json": b"{}"}
    for name, content in files.items():
        fsspec.filesystem("memory").pipe(f"/counting/data/{name}", content)
    found = Path(whole_llm.fetched("memory://counting/data"))
    try:
        assert {str(each.relative_to(found)): each.read_bytes() for each in found.rglob("*") if each.is_file()} == files
    finally:
        shutil.rmtree(found)
        fsspec.filesystem("memory").rm("/counting", recursive=True)
    assert whole_llm.fetched("/a/folder") == "/a/folder"


def test_the_example_says_what_it_shows_and_what_to_change_and_is_on_its_page() -> None:
    begin = EXAMPLE.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{EXAMPLE.name}" in begin
    assert re.search(r"(?i)for a real slice", begin)
    pages = "".join(path.read_text("utf-8") for path in (EXAMPLES.parent / "docs" / "training").rglob("*.md"))
    assert f"({SOURCE}/blob/main/example_pipelines/{EXAMPLE.name})" in pages
    shown = set(re.findall(r'font-weight="600"[^>]*>([^<]+)<', page("docs/training/whole-way.svg")))
    steps = re.findall(r"^def (\w+)\(", EXAMPLE.read_text(encoding="utf-8"), re.M)
    assert shown == set(steps) - {"main"}, "the picture has its assets and checks"


def test_the_commands_of_the_example_run_where_its_functions_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one change for a real slice, pre-training is not left on this machine."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import whole_llm_dagster

    resources = whole_llm_dagster.defs.resources
    assert resources is not None and resources["pipes"]._kinetic is resources["kinetic"]
