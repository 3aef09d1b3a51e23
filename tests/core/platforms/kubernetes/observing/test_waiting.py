"""Tests why pods do not run, from the words of a real Kubernetes 1.36, JobSet 0.12, Kueue 0.18 and of GKE's autoscaler."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.platforms.kubernetes.observing.waiting import NEVER, Wanted, Why
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

Object = dict[str, Any]

LABELS = "cloud.google.com/gke-tpu-topology=4x4"
POOL = "make a pool of such nodes with: gcloud container node-pools create …"
WANTED = Wanted(LABELS, POOL)
NOBODY = "no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
FLAVORS = "couldn't assign flavors to pod set s: "
FOLLOWER = (
    'Error creating: admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology domain '
    "not found. missing selector: cloud.google.com/gke-nodepool"
)
DOWN = (
    'Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post '
    '"https://jobset-webhook-service.jobset-system.svc:443/mutate--v1-pod?timeout=10s": '
)
RESTRICTED = (
    'Error creating: pods "x-s-0-0-fdbkt" is forbidden: violates PodSecurity "restricted:latest": '
    'allowPrivilegeEscalation != false (container "host" must set securityContext.allowPrivilegeEscalation=false)'
)
UNRESOLVED = 'failed to pull and unpack image "a.b/ours:1": failed to resolve reference "a.b/ours:1"'
SCALE = (
    "Node scale up in zones us-central1-a associated with this pod failed: {}. Pod is at risk of not being scheduled."
)


def conditions(**found: tuple[str, str, str]) -> list[Object]:
    return [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in found.items()
    ]


def unscheduled(message: str, name: str = "x-s-0-0-abcde", reason: str = "Unschedulable") -> Object:
    status = {"phase": "Pending", "conditions": conditions(PodScheduled=("False", reason, message))}
    return {"metadata": {"name": name}, "status": status}


def container(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"metadata": {"name": "x-s-0-0-abcde"}, "status": {"containerStatuses": [{"state": state}]}}


def event(
    reason: str, message: str, kind: str = "Job", name: str = "x-s-0", at: str = "2026-11-27T19:43:18Z"
) -> Object:
    return {
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": name},
        "lastTimestamp": at,
    }


def scaling(reason: str, message: str, name: str = "x-s-0-0-abcde", **more: str) -> Object:
    return event(reason, message, "Pod", name, **more)


def workload(message: str, reason: str = "Pending", **more: tuple[str, str, str]) -> Object:
    reserved = {"QuotaReserved": ("False", reason, message)} if message else {}
    return {"spec": {"queueName": "research"}, "status": {"conditions": conditions(**reserved, **more)}}


# The scheduler


@pytest.mark.parametrize(
    ("said", "told", "advice"),
    [
        (
            "no nodes available to schedule pods",
            "no nodes available to schedule pods",
            f"the cluster has no node yet: {POOL}",
        ),
        (
            f"0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. {NOBODY}",
            "of 4 nodes, 4 node(s) didn't match Pod's node affinity/selector",
            f"no node has the labels that the pods ask for ({LABELS}): {POOL}",
        ),
        (
            (
                "0/6 nodes are available: 2 Insufficient google.com/tpu, 4 node(s) didn't match Pod's node "
                "affinity/selector. no new claims to deallocate, preemption: 0/6 nodes are available: 2 No preemption "
                "victims found for incoming pod, 4 Preemption is not helpful for scheduling."
            ),
            "of 6 nodes, 2 Insufficient google.com/tpu, 4 node(s) didn't match Pod's node affinity/selector",
            "other pods hold the chips of such nodes, or these have fewer than a pod asks for",
        ),
        (
            f"0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint(s). {NOBODY}",
            "of 4 nodes, 1 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint(s)",
            "other pods hold the chips of such nodes, or these have fewer than a pod asks for",
        ),
        (
            f"0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules. {NOBODY}",
            "of 4 nodes, 4 node(s) didn't match pod anti-affinity rules",
            "other pods hold the chips of such nodes, or these have fewer than a pod asks for",
        ),
        (
            f"0/7 nodes are available: 1 Insufficient cpu, 6 node(s) had untolerated taint(s). {NOBODY}",
            "of 7 nodes, 1 Insufficient cpu, 6 node(s) had untolerated taint(s)",
            "no node has so much cpu free",
        ),
        (
            (
                f"0/7 nodes are available: 1 node(s) had untolerated taint(s), 6 node(s) didn't match Pod's node "
                f"affinity/selector. {NOBODY}"
            ),
            "of 7 nodes, 1 node(s) had untolerated taint(s), 6 node(s) didn't match Pod's node affinity/selector",
            (
                f"no node has the labels that the pods ask for ({LABELS}), or one that has them has a taint: for the first, "
                f"{POOL}; tolerate it with cloud=Kubernetes(tolerations=[…]), if the job may run there"
            ),
        ),
        (  # as schedulers before 1.35 say it
            (
                "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: rank}. preemption: 0/1 nodes are "
                "available: 1 Preemption is not helpful for scheduling."
            ),
            "of 1 nodes, 1 node(s) had untolerated taint {dedicated: rank}",
            (
                "nodes have a taint {dedicated: rank}: tolerate it with cloud=Kubernetes(tolerations=[…]), if the job may "
                "run there"
            ),
        ),
        (
            f"0/1 nodes are available: 1 node(s) were unschedulable. {NOBODY}",
            "of 1 nodes, 1 node(s) were unschedulable",
            "the nodes are closed for new pods, as for maintenance",
        ),
    ],
)
def test_the_scheduler_is_told_in_short_and_waited_for(said: str, told: str, advice: str) -> None:
    """Without an autoscaler's word, a node may come."""
    found = waiting.of_set([unscheduled(said)], (), WANTED)
    assert found == Why(f"no node for pod x-s-0-0-abcde: {told}; {advice}")


