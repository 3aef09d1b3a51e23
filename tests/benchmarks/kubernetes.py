"""The time that this project adds to a Kubernetes cluster's own, and what following many jobs there costs.

The control plane is the real one of the tests, of one machine, and the bucket an emulated one. Added time is of jobs
whose pods run as processes here. A thousand jobs that are followed are objects as the cluster had them of one job:
JobSets that no controller touches, and pods whose status is written here. Two hundred JobSets are created, run and
removed by the real controllers; their pods run a program that ends at once, and no job is behind them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks import cloud, measure
from tests.benchmarks.measure import Figure

OFFICIAL = "kubernetes"  # in the environment that PEERS_PYTHON names, as for peers.py
SETS = 200
WORKERS = 2  # nodes for these, of 110 pods each
SET_SECONDS = 600.0

API = "/apis/jobset.x-k8s.io/v1alpha2"
NAMESPACE = "benchmark"
NODE = "a-node-of-nobody"
KEY = "a-signing-key-of-the-benchmark"

OURS = "from kinetic_orchestration.platforms.kubernetes.api import client, kubeconfig"
THEIRS = "from kubernetes import client, config"
PEAK = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def figures() -> Iterator[Figure]:
    from tests.support import go_programs

    yield measure.bounded("kubernetes.load", os.getloadavg()[0], "processes", None)
    yield from the_client()
    if not go_programs.has_go():
        sys.stderr.write(f"kubernetes: {go_programs.NONE}\n")
        return
    with site() as here:
        yield from added_time(here)
        yield from many_sets(here)
        yield from followed(here)


# ---- the client ------------------------------------------------------------------------------------------------


def the_client() -> Iterator[Figure]:
    """The import of ours and of the official one, with the memory of a process that has done nothing else.

    By one interpreter, the official one's: what is installed beside a package changes the time of every start. That
    start is no part of an import; a process that imports one is a figure of its own.
    """
    python = os.environ.get("PEERS_PYTHON", sys.executable)
    env = measure.environment(PYTHONPATH=str(measure.ROOT))
    try:
        theirs = _peak(python, THEIRS, env)
    except RuntimeError:
        sys.stderr.write(f"kubernetes: the package {OFFICIAL} is not installed for {python}, and is skipped\n")
        return
    ours = _peak(python, OURS, env)
    lines = (OURS, THEIRS, "pass")
    value, floor, start = measure.interleaved(
        15, *(lambda line=line: measure.python("-c", line, executable=python, env=env) for line in lines)
    )
    alone = (value - start) * 1e3, (floor - start) * 1e3
    yield measure.figure("kubernetes.import", alone[0], "ms", alone[1], 0.2, against=OFFICIAL)
    yield measure.figure("kubernetes.import.process", value * 1e3, "ms", floor * 1e3, None, against=OFFICIAL)
    yield measure.figure("kubernetes.import.memory", ours / 1024, "MB", theirs / 1024, None, against=OFFICIAL)


def _peak(python: str, line: str, env: dict[str, str]) -> float:
    done = subprocess.run([python, "-c", line + PEAK], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


# ---- time added to a job ---------------------------------------------------------------------------------------


def added_time(here: Site) -> Iterator[Figure]:
    parts: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    boot = statistics.median(here.boot() for _ in range(5))
    passing = measure.interleaved(5, lambda: measure.python("-c", "pass"))[0]
    for number in range(cloud.PROCESSES):
        deployment = f"time{number}"
        with here.client("noop", str(cloud.JOBS), deployment=deployment) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            for job in range(cloud.JOBS):
                told = json.loads(client.stdout.readline())
                parts["warm" if job else "cold"].append(here.split(told, deployment, boot))
                here.wait_until_empty()
                client.stdin.write("next\n")
                client.stdin.flush()
    yield measure.bounded("kubernetes.boot_of_a_pod", boot, "s", None, floor=passing)
    for kind, target in (("cold", 2.0), ("warm", 0.5)):
        yield measure.bounded(f"kubernetes.added.{kind}", _median(parts[kind], "added"), "s", target, floor=passing)
        for part in ("before_create", "create_to_agent", "agent_to_verdict", "verdict_to_value"):
            yield measure.bounded(
                f"kubernetes.added.{kind}.{part}", _median(parts[kind], part), "s", None, floor=passing
            )


def _median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


# ---- many sets -------------------------------------------------------------------------------------------------


def many_sets(here: Site) -> Iterator[Figure]:
    """Sets that the backend creates, observes until all have ended, and releases until nothing is left."""
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.plan.values import GONE, Freed
    from kinetic_orchestration.platforms.kubernetes import boot
    from kinetic_orchestration.testing.kubernetes.pods.nodes import Node

    _, backend, _ = place_of()
    here.nodes.add(*(Node(f"worker-{number}", environment=here.machine) for number in range(WORKERS)))
    attempts = [here.attempt(number) for number in range(SETS)]
    placements = [attempt.intent.placement for attempt in attempts]
    kept, boot.LOADER = boot.LOADER, "pass"  # type: ignore[misc]
    counts = Counts()
    looks = 0
    began = time.monotonic()
    try:
        with counts.counting():
            for attempt in attempts:
                assert backend.submit(attempt) == ""
            created = counts.requests
            while any(seen.state != GONE for seen in backend.observe(placements)):
                assert time.monotonic() - began < SET_SECONDS, "the sets did not end in time"
                looks += 1
                time.sleep(1.0)
            observed = counts.requests - created
            waiting = placements
            while waiting := [one for one in waiting if backend.release(one) is not Freed.DONE]:
                assert time.monotonic() - began < SET_SECONDS, "the sets did not go in time"
                time.sleep(1.0)
            released = counts.requests - created - observed
    finally:
        boot.LOADER = kept  # type: ignore[misc]
    took = time.monotonic() - began
    here.wait_until_empty()
    left = len(list(backend.leftovers())) + sum(len(here.list(*kind)) for kind in KINDS)
    yield measure.bounded(f"kubernetes.{SETS}_sets.seconds", took, "s", None)
    yield measure.bounded(f"kubernetes.{SETS}_sets.requests", counts.requests / SETS, "requests/set", None)
    yield measure.bounded(f"kubernetes.{SETS}_sets.requests.submit", created / SETS, "requests/set", None)
    yield measure.bounded(f"kubernetes.{SETS}_sets.requests.observe", observed / (looks + 1), "requests/look", None)
    yield measure.bounded(f"kubernetes.{SETS}_sets.requests.release", released / SETS, "requests/set", None)
    yield measure.bounded(f"kubernetes.{SETS}_sets.left", left, "objects", 0.0)


# ---- many jobs, one process ------------------------------------------------------------------------------------


def followed(here: Site) -> Iterator[Figure]:
    """Jobs of one host each that run in one namespace. Their hosts' part is written here; the process is a new one."""
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.plan.values import PRESENT

    template = here.template()
    for part in ("kube-controller-manager", "kube-scheduler"):  # which would take pods of a lost node away
        here.plane.interrupt(part)
    here.plane.api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    jobs: list[tuple[str, str]] = []
    _, backend, _ = place_of()
    for count in cloud.FOLLOWED:
        jobs += [here.add(template, number) for number in range(len(jobs), count)]
        placements = [here.placement(template, number) for number in range(count)]
        whole, lean = Counts(), Counts()
        with whole.counting():
            seen = backend.observe(placements)
        assert {one.state for one in seen} == {PRESENT}, seen[0]
        with lean.counting():
            assert backend.observe(placements) == seen
        name = f"kubernetes.tick.{count}_jobs"
        yield measure.bounded(f"{name}.requests", lean.requests, "requests", 2.0)
        yield measure.bounded(f"{name}.bytes", lean.bytes / count, "bytes/job", None, floor=whole.bytes / count)
        yield measure.bounded(f"{name}.cpu", lean.cpu * 1e3, "ms", None, floor=whole.cpu * 1e3)
    counts, cpu = here.follow(jobs)
    yield measure.bounded(f"kubernetes.tick.{len(jobs)}_jobs.pause", counts["pause"], "s", None)
    yield measure.bounded("kubernetes.followed.memory", here.traced(jobs), "bytes/job", 4096.0)
    yield measure.bounded("kubernetes.followed.cpu", cpu * 100, "% of a core", 1.0)


