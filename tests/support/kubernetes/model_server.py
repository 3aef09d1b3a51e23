"""A small server with the API of OpenAI, as the container of a pod: `python -m … MODEL --served-model-name NAME …`.

It takes the words that `vllm serve` takes, and a few of its own: `--says WORD` is behind each answer, `--ends CODE` ends
it at once, `--after SECONDS` is how long it loads. It is deterministic, and listens on the loopback address of its pod.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MOST = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    given: argparse.Namespace

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": self.given.served_model_name, "object": "model"}]})
        else:
            self._answer(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(min(_MOST, int(self.headers["Content-Length"]))))
        if asked["model"] != self.given.served_model_name:
            self._answer(404, {"error": {"message": f"The model `{asked['model']}` does not exist."}})
            return
        words = [*asked["prompt"].split()[::-1], self.given.says]
        text = " " + " ".join(words[-asked["max_tokens"] :])
        self._answer(200, {"object": "text_completion", "choices": [{"index": 0, "text": text}]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    reads = argparse.ArgumentParser()
    reads.add_argument("model")
    reads.add_argument("--served-model-name", required=True)
    reads.add_argument("--port", type=int, required=True)
    reads.add_argument("--says", default="it")
    reads.add_argument("--ends", type=int)
    reads.add_argument("--after", type=float, default=0.0)
    _Handler.given, _ = reads.parse_known_args()
    if _Handler.given.ends is not None:
        print("RuntimeError: the engine has no room for its weights", file=sys.stderr)
        sys.exit(_Handler.given.ends)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which a first process would ignore
    time.sleep(_Handler.given.after)
    pod = os.environ["VLLM_HOST_IP"]
    ThreadingHTTPServer((f"127.{pod.partition('.')[2]}", _Handler.given.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
