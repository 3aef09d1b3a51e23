"""Answers of a real Kubernetes about jobs that end, fail, wait and are refused; the tests' own nodes are as a kubelet's.

These sentences are what a backend reads: a new version of Kubernetes, JobSet or Kueue that says them otherwise is seen here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.pods.nodes import EVICTED, KILLED, OOM_KILLED, Node, NodeGroup, tpu_pool
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(5)]

GROUP = "/apis/jobset.x-k8s.io/v1alpha2"
TPU = {"google.com/tpu": "4"}
RULES = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64]}},
]
FOREVER = "exec sleep 600"
OF_HOST = 'test "$JOB_COMPLETION_INDEX" = 1'


def container(script: str, **more: Any) -> Object:
    return {"name": "main", "image": "python:3.11", "command": ["sh", "-c", script], **more}


def pod_of(script: str, **more: Any) -> Object:
    return {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False, "containers": [container(script)], **more,
    }  # fmt: skip


def jobset(name: str, script: str, *, hosts: int = 2, labels: dict[str, str] | None = None, **more: Any) -> Object:
    """A JobSet of one slice; what is more is of its pods, but for the deadline of its Job."""
    deadline = {key: more.pop(key) for key in ("activeDeadlineSeconds",) if key in more}
    pod = pod_of(script, **more)
    pod["containers"] = [container(script, resources={"limits": TPU})]
    job = {
        "completionMode": "Indexed", "parallelism": hosts, "completions": hosts, "backoffLimit": 0,
        "podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": RULES}, "template": {"spec": pod}, **deadline,
    }  # fmt: skip
    spec = {"replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": job}}]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
    }  # fmt: skip


class Place:
    """A namespace, and what is to be seen in it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def path(self, kind: str) -> str:
        group = {
            "jobsets": GROUP, "jobs": "/apis/batch/v1", "workloads": "/apis/kueue.x-k8s.io/v1beta2",
            "localqueues": "/apis/kueue.x-k8s.io/v1beta2", "leases": "/apis/coordination.k8s.io/v1",
            "provisioningrequests": "/apis/autoscaling.x-k8s.io/v1",
        }.get(kind.partition("?")[0], "/api/v1")  # fmt: skip
        return f"{group}/namespaces/{self.namespace}/{kind}"

    def create(self, kind: str, body: Object) -> Object:
        return self.api.create(self.path(kind), body)

    def all(self, kind: str) -> list[Object]:
        return list(self.api.get(self.path(kind))["items"])

    def pods(self, *phases: str) -> list[Object]:
        """The pods, by their names; of these phases only, if any is named, and not about to go."""
        found = [
            pod
            for pod in self.all("pods")
            if not phases or (pod["status"].get("phase") in phases and "deletionTimestamp" not in pod["metadata"])
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def await_pods(self, number: int, phase: str = "Running") -> list[Object]:
        return wait_until(
            lambda: found if len(found := self.pods(phase)) == number else [], self.told, within=100, pause=0.1
        )

    def await_condition(self, kind: str, name: str, condition: str) -> Object:
        """Return a condition of an object once it is true."""

        def seen() -> Object | None:
            found = self.api.get(f"{self.path(kind)}/{name}").get("status", {}).get("conditions", [])
            return next((one for one in found if one["type"] == condition and one["status"] == "True"), None)

        return wait_until(seen, self.told, within=100, pause=0.1)

    def await_event(self, reason: str, kind: str) -> str:
        """Return the message of an event about an object of this kind."""

        def seen() -> str:
            told = (one for one in self.all("events") if one["involvedObject"]["kind"] == kind)
            return next((str(one["message"]) for one in told if one["reason"] == reason), "")

        return wait_until(seen, self.told, within=100, pause=0.1)

    def told(self) -> str:
        """Return a list of all objects, for the error of a wait."""
        kinds = ("jobsets", "jobs", "pods", "events")
        return "\n".join(
            f"{kind}: {[(one['metadata']['name'], one.get('status'), one.get('message')) for one in self.all(kind)]}"
            for kind in kinds
        )


@pytest.fixture
def place(plane: ControlPlane | EmulatedPlane, namespace: str) -> Place:
    return Place(plane.api, namespace)


@pytest.fixture
def slice_(nodes: NodeGroup) -> NodeGroup:
    """Two hosts of four chips."""
    nodes.add(*tpu_pool("slice", 2))
    return nodes


def test_a_set_of_two_hosts_that_exit_0_is_completed_and_its_pods_stay(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", 'echo "$TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES at $HOSTNAME"'))
    assert place.await_condition("jobsets", "x", "Completed")["reason"] == "AllJobsCompleted"
    assert place.api.get(f"{place.path('jobsets')}/x")["status"]["terminalState"] == "Completed"
    assert place.await_condition("jobs", "x-s-0", "Complete")["reason"] == "CompletionsReached"
    pods = place.pods("Succeeded")
    assert place.api.text(f"{place.path('pods')}/{pods[1]['metadata']['name']}/log?tailLines=1").startswith(
        "1 of x-s-0-0.x,"
    )
    assert [slice_.log(pod["metadata"]["uid"]) for pod in pods] == [
        f"{host} of x-s-0-0.x,x-s-0-1.x at x-s-0-{host}\n" for host in range(2)
    ]
    assert {one["reason"] for one in place.all("events") if one["involvedObject"]["kind"] == "Pod"} >= {
        "Scheduled", "Pulled", "Created", "Started",
    }  # fmt: skip


def test_what_gke_tells_hosts_may_be_missing_or_wrong(place: Place, slice_: NodeGroup) -> None:
    slice_.inject({"TPU_WORKER_ID": "7"})
    place.create("jobsets", jobset("x", 'echo "$TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES"'))
    assert [slice_.log(pod["metadata"]["uid"]) for pod in place.await_pods(2, "Succeeded")] == [
        "7 of x-s-0-0.x,x-s-0-1.x\n"
    ] * 2
    slice_.inject(None)
    place.create("jobsets", jobset("y", 'echo "<$TPU_WORKER_ID>"'))
    assert [slice_.log(pod["metadata"]["uid"]) for pod in place.await_pods(4, "Succeeded")[2:]] == ["<>\n"] * 2


def failure(place: Place, name: str = "x") -> tuple[str, str]:
    """The reason and the message of a Job's failure, once its JobSet has failed by it."""
    failed = place.await_condition("jobsets", name, "Failed")
    assert failed["reason"] == "FailedJobs"
    assert failed["message"] == f"jobset failed due to one or more job failures (first failed job: {name}-s-0)"
    assert place.api.get(f"{place.path('jobsets')}/{name}")["status"]["terminalState"] == "Failed"
    job = place.await_condition("jobs", f"{name}-s-0", "Failed")
    return job["reason"], job["message"]


BACKOFF = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")


def test_a_host_that_exits_with_a_code_of_a_rule_fails_the_set_and_the_others_go(
    place: Place, slice_: NodeGroup
) -> None:
    place.create("jobsets", jobset("x", f"{OF_HOST} && exit 64; {FOREVER}"))
    reason, message = failure(place)
    assert reason == "PodFailurePolicy"
    told = rf"Container main for pod {place.namespace}/x-s-0-1-\w+ failed with exit code 64 matching FailJob rule at index 1"
    assert re.fullmatch(told, message)
    wait_until(lambda: len(place.pods()) == 1, place.told, within=100)
    [left] = place.pods("Failed")
    [status] = left["status"]["containerStatuses"]
    assert (status["state"]["terminated"]["exitCode"], status["state"]["terminated"]["reason"]) == (64, "Error")


@pytest.mark.parametrize("how", [KILLED, OOM_KILLED])
def test_a_host_that_is_killed_uses_the_backoff_limit_and_its_pod_says_how(
    place: Place, slice_: NodeGroup, how: str
) -> None:
    place.create("jobsets", jobset("x", FOREVER))
    slice_.end(place.await_pods(2)[1], how)
    assert failure(place) == BACKOFF
    wait_until(lambda: len(place.pods()) == 1, place.told, within=100)
    [left] = place.pods("Failed")
    terminated = left["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, how)


def test_a_pod_that_is_deleted_looks_like_a_crash(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", FOREVER))
    place.api.delete(f"{place.path('pods')}/{place.await_pods(2)[1]['metadata']['name']}")
    assert failure(place) == BACKOFF
    wait_until(lambda: not place.pods(), place.told, within=100)


def by_api(place: Place, nodes: NodeGroup, pod: Object) -> None:
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": place.namespace}}
    place.create(f"pods/{name}/eviction", body)


def by_taint(place: Place, nodes: NodeGroup, pod: Object) -> None:
    """A spot machine is about to go."""
    taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
    place.api.patch(f"/api/v1/nodes/{pod['spec']['nodeName']}", {"spec": {"taints": [taint]}})


def by_node(place: Place, nodes: NodeGroup, pod: Object) -> None:
    nodes.end(pod, EVICTED)


@pytest.mark.parametrize("evict", [by_api, by_taint, by_node])
def test_an_evicted_host_fails_the_set_by_the_rule_of_disruptions(
    place: Place, slice_: NodeGroup, evict: Callable[[Place, NodeGroup, Object], None]
) -> None:
    place.create("jobsets", jobset("x", FOREVER, tolerations=[{"key": "google.com/tpu", "operator": "Exists"}]))
    evict(place, slice_, place.await_pods(2)[1])
    reason, message = failure(place)
    assert reason == "PodFailurePolicy"
    told = rf"Pod {place.namespace}/x-s-0-1-\w+ has condition DisruptionTarget matching FailJob rule at index 0"
    assert re.fullmatch(told, message)
    wait_until(lambda: len(place.pods()) == (1 if evict is by_node else 0), place.told, within=100)


def test_a_job_that_is_active_for_too_long_says_so_and_its_pods_go(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", FOREVER, activeDeadlineSeconds=1))
    assert failure(place) == ("DeadlineExceeded", "Job was active longer than specified deadline")
    wait_until(lambda: not place.pods(), place.told, within=100)


def test_a_pod_that_fits_no_node_says_why_and_its_set_says_nothing(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", "true", nodeSelector={"cloud.google.com/gke-tpu-topology": "4x4"}))

    def told() -> Object | None:
        conditions = [one for pod in place.pods() for one in pod["status"].get("conditions", [])]
        return next((one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"), None)

    condition = wait_until(told, place.told, within=100)
    assert condition["reason"] == "Unschedulable"
    assert condition["message"].startswith(
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    )
    assert "conditions" not in place.api.get(f"{place.path('jobsets')}/x").get("status", {})


def test_half_a_gang_runs_where_the_quota_of_the_namespace_ends(place: Place, slice_: NodeGroup) -> None:
    place.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.google.com/tpu": "4"}}})
    wait_until(lambda: place.all("resourcequotas")[0].get("status", {}).get("hard"), "the quota counts")
    place.create("jobsets", jobset("x", FOREVER))
    told = place.await_event("FailedCreate", "Job")
    quota = "exceeded quota: q, requested: requests.google.com/tpu=4, used: requests.google.com/tpu=4, limited: requests.google.com/tpu=4"
    assert re.fullmatch(rf'Error creating: pods "x-s-0-\d-\w+" is forbidden: {re.escape(quota)}', told)
    assert len(place.await_pods(1)) == 1
    assert "conditions" not in place.api.get(f"{place.path('jobsets')}/x")["status"]


def test_a_service_account_that_is_not_there_is_named_by_an_event_alone(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", "true", serviceAccountName="trainer"))
    told = place.await_event("FailedCreate", "Job")
    account = f'error looking up service account {place.namespace}/trainer: serviceaccount "trainer" not found'
    assert re.fullmatch(rf'Error creating: pods "x-s-0-\d-" is forbidden: {re.escape(account)}', told)
    assert place.pods() == []


def refusal(create: Callable[[], object]) -> tuple[int, str, str]:
    with pytest.raises(Refused) as refused:
        create()
    return refused.value.code, refused.value.reason, str(refused.value)


def test_what_is_refused_at_once(plane: ControlPlane | EmulatedPlane, place: Place) -> None:
    place.create("jobsets?dryRun=All", jobset("x", "true"))
    place.create("jobsets", jobset("x", "true"))
    code, reason, told = refusal(lambda: place.create("jobsets", jobset("x", "true")))
    assert (code, reason, told) == (409, "AlreadyExists", 'jobsets.jobset.x-k8s.io "x" already exists')
    code, reason, told = refusal(lambda: place.create("jobsets", jobset("x" * 60, "true")))
    assert (code, reason) == (422, "Invalid")
    assert "JobSet name is too long, job names generated for this JobSet will exceed 63 characters" in told
    strange = jobset("y", "true")
    strange["spec"]["colour"] = "red"
    code, reason, told = refusal(lambda: place.create("jobsets?fieldValidation=Strict", strange))
    assert (code, reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.colour"' in told
    nobody = Place(Api(plane.user_kubeconfig("nobody")), place.namespace)
    code, reason, told = refusal(lambda: nobody.all("jobsets"))
    assert (code, reason) == (403, "Forbidden")
    assert told.startswith('jobsets.jobset.x-k8s.io is forbidden: User "nobody" cannot list resource "jobsets"')
    place.create("serviceaccounts", {"metadata": {"name": "trainer"}})
    account = Place(Api(plane.account_kubeconfig(place.namespace, "trainer")), place.namespace)
    _, _, told = refusal(lambda: account.all("pods"))
    assert f'User "system:serviceaccount:{place.namespace}:trainer" cannot list resource "pods"' in told


def plain(**metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **metadata}, "spec": pod_of("true")}


@pytest.mark.parametrize("kind", ["pods", "jobsets"])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"a": "a b"}, 'metadata.labels: Invalid value: "a b": a valid label must be an empty string or consist of'),
        ({"a": "x" * 64}, f'metadata.labels: Invalid value: "{"x" * 64}": must be no more than 63 bytes'),
        ({"a key": ""}, 'metadata.labels: Invalid value: "a key": name part must consist of alphanumeric characters'),
        ({"k" * 64: ""}, f'metadata.labels: Invalid value: "{"k" * 64}": name part must be no more than 63 bytes'),
        ({"A_/k": ""}, 'metadata.labels: Invalid value: "A_/k": prefix part a lowercase RFC 1123 subdomain must'),
        ({"a/b/c": ""}, 'metadata.labels: Invalid value: "a/b/c": a valid label key must consist of alphanumeric'),
        ({"": ""}, '[metadata.labels: Invalid value: "": name part must be non-empty, metadata.labels: Invalid value'),
    ],
)
def test_labels_that_cannot_be_are_refused(place: Place, kind: str, labels: dict[str, str], said: str) -> None:
    body = plain(labels=labels) if kind == "pods" else jobset("x", "true", labels=labels)
    name = "Pod" if kind == "pods" else "JobSet.jobset.x-k8s.io"
    code, reason, told = refusal(lambda: place.create(f"{kind}?dryRun=All", body))
    assert (code, reason) == (422, "Invalid")
    assert told.startswith(f'{name} "x" is invalid: {said}'), told


def test_a_body_that_is_no_object_of_its_path_is_refused(place: Place) -> None:
    pod, strange = plain(), jobset("x", "true")
    handled = 'in version "v1" cannot be handled as a Pod:'
    for kind, body, said in (
        ("pods", {**pod, "kind": "Service"}, f"Service {handled} "),
        (
            "pods",
            {**pod, "kind": "Secret"},
            f"Secret {handled} converting (v1.Secret) to (core.Pod): unknown conversion",
        ),
        ("pods", {**pod, "kind": "Nothing"}, f'Nothing {handled} no kind "Nothing" is registered for version "v1" in'),
        (
            "pods",
            {**pod, "apiVersion": "batch/v1"},
            f'Pod {handled} no kind "Pod" is registered for version "batch/v1"',
        ),
        ("pods", {**pod, "apiVersion": "batch/v1", "kind": "Job"}, f"Job {handled} converting (v1.Job) to (core.Pod)"),
        (
            "jobsets",
            {**strange, "apiVersion": "jobset.x-k8s.io/v1"},
            "the API version in the data (jobset.x-k8s.io/v1)",
        ),
        (
            "jobsets",
            {name: strange[name] for name in ("apiVersion", "metadata", "spec")},
            "the object provided is unrec",
        ),
        ("pods", plain(namespace="other"), "the namespace of the provided object does not match the namespace sent on"),
        (
            "pods",
            plain(labels={"a": 1}),
            f"Pod {handled} json: cannot unmarshal number into Go struct field ObjectMeta.",
        ),
    ):
        code, reason, told = refusal(lambda: place.create(f"{kind}?dryRun=All", body))  # noqa: B023 - called at once
        assert (code, reason) == (400, "BadRequest"), told
        assert told.startswith(said), told
    unnamed = {name: pod[name] for name in ("metadata", "spec")}
    place.create("pods?dryRun=All", unnamed)  # of a kind that is no custom one, a path says enough


def test_variables_that_are_no_strings_are_refused(place: Place) -> None:
    pod, strange = plain(), jobset("x", "true")
    template = strange["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["env"] = template["spec"]["containers"][0]["env"] = [{"name": "A", "value": 1}]
    said = "json: cannot unmarshal number into Go struct field EnvVar"
    at = "spec.containers.env.value of type string"
    assert refusal(lambda: place.create("pods?dryRun=All", pod)) == (
        400, "BadRequest", f'Pod in version "v1" cannot be handled as a Pod: {said}.{at}'
    )  # fmt: skip
    by = 'admission webhook "mjobset.kb.io" denied the request'
    assert refusal(lambda: place.create("jobsets?dryRun=All", strange)) == (
        400, "", f"{by}: {said}.spec.replicatedJobs.template.spec.template.{at}"
    )  # fmt: skip


def test_what_is_too_large_is_refused(place: Place) -> None:
    noted = plain(annotations={"a": "x" * (300 << 10)})
    code, reason, told = refusal(lambda: place.create("pods?dryRun=All", noted))
    assert (code, reason) == (422, "Invalid")
    assert told == 'Pod "x" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes'
    whole = plain(annotations={"a": "x" * (4 << 20)})
    assert refusal(lambda: place.create("pods?dryRun=All", whole)) == (
        413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"
    )  # fmt: skip


def with_room(name: str, size: int) -> Object:
    """A suspended JobSet with so many bytes in it."""
    body = jobset(name, "true")
    body["spec"]["suspend"] = True
    pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "ROOM", "value": "x" * size}]
    return body


def test_what_no_etcd_keeps_is_refused_once_it_is_more_than_tried(place: Place) -> None:
    place.create("jobsets", with_room("small", 1_500_000))
    for size, said in (
        (1_600_000, r"etcdserver: request is too large"),
        (2_200_000, r"rpc error: code = ResourceExhausted desc = trying to send message larger than max \(22.+ vs\. 2097152\)"),
    ):  # fmt: skip
        place.create("jobsets?dryRun=All", with_room("large", size))
        code, reason, told = refusal(lambda: place.create("jobsets", with_room("large", size)))  # noqa: B023
        assert (code, reason) == (500, "")
        assert re.fullmatch(said, told), told
    assert [one["metadata"]["name"] for one in place.all("jobsets")] == ["small"]


@pytest.mark.parametrize(("kind", "field"), [("configmaps", "[]"), ("secrets", "data")])
def test_data_of_more_than_a_mebibyte_is_refused(place: Place, kind: str, field: str) -> None:
    name, given = ("ConfigMap", "data") if kind == "configmaps" else ("Secret", "stringData")
    said = f'{name} "a" is invalid: {field}: Too long: may not be more than 1048576 bytes'
    body = {"metadata": {"name": "a"}, given: {"a": "x" * (1 << 19), "b": "x" * ((1 << 19) + 1)}}
    assert refusal(lambda: place.create(f"{kind}?dryRun=All", body)) == (422, "Invalid", said)
    place.create(kind, {**body, given: {"a": "x" * (1 << 20)}})
    more = {"data": {"b": "eA=="}}
    assert refusal(lambda: place.api.patch(f"{place.path(kind)}/a", more)) == (422, "Invalid", said)


def test_events_and_pods_are_chosen_by_fields(place: Place, nodes: NodeGroup) -> None:
    """As `kubectl describe` asks for the events of one object; in the order in which they happened."""
    nodes.add(Node("n"))
    run(place, "one", FOREVER)
    run(place, "other", FOREVER)
    uid = place.await_pods(2)[0]["metadata"]["uid"]

    def chosen(selector: str, kind: str = "events") -> list[Object]:
        return place.all(f"{kind}?fieldSelector={quote(selector)}")

    mine = f"involvedObject.name=one,involvedObject.namespace={place.namespace},involvedObject.uid={uid}"
    told = wait_until(lambda: it if len(it := chosen(mine)) == 4 else None, place.told, within=20)
    assert told is not None
    assert [one["reason"] for one in told] == ["Scheduled", "Pulled", "Created", "Started"]
    for more, left in (
        ("reason=Started", ["Started"]), ("source=default-scheduler", ["Scheduled"]), ("type!=Normal", []),
        ("reason=Started,,type==Normal", ["Started"]), ("involvedObject.fieldPath=", ["Scheduled"]),
        ("reportingComponent=kubelet,involvedObject.apiVersion=v1,reason!=Pulled", ["Created", "Started"]),
        (r"reason=a\,b", []), ("reason=a b", []), ("involvedObject.kind=Job", []),
    ):  # fmt: skip
        assert [one["reason"] for one in chosen(f"{mine},{more}")] == left, more
    for selector, number in (
        ("spec.nodeName=n,status.phase!=Succeeded,spec.hostNetwork=false", 2), ("metadata.name=one", 1),
        ("spec.schedulerName=default-scheduler,status.nominatedNodeName=", 2), ("status.podIP=127.0.0.1", 0),
    ):  # fmt: skip
        assert len(chosen(selector, "pods")) == number, selector
    for selector, said in (
        ("message=x", "field label not supported: message"), ("=x", "field label not supported: "),
        ("reason", "invalid selector: 'reason'; can't understand 'reason'"),
        ("reason=a=b", "invalid field selector: unescaped character in value: 61"),
        (r"reason=a\b", r"invalid field selector: invalid escape sequence: \b"),
    ):  # fmt: skip
        assert refusal(lambda: chosen(selector)) == (400, "BadRequest", said)  # noqa: B023 - called at once
    assert refusal(lambda: chosen("spec.x=1", "jobsets")) == (400, "BadRequest", "field label not supported: spec.x")


def test_a_token_of_a_service_account_says_until_when_it_holds(place: Place) -> None:
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 1200}}
    made = place.create("serviceaccounts/default/token", asked)
    assert (made["kind"], made["metadata"]["name"], made["spec"]["expirationSeconds"]) == (
        "TokenRequest", "default", 1200
    )  # fmt: skip
    left = datetime.fromisoformat(made["status"]["expirationTimestamp"]) - datetime.now(UTC)
    assert 1100 < left.total_seconds() < 1201
    assert refusal(lambda: place.create("serviceaccounts/nobody/token", asked))[:2] == (404, "NotFound")
    asked = {**asked, "spec": {"expirationSeconds": 60}}
    said = "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes"
    assert refusal(lambda: place.create("serviceaccounts/default/token", asked)) == (
        422, "Invalid", f'TokenRequest.authentication.k8s.io "" is invalid: {said}'
    )  # fmt: skip


def test_a_page_may_be_read_twice(place: Place) -> None:
    """By a client whose answer was lost."""
    for number in range(3):
        place.create("serviceaccounts", {"metadata": {"name": f"account-{number}"}})
    first = place.api.get(place.path("serviceaccounts?limit=1"))
    path = place.path(f"serviceaccounts?limit=1&continue={first['metadata']['continue']}")
    pages = [[one["metadata"]["name"] for one in place.api.get(path)["items"]] for _ in range(2)]
    assert pages == [["account-1"]] * 2


@pytest.fixture
def queue(plane: ControlPlane | EmulatedPlane, place: Place) -> Any:
    """A queue of Kueue with the chips of one slice, in which who is more important goes first."""
    kueue, name = "/apis/kueue.x-k8s.io/v1beta2", place.namespace
    resources = [{"name": "google.com/tpu", "nominalQuota": "8"}]
    spec = {
        "namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {"coveredResources": ["google.com/tpu"], "flavors": [{"name": name, "resources": resources}]}
        ],
    }  # fmt: skip
    created = [f"{kueue}/clusterqueues/{name}", f"{kueue}/resourceflavors/{name}"]
    plane.api.create(f"{kueue}/resourceflavors", {**kind("ResourceFlavor"), "metadata": {"name": name}})
    plane.api.create(f"{kueue}/clusterqueues", {**kind("ClusterQueue"), "metadata": {"name": name}, "spec": spec})
    place.create("localqueues", {**kind("LocalQueue"), "metadata": {"name": "queue"}, "spec": {"clusterQueue": name}})
    for priority, value in (("low", 1), ("high", 100)):
        body = {**kind("WorkloadPriorityClass"), "metadata": {"name": f"{name}-{priority}"}, "value": value}
        plane.api.create(f"{kueue}/workloadpriorityclasses", body)
        created.append(f"{kueue}/workloadpriorityclasses/{name}-{priority}")
    yield lambda priority: {
        "kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/priority-class": f"{name}-{priority}",
    }  # fmt: skip
    for path in created:
        plane.api.delete(path)


def kind(word: str) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": word}


def reserved(place: Place, name: str) -> Object:
    """Return the condition of a JobSet's workload about its quota."""

    def seen() -> Object | None:
        for workload in place.all("workloads"):
            if workload["metadata"]["ownerReferences"][0]["name"] == name:
                found = workload.get("status", {}).get("conditions", [])
                return next((one for one in found if one["type"] == "QuotaReserved"), None)
        return None

    return wait_until(seen, f"the workload of {name} says something", within=100, pause=0.1)


def test_a_set_whose_queue_does_not_exist_is_suspended_and_only_its_workload_says_why(place: Place) -> None:
    place.create("jobsets", jobset("x", "true", labels={"kueue.x-k8s.io/queue-name": "nowhere"}))
    condition = reserved(place, "x")
    assert (condition["status"], condition["reason"]) == ("False", "Inadmissible")
    assert condition["message"] == "LocalQueue nowhere doesn't exist"
    assert place.await_condition("jobsets", "x", "Suspended")["reason"] == "SuspendedJobs"
    assert place.pods() == []


def test_a_set_that_never_fits_its_queue_says_so(place: Place, queue: Any) -> None:
    place.create("jobsets", jobset("x", "true", hosts=4, labels=queue("low")))
    condition = wait_until(
        lambda: it if "quota" in (it := reserved(place, "x"))["message"] else None, place.told, within=100
    )
    assert (condition["status"], condition["reason"]) == ("False", "Pending")
    assert condition["message"] == (
        f"couldn't assign flavors to pod set s: insufficient quota for google.com/tpu in flavor {place.namespace}, "
        "previously considered podsets requests (0) + current podset request (16) > maximum capacity (8)"
    )


def test_a_preempted_set_has_new_pods_once_it_is_admitted_again(
    plane: ControlPlane | EmulatedPlane, place: Place, slice_: NodeGroup, queue: Any
) -> None:
    place.create("jobsets", jobset("low", FOREVER, labels=queue("low")))
    before = {pod["metadata"]["uid"] for pod in place.await_pods(2)}
    place.create("jobsets", jobset("high", "sleep 3", labels=queue("high")))
    place.await_condition("jobsets", "low", "Suspended")
    told = place.await_event("Stopped", "JobSet")
    assert re.match(r"Preempted to accommodate a workload \(UID: .+\) due to prioritization in the ClusterQueue", told)
    condition = wait_until(
        lambda: it if "more needed" in (it := reserved(place, "low"))["message"] else None, place.told, within=100
    )
    wanted = f"insufficient unused quota for google.com/tpu in flavor {place.namespace}, 8 more needed"
    assert wanted in condition["message"]
    path = f"/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{place.namespace}/localqueues/queue/pendingworkloads"
    [pending] = plane.api.get(path)["items"]
    assert (pending["positionInLocalQueue"], pending["positionInClusterQueue"]) == (0, 0)
    place.await_condition("jobsets", "high", "Completed")
    after = {pod["metadata"]["uid"] for pod in place.await_pods(2)}
    assert not before & after
    assert [one["metadata"]["name"] for one in place.all("jobsets") if "low" in one["metadata"]["name"]] == ["low"]


REQUESTS = "provisioningrequests"


@pytest.fixture
def requesting(plane: ControlPlane | EmulatedPlane, place: Place, queue: Any) -> Any:
    """A function that makes a queue `requesting` whose check asks for machines, and so many times again."""
    kueue, name = "/apis/kueue.x-k8s.io/v1beta2", f"{place.namespace}-requesting"
    meta = {"metadata": {"name": name}}
    created: list[str] = []

    def create(plural: str, word: str, spec: Object) -> None:
        plane.api.create(f"{kueue}/{plural}", {**kind(word), **meta, "spec": spec})
        created.append(f"{kueue}/{plural}/{name}")

    def request(again: int) -> str:
        retry = {"backoffLimitCount": again, "backoffBaseSeconds": 1}
        managed = {"managedResources": ["google.com/tpu"], "retryStrategy": retry}
        create(
            "provisioningrequestconfigs",
            "ProvisioningRequestConfig",
            {"provisioningClassName": "queued-provisioning.gke.io", **managed},
        )
        return name

    reference = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": reference}
    create("admissionchecks", "AdmissionCheck", check)
    resources = [{"name": "google.com/tpu", "nominalQuota": "8"}]
    flavors = [{"name": place.namespace, "resources": resources}]
    spec = {
        "namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": [{"name": name}]},
        "resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": flavors}],
    }  # fmt: skip
    create("clusterqueues", "ClusterQueue", spec)
    local = {**kind("LocalQueue"), "metadata": {"name": "requesting"}, "spec": {"clusterQueue": name}}
    place.create("localqueues", local)
    yield request
    for path in (created[1], created[0], *created[2:]):
        plane.api.delete(path)


