"""What connects an API server with pods whose processes are of this machine, as Konnectivity does where it is in another
network than they are: it speaks CONNECT on a socket.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

from kinetic_orchestration.testing.kubernetes.pods.probes import on_this_machine

_PATIENCE = 30.0


@contextlib.contextmanager
def egress(path: Path) -> Iterator[None]:
    """Within the block, connections to addresses of pods and of loopback are made for whoever asks on this socket."""
    with _Server(str(path), _Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        yield
        server.shutdown()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        _, target, *_ = self.rfile.readline().decode("ascii").split()
        while self.rfile.readline().strip():
            pass
        host, _, port = target.rpartition(":")
        address = on_this_machine(host.strip("[]"))
        assert address.startswith("127."), address  # nothing outside this machine
        try:
            there = socket.create_connection((address, int(port)), timeout=_PATIENCE)
        except OSError as error:
            self.wfile.write(f"HTTP/1.1 502 {error.strerror}\r\n\r\n".encode())
            return
        there.settimeout(None)
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with there:
            back = threading.Thread(target=_copied, args=(there, self.connection), daemon=True)
            back.start()
            _copied(self.connection, there)
            back.join()


def _copied(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and tell the target so."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
