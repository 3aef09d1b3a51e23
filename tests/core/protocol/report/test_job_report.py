"""The picture of a job: what its devices did, in bounded memory; and that it goes on where an attempt before it ended."""

from __future__ import annotations

import json
import math
import random
from typing import Any
from xml.etree import ElementTree

import pytest

from kinetic_orchestration.protocol.report import job_report
from kinetic_orchestration.protocol.report.curves import Curves
from kinetic_orchestration.protocol.report.job_report import MOST_SLOTS, DeviceCurves

pytestmark = pytest.mark.fast

SVG = "{http://www.w3.org/2000/svg}"
BEGAN = 1_795_000_000.0


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def tpu(busy: float, chips: int = 4, used: float = 12.0) -> dict[str, Any]:
    return {
        "cpu": 1.5,
        "memory": 3.0,
        "kind": "tpu",
        "busy": [busy] * chips,
        "used": [used] * chips,
        "total": [16.0] * chips,
    }


def measured(hosts: int, samples: int, pace: float = 10.0, **sample: Any) -> DeviceCurves:
    devices = DeviceCurves(hosts)
    for number in range(samples):
        for host in range(hosts):
            devices.add(host, BEGAN + number * pace, {**tpu(50.0 + host), **sample})
    return devices


def reported(*points: tuple[int, float], **more: Any) -> Curves:
    curves = Curves()
    for step, loss in points:
        curves.add(step, {"loss": loss, **more})
    return curves


def drawn(curves: Curves, devices: DeviceCurves, job: str = "job-1") -> str:
    return job_report.draw(job_report.state_of(job, curves, devices), "ranker")


@pytest.mark.parametrize(
    ("hosts", "chips", "named"),
    [
        (1, 4, ["chip 0", "chip 1"]),
        (1, 8, ["lowest", "mean"]),
        (4, 4, ["host 0", "host 1"]),
        (64, 4, ["lowest", "mean"]),
    ],
)
def test_a_few_hosts_or_chips_have_a_curve_each_and_many_the_lowest_the_mean_and_the_highest(
    hosts: int, chips: int, named: list[str]
) -> None:
    devices = measured(hosts, 12, busy=[70.0 + chip for chip in range(chips)])
    said = texts(drawn(reported((1, 0.5), (2, 0.4)), devices))
    assert [panel for panel in ("loss", "TPU duty cycle, %", "HBM of 16 GiB", "CPU, cores", "memory, GiB") if panel in said] == [
        "loss", "TPU duty cycle, %", "HBM of 16 GiB", "CPU, cores", "memory, GiB",
    ]  # fmt: skip
    legend = said[said.index("TPU duty cycle, %") :]
    assert [next(text for text in legend if text.startswith(name)) for name in named]
    assert said.count("step") == 1
    assert said.count("s") == 4  # the time of each of theirs


def test_what_many_hosts_did_is_between_the_lowest_and_the_highest() -> None:
    panels, unit = job_report.panels_of(measured(64, 12).to_json())
    duty = panels["TPU duty cycle, %"]
    assert [duty[name][0].y for name in ("lowest", "mean", "highest")] == [50.0, pytest.approx(81.5), 113.0]
    assert unit == "s"


def test_a_month_of_a_thousand_hosts_is_no_more_than_a_minute_of_one() -> None:
    devices = DeviceCurves(1000)
    chosen = random.Random(1)
    for second in range(0, 30 * 86400, 600):
        devices.add(chosen.randrange(1000), BEGAN + second, tpu(chosen.random() * 100))
    state = devices.to_json()
    slots = [found for several in state["panels"].values() for found in several.values()]
    assert len(slots) == 4
    assert all(MOST_SLOTS / 4 < len(found) <= MOST_SLOTS for found in slots)
    assert len(drawn(Curves(), devices)) < 100_000
    assert job_report.panels_of(state)[1] == "h"


def test_between_two_attempts_is_a_gap() -> None:
    devices = measured(1, 5)
    devices.add(0, BEGAN + 1000, tpu(80))
    devices.add(0, BEGAN + 1010, tpu(80))
    points = job_report.panels_of(devices.to_json())[0]["CPU, cores"]["host 0"]
    assert [math.isnan(y) for _, y in points] == [False] * 5 + [True, False, False]


def test_a_host_that_measured_before_the_one_that_was_heard_first_has_the_axis_begin_with_it() -> None:
    devices = DeviceCurves(2)
    for host, time in ((0, 1010.0), (1, 1007.0), (0, 1020.0)):
        devices.add(host, time, {"cpu": 1.0})
    cores = job_report.panels_of(devices.to_json())[0]["CPU, cores"]
    assert [[point[0] for point in cores[host]] for host in ("host 0", "host 1")] == [[3.0, 13.0], [0.0]]


