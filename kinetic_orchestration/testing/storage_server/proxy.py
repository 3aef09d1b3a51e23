"""A small HTTP/1.1 proxy on loopback in front of one server: bodies stream through it, and a fault may be injected.

It owns sockets and framing (kept connections, lengths, chunks). Its owner interprets requests, selects faults and
revises answers.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from io import BufferedReader
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

_Fields = list[tuple[str, str]]
_BLOCK: Final = 1 << 18
_PEEK: Final = 4096
_HEAD: Final = 1 << 16
_RETRY: Final = 0.1
_LAST: Final = 10.0  # seconds for all threads to end
_JSON_NAME: Final = re.compile(rb'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


class Request(NamedTuple):
    """A client's request, with the first bytes of its body."""

    method: str
    target: str
    headers: dict[str, str]
    opening: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    def query(self, name: str) -> str:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True).get(name, [""])[0]

    def named(self) -> str:
        """The name in the JSON that a multipart body begins with."""
        found = _JSON_NAME.search(self.opening)
        try:
            return str(json.loads(b'"' + found[1] + b'"')) if found else ""
        except ValueError:  # the server refuses it
            return ""


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    kind: str = "application/json; charset=UTF-8"


class Fault(NamedTuple):
    """The fault of a request: a pause, then perhaps an answer in place of the server's. `LOST` closes the
    connection."""

    delay: float = 0.0
    answer: Answer | None = None
    after: bool = False
    """The server is asked all the same; only its answer is replaced."""
    cut: int | None = None
    """The number of bytes of the answer's body that arrive."""
    garbled: bool = False
    """Its first byte is another one."""


LOST: Final = Answer(0)


class Owner(Protocol):
    def upstream(self) -> tuple[tuple[str, int], int]:
        """The server's address, and the number of its current start. Raises OSError while it is stopped."""

    def admit(self, method: str, target: str, fields: _Fields) -> str | Answer:
        """The target to pass to the server, or the answer that refuses the request."""

    def meet(self, request: Request) -> Fault: ...

    def revises(self, request: Request, status: int) -> bool:
        """True if the whole answer is to be revised before it is passed on."""

    def revise(self, request: Request, status: int, body: bytes) -> Answer: ...

    def bare(self, request: Request, status: int) -> int | None:
        """The status of an answer that has no body, regardless of the server's; None: it may have a body."""

    def dress(self, fields: _Fields) -> _Fields:
        """The headers of an answer as the client shall see them."""

    def has_links(self, request: Request) -> bool:
        """The body of the answer names addresses of the server, which `link` makes those of the proxy."""

    def link(self, body: bytes) -> bytes: ...

    def note(self, request: Request, status: int) -> None:
        """The request was answered; status 0: its answer was lost."""

    def malformed(self, status: int, message: str) -> Answer:
        """The answer to a malformed request."""

    def failed(self, line: str, error: Exception) -> Answer:
        """The answer to a request on which the emulator itself failed; the failure is recorded."""

    def keeps(self, request: Request, status: int) -> bool:
        """True if `keep` is to receive the body of the answer."""

    def keep(self, request: Request, answer: Answer, fault: Fault) -> None:
        """Receive the answer before it is sent; status 0: none is sent."""


