"""One connection to a Kubernetes API server: through a proxy, with TLS, as who the client is; or why there is none.

It knows requests as bytes and how long they may take, and neither repeats one nor knows what a cluster has.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Object, Reply
from kinetic_orchestration.platforms.shared.cluster_access import Access, Pair

TIMEOUT = 20.0
CONNECTION_SECONDS = 10.0  # until TLS is spoken
ANSWER_SECONDS = 60.0  # for the whole of it
LARGEST = 64 << 20  # bytes of an answer: a page of 500 pods has about 5 MiB
AGENT: Final = f"kinetic-orchestration/{__version__}"
JSON: Final = "application/json"
# How a kept connection shows that the server has closed it.
BROKEN: Final = (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Asked(NamedTuple):
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


class Key(NamedTuple):
    """All that two requests must have in common to use one connection."""

    way: tuple[Any, ...]
    pair: Pair | None


class Connection(http.client.HTTPConnection):
    """One connection, through a proxy if there is one, with TLS to the server itself."""

    key: Key
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

    def exchange(self, asked: Asked) -> Reply:
        """Send a request and return its whole answer, or raise OSError or HTTPException if it has none in time."""
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


def connection_to(access: Access, key: Key, context: ssl.SSLContext, timeout: float) -> Connection:
    """Return a connection to the server, or to its proxy, on which nothing was sent: the first exchange connects it."""
    server = urlsplit(access.server)
    host, secure = server.hostname or "", server.scheme == "https"
    first = min(timeout, CONNECTION_SECONDS)
    port = server.port or (443 if secure else 80)
    if access.proxy:
        proxy = urlsplit(access.proxy)
        connection = Connection(proxy.hostname or "", proxy.port or 80, timeout=first)
        authorization = {}
        if proxy.username is not None:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            authorization["Proxy-Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        connection.set_tunnel(f"[{host}]" if ":" in host else host, port, authorization)
    else:
        connection = Connection(host, port, timeout=first)
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
    key = Key(access.way, access.pair())
    headers = list(headers_of(access, access.token(fresh), None, "*/*", JSON))
    connection = connection_to(access, key, tls(access, key.pair), timeout)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise unanswered(access, key, "a connection", error, timeout) from error
    server = urlsplit(access.server)
    headers.insert(0, ("Host", server.netloc.rpartition("@")[2]))
    return Line(connection.sock, connection.prefix, headers)


def tls(access: Access, pair: Pair | None) -> ssl.SSLContext:
    """Return how the server is judged and what it is shown, or raise CredentialsError if a certificate is unusable."""
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


def headers_of(access: Access, token: str, body: Object | None, form: str, content: str) -> Sequence[tuple[str, str]]:
    """Return a request's headers with the client's identity, or raise CredentialsError if its token can be none."""
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


def unanswered(access: Access, key: Key, asked: str, error: Exception, timeout: float) -> ApiError:
    """Return the error that says why a request, or a connection, got no answer, and what helps."""
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


def _shown(access: Access, key: Key, timeout: float) -> str:
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


def _certificate(access: Access, key: Key, context: ssl.SSLContext, timeout: float, *, binary: bool) -> Any:
    connection = connection_to(access, key, context, timeout)
    try:
        connection.connect()
        shown: Any = connection.sock
        return shown.getpeercert(binary)
    finally:
        connection.close()
