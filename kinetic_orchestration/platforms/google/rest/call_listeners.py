"""A hook for calls from this process to Google's APIs: each call is reported with its answer and duration.

The clients of Cloud TPU, of Cloud Storage and of the small APIs report their calls here, over HTTP and gRPC; `verify`
listens. Without a listener, nothing is stored or copied. Messages become plain JSON, also fields and values that this
version of the client library has no name for. It does not know the calls' meaning, nor which parts are secret.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import Status

OK = "OK"


class Call(NamedTuple):
    """One request and its answer, as plain JSON and complete: the listener that stores it has to redact it."""

    service: str  # tpu, storage, secretmanager, …
    method: str  # GetNode; over HTTP the method and the path, as GET v1/projects/p/secrets
    request: Mapping[str, Any]
    status: str  # OK, NOT_FOUND, …; over HTTP the number
    answer: Mapping[str, Any]  # the error, if there is one
    unknown: tuple[str, ...]  # fields that the client library does not know, as Node.37
    began: float  # by this machine's clock
    seconds: float


Listener = Callable[[Call], object]
_listeners: list[Listener] = []


def has_listeners() -> bool:
    """True while there is a listener: clients that are opened then report their calls."""
    return bool(_listeners)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, receive each call of every thread after its answer."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report(call: Call) -> None:
    for listener in tuple(_listeners):
        listener(call)


def report_http(service: str, reply: Any, base: str = "") -> None:
    """Report a `requests.Response`. The content of a byte stream is left to its reader.

    `base`: the configured address of the service. A path in it is no part of any call.
    """
    if not _listeners:
        return
    asked = reply.request
    address = urlsplit(asked.url)
    query = dict(parse_qsl(address.query, keep_blank_values=True))
    path = unquote(address.path) if service != "storage" else address.path  # names of objects hold slashes
    path = path.removeprefix(urlsplit(base).path.rstrip("/"))
    streamed = query.get("alt") == "media"
    seconds = float(reply.elapsed.total_seconds())
    report(
        Call(
            service,
            f"{asked.method} {path.lstrip('/')}",
            {"query": query, "body": _json(asked.body)},
            OK if 200 <= reply.status_code < 300 else str(reply.status_code),
            {} if streamed else _json(reply.content),
            (),
            time.time() - seconds,
            seconds,
        )
    )


def _json(body: Any) -> dict[str, Any]:
    """A body that is an object of JSON; of any other, nothing."""
    try:
        found = json.loads(body) if isinstance(body, str | bytes) else None
    except ValueError:  # also bytes that are no text
        found = None
    return found if isinstance(found, dict) else {}


def reporting_channel(opened: Any, read: Callable[[BaseException], Status | None]) -> Any:
    """A gRPC channel that reports every try and every page. `read` converts an exception to the API's error."""
    import grpc

    class Reporting(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            began, steady = time.time(), time.monotonic()
            outcome = continuation(client_call_details, request)
            error = outcome.exception()
            seconds = time.monotonic() - steady
            name = str(client_call_details.method).rpartition("/")[2]
            status, unknown = OK, tuple[str, ...]()
            answer: dict[str, Any] = {}
            if error is None:
                found = _raw(outcome.result())
                answer, unknown = plain(found), tuple(unknown_fields(found))
            else:
                status, answer = _refused(error, read)
            report(Call("tpu", name, plain(_raw(request)), status, answer, unknown, began, seconds))
            return outcome

    return grpc.intercept_channel(opened, Reporting())


def _raw(message: Any) -> Any:
    """The message itself of one that proto-plus wraps."""
    import proto  # type: ignore[import-untyped]

    return type(message).pb(message) if isinstance(message, proto.Message) else message


def plain(message: Any) -> dict[str, Any]:
    """Enumerations by their names; one that has none stays a number."""
    from google.protobuf import json_format

    try:
        return dict(json_format.MessageToDict(message))
    except TypeError:  # an Any of a kind that this library does not know
        return {"@type": message.DESCRIPTOR.full_name}


def unknown_fields(message: Any) -> Iterator[str]:
    """Fields that came and have no name here, by the message and their number."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for field in UnknownFieldSet(message):  # type: ignore[attr-defined]
        yield f"{message.DESCRIPTOR.name}.{field.field_number}"
    for descriptor, value in message.ListFields():
        if descriptor.type != descriptor.TYPE_MESSAGE:
            continue
        for each in _messages(value):
            yield from unknown_fields(each)


def _messages(value: Any) -> Iterator[Any]:
    """The messages in a field, which may hold one, several, or a table of them."""
    if hasattr(value, "DESCRIPTOR"):
        yield value
    elif isinstance(value, Mapping) or hasattr(value, "items"):
        yield from (each for each in value.values() if hasattr(each, "DESCRIPTOR"))
    else:
        yield from value


def _refused(error: BaseException, read: Callable[[BaseException], Status | None]) -> tuple[str, dict[str, Any]]:
    from google.api_core import exceptions
    from grpc import RpcError

    raised: BaseException = error
    if isinstance(error, RpcError):
        raised = exceptions.from_grpc_error(error)  # type: ignore[no-untyped-call]
    status = read(raised)
    if status is None:
        return type(error).__name__, {}
    shown = {"code": status.code, "message": status.message, "details": [dict(detail) for detail in status.details]}
    return api_errors.name_of(status.code), {"error": shown}
