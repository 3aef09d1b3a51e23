"""Tunnels of Identity-Aware Proxy: the rules of their bytes, and whole connections to the emulated proxy, which breaks
them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.reach.iap import relay
from kinetic_orchestration.reach.iap.relay import Broken, Ended, Relay
from kinetic_orchestration.reach.iap.tunnel import Target, Tunnel
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.api_servers.server import RestServer
from kinetic_orchestration.testing.vms.tunnels import Tunnels

pytestmark = pytest.mark.fast
SECONDS = 30.0
PAUSES = (0.0, 0.01, 0.05)
TARGET = Target("a-project", "us-west4-a", "t1v-n-0-w-0")
MUCH = random.Random(5).randbytes(3_000_000)


def frame(kind: int, *fields: bytes) -> bytes:
    return struct.pack(">H", kind) + b"".join(fields)


def text(kind: int, data: bytes) -> bytes:
    return frame(kind, len(data).to_bytes(4, "big"), data)


def number(kind: int, count: int) -> bytes:
    return frame(kind, count.to_bytes(8, "big"))


def begun() -> Relay:
    known = Relay()
    assert known.take(text(1, b"sid")) == b""
    return known


# ---- the rules -------------------------------------------------------------------------------------------------


def test_frames_are_those_of_the_protocol() -> None:
    known = begun()
    assert known.session == "sid" and known.is_open
    first, second = known.data(b"x" * 16385)
    assert first == b"\x00\x04\x00\x00\x40\x00" + b"x" * 16384 and second == b"\x00\x04\x00\x00\x00\x01x"
    assert known.take(text(4, b"come") + text(4, b" too")) == b"come too"  # several frames in a message
    assert known.confirmation() is None
    known.take(text(4, b"y" * 16384))
    known.take(text(4, b"y" * 16384))
    assert known.confirmation() == b"\x00\x07" + (32776).to_bytes(8, "big")
    assert known.confirmation() is None
    assert known.take(frame(99, b"of a later version")) == b""


def test_what_is_not_confirmed_is_sent_again_from_where_the_other_side_says() -> None:
    known = begun()
    known.data(b"a" * 16384 + b"b" * 10)
    known.take(number(7, 16380))
    known.lost()
    known.take(number(2, 16390))
    assert known.again() == [text(4, b"b" * 4)]
    known.take(number(7, 16394))
    assert known.again() == [] and known.has_room
    known.data(bytes(relay.WINDOW))
    assert not known.has_room
    with pytest.raises(Ended, match="4033 no"):
        known.take(frame(10, (4033).to_bytes(4, "big"), (2).to_bytes(4, "big"), b"no"))


@pytest.mark.parametrize(
    "message",
    [number(7, 0), number(7, 5), number(2, 0), text(1, b"again"), b"\x00", text(4, b"abc")[:-1], b"\x00\x07\x00",
     frame(4, (16385).to_bytes(4, "big"), bytes(16385))],
    ids=["nothing confirmed", "too much confirmed", "resumed without a loss", "begun twice", "no kind", "short", "shorter", "large"],
)  # fmt: skip
def test_a_server_that_breaks_the_rules_is_not_believed(message: bytes) -> None:
    known = begun()
    known.data(b"abcd")
    with pytest.raises(Broken):
        known.take(message)


def test_bytes_before_the_first_word_are_refused() -> None:
    with pytest.raises(Broken, match="before the connection"):
        Relay().take(text(4, b"x"))


# ---- connections -----------------------------------------------------------------------------------------------


class Place:
    """An emulated proxy, whose one VM sends `MUCH` and a digest of what it gets, once it gets nothing more for now."""

    def __init__(self) -> None:
        self.allowed = True
        self.reached: list[tuple[str, str, str]] = []
        self.tunnels = Tunnels(self._reach, lambda project: self.allowed)
        unused: Any = None  # the cloud and its APIs, of which nothing is asked here
        self._server = RestServer(unused, unused, unused, Access(), self.tunnels)
        self.address = self._server.url.replace("http://", "ws://")

    def _reach(self, project: str, zone: str, name: str, connection: socket.socket) -> bool | None:
        self.reached.append((project, zone, name))
        if name != TARGET.instance:
            return None
        threading.Thread(target=speak, args=(connection.dup(),), daemon=True).start()
        return True

    def close(self) -> None:
        self.tunnels.close()
        self._server.close()


def send_much(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test is over
        connection.sendall(MUCH)


def speak(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):  # the test is over
        sending = threading.Thread(target=send_much, args=(connection,), daemon=True)
        sending.start()
        digest, left = hashlib.sha256(), len(MUCH)
        while left:
            data = connection.recv(1 << 16)
            if not data:
                return
            digest.update(data)
            left -= len(data)
        sending.join(SECONDS)
        connection.sendall(digest.hexdigest().encode())


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def through(
    place: Place, target: Target = TARGET, token: Callable[[bool], str] = lambda fresh: "", **more: Any
) -> bytes:
    """Return all that comes through a tunnel into which `MUCH` goes."""
    into, source = os.pipe()
    out, sink = os.pipe()
    came: list[bytes] = []

    def write() -> None:
        data = memoryview(MUCH)
        with contextlib.suppress(BrokenPipeError):  # the tunnel takes no more
            while data:
                data = data[os.write(source, data[: 1 << 16]) :]

    def read() -> None:
        while data := os.read(out, 1 << 16):
            came.append(data)

    threads = [threading.Thread(target=work, daemon=True) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        Tunnel(target, token, server=place.address, pauses=PAUSES, **more).run(into, sink)
    finally:
        os.close(sink)
        os.close(into)
        threads[1].join(SECONDS)
        threads[0].join(SECONDS)
        os.close(out)
        os.close(source)
    return b"".join(came)


def test_bytes_of_both_directions_survive_connections_that_break_in_the_middle(place: Place) -> None:
    cuts = (1, 16384, 0, 40_000, 1_000_000, 7, 333_333)
    place.tunnels.cut(*cuts)
    assert through(place) == MUCH + hashlib.sha256(MUCH).hexdigest().encode()
    assert place.tunnels.resumed == len(cuts) and len(place.reached) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4003, r"firewall-rules create.*source-ranges=35\.235\.240\.0/20"),
        (4033, r"roles/iap\.tunnelResourceAccessor"),
        (4047, "finds no such VM"),
        (4051, "no network interface nic0"),
        (4001, "does not know this connection"),
        (4999, "not known here"),
    ],
)
def test_a_refusal_is_a_sentence_with_what_helps(place: Place, code: int, words: str) -> None:
    place.tunnels.refuse(code, "because\x1b]0;of it")
    with pytest.raises(HostNotReached, match=words) as refused:
        through(place)
    assert f"code {code}" in str(refused.value) and "\x1b" not in str(refused.value)
    assert "t1v-n-0-w-0 in us-west4-a" in str(refused.value)


def test_a_host_that_is_gone_and_a_client_without_the_right_are_told(place: Place) -> None:
    with pytest.raises(HostNotReached, match="finds no such VM"):
        through(place, TARGET._replace(instance="t1v-n-1-w-0"))
    place.allowed = False
    with pytest.raises(HostNotReached, match=r"--role=roles/iap\.tunnelResourceAccessor"):
        through(place)


def test_a_token_that_has_expired_is_renewed_once_and_is_in_no_message(place: Place) -> None:
    asked: list[bool] = []

    def token(fresh: bool) -> str:
        asked.append(fresh)
        return "ya29.secret"

    place.tunnels.refuse(4004, "expired")
    assert through(place, token=token).startswith(MUCH) and asked == [False, True]
    asked.clear()
    for _ in range(2):
        place.tunnels.refuse(4004, "expired")
    with pytest.raises(HostNotReached, match="application-default login") as refused:
        through(place, token=token)
    assert "ya29" not in str(refused.value) and asked == [False, True]


def test_a_connection_that_cannot_be_resumed_is_given_up_with_the_reason(place: Place) -> None:
    place.tunnels.cut(50_000)
    cut = place.tunnels.serve

    def once(client: Any, path: str, query: Any) -> None:
        if path.endswith("reconnect"):
            client.drop()
        else:
            cut(client, path, query)

    place.tunnels.serve = once  # type: ignore[method-assign]
    with pytest.raises(HostNotReached, match=r"could not be resumed in 0\.2 s"):
        through(place, patience=0.2)


def resuming(place: Place, ends: Callable[[Any], None]) -> list[float]:
    """Have the proxy open each connection anew and end it at once; return the times of that, as they come."""
    place.tunnels.cut(50_000)
    before = place.tunnels.serve
    times: list[float] = []

    def serve(client: Any, path: str, query: Any) -> None:
        if not path.endswith("reconnect"):
            before(client, path, query)
            return
        times.append(time.monotonic())
        assert len(times) < 500, "it is asked without an end"
        client.send(number(2, place.tunnels._sessions[query["sid"]].received))
        ends(client)

    place.tunnels.serve = serve  # type: ignore[method-assign]
    return times


def test_a_token_that_is_refused_on_each_opened_connection_is_renewed_once(place: Place) -> None:
    asked: list[bool] = []

    def token(fresh: bool) -> str:
        asked.append(fresh)
        return "ya29.secret"

    times = resuming(place, lambda client: client.close(4004, "expired"))
    with pytest.raises(HostNotReached, match="application-default login"):
        through(place, token=token)
    assert len(times) == 2 and asked == [False, False, True]


def test_connections_that_open_and_are_lost_at_once_are_sought_with_pauses_and_given_up(place: Place) -> None:
    times = resuming(place, lambda client: client.drop())
    with pytest.raises(HostNotReached, match=r"could not be resumed in 0\.5 s"):
        through(place, patience=0.5)
    assert 2 <= len(times) <= 1 + 0.5 / PAUSES[1]
