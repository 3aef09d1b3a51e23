"""The page of `kinor ui` over the emulated cloud: a log in a bucket, what is kept warm, and that looking does nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.ui import portrait
from tests.end_to_end.cloud.cases import run
from tests.end_to_end.cloud.test_kept_slices import free, told
from tests.support.page_server import serving

pytestmark = pytest.mark.slow


def speak(lines: int) -> int:
    import time

    for number in range(lines):
        print(f"line {number}", flush=True)
        time.sleep(0.05)
    return lines


@pytest.mark.turn(4)
@pytest.mark.usefixtures("nothing_kept")
def test_a_job_in_a_bucket_is_followed_and_its_kept_slice_is_listed_as_by_the_command(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job: JobHandle[int] = run(speak, 120, keep="10m")
    with serving() as page:
        with page.stream(job.job_id) as events:
            heard = []
            for event in events:
                heard.append(event)
                if event[0] == "state" and event[2]["final"]:
                    break
                if event[0] == "state" and job.peek().outcome is None:
                    job.status()  # somebody has to follow it: the page takes no step
            heard += list(events)
        lines = [line[3] for name, _, data in heard if name == "log" for line in data]
        assert [line for line in lines if line.startswith("line ")] == [f"line {number}" for number in range(120)]
        assert heard[-1][0] == "end"
        state = [data for name, _, data in heard if name == "state"][-1]
        assert state["state"] == "SUCCEEDED" and "provisioning" in state["timeline"]
        (row,) = page.ask(f"/api/rows?ids={job.job_id}").json["rows"] or [()]
        assert row == () or row[2] == "SUCCEEDED"
        (listed,) = page.ask("/api/jobs").json["rows"]
        assert listed[0] == job.job_id
        (row,) = page.ask(f"/api/rows?ids={job.job_id}").json["rows"]
        assert (row[2], row[3], row[5], row[7]) == ("SUCCEEDED", "speak", "v5e-1", 1)
        free(job)
        (shown,) = page.ask("/api/slices").json["slices"]
        (printed,) = told(capsys, "slices")["slices"]
        assert {name: shown[name] for name in ("slice", "hardware", "state", "job", "zone", "served", "usd")} == {
            name: printed[name] for name in ("slice", "hardware", "state", "job", "zone", "served", "usd")
        }


@pytest.mark.turn(4)
def test_a_look_at_a_running_jobs_log_is_a_listing_unless_something_was_written(cloud: Emulator, jobs: Any) -> None:
    job: JobHandle[int] = run(speak, 40)
    assert job.result(timeout=150.0) == 40
    tail = portrait.Tail(job)
    assert sum(line[3].startswith("line ") for lines in tail.read() for line in lines) == 40
    calls: list[call_listeners.Call] = []
    with call_listeners.listening(calls.append):
        assert list(tail.read()) == []
    assert len(calls) == 1 and calls[0].request["query"]["prefix"].endswith(f"/beats/{job.job_id}/1/")
