"""Programs in the emulator's pods: what they do not read is not kept without bound, and none of it is lost."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from kinetic_orchestration.reach.websocket import Closed, WebSocket
from kinetic_orchestration.testing.kubernetes import execution
from kinetic_orchestration.testing.kubernetes.execution import Inside

pytestmark = pytest.mark.fast
SECONDS = 60.0
PIECE = bytes((0,)) + bytes(64 << 10)
COUNT = 1024  # 64 MiB: a message may have 16


def begun(folder: Path, script: str) -> tuple[WebSocket, threading.Thread]:
    """Return a client of a program, and the thread that serves it."""
    ours, theirs = socket.socketpair()
    inside = Inside(["sh", "-c", script], dict(os.environ), str(folder))
    own = WebSocket(theirs, is_client=False)
    thread = threading.Thread(
        target=execution.serve, args=(own, inside), kwargs={"takes_input": True, "tty": False}, daemon=True
    )
    thread.start()
    return WebSocket(ours), thread


def given(client: WebSocket, count: int, idle: float) -> int:
    """Give pieces of input until nothing is taken for so many seconds; return how many were."""
    done, last = 0, time.monotonic()
    while done < count and time.monotonic() - last < idle:
        if client.is_full:
            client.wait(timeout=0.1)
        else:
            client.offer(PIECE)
            done, last = done + 1, time.monotonic()
    return done


def test_a_program_that_does_not_read_yet_is_given_no_more_than_is_kept(tmp_path: Path) -> None:
    client, thread = begun(tmp_path, "until test -e gate; do sleep 0.05; done; wc -c")
    done = given(client, COUNT, 2.0)
    assert 16 <= done < COUNT // 2
    (tmp_path / "gate").touch()
    assert done + given(client, COUNT - done, SECONDS) == COUNT
    client.send(bytes((255, 0)))
    said, deadline = b"", time.monotonic() + SECONDS
    with pytest.raises(Closed):
        while time.monotonic() < deadline:
            client.wait(timeout=1.0)
            said += b"".join(message[1:] for message in client.messages() if message[:1] == b"\x01")
    thread.join(SECONDS)
    client.drop()
    assert int(said) == COUNT * (len(PIECE) - 1) and not thread.is_alive()


def test_a_client_that_goes_is_noticed_though_its_input_is_not_read(tmp_path: Path) -> None:
    client, thread = begun(tmp_path, "exec sleep 600")
    given(client, COUNT, 2.0)
    client.drop()
    thread.join(SECONDS)
    assert not thread.is_alive()
