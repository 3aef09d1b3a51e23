"""Curves of metrics: what is kept of them, and what the picture shows."""

from __future__ import annotations

import base64
import math
import re
from xml.etree import ElementTree

import pytest

from kinetic_orchestration.protocol.report import curves as picture
from kinetic_orchestration.protocol.report.curves import Curves, Point

pytestmark = pytest.mark.fast

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def paths(drawn: str) -> list[ElementTree.Element]:
    """The paths of curves, not of the grid."""
    return [path for path in ElementTree.fromstring(drawn).iter(f"{SVG}path") if path.get("fill") == "none"]


def height_of(drawn: str) -> int:
    return int(ElementTree.fromstring(drawn).get("height", ""))


def gathered(reports: int, **values) -> Curves:
    curves = Curves()
    for step in range(reports):
        curves.add(step, {name: function(step) for name, function in values.items()})
    return curves


def drawn(curves: Curves, **options) -> str:
    return picture.svg(picture.grouped(curves.points()), axis=curves.axis, **options)


def test_each_metric_has_a_panel_with_axes_its_validation_and_their_last_values():
    curves = gathered(40, loss=lambda x: 2 - x / 40, val_loss=lambda x: 2.2 - x / 40, accuracy=lambda x: x / 40)
    said = texts(drawn(curves, title="ranker"))
    assert said[0] == "ranker"
    assert [text for text in said if text in ("loss", "accuracy", "val_loss")] == ["loss", "accuracy"]
    assert "loss 1.025" in said and "val_loss 1.225" in said and "last 0.975" in said
    assert said.count("step") == 2 and {"0", "10", "20", "30"} <= set(said)  # the axis of each
    assert len(paths(drawn(curves))) == 3


def test_a_metric_over_decades_is_drawn_on_a_logarithmic_scale_and_one_with_a_zero_never():
    assert "logarithmic" in texts(drawn(gathered(50, loss=lambda x: 10.0 ** -(x / 10))))
    assert "logarithmic" not in texts(drawn(gathered(50, loss=lambda x: 0 if x == 49 else 10.0 ** -(x / 10))))
    assert "logarithmic" not in texts(drawn(gathered(50, loss=lambda x: 1 + x)))


def test_what_is_not_a_number_is_a_gap():
    curves = gathered(30, loss=lambda x: math.nan if 10 <= x < 15 else math.inf if x == 20 else 1.0 + x)
    [path] = paths(drawn(curves))
    assert path.get("d").count("M") == 3
    assert "nan" not in path.get("d") and "inf" not in path.get("d")
    assert math.isnan(gathered(3, loss=lambda _: math.nan).last["loss"])
    assert "no finite value was reported" in texts(drawn(gathered(3, loss=lambda _: math.nan)))


def test_a_metric_without_a_finite_value_is_named_below_and_takes_no_panel_beside_others():
    one = drawn(gathered(9, loss=float))
    both = drawn(gathered(9, loss=float, odd=lambda _: math.nan, spike=lambda _: math.inf))
    assert "no finite value: odd, spike" in texts(both) and "odd" not in texts(both)
    assert height_of(both) < height_of(one) + 20


def test_the_axis_of_an_amount_that_was_zero_throughout_has_nothing_below_zero():
    said = texts(picture.svg({}, amounts={"CPU, cores": {"": [(0, 0.0), (9, 0.0)]}}, amounts_axis="s"))
    assert "0" in said and not [text for text in said if text.startswith("-")]


def test_each_of_four_hosts_has_its_name_in_the_legend_with_its_value_where_there_is_room():
    def hosts(count: int, value: float, name: str = "host") -> list[str]:
        return texts(picture.svg({}, amounts={"x": {f"{name} {n}": [(0, value), (9, value)] for n in range(count)}}))

    assert {f"host {n}" for n in range(4)} < set(hosts(4, 0.0233))
    assert {f"host {n} 2" for n in range(4)} < set(hosts(4, 2.0))
    assert {"worker 0 0.5", "worker 1 0.5", "and 4 more"} < set(hosts(6, 0.5, "worker"))


def test_one_point_is_a_dot_and_a_constant_a_line():
    assert len(list(ElementTree.fromstring(drawn(gathered(1, loss=lambda _: 3.0))).iter(f"{SVG}circle"))) == 2
    [path] = paths(drawn(gathered(5, loss=lambda _: 3.0)))
    assert re.fullmatch(r"M[\d.]+ [\d.]+l([\d.]+ 0 ?){4}", path.get("d"))


def test_a_long_training_stays_small_and_keeps_its_spikes():
    curves = gathered(100_000, loss=lambda x: 500.0 if x == 77_777 else 1 + math.sin(x), rate=lambda x: x)
    points = curves.points()["loss"]
    assert len(points) <= picture.MOST_POINTS
    assert max(point.y for point in points) == 500.0
    assert [point.x for point in points] == sorted(point.x for point in points)
    assert points[-1].x == 99_999
    assert len(picture.markdown(drawn(curves))) < 50_000


