"""One task over its tries: killed, retried, cleared, cancelled, replaced."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import ANY

import pytest

from airflow_kinetic.shared.tries.task_identity import Pin, is_of_another_run, pin_now
from tests.airflow_kinetic.conftest import NEWEST, RELEASE, Airflow, needs

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def test_the_pin_of_a_task_moves_with_a_clear_and_with_nothing_else() -> None:
    first = pin_now(None, max_tries=2, retries=2)
    assert first == Pin(0, 2, tried=1)
    kept = first._replace(job_id="job-1")
    assert pin_now(kept, max_tries=2, retries=2, tried=2) == kept._replace(tried=2), "a retry"
    assert pin_now(kept, max_tries=2, retries=7, tried=2) == kept._replace(tried=2), "an edit of retries"
    # Airflow makes max_tries of a cleared task its try_number + retries.
    assert pin_now(kept, max_tries=1 + 2, retries=2, tried=2) == Pin(1, 3, tried=2), "a clear after the first try"
    assert pin_now(kept, max_tries=3 + 0, retries=0).epoch == 3, "a clear after the third, and an edit"
    assert pin_now(kept, max_tries=1 + 7, retries=7).epoch == 1
    assert pin_now(None, max_tries=3 + 2, retries=2).epoch == 3, "a clear of a task whose state was removed"


def test_a_clear_with_fewer_retries_than_before_is_seen_by_the_clears_of_the_dag_run() -> None:
    kept = pin_now(None, max_tries=2, retries=2, tried=1, clears=0)
    assert pin_now(kept, max_tries=1 + 1, retries=1, tried=2, clears=1).epoch == 1, "the numbers of tries are equal"
    assert pin_now(kept, max_tries=2, retries=1, tried=2, clears=0).epoch == 0, "an edit, and a retry"
    assert pin_now(kept, max_tries=2, retries=2, tried=2, clears=1).epoch == 0, "a retry, and a clear of another task"
    again = pin_now(kept, max_tries=2, retries=2, tried=2, clears=1)
    assert pin_now(again, max_tries=2 + 0, retries=0, tried=3, clears=1).epoch == 0, "that clear was told of before"
    assert pin_now(again, max_tries=2 + 0, retries=0, tried=3, clears=2).epoch > 0
    unknown = kept._replace(clears=None)  # by a version that did not look
    assert pin_now(unknown, max_tries=2, retries=1, tried=2, clears=1).epoch == 0


def test_a_pin_comes_back_out_of_the_database_as_it_went_in() -> None:
    import json

    from airflow_kinetic.shared.location import JobLocation

    pin = Pin(1, 3, "job-1", JobLocation("gs://b", "d", "tpu-vm", "p", "c", ["a", "b"]))
    assert Pin.from_json(json.loads(json.dumps(pin.to_json()))) == pin
    assert Pin.from_json(Pin(0, 0).to_json()) == Pin(0, 0)
    older = {"epoch": 1, "max_tries": 3, "job_id": "job-1", "place": None}
    assert Pin.from_json(older) == Pin(1, 3, "job-1")
    assert Pin.from_json(older).life == "", "so it means the job that it meant"


def test_a_clear_is_another_epoch_of_the_same_life() -> None:
    kept = pin_now(None, max_tries=2, retries=2)._replace(life="a life")
    assert pin_now(kept, max_tries=3, retries=2, tried=2).life == "a life"


def test_a_state_that_outlives_its_dag_run_is_told_from_that_of_the_next_one() -> None:
    """Where the jobs' store has it: with a DAG run of the same name, and never with a clear or a retry of the same."""
    kept = Pin(0, 2, tried=2, clears=1, begun="monday")
    assert is_of_another_run(kept, 1, 1, "tuesday")
    assert is_of_another_run(kept, 1, 0, "tuesday"), "which nobody has cleared yet"
    assert not is_of_another_run(kept, 3, 1, "monday"), "a retry"
    assert not is_of_another_run(kept, 3, 2, "tuesday"), "a clear, with which it began anew"
    assert not is_of_another_run(kept, 3, 1, "tuesday"), "a user has queued it anew"
    assert not is_of_another_run(kept._replace(begun=""), 1, 1, "tuesday"), "of Airflow's own, which goes with the run"