class Counts:
    """The requests of this process to clusters within a block, the bytes of their answers, and its processor time."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self.cpu = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        from kinetic_orchestration.platforms.kubernetes.api.client import Exchange, listening

        def hear(exchange: Exchange) -> None:
            self.requests += 1
            self.bytes += len(exchange.answer)

        busy = time.process_time()
        with listening(hear):
            yield
        self.cpu += time.process_time() - busy


# ---- the site --------------------------------------------------------------------------------------------------

KINDS = (("jobsets", API), ("jobs", "/apis/batch/v1"), ("pods", "/api/v1"), ("secrets", "/api/v1"))


class Site(cloud.Site):
    """A cluster with a namespace, and an emulated bucket beside it."""

    def __init__(self, bucket: Any, folder: Path, plane: Any, nodes: Any) -> None:
        super().__init__(bucket, folder)
        self.plane, self.nodes = plane, nodes
        given = bucket.environ(deployment="many")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.machine = {"PATH": path, "STORAGE_EMULATOR_HOST": given["STORAGE_EMULATOR_HOST"]}
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        plane.await_account(NAMESPACE)
        self.kubeconfig = self._kubeconfig()

    def settings(self, deployment: str) -> dict[str, str]:
        """Return the environment of a client."""
        given = self.cloud.environ(deployment=deployment)
        kept = ("STORAGE_EMULATOR_HOST", "KINETIC_STORE", "KINETIC_DEPLOYMENT")
        own = {"KINETIC_BACKEND": "kubernetes", "KINETIC_SIGNING_KEY": KEY, "KUBECONFIG": str(self.kubeconfig)}
        return {**{name: given[name] for name in kept}, **own}

    def environ(self, deployment: str) -> dict[str, str]:
        path = os.pathsep.join([str(measure.ROOT), str(self.folder / "project")])
        home = str(self.folder / f"home-{deployment}")
        return measure.environment(**self.settings(deployment), KINETIC_HOME=home, PYTHONPATH=path)

    def _kubeconfig(self) -> Path:
        """Write the kubeconfig of the namespace; its cluster says that it is emulated, so that pods need no packages."""
        config = json.loads(self.plane.kubeconfig.read_text(encoding="utf-8"))
        emulated = {"name": "kinetic-orchestration", "extension": {"emulated": True}}
        config["clusters"][0]["cluster"]["extensions"] = [emulated]
        config["contexts"][0]["context"]["namespace"] = NAMESPACE
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def list(self, kind: str, api: str) -> list[Any]:
        return list(self.plane.api.get(f"{api}/namespaces/{NAMESPACE}/{kind}")["items"])

    def wait_until_empty(self) -> None:
        from tests.support.waits import wait_until

        wait_until(lambda: not any(self.list(*kind) for kind in KINDS), "nothing is left in the namespace", pause=0.1)

    def boot(self) -> float:
        """Seconds from the create call to the first line of a pod's program, of a set that has nothing else to do."""
        from tests.support.waits import wait_until

        name = f"boot-{time.time_ns()}"
        chips = {"google.com/tpu": "1"}
        container: dict[str, Any] = {"name": "host", "image": "any", "command": ["sh", "-c", "date +%s.%N"]}
        container |= {"resources": {"requests": chips, "limits": chips}}
        tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
        pod = {"spec": {"restartPolicy": "Never", "containers": [container], "tolerations": tolerations}}
        job = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "template": pod}
        spec = {"replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": job}}]}
        sets = f"{API}/namespaces/{NAMESPACE}/jobsets"
        began = time.time()
        body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}
        self.plane.api.create(sets, body)

        def said() -> str:
            return "".join(self.nodes.log(pod["metadata"]["uid"]) for pod in self.list("pods", "/api/v1"))

        first = float(wait_until(said, "the pod said when it began"))
        self.plane.api.delete(f"{sets}/{name}")
        self.wait_until_empty()
        return first - began

    def split(self, told: Mapping[str, Any], deployment: str, boot: float) -> dict[str, float]:
        job = told["job"]
        root = f"kinetic/{deployment}/jobs/{job}"
        written = self.written(deployment, f"jobs/{job}/")
        intended, verdict = written[f"{root}/in/attempts/1/intent.json"], written[f"{root}/attempts/1/verdict.json"]
        started = written[f"{root}/out/1/hosts/0/started.json"]
        return {
            "added": told["ended"] - told["began"] - boot,
            "before_create": intended - told["began"],
            "create_to_agent": started - intended - boot,
            "agent_to_verdict": verdict - started,
            "verdict_to_value": told["ended"] - verdict,
        }

    # ---- attempts without a job

    def attempt(self, number: int) -> Any:
        from kinetic_orchestration.protocol.names import slice_of
        from tests.core.platforms.kubernetes.attempts import attempt_of, plan_of

        settings = self.settings("many")
        plan = plan_of("cpu:1", zone=f"tests/{NAMESPACE}", store=settings["KINETIC_STORE"], deployment="many")
        found = attempt_of(plan, deadline=0.0)
        job = f"job-{number:012x}"
        placement = {**found.intent.placement, "name": slice_of(plan.store, plan.deployment, job, 1)}
        return replace(found, job_id=job, intent=found.intent._replace(placement=placement))

    # ---- jobs as records

    def template(self) -> dict[str, Any]:
        """All that one submitted job is: its records, its set and its pod."""
        from tests.support.waits import wait_until

        self.nodes.remove(f"{NAMESPACE}-0")  # its pod is to wait
        with self.client("submit", cloud.ONE, "", deployment="many") as client:
            job = client.communicate()[0].strip()
        root = f"kinetic/many/jobs/{job}/in"
        (pod,) = wait_until(lambda: self.list("pods", "/api/v1"), "the set has its pod")
        (found,) = self.list("jobsets", API)
        self.plane.api.delete(f"{API}/namespaces/{NAMESPACE}/jobsets/{found['metadata']['name']}")
        self.wait_until_empty()
        found["spec"] |= {"managedBy": "benchmark.example/nobody"}
        found.pop("status", None)
        pod["spec"] |= {"nodeName": NODE}
        for kept in (found, pod):
            kept["metadata"] = {name: kept["metadata"][name] for name in ("name", "labels", "annotations")}
        return {
            "job": job, "spec": self.unsummed(f"{root}/spec.json"), "set": json.dumps(found), "pod": json.dumps(pod),
            "intent": self.unsummed(f"{root}/attempts/1/intent.json"),
        }  # fmt: skip

    def placement(self, template: Mapping[str, Any], number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_of(template, number)(template["intent"]))["placement"]
        return found

    def add(self, template: Mapping[str, Any], number: int) -> tuple[str, str]:
        """One more such job, whose host runs; its id and the digest of its spec."""
        from kinetic_orchestration.platforms.registry import open_store
        from kinetic_orchestration.protocol import names
        from kinetic_orchestration.protocol.content import digest

        own, job = _of(template, number), f"job-{number:012x}"
        store = open_store("gs://emulated/kinetic", "many")
        spec = own(template["spec"]).encode()
        store.create(names.spec(job), spec)
        store.create(names.intent(job, 1), own(template["intent"]).encode())
        self.speak([job])
        self.plane.api.create(f"{API}/namespaces/{NAMESPACE}/jobsets", json.loads(own(template["set"])))
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pod = self.plane.api.create(pods, json.loads(own(template["pod"])))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        container = {"name": "host", "image": "any", "imageID": "", "ready": True, "started": True, "restartCount": 0}
        container |= {"state": {"running": {"startedAt": now}}}
        status = {"phase": "Running", "startTime": now, "containerStatuses": [container]}
        self.plane.api.patch(f"{pods}/{pod['metadata']['name']}/status", {"status": status})
        return job, digest.of_bytes(spec)


def _of(template: Mapping[str, Any], number: int) -> Callable[[str], str]:
    """Return what makes a text of the template's job that of another."""
    short = template["job"].removeprefix("job-")
    return lambda text: text.replace(short, f"{number:012x}")


@contextmanager
def site() -> Iterator[Site]:
    from kinetic_orchestration.testing import Emulator
    from kinetic_orchestration.testing.kubernetes.pods.nodes import tpu_pool
    from tests.support import go_programs
    from tests.support.kubernetes.control_plane import ControlPlane
    from tests.support.kubernetes.nodes import Nodes

    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="kinetic-benchmark-") as name:
        folder = Path(name)
        with (
            Emulator(hosts=False) as bucket,
            ControlPlane(folder / "plane", go_programs.control_plane()) as plane,
            Nodes(plane, folder / "nodes") as nodes,
        ):
            here = Site(bucket, folder, plane, nodes)
            nodes.add(*tpu_pool(NAMESPACE, 1, topology="1x1", chips=1, **here.machine))
            os.environ.update(here.environ("many"))
            try:
                yield here
            finally:
                os.environ.clear()
                os.environ.update(before)
