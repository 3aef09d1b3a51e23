"""The messages of gRPC in the form that they have over REST: by the HTTP rules in the client library itself.

So one document serves both. It decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.api_core import path_template
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.services.tpu.transports import rest_base
from google.cloud.tpu_v2.types import cloud_tpu
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format
from google.rpc import status_pb2

from kinetic_orchestration.platforms.google.rest.call_listeners import unknown_fields
from tests.support.exchanges.documents import Method

_MODULES = {"tpu": cloud_tpu, "longrunning": operations_pb2, "location": locations_pb2, "protobuf": empty_pb2}


class Message(NamedTuple):
    body: dict[str, Any]
    unknown: list[str]
    """Fields that the client library has no name for."""


class Asked(NamedTuple):
    verb: str
    path: str
    query: list[tuple[str, str]]
    body: dict[str, Any] | None
    unknown: list[str]


def asked(full: str, request: bytes) -> Asked:
    """Returns a request of `/google.cloud.tpu.v2.Tpu/GetNode` as one of HTTP. Raises KeyError for no such method."""
    name = full.rpartition("/")[2]
    try:
        options = getattr(rest_base._BaseTpuRestTransport, f"_Base{name}")._get_http_options()
    except AttributeError:
        raise KeyError(f"the client library has no way to send {name} over HTTP") from None
    message = _kind(f"{name}Request").FromString(request)
    unknown = list(unknown_fields(message))
    sent = path_template.transcode(options, message=message)
    query = [(key, text) for key, value in _json(sent["query_params"]).items() for text in _texts(value)]
    body = _json(sent["body"]) if "body" in sent else None
    return Asked(sent["method"].upper(), sent["uri"], query, body, unknown)


def answered(method: Method, answer: bytes) -> Message:
    """Returns the answer of a method by the names that JSON has for its fields."""
    message = _kind((method.response or {})["$ref"]).FromString(answer)
    return Message(_json(message), list(unknown_fields(message)))


def status(answer: bytes) -> dict[str, Any]:
    """Returns the google.rpc.Status of a refusal."""
    return _json(status_pb2.Status.FromString(answer))


def named(method: Method, body: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer whose enumerations are numbers with the names that the client library has for them."""
    return _json(json_format.ParseDict(body, _kind((method.response or {})["$ref"])()))


@functools.cache
def _kind(name: str) -> Any:
    for module in _MODULES.values():
        if (found := getattr(module, name, None)) is not None:
            return found.pb() if hasattr(found, "pb") else found
    from google.cloud.tpu_v2 import types

    return getattr(types, name).pb()


def _json(message: Any) -> dict[str, Any]:
    return dict(json_format.MessageToDict(message))


def _texts(value: Any) -> Iterator[str]:
    """A value as a query has it; a list, several times."""
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    else:
        yield str(value).lower() if isinstance(value, bool) else str(value)
