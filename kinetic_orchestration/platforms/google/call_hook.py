"""A hook for calls from this process to Google's APIs: each call is reported with its answer and duration.

The clients of Cloud TPU, of Cloud Storage and of the small APIs report their calls here; `verify` listens. Without a
listener, nothing is stored or copied. It does not know the calls' meaning, nor which parts are secret.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

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


def listened() -> bool:
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


def tell(call: Call) -> None:
    for listener in tuple(_listeners):
        listener(call)


def tell_of_http(service: str, reply: Any, base: str = "") -> None:
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
    tell(
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
