"""A port of this machine that leads to one of a host: a listener on loopback, and a stream for each of its connections.

Where a way carries programs and no ports, each connection is a tiny relay that runs on the host (`RELAY`). This module
knows no way: it is given what opens a stream.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kinetic_orchestration.errors import HostNotReached, KineticError, UsageError
from kinetic_orchestration.reach.channel import ERR, Channel

LOOPBACK: Final = "127.0.0.1"
_READ: Final = 64 << 10
_WORDS: Final = 2000  # bytes of what a relay says that are kept
_LAST_WORDS: Final = 2.0  # seconds for them, of a process that has ended: others may hold that pipe open
_MOST: Final = 64  # connections at once

# Runs on a host, of whatever Python 3: its input and output are a connection to a port there.
RELAY: Final = """
import os, socket, sys, threading
try:
    port = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
except OSError as error:
    sys.exit("nothing listens at port %s of this host: %s" % (sys.argv[1], error))
port.settimeout(None)
if sys.argv[2:] == ["--try"]:
    sys.exit(0)
def up():
    try:
        data = os.read(0, 65536)
        while data:
            port.sendall(data)
            data = os.read(0, 65536)
        port.shutdown(socket.SHUT_WR)
    except OSError:
        pass
threading.Thread(target=up, daemon=True).start()
try:
    data = port.recv(65536)
    while data:
        while data:
            data = data[os.write(1, data):]
        data = port.recv(65536)
except OSError:
    pass
os._exit(0)
"""


class Stream(Protocol):
    """A connection to a host's port."""

    def pass_on(self, connection: socket.socket) -> None:
        """Pass bytes on between it and a connection of this machine, until either ends."""

    def close(self) -> None:
        """End it."""


def relay(port: int, *more: str) -> list[str]:
    """Return the command of the relay to a port of its host."""
    return ["python3", "-c", RELAY, str(port), *more]


def bound(port: int) -> socket.socket:
    """Return a socket at a port of loopback, 0 for any. Raises UsageError if it is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {port} of this machine cannot be had ({error.strerror}): name another one, as 6006:6007 does"
        ) from error
    return listener


def listening(port: int) -> socket.socket:
    """The same, and it listens: whoever is told of it may connect at once."""
    listener = bound(port)
    listener.listen(_MOST)
    return listener


def serve(listener: socket.socket, opened: Callable[[], Stream], tell: Callable[[str], object]) -> None:
    """Accept connections until the process is interrupted, each with a stream of its own.

    Args:
        listener: A socket as `listening` returns it.
        opened: Opens a stream. Raises KineticError.
        tell: Called with why one could not be opened, or failed.
    """
    room = threading.Semaphore(_MOST)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        room.acquire()
        threading.Thread(target=_serve, args=(connection, opened, tell, room), daemon=True).start()


def _serve(
    connection: socket.socket, opened: Callable[[], Stream], tell: Callable[[str], object], room: threading.Semaphore
) -> None:
    with connection, contextlib.ExitStack() as ends:
        ends.callback(room.release)
        try:
            stream = opened()
            ends.callback(stream.close)
            stream.pass_on(connection)
        except KineticError as error:
            tell(str(error))
        except OSError:
            pass  # either end has gone


class InPod:
    """A connection whose relay runs in a pod."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._said = b""

    def pass_on(self, connection: socket.socket) -> None:
        channel, own, listens, coming = self._channel, connection.fileno(), True, b""
        connection.setblocking(False)
        while channel.code is None:
            read = (own,) if listens and not channel.is_full else ()
            ready = channel.wait(*read, into=(own,) if coming else (), listens=not coming)
            if own in ready and read and (data := _received(connection)) is not None:
                listens = bool(data)
                channel.send(data) if data else channel.end_input()
                if not data and not channel.closes_input:
                    return
            if coming:  # who connects may read later: what it sends goes on meanwhile
                coming = coming[_sent(connection, coming) :]
            elif channel.fileno() in ready:
                coming = self._heard()
        connection.setblocking(True)
        connection.sendall(coming)
        if channel.code:
            raise HostNotReached(self._said[:_WORDS].decode("utf-8", "replace").strip() or f"exit code {channel.code}")

    def _heard(self) -> bytes:
        """Return what has come from the port, and keep what the relay says."""
        found = self._channel.read()
        self._said += b"".join(said.data[:_WORDS] for said in found if said.channel == ERR)
        return b"".join(said.data for said in found if said.channel != ERR)

    def close(self) -> None:
        self._channel.close()


def _received(connection: socket.socket) -> bytes | None:
    """Return what has come; "" at its end, None if there is nothing yet. Raises OSError."""
    try:
        return connection.recv(_READ)
    except BlockingIOError:
        return None


def _sent(connection: socket.socket, data: bytes) -> int:
    """Send as much as there is room for; return how much that is. Raises OSError."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


class InProcess:
    """A connection that is the input and output of a process of this machine, such as ssh."""

    def __init__(self, command: Sequence[str], environ: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(list(command), bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)
        self._said = b""
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        """Keep the beginning of what the process says beside its output, and take the rest, for which it would wait."""
        assert self._process.stderr is not None
        while words := self._process.stderr.read(_READ):
            self._said += words[: _WORDS - len(self._said)]

    def pass_on(self, connection: socket.socket) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        _pass_between(connection, process.stdin.fileno(), process.stdout.fileno(), process.stdin.close)
        if process.wait():
            self._hearing.join(_LAST_WORDS)
            words = self._said.decode("utf-8", "replace").strip()
            raise HostNotReached(words.removeprefix("kinetic: ") or f"exit code {process.returncode}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._hearing.join(_LAST_WORDS)
        heard = () if self._hearing.is_alive() else (self._process.stderr,)
        for stream in (self._process.stdin, self._process.stdout, *heard):
            if stream is not None:
                stream.close()


class Direct:
    """A connection to another port of this machine."""

    def __init__(self, port: int) -> None:
        try:
            self._other = socket.create_connection((LOOPBACK, port), 10)
        except OSError as error:
            raise HostNotReached(f"nothing listens at port {port} of this machine: {error}") from error
        self._other.settimeout(None)

    def pass_on(self, connection: socket.socket) -> None:
        other = self._other
        _pass_between(connection, other.fileno(), other.fileno(), lambda: other.shutdown(socket.SHUT_WR))

    def close(self) -> None:
        self._other.close()


def _pass_between(connection: socket.socket, into: int, out: int, end: Callable[[], object]) -> None:
    """Pass bytes on between a connection and a host's two files until that sends no more; neither waits for the other.

    `end` tells the host that nothing more comes. Raises OSError if the connection is lost.
    """
    own = connection.fileno()
    for file in (own, into, out):
        os.set_blocking(file, False)
    up, down, open_ = b"", b"", {own, out}
    while out in open_ or down:
        read = [file for file in open_ if not (up if file == own else down)]
        room = select.select(read, [*([into] if up else ()), *([own] if down else ())], ())
        if own in room[0] and not (up := os.read(own, _READ)):
            open_.discard(own)
            end()
        if out in room[0] and not (down := _read(out)):
            open_.discard(out)
        if down and own in room[1]:
            down = down[os.write(own, down) :]
        if up and into in room[1]:
            try:
                up = up[os.write(into, up) :]
            except (BrokenPipeError, ConnectionError):  # it reads no more, and may still say why
                up = b""
                open_.discard(own)


def _read(file: int) -> bytes:
    try:
        return os.read(file, _READ)
    except ConnectionError:
        return b""
