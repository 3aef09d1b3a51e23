"""The cost of a job's chips, as an estimate with its date."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors
from kinetic_orchestration.cli import main
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.held_time import DEADLINE_ALLOWANCE
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import TpuVm
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.accelerators import catalogue, parse
from kinetic_orchestration.plan.hardware.cost import (
    Total,
    affordable,
    estimate,
    summary,
    times,
    together,
    went_to,
)
from kinetic_orchestration.plan.hardware.price_list import PRICES
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, dearest, price
from kinetic_orchestration.plan.planner import describe, make_plan
from kinetic_orchestration.plan.values import PRESENT, Change, Event, Limits, Plan, Retry, Spent
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire.lease import ARMED, FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.support.wire_tasks import in_spec

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("name", "zone", "usd"),
    [
        ("v5e-16", "us-central1-a", 1.20),
        ("v5e-16:spot", "us-west4-a", 0.607),
        ("v5e-16:spot", "asia-southeast1-b", 0.78),
        ("v5e-16", "europe-west4-b", 1.56),
        ("v5p-8", "us-east5-a", 4.20),
        ("v6e-8", "asia-northeast1-b", 3.24),
        ("v6e-8:spot", "europe-west4-a", 1.782),
        ("v6e-8:spot", "us-east5-b", 1.4033),
        ("v6e-8", "us-south1-a", 2.70),
        ("v4-8", "us-central2-b", 3.22),
    ],
)
def test_a_price_is_that_of_the_generation_in_the_region(name: str, zone: str, usd: float) -> None:
    found = price(Purchase(parse(name)), zone)
    assert isinstance(found, Price)
    assert found.usd_per_chip_hour == usd
    assert found.date in {row[4] for row in PRICES if row[3] == usd}


def test_spot_may_be_asked_for_by_name_or_by_argument() -> None:
    named, asked_for = Purchase(parse("v5e-8:spot")), Purchase(parse("v5e-8"), spot=True)
    assert price(named, "us-west4-a") == price(asked_for, "us-west4-a")


def test_no_price_is_invented() -> None:
    names = ("tpu7x-8", "a100x4", "l4", "cpu", "v2-4", "v3-4", "gpu", "v100")
    assert [name for name in names if isinstance(price(Purchase(parse(name))), Price)] == []


def test_the_dearest_regions_price_stands_in_for_that_of_another_and_says_so() -> None:
    found = price(Purchase(parse("v6e-8")), "us-central1-b")
    assert isinstance(found, Price)
    assert (found.usd_per_chip_hour, found.region) == (3.24, "asia-northeast1")
    told = "list price of 2026-08 for asia-northeast1, the dearest, as none is known for us-central1"
    assert found.source == told


def test_the_dearest_price_stands_in_for_that_of_a_cluster_and_says_so() -> None:
    """Nobody knows its region here, and it was said to be the first of the table."""
    found = price(Purchase(parse("v6e-8")), "prod/default")
    assert isinstance(found, Price)
    told = "list price of 2026-08 for asia-northeast1, the dearest, as the cluster's is not known"
    assert (found.usd_per_chip_hour, found.source) == (3.24, told)
    assert price(Purchase(parse("v6e-8")), "prod/default", {"v6e": 1.0}) == Price(1.0, "", "price from settings", "")
    assert price(Purchase(parse("v4-8")), "prod/default") == price(Purchase(parse("v4-8"))), "it is that of any region"


def test_where_a_slice_will_be_is_not_known_so_the_dearest_of_its_zones_counts() -> None:
    v6e = Purchase(parse("v6e-8"))

    def usd(*zones: str, own: dict[str, float] | None = None) -> float | None:
        found = dearest(v6e, zones, own)
        return found.usd_per_chip_hour if isinstance(found, Price) else None

    assert usd("us-east5-a", "europe-west4-a") == 2.97
    assert usd() == usd("a-cluster/default") == 3.24, "it may be anywhere"
    assert usd("us-east5-a", "us-east5-b", own={"v6e/us-east5": 1.0}) == 1.0
    assert usd(own={"v6e": 1.0}) == 1.0
    half = dearest(Purchase(parse("v2-4")), ("us-central1-b", "us-central1-c"), {"v2/us-central1": 1.0})
    assert isinstance(half, Price)
    half = dearest(Purchase(parse("v2-4")), ("us-central1-b", "europe-west4-a"), {"v2/us-central1": 1.0})
    assert "of v2-4 in europe-west4: name the price of a chip for an hour with KINETIC_PRICES=v2/europe-west4=…" in str(
        half
    )


def test_an_on_demand_price_in_place_of_a_spot_price_says_that_it_is() -> None:
    found = price(Purchase(parse("v4-8:spot")), "us-central2-b")
    assert isinstance(found, Price)
    assert (found.usd_per_chip_hour, found.source) == (
        3.22,
        "list price of 2024-12-23, on demand and so at most, as none is known for spot",
    )


def test_settings_override_prices_the_more_exact_first() -> None:
    own = {"v5e": 1.0, "v5e/us-west4": 0.9, "v5e:spot": 0.3, "a100": 3.0}

    def usd(name: str, zone: str | None = None) -> float | None:
        found = price(Purchase(parse(name)), zone, own)
        return found.usd_per_chip_hour if isinstance(found, Price) else None

    assert usd("v5e-8") == 1.0
    assert usd("v5e-8", "us-west4-a") == 0.9
    assert usd("v5e-8:spot", "us-west4-a") == 0.3
    assert usd("a100x4") == 3.0
    assert usd("v6e-8", "us-east5-a") == 2.70


def test_an_emulated_job_shows_what_it_would_have_cost() -> None:
    found = estimate(Purchase(parse("v5e-16")), 22.5, uncharged=True)
    assert str(found) == (
        "cost: $0.00 on this machine; on Cloud TPU v5litepod-16 in us-central1 about $0.12 "
        "(0.10 chip-hours at $1.20, list price of 2024-12-23)"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seconds", "zone", "emulated", "expected"),
    [
        ("v5p-8:spot", 3600, "us-east5-a", False,
         ("cost: on Cloud TPU v5p-16 in us-east5 about $33.60 (8.00 chip-hours at $4.20, "
          "list price of 2026-08, on demand and so at most, as none is known for spot)")),
        ("v5e-8", 3, "us-west4-a", True,
         ("cost: $0.00 on this machine; on Cloud TPU v5litepod-8 in us-west4 less than $0.01 "
          "(0.0067 chip-hours at $1.20, list price of 2026-08-07)")),
        ("v4-8", 7200, None, False,
         "cost: on Cloud TPU v4-16 about $51.52 (16.00 chip-hours at $3.22, list price of 2024-12-23)"),
        ("a100x4", 90, None, True, "cost: $0.00 on this machine"),
        ("gpu", 90, None, True, "cost: $0.00 on this machine"),
        ("tpu7x-8", 3600, "us-central1-c", False, ("cost: unknown for tpu7x-8 (8.00 chip-hours): no price is known of tpu7x-8 in us-central1, "
          "as Google's list has it by the hour, and not whether of a chip or of the four of a host: name the price of a chip for an hour with KINETIC_PRICES=tpu7x/us-central1=…")),
        ("cpu:8", 3600, None, True, "cost: $0.00 on this machine"),
        ("v5e-8", -5, None, True, "cost: $0.00 on this machine"),
        ("v5e-256", 86400 * 30, "europe-west4-b", False,
         ("cost: on Cloud TPU v5litepod-256 in europe-west4 about $287,539.20 "
          "(184,320.00 chip-hours at $1.56, list price of 2024-12-23)")),
    ],
)  # fmt: skip
def test_the_cost_line(name: str, seconds: float, zone: str | None, emulated: bool, expected: str) -> None:
    assert str(estimate(Purchase(parse(name)), seconds, zone=zone, uncharged=emulated)) == expected


def test_several_slices_cost_several_times_as_much() -> None:
    one, two = (estimate(Purchase(parse("v6e-256"), slices), 3600, zone="us-east5-a") for slices in (1, 2))
    assert one.usd is not None
    assert two.usd == pytest.approx(2 * one.usd)
    assert two.chip_hours == 512


def test_every_estimate_is_plain_data() -> None:
    assert {type(value) for found in catalogue() for value in asdict(estimate(Purchase(found), 1)).values()} <= {
        str, float, bool, int, dict, type(None),
    }  # fmt: skip


def test_every_priced_generation_is_one_that_exists() -> None:
    assert {row[0] for row in PRICES} <= {found.generation for found in catalogue()}


def test_totals_count_what_was_paid_for_by_period() -> None:
    def at(day: int) -> float:
        return datetime(2025, 1, day, 12, tzinfo=UTC).timestamp()

    rows = [
        (at(31), estimate(Purchase(parse("v4-8")), 3600)),
        (at(2), estimate(Purchase(parse("v4-8")), 3600)),
        (at(2), estimate(Purchase(parse("a100")), 3600)),
        (at(2), estimate(Purchase(parse("v5e-16")), 3600, uncharged=True)),
    ]
    assert summary(rows) == [
        Total(
            "2025-01-02",
            jobs=3,
            uncharged=1,
            unpriced=1,
            chip_hours=9.0,
            usd=None,
            least_usd=8 * 3.22,
            ready_seconds=10800,
        ),
        Total(
            "2025-01-31",
            jobs=1,
            uncharged=0,
            unpriced=0,
            chip_hours=8.0,
            usd=8 * 3.22,
            least_usd=8 * 3.22,
            ready_seconds=3600,
        ),
    ]
    assert [total.period for total in summary(rows, "week")] == ["2025-W01", "2025-W05"]
    assert [(total.period, total.jobs) for total in summary(rows, "month")] == [("2025-01", 4)]


# ---- what the records tell -----------------------------------------------------------------------------------

NOW = 1_700_000_000.0
ZONE = "us-east5-a"
STAGED: dict[str, Any] = {"path": [], "extra_path": [], "data": [], "packages": []}


def plan_of(name: str = "v5p-8", **changes: Any) -> Plan:
    plain = Plan("train", parse(name), "tpu-vm", "gs://b/p", "prod", Limits(), Retry(), emulated=False, zones=(ZONE,))
    return replace(plain, **changes)


class Records:
    """A job's records as hosts and clients would have written them, each at a time of its own."""

    job = "job-0123456789ab"

    def __init__(self, root: Path) -> None:
        self.store: LocalStore = open_local(root, "prod")

    def write(self, record: str, at: float, **fields: Any) -> None:
        self.store.put(record, wire.encode(fields))
        os.utime(Path(self.store.root) / record, (NOW + at, NOW + at))

    def intend(self, attempt: int, at: float, zone: str = ZONE, allowed: float = 0.0) -> None:
        placement = {"backend": "tpu-vm", "zone": zone, "name": names.slice_of("gs://b/p", "prod", self.job, attempt)}
        fields = {"attempt": attempt, "boot": "b", "placement": placement, "allowed": allowed}
        self.write(names.intent(self.job, attempt), at, **fields)

    def start(self, attempt: int, at: float, up: float = 0.0) -> None:
        self.write(names.host(self.job, attempt, 0, "started.json"), at, boot="b", up=up)

    def end(self, attempt: int, at: float, ran: tuple[float, float] | None) -> None:
        told = {} if ran is None else {"began": NOW + ran[0], "ended": NOW + ran[1]}
        self.write(names.host(self.job, attempt, 0, "done.json"), at, **told)

    def judge(self, attempt: int, at: float, kind: str = wire.COMMITTED, cause: str = "") -> None:
        self.write(names.verdict(self.job, attempt), at, kind=kind, writer="w", time=NOW + at, cause=cause)

    def stays(self) -> list[usage.Stay]:
        return usage.stays(self.store, self.job)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "store é")


