"""Google's client of the Cloud TPU API: opened once, called with bounds, its answers as plain values.

Imported when a TPU backend is used, and the client's own libraries at the first request. gRPC if possible: a process
that was forked from one that had gRPC speaks REST, because gRPC does not survive a fork. Enumerations stay numbers, so
that a state unknown to this version is just another number.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.api_errors import Status
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.platforms.google.rest.retries import client_retry
from kinetic_orchestration.platforms.google.tpu.states import Node, Queued

PAGE = 1000
READ_SECONDS = 20.0  # one read, with all its repetitions
WRITE_SECONDS = 40.0
# All Google APIs support it: https://cloud.google.com/apis/docs/system-parameters
MASK = "x-goog-fieldmask"
EMULATOR_TOKEN = "x-emulator-token"
QUEUED_FIELDS = "name state spot reservation_name create_time tpu.node_spec.node.labels"
NODE_FIELDS = "name state health health_description symptoms create_time labels"
KEPT = 16  # clients of one process: one for each project's credentials that jobs are submitted with

_clients: OrderedDict[tuple[Any, ...], tuple[Any, Any]] = OrderedDict()
_lock = threading.Lock()
_speaks_grpc = 0  # the process that opened a channel
# A parent's clients: neither used nor closed here, as that would close the parent's connection.
_inherited: list[Any] = []
_imports: list[threading.Thread] = []
IMPORT_SECONDS = 10.0
_T = TypeVar("_T")


class Page(NamedTuple):
    """The listed resources, and the locations that did not answer."""

    found: list[Any]
    unreachable: tuple[str, ...]


class Tpus:
    """The calls that the backend makes. `status_of` interprets any exception of theirs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.acting = credentials.as_now()

    def prepare(self) -> None:
        """Import Google's client on a thread: that takes longer than all the requests before the first call."""
        if "google.cloud.tpu_v2" not in sys.modules:
            _imports[:] = [threading.Thread(target=_import_client, name="kinetic-imports", daemon=True)]
            _imports[0].start()

    def create(self, request: Mapping[str, Any]) -> tuple[str, Status | None]:
        """The operation's name, and its error if it has ended with one."""
        from google.cloud import tpu_v2
        from google.protobuf import json_format

        message = tpu_v2.CreateQueuedResourceRequest()
        json_format.ParseDict(dict(request), type(message).pb(message))
        made = self._client().create_queued_resource(request=message, **_writing())
        return made.operation.name, _error_of(made.operation)

    def operation_error(self, name: str) -> tuple[bool, Status | None]:
        """Return True if an operation has ended, and its error."""
        found = self._client().get_operation({"name": name}, **_reading())
        return bool(found.done), _error_of(found)

    def queued_resource(self, name: str) -> Queued | None:
        return self._get("queued_resource", _queued, name)

    def node(self, name: str) -> Node | None:
        return self._get("node", _node, name)

    def _get(self, what: str, read: Callable[[Any], _T], name: str) -> _T | None:
        from google.api_core.exceptions import NotFound

        try:
            found = getattr(self._client(), f"get_{what}")(name=name, **_reading())
        except NotFound:
            return None
        return read(type(found).pb(found))

    def queued_resources(self, project: str, zone: str) -> Page:
        """All of a zone, or of all zones with `-`."""
        return self._listed("queued_resources", QUEUED_FIELDS, _queued, project, zone)

    def nodes(self, project: str, zone: str) -> Page:
        return self._listed("nodes", NODE_FIELDS, _node, project, zone)

    def _listed(self, what: str, fields: str, read: Any, project: str, zone: str) -> Page:
        """List without unused fields, most of which are startup scripts, if the API supports a field mask."""
        from google.api_core.exceptions import InvalidArgument

        call = getattr(self._client(), f"list_{what}")
        request = {"parent": f"projects/{project}/locations/{zone}", "page_size": PAGE}
        wished = ",".join([*(f"{what}.{field}" for field in fields.split()), "next_page_token", "unreachable"])
        try:
            return _gather(call(request=request, metadata=[(MASK, wished)], **_reading()).pages, what, read)
        except InvalidArgument:
            return _gather(call(request=request, **_reading()).pages, what, read)

    def locations(self, project: str) -> list[str]:
        found = self._client().list_locations({"name": f"projects/{project}"}, **_reading())
        return [location.location_id for location in found.locations]

    def delete(self, name: str) -> None:
        """A queued resource, its nodes first. What comes of the operation is seen by looking."""
        self._client().delete_queued_resource(request={"name": name, "force": True}, **_writing())

    def delete_node(self, name: str) -> None:
        self._client().delete_node(name=name, **_writing())

    def _client(self) -> Any:
        with self.acting():
            return client(self._settings)