def test_a_later_attempt_goes_on_with_the_picture_of_the_one_before() -> None:
    first = drawn(reported(*((step, 1 / step) for step in range(1, 41))), measured(2, 6)).encode()
    before = job_report.read(first, "job-1")
    devices = DeviceCurves(2)
    for number in range(3):
        devices.add(0, BEGAN + 600 + 10 * number, tpu(90))
    now = job_report.state_of("job-1", reported((31, 0.3), (32, 0.2)), devices)
    both = job_report.joined(before, now)
    steps = [x for x, _ in both["curves"]["loss"]]
    assert steps == [float(step) for step in range(1, 33)]  # 31 to 40 were lost
    assert both["curves"]["loss"][-1] == [32.0, 0.2]
    cores = job_report.panels_of(both["devices"])[0]["CPU, cores"]["host 0"]
    assert [round(60 * x, -1) for x, y in cores if not math.isnan(y)] == [0, 10, 20, 30, 40, 50, 600, 610, 620]
    assert job_report.joined({}, now) == now
    assert ElementTree.fromstring(job_report.draw(both, "<ranker & co>")) is not None
    assert job_report.read(job_report.draw(both, "x").encode(), "job-1") == both


def test_what_is_not_a_number_stays_a_gap_in_the_record() -> None:
    kept = job_report.read(drawn(reported((1, 1.0), (2, math.nan), (3, 0.5)), DeviceCurves(1)).encode(), "job-1")
    assert kept["curves"]["loss"] == [[1.0, 1.0], [2.0, None], [3.0, 0.5]]


@pytest.mark.parametrize(
    "found",
    [
        b"", b"\xff\x00", b"<svg/>", b"<metadata>", b"<metadata>{}</metadata>", b"<metadata>[1]</metadata>",
        b'<metadata>{"job":"job-1","axis":"step","curves":{"a":[[1]]},"devices":{}}</metadata>',
        b'<metadata>{"job":"job-1","axis":"step","curves":{"a":[["x",1]]},"devices":{}}</metadata>',
        b'<metadata>{"job":"job-1","axis":"step","curves":{},"devices":{"began":0}}</metadata>',
        b'<metadata>{"job":"job-1","axis":"step","curves":{},"devices":{"began":0,"width":1,"total":{},"panels":{"p":{"s":[[0,1,1,0,1]]}}}}</metadata>',
        b'<metadata>{"job":"job-1","axis":"step","curves":{},"devices":{"began":0,"width":1e99,"total":{},"panels":{"p":{"s":[[1e99,1,1,1,1]]}}}}</metadata>',
        b"<metadata>" + b"[" * 100_000,
    ],
    ids=range(12),
)  # fmt: skip
def test_what_somebody_else_has_written_there_is_no_record(found: bytes) -> None:
    assert job_report.read(found, "job-1") == {}


@pytest.mark.parametrize("values", [(1.79e308, -1.79e308), (1e308, 1.0), (5e-324, 1.0), (1e249, 1e-249)])
def test_a_loss_beyond_all_measure_can_be_drawn(values: tuple[float, float]) -> None:
    points = reported((1, values[0]), (2, values[1]), (3, 0.5))
    devices = measured(1, 4, cpu=values[0])
    assert "loss" in texts(drawn(points, devices))


def test_the_picture_of_another_job_is_not_gone_on_with() -> None:
    assert job_report.read(drawn(reported((1, 1.0)), measured(1, 3)).encode(), "job-2") == {}


@pytest.mark.parametrize(
    "sample",
    [
        {},
        {"cpu": "x"},
        {"cpu": 10**400},
        {"cpu": math.nan},
        {"kind": "tpu", "busy": 3},
        {"kind": [], "busy": [1]},
        {"used": {}},
    ],
)
def test_what_is_no_sample_is_left_out(sample: dict[str, Any]) -> None:
    devices = DeviceCurves(2)
    devices.add(0, BEGAN, sample)
    assert not devices
    assert job_report.brief({**sample, "kind": "tpu"}) == (
        "" if "busy" not in sample or sample["busy"] == 3 else "TPU 1 %"
    )
    assert json.dumps(job_report.together({0: {}}))


def test_a_sample_in_a_few_words() -> None:
    assert job_report.brief(tpu(88.25)) == "TPU 88.2 %, HBM 12 of 16 GiB, CPU 1.5 cores, memory 3 GiB"
    uneven = {"kind": "gpu", "busy": [10.0, 95.0], "used": [1.0, 2.5], "total": [80.0, 80.0], "cpu": 1.0}
    assert job_report.brief(uneven) == "GPU 10 to 95 %, GPU memory 1 to 2.5 of 80 GiB, CPU 1 core"
    assert job_report.together({0: uneven, 1: {**uneven, "cpu": 3.0, "used": [7.0, 0.0]}}) == {
        "cpu_cores": 2.0, "gpu_busy_percent": 52.5, "gpu_memory_gib": 7.0,
    }  # fmt: skip