def asking(name: str = "x") -> Object:
    body = jobset(name, FOREVER, labels={"kueue.x-k8s.io/queue-name": "requesting"})
    body["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "3600"}
    return body


def answer(place: Place, name: str, *conditions: tuple[str, str, str]) -> None:
    """Say of a request, once it is there, what an autoscaler would."""
    path = f"{place.path(REQUESTS)}/{name}"
    wait_until(lambda: place.api.found(path), place.told, within=100, pause=0.1)
    told = [
        {"type": kind, "status": status, "reason": kind, "message": said, "lastTransitionTime": "2026-11-28T10:00:00Z"}
        for kind, status, said in conditions
    ]
    place.api.patch(f"{path}/status", {"status": {"conditions": told}})


def await_workload(place: Place, seen: Callable[[Object], bool]) -> Object:
    """Return the one workload once it is so, with its conditions by their types."""

    def look() -> Object | None:
        [workload] = place.all("workloads") or [{}]
        status = workload.get("status") or {}
        told = {one["type"]: one for one in status.get("conditions", ())}
        found = {**workload, **told, "checks": status.get("admissionChecks", [])}
        return found if workload and seen(found) else None

    return wait_until(look, lambda: place.all("workloads"), within=100, pause=0.1)


def test_a_queue_whose_check_lacks_its_configuration_admits_nothing(place: Place, requesting: Any) -> None:
    place.create("jobsets", asking())
    found = await_workload(place, lambda it: "QuotaReserved" in it)["QuotaReserved"]
    name = f"{place.namespace}-requesting"
    assert (found["reason"], found["message"]) == ("Inadmissible", f"ClusterQueue {name} is inactive")
    queue = place.api.get(f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{name}")["status"]["conditions"][0]
    said = f"Can't admit new workloads: references inactive AdmissionCheck(s): {name}."
    assert (queue["reason"], queue["message"]) == ("AdmissionCheckInactive", said)
    requesting(0)
    assert await_workload(place, lambda it: it["QuotaReserved"]["status"] == "True")["checks"][0]["state"] == "Pending"


def test_a_queue_asks_for_machines_and_begins_when_they_are_there(
    place: Place, slice_: NodeGroup, requesting: Any
) -> None:
    check = requesting(0)
    place.create("jobsets", asking())
    workload = await_workload(place, lambda it: bool(it["checks"]) and "QuotaReserved" in it)
    assert [(one["name"], one["state"], one["message"]) for one in workload["checks"]] == [(check, "Pending", "")]
    assert "Admitted" not in workload
    name = f"{workload['metadata']['name']}-{check}-1"
    answer(place, name, ("Accepted", "True", "queued"), ("Provisioned", "False", "ETA 5 min"))
    request = place.api.get(f"{place.path(REQUESTS)}/{name}")
    assert request["spec"]["parameters"] == {"maxRunDurationSeconds": "3600"}
    [pods] = request["spec"]["podSets"]
    template = place.api.get(f"{place.path('podtemplates')}/{pods['podTemplateRef']['name']}")
    assert pods["count"] == 2 and template["metadata"]["ownerReferences"][0]["name"] == name
    await_workload(place, lambda it: it["checks"][0]["message"] == "ETA 5 min")
    assert not place.pods()
    answer(place, name, ("Accepted", "True", "queued"), ("Provisioned", "True", "There they are."))
    [pod, _] = place.await_pods(2)
    assert pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == name
    answer(place, name, ("Provisioned", "True", "There they are."), ("CapacityRevoked", "True", "Taken back."))
    told = f'The workload is deactivated due to AdmissionCheck in Rejected state: "{check}" (Taken back.)'
    workload = await_workload(place, lambda it: it["QuotaReserved"]["status"] == "False")
    assert (workload["Evicted"]["reason"], workload["Evicted"]["message"]) == ("DeactivatedDueToAdmissionCheck", told)
    assert (workload["spec"]["active"], workload["Requeued"]["status"]) == (False, "False")
    assert workload["Admitted"]["reason"] == "NoReservationUnsatisfiedChecks"
    assert place.await_event("Stopped", "JobSet") == told


@pytest.mark.parametrize(
    ("ends", "words"), [("Failed", "Retrying after failure"), ("BookingExpired", "Retrying after booking expired")]
)
def test_machines_that_were_not_to_be_had_are_asked_for_again_as_often_as_the_check_says(
    place: Place, requesting: Any, ends: str, words: str
) -> None:
    check = requesting(1)
    place.create("jobsets", asking())
    prefix = f"{await_workload(place, lambda it: bool(it['checks']))['metadata']['name']}-{check}"
    answer(place, f"{prefix}-1", (ends, "True", "There are none."))
    workload = await_workload(place, lambda it: it.get("Evicted", {}).get("status") == "False")
    told = f'Evicted due to AdmissionCheck in Retry state: "{check}" ({words}: There are none.)'
    assert workload["Evicted"]["message"] == f"Previously: {told}"
    assert workload["Requeued"]["reason"] == "BackoffFinished"
    answer(place, f"{prefix}-2", (ends, "True", "There are none."))
    workload = await_workload(place, lambda it: not it["spec"]["active"] and it["QuotaReserved"]["status"] == "False")
    told = f'The workload is deactivated due to AdmissionCheck in Rejected state: "{check}" (There are none.)'
    assert workload["Evicted"]["message"] == workload["QuotaReserved"]["message"] == told
    [state] = workload["checks"]
    assert (state["state"], state["message"]) == ("Pending", "Reset to Pending after eviction. Previously: Rejected")


def test_nothing_is_told_of_a_silent_node_until_it_counts_as_unknown(place: Place, slice_: NodeGroup) -> None:
    place.create("jobsets", jobset("x", "sleep 1"))
    pods = place.await_pods(2)
    slice_.silence("slice-0")
    slice_.lose("slice-1")

    def unknown() -> bool:
        nodes = place.api.get("/api/v1/nodes")["items"]
        ready = [one for node in nodes for one in node["status"]["conditions"] if one["type"] == "Ready"]
        return [(one["status"], one["reason"]) for one in ready] == [("Unknown", "NodeStatusUnknown")] * 2

    wait_until(unknown, place.told, within=40, pause=0.2)
    assert [pod["status"]["phase"] for pod in place.pods()] == ["Running", "Running"]
    assert [
        (one["type"], one["status"]) for one in place.pods()[0]["status"]["conditions"] if one["type"] == "Ready"
    ] == [("Ready", "False")]
    slice_.restore("slice-0")
    by_node = {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in pods}
    wait_until(
        lambda: [pod["metadata"]["name"] for pod in place.pods("Succeeded")] == [by_node["slice-0"]],
        place.told,
        within=10,
    )


def test_a_node_that_lost_its_processes_runs_a_pod_again_only_where_its_policy_says_so(
    place: Place, nodes: NodeGroup
) -> None:
    nodes.add(Node("n"))
    never = run(place, "never", f"echo start; {FOREVER}")
    again = run(place, "again", f"echo start; {FOREVER}", restartPolicy="OnFailure")
    uids = [pod["metadata"]["uid"] for pod in place.await_pods(2)]
    wait_until(lambda: [nodes.log(uid) for uid in uids] == ["start\n"] * 2, "both have begun", within=20)
    nodes.lose("n")
    roots = [f"KINETIC_ROOT={nodes.root(uid)}" for uid in uids]
    wait_until(lambda: not any(map(processes.marked, roots)), "both are dead", within=20)
    nodes.restore("n")
    wait_until(lambda: never()["status"]["phase"] == "Failed", place.told, within=20)
    [status] = never()["status"]["containerStatuses"]
    assert (status["state"]["terminated"]["exitCode"], status["state"]["terminated"]["reason"]) == (255, "Unknown")
    wait_until(lambda: nodes.log(again()["metadata"]["uid"]) == "start\n" * 2, place.told, within=20)
    [status] = again()["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 255)
    assert nodes.log(never()["metadata"]["uid"]) == "start\n"


# The kubelet


def run(
    place: Place, name: str, script: str, *, env: list[Object] | None = None, image: str = "python:3.11", **more: Any
) -> Callable[[], Object]:
    """Create a pod; what is returned looks at it."""
    spec = pod_of(script, **more)
    spec["containers"][0] |= {"env": env or [], "image": image}
    place.create("pods", {"metadata": {"name": name, "labels": {"colour": "red"}}, "spec": spec})
    return lambda: place.api.get(f"{place.path('pods')}/{name}")


def waiting(pod: Object) -> str:
    """Return why the container of a pod waits."""
    statuses = pod["status"].get("containerStatuses", [])
    return str(statuses[0]["state"].get("waiting", {}).get("reason", "")) if statuses else ""


def test_a_container_has_what_its_pod_its_node_and_its_secrets_say(place: Place, nodes: NodeGroup) -> None:
    nodes.add(Node("n", environment={"GCE_METADATA_HOST": "127.0.0.1:1"}))
    place.create("secrets", {"metadata": {"name": "s"}, "stringData": {"key": "hidden"}})
    place.create("configmaps", {"metadata": {"name": "c"}, "data": {"key": "shown"}})
    env = [
        {"name": "COLOUR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['colour']"}}},
        {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
        {"name": "OPTIONAL", "valueFrom": {"secretKeyRef": {"name": "none", "key": "key", "optional": True}}},
        {"name": "JOINED", "value": "$(COLOUR)-$(NOBODY)-$$(COLOUR)"},
    ]
    script = 'echo "$COLOUR $UID $SECRET $CONFIG <$OPTIONAL> $GCE_METADATA_HOST $$"; echo it >"$KINETIC_ROOT/scratch/file"; env -0'
    volumes = {"volumes": [{"name": "room", "emptyDir": {}}]}
    spec = pod_of(script, **volumes)
    spec["containers"][0] |= {"env": env, "volumeMounts": [{"name": "room", "mountPath": "/scratch"}]}
    place.create("pods", {"metadata": {"name": "p", "labels": {"colour": "red"}}, "spec": spec})
    [pod] = place.await_pods(1, "Succeeded")
    uid = pod["metadata"]["uid"]
    first, _, rest = nodes.log(uid).partition("\n")
    assert first == f"red {uid} hidden shown <> 127.0.0.1:1 $"
    assert (nodes.root(uid) / "scratch" / "file").read_text() == "it\n"
    environ = dict(entry.split("=", 1) for entry in rest.split("\0") if entry)
    assert environ["JOINED"] == "red-$(NOBODY)-$(COLOUR)"
    assert (environ["HOSTNAME"], environ["KINETIC_ROOT"]) == ("p", str(nodes.root(uid)))
    assert not [name for name in environ if name in os.environ and name.startswith("PYTEST_")]


def test_the_last_words_of_a_container_are_in_its_status_and_each_of_its_starts_has_its_own(
    place: Place, nodes: NodeGroup
) -> None:
    nodes.add(Node("n"))
    own = 'printf "%s" "$(cat "$KINETIC_ROOT/dev/termination-log")first" >"$KINETIC_ROOT/dev/termination-log"; exit 1'
    again = run(place, "again", own, restartPolicy="OnFailure")
    long = run(place, "long", '{ echo begin; yes | head -c 5000; printf end; } >"$KINETIC_ROOT/dev/termination-log"')
    silent = run(place, "silent", "exit 3")
    wait_until(
        lambda: again()["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) > 1, place.told, within=100
    )
    assert again()["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] == "first"
    wait_until(lambda: long()["status"]["phase"] == "Succeeded", place.told, within=100)
    said = long()["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert (len(said), said[-5:]) == (4096, "y\nend")
    wait_until(lambda: silent()["status"]["phase"] == "Failed", place.told, within=100)
    assert "message" not in silent()["status"]["containerStatuses"][0]["state"]["terminated"]


def test_a_container_that_cannot_start_says_why(place: Place, nodes: NodeGroup) -> None:
    nodes.add(Node("n"))
    nodes.lack({"gone:1": "ErrImagePull", "Not/A:Name:": "InvalidImageName"})
    unpulled = run(place, "unpulled", "true", image="gone:1")
    misnamed = run(place, "misnamed", "true", image="Not/A:Name:")
    missing = [{"name": "IT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "key"}}}]
    unset = run(place, "unset", "true", env=missing)
    wait_until(lambda: waiting(unpulled()) == "ErrImagePull", place.told, within=100)
    wait_until(lambda: waiting(unpulled()) == "ImagePullBackOff", place.told, within=100)
    wait_until(lambda: waiting(misnamed()) == "InvalidImageName", place.told, within=100)
    wait_until(lambda: waiting(unset()) == "CreateContainerConfigError", place.told, within=100)
    assert unset()["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'secret "none" not found'
    place.create("secrets", {"metadata": {"name": "none"}, "stringData": {"key": "now"}})
    assert [pod["metadata"]["name"] for pod in place.await_pods(1, "Succeeded")] == ["unset"]


def test_a_container_is_warned_then_killed_and_restarted_where_its_policy_says_so(
    place: Place, nodes: NodeGroup
) -> None:
    nodes.add(Node("n"))
    heard = run(
        place,
        "heard",
        'trap "echo warned; exit 3" TERM; echo ready; while :; do sleep 0.05; done',
        activeDeadlineSeconds=2,
    )
    deaf = run(place, "deaf", FOREVER)
    again = run(
        place,
        "again",
        'echo start; test -e "$KINETIC_ROOT/mark" || { touch "$KINETIC_ROOT/mark"; exit 1; }',
        restartPolicy="OnFailure",
    )
    wait_until(lambda: deaf()["status"]["phase"] == "Running", place.told, within=100)
    uid = deaf()["metadata"]["uid"]
    place.api.delete(f"{place.path('pods')}/deaf")
    wait_until(lambda: place.api.found(f"{place.path('pods')}/deaf") is None, place.told, within=100)
    assert nodes.log(uid) == ""
    wait_until(lambda: heard()["status"]["phase"] == "Failed", place.told, within=100)
    status = heard()["status"]
    assert (status["reason"], status["message"]) == (
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    )
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert nodes.log(heard()["metadata"]["uid"]) == "ready\nwarned\n"
    wait_until(lambda: again()["status"]["phase"] == "Succeeded", place.told, within=100)
    [status] = again()["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 1)
    assert nodes.log(again()["metadata"]["uid"]) == "start\nstart\n"


@only_real
def test_two_planes_stand_beside_each_other_and_one_of_them_has_no_jobset(
    plane: ControlPlane | EmulatedPlane, built: Path, tmp_path: Path
) -> None:
    with ControlPlane(tmp_path / "bare", built, jobset=False, kueue=False) as bare:
        code, _, _ = refusal(lambda: bare.api.get(f"{GROUP}/jobsets"))
        assert code == 404
        assert plane.api.get(f"{GROUP}/jobsets")["kind"] == "JobSetList"
        bare.interrupt("kube-apiserver")
        with pytest.raises(OSError, match="refused"):
            bare.api.get("/api/v1/nodes")
        bare.resume("kube-apiserver")
        wait_until(lambda: _answers(bare), "the API server is back", within=60)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path / "bare") in _read(path)]
    assert left == []


def _answers(plane: ControlPlane | EmulatedPlane) -> bool:
    try:
        return bool(plane.api.get("/api/v1/namespaces")["items"])
    except (OSError, Refused):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
