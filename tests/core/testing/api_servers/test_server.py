"""The emulated APIs as the unmodified client libraries see them: Cloud TPU over gRPC, asyncio and REST."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Iterator
from typing import Any

import google.auth.transport.requests
import grpc
import pytest
import requests
from google.api_core import exceptions
from google.api_core.future.polling import DEFAULT_POLLING
from google.auth.credentials import AnonymousCredentials
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
from google.cloud.tpu_v2.services.tpu.transports.grpc_asyncio import TpuGrpcAsyncIOTransport
from google.oauth2 import credentials, id_token
from google.protobuf import field_mask_pb2

from kinetic_orchestration.platforms.google.tpu.client import EMULATOR_TOKEN, emulated_channel
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_servers.server import token
from kinetic_orchestration.testing.model.lifecycle import Timing
from kinetic_orchestration.testing.model.state.machine import Machine
from tests.support.exchanges.recorder import Recorder
from tests.support.waits import wait_until

ZONE = "us-east5-a"
PARENT = f"projects/p/locations/{ZONE}"
QUEUED = f"{PARENT}/queuedResources/q"
NODE = f"{PARENT}/nodes/q"
WAIT = 60.0
REQUEST = "0d1c5ad0-9f4b-4a63-8a3e-1f7a8c6b2d11"


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=[ZONE, "us-central1-b"], hosts=False, timing=Timing(provision=0.02)) as cloud:
        yield cloud


def over_grpc(cloud: Emulator) -> tpu_v2.TpuClient:
    return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=emulated_channel(cloud.grpc.address)))


def over_rest(cloud: Emulator, who: Any = None) -> tpu_v2.TpuClient:
    options = {"api_endpoint": cloud.rest.url}
    return tpu_v2.TpuClient(transport="rest", credentials=who or AnonymousCredentials(), client_options=options)


@pytest.fixture(params=[over_grpc, over_rest], ids=["grpc", "rest"])
def client(request: pytest.FixtureRequest, cloud: Emulator) -> Iterator[tpu_v2.TpuClient]:
    client: tpu_v2.TpuClient = request.param(cloud)
    yield client
    client.transport.close()


def node(**more: Any) -> tpu_v2.Node:
    return tpu_v2.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e", **more)


def queued(name: str = "q", parent: str = PARENT, **more: Any) -> tpu_v2.QueuedResource:
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=name, node=more.pop("node", None) or node())
    return tpu_v2.QueuedResource(
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), spot=tpu_v2.QueuedResource.Spot(), **more
    )


def create(client: tpu_v2.TpuClient, name: str = "q", **more: Any) -> Any:
    return client.create_queued_resource(
        parent=PARENT, queued_resource_id=name, queued_resource=queued(name, **more), timeout=WAIT
    )


def state(client: tpu_v2.TpuClient, name: str = "q") -> Any:
    return client.get_queued_resource(name=f"{PARENT}/queuedResources/{name}").state.state


def delete(client: tpu_v2.TpuClient, name: str = "q", force: bool = True) -> Any:
    return client.delete_queued_resource(request={"name": f"{PARENT}/queuedResources/{name}", "force": force})


def done(operation: Any) -> Any:
    """Its result, asked for more often than the library would."""
    return operation.result(timeout=WAIT, polling=DEFAULT_POLLING.with_delay(initial=0.02, multiplier=1.0))


State = tpu_v2.QueuedResourceState.State


def test_every_verb_of_queued_resources(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    shown = node(
        labels={"kinetic-job": "j"},
        metadata={"startup-script": "true", "kinetic": "{}"},
        tags=["t"],
        network_config=tpu_v2.NetworkConfig(subnetwork="projects/h/regions/r/subnetworks/s", enable_external_ips=True),
        service_account=tpu_v2.ServiceAccount(email="vm@p.iam.gserviceaccount.com"),
        data_disks=[tpu_v2.AttachedDisk(source_disk="projects/p/zones/z/disks/d", mode="READ_ONLY")],
        shielded_instance_config=tpu_v2.ShieldedInstanceConfig(enable_secure_boot=True),
    )
    accepted = done(create(client, node=shown))
    assert accepted.name == QUEUED
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    found = client.get_queued_resource(name=QUEUED)
    assert found.tpu.node_spec[0].node.labels == {"kinetic-job": "j"}
    assert "spot" in found
    made = client.get_node(name=NODE)
    assert (made.state, made.health) == (tpu_v2.Node.State.READY, tpu_v2.Node.Health.HEALTHY)
    assert made.network_config == shown.network_config
    assert made.data_disks == shown.data_disks
    assert made.service_account.email == "vm@p.iam.gserviceaccount.com"
    assert made.accelerator_config == tpu_v2.AcceleratorConfig(type_="V6E", topology="2x4")
    assert made.network_endpoints[0].access_config.external_ip
    assert made.scheduling_config.spot and made.queued_resource == QUEUED
    assert abs(made.create_time.timestamp() - time.time()) < 60
    assert [item.name for item in client.list_queued_resources(parent=PARENT)] == [QUEUED]
    assert done(client.reset_queued_resource(name=QUEUED)).name == QUEUED
    wait_until(
        lambda: client.get_node(name=NODE).state == tpu_v2.Node.State.READY, lambda: client.get_node(name=NODE).state
    )
    with pytest.raises(exceptions.GoogleAPICallError) as refused:
        delete(client, force=False)
    assert refused.value.code == 400
    done(delete(client))
    with pytest.raises(exceptions.NotFound):
        client.get_queued_resource(name=QUEUED)
    cloud.wait_until_empty(WAIT)


def test_every_verb_of_nodes(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    made = done(client.create_node(parent=PARENT, node_id="alone", node=node()))
    name = f"{PARENT}/nodes/alone"
    assert (made.name, made.state) == (name, tpu_v2.Node.State.READY)
    operation = client.update_node(
        node=tpu_v2.Node(name=name, labels={"a": "b"}, runtime_version="v2-alpha-tpuv6e"),
        update_mask=field_mask_pb2.FieldMask(paths=["labels", "network_config.enable_external_ips"]),
    )
    changed = done(operation)
    assert changed.labels == {"a": "b"}
    assert done(client.stop_node(request={"name": name})).state == tpu_v2.Node.State.STOPPED
    assert done(client.start_node(request={"name": name})).state == tpu_v2.Node.State.READY
    attributes = client.get_guest_attributes(request={"name": name, "worker_ids": ["0"]})
    assert len(attributes.guest_attributes) == 1
    assert [item.name for item in client.list_nodes(parent=PARENT)] == [name]
    done(client.delete_node(name=name))
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=name)
    cloud.ledger.assert_nothing_left()


def test_what_there_is_to_choose_from(client: tpu_v2.TpuClient) -> None:
    types = list(client.list_accelerator_types(request={"parent": PARENT, "page_size": 7}))
    one = client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v5p-8")
    assert one in types
    assert one.accelerator_configs[0].topology == "2x2x1"
    named = set(tpu_v2.AcceleratorConfig.Type) - {tpu_v2.AcceleratorConfig.Type.TYPE_UNSPECIFIED}
    assert named <= {config.type_ for found in types for config in found.accelerator_configs}
    versions = {item.version for item in client.list_runtime_versions(parent=PARENT)}
    assert "v2-alpha-tpuv6e" in versions
    assert client.get_runtime_version(name=f"{PARENT}/runtimeVersions/v2-alpha-tpuv6e").version in versions
    with pytest.raises(exceptions.NotFound):
        client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v99-8")
    email = client.generate_service_identity(request={"parent": PARENT}).identity.email
    assert re.fullmatch(r"service-[0-9]{12}@gcp-sa-tpu\.iam\.gserviceaccount\.com", email)
    places = client.list_locations(request={"name": "projects/p"}).locations
    assert [place.location_id for place in places] == ["us-central1-b", ZONE]
    assert client.get_location(request={"name": PARENT}).location_id == ZONE


def test_operations_can_be_asked_for_listed_and_forgotten(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    cloud.stuck_operations("create", times=1)
    name = create(client).operation.name
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    found = client.get_operation(request={"name": name})
    assert not found.done
    metadata = tpu_v2.OperationMetadata()
    assert found.metadata.Unpack(metadata._pb)
    assert (metadata.verb, metadata.target) == ("create", QUEUED)
    assert [item.name for item in client.list_operations(request={"name": PARENT}).operations] == [name]
    client.delete_operation(request={"name": name})
    with pytest.raises(exceptions.NotFound):
        client.get_operation(request={"name": name})
    with pytest.raises(exceptions.GoogleAPICallError):
        client.cancel_operation(request={"name": name})
    done(delete(client))


def test_an_operation_that_failed_says_so(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    cloud.fail("CreateNode", at="provision", refusal=refusals.no_capacity(ZONE, 0xABC))
    with pytest.raises(exceptions.GoogleAPICallError, match="There is no more capacity") as refused:
        done(client.create_node(parent=PARENT, node_id="n", node=node()))
    assert refused.value.grpc_status_code == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_pages_are_turned_by_the_client_itself(client: tpu_v2.TpuClient) -> None:
    for index in range(5):
        create(client, f"q{index}")
    pager = client.list_queued_resources(request={"parent": PARENT, "page_size": 2})
    assert [len(page.queued_resources) for page in pager.pages] == [2, 2, 1]
    everywhere = client.list_queued_resources(parent="projects/p/locations/-")
    assert len(list(everywhere)) == 5
    for index in range(5):
        done(delete(client, f"q{index}"))


def test_a_field_mask_leaves_out_what_nobody_wants(client: tpu_v2.TpuClient) -> None:
    create(client, node=node(metadata={"startup-script": "long", "kinetic": "{}"}, labels={"a": "b"}))
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    mask = [("x-goog-fieldmask", "nodes.name,nodes.state,nodes.metadata.kinetic,next_page_token")]
    [short] = client.list_nodes(parent=PARENT, metadata=mask)
    assert short == tpu_v2.Node(name=NODE, state="READY", metadata={"kinetic": "{}"})
    [long] = client.list_nodes(parent=PARENT)
    assert long.metadata == {"startup-script": "long", "kinetic": "{}"}
    assert client.get_queued_resource(name=QUEUED).tpu.node_spec[0].node.metadata["startup-script"] == "long"
    done(delete(client))


def test_the_same_request_id_is_the_same_operation(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    asked = {"parent": PARENT, "queued_resource_id": "q", "queued_resource": queued(), "request_id": REQUEST}
    first = client.create_queued_resource(request=asked)
    assert client.create_queued_resource(request=asked).operation.name == first.operation.name
    with pytest.raises(exceptions.GoogleAPICallError, match="was used for another request"):
        client.create_queued_resource(request={**asked, "queued_resource_id": "r"})
    with pytest.raises(exceptions.Conflict):
        create(client)
    cloud.sweep()


def test_a_failed_one_carries_the_error_of_the_cloud(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    cloud.stockout(ZONE)
    create(client)
    wait_until(lambda: state(client) == State.FAILED, lambda: state(client))
    error = client.get_queued_resource(name=QUEUED).state.failed_data.error
    assert error.code == 8
    assert "There is no more capacity in the zone" in error.message
    done(delete(client, force=False))


def test_a_preempted_one_is_suspended_by_the_service(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    create(client)
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    cloud.preempt("q")
    wait_until(lambda: state(client) == State.SUSPENDED, lambda: state(client))
    found = client.get_queued_resource(name=QUEUED).state
    assert found.state_initiator == tpu_v2.QueuedResourceState.StateInitiator.SERVICE
    assert client.get_node(name=NODE).state == tpu_v2.Node.State.PREEMPTED
    with pytest.raises(exceptions.InvalidArgument if client.transport.kind == "grpc" else exceptions.BadRequest) as no:
        client.update_node(
            node=tpu_v2.Node(name=NODE, runtime_version="x"), update_mask=field_mask_pb2.FieldMask(paths=["labels"])
        )
    assert "is not supported while in state PREEMPTED" in no.value.message
    done(delete(client, force=False))
    cloud.ledger.assert_nothing_left()


def test_a_state_that_the_library_does_not_know_is_a_number(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    create(client)
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    cloud.show(QUEUED, 42)
    cloud.show(NODE, 77)
    with pytest.warns(UserWarning, match="Unrecognized State enum value"):
        assert int(state(client)) == 42
        assert int(client.get_node(name=NODE).state) == 77
        assert [int(item.state) for item in client.list_nodes(parent=PARENT)] == [77]
    done(delete(client))


_REFUSED = [
    (refusals.no_capacity(ZONE, 1), exceptions.TooManyRequests),
    (refusals.no_reserved_capacity(1), exceptions.TooManyRequests),
    (refusals.internal(), exceptions.InternalServerError),
    (refusals.unavailable(), exceptions.ServiceUnavailable),
    (refusals.quota("v6e", True, "us-east5", 0, "p"), exceptions.TooManyRequests),
    (refusals.create_rate("p", 91), exceptions.TooManyRequests),
    (refusals.too_many_requests("p"), exceptions.TooManyRequests),
    (refusals.zone_unknown(ZONE), exceptions.Forbidden),
    (refusals.permission("tpu.nodes.create", PARENT), exceptions.Forbidden),
    (refusals.act_as("vm@p"), exceptions.Forbidden),
    (refusals.api_disabled("tpu.googleapis.com", "p"), exceptions.Forbidden),
    (refusals.service_controls("p"), exceptions.Forbidden),
    (refusals.organization_policy("constraints/compute.vmExternalIpAccess", "p"), exceptions.BadRequest),
    (refusals.user_project_denied("p"), exceptions.Forbidden),
    (refusals.exists(QUEUED), exceptions.Conflict),
    (refusals.missing(QUEUED), exceptions.NotFound),
]


@pytest.mark.parametrize(("refusal", "kind"), _REFUSED, ids=lambda value: getattr(value, "message", "")[:24])
def test_every_refusal_arrives_as_the_libraries_own_error(
    client: tpu_v2.TpuClient, cloud: Emulator, refusal: refusals.Refusal, kind: type[exceptions.GoogleAPICallError]
) -> None:
    cloud.fail("CreateQueuedResource", refusal=refusal)
    with pytest.raises(kind) as caught:
        create(client)
    assert refusal.message in caught.value.message
    assert len(caught.value.details) == len(refusal.details)
    if refusal.details and "reason" in refusal.details[0]:
        assert caught.value.reason == refusal.details[0]["reason"]
    cloud.ledger.assert_nothing_left()


def test_a_lost_answer_looks_like_a_broken_connection_and_is_done(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    cloud.lose_answer("CreateQueuedResource")
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)):
        create(client)
    assert cloud.queued_resource("q") is not None
    wait_until(lambda: state(client) == State.ACTIVE, lambda: state(client))
    done(delete(client))


def test_a_slow_answer_runs_into_the_callers_own_timeout(client: tpu_v2.TpuClient, cloud: Emulator) -> None:
    cloud.slow("ListNodes", 1.0, times=1)
    with pytest.raises((exceptions.DeadlineExceeded, exceptions.RetryError, requests.Timeout)):
        list(client.list_nodes(parent=PARENT, timeout=0.2))
    assert list(client.list_nodes(parent=PARENT, timeout=WAIT)) == []


def test_a_vm_is_known_by_its_token(cloud: Emulator) -> None:
    vm = over_rest(cloud, credentials.Credentials(token("q", 3)))  # type: ignore[no-untyped-call]
    create(vm)
    cloud.deny("vm", "tpu.nodes.delete")
    with pytest.raises(exceptions.Forbidden, match=r"tpu\.nodes\.delete"):
        delete(vm)
    cloud.allow("vm", "tpu.nodes.delete")
    done(delete(vm))
    assert cloud.count("DeleteQueuedResource", "vm") == 2
    assert cloud.count("DeleteQueuedResource", "client") == 0
    vm.transport.close()


class WithToken(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self.token = token

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), (EMULATOR_TOKEN, self.token))
        return await continuation(details._replace(metadata=metadata), request)


def test_the_asyncio_client_is_served_too(cloud: Emulator) -> None:
    async def story() -> None:
        token, _, place = cloud.grpc.address.partition("@")
        channel = grpc.aio.insecure_channel(place, interceptors=[WithToken(token)])
        client = tpu_v2.TpuAsyncClient(transport=TpuGrpcAsyncIOTransport(channel=channel))
        asked = {"parent": PARENT, "queued_resource_id": "q", "queued_resource": queued()}
        operation = await client.create_queued_resource(request=asked)
        assert (await operation.result(timeout=WAIT)).name == QUEUED
        with pytest.raises(exceptions.AlreadyExists):
            await client.create_queued_resource(request=asked)
        while (await client.get_queued_resource(name=QUEUED)).state.state != State.ACTIVE:
            await asyncio.sleep(0.01)
        assert [item.name async for item in await client.list_nodes(parent=PARENT)] == [NODE]
        cloud.fail("GetNode", 14)
        with pytest.raises(exceptions.ServiceUnavailable):
            await client.get_node(name=NODE)
        await (await client.delete_queued_resource(request={"name": QUEUED, "force": True})).result(timeout=WAIT)
        await channel.close()

    asyncio.run(asyncio.wait_for(story(), WAIT))
    cloud.ledger.assert_nothing_left()


def test_json_that_makes_no_sense_is_a_bad_request(cloud: Emulator, recorder: Recorder) -> None:
    url = f"{cloud.rest.url}/v2/{PARENT}/queuedResources?queuedResourceId=q"
    for body, wrong in (("{", "it is JSON"), ("[]", "it is an object"), ('{"nonsense": 1}', "has no such field")):
        with recorder.wrong(f"queuedResources.create: request .*{wrong}"):
            answer = requests.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=WAIT)
        assert answer.status_code == 400
        assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    with recorder.wrong("GET /v2/nowhere: there is no such method"):
        assert requests.get(f"{cloud.rest.url}/v2/nowhere", timeout=WAIT).status_code == 404


# Its neighbours, as anybody reaches them over REST


class Rest:
    def __init__(self, cloud: Emulator, who: str = "") -> None:
        self.base = f"{cloud.rest.url}/v1/projects/p"
        self.headers = {"Authorization": f"Bearer {who}"} if who else {}

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        return requests.request(method, self.base + path, json=body or None, headers=self.headers, timeout=WAIT)


def test_secrets_are_made_read_destroyed_and_found_in_the_ledger(cloud: Emulator) -> None:
    rest = Rest(cloud)
    made = rest("POST", "/secrets?secretId=s", replication={"automatic": {}}, labels={"a": "b"})
    assert (made.status_code, made.json()["name"]) == (200, "projects/p/secrets/s")
    assert rest("POST", "/secrets?secretId=s", replication={"automatic": {}}).status_code == 409
    assert rest("GET", "/secrets/s/versions/latest:access").status_code == 404
    rest("POST", "/secrets/s:addVersion", payload={"data": base64.b64encode(b"one").decode()})
    second = rest("POST", "/secrets/s:addVersion", payload={"data": base64.b64encode(b"two").decode()}).json()
    assert second == {**second, "name": "projects/p/secrets/s/versions/2", "state": "ENABLED"}
    accessed = rest("GET", "/secrets/s/versions/latest:access").json()
    assert (accessed["name"], base64.b64decode(accessed["payload"]["data"])) == (second["name"], b"two")
    assert rest("POST", "/secrets/s/versions/2:destroy").json()["state"] == "DESTROYED"
    assert rest("GET", "/secrets/s/versions/2:access").status_code == 400
    assert [item["state"] for item in rest("GET", "/secrets/s/versions").json()["versions"]] == ["DESTROYED", "ENABLED"]
    assert [item["name"] for item in rest("GET", "/secrets").json()["secrets"]] == ["projects/p/secrets/s"]
    assert cloud.ledger.leaks() == ["secret projects/p/secrets/s"]
    assert rest("DELETE", "/secrets/s").status_code == 200
    assert rest("GET", "/secrets/s").status_code == 404
    cloud.ledger.assert_nothing_left()


def test_a_secret_expires_by_itself(cloud: Emulator) -> None:
    rest = Rest(cloud)
    assert "expireTime" in rest("POST", "/secrets?secretId=s", replication={"automatic": {}}, ttl="1s").json()
    cloud.wait_until_empty(WAIT)
    assert rest("GET", "/secrets/s").status_code == 404


def test_who_may_read_a_secret_is_a_permission(cloud: Emulator) -> None:
    cloud.add_secret("mine", "value", project="p")
    cloud.deny("vm", "secretmanager.versions.access")
    refused = Rest(cloud, token("n", 0))("GET", "/secrets/mine/versions/latest:access")
    assert refused.status_code == 403
    assert "secretmanager.versions.access" in refused.json()["error"]["message"]
    assert Rest(cloud)("GET", "/secrets/mine/versions/1:access").status_code == 200
    cloud.fail("AccessSecretVersion", 14)
    assert Rest(cloud)("GET", "/secrets/mine/versions/1:access").status_code == 503
    cloud.ledger.assert_nothing_left()


def test_permissions_can_be_tested_and_services_asked_for(cloud: Emulator) -> None:
    cloud.deny("client", "tpu.nodes.delete")
    asked = {"permissions": ["tpu.nodes.create", "tpu.nodes.delete"]}
    assert Rest(cloud)("POST", ":testIamPermissions", **asked).json() == {"permissions": ["tpu.nodes.create"]}
    assert Rest(cloud, token("n", 0))("POST", ":testIamPermissions", **asked).json() == asked
    assert Rest(cloud)("GET", "/services/tpu.googleapis.com").json()["state"] == "ENABLED"
    cloud.disable("tpu.googleapis.com")
    assert Rest(cloud)("GET", "/services/tpu.googleapis.com").json()["state"] == "DISABLED"


def test_identity_tokens_stand_googles_own_check(cloud: Emulator) -> None:
    machine = Machine(
        project="p", zone=ZONE, node="q", accelerator_type="v6e-8", topology="2x4", runtime_version="v2-alpha-tpuv6e"
    )
    signed = cloud.sign_identity("kinetic/job/1/digest", machine)
    session = google.auth.transport.requests.Request()
    check: Any = id_token.verify_token
    for certificates in ("/certs", "/certs/keys"):
        claims = check(signed, session, "kinetic/job/1/digest", certs_url=cloud.rest.url + certificates)
        assert claims["email"] == machine.account
        assert claims["google"]["compute_engine"]["project_id"] == "p"
    head, body, signature = signed.split(".")
    with pytest.raises(Exception, match=r"(?i)signature|audience"):
        check(f"{head}.{body}.{signature[::-1]}", session, "kinetic/job/1/digest", certs_url=f"{cloud.rest.url}/certs")
    with pytest.raises(Exception, match=r"(?i)audience"):
        check(signed, session, "other", certs_url=f"{cloud.rest.url}/certs")
    session.session.close()
