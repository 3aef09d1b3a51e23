"""Tickets that a completion sensor cannot, or need not, do anything with: they keep none of the others waiting."""

import json
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test

from dagster_kinetic import KineticResource, build_kinetic_completion_sensor, kinetic_asset
from dagster_kinetic.resource.config import TAG
from dagster_kinetic.step.ticket import FINISHED, FINISHES, TICKET, WAITING, WAITS, Ticket, tag_of
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import settings
from tests.dagster_kinetic.sensors import tickets

pytestmark = pytest.mark.usefixtures("shared_home")


@kinetic_asset(accelerator="cpu", detached=True)
def known() -> int:
    return 1


@dg.asset
def after(known: int) -> int:
    return known


@dg.asset
def not_held(known: int) -> int:
    return known


@kinetic_asset(accelerator="cpu", detached=True, partitions_def=dg.StaticPartitionsDefinition(["w1"]))
def weekly() -> int:
    return 1


ASSETS = [known, after, not_held, weekly]
RESOURCES = {"kinetic": KineticResource()}


def location(name: str) -> GrpcServerCodeLocationOrigin:
    return GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name=name)


def ticket(asset: str = "known", **given: Any) -> Ticket:
    """A ticket of a job that no longer exists: any work on it can be done immediately."""
    here = settings.load()
    place = {"store": here.store, "deployment": here.deployment}
    return Ticket(**{"job": "job-000000000000", "assets": (asset,), "run": "r", "step": "known", **place, **given})


def submitted(instance: dg.DagsterInstance, ticket: Ticket | None, at: str = "", **given: Any) -> dg.DagsterRun:
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location(at), "repository"), "job") if at else None
    tags = {WAITS: WAITING, f"{TICKET}known": "job-000000000000", **given.pop("tags", {})}
    given = {"status": dg.DagsterRunStatus.SUCCESS, "remote_job_origin": origin, **given}
    run = create_run_for_test(instance, tags=tags, **given)
    if ticket is not None:
        tickets.logged(instance, run, ticket)
    return run


def tick(instance: dg.DagsterInstance, at: str = "", target: dg.AssetSelection | None = None) -> dg.SensorResult:
    sensor = build_kinetic_completion_sensor(target=target)
    definitions = dg.Definitions(ASSETS, sensors=[sensor], resources=RESOURCES)
    with dg.SensorEvaluationContext(
        instance_ref=None, last_tick_completion_time=None, last_run_key=None, cursor=None, repository_name=None,
        instance=instance, repository_def=definitions.get_repository_def(), sensor_name=sensor.name,
        code_location_origin=location(at) if at else None, resources=RESOURCES,
    ) as context:  # fmt: skip
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def asked(result: dg.SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


@pytest.fixture(autouse=True)
def store(shared_home) -> None:
    here = settings.load()
    from pathlib import Path

    Path(here.store, here.deployment).mkdir(parents=True, exist_ok=True)


def test_the_sensor_of_one_code_location_leaves_the_runs_of_others_alone(instance) -> None:
    run = submitted(instance, ticket("of_another_location"), at="a")
    same_name = submitted(instance, ticket(), at="a")
    result = tick(instance, at="b")
    assert asked(result) == [] and "no job of a detached asset" in str(result.skip_reason)
    for each in (run, same_name):
        assert instance.get_run_by_id(each.run_id).tags[WAITS] == WAITING


def test_where_no_location_is_known_what_is_no_asset_here_is_left_alone_too(instance) -> None:
    submitted(instance, ticket("of_another_location", job="job-000000000001"))
    submitted(instance, ticket())
    assert asked(tick(instance)) == ["job-000000000000"]


@pytest.mark.parametrize("target", [None, dg.AssetSelection.assets("after")])
def test_an_asset_that_is_not_there_any_more_is_told_and_keeps_no_other_waiting(instance, target, caplog) -> None:
    submitted(instance, ticket("renamed"), at="a")
    says = "job job-000000000000 of run .* is not_found, and renamed is none of the assets that this sensor starts"
    with pytest.raises(UsageError, match=says):
        tick(instance, at="a", target=target)
    submitted(instance, ticket(job="job-000000000001"), at="a")
    if target is None:
        assert asked(tick(instance, at="a")) == ["job-000000000001"]
    else:
        with pytest.raises(UsageError, match="known is none of the assets"):
            tick(instance, at="a", target=target)


def test_a_tag_without_a_ticket_in_the_log_is_told_once_and_keeps_no_other_waiting(instance) -> None:
    forged = ticket(store="/of/somebody/else").to_text()
    run = submitted(instance, None, tags={f"{TICKET}known": forged})
    with pytest.raises(UsageError, match=f"run {run.run_id} says by its tag .*known that it waits for a job"):
        tick(instance)
    tags = instance.get_run_by_id(run.run_id).tags
    assert (tags[WAITS], tags[f"{TICKET}known"]) == (FINISHED, FINISHED)
    submitted(instance, ticket())
    assert asked(tick(instance)) == ["job-000000000000"]


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])
def test_a_job_that_was_announced_by_a_run_that_was_killed_before_it_submitted_is_none(instance, status) -> None:
    run = submitted(instance, ticket(), status=status)
    assert asked(tick(instance)) == []
    assert instance.get_run_by_id(run.run_id).tags[f"{TICKET}known"] == FINISHED
    gone = submitted(instance, ticket(spec="0" * 64, job="job-000000000001"), status=status)  # its records went
    assert asked(tick(instance)) == ["job-000000000001"]
    assert instance.get_run_by_id(gone.run_id).tags[WAITS] == WAITING


