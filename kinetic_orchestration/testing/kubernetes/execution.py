"""A program that is started in a container of a pod and speaks by a WebSocket: the channels of Kubernetes' exec.

The emulator's API server and the tests' kubelet of a real one have it in common. The frames of the channels are written
here by a hand of their own; the WebSocket beneath them is the client's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kinetic_orchestration.reach.websocket import Closed, WebSocket

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_IN, _OUT, _ERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_READ: Final = 32 << 10
_UNREAD: Final = 1 << 20  # bytes of its input that a program has not read: as long as there are more, none are taken


class Inside(NamedTuple):
    """The way a program is started in a container: its words, its environment, and its folder."""

    words: Sequence[str]
    environ: Mapping[str, str]
    folder: str


def chosen(offered: str) -> str:
    """Return the subprotocol of those that a client offers; "" if none is known."""
    names = [name.strip() for name in offered.split(",")]
    return next((name for name in names if name in PROTOCOLS), "")


def begun(words: Sequence[str], *, tty: bool) -> list[str]:
    """Return how a program is started within its container: one with a terminal leads a session there."""
    return ["setsid", "--ctty", "--wait", *words] if tty else list(words)


def serve(client: WebSocket, inside: Inside, *, takes_input: bool, tty: bool) -> None:
    """Run a program for a client, until it has ended or the client has gone."""
    running = _Running(inside, takes_input=takes_input, tty=tty)
    try:
        code = _passed(client, running)
        client.send(bytes((_STATUS,)) + json.dumps(_status(code)).encode())
        client.close()
    except (OSError, Closed):
        client.drop()
    finally:
        running.close()


def refused(client: WebSocket, message: str) -> None:
    """Tell a client that its program was not started."""
    told = {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
    with contextlib.suppress(OSError):
        client.send(bytes((_STATUS,)) + json.dumps(told).encode())
        client.close()


class _Running:
    """A program with its input and its outputs, or with a terminal in place of them."""

    def __init__(self, inside: Inside, *, takes_input: bool, tty: bool) -> None:
        self._terminal = -1
        slave = -1
        if tty:
            self._terminal, slave = pty.openpty()
        pipe = subprocess.PIPE if takes_input else subprocess.DEVNULL
        self.process = subprocess.Popen(
            list(inside.words), env=dict(inside.environ), cwd=inside.folder, bufsize=0,
            stdin=slave if tty else pipe, stdout=slave if tty else subprocess.PIPE,
            stderr=slave if tty else subprocess.PIPE,
        )  # fmt: skip
        if tty:
            os.close(slave)
        self.unread, self._is_last = bytearray(), False
        if self.into >= 0:
            os.set_blocking(self.into, False)
        own = self.process
        self.outputs = {self._terminal: _OUT} if tty else {own.stdout.fileno(): _OUT, own.stderr.fileno(): _ERR}  # type: ignore[union-attr]

    @property
    def into(self) -> int:
        """The file of its input; -1 if that has ended."""
        pipe = self.process.stdin
        return self._terminal if self._terminal >= 0 else -1 if pipe is None or pipe.closed else pipe.fileno()

    def give(self, data: bytes = b"") -> None:
        """Give it bytes, and what it has not read before them, as far as there is room."""
        self.unread += data
        try:
            while self.unread and self.into >= 0:
                del self.unread[: os.write(self.into, self.unread[:_READ])]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self.unread.clear()
        if self._is_last and self.process.stdin is not None:
            self.process.stdin.close()

    def end_input(self) -> None:
        self._is_last = True
        self.give()

    def resize(self, size: Mapping[str, Any]) -> None:
        if self._terminal >= 0:
            shape = struct.pack("HHHH", int(size.get("Height", 0)), int(size.get("Width", 0)), 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, shape)

    def read(self, file: int) -> bytes | None:
        """Return what it has written; "" at the end, None if there is nothing yet."""
        try:
            return os.read(file, _READ)
        except BlockingIOError:
            return None
        except OSError:  # a terminal whose last program has ended
            return b""

    def close(self) -> None:
        """End it, if it has not ended, and what it reads."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
        if self._terminal >= 0:
            os.close(self._terminal)


def _passed(client: WebSocket, running: _Running) -> int:
    """Pass on what comes from either side; return the exit code. Raises OSError, Closed."""
    left = dict(running.outputs)
    while left:
        into = (running.into,) if running.unread and running.into >= 0 else ()
        listens = len(running.unread) < _UNREAD
        if not listens and _has_gone(client):
            raise ConnectionResetError("the client has gone")
        ready = client.wait(*left, into=into, listens=listens, timeout=0.5)
        if client.fileno() in ready:
            for message in client.messages():
                _take(running, message)
        if into:
            running.give()
        for file in [file for file in left if file in ready]:
            data = running.read(file)
            if data:
                client.send(bytes((left[file],)) + data)
            elif data is not None:
                del left[file]
        if not ready and running.process.poll() is not None and not select.select(list(left), (), (), 0)[0]:
            break  # what it has left behind holds its outputs open
    return running.process.wait()


def _has_gone(client: WebSocket) -> bool:
    """True if a client has closed the connection, though what it sent before that is not read."""
    state = select.poll()
    state.register(client.fileno(), select.POLLRDHUP)
    return bool(state.poll(0))


def _take(running: _Running, message: bytes) -> None:
    channel, data = message[0] if message else _CLOSE, message[1:]
    if channel == _IN:
        running.give(data)
    elif channel == _SIZE:
        running.resize(json.loads(data))
    elif channel == _CLOSE and data == bytes((_IN,)):
        running.end_input()


def _status(code: int) -> dict[str, Any]:
    if not code:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    cause = {"reason": "ExitCode", "message": str(code)}
    message = f"command terminated with non-zero exit code: exit status {code}"
    details = {"causes": [cause]}
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details}
