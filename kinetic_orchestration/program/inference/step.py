"""The function that each host of a batch inference runs, and what it is given."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.program.context import HostContext, current
from kinetic_orchestration.program.inference import models, output, report, rows, work
from kinetic_orchestration.program.inference.client import Answer, Client, Suspect
from kinetic_orchestration.program.inference.output import Output, Plan
from kinetic_orchestration.program.inference.report import BatchReport, Counts
from kinetic_orchestration.program.inference.rows import Row
from kinetic_orchestration.program.inference.servers import engines, process

FOLDER = "batch"  # below a job's output_dir
TELL = 2.0  # seconds between two reports of progress
LOOK = (0.05, 2.0)  # of host 0 at what the others have done: the first pause, and the longest


@dataclass(frozen=True, slots=True)
class Settings:
    """Orders of a host, besides the model and the prompts."""

    engine: engines.Engine | None  # None: of `ByFunction`, which has it
    output: str = ""  # "": below the job's output_dir
    parameters: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 64
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    patience: float | None = None
    on_bad_row: str = "keep"
    retry_failed: bool = False
    devices: int = 1  # of a host, for the model
    per_chip: int = 1  # devices of a chip


def answer_all(model: str | None, prompts: Any, settings: Settings) -> BatchReport | None:
    """Answer prompts together with the other hosts of the job. Returns the report of all of them on host 0, and None
    on the others.

    Args:
        model: A directory of this host, or `hf://owner/name`; None for an engine that needs none.
        prompts: A list, a file of JSON lines, or `{"files": [...]}`.
        settings: The rest.

    Raises:
        UsageError: The model is none, a prompt is bad and the batch stops for it, or the answers would be lost.
        EngineNotStarted: The server did not become healthy.
        EngineLost: The server died too often.
        Superseded: Another batch has taken the output over.
    """
    host = current()
    if isinstance(settings.engine, engines.Server) and model is not None and not model.startswith(models.HUB):
        models.check(model)
    found = rows.check(rows.found_in(prompts), settings.on_bad_row)
    identity = models.identity(model) if model is not None else ""
    by = f"{identity} {engines.answers_by(settings.engine, settings.engine_options, models.identity)}"
    all_rows = rows.keyed(found, by, settings.parameters)
    address = settings.output or f"{host.output_dir}/{FOLDER}"
    output.check_reach(address, host)
    place = Output(address, *output.attempt_of(host), host.host_index, host.host_count)
    try:
        return _Batch(host, place, model, all_rows, settings).run()
    finally:
        place.close()


class ByFunction:
    """`answer_all` with an engine that is a function, whose project travels with the job: packaging asks `__wrapped__`
    where the code is."""

    def __init__(self, engine: Callable[..., Any]) -> None:
        self.engine = engine
        while isinstance(engine, functools.partial):
            engine = engine.func
        self.__wrapped__ = engine

    def __call__(self, model: str | None, prompts: Any, settings: Settings) -> BatchReport | None:
        return answer_all(model, prompts, replace(settings, engine=self.engine))


class _Batch:
    """One host's share of one attempt."""

    def __init__(
        self, host: HostContext, place: Output, model: str | None, all_rows: Sequence[Row], settings: Settings
    ) -> None:
        self.host, self.place, self.model, self.rows, self.settings = host, place, model, all_rows, settings
        keys = [row.key for row in all_rows]
        self.keys = frozenset(keys)
        self.plan: Plan = place.plan(rows.batch_of(all_rows), keys, settings.retry_failed)
        self.counts = Counts()
        self.lanes = work.Lanes()
        self.start_seconds = 0.0
        self.restarts = 0
        self._told, self._done = 0.0, -1

    def run(self) -> BatchReport | None:
        if len(self.place.whole(self.plan)) < self.plan.parts():
            known = work.lines_by_key(self.place.in_journals(self.settings.retry_failed), self.keys)
            feed = work.Feed(self.place, self.plan, self.rows, known, self.counts, self.lanes.failed)
            try:
                self._answer(feed)
            finally:
                feed.close()
            self.lanes.check()
        self._tell(last=True)
        if failed := self.counts.failed:
            of = f"{failed} of {self.counts.answered + failed} prompts here have a failure in place of an answer"
            self._say(f"{of}. One of them: {self.counts.failure}")
        self.place.tell(self.plan, self.counts.told(start_seconds=self.start_seconds, restarts=self.restarts))
        return self._together() if self.host.host_index == 0 else None

    def _answer(self, feed: work.Feed) -> None:
        engine = self.settings.engine
        assert engine is not None
        if isinstance(engine, engines.Server):
            self._by_server(engine, feed)
        else:
            self._by_function(engine, feed)

    def _by_server(self, engine: engines.Server, feed: work.Feed) -> None:
        first = feed.take(1)  # no server is started for what needs none
        if not first:
            return
        server = self._server(engine)
        client = Client(server, engine.answer_within, self.lanes.over)
        try:
            server.healthy()
            self.start_seconds = server.started_seconds
            self.counts.begin()

            def lane() -> None:
                try:
                    while (taken := _popped(first) or feed.take(1)) and not self.lanes.over():
                        ((part, row),) = taken
                        try:
                            feed.answered(part, row, client.ask(row))
                        except Suspect:
                            feed.suspect(part, row)
                finally:
                    client.close()

            def alone() -> None:
                try:
                    for part, row in feed.suspects():
                        feed.answered(part, row, client.ask(row, alone=True))
                finally:
                    client.close()

            def beside() -> None:
                server.end_if_deaf()
                self._tell()

            self.lanes.run(lane, self.settings.concurrency, beside, TELL)
            self.lanes.run(alone, 1, beside, TELL)
        finally:
            self.restarts = server.restarts
            server.stop()

    def _server(self, engine: engines.Server) -> process.Running:
        settings = self.settings
        return process.of_host(
            engine, settings.engine_options, self.model or "", devices=settings.devices, per_chip=settings.per_chip,
            hosts=self.host.host_count, patience=settings.patience, keep_log=self._keep_log, tell=self._say,
        )  # fmt: skip

    def _by_function(self, engine: Callable[..., Any], feed: work.Feed) -> None:
        begun = time.monotonic()
        ask = engine(self.model)
        if not callable(ask):
            raise UsageError(
                f"the engine {getattr(engine, '__name__', engine)!r} returned a {type(ask).__name__}: it takes the "
                "model's path and returns a function, which takes a list of rows and returns an answer for each"
            )
        self.start_seconds = time.monotonic() - begun
        self.counts.begin()
        while taken := feed.take(self.settings.concurrency):
            for (part, row), answer in zip(taken, _answers(ask, [row for _, row in taken]), strict=True):
                feed.answered(part, row, answer)
            self.lanes.check()
            self._tell()

    def _keep_log(self, path: str, number: int) -> str:
        name = f"{output.LOGS}{self.place.writer}-{number}.log"
        try:
            self.place.records.upload(name, path)
        except OSError:  # a message is worth more than the log
            return path
        return f"{self.place.place.rstrip('/')}/{name}"

    def _say(self, text: str) -> None:
        print(f"kinetic: {text}", file=sys.stderr, flush=True)
        self.host.progress(max(0, self._done), unit="row")  # a start is no stall

    def _tell(self, last: bool = False) -> None:
        """Report progress and metrics, at most once in a while."""
        now = time.monotonic()
        if not last and now - self._told < TELL:
            return
        counts, seconds = self.counts, max(1e-6, now - self.counts.begun)
        done = counts.answered + counts.failed + counts.reused
        if done == self._done and not last:
            return  # a server that answers nothing is a stall
        self._told, self._done = now, done
        total = len(self.plan.chosen()) if self.host.host_count == 1 else 0
        self.host.progress(done, total, unit="row", rate=(counts.answered + counts.failed) / seconds)
        self.host.log_metrics(
            answered=counts.answered, failed=counts.failed, reused=counts.reused,
            tokens_in_per_second=counts.tokens_in / seconds, tokens_out_per_second=counts.tokens_out / seconds,
        )  # fmt: skip

    # ---- host 0 ---------------------------------------------------------------------------------------------------

    def _together(self) -> BatchReport:
        """Wait until all hosts have told what they did. A host that ends without that ends the attempt."""
        pause, longest = LOOK
        while self.place.count_told(self.plan) < self.host.host_count:
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
        heard = self.place.heard(self.plan)
        wrote = {part: counts for told in heard.values() for part, *counts in told["wrote"]}
        failed = sum(counts[1] for counts in wrote.values())
        others: dict[str, bool] = {}
        for answer in self.place.in_parts(self.plan.name(part) for part in wrote):
            if answer["key"] in self.keys:
                others[answer["key"]] = "error" in answer
        retried = self._retried(wrote) if others else frozenset()
        failed += sum(bad for key, bad in others.items() if key not in retried)
        with contextlib.suppress(OSError):
            self.place.clean(self.plan, self.keys)
        return self._report(heard, failed)

    def _retried(self, wrote: Mapping[int, Any]) -> frozenset[str]:
        """Return the keys of the parts that this attempt has written, whose answers replace those of earlier plans."""
        chosen, size = self.plan.chosen(), self.plan.size
        return frozenset(self.rows[place].key for part in wrote for place in chosen[part * size : (part + 1) * size])

    def _report(self, heard: Mapping[int, Mapping[str, Any]], failed: int) -> BatchReport:
        engine = self.settings.engine
        name = engine.name if isinstance(engine, engines.Server) else getattr(engine, "__qualname__", repr(engine))
        return report.report(
            heard, rows=len(self.rows), failed=failed, engine=name, place=self.place.place,
            usd_per_hour=self.host._usd_per_hour or None, emulated=self.host._emulated,
        )  # fmt: skip