def test_an_attempts_time_is_queued_ready_and_productive_by_its_records_alone(records: Records) -> None:
    records.intend(1, 0)
    records.start(1, 130, up=10)  # booted at 120
    records.end(1, 500, (200, 480))
    records.judge(1, 490)
    assert records.stays() == [usage.Stay(1, ZONE, queued=120, ready=380, productive=pytest.approx(280))]


def test_what_the_time_that_hosts_were_held_went_to_is_told_by_their_records(records: Records) -> None:
    records.intend(1, 0)
    records.start(1, 130, up=10)  # booted at 120
    done = names.host(records.job, 1, 0, "done.json")
    records.write(done, 500, began=NOW + 205, ended=NOW + 480, spent={"t": [0, 101, 200.0, 30.0, 4.0, 6.0]})
    records.judge(1, 490)
    assert records.stays()[0].took[:3] == (10, 75, 20), "provision, prepare and teardown"
    told = usage.estimate_of(plan_of(), records.stays(), {})
    assert told.parts == {
        "queue": 120, "provision": 10, "prepare": 75, "restore": 4, "compile": 30, "steps": 200, "redone": 0,
        "checkpoint": 6, "program": 35, "teardown": 20,
    }  # fmt: skip
    assert went_to(told) == (
        "queue 2 min, provision 10 s, prepare 75 s, restore 4.0 s, compile 30 s, steps 3 min, checkpoint stall 6.0 s, "
        "program time 35 s, teardown 20 s"
    )
    records.intend(2, 600)
    records.start(2, 620, up=5)
    records.judge(2, 700, wire.CLOSED, wire.PREEMPTION)  # before its program began
    assert records.stays()[1].took[:3] == (5, 0, 0)
    records.intend(3, 700)
    records.write(names.ready(records.job, 3), 712, since=NOW + 710)
    records.judge(3, 810, wire.CLOSED, wire.INFRASTRUCTURE)
    assert records.stays()[2].took[:3] == (100, 0, 0), "its host never spoke"
    told = usage.estimate_of(plan_of(), records.stays(), {})
    assert sum(told.parts.values()) - told.parts["queue"] == pytest.approx(told.ready_seconds)
    assert went_to(usage.estimate_of(plan_of(), [], {})) == "", "nobody told of steps"


