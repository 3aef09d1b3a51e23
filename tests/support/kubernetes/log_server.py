"""The kubelet's side of an API server that somebody asks for the log of a pod."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_PAUSE = 0.05


class LogServer(ThreadingHTTPServer):
    """Serves the logs of containers on a free port of loopback, by TLS.

    Args:
        certificate: The file of its certificate; its key is beside it.
        log_of: Returns the log of a pod by its namespace and name; None if it has none.
        is_over: Returns True if a pod, by the same, will write no more.
    """

    daemon_threads = True

    def __init__(
        self, certificate: Path, log_of: Callable[[str, str], Path | None], is_over: Callable[[str, str], bool]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.log_of, self.is_over = log_of, is_over
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LogServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        known = {"tailLines", "limitBytes", "follow", "timestamps"}
        if asked.keys() - known or asked.get("timestamps") == "true":
            self._answer(501, f"the tests' kubelet knows no logs by {url.query}".encode())
            return
        match url.path.split("/"):
            case ["", "containerLogs", namespace, pod, _]:
                log = self.server.log_of(namespace, pod)
            case _:
                namespace, pod, log = "", "", None
        if log is None or not log.exists():
            self._answer(404, b"there is no such log")
            return
        whole = log.read_bytes()
        lines = whole.splitlines(keepends=True)
        tail = int(asked.get("tailLines", len(lines)))
        data = b"".join(lines[len(lines) - min(tail, len(lines)) :])
        self._answer(200, data[: int(asked.get("limitBytes", len(data)))])
        if asked.get("follow") == "true":
            self._follow(log, len(whole), lambda: self.server.is_over(namespace, pod))

    def _follow(self, log: Path, sent: int, is_over: Callable[[], bool]) -> None:
        """Send what is written after so many bytes, until nothing is any more."""
        ends = False
        while not ends:
            ends = is_over()
            with log.open("rb") as file:
                file.seek(sent)
                data = file.read()
            self.wfile.write(data)
            sent += len(data)
            time.sleep(0 if ends else _PAUSE)

    def _answer(self, status: int, data: bytes) -> None:
        """Answer in HTTP/1.0: the end of the connection is that of the data."""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(data)
