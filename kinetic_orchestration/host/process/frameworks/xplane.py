"""A trace of torch in the format that XProf reads: XSpace, a message of protocol buffers, written by hand.

Fields as in xla/tsl/profiler/protobuf/xplane.proto. Pure, but for the process that does it beside a training.
"""

from __future__ import annotations

import json
import os
import sys

from kinetic_orchestration.protocol.system import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

HOST, DEVICE = "/host:CPU", "/device:GPU:"
OF_DEVICES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "privateuse1_runtime"})


def main() -> None:
    """Convert TRACE to MADE. It takes several times the trace's size in memory, so the kernel should kill it before a
    training.
    """
    kernel.be_killed_first()
    os.nice(10)
    convert(*sys.argv[1:])


def convert(trace: str, made: str) -> None:
    with open(trace, encoding="utf-8", errors="replace") as source, open(made, "wb") as target:
        target.write(from_chrome(json.load(source)))


def from_chrome(trace: Mapping[str, Any]) -> bytes:
    """Convert a Chrome trace: a line for each thread of the host, and a line for each stream of each device."""
    named = {(e.get("pid"), e.get("tid")): e["args"]["name"] for e in trace["traceEvents"] if _names_a_thread(e)}
    planes: dict[str, dict[Any, list[Mapping[str, Any]]]] = {HOST: {}}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            device = event.get("args", {}).get("device", 0) if event.get("cat") in OF_DEVICES else None
            plane = planes.setdefault(HOST if device is None else f"{DEVICE}{device}", {})
            plane.setdefault((event["pid"], event["tid"]), []).append(event)
    return b"".join(
        _message(1, _plane(number, name, lines, named)) for number, (name, lines) in enumerate(planes.items(), 1)
    )


def _names_a_thread(event: Mapping[str, Any]) -> bool:
    return event.get("ph") == "M" and event.get("name") == "thread_name"


def _plane(number: int, name: str, lines: Mapping[Any, list[Mapping[str, Any]]], named: Mapping[Any, Any]) -> bytes:
    kinds: dict[str, int] = {}
    made = [
        _line(at, str(named.get(place, place[1])), events, kinds) for at, (place, events) in enumerate(lines.items(), 1)
    ]
    known = (
        _message(4, _number(1, kind) + _message(2, _number(1, kind) + _message(2, text.encode())))
        for text, kind in kinds.items()
    )
    return b"".join((_number(1, number), _message(2, name.encode()), *(_message(3, line) for line in made), *known))


def _line(number: int, name: str, events: Iterable[Mapping[str, Any]], kinds: dict[str, int]) -> bytes:
    """Return a line of events. Trace times are fractional microseconds; a line's are relative to its start."""
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))
    begin = int(ordered[0]["ts"] * 1000)
    written = (
        _number(1, kinds.setdefault(str(event["name"]), len(kinds) + 1))
        + _number(2, max(0, round(event["ts"] * 1_000_000) - begin * 1000))
        + _number(3, max(0, round(event.get("dur", 0) * 1_000_000)))
        for event in ordered
    )
    return b"".join(
        (_number(1, number), _message(2, name.encode()), _number(3, begin), *(_message(4, event) for event in written))
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
