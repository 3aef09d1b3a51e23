"""Hosts of running jobs on the emulated Cloud TPU, entered as users do: the system's ssh, through tunnels that break, to
OpenSSH on the VMs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.reach.vms import POLICY
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.vms import sshd
from tests.core.api.test_run import attach_debugger
from tests.end_to_end.cloud.cases import nodes
from tests.support.entered import forwarded, kinor, page, program_of
from tests.support.jobs import wait_running
from tests.support.waits import wait_until

NO_SSHD = "OpenSSH's server is not installed, which emulated VMs have: apt-get install openssh-server"
pytestmark = [
    pytest.mark.slow, pytest.mark.turn(2), pytest.mark.skipif(not sshd.program(), reason=NO_SSHD),
]  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Any:
    return program_of(tmp_path / "project")


@pytest.fixture
def job(cloud: Emulator, program: Any, tmp_path: Path) -> Iterator[JobHandle[str]]:
    """A job on four hosts, each of which serves a page."""
    gate, ports = tmp_path / "gate", tmp_path / "port"
    job = kinetic.run(accelerator="v5e-16")(program.serves).run_async(str(gate), str(ports))
    wait_running(job)
    wait_until(lambda: all((tmp_path / f"port-{host}").exists() for host in range(4)))
    yield job
    gate.touch()
    assert job.result(timeout=120) == "gone through"
    shown = kinor("shell", job.job_id, "--", "true")
    assert shown.code == 5 and "it has ended, succeeded" in shown.err


def test_a_host_of_a_slice_is_entered_and_its_port_is_here_whatever_becomes_of_the_tunnel(
    cloud: Emulator, job: JobHandle[str], home: Path, tmp_path: Path
) -> None:
    (node,) = nodes(cloud, job)
    before = dict(cloud.node(node)["metadata"])  # type: ignore[index]
    vm = cloud.vms(node)[1]
    assert vm is not None

    # a command: its words as they are, its streams and its exit code
    script = 'read line; echo "$KINETIC_ROOT $line $1"; echo wrong >&2; exit 7'
    shown = kinor("shell", job.job_id, "--host", "1", "--", "sh", "-c", script, "sh", "a  $b; c", given="given\n")
    assert shown[:2] == (7, f"{vm.root} given a  $b; c\n") and shown.err.endswith("wrong\n")

    # the key is ours alone, known by what the cloud tells of the host, and only added to the metadata
    after = dict(cloud.node(node)["metadata"])  # type: ignore[index]
    user, _, key = after.pop("ssh-keys").partition(":")
    assert after == before and re.fullmatch(r"ssh-ed25519 \S+ kinetic", key)
    assert (home / "ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    (known,) = (home / "ssh/hosts").iterdir()
    assert known.read_text().split()[1:] == ["ssh-ed25519", vm.published()["hostkeys"]["ssh-ed25519"]]

    # much, through tunnels that break: byte for byte, and the node is not changed again
    updates = cloud.count("UpdateNode")
    cloud.tunnels.cut(4000, 1 << 20, 12_345, 0)
    shown = kinor("shell", job.job_id, "--host", "1", "--", "sh", "-c", "yes kinetic | head -c 3000000")
    assert shown.code == 0, shown.err
    whole = ("kinetic\n" * 375_000)[:3_000_000]
    assert hashlib.sha256(shown.out.encode()).hexdigest() == hashlib.sha256(whole.encode()).hexdigest()
    assert cloud.tunnels.resumed == 4 and cloud.count("UpdateNode") == updates

    # a port, inside the tunnel to 22
    port = int((tmp_path / "port-1").read_text())
    with forwarded("port-forward", job.job_id, f"{port}:0", "--host", "1") as told:
        cloud.tunnels.cut(9000)
        assert page(told["address"], "200000") == b"host 1" + b"x" * 200_000

    # a tunnel that leads to another host is found out by that one's key
    other = cloud.vms(node)[2]
    assert other is not None
    cloud.tunnels._reach = lambda project, zone, name, connection: other.enter(connection)
    shown = kinor("shell", job.job_id, "--host", "1", "--", "true")
    assert shown.code == 5 and "Host key verification failed" in shown.err and user


def test_what_is_in_the_way_is_a_sentence_with_what_helps(cloud: Emulator, job: JobHandle[str]) -> None:
    (node,) = nodes(cloud, job)

    def refused(*more: str) -> str:
        shown = kinor("shell", job.job_id, *more, "--", "true")
        assert shown.code == 5 and "Traceback" not in shown.err, shown
        return shown.err

    cloud.fail("GetGuestAttributes", times=1, refusal=refusals.organization_policy(POLICY, "emulated"))
    assert POLICY in refused()
    cloud.deny("client", "tpu.nodes.update")
    assert "It takes tpu.nodes.update" in refused()
    cloud.allow("client", "tpu.nodes.update")
    cloud.deny("client", "iap.tunnelInstances.accessViaIAP")
    assert "--role=roles/iap.tunnelResourceAccessor" in refused()
    cloud.allow("client", "iap.tunnelInstances.accessViaIAP")
    cloud.tunnels.refuse(4003)
    assert "--source-ranges=35.235.240.0/20" in refused()
    shown = kinor("shell", job.job_id, "--host", "4", "--", "true")
    assert shown.code == 2 and "counted from 0; there is no 4" in shown.err
    shown = kinor("shell", job.job_id, "--user", "-oProxyCommand=x", "--", "true")
    assert shown.code == 2
    cloud.fail("GetNode", times=None, refusal=refusals.missing(node))
    assert "is gone: the attempt has ended, or was preempted" in refused()
    cloud.clear_faults()


def test_an_editor_attaches_from_outside_to_a_function_that_waits_for_it(cloud: Emulator, program: Any) -> None:
    job = kinetic.run(accelerator="v5e-1", debug=True, requirements=["debugpy"])(program.debugged).run_async(1)
    found = wait_until(lambda: re.search(r"your machine: kinor (port-forward \S+ (\d+))", job.logs() or ""), within=120)
    assert found is not None and "under the debugger" not in (job.logs() or "")
    command, port = found[1].split(), found[2]
    with forwarded(*command[:-1], f"{port}:0") as told:
        attach_debugger(int(str(told["address"]).rpartition(":")[2]))
        assert job.result(timeout=120) == 2
    assert "under the debugger" in (job.logs() or "")
