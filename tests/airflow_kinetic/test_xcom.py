"""The rule for XCom."""

from __future__ import annotations

import pytest

from airflow_kinetic.xcom import LARGEST, plain_json


def test_small_json_is_handed_on_as_it_is() -> None:
    value = {"loss": 0.5, "steps": [1, 2], "done": True, "none": None}
    assert plain_json(value) == value
    assert plain_json((1, "a")) == [1, "a"]


@pytest.mark.parametrize(
    "value", [float("nan"), {1: "a"}, {"a": b"x"}, object(), "x" * LARGEST, {1, 2}], ids=lambda value: str(value)[:12]
)
def test_what_json_would_change_or_what_is_large_is_not(value: object) -> None:
    with pytest.raises(ValueError):
        plain_json(value)
