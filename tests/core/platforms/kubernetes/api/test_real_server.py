"""The client against a real API server with JobSet's webhooks: what it answers is what the other tests script."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import answers, kubeconfig
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Object
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.shared.cluster_access import Access, no_pair
from tests.core.platforms.kubernetes.api.scripted_server import Authority
from tests.support.kubernetes.fixtures import only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(1)]


@pytest.fixture
def access(plane: Any) -> Access:
    return kubeconfig.load({}, path=str(plane.kubeconfig))


@pytest.fixture
def api(access: Access) -> Iterator[Api]:
    with Api(access) as it:
        yield it


@pytest.fixture
def space(api: Api) -> Iterator[str]:
    """A namespace of this test alone, in which pods need no service account."""
    name = f"client-{uuid.uuid4().hex[:12]}"
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    wait_until(lambda: api.list(f"/api/v1/namespaces/{name}/serviceaccounts"))
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def pods(space: str) -> str:
    return f"/api/v1/namespaces/{space}/pods"


@pytest.fixture
def jobsets(space: str) -> str:
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets"


def pod(name: str, **labels: str) -> Object:
    # Where no node is: it stays pending, and goes at once when it is deleted.
    spec = {"containers": [{"name": "step", "image": "none"}], "nodeSelector": {"no": "node"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def jobset(name: str, **more: Any) -> Object:
    template = {"spec": {**pod("")["spec"], "restartPolicy": "Never"}}
    job = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"of": "us"}},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": job}}], **more},
    }


def names(found: Any) -> list[str]:
    return sorted(one["metadata"]["name"] for one in found)


def refused(call: Any, *words: Any, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*words, **options)
    return caught.value


def test_pods_are_created_by_threads_and_listed_in_pages(api: Api, pods: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: api.create(pods, pod(f"p{number}", of="us", odd=str(number % 2))), range(10)))
    assert names(api.list(pods, labels="of=us", limit=3)) == [f"p{number}" for number in range(10)]
    assert names(api.list(pods, labels="of=us,odd=1", limit=3)) == ["p1", "p3", "p5", "p7", "p9"]
    assert names(api.list(pods, fields="metadata.name=p4")) == ["p4"]
    assert api.list(pods, labels="of=them") == []
    wait_until(lambda: len(api.list(pods, labels="of=us", limit=3, cached=True)) == 10)


def test_a_pod_is_deleted_only_if_it_is_the_one(api: Api, pods: str) -> None:
    made = api.create(pods, pod("a"))
    uid = made["metadata"]["uid"]
    assert api.get(f"{pods}/a")["metadata"]["uid"] == uid
    assert refused(api.create, pods, pod("a")).kind == answers.EXISTS
    assert refused(api.delete, f"{pods}/a", uid=str(uuid.uuid4())).kind == answers.CONFLICT
    api.delete(f"{pods}/a", uid=uid)
    wait_until(lambda: not api.list(pods))
    error = refused(api.delete, f"{pods}/a", uid=uid)
    assert (error.kind, error.details["name"], error.details["kind"]) == (answers.ABSENT, "a", "pods")


def test_a_jobset_lives_and_goes(api: Api, jobsets: str) -> None:
    assert api.create(jobsets, jobset("a"), dry_run=True)["spec"]["network"]["enableDNSHostnames"] is True
    assert api.list(jobsets) == []
    made = api.create(jobsets, jobset("a"))
    assert names(api.list(jobsets, labels="of=us")) == ["a"]
    api.delete(f"{jobsets}/a", uid=made["metadata"]["uid"])
    wait_until(lambda: not api.list(jobsets))
    assert refused(api.get, f"{jobsets}/a").kind == answers.ABSENT


def test_what_is_wrong_with_an_object_is_told(api: Api, jobsets: str, pods: str) -> None:
    unknown = refused(api.create, jobsets, jobset("a", colour="red"))
    assert (unknown.kind, unknown.status) == (answers.INVALID, 400)
    assert 'strict decoding error: unknown field "spec.colour"' in unknown.words
    long = refused(api.create, jobsets, jobset("a" * 60), dry_run=True)
    assert (long.kind, long.status) == (answers.INVALID, 422)
    assert "JobSet name is too long" in long.words
    empty = pod("a")
    del empty["spec"]["containers"][0]["name"]
    fields = refused(api.create, pods, empty, dry_run=True)
    assert (fields.kind, fields.causes[0].field) == (answers.INVALID, "spec.containers[0].name")
    assert refused(api.list, pods, labels="==").kind == answers.INVALID


def test_a_server_has_a_version(api: Api) -> None:
    assert api.get("/version")["gitVersion"].startswith("v1.")
    assert refused(api.get, "/healthz").kind == answers.UNREACHABLE  # the word ok


def test_what_is_not_there(api: Api, pods: str) -> None:
    assert refused(api.list, "/apis/none.example/v1/things").kind == answers.UNSERVED
    assert refused(api.list, "/apis/jobset.x-k8s.io/v1alpha2/things").kind == answers.UNSERVED
    error = refused(api.create, "/api/v1/namespaces/none/pods", pod("a"))
    assert (error.kind, error.details["kind"]) == (answers.ABSENT, "namespaces")
    assert api.list("/api/v1/namespaces/none/pods") == []


def test_who_may_not(access: Access, jobsets: str) -> None:
    with Api(access._replace(headers=(("Impersonate-User", "nobody"),))) as api:
        error = refused(api.list, jobsets)
    assert error.kind == answers.FORBIDDEN
    assert 'jobsets.jobset.x-k8s.io is forbidden: User "nobody" cannot list' in error.words


def test_who_is_not_known(access: Access, pods: str) -> None:
    asked: list[bool] = []

    def token(fresh: bool) -> str:
        asked.append(fresh)
        return "wrong"

    says = r"does not accept the identity of context .*Unauthorized"
    with Api(access._replace(token=token, pair=no_pair, find=None)) as api, pytest.raises(CredentialsError, match=says):
        api.get(pods)
    assert asked.count(True) == 1


def test_a_pod_is_its_service_account(api: Api, access: Access, space: str, tmp_path: Path) -> None:
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    given = api.create(f"/api/v1/namespaces/{space}/serviceaccounts/default/token", wanted)
    for name, text in {"ca.crt": access.authority, "namespace": space, "token": given["status"]["token"]}.items():
        (tmp_path / name).write_text(text)
    address = urlsplit(access.server)
    environ = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}
    inside = kubeconfig.in_cluster(environ, tmp_path)
    with Api(inside) as pod_api:
        error = refused(pod_api.list, f"/api/v1/namespaces/{inside.namespace}/pods")
    assert error.kind == answers.FORBIDDEN
    assert f'User "system:serviceaccount:{space}:default" cannot list resource "pods"' in error.words


@only_real
def test_a_program_gives_the_certificate(plane: Any, access: Access, tmp_path: Path) -> None:
    pair = access.pair()
    assert pair is not None
    version = "client.authentication.k8s.io/v1"
    status = {"clientCertificateData": pair.certificate, "clientKeyData": pair.key}
    (tmp_path / "answer").write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
    known = json.loads(plane.kubeconfig.read_text())
    program = {"apiVersion": version, "command": "cat", "args": [str(tmp_path / "answer")], "interactiveMode": "Never"}
    known["users"][0]["user"] = {"exec": program}
    (tmp_path / "config").write_text(json.dumps(known))
    with Api(kubeconfig.load(os.environ, path=str(tmp_path / "config"))) as api:
        assert api.get("/api/v1/namespaces/default")["metadata"]["name"] == "default"


def test_a_server_of_another_authority_is_asked_nothing(access: Access, pods: str) -> None:
    with Api(access._replace(authority=Authority().pem, find=None)) as api:
        error = refused(api.get, pods)
    assert error.kind == answers.UNREACHABLE
    assert "It shows a certificate for" in str(error)
    assert "127.0.0.1" in str(error)


def test_a_cluster_found_anew_is_used(access: Access, pods: str) -> None:
    with Api(access._replace(authority=Authority().pem)) as api:
        assert api.get(pods)["kind"] == "PodList"
        assert api.access.authority == access.authority
