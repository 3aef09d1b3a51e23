"""Work that begins on a thread of its own, before its result is needed.

If a read of the store takes microseconds, a thread would take longer than it saves: then the work is done when its
result is requested. Knows nothing of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")


class Ahead(Generic[_T]):
    """`result` gives what the work came to, or raises what it raised."""

    __slots__ = ("_done", "_error", "_rest", "_thread", "_work")

    def __init__(self, work: Callable[..., _T], *rest: Any, beside: bool = True) -> None:
        self._work, self._rest = work, rest
        self._done: _T
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if beside:
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

    def result(self) -> _T:
        if self._thread is None:
            return self._work(*self._rest)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._done


class Several:
    """The same work for each of many items, on a limited number of threads; the results are in their order.

    The first failure is raised while others are still running: they may take long, and are no longer needed.
    """

    __slots__ = ("_error", "_found", "_lanes", "_most", "_over", "_waiting", "_work")

    def __init__(self, work: Callable[[Any], Any], things: Sequence[Any], *, most: int, beside: bool = True) -> None:
        self._work = work
        self._found: dict[int, Any] = {}
        self._most = len(things)
        self._error: BaseException | None = None
        self._over: threading.Event | None = None  # all is done, or something has failed
        self._waiting = list(enumerate(things))[::-1]
        lanes = min(most, len(things)) if beside else 1
        if beside and lanes:
            import threading

            self._over = threading.Event()
        self._lanes = [Ahead(self._run, beside=beside) for _ in range(lanes)]

    def _run(self) -> None:
        while self._waiting:
            try:
                number, thing = self._waiting.pop()
            except IndexError:  # another thread was quicker
                return
            try:
                self._found[number] = self._work(thing)
            except BaseException as error:
                self._waiting.clear()
                self._error = self._error or error
                self._end()
                raise
            if len(self._found) == self._most:
                self._end()

    def _end(self) -> None:
        if self._over is not None:
            self._over.set()

    @property
    def pending(self) -> bool:
        return self._over is not None and not self._over.is_set()

    def result(self) -> list[Any]:
        if self._over is None:
            for lane in self._lanes:
                lane.result()
        else:
            self._over.wait()
            if self._error is not None:
                raise self._error
        return [self._found[number] for number in sorted(self._found)]
