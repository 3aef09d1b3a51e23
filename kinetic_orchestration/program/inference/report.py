"""Counts rows and tokens, and makes rates and latencies of them: of each host, and of all of them together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from kinetic_orchestration.program.inference.client import Answer

SAMPLES = 20_000  # latencies that a host tells of


class Latency(TypedDict):
    """Seconds of a request, of those that were answered."""

    p50: float
    p90: float
    p99: float


class BatchReport(TypedDict):
    """The value of a batch inference: plain JSON.

    Attributes:
        rows: Rows of the batch.
        answered: Those that have an answer in the output, whichever attempt or job has asked them.
        failed: Those that have a failure there.
        reused: Those that this attempt did not ask, since an earlier one had.
        tokens_in: Tokens of the prompts that this attempt asked, as the server counts them.
        tokens_out: Tokens of their answers.
        tokens_in_per_second: The same a second, of all hosts, without the start.
        tokens_out_per_second: The same.
        rows_per_second: The same.
        latency: Percentiles of the seconds of one request.
        start_seconds: Seconds until the last host's engine was ready.
        seconds: Seconds after that.
        restarts: Servers that died and were started again.
        hosts: Hosts of the attempt.
        usd: Cost of this attempt's hosts for start and work, at the dearest price that may be asked for the choice of
            hardware by which they were made; None if no price is known.
        usd_per_million_tokens: The same for a million tokens, in and out together.
        emulated: The hardware is emulated: rates and costs say nothing of the real one.
        engine: Name of the engine.
        output: Where the results are.
        parts: Where the answers are.
    """

    rows: int
    answered: int
    failed: int
    reused: int
    tokens_in: int
    tokens_out: int
    tokens_in_per_second: float
    tokens_out_per_second: float
    rows_per_second: float
    latency: Latency | None
    start_seconds: float
    seconds: float
    restarts: int
    hosts: int
    usd: float | None
    usd_per_million_tokens: float | None
    emulated: bool
    engine: str
    output: str
    parts: str


class Counts:
    """Counts what this host has done in this attempt. `add` is for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begun = time.monotonic()
        self.answered = self.failed = self.reused = self.tokens_in = self.tokens_out = 0
        self.latencies: list[float] = []
        self.failure = ""  # the first one
        self.wrote_rows: dict[int, tuple[int, int]] = {}  # by part: rows, and those of them that failed

    def begin(self) -> None:
        """The engine is ready: rates count from here."""
        self.begun = time.monotonic()

    def add(self, answer: Answer) -> None:
        with self._lock:
            if answer.error:
                self.failed += 1
                self.failure = self.failure or answer.error
                return
            self.answered += 1
            self.tokens_in += answer.tokens_in
            self.tokens_out += answer.tokens_out
            self.latencies.append(answer.seconds)
            if len(self.latencies) > 2 * SAMPLES:
                self.latencies = self.latencies[::2]

    def wrote(self, part: int, rows: int, failed: int) -> None:
        """A part was written, by this host."""
        with self._lock:
            self.wrote_rows[part] = rows, failed

    def told(self, **more: Any) -> dict[str, Any]:
        """Return it for host 0."""
        with self._lock:
            return {
                "answered": self.answered, "failed": self.failed, "reused": self.reused, "tokens_in": self.tokens_in,
                "tokens_out": self.tokens_out, "latencies": [round(one, 4) for one in self.latencies],
                "wrote": [[part, *counts] for part, counts in self.wrote_rows.items()],
                "seconds": time.monotonic() - self.begun, **more,
            }  # fmt: skip


def percentiles(latencies: Sequence[float]) -> Latency | None:
    """Return the latencies that so many of a hundred do not exceed (nearest rank); None of none."""
    if not latencies:
        return None
    ranked = sorted(latencies)

    def rank(share: float) -> float:
        return round(ranked[max(0, math.ceil(share * len(ranked)) - 1)], 4)

    return {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99)}


def report(
    told: Mapping[int, Mapping[str, Any]],
    *,
    rows: int,
    failed: int,
    engine: str,
    place: str,
    usd_per_hour: float | None,
    emulated: bool = False,
) -> BatchReport:
    """Return the report of all hosts.

    Args:
        told: What each host told.
        rows: Rows of the batch.
        failed: Those of them that have a failure as their answer.
        engine: Name of the engine.
        place: The output.
        usd_per_hour: Price of all hosts together; None if it is not known.
        emulated: The hardware is emulated.
    """
    hosts = list(told.values())
    latencies = [float(one) for host in hosts for one in host["latencies"]]
    seconds = max(float(host["seconds"]) for host in hosts)
    tokens_in, tokens_out = (
        sum(int(host["tokens_in"]) for host in hosts),
        sum(int(host["tokens_out"]) for host in hosts),
    )
    asked = sum(int(host["answered"]) + int(host["failed"]) for host in hosts)
    start = max(float(host["start_seconds"]) for host in hosts)
    usd = None if usd_per_hour is None else usd_per_hour * (seconds + start) / 3600
    tokens = tokens_in + tokens_out
    return {
        "rows": rows, "answered": rows - failed, "failed": failed, "reused": max(0, rows - asked),
        "tokens_in": tokens_in, "tokens_out": tokens_out,
        "tokens_in_per_second": round(tokens_in / seconds, 3) if seconds else 0.0,
        "tokens_out_per_second": round(tokens_out / seconds, 3) if seconds else 0.0,
        "rows_per_second": round(asked / seconds, 3) if seconds else 0.0,
        "latency": percentiles(latencies),
        "start_seconds": round(start, 3), "seconds": round(seconds, 3),
        "restarts": sum(int(host["restarts"]) for host in hosts), "hosts": len(hosts),
        "usd": usd, "usd_per_million_tokens": usd / tokens * 1e6 if usd is not None and tokens else None,
        "emulated": emulated, "engine": engine, "output": place, "parts": f"{place.rstrip('/')}/parts",
    }  # fmt: skip
