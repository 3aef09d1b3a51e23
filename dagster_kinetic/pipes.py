"""`PipesKineticClient`: a command or a function on a slice that uses Dagster Pipes, with plain `dagster-pipes` there.

The context is sent in a variable. Messages come back in the job's own log, as lines of its stderr: live, on every
backend, without a bucket or a reader of their own. Host 0's messages count for the job, as its value does.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic._compat import PipesExecutionError, TreatAsResourceParam
from dagster_kinetic.resource.kinetic_resource import Accelerator, KineticResource, options_of
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.program.trainers.chosen import variables

if TYPE_CHECKING:
    from kinetic_orchestration.api.handle import JobHandle
    from kinetic_orchestration.jobs.following.logs import Emit
    from kinetic_orchestration.plan.values import Event, Output
    from kinetic_orchestration.program.trainers.parsers import Parser

STDERR = {"stdio": "stderr"}  # the setting of dagster-pipes' default message writer
VERSION = "__dagster_pipes_version"
LARGEST_VARIABLE = 120 << 10  # Linux takes 128 KiB in one

Message = dict[str, Any]


class PipesKineticMessageReader(dg.PipesMessageReader):
    """Messages in the log of the job that a `PipesKineticClient` runs. It has nothing to read by itself."""

    @property
    def expected_writer_count(self) -> int:
        return 1  # host 0

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        del handler  # the follower of the job's log passes it the messages
        yield STDERR

    def no_messages_debug_text(self) -> str:
        return (
            "Messages are read from the job's stderr. Call open_dagster_pipes() without a message_writer on the "
            "hosts, and do not redirect the program's stderr to a file."
        )


class PipesKineticClient(dg.PipesClient, TreatAsResourceParam):
    """Runs commands and functions on accelerators in a Pipes session.

    `kinetic`: the settings that all its jobs share; without any, they run on this machine. `options`: those of
    `kinetic_orchestration.run`, for every job that does not override them.
    """

    def __init__(
        self,
        kinetic: KineticResource | None = None,
        *,
        accelerator: Accelerator | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        context_injector: dg.PipesContextInjector | None = None,
        message_reader: dg.PipesMessageReader | None = None,
        forward_termination: bool = True,
        timeout: float | str | None = None,
        **options: Any,
    ) -> None:
        if accelerator is not None or options:
            options_of(accelerator or "cpu", options)
        self._kinetic = kinetic or KineticResource()
        self._accelerator = accelerator
        self._env = dict(env or {})
        self._cwd = cwd
        self._context_injector = context_injector
        self._message_reader = message_reader
        self._forward_termination = forward_termination
        self._timeout = timeout
        self._options = options

    @functools.cached_property
    def _resource(self) -> KineticResource:
        """The settings as they are here, where environment variables can be read."""
        with self._kinetic.process_config_and_initialize_cm() as made:  # it closes what Dagster opens for this
            assert isinstance(made, KineticResource)
            return made.overridden_by(self._kinetic._launch).of_only_call(self._kinetic._only_call_of)

    def run(
        self,
        *,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        extras: Mapping[str, Any] | None = None,
        command: str | Sequence[str] | None = None,
        function: Callable[..., Any] | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        accelerator: Accelerator | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | str | None = None,
        key: str | None = None,
        metrics: str | Parser | type | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> dg.PipesClientCompletedInvocation:
        """Run the command, or the function, on every host of the slice, and wait for it.

        Logs of all hosts appear as they are written. What host 0 reports is the result: materializations, checks and
        custom messages, those of the attempt that came to an end. `timeout` bounds all attempts together. `metrics` and
        `metrics_file` say how the numbers of a command are read, as in `kinetic_orchestration.command`.
        """
        from dagster_kinetic.step.step import run_in_step
        from dagster_kinetic.step.summary import metadata_of

        if (command is None) == (function is None):
            raise UsageError("say what to run: either command=['python', 'train.py'] or function=train")
        given = within(
            {**self._options, **options}, self._timeout if timeout is None else timeout, self._resource.limits.total
        )
        accelerator = accelerator or self._accelerator
        if function is not None and (metrics is not None or metrics_file is not None):
            raise UsageError("metrics= reads the numbers of a command: a function calls current().log_metrics()")
        if function is not None:
            spec = self._resource._spec(function, (args, kwargs), accelerator, context, given)
        else:
            spec = self._command(command or (), accelerator, cwd or self._cwd, context, given)
            spec = replace(spec, env=variables(metrics, metrics_file, spec.cwd))
        call = self._resource._call(context, key)
        reader = self._message_reader or PipesKineticMessageReader()
        handles: list[JobHandle[Any]] = []
        with dg.open_pipes_session(
            context=_compat.op_context(context),  # Dagster asks it for what an asset's own warns of
            context_injector=self._context_injector or dg.PipesEnvContextInjector(),
            message_reader=reader,
            extras=dict(extras) if extras is not None else None,
        ) as session:
            bootstrap = _fitting(session.get_bootstrap_env_vars())
            spec = replace(spec, env={**spec.env, **self._env, **(env or {}), **bootstrap})
            messages = Messages(session.message_handler, context)
            try:
                run_in_step(
                    spec, context, f"pipes{call}", shown=call, through=messages.taken_from, made=handles.append,
                    forward_termination=self._forward_termination,
                )  # fmt: skip
            except Exception as error:
                messages.deliver()
                failure = _failure(error)
                raise failure from (error if failure is not error else error.__cause__)
            messages.deliver()
            messages.check()
        return dg.PipesClientCompletedInvocation(session, metadata=metadata_of(handles[0], call))

    def _command(
        self,
        command: str | Sequence[str],
        accelerator: Accelerator | None,
        cwd: str | os.PathLike[str] | None,
        context: _compat.Context,
        given: Mapping[str, Any],
    ) -> JobSpec:
        options_of(accelerator, given)
        if accelerator is not None:
            given = {**given, "accelerator": accelerator}
        argv = tuple(shlex.split(command) if isinstance(command, str) else command)
        if not argv or not all(isinstance(part, str) for part in argv):
            raise UsageError(f"a command is a list of strings, such as ['python', 'train.py'], not {command!r}")
        folder = os.path.abspath(os.fspath(cwd or os.getcwd()))
        if not os.path.isdir(folder):
            raise UsageError(f"the command's folder {folder} does not exist")
        given, name = {"partition_key": _compat.partition_of(context), **given}, os.path.basename(argv[0])
        options, defaults = self._resource._options(given, context, name), self._resource._defaults(given, context)
        return self._resource._job(JobSpec(name, options, argv=argv, cwd=folder, defaults=defaults))


class PipesJobFailed(dg.Failure, PipesExecutionError):
    """The job of a Pipes session ended without its program coming to a good end."""


def _failure(error: Exception) -> Exception:
    """One that both Dagster's UI and those who catch what Pipes clients raise can read."""
    if isinstance(error, UsageError | dg.RetryRequested):
        return error
    if isinstance(error, dg.Failure):
        return PipesJobFailed(readable(error.description or ""), error.metadata, error.allow_retries)
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    job = getattr(error, "job_id", "")
    return PipesJobFailed(readable(text), {"kinetic/job_id": job} if job else None)


