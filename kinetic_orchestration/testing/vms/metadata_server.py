"""A metadata server, by which a program reads what Google tells of the machine or the pod that it runs in.

Each machine and each pod has its own, on a port of its own. One loop serves all of them in one thread: an idle one
costs a listening socket. Here is what all have in common, the conversation; what they tell is theirs (`vms/metadata`,
and of pods `kubernetes/pods/metadata`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from kinetic_orchestration.testing.api_rules.access import Access, AccessRefused, headers_of

_ROOT = "/computeMetadata/v1/"
_FLAVOR = "Google"
_HEAD_LIMIT = 64 * 1024
_LARGEST = 1 << 20  # of a request's body
_BACKLOG = 64
_TOKEN_SECONDS = 3599
_NO_AUDIENCE = "non-empty audience parameter required\n"
_SECONDS = re.compile(r"[0-9]{1,9}")


class Loop:
    """One thread with an event loop for everything that waits: requests, long polls and timers. Nothing waits
    for it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        until = self._loop.time() + 5
        # Again, as a connection that has just been accepted has a task of its own only after that of its acceptance.
        while (others := asyncio.all_tasks(self._loop)) and (left := until - self._loop.time()) > 0:
            self._loop.run_until_complete(asyncio.wait(others, timeout=left))
        self._loop.run_until_complete(asyncio.sleep(0))  # aborted connections are closed
        self._loop.close()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def soon(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        self.soon(lambda: self._loop.call_later(seconds, action))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


class Answer(NamedTuple):
    status: int
    body: str
    kind: str = "application/text"
    location: str = ""


class Refused(Exception):
    """The HTTP status of an answer that is a page of Google's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class MetadataServer(ABC):
    """`http://127.0.0.1:<port>/<token>/computeMetadata/v1/` of one machine or pod.

    Args:
        loop: Serves it.
        access: Who may speak to it.
        after: Seconds until it takes connections.
    """

    program = "Metadata Server for VM"  # as answers call it

    def __init__(self, loop: Loop, access: Access, *, after: float = 0.0) -> None:
        self.requests = 0
        self._loop = loop
        self._connections: set[asyncio.StreamWriter] = set()
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        if not after:
            listening.listen(_BACKLOG)
        self._access = access
        self._port: int = listening.getsockname()[1]
        self.address = access.address(self._port)
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        loop.start(self._serve(listening, after))

    # What it tells

    @abstractmethod
    def tree(self) -> dict[str, Any]:
        """Return all that can be listed. A dict is a directory, a list of dicts too; a list of texts is a value of
        lines."""

    @abstractmethod
    def account(self) -> str:
        """Return the name of the account whose tokens it gives, which is also called `default`."""

    @abstractmethod
    def token(self) -> Answer:
        """Return the answer to whoever asks for an access token: `token_answer`, or a refusal."""

    @abstractmethod
    def identity(self, audience: str) -> Answer:
        """Return the answer to whoever asks for an identity token."""

    def find(self, words: list[str]) -> Answer | None:
        """Return an answer that is in no tree; None if there is none."""
        return None

    def write(self, method: str, words: list[str], body: bytes) -> Answer:
        """Carry out a PUT or a DELETE. Raises Refused."""
        raise Refused(405)

    # How it speaks

    async def _serve(self, listening: socket.socket, after: float) -> None:
        if after:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), after)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(), self._converse, loop=loop), sock=listening, backlog=_BACKLOG
        )
        await self._closing.wait()
        # Before it closes: asyncio forgets, and never closes, what it has accepted for a server that is closed by then.
        loop.remove_reader(listening)
        await asyncio.sleep(0)
        server.close()
        for connection in self._connections:
            connection.transport.abort()
        self._wake()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection in order."""
        assert isinstance(reader, _Reader)
        self._connections.add(writer)
        close = self._closing.is_set()
        try:
            while not close:
                bodiless, close = False, True
                try:
                    request = await _read_request(reader)
                except ValueError:
                    answer = _page(400, "/")
                except AccessRefused as refused:
                    answer = Answer(refused.status, f"{refused.message}\n")
                else:
                    self.requests += 1
                    answer = await self._answer_to(request, reader.ended)
                    bodiless, close = request.method == "HEAD", request.headers.get("connection", "").lower() == "close"
                writer.write(_on_the_wire(answer, self.program, close=close, bodiless=bodiless))
        except (EOFError, OSError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer_to(self, request: _Request, ended: asyncio.Event) -> Answer:
        """The answer: after the next change, or a time, for a request that waits for one.

        Raises EOFError if the caller leaves while it waits.
        """
        answer = self._try_to_answer(request)
        if request.query.get("wait_for_change", "").lower() != "true":
            return answer
        known = request.query.get("last_etag") or etag(answer.body)
        given = request.query.get("timeout_sec", "")
        seconds = int(given) if _SECONDS.fullmatch(given) else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds or None):
                while answer.status == 200 and etag(answer.body) == known and not self._closing.is_set():
                    await _first_of(self._changed, ended)
                    if ended.is_set():
                        raise EOFError
                    answer = self._try_to_answer(request)
        return answer

    def _try_to_answer(self, request: _Request) -> Answer:
        try:
            return self.answer(request.method, request.target, request.headers, request.body)
        except Exception as error:  # a token or an identity that the cloud refuses
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: {error}\n")

    def change(self, **values: Any) -> None:
        """Set attributes that are told, and wake the requests that wait for a change."""
        for name, value in values.items():
            setattr(self, name, value)
        self._loop.soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        self._loop.soon(self._closing.set)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request answered at once: a long poll asks here until the answer differs."""
        try:
            return self._answer(method, self._access.enter(target, headers, self._port), headers, body)
        except AccessRefused as refused:
            return Answer(refused.status, f"{refused.message}\n")

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        parts = urlsplit(target)
        path = unquote(parts.path)
        if path in _ABOVE:
            return Answer(200, _ABOVE[path])
        if refused := _refusal(path, headers):
            return refused
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        words = [word for word in f"{path}/".removeprefix(_ROOT).split("/") if word]
        try:
            if method in ("PUT", "DELETE"):
                return self.write(method, words, body)
            return self.find(words) or self._credential(words, query) or self._read(words, path, query)
        except Refused as error:
            return _page(error.status, path)

    def _read(self, words: list[str], path: str, query: Mapping[str, str]) -> Answer:
        value: Any = self.tree()
        for word in words:
            value = _below(value, word)
        recursive = query.get("recursive", "").lower() == "true"
        if not _is_directory(value):
            as_json = query.get("alt") == "json"
            return Answer(200, json.dumps(value), "application/json") if as_json else Answer(200, _text(value))
        if not path.endswith("/") and not recursive:
            return Answer(301, f"{path}/\n", location=f"/{self._access.token}{path}/")
        if not recursive and "alt" not in query:
            return Answer(200, "".join(f"{name}\n" for name in _listing(value)))
        if query.get("alt") == "text":
            return Answer(200, "".join(f"{line}\n" for line in _flat(value)))
        return Answer(200, json.dumps(_as_json(value, words)), "application/json")

    def _credential(self, words: list[str], query: Mapping[str, str]) -> Answer | None:
        if words[:2] != ["instance", "service-accounts"] or words[2:3] not in (["default"], [self.account()]):
            return None
        if words[3:] == ["token"]:
            return self.token()
        if words[3:] == ["identity"]:
            audience = query.get("audience", "").strip()
            return self.identity(audience) if audience else Answer(400, _NO_AUDIENCE, "text/html")
        return None


def token_answer(token: str) -> Answer:
    answer = {"access_token": token, "expires_in": _TOKEN_SECONDS, "token_type": "Bearer"}
    return Answer(200, json.dumps(answer), "application/json")


_ABOVE = {"/": "computeMetadata/\n", "/computeMetadata": "v1/\n", "/computeMetadata/": "v1/\n"}


def _refusal(path: str, headers: Mapping[str, str]) -> Answer | None:
    if "x-forwarded-for" in headers:
        return _page(403, path, "X-Forwarded-For is not allowed.")
    if headers.get("metadata-flavor") != _FLAVOR:
        return _page(403, path, "Missing Metadata-Flavor:Google header.")
    return None if f"{path}/".startswith(_ROOT) else _page(404, path)


def etag(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _is_directory(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _below(value: Any, word: str) -> Any:
    if isinstance(value, dict) and word in value:
        return value[word]
    if isinstance(value, list) and _is_directory(value) and word.isdigit() and int(word) < len(value):
        return value[int(word)]
    raise Refused(404)


def _entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return sorted(value.items())
    return [(str(index), item) for index, item in enumerate(value)]


def _listing(value: Any) -> list[str]:
    return [f"{name}/" if _is_directory(below) else name for name, below in _entries(value)]


def _flat(value: Any, path: str = "") -> list[str]:
    """`?alt=text` of a directory: one line a value, its path before it."""
    if not _is_directory(value):
        return [f"{path} {_text(value)}"]
    return [line for name, below in _entries(value) for line in _flat(below, f"{path}/{name}" if path else name)]


def _as_json(value: Any, words: list[str]) -> Any:
    """Names become camelCase, but for those that users gave."""
    if isinstance(value, list):
        return [_as_json(item, words) for item in value]
    if not isinstance(value, dict):
        return value
    given = words and words[-1] in ("attributes", "guest-attributes", "service-accounts")
    given = given or (len(words) > 1 and words[-2] == "guest-attributes")
    return {(name if given else _camel(name)): _as_json(below, [*words, name]) for name, below in value.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _text(value: Any) -> str:
    return "".join(f"{line}\n" for line in value) if isinstance(value, list) else str(value)


def _page(status: int, path: str, reason: str = "") -> Answer:
    """An error as the front end of Google answers it: a page, not a value."""
    phrase = HTTPStatus(status).phrase
    said = {
        403: f"Your client does not have permission to get URL <code>{path}</code> from this server. {reason}",
        404: f"The requested URL <code>{path}</code> was not found on this server.",
    }.get(status, phrase)
    page = (
        f"<!DOCTYPE html>\n<html lang=en>\n<title>Error {status} ({phrase})!!1</title>\n"
        f"<p><b>{status}.</b> <ins>That's an error.</ins>\n<p>{said} <ins>That's all we know.</ins>\n"
    )
    return Answer(status, page, "text/html; charset=UTF-8")


class _Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return {key: values[-1] for key, values in parse_qs(urlsplit(self.target).query).items()}


class _Reader(asyncio.StreamReader):
    """`ended` is set when the caller has left, also while nothing is read."""

    def __init__(self) -> None:
        super().__init__(limit=_HEAD_LIMIT)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # typeshed wants an Exception, asyncio gives any
        self.ended.set()


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    """Raises AccessRefused or ValueError for what is no request, and EOFError or OSError at the connection's end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise AccessRefused(431, f"The head of the request has more than {_HEAD_LIMIT} bytes.") from None
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    urlsplit(target)  # a ValueError for what is no target
    pairs = (line.partition(":") for line in lines)
    headers = headers_of(((name, value) for name, _, value in pairs), largest=_LARGEST)
    return _Request(method, target, headers, await reader.readexactly(int(headers.get("content-length") or 0)))


def _on_the_wire(answer: Answer, program: str, *, close: bool, bodiless: bool) -> bytes:
    body = answer.body.encode()
    head = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Metadata-Flavor: {_FLAVOR}",
        f"Server: {program}",
        f"Content-Type: {answer.kind}",
        f"ETag: {etag(answer.body)}",
        f"Content-Length: {len(body)}",
        *([f"Location: {answer.location}"] if answer.location else []),
        *(["Connection: close"] if close else []),
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (b"" if bodiless else body)