def test_what_no_row_knows_is_told_in_its_own_words() -> None:
    found = waiting.of_set([unscheduled("0/2 nodes are available: 2 node(s) had a headache.")], (), WANTED)
    assert found == Why("no node for pod x-s-0-0-abcde: of 2 nodes, 2 node(s) had a headache")


def test_a_pod_that_kueue_has_to_place_waits_for_it() -> None:
    said = "Scheduling is blocked due to non-empty scheduling gates"
    found = waiting.of_set([unscheduled(said, reason="SchedulingGated")], (), WANTED)
    assert found is not None and "the controller that chooses its place, such as Kueue" in found.message


# An autoscaler

NO_MATCH = unscheduled(f"0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. {NOBODY}")
TAKEN = unscheduled("0/4 nodes are available: 4 Insufficient google.com/tpu.")


@pytest.mark.parametrize(
    ("reason", "said", "advice", "cause"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{https://example/gke-tpu-grp 0->4 (max: 4)}]", "being made", ""),
        ("FailedScaleUp", SCALE.format("GCE out of resources"), "no such machines free", wire.STOCKOUT),
        ("FailedScaleUp", SCALE.format("GCE quota exceeded"), "no more quota of such machines", wire.QUOTA),
        ("FailedScaleUp", SCALE.format("Invalid Reservation"), "the reservation exists", wire.CONFIGURATION),
        ("FailedScaleUp", SCALE.format("scale.up.error.out.of.resources"), "no such machines free", wire.STOCKOUT),
        ("FailedScaleUp", SCALE.format("scale.up.error.quota.exceeded"), "no more quota of such", wire.QUOTA),
        ("FailedScaleUp", "scale.up.error.reservation.not.found", "the reservation exists", wire.CONFIGURATION),
        ("FailedScaleUp", "scale.up.error.reservation.incompatible", "fits the machine", wire.CONFIGURATION),
        ("FailedScaleUp", "scale.up.error.reservation.capacity.exceeded", "hold all that the res", wire.STOCKOUT),
        ("FailedScaleUp", "Reservation quarter not found", "the reservation exists", wire.CONFIGURATION),
        ("FailedScaleUp", "scale.up.error.ip.space.exhausted", "no address left", ""),
        ("FailedScaleUp", "IP_SPACE_EXHAUSTED: IP space of 'pods' is exhausted", "no address left", ""),
        ("FailedScaleUp", "scale.up.error.tpu.topology.invalid", f"that topology ({LABELS})", wire.CONFIGURATION),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.tpu.no.limit.defined", "--max-accelerator", wire.CONFIGURATION),
        ("FailedScaleUp", "scale.up.error.service.account.deleted", "account of the pool's nodes", wire.CONFIGURATION),
        ("FailedScaleUp", "scale.up.error.reservation.not.ready", "not ready yet", ""),
        ("FailedScaleUp", "scale.up.error.waiting.for.instances.timeout", "did not come up", wire.STOCKOUT),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.gpu.type.not.supported", f"a pool: {POOL}", wire.CONFIGURATION),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.tpu.incompatible", "with such chips", wire.CONFIGURATION),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.tpu.accelerator.count.invalid", "so many", wire.CONFIGURATION),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.missing.placement.policy", "placement policy", wire.CONFIGURATION),
        ("NotTriggerScaleUp", "no.scale.up.nap.pod.unusable.reservation", "the reservation", wire.CONFIGURATION),
        ("FailedScaleUp", SCALE.format("Internal error"), "tries again", ""),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 3 node(s) didn't match Pod's node affinity/selector",
            POOL,
            wire.CONFIGURATION,
        ),
        (
            "NotTriggerScaleUp",
            (
                "pod didn't trigger scale-up: 1 max node group size reached, 2 node(s) didn't match Pod's node "
                "affinity/selector"
            ),
            "as large as it may be",
            "",
        ),
        (
            "NotTriggerScaleUp",
            (
                "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector, 1 in backoff after "
                "failed scale-up"
            ),
            "asks again in minutes",
            "",
        ),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: no.scale.up.in.backoff", "asks again in minutes", ""),
        (
            "NotTriggerScaleUp",
            (
                "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector, 1 "
                "no.scale.up.in.backoff"
            ),
            "asks again in minutes",
            "",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 node(s) had untolerated taint {dedicated: rank}",
            "pools have a taint {dedicated: rank}",
            wire.CONFIGURATION,
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 Insufficient google.com/tpu",
            "so much google.com/tpu",
            wire.CONFIGURATION,
        ),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max cluster cpu limit reached", "as large", ""),
    ],
)
def test_an_autoscaler_says_whether_nodes_come(reason: str, said: str, advice: str, cause: str) -> None:
    found = waiting.of_set([NO_MATCH], [scaling(reason, said)], WANTED)
    assert found is not None
    assert advice in found.message and said.rstrip(".") in found.message
    assert found.cause == cause
    assert bool(found.patience) == bool(cause)


