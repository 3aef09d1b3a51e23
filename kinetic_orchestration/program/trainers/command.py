"""Runs a command on a host, and reads its numbers on the way.

The command's output is passed on unchanged, each byte before it is looked at. Signals go to the command, which has a
process group of its own, and its end is the end of this process: the same exit code, or the same signal. Numbers become
`log_metrics` and `progress` of the host. Nothing that a parser does ends the command.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kinetic_orchestration.host.process.topology import HOOK, METRICS
from kinetic_orchestration.program.context import HostContext, current
from kinetic_orchestration.program.trainers.chosen import load
from kinetic_orchestration.program.trainers.parsers import LONGEST, MEANT, MOST, Parser
from kinetic_orchestration.protocol.system import copies

FILE = "KINETIC_METRICS_FILE"  # where a command may write lines for its parser, if no file was named
LONGEST_LINE = 64 << 10  # bytes; a longer one has no numbers
LAST_WORDS = 2.0  # seconds for output of processes that the command left running, as an agent gives
QUIET = 0.2
POLL = 0.25  # seconds between two looks at the file
MOST_AT_ONCE = 1 << 20  # bytes of the file
MOST_WAITING = 1000  # lines of the output
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> NoReturn:
    """Run the command in `sys.argv` and end as it ends."""
    argv = sys.argv[1:]
    chosen = json.loads(os.environ[METRICS])
    try:
        make = load(chosen["parser"], _project_path(), os.getcwd())
        reader = Reader(current(), make, argv)
    except Exception as error:
        _say(f"the parser {chosen['parser']} cannot be loaded: {type(error).__name__}: {error}")
        sys.exit(1)
    file = os.path.expandvars(chosen["file"]) if "file" in chosen else _own_file()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    command = Command(argv, {**copies.environ(), FILE: file})
    tail = Tail(file)
    looked = 0.0
    while not command.ended:
        for line in command.pump(POLL):
            reader.hear(line)
        if (now := time.monotonic()) - looked > POLL:
            looked = now
            reader.read(tail)
    for line in command.rest():
        reader.hear(line)
    reader.read(tail, last=True)
    command.end_alike()


class Command:
    """The command's process and its two pipes."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._lines: dict[int, tuple[int, Lines]] = {}
        self.status: int | None = None
        ours, wake = os.pipe()
        for end in (ours, wake):
            os.set_blocking(end, False)
        self._woken = ours
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        actions: list[Any] = []
        ends: list[int] = []
        for target in (1, 2):
            mine, its = os.pipe()
            os.set_blocking(mine, False)
            self._lines[mine] = (target, Lines())
            actions.append((os.POSIX_SPAWN_DUP2, its, target))
            ends.append(its)
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # one that comes now is for a command that runs
        try:
            self.pid = os.posix_spawnp(
                argv[0],
                tuple(argv),
                environ,
                file_actions=actions,
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE],
            )
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
        for number in FORWARDED:
            signal.signal(number, functools.partial(_forward, self.pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        for end in ends:
            os.close(end)

    @property
    def ended(self) -> bool:
        """True once the process has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def pump(self, within: float) -> Iterator[bytes]:
        """Pass on what the command has written, and yield its whole lines."""
        ready, _, _ = select.select([self._woken, *self._lines], [], [], within)
        for end in ready:
            if end == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(end, 4096)
            else:
                yield from self._move(end)

    def rest(self) -> Iterator[bytes]:
        """Pass on what is left once the process has ended, and what processes that it left write soon after."""
        end = time.monotonic() + LAST_WORDS
        while self._lines and time.monotonic() < end:
            ready, _, _ = select.select(list(self._lines), [], [], QUIET)
            if not ready:
                break
            for each in ready:
                yield from self._move(each)
        for _, lines in self._lines.values():
            yield from lines.rest()

    def end_alike(self) -> NoReturn:
        """End this process as the command has ended."""
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        if code < 0:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own core, if it may
            if -code not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
            time.sleep(1)  # a signal of one's own is delivered at once; never reached but for one that is ignored
            code = 128 - code
        os._exit(code)

    def _move(self, end: int) -> Iterator[bytes]:
        target, lines = self._lines[end]
        try:
            data = os.read(end, 1 << 16)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # nobody reads it any more: the command hears that, too
            data = b""
        if data:
            yield from lines.feed(data)
        else:
            yield from lines.rest()
            os.close(end)
            del self._lines[end]


class Lines:
    """Whole lines of a stream. A carriage return ends one as well: progress bars write it."""

    def __init__(self) -> None:
        self._open = b""
        self._skips = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        *whole, rest = (self._open + data).replace(b"\r", b"\n").split(b"\n")
        self._open = rest
        for line in whole:
            if self._skips:
                self._skips = False
            elif len(line) <= LONGEST_LINE:
                yield line
        if len(rest) > LONGEST_LINE:
            self._open, self._skips = b"", True

    def rest(self) -> Iterator[bytes]:
        line, self._open = self._open, b""
        if line and not self._skips:
            yield line


class Tail:
    """Lines of a file that a trainer appends to, writes anew or begins again: of a pattern the newest file.

    What an earlier attempt has left there is read as well, since a parser may need it, and told apart.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._before: dict[str, os.stat_result] = {}
        for path in glob.glob(pattern, recursive=True):
            with contextlib.suppress(OSError):  # a link to what is gone, or removed by now
                self._before[path] = os.stat(path)
        self._file: tuple[str, int] = ("", 0)
        self._at = self._old = 0
        self._head = b""
        self._lines = Lines()

    def read(self) -> Iterator[tuple[bytes, bool]]:
        """Yield each new line, and whether it is of this attempt."""
        if (path := self._newest()) is None:
            return
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            head = file.read(256)
            if (path, about.st_ino) != self._file or about.st_size < self._at or not head.startswith(self._head):
                begun_anew = self._file != ("", 0) and path == self._file[0]
                before = None if begun_anew else self._before.get(path)
                self._old = before.st_size if before is not None and before.st_size <= about.st_size else 0
                self._file, self._at, self._lines = (path, about.st_ino), 0, Lines()
            self._head = head
            file.seek(self._at)
            while self._at < about.st_size:
                new = self._at >= self._old
                data = file.read(min(MOST_AT_ONCE, (about.st_size if new else self._old) - self._at))
                if not data:
                    break
                self._at += len(data)
                for line in self._lines.feed(data):
                    yield line, new

    def rest(self) -> Iterator[tuple[bytes, bool]]:
        """Yield what a file that is complete has after the end of its last line."""
        for line in self._lines.rest():
            yield line, self._at > self._old

    def _newest(self) -> str | None:
        """Return the file that was written last, if that was since this attempt began."""
        found: list[tuple[float, str]] = []
        for path in glob.glob(self._pattern, recursive=True):
            with contextlib.suppress(OSError):
                about, before = os.stat(path), self._before.get(path)
                if before is None or (about.st_mtime_ns, about.st_size) != (before.st_mtime_ns, before.st_size):
                    found.append((about.st_mtime, path))
        return max(found)[1] if found else None


class Reader:
    """Reports what a parser finds. Once a file has given numbers, the output's lines are read no more: a line waits for
    one look at the file, since trainers write the same to both and round it in one.
    """

    def __init__(self, host: HostContext, make: Callable[[Sequence[str]], Parser], argv: Sequence[str]) -> None:
        self._host = host
        self._of_output, self._of_file = make(argv), make(argv)
        self._has_file = False
        self._failed = False
        self._waiting: list[bytes] = []
        self._waited = 0  # of them have seen a look at the file

    def hear(self, line: bytes) -> None:
        """Take a line of the output, at the next look at the file."""
        if not self._has_file:
            self._waiting.append(line)
            if len(self._waiting) > MOST_WAITING:
                self._take_waiting(len(self._waiting))

    def read(self, tail: Tail, last: bool = False) -> None:
        """Take the new lines of the file, or if there are none those of the output that have waited. `last`: both are
        complete.
        """
        waited = len(self._waiting) if last else self._waited
        with contextlib.suppress(OSError):
            for line, new in tail.read():
                self._has_file = self._take(self._of_file, line, new) or self._has_file
        if last:
            for line, new in tail.rest():
                self._has_file = self._take(self._of_file, line, new) or self._has_file
        if self._has_file:
            self._waiting.clear()
        self._take_waiting(waited)
        self._waited = len(self._waiting)

    def _take_waiting(self, count: int) -> None:
        taken, self._waiting, self._waited = self._waiting[:count], self._waiting[count:], 0
        for line in taken:
            self._take(self._of_output, line)

    def _take(self, parser: Parser, line: bytes, new: bool = True) -> bool:
        """Report what is in a line, if it is new. Returns True if there was anything to report."""
        if self._failed:
            return False
        try:
            told = parser(line.decode("utf-8", "backslashreplace"))
            found = {str(name): float(value) for name, value in (told or {}).items()}
        except Exception as error:
            self._failed = True
            _say(f"the parser failed, and reads no more: {type(error).__name__}: {error}; at {line[:200]!r}")
            return False
        if found and new:
            with contextlib.suppress(OSError):  # a full disk, or an agent that is gone: the command goes on
                self._report(found)
        return bool(found) and new

    def _report(self, found: Mapping[str, float]) -> None:
        step = _whole(found.get("step"))
        names = [name for name in found if name not in MEANT and name != "self" and len(name) <= LONGEST][:MOST]
        if names:
            self._host.log_metrics(step, **{name: found[name] for name in names})
        done = found.get("done", found.get("step", math.nan))
        if math.isfinite(done) and done >= 0:
            rate, total = (_positive(found.get(name, 0.0)) for name in ("rate", "steps"))
            self._host.progress(done, total, unit="step", rate=rate)


def _whole(step: float | None) -> int | None:
    return int(step) if step is not None and math.isfinite(step) else None


def _positive(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0


def _forward(pid: int, number: int, _: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _own_file() -> str:
    """Return a path of this attempt alone, beside the reports of this host's agent."""
    return f"{os.environ['KINETIC_EVENTS']}.metrics"


def _project_path() -> list[str]:
    hook = os.path.join(*HOOK)
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and not entry.endswith(hook)]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kinetic: {text}\n".encode("utf-8", "backslashreplace"))
