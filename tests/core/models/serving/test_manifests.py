"""The manifests of model servers, as golden files, and what each of them must hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.serving import manifests
from kinetic_orchestration.models.serving.declaration import Serving, model_of
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from tests.support.pages import blocks

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).parent / "golden"
ON_GKE = "gke_my-project_us-east5-a_serving"

SERVERS: dict[str, tuple[str, Serving]] = {
    "tpu": (
        "gs://models/ranker/7",
        Serving(
            "ranker", "v6e-8", image="vllm/vllm-tpu:tried", secrets={"HF_TOKEN": "hf/token"}, replicas=2, strategy="in_place",
            engine_options={"max_model_len": 8192, "enable_prefix_caching": True},
        ),
    ),
    "tpu7x": (
        "pvc://weights/ranker/7",
        Serving("ranker", "tpu7x-4:spot", image="vllm/vllm-tpu:tried", cache_claim="compiled", startup="90m"),
    ),
    "gpu-on-gke": (
        "hf://owner/ranker@0123abc",
        Serving(
            "ranker", "l4x4", image="vllm/vllm-openai:tried", cluster=ON_GKE, strategy="blue_green",
            engine_options={"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
        ),
    ),
    "gpu-elsewhere": (
        "s3://models/ranker/7",
        Serving(
            "ranker", "a100", image="vllm/vllm-openai:tried", served_name="ranker-v2", longest_request="5m",
            cloud=Kubernetes(
                tolerations=("team=ml:NoSchedule",), service_account="reader", image_pull_secrets=("registry",),
                env_from=("s3-credentials",), run_as_user=1000, labels={"team": "search"},
            ),
        ),
    ),
    "pool": (
        "gs://models/ranker/7",
        Serving("ranker", "v5e-4", image="vllm/vllm-tpu:tried", kind="inference_pool", gateway="gateways/inference"),
    ),
    "kserve": (
        "gs://models/ranker/7",
        Serving(
            "ranker", "v6e-4", image="vllm/vllm-tpu:tried", kind="llm_inference_service", engine_options={"max_model_len": 8192}
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_the_manifests_are_those_of_the_golden_file(name: str) -> None:
    model, serving = SERVERS[name]
    shown = kinetic.deploy(model, serving, dry_run=True)
    assert shown == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


def test_the_program_of_the_page_is_one() -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "training").rglob("*.md")]
    [program] = [block for page in pages for block in blocks(page) if block.startswith("# deploy.py\n")]
    declared: dict[str, Any] = {"__name__": "deploy"}
    exec(program, declared)
    shown = kinetic.deploy(declared["model"], declared["serving"], dry_run=True)
    assert 'google.com/tpu: "8"' in shown
    assert 'key: "token"' in shown


def rendered(model: str = "gs://models/ranker/7", **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Deployment and its container."""
    given = Serving("ranker", **{"image": "image:1", **more})
    deployment = manifests.render(given, model_of(model))[0]
    return deployment["spec"], deployment["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("accelerator", ["v6e-1", "v5e-4", "tpu7x-4", "l4", "h100x8", "cpu"])
def test_a_rollout_fails_later_than_a_start_may_take(accelerator: str) -> None:
    spec, container = rendered(accelerator=accelerator)
    startup = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    pod = spec["template"]["spec"]
    assert spec["progressDeadlineSeconds"] > startup + pod["terminationGracePeriodSeconds"]
    assert startup >= 2700 or not accelerator.startswith(("v", "tpu"))
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_a_cluster_that_has_no_sleep_gets_the_program_of_the_image() -> None:
    given = Serving("ranker", image="image:1", longest_request="5m")
    new, old = (manifests.render(given, model_of("gs://models/1"), has_sleep=known)[0] for known in (True, False))
    ends = [one["spec"]["template"]["spec"]["containers"][0].pop("lifecycle")["preStop"] for one in (new, old)]
    assert ends == [{"sleep": {"seconds": 300}}, {"exec": {"command": ["sleep", "300"]}}]
    marks = [one["spec"]["template"]["metadata"]["labels"].pop(manifests.SET) for one in (new, old)]
    assert marks[0] != marks[1] and new == old, "they are two sets, which differ in nothing else"


@pytest.mark.parametrize("strategy", ["recreate", "in_place", "blue_green"])
def test_no_rollout_asks_for_one_accelerator_more_than_declared(strategy: str) -> None:
    spec, _ = rendered(accelerator="v6e-8", strategy=strategy)
    rolling = spec["strategy"].get("rollingUpdate")
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1} if strategy == "in_place" else rolling is None
    assert spec["strategy"]["type"] == ("RollingUpdate" if strategy == "in_place" else "Recreate")


@pytest.mark.parametrize(
    ("accelerator", "devices"),
    [("v6e-8", "8"), ("v5e-1", "1"), ("tpu7x-4", "8"), ("v4-4", "4"), ("l4x2", "2"), ("cpu", "")],
)
def test_the_server_uses_all_devices_of_its_host(accelerator: str, devices: str) -> None:
    _, container = rendered(accelerator=accelerator)
    words = container["args"]
    told = words[words.index("--tensor-parallel-size") + 1] if "--tensor-parallel-size" in words else ""
    assert told == devices


def test_a_loader_that_is_chosen_stays() -> None:
    _, container = rendered(engine_options={"load_format": "auto"})
    assert "runai_streamer" not in container["args"]


def test_a_second_server_beside_the_first_has_another_name_only_if_it_is_another() -> None:
    def named(**more: Any) -> str:
        given = Serving("ranker", image="image:1", strategy="blue_green", **more)
        return str(manifests.render(given, model_of("gs://models/1"))[0]["metadata"]["name"])

    assert named() == named(replicas=3) != named(engine_options={"max_model_len": 1})
    assert named().startswith("ranker-")


def test_kserve_divides_options_at_spaces() -> None:
    given = Serving(
        "ranker", "v6e-4", image="i:1", kind="llm_inference_service", engine_options={"chat_template": "a b"}
    )
    with pytest.raises(UsageError, match="divides them at spaces"):
        manifests.render(given, model_of("gs://models/1"))


def test_a_variable_that_the_user_gives_is_there_once_and_is_theirs() -> None:
    given = Serving(
        "ranker", image="i:1", env={"VLLM_HOST_IP": "127.0.0.1"}, secrets={"HF_HOME": "hf/home"}
    )  # of a name that is ours otherwise
    found = manifests.render(given, model_of("gs://m/1"))[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    names = [one["name"] for one in found]
    assert len(names) == len(set(names)), "a server refuses a name that comes twice"
    told = {one["name"]: one for one in found}
    assert told["VLLM_HOST_IP"]["value"] == "127.0.0.1" and "secretKeyRef" in told["HF_HOME"]["valueFrom"]
