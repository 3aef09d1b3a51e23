"""What a Dagster user sees: assets whose bodies run on every host of a slice."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from dagster_kinetic import HostContext, KineticResource, kinetic_asset, kinetic_op
from kinetic_orchestration import JobStatus, attach
from kinetic_orchestration.agent import processes
from kinetic_orchestration.errors import NotAFunction, UnknownAccelerator, UsageError

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "example_pipelines" / "dagster_train_evaluate.py"
RESOURCES = {"kinetic": KineticResource()}


def load(path: Path) -> ModuleType:
    name = f"kinetic_tests_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


pipelines = load(HERE / "pipelines.py")
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def captured(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
    """What the UI shows as the step's output."""
    keys = [
        event.logs_captured_data.file_key for event in result.all_events if event.event_type_value == "LOGS_CAPTURED"
    ]
    manager = instance.compute_log_manager
    key = manager.build_log_key_for_run(result.run_id, keys[0])
    return (manager.get_log_data(key).stdout or b"").decode()


def messages(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(result.run_id)]


def test_inputs_config_and_partition_reach_the_host_and_its_value_metadata_and_checks_come_back(instance):
    result = dg.materialize(
        [pipelines.numbers, pipelines.total],
        instance=instance,
        partition_key="tuesday",
        resources=RESOURCES,
        run_config={"ops": {"total": {"config": {"factor": 3.0}}}},
    )
    assert result.output_for_node("total") == 18
    [made] = result.asset_materializations_for_node("total")
    assert made.partition == "tuesday"
    assert made.metadata["count"].value == 3
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.metadata["value"].value) == ("enough", True, 18)
    assert "adding on tuesday" in captured(instance, result)


