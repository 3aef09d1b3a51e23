"""The servers of the emulated cloud: the Cloud TPU API v2 over gRPC and REST, Compute Engine and others over REST.

They translate the messages of the unmodified client library to the model's proto-JSON and back, and refusals to the
errors of each protocol. The access token identifies the caller: `emulator-token/<node>/<worker>` is a VM, one of
`api_rules/policies` the account of a pod, any other token a client. `Access` decides whether a request is admitted.
This module decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import google.rpc.error_details_pb2  # noqa: F401 - the details of errors are found by their names
import grpc
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.types import cloud_tpu
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.rpc import status_pb2
from grpc_status import rpc_status

from kinetic_orchestration.platforms.google.tpu.client import EMULATOR_TOKEN
from kinetic_orchestration.reach.websocket import WebSocket, accept_of
from kinetic_orchestration.testing.api_rules import field_masks, journal, parameters, refusals, unserved
from kinetic_orchestration.testing.api_rules.access import Access, AccessRefused, demand_json, headers_of
from kinetic_orchestration.testing.api_rules.journal import Exchange
from kinetic_orchestration.testing.api_rules.parameters import Parameters
from kinetic_orchestration.testing.api_rules.policies import TOKEN, members_of
from kinetic_orchestration.testing.api_rules.refusals import LostAnswer, Refusal
from kinetic_orchestration.testing.api_servers import compute_api
from kinetic_orchestration.testing.api_servers.compute_api import ComputeApi
from kinetic_orchestration.testing.api_servers.other_apis import OtherApis
from kinetic_orchestration.testing.api_servers.signing import Signer
from kinetic_orchestration.testing.model import deviations
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.faults import CLIENT, Caller
from kinetic_orchestration.testing.model.state.resources import Json
from kinetic_orchestration.testing.vms import tunnels
from kinetic_orchestration.testing.vms.tunnels import Tunnels

_THREADS = 32
_TAKEN = "\0taken "
_BEARER = re.compile(rf"Bearer {TOKEN}/([^/]+)/(\d+)")
# Of all APIs, and without meaning: "Do not use this field unless explicitly documented otherwise."
_UNHEEDED = ("extraLocationTypes",)
_CODES = {403: 7, 501: 12, 505: 12}  # HTTP → google.rpc.Code; of all others 3
_Query = list[tuple[str, str]]
_log = logging.getLogger(__name__)
_LARGEST = 32 << 20  # of a request's body
_RETRY = 0.1


def token(node: str, worker: int) -> str:
    """The access token of a VM's account."""
    return f"{TOKEN}/{node}/{worker}"


class _Rpc(NamedTuple):
    """One method: its messages, and its REST path as google.api.http defines it."""

    name: str
    request: Any
    response: Any
    http: str
    path: re.Pattern[str]
    place: re.Pattern[str]
    field: str
    body: str

    @property
    def grpc_path(self) -> str:
        services = {"google.longrunning": "Operations", "google.cloud.location": "Locations"}
        package = str(self.request.DESCRIPTOR.file.package)
        return f"/{package}.{services.get(package, 'Tpu')}/{self.name}"


def _rpc(name: str, request: Any, response: Any, http: str, path: str, body: str = "") -> _Rpc:
    field, glob = path[path.index("{") + 1 : path.index("}")].split("=")
    before, after = path.split("{", maxsplit=1)[0], path.split("}")[1]
    place = glob.replace("*", "[^/:]+")
    whole = re.compile(f"{before}(?P<at>{place}){re.escape(after)}")
    return _Rpc(name, request, response, http, whole, re.compile(place), field, body)


def _tpu(name: str, answer: str, http: str, path: str, body: str = "") -> _Rpc:
    """One of Cloud TPU's own; `answer` is a message of the client library, empty for an operation."""
    response = getattr(cloud_tpu, answer).pb() if answer else operations_pb2.Operation
    return _rpc(name, getattr(cloud_tpu, f"{name}Request").pb(), response, http, path, body)


