"""The detached pattern and the reaper: a run submits and is over, a sensor looks, another run finishes."""

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.test_utils import create_run_for_test

from dagster_kinetic import (
    HostContext,
    KineticResource,
    KineticRunConfig,
    build_kinetic_completion_sensor,
    build_kinetic_reaper_sensor,
    dagster_plus_branches,
    kinetic_asset,
    kinetic_multi_asset,
)
from dagster_kinetic.resource.config import TAG
from dagster_kinetic.sensors import branches, completion
from dagster_kinetic.step.ticket import FINISHED, TICKET, WAITING, WAITS, Ticket, tickets_of
from kinetic_orchestration import JobStatus, attach
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.protocol import names, wire
from tests.dagster_kinetic.dagster_plus import TOKEN, Organization, dagster_plus
from tests.dagster_kinetic.sensors import tickets
from tests.dagster_kinetic.stored import messages
from tests.support import bucket

pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the file for which the jobs of these tests wait."""
    monkeypatch.setenv("GATE", str(tmp_path))
    return tmp_path


class Training(dg.Config):
    factor: float = 2.0


weeks = dg.StaticPartitionsDefinition(["w1", "w2"])


@kinetic_asset(
    accelerator="cpu", detached=True, partitions_def=weeks, check_specs=[dg.AssetCheckSpec("sound", asset="ranker")]
)
def ranker(host: HostContext, config: Training):
    deadline = time.monotonic() + 90
    while not Path(os.environ["GATE"], "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    print("trained on", host.partition_key)
    return dg.MaterializeResult(
        value=config.factor * 2,
        metadata={"week": host.partition_key},
        check_results=[dg.AssetCheckResult(check_name="sound", passed=True)],
    )


@dg.asset(partitions_def=weeks)
def report(ranker: float) -> str:
    return f"ranked {ranker}"


@kinetic_asset(accelerator="cpu", detached=True)
def broken(host: HostContext):
    folder = Path(host.checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tries = len(list(folder.iterdir()))
    (folder / str(tries)).touch()
    if tries < 1:
        raise KeyError("no such column")
    return tries


class Daemon:
    """The part of Dagster's daemon that runs a sensor: ticks, with its cursor, and a run for each new key."""

    def __init__(self, instance: dg.DagsterInstance, *assets: dg.AssetsDefinition) -> None:
        self.instance = instance
        self.assets = assets
        self.sensor = build_kinetic_completion_sensor()
        self.definitions = dg.Definitions(
            list(assets), sensors=[self.sensor], resources={"kinetic": KineticResource()},
            executor=dg.in_process_executor,
        )  # fmt: skip
        self.cursor: str | None = None
        self.keys: set[str] = set()
        self.finished: list[dg.ExecuteInProcessResult] = []
        self.reason: Any = None

    def submit(self, **given: Any) -> dg.DagsterRun:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=self.instance, **given)
        assert result.success
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return run

    def tick(self, *, commit: bool = True, fresh: bool = False) -> dg.SensorResult:
        if fresh:  # another process
            self.sensor = build_kinetic_completion_sensor()
        context = dg.build_sensor_context(
            self.instance, cursor=self.cursor, repository_def=self.definitions.get_repository_def(),
            resources=self.definitions.resources,
        )  # fmt: skip
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        for request in result.run_requests or ():
            if request.run_key not in self.keys:
                self.keys.add(request.run_key)
                self.finished.append(self.run(request))
        if commit:
            self.cursor = result.cursor
        self.reason = result.skip_reason
        return result

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=self.instance, run_config=request.run_config, tags=dict(request.tags),
            asset_selection=list(request.asset_selection or ()), partition_key=request.partition_key,
            raise_on_error=False,
        )  # fmt: skip

    def reexecuted(self, result: dg.ExecuteInProcessResult) -> Any:
        """Re-execute like the UI's button, with all tags of the run that failed."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        failed = self.instance.get_run_by_id(result.run_id)
        assert failed is not None
        run = self.instance.create_run_for_job(
            job, parent_run_id=failed.run_id, root_run_id=failed.run_id, tags=failed.tags,
            asset_selection=failed.asset_selection,
        )  # fmt: skip
        return execute_run(InMemoryJob(job), run, self.instance, raise_on_error=False)

    def tick_until_finished(self, count: int = 1) -> None:
        deadline = time.monotonic() + 60
        while len(self.finished) < count:
            assert time.monotonic() < deadline, self.reason
            self.tick()
            time.sleep(0.2)


def ticket_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Ticket:
    [ticket] = tickets_of(instance, run.run_id).values()
    return ticket


@pytest.mark.slow
def test_a_run_submits_and_another_one_finishes_with_its_config_partition_checks_and_what_comes_after(instance, gate):
    daemon = Daemon(instance, ranker, report)
    run = daemon.submit(partition_key="w2", run_config={"ops": {"ranker": {"config": {"factor": 3.0}}}})
    assert instance.get_latest_materialization_event(ranker.key) is None
    assert run.tags[WAITS] == WAITING
    assert not attach(ticket_of(instance, run).job).status().final

    told: list[Any] = []
    deadline = time.monotonic() + 60
    while [event.metadata["kinetic/status"].value for event in told][-1:] != ["RUNNING"]:
        assert time.monotonic() < deadline
        told.extend(daemon.tick().asset_events)
    assert daemon.tick().asset_events == []  # each state is told once, on its asset
    assert {event.partition for event in told} == {"w2"}
    assert "1 jobs have not ended" in str(daemon.reason) and daemon.finished == []
    (gate / "go").touch()
    daemon.tick_until_finished()

    [result] = daemon.finished
    assert result.success and result.output_for_node("report") == "ranked 6.0"
    [made] = result.asset_materializations_for_node("ranker")
    assert (made.partition, made.metadata["week"].value) == ("w2", "w2")
    assert made.metadata["kinetic/job_id"].value == ticket_of(instance, run).job
    assert made.metadata["kinetic/where"].value == "this machine's CPU"
    [check] = result.get_asset_check_evaluations()
    assert check.passed
    daemon.tick()
    again = instance.get_run_by_id(run.run_id)
    assert again.tags[WAITS] == FINISHED
    assert "no job of a detached asset" in str(daemon.tick().skip_reason)


@pytest.mark.slow
@pytest.mark.turn(9)
def test_a_tick_that_was_cut_off_is_done_again_and_nothing_runs_twice(instance, gate):
    daemon = Daemon(instance, ranker)
    (gate / "go").touch()
    daemon.submit(partition_key="w1")
    deadline = time.monotonic() + 60
    while not daemon.finished:
        assert time.monotonic() < deadline
        daemon.tick(commit=False, fresh=True)
    for _ in range(3):
        daemon.tick(fresh=True)
    assert len(daemon.finished) == 1
    [made] = instance.fetch_materializations(ranker.key, limit=5).records
    assert made.partition_key == "w1"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_failed_job_is_a_failed_run_and_re_execution_submits_again_with_its_checkpoints(instance):
    daemon = Daemon(instance, broken)
    first = ticket_of(instance, daemon.submit())
    daemon.tick_until_finished()
    [result] = daemon.finished
    assert not result.success
    assert "no such column" in result.get_step_failure_events()[0].step_failure_data.error.to_string()
    assert instance.get_run_by_id(result.run_id).status is dg.DagsterRunStatus.FAILURE

    again = daemon.reexecuted(result)
    assert again.success
    second = ticket_of(instance, instance.get_run_by_id(again.run_id))
    assert second.job != first.job and (second.run, second.step) == (first.run, first.step)
    daemon.tick_until_finished(2)
    assert daemon.finished[1].output_for_node("broken") == 1


def test_a_job_whose_records_went_before_somebody_came_for_it_is_submitted_again_by_a_re_execution(instance):
    def quick(host: HostContext):
        return host.host_count

    daemon = Daemon(instance, kinetic_asset(accelerator="cpu", detached=True)(quick))
    first = attach(ticket_of(instance, daemon.submit()).job)
    first.result(timeout=60)
    store = first._job.store
    reaper._forget(store, first.job_id, [entry.name for entry in store.list(names.job(first.job_id))])
    daemon.tick_until_finished()
    [result] = daemon.finished
    assert "KINETIC_RETENTION" in result.get_step_failure_events()[0].step_failure_data.error.to_string()
    assert daemon.reexecuted(result).success
    daemon.tick_until_finished(2)
    assert daemon.finished[1].output_for_node("quick") == 1


def test_a_run_loads_its_settings_once(instance, monkeypatch):
    def quick(host: HostContext):
        return host.host_count

    daemon, loads, load = Daemon(instance, kinetic_asset(accelerator="cpu", detached=True)(quick)), [], settings.load
    monkeypatch.setattr(settings, "load", lambda *args, **given: loads.append(given) or load(*args, **given))
    job = attach(ticket_of(instance, daemon.submit()).job)
    assert len(loads) == 2  # of the run, and of `attach`
    job.result(timeout=60)
    run = daemon.run

    def counted(request: Any) -> Any:
        loads.clear()
        finished = run(request)
        assert len([given for given in loads if "store" in given]) == 1  # others are for the prices, in its reports
        return finished

    daemon.run = counted
    daemon.tick_until_finished()
    assert daemon.finished[0].output_for_node("quick") == 1


def test_a_retry_policy_submits_again_too(instance):
    retried = kinetic_asset(accelerator="cpu", detached=True, retry_policy=dg.RetryPolicy(max_retries=1))(broken_once)
    daemon = Daemon(instance, retried)
    daemon.submit()
    daemon.tick_until_finished(2)
    first, second = daemon.finished
    assert first.success and first.asset_materializations_for_node("broken_once") == []
    assert second.output_for_node("broken_once") == 1


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("on_conflict", ["return", "error"])
def test_an_input_that_has_changed_since_the_job_was_submitted_is_told_or_refused(instance, on_conflict):
    now = [1]

    @dg.asset
    def numbers() -> int:
        return now[0]

    @kinetic_asset(
        accelerator="cpu", detached=True, on_conflict=on_conflict, retry_policy=dg.RetryPolicy(max_retries=2)
    )
    def doubled(numbers: int) -> int:
        return 2 * numbers

    daemon = Daemon(instance, numbers, doubled)
    job = ticket_of(instance, daemon.submit()).job
    now[0] = 5
    dg.materialize([numbers], instance=instance)  # before the second run loads it
    daemon.tick_until_finished()
    [result] = daemon.finished
    before = f"job {job}, which was submitted before with another value of numbers, and"
    if on_conflict == "return":
        assert result.output_for_node("doubled") == 2
        assert any(f"has the value of {before} has ended" in line for line in messages(instance, result))
        return
    assert not result.success
    [failure] = [event.step_failure_data.error.to_string() for event in result.get_step_failure_events()]
    assert f"this step has {before} on_conflict is 'error': its value is not taken" in failure
    assert "materialize it anew" in failure and attach(job).result() == 2
    again = daemon.reexecuted(result)  # means the same job
    assert not again.success
    daemon.submit()  # anew
    daemon.tick_until_finished(2)
    assert daemon.finished[1].output_for_node("doubled") == 10


def broken_once(host: HostContext):
    folder = Path(host.checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tries = len(list(folder.iterdir()))
    (folder / str(tries)).touch()
    if tries < 1:
        raise KeyError("no such column")
    return tries


def test_a_cancelled_job_is_a_failed_run_that_says_so(instance, gate):
    daemon = Daemon(instance, ranker)
    run = daemon.submit(partition_key="w1")
    attach(ticket_of(instance, run).job).cancel("too expensive")
    daemon.tick_until_finished()
    [result] = daemon.finished
    assert "too expensive" in result.get_step_failure_events()[0].step_failure_data.error.to_string()
    again = daemon.reexecuted(result)  # it was ended for good
    assert "too expensive" in again.get_step_failure_events()[0].step_failure_data.error.to_string()
    anew = ticket_of(instance, daemon.submit(partition_key="w1"))
    assert anew.job != ticket_of(instance, run).job and not attach(anew.job).status().final
    attach(anew.job).cancel()


@pytest.mark.slow
@pytest.mark.turn(4)
def test_many_jobs_are_looked_at_in_one_tick_and_those_that_ended_are_finished(instance, gate, monkeypatch):
    monkeypatch.setattr(completion, "PAGE", 2)
    days = dg.StaticPartitionsDefinition([f"d{number}" for number in range(5)])

    @kinetic_asset(accelerator="cpu", detached=True, partitions_def=days)
    def small(host: HostContext):
        return host.partition_key

    daemon = Daemon(instance, small)
    for number in range(5):
        daemon.submit(partition_key=f"d{number}")
    daemon.tick_until_finished(5)
    assert {result.output_for_node("small") for result in daemon.finished} == set(days.get_partition_keys())
    daemon.tick()
    assert json.loads(daemon.cursor) == {"asked": [], "told": {}, "next": ""}


@pytest.mark.slow
@pytest.mark.turn(9)
def test_a_mistake_that_one_job_brings_to_light_stops_no_other_and_is_told(instance, monkeypatch, capsys):
    days = dg.StaticPartitionsDefinition(["good", "bad"])

    @kinetic_asset(accelerator="cpu", detached=True, partitions_def=days)
    def small(host: HostContext):
        return host.partition_key

    daemon = Daemon(instance, small)
    _, bad = (ticket_of(instance, daemon.submit(partition_key=day)).job for day in ("good", "bad"))
    step, looks = Follower.step, []

    def mistaken(self, emit=None):
        looks.append(self.job.job_id)
        if self.job.job_id == bad:
            raise KeyError("of no store")
        return step(self, emit)

    with monkeypatch.context() as patch:
        patch.setattr(Follower, "step", mistaken)
        patch.setattr(completion, "FIRST_PAUSE", 3600.0)  # for as long as a slow machine may take
        daemon.tick_until_finished()
        assert [result.output_for_node("small") for result in daemon.finished] == ["good"]
        with contextlib.suppress(UsageError):  # a tick that could do nothing else
            daemon.tick()
        daemon.tick()
        assert looks.count(bad) == 2  # the next time after a while
    assert attach(bad).result(timeout=120) == "bad"
    said = capsys.readouterr().err
    for told in (
        f"job {bad} of run",
        "KeyError('of no store')",
        "again at the next tick",
        "in mistaken",
        "Please report",
    ):
        assert told in said
    daemon.tick(fresh=True)
    assert [result.output_for_node("small") for result in daemon.finished] == ["good", "bad"]


def test_a_store_of_another_container_is_refused_with_the_reason(instance, gate):
    daemon = Daemon(instance, ranker)
    run = daemon.submit(partition_key="w1")
    ticket = ticket_of(instance, run)
    tickets.logged(instance, run, replace(ticket, store="/folder/of/another/container"))
    with pytest.raises(UsageError, match=r"cannot be seen from that of this sensor.*gs://"):
        daemon.tick()
    attach(ticket.job).cancel()


def test_tags_that_a_run_was_launched_with_open_no_store_and_start_nothing(instance, tmp_path):
    """A user who may launch a run chooses its tags: a job of their own, in their store, with a digest that is right."""
    theirs = KineticResource(store=str(tmp_path / "theirs"), deployment="theirs").submit(int, accelerator="cpu")
    assert theirs.result() == 0
    store = theirs._job.store
    for prefix in (names.intents(theirs.job_id), names.verdicts(theirs.job_id)):
        for entry in list(store.list(prefix)):
            store.delete(entry.name)  # whoever looks at it now, and believes it, runs it
    told = {
        "job": theirs.job_id, "assets": ["ranker"], "run": "r", "step": "ranker", "spec": theirs._job.spec_digest,
        "store": store.url.removesuffix("/theirs"), "deployment": "theirs",
    }  # fmt: skip
    tags = {WAITS: WAITING, f"{TICKET}ranker": json.dumps(told)}
    forged = create_run_for_test(instance, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    daemon = Daemon(instance, ranker)
    with pytest.raises(UsageError, match=f"run {forged.run_id} says by its tag .* its event log has none"):
        daemon.tick()
    assert not list(store.list(names.intents(theirs.job_id))) and daemon.finished == []
    assert "no job of a detached asset" in str(daemon.tick().skip_reason)  # and it is told once


def test_a_submission_that_failed_leaves_nothing_that_the_sensor_takes_for_a_job(instance):
    lock = threading.Lock()

    @kinetic_asset(accelerator="cpu", detached=True)
    def cannot_travel():
        return lock.locked()

    daemon = Daemon(instance, cannot_travel)
    job = daemon.definitions.resolve_implicit_global_asset_job_def()
    failed = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not failed.success
    assert not daemon.tick().run_requests
    assert instance.get_run_by_id(failed.run_id).tags[f"{TICKET}cannot_travel"] == FINISHED
    assert not daemon.tick(fresh=True).run_requests
    assert instance.get_run_by_id(failed.run_id).tags[WAITS] == FINISHED
    assert "no job of a detached asset is under way" in str(daemon.tick().skip_reason)


@pytest.mark.parametrize("option", ["store", "deployment"])
def test_a_detached_asset_has_no_store_of_its_own(option):
    with pytest.raises(UsageError, match=rf"give {option}= to the resource"):
        kinetic_asset(accelerator="cpu", detached=True, **{option: "elsewhere"})(broken_once)


def test_called_as_a_function_it_waits(gate):
    (gate / "go").touch()
    context = dg.build_asset_context(partition_key="w1")
    [made] = list(ranker(context, config=Training(factor=4), kinetic=KineticResource()))
    assert made.value == 8


@kinetic_multi_asset(
    accelerator="cpu",
    detached=True,
    outs={"weights": dg.AssetOut(), "score": dg.AssetOut(metadata={"of": "weights"})},
    internal_asset_deps={"weights": set(), "score": {dg.AssetKey("weights")}},
    check_specs=[dg.AssetCheckSpec("positive", asset="score")],
)
def pair(host: HostContext):
    return [1, 2], dg.MaterializeResult(
        asset_key="score",
        value=0.5,
        check_results=[dg.AssetCheckResult(check_name="positive", asset_key="score", passed=True)],
    )


@dg.asset
def after(weights: list[int], score: float) -> float:
    return sum(weights) * score


@pytest.mark.slow
@pytest.mark.turn(7)
def test_many_assets_of_one_job_are_finished_by_one_run_with_what_comes_after_them(instance):
    daemon = Daemon(instance, pair, after)
    run = daemon.submit()
    assert ticket_of(instance, run).assets == ("score", "weights")
    daemon.tick_until_finished()
    [result] = daemon.finished
    assert result.success and result.output_for_node("after") == 1.5
    made = {event.asset_key.to_user_string() for event in result.asset_materializations_for_node("pair")}
    assert made == {"weights", "score"}
    assert [check.check_name for check in result.get_asset_check_evaluations()] == ["positive"]


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_part_of_them_alone(instance):
    specs = [dg.AssetSpec("east"), dg.AssetSpec("west")]

    @kinetic_multi_asset(accelerator="cpu", detached=True, specs=specs, can_subset=True)
    def parts(selected):
        return [dg.MaterializeResult(asset_key=name) for name in selected]

    daemon = Daemon(instance, parts)
    run = daemon.submit(asset_selection=[dg.AssetKey("east")])
    assert ticket_of(instance, run).assets == ("east",)
    daemon.tick_until_finished()
    assert made_in(daemon.finished[0]) == {"east"}


@pytest.mark.slow
@pytest.mark.turn(6)
def test_what_has_no_value_is_made_and_what_may_be_left_out_is_not(instance):
    specs = [dg.AssetSpec("said"), dg.AssetSpec("unsaid"), dg.AssetSpec("left_out", skippable=True)]

    @kinetic_multi_asset(accelerator="cpu", detached=True, specs=specs)
    def parts():
        return dg.MaterializeResult(asset_key="said")

    daemon = Daemon(instance, parts)
    daemon.submit()
    daemon.tick_until_finished()
    assert made_in(daemon.finished[0]) == {"said", "unsaid"}


def made_in(result):
    return {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_body_that_gives_less_than_its_assets_is_a_run_that_fails(instance):
    @kinetic_multi_asset(accelerator="cpu", detached=True, outs={"one": dg.AssetOut(), "two": dg.AssetOut()})
    def too_few():
        return dg.Output(1, output_name="one")

    daemon = Daemon(instance, too_few)
    daemon.submit()
    daemon.tick_until_finished()
    [result] = daemon.finished
    assert (
        "the body returned no value of two" in result.get_step_failure_events()[0].step_failure_data.error.to_string()
    )
    assert not result.get_asset_materialization_events()


def test_what_a_launch_says_holds_for_the_run_that_finishes_too(instance):
    daemon = Daemon(instance, broken)
    run = daemon.submit(tags=KineticRunConfig(accelerator="v5e-1").to_tags())
    assert attach(ticket_of(instance, run).job).accelerator == "v5e-1"
    daemon.tick_until_finished()
    finishing = instance.get_run_by_id(daemon.finished[0].run_id)
    assert finishing.tags[TAG] == run.tags[TAG]


def test_output_required_is_refused():
    with pytest.raises(UsageError, match="detached=True"):
        kinetic_asset(accelerator="cpu", detached=True, output_required=True)(broken_once)


# ---- the reaper --------------------------------------------------------------------------------------------------


def sleeps() -> None:
    time.sleep(120)


def reaped(instance: dg.DagsterInstance, kinetic: KineticResource, cursor: str | None = None, **given: Any) -> Any:
    sensor = build_kinetic_reaper_sensor(**given)
    return sensor(dg.build_sensor_context(instance, cursor=cursor, resources={"kinetic": kinetic}))


@pytest.mark.slow
def test_the_reaper_says_what_it_removed_and_when_there_is_nothing(instance, monkeypatch, home):
    from kinetic_orchestration.jobs.following import actions
    from kinetic_orchestration.protocol.system import processes

    kinetic = KineticResource()
    assert "nothing to remove" in reaped(instance, kinetic).skip_reason.skip_message
    handle = kinetic.submit(sleeps, accelerator="cpu")
    deadline = time.monotonic() + 60
    while not list(home.glob(".reaped-*")):  # by the submission, beside it
        assert time.monotonic() < deadline
        time.sleep(0.02)
    while handle.status() is not JobStatus.RUNNING:  # else who starts them may be stopped, too
        assert time.monotonic() < deadline
        time.sleep(0.02)
    placement = f"KINETIC_PLACEMENT={home / 'run' / f'{handle.job_id}-1'}"
    for process in processes.marked(placement):  # or they may end by themselves before anybody looks
        processes.send(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    actions.close(handle._job, 1, "infrastructure", "for the test")  # and nobody follows the job
    told = reaped(instance, kinetic).skip_reason.skip_message
    assert "removed 1" in told and "its attempt has its verdict" in told
    handle.cancel()


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_closed_branch_deployment_loses_its_jobs_and_no_other_does(instance):
    prod = KineticResource(deployment="prod")
    with dagster_plus(Organization({"pr-7": "OPEN", "pr-8": "OPEN", "by-hand": None})) as organization:
        branches = dagster_plus_branches(organization.url + "/", TOKEN)
        jobs = {
            name: KineticResource(deployment=name).submit(sleeps, accelerator="cpu")
            for name in (*organization.branches, "prod")
        }
        first = reaped(instance, prod, branches=branches)
        assert json.loads(first.cursor) == {"branches": ["pr-7", "pr-8"]}
        assert "pr-7" not in first.skip_reason.skip_message
        organization.branches["pr-7"] = "MERGED"
        missed = reaped(instance, prod, first.cursor, branches=branches)
        assert json.loads(missed.cursor) == {"branches": ["pr-7", "pr-8"], "missed": ["pr-7"]}
        assert not jobs["pr-7"].status().final  # one answer may be wrong
        second = reaped(instance, prod, missed.cursor, branches=branches)
        assert json.loads(second.cursor) == {"branches": ["pr-8"], "closing": ["pr-7"]}
        assert "branch deployment pr-7 is closed: 1 jobs cancelled" in second.skip_reason.skip_message
        deadline = time.monotonic() + 60
        while not jobs["pr-7"].status().final:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        third = reaped(instance, prod, second.cursor, branches=branches)
        assert json.loads(third.cursor) == {"branches": ["pr-8"]}
        assert not any(jobs[name].status().final for name in ("pr-8", "by-hand", "prod"))
        organization.deleted.add("pr-8")
        fourth = reaped(instance, prod, third.cursor, branches=branches)
        fourth = reaped(instance, prod, fourth.cursor, branches=branches)
        assert "branch deployment pr-8 is closed: 1 jobs cancelled" in fourth.skip_reason.skip_message
    for name in ("by-hand", "prod"):
        jobs[name].cancel()


def test_a_branch_that_cannot_be_cleared_is_kept_and_keeps_no_other(instance, shared_home):
    prod = KineticResource(deployment="prod")
    job = KineticResource(deployment="gone-2").submit(sleeps, accelerator="cpu")
    [folder] = (shared_home / "store").glob("gone-2")
    wrong = folder.with_name("gone-1")
    wrong.write_text("no folder")
    names = {"branches": ["gone-1", "gone-2", "open"], "missed": ["gone-1", "gone-2"]}
    told = reaped(instance, prod, json.dumps(names), branches=lambda: ["open"])
    wrong.unlink()
    assert json.loads(told.cursor) == {"branches": ["open"], "closing": ["gone-1", "gone-2"]}
    said = told.skip_reason.skip_message
    assert (
        "gone-1 is closed, and not all of it could be removed" in said and "gone-2 is closed: 1 jobs cancelled" in said
    )
    again = told
    deadline = time.monotonic() + 60
    while json.loads(again.cursor) != {"branches": ["open"]}:
        assert time.monotonic() < deadline
        again = reaped(instance, prod, again.cursor, branches=lambda: ["open"])
    assert job.status().final


def test_what_was_odd_about_one_answer_closes_nothing(instance):
    prod = KineticResource(deployment="prod")
    cursor = json.dumps({"branches": ["pr-7", "pr-8"], "missed": ["pr-7", "pr-8"]})
    with pytest.raises(UsageError, match="no branch deployment is said to be open, and 2 were: pr-7, pr-8"):
        reaped(instance, prod, cursor, branches=list)
    seen = reaped(instance, prod, cursor, branches=lambda: ["pr-7", "pr-8"])
    assert json.loads(seen.cursor) == {"branches": ["pr-7", "pr-8"]}
    only = reaped(instance, prod, json.dumps({"branches": ["pr-9"]}), branches=list)  # it may well be the last one
    assert json.loads(only.cursor) == {"branches": ["pr-9"], "missed": ["pr-9"]}


def test_a_token_is_read_where_it_is_and_never_shown_nor_sent_elsewhere(monkeypatch):
    with dagster_plus(Organization({"pr-7": "OPEN"})) as organization:
        monkeypatch.setenv("OF_A_TEST", TOKEN + "\n")
        monkeypatch.setenv("ADDRESS_OF_A_TEST", organization.url)
        asks = [
            dagster_plus_branches(dg.EnvVar("ADDRESS_OF_A_TEST"), dg.EnvVar("OF_A_TEST")),
            dagster_plus_branches(organization.url, f" {TOKEN}\n"),
        ]
        assert [ask() for ask in asks] == [["pr-7"], ["pr-7"]]
        monkeypatch.delenv("OF_A_TEST")
        with pytest.raises(UsageError, match="the variable OF_A_TEST, which has the token of Dagster"):
            asks[0]()
        for wrong in (f"user:SECRET\nX: {TOKEN}", "", "user:SÉCRET"):
            with pytest.raises(UsageError, match="it is a line of printable ASCII") as caught:
                dagster_plus_branches(organization.url, wrong)()
            assert "CRET" not in str(caught.value)
        organization.answer = (307, "text/plain", b"elsewhere")
        organization.headers = {"Location": organization.url + "/graphql"}
        with pytest.raises(UsageError, match="307"):
            asks[1]()
        organization.answer = (302, "text/plain", b"elsewhere")
        with pytest.raises(UsageError, match="302"):
            asks[1]()
        assert organization.asked == 4
    for url in ("http://my-org.dagster.cloud", "my-org.dagster.cloud", "ftp://127.0.0.1", "https://"):
        with pytest.raises(UsageError, match="is no address to which a token is sent"):
            dagster_plus_branches(url, TOKEN)()


def test_what_is_asked_of_dagster_plus_is_what_its_own_client_asks():
    """Dagster+'s own client also accepts the server of these tests."""
    from dagster_rest_resources.__generated__.enums import PullRequestStatus
    from dagster_rest_resources.api.deployment import DgApiDeploymentApi
    from dagster_rest_resources.gql_client import DagsterPlusGraphQLClient

    with dagster_plus(Organization({"pr-7": "OPEN", "pr-8": "CLOSED", "by-hand": None})) as organization:
        client = DagsterPlusGraphQLClient(url=organization.url, api_token=TOKEN, organization="my-org", deployment=None)
        client.http_client.timeout = 120
        theirs = DgApiDeploymentApi(client)
        assert [each.name for each in theirs.list_deployments().items] == ["prod"]
        listed = theirs.list_branch_deployments(pull_request_status=PullRequestStatus.OPEN)
        client.http_client.close()
        assert [each.name for each in listed.items] == dagster_plus_branches(organization.url, TOKEN)() == ["pr-7"]


