"""The local backend with real processes and no framework: who runs where, with what environment, and how many."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import TooBig, UsageError
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import Change, Event
from kinetic_orchestration.platforms.local import backend as local
from kinetic_orchestration.protocol.system import processes
from tests.support.faults import guard_in
from tests.support.waits import wait_until

STALE = {
    "MEGASCALE_COORDINATOR_ADDRESS": "10.9.9.9",
    "TPU_WORKER_ID": "7",
    "TPU_WORKER_HOSTNAMES": "10.9.9.9,10.9.9.8",
    "JAX_COORDINATOR_ADDRESS": "10.9.9.9:1234",
    "JAX_NUM_PROCESSES": "64",
    "MASTER_ADDR": "10.9.9.9",
    "MASTER_PORT": "1",
    "RANK": "7",
    "WORLD_SIZE": "64",
    "LOCAL_RANK": "7",
    "SLURM_JOB_ID": "77",
    "TF_CONFIG": '{"task": {"type": "chief", "index": 7}}',
    "KINETIC_JOIN": '{"hosts": 64}',
}


def environment_of_each_host() -> int:
    """Leaves what each host sees beside the results; needs no framework."""
    here = kinetic.current()
    seen = {"environ": dict(os.environ), "modules": [name for name in ("jax", "torch", "numpy") if name in sys.modules]}
    Path(here.output_dir, f"{here.host_index}.json").write_text(json.dumps(seen))
    return here.host_index


def environments(job: kinetic.JobHandle[Any]) -> list[dict[str, str]]:
    files = sorted(Path(job.output_dir).glob("*.json"))
    return [json.loads(file.read_text())["environ"] for file in files]


# -- hosts ------------------------------------------------------------------------------------------------------


def test_f28_stale_topology_variables_of_the_submitter_do_not_reach_a_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function without any framework runs on four hosts, and each of them has the variables that torch,
    TensorFlow, JAX and Keras code expects, whatever the submitter's shell had."""
    for name, value in STALE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/opt/libtpu.so")
    job = kinetic.run(accelerator="v5e-16")(environment_of_each_host).run_async()
    assert job.result() == 0, "host 0's value is the result"
    hosts = environments(job)
    assert [host["RANK"] for host in hosts] == ["0", "1", "2", "3"]
    assert [host["JAX_PROCESS_ID"] for host in hosts] == ["0", "1", "2", "3"]
    assert {(host["MASTER_ADDR"], host["WORLD_SIZE"], host["LOCAL_RANK"]) for host in hosts} == {
        ("127.0.0.1", "4", "0")
    }
    assert {(host["JAX_NUM_PROCESSES"], host["JAX_NUM_CPU_DEVICES"]) for host in hosts} == {("4", "4")}
    (port,) = {int(host["MASTER_PORT"]) for host in hosts}
    configs = [json.loads(host["TF_CONFIG"]) for host in hosts]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(4)]
    (workers,) = {tuple(config["cluster"]["worker"]) for config in configs}
    (coordinator,) = {host["JAX_COORDINATOR_ADDRESS"] for host in hosts}
    ports = {port, int(coordinator.rpartition(":")[2]), *(int(worker.rpartition(":")[2]) for worker in workers)}
    assert len(ports) == 6, "nobody listens on another's port"
    for host in hosts:
        assert (
            not {"MEGASCALE_COORDINATOR_ADDRESS", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "SLURM_JOB_ID"} & host.keys()
        )
        assert "10.9.9" not in str(host)
        assert host["TPU_LIBRARY_PATH"] == "/opt/libtpu.so", "of the machine, not of a topology"
        assert json.loads(host["KINETIC_JOIN"])["hosts"] == 4
    for file in Path(job.output_dir).glob("*.json"):
        assert json.loads(file.read_text())["modules"] == []


