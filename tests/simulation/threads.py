"""Threads of one process under the virtual clock: what the code under test takes from `threading`.

Each thread is a task of the world, so that the real code of watchers, views and log writers runs in all its
interleavings, and dies with its process. Whoever runs outside of any task gets the real thing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.world import Task, Violation, World


class Threads:
    """A stand-in for the module `threading`."""

    def __init__(self, worlds: list[World]) -> None:
        self._worlds = worlds

    def Event(self) -> Event:
        return Event(self._worlds[-1])

    def Lock(self) -> Lock:
        return Lock(self._worlds[-1])

    def Condition(self) -> Condition:
        return Condition(self._worlds[-1])

    def Thread(self, **how: Any) -> Any:
        world = self._worlds[-1] if self._worlds else None
        return Thread(world, **how) if world is not None and world.current is not None else threading.Thread(**how)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._asleep: list[tuple[Task, list[bool]]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        asleep, self._asleep = self._asleep, []
        for task, flag in asleep:
            self._world.wake(task, flag)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and (timeout is None or timeout > 0):
            assert self._world.current is not None
            flag = [True]
            self._asleep.append((self._world.current, flag))
            self._world.pause(flag, timeout)
            self._asleep = [entry for entry in self._asleep if entry[1]]
        return self._set


class Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: Task | None = None
        self._free = Event(world)

    def __enter__(self) -> bool:
        while self._holder is not None and not self._holder.greenlet.dead:
            self._free.clear()
            self._free.wait()
        self._holder = self._world.current
        return True

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._free.set()


class Condition(Lock):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._told = Event(world)

    def wait(self, timeout: float | None = None) -> bool:
        self._told.clear()
        self.__exit__()
        try:
            return self._told.wait(timeout)
        finally:
            self.__enter__()

    def notify_all(self) -> None:
        self._told.set()


class Thread:
    def __init__(
        self, world: World, target: Callable[..., object], args: Iterable[Any] = (), name: str = "thread",
        daemon: bool = True,
    ) -> None:  # fmt: skip
        assert daemon, f"{name} would keep its process from ending"
        self._world, self._target, self._args, self._name = world, target, tuple(args), name
        self._task: Task | None = None
        self._over = Event(world)

    def start(self) -> None:
        self._task = self._world.fork(self._name, self._run)

    def is_alive(self) -> bool:
        return self._task is not None and not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def _run(self, _task: Task) -> None:
        try:
            self._target(*self._args)
        except Exception as error:
            raise Violation(f"the thread {self._name} died of {error!r}") from error
        self._over.set()
