"""Many jobs from one step: in order, with partial success, bounded, found again, cancelled all at once."""

import _thread
import io
import os
import sys
import threading
import time

import dagster as dg
import pytest

from dagster_kinetic import KineticResource
from dagster_kinetic.fleet.jobs import FleetNarrator, JobEnded, LaunchEvent
from kinetic_orchestration import JobStatus, Retry, list_jobs
from kinetic_orchestration.errors import UsageError
from tests.dagster_kinetic.stored import logs_of, messages

pytestmark = pytest.mark.usefixtures("shared_home")
KINETIC = {"kinetic": KineticResource(max_concurrent=3)}


def divided(number, by=1):
    print("dividing", number)
    return number / by


def step_of(**given):
    """An asset that maps `divided`, and all the results of its runs."""
    found = []

    @dg.asset
    def mapped(context: dg.AssetExecutionContext, kinetic: KineticResource) -> None:
        found.append(kinetic.map(divided, accelerator="cpu", context=context, **given))

    return mapped, found


def test_results_keep_their_order_and_a_failure_is_one_of_them(instance):
    asset, found = step_of(inputs=[4, (9, 3), {"number": 1, "by": 0}, 5])
    result = dg.materialize([asset], resources=KINETIC, instance=instance)
    said, logs = messages(instance, result), logs_of(instance, result)
    assert {name for name in logs if "[" in name} == {f"mapped [{place}]" for place in range(4)}
    assert logs["mapped [1]"] == "dividing 9\n" and "[1] dividing 9\n" in logs["mapped"]
    [results] = found
    assert [each.input for each in results] == [4, (9, 3), {"number": 1, "by": 0}, 5]
    assert [each.value for each in results] == [4, 3, None, 5]
    assert [each.ok for each in results] == [True, True, False, True]
    assert isinstance(results[2].error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        results[2].get()
    assert results[2].job.logs().startswith("dividing 1\n")
    assert len({each.job.job_id for each in results}) == 4
    assert any(f"{results[2].job.job_id}" in line and "ZeroDivisionError" in line for line in said)
    assert any("4 of 4 have ended, 1 of them failed; 0 run, 0 wait" in line for line in said), said


def test_the_log_tells_of_the_stages_of_a_launch_and_is_not_filled_with_them(instance):
    asset, _ = step_of(inputs=[1])
    said = messages(instance, dg.materialize([asset], resources=KINETIC, instance=instance))
    packaging = said.index("input 0: packaging divided: its code, its arguments and what they need")
    [submitting] = [index for index, line in enumerate(said) if line.startswith("input 0: submitting job job-")]
    [ended] = [index for index, line in enumerate(said) if "1 of 1 have ended" in line]
    assert packaging < submitting < ended and "the call with its arguments (" in said[submitting]

    told = []
    narrator = FleetNarrator(None, "divided", "", 1000)
    narrator._log = lambda level, text: told.append((level, text))
    for place in range(1000):
        narrator(LaunchEvent(place, "packaging divided"))
    narrator._flush()
    assert [level for level, _ in told] == ["info"] * len(told) and len(told) < 100
    assert told[-1][1].startswith("input 999: packaging divided (and ")


def test_counts_that_have_not_changed_are_told_once():
    """The pace tells the counts of the moment when it tells them, which may be those of the next news."""
    told = []
    narrator = FleetNarrator(None, "divided", "", 2)
    narrator._log = lambda level, text: told.append(text)
    narrator(JobEnded(0, None, None, ValueError("no")))
    narrator(JobEnded(1, None, None, ValueError("no")))
    narrator._counts(None)
    narrator._flush()
    narrator._counts(None)
    narrator._flush()
    assert [text for text in told if "2 of 2 have ended" in text] == [
        "divided: 2 of 2 have ended, 2 of them failed; 0 run, 0 wait"
    ]


def test_what_cannot_be_sent_is_a_failure_of_its_input_alone(instance):
    asset, found = step_of(inputs=[1, threading.Lock(), 3])
    said = messages(instance, dg.materialize([asset], resources=KINETIC, instance=instance))
    assert any("3 of 3 have ended, 1 of them failed; 0 run, 0 wait" in line for line in said), said
    [results] = found
    assert [each.ok for each in results] == [True, False, True]
    assert (results[1].job, type(results[1].error).__name__) == (None, "NotPicklable")


@pytest.mark.slow
@pytest.mark.turn(4)
def test_no_more_jobs_run_at_once_than_were_asked_for(tmp_path):
    def counts(folder):
        import os
        from pathlib import Path

        mark = Path(folder) / str(os.getpid())
        mark.touch()
        among = len(os.listdir(folder))
        time.sleep(0.3)
        mark.unlink()
        return among

    running = tmp_path / "running"
    running.mkdir()
    results = KineticResource().map(counts, [str(running)] * 4, accelerator="cpu", max_concurrent=2)
    assert {each.get() for each in results} <= {1, 2}


def test_a_step_that_is_tried_again_runs_only_what_failed(tmp_path):
    def once(folder, number):
        from pathlib import Path

        mark = Path(folder) / f"{number}"
        with mark.open("a") as file:
            file.write("x")
        if number == 1 and mark.read_text() == "x":
            raise OSError("the first try of 1")
        return number

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def tried(context: dg.AssetExecutionContext, kinetic: KineticResource):
        inputs = [(str(tmp_path), number) for number in range(3)]
        return [each.get() for each in kinetic.map(once, inputs, accelerator="cpu", context=context)]

    assert dg.materialize([tried], resources=KINETIC).output_for_node("tried") == [0, 1, 2]
    assert [(tmp_path / str(number)).read_text() for number in range(3)] == ["x", "xx", "x"]


def test_a_job_that_goes_on_after_a_failure_is_told_of_by_its_place(tmp_path, instance):
    def once(mark):
        from pathlib import Path

        if not Path(mark).exists():
            Path(mark).touch()
            raise OSError("the first try")
        return 7

    @dg.asset
    def survived(context: dg.AssetExecutionContext, kinetic: KineticResource):
        mark = str(tmp_path / "mark")
        return [
            each.get() for each in kinetic.map(once, [mark], accelerator="cpu", context=context, retry=Retry(user=1))
        ]

    result = dg.materialize([survived], resources=KINETIC, instance=instance)
    said = messages(instance, result)
    assert result.output_for_node("survived") == [7]
    assert any(line.startswith("input 0 is interrupted: attempt 1 ended (error on host 0") for line in said), said


def sleeps(_):
    time.sleep(300)


def interrupted_map(width, when_they_run=lambda jobs: None):
    """The jobs of a step of so many that Ctrl-C ends as soon as all of them run."""
    jobs = []

    def interrupt():
        deadline = time.monotonic() + 60
        while len(jobs) < width and time.monotonic() < deadline:
            time.sleep(0.05)
            jobs[:] = [job for job in list_jobs() if job.status() is JobStatus.RUNNING]
        when_they_run(jobs)
        _thread.interrupt_main()

    @dg.op
    def interrupted(context: dg.OpExecutionContext, kinetic: KineticResource):
        threading.Thread(target=interrupt).start()
        kinetic.map(sleeps, range(width), accelerator="cpu", context=context)

    @dg.job(resource_defs=KINETIC)
    def interrupting():
        interrupted()

    with pytest.raises((KeyboardInterrupt, dg.DagsterExecutionInterruptedError)):
        interrupting.execute_in_process()
    assert len(jobs) == width
    return jobs


def test_an_interrupted_test_leaves_no_job_behind():
    interrupted_map(2)
    assert not list_jobs()


def test_a_cancel_that_the_store_refuses_keeps_none_of_the_others(shared_home, capfd):
    moved = []

    def take_away(jobs):
        """Replace one job's records by a file for a while."""
        [folder] = (shared_home / "store").glob(f"*/jobs/{jobs[1].job_id}")
        moved.append((folder, folder.rename(folder.with_name("elsewhere"))))
        folder.write_text("no folder any more")

    jobs = interrupted_map(3, take_away)
    [(folder, elsewhere)] = moved
    folder.unlink()
    elsewhere.rename(folder)
    assert [job.status() for job in jobs] == [JobStatus.CANCELLED, JobStatus.RUNNING, JobStatus.CANCELLED]
    said = capfd.readouterr().err
    assert "1 of them could not be" in said and "To end what is left: kinetic-orchestration cancel job-" in said
    jobs[1].cancel()


def test_maps_outside_of_a_step_and_of_nothing(capfd):
    assert KineticResource().map(divided, [], accelerator="cpu") == []
    [result] = KineticResource().map(divided, [(8, 2)], accelerator="cpu", key="mine")
    assert result.get() == 4
    [again] = KineticResource().map(divided, [(8, 2)], accelerator="cpu", key="mine")
    assert again.job.job_id == result.job.job_id
    assert "[0] dividing 8" in capfd.readouterr().out


def test_an_input_whose_job_goes_on_with_another_slice_is_told_of(tmp_path, monkeypatch):
    def waits(flag):
        while not os.path.exists(flag):
            time.sleep(0.01)

    flag = tmp_path / "flag"
    job = KineticResource().submit(waits, args=(str(flag),), accelerator="cpu", key="sweep[0]")
    told = io.StringIO()
    monkeypatch.setattr(sys, "stdout", told)  # what a capture takes away while somebody writes may be lost

    def listen():
        deadline = time.monotonic() + 60
        while "goes on with job" not in told.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        flag.touch()

    listener = threading.Thread(target=listen)
    listener.start()
    [result] = KineticResource().map(waits, [(str(flag),)], accelerator="v5e-1", key="sweep")
    listener.join()
    assert result.ok and result.job.job_id == job.job_id
    assert f"input 0 goes on with job {job.job_id}, which was submitted before with hardware cpu" in told.getvalue()


@pytest.mark.parametrize(
    "given, says",
    [
        ({"keys": ["a"]}, "names each of the 2 inputs once"),
        ({"keys": ["a", "a"]}, "1 differ"),
        ({"max_concurrent": 0}, "at least one job"),
        ({"accelerator": "v5e-17"}, "v5e-16"),
        ({"spott": True}, "did you mean spot"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_job(given, says):
    with pytest.raises(UsageError, match=says):
        KineticResource().map(divided, [1, 2], **{"accelerator": "cpu", **given})
    assert not list_jobs()