def test_its_last_word_counts() -> None:
    failed = scaling("FailedScaleUp", SCALE.format("GCE out of resources"), at="2026-11-27T19:43:18Z")
    again = scaling("TriggeredScaleUp", "pod triggered scale-up: [{other 0->4}]", at="2026-11-27T19:43:20Z")
    for events in ([failed, again], [again, failed]):
        found = waiting.of_set([NO_MATCH], events, WANTED)
        assert found is not None and not found.cause


def test_that_it_has_no_such_pool_is_no_reason_while_such_nodes_are_only_taken() -> None:
    """It knows nothing of pools that it does not scale."""
    said = "pod didn't trigger scale-up: 3 node(s) didn't match Pod's node affinity/selector"
    found = waiting.of_set([TAKEN], [scaling("NotTriggerScaleUp", said)], WANTED)
    assert found is not None and "other pods hold the chips" in found.message and not found.cause


def test_what_it_said_of_pods_that_are_gone_or_have_a_node_counts_no_longer() -> None:
    said = scaling("FailedScaleUp", SCALE.format("GCE out of resources"), name="x-s-0-0-older")
    found = waiting.of_set([NO_MATCH], [said], WANTED)
    assert found is not None and not found.cause
    assert waiting.of_set([], [said], WANTED) is None


def test_of_several_slices_the_gravest_is_told() -> None:
    other = unscheduled("0/4 nodes are available: 4 Insufficient google.com/tpu.", "x-s-1-0-fghij")
    events = [
        scaling("TriggeredScaleUp", "pod triggered scale-up: [{a 0->4}]"),
        scaling("FailedScaleUp", SCALE.format("GCE out of resources"), name="x-s-1-0-fghij"),
    ]
    found = waiting.of_set([NO_MATCH, other], events, WANTED)
    assert found is not None and found.cause == wire.STOCKOUT


# Controllers


