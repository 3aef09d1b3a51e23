"""Work on several threads, for what mostly waits: the same work for many items, or one that begins before its result is
needed. Knows neither stores nor backends.

If a read of the store takes microseconds, a thread would take longer than it saves: without `in_background` the work is
done when its result is requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import threading

_T = TypeVar("_T")
_R = TypeVar("_R")

REQUESTS = 16
"""Requests of one process to a service elsewhere at the same time."""


def side_by_side(
    work: Callable[[_T], _R], items: Sequence[_T], threads: int = 2, *, name: str = "kinetic-parallel"
) -> list[_R]:
    """Process the items concurrently; results in their order. The first failure is raised once the started items are
    finished; no others are started then.

    Not by an executor: those start nothing any longer once the main thread has ended, while a batch still submits.
    """
    if len(items) < 2 or threads < 2:
        return [work(item) for item in items]
    return _all_of(Several(work, items, most=threads, in_background=False), name)


def apart(work: Callable[[], _R], *, name: str = "kinetic-apart") -> _R:
    """Return what work comes to that Ctrl-C must not break off at any line, in a thread of its own. It hears of that by
    `is_given_up`, and is waited for.
    """
    return _all_of(Several(lambda act: act(), [work], most=1, in_background=False), name)[0]


def _all_of(several: Several[_T, _R], name: str) -> list[_R]:
    try:
        several.begin(name)
        several.join()
        return several.result()
    except BaseException as error:  # Ctrl-C: started items may use files that the caller closes
        several.stop(is_given_up=not isinstance(error, Exception))
        several.join()
        raise
    finally:
        several.failed.clear()  # or what their frames hold would live on with them


def is_given_up() -> bool:
    """Return True in a thread of this module's whose caller was interrupted: nobody needs its work any more. What may
    wait for long asks now and then, as nothing interrupts another thread than the first."""
    several = _within.get()
    return several is not None and several.is_given_up


def at_once(work: Sequence[Callable[[], _R]], threads: int) -> list[_R]:
    """The same, of different things to do."""
    return side_by_side(lambda act: act(), work, threads)


class Ahead(Generic[_R]):
    """`result` gives what the work came to, or raises what it raised."""

    __slots__ = ("_done", "_error", "_rest", "_thread", "_work")

    def __init__(self, work: Callable[..., _R], *rest: Any, in_background: bool = True) -> None:
        self._work, self._rest = work, rest
        self._done: _R
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if in_background:
            import threading

            name = f"kinetic-{getattr(work, '__name__', 'work').strip('_')}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._done = self._work(*self._rest)
        except Exception as error:
            self._error = error

    @property
    def pending(self) -> bool:
        """True if its result is not ready."""
        return self._thread is not None and self._thread.is_alive()

    def result(self) -> _R:
        if self._thread is None:
            return self._work(*self._rest)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._done


class Several(Generic[_T, _R]):
    """The same work for each of many items, on a limited number of threads; the results are in their order.

    The first failure is raised while others are still running: they may take long, and are no longer needed.
    """

    def __init__(self, work: Callable[[_T], _R], items: Sequence[_T], *, most: int, in_background: bool = True) -> None:
        self.failed: dict[int, BaseException] = {}
        self._work = work
        self._waiting = deque(enumerate(items))
        self._count = len(items)
        self._most = min(most, len(items))
        self._found: dict[int, _R] = {}
        self._threads: list[tuple[threading.Thread, threading.Event]] = []  # each with its end
        self._over: threading.Event | None = None  # all is done, or something has failed
        self._is_given_up, self._outer = False, _within.get()
        if in_background:
            self.begin("kinetic-several")

    def begin(self, name: str) -> None:
        """Start as many threads as possible: if none can start, `result` does the work."""
        import threading  # which a host of this machine does without

        self._over = threading.Event()
        for number in range(self._most):
            end = threading.Event()
            thread = threading.Thread(target=self._run_until, args=(end,), name=f"{name}_{number}", daemon=True)
            self._threads.append((thread, end))
            try:
                thread.start()
            except RuntimeError:
                self._threads.pop()
                return

    def stop(self, *, is_given_up: bool = False) -> None:
        """Start no more items. `is_given_up`: Nobody needs those that are started, either."""
        self._waiting.clear()
        self._is_given_up = self._is_given_up or is_given_up

    @property
    def is_given_up(self) -> bool:
        return self._is_given_up or (self._outer is not None and self._outer.is_given_up)

    def join(self) -> None:
        """Wait until the started items are finished. Also once more after Ctrl-C: then Python up to 3.12 takes a thread
        that was joined for one that has ended."""
        for thread, end in self._threads:
            if thread.ident is not None:
                end.wait()
                thread.join()

    @property
    def pending(self) -> bool:
        return bool(self._threads and self._over and not self._over.is_set())

    def result(self) -> list[_R]:
        if self._over is not None and self._threads:
            self._over.wait()
        else:
            self._run()
        if self.failed:
            raise self.failed[min(self.failed)]
        return [self._found[number] for number in sorted(self._found)]

    def _run_until(self, end: threading.Event) -> None:
        _within.set(self)  # of this thread alone
        try:
            self._run()
        finally:
            end.set()

    def _run(self) -> None:
        while self._waiting:
            try:
                number, item = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                self._found[number] = self._work(item)
            except BaseException as error:
                self.failed[number] = error
                self.stop()
            if self._over is not None and (self.failed or len(self._found) == self._count):
                self._over.set()


_within: ContextVar[Several[Any, Any] | None] = ContextVar("kinetic_parallel", default=None)
"""The pool that the current thread belongs to."""
