"""Hosts that are instances of Compute Engine: made by its API alone, as VMs of the emulated cloud that are processes."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.opening import machine_of
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unanswered, Unauthorized
from kinetic_orchestration.host.machine.vm import gpus, network, vm
from kinetic_orchestration.host.machine.vm import instance as vm_instance
from kinetic_orchestration.host.machine.vm.instance import Instance, patience_with_gpus
from kinetic_orchestration.host.prepare.prepare import Ready
from kinetic_orchestration.host.process import topology
from kinetic_orchestration.host.process.environ import start_message
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.wire.task import Hardware, Task
from kinetic_orchestration.testing.emulator import Emulator
from tests.support.blocked_port import blocked
from tests.support.on_vms import Attempt, Site, constants
from tests.support.waits import wait_until
from tests.support.wire_tasks import TASK

ZONE = "us-central1-a"
PREEMPTED = ("instance/preempted", "TRUE")
MAINTAINED = ("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
WITH_DRIVER = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-amd64-with-nvidia-580"
L4 = {"kind": "gpu", "generation": "l4", "topology": ""}


@pytest.fixture
def place(cloud: Emulator, tmp_path: Path) -> Iterator[Place]:
    site = Site(cloud.storage, tmp_path)
    yield Place(cloud, site)
    site.close()


class Place:
    """A bucket, and Compute Engine's API as a client uses it."""

    def __init__(self, cloud: Emulator, site: Site) -> None:
        self.cloud, self.site = cloud, site

    def start(self, attempt: Attempt, hosts: int = 1, **told: Any) -> str:
        """Insert the attempt's instances. Returns the resource in their orders."""
        resource = f"projects/emulated/zones/{ZONE}/instances/{attempt.name}"
        for host in range(hosts):
            orders = {"resource": resource, "hosts": hosts, "host": host, "hosts_per_slice": hosts, "gpus": 1, **told}
            self.insert(f"{attempt.name}-{host}" if hosts > 1 else attempt.name, attempt.metadata(**orders))
        return resource

    def insert(self, name: str, items: Mapping[str, str]) -> None:
        body = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/g2-standard-4",
            "scheduling": {
                "provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
                "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "3600"},
            },
            "disks": [
                {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": WITH_DRIVER, "diskSizeGb": "100"}}
            ],
            "networkInterfaces": [{"network": "projects/emulated/global/networks/default", "nicType": "GVNIC"}],
            "serviceAccounts": [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
            "labels": {"ko-managed": "true"},
            "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
        }  # fmt: skip
        path = f"projects/emulated/zones/{ZONE}/instances?requestId={uuid.uuid4()}"
        reply = bootstrap.exchange(
            "POST", f"{self.cloud.rest.url}/compute/v1/{path}", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        assert reply.status == 200, reply.reason()

    def there(self, name: str) -> bool:
        return self.cloud.compute.instance(name) is not None

    def gone(self, *members: str) -> None:
        wait_until(lambda: not any(map(self.there, members)), within=60.0)
        self.cloud.wait_until_empty()
        self.cloud.ledger.assert_nothing_left()


def test_a_vm_with_a_gpu_runs_its_program_and_deletes_itself(place: Place, jobs: Any) -> None:
    """Its metadata is all that it knows; its account may do no more than an instance of that name needs."""
    place.cloud.compute.narrow("kinetic-")
    attempt = place.site.admit(jobs.attempt, task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.reason) == (wire.COMMITTED, "")
    assert attempt.value() == 1
    place.gone(attempt.name)
    assert attempt.log(kinds="n").startswith("this VM was made from ") and attempt.log(kinds="n").count("\n") == 1


@pytest.mark.slow
@pytest.mark.turn(1)
def test_the_vms_of_several_meet_and_all_are_gone_as_soon_as_all_are_done(place: Place, jobs: Any) -> None:
    place.cloud._machines.machines.environ |= {"LD_LIBRARY_PATH": "/image/lib", "NCCL_NET_PLUGIN": "an image's"}
    task = {"accelerator": L4, "devices": 1, "env": {"NCCL_DEBUG": "INFO"}}
    attempt = place.site.admit(jobs.topology, accelerator="v5e-16", task=task)
    place.start(attempt, hosts=4)
    assert attempt.verdict().kind == wire.COMMITTED
    found = attempt.value()
    assert (found["JAX_NUM_PROCESSES"], found["JAX_PROCESS_ID"]) == ("4", "0")
    assert (found["NNODES"], found["NODE_RANK"], found["WORLD_SIZE"]) == ("4", "0", "4")
    assert [name for name in found if name.startswith(("NCCL_", "LD_LIBRARY"))] == ["NCCL_DEBUG"], "on one machine"
    place.gone(*(f"{attempt.name}-{host}" for host in range(4)))


def test_a_driver_that_comes_late_is_waited_for_with_a_note(
    place: Place, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, gpus, PACE=0.1)
    place.cloud.compute.drivers(late=3)
    attempt = place.site.admit(jobs.attempt, task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    assert attempt.verdict().kind == wire.COMMITTED
    note = attempt.log(kinds="n")
    assert "the driver shows none of 1 GPUs yet, which are waited for: NVIDIA-SMI has failed because" in note
    place.gone(attempt.name)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"late": 10_000}, "the driver shows none of 1 GPUs after 1 s, and no program was run: NVIDIA-SMI has failed"),
        ({"fewer": 1}, "the driver shows none of 1 GPUs after 1 s, and no program was run: No devices were found"),
    ],
)
def test_a_vm_without_its_gpu_runs_nothing_is_the_machines_failure_and_goes(
    place: Place, jobs: Any, monkeypatch: pytest.MonkeyPatch, script: dict[str, int], said: str
) -> None:
    constants(monkeypatch, gpus, PATIENCE=1.0, PACE=0.2)
    place.cloud.compute.drivers(**script)
    attempt = place.site.admit(jobs.attempt, task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.cause) == (wire.ABORTED, wire.INFRASTRUCTURE)
    assert verdict.reason.startswith(said)
    assert attempt.log() == ""
    place.gone(attempt.name)