def _import_client() -> None:
    with suppress(Exception):  # the first request imports it again, and raises the error
        from google.api_core import client_options, retry
        from google.cloud import tpu_v2
        from google.protobuf import json_format
        from google.rpc import error_details_pb2

        del client_options, retry, tpu_v2, json_format, error_details_pb2


def _before_fork() -> None:
    """A module that a thread is just importing would stay locked in the child for ever."""
    for thread in _imports:
        if thread is not threading.current_thread():
            thread.join(IMPORT_SECONDS)


def _after_fork() -> None:
    """Reset the child's state: the thread that held the lock does not exist in it, and gRPC is unusable if any code
    used it."""
    global _lock, _speaks_grpc  # noqa: PLW0603 - of this process
    _lock = threading.Lock()
    _inherited.extend(_clients.values())
    _clients.clear()
    _imports.clear()
    if _speaks_grpc or "grpc" in sys.modules:
        _speaks_grpc = -1


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def client(settings: Settings) -> Any:
    """The process's one client for these settings and the current credentials."""
    identity = credentials.credentials(settings)
    place = settings.emulator, settings.emulator_grpc, settings.quota_project
    key = (os.getpid(), *place, id(identity), call_listeners.has_listeners())
    with _lock:
        if key not in _clients:
            _clients[key] = (_open(settings, identity), identity)  # the identity is kept, so that its id is its own
            while len(_clients) > KEPT:
                _clients.popitem(last=False)  # not closed: a call may still use it
        _clients.move_to_end(key)
        return _clients[key][0]


def _open(settings: Settings, identity: Any) -> Any:
    global _speaks_grpc  # noqa: PLW0603 - one process, one gRPC
    from google.api_core.client_options import ClientOptions
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    forked = _speaks_grpc not in (0, os.getpid())
    if settings.emulator and (forked or not settings.emulator_grpc):
        options = ClientOptions(api_endpoint=settings.emulator)
        return _over_rest(
            tpu_v2.TpuClient(credentials=identity, transport="rest", client_options=options), settings.emulator
        )
    if not forked:
        _speaks_grpc = os.getpid()
    if settings.emulator_grpc and not forked:
        return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=_reported(emulated_channel(settings.emulator_grpc))))
    if forked:
        return _over_rest(tpu_v2.TpuClient(credentials=identity, transport="rest"))
    if not call_listeners.has_listeners():
        return tpu_v2.TpuClient(credentials=identity, transport="grpc")
    transport = partial(
        TpuGrpcTransport, channel=lambda *at, **how: _reported(TpuGrpcTransport.create_channel(*at, **how))
    )
    return tpu_v2.TpuClient(credentials=identity, transport=transport)


def _reported(channel: Any) -> Any:
    return call_listeners.reporting_channel(channel, status_of) if call_listeners.has_listeners() else channel


def _over_rest(opened: Any, base: str = "") -> Any:
    """A REST client that reports its answers to the call hook as JSON."""
    opened.transport._session.hooks["response"].append(
        lambda reply, **_: call_listeners.report_http("tpu", reply, base)
    )
    return opened


