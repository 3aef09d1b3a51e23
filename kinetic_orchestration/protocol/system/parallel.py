"""The same work on several threads, for what mostly waits. Knows neither stores nor backends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import threading

_T = TypeVar("_T")
_R = TypeVar("_R")

REQUESTS = 16
"""Of one process to a service elsewhere at the same time."""


def side_by_side(
    work: Callable[[_T], _R], items: Sequence[_T], threads: int = 2, *, name: str = "kinetic-parallel"
) -> list[_R]:
    """Process the items concurrently; results in their order. The first failure is raised once the started items are
    finished; no others are started then.

    Not by an executor: those start nothing any longer once the main thread has ended, while a batch still submits.
    """
    if len(items) < 2 or threads < 2:
        return [work(item) for item in items]
    return _Lanes(work, items).results(min(threads, len(items)), name)


def at_once(work: Sequence[Callable[[], _R]], threads: int) -> list[_R]:
    """The same, of different things to do."""
    return side_by_side(lambda act: act(), work, threads)


class _Lanes(Generic[_T, _R]):
    """Threads that take one item after another."""

    def __init__(self, work: Callable[[_T], _R], items: Sequence[_T]) -> None:
        self._work = work
        self._waiting = deque(enumerate(items))
        self._found: dict[int, _R] = {}
        self._failed: dict[int, BaseException] = {}

    def results(self, count: int, name: str) -> list[_R]:
        lanes: list[threading.Thread] = []
        try:
            self._begin(lanes, count, name)
            if not lanes:
                self._run()
            _join(lanes)
        except BaseException:  # Ctrl-C: what was begun may be at files that its caller closes
            self._waiting.clear()
            _join(lanes)
            raise
        if self._failed:
            try:
                raise self._failed[min(self._failed)]
            finally:
                self._failed.clear()  # or what their frames hold would live on with them
        return [self._found[number] for number in sorted(self._found)]

    def _begin(self, lanes: list[threading.Thread], count: int, name: str) -> None:
        """Start as many threads as possible: if none can start, the caller does the work."""
        import threading  # which a host of this machine does without

        for number in range(count):
            lane = threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True)
            lanes.append(lane)
            try:
                lane.start()
            except RuntimeError:
                lanes.pop()
                return

    def _run(self) -> None:
        while self._waiting:
            try:
                number, item = self._waiting.popleft()
            except IndexError:  # another lane was quicker
                return
            try:
                self._found[number] = self._work(item)
            except BaseException as error:
                self._failed[number] = error
                self._waiting.clear()


def _join(lanes: Sequence[threading.Thread]) -> None:
    for lane in lanes:
        if lane.ident is not None:
            lane.join()