def lease_of(records: Records, attempt: int, at: float, **changes: Any) -> Lease:
    """The lease of the slice of an attempt, offered at that time for 600 s."""
    name = names.slice_of("gs://b/p", "prod", records.job, attempt)
    placement = {"backend": "tpu-vm", "zone": ZONE, "name": name}
    plain = Lease(
        name, 0, FREE, "5a" * 32, placement, records.job, attempt, records.job, attempt, NOW + at + 600, "w",
        since=NOW + at,
    )  # fmt: skip
    return plain._replace(**changes)


def test_the_time_for_which_a_kept_slice_served_nobody_is_charged_to_the_job_that_left_it(records: Records) -> None:
    other = "job-ffffffffffff"
    records.intend(1, 0)
    records.start(1, 100)
    records.end(1, 500, (200, 480))
    records.judge(1, 490)
    records.write(names.left(records.job, 1), 500)
    offered = lease_of(records, 1, 510)
    claimed = offered.claimed(other, 1, deadline=NOW + 9000, origin={}, writer="w", now=NOW + 570)
    ended = claimed.offered(until=NOW + 2000, writer="w", now=NOW + 1000).ended("unclaimed", writer="w", now=NOW + 1600)
    assert [tuple(idle) for idle in ended.idle] == (
        [(NOW + 510, NOW + 570, records.job, 1), (NOW + 1000, NOW + 1600, other, 1)]
    )  # fmt: skip
    for lease in (claimed, ended):
        records.store.put(names.lease(lease.slice), lease.encode())
        (stay,) = usage.stays(records.store, records.job, kept=True)
        assert (stay.ready, stay.idle, stay.is_offered) == (400, 60, False)
    told = usage.estimate_of(plan_of(), [stay], {"v5p": 1.0})
    assert (told.ready_seconds, told.idle_seconds) == (400, 60)
    assert told.chip_hours == pytest.approx(8 * 460 / 3600) == told.usd
    assert "400 s READY" not in times(told) and "7 min READY, 60 s kept idle" in times(told)
    (plain,) = records.stays()
    assert plain.idle == 0, "of a job without `keep` no lease is read"
    (total,) = summary([(NOW, told), (NOW, told)], "month")
    assert (total.idle_seconds, total.ready_seconds) == (120, 800)


