"""The JobSet of an attempt as plain data, from a job's spec and the attempt's intent alone.

Pure: the same spec and intent give the same manifest in any process, so a request that may or may not have been carried
out is repeated. One JobSet is one attempt: nothing in the cluster starts it, or a part of it, again. This module knows
no client and no answer of the API.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import cluster_names, resource_labels
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.nodes import Node
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import boot, gke
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.orders import orders_of
from kinetic_orchestration.protocol import attempt_rules, names

API = "jobset.x-k8s.io/v1alpha2"
CONTAINER = "host"
HOME = "/var/lib/kinetic"  # of the agent, as on any other machine
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
NODE_POOL = "cloud.google.com/gke-nodepool"
JOB_INDEX = "metadata.labels['jobset.sigs.k8s.io/job-index']"
ACCELERATOR = f"{ownership.OURS}accelerator"  # annotation: the slice, by its name here
ON_SPOT = ":spot"  # how that name ends
KEPT_SECONDS = 3600  # of a JobSet that has ended, for people
LAST_WORDS = 30  # seconds for which a pod that is to end goes on after its program
LONGEST = 2**31 - 1  # seconds of a pod's deadline

# Labels of nodes that may be taken away at any time, and the taints that some of them have.
SPOT = (
    nodes.SPOT,
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)


def render(asked: Submission) -> dict[str, Any]:
    """Return the JobSet of an attempt."""
    plan, intent = asked.plan, asked.intent
    placement = intent.placement
    hosts = placement["hosts"] // placement["slices"]
    labels = {
        ownership.MARK: names.mark(plan.store, plan.deployment),
        **ownership.labels_of(plan, intent, asked.job_id, asked.spec_digest),
    }
    seconds = min(max(1, math.ceil(intent.deadline - intent.created)), LONGEST)
    bound = {"activeDeadlineSeconds": seconds} if intent.deadline else {}
    node = nodes.node(plan.slice)
    annotations = {ACCELERATOR: f"{plan.slice.name}{ON_SPOT if plan.spot or plan.slice.spot else ''}"}
    if node.resource == nodes.TPU and hosts > 1:
        annotations[TOPOLOGY] = NODE_POOL
    named = ((QUEUE, placement.get("queue")), (PRIORITY, plan.cloud["priority_class"]))
    queue = {key: name for key, name in named if name}
    annotations |= gke.notes_for_kueue(plan)
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 0,  # of a pod that no rule knows: it is not replaced, and the others go on
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failures()},
        **bound,
        "template": {
            "metadata": {"labels": labels, "annotations": STAYS},
            "spec": {**_pod(asked, node), **bound},
        },
    }
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {"name": placement["name"], "labels": {**labels, **queue}, "annotations": annotations},
        "spec": {
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "replicatedJobs": [
                {
                    "name": names.JOBS_OF_SET,
                    "replicas": placement["slices"],
                    "template": {"metadata": {"labels": labels}, "spec": job},
                }
            ],
        },
    }


def secret(asked: Submission, uid: str) -> dict[str, Any] | None:
    """Return the Secret with the values that must be in no manifest, which goes with the JobSet; None without any.

    Args:
        asked: The attempt.
        uid: Of its JobSet.
    """
    if not asked.secrets:
        return None
    name = asked.intent.placement["name"]
    owner = {"apiVersion": API, "kind": "JobSet", "name": name, "uid": uid}
    labels = {
        ownership.MARK: names.mark(asked.plan.store, asked.plan.deployment),
        ownership.JOB: resource_labels.label(asked.job_id),
    }
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    values = dict(asked.secrets)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "stringData": values}


def reads_secret(found: Mapping[str, Any], name: str) -> bool:
    """Return True if a Job of a set, or a pod of one, reads the Secret that was made with it. `name`: the set's."""
    spec = found["spec"].get("template", found)["spec"]
    sources = (each.get("valueFrom") or {} for one in spec.get("containers") or () for each in one.get("env") or ())
    return any((source.get("secretKeyRef") or {}).get("name") == name for source in sources)


def _failures() -> list[dict[str, Any]]:
    """A pod with an exit code, or that was taken away, ends its Job at once, whose condition then names it and of what.

    One that is gone without either, such as one deleted by force, matches none: of its host the lease decides.
    """
    taken = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    code = {"containerName": CONTAINER, "operator": "NotIn", "values": [0]}
    return [taken, {"action": "FailJob", "onExitCodes": code}]