class Proxy:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="storage-proxy", daemon=True)

    def start(self) -> None:
        self._acceptor.start()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accept, which a close alone would not
        if self._acceptor.ident is not None:
            self._acceptor.join()
        self._listener.close()
        self.drop()
        deadline = time.monotonic() + _LAST
        for thread in list(self._threads):
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def drop(self) -> None:
        """Cut all connections, as a server that dies does."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # the proxy is closing, or this process has no file descriptor left until a client leaves
                self._closing.wait(_RETRY)
                continue
            thread = threading.Thread(target=self._serve, args=(client,), name="storage-proxy", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # this machine has no thread left
                self._threads.discard(thread)
                client.close()

    def _serve(self, client: socket.socket) -> None:
        line = _ServerConnection()
        try:
            with client, self._tracked(client), client.makefile("rb") as reader:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not self._closing.is_set() and self._exchange(client, reader, line):
                    pass
        except (OSError, ValueError):
            pass  # either side closed the connection, or did not speak HTTP: there is no one to report to
        finally:
            line.close()
            self._threads.discard(threading.current_thread())

    @contextlib.contextmanager
    def _tracked(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    def _exchange(self, client: socket.socket, reader: BufferedReader, line: _ServerConnection) -> bool:
        """One request and its answer; False when the connection is at its end."""
        head = None
        try:
            head = _read_head(reader)
            if head is None:
                return False
            method, target = _request_line(head[0])
            admitted = self._owner.admit(method, target, head[1])
            if isinstance(admitted, str):
                return self._serve_one(client, reader, line, (head[0].replace(target, admitted, 1), head[1]))
        except _Malformed as error:
            admitted = self._owner.malformed(error.status, str(error))
        except OSError:
            raise
        except Exception as error:  # a bug of the emulator: the caller gets it as the answer, and the thread continues
            admitted = self._owner.failed(head[0] if head else "", error)
        # Its body was not read, or not to its end.
        client.sendall(_page(admitted, self._owner.dress([("Connection", "close")])))
        return False

    def _serve_one(
        self, client: socket.socket, reader: BufferedReader, line: _ServerConnection, head: tuple[str, _Fields]
    ) -> bool:
        first, fields = head
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value for name, value in fields}
        if headers.get("expect", "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            fields = [(name, value) for name, value in fields if name.lower() != "expect"]
        body = _body(reader, headers, method=method)
        opening = b""
        while len(opening) < _PEEK and (block := next(body, b"")):
            opening += block
        request = Request(method, target, headers, opening)
        fault = self._owner.meet(request)
        if fault.delay and self._closing.wait(fault.delay):
            return False
        if fault.answer is not None and not fault.after:
            _drain(body)
            return self._reply(client, request, fault.answer, fault)
        status, fields, answer = self._ask(line, _head(first, fields) + opening, body)
        if status == 416:
            line.leave()  # fake-gcs-server hangs up after this answer, without saying so in it
        frames = {name.lower(): value for name, value in fields}
        blocks = _body(answer, frames, method=method, status=status)
        if fault.answer is not None:
            _drain(blocks)
            return self._reply(client, request, fault.answer, fault)
        if (bare := self._owner.bare(request, status)) is not None:
            _drain(blocks)
            status, blocks = bare, iter(())
            fields = [*_unframed(fields), *([("Content-Length", "0")] if bare != 204 else [])]
        elif self._owner.revises(request, status):
            revised = self._owner.revise(request, status, b"".join(_plain(blocks, frames)))
            return self._reply(client, request, revised, fault)
        elif self._owner.has_links(request):
            fields, blocks = _framed(fields, self._owner.link(b"".join(_plain(blocks, frames))))
        self._pass_on(client, request, status, fields, blocks, fault)
        return fault.cut is None and headers.get("connection", "").lower() != "close"

    def _pass_on(
        self, client: socket.socket, request: Request, status: int, fields: _Fields, blocks: Iterator[bytes],
        fault: Fault,
    ) -> None:  # fmt: skip
        """An answer as it comes from the server."""
        frames = {name.lower(): value for name, value in fields}
        self._owner.note(request, status if fault.cut is None else 0)
        pending = _head(f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}", self._owner.dress(fields))
        if fault.garbled:
            blocks = _garbled(blocks)
        kept: list[bytes] | None = [] if self._owner.keeps(request, status) else None
        try:
            for block in blocks if fault.cut is None else _first(blocks, fault.cut):
                if len(pending) >= _BLOCK:  # a small answer is one packet; of any, the last bytes go once it is kept
                    client.sendall(pending)
                    pending = b""
                if kept is not None:
                    kept.append(block)
                pending += block
        except ValueError as error:  # too late to report it
            raise ConnectionError("the server's answer cannot be read to its end") from error
        page = b"".join(_plain(iter(kept or ()), frames)) if fault.cut is None else b""
        self._owner.keep(request, Answer(status, page, frames.get("content-type", "")), fault)
        client.sendall(pending)

    def _ask(
        self, line: _ServerConnection, to_server: bytes, body: Iterator[bytes]
    ) -> tuple[int, _Fields, BufferedReader]:
        address, start = self._owner.upstream()
        server, reader = line.to(address, start)
        server.sendall(to_server)
        for block in body:
            server.sendall(block)
        while True:
            head = _read_head(reader)
            if head is None:
                raise ConnectionError("the server closed the connection")
            status = int(head[0].split(" ", 2)[1])
            if status != 100:
                return status, head[1], reader

    def _reply(self, client: socket.socket, request: Request, answer: Answer, fault: Fault) -> bool:
        self._owner.note(request, answer.status)
        self._owner.keep(request, answer, fault)
        if not answer.status:
            return False
        page = _page(answer, self._owner.dress([]))
        client.sendall(page if request.method != "HEAD" else page.removesuffix(answer.body))
        return True


class _ServerConnection:
    """One client connection's own connection to the server, made again when the server was."""

    def __init__(self) -> None:
        self._start = -1
        self._server: socket.socket | None = None
        self._reader: BufferedReader | None = None

    def to(self, address: tuple[str, int], start: int) -> tuple[socket.socket, BufferedReader]:
        if self._server is None or self._reader is None or self._start != start or _hung_up(self._server):
            self.close()
            self._server = socket.create_connection(address, timeout=60)
            self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = self._server.makefile("rb")
            self._start = start
        return self._server, self._reader

    def leave(self) -> None:
        """Use this connection to its end, and another for the next request."""
        self._start = -1

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._server is not None:
            self._server.close()
        self._server = self._reader = None