def test_a_slice_that_is_offered_is_idle_until_now_but_no_longer_than_its_machines_keep_it(records: Records) -> None:
    now = records.store.now() - NOW
    records.intend(1, now - 1000)
    records.start(1, now - 900)
    records.judge(1, now - 500)
    records.store.put(names.lease((lease := lease_of(records, 1, now - 480)).slice), lease.encode())
    (stay,) = usage.stays(records.store, records.job, kept=True)
    assert stay.is_offered and stay.idle == pytest.approx(480, abs=60)
    records.store.put(names.lease(lease.slice), lease._replace(until=NOW + now - 400).encode())
    (stay,) = usage.stays(records.store, records.job, kept=True)
    assert stay.idle == pytest.approx(80 + ARMED, abs=0.01)
    records.store.put(names.lease(lease.slice), b"{")
    (stay,) = usage.stays(records.store, records.job, kept=True)
    assert (stay.idle, stay.is_offered) == (0, False), "a damaged lease is ignored"


def test_a_claimed_slice_is_charged_from_its_claim_to_whoever_claimed_it_also_if_its_hosts_are_dead(
    records: Records,
) -> None:
    other = "job-ffffffffffff"
    name = names.slice_of("gs://b/p", "prod", other, 1)

    def intend(attempt: int, at: float, epoch: int, ran: tuple[int, ...]) -> None:
        placement = {
            "backend": "tpu-vm", "zone": ZONE, "name": name, "lease": {"slice": name, "epoch": epoch}
        }  # fmt: skip
        before = {"spent": Spent(moved=attempt - 1), "ran": list(ran)}
        fields = {"attempt": attempt, "boot": "b", "placement": placement, "allowed": 0.0, "before": before}
        records.write(names.intent(records.job, attempt), at, **fields)

    intend(1, 100, 1, ())  # lost: another job was faster
    records.judge(1, 110, wire.CLOSED, wire.INTERNAL)
    intend(2, 200, 2, ())
    lease = lease_of(records, 1, 50, slice=name, job=other, made_for=other)
    lease = lease.claimed("job-eeeeeeeeeeee", 1, deadline=NOW + 9000, origin={}, writer="w", now=NOW + 105)
    lease = lease.offered(until=NOW + 900, writer="w", now=NOW + 150)
    lease = lease.claimed(records.job, 2, deadline=NOW + 9000, origin={}, writer="w", now=NOW + 210)
    records.store.put(names.lease(name), lease.encode())
    records.judge(2, 300, wire.CLOSED, wire.INTERNAL)  # no host has followed
    records.store.put(names.lease(name), lease.ended("unserved", writer="w", now=NOW + 301).encode())
    lost, unserved = records.stays()
    assert (lost.ready, lost.queued) == (0, 10)
    assert (unserved.ready, unserved.queued) == (90, 10)
    records.start(2, 215, up=3)
    assert records.stays()[1].ready == 90, "the seconds until its hosts have followed are paid for, too"
    intend(3, 400, 3, (2,))
    assert [stay.ready for stay in records.stays()] == [0, 90, 0]
    records.start(3, 410)
    assert usage.estimate_of(plan_of(), records.stays(), {}).attempts == 1, "as `peek` and `status` count them"


