"""A job's events in Dagster's terms: which are reported, how often, and which remain."""

import io
import math
import sys
import threading
import time

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, kinetic_asset, kinetic_op
from dagster_kinetic.step import events
from dagster_kinetic.step.rate_limit import Paced
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.plan.values import Change, Cursor, Glimpse, Intent
from kinetic_orchestration.protocol import wire
from tests.dagster_kinetic.stored import captured, messages

RESOURCES = {"kinetic": KineticResource()}
pytestmark = pytest.mark.usefixtures("shared_home")


def observations(result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> list[dg.AssetObservation]:
    return [
        entry.dagster_event.asset_observation_data.asset_observation
        for entry in instance.all_logs(result.run_id)
        if entry.is_dagster_event and entry.dagster_event.is_asset_observation
    ]


# ---- a job's assets ----------------------------------------------------------------------------------------


@kinetic_asset(accelerator="v5e-8", partitions_def=dg.StaticPartitionsDefinition(["monday"]))
def reporting(host: HostContext):
    for step in range(200):
        host.log_metrics(step=step, loss=1 / (step + 1), odd=math.nan, accuracy=step / 200)
    return 1


def test_metrics_are_observations_of_their_partition_few_with_the_last_one_always(instance):
    began = time.monotonic()
    result = dg.materialize([reporting], instance=instance, resources=RESOURCES, partition_key="monday")
    seconds = time.monotonic() - began
    seen = observations(result, instance)
    assert 1 <= len(seen) <= seconds / events.OBSERVATION_SECONDS + 2
    assert {each.partition for each in seen} == {"monday"}
    last = seen[-1].metadata
    assert last["step"] == dg.IntMetadataValue(199)
    assert last["loss"] == dg.FloatMetadataValue(1 / 200)
    assert last["odd"] == dg.TextMetadataValue("nan")
    [made] = result.asset_materializations_for_node("reporting")
    assert made.metadata["kinetic/metrics/loss"].value == 1 / 200
    assert len(made.metadata["kinetic/curve/loss"].value) < 1000
    assert made.metadata["kinetic/curves"].value.startswith("![metrics](data:image/svg+xml;base64,")
    assert made.metadata["~kinetic/queued_seconds"].value >= 0
    assert made.metadata["~kinetic/running_seconds"].value > 0
    assert "~kinetic/goodput" not in made.metadata, "nobody told of steps"
    assert made.metadata["kinetic/logs"].value.startswith("kinetic-orchestration logs job-")
    for timer in (thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)):
        timer.join(30)  # the next one, if there is one, begins before it ends
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)], "a timer goes on"


@pytest.mark.slow
@pytest.mark.turn(1)
def test_the_job_of_many_assets_is_told_of_each_and_an_op_has_its_output(instance):
    @dg.multi_asset(specs=[dg.AssetSpec("left"), dg.AssetSpec("right")], can_subset=True)
    def both(context: dg.AssetExecutionContext, kinetic: KineticResource):
        kinetic.run(reports_once, accelerator="cpu", context=context)
        for key in context.selected_asset_keys:
            yield dg.MaterializeResult(key)

    result = dg.materialize([both], instance=instance, resources=RESOURCES)
    assert {each.asset_key.to_user_string() for each in observations(result, instance)} == {"left", "right"}
    for made in result.asset_materializations_for_node("both"):
        assert made.metadata["kinetic/job_id"].value.startswith("job-")
    part = dg.materialize([both], instance=instance, resources=RESOURCES, selection=["right"])
    assert {each.asset_key.to_user_string() for each in observations(part, instance)} == {"right"}

    @dg.job(resource_defs=RESOURCES)
    def alone():
        reporting_op()

    done = alone.execute_in_process(instance=instance)
    [output] = [event for event in done.all_events if event.event_type_value == "STEP_OUTPUT"]
    assert output.event_specific_data.metadata["kinetic/metrics/loss"].value == 0.5
    assert not observations(done, instance)


def reports_once():
    from kinetic_orchestration import current

    current().log_metrics(step=1, loss=0.5)


@kinetic_op(accelerator="cpu")
def reporting_op(host: HostContext):
    host.log_metrics(step=1, loss=0.5)
    return 1


def test_what_was_yielded_already_takes_no_metadata_and_the_log_has_it(instance):
    @dg.multi_asset(specs=[dg.AssetSpec("early")])
    def generating(context: dg.AssetExecutionContext, kinetic: KineticResource):
        yield dg.MaterializeResult("early")
        kinetic.run(reports_once, accelerator="cpu", context=context)

    result = dg.materialize([generating], instance=instance, resources=RESOURCES)
    assert result.success
    assert any(message.startswith("kinetic/job_id: job-") for message in messages(instance, result))


# ---- failures ----------------------------------------------------------------------------------------------


def fails(host: HostContext):
    print("reading | the table")
    host.log_metrics(step=0, loss=0.5)
    if host.host_index == 1:
        raise LookupError("no such column")
    time.sleep(300)


def test_a_failure_tells_what_where_and_what_next_and_keeps_the_users_own_as_its_cause(instance):
    asset = kinetic_asset(accelerator="v5e-16", name="broken")(fails)
    result = dg.materialize([asset], instance=instance, resources=RESOURCES, raise_on_error=False)
    [event] = result.get_step_failure_events()
    data = event.step_failure_data
    assert data.error.cause.cls_name == "LookupError"
    assert "Raised on host 1 of job" in data.error.cause.to_string()
    said = data.user_failure_data.description
    metadata = {name: value.value for name, value in data.user_failure_data.metadata.items()}
    job = metadata["kinetic/job_id"]
    assert said.splitlines()[0] == "fails failed on host 1 of 4: LookupError: no such column"
    assert "The last lines of host 1:\nreading | the table" in said
    assert said.endswith(f"Next: kinetic-orchestration logs {job} --host 1")
    assert metadata["kinetic/host"] == 1
    assert 'raise LookupError("no such column")' in metadata["kinetic/traceback"]
    assert any(text.startswith("failed: error on host 1") for text in messages(instance, result))


