"""The commands about jobs: which there are, how one stands, what it wrote and returned, and its end."""

from __future__ import annotations

import sys
import traceback
from argparse import Namespace
from collections import deque
from collections.abc import Callable
from typing import Any

from kinetic_orchestration import settings
from kinetic_orchestration.agent import frames, wire
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import (
    age,
    dollars,
    note,
    plain,
    show_fields,
    show_json,
    show_json_line,
    show_table,
    working,
)  # fmt: skip
from kinetic_orchestration.errors import JobError, KineticError, StoreError, UsageError
from kinetic_orchestration.follow import Follower, Printer
from kinetic_orchestration.job import JobHandle, all_jobs, find_job
from kinetic_orchestration.values import Attempt, Change, Event, Metrics, Output, Peek, Progress


def jobs(arguments: Namespace) -> int:
    found = []
    for handle in all_jobs(store=arguments.store, deployment=arguments.deployment):
        try:
            peek = handle.peek()
        except StoreError as error:  # one damaged record must not hide all other jobs
            note(f"{handle.job_id} is left out: {error}")
            continue
        if arguments.all or not peek.status.final:
            found.append((handle, peek))
    if arguments.json:
        show_json([_record(handle, peek) for handle, peek in found])
    elif not found:
        note("no jobs here" if arguments.all else "no job is under way; --all lists those that ended, too")
    else:
        rows = [
            (
                handle.job_id, handle.func_name, handle.accelerator, peek.status.value, str(peek.attempt),
                age(handle.age()), _cost(handle),
            )
            for handle, peek in found
        ]  # fmt: skip
        columns = ("id", "name", "accelerator", "state", "attempts", "age", "cost")
        show_table(columns, rows, right=("attempts", "age", "cost"))
        sys.stdout.flush()
        for handle, peek in found:
            if peek.message:
                note(f"{handle.job_id}: {peek.message}; `status {handle.job_id}` moves it on")
    return codes.OK


def status(arguments: Namespace) -> int:
    handle = _find(arguments, arguments.job)
    state = handle.status()
    peek = handle.peek()
    history = handle.history()
    if arguments.json:
        show_json({**_record(handle, peek), "output_dir": handle.output_dir, "history": list(map(_attempt, history))})
        return codes.of_status(state.value)
    show_fields(
        [
            ("job", f"{handle.job_id} ({handle.func_name})"),
            ("accelerator", f"{handle.accelerator} on {handle.backend}, {_hosts(handle.hosts)}"),
            ("state", _state(peek)),
            ("created", f"{handle.created_at}, {age(handle.age())} ago"),
            ("output", handle.output_dir),
            ("cost", str(handle.cost()).removeprefix("cost: ")),
        ]
    )
    if began := [attempt for attempt in history if attempt.began is not None]:
        print()
        show_table(
            ("attempt", "lasted", "ended", "why"), [_attempt_row(attempt) for attempt in began], right=("attempt",)
        )
    if peek.outcome is not None and peek.outcome.verdict.failure is not None:
        failure = peek.outcome.verdict.failure
        print(f"\n{failure.traceback.rstrip() or f'{failure.type}: {failure.message}'}")
    if peek.outcome is not None and peek.status.value != "SUCCEEDED":
        print(f"\nThe log: kinetic-orchestration logs {handle.job_id}")
    return codes.of_status(state.value)


def logs(arguments: Namespace) -> int:
    handle = _find(arguments, arguments.job)
    if arguments.host is not None and arguments.host >= handle.hosts:
        raise UsageError(
            f"job {handle.job_id} has {_hosts(handle.hosts)}, counted from 0; there is no {arguments.host}"
        )
    sink = _Sink(arguments.tail)
    tell: Callable[[Event], object]
    if arguments.json:
        tell = sink.event
    else:
        # One host's lines are told apart by the command line that asked for them.
        tell = Printer(1 if arguments.host is not None else handle.hosts, sink.text, changes=sys.stderr.write)

    def emit(event: Event) -> None:
        if arguments.host is None or getattr(event, "host", arguments.host) == arguments.host:
            tell(event)

    if not arguments.follow:
        for event in handle.events():
            emit(event)
        sink.open()
        return codes.OK
    outcome = handle.follow(emit, on_step=lambda _: sink.open())
    assert outcome is not None
    return codes.of_status(outcome.status.value)