def test_however_much_there_is_the_picture_stays_under_fifty_kilobytes():
    panels = {
        f"metric {panel}": {f"job {job}": [(x, math.sin(x * job) * 1e-5 + x) for x in range(300)] for job in range(200)}
        for panel in range(9)
    }
    made = picture.svg(panels, crowd="jobs", title="x" * 300)
    assert len(picture.markdown(made)) < 50_000
    said = texts(made)
    assert "24 of 200 jobs" in said
    assert "and 3 more: metric 6, metric 7, metric 8" in said


def test_names_are_text_whatever_is_in_them():
    curves = gathered(3, **{"<script>alert(1)</script>&\x07": lambda x: x})
    assert "<script>" not in drawn(curves, title="<b>")
    assert "<script>alert(1)</script>& " in texts(drawn(curves))


def test_work_that_was_done_again_after_a_preemption_takes_the_place_of_what_was_lost():
    curves = Curves()
    for step in range(10):
        curves.add(step, {"loss": 1.0}, attempt=1)
    for step in range(6, 12):
        curves.add(step, {"loss": 2.0}, attempt=2)
    assert curves.points()["loss"] == [Point(x, 1.0) for x in range(6)] + [Point(x, 2.0) for x in range(6, 12)]


def test_steps_that_begin_anew_are_another_line():
    curves = Curves()
    for step in (0, 1, 2, 0, 1, 2):
        curves.add(step, {"loss": float(step)})
    assert [math.isnan(point.y) for point in curves.points()["loss"]] == [False] * 3 + [True] + [False] * 3


def test_reports_without_steps_are_counted():
    curves = Curves()
    for value in (3.0, 2.0):
        curves.add(None, {"loss": value})
    assert curves.points()["loss"] == [(1, 3.0), (2, 2.0)]
    assert curves.axis == "report"
    assert Curves().axis == "step" and not Curves()


def test_more_metrics_than_can_be_kept_are_left_out():
    curves = Curves()
    curves.add(0, {f"metric {number}": 1.0 for number in range(picture.MOST_CURVES + 3)})
    assert len(curves.points()) == picture.MOST_CURVES


def test_a_spark_is_short_enough_to_be_shown_in_a_table():
    for points in (
        [(x, math.sin(x)) for x in range(5000)],
        [(x, 10.0**-x if x % 7 else math.nan) for x in range(30)],
        [(0, 1.0)],
        [(0, math.nan)],
        [(x, x * 1.0 if x % 2 else math.nan) for x in range(1000)],
    ):
        made = picture.spark(points)
        ElementTree.fromstring(made)
        assert len(picture.markdown(made)) < 1000
    assert len(paths(picture.spark([(0, 1.0), (1, 2.0)]))) == 1


def test_the_image_carries_all_of_itself():
    made = drawn(gathered(5, loss=lambda x: x))
    text = picture.markdown(made, "loss")
    assert text.startswith("![loss](data:image/svg+xml;base64,") and text.endswith(")")
    inside = base64.b64decode(text.split(",")[1][:-1]).decode()
    assert texts(inside) == texts(made) and len(paths(inside)) == len(paths(made))
    assert "http" not in made.replace('xmlns="http://www.w3.org/2000/svg"', "")


@pytest.mark.parametrize(
    "low, high, expected",
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (0, 7, [0, 2, 4, 6]), (-1, 1, [-1, -0.5, 0, 0.5, 1]), (3, 3, [3])],
)
def test_ticks_are_round(low, high, expected):
    assert picture.ticks(low, high) == pytest.approx(expected)


def test_ticks_of_steps_are_whole():
    assert picture.ticks(0, 2, whole=True) == [0, 1, 2]


def test_decades_are_few():
    assert picture.decades(0.002, 40) == pytest.approx([0.01, 0.1, 1, 10])
    assert picture.decades(1e-12, 1) == pytest.approx([1e-12, 1e-9, 1e-6, 1e-3, 1])


@pytest.mark.parametrize(
    "value, said",
    [(0, "0"), (0.25, "0.25"), (1234, "1234"), (12_345, "12.35k"), (2_500_000, "2.5M"), (1e-5, "1e-5"), (-0.5, "-0.5")],
)
def test_numbers_are_short(value, said):
    assert picture.number(value) == said


@pytest.mark.parametrize(
    "name, base",
    [
        ("val_loss", "loss"),
        ("train/loss", "loss"),
        ("validation.accuracy", "accuracy"),
        ("val_", "val_"),
        ("values", "values"),
    ],
)
def test_a_variant_belongs_to_its_metric(name, base):
    assert picture.base_of(name) == base


def test_an_image_is_seen_on_a_light_page_and_on_a_dark_one():
    """It has no paper, and all its colours have three times the luminance of either ground, or a third."""
    crowd = {name: (lambda x, name=name: x + len(name)) for name in ("loss", "val_loss", "train_loss", "test_loss")}
    made = picture.markdown(drawn(gathered(9, **crowd), title="x"))
    tree = ElementTree.fromstring(base64.b64decode(made.split(",")[1][:-1]))
    used = {each.get(name) for each in tree.iter() for name in ("fill", "stroke")} - {None, "none"}
    assert len(used) == 5 and all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in used)
    for colour in used:
        for ground in ("#ffffff", "#030615"):  # Dagster's
            assert contrast(colour, ground) > 3, (colour, ground)


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours' luminances, by WCAG 2.2."""
    dark, light = sorted(luminance(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
