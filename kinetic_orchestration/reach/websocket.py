"""The WebSocket protocol (RFC 6455) on a connected socket, for either end: the handshake, binary messages, the close.

One thread has a WebSocket: it never reads while another one writes, which TLS does not allow. Messages are bounded, as
whoever sends them is foreign. This module knows neither addresses nor identities, nor what the messages mean.
"""

from __future__ import annotations

import base64
import hashlib
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

NORMAL: Final = 1000  # a code of a close
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_CONTINUED: Final = 0
_LARGEST: Final = 16 << 20  # bytes of a message
_HEAD: Final = 64 << 10  # bytes of the head of an answer
_BODY: Final = 2 << 10  # bytes of a refusal that are read, for its reason
_READ: Final = 64 << 10
_WRITTEN: Final = 16 << 10  # bytes that are handed over at once: a record of TLS
_GOODBYE: Final = 5.0  # seconds that a close waits for an end that does not read
_MAGIC: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of the protocol, section 1.3
_AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Closed(Exception):
    """The other end has closed the connection, with a code and its reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class NotOpened(Exception):
    """The server has answered the handshake in HTTP: a status, and the beginning of what it says."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body


class Head(NamedTuple):
    """The head of a request or an answer, its names in lower case, and the bytes that came behind it."""

    line: str
    headers: Mapping[str, str]
    rest: bytes


def accept_of(key: str) -> str:
    """Return the answer to the key of a handshake."""
    return base64.b64encode(hashlib.sha1(f"{key}{_MAGIC}".encode(), usedforsecurity=False).digest()).decode()


def opened(
    sock: socket.socket,
    target: str,
    headers: Sequence[tuple[str, str]],
    protocols: Sequence[str],
    *,
    within: float,
) -> WebSocket:
    """Ask a server for a WebSocket, on a connection that is open.

    Args:
        sock: The connection. It is closed if this fails.
        target: The path, with its query.
        headers: Those of the request, `Host` among them.
        protocols: The subprotocols to choose from, the best first.
        within: Seconds for the whole handshake.

    Raises:
        NotOpened: The server refuses.
        ConnectionError, TimeoutError, OSError: It does not answer, or not by the protocol.
    """
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
    own = [*upgrade, ("Sec-WebSocket-Key", key), ("Sec-WebSocket-Protocol", ", ".join(protocols))]
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in (*headers, *own))]
    if any(character in line for line in lines for character in "\r\n"):
        sock.close()
        raise ConnectionError("a header of the request has more than one line")
    deadline = time.monotonic() + within
    try:
        sock.settimeout(within)
        sock.sendall("\r\n".join((*lines, "", "")).encode("latin-1"))
        head = head_of(sock, deadline)
        _, _, status = head.line.partition(" ")
        if not status.startswith("101"):
            raise NotOpened(_number(status[:3]), _reason(sock, head, deadline))
        chosen = head.headers.get("sec-websocket-protocol", "")
        if head.headers.get("sec-websocket-accept") != accept_of(key) or chosen not in protocols:
            raise ConnectionError("the answer to the handshake is none of the WebSocket protocol")
    except BaseException:
        sock.close()
        raise
    return WebSocket(sock, head.rest, protocol=chosen)


