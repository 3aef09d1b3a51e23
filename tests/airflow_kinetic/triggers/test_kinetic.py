"""The trigger on an event loop, as a triggerer runs it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import NEWEST, RELEASE, Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


@pytest.mark.skipif(RELEASE >= NEWEST, reason="this Airflow tells a trigger that its task was killed")
def test_a_trigger_that_is_cancelled_asks_for_the_state_of_its_task_and_without_an_answer_leaves_the_job(
    airflow: Airflow, home: Path
) -> None:
    done = airflow("cancelled_before_3_3", home, seconds=60)
    assert done["found"][0] == "RUNNING", "its triggerer may have ended"
    if RELEASE < (3, 0):
        assert done["found"][1] == "CANCELLED"
    else:
        assert done["log"].count("as its task's state cannot be found out") == 2


def test_killing_a_deferred_task_ends_its_job_and_the_triggerer_learns_who_asked(airflow: Airflow, home: Path) -> None:
    done = airflow("kill_deferred", home, seconds=60)
    assert done["message"] == ["killed by a user"]  # without it Airflow would not call on_kill
    assert done["seconds"] < 40  # of the 60 s that the job would take
    assert done["status"] == "CANCELLED"


def test_what_a_deferral_leaves_in_the_database_is_small_and_has_a_deadline_with_a_back_stop(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("deferral", home, marker=str(tmp_path / "begun"), minutes=5)
    fields = done["fields"]
    assert done["classpath"] == "airflow_kinetic.triggers.kinetic.KineticJobTrigger"
    assert len(json.dumps(fields)) < 2000
    assert set(fields["place"]) == {"store", "deployment", "backend", "project", "gcp_conn_id", "impersonation_chain"}
    assert fields["poll_interval"] == 0.5
    assert done["deadline"] == pytest.approx(300, abs=25)
    assert done["back_stop"] == pytest.approx(done["deadline"] + 60, abs=25)
    assert done["status"] == "CANCELLED", "the worker still answers for it until it has left"


def test_a_trigger_does_not_fire_before_the_scheduler_has_noted_the_deferral(airflow: Airflow, home: Path) -> None:
    """A supervisor may hear of the end of its task by its next heartbeat alone, whatever that is set to."""
    done = airflow("fire_early", home, environ={"AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "7"})
    assert done["payload"]["job_id"] == done["job"]
    assert done["after"] >= done["bound"] == 7 + 5
    assert "heard" not in done["kept"], "a triggerer of an older version knows it not"


@pytest.mark.slow
@pytest.mark.parametrize(("sent_away", "bound"), [("False", 1 + 5), ("True", 7 + 5)])
def test_it_fires_sooner_where_the_supervisor_hears_at_once_and_has_no_log_to_send_away(
    airflow: Airflow, home: Path, sent_away: str, bound: int
) -> None:
    environ = {"AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "7", "AIRFLOW__LOGGING__REMOTE_LOGGING": sent_away}
    done = airflow("fire_early", home, environ=environ, heard=True)
    assert done["after"] >= done["bound"] == bound
    assert "heard" in done["kept"]


@pytest.mark.slow
def test_a_trigger_does_not_fire_while_the_scheduler_stands_still(airflow: Airflow, home: Path) -> None:
    done = airflow("fire_while_the_scheduler_stands_still", home, still=2)
    assert done["payload"]["job_id"] == done["job"]
    assert done["asked"] == ["/api/v2/monitor/health"] * 4, (
        "the first one that comes may be of the round that stood still"
    )


def test_a_task_holds_to_what_its_trigger_saw(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("forged_after_its_trigger", home, elsewhere=str(tmp_path / "elsewhere"))
    assert "Corrupt" in done["raised"] and "somebody has changed" in done["raised"]
    assert not done["second"], "no other attempt was begun"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_clock_that_is_an_hour_ahead_keeps_no_task_waiting_for_it(airflow: Airflow, home: Path) -> None:
    done = airflow("fire_early", home, ahead=3600.0)
    assert done["payload"]["job_id"] == done["job"]
    assert done["bound"] <= done["took"] < done["bound"] + 60


@pytest.mark.slow
def test_a_job_that_was_launched_for_a_deferral_ends_itself_if_no_trigger_takes_it(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    """A user may mark the task before the deferral took hold: Airflow then creates no trigger, and no notice."""
    done = airflow("nobody_takes_it", home, marker=str(tmp_path / "begun"), seconds=4.0)
    assert (done["marked"], done["anew"]) == ("CANCELLED", True)
    assert done["why"].startswith("nobody has taken it over within 4 s")
    assert done["lives"], "whoever has once taken it keeps it, though its triggerer may be gone"


def test_a_triggerer_that_was_replaced_does_not_end_the_job(airflow: Airflow, home: Path) -> None:
    done = airflow("killed_falsely", home, seconds=60)
    assert done["lived"], "the first one had no say any more"
    assert done["status"] == "CANCELLED", "the second one had"


def test_a_kill_before_a_trigger_has_opened_its_job_ends_it(airflow: Airflow, home: Path) -> None:
    done = airflow("killed_before_it_opened", home)
    assert done["lived"], "the job is a younger trigger's"
    assert done["status"] == "CANCELLED", "what an older one left there does not keep it"


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_a_cancel_that_fails_is_tried_again_though_the_triggerer_interrupts_it(
    airflow: Airflow, home: Path, tmp_path: Path, again: bool
) -> None:
    done = airflow("cancelled_late", home, late=str(tmp_path / "share"), seconds=1.5, again=again)
    assert done["status"] == "CANCELLED"
    assert "could not be cancelled, and that is tried again" in done["log"]


def test_of_a_job_that_was_found_again_the_triggerer_writes_the_whole_log(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("deferred_again", home, marker=str(tmp_path / "begun"))
    assert done["same"]
    assert done["said"][0][1] > 0
    assert done["begins"][:3] == [1, "", []], "and no worker has written a part of it"


def test_a_timeout_that_was_taken_out_of_the_dag_meanwhile_still_ends_the_job(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("out_of_time_after_an_edit", home, marker=str(tmp_path / "begun"))
    assert done["raised"].startswith(
        "AirflowTaskTimeout: the task was out of time after 0:00:07, its execution_timeout"
    )
    assert done["status"] == "CANCELLED"


@pytest.mark.slow
def test_a_task_that_is_out_of_time_shows_what_its_program_said_to_its_end(airflow: Airflow, home: Path) -> None:
    done = airflow("last_lines_of_a_timeout", home)
    assert (done["raised"], done["status"]) == ("AirflowTaskTimeout", "CANCELLED")
    lines = [int(number) for number in re.findall(r"line (\d+)\b", done["log"])]
    at = next(at for at in range(1, len(lines)) if lines[at] <= lines[at - 1])  # where the last ones are repeated
    shown, tail = lines[:at], lines[at:]
    assert shown == list(range(at)) and at > 10
    assert tail == list(range(tail[0], tail[0] + len(tail))) and tail[0] <= at <= tail[-1] + 1


def test_a_task_that_was_out_of_time_before_its_trigger_began_still_knows_its_job_by_its_digest(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    """A worker that did not submit the job would otherwise refuse a pickled value from a bucket."""
    done = airflow("out_of_time_before_it_opened", home, marker=str(tmp_path / "begun"))
    assert done["how"] == "out of time"
    assert done["digest"] == done["of_the_job"]
    assert (done["raised"], done["status"]) == ("AirflowTaskTimeout", "CANCELLED")


def test_a_store_that_the_triggerer_cannot_reach_fails_the_task_with_the_fix(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    elsewhere, marker = tmp_path / "another machine", tmp_path / "begun"
    done = airflow("told_of_an_unreachable_store", home, elsewhere=str(elsewhere), marker=str(marker))
    assert done["how"] == "unreachable"
    assert done["seconds"] < 60
    (first, still), (last, _) = done["told"]
    assert re.match(
        r"StoreError: the triggerer on .* cannot reach job .* only if workers and triggerers share it", first
    )
    assert still == "RUNNING", "the next try may be deferred to another triggerer, and finds it"
    assert last == first
    assert done["status"] == "CANCELLED", "after the last try nobody would"


def test_a_failure_that_a_retry_policy_calls_final_ends_the_job_as_the_last_try_does(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    elsewhere, marker = tmp_path / "another machine", tmp_path / "begun"
    done = airflow(
        "told_of_an_unreachable_store", home, elsewhere=str(elsewhere), marker=str(marker), fails_at_once=True
    )
    assert done["told"][0][0].startswith("StoreError: the triggerer on")
    assert done["status"] == "CANCELLED"


@pytest.mark.slow
def test_a_store_that_does_not_answer_at_first_fails_no_task(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("reached_late", home, late=str(tmp_path / "share"), seconds=2.0)
    assert done["event"] is None
    assert done["seconds"] < 30
    assert "is asked again: Cannot keep a store in" in done["log"]


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_store_that_does_not_answer_within_seconds_fails_it(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("reached_late", home, late=str(tmp_path / "share"), seconds=0)
    assert done["event"]["how"] == "unreachable"
    assert 8 < done["seconds"] < 60


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_connection_that_airflow_is_long_in_finding_is_no_store_that_does_not_answer(
    airflow: Airflow, home: Path
) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        done = airflow("looked_up_late", home, environ=cloud.environ(), seconds=6.0, bound=4.0)
        assert done["event"] is None, done["log"]
        assert done["seconds"] >= 6
        assert "is asked again" not in done["log"]
        cloud.wait_until_empty(60)


@pytest.mark.slow
def test_a_deferred_sensor_is_out_of_time_as_any_other_task(airflow: Airflow, home: Path) -> None:
    done = airflow("sensor_out_of_time", home, seconds=2.0)
    assert re.match(r"AirflowTaskTimeout: the sensor was out of time after 0:00:02, .* goes on", done["raised"])
    assert done["waited"] < 30
    assert done["status"] == "RUNNING"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sensor_on_a_worker_waits_for_a_store_that_does_not_answer(airflow: Airflow, home: Path) -> None:
    done = airflow("poked_while_its_store_is_away", home, project="emulated")
    assert done["done"] == [False, False, "JobCancelled"]
