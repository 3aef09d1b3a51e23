"""A world in one thread: virtual time, tasks that can be killed at any request, and a store in memory.

One seed is one execution, byte for byte. Tasks are greenlets, so that the real, synchronous code of clients and
hosts can be suspended at each of its requests, for a moment or for hours, or end there for ever. The world knows
records and time; what the records mean is judged in `scenario`.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Entry, Record, RecordsError

EPOCH = 1_700_000_000.0
MOST_AT_ONCE = 5_000  # requests in a row for which no time passes


class Killed(BaseException):
    """SIGKILL: nothing of this task happens any more."""


class Violation(BaseException):
    """A promise was broken. No handler of the code under test may swallow it."""


class Unreachable(Exception):
    """A cloud's request failed on its way there, or its answer did on the way back."""


class Odds(NamedTuple):
    """The probabilities that a request is disturbed, before it takes effect and again after it."""

    delay: float = 0.1  # others may run in between
    stall: float = 0.0  # so long that everybody has gone on
    error: float = 0.0
    crash: float = 0.0

    @property
    def any(self) -> float:
        return self.delay + self.stall + self.error + self.crash


USUAL = Odds()


class Task:
    """A process: a client, or the agent of a host; or one more thread of a process, which ends with it."""

    __slots__ = (
        "asked", "dead", "first", "greenlet", "held", "last", "look_began", "look_called", "machine", "name", "number",
        "odds", "process", "skew", "stalled", "threads",
    )  # fmt: skip

    def __init__(self, name: str, number: int, machine: str, odds: Odds, skew: float) -> None:
        self.name = name
        self.number = number
        self.machine = machine
        self.odds = odds
        self.skew = skew  # of its own clock, which nothing may depend on
        self.dead = False
        self.held: list[Task] | None = None  # of a process that is stopped: those whose time has come
        self.look_began = 0.0  # what was there by then it could see,
        self.look_called = 0.0  # but for an intent, which is read first, and then perhaps a list that takes long
        self.greenlet: Any = None
        self.process = self
        self.threads: list[Task] = []
        self.asked = 0  # requests between these two moments
        self.first = self.last = 0.0
        self.stalled = 0.0  # when a request about hardware, which had stalled, went on


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = EPOCH
        self.requests = 0
        self.suspended = 0.0  # seconds in all
        self.trace: list[tuple[Any, ...]] = []
        self.reached: set[str] = set()
        self.records: dict[str, Record] = {}
        self.signals: dict[str, None] = {}  # the names of those that are listed again and again
        self.on_write: Callable[[str, bytes], None] = lambda _name, _data: None
        self.on_delete: Callable[[str], None] = lambda _name: None
        self.limits = (float("inf"), float("inf"))  # of time and of requests, once the world is healed
        self.current: Task | None = None
        self.distance: Any = None  # what lies between a job's clients and its machines, where there is something
        self.tasks: list[Task] = []
        self._hub = getcurrent()
        self._queue: list[tuple[float, int, Any]] = []
        self._count = 0
        self._generation = 0
        self._asked_at, self._at_once = 0.0, 0

    # ---- time and tasks ----------------------------------------------------------------------------------

    def at(self, when: float, what: Task | Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, what))

    def spawn(
        self, name: str, main: Callable[[Task], object], *, delay: float = 0.0, machine: str = "here",
        odds: Odds = USUAL, skew: float = 0.0,
    ) -> Task:  # fmt: skip
        self._count += 1
        task = Task(name, self._count, machine, odds, skew)
        self._begin(task, main, delay)
        return task

    def fork(self, name: str, main: Callable[[Task], object]) -> Task:
        """One more thread of the process that runs now."""
        assert self.current is not None
        process = self.current.process
        self._count += 1
        task = Task(f"{process.name} {name}", self._count, process.machine, process.odds, process.skew)
        task.process = process
        process.threads.append(task)
        self._begin(task, main, 0.0)
        return task

    def _begin(self, task: Task, main: Callable[[Task], object], delay: float) -> None:
        def run() -> None:
            try:
                if not task.dead:
                    main(task)
            except Killed:
                pass
            if task.process is task:
                self.end_threads(task)

        task.greenlet = greenlet(run, self._hub)
        self.tasks.append(task)
        self.at(self.now + delay, task)

    def sleep(self, seconds: float) -> None:
        task = self.current
        assert task is not None
        self.at(self.now + seconds, task)
        self._hub.switch()
        if task.dead:
            raise Killed

    def pause(self, asleep: list[bool], within: float | None) -> None:
        """Sleep until `wake` is given the same list, or until the time is up."""
        task = self.current
        assert task is not None
        if within is not None:
            self.at(self.now + max(0.0, within), lambda: self.wake(task, asleep))
        self._hub.switch()
        if task.dead:
            raise Killed

    def wake(self, task: Task, asleep: list[bool]) -> None:
        if asleep:
            asleep.clear()
            self.at(self.now, task)

    def kill(self, task: Task) -> None:
        """The whole process."""
        task = task.process
        if not task.dead:
            self.note("killed", task.name)
            task.dead = True
            self.at(self.now, task)  # so that it unwinds; whatever it tries on the way has no effect
            self.end_threads(task)
            if self.current is not None and self.current.process is task:
                raise Killed

    def freeze(self, process: Task) -> None:
        """SIGSTOP: it goes no further, until it is thawed or killed."""
        if process.held is None and not process.dead:
            self.note("frozen", process.name)
            process.held = []

    def thaw(self, process: Task) -> None:
        """SIGCONT."""
        held, process.held = process.held, None
        if held is not None and not process.dead:
            self.note("thawed", process.name)
            for task in held:
                self.at(self.now, task)

    def end_threads(self, process: Task) -> None:
        for thread in process.threads:
            if not thread.dead and not thread.greenlet.dead:
                thread.dead = True
                self.at(self.now, thread)

    def run(self) -> None:
        """Run until no events are left."""
        latest, requests = self.limits
        queue = self._queue
        while queue:
            when, _, what = heapq.heappop(queue)
            self.now = max(self.now, when)
            if self.now > latest or self.requests > requests:
                latest, requests = self.limits
                if self.now > latest or self.requests > requests:
                    raise Violation("the world is healed, and yet its jobs do not come to an end")
            if not isinstance(what, Task):
                what()
            elif what.process.held is not None and not what.dead:
                what.process.held.append(what)
            elif not what.greenlet.dead:
                self.current = what
                if what.dead and what.greenlet:
                    what.greenlet.throw(Killed)
                else:
                    what.greenlet.switch()
                self.current = None
            latest, requests = self.limits

    def end(self) -> None:
        """End all remaining tasks now, without effect."""
        for task in self.tasks:
            task.dead = True
            if task.greenlet:
                task.greenlet.throw(Killed)

    def suspend(self, seconds: float) -> None:
        """Everything stands still (a laptop is shut), and the clock of the store goes on."""
        self.note("suspended", seconds)
        self.reached.add("everything was suspended for a while")
        self.suspended += seconds
        self.now += seconds
        self._queue[:] = [(when + seconds, count, what) for when, count, what in self._queue]

    # ---- requests ----------------------------------------------------------------------------------------

    def note(self, *what: Any) -> None:
        self.trace.append((self.now, self.current.name if self.current else "world", *what))

    def request(self, verb: str, name: str, failure: Callable[[str], Exception], done: bool = False) -> None:
        """One of the two moments of every request: before it takes effect, and after."""
        task = self.current
        assert task is not None
        if task.dead:
            raise Killed
        _not_after_a_violation()
        if not done:
            self.requests += 1
            self._at_once = self._at_once + 1 if self.now == self._asked_at else 0
            self._asked_at = self.now
            if self._at_once > MOST_AT_ONCE:
                raise Violation(f"{task.name} asks without end")
            task.first = task.first or self.now
            task.last, task.asked = self.now, task.asked + 1
            self.trace.append((self.now, task.name, verb, name))
        odds = task.odds
        draw = self.random.random()
        if draw >= odds.delay + odds.stall + odds.error + odds.crash:
            return
        if draw < odds.delay:
            self.sleep(self.random.random() ** 3 * 3.0)
        elif draw < odds.delay + odds.stall:
            self.note("stalls", verb, name, "after" if done else "before")
            self.sleep(self.random.choice((30.0, 120.0, 1000.0, 10_000.0)) * self.random.uniform(0.5, 1.5))
            if verb in ("get", "release"):
                task.stalled = self.now
        elif draw < odds.delay + odds.stall + odds.error:
            self.note("fails", verb, name, "after" if done else "before")
            if done:
                self.reached.add(f"the answer to a {verb} was lost")
            raise failure(f"{verb} {name}: {'no answer' if done else 'no connection'}")
        else:
            if verb == "submit" or (verb == "create" and name.startswith("jobs/")):
                what = name.rsplit("/", 1)[-1] if verb == "create" else "the create call"
                self.reached.add(f"killed {'after' if done else 'before'} {what}")
            self.kill(task)

    # ---- records -----------------------------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> int:
        self.on_write(name, data)
        self._generation += 1
        self.records[name] = Record(data, self._generation, self.now)
        if name.startswith(names.BEATS):
            self.signals[name] = None
        return self._generation

    def delete(self, name: str) -> bool:
        self.signals.pop(name, None)
        return self.records.pop(name, None) is not None


