"""A deployment on an emulated cloud without hosts, as a process of its own settings sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.testing import Emulator

STAGED = Staged(None, "", "", (), (), (), (), None, "", agent="a" * 64)


class Place:
    """Holds the process, its store and its backend, and a job's plan."""

    def __init__(self, cloud: Emulator, zones: tuple[str, ...]) -> None:
        self.cloud = cloud
        self.settings = settings.load()
        self.store = open_store(self.settings.store, self.settings.deployment)
        self.backend = open_backend("tpu-vm", self.settings)
        options = Options(accelerator="v6e-8", backend="tpu-vm")
        self.plan: Plan = replace(make_plan(JobSpec("train", options, argv=("x",)), self.settings, {}), zones=zones)

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


def enter_deployment(cloud: Emulator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Have this process work in a deployment of the test's own."""
    for name, value in cloud.environ(deployment=f"of-{abs(hash(request.node.nodeid)):x}").items():
        monkeypatch.setenv(name, value)
