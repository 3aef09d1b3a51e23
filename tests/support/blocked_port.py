"""A port that swallows connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator


@contextlib.contextmanager
def blocked() -> Iterator[int]:
    """A port of which nothing ever comes back, as behind a firewall: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(door.getsockname())
        time.sleep(0.1)
        yield door.getsockname()[1]
