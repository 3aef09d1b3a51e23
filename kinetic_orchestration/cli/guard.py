"""The streams of a command: what it prints is seen, and a terminal obeys nothing of it but colours."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from kinetic_orchestration.protocol.system import visible


class Guarded:
    """A stream to a terminal, or on its way to one, whatever a pipe makes of it first: nothing in it is obeyed but
    colours. The last of several guards: what names and messages are is cleaned where they are shown.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible.log(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unguarded(stream: Any) -> TextIO:
    """For who draws on a terminal, with text that is clean."""
    found: TextIO = stream.stream if isinstance(stream, Guarded) else stream
    return found


@contextmanager
def guarded() -> Iterator[None]:
    """Meanwhile, what a command prints, warns of and fails with."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Guarded(before[0]), Guarded(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
