"""Waits for a debugger of this user alone: a client that attaches runs code as the user whose program it is.

debugpy listens on loopback without authentication, and editors have no token to give. So the kernel is asked for the
owner of each connection. debugpy's adapter, the process to which editors connect, is started through this file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.process.pipes import program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 600.0
CONNECTIONS = ("/proc/net/tcp", "/proc/net/tcp6")  # of this network namespace, with the user of each
_BEGINS = b"content-"  # a message of the debug adapter protocol; a web page can only make a browser send GET


def wait(port: int, beside: str, job: str = "") -> None:
    """Wait for a debugger on loopback, at this port or another that is free; after a while the function runs without.
    `beside` names the files that this needs, `job` the job whose host its users reach by a way only.
    """
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # three lines about frozen modules, in every log
    import debugpy  # noqa: T100

    guarded = os.path.exists(CONNECTIONS[0])
    if guarded:
        debugpy.configure(python=_adapter(f"{beside}.adapter"))
    with _only_mine() if guarded else contextlib.nullcontext():
        try:
            _, port = debugpy.listen(("127.0.0.1", port))  # noqa: T100
        except RuntimeError:  # another session has it
            _, port = debugpy.listen(("127.0.0.1", 0))  # noqa: T100
    os.environ["PYTHONBREAKPOINT"] = "debugpy.breakpoint"
    patience = threading.Timer(PATIENCE, debugpy.wait_for_client.cancel)
    patience.daemon = True
    patience.start()
    open_to_all = "" if guarded else "; this system does not tell who connects, so ANY USER OF THIS MACHINE CAN ATTACH"
    sys.stderr.write(
        f"waiting for a debugger on 127.0.0.1:{port}, for {PATIENCE / 60:g} minutes{open_to_all}; in an editor: "
        f'{{"type": "debugpy", "request": "attach", "connect": {{"host": "127.0.0.1", "port": {port}}}}}\n'
        + (f"to reach it from your machine: kinor port-forward {job} {port}\n" if job else "")
    )
    debugpy.wait_for_client()  # noqa: T100
    patience.cancel()


def _adapter(path: str) -> str:
    """Write a program that runs debugpy's adapter as Python would, but through this file; return its path."""
    words = shlex.join([sys.executable, "-c", program_of(__name__)])
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {words} "$@"\n')
    return path


@contextlib.contextmanager
def _only_mine(kind: type[socket.socket] = socket.socket) -> Iterator[None]:
    """Within this context, make every `accept` of this process close other users' connections and wait for the next."""
    accept = socket.socket.accept

    def of_mine(listener: socket.socket) -> tuple[socket.socket, Any]:
        while True:
            connection, address = accept(listener)
            if is_mine(connection):
                return connection if kind is socket.socket else kind(fileno=connection.detach()), address
            connection.close()

    socket.socket.accept = of_mine  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        socket.socket.accept = accept  # type: ignore[method-assign]


def is_mine(connection: socket.socket) -> bool:
    """Return True if the connection's other end, on this machine, belongs to this user. False if that is not known, as
    for a closed end: the kernel shows it without an inode and, finally, with the user 0.
    """
    try:
        here, there = connection.getsockname(), connection.getpeername()
        rows = {(_shown(there), _shown(here)), (_mapped(there), _mapped(here))}
        for path in CONNECTIONS:
            with open(path, encoding="ascii") as file:
                for line in file:
                    fields = line.split()
                    if (fields[1], fields[2]) in rows and fields[7] == str(os.geteuid()) and fields[9] != "0":
                        return True
    except (OSError, IndexError):
        pass
    return False


def _shown(address: tuple[Any, ...]) -> str:
    """Return the address as the kernel shows it: words of 32 bits in this machine's byte order."""
    host, port = address[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def _mapped(address: tuple[Any, ...]) -> str:
    """Return the address as the kernel shows that of an IPv6 socket which uses IPv4."""
    host, port = address[:2]
    return _shown((host if ":" in host else f"::ffff:{host}", port))


class ProtocolSocket(socket.socket):
    """A connection that passes on the debug adapter protocol only."""

    heard = b""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        count = super().recv_into(buffer, nbytes, flags)
        missing = len(_BEGINS) - len(self.heard)
        if missing > 0:
            self.heard += bytes(memoryview(buffer)[: min(count, missing)]).lower()
            if not _BEGINS.startswith(self.heard):
                return 0  # the end, as it were
        return count


def _outlive_clients() -> None:
    """See to it that no client ends the listening by going too soon: the thread that accepts them writes to each, and
    would end when that fails.
    """
    from debugpy.common import log, sockets

    serve = sockets.serve

    def serve_on(name: str, handler: Callable[[socket.socket], Any], *rest: Any, **more: Any) -> Any:
        def handle(connection: socket.socket) -> None:
            try:
                handler(connection)
            except Exception as error:
                log.info("{0} went before it was answered: {1!r}", name, error)
                connection.close()

        return serve(name, handle, *rest, **more)

    sockets.serve = serve_on


def _stay_connected() -> None:
    """Keep open the connections that this process makes, until its end: the accepting side asks the kernel for their
    owner, which is not shown for a closed one. (The adapter tells the program its ports, and closes at once.)
    """
    connect, kept = socket.socket.connect, []

    def connect_and_stay(own: socket.socket, address: Any) -> None:
        connect(own, address)
        kept.append(own.dup())

    socket.socket.connect = connect_and_stay  # type: ignore[method-assign,assignment]


def main() -> None:
    """Run debugpy's adapter, whose path and words are those of this program."""
    import runpy

    if sys.path[:1] == [""]:
        del sys.path[0]  # of `-c`: a script would not see the folder it runs in
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.dirname(sys.argv[0])))
    __import__("debugpy")  # this one, even if another one is installed
    del sys.path[0]
    _outlive_clients()
    _stay_connected()
    with _only_mine(ProtocolSocket):
        runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)
