"""A VM of the emulated Compute Engine that runs a job, entered by the system's ssh through a tunnel to its OpenSSH."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.vms import sshd
from tests.support.entered import kinor
from tests.support.jobs import placements, wait_running

NO_SSHD = "OpenSSH's server is not installed, which emulated VMs have: apt-get install openssh-server"
pytestmark = [pytest.mark.slow, pytest.mark.turn(6), pytest.mark.skipif(not sshd.program(), reason=NO_SSHD)]


def test_a_vm_is_entered_whose_key_is_taken_once_and_its_metadata_keep_the_job(
    cloud: Emulator, jobs: Any, home: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = kinetic.run(accelerator="l4")(jobs.until).run_async(str(gate))
    wait_running(job)
    name = placements(job)[0]["name"]

    def metadata() -> dict[str, str]:
        (found,) = [one for one in cloud.compute.instances.values() if one.name == name]
        return {one["key"]: one["value"] for one in found.body["metadata"]["items"]}

    before = metadata()
    shown = kinor("shell", job.job_id, "--user", "someone", "--", "sh", "-c", "echo $USER; echo $KINETIC_ROOT")
    vm = cloud.vms(name)[0]
    assert vm is not None
    assert (shown.code, shown.out.splitlines()) == (0, ["someone", str(vm.root)]), shown.err
    assert "is not known: its guest attributes do not tell it" in shown.err
    after = metadata()
    assert after.pop("ssh-keys").startswith("someone:ssh-ed25519 ") and after == before
    (known,) = (home / "ssh/hosts").iterdir()
    key = vm.published()["hostkeys"]["ssh-ed25519"]
    assert known.read_text().split()[1:3] == ["ssh-ed25519", key] and base64.b64decode(key)
    shown = kinor("shell", job.job_id, "--user", "someone", "--", "true")
    assert shown.code == 0 and "is not known" not in shown.err  # it is expected from then on

    cloud.deny("client", "compute.instances.setMetadata")
    shown = kinor("shell", job.job_id, "--user", "another", "--", "true")
    assert shown.code == 5 and "It takes compute.instances.setMetadata" in shown.err
    cloud.allow("client", "compute.instances.setMetadata")
    gate.touch()
    job.result(timeout=120)