def test_an_attempt_that_never_had_hosts_only_queued(records: Records) -> None:
    records.intend(1, 0)
    records.judge(1, 60, wire.CLOSED, wire.STOCKOUT)
    records.intend(2, 60, zone="europe-west4-b")
    records.start(2, 100)
    records.end(2, 200, (120, 190))
    records.judge(2, 195)
    found = records.stays()
    assert [(stay.queued, stay.ready, stay.productive) for stay in found] == [(60, 0, 0), (40, 100, 70)]
    told = usage.estimate_of(plan_of(), found, {})
    assert (told.attempts, told.queued_seconds, told.region) == (1, 100, "europe-west4")


def test_hosts_that_were_killed_without_a_word_were_charged_for_and_count_as_no_use(records: Records) -> None:
    records.intend(1, 0)
    records.start(1, 10)
    records.judge(1, 110, wire.CLOSED, wire.PREEMPTION)
    assert records.stays() == [usage.Stay(1, ZONE, queued=10, ready=100, productive=0)]


def test_a_slice_of_which_no_host_spoke_is_charged_for_since_a_client_saw_it(records: Records) -> None:
    records.intend(1, 0, allowed=50)  # a deadline that nobody there keeps
    records.write(names.ready(records.job, 1), 12, since=NOW + 10)
    records.judge(1, 110, wire.CLOSED, wire.INFRASTRUCTURE)
    assert records.stays() == [usage.Stay(1, ZONE, queued=10, ready=100, productive=0)]
    assert usage.estimate_of(plan_of(), records.stays(), {}).attempts == 1


@pytest.mark.parametrize("left", [False, True])
def test_a_slice_that_could_not_be_freed_is_charged_for_until_it_was(records: Records, left: bool) -> None:
    """Until now, or until its host deleted it: the client may be gone since, and it would cost for ever."""
    now = records.store.now() - NOW
    records.intend(1, now - 1000)
    records.start(1, now - 900)
    records.judge(1, now - 800)
    records.write(names.refused(records.job, 1), now - 799)
    if left:
        records.write(names.left(records.job, 1), now - 790)
    (stay,) = records.stays()
    assert stay.ready == (pytest.approx(110, abs=0.01) if left else pytest.approx(900, abs=60))
    records.write(names.freed(records.job, 1), now - 700)  # it was seen to run on
    (stay,) = records.stays()
    assert stay.ready == pytest.approx(200, abs=0.01)


def test_a_job_that_everybody_forgot_is_charged_for_until_its_deadline_at_most(records: Records) -> None:
    records.intend(1, 0, allowed=1000)
    records.start(1, 100)
    assert records.stays() == [usage.Stay(1, ZONE, queued=100, ready=900, productive=0)]


def test_a_running_attempt_is_told_until_now(records: Records) -> None:
    now = records.store.now() - NOW
    records.intend(1, now - 10_000)
    records.start(1, now - 6_000)
    beat = wire.Beat(wire.RUNNING, began=NOW + now - 3_000)
    records.store.put(names.beat(records.job, 1, 0), beat.encode())
    (stay,) = records.stays()
    assert stay.queued == pytest.approx(4_000, abs=0.01)
    assert stay.ready == pytest.approx(6_000, abs=60)
    assert stay.productive == pytest.approx(3_000, abs=60)


def test_chips_of_all_slices_are_charged_for_in_the_zone_where_they_were(records: Records) -> None:
    took = usage.Took(trainings={"t": [0, 10, 1800, 0, 0, 0]}), usage.Took(trainings={"t": [10, 20, 3600, 0, 0, 0]})
    stays = [
        usage.Stay(1, "us-west4-a", 10, 3600, 1800, took[0]), usage.Stay(2, "europe-west4-b", 20, 3600, 3600, took[1]),
    ]  # fmt: skip
    told = usage.estimate_of(plan_of("v5e-8", slices=2, spot=True), stays, {})
    assert told.chip_hours == 32
    assert told.usd == pytest.approx(16 * 0.607 + 16 * 1.56)
    assert (told.attempts, told.goodput, told.spot) == (2, 0.75, True)
    assert told.region == "us-west4, europe-west4"
    assert not told.uncharged
    assert usage.estimate_of(plan_of("v5e-8", emulated=True), stays, {}).uncharged
    assert usage.estimate_of(plan_of("v5e-8"), stays, {"v5e": 1.0}).usd == 16.0


def test_a_job_that_never_had_hosts_cost_nothing() -> None:
    told = usage.estimate_of(plan_of(), [], {})
    assert (told.usd, told.chip_hours, told.attempts, told.goodput) == (0.0, 0.0, 0, None)
    assert times(told) == "0 attempts, 0.0 s queued, 0.0 s READY, 0.0 s program time"