def emulated_channel(address: str) -> Any:
    """A gRPC channel to `TOKEN@127.0.0.1:PORT`: what stands before the @ goes with every call."""
    import grpc

    class WithToken(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            metadata = [*(details.metadata or ()), (EMULATOR_TOKEN, token)]
            return continuation(details._replace(metadata=metadata), request)

    token, _, place = address.rpartition("@")
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(place, options=unlimited)
    return grpc.intercept_channel(channel, WithToken()) if token else channel


def status_of(error: BaseException) -> Status | None:
    """An exception of the client as the API's own error; None for what is none of it."""
    from google.api_core import exceptions
    from google.auth import exceptions as auth
    from google.protobuf.json_format import ParseError
    from requests import exceptions as requests

    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    if isinstance(error, ParseError | json.JSONDecodeError):  # an unreadable answer may be transient
        return Status(api_errors.UNAVAILABLE, f"the answer cannot be read ({type(error).__name__}: {error})")
    if isinstance(error, exceptions.GoogleAPICallError):
        return _call_error(error)
    if isinstance(error, auth.RefreshError | auth.DefaultCredentialsError) and not getattr(error, "retryable", False):
        return Status(api_errors.UNAUTHENTICATED, str(credentials.refused(error)))
    if isinstance(error, ValueError) and "closed channel" in str(error):  # gRPC's error for a call after the close
        return Status(api_errors.UNAVAILABLE, str(error))
    if isinstance(error, exceptions.RetryError | auth.GoogleAuthError | requests.RequestException | OSError):
        return Status(api_errors.UNAVAILABLE, f"{type(error).__name__}: {error}")
    return None


def _call_error(error: Any) -> Status:
    if error.grpc_status_code is not None and not hasattr(error.response, "json"):
        details = tuple(_plain(detail) for detail in error.details)
        return Status(error.grpc_status_code.value[0], error.message or "", details)
    try:
        found = error.response.json()["error"]
        return Status(api_errors.code_of(found["status"]), found["message"], tuple(found.get("details", ())))
    except (AttributeError, ValueError, KeyError, TypeError):  # sent by a proxy, not by the API
        code = api_errors.UNAVAILABLE if (error.code or 500) >= 500 else api_errors.UNKNOWN
        return Status(code, error.message or str(error))


def _error_of(operation: Any) -> Status | None:
    if not operation.done or not operation.HasField("error"):
        return None
    return _status(operation.error)


def _status(error: Any) -> Status:
    """google.rpc.Status as plain values."""
    return Status(error.code, error.message, tuple(_plain(detail) for detail in error.details))


def _plain(detail: Any) -> dict[str, Any]:
    from google.protobuf import json_format
    from google.rpc import error_details_pb2  # noqa: F401 - so that the details' types are known

    name = f"type.googleapis.com/{detail.DESCRIPTOR.full_name}"
    try:
        return {"@type": name, **json_format.MessageToDict(detail)}
    except TypeError:  # a kind of detail that this version of the library does not know
        return {"@type": detail.type_url}


def _reading() -> dict[str, Any]:
    return {"timeout": READ_SECONDS, "retry": client_retry(reading=True)}


def _writing() -> dict[str, Any]:
    return {"timeout": WRITE_SECONDS, "retry": client_retry(reading=False)}


def _gather(pages: Iterator[Any], field: str, read: Any) -> Page:
    found: list[Any] = []
    unreachable: list[str] = []
    for page in pages:
        raw = type(page).pb(page)
        found.extend(read(entry) for entry in getattr(raw, field))
        unreachable.extend(raw.unreachable)
    return Page(found, tuple(unreachable))


def _queued(raw: Any) -> Queued:
    _, _, _, zone, _, name = raw.name.split("/")
    labels: dict[str, str] = {}
    for spec in raw.tpu.node_spec:
        labels.update(spec.node.labels)
    failed = raw.state.HasField("failed_data") and raw.state.failed_data.HasField("error")
    return Queued(
        name,
        zone,
        raw.state.state,
        raw.state.state_initiator,
        _status(raw.state.failed_data.error) if failed else None,
        raw.HasField("spot"),
        bool(raw.reservation_name),
        raw.create_time.seconds + raw.create_time.nanos / 1e9,
        labels,
    )


def _node(raw: Any) -> Node:
    _, _, _, zone, _, name = raw.name.split("/")
    symptoms = tuple((symptom.symptom_type, symptom.worker_id, symptom.details) for symptom in raw.symptoms)
    return Node(
        name,
        zone,
        raw.state,
        raw.health,
        raw.health_description,
        symptoms,
        0.0,
        raw.create_time.seconds + raw.create_time.nanos / 1e9,
        dict(raw.labels),
    )
