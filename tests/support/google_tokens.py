"""Google's token server on loopback, and the key file of a service account that is known there."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


class Tokens:
    """Gives an access token for a signed assertion, or what else its answer says."""

    def __init__(self, token: str) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.answer: tuple[int, dict[str, Any]] = 200, {"access_token": token, "expires_in": 3600}
        tokens = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                tokens.asked.append(parse_qs(self.rfile.read(length).decode()))
                status, body = tokens.answer
                encoded = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/token"

    def write_key(self, path: Path) -> None:
        """Write the key file of an account for which tokens are asked here."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        known = {
            "type": "service_account",
            "client_email": "robot@ours.iam.gserviceaccount.com",
            "private_key": pem,
            "token_uri": self.url,
            "project_id": "ours",
        }
        path.write_text(json.dumps(known), encoding="utf-8")


@contextmanager
def token_server(token: str) -> Iterator[Tokens]:
    """Answer within the block."""
    tokens = Tokens(token)
    thread = threading.Thread(target=tokens.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield tokens
    finally:
        tokens.server.shutdown()
        thread.join()
        tokens.server.server_close()
