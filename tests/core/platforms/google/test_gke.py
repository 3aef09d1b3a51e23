"""Clusters of GKE: those that do not exist, those of one name, and by which endpoint one is reached."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import GONE, UNKNOWN, Freed, Observation, Past
from kinetic_orchestration.platforms.google.credentials import handed_in
from kinetic_orchestration.platforms.google.rest.gke import GkeClusters
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.shared.cluster_access import ClusterGone
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from tests.core.platforms.kubernetes.api.scripted_server import Authority, Server, serving
from tests.core.platforms.kubernetes.attempts import plan_of

OTHER = {"name": "other", "location": "us-central1", "status": "RUNNING"}
GOING = {"name": "prod", "location": "us-central1", "status": "STOPPING"}


class Lists:
    """Google's list of clusters, as a server on loopback gives it."""

    def __init__(self) -> None:
        self.status, self.body = 200, dict[str, Any]()
        self.asked = 0


@pytest.fixture
def lists(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lists]:
    found = Lists()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked += 1
            body = json.dumps(found.body).encode()
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """It says nothing."""

    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", ())
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("KINETIC_EMULATOR", f"http://127.0.0.1:{server.server_address[1]}")
        yield found
        server.shutdown()
        thread.join()


def seen() -> tuple[Freed, Observation, list[dict[str, Any]]]:
    known = settings.load(
        backend="gke", store="gs://bucket/kinetic", deployment="prod", project="p", cluster="prod", namespace="a"
    )
    backend = KubernetesBackend(known, GkeClusters(known), None, "gke")
    placement = {"backend": "gke", "project": "p", "zone": "prod/a", "name": "kinetic-x-1", "hosts": 1}
    (observed,) = backend.observe([placement])
    return backend.release(placement), observed, list(backend.leftovers())


def test_nothing_is_left_in_a_cluster_that_was_deleted_and_its_attempts_have_ended(lists: Lists) -> None:
    lists.body = {"clusters": [OTHER]}
    freed, observed, (unread,) = seen()
    assert freed is Freed.DONE
    assert (observed.state, observed.cause) == (GONE, wire.INFRASTRUCTURE)
    assert "p has no cluster prod; it has other" in observed.message
    assert unread["zone"] == "prod/a" and "p has no cluster prod" in unread["unread"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"clusters": [OTHER], "missingZones": ["us-east5-a"]}),
        (200, {"clusters": [GOING]}),
        (403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}),
        (503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "later"}}),
    ],
    ids=["a location is silent", "it is being deleted", "no right", "no answer"],
)
def test_a_cluster_of_which_not_all_is_known_is_not_called_gone(
    lists: Lists, status: int, body: dict[str, Any]
) -> None:
    lists.status, lists.body = status, body
    freed, observed, (unread,) = seen()
    assert (freed, observed.state, observed.cause) == (Freed.REFUSED, UNKNOWN, "")
    assert unread["unread"]


# ---- clusters of one name


WEST = {"name": "prod", "location": "us-west4", "status": "RUNNING", "endpoint": "10.0.0.1"}
EAST = {"name": "prod", "location": "us-east5-a", "status": "RUNNING", "endpoint": "10.0.0.2"}


def clusters(**options: Any) -> GkeClusters:
    return GkeClusters(
        settings.load(backend="gke", store="gs://bucket/kinetic", deployment="prod", project="p", **options)
    )


@pytest.mark.parametrize(
    ("cluster", "zone", "location"),
    [
        ("prod", "us-west4-a", "us-west4"),
        ("prod", "us-east5-a", "us-east5-a"),
        ("us-east5-a/prod", "", "us-east5-a"),
        ("us-east5-a/prod", "us-west4-a", "us-east5-a"),
    ],
)
def test_of_two_clusters_of_one_name_one_is_chosen_by_its_location(
    lists: Lists, cluster: str, zone: str, location: str
) -> None:
    lists.body = {"clusters": [WEST, EAST]}
    ours = clusters(zone=zone)
    assert ours.access(cluster).cluster == ("p", location, "prod")
    assert ours.mark(cluster) == location