def result(arguments: Namespace) -> int:
    timeout = settings.seconds("--timeout", arguments.timeout)
    handle = _find(arguments, arguments.job)
    if not handle.status().final and not _wait(handle, timeout):
        note(f"job {handle.job_id} has not ended; it goes on")
        if arguments.json:
            show_json(_answer(handle))
        return codes.RUNNING
    try:
        value = handle.result()
    except Exception as error:
        if arguments.debug or (isinstance(error, KineticError) and not isinstance(error, JobError)):
            raise
        if arguments.json:
            show_json(_answer(handle, error=error))
        sys.stdout.flush()
        sys.stderr.write(f"kinetic: error: {_told(error, handle)}\n")
        return codes.FAILED
    if arguments.json:
        show_json(_answer(handle, value))
    else:
        print(repr(value))
    return codes.OK


def cancel(arguments: Namespace) -> int:
    timeout = settings.seconds("--timeout", arguments.timeout) or 0.0
    ended = []
    for handle in [_find(arguments, text) for text in arguments.job]:
        if not handle.peek().status.final:
            with working(f"cancelling {handle.job_id}"):
                handle.cancel(arguments.reason, cleanup_timeout=timeout)
        state = handle.status()
        ended.append(state.final)
        if not arguments.json:
            print(f"{handle.job_id}  {state.value if state.final else 'is asked to end'}")
    if arguments.json:
        show_json([_record(handle, handle.peek()) for handle in (_find(arguments, text) for text in arguments.job)])
    return codes.OK if all(ended) else codes.RUNNING


def _find(arguments: Namespace, text: str) -> JobHandle[Any]:
    return find_job(text, store=arguments.store, deployment=arguments.deployment)


def _wait(handle: JobHandle[Any], timeout: float | None) -> bool:
    """Until the job ends; False if time was up first."""
    if timeout == 0:
        return False
    about = f"{handle.job_id} {handle.func_name} on {handle.accelerator}"
    with working(f"waiting for {about}") as say:

        def tell(follower: Follower) -> None:
            cursor, seen = follower.cursor, follower.seen
            again = f", attempt {cursor.attempt}" if cursor.attempt > 1 else ""
            beat = next(iter(seen.beats), None) if seen is not None else None
            if cursor.phase:
                done = _done(beat.done, beat.total, beat.unit) if beat is not None else ""
                say(f"{about}: {cursor.phase}{again}", detail=done)

        return handle.follow(timeout=timeout, on_step=tell) is not None


def _told(error: Exception, handle: JobHandle[Any]) -> str:
    if isinstance(error, KineticError):
        return str(error)
    # Its notes are the traceback of the host, and where the log is.
    return f"job {handle.job_id} raised " + "".join(traceback.format_exception_only(error)).rstrip()


