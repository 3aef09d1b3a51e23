"""Hosts that send each other files prove that they have the attempt's key, and trust nothing else that the other says."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.program.checkpoints.tier import buddies
from kinetic_orchestration.program.checkpoints.tier.buddies import Files, Listener, Refused, fetch, offer
from kinetic_orchestration.program.checkpoints.tier.folder import Folder
from kinetic_orchestration.protocol.content.digest import of_bytes
from tests.support.waits import wait_until

HERE, KEY = "127.0.0.1", b"k" * 32
DATA = os.urandom(3_000_000)
NAME = of_bytes(DATA)


class Host:
    """A host with a folder of copies, which takes what it is offered."""

    def __init__(self, root: Path, *, wanted: bool = True) -> None:
        self.folder = Folder(str(root / "tier" / "key"), "t", print)
        self.wanted = wanted
        self.listener = Listener(HERE, KEY, Files(self.folder.find, self.taking))
        self.port = self.listener.port

    @contextlib.contextmanager
    def taking(self, digest: str, size: int) -> Iterator[str | None]:
        if not self.wanted:
            yield None
            return
        with self.folder.scratch() as path:
            yield path
            self.folder.take(path, digest)

    def names(self) -> list[str]:
        return os.listdir(self.folder.folder)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    with found.folder.scratch() as path:
        Path(path).write_bytes(DATA)
        assert found.folder.take(path, NAME)
    yield found
    found.listener.close()
    found.folder.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "kinetic-buddies"]


def test_a_file_is_fetched_by_its_digest(host: Host, tmp_path: Path) -> None:
    fetch(HERE, host.port, KEY, NAME, len(DATA), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_file_that_is_not_there_or_has_another_size_is_refused(host: Host, tmp_path: Path) -> None:
    for digest, size in ((of_bytes(b"other"), 5), (NAME, len(DATA) + 1)):
        with pytest.raises(Refused, match="no such copy"):
            fetch(HERE, host.port, KEY, digest, size, str(tmp_path / "copy"))


def test_nobody_gets_or_gives_a_file_without_the_key(host: Host, tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"own")
    with pytest.raises(OSError, match=r"ended the connection|reset"):
        fetch(HERE, host.port, b"x" * 32, NAME, len(DATA), str(tmp_path / "copy"))
    with pytest.raises(OSError, match=r"ended the connection|reset"):
        offer(HERE, host.port, b"x" * 32, of_bytes(b"own"), 3, str(tmp_path / "own"))
    assert host.names() == [NAME]


def test_a_listener_without_the_key_is_not_believed(tmp_path: Path) -> None:
    """It says yes at once, and would send anything."""
    with socket.create_server((HERE, 0)) as door:

        def lie() -> None:
            connection, _ = door.accept()
            with connection:
                connection.sendall(buddies.GREETING + bytes(32))
                connection.recv(4096)
                connection.sendall(buddies.YES + bytes(32) + DATA[:1000])

        other = threading.Thread(target=lie)
        other.start()
        with pytest.raises(Refused, match="has not the attempt's key"):
            fetch(HERE, door.getsockname()[1], KEY, NAME, 1000, str(tmp_path / "copy"))
        other.join()
    assert not (tmp_path / "copy").exists()


def test_an_answer_cannot_be_given_again(host: Host, tmp_path: Path) -> None:
    """Each side has drawn a number that the other's proof holds: what was heard once is worth nothing."""
    heard: list[bytes] = []

    def asked(data: bytes) -> bytes:
        with socket.create_connection((HERE, host.port), timeout=10) as connection:
            greeting = connection.recv(4096)
            assert greeting.startswith(buddies.GREETING)
            connection.sendall(data)
            with contextlib.suppress(ConnectionError):
                return connection.recv(4096)
        return b""

    with socket.create_server((HERE, 0)) as door:

        def pass_on() -> None:
            connection, _ = door.accept()
            with connection, socket.create_connection((HERE, host.port), timeout=10) as there:
                connection.sendall(there.recv(4096))
                heard.append(connection.recv(4096))
                there.sendall(heard[0])
                connection.sendall(there.recv(buddies.PROOF + 1))

        other = threading.Thread(target=pass_on)
        other.start()
        with pytest.raises(OSError, match=r"ended the connection|reset"):
            fetch(HERE, door.getsockname()[1], KEY, NAME, len(DATA), str(tmp_path / "copy"))
        other.join()
    assert asked(heard[0]) == b"", "the same words to another greeting"


@pytest.mark.parametrize("name", ["../" + "x" * 61, "x" * 64, "A" * 64, "\0" * 64])
def test_a_name_that_is_no_digest_leads_nowhere(host: Host, tmp_path: Path, name: str) -> None:
    (tmp_path / "own").write_bytes(b"own")
    with pytest.raises(OSError, match=r"ended the connection|reset"):
        offer(HERE, host.port, KEY, name[:64].ljust(64, "x"), 3, str(tmp_path / "own"))
    assert host.names() == [NAME]


def test_what_is_offered_is_kept_whole_or_not_at_all(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(1_500_000)
    (tmp_path / "own").write_bytes(data)
    (tmp_path / "short").write_bytes(data[:-1])
    with pytest.raises(Refused, match="became shorter"):
        offer(HERE, host.port, KEY, of_bytes(data), len(data), str(tmp_path / "short"))
    wait_until(lambda: host.names() == [NAME], "the beginning is removed", within=30)
    offer(HERE, host.port, KEY, of_bytes(data), len(data), str(tmp_path / "own"))
    assert sorted(host.names()) == sorted([NAME, of_bytes(data)])
    host.wanted = False
    with pytest.raises(Refused, match="no room for it"):
        offer(HERE, host.port, KEY, of_bytes(b"more"), 4, str(tmp_path / "own"))


def test_who_says_nothing_is_left_alone_and_keeps_nobody_waiting(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buddies, "SILENCE", 0.3)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HERE, host.port))) for _ in range(buddies.AT_ONCE)]
        for connection in silent:
            connection.settimeout(30)
            while connection.recv(4096):  # its greeting, and then the end
                pass
    fetched = 0

    def is_fetched() -> bool:
        nonlocal fetched
        with contextlib.suppress(OSError):
            fetch(HERE, host.port, KEY, NAME, len(DATA), str(tmp_path / "copy"))
            fetched += 1
        return fetched > 0

    wait_until(is_fetched, "that there is room for another caller", within=30)


def test_a_host_that_sends_too_slowly_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buddies, "SILENCE", 0.5)
    monkeypatch.setattr(buddies, "SLOWEST", 1e9)
    over = threading.Event()

    @contextlib.contextmanager
    def nothing(digest: str, size: int) -> Iterator[str | None]:
        yield None

    class Slow(buddies._Line):
        def send_file(self, path: str, size: int) -> None:
            while not over.wait(0.05):
                self._connection.sendall(b"x")

    monkeypatch.setattr(buddies, "_Line", Slow)
    listener = Listener(HERE, KEY, Files(lambda digest, size: "path", nothing))
    try:
        with pytest.raises(TimeoutError, match=r"too slow|timed out"):
            fetch(HERE, listener.port, KEY, NAME, 1 << 30, str(tmp_path / "copy"))
    finally:
        over.set()
        listener.close()
