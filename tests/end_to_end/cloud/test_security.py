"""A user who may write to the bucket, or read all of it, gains nothing by that: neither the hosts, nor secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.host.process import topology
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Output
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import FOUR_HOSTS, run, vm
from tests.support.bucket import unsummed
from tests.support.jobs import WITHIN, lines, told, wait_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each starts machines, and several processes on each

EVIL = "203.0.113.66"
OURS = ("10.9.8.1", "10.9.8.2", "10.9.8.3", "10.9.8.4")


# ---- where hosts find each other -------------------------------------------------------------------------------


@contextlib.contextmanager
def tampering(cloud: Emulator, job: JobHandle[Any]) -> Iterator[None]:
    """A writer reports again and again, in the name of every host, that it is elsewhere.

    The other hosts read host 0's report when it has been replaced.
    """
    cloud.storage.delay("get *started.json", 0.5)
    store, ended = job._job.store, threading.Event()

    def tamper() -> None:
        leader = names.host(job.job_id, 1, 0, "started.json")
        life = {"boot": "x", "machine": "x", "address": EVIL, "ports": dict.fromkeys(topology.PORTS, 4444)}
        forged: dict[str, bytes] = {}
        while not ended.wait(0.02):
            if leader not in forged and [entry.name for entry in store.list(leader)]:
                forged[leader] = wire.encode(life)
                store.put(leader, forged[leader])
            for signal in list(store.signals(f"{names.beats_of(job.job_id)}1/")):
                if signal.data != forged.get(signal.name):
                    forged[signal.name] = json.dumps(unsummed(signal.data) | {"address": EVIL}).encode()
                    store.signal(signal.name, forged[signal.name])

    thread = threading.Thread(target=tamper)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    record = store.read(names.host(job.job_id, 1, 0, "started.json"))
    assert record is not None
    assert EVIL.encode() in record.data


def topologies(cloud: Emulator, job: JobHandle[Any]) -> list[dict[str, str]]:
    with tampering(cloud, job):
        events = told(job)
    return [json.loads(lines(events, host)) for host in range(job.hosts)]


@pytest.mark.turn(6)
def test_forged_addresses_in_the_bucket_lead_emulated_hosts_nowhere(cloud: Emulator, jobs: Any) -> None:
    for found in topologies(cloud, run(jobs.prints_topology, accelerator=FOUR_HOSTS)):
        assert EVIL not in json.dumps(found)
        assert found["JAX_COORDINATOR_ADDRESS"].startswith("127.0.0.1:")
        assert found["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.turn
@pytest.mark.parametrize("written", ["addresses", "triples"])
def test_hosts_find_each_other_by_their_metadata_and_at_fixed_ports_whatever_lies_in_the_bucket(
    cloud: Emulator, jobs: Any, written: str
) -> None:
    cloud.furnish({"endpoints": OURS, "endpoint_format": written})
    for index, found in enumerate(topologies(cloud, run(jobs.prints_topology, accelerator=FOUR_HOSTS))):
        assert EVIL not in json.dumps(found)
        assert found["JAX_COORDINATOR_ADDRESS"] == f"{OURS[0]}:{topology.PORTS['jax']}"
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == (OURS[0], str(topology.PORTS["torch"]))
        of_tensorflow = json.loads(found["TF_CONFIG"])
        first = topology.PORTS["tensorflow"]
        assert of_tensorflow["cluster"]["worker"] == [f"{host}:{first + n}" for n, host in enumerate(OURS)]
        assert of_tensorflow["task"]["index"] == index


def test_hosts_of_other_slices_are_where_the_cloud_tpu_api_says(cloud: Emulator, jobs: Any) -> None:
    """In the emulator these differ from the addresses in the metadata, so that the source is visible."""
    cloud.furnish({"endpoints": OURS[:1]})
    job = run(jobs.prints_topology, accelerator="v5e-8", cloud=kinetic.TpuVm(num_slices=2))
    first, second = topologies(cloud, job)
    assert EVIL not in json.dumps([first, second])
    for index, found in enumerate((first, second)):
        leader = found["MASTER_ADDR"]
        assert (leader == OURS[0]) is (index == 0)
        assert found["JAX_COORDINATOR_ADDRESS"] == f"{leader}:{topology.PORTS['jax']}"
        assert found["MEGASCALE_COORDINATOR_ADDRESS"] == f"{leader}:{topology.PORTS['megascale']}"
        workers = [worker.partition(":")[0] for worker in json.loads(found["TF_CONFIG"])["cluster"]["worker"]]
        assert workers[index] == OURS[0]
        assert workers[1 - index].startswith("10.")
        assert workers[1 - index] != OURS[0]


def test_a_vm_that_may_not_ask_where_other_slices_are_runs_nothing_and_says_what_it_lacks(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    cloud.furnish({"endpoints": OURS[:1]})
    cloud.deny("vm", "tpu.nodes.get")
    job = run(jobs.leaves_mark, str(tmp_path / "ran"), accelerator="v5e-8", cloud=kinetic.TpuVm(num_slices=2))
    with pytest.raises(JobError, match=r"Permission 'tpu\.nodes\.get' denied.*roles/tpu\.viewer") as raised:
        job.result(timeout=WITHIN)
    assert raised.value.cause == wire.CONFIGURATION
    assert not (tmp_path / "ran").exists()


# ---- secrets ---------------------------------------------------------------------------------------------------


def test_a_credential_that_was_named_reaches_the_function_and_lies_nowhere_else(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    value = f"hf_{os.urandom(12).hex()}"
    monkeypatch.setenv("HF_TOKEN", value)
    job = run(jobs.fingerprint, ["HF_TOKEN"], str(tmp_path / "go"), capture_env_vars=["HF_TOKEN"])
    wait_running(job)
    machine = vm(cloud, job)
    (kept,) = secret_manager.with_label(settings.load(), "kinetic-job", job.job_id)
    assert 0 < kept.expires - time.time() < 48 * 3600
    assert not [words for words in _command_lines() if value in words]
    assert value not in json.dumps([cloud.nodes(), cloud.queued_resources()])
    assert value not in machine.console()
    assert not _files_with(value, machine.root)
    (tmp_path / "go").touch()
    events = told(job)
    assert job.result(timeout=WITHIN) == {"HF_TOKEN": hashlib.sha256(value.encode()).hexdigest()}
    assert value.encode() not in b"".join(event.text for event in events if isinstance(event, Output))
    assert cloud.neighbours.secrets() == []
    assert not [name for name, data in _objects(cloud) if value.encode() in data]
    assert not _files_with(value, Path(os.environ["KINETIC_HOME"]))
    shown = capfd.readouterr()
    assert value not in shown.out + shown.err


def test_a_credential_that_only_a_wildcard_meant_stays_here_and_a_sentence_says_so(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())
    for name in ("LAB_TOKEN", "LAB_PASSWORD", "LAB_MODE"):
        monkeypatch.setenv(name, f"of {name}")
    (tmp_path / "go").touch()
    with pytest.warns(UserWarning, match=r"LAB_PASSWORD, LAB_TOKEN: looks like a credential and stays here.*exactly"):
        job = run(jobs.fingerprint, ["LAB_TOKEN", "LAB_MODE"], str(tmp_path / "go"), capture_env_vars=["LAB_*"])
    assert list(job.result(timeout=WITHIN)) == ["LAB_MODE"]
    assert cloud.count("CreateSecret") == 0


def _command_lines() -> Iterator[str]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{entry}/cmdline").read_bytes().decode("utf-8", "replace")


def _files_with(value: str, folder: Path) -> list[Path]:
    read, found = 0, []
    every = (Path(at, name) for at, _, names in os.walk(folder, followlinks=True) for name in names)
    for path in every:  # also those of the agent, which homes of tests share by a link
        with contextlib.suppress(FileNotFoundError):  # of a host that works, files come and go
            if path.is_file() and not path.is_symlink():
                read += 1
                found += [path] if value.encode() in path.read_bytes() else []
    assert read > 5
    return found


def _objects(cloud: Emulator) -> Iterator[tuple[str, bytes]]:
    """All that lies in the bucket, as anybody reads it who may."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="emulated", credentials=AnonymousCredentials())
    found = [
        (blob.name, blob.download_as_bytes() + json.dumps(blob.metadata).encode())
        for blob in client.list_blobs("emulated")
    ]
    client.close()
    assert len(found) > 5
    yield from found
