"""The notice to end this program: its agent writes a file before it sends SIGTERM, and a thread polls for it.

SIGTERM alone does not show whether there will be another attempt, and is not always ours to handle: once JAX's hosts
have joined, its own handler, in C, takes it. That one keeps the process alive too, so it is left in place; Python's
default would not, and is replaced while there is a listener.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.attempt_rules import GRACE
from kinetic_orchestration.protocol.system.processes import catches, leave_forks

PACE = 0.1
SAVES = (wire.PREEMPTION, wire.DEADLINE, wire.STALL)  # another attempt may resume from the checkpoint


class Notice(NamedTuple):
    """Request to end: the cause, and the seconds that are left."""

    cause: str
    grace: float

    @property
    def saves(self) -> bool:
        return self.cause in SAVES

    @property
    def together(self) -> bool:
        """True if all hosts are alive and received the request: one that failed can agree to nothing."""
        return self.saves or self.cause == wire.CANCELLED


# The cause of a SIGTERM without a notice: a machine that is taken away, or a user with `kill`.
UNEXPLAINED = Notice(wire.PREEMPTION, GRACE[wire.PREEMPTION])


class Listener:
    """Calls a function once, on a thread of its own, when this program is asked to end.

    Args:
        path: File in which the agent writes the request.
        heard: Returns the function, or None once its owner is gone.
    """

    def __init__(self, path: str, receiver: Callable[[], Callable[[Notice], None] | None]) -> None:
        self._path = path
        self._receiver = receiver
        self._woken = threading.Event()
        self._signalled = self._closed = False
        self._before: Any = None
        self._process = os.getpid()

    def open(self) -> None:
        if threading.current_thread() is threading.main_thread() and not _is_foreign(signal.SIGTERM):
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            _installed.append(self)
        threading.Thread(target=self._listen, name="kinetic-notice", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._woken.set()
        if threading.current_thread() is threading.main_thread():
            self.uninstall()

    def uninstall(self) -> None:
        """Restore the signal's handler. A listener installed later then restores the one from before this."""
        if self not in _installed:
            return
        _installed.remove(self)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before)
        for later in _installed:
            if later._before == self._on_signal:
                later._before = self._before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A listener that was closed on another thread, where no handler can be changed, or a worker that C forked.
        gone = self._closed and signal.getsignal(number) == self._on_signal
        if gone or os.getpid() != self._process:
            signal.signal(number, self._before)
            os.kill(os.getpid(), number)
            return
        self._signalled = True
        self._woken.set()
        if callable(self._before):  # the program's own
            self._before(number, frame)

    def _listen(self) -> None:
        while not self._closed:
            signalled = self._signalled
            if (notice := _read(self._path)) is not None or signalled:
                if (receiver := self._receiver()) is not None:
                    receiver(notice or UNEXPLAINED)
                return
            self._woken.wait(PACE)


_installed: list[Listener] = []  # in the order in which they took the signal over from each other


def _forked() -> None:
    """A worker of a data loader or of a pool ends at a SIGTERM as it would without us: at once."""
    while _installed:
        _installed[-1].uninstall()


leave_forks(_forked)


def _is_foreign(number: int) -> bool:
    """Return True if the signal has a handler in C, unknown to Python: the kernel's mask shows it."""
    if signal.getsignal(number) not in (signal.SIG_DFL, None):
        return False
    caught = catches("self", number)
    return signal.getsignal(number) is None if caught is None else caught


def _read(path: str) -> Notice | None:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - ten times a second
            told = json.load(file)
        return Notice(str(told["cause"]), float(told["grace"]))
    except (OSError, ValueError, KeyError):
        return None