def test_the_line_of_times_says_what_part_was_of_use() -> None:
    one = estimate(Purchase(parse("v5p-8")), 7200, zone=ZONE)
    of = {"attempts": 2, "queued": 42.0, "ready": 14400.0, "productive": 9000.0}
    told = together([one, one], **of)
    assert times(told) == "2 attempts, 42 s queued, 4.0 h READY, 2.5 h program time"
    told = together([one, one], parts={"steps": 5400.0}, **of)
    assert times(told) == "2 attempts, 42 s queued, 4.0 h READY, 90 min productive, goodput 38%"
    assert told.usd_per_chip_hour == 4.20


def test_what_one_zone_has_no_price_for_leaves_the_whole_unknown() -> None:
    parts = [estimate(Purchase(parse("v5p-8")), 60, zone=ZONE), estimate(Purchase(parse("tpu7x-8")), 60)]
    assert together(parts, attempts=2, queued=0, ready=120, productive=0).usd is None


# ---- limits.cost ---------------------------------------------------------------------------------------------


def asked(cost: Any, name: str = "v5p-8", **options: Any) -> JobSpec:
    return JobSpec(
        "train", Options(accelerator=name, limits=Limits(cost=cost), backend="tpu-vm", **options), argv=("x",)
    )


def in_the_cloud(tmp_path: Path, **arguments: Any) -> settings.Settings:
    return settings.load({}, home=tmp_path, store="gs://b/p", deployment="prod", project="proj", **arguments)


def test_dollars_become_seconds_in_the_dearest_of_the_zones() -> None:
    zones, v6e = ("us-east5-a", "europe-west4-a"), parse("v6e-8")
    assert affordable(2.97 * 8, Purchase(v6e), zones) == pytest.approx(3600)
    assert affordable(2.97 * 8, Purchase(v6e, 2), zones) == pytest.approx(1800)
    assert affordable(1.782 * 8, Purchase(v6e, spot=True), zones) == pytest.approx(3600)
    assert affordable(8, Purchase(v6e), zones, {"v6e": 1.0}) == pytest.approx(3600)


def test_a_cost_limit_bounds_what_the_hosts_are_told(tmp_path: Path) -> None:
    plan = make_plan(asked(4.20 * 8, cloud=TpuVm(zones=[ZONE])), in_the_cloud(tmp_path))
    assert plan.affordable == pytest.approx(3600)
    assert Plan.from_json(plan.to_json()).affordable == plan.affordable


@pytest.mark.parametrize(
    ("cost", "name", "prices", "message"),
    [
        (10, "v2-4", "", "KINETIC_PRICES=v2"),
        (0, "v5p-8", "", "a job that may cost nothing cannot run"),
        ("10", "v5p-8", "", "limits.cost is '10': give US dollars, as list prices are, as a number"),
        (10, "v5p-8", "v5p=0", "has 'v5p=0': nothing costs 0"),
    ],
)
def test_a_cost_limit_that_cannot_be_kept_is_refused_with_the_setting_that_names_a_price(
    tmp_path: Path, cost: Any, name: str, prices: str, message: str
) -> None:
    with pytest.raises(errors.UsageError, match=re.escape(message)):
        make_plan(asked(cost, name), in_the_cloud(tmp_path, prices=prices))


class _Nowhere(LocalBackend):
    """The one verb that the next intent needs, of a backend whose hosts are other machines."""

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Any = None) -> dict[str, Any]:
        name = names.slice_of(plan.store, plan.deployment, job_id, attempt)
        return {"backend": "tpu-vm", "project": plan.project, "zone": ZONE, "name": name, "hosts": plan.hosts}


def test_a_cost_limit_never_bites_on_this_machine_and_the_plan_says_so(tmp_path: Path) -> None:
    """The code is the same in both places; what it says is still read."""
    here = settings.load({}, home=tmp_path)
    there = JobSpec("f", Options(accelerator="tpu7x-8", limits=Limits(cost=10)))
    plan = make_plan(there, here)
    assert (plan.limits.cost, plan.affordable) == (10, 0.0)
    assert "cost $10.00 (nothing is charged on this machine)" in describe(plan)
    for wrong in ("10", 0, -1, float("nan")):
        with pytest.raises(errors.UsageError, match=r"limits\.cost is"):
            make_plan(JobSpec("f", Options(accelerator="cpu", limits=Limits(cost=wrong))), here)  # type: ignore[arg-type]


def _job(records: Records, tmp_path: Path, plan: Plan) -> Job:
    records.write(names.spec(records.job), 0, name="train", plan=plan.to_json(), staged=STAGED, task=in_spec())
    backend = _Nowhere(tmp_path, 0, str(tmp_path), "prod")
    return open_job(records.job, records.store, backend, Trust(everything=True))