def test_what_ran_where_and_for_how_much_is_in_the_metadata(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    [made] = result.asset_materializations_for_node("slice_of_four")
    values = {name: value.value for name, value in made.metadata.items() if name.startswith("kinetic/")}
    assert values["kinetic/job_id"].startswith("job-")
    assert (values["kinetic/accelerator"], values["kinetic/attempts"]) == ("v5e-16", 1)
    assert values["kinetic/seconds"] > 0 and values["kinetic/chip_hours"] > 0
    assert values["kinetic/cost_usd_estimate"] == 0  # an emulated slice costs nothing
    assert "v5litepod-16" in values["kinetic/cost"]


def test_every_hosts_lines_are_in_the_captured_output_and_every_change_in_the_log(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    assert result.output_for_node("slice_of_four") == 4
    text = captured(instance, result)
    for host in range(4):
        assert f"[host {host}] here is {host} of 4\n" in text
    said = messages(instance, result)
    assert any("runs slice_of_four on v5e-16" in line for line in said)
    assert "running: 4 hosts" in said and "succeeded" in said
    assert any(line.startswith("cost: $0.00 on this machine") for line in said)


def test_metrics_are_observations_of_the_asset(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    seen = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    assert [each.asset_key for each in seen] == [dg.AssetKey("slice_of_four")] * len(seen)
    last = {name: value.value for name, value in seen[-1].metadata.items()}
    assert last == {"loss": pytest.approx(1 / 3), "step": 2}


def test_a_failure_shows_the_traceback_of_its_host_and_where_the_log_is(instance):
    result = dg.materialize([pipelines.broken], instance=instance, resources=RESOURCES, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    error = failure.step_failure_data.error.cause
    text = error.to_string()
    assert error.cls_name == "KeyError"
    assert "Raised on host 0 of job job-" in text
    assert 'raise KeyError("no such column")' in text and "pipelines.py" in text
    assert "kinetic-orchestration logs job-" in text
    assert "going wrong" in captured(instance, result)


def test_a_failure_raises_the_users_own_exception():
    with pytest.raises(KeyError, match="no such column"):
        dg.materialize([pipelines.broken], resources=RESOURCES)


def test_a_retry_after_a_failure_is_a_new_job_with_the_same_checkpoints(instance):
    policy = dg.RetryPolicy(max_retries=1)
    asset = kinetic_asset(accelerator="cpu", retry_policy=policy)(pipelines.fails_once)
    result = dg.materialize([asset], instance=instance, resources=RESOURCES)
    first, second = result.output_for_node("fails_once")
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] != second[1:]


@pytest.mark.parametrize("tags", [{"dagster/is_resume_retry": "true"}, {}], ids=["resumed", "run anew"])
def test_a_resumed_run_goes_on_where_its_parent_failed_and_a_new_one_begins(instance, tags):
    job = dg.Definitions(
        [pipelines.broken], resources=RESOURCES, executor=dg.in_process_executor
    ).resolve_implicit_global_asset_job_def()
    first = job.execute_in_process(instance=instance, raise_on_error=False)
    run = instance.create_run_for_job(job, parent_run_id=first.run_id, root_run_id=first.run_id, tags=tags)
    assert execute_run(InMemoryJob(job), run, instance, raise_on_error=False).success is bool(tags)


def test_a_run_inside_any_asset_and_many_in_one_step():
    def add(a, b=0):
        return a + b

    @dg.asset
    def sums(context: dg.AssetExecutionContext, kinetic: KineticResource):
        one = kinetic.run(add, args=(1,), kwargs={"b": 2}, accelerator="cpu", context=context)
        handle = kinetic.submit(add, args=(10,), accelerator="cpu", context=context)
        return [one, kinetic.attach(handle.job_id).result()]

    assert dg.materialize([sums], resources=RESOURCES).output_for_node("sums") == [3, 10]


def test_a_resource_runs_functions_outside_of_dagster_too(capfd):
    assert KineticResource().run(pow, args=(2, 5), accelerator="cpu") == 32
    assert "cost: $0.00" in capfd.readouterr().err


def test_an_op_runs_on_accelerators():
    assert pipelines.doubling.execute_in_process().output_for_node("again") == 16


def test_direct_invocation_runs_the_body_as_a_job():
    context = dg.build_asset_context(partition_key="monday")
    made = pipelines.total(context, [1, 2], config=pipelines.Training(factor=4), kinetic=KineticResource())
    assert (made.value, made.metadata["count"]) == (12, 2)
    assert made.check_results[0].passed


def test_an_asset_keeps_what_dagster_knows_of_it():
    spec = pipelines.total.specs_by_key[dg.AssetKey("total")]
    assert (spec.description, spec.group_name, spec.owners) == ("Adds them up.", "sums", ["team:numbers"])
    assert spec.tags == {"of": "tests"}
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("numbers")]
    assert pipelines.total.required_resource_keys == {"kinetic", "io_manager"}
    assert pipelines.total.check_keys == {dg.AssetCheckKey(dg.AssetKey("total"), "enough")}


def takes_context(context, host): ...
def takes_client(host, client: KineticResource): ...
def takes_injected(host, s3: dg.ResourceParam[str]): ...
def takes_kinetic(kinetic): ...
def takes_positions(*values): ...
def takes_two(one: HostContext, two: HostContext): ...
def generates(host):
    yield 1


@pytest.mark.parametrize(
    "decorate, kind, says",
    [
        (lambda: kinetic_asset(accelerator="v5e-17")(takes_none), UnknownAccelerator, "v5e-16"),
        (lambda: kinetic_asset()(takes_none), UsageError, "say which accelerator"),
        (lambda: kinetic_asset(takes_none), UsageError, "@kinetic_asset(accelerator="),
        (lambda: kinetic_op(takes_none), UsageError, "@kinetic_op(accelerator="),
        (lambda: kinetic_asset(accelerator="cpu", volumes={"data": 1})(takes_none), UsageError, "not absolute"),
        (lambda: kinetic_asset(accelerator="cpu")(generates), NotAFunction, "return one value"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_context), UsageError, "host: HostContext"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_client), UsageError, "'client', which cannot travel"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_injected), UsageError, "'s3', which cannot travel"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_kinetic), UsageError, "choose another"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_positions), UsageError, "by their names"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_two), UsageError, "keep one"),
        (lambda: KineticResource().run(takes_none), UsageError, "say which accelerator"),
        (lambda: KineticResource().run(takes_none, accelerator="cpu", spott=True), UsageError, "did you mean spot"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(decorate, kind, says):
    with pytest.raises(kind) as caught:
        decorate()
    assert says in str(caught.value)


def takes_none(): ...


def test_importing_costs_no_more_than_dagster_itself():
    code = (
        "import sys, dagster; before = set(sys.modules); import dagster_kinetic; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith(('dagster_kinetic', 'kinetic_'))))"
    )
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {
        name for name in added if name.split(".")[0] in ("google", "jax", "rich", "uv", "cloudpickle", "platformdirs")
    }, added


# ---- workers that end too early ----------------------------------------------------------------------------


class Worker:
    """`dagster job execute`, as a run worker runs it: its steps are processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.instance = dg.DagsterInstance.from_config(str(folder))
        command = [
            sys.executable,
            "-m",
            "dagster",
            "job",
            "execute",
            "-f",
            str(HERE / "pipelines.py"),
            "-j",
            "patient_job",
        ]
        environment = {**os.environ, "DAGSTER_HOME": str(folder), "KINETIC_TEST_FOLDER": str(folder)}
        self.log = (folder / "worker.log").open("wb")
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def jobs(self) -> list[str]:
        path = self.folder / "jobs"
        return path.read_text().split() if path.exists() else []

    def wait_for_job(self) -> str:
        wait_until(lambda: self.jobs() or self.process.poll() is not None)
        assert self.jobs(), self.said()
        return self.jobs()[0]

    def step(self) -> int:
        """The process of the one step that runs."""
        found = [
            process.pid
            for process in processes.descendants(self.process.pid)
            if b"spawn_main" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        ]
        assert len(found) == 1
        return found[0]

    def said(self) -> str:
        return (self.folder / "worker.log").read_text()

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def run(self) -> dg.DagsterRun:
        return self.instance.get_runs()[0]

    def wait(self) -> dg.DagsterRunStatus:
        self.process.wait(60)
        return self.run().status


def wait_until(true: Callable[[], Any], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def worker(tmp_path: Path, home: Path) -> Iterator[Worker]:
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}")
    worker = Worker(tmp_path / "dagster")
    yield worker
    worker.let_go()
    if worker.process.poll() is None:
        worker.process.kill()
        worker.process.wait()
    for job in worker.jobs():
        attach(job).cancel()
    worker.instance.dispose()
    worker.log.close()


@pytest.mark.slow
def test_a_killed_step_worker_finds_its_job_again(worker: Worker):
    worker.wait_for_job()
    os.kill(worker.step(), signal.SIGKILL)
    wait_until(lambda: "STEP_RESTARTED" in worker.said() or worker.process.poll() is not None)
    worker.let_go()
    assert worker.wait() is dg.DagsterRunStatus.SUCCESS
    assert len(worker.jobs()) == 1  # the body ran once


@pytest.mark.slow
def test_terminate_cancels_the_job_and_the_run_ends_canceled(worker: Worker):
    job = worker.wait_for_job()
    worker.instance.report_run_canceling(worker.run())
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() is dg.DagsterRunStatus.CANCELED
    assert attach(job).status() is JobStatus.CANCELLED
    assert len(worker.jobs()) == 1  # its retry policy did not run it again


@pytest.mark.slow
def test_a_worker_that_is_moved_elsewhere_leaves_its_job_running(worker: Worker):
    job = worker.wait_for_job()
    worker.process.send_signal(signal.SIGTERM)
    worker.wait()
    assert attach(job).status() is JobStatus.RUNNING
    assert f"detached: job {job} goes on" in worker.said()
    worker.let_go()
    assert attach(job).result(timeout=60) == job


# ---- the example -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_trains_on_sixteen_chips_and_leaves_nothing_in_its_folder(tmp_path: Path):
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    ran = subprocess.run([sys.executable, str(EXAMPLE)], cwd=folder, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for host in range(4):
        assert f"[host {host}] joined with 4 of 16 chips" in ran.stdout
    assert "[host 0] metrics step 5: loss=" in ran.stdout
    assert "running: 4 hosts" in ran.stdout
    assert float(re.search(r"result   accuracy (\d+\.\d)%", ran.stdout)[1]) > 95
    assert "model │ cost: $0.00 on this machine; on Cloud TPU v5litepod-16" in ran.stdout
    assert "DEBUG" not in ran.stdout + ran.stderr
    assert not list(folder.iterdir())
