"""One job as one step: what reaches the hosts, what comes back, what is told of it, and which job a retry means."""

import re

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from dagster_kinetic import KineticResource, kinetic_asset
from kinetic_orchestration import JobStatus, attach
from kinetic_orchestration.platforms.local.backend import LocalBackend
from tests.dagster_kinetic import pipelines
from tests.dagster_kinetic.stored import captured, made_of, messages, plotted

RESOURCES = {"kinetic": KineticResource()}
pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.mark.slow
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
    text = captured(instance, result)
    for rank in range(2):
        assert f"[host {rank}] adding on tuesday as local rank {rank}\n" in text
    assert "running: 1 host, 2 processes" in messages(instance, result)
    origin = attach(made.metadata["kinetic/job_id"].value).origin
    assert origin == {"orchestrator": "dagster", "asset": "total", "partition": "tuesday", "run": result.run_id}


@pytest.mark.slow
@pytest.mark.turn(5)
def test_what_ran_on_every_host_is_in_the_metadata_the_captured_output_the_log_and_the_observations(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    assert result.output_for_node("slice_of_four") == 4
    values = made_of(result, "slice_of_four")
    assert values["kinetic/job_id"].startswith("job-")
    assert (values["kinetic/accelerator"], values["~kinetic/attempts"]) == ("v5e-16", 1)
    assert values["~kinetic/held_seconds"] > 0 and values["~kinetic/chip_hours"] > 0
    assert values["~kinetic/cost_usd_estimate"] == 0  # an emulated slice costs nothing
    assert "v5litepod-16" in values["kinetic/cost"]

    text = captured(instance, result)
    for host in range(4):
        assert f"[host {host}] here is {host} of 4\n" in text
    said = messages(instance, result)
    [packaging] = [index for index, line in enumerate(said) if line.startswith("packaging slice_of_four: ")]
    submitting = next(index for index, line in enumerate(said) if line.startswith("submitting job job-"))
    runs = next(index for index, line in enumerate(said) if "runs slice_of_four on v5e-16" in line)
    assert packaging < submitting < runs
    assert re.search(
        r"files? of code \([\d.]+ \w+\), the call with its arguments \([\d.]+ \w+\) to /", said[submitting]
    )
    assert "running: 4 hosts" in said and any(line.startswith("succeeded") for line in said)
    assert any(line.startswith("cost: $0.00 on this machine") for line in said)

    seen = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    assert [each.asset_key for each in seen] == [dg.AssetKey("slice_of_four")] * len(seen)
    plots = plotted(result)
    ours = [name for name in plots if name.startswith("~")]
    assert plots == ["kinetic/metrics/loss", "loss", "step", *ours] and "~kinetic/cost_usd_estimate" in ours
    last = {name: value.value for name, value in seen[-1].metadata.items() if not name.startswith("~device/")}
    assert last == {"loss": pytest.approx(1 / 3), "step": 2}


def test_an_op_runs_on_accelerators():
    assert pipelines.doubling.execute_in_process().output_for_node("again") == 16


def test_direct_invocation_runs_the_body_as_a_job():
    context = dg.build_asset_context(partition_key="monday")
    made = pipelines.total(context, [1, 2], config=pipelines.Training(factor=4), kinetic=KineticResource())
    assert (made.value, made.metadata["count"]) == (12, 2)
    assert made.check_results[0].passed


# ---- failures, and tries after them ------------------------------------------------------------------------


def test_a_failure_shows_the_traceback_of_its_host_and_where_the_log_is(instance):
    causes: list[BaseException | None] = []

    @dg.failure_hook
    def hears(context: dg.HookContext) -> None:
        causes.append(context.op_exception.__cause__)

    assets = [pipelines.broken.with_hooks({hears})]
    result = dg.materialize(assets, instance=instance, resources=RESOURCES, raise_on_error=False)
    assert isinstance(causes[0], KeyError)  # the user's own exception
    [failure] = result.get_step_failure_events()
    assert failure.step_failure_data.error.cls_name == "Failure"
    error = failure.step_failure_data.error.cause  # the user's own
    text = error.to_string()
    assert error.cls_name == "KeyError"
    assert "Raised on host 0 of job job-" in text
    assert 'raise KeyError("no such column")' in text and "pipelines.py" in text
    assert "kinetic-orchestration logs job-" in text
    assert "going wrong" in captured(instance, result)


def test_a_retry_after_a_failure_is_a_new_job_with_the_same_checkpoints(instance):
    policy = dg.RetryPolicy(max_retries=1)
    asset = kinetic_asset(accelerator="cpu", retry_policy=policy)(pipelines.fails_once)
    result = dg.materialize([asset], instance=instance, resources=RESOURCES)
    first, second = result.output_for_node("fails_once")
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] != second[1:]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("tags", [{"dagster/is_resume_retry": "true"}, {}], ids=["resumed", "run anew"])
def test_a_resumed_run_goes_on_where_its_parent_failed_and_a_new_one_begins(instance, tags):
    job = dg.Definitions(
        [pipelines.broken], resources=RESOURCES, executor=dg.in_process_executor
    ).resolve_implicit_global_asset_job_def()
    first = job.execute_in_process(instance=instance, raise_on_error=False)
    run = instance.create_run_for_job(job, parent_run_id=first.run_id, root_run_id=first.run_id, tags=tags)
    assert execute_run(InMemoryJob(job), run, instance, raise_on_error=False).success is bool(tags)


