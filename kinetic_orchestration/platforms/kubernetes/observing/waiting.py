"""The reasons for which pods do not run yet, each in one sentence with what helps: a table, pure.

Its rows are what the scheduler, the controllers and Kueue were seen to say. What no row knows is told in their own
words and waited out. It knows no client and no clock: how long a reason has lasted is its caller's matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.platforms.kubernetes import rights
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, escaped
from kinetic_orchestration.protocol import wire

Object = Mapping[str, Any]

AT_ONCE = 0.0
SOON = 20.0  # seconds in which what is created after the pods, such as their Secret, has come
GANG = 600.0  # for which hosts may hold chips while nodes of the others are made
HALF = 30.0  # for which a part of the hosts may hold chips while the others get none
ELSEWHERE = 60.0  # in which an autoscaler asks for the same machines in another zone
AGAIN = 10.0  # after which a kubelet has asked a registry for an image once more
TWICE = 25.0  # and twice after its first refusal
IMAGE = 120.0  # a registry may be out of order for that long
NEVER = "never has so much"  # in the reason of an end for want of quota that waiting does not change


class Why(NamedTuple):
    """A reason for waiting.

    Attributes:
        message: The reason, with what helps.
        cause: The cause with which the attempt ends if the reason lasts; "" if waiting helps.
        patience: Seconds that it may last.
    """

    message: str
    cause: str = ""
    patience: float = AT_ONCE


class Wanted(NamedTuple):
    """All that the pods of a set ask of their nodes, for users.

    Attributes:
        labels: The labels that nodes must have.
        pool: What makes a pool of such nodes; "" where that is not known.
    """

    labels: str = ""
    pool: str = ""


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    advice: str  # with the groups of the pattern, and what is wanted
    cause: str = ""
    patience: float = AT_ONCE


def _row(pattern: str, advice: str, cause: str = "", patience: float = AT_ONCE) -> _Row:
    return _Row(re.compile(pattern, re.S), advice, cause, patience)


_TOLERATE = "tolerate it with cloud=Kubernetes(tolerations=[…]), if the job may run there"
_TAINTED = r"had untolerated taint(?:\(s\))?( \{[^}]*\})?"  # which newer schedulers do not name
_NODES = "no node has the labels that the pods ask for ({labels}): {pool}"

# Of Kueue: the message of a workload's condition QuotaReserved. It names all flavors that were tried: if one of them
# only has no room now, waiting helps.
_WORKLOAD = (
    _row(r"LocalQueue (\S+) doesn't exist",
         "the namespace has no queue {0}: 'kubectl get localqueues' lists those it has", wire.CONFIGURATION),
    _row(r"ClusterQueue (\S+) doesn't exist",
         "the queue leads to a cluster queue that its administrator has to make", wire.CONFIGURATION, IMAGE),
    _row(r"(?:LocalQueue|ClusterQueue) \S+ is inactive", "the queue is stopped, and its administrator starts it again"),
    _row(r"namespace doesn't match ClusterQueue selector",
         "the queue does not serve this namespace: its administrator can change that, or name another queue",
         wire.CONFIGURATION),
    _row(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed",
         "other jobs hold what the queue has of {0}"),
    _row(r"insufficient quota for (\S+) in flavor (\S+), .*maximum capacity \((?:\S+ > )?(\S+)\)",
         f"the queue {NEVER}: ask for at most {{2}} of {{0}}, or name another queue", wire.QUOTA),
    _row(r"resource (\S+) unavailable in ClusterQueue",
         "the queue has no quota of {0}, which the pods request: its administrator adds that, or has Kueue leave it "
         "out of account (excludeResourcePrefixes)", wire.CONFIGURATION),
    _row(r"untolerated taint \{(\S+) (\S*) (\S*) [^}]*\} in flavor",
         f"the queue's nodes have the taint {{0}}={{1}}:{{2}}: {_TOLERATE}", wire.CONFIGURATION),
    _row(r"(?i)flavor \S+ supports only TopologyAwareScheduling",
         "the queue's flavors place only jobs that ask for a topology, which these do not: name another queue",
         wire.CONFIGURATION),
    _row(r"topology \S+ doesn't allow to fit",
         "the queue places all hosts near each other, and no part of its topology has room for them now"),
    _row(r"doesn't match node affinity",
         "no flavor of the queue has nodes with the labels that the pods ask for ({labels}): name a queue that has",
         wire.CONFIGURATION),
)  # fmt: skip
# Reasons of the same condition, which Kueue 0.19 tells apart, for messages that no row knows.
_RESERVED = {
    "NoMatchingFlavor": Why("no flavor of the queue has such nodes", wire.CONFIGURATION),
    "Misconfigured": Why("the queue's administrator has to mend it", wire.CONFIGURATION),
    "ExceedsMaxQuota": Why(f"the queue {NEVER}", wire.QUOTA),
    "WaitingForQuota": Why("other jobs hold what the queue has"),
    "WaitingForPreemptedWorkloads": Why("jobs of lower priority are ending to make room for it"),
    "WaitingForPodsReady": Why("Kueue admits the next job when all pods of the ones before run"),
    "TopologyPlacementFailed": Why("no part of the queue's topology has room for all hosts now"),
    "PendingEvaluation": Why("Kueue has not looked at it yet"),
}
# Reasons of the condition Evicted for which it waits to be admitted again, where Kueue's words leave the rest open.
_EVICTED = {
    "PodsReadyTimeout": "in the time that the administrator of Kueue gives (waitForPodsReady) not all of its pods ran",
    "NodeFailures": "a node of it failed, and the queue had no other one",
    "ClusterQueueStopped": "its administrator starts the queue again",
    "LocalQueueStopped": "its administrator starts the queue again",
    "AdmissionCheck": "its machines could not be had, and are asked for once more",
    "FlavorMigration": "the queue has capacity for it that it prefers",
}
# Reasons of the condition Evicted for which Kueue does not admit a workload again.
_DEACTIVATED = {
    "DeactivatedDueToAdmissionCheck": Why("the machines were not to be had", wire.STOCKOUT),
    "DeactivatedDueToRequeuingLimitExceeded": Why("its pods never came to run in the queue's time", wire.STOCKOUT),
    "DeactivatedDueToMaximumExecutionTimeExceeded": Why("the queue's own limit of time is over", wire.DEADLINE),
    "Deactivated": Why("somebody stopped it ('kueuectl stop workload'), and it waits until it is resumed"),
}

# Of controllers: the message of an event FailedCreate or JobCreationFailed, on the Job or the JobSet.
_FAILED_CREATE = (
    _row(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)",
         "the ResourceQuota {0} of the namespace leaves no room: it limits {3}, and {2} are used", wire.QUOTA, HALF),
    _row(r"failed quota: (\S+): must specify (\S+)",
         "the ResourceQuota {0} wants every pod to say its {1}: a LimitRange of the namespace can say it for "
         "those that do not", wire.CONFIGURATION, SOON),
    _row(r"error looking up service account (\S+)/(\S+): ",
         "the namespace {0} has no service account {1}: make it, or name another with "
         "cloud=Kubernetes(service_account=…)", wire.CONFIGURATION, SOON),
    _row(r"failed calling webhook", "the controller behind that webhook does not answer, and is waited for"),
    _row(r"Warden rejected the request.*?denied by ([^\]]+)",
         "GKE itself refuses such pods in this cluster by the rule {0}, as Autopilot does: change what it names, or "
         "take a Standard cluster", wire.CONFIGURATION, SOON),
    _row(r'violates PodSecurity "(\S+?):', "the namespace is {0}: with an image whose Python any user may run, "
         "cloud=Kubernetes(run_as_user=1000) meets that", wire.CONFIGURATION, SOON),
    _row(r"per (?:Container|Pod) is|less than or equal to \S+ limit",
         "a LimitRange of the namespace bounds pods below what the machine has: its administrator can raise it",
         wire.CONFIGURATION, SOON),
    _row(r"denied (?:the )?request|is forbidden",
         "the cluster's admission refuses the pods: its administrator knows the rule", wire.CONFIGURATION, SOON),
    _row(r"is invalid", "the cluster refuses the pods as they are", wire.CONFIGURATION, SOON),
)  # fmt: skip
# Ordinary while a set begins: followers of a slice wait for their leader's place, and a controller that is ahead of
# what it has read repeats itself.
_ORDINARY = re.compile(
    r"follower pod|leader pod|already exists|object has been modified|JobSet\.jobset\.x-k8s\.io \"\S+\" not found"
)

# Of the scheduler: the message of a pod's condition PodScheduled.
_HELD = re.compile(r"Insufficient (?:google\.com/tpu|nvidia\.com/gpu)|didn't match pod anti-affinity rules")
_UNSCHEDULABLE = (
    _row(_HELD.pattern, "other pods hold the chips of such nodes, or these have fewer than a pod asks for"),
    _row(r"Insufficient (cpu|memory|ephemeral-storage)", "no node has so much {0} free"),
    _row(rf"(?=.*didn't match Pod's node affinity).*{_TAINTED}",
         f"no node has the labels that the pods ask for ({{labels}}), or one that has them has a taint{{0}}: for the "
         f"first, {{pool}}; {_TOLERATE}"),
    _row(_TAINTED, f"nodes have a taint{{0}}: {_TOLERATE}"),
    _row(r"didn't match (?:Pod's )?node affinity", _NODES),
    _row(r"were unschedulable", "the nodes are closed for new pods, as for maintenance"),
    _row(r"scheduling gates", "the controller that chooses its place, such as Kueue, has not done so yet"),
    _row(r"no nodes available|0/0 nodes are available", "the cluster has no node yet: {pool}"),
)  # fmt: skip
# How the scheduler says that no pod can be evicted for this one either.
_NO_PREEMPTION = re.compile(r"\.?\s*(?:no new claims to deallocate, )?preemption: .*", re.S)

# Of an autoscaler: the messages of its events on a pod, by their reasons. GKE's own says some things as words with
# dots between them, which are the names that its log has for them.
_TOPOLOGY = r"tpu[ .](?:topology|configuration)[ .]invalid"
_NO_TOPOLOGY = "GKE has no machines of that topology ({labels}): 'kinor accelerators' lists those of each generation"
_TRIGGERED = "TriggeredScaleUp"
_NOT_TRIGGERED = "NotTriggerScaleUp"
_SCALING = {
    _TRIGGERED: (_row(r"", "nodes are being made"),),
    "FailedScaleUp": (
        _row(r"(?i)reservation\b.*capacity[ .]exceeded", "other machines hold all that the reservation has",
             wire.STOCKOUT, ELSEWHERE),
        _row(r"(?i)invalid[ .]reservation|reservation\b.*(?:not[ .]found|incompatible)",
             "see that the reservation exists, fits the machine and has room", wire.CONFIGURATION, IMAGE),
        _row(r"out[ .]of[ .]resources", "the zone has no such machines free now", wire.STOCKOUT, ELSEWHERE),
        _row(r"quota[ .]exceeded", "the project has no more quota of such machines: ask for more, or name another "
             "cluster", wire.QUOTA, ELSEWHERE),
        _row(r"(?i)ip[ ._]space\b.*exhausted", "the cluster's network has no address left for more nodes or pods: its "
             "administrator can give it another range, and nodes that go free theirs"),
        _row(_TOPOLOGY, _NO_TOPOLOGY, wire.CONFIGURATION, IMAGE),
        _row(r"service[ .]account[ .]deleted", "the service account of the pool's nodes was deleted: its administrator "
             "restores it ('gcloud iam service-accounts undelete'), or makes the pool anew", wire.CONFIGURATION, IMAGE),
        _row(r"reservation[ .]not[ .]ready", "the reservation is not ready yet, and is asked for again"),
        _row(r"waiting[ .]for[ .]instances[ .]timeout", "the machines did not come up in time", wire.STOCKOUT,
             ELSEWHERE),
        _row(r"", "the cluster could not make nodes, and tries again"),
    ),
    _NOT_TRIGGERED: (
        _row(r"in[ .]backoff", "the last machines could not be had, and it asks again in minutes"),
        _row(r"max node group size reached|max cluster .+ limit reached",
             "a pool of such nodes is as large as it may be: raise its maximum, or wait until other jobs end"),
        _row(_TOPOLOGY, _NO_TOPOLOGY, wire.CONFIGURATION, IMAGE),
        _row(r"no[ .]limit[ .]defined", "auto-provisioning has no limit for such chips: its administrator gives it one "
             "(gcloud container clusters update --enable-autoprovisioning --max-accelerator), or makes a pool: {pool}",
             wire.CONFIGURATION, IMAGE),
        _row(r"type[ .]not[ .]supported|pod[ .]tpu[ .]incompatible|accelerator[ .]count[ .]invalid",
             "auto-provisioning makes no machines with such chips, or not with so many: make a pool: {pool}",
             wire.CONFIGURATION, IMAGE),
        _row(r"missing[ .]placement[ .]policy|unusable[ .]reservation",
             "auto-provisioning cannot use the placement policy or the reservation that the pods name: see that it "
             "exists, in the cluster's zone and project", wire.CONFIGURATION, IMAGE),
        _row(r"didn't match (?:Pod's )?node affinity", _NODES, wire.CONFIGURATION, IMAGE),
        _row(_TAINTED, f"pools have a taint{{0}}: {_TOLERATE}",
             wire.CONFIGURATION, IMAGE),
        _row(r"Insufficient (\S+?)(?:,|$)", "no machine of a pool has so much {0}", wire.CONFIGURATION, IMAGE),
    ),
}  # fmt: skip

# Of the kubelet: the message for which a container waits, by its reason. The words of a pull are a registry's, as the
# node's runtime (containerd, CRI-O) hands them on; only a registry that was reached knows that it has no such image.
_UNAUTHORIZED = (
    r"(?i:unauthorized|forbidden|insufficient_scope|denied|authentication required|no basic auth credentials)"
)
_PULL = (
    _row(r"failed to resolve reference \S+ \S+: not found|manifest unknown|name unknown|repository \S+ not found",
         "the registry has no such image: see its name and its tag", wire.CONFIGURATION, AGAIN),
    _row(r"no match for platform|no matching manifest|for architecture",
         "the image has no variant for the nodes' processor: name one that has", wire.CONFIGURATION, AGAIN),
    _row(r"(?i)too ?many ?requests|internal server error|bad gateway|service unavailable|gateway time-?out",
         "the registry does not serve it now: a mirror, or an account at the registry, may have more",
         wire.INFRASTRUCTURE, IMAGE),
    _row(rf"(?=.*(?:pkg\.dev|gcr\.io)/).*{_UNAUTHORIZED}",
         "it does not exist, or the nodes may not pull it: on GKE, grant roles/artifactregistry.reader on its "
         "repository to the nodes' account; elsewhere, name the Secret of the registry with "
         "cloud=Kubernetes(image_pull_secrets=[…])", wire.CONFIGURATION, IMAGE),
    _row(_UNAUTHORIZED, "it does not exist, or its registry wants a login: name the Secret of that with "
         "cloud=Kubernetes(image_pull_secrets=[…])", wire.CONFIGURATION, TWICE),
    _row(r"dial tcp|i/o timeout|deadline exceeded", "the nodes do not reach the registry: see its name, and that nodes "
         "without an address of their own have a way out (on Google's network, Cloud NAT)", wire.CONFIGURATION, IMAGE),
    _row(r"", "see that the image exists and that the nodes may pull it, or name the Secret of its registry with "
         "cloud=Kubernetes(image_pull_secrets=[…])", wire.CONFIGURATION, IMAGE),
)  # fmt: skip
_START = (_row(r"", "the node cannot start the container", wire.INFRASTRUCTURE, IMAGE),)
_CONTAINER = {
    "InvalidImageName": (_row(r"", "name an image that a registry can have", wire.CONFIGURATION),),
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), _PULL),
    "RegistryUnavailable": (_row(r"", "the registry does not answer, and is asked again", wire.INFRASTRUCTURE, IMAGE),),
    "ErrImageNeverPull": (
        _row(r"", "the cluster has pods take only images that its nodes have (imagePullPolicy Never): name one of them",
             wire.CONFIGURATION, SOON),
    ),
    "SignatureValidationFailed": (
        _row(r"", "the nodes take only images with a signature that they know: name one that is signed",
             wire.CONFIGURATION, SOON),
    ),
    "ImageInspectError": (_row(r"", "the node cannot read the image that it has", wire.INFRASTRUCTURE, IMAGE),),
    "CreateContainerConfigError": (
        _row(r"runAsNonRoot", "name another user, or another image", wire.CONFIGURATION, SOON),
        _row(r"", "make what the message names in the namespace", wire.CONFIGURATION, SOON),
    ),
    **dict.fromkeys(("CreateContainerError", "RunContainerError"), _START),
}  # fmt: skip
_RIGHT = str(rights.WORKLOADS)
_SILENT = "it is suspended, and Kueue has not said why yet"
_INACTIVE = "the check is not active"
_PREEMPTOR = re.compile(r"; preemptor path: (?:\S*/)?([^/;\s]+);")  # /COHORT/CLUSTER-QUEUE


def of_none(
    waited: float, queue: str, priority_class: str, unread: ApiError | None = None, *, namespace: str = "default"
) -> Why:
    """Return why a set is suspended of which no workload of Kueue is seen.

    Args:
        waited: Seconds since it was created.
        queue: Of Kueue, that it names; "" for none.
        priority_class: The same.
        unread: Why workloads cannot be read; None if they can.
        namespace: That of the set.
    """
    if not queue:
        return Why("it is suspended and names no queue: who suspended it has to resume it")
    if unread is not None and unread.kind == answers.FORBIDDEN:
        grant = rights.grant(rights.named_in(unread.words), namespace, [queue])
        return Why(
            f"it is suspended in the queue {queue}, and why is unknown without the right {_RIGHT}: have an "
            f"administrator grant it: {grant}"
        )
    if unread is not None and unread.kind == answers.UNSERVED:
        return Why(
            f"it is suspended in the queue {queue}, and the cluster serves no Kueue that is understood: its "
            "administrator has to install one"
        )
    if waited < SOON:
        return Why(_SILENT)
    reasons = [f"there is no WorkloadPriorityClass {priority_class}"] if priority_class else []
    reasons.append("Kueue does not run, or leaves the namespace alone, as its administrator can see")
    return Why(f"{_SILENT}; {', or '.join(reasons)}")


def of_workload(workload: Object, position: int | None = None, wanted: Wanted = Wanted()) -> Why:  # noqa: B008
    """Return why Kueue holds a set back.

    Args:
        workload: Kueue's own object of the set.
        position: Its place in the queue, from 1, where that is known.
        wanted: What the pods ask of their nodes.
    """
    queue = f"it waits in the queue {workload.get('spec', {}).get('queueName', '')}"
    if position is not None:
        queue += f", place {position} in it"
    evicted, reserved = condition(workload, "Evicted") or {}, condition(workload, "QuotaReserved") or {}
    said = _plain(evicted.get("message"))
    if evicted.get("status") == "True":
        if (known := _DEACTIVATED.get(str(evicted.get("reason")))) is not None:
            return known._replace(message=f"Kueue took it out of its queue: {said}; {known.message}")
        why = ": ".join(filter(None, (said, _EVICTED.get(str(evicted.get("reason"))))))
        queue = f"it was evicted ({why}), and {queue.removeprefix('it ')}{_again(workload)}"
    if reserved.get("status") != "False":
        told = [*_checks(workload), *([said] if evicted and "AdmissionCheck" in said else [])]
        return Why(f"{queue}, which has quota for it, {'; '.join(told)}" if told else queue)
    held = escaped(reserved.get("message"))
    if held == escaped(evicted.get("message")):  # until Kueue has looked at it again
        return Why(queue)
    if (known := _first(_WORKLOAD, held, f"{queue}: {held}", wanted)) is not None:
        return known
    reason = _RESERVED.get(str(reserved.get("reason")), Why(""))
    return reason._replace(message="; ".join(filter(None, (f"{queue}: {held}", reason.message))))


def _checks(workload: Object) -> list[str]:
    """Return what the admission checks say that have not passed, such as that of a ProvisioningRequest."""
    found: list[str] = []
    for one in workload.get("status", {}).get("admissionChecks", ()):
        if one.get("state") == "Ready":
            continue
        name, said = escaped(one["name"]), escaped(one.get("message"))
        told = f"for the admission check {name}{f': {said}' if said else ''}"
        if said == _INACTIVE:
            told += f"; its administrator sees why with kubectl describe admissioncheck {name}"
        found.append(told)
    return found


def _again(workload: Object) -> str:
    """Return when Kueue asks for an evicted workload's admission again, if it puts that off."""
    moment = escaped(workload.get("status", {}).get("requeueState", {}).get("requeueAt"))
    return f" again from {moment} on" if moment else ""


