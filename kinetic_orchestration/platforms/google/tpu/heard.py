"""Calls of the Cloud TPU API over gRPC as the tap has them: each try and each page, as it was sent and answered.

It knows how messages become plain JSON, also fields and values that this version of the client library has no name for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kinetic_orchestration.platforms.google import api_errors, call_hook
from kinetic_orchestration.platforms.google.api_errors import Status


def channel(opened: Any, read: Callable[[BaseException], Status | None]) -> Any:
    """The channel, with every call reported to the call hook; `read` converts an exception to the API's error."""
    import grpc

    class Heard(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            began, steady = time.time(), time.monotonic()
            outcome = continuation(client_call_details, request)
            error = outcome.exception()
            seconds = time.monotonic() - steady
            name = str(client_call_details.method).rpartition("/")[2]
            status, unknown = call_hook.OK, tuple[str, ...]()
            answer: dict[str, Any] = {}
            if error is None:
                found = _raw(outcome.result())
                answer, unknown = plain(found), tuple(unknown_fields(found))
            else:
                status, answer = _refused(error, read)
            call_hook.tell(call_hook.Call("tpu", name, plain(_raw(request)), status, answer, unknown, began, seconds))
            return outcome

    return grpc.intercept_channel(opened, Heard())


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
    told = read(raised)
    if told is None:
        return type(error).__name__, {}
    error_of = {"code": told.code, "message": told.message, "details": [dict(detail) for detail in told.details]}
    return api_errors.name_of(told.code), {"error": error_of}
