"""What a job's chips cost, as an estimate that says its date."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import pytest

from kinetic_orchestration.accelerators import catalogue, parse
from kinetic_orchestration.cost import PRICES, PRICES_DATE, Total, estimate, line, price, summary


@pytest.mark.parametrize(
    ("name", "zone", "usd"),
    [
        ("v5e-16", "us-central1-a", 1.20),
        ("v5e-16:spot", "us-west4-a", 0.51),
        ("v5e-16", "europe-west4-b", 1.56),
        ("v5p-8", "us-east5-a", 4.20),
        ("v5p-8:spot", "us-east5-a", 2.415),
        ("v6e-8", "asia-northeast1-b", 3.24),
        ("v6e-8:spot", "europe-west4-a", 2.08),
        ("v4-8", "us-central2-b", 3.22),
        ("v3-4", "us-central1-a", 2.00),
    ],
)
def test_a_price_is_that_of_the_generation_in_the_region(name: str, zone: str, usd: float) -> None:
    found = price(parse(name), zone)
    assert found is not None
    assert (found.usd_per_chip_hour, found.date) == (usd, PRICES_DATE)


def test_spot_may_be_asked_for_by_name_or_by_argument() -> None:
    assert price(parse("v5e-8:spot"), "us-west4-a") == price(parse("v5e-8"), "us-west4-a", spot=True)


def test_no_price_is_invented() -> None:
    assert [name for name in ("tpu7x-8", "a100x4", "l4", "cpu", "v2-4") if price(parse(name)) is not None] == []


def test_another_regions_price_says_that_it_is() -> None:
    found = price(parse("v6e-8"), "us-central1-b")
    assert found is not None
    assert found.source == f"list price of {PRICES_DATE} for us-east1, none known for us-central1"


def test_an_on_demand_price_in_place_of_a_spot_price_says_that_it_is() -> None:
    found = price(parse("v4-8:spot"), "us-central2-b")
    assert found is not None
    assert (found.usd_per_chip_hour, found.source) == (
        3.22,
        f"list price of {PRICES_DATE}, none known for spot",
    )


def test_settings_override_prices_the_more_exact_first() -> None:
    own = {"v5e": 1.0, "v5e/us-west4": 0.9, "v5e:spot": 0.3, "a100": 3.0}

    def usd(name: str, zone: str | None = None) -> float | None:
        found = price(parse(name), zone, overrides=own)
        return found.usd_per_chip_hour if found else None

    assert usd("v5e-8") == 1.0
    assert usd("v5e-8", "us-west4-a") == 0.9
    assert usd("v5e-8:spot", "us-west4-a") == 0.3
    assert usd("a100x4") == 3.0
    assert usd("v6e-8", "us-east5-a") == 2.70


def test_an_emulated_job_shows_what_it_would_have_cost() -> None:
    found = estimate(parse("v5e-16"), 22.5, emulated=True)
    assert line(found) == str(found) == (
        "cost: $0.00 on this machine; on Cloud TPU v5litepod-16 in us-central1 about $0.12 "
        "(0.10 chip-hours at $1.20, list price of 2024-12-23)"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seconds", "zone", "emulated", "expected"),
    [
        ("v5p-8:spot", 3600, "us-east5-a", False,
         "cost: on Cloud TPU v5p-16 in us-east5 about $19.32 (8.00 chip-hours at $2.415, spot list price of 2024-12-23)"),
        ("v5e-8", 3, "us-west4-a", True,
         ("cost: $0.00 on this machine; on Cloud TPU v5litepod-8 in us-west4 less than $0.01 "
          "(0.0067 chip-hours at $1.20, list price of 2024-12-23)")),
        ("v4-8", 7200, None, False,
         "cost: on Cloud TPU v4-16 about $51.52 (16.00 chip-hours at $3.22, list price of 2024-12-23)"),
        ("a100x4", 90, None, True, "cost: $0.00 on this machine; no price known for a100x4 (0.10 chip-hours)"),
        ("tpu7x-8", 3600, "us-central1-c", False, "cost: no price known for tpu7x-8 (8.00 chip-hours)"),
        ("cpu:8", 3600, None, True, "cost: $0.00 on this machine"),
        ("v5e-8", -5, None, True, "cost: $0.00 on this machine"),
        ("v5e-256", 86400 * 30, "europe-west4-b", False,
         ("cost: on Cloud TPU v5litepod-256 in europe-west4 about $287,539.20 "
          "(184,320.00 chip-hours at $1.56, list price of 2024-12-23)")),
    ],
)  # fmt: skip
def test_the_cost_line(name: str, seconds: float, zone: str | None, emulated: bool, expected: str) -> None:
    assert line(estimate(parse(name), seconds, zone=zone, emulated=emulated)) == expected


def test_several_slices_cost_several_times_as_much() -> None:
    one, two = (estimate(parse("v6e-256"), 3600, zone="us-east5-a", slices=slices) for slices in (1, 2))
    assert one.usd is not None
    assert two.usd == pytest.approx(2 * one.usd)
    assert two.chip_hours == 512


def test_every_estimate_is_plain_data() -> None:
    assert {type(value) for found in catalogue() for value in asdict(estimate(found, 1)).values()} <= {
        str, float, bool, type(None),
    }  # fmt: skip


def test_every_priced_generation_is_one_that_exists() -> None:
    assert set(PRICES) <= {found.generation for found in catalogue()}


def test_totals_count_what_was_paid_for_by_period() -> None:
    def at(day: int) -> float:
        return datetime(2025, 1, day, 12, tzinfo=UTC).timestamp()

    rows = [
        (at(31), estimate(parse("v4-8"), 3600)),
        (at(2), estimate(parse("v4-8"), 3600)),
        (at(2), estimate(parse("a100"), 3600)),
        (at(2), estimate(parse("v5e-16"), 3600, emulated=True)),
    ]
    assert summary(rows) == [
        Total("2025-01-02", jobs=3, emulated=1, unpriced=1, chip_hours=9.0, usd=8 * 3.22),
        Total("2025-01-31", jobs=1, emulated=0, unpriced=0, chip_hours=8.0, usd=8 * 3.22),
    ]
    assert [total.period for total in summary(rows, "week")] == ["2025-W01", "2025-W05"]
    assert [(total.period, total.jobs) for total in summary(rows, "month")] == [("2025-01", 4)]