def _popped(first: list[Any]) -> list[Any]:
    try:
        return [first.pop()]
    except IndexError:
        return []


def _answers(ask: Callable[..., Any], some: Sequence[Row]) -> list[Answer]:
    """Ask a function for several rows; if it fails, for each alone, so that a bad row is one row."""
    begun = time.monotonic()
    given = [{**row.given, "parameters": dict(row.parameters), "custom_id": row.custom_id} for row in some]
    try:
        told = list(ask(given))
    except Exception as error:
        if len(some) > 1:
            return [answer for row in some for answer in _answers(ask, [row])]
        return [Answer(error=_raised(error))]
    if len(told) != len(some):
        raise UsageError(f"the engine returned {len(told)} answers to {len(some)} rows: it returns one for each")
    return [_answer_of(one, time.monotonic() - begun) for one in told]


def _answer_of(told: Any, seconds: float) -> Answer:
    if isinstance(told, str):
        return Answer(told, seconds=seconds)
    if isinstance(told, Exception):
        return Answer(error=_raised(told))
    if isinstance(told, Mapping) and isinstance(told.get("text"), str):
        tokens = int(told.get("tokens_in") or 0), int(told.get("tokens_out") or 0)
        return Answer(told["text"], tokens_in=tokens[0], tokens_out=tokens[1], seconds=seconds)
    raise UsageError(
        f"the engine answered a row with a {type(told).__name__}: an answer is a text, a dict with text (and "
        "tokens_in, tokens_out), or an exception for a row that has none"
    )


def _raised(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]
