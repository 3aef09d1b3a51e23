"""Several accelerators, regions and ways of buying, wherever a task or its connection says them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow

SPOT_ONLY = {"accelerator": "v6e-8", "capacity": ["spot"]}
BOTH = [["v6e-8"], ["v5e-8"]]


@pytest.mark.parametrize(
    ("given", "native", "ways"),
    [
        ({"accelerator": ["v6e-8", "v5e-8"]}, False, BOTH),
        ({"accelerator": ["{{ params.first }}", "v5e-8"]}, False, BOTH),
        ({"accelerator": "{{ params.names }}"}, False, BOTH),
        ({"accelerator": "{{ params.names | tojson }}"}, False, BOTH),
        ({"accelerator": "{{ params.names | join(', ') }}"}, False, BOTH),
        ({"accelerator": "{{ params.names }}"}, True, BOTH),
        ({"accelerator": "{{ params.choices }}"}, False, [["v6e-8", "spot"], ["v5e-8"]]),
        ({"accelerator": "{{ params.choices }}"}, True, [["v6e-8", "spot"], ["v5e-8"]]),
        ({"chosen": [{**SPOT_ONLY, "accelerator": "{{ params.first }}"}]}, False, [["v6e-8", "spot"]]),
        ({"accelerator": "v6e-8", "capacity": "{{ params.ways }}"}, False, [["v6e-8", "spot"], ["v6e-8", "on-demand"]]),
        ({"accelerator": "v6e-8", "capacity": ["{{ params.ways[0] }}"]}, False, [["v6e-8", "spot"]]),
        ({"accelerator": "v6e-8", "regions": "{{ params.regions }}"}, False, [["v6e-8", "us-east5", "us-central1"]]),
    ],
    ids=str,
)
def test_a_list_of_templates_and_a_template_of_a_list_are_what_they_render_to(
    airflow: Airflow, tmp_path: Path, given: dict[str, Any], native: bool, ways: list[list[str]]
) -> None:
    params = {
        "first": "v6e-8", "names": ["v6e-8", "v5e-8"], "choices": [SPOT_ONLY, "v5e-8"], "ways": ["spot", "on-demand"],
        "regions": ["us-east5", "us-central1"],
    }  # fmt: skip
    done = airflow("choices_of", tmp_path / "home", options=given, params=params, native=native)
    assert done.get("ways") == ways, done


def test_a_task_that_says_how_it_is_bought_means_google_cloud(airflow: Airflow, tmp_path: Path) -> None:
    options = {"accelerator": "v6e-8", "capacity": ["spot"], "regions": ["us-east5"]}
    done = airflow("choices_of", tmp_path / "home", options=options, params={})
    assert done["meant"] == ["capacity=['spot']", "regions=['us-east5']"]


def test_a_dag_is_stored_with_its_choices(airflow: Airflow, tmp_path: Path) -> None:
    both = [SPOT_ONLY, {"accelerator": "v5e-8"}]
    done = airflow("stored_with_its_dag", tmp_path / "home", chosen=both)
    assert done["one"] == [both, ["spot", "on-demand"]]
    assert done["mapped"] == [both, "v5e-8", SPOT_ONLY]
    assert done["by"] == "price"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one of several": ({"accelerator": ["v6e-8", "v5e-17"]}, "UnknownAccelerator.*v5e-16"),
    "none": ({"accelerator": []}, "or a list of names"),
    "a field of a choice": ({"accelerator": [{"accelerator": "v6e-8", "capasity": []}]}, "did you mean capacity"),
    "no way": ({"accelerator": "v6e-8", "capacity": ["preemptible"]}, "capacity has 'preemptible'"),
    "no way, whatever is rendered": ({"accelerator": "{{ params.a }}", "capacity": ["sport"]}, "did you mean 'spot'"),
    "two answers": ({"accelerator": "v6e-8", "spot": True, "capacity": ["on-demand"]}, "exclude each other"),
    "no rule": ({"accelerator": ["v6e-8", "v5e-8"], "by": "luck"}, "by is 'luck'"),
    "a zone": ({"accelerator": "v6e-8", "regions": ["us-east5-a"]}, "it is a zone"),
    "a batch that four hosts cannot share": (
        {"accelerator": ["v5e-16", "v5e-8"], "reshard": True, "global_batch": 30},
        "global_batch=30 cannot be divided among the hosts of v5e-16",
    ),
    "no flag": ({"accelerator": "v6e-8", "reshard": "yes"}, "reshard is 'yes', and should be True or False"),
    "no reservation": ({"accelerator": "v6e-8", "capacity": ["reservation"]}, "none is named for v6e-8"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_bad_choices_are_refused_while_the_dag_is_parsed(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    assert re.search(told, airflow("declare", tmp_path / "home", options=options)["refused"])


def test_a_choice_of_one_index_is_refused_while_the_dag_is_parsed(airflow: Airflow, tmp_path: Path) -> None:
    mapped = {"accelerator": [["v6e-4", "v5e-4"], ["v6e-4", "v5e-17"]]}
    done = airflow("declare_mapped", tmp_path / "home", ways=["operator"], mapped=mapped)
    assert "UnknownAccelerator: " in done["refused"][0] and "v5e-16" in done["refused"][0]
    mapped = {"accelerator": [["v6e-4", "v5e-4"], "v5e-8", [SPOT_ONLY]]}
    assert airflow("declare_mapped", tmp_path / "home", ways=["operator"], mapped=mapped)["refused"] == [None]


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": ["{{ params.first }}", "v5e-8"], "regions": ["us-east5"]},
        {"accelerator": "{{ params.choices }}", "capacity": "{{ params.ways }}", "by": "{{ params.rule }}"},
    ],
    ids=str,
)
def test_choices_that_are_known_only_when_they_are_rendered_are_not_refused_before(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any]
) -> None:
    assert "refused" not in airflow("declare", tmp_path / "home", options=options)


EXTRA = {"project": "p", "capacity": "spot, on-demand", "regions": ["us-east5", "us-central1"], "by": "price"}


@pytest.mark.parametrize(
    ("options", "spots", "zones", "by"),
    [
        ({"accelerator": "v6e-8"}, [True, False], "us-east5-a", "price"),
        ({"accelerator": "v6e-8", "spot": True}, [True], "us-east5-a", "price"),
        ({"accelerator": "v6e-8:spot"}, [True], "us-east5-a", "price"),
        ({"accelerator": "v6e-8", "capacity": ["on-demand"]}, [False], "us-east5-a", "price"),
        ({"accelerator": ["v6e-8"], "zones": ["us-east1-d"], "by": "order"}, [True, False], "us-east1-d", "order"),
    ],
    ids=str,
)
def test_a_connection_says_how_and_where_hosts_are_bought_unless_the_task_does(
    airflow: Airflow, home: Path, options: dict[str, Any], spots: list[bool], zones: str, by: str
) -> None:
    with Emulator() as cloud:
        environ = cloud.environ(project="p")
        done = airflow("choices_of", home, environ=environ, options=options, params={}, extra=EXTRA)
    assert [row[1] for row in done["planned"]] == spots, done
    assert {row[2][0] for row in done["planned"]} == {zones}
    assert done["planned_by"] == by or len(spots) == 1


def test_regions_of_a_connection_are_those_of_vms_alone(airflow: Airflow, home: Path) -> None:
    options = {"accelerator": "v6e-8", "backend": "gke", "cluster": "prod"}
    with Emulator() as cloud:
        environ = {**cloud.environ(project="p"), "KINETIC_SIGNING_KEY": "a key of sixteen characters"}
        done = airflow("choices_of", home, environ=environ, options=options, params={}, extra=EXTRA)
    assert "planned" in done, done
    assert [row[1] for row in done["planned"]] == [True, False]


def test_a_connection_that_says_what_cannot_be_is_named(airflow: Airflow, home: Path) -> None:
    with Emulator() as cloud:
        environ, extra = cloud.environ(project="p"), {"project": "p", "capacity": ["sport"]}
        done = airflow("choices_of", home, environ=environ, options={"accelerator": "v6e-8"}, params={}, extra=extra)
    assert (
        "the extra of the connection 'google_cloud_default' does not fit this task: capacity has 'sport'"
        in done["refused"]
    )


@pytest.mark.parametrize(
    ("options", "label", "user"),
    [
        ({"owner": "Vision"}, "Vision", "vision"),
        ({"owner": "vision", "labels": {"owner": "ann"}}, "ann", "ann"),
        ({"owner": "airflow"}, None, "worker"),
        ({}, None, "worker"),
    ],
    ids=str,
)
def test_the_owner_of_a_task_is_the_user_who_shares_chips_and_a_label_unless_nobody_named_one(
    airflow: Airflow, home: Path, options: dict[str, Any], label: str | None, user: str
) -> None:
    with Emulator() as cloud:
        environ = {**cloud.environ(project="p"), "KINETIC_CHIPS": "user:*=64", "USER": "worker"}
        asked = {"accelerator": "v5e-8", **options}
        done = airflow("choices_of", home, environ=environ, options=asked, params={}, extra={"project": "p"})
    assert (done["labels"].get("owner"), done["user"]) == (label, user), done