def test_a_pin_in_the_jobs_store_names_no_place_but_its_own_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from airflow_kinetic.shared.location import JobLocation
    from airflow_kinetic.shared.tries.task_identity import _OfStore
    from kinetic_orchestration.errors import Corrupt

    here = JobLocation(str(tmp_path), "here", "local")
    one = SimpleNamespace(dag_id="a", task_id="t", run_id="r", map_index=-1)
    pin = Pin(2, 5, "job-0123456789ab", here._replace(store="gs://elsewhere"), tried=3, life="ab12", begun="monday")
    _OfStore(here, one).set(pin)
    assert _OfStore(here, one).get() == pin._replace(place=here)
    for another in ({"map_index": 0}, {"task_id": "u"}, {"run_id": "s"}):
        assert _OfStore(here, SimpleNamespace(**{**vars(one), **another})).get() is None
    [file] = tmp_path.rglob("tasks/*.json")
    assert "elsewhere" not in file.read_text()
    file.write_text('{"wire": 1, "epoch": "now", "max_tries": 1}')
    with pytest.raises(Corrupt, match=r"tasks/.* cannot be read"):
        _OfStore(here, one).get()


def test_a_dag_run_that_was_deleted_and_made_again_is_another_job(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("deleted_and_run_again", home, file=str(tmp_path / "calls"))
    assert done["values"] == [1, 1, 2], "its name is not what says that it has run"
    if RELEASE >= NEWEST:
        assert done["requests"] == [4, 2], "each try asks Airflow once what it means, and once to keep it"


@needs(NEWEST, "the story is told by its own store of a task's state")
def test_a_worker_that_hung_in_its_upload_does_not_take_the_job_from_its_successor(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("hung_in_the_upload", home, marker=str(tmp_path / "begun"), folder=str(tmp_path))
    assert done["alone"], "it hung while the other made the job"
    assert done["same"]
    assert done["kept_by_the_second"]


def test_a_try_that_was_killed_is_followed_by_another_run_of_the_job(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("killed_and_retried", home, marker=str(tmp_path / "begun"))
    assert done["raised"] == "JobCancelled"  # which a retry policy may see: AirflowFailException would end the task
    assert done["status"] == "CANCELLED"
    assert done["value"] == "again"
    assert done["then"]["epoch"] == done["first"]["epoch"], "with the checkpoints of the first"
    assert done["then"]["job_id"] != done["first"]["job_id"]


def test_a_clear_ends_the_job_that_nobody_was_left_to_end(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("cleared_while_nobody_watched", home, marker=str(tmp_path / "begun"))
    assert done["value"] == "again"
    assert done["then"]["epoch"] == done["first"]["epoch"] + 1
    assert done["status"] == "CANCELLED"
    assert done["raised"] == "JobCancelled"


@pytest.mark.parametrize("deferrable", [False, True], ids=["waits", "deferred"])
def test_a_clear_can_take_the_value_of_a_job_that_had_succeeded(
    deferrable: bool, airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("cleared_after_its_success", home, file=str(tmp_path / "calls"), deferrable=deferrable)
    assert done["values"] == [1, 1, 1, 1, 2], "and the default runs it again"
    assert done["deferred"] == (2 if deferrable else 0), "only for the jobs that it begins"


def test_a_task_that_does_not_wait_gives_the_id_of_its_job_which_goes_on(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    assert airflow("submitted_alone", home, marker=str(tmp_path / "begun")) == {"False": True, "True": True} | {
        "log": ANY
    }


@needs(NEWEST, "the story is told by its own store of a task's state")
def test_nothing_is_submitted_before_it_is_kept_which_job_the_task_means(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("not_kept", home, folder=str(tmp_path))
    assert done["packaged"], "beside the request"
    assert done["raised"] == "the server refused"
    assert done["jobs"] == 0


def test_what_a_person_cancelled_is_not_begun_again(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("cancelled_by_a_person", home, marker=str(tmp_path / "begun"))
    assert done["raised"] == "AirflowFailException"
    assert "was cancelled: enough" in done["text"]


def test_a_retry_finds_the_job_and_the_worker_before_it_has_no_say_any_more(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("found_again", home, marker=str(tmp_path / "begun"))
    assert done["then"] == done["first"]
    assert done["alive"]
    assert done["raised"] == "JobCancelled"


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.parametrize(
    ("number", "error", "raised", "goes_on"),
    [
        (1, "Trigger failure", "TaskDeferralError", True),  # the next try finds it
        (2, "Trigger failure", "TaskDeferralError", False),  # there is none
        (1, "Trigger timeout", "TaskDeferralTimeout", False),  # out of time
    ],
)
def test_a_job_is_left_to_the_next_try_if_there_is_one(
    airflow: Airflow, home: Path, tmp_path: Path, number: int, error: str, raised: str, goes_on: bool
) -> None:
    done = airflow("failed_by_its_trigger", home, marker=str(tmp_path / "begun"), number=number, error=error)
    assert (done["raised"], done["goes_on"], done["status"]) == (raised, goes_on, "CANCELLED")


def test_a_clear_after_an_edit_of_retries_runs_the_task_again_and_a_retry_does_not(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("cleared_with_fewer_retries", home, file=str(tmp_path / "calls"))
    assert done["values"] == [1, 1, 2]


def test_a_retry_goes_on_with_its_job_and_tells_that_tasks_were_cleared(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("told_of_clears", home, marker=str(tmp_path / "begun"))
    assert done["same"]
    assert "If so, clear it once more" in done["log"]
    assert re.search(r"was submitted before, with hardware cpu\b.*, not cpu:2.*, and goes on as it is", done["log"])


def test_a_retry_that_finds_a_job_of_another_argument_says_so_or_is_refused(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="is_given_another_argument")
    assert done["states"] == {"takes_it": "success", "refuses_it": "failed"}
    assert done["xcoms"]["takes_it/return_value"] == 1, "the value of the first try"
    other = r"was submitted before,? with another value of number"
    assert re.search(rf"Job job-\w+ {other}, and has ended: the task has its value", done["log"])
    refused = (
        rf"this step has job job-\w+, which {other}, and on_conflict is 'error': its value is not taken, and nothing"
    )
    assert re.search(
        rf"AirflowFailException: {refused} has run\. To have what is asked for now, clear the task", done["log"]
    )
    assert Path(home, "tries-of-refuses_it").read_text() == "12", "no third try, which would be refused as well"


def test_a_task_whose_dag_has_spent_its_budget_fails_for_good(airflow: Airflow, home: Path) -> None:
    done = airflow("out_of_budget", home)
    assert re.match(
        r"AirflowFailException: nothing was submitted: the budget of pipeline a_dag, .* is used up.*, clear the task",
        done["raised"],
    )
    assert not done["ran"]


def test_a_job_that_lives_and_is_refused_is_cancelled(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("refuses_another", home, marker=str(tmp_path / "begun"))
    assert re.search(
        r"^AirflowFailException: .* another value of marker, .*: it was cancelled \(cancelled\), and nothing else has run",
        done["raised"],
    )
    assert done["status"] == "CANCELLED"
    assert not (tmp_path / "begun-2").exists()


@needs(NEWEST, "the story is told by its own store of a task's state")
def test_a_kill_gets_through_whatever_lock_the_main_thread_has_just_then(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    locks = ["all watchers'", "one watcher's", "the log's"]
    found = airflow("killed_at", home, moments=locks, folder=str(tmp_path))["found"]
    assert [ended for _, ended, _, _ in found] == ["CANCELLED", "CANCELLED", "never made"], found
    assert all(raised.startswith("JobCancelled") for _, _, raised, _ in found), found


@needs(NEWEST, "the story is told by its own store of a task's state")
@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.timeout(900)
def test_a_kill_at_any_moment_leaves_no_job(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    moments = [0.05 * number for number in range(30)]
    found = airflow("killed_at", home, moments=moments, folder=str(tmp_path))["found"]
    assert {ended for _, ended, _, _ in found} == {"CANCELLED", "never made"}, found
    assert not [entry for entry in found if not entry[2].startswith("JobCancelled")]
