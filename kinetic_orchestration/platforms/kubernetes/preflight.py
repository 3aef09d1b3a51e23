"""Checks before a job is submitted that a cluster will let it run: access, JobSet, namespace, rights, queue, admission.

Every failed check names what fixes it. A submitter checks once in ten minutes (`require`), in two requests, and one
more for each queue and a priority class; `doctor` on every call, and more (`examine`); `plan --admission` what the job
that it shows would meet (`admission`). Whether a node is free is never a reason to refuse: a pool may be empty until a
pod waits for it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError, CredentialsError, KineticError, UsageError
from kinetic_orchestration.host.machine.pod import account
from kinetic_orchestration.plan.declare.cloud import queues_of
from kinetic_orchestration.plan.hardware import accelerators, nodes
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import gke, manifest, rights
from kinetic_orchestration.platforms.kubernetes.api import answers, kueue
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.observing import pools, waiting
from kinetic_orchestration.platforms.shared.cluster_access import ClusterGone, Policy, Pool
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import REQUESTS, at_once
from kinetic_orchestration.protocol.wire.task import Environment

Object = Mapping[str, Any]

LASTS = 600.0
HURRY = 5.0  # seconds for a connection or a repetition, while a user waits for the answer
LEAST_SERVER = (1, 29)  # which first honours podReplacementPolicy
LEAST_JOBSET = (0, 8)
NEWEST_JOBSET = "v0.12.0"  # with which it was tried
JOBSET_MANIFEST = "https://github.com/kubernetes-sigs/jobset/releases/download/{}/manifests.yaml"
INSTALL = f"Install it, as an administrator: kubectl apply --server-side -f {JOBSET_MANIFEST.format(NEWEST_JOBSET)}"
_LOOK = "Look, or have somebody look who may:"
_INSIDE = ("queue", "service account", "pod")  # findings about what is in a namespace
_FOR_EVER = "A job would wait for ever."
_OF_AUTOPILOT = "gk3-"  # how names of its nodes begin


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

    All places are asked at the same time. Of several clusters, one that does not answer or is no more is left out, if
    another one does.

    Args:
        plan: The job's plan.
        open_api: Returns the API of a cluster, by its name in the plan.

    Raises:
        BackendError: A cluster lacks something, or none answers.
        CredentialsError: One does not accept the client.
    """
    checked = at_once([partial(_checked, plan, where, open_api) for where in plan.zones], REQUESTS)
    silent = [error for error in checked if error is not None]
    if silent and len(silent) == len(plan.zones):  # what the client met on its way is in the words
        raise BackendError(f"nothing was submitted: {silent[0]}", wire.CONFIGURATION) from None


def _checked(plan: Plan, where: str, open_api: Callable[[str], Api]) -> ApiError | ClusterGone | None:
    """Return why a place cannot be asked; None if it passes, or passed a short while ago. Raises as `require` does."""
    chosen = queues_of(plan.cloud["queue"]), plan.cloud["priority_class"]
    key = os.getpid(), plan.backend, where, *chosen, *_wanted(plan), *_named_secrets(plan), *_asked_of_pools(plan)
    with _lock:
        if time.monotonic() - _passed.get(key, -LASTS) < LASTS:
            return None
    try:
        with Place.opened(plan, where, open_api) as place:
            failed = [found for found in _needed(place) if found.state == FAILED]
    except ApiError as error:
        return None if error.kind == answers.BUSY else error  # which a create call waits out
    except ClusterGone as error:
        return error
    if failed:
        text = "\n".join(f"  {finding.name}: {finding.found}. {finding.fix}".rstrip() for finding in failed)
        raise BackendError(f"{where} is not ready for this job, and nothing was submitted:\n{text}", "configuration")
    with _lock:
        _passed[key] = time.monotonic()
    return None


def examine(plan: Plan, where: str, open_api: Callable[[str], Api]) -> Iterator[Finding]:
    """Run all checks of one place, even after a failure; those after the access concurrently. Of several places, each
    finding names its own."""
    try:
        with Place.opened(plan, where, open_api) as place:
            for found in _examined(place):
                yield found if len(plan.zones) == 1 else _of_place(found, place)
    except (BackendError, CredentialsError) as error:
        if len(plan.zones) == 1:
            raise
        yield Finding("cluster", FAILED, f"{where}: there is no way to it", str(error))


