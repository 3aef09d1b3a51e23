"""The trigger on an event loop, as a triggerer runs it."""

from __future__ import annotations

from pathlib import Path

from .conftest import Airflow


def test_killing_a_deferred_task_ends_its_job_and_the_triggerer_learns_who_asked(airflow: Airflow, home: Path) -> None:
    done = airflow("kill_deferred", home, seconds=60)
    assert done["message"] == ["killed by a user"]  # without it Airflow would not call on_kill
    assert done["status"] == "CANCELLED"


def test_a_trigger_does_not_fire_before_the_scheduler_has_noted_the_deferral(airflow: Airflow, home: Path) -> None:
    done = airflow("fire_early", home)
    assert done["payload"]["job_id"] == done["job"]
    assert done["after"] >= done["bound"]