def test_another_location_than_the_one_that_is_set_is_never_taken(lists: Lists) -> None:
    lists.body = {"clusters": [EAST]}
    with pytest.raises(BackendError, match=r"p has a cluster prod in us-east5-a, and none where KINETIC_ZONE .* lead"):
        clusters(zone="us-west4-a").access("prod")
    lists.body = {"clusters": [WEST, EAST]}
    with pytest.raises(BackendError, match="several clusters named prod, in us-east5-a, us-west4: name one as LOC"):
        clusters().access("prod")


def test_a_process_of_other_settings_finds_the_cluster_of_a_placement(lists: Lists) -> None:
    lists.body = {"clusters": [WEST, EAST]}
    ours = clusters(zone="us-east5-a")
    ours.access("prod")
    theirs = clusters(zone="us-west4-a")
    assert theirs.access("prod", "p", ours.mark("prod")).server == "https://10.0.0.2"
    lists.body = {"clusters": [WEST]}
    with pytest.raises(ClusterGone):
        theirs.access("prod", "p", "us-east5-a")


def backend_of(clusters: GkeClusters) -> KubernetesBackend:
    return KubernetesBackend(clusters._settings, clusters, None, "gke")


JOB = "job-0123456789ab"


def test_a_placement_says_in_which_location_its_cluster_is(lists: Lists) -> None:
    """Also if nothing was asked of the cluster before; where Google cannot be asked, its name has to do."""
    lists.body = {"clusters": [WEST, EAST]}
    named = plan_of("l4", zone="us-west4/prod/team", backend="gke", project="p")
    placement = backend_of(clusters()).place(named, JOB, 1)
    assert (placement["zone"], placement["cluster"]) == ("us-west4/prod/team", "us-west4")
    plan = plan_of("l4", zone="prod/team", backend="gke", project="p")
    assert backend_of(clusters(zone="us-east5-a")).place(plan, JOB, 1)["cluster"] == "us-east5-a"
    lists.status = 503
    assert backend_of(clusters(zone="us-east5-a")).place(plan, JOB, 1)["cluster"] == ""


def test_what_one_process_asks_by_other_settings_or_for_other_jobs_says_nothing_of_a_cluster(lists: Lists) -> None:
    lists.body = {"clusters": [WEST, EAST]}
    plan = plan_of("l4", zone="prod/team", backend="gke", project="p")
    ours, theirs = clusters(zone="us-west4-a"), clusters(zone="us-east5-a")
    ours.access("prod")
    theirs.access("prod")
    ours.access("prod", "p", "us-east5-a")  # of a job that was submitted with their settings
    assert backend_of(ours).place(plan, JOB, 1)["cluster"] == "us-west4"


def test_the_next_attempt_is_in_the_same_cluster_whoever_places_it(lists: Lists) -> None:
    lists.body = {"clusters": [WEST, EAST]}
    plan = plan_of("l4", zones=("prod/team", "prod/other"), zone_patience=60.0, backend="gke", project="p")
    first = backend_of(clusters(zone="us-east5-a")).place(plan, JOB, 1)
    theirs = backend_of(clusters(zone="us-west4-a"))
    for cause, zone in ((wire.PREEMPTION, "prod/team"), (wire.STOCKOUT, "prod/other")):
        placement = theirs.place(plan, JOB, 2, Past(first, cause, "", 1.0))
        assert (placement["zone"], placement["cluster"]) == (zone, "us-east5-a")
    elsewhere = plan_of("l4", zones=("prod/team", "us-west4/prod/team"), zone_patience=60.0, backend="gke")
    placement = theirs.place(elsewhere, JOB, 2, Past(first, wire.STOCKOUT, "", 1.0))
    assert placement["cluster"] == "us-west4"


def test_a_plan_that_is_shown_asks_nothing(lists: Lists) -> None:
    plan = plan_of("l4", zone="prod/team", backend="gke", project="p")
    assert "the JobSet that is created in prod/team" in backend_of(clusters()).dry_run(plan)
    assert lists.asked == 0


# ---- the endpoint by which one is reached


ADDRESS, NAME = "192.0.2.1", "gke-0123456789ab.us-central1.gke.goog"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulated Google Cloud, whose answers are held against Google's discovery document."""
    with Emulator(hosts=False) as cloud:
        for name, value in cloud.addresses().items():
            monkeypatch.setenv(name, value)
        yield cloud


