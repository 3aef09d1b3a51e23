"""Ports for servers that are told theirs when they start."""

from __future__ import annotations

import socket


def held_port() -> socket.socket:
    """A port of loopback that nobody else is given while the socket is open.

    It is bound and does not listen, so that a server which says SO_REUSEADDR has the port all the same.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
