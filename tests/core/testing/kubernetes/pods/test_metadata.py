"""GKE's metadata server of a pod, asked by hand and by Google's unmodified library."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.auth import jwt

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.api_rules.policies import account_token, subject_token
from kinetic_orchestration.testing.emulator import PROJECT
from kinetic_orchestration.testing.kubernetes.pods.metadata import Identity, PodMetadata
from kinetic_orchestration.testing.model.state.machine import project_number
from kinetic_orchestration.testing.vms.metadata_server import Loop
from tests.support.exchanges.recorder import Recorder

POOL = f"{PROJECT}.svc.id.goog"
NUMBER = project_number(PROJECT)
ACCOUNT = "instance/service-accounts/default"
LIBRARY = """
import google.auth, google.auth.transport.requests, json
found, project = google.auth.default()
found.refresh(google.auth.transport.requests.Request())
print(json.dumps([project, found.service_account_email, found.token]))
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(hosts=False) as cloud:
        yield cloud


@pytest.fixture
def serve(cloud: Emulator) -> Iterator[Callable[..., PodMetadata]]:
    loop, servers = Loop("metadata servers of a test"), []

    def make(google: str = "", namespace: str = "training", after: float = 0.0) -> PodMetadata:
        identity = Identity(POOL, namespace, "trainer", google, cloud.rest.url)
        servers.append(PodMetadata(loop, Access(), identity, after=after))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
    loop.close()


def ask(server: PodMetadata, path: str) -> tuple[int, str]:
    place, _, token = server.address.partition("/")
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        connection.request("GET", f"/{token}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        assert answer.headers["Metadata-Flavor"] == "Google"
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_account_that_is_not_annotated_is_itself(serve: Callable[..., PodMetadata]) -> None:
    server = serve()
    assert ask(server, f"{ACCOUNT}/email") == (200, POOL)
    assert json.loads(ask(server, f"{ACCOUNT}/token")[1])["access_token"] == subject_token(
        POOL, NUMBER, "training", "trainer"
    )
    assert "https://www.googleapis.com/auth/cloud-platform\n" in ask(server, f"{ACCOUNT}/scopes")[1]
    assert ask(server, "project/project-id") == (200, PROJECT)
    assert ask(server, "project/numeric-project-id") == (200, str(NUMBER))
    status, said = ask(server, f"{ACCOUNT}/identity?audience=somebody")
    assert status == 404 and "(training/trainer) is not annotated" in said


@pytest.mark.parametrize("path", ["attributes/kinetic", "attributes/startup-script", "id", "preempted", "zone", "name"])
def test_it_tells_nothing_of_the_vm(serve: Callable[..., PodMetadata], path: str) -> None:
    assert ask(serve(), f"instance/{path}")[0] == 404


def test_an_annotated_account_is_the_one_of_google_that_lets_it(
    serve: Callable[..., PodMetadata], cloud: Emulator
) -> None:
    google = cloud.add_service_account("trusting", "training/trainer")
    server = serve(google)
    assert ask(server, f"{ACCOUNT}/email") == (200, google)
    assert json.loads(ask(server, f"{ACCOUNT}/token")[1])["access_token"] == account_token(google)
    status, token = ask(server, f"{ACCOUNT}/identity?audience=somebody")
    claims = jwt.decode(token, certs=cloud.signer.certificates(), audience="somebody")
    assert (status, claims["email"]) == (200, google)


@pytest.mark.parametrize("exists", [True, False])
def test_an_account_that_does_not_let_it_gives_no_token_in_the_words_of_gke(
    serve: Callable[..., PodMetadata], cloud: Emulator, exists: bool
) -> None:
    google = (
        cloud.add_service_account("elsewhere", "other/trainer")
        if exists
        else f"nobody@{PROJECT}.iam.gserviceaccount.com"
    )
    status, said = ask(serve(google), f"{ACCOUNT}/token")
    assert status == 403
    assert said.startswith(
        "Unable to generate access token; IAM returned 403 Forbidden: Permission 'iam.serviceAccounts.getAccessToken' "
        "denied on resource (or it may not exist).\n"
    )


def test_it_takes_no_connection_at_first(serve: Callable[..., PodMetadata]) -> None:
    began, server = time.monotonic(), serve(after=1.0)
    with pytest.raises(ConnectionRefusedError):
        ask(server, f"{ACCOUNT}/email")
    while True:
        try:
            assert ask(server, f"{ACCOUNT}/email") == (200, POOL)
            break
        except ConnectionRefusedError:
            assert time.monotonic() - began < 30.0
            time.sleep(0.05)
    assert time.monotonic() - began >= 1.0


def test_googles_library_finds_the_account_as_on_gke(serve: Callable[..., PodMetadata]) -> None:
    address = serve().address
    environ = {**os.environ, "GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "NO_GCE_CHECK": "false"}
    environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
    done = subprocess.run([sys.executable, "-c", LIBRARY], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [PROJECT, POOL, subject_token(POOL, NUMBER, "training", "trainer")]


def test_accounts_and_their_policies_are_made_and_read_as_by_gcloud(cloud: Emulator, recorder: Recorder) -> None:
    accounts = f"{cloud.rest.url}/v1/projects/p/serviceAccounts"

    def call(method: str, url: str, body: Any = None) -> Any:
        answer = requests.request(method, url, json=body, timeout=20)
        return answer.json() if answer.ok else (answer.status_code, answer.json()["error"]["message"])

    made = call("POST", accounts, {"accountId": "made-by-hand"})
    email = "made-by-hand@p.iam.gserviceaccount.com"
    assert made["email"] == email
    assert call("GET", f"{accounts}/{email}") == made
    assert call("POST", accounts, {"accountId": "made-by-hand"})[0] == 409
    policy = call("POST", f"{accounts}/{email}:getIamPolicy")
    binding = {"role": "roles/iam.workloadIdentityUser", "members": [f"serviceAccount:{POOL}[training/trainer]"]}
    assert "bindings" not in policy
    sent = {"policy": {**policy, "bindings": [binding]}}
    assert call("POST", f"{accounts}/{email}:setIamPolicy", sent)["bindings"] == [binding]
    assert call("POST", f"{accounts}/{email}:getIamPolicy")["bindings"] == [binding]
    assert call("POST", f"{accounts}/x{email}:getIamPolicy") == (404, "Unknown service account")
