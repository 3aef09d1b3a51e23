"""The rule for XCom."""

from __future__ import annotations

import pytest

from airflow_kinetic.shared.outcome import plain_json

LARGEST = 1000


def test_small_json_is_handed_on_as_it_is() -> None:
    value = {"loss": 0.5, "steps": [1, 2], "done": True, "none": None}
    assert plain_json(value, LARGEST) == value
    assert plain_json((1, "a"), LARGEST) == [1, "a"]


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1: "a"}, {"a": b"x"}, object(), "x" * LARGEST, {1, 2}, "a\0b", {"a\0b": 1}, "\ud800", ENDLESS],
    ids=lambda value: ascii(value)[:12],
)
def test_what_json_would_change_or_what_is_large_is_not(value: object) -> None:
    with pytest.raises(ValueError):
        plain_json(value, LARGEST)
