"""The commands about jobs: which there are, how one stands, what it wrote and returned, and its end."""

from __future__ import annotations

import contextlib
import sys
import traceback
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kinetic_orchestration import __version__
from kinetic_orchestration.api.handle import (
    UNREADABLE,
    JobHandle,
    UnreadableJob,
    all_jobs,
    find_job,
    live_jobs,
    show_cause,
    status_and_peek,
)
from kinetic_orchestration.api.printer import Printer, pace
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
from kinetic_orchestration.errors import Corrupt, JobError, KineticError, UsageError
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.logs import Emit
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware.cost import Estimate, times, went_to
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.plan.values import Attempt, Event, Outcome, Output, Peek
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.report import frames, job_report
from kinetic_orchestration.protocol.system import escaping

PAGE = 100  # jobs that --all lists at once, as text


def jobs(arguments: Namespace) -> int:
    found = []
    place = {"store": arguments.store, "deployment": arguments.deployment}
    for handle, peek in _all_jobs(arguments) if arguments.all else live_jobs(note, **place):
        try:
            found.append((handle, peek or handle.peek(), handle.cost()))
        except UNREADABLE as error:  # one damaged record must not hide all other jobs
            note(f"{handle.job_id} is left out: {error}")
    if arguments.json:
        show_json([_record(handle, peek, cost) for handle, peek, cost in found])
    elif not found:
        note("no jobs here" if arguments.all else "no job is under way; --all lists those that ended, too")
    else:
        origins = list(dict.fromkeys(name for handle, *_ in found for name in _origin(handle)))
        rows = [
            (
                handle.job_id, handle.func_name, *(handle.origin.get(name, "") for name in origins),
                handle.accelerator, peek.status.value, str(peek.attempts),
                age(handle.age()), "$0.00" if cost.uncharged else dollars(cost.usd), _where(handle, peek),
            )
            for handle, peek, cost in found
        ]  # fmt: skip
        columns = ("id", "name", *origins, "accelerator", "state", "attempts", "age", "cost", "where")
        show_table(columns, rows, right=("attempts", "age", "cost"))
        sys.stdout.flush()
        if notes := dict.fromkeys(cost.note for _, _, cost in found if cost.usd and not cost.uncharged):
            note(f"cost: estimates by {'; '.join(notes)}")
        for handle, peek, _ in found:
            if peek.message:
                on = "" if peek.phase == "waiting" else f"; `status {handle.job_id}` moves it on"
                note(f"{handle.job_id}: {peek.message}{on}")
    return codes.OK


def _all_jobs(arguments: Namespace) -> Iterator[tuple[JobHandle[Any], Peek | None]]:
    """Yield a page of all jobs, and print how to get the next one."""
    most = arguments.limit or (None if arguments.json else PAGE)
    after = _find(arguments, arguments.after).job_id if arguments.after else ""
    newest = None if most is None else most + 1
    page = all_jobs(newest, after, store=arguments.store, deployment=arguments.deployment)
    yield from ((handle, None) for handle in page[:most])
    if most is not None and len(page) > most:
        note(f"these are {most} of more: {command('jobs', '--all', '--after', page[most - 1].job_id)}")


