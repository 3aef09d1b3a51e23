"""Google's side of Identity-Aware Proxy: tunnels by WebSocket to the sshd of emulated VMs, which a test may cut.

It has the frames of Google's protocol by a hand of its own: nothing here is the client's. A connection to a VM outlives
its WebSocket: what the client has not confirmed is sent again once it comes back.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kinetic_orchestration.reach.websocket import Closed, WebSocket

PROTOCOL: Final = "relay.tunnel.cloudproxy.app"
ORIGIN: Final = "bot:iap-tunneler"
PATHS: Final = ("/v4/connect", "/v4/reconnect")
PERMISSION: Final = "iap.tunnelInstances.accessViaIAP"
_CONNECTED, _RESUMED, _DATA, _ACK = 1, 2, 4, 7
_MOST: Final = 16384
_UNCONFIRMED: Final = 1 << 20  # bytes of a VM that the client has not confirmed: more are not read from it
_ACK_AFTER: Final = 2 * _MOST
_BAD, _UNREACHED, _NOT_ALLOWED, _UNKNOWN, _NO_SESSION = 4010, 4003, 4033, 4047, 4001

Reached = Callable[[str, str, str, socket.socket], bool | None]


class _Session:
    """A connection to a VM: its end here, and what either side has of the other's bytes."""

    def __init__(self, vm: socket.socket) -> None:
        self.sid = secrets.token_hex(16)
        self.vm = vm
        self.received = self.confirmed = self.base = 0
        self.kept = bytearray()  # of the VM's bytes from `base` on, those that the client has not confirmed
        self.cut_after: int | None = None  # of the VM's bytes on the WebSocket of now
        self.in_use = threading.Lock()


class Tunnels:
    """All tunnels of a cloud.

    Args:
        reach: Connects a socket to the sshd of the VM of that project, zone and name; False if nothing answers
            there, and None if there is no such VM.
        allow: Returns True if a client may use tunnels to a VM of that project.

    Attributes:
        resumed: How often a lost WebSocket was followed by another one.
    """

    def __init__(self, reach: Reached, allow: Callable[[str], bool]) -> None:
        self._reach = reach
        self._allow = allow
        self._sessions: dict[str, _Session] = {}
        self._cuts: deque[int] = deque()
        self._refusals: deque[tuple[int, str]] = deque()
        self.resumed = 0

    # What a test does to them

    def cut(self, *after: int) -> None:
        """Have the next WebSockets break, each in the middle of a frame after so many bytes of a VM."""
        self._cuts.extend(after)

    def refuse(self, code: int, reason: str = "") -> None:
        """Have the next WebSocket be closed with that code."""
        self._refusals.append((code, reason))

    def close(self) -> None:
        """End all connections to VMs."""
        for session in list(self._sessions.values()):
            self._end(session)

    # How they are served

    def serve(self, client: WebSocket, path: str, query: Mapping[str, str]) -> None:
        """Serve one WebSocket until it ends."""
        try:
            session = self._begun(path, query)
        except Closed as refused:
            client.close(refused.code, refused.reason)
            return
        with session.in_use:
            session.cut_after = self._cuts.popleft() if self._cuts else None
            try:
                if path == PATHS[0]:
                    client.send(_text(_CONNECTED, session.sid.encode()))
                else:
                    self._resume(client, session, int(query["ack"]))
                while self._step(client, session):
                    pass
            except (OSError, ValueError):  # the client has gone, and may come back
                client.drop()
                return
            except Closed as closed:
                self._end(session)
                client.close(closed.code, closed.reason)

    def _begun(self, path: str, query: Mapping[str, str]) -> _Session:
        """Return the session of a request. Raises Closed."""
        if self._refusals:
            raise Closed(*self._refusals.popleft())
        if path == PATHS[1]:
            session = self._sessions.get(query.get("sid", ""))
            if session is None or not query.get("ack", "").isdecimal():
                raise Closed(_NO_SESSION, "unknown session")
            return session
        if not query.get("instance") or query.get("interface") != "nic0" or query.get("port") != "22":
            raise Closed(_BAD, "bad request")
        if not self._allow(query.get("project", "")):
            raise Closed(_NOT_ALLOWED, "not authorized")
        ours, theirs = socket.socketpair()
        with theirs:
            found = self._reach(query.get("project", ""), query.get("zone", ""), query["instance"], theirs)
        if not found:
            ours.close()
            raise (
                Closed(_UNKNOWN, "failed to lookup instance")
                if found is None
                else Closed(_UNREACHED, "failed to connect to backend")
            )
        session = _Session(ours)
        self._sessions[session.sid] = session
        return session

    def _resume(self, client: WebSocket, session: _Session, ack: int) -> None:
        if not session.base <= ack <= session.base + len(session.kept):
            raise Closed(_NO_SESSION, "these bytes are gone")
        self.resumed += 1
        client.send(struct.pack(">HQ", _RESUMED, session.received))
        del session.kept[: ack - session.base]
        session.base, session.confirmed = ack, session.received
        for at in range(0, len(session.kept), _MOST):
            self._send(client, session, bytes(session.kept[at : at + _MOST]))

    def _step(self, client: WebSocket, session: _Session) -> bool:
        """Pass on what has come from either side. Raises Closed once either is at its end."""
        readable = (session.vm.fileno(),) if len(session.kept) < _UNCONFIRMED else ()
        ready = client.wait(*readable)
        if client.fileno() in ready:
            for message in client.messages():
                self._take(session, message)
            if session.received - session.confirmed > _ACK_AFTER:
                session.confirmed = session.received
                client.send(struct.pack(">HQ", _ACK, session.received))
        if session.vm.fileno() in ready:
            data = session.vm.recv(_MOST)
            if not data:
                raise Closed(1000, "")
            session.kept += data
            self._send(client, session, data)
        return True

    def _send(self, client: WebSocket, session: _Session, data: bytes) -> None:
        """Send bytes of the VM, or break the connection in the middle of them if that is due."""
        if session.cut_after is not None and len(data) >= session.cut_after:
            client.send(_text(_DATA, data[: session.cut_after]))
            raise ConnectionAbortedError("cut by a test")
        if session.cut_after is not None:
            session.cut_after -= len(data)
        client.send(_text(_DATA, data))

    def _take(self, session: _Session, message: bytes) -> None:
        kind = int.from_bytes(message[:2], "big")
        if kind == _DATA:
            size = int.from_bytes(message[2:6], "big")
            if size > _MOST or len(message) != 6 + size:
                raise Closed(_BAD, "bad frame")
            session.received += size
            try:
                session.vm.sendall(message[6:])
            except OSError:
                raise Closed(1000, "") from None
        elif kind == _ACK:
            count = int.from_bytes(message[2:10], "big")
            if not session.base <= count <= session.base + len(session.kept):
                raise Closed(_BAD, "bad acknowledgement")
            del session.kept[: count - session.base]
            session.base = count
        else:
            raise Closed(_BAD, "bad frame")

    def _end(self, session: _Session) -> None:
        self._sessions.pop(session.sid, None)
        with contextlib.suppress(OSError):
            session.vm.shutdown(socket.SHUT_RDWR)
        session.vm.close()


def _text(kind: int, text: bytes) -> bytes:
    return struct.pack(">HI", kind, len(text)) + text
