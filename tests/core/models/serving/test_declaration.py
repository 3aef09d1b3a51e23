"""Tests that what cannot be served is refused where it is declared, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.models.serving.declaration import Serving, SmokeTest, model_of
from kinetic_orchestration.plan.declare.cloud import Kubernetes, TpuVm

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "Ranker"}, "the name of a server has small letters"),
    ({"name": "a" * 41}, "41|40 letters"),
    ({"name": "1a"}, "begins with a letter"),
    ({"namespace": "a_b"}, "a namespace has small letters"),
    ({"kind": "helm"}, "kind='helm'.*deployment, inference_pool, llm_inference_service"),
    ({"strategy": "rolling"}, "recreate, in_place, blue_green"),
    ({"kind": "llm_inference_service", "strategy": "blue_green"}, "KServe makes the Deployments"),
    ({"accelerator": "v6e-16"}, r"v6e-16 is a slice of 4 hosts.*untested on v6e.*such as v6e-8"),
    ({"accelerator": "tpu7x-8"}, r"2 hosts.*such as tpu7x-4"),
    ({"accelerator": "v9-1"}, "No accelerator"),
    ({"accelerator": "v6e-8", "image": ""}, r"image=….*v6e-8 \(vllm/vllm-tpu\).*no default"),
    ({"accelerator": "l4", "image": ""}, "vllm/vllm-openai"),
    ({"replicas": 0}, "replicas=0"),
    ({"port": 70000}, "port=70000"),
    ({"accelerator": "v6e-1", "startup": "20m"}, "too short for a TPU.*45m or more"),
    ({"startup": "soon"}, "give seconds, or a text"),
    ({"wait": 0}, r"wait=….*has 0"),
    ({"command": "vllm serve"}, "a sequence of words"),
    ({"engine_options": {"--max-model-len": 1}}, "write it as in Python"),
    ({"engine_options": {"tensor_parallel_size": 4}}, "follows from the accelerator"),
    ({"engine_options": {"api_key": "x"}}, "let the gateway ask"),
    ({"engine_options": {"seed": None}}, "leave it out"),
    ({"env": {"A B": "1"}}, "a variable 'A B'"),
    ({"env": {"A": "1"}, "secrets": {"A": "s/k"}}, "A in env= and in secrets="),
    ({"secrets": {"VLLM_API_KEY": "s/k"}}, "answers neither the cluster's probes"),
    ({"secrets": {"A": "S/k"}}, "secrets=….*of A"),
    ({"cloud": TpuVm()}, r"give Kubernetes\(…\)"),
    ({"cloud": Kubernetes(queue="research")}, r"Kubernetes\(queue=…\) is of jobs"),
    ({"cloud": Kubernetes(clusters=("a", "b"))}, "once for each of them"),
    ({"endpoint_picker": "a:b"}, "NAME or NAME:PORT"),
    ({"smoke": None, "cache_claim": "A"}, "cache_claim"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Serving(**{"name": "ranker", "image": "image:1", **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"expected": {"a": ""}}, "none of which is empty"),
        ({"tolerance": 1}, "less than 1"),
        ({"max_tokens": 0}, "1 or more"),
        ({"latency": -1}, "cannot be negative"),
        ({"patience": 0}, "give seconds"),
    ],
)
def test_a_smoke_test_that_cannot_fail_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SmokeTest(**given)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("models/ranker", "a path of this machine, which no pod of the cluster sees"),
        ("/models/ranker", "promote it to a bucket"),
        ("file:///models/ranker", "no model server reads"),
        ("gs://", "no model server reads"),
        ("hf://ranker", "hf://OWNER/NAME"),
        ("pvc://A_B/x", "the model's volume"),
        (7, "not 7"),
    ],
)
def test_a_model_that_no_pod_finds_is_refused(model: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        model_of(model)


def test_a_model_is_found_by_its_address_or_by_what_has_one() -> None:
    class Promoted:
        uri = "gs://models/ranker/7/"

    assert model_of(Promoted()).path == "gs://models/ranker/7"
    assert model_of("hf://owner/name@abc")[2:4] == ("owner/name", "abc")
    assert model_of("pvc://claim/a/b")[2:] == ("/model/a/b", "", "claim")


def test_deploy_takes_a_declaration() -> None:
    with pytest.raises(UsageError, match="takes a Serving"):
        kinetic.deploy("gs://models/1", "ranker")  # type: ignore[call-overload]


def test_a_server_of_a_slice_of_several_hosts_is_unsupported_by_name() -> None:
    with pytest.raises(Unsupported, match="LeaderWorkerSet with Ray"):
        Serving("ranker", "v5p-8", image="image:1")