def _of_place(found: Finding, place: Place) -> Finding:
    known = place.api.access.cluster
    context = f"gke_{known.project}_{known.location}_{known.name}" if known is not None else place.cluster
    fix = found.fix.replace("kubectl ", f"kubectl --context={context} ")
    return found._replace(found=f"{place.cluster}/{place.namespace}: {found.found}", fix=fix)


def _examined(place: Place) -> Iterator[Finding]:
    plan = place.plan
    try:
        yield _server(place)
    except (ApiError, CredentialsError) as error:
        yield Finding("cluster", FAILED, f"{place.cluster} cannot be asked", str(error))
        return
    access = place.api.access
    checks = [
        _jobset,
        _namespace,
        _rights,
        *([_queues, _priority] if queues_of(plan.cloud["queue"]) else []),
        *([_disk] if queues_of(plan.cloud["queue"]) and access.is_autopilot else []),
        _account,
        *([_secrets] if _named_secrets(plan) else []),
        _set,
        _pod,
        _nodes,
        *([_pools] if access.pools is not None and plan.slice.kind != "cpu" else []),
        *([_identity] if access.identities is not None else []),
    ]
    found = at_once([partial(_tried, check, place) for check in checks], len(checks))
    named = {finding.name: finding for finding in found}  # the set may say of others what they lack
    told = {
        _no_namespace(place): f"there is no namespace {place.namespace}",
        _going_namespace(place): f"the namespace {place.namespace} is being deleted",
    }.get(named["namespace"], "")
    for finding in named.values():
        is_inside = told and finding.name in _INSIDE and finding.state != OK
        yield finding._replace(found=told, fix="") if is_inside else finding


def admission(plan: Plan, where: str, open_api: Callable[[str], Api]) -> Iterator[Finding]:
    """Ask one place what a submit would ask, and try a pod of the set if that finds nothing amiss. Nothing is stored.

    Raises:
        ApiError: The cluster does not answer.
        CredentialsError: It does not accept the client.
    """
    with Place.opened(plan, where, open_api) as place:
        found = list(_needed(place))
        yield from found
        if all(finding.state != FAILED for finding in found):
            yield _tried(_pod, place)


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
    if _named_secrets(place.plan):
        yield _secrets(place)
    pod = manifest.pod_spec(_sample(place))
    if _lacks_pool(place, pod) and not any(_fits(node, pod) for node in _listed(place) or ()):
        yield Finding("nodes", FAILED, _no_pool(place), f"{_FOR_EVER} {_pool(place, pod)}")


def _asked_of_pools(plan: Plan) -> tuple[str, ...]:
    """Return what tells a job from another one that other pools may have nodes for."""
    if plan.backend != "gke":
        return ()
    asked = ("node_selector", "tolerations", "reservation", "flex_start", "queued_provisioning")
    return str(plan.slice), str(plan.spot), *(repr(plan.cloud[name]) for name in asked)


# ---- the cluster -----------------------------------------------------------------------------------------------


def _server(place: Place) -> Finding:
    access = place.api.access
    version = str(place.api.get("/version").get("gitVersion", ""))
    who = answers.escaped(_who(place.api)) or "somebody whom the cluster does not name"
    found = f"{access.origin}: {access.server}, Kubernetes {version}, as {who}"
    if answers.number_of(version) < LEAST_SERVER:
        least = ".".join(map(str, LEAST_SERVER))
        return Finding("cluster", WARNING, found, f"Jobs need what Kubernetes has from {least} on: upgrade it")
    return Finding("cluster", OK, found)


