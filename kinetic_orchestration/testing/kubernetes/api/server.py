"""An emulated API server on a port of loopback, by TLS: connections, identities, and requests that are to fail.

A client is known by a token: in its header, or, as GKE's clients have none here, as the first part of its paths.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import select
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kinetic_orchestration.reach.websocket import accept_of
from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.journal import Exchange, Journal
from kinetic_orchestration.testing.kubernetes.api import answers
from kinetic_orchestration.testing.kubernetes.api.answers import NotServed, Object, Refused
from kinetic_orchestration.testing.kubernetes.api.requests import Answer, Request
from kinetic_orchestration.testing.kubernetes.api.rules import rights
from kinetic_orchestration.testing.kubernetes.api.rules.rights import User

_LARGEST = 3 << 20  # bytes of a body
_HEARD = 16 << 20  # bytes of a larger one that are read before it is refused: who still sends hears no answer
_OK = 200
_Body = bytes | Iterator[bytes]
_log = logging.getLogger(__name__)

Answerer = Callable[[Request], tuple[int, Answer]]
Enterer = Callable[[Request, Sequence[tuple[str, str]], str], tuple[str, Callable[[socket.socket], None]]]


@dataclass
class Fault:
    """Requests that are refused: those whose method and path are such, so often.

    Attributes:
        pattern: Of a method and a path: `POST */jobsets`.
        refusal: The answer.
        times: How often; None for always.
        retry_after: Seconds after which the client is to ask again; 0 if nothing is said of that.
    """

    pattern: str
    refusal: Refused
    times: int | None = 1
    retry_after: int = 0


class ApiServer:
    """The server, from `open` until `close`; in between it may be away for a while.

    Args:
        answer: Answers a request.
        user_of: Returns who has a token; None if nobody has.
        certificate: A file with the certificate and its key.
        enter: Takes a request for a program in a pod, its query and the subprotocols that are offered; returns the
            chosen one, and what serves the connection. Raises Refused.
    """

    def __init__(
        self, answer: Answerer, user_of: Callable[[str], User | None], certificate: Path, enter: Enterer | None = None
    ) -> None:
        self._answer = answer
        self._enter = enter
        self._user_of = user_of
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)
        self._server: _Server | None = None
        self.port = 0
        self.faults: list[Fault] = []
        self._scripting = threading.Lock()
        self._journal = journal.asked_for()

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def open(self) -> None:
        """Listen, at the same port as before."""
        self._server = _Server(("127.0.0.1", self.port), self._context, self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def renew(self, certificate: Path) -> None:
        """Start again with another certificate."""
        self._context.load_cert_chain(certificate)
        if self.is_open:
            self.close()
            self.open()

    def close(self) -> None:
        """Be away: no connection is left."""
        if self._server is not None:
            self._server.shutdown()
            self._server.cut()
            self._server = None

    def respond(
        self, method: str, target: str, headers: Any, body: bytes
    ) -> tuple[int, bytes | Iterator[bytes], str, int]:
        """Return a status, a body or its parts as they come, its kind, and seconds until the client may ask again."""
        status, answer, kind, retry_after = self._responded(method, target, headers, body)
        if self._journal is not None:
            answer = self._noted(self._journal, method, target, headers, body, (status, answer, kind))
        return status, answer, kind, retry_after

    def entered(self, target: str, headers: Any) -> tuple[str, Callable[[socket.socket], None]]:
        """Return the subprotocol of a WebSocket, and what serves its connection. Raises Refused, NotServed."""
        self._check_page(headers)
        url = urlsplit(target)
        user, path = self._known(url.path, headers.get("Authorization", ""))
        if (fault := self._fault_of(f"GET {path}")) is not None:
            raise fault.refusal
        if self._enter is None:
            raise NotServed
        query = parse_qsl(url.query, keep_blank_values=True)
        return self._enter(
            Request("GET", path, dict(query), user=user), query, headers.get("Sec-WebSocket-Protocol", "")
        )

    def _noted(
        self, kept: Journal, method: str, target: str, headers: Any, body: bytes, answered: tuple[int, _Body, str]
    ) -> _Body:
        """Write an exchange into the journal, without what pods say, and return its answer, of which each further
        part is written as it is sent."""
        status, answer, kind = answered
        first, _, rest = target.removeprefix("/").partition("/")
        path = f"/{rest}" if self._user_of(first) is not None else target
        exchange = Exchange("kubernetes", method, path, status, body, _kind(headers), b"", kind)
        if isinstance(answer, bytes):
            kept.write(exchange._replace(answer=b"" if status == _OK and kind == "text/plain" else answer))
            return answer
        kept.write(exchange)
        return answer if kind == "text/plain" else _noted_parts(kept, exchange, answer)

    def _responded(
        self, method: str, target: str, headers: Any, body: bytes
    ) -> tuple[int, bytes | Iterator[bytes], str, int]:
        try:
            self._check_page(headers)
            url = urlsplit(target)
            user, path = self._known(url.path, headers.get("Authorization", ""))
            if (other := headers.get("Impersonate-User")) and rights.ADMINISTRATORS in user.groups:
                user = User(other)
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            if (fault := self._fault_of(f"{method} {path}")) is not None:
                told = json.dumps(fault.refusal.status).encode()
                return fault.refusal.code, told, "application/json", fault.retry_after
            kind = _kind(headers)
            if body and not kind.endswith("json"):
                message = (
                    "the body of the request was in an unknown format - accepted media types include: application/json"
                )
                raise answers.refusal(415, "UnsupportedMediaType", message)
            as_table = "as=Table" in (headers.get("Accept") or "")
            found = Request(method, path, query, _parsed(body), kind, user, as_table)
            status, answer = self._answer(found)
        except Refused as refused:
            return refused.code, json.dumps(refused.status).encode(), "application/json", 0
        except NotServed:
            return 404, b"404 page not found\n", "text/plain; charset=utf-8", 0
        except Exception:  # a bug of the emulator: the caller gets it as the answer, and the thread continues
            _log.exception("%s %s failed", method, target)
            failed = answers.refusal(500, "InternalError", "Internal error occurred: the emulator failed")
            return 500, json.dumps(failed.status).encode(), "application/json", 0
        sent = json.dumps(answer).encode() if isinstance(answer, dict) else answer
        is_text = isinstance(answer, bytes) or path.endswith("/log")
        return status, sent, "text/plain" if is_text else "application/json", 0

    def _check_page(self, headers: Any) -> None:
        """Refuse what a page of the web makes its browser send: it chooses neither of these headers. Raises Refused."""
        own = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        origin = headers.get("Origin")
        if headers.get("Host", "").lower() not in own or (
            origin and origin.lower() not in map("https://{}".format, own)
        ):
            raise answers.refusal(
                403, "Forbidden", f"The emulator is asked as {own[0]} only, and by no page of the web."
            )

    def _fault_of(self, asked: str) -> Fault | None:
        """Return the fault that a request is answered with, counted; None for most requests."""
        with self._scripting:
            fault = next((one for one in self.faults if fnmatch.fnmatch(asked, one.pattern)), None)
            if fault is not None and fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
        return fault

    def _known(self, path: str, authorization: str) -> tuple[User, str]:
        """Return who asks, and the path without a token. Raises Refused."""
        first, _, rest = path.removeprefix("/").partition("/")
        by_path = self._user_of(first)
        scheme, _, token = authorization.partition(" ")
        user = (self._user_of(token) if scheme == "Bearer" else None) or by_path
        if user is None:
            raise answers.unauthorized()
        return user, f"/{rest}" if by_path is not None else path


def _noted_parts(kept: Journal, exchange: Exchange, parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        if part:
            kept.write(exchange._replace(answer=part))
        yield part


def _parsed(body: bytes) -> Object | None:
    try:
        found = json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        message = f"the object provided is unrecognized: couldn't get version/kind; json parse error: {error}"
        raise answers.bad(message) from None
    return found if isinstance(found, dict) else None


def _kind(headers: Any) -> str:
    return str(headers.get("Content-Type", "application/json")).partition(";")[0].strip()


class _Server(ThreadingHTTPServer):
    """Waits for connections; each greets in a thread of its own."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, owner: ApiServer) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        super().__init__(address, _Handler)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke its connection is no matter of anybody's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def answer(self) -> None:
        if self.command == "GET" and self.headers.get("Upgrade", "").lower() == "websocket":
            self._upgrade()
            return
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LARGEST:
            self.close_connection = True
            self.rfile.read(min(length, _HEARD))
            told = answers.refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_LARGEST}")
            self._send(413, json.dumps(told.status).encode(), "application/json", 0)
            return
        self._send(*self.server.owner.respond(self.command, self.path, self.headers, self.rfile.read(length)))

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

    def _upgrade(self) -> None:
        """Become a WebSocket, or refuse to."""
        self.close_connection = True
        try:
            protocol, serve = self.server.owner.entered(self.path, self.headers)
        except Refused as refused:
            self._send(refused.code, json.dumps(refused.status).encode(), "application/json", 0)
            return
        except NotServed:
            self._send(404, b"404 page not found\n", "text/plain; charset=utf-8", 0)
            return
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers.get("Sec-WebSocket-Key", "")))
        self.send_header("Sec-WebSocket-Protocol", protocol)
        self.end_headers()
        serve(self.connection)

    def _send(self, status: int, body: bytes | Iterator[bytes], kind: str, retry_after: int) -> None:
        self.send_response(status)
        self.send_header("Audit-Id", str(uuid.uuid4()))
        self.send_header("Content-Type", kind)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        if isinstance(body, bytes):
            self.wfile.write(body)
        else:
            self._send_parts(body)

    def _send_parts(self, parts: Iterator[bytes]) -> None:
        for part in parts:
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            elif not self.server.owner.is_open or select.select([self.connection], [], [], 0)[0]:
                self.close_connection = True  # the client has closed its end
                return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: what happens is told by events."""
