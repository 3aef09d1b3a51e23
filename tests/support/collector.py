"""A collector of telemetry: it takes what OTLP and OpenLineage send over HTTP, or takes connections and answers nothing."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Keeps what has arrived."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: list[Any] = []
        self.events: list[dict[str, Any]] = []
        self.asked = 0

    def take(self, path: str, body: bytes) -> None:
        self.asked += 1
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(texts(each.resource.attributes))
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for of in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in of.scope_metrics for metric in scope.metrics]
        else:
            self.events.append(json.loads(body))


def texts(attributes: Any) -> dict[str, Any]:
    """Return attributes of OTLP as a dictionary."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting(*, answers: bool = True) -> Iterator[Collector]:
    """Serve on a free port of this machine; without `answers`, requests are taken and wait until the block ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            if not answers:
                over.wait(120)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()