class _Sink:
    """Prints what comes; with `tail`, nothing until `open`, and then the last of it first."""

    def __init__(self, tail: int | None) -> None:
        self._held: deque[Callable[[], object]] | None = None if tail is None else deque(maxlen=tail)

    def text(self, text: str) -> None:
        if self._held is None:
            _write(text)
        else:
            self._held.extend(_later(_write, line) for line in text.splitlines(keepends=True))

    def event(self, event: Event) -> None:
        if self._held is None:
            show_json_line(_event(event))
            sys.stdout.flush()
        else:
            self._held.append(_later(show_json_line, _event(event)))

    def open(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for show in held:
                show()
            sys.stdout.flush()


def _later(show: Callable[[Any], object], what: Any) -> Callable[[], object]:
    return lambda: show(what)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


_STREAMS = {frames.OUT: "stdout", frames.ERR: "stderr"}


def _event(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": type(event).__name__.lower(), "attempt": event.attempt}
    if isinstance(event, Change):
        return {**fields, "phase": event.phase, "message": event.message}
    fields |= {"host": event.host, "time": event.time}
    if isinstance(event, Output):
        stream = _STREAMS.get(event.kind, "note")
        return {**fields, "stream": stream, "text": event.text.decode("utf-8", "backslashreplace")}
    if isinstance(event, Metrics):
        return {**fields, "step": event.step, "values": event.values}
    assert isinstance(event, Progress)
    return {**fields, "done": event.done, "total": event.total, "unit": event.unit}


def _record(handle: JobHandle[Any], peek: Peek) -> dict[str, Any]:
    cost = handle.cost()
    return {
        "job_id": handle.job_id,
        "name": handle.func_name,
        "accelerator": handle.accelerator,
        "backend": handle.backend,
        "hosts": handle.hosts,
        "state": peek.status.value,
        "phase": peek.phase,
        "message": peek.message,
        "progress": {"done": peek.done, "total": peek.total, "unit": peek.unit},
        "attempts": peek.attempt,
        "created": handle.created_at,
        "age_seconds": round(handle.age(), 3),
        "held_seconds": round(handle.seconds(), 3),
        "cost": {"usd": 0.0 if cost.emulated else cost.usd, "chip_hours": cost.chip_hours, "emulated": cost.emulated},
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    verdict = attempt.verdict
    return {
        "attempt": attempt.number,
        "began": attempt.began,
        "ended": attempt.ended,
        "verdict": verdict.kind if verdict is not None else None,
        "cause": verdict.cause if verdict is not None else None,
        "host": verdict.host if verdict is not None else None,
        "reason": verdict.reason if verdict is not None else None,
    }


def _attempt_row(attempt: Attempt) -> tuple[str, str, str, str]:
    verdict = attempt.verdict
    if attempt.ended is None or attempt.began is None or verdict is None:
        return str(attempt.number), "", "", ""
    where = f" on host {verdict.host}" if verdict.host is not None else ""
    why = f"{verdict.cause}{where}: {verdict.reason.strip()}" if verdict.cause else ""
    return str(attempt.number), age(attempt.ended - attempt.began), verdict.kind, (why.splitlines() or [""])[0]


def _answer(handle: JobHandle[Any], value: Any = None, *, error: Exception | None = None) -> dict[str, Any]:
    ended = handle.status()
    told = None
    if error is not None:
        told = {"type": type(error).__name__, "message": str(error), "notes": getattr(error, "__notes__", [])}
    return {
        "job_id": handle.job_id,
        "state": ended.value,
        "value": plain(value),
        "repr": repr(value) if ended.value == "SUCCEEDED" else None,
        "error": told,
    }


def _state(peek: Peek) -> str:
    if peek.outcome is not None:
        attempts = f" in {peek.outcome.attempts} attempts" if peek.outcome.attempts > 1 else ""
        cause = f" ({peek.outcome.cause})" if peek.outcome.cause not in ("", wire.CANCELLED) else ""
        return f"{peek.status.value}{cause}{attempts}"
    phase = "" if peek.phase.upper() == peek.status.value else peek.phase
    parts = [phase, _done(peek.done, peek.total, peek.unit), peek.message]
    attempt = [f"attempt {peek.attempt}"] if peek.attempt > 1 else []
    more = ", ".join([*attempt, *(part for part in parts if part)])
    return f"{peek.status.value} ({more})" if more else peek.status.value


def _done(done: float, total: float, unit: str) -> str:
    if not done and not total:
        return ""
    return f"{done:g}{f'/{total:g}' if total else ''} {unit}".rstrip()


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _cost(handle: JobHandle[Any]) -> str:
    cost = handle.cost()
    return "$0.00" if cost.emulated else dollars(cost.usd)
