"""The process in which the user's code runs.

It starts before anything is decided, so that its start costs nothing later, and waits for one line of JSON from
its agent; then it becomes the command, or calls the function and leaves the outcome in a file.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import functools
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

REPORT_PATIENCE = 120.0  # for a disk that is full when the function has returned

# All that is known here by name alone: a module that no program has imported raised nothing, and has nothing to end.
OURS = "kinetic_orchestration"
ROOMS = (  # whose errors are ours
    "kinetic_orchestration.host.",
    "kinetic_orchestration.protocol.",
    "kinetic_orchestration.program.",
)
SHARED = ("host", "plan", "program", "protocol")  # folders that an agent has whole
ROOT = "kinetic_orchestration.errors.KineticError"
USAGE = (
    "kinetic_orchestration.errors.UsageError",
    "kinetic_orchestration.errors.CheckpointDiffers",
    "kinetic_orchestration.errors.DataChanged",
    "kinetic_orchestration.errors.EngineNotStarted",
    "kinetic_orchestration.protocol.content.payload.OtherPython",
)
NO_ACCELERATOR = (
    "kinetic_orchestration.host.process.frameworks.join.NoAccelerator"  # of the requirements that the user gave
)
CALLERS = (
    "kinetic_orchestration.host.process.child",
    "kinetic_orchestration.protocol.content.payload",
    "kinetic_orchestration.program.client_only",
)  # of the program, or its pickles
RECORD = "kinetic_orchestration.program.context.HostContext._record"  # writes a program's reports to its agent
FINISH = (
    "kinetic_orchestration.program.checkpoints.background.finish",
    "kinetic_orchestration.program.checkpoints.tier.mirror.close",
)
LEFT = {finish.rpartition(".")[0]: name for finish, name in zip(FINISH, ("_under_way", "_mirrors"), strict=True)}


def main() -> None:
    control = int(sys.argv[1])
    warm = sys.argv[2] == "function"
    for number in (signal.SIGTERM, signal.SIGCHLD):  # the submitter may have ignored them
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if warm:
        faulthandler.enable()
    from kinetic_orchestration.protocol.system import processes

    processes.die_with_parent()
    if warm:
        _import_ahead()
    with open(control, encoding="utf-8") as pipe:
        line = pipe.readline()
    go = json.loads(line) if line.endswith("\n") else {}
    if os.getppid() != go.get("agent"):  # it may have died before this process asked to die with it
        sys.exit("the agent of this host is gone")
    for name in go["drop"]:
        os.environ.pop(name, None)
    os.environ.update(go["env"])
    os.chdir(go["cwd"])
    if go["argv"]:
        _become(go["argv"])
    # Apart from stderr, so that a stack dump is neither mixed into the program's lines nor taken for its progress.
    stacks = os.open(_stacks(go), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the handler after Python's finalization
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=False)
    sys.path[:] = [*go["path"], *sys.path, go["site"]]
    sys.meta_path.append(Installed())
    sys.argv = [go["name"]]
    try:
        code = _call(go)
    except BaseException as error:  # without a report other hosts must not wait for it
        unreported = isinstance(error, _Unreported)
        try:
            _flush()
            sys.excepthook(*sys.exc_info())
            _finish_checkpoints()
        finally:
            _flush()
            os._exit(74 if unreported else 1)  # attempt_rules.UNREPORTED
    sys.exit(code)


def _import_ahead() -> None:
    """Import what each function needs while its agent has yet to say which: on a machine whose Python is another one
    than the submitter's, all of it is compiled first.
    """
    from kinetic_orchestration.host.process.frameworks import join  # noqa: F401
    from kinetic_orchestration.protocol import wire  # noqa: F401
    from kinetic_orchestration.protocol.content import payload  # noqa: F401
    from kinetic_orchestration.protocol.records import base  # noqa: F401


class Installed:
    """Finds what the agent's package lacks in this Python's installed one, so that a function can submit jobs.

    That one has to be of the same code: their modules call each other.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = sys.modules[OURS]
        if path is not package.__path__:
            return None
        from importlib.machinery import PathFinder

        for whole in (os.path.join(folder, OURS) for folder in sys.path):
            if os.path.isdir(os.path.join(whole, "jobs")):
                if whole not in path and _is_same_code(package, whole):
                    path.append(whole)
                break
        return PathFinder.find_spec(name, path, target)


