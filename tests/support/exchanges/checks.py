"""One exchange of the journal held against its API's documents: its request, and then its answer or its error. They are
Google's own, or those that a Kubernetes API server publishes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from google.protobuf.message import DecodeError

from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.journal import Exchange
from tests.support.exchanges import documents, rules, wire
from tests.support.exchanges.documents import Method
from tests.support.exchanges.openapi import Documents
from tests.support.exchanges.rules import Shape, Wrong

# No document describes them. https://cloud.google.com/compute/docs/instances/verifying-instance-identity: Google has the
# certificates that identity tokens are proved with at an address of their own.
WITHOUT_DOCUMENT = ("/certs", "/certs/keys")
NOTHING = b'""'  # which Google's client for Node sends to Compute Engine as the body of a method that has none
FUNCTION = re.compile(r"[\w$.\[\]]+")  # that an answer can call
BYTES = 2000  # of each side of an exchange, in what is told of it
VALUE = 300


class Finding(NamedTuple):
    """An error in an exchange."""

    method: str
    document: str
    side: str
    """request or answer."""
    wrong: Wrong
    exchange: Exchange

    def __str__(self) -> str:
        asked = self.exchange
        value = redacted(json.dumps(self.wrong.value, default=str), VALUE)
        value = "" if self.wrong.value is None else ": …" if self.wrong.where.endswith(".data") else f": {value}"
        return (
            f"{self.method}: {self.side} {self.wrong.where}{value}: {self.wrong.said} [{self.document}]\n"
            f"  {asked.face} {asked.method} {redacted(asked.target, BYTES)} -> {asked.status}\n"
            f"  sent:     {redacted(_text(asked.request), BYTES)}\n"
            f"  answered: {redacted(_text(asked.answer), BYTES)}"
        )


_SECRETS = (
    re.compile(r'(?<="data":)(\s*)"[^"]*"'),
    re.compile(r'(?<="data":)(\s*)\{[^{}]*\}|(?<="stringData":)(\s*)\{[^{}]*\}|(?<="token":)(\s*)"[^"]*"'),
    re.compile(r"(?<=127\.0\.0\.1:)\d+/[\w-]{32}"),
    re.compile(r"[\w-]{32}(?=@127\.0\.0\.1)"),
    re.compile(r"(?<=Bearer )\S+|(?:ya29|eyJ)[\w.-]{10,}"),
    re.compile(r"(?<=_token=)[^&\s]+|(?<=[?&]key=)[^&\s]+"),
    re.compile(r"-----BEGIN [A-Z ]+-----.*"),
)


def redacted(text: str, length: int) -> str:
    """The text without secrets, and up to that many characters."""
    for secret in _SECRETS:
        text = secret.sub("…", text)
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def check(exchange: Exchange, openapi: Documents | None = None) -> list[Finding]:
    """Returns all that is wrong in it. `openapi`: those that a Kubernetes API server publishes, if they are known."""
    if exchange.face == "kubernetes":
        return [] if openapi is None else list(_with_a_cluster(exchange, openapi))
    return list(_over_grpc(exchange) if exchange.face == "grpc" else _over_http(exchange))


def _with_a_cluster(exchange: Exchange, openapi: Documents) -> Iterator[Finding]:
    about = f"{exchange.method} {urlsplit(exchange.target).path}"
    return (Finding(about, "OpenAPI", side, wrong, exchange) for side, wrong in openapi.wrongs(exchange))


# Over HTTP


def _over_http(exchange: Exchange) -> Iterator[Finding]:
    address = urlsplit(exchange.target)
    if exchange.face == "rest" and address.path in WITHOUT_DOCUMENT:
        return
    method = documents.find("GET" if exchange.method == "HEAD" else exchange.method, address.path)
    if method is None:
        names = ", ".join(documents.NAMES)
        wrong = Wrong(f"{exchange.method} {address.path}", None, "there is no such method")
        yield Finding("no method", names, "request", wrong, exchange)
        return
    query = parse_qsl(address.query, keep_blank_values=True)
    yield from _told(method, exchange, "request", rules.parameters(method, query))
    yield from _told(method, exchange, "request", _sent(method, exchange, dict(query)))
    if exchange.method != "HEAD" and _has_answer(exchange):
        yield from _told(method, exchange, "answer", _answered(method, exchange, dict(query)))


def _has_answer(exchange: Exchange) -> bool:
    """Return True if the answer is the emulator's own."""
    return exchange.status != journal.LOST and journal.PLANTED not in exchange.planted


def _told(method: Method, exchange: Exchange, side: str, wrongs: Iterable[Wrong]) -> Iterator[Finding]:
    document = f"{method.document.name} {method.document.revision}"
    return (Finding(method.id, document, side, wrong, exchange) for wrong in wrongs)


def _sent(method: Method, exchange: Exchange, query: dict[str, str]) -> Iterator[Wrong]:
    numbers = None if _in_numbers(query) else frozenset[int]()
    shape = Shape(method.document, method.id, sent=True, numbers=numbers)
    if method.uploads and query.get("uploadType") != "resumable":
        body = _metadata(exchange) if query.get("uploadType") == "multipart" else b""
        if body is None:
            yield Wrong("", None, "an upload in parts begins with the object's metadata as JSON (multipart/related)")
            return
    else:
        body = exchange.request
    if not body and method.uploads:
        return
    if body and method.request is None:
        if body.strip() not in (b"{}", NOTHING):
            yield Wrong("body", _text(body), f"{method.id} has no body")
        return
    if method.request is None:
        return
    try:
        found = _parsed(body or b"{}")
    except ValueError as error:
        yield Wrong("body", _text(body), f"it is JSON: {error}")
        return
    yield from shape.wrongs(method.request, found)


