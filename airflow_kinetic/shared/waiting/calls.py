"""Blocking calls in threads: in a task's process, and on an event loop that a thousand triggers share.

The loop's own pool has a handful of threads: when a triggerer takes over all triggers of another one, or a DAG run with
hundreds of tasks is killed, the last of them would wait for minutes behind the first. Here each call has its own
thread, up to a few dozen of a kind concurrently, and its time counts from its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from kinetic_orchestration.protocol.system.parallel import Ahead

AT_ONCE = 32

R = TypeVar("R")

_uninterrupted: set[asyncio.Task[Any]] = set()  # an event loop holds its tasks by weak references
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


class TooSlow(Exception):
    """The call was given up. Its thread ends when the call does. The message is a clause about the time."""


async def run(function: Callable[[], R], *, within: float | None = None, kind: str = "") -> R:
    """Run the function in a thread and return its value. A cancellation keeps its message, which tells Airflow its
    origin.

    Calls of different kinds do not wait for one another: a kill cannot wait for stores that do not answer.
    """
    loop = asyncio.get_running_loop()
    async with _gates.setdefault(loop, {}).setdefault(kind, asyncio.Semaphore(AT_ONCE)):
        try:
            async with asyncio.timeout(within) as bound:
                return await _started(function, loop)
        except TimeoutError:
            if within is not None and bound.expired():
                raise TooSlow(f"no answer within {within:.0f} s") from None
            raise


async def uninterrupted(work: Coroutine[Any, Any, R]) -> R:
    """Await the work as a task of its own, which goes on after a cancellation of this call while the loop runs."""
    task = asyncio.create_task(work)
    _uninterrupted.add(task)
    task.add_done_callback(_uninterrupted.discard)
    return await asyncio.shield(task)


@contextmanager
def in_background(work: Callable[..., object], *given: Any) -> Iterator[Ahead[object]]:
    """Do a piece of work on a thread while the block runs. The block ends with it, or with what it raised."""
    ahead = Ahead(contextvars.copy_context().run, work, *given)
    try:
        yield ahead
    except BaseException:
        with contextlib.suppress(Exception):
            ahead.result()
        raise
    ahead.result()


def _started(function: Callable[[], R], loop: asyncio.AbstractEventLoop) -> asyncio.Future[R]:
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            settle: tuple[Callable[[Any], None], Any] = future.set_result, context.run(function)
        except Exception as error:
            settle = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_settle, future, *settle)

    threading.Thread(target=work, name="kinetic-airflow", daemon=True).start()
    return future


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    if not future.done():  # else cancelled
        settle(value)