def _is_same_code(package: ModuleType, whole: str) -> bool:
    """Return True if a folder has the same bytes in each module that the package shares with it."""
    loader: Any = package.__loader__  # of a folder, or of a zip
    shared = [os.path.join(whole, name) for name in ("__init__.py", "errors.py")]
    for room in SHARED:
        for folder, _, files in os.walk(os.path.join(whole, room)):
            shared += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    try:
        for path in shared:
            with open(path, "rb") as file:
                if file.read() != loader.get_data(package.__path__[0] + path[len(whole) :]):
                    return False
    except OSError:  # one of them has no such module
        return False
    return True


def _become(argv: list[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _call(go: dict[str, Any]) -> int:
    from kinetic_orchestration.host.process.frameworks import join
    from kinetic_orchestration.protocol import wire
    from kinetic_orchestration.protocol.content import payload
    from kinetic_orchestration.protocol.records.base import RecordsError

    for stream in (sys.stdout, sys.stderr):
        # Not write_through, which PYTHONUNBUFFERED sets: it makes several writes of one print.
        stream.reconfigure(  # type: ignore[union-attr]
            encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=False
        )
    join.install()
    outcome = go["outcome"]
    atexit.register(_sent, outcome, os.getpid())  # the first, which Python calls last
    join.waits_path = f"{outcome}.waits"
    try:
        if go["debug"]:
            from kinetic_orchestration.host.process import debugger

            debugger.wait(go["debug"], outcome, "" if go["home"] else os.environ["KINETIC_JOB_ID"])
        try:
            function, args, kwargs = payload.load(go["payload"], go["digest"], go["data"], home=go["home"])
        except payload.Tampered as error:
            told = f"{error}. It was removed from the store: submit the job again"
            return _report(go, {"kind": "tampered", "cause": wire.CONFIGURATION, "message": told}, 1)
        value = function(*args, **kwargs)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(_awaited(value))
    except SystemExit as error:
        if error.code in (None, 0):
            value = None
        else:
            ended = error
            record = _once_there_is_room(go, lambda: payload.dump_exception(ended, outcome, ours=__name__))
            return _report(go, record, _code(error))
    except BaseException as error:
        from kinetic_orchestration.host.prepare import missing_imports

        missing_imports.explain(error, go.get("beside", {}))
        failure = error
        record = _once_there_is_room(go, lambda: payload.dump_exception(failure, outcome, ours=__name__))
        if isinstance(error, RecordsError) and error.errno == errno.EIO:
            record["cause"] = wire.INFRASTRUCTURE  # a store that failed within `Training`, and not the function
        elif cause := _cause(error):
            record["cause"] = cause
        return _report(go, record, 1)
    if not go["value"]:
        return _report(go, {"kind": "value", "digest": "", "size": 0}, 0)
    return _report(go, _once_there_is_room(go, lambda: payload.dump_value(value, outcome)), 0)


def _cause(error: BaseException) -> str:
    """Return the cause of an error that is not the program's own: this package raised it, or met it on a disk or in a
    store while it worked for the program. An error that the program raises is its own, whatever its class.
    """
    from kinetic_orchestration.protocol import wire

    classes = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    where, function = _raised_in(error)
    if where.partition(".")[0] != OURS:
        return ""
    if NO_ACCELERATOR in classes:
        return ""
    if any(name.startswith(ROOMS) for name in classes) or ROOT in classes:
        return wire.CONFIGURATION if any(name in USAGE for name in classes) else wire.INFRASTRUCTURE
    met = isinstance(error, (OSError, LookupError, AttributeError, json.JSONDecodeError))
    if met and where.startswith(ROOMS) and where not in CALLERS:
        return wire.INFRASTRUCTURE
    module, _, name = RECORD.rsplit(".", 2)
    return wire.INFRASTRUCTURE if met and (where, function) == (module, name) else ""


def _raised_in(error: BaseException) -> tuple[str, str]:
    """Return the module and the function of the innermost frame outside the standard library."""
    found, trace = ("", ""), error.__traceback__
    while trace is not None:
        where = str(trace.tb_frame.f_globals.get("__name__", ""))
        if where.partition(".")[0] not in sys.stdlib_module_names:
            found = where, trace.tb_frame.f_code.co_name
        trace = trace.tb_next
    return found


class _Unreported(Exception):
    """The outcome of the program could not be written within the time allowed."""


def _once_there_is_room(go: dict[str, Any], write: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Write the program's outcome, which exists in memory only. While the disk is full, wait and report that."""
    from kinetic_orchestration.protocol import wire
    from kinetic_orchestration.protocol.content import payload
    from kinetic_orchestration.protocol.records import base

    pause, told = 0.05, False
    while True:
        try:
            record = write()
            number = record.get("errno", 0) if record["kind"] == "unwritable" else 0
        except OSError as error:
            record, number = {}, error.errno or 0
            if number not in payload.PASSING:
                raise
        if number not in payload.PASSING:
            if told:
                _tell_host(go, full=False)
            return record
        why = base.reason_of(OSError(number, os.strerror(number)))
        if time.monotonic() > _give_up_at():
            _tell_host(go, full=False)
            _say(f"what this program came to was not written within {REPORT_PATIENCE:g} s ({why}), and is lost")
            if not record:
                raise _Unreported(why)
            return {**record, "cause": wire.INFRASTRUCTURE}
        if not told:
            told = True
            _say(
                f"what this program came to cannot be written: {why}. It is kept in memory, "
                f"and written once there is room, for {REPORT_PATIENCE:g} s at most"
            )
        _tell_host(go, full=number != errno.EIO)
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _tell_host(go: dict[str, Any], *, full: bool) -> None:
    with contextlib.suppress(Exception):
        from kinetic_orchestration.protocol.system.lock import mark_full

        mark_full(_stacks(go), full)


def _stacks(go: dict[str, Any]) -> str:
    return f"{go['stacks']}/{os.getpid()}"


@functools.cache
def _give_up_at() -> float:
    """Return the deadline by the monotonic clock, counted from the first wait: the value and its report share it."""
    return time.monotonic() + REPORT_PATIENCE


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        os.write(2, f"kinetic: {text}\n".encode("utf-8", "replace"))


def _finish_checkpoints() -> None:
    """Wait for checkpoints that a loop, ended by an exception, left unfinished: a program that reports a failure is
    ended immediately.
    """
    for finish in FINISH:
        module, _, name = finish.rpartition(".")
        if (there := sys.modules.get(module)) is not None:
            getattr(there, name)()


def _report(go: dict[str, Any], record: dict[str, Any], code: int) -> int:
    """Leave the record beside the outcome's bytes, whole or not at all; the agent waits for its name."""
    from kinetic_orchestration.host.process.frameworks import join

    _flush()
    outcome = go["outcome"]
    if record["kind"] in ("unpicklable", "unwritable"):
        code = 1
    if code:
        _finish_checkpoints()
    unsent = any(getattr(sys.modules.get(module), name, None) for module, name in LEFT.items())
    text = json.dumps({**record, "code": code, "unsent": unsent}).encode("utf-8", "backslashreplace")

    def leave() -> dict[str, Any]:
        with open(outcome + ".tmp", "wb") as file:
            file.write(text)
        os.replace(outcome + ".tmp", outcome + ".json")
        return record if record["kind"] != "unwritable" else {"kind": "left"}

    _once_there_is_room(go, leave)
    if code:
        join.waits_path = ""
    return code


def _sent(outcome: str, process: int) -> None:
    """Leave a mark that all of the program's own last acts are done, of which one sends its files."""
    with contextlib.suppress(OSError):
        if process == os.getpid():  # and not a worker that it forked
            open(f"{outcome}.sent", "w", encoding="utf-8").close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed it, or put something else in its place
            stream.flush()


def _code(error: SystemExit) -> int:
    if isinstance(error.code, int):
        return error.code & 0xFF or 1
    sys.stderr.write(f"{error.code}\n")
    return 1


async def _awaited(value: Any) -> Any:
    return await value
