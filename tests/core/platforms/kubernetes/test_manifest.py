"""The JobSet of an attempt as data. Its print is held in golden/; that a cluster takes it is proved on a real one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names
from tests.core.platforms.kubernetes import attempts
from tests.core.platforms.kubernetes.attempts import CREATED, attempt_of, job_of, plan_of, pod_of, rendered

pytestmark = pytest.mark.fast

GOLDEN = Path(__file__).parent / "golden"
SEED = """
import json, sys
from tests.core.platforms.kubernetes.attempts import CASES, rendered
sys.stdout.write(json.dumps([rendered(plan) for plan in CASES.values()]))
"""
QUALIFIED = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"  # what Kubernetes takes as a label's value, and as a name


def golden(name: str, text: str) -> None:
    """Compare a text with the file that holds it. To change it on purpose, run with UPDATE_GOLDEN=1."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", attempts.CASES)
def test_the_set_is_as_it_was(name: str) -> None:
    own: dict[str, Any] = {"secrets": attempts.VALUES.get(name, {}), "autopilot": name in attempts.AUTOPILOT}
    shown = manifest.shown(rendered(attempts.CASES[name], **own))
    golden(f"{name}.yaml", re.sub(r"\(\d+ letters", "(… letters", shown) + "\n")


def test_every_accelerator_asks_for_its_nodes() -> None:
    """On GKE, where machines are known; a GPU's requests elsewhere are the least."""
    golden("accelerators.txt", "".join(f"{line(slice_)}\n" for slice_ in attempts.SLICES))


def line(slice_: Slice) -> str:
    spec = job_of(rendered(plan_of(slice_.name)))
    pod = spec["template"]["spec"]
    asked = " ".join(f"{key}={value}" for key, value in pod["containers"][0]["resources"]["requests"].items())
    found = [f"{key}={value}" for key, value in pod.get("nodeSelector", {}).items()]
    terms = pod["affinity"]["nodeAffinity"] if "affinity" in pod else {}
    for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ()):
        found += [f"{one['key']}={'|'.join(one['values'])}" for one in term["matchExpressions"]]
    tolerated = " ".join(one["key"] for one in pod.get("tolerations", ()))
    return (
        f"{slice_.name}: {spec['completions']} × {asked}; on {', '.join(found) or 'any'}; tolerates {tolerated or '-'}"
    )


def test_one_set_is_one_attempt_that_nothing_starts_again() -> None:
    for plan in attempts.ALL:
        jobset = rendered(plan)
        job, pod = job_of(jobset), pod_of(jobset)
        assert (job["completionMode"], job["backoffLimitPerIndex"], job["podReplacementPolicy"]) == (
            "Indexed",
            0,
            "Failed",
        )
        assert pod["restartPolicy"] == "Never"
        assert not {"failurePolicy", "successPolicy", "startupPolicy"} & set(jobset["spec"])
        assert job["parallelism"] == job["completions"] == plan.slice.hosts
        assert jobset["spec"]["replicatedJobs"][0]["replicas"] == plan.slices
        rules = job["podFailurePolicy"]["rules"]
        assert [rule["action"] for rule in rules] == ["FailJob", "FailJob"]
        assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert rules[1]["onExitCodes"]["containerName"] == pod["containers"][0]["name"]


