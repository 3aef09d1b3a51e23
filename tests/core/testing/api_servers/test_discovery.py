"""Google's discovery client drives every method of every API that the emulator imitates, over real HTTP.

The discovery documents are those that come with google-api-python-client, so nothing is fetched. A method of theirs is
driven here, or is in the table of what is not served, never in both and never in neither.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import httplib2
import pytest
from googleapiclient.discovery import build_from_document, fix_method_name, key2param
from googleapiclient.errors import HttpError
from googleapiclient.http import MediaInMemoryUpload

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import unserved
from kinetic_orchestration.testing.api_servers.billing_skus import SERVICE
from tests.support.exchanges.recorder import Recorder

DOCUMENTS = (
    *("tpu.v2", "secretmanager.v1", "cloudresourcemanager.v1", "cloudresourcemanager.v3", "serviceusage.v1"),
    *("cloudbilling.v1", "storage.v1"),
)
ZONE = "projects/p/locations/us-east5-a"
BUCKET = "discovered"
Json = dict[str, Any]


def document(name: str) -> Json:
    found: Json = json.loads(
        files("googleapiclient").joinpath("discovery_cache", "documents", f"{name}.json").read_bytes()
    )
    return found


def methods(at: str, below: Json) -> Iterator[tuple[str, Json]]:
    for name, method in below.get("methods", {}).items():
        yield f"{at}.{name}", method
    for name, resource in below.get("resources", {}).items():
        yield from methods(f"{at}.{name}", resource)


def calls_of(name: str) -> dict[str, Json]:
    """The methods of an API by where its client has them, which their own ids do not always say."""
    return dict(methods(name.partition(".")[0], document(name)))


def path_of(name: str, method: Json) -> str:
    """A path that reaches the method, with something in place of each name."""
    served = document(name)["servicePath"]
    path = method.get("flatPath", method["path"]).replace("{v1Id}", "projects")
    return "/" + served + re.sub(r"\{[^}]+\}", "x", path)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=["us-east5-a"], hosts=False, provision_seconds=0.0) as cloud:
        cloud.storage.make_bucket(BUCKET, "p")
        yield cloud


class Api:
    """One API as its own document describes it, asked for each method by its id."""

    def __init__(self, cloud: Emulator, name: str) -> None:
        self.described = document(name)
        base = cloud.storage.url if name.startswith("storage") else cloud.rest.url
        self.described["rootUrl"] = f"{base}/"
        self.service = build_from_document(self.described, http=httplib2.Http(timeout=60))
        self.driven: set[str] = set()

    def request(self, method: str, **parameters: Any) -> Any:
        _, *resources, name = method.split(".")
        at = self.service
        for resource in resources:
            at = getattr(at, fix_method_name(resource))()
        return getattr(at, fix_method_name(name))(**parameters)

    def __call__(self, method: str, **parameters: Any) -> Any:
        ident = f"{self.described['name']}.{method}"
        self.driven.add(ident)
        return self.request(ident, **parameters).execute()


@pytest.fixture
def api(cloud: Emulator) -> Iterator[Callable[[str], Api]]:
    opened: list[Api] = []

    def open_api(name: str) -> Api:
        opened.append(Api(cloud, name))
        return opened[-1]

    yield open_api
    for one in opened:
        one.service.close()


def everything_served_was_driven(name: str, driven: set[str]) -> None:
    assert driven == {method for method in calls_of(name) if not any(row.has(method) for row in unserved.TABLE)}


# ---- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_method_of_a_document_is_in_at_most_one_row_whose_calls_are_its_own(name: str) -> None:
    for ident, method in calls_of(name).items():
        call = f"{method['httpMethod']} {path_of(name, method)}"
        rows = [row for row in unserved.TABLE if row.has(ident)]
        assert len(rows) <= 1, (ident, [row.resource for row in rows])
        if rows:
            assert rows[0].pattern.fullmatch(call), f"{ident}: no call of its row is {call}"
        else:
            assert unserved.row_of(*call.split(" ")) is None, f"{ident} is said to be served, and {call} is in a row"


def test_each_row_is_about_methods_that_there_are() -> None:
    there = {method for name in DOCUMENTS for method in calls_of(name)}
    for row in unserved.TABLE:
        if row.methods == ("*",):
            assert any(row.has(method) for method in there), row.resource
        else:
            assert {f"{row.resource}.{method}" for method in row.methods} <= there, row.resource
        assert row.why


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_not_served_is_refused_as_unimplemented_with_the_reason(
    name: str, api: Callable[[str], Api], cloud: Emulator, recorder: Recorder
) -> None:
    # An empty body, where the document of Cloud Storage says that some fields are needed.
    with recorder.wrong(*["request .*needs it"] if name == "storage.v1" else []):
        refuses_what_is_not_served(name, api(name))
    assert not cloud.ledger.leaks()


def refuses_what_is_not_served(name: str, google: Api) -> None:
    for ident, method in calls_of(name).items():
        row = next((row for row in unserved.TABLE if row.has(ident)), None)
        if row is None:
            continue
        needed = {
            key2param(key): _sample(parameter)
            for key, parameter in method.get("parameters", {}).items()
            if parameter.get("required")
        }
        with pytest.raises(HttpError) as refused:
            google.request(ident, **needed, **({"body": {}} if "request" in method else {})).execute()
        assert refused.value.status_code == 501, ident
        assert refused.value.resp["content-type"] == "application/json; charset=UTF-8"
        error = json.loads(refused.value.content)["error"]
        assert error["code"] == 501 and row.why in error["message"], ident
        assert error.get("status") == "UNIMPLEMENTED" or error["errors"][0]["reason"] == "notImplemented"


def _sample(parameter: Json) -> str:
    if parameter.get("format") in ("int32", "int64"):
        return "1"
    pattern = parameter.get("pattern", "^x$").removeprefix("^").removesuffix("$")
    return re.sub(r"\[\^/\]\+|\.\*", "x", pattern)


# ---- what is served ----------------------------------------------------------------------------------------


def node(**more: Any) -> Json:
    return {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", **more}


def test_every_method_of_cloud_tpu(api: Callable[[str], Api], cloud: Emulator) -> None:
    call = api("tpu.v2")
    places = "projects.locations"
    assert call(f"{places}.list", name="projects/p")["locations"][0]["locationId"] == "us-east5-a"
    assert call(f"{places}.get", name=ZONE)["name"] == ZONE
    email = call(f"{places}.generateServiceIdentity", parent=ZONE, body={})["identity"]["email"]
    assert re.fullmatch(r"service-[0-9]{12}@gcp-sa-tpu\.iam\.gserviceaccount\.com", email)
    kinds = call(f"{places}.acceleratorTypes.list", parent=ZONE, filter="type=v6e-8")["acceleratorTypes"]
    assert [kind["type"] for kind in kinds] == ["v6e-8"]
    assert call(f"{places}.acceleratorTypes.get", name=kinds[0]["name"]) == kinds[0]
    version = call(f"{places}.runtimeVersions.list", parent=ZONE, pageSize=1)["runtimeVersions"][0]
    assert call(f"{places}.runtimeVersions.get", name=version["name"]) == version

    name = f"{ZONE}/nodes/n"
    operation = call(f"{places}.nodes.create", parent=ZONE, nodeId="n", body=node(labels={"a": "b"}))
    cloud.wait_until(lambda: call(f"{places}.operations.get", name=operation["name"]).get("done"))
    assert call(f"{places}.nodes.get", name=name)["state"] == "READY"
    assert [one["name"] for one in call(f"{places}.nodes.list", parent=ZONE)["nodes"]] == [name]
    call(f"{places}.nodes.patch", name=name, updateMask="labels", body={"labels": {"c": "d"}})
    assert call(f"{places}.nodes.get", name=name)["labels"] == {"c": "d"}
    assert call(f"{places}.nodes.getGuestAttributes", name=name, body={})["guestAttributes"]
    call(f"{places}.nodes.stop", name=name, body={})
    cloud.wait_until(lambda: call(f"{places}.nodes.get", name=name)["state"] == "STOPPED")
    call(f"{places}.nodes.start", name=name, body={})
    cloud.wait_until(lambda: call(f"{places}.nodes.get", name=name)["state"] == "READY")
    call(f"{places}.nodes.delete", name=name)

    queued = f"{ZONE}/queuedResources/q"
    spec = {"parent": ZONE, "nodeId": "q", "node": node()}
    call(
        f"{places}.queuedResources.create",
        parent=ZONE, queuedResourceId="q", requestId="d8a3e0b4-8f5f-4c3a-9f61-7f1f8f6d1a11",
        body={"tpu": {"nodeSpec": [spec]}, "spot": {}},
    )  # fmt: skip
    cloud.wait_until(lambda: call(f"{places}.queuedResources.get", name=queued)["state"]["state"] == "ACTIVE")
    assert len(call(f"{places}.queuedResources.list", parent="projects/p/locations/-")["queuedResources"]) == 1
    call(f"{places}.queuedResources.reset", name=queued, body={})
    operation = call(f"{places}.queuedResources.delete", name=queued, force=True)
    cloud.wait_until(lambda: call(f"{places}.operations.get", name=operation["name"]).get("done"))
    pages = []
    token = None
    while token != "":
        page = call(f"{places}.operations.list", name=ZONE, pageSize=3, pageToken=token, filter="metadata.verb!=stop")
        pages.append([one["metadata"]["verb"] for one in page["operations"]])
        token = page.get("nextPageToken", "")
    assert [len(page) for page in pages[:-1]] == [3] * (len(pages) - 1) and len(pages) > 1
    assert {"create", "delete", "start", "update", "reset"} == {verb for page in pages for verb in page}
    assert call(f"{places}.operations.delete", name=operation["name"]) == {}
    with pytest.raises(HttpError) as gone:
        call(f"{places}.operations.get", name=operation["name"])
    assert gone.value.status_code == 404 and "was not found" in gone.value.reason
    cloud.wait_until_empty()
    everything_served_was_driven("tpu.v2", call.driven)


def test_every_method_of_secret_manager(api: Callable[[str], Api], cloud: Emulator) -> None:
    call = api("secretmanager.v1")
    secrets = "projects.secrets"
    for ident in ("s", "t"):
        call(f"{secrets}.create", parent="projects/p", secretId=ident, body={"replication": {"automatic": {}}})
    name = "projects/p/secrets/s"
    page = call(f"{secrets}.list", parent="projects/p", pageSize=1)
    assert page["secrets"] == [call(f"{secrets}.get", name=name)]
    assert "nextPageToken" in page
    call(f"{secrets}.patch", name=name, updateMask="labels", body={"labels": {"a": "b"}})
    found = call(f"{secrets}.list", parent="projects/p", filter="labels.a=b")["secrets"]
    assert [one["name"] for one in found] == [name]
    for value in (b"one", b"two"):
        call(f"{secrets}.addVersion", parent=name, body={"payload": {"data": base64.b64encode(value).decode()}})
    versions = call(f"{secrets}.versions.list", parent=name, pageSize=1)
    assert [one["name"] for one in versions["versions"]] == [f"{name}/versions/2"]
    rest = call(f"{secrets}.versions.list", parent=name, pageToken=versions["nextPageToken"])
    assert [one["name"] for one in rest["versions"]] == [f"{name}/versions/1"]
    data = call(f"{secrets}.versions.access", name=f"{name}/versions/latest")["payload"]["data"]
    assert base64.b64decode(data) == b"two"
    assert call(f"{secrets}.versions.destroy", name=f"{name}/versions/2", body={})["state"] == "DESTROYED"
    assert call(f"{secrets}.versions.get", name=f"{name}/versions/1")["state"] == "ENABLED"
    for ident in ("s", "t"):
        assert call(f"{secrets}.delete", name=f"projects/p/secrets/{ident}") == {}
    assert not cloud.ledger.leaks()
    everything_served_was_driven("secretmanager.v1", call.driven)


@pytest.mark.parametrize(("version", "resource"), [("v1", "p"), ("v3", "projects/p")])
def test_every_method_of_resource_manager(api: Callable[[str], Api], version: str, resource: str) -> None:
    call = api(f"cloudresourcemanager.{version}")
    asked = {"permissions": ["tpu.nodes.create"]}
    assert call("projects.testIamPermissions", resource=resource, body=asked) == asked
    project = call("projects.get", **({"projectId": resource} if version == "v1" else {"name": resource}))
    assert project["projectId"] == "p"
    assert len(project.get("projectNumber") or project["name"].removeprefix("projects/")) == 12
    policy = call("projects.getIamPolicy", resource=resource, body={"options": {"requestedPolicyVersion": 3}})
    binding = {"role": "roles/viewer", "members": ["user:ada@example.com"]}
    found = call("projects.setIamPolicy", resource=resource, body={"policy": {**policy, "bindings": [binding]}})
    assert found["bindings"] == [binding]
    everything_served_was_driven(f"cloudresourcemanager.{version}", call.driven)


def test_every_method_of_service_usage_and_of_the_billing_catalog(api: Callable[[str], Api], cloud: Emulator) -> None:
    call = api("serviceusage.v1")
    assert call("services.get", name="projects/p/services/tpu.googleapis.com")["state"] == "ENABLED"
    names = [f"projects/p/services/{name}.googleapis.com" for name in ("tpu", "storage")]
    assert [one["state"] for one in call("services.batchGet", parent="projects/p", names=names)["services"]] == [
        "ENABLED",
        "ENABLED",
    ]
    begun = call("services.batchEnable", parent="projects/p", body={"serviceIds": ["tpu.googleapis.com"]})
    cloud.wait_until(lambda: api("serviceusage.v1")("operations.get", name=begun["name"]).get("done"))
    everything_served_was_driven("serviceusage.v1", call.driven)
    call = api("cloudbilling.v1")
    page = call("services.skus.list", parent=f"services/{SERVICE}", pageSize=10)
    assert len(page["skus"]) == 10
    rest = call("services.skus.list", parent=f"services/{SERVICE}", pageToken=page["nextPageToken"])
    assert rest["nextPageToken"] == "" and page["skus"][-1] != rest["skus"][0]
    everything_served_was_driven("cloudbilling.v1", call.driven)


def test_every_method_of_cloud_storage(api: Callable[[str], Api]) -> None:
    call = api("storage.v1")
    assert call("buckets.insert", project="p", body={"name": "another"})["name"] == "another"
    assert {bucket["name"] for bucket in call("buckets.list", project="p")["items"]} >= {"another", BUCKET}
    assert call("buckets.patch", bucket="another", body={"labels": {"a": "b"}})["name"] == "another"
    assert call("buckets.get", bucket="another", fields="name,location") == {
        "name": "another",
        "location": "US-CENTRAL1",
    }
    permissions = ["storage.objects.get"]
    assert call("buckets.testIamPermissions", bucket="another", permissions=permissions)["permissions"] == permissions
    binding = {"role": "roles/storage.objectViewer", "members": ["serviceAccount:a@p.iam.gserviceaccount.com"]}
    policy = call("buckets.getIamPolicy", bucket="another", optionsRequestedPolicyVersion=3)
    assert policy["bindings"] == [{"role": "roles/storage.admin", "members": ["allUsers"]}]
    set_ = call("buckets.setIamPolicy", bucket="another", body={**policy, "bindings": [binding]})
    assert call("buckets.getIamPolicy", bucket="another", fields="bindings") == {"bindings": set_["bindings"]}
    assert set_["bindings"] == [binding]
    call("buckets.delete", bucket="another")

    for name, resumable in (("a", False), ("b", True)):
        media = MediaInMemoryUpload(name.encode() * 3, "application/octet-stream", resumable=resumable)
        assert call("objects.insert", bucket=BUCKET, name=name, media_body=media)["size"] == "3"
    assert call.request("storage.objects.get_media", bucket=BUCKET, object="a").execute() == b"aaa"
    assert call("objects.get", bucket=BUCKET, object="b", fields="name,size") == {"name": "b", "size": "3"}
    parts = {"sourceObjects": [{"name": "a"}, {"name": "b"}]}
    assert call("objects.compose", destinationBucket=BUCKET, destinationObject="ab", body=parts)["size"] == "6"
    target = {"sourceBucket": BUCKET, "sourceObject": "a", "destinationBucket": BUCKET}
    assert call("objects.copy", **target, destinationObject="copy", body={})["name"] == "copy"
    assert call("objects.rewrite", **target, destinationObject="rewritten", body={})["done"] is True
    assert call("objects.patch", bucket=BUCKET, object="a", body={"metadata": {"k": "v"}})["metadata"] == {"k": "v"}
    changed = {"acl": [], "metadata": {"k": "w"}}
    assert call("objects.update", bucket=BUCKET, object="a", body=changed)["metadata"] == {"k": "w"}
    assert call("objectAccessControls.list", bucket=BUCKET, object="a")["items"]
    listed = call("objects.list", bucket=BUCKET, fields="items(name),nextPageToken")
    assert listed == {"items": [{"name": name} for name in ("a", "ab", "b", "copy", "rewritten")]}
    for item in listed["items"]:
        call("objects.delete", bucket=BUCKET, object=item["name"])
    assert "items" not in call("objects.list", bucket=BUCKET)
    everything_served_was_driven("storage.v1", call.driven)
