"""The time that this project adds to an emulated cloud's own, its API requests, and the cost of requests to its store.

The emulator runs in this process, every client in one of its own, so that the two do not share an interpreter. What
is taken off the time of a job is scripted or measured in the same run: the provision delay as it was, and the boot of
a VM whose startup script does nothing but tell the time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

if TYPE_CHECKING:
    from kinetic_orchestration.testing import Emulator

PROCESSES, JOBS = 3, 4  # each process' first job is a cold one
ZONES = "us-west4-a", "us-central1-a"
ONE, FOUR = "v5e-1", "v5e-16"
FOLLOWED = (10, 100, 1000)
COUNTED = 30.0  # seconds of requests
FIRST = 10
BATCH, PAUSE = 100, 4.0
MOMENTS = 9  # at which memory is measured
UNTIL_SEEN = 30.0  # seconds in which the watcher has looked at all of them

A, B = 0.005 / 1000, 0.0004 / 1000  # USD for a request of each class, https://cloud.google.com/storage/pricing
MANY = 64  # hosts, whose requests are reckoned from those of a few

PROJECT = """
import os, time

def noop():
    return 7

def talks(until):
    while not os.path.exists(until):
        print("step", flush=True)
        time.sleep(1.0)
"""


TARGETS = {"cold": 2.0, "warm": 0.5}  # seconds added to a job


def figures() -> Iterator[Figure]:
    from tests.benchmarks import environment

    yield measure.bounded("cloud.load", os.getloadavg()[0], "processes", None)
    yield from added_time(Site, TARGETS)
    yield from delete_call()
    yield from environment.on_other_machines()
    yield from dollars()
    yield from followed(Site)


# ---- time added to a job ---------------------------------------------------------------------------------------


def added_time(kind: type[Site], targets: Mapping[str, float]) -> Iterator[Figure]:
    name = kind.section
    parts: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with site(kind, provision_seconds=0.2) as here:
        boots = [here.boot() for _ in range(5)]
        boot = statistics.median(boots)
        passing = measure.interleaved(5, lambda: measure.python("-c", "pass"))[0]
        for number in range(PROCESSES):
            with here.client("noop", here.accelerator, str(JOBS), deployment=f"time{number}") as client:
                assert client.stdout is not None
                assert client.stdin is not None
                for job in range(JOBS):
                    told = json.loads(client.stdout.readline())
                    parts["warm" if job else "cold"].append(here.split(told, f"time{number}", boot))
                    here.cloud.wait_until_empty()
                    client.stdin.write("next\n")
                    client.stdin.flush()
    yield measure.bounded(f"{name}.boot_of_a_vm", boot, "s", None, floor=passing)
    for start, target in targets.items():
        yield measure.bounded(f"{name}.added.{start}", _median(parts[start], "added"), "s", target, floor=passing)
        for part in ("before_create", "boot_to_agent", "agent_to_verdict", "verdict_to_value"):
            seconds = _median(parts[start], part)
            yield measure.bounded(f"{name}.added.{start}.{part}", seconds, "s", None, floor=passing)


def _median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


# ---- the delete call -------------------------------------------------------------------------------------------


def delete_call() -> Iterator[Figure]:
    """Time the delete calls of the hosts themselves: the submitter is gone."""
    with site() as here:
        for hosts, accelerator in ((1, ONE), (4, FOUR)):
            late = []
            for number in range(PROCESSES):
                deployment = f"delete{hosts}x{number}"
                with here.client("submit", accelerator, "", deployment=deployment) as client:
                    job = client.communicate()[0].strip()
                here.cloud.wait_until(lambda job=job: here.when(job, here.deleted), 60.0, "the delete call")  # type: ignore[misc]
                written = here.written(deployment, f"jobs/{job}/out/1/hosts/")
                done = [at for name, at in written.items() if name.endswith("/done.json")]
                assert len(done) == hosts
                late.append(here.when(job, here.deleted) - max(done))
                here.cloud.wait_until_empty(90.0)
            yield measure.bounded(f"cloud.delete_call.{hosts}_hosts", statistics.median(late), "s", 1.0)


# ---- requests to the store, in dollars -------------------------------------------------------------------------


def dollars() -> Iterator[Figure]:
    """Cost of hosts that run and print a line each second, without and with a reader of their log."""
    from kinetic_orchestration.host.view import bucket, segments

    seen: dict[tuple[int, bool], Counter[str]] = {}
    with site() as here:
        for hosts, accelerator in ((1, ONE), (4, FOUR)):
            go = here.folder / f"go{hosts}"
            deployment = f"dollars{hosts}"
            with here.client("submit", accelerator, str(go), deployment=deployment) as client:
                job = client.communicate()[0].strip()
            here.wait_running(deployment, job, hosts)
            time.sleep(5.0)  # the first beats of a host are closer to each other
            seen[hosts, False] = here.count(COUNTED)
            with here.client("read", job, deployment=deployment) as reader:
                time.sleep(12.0)
                seen[hosts, True] = here.count(COUNTED)
                go.touch()
                reader.communicate()
            here.cloud.wait_until_empty(90.0)
    for (hosts, watched), counts in seen.items():
        kind = "read" if watched else "unread"
        found = {who: counts[f"{who} A"] * A + counts[f"{who} B"] * B for who in ("host", "client")}
        hourly = {who: usd / COUNTED * 3600 for who, usd in found.items()}
        yield measure.bounded(f"cloud.requests.{hosts}_hosts.{kind}", sum(hourly.values()), "USD/h", None)
        yield measure.bounded(f"cloud.requests.{hosts}_hosts.{kind}.client", hourly["client"], "USD/h", None)
        # A beat and a listing each time, a segment of the log at its pace, and two records a minute for safety.
        reckoned = _hourly(hosts, bucket.cadence(hosts, watched=watched), segments.pace(hosts, watched=watched))
        yield measure.bounded(
            f"cloud.requests.{hosts}_hosts.{kind}.hosts", hourly["host"], "USD/h", None, floor=reckoned
        )
        if hosts > 1:
            many = _hourly(MANY, bucket.cadence(MANY, watched=watched), segments.pace(MANY, watched=watched))
            share = hourly["host"] / reckoned
            yield measure.bounded(f"cloud.requests.{MANY}_hosts.{kind}", many * share + hourly["client"], "USD/h", None)


def _hourly(hosts: int, cadence: float, pace: float) -> float:
    return hosts * 3600 * (A * (2 / cadence + 1 / pace) + B * 2 / 60)


# ---- many jobs, one process ------------------------------------------------------------------------------------


def followed(kind: type[Site]) -> Iterator[Figure]:
    """Jobs of one host each that run, in two zones. Their hosts' part is written here; the process is a new one."""
    name = kind.section
    with site(kind, zones=kind.zones, hosts=False, creates_per_minute=None) as here:
        jobs: list[tuple[str, str]] = []
        template = here.template()
        first = None
        for count in FOLLOWED:
            jobs += [here.add(template, number) for number in range(len(jobs), count)]
            counts, cpu = here.follow(jobs)
            first = counts if first is None else first
            yield measure.bounded(f"{name}.tick.{count}_jobs.store", counts["store"], "requests", None)
            yield measure.bounded(f"{name}.tick.{count}_jobs.{kind.api}", counts["api"], "requests", None)
            yield measure.bounded(f"{name}.tick.{count}_jobs.pause", counts["pause"], "s", None)
        memory = here.traced(jobs)
    yield measure.bounded(f"{name}.followed.memory", memory, "bytes/job", 4096.0)
    yield measure.bounded(f"{name}.followed.cpu", cpu * 100, "% of a core", 1.0)