def test_an_asset_whose_budget_is_used_up_is_refused_and_not_tried_again(instance, monkeypatch):
    monkeypatch.setattr(LocalBackend, "charges", True)  # as a cloud is
    monkeypatch.setenv("KINETIC_BUDGETS", "costly=0USD")
    tries: list[str] = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
    def costly(context: dg.AssetExecutionContext, kinetic: KineticResource):
        tries.append("x")
        return kinetic.run(pipelines.waits, (1, 0), accelerator="cpu", context=context)

    result = dg.materialize([costly], instance=instance, resources=RESOURCES, raise_on_error=False)
    failure = result.failure_data_for_node("costly").error.to_string()
    assert "nothing was submitted: the budget of pipeline costly, $0.00 a month, is used up" in failure
    assert "Once there is a budget again, materialize it anew" in failure
    assert len(tries) == 1


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
def test_a_retry_that_finds_a_job_of_other_arguments_says_so_or_is_refused(instance, tmp_path, ended):
    """Both ways: the value of what was asked for before, which is the default, or no value at all."""
    tries: list[str] = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
    def adopts(context: dg.AssetExecutionContext, kinetic: KineticResource):
        tries.append("x")
        for on_conflict in ("return", "error"):
            more = {"context": context, "key": on_conflict, "on_conflict": on_conflict}
            job = kinetic.submit(pipelines.waits, (len(tries), 0 if ended else 60), accelerator="cpu", **more)
            if ended:
                assert job.result() == 1, "that of the first try"
            elif on_conflict == "return" and len(tries) == 2:
                job.cancel("the test has seen it")
        raise RuntimeError("lost its worker")

    result = dg.materialize([adopts], instance=instance, resources=RESOURCES, raise_on_error=False)
    assert len(tries) == 2, "no retry would help"
    failure = result.failure_data_for_node("adopts").error.to_string()
    other = r"job (job-\w+), which was submitted before with another value of number"
    refused = re.search(
        rf"this step has {other}, and on_conflict is 'error': (.*) To have .* materialize it anew", failure
    )
    assert refused is not None, failure
    left = attach(refused[1])
    if ended:
        assert left.status() is JobStatus.SUCCEEDED
        assert refused[2].endswith("not taken, and nothing has run.")
    else:  # a step of several jobs may hold it
        assert not left.status().final
        assert f"that job goes on. To end it: kinetic-orchestration cancel {left.job_id}" in refused[2]
        left.cancel()
    [warned] = [text for text in messages(instance, result) if re.search(other, text) and "on_conflict" not in text]
    assert ("has the value of" if ended else "goes on with") in warned


def test_one_process_for_each_processor_where_that_is_asked_for():
    asset = kinetic_asset(accelerator="cpu:2", processes=2)(pipelines.how_many)
    assert asset(dg.build_asset_context(), kinetic=KineticResource()) == "2"
