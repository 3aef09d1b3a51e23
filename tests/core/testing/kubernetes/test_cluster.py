"""Faults that a test makes an emulated cluster have: requests that fail, lists that expire, machines that go."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.platforms.kubernetes.api import answers, client, kubeconfig
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.testing import Cluster, NodePool
from kinetic_orchestration.testing.kubernetes import cluster as emulated_cluster
from kinetic_orchestration.testing.kubernetes.api.objects import condition
from kinetic_orchestration.testing.kubernetes.controllers import garbage
from kinetic_orchestration.testing.kubernetes.pods import kubelet
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node
from tests.support.waits import wait_until

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pool = NodePool("spot", {"cloud.google.com/gke-spot": "true"}, allocatable={"cpu": "4"}, most=1)
    with Cluster(tmp_path / "cluster", {"PATH": "/usr/bin:/bin"}, pools=[pool], provision=0.0) as cluster:
        yield cluster


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> Iterator[Api]:
    path = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    with Api(kubeconfig.load({}, path=str(path)), patience=5.0) as api:
        wait_until(lambda: api.list("/api/v1/namespaces/default/serviceaccounts"), "pods may be created")
        yield api


def pod(name: str, script: str = "exec sleep 600") -> dict[str, object]:
    container = {
        "name": "main", "image": "python", "command": ["sh", "-c", script], "resources": {"requests": {"cpu": "1"}},
    }  # fmt: skip
    spec = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
        "nodeSelector": {"cloud.google.com/gke-spot": "true"},
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": spec}


def test_a_request_is_refused_until_the_server_is_less_busy(cluster: Cluster, api: Api) -> None:
    cluster.fail("POST */configmaps", 429, times=1, retry_after=1)
    heard: list[client.Exchange] = []
    with client.listening(heard.append):
        api.create(MAPS, {"metadata": {"name": "a"}})
    assert [one.status for one in heard] == [429, 201]


def test_a_list_that_expired_is_read_from_its_beginning(cluster: Cluster, api: Api) -> None:
    names = [f"map-{number}" for number in range(5)]
    for name in names:
        api.create(MAPS, {"metadata": {"name": name}})
    heard: list[client.Exchange] = []

    def forget(exchange: client.Exchange) -> None:
        heard.append(exchange)
        if len(heard) == 1:
            cluster.forget_lists()

    with client.listening(forget):
        found = api.list(MAPS, limit=2)
    assert [one["metadata"]["name"] for one in found] == names
    assert [one.status for one in heard] == [200, 410, 200, 200, 200]


@pytest.mark.slow
def test_spot_machines_tell_their_pods_before_they_go(cluster: Cluster, api: Api, tmp_path: Path) -> None:
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    api.create(PODS, pod("a", f'trap "touch {mark}; exit 0" TERM; touch {ready}; while :; do sleep 0.05; done'))
    wait_until(ready.exists, "its process listens", within=20)
    wait_until(lambda: api.get(f"{PODS}/a")["status"]["phase"] == "Running", lambda: api.get(f"{PODS}/a"), within=20)
    cluster.preempt("spot", notice=2.0)
    wait_until(lambda: not api.list(PODS), "its pod goes", within=20)
    assert mark.exists()
    wait_until(lambda: not api.list("/api/v1/nodes"), "its machine goes", within=20)
    cluster.stockout("spot")
    api.create(PODS, pod("b"))

    def told() -> list[str]:
        return [
            event["message"] for event in api.list("/api/v1/namespaces/default/events", fields="reason=FailedScaleUp")
        ]

    assert "GCE out of resources" in wait_until(told, "it says so", within=20)[0]
    cluster.restock("spot")
    wait_until(lambda: condition(api.get(f"{PODS}/b"), "Ready"), "its pod runs", within=20)


@pytest.mark.slow
def test_each_pod_meets_a_metadata_server_of_its_own_until_it_ends(tmp_path: Path) -> None:
    """That of another pod of the same machine does not answer it: their addresses differ in more than the port."""
    pool = NodePool("spot", {"cloud.google.com/gke-spot": "true"}, allocatable={"cpu": "4"}, most=1)
    with Cluster(
        tmp_path / "cluster", {"PATH": "/usr/bin:/bin"}, pools=[pool], provision=0.0, identities="p.svc.id.goog"
    ) as cluster:
        path = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        with Api(kubeconfig.load({}, path=str(path)), patience=5.0) as api:
            wait_until(lambda: api.list("/api/v1/namespaces/default/serviceaccounts"), "pods may be created")
            api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "trainer"}})
            named = {name: tmp_path / name for name in ("a", "b")}
            for name, file in named.items():
                one = pod(name, f"echo $GCE_METADATA_HOST > {file}.new; mv {file}.new {file}; exec sleep 600")
                account = {"serviceAccountName": "trainer"} if name == "b" else {}
                api.create(PODS, {**one, "spec": {**one["spec"], **account}})  # type: ignore[dict-item]
            wait_until(lambda: all(file.exists() for file in named.values()), "they have begun", within=20)
            (a, a_token), (b, b_token) = (file.read_text().strip().split("/") for file in named.values())

            def told(place: str, token: str) -> tuple[int, str]:
                connection = http.client.HTTPConnection(place, timeout=20)
                try:
                    path = f"/{token}/computeMetadata/v1/instance/service-accounts/default/token"
                    connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
                    answer = connection.getresponse()
                    return answer.status, answer.read().decode()
                finally:
                    connection.close()

            for place, token, account in ((a, a_token, "default"), (b, b_token, "trainer")):
                status, found = told(place, token)
                assert (status, f"p.svc.id.goog/default/{account}" in found) == (200, True), found
            assert told(a, b_token)[0] == 403
            api.delete(f"{PODS}/a")
            wait_until(lambda: len(api.list(PODS)) == 1, "one pod goes", within=20)

            def is_closed() -> bool:
                try:
                    return told(a, a_token)[0] != 200
                except OSError:
                    return True

            wait_until(is_closed, "its metadata server is closed", within=20)
            assert told(b, b_token)[0] == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/version", {}, 401),
        ("/not-the-token/version", {}, 401),
        ("/{token}/version", {}, 200),
        ("/{token}/version", {"Host": "a.page.of.the.web"}, 403),
        ("/{token}/version", {"Origin": "https://a.page.of.the.web"}, 403),
    ],
)
def test_only_who_has_a_token_is_let_in_and_no_page_of_the_web(
    cluster: Cluster, path: str, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPSConnection(
        cluster.address, context=ssl.create_default_context(cadata=cluster.authority)
    )
    connection.request("GET", path.format(token=cluster.token), headers=headers)
    answer = connection.getresponse()
    assert answer.status == status, answer.read()
    connection.close()


@pytest.mark.slow
def test_a_server_that_is_away_comes_back_at_the_same_address(cluster: Cluster, api: Api) -> None:
    cluster.interrupt("kube-apiserver")
    with pytest.raises(ApiError) as caught:
        api.get("/version")
    assert caught.value.kind == answers.UNREACHABLE
    cluster.resume("kube-apiserver")
    assert api.get("/version")["major"] == "1"


def test_what_is_tried_changes_nothing_and_an_old_version_is_refused(api: Api) -> None:
    made = api.create(MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    api._call("DELETE", f"{MAPS}/a", {"dryRun": "All"})
    api._call("DELETE", f"{MAPS}/a", body={"dryRun": ["All"]})
    assert api.get(f"{MAPS}/a")["data"] == {"x": "1"}
    api._call("PUT", f"{MAPS}/a", body={**made, "data": {"x": "2"}})
    with pytest.raises(ApiError) as caught:
        api._call("PUT", f"{MAPS}/a", body={**made, "data": {"x": "3"}})
    assert caught.value.kind == answers.CONFLICT
    assert api.get(f"{MAPS}/a")["data"] == {"x": "2"}


def waits_for(api: Api, told: str) -> str:
    """Return the reason or the message with which the container of pod a waits."""
    [state] = api.get(f"{PODS}/a")["status"].get("containerStatuses") or [{"state": {}}]
    return str(state["state"].get("waiting", {}).get(told))


@pytest.mark.slow
def test_a_pod_that_cannot_begin_keeps_no_other_from_beginning(api: Api) -> None:
    api.create("/api/v1/namespaces/default/secrets", {"metadata": {"name": "some"}, "data": {"A": "eA==", "B": "/w=="}})
    broken, whole = pod("a"), pod("b", 'test "$A" = x && test "$P_A" = x || exit 3; exec sleep 600')
    for one in (broken, whole):
        one["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "0.1"  # type: ignore[index]
    broken["spec"]["containers"][0]["env"] = [{"name": "N", "valueFrom": {}}]  # type: ignore[index]
    sources = [{"secretRef": {"name": "some"}}, {"prefix": "P_", "secretRef": {"name": "some"}}]
    whole["spec"]["containers"][0]["envFrom"] = sources  # type: ignore[index]
    api.create(PODS, broken)
    api.create(PODS, whole)
    wait_until(lambda: api.get(f"{PODS}/b")["status"]["phase"] == "Running", lambda: api.get(f"{PODS}/b"), within=20)
    wait_until(lambda: waits_for(api, "reason") == "CreateContainerError", lambda: waits_for(api, "reason"), within=20)


@pytest.mark.slow
def test_a_pod_waits_for_the_secret_that_it_takes_all_variables_from(api: Api) -> None:
    waits = pod("a")
    waits["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "none"}}]  # type: ignore[index]
    api.create(PODS, waits)
    expected = 'secret "none" not found'
    wait_until(lambda: waits_for(api, "message") == expected, lambda: waits_for(api, "message"), within=20)


@pytest.mark.slow
def test_jobs_that_are_refused_leave_the_server_time_for_others(api: Api) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
    api.create("/api/v1/namespaces/default/resourcequotas", quota)
    template = {"spec": {"template": {"spec": pod("x")["spec"]}}}
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    one = {**kind, "metadata": {"name": "held"}, "spec": {"replicatedJobs": [{"name": "s", "template": template}]}}
    api.create("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", one)
    fields = "reason=JobCreationFailed"
    events = "/api/v1/namespaces/default/events"
    wait_until(lambda: api.list(events, fields=fields), "the refusal is told", within=20)
    for _ in range(20):
        api.get("/api/v1/namespaces/default")
    [told] = api.list(events, fields=fields)
    assert told["count"] < 20


def test_nodes_that_never_become_ready_are_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_cluster, "_PATIENCE", 0.5)
    cluster.interrupt("kube-apiserver")
    with pytest.raises(TimeoutError, match=r"the nodes a are not ready after 0\.5 s"):
        cluster.nodes.add(Node("a"))
    cluster.resume("kube-apiserver")


def remembered(cluster: Cluster) -> dict[str, int]:
    """Return the number of entries that each part of a cluster remembers."""
    parts = (
        cluster, cluster.autoscaler, cluster._queued_machines, cluster._jobs, cluster._node_watch, cluster._requests,
        cluster._kubelet,
    )  # fmt: skip
    kept = {f"{type(part).__name__}.{name}": value for part in parts for name, value in vars(part).items()}
    kept |= {kind.plural: found for kind, found in cluster.store._objects.items()}
    return {name: len(value) for name, value in kept.items() if isinstance(value, dict | list | set)}


@pytest.mark.slow
def test_a_cluster_keeps_nothing_of_what_is_gone(
    cluster: Cluster, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the output of a few pods."""
    monkeypatch.setattr(garbage, "_TOLD", 1.0)
    monkeypatch.setattr(kubelet, "_KEPT", 2)
    monkeypatch.setattr(emulated_cluster, "_MANY", 0)
    cluster.autoscaler.idle = 1.0
    sets, accounts = (
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
        "/api/v1/namespaces/default/serviceaccounts",
    )
    before = remembered(cluster)
    made = {"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    for number in range(4):
        one = pod("x", "echo said" if number % 2 else "exit 1")
        job = {"completionMode": "Indexed", "backoffLimit": 0, "template": {"spec": one["spec"]}}
        spec = {"replicatedJobs": [{"name": "s", "template": {"spec": job}}]}
        api.create(sets, {**made, "metadata": {"name": f"x-{number}"}, "spec": spec})
        cluster.write_kubeconfig(tmp_path / "kubeconfig")
    token = {"spec": {"expirationSeconds": 600}}
    assert "token" in api.create(f"{accounts}/default/token", token)["status"]

    def ended() -> bool:
        return all(one.get("status", {}).get("terminalState") for one in api.list(sets))

    wait_until(ended, lambda: api.list(sets), within=30)
    for number in range(4):
        api.delete(f"{sets}/x-{number}")
    kept = {**before, "Cluster._tokens": before["Cluster._tokens"] + 1}
    wait_until(
        lambda: (
            {name: found for name, found in remembered(cluster).items() if found}
            == {n: k for n, k in kept.items() if k}
        ),
        lambda: (remembered(cluster), kept),
        within=30,
    )
    folders = cluster.nodes.folder / "pods"
    wait_until(lambda: len(list(folders.iterdir())) == 2, lambda: list(folders.iterdir()), within=20)
    assert not list(folders.glob("*/root"))
    assert sorted(path.read_text() for path in folders.glob("*/log"))


def test_a_node_that_cannot_be_keeps_no_other_from_being(
    cluster: Cluster, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, with what is wrong."""
    cluster.nodes.join(Node("bad", {"no label": "x"}))
    cluster.nodes.add(Node("good"))
    cluster.nodes.add(Node("another"))
    assert {one["metadata"]["name"] for one in api.list("/api/v1/nodes")} == {"good", "another"}
    [told] = [record for record in caplog.records if "bad" in record.getMessage()]
    assert told.exc_info is not None
    assert "no label" in str(told.exc_info[1])


@pytest.mark.parametrize(
    ("selector", "said"),
    [({"disk type": "ssd"}, "a valid label key"), ({"a/b/c": "x"}, "a valid label key"), ({"disk": "a b"}, "a valid")],
)
def test_a_selector_of_nodes_has_keys_and_values_of_labels(api: Api, selector: dict[str, str], said: str) -> None:
    one = pod("a")
    one["spec"]["nodeSelector"] = selector  # type: ignore[index]
    template = {"spec": {"template": {"spec": one["spec"]}}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **template}
    for path, body, field in (
        (PODS, one, "spec.nodeSelector"),
        ("/apis/batch/v1/namespaces/default/jobs", job, "spec.template.spec.nodeSelector"),
    ):
        with pytest.raises(ApiError) as refused:
            api.create(path, body)
        assert (refused.value.kind, refused.value.status) == (answers.INVALID, 422)
        assert {cause.field for cause in refused.value.causes} == {field}


@pytest.mark.parametrize("why", ["NoSuchThing", "ErrImagePull:403", "InvalidImageName: words", ""])
def test_a_reason_for_which_no_image_is_lacked_is_refused_with_the_known_ones(cluster: Cluster, why: str) -> None:
    with pytest.raises(ValueError, match="InvalidImageName, ErrImagePull or 'ErrImagePull: WORDS'"):
        cluster.nodes.lack({"known:1": "ErrImagePull: 403 Forbidden", "an-image:1": why})
    assert not cluster.nodes.pool.images