@pytest.mark.slow
@pytest.mark.turn(4)
def test_one_host_has_the_devices_that_a_framework_counts_there(home: Path) -> None:
    """v2 and v3 show both TensorCores of a chip; GPUs and CPUs are emulated as so many devices."""
    expected = {"v5e-8": "8", "v5e-1": "1", "v2-4": "8", "v3-4": "8", "a100x4": "4", "cpu:8": "8", "cpu": "1"}
    for accelerator, devices in expected.items():
        if local.has_real(accelerators.parse(accelerator)):
            continue
        job = kinetic.run(accelerator=accelerator, backend="local")(environment_of_each_host).run_async()
        assert job.result() == 0
        (host,) = environments(job)
        assert (host["JAX_NUM_CPU_DEVICES"], host["JAX_PLATFORMS"], host["CUDA_VISIBLE_DEVICES"]) == (
            devices,
            "cpu",
            "",
        )
        assert not {"TF_CONFIG", "KINETIC_JOIN"} & host.keys(), "one host has nobody to find"
    assert (host["RANK"], host["WORLD_SIZE"]) == ("0", "1"), "but torch has a group of one"


# -- a session of its own -----------------------------------------------------------------------------------------


SUBMITTER = """\
import os, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v4-8")
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getppid(), os.getsid(0), os.getsid(os.getppid())

if __name__ == "__main__":
    print(wait_for.run_async(sys.argv[1]).job_id, os.getsid(0))
"""


