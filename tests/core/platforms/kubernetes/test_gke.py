"""Reservations and flex-start of GKE: the nodes that pods ask for, the pool that has them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.hardware.accelerators import on_hosts, parse
from kinetic_orchestration.plan.values import Limits, Plan
from kinetic_orchestration.platforms.kubernetes import gke
from kinetic_orchestration.platforms.shared.cluster_access import Cluster
from tests.core.platforms.kubernetes.attempts import GKE, plan_of, pod_of, rendered

pytestmark = pytest.mark.fast

NAME, PROJECT = "cloud.google.com/reservation-name", "cloud.google.com/reservation-project"
ZONE = "topology.kubernetes.io/zone"


def selector(accelerator: str, zone: str = GKE, **options: Any) -> dict[str, str]:
    """The labels that pods ask for besides those of their accelerator."""
    plan = plan_of(accelerator, cloud=Kubernetes(**options), zone=zone)
    own = pod_of(rendered(plan_of(accelerator, zone=zone))).get("nodeSelector", {})
    found = pod_of(rendered(plan)).get("nodeSelector", {})
    return {key: value for key, value in found.items() if key not in own}


def refusal(plan: Plan) -> str:
    with pytest.raises(UsageError) as refused:
        gke.check_capacity(plan)
    return str(refused.value)


@pytest.mark.parametrize(
    ("reservation", "labels"),
    [
        ("quarter", {NAME: "quarter"}),
        ("projects/shared/reservations/quarter", {NAME: "quarter", PROJECT: "shared"}),
        ("projects/ours/reservations/quarter", {NAME: "quarter"}),
        (
            "projects/shared/zones/us-central1-a/reservations/quarter",
            {NAME: "quarter", PROJECT: "shared", ZONE: "us-central1-a"},
        ),
    ],
)
def test_a_reservation_is_chosen_by_the_labels_of_its_nodes(reservation: str, labels: dict[str, str]) -> None:
    for accelerator in ("v5e-16", "h100x8", "gpu:2", "cpu:4"):
        gke.check_capacity(plan_of(accelerator, cloud=Kubernetes(reservation=reservation)))
        assert selector(accelerator, reservation=reservation) == labels


def test_a_reservation_of_a_project_that_may_not_be_the_clusters_own_is_named_with_it() -> None:
    path = "projects/ours/reservations/quarter"
    assert selector("v5e-16", "east/team", reservation=path) == {NAME: "quarter", PROJECT: "ours"}


@pytest.mark.parametrize("accelerator", ["v5e-16", "h100x8", "cpu:4"])
def test_autopilot_makes_nodes_of_a_reservation_that_is_asked_for_by_its_affinity(accelerator: str) -> None:
    """Nodes of a pool that somebody made may lack that label."""
    plan = plan_of(accelerator, cloud=Kubernetes(reservation="quarter"))
    for autopilot, more in ((True, {"cloud.google.com/reservation-affinity": "specific"}), (False, {})):
        chosen = pod_of(rendered(plan, autopilot=autopilot))["nodeSelector"]
        assert {key: value for key, value in chosen.items() if "reservation" in key} == {NAME: "quarter", **more}
    plain = pod_of(rendered(plan_of(accelerator), autopilot=True)).get("nodeSelector", {})
    assert not [key for key in plain if "reservation" in key]


@pytest.mark.parametrize("reservation", ["Quarter", "projects/p/quarter", "reservations/a/b", "a" * 64, "-a"])
def test_what_names_no_reservation_is_refused_with_the_form(reservation: str) -> None:
    said = refusal(plan_of("v5e-8", cloud=Kubernetes(reservation=reservation)))
    assert "names no reservation: write its name, or projects/PROJECT/reservations/NAME" in said


def test_blocks_of_reservations_are_refused_by_name() -> None:
    path = "projects/p/reservations/quarter/reservationBlocks/one"
    said = refusal(plan_of("tpu7x-16", cloud=Kubernetes(reservation=path)))
    assert "machines of whole reservations, and no block of one" in said


def test_a_machine_that_no_reservation_has_is_refused() -> None:
    said = refusal(plan_of("h100x2", cloud=Kubernetes(reservation="quarter")))
    assert "a3-highgpu-2g, the machine of h100x2, is given as spot or by flex-start alone" in said


@pytest.mark.parametrize("place", [GKE, "prod/team"])
@pytest.mark.parametrize(
    ("accelerator", "said"),
    [
        ("a100-80gbx16", "No machine of Google Cloud has a100-80gbx16: a100-80gb comes 1, 2, 4 or 8 to a machine"),
        ("gb200x4", "a4x-highgpu-4g, the machine of gb200x4, is given by reservation alone: name one with cloud="),
        ("gb200x4:spot", "is given by reservation alone"),
    ],
)
def test_what_gke_never_has_is_refused_with_why(accelerator: str, said: str, place: str) -> None:
    backend = "gke" if place == "prod/team" else "kubernetes"
    assert said in refusal(plan_of(accelerator, zone=place, backend=backend))
    gke.check_capacity(plan_of(accelerator, zone="kind/team"))


def test_a_reservation_may_be_named_by_hand() -> None:
    for cloud in (Kubernetes(reservation="quarter"), Kubernetes(node_selector={NAME: "quarter"})):
        gke.check_capacity(plan_of("gb200x4", cloud=cloud))


@pytest.mark.parametrize("options", [{"spot": True}, {"accelerator": "v5e-8:spot"}])
def test_a_reservation_is_never_spot(options: dict[str, Any]) -> None:
    with pytest.raises(ConflictingSettings, match=r"spot=True and the reservation 'quarter' exclude each other"):
        kinetic.run(cloud=kinetic.Kubernetes(reservation="quarter"), **options)


def pool(plan: Plan) -> str:
    return gke.pool_command(
        plan.slice, gke.cluster_of(plan.zones[0]), **gke.capacity_of(pod_of(rendered(plan)))._asdict()
    )


def test_the_line_that_makes_a_pool_names_the_reservation() -> None:
    for given, flag in (("quarter", "quarter"), ("projects/shared/reservations/quarter",) * 2):
        line = pool(plan_of("v5e-8", cloud=Kubernetes(reservation=given)))
        assert f"--reservation-affinity=specific --reservation={flag}" in line
        assert "node-pools create ko-v5e-8-reserved" in line
    assert "reservation" not in pool(plan_of("v5e-8"))


# Flex-start

FLEX = {"cloud.google.com/gke-flex-start": "true"}
QUEUED = {"cloud.google.com/gke-queued": "true"}
BY_QUEUE = {"queue": "dws", "flex_start": True, "queued_provisioning": True}


def flexible(accelerator: str, run: float = 86400.0, **options: Any) -> Plan:
    cloud = Kubernetes(**{"flex_start": True, **options})
    return plan_of(accelerator, cloud=cloud, limits=Limits(provision=3600.0, run=run))


def tolerated(plan: Plan) -> list[str]:
    return [f"{one['key']}={one['value']}" for one in pod_of(rendered(plan))["tolerations"] if "value" in one]


@pytest.mark.parametrize("accelerator", ["v5e-8", "v6e-1", "tpu7x-4", "l4", "h100x8", "h100-megax8"])
def test_flex_start_is_a_label_of_nodes_and_with_a_queue_too(accelerator: str) -> None:
    for options in ({}, {"queue": "ours"}):
        plan = flexible(accelerator, **options)
        gke.check_capacity(plan)
        assert selector(accelerator, flex_start=True, **options) == FLEX
        assert tolerated(plan) == ["cloud.google.com/gke-flex-start=true"]
        assert "provreq" not in str(rendered(plan)["metadata"])


@pytest.mark.parametrize(("run", "seconds"), [(3600.0, 7200), (1800.5, 5401), (166.5 * 3600, 7 * 86400 - 1800)])
def test_queued_provisioning_asks_for_all_machines_at_once_for_as_long_as_the_run_may_last(
    run: float, seconds: int
) -> None:
    plan = flexible("v6e-16", run, **BY_QUEUE)
    gke.check_capacity(plan)
    assert selector("v6e-16", **BY_QUEUE) == QUEUED
    assert tolerated(plan) == ["cloud.google.com/gke-flex-start=true", "cloud.google.com/gke-queued=true"]
    told = rendered(plan)["metadata"]["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"]
    assert told == str(seconds)


@pytest.mark.parametrize(
    ("accelerator", "said"),
    [
        ("v3-4", "flex-start gives no ct3-hightpu-4t, the machine of v3-4: ask for spot capacity or a reservation"),
        ("v4-8", "flex-start gives no ct4p-hightpu-4t"),
        ("t4", "flex-start gives no n1-standard-4"),
        ("gb200x4", "flex-start gives no a4x-highgpu-4g"),
        ("gpu:2", "gpu:2 names no machine of GKE"),
        ("cpu:8", "cpu:8 names no machine of GKE"),
        ("v6e-16", "the job has 4 hosts, and flex-start gives machines one by one"),
    ],
)
def test_what_flex_start_does_not_give_is_refused_by_name(accelerator: str, said: str) -> None:
    assert said in refusal(flexible(accelerator))


def test_nodes_of_gpus_that_come_by_flex_start_come_at_once() -> None:
    two = on_hosts(parse("h100x8"), 2)
    said = refusal(replace(flexible("h100x8"), slice=two))
    assert "the job has 2 hosts, and flex-start gives machines one by one" in said
    assert "add queued_provisioning=True" in said
    gke.check_capacity(replace(flexible("h100x8", **BY_QUEUE), slice=two))


def test_a_run_that_outlives_machines_of_flex_start_is_refused() -> None:
    gke.check_capacity(flexible("v5e-8", 167 * 3600.0))
    assert "given for 7 days, and limits.run is 7 days: allow at most 167h" in refusal(flexible("v5e-8", 7 * 86400.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cloud": Kubernetes(flex_start=True), "spot": True}, "flex_start=True and spot=True name two kinds"),
        ({"cloud": Kubernetes(flex_start=True), "accelerator": "l4:spot"}, "flex_start=True and spot=True"),
        ({"cloud": Kubernetes(flex_start=True, reservation="r")}, "flex_start=True and reservation='r' name two kinds"),
        ({"cloud": Kubernetes(queued_provisioning=True)}, "is a way of flex-start: add flex_start=True"),
    ],
)
def test_one_kind_of_capacity_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kinetic.run(**{"accelerator": "v5e-8", **options})


def test_the_line_that_makes_a_pool_is_of_flex_start() -> None:
    for plan, queued in ((flexible("v5e-8"), False), (flexible("v6e-16", **BY_QUEUE), True)):
        line = pool(plan)
        assert "--flex-start --location-policy=ANY" in line
        assert ("--enable-queued-provisioning" in line) == queued
        assert "--min-nodes=0" in line


@pytest.mark.parametrize("cloud", [{}, {"queue": "ours"}])
def test_machines_that_come_by_flex_start_alone_are_taken_without_asking_for_it(cloud: dict[str, Any]) -> None:
    """The pool that is printed for them has the taint of flex-start."""
    plan = plan_of("h100x2", cloud=Kubernetes(**cloud))
    assert "--node-taints=cloud.google.com/gke-flex-start=true:NoSchedule" in pool(plan)
    assert tolerated(plan) == ["cloud.google.com/gke-flex-start=true"]
    assert tolerated(plan_of("h100x8")) == tolerated(plan_of("l4")) == []
    assert tolerated(plan_of("h100x2", spot=True)) == ["cloud.google.com/gke-spot=true"]


def test_pools_whose_machines_are_taken_away_keep_pods_off_that_do_not_ask_for_them() -> None:
    assert "--spot --node-taints=cloud.google.com/gke-spot=true:NoSchedule" in line_of("l4:spot")
    assert "--node-taints=cloud.google.com/gke-flex-start=true:NoSchedule --flex" in pool(flexible("v5e-8"))
    assert "taint" not in line_of("l4")


# Clusters and their pools


@pytest.mark.parametrize(
    ("place", "cluster"),
    [
        ("gke_my-project_us-central1-a_research/team", Cluster("my-project", "us-central1-a", "research")),
        ("gke_example.com:ours_europe-west4_tpus", Cluster("example.com:ours", "europe-west4", "tpus")),
        ("kind-local/default", None),
        ("gke_incomplete/team", None),
        ("arn:aws:eks:eu-west-1:1:cluster/gke_a_b_c", None),
    ],
)
def test_a_context_of_gcloud_names_project_location_and_cluster(place: str, cluster: Cluster | None) -> None:
    assert gke.cluster_of(place) == cluster


OURS = gke.cluster_of(GKE)


def line_of(name: str, cluster: Cluster | None = OURS, **options: Any) -> str:
    return gke.pool_command(parse(name), cluster, **options)


def test_a_pool_is_made_by_lines_for_this_cluster() -> None:
    line = line_of("v5e-16:spot")
    for flag in ("--project=ours", "--cluster=research", "--location=us-central1-a", "--node-locations=us-central1-a"):
        assert f" {flag} " in line
    assert line.startswith("gcloud container node-pools create ko-v5e-16-spot ") and "--spot" in line
    of_region = line_of("l4", Cluster("ours", "us-central1", "research"))
    assert "--location=us-central1 --node-locations=us-central1-ZONE" in of_region


def test_without_a_name_of_gcloud_a_pool_of_tpus_has_words_to_replace_and_of_gpus_is_unknown() -> None:
    assert "--project=PROJECT --cluster=CLUSTER --location=LOCATION --node-locations=LOCATION-ZONE" in line_of(
        "v5e-16", None
    )
    assert line_of("l4", None) == ""
    assert "type=nvidia-l4" in line_of("l4")


def test_several_slices_have_a_pool_for_each_if_they_have_several_hosts_and_else_one() -> None:
    each = line_of("v5e-16:spot", slices=3).splitlines()
    assert [line.split()[4] for line in each] == ["ko-v5e-16-spot-1", "ko-v5e-16-spot-2", "ko-v5e-16-spot-3"]
    assert all("--max-nodes=4 " in line for line in each)
    [only] = line_of("v5e-8", slices=3).splitlines()
    assert " ko-v5e-8 " in only and only.endswith("--max-nodes=3")
    policy, *pools = line_of("tpu7x-16", slices=2).splitlines()
    assert "workload-policy" in policy and len(pools) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [("gpu:2", "gpu:2 is of any model"), ("cpu", "has any machine"), ("gb200x4", "by reservation alone: name one")],
)
def test_why_there_is_no_line_is_said(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        line_of(name)