def _pod(asked: Submission, node: Node) -> dict[str, Any]:
    plan, cloud, placement = asked.plan, asked.plan.cloud, asked.intent.placement
    selector = _selector(asked, node)
    selector |= gke.labels(plan, placement["zone"], autopilot=bool(placement.get("autopilot")))
    selector |= cloud["node_selector"] or {}
    spot, chosen = plan.spot or plan.slice.spot, cloud["node_selector"] is not None
    found = {} if _is_gke(asked, node) else affinity(node, spot=spot, chosen=chosen)
    account, pull, user = cloud["service_account"], cloud["image_pull_secrets"], cloud["run_as_user"]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(max(attempt_rules.GRACE.values())) + LAST_WORDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"securityContext": identity(user)} if user else {}),
        **({"serviceAccountName": account} if account else {}),
        **({"imagePullSecrets": [{"name": name} for name in pull]} if pull else {}),
        **({"nodeSelector": selector} if selector else {}),
        **({"affinity": found} if found else {}),
        **({"tolerations": tolerated} if (tolerated := _tolerations(asked, node)) else {}),
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [_container(asked, node)],
    }


def _container(asked: Submission, node: Node) -> dict[str, Any]:
    plan, cloud = asked.plan, asked.plan.cloud
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    sources = [{"secretRef": {"name": name}} for name in cloud["env_from"]]
    return {
        "name": CONTAINER,
        "image": plan.image or _python(asked),
        "command": ["python3", "-I", "-S", "-c", boot.LOADER, boot.program(plan.store)],
        **({"securityContext": restricted} if cloud["run_as_user"] else {}),
        "env": _env(asked),
        **({"envFrom": sources} if sources else {}),
        "resources": _resources(asked, node),
        "volumeMounts": [{"name": "work", "mountPath": HOME}, {"name": "shm", "mountPath": "/dev/shm"}],
    }


def _python(asked: Submission) -> str:
    """Return the image of the Python for which the job's environment is locked, for a function that of its submitter;
    without an environment, that of any Python."""
    environment = asked.staged.environment
    return f"python:{environment.python if environment is not None else '3'}"


def identity(user: int) -> dict[str, Any]:
    """Return a user without the rights of root, as the Pod Security Standard "restricted" wants it of every pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(asked: Submission, node: Node) -> dict[str, Any]:
    """Return all accelerators of a node, and what else its machine has to spare: no other pod has room beside a host.

    A GPU's model tells the machine on GKE alone; where pods may be elsewhere, they ask for the least. Queues on GKE
    have quotas of accelerators, and often of nothing else: there, pods ask for these alone. Elsewhere on Autopilot they
    ask for disk, too.
    """
    placement, autopilot = asked.intent.placement, bool(asked.intent.placement.get("autopilot"))
    disk = {"ephemeral-storage": nodes.DISK} if autopilot and not placement.get("queue") else {}
    if not node.resource:
        return {"requests": {"cpu": str(asked.plan.slice.chips), "memory": nodes.LEAST["memory"], **disk}}
    is_gke = _is_gke(asked, node)
    rest = nodes.requests(node if is_gke else nodes.elsewhere(node), autopilot=autopilot)
    chips = {node.resource: str(node.count)}
    return {"requests": chips if is_gke and placement.get("queue") else {**rest, **disk, **chips}, "limits": chips}


def _is_gke(asked: Submission, node: Node) -> bool:
    """Return True if the pods are on GKE for sure: nothing else has TPUs."""
    place = asked.intent.placement["zone"]
    return node.resource == nodes.TPU or asked.plan.backend == "gke" or gke.cluster_of(place) is not None


def _selector(asked: Submission, node: Node) -> dict[str, str]:
    """Return the labels of GKE's nodes with the accelerator, and of spot capacity: for these, its Autopilot and its
    auto-provisioning make nodes."""
    plan = asked.plan
    if not _is_gke(asked, node):
        return {}
    chosen = {} if node.resource == nodes.GPU and plan.cloud["node_selector"] is not None else node.labels
    return dict([*chosen.items(), *([nodes.SPOT] if plan.spot or plan.slice.spot else ())])


def affinity(node: Node, *, spot: bool, chosen: bool) -> dict[str, Any]:
    """Return nodes of the GPU's model, by the label of GKE or of NVIDIA's GPU feature discovery, and of spot capacity,
    where nobody knows whose cluster it is.

    Args:
        node: What a node must have.
        spot: It is to be of spot capacity.
        chosen: The user has chosen the labels of its model.
    """
    models: list[dict[str, Any]] = []
    if node.resource == nodes.GPU and not chosen:
        models = [_is_in(key, [value]) for key, value in node.labels.items()]
        models += [_is_in(nodes.GPU_PRODUCT, node.products)] if node.products else []
    spots = [_is_in(key, [value]) for key, value in SPOT] if spot else []
    groups = [group for group in (models, spots) if group]
    if not groups:
        return {}
    terms = [{"matchExpressions": list(each)} for each in itertools.product(*groups)]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _is_in(key: str, values: Sequence[str]) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _tolerations(asked: Submission, node: Node) -> list[dict[str, str]]:
    plan = asked.plan
    found = [{"key": key, "operator": "Exists"} for key in node.taints]
    if plan.spot or plan.slice.spot:
        known = [nodes.SPOT] if _is_gke(asked, node) else SPOT
        found += [{"key": key, "operator": "Equal", "value": value} for key, value in known]
    found += [{"key": key, "operator": "Equal", "value": value} for key, value in gke.taints(plan)]
    return [*found, *map(toleration, plan.cloud["tolerations"])]


def toleration(text: str) -> dict[str, str]:
    """Return the toleration that `key`, `key=value` or `key=value:Effect` means. Raises UsageError."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or effect not in ("", "NoSchedule", "NoExecute", "PreferNoSchedule"):
        raise UsageError(
            f"cloud=Kubernetes(tolerations=…) has {text!r}: write key, key=value or key=value:NoSchedule, as "
            "'kubectl taint' does"
        )
    cluster_names.check_label_key("cloud=Kubernetes(tolerations=…)", key)
    cluster_names.check("cloud=Kubernetes(tolerations=…)", value, cluster_names.LABEL_VALUE)
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    return {**found, **({"value": value} if equals else {}), **({"effect": effect} if effect else {})}


