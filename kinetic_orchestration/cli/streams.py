"""The streams of a command: what it prints is seen, and a terminal obeys nothing of it but colours."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from kinetic_orchestration.protocol.system import escaping


class Guarded:
    """A stream to a terminal, directly or through a pipe, from which all control sequences but colours are removed. It
    is the last of several guards: names and messages are cleaned where they are shown.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(escaping.log(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unguarded(stream: Any) -> TextIO:
    """The stream itself, for code that draws on a terminal, with clean text."""
    found: TextIO = stream.stream if isinstance(stream, Guarded) else stream
    return found


@contextmanager
def guarded() -> Iterator[None]:
    """Guard a command's output, warnings and errors within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Guarded(before[0]), Guarded(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
