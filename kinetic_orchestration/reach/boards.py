"""TensorBoard and XProf on what a job has written, as a process of this machine: found, started, its end awaited."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from kinetic_orchestration.errors import HostNotReached, UsageError
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.reach import ports

SECONDS: Final = 60.0  # until it listens
_PAUSE: Final = 0.1
# A command of this Python, wherever its scripts are.
_RUN: Final = (
    "import sys; from importlib.metadata import entry_points; del sys.argv[0]; "
    "(found,) = entry_points(group='console_scripts', name=sys.argv[0]); sys.exit(found.load()())"
)


class Board(NamedTuple):
    """A program that shows what jobs write.

    Attributes:
        name: Its name for people.
        package: What is to be installed for it.
        module: Its module.
        program: Its command.
        host: Its option for the address at which it listens; "" if it has none.
        beyond: The module that it needs for buckets; "" if none.
    """

    name: str
    package: str
    module: str
    program: str
    host: str
    beyond: str


TENSORBOARD: Final = Board("TensorBoard", "tensorboard", "tensorboard", "tensorboard", "--host", "gcsfs")
XPROF: Final = Board("XProf", "xprof", "xprof", "xprof", "", "")


def serve(board: Board, folder: str, port: int, ready: Callable[[int], object]) -> int:
    """Run it on a folder or an address of a bucket until it ends; return its exit code.

    Args:
        board: The program.
        folder: What it shows.
        port: Where it listens, on loopback.
        ready: Called with the port once it does.

    Raises:
        UsageError: It is not installed here, or the port is taken. The message says what to install.
        HostNotReached: It did not begin to listen.
    """
    words = line(board, folder, port)
    ports.bound(port).close()
    with subprocess.Popen(words, stdout=2, env=copies.environ()) as process:
        try:
            _await(board, process, port)
            ready(port)
            return process.wait()
        finally:
            process.terminate()


def line(board: Board, folder: str, port: int) -> list[str]:
    """Return its command line. Raises UsageError if it is not installed here, or cannot read the folder."""
    if importlib.util.find_spec(board.module) is None:
        raise UsageError(
            f"{board.name} is not installed in this Python, and no host serves it: pip install {board.package}. What "
            f"it would show is in {folder}"
        )
    is_bucket = "://" in folder
    if is_bucket and board.beyond and importlib.util.find_spec(board.beyond) is None:
        raise UsageError(
            f"{board.name} reads {folder} by {board.beyond}, which is not installed: pip install {board.beyond}"
        )
    if not is_bucket and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not there yet: the job has written nothing that {board.name} could show")
    at = [board.host, ports.LOOPBACK] if board.host else []
    return [sys.executable, "-P", "-c", _RUN, board.program, "--logdir", folder, "--port", str(port), *at]


def _await(board: Board, process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as tried:
            if tried.connect_ex((ports.LOOPBACK, port)) == 0:
                return
        time.sleep(_PAUSE)
    if process.poll() is not None:
        raise HostNotReached(f"{board.name} has ended with exit code {process.returncode}: what it says is above")
    raise HostNotReached(f"{board.name} does not listen at port {port} after {SECONDS:g} s: what it says is above")