# ---- the site --------------------------------------------------------------------------------------------------


class Site:
    """An emulated cloud with what happened in it, and a small project of which clients submit jobs.

    What its jobs run on are TPU VMs: another class has other machines.
    """

    section, backend, api = "cloud", "tpu-vm", "tpu"
    accelerator = ONE
    zones = ZONES
    asked, deleted = ("queued resource", "CREATING"), ("queued resource", "DELETING")
    made = ("node", "READY")

    def __init__(self, cloud: Emulator, folder: Path) -> None:
        self.cloud = cloud
        self.folder = folder
        self.happened: list[tuple[float, str, str, str]] = []
        cloud.listener = lambda event: self.happened.append((time.time(), event.kind, event.name, event.what))
        project = folder / "project"
        project.mkdir()
        (project / "pyproject.toml").write_text('[project]\nname = "benchmark"\nversion = "1"\n')
        (project / "measured.py").write_text(PROJECT)

    def environ(self, deployment: str) -> dict[str, str]:
        given = self.cloud.environ(deployment=deployment, backend=self.backend)
        path = os.pathsep.join([str(ROOT), str(self.folder / "project")])
        return measure.environment(**given, KINETIC_HOME=str(self.folder / f"home-{deployment}"), PYTHONPATH=path)

    @contextmanager
    def client(self, *words: str, deployment: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "tests.benchmarks.cloud", *words]
        with subprocess.Popen(
            command, env=self.environ(deployment), cwd=self.folder / "project", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def client_output(self, *words: str) -> str:
        with self.client(*words, deployment="many") as client:
            return client.communicate()[0]

    def follow(self, jobs: Sequence[tuple[str, str]]) -> tuple[dict[str, float], float]:
        """Have a client follow these jobs; return what its looks cost, and the part of a core that it needs."""
        with self.client("follow", self._listed(jobs), deployment="many") as client:
            assert client.stdout is not None
            assert client.stdin is not None
            assert client.stdout.readline() == "all followed\n"
            self.speak([job for job, _ in jobs])
            self.settle()
            client.stdin.write("settled\n")
            client.stdin.flush()
            counts = self.count_looks()
            client.stdin.write("enough\n")
            client.stdin.flush()
            told = json.loads(client.stdout.readline())
        if told["ended"]:
            raise AssertionError(f"{len(told['ended'])} of the followed jobs ended, such as {told['ended'][0]}")
        return counts, told["cpu"]

    def traced(self, jobs: Sequence[tuple[str, str]]) -> float:
        """Return the bytes of memory for each job that a client follows."""
        return float(json.loads(self.client_output("traced", self._listed(jobs)))["bytes"])

    def _listed(self, jobs: Sequence[tuple[str, str]]) -> str:
        listed = self.folder / "jobs.json"
        listed.write_text(json.dumps(jobs))
        return str(listed)

    def when(self, job: str, event: tuple[str, str]) -> float:
        """The time of the first such event of the job; 0 if there was none."""
        short = job.removeprefix("job-")
        return next((at for at, kind, name, what in self.happened if short in name and (kind, what) == event), 0.0)

    def boot(self) -> float:
        """Seconds from the start of a machine to the first line of its startup script, which does nothing else."""
        name = f"boot-{time.time_ns()}"
        script = (
            '#!/bin/sh\ndate +%s.%N > "$KINETIC_ROOT/began.new" && mv "$KINETIC_ROOT/began.new" "$KINETIC_ROOT/began"\n'
        )
        self.ask_for(name, self.zones[0], self.bare({"startup-script": script}))
        self.cloud.wait_until(lambda: self.when(name, self.made))
        file = self.machine(name).root / "began"
        self.cloud.wait_until(file.exists)
        began = float(file.read_text())
        self.delete(name)
        self.cloud.wait_until_empty()
        return began - self.when(name, self.made)

    def bare(self, metadata: dict[str, str]) -> dict[str, Any]:
        """Return the request for a machine of no job."""
        return {"acceleratorType": "v5litepod-1", "runtimeVersion": "v2-alpha-tpuv5-lite", "metadata": metadata}

    def ask_for(self, name: str, zone: str, node: dict[str, Any]) -> None:
        parent = f"projects/emulated/locations/{zone}"
        spec = {"parent": parent, "nodeId": name, "node": node}
        request = {"parent": parent, "queuedResourceId": name, "queuedResource": {"tpu": {"nodeSpec": [spec]}}}
        self.cloud.call("CreateQueuedResource", request)

    def machine(self, name: str) -> Any:
        (found,) = self.cloud.vms(f"projects/emulated/locations/{self.zones[0]}/nodes/{name}")
        return found

    def delete(self, name: str) -> None:
        path = f"projects/emulated/locations/{self.zones[0]}/queuedResources/{name}"
        self.cloud.call("DeleteQueuedResource", {"name": path, "force": True})

    def only(self) -> tuple[str, dict[str, Any]]:
        """The name of the one that was asked for, and what with."""
        (queued,) = self.cloud.queued_resources()
        spec = queued["tpu"]["nodeSpec"][0]
        return spec["nodeId"], spec["node"]

    def written(self, deployment: str, prefix: str) -> dict[str, float]:
        """The write time of each object. The server's generations are microseconds of that moment."""
        query = urlencode({"prefix": f"kinetic/{deployment}/{prefix}", "maxResults": 1000})
        with urllib.request.urlopen(f"{self.cloud.storage.url}/storage/v1/b/emulated/o?{query}") as answer:
            return {item["name"]: int(item["generation"]) / 1e6 for item in json.load(answer).get("items", ())}

    def split(self, told: dict[str, Any], deployment: str, boot: float) -> dict[str, float]:
        """The parts of a job's time that were not the cloud's own."""
        job = told["job"]
        out = f"kinetic/{deployment}/jobs/{job}/out/1/hosts/0"
        written = self.written(deployment, f"jobs/{job}/")
        made, ready = self.when(job, self.asked), self.when(job, self.made)
        verdict = written[f"kinetic/{deployment}/jobs/{job}/attempts/1/verdict.json"]
        return {
            "added": told["ended"] - told["began"] - (ready - made) - boot,
            "before_create": made - told["began"],
            "boot_to_agent": written[f"{out}/started.json"] - ready - boot,
            "agent_to_verdict": verdict - written[f"{out}/started.json"],
            "verdict_to_value": told["ended"] - verdict,
        }

    def read(self, name: str) -> Any:
        from urllib.parse import quote

        url = f"{self.cloud.storage.url}/storage/v1/b/emulated/o/{quote(name, safe='')}?alt=media"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    def unsummed(self, name: str) -> str:
        """A record without its checksum, which would be that of another job's."""
        return json.dumps({field: value for field, value in self.read(name).items() if field != "sum"})

    def wait_running(self, deployment: str, job: str, hosts: int) -> None:
        def running() -> bool:
            names = self.written(deployment, f"beats/{job}/1/")
            return len(names) == hosts and all(self.read(name)["state"] == "running" for name in names)

        self.cloud.wait_until(running, 60.0, f"{hosts} running hosts")

    def count(self, seconds: float) -> Counter[str]:
        """The store's requests of so long, by who asks and the class in which they are charged."""
        from kinetic_orchestration.testing.storage_server.server import VERBS

        self.cloud.storage.forget()
        time.sleep(seconds)
        who = ("host" if "emulator-token" in call.caller else "client" for call in self.cloud.storage.calls)
        return Counter(f"{one} {VERBS[call.verb]}" for one, call in zip(who, self.cloud.storage.calls, strict=False))

    def speak(self, jobs: Sequence[str]) -> None:
        """Write heartbeats like hosts: a job whose hosts were silent for longer than a poll of them takes gets another
        attempt."""
        from kinetic_orchestration.platforms.registry import open_store
        from kinetic_orchestration.protocol import names
        from tests.benchmarks.waiting import beat

        store = open_store("gs://emulated/kinetic", "many")
        for job in jobs:
            store.signal(names.beat(job, 1, 0), beat(store.now()).encode())

    def settle(self) -> None:
        """Wait until the watcher has polled all, and its followers have read everything that they had missed."""
        self.cloud.storage.forget()
        self.cloud.wait_until(lambda: self.listings() >= 1, 60.0, "a look")
        time.sleep(2.0)  # a look's other half

    def count_looks(self, looks: int = 2) -> dict[str, float]:
        """Requests of one look of the watcher, and the time between two."""
        self.cloud.storage.forget()
        self.cloud.requests.clear()
        self.cloud.wait_until(lambda: self.listings() >= 1, 60.0, "a look")
        began = time.monotonic()
        self.cloud.wait_until(lambda: self.listings() >= 1 + looks, 120.0, "a look")
        elapsed = time.monotonic() - began
        time.sleep(2.0)  # the last look's other half
        found = self.listings()
        return {
            "store": len(self.cloud.storage.calls) / found, "api": len(self.cloud.requests) / found,
            "pause": elapsed / looks,
        }  # fmt: skip

    def listings(self) -> int:
        """Looks at all jobs, since the requests were last forgotten."""
        return sum(call.verb == "list" and call.where.endswith("/beats/") for call in self.cloud.storage.calls)

    # ---- jobs as records

    def template(self) -> dict[str, Any]:
        """All that one submitted job is: its records, and what was asked of the cloud."""
        with self.client("submit", self.accelerator, "", deployment="many") as client:
            job = client.communicate()[0].strip()
        root = f"kinetic/many/jobs/{job}/in"
        name, asked = self.only()
        return {
            "job": job, "spec": self.unsummed(f"{root}/spec.json"),
            "intent": self.unsummed(f"{root}/attempts/1/intent.json"),
            "name": name, "asked": json.dumps(asked),
        }  # fmt: skip

    def add(self, template: dict[str, Any], number: int) -> tuple[str, str]:
        """One more such job, whose host runs; its id and the digest of its spec."""
        from kinetic_orchestration.platforms.registry import open_store
        from kinetic_orchestration.protocol import names
        from kinetic_orchestration.protocol.content import digest

        short, zone = f"{number:012x}", self.zones[number % len(self.zones)]
        store = open_store("gs://emulated/kinetic", "many")

        def own(text: str) -> str:
            return text.replace(template["job"].removeprefix("job-"), short).replace(self.zones[0], zone)

        spec = own(template["spec"]).encode()
        job = f"job-{short}"
        store.create(names.spec(job), spec)
        store.create(names.intent(job, 1), own(template["intent"]).encode())
        self.speak([job])
        self.ask_for(own(template["name"]), zone, json.loads(own(template["asked"])))
        return job, digest.of_bytes(spec)


@contextmanager
def site(kind: type[Site] = Site, **options: Any) -> Iterator[Site]:
    from kinetic_orchestration.testing import Emulator

    given = {"zones": kind.zones[:1], **options}
    with tempfile.TemporaryDirectory(prefix="kinetic-benchmark-") as name, Emulator(**given) as cloud:
        before = dict(os.environ)
        os.environ.update(cloud.environ(deployment="many", backend=kind.backend))
        try:
            yield kind(cloud, Path(name))
        finally:
            os.environ.clear()
            os.environ.update(before)


# ---- the clients -----------------------------------------------------------------------------------------------


def _noops(accelerator: str, count: str) -> None:
    import measured  # type: ignore[import-not-found]

    import kinetic_orchestration as kinetic

    function = kinetic.run(accelerator=accelerator)(measured.noop)
    for _ in range(int(count)):
        began = time.time()
        job = function.run_async()
        assert job.result(timeout=120) == 7
        print(json.dumps({"job": job.job_id, "began": began, "ended": time.time()}), flush=True)
        sys.stdin.readline()


def _submit(accelerator: str, until: str) -> None:
    import measured

    import kinetic_orchestration as kinetic

    run = kinetic.run(accelerator=accelerator)
    job = run(measured.talks).run_async(until) if until else run(measured.noop).run_async()
    print(job.job_id, flush=True)


def _read(job: str) -> None:
    import kinetic_orchestration as kinetic

    kinetic.attach(job).follow(lambda event: None)


def _followers(listed: str) -> Iterator[Any]:
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.jobs import trust
    from kinetic_orchestration.jobs.following.drivers import afollow
    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.job import open_job

    store, backend, here = place_of()
    believed = trust.of(here)
    for job, digest in json.loads(Path(listed).read_text()):
        yield afollow(Follower(open_job(job, store, backend, believed, digest)))


async def _follow(listed: str) -> None:
    """The processor time while nothing happens, between two lines that come."""
    tasks = await _all_followed(_followers(listed))
    print("all followed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    busy, began = time.process_time(), time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    cpu = (time.process_time() - busy) / max(time.monotonic() - began, 1e-9)
    ended = [repr(task) for task in tasks if task.done()]
    await _cancel(tasks)
    print(json.dumps({"cpu": cpu, "ended": ended}), flush=True)


async def _traced(listed: str) -> None:
    """The memory that all but the first few add: these pay for imports, threads and connections.

    What is in use, and not what the process has: that is the most it ever needed, which depends on the order in which
    the lists came. The median of some moments: in a few of them, a list is being read.
    """
    import itertools
    import tracemalloc

    followers = _followers(listed)
    tasks = await _all_followed(itertools.islice(followers, FIRST))
    gc.collect()
    tracemalloc.start()
    tasks += await _all_followed(followers)
    await asyncio.sleep(UNTIL_SEEN)
    used = []
    for _ in range(MOMENTS):
        gc.collect()
        used.append(tracemalloc.get_traced_memory()[0])
        await asyncio.sleep(1.1)  # no multiple of the pause between two looks
    print(json.dumps({"bytes": statistics.median(used) / (len(tasks) - FIRST)}), flush=True)
    await _cancel(tasks)


async def _all_followed(followers: Iterator[Any]) -> list[asyncio.Task[Any]]:
    """A few at a time, as each looks for itself once."""
    tasks = []
    for number, follower in enumerate(followers, 1):
        tasks.append(asyncio.ensure_future(follower))
        if number % BATCH == 0:
            await asyncio.sleep(PAUSE)
    await asyncio.sleep(PAUSE)
    return tasks


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


CLIENTS: dict[str, Callable[..., None]] = {
    "noop": _noops, "submit": _submit, "read": _read, "follow": lambda listed: asyncio.run(_follow(listed)), "traced": lambda listed: asyncio.run(_traced(listed)),
}  # fmt: skip

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])
