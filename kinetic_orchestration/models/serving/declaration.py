"""Declares a model server on Kubernetes, and checks the declaration where it is written. Pure.

It resolves names (an accelerator, a model's address) and knows no manifest and no cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Protocol

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration import cluster_names
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice

Kind = Literal["deployment", "inference_pool", "llm_inference_service"]
Strategy = Literal["recreate", "in_place", "blue_green"]

KINDS: Final = ("deployment", "inference_pool", "llm_inference_service")
STRATEGIES: Final = ("recreate", "in_place", "blue_green")
# A first start compiles for 10 to 30 minutes on a TPU, after the image and the weights have come.
STARTUP: Final = {"tpu": 3600.0, "gpu": 1800.0, "cpu": 900.0}
LEAST_ON_TPU: Final = 2700.0
LONGEST_NAME: Final = 40  # with what is put behind it, it still names a Service
_WITHOUT_IMAGE: Final = {"tpu": "vllm/vllm-tpu", "gpu": "vllm/vllm-openai", "cpu": "your build of vLLM for CPUs"}
_OURS: Final = ("model", "host", "port", "served_model_name", "tensor_parallel_size", "api_key")
_OF_JOBS: Final = (
    "num_slices", "hosts", "queue", "priority_class", "reservation", "flex_start", "queued_provisioning", "namespaces",
)  # fmt: skip
_OPTION: Final = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Located(Protocol):
    """A model that was promoted: it has an address."""

    @property
    def uri(self) -> str: ...


class Model(NamedTuple):
    """The address of a model, as its server finds it.

    Attributes:
        uri: The address as it was given.
        scheme: gs, s3, hf or pvc.
        path: What the server is told: the address itself, a repository, or a path.
        revision: Of a repository.
        claim: The PersistentVolumeClaim that has it.
    """

    uri: str
    scheme: str
    path: str
    revision: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """Questions that a model server has to answer before it gets its traffic.

    Attributes:
        expected: Prompts and their greedy completions, such as those of a batch evaluation of the same model.
        tolerance: Share of each answer that may differ, from its first differing letter on, averaged over the prompts.
            Other hardware and other batch sizes round otherwise: 0.0 asks for equal answers.
        max_tokens: Length of the completions in tokens, as `expected` was made with.
        latency: Seconds that one answer may take, or text with a unit.
        patience: Seconds until the server's name is seen in its list of models.
    """

    expected: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.0
    max_tokens: int = 16
    latency: float | str = 60.0
    patience: float | str = 60.0

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) and text for pair in self.expected.items() for text in pair):
            raise UsageError("SmokeTest(expected=…) is a mapping of prompts to their answers, none of which is empty")
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"SmokeTest(tolerance={self.tolerance!r}): give a share, at least 0 and less than 1")
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise UsageError(f"SmokeTest(max_tokens={self.max_tokens!r}): give a number of tokens, 1 or more")
        for name in ("latency", "patience"):
            _positive(f"SmokeTest({name}=…)", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Serving:
    """A model server on Kubernetes.

    Attributes:
        name: Name of the server, of its Service, and of its model unless `served_name` is given.
        accelerator: Accelerator of each replica, as `run` reads it, of one host; `cpu` for a server without one.
        image: Image that has the engine, with a tag that does not move or a digest: a rollback starts it again.
        namespace: Namespace of the cluster.
        replicas: Number of servers.
        kind: `deployment` is a Deployment and a Service. `inference_pool` has an InferencePool and an HTTPRoute
        besides,
            as llm-d's router takes them. `llm_inference_service` leaves all of it to KServe.
        engine_options: Options of `vllm serve`, such as `{"max_model_len": 8192}`: True and False are a switch, a
        mapping
            becomes JSON, a sequence several words.
        served_name: Name of the model in requests.
        command: Command of the container before its options; by default `vllm serve`.
        env: Variables of the container. No value is a secret.
        secrets: Variables whose values are in Secrets of the namespace: `{"HF_TOKEN": "hf/token"}` is the entry `token`
            of the Secret `hf`.
        cluster: Cluster: a context of the kubeconfig, or a name on GKE. By default that of the settings.
        cloud: Options of Kubernetes for the pods: node_selector, tolerations, service_account, image_pull_secrets,
            run_as_user, env_from, labels.
        strategy: `recreate` ends the old servers first, as an accelerator cannot be shared. `in_place` replaces one
            replica at a time without asking for one more. `blue_green` starts the new ones beside the old, and switches
            to them after the smoke test: it takes twice the accelerators for that time.
        smoke: Questions to ask before the deployment counts; by default whether it answers at all. None asks nothing.
        startup: Time in which a server has to be ready once it has started: by default an hour on TPUs.
        wait: Time in which each pod has to find a node with its accelerator.
        longest_request: Time for which requests go on after their server is told to end.
        cache_claim: PersistentVolumeClaim that keeps compiled programs and downloads; by default they go with the pod.
        gateway: Gateway of the HTTPRoute, for `inference_pool`, as `NAME` or `NAMESPACE/NAME`.
        endpoint_picker: Service of the router's endpoint picker as `NAME:PORT`, for `inference_pool`; by default that
            which llm-d's chart makes for a pool of this name.
        port: Port of the servers and of the Service.
    """

    name: str
    accelerator: str = "cpu"
    image: str = ""
    namespace: str = "serving"
    replicas: int = 1
    kind: Kind = "deployment"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    served_name: str = ""
    command: Sequence[str] = ("vllm", "serve")
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    cloud: Kubernetes | None = None
    strategy: Strategy = "recreate"
    smoke: SmokeTest | None = field(default_factory=SmokeTest)
    startup: float | str | None = None
    wait: float | str = "15m"
    longest_request: float | str = 30.0
    cache_claim: str = ""
    gateway: str = "inference-gateway"
    endpoint_picker: str = ""
    port: int = 8000

    def __post_init__(self) -> None:
        _check_names(self)
        _check_hardware(self)
        _check_words(self)
        _check_cloud(self)

    @property
    def slice(self) -> Slice:
        """The accelerator of one replica."""
        return accelerators.parse(self.accelerator)

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        return self.served_name or self.name

    @property
    def startup_seconds(self) -> float:
        """The time in which a server has to be ready."""
        return seconds("startup", self.startup) or STARTUP[self.slice.kind]

    @property
    def picker(self) -> tuple[str, int]:
        """The Service of the endpoint picker, and its port."""
        name, _, port = (self.endpoint_picker or f"{self.name}-epp:9002").partition(":")
        return name, int(port or 9002)


def model_of(model: str | Located) -> Model:
    """Return the model at an address, or that was promoted. Raises UsageError if no pod finds it there."""
    uri = model if isinstance(model, str) else getattr(model, "uri", None)
    if not isinstance(uri, str):
        raise UsageError(f"deploy takes a model's address, or what promote returned, not {model!r}")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise UsageError(
            f"the model {uri!r} is a path of this machine, which no pod of the cluster sees: promote it to a bucket "
            "(gs://…, s3://…), or name a volume of the cluster (pvc://CLAIM/PATH) or a repository (hf://OWNER/NAME)"
        )
    rest = rest.rstrip("/")
    if scheme in ("gs", "s3") and rest:
        return Model(uri, scheme, f"{scheme}://{rest}")
    if scheme == "hf" and "/" in rest:
        name, _, revision = rest.partition("@")
        return Model(uri, scheme, name, revision=revision)
    if scheme == "pvc" and rest:
        claim, _, path = rest.partition("/")
        cluster_names.check("the model's volume", claim, cluster_names.OBJECT)
        return Model(uri, scheme, f"/model/{path}".rstrip("/"), claim=claim)
    raise UsageError(
        f"no model server reads a model at {uri!r}: give gs://BUCKET/PATH, s3://BUCKET/PATH, hf://OWNER/NAME, with "
        "@REVISION behind it, or pvc://CLAIM/PATH"
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_names(given: Serving) -> None:
    rule = cluster_names.NAMESPACE._replace(
        longest=LONGEST_NAME,
        says=cluster_names.NAMESPACE.says.replace("a namespace", "the name of a server").replace(
            "63", str(LONGEST_NAME)
        ),
    )
    cluster_names.check("Serving(name=…)", given.name, rule)
    if not given.name[0].isalpha():
        raise UsageError(f"Serving(name={given.name!r}): the name of a Service begins with a letter")
    cluster_names.check("Serving(namespace=…)", given.namespace, cluster_names.NAMESPACE)
    if given.cache_claim:
        cluster_names.check("Serving(cache_claim=…)", given.cache_claim, cluster_names.OBJECT)
    if given.kind not in KINDS:
        raise UsageError(f"Serving(kind={given.kind!r}): give one of {', '.join(KINDS)}")
    if given.strategy not in STRATEGIES:
        raise UsageError(f"Serving(strategy={given.strategy!r}): give one of {', '.join(STRATEGIES)}")
    if given.kind == "llm_inference_service" and given.strategy == "blue_green":
        raise Unsupported(
            "KServe makes the Deployments of an LLMInferenceService itself, so no second one stands beside it: use "
            "kind='deployment' with blue_green, or the route of KServe's own canary"
        )
    part, _, port = given.endpoint_picker.partition(":")
    if given.endpoint_picker and not (part and (port.isdecimal() or not port)):
        raise UsageError(f"Serving(endpoint_picker={given.endpoint_picker!r}): give NAME or NAME:PORT")


def _check_hardware(given: Serving) -> None:
    slice_ = given.slice
    if slice_.machines > 1:
        raise Unsupported(
            f"{slice_.name} is a slice of {slice_.hosts} hosts, and one model server is rendered for one host: over "
            "several, vLLM needs a LeaderWorkerSet with Ray, which its release of August 2026 calls untested on v6e. "
            f"Choose a slice of one host, such as {_smaller(slice_)}, and more replicas, or a smaller or quantised "
            "model"
        )
    if not given.image:
        raise UsageError(
            f"Serving(image=…) is missing: name the image with the engine for {slice_.name} "
            f"({_WITHOUT_IMAGE[slice_.kind]}), with a tag or a digest that you have tried. There is no default, "
            "since a "
            "tag that moves would have a rollback start another program"
        )
    if not isinstance(given.replicas, int) or given.replicas < 1:
        raise UsageError(f"Serving(replicas={given.replicas!r}): give a number of servers, 1 or more")
    if not isinstance(given.port, int) or not 0 < given.port < 65536:
        raise UsageError(f"Serving(port={given.port!r}): give a number up to 65535")
    for name in ("wait", "longest_request"):
        _positive(f"Serving({name}=…)", getattr(given, name))
    if given.startup is not None:
        _positive("Serving(startup=…)", given.startup)
    if slice_.kind == "tpu" and given.startup_seconds < LEAST_ON_TPU:
        raise UsageError(
            f"Serving(startup={given.startup!r}) is too short for a TPU: a first start compiles for 10 to 30 minutes "
            "after the weights have come, and a server that is ended before begins anew. Give 45m or more"
        )


def _smaller(slice_: Slice) -> str:
    """Return the largest slice of one host of the same kind."""
    sizes = (2**power for power in range(5, -1, -1))
    for size in sizes:
        try:
            found = accelerators.parse(f"{slice_.generation}-{size}" if slice_.kind == "tpu" else slice_.generation)
        except UsageError:
            continue
        if found.machines == 1:
            return found.name
    return slice_.generation


def _check_words(given: Serving) -> None:
    if isinstance(given.command, str) or not given.command:
        raise UsageError(f"Serving(command={given.command!r}): give a sequence of words, such as ('vllm', 'serve')")
    for name, value in given.engine_options.items():
        if not isinstance(name, str) or not _OPTION.fullmatch(name):
            raise UsageError(f"Serving(engine_options=…) has the option {name!r}: write it as in Python, max_model_len")
        if name in _OURS:
            raise UsageError(f"Serving(engine_options=…) has {name!r}, {_INSTEAD[name]}")
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            raise UsageError(f"Serving(engine_options=…) has {name}={value!r}: leave it out, or give a value")
    for name in (*given.env, *given.secrets):
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise UsageError(f"Serving has a variable {name!r}, which no container can have")
    if both := given.env.keys() & given.secrets.keys():
        raise UsageError(f"Serving has {min(both)} in env= and in secrets=: keep one of them")
    if "VLLM_API_KEY" in (*given.env, *given.secrets):
        raise Unsupported(
            "a server with VLLM_API_KEY answers neither the cluster's probes nor the smoke test, which reach it "
            "through "
            "the API server and cannot show a key: let the gateway ask for it"
        )
    for name, reference in given.secrets.items():
        secret, slash, key = reference.partition("/")
        cluster_names.check(f"Serving(secrets=…) of {name}", secret, cluster_names.OBJECT)
        if slash:
            cluster_names.check(f"Serving(secrets=…) of {name}", key, cluster_names.KEY_OF_SECRET)


_INSTEAD: Final = {
    "model": "which is the first argument of deploy",
    "host": "which the pods need as it is: the cluster's probes and the Service come from outside",
    "port": "which is Serving(port=…)",
    "served_model_name": "which is Serving(served_name=…)",
    "tensor_parallel_size": "which follows from the accelerator: all devices of the host",
    "api_key": "which everyone who may read the Deployment would read: let the gateway ask for a key",
}


def _check_cloud(given: Serving) -> None:
    if given.cloud is None:
        return
    if not isinstance(given.cloud, Kubernetes):
        raise UsageError(f"Serving(cloud={given.cloud!r}): give Kubernetes(…), as only a cluster has servers")
    usual = Kubernetes()
    for name in (entry.name for entry in fields(given.cloud)):
        if name in _OF_JOBS and getattr(given.cloud, name) != getattr(usual, name):
            raise Unsupported(f"Kubernetes({name}=…) is of jobs, and means nothing to a model server: leave it out")
    if len(given.cloud.clusters) > 1:
        raise Unsupported("a model server is deployed to one cluster: call deploy once for each of them")


def _positive(option: str, value: float | str) -> None:
    found = seconds(option, value)
    if not found or not math.isfinite(found):
        raise UsageError(f"{option} has {value!r}: give seconds, or a text such as '90s', '15m' or '2h'")
