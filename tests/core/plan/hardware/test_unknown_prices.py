"""An unknown price stays unknown: on no path does it become 0, or any other number."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from kinetic_orchestration.cli.commands import upkeep
from kinetic_orchestration.cli.output import dollars
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import machine_parts, machines
from kinetic_orchestration.plan.hardware.accelerators import catalogue
from kinetic_orchestration.plan.hardware.cost import Estimate, affordable, estimate, summary, together
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, ON_DEMAND, PriceList
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, Unknown, dearest, price
from kinetic_orchestration.platforms.google.rest.billing_catalog import rates_of
from kinetic_orchestration.testing.api_servers.billing_skus import skus

pytestmark = pytest.mark.fast

ALL = BUILT_IN.with_rates(rates_of(skus(), BUILT_IN).rates, "2026-08-11T00:00:00Z")
ZONES = ["us-central1-a", "us-west4-a", "us-east5-b", "europe-west4-a", "asia-southeast1-b", "me-west1-a"]
PAID = [one for one in catalogue() if one.kind != "cpu" and not one.whichever]


def worlds(seed: int, number: int) -> Iterator[tuple[random.Random, PriceList, Purchase, str]]:
    """Lists with holes, and something to buy somewhere."""
    dice = random.Random(seed)
    for _ in range(number):
        listed = PriceList(tuple(rate for rate in ALL.rates if dice.random() > 0.3))
        way = dice.choice([{}, {"spot": True}, {"flex_start": True}, {"reserved": True}])
        yield dice, listed, Purchase(dice.choice(PAID), dice.choice([1, 1, 4]), **way), dice.choice(ZONES)


def priced(seed: int, number: int) -> tuple[list[Estimate], list[Estimate]]:
    known, unknown = [], []
    for dice, listed, of, zone in worlds(seed, number):
        told = estimate(of, dice.uniform(0, 1e5), zone=zone, listed=listed)
        (unknown if told.usd is None else known).append(told)
    return known, unknown


@pytest.mark.parametrize("seed", range(5))
def test_what_has_no_price_has_no_cost_no_limit_of_money_and_no_dearest(seed: int) -> None:
    met = 0
    for _, listed, of, zone in worlds(seed, 400):
        found = price(of, zone, {}, listed)
        if isinstance(found, Price):
            assert 0 < found.usd_per_chip_hour < math.inf
            continue
        met += 1
        told = estimate(of, 3600, zone=zone, listed=listed)
        assert (told.usd, told.usd_per_chip_hour, told.date) == (None, None, "")
        assert "unknown for" in str(told) and "KINETIC_PRICES=" in str(told)
        assert json.loads(json.dumps(asdict(told), allow_nan=False))["usd"] is None
        assert isinstance(dearest(of, [zone], {}, listed), Unknown)
        assert isinstance(dearest(of, [zone, "us-east5-a"], {}, listed), Unknown)
        with pytest.raises(UsageError, match="cannot be kept, as no price is known of"):
            affordable(1e12, of, [zone], {}, listed)
        with pytest.raises(UsageError, match="cannot be kept, as no price is known of"):
            affordable(1e12, of, ["us-east5-a", zone], {}, listed)
    assert met > 50


@pytest.mark.parametrize("seed", range(5))
def test_a_price_has_each_part_of_its_machine_in_it(seed: int) -> None:
    """None counts as nothing: if the region lists the GPU, all the rest is of that region too, or there is no price."""
    dice, met, gpus = random.Random(seed), [0, 0], [one for one in PAID if one.kind == "gpu" and machines.serves(one)]
    for _, listed, _, _ in worlds(seed, 300):
        of = Purchase(dice.choice(gpus))
        parts = machine_parts.parts_of(of.slice)
        rates = [listed.rate(part.name, "us-central1", ON_DEMAND) for part in parts]
        if rates[0] is None:
            continue
        found, whole = price(of, "us-central1-a", {}, listed), None not in rates
        met[whole] += 1
        if not whole:
            assert isinstance(found, Unknown)
            continue
        usd = sum(rate.usd * part.amount for part, rate in zip(parts, rates, strict=True) if rate is not None)
        assert isinstance(found, Price)
        assert found.usd_per_chip_hour == pytest.approx(usd / parts[0].amount)
    assert min(met) > 10


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_with_one_unknown_is_unknown_and_says_what_the_rest_costs(seed: int) -> None:
    known, unknown = priced(seed, 400)
    dice = random.Random(seed)
    given = {"attempts": 2, "queued": 0.0, "ready": 1.0, "productive": 0.0}
    for _ in range(50):
        few = dice.sample(known, 3)
        assert together(few, **given).usd == pytest.approx(sum(one.usd or 0.0 for one in few))
        mixed = [*few, dice.choice(unknown)]
        dice.shuffle(mixed)
        whole = together(mixed, **given)
        assert (whole.usd, whole.usd_per_chip_hour) == (None, None)
        [total] = summary([(0.0, one) for one in mixed])
        assert (total.usd, total.unpriced) == (None, 1)
        assert total.least_usd == pytest.approx(sum(one.usd or 0.0 for one in few))
        assert "NaN" not in (text := json.dumps(asdict(total))) and "Infinity" not in text
    alone = summary([(0.0, dice.choice(unknown))])
    assert [(total.usd, total.least_usd, total.unpriced) for total in alone] == [(None, 0, 1)]


def test_cost_shows_what_is_known_of_a_sum_and_that_it_is_not_all() -> None:
    known, unknown = priced(1, 200)
    one = max(known, key=lambda told: told.usd or 0.0)
    for estimates, shown in (
        ([one], dollars(one.usd)), ([one, unknown[0]], f"{dollars(one.usd)} + ?"), ([unknown[0]], "unknown"),
        ([], "$0.00"),
    ):  # fmt: skip
        free = estimate(Purchase(PAID[0]), 60, uncharged=True)
        [total] = summary([(0.0, told) for told in [*estimates, free]])
        assert upkeep._dollars(total) == shown
