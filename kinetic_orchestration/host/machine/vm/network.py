"""The network between hosts on machines of their own, and how it is tried: each other host connects to host 0, which
listens meanwhile.

Knows no jobs. A connection that is refused came through: only silence says that something between them swallows it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# One beside those of frameworks, and one as those that NCCL has the kernel choose (32768 to 60999).
PORTS = (8491, 45_454)
PATIENCE = 60.0  # seconds after host 0 has started, within which a connection to it comes through
TRY = 5.0
PACE = 0.5
GREETING = b"kinetic host %d\n"
LONGEST = 64
ROUTES = "/proc/net/route"


def receive(address: str, ports: Sequence[int], hosts: int, has_started: Callable[[int], bool]) -> None:
    """Listen until every other host has come to each port, or should have: one that could not says so itself.

    A port that is taken is left out: whatever has it answers in its place.
    """
    awaited: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as stack:
        doors = {}
        for port in ports:
            try:
                door = stack.enter_context(socket.create_server((address, port), backlog=hosts))
            except OSError:
                continue
            doors[door] = port
            awaited |= {(port, host) for host in range(1, hosts)}
        until = None
        while awaited and (until is None or time.monotonic() < until):
            for door in select.select(list(doors), (), (), PACE)[0]:
                awaited.discard((doors[door], _who_came(door)))
            if until is None and all(map(has_started, range(hosts))):
                until = time.monotonic() + PATIENCE + TRY


def knock(address: str, ports: Iterable[int], host: int, is_up: Callable[[], bool]) -> str:
    """Connect to each port as host number so and so. Returns the address and port that gave no answer for all of the
    patience since host 0 was up, "" for none.
    """
    for port in ports:
        began = 0.0
        while True:
            tried = time.monotonic()
            answer = _try(address, port, host)
            if answer == "open":
                break
            now = time.monotonic()
            began = began or (now if is_up() else 0.0)
            if began and now - began >= PATIENCE:
                if answer == "refused":  # by a machine that can be reached
                    break
                return f"{address}:{port} within {PATIENCE:.0f} s"
            time.sleep(max(0.0, tried + PACE - now))
    return ""


def variables(interface: str) -> dict[str, str]:
    """Return those by which NCCL and gloo use plain TCP on that network interface, which they would else guess: "" for
    none. An image's plugins for faster networks find none of these here.
    """
    found = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    return found | dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else (), interface)


def interface(routes: str = ROUTES) -> str:
    """Return the network interface of the default route; "" if there is none."""
    found: list[tuple[int, str]] = []
    try:
        with open(routes, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                name, destination, _, flags, _, _, metric, mask, *_ = line.split()
                if destination == mask == "00000000" and int(flags, 16) & 1:  # it is up
                    found.append((int(metric), name))
    except (OSError, ValueError):
        pass
    return min(found, default=(0, ""))[1]


def _try(address: str, port: int, host: int) -> str:
    """Return whether the port is open, refused or silent."""
    try:
        with socket.create_connection((address, port), timeout=TRY) as connection:
            connection.sendall(GREETING % host)
            return "open" if connection.recv(LONGEST) else "refused"
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return "refused"
    except OSError:
        return "silent"


def _who_came(door: socket.socket) -> int:
    """Return the number of the host that has connected, 0 if it is none of ours."""
    try:
        connection, _ = door.accept()
        with connection:
            connection.settimeout(TRY)
            said = connection.recv(LONGEST)
            connection.sendall(GREETING % 0)
            start, _, number = said.rpartition(b" ")
            return int(number) if start == GREETING.rpartition(b" ")[0] else 0
    except (OSError, ValueError):
        return 0