def _who(api: Api) -> str:
    """Return the name by which the cluster knows this client; "" if it does not say."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    except ApiError:
        return ""
    return str(found.get("status", {}).get("userInfo", {}).get("username") or "")


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
    if (0,) < answers.number_of(version) < LEAST_JOBSET:
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
        return _going_namespace(place)
    return Finding("namespace", OK, place.namespace)


def _going_namespace(place: Place) -> Finding:
    fix = "Name another with KINETIC_NAMESPACE or namespace=, or make it anew once it is gone"
    return Finding("namespace", FAILED, f"{place.namespace} is being deleted", fix)


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
    grant = rights.grant(_who(place.api), place.namespace, queues_of(place.plan.cloud["queue"]))
    fix = f"Have an administrator grant them: {grant}"
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
        found = _of_kueue(place.api, f"namespaces/{place.namespace}/localqueues/{name}")
    except ApiError as error:
        if error.kind == answers.UNSERVED:
            return _no_kueue(place, name)
        if error.kind == answers.ABSENT:
            fix = (
                f"See which there are: kubectl get localqueues -n {place.namespace}; name one with Kubernetes(queue=…) "
                "or KINETIC_QUEUE"
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
        fix = (
            "Unless Kueue's configuration excludes it, no job gets through: name another queue, or have an "
            f"administrator add it to the cluster queue {cluster_queue}"
        )
        return Finding("queue", WARNING, told, fix)
    pending = found.get("status", {}).get("pendingWorkloads", 0)
    return Finding("queue", OK, f"{name} of the cluster queue {cluster_queue}, {pending} waiting")


def _of_kueue(api: Api, path: str) -> Object:
    return kueue.ask(api, lambda version: api.get(f"/apis/{kueue.GROUP}/{version}/{path}"))


def _no_kueue(place: Place, queue: str) -> Finding:
    there = " and ".join(kueue.served(place.api))
    lacks = f" that serves {' or '.join(kueue.VERSIONS)}, but one of {there}" if there else ""
    fix = "Have it installed, or leave out queue= and KINETIC_QUEUE: https://kueue.sigs.k8s.io/docs/installation"
    return Finding("queue", FAILED, f"{queue} is asked for, and {place.cluster} has no Kueue{lacks}", fix)


def _priority(place: Place) -> Finding:
    name = place.plan.cloud["priority_class"]
    if not name:
        return Finding("priority", OK, "that of the queue's own: no priority_class is named")
    try:
        found = _of_kueue(place.api, f"workloadpriorityclasses/{name}")
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
    """Look at the account of the pods, and at what Google grants it: as far as the caller may, and no further."""
    name, bucket = place.plan.cloud["service_account"] or "default", _bucket_of(place.plan)
    told, pool = f"pods run as {name}", _pool_of_identities(place)
    try:
        found = place.api.get(f"/api/v1/namespaces/{place.namespace}/serviceaccounts/{name}")
    except ApiError as error:
        if error.kind == answers.ABSENT:
            fix = f"Make it: kubectl create serviceaccount {name} -n {place.namespace}"
            return _of_account(FAILED, f"{place.namespace} has no service account {name}", fix)
        if error.kind != answers.FORBIDDEN:
            raise
        told = f"{told}, which you may not look at"
        if not (pool and bucket):
            return _of_account(OK, told)
        look = f"{_LOOK} kubectl get serviceaccount {name} -n {place.namespace} -o yaml; {_see_bucket(bucket)}"
        return _of_account(WARNING, f"{told}: what it may do with {bucket} is not looked at", look)
    google = str(found["metadata"].get("annotations", {}).get(gke.STANDS_FOR) or "")
    if not pool:
        return _of_account(OK, told)
    told = f"{told}, which stands for {answers.escaped(google)}" if google else told
    if google and re.fullmatch(gke.GOOGLE_ACCOUNT, google) is None:
        fix = f"The annotation {gke.STANDS_FOR} of {name} has to be NAME@PROJECT.iam.gserviceaccount.com: correct it"
        return _of_account(FAILED, f"{told}, and no service account of Google is called so", fix)
    identity = gke.Identity(pool, place.namespace, name, google)
    parts = [*([_acts(place, identity)] if google else []), *([_uses(place, identity, bucket)] if bucket else [])]
    worst = next((state for state in (FAILED, WARNING) if any(part.state == state for part in parts)), OK)
    fixes = "\n".join(part.fix for part in parts if part.fix)
    return _of_account(worst, "; ".join([told, *(part.found for part in parts)]), fixes)


def _of_account(state: str, found: str, fix: str = "") -> Finding:
    return Finding("service account", state, found, fix)


def _bucket_of(plan: Plan) -> str:
    """Return the bucket of the store, as gs://NAME; "" for a store elsewhere."""
    return "/".join(plan.store.split("/")[:3]) if plan.store.startswith("gs://") else ""


