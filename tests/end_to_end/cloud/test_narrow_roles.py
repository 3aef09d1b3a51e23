"""The narrow roles that the documentation makes are enough: for a job with a secret, for `doctor`, and for its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.google import preflight
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_servers import other_apis
from kinetic_orchestration.testing.model import cloud as model
from tests.end_to_end.cloud.cases import run
from tests.support.jobs import WITHIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (Path(__file__).parents[3] / "docs" / "cloud" / "cloud-tpu.md").read_text(encoding="utf-8").replace("\\\n", "")
ROLES = {
    name: set(permissions.split(","))
    for name, permissions in re.findall(r"iam roles create (\w+) .*?--permissions=\s*(\S+)", PAGE)
}
SUBMITTER = ROLES["kineticSubmit"] | ROLES["kineticSecrets"] | ROLES["kineticOwnSecrets"]
MACHINE = ROLES["kineticSlice"] | {"secretmanager.versions.access"}  # roles/secretmanager.secretAccessor
# Google tells nowhere of permissions for queued resources: those for nodes cover them.
KNOWN = {permission for verb in model._VERBS.values() for permission in verb.permissions}
KNOWN = {permission for permission in KNOWN if not permission.startswith("tpu.queuedResources.")}
KNOWN |= {route.permission for route in other_apis._ROUTES if route.permission.startswith("secretmanager.")}


def test_a_job_with_a_secret_needs_no_more_than_the_roles_of_the_page(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "of the lab")
    (tmp_path / "go").touch()
    for who, granted in (("client", SUBMITTER), ("vm", MACHINE)):
        for permission in KNOWN - granted:
            cloud.deny(who, permission)
    found = {finding.name: finding.state for finding in preflight.examine(settings.load())}
    assert preflight.FAILED not in found.values()
    job = run(jobs.fingerprint, ["LAB_TOKEN"], str(tmp_path / "go"), capture_env_vars=["LAB_TOKEN"])
    assert set(job.result(timeout=WITHIN)) == {"LAB_TOKEN"}
    job.cleanup()
    assert cloud.neighbours.secrets() == []
    assert not cloud.nodes() and not cloud.queued_resources()


def test_doctor_takes_a_condition_on_the_names_of_secrets_for_what_it_is(cloud: Emulator) -> None:
    for permission in ROLES["kineticOwnSecrets"]:
        cloud.deny("client", permission)
    [told] = [each for each in preflight.examine(settings.load()) if each.name == "Secret Manager"]
    assert told.state == preflight.OK and "kinetic-*" in told.found
    cloud.deny("client", "secretmanager.secrets.create")
    [told] = [each for each in preflight.examine(settings.load()) if each.name == "Secret Manager"]
    assert told.state == preflight.WARNING