@pytest.mark.parametrize(
    ("said", "advice", "cause"),
    [
        (
            (
                'Error creating: pods "x-s-0-1-abcde" is forbidden: exceeded quota: q, requested: '
                "requests.google.com/tpu=4, used: requests.google.com/tpu=8, limited: requests.google.com/tpu=8"
            ),
            (
                "the ResourceQuota q of the namespace leaves no room: it limits requests.google.com/tpu=8, and "
                "requests.google.com/tpu=8 are used"
            ),
            wire.QUOTA,
        ),
        (
            (
                'Error creating: pods "x-s-0-0-wvr4q" is forbidden: failed quota: q: must specify limits.cpu for: host; '
                "requests.memory for: host"
            ),
            "wants every pod to say its limits.cpu",
            wire.CONFIGURATION,
        ),
        (
            (
                'Error creating: pods "x-s-0-0-" is forbidden: error looking up service account team/trainer: '
                'serviceaccount "trainer" not found'
            ),
            "the namespace team has no service account trainer",
            wire.CONFIGURATION,
        ),
        (RESTRICTED, "the namespace is restricted: with an image", wire.CONFIGURATION),
        (
            (
                'Error creating: admission webhook "warden-validating.common-webhooks.networking.gke.io" denied the '
                "request: GKE Warden rejected the request because it violates one or more constraints. Violations "
                'details: {"[denied by autogke-disallow-privilege]":["container host is privileged; not allowed"]}'
            ),
            "by the rule autogke-disallow-privilege, as Autopilot does: change what it names",
            wire.CONFIGURATION,
        ),
        (
            (
                'Error creating: Pod "x-s-0-0-8rtpb" is invalid: spec.containers[0].resources.requests: Invalid value: '
                '"100": must be less than or equal to cpu limit of 1'
            ),
            "a LimitRange of the namespace",
            wire.CONFIGURATION,
        ),
        (
            'Error creating: pods "x-s-0-0-jr7l4" is forbidden: maximum cpu usage per Container is 2, but request is 100',
            "a LimitRange of the namespace",
            wire.CONFIGURATION,
        ),
        (
            (
                "Error creating: pods \"x-s-0-0-cmqb6\" is forbidden: ValidatingAdmissionPolicy 'owner' with binding 'owner' "
                "denied request: every pod needs the label team"
            ),
            "the cluster's admission refuses the pods",
            wire.CONFIGURATION,
        ),
        (
            'Error creating: admission webhook "policy.example.com" denied the request: images come from ours',
            "the cluster's admission refuses the pods",
            wire.CONFIGURATION,
        ),
        (
            'Error creating: Pod "x" is invalid: spec.tolerations[0].key: Invalid value',
            "as they are",
            wire.CONFIGURATION,
        ),
        (f"Error creating: {DOWN}dial tcp 10.96.1.2:443: connect: connection refused", "is waited for", ""),
        (f'Error creating: {DOWN}no endpoints available for service "jobset-webhook-service"', "is waited for", ""),
        (f"Error creating: {DOWN}tls: failed to verify certificate: x509: unknown authority", "is waited for", ""),
    ],
)
def test_a_controller_that_creates_no_pods_says_why(said: str, advice: str, cause: str) -> None:
    found = waiting.of_set((), [event("FailedCreate", said)], WANTED)
    assert found is not None
    assert found.message.startswith(f"Job x-s-0 cannot create its pods: {said[:40]}")
    assert advice in found.message
    assert found.cause == cause


def test_a_set_that_creates_no_job_is_told_as_well() -> None:
    said = (
        'job "x-s-0" creation failed with error: admission webhook "policy.example.com" denied the request: jobs need '
        "the label team"
    )
    found = waiting.of_set((), [event("JobCreationFailed", said, "JobSet", "x")], WANTED)
    assert found is not None and found.cause == wire.CONFIGURATION
    assert found.message.startswith("JobSet x cannot create its pods")


@pytest.mark.parametrize(
    "said",
    [
        FOLLOWER,
        'job "x-s-0" creation failed with error: jobs.batch "x-s-0" already exists',
        (
            'job "x-s-0" creation failed with error: admission webhook "mjob.kb.io" denied the request: '
            'JobSet.jobset.x-k8s.io "x" not found'
        ),
        (
            'Error creating: Operation cannot be fulfilled on pods "x-s-0-0": the object has been modified; please apply '
            "your changes to the latest version and try again"
        ),
    ],
)
def test_what_is_ordinary_while_a_set_begins_is_no_failure(said: str) -> None:
    assert waiting.of_set((), [event("FailedCreate", said)], WANTED) is None
    taken = waiting.of_set([TAKEN], [event("FailedCreate", said)], WANTED)
    assert taken is not None and taken.message.startswith("no node for pod")


def test_what_a_part_of_a_set_lacks_is_graver_than_a_wait() -> None:
    quota = "Error creating: exceeded quota: q, requested: cpu=1, used: cpu=1, limited: cpu=1"
    found = waiting.of_set([TAKEN], [event("FailedCreate", FOLLOWER), event("FailedCreate", quota)], WANTED)
    assert found is not None and found.cause == wire.QUOTA