_REASONS: Final = {
    200: "OK", 201: "Created", 204: "No Content", 206: "Partial Content", 308: "Resume Incomplete",
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 408: "Request Timeout",
    409: "Conflict", 412: "Precondition Failed", 415: "Unsupported Media Type",
    416: "Requested Range Not Satisfiable", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


def _framed(fields: _Fields, body: bytes) -> tuple[_Fields, Iterator[bytes]]:
    """An answer with another body."""
    return [*_unframed(fields), ("Content-Length", str(len(body)))], iter([body])


def _unframed(fields: _Fields) -> _Fields:
    return [(name, value) for name, value in fields if name.lower() not in ("content-length", "transfer-encoding")]


def _hung_up(server: socket.socket) -> bool:
    return bool(select.select([server], [], [], 0)[0])


class _Malformed(ValueError):
    """The bytes received are not a valid request."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def _read_head(reader: BufferedReader) -> tuple[str, _Fields] | None:
    first = reader.readline(_HEAD)
    if not first:
        return None
    fields: _Fields = []
    left = _HEAD - len(first)
    while True:
        line = reader.readline(left) if left > 0 else b""
        left -= len(line)
        if left <= 0:
            raise _Malformed("The head of the request is too long.", 431)
        if line in (b"\r\n", b"\n"):
            return first.decode("latin-1").strip(), fields
        if not line:
            return None
        name, _, value = line.decode("latin-1").partition(":")
        fields.append((name, value.strip()))


def _request_line(first: str) -> tuple[str, str]:
    """The method and the target of a request's first line."""
    parts = first.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or "/" not in parts[1] or not parts[2].startswith("HTTP/1."):
        raise _Malformed("This is no request of HTTP/1.1.")
    return parts[0], parts[1]


def _head(first: str, fields: _Fields) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{first}\r\n{lines}\r\n".encode("latin-1")


def _page(answer: Answer, fields: _Fields) -> bytes:
    fields = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *fields]
    return _head(f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Other')}", fields) + answer.body


def _body(reader: BufferedReader, headers: dict[str, str], *, method: str, status: int = 0) -> Iterator[bytes]:
    """The bytes of a body as they are on the wire, chunks with their frames."""
    if status and (method == "HEAD" or status in (204, 304)):
        return
    if headers.get("transfer-encoding", "").lower() == "chunked":
        yield from _chunks(reader)
        return
    left = int(headers.get("content-length", 0))
    while left:
        block = reader.read(min(left, _BLOCK))
        if not block:
            raise ConnectionError("cut off in the middle of a body")
        left -= len(block)
        yield block


def _chunks(reader: BufferedReader) -> Iterator[bytes]:
    while True:
        size = reader.readline(_BLOCK)
        length = _chunk_length(size)
        block = reader.read(length + 2)
        if len(block) < length + 2:
            raise ConnectionError("cut off in the middle of a chunk")
        yield size + block
        if not length:
            return


def _chunk_length(line: bytes) -> int:
    told = line.split(b";", 1)[0].strip()
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,12}", told):
        raise _Malformed(f"A chunk of the body has no length: {told[:40]!r}.")
    return int(told, 16)


def _plain(body: Iterator[bytes], headers: dict[str, str]) -> Iterator[bytes]:
    """The bytes of a body without the frames of its chunks."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        yield from body
        return
    for chunk in body:
        size, _, rest = chunk.partition(b"\r\n")
        yield rest[: int(size.split(b";", 1)[0], 16)]


def _first(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        yield block[:count]
        count -= len(block)
        if count <= 0:
            return


def _garbled(blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield bytes([block[0] ^ 1]) + block[1:]
        break
    yield from blocks


def _drain(blocks: Iterator[bytes]) -> None:
    for _ in blocks:
        pass
