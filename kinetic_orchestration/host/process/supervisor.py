"""Supervises the process of the user's program: starts it, sends its orders, reads its output and reports, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.process import pipes as program
from kinetic_orchestration.protocol import attempt_rules, schema, wire
from kinetic_orchestration.protocol.attempt_rules import Exit, Report
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.system.lock import is_marked_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.view.view import Log
    from kinetic_orchestration.protocol.assignment import Assignment

TAIL = 8 << 10
MOST_SPENT = 1 << 10  # bytes of it: a beat has a bound
LONGEST_UNIT = 80  # characters
LAST_WORDS = 2.0  # seconds for output of processes that the program left running
# Message of the transport that stands in for the chips' links, once for each device.
EMULATION = b" peer ranks. Expected number of connected peer ranks is"


class Supervisor:
    """Supervisor of one program. Its loop sleeps in `pump`, from which `wake` brings it back."""

    command = emulated = False  # of the task, once that is known

    def __init__(self, at: Assignment, scratch: str, log: Log, hear: Callable[[str, list[bytes]], None]) -> None:
        """`hear` is called with the reports of the program, output excepted, that do not go to the log alone."""
        self._marks = at.marks
        self._log = log
        self._hear = hear
        self.files = {what: os.path.join(scratch, what) for what in ("outcome", "events", "notice", "stacks")}
        self.child, self.python = 0, at.python  # its id while it lives, and the Python that it runs
        self.running = False  # since it got its start message
        self.tail = b""
        self.active = time.monotonic()  # when it last showed progress
        self.progress: dict[str, Any] = {}
        self.spent: dict[str, Any] = {}  # the time of each training of the program, by use
        self._go = -1
        self._pipes: dict[int, tuple[str, frames.Lines]] = {}
        self.until = 0.0  # the end of the time that it was given, once it was asked to end
        self._events_read = 0
        self._stacks_read: dict[str, int] = {}
        self.wake_in, self.wake_out = os.pipe()
        for end in (self.wake_in, self.wake_out):
            os.set_blocking(end, False)

    # ---- its start ---------------------------------------------------------------------------------------

    def spawn(self, python: str, kind: str, secrets: dict[str, str], *, isolated: bool) -> None:
        self.adopt(program.start(python, kind, self._marks, secrets, isolated=isolated))
        self.python = python

    def adopt(self, started: program.Program) -> None:
        self.child, self._go = started.pid, started.go
        for end, stream in ((started.out, frames.OUT), (started.err, frames.ERR)):
            os.set_blocking(end, False)
            _widen(end)
            self._pipes[end] = (stream, frames.Lines())

    def drop(self) -> None:
        """Kill a process that was started ahead and has no orders yet."""
        processes.send(self.child, signal.SIGKILL)
        self.child = 0
        for end in (self._go, *self._pipes):
            os.close(end)
        self._pipes.clear()

    def begin(self, message: dict[str, Any]) -> None:
        """Send the program its orders, and whose they are: it obeys its own parent alone."""
        os.makedirs(self.files["stacks"], exist_ok=True)
        data = json.dumps({**message, "agent": os.getpid()}).encode() + b"\n"
        with open(self._go, "wb", buffering=0) as pipe:
            while data:
                data = data[pipe.write(data) :]
        self.running = True
        self.active = time.monotonic()

    # ---- while it lives ----------------------------------------------------------------------------------

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_out, b"\0")

    def pump(self, within: float) -> list[tuple[int, int]]:
        """Move the program's output into the log; return early when anything happens. Returns the processes that ended,
        each with its status.
        """
        pipes = () if self._log.full else self._pipes  # then the program has to wait
        ready, _, _ = select.select([self.wake_in, *pipes], [], [], within)
        moved = 0
        for end in ready:
            if end == self.wake_in:
                with contextlib.suppress(BlockingIOError):
                    os.read(end, 4096)
                continue
            moved += self._drain(end)
        self._read_events()
        if 0 < moved < 32 << 10:
            time.sleep(0.002)  # let a flood of short writes gather, so that it costs few of ours
        for end, (stream, lines) in self._pipes.items():
            if end not in ready and lines.ended and (whole := lines.flush()):
                self.write(stream, whole)
        return list(processes.reap())

    def read_remaining(self) -> None:
        """Read the last output of a program that has ended, and that of its remaining processes soon after."""
        self.child = 0
        now = time.monotonic()
        quiet, enough = now + 0.2, now + LAST_WORDS
        while self._pipes and time.monotonic() < min(quiet, enough):
            ready, _, _ = select.select(list(self._pipes), [], [], 0.02)
            if not ready and processes.childless():
                break
            for end in ready:
                if self._drain(end):
                    quiet = time.monotonic() + 0.2
        self._read_events()

    def give_up(self) -> None:
        """Close the pipe to a process that was started on a guess and has ended."""
        os.close(self._go)

    def write(self, stream: str, whole: bytes) -> None:
        self._log.write(stream, whole)
        self.tail = (self.tail + whole[-TAIL:])[-TAIL:]
        self.active = time.monotonic()

    def report(self) -> Report | None:
        """Return the program's report of its outcome, or None."""
        try:
            with open(self.files["outcome"] + ".json", encoding="utf-8") as file:
                report = json.load(file)
        except OSError:
            return None
        return Report.from_json(report)

    def exit_of(self, code: int) -> Exit:
        """Classify the end of the program's process. One that died with its work done says so in the log."""
        sent = os.path.exists(self.files["outcome"] + ".sent")
        found = attempt_rules.exit_of(code, self.report(), command=self.command, sent=sent)
        if found.code == 0 and found.reason:
            self._log.write(frames.NOTE, found.reason.encode() + b"\n")
        return found

    def shown(self) -> dict[str, Any]:
        """Return the progress that the program reported, for a beat."""
        far = {name: self.progress.get(name, 0.0) for name in ("done", "total", "rate")}
        return {**far, "unit": str(self.progress.get("unit", ""))[:LONGEST_UNIT]}

    def waits(self) -> bool:
        """Return True if the program reports that it is done and waits for those of other hosts."""
        return os.path.exists(self.files["outcome"] + ".waits")

    def lacks_room(self) -> bool:
        """Return True if the program's function has ended, and waits for disk space to write its outcome."""
        return bool(self.child) and is_marked_full(os.path.join(self.files["stacks"], str(self.child)))

    def _drain(self, end: int) -> int:
        stream, lines = self._pipes[end]
        try:
            data = os.read(end, 1 << 20)
        except BlockingIOError:
            return 0
        whole = lines.feed(data) if data else lines.flush()
        if EMULATION in whole and stream == frames.OUT and self.emulated:
            whole = _without_emulation(whole)
        if whole:
            self.write(stream, whole)
        if not data:
            os.close(end)
            del self._pipes[end]
        return len(data)

    def _read_events(self) -> None:
        """Read the new lines of the program's events file, one JSON object a line."""
        try:
            size = os.stat(self.files["events"]).st_size
        except OSError:
            return
        if size <= self._events_read:
            return
        with open(self.files["events"], "rb") as file:
            file.seek(self._events_read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._events_read += len(whole)
        heard: dict[str, list[bytes]] = {}
        for line in whole.splitlines():
            kind, payload = line[:1].decode("latin-1"), line[1:]
            try:
                told = json.loads(payload)
            except (ValueError, RecursionError):
                told = None
            if not isinstance(told, dict):  # torn, when the disk was full
                continue
            if kind == frames.SPENT:
                self._read_spent(told)
                continue
            if kind != frames.PROFILE:
                self._log.write(kind, payload)
            if kind == frames.PROGRESS:
                self.progress = told
            else:
                heard.setdefault(kind, []).append(payload)
        self.active = time.monotonic()
        for kind, payloads in heard.items():
            self._hear(kind, payloads)

    def _read_spent(self, told: dict[str, Any]) -> None:
        spent = {**self.spent, str(told.get("name")): told.get("spent")}
        try:
            wire.SPENT(spent)
        except schema.Wrong:  # not by us
            return
        if len(json.dumps(spent)) <= MOST_SPENT:
            self.spent = spent

    # ---- its stacks --------------------------------------------------------------------------------------

    def ask_for_stacks(self) -> set[int]:
        """Ask each process that can dump its stacks to do so, into a file of its own. Returns those asked."""
        able = set(map(int, os.listdir(self.files["stacks"]))) if self.running else set()
        there = {process.pid for process in processes.descendants(os.getpid())} & able
        # Another program that one has become would die of it.
        asked = {pid for pid in there if processes.catches(pid, signal.SIGUSR2) is not False}
        for pid in asked:
            processes.send(pid, signal.SIGUSR2)
        return asked

    def read_stacks(self) -> set[int]:
        """Move dumped stacks to the log as notes, which do not end the program's silence. Returns their processes."""
        moved = set()
        for name in os.listdir(self.files["stacks"]) if self.running else ():
            with open(os.path.join(self.files["stacks"], name), "rb") as file:
                file.seek(self._stacks_read.get(name, 0))
                data = file.read()
            if whole := data[: data.rfind(b"\n") + 1]:
                self._stacks_read[name] = self._stacks_read.get(name, 0) + len(whole)
                self._log.write(frames.NOTE, whole)
                moved.add(int(name))
        return moved

    # ---- its end -----------------------------------------------------------------------------------------

    def ask_to_end(self, cause: str, grace: float) -> None:
        """Ask the program to end, once: it may take a second request for an order to end at once. The notice tells it
        the cause.
        """
        if self.child and not self.until:
            self.until = time.monotonic() + grace
            if self.running:
                notice = self.files["notice"]
                with contextlib.suppress(OSError):
                    with open(notice + ".tmp", "w", encoding="utf-8") as file:
                        json.dump({"cause": cause, "grace": grace}, file)
                    os.replace(notice + ".tmp", notice)
            processes.send(-self.child if self.command else self.child, signal.SIGTERM)  # a shell does not pass it on

    def hurry(self, grace: float) -> None:
        """Leave a program that was asked to end no more than that many seconds from now on."""
        if self.until:
            self.until = min(self.until, time.monotonic() + grace)

    def is_alive(self) -> bool:
        """Return True while the program runs, or any process of a command, which may take the same time to end."""
        return bool(self.child) or (self.command and not processes.childless())

    def is_out(self) -> bool:
        """Return True if no program runs, or one that has had the time that it was given to end."""
        return not self.is_alive() or 0.0 < self.until < time.monotonic()

    def kill(self) -> list[int]:
        """Kill all descendants of this host and read their remaining output. Returns the processes that did not end."""
        left = list(processes.end_descendants(os.getpid()))
        processes.end_strays(*self._marks)
        self.child = 0
        for end in list(self._pipes):
            while self._drain(end):
                pass
        for stream, lines in self._pipes.values():
            if rest := lines.flush():
                self._log.write(stream, rest)
        self._read_events()
        self.read_stacks()
        return left


def _without_emulation(whole: bytes) -> bytes:
    """Remove Gloo's messages about itself, sixteen times over, where processes stand for the hosts of a slice."""
    import re

    pattern = rb"(?m)^(?:\[Gloo\] Rank \d+ is connected to )?\d+" + re.escape(EMULATION) + rb" : \d+\n"
    return re.sub(pattern, b"", whole)


def _widen(pipe: int) -> None:
    """Widen a pipe, so that the program can write while the agent is busy. Linux only; failure is ignored."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