def of_set(pods: Sequence[Object], events: Iterable[Object], wanted: Wanted) -> Why | None:
    """Return why a set's hosts do not all run, the gravest reason first; None if nothing is said.

    Args:
        pods: Those that do not run.
        events: Of controllers about the set and its Jobs, and of an autoscaler about its pods.
        wanted: What the pods ask of their nodes.
    """
    unscheduled = [pod for pod in pods if is_unscheduled(pod)]
    scaling = of_autoscaler(unscheduled, [event for event in events if event.get("reason") in _SCALING], wanted)
    found = [scaling, of_pods(pods, wanted), of_events(events)]
    return min((why for why in found if why is not None), key=_gravity, default=None)


def of_events(events: Iterable[Object]) -> Why | None:
    """Return why pods are not created, from the events of their Job and JobSet; None if nothing is wrong."""
    found: Why | None = None
    for event in events:
        said = escaped(event.get("message"))
        if event.get("reason") in _SCALING or _ORDINARY.search(said):
            continue
        about = event.get("involvedObject", {})
        told = f"{about.get('kind', '')} {about.get('name', '')} cannot create its pods: {said}"
        found = _first(_FAILED_CREATE, said, told, Wanted()) or Why(told)
        if found.cause:
            return found
    return found


def of_refusal(said: str) -> Why | None:
    """Return what the words mean with which a pod was refused; None if no row knows them."""
    for row in _FAILED_CREATE:
        if (match := row.pattern.search(said)) is not None:
            return Why(
                row.advice.format(*(group or "" for group in match.groups()), labels="", pool=""),
                row.cause,
                row.patience,
            )
    return None


