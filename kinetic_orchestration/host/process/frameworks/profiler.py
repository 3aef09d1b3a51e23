"""`profile=` on a host: begins and ends a trace, and puts its file where XProf finds it.

There is one trace in the life of a program, by the framework that trains. A training that counts steps reports each
(`reached`); without one, a thread begins the trace a while after the framework was imported. A trace is ended where the
next step would begin, and read and sent by a background thread. No error here reaches the program: it is one line in
its log.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.host.process.frameworks import tracers
from kinetic_orchestration.host.process.topology import TRACE
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import copies, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

UNCOUNTED = 10.0  # seconds between the import of a framework and a trace, if no steps are counted
LONGEST = 600.0
LONG = 10.0  # seconds, from which on a trace may not grow for ever
SHARE = 1 / 8  # of the free memory: reading a trace takes several times its size
LATE = 10.0  # seconds after its time that a trace waits for the end of a step
PATIENCE = 120.0  # at the program's end, for a trace that is on its way
PACE = 0.25
MOMENT = 1.0  # seconds after which an ended trace records nothing

WAITING, CAPTURING, WRITING, OVER = range(4)


class Request(NamedTuple):
    """The requested trace, and the rules of when it begins and ends."""

    steps: int = 0  # 0: seconds
    seconds: float = 0.0
    after: int = 0  # steps
    wait: float | None = None  # seconds since the import, instead

    def begins(self, counted: int | None, waited: float | None) -> bool:
        """Return True if the trace begins. `counted`: steps that are done; None if they are not counted. `waited`:
        seconds since the import; None before it.
        """
        if waited is None or (self.steps and counted is None):
            return False
        if self.wait is not None:
            return waited >= self.wait
        return waited >= UNCOUNTED if counted is None else counted >= self.after

    def ends(self, taken: int, lasted: float) -> bool:
        return bool(self.steps and taken >= self.steps) or lasted >= (self.seconds or LONGEST)


_current: Profiler | None = None


def current() -> Profiler | None:
    """Return the profiler of this process, if it is the process to trace, else None."""
    return _current if _current is not None and _current.process == os.getpid() else None


def install() -> Profiler | None:
    """Install the profiler in the first Python process of its host; the workers of that process are not traced."""
    global _current  # noqa: PLW0603 - one per process
    asked = json.loads(os.environ[TRACE])
    if asked.setdefault("process", os.getpid()) == os.getpid():
        os.environ[TRACE] = json.dumps(asked)
        fields = {name: asked[name] for name in Request._fields}
        _current = Profiler(Request(**fields), copies.environ())
        atexit.register(_current.close)
        return _current
    return None


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: Profiler, *args: Any, **kwargs: Any) -> None:
        if self.process != os.getpid() or self.state == OVER:  # a forked worker has ours
            return
        with self._lock:
            try:
                method(self, *args, **kwargs)
            except Exception as error:
                self._give_up(error)

    return call


class Profiler:
    """Profiler of one program. Its methods may be called from any thread, and raise nothing."""

    def __init__(self, asked: Request, environ: Mapping[str, str]) -> None:
        self.asked = asked
        self.process = os.getpid()
        self.state = WAITING
        self._place = names.profile(environ["KINETIC_OUTPUT_DIR"])
        run = f"{environ['KINETIC_JOB_ID']}-{environ['KINETIC_ATTEMPT']}"
        self._name = f"plugins/profile/{run}/host-{int(environ['KINETIC_HOST_INDEX']):04d}"
        self._events, self._notice = environ["KINETIC_EVENTS"], environ.get("KINETIC_NOTICE", "")
        self._of_command = "KINETIC_SITE" in environ  # which may have several Pythons, not all of them trainings
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._imported: float | None = None
        self._expected = False  # each step is reported
        self._base = self._last = -1  # steps done when counting began, and as of the last word
        self._counted = 0  # by the training that counts
        self._first = 0  # the first step of the trace
        self._taken = 0
        self._began = 0.0
        self._memory = 0  # of this process, with which a long trace ends
        self._mark: Any = None  # of the step that is under way
        self._marker = 0  # the thread that sets it
        self._tracer: Any = None
        self._folder = ""
        self._ways: list[tuple[Any, str, Any, Any]] = []
        self._lasted = 0.0
        self._handed = threading.Event()  # the capture belongs to the writer
        self._stopped, self._freed = threading.Event(), threading.Event()
        self._writer: threading.Thread | None = None

    # ---- events ------------------------------------------------------------------------------------------------------

    @_harmless
    def imported(self) -> None:
        """Note that a framework was imported. `close` is registered again, so that it runs before the framework's exit
        handler.
        """
        if self._imported is None:
            self._imported = time.monotonic()
            atexit.unregister(self.close)
            atexit.register(self.close)
            threading.Thread(target=self._watch, name="kinetic-profile", daemon=True).start()

    @_harmless
    def expect(self) -> None:
        """Note that each step will be reported."""
        if not self._expected:
            self._expected, self._last = True, -1

    @_harmless
    def reached(self, steps: float, *, settle: bool = True) -> None:
        """Take in that `steps` are done, and the next has not begun. `settle`: their computations may be waited for."""
        done = int(steps)
        if self.state == WAITING:
            if self._last < 0 or done < self._last:  # another training counts from its own start
                self._base = done
            self._last, self._counted = done, done - self._base
            if self.asked.begins(self._counted, self._waited()):
                self._begin(done, settle=settle)
        elif self.state == CAPTURING:
            self._taken += max(0, done - self._last) if self._last >= 0 else 0
            self._last = done
            if self.asked.ends(self._taken, time.monotonic() - self._began):
                self._end(whole=True, settle=settle)
            else:
                self._annotate(done + 1)

    def progressed(self, done: float) -> None:
        """Count steps by the progress that a program reports, unless it reports each step. The report may come from
        within a device computation (`jax.debug.callback`), which would wait for itself, so nothing is waited for.
        """
        if not self._expected:
            self.reached(done, settle=False)

    @_harmless
    def ended(self) -> None:
        """End the capture at the end of a training, and keep it."""
        if self.state == CAPTURING:
            self._end()
        self._last = -1

    def close(self) -> None:
        """Conclude the trace at the program's end."""
        if self.process != os.getpid() or self.state == OVER or not self._lock.acquire(timeout=LATE):
            return
        try:
            self._conclude()
        finally:
            self._lock.release()
        if self._writer is not None and self._handed.is_set():
            self._writer.join(PATIENCE)
            if self._writer.is_alive():
                self._say(f"the profile was not kept within {PATIENCE:.0f} s of the program's end, and is given up")

    @_harmless
    def _conclude(self) -> None:
        if self.state == WAITING:
            self.state = OVER
            self._woken.set()
            if told := self._why_not():
                self._say(f"nothing was profiled: {told}")
        elif self.state == CAPTURING:
            self._end()

    def _why_not(self) -> str:
        if self._imported is None:
            return "" if self._of_command else f"the program imported none of {', '.join(tracers.FRAMEWORKS)}"
        tracer = tracers.of_program()
        if tracer is None or not tracer.is_used():
            return "" if self._of_command else "the program imported its framework, and computed nothing with it"
        if self.asked.steps and self._base < 0:
            return (
                "nobody counted steps. Train with kinetic.Training or kinetic.KineticCallback, call host.progress "
                "after each step, or name a time: profile='30s'"
            )
        if self._base >= 0 and self.asked.wait is None:
            if self._counted >= self.asked.after:
                return "no step was counted after the program had begun to compute"
            return f"{self._counted} steps were counted, and it was to begin after {self.asked.after}"
        waited, wait = time.monotonic() - self._imported, self._wait()
        return f"the program ended {waited:.0f} s after its framework's import, and it was to begin after {wait:g} s"

    # ---- begin and end -----------------------------------------------------------------------------------------------

    def _waited(self) -> float | None:
        return None if self._imported is None else time.monotonic() - self._imported

    def _begin(self, done: int | None, *, settle: bool = False) -> None:
        tracer = tracers.of_program()
        if tracer is None or not tracer.is_used():
            return
        if busy := tracer.busy():
            self.state = OVER
            self._say(f"nothing was profiled, since the program profiles itself: {busy}")
            return
        if settle:
            tracer.settle()
        self._folder = tempfile.mkdtemp(prefix="profile-", dir=os.path.dirname(self._events))
        tracer.start(self._folder)
        self._memory = kernel.own_memory() + int(kernel.free_memory() * SHARE)
        self._tracer, self._began, self.state = tracer, time.monotonic(), CAPTURING
        # Started now: at the program's end Python 3.12 starts no threads.
        self._writer = threading.Thread(target=self._write, name="kinetic-profile-write", daemon=True)
        self._writer.start()
        if done is not None:
            self._first = done + 1
            self._annotate(done + 1)
        self._watch_others()
        self._woken.set()

    def _annotate(self, step: int) -> None:
        self._leave_mark()
        mark = self._tracer.step(step)
        mark.__enter__()
        self._mark, self._marker = mark, threading.get_ident()

    def _leave_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None and self._marker == threading.get_ident():
            mark.__exit__(None, None, None)

    def _end(self, *, whole: bool = False, settle: bool = False) -> None:
        """`whole`: the step that is under way is done."""
        if settle:
            self._tracer.settle()
        self._lasted, self.state = time.monotonic() - self._began, WRITING
        if whole:
            self._leave_mark()
        self._leave_others()
        self._tracer.halt()
        self._handed.set()
        self._stopped.wait(LATE)
        patience = time.monotonic() + MOMENT
        while not self._freed.is_set() and self._tracer.is_on() and time.monotonic() < patience:
            time.sleep(0.0005)
        self._leave_mark()  # of a step that is not whole, and that the trace shall not have

    def _write(self) -> None:
        self._handed.wait()
        if self.state != WRITING:  # given up
            return
        lasted = self._lasted
        try:
            files = self._tracer.finish(self._folder, self._stopped.set)
            self._freed.set()
            size = sum(map(os.path.getsize, files.values()))
            self._send(files)
            self._record(lasted)
            shown = f"{size / 1e6:.1f} MB" if size > 1e5 else f"{size / 1e3:.0f} kB"
            self._say(f"the profile of {self._what(lasted)} is captured ({shown}): {names.xprof(self._place)}")
        except Exception as error:
            self._say(f"the profile of {self._what(lasted)} could not be kept: {_told(error)}")
        finally:
            self._stopped.set()
            self._freed.set()
            shutil.rmtree(self._folder, ignore_errors=True)
            self.state = OVER

    def _what(self, lasted: float) -> str:
        if not self._first:
            return f"{lasted:.1f} s"
        last = self._first + max(1, self._taken) - 1
        cut = f" (of {self.asked.steps} that were asked for)" if self._taken < self.asked.steps else ""
        return f"step {last}{cut}" if last == self._first else f"steps {self._first} to {last}{cut}"

    def _send(self, files: Mapping[str, str]) -> None:
        if buckets.in_bucket(self._place):
            records = buckets.open_place(self._place)
            try:
                for suffix, path in files.items():
                    records.upload(self._name + suffix, path)
            finally:
                records.close()
            return
        if "://" in self._place:
            raise OSError(f"{self._place} is neither a folder nor in a bucket (gs://, s3://)")
        for suffix, path in files.items():
            target = os.path.join(self._place, self._name + suffix)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                shutil.copyfile(path, target + ".part")
                os.replace(target + ".part", target)
            except OSError:  # on a full disk, whose space others need
                with contextlib.suppress(OSError):
                    os.unlink(target + ".part")
                raise

    def _record(self, lasted: float) -> None:
        """Write the profile's record to the events file, for the agent to pass on to the orchestrator."""
        fields = {"first": self._first, "steps": self._taken, "seconds": round(lasted, 6)}
        line = f"{frames.PROFILE}{json.dumps(fields)}\n".encode()
        events = os.open(self._events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(events, line)
        finally:
            os.close(events)

    def _give_up(self, error: Exception) -> None:
        if self._handed.is_set():
            return
        running, self.state = self.state in (CAPTURING, WRITING), OVER
        self._woken.set()
        self._handed.set()
        if running:
            with contextlib.suppress(Exception):
                self._leave_mark()
            with contextlib.suppress(Exception):
                self._tracer.halt()
            with contextlib.suppress(Exception):
                self._tracer.finish(self._folder, self._stopped.set)
        with contextlib.suppress(Exception):
            self._leave_others()
        self._say(f"nothing was profiled, and the program goes on: {_told(error)}")
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):  # the program may have closed it, or put something of its own there
            sys.stderr.write(f"kinetic: {text}\n")
            sys.stderr.flush()

    # ---- background thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while self.state in (WAITING, CAPTURING):
            self._woken.wait(self._pause())
            self._woken.clear()
            self._look()

    def _pause(self) -> float | None:
        """Return the seconds until time alone may decide something; None if it never does."""
        if self.state == CAPTURING:
            return PACE
        if self._expected or self.asked.steps:
            return None
        return max(PACE, self._wait() - (self._waited() or 0.0))

    def _wait(self) -> float:
        return UNCOUNTED if self.asked.wait is None else self.asked.wait

    @_harmless
    def _look(self) -> None:
        if self.state == WAITING and not self._expected:
            if self.asked.begins(None, self._waited()):
                self._begin(None)
        elif self.state == CAPTURING:
            lasted = time.monotonic() - self._began
            late = LATE + (self.asked.seconds or 0.0) if self._first else 0.0
            noticed = not self._expected and bool(self._notice) and os.path.exists(self._notice)
            if noticed or self.asked.ends(0, lasted - late):
                self._end()
            elif lasted > LONG and kernel.own_memory() > self._memory > 0:
                self._say("the program has taken much memory since the profile began, so it ends: ask for less of it")
                self._end()

    def _watch_others(self) -> None:
        """Hook the framework's own entry points: two traces at once fail or crash, so this one gives way."""
        for owner, name in self._tracer.entrances():
            plain = getattr(owner, name, None)
            if plain is not None:
                ours = self._giving_way(plain)
                self._ways.append((owner, name, plain, ours))
                setattr(owner, name, ours)

    def _giving_way(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def begin(*args: Any, **kwargs: Any) -> Any:
            if self.state == CAPTURING and self.process == os.getpid():
                self._say("the program begins a profile of its own, so the one of profile= ends")
                self.ended()
            if self.state == WRITING and self.process == os.getpid():
                self._freed.wait(PATIENCE)
            return plain(*args, **kwargs)

        return begin

    def _leave_others(self) -> None:
        for owner, name, plain, ours in self._ways:
            if getattr(owner, name, None) is ours:
                setattr(owner, name, plain)
        self._ways.clear()


def _told(error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}".rstrip(": ")
