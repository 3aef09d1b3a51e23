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
# A command of this Python, wherever its scripts are. It ends with this process, however that ends.
_RUN: Final = (
    "import os, sys, threading; from importlib.metadata import entry_points; del sys.argv[0]; "
    "threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start(); "
    "(found,) = entry_points(group='console_scripts', name=sys.argv[0]); sys.exit(found.load()())"
)


class Board(NamedTuple):
    """A program that shows what jobs write.

    Attributes:
        name: Its name for people.
        packages: What is to be installed for it.
        modules: Their modules.
        program: Its command, which has TensorBoard's options.
        beyond: The module that it needs for buckets.
        tab: The part of its page's address that leads to what it is started for.
    """

    name: str
    packages: str
    modules: tuple[str, ...]
    program: str
    beyond: str
    tab: str = ""


TENSORBOARD: Final = Board("TensorBoard", "tensorboard", ("tensorboard",), "tensorboard", "gcsfs")
# As TensorBoard's plugin: XProf's own command listens at every address of the machine, at two ports.
XPROF: Final = TENSORBOARD._replace(
    name="XProf", packages="tensorboard xprof", modules=("tensorboard", "xprof"), tab="#profile"
)


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
    with subprocess.Popen(words, stdout=2, env=copies.environ(), stdin=subprocess.PIPE) as process:
        try:
            _await(board, process, port)
            ready(port)
            return process.wait()
        finally:
            process.terminate()


def line(board: Board, folder: str, port: int) -> list[str]:
    """Return its command line. Raises UsageError if it is not installed here, or cannot read the folder."""
    if not all(importlib.util.find_spec(module) for module in board.modules):
        raise UsageError(
            f"{board.name} is not installed in this Python, and no host serves it: pip install {board.packages}. What "
            f"it would show is in {folder}"
        )
    is_bucket = "://" in folder
    if is_bucket and importlib.util.find_spec(board.beyond) is None:
        raise UsageError(
            f"{board.name} reads {folder} by {board.beyond}, which is not installed: pip install {board.beyond}"
        )
    if not is_bucket and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not there yet: the job has written nothing that {board.name} could show")
    told = ["--logdir", folder, "--port", str(port), "--host", ports.LOOPBACK]
    return [sys.executable, "-P", "-c", _RUN, board.program, *told]


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
