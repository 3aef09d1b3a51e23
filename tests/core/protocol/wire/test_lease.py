"""The lease of a kept slice: its epochs, its idle times, and orders that only the holder of its key can write."""

from __future__ import annotations

import json

import pytest

from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.files import FileRecords
from kinetic_orchestration.protocol.wire.lease import ARMED, CLAIMED, ENDED, FREE, MOST_IDLE, Idle, Lease

KEY = "6b6579"
FIRST = "job-aaaaaaaaaaaa", 1
SECOND = "job-bbbbbbbbbbbb", 2


def free(**changes):
    lease = Lease(
        "kinetic-mark-aaaaaaaaaaaa-1", 0, FREE, "ab" * 32, {"backend": "tpu-vm", "zone": "us-east5-a"}, *FIRST, *FIRST,
        100.0, "host-0", since=40.0,
    )  # fmt: skip
    return lease._replace(**changes)


def claimed(lease, at=60.0):
    found = lease.claimed(*SECOND, deadline=500.0, origin={"run": "r"}, writer="client", now=at)
    return found.with_orders({"job": SECOND[0], "attempt": 2, "key": "0f" * 32}, KEY)


def test_a_claim_has_an_epoch_and_sealed_orders():
    lease = claimed(free())
    assert (lease.state, lease.epoch, lease.is_of(*SECOND), lease.is_of(*FIRST)) == (CLAIMED, 1, True, False)
    assert lease.orders_for_hosts(KEY) == {"job": SECOND[0], "attempt": 2, "key": "0f" * 32}
    assert "0f" * 32 not in lease.orders


@pytest.mark.parametrize(
    "change", [{"epoch": 2}, {"slice": "another"}, {"job": FIRST[0]}, {"attempt": 3}, {"until": 9.0}]
)
def test_orders_are_refused_with_anything_else_than_what_was_sealed(change):
    assert claimed(free())._replace(**change).orders_for_hosts(KEY) is None


def test_orders_are_refused_without_the_key_they_were_sealed_with():
    lease = claimed(free())
    assert lease.orders_for_hosts("another") is None
    assert lease.orders_for_hosts("") is None
    assert lease._replace(orders=json.dumps({"job": "job-evil"})).orders_for_hosts(KEY) is None


def test_idle_times_are_those_between_an_offer_and_what_follows():
    again = claimed(free()).offered(until=200.0, writer="host-0", now=90.0)
    over = again.ended("nobody came", writer="host-0", now=200.0)
    assert over.idle == (Idle(40.0, 60.0, *FIRST), Idle(90.0, 200.0, *SECOND))
    assert over.state == ENDED
    assert claimed(free()).ended("cancelled", writer="x", now=70.0).idle == (Idle(40.0, 60.0, *FIRST),)


def test_idle_times_stay_bounded_and_lose_no_second():
    lease = free(idle=(Idle(0.0, 1.0, *FIRST),) * MOST_IDLE)
    found = claimed(lease).idle
    assert len(found) == MOST_IDLE
    assert sum(one.ended - one.began for one in found) == MOST_IDLE + 20.0


def test_a_lease_survives_its_record():
    lease = claimed(free()).offered(until=200.0, writer="host-0", now=90.0)
    assert Lease.decode(lease.encode()) == lease
    with pytest.raises(wire.Unreadable):
        Lease.decode(free(state="lent").encode())
    with pytest.raises(wire.Unreadable):
        Lease.decode(wire.encode({**free()._asdict(), "idle": [[1, 2]], "origin": {}}))


def test_one_of_two_claims_wins(tmp_path):
    records = FileRecords(str(tmp_path))
    assert leases.read(records, free().slice) is None
    assert leases.write(records, free(), None)
    assert not leases.write(records, free(writer="host-1"), None)
    held = leases.read(records, free().slice)
    assert held is not None
    assert leases.write(records, claimed(held.lease), held)
    assert leases.write(records, claimed(held.lease), held), "the same write, repeated after a lost answer"
    assert not leases.write(
        records, held.lease.claimed("job-c", 1, deadline=9.0, origin={}, writer="o", now=61.0), held
    )


def test_an_end_asks_whether_it_may_and_stays(tmp_path):
    records = FileRecords(str(tmp_path))
    lease = free()
    assert not leases.end(records, lease.slice, "why", writer="r", now=70.0, may=lambda _: True)
    leases.write(records, lease, None)
    assert not leases.end(records, lease.slice, "why", writer="r", now=70.0, may=lambda one: one.state == CLAIMED)
    assert leases.end(records, lease.slice, "why", writer="r", now=70.0, may=lambda one: one.state == FREE)
    assert leases.end(records, lease.slice, "again", writer="r", now=71.0, may=lambda _: False)
    held = leases.read(records, lease.slice)
    assert held is not None
    assert held.lease.why == "why"


def test_it_tells_when_an_attempt_has_claimed_it_as_long_as_it_remembers():
    again = claimed(free()).offered(until=200.0, writer="host-0", now=90.0)
    third = again.claimed(*FIRST, deadline=500.0, origin={}, writer="client", now=120.0)
    for lease in (third, third.ended("lost", writer="x", now=130.0), third.offered(until=300.0, writer="h", now=140.0)):
        assert (lease.claim_of(*SECOND, 1), lease.claim_of(*FIRST, 2)) == (60.0, 120.0)
    assert (
        third.offered(until=300.0, writer="h", now=140.0).ended("", writer="h", now=150.0).claim_of(*FIRST, 2) == 120.0
    )
    assert (third.claim_of(*FIRST, 1), third.claim_of(*SECOND, 2), third.claim_of(*FIRST, 3)) == (0.0, 0.0, 0.0)
    assert (free().claim_of(*FIRST, 0), free().claim_of(*FIRST, 1)) == (0.0, 0.0), (
        "the one it was made for claims nothing"
    )
    full = third._replace(epoch=MOST_IDLE, idle=third.idle[:1] * MOST_IDLE)
    assert full.claim_of(*FIRST, MOST_IDLE) == 0.0, "the last one is the sum of several"


def test_a_slice_that_nobody_took_is_idle_no_longer_than_its_machines_can_be_there():
    long_after = {"writer": "x", "now": 100.0 + ARMED + 50.0}
    assert free().ended("released", **long_after).idle == (Idle(40.0, 100.0 + ARMED, *FIRST),)
    assert free().ended("it is still there", **long_after, is_there=True).idle == (Idle(40.0, 150.0 + ARMED, *FIRST),)
    assert free().ended("released", writer="x", now=99.0).idle == (Idle(40.0, 99.0, *FIRST),)
