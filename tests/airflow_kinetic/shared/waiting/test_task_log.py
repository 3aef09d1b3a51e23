"""The events of a job that are written to the task's log."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog.testing

from airflow_kinetic._compat import substitutes
from airflow_kinetic.shared.waiting.task_log import Budget, TaskLog
from kinetic_orchestration.plan.values import Change, Event, Metrics, Output, Progress
from kinetic_orchestration.protocol.report import frames

pytestmark = pytest.mark.fast

TIME = 1_790_000_000.25


def output(text: bytes, host: int = 0, attempt: int = 1) -> Output:
    return Output(host, frames.OUT, TIME, text, attempt, 0, 0)


def written(*events: Event, hosts: int = 1, **options: Any) -> list[dict[str, Any]]:
    log = TaskLog(hosts, "job-1", **options)
    with structlog.testing.capture_logs() as records:
        for event in events:
            log(event)
        log.end()
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


def test_no_two_lines_share_a_millisecond_by_which_airflow_sorts() -> None:
    """Lines with equal times would come twice, and mixed, once a second trigger has written them again to a file of its
    own."""
    events = [output(b"".join(b"%d\n" % line for line in range(50)), host=host) for host in range(4)]
    records = written(*events, *events, hosts=4)
    assert len({record["timestamp"][:23] for record in records}) == len(records) == 400
    assert written(*events, hosts=4) == written(*events, hosts=4)
    for host in range(4):
        times = [record["timestamp"] for record in records if record["host"] == host]
        assert times == sorted(times)
        assert times[49] < "2026-09-21T14:13:20.450Z", "and none is moved far"


def test_of_a_host_that_pours_no_time_is_moved_by_more_than_a_second() -> None:
    records = written(output(b"a\n" * 5000))
    times = [record["timestamp"] for record in records]
    assert times == sorted(set(times))
    assert times[-1] < "2026-09-21T14:13:21.300Z"


def test_hosts_and_later_attempts_are_told_apart() -> None:
    """The numbers are those of the job: one that found no hosts in a full zone is no attempt."""
    records = written(
        Change("queued", "stockout", 2), output(b"a\n", host=3, attempt=2), Change("resuming", "attempt 1 ended", 3),
        Change("queued", "stockout", 4), output(b"a\n", host=3, attempt=4), hosts=4,
    )  # fmt: skip
    first, later = (record for record in records if record["event"] == "a")
    assert (first["host"], first.get("attempt")) == (3, None)
    assert later["attempt"] == 2


def test_a_progress_bar_is_what_remained_to_be_seen_and_broken_text_is_still_text() -> None:
    records = written(output(b"10%\r20%\rdone\r\n"), output(b"\xff\n"), output(b"\n"))
    assert [record["event"] for record in records] == ["done", "\\xff", ""]


def test_a_line_that_was_said_before_the_tasks_own_records_comes_after_them_and_says_when() -> None:
    """Else the page sorts it into the group of what the task did before, which is folded."""
    since = TIME + 60.0
    events = [output(b"early\nmore\n"), Output(0, frames.OUT, since + 5.0, b"late\n", 1, 0, 0)]
    records = written(*events, since=since)
    assert records == written(*events, since=since), "and a second reading tells the same"
    assert [record["event"] for record in records] == ["early", "more", "late"]
    times = [record["timestamp"] for record in records]
    assert times == sorted(set(times)) and times[0] >= "2026-09-21T14:14:20.250" and times[1] < "2026-09-21T14:14:20.3"
    assert [record.get("said") for record in records] == ["2026-09-21T14:13:20.250000Z"] * 2 + [None]


def test_the_phases_of_the_job_are_told() -> None:
    (record,) = written(Change("queued", "in zone a", 1))
    assert record["event"] == "kinetic: queued: in zone a"


def test_what_is_beyond_the_budget_is_counted_and_the_whole_log_is_named() -> None:
    clock = [0.0]
    budget = Budget(0.2, now=lambda: clock[0])  # two lines at once, then one in five seconds
    lines = [output(b"%d\n" % number) for number in range(6)]
    log = TaskLog(1, "job-1", budget=budget, whole_log="kinetic-orchestration logs job-1")
    with structlog.testing.capture_logs() as records:
        for line in lines[:4]:
            log(line)
        clock[0] = 5.0
        log(lines[4])
        log(lines[5])
        log.end()
    assert [record["event"].partition(",")[0] for record in records] == [
        "0", "1", "2 lines were left out here", "4", "1 line was left out here"
    ]  # fmt: skip
    assert records[2]["event"].endswith("All of them: kinetic-orchestration logs job-1")


def test_of_a_job_that_pours_so_many_lines_a_second_are_told_and_once_what_was_left_out() -> None:
    clock = [0.0]
    log = TaskLog(1, "job-1", budget=Budget(10.0, now=lambda: clock[0]), whole_log="")
    with structlog.testing.capture_logs() as records:
        for line in range(400):  # in four seconds
            clock[0] = line / 100
            log(output(b"a\n"))
        log.end()
    assert len(records) <= 100 + 40 + 5
    assert sum("left out" in record["event"] for record in records) <= 5


def test_of_what_was_there_before_a_trigger_began_the_newest_lines_of_all_hosts_are_written() -> None:
    """A triggerer that was restarted reads all of it again, and what nobody has shown yet is at its end."""
    log = TaskLog(
        2, "job-1", budget=Budget(10.0, now=lambda: 0.0), whole_log="kinor logs job-1"
    )  # a hundred lines at once
    with structlog.testing.capture_logs() as records:
        log.hold()
        for host in range(2):
            for line in range(3000):
                log(Output(host, frames.OUT, TIME + line, b"%d\n" % line, 1, 0, 0))
        assert not records
        log.let_go()
        log(output(b"live\n"))
        log.end()
    told, *lines, live = (record["event"] for record in records)
    assert told.startswith("5910 earlier lines are not written again. All of them")
    assert told.endswith(": kinor logs job-1")
    assert sorted(lines) == sorted(2 * [str(line) for line in range(2955, 3000)])
    assert live == "live", "there is room for the next second's"


def test_what_was_there_before_is_written_as_it_was_written_then() -> None:
    events = [output(b"a\nb\n", host=1), output(b"c\n", host=0)]
    log = TaskLog(2, "job-1", budget=Budget(200.0, now=lambda: 0.0))
    with structlog.testing.capture_logs() as records:
        log.hold()
        for event in events:
            log(event)
        log.end()
    by_time = sorted(written(*events, hosts=2), key=lambda record: str(record["timestamp"]))
    assert [dict(record) for record in records] == by_time


def test_a_line_of_megabytes_is_cut() -> None:
    (record,) = written(output(b"x" * (4 << 20) + b"\n"))
    assert record["event"] == "x" * 16_384 + "… (4194304 characters)"


def test_sixteen_hosts_that_speak_at_once_share_no_millisecond() -> None:
    records = written(*(output(b"a\n", host=host) for host in range(16)), hosts=16)
    assert len({record["timestamp"][:23] for record in records}) == 16


def test_all_tasks_of_a_triggerer_share_the_budget() -> None:
    budget = Budget(0.3, now=lambda: 0.0)
    assert [len(written(*[output(b"a\n")] * 2, budget=budget, whole_log="")) for _ in range(2)] == [2, 2]
    assert not budget.take(), "the second one had a line, and was told of the other"


def test_what_was_written_of_late_is_known_in_seconds_to_who_waits_until_it_is_read() -> None:
    clock = [0.0]
    budget = Budget(200.0, now=lambda: clock[0])
    assert budget.seconds_to_read() == 0
    for _ in range(3):  # a burst, and what the budget allows after it
        written(output(b"a\n" * 200), budget=budget)
        clock[0] += 1.0
    assert budget.seconds_to_read() == pytest.approx(3.0)
    clock[0] += 2.0
    assert budget.seconds_to_read() == pytest.approx(1.0)
    clock[0] += 60.0
    assert budget.seconds_to_read() == 0


def test_who_gives_up_while_a_line_is_being_told_ends_after_it_and_nothing_follows() -> None:
    """A trigger may time out while the step of its job runs on another thread."""
    told, go_on = threading.Event(), threading.Event()

    def now() -> float:
        if threading.current_thread() is not threading.main_thread():
            told.set()
            assert go_on.wait(30)
        return 0.0

    log = TaskLog(1, "job-1", budget=Budget(0.1, now), whole_log="")
    with structlog.testing.capture_logs() as records:
        teller = threading.Thread(target=log, args=(output(b"a\nb\n"),))
        teller.start()
        assert told.wait(30)
        threading.Timer(0.2, go_on.set).start()
        log.end()
        teller.join(30)
        log(output(b"too late\n"))
    assert [record["event"].partition(",")[0] for record in records] == ["a", "1 line was left out here"]


def test_a_loop_that_reports_each_step_fills_no_log() -> None:
    events = [Progress(0, TIME + step / 100, step, 500, "step", 1) for step in range(501)]
    texts = [record["event"] for record in written(*events)]
    assert len(texts) == 6
    assert texts[-1] == "progress: 500/500 step"
    assert written(*events) == written(*events)


def test_the_newest_metrics_of_host_0_are_kept_and_they_are_json() -> None:
    log = TaskLog(2, "job-1", lines=False, metrics={"loss": 9.0, "old": 1.0})
    with structlog.testing.capture_logs() as records:
        log(Metrics(0, TIME, 7, {"loss": 0.5, "gap": float("nan")}, 1))
        log(Metrics(1, TIME, 8, {"loss": 5.0}, 1))
        log(output(b"a\n"))
    assert records == []
    assert log.metrics == {"loss": 0.5, "old": 1.0, "step": 7, "gap": "nan"}


# ---- the folds of Airflow's page, where the tests of a live one look at them ------------------------------------------


class Shown:
    """A run whose log lasts so many seconds from its deferral to the second mark of Airflow's own, with a line in the fold."""

    run_id = "a_run"

    def __init__(self, took: float) -> None:
        marks = ["Job job-1. It runs", "::group::Post task execution logs", "step 1 at 2.0", "::endgroup::"]
        times = (1.8e9, 1.8e9 + 0.3, 1.8e9 + took / 2, 1.8e9 + took)
        moments = [datetime.fromtimestamp(time, UTC).isoformat() for time in times]
        self._log = [{"event": event, "timestamp": time} for event, time in zip(marks, moments, strict=True)]

    def log(self, number: int = 1) -> list[dict[str, Any]]:
        return self._log

    def text(self, number: int = 1) -> str:
        return str(self._log)


