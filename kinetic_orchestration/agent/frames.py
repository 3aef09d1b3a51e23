"""The log of a host: frames of whole lines, in segments.

A frame is a header line (`RS kind microseconds length`), then that many bytes. Its payload is never looked at
line by line, so a flood of a million lines costs what moving its bytes costs. Bytes arrive as the program
wrote them: a line is split only where it ends, at a newline or a carriage return.
"""

from __future__ import annotations

from typing import NamedTuple

OUT = "o"
ERR = "e"
NOTE = "n"  # the agent's own words: stack dumps, warnings
METRICS = "m"  # JSON: {"step": …, "values": {…}}
PROGRESS = "p"  # JSON: {"done": …, "total": …, "unit": …}
SPENT = "t"  # of a program's events only: what its time went to, {"name": …, "spent": […]}
PROFILE = "x"  # of a program's events only: that it was captured. The agent keeps it as a record
NEXT = ">"  # the segment is full; the next number follows

SEGMENT_BYTES = 4 << 20
LONGEST_LINE = 16 << 20

_MARK = b"\x1e"


class Frame(NamedTuple):
    kind: str
    time: float
    payload: bytes
    segment: int
    offset: int  # of the frame in its segment: with host and segment, unique and the same at each reading


def encode(kind: str, time: float, payload: bytes) -> bytes:
    return b"%b%b %d %d\n%b" % (_MARK, kind.encode(), int(time * 1e6), len(payload), payload)


def decode(data: bytes, segment: int = 0, offset: int = 0) -> tuple[list[Frame], int]:
    """The whole frames in `data`, and how many bytes they took; at a frame that is cut or torn it ends."""
    frames: list[Frame] = []
    at = 0
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            return frames, at
        header = data[at:end].split(b" ")
        numbers = header[1:]
        if header[0][:1] != _MARK or len(numbers) != 2 or not all(n.isdigit() and len(n) < 20 for n in numbers):
            return frames, at  # torn by a power cut: zeros, or bytes of nobody's
        stop = end + 1 + int(header[2])
        if stop > len(data):
            return frames, at
        kind, time = header[0][1:].decode("utf-8", "replace"), int(header[1]) / 1e6
        frames.append(Frame(kind, time, data[end + 1 : stop], segment, offset + at))
        at = stop


def length_of(data: bytes) -> int:
    """Return the length in bytes of the frame that `data` begins with, its header included; 0 if that is none."""
    end = data.find(b"\n", 0, 100)
    header = data[: max(0, end)].split(b" ")
    if header[0][:1] != _MARK or len(header) != 3 or not (header[2].isdigit() and len(header[2]) < 20):
        return 0
    return end + 1 + int(header[2])


class Lines:
    """Cuts a stream of bytes where lines end, and keeps the rest for the next piece."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The whole lines that are there now."""
        cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1  # at the end, "\r" may be half of "\r\n"
        if cut == 0:
            whole = self.flush() if self.ended else b""
            self._rest += data
            return whole or (self.flush() if len(self._rest) > LONGEST_LINE else b"")
        if cut == len(data) and not self._rest:
            return data
        whole = bytes(self._rest) + data[:cut]
        self._rest = bytearray(data[cut:])
        return whole

    @property
    def ended(self) -> bool:
        """Whether what is kept is whole after all, once nothing follows it."""
        return self._rest[-1:] == b"\r"

    def flush(self) -> bytes:
        """What has come without an end of line."""
        whole = bytes(self._rest)
        self._rest = bytearray()
        return whole
