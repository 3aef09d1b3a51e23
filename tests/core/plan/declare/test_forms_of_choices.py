"""A choice as configuration writes it: in YAML, in JSON, in a variable, and as a template renders it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetic_orchestration import Choice, Compute, Gpu, Kubernetes, Limits, TpuVm
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.options import check_part
from kinetic_orchestration.plan.declare.choices import accelerators_of, form_of, ways
from kinetic_orchestration.plan.declare.spec import Options

BOTH = ["v6e-8", "v5e-8"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("v6e-8", "v6e-8"),
        (" v6e-8,v5e-8 ", BOTH),
        ('["v6e-8", "v5e-8"]', BOTH),
        ("['v6e-8', 'v5e-8']", BOTH),
        (("v6e-8", "v5e-8"), BOTH),
        ({"accelerator": "v6e-8", "capacity": ["spot"]}, Choice("v6e-8", capacity=["spot"])),
        ('{"accelerator": "v6e-8", "limits": {"run": "2h"}}', Choice("v6e-8", limits=Limits(run="2h"))),
        ([{"accelerator": "l4", "cloud": {"disk_gib": 200}}], [Choice("l4", cloud=Compute(disk_gib=200))]),
        ([{"accelerator": "l4", "cloud": {"queue": "gpus"}}], [Choice("l4", cloud=Kubernetes(queue="gpus"))]),
        (Choice("v6e-8"), Choice("v6e-8")),
    ],
    ids=str,
)
def test_every_form_is_read_as_the_choice_that_it_means(given: Any, found: Any) -> None:
    assert accelerators_of(given) == found


@pytest.mark.parametrize(
    "choice",
    [
        Choice("v6e-8"),
        Choice("v6e-8", capacity=("spot", "on-demand"), regions=("us-east5",), limits=Limits(run="2h", cost=3)),
        Choice("v6e-8", cloud=TpuVm(network="lan", zones=("us-east5-a",))),
        Choice("l4", cloud=Compute(hosts=2, flex_start=False, disk_gib=200)),
        Choice("l4", cloud=Kubernetes(queue="gpus", clusters=("east",))),
    ],
    ids=str,
)
def test_a_choice_comes_back_from_json_as_it_was(choice: Choice) -> None:
    form = form_of([choice])
    assert json.loads(json.dumps(form)) == form
    [read] = accelerators_of(form)
    assert form_of([read]) == form
    assert (read.limits, type(read.cloud)) == (choice.limits, type(choice.cloud))
    for one, meant in zip(ways(Options(accelerator=[read])), ways(Options(accelerator=[choice])), strict=True):
        assert (one.accelerator, one.capacity, one.regions) == (meant.accelerator, meant.capacity, meant.regions)


def test_gpus_are_the_text_of_their_name() -> None:
    assert json.dumps(form_of([Gpu("l4", 4), "v6e-8"])) == '["l4x4", "v6e-8"]'


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[v6e-8, v5e-8", "which is no list: write names, separated by commas"),
        ({"capacity": ["spot"]}, "a choice names one accelerator"),
        ({"accelerator": ["v6e-8"]}, "a choice names one accelerator"),
        ({"accelerator": "v6e-8", "capasity": ["spot"]}, "a choice has no 'capasity': did you mean capacity"),
        ({"accelerator": "v6e-8", "limits": {"rum": "2h"}}, "the limits of a choice have no 'rum': did you mean run"),
        ({"accelerator": "v6e-8", "cloud": {"netwerk": "lan"}}, "the cloud of a choice has no 'netwerk'"),
    ],
    ids=str,
)
def test_a_form_that_means_nothing_is_refused_with_what_is_near(given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        accelerators_of(given)


def test_of_options_that_others_complete_only_what_nothing_could_mend_is_refused() -> None:
    check_part({"regions": ["us-east5"], "capacity": ["reservation", "spot"], "by": "price"})
    check_part({"accelerator": "v6e-8", "capacity": ["reservation"]})
    for given, says in (
        ({"regions": ["us-east5-a"]}, "it is a zone"),
        ({"capacity": ["sport"]}, "did you mean 'spot'"),
        ({"by": "luck"}, "by is 'luck'"),
        ({"accelerator": "v5e-8", "regions": ["us-east5"]}, "known to have none of v5e-8"),
        ({"cloud": TpuVm(), "capacity": ["reservation"]}, "none is named"),
        ({"spot": True, "capacity": ["on-demand"]}, "exclude each other"),
    ):
        with pytest.raises(UsageError, match=says):
            check_part(given)
