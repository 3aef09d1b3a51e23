"""Derives the ids of a job's traces from its own.

Whoever sees a part of it end, on a host or as a client, names the same spans, and what the program traces itself lies
below its attempt.

Standard library only. The format is that of W3C's Trace Context.
"""

from __future__ import annotations

import hashlib
import re

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def trace_of(job_id: str, attempt: int) -> int:
    """Return the id of the trace of one attempt; a job that lasts for days has one for each."""
    return _number(16, job_id, str(attempt))


def span_of(job_id: str, attempt: int, name: str = "") -> int:
    """Return the id of an attempt's span, or of that of one of its phases."""
    return _number(8, job_id, str(attempt), name)


def traceparent(job_id: str, attempt: int, name: str = "") -> str:
    """Return what a process below that span is given as TRACEPARENT."""
    return f"00-{trace_of(job_id, attempt):032x}-{span_of(job_id, attempt, name):016x}-01"


def parsed(text: str) -> tuple[int, int] | None:
    """Return trace and span of a TRACEPARENT; None if it is none."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or not (int(found[1], 16) and int(found[2], 16)):
        return None
    return int(found[1], 16), int(found[2], 16)


def _number(size: int, *parts: str) -> int:
    text = "\n".join(("kinetic", *parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:size], "big") or 1
