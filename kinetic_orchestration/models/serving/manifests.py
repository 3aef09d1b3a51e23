"""The objects of a model server as plain data, from its declaration and its model alone. Pure.

The same declaration gives the same set in any process, which is what a set is known by. It knows no cluster, no
revision, and nothing of what is there already.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.serving.declaration import Model, Serving
from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.nodes import Node
from kinetic_orchestration.platforms.kubernetes import gke, manifest
from kinetic_orchestration.program.inference.servers.engines import flags

Object = dict[str, Any]

SERVING: Final = f"{resource_labels.OURS}serving"  # label: the server's name
SET: Final = f"{resource_labels.OURS}set"  # label: the digest of what its pods are
MODEL: Final = f"{resource_labels.OURS}model"  # annotation: the model's address
CONTAINER: Final = "server"
OF_KSERVE: Final = "main"  # its name in the presets of KServe
PORT: Final = "http"
CACHE: Final = "/cache"
PERIOD: Final = 10  # seconds between two probes
BEFORE_NODES: Final = 300  # seconds that a rollout takes besides what is declared

DEPLOYMENTS: Final = "apps/v1"
POOLS: Final = "inference.networking.k8s.io/v1"
ROUTES: Final = "gateway.networking.k8s.io/v1"
KSERVE: Final = "serving.kserve.io/v1alpha2"
PLURALS: Final = {
    "Deployment": "deployments", "Service": "services", "InferencePool": "inferencepools", "HTTPRoute": "httproutes",
    "LLMInferenceService": "llminferenceservices", "ConfigMap": "configmaps",
}  # fmt: skip
WORKLOADS: Final = ("Deployment", "LLMInferenceService")  # whose pods hold accelerators


class Key(NamedTuple):
    """Kind and name by which an object is found, beside its namespace."""

    api: str
    kind: str
    name: str

    def path(self, namespace: str) -> str:
        """Return where it is in an API server."""
        return f"{collection(self.api, self.kind, namespace)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def key_of(found: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    return Key(found["apiVersion"], found["kind"], found["metadata"]["name"])


def collection(api: str, kind: str, namespace: str) -> str:
    """Return where all objects of a kind are."""
    return f"/{'apis' if '/' in api else 'api'}/{api}/namespaces/{namespace}/{PLURALS[kind]}"


def render(given: Serving, model: Model, cluster: str = "", *, has_sleep: bool = True) -> tuple[Object, ...]:
    """Return the set of objects of a server, in the order in which they are applied.

    Args:
        given: The declaration.
        model: Its model.
        cluster: The name of its cluster, by which one of GKE is known.
        has_sleep: The cluster knows `sleep` as an action before a container's end. Otherwise a program of the image is
            run that sleeps.
    """
    if given.kind == "llm_inference_service":
        return (_llm_inference_service(given, model, cluster),)
    deployment = _deployment(given, model, cluster, has_sleep)
    found = [deployment, service(given, deployment)]
    if given.kind == "inference_pool":
        found += [_pool(given, deployment), _route(given)]
    return tuple(found)


def shown(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return a set as YAML, which `kubectl apply --server-side -f -` takes."""
    return "".join("\n".join(["---", *manifest.lines_of(dict(one)), ""]) for one in objects)


