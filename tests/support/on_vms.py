"""Jobs whose hosts are started as on VMs of the cloud: by the startup script alone, against a real storage server.

Of Google's other APIs there is just what a host asks: a few lines that keep count. The emulator has all of them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.jobs.launch import admit
from kinetic_orchestration.jobs.request import settings_of
from kinetic_orchestration.packaging.bundle import package
from kinetic_orchestration.packaging.staging import stage
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.google.vms import startup_script
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.storage_server.server import StorageServer
from kinetic_orchestration.testing.vms.vm import Machines, Vm
from tests.support.waits import wait_until

PARENT = "projects/emulated/locations/us-central2-b/queuedResources"
ACCOUNT = {"tpu.nodes.delete"}


class Apis(ThreadingHTTPServer):
    """Deletes slices, tells what an account may do, and has secrets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.deleted: list[tuple[str, float]] = []
        self.on_delete: dict[str, Callable[[], None]] = {}
        self.permissions = set(ACCOUNT)
        self.deletions: list[threading.Thread] = []
        self.deleting = threading.Lock()
        self.refusals: list[int] = []  # of the next deletes
        self.secrets: dict[str, bytes] = {}
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for deletion in self.deletions:
            deletion.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Apis

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionResetError):  # a VM that was destroyed
            super().handle()

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_DELETE(self) -> None:
        path = self.path.partition("?")[0]
        assert self.path.endswith("?force=true") == ("/queuedResources/" in path)
        name = path.removeprefix("/v2/")
        if "/nodes/" not in path:
            self.server.deleted.append((self.headers.get("Authorization", ""), time.monotonic()))
        if refusals := self.server.refusals:
            status = refusals.pop(0)
            self._answer(status, {"error": {"code": status, "message": f"refused with {status}"}})
            return
        with self.server.deleting:
            if (gone := self.server.on_delete.get(name)) is not None:
                answered = threading.Event()
                deletion = threading.Thread(target=lambda: (answered.wait(30), gone()))
                deletion.start()
                self.server.deletions.append(deletion)  # before anybody sees that it is gone, and waits for it
                del self.server.on_delete[name]
        if gone is None:
            self._answer(404, {"error": {"code": 404, "message": f"{name} was not found"}})
            return
        try:
            self._answer(200, {"name": "operations/1", "done": False})
        finally:
            answered.set()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (fixed := self.server.answers.get(self.path)) is not None:
            self._answer(*fixed)
            return
        assert self.path.endswith(":testIamPermissions")
        granted = [name for name in asked["permissions"] if name in self.server.permissions]
        self._answer(200, {"permissions": granted} if granted else {})

    def do_GET(self) -> None:
        if (fixed := self.server.answers.get(f"GET {self.path}")) is not None:
            self._answer(*fixed)
            return
        name = self.path.removeprefix("/v1/").removesuffix(":access")
        value = self.server.secrets.get(name)
        if value is None:
            self._answer(404, {"error": {"code": 404, "message": f"Secret [{name}] not found."}})
            return
        self._answer(200, {"payload": {"data": base64.b64encode(value).decode()}})


class Site:
    """A bucket, the APIs, and a room for machines."""

    def __init__(self, storage: StorageServer, folder: Path) -> None:
        self.storage = storage
        self.apis = Apis()
        self.folder = folder
        environ = {**storage.environ(), "KINETIC_EMULATOR": self.apis.url}
        self.machines = Machines(
            folder / "machines", environ=environ, token=lambda node, worker: f"emulator-token/{node}/{worker}",
            sign_identity=lambda audience, machine: f"signed:{machine.node}:{machine.worker}:{audience}",
            python=f"{os.sys.version_info[0]}.{os.sys.version_info[1]}",  # type: ignore[attr-defined]
        )  # fmt: skip
        self.bucket = storage.make_bucket("b-" + os.urandom(6).hex())
        self.records = CloudRecords(f"{self.bucket}/a prefix/prod")

    def close(self) -> None:
        self.apis.close()
        self.machines.close()
        self.records.close()

    def admit(self, function: Callable[..., Any] | None = None, *arguments: Any, **options: Any) -> Attempt:
        argv, cwd, slices = options.pop("argv", ()), options.pop("cwd", ""), options.pop("slices", 1)
        task = options.pop("task", {})
        spec = JobSpec(
            "by-hand", Options(**{"accelerator": "cpu", **options}), function, args=arguments, argv=tuple(argv), cwd=cwd
        )
        here = settings_of(spec)
        plan = replace(
            make_plan(spec, here, os.environ), store=self.bucket + "/a prefix", deployment="prod",
            backend="tpu-vm", project="emulated", slices=slices,
        )  # fmt: skip
        identity = of(plan.deployment, None)
        job = f"job-{os.urandom(6).hex()}"
        store = open_store(self.bucket + "/a prefix", "prod")
        spool = self.folder / f"spool-{job}"
        spool.mkdir()
        local = replace(plan, backend="local")  # its environment is this one
        staged = stage(package(spec, local, here, spool, os.environ), store, here.retention, here.home)
        zip_ = agent_zip.packed(here.home)
        self.records.create(names.blob(zip_.digest), zip_.data())
        admit(_With(self.records, task), job, identity, plan, staged)  # type: ignore[arg-type]
        record = self.records.read(names.spec(job))
        assert record is not None
        return Attempt(self, job, plan.hosts, slices, digest.of_bytes(record.data), zip_.digest)


