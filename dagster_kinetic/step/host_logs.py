"""A separate captured log for each host of a job, or for each of many jobs, next to that of the step, in the menu of
the run's page.

It is a copy: all lines are in the step's own output too. If Dagster does not support it, nothing is lost.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable

from dagster_kinetic import _compat

MOST_LOGS = 64  # of one step: each is an entry in the menu, and an open file


class HostLogs:
    """Opened one by one, as their first lines come; all of them are closed, and so stored, at the end."""

    def __init__(self, context: _compat.Context, name_of: Callable[[int], str]) -> None:
        self._context = context
        self._name_of = name_of
        self._stack = contextlib.ExitStack()
        self._writers: dict[int, Callable[[bytes], object] | None] = {}
        self._off = _compat.is_direct(context)

    def write(self, index: int, text: bytes) -> None:
        if self._off:
            return
        for each in range(len(self._writers), index + 1):  # in their order, so that the menu has it too
            self._writers[each] = self._open(each)
        writer = self._writers.get(index)
        if writer is not None:
            try:
                writer(text)
            except Exception as error:
                self._writers[index] = None
                self._give_up(f"the log of {self._name_of(index)} ends here ({error})")

    def close(self) -> None:
        """Close the logs. With a log manager in a cloud, this uploads them."""
        self._off = True
        self._writers = {}
        try:
            self._stack.close()
        except Exception as error:
            self._give_up(f"a log of its own could not be stored ({error})")

    def _open(self, index: int) -> Callable[[bytes], object] | None:
        if len(self._writers) >= MOST_LOGS:
            if len(self._writers) == MOST_LOGS:
                self._context.log.info(f"only {MOST_LOGS} logs get an entry of their own; the others' lines are here")
            return None
        name = self._name_of(index)
        try:
            # A restarted step reads all lines again, so its logs are new ones.
            return self._stack.enter_context(
                _compat.captured_log(self._context, name, f"kinetic-{secrets.token_hex(5)}")
            )
        except Exception as error:
            self._off = True
            self._give_up(f"{name} has no log of its own ({type(error).__name__}: {error})")
            return None

    def _give_up(self, why: str) -> None:
        self._context.log.warning(f"{why}; its lines are in the step's own output")
