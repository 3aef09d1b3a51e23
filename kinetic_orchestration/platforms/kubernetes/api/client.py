"""The REST API of a Kubernetes cluster, over the standard library: a few bounded verbs, their objects as plain JSON.

It keeps connections, repeats what may help, renews a refused token and looks for a cluster that moved. Threads share
one `Api`. It knows no kinds of objects, and not what its caller does about an error: `answers` has the kinds of those.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Object, Reply, Row
from kinetic_orchestration.platforms.shared.cluster_access import Access, OtherCluster, Pair

TIMEOUT = 20.0
CONNECTION_SECONDS = 10.0  # until TLS is spoken
ANSWER_SECONDS = 60.0  # for the whole of it
PATIENCE = 60.0
LOOK_PATIENCE = 5.0  # of a read: whoever looks, looks again
PAUSES: tuple[float, ...] = (0.2, 0.6, 1.8)  # before the second try and those after it
LONGEST_PAUSE = 15.0  # that a server may ask for: of a longer one, the caller hears at once
LARGEST = 64 << 20  # bytes of an answer: a page of 500 pods has about 5 MiB
RESTARTS: Final = 2  # of a list in pages; the last is in one piece, which cannot expire
IDLE = 60.0  # seconds after which a connection is not used again: something on the way may have forgotten it
FIELDS: Final = "kinetic-orchestration"  # in whose name fields are held
AGENT: Final = f"kinetic-orchestration/{__version__}"
JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}"
TABLE: Final = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"  # or objects, of a server that makes no tables
APPLY: Final = "application/apply-patch+yaml"  # of which JSON is a part
# How a kept connection shows that the server has closed it.
_BROKEN: Final = (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NEVER: Final = float("inf")
_T = TypeVar("_T")


class Exchange(NamedTuple):
    """One request and its answer, as they were, but for the client's identity."""

    method: str
    target: str  # the path with its query
    request: Object
    status: int  # 0: there was no answer
    answer: bytes
    seconds: float


_listeners: list[Callable[[Exchange], object]] = []