def test_a_step_that_has_not_written_its_ticket_yet_is_waited_for(instance) -> None:
    run = submitted(instance, None, status=dg.DagsterRunStatus.STARTED)
    assert "no job of a detached asset" in str(tick(instance).skip_reason)
    assert instance.get_run_by_id(run.run_id).tags[WAITS] == WAITING


def test_the_ticket_of_another_step_of_the_run_is_none_of_this_steps(instance) -> None:
    run = submitted(instance, ticket(step="other"))
    with pytest.raises(UsageError, match=f"run {run.run_id} says by its tag"):
        tick(instance)


@pytest.mark.parametrize("given", [{"store": "gs://of-somebody-else/x"}, {"deployment": "another"}])
def test_a_ticket_of_another_store_than_the_resources_is_told_and_not_opened(instance, given) -> None:
    submitted(instance, ticket(**given))
    with pytest.raises(UsageError, match=r"job job-000000000000 was submitted to .*the store that is set here is"):
        tick(instance)


def test_the_second_run_has_what_the_first_one_said_of_its_steps_and_the_users_tags(instance) -> None:
    config = {
        "ops": {"known": {"config": {"spot": False}}, "after": {}, "not_held": {}},
        "resources": {"kinetic": {"config": {}}},
        "execution": {"config": {"multiprocess": {"max_concurrent": 2}}},
        "loggers": {},
    }
    tags = {"team": "ranking", TAG: "{}", "kinetic/other": "x", ".dagster/repository": "r"}
    tags |= {"dagster/partition": "p", "dagster/backfill": "b", "dagster/partition_set": "of_the_first"}
    keys = [dg.AssetKey(name) for name in ("known", "after", "not_held")]
    run = submitted(instance, ticket(), run_config=config, tags=tags, asset_selection=frozenset(keys))
    [request] = tick(instance, target=dg.AssetSelection.assets("known", "after")).run_requests
    assert request.asset_selection == keys[:2]  # what is none of the target's is not made after it
    ops = {name: config["ops"][name] for name in ("known", "after")}
    assert request.run_config == {"ops": ops, "resources": config["resources"]}
    mine = {name: value for name, value in request.tags.items() if not name.startswith("kinetic/finishes.")}
    mine = {name: value for name, value in mine.items() if not name.startswith(("dagster/sensor", "dagster/run_key"))}
    assert mine == {
        "team": "ranking", TAG: "{}", "kinetic/job_id": "job-000000000000", "kinetic/run": run.run_id,
        "dagster/partition": "p", "dagster/backfill": "b",
    }  # fmt: skip


