"""Hosts as pods of a Kubernetes cluster, one JobSet for an attempt: the verbs, each bounded and idempotent.

`manifest` has what is created, `states` and `waiting` interpret what is seen, `client` makes the calls. This module
only joins them. It knows no records of a job, and no clock but the one by which it waits.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

from kinetic_orchestration.errors import (
    BackendError,
    CredentialsError,
    KineticError,
    UnknownAccelerator,
    UsageError,
)
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import queues_of
from kinetic_orchestration.plan.hardware import accelerators, nodes
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import GONE, PROVISIONING, QUEUED, UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.kubernetes import gke, manifest, preflight, rights
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.observing import pools, states, waiting
from kinetic_orchestration.platforms.kubernetes.observing.observer import JOBSET, TOGETHER, Observer, jobsets
from kinetic_orchestration.platforms.kubernetes.observing.states import Seen
from kinetic_orchestration.platforms.kubernetes.observing.waiting import Wanted
from kinetic_orchestration.platforms.shared import ownership, places
from kinetic_orchestration.platforms.shared.cluster_access import Access, ClusterGone, Clusters, OtherCluster
from kinetic_orchestration.platforms.shared.findings import Finding
from kinetic_orchestration.platforms.shared.rate_limit import pace_of
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side
from kinetic_orchestration.protocol.system.watched import Watched

Object = Mapping[str, Any]

LOOKS_PER_SECOND = 4.0  # of one process at one namespace, however many jobs begin and end there,
LOOKS_AT_ONCE = 200  # as one that is followed alone takes: what a look sees first, such as a lack of memory, is its end
REFUSED_SECONDS = 60.0  # for which a right may be missing by mistake
NO_MORE = "is of a cluster that is no more"  # in the reason of an end, after which its place is not tried again,
NO_NAMESPACE = "does not exist, or is being deleted"  # and this as well
NEVER_AGAIN = (waiting.NEVER, NO_MORE, NO_NAMESPACE)
NO_CLUSTER = "no cluster is known: name a context of the kubeconfig with cluster= or KINETIC_CLUSTER"


class Vault(Protocol):
    """A place for the secrets of jobs, other than in their cluster."""

    def keep(self, asked: Submission) -> None: ...
    def secrets(self) -> Iterable[tuple[str, str]]: ...
    def forget(self, secret: str, job_id: str) -> bool: ...


class KubernetesBackend:
    charges = shared = True
    parallel = REQUESTS

    def __init__(
        self, settings: Settings, clusters: Clusters, vault: Vault | None = None, kind: str = "kubernetes"
    ) -> None:
        """`vault`: None for Secrets of the cluster that go with their JobSets."""
        self.kind = kind
        self._settings = settings
        self._clusters = clusters
        self._vault = vault
        self._mark = names.mark(settings.store, settings.deployment)
        self._apis: dict[tuple[str, str, str], Api] = {}
        self._opening = threading.Lock()
        self._noting = threading.Lock()
        self._watched: dict[str, Watched] = {}  # a set → why it waits
        self._deleted: set[str] = set()  # sets that this process has had deleted, with all that is theirs
        weakref.finalize(self, _close, self._apis)
        self._observer = Observer(self._mark)

    # ---- before the create call

    def resolve(self, plan: Plan) -> Plan:
        """Name the clusters and namespaces that only this machine's configuration knows."""
        return replace(plan, zones=tuple(self._clusters.place(*_parts(place)) for place in plan.zones))

    def check(self, plan: Plan) -> None:
        node = nodes.node(plan.slice)
        gke.check_capacity(plan)
        for text in plan.cloud["tolerations"]:
            manifest.toleration(text)
        if plan.slices > 1 and node.resource != nodes.TPU:
            raise UsageError(
                f"num_slices is {plan.slices}, and only slices of TPUs are joined: leave it out, or join nodes of GPUs "
                "with hosts="
            )
        if plan.cloud["priority_class"] and not plan.cloud["queue"]:
            raise UsageError(
                "a priority_class orders the jobs of a queue: name one with cloud=Kubernetes(queue=…) or KINETIC_QUEUE"
            )
        if not self._settings.signing_key and not self._settings.trust_store:
            raise UsageError(
                "pods cannot prove who they are, as VMs of Google can, so what they return is read only with a key: "
                "set KINETIC_SIGNING_KEY to a secret of 16 characters or more, the same for all processes of this "
                "deployment: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        places.first(plan.zones, NO_CLUSTER)

    def require(self, plan: Plan) -> None:
        preflight.require(plan, self._hurried())

    def examine(self, plan: Plan) -> Iterator[Finding]:
        """Run all checks of every place that a plan names, for `doctor`; of all places at the same time."""
        hurried = self._hurried()
        found = side_by_side(lambda where: list(preflight.examine(plan, where, hurried)), plan.zones, REQUESTS)
        yield from chain.from_iterable(found)

    def admission(self, plan: Plan) -> Iterator[Finding]:
        """Send the JobSet of `dry_run` as a dry run to the cluster that comes first, for `plan --admission`."""
        yield from preflight.admission(plan, plan.zones[0], self._hurried())

    def _hurried(self) -> Callable[[str], Api]:
        """Return what opens the API of a cluster for somebody who waits. Places of one cluster share its login."""
        found: dict[str, Access] = {}
        finding: dict[str, threading.Lock] = {}

        def opened(cluster: str) -> Api:
            with finding.setdefault(cluster, threading.Lock()):
                if cluster not in found:
                    found[cluster] = self._clusters.access(cluster)
            return Api(found[cluster], timeout=preflight.HURRY, patience=preflight.HURRY)

        return opened

    def prepare(self) -> None:
        """There is no library to load."""

    def emulates(self, slice_: Slice) -> bool:
        try:
            return self._clusters.emulated(_parts(self.usual_place())[0])
        except KineticError:
            return False

    def dry_run(self, plan: Plan) -> str:
        """Return the JobSet of the first attempt as YAML, and the places of the next ones."""
        placement = self._chosen(plan, "job-000000000000", 1)
        shown = manifest.shown(preflight.rendered(plan, placement))
        others = ", ".join(list(_places(plan))[1:])
        then = f"; without capacity there, in turn in {others}" if others else ""
        return f"the JobSet that is created in {placement['zone']}{then}\n{shown}"

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        """The next attempt in a cluster means the same one as the last, whatever this process knows by its name, and
        has the mark that the cluster has by now."""
        placement = self._chosen(plan, job_id, attempt, previous)
        cluster = _parts(placement["zone"])[0]
        before = previous.placement if previous is not None else placement
        is_same = _parts(before["zone"])[0] == cluster
        placement["cluster"] = (is_same and before.get("cluster")) or self._clusters.mark(cluster)
        known = before if is_same and before.get("cluster") else placement
        with suppress(KineticError):  # what keeps it from being found keeps the attempt from being created, too
            access = self._api(known).access
            placement |= {"autopilot": access.is_autopilot, "cluster": access.mark or placement["cluster"]}
        return placement

    def _chosen(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        """Return a placement without what has to be known of the cluster itself. Sends nothing."""
        among = _places(plan)
        choice = places.first(tuple(among), NO_CLUSTER)
        if previous is not None:
            before = _place(previous.placement["zone"], previous.placement.get("queue", ""))
            past = previous._replace(placement={**previous.placement, "zone": before})
            seed = f"{job_id}-{attempt}"
            choice = places.following(
                tuple(among), past, seed, self.refusal(plan, previous), patience=plan.zone_patience
            )
        zone, queue = among[choice.place]
        others = bool(plan.choices) or len(among) > 1 + len(choice.dropped)
        return {
            "backend": self.kind,
            "project": plan.project,
            "zone": zone,
            "queue": queue,
            "name": names.slice_of(plan.store, plan.deployment, job_id, attempt),
            "hosts": plan.hosts,
            "slices": plan.slices,
            "patience": plan.zone_patience if others else 0.0,
            **places.history(choice, previous),
        }

    def refusal(self, plan: Plan, past: Past) -> places.Refusal:
        is_over = any(words in past.reason for words in NEVER_AGAIN)
        place = _place(past.placement["zone"], past.placement.get("queue", ""))
        return places.Refusal(gone=(place,) if is_over else ())

    # ---- the create call

    def submit(self, asked: Submission) -> str:
        placement = asked.intent.placement
        others = bool(asked.plan.choices) or len(_places(asked.plan)) > 1
        elsewhere = wire.STOCKOUT if others else wire.CONFIGURATION  # of a place that is no more
        try:
            api, where = self._api(placement), _namespace(placement)
        except ClusterGone as error:
            raise BackendError(f"{placement['zone']} {NO_MORE}: {error}", elsewhere) from error
        except CredentialsError as error:  # its submitter's machine has them
            return f"waiting for a process that reaches the cluster {placement['zone']}: {error}"
        if self._vault is not None:
            self._vault.keep(asked)
        try:
            made = _created(api, where, asked)
        except ApiError as error:
            if error.kind in _LATER:
                return _waits(error)
            raise _refused(error, placement, elsewhere) from error
        if self._vault is None and (kept := manifest.secret(asked, made["metadata"]["uid"])) is not None:
            try:
                api.create(_secrets(where), kept)
            except ApiError as error:
                if error.kind in _LATER:
                    return _waits(error)
                if error.kind != answers.EXISTS:
                    raise _refused(error, placement, elsewhere) from error
        return ""

    # ---- observing

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Observe the placements of each namespace together."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, placement in enumerate(placements):
            groups.setdefault(_where(placement), []).append(index)
        seen: dict[int, Observation] = {}
        for indices in groups.values():
            mine = [placements[index] for index in indices]
            try:
                api = self._api(*mine)
                seen.update(zip(indices, self._observer.observe(api, mine, self._judge), strict=True))
            except KineticError as error:
                seen.update((index, self._unseen(placements[index], error)) for index in indices)
        return [seen[index] for index in range(len(placements))]

    def _unseen(self, placement: Mapping[str, Any], error: KineticError) -> Observation:
        """Return what is known of a set that cannot be read. A refusal has a cause once it has lasted, unless this
        process has seen the set: an API server that starts refuses everything for a while."""
        if isinstance(error, ClusterGone):
            return Observation(GONE, str(error), wire.INFRASTRUCTURE)
        if not isinstance(error, ApiError) or error.kind not in _FINAL:
            return Observation(UNKNOWN, str(error))
        lasts = self._lasts(placement["name"], error.kind, REFUSED_SECONDS)
        cause = _cause(error) if lasts and not self._observer.has_seen(placement["name"]) else ""
        return Observation(UNKNOWN, str(error), cause)

    def _lasts(self, name: str, why: str, patience: float) -> bool:
        """Return True if this process has watched this reason of a set for so long, and forget its others."""
        now = time.monotonic()
        with self._noting:
            before = self._watched.get(name, Watched(why, now))
            self._watched[name] = before.again(why, now, patience)
            return self._watched[name].seconds >= patience

    def _ends(self, name: str) -> None:
        """Forget why a set waits: it no longer does."""
        with self._noting:
            self._watched.pop(name, None)

    def _judge(self, placement: Mapping[str, Any], seen: Seen) -> Observation:
        judged = states.judge(placement, seen, _wanted(placement, seen, self._api(placement).access))
        observation, why = judged.observation, judged.why
        if why is not None and why.cause:
            lasts = self._lasts(placement["name"], why.cause, why.patience)
            return observation._replace(state=GONE, cause=why.cause) if lasts else observation
        self._ends(placement["name"])
        patience = float(placement.get("patience") or 0.0)
        waits = observation.state in (QUEUED, PROVISIONING)
        waits = waits and ("choice" in placement or not _is_asked_for(seen))  # another choice may come sooner
        if patience and waits and states.waited(seen) > patience:
            told = f"nothing became free within {patience:g} s; {observation.message}"
            return observation._replace(state=GONE, cause=wire.STOCKOUT, message=told)
        return observation

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return pace_of(placement, LOOKS_PER_SECOND, LOOKS_AT_ONCE)

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        ours = (placement.get("project") or "") in ("", self._settings.project)
        if not ours or not placement.get("name"):
            return False
        cluster, namespace = _parts(str(placement.get("zone")))
        for place in self._named():
            with suppress(KineticError):
                if self._clusters.place(*place) == f"{cluster}/{namespace}":
                    return True
        return False

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Hosts see the cancel record by themselves; what waits in a queue is released once the attempt is closed."""

    # ---- release

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Gone is what has neither a JobSet nor a pod, nor a Job of its own. Under way: a deletion that the cluster has
        accepted."""
        try:
            api, where = self._api(placement), _namespace(placement)
            found = _find(api, f"{jobsets(where)}/{placement['name']}")
            if found is not None and not self._is_ours(found):
                return Freed.DONE  # another owner's set of this name: this placement was never created
            own = f"{jobsets(where)}/{placement['name']}"
            if (
                found is not None
                and not found["metadata"].get("deletionTimestamp")
                and _delete(api, own, uid=found["metadata"]["uid"])
            ):
                with self._noting:
                    self._deleted.add(placement["name"])
            labels = f"{ownership.MARK}={self._mark},{JOBSET}={placement['name']}"
            left = bool(pods := api.list(_pods(where), labels=labels))
            if found is not None and _ORPHANS in found["metadata"].get("finalizers", ()):
                _end_orphans(api, where, placement["name"], labels, (), is_soon=True)
            elif found is None and (left or placement["name"] not in self._deleted):  # somebody else deleted it
                left |= _end_orphans(api, where, placement["name"], labels, pods)
        except ClusterGone:
            return Freed.DONE
        except KineticError:
            return Freed.REFUSED
        if found is not None or left:
            return Freed.UNDER_WAY
        self._observer.forget(placement["name"])
        self._ends(placement["name"])
        with self._noting:
            self._deleted.discard(placement["name"])
        return Freed.DONE

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """Return all JobSets of this deployment, and Jobs and pods whose set is gone, in each namespace of each cluster
        that this process's settings name."""
        for found in side_by_side(self._left_in, self._named(), self.parallel):
            yield from found

    def _named(self) -> list[tuple[str, str]]:
        """Return the clusters and namespaces of the settings, the usual ones first."""
        settings = self._settings
        clusters = dict.fromkeys((settings.cluster, *settings.clusters))
        namespaces = dict.fromkeys((settings.namespace, *settings.namespaces))
        return [(cluster, namespace) for cluster in clusters for namespace in namespaces]

    def _left_in(self, where: tuple[str, str]) -> list[dict[str, Any]]:
        """Return what is left in one namespace, set by set, or one entry that says why it cannot be read."""
        place, mark = f"{where[0] or 'unknown'}/{where[1]}".rstrip("/"), f"{ownership.MARK}={self._mark}"
        try:
            place = self._clusters.place(*where)
            api, space = self._api({"zone": place, "project": self._settings.project}), _parts(place)[1]
            held = {names.set_of(row.name) for row in api.rows(_pods(space), labels=mark)}  # before a new set has any
            held |= {names.set_of_job(row.name) for row in api.rows(_jobs(space), labels=mark)}
            sets = api.list(jobsets(space), labels=mark)
            lost = sorted(held - {found["metadata"]["name"] for found in sets})[:TOGETHER]
            labels = f"{mark},{JOBSET} in ({','.join(lost)})"
            pods = api.list(_pods(space), labels=labels) if lost else ()
            jobs = [one for one in api.list(_jobs(space), labels=labels) if _is_orphan(one)] if lost else []
        except KineticError as error:
            return [{"zone": place, "unread": str(error)}]
        found = [self._leftover(place, one, one["metadata"]["name"], _hosts(one)) for one in sets if self._is_ours(one)]
        for name in lost:
            hosts = [pod for pod in pods if pod["metadata"]["labels"][JOBSET] == name and self._is_ours(pod, name)]
            whole = [job for job in jobs if job["metadata"]["labels"][JOBSET] == name and self._is_ours(job, name)]
            found += [self._leftover(place, one, name, len(hosts)) for one in (*hosts, *whole)[:1]]
        return found

    def _leftover(self, place: str, found: Object, name: str, hosts: int) -> dict[str, Any]:
        """`found`: the set of that name, or a Job or a pod that is left of it."""
        metadata = found["metadata"]
        owned = ownership.owned(metadata["labels"])
        assert owned is not None
        state = "DELETING" if metadata.get("deletionTimestamp") else found.get("status", {}).get("terminalState", "")
        return {
            "backend": self.kind, "project": self._settings.project if self._vault is not None else "", "zone": place,
            "name": name, "hosts": hosts,
            "slices": int(metadata["labels"].get(ownership.SLICES, "1")), "job": owned.job, "attempt": owned.attempt,
            "created": states.seconds(metadata.get("creationTimestamp")), "expires": owned.expires,
            "state": state or "ACTIVE", "deployment": owned.deployment,
        }  # fmt: skip

    def _is_ours(self, found: Object, name: str = "") -> bool:
        """Return True if this deployment gives that name, or the object's own, to the job and attempt in the labels."""
        owned = ownership.owned(found["metadata"].get("labels", {}))
        name = name or found["metadata"]["name"]
        settings = self._settings
        return owned is not None and name == names.slice_of(
            settings.store, settings.deployment, owned.job, owned.attempt
        )

    def secrets(self) -> Iterable[tuple[str, str]]:
        """Return those in the vault: a Secret of the cluster goes with its JobSet."""
        return () if self._vault is None else self._vault.secrets()

    def forget(self, secret: str, job_id: str) -> bool:
        return self._vault is None or self._vault.forget(secret, job_id)

    def pod_of(self, placement: Mapping[str, Any], host: int) -> tuple[Access, str, str]:
        """Return the access to the cluster of a host, its namespace, and the name of its pod; "" if it has none now.

        Args:
            placement: The attempt's placement.
            host: The host's number.
        """
        api, where = self._api(placement), _namespace(placement)
        labels = f"{ownership.MARK}={self._mark},{JOBSET}={placement['name']}"
        each = max(1, int(placement["hosts"]) // int(placement.get("slices") or 1))
        wanted = {JOB_INDEX: str(host // each), COMPLETION_INDEX: str(host % each)}
        for pod in api.list(_pods(where), labels=labels):
            told = {**pod["metadata"].get("annotations", {}), **pod["metadata"]["labels"]}
            is_there = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            if is_there and wanted.items() <= told.items():
                return api.access, where, str(pod["metadata"]["name"])
        return api.access, where, ""

    # ---- clusters

    def usual_place(self) -> str:
        """Return where jobs run that name no cluster: CLUSTER/NAMESPACE."""
        return self._clusters.place(self._settings.cluster, self._settings.namespace)

    def _api(self, placement: Mapping[str, Any], *together: Mapping[str, Any]) -> Api:
        """Return the API of the cluster of a placement, and of others in its namespace. Raises CredentialsError if its
        name means another cluster here."""
        project, cluster, _, mark = _where(placement)
        with self._opening:
            known = self._apis.get((project, cluster, mark))
            if known is not None and not known.is_doubtful:
                return known
            try:
                access = self._clusters.access(cluster, project, mark)
            except OtherCluster as error:
                doubt = error
            else:
                return self._open((project, cluster, mark), access)
        self._prove(doubt, placement, *together)
        with self._opening:
            return self._open((project, cluster, mark), doubt.access)

    def _open(self, key: tuple[str, str, str], access: Access) -> Api:
        if key in self._apis:
            self._apis[key].close()
        self._apis[key] = Api(access)
        return self._apis[key]

    def _prove(self, doubt: OtherCluster, *placements: Mapping[str, Any]) -> None:
        """Raise a doubt on a cluster, unless it has a JobSet of one of these placements: no other cluster has that."""
        namespace = _namespace(placements[0])
        try:
            with Api(doubt.access, timeout=preflight.HURRY, patience=0.0) as api:
                rows = api.rows(jobsets(namespace), labels=f"{ownership.MARK}={self._mark}")
        except KineticError as error:
            raise OtherCluster(f"{doubt}. It could not be asked: {error}", doubt.access) from error
        if {row.name for row in rows}.isdisjoint(placement.get("name") for placement in placements):
            told = f"{doubt}. Its namespace {namespace} has no JobSet of the job, which would show that it is the same"
            raise OtherCluster(told, doubt.access) from doubt


JOB_INDEX = "jobset.sigs.k8s.io/job-index"  # label of a pod: its slice
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"  # annotation, and label: its host in that
_ORPHANS = "orphan"  # finalizer of what is being deleted without what is its own, which may take half a minute
_LATER = (answers.BUSY, answers.UNREACHABLE, answers.CONFLICT)
_GONE = (answers.ABSENT, answers.CONFLICT)
_FINAL = (answers.FORBIDDEN, answers.UNSERVED, answers.INVALID)


def _where(placement: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the project, the cluster, the namespace and the cluster's mark of a placement."""
    cluster, namespace = _parts(placement["zone"])
    return str(placement.get("project") or ""), cluster, namespace, str(placement.get("cluster") or "")


def _created(api: Api, where: str, asked: Submission) -> Object:
    """Return the set of an attempt, created or found. Raises ApiError, and BackendError for another's."""
    try:
        return api.create(jobsets(where), manifest.render(asked))
    except ApiError as error:
        if error.kind != answers.EXISTS:
            raise
    made = api.get(f"{jobsets(where)}/{asked.intent.placement['name']}")
    _adopt(made, asked)
    return made


def _close(apis: Mapping[tuple[str, str, str], Api]) -> None:
    for api in apis.values():
        api.close()


def _places(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the namespace, and the queue in it, of each place that a plan names, in the order of their trial."""
    queues = queues_of(plan.cloud["queue"]) or ("",)
    return {_place(zone, queue): (zone, queue) for zone in plan.zones for queue in queues}


def _place(zone: str, queue: str) -> str:
    return f"{zone}:{queue}" if queue else zone


def _parts(place: str) -> tuple[str, str]:
    cluster, _, namespace = place.rpartition("/")
    return cluster, namespace


def _namespace(placement: Mapping[str, Any]) -> str:
    return _parts(placement["zone"])[1]


def _find(api: Api, path: str) -> Object | None:
    try:
        return api.get(path)
    except ApiError as error:
        if error.kind != answers.ABSENT:
            raise
        return None


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def _jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def _is_orphan(found: Object) -> bool:
    """Return True for what does not go with its owner, as it has none any more."""
    return not found["metadata"].get("ownerReferences")


def _end_orphans(
    api: Api, where: str, name: str, labels: str, pods: Sequence[Object], *, is_soon: bool = False
) -> bool:
    """Delete the Jobs of a set that was deleted without them, and so their pods, and those pods whose Job was deleted
    without them, too, with the set's Secret that they read: nothing else does. Returns True if there were Jobs or pods.

    Args:
        api: Of their cluster.
        where: Their namespace.
        name: The set's, and its Secret's.
        labels: Those of its Jobs.
        pods: Its pods.
        is_soon: They are about to lose their owner.

    Raises:
        ApiError: One could not be deleted. The Secret comes first, as without the others nobody knows of it.
    """
    kinds = ((_jobs(where), api.list(_jobs(where), labels=labels)), (_pods(where), pods))
    orphans = [(path, one) for path, found in kinds for one in found if is_soon or _is_orphan(one)]
    if any(manifest.reads_secret(one, name) for _, one in orphans):
        _delete(api, f"{_secrets(where)}/{name}", but_for=(answers.FORBIDDEN,))  # then the others are still to be ended
    for path, one in orphans:
        metadata = one["metadata"]
        if not metadata.get("deletionTimestamp"):
            _delete(api, f"{path}/{metadata['name']}", uid=metadata["uid"])
    return bool(orphans)


def _delete(api: Api, path: str, *, uid: str = "", but_for: Sequence[str] = ()) -> bool:
    """Delete an object that may be gone; return True if it was there. Raises ApiError, `but_for` these kinds."""
    try:
        api.delete(path, uid=uid)
    except ApiError as error:
        if error.kind not in (*_GONE, *but_for):
            raise
        return False  # somebody else was first, and may have left what is its own
    return True


def _hosts(found: Object) -> int:
    """Return the number of pods that a set is to have."""
    each = found["spec"]["replicatedJobs"]
    return sum(int(one.get("replicas", 1)) * int(one["template"]["spec"].get("parallelism", 1)) for one in each)


def _is_asked_for(seen: Seen) -> bool:
    """Return True if a request of flex-start is with Google: elsewhere, a new one would be behind all others."""
    if seen.set is None or not gke.capacity_of(manifest.pod_spec(seen.set)).flex_start:
        return False
    reserved = waiting.condition(seen.workload or {}, "QuotaReserved") or {}
    return reserved.get("status") != "False"


def _wanted(placement: Mapping[str, Any], seen: Seen, access: Access) -> Wanted:
    """Return what a set's pods ask of their nodes, for users. `access`: to their cluster."""
    if seen.set is None:
        return Wanted()
    pod = manifest.pod_spec(seen.set)
    labels = manifest.wanted(pod)
    try:
        slice_ = accelerators.parse(seen.set["metadata"].get("annotations", {}).get(manifest.ACCELERATOR, ""))
    except UnknownAccelerator:  # of a later version
        return Wanted(labels)
    slices = int(placement.get("slices") or 1)
    if slice_.kind != "cpu":
        slice_ = accelerators.on_hosts(slice_, placement["hosts"] // slices)
    if lacks := pools.of_no_pool(access, nodes.node(slice_), pod):
        return Wanted(labels, lacks)
    if slice_.kind == "cpu":
        return Wanted(labels)
    known = access.cluster or gke.cluster_of(placement["zone"])
    try:
        capacity = gke.capacity_of(pod)._asdict()
        command = gke.pool_command(slice_, known, slices=slices, **capacity)
    except UsageError as error:
        return Wanted(labels, str(error).rstrip("."))
    one_line = command.replace("\n", " && ")
    return Wanted(labels, f"make a pool of such nodes with: {one_line}" if command else "")


def _adopt(found: Object, asked: Submission) -> None:
    """Accept an existing set as the requested one, if its labels match."""
    metadata = found["metadata"]
    owned = ownership.owned(metadata.get("labels", {}))
    wanted = asked.job_id, asked.intent.attempt, asked.spec_digest[:20]
    if owned is not None and (owned.job, owned.attempt, owned.spec) == wanted:
        return
    whose = f"job {owned.job}, attempt {owned.attempt}" if owned is not None else "somebody else, without our labels"
    raise BackendError(
        f"the JobSet {metadata['name']} exists already and belongs to {whose}: look at it with kubectl describe jobset "
        f"{metadata['name']} -n {metadata.get('namespace', '')}, and delete it if nobody needs it",
        wire.CONFIGURATION,
    )


def _waits(error: ApiError) -> str:
    """Return why a create call is to be repeated, with what helps where that is known."""
    why = waiting.of_refusal(error.words)
    return f"waiting: {error}" if why is None else f"waiting: {str(error).rstrip('.')}; {why.message}"


def _cause(error: ApiError) -> str:
    return wire.QUOTA if error.is_quota else wire.CONFIGURATION


def _refused(error: ApiError, placement: Mapping[str, Any], elsewhere: str) -> BackendError:
    """Return the refusal of a create call, with what helps. `elsewhere`: its cause, if only other places are left."""
    where, advice = placement["zone"], ""
    if error.lacks_namespace:  # the same words in any moment of its end
        told = f"{where}: the namespace {_namespace(placement)} {NO_NAMESPACE} ({str(error).rstrip('.')})"
        advice = "see 'kubectl get namespaces', and name one with namespace= or KINETIC_NAMESPACE"
        return BackendError(f"{told}: {advice}", elsewhere)
    if error.kind == answers.UNSERVED:
        advice = (
            f" The cluster has no JobSet controller, which starts the pods of a slice together. {preflight.INSTALL}"
        )
    elif error.kind == answers.FORBIDDEN and (who := rights.named_in(error.words)):  # webhooks refuse by it, too
        queue = placement.get("queue", "")
        grant = rights.grant(who, _namespace(placement), [queue] if queue else [])
        advice = f" Have an administrator grant the right, which goes with its namespace if that is deleted: {grant}"
    return BackendError(f"{where}: {error}{advice}", _cause(error))
