"""A small API server with TLS, whose answers a test writes: what a real one gives too rarely to wait for.

Certificates are signed by an authority that is made anew for each one.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates, as a cluster's own authority does."""

    def __init__(self, name: str = "the cluster's authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        # Without the extensions that Python 3.13 wants by itself: many clusters' authorities are like this.
        made = self._begun(self._name, self._key, 1).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def _begun(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def signed(self, common: str, *names: str, days: int = 1, password: str = "") -> tuple[str, str]:
        """A certificate for these names and addresses, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        made = self._begun(subject, key, days)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        lock: Any = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        certificate = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        return certificate, key.private_bytes(*kinds, lock).decode()


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Request(NamedTuple):
    """What arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    certificate: Mapping[str, Any]  # the client's
    connection: int  # equal in all requests of one connection

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")


class Answer(NamedTuple):
    """What goes back."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = {}
    pause: float = 0.0  # before it, and before each piece of it
    pieces: int = 1
    reset: bool = False  # the connection, in place of an answer
    close: bool = False  # the connection, afterwards, without a word in the answer


def status(code: int, reason: str, message: str = "", **details: Any) -> Answer:
    """A refusal as Kubernetes writes it."""
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return Answer(code, {**said, "reason": reason, "message": message or reason, "details": details})


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}}


def page(*names: str, more: str = "") -> Answer:
    """A page of pods."""
    metadata = {"continue": more} if more else {}
    return Answer(200, {"kind": "PodList", "metadata": metadata, "items": [pod(name) for name in names]})


class Server:
    """Requests that arrived, and the rule by which each is answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda request: page()
        self.present: Callable[[str, str], None]

    def script(self, *answers: Answer) -> None:
        """Give these answers in turn, and the last for ever."""
        left = list(answers)
        self.answer = lambda request: left.pop(0) if len(left) > 1 else left[0]


@contextmanager
def serving(certificate: tuple[str, str], clients: str, folder: Path) -> Iterator[Server]:
    """A server on loopback with this certificate, which asks clients for one that `clients` (PEM) has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=clients)

    def present(certificate: str, key: str) -> None:
        file = folder / "server.pem"
        file.write_text(certificate + key)
        context.load_cert_chain(file)

    present(*certificate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 30

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
            self.request.settimeout(self.timeout)
            try:
                self.request.do_handshake()
            except BaseException:
                self.request.close()
                raise
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            shown = self.request.getpeercert() or {}
            server.requests.append(
                Request(
                    self.command, address.path, query, dict(self.headers), json.loads(body or b"null"), shown, id(self)
                )
            )
            self.reply(server.answer(server.requests[-1]))

        do_POST = do_PATCH = do_DELETE = do_GET

        def reply(self, answer: Answer) -> None:
            time.sleep(answer.pause)
            self.close_connection = answer.close
            if answer.reset:
                self.close_connection = True
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            if not {"Content-Length", "Transfer-Encoding"} & set(answer.headers):
                self.send_header("Content-Length", str(len(body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            size = -(-len(body) // answer.pieces) or 1
            for at in range(0, len(body), size):
                self.wfile.write(body[at : at + size])
                if answer.pieces > 1:
                    time.sleep(answer.pause)

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away in the middle is part of what is tested."""

        def shutdown_request(self, request: Any) -> None:
            """The handler closes what it has wrapped."""
            request.close()

    listening = Quiet(("127.0.0.1", 0), Handler)
    server = Server(f"https://127.0.0.1:{listening.server_address[1]}")
    server.present = present
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