# The kubelet


@pytest.mark.parametrize(
    ("reason", "said", "cause", "patience"),
    [
        (
            "ImagePullBackOff",
            (
                'Back-off pulling image "gone:1": ErrImagePull: failed to pull and unpack image "gone:1": failed to resolve '
                'reference "gone:1": gone:1: not found'
            ),
            wire.CONFIGURATION,
            waiting.AGAIN,
        ),
        ("ErrImagePull", "", wire.CONFIGURATION, waiting.IMAGE),
        ("ImagePullBackOff", 'Back-off pulling image "gone:1"', wire.CONFIGURATION, waiting.IMAGE),  # of older kubelets
        (
            "ErrImagePull",
            "rpc error: code = NotFound desc = reading manifest 1 in docker.io/library/gone: manifest unknown",
            wire.CONFIGURATION,
            waiting.AGAIN,
        ),
        (
            "ErrImagePull",
            'failed to pull and unpack image "python:3.12": no match for platform in manifest: not found',
            wire.CONFIGURATION,
            waiting.AGAIN,
        ),
        (
            "ErrImagePull",
            f"{UNRESOLVED}: unexpected status from HEAD request to https://a.b/v2/ours/manifests/1: 503 Service Unavailable",
            wire.INFRASTRUCTURE,
            waiting.IMAGE,
        ),
        ("RegistryUnavailable", "image pull failed for ours:1", wire.INFRASTRUCTURE, waiting.IMAGE),
        ("ErrImageNeverPull", 'Container image "ours:1" is not present', wire.CONFIGURATION, waiting.SOON),
        ("SignatureValidationFailed", "Source image rejected", wire.CONFIGURATION, waiting.SOON),
        ("ImageInspectError", 'Failed to inspect image "ours:1"', wire.INFRASTRUCTURE, waiting.IMAGE),
        (  # a node that loses what it has pulled
            "ErrImagePull",
            'failed to pull and unpack image "ours:1": failed to extract layer: snapshot 7 does not exist: not found',
            wire.CONFIGURATION,
            waiting.IMAGE,
        ),
        (
            "ErrImagePull",
            (
                'failed to pull and unpack image "a.b/ours:1": failed to resolve reference "a.b/ours:1": failed to do '
                'request: Head "https://a.b/v2/ours/manifests/1": dial tcp: lookup a.b: no such host'
            ),
            wire.CONFIGURATION,
            waiting.IMAGE,
        ),
        (
            "InvalidImageName",
            'Failed to apply default image tag "bad:1": couldn\'t parse image name "bad:1": invalid reference format',
            wire.CONFIGURATION,
            0.0,
        ),
        ("CreateContainerConfigError", 'secret "none" not found', wire.CONFIGURATION, waiting.SOON),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
            wire.CONFIGURATION,
            waiting.SOON,
        ),
        ("CreateContainerError", "context deadline exceeded", wire.INFRASTRUCTURE, waiting.IMAGE),
    ],
)
def test_a_container_that_does_not_start_says_why(reason: str, said: str, cause: str, patience: float) -> None:
    found = waiting.of_set([container(reason, said)], (), WANTED)
    assert found is not None
    assert (found.cause, found.patience) == (cause, patience)
    assert reason in found.message and said in found.message


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            UNRESOLVED.replace("a.b", "us-docker.pkg.dev") + ": failed to authorize: 403 Forbidden",
            "grant roles/artifactregistry.reader on its repository to the nodes' account",
        ),
        (
            f"{UNRESOLVED}: pull access denied, repository does not exist or may require authorization: server message",
            "its registry wants a login: name the Secret of that with cloud=Kubernetes(image_pull_secrets=[…])",
        ),
        (
            f"{UNRESOLVED}: failed to do request: dial tcp 10.1.2.3:443: i/o timeout",
            "the nodes do not reach the registry",
        ),
        (
            f"{UNRESOLVED}: 429 Too Many Requests - toomanyrequests: You have reached your limit",
            "does not serve it now",
        ),
        (f"{UNRESOLVED}: a.b/ours:1: not found", "the registry has no such image"),
        (UNRESOLVED.replace("ours:1", "ours:503") + ": something else", "see that the image exists"),
    ],
)
def test_why_an_image_does_not_come_is_told_by_what_helps(said: str, advice: str) -> None:
    found = waiting.of_set([container("ErrImagePull", said)], (), WANTED)
    assert found is not None and advice in found.message


