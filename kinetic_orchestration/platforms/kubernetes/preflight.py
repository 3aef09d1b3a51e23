"""Checks before a job is submitted that a cluster will let it run: access, JobSet, namespace, rights, queue, admission.

Every failed check names what fixes it. A submitter checks once in ten minutes (`require`), in two requests, and one
more for each queue and a priority class; `doctor` on every call, and more (`examine`). Whether a node is free is never
a reason to refuse: a pool may be empty until a pod waits for it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError, CredentialsError, KineticError
from kinetic_orchestration.plan.declare.cloud import queues_of
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import gke, manifest, rights
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.platforms.shared.cluster_access import EVERYTHING
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import at_once

Object = Mapping[str, Any]

LASTS = 600.0
HURRY = 5.0  # seconds for a connection or a repetition, while a user waits for the answer
LEAST_SERVER = (1, 29)  # which first honours podReplacementPolicy
LEAST_JOBSET = (0, 8)
NEWEST_JOBSET = "v0.12.0"  # with which it was tried
JOBSET_MANIFEST = "https://github.com/kubernetes-sigs/jobset/releases/download/{}/manifests.yaml"
INSTALL = f"Install it, as an administrator: kubectl apply --server-side -f {JOBSET_MANIFEST.format(NEWEST_JOBSET)}"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_OF_AUTOPILOT = "gk3-"  # how names of its nodes begin
_NO_POD = ("NoSchedule", "NoExecute")  # effects of taints that keep pods away


class Place(NamedTuple):
    """A namespace of a cluster, for one plan."""

    api: Api
    cluster: str  # as the plan names it
    namespace: str
    plan: Plan

    @classmethod
    @contextmanager
    def opened(cls, plan: Plan, where: str, open_api: Callable[[str], Api]) -> Iterator[Place]:
        """Within the block, its API is open. `where`: CLUSTER/NAMESPACE."""
        cluster, _, namespace = where.rpartition("/")
        with open_api(cluster) as api:
            yield cls(api, cluster, namespace, plan)


_passed: dict[tuple[Any, ...], float] = {}
_lock = threading.Lock()


def require(plan: Plan, open_api: Callable[[str], Api]) -> None:
    """Refuse to submit what cannot be made, or could not be removed again. What passed is asked again a while later.

    Of several clusters, one that does not answer is left out, if another one does.

    Args:
        plan: The job's plan.
        open_api: Returns the API of a cluster, by its name in the plan.

    Raises:
        BackendError: A cluster lacks something, or none answers.
        CredentialsError: One does not accept the client.
    """
    silent: list[ApiError] = []
    for where in plan.zones:
        chosen = queues_of(plan.cloud["queue"]), plan.cloud["priority_class"], nodes.node(plan.slice).resource
        key = os.getpid(), plan.backend, where, *chosen, *_wanted(plan)
        with _lock:
            if time.monotonic() - _passed.get(key, -LASTS) < LASTS:
                continue
        try:
            with Place.opened(plan, where, open_api) as place:
                failed = [found for found in _needed(place) if found.state == FAILED]
        except ApiError as error:
            if error.kind != answers.BUSY:  # which a create call waits out
                silent.append(error)
            continue
        if failed:
            text = "\n".join(f"  {finding.name}: {finding.found}. {finding.fix}".rstrip() for finding in failed)
            raise BackendError(
                f"{where} is not ready for this job, and nothing was submitted:\n{text}", "configuration"
            )
        with _lock:
            _passed[key] = time.monotonic()
    if silent and len(silent) == len(plan.zones):
        raise BackendError(f"nothing was submitted: {silent[0]}", wire.CONFIGURATION) from silent[0]


def examine(plan: Plan, where: str, open_api: Callable[[str], Api]) -> Iterator[Finding]:
    """Run all checks of one place, even after a failure; those after the access concurrently."""
    with Place.opened(plan, where, open_api) as place:
        try:
            yield _server(place)
        except (ApiError, CredentialsError) as error:
            yield Finding("cluster", FAILED, f"{place.cluster} cannot be asked", str(error))
            return
        chosen = [_jobset, _namespace, _rights, *([_queues, _priority] if queues_of(plan.cloud["queue"]) else [])]
        checks = [*chosen, _account, _set, _pod, _nodes]
        found = at_once([partial(_tried, check, place) for check in checks], len(checks))
        yield from {finding.name: finding for finding in found}.values()  # the set may say of others what they lack


def _tried(check: Callable[[Place], Finding], place: Place) -> Finding:
    try:
        return check(place)
    except KineticError as error:
        return Finding(check.__name__.strip("_"), WARNING, "it could not be asked", str(error))


def _needed(place: Place) -> Iterator[Finding]:
    """The checks of `require`: the set itself is what JobSet, the namespace and its admission are tried with."""
    made = _set(place)
    granted = _rights(place)
    if granted.state != FAILED or "create jobsets" not in granted.found:
        yield made  # else the one follows from the other
    yield granted
    if queues_of(place.plan.cloud["queue"]):
        yield _queues(place)
    if place.plan.cloud["priority_class"]:
        yield _priority(place)


# ---- the cluster -----------------------------------------------------------------------------------------------


def _server(place: Place) -> Finding:
    access = place.api.access
    version = str(place.api.get("/version").get("gitVersion", ""))
    found = f"{access.origin}: {access.server}, Kubernetes {version}, as {_who(place.api)}"
    if _number(version) < LEAST_SERVER:
        least = ".".join(map(str, LEAST_SERVER))
        return Finding("cluster", WARNING, found, f"Jobs need what Kubernetes has from {least} on: upgrade it")
    return Finding("cluster", OK, found)


def _who(api: Api) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    except ApiError:
        return "somebody whom the cluster does not name"
    return answers.escaped(found.get("status", {}).get("userInfo", {}).get("username"))


def _jobset(place: Place) -> Finding:
    """The API, which anybody may see, and the controller's version, which few may."""
    try:
        place.api.get(f"/apis/{manifest.API}")
    except ApiError as error:
        if error.kind != answers.UNSERVED:
            raise
        return _no_jobset(place)
    path = "/apis/apps/v1/namespaces/jobset-system/deployments/jobset-controller-manager"
    try:
        containers = place.api.get(path)["spec"]["template"]["spec"]["containers"]
    except ApiError:
        return Finding("JobSet", OK, f"{manifest.API} is served; its controller's version cannot be read from here")
    version = answers.escaped(str(containers[0].get("image", "")).rpartition(":")[2])
    if (0,) < _number(version) < LEAST_JOBSET:
        least = ".".join(map(str, LEAST_JOBSET))
        return Finding(
            "JobSet", WARNING, f"{version} is older than {least}, and was never tried", f"Update it. {INSTALL}"
        )
    return Finding("JobSet", OK, f"{version}, serves {manifest.API}")


