"""The time line of a job's attempts: a picture without colours of its own for text and ground, whoever named what."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from kinetic_orchestration.jobs.watching.usage import Stay, Took, phases_of
from kinetic_orchestration.protocol.report import curves, job_report, timeline
from kinetic_orchestration.protocol.report.timeline import Lane

pytestmark = pytest.mark.fast

SVG = "{http://www.w3.org/2000/svg}"


def test_an_attempts_time_is_queued_made_prepared_run_and_ended_without_a_gap() -> None:
    stay = Stay(1, "z", 40.0, 470.0, 380.0, Took(provision=50.0, prepare=20.0, teardown=10.0))
    assert phases_of(stay, 1000.0) == [
        ("queued", 1000.0, 1040.0), ("provisioning", 1040.0, 1090.0), ("preparing", 1090.0, 1110.0),
        ("running", 1110.0, 1500.0), ("ending", 1500.0, 1510.0),
    ]  # fmt: skip
    assert phases_of(Stay(1, "", 30.0, 0.0, 0.0), 0.0) == [("queued", 0.0, 30.0)]
    killed = Stay(1, "z", 0.0, 100.0, 0.0, Took(provision=10.0, prepare=5.0))
    assert phases_of(killed, 0.0)[-1] == ("running", 15.0, 100.0)
    never_began = Stay(1, "z", 0.0, 100.0, 0.0, Took(provision=10.0))
    assert phases_of(never_began, 0.0)[-1] == ("preparing", 10.0, 100.0)


def test_every_attempt_has_a_bar_as_long_as_its_parts_and_is_told_in_words() -> None:
    lanes = [
        Lane("attempt 1", [("queued", 0, 100), ("running", 100, 400)], "preemption"),
        Lane("attempt 2", [("running", 400, 1000)], "", goes_on=True),
    ]
    drawn = ElementTree.fromstring(timeline.draw(lanes))
    bars = [each for each in drawn.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    widths = [float(each.attrib["width"]) for each in bars]
    assert widths == pytest.approx([widths[0], 3 * widths[0], 6 * widths[0]], abs=0.2)
    assert [each.findtext(f"{SVG}title") for each in bars] == ["queued 1 min 40 s", "running 5 min", "running 10 min"]
    assert (
        drawn.attrib["aria-label"]
        == "attempt 1: queued 1 min 40 s, running 5 min (preemption); attempt 2: running 10 min"
    )
    assert timeline.draw([]) == timeline.draw([Lane("attempt 1", [])]) == ""
    many = timeline.draw([Lane(f"attempt {n}", [("running", n, n + 1)]) for n in range(500)])
    assert "and 488 earlier attempts" in many and len(many) < 10_000
    assert [timeline.took(each) for each in (0.02, 3.0, 59.7, 3725, 90_000)] == [
        "20 ms",
        "3 s",
        "1 min",
        "1 h 2 min",
        "1 d 1 h",
    ]


def test_a_picture_in_a_page_has_the_pages_colours_and_no_style_or_script_of_anyone() -> None:
    hostile = '</text><script>alert(1)</script><text onload="x" fill="#ffffff">'
    found = curves.Curves()
    for step in range(3):
        found.add(step, {hostile: float(step), "loss": 1.0 / (step + 1)})
    state = job_report.state_of("job-1", found)
    lanes = [Lane(hostile, [("running", 0, 1)], hostile)]
    for drawn in (
        timeline.draw(lanes),
        curves.themed(job_report.draw(state, hostile, keep=False)),
        timeline.shares({hostile: 2}),
    ):
        tree = ElementTree.fromstring(drawn)
        assert {each.tag.removeprefix(SVG) for each in tree.iter()} <= {
            "svg",
            "g",
            "rect",
            "path",
            "circle",
            "text",
            "title",
        }
        for each in tree.iter():
            assert not any(name.startswith("on") or name in ("style", "class", "href") for name in each.attrib)
            assert each.attrib.get("fill", "none") not in (curves.PAPER, curves.INK, curves.FAINT)
    html = timeline.in_notebook(hostile, hostile, [])
    assert "<script" not in html and not re.search(r"<[^>]*\son", html)