_ZONE = "projects/*/locations/*"
_RPCS = (
    _tpu("CreateQueuedResource", "", "POST", f"/v2/{{parent={_ZONE}}}/queuedResources", "queuedResource"),
    _tpu("GetQueuedResource", "QueuedResource", "GET", f"/v2/{{name={_ZONE}/queuedResources/*}}"),
    _tpu("ListQueuedResources", "ListQueuedResourcesResponse", "GET", f"/v2/{{parent={_ZONE}}}/queuedResources"),
    _tpu("DeleteQueuedResource", "", "DELETE", f"/v2/{{name={_ZONE}/queuedResources/*}}"),
    _tpu("ResetQueuedResource", "", "POST", f"/v2/{{name={_ZONE}/queuedResources/*}}:reset", "*"),
    _tpu("CreateNode", "", "POST", f"/v2/{{parent={_ZONE}}}/nodes", "node"),
    _tpu("GetNode", "Node", "GET", f"/v2/{{name={_ZONE}/nodes/*}}"),
    _tpu("ListNodes", "ListNodesResponse", "GET", f"/v2/{{parent={_ZONE}}}/nodes"),
    _tpu("DeleteNode", "", "DELETE", f"/v2/{{name={_ZONE}/nodes/*}}"),
    _tpu("StopNode", "", "POST", f"/v2/{{name={_ZONE}/nodes/*}}:stop", "*"),
    _tpu("StartNode", "", "POST", f"/v2/{{name={_ZONE}/nodes/*}}:start", "*"),
    _tpu("UpdateNode", "", "PATCH", f"/v2/{{node.name={_ZONE}/nodes/*}}", "node"),
    _tpu(
        "GetGuestAttributes", "GetGuestAttributesResponse", "POST",
        f"/v2/{{name={_ZONE}/nodes/*}}:getGuestAttributes", "*",
    ),
    _tpu("GenerateServiceIdentity", "GenerateServiceIdentityResponse", "POST",
         f"/v2/{{parent={_ZONE}}}:generateServiceIdentity", "*"),
    _tpu("ListAcceleratorTypes", "ListAcceleratorTypesResponse", "GET", f"/v2/{{parent={_ZONE}}}/acceleratorTypes"),
    _tpu("GetAcceleratorType", "AcceleratorType", "GET", f"/v2/{{name={_ZONE}/acceleratorTypes/*}}"),
    _tpu("ListRuntimeVersions", "ListRuntimeVersionsResponse", "GET", f"/v2/{{parent={_ZONE}}}/runtimeVersions"),
    _tpu("GetRuntimeVersion", "RuntimeVersion", "GET", f"/v2/{{name={_ZONE}/runtimeVersions/*}}"),
    _rpc("GetOperation", operations_pb2.GetOperationRequest, operations_pb2.Operation,
         "GET", f"/v2/{{name={_ZONE}/operations/*}}"),
    _rpc("ListOperations", operations_pb2.ListOperationsRequest, operations_pb2.ListOperationsResponse,
         "GET", f"/v2/{{name={_ZONE}}}/operations"),
    _rpc("DeleteOperation", operations_pb2.DeleteOperationRequest, empty_pb2.Empty,
         "DELETE", f"/v2/{{name={_ZONE}/operations/*}}"),
    _rpc("GetLocation", locations_pb2.GetLocationRequest, locations_pb2.Location, "GET", f"/v2/{{name={_ZONE}}}"),
    _rpc("ListLocations", locations_pb2.ListLocationsRequest, locations_pb2.ListLocationsResponse,
         "GET", "/v2/{name=projects/*}/locations"),
)  # fmt: skip


class GrpcServer:
    """Cloud TPU API v2 over gRPC, in plain text on loopback."""

    def __init__(self, cloud: Cloud, access: Access) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "emulated Cloud TPU gRPC")
        # Without this another emulator could get the same port.
        options = (("grpc.so_reuseport", 0),)
        self._server = grpc.server(self._threads, (_Methods(cloud, access),), options=options)
        self.address = access.grpc(self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()
        self._threads.shutdown()


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, cloud: Cloud, access: Access) -> None:
        self._access = access
        self._handlers = {rpc.grpc_path: _handler(cloud, rpc) for rpc in _RPCS}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        sent = dict(handler_call_details.invocation_metadata)
        # Browsers do not speak gRPC, so :authority, which this library hides, adds nothing to the token.
        if "origin" in sent or not self._access.opens(sent.get(EMULATOR_TOKEN, "")):
            return _REFUSED
        return self._handlers.get(handler_call_details.method)