def status(arguments: Namespace) -> int:
    try:
        handle = _find(arguments, arguments.job)
        state, peek = status_and_peek(handle)
    except Corrupt as error:
        return _show_unread(_unread(arguments, arguments.job, error), arguments)
    picture, profile = handle.picture_url(), handle.profile_dir()
    if arguments.json:
        history = [_attempt(attempt) for attempt in handle.history()]
        outputs = {"output_dir": handle.output_dir, "picture": picture or None, "profile": profile or None}
        chose = {"chosen": told} if (told := handle.chosen) else {}
        show_json({**_record(handle, peek), **chose, **outputs, "history": history})
        return codes.of_status(state.value)
    cost = handle.cost()
    show_fields(
        [
            ("job", f"{handle.job_id} ({handle.func_name})"),
            *_origin(handle).items(),
            ("accelerator", f"{handle.accelerator} on {handle.backend}, {handle.crew}"),
            ("where", handle.where),
            *([("chosen", chosen)] if (chosen := handle.chosen) else []),
            ("state", _state(peek)),
            *_place(peek),
            ("created", f"{handle.created_at}, {age(handle.age())} ago{_by(handle)}"),
            *_devices(peek),
            ("output", handle.output_dir),
            *([("curves", picture)] if picture else []),
            *([("profile", f"{profile}; to open it: {names.xprof(profile)}")] if profile else []),
            ("time", times(cost)),
            *([("went to", told)] if (told := went_to(cost)) else []),
            ("cost", str(cost).removeprefix("cost: ")),
        ]
    )
    began = [attempt for attempt in handle.history(all=False) if attempt.began is not None]
    if any(attempt.ended is not None for attempt in began):
        rows = [_attempt_row(number, attempt) for number, attempt in enumerate(began, 1)]
        print()
        show_table(("attempt", "lasted", "ended", "why"), rows, right=("attempt",))
    if peek.outcome is not None and peek.status.value != "SUCCEEDED":
        print(f"{escaping.log(_failure(peek.outcome.verdict))}\nThe log: {command('logs', handle.job_id)}")
    return codes.of_status(state.value)


def logs(arguments: Namespace) -> int:
    handle = _find(arguments, arguments.job)
    if arguments.host is not None and arguments.host >= handle.hosts:
        raise UsageError(f"job {handle.job_id} has {handle.crew}, counted from 0; there is no {arguments.host}")
    sink = _Sink(arguments.tail)
    tell: Callable[[Event], object]
    if arguments.json:
        tell = sink.event
    else:
        # The command line already names the host of these lines.
        apart = 1 if arguments.host is not None else handle.hosts
        tell = Printer(
            apart, sink.text, job_id=handle.job_id, changes=sys.stderr.write, full=arguments.full, of=handle.hosts
        )

    told = False

    def emit(event: Event) -> None:
        nonlocal told
        if arguments.host is None or getattr(event, "host", arguments.host) == arguments.host:
            told = True
            tell(event)

    code = codes.OK
    if arguments.follow:
        outcome = handle.follow(emit, on_step=lambda _: sink.open())
        assert outcome is not None
        code = codes.of_status(outcome.status.value)
    else:
        for event in handle.events():
            emit(event)
        outcome = handle.peek().outcome if arguments.json else None
    if arguments.json:
        _emit_traceback(outcome, emit)
    sink.open()
    if not arguments.json:
        show_cause(handle)  # last, after the output of the other hosts
    if not told and not arguments.json:
        with contextlib.suppress(KineticError):  # a query of the job's state reports it
            note(f"{handle.job_id} has no output: {_standing(handle.peek())}")
    return code


def _standing(peek: Peek) -> str:
    """The state of a job in one line, with the reason that the backend or its verdict gives."""
    said = peek.said if peek.outcome is None else peek.outcome.verdict.reason
    return ": ".join(filter(None, (_state(peek), " ".join(said.split()))))


def _emit_traceback(outcome: Outcome | None, emit: Emit) -> None:
    """Report the traceback of the job's function to a program that reads the log, since it is not part of the
    output."""
    failure = None if outcome is None else outcome.verdict.failure
    if outcome is None or failure is None or not failure.traceback.strip():
        return
    text = failure.traceback.rstrip().encode("utf-8", "backslashreplace") + b"\n"
    verdict = outcome.verdict
    emit(Output(verdict.host or 0, frames.ERR, verdict.time, text, outcome.attempt, 0, 0))


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
        sys.stderr.write(f"kinetic: error: {escaping.log(_error_text(error, handle))}\n")
        return codes.FAILED
    if arguments.json:
        show_json(_answer(handle, value))
    else:
        print(escaping.text(repr(value)))
    return codes.OK