def test_the_next_attempt_gets_what_money_is_left(records: Records, tmp_path: Path) -> None:
    job = _job(records, tmp_path, plan_of(affordable=1000.0, limits=Limits(cost=10, run=86400.0, provision=60.0)))
    actions.intend(job, 1)
    told = wire.decode(records.store.read(names.intent(job.job_id, 1)).data)  # type: ignore[union-attr]
    assert (told["affordable"], told["allowed"]) == (1000, 1000 + 60 + DEADLINE_ALLOWANCE)
    records.intend(1, 0)
    records.start(1, 100)
    records.judge(1, 500, wire.ABORTED, wire.PREEMPTION)
    actions.intend(job, 2)
    told = wire.decode(records.store.read(names.intent(job.job_id, 2)).data)  # type: ignore[union-attr]
    assert told["affordable"] == 600


def test_no_attempt_follows_once_the_money_is_spent(records: Records, tmp_path: Path) -> None:
    job = _job(records, tmp_path, plan_of(affordable=300.0, limits=Limits(cost=10)))
    records.intend(1, 0)
    records.start(1, 100)
    records.judge(1, 500, wire.ABORTED, wire.PREEMPTION)
    actions.intend(job, 2)
    assert records.store.read(names.intent(job.job_id, 2)) is None
    record = records.store.read(names.verdict(job.job_id, 2))
    assert record is not None
    verdict = wire.Verdict.decode(record.data)
    assert (verdict.cause, verdict.reason) == (
        wire.DEADLINE,
        "its slices were held for 400 s, its cost limit of $10.00",
    )
    assert lifecycle.CAUSES[verdict.cause][0] is None


@kinetic.run(accelerator="cpu")
def _quick() -> None:
    pass


def test_a_real_jobs_hosts_tell_when_its_program_ran(home: Path) -> None:
    job = _quick.run_async()
    job.result(timeout=60)
    cost = kinetic.attach(job.job_id).cost()
    assert cost.attempts == 1
    assert 0 < cost.program_seconds <= cost.ready_seconds < 60
    assert (cost.productive_seconds, cost.goodput, cost.parts) == (None, None, {}), "it told of no steps"
    assert cost.uncharged
    assert job.seconds() == cost.ready_seconds


@kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=1))
def _trains() -> int:
    """Killed after step 25, of which 20 were kept, by a program that took a second to begin and to see its first step."""
    import os
    import signal
    import time

    time.sleep(1.0)
    training = kinetic.Training(every=10, total=40)
    state, begun = training.restore({"sum": 0.0})
    for number in range(begun, 40):
        time.sleep(0.05 if number > begun else 1.0)
        training.step(number + 1, {"sum": state["sum"] + number}, loss=0.0)
        if number == 24 and kinetic.current().attempt == 1:
            time.sleep(2.0)  # by then it has told, and its host too
            training.step(25, state, loss=0.0)
            os.kill(os.getpid(), signal.SIGKILL)
    training.finish(state)
    return begun


@pytest.mark.slow
@pytest.mark.turn(8)
def test_goodput_counts_steps_that_were_not_done_again_and_tells_what_the_rest_went_to(home: Path) -> None:
    job = _trains.run_async()
    assert job.result(timeout=100) == 20
    cost = job.cost()
    parts = cost.parts
    assert list(parts) == list(usage.PARTS)
    assert parts["program"] >= 2.0 + 1.9, "imports, and what a program does beside its steps"
    assert parts["compile"] >= 2.0
    assert parts["redone"] == pytest.approx(5 * 0.05, rel=0.8)
    assert parts["steps"] == pytest.approx(38 * 0.05, rel=0.8), "all 40 but the first ones of each attempt"
    assert sum(parts.values()) - parts["queue"] == pytest.approx(cost.ready_seconds, abs=0.5)
    assert cost.goodput == parts["steps"] / cost.ready_seconds
    assert "redone" in went_to(cost) and "program time" in went_to(cost)


def test_steps_count_up_to_where_the_next_attempt_went_on() -> None:
    first = usage.Took(10, 5, 0, {"a": [0, 101, 100.0, 7.0, 0.0, 3.0], "b": [0, 11, 10.0, 1.0, 0.0, 0.0]})
    second = usage.Took(10, 5, 2, {"a": [61, 101, 39.0, 6.0, 1.0, 0.0]})
    found = usage.parts_of([(50, 200, first), (60, 100, second)])
    assert found == {
        "queue": 110, "provision": 20, "prepare": 10, "restore": 1, "compile": 14, "steps": 100 - 40 + 39 + 10,
        "redone": 40, "checkpoint": 3, "program": 200 - 15 - 121 + 100 - 17 - 46, "teardown": 2,
    }  # fmt: skip
    back = usage.Took(trainings={"a": [0, 50, 49.0, 0.0, 0.0, 0.0]})  # its newest checkpoints were torn
    found = usage.parts_of([(0, 200, first), (0, 100, second), (0, 60, back)])
    assert (found["redone"], found["steps"]) == (100 + 39, 49 + 10)
    assert usage.parts_of([(0, 9, usage.Took(1, 2, 3))]) == {}


