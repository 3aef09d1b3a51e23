"""A plain proxy in front of an API server, on which a test lets requests and answers get lost."""

from __future__ import annotations

import http.client
import http.server
import json
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.support.kubernetes.api import reached

REQUEST = "request"  # it never arrives
ANSWER = "answer"  # what was asked is done, and nobody hears of it


class Loss(NamedTuple):
    """A loss of requests of a method whose path has this part, once or several times."""

    method: str
    part: str
    what: str
    times: float
    status: int = 0  # of the refusal in its place; 0: the connection is closed


REASONS = {404: "NotFound", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke its connection, as one that was killed, is no matter of anybody's."""


class Between:
    """The proxy, from a `with` on. `before` may do something before a request is passed on. With a certificate and its
    key in a file it speaks TLS, on a new connection for each request."""

    def __init__(self, kubeconfig: Path, certificate: Path | None = None) -> None:
        self._address, self._context, self._headers = reached(kubeconfig)
        self._losses: list[Loss] = []
        self.before: Callable[[str, str, Any], object] = lambda method, path, body: None
        self.lost = 0
        self._gone = False
        between = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                between._pass(self)

            do_POST = do_DELETE = do_PATCH = do_GET

            def log_message(self, *_: object) -> None:
                """It says nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._server.server_port}"
        self._once = certificate is not None
        self._shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if certificate is not None:
            self.show(certificate)
            listening = self._server.socket
            self._server.socket = self._shown.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Be no longer there, as a cluster that somebody deleted; kept connections are of no use, either."""
        self._gone = True
        self._server.shutdown()
        self._server.server_close()

    def show(self, certificate: Path) -> None:
        """Show another certificate from now on."""
        self._shown.load_cert_chain(certificate)

    def lose(self, method: str, part: str, what: str, times: float = 1) -> None:
        self._losses.append(Loss(method, part, what, times))

    def refuse(self, method: str, part: str, status: int, times: float = 1) -> None:
        """Answer these requests in the server's place, as one that is overloaded or wrong does."""
        self._losses.append(Loss(method, part, REQUEST, times, status))

    def heal(self) -> None:
        self._losses.clear()

    def _pass(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)) or None
        self.before(handler.command, path, body and json.loads(body))
        loss = self._take(handler.command, path)
        lost = REQUEST if self._gone else loss.what
        if lost != REQUEST:
            upstream = http.client.HTTPSConnection(self._address, timeout=60, context=self._context)
            kind = {"Content-Type": handler.headers["Content-Type"]} if body else {}
            try:
                upstream.request(handler.command, handler.path, body, {**self._headers, **kind})
                answer = upstream.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):  # the server is away
                handler.close_connection = True
                return
            finally:
                upstream.close()
        self.lost += bool(lost)
        if lost and not loss.status:
            handler.close_connection = True
            return
        if lost:
            said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": loss.status}
            name = path.rpartition("/")[2]
            told = {"reason": REASONS[loss.status], "message": "as the test says", "details": {"name": name}}
            data = json.dumps(said | told).encode()
        handler.send_response(loss.status or answer.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        if self._once:
            handler.send_header("Connection", "close")  # which the handler follows as well
        handler.end_headers()
        handler.wfile.write(data)

    def _take(self, method: str, path: str) -> Loss:
        for index, loss in enumerate(self._losses):
            if loss.method == method and loss.part in path and loss.times > 0:
                self._losses[index] = loss._replace(times=loss.times - 1)
                return loss
        return Loss(method, path, "", 0)