def cancel(arguments: Namespace) -> int:
    timeout = settings.seconds("--timeout", arguments.timeout) or 0.0
    ended = []
    handles = []
    for text in arguments.job:
        try:
            handles.append(_find(arguments, text))
        except Corrupt as error:
            unread = _unread(arguments, text, error)
            ended.append(unread.cancel(arguments.reason or "cancelled by its user", max(timeout, 1.0)))
            note(f"{unread.job_id}: {error}")
            if arguments.json:
                show_json_line({"job_id": unread.job_id, "state": "DAMAGED", "ended": ended[-1]})
            else:
                print(f"{unread.job_id}  {'CANCELLED' if ended[-1] else 'is asked to end'}")
    for handle in handles:  # all are asked before the first is waited for
        with contextlib.suppress(*UNREADABLE):  # reported below
            handle.cancel(arguments.reason, cleanup_timeout=0)
    for handle in handles:
        if not handle.peek().status.final:
            with working(f"cancelling {handle.job_id}"):
                handle.cancel(arguments.reason, cleanup_timeout=timeout)
        state = handle.status()
        ended.append(state.final)
        if not arguments.json:
            print(f"{handle.job_id}  {state.value if state.final else 'is asked to end'}")
    if arguments.json:
        show_json([_record(handle, handle.peek()) for handle in handles])
    return codes.OK if all(ended) else codes.RUNNING


def _unread(arguments: Namespace, text: str, error: Corrupt) -> UnreadableJob:
    return UnreadableJob(text, str(error), store=arguments.store, deployment=arguments.deployment)


def _show_unread(job: UnreadableJob, arguments: Namespace) -> int:
    """Show the state of a job whose spec cannot be read."""
    told, left = job.attempts(), job.leftovers()
    if arguments.json:
        show_json(
            {"job_id": job.job_id, "state": "DAMAGED", "message": job.why, "attempts": dict(told), "places": left}
        )
    else:
        show_fields(
            [
                ("job", job.job_id),
                ("state", f"damaged: {job.why}"),
                *[("attempt", f"{number}: {ended}") for number, ended in told],
                *[("place", place) for place in left],
                ("to end it", command("cancel", job.job_id)),
            ]
        )
    return codes.ENVIRONMENT


def _find(arguments: Namespace, text: str) -> JobHandle[Any]:
    return find_job(text, store=arguments.store, deployment=arguments.deployment)


def _wait(handle: JobHandle[Any], timeout: float | None) -> bool:
    """Wait until the job ends; False if time was up first."""
    if timeout == 0:
        return False
    about = f"{handle.job_id} {handle.func_name} on {handle.accelerator}"
    with working(f"waiting for {about}") as progress:

        def tell(follower: Follower) -> None:
            cursor, seen = follower.cursor, follower.seen
            again = f", attempt {cursor.attempt}" if cursor.attempt > 1 else ""
            beat = next(iter(seen.beats), None) if seen is not None else None
            if cursor.phase and follower.outcome is None:
                done = _done(beat.done, beat.total, beat.unit, beat.rate) if beat is not None else ""
                progress(f"{about}: {cursor.phase}{again}", detail=done)

        return handle.follow(timeout=timeout, on_step=tell) is not None