def _pool_of_identities(place: Place) -> str:
    """Return the pool of those that pods have; "" for none, or if the cluster is not known to be one of GKE."""
    known = place.api.access.cluster or gke.cluster_of(place.cluster)
    if place.api.access.identities is None and known is not None:
        return f"{known.project}.svc.id.goog"
    return place.api.access.identities or ""


def _acts(place: Place, identity: gke.Identity) -> Finding:
    """Say whether the service account of Google lets pods act as it."""
    google, see = identity.google, f"{_LOOK} gcloud iam service-accounts get-iam-policy {identity.google}"
    policy = _policy(place, google)
    if policy.absent:
        name, _, domain = google.partition("@")
        make = f"Make it: gcloud iam service-accounts create {name} --project={domain.partition('.')[0]}"
        return _of_account(FAILED, f"there is no {google}", f"{make}; and let pods act as it: {identity.let_act()}")
    if policy.unread:
        return _of_account(
            WARNING, f"whether {google} lets it act so is not looked at: {answers.escaped(policy.unread)}", see
        )
    acts = identity.acts(policy)
    if acts is None:
        return _of_account(WARNING, f"{google} lets it act so under a condition, which is not looked at", see)
    if not acts:
        told = f"{google} does not let it act so, unless its project does, which is not looked at"
        return _of_account(WARNING, told, f"Let it: {identity.let_act()}")
    return _of_account(OK, f"{google} lets it act so")


def _uses(place: Place, identity: gke.Identity, bucket: str) -> Finding:
    """Say whether a bucket lets pods use it."""
    policy = _policy(place, bucket)
    if policy.absent:
        return _of_account(WARNING, f"there is no bucket {bucket} to which anything could be granted")
    if policy.unread:
        why = answers.escaped(policy.unread)
        return _of_account(WARNING, f"what {bucket} grants is not looked at: {why}", f"{_LOOK} {_see_bucket(bucket)}")
    uses = identity.uses(policy)
    if uses is None:
        told = f"{bucket} grants it a role under a condition, or one of your own, which is not looked at"
        return _of_account(WARNING, told, f"See that it has all of {account.ROLE}: {_see_bucket(bucket)}")
    if not uses:
        told = f"{bucket} does not let it read and write, unless its project does, which is not looked at"
        return _of_account(WARNING, told, f"Let it: {identity.let_use(bucket)}")
    return _of_account(OK, f"{bucket} lets it read and write")


def _see_bucket(bucket: str) -> str:
    return f"gcloud storage buckets get-iam-policy {bucket}"


def _policy(place: Place, resource: str) -> Policy:
    ask = place.api.access.policy
    return ask(resource) if ask is not None else Policy(unread=f"the backend {place.plan.backend} asks Google nothing")


def _identity(place: Place) -> Finding:
    """Say where pods of GKE are whoever their node is, and not the service account that they run as."""
    access, cluster = place.api.access, place.api.access.cluster
    assert cluster is not None
    where = f"--project={cluster.project} --location={cluster.location}"
    if not access.identities:
        fix = (
            f"Let them have one: gcloud container clusters update {cluster.name} {where} "
            f"--workload-pool={cluster.project}.svc.id.goog"
        )
        return Finding("identity", WARNING, f"pods of {place.cluster} have none of their own but their node's", fix)
    found = _suitable(place, manifest.pod_spec(_sample(place)))
    if without := [pool.name for pool in found if not pool.metadata_server]:
        fix = (
            f"gcloud container node-pools update {without[0]} --cluster={cluster.name} {where} "
            "--workload-metadata=GKE_METADATA"
        )
        return Finding("identity", WARNING, f"pods in {', '.join(without)} have none of their own", fix)
    return Finding("identity", OK, f"pods have one of {access.identities}")


def _named_secrets(plan: Plan) -> list[str]:
    """Return the Secrets of the namespace without which pods of the plan do not start."""
    kept = {} if plan.traits.secret_service else plan.secret_refs
    taken = {manifest.secret_key(variable, reference)["name"] for variable, reference in kept.items()}
    return sorted(taken | {*plan.cloud["env_from"]})