@pytest.mark.parametrize(
    "answer, says",
    [
        ((401, "text/plain", b"Unauthorized"), "401.*Unauthorized.*a user token"),
        ((200, "text/html", b"<html>log in</html>"), "does not tell.*the address of the organization"),
        ((200, "application/json", b'{"errors": [{"message": "no such field"}]}'), "no such field"),
        ((200, "application/json", b'{"data": {"branchDeployments": null}}'), "does not tell"),
    ],
)
def test_an_organization_that_does_not_tell_its_branches_loses_nothing(instance, answer, says):
    with dagster_plus(Organization({"pr-7": "OPEN"}, answer=answer)) as organization:
        ask = dagster_plus_branches(organization.url, TOKEN)
        with pytest.raises(UsageError, match=says):
            reaped(instance, KineticResource(), json.dumps({"branches": ["pr-7"]}), branches=ask)
        organization.answer = None
        assert ask() == ["pr-7"]
        with pytest.raises(UsageError, match="401"):
            dagster_plus_branches(organization.url, "another token")()
    with pytest.raises(UsageError, match="does not tell its branch deployments, so nothing of theirs is removed"):
        ask()  # it is away


def test_more_branches_than_are_asked_for_are_an_error_and_none_of_them_is_said_to_be_closed(monkeypatch):
    monkeypatch.setattr(branches, "MOST_BRANCHES", 3)
    with dagster_plus(Organization({f"pr-{number}": "OPEN" for number in range(3)})) as organization:
        with pytest.raises(UsageError, match="cannot be told which of them are closed"):
            dagster_plus_branches(organization.url, TOKEN)()
        del organization.branches["pr-0"]
        assert dagster_plus_branches(organization.url, TOKEN)() == ["pr-1", "pr-2"]


