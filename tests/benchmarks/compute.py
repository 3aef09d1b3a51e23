"""The time that this project adds to an emulated Compute Engine's own, and its requests for many jobs.

Measured as on Cloud TPU (`cloud`), with VMs that have a GPU each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tests.benchmarks import cloud, measure
from tests.benchmarks.measure import Figure

TARGETS = {"cold": 0.7, "warm": 0.3}  # seconds added to a job
MACHINE = "g2-standard-4"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-amd64-with-nvidia-580"


def figures() -> Iterator[Figure]:
    yield measure.bounded("compute.load", os.getloadavg()[0], "processes", None)
    yield from cloud.added_time(ComputeSite, TARGETS)
    yield from cloud.followed(ComputeSite)
    yield from waiting()


def waiting() -> Iterator[Figure]:
    """Requests in a tick of a process for jobs that others have placed, and that have no VM yet."""
    from kinetic_orchestration.plan.configuration import settings
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.plan.planner import make_plan
    from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
    from kinetic_orchestration.platforms.google.compute.verbs.look import LOOKS_AT_ONCE

    with cloud.site(ComputeSite, zones=ComputeSite.zones, hosts=False) as here:
        loaded = settings.load({**os.environ, "KINETIC_ZONES": ",".join(here.zones)})
        plan = make_plan(JobSpec("train", Options(accelerator="l4")), loaded)
        for count in cloud.FOLLOWED:
            other, observer = ComputeBackend(loaded), ComputeBackend(loaded)
            placements = [other.place(plan, f"job-{number:012}", 1) for number in range(count)]
            before = len(here.cloud.requests)
            observer.observe(placements)
            asked = len(here.cloud.requests) - before
            yield measure.bounded(f"compute.waiting.{count}_jobs.compute", asked, "requests", 1 + 2 * LOOKS_AT_ONCE)


class ComputeSite(cloud.Site):
    """A site whose jobs run on VMs of Compute Engine."""

    section, backend, api = "compute", "compute", "compute"
    accelerator = "l4"
    zones = "us-west4-a", "us-central1-a"
    asked, deleted = ("instance", "PROVISIONING"), ("instance", "STOPPING")
    made = ("instance", "RUNNING")

    def bare(self, metadata: dict[str, str]) -> dict[str, Any]:
        items = [{"key": key, "value": value} for key, value in metadata.items()]
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "50"}}
        return {
            "machineType": f"zones/{self.zones[0]}/machineTypes/{MACHINE}",
            "scheduling": {"onHostMaintenance": "TERMINATE"},
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "metadata": {"items": items},
        }

    def ask_for(self, name: str, zone: str, node: dict[str, Any]) -> None:
        from kinetic_orchestration.testing.model.compute.service import Request

        self.cloud.compute.call("instances.insert", Request("emulated", zone, body={**node, "name": name}))

    def machine(self, name: str) -> Any:
        return self.cloud.compute.chosen(name).host.wait()

    def delete(self, name: str) -> None:
        from kinetic_orchestration.testing.model.compute.service import Request

        self.cloud.compute.call("instances.delete", Request("emulated", self.zones[0], name))

    def only(self) -> tuple[str, dict[str, Any]]:
        (instance,) = self.cloud.compute.instances.values()
        return instance.name, instance.body