def test_a_line_in_a_fold_fails_a_test_unless_airflow_took_longer_than_a_trigger_leaves_it_and_that_is_told() -> None:
    from airflow_kinetic.triggers.kinetic import LEFT
    from tests.airflow_kinetic.live import scenes

    assert scenes.LEFT == LEFT
    with pytest.raises(AssertionError):
        scenes.check_folds(Shown(LEFT - 0.1))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=rf"^{scenes.IN_A_FOLD} of a_run, for which Airflow took 1\.6 s$"):
        scenes.check_folds(Shown(LEFT + 0.1))  # type: ignore[arg-type]


def test_where_records_have_no_fields_the_host_is_in_the_text_and_the_time_is_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in Airflow 2, which sorts the lines of a log by their times, too, and drops equal ones."""
    log = substitutes._TextLog(logging.getLogger("kinetic.host"))
    with caplog.at_level(logging.INFO):
        log.info("a line", timestamp="2026-01-02T03:04:05.678000Z", host=3, attempt=2)
        log.error("100 % of it")
    first, second = caplog.records
    assert (first.getMessage(), second.getMessage()) == ("[host 3, attempt 2] a line", "100 % of it")
    assert (round(first.created, 3), round(first.msecs)) == (1767323045.678, 678)
    assert second.created > first.created and second.levelname == "ERROR"
