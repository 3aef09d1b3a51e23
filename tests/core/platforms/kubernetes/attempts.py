"""Attempts whose manifests are looked at: plans as users declare them, and what is created for them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from kinetic_orchestration.plan.declare.cloud import Kubernetes, queues_of
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import Intent, Limits, Plan, Retry, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.protocol.names import slice_of
from kinetic_orchestration.protocol.wire.task import Environment

JOB = "job-0123456789ab"
SPEC = "5" * 64
STAGED = Staged(None, "", "", (), (), (), (), Environment("1" * 64, python="3.11", packages=7), "", agent="a" * 64)
HOUR = 3600.0
CREATED = 1_799_900_000.0
GKE = "gke_ours_us-central1-a_research/team"


def plan_of(accelerator: str, *, cloud: Kubernetes | None = None, zone: str = GKE, **fields: Any) -> Plan:
    slice_ = accelerators.parse(accelerator)
    options = cloud or Kubernetes()
    own = {name: value for name, value in asdict(options).items() if name not in ("clusters", "namespaces", "hosts")}
    plan = Plan(
        name="train",
        slice=slice_,
        backend="kubernetes",
        store="gs://bucket/kinetic",
        deployment="Production EU",
        limits=Limits(provision=6 * HOUR, run=24 * HOUR),
        retry=Retry(),
        emulated=False,
        zones=(zone,),
        slices=own.pop("num_slices"),
        labels=dict(own.pop("labels")),
        cloud=own,
    )
    return replace(plan, **fields)


def attempt_of(
    plan: Plan, number: int = 1, *, deadline: float = CREATED + 30 * HOUR, autopilot: bool = False, **more: Any
) -> Submission:
    placement = {
        "backend": "kubernetes",
        "zone": plan.zones[0],
        "queue": next(iter(queues_of(plan.cloud["queue"])), ""),
        "name": slice_of(plan.store, plan.deployment, JOB, number),
        "hosts": plan.hosts,
        "slices": plan.slices,
        "autopilot": autopilot,
        "wait": 0.0,
        "since": 0.0,
    }
    intent = Intent(number, "b007" * 4, placement, deadline, CREATED)
    return Submission(plan, STAGED, JOB, SPEC, intent, more.pop("secrets", {}), **more)


def rendered(plan: Plan, number: int = 1, **more: Any) -> dict[str, Any]:
    return manifest.render(attempt_of(plan, number, **more))


def job_of(jobset: dict[str, Any]) -> dict[str, Any]:
    """The spec of the Jobs of a JobSet."""
    [one] = jobset["spec"]["replicatedJobs"]
    found: dict[str, Any] = one["template"]["spec"]
    return found


def pod_of(jobset: dict[str, Any]) -> dict[str, Any]:
    """The spec of its pods."""
    found: dict[str, Any] = job_of(jobset)["template"]["spec"]
    return found


EVERYTHING = Kubernetes(
    num_slices=2,
    queue="research",
    priority_class="urgent",
    service_account="trainer",
    node_selector={"cloud.google.com/reservation-name": "quarter"},
    tolerations=["dedicated", "team=rank:NoSchedule"],
    env_from=["s3-credentials"],
    image_pull_secrets=["registry"],
    run_as_user=1000,
    labels={"Team": "Rank & Reco"},
)
RESERVED = "projects/shared/zones/us-central1-a/reservations/quarter"
CASES = {
    "tpu": plan_of("v5e-8"),
    "tpu-hosts": plan_of("v5p-32"),
    "tpu-eight-on-two-hosts": replace(plan_of("v6e-8"), slice=accelerators.on_hosts(accelerators.parse("v6e-8"), 2)),
    "tpu-spot-slices": plan_of("v6e-16", cloud=Kubernetes(num_slices=2), spot=True),
    "gpu": plan_of("h100x8"),
    "gpu-hosts": replace(plan_of("h100x8"), slice=accelerators.on_hosts(accelerators.parse("h100x8"), 2)),
    "gpu-reserved": plan_of("h100x8", cloud=Kubernetes(reservation=RESERVED)),
    "gpu-autopilot": plan_of("h100x8", cloud=Kubernetes(reservation=RESERVED)),
    "gpu-flex-start": plan_of("a100-80gbx8", cloud=Kubernetes(flex_start=True)),
    "tpu-queued-flex-start": plan_of(
        "v6e-16", cloud=Kubernetes(queue="research", flex_start=True, queued_provisioning=True)
    ),
    "gpu-spot-elsewhere": plan_of("a100x4", zone="on-premises/team", spot=True),
    "gpu-any": plan_of("gpu:2", zone="on-premises/team"),
    "cpu": plan_of("cpu:8"),
    "everything": plan_of(
        "tpu7x-16",
        cloud=EVERYTHING,
        image="us-docker.pkg.dev/ours/images/train:7",
        secrets=("TOKEN",),
        secret_refs={"API_KEY": "vault/api", "PASSWORD": "vault"},
    ),
}
AUTOPILOT = ("gpu-autopilot",)  # the cases whose cluster makes every node
VALUES = {"everything": {"TOKEN": "the value of a secret"}}  # what a case's captured secrets are
SLICES = [  # of every accelerator that a cluster has
    *(slice_ for slice_ in accelerators.catalogue() if slice_.generation != "v2"),
    *map(accelerators.parse, ("gpu:2", "cpu:8")),
]
ALL = [*(plan_of(slice_.name) for slice_ in SLICES), *CASES.values()]