def _not_after_a_violation() -> None:
    """Raise a violation again if the caller runs because of it, as in a `finally`: its requests must not hide the
    cause."""
    raised = sys.exc_info()[1]
    while raised is not None:
        if isinstance(raised, Violation):
            raise raised
        raised = raised.__context__


class SimulatedStore:
    """The Store protocol over the world's records, as one process sees it."""

    url = address = "memory://store"
    folder = None
    caller = None
    can_append = False
    trusted, metered = True, False
    has_files, may_corrupt = True, False  # as a host asks it
    parallel = 1

    def __init__(self, world: World, *, of_host: bool = False) -> None:
        self._world = world
        self._failure: Callable[[str], Exception] = _refused if of_host else StoreError

    def bell(self) -> None:
        return None

    def create(self, name: str, data: bytes) -> int | None:
        world = self._world
        world.request("create", name, self._failure)
        generation = None if name in world.records else world.write(name, data)
        world.request("create", name, self._failure, done=True)
        return generation

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        world = self._world
        world.request("swap", name, self._failure)
        found = world.records.get(name)
        swapped = world.write(name, data) if found is not None and found.generation == generation else None
        world.request("swap", name, self._failure, done=True)
        return swapped

    def put(self, name: str, data: bytes) -> int:
        self._world.request("put", name, self._failure)
        return self._world.write(name, data)

    def _look_begins(self, name: str) -> bool:
        """Return True if a poll begins with this read: here each begins with a clock (`edges`)."""
        del name
        return False

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int = 0) -> Record | None:
        del limit
        if self._look_begins(name) and self._world.current is not None:
            self._world.current.look_began = self._world.now
        self._world.request("read", name, self._failure)
        found = self._world.records.get(name)
        return found if found is None or (not start and end is None) else found._replace(data=found.data[start:end])

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        return [self.read(name) for name in names]

    def find(self, name: str) -> Entry | None:
        self._world.request("find", name, self._failure)
        found = self._world.records.get(name)
        return None if found is None else Entry(name, len(found.data), found.generation, found.updated)

    def written_at(self, name: str, generation: int) -> float:
        found = (record.updated for record in self._world.records.values() if record.generation == generation)
        return next(found, self._world.now)

    def list(self, prefix: str, *, last: str = "") -> Iterator[Entry]:
        self._world.request("list", prefix, self._failure)
        end = f"/{last}" if last else ""
        for name in sorted(name for name in self._world.records if name.startswith(prefix) and name.endswith(end)):
            record = self._world.records.get(name)
            if record is not None:
                yield Entry(name, len(record.data), record.generation, record.updated)

    def delete(self, name: str) -> bool:
        self._world.request("delete", name, self._failure)
        if not self._world.delete(name):
            return False
        self._world.on_delete(name)
        return True

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """The path stands for its own content."""
        return self.create(name, path.encode()) is not None

    def download(self, name: str, path: str) -> None:
        raise NotImplementedError

    def local_path(self, name: str) -> str | None:
        return None

    def now(self) -> float:
        return self._world.now

    def ring(self, text: str) -> bool:
        return True


def _refused(text: str) -> Exception:
    return RecordsError(5, text)