def test_the_hosts_outlive_the_submitter_and_another_process_collects(home: Path, tmp_path: Path) -> None:
    """Each host is a tree of its own in a detached session; closing the terminal ends nothing."""
    program, go = tmp_path / "project" / "submit.py", tmp_path / "go"
    program.parent.mkdir()
    program.write_text(SUBMITTER)
    done = subprocess.run(
        [sys.executable, str(program), str(go)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
    )
    job_id, session = done.stdout.split()
    assert processes.find(int(session)) is None, "the submitter is gone"
    job = kinetic.attach(job_id)
    wait_until(lambda: job.status() is kinetic.JobStatus.RUNNING, "the hosts")
    locks = sorted((home / "run").glob("*/host-*.json"))
    assert len(locks) == 2
    wait_until(lambda: all(map(guard_in, locks)), "who guards them")
    guards = [json.loads(lock.read_text()) for lock in locks]
    for guard in guards:
        assert processes.alive(guard["pid"], guard["started"])
        assert os.getsid(guard["pid"]) == guard["pid"], "each host leads a session"
        wait_until(lambda pid=guard["pid"]: len(processes.descendants(pid)) == 2, "its agent and its program")
    go.touch()
    agent, own, of_agent = job.result()
    assert of_agent == guards[0]["pid"]
    assert agent not in (guards[0]["pid"], os.getpid())
    assert len({own, of_agent, int(session), os.getsid(0)}) == 4


# -- how many ---------------------------------------------------------------------------------------------------


def test_more_hosts_than_the_machine_can_hold_are_refused_before_anything_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_MAX_HOSTS", "3")
    with pytest.raises(TooBig, match=r"v5e-16 has 4 hosts, .* can hold 3 processes .* KINETIC_MAX_HOSTS"):
        kinetic.run(accelerator="v5e-16")(environment_of_each_host).run_async()
    assert not list((home / "run").glob("job-*"))


def test_without_a_setting_the_bound_follows_from_the_memory() -> None:
    huge = accelerators.parse("v5p-6144")
    with pytest.raises(TooBig, match="1536 hosts"):
        local.check_size(huge, 0)
    with pytest.raises(TooBig, match=r"5 × v5e-16 has 20 hosts, .* can hold 16 processes"):
        local.check_size(accelerators.parse("v5e-16"), 16, slices=5)
    local.check_size(accelerators.parse("v5e-4"), 16, slices=5)
    assert 4 <= local.most_hosts(0) <= 64
    assert local.most_hosts(5) == 5


@pytest.fixture
def one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores can be taken away on Linux only")
def test_more_hosts_than_cores_by_far_are_warned_about(one_core: None) -> None:
    with pytest.warns(UserWarning, match=r"v5e-32 is 8 processes on 1 cores here: it will be slow"):
        local.check_size(accelerators.parse("v5e-32"), 16)
    local.check_size(accelerators.parse("v5e-16"), 16)


def test_a_job_waits_for_a_place_and_then_runs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With places for two hosts, a second job of two hosts is queued, says so, and runs when the first has ended."""
    monkeypatch.setenv("KINETIC_MAX_HOSTS", "2")
    go = tmp_path / "go"

    @kinetic.run(accelerator="v4-8")
    def wait() -> str:
        deadline = time.monotonic() + 60
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return "first"

    @kinetic.run(accelerator="v4-8")
    def quick() -> str:
        return "second"

    first, second = wait.run_async(), quick.run_async()
    changes: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Change):
            changes.append(f"{event.phase}: {event.message}")
            if event.phase == "queued":
                assert second.status() is kinetic.JobStatus.PENDING
                go.touch()

    outcome = second.follow(note, timeout=60)
    assert outcome is not None
    assert (first.result(), second.result()) == ("first", "second")
    queued = [change for change in changes if change.startswith("queued")]
    assert queued == ["queued: waiting for a place: this machine takes 2 hosts at once, and other jobs have them"]


def test_a_waiting_job_can_be_cancelled_and_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_MAX_HOSTS", "1")
    go = tmp_path / "go"

    @kinetic.run(accelerator="v5e-1")
    def wait() -> None:
        deadline = time.monotonic() + 60
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    first, second = wait.run_async(), wait.run_async()
    second.cancel("not needed")
    assert second.status() is kinetic.JobStatus.CANCELLED
    go.touch()
    first.result()
    assert not list((home / "run").glob("job-*"))


# -- real chips -------------------------------------------------------------------------------------------------


def machine(root: Path, *, nodes: int = 0, device: str = "", vfio: bool = False) -> Path:
    """A machine's /dev, /sys and /proc as far as they tell of accelerators."""
    (root / "dev/vfio").mkdir(parents=True)
    (root / "dev/vfio/vfio").touch()
    for number in range(nodes):
        (root / (f"dev/vfio/{number}" if vfio else f"dev/accel{number}")).touch()
        bus = root / f"sys/bus/pci/devices/0000:00:0{number}.0"
        bus.mkdir(parents=True)
        (bus / "vendor").write_text("0x1ae0\n")
        (bus / "device").write_text(f"{device}\n")
    return root


@pytest.mark.parametrize(
    ("asked", "real", "there"),
    [
        ("v5e-8", True, {"nodes": 8, "device": "0x0063", "vfio": True}),
        ("v5e-4", False, {"nodes": 8, "device": "0x0063", "vfio": True}),
        ("v6e-8", False, {"nodes": 8, "device": "0x0063", "vfio": True}),
        ("v4-4", True, {"nodes": 4, "device": "0x005e"}),
        ("v3-4", True, {"nodes": 4, "device": "0x0027"}),
        ("v5e-16", False, {"nodes": 4, "device": "0x0063"}),
        ("v5e-8", False, {}),
        ("cpu:8", False, {"nodes": 8, "device": "0x0063"}),
    ],
)
def test_real_chips_are_used_only_if_the_machine_has_what_was_asked_for(
    tmp_path: Path, asked: str, real: bool, there: dict[str, Any]
) -> None:
    slice_, root = accelerators.parse(asked), machine(tmp_path, **there)
    assert local.has_real(slice_, root) is real
    local.check_slices(slice_, 1, root)
    if real:
        with pytest.raises(UsageError, match=f"this machine is one {asked}, and 2 are asked for: leave num_slices out"):
            local.check_slices(slice_, 2, root)
    else:
        local.check_slices(slice_, 2, root)


# -- who else is at it ------------------------------------------------------------------------------------------


def test_a_process_that_was_forked_during_a_submission_keeps_no_other_from_it(home: Path, tmp_path: Path) -> None:
    """It has all that was open then, and with it the lock."""
    backend = local.LocalBackend(home, 0, str(home / "store"), "local")
    (home / "run").mkdir()
    gate = home / "run" / ".admission"
    with backend._admission():
        held = [int(entry) for entry in os.listdir("/proc/self/fd") if _leads_to(entry, gate)]
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held)
    try:
        assert held
        with gate.open() as another:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.communicate()


def _leads_to(entry: str, file: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{entry}") == str(file)
    except OSError:
        return False
