"""The parts of its task's context that a function may request by name."""

from __future__ import annotations

import pytest

from airflow_kinetic.shared.location import listed
from airflow_kinetic.shared.parameters.arguments import is_final, untemplated, with_context
from kinetic_orchestration.errors import UsageError

pytestmark = pytest.mark.fast


def train(rate: float, run_id: str, ds: str = "none") -> None: ...


def of_a_day(ds: str) -> None: ...


def test_what_is_asked_for_by_name_comes_from_the_context_unless_it_is_given() -> None:
    context = {"run_id": "a run", "ds": "2026-01-25", "ti": object()}
    assert with_context(train, (0.1,), {}, context) == {"run_id": "a run", "ds": "2026-01-25"}
    assert with_context(train, (0.1,), {"run_id": "another"}, context) == {"run_id": "another", "ds": "2026-01-25"}


def test_a_run_without_a_logical_date_has_no_day() -> None:
    assert with_context(train, (0.1,), {}, {"run_id": "a run"}) == {"run_id": "a run"}
    with pytest.raises(UsageError, match=r"asks for 'ds'.* without a logical date does not have"):
        with_context(of_a_day, (), {}, {"run_id": "a run"})


@pytest.mark.parametrize(
    "given",
    ["a-1,b-2", "a-1, b-2", "['a-1', 'b-2']", '["a-1", "b-2"]', "('a-1', 'b-2')", ["a-1", "b-2"], ("a-1,b-2",)],
    ids=str,
)
def test_names_are_a_list_or_what_a_template_of_one_renders_to(given: object) -> None:
    assert listed(given) == ["a-1", "b-2"]  # type: ignore[arg-type]


def test_of_nothing_there_are_no_names() -> None:
    assert listed("") == listed(()) == listed("[]") == []


def test_text_is_no_list_and_no_dict() -> None:
    with pytest.raises(UsageError, match=r"op_args is the text '\[1, 2\]' after rendering: write op_args=\[…\]"):
        untemplated("[1, 2]", "op_args", "[…]")
    assert untemplated([1], "op_args", "[…]") == [1]


def test_a_list_is_no_dict_and_the_other_way_round() -> None:
    with pytest.raises(UsageError, match=r"op_kwargs is \[1\], which is no dict: write op_kwargs=\{…\}"):
        untemplated([1], "op_kwargs", "{…}")
    with pytest.raises(UsageError, match=r"op_args is \{'a': 1\}, which is no list: write op_args=\[…\]"):
        untemplated({"a": 1}, "op_args", "[…]")
    with pytest.raises(UsageError, match="op_args is 5, which is no list"):
        untemplated(5, "op_args", "[…]")
    assert untemplated(None, "labels", "{…}") is None


@pytest.mark.parametrize("unknown", ["{{ ds }}", ["a", "{% if x %}"], {"a": "{{ ds }}"}, object()])
def test_what_has_a_template_or_comes_from_another_task_is_not_known_before(unknown: object) -> None:
    assert not is_final(unknown)
    assert is_final(["a", {"b": 1}, None])
