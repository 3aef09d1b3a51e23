"""The protocol within a WebSocket of Identity-Aware Proxy: frames, and what either side has of the other's bytes. Pure.

The bytes of a connection outlive the WebSocket that they came by: each side keeps what the other has not confirmed, and
after a reconnection goes on where the other's bytes end. Source: gcloud's `iap_tunnel_websocket*.py` and IAP Desktop.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

PROTOCOL: Final = "relay.tunnel.cloudproxy.app"
CONNECTED, RECONNECTED, DATA, ACK, LONG_CLOSE = 1, 2, 4, 7, 10
MOST: Final = 16384  # bytes of one frame of data
ACK_AFTER: Final = 2 * MOST  # bytes that have come, after which the other side is told so
WINDOW: Final = 1 << 20  # bytes that may be on their way
_TEXT: Final = 4096  # bytes of a session's name, or of a reason


class Broken(Exception):
    """The other side does not keep to the protocol."""


class Ended(Exception):
    """The proxy ends the connection, with a code and its reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class Relay:
    """One end of a connection through the proxy.

    Attributes:
        session: Name of the connection, as the proxy tells it; "" before that.
        received: Bytes that have come.
        is_open: True once the proxy has said so on the WebSocket of now.
    """

    def __init__(self) -> None:
        self.session = ""
        self.received = 0
        self.is_open = False
        self._told = 0  # bytes that the other side knows to have come
        self._confirmed = 0  # bytes of ours that have come there
        self._sent = 0
        self._kept: deque[bytes] = deque()  # what is sent and not confirmed

    @property
    def moved(self) -> int:
        """Bytes of both directions that have arrived: if it stays the same, the connection brings nothing."""
        return self.received + self._confirmed

    @property
    def has_room(self) -> bool:
        """True if more may be sent before the other side confirms some of it."""
        return self._sent - self._confirmed < WINDOW

    def data(self, data: bytes) -> list[bytes]:
        """Return the frames that send bytes, which are kept until they are confirmed."""
        parts = [data[at : at + MOST] for at in range(0, len(data), MOST)]
        self._kept.extend(parts)
        self._sent += len(data)
        return [_text(DATA, part) for part in parts]

    def lost(self) -> None:
        """Note that the WebSocket is no more."""
        self.is_open = False

    def again(self) -> list[bytes]:
        """Return the frames of what the other side has not got."""
        return [_text(DATA, part) for part in self._kept]

    def confirmation(self) -> bytes | None:
        """Return the frame that tells how much has come, once that is due."""
        if not self.is_open or self.received - self._told <= ACK_AFTER:
            return None
        self._told = self.received
        return struct.pack(">HQ", ACK, self.received)

    def take(self, message: bytes) -> bytes:
        """Return the bytes that a message brings.

        Raises:
            Ended: The proxy ends the connection.
            Broken: The message is not of the protocol.
        """
        brought: list[bytes] = []
        while message:
            if len(message) < 2:
                raise Broken("a frame has no kind")
            kind = int.from_bytes(message[:2], "big")
            if kind in (ACK, RECONNECTED):
                self._take_number(kind, _read(message, 2, 8))
                message = message[10:]
                continue
            if kind not in (CONNECTED, DATA, LONG_CLOSE):
                break  # of a later version, which says nothing of its length
            at = 6 if kind == LONG_CLOSE else 2
            size = _read(message, at, 4)
            text = message[at + 4 : at + 4 + size]
            if len(text) < size or size > (MOST if kind == DATA else _TEXT):
                raise Broken("a frame has another length than it says")
            if kind == LONG_CLOSE:
                raise Ended(_read(message, 2, 4), text.decode("utf-8", "replace"))
            brought.append(self._take_text(kind, text))
            message = message[at + 4 + size :]
        return b"".join(brought)

    def _take_text(self, kind: int, text: bytes) -> bytes:
        if kind == CONNECTED:
            if self.is_open or self.session:
                raise Broken("a connection began a second time")
            self.session, self.is_open = text.decode("ascii", "replace"), True
            return b""
        if not self.is_open:
            raise Broken("bytes came before the connection began")
        self.received += len(text)
        return text

    def _take_number(self, kind: int, count: int) -> None:
        if kind == RECONNECTED:
            if self.is_open or not self.session:
                raise Broken("a connection that was not lost was resumed")
            self.is_open, self._told = True, self.received
        elif not self.is_open or count == 0:
            raise Broken("bytes were confirmed before any were sent")
        if not self._confirmed <= count <= self._sent:
            raise Broken(f"{count} bytes were confirmed, of {self._sent} that were sent")
        while self._confirmed < count:
            part, more = self._kept.popleft(), count - self._confirmed
            if len(part) > more:
                self._kept.appendleft(part[more:])
            self._confirmed += min(len(part), more)


def _read(message: bytes, at: int, width: int) -> int:
    if len(message) < at + width:
        raise Broken("a frame is shorter than its kind")
    return int.from_bytes(message[at : at + width], "big")


def _text(kind: int, text: bytes) -> bytes:
    return struct.pack(">HI", kind, len(text)) + text