@contextmanager
def listening(listener: Callable[[Exchange], object]) -> Iterator[None]:
    """Within the block, receive each exchange of every thread after its answer, repetitions included."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Api:
    """A cluster's API server. Each verb raises ApiError, CredentialsError if the client's identity is refused, or
    OtherCluster if the server is not trusted any more and the kubeconfig leads to one that may be another.

    `timeout`: seconds for any part of an answer, and at most for a connection. `patience`: seconds after the first try
    of a call in which another one begins, of a read no more than `LOOK_PATIENCE`.
    """

    def __init__(self, access: Access, *, timeout: float = TIMEOUT, patience: float = PATIENCE) -> None:
        self._access = access
        self._timeout = timeout
        self._patience = patience
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._idle: list[_Connection] = []
        self._context: tuple[_Key, ssl.SSLContext] | None = None
        self._heard: tuple[float, float] | None = None  # the server's time, and the monotonic one then
        self.is_doubtful = False  # the cluster was looked for, and what was found may be another one

    def now(self) -> float:
        """Return the time by the server's clock, as far as it has told it: the times of objects are of that clock."""
        if self._heard is None:
            return time.time()
        told, then = self._heard
        return told + time.monotonic() - then

    @property
    def access(self) -> Access:
        """The access that is used now: another one, once the cluster was found elsewhere."""
        return self._access

    def get(self, path: str) -> Object:
        """Return an object: `get("/api/v1/namespaces/default")`."""
        return self._call("GET", path)

    def is_there(self, path: str) -> bool:
        """Return True if there is such an object, of which a cluster sends no more than its metadata."""
        try:
            self._call("GET", path, form=METADATA)
        except ApiError as error:
            if error.kind != answers.ABSENT:
                raise
            return False
        return True

    def list(
        self, path: str, *, labels: str = "", fields: str = "", limit: int = 500, cached: bool = False
    ) -> Sequence[Object]:
        """Return all objects that the selectors match, of one moment, in requests of `limit` objects.

        `cached`: the server may answer from its memory, which is cheap, and may lack what was just created.
        """
        chosen = {"labelSelector": labels, "fieldSelector": fields, "resourceVersion": "0" if cached else ""}
        return [one for page in self._pages(path, chosen, limit, JSON) for one in page.get("items") or ()]

    def rows(self, path: str, *, labels: str = "", cached: bool = False) -> Sequence[Row]:
        """Return one row for each object that the selector matches, which has a hundredth of its bytes."""
        chosen = {"labelSelector": labels, "resourceVersion": "0" if cached else "", "includeObject": "None"}
        return [row for page in self._pages(path, chosen, 500, TABLE) for row in answers.rows(page)]

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object in the collection `path`; with `dry_run`, it passes admission and is not stored.

        If an answer was lost, the repetition raises the kind EXISTS: the caller has to look whose the object is.
        """
        query = {"fieldManager": FIELDS, "fieldValidation": "Strict"}
        return self._call("POST", path, {**query, "dryRun": "All"} if dry_run else query, dict(body))

    def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace the object at `path`, as it was read and then changed.

        With the `resourceVersion` that it was read with, the kind CONFLICT is raised once it is another: also by the
        repetition of a call whose answer was lost.
        """
        return self._call("PUT", path, {"fieldManager": FIELDS, "fieldValidation": "Strict"}, dict(body))

    def apply(
        self, path: str, body: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Object:
        """Have the object at `path` be as `body` says in the fields that it names (server-side apply): one that is not
        there is created, and what the same manager named before and names no more goes.

        The same request may be repeated. With a `resourceVersion` in its metadata it raises the kind CONFLICT once the
        object is another. `answers.rivals` has the fields that another manager holds, which are refused without
        `force`.

        Args:
            path: Of the object itself.
            body: The object: all fields that are this manager's.
            manager: In whose name the fields are held.
            force: Take fields that others hold.
            dry_run: It passes admission and is not stored.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true" if force else "false"}
        chosen = {**query, "dryRun": "All"} if dry_run else query
        return self._call("PATCH", path, chosen, dict(body), content=APPLY)

    def through(self, path: str, body: Mapping[str, Any] | None = None, *, within: float = 0.0) -> Reply:
        """Return what answers behind a path of the server that passes requests on, such as a Service's `…/proxy/…`.

        A GET, or a POST of `body` as JSON. Raises ApiError for what the server itself says: nobody is behind it yet,
        or the caller may not.

        Args:
            path: The path.
            body: What is sent.
            within: Seconds that its answer may take, in place of those that an API server itself is given.
        """
        asked = None if body is None else dict(body)
        method = "GET" if asked is None else "POST"
        return self._called(method, path, None, asked, answers.passed_on, within=within)

    def delete(self, path: str, *, uid: str = "", propagation: str = "Background") -> Object:
        """Delete an object, which may take a while after this call.

        `uid`: only this very object; the kind CONFLICT is raised if the name is another's by now. If an answer was
        lost, the repetition raises the kind ABSENT.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        return self._call("DELETE", path, {}, {**options, "preconditions": {"uid": uid}} if uid else options)

    def close(self) -> None:
        """Close the kept connections. A later call opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- pages and repetitions ---------------------------------------------------------------------------------

    def _pages(self, path: str, chosen: Mapping[str, str], limit: int, form: str) -> Sequence[Object]:
        query = {name: value for name, value in chosen.items() if value}
        for _ in range(RESTARTS):
            try:
                return self._paged(path, {**query, "limit": str(limit)}, form)
            except ApiError as error:
                if error.kind != answers.GONE:
                    raise
        return self._paged(path, query, form)

    def _paged(self, path: str, query: Mapping[str, str], form: str) -> Sequence[Object]:
        found: list[Object] = []
        while True:
            found.append(self._call("GET", path, query, form=form))
            token = (found[-1].get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {**query, "continue": token}
            query.pop("resourceVersion", None)  # which the token has

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        form: str = JSON,
        content: str = JSON,
    ) -> Object:
        return self._called(method, path, query, body, answers.read, form, content)

    def _called(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        read: Callable[[Reply, str], _T],
        form: str = JSON,
        content: str = JSON,
        within: float = 0.0,
    ) -> _T:
        target = f"{path}?{urlencode(query)}" if query else path
        patience = within or (min(self._patience, LOOK_PATIENCE) if method == "GET" else self._patience)
        deadline, pauses = time.monotonic() + patience, iter(PAUSES)
        renewed = sought = False
        while True:
            access = self._access
            token = access.token(False)
            try:
                asked = _Asked(method, target, body, _headers(access, token, body, form, content), within)
                reply = self._exchange(access, asked)
                return read(reply, f"{method} {access.server}{path}")
            except ApiError as error:
                if error.kind == answers.UNAUTHENTICATED:
                    if renewed and not sought:
                        sought = True
                        if self._changed(access):
                            continue
                    if renewed:
                        raise _not_let_in(access, error) from error
                    renewed = True
                    self._renew(access, token)
                    continue
                raced = method == "POST" and error.kind == answers.CONFLICT  # for a quota: nothing was created
                pause = max(next(pauses, _NEVER), error.retry_after)
                if (error.passing or raced) and pause <= LONGEST_PAUSE and time.monotonic() + pause < deadline:
                    time.sleep(pause)
                    continue
                if error.is_lost and not sought:
                    sought = True
                    if self._moved(access):
                        continue
                raise

    def _renew(self, access: Access, refused: str) -> None:
        """Get a new token, unless another thread has got one."""
        with self._renewing:
            if access.token(False) == refused:
                access.token(True)

    def _moved(self, access: Access) -> bool:
        """True if the cluster has another address or certificate than `access` says; then that is used from now on."""
        with self._renewing:
            if self._access is access and access.find is not None:
                found = self._looked_for(access.find)
                if found.way == access.way:
                    return False
                self._access = found
            return self._access is not access

    def _changed(self, access: Access) -> bool:
        """True if the identity or the cluster is configured anew, which is then used from now on."""
        with self._renewing:
            if self._access is access and access.find is not None:
                self._access = self._looked_for(access.find)
            return self._access is not access

    def _looked_for(self, find: Callable[[], Access]) -> Access:
        try:
            return find()
        except OtherCluster:
            self.is_doubtful = True
            raise

    # ---- one exchange ------------------------------------------------------------------------------------------

    def _exchange(self, access: Access, asked: _Asked) -> Reply:
        began, reply = time.monotonic(), Reply(0, {}, b"")
        try:
            reply = self._sent(access, asked)
            with suppress(KeyError, ValueError):
                self._heard = parsedate_to_datetime(reply.headers["date"]).timestamp(), time.monotonic()
        finally:
            for listener in tuple(_listeners):
                seconds = time.monotonic() - began
                listener(Exchange(asked.method, asked.target, asked.body or {}, reply.status, reply.body, seconds))
        return reply

    def _sent(self, access: Access, asked: _Asked) -> Reply:
        key = _Key(access.way, access.pair())
        connection = self._kept(key)
        try:
            connection = connection or self._opened(key, access)
            try:
                reply = connection.exchange(asked)
            except _BROKEN:
                if not connection.is_used:
                    raise
                connection.close()  # the server closed it between two requests, as it may
                connection = self._opened(key, access)
                reply = connection.exchange(asked)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, OSError | http.client.HTTPException):
                raise
            path = f"{asked.method} {asked.target.partition('?')[0]}"
            raise _unanswered(access, key, path, error, asked.within or self._timeout) from error
        self._keep(connection)
        return reply

    def _kept(self, key: _Key) -> _Connection | None:
        """A connection that is open; those that are not to be used again are closed."""
        now, process = time.monotonic(), os.getpid()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or (
                connection.key == key and connection.process == process and now - connection.since < IDLE
            ):
                return connection
            connection.close()

    def _keep(self, connection: _Connection) -> None:
        if connection.sock is None:  # the server closes it
            return
        connection.since, connection.is_used = time.monotonic(), True
        with self._lock:
            self._idle.append(connection)

    def _opened(self, key: _Key, access: Access) -> _Connection:
        with self._lock:
            if self._context is None or self._context[0] != key:
                self._context = key, _tls(access, key.pair)
            context = self._context[1]
        return _open(access, key, context, self._timeout)


class _Asked(NamedTuple):
    """A request, as it is sent.

    Attributes:
        method: Its method.
        target: The path with its query.
        body: Its object, if it has one.
        headers: Its headers, in their order.
        within: Seconds for the whole answer, if they are not the usual ones; 0.0: they are.
    """

    method: str
    target: str
    body: Object | None
    headers: Sequence[tuple[str, str]]
    within: float

    @property
    def content(self) -> bytes | None:
        """Its object as bytes."""
        return None if self.body is None else json.dumps(self.body).encode()


class _Key(NamedTuple):
    """All that two requests must have in common to use one connection."""

    way: tuple[Any, ...]
    pair: Pair | None


class _Connection(http.client.HTTPConnection):
    """One connection, through a proxy if there is one, with TLS to the server itself."""

    key: _Key
    context: ssl.SSLContext | None
    server_name: str
    process: int
    since: float
    is_used: bool

    answer_timeout: float  # the connection's own is that of its making

    def connect(self) -> None:
        try:
            super().connect()
            if self.context is not None:
                self.sock = self.context.wrap_socket(self.sock, server_hostname=self.server_name)
        except TimeoutError:
            raise _TooSlow(f"there was no connection in {self.timeout:g} s") from None
        self.sock.settimeout(self.answer_timeout)

    def exchange(self, asked: _Asked) -> Reply:
        longest, content = asked.within or ANSWER_SECONDS, asked.content
        deadline = time.monotonic() + longest
        self.putrequest(asked.method, self.prefix + asked.target)
        for name, value in asked.headers:
            self.putheader(name, value)
        if content is not None:
            self.putheader("Content-Length", str(len(content)))
        self.endheaders(content)
        self.sock.settimeout(asked.within or self.answer_timeout)
        answer = self.getresponse()
        pieces: list[bytes] = []
        size = 0
        while piece := _arrived(answer):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST:
                raise _TooLarge(f"the answer is larger than {LARGEST} bytes")
            if time.monotonic() > deadline:
                raise _TooSlow(f"the answer was not complete after {longest:g} s")
        pieces.append(answer.read())  # nothing, or IncompleteRead
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, told, b"".join(pieces))

    @property
    def prefix(self) -> str:
        """The path in the server's address, below which its API is."""
        return urlsplit(str(self.key.way[0])).path


def _arrived(answer: http.client.HTTPResponse) -> bytes:
    """Return what of the body is there, at least a byte: to wait for more would be to wait for a trickle for ever."""
    if answer.chunked:
        return answer.read1(1 << 16)
    return answer.read(len(answer.peek())) if answer.length != 0 else b""  # Python 3.11's read1 does not count


class _TooLarge(http.client.HTTPException):
    pass


class _TooSlow(TimeoutError):
    pass


def _open(access: Access, key: _Key, context: ssl.SSLContext, timeout: float) -> _Connection:
    server = urlsplit(access.server)
    host, secure = server.hostname or "", server.scheme == "https"
    first = min(timeout, CONNECTION_SECONDS)
    port = server.port or (443 if secure else 80)
    if access.proxy:
        proxy = urlsplit(access.proxy)
        connection = _Connection(proxy.hostname or "", proxy.port or 80, timeout=first)
        authorization = {}
        if proxy.username is not None:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            authorization["Proxy-Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        connection.set_tunnel(f"[{host}]" if ":" in host else host, port, authorization)
    else:
        connection = _Connection(host, port, timeout=first)
    connection.key, connection.context = key, context if secure else None
    connection.server_name = access.server_name or host
    connection.answer_timeout = timeout
    connection.process, connection.since, connection.is_used = os.getpid(), 0.0, False
    return connection


class Line(NamedTuple):
    """A connection to an API server on which nothing was asked yet.

    Attributes:
        sock: The connection.
        prefix: The path below which the API is.
        headers: Those of a request, with the client's identity.
    """

    sock: socket.socket
    prefix: str
    headers: Sequence[tuple[str, str]]


def connected(access: Access, *, fresh: bool = False, timeout: float = TIMEOUT) -> Line:
    """Connect to a cluster's server for something that is no request with an answer, such as a WebSocket.

    Args:
        access: The server, and who asks.
        fresh: The last token was refused.
        timeout: Seconds for the connection.

    Raises:
        ApiError: There is no connection.
        CredentialsError: The identity cannot be used.
    """
    key = _Key(access.way, access.pair())
    headers = list(_headers(access, access.token(fresh), None, "*/*", JSON))
    connection = _open(access, key, _tls(access, key.pair), timeout)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise _unanswered(access, key, "a connection", error, timeout) from error
    server = urlsplit(access.server)
    headers.insert(0, ("Host", server.netloc.rpartition("@")[2]))
    return Line(connection.sock, connection.prefix, headers)


def _tls(access: Access, pair: Pair | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.authority or None)
    except ssl.SSLError as error:
        raise CredentialsError(f"The certificate authority in {access.origin} is no PEM: {error.reason}.") from error
    # As Go has it, by which all these certificates were tried: old authorities lack extensions that Python 3.13 wants,
    # and whatever the kubeconfig names is trusted, whoever signed it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.authority:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if pair is not None:
        _load_pair(context, pair, access)
    return context


def _load_pair(context: ssl.SSLContext, pair: Pair, access: Access) -> None:
    """Present a client certificate, which Python reads from a file alone: one that is there for a moment."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="ascii", prefix="kinetic-", suffix=".pem") as file:
        file.write(f"{pair.certificate}\n{pair.key}\n")
        file.flush()
        try:
            context.load_cert_chain(file.name, password="")  # never asked for at a terminal
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsError(
                f"The client certificate of {access.origin} cannot be used: {getattr(error, 'reason', None) or error}. "
                "Its key has to belong to it, and to have no password."
            ) from error


def _headers(access: Access, token: str, body: Object | None, form: str, content: str) -> Sequence[tuple[str, str]]:
    headers = [("User-Agent", AGENT), ("Accept", form), *access.headers]
    if body is not None:
        headers.append(("Content-Type", content))
    if token:
        if not (token.isascii() and token.isprintable()):  # or the error would quote it
            raise CredentialsError(f"The token of {access.origin} has characters that no token has. Write it anew.")
        headers.append(("Authorization", f"Bearer {token}"))
    return headers


# ---- requests without an answer --------------------------------------------------------------------------------

_TIMES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_OUT_OF_TIME = (
    "Look at this machine's clock: {now}. If it is right, the certificate or one that signed it has to be renewed: an "
    "administrator of the cluster does that, for kubeadm with 'kubeadm certs renew all'. If its authority is another "
    "afterwards, {renewal}."
)
_ANOTHER = (
    "expects another, and was read again just now. The cluster may have been created again, or its authority renewed: "
    "{renewal}. Jobs that run there go on meanwhile. If neither is so, somebody else answers at this address."
)


def _not_let_in(access: Access, error: ApiError) -> CredentialsError:
    return CredentialsError(
        f"Kubernetes at {access.server} does not accept the identity of {access.origin}: "
        f"{error.words or error.reason}. It may have expired, or be of another cluster: log in again, until "
        "'kubectl auth whoami' works."
    )


def _unanswered(access: Access, key: _Key, asked: str, error: Exception, timeout: float) -> ApiError:
    server = f"{asked} at {access.server}"
    if isinstance(error, _TooLarge):
        return ApiError(f"{server}: {error}. Ask for less at once.", answers.UNREACHABLE)
    if isinstance(error, ssl.SSLCertVerificationError):
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        words = _OUT_OF_TIME if error.verify_code in _TIMES else f"{{origin}} {_ANOTHER}"
        advice = words.format(now=now, origin=access.origin, renewal=access.renewal)
        return ApiError(
            f"{access.server} is not trusted, so nothing was asked: {error.verify_message}. "
            f"{_shown(access, key, timeout)}{advice}",
            answers.UNREACHABLE,
            is_lost=True,
        )
    if isinstance(error, ssl.SSLError):
        said = f"TLS failed: {error.reason or error}"
    elif isinstance(error, socket.gaierror):
        said = f"its name is not known here: {error.strerror}"
    elif isinstance(error, TimeoutError):
        said = str(error) if isinstance(error, _TooSlow) else f"nothing came in {timeout:g} s"
    else:
        said = f"{type(error).__name__}: {error}"
    by = f" through the proxy {urlsplit(access.proxy).hostname}" if access.proxy else ""
    return ApiError(
        f"{server}{by} got no answer: {said}. Is the cluster there, and this machine in a network that reaches it? A "
        "proxy is named by proxy-url in the kubeconfig or by HTTPS_PROXY.",
        answers.UNREACHABLE,
        passing=True,
        is_lost=True,
    )


def _shown(access: Access, key: _Key, timeout: float) -> str:
    """A sentence on the certificate that the server shows, which nobody has checked; "" if it shows none now."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        encoded = _certificate(access, key, context, timeout, binary=True)
        # Python names the fields only of a certificate that it trusts: this one, at whatever time.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=encoded)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME
        found = _certificate(access, key, context, timeout, binary=False)
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    names = ", ".join(value for _, value in found.get("subjectAltName", ())) or "no name"
    issuer = ", ".join(value for part in found.get("issuer", ()) for name, value in part if name == "commonName")
    return answers.escaped(
        f"It shows a certificate for {names[:300]}, signed by {issuer[:100] or 'an authority without a name'}, valid "
        f"from {found.get('notBefore')} to {found.get('notAfter')}. "
    )


def _certificate(access: Access, key: _Key, context: ssl.SSLContext, timeout: float, *, binary: bool) -> Any:
    connection = _open(access, key, context, timeout)
    try:
        connection.connect()
        shown: Any = connection.sock
        return shown.getpeercert(binary)
    finally:
        connection.close()