def of_autoscaler(pods: Sequence[Object], events: Iterable[Object], wanted: Wanted) -> Why | None:
    """Return what an autoscaler does for pods without a node, from its last event about each; None without any.

    It does not count nodes that it has not made: that none of its own would do is no reason while others are held.
    """
    last: dict[str, Object] = {}
    for one in sorted(events, key=_moment):
        last[one.get("involvedObject", {}).get("name", "")] = one
    found: list[Why] = []
    for pod in pods:
        name = pod["metadata"]["name"]
        if (event := last.get(name)) is None:
            continue
        reason, said = str(event["reason"]), escaped(event.get("message")).rstrip(".")
        if reason == _NOT_TRIGGERED and _HELD.search(_unscheduled(pod) or ""):
            continue
        told = f"no node for pod {name} yet: {said}"
        found.append(_first(_SCALING[reason], said, told, wanted) or Why(told))
    return min(found, key=_gravity, default=None)


def of_pods(pods: Sequence[Object], wanted: Wanted) -> Why | None:
    """Return why pods that exist do not run, the gravest reason first; None if nothing is said of any.

    Args:
        pods: Those that do not run.
        wanted: What they ask of their nodes.
    """
    found: list[Why] = []
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in pod.get("status", {}).get("containerStatuses", ()):
            state = container.get("state", {}).get("waiting") or {}
            said = ": ".join(escaped(state[key]) for key in ("reason", "message") if state.get(key))
            told = f"pod {name} does not start ({said})"
            if (why := _first(_CONTAINER.get(state.get("reason", ""), ()), said, told, wanted)) is not None:
                found.append(why)
        if (lacks := _unscheduled(pod)) is not None:
            told = f"no node for pod {name}: {lacks}"
            found.append(_first(_UNSCHEDULABLE, lacks, told, wanted) or Why(told))
    return min(found, key=_gravity, default=None)


