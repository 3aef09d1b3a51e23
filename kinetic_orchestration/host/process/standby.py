"""Keeps the processes of a kept machine's next host ready: guard, agent and program have started, and have imported
what they need, before it is known which attempt comes. That is most of the time from a claim to the first line.

They start anew, after the machine was cleaned, so they know nothing of the attempt before. They wait for their orders
on a socket of the process that keeps the machine, end with it, and do nothing until it has verified a claim and armed
the attempt's deadline. Where they are not there, or are of another version, the machine starts the agent as at a boot.
`host.start` is what they run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Sequence

STANDBY = "--standby"  # the first word of their command line
NAME = "kinetic-standby"
PATIENCE = 10.0  # seconds for them to take their orders
LONGEST = 1 << 20  # bytes of orders
TAKEN = b"1"


class Standby:
    """The processes that stand by, for the one that keeps the machine."""

    def __init__(self, at: Assignment, agent: str, digest: str) -> None:
        """Start them. Raises OSError.

        Args:
            at: The attempt before, as whose machine and Python the next one is likely to have the same.
            agent: The zip of the agent, whose digest was verified just now, after the machine was cleaned.
            digest: That digest.
        """
        self.agent, self.digest, self._over = agent, digest, False
        self._channel, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, "-I", agent, STANDBY, str(theirs.fileno()), *at.words()]
        try:
            self._pid = os.posix_spawn(sys.executable, command, copies.environ(), setsid=True, setsigmask=[])
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()

    def take(self, agent: str, words: Sequence[str], private: bytes) -> bool:
        """Have them become the host of an attempt. Returns False, after which they are gone, if they do not.

        Args:
            agent: Its agent. They are of one version of it, and no other's.
            words: The host's assignment.
            private: What only its processes are told, as JSON.
        """
        orders = json.dumps({"words": list(words), "private": private.decode()}).encode() + b"\n"
        try:
            self._channel.settimeout(PATIENCE)
            if agent == self.agent:
                self._channel.sendall(orders)
                if self._channel.recv(1) == TAKEN:
                    return True
        except OSError:  # they ended, or hang
            pass
        self.end()
        return False

    def end(self) -> None:
        """End them. A second time does nothing."""
        if self._over:
            return
        self._over = True
        self._channel.close()
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # their agent becomes this process's child, which adopts
            while True:
                os.waitpid(-self._pid, 0)


def orders(channel: socket.socket) -> tuple[bytes | None, list[int]]:
    """Wait for the orders and what comes with them. None: whoever gives them is gone."""
    said, held = b"", []
    while not said.endswith(b"\n"):
        data, files, _, _ = socket.recv_fds(channel, LONGEST, 1)
        held += files
        if not data or len(said) > LONGEST:
            return None, held
        said += data
    return said, held


def read(told: bytes) -> tuple[Assignment, dict[str, dict[str, str]]]:
    """Return what orders say: the assignment, and what only its processes are told."""
    fields = json.loads(told)
    return Assignment.from_words(fields["words"]), json.loads(fields["private"])