def _parsed(body: bytes) -> Any:
    """Raises ValueError for what is no JSON, and for what no API reads as such."""
    try:
        return json.loads(body, parse_constant=lambda name: float(f"no {name}"))
    except RecursionError:
        raise ValueError("too many brackets") from None


def _unwrapped(page: bytes, callback: str) -> bytes:
    """The content of an answer that calls a function."""
    before, after = f"// API callback\n{callback}(".encode(), b");"
    if not page.startswith(before) or not page.endswith(after):
        raise ValueError(f"it is a call of {callback}")
    return page[len(before) : -len(after)]


def _metadata(exchange: Exchange) -> bytes | None:
    """The first part of an upload in parts."""
    boundary = re.search(r'boundary="?([^";]+)"?', exchange.request_type)
    if not exchange.request_type.startswith("multipart/related") or boundary is None:
        return None
    parts = exchange.request.split(b"--" + boundary[1].encode())
    head, _, body = parts[1].partition(b"\r\n\r\n") if len(parts) == 3 and not parts[0].strip() else (b"", b"", b"")
    return body.removesuffix(b"\r\n") if b"application/json" in head.lower() else None


def _in_numbers(query: dict[str, str]) -> bool:
    return (query.get("$alt") or query.get("alt", "")).endswith("enum-encoding=int")


def _answered(method: Method, exchange: Exchange, query: dict[str, str]) -> Iterator[Wrong]:
    contents = method.downloads and (query.get("alt") == "media" or exchange.target.startswith("/download/"))
    status = exchange.status
    if contents and (status < 300 or method.document.is_storage):
        return  # bytes; of an error, its text
    if (status < 300 and method.response is None) or 300 <= status < 400:
        if exchange.answer.strip():
            yield Wrong("", _text(exchange.answer), "there is no body")
        return
    callback = query.get("callback", "")
    if not FUNCTION.fullmatch(callback):
        callback = ""
    kind = "text/javascript" if callback else "application/json"
    if not exchange.answer_type.startswith(kind):
        yield Wrong("", exchange.answer_type, f"it is {kind}")
        return
    try:
        found = _parsed(_unwrapped(exchange.answer, callback) if callback else exchange.answer)
    except ValueError as error:
        yield Wrong("", _text(exchange.answer), f"it is JSON: {error}")
        return
    if status >= 400:
        if method.document.lists_errors:
            yield from rules.listed_error(found, status)
        else:
            yield from rules.rpc_error(found, status, listed=query.get("$.xgafv") == "1")
        return
    assert method.response is not None
    numbers = frozenset(number for number in exchange.planted if isinstance(number, int))
    shape = Shape(method.document, method.id, sent=False, numbers=None if _in_numbers(query) else numbers)
    wrongs = shape.wrongs(method.response, found)
    yield from wrongs
    if _in_numbers(query) and not wrongs:
        by_name = Shape(method.document, method.id, sent=False, numbers=numbers)
        yield from by_name.wrongs(method.response, wire.named(method, found))


# Over gRPC


def _over_grpc(exchange: Exchange) -> Iterator[Finding]:
    try:
        asked = wire.asked(exchange.target, exchange.request)
        method = documents.find(asked.verb, asked.path)
    except (KeyError, ValueError, DecodeError) as error:  # also a name that fits no path
        yield Finding(exchange.target, "google-cloud-tpu", "request", Wrong("", None, str(error)), exchange)
        return
    if method is None:
        wrong = Wrong(f"{asked.verb} {asked.path}", None, "there is no such method")
        yield Finding(exchange.target, documents.NAMES[0], "request", wrong, exchange)
        return
    shown = exchange._replace(
        method=asked.verb, target=f"{exchange.target} ({asked.path} {asked.query})",
        request=json.dumps(asked.body).encode(),
    )  # fmt: skip
    request = Shape(method.document, method.id, sent=True)
    yield from _told(method, shown, "request", _unknown(asked.unknown))
    yield from _told(method, shown, "request", rules.parameters(method, asked.query))
    if asked.body and method.request is None:
        yield from _told(method, shown, "request", [Wrong("body", asked.body, f"{method.id} has no body")])
    elif asked.body is not None and method.request is not None:
        yield from _told(method, shown, "request", request.wrongs(method.request, asked.body))
    if not _has_answer(exchange):
        return
    try:
        answer, unknown = (
            (wire.status(exchange.answer), []) if exchange.status else wire.answered(method, exchange.answer)
        )
    except Exception as error:  # bytes that are no such message, or hold one of a kind that nobody knows
        yield from _told(method, shown, "answer", [Wrong("", repr(error), "it is a message that can be read")])
        return
    shown = shown._replace(answer=json.dumps(answer).encode())
    yield from _told(method, shown, "answer", _unknown(unknown))
    yield from _told(method, shown, "answer", _grpc_answer(method, exchange, answer))


def _unknown(fields: list[str]) -> Iterator[Wrong]:
    return (Wrong(field, None, "the client library has no such field") for field in fields)


def _grpc_answer(method: Method, exchange: Exchange, answer: dict[str, Any]) -> Iterator[Wrong]:
    if exchange.status:
        yield from rules.rpc_status(answer)
        if answer.get("code") != exchange.status:
            yield Wrong("code", answer.get("code"), f"it is {exchange.status}, as of gRPC")
        return
    numbers = frozenset(number for number in exchange.planted if isinstance(number, int))
    assert method.response is not None
    yield from Shape(method.document, method.id, sent=False, numbers=numbers).wrongs(method.response, answer)