def test_a_failure_in_a_test_is_the_users_own():
    asset = kinetic_asset(accelerator="cpu", name="broken")(raises)
    with pytest.raises(LookupError, match="no such column"):
        asset(dg.build_asset_context(), kinetic=KineticResource())


def raises():
    raise LookupError("no such column")


# ---- changes -----------------------------------------------------------------------------------------------


def preempted() -> Change:
    """The change for a preemption, from the rules themselves."""
    verdict = wire.Verdict("closed", "me", 0.0, cause=wire.PREEMPTION, host=2, reason="the node was taken back")
    seen = Glimpse(100.0, Intent(1, "", {}, 0.0, 0.0), verdict, 60.0)
    [change] = lifecycle.advance(Cursor(1, "running"), seen, lifecycle.Policy(hosts=4)).changes
    return change


@pytest.mark.parametrize(
    "change, ran, level, text",
    [
        (Change("queued", "ACCEPTED in us-east5-a", 1), False, "info", "queued: ACCEPTED in us-east5-a"),
        (Change("running", "4 hosts", 1), False, "info", "running: 4 hosts"),
        (Change("running", "4 hosts", 2), True, "info", "resumed: 4 hosts"),
        (Change("succeeded", "", 1), True, "info", "succeeded"),
        (Change("failed", "error on host 0: no", 1), True, "error", "failed: error on host 0: no"),
        (Change("unreachable", "the store", 1), True, "warning", "unreachable: the store"),
        (Change("resuming", "attempt 1 ended (infrastructure); attempt 2 follows", 2), True, "warning",
         "interrupted: attempt 1 ended (infrastructure); attempt 2 follows"),
    ],
)  # fmt: skip
def test_a_change_is_told_in_words_and_by_its_weight(change, ran, level, text):
    assert events.describe(change, ran) == (level, text)


@pytest.mark.parametrize(
    "phases, text",
    [
        (["queued", "cancelled"], "cancelled"),
        (["queued", "provisioning", "failed"], "failed; tearing down: 1 host of cpu"),
        (["running", "resuming", "queued", "cancelled"], "cancelled"),
        (["running", "unreachable", "failed"], "failed; tearing down: 1 host of cpu"),
    ],
)
def test_only_hosts_that_there_were_are_torn_down(instance, phases, text):
    @dg.op
    def tells(context: dg.OpExecutionContext, kinetic: KineticResource):
        job = kinetic.submit(reports_once, accelerator="cpu", context=context)
        with events.Narrator(context, job) as narrator:
            for phase in phases:
                narrator(Change(phase, "", 1))
        job.cancel()

    @dg.job(resource_defs=RESOURCES)
    def telling():
        tells()

    result = telling.execute_in_process(instance=instance)
    [said] = [each for each in messages(instance, result) if each.startswith(phases[-1])]
    assert said == text


def test_a_preemption_is_told_as_one():
    level, text = events.describe(preempted(), True)
    assert level == "warning" and text.startswith(
        "preempted: attempt 1 ended (preemption on host 2: the node was taken"
    )


# ---- the pace ----------------------------------------------------------------------------------------------


def test_so_many_are_told_at_once_and_then_one_a_second_the_newest_by_itself():
    told: list[tuple[float, int, int]] = []
    came = threading.Event()

    def tell(value: int, missed: int) -> None:
        told.append((time.monotonic(), value, missed))
        if value == 99:
            came.set()

    paced = Paced(tell, lambda: 0.2, burst=3)
    began = time.monotonic()
    for value in range(100):
        paced(value)
    assert came.wait(30)  # without any further word
    spent = time.monotonic() - began
    assert [value for _, value, _ in told[:3]] == [0, 1, 2]
    assert len(told) <= 3 + spent / 0.2 + 1
    assert sum(missed for *_, missed in told) + len(told) == 100
    assert told[-1][0] - began >= 0.15
    paced.flush()
    assert told[-1][1] == 99


def test_the_end_does_not_wait():
    told: list[int] = []
    paced = Paced(lambda value, _: told.append(value), lambda: 3600.0)
    paced(1)
    paced(2)
    paced.flush()
    paced.flush()
    assert told == [1, 2]


def test_what_could_not_be_told_in_time_is_told_again_where_it_is_heard():
    tries: list[int] = []

    def tell(value: int, _: int) -> None:
        tries.append(value)
        if len(tries) == 2:
            raise OSError("the database is locked")

    paced = Paced(tell, lambda: 1.0)
    paced(1)
    paced(2)
    deadline = time.monotonic() + 30
    while len(tries) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    paced.flush()
    assert tries == [1, 2, 2]


# ---- lines -------------------------------------------------------------------------------------------------


def test_lines_are_utf8_wherever_the_step_runs(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    events.write("größer 🎉\n")
    assert raw.getvalue().decode() == "größer 🎉\n"


LINES = 1_000_000


@kinetic_asset(accelerator="cpu")
def talkative(host: HostContext):
    import sys

    for start in range(0, LINES, 10_000):
        sys.stdout.write("".join(f"line {number}\n" for number in range(start, start + 10_000)))
    return 0


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(400)
def test_a_million_lines_come_whole_and_in_order(instance):
    result = dg.materialize([talkative], instance=instance, resources=RESOURCES)
    lines = [line for line in captured(instance, result).splitlines() if line.startswith("line ")]
    assert len(lines) == LINES
    assert lines == [f"line {number}" for number in range(LINES)]
