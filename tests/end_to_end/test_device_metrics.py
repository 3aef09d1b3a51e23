"""The device samples of real jobs, while they run and afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import main
from kinetic_orchestration.host.devices import recorder
from kinetic_orchestration.host.devices.recorder import Recorder
from kinetic_orchestration.host.view.open_records import open_records
from kinetic_orchestration.plan.values import Devices, Event, Metrics, Progress
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.files import _Lock
from kinetic_orchestration.protocol.report import job_report

SVG = "{http://www.w3.org/2000/svg}"


def works(folder: str) -> int:
    """Work until a file lets it end; its first attempt fails one step after its checkpoint."""
    host = kinetic.current()
    training = kinetic.Training(total=1000, samples=16, every=None, log_every=1)
    steps = 0
    state, begun = training.restore({"steps": 0})
    ballast = bytearray(b"x") * ((host.host_index + 1) * (50 << 20))
    while not Path(folder, f"end-{host.attempt}").exists():
        until = time.monotonic() + 0.05 / (host.host_index + 1)
        while time.monotonic() < until:
            pass
        time.sleep(0.02)
        steps += 1
        training.step(begun + steps, {"steps": steps}, loss=1 / steps)
    del ballast, state
    training.close()
    if host.attempt == 1:
        raise ValueError("the first attempt ends badly")
    return host.attempt


def texts(drawn: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def heard(job: kinetic.JobHandle[Any], enough: Any) -> list[Event]:
    """The events of a follower until they suffice."""
    told: list[Event] = []
    stop = threading.Event()

    def emit(event: Event) -> None:
        told.append(event)
        if enough(told):
            stop.set()

    job.follow(emit, timeout=60, stop=stop)
    assert stop.is_set()
    return told


def newest(told: list[Event]) -> dict[int, dict[str, Any]]:
    return {event.host: event.values for event in told if isinstance(event, Devices)}


def is_under_way(told: list[Event]) -> bool:
    """Both hosts hold what they are to hold, and were measured twice; and the pace of the first is known."""
    samples = newest(told)
    measured = samples.keys() == {0, 1} and all("cpu" in sample for sample in samples.values())
    paced = any("steps/s" in event.values for event in told if isinstance(event, Metrics))
    return measured and paced and samples[0]["memory"] > 0.05 and samples[1]["memory"] > 0.1


@pytest.mark.slow
@pytest.mark.turn(0)
def test_what_two_hosts_do_is_seen_while_they_run_and_in_a_picture_of_all_attempts(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = kinetic.run(accelerator="v5p-8", retry=kinetic.Retry(user=1), distributed=False)(works).run_async(
        str(tmp_path)
    )
    told = heard(job, is_under_way)
    seen = newest(told)
    assert all(0.0 < sample["cpu"] < 2.0 for sample in seen.values()), seen
    assert 0.05 < seen[0]["memory"] < seen[1]["memory"] < 1.0, "the second one holds more"
    assert "kind" not in seen[0], "nothing is known of accelerators that are emulated"
    rates = [event.values for event in told if isinstance(event, Metrics) and "steps/s" in event.values]
    assert 0 < rates[-1]["steps/s"] < 25
    assert rates[-1]["samples/s"] == pytest.approx(16 * rates[-1]["steps/s"])
    assert not any("cpu" in event.values for event in told if isinstance(event, Metrics)), "they are no metrics"
    assert next(event.rate for event in reversed(told) if isinstance(event, Progress) and event.host == 0) > 0

    capsys.readouterr()
    main(["status", job.job_id])
    shown = capsys.readouterr().out
    assert re.search(r"^state +RUNNING \(\d+/1000 step, [\d.]+ step/s\)$", shown, re.M), shown
    for host in (0, 1):
        line = rf"^(devices| +) +host {host}: CPU [\d.]+ cores?, memory 0\.[\d]+ GiB$"
        assert re.search(line, shown, re.M), shown
    assert "productive, goodput" in shown
    main(["status", job.job_id, "--json"])
    told_json = json.loads(capsys.readouterr().out)
    assert set(told_json["devices"]) == {"0", "1"}
    assert told_json["progress"]["rate"] > 0
    assert told_json["picture"] is None

    (tmp_path / "end-1").touch()
    again = heard(job, lambda told: {event.attempt for event in told if isinstance(event, Metrics)} == {1, 2})
    assert again
    (tmp_path / "end-2").touch()
    assert job.result(timeout=60) == 2
    drawn = job.picture()
    assert drawn is not None
    said = texts(drawn)
    assert said[0] == "works"
    assert [panel for panel in said if panel in ("loss", "steps/s", "samples/s", "CPU, cores", "memory, GiB")] == [
        "loss", "steps/s", "samples/s", "CPU, cores", "memory, GiB",
    ]  # fmt: skip
    assert [text.rpartition(" ")[0] for text in said[said.index("memory, GiB") :] if text.startswith("host")] == [
        "host 0", "host 1",
    ]  # fmt: skip
    kept = job_report.read(drawn, job.job_id)
    assert kept["devices"]["panels"]["CPU, cores"]["host 1"]
    attempt_1 = max(event.step or 0 for event in told if isinstance(event, Metrics))
    assert kept["curves"]["loss"][0][0] == 1
    assert kept["devices"]["began"] <= seen[0]["at"], (
        f"it goes on with the one of attempt 1, which had {attempt_1} steps"
    )
    main(["status", job.job_id])
    shown = capsys.readouterr().out
    assert f"curves       {Path(job.output_dir).as_uri()}.svg" in shown
    assert not re.search("^devices", shown, re.M), "there are none any more"


def reports(seconds: float) -> int:
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step += 1
        kinetic.current().log_metrics(step=step, loss=1 / step)
        time.sleep(0.1)
    return step


def ends() -> int:
    """Once a report was cut off, and another one followed, as on a disk that was full for a while."""
    with Path(os.environ["KINETIC_EVENTS"]).open("ab") as events:
        events.write(b'p{"done": 1, p{"done":1.0,"total":2.0,"unit":"step"}\n\n\xff\n')
    kinetic.current().progress(2, 2, "step")
    return 1


@pytest.mark.slow
def test_nobody_measures_who_was_not_to_and_a_short_job_has_no_picture(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = kinetic.run(accelerator="cpu")(ends).run_async()
    monkeypatch.setenv("KINETIC_DEVICE_METRICS", "false")
    quiet = kinetic.run(accelerator="cpu")(reports).run_async(1.5)  # at the first second there would be a sample
    told: list[Event] = []
    quiet.follow(told.append, timeout=60)
    assert quiet.result(timeout=60) > 1
    assert not any(isinstance(event, Devices) for event in told)
    said = texts(quiet.picture() or b"")
    assert "loss" in said, "what it reported is drawn all the same"
    assert "memory, GiB" not in said
    assert short.result(timeout=60) == 1
    assert short.picture() is None
    assert short.picture_url() == ""


# ---- host 0 keeps it ---------------------------------------------------------------------------------------


def report(step: int) -> list[bytes]:
    return [json.dumps({"step": step, "values": {"loss": 1 / step}}).encode()]


def test_the_picture_is_kept_now_and_then_and_no_trouble_of_it_is_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "EVERY", 5.0)
    records = open_records(str(tmp_path))
    keeps = Recorder(records, "job-1", "ranker", 1, 1, now=0.0)
    keeps.keep_if_due(60.0)
    assert not keeps.close(), "there is nothing to draw"
    keeps.report(
        [
            b"[" * 100_000,
            b"{",
            b"[]",
            b'{"step": 1e999, "values": {"loss": 1}}',
            b'{"step": 1, "values": {"loss": "x"}}',
        ],
        1.0,
    )
    keeps.report(report(1), 1.0)
    keeps.measured(0, {"at": 1000.0, "cpu": 1.0})
    keeps.measured(0, {"at": 1000.0, "cpu": 9.0})  # the same again
    keeps.keep_if_due(4.0)
    keeps.keep_if_due(6.0)
    place = tmp_path / "outputs/job-1.svg"
    give_up = time.monotonic() + 20
    while not place.exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    keeps.report(report(2), 7.0)
    assert keeps.close(60.0)
    kept = job_report.read(place.read_bytes(), "job-1")
    assert [x for x, _ in kept["curves"]["loss"]] == [1.0, 2.0]
    assert kept["devices"]["panels"]["CPU, cores"] == {"host 0": [[0, 1.0, 1.0, 1, 1.0]]}

    with _Lock(records, names.picture("job-1")):  # a store that hangs
        before = time.monotonic()
        keeps.end()
        assert not keeps.close(0.3)
        assert time.monotonic() - before < 25  # of the 30 s for which the lock would be waited for
    assert keeps.close(60.0), "the one that hung is waited for, and does not write over the last"

    place.unlink()
    alone = Recorder(records, "job-1", "ranker", 1, 1, now=0.0)  # nobody measures the devices
    alone.report(report(1), 4.0)
    alone._wait(time.monotonic() + 20)
    assert not place.exists()
    alone.report(report(2), 6.0)
    alone._wait(time.monotonic() + 20)
    assert place.exists()

    place.unlink()
    place.mkdir()  # nothing can be written there
    assert not keeps.close()
    with contextlib.suppress(OSError):
        place.rmdir()