def _no_jobset(place: Place) -> Finding:
    return Finding("JobSet", FAILED, f"{place.cluster} lacks it, which starts the pods of a slice together", INSTALL)


def _namespace(place: Place) -> Finding:
    try:
        found = place.api.get(f"/api/v1/namespaces/{place.namespace}")
    except ApiError as error:
        if error.kind == answers.ABSENT:
            return _no_namespace(place)
        if error.kind != answers.FORBIDDEN:
            raise
        return Finding("namespace", OK, f"{place.namespace}, which you may not look at: the set is tried there below")
    if found.get("status", {}).get("phase") == "Terminating":
        return Finding(
            "namespace", FAILED, f"{place.namespace} is being deleted", "Name another with KINETIC_NAMESPACE"
        )
    return Finding("namespace", OK, place.namespace)


def _no_namespace(place: Place) -> Finding:
    fix = f"Make it: kubectl create namespace {place.namespace}; or name another with KINETIC_NAMESPACE or namespace="
    return Finding("namespace", FAILED, f"{place.cluster} has no namespace {place.namespace}", fix)


def _wanted(plan: Plan) -> Sequence[rights.Right]:
    secrets = bool(plan.secrets) and not plan.traits.secret_service
    return rights.of(secrets=secrets, queue=bool(queues_of(plan.cloud["queue"])))


def _rights(place: Place) -> Finding:
    """Ask for all rules at once, and singly only if the cluster says that there are others."""
    wanted = _wanted(place.plan)
    body = _review("SelfSubjectRulesReview", {"namespace": place.namespace})
    said = place.api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body).get("status", {})
    missing = [right for right in wanted if not rights.is_granted(right, said.get("resourceRules") or ())]
    if missing and said.get("incomplete"):
        missing = [right for right in missing if not _may(place, right)]
    if not missing:
        return Finding("rights", OK, f"all that jobs need in {place.namespace}")
    state = FAILED if any(right.is_needed for right in missing) else WARNING
    told = "; ".join(f"{right}: {right.lack}" for right in missing)
    queues = queues_of(place.plan.cloud["queue"])
    queue = f" --queue {','.join(queues)}" if queues else ""
    fix = f"Have an administrator grant them: ko doctor --role user:NAME{queue} | kubectl apply -f -"
    return Finding("rights", state, f"missing in {place.namespace}: {told}", fix)