def condition(thing: Object, kind: str) -> Object | None:
    """Return an object's condition of that type, or None."""
    conditions = thing.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one.get("type") == kind), None)


def is_of_autoscaler(event: Object) -> bool:
    """Return True for an event that tells what an autoscaler does for a pod."""
    return event.get("reason") in _SCALING


def is_unscheduled(pod: Object) -> bool:
    """Return True if the scheduler was asked for a node for the pod and has none."""
    return _unscheduled(pod) is not None


def _unscheduled(pod: Object) -> str | None:
    """Return what the scheduler says of a pod without a node, without what it says of preemption; None of others."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled is None or scheduled.get("status") != "False":
        return None
    said = _NO_PREEMPTION.sub("", escaped(scheduled.get("message"))).rstrip(". ")
    return re.sub(r"^0/(\d+) nodes are available: ", r"of \1 nodes, ", said)


def _plain(said: object) -> str:
    """Kueue's words without what names other objects by their UIDs, and with the cluster queue of who preempts."""
    found = _PREEMPTOR.search(told := escaped(said))
    whose = f" of the cluster queue {found[1]}" if found is not None else ""
    return re.sub(r" \(UID: [^)]*\)", lambda _: whose, re.sub(r"; preemptor path:.*", "", told))


def _moment(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _gravity(why: Why) -> tuple[bool, float]:
    return not why.cause, why.patience


def _first(rows: Iterable[_Row], said: str, told: str, wanted: Wanted) -> Why | None:
    for row in rows:
        if (match := row.pattern.search(said)) is not None:
            groups = [group or "" for group in match.groups()]
            pool = wanted.pool or "a pool with such nodes is needed, or one that its autoscaler makes"
            return Why(
                f"{told}; {row.advice.format(*groups, labels=wanted.labels, pool=pool)}", row.cause, row.patience
            )
    return None