def _secrets(place: Place) -> Finding:
    """Look whether the Secrets are there, and not at what they hold. Jobs run without the right to look."""
    wanted = _named_secrets(place.plan)
    path = f"/api/v1/namespaces/{place.namespace}/secrets"
    try:
        absent = [name for name in wanted if not place.api.is_there(f"{path}/{name}")]
    except ApiError as error:
        if error.kind not in (answers.FORBIDDEN, answers.BUSY):
            raise
        why = "you have no right to read them" if error.kind == answers.FORBIDDEN else str(error)
        return Finding("secrets", OK, f"{', '.join(wanted)}: not looked at: {why}")
    if absent:
        fix = (
            f"Make it, with the entries that the job takes: kubectl create secret generic {absent[0]} "
            f"-n {place.namespace} --from-literal=KEY=…"
        )
        return Finding("secrets", FAILED, f"{place.namespace} has no Secret {', '.join(absent)}", fix)
    return Finding("secrets", OK, f"{', '.join(wanted)}; what they hold is not looked at")


def rendered(plan: Plan, placement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JobSet that a first attempt of some job would have, with the Python that it asks for, or this one."""
    limit = sum(float(value or 0.0) for value in (plan.limits.provision, plan.limits.run))
    intent = Intent(1, "0" * 16, dict(placement), limit, 0.0)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    environment = Environment("", python=plan.cloud.get("python") or own)
    staged = Staged(None, "", "", (), (), (), (), environment, "")
    return manifest.render(Submission(plan, staged, "job-000000000000", "0" * 64, intent, {}))


def _sample(place: Place) -> dict[str, Any]:
    plan, zone = place.plan, f"{place.cluster}/{place.namespace}"
    name = names.slice_of(plan.store, plan.deployment, "job-000000000000", 1)
    queue = next(iter(queues_of(plan.cloud["queue"])), "")
    placement = {"zone": zone, "name": name, "queue": queue, "hosts": plan.hosts, "slices": plan.slices}
    return rendered(plan, {**placement, "autopilot": place.api.access.is_autopilot})


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
    if error.lacks_namespace:
        return _going_namespace(place)
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
        if error.lacks_namespace:
            return _going_namespace(place)._replace(name="pod")
        why = waiting.of_refusal(error.words)
        state = FAILED if why is None or why.cause else WARNING
        fix = why.message if why else "An administrator of the cluster knows the rule"
        return Finding("pod", state, f"{place.namespace} would refuse the pods: {error.words}", _sentence(fix))
    return Finding("pod", OK, f"{place.namespace} accepts a pod of the set; none was stored")


def _disk(place: Place) -> Finding:
    """Say what Autopilot gives to pods that request no disk, since a queue would refuse what it has no quota of."""
    fix = (
        "Bring the packages in an image (container_image=), leave out the queue, or have an administrator give the "
        f"namespace a LimitRange by which containers request {nodes.DISK} of ephemeral-storage, and the queue a quota "
        "of that"
    )
    told = "pods of a queue request none, of which it may have no quota, and Autopilot gives each 1 GiB"
    return Finding("disk", WARNING, told, fix)


# ---- nodes -----------------------------------------------------------------------------------------------------


def _nodes(place: Place) -> Finding:
    pod, wanted = manifest.pod_spec(_sample(place)), place.plan.hosts
    there = _listed(place)
    if there is None and _lacks_pool(place, pod):
        return Finding("nodes", FAILED, _no_pool(place), f"{_FOR_EVER} {_pool(place, pod)}")
    if there is None:
        return Finding("nodes", OK, "you may not list them: why a pod waits is told once one does")
    found_by = [node for node in there if _fits(node, pod)]
    fitting = sum(not _is_taken_away(node, place.plan) for node in found_by)
    if found_by and not fitting:
        only = f"only {len(found_by)} of spot capacity or flex-start can run a host of {place.plan.slice.name}"
        return Finding("nodes", WARNING, f"{only}, and nothing keeps a job off them", _pool(place, pod))
    if fitting:
        few = f"; {place.plan.slice.name} needs {wanted} at once" if fitting < wanted else ""
        return Finding("nodes", OK, f"{fitting} of {len(there)} can run a host of {place.plan.slice.name}{few}")
    found = f"none of {len(there)} can run a host of {place.plan.slice.name}"
    alike = _alike(pod, there)
    lacks_pool = _lacks_pool(place, pod)
    if not lacks_pool and (maker := _maker(place, pod, there)) is not None:
        return Finding("nodes", OK, f"{found} now{alike}; {maker} may make some")
    state = FAILED if lacks_pool else WARNING
    return Finding("nodes", state, f"{found}{alike}", f"{_FOR_EVER} {_pool(place, pod, there)}")


def _alike(pod: Object, there: Sequence[Object]) -> str:
    """Say what shapes the nodes of the same TPUs have, if none has that of the pod; "" otherwise."""
    chosen, count = pod.get("nodeSelector", {}), pod["containers"][0]["resources"].get("limits", {}).get(nodes.TPU)
    kind, wanted = chosen.get(nodes.TPU_ACCELERATOR), (chosen.get(nodes.TPU_TOPOLOGY), str(count))
    same = [node for node in there if kind and node["metadata"].get("labels", {}).get(nodes.TPU_ACCELERATOR) == kind]
    shapes = {
        (one["metadata"]["labels"].get(nodes.TPU_TOPOLOGY), one.get("status", {}).get("allocatable", {}).get(nodes.TPU))
        for one in same
    }
    if not same or wanted in shapes:  # something else keeps the pod from those
        return ""
    told = ", ".join(sorted(f"{topology or 'none'} with {chips or 0} chips a node" for topology, chips in shapes))
    return answers.escaped(f": the nodes of {kind} have the topology {told}, and it needs {wanted[0]} with {wanted[1]}")


def _listed(place: Place) -> Sequence[Object] | None:
    """Return the nodes of the cluster; None if the caller may not list them."""
    try:
        return place.api.list("/api/v1/nodes", cached=True)
    except ApiError as error:
        if error.kind != answers.FORBIDDEN:
            raise
        return None


def _suitable(place: Place, pod: Object) -> list[Pool]:
    """Return the pools that can have nodes for the pod, of those that are known."""
    node = nodes.node(place.plan.slice)
    return [pool for pool in place.api.access.pools or () if pools.fits(pool, node, pod)]


def _lacks_pool(place: Place, pod: Object) -> bool:
    """Return True if all pools are known, none can ever have a node for the pod, and nothing makes another pool."""
    access = place.api.access
    if pools.names_none(access, pod):
        return True
    if access.pools is None or access.provisions or gke.COMPUTE_CLASS in pod.get("nodeSelector", {}):
        return False
    return not _suitable(place, pod)


def _no_pool(place: Place) -> str:
    names = ", ".join(pool.name for pool in place.api.access.pools or ()) or "none"
    return f"no pool of {place.cluster} can run a host of {place.plan.slice.name} (there are: {names})"


def _pools(place: Place) -> Finding:
    """Say of the pools that suit what costs money while nothing runs, or ends a job early."""
    plan, found = place.plan, _suitable(place, manifest.pod_spec(_sample(place)))
    limit = float(plan.limits.run or 0.0)
    told = [
        *(f"{pool.name} keeps {pool.least} nodes while nothing runs" for pool in found if pool.scales and pool.least),
        *(f"{pool.name} has no autoscaling: its nodes cost while nothing runs" for pool in found if not pool.scales),
        *(
            f"the machines of {pool.name} are taken away after {pool.lasts:g} s, and limits.run is {limit:g} s"
            for pool in found
            if 0 < pool.lasts < limit
        ),
    ]
    most = sum(pool.most for pool in found)
    if found and all(pool.scales for pool in found) and most < plan.hosts and not place.api.access.provisions:
        told.append(f"all together have {most} nodes at most, and the job has {plan.hosts} hosts")
    if told:
        fix = "Change a pool: gcloud container node-pools update NAME --enable-autoscaling --min-nodes=0 --max-nodes=…"
        return Finding("pools", WARNING, "; ".join(told), fix)
    return Finding("pools", OK, ", ".join(pool.name for pool in found) or "none of this kind")


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
        and all(pools.tolerates(pod, taint) for taint in taints if taint.get("effect") in pools.KEEPS_AWAY)
    )


def _is_taken_away(node: Object, plan: Plan) -> bool:
    """Return True for a node of spot capacity or flex-start, where the plan asks for neither."""
    labels = node["metadata"].get("labels", {})
    of_spot = any(labels.get(key) == value for key, value in manifest.SPOT)
    of_flex_start = labels.get(nodes.FLEX_START[0]) == nodes.FLEX_START[1]
    asks_for_it = nodes.FLEX_START in gke.taints(plan)
    return (of_spot and not (plan.spot or plan.slice.spot)) or (of_flex_start and not asks_for_it)


def _maker(place: Place, pod: Object, there: Sequence[Object]) -> str | None:
    """Return what makes nodes for such pods once one waits; None if nothing is known to."""
    provisions, chosen = place.api.access.provisions, pod.get("nodeSelector", {})
    if place.api.access.is_autopilot or any(node["metadata"]["name"].startswith(_OF_AUTOPILOT) for node in there):
        return "Autopilot"
    if name := chosen.get(gke.COMPUTE_CLASS):
        try:
            place.api.get(f"/apis/cloud.google.com/v1/computeclasses/{name}")
        except ApiError as error:
            return None if error.kind in (answers.ABSENT, answers.UNSERVED) else f"the compute class {name}"
        return f"the compute class {name}"
    if provisions and (_limited(place) in provisions or place.plan.slice.kind == "cpu"):
        return "the cluster's auto-provisioning"
    if place.api.access.pools is None:
        return _autoscaler(place.api, there)
    scaled = ", ".join(pool.name for pool in _suitable(place, pod) if pool.scales)
    return f"the autoscaler of {scaled}" if scaled else None


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


def _otherwise(place: Place, pod: Object, there: Sequence[Object]) -> str:
    """Return how to ask for the slice's chips on the other number of hosts, if a pool, or one of the nodes `there`, has
    them so; else ""."""
    other = accelerators.otherwise(place.plan.slice)
    if other is None:
        return ""
    node = nodes.node(other)
    limits = {"resources": {"limits": {node.resource: str(node.count)}}}
    has = [pool.name for pool in place.api.access.pools or () if pools.fits(pool, node, pod)]
    if not has and not any(_fits(one, {**pod, "containers": [limits]}) for one in there):
        return ""
    named = f"The pool {has[0]} has" if has else "There are"
    way = f"with cloud=Kubernetes(hosts={other.hosts})" if other.hosts > 1 else "without hosts="
    hosts = "1 host" if other.hosts == 1 else f"{other.hosts} hosts, as Keras Kinetic makes them"
    return f"{named} {other.chips} such chips on {hosts}: ask for them {way}"


def _pool(place: Place, pod: Object, there: Sequence[Object] = ()) -> str:
    """Return what gives the cluster such nodes: of GKE the command, elsewhere what they must have."""
    if name := pod.get("nodeSelector", {}).get(gke.COMPUTE_CLASS):
        return f"There is no compute class {name} that makes them: see those there are: kubectl get computeclasses"
    plan, known = place.plan, place.api.access.cluster or gke.cluster_of(place.cluster)
    lacks = _sentence(pools.of_no_pool(place.api.access, nodes.node(plan.slice), pod))
    if pools.names_none(place.api.access, pod):
        return lacks
    other = _otherwise(place, pod, there)
    if known is not None:
        slice_ = replace(plan.slice, spot=plan.spot or plan.slice.spot)
        try:
            command = gke.pool_command(slice_, known, slices=plan.slices, **gke.capacity_of(pod)._asdict())
        except UsageError as error:
            return str(error)
        limited = _limited(place) if place.api.access.provisions else ""
        told = f"; or give auto-provisioning a limit for {limited}, which it has none for" if limited else ""
        first = "".join(f"{text}. " for text in (other, lacks) if text)
        make = "Or make" if other and not lacks else "Make"
        return f"{first}{make} a pool that is empty until a pod needs it:\n{command}{told}"
    limits = pod["containers"][0]["resources"].get("limits", {})
    chips = [f"{count} of {resource}" for resource, count in limits.items()]
    asked = ", ".join([*chips, *filter(None, [manifest.wanted(pod)])]) or "no taint"
    first = f"{other}. " if other else ""
    return f"{first}Each host needs a node with {asked}; taints: cloud=Kubernetes(tolerations=[…])"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