@pytest.mark.parametrize(
    ("registry", "patience"),
    [("docker.io", waiting.TWICE), ("us-docker.pkg.dev", waiting.IMAGE)],  # whose new nodes may have no token at first
)
def test_a_registry_that_denies_an_image_is_asked_twice_more(registry: str, patience: float) -> None:
    denied = f"{UNRESOLVED}: pull access denied, repository does not exist or may require authorization"
    found = waiting.of_set([container("ErrImagePull", denied.replace("a.b", registry))], (), WANTED)
    assert found is not None
    assert (found.cause, found.patience) == (wire.CONFIGURATION, patience)


def test_a_container_that_is_being_made_is_no_reason() -> None:
    assert waiting.of_set([container("ContainerCreating"), container("PodInitializing")], (), WANTED) is None


# Kueue


@pytest.mark.parametrize(
    ("said", "reason", "advice", "cause"),
    [
        ("LocalQueue nowhere doesn't exist", "Inadmissible", "the namespace has no queue nowhere", wire.CONFIGURATION),
        ("ClusterQueue nocq doesn't exist", "Inadmissible", "its administrator has to make", wire.CONFIGURATION),
        ("ClusterQueue tpus is inactive", "Inadmissible", "the queue is stopped", ""),
        ("LocalQueue q is inactive", "Inadmissible", "the queue is stopped", ""),
        ("Workload namespace doesn't match ClusterQueue selector", "Pending", "not serve this", wire.CONFIGURATION),
        (f"{FLAVORS}resource cpu unavailable in ClusterQueue", "Pending", "no quota of cpu", wire.CONFIGURATION),
        (f"{FLAVORS}flavor v5e doesn't match node affinity", "Pending", LABELS, wire.CONFIGURATION),
        (
            f'{FLAVORS}Flavor "racks" supports only TopologyAwareScheduling',
            "Pending",
            "only jobs that ask for a topology, which these do not: name another queue",
            wire.CONFIGURATION,
        ),
        (
            f"{FLAVORS}untolerated taint {{special x NoSchedule <nil>}} in flavor t",
            "Pending",
            "the taint special=x:NoSchedule",
            wire.CONFIGURATION,
        ),
        (
            (
                f"{FLAVORS}insufficient quota for google.com/tpu in flavor v5e, previously considered podsets requests (0) + "
                "current podset request (32) > maximum capacity (8)"
            ),
            "Pending",
            f"the queue {NEVER}: ask for at most 8 of google.com/tpu",
            wire.QUOTA,
        ),
        (
            f"{FLAVORS}insufficient quota for google.com/tpu in flavor v5e, request > maximum capacity (16 > 8)",
            "Pending",
            f"the queue {NEVER}: ask for at most 8 of google.com/tpu",
            wire.QUOTA,
        ),
        (
            f"{FLAVORS}insufficient unused quota for google.com/tpu in flavor v5e, 8 more needed",
            "Pending",
            "other jobs hold what the queue has of google.com/tpu",
            "",
        ),
        (  # one of its flavors will do
            (
                f"{FLAVORS}flavor spot doesn't match node affinity, insufficient unused quota for google.com/tpu in flavor "
                "v5e, 8 more needed"
            ),
            "Pending",
            "other jobs hold",
            "",
        ),
        ("no such words are known", "NoMatchingFlavor", "no flavor of the queue has such nodes", wire.CONFIGURATION),
        ("no such words are known", "ExceedsMaxQuota", NEVER, wire.QUOTA),
        ("no such words are known", "Misconfigured", "administrator", wire.CONFIGURATION),
        ("no such words are known", "WaitingForQuota", "other jobs hold what the queue has", ""),
        ("no such words are known", "WaitingForPreemptedWorkloads", "jobs of lower priority are ending", ""),
        ("no such words are known", "WaitingForPodsReady", "when all pods of the ones before run", ""),
        ("no such words are known", "TopologyPlacementFailed", "no part of the queue's topology", ""),
        ("no such words are known", "PendingEvaluation", "has not looked at it yet", ""),
        ("no such words are known", "OfALaterKueue", "no such words are known", ""),
        (
            f'{FLAVORS}topology "racks" doesn\'t allow to fit any of 4 pod(s)',
            "Pending",
            "no part of its topology has room for them now",
            "",
        ),
    ],
)
def test_kueue_says_why_it_holds_a_set_back(said: str, reason: str, advice: str, cause: str) -> None:
    found = waiting.of_workload(workload(said, reason), 3, WANTED)
    assert found.message.startswith(f"it waits in the queue research, place 3 in it: {said}")
    assert advice in found.message
    assert found.cause == cause


