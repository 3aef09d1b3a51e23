"""A world in one thread: virtual time, tasks that can be killed at any request, and a store in memory.

One seed is one execution, byte for byte. Tasks are greenlets, so that the real, synchronous code of clients and
hosts can be suspended at each of its requests, for a moment or for hours, or end there for ever. The world knows
records and time; what the records mean is judged in `scenario`.
"""

from __future__ import annotations

import heapq
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet
from pytest import MonkeyPatch

from kinetic_orchestration.agent import host, processes
from kinetic_orchestration.agent.records import Entry, Record, RecordsError
from kinetic_orchestration.errors import StoreError

EPOCH = 1_700_000_000.0


class Killed(BaseException):
    """SIGKILL: nothing of this task happens any more."""


class Violation(BaseException):
    """A promise was broken. No handler of the code under test may swallow it."""


class Unreachable(Exception):
    """A cloud's request failed on its way there, or its answer did on the way back."""


class Odds(NamedTuple):
    """How likely a request is disturbed, before it takes effect and again after it."""

    delay: float = 0.1  # others may run in between
    stall: float = 0.0  # so long that everybody has gone on
    error: float = 0.0
    crash: float = 0.0

    @property
    def any(self) -> float:
        return self.delay + self.stall + self.error + self.crash


USUAL = Odds()


class Task:
    """A process: a client, or the agent of a host."""

    __slots__ = ("dead", "greenlet", "look_began", "machine", "name", "number", "odds", "skew")

    def __init__(self, name: str, number: int, machine: str, odds: Odds, skew: float) -> None:
        self.name = name
        self.number = number
        self.machine = machine
        self.odds = odds
        self.skew = skew  # of its own clock, which nothing may depend on
        self.dead = False
        self.look_began = 0.0
        self.greenlet: Any = None


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = EPOCH
        self.requests = 0
        self.suspended = 0.0  # seconds in all
        self.trace: list[tuple[Any, ...]] = []
        self.reached: set[str] = set()
        self.records: dict[str, Record] = {}
        self.on_write: Callable[[str, bytes], None] = lambda _name, _data: None
        self.on_delete: Callable[[str], None] = lambda _name: None
        self.limits = (float("inf"), float("inf"))  # of time and of requests, once the world is healed
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self._hub = getcurrent()
        self._queue: list[tuple[float, int, Any]] = []
        self._count = 0
        self._generation = 0

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

        def run() -> None:
            try:
                if not task.dead:
                    main(task)
            except Killed:
                pass

        task.greenlet = greenlet(run, self._hub)
        self.tasks.append(task)
        self.at(self.now + delay, task)
        return task

    def sleep(self, seconds: float) -> None:
        task = self.current
        assert task is not None
        self.at(self.now + seconds, task)
        self._hub.switch()
        if task.dead:
            raise Killed

    def kill(self, task: Task) -> None:
        if not task.dead:
            self.note("killed", task.name)
            task.dead = True
            self.at(self.now, task)  # so that it unwinds; whatever it tries on the way has no effect
            if task is self.current:
                raise Killed

    def run(self) -> None:
        """Until nothing is left to happen."""
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
            elif not what.greenlet.dead:
                self.current = what
                if what.dead and what.greenlet:
                    what.greenlet.throw(Killed)
                else:
                    what.greenlet.switch()
                self.current = None
            latest, requests = self.limits

    def end(self) -> None:
        """Whoever is still there ends now, without effect."""
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
        if not done:
            self.requests += 1
            self.trace.append((self.now, task.name, verb, name))
        odds = task.odds
        draw = self.random.random()
        if draw >= odds.any:
            return
        if draw < odds.delay:
            self.sleep(self.random.random() ** 3 * 3.0)
        elif draw < odds.delay + odds.stall:
            self.note("stalls", verb, name, "after" if done else "before")
            self.sleep(self.random.choice((30.0, 120.0, 1000.0, 10_000.0)) * self.random.uniform(0.5, 1.5))
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
        return self._generation


class SimulatedStore:
    """The Store protocol over the world's records, as one process sees it."""

    url = "memory://store"
    can_append = False

    def __init__(self, world: World, *, of_host: bool = False) -> None:
        self._world = world
        self._failure: Callable[[str], Exception] = _refused if of_host else StoreError

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

    def read(self, name: str, start: int = 0, end: int | None = None) -> Record | None:
        if name.endswith("/intent.json") and self._world.current is not None:
            self._world.current.look_began = self._world.now  # a look begins with the attempt's intent
        self._world.request("read", name, self._failure)
        found = self._world.records.get(name)
        return found if found is None or (not start and end is None) else found._replace(data=found.data[start:end])

    def list(self, prefix: str) -> Iterator[Entry]:
        self._world.request("list", prefix, self._failure)
        for name in sorted(name for name in self._world.records if name.startswith(prefix)):
            record = self._world.records.get(name)
            if record is not None:
                yield Entry(name, len(record.data), record.generation, record.updated)

    def delete(self, name: str) -> bool:
        self._world.request("delete", name, self._failure)
        if self._world.records.pop(name, None) is None:
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


@contextmanager
def simulated_edges(worlds: list[World]) -> Iterator[None]:
    """Whoever asks for a clock, a random token, this boot of this machine or free ports gets them from the last of
    `worlds`. Every task has a skew of its own: an age that is not judged by the store's time is wrong by minutes.
    """

    def local() -> float:
        world = worlds[-1]
        return world.now + (world.current.skew if world.current is not None else 0.0)

    def token(size: int = 16) -> str:
        return f"{worlds[-1].random.getrandbits(8 * size):0{2 * size}x}"

    def life() -> str:
        current = worlds[-1].current
        return f"life {current.number}" if current is not None else ""

    with MonkeyPatch.context() as edges:
        edges.setattr(time, "time", local)
        edges.setattr(time, "monotonic", local)
        edges.setattr(secrets, "token_hex", token)
        edges.setattr(processes, "machine", life)
        edges.setattr(host, "_free_ports", lambda _hosts: {})
        yield
