"""Reservations of GKE: the nodes that pods ask for, the pool that has them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.kubernetes import capacity, gke
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
        capacity.check(plan)
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
        capacity.check(plan_of(accelerator, cloud=Kubernetes(reservation=reservation)))
        assert selector(accelerator, reservation=reservation) == labels


def test_a_reservation_of_a_project_that_may_not_be_the_clusters_own_is_named_with_it() -> None:
    path = "projects/ours/reservations/quarter"
    assert selector("v5e-16", "east/team", reservation=path) == {NAME: "quarter", PROJECT: "ours"}


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


@pytest.mark.parametrize("options", [{"spot": True}, {"accelerator": "v5e-8:spot"}])
def test_a_reservation_is_never_spot(options: dict[str, Any]) -> None:
    with pytest.raises(ConflictingSettings, match=r"spot=True and the reservation 'quarter' exclude each other"):
        kinetic.run(cloud=kinetic.Kubernetes(reservation="quarter"), **options)


def pool(plan: Plan) -> str:
    return gke.pool_command(plan.slice, plan.zones[0], **capacity.of_pod(pod_of(rendered(plan)))._asdict())


def test_the_line_that_makes_a_pool_names_the_reservation() -> None:
    for given, flag in (("quarter", "quarter"), ("projects/shared/reservations/quarter",) * 2):
        line = pool(plan_of("v5e-8", cloud=Kubernetes(reservation=given)))
        assert f"--reservation-affinity=specific --reservation={flag}" in line
        assert "node-pools create ko-v5e-8-reserved" in line
    assert "reservation" not in pool(plan_of("v5e-8"))