def test_a_set_that_kueue_has_not_seen_is_only_suspended() -> None:
    assert waiting.of_none(1.0, "research", "high") == Why("it is suspended, and Kueue has not said why yet")
    assert waiting.of_workload({"spec": {"queueName": "research"}}) == Why("it waits in the queue research")


def test_a_set_that_kueue_does_not_see_for_long_says_what_may_be_why() -> None:
    idle = "Kueue does not run, or leaves the namespace alone"
    found = waiting.of_none(waiting.SOON, "research", "")
    assert idle in found.message and "WorkloadPriorityClass" not in found.message
    found = waiting.of_none(waiting.SOON, "research", "high")
    assert f"there is no WorkloadPriorityClass high, or {idle}" in found.message
    assert not found.cause


def test_without_the_right_to_read_from_kueue_the_right_is_named_and_without_kueue_that() -> None:
    words = 'workloads.kueue.x-k8s.io is forbidden: User "ada" cannot list resource "workloads" in API group "x"'
    refused = ApiError("no", answers.FORBIDDEN, words=words)
    forbidden = waiting.of_none(waiting.SOON, "research", "high", refused, namespace="team-a").message
    assert (
        "without the right list workloads.kueue.x-k8s.io: have an administrator grant it: KINETIC_NAMESPACE=team-a kinor "
        in forbidden
    )
    assert forbidden.endswith("kinor doctor --role user:ada --queue research | kubectl apply -f -")
    unserved = waiting.of_none(waiting.SOON, "research", "high", ApiError("no", answers.UNSERVED)).message
    assert "serves no Kueue that is understood: its administrator has to install one" in unserved
    for told in (forbidden, unserved):
        assert "has not said" not in told and "PriorityClass" not in told


def test_a_set_without_a_queue_waits_for_whoever_suspended_it() -> None:
    assert "Kueue" not in waiting.of_none(waiting.SOON, "", "").message


PREEMPTED = (
    "Preempted to accommodate a workload (UID: 2ee51b5b-0b7c-4091-ad65-58ea94735caa, JobUID: e188a349-85fd) due to "
    "prioritization in the ClusterQueue; preemptor path: /tpus; preemptee path: /tpus"
)


def test_a_preempted_set_is_told_as_one_that_waits_again() -> None:
    short = "Preempted to accommodate a workload of the cluster queue tpus due to prioritization in the ClusterQueue"
    evicted = ("True", "Preempted", PREEMPTED)
    at_once = waiting.of_workload(workload(PREEMPTED, Evicted=evicted))
    assert at_once == Why(f"it was evicted ({short}), and waits in the queue research")
    later = f"{FLAVORS}insufficient unused quota for google.com/tpu in flavor v5e, 8 more needed"
    found = waiting.of_workload(workload(later, Evicted=evicted), 1)
    assert found.message.startswith(f"it was evicted ({short}), and waits in the queue research, place 1 in it: ")
    assert not found.cause


@pytest.mark.parametrize(
    ("reason", "said", "cause"),
    [
        (
            "DeactivatedDueToAdmissionCheck",
            'The workload is deactivated due to AdmissionCheck in Rejected state: "dws" (no capacity in us-central1)',
            wire.STOCKOUT,
        ),
        ("DeactivatedDueToRequeuingLimitExceeded", "The workload is deactivated", wire.STOCKOUT),
        (
            "DeactivatedDueToMaximumExecutionTimeExceeded",
            "The workload is deactivated due to exceeding the maximum execution time",
            wire.DEADLINE,
        ),
        ("Deactivated", "The workload is deactivated", ""),
    ],
)
def test_a_set_that_kueue_does_not_admit_again_says_why(reason: str, said: str, cause: str) -> None:
    found = waiting.of_workload(workload(said, Evicted=("True", reason, said)))
    assert found.message.startswith(f"Kueue took it out of its queue: {said}; ")
    assert found.cause == cause


