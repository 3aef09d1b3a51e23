"""Shares of chips, as they are written and as they bind a job."""

from __future__ import annotations

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.chip_shares import bounds, parse, refusal, text_of, weight
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, price
from kinetic_orchestration.platforms.google.rest import billing_catalog
from kinetic_orchestration.testing.api_servers.billing_skus import skus

TEXT = "v5e=64,total=256,user:*=32,pipeline:retrain=128,user:ann/v5e=16"


def test_shares_are_read_and_written_in_one_form() -> None:
    assert text_of(parse("KINETIC_CHIPS", f" {TEXT} ,")) == TEXT
    assert parse("KINETIC_CHIPS", "") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v9=3", "'v9' is no accelerator. It can be total or one of v2"),
        ("user:ann/v9=3", "'v9' is no accelerator"),
        ("v5e=-3", "a share is a number of chips above 0"),
        ("v5e=0", "a share is a number of chips above 0"),
        ("v5e=many", "a share is a number of chips above 0"),
        ("v5e=inf", "a share is a number of chips above 0"),
        ("v5e", "write shares as v5e=64"),
        ("=3", "write shares as v5e=64"),
        ("team:a=3", "write shares as v5e=64"),
        ("user:=3", "write shares as v5e=64"),
        ("user:Ann=3", "as the labels of its jobs have it"),
        ("v5e=3,v5e=4", "two shares of the same: v5e=3 and v5e=4"),
    ],
)
def test_what_is_no_share_is_refused_when_it_is_read(text: str, told: str) -> None:
    with pytest.raises(UsageError, match="KINETIC_CHIPS") as refused:
        parse("KINETIC_CHIPS", text)
    assert told in str(refused.value)


def test_each_share_binds_whom_it_names_and_the_default_one_everybody_else() -> None:
    shares = parse("KINETIC_CHIPS", TEXT)

    def of(user: str, pipeline: str, generation: str = "v5e") -> list[str]:
        return [str(bound) for bound in bounds(shares, generation, 8, 1.0, user, pipeline)]

    assert of("bob", "") == ["v5e=64", "total=256", "user:bob=32"]
    assert of("ann", "retrain") == ["v5e=64", "total=256", "pipeline:retrain=128", "user:ann/v5e=16", "user:ann=32"]
    assert of("ann", "report", "v5p") == ["total=256", "user:ann=32"]


def test_a_chip_counts_by_its_price_else_by_its_peak_else_as_one_and_it_is_told_by_what() -> None:
    counted = {name: weight(accelerators.parse(name)) for name in ("v5e-8", "v5p-8", "h100", "v2-4", "t4")}
    assert counted["v5e-8"] == (1.0, "by its price on demand")
    assert counted["v5p-8"].counts == 3.5
    unpriced = "by the peak of its bf16 operations, as no price of it is known"
    assert counted["v2-4"] == (pytest.approx(46 / 197, abs=0.001), unpriced)
    assert counted["h100"].counts > 3
    assert counted["t4"].counts > 0


def test_a_gpu_counts_with_its_machine_and_one_without_a_whole_price_by_its_peak() -> None:
    """A GPU's price includes its machine, and an unknown one stays unknown, where chips count by price as well."""
    rates = billing_catalog.rates_of(skus(), BUILT_IN).rates
    listed = BUILT_IN.with_rates(rates, "2026-08-11T00:00:00Z")
    whole = price(Purchase(accelerators.parse("l4")), "us-central1-a", {}, listed)
    assert isinstance(whole, Price)
    assert whole.usd_per_chip_hour > 0.5608 + 4 * 0.02498
    assert weight(accelerators.parse("l4"), {}, listed).counts == round(whole.usd_per_chip_hour / 1.2, 3)
    assert weight(accelerators.parse("l4:spot"), {}, listed) == weight(accelerators.parse("l4"), {}, listed)
    no_cores = [rate for rate in rates if rate.generation != "g2 core"]
    lacks = BUILT_IN.with_rates(no_cores, "2026-08-11T00:00:00Z")
    assert weight(accelerators.parse("l4"), {}, lacks).by.endswith("as no price of it is known")
    assert weight(accelerators.parse("l4"), {"l4": 2.4}, lacks) == (2.0, "by its price on demand")


def test_a_job_that_no_share_can_ever_hold_is_refused_with_both_numbers() -> None:
    """A share that no job can ever fit in."""
    shares = parse("KINETIC_CHIPS", "v5e=64,user:*=8")
    told = refusal("KINETIC_CHIPS", shares, "v5e-16", bounds(shares, "v5e", 16, 1.0, "bob", ""))
    assert told.startswith(
        "v5e-16 takes 16 chips of the share user:bob=8 (the default, as no share names it), and so could never run."
    )
    assert refusal("KINETIC_CHIPS", shares, "v5e-8", bounds(shares, "v5e", 8, 1.0, "bob", "")) == ""