def test_a_resource_of_another_kind_is_refused(instance):
    with pytest.raises(UsageError, match="no KineticResource"):
        sensor = build_kinetic_reaper_sensor()
        sensor(dg.build_sensor_context(instance, resources={"kinetic": "text"}))


@pytest.mark.slow
@pytest.mark.turn(7)
def test_the_run_that_finishes_a_job_holds_to_what_the_sensor_saw(
    instance: dg.DagsterInstance, gate: Path, shared_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have another home. Meanwhile somebody who can write to the bucket has made a preemption of a success."""
    bucket.pretend(monkeypatch)
    monkeypatch.setenv("KINETIC_STORE", str(shared_home / "store"))
    (gate / "go").touch()
    daemon = Daemon(instance, ranker)
    ticket = ticket_of(instance, daemon.submit(partition_key="w1"))
    store, run = attach(ticket.job)._job.store, daemon.run

    def runs_later(request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        said = {"kind": wire.ABORTED, "writer": "x", "time": 0.0, "cause": wire.PREEMPTION, "host": 0}
        store.put(names.verdict(ticket.job, 1), wire.encode(said))
        monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "another"))
        return run(request)

    monkeypatch.setattr(daemon, "run", runs_later)
    daemon.tick_until_finished()
    [result] = daemon.finished
    [failure] = [event for event in result.all_events if event.is_step_failure]
    assert "somebody has changed" in str(failure.step_failure_data.error)
    assert store.read(names.intent(ticket.job, 2)) is None
