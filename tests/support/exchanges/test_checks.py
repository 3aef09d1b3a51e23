"""The checker finds what is wrong: of each rule one exchange that breaks it, made of one that is right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.cloud.tpu_v2.types import cloud_tpu
from google.rpc import status_pb2

from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.journal import Exchange
from tests.support.exchanges import documents
from tests.support.exchanges.checks import check

JSON = "application/json; charset=UTF-8"
ZONE = "/v2/projects/p/locations/us-east5-a"
QUEUED: dict[str, Any] = {
    "tpu": {"nodeSpec": [{"parent": "p", "nodeId": "q", "node": {"runtimeVersion": "v", "acceleratorType": "v6e-8"}}]},
    "queueingPolicy": {"validUntilDuration": "600s", "validAfterTime": "2026-01-01T00:00:00Z"},
    "spot": {},
}
NODE: dict[str, Any] = {
    "name": "n", "state": "READY", "id": "9223372036854775807", "createTime": "2026-01-01T00:00:00.000000Z",
    "multisliceNode": True, "labels": {"a": "b"}, "networkEndpoints": [{"ipAddress": "10.0.0.2", "port": 8470}],
}  # fmt: skip
OPERATION: dict[str, Any] = {
    "name": "projects/p/locations/z/operations/o",
    "done": True,
    "metadata": {"@type": "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata", "target": "n"},
    "response": {"@type": "type.googleapis.com/google.cloud.tpu.v2.Node", **NODE},
}
OBJECT: dict[str, Any] = {
    "kind": "storage#object", "name": "o", "size": "3", "generation": "1", "componentCount": 2,
    "updated": "2026-01-01T00:00:00.000Z", "metadata": {"a": "b"},
}  # fmt: skip
ERROR: dict[str, Any] = {
    "code": 403, "message": "no", "status": "PERMISSION_DENIED",
    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "R", "domain": "googleapis.com"}],
}  # fmt: skip
STORAGE_ERROR: dict[str, Any] = {
    "code": 412, "message": "no", "errors": [{"domain": "global", "reason": "conditionNotMet", "message": "no"}],
}  # fmt: skip


def exchange(
    line: str, request: Any = None, answer: Any = None, status: int = 200, kind: str = JSON, **more: Any
) -> Exchange:
    """`GET /path`, and bodies as JSON or bytes."""
    method, _, target = line.partition(" ")
    face = "storage" if "storage/v1" in target else "rest"
    bodies = [
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        for body in (request, answer)
    ]
    return Exchange(face, method, target, status, bodies[0], more.pop("sends", JSON), bodies[1], kind, **more)


def asked(
    body: Any = QUEUED, query: str = "queuedResourceId=q", line: str = "queuedResources", **more: Any
) -> Exchange:
    return exchange(f"POST {ZONE}/{line}?{query}", body, OPERATION, **more)


def answered(body: Any = NODE, query: str = "", **more: Any) -> Exchange:
    return exchange(f"GET {ZONE}/nodes/n?{query}", None, body, **more)


def stored(body: Any = OBJECT, query: str = "", **more: Any) -> Exchange:
    return exchange(f"GET /storage/v1/b/b/o/a%2Fo?{query}", None, body, **more)


def made(**changed: Any) -> Exchange:
    """A node that was asked for, and its operation."""
    return exchange(f"POST {ZONE}/nodes?nodeId=n", {}, OPERATION | changed)


def composed(body: Any, query: str = "") -> Exchange:
    return exchange(f"POST /storage/v1/b/b/o/o/compose?{query}", body, OBJECT)


def refused(**changed: Any) -> Exchange:
    return answered({"error": other(ERROR, changed)}, status=403)


def refused_by_storage(**changed: Any) -> Exchange:
    return stored({"error": other(STORAGE_ERROR, changed)}, status=412)


def other(error: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """The error with another `status` as `named`, and without values that are None."""
    changed = {"status" if name == "named" else name: value for name, value in changed.items()}
    return {name: value for name, value in {**error, **changed}.items() if value is not None}


def uploaded(
    metadata: bytes = b'{"name": "o"}',
    kind: bytes = b"application/json",
    sends: str = 'multipart/related; boundary="B"',
) -> Exchange:
    body = b"--B\r\ncontent-type: %b\r\n\r\n%b\r\n--B\r\ncontent-type: text/plain\r\n\r\n" % (kind, metadata)
    return exchange("POST /upload/storage/v1/b/b/o?uploadType=multipart", body, OBJECT, sends=sends)


def policy(**changed: Any) -> Exchange:
    return asked(QUEUED | {"queueingPolicy": QUEUED["queueingPolicy"] | changed})


def secret(body: Any, query: str = "secretId=s", line: str = "") -> Exchange:
    return exchange(f"POST /v1/projects/p/secrets{line}?{query}", body, {"name": "s"})


RIGHT = [
    asked(), answered(), stored(), uploaded(), refused(), refused_by_storage(),
    answered({}), asked(query="queuedResourceId=q&$alt=json;enum-encoding=int&requestId=r"),
    answered(query="fields=name&alt=json&prettyPrint=false&quotaUser=u&key=k&$.xgafv=2"),
    answered(NODE | {"state": 2}, "$alt=json;enum-encoding=int"),
    answered(NODE | {"state": 42}, planted=(42,)), answered(b"{", planted=(journal.PLANTED,)),
    answered(None, status=journal.LOST),
    asked({}, "", "nodes/n:stop"), exchange(f"POST {ZONE}/operations/o:cancel", {}, {}),
    exchange(f"GET {ZONE}/operations/o", None, {"name": "o", "error": {"code": 3, "message": "m"}}),
    exchange(
        f"GET {ZONE}/operations/o", None, {"name": "o", "response": {"@type": "type.googleapis.com/google.protobuf.Empty"}}
    ),
    secret({"replication": {"automatic": {}}, "ttl": "3600s"}), secret({"payload": {"data": "YQ=="}}, "", "/s:addVersion"),
    composed({"sourceObjects": [{"name": "a", "generation": 3}, {"name": "b", "generation": None}]}),
    exchange("GET /download/storage/v1/b/b/o/o?alt=media", None, None, kind="text/plain"),
    exchange("GET /storage/v1/b/b/o/o?alt=media", None, b"No such object", 404, "text/html"),
    exchange(f"GET /storage/v1/b/b/o/o?alt=media&tensorstore={'0a' * 16}", None, None, kind="text/plain"),
    exchange("DELETE /storage/v1/b/b/o/o", None, None, 204, ""),
    exchange("POST /upload/storage/v1/b/b/o?uploadType=resumable", {"name": "o"}, OBJECT),
    exchange("PUT /upload/storage/v1/b/b/o?uploadType=resumable&upload_id=u", None, None, 308, ""),
    exchange("POST /upload/storage/v1/b/b/o?uploadType=media&name=o", None, OBJECT, sends="text/plain"),
    exchange("GET /storage/v1/b/b/iam/testPermissions?permissions=a&permissions=b", None, {"permissions": ["a"]}),
    exchange("GET /certs", None, {"1": "-"}),
]  # fmt: skip


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: f"{one.method} {one.target[-40:]} {one.status}")
def test_an_exchange_that_is_right_is_left_alone(right: Exchange) -> None:
    assert [str(finding) for finding in check(right)] == []


WRONG = {
    # Methods and parameters
    "no method: request GET /v2/nowhere: there is no such method": exchange("GET /v2/nowhere", None, {}, 404),
    "no method: request POST /v2/projects/p: there": exchange("POST /v2/projects/p", None, {}, 404),
    'create: request colour: "red": tpu.projects.locations.queuedResources.create has no such': asked(query="colour=red"),
    'create: request parent: "p": it is a part of the path': asked(query="parent=p"),
    'create: request requestId: "b": it is given once': asked(query="requestId=a&requestId=b"),
    'list: request pageSize: "1.5": it is a whole number of the format int32': exchange(f"GET {ZONE}/nodes?pageSize=1.5", None, {}),
    'delete: request force: "1": it is true or false': exchange(f"DELETE {ZONE}/queuedResources/q?force=1", None, OPERATION),
    'get: request alt: "yaml": it is one of json, media, proto': answered(query="alt=yaml"),
    'list: request maxResults: "-1": it is a whole number of the format uint32': exchange("GET /storage/v1/b/b/o?maxResults=-1", None, {}),
    'compose: request ifGenerationMatch: "new": it is a string of the format int64': composed({"sourceObjects": []}, "ifGenerationMatch=new"),
    'get: request $nonsense: "name": storage.objects.get has no such parameter': stored(query="$nonsense=name"),
    'get: request upload_id: "u": storage.objects.get has no such parameter': stored(query="upload_id=u"),
    'get: request tensorstore: "1": it is like [0-9a-f]{32}': stored(query="tensorstore=1"),
    f'list: request tensorstore: "{"0a" * 16}": storage.objects.list has no such parameter': exchange(f"GET /storage/v1/b/b/o?tensorstore={'0a' * 16}", None, {}),
    "testIamPermissions: request permissions: storage.buckets.testIamPermissions needs it": exchange("GET /storage/v1/b/b/iam/testPermissions", None, {}),
    # Bodies of requests
    'reset: request body: "{": it is JSON': exchange(f"POST {ZONE}/queuedResources/q:reset", b"{", OPERATION),
    'delete: request body: "{\\"a\\": 1}": tpu.projects.locations.nodes.delete has no body': exchange(f"DELETE {ZONE}/nodes/n", {"a": 1}, OPERATION),
    "create: request : []: it is an object": asked([]),
    "create: request colour: 1: QueuedResource has no such field": asked(QUEUED | {"colour": 1}),
    "create: request tpu.nodeSpec[0].colour: 1: NodeSpec has no such field": asked({"tpu": {"nodeSpec": [{"colour": 1}]}}),
    'create: request name: "q": it is for the API to say (readOnly)': asked(QUEUED | {"name": "q"}),
    "create: request tpu.nodeSpec: {}: it is an array": asked({"tpu": {"nodeSpec": {}}}),
    "create: request tpu: []: it is an object": asked({"tpu": []}),
    "create: request tpu.nodeSpec[0].node.schedulingConfig.spot: 1: it is true or false": asked(
        {"tpu": {"nodeSpec": [{"node": {"schedulingConfig": {"spot": 1}}}]}}
    ),
    "create: request reservationName: 7: it is a string": asked(QUEUED | {"reservationName": 7}),
    'create: request queueingPolicy.validUntilDuration: "10m": it is a string of the format google-duration': policy(validUntilDuration="10m"),
    'create: request queueingPolicy.validAfterTime: "today": it is a string of the format google-datetime': policy(validAfterTime="today"),
    'create: request queueingPolicy.validAfterTime: "2026-13-01T00:00:00Z": it is a string of': policy(validAfterTime="2026-13-01T00:00:00Z"),
    'addVersion: request payload.data: …: it is a string of the format byte': secret({"payload": {"data": "%"}}, "", "/s:addVersion"),
    "compose: request sourceObjects: storage.objects.compose needs it (required)": composed({}),
    "compose: request sourceObjects[0].name: storage.objects.compose needs it (required)": composed({"sourceObjects": [{}]}),
    'compose: request kind: "storage#object": it is \'storage#composeRequest\'': composed({"kind": "storage#object", "sourceObjects": []}),
    "insert: request : an upload in parts begins with the object's metadata": uploaded(kind=b"text/plain"),
    "insert: request : an upload in parts begins with": uploaded(sends="application/json"),
    'insert: request size: "-1": it is a string of the format uint64': uploaded(b'{"size": -1}'),
    'insert: request body: "{": it is JSON': uploaded(b"{"),
    # Answers
    'get: answer : "{": it is JSON': answered(b"{"),
    'get: answer : "text/plain": it is application/json': answered(kind="text/plain"),
    "get: answer colour: 1: Node has no such field": answered(NODE | {"colour": 1}),
    'get: answer state: "FLYING": it is one of STATE_UNSPECIFIED, CREATING': answered(NODE | {"state": "FLYING"}),
    "get: answer state: 42: it is a string": answered(NODE | {"state": 42}),
    "get: answer state: 43: it is a string": answered(NODE | {"state": 43}, planted=(42,)),
    "get: answer state: 99: it is a string": answered(NODE | {"state": 99}, "$alt=json;enum-encoding=int"),
    "get: answer id: 7: it is a string of the format int64": answered(NODE | {"id": 7}),
    'get: answer id: "9223372036854775808": it is a string of the format int64': answered(NODE | {"id": "9223372036854775808"}),
    "get: answer labels.a: 1: it is a string": answered(NODE | {"labels": {"a": 1}}),
    "get: answer labels.a: it is a string": answered(NODE | {"labels": {"a": None}}),
    'get: answer networkEndpoints[0].port: "1": it is a whole number of the format int32': answered(NODE | {"networkEndpoints": [{"port": "1"}]}),
    "get: answer networkEndpoints[0].port: 2147483648: it is a whole number": answered(NODE | {"networkEndpoints": [{"port": 2147483648}]}),
    "create: answer response.colour: 1: Node has no such field": made(response=OPERATION["response"] | {"colour": 1}),
    "create: answer metadata.@type: a message of any kind names it": made(metadata={"target": "n"}),
    'create: answer response.@type: "google.cloud.tpu.v2.Tree": neither': made(
        response={"@type": "type.googleapis.com/google.cloud.tpu.v2.Tree"}
    ),
    'list: answer skus[0].pricingInfo[0].currencyConversionRate: "1": it is a number': exchange(
        "GET /v1/services/s/skus", None, {"skus": [{"pricingInfo": [{"currencyConversionRate": "1"}]}]}
    ),
    'get: answer updated: "2026-01-01": it is a string of the format date-time': stored(OBJECT | {"updated": "2026-01-01"}),
    'get: answer kind: "storage#bucket": it is \'storage#object\'': stored(OBJECT | {"kind": "storage#bucket"}),
    'get: answer size: "-3": it is a string of the format uint64': stored(OBJECT | {"size": "-3"}),
    'delete: answer : "null": there is no body': exchange("DELETE /storage/v1/b/b/o/o", None, b"null", 204),
    'insert: answer : "{}": there is no body': exchange("PUT /upload/storage/v1/b/b/o?upload_id=u", None, {}, 308),
    # Errors
    "get: answer error: an error has it": answered({}, status=403),
    "get: answer : []: an error is an object": answered([], status=403),
    "get: answer error.code: 404: it is 403, as of HTTP": refused(code=404),
    'get: answer error.status: "NOT_FOUND": 403 is': refused(named="NOT_FOUND"),
    "get: answer error.message: an error has it": refused(message=None),
    'get: answer error.code: "403": it is of the type int': refused(code="403"),
    "get: answer error.colour: 1: an error has no such field": refused(colour=1),
    'get: answer error.details[0]: {"reason": "R"}: its @type begins with': refused(details=[{"reason": "R"}]),
    'get: answer error.details[0]: {"colour": 1}: google.rpc.ErrorInfo: ': refused(
        details=[{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "colour": 1}]
    ),
    'get: answer error.details[0].@type: "google.rpc.Tree": neither': refused(details=[{"@type": "type.googleapis.com/google.rpc.Tree"}]),
    "get: answer error.code: 400: it is 412, as of HTTP": refused_by_storage(code=400),
    "get: answer error.errors: an error has it": refused_by_storage(errors=None),
    "get: answer error.errors[0].reason: an error has it": refused_by_storage(errors=[{"domain": "global", "message": "m"}]),
    'get: answer error.status: "X": an error has no such field': refused_by_storage(named="X"),
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_of_each_rule_an_exchange_that_breaks_it_is_found(said: str) -> None:
    found = [str(finding) for finding in check(WRONG[said])]
    assert len(found) == 1, found
    assert said in found[0]


# Over gRPC

SERVICE = "/google.cloud.tpu.v2.Tpu"
GET = cloud_tpu.GetNodeRequest.pb()(name="projects/p/locations/us-east5-a/nodes/n").SerializeToString()
UNKNOWN = b"\xb8\x3e\x01"  # the field 999


def over_grpc(
    name: str = "GetNode",
    request: bytes = GET,
    answer: bytes = b"",
    status: int = 0,
    planted: tuple[int | str, ...] = (),
) -> Exchange:
    return Exchange("grpc", "", f"{SERVICE}/{name}", status, request, "", answer, "", planted)


def a_node(**fields: Any) -> bytes:
    return bytes(cloud_tpu.Node.pb()(**fields).SerializeToString())


def a_request(**fields: Any) -> bytes:
    node = cloud_tpu.Node.pb()(**fields)
    message = cloud_tpu.CreateNodeRequest.pb()(parent="projects/p/locations/us-east5-a", node_id="n", node=node)
    return bytes(message.SerializeToString())


def a_status(code: int) -> bytes:
    return bytes(status_pb2.Status(code=code, message="m").SerializeToString())


@pytest.mark.parametrize(
    "right",
    [
        over_grpc(answer=a_node(state=2, id=7)), over_grpc(answer=a_node(state=42), planted=(42,)),
        over_grpc(answer=a_status(5), status=5), over_grpc(status=journal.LOST),
        over_grpc(answer=UNKNOWN, planted=(journal.PLANTED,)), over_grpc("CreateNode", a_request(runtime_version="v")),
    ],
)  # fmt: skip
def test_a_call_that_is_right_is_left_alone(right: Exchange) -> None:
    assert [str(finding) for finding in check(right)] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (over_grpc("FlyNode"), 'FlyNode: request : "the client library has no way'),
        (over_grpc(request=b""), "GetNode: request : "),
        (over_grpc(request=b"\xff"), "GetNode: request : "),
        (
            over_grpc(request=GET + UNKNOWN),
            "nodes.get: request GetNodeRequest.999: the client library has no such field",
        ),
        (over_grpc("CreateNode", a_request(name="n")), 'nodes.create: request name: "n": it is for the API to say'),
        (over_grpc(answer=a_node(state=42)), "nodes.get: answer state: 42: it is a string"),
        (over_grpc(answer=UNKNOWN), "nodes.get: answer Node.999: the client library has no such field"),
        (over_grpc(answer=b"\xff"), 'nodes.get: answer : "DecodeError'),
        (over_grpc(answer=a_status(5), status=7), "nodes.get: answer code: 5: it is 7, as of gRPC"),
        (over_grpc(answer=a_status(77), status=77), "nodes.get: answer code: 77: it is one of google.rpc.Code"),
    ],
)
def test_a_call_that_is_wrong_is_found(wrong: Exchange, said: str) -> None:
    found = [str(finding) for finding in check(wrong)]
    assert len(found) == 1, found
    assert said in found[0].replace("'", '"')


def test_every_method_of_the_client_library_is_one_of_the_document() -> None:
    ids = {method.id for methods in documents._methods(documents.NAMES).values() for method in methods}
    assert "tpu.projects.locations.queuedResources.create" in ids
    assert len([name for name in ids if name.startswith("tpu.")]) == 24


def test_what_is_told_has_the_bytes_and_no_secret() -> None:
    token = "t" * 32
    body = {
        "payload": {"data": "c2VjcmV0"},
        "name": 7,
        "other": f"http://127.0.0.1:1234/{token}/x",
        "key": f"{token}@127.0.0.1:1",
    }
    told = str(check(exchange("GET /v1/projects/p/secrets/s/versions/1:access?access_token=a-token", None, body))[0])
    assert "secretmanager.projects.secrets.versions.access: answer name: 7: it is a string" in told
    assert '"name": 7' in told
    assert "-> 200" in told
    assert not any(secret in told for secret in (token, "c2VjcmV0", "a-token"))
