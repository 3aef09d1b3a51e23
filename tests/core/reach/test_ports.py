"""Streams between a connection of this machine and a host: programs that read late, say much, or end at once."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.reach.ports import Direct, InProcess, Stream

pytestmark = pytest.mark.fast
SECONDS = 60.0
MUCH = bytes(range(256)) * (16 << 10)  # 4 MiB: more than all pipes and sockets on the way hold


@contextlib.contextmanager
def passing(stream: Stream) -> Iterator[tuple[socket.socket, list[HostNotReached]]]:
    """Yield the end of whoever connects, and what goes wrong, which is there after the block."""
    ours, theirs = socket.socketpair()
    wrong: list[HostNotReached] = []

    def work() -> None:
        with theirs:
            try:
                stream.pass_on(theirs)
            except HostNotReached as error:
                wrong.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        with ours:
            ours.settimeout(SECONDS)
            yield ours, wrong
            thread.join(SECONDS)
            assert not thread.is_alive()
    finally:
        stream.close()


def program(text: str) -> InProcess:
    return InProcess([sys.executable, "-c", f"import os, sys\n{text}"], dict(os.environ))


def send_all(connection: socket.socket) -> None:
    connection.sendall(MUCH)
    connection.shutdown(socket.SHUT_WR)


def all_of(connection: socket.socket) -> bytes:
    came = bytearray()
    while piece := connection.recv(1 << 16):
        came += piece
    return bytes(came)


def test_a_process_that_says_much_beside_its_output_goes_on_and_its_first_words_are_told() -> None:
    with passing(program("os.write(2, b'kinetic: no way' + b'.' * (1 << 20)); print('done'); sys.exit(3)")) as (
        ours,
        wrong,
    ):
        assert all_of(ours) == b"done\n"
    assert str(wrong[0]).startswith("no way...") and len(str(wrong[0])) < 2000


def test_a_process_that_writes_all_before_it_reads_is_not_waited_for() -> None:
    text = f"w = sys.stdout.buffer; w.write(bytes({len(MUCH)})); w.flush(); w.write(sys.stdin.buffer.read())"
    with passing(program(text)) as (ours, wrong):
        sender = threading.Thread(target=send_all, args=(ours,), daemon=True)
        sender.start()
        assert all_of(ours) == bytes(len(MUCH)) + MUCH
        sender.join(SECONDS)
    assert wrong == []


def test_a_process_that_ends_without_reading_says_why() -> None:
    with passing(program("os.close(0); print(1, flush=True); sys.exit('refused')")) as (ours, wrong):
        with contextlib.suppress(OSError):  # it has gone before all was sent
            ours.sendall(MUCH)
        with contextlib.suppress(ConnectionResetError):
            all_of(ours)
    assert str(wrong[0]) == "refused"


def test_a_port_of_this_machine_whose_client_writes_all_before_it_reads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        with passing(Direct(server.getsockname()[1])) as (ours, wrong):
            sender = threading.Thread(target=send_all, args=(ours,), daemon=True)
            sender.start()
            assert all_of(ours) == MUCH
            sender.join(SECONDS)
        thread.join(SECONDS)
        assert wrong == [] and not thread.is_alive()