def _refuse(_: bytes, context: grpc.ServicerContext) -> Any:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "The emulator answers only whoever has its token: in KINETIC_EMULATOR_GRPC it stands before the @, and each "
        f"call carries it as metadata {EMULATOR_TOKEN}.",
    )


_REFUSED = grpc.unary_unary_rpc_method_handler(_refuse)


def _handler(cloud: Cloud, rpc: _Rpc) -> grpc.RpcMethodHandler:
    kept = journal.asked_for()

    def note(status: int, request: bytes, answer: bytes = b"") -> None:
        if kept is not None:
            kept.write(Exchange("grpc", "", rpc.grpc_path, status, request, "", answer, "", tuple(cloud.planted)))

    def answer(request_with_bytes: tuple[Any, bytes], context: grpc.ServicerContext) -> bytes:
        request, sent = request_with_bytes
        metadata = dict(context.invocation_metadata())
        caller = _caller(metadata.get("authorization", ""))
        asked: Json = MessageToDict(request)
        try:
            if not rpc.place.fullmatch(_named(asked, rpc.field)):
                raise refusals.resource_name()
            mask = metadata.get("x-goog-fieldmask", "")
            field_masks.tree(mask, rpc.response.DESCRIPTOR)
            message = _message(cloud.call(rpc.name, asked, caller), rpc.response, mask)
        except Refusal as refusal:
            status = ParseDict(refusal.to_json(), status_pb2.Status())
            note(refusal.code, sent, status.SerializeToString())
            context.abort_with_status(rpc_status.to_status(status))
        except LostAnswer:
            note(journal.LOST, sent)
            # The error of a broken connection, as a client sees it.
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        for unknown in deviations.unknown_fields(cloud.deviations, rpc.name, caller):
            message.MergeFromString(unknown)
        found_bytes: bytes = message.SerializeToString()
        note(0, sent, found_bytes)
        return found_bytes

    return grpc.unary_unary_rpc_method_handler(answer, lambda sent: (rpc.request.FromString(sent), sent))