@pytest.mark.parametrize("asset", ["known", "weekly"])
def test_a_partition_that_is_gone_or_none_of_the_assets_keeps_no_other_waiting(instance, asset) -> None:
    """The second run of a job has the place of the first one, whatever the definitions say now."""
    submitted(instance, ticket(asset), tags={"dagster/partition": "w0"})
    submitted(instance, ticket(job="job-000000000001"))
    sensor = build_kinetic_completion_sensor()
    repository = dg.Definitions(ASSETS, sensors=[sensor], resources=RESOURCES).get_repository_def()
    with dg.build_sensor_context(
        instance, repository_def=repository, sensor_name=sensor.name, resources=RESOURCES
    ) as context:
        requests = sensor.evaluate_tick(context).run_requests  # as the daemon does, which looks at their partitions
    found = {request.run_key: request.tags.get("dagster/partition") for request in requests}
    assert found == {"job-000000000000": "w0", "job-000000000001": None}


def test_a_config_that_its_assets_take_no_more_is_told_and_keeps_no_other_waiting(instance) -> None:
    run = submitted(instance, ticket(), run_config={"ops": {"known": {"config": {"epochs": 3}}}})
    with pytest.raises(UsageError, match=f'take the change back.*delete run {run.run_id}.*\n.*entry "epochs"'):
        tick(instance)
    submitted(instance, ticket(job="job-000000000001"))
    assert asked(tick(instance)) == ["job-000000000001"]


class Least(dg.Config):
    least: float


@dg.asset_check(asset="known")
def good(config: Least) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=config.least < 1)


def test_the_second_run_has_what_the_first_one_said_of_the_checks_of_its_assets(instance) -> None:
    config = {"ops": {"known": {}, "known_good": {"config": {"least": 0.5}}}}
    submitted(instance, ticket(), run_config=config)
    sensor = build_kinetic_completion_sensor()
    definitions = dg.Definitions(ASSETS, asset_checks=[good], sensors=[sensor], resources=RESOURCES)
    repository = definitions.get_repository_def()
    with dg.build_sensor_context(
        instance, repository_def=repository, sensor_name=sensor.name, resources=RESOURCES
    ) as context:
        [request] = sensor.evaluate_tick(context).run_requests
    assert request.run_config == config


@pytest.mark.parametrize("given", [{"store": "/of/somebody/else"}, {"deployment": "another"}])
def test_a_ticket_that_leads_elsewhere_is_refused_by_the_run_that_finishes(instance, given) -> None:
    tags = {tag_of(FINISHES, "known"): submitted(instance, ticket(**given)).run_id}
    result = dg.materialize([known], instance=instance, resources=RESOURCES, tags=tags, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    assert "job job-000000000000 was submitted to" in failure.step_failure_data.error.to_string()


def test_a_tag_that_is_a_ticket_by_itself_finishes_nothing(instance) -> None:
    tags = {tag_of(FINISHES, "known"): ticket().to_text()}
    result = dg.materialize([known], instance=instance, resources=RESOURCES, tags=tags, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    assert "the step known of that run has submitted none" in failure.step_failure_data.error.to_string()


def test_json_of_a_ticket_comes_back_as_it_was() -> None:
    assert Ticket.from_text(ticket().to_text()) == ticket()
    assert json.loads(ticket().to_text())["assets"] == ["known"]


@pytest.mark.parametrize("text", ["no json", "[]", '{"job": "job-000000000001"}', '{"assets": ["known"]}'])
def test_a_text_that_is_no_ticket_is_an_error(text) -> None:
    with pytest.raises(UsageError, match="no ticket of a detached job"):
        Ticket.from_text(text)
