"""The kubelet's side of an API server that somebody asks for the log of a pod, or for a program in it."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from kinetic_orchestration.reach.websocket import WebSocket, accept_of
from kinetic_orchestration.testing.kubernetes import execution
from kinetic_orchestration.testing.kubernetes.pods.container import Container

_PAUSE = 0.05


class LogServer(ThreadingHTTPServer):
    """Serves the logs of containers on a free port of loopback, by TLS.

    Args:
        certificate: The file of its certificate; its key is beside it.
        log_of: Returns the log of a pod by its namespace and name; None if it has none.
        is_over: Returns True if a pod, by the same, will write no more.
        container_of: Returns the container of a pod, by the same; None if it has none that runs.
    """

    daemon_threads = True

    def __init__(
        self,
        certificate: Path,
        log_of: Callable[[str, str], Path | None],
        is_over: Callable[[str, str], bool],
        container_of: Callable[[str, str], Container | None],
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.log_of, self.is_over, self.container_of = log_of, is_over, container_of
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: LogServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith("/exec/"):
            self._enter(url.path, parse_qs(url.query, keep_blank_values=True))
            return
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

    def _enter(self, path: str, asked: dict[str, list[str]]) -> None:
        """Start a program in a pod, whose channels are a WebSocket."""
        self.close_connection = True
        protocol = execution.chosen(self.headers.get("Sec-WebSocket-Protocol", ""))
        _, _, namespace, pod, _ = path.split("/")
        container = self.server.container_of(namespace, pod)
        if not protocol or container is None:
            self._answer(404 if container is None else 400, b"there is no such container, or no such protocol")
            return
        self.protocol_version = "HTTP/1.1"
        self.send_response(101)
        accept = accept_of(self.headers["Sec-WebSocket-Key"])
        fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
        for name, value in {**fields, "Sec-WebSocket-Protocol": protocol}.items():
            self.send_header(name, value)
        self.end_headers()
        client = WebSocket(self.connection, is_client=False, protocol=protocol)
        wishes = {name: asked.get(name, ["0"])[0] in ("1", "true") for name in ("input", "tty")}
        try:
            inside = execution.Inside(*container.inside(execution.begun(asked["command"], tty=wishes["tty"])))
            execution.serve(client, inside, takes_input=wishes["input"], tty=wishes["tty"])
        except OSError as error:
            execution.refused(client, str(error))

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
