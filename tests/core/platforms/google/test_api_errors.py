"""Every row of the table of errors, sent as a real error body through the real client library, over gRPC and REST."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import any_pb2, json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import (
    ADOPT,
    AGAIN,
    DROP,
    ELSEWHERE,
    FATAL,
    FRESH,
    HERE,
    LATER,
    CallContext,
    Status,
    Trouble,
)  # fmt: skip
from kinetic_orchestration.platforms.google.tpu.client import Tpus, status_of
from kinetic_orchestration.protocol import wire

KIND = "type.googleapis.com/google.rpc."
HTTP = {3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 13: 500, 14: 503, 16: 401}
ASKED = CallContext("ours", "us-east5-a", "trainer@ours.iam.gserviceaccount.com")


def info(reason: str, domain: str = "googleapis.com", **metadata: str) -> dict[str, Any]:
    return {"@type": f"{KIND}ErrorInfo", "reason": reason, "domain": domain, "metadata": metadata}


def quota_failure(text: str) -> dict[str, Any]:
    return {"@type": f"{KIND}QuotaFailure", "violations": [{"subject": "project:ours", "description": text}]}


class Case(NamedTuple):
    status: Status
    cause: str
    action: str
    scope: str = ""
    says: tuple[str, ...] = ()


NO_CAPACITY = (
    'There is no more capacity in the zone "us-east5-a"; you can try in another zone where Cloud TPU Nodes are offered '
    "(see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]"
)
LIMIT_0 = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
LIMIT_32 = "Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 32 in zone us-east5-a."
RATE = (
    "Quota exceeded for quota metric 'Maximum number of CreateNode requests' and limit 'Maximum number of CreateNode "
    "requests per minute' of service 'tpu.googleapis.com' for consumer 'project_number:1'."
)
PERIMETER = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: VQQnKfX-8_uKn1EA"

CASES = {
    "a token without the scope": Case(
        Status(7, "Request had insufficient authentication scopes.", (info("ACCESS_TOKEN_SCOPE_INSUFFICIENT"),)),
        wire.CONFIGURATION, FATAL, "", ("have not the scope https://www.googleapis.com/auth/cloud-platform: log in",),
    ),
    "stockout": Case(Status(8, NO_CAPACITY), wire.STOCKOUT, ELSEWHERE),
    "reserved capacity (8)": Case(
        Status(8, "Insufficient reserved capacity. Contact customer support to increase your reservation."),
        wire.STOCKOUT, ELSEWHERE,
    ),
    "reserved capacity (9)": Case(
        Status(9, "Insufficient reserved capacity. Contact customer support to increase your reservation."),
        wire.STOCKOUT, ELSEWHERE,
    ),
    "preempted meanwhile": Case(
        Status(3, "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x1]"),
        wire.PREEMPTION, FRESH,
    ),
    "internal": Case(Status(13, "an internal error has occurred"), wire.INTERNAL, HERE),
    "limit 0 in a region": Case(
        Status(8, LIMIT_0, (quota_failure(LIMIT_0),)), wire.QUOTA, DROP, "us-east5", ("iam-admin/quotas",)
    ),
    "limit 0 in a zone": Case(
        Status(8, "Quota limit 'X' has been exceeded. Limit: 0 in zone us-east5-b."), wire.QUOTA, DROP, "us-east5-b"
    ),
    "quota": Case(Status(8, LIMIT_32, (quota_failure(LIMIT_32),)), wire.QUOTA, ELSEWHERE),
    "quota told by its details alone": Case(
        Status(8, "Resource has been exhausted.", (quota_failure("TPUs"),)), wire.QUOTA, ELSEWHERE
    ),
    "rate of creates": Case(
        Status(8, RATE, (info("RATE_LIMIT_EXCEEDED", quota_limit_value="91", consumer="projects/1"),)),
        wire.QUOTA, LATER,
    ),
    "rate told by its details alone": Case(Status(8, "Slow down.", (info("RATE_LIMIT_EXCEEDED"),)), wire.QUOTA, LATER),
    "exhausted, nobody says of what": Case(Status(8, "Try again."), wire.STOCKOUT, ELSEWHERE),
    "zone unknown": Case(
        Status(7, "Location us-east5-z is not found or access is unauthorized."), wire.QUOTA, DROP, "us-east5-z"
    ),
    "accelerator not in this zone": Case(
        Status(3, "Cloud TPU received a bad request. the accelerator v4-128 was not found in zone us-central2-b [EID: 0x9]"),
        wire.QUOTA, DROP, "us-central2-b",
    ),
    "permission": Case(
        Status(
            7, "Permission 'tpu.nodes.create' denied on 'projects/ours/locations/us-east5-a' (or it may not exist).",
            (info("IAM_PERMISSION_DENIED", "iam.googleapis.com", permission="tpu.nodes.create"),),
        ),
        wire.CONFIGURATION, FATAL, "",
        ("permission tpu.nodes.create is missing", "add-iam-policy-binding ours", "--role=roles/tpu.admin"),
    ),
    "no scope": Case(
        Status(7, "Request had insufficient authentication scopes.", (info("ACCESS_TOKEN_SCOPE_INSUFFICIENT"),)),
        wire.CONFIGURATION, FATAL, "", ("these credentials have not the scope", "auth/cloud-platform"),
    ),
    "permission without details": Case(
        Status(7, "Permission 'storage.objects.create' denied on resource (or it may not exist)."),
        wire.CONFIGURATION, FATAL, "", ("roles/storage.objectUser",),
    ),
    "may not act as": Case(
        Status(
            7, "The user does not have access to service account 'trainer@ours.iam.gserviceaccount.com'. Ask a project "
            "owner to grant you the iam.serviceAccountUser role on the service account",
        ),
        wire.CONFIGURATION, FATAL, "",
        ("iam.serviceAccounts.actAs on trainer@ours.iam.gserviceaccount.com", "roles/iam.serviceAccountUser"),
    ),
    "exists": Case(Status(6, "Resource 'projects/ours/…' already exists"), wire.CONFIGURATION, ADOPT),
    "API disabled": Case(
        Status(
            7, "Cloud TPU API has not been used in project 17 before or it is disabled. Enable it by visiting …",
            (info("SERVICE_DISABLED", service="tpu.googleapis.com", consumer="projects/17"),),
        ),
        wire.CONFIGURATION, FATAL, "", ("gcloud services enable tpu.googleapis.com --project ours (if 17 is another", "KINETIC_QUOTA_PROJECT"),
    ),
    "billing": Case(
        Status(7, "This API method requires billing to be enabled.", (info("BILLING_DISABLED"),)),
        wire.CONFIGURATION, FATAL, "", ("billing account",),
    ),
    "VPC Service Controls": Case(
        Status(
            7, PERIMETER,
            (
                {"@type": f"{KIND}PreconditionFailure",
                 "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": "VQQnKfX-8_uKn1EA"}]},
                info("SECURITY_POLICY_VIOLATED", uid="VQQnKfX-8_uKn1EA", service="tpu.googleapis.com"),
            ),
        ),
        wire.CONFIGURATION, FATAL, "", ("perimeter (number VQQnKfX-8_uKn1EA)", "ingress rule"),
    ),
    "organisation policy: external addresses": Case(
        Status(9, "Constraint constraints/compute.vmExternalIpAccess violated for project ours. Add instance …"),
        wire.CONFIGURATION, FATAL, "", ("constraints/compute.vmExternalIpAccess", "external_ips=False"),
    ),
    "organisation policy: secure boot": Case(
        Status(9, "Constraint constraints/compute.requireShieldedVm violated for project projects/ours."),
        wire.CONFIGURATION, FATAL, "", ("secure_boot=True",),
    ),
    "organisation policy told by its details": Case(
        Status(
            9, "Operation denied by org policy.",
            ({"@type": f"{KIND}PreconditionFailure",
              "violations": [{"type": "constraints/gcp.resourceLocations", "description": "us-east5-a violates it"}]},
             info("ORG_POLICY_VIOLATION")),
        ),
        wire.CONFIGURATION, FATAL, "", ("constraints/gcp.resourceLocations", "zones of allowed locations"),
    ),
    "organisation policy nobody knows": Case(
        Status(9, "Constraint constraints/custom.noTpusOnFridays violated."),
        wire.CONFIGURATION, FATAL, "", ("constraints/custom.noTpusOnFridays", "administers the organisation"),
    ),
    "quota project": Case(
        Status(
            7, "Caller does not have required permission to use project billing. Grant the caller the "
            "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use permission",
            (info("USER_PROJECT_DENIED", consumer="projects/billing", service="tpu.googleapis.com"),),
        ),
        wire.CONFIGURATION, FATAL, "", ("KINETIC_QUOTA_PROJECT", "roles/serviceusage.serviceUsageConsumer"),
    ),
    "credentials": Case(
        Status(16, "Request had invalid authentication credentials."),
        wire.CONFIGURATION, FATAL, "", ("gcloud auth application-default login",),
    ),
    "credentials that have ended, by gRPC": Case(
        Status(
            14, "Getting metadata from plugin failed with error: ('invalid_grant: Token has been expired or revoked.', "
            "{'error': 'invalid_grant'})",
        ),
        wire.CONFIGURATION, FATAL, "", ("gcloud auth application-default login",),
    ),
    "invalid": Case(Status(3, "Invalid value for node.network_config"), wire.CONFIGURATION, FATAL),
    "reservation unknown": Case(Status(5, "Reservation 'quarter' was not found"), wire.CONFIGURATION, FATAL),
    "unavailable": Case(Status(14, "The service is currently unavailable."), wire.INTERNAL, AGAIN),
    "aborted": Case(Status(10, "The operation was aborted by a concurrent one."), wire.INTERNAL, AGAIN),
    "deadline": Case(Status(4, "Deadline exceeded"), wire.INTERNAL, AGAIN),
}  # fmt: skip


class Servers(NamedTuple):
    """The API over both protocols; it answers every call with what `say` was told."""

    say: Callable[[Status], None]
    grpc: Settings
    rest: Settings


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    said: list[Status] = [Status(14)]

    class Generic(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            def refuse(request: bytes, context: Any) -> bytes:
                code, message, details = said[0]
                packed = []
                for detail in details:
                    box = any_pb2.Any()
                    json_format.ParseDict(detail, box)
                    packed.append(box)
                assert error_details_pb2
                context.abort_with_status(
                    rpc_status.to_status(status_pb2.Status(code=code, message=message, details=packed))
                )
                raise AssertionError("not reached")

            return grpc.unary_unary_rpc_method_handler(refuse)

    class Rest(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            code, message, details = said[0]
            name = next(name for name, number in api_errors.CODES.items() if number == code)
            error = {"code": HTTP[code], "message": message, "status": name, "details": list(details)}
            body = json.dumps({"error": error}).encode()
            self.send_response(HTTP[code])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Generic(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), Rest)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    address = f"http://127.0.0.1:{web.server_address[1]}"
    nowhere = Settings(home=Path("/nowhere"), store="gs://b", deployment="d", backend="tpu-vm", project="ours")

    def say(status: Status) -> None:
        said[0] = status

    yield Servers(
        say,
        replace(nowhere, emulator=address, emulator_grpc=f"127.0.0.1:{port}"),
        replace(nowhere, emulator=address),
    )
    web.shutdown()
    thread.join()
    web.server_close()
    server.stop(0).wait()


def heard(settings: Settings) -> Status:
    """The client library's error for the answer to a delete, which is not repeated for long."""
    try:
        Tpus(settings).delete_node("projects/ours/locations/us-east5-a/nodes/one")
    except Exception as error:
        status = status_of(error)
        assert status is not None, error
        return status
    raise AssertionError("no error came")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit all retries to a moment."""
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.CLIENT_SECONDS", 0.05)


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
@pytest.mark.parametrize("name", CASES)
def test_each_error_leads_to_its_row(servers: Servers, name: str, protocol: str) -> None:
    case = CASES[name]
    servers.say(case.status)
    status = heard(getattr(servers, protocol))
    trouble = api_errors.classify(status, ASKED)
    assert (trouble.cause, trouble.action, trouble.scope) == (case.cause, case.action, case.scope)
    refreshes = case.status.code == api_errors.UNAUTHENTICATED and protocol == "rest"  # and tells of that instead
    for text in (*case.says, *(() if refreshes else (case.status.message.rstrip("."),))):
        assert " ".join(text.split()) in trouble.sentence
    assert "\n" not in trouble.sentence


@pytest.mark.parametrize("name", CASES)
def test_the_reason_of_a_past_attempt_leads_to_the_same_row_again(name: str) -> None:
    case = CASES[name]
    trouble = api_errors.classify(case.status, ASKED)
    again = api_errors.recall(f"us-east5-a: {trouble.sentence}")
    assert isinstance(again, Trouble)
    if not name.endswith("details alone") or case.action == LATER:
        assert (again.cause, again.action, again.scope or ASKED.zone) == (
            case.cause, case.action, case.scope or ASKED.zone,
        )  # fmt: skip


def test_a_reason_that_no_api_gave_leads_to_no_row() -> None:
    assert api_errors.recall("the hosts are gone without a word") is None


def test_a_stockout_of_a_named_reservation_is_fatal() -> None:
    status = CASES["reserved capacity (8)"].status
    trouble = api_errors.classify(status, ASKED._replace(reserved=True))
    assert (trouble.cause, trouble.action) == (wire.CONFIGURATION, FATAL)
    assert "the reservation has not enough free" in trouble.sentence


def test_a_drop_without_a_named_place_is_of_the_zone_that_was_asked() -> None:
    assert api_errors.classify(Status(8, "Limit: 0"), ASKED).scope == "us-east5-a"


def test_a_code_that_nobody_knows_is_told_and_new_hosts_are_tried() -> None:
    trouble = api_errors.classify(Status(99, "Something new"), ASKED)
    assert (trouble.cause, trouble.action) == (wire.INFRASTRUCTURE, FRESH)
    assert "Something new (99)" in trouble.sentence


def test_every_row_has_an_error_that_leads_to_it() -> None:
    """No row is there in vain, and none is hidden by one before it."""
    met = {id(api_errors.row_of(case.status)) for case in CASES.values()}
    assert [row for row in api_errors.ROWS if id(row) not in met] == []


def test_nobody_at_the_other_end_is_an_unknown_outcome(servers: Servers) -> None:
    status = heard(replace(servers.rest, emulator="http://127.0.0.1:1"))
    assert status.code == api_errors.UNAVAILABLE
    status = heard(replace(servers.grpc, emulator_grpc="127.0.0.1:1"))
    assert status.code == api_errors.UNAVAILABLE
