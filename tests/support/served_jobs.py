"""Jobs that are entered: each host serves a page at a port of its loopback; one waits for a debugger."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path

import kinetic_orchestration as kinetic


class Page(http.server.BaseHTTPRequestHandler):
    """Says which host it is, and then as many letters as its path asks for."""

    def do_GET(self) -> None:
        said = f"host {kinetic.current().host_index}".encode() + b"x" * int(self.path.strip("/") or 0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def serves(gate: str, port_file: str) -> str:
    """Serve the page until there is a file. Each host writes down its port: emulated hosts share this machine's."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Path(f"{port_file}-{kinetic.current().host_index}").write_text(str(server.server_port))
    while not Path(gate).exists():
        time.sleep(0.02)
    return "gone through"


def debugged(x: int) -> int:
    print("under the debugger", flush=True)
    return x + 1


def has_a_profile() -> None:
    """Train long enough for `profile=4` to have been captured."""
    import jax
    import jax.numpy as jnp

    import kinetic_orchestration as kinetic

    update = jax.jit(lambda w: w - 0.1 * jnp.tanh(w @ w))
    with kinetic.Training(every=None) as training:
        w, done = training.restore(jnp.ones((8, 8)))
        for number in range(done, 12):
            w = update(w)
            training.step(number + 1, w)