def _may(place: Place, right: rights.Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    asked = {"namespace": place.namespace, "group": right.group, "resource": resource, "verb": right.verb}
    body = _review("SelfSubjectAccessReview", {"resourceAttributes": {**asked, "subresource": subresource}})
    said = place.api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(said.get("status", {}).get("allowed"))


def _review(kind: str, spec: Object) -> dict[str, Any]:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}


# ---- Kueue -----------------------------------------------------------------------------------------------------


def _queues(place: Place) -> Finding:
    """Return one finding of all queues: one that lacks is told before a job has waited in those before it."""
    found = [_queue(place, name) for name in queues_of(place.plan.cloud["queue"])]
    worst = next((state for state in (FAILED, WARNING) if any(one.state == state for one in found)), OK)
    counted = [one for one in found if one.state == worst]
    fixes = dict.fromkeys(one.fix for one in counted if one.fix)
    return Finding("queue", worst, "; ".join(one.found for one in counted), ". ".join(fixes))


def _queue(place: Place, name: str) -> Finding:
    try:
        found = place.api.get(f"{_KUEUE}/namespaces/{place.namespace}/localqueues/{name}")
    except ApiError as error:
        if error.kind == answers.UNSERVED:
            fix = "Have Kueue 0.15 or later installed, or leave out queue=: https://kueue.sigs.k8s.io/docs/installation"
            return Finding(
                "queue", FAILED, f"{name} is asked for, and {place.cluster} has no Kueue that serves v1beta2", fix
            )
        if error.kind == answers.ABSENT:
            fix = (
                f"See which there are: kubectl get localqueues -n {place.namespace}; name one with Kubernetes(queue=…)"
            )
            return Finding("queue", FAILED, f"{place.namespace} has no queue {name}", fix)
        if error.kind in (answers.FORBIDDEN, answers.BUSY):
            return Finding("queue", WARNING, f"whether {name} exists cannot be read from here", str(error))
        raise
    cluster_queue = answers.escaped(found.get("spec", {}).get("clusterQueue"))
    active = waiting.condition(found, "Active")
    if active is not None and active.get("status") != "True":
        said = answers.escaped(active.get("message"))
        fix = f"An administrator has to mend it: kubectl describe clusterqueue {cluster_queue}"
        return Finding("queue", FAILED, f"{name} is not active: {said}", fix)
    flavors = found.get("status", {}).get("flavorsReservation") or ()  # all that the cluster queue has
    covered = sorted({str(resource["name"]) for one in flavors for resource in one.get("resources") or ()})
    chips = nodes.node(place.plan.slice).resource
    if chips and covered and chips not in covered:
        told = f"{name} has no quota of {chips}, which pods request: only of {', '.join(map(answers.escaped, covered))}"
        fix = f"Name another queue, or have an administrator add it to the cluster queue {cluster_queue}"
        return Finding("queue", FAILED, told, fix)
    pending = found.get("status", {}).get("pendingWorkloads", 0)
    return Finding("queue", OK, f"{name} of the cluster queue {cluster_queue}, {pending} waiting")


def _priority(place: Place) -> Finding:
    name = place.plan.cloud["priority_class"]
    if not name:
        return Finding("priority", OK, "that of the queue's own: no priority_class is named")
    try:
        found = place.api.get(f"{_KUEUE}/workloadpriorityclasses/{name}")
    except ApiError as error:
        if error.kind in (answers.ABSENT, answers.UNSERVED):
            fix = "See which there are: kubectl get workloadpriorityclasses"
            return Finding("priority", FAILED, f"there is no WorkloadPriorityClass {name}", fix)
        if error.kind != answers.FORBIDDEN:
            raise
        return Finding("priority", OK, f"{name}, which you may not look at")
    return Finding("priority", OK, f"{name}: {found.get('value')}")


# ---- what would be created -------------------------------------------------------------------------------------


def _account(place: Place) -> Finding:
    name = place.plan.cloud["service_account"] or "default"
    try:
        place.api.get(f"/api/v1/namespaces/{place.namespace}/serviceaccounts/{name}")
    except ApiError as error:
        if error.kind == answers.ABSENT:
            fix = f"Make it: kubectl create serviceaccount {name} -n {place.namespace}"
            return Finding("service account", FAILED, f"{place.namespace} has no service account {name}", fix)
        if error.kind != answers.FORBIDDEN:
            raise
        return Finding("service account", OK, f"pods run as {name}, which you may not look at")
    return Finding("service account", OK, f"pods run as {name}")


