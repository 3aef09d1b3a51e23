"""A deployment on an emulated cloud without hosts, as a process of its own settings sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.testing import Emulator
from tests.support.wire_tasks import in_spec

IDENTITY = "0123456789abcdef01234567"
STAGED = Staged(None, "", "", (), (), (), (), None, "", agent="a" * 64)


class Place:
    """Holds the process, its store and its backend, and a job's plan."""

    trust = Trust(everything=True)

    def __init__(self, cloud: Emulator, zones: tuple[str, ...]) -> None:
        self.cloud = cloud
        self.jobs = 0
        self.settings = settings.load()
        self.store = open_store(self.settings.store, self.settings.deployment)
        self.backend = open_backend("tpu-vm", self.settings)
        options = Options(accelerator="v6e-8", backend="tpu-vm")
        self.plan: Plan = replace(make_plan(JobSpec("train", options, argv=("x",)), self.settings, {}), zones=zones)

    def admit(self, **plan: Any) -> Job:
        """Return a new job that nothing was asked for yet."""
        self.jobs += 1
        job = f"job-{self.jobs:012d}"
        fields = {
            "name": "train",
            "identity": IDENTITY,
            "plan": replace(self.plan, **plan).to_json(),
            "task": in_spec(),
        }
        self.store.create(names.spec(job), wire.encode({**fields, "staged": STAGED.to_json()}))
        return open_job(job, self.store, self.backend, self.trust)

    def make(
        self, job_id: str, attempt: int = 1, *, deadline: float | None = None, zone: str = "", **secrets: str
    ) -> str:
        """Return the name of the slice of an attempt, which runs, or could not be had."""
        placement = self.backend.place(self.plan, job_id, attempt)
        placement = {**placement, "zone": zone or placement["zone"]}
        now = self.store.now()
        intent = Intent(attempt, f"boot-{job_id}-{attempt}", placement, deadline or now + 3600.0, now)
        asked = Submission(self.plan, STAGED, job_id, digest.of_bytes(b""), intent, secrets)
        assert self.backend.submit(asked) == ""
        self.cloud.wait_until(lambda: self.state(placement["name"]) in ("ACTIVE", "FAILED"))
        return str(placement["name"])

    def state(self, name: str) -> str:
        found = self.cloud.queued_resource(name)
        return "" if found is None else str(found["state"]["state"])

    def left(self) -> list[str]:
        """Return the names of all slices that are there or were asked for."""
        return [str(found["name"]).rpartition("/")[2] for found in self.cloud.queued_resources()]


def enter_deployment(cloud: Emulator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Have this process work in a deployment of the test's own."""
    for name, value in cloud.environ(deployment=f"of-{abs(hash(request.node.nodeid)):x}").items():
        monkeypatch.setenv(name, value)
