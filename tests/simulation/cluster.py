"""A simulated Kubernetes API, below the real client: JobSets, Jobs and pods of several clusters, Kueue, and their fates.

What it answers is what a real control plane with JobSet and Kueue was seen to say. Any request may be lost before it
takes effect or after it, refused for a while, or find its page expired; sets may be suspended and admitted again with
new pods, and namespaces deleted. It does not know what jobs are, except that it asks the judge before a set is made or
deleted.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Reply
from kinetic_orchestration.testing.kubernetes.api import objects
from tests.simulation.cloud import QueuedResource, TpuNode
from tests.simulation.world import World
from tests.simulation.zones import DRY, FREE, QUEUE, QUOTAS, Zone

GRACE = 55.0  # seconds between SIGTERM and SIGKILL, as our pods ask for
LOST = 300.0  # for which Kubernetes says nothing of a node that it does not hear
PAGE = 2  # objects in a page, so that there are pages
QUEUED = "kueue.x-k8s.io/job-uid"

Json = dict[str, Any]


class Odds(NamedTuple):
    """The probabilities of faults in the clusters of one seed."""

    busy: float = 0.0  # a request is answered 429 or 503
    expires: float = 0.0  # the next page of a list is answered 410
    slow: float = 0.0  # a deleted pod stays long
    half: float = 0.0  # a pod has no node for a while, and its siblings run


class JobSet(QueuedResource):
    """A JobSet, with its Jobs. Its states are those of a slice of any cloud: made, ACTIVE, FAILED, DELETING."""

    def __init__(self, place: str, body: Json, uid: str, now: float) -> None:
        self.zone, self.id = place, body["metadata"]["name"]
        self.name = f"{place}/{self.id}"
        self.body, self.uid, self.created = body, uid, now
        self.labels = dict(body["metadata"].get("labels", {}))
        spec = body["spec"]["replicatedJobs"][0]["template"]["spec"]
        env = {one["name"]: one.get("value", "") for one in spec["template"]["spec"]["containers"][0]["env"]}
        self.told = json.loads(env["KINETIC_ORDERS"].replace("$$", "$"))
        self.seconds = float(spec.get("activeDeadlineSeconds", math.inf))
        self.hosts = int(self.told["hosts"])
        self.slices = self.hosts // int(self.told["hosts_per_slice"])
        self.state = states.CREATING
        self.suspended = self.finished = False
        self.ended = ""  # Failed or Completed
        self.failing: dict[int, str] = {}  # its Jobs that are about to fail, once their pods have ended, and of what
        self.failed: set[int] = set()  # those that have
        self.harmed = self.asked = False
        self.going = 0.0
        self.lives = 0  # how often its pods were made

    def shown(self) -> Json:  # type: ignore[override]
        found = [{"type": self.ended, "status": "True", "message": "jobset ended"}] if self.ended else []
        metadata = {
            **self.body["metadata"], "uid": self.uid, "creationTimestamp": _time(self.created),
            "namespace": self.zone.rpartition("/")[2],
        }  # fmt: skip
        status = {"conditions": found, "terminalState": self.ended}
        spec = {**self.body["spec"], "suspend": self.suspended}
        return {"kind": "JobSet", **self.body, "metadata": metadata, "spec": spec, "status": status}

    def jobs(self) -> list[Json]:
        labels = {"jobset.sigs.k8s.io/jobset-name": self.id}
        found = []
        for index in range(self.slices):
            kinds = ["FailureTarget"] * (index in self.failing) + ["Failed"] * (index in self.failed)
            conditions = [{"type": kind, "status": "True", "message": self.failing[index]} for kind in kinds]
            metadata = {"name": f"{self.id}-s-{index}", "labels": labels}
            found.append({"metadata": metadata, "status": {"conditions": conditions}})
        return found

    @property
    def is_over(self) -> bool:
        """It has come to its end, or a Job of it is about to fail."""
        return bool(self.ended or self.failing)


class Pod(TpuNode):
    """A pod of a set. Its process is a machine, once it has a node."""

    def __init__(self, jobset: JobSet, host: int, uid: str, now: float) -> None:
        each = int(jobset.told["hosts_per_slice"])
        self.queued: JobSet | None = jobset
        self.set = jobset
        self.host, self.index = host, host // each
        self.uid = uid
        self.zone = jobset.zone
        self.id = f"{jobset.id}-s-{host // each}-{host % each}-{uid}"
        self.name = f"{self.zone}/pods/{self.id}"
        self.labels = jobset.labels
        self.created = now
        self.state = states.READY
        self.phase, self.why = "Pending", ""
        self.node = False
        self.code: int | None = None
        self.taken = False  # with the condition DisruptionTarget
        self.reason = ""  # that its node gave for its end
        self.deleting = False
        self.unheard = False  # its node is
        self.machines: list[Any] = []
        self.orphan = False
        self.began = 0.0

    def shown(self) -> Json:  # type: ignore[override]
        conditions = []
        if self.taken:
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"})
        if self.why:
            conditions.append(
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.why}
            )
        ended = []
        if self.code is not None:
            ended = [{"state": {"terminated": {"exitCode": self.code, "reason": self.reason}}}]
        labels = {**self.labels, "jobset.sigs.k8s.io/jobset-name": self.set.id}
        metadata: Json = {"name": self.id, "uid": self.uid, "labels": labels}
        if self.deleting:
            metadata["deletionTimestamp"] = _time(self.created)
        status: Json = {"phase": self.phase, "conditions": conditions, "containerStatuses": ended}
        if self.began:
            status["startTime"] = _time(self.began)
        if self.reason == "DeadlineExceeded":
            status["reason"] = self.reason
        return {"metadata": metadata, "spec": {"nodeName": "a-node" if self.node else ""}, "status": status}


class Cluster:
    """The API of all clusters, whose names are the hosts of their servers, and whose places are CLUSTER/NAMESPACE."""

    def __init__(self, world: World, zones: dict[str, Zone], odds: Odds, *, queue: bool) -> None:
        self.world = world
        self.zones = zones
        self.odds = odds
        self.queue = queue  # sets are admitted by Kueue
        self.calm = False
        self.queued: dict[str, JobSet] = {}
        self.nodes: dict[str, Pod] = {}
        self.gone: dict[str, float] = {}  # places whose namespace is being deleted, and until when
        self.rate_until = 0.0
        self._pages: dict[str, list[Json]] = {}
        self._count = 0
        self.may_create: Callable[[Any], object] = lambda _set: None
        self.may_delete: Callable[[str, Any], object] = lambda _name, _what: None
        self.expired: Callable[[Any], object] = lambda _set: None
        self.boot: Callable[[Any], object] = lambda _pod: None
        self.made: Callable[[str], object] = lambda _job: None
        self.harm: Callable[[Any, str], object] = lambda _set, _kind: None

    # ---- requests ----------------------------------------------------------------------------------------

    def sent(self, server: str, method: str, target: str, body: Json | None) -> Reply:
        """Answer one request, which may get lost on its way there or back."""
        address = urlsplit(target)
        kind, name = _kind_of(address.path)
        verb = {"POST": "submit", "DELETE": "release"}.get(method, "get" if name else "list")
        self.world.request(verb, name or kind, _unanswered)
        place = f"{server.removeprefix('https://')}/{address.path.partition('/namespaces/')[2].partition('/')[0]}"
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        reply = self._answer(method, place, kind, name, query, body or {})
        self.world.request(verb, name or kind, _unanswered, done=True)
        return reply._replace(headers={"date": formatdate(self.world.now, usegmt=True)})

    def _answer(self, method: str, place: str, kind: str, name: str, query: Mapping[str, str], body: Json) -> Reply:  # noqa: PLR0911 - a table
        draw = self.world.random
        if not self.calm and draw.random() < self.odds.busy:
            self.world.reached.add("the API was busy")
            code, reason = draw.choice(((429, "TooManyRequests"), (503, "ServiceUnavailable"), (500, "InternalError")))
            return _status(code, reason, "later", seconds=draw.choice((0, 1, 30)))
        if kind == "pendingworkloads":
            return _status(404, "NotFound", "the server could not find the requested resource")
        if kind != "jobsets":
            return self._list(self._views(kind, place), query)
        if method == "POST":
            return self._create(place, body)
        if not name:
            return self._list(self._views(kind, place), query)
        found = self.queued.get(f"{place}/{name}")
        if found is None:
            return _status(404, "NotFound", f'jobsets "{name}" not found', name)
        if method == "DELETE":
            wanted = body.get("preconditions", {}).get("uid")
            if wanted and wanted != found.uid:
                self.world.reached.add("a delete met another set of its name")
                return _status(409, "Conflict", "the UID in the precondition does not match", name)
            self.may_delete(found.name, found)
            found.asked = True
            self.remove(found)
        return Reply(200, {}, json.dumps(found.shown()).encode())

    def _views(self, kind: str, place: str) -> list[Json]:
        sets = [one for one in self.queued.values() if one.zone == place]
        if kind == "jobsets":
            return [one.shown() for one in sets]
        if kind == "pods":
            return [one.shown() for one in self.nodes.values() if one.zone == place]
        if kind == "jobs":
            return [job for one in sets for job in one.jobs()]
        if kind == "workloads" and self.queue:
            return [self._workload(one) for one in sets if one.suspended]
        return []

    def _workload(self, jobset: JobSet) -> Json:
        message = "couldn't assign flavors to pod set s: insufficient unused quota for google.com/tpu in flavor a, 4 more needed"
        held = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
        metadata = {"name": f"w-{jobset.id}", "labels": {QUEUED: jobset.uid}, "ownerReferences": [{"uid": jobset.uid}]}
        return {"metadata": metadata, "spec": {"queueName": "q"}, "status": {"conditions": [held]}}

    def _list(self, found: list[Json], query: Mapping[str, str]) -> Reply:
        """A page; the rest of a list is of its first page's moment, and may be expired when it is asked for."""
        if token := query.get("continue"):
            if not self.calm and self.world.random.random() < self.odds.expires:
                self.world.reached.add("a page had expired")
                return _status(410, "Expired", "the provided continue parameter is too old")
            chosen = self._pages[token]  # its answer may get lost, and is asked for again
        else:
            selector = query.get("labelSelector", "")
            chosen = [_versioned(one) for one in found if objects.selects(selector, one["metadata"].get("labels", {}))]
        metadata: Json = {}
        limit = min(PAGE, int(query["limit"])) if "limit" in query else len(chosen)
        if len(chosen) > limit:
            self._count += 1
            metadata["continue"] = f"token-{self._count}"
            self._pages[metadata["continue"]] = chosen[limit:]
            self.world.reached.add("a list had pages")
        return Reply(200, {}, json.dumps({"kind": "List", "metadata": metadata, "items": chosen[:limit]}).encode())

    # ---- sets --------------------------------------------------------------------------------------------

    def _create(self, place: str, body: Json) -> Reply:
        world, name = self.world, body["metadata"]["name"]
        space = place.rpartition("/")[2]
        if place in self.gone:
            world.reached.add("a set was refused by a namespace that is gone")
            if world.now < self.gone[place]:
                return _status(
                    403,
                    "Forbidden",
                    f"unable to create new content in namespace {space} because it is being terminated",
                )
            return _status(404, "NotFound", f'namespaces "{space}" not found', space)
        if f"{place}/{name}" in self.queued:
            world.reached.add("a create call met what was there")
            return _status(409, "AlreadyExists", f'jobsets "{name}" already exists', name)
        self._count += 1
        jobset = JobSet(place, body, f"set-{self._count}", world.now)
        self.may_create(jobset)
        if self.weather(place) == QUOTAS:
            world.reached.add(f"refused: {QUOTAS}")
            self.harm(jobset, QUOTAS)
            return _status(
                403,
                "Forbidden",
                f'jobsets "{name}" is forbidden: exceeded quota: q, requested: count/jobsets=1, used: 1, limited: 1',
                name,
            )
        self.queued[jobset.name] = jobset
        jobset.suspended = self.queue
        world.note("set", jobset.name, jobset.uid)
        self.made(jobset.told["job"])
        if self.queue:
            world.at(world.now + world.random.uniform(0.5, 10.0), lambda: self.admit(jobset))
        else:
            self._start(jobset)
        return Reply(201, {}, json.dumps(jobset.shown()).encode())

    def weather(self, place: str) -> str:
        zone = self.zones[place]
        return zone.weather if self.world.now < zone.until and not self.calm else FREE

    def admit(self, jobset: JobSet) -> None:
        """Kueue starts a set that it held, once there is room."""
        if self.queued.get(jobset.name) is not jobset or not jobset.suspended or jobset.ended:
            return
        if self.weather(jobset.zone) == QUEUE:
            self.world.reached.add("waited in a queue")
            self.world.at(min(self.zones[jobset.zone].until, self.world.now + 60.0), lambda: self.admit(jobset))
            return
        jobset.suspended = False
        self._start(jobset)

    def evict(self, jobset: JobSet) -> None:
        """Kueue suspends a set and admits it again later: its pods go, and others of the same set come. Its nodes may
        have gone before them, so that no pod is told."""
        if self.queued.get(jobset.name) is not jobset or jobset.is_over:
            return
        jobset.suspended, told = True, self.world.random.random() < 0.6
        for pod in self.pods_of(jobset):
            if told:
                self.end(pod)
            else:
                pod.deleting = True
                self.kill(pod)
        self.world.at(self.world.now + self.world.random.choice((5.0, 90.0, 400.0)), lambda: self.admit(jobset))

    def _start(self, jobset: JobSet) -> None:
        """Create the pods, and in time find nodes for them."""
        draw, now = self.world.random, self.world.now
        left = [pod for pod in self.pods_of(jobset) if pod.code is None]
        if left:  # Jobs wait for pods that are ending
            self.world.at(now + 5.0, lambda: self._restart(jobset))
            return
        jobset.lives += 1
        if jobset.lives > 1:
            self.world.reached.add("pods of a set came a second time")
        if jobset.seconds < math.inf:
            life = jobset.lives
            self.world.at(now + jobset.seconds, lambda: self._time_is_up(jobset, life))
        half = draw.randrange(jobset.hosts) if jobset.hosts > 1 and draw.random() < self.odds.half else -1
        for host in range(jobset.hosts):
            self._count += 1
            pod = Pod(jobset, host, f"pod{self._count}", now)
            self.nodes[pod.name] = pod
            if host == half and not self.calm:
                self.world.reached.add("a pod had no node while its siblings ran")
                self.harm(jobset, "half")
                pod.why = "0/3 nodes are available: 3 Insufficient google.com/tpu."
            delay = draw.uniform(0.5, 20.0) + (draw.choice((60.0, 2000.0)) if pod.why else 0.0)
            self.world.at(now + delay, lambda one=pod: self._schedule(one))

    def _restart(self, jobset: JobSet) -> None:
        if self.queued.get(jobset.name) is jobset and not jobset.suspended and not jobset.ended:
            self._start(jobset)

    def _schedule(self, pod: Pod) -> None:
        if self.nodes.get(pod.name) is not pod or pod.deleting or pod.node:
            return
        if self.weather(pod.zone) == DRY:
            pod.why = "0/3 nodes are available: 3 Insufficient google.com/tpu."
            self.harm(pod.set, DRY)
            self.world.reached.add("pods waited for nodes")
            self.world.at(min(self.zones[pod.zone].until, self.world.now + 60.0), lambda: self._schedule(pod))
            return
        pod.why, pod.node = "", True
        self.world.at(self.world.now + self.world.random.uniform(0.5, 30.0), lambda: self._run(pod))

    def _run(self, pod: Pod) -> None:
        if self.nodes.get(pod.name) is not pod or pod.deleting:
            return
        pod.phase, pod.began = "Running", self.world.now
        if all(one.phase == "Running" for one in self.pods_of(pod.set)):
            pod.set.state = states.ACTIVE
        self.boot(pod)

    def pods_of(self, jobset: JobSet) -> list[Pod]:
        return [pod for pod in list(self.nodes.values()) if pod.set is jobset]

    nodes_of = pods_of

    # ---- ends --------------------------------------------------------------------------------------------

    def exited(self, pod: Pod, code: int, reason: str = "") -> None:
        """The container of a pod has ended, which its kubelet says a little later."""
        if pod.code is None and not pod.unheard:
            pod.code, pod.reason = code, reason
            self.world.note("exited", pod.id, code)
            self.world.at(self.world.now + self.world.random.uniform(0.1, 3.0), lambda: self._count_in(pod))

    def _count_in(self, pod: Pod) -> None:
        """A Job counts a pod that has ended; the first that failed is the end of the Job, and of all other pods."""
        if self.nodes.get(pod.name) is not pod:
            return
        pod.phase = "Failed" if pod.code or pod.taken else "Succeeded"
        jobset = pod.set
        if self.queued.get(jobset.name) is jobset and not (jobset.suspended or jobset.ended):
            if pod.phase == "Failed" and pod.index not in jobset.failing:
                rule = "has condition DisruptionTarget matching FailJob rule at index 0"
                if not pod.taken:
                    rule = f"failed with exit code {pod.code} matching FailJob rule at index 1"
                self._fail(jobset, pod.index, f"Container host for pod {pod.zone}/{pod.id} {rule}")
            elif not pod.deleting and all(one.phase == "Succeeded" for one in self.pods_of(jobset)):
                self._finish(jobset, "Completed")
        if pod.deleting:
            self._forget(pod)
        self._settle(jobset)

    def _fail(self, jobset: JobSet, index: int, said: str) -> None:
        """A Job is about to fail (FailureTarget): first all of its pods end."""
        jobset.failing[index] = said
        active = [pod for pod in self.pods_of(jobset) if pod.index == index and pod.code is None]
        if active:
            self.world.reached.add("a Job was about to fail while pods of it ended")
        for pod in active:
            self.end(pod)
        self._settle(jobset)

    def _settle(self, jobset: JobSet) -> None:
        """A Job has failed once none of its pods goes on. Its set has then, too, and ends the pods of other Jobs."""
        if self.queued.get(jobset.name) is not jobset or jobset.suspended or jobset.ended:
            return
        active = {pod.index for pod in self.pods_of(jobset) if pod.phase not in ("Failed", "Succeeded")}
        jobset.failed = jobset.failing.keys() - active
        if jobset.failed:
            self._finish(jobset, "Failed")
            for pod in self.pods_of(jobset):
                if pod.index not in jobset.failed:
                    self.end(pod)

    def _finish(self, jobset: JobSet, how: str) -> None:
        jobset.ended, jobset.state = how, states.FAILED
        self.world.at(self.world.now + manifest.KEPT_SECONDS, lambda: self._expire(jobset))

    def _expire(self, jobset: JobSet) -> None:
        if self.queued.get(jobset.name) is jobset:
            self.world.reached.add("a set went by itself an hour after its end")
            self.expired(jobset)
            self.remove(jobset)

    def _time_is_up(self, jobset: JobSet, life: int) -> None:
        if self.queued.get(jobset.name) is not jobset or jobset.is_over or jobset.suspended or jobset.lives != life:
            return
        self.world.reached.add("the cluster ended a set at its deadline")
        self.harm(jobset, "deadline")
        for index in range(jobset.slices):
            self._fail(jobset, index, "Job was active longer than specified deadline")

    def remove(self, jobset: JobSet) -> None:
        """Delete a set, as in the background: its pods go after it."""
        if self.queued.get(jobset.name) is not jobset:
            return
        jobset.state, jobset.going = states.DELETING, self.world.now
        del self.queued[jobset.name]
        self.world.note("set gone", jobset.name, jobset.uid)
        for pod in self.pods_of(jobset):
            self.world.at(self.world.now + 5.0 * self.world.random.random(), lambda one=pod: self.end(one))

    def end(self, pod: Pod, *, grace: float = GRACE) -> None:
        """Delete a pod: it is told, and killed when its time is over."""
        if self.nodes.get(pod.name) is not pod or pod.deleting:
            return
        pod.deleting = True
        if pod.code is not None or not pod.machines:
            self.world.at(self.world.now + self.world.random.uniform(0.0, 2.0), lambda: self._forget(pod))
            return
        if pod.unheard:  # nobody there hears of it
            return
        for machine in pod.machines:
            machine.tell("SIGTERM")
        slow = 600.0 if not self.calm and self.world.random.random() < self.odds.slow else 0.0
        if slow:
            self.world.reached.add("a pod stayed long after its deletion")
        self.world.at(self.world.now + grace + slow, lambda: self.kill(pod))

    def kill(self, pod: Pod, code: int = 137, reason: str = "") -> None:
        """End the processes of a pod at once."""
        for machine in pod.machines:
            machine.destroy()
        self.exited(pod, code, reason)
        if pod.deleting and pod.phase in ("Failed", "Succeeded"):  # it has been counted
            self._forget(pod)

    def take(self, pod: Pod, *, told: bool) -> None:  # type: ignore[override]
        """A disruption: with a word before it, or with none."""
        if self.nodes.get(pod.name) is not pod:
            return
        pod.taken = True
        if told:
            self.end(pod)
        else:
            pod.deleting = True
            self.kill(pod)

    def lose(self, pod: Pod, *, lives: bool) -> None:
        """Its node is not heard of any more: nothing is said for minutes, and then that the pod was taken."""
        pod.unheard = True
        for machine in pod.machines:
            if lives:
                machine.lingers = self.world.random.choice((20.0, 300.0, 2000.0))
            else:
                machine.power_off()

        def known() -> None:
            if self.nodes.get(pod.name) is pod and pod.code is None:
                pod.taken = pod.deleting = True
                pod.unheard = False
                self.kill(pod)

        self.world.at(self.world.now + LOST * self.world.random.uniform(0.2, 1.2), known)

    def delete_namespace(self, place: str) -> None:
        self.gone[place] = self.world.now + self.world.random.uniform(10.0, 120.0)
        self.zones[place].weather = "namespace deleted"
        for jobset in [one for one in self.queued.values() if one.zone == place]:
            self.harm(jobset, "namespace deleted")
            self.remove(jobset)

    def _forget(self, pod: Pod) -> None:
        if self.nodes.get(pod.name) is pod:
            del self.nodes[pod.name]
            for machine in pod.machines:
                machine.destroy()
            self._settle(pod.set)

    def living(self) -> Iterator[Pod]:
        return (pod for pod in self.nodes.values() if pod.code is None)


def _versioned(found: Json) -> Json:
    """The object with a version that changes with it, by which a client of an API without tables sees a change."""
    version = str(zlib.crc32(json.dumps(found, sort_keys=True).encode()))
    return {**found, "metadata": {**found["metadata"], "resourceVersion": version}}


def _kind_of(path: str) -> tuple[str, str]:
    """The kind of objects that a path is about, and the name of one."""
    parts = path.partition("/namespaces/")[2].split("/")[1:]
    if parts[-1] == "pendingworkloads":
        return "pendingworkloads", ""
    return parts[0], parts[1] if len(parts) > 1 else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _status(code: int, reason: str, message: str, name: str = "", *, seconds: int = 0) -> Reply:
    said = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    details: Json = {"name": name} if name else {}
    headers = {"retry-after": str(seconds)} if seconds else {}
    return Reply(code, headers, json.dumps({**said, "details": details}).encode())


def _unanswered(text: str) -> ApiError:
    return ApiError(f"{text}. Is the cluster there?", answers.UNREACHABLE, passing=True, is_lost=True)
