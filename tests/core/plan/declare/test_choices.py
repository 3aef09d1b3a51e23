"""A choice instead of a name: what each way is, in which order, and what is refused before anything is planned."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity import choosing
from kinetic_orchestration.errors import NoPlace, NotEmulated, UsageError
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import MOST_CHOICES, Choice, told, ways
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, slice_of
from kinetic_orchestration.plan.hardware.accelerators import Gpu
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.plan.planner.describing import capacity_of
from kinetic_orchestration.plan.values import Plan

pytestmark = pytest.mark.fast

CLOUD = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d"}
EAST, WEST = "us-east5", "europe-west4"


def settings(home: Path, **environ: str) -> Settings:
    return load({"KINETIC_HOME": str(home), "KINETIC_PROFILE_FILE": "/none", **environ})


def planned(home: Path, options: Options, **environ: str) -> Plan:
    spec = JobSpec("train", check_options(options))
    return planner.make_plan(spec, settings(home, **{**CLOUD, **environ}), {})


def shown(plan: Plan) -> list[tuple[str, str, str]]:
    return [(one.slice.name, one.backend, capacity_of(one) or "on-demand") for one in plan.each()]


# ---- the order ---------------------------------------------------------------------------------------------------


def test_ways_are_outermost_and_accelerators_inside() -> None:
    """Spot first, and on demand when it must be."""
    found = ways(Options(["v6e-16", "v5p-16"], capacity=["spot", "on-demand"]))
    assert [told(one) for one in found] == ["v6e-16, spot", "v5p-16, spot", "v6e-16, on-demand", "v5p-16, on-demand"]
    assert [one.spot for one in found] == [True, True, False, False]


def test_a_choice_has_ways_regions_limits_and_a_cloud_of_its_own() -> None:
    own = Choice("v5p-16", capacity="on-demand", regions=[WEST], limits=Limits(run="1h"), cloud=TpuVm(network="n"))
    first, second, third = ways(Options(["v6e-16", own], capacity=["spot", "on-demand"], regions=[EAST]))
    assert (first.accelerator, first.regions, first.cloud) == ("v6e-16", (EAST,), None)
    assert (second.accelerator, second.capacity) == ("v6e-16", ("on-demand",))
    assert (third.capacity, third.regions, third.limits, third.cloud) == (
        ("on-demand",), (WEST,), Limits(run="1h"), TpuVm(network="n"),
    )  # fmt: skip


def test_an_order_of_its_own_is_kept() -> None:
    own = Choice("v5p-16", capacity=["on-demand", "spot"])
    found = ways(Options(["v6e-16", own], capacity=["spot", "on-demand"]))
    assert [told(one) for one in found] == ["v6e-16, spot", "v6e-16, on-demand", "v5p-16, on-demand", "v5p-16, spot"]


def test_spot_behind_a_name_is_the_only_way_of_that_accelerator() -> None:
    found = ways(Options(["v6e-16:spot", "v5p-16"], capacity=["spot", "on-demand"]))
    assert [told(one) for one in found] == ["v6e-16:spot, spot", "v5p-16, spot", "v5p-16, on-demand"]


def test_each_way_takes_from_the_cloud_what_is_its_own() -> None:
    cloud = Compute(reservation="mine", reservation_bound=True, network="n")
    reserved, flexible, spot = ways(Options("v6e-8", cloud=cloud, capacity=["reservation", "flex-start", "spot"]))
    assert reserved.cloud == cloud and spot.cloud == Compute(network="n")
    assert flexible.cloud == Compute(network="n", flex_start=True)
    queued = Kubernetes(flex_start=True, queued_provisioning=True, queue="q")
    flexible, demand = ways(Options("v6e-8", cloud=queued, capacity=["flex-start", "on-demand"]))
    assert flexible.cloud == queued and demand.cloud == Kubernetes(queue="q")


@pytest.mark.parametrize("capacity", ["spot", ["spot"]])
def test_one_accelerator_and_one_way_are_an_ordinary_job(capacity: Any, home: Path) -> None:
    plain = planned(home, Options("v6e-16", spot=True))
    assert planned(home, Options(["v6e-16"], capacity=capacity)) == plain and "choices" not in plain.to_json()
    assert planned(home, Options("v6e-16", cloud=Compute(flex_start=True))) == planned(
        home, Options("v6e-16", capacity="flex-start", backend="compute")
    )


# ---- plans -------------------------------------------------------------------------------------------------------


def test_a_plan_has_a_candidate_for_each_way_on_the_backend_that_has_it(home: Path) -> None:
    options = Options(["v6e-16", "v5p-16", Gpu("h100", 8)], regions=[EAST, WEST], by="price")
    plan = planned(home, Options(**{**_fields(options), "capacity": ["flex-start", "spot", "on-demand"]}))
    assert shown(plan) == [
        *(
            ("v6e-16", "compute", "flex-start"),
            ("v5p-16", "compute", "flex-start"),
            ("h100x8", "compute", "flex-start"),
        ),
        *(("v6e-16", "tpu-vm", "spot"), ("v5p-16", "tpu-vm", "spot"), ("h100x8", "compute", "spot")),
        *(("v6e-16", "tpu-vm", "on-demand"), ("v5p-16", "tpu-vm", "on-demand"), ("h100x8", "compute", "on-demand")),
    ]
    assert plan.by == "price" and plan.at(0) == plan and plan.hosts == 4
    assert plan.choices[3].zones == ("us-east5-a", "us-east5-b", "europe-west4-a")
    assert plan.choices[5].zones == tuple(f"{region}-{letter}" for region in (EAST, WEST) for letter in "abc")
    assert plan.choices[3].usd.keys() == set(plan.choices[3].zones) and plan.choices[3].usd["us-east5-a"] > 16
    assert plan.choices[3].usd["us-east5-a"] < plan.choices[6].usd["us-east5-a"]
    assert Plan.from_json(plan.to_json()) == plan


def _fields(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("accelerator", "regions", "by")}


def test_each_candidate_has_the_seconds_that_its_money_pays_for(home: Path) -> None:
    plan = planned(home, Options(["v6e-16", "v6e-8"], regions=[EAST], limits=Limits(cost=100)))
    large, small = plan.choices
    assert large.affordable and small.affordable == pytest.approx(2 * large.affordable)
    assert "x" not in planned(home, Options(["l4", "v6e-8"], regions=["us-central1", EAST])).choices[0].usd


def test_flex_start_brings_its_own_longest_run_into_a_choice(home: Path) -> None:
    options = Options("v6e-8", capacity=["flex-start", "on-demand"], limits=Limits(run="10d"), regions=[EAST])
    with pytest.warns(UserWarning, match=r"limits.run is 10d; an attempt that comes by flex-start gets 167h"):
        plan = planned(home, options)
    assert [one.limits.run for one in plan.choices] == [167 * 3600, 10 * 86400]
    with pytest.raises(UsageError, match="choose a limit from 10m to 167h"):
        planned(home, replace(options, capacity="flex-start"))


def test_the_limits_of_each_choice_are_shown_where_they_differ(home: Path) -> None:
    def shown_limits(*ways: Any, **options: Any) -> list[str]:
        asked = Options(list(ways), regions=["us-central1", EAST], **options)
        return [line[13:] for line in planner.describe(planned(home, asked)).splitlines() if line.startswith("limits ")]

    longer = Choice("v5e-8", limits=Limits(run="6h"))
    assert shown_limits("v6e-8", longer, capacity=["spot", "on-demand"], limits=Limits(run="2h", cost=40)) == [
        "provision 6h, run 2h, for v6e-8",
        "provision 6h, run 6h, for v5e-8",
        "cost $40.00 (pays for 1.54 h in the dearest of its choices)",
    ]
    assert shown_limits("v6e-8", "v5e-8", limits=Limits(run="2h")) == ["provision 6h, run 2h"]
    with pytest.warns(UserWarning, match=r"limits.run is 9d"):
        told = shown_limits("v6e-8", "v5p-8", capacity=["flex-start", "on-demand"], limits=Limits(run="9d"))
    assert told == [
        "provision 6h, run 167h, for v6e-8 flex-start and v5p-8 flex-start",
        "provision 6h, run 9d, for v6e-8 on-demand and v5p-8 on-demand",
    ]


def test_each_choice_has_the_labels_of_its_own_cloud(home: Path) -> None:
    first = Choice("v6e-8", cloud=TpuVm(labels={"team": "a"}))
    second = Choice("v5p-8", cloud=TpuVm(labels={"cheap": "yes"}))
    plan = planned(home, Options([first, second, "v5e-8"], labels={"of": "all"}))
    assert [one.labels for one in plan.each()] == [
        {"of": "all", "team": "a"}, {"of": "all", "cheap": "yes"}, {"of": "all"},
    ]  # fmt: skip
    assert Plan.from_json(plan.to_json()).each()[1].labels == {"of": "all", "cheap": "yes"}


def test_an_unknown_price_is_absent_and_never_nothing(home: Path) -> None:
    plan = planned(home, Options(["v6e-16", "b200x8"], regions=[EAST]))
    assert all(usd > 0 for one in plan.choices for usd in one.usd.values())


def test_what_stands_in_for_a_price_that_is_not_known_is_part_of_the_plan(home: Path) -> None:
    asked = Options(["v5e-8", "v6e-8"], capacity=["spot", "on-demand"], regions=["us-central1"], by="price")
    plan = planned(home, asked, KINETIC_PRICES="v5e:spot=0.5")
    assert [one.stand_ins for one in plan.choices] == [
        {}, {"us-central1-b": "of asia-northeast1, the dearest"},
        {}, {"us-central1-b": "of asia-northeast1, the dearest"},
    ]  # fmt: skip
    assert Plan.from_json(plan.to_json()) == plan == plan.joined(plan.each())
    assert ["stand_ins" in one for one in plan.to_json()["choices"]] == [False, True, False, True]
    lines = choosing.table(plan, {}, 0.0)
    assert [line.stands_in for line in lines] == ["", "", *["of asia-northeast1, the dearest"] * 2]
    assert [line.reason.startswith("~$") for line in lines] == [False, False, True, True]


def test_regions_count_more_than_the_zones_of_settings(home: Path) -> None:
    assert planned(home, Options("v6e-16", regions=WEST), KINETIC_ZONES="us-east5-a").zones == ("europe-west4-a",)


def test_regions_count_more_than_the_bucket(home: Path) -> None:
    """Only what nobody named is narrowed to the bucket, and what has no zone there is left out of the choice."""
    here, bucket = settings(home, **CLOUD), Location("b", "EUROPE-WEST4", (WEST,))
    options = Options(["v6e-16", Choice("v5p-16", regions=[EAST]), "v4-8"])
    with pytest.warns(UserWarning, match="left out of the choice: v4-8 is not known to be in EUROPE-WEST4"):
        plan = planner.near_bucket(planned(home, options), bucket, here, options)
    assert [(one.slice.name, one.zones, list(one.usd)) for one in plan.choices] == [
        ("v6e-16", ("europe-west4-a",), ["europe-west4-a"]), ("v5p-16", ("us-east5-a",), ["us-east5-a"]),
    ]  # fmt: skip
    alone = Options(["v4-8", "v4-16"])
    with pytest.raises(NoPlace, match="v4-8 is not known"):
        planner.near_bucket(planned(home, alone), bucket, here, alone)


def test_this_machine_is_one_place_and_one_way(home: Path) -> None:
    local = {"KINETIC_PROJECT": "", "KINETIC_STORE": "", "KINETIC_DEPLOYMENT": "", "KINETIC_BACKEND": "local"}
    options = Options(["v5e-16", "v5e-8"], capacity=["spot", "on-demand"], regions=["us-west4"])
    with pytest.warns(UserWarning, match="regions=, capacity= have no meaning on the local backend"):
        plan = planned(home, options, **local)
    assert [(one.slice.name, one.zones, one.usd) for one in plan.choices] == [("v5e-16", (), {}), ("v5e-8", (), {})]


@pytest.mark.parametrize("named", [{"capacity": ["spot"]}, {"regions": ["us-west4"]}])
def test_what_means_a_cloud_is_never_emulated_because_a_setting_is_missing(named: dict[str, Any], home: Path) -> None:
    here = {"KINETIC_PROJECT": "", "KINETIC_STORE": "", "KINETIC_DEPLOYMENT": ""}
    ((name, value),) = named.items()
    with pytest.raises(NotEmulated, match=re.escape(f"{name}={value!r} means Google Cloud, and ")):
        planned(home, Options("v5e-8", **named), **here)
    with pytest.raises(NotEmulated):
        planned(home, Options(["v5e-8", "v5e-16"], **named), **here)
    assert len(planned(home, Options(["v5e-8", "v5e-16"]), **here).choices) == 2


def test_the_places_of_the_bucket_are_noted_where_they_decide_between_equals(home: Path) -> None:
    here, bucket = settings(home, **CLOUD), Location("b", "EUROPE-WEST4", (WEST,))
    options = Options(["v6e-16", "v5p-16"], regions=[EAST, WEST], by="price")
    plan = planned(home, options)
    assert planner.needs_location(plan, options, here)
    found = planner.near_bucket(plan, bucket, here, options)
    assert [one.zones for one in found.choices] == [one.zones for one in plan.choices], "regions count more"
    assert [one.near for one in found.choices] == [("europe-west4-a",), ("europe-west4-b",)], "as published"
    assert Plan.from_json(found.to_json()) == found == found.joined(found.each())
    own = replace(options, by="order")
    assert not planner.needs_location(planned(home, own), own, here), "the user's order has no equals"


def test_the_names_of_the_first_way_stand_for_the_whole() -> None:
    assert slice_of(Options([Choice("v5p-8", capacity="spot"), "v6e-8"])).name == "v5p-8"


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"accelerator": []}, "accelerator is a name such as 'v5e-8', or a list of names, not []"),
        ({"accelerator": ["v6e-8", 8]}, "or a list of names, not ['v6e-8', 8]"),
        ({"accelerator": ["v6e-8", "v6e-8"]}, "accelerator names v6e-8 twice: keep one"),
        ({"accelerator": ["v6e-8", "v6f-8"]}, "No accelerator 'v6f-8'"),
        ({"capacity": []}, "capacity is []: it is a list such as ['spot', 'on-demand']"),
        ({"capacity": ["spots"]}, "capacity has 'spots': it can have 'on-demand', 'spot', 'flex-start' or 'reservation'"),
        ({"capacity": ["spots"]}, "did you mean 'spot'?"),
        ({"capacity": ["on_demand"]}, "did you mean 'on-demand'?"),
        ({"capacity": ["FLEX START"]}, "did you mean 'flex-start'?"),
        ({"capacity": ["spot", "spot"]}, "capacity has 'spot' twice"),
        ({"capacity": ["reservation"]}, "capacity has 'reservation', and none is named for tpu-v5e-1: name it"),
        ({"capacity": ["on-demand"], "spot": True}, "spot=True and capacity=['on-demand'], which lacks 'spot'"),
        ({"capacity": ["on-demand"], "accelerator": "v6e-8:spot"}, "accelerator='v6e-8:spot' and capacity=['on-demand']"),
        (
            {"capacity": ["spot"], "cloud": Compute(flex_start=True)},
            "cloud=Compute(flex_start=True) and capacity=['spot'], which lacks 'flex-start', exclude each other",
        ),
        (
            {"capacity": ["spot"], "cloud": TpuVm(reservation="mine")},
            "cloud=TpuVm(reservation='mine') and capacity=['spot'], which lacks 'reservation', exclude each other",
        ),
        ({"regions": []}, "regions is []: it is a list such as"),
        ({"regions": ["us-east5-a"]}, "regions has 'us-east5-a', which is no region: it is a zone: name its region"),
        ({"regions": ["Ohio"]}, "regions has 'Ohio', which is no region: regions have names such as"),
        (
            {"accelerator": ["v6e-8", "v5p-8"], "regions": [EAST, "us-west4"]},
            "regions has 'us-west4', and it is known to have none of v6e-8 (which is in ",
        ),
        (
            {"accelerator": ["v6e-8", "v4-8"], "regions": [EAST]},
            "regions is ['us-east5'], and none of them has v4-8 (which is in us-central2)",
        ),
        ({"regions": [WEST], "zone": "europe-west4-a"}, "both regions=['europe-west4'] and zone='europe-west4-a' say where"),
        (
            {"regions": [WEST], "cloud": TpuVm(zones=["us-west4-a"])},
            "both regions=['europe-west4'] and cloud=TpuVm(zones=['us-west4-a']) say where",
        ),
        (
            {"regions": [WEST], "cloud": TpuVm(reservation="projects/p/zones/us-west4-a/reservations/mine")},
            "the reservation is of us-west4-a, and regions=['europe-west4'] lacks its region",
        ),
        ({"by": "cost"}, "by is 'cost': it can be 'order', 'price' or 'start'"),
        ({"by": "prize"}, "did you mean 'price'?"),
        (
            {"accelerator": ["l4x4", "v6e-8"], "processes": "gpu"},
            "in the choice of v6e-8: processes='gpu' is for GPUs, and a host of v6e-8 is one process",
        ),
        (
            {"accelerator": ["h100x8", "v6e-8"], "cloud": Compute(hosts=2)},
            "in the choice of v6e-8: cloud=Compute(hosts=2) is for VMs with GPUs",
        ),
        (
            {"accelerator": ["v6e-8", "h100x8"], "cloud": Compute(num_slices=2)},
            "in the choice of h100x8: cloud=Compute(num_slices=2) joins slices of TPUs",
        ),
        (
            {"accelerator": ["v6e-8", "h100x8"], "cloud": TpuVm(runtime_version="v2-alpha-tpuv6e")},
            "in the choice of h100x8: cloud=TpuVm(runtime_version='v2-alpha-tpuv6e') is for TPUs, and h100x8 has GPUs",
        ),
        (
            {"accelerator": ["h100x8", "v6e-8"], "cloud": Compute(image="family/my-nvidia-580")},
            "in the choice of v6e-8: cloud=Compute(image='family/my-nvidia-580') is for GPUs, and v6e-8 has TPUs",
        ),
        (
            {"accelerator": ["h100x8", "v6e-8"], "container_image": "nvcr.io/nvidia/jax:25.01-py3"},
            "in the choice of v6e-8: container_image='nvcr.io/nvidia/jax:25.01-py3' is for GPUs",
        ),
        (
            {"accelerator": ["h100x8", "v6e-8"], "container_image": "nvcr.io/acme/train:1"},
            "in the choice of v6e-8: container_image='nvcr.io/acme/train:1' is for GPUs",
        ),
        (
            {"accelerator": [f"v6e-{1 << n}" for n in range(9)] + [f"v5p-{4 << n}" for n in range(8)],
             "capacity": ["spot", "on-demand", "reservation", "flex-start"], "cloud": Compute(reservation="r")},
            f"are 68 choices, and a job has {MOST_CHOICES} at most",
        ),
        ({"accelerator": [Choice("v6e-8", limits=Limits(run="soon"))]}, "limits.run is 'soon'"),
    ],
)  # fmt: skip
def test_what_contradicts_is_refused_when_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        kinetic.run(**options)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"accelerator": ["v6e-8", "h100x8"], "backend": "tpu-vm"},
            "in the choice of h100x8: h100x8 is no TPU, and the tpu-vm backend runs TPUs alone",
        ),
        (
            {"accelerator": ["v6e-8", "v5e-8"], "backend": "compute"},
            "in the choice of v5e-8: ",
        ),
        (
            {"accelerator": ["v6e-8", "v5e-8"], "capacity": ["spot", "flex-start"]},
            "in the choice of v5e-8, flex-start: v5e-8 does not come by flex-start on the tpu-vm backend",
        ),
        (
            {"accelerator": "v6e-8", "capacity": "flex-start", "backend": "tpu-vm"},
            "as the Cloud TPU API has none: VMs with backend='compute' do, and a cluster with backend='gke'",
        ),
        (
            {"accelerator": ["h100", "h100x8"], "capacity": ["on-demand"]},
            "in the choice of h100, on-demand: h100 (a3-highgpu-1g) does not come on demand",
        ),
        (
            {"accelerator": "v6e-8", "capacity": ["spot", "flex-start"], "limits": Limits(run="5m")},
            "in the choice of v6e-8, flex-start: limits.run is 5m, and flex-start gives a VM for 10 minutes to 7 days",
        ),
    ],
)
def test_what_no_backend_has_is_refused_by_name_with_the_one_that_has(
    options: dict[str, Any], says: str, home: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(home, Options(**options), KINETIC_ZONES="us-east5-a")
    assert says in str(refused.value)