def _env(asked: Submission) -> list[dict[str, Any]]:
    kept: dict[str, dict[str, str]] = {}
    if not asked.plan.traits.secret_service:  # else the agent reads them itself
        kept = {variable: {"name": asked.intent.placement["name"], "key": variable} for variable in asked.secrets}
        kept |= {variable: secret_key(variable, ref) for variable, ref in asked.plan.secret_refs.items()}
    placement = asked.intent.placement
    namespace, account = str(placement["zone"]).rpartition("/")[2], asked.plan.cloud["service_account"] or "default"
    own = {"name": placement["name"], "account": f"{namespace}/{account}", "secrets": sorted(kept)}
    orders = {**orders_of(asked), **own}
    told = json.dumps(orders, ensure_ascii=False).replace("$", "$$")  # else the kubelet reads $(HOME) as a variable
    fields = {"KINETIC_POD": "metadata.uid", "KINETIC_SLICE": JOB_INDEX}
    return [
        {"name": "KINETIC_ORDERS", "value": told},
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "valueFrom": {"secretKeyRef": key}} for name, key in kept.items()),
    ]


def secret_key(variable: str, reference: str) -> dict[str, str]:
    """Return the entry of a Secret that `NAME/KEY` means, or `NAME` for the key that is called as the variable."""
    name, slash, key = reference.partition("/")
    return {"name": name, "key": key if slash else variable}


def pod_spec(jobset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a set's pods."""
    found: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return found


def wanted(pod: Mapping[str, Any]) -> str:
    """Return the labels that a pod's spec asks of its node, for users; "" for none."""
    found = [f"{key}={value}" for key, value in pod.get("nodeSelector", {}).items()]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = pod.get("affinity", {}).get("nodeAffinity", {}).get(required, {})
    terms = [
        " and ".join(f"{one['key']}={'|'.join(one.get('values', ()))}" for one in term.get("matchExpressions", ()))
        for term in affinity.get("nodeSelectorTerms", ())
    ]
    return ", ".join([*found, *([" or ".join(terms)] if terms else [])])


def lines_of(value: Any, indent: str = "") -> list[str]:
    """Return plain data as the lines of a YAML document."""
    if isinstance(value, dict):
        return [line for key, entry in value.items() for line in _entry(f"{indent}{key}:", entry, indent + "  ")]
    return [line for entry in value for line in _item(entry, indent)]


def _entry(head: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [head, *lines_of(value, indent)]
    return [f"{head} {json.dumps(value, ensure_ascii=False)}"]


def _item(value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        first, *rest = lines_of(value, indent + "  ")
        return [f"{indent}- {first.lstrip()}", *rest]
    return [f"{indent}- {json.dumps(value, ensure_ascii=False)}"]


def shown(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as YAML for users: complete, except that the program is replaced by its size."""
    found = json.loads(json.dumps(manifest))
    for job in found["spec"]["replicatedJobs"]:
        for container in job["template"]["spec"]["template"]["spec"]["containers"]:
            program = container["command"][-1]
            container["command"][-1] = f"({len(program)} letters: the program that fetches the agent)"
    return "\n".join(lines_of(found))
