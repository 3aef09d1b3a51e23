"""The metric service of a TPU's runtime, as libtpu serves it on a TPU VM while a program has the chips.

Only what is asked of it: `tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric`, whose messages are in
tpu_info/proto/tpu_metric_service.proto of github.com/AI-Hypercomputer/cloud-accelerator-diagnostics, at its fixed port.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

PORT = 8431
METRICS: dict[str, list[int | float]] = {
    "tpu.runtime.hbm.memory.total.bytes": [16 << 30] * 4,
    "tpu.runtime.hbm.memory.usage.bytes": [1 << 30, 2 << 30, 3 << 30, 4 << 30],
    "tpu.runtime.tensorcore.dutycycle.percent": [10.0, 20.0, 30.0, 40.0],
}


@contextmanager
def serving() -> Iterator[None]:
    handler = grpc.unary_unary_rpc_method_handler(_answer)
    service = "tpu.monitoring.runtime.RuntimeMetricService"
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"GetRuntimeMetric": handler}),))
    assert server.add_secure_port(f"127.0.0.1:{PORT}", grpc.local_server_credentials()) == PORT
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def _answer(request: bytes, _: Any) -> bytes:
    """MetricRequest.metric_name is its field 1; MetricResponse has a TPUMetric, and that a Metric for each chip."""
    name = request[2 : 2 + request[1]].decode()
    metrics = b"".join(_message(3, _metric(chip, value)) for chip, value in enumerate(METRICS.get(name, [])))
    return _message(1, _message(1, name.encode()) + metrics)


def _metric(chip: int, value: float) -> bytes:
    attribute = _message(1, b"device-id") + _message(2, b"\x18" + _varint(chip))  # int_attr
    gauge = b"\x09" + struct.pack("<d", value) if isinstance(value, float) else b"\x10" + _varint(value)
    return _message(1, attribute) + _message(3, gauge)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