def digest(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return what a set is known by."""
    text = json.dumps(list(objects), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def selector(given: Serving, deployment: Object) -> dict[str, str]:
    """Return the labels of the pods that requests go to."""
    found: dict[str, str] = deployment["spec"]["selector"]["matchLabels"]
    return dict(found)


def service(given: Serving, deployment: Object, name: str = "") -> Object:
    """Return the Service of a Deployment. `name`: by default that of the server."""
    port = {"name": PORT, "port": given.port, "targetPort": PORT, "protocol": "TCP"}
    spec = {"selector": selector(given, deployment), "ports": [port]}
    return _object("v1", "Service", name or given.name, given, spec)


def narrowed(objects: Sequence[Object]) -> list[Object]:
    """Return those of a set that choose pods by the server's name alone, with the pods of this set as their choice:
    others of the same name are about to stand beside them."""
    own = next((one for one in objects if one["kind"] == "Deployment"), None)
    if own is None:
        return []
    mark = {SET: own["spec"]["template"]["metadata"]["labels"][SET]}
    found = []
    for one in objects:
        spec, chosen = one["spec"], one["spec"].get("selector")
        if one["kind"] == "Service" and SET not in chosen:
            found.append({**one, "spec": {**spec, "selector": {**chosen, **mark}}})
        elif one["kind"] == "InferencePool" and SET not in chosen["matchLabels"]:
            wider = chosen["matchLabels"]
            found.append({**one, "spec": {**spec, "selector": {**chosen, "matchLabels": {**wider, **mark}}}})
    return found


def _object(api: str, kind: str, name: str, given: Serving, spec: Object) -> Object:
    metadata = {"name": name, "namespace": given.namespace, "labels": _labels(given)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(given: Serving) -> dict[str, str]:
    own = dict(given.cloud.labels or {}) if given.cloud is not None else {}
    usual = {"app.kubernetes.io/name": given.name, "app.kubernetes.io/managed-by": "kinetic-orchestration"}
    return {**own, **usual, SERVING: given.name}


# ---- a Deployment ----------------------------------------------------------------------------------------------------


def _deployment(given: Serving, model: Model, cluster: str, has_sleep: bool) -> Object:
    pod, about = _pod(given, model, cluster, has_sleep), {MODEL: model.uri}
    labels = {
        **_labels(given),
        SET: digest([pod, about, _labels(given)]),
    }  # by which the pods of this set are told from those before
    template = {"metadata": {"labels": labels, "annotations": about}, "spec": pod}
    name, chosen = given.name, {SERVING: given.name}
    if given.strategy == "blue_green":  # two of them stand beside each other: each is named after what it is
        name, chosen = f"{given.name}-{labels[SET]}", {**chosen, SET: labels[SET]}
    spec = {
        "replicas": given.replicas,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": deadline(given),
        "strategy": _strategy(given),
        "selector": {"matchLabels": chosen},
        "template": template,
    }
    return _object(DEPLOYMENTS, "Deployment", name, given, spec)


def deadline(given: Serving) -> int:
    """Return the seconds after which a rollout that has not come further has failed: more than a start may take."""
    ending = _whole(given.longest_request) + manifest.LAST_WORDS
    return _whole(given.startup_seconds) + _whole(given.wait) + ending + BEFORE_NODES


def _strategy(given: Serving) -> Object:
    """Return how pods follow others: never does one more than declared ask for an accelerator, as the usual strategy
    has it, which then waits for ever where none is free."""
    if given.strategy == "in_place":
        return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {"type": "Recreate"}


def _pod(given: Serving, model: Model, cluster: str, has_sleep: bool = True) -> Object:
    cloud = given.cloud or Kubernetes()
    user = cloud.run_as_user
    return {
        "terminationGracePeriodSeconds": _whole(given.longest_request) + manifest.LAST_WORDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT, which vLLM reads as its own
        **({"securityContext": manifest.identity(user)} if user else {}),
        **({"serviceAccountName": cloud.service_account} if cloud.service_account else {}),
        **(
            {"imagePullSecrets": [{"name": name} for name in cloud.image_pull_secrets]}
            if cloud.image_pull_secrets
            else {}
        ),
        **_placed(given, cluster),
        "volumes": _volumes(given, model),
        "containers": [_container(given, model, cluster, has_sleep)],
    }


def _placed(given: Serving, cluster: str) -> Object:
    """Return what a pod asks of its node: the labels of its accelerator, and the taints that it tolerates."""
    cloud, slice_ = given.cloud or Kubernetes(), given.slice
    node = nodes.node(slice_)
    chosen = cloud.node_selector is not None
    found: Object = {}
    labels = {}
    if _is_gke(node, cluster):
        labels = {} if node.resource == nodes.GPU and chosen else dict(node.labels)
        labels |= dict([nodes.SPOT]) if slice_.spot else {}
    elif affinity := manifest.affinity(node, spot=slice_.spot, chosen=chosen):
        found["affinity"] = affinity
    labels |= cloud.node_selector or {}
    if labels:
        found["nodeSelector"] = labels
    tolerated = [{"key": key, "operator": "Exists"} for key in node.taints]
    if slice_.spot:
        known = [nodes.SPOT] if _is_gke(node, cluster) else manifest.SPOT
        tolerated += [{"key": key, "operator": "Equal", "value": value} for key, value in known]
    tolerated += map(manifest.toleration, cloud.tolerations)
    return {**found, **({"tolerations": tolerated} if tolerated else {})}


def _is_gke(node: Node, cluster: str) -> bool:
    """Return True if the cluster is one of GKE for sure: nothing else has TPUs."""
    return node.resource == nodes.TPU or gke.cluster_of(cluster) is not None


def _resources(given: Serving, cluster: str) -> Object:
    """Return all accelerators of a node, and what else its machine has to spare, as hosts of jobs ask for it."""
    node = nodes.node(given.slice)
    if not node.resource:
        return {"requests": {"cpu": str(given.slice.chips), "memory": nodes.LEAST["memory"]}}
    chips = {node.resource: str(node.count)}
    rest = nodes.requests(node if _is_gke(node, cluster) else nodes.elsewhere(node))
    return {"requests": {**rest, **chips}, "limits": chips}


def _volumes(given: Serving, model: Model) -> list[Object]:
    cache: Object = {"emptyDir": {}}
    if given.cache_claim:
        cache = {"persistentVolumeClaim": {"claimName": given.cache_claim}}
    found: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "cache", **cache}]
    if model.claim:
        found.append({"name": "model", "persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}})
    return found


def _container(given: Serving, model: Model, cluster: str, has_sleep: bool) -> Object:
    cloud = given.cloud or Kubernetes()
    sources = [{"secretRef": {"name": name}} for name in cloud.env_from]
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": CACHE}]
    if model.claim:
        mounts.append({"name": "model", "mountPath": "/model", "readOnly": True})
    return {
        "name": CONTAINER,
        "image": given.image,
        "command": [*given.command],
        "args": arguments(given, model),
        **({"securityContext": restricted} if cloud.run_as_user else {}),
        "env": _environment(given),
        **({"envFrom": sources} if sources else {}),
        "ports": [{"name": PORT, "containerPort": given.port, "protocol": "TCP"}],
        "resources": _resources(given, cluster),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # its last lines are in the pod's status
        **_probes(given),
        # vLLM ends requests in flight with an error on SIGTERM: before that, it is only asked nothing new.
        "lifecycle": {"preStop": _pause(_whole(given.longest_request), has_sleep)},
    }


def _pause(seconds: int, has_sleep: bool) -> Object:
    return {"sleep": {"seconds": seconds}} if has_sleep else {"exec": {"command": ["sleep", str(seconds)]}}


def _probes(given: Serving) -> Object:
    """Return the probes: a start may take as long as it is declared to; after it, a server that does not answer is
    ended."""
    models = {"httpGet": {"path": "/v1/models", "port": PORT}, "timeoutSeconds": 5}
    health = {"httpGet": {"path": "/health", "port": PORT}, "timeoutSeconds": 10}
    tries = math.ceil(given.startup_seconds / PERIOD)
    return {
        "startupProbe": {**models, "periodSeconds": PERIOD, "failureThreshold": tries},
        "readinessProbe": {**models, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": PERIOD, "failureThreshold": 6},
    }


def _environment(given: Serving) -> list[Object]:
    usual = {"HF_HOME": f"{CACHE}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
    if given.slice.kind == "tpu":
        usual["VLLM_XLA_CACHE_PATH"] = f"{CACHE}/xla"
    plain = {name: value for name, value in {**usual, **given.env}.items() if name not in given.secrets}
    found: list[Object] = [{"name": name, "value": value} for name, value in plain.items()]
    if "VLLM_HOST_IP" not in (*given.env, *given.secrets):
        found.append({"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    for name, reference in given.secrets.items():
        found.append({"name": name, "valueFrom": {"secretKeyRef": manifest.secret_key(name, reference)}})
    return found


# ---- the engine's words ----------------------------------------------------------------------------------------------


def arguments(given: Serving, model: Model) -> list[str]:
    """Return the words behind the command: the model, the addresses, the devices of the host, the user's options."""
    words = [model.path, "--served-model-name", given.model_name, "--host", "0.0.0.0", "--port", str(given.port)]
    if given.slice.kind != "cpu":
        words += ["--tensor-parallel-size", str(given.slice.devices_per_host)]
    if model.revision:
        words += ["--revision", model.revision]
    if model.scheme in ("gs", "s3") and "load_format" not in given.engine_options:
        words += ["--load-format", "runai_streamer"]  # which reads a bucket without a copy
    return [*words, *flags(given.engine_options)]


# ---- a router of llm-d, and KServe -----------------------------------------------------------------------------------


def _pool(given: Serving, deployment: Object) -> Object:
    name, port = given.picker
    spec = {
        "selector": {"matchLabels": selector(given, deployment)},
        "targetPorts": [{"number": given.port}],
        "endpointPickerRef": {"name": name, "kind": "Service", "port": {"number": port}, "failureMode": "FailOpen"},
    }
    return _object(POOLS, "InferencePool", given.name, given, spec)


def _route(given: Serving) -> Object:
    first, slash, second = given.gateway.partition("/")
    parent = {"name": second, "namespace": first} if slash else {"name": first}
    group, _, _ = POOLS.partition("/")
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [{"group": group, "kind": "InferencePool", "name": given.name}],
        "timeouts": {"request": "0s"},  # an answer may stream for as long as it takes
    }
    return _object(ROUTES, "HTTPRoute", given.name, given, {"parentRefs": [parent], "rules": [rule]})