def _forever() -> None:
    import time

    time.sleep(300)


ZONE_OF_V5E = "us-west4-a"
TICK = 1.5  # between two looks of a follower, and some


@kinetic.run(accelerator="v5e-1", limits=kinetic.Limits(cost=0.03))
def _costly() -> None:
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(300)


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(zones=(ZONE_OF_V5E,)) as emulated:
        for name, value in {**emulated.environ(), "KINETIC_PRICES": "v5e=36"}.items():
            monkeypatch.setenv(name, value)
        yield emulated
        emulated.wait_until_empty(30)


@pytest.mark.slow  # starts an emulated cloud
@pytest.mark.turn(8)
def test_a_slice_whose_host_never_boots_costs_what_it_is_ready_says_so_and_ends_at_the_cost_limit(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lifecycle, "UNHEARD", 1.0)
    cloud.never_boots(0)
    job = kinetic.run(accelerator="v5e-1", limits=kinetic.Limits(cost=0.08))(_forever).run_async()  # eight seconds
    heard: list[Event] = []
    shown = []

    def look(_: Follower) -> None:
        if not shown and any(isinstance(event, Change) and event.phase == "silent" for event in heard):
            shown.append(job.peek())

    outcome = job.follow(heard.append, on_step=look, timeout=60)
    assert outcome is not None
    assert outcome.cause == wire.DEADLINE
    assert "none of their hosts has started: its cost limit of $0.08" in outcome.verdict.reason
    assert "google-startup-scripts" in shown[0].said
    assert shown[0].phase == "silent"
    cloud.wait_until_empty(30)
    cost, charged = job.cost(), cloud.ledger.chip_seconds()
    assert charged > 8
    assert charged - TICK < cost.ready_seconds < 1.2 * charged + TICK
    capsys.readouterr()
    main(["status", job.job_id, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["attempts"], told["phase"]) == (cost.attempts, "failed") == (1, "failed")
    assert told["held_seconds"] == pytest.approx(cost.ready_seconds, abs=0.01)


@pytest.mark.slow
def test_a_slice_that_an_outsider_deletes_just_after_it_is_ready_is_told_as_it_was_seen_and_costs(
    cloud: Emulator,
) -> None:
    cloud.never_boots(0)
    job = kinetic.run(accelerator="v5e-1", retry=kinetic.Retry(infra=0))(_forever).run_async()

    def delete(follower: Follower) -> None:
        if follower.seen is not None and follower.seen.observation.state == PRESENT:
            cloud.sweep()

    outcome = job.follow(on_step=delete, timeout=60)
    assert outcome is not None
    said = outcome.verdict.reason
    assert ZONE_OF_V5E in said
    assert re.search(  # its request may be seen without its node, between the two deletions
        r"seen READY in .* from [\d:]+ to [\d:]+, and was no longer shown at [\d:]+ \(UTC\); nobody .*DeleteQueuedResource"
        r"|is gone; nobody .*; all its hosts were last seen at [\d:]+, and no longer at [\d:]+",
        said,
    )
    assert "tpu.nodes.delete" in said
    assert "not shown" not in said
    cost = job.cost()
    assert cost.ready_seconds > cloud.ledger.chip_seconds() - TICK
    assert cost.attempts == outcome.attempts == 1


@pytest.mark.slow
@pytest.mark.turn(2)
def test_hosts_end_a_program_at_the_jobs_cost_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cents at 36 dollars an hour are three seconds, counted from the first moment of the first host."""
    with Emulator(zones=("us-west4-a",)) as cloud:
        for name, value in {**cloud.environ(), "KINETIC_PRICES": "v5e=36"}.items():
            monkeypatch.setenv(name, value)
        job = _costly.run_async()
        with pytest.raises(errors.JobTimedOut, match=r"for which limits\.cost pays"):
            job.result(timeout=90)
        cost = job.cost()
        assert cost.usd_per_chip_hour == 36
        assert 3 < cost.ready_seconds < 60
        cloud.wait_until_empty()


@pytest.mark.parametrize("limits", [Limits(run=float("inf")), Limits(provision="inf")])
def test_a_limit_without_an_end_is_refused_where_a_slice_costs_money(tmp_path: Path, limits: Limits) -> None:
    spec = JobSpec("train", Options(accelerator="v5e-8", limits=limits), argv=("true",))
    with pytest.raises(errors.UsageError, match=r"limits\.(run|provision) has no end"):
        make_plan(spec, in_the_cloud(tmp_path))


@pytest.mark.parametrize("price", ["-1", "nan", "inf", "cheap", ""])
def test_a_price_is_a_number_of_dollars(price: str) -> None:
    with pytest.raises(errors.UsageError, match=rf"prices has 'v5e={price}': write dollars per chip-hour"):
        settings.load({}, prices=f"v5e={price}")
