"""What of a job's events is written to the task's log."""

from __future__ import annotations

from typing import Any

import structlog.testing

from airflow_kinetic.task_log import TaskLog
from kinetic_orchestration.agent import frames
from kinetic_orchestration.values import Change, Event, Metrics, Output

TIME = 1_790_000_000.25


def output(text: bytes, host: int = 0, attempt: int = 1) -> Output:
    return Output(host, frames.OUT, TIME, text, attempt, 0, 0)


def written(*events: Event, hosts: int = 1) -> list[dict[str, Any]]:
    log = TaskLog(hosts)
    with structlog.testing.capture_logs() as records:
        for event in events:
            log(event)
    return [dict(record) for record in records]


def test_lines_written_at_once_keep_their_order_and_repeated_ones_are_kept() -> None:
    records = written(output(b"b\na\na\n"), output(b"a\n"))
    assert [record["event"] for record in records] == ["b", "a", "a", "a"]
    times = [record["timestamp"] for record in records]
    assert times == sorted(set(times))
    assert times[0] == "2026-09-21T14:13:20.250000Z"


def test_reading_again_after_a_restart_writes_equal_records_which_airflow_drops() -> None:
    events = [output(b"a\nb\n", host=1), output(b"c\n", host=0), Metrics(1, TIME, 1, {"loss": 0.5}, 1)]
    assert written(*events, hosts=2) == written(*events, hosts=2)


def test_hosts_and_later_attempts_are_told_apart() -> None:
    first, later = written(output(b"a\n", host=3), output(b"a\n", host=3, attempt=2), hosts=4)
    assert (first["host"], first.get("attempt")) == (3, None)
    assert later["attempt"] == 2


def test_a_progress_bar_is_what_remained_to_be_seen_and_broken_text_is_still_text() -> None:
    records = written(output(b"10%\r20%\rdone\r\n"), output(b"\xff\n"), output(b"\n"))
    assert [record["event"] for record in records] == ["done", "\\xff", ""]


def test_the_phases_of_the_job_are_told() -> None:
    (record,) = written(Change("queued", "in zone a", 1))
    assert record["event"] == "kinetic: queued: in zone a"