def by_dns(**found: Any) -> dict[str, Any]:
    """Return what the container API says of a cluster with a DNS endpoint."""
    return {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": found}}


def at(server: Server, name: str = "127.0.0.1") -> str:
    return server.url.removeprefix("https://").replace("127.0.0.1", name)


def believe(authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this authority alone as the system's."""
    file = folder / "system.pem"
    file.write_text(authority.pem, encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


@pytest.mark.parametrize(
    ("more", "server", "authority"),
    [
        (by_dns(endpoint=NAME, allowExternalTraffic=True), NAME, ""),
        (by_dns(endpoint=NAME, allowExternalTraffic=False), ADDRESS, "its own"),
        (by_dns(endpoint=NAME), ADDRESS, "its own"),
        (by_dns(allowExternalTraffic=True), ADDRESS, "its own"),
        ({}, ADDRESS, "its own"),
    ],
)
def test_the_dns_endpoint_is_taken_if_it_admits_traffic_from_outside(
    cloud: Emulator, more: dict[str, Any], server: str, authority: str
) -> None:
    cloud.add_cluster("prod", ADDRESS, "its own", project="p", **more)
    access = clusters().access("prod")
    assert (access.server, access.authority, access.insecure) == (f"https://{server}", authority, False)


def test_the_dns_endpoint_is_believed_by_the_systems_authorities_and_asked_with_googles_token(
    cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, public = Authority(), Authority("a public authority")
    believe(public, tmp_path, monkeypatch)
    with serving(public.signed("gke.goog", "localhost"), public.pem, tmp_path) as server:
        dns = by_dns(endpoint=at(server, "localhost"), allowExternalTraffic=True)
        cloud.add_cluster("prod", ADDRESS, own.pem, project="p", **dns)
        identity = Credentials("a token")  # type: ignore[no-untyped-call]
        with handed_in(identity), Api(clusters().access("prod")) as api:
            assert api.get(PODS)["kind"] == "PodList"
    assert [request.token for request in server.requests] == ["a token"]


@pytest.mark.parametrize("opened", [False, True], ids=["at another address", "by its DNS endpoint"])
def test_a_cluster_that_is_no_longer_where_it_was_is_looked_for_in_its_location(
    cloud: Emulator, opened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else answers at its old address."""
    first, second = Authority(), Authority("the next")
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    with (
        serving(first.signed("kube-apiserver", "127.0.0.1"), first.pem, tmp_path / "old") as old,
        serving(second.signed("kube-apiserver", "127.0.0.1", "localhost"), second.pem, tmp_path / "new") as new,
    ):
        cloud.add_cluster("prod", at(old), first.pem, project="p")
        with Api(clusters().access("prod")) as api:
            api.get(PODS)
            api.close()
            old.present(*Authority("somebody else").signed("other", "127.0.0.1"))
            if opened:
                believe(second, tmp_path, monkeypatch)
                dns = by_dns(endpoint=at(new, "localhost"), allowExternalTraffic=True)
                cloud.add_cluster("prod", at(old), first.pem, project="p", **dns)
            else:
                cloud.add_cluster("prod", at(new), second.pem, project="p")
            cloud.add_cluster("prod", ADDRESS, "another's", "us-west4", "p")
            assert api.get(PODS)["kind"] == "PodList"
            assert api.access.authority == ("" if opened else second.pem)
    assert (len(old.requests), len(new.requests)) == (1, 1)


def test_an_authority_that_googles_api_does_not_know_yet_is_told_and_taken_as_soon_as_it_does(
    cloud: Emulator, tmp_path: Path
) -> None:
    first, second = Authority(), Authority("the next")
    with serving(first.signed("kube-apiserver", "127.0.0.1"), first.pem, tmp_path) as server:
        cloud.add_cluster("prod", at(server), first.pem, project="p")
        with Api(clusters().access("prod")) as api:
            api.get(PODS)
            api.close()
            server.present(*second.signed("kube-apiserver", "127.0.0.1"))
            before = cloud.count("ListClusters")
            with pytest.raises(ApiError, match="is not trusted, so nothing was asked") as raised:
                api.get(PODS)
            assert cloud.count("ListClusters") == before + 1
            assert "'gcloud container clusters describe prod --project=p --location=us-" in str(raised.value)
            assert "kubeconfig" not in str(raised.value)
            cloud.add_cluster("prod", at(server), second.pem, project="p")
            assert api.get(PODS)["kind"] == "PodList"