def test_a_pod_has_no_right_in_its_cluster_and_is_left_where_it_is() -> None:
    for plan in attempts.ALL:
        jobset = rendered(plan)
        pod = pod_of(jobset)
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        annotations = job_of(jobset)["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
        assert not {"hostNetwork", "hostPID", "priorityClassName"} & set(pod)
        assert "privileged" not in json.dumps(pod)
        resources = pod["containers"][0]["resources"]
        for name, count in resources.get("limits", {}).items():
            assert name in (nodes.TPU, nodes.GPU) and resources["requests"][name] == count == str(
                plan.slice.chips_per_host
            )
        assert bool(resources.get("limits")) == (plan.slice.kind != "cpu")


def test_a_set_ends_and_goes_by_itself() -> None:
    for plan in attempts.ALL:
        jobset = rendered(plan, deadline=CREATED + 99.5)
        assert jobset["spec"]["ttlSecondsAfterFinished"] == 3600
        assert job_of(jobset)["activeDeadlineSeconds"] == pod_of(jobset)["activeDeadlineSeconds"] == 100
        endless = rendered(plan, deadline=CREATED + 1e12)
        assert pod_of(endless)["activeDeadlineSeconds"] == 2**31 - 1  # the longest that a pod may have
        assert "activeDeadlineSeconds" not in json.dumps(rendered(plan, deadline=0.0))
        assert job_of(rendered(plan, deadline=CREATED - 5))["activeDeadlineSeconds"] == 1


def test_a_pool_is_for_one_slice_of_several_hosts_alone() -> None:
    for plan in attempts.ALL:
        found = rendered(plan)["metadata"]["annotations"].get("alpha.jobset.sigs.k8s.io/exclusive-topology")
        is_exclusive = plan.slice.kind == "tpu" and plan.slice.hosts > 1
        assert found == ("cloud.google.com/gke-nodepool" if is_exclusive else None)


def test_names_are_short_enough_for_the_last_pod_of_the_last_attempt() -> None:
    for slice_ in {slice_.generation: slice_ for slice_ in attempts.SLICES}.values():  # the largest of each
        plan = plan_of(slice_.name, cloud=Kubernetes(num_slices=64 if slice_.kind == "tpu" else 1))
        attempt = attempt_of(plan, 1_000_000)
        name = manifest.render(attempt)["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        last = f"{names.pod(name, plan.slices - 1, plan.slice.hosts - 1)}-xxxxx"
        assert len(last) <= 63
        assert last == f"{name}-s-{plan.slices - 1}-{plan.slice.hosts - 1}-xxxxx"


def test_a_set_is_small() -> None:
    for plan in attempts.CASES.values():
        jobset = rendered(plan, key="k" * 64, secrets={f"SECRET_{index}": "x" for index in range(1000)})
        assert len(json.dumps(jobset)) < 400_000  # etcd takes 1.5 MB, with what the server and controllers add
        container = pod_of(jobset)["containers"][0]
        for word in (*container["command"], *(one.get("value", "") for one in container["env"])):
            assert len(word.encode()) < 128 << 10  # which Linux takes as one argument or variable


def test_the_same_attempt_gives_the_same_bytes_in_every_process() -> None:
    expected = json.dumps([rendered(plan) for plan in attempts.CASES.values()])
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", SEED], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == expected, done.stderr
    plan = attempts.CASES["everything"]
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert rendered(again) == rendered(plan)


# Labels


@pytest.mark.parametrize(
    "text", ["", " ", "Ä", "模型", "a" * 200, "-_.a.-", "Rank & Reco", "x" * 62 + "-y", "\n", "9", "=/:"]
)
def test_labels_are_what_kubernetes_takes_whatever_users_write(text: str) -> None:
    own = {f"{text}{index}": text for index in range(99)} | {text: "value", f"{text}-{'x' * 80}": text}
    plan = plan_of("v5e-8", deployment=text or "prod", labels=own)
    plan.cloud.update(dict.fromkeys(ownership.WHO, text))
    jobset = rendered(plan)
    for labels in (jobset["metadata"]["labels"], job_of(jobset)["template"]["metadata"]["labels"]):
        for key, value in labels.items():
            assert re.fullmatch(QUALIFIED, key) and re.fullmatch(f"({QUALIFIED})?", value), (key, value)


def test_everything_of_an_attempt_says_whose_it_is() -> None:
    plan = plan_of("v5e-8", labels={"kinetic-job": "another", "team": "Rank"})
    jobset = rendered(plan)
    kept = manifest.secret(attempt_of(plan, secrets={"TOKEN": "x"}), "uid")
    assert kept is not None
    for labels in (jobset["metadata"]["labels"], job_of(jobset)["template"]["metadata"]["labels"]):
        assert labels["team"] == "rank"
        owned = ownership.Owned("production-eu", attempts.JOB, 1, CREATED + 30 * 3600, attempts.SPEC[:20])
        assert ownership.owned(labels) == owned
        assert labels[ownership.MARK] == kept["metadata"]["labels"][ownership.MARK]


def test_bills_are_grouped_by_the_step_of_an_orchestrator_that_an_attempt_serves() -> None:
    """As on VMs: on everything that a bill may count."""
    identity = Identity("prod", "airflow", "manual__2026-11-27T00:00:00+00:00", "nightly.training/fit")
    plan = planner.completed(plan_of("v5e-8"), identity, ())
    plan.cloud["owner"] = "Ada@example.com"
    jobset, wanted = rendered(plan), {
        "pipeline": "nightly-training", "step": "fit", "run": "manual__2026-11-27t00-00-00-00-00",
        "owner": "ada-example-com",
    }  # fmt: skip
    [job] = jobset["spec"]["replicatedJobs"]
    for labelled in (jobset, job["template"], job["template"]["spec"]["template"]):
        assert {name: labelled["metadata"]["labels"].get(name) for name in wanted} == wanted


def test_a_queue_is_named_on_the_set_and_its_priority_is_kueues_alone() -> None:
    plan = plan_of("v5e-8", cloud=Kubernetes(queue="research", priority_class="urgent"))
    jobset = rendered(plan)
    labels = jobset["metadata"]["labels"]
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("research", "urgent")
    assert "kueue" not in json.dumps(jobset["spec"])


# Secrets


def test_no_value_of_a_secret_is_in_the_manifest() -> None:
    plan = plan_of("v5e-8", secrets=("TOKEN",), secret_refs={"KEY": "vault/api", "PASSWORD": "vault"})
    attempt = attempt_of(plan, secrets={"TOKEN": "the-value"})
    jobset = manifest.render(attempt)
    assert "the-value" not in json.dumps(jobset)
    env = {one["name"]: one for one in pod_of(jobset)["containers"][0]["env"]}
    name = jobset["metadata"]["name"]
    assert env["TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": name, "key": "TOKEN"}}
    assert env["KEY"]["valueFrom"] == {"secretKeyRef": {"name": "vault", "key": "api"}}
    assert env["PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "vault", "key": "PASSWORD"}}
    assert json.loads(env["KINETIC_ORDERS"]["value"])["secrets"] == ["KEY", "PASSWORD", "TOKEN"]
    kept = manifest.secret(attempt, "the-uid")
    assert kept is not None
    assert (kept["stringData"], kept["immutable"]) == ({"TOKEN": "the-value"}, True)
    assert kept["metadata"]["name"] == name
    assert kept["metadata"]["ownerReferences"] == [
        {"apiVersion": manifest.API, "kind": "JobSet", "name": name, "uid": "the-uid"}
    ]


def test_without_a_captured_value_there_is_no_secret() -> None:
    assert manifest.secret(attempt_of(plan_of("v5e-8", secret_refs={"KEY": "vault/api"})), "uid") is None


def test_the_kubelet_reads_no_variable_in_the_orders() -> None:
    """It would replace $(HOME), and make one of two dollars."""
    plan = plan_of("v5e-8", store="gs://bucket/$(HOME)/$$")
    [value] = [
        one["value"] for one in pod_of(rendered(plan))["containers"][0]["env"] if one["name"] == "KINETIC_ORDERS"
    ]
    assert json.loads(value.replace("$$", "$"))["store"] == "gs://bucket/$(HOME)/$$/Production EU"
    assert "$(" not in value.replace("$$", "")
    assert "$(" not in "".join(pod_of(rendered(plan))["containers"][0]["command"])


# Nodes


def test_a_gpu_asks_for_a_machine_of_gke_only_there() -> None:
    """Elsewhere, the same GPU may be in a machine of any size."""
    requests = [
        pod_of(rendered(plan_of("h100x8", zone=zone)))["containers"][0]["resources"]["requests"]
        for zone in (attempts.GKE, "on-premises/team")
    ]
    named = pod_of(rendered(plan_of("h100x8", zone="research/team", backend="gke")))["containers"][0]["resources"]
    assert named["requests"] == requests[0]
    assert requests == [{"cpu": "206", "memory": "1758Gi", nodes.GPU: "8"}, {**nodes.LEAST, nodes.GPU: "8"}]


@pytest.mark.parametrize("name", ["v6e-16", "a100x4", "gpu:2", "cpu:4"])
def test_spot_capacity_is_asked_for_and_tolerated(name: str) -> None:
    zone = "on-premises/team"
    pods = [
        pod_of(rendered(plan)) for plan in (plan_of(name, zone=zone, spot=True), plan_of(f"{name}:spot", zone=zone))
    ]
    if name == "cpu:4":
        pods = pods[:1]  # no slice of processors has a price of spot capacity
    for pod in pods:
        assert {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"} in pod["tolerations"]
        if name == "v6e-16":
            assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
            assert "affinity" not in pod
            continue
        for term in terms_of(pod):
            assert term[-1]["key"] in dict(manifest.SPOT)
    for plain in (pod_of(rendered(plan_of(name))),):
        assert "spot" not in json.dumps({**plain, "containers": []})
    on_gke = pod_of(rendered(plan_of(name, spot=True)))
    assert on_gke["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert [one["key"] for one in on_gke["tolerations"] if "spot" in one["key"]] == ["cloud.google.com/gke-spot"]
    assert "affinity" not in on_gke


def test_on_gke_a_selector_names_the_gpus_for_which_nodes_are_to_be_made() -> None:
    """Its Autopilot and its auto-provisioning ask for no choice of labels."""
    for plan in (plan_of("h100x8"), plan_of("h100x8", zone="prod/team", backend="gke", project="ours")):
        pod = pod_of(rendered(plan))
        assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
        assert "affinity" not in pod
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize("name", ["v5e-16", "l4", "cpu:4"])
def test_a_compute_class_is_named_by_its_label_and_its_taint_tolerated(name: str) -> None:
    chosen = {"cloud.google.com/compute-class": "training"}
    pod = pod_of(rendered(plan_of(name, cloud=Kubernetes(node_selector=chosen))))
    tpu = nodes.node(plan_of(name).slice).labels if name == "v5e-16" else {}
    assert pod["nodeSelector"] == {**tpu, **chosen}
    taint = {"key": "cloud.google.com/compute-class", "operator": "Equal", "value": "training"}
    assert taint in pod["tolerations"]


def terms_of(pod: dict[str, Any]) -> list[list[dict[str, Any]]]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def test_a_named_gpu_is_found_by_either_label_unless_users_say_by_which() -> None:
    found = pod_of(rendered(plan_of("a100x4", zone="on-premises/team")))
    assert [[one["key"] for one in term] for term in terms_of(found)] == [[nodes.GPU_ACCELERATOR], [nodes.GPU_PRODUCT]]
    chosen = pod_of(rendered(plan_of("a100x4", cloud=Kubernetes(node_selector={"gpu": "a100"}))))
    assert chosen["nodeSelector"] == {"gpu": "a100"}
    assert "affinity" not in chosen
    any_model = pod_of(rendered(plan_of("gpu:2")))
    assert not {"nodeSelector", "affinity"} & set(any_model)


def requests_of(plan: Plan, **more: Any) -> dict[str, str]:
    found: dict[str, str] = pod_of(rendered(plan, **more))["containers"][0]["resources"]["requests"]
    return found


@pytest.mark.parametrize("name", [slice_.name for slice_ in attempts.SLICES])
def test_on_autopilot_pods_ask_for_disk_but_in_a_queue_which_may_have_no_quota_of_it(name: str) -> None:
    """Without a request they get 1 GiB there, and are evicted if they use more."""
    for zone in (attempts.GKE, "prod/team"):
        plan = plan_of(name, zone=zone, backend="gke", project="ours")
        asked = requests_of(plan, autopilot=True)
        assert asked.pop("ephemeral-storage") == "9Gi"
        assert {**asked, "memory": ""} == {**requests_of(plan), "memory": ""}
    queued = plan_of(name, cloud=Kubernetes(queue="research"))
    assert requests_of(queued, autopilot=True) == requests_of(queued)


def test_on_autopilot_pods_ask_for_less_memory_than_fits_since_too_much_would_be_refused() -> None:
    for name, share in (("a100-80gb", 0.85), ("h100x8", 0.85), ("v5e-8", 0.85), ("cpu:4", 1.0), ("gpu:2", 1.0)):
        there, elsewhere = (requests_of(plan_of(name), autopilot=autopilot)["memory"] for autopilot in (True, False))
        assert int(there.removesuffix("Gi")) == pytest.approx(int(elsewhere.removesuffix("Gi")) * share, abs=1.0)


def test_in_a_queue_on_gke_only_accelerators_count() -> None:
    """Its quotas are of these, and of nothing else on most clusters; the node is the pod's alone in any case."""
    queue = Kubernetes(queue="research")
    for name, zone, counted in (
        ("v5e-8", attempts.GKE, {nodes.TPU: "8"}),
        ("h100x8", attempts.GKE, {nodes.GPU: "8"}),
        ("h100x8", "on-premises/team", {**nodes.LEAST, nodes.GPU: "8"}),
    ):
        resources = pod_of(rendered(plan_of(name, zone=zone, cloud=queue)))["containers"][0]["resources"]
        assert resources["requests"] == counted


def test_labels_of_users_go_beside_those_of_tpus() -> None:
    pod = pod_of(rendered(plan_of("v5e-8", cloud=Kubernetes(node_selector={"cloud.google.com/reservation-name": "r"}))))
    assert list(pod["nodeSelector"]) == [nodes.TPU_ACCELERATOR, nodes.TPU_TOPOLOGY, "cloud.google.com/reservation-name"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dedicated", {"key": "dedicated", "operator": "Exists"}),
        ("team=a", {"key": "team", "operator": "Equal", "value": "a"}),
        ("team=", {"key": "team", "operator": "Equal", "value": ""}),
        ("a/b=c:NoExecute", {"key": "a/b", "operator": "Equal", "value": "c", "effect": "NoExecute"}),
        ("dedicated:NoSchedule", {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}),
    ],
)
def test_a_toleration_is_written_as_kubectl_taint_writes_it(text: str, expected: dict[str, str]) -> None:
    assert manifest.toleration(text) == expected


@pytest.mark.parametrize("text", ["", "=x", ":NoSchedule", "a:noschedule", "a=b:c:NoSchedule"])
def test_what_is_no_taint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="write key, key=value or key=value:NoSchedule"):
        manifest.toleration(text)


@pytest.mark.parametrize("text", ["a b", "a=b c", "team=-x:NoSchedule"])
def test_a_taint_that_no_node_can_have_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"tolerations=….* which Kubernetes never accepts"):
        manifest.toleration(text)


# Containers


def test_the_image_is_the_users_or_the_python_of_the_job() -> None:
    image = "us-docker.pkg.dev/ours/images/train:7"
    assert pod_of(rendered(plan_of("v5e-8", image=image)))["containers"][0]["image"] == image
    assert pod_of(rendered(plan_of("v5e-8")))["containers"][0]["image"] == "python:3.11"


def test_a_pod_may_run_without_any_right_of_root() -> None:
    """As the Pod Security Standard "restricted" wants it: tested on a real server, too."""
    pod = pod_of(rendered(plan_of("v5e-8", cloud=Kubernetes(run_as_user=1000))))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "securityContext" not in json.dumps(pod_of(rendered(plan_of("v5e-8"))))


def test_what_users_are_shown_is_yaml_of_the_whole_but_for_the_program() -> None:
    for plan in attempts.CASES.values():
        jobset = rendered(plan)
        found = yaml.safe_load(manifest.shown(jobset))
        command = pod_of(found)["containers"][0]["command"]
        assert re.fullmatch(r"\(\d+ letters: the program that fetches the agent\)", command[-1])
        command[-1] = pod_of(jobset)["containers"][0]["command"][-1]
        assert found == jobset
