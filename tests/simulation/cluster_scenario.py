"""One seed on simulated clusters: places with their weather, sets and pods with their fates, and the promises about both.

As `cloud_scenario`, with the backend for Kubernetes over its real client, down to the one exchange that a simulated API
answers. There are no machines that delete themselves: pods end, and their set is deleted by whoever follows the job, by
the cluster an hour later, or by the reaper.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.watching.watchers.polling import PollingWatcher
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes, fields_of
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Verdict
from tests.simulation import zones as api
from tests.simulation.cloud_scenario import (
    DEPLOYMENT,
    MOST,
    OURS,
    SLICES,
    STORE,
    CloudJudge,
    CloudSchedule,
    Distance,
)
from tests.simulation.cluster import Cluster, JobSet
from tests.simulation.cluster import Odds as ClusterOdds
from tests.simulation.pods import FATES, OF_A_NAMESPACE, OF_A_QUEUE, OOM, UNFOLLOWED, PodGround
from tests.simulation.scenario import DAY, FREE
from tests.simulation.world import Task, Violation
from tests.simulation.zones import Zone

CLUSTERS, SPACES = ("east", "west"), ("a", "b")
PLACES = tuple(f"{cluster}/{space}" for cluster in CLUSTERS for space in SPACES)
FOLLOWED = 600.0  # after a verdict, in which a follower releases the set
PODS_GONE = 900.0  # after a verdict: the longest grace and twice the slowness of a deletion
KUBERNETES = fields_of(Kubernetes())
FREE_HARM = {wire.STOCKOUT: {api.DRY, "half"}, wire.QUOTA: {api.QUOTAS}, wire.INTERNAL: set[str]()}
TAKEN = {
    "deleted", "evicted", "taken", "node lost", "node silent", "kueue", "suspended by hand", "set deleted",
    "namespace deleted", "deadline",
}  # fmt: skip
DIED = {"out of memory", "host"}  # without a word, for which the cluster ends the other hosts


class SimulatedClusters:
    """The clusters that a process knows: all of them, by their names."""

    def place(self, cluster: str, namespace: str) -> str:
        return f"{cluster}/{namespace}"

    def emulated(self, cluster: str) -> bool:
        return True

    def mark(self, cluster: str) -> str:
        return f"the authority of {cluster}"

    def access(self, cluster: str, project: str = "", mark: str = "") -> Access:
        return Access(f"https://{cluster}", "the simulation")


class ClusterDistance(Distance):
    """Each process has a backend with a client of its own."""

    backends: dict[Task, Any]

    def watcher_of(self, store: Any, backend: Any) -> PollingWatcher:
        return super().watcher_of(store, backend)

    def backend_of(self, process: Task) -> Any:
        if process not in self.backends:
            clusters = CLUSTERS if self.world.random.random() < 0.7 else CLUSTERS[:1]  # the job's records name others
            settings = Settings(
                Path("/simulated"), STORE, DEPLOYMENT, "kubernetes", cluster=clusters[0], clusters=clusters,
                namespace=SPACES[0], namespaces=SPACES, retention=DAY / 4.0,
            )  # fmt: skip
            backend = KubernetesBackend(settings, SimulatedClusters())
            backend.rate_limit = self.rate_limit  # type: ignore[method-assign] # of this process alone
            self.backends[process] = backend
        return self.backends[process]


class ClusterJudge(CloudJudge):
    """Knows what a cluster tells, and what it leaves to us."""

    # Of sets that wait, a look reads rows and whole objects, a few pages of each, and what explains the wait.
    most: Mapping[str, tuple[int, float]] = MappingProxyType({**MOST, "kinetic-watch": (40, 10 / 5.0)})

    def _check_zone(self, job: str, attempt: int) -> None:
        """Check that only a place without room is left for another."""
        place, before = self.zones[job, attempt], self.zones[job, attempt - 1]
        if place != before:
            self.world.reached.add("another place was tried")
            if self.verdicts[job, attempt - 1].cause not in FREE:
                raise Violation(f"attempt {attempt} of {job} leaves {before} for {place}, and that had room")

    def _on_verdict(self, job: str, attempt: int, verdict: Verdict) -> None:
        super()._on_verdict(job, attempt, verdict)
        if "was replaced in mid-run" in verdict.reason:
            self.world.reached.add("a pod of another life did not join")
        frozen = "frozen" in self.ground.truth(job, attempt).harm and "sign of life" in verdict.reason
        if frozen and (verdict.kind, verdict.host) == (wire.ABORTED, 0):
            self.world.reached.add("a frozen host 0 was given up by the others")

    def _check_valid(self, queued: Any) -> None:
        """A set waits as long as somebody follows it."""

    def _check_expired(self, queued: Any) -> None:
        """Some time after the deadline the cluster has ended all pods."""
        alive = [pod.id for pod in self.ground.api.pods_of(queued) if self._runs(pod)]
        if alive and self.ground.calm:
            raise Violation(f"{alive} are there long after their deadline")

    def _check_deleted(self, job: str, attempt: int) -> None:
        """Some time after the verdict no pod of the attempt runs anything, whoever is there."""
        if not self.ground.calm:
            self.world.at(self.world.now + PODS_GONE, lambda: self._check_deleted(job, attempt))
            return
        for pod in self.ground.api.living():
            if (pod.set.told["job"], pod.set.told["attempt"]) == (job, attempt) and self._runs(pod):
                raise Violation(f"{pod.id} still runs its program, and its attempt has its verdict")

    def _runs(self, pod: Any) -> bool:
        """Return True if the program of a pod goes on that has been up for a while."""
        agents = [machine.agent for machine in pod.machines if machine in self.ground.living]
        up = max((machine.up for machine in pod.machines), default=0.0)
        return self.world.now > up + PODS_GONE and any(one is not None and one.supervisor.child for one in agents)

    def may_delete(self, name: str, what: Any) -> None:
        """Check that a set is ours, and that no host of it is at work that could still come to an end."""
        world, task = self.world, self.world.current
        assert task is not None
        if name in self.foreign:
            raise Violation(f"{task.name} deletes {name}, which is not ours")
        job, attempt = what.told["job"], what.told["attempt"]
        if names.intent(job, attempt + 1) not in world.records:
            self._act(job)
        verdict = world.records.get(names.verdict(job, attempt))
        if world.now > what.told["deadline"]:
            return
        if verdict is None and names.spec(job) in world.records:
            raise Violation(f"{task.name} deletes {name} before the verdict")
        if verdict is None or self.ground.truth(job, attempt).harm:
            return
        age, at_work = world.now - verdict.updated, self._at_work(what)
        if at_work and age < lifecycle.SETTLE_PATIENCE:
            raise Violation(f"{task.name} deletes {name} while {at_work} are at work")

    def _justified(self, job: str, attempt: int, verdict: Verdict) -> bool:
        truth, cause = self.ground.truth(job, attempt), verdict.cause
        if "nothing became free within" in verdict.reason and cause != wire.DEADLINE:
            self.world.reached.add("a place was left for want of patience")
            patience = self.plan.zone_patience if len(self.plan.zones) > 1 else 0.0
            return bool(patience) and self.world.now - self.intents[job, attempt] >= patience
        if cause in FREE:
            self.world.reached.add(f"free: {cause}")
            return bool(truth.harm & FREE_HARM[cause])
        if "namespace" in verdict.reason and cause == wire.CONFIGURATION:
            self.world.reached.add("a job ended with its namespace")
            return bool(self.ground.api.gone)
        if cause == wire.PREEMPTION:
            beats = [names.beat(job, attempt, host) for host in range(self.plan.hosts)]
            told = verdict.kind == wire.ABORTED and all(name in self.world.records for name in beats)
            died = bool(truth.harm & DIED) and told
            return bool(truth.harm & TAKEN) or (self.after_its_end(job, attempt) and not died)
        by_pod = cause == wire.DEADLINE and verdict.kind == wire.ABORTED and "deadline passed" in verdict.reason
        return (
            (cause == wire.USER and OOM in verdict.reason and "out of memory" in truth.harm)
            or (by_pod and self.world.now > self.deadlines[job, attempt])
            or super()._justified(job, attempt, verdict)
        )

    def on_expired(self, jobset: Any) -> None:
        """An hour after the end of a set: whoever followed its job all the time has asked for its deletion."""
        job, attempt = jobset.told["job"], jobset.told["attempt"]
        verdict = self.world.records.get(names.verdict(job, attempt))
        waited = 0.0 if verdict is None else self.world.now - verdict.updated
        if self.attentive and not self.world.suspended and not jobset.asked and waited > FOLLOWED:
            raise Violation(f"nobody has asked for the deletion of {jobset.name} in {waited:.0f} s after its verdict")

    def after_its_end(self, job: str, attempt: int) -> bool:
        """Return True for a pod that was told of the end of a set that nobody wanted any more."""
        return any(
            (pod.set.told["job"], pod.set.told["attempt"]) == (job, attempt) and pod.set.is_over
            for pod in self.ground.api.nodes.values()
        )

    def _misconfigured(self, job: str, attempt: int, truth: Any, verdict: Verdict) -> bool:
        if "who may start attempt" in verdict.reason:
            return True
        return bool(truth.harm & {"unready"})


class ClusterSchedule(CloudSchedule):
    """Everything that one seed draws, on simulated clusters."""

    option = " --cluster"
    judge: ClusterJudge

    kind_of_judge = ClusterJudge
    provision = (None, 1800.0, 7200.0)

    def _open(self, draw: Any) -> None:
        queue = draw.random() < 0.4
        cluster = Cluster(
            self.world,
            {place: self._weather(place, queue) for place in PLACES},
            ClusterOdds(
                busy=draw.choice((0.0, 0.05, 0.5)),
                expires=draw.choice((0.0, 0.0, 0.3)),
                slow=draw.choice((0.0, 0.0, 0.3)),
                half=draw.choice((0.0, 0.0, 0.3)),
            ),
            queue=queue,
        )
        self.ground = PodGround(self.world, cluster)
        self.world.distance = self.distance = ClusterDistance(self.world, self.ground)
        slice_ = draw.choice((SLICES[0], SLICES[0], SLICES[1], SLICES[2]))
        slices = draw.choice((1, 1, 1, 2)) if slice_.hosts == 1 else 1
        places = tuple(draw.sample(PLACES, draw.choice((1, 1, 2, 3))))
        cloud = KUBERNETES | ({"queue": "q"} if queue else {})
        self.plan = self._plan("kubernetes", slice_, slices, places, (0.0, 300.0, 900.0), emulated=True, cloud=cloud)

    def _fates(self, draw: Any) -> tuple[str, ...]:
        fates = FATES + UNFOLLOWED * self.orphaned + OF_A_QUEUE * self.ground.api.queue
        return fates + OF_A_NAMESPACE * (draw.random() < 0.2)

    def _draw_rate(self, draw: Any) -> None:
        """Nobody limits how often sets are made."""

    def _inform_judge(self) -> None:
        super()._inform_judge()
        self.ground.api.expired = self.judge.on_expired

    def _weather(self, place: str, queue: bool) -> Zone:
        draw = self.world.random
        kinds = (api.QUEUE,) if queue else (api.DRY, api.QUOTAS)
        kind = draw.choice((*(api.FREE,) * 4, *kinds))
        return Zone(place, kind, self.world.now + draw.choice((60.0, 600.0, 3600.0)) * draw.random())

    def _strangers(self) -> None:
        """Sets in the namespaces that are not ours: unlabelled, another deployment's, or only named like ours."""
        cluster, now = self.ground.api, self.world.now
        labels = {ownership.MARK: names.mark(STORE, DEPLOYMENT), **self._labels()}
        other = {**labels, ownership.MARK: names.mark("gs://another/store", DEPLOYMENT)}
        told = '{"job": "job-0123456789ab", "attempt": 1, "hosts": 1, "hosts_per_slice": 1, "deadline": 0, "boot": ""}'
        pod = {"spec": {"containers": [{"env": [{"name": "KINETIC_ORDERS", "value": told}]}]}}
        spec = {"replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": {"template": pod}}}]}
        for name, marks in (("a-training", {}), (f"{OURS}x", labels), (f"{OURS}-y", other), (OURS, {})):
            body = {"metadata": {"name": name, "labels": marks}, "spec": spec}
            stranger = JobSet(PLACES[0], body, f"theirs-{name}", now - 1e6)
            cluster.queued[stranger.name] = stranger
            self.judge.foreign.add(stranger.name)

    def _still_there(self) -> None:
        """Whoever deletes a namespace deletes what others have in it."""
        self.judge.foreign -= {name for name in self.judge.foreign if name.rpartition("/")[0] in self.ground.api.gone}
        super()._still_there()

    def _heal(self) -> None:
        super()._heal()
        for jobset in list(self.ground.api.queued.values()):
            if jobset.suspended and jobset.name not in self.judge.foreign:
                self.ground.api.admit(jobset)
