"""Options of capacity wherever a task takes options of its job; and what is refused while a DAG is parsed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinetic_orchestration.plan.declare.choices import OF_CAPACITY
from tests.airflow_kinetic.conftest import Airflow
from tests.support.capacity_options import ACCELERATORS, VALUES
from tests.support.refusals import ALLOWED, REFUSALS

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow

ON_CLOUD = {"KINETIC_STORE": "gs://b/p", "KINETIC_DEPLOYMENT": "d"}


def test_each_place_takes_all_options_of_capacity(airflow: Airflow, tmp_path: Path) -> None:
    found = airflow(
        "options_by_each_way", tmp_path / "home", given=VALUES, others={"accelerator": ACCELERATORS}, environ=ON_CLOUD
    )
    ways = ("the task", "templates", "native templates", "the decorator", "the connection")
    assert {way: found[way] for way in ways} == dict.fromkeys(ways, VALUES)


def test_a_connection_may_have_all_of_them_as_text(airflow: Airflow, tmp_path: Path) -> None:
    texts = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in VALUES.items()}
    found = airflow(
        "options_by_each_way", tmp_path / "home", given=texts, others={"accelerator": ACCELERATORS}, environ=ON_CLOUD
    )
    for way in ("templates", "the connection"):
        assert found[way] == VALUES


def test_what_a_task_says_counts_more_than_its_connection(airflow: Airflow, tmp_path: Path) -> None:
    own = {"by": "order", "race": 1, "keep": "0s", "reshard": False, "global_batch": 8, "priority": 0}
    found = airflow(
        "options_by_each_way", tmp_path / "home", given=VALUES, others={"accelerator": ACCELERATORS, **own},
        environ=ON_CLOUD,
    )  # fmt: skip
    assert {name: found["the connection"][name] for name in own} == own


@pytest.mark.parametrize("name", sorted(set(OF_CAPACITY) - {"capacity", "regions"}))
def test_a_template_that_renders_to_nothing_asks_for_nothing(airflow: Airflow, tmp_path: Path, name: str) -> None:
    found = airflow("options_by_each_way", tmp_path / "home", given={name: ""}, others={"accelerator": "v5e-8"},
                    environ=ON_CLOUD)  # fmt: skip
    assert found["templates"][name] in (None, False, 0, 1, "order")


def test_what_can_never_be_is_refused_while_the_dag_is_parsed(airflow: Airflow, tmp_path: Path) -> None:
    rows = [[row.options, row.environ] for row in REFUSALS.values()]
    done = airflow("declare_each", tmp_path / "home", rows=rows)
    for way in ("operator", "decorator", "mapped"):
        for (name, row), told in zip(REFUSALS.items(), done[way], strict=True):
            assert told is not None and re.search(row.says, told), f"{way}, {name}: {told}"


def test_what_may_be_or_is_known_only_when_it_is_rendered_is_not_refused_there(
    airflow: Airflow, tmp_path: Path
) -> None:
    later = [
        [{"accelerator": "{{ params.a }}", "global_batch": 30}, {}],
        [{"accelerator": "{{ params.a }}"}, {"KINETIC_CHIPS": "v5e=4"}],
        [{"accelerator": "v5e-16", "global_batch": "{{ params.batch }}"}, {}],
        [{"accelerator": "v5e-8", "keep": "{{ params.keep }}", "container_image": "a/train:7"}, {}],
        [{"accelerator": "v5e-8", "keep": "10m", "container_image": "{{ params.image }}"}, {}],
        [{"accelerator": "v5e-8", "race": "{{ params.race }}", "reshard": "{{ params.reshard }}"}, {}],
        [{"accelerator": "h100x4", "backend": "compute", "capacity": "{{ params.way }}"}, {}],
        [{"accelerator": "h100x4", "backend": "compute"}, {}],  # the connection may say how they are bought
    ]
    done = airflow("declare_each", tmp_path / "home", rows=[*map(list, ALLOWED.values()), *later])
    for way in ("operator", "decorator", "mapped"):
        assert done[way] == [None] * (len(ALLOWED) + len(later)), way
