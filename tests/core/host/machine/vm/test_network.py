"""Hosts that try the network between them before their programs depend on it, with real connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.vm import network
from tests.support.blocked_port import blocked

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PACE", 0.05)
    monkeypatch.setattr(network, "TRY", 0.3)
    monkeypatch.setattr(network, "PATIENCE", 60.0)


def free_ports(count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server((HERE, 0))) for _ in range(count)]
        return tuple(one.getsockname()[1] for one in found)


def apart(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_all_hosts_come_to_host_0_at_each_port_whoever_was_first() -> None:
    ports = free_ports(2)
    found: dict[int, str] = {}

    def knock(host: int) -> None:
        found[host] = network.knock(HERE, ports, host, lambda: True)

    early = apart(lambda: knock(1))
    time.sleep(0.2)
    first = apart(lambda: network.receive(HERE, ports, 4, lambda _host: True))
    others = [apart(lambda host=host: knock(host)) for host in (2, 3)]  # type: ignore[misc]
    for thread in (early, first, *others):
        thread.join(30)
        assert not thread.is_alive()
    assert found == {1: "", 2: "", 3: ""}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, ports[0]), timeout=5)  # which are free again for the program


def test_a_port_that_lets_nothing_through_is_named_once_host_0_is_known_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "PATIENCE", 0.5)
    up = threading.Event()
    with blocked() as port:
        found: list[str] = []
        knocking = apart(lambda: found.append(network.knock(HERE, (port,), 1, up.is_set)))
        knocking.join(1.5)
        assert knocking.is_alive(), "a host 0 that is not there yet is no firewall"
        up.set()
        knocking.join(30)
        assert found == [f"{HERE}:{port} within 0 s"]


def test_the_first_port_that_is_open_does_not_speak_for_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for one port is not enough: NCCL's are chosen by the kernel."""
    monkeypatch.setattr(network, "PATIENCE", 0.5)
    (port,) = free_ports(1)
    with blocked() as closed:
        first = apart(lambda: network.receive(HERE, (port,), 2, lambda _host: True))
        assert network.knock(HERE, (port, closed), 1, lambda: True) == f"{HERE}:{closed} within 0 s"
        first.join(30)


def test_a_refusal_comes_from_the_machine_so_the_network_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host 0 may have waited for long enough, or another program has the port."""
    monkeypatch.setattr(network, "PATIENCE", 0.3)
    assert network.knock(HERE, free_ports(1), 1, lambda: True) == ""


def test_host_0_waits_for_no_host_for_ever_and_for_strangers_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE", 1.0)
    ports = free_ports(1)
    first = apart(lambda: network.receive(HERE, ports, 2, lambda _host: True))
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"kinetic host one\n", b"\xff" * 200, b""):
        for _ in network_tries():
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection((HERE, ports[0]), timeout=5) as one,
            ):
                one.sendall(said)
                break
    first.join(30)
    assert not first.is_alive()


def test_host_0_waits_while_others_have_not_even_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE", 0.1)
    monkeypatch.setattr(network, "TRY", 0.1)
    started = {0}
    first = apart(lambda: network.receive(HERE, free_ports(1), 2, lambda host: host in started))
    first.join(1.0)
    assert first.is_alive()
    started.add(1)
    first.join(30)
    assert not first.is_alive()


def test_a_port_that_another_program_has_is_left_out() -> None:
    with socket.create_server((HERE, 0)) as taken:
        network.receive(HERE, (taken.getsockname()[1],), 2, lambda _host: False)


def network_tries() -> Iterator[None]:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        yield
        time.sleep(0.02)


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ens5\t00000000\t0100800A\t0003\t0\t0\t200\t00000000\t0\t0\t0
enp0s12\t00000000\t0100800A\t0003\t0\t0\t100\t00000000\t0\t0\t0
enp0s12\t0100800A\t00000000\t0005\t0\t0\t100\tFFFFFFFF\t0\t0\t0
down0\t00000000\t0100800A\t0002\t0\t0\t0\t00000000\t0\t0\t0
"""


def test_the_interface_is_that_of_the_default_route_with_the_lowest_metric(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(ROUTES)
    assert network.interface(str(tmp_path / "route")) == "enp0s12"
    (tmp_path / "route").write_text("".join(ROUTES.splitlines(keepends=True)[:2]))
    assert network.interface(str(tmp_path / "route")) == ""
    assert network.interface(str(tmp_path / "nowhere")) == ""


def test_nccl_and_gloo_use_tcp_on_that_interface_and_guess_none() -> None:
    assert network.variables("enp0s12") == {
        "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "enp0s12", "GLOO_SOCKET_IFNAME": "enp0s12",
    }  # fmt: skip
    assert network.variables("") == {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
