"""Tests what a pod knows of where the others are: their names, once the cluster's DNS has an address for each."""

from __future__ import annotations

import json
import math
import socket
import time
from typing import Any

import pytest

from kinetic_orchestration.host.machine.machine import Unanswered
from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.host.machine.pod.pod import Pod
from kinetic_orchestration.protocol.assignment import Assignment
from tests.support.wire_tasks import TASK

pytestmark = pytest.mark.fast

NAMES = ["set-s-0-0.set", "set-s-0-1.set", "set-s-1-0.set", "set-s-1-1.set"]
BRIEF = 0.6
MUTE = "they have no node yet, its DNS does not run, or a network policy keeps pods from it"


def pod_of(monkeypatch: pytest.MonkeyPatch, *, host: int = 0, hosts: int = 4, name: str = "set", **orders: Any) -> Pod:
    """A pod of slices of two."""
    told = {"hosts_per_slice": 2, "name": name, "emulated": False, "secrets": [], **orders}
    monkeypatch.setenv(pod_start.ORDERS, json.dumps(told))
    return Pod(Assignment("gs://b/p", "job-1", 1, host, hosts, "", "", "", "", "", "", pod="uid"))


class Dns:
    """The system's resolver in a cluster.

    Attributes:
        late: A name → the look-ups that fail before it has an address, and how; a name that is not here never has one.
        takes: Seconds for each look-up.
        asked: The names of all look-ups.
    """

    def __init__(self) -> None:
        self.late: dict[str, tuple[OSError, ...]] = {}
        self.takes = 0.0
        self.asked: list[str] = []

    def look_up(self, name: str, *_: object) -> list[object]:
        self.asked.append(name)
        time.sleep(self.takes)
        failures = self.late.get(name)
        if failures is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if (times := self.asked.count(name)) <= len(failures):
            raise failures[times - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.244.0.7", 0))]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    found = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", found.look_up)
    return found


def test_a_pod_knows_all_by_their_names_in_the_order_of_hosts(monkeypatch: pytest.MonkeyPatch, dns: Dns) -> None:
    dns.late = dict.fromkeys(NAMES, ())
    pod = pod_of(monkeypatch, host=2)
    assert pod.addresses(TASK) == NAMES
    assert pod.address() == "set-s-1-0.set"
    assert pod_of(monkeypatch, host=2, emulated=True).address() == "127.0.0.1"


def test_it_asks_again_for_those_that_have_no_address_yet_and_for_no_others(
    monkeypatch: pytest.MonkeyPatch, dns: Dns
) -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    busy = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    dns.late = {NAMES[0]: (), NAMES[1]: (unknown,), NAMES[2]: (), NAMES[3]: (busy, unknown, TimeoutError())}
    assert pod_of(monkeypatch).addresses(TASK) == NAMES
    assert [dns.asked.count(name) for name in NAMES] == [1, 2, 1, 4]


@pytest.mark.parametrize(("hosts", "told"), [(4, NAMES[2:]), (12, [*NAMES[2:], "set-s-2-0.set", "set-s-2-1.set"])])
def test_of_those_that_never_have_one_the_first_are_named(
    monkeypatch: pytest.MonkeyPatch, dns: Dns, hosts: int, told: list[str]
) -> None:
    dns.late = dict.fromkeys(NAMES[:2], ())
    with pytest.raises(Unanswered) as caught:
        pod_of(monkeypatch, hosts=hosts).addresses(TASK._replace(provision=BRIEF))
    assert str(caught.value) == f"the cluster's DNS gave no address for {', '.join(told)} within 1 s: {MUTE}"


def test_a_dns_that_is_slow_to_say_nothing_is_not_asked_for_every_host_beyond_the_patience(
    monkeypatch: pytest.MonkeyPatch, dns: Dns
) -> None:
    """A network policy that drops what pods ask it costs a resolver ten seconds and more for each name."""
    dns.takes = BRIEF / 2
    with pytest.raises(Unanswered, match=f"gave no address for {NAMES[0]}, {NAMES[1]}, {NAMES[2]}"):
        pod_of(monkeypatch, hosts=64).addresses(TASK._replace(provision=BRIEF))
    assert len(dns.asked) <= math.ceil(BRIEF / dns.takes) + 1


def test_a_dns_that_is_slow_and_has_all_addresses_is_asked_for_every_host(
    monkeypatch: pytest.MonkeyPatch, dns: Dns
) -> None:
    dns.late, dns.takes = dict.fromkeys(NAMES, ()), 0.05
    assert pod_of(monkeypatch).addresses(TASK._replace(provision=0.01)) == NAMES


def test_what_the_resolver_of_this_machine_does_not_know_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The top level domain is one that nobody may have, and the last dot keeps a search list from it."""
    pod = pod_of(monkeypatch, hosts=2, name="set.invalid.")
    with pytest.raises(Unanswered, match="gave no address for set"):
        pod.addresses(TASK._replace(provision=0.1))
