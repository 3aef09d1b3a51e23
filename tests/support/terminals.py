"""The reading end of a terminal, or of a pipe."""

from __future__ import annotations

import os


def read_out(ours: int) -> bytes:
    """Read what the other end wrote until it is closed, and close this one.

    One read is not enough: the kernel hands on what a terminal was written in pieces, when it has the time.
    """
    pieces = []
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # a terminal's way to say so
            piece = b""
        if not piece:
            os.close(ours)
            return b"".join(pieces)
        pieces.append(piece)