def _error_text(error: Exception, handle: JobHandle[Any]) -> str:
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
            self._held.extend(partial(_write, line) for line in text.splitlines(keepends=True))

    def event(self, event: Event) -> None:
        if self._held is None:
            show_json_line(_event(event))
            sys.stdout.flush()
        else:
            self._held.append(partial(show_json_line, _event(event)))

    def open(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for show in held:
                show()
            sys.stdout.flush()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


_STREAMS = {frames.OUT: "stdout", frames.ERR: "stderr"}


def _event(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": type(event).__name__.lower(), "attempt": event.attempt}
    if not isinstance(event, Output):
        return fields | event._asdict()
    text = event.text.decode("utf-8", "backslashreplace")
    return fields | {
        "host": event.host, "time": event.time, "stream": _STREAMS.get(event.kind, "note"), "text": text,
    }  # fmt: skip


def _by(handle: JobHandle[Any]) -> str:
    """Say which release submitted a job, if that is another one."""
    return "" if handle.release == __version__ else f", by release {handle.release or '0.1'}"


def _record(handle: JobHandle[Any], peek: Peek, cost: Estimate | None = None) -> dict[str, Any]:
    cost = handle.cost() if cost is None else cost
    return {
        "job_id": handle.job_id,
        "name": handle.func_name,
        "origin": {name.replace(" ", "_"): said for name, said in handle.origin.items()},
        "accelerator": handle.accelerator,
        "backend": handle.backend,
        "where": handle.where,
        "emulated": handle.emulated,
        "hosts": handle.hosts,
        "state": peek.status.value,
        "phase": peek.phase,
        "message": peek.message,
        "progress": {"done": peek.done, "total": peek.total, "unit": peek.unit, "rate": peek.rate},
        "devices": {str(host): sample for host, sample in peek.devices},
        "attempts": peek.attempts,
        "zone": peek.zone,
        "resource": peek.resource,
        "created": handle.created_at,
        "release": handle.release,
        "age_seconds": round(handle.age(), 3),
        "held_seconds": round(cost.ready_seconds, 3),
        "cost": {
            "usd": 0.0 if cost.uncharged else cost.usd,
            "chip_hours": cost.chip_hours,
            "uncharged": cost.uncharged,
            "prices": cost.note,
            "races": {"seconds": round(cost.beside_seconds, 3), "usd": 0.0 if cost.uncharged else cost.beside_usd},
        },
    }


def _origin(handle: JobHandle[Any]) -> dict[str, str]:
    """Return the dag, task, run, … or the asset, partition and run: what a column is worth."""
    return {name: said for name, said in handle.origin.items() if name != "orchestrator"}


def _where(handle: JobHandle[Any], peek: Peek) -> str:
    return f"{handle.where}, {peek.zone}" if peek.zone else handle.where


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


def _attempt_row(number: int, attempt: Attempt) -> tuple[str, str, str, str]:
    verdict = attempt.verdict
    if attempt.ended is None or attempt.began is None or verdict is None:
        return str(number), "", "not yet", ""
    where = f" on host {verdict.host}" if verdict.host is not None else ""
    why = f"{verdict.cause}{where}: {verdict.reason.strip()}" if verdict.cause else ""
    return str(number), age(attempt.ended - attempt.began), verdict.kind, (why.splitlines() or [""])[0]


def _failure(verdict: wire.Verdict) -> str:
    """The details of a failure that do not fit in the attempt's row of the table."""
    failure = verdict.failure or wire.Failure()
    if failure.traceback:
        return f"\n{failure.traceback.rstrip()}\n"
    said = f"{failure.type}: {failure.message}" if failure.type else verdict.reason.strip()
    told = f"\n{said}\n" if failure.type or "\n" in said else ""
    return told + (f"\nIts last lines:\n{failure.log_tail.rstrip()}\n" if failure.log_tail.strip() else "")


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
    parts = [phase, _done(peek.done, peek.total, peek.unit, peek.rate), peek.message]
    attempt = [f"attempt {peek.attempts}"] if peek.attempts > 1 else []
    more = ", ".join([*attempt, *(part for part in parts if part)])
    return f"{peek.status.value} ({more})" if more else peek.status.value


def _place(peek: Peek) -> list[tuple[str, str]]:
    """The location of its slice or of the request for it, by the name that Google's own tools use."""
    refused = peek.attempt - peek.attempts
    times = f", after {refused} {'request' if refused == 1 else 'requests'} that got no slice" if refused else ""
    said = f": {peek.said}" if peek.said and peek.outcome is None else ""
    return [("place", f"{peek.zone}, {peek.resource}{times}{said}")] if peek.zone else []


MOST_HOSTS = 8  # with a line each


def _devices(peek: Peek) -> list[tuple[str, str]]:
    """The current device samples; many hosts share one line, with means and maxima."""
    if peek.outcome is not None or not peek.devices:
        return []
    if len(peek.devices) > MOST_HOSTS:
        all_hosts = job_report.together(dict(peek.devices))
        said = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in all_hosts.items())
        return [("devices", f"{len(peek.devices)} hosts: {said}")]
    alone = len(peek.devices) == 1
    return [
        ("" if row else "devices", f"{'' if alone else f'host {host}: '}{job_report.brief(sample)}")
        for row, (host, sample) in enumerate(peek.devices)
    ]


def _done(done: float, total: float, unit: str, rate: float) -> str:
    if not done and not total:
        return ""
    return f"{done:g}{f'/{total:g}' if total else ''} {unit}".rstrip() + pace(rate, unit)