def within(options: Mapping[str, Any], timeout: float | str | None, resources: str | None = None) -> dict[str, Any]:
    """The options with a bound for all attempts together: the smallest, where they or the resource have their own."""
    limits = options.get("limits", Limits())
    if timeout is None or not isinstance(limits, Limits):
        return dict(options)
    own = seconds("limits.total", resources if limits.total is None else limits.total)
    bound = seconds("timeout, which is limits.total,", timeout)
    return {**options, "limits": replace(limits, total=min(own, bound) if own and bound else timeout)}


def _fitting(variables: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in variables.items():
        if len(value) > LARGEST_VARIABLE:
            raise UsageError(
                f"the Pipes context takes {len(value) >> 10} KiB in {name}, and a process takes no variable of more "
                f"than {LARGEST_VARIABLE >> 10}: give large extras as a file in the store, and its address in extras"
            )
    return variables


class Messages:
    """The messages in one job's lines: logs are passed on immediately, reports when its attempt has succeeded.

    Every follower reads a log from its first line on, so a step that was restarted after a crash reads all of them
    again.
    """

    def __init__(self, handler: dg.PipesMessageHandler, context: _compat.Context) -> None:
        self._handler = handler
        self._context = context
        self._opened = False
        self._attempt = 0
        self._reported: list[Message] = []
        self._closed: list[Message] = []
        self._others = 0
        self._wrong: list[str] = []

    def taken_from(self, emit: Emit) -> Emit:
        from kinetic_orchestration.plan.values import Output

        def take(event: Event) -> None:
            if not isinstance(event, Output):
                emit(event)
                return
            if event.attempt != self._attempt:  # all that the one before has reported is void
                self._attempt, self._reported, self._closed, self._others, self._wrong = event.attempt, [], [], 0, []
            rest = self._without(event) if VERSION.encode() in event.text else event.text
            if rest:
                emit(event if rest is event.text else event._replace(text=rest))

        return take

    def deliver(self) -> None:
        """The reports of the last attempt, in their order."""
        for message in [*self._reported, *self._closed]:
            self._handle(message)
        self._reported, self._closed = [], []
        if self._others:
            self._context.log.info(
                f"{self._others} reports of other hosts than host 0 are left out: host 0 speaks for the job, so a "
                "program that runs on every host may report on each of them"
            )

    def check(self) -> None:
        """Raise if a job succeeded but its reports are incomplete."""
        if self._wrong:
            raise PipesJobFailed(
                f"{len(self._wrong)} of the program's Pipes messages could not be read, so its results are not whole: "
                f"{self._wrong[0]}. Something else may have written to stderr in the middle of it: keep other "
                "processes of the program from writing there, or report less in one message"
            )

    def _without(self, event: Output) -> bytes:
        """The text of an event without the messages in it, which are handled."""
        kept: list[str] = []
        for line in event.text.decode("utf-8", "backslashreplace").splitlines(keepends=True):
            texts = []
            for part in parts(line):
                if isinstance(part, str):
                    texts.append(part)
                    if VERSION in part and not _is_about_logs(part):
                        self._wrong.append(f"host {event.host} wrote {part.strip()[:200]!r}")
                else:
                    self._hear(part, event.host)
            if len(texts) == 1 or any(text.strip() for text in texts):
                kept.append("".join(texts))
        return "".join(kept).encode("utf-8", "replace")

    def _hear(self, message: Message, host: int) -> None:
        method = message.get("method")
        if method == "log":
            self._handle(_of_host(message, host))
        elif host:
            self._others += method not in ("opened", "closed")
        elif method == "opened":
            if not self._opened:
                self._opened = True
                self._handle(message)
        elif method == "closed":
            self._closed = [message]
        else:
            self._reported.append(message)

    def _handle(self, message: Message) -> None:
        if message.get("method") == "closed" and _compat.is_direct(self._context):
            message = {**message, "params": None}  # an exception there is an event of a run, and there is none
        try:
            self._handler.handle_message(message)  # type: ignore[arg-type]
        except Exception as error:
            if _compat.is_direct(self._context):
                raise
            self._handler.report_pipes_framework_exception(type(self).__name__, sys.exc_info())
            self._wrong.append(f"{message.get('method')}: {error}")


def parts(line: str) -> Iterator[str | Message]:
    """The messages in a line, and what stands before, between and after them.

    A progress bar leaves its line open, and another thread may write before the message's line has ended.
    """
    at = 0
    for start in sorted({max(line.find("{"), 0), *(found.start() for found in _BEGINS.finditer(line))}):
        if start < at:
            continue
        try:
            message, end = _DECODER.raw_decode(line, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict) and VERSION in message:
            yield line[at:start]
            yield message
            at = end
    yield line[at:]


def readable(text: str) -> str:
    """A log's last lines in readable form."""
    lines = [list(parts(line)) for line in text.splitlines(keepends=True)]
    return "".join("".join(each for each in line if isinstance(each, str)) for line in lines if _tells(line))


def _tells(line: Sequence[str | Message]) -> bool:
    return len(line) == 1 or any(isinstance(part, str) and part.strip() for part in line)


_BEGINS = re.compile(r'\{\s*"' + VERSION)
_DECODER = json.JSONDecoder()


def _is_about_logs(line: str) -> bool:
    """Return True if a torn message may be lost: its text is in the log all the same."""
    return re.search(r'"method": ?"(log|opened|closed)"', line) is not None


def _of_host(message: Message, host: int) -> Message:
    params = message.get("params")
    if not host or not isinstance(params, dict):
        return message
    return {**message, "params": {**params, "message": f"[host {host}] {params.get('message')}"}}
