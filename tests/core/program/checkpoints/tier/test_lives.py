"""Jobs: two agents on one machine, the second of which finds the copies of the first, and VMs that keep them unasked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.host.conftest import site as site  # noqa: PLC0414 - a fixture
from tests.support.on_vms import Attempt, Site
from tests.support.waits import wait_until


@pytest.mark.slow
@pytest.mark.turn(5)
def test_a_program_that_is_killed_while_it_saves_is_followed_by_one_that_reads_the_copy(
    home: Path, jobs: Any, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine, with a store in a bucket, and both agents are real."""
    monkeypatch.delenv("TMPDIR", raising=False)  # else a part is written there, and not where the program looks for it
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    monkeypatch.setenv("KINETIC_STORE", f"{storage.make_bucket('lives')}/kinetic")
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "lives")
    storage.delay("insert */step-000000000010-*-1/part-00000.safetensors", 3600.0)
    job = kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=1, infra=1))(
        jobs.is_killed_while_it_saves
    ).run_async()
    began = job.result(timeout=120)
    storage.heal()
    assert began == 5
    log = job.logs() or ""
    assert "restored the checkpoint of step 5: 0.8 MB from this machine, in " in log
    fetched = [call for call in storage.calls if call.verb == "get" and call.where.endswith(".safetensors")]
    assert fetched == []
    (root,) = Path(os.environ["KINETIC_HOME"], "tier").iterdir()
    assert [len(path.name) for path in root.glob("training/slot-0/*")] == [64], "what was being written is removed"


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.timeout(400)
def test_hosts_on_cloud_tpu_keep_copies_and_those_of_the_host_before_where_the_job_is_signed(
    home: Path, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        signed = {"KINETIC_ZONES": "us-west4-a", "KINETIC_SIGNING_KEY": "a key of these tests, which is long"}
        for name, value in {**cloud.environ(), **signed}.items():
            monkeypatch.setenv(name, value)
        job = kinetic.run(accelerator="v5e-16")(jobs.keeps_copies).run_async(5)
        counts = job.result(timeout=300)
        assert counts == [2, 2, 2, 2], job.logs()
        cloud.wait_until_empty(150)
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
def test_a_vm_that_rebooted_for_the_next_attempt_has_the_copy_and_those_of_no_other_training(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    """As a machine does that is kept. Both agents are real, and nobody asked for copies."""
    first = site.admit(jobs.trains_and_waits).start()
    (vm,) = first.vms
    tier = vm.root / "var" / "lib" / "kinetic" / "tier"
    wait_until(lambda: "has saved" in first.log(), vm.console, within=60)
    (tier / ("ab" * 16) / "training").mkdir(parents=True)  # as the identity of another job
    site.apis.on_delete.pop(first.resource)
    second = Attempt(site, first.job, 1, 1, first.spec, first.agent)
    second.number = 2
    vm.metadata.attributes |= second.metadata()
    site.apis.on_delete[second.resource] = vm.destroy
    vm.reboot()
    told = "restored the checkpoint of step 10: 0.8 MB from this machine, in "  # by stderr, which comes apart
    wait_until(lambda: "began at" in second.log() and told in second.log(), vm.console, within=60)
    assert "began at 10" in second.log()
    assert len(list(tier.iterdir())) == 1
    vm.destroy()