def test_an_account_that_could_not_delete_its_vm_runs_nothing_and_the_command_says_how_it_may(
    place: Place, jobs: Any, tmp_path: Path
) -> None:
    place.cloud.deny("vm", "compute.instances.delete")
    attempt = place.site.admit(jobs.until, str(tmp_path / "never"), task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    verdict = attempt.verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert f"lacks compute.instances.delete on its own VM {attempt.name}, so that the VM could not" in verdict.reason
    assert "gcloud iam roles create kineticHost --project=emulated" in verdict.reason
    assert 'resource.name.extract("instances/{name}").startsWith("kinetic-")' in verdict.reason
    assert "--member=serviceAccount:" in verdict.reason and "EMAIL" not in verdict.reason
    assert attempt.log() == ""
    place.cloud.allow("vm", "compute.instances.delete")
    place.gone(attempt.name)


def test_a_notice_120_seconds_ahead_ends_the_program_and_the_vm(place: Place, jobs: Any) -> None:
    attempt = place.site.admit(jobs.has_last_words, task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    wait_until(lambda: "ready" in attempt.log() or "running" in attempt.log())
    place.cloud.compute.preempt(attempt.name, 60.0)
    assert (
        attempt.verdict().cause == wire.INFRASTRUCTURE
    )  # it is no spot VM, and its program is told in time all the same
    place.gone(attempt.name)
    assert attempt.log().endswith("and the very last")


def test_the_log_says_which_image_of_its_family_a_vm_was_made_from(place: Place, jobs: Any) -> None:
    """A family gives another one next week, and what a program met there is asked later."""
    attempt = place.site.admit(jobs.attempt, task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    attempt.verdict()
    place.gone(attempt.name)
    found = [line for line in attempt.log(kinds="n").splitlines() if line.startswith("this VM was made from ")]
    assert len(found) == 1 and "/family/" not in found[0]
    assert found[0].startswith("this VM was made from projects/ubuntu-os-accelerator-images/global/images/ubuntu-")


def test_a_vm_that_boots_again_ends_the_attempt_and_itself(place: Place, jobs: Any, tmp_path: Path) -> None:
    """Google restarts what failed, where somebody has changed what we said; its assignment is old then."""
    attempt = place.site.admit(jobs.until, str(tmp_path / "never"), task={"accelerator": L4, "devices": 1})
    place.start(attempt)
    wait_until(lambda: "running" in attempt.log())
    place.cloud.compute.reboot(attempt.name)
    verdict = attempt.verdict()
    assert verdict.reason == "this machine was restarted in mid-run (another boot id)"
    place.gone(attempt.name)


def test_at_the_deadline_a_vm_deletes_all_of_its_attempt_though_no_agent_ever_came(place: Place, jobs: Any) -> None:
    attempt = place.site.admit(jobs.attempt, task={"accelerator": L4, "devices": 1})
    place.site.storage.fail(f"get *{attempt.agent}", status=503, times=None)
    place.start(attempt, hosts=2, deadline=time.time() + 3.0)
    place.gone(f"{attempt.name}-0", f"{attempt.name}-1")
    assert place.site.records.read(names.host(attempt.job, 1, 0, "started.json")) is None


# ---- what an instance asks, without a cloud --------------------------------------------------------------------


class Google(ThreadingHTTPServer):
    """Answers that are given by method and the end of a path, and the metadata server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Google)
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, Any]] = []


class _Google(BaseHTTPRequestHandler):
    server: Google

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((f"{self.command} {self.path}", json.loads(sent) if sent else None))
        found = next(
            (said for end, said in self.server.answers.items() if f"{self.command} {self.path}".endswith(end)), []
        )
        status, body = (found.pop(0) if len(found) > 1 else found[0]) if found else (404, {})
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

    do_GET = do_POST = answer


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with Google() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("KINETIC_EMULATOR", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(bootstrap, "_token", ("", 0.0))
        monkeypatch.setattr(bootstrap, "_heard", (0.0, 0.0))
        yield server
        server.shutdown()


def instance(host: int = 1, hosts: int = 3, processes: int = 1) -> Instance:
    found = machine_of(
        Assignment(
            "gs://b/prod", "job-1", 1, host, hosts, "", f"boot/{host}", "/run", "/home", "", "A=b",
            "projects/p/zones/z/instances/kinetic-1", processes=processes,
        )
    )  # fmt: skip
    assert isinstance(found, Instance)
    return found


def shown(address: str, **more: Any) -> dict[str, Any]:
    interface = {
        "networkIP": address,
        "network": "https://www.googleapis.com/compute/v1/projects/nets/global/networks/n",
    }
    return {"status": "RUNNING", "networkInterfaces": [interface], **more}


ON_L4 = TASK._replace(accelerator=Hardware("gpu", "l4"))


def test_the_addresses_are_those_of_each_instance_in_the_order_of_the_hosts_once_all_have_one(google: Google) -> None:
    google.answers = {
        "GET /compute/v1/projects/p/zones/z/instances/kinetic-1-0": [(404, {}), (200, {}), (200, shown("10.0.0.9"))],
        "GET /compute/v1/projects/p/zones/z/instances/kinetic-1-1": [
            (403, {"error": {"message": "slow down", "errors": [{"reason": "rateLimitExceeded"}]}}),
            (200, shown("10.0.0.3")),
        ],
        "GET /compute/v1/projects/p/zones/z/instances/kinetic-1-2": [(200, "<html>"), (200, shown("10.0.0.5"))],
    }
    assert instance().addresses(ON_L4) == ["10.0.0.9", "10.0.0.3", "10.0.0.5"]


def test_the_processes_of_an_instance_have_its_address_for_which_it_is_asked_once(google: Google) -> None:
    google.answers = {
        "GET /compute/v1/projects/p/zones/z/instances/kinetic-1-0": [(200, shown("10.0.0.9"))],
        "GET /compute/v1/projects/p/zones/z/instances/kinetic-1-1": [(200, shown("10.0.0.3"))],
    }
    assert instance(3, 6, 3).addresses(ON_L4) == ["10.0.0.9"] * 3 + ["10.0.0.3"] * 3
    asked = [call for call, _ in google.asked if "/instances/" in call]
    assert len(asked) == 2
    assert instance(3, 6, 3)._own().endswith("/instances/kinetic-1-1")


def test_the_processes_of_one_instance_meet_on_it_and_need_no_address(google: Google) -> None:
    machine = instance(1, 4, 4)
    assert machine.address() == "127.0.0.1"
    assert not machine.requests_address
    assert machine._own().endswith("/instances/kinetic-1")
    assert google.asked == []


@pytest.mark.parametrize(("host", "own"), [(0, "0"), (3, "3"), (5, "1")])
def test_a_process_sees_all_gpus_of_its_vm_and_is_told_its_own(host: int, own: str) -> None:
    machine = instance(host, 8, 4)
    files = dict.fromkeys(("outcome", "events", "notice", "stacks"), "")
    ready = Ready("python3", "", [], [], "", [], [])
    task, hosts = ON_L4._replace(devices=1, processes=4), ["10.0.0.9"] * 4 + ["10.0.0.3"] * 4
    env = start_message(machine._at, task, ready, hosts, topology.PORTS, {}, files, "agent", {}, machine)["env"]
    seen = {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "KINETIC_OWN_DEVICE": own,
        "JAX_CUDA_VISIBLE_DEVICES": own, "KERAS_TORCH_DEVICE": f"cuda:{own}", "RANK": str(host), "WORLD_SIZE": "8",
        "LOCAL_RANK": own, "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": str(host // 4), "NODE_RANK": str(host // 4),
        "NNODES": "2", "JAX_NUM_PROCESSES": "8", "JAX_PROCESS_ID": str(host), "MASTER_ADDR": "10.0.0.9",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.9:8476", "NCCL_NET": "Socket", "KINETIC_HOST_COUNT": "8",
    }  # fmt: skip
    assert {name: env.get(name) for name in seen} == seen


def test_the_gpus_of_a_vm_are_waited_for_by_each_of_its_processes(
    google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not only its own, which may not be the last."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA L4 (UUID: GPU-0)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", os.environ["KINETIC_EMULATOR"])  # which tells the time
    monkeypatch.setattr(gpus, "PATIENCE", 0.3)
    instance(0, 1).devices(ON_L4._replace(devices=1), pytest.fail)
    with pytest.raises(Unanswered, match="nvidia-smi lists 1 of 4 GPUs"):
        instance(0, 4, 4).devices(ON_L4._replace(devices=1), lambda _: None)


def test_addresses_that_may_not_be_read_are_told_with_the_role_and_those_that_never_come_after_a_while(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "COMPANY", 0.3)
    google.answers = {
        "/kinetic-1-0": [(403, {"error": {"message": "Required 'compute.instances.get' permission"}})],
        "default/email": [(200, "sa@p.iam")],
    }
    with pytest.raises(Unauthorized) as refused:
        instance().addresses(ON_L4)
    assert "where kinetic-1-0 is could not be read by the service account sa@p.iam: Required" in str(refused.value)
    assert "--member=serviceAccount:sa@p.iam" in str(refused.value)
    google.answers = {}
    with pytest.raises(
        Unanswered, match=r"where the hosts of projects/p/zones/z/instances/kinetic-1-0 are was not told"
    ):
        instance().addresses(ON_L4)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(200, {"status": "STAGING"}), (404, {})], "kinetic-1-0, the VM of another host, is gone, and is not waited"),
        ([(200, {**shown("10.0.0.9"), "status": "TERMINATED"})], "kinetic-1-0, the VM of another host, is TERMINATED"),
        ([(404, {})], "kinetic-1-0, the VM of another host, is not there"),
    ],
)
def test_a_host_whose_vm_is_gone_before_it_speaks_is_not_waited_for(
    google: Google, monkeypatch: pytest.MonkeyPatch, answers: list[Any], said: str
) -> None:
    monkeypatch.setattr(vm_instance, "JUDGED", 0.3)
    monkeypatch.setattr(vm_instance, "UNMADE", 0.6)
    google.answers = {"/kinetic-1-0": answers}
    began = time.monotonic()
    with pytest.raises(Unanswered, match=said):
        instance().addresses(ON_L4)
    assert time.monotonic() - began < 60.0  # and not for five minutes


def test_rights_are_asked_for_on_ones_own_vm_and_what_cannot_be_checked_is_a_note(google: Google) -> None:
    """On the project they would be missing: a condition narrows them."""
    path = "/compute/v1/projects/p/zones/z/instances/kinetic-1-1/testIamPermissions"
    wanted = ["compute.instances.delete", "compute.instances.get"]
    google.answers = {path: [(200, {"permissions": wanted})]}
    assert instance()._check_rights("p") == ""
    [sent] = [body for call, body in google.asked if call == f"POST {path}"]
    assert sorted(sent["permissions"]) == wanted
    google.answers = {path: [(404, {"error": {"message": "no such instance"}})]}
    assert "could not be checked: no such instance" in instance()._check_rights("p")


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        (["ml", "more"], "--source-tags=ml --target-tags=ml"),
        ([], "--source-ranges=10.0.0.0/20"),
    ],
)
def test_a_network_that_lets_nothing_through_is_told_with_the_rule_that_opens_it(
    google: Google, monkeypatch: pytest.MonkeyPatch, tags: list[str], who: str
) -> None:
    monkeypatch.setattr(network, "PATIENCE", 0.2)
    monkeypatch.setattr(network, "TRY", 0.3)
    google.answers = {
        "/kinetic-1-1": [(200, shown("10.0.0.3", **({"tags": {"items": tags}} if tags else {})))],
        "network-interfaces/0/ip": [(200, "10.0.0.3")],
        "network-interfaces/0/subnetmask": [(200, "255.255.240.0")],
    }
    with blocked() as port, pytest.raises(Unauthorized) as refused:
        monkeypatch.setattr(network, "PORTS", (port,))
        instance().meet(["127.0.0.1", "10.0.0.3", "10.0.0.5"], lambda _host: True)
    assert str(refused.value) == (
        f"host 1 could not reach host 0 at 127.0.0.1:{port} within 0 s, which runs: the network lets no connection through "
        "between the hosts of a job, and frameworks choose ports of their own. Nothing was run. Allow all of TCP between "
        f"them: gcloud compute firewall-rules create kinetic-hosts --project=nets --network=n --allow=tcp {who}"
    )


@pytest.mark.parametrize(
    ("notice", "spot", "lead", "told", "counts_as"),
    [
        (PREEMPTED, (200, "TRUE"), attempt_rules.SPOT_NOTICE, "this VM is being preempted", wire.PREEMPTION),
        (
            *(PREEMPTED, (200, "FALSE"), 0.0),
            "Google takes the machine of this VM back, which is no spot VM, as it does to defragment a zone",
            wire.INFRASTRUCTURE,
        ),
        (PREEMPTED, (404, ""), 0.0, "this VM is being preempted", wire.PREEMPTION),
        (MAINTAINED, (200, "TRUE"), 0.0, "this VM is being ended for maintenance", wire.PREEMPTION),
        (MAINTAINED, (200, "FALSE"), 0.0, "this VM is being ended for maintenance", wire.INFRASTRUCTURE),
    ],
)
def test_a_notice_that_is_found_by_asking_says_as_much_as_one_that_was_watched_for(
    google: Google, notice: tuple[str, str], spot: tuple[int, str], lead: float, told: str, counts_as: str
) -> None:
    """Only a spot VM is had on the condition that it may be taken back: others count as machines that failed."""
    google.answers = {notice[0]: [(200, notice[1])], "instance/scheduling/preemptible": [spot]}
    found = instance()
    assert (found.lead, found.counts_as) == (0.0, wire.PREEMPTION)
    assert found.notice() == told
    assert (found.lead, found.counts_as) == (lead, counts_as)


def test_a_tpu_vm_gets_large_pages_and_one_that_may_not_is_left_as_it_is(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    vm._want_huge_pages()
    pages = tmp_path / vm.HUGE_PAGES
    pages.parent.mkdir(parents=True)
    pages.write_text("always [madvise] never")
    vm._want_huge_pages()
    assert pages.read_text() == "always"


@pytest.mark.parametrize(
    ("task", "hosts", "given", "expected"),
    [
        (ON_L4, ["10.0.0.9", "10.0.0.3"], {}, ("Socket", "1", "enp0s12", "enp0s12")),
        (ON_L4, ["10.0.0.9", "10.0.0.3"], {"NCCL_SOCKET_IFNAME": "eth1"}, ("Socket", "1", "eth1", "enp0s12")),
        (ON_L4, ["127.0.0.1", "127.0.0.1"], {}, ("", "", "", kernel.LOOPBACK)),
        (ON_L4, ["127.0.0.1"], {}, ("", "", "", kernel.LOOPBACK)),
        (TASK._replace(accelerator=Hardware("tpu", "v6e")), ["10.0.0.9", "10.0.0.3"], {}, ("", "", "", "")),
    ],
)
def test_programs_with_gpus_on_several_machines_use_the_network_that_there_is(
    monkeypatch: pytest.MonkeyPatch,
    task: Task,
    hosts: list[str],
    given: dict[str, str],
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setattr(network, "interface", lambda: "enp0s12")
    machine = instance(0, len(hosts))
    files = dict.fromkeys(("outcome", "events", "notice", "stacks"), "")
    ready, ports = Ready("python3", "", [], [], "", [], []), topology.PORTS
    task = task._replace(env=given)
    env = start_message(machine._at, task, ready, hosts, ports, {}, files, "agent", {}, machine)["env"]
    names = ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    assert tuple(env.get(name, "") for name in names) == expected


@pytest.mark.parametrize(
    ("hosts", "provision", "left", "patience"),
    [
        (1, 3600.0, 36000.0, gpus.PATIENCE),
        (1, 0.0, 36000.0, gpus.PATIENCE),
        (1, 200.0, 36000.0, 170.0),
        (1, 0.0, 100.0, 70.0),
        (1, 3600.0, -5.0, 0.0),
        (2, 3600.0, 36000.0, 270.0),
        (2, 0.0, 100.0, 70.0),
    ],
)
def test_gpus_are_waited_for_no_longer_than_the_hosts_for_each_other_or_the_deadline(
    hosts: int, provision: float, left: float, patience: float
) -> None:
    """Else the failure would say that this host was not ready, and not why, or be that of a program on another host."""
    assert patience_with_gpus(hosts, provision, left) == patience


@pytest.mark.parametrize("task", [ON_L4._replace(image="r/i:1"), TASK._replace(accelerator=Hardware("tpu", "v6e"))])
def test_a_container_whose_vm_has_waited_and_a_tpu_vm_wait_for_no_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: Task
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no nvidia-smi
    instance().devices(task, pytest.fail)
