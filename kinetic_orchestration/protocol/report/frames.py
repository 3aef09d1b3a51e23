"""The log of a host: frames of whole lines, in segments.

A frame is a header line (`RS kind microseconds length checksums`), then that many bytes. Its payload is never scanned
line by line, so a flood of a million lines costs no more than moving its bytes. Bytes arrive as the program wrote them:
a line is split only at its end, a newline or a carriage return.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

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
_LONGEST_HEADER = 100


class Frame(NamedTuple):
    kind: str
    time: float
    payload: bytes
    segment: int
    offset: int  # of the frame in its segment: with host and segment, unique and the same at each reading


def encode(kind: str, time: float, payload: bytes) -> bytes:
    header = b"%b%b %d %d" % (_MARK, kind.encode(), int(time * 1e6), len(payload))
    return b"%b c%08x%08x\n%b" % (header, crc32(header), crc32(payload), payload)


def decode(data: bytes, segment: int = 0, offset: int = 0) -> tuple[list[Frame], int]:
    """The whole frames in `data`, and the number of bytes they took; it ends at a truncated frame.

    A damaged part becomes a note of its size, and reading continues at the next header whose checksum is right. Without
    one it ends there, too: it was torn by a power cut, and zeros, or unrelated bytes, follow.
    """
    frames: list[Frame] = []
    at = 0
    while True:
        end = data.find(b"\n", at)
        found = None if end < 0 else _header(data[at:end])
        if found is None:
            if end < 0 and len(data) - at < _LONGEST_HEADER:
                return frames, at
            after, time = _next_header(data, at + 1)
            if after < 0:
                return frames, at
            frames.append(damaged(after - at, frames[-1].time if frames else time, segment, offset + at))
            at = after
            continue
        kind, time, length, checksum = found
        stop = end + 1 + length
        if stop > len(data):
            return frames, at
        payload = data[end + 1 : stop]
        if checksum is None or b"%08x" % crc32(payload) == checksum:
            frames.append(Frame(kind, time, payload, segment, offset + at))
        else:
            frames.append(damaged(stop - at, time, segment, offset + at))
        at = stop


def damaged(count: int, time: float, segment: int, offset: int) -> Frame:
    """A note in place of that many damaged bytes."""
    return Frame(NOTE, time, f"{count} bytes of the log are damaged\n".encode(), segment, offset)


def length_of(data: bytes) -> int:
    """Return the length in bytes of the frame that `data` begins with, its header included; 0 if that is none."""
    end = data.find(b"\n", 0, _LONGEST_HEADER)
    found = None if end < 0 else _header(data[:end])
    return 0 if found is None else end + 1 + found[2]


def _header(line: bytes) -> tuple[str, float, int, bytes | None] | None:
    """Kind, time, length and the payload's checksum, which an older agent does not write; None if it is damaged."""
    parts = line.split(b" ")
    if len(parts) not in (3, 4) or line[:1] != _MARK:
        return None
    time, length = parts[1], parts[2]
    if not (time.isdigit() and length.isdigit() and len(time) < 20 and len(length) < 20):
        return None
    checksum = None
    if len(parts) == 4:
        checksums = parts[3]
        if len(checksums) != 17 or checksums[:9] != b"c%08x" % crc32(line[:-18]):
            return None
        checksum = checksums[9:]
    return parts[0][1:].decode("utf-8", "replace"), int(time) / 1e6, int(length), checksum


def _next_header(data: bytes, start: int) -> tuple[int, float]:
    """The position of the next header with a correct checksum, and its time; -1 if there is none."""
    at = data.find(_MARK, start)
    while at >= 0:
        end = data.find(b"\n", at, at + _LONGEST_HEADER)
        found = None if end < 0 else _header(data[at:end])
        if found is not None and found[3] is not None:
            return at, found[1]
        at = data.find(_MARK, at + 1)
    return -1, 0.0


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
        """True if the remainder is a whole line if nothing follows it."""
        return self._rest[-1:] == b"\r"

    def flush(self) -> bytes:
        """The remainder without an end of line."""
        whole = bytes(self._rest)
        self._rest = bytearray()
        return whole