class RestServer:
    """All APIs over plain HTTP on loopback."""

    def __init__(
        self, cloud: Cloud, neighbours: OtherApis, signer: Signer, access: Access, tunnels: Tunnels | None = None
    ) -> None:
        self.cloud = cloud
        self.tunnels = tunnels
        self.access = access
        self.neighbours = neighbours
        self.compute = ComputeApi(cloud)
        self.signer = signer
        self._journal = journal.asked_for()
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        self.url = access.url(self.port)
        self._thread = threading.Thread(target=self._server.run, name="emulated Google Cloud REST", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.stop()
        self._thread.join()
        self._server.cut()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes, str]:
        """A status, a body and its kind; names of `headers` are in lower case. Raises LostAnswer for none."""
        raw, _, asked = target.partition("?")
        path = unquote(raw)
        said, query = parameters.taken(parse_qsl(asked, keep_blank_values=True), headers)
        try:
            said.check()
            caller = _caller(headers.get("authorization") or f"Bearer {said.token}")
            if said.key:
                caller = caller._replace(project=self.neighbours.keys.project_of(said.key, path))
            return 200, said.page(self._found(method, path, said, query, body, caller)), said.kind
        except Refusal as refusal:
            refused = compute_api.refused(path, refusal)
        except LostAnswer:
            raise
        except Exception as error:  # a bug of the emulator: the caller gets it as the answer, and the thread continues
            refused = compute_api.refused(path, refusals.failed(method, path, error))
            _log.exception(refused.message)
        return refused.http, said.refused(refused), said.kind

    def note(self, method: str, target: str, kind: str, body: bytes, status: int, page: bytes, sent: str) -> None:
        if self._journal is not None:
            planted = tuple(self.cloud.planted)
            self._journal.write(Exchange("rest", method, target, status, body, kind, page, sent, planted))

    def _found(self, method: str, path: str, said: Parameters, query: _Query, body: bytes, caller: Caller) -> Json:
        if path == "/certs":
            return dict(self.signer.certificates())
        if path == "/certs/keys":
            return self.signer.keys()
        nothing = self.compute.serves(path) and body.strip() == compute_api.NOTHING
        sent = {} if nothing else _parsed(body)
        for rpc in _RPCS:
            match = rpc.path.fullmatch(path) if rpc.http == method else None
            if match is not None:
                return self._called(rpc, match["at"], said, query, sent, caller)
        if self.compute.serves(path):
            answered: Json = said.select(self.compute.answer(method, path, dict(query), sent, caller))
            return answered
        handler = self.neighbours.handler(method, path)
        if handler is None:
            raise unserved.refusal(method, path)
        found = deviations.apply(
            self.cloud.deviations, f"{method} {path}", sent, caller, lambda: handler(_joined(query), sent, caller)
        )
        selected: Json = said.select(found)
        return selected

    def _called(self, rpc: _Rpc, at: str, said: Parameters, query: _Query, sent: Json, caller: Caller) -> Json:
        request: Json = dict(sent) if rpc.body == "*" else _fields(rpc, query)
        if rpc.body not in ("", "*"):
            request[rpc.body] = sent
        _put(request, rpc.field, at)
        try:
            message = ParseDict(request, rpc.request())
        except (ParseError, RecursionError) as error:
            raise refusals.json_payload(str(error)) from None
        field_masks.tree(said.fields, rpc.response.DESCRIPTOR)
        found = self.cloud.call(rpc.name, MessageToDict(message), caller)
        if said.numbers:
            numbers: Json = MessageToDict(_message(found, rpc.response, said.fields), use_integers_for_enums=True)
            return numbers
        selected: Json = said.select(found, rpc.response.DESCRIPTOR)
        return selected


class _Server(ThreadingHTTPServer):
    """Waits for connections without waking in between, and breaks all of them when it stops."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: RestServer) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        self._stopping = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, address = self.socket.accept()
            except OSError:  # it stops, or this process has no file descriptor left until a caller leaves
                self._stopping.wait(_RETRY)
                continue
            self._connections.add(connection)
            try:
                self.process_request(connection, address)
            except RuntimeError:  # this machine has no thread left
                self.shutdown_request(connection)

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the accept, which a close alone would not

    def cut(self) -> None:
        """Break all connections; called once none is accepted any more."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a caller that was killed in the middle of a request."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a connection of %s ended", client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def answer(self) -> None:
        owner = self.server.owner
        try:
            if self.headers.defects:
                raise AccessRefused(400, "The headers of the request cannot be read.")
            headers = headers_of(self.headers.items(), largest=_LARGEST)
            if headers.get("origin") == tunnels.ORIGIN:  # which no page of the web can say
                del headers["origin"]
            target = owner.access.enter(self.path, headers, owner.port)
            if owner.tunnels is not None and target.partition("?")[0] in tunnels.PATHS:
                self._tunnel(owner.tunnels, target, headers)
                return
            demand_json(headers)
            body = self.rfile.read(int(headers.get("content-length") or 0))
            asked = self.command, target, headers.get("content-type", ""), body
            try:
                status, page, kind = owner.answer(self.command, target, headers, body)
            except LostAnswer:
                owner.note(*asked, journal.LOST, b"", "")
                raise
            owner.note(*asked, status, page, kind)
        except AccessRefused as refused:
            self.close_connection = True  # its body was not read
            refusal = Refusal(_CODES.get(refused.status, 3), refused.message)
            status, page, kind = refused.status, Parameters().refused(refusal), parameters.JSON
        except LostAnswer:
            self.close_connection = True
            return
        self._send(status, page, kind)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = do_HEAD = do_OPTIONS = answer

    def _tunnel(self, served: Tunnels, target: str, headers: Mapping[str, str]) -> None:
        """Be one WebSocket of Identity-Aware Proxy."""
        self.close_connection = True
        protocols = [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]
        if headers.get("upgrade", "").lower() != "websocket" or tunnels.PROTOCOL not in protocols:
            raise AccessRefused(400, "A tunnel is a WebSocket of the protocol of Identity-Aware Proxy.")
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(headers.get("sec-websocket-key", "")))
        self.send_header("Sec-WebSocket-Protocol", tunnels.PROTOCOL)
        self.end_headers()
        path, _, query = target.partition("?")
        served.serve(WebSocket(self.connection, is_client=False), path, dict(parse_qsl(query)))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer malformed requests and unknown methods in JSON too."""
        self.close_connection = True  # its body, if it has one, was not read
        refusal = Refusal(_CODES.get(code, 3), message or HTTPStatus(code).phrase)
        page = Parameters().page({"error": refusal.to_http()["error"] | {"code": code}})
        self.request_version = self.protocol_version
        self._send(code, page, parameters.JSON)

    def _send(self, status: int, page: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(page)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; the model reports events."""