def head_of(sock: socket.socket, deadline: float) -> Head:
    """Read the head of a request or an answer. Raises ConnectionError, TimeoutError."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD:
            raise ConnectionError("the head of the answer has no end")
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        piece = sock.recv(_READ)
        if not piece:
            raise ConnectionError("the connection was closed before there was an answer")
        data += piece
    raw, _, rest = data.partition(b"\r\n\r\n")
    line, *lines = raw.decode("latin-1").split("\r\n")
    fields = (text.partition(":") for text in lines)
    return Head(line, {name.strip().lower(): value.strip() for name, _, value in fields}, rest)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _reason(sock: socket.socket, head: Head, deadline: float) -> str:
    """Return the beginning of the body of a refusal, as far as it comes."""
    wanted = min(_number(head.headers.get("content-length", "")) or _BODY, _BODY)
    body = head.rest
    try:
        while len(body) < wanted:
            sock.settimeout(max(0.01, min(deadline - time.monotonic(), 2.0)))
            if not (piece := sock.recv(_READ)):
                break
            body += piece
    except OSError:
        pass  # its status says enough
    return body[:_BODY].decode("utf-8", "replace")


class WebSocket:
    """An open WebSocket.

    Args:
        sock: The connection, after its handshake.
        rest: What has come behind the handshake.
        is_client: False at the server's end, whose own frames are not masked.
        protocol: The subprotocol that was chosen.
    """

    def __init__(self, sock: socket.socket, rest: bytes = b"", *, is_client: bool = True, protocol: str = "") -> None:
        sock.setblocking(False)
        self.protocol = protocol
        self._sock = sock
        self._is_client = is_client
        self._came = bytearray(rest)
        self._parts: list[bytes] = []  # of a message whose end has not come
        self._unsent = bytearray()  # frames that the other end has no room for yet
        self._ended = False  # the other end sends nothing more

    def fileno(self) -> int:
        """Return the number of its connection, for `select`."""
        return self._sock.fileno()

    @property
    def has_more(self) -> bool:
        """True if something has come that `select` does not know of: a whole frame, or bytes within TLS."""
        if self._ended or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0):
            return True
        extent = _extent(self._came)
        return extent is not None and len(self._came) >= sum(extent)

    @property
    def is_full(self) -> bool:
        """True while the other end has no room for all that it was offered."""
        return bool(self._unsent)

    def send(self, data: bytes) -> None:
        """Send one message whole, however late the other end reads it. Raises OSError if the connection is lost."""
        self.offer(data)
        while self._unsent:
            # What is not taken, an end or more than a message, would be there at once each time.
            takes = not self._ended and len(self._came) <= _LARGEST
            select.select((self._sock,) if takes else (), (self._sock,), (), 1.0)
            self._fill()  # the other end may wait for that before it reads
            self._flush()

    def offer(self, data: bytes) -> None:
        """Send one message as far as there is room; `wait` sends the rest. Raises OSError if the connection is lost."""
        self._write(BINARY, data)

    def messages(self) -> list[bytes]:
        """Return the messages that have come, without waiting for any.

        Raises:
            Closed: The other end has closed it, and all messages before that were returned.
            ConnectionError: It was lost, or what came is not of the protocol.
        """
        self._fill()
        found: list[bytes] = []
        while (frame := self._frame()) is not None:
            is_last, kind, data = frame
            if kind == PING:
                self._write(PONG, data)
            elif kind == CLOSE:
                if found:
                    self._came[:0] = _framed(CLOSE, data, b"" if self._is_client else bytes(4))
                    return found
                code = struct.unpack(">H", data[:2])[0] if len(data) > 1 else NORMAL
                raise Closed(code, data[2:].decode("utf-8", "replace"))
            elif kind in (TEXT, BINARY, _CONTINUED):
                if bool(self._parts) != (kind == _CONTINUED):
                    raise ConnectionError("a message was begun within another one")
                self._parts.append(data)
                if sum(map(len, self._parts)) > _LARGEST:
                    raise ConnectionError(f"a message has more than {_LARGEST} bytes")
                if is_last:
                    found.append(b"".join(self._parts))
                    self._parts = []
        if self._ended and not found:
            raise ConnectionResetError("the connection was lost")
        return found

    def wait(
        self, *others: int, into: Sequence[int] = (), listens: bool = True, timeout: float | None = None
    ) -> list[int]:
        """Wait until something can be done, and send what was offered as far as there is room.

        Args:
            others: Other files that may have something to read.
            into: Files that may have room for something that is written.
            listens: False: messages are not waited for.
            timeout: Seconds to wait at most.

        Returns:
            The numbers of the files for which that is so, with this WebSocket's own if messages may have come.
        """
        own, has_more = self.fileno(), listens and self.has_more
        writers = (own, *into) if self._unsent else tuple(into)
        ready, room, _ = select.select((own, *others) if listens else others, writers, (), 0 if has_more else timeout)
        if own in room:
            self._flush()
        return list({*ready, *(file for file in room if file != own), *((own,) if has_more else ())})

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close it, and tell the other end if it still listens."""
        deadline = time.monotonic() + _GOODBYE
        try:
            self._write(CLOSE, struct.pack(">H", code) + reason.encode()[:120])
            while self._unsent and time.monotonic() < deadline:
                select.select((), (self._sock,), (), 1.0)
                self._flush()
            # A socket that is closed with bytes unread resets the connection, and the goodbye may be lost on the way.
            self._sock.shutdown(socket.SHUT_WR)
            while not self._ended and time.monotonic() < deadline:
                if select.select((self._sock,), (), (), max(0.0, deadline - time.monotonic()))[0]:
                    self._came.clear()
                    self._fill()
        except OSError:
            pass
        self.drop()

    def drop(self) -> None:
        """End the connection without a word."""
        self._sock.close()

    # How it is read and written

    def _fill(self) -> None:
        """Take what has come, up to a message's length: the rest is left where it is, so that the sender waits."""
        while not self._ended and len(self._came) <= _LARGEST:
            try:
                piece = self._sock.recv(_READ)
            except _AGAIN:
                return
            except ConnectionError:
                piece = b""
            except ssl.SSLError:  # ended without TLS' own goodbye
                piece = b""
            self._ended = not piece
            self._came += piece
            if not isinstance(self._sock, ssl.SSLSocket) and len(piece) < _READ:
                return

    def _frame(self) -> tuple[bool, int, bytes] | None:
        came = self._came
        extent = _extent(came)
        if extent is None:
            return None
        head, size = extent
        masked = bool(came[1] & 0x80)
        if size > _LARGEST or came[0] & 0x70 or masked == self._is_client:
            raise ConnectionError("a frame came that is not of the WebSocket protocol, or too large")
        if len(came) < head + size:
            return None
        mask = bytes(came[head - 4 : head]) if masked else b""
        data = bytes(came[head : head + size])
        first = came[0]
        del came[: head + size]
        return bool(first & 0x80), first & 0x0F, _masked(data, mask)

    def _write(self, kind: int, data: bytes) -> None:
        self._unsent += _framed(kind, data, os.urandom(4) if self._is_client else b"")
        self._flush()

    def _flush(self) -> None:
        """Send what there is room for. TLS wants what it could not send once more, and no less: it is the first."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent[:_WRITTEN])]
        except _AGAIN:
            pass


def _extent(came: bytearray) -> tuple[int, int] | None:
    """Return how many bytes the head of a frame has, and its data; None if that has not come."""
    if len(came) < 2:
        return None
    size, at = came[1] & 0x7F, 2
    if size > 125:
        width = 2 if size == 126 else 8
        if len(came) < at + width:
            return None
        size, at = int.from_bytes(came[at : at + width], "big"), at + width
    return at + 4 * bool(came[1] & 0x80), size


def _framed(kind: int, data: bytes, mask: bytes) -> bytes:
    size, bit = len(data), 0x80 if mask else 0
    if size < 126:
        head = struct.pack(">BB", 0x80 | kind, bit | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | kind, bit | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, bit | 127, size)
    return head + mask + _masked(data, mask)


def _masked(data: bytes, mask: bytes) -> bytes:
    """Apply a mask, which is its own inverse; "" changes nothing."""
    if not mask or not data:
        return data
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(data), "big")
