"""What an API server asks a kubelet when somebody reads the log of a pod."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class LogServer(ThreadingHTTPServer):
    """Serves the logs of containers on a free port of loopback, by TLS.

    Args:
        certificate: The file of its certificate; its key is beside it.
        log_of: Returns the log of a pod by its namespace and name; None if it has none.
    """

    daemon_threads = True

    def __init__(self, certificate: Path, log_of: Callable[[str, str], Path | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.log_of = log_of
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LogServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        known = {"tailLines", "limitBytes", "follow", "timestamps"}
        if asked.keys() - known or "true" in (asked.get("follow"), asked.get("timestamps")):
            self._answer(501, f"the tests' kubelet knows no logs by {url.query}".encode())
            return
        match url.path.split("/"):
            case ["", "containerLogs", namespace, pod, _]:
                log = self.server.log_of(namespace, pod)
            case _:
                log = None
        if log is None or not log.exists():
            self._answer(404, b"there is no such log")
            return
        lines = log.read_bytes().splitlines(keepends=True)
        tail = int(asked.get("tailLines", len(lines)))
        data = b"".join(lines[len(lines) - min(tail, len(lines)) :])
        self._answer(200, data[: int(asked.get("limitBytes", len(data)))])

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