def rendered(plan: Plan, placement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JobSet that a first attempt of some job would have."""
    limit = sum(float(value or 0.0) for value in (plan.limits.provision, plan.limits.run))
    intent = Intent(1, "0" * 16, dict(placement), limit, 0.0)
    staged = Staged(None, "", "", (), (), (), (), None, "")
    return manifest.render(Submission(plan, staged, "job-000000000000", "0" * 64, intent, {}))


def _sample(place: Place) -> dict[str, Any]:
    plan, zone = place.plan, f"{place.cluster}/{place.namespace}"
    name = names.slice_of(plan.store, plan.deployment, "job-000000000000", 1)
    queue = next(iter(queues_of(plan.cloud["queue"])), "")
    return rendered(plan, {"zone": zone, "name": name, "queue": queue, "hosts": plan.hosts, "slices": plan.slices})


def _set(place: Place) -> Finding:
    """Try the very manifest: it passes authorization, the schema and all webhooks, and is not stored."""
    path = f"/apis/{manifest.API}/namespaces/{place.namespace}/jobsets"
    try:
        place.api.create(path, _sample(place), dry_run=True)
    except ApiError as error:
        if error.kind != answers.EXISTS:
            return _refusal(error, place)
    return Finding("dry run", OK, f"{place.namespace} accepts the JobSet; none was stored")


def _refusal(error: ApiError, place: Place) -> Finding:
    if error.kind == answers.UNREACHABLE:
        raise error
    if error.kind == answers.UNSERVED:
        return _no_jobset(place)
    if error.kind == answers.ABSENT:
        return _no_namespace(place)
    if error.kind == answers.BUSY or error.is_quota:
        fix = "A job would wait until it is accepted, or ask the next place"
        return Finding("dry run", WARNING, f"{place.namespace} does not accept the JobSet now: {error.words}", fix)
    fix = "An administrator of the cluster knows the rule that the message names"
    if "strict decoding error" in error.words:
        fix = f"JobSet is too old there, and has no such field. {INSTALL}"
    return Finding("dry run", FAILED, f"{place.namespace} refuses the JobSet: {error.words}", fix)


def _pod(place: Place) -> Finding:
    """Try a pod of the set, too, if the caller may create pods: only a pod meets the namespace's quota and security."""
    if not _may(place, rights.Right("", "pods", "create", "")):
        told = "you may not create pods yourself, so quota and Pod Security are met only by those of a job"
        return Finding("pod", OK, f"not tried: {told}")
    spec = manifest.pod_spec(_sample(place))
    metadata = {"generateName": "ko-doctor-", "labels": {}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        place.api.create(f"/api/v1/namespaces/{place.namespace}/pods", body, dry_run=True)
    except ApiError as error:
        if error.kind == answers.UNREACHABLE:
            raise
        if error.kind == answers.ABSENT:
            return _no_namespace(place)._replace(name="pod")
        why = waiting.of_refusal(error.words)
        state = FAILED if why is None or why.cause else WARNING
        fix = why.message if why else "An administrator of the cluster knows the rule"
        return Finding("pod", state, f"{place.namespace} would refuse the pods: {error.words}", _sentence(fix))
    return Finding("pod", OK, f"{place.namespace} accepts a pod of the set; none was stored")


# ---- nodes -----------------------------------------------------------------------------------------------------


def _nodes(place: Place) -> Finding:
    pod, wanted = manifest.pod_spec(_sample(place)), place.plan.hosts
    try:
        there = place.api.list("/api/v1/nodes", cached=True)
    except ApiError as error:
        if error.kind != answers.FORBIDDEN:
            raise
        return Finding("nodes", OK, "you may not list them: why a pod waits is told once one does")
    fitting = sum(_fits(node, pod) for node in there)
    if fitting:
        few = f"; {place.plan.slice.name} needs {wanted} at once" if fitting < wanted else ""
        return Finding("nodes", OK, f"{fitting} of {len(there)} can run a host of {place.plan.slice.name}{few}")
    found = f"none of {len(there)} can run a host of {place.plan.slice.name}"
    if (maker := _maker(place, pod, there)) is not None:
        return Finding("nodes", OK, f"{found} now; {maker} may make some")
    return Finding("nodes", WARNING, found, _pool(place, pod))


def _fits(node: Object, pod: Object) -> bool:
    """True if the node has the labels and the chips that the pod asks for, and no taint that it does not tolerate."""
    labels, taints = node["metadata"].get("labels", {}), node.get("spec", {}).get("taints", ())
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pod.get("affinity", {}).get("nodeAffinity", {}).get(required, {}).get("nodeSelectorTerms", ())
    chosen = [{one["key"]: one["values"] for one in term["matchExpressions"]} for term in terms] or [{}]
    has = node.get("status", {}).get("allocatable", {})
    limits = pod["containers"][0]["resources"].get("limits", {})
    return (
        not node.get("spec", {}).get("unschedulable")
        and all(labels.get(key) == value for key, value in pod.get("nodeSelector", {}).items())
        and any(all(labels.get(key) in values for key, values in term.items()) for term in chosen)
        and all(int(has.get(resource, "0")) >= int(count) for resource, count in limits.items())
        and all(_tolerates(pod, taint) for taint in taints if taint.get("effect") in _NO_POD)
    )


def _tolerates(pod: Object, taint: Object) -> bool:
    return any(
        one["key"] == taint["key"]
        and one.get("effect") in (None, taint["effect"])
        and (one["operator"] == "Exists" or one.get("value") == taint.get("value", ""))
        for one in pod.get("tolerations", ())
    )


def _maker(place: Place, pod: Object, there: Sequence[Object]) -> str | None:
    """Return what makes nodes for such pods once one waits; None if nothing is known to."""
    provisions, chosen = place.api.access.provisions, pod.get("nodeSelector", {})
    if EVERYTHING in provisions or any(node["metadata"]["name"].startswith(_OF_AUTOPILOT) for node in there):
        return "Autopilot"
    if name := chosen.get(gke.COMPUTE_CLASS):
        try:
            place.api.get(f"/apis/cloud.google.com/v1/computeclasses/{name}")
        except ApiError as error:
            return None if error.kind in (answers.ABSENT, answers.UNSERVED) else f"the compute class {name}"
        return f"the compute class {name}"
    if provisions and (_limited(place) in provisions or place.plan.slice.kind == "cpu"):
        return "the cluster's auto-provisioning"
    return _autoscaler(place.api, there)


def _limited(place: Place) -> str:
    """Return the type of an accelerator by which auto-provisioning is limited; "" for none."""
    labels = nodes.node(place.plan.slice).labels
    return labels.get(nodes.GPU_ACCELERATOR) or labels.get(nodes.TPU_ACCELERATOR) or ""


def _autoscaler(api: Api, there: Sequence[Object]) -> str | None:
    """Return the name of an autoscaler that has left a trace."""
    if any("karpenter.sh/nodepool" in node["metadata"].get("labels", {}) for node in there):
        return "Karpenter"
    try:
        api.get("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status")
    except ApiError:
        return None
    return "the cluster's autoscaler"


def _pool(place: Place, pod: Object) -> str:
    """Return what gives the cluster such nodes: of GKE the command, elsewhere what they must have."""
    if name := pod.get("nodeSelector", {}).get(gke.COMPUTE_CLASS):
        return f"There is no compute class {name} that makes them: see those there are: kubectl get computeclasses"
    if (found := _gke(place)) is not None:
        project, location, cluster = found
        zone = location if location.count("-") > 1 else f"{location}-ZONE"
        try:
            command = nodes.pool_command(
                place.plan.slice,
                cluster=cluster,
                location=location,
                zone=zone,
                project=project,
                **gke.capacity_of(pod)._asdict(),
            )
        except KineticError as error:
            return str(error)
        lacks = _limited(place) if place.api.access.provisions else ""
        told = f"; or give auto-provisioning a limit for {lacks}, which it has none for" if lacks else ""
        return f"A job would wait for ever. Make a pool that is empty until a pod needs it:\n{command}{told}"
    limits = pod["containers"][0]["resources"].get("limits", {})
    chips = [f"{count} of {resource}" for resource, count in limits.items()]
    asked = ", ".join([*chips, *filter(None, [manifest.wanted(pod)])]) or "no taint"
    return f"A job would wait for ever. Each host needs a node with {asked}; taints: cloud=Kubernetes(tolerations=[…])"


def _gke(place: Place) -> gke.Cluster | None:
    """Return the cluster; None if it is not known to be one of GKE."""
    if place.plan.project:
        return gke.Cluster(place.plan.project, "LOCATION", place.cluster)
    return gke.cluster_of(place.cluster)


def _number(version: str) -> tuple[int, ...]:
    """The first two numbers of v1.36.3-gke.5; (0,) if it is none."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0,)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