def _caller(authorization: str) -> Caller:
    found = _BEARER.fullmatch(authorization)
    if found is not None:
        return Caller("vm", found[1], int(found[2]))
    members = members_of(authorization.removeprefix("Bearer "))
    return Caller("account", members[0], members=members) if members else CLIENT


def _parsed(body: bytes) -> Json:
    try:
        sent = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise refusals.json_payload(str(error)) from None
    if not isinstance(sent, dict):
        raise refusals.json_payload("An object is needed.")
    return sent


def _joined(query: _Query) -> dict[str, str]:
    """The parameters of a query, those that are lists with commas."""
    found: dict[str, str] = {}
    for key, text in query:
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _fields(rpc: _Rpc, query: _Query) -> Json:
    """The parameters of a query as fields of the message; each may be called by either of its field's two names."""
    found: Json = {}
    for key, text in query:
        if key in _UNHEEDED:
            continue
        field = next((field for field in rpc.request.DESCRIPTOR.fields if key in (field.name, field.json_name)), None)
        if field is None:
            raise refusals.unknown_parameter(key)
        is_bool = field.type == field.TYPE_BOOL and text in ("true", "false")
        found[field.json_name] = text == "true" if is_bool else text
    return found


def _message(found: Json, kind: Any, mask: str) -> Any:
    """Parse like ParseDict, which scans every character of every string, but skip startup scripts."""
    found = field_masks.select(found, field_masks.tree(mask, kind.DESCRIPTOR))
    taken: list[str] = []
    message = ParseDict(found if kind is operations_pb2.Operation else _without_scripts(found, taken), kind())
    for node in _nodes(message) if taken else ():
        for key, value in node.metadata.items():
            if value.startswith(_TAKEN):
                node.metadata[key] = taken[int(value.removeprefix(_TAKEN))]
    return message


def _without_scripts(value: Any, taken: list[str]) -> Any:
    if isinstance(value, list):
        return [_without_scripts(item, taken) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for key, item in value.items():
        if key == "startup-script" and isinstance(item, str):
            shown[key] = f"{_TAKEN}{len(taken)}"
            taken.append(item)
        else:
            shown[key] = _without_scripts(item, taken)
    return shown


def _nodes(message: Any) -> Iterator[Any]:
    """Every node within an answer."""
    name = message.DESCRIPTOR.name
    if name == "Node":
        yield message
    elif name == "QueuedResource":
        yield from (spec.node for spec in message.tpu.node_spec)
    else:
        for items in (getattr(message, "nodes", ()), getattr(message, "queued_resources", ())):
            for item in items:
                yield from _nodes(item)


def _named(request: Json, field: str) -> str:
    """The value of `name`, or of `node.name`."""
    found: Any = request
    for part in field.split("."):
        found = found.get(part, {})
    return found if isinstance(found, str) else ""


def _put(request: Json, field: str, value: str) -> None:
    """`node.name` is the name within the node."""
    *outer, last = field.split(".")
    for part in outer:
        request = request.setdefault(part, {})
    request[last] = value