class _With:
    """The store, with other words in the task."""

    def __init__(self, records: CloudRecords, task: dict[str, Any]) -> None:
        self._records, self._task, self.url, self.trusted = records, task, records.url, False

    def create(self, name: str, data: bytes) -> int | None:
        fields = wire.decode(data)
        fields["task"] |= self._task
        return self._records.create(name, wire.encode(fields))

    def written_at(self, name: str, generation: int) -> float:
        return self._records.now()


class Attempt:
    """One attempt, and the machines that it was given."""

    def __init__(self, site: Site, job: str, hosts: int, slices: int, spec: str, agent_digest: str) -> None:
        self.site, self.job, self.hosts, self.slices = site, job, hosts, slices
        self.spec, self.agent = spec, agent_digest
        self.number = 1
        self.vms: list[Vm] = []
        self.name = f"kinetic-{job.removeprefix('job-')}-1"
        self.resource = f"{PARENT}/{self.name}"

    def told(self, **changes: Any) -> dict[str, Any]:
        return {
            "wire": 1, "store": self.site.records.url, "job": self.job, "attempt": self.number, "hosts": self.hosts,
            "slices": self.slices, "hosts_per_slice": self.hosts // self.slices, "spec": self.spec,
            "agent": self.agent, "boot": "0123456789abcdef", "deadline": time.time() + 3600.0,
            "resource": self.resource, "image": "", "emulated": True, **changes,
        }  # fmt: skip

    def metadata(self, **told: Any) -> dict[str, str]:
        """Return what a VM of it is created with."""
        return {"startup-script": startup_script(), "kinetic": json.dumps(self.told(**told))}

    def start(self, *hosts: int, machine: Mapping[str, Any] | None = None, **told: Any) -> Attempt:
        """Boot the VMs, all of them by default."""
        per_slice = self.hosts // self.slices
        self.site.apis.on_delete[self.resource] = self.destroy
        metadata = self.metadata(**told)
        for host in hosts or range(self.hosts):
            self.vms.append(
                self.site.machines.create(
                    Machine(
                        "emulated", "us-central2-b",
                        self.name if self.slices == 1 else f"{self.name}-{host // per_slice}",
                        "v4-8", "2x2x1", "tpu-ubuntu2204-base", worker=host % per_slice, workers=per_slice,
                        slice_index=host // per_slice, slices=self.slices, metadata=metadata, **(machine or {}),
                    )
                )
            )  # fmt: skip
        return self

    def destroy(self) -> None:
        for vm in self.vms:
            vm.destroy()

    def verdict(self, within: float = 60.0) -> wire.Verdict:
        name = names.verdict(self.job, self.number)
        deadline = time.monotonic() + within
        while (record := self.site.records.read(name)) is None:
            if time.monotonic() > deadline:
                raise AssertionError("no verdict; " + "\n".join(f"{vm!r}: {vm.console()}" for vm in self.vms))
            time.sleep(0.05)
        return wire.Verdict.decode(record.data)

    def gone(self, within: float = 60.0) -> None:
        """Wait until its slice was deleted."""
        wait_until(lambda: self.resource not in self.site.apis.on_delete, within=within)

    def log(self, host: int = 0, kinds: str = "oe") -> str:
        return b"".join(frame.payload for frame in self.frames(host) if frame.kind in kinds).decode()

    def frames(self, host: int = 0) -> list[frames.Frame]:
        found: list[frames.Frame] = []
        prefix = names.host(self.job, self.number, host, "log/")
        for number, entry in enumerate(self.site.records.list(prefix)):
            assert entry.name == names.segment(self.job, self.number, host, number)
            record = self.site.records.read(entry.name)
            assert record is not None
            decoded, used = frames.decode(record.data, number)
            assert used == len(record.data)
            assert decoded[-1].kind == frames.NEXT
            found += decoded[:-1]
        return found

    def beat(self, host: int = 0) -> wire.Beat | None:
        for signal in self.site.records.signals(names.beats_of(self.job)):
            if signal.name == names.beat(self.job, self.number, host):
                return wire.Beat.read(signal.data)
        return None

    def value(self) -> Any:
        from kinetic_orchestration.protocol.content import payload

        record = self.site.records.read(names.host(self.job, self.number, 0, "result"))
        assert record is not None
        path = self.site.folder / "value"
        path.write_bytes(record.data)
        verdict = self.verdict()
        if verdict.format == wire.PLAIN:
            return payload.load_plain(str(path), verdict.digest)
        return payload.load(str(path), verdict.digest, role=payload.VALUE)


def constants(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **changed: Any) -> None:
    """Gives agents that are staged from now on other constants in one of their modules."""
    assert all(hasattr(module, name) for name in changed), "a constant of that name is there"
    lines = [f"import {module.__name__} as changed"]
    lines += [f"changed.{name} = {value!r}" for name, value in changed.items()]
    start = "else:\n"
    assert agent_zip._MAIN.count(start) == 1
    other = textwrap.indent("\n".join(lines) + "\n", 8 * " ")
    monkeypatch.setattr(agent_zip, "_MAIN", agent_zip._MAIN.replace(start, start + other))