def _llm_inference_service(given: Serving, model: Model, cluster: str) -> Object:
    """Return KServe's own object. Its presets start the engine: options go by the variable that they put behind it."""
    words = flags(given.engine_options)
    if any(any(letter.isspace() for letter in word) for word in words):
        raise UsageError(
            "with kind='llm_inference_service' the options of the engine go through a shell of KServe's preset, which "
            "divides them at spaces: give engine_options without spaces, or use kind='deployment'"
        )
    pod = _pod(given, model._replace(claim=""), cluster)  # KServe brings the model itself, from pvc:// too
    container = pod["containers"][0]
    more = [{"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(words)}] if words else []
    kept = {name: container[name] for name in ("image", "resources", "volumeMounts", "envFrom") if name in container}
    startup = {name: container["startupProbe"][name] for name in ("periodSeconds", "failureThreshold")}
    main = {"name": OF_KSERVE, **kept, "env": [*container["env"], *more], "startupProbe": startup}
    tensor = {} if given.slice.kind == "cpu" else {"parallelism": {"tensor": given.slice.devices_per_host}}
    spec = {
        "model": {"uri": model.uri, "name": given.model_name},
        "replicas": given.replicas,
        **tensor,
        "router": {"gateway": {}, "route": {}, "scheduler": {}},
        "template": {**pod, "containers": [main]},
    }
    return _object(KSERVE, "LLMInferenceService", given.name, given, spec)


def _whole(value: float | str) -> int:
    return math.ceil(seconds("", value) or 0.0)