def test_who_preempts_is_told_by_the_cluster_queue_also_of_a_cohort() -> None:
    said = PREEMPTED.replace("preemptor path: /tpus", "preemptor path: /all/research/vision")
    found = waiting.of_workload(workload(said, Evicted=("True", "Preempted", said)))
    assert "a workload of the cluster queue vision due to" in found.message
    older = "Preempted to accommodate a workload (UID: 1) due to prioritization in the ClusterQueue"
    found = waiting.of_workload(workload(older, Evicted=("True", "Preempted", older)))
    assert "to accommodate a workload due to prioritization" in found.message


@pytest.mark.parametrize(
    ("reason", "said", "told"),
    [
        ("PodsReadyTimeout", "Exceeded the PodsReady timeout ns/x", "(waitForPodsReady) not all of its pods ran"),
        (
            "NodeFailures",
            "Workload was evicted as there was no replacement for unhealthy node(s): a",
            "a node of it failed",
        ),
        ("ClusterQueueStopped", "The ClusterQueue is stopped", "its administrator starts the queue again"),
        ("LocalQueueStopped", "The LocalQueue is stopped", "its administrator starts the queue again"),
        (
            "AdmissionCheck",
            'At least one admission check is false: "dws" (Retrying after failure: no capacity)',
            "its machines could not be had, and are asked for once more",
        ),
        ("FlavorMigration", "A preferred flavor is free", "capacity for it that it prefers"),
        ("OfALaterKueue", "For another reason", "For another reason"),
    ],
)
def test_an_eviction_is_told_as_what_it_is_and_is_waited_out(reason: str, said: str, told: str) -> None:
    evicted = workload(said, Evicted=("True", reason, said))
    found = waiting.of_workload(evicted, 2)
    assert found.message.startswith(f"it was evicted ({said}")
    assert told in found.message
    assert found.message.endswith("), and waits in the queue research, place 2 in it")
    assert not found.cause
    evicted["status"]["requeueState"] = {"count": 1, "requeueAt": "2026-11-27T23:42:00Z"}
    assert waiting.of_workload(evicted).message.endswith("the queue research again from 2026-11-27T23:42:00Z on")


def test_a_check_of_admission_is_named_with_why_it_failed_before() -> None:
    held = workload("", QuotaReserved=("True", "QuotaReserved", "Quota reserved in ClusterQueue tpus"))
    held["status"]["admissionChecks"] = [{"name": "dws", "state": "Pending", "message": ""}]
    reserved = "it waits in the queue research, which has quota for it"
    assert waiting.of_workload(held) == Why(f"{reserved}, for the admission check dws")
    before = (
        'Previously: Evicted due to AdmissionCheck in Retry state: "dws" (Retrying after failure: Max nodepool size '
        "reached)"
    )
    held["status"]["admissionChecks"][0]["message"] = "Reset to Pending after eviction. Previously: Retry"
    held["status"]["conditions"] += conditions(Evicted=("False", "QuotaReserved", before))
    found = waiting.of_workload(held)
    reset = "Reset to Pending after eviction. Previously: Retry"
    assert found == Why(f"{reserved}, for the admission check dws: {reset}; {before}")


@pytest.mark.parametrize(
    ("state", "said", "told"),
    [
        ("Pending", "", "for the admission check dws"),
        ("Pending", "Waiting for resources. ETA: in 3 hours", "check dws: Waiting for resources. ETA: in 3 hours"),
        ("Pending", "Quota 'GPUS_ALL_REGIONS' exceeded, waiting for quota", "waiting for quota"),
        ("Retry", "Retrying after failure: no capacity in us-central1-a", "check dws: Retrying after failure: no"),
        ("Retry", "Retrying after booking expired: nobody came", "check dws: Retrying after booking expired"),
        ("Pending", "the check is not active", "sees why with kubectl describe admissioncheck dws"),
    ],
)
def test_a_request_for_machines_that_waits_is_told_and_is_no_want_of_capacity(state: str, said: str, told: str) -> None:
    held = workload("", QuotaReserved=("True", "QuotaReserved", "Quota reserved in ClusterQueue tpus"))
    passed = {"name": "license", "state": "Ready", "message": "there is one"}
    held["status"]["admissionChecks"] = [passed, {"name": "dws", "state": state, "message": said}]
    found = waiting.of_workload(held)
    assert told in found.message
    assert "license" not in found.message
    assert not found.cause


def test_words_of_others_cannot_draw_on_a_terminal() -> None:
    assert "\x1b" not in waiting.of_workload(workload("\x1b[2Jbad")).message
    found = waiting.of_set([container("ErrImagePull", "\x1b[2Jbad")], (), WANTED)
    assert found is not None and "\x1b" not in found.message
