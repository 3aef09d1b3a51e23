"""WebSockets, spoken with an implementation of others at the other end: `websockets`, unmodified."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as served

from kinetic_orchestration.reach import websocket
from kinetic_orchestration.reach.websocket import Closed, NotOpened, WebSocket

pytestmark = pytest.mark.fast
SECONDS = 20.0


def conversation(connection: ServerConnection) -> None:
    """Send everything back, and close at "bye"."""
    assert connection.request is not None
    connection.send(connection.request.path.encode())
    for message in connection:
        if message == b"bye":
            connection.close(4321, "as you say")
            return
        if message == b"in parts":
            connection.send([b"in ", b"three ", b"parts"])
        elif message == b"ping":
            connection.ping().wait(SECONDS)
            connection.send(b"pong came")
        else:
            connection.send(message)


@pytest.fixture
def port() -> Iterator[int]:
    with served(conversation, "127.0.0.1", 0, subprotocols=["two"], max_size=None) as server:  # type: ignore[list-item]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join(SECONDS)


def opened(port: int, *protocols: str) -> WebSocket:
    sock = socket.create_connection(("127.0.0.1", port), SECONDS)
    return websocket.opened(sock, "/a?b=c", [("Host", f"127.0.0.1:{port}")], protocols, within=SECONDS)


def next_of(connection: WebSocket) -> bytes:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        connection.wait(timeout=1.0)
        if found := connection.messages():
            (message,) = found
            return message
    raise TimeoutError


def test_messages_of_every_size_come_back_from_another_implementation(port: int) -> None:
    connection = opened(port, "one", "two")
    assert connection.protocol == "two" and next_of(connection) == b"/a?b=c"
    for size in (0, 1, 125, 126, 65535, 65536, 3 << 20):
        message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        connection.send(message)
        assert next_of(connection) == message
    for sent, answer in ((b"in parts", b"in three parts"), (b"ping", b"pong came")):
        connection.send(sent)
        assert next_of(connection) == answer
    connection.send(b"last")
    connection.send(b"bye")
    assert next_of(connection) == b"last"
    with pytest.raises(Closed, match="4321 as you say"):
        next_of(connection)
    connection.drop()


def test_a_server_that_refuses_or_speaks_nothing_of_it_is_told_apart(port: int) -> None:
    with pytest.raises(NotOpened) as refused:
        opened(port, "unknown")
    assert refused.value.status == 400 and "subprotocol" in refused.value.body.lower()
    for answer, words in (
        (b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: other\r\n\r\n", "none of the WebSocket protocol"),
        (b"", "closed before there was an answer"),
        (b"x" * (1 << 17), "no end"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=answer_once, args=(server, answer))
            thread.start()
            with pytest.raises(ConnectionError, match=words):
                opened(server.getsockname()[1], "two")
            thread.join(SECONDS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname(), SECONDS)
        with pytest.raises(ConnectionError, match="more than one line"):
            websocket.opened(sock, "/", [("Authorization", "Bearer a\r\nHost: b")], ("two",), within=SECONDS)


def answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(answer)


@pytest.mark.parametrize(
    "frame",
    [b"\x82\x85abcdhello", b"\xf2\x01x", b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), b"\x80\x01x"],
    ids=["masked", "reserved bits", "too large", "a part of nothing"],
)
def test_what_is_not_of_the_protocol_ends_the_connection(frame: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame)
        with pytest.raises(ConnectionError):
            WebSocket(ours).messages()


def test_an_unmodified_client_speaks_with_the_servers_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo_once, args=(server,))
        thread.start()
        with connect(f"ws://127.0.0.1:{server.getsockname()[1]}/", max_size=None) as client:
            for message in (b"", b"x" * 70000, b"y" * (2 << 20)):
                client.send(message)
                assert client.recv(SECONDS) == message
            client.send(b"end")
            with pytest.raises(Exception, match="4003"):
                client.recv(SECONDS)
        thread.join(SECONDS)


def echo_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    head = websocket.head_of(connection, time.monotonic() + SECONDS)
    accept = websocket.accept_of(head.headers["sec-websocket-key"])
    lines = ("HTTP/1.1 101 x", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}", "", "")
    connection.sendall("\r\n".join(lines).encode())
    own = WebSocket(connection, head.rest, is_client=False)
    while True:
        own.wait(timeout=1.0)
        for message in own.messages():
            if message == b"end":
                own.close(4003, "enough")
                return
            own.send(message)


def test_two_ends_that_both_send_much_do_not_wait_for_each_other() -> None:
    ours, theirs = socket.socketpair()
    ends = WebSocket(ours), WebSocket(theirs, is_client=False)
    much, came = b"z" * (1 << 20), [0, 0]

    def work(number: int) -> None:
        own: Any = ends[number]
        for _ in range(4):
            own.send(much)
        while came[number] < 4 * len(much):
            own.wait(timeout=1.0)
            came[number] += sum(map(len, own.messages()))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert came == [4 << 20, 4 << 20]
    for end in ends:
        end.drop()


@pytest.mark.parametrize("sent", [0, 20 << 20], ids=["it has ended its side", "it sends more than a message"])
def test_a_message_to_an_end_that_does_not_read_waits_without_work(sent: int) -> None:
    ours, theirs = socket.socketpair()
    spent: list[float] = []
    own = WebSocket(ours, is_client=False)

    def send() -> None:
        before = time.thread_time()
        own.send(bytes(8 << 20))
        spent.append(time.thread_time() - before)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    writing = threading.Thread(target=write, args=(theirs, bytes(sent)), daemon=True)
    writing.start()
    sending.join(3.0)
    assert sending.is_alive()
    left = (8 << 20) + 10  # with its head
    while left:
        left -= len(theirs.recv(min(left, 1 << 20)))
    sending.join(SECONDS)
    own.drop()  # and with it the writer's end
    writing.join(SECONDS)
    theirs.close()
    assert not writing.is_alive() and spent[0] < 0.3


def write(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the other end takes no more
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
