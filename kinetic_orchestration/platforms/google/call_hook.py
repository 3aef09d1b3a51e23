"""Calls that leave this process for Google's APIs, told to whoever listens: each with its answer, and how long it took.

The clients of Cloud TPU, of Cloud Storage and of the small APIs tell of their calls here; `verify` listens. Nobody
else does, and then nothing is kept or copied. It does not know what is called, nor what must not be shown of it.
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
    """One request and its answer, as plain JSON and with everything in it: to be redacted by whoever keeps it."""

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
    """True while somebody listens: clients that are opened meanwhile tell of their calls."""
    return bool(_listeners)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, and on every thread, hear of each call once it was answered."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(call: Call) -> None:
    for listener in tuple(_listeners):
        listener(call)


def tell_of_http(service: str, reply: Any, base: str = "") -> None:
    """Tell of a `requests.Response`. What comes as a stream of bytes is left to whoever reads it.

    `base`: the address that the service was said to be at. A path in it is no part of any call.
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
